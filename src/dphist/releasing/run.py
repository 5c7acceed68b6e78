"""`release`: from user events to a private histogram."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack

import numpy as np

from dphist.counting.duckdb import checked_sizes
from dphist.counting.events import Value, is_frame
from dphist.counting.task import Choice, Counted, Engine, Resources, Task
from dphist.errors import InvalidParameter
from dphist.planning.auto_cap import ChoicePlan
from dphist.planning.planner import plan as make_plan
from dphist.privacy.noise import Noise
from dphist.privacy.types import Budget, Plan
from dphist.releasing.aggregates import sums_facts
from dphist.releasing.certificate import plan_from
from dphist.releasing.frames import Form, Names, Piece, frame_form, origins
from dphist.releasing.noise import Begun, Cut, NoiseStage, blocks
from dphist.releasing.protected import refuse_own_input
from dphist.releasing.request import AUTO, Columns, Options, Request, request_from
from dphist.releasing.result import Facts, Release
from dphist.releasing.soundness import Chosen, Nonzero, certified, choice_for, choose, nonzero_rule, top_k_keeps
from dphist.releasing.spending import Booked, book, booked_attempt, check_place
from dphist.sampling.mechanisms import check_counts, noisy_sums
from dphist.sampling.sampler import Fresh
from dphist.sampling.tap import SecureTap, SeededTap, Tap
from dphist.signatures import signer_of

# Rows that meet noise together: enough for the compiled sampler, and little memory.
_BLOCK: Final = 1 << 20
_BLOCK_BYTES: Final = 64_000_000
_FRAMES: Final = {"pandas", "polars", "pyarrow", "duckdb", "_duckdb", "pyspark"}

# Called with the name of a step and the share of it that is done; never with a number of the data.
Watcher = Callable[[str, float], None]


def release(input: Any, *, progress: Watcher | None = None, **options: Unpack[Options]) -> Release:
    """The private histogram "how many users per item" of user events.

    `input` is a path, a glob, a folder, the address of a database, or a frame (pandas, polars, Arrow, Spark). Of a
    frame of Spark the release stays on the cluster, as a `SparkRelease`. The options
    are the flags of `dphist release`, with _ for -: `user` and `item` (names of columns; several for `item`),
    `epsilon`, `delta`, and one of `max_items_per_user`, `top`, `max_nonzero` or `items`. With `output` the result
    is written as well, together with its certificate. `progress` is called with the name of a step and the share
    of it that is done.

    The columns of a frame are read as text, and items are released as text, because pandas and others infer types
    from values: a single row can turn all whole numbers into floats. `types="fixed"` keeps the frame's types; use
    it if they were declared before the data was seen, by a database, a Parquet file or `dtype=`, for example.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> found = dphist.release(log, user="user", item="query", epsilon=1, delta=1e-6, max_items_per_user=1, seed=7)
    >>> found.to_pandas()["query"].tolist()
    ['tea', 'milk']
    """
    if is_frame(input) and not origins(input) & _FRAMES:
        raise InvalidParameter(f"input must be a path, an address or a frame, not {type(input).__name__}")
    return run(request_from({"input": input, **options}), progress)


def run(request: Request, progress: Watcher | None = None, placed: Callable[[Any], None] | None = None) -> Release:
    """Carry out a request: plan, check, count, add noise, write. `placed` is told once the files are there."""
    from dphist.outputs.write import check_formulas, check_target, target_of, write_release

    target = None
    if request.types == ("none" if is_frame(request.input) else "text"):
        raise InvalidParameter("types='text' and types='fixed' are for frames: files have the types they declare")
    if request.output is not None:
        target = target_of(request.output, request.output_table, request.output_format)
        target = replace(target, sign=signer_of(request.sign))
        check_target(target, force=request.force, columns=request.output_columns())
        check_formulas(target, request.escape_formulas)
    _check_folder(request, target)
    refuse_own_input(request, target)
    engine = engine_for(request)
    planned = planned_for(request, engine)
    for plan in planned.plans if isinstance(planned, ChoicePlan) else (planned,):
        _rehearse(plan)
        _check_certificate(plan, request)
    if request.ledger is not None:
        check_place(request.ledger, target)
    if request.ledger is not None or isinstance(planned, ChoicePlan):
        _check_input(request, planned, engine)
    with booked_attempt(request) as attempt:

        def noted(written: Any) -> None:
            attempt.placed(written)
            if placed is not None:
                placed(written)

        attempt.booked = booked = _booked(request, planned)
        result = _counted_and_noised(request, planned, engine, target, progress, noted, booked)
        attempt.release = result
        if target is not None and target.kind != "folder":
            _step(progress, "writing", 0.0)
            written = write_release(
                result.to_arrow(), result.document(), target, force=request.force,
                escape_formulas=request.escape_formulas, placed=noted,
            )  # fmt: skip
            result = result.with_written(written)
            _step(progress, "writing", 1.0)
        if booked is not None:
            booked.settle(result.written)
    return result


def _booked(request: Request, planned: Plan | ChoicePlan) -> Booked | None:
    if request.ledger is None:
        return None
    assert request.dataset is not None
    return book(request.ledger, request.dataset, planned, request.to_dict())


def _check_input(request: Request, planned: Plan | ChoicePlan, engine: Engine) -> None:
    """What cannot be read, or not twice where it must be, is refused before anything is booked or noised."""
    plan = planned.plans[0] if isinstance(planned, ChoicePlan) else planned
    task = Task(
        request.events(), Choice(bytes(32)), public_items=request.public_items(), values=_summed(request, plan)
    )
    if isinstance(planned, ChoicePlan):
        checked_sizes(task, planned.choice.caps)
    engine.check(task)


def _check_folder(request: Request, target: Any) -> None:
    if target is not None and target.kind == "folder" and request.engine_name() != "spark":
        raise InvalidParameter(
            f"a folder such as {target.address!r} is written by Spark alone: give the name of a file, such as "
            "counts.parquet, or --engine spark"
        )


def engine_for(request: Request) -> Engine:
    """The engine that was asked for."""
    folder = None if request.temp_folder is None else Path(request.temp_folder)
    resources = Resources(request.memory, request.threads, folder)
    if request.engine_name() == "spark":
        from dphist.counting.spark import SparkEngine
        from dphist.counting.spark_session import Cluster

        return SparkEngine(resources, Cluster(request.master, request.spark_settings()))
    from dphist.counting.duckdb import DuckDBEngine

    return DuckDBEngine(resources)


def planned_for(request: Request, engine: Engine) -> Plan | ChoicePlan:
    """The plan of a request, certified; or the plans of all caps on offer."""
    if request.max_items_per_user != AUTO:
        return certified(plan_for(request, engine))
    public = request.public_items()
    return choice_for(
        Budget(request.epsilon, request.delta),
        share=request.cap_share,
        mechanism=request.mechanism,
        minimize=request.minimize,
        sums=[(low, high) for _, low, high in request.sums()],
        weights=request.weight or None,
        public_items=None if public is None else max(1, engine.size(public)),
    )


def plan_for(request: Request, engine: Engine) -> Plan:
    """The plan of a request with a cap by number, or none. Only the length of a public list is looked at."""
    planned = partial(
        make_plan, epsilon=request.epsilon, delta=request.delta, minimize=request.minimize,
        sums=[(low, high) for _, low, high in request.sums()], weights=request.weight or None,
    )  # fmt: skip
    items, public = request.cap(), request.public_items()
    if public is not None:
        size = max(1, engine.size(public))
        return planned(
            public_items=size,
            max_items_per_user=None if items is None else min(items, size),
            mechanism=request.mechanism,
        )
    if request.top is not None:
        return planned(
            top=request.top, offset=request.offset, max_items_per_user=items, mechanism=request.mechanism
        )
    if request.max_nonzero is not None and items is not None:
        items = min(items, request.max_nonzero)
    return planned(
        max_nonzero=request.max_nonzero, max_items_per_user=items, mechanism=request.mechanism, gamma=request.gamma
    )


def _rehearse(plan: Plan) -> None:
    """Draw noise for a made-up count: what cannot be drawn is refused before any event is read."""
    one = np.ones(1, dtype=np.int64)
    begun = Begun.with_tap(plan, SeededTap(0), Cut())
    begun.release(one, [one] * len(plan.sums))
    noisy_sums(plan.sums, one, [one] * len(plan.sums), one - 1, [Fresh(begun.session.tap)] * len(plan.sums))


def _check_certificate(plan: Plan, request: Request) -> None:
    """Bounds of sums with numbers that a certificate cannot say, or that `verify` would not read again."""
    if plan.sums:
        try:
            plan_from(plan.to_dict())
            sums_facts(plan, request.aggregates())
        except (InvalidParameter, ArithmeticError):
            raise InvalidParameter("the bounds of a sum are too large, or have too many digits") from None


def _task(request: Request, plan: Plan, rule: Nonzero, tap: Tap, cap: int | None) -> Task:
    key = tap.words(4).tobytes()
    rank, items = None, cap
    if rule is Nonzero.TOP_K:
        # --top has no use for a bound on users, which would only lose events.
        rank, items = int(plan.contract.nonzero) + 1, cap if request.top is None else None
    return Task(
        request.events(), Choice(key, portable=not tap.private), items, request.lower_threshold,
        request.public_items(), rank, ordered=not tap.private,
        values=_summed(request, plan),
    )  # fmt: skip


def _summed(request: Request, plan: Plan) -> tuple[Value, ...]:
    """What an engine sums, in the steps of the plan."""
    pairs = zip(request.sums(), plan.sums, strict=True)
    return tuple(Value(column, low, high, noise.reach) for (column, low, high), noise in pairs)


def _counted_and_noised(
    request: Request,
    planned: Plan | ChoicePlan,
    engine: Engine,
    target: Any,
    progress: Watcher | None,
    placed: Callable[[Any], None] | None,
    booked: Booked | None,
) -> Release:
    """The engine counts; then counts meet noise, block by block or on the executors."""
    tap: Tap = SecureTap() if request.seed is None else SeededTap(request.seed)
    chosen = _chosen(request, planned, engine, tap, progress)
    plan, cap = _chosen_plan(request, planned, chosen)
    # A top-k step subtracts the count after the largest. A bound that it cannot keep is a promise of the caller's.
    rule = nonzero_rule(plan, promised=request.max_nonzero is not None and not top_k_keeps(plan))
    task = _task(request, plan, rule, tap, cap)
    facts = Facts(request.to_dict(), chosen, None if booked is None else booked.receipt())
    counting = None if progress is None else lambda share: progress("counting", share)
    if engine.name == "spark":
        from dphist.counting.spark import SparkEngine
        from dphist.releasing.on_spark import released_by_spark

        assert isinstance(engine, SparkEngine)
        return released_by_spark(request, plan, rule, task, tap, engine, target, counting, placed, facts)
    names = Names(tuple(column.name for column in request.columns()), request.count_name)
    with engine.count(task, counting) as counted:
        difference = rule is Nonzero.TOP_K and request.offset == "none"
        cut = Cut(counted.at_rank, request.lower_threshold, difference)
        stage = NoiseStage(plan, rule, names, tap, cut, distinct=True)
        _step(progress, "counting", 1.0)
        _step(progress, "adding noise", 0.0)
        for block in blocks(_pieces(counted, plan), _BLOCK, _BLOCK_BYTES):
            stage.add(block)
        _step(progress, "adding noise", 1.0)
    # Where a bound on users served in place of a top-k step, the largest ones are those with the most noisy users.
    return _published(stage.release(request.top), request, facts)


def _chosen(
    request: Request, planned: Plan | ChoicePlan, engine: Engine, tap: Tap, progress: Watcher | None
) -> Chosen | None:
    """The cap, if it is to be chosen."""
    if not isinstance(planned, ChoicePlan):
        return None
    task = Task(request.events(), Choice(bytes(32)), public_items=request.public_items())
    return choose(
        planned, engine, task, tap, None if progress is None else lambda share: progress("choosing", share)
    )


def _chosen_plan(request: Request, planned: Plan | ChoicePlan, chosen: Chosen | None) -> tuple[Plan, int | None]:
    """The plan of the release, and the bound on the items of a user."""
    if not isinstance(planned, ChoicePlan):
        return planned, request.cap()
    assert chosen is not None
    return certified(planned.plan(chosen.cap)), chosen.cap


def _pieces(counted: Counted, plan: Plan) -> Iterator[Piece]:
    """The engine's batches; an empty one first, which knows the types."""
    from dphist.releasing.pyarrow_kind import KIND, empty_batch

    form = Form(KIND, "frame", "pyarrow")
    assert not isinstance(plan.noise, Noise)
    first = empty_batch(counted.schema)
    place = len(counted.schema) - len(plan.sums) - 1
    for batch in (batch for part in ([first], counted.batches()) for batch in part):
        columns = list(batch.columns)
        numbers = check_counts(KIND.numbers(columns[place]), lattice=plan.noise.lattice)
        sums = tuple(KIND.numbers(column) for column in columns[place + 1 :])
        yield Piece(form, tuple(columns[:place]), numbers, sums, batch.nbytes)


def _published(raw: Release, request: Request, facts: Facts) -> Release:
    """With the columns that were asked for, in the kind the events came in."""
    added = Columns.of(request).numbers(raw.counts, raw.sums, raw.plan)
    counts = added.pop(request.count_name)
    return replace(facts.told(raw), counts=counts, added=added, came=frame_form(request.input))


def _step(progress: Watcher | None, name: str, share: float) -> None:
    if progress is not None:
        progress(name, share)
