"""Weights against brute force: they depend on a user's own items only."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from dphist.counting.task import HALF_STEPS, Resources, Value
from dphist.errors import InvalidParameter
from engine_cases import (
    EACH_ENGINE,
    EMBEDDED,
    KEY,
    QUICK_ON_DUCKDB,
    Factory,
    Rows,
    as_stream,
    by_engine,
    drawn,
    events,
    histogram,
    is_spark,
    kept_by_hand,
    table_of,
    task,
)
from sum_cases import FIELDS, own_steps, sums, value

Levels = tuple[tuple[int, int], ...]
LEVELS: Levels = ((2, 512), (3, 418), (5, 322), (6, 294))


def steps_by_hand(items: int, levels: Levels) -> int:
    """The steps of a user with so many items."""
    return next(steps for most, steps in levels if most >= min(items, levels[-1][0]))


def weighted_by_hand(
    rows: Rows, levels: Levels, nulls: bool = False, sizes: dict[Any, int] | None = None
) -> dict[Any, int]:
    """Brute force: for each item the steps of its users, by their own numbers of items or by `sizes`."""
    if sizes is None:
        sizes = {user: len(items) for user, items in kept_by_hand(rows, None, nulls).items()}
    counts: dict[Any, int] = defaultdict(int)
    for user, items in kept_by_hand(rows, levels[-1][0], nulls, KEY).items():
        for item in items:
            counts[item[0] if len(item) == 1 else item] += steps_by_hand(sizes[user], levels)
    return dict(counts)


def weighted_sums_by_hand(
    rows: Rows, values: tuple[Value, ...], levels: Levels, nulls: bool = False
) -> dict[Any, tuple[int, ...]]:
    """Brute force, by definition: Python's `//` rounds down."""
    unit, full = levels[0][1], kept_by_hand([row[:2] for row in rows], None, nulls)
    found: dict[Any, list[int]] = defaultdict(lambda: [0] * (len(values) + 1))
    for user, items in kept_by_hand([row[:2] for row in rows], levels[-1][0], nulls, KEY).items():
        a = steps_by_hand(len(full[user]), levels)
        for (item,) in items:
            found[item][0] += a
            for k, wanted in enumerate(values):
                place = list(FIELDS).index(wanted.column)
                y = own_steps([row[place] for row in rows if row[:2] == (user, item)], wanted)
                part = (2 * (y - wanted.half_steps) * a + unit) // (2 * unit)
                assert abs(part) <= wanted.half_steps * a // unit
                found[item][k + 1] += part
    return {item: tuple(numbers) for item, numbers in found.items()}


@st.composite
def some_levels(draw: Any) -> Levels:
    """Levels by which half a range is whole: steps are multiples of unit / 2^b."""
    bits, times = draw(st.integers(1, 10)), draw(st.sampled_from([1, 3, 10, 1024]))
    less = draw(st.sets(st.integers(1, (1 << bits) - 1), max_size=3))
    most = draw(st.sets(st.integers(1, 6), min_size=len(less) + 1, max_size=len(less) + 1))
    return tuple(zip(sorted(most), sorted([times << bits, *(times * n for n in less)], reverse=True), strict=True))


def cut(levels: Levels) -> dict[str, Any]:
    """The options of a task with these weights."""
    return {"weights": levels, "max_items_per_user": levels[-1][0]}


tables = st.lists(
    st.tuples(st.none() | st.integers(-2, 3), st.none() | st.integers(0, 9), st.none() | st.booleans()),
    max_size=60,
)
valued = st.lists(
    st.tuples(
        st.none() | st.integers(-2, 3), st.none() | st.sampled_from("abcdefgh"),
        st.none() | st.floats(-9, 9) | st.sampled_from([1e308, float("nan"), float("-inf")]),
        st.none() | st.integers(-9, 9),
    ),
    max_size=50,
)  # fmt: skip


def pairs_of(rows: Rows) -> Any:
    return table_of(rows, user=pa.int64(), item=pa.int64())


def spelled(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Booleans are written in lower case in SQL."""
    return tuple(str(cell).lower() if isinstance(cell, bool) else cell for cell in row)


@EACH_ENGINE
@drawn(rows=tables, nulls=st.booleans(), levels=some_levels(), seed=st.integers(0, 99))
def test_weighted_counts_match_brute_force_in_any_order(
    engine: Factory, rows: Rows, nulls: bool, levels: Levels, seed: int
) -> None:
    more: dict[str, Any] = {"null_items": nulls, "portable": True, **cut(levels)}
    repeated = rows + rows[: len(rows) // 2]
    random.Random(seed).shuffle(repeated)
    table = table_of(repeated, user=pa.int64(), item=pa.int64(), flag=pa.bool_())
    one = weighted_by_hand([row[:2] for row in rows], levels, nulls)
    assert histogram(engine, task(table, **more)) == one
    two = weighted_by_hand([spelled(row) for row in rows], levels, nulls)
    found = histogram(engine, task(table, items=("item", "flag"), **more))
    assert {spelled(item): n for item, n in found.items()} == two


some_values = st.lists(
    st.tuples(st.sampled_from("xn"), st.sampled_from([(-1, 1), (0, 10), (-9, -2), (-3, 8), (2, 3)])),
    min_size=1, max_size=3,
).map(lambda given: tuple(value(column, *bounds) for column, bounds in given))  # fmt: skip


@EACH_ENGINE
@drawn(many=40, rows=valued, values=some_values, nulls=st.booleans(), levels=some_levels())
def test_weighted_sums_match_brute_force(
    engine: Factory, rows: Rows, values: tuple[Value, ...], nulls: bool, levels: Levels
) -> None:
    table = table_of(rows, user=pa.int64(), item=pa.string(), x=pa.float64(), n=pa.int64())
    found = sums(engine, table, values, null_items=nulls, portable=True, **cut(levels))
    assert found == weighted_sums_by_hand(rows, values, levels, nulls)


@QUICK_ON_DUCKDB
def test_sums_of_either_sign_are_rounded_down(engine: Factory) -> None:
    """Halves of a step above and below the middle; the largest unit and range."""
    step, values = 2.0**-20, (value("x", -1, 1),)
    types = {"user": pa.int64(), "item": pa.string(), "x": pa.float64()}
    for unit, levels in ((2, ((1, 2), (2, 1))), (2**20, ((1, 2**20), (2, 2**20 - 1)))):
        cells = [-1.0, -3 * step, -2 * step, -step, 0.0, step, 2 * step, 3 * step, 1.0]
        rows = [(user, item, x) for user, x in enumerate(cells) for item in ("own", str(user))]
        found = sums(engine, table_of(rows, **types), values, portable=True, **cut(levels))
        a = levels[1][1]
        parts = [(2 * round(x / step) * a + unit) // (2 * unit) for x in cells]
        assert found == {
            "own": (a * len(cells), sum(parts)),
            **{str(k): (a, part) for k, part in enumerate(parts)},
        }
        single = table_of([(1, "own", 9.0)], **types)
        assert sums(engine, single, values, **cut(levels)) == {"own": (unit, HALF_STEPS)}


def drawn_rows(users: int, seed: int = 1) -> Rows:
    """Users with one to ten different items, some of them several times."""
    generator = random.Random(seed)
    rows = [
        (user, item)
        for user in range(users)
        for item in generator.sample(range(30), generator.randint(1, 10))
        for _ in range(generator.choice([1, 1, 3]))
    ]
    generator.shuffle(rows)
    return rows


def in_files(rows: Rows, folder: Path, files: int = 3) -> list[Rows]:
    """The rows dealt out to several files, and written."""
    parts = [rows[k::files] for k in range(files)]
    for k, part in enumerate(parts):
        pq.write_table(pairs_of(part), folder / f"{k}.parquet")
    return parts


@QUICK_ON_DUCKDB
def test_items_are_counted_once_over_all_files(engine: Factory, tmp_path: Path) -> None:
    rows = drawn_rows(60)
    parts = in_files(rows, tmp_path)
    expected = weighted_by_hand(rows, LEVELS)
    assert histogram(engine, task(tmp_path, portable=True, **cut(LEVELS))) == expected
    # Counts of a wrong engine: weights by the items of one file, without N, or by events instead of items.
    first = {user: len(items) for user, items in kept_by_hand(parts[0], None).items()}
    one_file = weighted_by_hand(rows, LEVELS, sizes={user: first.get(user, 1) for user, _ in rows})
    all_kept = weighted_by_hand(rows, (*LEVELS[:-1], (99, LEVELS[-1][1])))
    of_events = weighted_by_hand(rows, LEVELS, sizes=Counter(user for user, _ in rows))
    for wrong in (one_file, all_kept, of_events):
        assert set(wrong) == set(expected)
        assert wrong != expected


@QUICK_ON_DUCKDB
def test_conditions_and_public_lists_come_before_weights(engine: Factory) -> None:
    rows = [(user, item) for user in range(9) for item in range(user)] * 2
    table, more = pairs_of(rows), {"portable": True, **cut(LEVELS)}
    some = [row for row in rows if row[1] < 4]
    assert histogram(engine, task(table, where="item < 4", **more)) == weighted_by_hand(some, LEVELS)
    listed = events(pa.table({"item": ["1", "x", "5", "77", "6", "7", "007"]}))
    found = histogram(engine, task(table, public_items=listed, **more))
    # '007' is 7 too: only one of the two may count.
    expected = weighted_by_hand([row for row in rows if row[1] in (1, 5, 6, 7)], LEVELS)
    assert found == {"1": expected[1], "5": expected[5], "6": expected[6], "7": expected[7], "x": 0, "77": 0,
                     "007": 0}  # fmt: skip
    values = (value("item", -3, 5),)
    with_sums = sums(engine, table, values, public_items=listed, **more)
    assert {item: n[0] for item, n in with_sums.items()} == found
    assert with_sums["x"] == with_sums["007"] == (0, 0)
    pairs = table_of(
        [(user, item, str(item % 2)) for user, item in rows], user=pa.int64(), item=pa.int64(), odd=pa.string()
    )
    listed = events(pa.table({"item": ["1", "2", "3"], "odd": ["1", "1", "1"]}), items=("item", "odd"))
    found = histogram(engine, task(pairs, items=("item", "odd"), public_items=listed, **more))
    expected = weighted_by_hand([row for row in rows if row[1] in (1, 3)], LEVELS)
    assert found == {("1", "1"): expected[1], ("2", "1"): 0, ("3", "1"): expected[3]}


@QUICK_ON_DUCKDB
@pytest.mark.parametrize("portable", [False, True])
def test_one_level_is_a_limit_and_all_levels_keep_the_same_items(engine: Factory, portable: bool) -> None:
    table = pairs_of(drawn_rows(40))
    for cap in (4,) if is_spark(engine) else (1, 4):
        capped = histogram(engine, task(table, portable=portable, max_items_per_user=cap))
        found = histogram(engine, task(table, portable=portable, **cut(((cap, 6),))))
        assert found == {item: 6 * n for item, n in capped.items()}
    # The items are those that a limit of N chooses.
    more: dict[str, Any] = {"items": ("user", "item"), "portable": portable}
    capped = histogram(engine, task(table, max_items_per_user=6, **more))
    assert set(histogram(engine, task(table, **more, **cut(LEVELS)))) == set(capped)
    from_one = histogram(engine, task(table, **more, **cut(((1, 512), *LEVELS[1:]))))
    assert set(from_one) == set(capped)


@by_engine("portable", [False, True], [False], [True])
def test_a_user_changes_their_own_items_by_their_own_steps(engine: Factory, portable: bool) -> None:
    rows = drawn_rows(12)
    own = kept_by_hand(rows, None)
    more: dict[str, Any] = {"portable": portable, **cut(LEVELS)}
    full = histogram(engine, task(pairs_of(rows), **more))
    assert {min(len(items), 7) for items in own.values()} >= {1, 3, 4, 7}
    for user in (5,) if is_spark(engine) else range(12):
        without = histogram(engine, task(pairs_of([row for row in rows if row[0] != user]), **more))
        moved = {item: n - without.get(item, 0) for item, n in full.items() if n != without.get(item, 0)}
        assert set(without) <= set(full)
        assert len(moved) == min(len(own[user]), 6)
        assert {(item,) for item in moved} <= own[user]
        assert set(moved.values()) == {steps_by_hand(len(own[user]), LEVELS)}


@QUICK_ON_DUCKDB
def test_ranks_are_by_steps(engine: Factory) -> None:
    rows = drawn_rows(30)
    steps = sorted(weighted_by_hand(rows, LEVELS).values(), reverse=True)
    for rank, expected in ((1, steps[0]), (5, steps[4]), (len(steps), steps[-1]), (len(steps) + 1, 0)):
        wanted = task(pairs_of(rows), portable=True, rank=rank, **cut(LEVELS))
        with engine(Resources(threads=2)).count(wanted) as counted:
            assert counted.at_rank == expected


@EMBEDDED
def test_a_reader_is_read_once(engine: Factory) -> None:
    rows = drawn_rows(20)
    found = histogram(engine, task(as_stream(pairs_of(rows)), portable=True, **cut(LEVELS)))
    assert found == weighted_by_hand(rows, LEVELS)


@EMBEDDED
def test_weights_must_be_valid_levels(engine: Factory) -> None:
    valid: dict[str, Any] = {"weights": ((1, 8), (2, 6)), "max_items_per_user": 2}
    table = pa.table({"user": [1], "item": [1]})
    engine(Resources()).check(task(table, **valid))
    invalid: list[dict[str, Any]] = [
        {"max_items_per_user": 3}, {"max_items_per_user": None}, {"lower_threshold": 2},
        {"weights": ((1, 6), (2, 4)), "values": (value("item"),)},
    ]  # fmt: skip
    for first, last in (((2, 8), (2, 6)), ((1, 8), (2, 8)), ((0, 8), (2, 6)), ((1, 8), (2, 0)),
                        ((1, 8.0), (2, 6)), ((1, 7), (2, 6)), ((1, 2**21), (2, 6))):  # fmt: skip
        invalid.append({"weights": (first, last)})
    for options in invalid:
        with pytest.raises(InvalidParameter, match="the weights are not valid levels"):
            engine(Resources()).check(task(table, **{**valid, **options}))
