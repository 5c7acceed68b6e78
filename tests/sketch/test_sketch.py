"""Sketches as people use them: types, columns of every kind, whole inputs, and what is refused."""

from __future__ import annotations

import copy
import datetime
import decimal
import doctest
import pickle
import random
import subprocess
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
import dphist.sketch.misra_gries
from dphist.errors import InputError, InvalidParameter
from dphist.sketch import MisraGries, build, build_batches
from oracles_sketch import Sketch, with_users

DAY = datetime.date(2024, 5, 17)
NOON = datetime.datetime(2024, 5, 17, 12, 0, 0, 123456, tzinfo=datetime.UTC)
VALUES: list[tuple[Any, Any, Any]] = [
    (pa.string(), "tea", "höher"), (pa.large_string(), "", "tea"), (pa.string_view(), "tea", "milk"),
    (pa.binary(), b"\xff", b""), (pa.binary(2), b"\xff\x00", b"ab"), (pa.bool_(), True, False),
    (pa.int8(), 1, -1), (pa.uint16(), 1, 7), (pa.int64(), -(2**63), 2**63 - 1), (pa.uint64(), 0, 2**64 - 1),
    (pa.float32(), 0.5, 0.25), (pa.float64(), 0.1, -1e300), (pa.date32(), DAY, datetime.date(1, 1, 1)),
    (pa.date64(), DAY, datetime.date(1969, 1, 1)), (pa.time64("us"), datetime.time(1, 2), datetime.time(3)),
    (pa.timestamp("us"), NOON.replace(tzinfo=None), datetime.datetime(1, 1, 1)),
    (pa.timestamp("us", "UTC"), NOON, NOON + datetime.timedelta(1)),
    (pa.duration("us"), datetime.timedelta(1), datetime.timedelta(0, 1)),
    (pa.decimal128(9, 2), decimal.Decimal("1.50"), decimal.Decimal("-2.25")),
    (pa.dictionary(pa.int32(), pa.string()), "tea", "milk"),
]  # fmt: skip


def state(sketch: MisraGries) -> Sketch:
    return dict(sketch._as_table()), sketch._subtracted


def test_it_is_loaded_when_it_is_first_used() -> None:
    loaded = "import sys, dphist; print('dphist.sketch' in sys.modules, 'pyarrow' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"
    assert callable(dphist.sketch.build)


def test_docstring_example() -> None:
    result = doctest.testmod(dphist.sketch.misra_gries)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(("kind", "often", "seldom"), VALUES, ids=lambda value: str(value)[:20])
def test_every_type_by_users_by_columns_by_bytes_and_merged(kind: Any, often: Any, seldom: Any) -> None:
    one, columns = MisraGries(1, kind), MisraGries(1, kind)
    for items in ({often, seldom}, {often}, {often}, {None}):
        one.update(items)
    rows = [often, seldom, often, often, often, None]
    columns.update_columns([0, 0, 1, 2, 2, 3], pa.array(rows, kind))
    # One user at a time: 1, 1 less 1, and two more; all at once: 3, 1 less 1.
    assert state(one) == state(columns)
    assert one.to_bytes() == columns.to_bytes()
    again = MisraGries.from_bytes(columns.to_bytes())
    again.update({often})
    both = one.merge(columns, again)
    found = both.release(dphist.plan(epsilon=9, delta=0.5, max_nonzero=1), seed=1)
    assert found.to_arrow().column("item").to_pylist() == [often]
    assert len(found.to_pandas()) == len(found.to_polars()) == 1
    assert both._subtracted == 3
    assert both._as_counters().counts.tolist() == [7]


def test_several_columns_with_names() -> None:
    sketch = MisraGries(2, {"country": "string", "day": pa.date32()})
    sketch.update({("at", DAY), ("de", DAY), ("at", None), ("at",), "at"})
    sketch.update_columns(["u"] * 3 + ["v"], (["at", "de", None, "at"], [DAY, DAY, DAY, DAY]))
    sketch.update_columns([], ([], []))
    assert state(sketch) == ({("at", 19860): 3, ("de", 19860): 2}, 0)
    found = sketch.release(dphist.plan(epsilon=20, delta=0.5, max_nonzero=2), seed=3).to_arrow()
    assert found.column_names == ["country", "day", "count"]
    with pytest.raises(InvalidParameter, match="items of 2 columns"):
        sketch.update_columns(["u"], ["at"])


@pytest.mark.parametrize("kind", ["int64", "string"])
@pytest.mark.parametrize("wide", [False, True], ids=["small numbers", "large numbers"])
def test_random_batches_against_the_definition(kind: str, wide: bool) -> None:
    choose = random.Random(f"{kind} {wide}")
    step = 2**40 + 1 if wide else 1
    name = (lambda number: number * step) if kind == "int64" else (lambda number: f"item {number * step}")
    sketch = MisraGries(20, kind)
    expected: Sketch = {}, 0
    for _ in range(12):
        users = [
            frozenset(name(min(int(choose.paretovariate(0.7)), 10**5)) for _ in range(choose.randint(0, 9)))
            for _ in range(60)
        ]
        rows = [((user - 30) * step, item) for user, items in enumerate(users) for item in items] * 2
        choose.shuffle(rows)
        columns = [[row[part] for row in rows] for part in (0, 1)]
        sketch.update_columns(pa.array(columns[0]), pa.array(columns[1], kind))
        expected = with_users(expected, users, 20)
    assert state(sketch) == expected
    assert expected[1] > 0


def test_columns_of_every_package_are_one_sketch() -> None:
    users, items = [1, 1, 2, 3, None], ["tea", "milk", "tea", None, "tea"]
    numbers = pd.Series([1, 1, 2, 3, None], dtype="Int64")
    given = [
        (users, items), (numbers, pd.Series(items)), (numbers, pd.Series(items, dtype="category")),
        (pl.Series(users), pl.Series(items)), (pa.array(users), pa.chunked_array([items[:2], items[2:]])),
        (pa.array(users), np.array(items, dtype=object)), (np.array([1.0, 1.0, 2.0, 3.0, np.nan]), items),
        (pa.array(users), pa.array(items).dictionary_encode()),
    ]  # fmt: skip
    for who, what in given:
        sketch = MisraGries.from_columns(5, who, what)
        assert state(sketch) == ({"tea": 2, "milk": 1}, 0)
    typed = MisraGries(5, "int64")
    typed.update_columns([1, 2], ["7", 7.0])
    typed.update_columns(np.array([3, 4]), np.array([7, 8], dtype=np.int16))
    typed.update_columns(pd.Series([5]), pd.Series([7], dtype=object))
    assert state(typed) == ({7: 4, 8: 1}, 0)


def test_a_value_is_an_item_by_a_rule_about_it_alone_and_never_an_error() -> None:
    text, whole, real, day = (MisraGries(99, kind) for kind in ("string", "int64", "float64", "date32"))
    odd = [None, "x", 5, "5", True, 2.0, 2.5, float("nan"), -0.0, 0.0, b"a", DAY, "\ud800", object(), [1], 2**70]
    for sketch in (text, whole, real, day):
        sketch.update(odd)
    assert {"x", "5", "2.0", "true", "[1]"} <= state(text)[0].keys()
    assert "\ud800" not in state(text)[0]
    assert state(whole)[0] == {5: 1, 1: 1, 2: 1, 0: 1}
    assert float("nan") not in state(real)[0]
    assert state(real)[0][0.0] == 1
    assert state(day)[0][19860] == 1
    for sketch in (text, whole, real, day):
        assert MisraGries.from_bytes(sketch.to_bytes()).to_bytes() == sketch.to_bytes()


def test_texts_that_are_no_unicode_are_left_out_of_columns() -> None:
    raw = pa.array([b"tea", b"\xff\xfe", b"milk"], pa.binary())
    bad = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    sketch = MisraGries.from_columns(5, [1, 2, 3], bad)
    assert state(sketch) == ({"tea": 1, "milk": 1}, 0)
    assert MisraGries.from_bytes(sketch.to_bytes()).to_bytes() == sketch.to_bytes()


def test_it_shows_nothing_of_itself_and_can_be_copied() -> None:
    sketch = MisraGries.from_columns(7, [1], ["my secret"])
    assert repr(sketch) == str(sketch) == "MisraGries(k=7)"
    assert "secret" in repr(sketch._as_counters())
    assert "my" not in repr(sketch._as_counters())
    other = pickle.loads(pickle.dumps(sketch))
    third = copy.deepcopy(sketch)
    other.update(["my secret"])
    assert state(sketch) == state(third) == ({"my secret": 1}, 0)
    assert state(other) == ({"my secret": 2}, 0)


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        (lambda: MisraGries(0), "k must be between 1"),
        (lambda: MisraGries(2.5), "k must be a whole number"),  # type: ignore[arg-type]
        (lambda: MisraGries(1, "texts"), "Arrow type such as 'string'.*'texts'"),
        (lambda: MisraGries(1, pa.list_(pa.int8())), "list<.*cannot be items of a sketch"),
        (lambda: MisraGries(1, {"": "string"}), "different names"),
        (lambda: MisraGries(1, pa.schema([("a", pa.int64()), ("a", pa.string())])), "different names"),
        (lambda: MisraGries(1).update("tea"), "the set of a user's items, not str"),
        (lambda: MisraGries(1).update(5), "not int"),  # type: ignore[arg-type]
        (lambda: MisraGries(1).update_columns([1], pa.array([1])), "type large_string in 'item'.*has type int64"),
        (lambda: MisraGries(1).update_columns([1, 2], ["a"]), "same length"),
        (lambda: MisraGries(1).update_columns(5, ["a"]), "users must be columns"),
        (lambda: MisraGries(1).update_columns(np.ones((1, 1)), ["a"]), "users must be columns"),
        (lambda: MisraGries(1).merge(MisraGries(2)), "sizes 1 and 2 cannot be merged"),
        (lambda: MisraGries(1).merge(MisraGries(1, "int64")), "items item .large_string. and item .int64."),
        (lambda: MisraGries(1).merge("a"), "only sketches can be merged, not str"),  # type: ignore[arg-type]
        (lambda: (lambda sketch: sketch.merge(sketch))(MisraGries(1)), "merged with itself"),
        (lambda: MisraGries(1).error_bound(-1), "pairs must be a whole number of at least 0"),
        (lambda: MisraGries(1).error_bound(True), "pairs must be a whole number of at least 0"),
        (lambda: MisraGries.merge(), "pass the sketches to merge"),
    ],
)
def test_what_is_refused(action: Any, sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        action()


def log() -> pa.Table:
    choose = random.Random(5)
    rows = [(user, f"i{int(choose.paretovariate(0.8))}") for user in range(400) for _ in range(4)]
    return pa.table({"user": [row[0] for row in rows], "item": [row[1] for row in rows]})


def exact(table: pa.Table, k: int) -> Sketch:
    users: dict[int, set[Hashable]] = {}
    for user, item in zip(*(column.to_pylist() for column in table.columns), strict=True):
        users.setdefault(user, set()).add(item)
    return with_users(({}, 0), users.values(), k)


def test_build_counts_all_users_of_all_files_as_one_batch(tmp_path: Path) -> None:
    table = log()
    # A user's events are in several files.
    for number in range(3):
        pq.write_table(table.slice(number * 500, 500), tmp_path / f"{number}.parquet")
    table = table.slice(0, 1500)
    names: dict[str, Any] = {"user": "user", "item": "item"}
    for given in (tmp_path, [tmp_path / f"{number}.parquet" for number in range(3)], table, table.to_pandas()):
        assert state(build(given, 10, **names)) == exact(table, 10)
    assert state(build(table, 10**6, **names)) == exact(table, 10**6)
    assert build(table, 10, **names).to_bytes() == MisraGries.from_columns(10, *table.columns).to_bytes()
    renamed = build(table, 10, user="user", item="what=item", where="item <> 'i1'")
    assert renamed.kind.names == ("what",)
    assert "i1" not in state(renamed)[0]
    assert state(build(table.slice(0, 0), 10, **names)) == ({}, 0)
    with pytest.raises(InvalidParameter, match="both the user and the item"):
        build(table, 10, user="user", item="user")
    with pytest.raises(InputError, match="no column 'nobody'"):
        build(table, 10, user="nobody", item="item")


def test_build_with_types_and_several_columns() -> None:
    table = pa.table(
        {
            "user": [1, 2, 3, 4], "number": pa.array([1, 1, 2, None], pa.int32()),
            "real": [0.5, 0.5, float("nan"), 1.0], "day": [DAY, DAY, DAY, DAY],
        }
    )  # fmt: skip
    sketch = build(table, 3, user="user", item=["number", "day"], types="fixed")
    assert [str(kind) for kind in sketch.kind.types] == ["int64", "date32[day]"]
    assert sketch._as_counters().counts.tolist() in ([2, 1], [1, 2])
    # What is no number is no item, as in every sketch.
    assert state(build(table, 3, user="user", item="real", types="fixed")) == ({0.5: 2, 1.0: 1}, 0)


def test_partitions_of_batches_cut_anywhere_are_merged_to_one() -> None:
    table = log()
    for size in (7, 100, 5000):
        parts = []
        for number in range(4):
            chosen = table.filter(pa.array([user % 4 == number for user in table["user"].to_pylist()]))
            batches = chosen.to_batches(max_chunksize=size)
            parts.append(build_batches(iter(batches), 10, user="user", item="item", schema=table.schema))
        whole = MisraGries.merge(*parts)
        if size == 7:
            first = whole.to_bytes()
        assert whole.to_bytes() == first, "where batches are cut does not matter"
    truth = exact(table, 10**6)[0]
    counters, subtracted = state(whole)
    assert len(counters) <= 10
    assert all(counters.get(item, 0) <= n <= counters.get(item, 0) + subtracted for item, n in truth.items())
    empty = build_batches([], 10, user="user", item="item", schema=table.schema)
    assert MisraGries.merge(whole, empty).to_bytes() == first
    with pytest.raises(InvalidParameter, match="no column 'nothing'"):
        build_batches([], 10, user="user", item="nothing", schema=table.schema)


def test_counts_that_are_too_large_are_cut_and_no_error() -> None:
    sketch = MisraGries.from_columns(1, [1], ["a"])
    sketch._as_counters().counts[0] = 2**53
    huge = sketch.merge(copy.copy(sketch))
    assert huge._as_counters().counts.tolist() == [2**53]
    found = huge.release(dphist.plan(epsilon=1, delta=1e-6, max_nonzero=1000), seed=1)
    assert found.items.to_pylist() == ["a"]
