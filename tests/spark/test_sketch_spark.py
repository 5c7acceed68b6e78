"""Sketches of Spark DataFrames: one for each partition of users, merged."""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import dphist
from dphist.errors import InputError, InvalidParameter
from dphist.sketch import MisraGries, build, build_on_spark
from spark_cluster import ON_SPARK
from spark_shared import shared_session

pytestmark = ON_SPARK

ROWS = [(user, f"item {(user * step) % 97 % (step * 9 + 1)}") for user in range(700) for step in (1, 2, 5)]


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session("local")


def counters(sketch: MisraGries) -> dict[str | None, int]:
    inner = sketch._as_counters()
    return dict(zip(inner.items[0].to_pylist(), inner.counts.tolist(), strict=True))


def test_with_room_for_all_items_it_is_the_exact_histogram(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, "user int, page string")
    found = build_on_spark(frame, 200, user="user", item="what=page", partitions=3)
    users = defaultdict(set)
    for user, item in ROWS:
        users[item].add(user)
    assert counters(found) == {item: len(some) for item, some in users.items()}
    assert found.kind.names == ("what",)
    # All texts are one type, so it can be merged with sketches from elsewhere.
    others = pa.table({"user": [user + 10_000 for user, _ in ROWS], "page": [item for _, item in ROWS]})
    both = found.merge(build(others, 200, user="user", item="what=page"))
    assert counters(both) == {item: 2 * len(some) for item, some in users.items()}


@pytest.mark.parametrize("partitions", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_counters_are_within_what_was_subtracted(spark: SparkSession, partitions: int) -> None:
    frame = spark.createDataFrame([*ROWS, (None, "item 1"), (5, None)], "user int, page string")
    found = build_on_spark(frame, 8, user="user", item="page", where="page <> 'item 3'", partitions=partitions)
    users = defaultdict(set)
    for user, item in ROWS:
        if item != "item 3":
            users[item].add(user)
    had = counters(found)
    subtracted = found._as_counters().subtracted
    assert len(had) <= 8
    assert subtracted * 9 <= sum(map(len, users.values()))
    assert all(len(some) - subtracted <= had.get(item, 0) <= len(some) for item, some in users.items())
    assert found.release(dphist.plan(epsilon=5, delta=1e-3, top=8)).private


def test_bad_input(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, "user int, page string")
    with pytest.raises(InputError, match="has no column 'nothing'"):
        build_on_spark(frame, 8, user="user", item="nothing")
    with pytest.raises(InvalidParameter, match="both the user and the item"):
        build_on_spark(frame, 8, user="user", item="user")
    with pytest.raises(InvalidParameter, match="partitions"):
        build_on_spark(frame, 8, user="user", item="page", partitions=0)
