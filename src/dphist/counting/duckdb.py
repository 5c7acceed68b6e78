"""The embedded engine: DuckDB in this process, within a memory limit, spilling to a private folder.

Values: a user that is NaN is a user like any other (only NULL is not); -0.0 and 0.0 are one value, and so are all
NaNs. Times with a zone are instants, in UTC. Values of types that other programs may not have (UUID, very large
integers, intervals) are counted by their text. See `files` for CSV and JSON, `frames` for pandas and `databases`
for SQLite.

Types come from schemas and never from values: else one user's row could change all counts or the output's schema.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from dphist.counting import expressions, sql
from dphist.counting.databases import database_source, postgres_source
from dphist.counting.files import file_source, files_of
from dphist.counting.frames import frame_source, read_once
from dphist.counting.sql import COUNT, Opened, Pairs, Rows, Source, demand
from dphist.counting.task import HALF_STEPS, Choice, Counted, Events, Progress, Resources, Task, is_frame
from dphist.counting.workspace import SessionKeeper, attempt, connect_duckdb, private_folder
from dphist.errors import InputError, InvalidParameter
from dphist.objects import is_postgres

T = TypeVar("T")

TICK: Final = 0.2
# Rows of a batch: at most 64 MB for each column of text, and usually a few hundred kilobytes.
ROWS: Final = 1 << 13
EVENTS: Final = "dphist_events"
PUBLIC: Final = "dphist_public"
LISTED: Final = "dphist_listed"
COUNTS: Final = "dphist_counts"
SIZED: Final = "dphist_sized"
# Below so many rows for each different one, ranking all of them is quicker than making them distinct first.
_FEW_REPEATS: Final = 1.5
LARGEST: Final = 2**53
STOPPED: Final = "{what} cannot be counted: it is damaged, or holds values that its reader does not understand"


@dataclass(eq=False)
class DuckDBEngine(SessionKeeper):
    """Counts with DuckDB."""

    resources: Resources = field(default_factory=Resources)
    name: str = field(default="duckdb", init=False)

    def check(self, task: Task) -> None:
        """Raise `InputError` if the events cannot be read or lack a column; nothing is counted yet."""
        with self._session() as session:
            session.pairs(task, probe=True)

    def columns(self, events: Events) -> list[str] | None:
        """Names of the columns, from a header or a schema; None for JSON, where only all rows could say it."""
        with self._session() as session:
            names = session._wait_for(lambda: source_of(session.connection, events, EVENTS, probe=True)).names
            return None if names is None else list(names)

    def check_list(self, public_items: Events) -> None:
        """Raise `InputError` if a public list lacks a column or cannot be read; it is not read yet."""
        with self._session() as session:
            session.make_list(public_items, sql.public_entries, probe=True)

    def size(self, public_items: Events) -> int:
        """The number of different items of a public list, in its own types."""
        with self._session() as session:
            session.make_list(public_items, sql.public_entries)
            return int(session.execute(f"SELECT count(*) FROM {LISTED}", "the public items")[0][0])

    def public_table(self, listed: Events, kinds: list[str], null_items: bool) -> Any:
        """A public list as an Arrow table: entries, their keys in these types, and which of them match.

        In the order of the entries: their places are part of seeded noise.
        """
        with self._session() as session:
            session.make_list(replace(listed, null_items=null_items), partial(sql.public_list, types=kinds))
            return session.connection.sql(f"FROM {LISTED} ORDER BY ALL").to_arrow_table()

    @contextmanager
    def count(self, task: Task, progress: Progress | None = None) -> Iterator[Counted]:
        """Count. On leaving the context everything temporary is gone."""
        with self._session(progress) as session:
            pairs, again, what = session.pairs(task)
            order = (sql.portable_order if task.choice.portable else sql.fast_order)(task.choice.key, pairs.items)
            # With sums or weights a user's rows of an item are brought together anyway.
            look = again and task.max_items_per_user is not None and not task.values and not task.weights
            few = False
            if look:  # some users show whether most rows of a user differ, which decides about speed alone
                found, different = session.execute(sql.repeats(pairs), what)[0]
                few = found <= _FEW_REPEATS * different
            query, items = sql.histogram(
                pairs, task.max_items_per_user, order, task.lower_threshold, few, task.weights
            )
            at_rank = 0
            if task.rank is not None:
                session.execute(f"CREATE OR REPLACE TEMP TABLE {COUNTS} AS {query}", what)
                ranked = f"SELECT {COUNT} FROM {COUNTS} ORDER BY {COUNT} DESC LIMIT 1 OFFSET {task.rank - 1}"
                rows = session.execute(ranked, what)
                at_rank = int(rows[0][0]) if rows else 0
                query = f"SELECT * FROM {COUNTS}"
            if task.ordered:
                query += f" ORDER BY {', '.join(items)}"
            # A relation's reader streams; the reader of an executed query would copy the whole result first.
            reader = session.run(lambda: session.connection.sql(query).to_arrow_reader(ROWS), what)
            yield Histogram(reader.schema, at_rank, reader, session, what)
            # Noise is drawn by now: what cannot be tidied up ends with the session, and is not an error.
            with suppress(Exception):
                reader.close()
                session.execute(f"DROP TABLE IF EXISTS {COUNTS}", what)

    def sizes(self, task: Task, bounds: Sequence[int], progress: Progress | None = None) -> list[int]:
        """How many users have how many different items, by bounds; see `Engine.sizes`."""
        check_sizes_task(task, bounds)
        with self._session(progress) as session:
            pairs, _, what = session.pairs(replace(task, values=()))
            rows = session.execute(sql.sizes(pairs), what)
            session.report_done()
            return in_buckets(rows, bounds)

    def shape(self, events: Events) -> tuple[list[tuple[int, int]], Any]:
        """Of public data alone: users by their number of items, and the users of like items by theirs.

        See `sql.users_by_size` for the columns.
        """
        with self._session() as session:
            pairs, _, what = session.pairs(Task(events, Choice(bytes(32))))
            session.execute(f"CREATE OR REPLACE TEMP TABLE {SIZED} AS {sql.pairs_with_sizes(pairs)}", what)
            users = f"SELECT items, count(*) // items FROM {SIZED} GROUP BY items ORDER BY items"
            found = [(int(n), int(u)) for n, u in session.execute(users, what)]
            query = sql.users_by_size(pairs, SIZED)
            return found, session.run(lambda: session.connection.sql(query).to_arrow_table(), what)

    @contextmanager
    def _session(self, progress: Progress | None = None) -> Iterator[Session]:
        with self._share(self._new_session) as session:
            session.progress, session.shown = progress, 0.0
            yield session

    @contextmanager
    def _new_session(self) -> Iterator[Session]:
        with private_folder(self.resources.folder) as folder, connect_duckdb(self.resources, folder) as connection:
            session = Session(connection)
            try:
                yield session
            finally:
                session.pool.shutdown(wait=True)


class Session:
    """One connection and the queries on it, each run in a thread of its own.

    The calling thread only waits: so it hears Ctrl-C at once, and it is the one that reports progress.
    """

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="dphist")
        self.progress: Progress | None = None
        self.shown = 0.0

    def run(self, action: Callable[[], T], what: str) -> T:
        """Run on the connection; a failure is one sentence without data."""
        return attempt(lambda: self._wait_for(action), what, STOPPED)

    def execute(self, statement: str, what: str) -> list[Any]:
        """The rows of a statement."""
        return self.run(lambda: self.connection.execute(statement).fetchall(), what)

    def _wait_for(self, action: Callable[[], T]) -> T:
        """The action's result; on any interruption the query is stopped first."""
        future = self.pool.submit(action)
        try:
            while not wait([future], timeout=TICK).done:
                with suppress(Exception):
                    self._show(min(self.connection.query_progress() / 100.0, 0.99))
        except BaseException:
            # An interrupt before the query has begun is lost, so it is repeated.
            while not future.done():
                self.connection.interrupt()
                wait([future], timeout=0.05)
            raise
        return future.result()

    def _show(self, share: float) -> None:
        # A second query begins again at zero, and an unknown share is negative: what is shown only grows.
        if share > self.shown and self.progress is not None:
            self.shown = share
            self.progress(share)

    def report_done(self) -> None:
        """All of the work is done."""
        with suppress(Exception):
            self._show(1.0)

    def pairs(self, task: Task, probe: bool = False) -> tuple[Pairs, bool, str]:
        """Open the events, and make a table of the public list. A probe reads nothing of either.

        Returns also whether a second look at the events is cheap, and what they are called in a sentence.
        """
        check_task(task)
        events, listed = task.events, task.public_items
        summed = [value.column for value in task.values]
        # Looking at an input can take long too: a server may be slow, and files may be many.
        rows, opened, what = self._wait_for(
            lambda: opened_rows(self.connection, events, EVENTS, probe, summed=summed)
        )
        if listed is not None:
            listed = replace(listed, null_items=events.null_items)
            self.make_list(listed, partial(sql.public_list, types=rows.types()[1:]), probe)
        pairs = Pairs(events, rows, None if listed is None else LISTED, task.values)
        if not probe:
            self.execute(opened.before, what)
        return pairs, opened.again, what

    def make_list(self, listed: Events, query: Callable[[Rows, bool], str], probe: bool = False) -> None:
        """Make a table of a query on a public list."""
        rows, opened, what = self._wait_for(
            lambda: opened_rows(self.connection, listed, PUBLIC, probe, with_user=False)
        )
        statement = f"CREATE OR REPLACE TEMP TABLE {LISTED} AS {query(rows, listed.null_items)}"
        if not probe:
            self.execute(opened.before, what)
            self.execute(statement, f"{what} (the public items)")


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
        while (batch := self.session.run(lambda: next(self.reader, None), self.what)) is not None:
            if batch.num_rows:
                yield batch
        self.session.report_done()


def check_task(task: Task) -> None:
    """Raise errors of the task itself."""
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
    if task.weights:
        check_weights(task)


def check_weights(task: Task) -> None:
    """Raise `InvalidParameter` if the weights are not levels of the task; see `Task`."""
    levels, unit = task.weights, task.weights[0][1]
    if any(type(number) is not int or number < 1 for level in levels for number in level):
        raise InvalidParameter("the weights must be levels of whole numbers, at least 1")
    if any(low[0] >= high[0] or low[1] <= high[1] for low, high in pairwise(levels)):
        raise InvalidParameter("the items of the weights must increase, and the steps decrease")
    # Within it no count and no product leaves 64 bits.
    if unit % 2 or unit > HALF_STEPS:
        raise InvalidParameter(f"the steps of the first weight must be even and at most 2^20, not {unit!r}")
    if levels[-1][0] != task.max_items_per_user:
        raise InvalidParameter(
            f"max_items_per_user must be the items of the last weight, {levels[-1][0]}, "
            f"not {task.max_items_per_user!r}"
        )
    if task.lower_threshold > 1:
        raise InvalidParameter("weights do not go together with a lower_threshold")
    if any(value.half_steps * steps % unit for value in task.values for _, steps in levels):
        raise InvalidParameter("the steps of half a range must be whole for each of the weights")


def check_sizes_task(task: Task, bounds: Sequence[int]) -> None:
    """Raise errors of the bounds, and of inputs that could not be counted afterwards; nothing is read yet."""
    if not bounds or any(isinstance(bound, bool) or not isinstance(bound, int) for bound in bounds):
        raise InvalidParameter("the bounds of sizes must be whole numbers, at least one")
    if bounds[0] < 1 or any(low >= high for low, high in pairwise(bounds)):
        raise InvalidParameter("the bounds of sizes must be at least 1 and increase")
    for events in (task.events, task.public_items):
        what = None if events is None else read_once(events.source)
        if what is not None:
            raise InputError(f"{what} can be read only once: give --max-items-per-user a number")


def in_buckets(found: Iterable[Sequence[int]], bounds: Sequence[int]) -> list[int]:
    """Users by their number of items: at most the first bound, the second, ..., and more than the last.

    `found` has each number of items once, with the number of users that have as many: so every user is in one
    bucket.
    """
    counts = [0] * (len(bounds) + 1)
    for items, users in found:
        counts[bisect_left(bounds, items)] += users
    return counts


def source_of(connection: Any, events: Events, label: str, probe: bool) -> Source:
    """The source that the events are in."""
    source = events.source
    if isinstance(source, str) and is_postgres(source):
        return postgres_source(source, events).as_source(connection, label, probe)
    if is_frame(source):
        if events.table is not None or events.query is not None:
            raise not_a_database(events, "data in memory")
        return frame_source(source, as_text=events.as_text).as_source(connection, label, probe)
    files, kind = files_of(source, events.file_format)
    if kind not in ("duckdb", "sqlite", "db"):
        if events.table is not None:
            raise not_a_database(events, "files")
        found = file_source(connection, files, kind, label, probe)
        if events.query is None:
            return found
        tables = ["input", *(Path(files[0]).name.split(".")[:1] if len(files) == 1 else [])]
        return expressions.query_source(connection, found, events.query, tables)
    if len(files) > 1:
        raise InputError(f"a database must be a single file, and {len(files)} were given")
    return database_source(connection, files[0], kind, events, label, probe)


def not_a_database(events: Events, kind: str) -> InputError:
    """The error of a table or a query that is asked of an input that is not a database."""
    given = "table" if events.table is not None else "query"
    return InputError(f"a {given} is for databases; to choose rows of {kind} use a condition (where)")


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
    source = source_of(connection, events, label, probe)
    if events.where is not None or any(one.name != one.source or "(" in one.source for one in events.items):
        source = expressions.with_expressions(connection, source, events)
    values = ([events.user] if with_user else []) + [column.source for column in events.items]
    numbers = list(dict.fromkeys(summed))
    if source.names is not None:
        demand(source.what, source.names, [*values, *numbers])
    opened = source.open(list(dict.fromkeys([*values, *numbers])))
    columns = opened.columns
    if events.as_text:
        for number in numbers:
            if columns[number][1] == "BOOLEAN":
                raise sql.no_number(number)
        columns = {column: sql.text_column(*columns[column]) for column in values}
    rows = Rows(
        opened.relation,
        tuple((*columns[column], column) for column in values),
        with_user,
        tuple((*opened.columns[column], column) for column in numbers),
    )
    rows.types()
    for column in rows.numbers:
        sql.number(*column)
    return rows, opened, source.what
