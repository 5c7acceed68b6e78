"""The embedded engine: DuckDB in this process, with a memory limit, spilling to a private folder.

NaN is a user like any other, NULL is not; -0.0 and 0.0 are one value, and so are all NaNs. Times with a zone are
instants in UTC. Types that other programs may lack (UUID, huge integers, intervals) are counted as text. `files`
describes CSV and JSON, `frames` pandas, `databases` SQLite.

Types come from schemas, never from values: otherwise one user's row could change all counts or the output schema.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from dphist.counting import expressions, sql
from dphist.counting.databases import database_source, postgres_source
from dphist.counting.files import file_source, files_of
from dphist.counting.frames import frame_source
from dphist.counting.rounds import DuckDBRounds
from dphist.counting.sql import COUNT, Opened, Pairs, Relation, Source, require_columns
from dphist.counting.streams import ArrowStream, with_stream
from dphist.counting.task import (
    Choice,
    Counted,
    Events,
    Progress,
    Resources,
    RoundsCount,
    RoundsTask,
    Task,
    is_frame,
)
from dphist.counting.workspace import (
    SessionKeeper,
    attempt,
    check_address_space,
    memory_for_counting,
    private_folder,
    threads_for_counting,
)
from dphist.errors import InputError
from dphist.objects import is_postgres
from dphist.publishing import defer_signals

T = TypeVar("T")

TICK: Final = 0.2
# Relation of a batch: at most 64 MB per text column.
ROWS: Final = 1 << 13
EVENTS: Final = "dphist_events"
PUBLIC: Final = "dphist_public"
LISTED: Final = "dphist_listed"
COUNTS: Final = "dphist_counts"
SIZED: Final = "dphist_sized"
STOPPED: Final = "{what} cannot be counted: it is damaged, or contains values that cannot be read"


# Users by their number of items, and the table of `sql.users_by_size`.
Shape = tuple[list[tuple[int, int]], pa.Table]


@dataclass(eq=False)
class DuckDBEngine(SessionKeeper["DuckDBSession"]):
    resources: Resources = field(default_factory=Resources)

    def check(self, task: Task) -> None:
        with self._session() as session:
            session.pairs(task, probe=True)

    def columns(self, events: Events) -> list[str] | None:
        """The column names; None for JSON, where finding them would mean reading all rows."""
        with self._session() as session:
            names = session._wait_for(lambda: source_of(session.connection, events, EVENTS, probe=True)).names
            return None if names is None else list(names)

    def check_list(self, public_items: Events) -> None:
        """Raise `InputError` if a public list cannot be read or lacks a column, without reading it."""
        with self._session() as session:
            session.make_list(public_items, sql.public_entries, probe=True)

    def size(self, public_items: Events) -> int:
        with self._session() as session:
            session.make_list(public_items, sql.public_entries)
            return int(session.execute(f"SELECT count(*) FROM {LISTED}", "the public items")[0][0])

    def public_table(self, listed: Events, kinds: list[str], null_items: bool) -> pa.Table:
        """A public list as an Arrow table (see `sql.public_list`), sorted: seeded noise depends on the order."""
        with self._session() as session:
            session.make_list(replace(listed, null_items=null_items), partial(sql.public_list, types=kinds))
            query = f"FROM {LISTED} ORDER BY ALL"
            return session.table(query, "the public items")

    @contextmanager
    def count(self, task: Task, progress: Progress | None = None) -> Iterator[Counted]:
        with self._session(progress) as session:
            pairs, what = session.pairs(task)
            order = sql.item_order(task.choice, pairs.items)
            query, items = sql.histogram(pairs, task.max_items_per_user, order, task.lower_threshold)
            at_rank = 0
            if task.rank is not None:
                session.execute(f"CREATE OR REPLACE TEMP TABLE {COUNTS} AS {query}", what)
                ranked = f"SELECT {COUNT} FROM {COUNTS} ORDER BY {COUNT} DESC LIMIT 1 OFFSET {task.rank - 1}"
                rows = session.execute(ranked, what)
                at_rank = int(rows[0][0]) if rows else 0
                query = f"SELECT * FROM {COUNTS}"
            if task.ordered:
                query += f" ORDER BY {', '.join(items)}"
            # The reader of a relation streams; that of an executed query would copy the whole result first.
            reader = session.run(lambda: session.connection.sql(query).to_arrow_reader(ROWS), what)
            yield Histogram(at_rank, reader, session, what)
            # The noise has been drawn, so a failure to clean up is not an error: the session is about to end.
            with suppress(Exception):
                reader.close()
                session.execute(f"DROP TABLE IF EXISTS {COUNTS}", what)

    @contextmanager
    def rounds(self, task: RoundsTask, progress: Progress | None = None) -> Iterator[RoundsCount]:
        with self._session(progress) as session:
            pairs, what = session.pairs(task.as_task())
            if not task.listed:
                pairs = replace(pairs, listed=None)
            counted = DuckDBRounds(session, task, pairs, None if task.known is None else LISTED, what)
            counted.read()
            yield counted
            session.report_done()
            with suppress(Exception):  # as in `count`
                counted.close()

    def shape(self, events: Events) -> Shape:
        """For public data only: the number of items of users, and of users of items."""
        with self._session() as session:
            return session.shape(*session.pairs(Task(events, Choice(bytes(32)))))

    @contextmanager
    def session(self) -> Iterator[DuckDBSession]:
        """A session for any queries. Only for data that may be shown."""
        with self._session() as session:
            yield session

    @contextmanager
    def _session(self, progress: Progress | None = None) -> Iterator[DuckDBSession]:
        with self._share(self._new_session) as session:
            session.progress, session.shown = progress, 0.0
            yield session

    @contextmanager
    def _new_session(self) -> Iterator[DuckDBSession]:
        with private_folder(self.resources.folder) as folder, connect_duckdb(self.resources, folder) as connection:
            session = DuckDBSession(connection)
            try:
                yield session
            finally:
                session.pool.shutdown(wait=True)


class DuckDBSession:
    """A connection whose queries run in another thread, so that the caller can show progress and handle Ctrl-C."""

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self.connection = connection
        self.readers: Sequence[DuckDBPyConnection] = ()
        self.streams: dict[str, object] = {}
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="dphist")
        self.progress: Progress | None = None
        self.shown = 0.0

    def run(self, action: Callable[[], T], what: str) -> T:
        try:
            return attempt(lambda: self._wait_for(action), what, STOPPED)
        except InputError:
            streams = [stream for stream in self.streams.values() if isinstance(stream, ArrowStream)]
            fault = next((stream.fault for stream in streams if stream.fault is not None), None)
            if fault is None:
                raise
        raise InputError(fault)

    def execute(self, statement: str, what: str) -> list[tuple[Any, ...]]:
        return self.run(lambda: self.connection.execute(statement).fetchall(), what)

    def table(self, query: str, what: str) -> pa.Table:
        table: pa.Table = self.run(lambda: self.connection.sql(query).to_arrow_table(), what)
        return table

    def _wait_for(self, action: Callable[[], T]) -> T:
        future = self.pool.submit(action)
        try:
            while not wait([future], timeout=TICK).done:
                for connection in [self.connection, *self.readers]:
                    with suppress(Exception):
                        self._show(min(connection.query_progress() / 100.0, 0.99))
        except BaseException:
            # Repeated, because an interrupt is lost if the query has not begun.
            while not future.done():
                for connection in [self.connection, *self.readers]:
                    with suppress(Exception):  # a reader may be closed by now
                        connection.interrupt()
                wait([future], timeout=0.05)
            raise
        return future.result()

    def _show(self, share: float) -> None:
        # A second query begins at zero, and an unknown share is negative.
        if share > self.shown and self.progress is not None:
            self.shown = share
            self.progress(share)

    def report_done(self) -> None:
        with suppress(Exception):
            self._show(1.0)

    def pairs(self, task: Task, probe: bool = False) -> tuple[Pairs, str]:
        """Open the events and load the public list into a table. Also returns how messages call the events.

        With `probe`, no row of either is read.
        """
        events, listed = with_stream(task.events), task.public_items
        self.streams[EVENTS] = events.source
        summed = [value.column for value in task.values]
        # Opening can take long as well: a server may be slow, and there may be many files.
        rows, opened, what = self._wait_for(
            lambda: open_rows(self.connection, events, EVENTS, probe, summed=summed)
        )
        if listed is not None:
            listed = replace(listed, null_items=events.null_items, totals=events.totals)
            kinds = [*rows.types()[1:], *([sql.MARK] if events.totals else [])]
            self.make_list(listed, partial(sql.public_list, types=kinds), probe)
        pairs = Pairs(events, rows, None if listed is None else LISTED, task.values)
        self.readers = opened.readers
        return pairs, what

    def shape(self, pairs: Pairs, what: str) -> Shape:
        """Users by their number of items, and the table of `sql.users_by_size`."""
        self.execute(f"CREATE OR REPLACE TEMP TABLE {SIZED} AS {sql.pairs_with_sizes(pairs)}", what)
        users = f"SELECT items, count(*) // items FROM {SIZED} GROUP BY items ORDER BY items"
        sizes = [(int(items), int(count)) for items, count in self.execute(users, what)]
        return sizes, self.table(sql.users_by_size(pairs, SIZED), what)

    def open(self, events: Events, summed: Sequence[str]) -> tuple[Relation, str]:
        """The rows of the events, and how messages call them."""
        rows, opened, what = self._wait_for(
            lambda: open_rows(self.connection, events, EVENTS, False, summed=summed)
        )
        self.readers = opened.readers
        return rows, what

    def make_list(self, listed: Events, query: Callable[[Relation, Events], str], probe: bool = False) -> None:
        """Create the table of a public list from a query over its rows."""
        listed = with_stream(listed)
        self.streams[PUBLIC] = listed.source
        rows, opened, what = self._wait_for(
            lambda: open_rows(self.connection, listed, PUBLIC, probe, with_user=False)
        )
        statement = f"CREATE OR REPLACE TEMP TABLE {LISTED} AS {query(rows, listed)}"
        self.readers = opened.readers
        if not probe:
            self.execute(statement, f"{what} (the public items)")


def connect_duckdb(resources: Resources, folder: Path) -> DuckDBPyConnection:
    """A private DuckDB connection that spills to the folder."""
    check_address_space(resources)
    memory = memory_for_counting(resources)
    settings = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # The first takes three times the memory for the user limit. The second moves repeated expressions out of
        # TRY, so that one row that cannot be cast would fail the release.
        "disabled_optimizers": "top_n_window_elimination,common_subexpressions",
        "max_temp_directory_size": f"{int(shutil.disk_usage(folder).free * 0.9)}B",
        "memory_limit": f"{memory}B",
        "preserve_insertion_order": False,
        "python_enable_replacements": False,  # a name in the user's SQL must not find a Python variable
        "temp_directory": str(folder).replace("'", "''"),
        "threads": threads_for_counting(resources, memory),
        "TimeZone": "UTC",
    }
    # In the main thread DuckDB replaces the exception of a signal by a RuntimeError.
    with defer_signals():
        connection = duckdb.connect(":memory:")
        # Not as `config` of the connection: DuckDB would not enforce the size of the temporary folder.
        connection.execute("; ".join(f"SET {name} = '{value}'" for name, value in settings.items()))
        connection.execute(f"SET VARIABLE dphist_memory = {memory}")  # for `reader_settings`
        # In a notebook without widgets DuckDB refuses to report progress.
        with suppress(duckdb.InvalidInputException):
            connection.execute("SET enable_progress_bar = true")
            connection.execute("SET enable_progress_bar_print = false")
    return connection


@dataclass(frozen=True)
class Histogram:
    at_rank: int = field(repr=False)  # a true count
    reader: pa.RecordBatchReader
    session: DuckDBSession
    what: str

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    def batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self.session.run(lambda: next(self.reader, None), self.what)) is not None:
            if batch.num_rows:
                yield batch
        self.session.report_done()


def source_of(connection: DuckDBPyConnection, events: Events, label: str, probe: bool) -> Source:
    source = events.source
    if isinstance(source, str) and is_postgres(source):
        refuse_text_options(events, "a database")
        return postgres_source(source, events).as_source(connection, label, probe)
    if is_frame(source):
        if events.table is not None or events.query is not None:
            raise not_a_database(events, "data in memory")
        refuse_text_options(events, "data in memory")
        return frame_source(source, as_text=events.as_text).as_source(connection, label, probe)
    files, kind = files_of(source, events.file_format)
    if kind not in ("duckdb", "sqlite", "db"):
        if events.table is not None:
            raise not_a_database(events, "files")
        if kind not in ("csv", "tsv"):
            refuse_text_options(events, f"the format {kind}")
        rows = file_source(connection, files, kind, label, probe, events.encoding, events.delimiter)
        if events.query is None:
            return rows
        tables = ["input", *(Path(files[0]).name.split(".")[:1] if len(files) == 1 else [])]
        return expressions.query_source(connection, rows, events.query, tables)
    if len(files) > 1:
        raise InputError(f"a database must be a single file, but {len(files)} were given")
    refuse_text_options(events, "a database")
    return database_source(connection, files[0], kind, events, label, probe)


def not_a_database(events: Events, kind: str) -> InputError:
    option = "<--table>" if events.table is not None else "<--query>"
    return InputError(f"{option} is for databases: to select rows of {kind}, use <--where>")


def refuse_text_options(events: Events, kind: str) -> None:
    """Raise `InputError` for options of text files.

    In memory a number may become text because of another row, so that the decimal sign would depend on that row.
    """
    comma = events.decimal if events.decimal == "," else None
    options = {"<--encoding>": events.encoding, "<--delimiter>": events.delimiter, "<--decimal>": comma}
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is for CSV and TSV files, not for {kind}: leave it out")


def open_rows(
    connection: DuckDBPyConnection,
    events: Events,
    label: str,
    probe: bool,
    with_user: bool = True,
    summed: Sequence[str] = (),
) -> tuple[Relation, Opened, str]:
    """The rows of the events, the opened input, and its name in messages. A public list has no user."""
    source = source_of(connection, events, label, probe)
    if events.where is not None or any(item.name != item.source or "(" in item.source for item in events.items):
        source = expressions.with_expressions(connection, source, events)
    values = ([events.user] if with_user else []) + [column.source for column in events.items]
    numbers = list(dict.fromkeys(summed))
    if source.names is not None:
        require_columns(source.what, source.names, [*values, *numbers])
    opened = source.open(list(dict.fromkeys([*values, *numbers])))
    columns = opened.columns
    if events.as_text:
        for number in numbers:
            if columns[number][1] == "BOOLEAN":
                raise sql.boolean_as_text(number)
        columns = {column: sql.text_column(*columns[column]) for column in values}
    rows = Relation(
        opened.relation,
        tuple((*columns[column], column) for column in values),
        with_user,
        tuple((*opened.columns[column], column) for column in numbers),
    )
    # Report unsupported types before any row is read.
    rows.types()
    for column in rows.numbers:
        sql.number(*column)
    return rows, opened, source.what
