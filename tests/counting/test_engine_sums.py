"""Sums against brute force: independent of row order, and a function of each user's own rows."""

from __future__ import annotations

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
    is_spark,
    on_engines,
    task,
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
