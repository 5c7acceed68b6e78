"""Planted faults in counting with spread: the exact audit names them, and an attack on the noise detects them.

Each fault counts real files with a real engine, with one user and without. Correct counting passes both audits,
with false alarms of at most 1e-9 each. The attack misses a fault with a probability of at most 1e-9
(`test_an_attack_misses_no_fault`). Both are repeatable by seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import special, stats

import dphist
from dphist import Contract, Plan
from dphist.audit import (
    AuditResult,
    Contribution,
    PlannedMechanism,
    audit,
    contribution_of_user,
    delta_lower_bound,
)
from dphist.counting import sql
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Resources, Task
from dphist.privacy.certificate import certify_noise
from dphist.privacy.types import LatticeNoise
from dphist.sampling.tap import SeededTap
from engine_cases import QUICK_ON_DUCKDB, Factory, events, is_spark

EPSILON, DELTA, M, N = 1.0, 0.05, 2, 32
UNIT = 2048
"""Steps of a count in the plan."""
USER, BASE = 10**6, 80
"""The user who is added or removed; how many other users have an item that is not new."""


@cache
def planned() -> Plan:
    plan = dphist.plan(epsilon=EPSILON, delta=DELTA, max_items_per_user=M, excess="spread")
    assert plan.contract.spread == N
    assert plan.levels[0].weight == UNIT
    return plan


@cache
def coarse() -> Plan:
    """Eight steps per count, so that two steps are a lot: one item of weight 1, or four of weight 1/2."""
    noise, contract = LatticeNoise(8, Fraction(120), Fraction(0), 40), Contract(None, 1, spread=4)
    assert [(level.items, level.weight) for level in contract.levels(8)] == [(1, 8), (4, 4)]
    return replace(
        planned(), noise=noise, contract=contract, certificate=certify_noise(noise, contract, epsilon=EPSILON)
    )


class ByNoiseSession(PlannedMechanism):
    """Uses the noise session of releases: for a subclass the audit does not take its fast path."""


# --- faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """The result of a faulty engine."""

    schema: Any
    made: list[Any]
    at_rank: int = 0

    def batches(self) -> Iterator[Any]:
        return iter(self.made)


@dataclass(eq=False)
class FileByFile(DuckDBEngine):
    """Counts each file separately and adds up: the weight of a user depends on the items in one file."""

    @contextmanager
    def count(self, task: Task, progress: Any = None) -> Iterator[Any]:
        total: Counter[Any] = Counter()
        for path in sorted(Path(task.events.source).iterdir()):
            with super().count(replace(task, events=replace(task.events, source=path)), progress) as counted:
                for batch in counted.batches():
                    total.update(dict(zip(*(column.to_pylist() for column in batch.columns), strict=True)))
        batch = pa.record_batch({"item": list(total), "count": list(total.values())})
        yield Counted(batch.schema, [batch])


@dataclass(eq=False)
class OtherWeights(DuckDBEngine):
    """Counts with other weights than those of the plan."""

    change: Callable[[Any], Any] = field(default=lambda weights: weights)

    @contextmanager
    def count(self, task: Task, progress: Any = None) -> Iterator[Any]:
        weights = tuple(self.change(task.weights))
        with super().count(replace(task, weights=weights, max_items_per_user=weights[-1][0]), progress) as counted:
            yield counted


def level_before(weights: Any) -> Any:
    """A user gets the weight of the previous level: three items count as two do."""
    return [(items, before[1]) for before, (items, _) in pairwise(weights)]


def two_steps(weights: Any) -> Any:
    return [weights[0], *((items, steps + 2) for items, steps in weights[1:])]


def up_to_four_times_n(weights: Any) -> Any:
    return [*weights[:-1], (4 * weights[-1][0], weights[-1][1])]


@dataclass(eq=False)
class EventsAsUsers(DuckDBEngine):
    """Counts events instead of users."""

    @contextmanager
    def count(self, task: Task, progress: Any = None) -> Iterator[Any]:
        right = sql.weighted_pairs

        def wrong(pairs: sql.Pairs, order: str, weights: sql.Weights) -> str:
            query, once = right(pairs, order, weights), f"({pairs.once()})"
            assert once in query
            return query.replace(once, f"({pairs.with_repeats()})")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sql, "weighted_pairs", wrong)
            with super().count(task, progress) as counted:
                yield counted


@dataclass(frozen=True)
class Fault:
    """A faulty engine and the user that reveals it: number of items, whether they are new, events per item."""

    engine: Any
    items: int
    new: bool
    runs: int
    repeats: int = 1
    plan: Callable[[], Plan] = planned
    items_kept: int = 0
    steps: int = 0
    """What the engine counts for the user: items, and steps of each. They determine the power of the attack."""
    problem: str = ""


FAULTS = {
    "weighed by the items of one file, all of them new": Fault(
        FileByFile(), N, True, runs=12_000, items_kept=N, steps=UNIT,
        problem="32 counts change by 2048 of 2048, and the plan allows 2",
    ),
    "weighed by the items of one file, none of them new": Fault(
        FileByFile(), N, False, runs=4_000, items_kept=N, steps=UNIT,
        problem="32 counts change by 2048 of 2048, and the plan allows 2",
    ),
    "the weight of the level before": Fault(
        OtherWeights(change=level_before), 3, False, runs=700_000, items_kept=3, steps=UNIT,
        problem="3 counts change by 2048 of 2048, and the plan allows 2",
    ),
    "two steps more": Fault(
        OtherWeights(change=two_steps), 4, False, runs=100_000, plan=coarse, items_kept=4, steps=6,
        problem="counts change by 6 of 8, which is not one of the plan's weights",
    ),
    "N is ignored, all items new": Fault(
        OtherWeights(change=up_to_four_times_n), 4 * N, True, runs=8_000, items_kept=4 * N, steps=UNIT // 4,
        problem="128 counts change by 512 of 2048, and the plan allows 32",
    ),
    "N is ignored, no item new": Fault(
        OtherWeights(change=up_to_four_times_n), 4 * N, False, runs=16_000, items_kept=4 * N, steps=UNIT // 4,
        problem="128 counts change by 512 of 2048, and the plan allows 32",
    ),
    "events count as users": Fault(
        EventsAsUsers(), 1, True, runs=4_000, repeats=N, items_kept=1, steps=N * UNIT // 4,
        problem="counts change by 16384 of 2048, which is not one of the plan's weights",
    ),
}  # fmt: skip


def write_neighbours(folder: Path, fault: Fault) -> tuple[Path, Path]:
    """Two folders, the first one with the user, who has two items or events in each file."""
    own = [(USER, item) for item in range(fault.items) for _ in range(fault.repeats)]
    others = [(item * BASE + user, item) for item in range(fault.items) for user in range(BASE) if not fault.new]
    others += [(-1 - user, -1) for user in range(BASE)]
    folders = folder / "with", folder / "without"
    for one, rows in zip(folders, (own, []), strict=True):
        one.mkdir()
        for start in range(0, len(own), M):
            part = rows[start : start + M] + (others if start == 0 else [])
            users, items = zip(*part, strict=True) if part else ((), ())
            table = pa.table({"user": pa.array(users, pa.int64()), "item": pa.array(items, pa.int64())})
            pq.write_table(table, one / f"{start:04}.parquet")
    return folders


def count_neighbours(engine: Any, folder: Path, fault: Fault) -> Contribution:
    user, nobody = write_neighbours(folder, fault)
    return contribution_of_user(engine, fault.plan(), events(user), events(nobody))


# The attack is quick for half of the faults.
SOME = [pytest.param(name, marks=pytest.mark.slow if place % 2 else ()) for place, name in enumerate(FAULTS)]
FEW = [pytest.param(name, marks=() if place in (2, 6) else pytest.mark.slow) for place, name in enumerate(FAULTS)]


def attack(fault: Fault, counted: Contribution) -> AuditResult:
    mechanism = (ByNoiseSession if fault.runs <= 24_000 else PlannedMechanism)(fault.plan())
    return audit(mechanism, tap=SeededTap(fault.items), runs=fault.runs, more_cases=[counted.case("counted")])


@pytest.mark.parametrize("name", SOME)
def test_a_counting_fault_contradicts_the_certificate(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    counted = count_neighbours(fault.engine, tmp_path, fault)
    assert counted.problem == fault.problem
    moved = (counted.counts - counted.neighbour)[:, 0]
    assert sorted(moved[moved != 0].tolist()) == [fault.steps] * fault.items_kept
    result = attack(fault, counted)
    assert result.contradicts
    assert result.case == "counted"
    assert result.confidence == 1.0 - 1e-9


@pytest.mark.parametrize("name", FEW)
def test_the_same_events_counted_correctly_do_not(name: str, tmp_path: Path) -> None:
    """The certificate holds for these neighbours: false alarms have a probability of at most 1e-9."""
    fault = FAULTS[name]
    counted = count_neighbours(DuckDBEngine(), tmp_path, fault)
    assert counted.problem is None
    moved = (counted.counts - counted.neighbour)[:, 0]
    levels = fault.plan().levels
    kept = min(fault.items, levels[-1].items)
    weight = next(level.weight for level in levels if level.items >= kept)
    assert sorted(moved[moved != 0].tolist()) == [weight] * kept
    assert not attack(fault, counted).contradicts


@pytest.mark.parametrize("name", FAULTS)
def test_an_attack_misses_no_fault(name: str) -> None:
    """Hits as unlucky as 1 in 2e9 on either side still contradict the certificate.

    The events are those of normal noise: some new count passes, or the sum of the changed counts is high.
    """
    fault = FAULTS[name]
    plan, each = fault.plan(), fault.runs // 4
    noise = plan.noise
    assert isinstance(noise, LatticeNoise)
    deviation = math.sqrt(noise.variance)
    if fault.new:
        passes = special.ndtr((fault.steps - noise.limit - noise.lattice - 0.5) / deviation)
        p, q = 1 - (1 - passes) ** fault.items_kept, 0.0
    else:
        mu = math.sqrt(fault.items_kept) * fault.steps / deviation
        p, q = special.ndtr(mu / 2 - EPSILON / mu), special.ndtr(-mu / 2 - EPSILON / mu)
    hits, others = int(stats.binom.ppf(0.5e-9, each, p)), int(stats.binom.isf(0.5e-9, each, q))
    lower = delta_lower_bound(hits, others, each, epsilon=EPSILON, risk=0.5e-9)
    assert lower > 1.2 * plan.certificate.delta


def test_the_exact_audit_detects_two_steps_of_2048(tmp_path: Path) -> None:
    """They are too few for an attack."""
    fault = replace(FAULTS["N is ignored, all items new"], items=N, engine=OtherWeights(change=two_steps))
    counted = count_neighbours(fault.engine, tmp_path, fault)
    assert counted.problem == "counts change by 514 of 2048, which is not one of the plan's weights"
    moved = (counted.counts - counted.neighbour)[:, 0]
    assert int((moved**2).sum()) > M * UNIT**2
    levels = planned().levels
    assert all(level.items * level.weight**2 <= M * UNIT**2 for level in levels)


# --- the exact audit ----------------------------------------------------------------------------------


def table(rows: list[tuple[int, int, float]]) -> Any:
    users, items, amounts = zip(*rows, strict=True)
    return pa.table({"user": users, "item": items, "amount": pa.array(amounts, pa.float64())})


OTHERS = [(user, item, float(item)) for user in range(40) for item in range(user % 7)]


@QUICK_ON_DUCKDB
def test_users_of_every_size_are_covered_with_sums(engine: Factory) -> None:
    plan = dphist.plan(
        epsilon=1, delta=1e-3, max_items_per_user=M, excess="spread", sums=[(0, 10), (-3, 8)], weights=[0.1, 0.1]
    )
    for items in (1, 3, 33) if is_spark(engine) else (1, 2, 3, 32, 33, 100):
        for amount in (-1e9, 1e9):
            own = [(USER, item, amount) for item in range(items) for _ in range(2)]
            found = contribution_of_user(
                engine(Resources(threads=2)), plan, events(table(OTHERS + own)), events(table(OTHERS)),
                summed=["amount", "amount"],
            )  # fmt: skip
            assert found.problem is None
            moved = (found.counts - found.neighbour)[found.counts[:, 0] != found.neighbour[:, 0]]
            level = next(level for level in plan.levels if level.items >= min(items, N))
            assert len(moved) == min(items, N)
            assert set(moved[:, 0].tolist()) == {level.weight}
            # At the ends of both ranges the sums change as much as they may.
            sign, unit = (1 if amount > 0 else -1), plan.levels[0].weight
            for place, one in enumerate(plan.sums, start=1):
                assert set(moved[:, place].tolist()) == {sign * one.reach * level.weight // unit}


@pytest.mark.parametrize("excess", ["drop", "spread"])
def test_a_release_counts_the_task_that_is_audited(excess: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same weights, limit and steps of sums; only the source and the secret of the choice differ."""
    tasks: list[Task] = []
    right = DuckDBEngine.count

    def seen(engine: DuckDBEngine, task: Task, progress: Any = None) -> Any:
        tasks.append(task)
        return right(engine, task, progress)

    monkeypatch.setattr(DuckDBEngine, "count", seen)
    data = table(OTHERS)
    released = dphist.release(
        data, user="user", item="item", epsilon=1.0, delta=1e-3, max_items_per_user=5, excess=excess,
        sum=["amount:0:10", "b=amount:-3:8"], mechanism="gaussian",
    )  # fmt: skip
    audited = events(data)
    contribution_of_user(DuckDBEngine(), released.plan, audited, audited, summed=["amount", "amount"])
    assert len(tasks) == 3
    one, other, again = (replace(task, events=audited, choice=tasks[0].choice) for task in tasks)
    assert one == other == again
    assert one.max_items_per_user == (80 if excess == "spread" else 5)
    assert tasks[1].choice == tasks[2].choice != tasks[0].choice


def test_a_limit_without_spread_is_audited_too() -> None:
    plan = dphist.plan(epsilon=1, delta=1e-3, max_items_per_user=5, sums=[(0, 10)], weights=[0.1])
    own = [(USER, item, 99.0) for item in range(9)]
    with_user, without = events(table(OTHERS + own)), events(table(OTHERS))
    assert contribution_of_user(DuckDBEngine(), plan, with_user, without, summed=["amount"]).problem is None
    fewer = replace(plan, contract=Contract(None, 3))

    @dataclass(eq=False)
    class FiveItems(DuckDBEngine):
        @contextmanager
        def count(self, task: Task, progress: Any = None) -> Iterator[Any]:
            with super().count(replace(task, max_items_per_user=5), progress) as counted:
                yield counted

    found = contribution_of_user(FiveItems(), fewer, with_user, without, summed=["amount"])
    assert found.problem == "5 counts change by 1 of 1, and the plan allows 3"


@dataclass(eq=False)
class GivenCounts(DuckDBEngine):
    """Histograms as given: the first one is with the user."""

    given: list[Any] = field(default_factory=list)

    @contextmanager
    def count(self, task: Task, progress: Any = None) -> Iterator[Any]:  # noqa: ARG002
        batch = pa.record_batch(self.given[0 if task.events.table == "with" else 1])
        yield Counted(batch.schema, [batch])


@pytest.mark.parametrize(
    ("counts", "sums", "problem"),
    [
        ((512, 512, 0), (9, -9, 0), None),
        ((0, 0, 0), (0, 0, 0), None),
        ((-512, 0, 0), (0, 0, 0), "counts change by -512 of 512, which is not one of the plan's weights"),
        ((512, 418, 0), (0, 0, 0), "the counts change by different amounts, from 418 to 512 of 512"),
        ((418, 418, 418), (0, 0, 0), None),
        ((512, 512, 512), (0, 0, 0), "3 counts change by 512 of 512, and the plan allows 2"),
        ((512, 0, 0), (0, 1, 0), "a sum changes where the count does not"),
        ((418, 0, 0), ("reach", 0, 0), "sum 1 changes by more than 418 of 512 of half its range"),
    ],
)
def test_what_the_exact_audit_calls_a_problem(counts: Any, sums: Any, problem: str | None) -> None:
    plan = dphist.plan(epsilon=1, delta=1e-3, max_items_per_user=M, excess="spread", sums=[(0, 10)], weights=[0.1])
    assert [(level.items, level.weight) for level in plan.levels[:2]] == [(2, 512), (3, 418)]
    base, (one,) = np.array([10_000, 20_000, 30_000]), plan.sums
    far = one.reach * 418 // 512 + 1
    moved = [far if change == "reach" else change for change in sums]
    given = [
        {"item": [1, 2, 3], "count": base + counts, "sum": moved},
        {"item": [1, 2, 3], "count": base, "sum": [0, 0, 0]},
    ]
    neighbours = [events("none", table=name) for name in ("with", "without")]
    found = contribution_of_user(GivenCounts(given=given), plan, *neighbours, summed=["amount"])
    assert found.problem == problem
    assert "counts" not in repr(found).split("problem")[0], "true counts are not shown"
