"""Which values are items: one rule for all ways to build a sketch, and none of them an error."""

from __future__ import annotations

import datetime
import decimal
import random
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dphist.errors import InvalidParameter
from dphist.sketch import MisraGries, build, build_batches
from oracles_sketch import Sketch, with_users

NAN = float("nan")
DAY = datetime.date(2024, 5, 17)
NAMES: dict[str, Any] = {"user": "user", "item": "item"}


def state(sketch: MisraGries) -> Sketch:
    return dict(sketch._as_table()), sketch._subtracted


def broken_texts(values: list[bytes]) -> Any:
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), raw.buffers())


class Hostile:
    """It has everything that a value may be asked for, and all of it fails."""

    @property
    def item(self) -> Any:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class Itemised:
    """It looks like a number of numpy."""

    def item(self) -> int:
        return 5


# 10 users have what is no item, 10 others an item: it keeps all 10, and nothing is subtracted.
@pytest.mark.parametrize(
    ("nothing", "something", "kind"),
    [(NAN, 1.0, pa.float64()), (NAN, 0.5, pa.float32()), (b"\xff\xfe", b"tea", pa.string())],
    ids=["float64", "float32", "text"],
)
@pytest.mark.parametrize("repeated", [1, 3], ids=["one column", "two columns"])
def test_what_is_no_item_takes_no_rank(nothing: Any, something: Any, kind: Any, repeated: int) -> None:
    values = [nothing] * 20 + [something] * 10
    items = broken_texts(values) if kind == pa.string() else pa.array(values, kind)
    table = pa.table({"user": range(30), "item": items, "other": [n % repeated for n in range(30)]})
    own = ["item"] if repeated == 1 else ["item", "other"]
    columns = tuple(table.column(name) for name in own)
    expected: Sketch = ({"tea" if kind == pa.string() else something: 10}, 0)
    if repeated == 3:
        expected = ({(next(iter(expected[0])), place): count for place, count in ((2, 4), (0, 3))}, 0)
        expected = ({key: count - 3 for key, count in expected[0].items() if count > 3}, 3)
    for size in (1, 2):
        if size == 2 and repeated == 3:
            break
        updated = MisraGries(size, {name: table.schema.field(name).type for name in own})
        updated.update_columns(table["user"], columns)
        batched = build_batches(table.to_batches(7), size, user="user", item=own, schema=table.schema)
        assert state(updated) == state(batched) == expected
        if kind != pa.string():
            assert state(build(table, size, user="user", item=own, types="fixed")) == expected


def test_build_reads_files_with_nan_as_all_others_do(tmp_path: Any) -> None:
    choose = random.Random(2)
    rows = [(user, choose.choice([NAN, -0.0, 0.0, 1.0, 2.0, 3.0])) for user in range(300) for _ in range(2)]
    table = pa.table({"user": [row[0] for row in rows], "item": [row[1] for row in rows]})
    pq.write_table(table, tmp_path / "log.parquet")
    for size in range(1, 6):
        one = build(tmp_path / "log.parquet", size, **NAMES)
        assert one.to_bytes() == MisraGries.from_columns(size, table["user"], table["item"]).to_bytes()
        assert one._subtracted <= one.error_bound(sum(value == value for _, value in set(rows)))


@pytest.mark.parametrize("k", [1, 3, 20, 60])
def test_build_holds_only_what_can_matter(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histogram comes in batches of one row, and with room for few the smallest are dropped on the way."""
    monkeypatch.setattr(import_module("dphist.sketch.build"), "SPARE", 2)
    monkeypatch.setattr("dphist.counting.duckdb.ROWS", 1)
    choose = random.Random(k)
    sets = [{f"i{int(choose.paretovariate(0.5)) % 500}" for _ in range(5)} for _ in range(200)]
    rows = [(user, item) for user, items in enumerate(sets) for item in items]
    table = pa.table({"user": [row[0] for row in rows], "item": [row[1] for row in rows]})
    assert state(build(table, k, **NAMES)) == with_users(({}, 0), sets, k)


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("string", "tea", "tea"), ("string", "höher", "höher"), ("int64", 5, 5), ("uint64", 2**64 - 1, 2**64 - 1),
        ("float64", 0.5, 0.5), ("date32", DAY, 19860), ("bool", True, True), ("binary", b"\xff", b"\xff"),
        (pa.decimal128(9, 2), decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    ],
)  # fmt: skip
def test_scalars_of_arrow_are_the_values_that_they_hold(kind: Any, value: Any, key: Any) -> None:
    sketch = MisraGries(5, kind)
    arrow = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(kind)
    sketch.update([pa.scalar(value, arrow), pa.scalar(None, arrow)])
    sketch.update(pa.array([value, value, None], arrow))
    sketch.update_columns([1, 2], [pa.scalar(value, arrow), None])
    assert state(sketch) == ({key: 3}, 0)


def test_scalars_of_other_types_are_as_the_values_of_python_are() -> None:
    text, day, number, real = (MisraGries(9, kind) for kind in ("string", "date32", "int64", "float64"))
    for sketch in (text, day, number, real):
        sketch.update([pa.scalar(5), pa.scalar("2024-05-17"), pa.scalar(NAN), pa.scalar([1, 2])])
        sketch.update(pa.array(["tea"]).dictionary_encode())
    assert state(text)[0].keys() == {"5", "2024-05-17", "[1,2]", "tea"}
    # A text is no date, in Python and in Arrow; a number is the day of that number.
    assert (state(day)[0], state(number)[0], state(real)[0]) == ({5: 1}, {5: 1}, {5.0: 1})
    exact = MisraGries(9, pa.timestamp("ns"))
    exact.update([pa.scalar(1, pa.timestamp("ns")), pa.scalar(1, pa.timestamp("us")), pd.Timestamp(7, unit="ns")])
    assert state(exact)[0] == {1: 1, 1000: 1, 7: 1}
    # Python has no times of a nanosecond.
    clock = MisraGries(9, pa.time64("ns"))
    clock.update([pa.scalar(1, pa.time64("ns")), pa.scalar(1001, pa.time64("ns"))])
    assert state(clock)[0] == {1: 1, 1001: 1}


@pytest.mark.parametrize(
    "value",
    [
        np.array([1, 2]), pd.Series([1, 2]), pl.Series([1, 2]), Hostile(), Itemised(), object(), np.array([]), {1},
        pd.NA, pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT"), np.float32("nan"), NAN, decimal.Decimal("NaN"),
        decimal.Decimal("sNaN"), pa.scalar(NAN), pa.scalar(None), None, np.datetime64("2024-01", "ns"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("kind", ["int64", "string", "float64", "date32", "bool", "timestamp[ns]", "binary"])
def test_a_value_that_is_no_item_is_missing_in_users_and_in_lists(kind: str, value: Any) -> None:
    one, listed = MisraGries(9, kind), MisraGries(9, kind)
    one.update([value])
    listed.update_columns([1], [value])
    assert state(one) == state(listed)
    # What has a text of its own is a text; what is a time is a time.
    text = isinstance(value, np.ndarray) or (isinstance(value, np.datetime64) and value == value)
    if not (text and kind in ("string", "timestamp[ns]", "date32")):
        assert state(one) == ({}, 0)


def test_numbers_of_numpy_and_users_that_are_missing() -> None:
    whole = MisraGries(9, "int64")
    whole.update([np.int8(3), np.float32(4.0), np.bool_(True), np.uint64(2**64 - 1), np.float64(2.5)])
    assert state(whole)[0] == {3: 1, 4: 1, 1: 1}
    # Users who are missing in a list have no rows; all others are one user each.
    sketch = MisraGries.from_columns(5, [NAN, pd.NaT, None, np.float32("nan"), "u", pa.scalar("u")], ["a"] * 6)
    assert state(sketch) == ({"a": 1}, 0)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_both_zeros_of_a_column_are_one_item(kind: Any) -> None:
    column = pa.array([-0.0, 0.0, -0.0, 1.0], kind)
    for order in ([0, 1, 2, 3], [1, 0, 2, 3]):
        sketch = MisraGries.from_columns(1, [1, 2, 3, 4], column.take(pa.array(order)))
        assert state(sketch) == ({0.0: 2}, 1)
        assert MisraGries.from_bytes(sketch.to_bytes()).to_bytes() == sketch.to_bytes()
        assert not np.signbit(next(iter(sketch._as_table())))


def test_chunks_with_dictionaries_of_their_own() -> None:
    chunks = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "b", "a"]).dictionary_encode()]
    sketch = MisraGries.from_columns(5, [1, 2, 3, 4, 5], pa.chunked_array(chunks))
    assert state(sketch) == ({"a": 2, "b": 2, "c": 1}, 0)


def test_a_tuple_of_one_column_is_that_column() -> None:
    for items in (
        (["a", "b"],),
        (pa.array(["a", "b"]),),
        (np.array(["a", "b"]),),
        (pd.Series(["a", "b"]),),
        ("a", "b"),
    ):
        sketch = MisraGries(5)
        sketch.update_columns([1, 2], items)
        assert state(sketch) == ({"a": 1, "b": 1}, 0) == state(MisraGries.from_columns(5, [1, 2], items))
    with pytest.raises(InvalidParameter, match="items of 1 columns"):
        MisraGries(5).update_columns([1, 2], (["a", "b"], ["c", "d"]))


@pytest.mark.parametrize("dtype", [">i4", ">u8", ">f8", ">M8[s]"])
def test_arrays_of_another_byte_order_are_the_same(dtype: str) -> None:
    other = np.array([1, 2, 2], dtype=dtype)
    one = MisraGries.from_columns(5, [1, 2, 3], other)
    assert (
        one.to_bytes() == MisraGries.from_columns(5, [1, 2, 3], other.astype(dtype.replace(">", "<"))).to_bytes()
    )
    assert one._as_counters().counts.tolist() in ([1, 2], [2, 1])


@pytest.mark.parametrize("dtype", ["M8[M]", "M8[h]", "m8[h]", "longdouble"])
def test_types_of_numpy_that_arrow_does_not_know(dtype: str) -> None:
    with pytest.raises(InvalidParameter, match=r"no type for items of the type .*: convert them"):
        MisraGries.from_columns(5, [1, 2], np.array([1, 2]).astype(dtype))
    with pytest.raises(InvalidParameter, match=r"no type for users of the type .*: convert them"):
        MisraGries.from_columns(5, np.array([1, 2]).astype(dtype), ["a", "b"])


@pytest.mark.parametrize("pairs", [0, 5, np.int64(7), 10**30])
def test_the_bound_of_any_number_of_pairs(pairs: int) -> None:
    assert MisraGries(4).error_bound(pairs) == int(pairs) // 5


@pytest.mark.parametrize("item", [None, 5, [5], [], {"item"}, ["item", None]], ids=str)
def test_names_of_columns_are_texts(item: Any) -> None:
    table = pa.table({"user": [1], "item": ["a"]})
    with pytest.raises(InvalidParameter, match="item must be the name of a column, or a list of names"):
        build(table, 1, user="user", item=item)
    with pytest.raises(InvalidParameter, match="item must be the name of a column, or a list of names"):
        build_batches([], 1, user="user", item=item, schema=table.schema)
    for user in (None, ["user"], 5):
        with pytest.raises(InvalidParameter, match=r"user must be|no column"):
            build(table, 1, user=user, item="item")  # type: ignore[arg-type]
        with pytest.raises(InvalidParameter, match="no column"):
            build_batches([], 1, user=user, item="item", schema=table.schema)  # type: ignore[arg-type]
