"""Counting in rounds against brute force: every number, for every kind of input."""

from __future__ import annotations

import datetime
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import strategies as st

from dphist.aliases import ArrowArray
from dphist.certificate.request import Column
from dphist.counting import rounds
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import (
    HALF_STEPS,
    LONGEST_VALUE,
    Choice,
    Events,
    Resources,
    RoundsTask,
    Value,
)
from dphist.errors import InputError
from engine_cases import (
    EMBEDDED,
    FILES,
    KEY,
    OBJECTS,
    RoundsFactory,
    Rows,
    as_stream,
    drawn,
    events,
    histogram,
    kept_by_hand,
    rows_of,
    table_of,
    task,
    written,
)
from processes import wait_until
from sum_cases import own_steps, value

Item = tuple[Any, ...]
BOUNDS = [1, 2, 3, 4, 6, 1 << 40]


def rounds_task(source: Any, key: bytes = KEY, portable: bool = True, **more: Any) -> RoundsTask:
    plain: dict[str, Any] = {"most_items": 256, "lattice": 64, "growth": 2, "alone": False}
    of_task = (*plain, "known", "listed", "values", "ordered")
    given = {name: more.pop(name) for name in of_task if name in more}
    return RoundsTask(events(source, **more), Choice(key, portable), **{**plain, **given})


def by_parts(wanted: RoundsTask, y: int, weight: int, k: int) -> int:
    """A user's steps of a value, weighted."""
    of, unit = wanted.values[k], wanted.lattice
    if of.vector is not None:
        return math.trunc(Fraction(y * weight, unit))
    return math.floor(Fraction(2 * (y - of.half_steps) * weight + unit, 2 * unit))


def check(
    engine: RoundsFactory,
    wanted: RoundsTask,
    rows: Rows,
    known: dict[Item, Item | None] | None = None,
    own: dict[tuple[Any, Item], tuple[int, ...]] | None = None,
    seed: int = 0,
    limit: int = 3,
) -> None:
    """Compare everything with brute force, while random items leave.

    `rows` are users and items; `known` are the entries of a list and the items that they are, if any; `own` are
    users' steps for their items.
    """
    generator, known = random.Random(seed), known or {}
    matched = {item for item in known.values() if item is not None}
    if wanted.listed:
        rows = [row for row in rows if row[1:] in matched]
    full = kept_by_hand(rows, None, wanted.events.can_be_null)
    kept = kept_by_hand(rows, wanted.most_items, wanted.events.can_be_null, KEY)
    single = {user for user, items in full.items() if len(items) == 1} if wanted.alone else set()
    lists = {user: items for user, items in kept.items() if user not in single}
    with engine(Resources(threads=2)).rounds(wanted) as counted:
        every_item = counted.rows(np.arange(counted.items))
        columns, kinds = [column.to_pylist() for column in every_item], [column.type for column in every_item]
        names: list[Any] = list(zip(*columns, strict=True))
        if wanted.listed:
            assert sorted(names, key=repr) == sorted(known, key=repr)
            names = [known[name] or ("no item", name) for name in names]
        assert len(set(names)) == len(names) == counted.items
        present = {item for items in kept.values() for item in items}
        every = set(names) if wanted.listed else present | matched
        assert set(names) == every
        assert counted.known.tolist() == [wanted.listed or name in matched for name in names]
        assert counted.present.tolist() == [name in present for name in names]
        alone = Counter(item for user in single for item in kept[user])
        assert counted.alone().tolist() == [alone[name] for name in names]

        def some(share: float) -> Any:
            chosen = [number for number in range(len(names)) if generator.random() < share]
            generator.shuffle(chosen)
            return np.array(chosen, np.int64)

        gone: set[Item] = set()
        first: dict[Any, int] = {}
        for turn in range(4):
            leaving = some(generator.choice([0, 0.2, 0.7]))
            counted.leave(leaving)
            gone |= {names[number] for number in leaving}
            steps: Counter[Item] = Counter()
            for user, items in lists.items():
                n = len(items - gone)
                first.setdefault(user, n)
                for item in items - gone:
                    root = math.isqrt(wanted.lattice**2 // n)
                    most = math.isqrt(wanted.growth**2 * wanted.lattice**2 // first[user])
                    steps[item] += root if turn == 0 else min(root, most, wanted.lattice)
            assert counted.round().tolist() == [steps[name] for name in names]
        for share in (0.0, 0.6, 1.0):
            found = some(share)
            chosen = {names[number] for number in found}
            sizes = [0] * len(BOUNDS)
            totals: dict[Item, list[int]] = defaultdict(lambda: [0] * (1 + len(wanted.values)))
            for user, items in lists.items():
                n, of_user = len(items & chosen), len(full[user])
                if n:
                    sizes[bisect_left(BOUNDS, of_user if of_user > wanted.most_items else n)] += 1
                for item in items & chosen:
                    weight = min(wanted.lattice, math.isqrt(limit * wanted.lattice**2 // n))
                    totals[item][0] += weight
                    for k, y in enumerate(own[user, item] if own else ()):
                        totals[item][k + 1] += by_parts(wanted, y, weight, k)
            assert counted.sizes(found, BOUNDS) == sizes
            expected = [tuple(totals[names[number]]) for number in found]
            measured = counted.measure(found, limit)
            assert all(column.dtype == np.int64 for column in measured)
            assert list(zip(*(column.tolist() for column in measured), strict=True)) == expected
            shown = [column.to_pylist() for column in counted.rows(found)]
            assert shown == [[column[number] for number in found] for column in columns]
            assert [column.type for column in counted.rows(found)] == kinds


tables = st.lists(
    st.tuples(st.none() | st.integers(-2, 5), st.none() | st.integers(0, 9), st.none() | st.booleans()),
    max_size=70,
)
LISTED: dict[Item, Item | None] = {("1",): (1,), ("5",): (5,), ("99",): (99,), ("x",): None, ("007",): None,
                                   ("7",): (7,)}  # fmt: skip


def entries(known: dict[Item, Item | None]) -> Events:
    return events(pa.table({"item": [entry for (entry,) in known]}))


@EMBEDDED
@drawn(
    many=100, rows=tables, texts=st.booleans(), nulls=st.booleans(), alone=st.booleans(), ordered=st.booleans(),
    known=st.sampled_from(["none", "known", "listed"]), most=st.integers(1, 6), growth=st.integers(1, 3),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_rounds_are_those_of_brute_force(
    engine: RoundsFactory, rows: Rows, texts: bool, nulls: bool, alone: bool, ordered: bool, known: str, most: int,
    growth: int, seed: int,
) -> None:  # fmt: skip
    if texts:
        rows = [(None if row[0] is None else f"user {row[0]}", *row[1:]) for row in rows]
    repeated = rows + rows[: len(rows) // 2]
    random.Random(seed).shuffle(repeated)
    table = table_of(repeated, user=pa.string() if texts else pa.int64(), item=pa.int64(), flag=pa.bool_())
    more: dict[str, Any] = {
        "null_items": nulls, "alone": alone, "most_items": most, "growth": growth, "ordered": ordered,
    }  # fmt: skip
    listed = LISTED if known != "none" else None
    given: dict[str, Any] = {} if listed is None else {"known": entries(listed), "listed": known == "listed"}
    check(engine, rounds_task(table, **more, **given), [row[:2] for row in rows], listed, seed=seed)
    # Booleans are written in lower case in the order, which does not matter below the limit.
    if most == 6:
        few = [row for row in rows if row[1] is None or row[1] < 3][:20]
        table = table_of(few, user=pa.string() if texts else pa.int64(), item=pa.int64(), flag=pa.bool_())
        two = rounds_task(table, items=("item", "flag"), **{**more, "most_items": 256})
        check(engine, two, few, seed=seed)


cells = st.none() | st.floats(-9, 9) | st.sampled_from([1e308, -1e308, math.nan, math.inf])
valued = st.lists(
    st.tuples(st.none() | st.integers(0, 5), st.none() | st.sampled_from("abcdefgh"), cells, cells), max_size=60
)


@EMBEDDED
@drawn(many=40, rows=valued, most=st.integers(1, 6), limit=st.integers(1, 9), seed=st.integers(0, 999))
def test_sums_are_weighted_as_by_brute_force(
    engine: RoundsFactory, rows: Rows, most: int, limit: int, seed: int
) -> None:
    table = table_of(rows, user=pa.int64(), item=pa.string(), x=pa.float64(), n=pa.float64())
    values = (value("x", -1, 1), value("n", 0, 10), value("x", 2, 3))
    places = {"x": 2, "n": 3}
    own = {
        (row[0], (row[1],)): tuple(
            own_steps([other[places[of.column]] for other in rows if other[:2] == row[:2]], of) for of in values
        )
        for row in rows
    }
    wanted = rounds_task(table, values=values, most_items=most, ordered=bool(seed % 2))
    check(engine, wanted, [row[:2] for row in rows], own=own, seed=seed, limit=limit)


@EMBEDDED
def test_vectors_are_weighted_towards_zero(engine: RoundsFactory) -> None:
    generator = random.Random(8)
    rows = [
        (user, f"{item}", generator.gauss(0, 1), generator.gauss(0, 2), generator.gauss(0, 3))
        for user in range(20)
        for item in generator.sample(range(12), generator.randint(1, 9))
    ]
    names = ("x", "y", "z")
    table = table_of(rows, user=pa.int64(), item=pa.string(), **dict.fromkeys(names, pa.float64()))
    # Fewer steps than the lattice are enough for a vector.
    vectors = tuple(Value(name, Fraction(-1), Fraction(1), 16, vector=4) for name in names[:2])
    values = (*vectors, value("z", -5, 5))
    # The steps of each pair without weights.
    by_pair = task(table_of(
        [(user, f"{user}/{item}", *rest) for user, item, *rest in rows],
        user=pa.int64(), item=pa.string(), **dict.fromkeys(names, pa.float64()),
    ), values=values)  # fmt: skip
    own = {}
    for name, users, *steps in rows_of(engine, by_pair):
        assert users == 1
        user, item = name.split("/")
        own[int(user), (item,)] = tuple(steps)
    assert any(min(steps[:2]) < 0 for steps in own.values())
    check(engine, rounds_task(table, values=values, most_items=5), [row[:2] for row in rows], own=own)


@EMBEDDED
@pytest.mark.parametrize("kind", [*FILES, *OBJECTS])
def test_all_inputs_are_counted_alike(engine: RoundsFactory, tmp_path: Path, kind: str) -> None:
    generator = random.Random(5)
    rows = [(f"u{generator.randint(0, 9)}", f"item {generator.randint(0, 12)}") for _ in range(90)]
    table = table_of(rows, user=pa.string(), item=pa.string())
    listed = events(written(pa.table({"item": ["item 3", "item 77"]}), tmp_path / "..", "table"))
    known: dict[Item, Item | None] = {("item 3",): ("item 3",), ("item 77",): ("item 77",)}
    more: dict[str, Any] = {"most_items": 4, "alone": True, "known": listed}
    check(engine, rounds_task(written(table, tmp_path, kind), **more), rows, known)


@EMBEDDED
@pytest.mark.parametrize("kind", ["parquet", "csv", "duckdb", "sqlite", "jsonl", "pandas"])
def test_known_items_come_from_all_inputs(engine: RoundsFactory, tmp_path: Path, kind: str) -> None:
    rows = [(user, item) for user in range(6) for item in range(user + 1)]
    table = table_of(rows, user=pa.int64(), item=pa.int64())
    source = written(pa.table({"item": ["1", "x", "4", "77", "001"]}), tmp_path, kind)
    known: dict[Item, Item | None] = {("1",): (1,), ("x",): None, ("4",): (4,), ("77",): (77,), ("001",): None}
    for listed in (False, True):
        wanted = rounds_task(table, known=events(source), listed=listed, alone=True, most_items=3)
        check(engine, wanted, rows, known)


@EMBEDDED
def test_conditions_expressions_and_names(engine: RoundsFactory, tmp_path: Path) -> None:
    rows = [(user, item) for user in range(9) for item in range(user + 2)]
    path = written(table_of(rows, user=pa.int64(), item=pa.int64()), tmp_path, "parquet")
    some = [row for row in rows if row[1] % 3]
    check(engine, rounds_task(path, where="item % 3 <> 0", most_items=3, alone=True), some)
    half = Events(path, "user", (Column("half", "item // 2"), Column("item", "item")), where="user > 2")
    wanted = RoundsTask(half, Choice(KEY, True), 5, 64, 2, True)
    check(engine, wanted, [(user, item // 2, item) for user, item in rows if user > 2])
    with (
        pytest.raises(InputError, match="no column 'who'"),
        engine(Resources()).rounds(rounds_task(path, user="who")),
    ):
        pass
    # A condition that fails for all rows is not an error.
    check(engine, rounds_task(path, where="CAST(chr(97 + item::INTEGER) AS INTEGER) = 1"), [])


@EMBEDDED
@pytest.mark.parametrize("portable", [False, True])
def test_users_keep_the_items_that_a_limit_keeps(engine: RoundsFactory, portable: bool) -> None:
    """With a large limit of the measurement, weights are whole users."""
    generator = random.Random(3)
    rows = [
        (f"u{user}", item, generator.uniform(-3, 3))
        for user in range(60)
        for item in generator.sample(range(40), generator.randint(1, 12))
    ]
    table = table_of(rows, user=pa.string(), item=pa.int64(), x=pa.float64())
    values = (value("x", -2, 2),)
    for more in ({}, {"items": ("item", "user")}, {"where": "item < 30"}):
        limited = rows_of(
            engine, task(table, portable=portable, max_items_per_user=5, values=values, ordered=True, **more)
        )
        wanted = rounds_task(table, portable=portable, most_items=5, values=values, ordered=True, **more)
        with engine(Resources(threads=2)).rounds(wanted) as counted:
            found = np.arange(counted.items)
            users, steps = counted.measure(found, 5)
            names = zip(*(column.to_pylist() for column in counted.rows(found)), strict=True)
            whole = [
                (*name, n // wanted.lattice, y + HALF_STEPS * (n // wanted.lattice))
                for name, n, y in zip(names, users.tolist(), steps.tolist(), strict=True)
            ]
        assert whole == limited
    listed = events(pa.table({"item": [str(item) for item in range(0, 40, 3)]}))
    limited = rows_of(
        engine, task(table, portable=portable, max_items_per_user=2, public_items=listed, ordered=True)
    )
    wanted = rounds_task(table, portable=portable, most_items=2, known=listed, listed=True, ordered=True)
    with engine(Resources(threads=2)).rounds(wanted) as counted:
        found = np.arange(counted.items)
        (users,) = counted.measure(found, 2)
        (names_of,) = counted.rows(found)
    assert list(zip(names_of.to_pylist(), (users // wanted.lattice).tolist(), strict=True)) == limited


ODD_COLUMNS: dict[str, ArrowArray] = {
    "floats": pa.array([0.0, -0.0, math.nan, -math.nan, 1.5, math.inf, 1e300, None] * 3),
    "decimals": pa.array([Decimal("1.50"), Decimal("-2.00"), None, Decimal("9.99")] * 6, pa.decimal128(30, 2)),
    "dates": pa.array([datetime.date(2020, 1, 1), datetime.date(1, 1, 1), None] * 8),
    "times": pa.array([0, 1, 10**15, None] * 6, pa.timestamp("us", "UTC")),
    "nanoseconds": pa.array([0, 1, 10**18, None] * 6, pa.timestamp("ns")),
    "booleans": pa.array([True, False, None, True] * 6),
    "bytes": pa.array([b"", b"\xff\x00", b"a", None] * 6),
    "large": pa.array([2**64 - 1, 0, 2**63, None] * 6, pa.uint64()),
    "texts": pa.array(["", "é", "x" * LONGEST_VALUE, "x" * (LONGEST_VALUE + 1), "a\0b", None] * 4),
    "categories": pa.array(["a", "b", None, "a"] * 6).dictionary_encode(),
    "lists": pa.array([["a", "b"], ["a, b"], [], None] * 6),
    "structures": pa.array([{"a": 1}, {"a": None}, None, {"a": 2}] * 6),
    "durations": pa.array([1, 2, 10**9, None] * 6, pa.duration("us")),
}  # fmt: skip
USERS_TOO = [name for name in ODD_COLUMNS if name not in ("lists", "structures")]


@EMBEDDED
@pytest.mark.parametrize("name", ODD_COLUMNS)
@pytest.mark.parametrize("nulls", [False, True])
def test_odd_types_are_counted_as_by_a_count(engine: RoundsFactory, name: str, nulls: bool) -> None:
    odd = ODD_COLUMNS[name]
    users = pa.array([k // 2 for k in range(len(odd))])
    for table in [
        pa.table({"user": users, "item": odd}),
        *([pa.table({"user": odd, "item": users})] if name in USERS_TOO else []),
        *([pa.table({"user": odd, "item": odd})] if name in USERS_TOO else []),
    ]:
        expected = rows_of(engine, task(table, null_items=nulls, ordered=True))
        with engine(Resources(threads=2)).rounds(rounds_task(table, null_items=nulls, ordered=True)) as counted:
            found = np.arange(counted.items)
            (users_of,) = counted.measure(found, 256)
            (names,) = counted.rows(found)
            whole = list(zip(names.to_pylist(), (users_of // 64).tolist(), strict=True))
            assert counted.present.all()
            every_round = counted.round()
            assert ((every_round > 0) == counted.present).all()
        assert repr(whole) == repr(expected)  # NaN is not equal to itself
        with engine(Resources(threads=2)).rounds(rounds_task(table, null_items=nulls, alone=True)) as counted:
            in_groups = int(counted.alone().sum()) + sum(counted.sizes(np.arange(counted.items), [1, 256]))
        with engine(Resources(threads=2)).rounds(rounds_task(table, null_items=nulls)) as counted:
            assert in_groups == sum(counted.sizes(np.arange(counted.items), [256]))


@EMBEDDED
def test_known_items_that_are_missing_values(engine: RoundsFactory) -> None:
    rows = [(1, None), (1, 2), (2, None), (3, 4), (None, 4), (4, 2), (4, 4)]
    table = table_of(rows, user=pa.int64(), item=pa.int64())
    listed = events(pa.table({"item": [None, "2", "9"]}))
    known: dict[Item, Item | None] = {(None,): (None,), ("2",): (2,), ("9",): (9,)}
    for public in (False, True):
        check(engine, rounds_task(table, known=listed, listed=public, null_items=True, alone=True), rows, known)
        without = {entry: item for entry, item in known.items() if entry != (None,)}
        check(engine, rounds_task(table, known=listed, listed=public, alone=True), rows, without)


@EMBEDDED
@pytest.mark.parametrize("rows", [[], [(None, 1), (None, None)], [(1, None)]])
def test_no_events_are_no_items(engine: RoundsFactory, rows: Rows) -> None:
    table = table_of(rows, user=pa.int64(), item=pa.int64())
    check(engine, rounds_task(table, alone=True), rows)
    values = (value("item"),)
    check(engine, rounds_task(table, values=values), rows)
    listed = entries(LISTED)
    for public in (False, True):
        check(engine, rounds_task(table, known=listed, listed=public), rows, LISTED)
        check(engine, rounds_task(table, known=listed, listed=public, alone=True), rows, LISTED)


@EMBEDDED
def test_items_in_order_do_not_depend_on_the_rows(engine: RoundsFactory) -> None:
    """So that a seed reproduces a release."""
    generator = np.random.default_rng(2)
    user, item = generator.integers(0, 500, 30_000), generator.integers(0, 5000, 30_000)
    results: list[tuple[list[Any], ...]] = []
    for threads in (1, 2, 3):
        order = generator.permutation(len(user))
        table = pa.table({"user": user[order], "item": [f"i{k}" for k in item[order]]})
        with engine(Resources(threads=threads)).rounds(rounds_task(table, ordered=True, most_items=20)) as counted:
            (names,) = counted.rows(np.arange(counted.items))
            first = counted.round()
            counted.leave(np.flatnonzero(first % 3 == 0))
            results.append((names.to_pylist(), first.tolist(), counted.round().tolist()))
            assert results[-1][0] == sorted(results[-1][0])
    assert results[0] == results[1] == results[2]


@EMBEDDED
@pytest.mark.parametrize("arrays", [True, False])
def test_many_rows(engine: RoundsFactory, monkeypatch: pytest.MonkeyPatch, arrays: bool) -> None:
    """Enough for arrays in place of hash tables, and for several threads."""
    generator = np.random.default_rng(4)
    rows = 60_000
    user = np.minimum(generator.geometric(0.001, rows), 8000)
    item = np.minimum(generator.zipf(1.3, rows), 9000)
    if not arrays:
        monkeypatch.setattr(rounds, "ENTRY", 10**18)
    pairs = list(zip(user.tolist(), item.tolist(), strict=True))
    table = pa.table({"user": user, "item": item})
    check(engine, rounds_task(table, alone=True, most_items=9, growth=3), pairs)
    values = (value("item", 0, 100),)
    own: dict[Any, Any] = defaultdict(list)
    for pair in pairs:
        own[pair[0], pair[1:]].append(pair[1])
    steps: dict[Any, tuple[int, ...]] = {pair: (own_steps(cells, values[0]),) for pair, cells in own.items()}
    check(engine, rounds_task(table, most_items=9, values=values), pairs, own=steps)


@EMBEDDED
def test_a_user_changes_their_own_items_by_their_own_steps(engine: RoundsFactory) -> None:
    """For each round, as long as the same items leave; with the fast choice, which cannot be computed by hand."""
    generator = random.Random(6)
    rows = [
        (user, item) for user in range(12) for item in generator.sample(range(30), generator.randint(1, 10))
    ] + [(99, item) for item in range(30)]
    more: dict[str, Any] = {"portable": False, "most_items": 6, "ordered": True, "lattice": 4096, "growth": 2}

    def released(without: int) -> list[dict[int, int]]:
        table = table_of([row for row in rows if row[0] != without], user=pa.int64(), item=pa.int64())
        known = events(pa.table({"item": list(range(30))}))
        found = []
        with engine(Resources()).rounds(rounds_task(table, known=known, **more)) as counted:
            (names,) = (column.to_pylist() for column in counted.rows(np.arange(counted.items)))
            assert names == list(range(30))
            for turn in range(3):
                found.append(dict(enumerate(counted.round().tolist())))
                counted.leave(np.arange(turn * 3, turn * 3 + 5))
            found.append(dict(zip(range(15, 30), counted.measure(np.arange(15, 30), 2)[0].tolist(), strict=True)))
        return found

    full = released(-1)
    for user in range(12):
        own = {item for who, item in rows if who == user}
        for turn, (with_user, without) in enumerate(zip(full, released(user), strict=True)):
            moved = {item: n - without[item] for item, n in with_user.items() if n != without[item]}
            assert set(moved) <= own
            assert len(moved) <= 6
            assert len(set(moved.values())) <= 1
            assert sum(n**2 for n in moved.values()) <= (2 if turn == 3 else 1) * 4096**2
            assert turn > 0 or len(moved) == min(len(own), 6)


@EMBEDDED
def test_a_reader_is_read_once(engine: RoundsFactory) -> None:
    rows = [(user, item) for user in range(9) for item in range(user + 1)]
    table = table_of(rows, user=pa.int64(), item=pa.int64())
    check(engine, rounds_task(as_stream(table), alone=True, most_items=3), rows)


def test_weights_have_at_most_the_length_of_a_user() -> None:
    wanted = rounds_task(pa.table({}), lattice=4096, growth=8)
    for first in range(1, 257):
        assert first * wanted.first_weight(first) ** 2 <= 4096**2
        for n in range(1, first + 1):
            later = min(wanted.first_weight(n), wanted.most_weight(first))
            assert n * later**2 <= 4096**2
            assert first * later**2 <= 64 * 4096**2
            assert later <= 4096
        for limit in (1, 2, 24, 256):
            weight = wanted.measure_weight(first, limit)
            assert weight == 4096 if first <= limit else first * weight**2 <= limit * 4096**2


SMALL = pa.table({"user": [1, 2, 2, 3], "item": ["a", "a", "b", "secret item"]})


@EMBEDDED
def test_nothing_is_shown_and_a_session_can_be_used_again(engine: RoundsFactory, tmp_path: Path) -> None:
    shared = DuckDBEngine(Resources(folder=tmp_path, threads=2))
    with shared:
        for _ in range(2):
            with shared.rounds(rounds_task(SMALL, alone=True)) as counted:
                counted.leave(np.array([0]))
                counted.round()
                counted.sizes(np.array([1]), [1, 2])
                counted.measure(np.array([1]), 1)
                counted.rows(np.array([1]))
                for shown in (repr(counted), str(counted)):
                    assert "secret item" not in shown
                    assert not any(letter.isdigit() for letter in shown)
        (session,) = shared._idle
        settings = "SELECT current_setting('memory_limit'), current_setting('perfect_ht_threshold')"
        rest = session.execute(settings, "")
        assert not session.execute("SELECT table_name FROM duckdb_tables()", "")
        views = session.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal", "")
        assert views == [("dphist_events",)]  # as after a count
        assert histogram(lambda _: shared, task(SMALL), Resources()) == {"a": 2, "b": 1, "secret item": 1}
        with shared.rounds(rounds_task(SMALL)) as counted:
            assert session.execute(settings, "") != rest
        assert session.execute(settings, "") == rest
    fresh = DuckDBEngine(Resources(folder=tmp_path, threads=2))
    with fresh, fresh._session() as new:
        assert new.execute(settings, "")[0][1] == rest[0][1]
    assert os.listdir(tmp_path) == []


@EMBEDDED
def test_progress_only_grows(engine: RoundsFactory) -> None:
    seen: list[float] = []
    generator = np.random.default_rng(3)
    many = pa.table({"user": generator.integers(0, 10**5, 10**6), "item": generator.integers(0, 10**5, 10**6)})
    with engine(Resources()).rounds(rounds_task(many), seen.append) as counted:
        counted.round()
    assert seen == sorted(set(seen))
    assert seen[-1] == 1.0


# It stops itself in the middle of a query of the second round.
PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
import numpy as np
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Choice, Events, Resources, RoundsTask
from dphist.certificate.request import Column

task = RoundsTask(Events(sys.argv[2], "user", (Column("item", "item"),)), Choice(bytes(32)), 20, 4096, 8, True)
engine = DuckDBEngine(Resources(folder=Path(sys.argv[1]), memory="300MB", threads=2))
try:
    with engine.rounds(task) as counted:
        counted.round()
        counted.leave(np.arange(9))
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        for _ in range(1000):
            print("round", flush=True)
            counted.round()
    print("done", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More rows than fit into the memory of these tests."""
    generator = np.random.default_rng(11)
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    user, item = generator.integers(0, 10**5, 2 * 10**6), generator.integers(0, 10**6, 2 * 10**6)
    pa.parquet.write_table(pa.table({"user": user, "item": item}), path)
    return path


def state_of(process: int) -> str:
    """One letter, T for a process that is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_run_leaves_nothing(large: Path, tmp_path: Path, how: signal.Signals) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(large)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "round\n"
        wait_until(lambda: state_of(process.pid) == "T", "the stop in the middle of a round")
        assert len(os.listdir(tmp_path)) == 1
        begun = time.monotonic()
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        rest = process.stdout.read()
        assert "done" not in rest
        assert ("interrupted" in rest) == (how == signal.SIGINT)
        process.wait()
        while os.listdir(tmp_path) and time.monotonic() - begun < 20:
            time.sleep(0.05)
    assert os.listdir(tmp_path) == []


@EMBEDDED
def test_little_memory_gives_the_same_numbers(
    engine: RoundsFactory, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    wanted = rounds_task(large, alone=True, most_items=20, portable=False, ordered=True)
    little = Resources(memory="120MB", folder=tmp_path, threads=2)
    for resources in (little, Resources(threads=2)):
        with engine(resources).rounds(wanted) as counted:
            first = counted.round()
            counted.leave(np.flatnonzero(first < 40))
            second = counted.round()
            found = np.flatnonzero(second > 60)
            results.append(
                (counted.items, first, second, counted.sizes(found, [1, 2, 20, 100]), *counted.measure(found, 2))
            )
    for small, usual in zip(*results, strict=True):
        assert np.array_equal(small, usual)
    assert os.listdir(tmp_path) == []
    # With a megabyte of disk it fails, so the rounds above did spill.
    full = shutil.disk_usage(tmp_path)._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(InputError, match="there is not enough"), engine(little).rounds(wanted):
        pass
    assert os.listdir(tmp_path) == []
