"""The embedded engine: DuckDB in this process, within a memory limit, spilling to a private folder.

Values: a user that is NaN is a user like any other (only NULL is none); -0.0 and 0.0 are one value, and so are all
NaNs. Times with a zone are instants, in UTC. Values of types that other programs may not know (UUID, very large
integers, intervals) are counted by their text. See `text_files` for CSV and JSON, `frames` for pandas
and `sqlite_file` for SQLite.

Types come from schemas and never from values: else one user's row could change all counts or the output's schema.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, TypeVar

from dphist.counting.databases import database_kind, duckdb_source, postgres_source, sqlite_source
from dphist.counting.events import Events, is_frame
from dphist.counting.files import file_source, files_of
from dphist.counting.frames import Opened, Source, frame_source, read_once, require
from dphist.counting.sql import (
    COUNT,
    Pairs,
    Rows,
    as_text,
    bind,
    columns_of,
    fast_order,
    histogram,
    kept,
    no_number,
    portable_order,
    public_list,
    repeats,
    sized,
    sizes,
)
from dphist.counting.sql import number as number_of
from dphist.counting.task import Choice, Counted, Progress, Resources, Task
from dphist.counting.workspace import attempt, connected, private_folder
from dphist.errors import InputError, InvalidParameter

# Running queries so that Ctrl-C stops them and somebody can watch.

T = TypeVar("T")
TICK: Final = 0.2


class Runner:
    """Runs each query of one connection in a thread of its own.

    The calling thread only waits: so it hears Ctrl-C at once, and it is the one that reports progress.
    """

    def __init__(self, connection: Any, progress: Progress | None) -> None:
        self._connection = connection
        self._progress = progress
        self._shown = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dphist")

    def run(self, action: Callable[[], T]) -> T:
        """The action's result; on any interruption the query is stopped first."""
        future = self._pool.submit(action)
        try:
            while not wait([future], timeout=TICK).done:
                self._look()
        except BaseException:
            self._stop(future)
            raise
        return future.result()

    def _stop(self, future: Future[T]) -> None:
        # An interrupt before the query has begun is lost, so it is repeated.
        while not future.done():
            self._connection.interrupt()
            wait([future], timeout=0.05)

    def _look(self) -> None:
        if self._progress is not None:
            with suppress(Exception):
                self._show(min(self._connection.query_progress() / 100.0, 0.99))

    def _show(self, share: float) -> None:
        # A second query begins again at zero, and an unknown share is negative: what is shown only grows.
        if share > self._shown and self._progress is not None:
            self._shown = share
            self._progress(share)

    def finished(self) -> None:
        """All of the work is done."""
        with suppress(Exception):
            self._show(1.0)

    def close(self) -> None:
        """No more queries."""
        self._pool.shutdown(wait=True)


# How many users have how many different items: what engines share of it.


def checked_sizes(task: Task, bounds: Sequence[int]) -> None:
    """Errors of the bounds, and of inputs that could not be counted afterwards; nothing is read yet."""
    if not bounds or any(isinstance(bound, bool) or not isinstance(bound, int) for bound in bounds):
        raise InvalidParameter("the bounds of sizes must be whole numbers, at least one")
    if bounds[0] < 1 or any(low >= high for low, high in pairwise(bounds)):
        raise InvalidParameter("the bounds of sizes must be at least 1 and increase")
    for events in (task.events, task.public_items):
        what = None if events is None else read_once(events.source)
        if what is not None:
            raise InputError(f"{what} can be read only once: give a cap by number (max_items_per_user=)")


def in_buckets(found: Iterable[Sequence[int]], bounds: Sequence[int]) -> list[int]:
    """Users by their number of items: at most the first bound, the second, ..., and more than the last.

    `found` has each number of items once, with the number of users that have as many: so every user is in one
    bucket.
    """
    counts = [0] * (len(bounds) + 1)
    for items, users in found:
        counts[bisect_left(bounds, items)] += users
    return counts


# From `Events` to rows: which source it is, which columns are wanted, and whether the condition is one.


def source_of(connection: Any, events: Events, label: str) -> Source:
    """The source that the events are in."""
    source = events.source
    if isinstance(source, str) and re.match(r"postgres(ql)?://", source):
        return postgres_source(source, events)
    if isinstance(source, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source):
        scheme = source.split("://", 1)[0]
        raise InputError(f"events cannot be read from {scheme}:// addresses; download the files first")
    if is_frame(source):
        no_database(events, "data in memory")
        return frame_source(source, as_text=events.as_text)
    files, kind = files_of(source, events.file_format)
    if kind not in ("duckdb", "sqlite", "db"):
        no_database(events, "files")
        return file_source(connection, files, kind)
    if len(files) > 1:
        raise InputError(f"a database must be a single file, and {len(files)} were given")
    if database_kind(files[0], kind) == "sqlite":
        return sqlite_source(files[0], events)
    return duckdb_source(connection, files[0], events, label)


def no_database(events: Events, kind: str) -> None:
    """One sentence if a table or a query is asked of what has none."""
    if events.table is not None or events.query is not None:
        given = "table" if events.table is not None else "query"
        raise InputError(f"a {given} is for databases; to choose rows of {kind} use a condition (where)")


def opened_rows(
    connection: Any,
    events: Events,
    label: str,
    probe: bool,
    with_user: bool = True,
    summed: Sequence[str] = (),
) -> tuple[Rows, Opened, str]:
    """The rows of the events (user first, then the item's columns), and what they are called in a sentence.

    A public list has no user. The columns that are `summed` must be of types that have numbers.
    """
    source = source_of(connection, events, label)
    values = ([events.user] if with_user else []) + [column.source for column in events.items]
    numbers = list(dict.fromkeys(summed))
    require(source, [*values, *numbers])
    named = [] if events.where is None else columns_of(connection, events.where, source.names)
    require(source, named)
    opened = source.open(connection, list(dict.fromkeys([*values, *named, *numbers])), label, probe)
    read = {column: _read(events, *opened.columns[column]) for column in (*values, *named)}
    if events.where is not None:
        bind(connection, events.where, {column: read[column][1] for column in named}, source.names)
    rows = Rows(
        opened.relation,
        tuple((*read[column], column) for column in values),
        tuple((read[column][0], column) for column in named),
        events.where,
        with_user,
        tuple((*opened.columns[column], column) for column in numbers),
    )
    rows.types()
    for number in rows.numbers:
        number_of(*number)
        if events.as_text and number[1] == "BOOLEAN":
            raise no_number(number[2])
    return rows, opened, source.what


def _read(events: Events, expression: str, kind: str) -> tuple[str, str]:
    """A column as it is counted, and its type; lists and structures become text later, as JSON."""
    text = as_text(expression, kind) if events.as_text else expression
    return (text, "VARCHAR") if text != expression else (expression, kind)


# Rows of a batch: at most 64 MB for each column of text, and usually a few hundred kilobytes.
ROWS: Final = 1 << 13
LISTED: Final = "dphist_listed"
COUNTS: Final = "dphist_counts"
SIZED: Final = "dphist_sized"
# Below so many rows for each different one, ranking all of them is quicker than making them distinct first.
_FEW_REPEATS: Final = 1.5
LARGEST: Final = 2**53
STOPPED: Final = "{what} cannot be counted: it is damaged, or holds values that its reader does not understand"


@dataclass(frozen=True)
class DuckDBEngine:
    """Counts with DuckDB."""

    resources: Resources = field(default_factory=Resources)

    @property
    def name(self) -> str:
        """What it is called."""
        return "duckdb"

    def check(self, task: Task) -> None:
        """Raise `InputError` if the events cannot be read or lack a column; nothing is counted yet."""
        with self._session(None) as session:
            session.prepare(task, probe=True)

    def size(self, public_items: Events) -> int:
        """The number of different items of a public list."""
        with self._session(None) as session:
            return session.size(public_items)

    def public_table(self, listed: Events, kinds: list[str], null_items: bool) -> Any:
        """A public list as an Arrow table: entries, their keys in these types, and which of them match."""
        with self._session(None) as session:
            return session.public_table(listed, kinds, null_items)

    @contextmanager
    def count(self, task: Task, progress: Progress | None = None) -> Iterator[Counted]:
        """Count. On leaving the context everything temporary is gone."""
        with self._session(progress) as session:
            yield session.counted(task)

    def sizes(self, task: Task, bounds: Sequence[int], progress: Progress | None = None) -> list[int]:
        """How many users have how many different items, by bounds; see `Engine.sizes`."""
        checked_sizes(task, bounds)
        with self._session(progress) as session:
            return in_buckets(session.sizes(replace(task, values=())), bounds)

    def shape(self, events: Events, caps: Callable[[int], Sequence[int]]) -> tuple[list[tuple[int, int]], Any]:
        """Of public data alone: users by their number of items, and groups of items under the caps.

        `caps` are told by the largest number of items of a user. See `counts_sql.kept` for the columns.
        """
        with self._session(None) as session:
            return session.shape(Task(events, Choice(bytes(32))), caps)

    @contextmanager
    def _session(self, progress: Progress | None) -> Iterator[Session]:
        with private_folder(self.resources.folder) as folder:
            connection = connected(self.resources, folder)
            runner = Runner(connection, progress)
            try:
                yield Session(connection, runner)
            finally:
                runner.close()
                connection.close()


@dataclass(frozen=True)
class Query:
    """The query of a histogram, its item columns, and what has to be run before it."""

    text: str
    items: list[str]
    before: str | None
    what: str


@dataclass(frozen=True)
class Session:
    """One connection and the queries of one task on it."""

    connection: Any
    runner: Runner

    def run(self, action: Callable[[], T], what: str) -> T:
        """Run on the connection; what goes wrong is one sentence without data."""
        return attempt(lambda: self.runner.run(action), what, STOPPED)

    def prepare(self, task: Task, probe: bool) -> Query:
        """Open the events and the public list, and write the query."""
        pairs, opened, what = self._pairs(task, probe)
        order = (portable_order if task.choice.portable else fast_order)(task.choice.key, pairs.items)
        # With sums a user's rows of an item are brought together anyway.
        look = opened.again and task.max_items_per_user is not None and not task.values and not probe
        few = look and self._few_repeats(repeats(pairs), what)
        text, items = histogram(pairs, task.max_items_per_user, order, task.lower_threshold, few)
        return Query(text, items, opened.before, what)

    def _pairs(self, task: Task, probe: bool) -> tuple[Pairs, Opened, str]:
        """Open the events, and make a table of the public list."""
        events, listed = task.events, task.public_items
        checked(task)
        summed = [value.column for value in task.values]
        rows, opened, what = self._open(events, "dphist_events", probe, summed=summed)
        if listed is not None:
            entries, place, name = self._open(listed, "dphist_public", probe, with_user=False)
            make = f"CREATE TEMP TABLE {LISTED} AS {public_list(entries, rows.types()[1:], events.null_items)}"
            if not probe:
                self._execute(place.before, make, f"{name} (the public items)")
        return Pairs(events, rows, None if listed is None else LISTED, task.values), opened, what

    def _few_repeats(self, query: str, what: str) -> bool:
        """Whether most rows of a user differ, by a look at some users; it decides about speed alone."""
        found, different = self.run(lambda: self.connection.execute(query).fetchall()[0], what)
        return bool(found <= _FEW_REPEATS * different)

    def _open(
        self, events: Events, label: str, probe: bool, with_user: bool = True, summed: Sequence[str] = ()
    ) -> tuple[Rows, Opened, str]:
        # Looking at an input can take long too: a server may be slow, and files may be many.
        return self.runner.run(lambda: opened_rows(self.connection, events, label, probe, with_user, summed))

    def size(self, listed: Events) -> int:
        """How many different entries a public list has, in its own types."""
        rows, place, what = self._open(listed, "dphist_public", False, with_user=False)
        entries = [f"p{k}" for k in range(len(listed.items))]
        chosen = rows.select(entries, [] if listed.null_items else entries)
        make = f"CREATE TEMP TABLE {LISTED} AS SELECT count(*) FROM (SELECT DISTINCT * FROM ({chosen}))"
        self._execute(place.before, make, f"{what} (the public items)")
        return int(self.connection.execute(f"FROM {LISTED}").fetchall()[0][0])

    def public_table(self, listed: Events, kinds: list[str], null_items: bool) -> Any:
        """The table of a public list."""
        rows, place, name = self._open(listed, "dphist_public", False, with_user=False)
        make = f"CREATE TEMP TABLE {LISTED} AS {public_list(rows, kinds, null_items)}"
        self._execute(place.before, make, f"{name} (the public items)")
        return self.connection.sql(f"FROM {LISTED}").to_arrow_table()

    def _execute(self, before: str | None, statement: str, what: str) -> None:
        def both() -> None:
            self.connection.execute(before or "USE memory")
            self.connection.execute(statement)

        self.run(both, what)

    def counted(self, task: Task) -> Histogram:
        """The histogram: straight from the query, or from a table if a rank of it is needed first."""
        query = self.prepare(task, probe=False)
        order = f" ORDER BY {', '.join(query.items)}" if task.ordered else ""
        if task.rank is None:
            self.connection.execute(query.before or "USE memory")
            return self._stream(query.text + order, 0, query.what)
        self._execute(query.before, f"CREATE TEMP TABLE {COUNTS} AS {query.text}", query.what)
        ranked = f"SELECT {COUNT} FROM {COUNTS} ORDER BY {COUNT} DESC LIMIT 1 OFFSET {task.rank - 1}"
        found = self.run(lambda: self.connection.execute(ranked).fetchall(), query.what)
        return self._stream(f"SELECT * FROM {COUNTS}{order}", int(found[0][0]) if found else 0, query.what)

    def sizes(self, task: Task) -> list[tuple[int, int]]:
        """Numbers of different items, and how many users have as many."""
        pairs, opened, what = self._pairs(task, probe=False)
        query = sizes(pairs)

        def found() -> list[tuple[int, int]]:
            self.connection.execute(opened.before or "USE memory")
            return [(int(items), int(users)) for items, users in self.connection.execute(query).fetchall()]

        rows = self.run(found, what)
        self.runner.finished()
        return rows

    def shape(self, task: Task, caps: Callable[[int], Sequence[int]]) -> tuple[list[tuple[int, int]], Any]:
        """Sizes of users, and a table of groups of items."""
        pairs, opened, what = self._pairs(task, probe=False)
        self._execute(opened.before, f"CREATE TEMP TABLE {SIZED} AS {sized(pairs)}", what)
        users = f"SELECT items, count(*) // items FROM {SIZED} GROUP BY items ORDER BY items"
        found = [(int(n), int(u)) for n, u in self.run(lambda: self.connection.execute(users).fetchall(), what)]
        query = kept(pairs, SIZED, caps(found[-1][0] if found else 1))
        return found, self.run(lambda: self.connection.sql(query).to_arrow_table(), what)

    def _stream(self, text: str, at_rank: int, what: str) -> Histogram:
        # A relation's reader streams; the reader of an executed query would copy the whole result first.
        reader = self.run(lambda: self.connection.sql(text).to_arrow_reader(ROWS), what)
        return Histogram(reader.schema, at_rank, reader, self, what)


@dataclass(frozen=True)
class Histogram:
    """Counts as they come from the query."""

    schema: Any
    at_rank: int = field(repr=False)  # a true count, a secret
    reader: Any
    session: Session
    what: str

    def batches(self) -> Iterator[Any]:
        """Arrow record batches, once."""
        while (batch := self.session.run(self._next, self.what)) is not None:
            if batch.num_rows:
                yield batch
        self.session.runner.finished()

    def _next(self) -> Any:
        return next(self.reader, None)


def checked(task: Task) -> None:
    """Errors of the task itself."""
    if len(task.choice.key) < 32:
        raise InvalidParameter("the key of the choice must have 32 bytes")
    for given, value in (("max_items_per_user", task.max_items_per_user), ("rank", task.rank)):
        if value is not None and value < 1:
            raise InvalidParameter(f"{given} must be at least 1, not {value!r}")
    for given, value in (("lower_threshold", task.lower_threshold), ("rank", task.rank)):
        if value is not None and value > LARGEST:
            raise InvalidParameter(f"{given} must be at most 2^53, not {value!r}")
    listed = task.public_items
    if listed is not None and len(listed.items) != len(task.events.items):
        raise InputError(
            f"the public items have {len(listed.items)} columns, and the item has {len(task.events.items)}"
        )
