"""Counting in rounds on Spark: the numbers of brute force, and pairs that stay with their users."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as sql
from test_engine_totals import ITEMS, check_rounds
from test_engine_totals import some_rows as rows_of_days
from test_rounds_counting import LISTED, check, entries, rounds_task

from dphist.spark.lists import numbers_of_partitions, part_of
from engine_cases import table_of
from spark_cluster import ON_SPARK
from spark_rounds_count import NumberedOnSpark
from spark_shared import shared_session
from sum_cases import own_steps, value

pytestmark = ON_SPARK

LOCAL = pytest.param("local", id="local")
BOTH = pytest.mark.parametrize("kind", [LOCAL, pytest.param("cluster", marks=pytest.mark.slow)])
ROUNDS: dict[str, dict[str, Any]] = {
    "known": {"known": True, "alone": True, "null_items": True, "growth": 1},
    "listed": {"known": True, "listed": True, "most_items": 3},
    "alone": {"alone": True, "most_items": 3, "growth": 1},
    "one item": {"alone": True, "most_items": 1},
}


def some_rows(seed: int) -> list[tuple[Any, ...]]:
    """Users with up to ten items, missing values and repeated rows."""
    generator = random.Random(seed)
    rows = [
        (None if user == 9 else f"u{user}", generator.choice([None, *range(9)]))
        for user in range(12)
        for _ in range(generator.choice([1, 1, 2, 5, 12]))
    ]
    generator.shuffle(rows)
    return rows


@BOTH
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way in ("known", "listed") else pytest.mark.slow) for way in ROUNDS]
)
def test_rounds_are_those_of_brute_force(kind: str, way: str) -> None:
    options = dict(ROUNDS[way])
    known = LISTED if options.pop("known", False) else None
    given: dict[str, Any] = {} if known is None else {"known": entries(known)}
    rows = some_rows(len(way))
    table = table_of(rows, user=pa.string(), item=pa.int64())
    check(NumberedOnSpark(kind), rounds_task(table, **options, **given), rows, known, seed=4)


@BOTH
def test_sums_are_weighted_as_by_brute_force(kind: str) -> None:
    generator = random.Random(7)
    rows = [(*row, generator.choice([None, generator.uniform(-3, 3)])) for row in some_rows(1)]
    table = table_of(rows, user=pa.string(), item=pa.int64(), x=pa.float64())
    values = (value("x", -1, 1), value("x", 0, 2))
    own = {
        (row[0], (row[1],)): tuple(
            own_steps([other[2] for other in rows if other[:2] == row[:2]], of) for of in values
        )
        for row in rows
    }
    wanted = rounds_task(table, values=values, most_items=4)
    check(NumberedOnSpark(kind), wanted, [row[:2] for row in rows], own=own, limit=2)


def test_each_part_of_the_users_is_a_partition() -> None:
    spark = shared_session("local")
    assert len(set(numbers_of_partitions(spark, 300))) == 300
    users = spark.range(2000).select(part_of(spark, sql.col("id"), 7).alias("part")).repartition(7, "part")
    parts = users.rdd.mapPartitions(lambda rows: [len({row[0] for row in rows})]).collect()
    assert parts == [1] * 7


@BOTH
@pytest.mark.parametrize(
    ("totals", "known"),
    [
        (("country",), "known"),
        pytest.param(ITEMS, "listed", marks=pytest.mark.slow),
        pytest.param(("day",), "none", marks=pytest.mark.slow),
    ],
)
def test_rounds_with_totals_are_those_of_brute_force(kind: str, totals: tuple[str, ...], known: str) -> None:
    rows = [row[:3] for row in rows_of_days(5, 12)] + [(1, None, "a"), (2, 1, None), (None, 1, "a")]
    check_rounds(NumberedOnSpark(kind), rows, totals, totals == ("country",), 4, known, 2)
