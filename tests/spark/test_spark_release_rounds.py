"""Releases in rounds by Spark: those of DuckDB for a seed, what comes to the driver, and tasks that run twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import dphist
import oracles_keyed as oracle
from dphist.certificate.request import Column
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Events, RoundsCount
from dphist.errors import InputError
from dphist.model import Plan, RoundsNoise
from dphist.releasing import rounds
from dphist.releasing.noise import noise_of_group
from dphist.releasing.rounds import ALONE, HIDDEN, KNOWN, Found, Measurement
from dphist.sampling.rng import Rng
from dphist.sampling.sampler import DiscreteGaussian, Draws, ExactSampler, Repeatable
from dphist.spark import dataframes
from dphist.spark import rounds as rounds_on_spark
from dphist.spark.dataframes import OnBatches
from dphist.spark.lists import SparkRounds
from dphist.spark.noise import SparkRelease, mix_numbers, new_key
from spark_cluster import ON_SPARK
from spark_shared import shared_session

pytestmark = ON_SPARK

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 2.0, "delta": 1e-5}
SEED = 11
IntArray = NDArray[np.int64]


@cache
def log() -> pa.Table:
    """Users with one to 30 of 60 items, so that items are found everywhere and nowhere; some rows have no item."""
    rng = np.random.default_rng(2)
    has = rng.random((1200, 60)) < rng.random((1200, 1)) * 0.5 * np.arange(1, 61) ** -0.7
    user, item = np.nonzero(has)
    rows: list[tuple[int, str | None]] = [(int(u), f"item {k}") for u, k in zip(user, item, strict=True)]
    rows += [(2000 + u, f"item {(u % 7) ** 2}") for u in range(400)]
    rows += [(u, None) for u in range(0, 1200, 3)] + rows[:100]
    users, items = zip(*rows, strict=True)
    return pa.table({
        "user": pa.array(users), "item": pa.array(items), "kind": pa.array([u % 3 for u in users]),
        "spent": pa.array([float(u % 9) - 2 for u in users]), "more": pa.array([float(u % 5) for u in users]),
    })  # fmt: skip


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session("local")


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(log())


# --- the release of DuckDB ------------------------------------------------------------------------------------


class Executors:
    """The noise that executors make for items that DuckDB has counted, by the oracle of keyed noise."""

    def __init__(self, counted: RoundsCount, entries: dict[tuple[str | None, ...], int] | None) -> None:
        columns = [column.to_pylist() for column in counted.rows(np.arange(counted.items))]
        rows: list[tuple[str | None, ...]] = list(zip(*columns, strict=True))
        self.texts = [[*map(oracle.written, row)] for row in rows]
        if entries is not None:
            for row, text in zip(rows, self.texts, strict=True):
                text.append(str(entries[row]))

    def drawn(self, key: bytes, law: ExactSampler, numbers: Iterable[int], true: IntArray) -> IntArray:
        """Draws for these items, which have these true numbers."""
        digests = [sha256(oracle.joined(self.texts[number]).encode()).digest() for number in numbers]
        whole = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        mixed = [row.tobytes() for row in mix_numbers(whole, np.asarray(true, np.int64))]
        return oracle.draws(key, mixed, law)


class Given:
    """A source of noise that was drawn before."""

    def __init__(self, steps: IntArray) -> None:
        self.steps = steps

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        del sampler, compiled
        return self.steps[rows]


@contextmanager
def as_on_executors(entries: dict[tuple[str | None, ...], int] | None) -> Iterator[None]:
    """DuckDB counts; keys are drawn in the order of the driver, and noise is that of the executors."""
    seen: list[Executors] = []

    def find(noise: RoundsNoise, counted: RoundsCount, rng: Rng) -> Found:
        made = Executors(counted, entries)
        seen[:] = [made]
        found_in = np.full(counted.items, HIDDEN, np.int8)
        found_in[counted.known] = KNOWN
        key, users = new_key(rng), None
        if noise.alone is not None:
            true = counted.alone()
            law = noise_of_group(noise.alone)
            steps = true * noise.alone.lattice + made.drawn(key, law, range(counted.items), true)
            users = steps / noise.alone.lattice
            passes = rounds.passes_alone(noise.alone, true, steps)
            found_in[passes & (found_in == HIDDEN)] = ALONE
        counted.leave(np.flatnonzero(found_in != HIDDEN))
        alive, pooled = found_in == HIDDEN, np.zeros(counted.items, np.int64)
        for number, part in enumerate(noise.parts):
            weights, key = counted.round(), new_key(rng)
            on_list = np.flatnonzero(alive & (weights > 0))
            drawn = made.drawn(key, DiscreteGaussian(noise.variance / part), on_list, weights[on_list])
            pooled[on_list], found, stays = rounds.pool(
                noise, number, weights[on_list], pooled[on_list], Given(drawn)
            )
            found_in[on_list[found]] = number + 1
            alive[:] = False
            alive[on_list[stays]] = True
            counted.leave(np.flatnonzero(~alive))
        numbers = np.flatnonzero(found_in != HIDDEN)
        score = rounds.scores(noise, found_in[numbers], pooled[numbers])
        return Found(numbers, found_in[numbers], score, None if users is None else users[numbers])

    def measure(plan: Plan, counted: RoundsCount, found: Found, rng: Rng) -> Measurement:
        noise, made = rounds.rounds_noise(plan), seen[0]
        users = counted.sizes(found.numbers, rounds.bounds_of(plan))
        sizes, limit = rounds.noisy_sizes(plan, users, rounds.by_round(plan, found), rng)
        assert limit > 0
        columns = counted.measure(found.numbers, limit)
        keys = [new_key(rng) for _ in columns]
        shared = rounds.shared_draw(plan, limit, rng)
        variances = [noise.measure_noise(limit)[0], *(limit * part.variance for part in plan.summed)]
        draws: list[Draws] = [
            Given(made.drawn(key, DiscreteGaussian(variance), found.numbers, true))
            for key, variance, true in zip(keys, variances, columns, strict=True)
        ]
        numbers = rounds.noisy_weights(plan, limit, shared, columns[0], columns[1:], draws)
        return Measurement(sizes, limit, *numbers)

    with mock.patch.object(rounds, "find_items", find), mock.patch.object(rounds, "measure_items", measure):
        yield


LISTED = pa.table({"item": [f"item {k}" for k in range(0, 120, 2)] + ["nobody's", "item 7"]})
KNOWN_ITEMS = pa.table({"item": ["item 0", "item 3", "item 59", "nobody's"]})
WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "known": {"known": KNOWN_ITEMS, "mechanism": "gaussian", "null_items": True, "goal": "keys"},
    "sums": {"sum": "spent:0:5", "mean": "spent:0:5", "vector": "move=spent,more:4", "standard_error": True},
    "listed": {"items": LISTED, "interval": 0.9},
    "two columns": {"item": ("kind", "item"), "round": True},
    "totals": {"item": ("kind", "item"), "total": ["item", "kind"]},
}
QUICK = {"known", "sums", "listed", "totals"}


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in QUICK else pytest.mark.slow) for way in WAYS]
)
def test_a_seed_gives_the_release_of_duckdb_with_the_noise_of_executors(frame: DataFrame, way: str) -> None:
    """Every released number is the same double: rows, counts, margins, sums, and what was found where."""
    asked = {**ASKED, **WAYS[way]}
    ours = dphist.release(frame, **asked, seed=SEED)
    assert isinstance(ours, SparkRelease)
    entries: dict[tuple[str | None, ...], int] | None = None
    if "items" in asked:
        table = DuckDBEngine().public_table(
            Events(asked["items"], "item", (Column("item", "item"),)), ["string"], False
        )
        entries = {(name,): place for place, name in enumerate(table["p0"].to_pylist())}
    with as_on_executors(entries):
        theirs = dphist.release(log(), **asked, seed=SEED)
    assert ours.findings is not None
    assert ours.findings == theirs.findings
    assert ours.plan == theirs.plan
    assert sum(found > 0 for found in ours.findings.found) >= (1 if entries else 4)
    assert ours.to_arrow().equals(theirs.to_arrow())
    assert ours.to_spark().toArrow().to_pydict() == theirs.to_arrow().to_pydict()


# --- what comes to the driver ---------------------------------------------------------------------------------

ACTIONS = ("toArrow", "collect", "count", "toPandas", "toLocalIterator")


@contextmanager
def overheard(frame: DataFrame) -> Iterator[tuple[list[Any], list[str]]]:
    """All rows that come to this process, and the plans of all frames that are computed."""
    rows: list[Any] = []
    plans: list[str] = []
    kind = type(frame)

    def listening(name: str) -> Callable[..., object]:
        act = getattr(kind, name)

        def action(self: DataFrame, *given: object) -> object:
            plans.append(plan_of(self))
            rows.append(act(self, *given))
            return rows[-1]

        return action

    def looking(frame: DataFrame) -> DataFrame:
        plans.append(plan_of(frame))
        return dataframes.detached(frame)

    with mock.patch.object(rounds_on_spark, "detached", looking):
        patches = [mock.patch.object(kind, name, listening(name)) for name in ACTIONS]
        for patch in patches:
            patch.start()
        try:
            yield rows, plans
        finally:
            for patch in patches:
                patch.stop()


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def numbers_in(rows: Sequence[Any]) -> set[float]:
    """All numbers in tables and rows."""
    found: set[float] = set()
    for one in rows:
        values = one.to_pydict().values() if isinstance(one, pa.Table) else [one] if isinstance(one, int) else one
        for column in values:
            numbers = column if isinstance(column, (list, tuple)) else [column]
            found |= {float(value) for value in numbers if isinstance(value, (int, float))}
    return found


def true_weights() -> set[float]:
    """The sums of weights in the first round, in steps; with sums all users are one group."""
    noise = dphist.plan(epsilon=2.0, delta=1e-5).noise
    assert isinstance(noise, RoundsNoise)
    pairs = {pair for pair in zip(*(log()[name].to_pylist() for name in ("user", "item")), strict=True) if pair[1]}
    items: dict[int, list[str]] = {}
    for user, item in pairs:
        items.setdefault(user, []).append(item)
    steps: dict[str, int] = {}
    for own in items.values():
        for item in own:
            steps[item] = steps.get(item, 0) + noise.first_weight(len(own))
    return {float(step) for step in steps.values()}


def test_found_items_with_noise_and_sizes_come_to_the_driver_and_nothing_else(frame: DataFrame) -> None:
    with overheard(frame) as (rows, plans):
        release = dphist.release(frame, **ASKED, seed=SEED, sum="spent:0:5")
    released = set(release.to_arrow()["item"].to_pylist())
    hidden = {item for item in log()["item"].to_pylist() if item} - released
    assert len(released) > 20
    assert len(hidden) > 5
    tables = [one for one in rows if isinstance(one, pa.Table)]
    assert [table.column_names for table in tables] == [
        ["i0", "found_in", "pooled", "item"],  # with sums no group of users with one item
        ["item", "noisy", "v0"],
    ]
    assert set(tables[0]["i0"].to_pylist()) == released
    assert all(table.num_rows == len(released) for table in tables)
    # The rest: users by their number of found items, the version of the executors in a new session, and numbers
    # by their partitions, which are not data.
    others = [tuple(row.asDict()) for one in rows if not isinstance(one, pa.Table) for row in one]
    assert set(others) <= {("items", "bucket", "count(1)"), ("version",), ("number", "place")}
    text = " ".join(map(str, rows))
    assert not [item for item in hidden if f"{item}'" in text or f'"{item}"' in text]
    assert not numbers_in(tables) & true_weights()
    # A broadcast join sends a frame through the driver: only released items are.
    broadcasts = [line for plan in plans for line in plan.splitlines() if "BroadcastHashJoin" in line]
    assert broadcasts
    assert all("LeftSemi, BuildRight" in line for line in broadcasts), broadcasts
    assert not [line for plan in plans for line in plan.splitlines() if "BroadcastNestedLoop" in line]


@pytest.mark.slow
def test_what_a_round_counts_would_be_noticed_on_the_driver(frame: DataFrame) -> None:
    """Power: a sum of weights that is collected has names that are not released, and true weights."""
    counted_round = SparkRounds.round

    def collected(self: SparkRounds, alive: DataFrame | None = None) -> DataFrame:
        found = counted_round(self, alive)
        if alive is None:
            found.toArrow()
        return found

    with mock.patch.object(SparkRounds, "round", collected), overheard(frame) as (rows, _):
        dphist.release(frame, **ASKED, seed=SEED, sum="spent:0:5")
    assert len(numbers_in([one for one in rows if isinstance(one, pa.Table)]) & true_weights()) > 20


# --- tasks that run twice -------------------------------------------------------------------------------------


def twice(fresh: bool) -> Callable[[DataFrame, OnBatches, StructType | str], DataFrame]:
    """Replaces `on_executors`: each task makes its noise twice, as if its first attempt had been lost."""

    def of(self: Repeatable, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        from dphist.sampling.rng import SecureRng

        return sampler.draw(rows.size, SecureRng(), compiled=compiled)

    def run(function: OnBatches, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with mock.patch.object(Repeatable, "of", of if fresh else Repeatable.of):
            for batch in batches:
                first, second = (list(function(iter([batch]))) for _ in range(2))
                assert all(one.equals(other) for one, other in zip(first, second, strict=True)), "other noise"
                yield from second

    def on_executors(frame: DataFrame, function: OnBatches, schema: StructType | str) -> DataFrame:
        return frame.mapInArrow(lambda batches: run(function, batches), schema)

    return on_executors


@pytest.mark.parametrize("way", ["known", pytest.param("sums", marks=pytest.mark.slow)])
def test_a_task_that_runs_twice_draws_the_same_noise(frame: DataFrame, way: str) -> None:
    """With keys that are secret."""
    with mock.patch.object(rounds_on_spark, "on_executors", twice(fresh=False)):
        release = dphist.release(frame, **ASKED, **WAYS[way])
    assert release.private
    assert len(release) > 20


def test_other_noise_of_a_second_run_would_be_noticed(frame: DataFrame) -> None:
    """Power: with fresh noise."""
    replaced = mock.patch.object(rounds_on_spark, "on_executors", twice(fresh=True))
    with replaced, pytest.raises(InputError):
        dphist.release(frame, **ASKED, sum="spent:0:5")
