"""Sums against brute force: independent of row order, and a function of each user's own rows."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from dphist.counting.task import HALF_STEPS, Resources, Value
from dphist.errors import InputError, InvalidParameter
from engine_cases import (
    EACH_ENGINE,
    KEY,
    QUICK_ON_DUCKDB,
    WITHOUT_CLUSTER,
    Factory,
    Rows,
    by_engine,
    drawn,
    events,
    histogram,
    is_refused,
    is_spark,
    on_engines,
    rows_of,
    task,
    written,
)
from sum_cases import ODD, TEXTS, by_hand, made, own_steps, sums, value

cells = {
    "x": st.none() | st.sampled_from(ODD) | st.floats(),
    "n": st.none() | st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1]) | st.integers(-9, 9),
    "t": st.none() | st.sampled_from(TEXTS) | st.floats(-9, 9).map(repr),
    "b": st.none() | st.booleans(),
    "d": st.none() | st.decimals(-99, 99, places=9) | st.just(decimal.Decimal("12345678901234567890123456789.5")),
}
tables = st.lists(
    st.tuples(st.none() | st.integers(-2, 3), st.none() | st.sampled_from("abcd"), *cells.values()), max_size=40
)
some_bounds = st.sampled_from([
    (0, 1), (-1, 1), (0, 100), (Fraction(-1, 3), Fraction(22, 7)), (-(10**15), 10**15), (100, 101), (-3, -2),
    (Fraction(1, 10**9), Fraction(2, 10**9)), (-1, 10**300),
])  # fmt: skip
some_values = st.lists(st.tuples(st.sampled_from(["user", *cells]), some_bounds), min_size=1, max_size=4).map(
    lambda given: tuple(value(column, *bounds) for column, bounds in given)
)


@EACH_ENGINE
@drawn(
    many=40, rows=tables, values=some_values, nulls=st.booleans(), cap=st.none() | st.integers(1, 3),
    lower=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_sums_match_brute_force_in_any_order(
    engine: Factory, rows: Rows, values: tuple[Value, ...], nulls: bool, cap: int | None, lower: int, seed: int
) -> None:
    expected = {item: n for item, n in by_hand(rows, values, cap, nulls, KEY).items() if n[0] >= lower}
    shuffled = random.Random(seed).sample(rows, len(rows))
    more: dict[str, Any] = {"null_items": nulls, "max_items_per_user": cap, "lower_threshold": lower}
    for given in (rows, shuffled):
        assert sums(engine, made(given), values, portable=True, **more) == expected


@QUICK_ON_DUCKDB
def test_a_sum_is_near_the_sum_of_clamped_numbers(engine: Factory) -> None:
    """With exact fractions: rounding changes a user's sum by less than a step, here 3/2^20."""
    generator = random.Random(1)
    rows = [(generator.randrange(50), generator.choice("ab"), generator.uniform(-4, 4)) for _ in range(400)]
    table = pa.table({name: [row[k] for row in rows] for k, name in enumerate(("user", "item", "x"))})
    wanted = value("x", -1, 5)
    for item, (users, steps) in sums(engine, table, (wanted,)).items():
        own: dict[int, Fraction] = defaultdict(Fraction)
        for user, its, x in rows:
            if its == item:
                own[user] += Fraction(x)
        exact = sum(min(max(total, wanted.low), wanted.high) for total in own.values())
        assert users == len(own)
        assert abs(users * wanted.low + steps * wanted.step - exact) < users * wanted.step


@QUICK_ON_DUCKDB
def test_no_order_of_rows_changes_a_sum(engine: Factory) -> None:
    """Large numbers that cancel: with doubles the order would decide whether small ones between them are lost."""
    wanted = value("x", 0, 2)
    small = 7.0 / 2**30
    upwards = [math.inf] * 64 + [small] * 3000 + [-math.inf] * 64
    fine = [max(-(2.0**50), min(2.0**50, x * wanted.scale)) for x in upwards]
    one, other = sum(fine), sum(sorted(fine, key=abs))
    assert abs(one - other) > 4 * 1024  # it would show
    for order in (
        upwards,
        upwards[::-1],
        sorted(upwards, key=abs),
        random.Random(2).sample(upwards, len(upwards)),
    ):
        # The rows of a second user lie between.
        users, cells = [1, 2] * len(order), [x for cell in order for x in (cell, 1.0)]
        table = pa.table({"user": users, "item": ["a"] * len(users), "x": cells})
        assert sums(engine, table, (wanted,)) == {"a": (2, own_steps(upwards, wanted) + 2 * HALF_STEPS)}


@WITHOUT_CLUSTER
def test_any_number_of_rows_fits(engine: Factory) -> None:
    """The largest rows, so many that their sum exceeds 64 bits."""
    rows = 10_000
    table = pa.table({"user": [1, 2] * rows, "item": ["a", "b"] * rows, "x": [math.inf, -math.inf] * rows})
    assert rows * 2**50 > 2**63
    assert sums(engine, table, (value("x"),)) == {"a": (1, 2 * HALF_STEPS), "b": (1, 0)}


@by_engine("cap", [None, 4], [4], [None])
def test_a_user_changes_their_own_items_by_a_bounded_amount(engine: Factory, cap: int | None) -> None:
    generator = random.Random(3)
    rows = [
        (generator.randrange(12), generator.choice("abcdefgh"), generator.choice([*ODD, generator.uniform(-9, 9)]))
        for _ in range(150)
    ]
    values = (value("x", -2, 2), value("x", 0, 10**6))

    def table(without: int | None) -> Any:
        left = [row for row in rows if row[0] != without]
        return pa.table({name: [row[k] for row in left] for k, name in enumerate(("user", "item", "x"))})

    more: dict[str, Any] = {"max_items_per_user": cap}
    full, each = (sums(engine, table(None), values, items=i, **more) for i in ("item", ("user", "item")))
    for user in (5,) if is_spark(engine) else range(12):
        without = sums(engine, table(user), values, **more)
        own = {item for who, item, _ in rows if who == user}
        touched = 0
        for item in full:
            moved = [a - b for a, b in zip(full[item], without.get(item, (0, 0, 0)), strict=True)]
            assert moved == [0, 0, 0] if item not in own else moved[0] in (0, 1)
            assert all(0 <= move <= 2 * HALF_STEPS * moved[0] for move in moved[1:])
            touched += moved[0]
        assert touched == min(cap or 99, len(own))
        # With the user as an item column, each row belongs to one user: those of others do not change.
        left = sums(engine, table(user), values, items=("user", "item"), **more)
        assert left == {pair: numbers for pair, numbers in each.items() if pair[0] != user}


@QUICK_ON_DUCKDB
@pytest.mark.parametrize("portable", [False, True])
def test_values_do_not_affect_the_choice_of_items(engine: Factory, tmp_path: Path, portable: bool) -> None:
    generator = random.Random(4)
    rows = [(user, generator.randrange(30), generator.gauss(0, 9)) for user in range(60) for _ in range(9)]
    table = pa.table({name: [row[k] for row in rows] for k, name in enumerate(("user", "item", "x"))})
    pq.write_table(table, tmp_path / "e.parquet")
    more: dict[str, Any] = {"items": ("user", "item"), "max_items_per_user": 3, "portable": portable}
    alone = histogram(engine, task(tmp_path / "e.parquet", **more))
    for source in (table, tmp_path / "e.parquet"):
        found = sums(engine, source, (value("x", -5, 5), value("x", 0, 1)), **more)
        assert {item: n[0] for item, n in found.items()} == alone
        for user, item in alone:  # the sum includes all rows of a chosen item
            own = [x for who, its, x in rows if (who, its) == (user, item)]
            assert found[user, item][1] == own_steps(own, value("x", -5, 5))


@QUICK_ON_DUCKDB
def test_public_lists_ranks_and_order(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 2, 3], "item": ["a", "a", "b", "a"], "x": [1.0, 2.0, 40.0, None]})
    listed = events(pa.table({"item": ["b", "a", "zz"]}))
    values = (value("x"), value("x", -100, 100))
    rows: list[tuple[str, int, list[list[Any]]]] = [
        ("a", 2, [[1.0, 2.0], [None]]), ("b", 1, [[40.0]]), ("zz", 0, []),
    ]  # fmt: skip
    expected = {
        item: (n, *(sum(own_steps(cells, wanted) for cells in own) for wanted in values)) for item, n, own in rows
    }
    for more in ({"max_items_per_user": 1, "rank": 2}, {"ordered": True}):
        found = sums(engine, table, values, public_items=listed, **more)
        assert found == expected
        plain = sums(engine, table, values, **more)
        assert plain == {item: n for item, n in expected.items() if n[0]}
    assert list(found) == ["a", "b", "zz"]
    with engine(Resources()).count(task(table, values=values, rank=2)) as counted:
        assert counted.at_rank == 1
        assert [field.type for field in counted.schema] == [pa.string(), pa.int64(), pa.int64(), pa.int64()]
        assert counted.schema.names == ["i0", "users", "v0", "v1"]


@on_engines("spark-local")
def test_a_histogram_of_spark_keeps_sums_apart_from_items(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 2], "item": ["a", "b", "a"], "x": [1, 2, 3]})
    # A single entry: the digest includes the number of the entry, which may differ between two counts.
    listed = events(pa.table({"item": ["a"]}))
    for more in ({}, {"public_items": listed}):
        made: list[dict[Any, Any]] = []
        for values in ((), (value("x"), value("item", -1, 1))):
            spark: Any = engine(Resources())
            with spark.count(task(table, values=values, **more)) as counted:
                assert counted.items() == ["i0"]
                digests = counted.with_digests()
                assert digests.columns == ["i0", "users", *(f"v{k}" for k in range(len(values))), "digest"]
                made.append({row["i0"]: row["digest"] for row in digests.collect()})
        assert made[0] == made[1]  # the digest depends on the item and its count only


@WITHOUT_CLUSTER
def test_both_engines_read_the_same_texts_as_numbers(engine: Factory) -> None:
    generator = random.Random(5)
    letters = "0123456789" * 3 + "+-..eE \t\n\r\f\v" + "_xfdnNaI,\u00a0\u2028\u0661\0"
    drawn_texts = ["".join(generator.choices(letters, k=generator.randrange(7))) for _ in range(1500)]
    longer = [
        f"{generator.uniform(-9, 9)!r}e{generator.choice([0, 300, generator.randrange(-330, 330)])}"
        for _ in range(300)
    ]
    longer += [
        "9" * 400, "0." + "0" * 400 + "1", "1e" + "9" * 30, "0e" + "9" * 30, "1" * 3000 + "x", " " * 3000 + "5",
    ]  # fmt: skip
    texts = [*TEXTS, *drawn_texts, *longer]
    table = pa.table({"user": range(len(texts)), "item": range(len(texts)), "t": texts})
    values = (value("t", -5, 5), value("t", -(10**300), 10**300))
    found = sums(engine, table, values)
    assert found == {k: (1, *(own_steps([text], wanted) for wanted in values)) for k, text in enumerate(texts)}
    assert len({steps for _, steps, _ in found.values()}) > 50


@QUICK_ON_DUCKDB
def test_numbers_become_the_nearest_doubles(engine: Factory) -> None:
    generator = random.Random(6)

    def some(digits: int, places: int) -> list[decimal.Decimal]:
        context = decimal.Context(prec=60)
        drawn = [generator.randrange(-(10**digits) + 1, 10**digits) for _ in range(300)]
        return [decimal.Decimal(n).scaleb(-places, context) for n in drawn]

    kinds: list[tuple[Any, list[Any]]] = [
        (pa.decimal128(digits, places), some(digits, places))
        for digits, places in ((4, 2), (9, 9), (15, 7), (16, 3), (18, 18), (19, 1), (38, 0), (38, 19), (38, 37))
    ]
    kinds += [
        (pa.uint64(), [2**64 - 1, 2**63 + 1025, 0]), (pa.int8(), [-128, 127]), (pa.uint32(), [2**32 - 1]),
        (pa.float32(), [0.1, math.inf, math.nan]), (pa.bool_(), [True, False, None]), (pa.null(), [None]),
        (pa.int64(), [generator.randrange(-(2**63), 2**63) for _ in range(300)]), (pa.large_string(), ["7", "x"]),
    ]  # fmt: skip
    for kind, given in kinds:
        array = pa.array(given, kind)
        table = pa.table({"user": range(len(given)), "item": range(len(given)), "x": array})
        # Fine enough around the largest that a last bit shows.
        most = max(
            (abs(Fraction(c)) for c in array.to_pylist() if isinstance(c, (int, decimal.Decimal))), default=1
        )
        near = Fraction(float(most or 1))
        values = (value("x", -near, near), value("x", near * (1 - Fraction(1, 2**19)), near))
        found = sums(engine, table, values)
        assert found == {
            k: (1, *(own_steps([cell], wanted) for wanted in values)) for k, cell in enumerate(array.to_pylist())
        }, kind


@WITHOUT_CLUSTER
def test_other_types_and_missing_columns_are_refused(engine: Factory) -> None:
    kinds: list[tuple[Any, Any]] = [
        (pa.date32(), datetime.date(2024, 1, 1)), (pa.timestamp("us"), datetime.datetime(2024, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime.datetime(2024, 1, 1)), (pa.binary(), b"1"),
        (pa.list_(pa.int64()), [1]), (pa.struct([("a", pa.int64())]), {"a": 1}),
    ]  # fmt: skip
    for kind, cell in kinds:
        table = pa.table({"user": [1], "item": ["a"], "x": pa.array([cell], kind)})
        wanted = task(table, values=(value("x"),))
        for action in (engine(Resources()).check, lambda wanted: rows_of(engine, wanted)):
            with pytest.raises(InputError) as caught:
                action(wanted)
            assert str(caught.value) == "the column 'x' cannot be summed: it holds neither numbers nor text"
    with pytest.raises(InputError, match="no column 'nope'; its columns are 'user', 'item', 'x'"):
        engine(Resources()).check(task(table, values=(value("nope"),)))


@QUICK_ON_DUCKDB
def test_a_column_can_be_user_item_and_value(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 2, 3], "item": [5, 5, 5, 6], "dphist_0": [1, 2, 3, 4], "X0": [9, 9, 9, 9]})
    values = (value("user"), value("item"), value("item", 0, 5), value("dphist_0"), value("X0", 0, 100))
    found = sums(engine, table, values, where="user < 3 AND dphist_0 <> 2 AND item > 0")
    cells: tuple[Any, ...] = (([1], [2]), ([5], [5]), ([5], [5]), ([1], [3]), ([9], [9]))
    steps = [sum(own_steps(own, wanted) for own in users) for users, wanted in zip(cells, values, strict=True)]
    assert found == {5: (2, *steps)}


KINDS = [
    "parquet",
    "csv",
    "jsonl",
    "json",
    "arrow",
    "stream.arrow",
    "duckdb",
    "sqlite",
    "reader",
    "pandas",
    "lazy",
]


@by_engine("kind", [*KINDS, "relation"], ["csv"], ["parquet", "jsonl", "reader", "pandas"])
def test_every_kind_of_input_has_values(engine: Factory, tmp_path: Path, kind: str) -> None:
    numbers = [0.1, 1.5e300, None, -2.5e-7, 12345678.0, 2.0]
    texts = ["1", "x", None, " 2.5", "1e1", "1"]
    table = pa.table({"user": [1, 2, 3, 1, 4, 4], "item": list("aaaabb"), "x": numbers, "t": texts})
    values = (value("x", -1, 1), value("t", 0, 7))
    wanted = task(written(table, tmp_path, kind), values=values)
    if is_refused(engine, wanted, kind):
        return
    own = {"a": ([0, 3], [1], [2]), "b": ([4, 5],)}
    assert sums(engine, wanted.events.source, values) == {
        item: (
            len(users),
            sum(own_steps([numbers[k] for k in rows], values[0]) for rows in users),
            sum(own_steps([texts[k] for k in rows], values[1]) for rows in users),
        )
        for item, users in own.items()
    }


@QUICK_ON_DUCKDB
def test_pandas_objects_are_numbers_by_their_text(engine: Factory) -> None:
    import pandas as pd

    mixed = [1, 2.5, "3", None, float("nan"), True, decimal.Decimal("4.5"), b"5", [6], "x"]
    frame = pd.DataFrame({"user": range(10), "item": range(10), "x": pd.Series(mixed, dtype=object)})
    own = [1, 2.5, 3, None, None, None, 4.5, 35, None, None]  # bytes are written in hexadecimal
    found = sums(engine, frame, (value("x", 0, 50),))
    assert found == {k: (1, own_steps([cell], value("x", 0, 50))) for k, cell in enumerate(own)}


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (10**9, 10**9 + 1, "too close together for numbers of their size"),
        (-(10**9) - 1, -(10**9), "too close together for numbers of their size"),
        (0, Fraction(1, 10**320), "too close together or too far apart"),
        (0, 10**340, "too close together or too far apart"),
    ],
)
def test_bounds_of_a_value_must_make_sense(low: Any, high: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Value("x", Fraction(low), Fraction(high))


def test_the_whole_range_is_in_steps() -> None:
    wanted = Value("x", Fraction(-1, 3), Fraction(22, 7))
    assert wanted.step * 2 * HALF_STEPS == wanted.high - wanted.low
    assert [own_steps([x], wanted) for x in (-1e9, 1e9)] == [0, 2 * HALF_STEPS]
