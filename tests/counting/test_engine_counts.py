"""Counts against brute force; missing values, floats, odd names, thresholds and ranks."""

from __future__ import annotations

import datetime
import decimal
import math
import random
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import strategies as st

from dphist.counting.task import Column, Events, Resources
from dphist.errors import InputError
from engine_cases import (
    EACH_ENGINE,
    EMBEDDED,
    KEY,
    QUICK_ON_DUCKDB,
    Factory,
    Rows,
    by_engine,
    counts_by_hand,
    drawn,
    events,
    histogram,
    in_memory,
    is_spark,
    kept_by_hand,
    rows_of,
    table_of,
    task,
    written,
)

NAMES = ['a"b', "x;--", "née 你", " ", "'", "select", "c0", "dphist_0", "^a.*$", "{}", "%s"]
ODDER = [*NAMES, "a.b", "`x`", "a``", "value", "\\"]
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3)
some_users = st.none() | st.integers(-3, 4)
tables = st.lists(
    st.tuples(some_users, st.none() | texts | st.sampled_from("abc"), st.none() | st.booleans()), max_size=30
)


def made(rows: Rows) -> Any:
    return table_of(rows, user=pa.int64(), item=pa.string(), flag=pa.bool_())


@EACH_ENGINE
@drawn(rows=tables, nulls=st.booleans(), lower=st.integers(0, 3))
def test_counts_match_brute_force(engine: Factory, rows: Rows, nulls: bool, lower: int) -> None:
    one = counts_by_hand(kept_by_hand([row[:2] for row in rows], None, nulls))
    two = counts_by_hand(kept_by_hand(rows, None, nulls))
    more: dict[str, Any] = {"null_items": nulls, "lower_threshold": lower}
    table = made(rows)
    assert histogram(engine, task(table, **more)) == {item: n for item, n in one.items() if n >= lower}
    assert histogram(engine, task(table, items=("item", "flag"), **more)) == {
        item: n for item, n in two.items() if n >= lower
    }


@EACH_ENGINE
@drawn(rows=tables, nulls=st.booleans(), cap=st.integers(1, 4))
def test_portable_choice_matches_brute_force(engine: Factory, rows: Rows, nulls: bool, cap: int) -> None:
    # Booleans are written in lower case in SQL.
    spelled = [(user, item, None if flag is None else str(flag).lower()) for user, item, flag in rows]
    expected = counts_by_hand(kept_by_hand(spelled, cap, nulls, KEY))
    wanted = task(made(rows), items=("item", "flag"), null_items=nulls, max_items_per_user=cap, portable=True)
    found = histogram(engine, wanted)
    assert {
        (item, None if flag is None else str(flag).lower()): n for (item, flag), n in found.items()
    } == expected


@QUICK_ON_DUCKDB
@drawn(
    many=30, rows=tables, nulls=st.booleans(), cap=st.integers(1, 4), portable=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_limit_keeps_the_same_items_in_any_order_of_rows(
    engine: Factory, rows: Rows, nulls: bool, cap: int, portable: bool, seed: int
) -> None:
    # With the user as an item column, the histogram shows which user kept which item.
    full = kept_by_hand([(user, user, item) for user, item, _ in rows], None, nulls)
    more: dict[str, Any] = {"null_items": nulls, "max_items_per_user": cap, "portable": portable}
    found = histogram(engine, task(made(rows), items=("user", "item"), **more))
    assert set(found.values()) <= {1}
    for user, items in full.items():
        kept = {item for item in found if item[0] == user}
        assert kept <= items
        assert len(kept) == min(cap, len(items))
    shuffled = rows + rows[: len(rows) // 2]
    random.Random(seed).shuffle(shuffled)
    plain = histogram(engine, task(made(rows), **more))
    assert sum(plain.values()) == sum(
        min(cap, len(items)) for items in kept_by_hand([row[:2] for row in rows], None, nulls).values()
    )
    for threads in (2,) if is_spark(engine) else (1, 2):  # a session of Spark has its own
        again = histogram(engine, task(made(shuffled), **more), Resources(threads=threads))
        assert again == plain


@EACH_ENGINE
def test_rank_and_order(engine: Factory) -> None:
    rows = [(user, item) for item in range(40) for user in range(item * 7 % 13 + 1)]
    table = pa.table({"user": [u for u, _ in rows], "item": [i for _, i in rows]})
    counts = sorted((i * 7 % 13 + 1 for i in range(40)), reverse=True)
    for rank in (7, 41) if is_spark(engine) else (1, 2, 7, 40, 41, 1000):
        with engine(Resources()).count(task(table, rank=rank)) as counted:
            assert counted.at_rank == (counts[rank - 1] if rank <= 40 else 0)
            assert sum(batch.num_rows for batch in counted.batches()) == 40
    for more in ({"rank": 3},) if is_spark(engine) else ({"rank": 3}, {"max_items_per_user": 100}):
        found = rows_of(engine, task(table, ordered=True, **more))
        assert [item for item, _ in found] == list(range(40))
    # Counts below the threshold have no rank.
    with engine(Resources()).count(task(table, rank=30, lower_threshold=10)) as counted:
        assert counted.at_rank == 0


@EACH_ENGINE
def test_zeros_are_equal_and_nans_are_equal(engine: Factory) -> None:
    odd = [0.0, -0.0, math.nan, -math.nan, 1.5]
    for kind in (pa.float64(),) if is_spark(engine) else (pa.float64(), pa.float32()):
        table = pa.table({"user": [1, 2, 3, 4, 5], "item": pa.array(odd, kind)})
        found = {repr(item): n for item, n in histogram(engine, task(table)).items()}
        assert found == {"0.0": 2, "nan": 2, "1.5": 1}
        table = pa.table({"user": pa.array(odd, kind), "item": ["a"] * 5})
        assert histogram(engine, task(table)) == {"a": 3}
        assert histogram(engine, task(table, max_items_per_user=1)) == {"a": 3}


@EMBEDDED
@pytest.mark.parametrize("kind", ["duckdb", "sqlite", "dataset", "pandas", "polars"])
def test_odd_names_of_columns(engine: Factory, tmp_path: Path, kind: str) -> None:
    table = pa.table({name: [f"is {name}"] for name in NAMES})
    source = written(table, tmp_path, kind)
    for user, item in zip(NAMES[::2], NAMES[1::2], strict=False):
        assert histogram(engine, task(source, user=user, items=item)) == {f"is {item}": 1}


@by_engine("kind", ["parquet", "csv", "jsonl", "table"], ["parquet"], ["csv", "jsonl"])
def test_all_odd_names_at_once(engine: Factory, tmp_path: Path, kind: str) -> None:
    table = pa.table({name: [f"is {name}", None] for name in ODDER})
    for user, *items in (ODDER,) if is_spark(engine) else (ODDER, ODDER[::-1]):
        wanted = task(written(table, tmp_path, kind), user=user, items=tuple(items))
        assert histogram(engine, wanted) == {tuple(f"is {name}" for name in items): 1}
    if is_spark(engine):
        where = " AND ".join(f"`{name.replace('`', '``')}` LIKE 'is %'" for name in ODDER)
        wanted = task(written(table, tmp_path, kind), user="c0", items="value", where=where)
        assert histogram(engine, wanted) == {"is value": 1}


@by_engine(
    "kind",
    ["parquet", "csv", "jsonl", "dataset", "pandas", "lazy"],
    ["parquet"],
    ["jsonl", "csv"],
)
def test_names_that_differ_in_case_are_different_columns(engine: Factory, tmp_path: Path, kind: str) -> None:
    table = pa.table({"User": ["a", "b"], "user": ["c", "c"], "USER": ["d", None], "item": ["x", "x"]})
    for column, expected in (("User", 2), ("user", 1)):
        assert histogram(engine, task(written(table, tmp_path, kind), user=column)) == {"x": expected}
    if kind == "jsonl":  # any name is a column
        assert histogram(engine, task(written(table, tmp_path, kind), user="uSER")) == {}
    else:
        with pytest.raises(
            InputError,
            match=r"no column 'uSER' \(did you mean 'User' or 'user' or 'USER'\?\); its columns are .*'user'",
        ):
            engine(Resources()).check(task(written(table, tmp_path, kind), user="uSER"))
        with pytest.raises(InputError, match=r"no column 'user, item' \(give each column on its own\)"):
            engine(Resources()).check(task(written(table, tmp_path, kind), user="user, item"))
    condition = task(written(table, tmp_path, kind), user="User", where="user = 'c' AND item = 'x'")
    assert histogram(engine, condition) == {"x": 2}
    with pytest.raises(InputError, match="cannot tell apart"):
        engine(Resources()).check(task(written(table, tmp_path, kind), where="user = User"))


@QUICK_ON_DUCKDB
def test_a_condition_may_name_columns_like_our_own(engine: Factory) -> None:
    names = ["dphist_0", "dphist__1", "DPHIST___0", "u", "i0", "c0"]
    table = pa.table({"user": [1, 2], "item": ["a", "b"], **{name: [5, 6] for name in names}})
    for name in names:
        assert histogram(engine, task(table, where=f"{name} = 5")) == {"a": 1}
    assert histogram(engine, task(table, where=" AND ".join(f"{name} = 6" for name in names))) == {"b": 1}


@QUICK_ON_DUCKDB
def test_a_column_can_be_user_and_item_at_once(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 2]})
    wanted = task(table, items="user", max_items_per_user=5)
    assert histogram(engine, wanted) == {1: 1, 2: 1}


@EACH_ENGINE
def test_types_are_kept(engine: Factory) -> None:
    zone = datetime.UTC
    values: list[tuple[Any, Any]] = [
        (pa.int8(), -3), (pa.uint64(), 2**64 - 1), (pa.date32(), datetime.date(2024, 2, 29)), (pa.bool_(), True),
        (pa.timestamp("us"), datetime.datetime(2024, 1, 1, 1, 2, 3, 4)), (pa.binary(), b"\xff\0"),
        (pa.decimal128(10, 2), decimal.Decimal("1.50")), (pa.large_string(), "é"), (pa.string_view(), "view"),
        (pa.timestamp("us", tz="Europe/Berlin"), datetime.datetime(2024, 1, 1, tzinfo=zone)),
        (pa.time64("us"), datetime.time(1, 2, 3)), (pa.dictionary(pa.int32(), pa.string()), "word"),
    ]  # fmt: skip
    columns = {f"item {k}": pa.array([value], kind) for k, (kind, value) in enumerate(values)}
    # Spark has no times of a day.
    expected = tuple(str(v) if is_spark(engine) and isinstance(v, datetime.time) else v for _, v in values)
    wanted = task(pa.table({"user": [1], **columns}), items=tuple(columns), ordered=True, max_items_per_user=1)
    assert histogram(engine, wanted) == {expected: 1}
    identifier = uuid.uuid4()
    relation = in_memory(pa.table({"user": [1], "item": [str(identifier)]}), "relation")
    assert histogram(engine, task(relation.select('"user", item::UUID AS item'))) == {str(identifier): 1}
    for nested in (pa.list_(pa.int64()), pa.struct([("a", pa.int64())])):
        with pytest.raises(InputError, match="'user' holds lists or structures"):
            engine(Resources()).check(task(pa.table({"user": pa.nulls(1, nested), "item": [1]})))


@QUICK_ON_DUCKDB
def test_lists_and_structures_are_counted_as_json(engine: Factory) -> None:
    lists = [["a, b"], ["a", "b"], ["a", "b"], [], None]
    table = pa.table({"user": [1, 2, 3, 4, 5], "item": pa.array(lists, pa.list_(pa.string()))})
    assert histogram(engine, task(table)) == {'["a, b"]': 1, '["a","b"]': 2, "[]": 1}
    table = pa.table({"user": [1, 2, 2], "item": [{"x": 1, "y": "z"}, {"x": 1, "y": "z"}, {"x": None, "y": "z"}]})
    assert histogram(engine, task(table, max_items_per_user=2)) == {'{"x":1,"y":"z"}': 2, '{"x":null,"y":"z"}': 1}


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
    with pytest.raises(InputError, match="no column 'p'"):
        engine(Resources()).check(task(table, public_items=public(table)))


@QUICK_ON_DUCKDB
def test_a_check_does_not_consume_a_list(engine: Factory) -> None:
    table = pa.table({"user": [1, 2], "item": ["a", "b"]})
    listed = Events(pa.table({"p": ["b", "c"]}).to_reader(), "-", (Column("p", "p"),))
    engine(Resources()).check(task(table, public_items=listed))
    assert histogram(engine, task(table, public_items=listed)) == {"b": 1, "c": 0}
