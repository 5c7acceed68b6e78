"""Counting in rounds on DuckDB: users and items become whole numbers once, and rounds work on pairs of these.

The tables are in the memory of the session, or in its private folder. `task.RoundsCount` says what is counted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.aliases import ChunkedArray
from dphist.counting import sql
from dphist.counting.sql import ITEMS, Pairs
from dphist.counting.task import RoundsTask, Secret
from dphist.counting.workspace import MEGABYTE

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from dphist.counting.duckdb import DuckDBSession

T = TypeVar("T")
IntArray = NDArray[np.int64]

# Distinct pairs as they are read, and the number of items of all users.
ONCE: Final = "dphist_once"
USERS: Final = "dphist_users_once"
NUMBERED: Final = "dphist_numbered"
# The items by number; the pairs of the users with several items, as numbers; how many pairs each of them has; and
# all items of the users who have more than count.
NAMES: Final = "dphist_items"
PAIRS: Final = "dphist_pairs"
SEVERAL: Final = "dphist_several"
MANY: Final = "dphist_many"
# The pairs of a round and the weights of its users; the weights of the first round, with the most that later ones
# allow.
LIVE: Final = "dphist_live"
WEIGHTS: Final = "dphist_weights"
FIRST: Final = "dphist_first"
# The pairs of the found items, and how many of them each user has.
FOUND: Final = "dphist_found"
FOUND_USERS: Final = "dphist_found_users"
# A registered array of item numbers.
CHOSEN: Final = "dphist_chosen"
# DuckDB groups whole numbers by arrays, several times as fast as by hash tables, if their range is within 2^bits.
# It uses one array per thread and one more, outside of its memory limit: part of the limit is left to them.
NEEDED: Final = 500 * MEGABYTE
SHARE: Final = 4
ENTRY: Final = 18  # bytes
DEFAULT_BITS: Final = 12
MOST_BITS: Final = 32


def drop_beyond(pairs: Pairs, most: int, order: str) -> str:
    """The statement that removes the items beyond the limit, of the few users who have more."""
    many = f"SELECT u FROM {USERS} WHERE {ITEMS} > {most}"
    rank = f"row_number() OVER (PARTITION BY u ORDER BY {order}, {', '.join(pairs.items)})"
    ranked = f"SELECT rowid AS id, {rank} AS place FROM {ONCE} SEMI JOIN ({many}) USING (u)"
    return f"DELETE FROM {ONCE} WHERE rowid IN (SELECT id FROM ({ranked}) WHERE place > {most})"


def numbered_items(pairs: Pairs, known: str | None, ordered: bool) -> str:
    """The query of the items: number `i`, values i0, ..., whether they are `known`, and keys k0, ... of a list."""
    items, listed = pairs.items, pairs.listed is not None
    names = ", ".join(items)
    if listed:
        entries = ", ".join(f"p{k} AS {item}" for k, item in enumerate(items))
        keys = ", ".join(f"k{k}" for k in range(len(items)))
        rows = f"SELECT {entries}, {keys}, matched, TRUE AS known FROM {known}"
    elif known is not None:
        keys = ", ".join(f"k{k} AS {item}" for k, item in enumerate(items))
        both = (
            f"SELECT {names}, FALSE AS known FROM {ONCE} UNION ALL "
            f"SELECT {keys}, TRUE AS known FROM {known} WHERE matched"
        )
        rows = f"SELECT {names}, bool_or(known) AS known FROM ({both}) GROUP BY {names}"
    else:
        rows = f"SELECT DISTINCT {names}, FALSE AS known FROM {ONCE}"
    order = f"ORDER BY {names}" if ordered else ""
    return f"SELECT CAST(row_number() OVER ({order}) - 1 AS INTEGER) AS i, * FROM ({rows})"


def with_item_numbers(pairs: Pairs) -> str:
    """The query of the pairs with the numbers `i` of the items, and the sums."""
    keys = [f"k{k}" for k in range(len(pairs.items))] if pairs.listed is not None else pairs.items
    same = [f"o.{item} {pairs.equal} n.{key}" for item, key in zip(pairs.items, keys, strict=True)]
    if pairs.listed is not None:
        same.append("n.matched")
    columns = ["o.u", "n.i", *(f"o.{v}" for v in sql.sum_names(pairs.values))]
    return f"SELECT {', '.join(columns)} FROM {ONCE} AS o JOIN {NAMES} AS n ON {' AND '.join(same)}"


def with_user_numbers(source: str, users: str) -> str:
    """The query of the pairs with the numbers `u` of these users."""
    return f"SELECT number AS u, * EXCLUDE (u, number) FROM {source} JOIN ({users}) AS m USING (u)"


def look_up(weights: Sequence[int], place: str) -> str:
    """The entry of a list by a number from 1."""
    return f"CAST(([{', '.join(map(str, weights))}])[{place}] AS BIGINT)"


@dataclass(eq=False, repr=False)
class DuckDBRounds(Secret):
    """Users, items and pairs in the tables of a session; see `task.RoundsCount`."""

    session: DuckDBSession
    task: RoundsTask
    pairs: Pairs
    listed: str | None
    what: str
    items: int = field(default=0, init=False)
    _tables: set[str] = field(default_factory=set, init=False)

    def read(self) -> None:
        """Read the events into tables."""
        task, pairs, most = self.task, self.pairs, self.task.most_items
        rows = self._create(ONCE, pairs.once())
        self._make_room()
        users = f"SELECT u, count(*) AS {ITEMS} FROM {ONCE} GROUP BY u"
        with self._arrays(rows):
            self._create(USERS, f"SELECT *, CAST(row_number() OVER () AS INTEGER) AS number FROM ({users})")
        if self._rows(f"SELECT 1 FROM {USERS} WHERE {ITEMS} > {most} LIMIT 1"):
            self._rows(drop_beyond(pairs, most, sql.item_order(task.choice, pairs.items)))
        self._create(NAMES, numbered_items(pairs, self.listed, task.ordered))
        self.items = int(self._rows(f"SELECT count(*) FROM {NAMES}")[0][0])
        several = f"FROM {USERS}" + (f" WHERE {ITEMS} > 1" if task.alone else "")
        numbered = f"({with_item_numbers(pairs)})"
        if not self._entries:
            # With little memory one join at a time.
            self._create(NUMBERED, numbered)
            numbered = NUMBERED
        self._size = self._create(PAIRS, with_user_numbers(numbered, f"SELECT u, number {several}"))
        self._create(SEVERAL, f"SELECT number AS u, least({ITEMS}, {most}) AS n {several}")
        self._create(MANY, f"SELECT number AS u, {ITEMS} AS n FROM {USERS} WHERE {ITEMS} > {most}")
        self._alone = np.zeros(self.items, np.int64)
        if task.alone:
            alone = with_user_numbers(numbered, f"SELECT u, number FROM {USERS} WHERE {ITEMS} = 1")
            self._alone = self._by_item(f"SELECT i, count(*) AS n FROM ({alone}) GROUP BY i")[0]
        for table in (ONCE, USERS, NUMBERED):
            self._rows(f"DROP TABLE IF EXISTS {table}")
        self._live = ""  # before the first round
        self._on_lists = np.ones(self.items, bool)
        self._found: IntArray | None = None

    @cached_property
    def known(self) -> NDArray[np.bool_]:
        known = np.zeros(self.items, bool)
        if self.listed is not None:
            known[self._numbers(f"SELECT i FROM {NAMES} WHERE known")["i"]] = True
        return known

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        present = ~self.known | (self._alone > 0)
        if self.listed is not None:
            present[self._numbers(f"SELECT DISTINCT i FROM {PAIRS}")["i"]] = True
        return present

    def alone(self) -> IntArray:
        return self._alone

    def leave(self, gone: IntArray) -> None:
        self._on_lists[gone] = False

    def round(self) -> IntArray:
        most = range(1, self.task.most_items + 1)
        own = look_up([self.task.first_weight(n) for n in most], "n")
        total = "SELECT i, CAST(sum(weight) AS BIGINT) AS n"
        if not self._live:
            self._live = PAIRS
            later = look_up([self.task.most_weight(n) for n in most], "n")
            with self._arrays(self._size):
                self._create(FIRST, f"SELECT u, {own} AS weight, {later} AS later FROM ({self._first_users()})")
                (sums,) = self._by_item(f"{total} FROM {PAIRS} JOIN {FIRST} USING (u) GROUP BY i")
            # Only the users were counted without the items that have left.
            return np.where(self._on_lists, sums, 0)
        on_lists = self._only(np.flatnonzero(self._on_lists))
        rows = self._create(LIVE, f"SELECT u, i FROM {self._live} {on_lists}")
        self._live = LIVE
        users = f"SELECT u, count(*) AS n FROM {LIVE} GROUP BY u"
        with self._arrays(rows):
            self._create(WEIGHTS, f"SELECT u, least({own}, later) AS weight FROM ({users}) JOIN {FIRST} USING (u)")
        return self._by_item(f"{total} FROM {LIVE} JOIN {WEIGHTS} USING (u) GROUP BY i")[0]

    def _first_users(self) -> str:
        """The query of the users with an item on their list in the first round, and their number `n` of these."""
        gone = np.flatnonzero(~self._on_lists)
        if not gone.size:
            return SEVERAL
        left = f"SELECT u, count(*) AS gone FROM {PAIRS} {self._only(gone)} GROUP BY u"
        users = f"SELECT u, n - coalesce(gone, 0) AS n FROM {SEVERAL} LEFT JOIN ({left}) USING (u)"
        return f"SELECT * FROM ({users}) WHERE n > 0"

    def sizes(self, found: IntArray, bounds: Sequence[int]) -> list[int]:
        self._restrict_to_found(found)
        counts = [0] * len(bounds)
        users = f"{FOUND_USERS} AS found LEFT JOIN {MANY} AS many USING (u)"
        for items, number in self._rows(f"SELECT coalesce(many.n, found.n), count(*) FROM {users} GROUP BY 1"):
            counts[bisect_left(bounds, items)] += number
        return counts

    def measure(self, found: IntArray, limit: int) -> tuple[IntArray, ...]:
        task, names = self.task, sql.sum_names(self.pairs.values)
        self._restrict_to_found(found)
        weight = look_up([task.measure_weight(n, limit) for n in range(1, task.most_items + 1)], "n")
        parts = [
            f"CAST(sum({sql.weighted_sum(v, value, task.lattice, '//')}) AS BIGINT) AS {v}"
            for v, value in zip(names, self.pairs.values, strict=True)
        ]
        totals = ", ".join(["CAST(sum(weight) AS BIGINT) AS n", *parts])
        users = f"SELECT u, {weight} AS weight FROM {FOUND_USERS}"
        columns = self._by_item(f"SELECT i, {totals} FROM {FOUND} JOIN ({users}) USING (u) GROUP BY i")
        return tuple(column[found] for column in columns)

    def rows(self, found: IntArray) -> list[ChunkedArray]:
        chosen = pa.table({"i": found, "place": np.arange(len(found))})
        query = f"SELECT {', '.join(self.pairs.items)} FROM {CHOSEN} JOIN {NAMES} USING (i) ORDER BY place"
        self._run(lambda connection: connection.register(CHOSEN, chosen))
        return self.session.table(query, self.what).columns

    def close(self) -> None:
        for table in self._tables:
            self._rows(f"DROP TABLE IF EXISTS {table}")
        self._run(lambda connection: connection.unregister(CHOSEN))
        self._rows(f"SET memory_limit = '{self._memory}B'")

    def _run(self, action: Callable[[DuckDBPyConnection], T]) -> T:
        return self.session.run(lambda: action(self.session.connection), self.what)

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.session.execute(statement, self.what)

    def _numbers(self, query: str) -> dict[str, NDArray[Any]]:
        return self._run(lambda connection: connection.execute(query).fetchnumpy())

    def _create(self, table: str, query: str) -> int:
        """Create a table; the number of its rows."""
        self._tables.add(table)
        return int(self._rows(f"CREATE OR REPLACE TEMP TABLE {table} AS {query}")[0][0])

    def _make_room(self) -> None:
        settings = "SELECT getvariable('dphist_memory'), current_setting('threads')"
        ((self._memory, threads),) = self._rows(settings)
        room = max(0, self._memory - NEEDED) // SHARE
        self._rows(f"SET memory_limit = '{self._memory - room}B'")
        self._entries = room // ((int(threads) + 1) * ENTRY)

    @contextmanager
    def _arrays(self, rows: int) -> Iterator[None]:
        """Let queries over so many rows use arrays: at most as long, and as long as the memory allows."""
        bits = min(rows, self._entries).bit_length() - 1
        self._rows(f"SET perfect_ht_threshold = {min(max(bits, DEFAULT_BITS), MOST_BITS)}")
        yield
        self._rows("RESET perfect_ht_threshold")

    def _by_item(self, query: str) -> list[IntArray]:
        """Arrays by item number of the columns after the first, `i`; zeros for items without a row."""
        columns = self._numbers(query)
        arrays = []
        for name in list(columns)[1:]:
            array = np.zeros(self.items, np.int64)
            array[columns["i"]] = columns[name]
            arrays.append(array)
        return arrays

    def _only(self, chosen: IntArray) -> str:
        """The end of a query that keeps pairs with these items."""
        items = pa.table({"i": chosen.astype(np.int32)})
        self._run(lambda connection: connection.register(CHOSEN, items))
        return f"SEMI JOIN {CHOSEN} USING (i)"

    def _restrict_to_found(self, found: IntArray) -> None:
        if self._found is None or not np.array_equal(found, self._found):
            rows = self._create(FOUND, f"SELECT * FROM {PAIRS} {self._only(found)}")
            with self._arrays(rows):
                self._create(FOUND_USERS, f"SELECT u, count(*) AS n FROM {FOUND} GROUP BY u")
            self._found = found.copy()
