"""Public lists: the histogram has exactly their items."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dphist.counting.task import Column, Events, Resources
from dphist.errors import InputError
from engine_cases import EACH_ENGINE, QUICK_ON_DUCKDB, Factory, events, histogram, is_spark, task


def public(values: Any, **more: Any) -> Events:
    return Events(
        values if isinstance(values, (Path, pa.Table)) else pa.table({"p": values}),
        "-",
        (Column("p", "p"),),
        **more,
    )


@EACH_ENGINE
def test_public_lists_apply_before_the_limit(engine: Factory) -> None:
    table = pa.table({"user": [1] * 20 + [2], "item": [*range(20), 3]})
    found = histogram(engine, task(table, public_items=public([3, 4, 99, 3, None]), lower_threshold=5))
    assert found == {3: 2, 4: 1, 99: 0}
    # Of all twenty items a limit of two would rarely keep both.
    for n in range(1 if is_spark(engine) else 5):
        wanted = task(table, bytes([n]) * 32, public_items=public([3, 4, 99]), max_items_per_user=2, rank=2)
        assert histogram(engine, wanted) == {3: 2, 4: 1, 99: 0}
        with engine(Resources()).count(wanted) as counted:
            assert counted.at_rank == 1
    assert engine(Resources()).size(public([3, 4, 99, 3, None])) == 3


@QUICK_ON_DUCKDB
def test_a_public_list_may_be_of_another_type(engine: Factory, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("p\n7\n8\n007\n7.5\nx\n 7\n-0\n99999999999999999999\n")
    for kind in (pa.int32(), pa.int64(), pa.decimal128(12, 3)):
        table = pa.table({"user": [1, 2, 3], "item": pa.array([7, 7, 8], kind)})
        found = histogram(engine, task(table, public_items=public(listed)))
        # Only one of three spellings of a number is counted: otherwise a user would count three times.
        assert sorted(n for n in found.values() if n) == [1, 2]
        assert found["8"] == 1
        assert found["7" if kind != pa.decimal128(12, 3) else " 7"] == 2
        assert len(found) == engine(Resources()).size(public(listed)) == 8
    texts_of = pa.table({"user": [1, 2, 3], "item": ["7", "7", "007"]})
    found = histogram(engine, task(texts_of, public_items=public(listed)))
    assert (found["7"], found["007"], found["8"]) == (2, 1, 0)
    assert histogram(engine, task(texts_of, public_items=public([7, 8]))) == {7: 2, 8: 0}
    numbers, halves = pa.table({"user": [1, 2], "item": [7, 8]}), public([7.0, 7.5, math.nan, 8.0, -2.0])
    found = {repr(item): n for item, n in histogram(engine, task(numbers, public_items=halves)).items()}
    assert found == {"7.0": 1, "7.5": 0, "nan": 0, "8.0": 1, "-2.0": 0}
    days = pa.table({"user": [1], "item": [datetime.date(2024, 1, 1)]})
    spelled = ["2024-01-01", "2024-01-01 12:00:00", "no day"]
    assert histogram(engine, task(days, public_items=public(spelled))) == dict(
        zip(spelled, (1, 0, 0), strict=True)
    )


@QUICK_ON_DUCKDB
def test_public_lists_of_several_columns_and_with_missing_values(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 2], "item": ["a", None, None], "n": [1, 2, 2]})
    listed = events(pa.table({"item": ["a", None, "b"], "n": ["1", "2", "1"]}), items=("item", "n"))
    found = histogram(engine, task(table, items=("item", "n"), public_items=listed, null_items=True))
    assert found == {("a", "1"): 1, (None, "2"): 2, ("b", "1"): 0}
    found = histogram(engine, task(table, items=("item", "n"), public_items=listed))
    assert found == {("a", "1"): 1, ("b", "1"): 0}
    with pytest.raises(InputError, match="the public items have 1 columns, and the item has 2"):
        engine(Resources()).check(task(table, items=("item", "n"), public_items=public(["a"])))
    with pytest.raises(InputError, match="no column 'p'"):
        engine(Resources()).check(task(table, public_items=public(table)))


@QUICK_ON_DUCKDB
def test_a_check_does_not_consume_a_list(engine: Factory) -> None:
    table = pa.table({"user": [1, 2], "item": ["a", "b"]})
    listed = Events(pa.table({"p": ["b", "c"]}).to_reader(), "-", (Column("p", "p"),))
    engine(Resources()).check(task(table, public_items=listed))
    assert histogram(engine, task(table, public_items=listed)) == {"b": 1, "c": 0}
