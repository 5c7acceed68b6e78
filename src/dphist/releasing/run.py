"""`release`: from user events to a private histogram, in eight steps.

1. Request    all options, checked when the request is created (`releasing/request.py`).
2. Check      input, columns, output and ledger, before any event is counted.
3. Plan       noise and threshold, with a certificate.
4. Book       the budget in the ledger, before any noise is drawn.
5. Count      users per item, each user limited, in the engine (`counting/`).
6. Noise      and threshold, here or on Spark's executors (`releasing/noise.py`). Without a limit on users, steps 5
              and 6 alternate (`releasing/rounds.py`).
7. Write      result, then its certificate (`outputs/`).
8. Settle     record in the ledger where the release is, and return it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dphist.certificate.plans import Nonzero, certify_again, nonzero_rule, top_k_keeps, with_lower_threshold
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.files import given_paths, matching_files, spool_objects, spool_stdin
from dphist.counting.streams import read_once
from dphist.counting.task import (
    Choice,
    Counted,
    Engine,
    Events,
    Progress,
    Resources,
    RoundsTask,
    Task,
    Value,
    is_frame,
    is_stream,
    origins,
)
from dphist.errors import InputError, InvalidParameter
from dphist.ledger.schema import Receipt
from dphist.model import Budget, Plan
from dphist.objects import is_object
from dphist.outputs.target import Placed, Target, local_paths, target_of
from dphist.outputs.write import check_formulas, check_target, have_common_source, refuse_own_input, write_release
from dphist.planning.planner import plan as make_plan
from dphist.planning.rounds import plan_rounds
from dphist.releasing.noise import Job, blocks, check_drawing, engine_pieces, release_blocks
from dphist.releasing.periods import fill_period
from dphist.releasing.request import STREAM, Request, takes_options_of
from dphist.releasing.result import Release, frame_form
from dphist.releasing.rounds import check_drawing_of_rounds, release_rounds, rounds_noise
from dphist.releasing.spending import Attempt, account_of, booked_attempt, check_ledger, composes_gaussian
from dphist.releasing.steps import LOGGER, StepLog
from dphist.sampling.rng import Rng, SecureRng, SeededRng
from dphist.signatures import signer_of

if TYPE_CHECKING:
    from dphist.spark.counting import SparkEngine

# Rows that get noise together: enough for the compiled sampler, in little memory.
_BLOCK_ROWS: Final = 1 << 20
_BLOCK_BYTES: Final = 64_000_000
# Checking the columns of more files than this is slow.
_MOST_FILES: Final = 20
_FRAMES: Final = {"pandas", "polars", "pyarrow", "duckdb", "_duckdb", "pyspark"}


@takes_options_of(Request)
def release(input: object, **options: Any) -> Release:  # noqa: D417
    """Count users per item in user events, with differential privacy.

    Without `max_items_per_user`, `top` or `max_nonzero`, items are found in rounds and then measured: each count
    is an estimate of the number of users, with its margin. With `output`, the result and its certificate are also
    written. The release of a Spark DataFrame stays on the cluster, as a `SparkRelease`.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> result = dphist.release(log, user="user", item="query", epsilon=1, delta=1e-6, top=2, seed=7)
    >>> print(result.to_pandas())
      query  count
    0   tea  593.0
    1  milk  297.0

    `seed` makes the example repeatable; leave it out for private noise.

    Args:
        input: A path, a glob, a folder, the address of a database, a frame (pandas, polars, Arrow, Spark), or an
            Arrow stream, which is read once: a RecordBatchReader or any other object with `__arrow_c_stream__`.
        types: For frames and Arrow streams. Their columns are read as text, and items are released as text,
            because pandas and others infer types from values: a single row can turn all whole numbers into floats.
            "fixed" keeps the types; use it if they were declared before the data was seen, by a database, a
            Parquet file or `dtype=`, for example.
        progress: Called with the name of a step and the share of it that is done.

    Raises:
        InvalidParameter: An option is out of range, or contradicts another.
        InputError: The input, a column or a list of items cannot be read.
        OutputError: The result cannot be written, or would replace a file without `force`.
        OverBudget: The ledger has no room for it. Nothing was booked or drawn.
        AlreadyRunning: Another run with the same `id` is in progress.
    """
    if is_frame(input) and not origins(input) & _FRAMES and not is_stream(input):
        raise InvalidParameter(
            f"input must be a path, an address, a frame or an Arrow stream, not {type(input).__name__}"
        )
    try:
        request = Request(input, **options)
    except TypeError as error:
        # Name the function that was called with an unknown or missing keyword.
        raise TypeError(str(error).replace("Request.__init__()", "release()")) from error
    return run(request)


def run(request: Request, placed: Placed | None = None) -> Release:
    """Carry out a request (step 1). `placed` is called as soon as result and certificate are written."""
    request, log = fill_period(request), StepLog()
    log.done("request", engine=request.engine_name, id=request.id)
    with booked_attempt(request, placed) as attempt, read_once(request.events()) as given:
        if attempt.finished is not None:
            LOGGER.info("already released under this id: nothing is drawn or booked")
            return attempt.finished  # by an earlier run with the same id
        files = _check_files(request)  # 2. Check
        target = _check_target(request)
        # The engine's session ends before anything is written: the output may be a table of the input database.
        with engine_for(request) as engine, spool_input(request, given) as events:
            _check_columns(request, engine, events, files)
            log.done("check", output=None if target is None else target.public_address())
            planned = plan_request(request, engine)  # 3. Plan
            log.done("plan", mechanism=planned.mechanism, epsilon=request.epsilon, delta=request.delta)
            attempt.book(planned, partial(_plan_with, request, engine))  # 4. Book
            log.done("book", dataset=request.dataset, entry=attempt.receipt and attempt.receipt["entry"])
            if request.in_rounds:  # 5. and 6. for each round
                result = attempt.release = _in_rounds(request, planned, engine, events, target, attempt)
            else:
                job = _prepare_job(request, planned, events, attempt.receipt)
                assert isinstance(job.task, Task)
                with engine.count(job.task, _watch(request, "counting")) as counted:  # 5. Count
                    result = attempt.release = _add_noise(job, counted, target, attempt.note_written)  # 6. Noise
        log.done("noise")
        result = _write(request, result, target, attempt)  # 7. Write
        log.done("write")
        attempt.settle(result.written)  # 8. Settle
        log.done("settle")
    return result


# 2. Check, before planning: a missing file or column is reported at once.


def _check_files(request: Request) -> list[str]:
    """The local input files. Raises `InputError` if there are none."""
    for name, listed in (("<--items>", request.items), ("<--known>", request.known)):
        if listed is not None and have_common_source(request.input, listed):
            raise InvalidParameter(
                f"{name} is the input itself: a list made from private data is not public, and releasing all of "
                f"it reveals every item. Leave {name} out to count items that are not known in advance"
            )
    if request.engine_name != "duckdb":
        return []
    return [file for path in local_paths(request.input) if path != STREAM for file in matching_files(path)]


def _check_target(request: Request) -> Target | None:
    """Where to write, or None. Raises an error if writing there would fail."""
    if request.types == ("none" if is_frame(request.input) else "text"):
        raise InvalidParameter("types='text' and types='fixed' are for frames: files have the types they declare")
    target = None
    if request.output is not None:
        target = target_of(
            request.output, request.output_table, request.output_format, request.certificate,
            objects=request.engine_name != "spark",
        )  # fmt: skip
        if request.sign is not None:
            target = replace(target, sign=signer_of(request.sign))
        check_target(target, force=request.force, columns=request.output_columns())
        check_formulas(target, request.escape_formulas)
        if target.kind == "folder" and request.engine_name != "spark":
            raise InvalidParameter(
                f"only Spark can write a folder such as {target.public_address()!r}: name a file, such as "
                "counts.parquet, or use <--engine spark>"
            )
        lists = request.items if request.known is None else request.known
        refuse_own_input(target, request.input, lists, table=request.table, query=request.query, key=request.sign)
    check_ledger(request, target)
    return target


@contextmanager
def spool_input(request: Request, events: Events) -> Iterator[Events]:
    """The events. Standard input and objects are copied to a private folder, because they are read repeatedly."""
    paths = given_paths(request.input)
    folder = Path(request.temp_folder) if request.temp_folder is not None else None
    if isinstance(request.input, str) and request.input == STREAM:
        assert request.input_format is not None
        with spool_stdin(request.input_format.lower().lstrip("."), folder) as path:
            yield replace(events, source=path)
    elif request.engine_name == "duckdb" and any(is_object(path) for path in paths):
        with spool_objects(paths, folder) as copies:
            yield replace(events, source=copies)
    else:
        yield events


def _check_columns(request: Request, engine: Engine, events: Events, files: Sequence[str]) -> None:
    """Raise `InputError` for unreadable input or missing columns, if checking is quick or a later error costly."""
    has_sql = request.where or request.query or any(column.name != column.source for column in request.columns)
    if not (has_sql or request.in_rounds or request.ledger is not None or 0 < len(files) <= _MOST_FILES):
        return
    values = tuple(Value(column, low, high) for columns, low, high in request.sums for column in columns)
    task = Task(events, Choice(bytes(32)), public_items=request.listed_items(), values=values)
    engine.check(task)


def engine_for(request: Request) -> DuckDBEngine | SparkEngine:
    folder = Path(request.temp_folder) if request.temp_folder is not None else None
    resources = Resources(request.memory, request.threads, folder)
    if request.engine_name == "spark":
        from dphist.spark.session import Cluster, require_pyspark

        require_pyspark()
        from dphist.spark.counting import SparkEngine

        return SparkEngine(resources, Cluster(request.master, request.spark_settings))
    return DuckDBEngine(resources)


# 3. Plan.


def plan_request(request: Request, engine: Engine) -> Plan:
    """The certified plan of a request. The only data read is the length of a public list of items."""
    public = None if request.items is None else request.listed_items()
    size = None if public is None else engine.size(public)
    if size == 0:
        raise InputError("the list of public items is empty: nothing would be released, but the budget spent")
    if request.in_rounds:
        return _plan_rounds(request, size)
    plan = _plan(request, size)
    check_drawing(plan)
    return plan


def _plan_with(request: Request, engine: Engine, epsilon: float) -> Plan:
    """The plan of the same release with another epsilon."""
    return plan_request(replace(request, epsilon=epsilon), engine)


def _plan_rounds(request: Request, public_items: int | None) -> Plan:
    account = account_of(request)
    gaussian = request.mechanism == "gaussian" or (account is not None and composes_gaussian(account))
    plan = plan_rounds(
        Budget(request.epsilon, request.delta), goal=request.goal or "accuracy", public_items=public_items,
        gaussian=gaussian, alone=not request.total,
        sums=request.bounds, weights=request.weights or None,
    )  # fmt: skip
    check_drawing_of_rounds(plan)
    return certify_again(plan)


def _plan(request: Request, public_items: int | None) -> Plan:
    cap, most = request.max_items_per_user, public_items or request.max_nonzero
    plan = make_plan(
        epsilon=request.epsilon, delta=request.delta, top=request.top, offset=request.offset,
        max_nonzero=request.max_nonzero, gamma=request.gamma, public_items=public_items,
        max_items_per_user=cap if cap is None or most is None else min(cap, most),
        sums=request.bounds, weights=request.weights or None,
        mechanism=request.mechanism, minimize=request.minimize,
    )  # fmt: skip
    return with_lower_threshold(certify_again(plan), request.recorded())


# 5. Count.


def _prepare_job(request: Request, plan: Plan, events: Events, receipt: Receipt | None) -> Job:
    """Define what to count."""
    rng, cap = _rng(request), request.max_items_per_user
    # If a top-k step cannot enforce the bound on all items, the caller guarantees it.
    rule = nonzero_rule(plan, promised=request.max_nonzero is not None and not top_k_keeps(plan))
    # A top-k step subtracts the count of the next rank. Spark checks the caller's guarantee by the same count.
    ranked = rule is Nonzero.TOP_K or (rule is Nonzero.PROMISED and request.engine_name == "spark")
    if rule is Nonzero.TOP_K and request.top is not None and plan.contract.user_limit is None:
        cap = None  # no limit on items per user is needed, and one would only drop events
    task = Task(
        events, Choice(rng.words(4).tobytes(), portable=not rng.private), cap, request.lower_threshold,
        request.listed_items(), int(plan.contract.nonzero) + 1 if ranked else None, not rng.private,
        values_of(plan, request.summed),
    )  # fmt: skip
    return Job(request, plan, rule, task, rng, receipt)


def _rng(request: Request) -> Rng:
    return SecureRng() if request.seed is None else SeededRng(request.seed)


def rounds_task(plan: Plan, request: Request, events: Events, rng: Rng) -> RoundsTask:
    """What to count in rounds."""
    noise = rounds_noise(plan)
    return RoundsTask(
        events, Choice(rng.words(4).tobytes(), portable=not rng.private), noise.most_items, noise.lattice,
        noise.growth, alone=noise.alone is not None, known=request.listed_items(),
        listed=request.items is not None, values=values_of(plan, request.summed), ordered=not rng.private,
    )  # fmt: skip


def _in_rounds(
    request: Request,
    plan: Plan,
    engine: DuckDBEngine | SparkEngine,
    events: Events,
    target: Target | None,
    attempt: Attempt,
) -> Release:
    """Count and add noise in rounds. Spark also writes a `target` that is a folder."""
    rng = _rng(request)
    task = rounds_task(plan, request, events, rng)
    job = Job(request, plan, Nonzero.NOT_NEEDED, task, rng, attempt.receipt)
    watch = _watch(request, "adding noise") or (lambda _share: None)
    counting = _watch(request, "counting")
    if isinstance(engine, DuckDBEngine):
        with engine.rounds(task, counting) as counted:
            return release_rounds(job, counted, watch)
    from dphist.spark.rounds import release_rounds_on_spark

    with engine.rounds(task, counting) as on_spark:
        return release_rounds_on_spark(job, on_spark, target, attempt.note_written, watch)


def values_of(plan: Plan, summed: Sequence[str]) -> tuple[Value, ...]:
    """The columns to sum, in the steps of the plan's noise."""
    noises = [(number, noise) for number, noise in enumerate(plan.sums) for _ in range(noise.columns)]
    return tuple(
        Value(column, noise.low, noise.high, noise.reach, number if noise.columns > 1 else None)
        for column, (number, noise) in zip(summed, noises, strict=True)
    )


# 6. Noise.


def _add_noise(job: Job, counted: Counted, target: Target | None, placed: Placed) -> Release:
    """Add noise. Spark's executors also write a `target` that is a folder, and then call `placed`."""
    request = job.request
    if request.engine_name == "spark":
        from dphist.spark.counting import SparkHistogram
        from dphist.spark.noise import release_on_spark

        assert isinstance(counted, SparkHistogram)
        return release_on_spark(job, counted, target, placed)
    session = job.begin(counted.at_rank)
    _show_progress(request, "counting", 1.0)
    _show_progress(request, "adding noise", 0.0)
    histogram = blocks(engine_pieces(counted, job.plan), _BLOCK_ROWS, _BLOCK_BYTES)
    # If a limit on items per user replaced the top-k step, --top keeps the largest noisy counts.
    noisy = release_blocks(histogram, session, job.rule, job.names, distinct=True, limit=request.top)
    _show_progress(request, "adding noise", 1.0)
    added = job.columns.numbers(np.asarray(noisy.counts, np.float64), noisy.sums, noisy.plan)
    counts = added.pop(request.count_name)
    input_form = frame_form(request.input) if is_frame(request.input) else None
    return replace(job.complete(noisy), counts=counts, added=added, input_form=input_form)


# 7. Write.


def _write(request: Request, result: Release, target: Target | None, attempt: Attempt) -> Release:
    """Write the result, then its certificate. Executors have already written a folder."""
    if target is None or target.kind == "folder":
        return result
    _show_progress(request, "writing", 0.0)
    written = write_release(
        result.to_arrow(), result.document(), target, force=request.force,
        escape_formulas=request.escape_formulas, placed=attempt.note_written,
        ready=None if request.id is None else partial(attempt.note_drawn, target.title()),
    )  # fmt: skip
    _show_progress(request, "writing", 1.0)
    return result.with_written(written)


def _watch(request: Request, step: str) -> Progress | None:
    return None if request.progress is None else partial(request.progress, step)


def _show_progress(request: Request, step: str, share: float) -> None:
    if request.progress is not None:
        request.progress(step, share)
