"""Building sketches: every type and kind of column, which values are items, whole inputs, batches and refusals."""

from __future__ import annotations

import copy
import datetime
import decimal
import doctest
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Hashable, Sequence
from importlib import import_module
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
from dphist.aliases import ArrowArray
from dphist.counting.columns import as_numpy
from dphist.errors import InputError, InvalidParameter
from dphist.sketch import MisraGries, build, build_batches
from oracles_sketch import Sketch, with_users

NAN = float("nan")
DAY = datetime.date(2024, 5, 17)
NOON = datetime.datetime(2024, 5, 17, 12, 0, 0, 123456, tzinfo=datetime.UTC)
NAMES: dict[str, Any] = {"user": "user", "item": "item"}


def state(sketch: MisraGries) -> Sketch:
    return dict(sketch._as_table()), sketch._subtracted


def table_of(rows: Sequence[tuple[object, object]]) -> pa.Table:
    return pa.table({"user": [user for user, _ in rows], "item": [item for _, item in rows]})


def invalid_text(values: list[bytes]) -> ArrowArray:
    """A text column whose bytes are not checked."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), raw.buffers())


def test_lazy_import() -> None:
    loaded = "import sys, dphist; print('dphist.sketch' in sys.modules, 'pyarrow' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert run.stdout == "False False\n"
    assert callable(dphist.sketch.build)


def test_docstring_example() -> None:
    result = doctest.testmod(dphist.sketch.misra_gries)
    assert result.attempted > 0
    assert result.failed == 0


# Types and columns.

TYPES: list[tuple[pa.DataType, Hashable, Hashable]] = [
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


@pytest.mark.parametrize(("kind", "common", "rare"), TYPES, ids=lambda value: str(value)[:20])
def test_every_type_by_users_by_columns_as_bytes_and_merged(
    kind: pa.DataType, common: Hashable, rare: Hashable
) -> None:
    by_users, by_columns = MisraGries(1, kind), MisraGries(1, kind)
    for items in ({common, rare}, {common}, {common}, {None}):
        by_users.update(items)
    by_columns.update_columns([0, 0, 1, 2, 2, 3], pa.array([common, rare, common, common, common, None], kind))
    assert state(by_users) == state(by_columns)
    assert by_users.to_bytes() == by_columns.to_bytes()
    again = MisraGries.from_bytes(by_columns.to_bytes())
    again.update({common})
    merged = by_users.merge(by_columns, again)
    assert merged._subtracted == 3
    assert merged._as_counters().counts.tolist() == [7]
    found = merged.release(dphist.plan(epsilon=9, delta=0.5, max_nonzero=1), seed=1)
    assert found.to_arrow().column("item").to_pylist() == [common]
    assert len(found.to_pandas()) == len(found.to_polars()) == 1


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


@pytest.mark.parametrize("kind", ["int64", "string", "two columns"])
@pytest.mark.parametrize("step", [1, 2**40 + 1], ids=["small numbers", "large numbers"])
def test_random_batches_against_the_definition(kind: str, step: int) -> None:
    choose = random.Random(f"{kind} {step}")

    def item_of(number: int) -> Any:
        if kind == "two columns":
            return f"{number % 7}", number * step
        return number * step if kind == "int64" else f"item {number * step}"

    types = {"a": "string", "b": "int64"} if kind == "two columns" else kind
    sketch = MisraGries(20, types)
    expected: Sketch = {}, 0
    for _ in range(12):
        users = [
            frozenset(item_of(min(int(choose.paretovariate(0.7)), 10**5)) for _ in range(choose.randint(0, 9)))
            for _ in range(60)
        ]
        rows = [((user - 30) * step, item) for user, items in enumerate(users) for item in items] * 2
        choose.shuffle(rows)
        items = [item for _, item in rows]
        columns = tuple(map(list, zip(*items, strict=True))) if kind == "two columns" else pa.array(items)
        sketch.update_columns(pa.array([user for user, _ in rows]), columns)
        expected = with_users(expected, users, 20)
    assert state(sketch) == expected
    assert expected[1] > 0


def test_columns_of_every_package_give_the_same_sketch() -> None:
    users, items = [1, 1, 2, 3, None], ["tea", "milk", "tea", None, "tea"]
    numbers = pd.Series([1, 1, 2, 3, None], dtype="Int64")
    dictionaries = [pa.array(items[:2]).dictionary_encode(), pa.array(items[2:]).dictionary_encode()]
    for given in (
        (users, items), (numbers, pd.Series(items)), (numbers, pd.Series(items, dtype="category")),
        (pl.Series(users), pl.Series(items)), (pa.array(users), pa.chunked_array([items[:2], items[2:]])),
        (pa.array(users), np.array(items, dtype=object)), (np.array([1.0, 1.0, 2.0, 3.0, np.nan]), items),
        (pa.array(users), pa.chunked_array(dictionaries)), (users, (items,)), (users, (pd.Series(items),)),
    ):  # fmt: skip
        assert state(MisraGries.from_columns(5, *given)) == ({"tea": 2, "milk": 1}, 0)
    typed = MisraGries(5, "int64")
    typed.update_columns([1, 2], ["7", 7.0])
    typed.update_columns(np.array([3, 4]), np.array([7, 8], dtype=np.int16))
    typed.update_columns(pd.Series([5]), pd.Series([7], dtype=object))
    assert state(typed) == ({7: 4, 8: 1}, 0)
    with pytest.raises(InvalidParameter, match="items of 1 columns"):
        MisraGries(5).update_columns([1, 2], (["a", "b"], ["c", "d"]))


@pytest.mark.parametrize("dtype", [">i4", ">u8", ">f8", ">M8[s]"])
def test_byte_order_does_not_matter(dtype: str) -> None:
    values = np.array([1, 2, 2], dtype=dtype)
    sketches = [
        MisraGries.from_columns(5, [1, 2, 3], column)
        for column in (values, values.astype(dtype.replace(">", "<")))
    ]
    assert sketches[0].to_bytes() == sketches[1].to_bytes()
    assert sorted(sketches[0]._as_counters().counts.tolist()) == [1, 2]


@pytest.mark.parametrize("dtype", ["M8[M]", "longdouble"])
def test_numpy_types_that_arrow_does_not_have(dtype: str) -> None:
    values = np.array([1, 2]).astype(dtype)
    with pytest.raises(InvalidParameter, match=r"no type for items of the type .*: convert them"):
        MisraGries.from_columns(5, [1, 2], values)
    with pytest.raises(InvalidParameter, match=r"no type for users of the type .*: convert them"):
        MisraGries.from_columns(5, values, ["a", "b"])


# Which values are items: one rule for all ways to build a sketch, and no value is an error.


class Hostile:
    """Raises an error for everything that a value may be asked for."""

    @property
    def item(self) -> int:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class LooksLikeNumpy:
    def item(self) -> int:
        return 5


NOT_ITEMS: list[object] = [
    np.array([1, 2]), pd.Series([1, 2]), pl.Series([1, 2]), Hostile(), LooksLikeNumpy(), object(), np.array([]),
    {1}, pd.NA, pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT"), np.float32("nan"), NAN,
    decimal.Decimal("NaN"), decimal.Decimal("sNaN"), pa.scalar(NAN), pa.scalar(None, pa.null()), None,
    np.datetime64("2024-01", "ns"),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["int64", "string", "float64", "date32", "bool", "timestamp[ns]", "binary"])
def test_a_value_that_is_not_an_item_is_missing_by_users_and_in_lists(kind: str) -> None:
    for value in NOT_ITEMS:
        by_user, listed = MisraGries(9, kind), MisraGries(9, kind)
        by_user.update([value])
        listed.update_columns([1], [value])
        assert state(by_user) == state(listed), type(value)
        # Arrays have a text, and times are times.
        text = isinstance(value, np.ndarray) or (isinstance(value, np.datetime64) and value == value)
        if not (text and kind in ("string", "timestamp[ns]", "date32")):
            assert state(by_user) == ({}, 0), type(value)


def test_values_of_another_type() -> None:
    text, whole, real, day = (MisraGries(99, kind) for kind in ("string", "int64", "float64", "date32"))
    odd = [None, "x", 5, "5", True, 2.0, 2.5, NAN, -0.0, 0.0, b"a", DAY, "\ud800", object(), [1], 2**70]
    for sketch in (text, whole, real, day):
        sketch.update(odd)
        assert MisraGries.from_bytes(sketch.to_bytes()).to_bytes() == sketch.to_bytes()
    assert {"x", "5", "2.0", "true", "[1]"} <= state(text)[0].keys()
    assert "\ud800" not in state(text)[0]
    assert state(whole)[0] == {5: 1, 1: 1, 2: 1, 0: 1}
    assert NAN not in state(real)[0]
    assert state(real)[0][0.0] == 1
    assert state(day)[0][19860] == 1
    numpy = MisraGries(9, "int64")
    numpy.update([np.int8(3), np.float32(4.0), np.bool_(True), np.uint64(2**64 - 1), np.float64(2.5)])
    assert state(numpy)[0] == {3: 1, 4: 1, 1: 1}


def test_missing_users_have_no_rows() -> None:
    users = [NAN, pd.NaT, None, np.float32("nan"), "u", pa.scalar("u")]
    assert state(MisraGries.from_columns(5, users, ["a"] * 6)) == ({"a": 1}, 0)


@pytest.mark.parametrize(
    ("kind", "value", "key"),
    [
        ("string", "tea", "tea"), ("string", "höher", "höher"), ("int64", 5, 5), ("uint64", 2**64 - 1, 2**64 - 1),
        ("float64", 0.5, 0.5), ("date32", DAY, 19860), ("bool", True, True), ("binary", b"\xff", b"\xff"),
        (pa.decimal128(9, 2), decimal.Decimal("1.50"), decimal.Decimal("1.50")),
    ],
)  # fmt: skip
def test_arrow_scalars_are_their_values(kind: Any, value: object, key: Hashable) -> None:
    sketch = MisraGries(5, kind)
    arrow = kind if isinstance(kind, pa.DataType) else pa.type_for_alias(kind)
    sketch.update([pa.scalar(value, arrow), pa.scalar(None, arrow)])
    sketch.update(pa.array([value, value, None], arrow))
    sketch.update_columns([1, 2], [pa.scalar(value, arrow), None])
    assert state(sketch) == ({key: 3}, 0)


def test_arrow_scalars_of_another_type() -> None:
    text, day, number, real = (MisraGries(9, kind) for kind in ("string", "date32", "int64", "float64"))
    for sketch in (text, day, number, real):
        sketch.update([pa.scalar(5), pa.scalar("2024-05-17"), pa.scalar(NAN), pa.scalar([1, 2])])
        sketch.update(pa.array(["tea"]).dictionary_encode())
    assert state(text)[0].keys() == {"5", "2024-05-17", "[1,2]", "tea"}
    # A text is not a date; a number is the day of that number.
    assert (state(day)[0], state(number)[0], state(real)[0]) == ({5: 1}, {5: 1}, {5.0: 1})
    exact = MisraGries(9, pa.timestamp("ns"))
    exact.update([pa.scalar(1, pa.timestamp("ns")), pa.scalar(1, pa.timestamp("us")), pd.Timestamp(7, unit="ns")])
    assert state(exact)[0] == {1: 1, 1000: 1, 7: 1}
    # Python has no times of a nanosecond.
    clock = MisraGries(9, pa.time64("ns"))
    clock.update([pa.scalar(1, pa.time64("ns")), pa.scalar(1001, pa.time64("ns"))])
    assert state(clock)[0] == {1: 1, 1001: 1}


@pytest.mark.parametrize(
    ("missing", "item", "kind"),
    [(NAN, 1.0, pa.float64()), (NAN, 0.5, pa.float32()), (b"\xff\xfe", b"tea", pa.string())],
    ids=["float64", "float32", "text"],
)
def test_missing_values_take_no_rank(missing: Any, item: object, kind: pa.DataType) -> None:
    """20 users have a value that is not an item, and 10 have an item: it keeps its 10 in a sketch of size 1."""
    values = [missing] * 20 + [item] * 10
    items = invalid_text(values) if kind == pa.string() else pa.array(values, kind)
    table = pa.table({"user": range(30), "item": items, "other": [n % 3 for n in range(30)]})
    key = "tea" if kind == pa.string() else item
    # With a second column there are three items, of 4, 3 and 3 users.
    for columns, expected in ((["item"], ({key: 10}, 0)), (["item", "other"], ({(key, 2): 1}, 3))):
        updated = MisraGries(1, {name: table.schema.field(name).type for name in columns})
        updated.update_columns(table["user"], tuple(table.column(name) for name in columns))
        batched = build_batches(table.to_batches(7), 1, user="user", item=columns, schema=table.schema)
        assert state(updated) == state(batched) == expected
        assert MisraGries.from_bytes(updated.to_bytes()).to_bytes() == updated.to_bytes()
        if kind != pa.string():
            assert state(build(table, 1, user="user", item=columns, types="fixed")) == expected


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_both_zeros_are_one_item(kind: pa.DataType) -> None:
    column = pa.array([-0.0, 0.0, -0.0, 1.0], kind)
    for order in ([0, 1, 2, 3], [1, 0, 2, 3]):
        sketch = MisraGries.from_columns(1, [1, 2, 3, 4], column.take(pa.array(order)))
        assert state(sketch) == ({0.0: 2}, 1)
        assert str(next(iter(sketch._as_table()))) == "0.0"


# Secrets, copies and bounds.


def test_a_sketch_prints_only_its_size_and_can_be_copied() -> None:
    sketch = MisraGries.from_columns(7, [1], ["my secret"])
    assert repr(sketch) == str(sketch) == "MisraGries(k=7)"
    assert repr(sketch._as_counters()) == "Counters(secret)"
    other = pickle.loads(pickle.dumps(sketch))
    third = copy.deepcopy(sketch)
    other.update(["my secret"])
    assert state(sketch) == state(third) == ({"my secret": 1}, 0)
    assert state(other) == ({"my secret": 2}, 0)


@pytest.mark.parametrize("pairs", [0, 5, np.int64(7), 10**30])
def test_error_bound(pairs: int) -> None:
    assert MisraGries(4).error_bound(pairs) == int(pairs) // 5


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: MisraGries(0), "k must be between 1"),
        (lambda: MisraGries(2.5), "k must be a whole number"),  # type: ignore[arg-type]
        (lambda: MisraGries(1, "texts"), "Arrow type such as 'string'.*'texts'"),
        (lambda: MisraGries(1, pa.list_(pa.int8())), "list<.*cannot be items of a sketch"),
        (lambda: MisraGries(1, {"": "string"}), "different names"),
        (lambda: MisraGries(1).update("tea"), "the set of a user's items, not str"),
        (lambda: MisraGries(1).update(5), "not int"),  # type: ignore[arg-type]
        (lambda: MisraGries(1).update_columns([1], pa.array([1])), "type large_string in 'item'.*type int64"),
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
def test_refused(action: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        action()


# Whole inputs.


def log() -> pa.Table:
    choose = random.Random(5)
    return table_of([(user, f"i{int(choose.paretovariate(0.8))}") for user in range(400) for _ in range(4)])


def exact(table: pa.Table, k: int) -> Sketch:
    users: dict[int, set[Hashable]] = {}
    for user, item in zip(*(column.to_pylist() for column in table.columns), strict=True):
        users.setdefault(user, set()).add(item)
    return with_users(({}, 0), users.values(), k)


def test_build_counts_all_users_of_all_files_as_one_batch(tmp_path: Path) -> None:
    table = log().slice(0, 1500)
    # A user's events are in several files.
    for number in range(3):
        pq.write_table(table.slice(number * 500, 500), tmp_path / f"{number}.parquet")
    for given in (tmp_path, [tmp_path / f"{number}.parquet" for number in range(3)], table, table.to_pandas()):
        assert state(build(given, 10, **NAMES)) == exact(table, 10)
    assert state(build(table, 10**6, **NAMES)) == exact(table, 10**6)
    assert build(table, 10, **NAMES).to_bytes() == MisraGries.from_columns(10, *table.columns).to_bytes()
    renamed = build(table, 10, user="user", item="what=item", where="item <> 'i1'")
    assert renamed.kind.names == ("what",)
    assert "i1" not in state(renamed)[0]
    assert state(build(table.slice(0, 0), 10, **NAMES)) == ({}, 0)
    with pytest.raises(InvalidParameter, match="both the user and the item"):
        build(table, 10, user="user", item="user")
    with pytest.raises(InputError, match="no column 'nobody'"):
        build(table, 10, user="nobody", item="item")


def test_build_with_types_and_several_columns() -> None:
    columns = {"user": [1, 2, 3, 4], "number": pa.array([1, 1, 2, None], pa.int32()), "day": [DAY] * 4}
    sketch = build(pa.table(columns), 3, user="user", item=["number", "day"], types="fixed")
    assert [str(kind) for kind in sketch.kind.types] == ["int64", "date32[day]"]
    assert sorted(sketch._as_counters().counts.tolist()) == [1, 2]


def test_build_reads_nan_in_files_as_missing(tmp_path: Path) -> None:
    choose = random.Random(2)
    rows = [(user, choose.choice([NAN, -0.0, 0.0, 1.0, 2.0, 3.0])) for user in range(300) for _ in range(2)]
    table = table_of(rows)
    pq.write_table(table, tmp_path / "log.parquet")
    for size in range(1, 6):
        sketch = build(tmp_path / "log.parquet", size, **NAMES)
        assert sketch.to_bytes() == MisraGries.from_columns(size, table["user"], table["item"]).to_bytes()
        assert sketch._subtracted <= sketch.error_bound(sum(value == value for _, value in set(rows)))


@pytest.mark.parametrize("k", [1, 20, 60])
def test_build_drops_small_counts_on_the_way(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The histogram comes in batches of one row, with room for few."""
    monkeypatch.setattr(import_module("dphist.sketch.build"), "SPARE", 2)
    monkeypatch.setattr("dphist.counting.duckdb.ROWS", 1)
    choose = random.Random(k)
    sets = [{f"i{int(choose.paretovariate(0.5)) % 500}" for _ in range(5)} for _ in range(200)]
    table = table_of([(user, item) for user, items in enumerate(sets) for item in items])
    assert state(build(table, k, **NAMES)) == with_users(({}, 0), sets, k)


@pytest.mark.parametrize("item", [None, 5, [5], [], {"item"}, ["item", None]], ids=str)
def test_column_names_are_texts(item: Any) -> None:
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


# Streams of batches.


def test_partitions_of_batches_are_merged_to_one_sketch() -> None:
    table, sketches = log(), set()
    for size in (7, 100, 5000):
        parts = []
        for number in range(4):
            rows = table.filter(pa.array(as_numpy(table["user"].combine_chunks()) % 4 == number))
            batches = rows.to_batches(max_chunksize=size)
            parts.append(build_batches(iter(batches), 10, **NAMES, schema=table.schema))
        empty = build_batches([], 10, **NAMES, schema=table.schema)
        whole = MisraGries.merge(*parts)
        sketches |= {whole.to_bytes(), MisraGries.merge(whole, empty).to_bytes()}
    assert len(sketches) == 1, "it does not matter where batches are cut"
    truth = exact(table, 10**6)[0]
    counters, subtracted = state(whole)
    assert len(counters) <= 10
    assert all(counters.get(item, 0) <= n <= counters.get(item, 0) + subtracted for item, n in truth.items())


TABLE = pa.table({"u": [1, 2], "i": ["a", "b"], "n": [1, 2]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"item": "u"}, "'u' cannot be both the user and the item"),
        ({"item": "nothing"}, "the schema has no column 'nothing'"),
        ({"batches": [TABLE.select(["u"]).to_batches()[0]]}, "a batch has no column 'i'"),
        ({"batches": TABLE.rename_columns(["u", "i", "i"]).to_batches()}, "a batch has no column 'i', or several"),
        ({"batches": TABLE.rename_columns(["u", "n", "i"]).to_batches()}, "int64 in 'i', but .* has large_string"),
        ({"batches": TABLE.rename_columns(["i", "u", "n"]).to_batches()}, "string in 'u', but .* has int64"),
        ({"batches": [TABLE]}, "Arrow record batches, not Table"),
        ({"batches": [5]}, "Arrow record batches, not int"),
        ({"schema": ["u", "i"]}, "schema must be that of the Arrow batches, not list"),
        ({"names": ["a", "b"]}, "has 1 columns, but 2 names"),
        ({"names": [""]}, "different names"),
        ({"k": 0}, "k must be between"),
    ],
)
def test_bad_batches(options: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {
        "batches": TABLE.to_batches(),
        "k": 5,
        "user": "u",
        "item": "i",
        "schema": TABLE.schema,
    }
    assert state(build_batches(**good)) == ({"a": 1, "b": 1}, 0)
    with pytest.raises(InvalidParameter, match=message) as raised:
        build_batches(**{**good, **options})
    assert "\n" not in str(raised.value)


def test_batches_may_differ_in_what_does_not_matter() -> None:
    """Other columns, orders and metadata, other text types, and no type where there are no values."""
    noted = TABLE.schema.field("i").with_metadata({"a": "b"}).with_nullable(False)
    other = pa.schema([TABLE.schema.field("u"), noted], metadata={"c": "d"})
    batches = [
        *TABLE.to_batches(), pa.record_batch([[3], ["b"]], schema=other),
        pa.record_batch({"i": ["b"], "more": [1], "u": [4]}), pa.record_batch({"i": pa.nulls(2), "u": [5, 6]}),
        pa.record_batch({"i": pa.array(["b"], pa.large_string()), "u": pa.array([7], pa.int8())}),
        pa.record_batch({"i": pa.array(["b"]).dictionary_encode(), "u": [8]}),
    ]  # fmt: skip
    sketch = build_batches(iter(batches), 5, user="u", item="i", schema=TABLE.schema, names="what")
    assert state(sketch) == ({"a": 1, "b": 5}, 0)
    assert sketch.kind.names == ("what",)
