"""`release`: from user events to a private histogram, in eight steps.

1. Request    every option, checked when the request is made (`releasing/request.py`).
2. Check      what can be checked without counting: a release that cannot be written is not begun.
3. Plan       the noise and the threshold, with a certificate.
4. Book       the budget, in the ledger: before any noise is drawn.
5. Count      users per item, each user limited, by the engine (`counting/`).
6. Noise      true counts meet noise and threshold, here or on Spark's executors (`releasing/noise.py`).
7. Write      result and certificate, both or neither (`outputs/`).
8. Report     the ledger notes where the release is, and the caller gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, get_type_hints

from dphist.counting.files import given_paths, matching_files, spool_objects, spool_stdin
from dphist.counting.task import Choice, Engine, Events, Progress, Resources, Task, Value, is_frame
from dphist.counting.task import engine_for as counting_engine
from dphist.errors import InvalidParameter
from dphist.objects import is_object
from dphist.outputs.overwrite import local_paths, refuse_own_input
from dphist.outputs.target import Target, target_of
from dphist.outputs.write import check_formulas, check_target, write_release
from dphist.privacy.types import Noise, Plan, caps_up_to
from dphist.releasing.request import AUTO, STREAM, Request, origins

# Steps 3 to 8 import what they need, which takes longer than all of the checks.
if TYPE_CHECKING:
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.releasing.noise import Job
    from dphist.releasing.result import Release
    from dphist.releasing.spending import Attempt
    from dphist.sampling.tap import Tap

# Rows that meet noise together: enough for the compiled sampler, and little memory.
_BLOCK: Final = 1 << 20
_BLOCK_BYTES: Final = 64_000_000
# To look into the columns of more files than this is not quick.
_MOST_FILES: Final = 20
_FRAMES: Final = {"pandas", "polars", "pyarrow", "duckdb", "_duckdb", "pyspark"}

Placed = Callable[[Any], None]
Options = ParamSpec("Options")


def _takes_options_of(
    request: Callable[Options, Request],
) -> Callable[[Callable[..., Release]], Callable[Options, Release]]:
    """The function has the parameters that `Request` declares: for type checkers, editors and `help`."""

    def decorate(function: Callable[..., Release]) -> Callable[Options, Release]:
        types = get_type_hints(request)
        declared = signature(request).parameters.values()
        parameters = [one.replace(annotation=types[one.name]) for one in declared]
        function.__signature__ = Signature(parameters, return_annotation="Release")  # type: ignore[attr-defined]
        return function

    return decorate


@_takes_options_of(Request)
def release(input: Any, **options: Any) -> Release:  # noqa: D417
    """The private histogram "how many users per item" of user events.

    Without `max_items_per_user`, `top`, `max_nonzero` or `items`, the limit on the items of a user is chosen
    privately, and each count gets an estimate of the number of users. With `output` the result is also written,
    together with its certificate. The release of a Spark DataFrame stays on the cluster, as a `SparkRelease`.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> found = dphist.release(log, user="user", item="query", epsilon=1, delta=1e-6, max_items_per_user=1, seed=7)
    >>> found.to_pandas()["query"].tolist()
    ['tea', 'milk']

    Args:
        input: A path, a glob, a folder, the address of a database, or a frame (pandas, polars, Arrow, Spark).
        user: Column that identifies the user.
        item: Column to count. A list for several columns; NAME=COLUMN renames one, and NAME=EXPRESSION counts an
            SQL expression of one row.
        epsilon: Privacy loss ε, above 0. Smaller is more private.
        delta: Probability that the ε guarantee may fail, e.g. 1e-6. Choose it well below 1 / number of users.
        where: Count only events that satisfy this condition.
        table: Table of the input database.
        query: Query for the input database, instead of a table. Over files: SELECT expressions FROM input WHERE
            condition.
        input_format: parquet, csv, jsonl or arrow, if the format does not follow from the file names.
        null_items: Count a missing item as an item of its own.
        max_items_per_user: Limit on the items of one user. auto chooses it privately, with a small share of the
            budget, and adds an estimate of the number of users to each count. [auto]
        excess: Items of a user beyond M: drop keeps a random M; spread keeps up to 16 M, each with a smaller
            weight. [drop; with auto: the better of the two]
        goal: With auto: optimize for accurate counts, or for many items. [accuracy]
        top: Instead of a limit: release the K largest counts. The count of rank K + 1 is subtracted.
        items: Public list of items. Exactly these items are counted and released.
        sum: COLUMN:LOW:HIGH. Add the sum of a column. Each user's own sum for an item is clamped to LOW..HIGH.
            Also a list; NAME=COLUMN:LOW:HIGH renames it.
        mean: COLUMN:LOW:HIGH. Add the mean over the users of an item; bounds as for sum.
        output: Where to write: .parquet, .csv, .tsv, .jsonl, .arrow, .csv.gz or a database. The certificate is
            written next to it. - is standard output, as CSV. With engine='spark' also a folder (NAME/ or
            hdfs://...), written by the executors.
        output_table: Table of the output database. [release]
        output_format: Format, if it does not follow from the name.
        certificate: With output='-': file for the certificate.
        sign: Sign data and certificate with this private key; see dphist keygen.
        escape_formulas: CSV and TSV: put ' before text that a spreadsheet would run as a formula (=, +, -, @,
            tab).
        force: Replace an existing release.
        count_name: Name of the count column. [count]
        standard_error: Add a column with the standard error.
        interval: Add a confidence interval for each count (e.g. 0.95). Covers noise, not items dropped by the user
            limit.
        round: Round counts to whole numbers.
        ledger: Book the release in this ledger before any noise is drawn.
        dataset: With ledger: the dataset whose budget is spent.
        id: With ledger: name of this run, for scheduled jobs. After a crash, run the same command again: a
            finished release is not repeated, and an unfinished one reuses its booking with new noise. That is
            private only if nothing of the earlier attempt was published, copied or seen.
        engine: Engine that reads and counts: DuckDB on this machine, or Spark. [duckdb]
        master: With engine='spark': spark://..., yarn, k8s://... [local[*]]
        spark_conf: With engine='spark': a Spark setting; also a list.
        memory: Memory limit for counting, such as 2GB.
        threads: Threads used for counting.
        temp_folder: Folder for data that exceeds the memory limit.
        input_name: Name of the input in certificate and report, instead of its path.
        cap_share: With auto: share of the budget spent on choosing M. [0.02; for keys 0.005]
        offset: With top: how the subtracted count is released. independent is the paper's rule.
        max_nonzero: Public bound on the number of items. On its own it is enforced: with more items, the count of
            rank K + 1 is subtracted from all. With a smaller max_items_per_user, or with sums, you guarantee it:
            with more items, nothing is released.
        lower_threshold: Remove counts below T before adding noise, unless a fixed rule already has. [1]
        mechanism: Kind of noise. [best]
        gamma: Variance of each count's own noise, divided by that of the shared noise.
        minimize: What to minimize. [threshold]
        seed: For tests: seed of the noise. The release is NOT PRIVATE.
        weight: Share of the budget for each sum, in order; the counts get the rest. [least total variance]
        types: For frames. The columns of a frame are read as text, and items are released as text, because pandas
            and others infer types from values: a single row can turn all whole numbers into floats. "fixed" keeps
            the frame's types; use it if they were declared before the data was seen, by a database, a Parquet
            file or `dtype=`, for example.
        progress: Called with the name of a step and the share of it that is done.
    """
    if is_frame(input) and not origins(input) & _FRAMES:
        raise InvalidParameter(f"input must be a path, an address or a frame, not {type(input).__name__}")
    try:
        request = Request(input, **options)
    except TypeError as error:
        # An unknown or a missing keyword is one of the function that was called.
        raise TypeError(str(error).replace("Request.__init__()", "release()")) from error
    return run(request)


def run(request: Request, placed: Placed | None = None) -> Release:
    """Carry out a request, which is step 1. `placed` is called once the files are there."""
    from dphist.releasing.spending import booked_attempt

    with booked_attempt(request, placed) as attempt:
        if attempt.finished is not None:
            return attempt.finished
        files = _check_files(request)  # 2
        target = _check_target(request)
        # The engine's session ends before anything is written: the result may go into the database that was read.
        with engine_for(request) as engine, _spool_input(request) as events:
            _check_columns(request, engine, events, files)
            planned = plan_request(request, engine)  # 3
            attempt.book(planned)  # 4
            job = _prepare_job(request, planned, engine, events, attempt.receipt)
            with engine.count(job.task, _watch(request, "counting")) as counted:  # 5
                result = attempt.release = _add_noise(job, counted, target, attempt.note_written)  # 6
        result = _write(request, result, target, attempt)  # 7
        attempt.settle(result.written)  # 8
    return result


# 2. Check, without planning: a missing file or column is reported at once.


def _check_files(request: Request) -> list[str]:
    """The local files of the input. Raises `InputError` if there are none."""
    if request.engine_name != "duckdb":
        return []
    return [file for path in local_paths(request.input) if path != STREAM for file in matching_files(path)]


def _check_target(request: Request) -> Target | None:
    """Where the release will be written, if anywhere. Whatever would prevent that is an error here."""
    from dphist.releasing.spending import check_ledger

    if request.types == ("none" if is_frame(request.input) else "text"):
        raise InvalidParameter("types='text' and types='fixed' are for frames: files have the types they declare")
    target = None
    if request.output is not None:
        target = target_of(
            request.output, request.output_table, request.output_format, request.certificate,
            objects=request.engine_name != "spark",
        )  # fmt: skip
        if request.sign is not None:
            from dphist.signatures import signer_of

            target = replace(target, sign=signer_of(request.sign))
        check_target(target, force=request.force, columns=request.output_columns())
        check_formulas(target, request.escape_formulas)
        if target.kind == "folder" and request.engine_name != "spark":
            raise InvalidParameter(
                f"only Spark can write a folder such as {target.public_address()!r}: name a file, such as "
                "counts.parquet, or use --engine spark"
            )
        refuse_own_input(
            target, request.input, request.items, table=request.table, query=request.query, key=request.sign
        )
    check_ledger(request, target)
    return target


@contextmanager
def _spool_input(request: Request) -> Iterator[Events]:
    """The events. Standard input and objects are copied to a private folder: they are read more than once."""
    events, engine = request.events(), request.engine_name
    folder = None if request.temp_folder is None else Path(request.temp_folder)
    if isinstance(request.input, str) and request.input == STREAM:
        assert request.input_format is not None
        with spool_stdin(request.input_format.lower().lstrip("."), folder) as path:
            yield replace(events, source=path)
    elif engine == "duckdb" and any(is_object(one) for one in given_paths(request.input)):
        with spool_objects(given_paths(request.input), folder) as paths:
            yield replace(events, source=paths)
    else:
        yield events


def _check_columns(request: Request, engine: Engine, events: Events, files: Sequence[str]) -> None:
    """Raise `InputError` for an input that cannot be read, before anything is booked or chosen."""
    written = request.where or request.query or any(one.name != one.source for one in request.columns)
    auto = request.max_items_per_user == AUTO
    if not (written or auto or request.ledger is not None or 0 < len(files) <= _MOST_FILES):
        return
    values = tuple(Value(*one) for one in request.sums)
    task = Task(events, Choice(bytes(32)), public_items=request.public_items(), values=values)
    if auto:
        from dphist.counting.duckdb import check_sizes_task

        check_sizes_task(task, caps_up_to(None))
    engine.check(task)


def engine_for(request: Request) -> Engine:
    """The engine that was asked for."""
    folder = None if request.temp_folder is None else Path(request.temp_folder)
    resources = Resources(request.memory, request.threads, folder)
    return counting_engine(request.engine_name, resources, request.master, request.spark_settings)


# 3. Plan.


def plan_request(request: Request, engine: Engine) -> Plan | ChoicePlan:
    """The certified plan of a request, or the plans of all caps it may choose from.

    Of all data only the length of a public list is read.
    """
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.releasing.document import plan_choice_for
    from dphist.releasing.noise import rehearse

    public = request.public_items()
    size = None if public is None else max(1, engine.size(public))
    planned = plan_choice_for(request, size) if request.max_items_per_user == AUTO else _plan(request, size)
    for plan in _outermost(planned.plans) if isinstance(planned, ChoicePlan) else (planned,):
        rehearse(plan)
        if plan.sums:
            _check_sums(plan, request)
    return planned


def _outermost(plans: Sequence[Plan]) -> list[Plan]:
    """Of each kind the plans with the least and the most noise in steps: if these can be drawn, all others can."""

    def kind(plan: Plan) -> tuple[str, bool]:
        return plan.mechanism, plan.contract.spread is not None

    def steps(plan: Plan) -> float:
        return plan.sigma * (1 if isinstance(plan.noise, Noise) else plan.noise.lattice)

    of_kinds = [[plan for plan in plans if kind(plan) == one] for one in sorted(set(map(kind, plans)))]
    return [outermost(of_kind, key=steps) for of_kind in of_kinds for outermost in (min, max)]


def _plan(request: Request, public_items: int | None) -> Plan:
    from dphist.planning.planner import plan as make_plan
    from dphist.releasing.document import certify_again

    plan = partial(
        make_plan, epsilon=request.epsilon, delta=request.delta, minimize=request.minimize,
        mechanism=request.mechanism, sums=[(low, high) for _, low, high in request.sums],
        weights=request.weights or None, excess=request.excess or "drop",
    )  # fmt: skip
    cap = request.cap
    if public_items is not None:
        made = plan(public_items=public_items, max_items_per_user=None if cap is None else min(cap, public_items))
    elif request.top is not None:
        made = plan(top=request.top, offset=request.offset, max_items_per_user=cap)
    else:
        if request.max_nonzero is not None and cap is not None:
            cap = min(cap, request.max_nonzero)
        made = plan(max_nonzero=request.max_nonzero, max_items_per_user=cap, gamma=request.gamma)
    return certify_again(made)


def _check_sums(plan: Plan, request: Request) -> None:
    """Bounds of sums with numbers that a certificate cannot hold, or that `verify` would not read again."""
    from dphist.releasing.aggregates import sums_facts
    from dphist.releasing.document import plan_from

    try:
        plan_from(plan.to_dict())
        sums_facts(plan, request.aggregates)
    except (InvalidParameter, ArithmeticError):
        raise InvalidParameter("the bounds of a sum are too large, or have too many digits") from None


# 5. Count.


def _prepare_job(
    request: Request, planned: Plan | ChoicePlan, engine: Engine, events: Events, receipt: Mapping[str, Any] | None
) -> Job:
    """Choose the limit if it is to be chosen, and fix what is counted."""
    from dphist.releasing.document import Chosen, Nonzero, certify_again, nonzero_rule, top_k_keeps
    from dphist.releasing.noise import Job, noisy_sizes
    from dphist.sampling.tap import SecureTap, SeededTap

    tap: Tap = SecureTap() if request.seed is None else SeededTap(request.seed)
    chosen = None
    if isinstance(planned, Plan):
        plan, cap = planned, request.cap
    else:
        sizes = Task(events, Choice(bytes(32)), public_items=request.public_items())
        users = engine.sizes(sizes, planned.choice.caps, _watch(request, "choosing"))
        chosen = Chosen.by(planned, noisy_sizes(planned.choice, users, tap))
        plan, cap = certify_again(chosen.release), chosen.cap
    # A top-k step subtracts the count of the next rank. A bound it cannot enforce is guaranteed by the caller.
    rule = nonzero_rule(plan, promised=request.max_nonzero is not None and not top_k_keeps(plan))
    rank = None
    # Spark compares with a promised bound by the same rank; it subtracts nothing then.
    if rule is Nonzero.TOP_K or (rule is Nonzero.PROMISED and engine.name == "spark"):
        rank = int(plan.contract.nonzero) + 1
    if rule is Nonzero.TOP_K and request.top is not None:
        # --top does not need a limit on users, which would only lose events.
        cap = None
    choice = Choice(tap.words(4).tobytes(), portable=not tap.private)
    task = replace(
        task_of(plan, events, choice, cap, [column for column, _, _ in request.sums]),
        lower_threshold=request.lower_threshold, public_items=request.public_items(), rank=rank,
        ordered=not tap.private,
    )  # fmt: skip
    return Job(request, plan, rule, task, tap, chosen, receipt)


def task_of(plan: Plan, events: Events, choice: Choice, cap: int | None, summed: Sequence[str]) -> Task:
    """What is counted for a plan: with its weights if it has any, else up to `cap` items of a user."""
    weights = tuple((level.items, level.weight) for level in plan.levels)
    pairs = zip(summed, plan.sums, strict=True)
    values = tuple(Value(column, one.low, one.high, one.reach) for column, one in pairs)
    return Task(events, choice, weights[-1][0] if weights else cap, values=values, weights=weights)


# 6. Noise.


def _add_noise(job: Job, counted: Any, target: Any, placed: Placed) -> Release:
    """The release. Spark's executors also write it if `target` is a folder, and then call `placed`."""
    request = job.request
    if request.engine_name == "spark":
        from dphist.releasing.on_spark import release_on_spark

        return release_on_spark(job, counted, target, placed)
    from dphist.releasing.noise import NoiseStage, blocks, engine_pieces
    from dphist.releasing.result import frame_form

    stage = NoiseStage(job.plan, job.rule, job.names, job.tap, job.cut(counted.at_rank), distinct=True)
    _show_progress(request, "counting", 1.0)
    _show_progress(request, "adding noise", 0.0)
    for block in blocks(engine_pieces(counted, job.plan), _BLOCK, _BLOCK_BYTES):
        stage.add(block)
    _show_progress(request, "adding noise", 1.0)
    # Where a limit on users replaced the top-k step, the largest counts are those with the most noisy users.
    noisy = stage.release(request.top)
    added = job.columns.numbers(noisy.counts, noisy.sums, noisy.plan)
    counts = added.pop(request.count_name)
    came = frame_form(request.input) if is_frame(request.input) else None
    return replace(job.complete(noisy), counts=counts, added=added, came=came)


# 7. Write.


def _write(request: Request, result: Release, target: Any, attempt: Attempt) -> Release:
    """Write result and certificate, both or neither. A folder was written by the executors already."""
    if target is None or target.kind == "folder":
        return result
    _show_progress(request, "writing", 0.0)
    written = write_release(
        result.to_arrow(), result.document(), target, force=request.force,
        escape_formulas=request.escape_formulas, ready=partial(attempt.note_drawn, target.title()),
        placed=attempt.note_written,
    )  # fmt: skip
    _show_progress(request, "writing", 1.0)
    return result.with_written(written)


def _watch(request: Request, step: str) -> Progress | None:
    return None if request.progress is None else partial(request.progress, step)


def _show_progress(request: Request, step: str, share: float) -> None:
    if request.progress is not None:
        request.progress(step, share)
