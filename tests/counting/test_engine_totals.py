"""Totals are counted as the rows of a table to which they were added by hand."""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from test_rounds_counting import check, rounds_task

import dphist
from contribution import contribution_of_user
from dphist.counting.task import Resources, Value
from engine_cases import (
    EACH_ENGINE,
    EMBEDDED,
    FILES,
    KEY,
    OBJECTS,
    QUICK_ON_DUCKDB,
    WITHOUT_CLUSTER,
    Factory,
    RoundsFactory,
    Rows,
    counts_by_hand,
    drawn,
    events,
    histogram,
    is_refused,
    kept_by_hand,
    rows_of,
    table_of,
    task,
    written,
)
from sum_cases import own_steps, value

ITEMS = ("day", "country")
TYPES: dict[str, Any] = {"user": pa.int64(), "day": pa.int64(), "country": pa.string()}
TOTALS = [("country",), ("day",), ITEMS]


def with_totals(rows: Rows, totals: tuple[str, ...], nulls: bool = False) -> Rows:
    """Every row with its mark, and once more for each total; the first three columns are user, day and country."""
    made: Rows = []
    for user, day, country, *rest in rows:
        if nulls or None not in (day, country):
            made.append((user, day, country, False, *rest))
            made += [(user, None, country, True, *rest)] if "day" in totals else []
            made += [(user, day, None, True, *rest)] if "country" in totals else []
    return made


def some_rows(seed: int, users: int = 30) -> Rows:
    generator = random.Random(seed)
    rows = [
        (user, generator.randrange(4), generator.choice("abc"), generator.gauss(0, 2), generator.gauss(0, 3))
        for user in range(users)
        for _ in range(generator.randint(1, 9))
    ]
    return rows + rows[::5]


tables = st.lists(
    st.tuples(
        st.none() | st.integers(0, 5), st.none() | st.integers(0, 3), st.none() | st.sampled_from(["a", "b", ""])
    ),
    max_size=50,
)


@WITHOUT_CLUSTER
@drawn(
    many=60, rows=tables, totals=st.sampled_from(TOTALS), nulls=st.booleans(),
    cap=st.none() | st.integers(1, 4), rank=st.none() | st.integers(1, 9),
)  # fmt: skip
def test_totals_are_the_different_users_of_all_values(
    engine: Factory, rows: Rows, totals: tuple[str, ...], nulls: bool, cap: int | None, rank: int | None
) -> None:
    nulls = nulls and len(totals) == 1
    wanted = task(
        table_of(rows, **TYPES), portable=True, items=ITEMS, totals=totals, null_items=nulls,
        max_items_per_user=cap, rank=rank,
    )  # fmt: skip
    expected = counts_by_hand(kept_by_hand(with_totals(rows, totals, nulls), cap, True, KEY))
    assert histogram(engine, wanted) == expected
    if rank is not None:
        with engine(Resources()).count(wanted) as counted:
            assert counted.at_rank == (sorted(expected.values(), reverse=True) + [0] * rank)[rank - 1]


@EACH_ENGINE
def test_a_total_counts_users_and_not_rows(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 1, 2, 2], "day": [1, 1, 2, 1, 1], "country": ["a", "b", "a", "a", "a"]})
    assert histogram(engine, task(table, items=ITEMS, totals=("country",))) == {
        (1, "a", False): 2, (1, "b", False): 1, (2, "a", False): 1, (1, None, True): 2, (2, None, True): 1,
    }  # fmt: skip
    # Of a single column the total is of all users.
    assert histogram(engine, task(table, items="country", totals=("country",))) == {
        ("a", False): 2, ("b", False): 1, (None, True): 2,
    }  # fmt: skip


@WITHOUT_CLUSTER
def test_sums_and_vectors_of_totals_are_clamped_for_the_total(engine: Factory) -> None:
    rows = some_rows(3)
    names = {"x": pa.float64(), "y": pa.float64()}
    vector = tuple(Value(name, Fraction(-3), Fraction(3), 1 << 16, vector=1) for name in names)
    values = (value("x", -1, 4), *vector)
    marked = table_of(with_totals(rows, ITEMS), **TYPES, total=pa.bool_(), **names)
    by_hand = rows_of(engine, task(marked, items=(*ITEMS, "total"), null_items=True, values=values))
    found = rows_of(engine, task(table_of(rows, **TYPES, **names), items=ITEMS, totals=ITEMS, values=values))
    assert sorted(found, key=repr) == sorted(by_hand, key=repr)
    sums = {row[:3]: row[4] for row in found}
    for day in range(4):
        own = [[row[3] for row in rows if row[:2] == (user, day)] for user in range(30)]
        assert sums[day, None, True] == sum(own_steps(cells, values[0]) for cells in own if cells)


@EMBEDDED
@drawn(
    many=60, rows=tables, totals=st.sampled_from(TOTALS), nulls=st.booleans(), most=st.integers(2, 6),
    known=st.sampled_from(["none", "known", "listed"]), seed=st.integers(0, 999),
)  # fmt: skip
def test_rounds_with_totals_are_those_of_brute_force(
    engine: RoundsFactory, rows: Rows, totals: tuple[str, ...], nulls: bool, most: int, known: str, seed: int
) -> None:
    check_rounds(engine, rows, totals, nulls and len(totals) == 1, most, known, seed)


def check_rounds(
    engine: RoundsFactory, rows: Rows, totals: tuple[str, ...], nulls: bool, most: int, known: str, seed: int
) -> None:
    table = table_of(rows, **TYPES)
    entries = {
        (1, "a", False), (9, "a", False), (0, "", False), (1, None, True), (9, None, True), (None, "b", True),
    }  # fmt: skip
    if "day" not in totals:
        entries.remove((None, "b", True))
    if "country" not in totals:
        entries -= {(1, None, True), (9, None, True)}
    # These can be in no release with these totals, so they are left out.
    never = [(None, None, True), (1, "a", None), (1, "a", True)] + ([] if nulls else [(1, None, False)])
    columns = list(zip(*entries, *never, strict=True))
    kinds = (pa.int64(), pa.string(), pa.bool_())
    listed = pa.table({
        name: pa.array(column, kind) for name, column, kind in zip((*ITEMS, "total"), columns, kinds, strict=True)
    })  # fmt: skip
    of_list = events(listed, items=(*ITEMS, "total"), totals=totals, null_items=nulls)
    more: dict[str, Any] = {} if known == "none" else {"known": of_list, "listed": known == "listed"}
    wanted = rounds_task(table, items=ITEMS, totals=totals, null_items=nulls, most_items=most, **more)
    if nulls and "country" in totals:
        entries.add((None, None, True))  # a total of the missing day
    check(
        engine,
        wanted,
        with_totals(rows, totals, nulls),
        {one: one for one in entries} if more else None,
        seed=seed,
    )


@QUICK_ON_DUCKDB
def test_lists_say_which_of_their_entries_are_totals(engine: Factory, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(
        "total,country,day\ntrue,,1\nfalse,a,1\nTRUE,,7\nno,b,1\nfalse,,2\ntrue,a,1\n"
    )
    listed = events(tmp_path / "list.csv", items=(*ITEMS, "total"), totals=("country",))
    table = pa.table({"user": [1, 2, 2], "day": [1, 1, 1], "country": ["a", "b", "c"]})
    found = histogram(engine, task(table, items=ITEMS, totals=("country",), public_items=listed))
    # The total has the users of all countries, also of those that are not listed.
    assert found == {("1", None, True): 2, ("1", "a", False): 1, ("7", None, True): 0, ("1", "b", False): 1}
    assert engine(Resources()).size(listed) == 4


@EMBEDDED
@pytest.mark.parametrize("kind", [*FILES, *OBJECTS])
def test_totals_of_all_inputs(engine: Factory, tmp_path: Path, kind: str) -> None:
    rows = [row[:3] for row in some_rows(4)]
    source = written(table_of(rows, **TYPES), tmp_path, kind)
    wanted = task(
        source, items=ITEMS, totals=ITEMS, **({"table": "events"} if "db" in kind or "sql" in kind else {})
    )
    if is_refused(engine, wanted, kind):
        return
    expected = counts_by_hand(kept_by_hand(with_totals(rows, ITEMS), None, True))
    assert {tuple(map(str, item)): n for item, n in histogram(engine, wanted).items()} == {
        tuple(map(str, item)): n for item, n in expected.items()
    }


@EACH_ENGINE
@pytest.mark.parametrize("limit", [2, 7, 30])
def test_a_user_changes_only_their_own_rows_and_totals(engine: Factory, tmp_path: Path, limit: int) -> None:
    """Exact, on counts without noise; with the choice of each engine, which cannot be computed by hand."""
    rows = [row[:4] for row in some_rows(6)]
    rows += [(99, day, country, far) for day in range(9) for country in "abcdz" for far in (1e308, -5.0)]
    plan = dphist.plan(epsilon=1.0, delta=1e-3, max_items_per_user=limit, sums=[(-5, 5)])
    both = []
    for name, content in (("with", rows), ("without", [row for row in rows if row[0] != 99])):
        pq.write_table(table_of(content, **TYPES, x=pa.float64()), tmp_path / f"{name}.parquet")
        both.append(events(str(tmp_path / f"{name}.parquet"), items=ITEMS, totals=ITEMS))
    found = contribution_of_user(engine(Resources()), plan, both[0], both[1], summed=["x"])
    assert found.problem is None
    assert int((found.counts - found.neighbour)[:, 0].sum()) == limit
