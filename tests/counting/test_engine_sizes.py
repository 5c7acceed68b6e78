"""Users by their number of items: against brute force, and each user in one bucket."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from dphist.counting.task import Resources, Task
from dphist.errors import InputError, InvalidParameter
from engine_cases import (
    EACH_ENGINE,
    EMBEDDED,
    QUICK_ON_DUCKDB,
    WITHOUT_CLUSTER,
    Factory,
    Rows,
    as_stream,
    drawn,
    events,
    histogram,
    kept_by_hand,
    table_of,
    task,
    written,
)

BOUNDS = [1, 2, 4, 7]
tables = st.lists(
    st.tuples(st.none() | st.integers(0, 5), st.none() | st.integers(0, 12), st.none() | st.booleans()),
    max_size=60,
)


def sizes(engine: Factory, wanted: Task, bounds: list[int]) -> list[int]:
    found = engine(Resources(threads=2)).sizes(wanted, bounds)
    assert all(type(number) is int for number in found)
    return found


def by_hand(kept: dict[Any, set[Any]], bounds: list[int]) -> list[int]:
    numbers = [len(items) for items in kept.values() if items]
    inside = [sum(low < n <= high for n in numbers) for low, high in pairwise([0, *bounds])]
    return [*inside, sum(n > bounds[-1] for n in numbers)]


@EACH_ENGINE
@drawn(rows=tables, nulls=st.booleans(), bounds=st.sets(st.integers(1, 30), min_size=1, max_size=6).map(sorted))
def test_sizes_are_those_of_brute_force(engine: Factory, rows: Rows, nulls: bool, bounds: list[int]) -> None:
    table = table_of(rows, user=pa.int64(), item=pa.int64(), flag=pa.bool_())
    one = kept_by_hand([row[:2] for row in rows], None, nulls)
    # A limit, a threshold and a rank do not matter.
    more: dict[str, Any] = {"null_items": nulls, "max_items_per_user": 1, "lower_threshold": 9, "rank": 2}
    assert sizes(engine, task(table, **more), bounds) == by_hand(one, bounds)
    two = kept_by_hand(rows, None, nulls)
    assert sizes(engine, task(table, items=("item", "flag"), null_items=nulls), bounds) == by_hand(two, bounds)


@QUICK_ON_DUCKDB
def test_conditions_and_public_lists_come_first(engine: Factory) -> None:
    rows = [(user, item) for user in range(1, 12) for item in range(user)]
    table = pa.table({"user": [u for u, _ in rows] * 2, "item": [i for _, i in rows] * 2})
    assert sizes(engine, task(table), BOUNDS) == [1, 1, 2, 3, 4]
    assert sizes(engine, task(table, where="item < 3"), BOUNDS) == [1, 1, 9, 0, 0]
    listed = events(pa.table({"item": ["1", "5", "77", "x"]}))
    assert sizes(engine, task(table, public_items=listed), BOUNDS) == [4, 6, 0, 0, 0]
    assert sizes(engine, task(table, where="user > 90"), [3]) == [0, 0]


@WITHOUT_CLUSTER
def test_each_user_is_in_one_bucket(engine: Factory) -> None:
    """An additional user adds one to one number; NaN is a user, NULL is not."""
    odd = [0.0, -0.0, float("nan"), -float("nan"), 1.5, None]
    table = pa.table({"user": pa.array(odd * 3, pa.float64()), "item": [k // 6 for k in range(18)]})
    assert sizes(engine, task(table), [2]) == [0, 3]
    more = pa.concat_tables([table, pa.table({"user": [7.0] * 4, "item": [1, 1, 2, 2]})])
    assert sizes(engine, task(more), [2]) == [1, 3]


@EMBEDDED
@pytest.mark.parametrize("bounds", [[], [0], [2, 2], [3, 1]])
def test_bounds_must_increase(engine: Factory, bounds: list[Any]) -> None:
    with pytest.raises(InvalidParameter, match="the bounds of sizes must be"):
        engine(Resources()).sizes(task(pa.table({"user": [1], "item": [1]})), bounds)


@QUICK_ON_DUCKDB
def test_a_reader_is_refused_and_stays_unread(engine: Factory) -> None:
    table = pa.table({"user": [1, 2], "item": ["a", "a"]})
    stream = as_stream(table)
    with pytest.raises(InputError, match="reader can be read only once: give max_items_per_user a number"):
        engine(Resources()).sizes(task(stream), [1])
    assert histogram(engine, task(stream)) == {"a": 2}
    listed = events(as_stream(table.select(["item"])))
    with pytest.raises(InputError, match="can be read only once"):
        engine(Resources()).sizes(task(table, public_items=listed), [1])
    assert histogram(engine, task(table, public_items=listed)) == {"a": 2}


@EMBEDDED
@pytest.mark.parametrize("kind", ["csv", "stream.arrow", "duckdb", "sqlite", "lazy", "relation"])
def test_sources_are_read_again(engine: Factory, tmp_path: Path, kind: str) -> None:
    table = pa.table({"user": ["a", "a", "b", "b", "b"], "item": [1, 1, 2, 3, 4]})
    wanted = task(written(table, tmp_path, kind))
    for _ in range(2):
        assert sizes(engine, wanted, [1, 2]) == [1, 0, 1]


@WITHOUT_CLUSTER
def test_progress_ends_at_one(engine: Factory) -> None:
    shares: list[float] = []
    table = pa.table({"user": [1, 2, 2], "item": [1, 2, 3]})
    assert engine(Resources()).sizes(task(table), [1], shares.append) == [1, 1]
    assert shares[-1] == 1.0
    assert shares == sorted(shares)
    assert max(Counter(shares).values()) == 1
