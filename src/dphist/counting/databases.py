"""Databases, read-only: DuckDB files attached, SQLite files by Python's own module, PostgreSQL through ADBC.

SQLite lets every cell have a type of its own; here the declared type rules. A column declared as whole numbers,
floats, text or bytes (by SQLite's rule of affinity) has that type, and a cell of another type is missing. All
other columns (without a declaration, numeric, or of an expression in a query) are text. Text that is not UTF-8 is
missing. ADBC's SQLite driver is not used: it takes the types from the values of the first rows, and fails on a
later row that has another.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from dphist.counting.frames import ArrowSource, decode_text, texts, whole_of
from dphist.counting.sql import Opened, Source, describe, name, text
from dphist.counting.task import Events
from dphist.counting.workspace import about_sql, attempt, name_list
from dphist.errors import InputError, postgres_driver


def database_source(connection: Any, path: str, kind: str, events: Events, label: str, probe: bool) -> Source:
    """The source for a database file; a name that ends in .db may be of either kind."""

    def head() -> bytes:
        with open(path, "rb") as file:
            return file.read(16)

    first = attempt(head, f"the database {path!r}")
    is_sqlite = first == b"SQLite format 3\0"
    if kind == "db" and not is_sqlite and first[8:12] != b"DUCK":
        kind = ""
    if not kind or (kind == "sqlite" and first and not is_sqlite):
        raise InputError(f"the file {path!r} is not a database of a known kind")
    if kind == "sqlite" or (kind == "db" and is_sqlite):
        return sqlite_source(path, events).as_source(connection, label, probe)
    return duckdb_source(connection, path, events, label)


def choose_table(events: Events, what: str, tables: list[tuple[str, str]]) -> tuple[str, str]:
    """The schema and name of the table to read: the one that is named, or the only one there is."""
    names = [table if schema in ("main", "public", "") else f"{schema}.{table}" for schema, table in tables]
    if events.table is None:
        if len(tables) == 1:
            return tables[0]
        if not tables:
            raise InputError(f"{what} has no tables")
        raise InputError(f"{what} has several tables: say which with --table, one of {name_list(names)}")
    exact = [k for k, (schema, table) in enumerate(tables) if events.table in (names[k], f"{schema}.{table}")]
    if not exact:
        raise InputError(f"{what} has no table {events.table!r}; its tables are {name_list(names)}")
    return tables[exact[0]]


def duckdb_source(connection: Any, path: str, events: Events, label: str) -> Source:
    """A table, a view or a query of a DuckDB file, attached read-only."""
    what = f"the database {path!r}"
    locked = "{what} cannot be read: it is damaged, or another program or connection has it open for writing"
    alias = attempt(lambda: attach(connection, os.path.abspath(path), label), what, locked)
    before = "USE memory"
    if events.query is not None:
        query = events.query
        statements = bind_query(lambda: connection.extract_statements(query), query)
        if len(statements) != 1 or not str(statements[0].type).endswith("SELECT"):
            raise InputError(f"the query {query!r} is not a single SELECT")
        relation, before = subquery(events.query), f"USE {name(alias)}"
        connection.execute(before)
        columns = bind_query(lambda: describe(connection, relation), events.query)
        connection.execute("USE memory")
    else:
        rows = connection.execute(
            f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = {text(alias)} UNION ALL "
            "SELECT schema_name, view_name FROM duckdb_views() "
            f"WHERE database_name = {text(alias)} AND NOT internal"
        ).fetchall()
        schema, table = choose_table(events, what, sorted((str(a), str(b)) for a, b in rows))
        relation = f"{name(alias)}.{name(schema)}.{name(table)}"
        columns = attempt(lambda: describe(connection, relation), what)
    kinds = {column: (name(column), kind) for column, kind in columns}
    return Source(
        what,
        [column for column, _ in columns],
        lambda wanted: Opened(relation, {column: kinds[column] for column in wanted}, before),
    )


def attach(connection: Any, path: str, label: str) -> str:
    """The name under which a file is attached: a file can be attached once, though two inputs may want it."""
    known = connection.execute("SELECT database_name, path FROM duckdb_databases()").fetchall()
    for alias, place in known:
        if place is not None and os.path.realpath(place) == os.path.realpath(path):
            return str(alias)
    alias = f"{label}_{len(known)}"
    connection.execute(f"ATTACH {text(path)} AS {name(alias)} (TYPE duckdb, READ_ONLY)").fetchall()
    return alias


def subquery(query: str) -> str:
    """A query in brackets; on lines of its own, so that a comment in it ends there."""
    return f"(\n{query.strip().rstrip(';')}\n)"


def bind_query(action: Callable[[], Any], query: str) -> Any:
    """Run what only binds the user's own query: errors of the parser and the binder are shown."""
    import duckdb

    try:
        return action()
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        reason = about_sql(error)
    except Exception:
        reason = "it cannot be run"
    raise InputError(f"the query {query!r} cannot be used: {reason}")


# A batch ends after so many rows, or bytes of text; rows come from the database a few at a time.
BATCH: Final = 50_000
BYTES: Final = 32_000_000
FEW: Final = 64
PROBE: Final = "dphist_probe"


def wholes(cells: Any) -> Any:
    """An Arrow array of whole numbers; other cells are missing."""
    import pyarrow as pa

    if not set(map(type, cells)) <= {int, type(None)}:
        cells = [whole_of(cell) for cell in cells]
    return pa.array(cells, pa.int64())


def reals(cells: Any) -> Any:
    """An Arrow array of floats; other cells are missing."""
    import pyarrow as pa

    return pa.array([float(cell) if isinstance(cell, (int, float)) else None for cell in cells], pa.float64())


def blobs(cells: Any) -> Any:
    """An Arrow array of bytes; other cells are missing."""
    import pyarrow as pa

    return pa.array([cell if isinstance(cell, bytes) else None for cell in cells], pa.large_binary())


# In SQLite's order: the first that a declaration holds.
AFFINITIES: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("INT", wholes), ("CHAR", texts), ("CLOB", texts), ("TEXT", texts), ("BLOB", blobs), ("REAL", reals),
    ("FLOA", reals), ("DOUB", reals),
)  # fmt: skip


def sqlite_source(path: str, events: Events) -> ArrowSource:
    """An SQLite file, streamed in batches."""
    import pyarrow as pa

    what = f"the database {path!r}"
    with closing(attempt(lambda: sqlite_connection(path), what)) as database:
        if events.query is not None:
            relation, is_table = subquery(events.query), False
        else:
            listed = (
                "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            )
            tables = dict(attempt(lambda: database.execute(listed).fetchall(), what))
            table = choose_table(events, what, sorted(("main", one) for one in tables))[1]
            relation, is_table = name(table), tables[table] == "table"
        wrong = "{what} cannot be read" if events.query is None else f"the query {events.query!r} is not valid SQL"
        columns = attempt(lambda: sqlite_columns(database, relation, is_table), what, wrong)
    makers = dict(columns)

    def schema(wanted: list[str]) -> Any:
        return pa.schema([(column, makers[column]([]).type) for column in wanted])

    def batches(wanted: list[str]) -> Iterator[Any]:
        with closing(sqlite_connection(path)) as database:
            cursor = database.execute(f"SELECT {', '.join(map(name, wanted))} FROM {relation}")
            for rows in batches_of(cursor):
                cells = zip(wanted, zip(*rows, strict=True), strict=True)
                yield pa.RecordBatch.from_arrays([makers[c](column) for c, column in cells], schema=schema(wanted))

    def data(wanted: list[str]) -> Any:
        return pa.RecordBatchReader.from_batches(schema(wanted), batches(wanted))

    return ArrowSource(what, [column for column, _ in columns], schema, data)


def sqlite_connection(path: str) -> sqlite3.Connection:
    """A read-only connection."""
    address = "file:" + re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", os.path.abspath(path)) + "?mode=ro"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = decode_text
    database.execute("PRAGMA query_only = ON")
    return database


def sqlite_columns(
    database: sqlite3.Connection, relation: str, is_table: bool
) -> list[tuple[str, Callable[[Any], Any]]]:
    """Names of all columns, and how their cells become arrays; no row is read for this."""
    names = [str(column[0]) for column in database.execute(f"SELECT * FROM {relation} LIMIT 0").description]
    if is_table:
        rows = database.execute(f"PRAGMA table_xinfo({relation})").fetchall()
    else:
        # SQLite shows the declared types of a view's columns; a query must be made a view first.
        database.execute("PRAGMA query_only = OFF")
        database.execute(f"CREATE TEMP VIEW {PROBE} AS SELECT * FROM {relation}")
        rows = database.execute(f"PRAGMA temp.table_xinfo({PROBE})").fetchall()
    declared = [str(row[2]).upper() for row in rows if row[6] != 1]  # 1: hidden, and not one of *
    makers = [next((maker for part, maker in AFFINITIES if part in kind), texts) for kind in declared]
    if not is_table:
        # Some versions call a column of unknown type in a query BLOB.
        makers = [texts if maker is blobs else maker for maker in makers]
    return list(zip(names, makers, strict=True))


def batches_of(cursor: sqlite3.Cursor) -> Iterator[list[Any]]:
    """The rows of a query in batches that end by rows or by bytes: a cell may be as long as a file."""
    rows: list[Any] = []
    held = 0
    while some := cursor.fetchmany(FEW):
        rows += some
        held += sum(len(cell) for row in some for cell in row if isinstance(cell, (str, bytes)))
        if len(rows) >= BATCH or held >= BYTES:
            yield rows
            rows, held = [], 0
    if rows:
        yield rows


def postgres_source(address: str, events: Events) -> ArrowSource:
    """A table or a query of PostgreSQL, streamed. The address may hold a password, so it is never shown."""
    import pyarrow as pa

    driver = postgres_driver()
    what = attempt(lambda: database_name(address), "the address of the PostgreSQL database", "{what} is not valid")
    unreachable = "{what} cannot be reached: check the address, the user and the password"

    @contextmanager
    def run(query: str) -> Iterator[Any]:
        """The result of a query in a read-only transaction, on a connection of its own: a stream keeps it busy."""
        connection = attempt(lambda: driver.connect(address), what, unreachable)
        with closing(connection), closing(connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(query)
            yield cursor

    def rows_of(query: str) -> Any:
        with run(query) as cursor:
            return cursor.fetchall()

    def schema_of(query: str) -> Any:
        with run(f"SELECT * FROM ({query}) AS dphist_rows LIMIT 0") as cursor:
            return cursor.fetch_arrow_table().schema

    if events.query is not None:
        relation = f"{subquery(events.query)} AS dphist_query"
        wrong = f"the query {events.query!r} cannot be run by {{what}}"
    else:
        # Of the schema `public` alone unless a table is named.
        only = "" if events.table is not None else "AND table_schema = 'public'"
        query = (
            "SELECT table_schema::text, table_name::text FROM information_schema.tables "
            f"WHERE table_schema NOT IN ('pg_catalog', 'information_schema') {only} ORDER BY 1, 2"
        )
        tables = [(str(schema), str(table)) for schema, table in attempt(lambda: rows_of(query), what)]
        schema, table = choose_table(events, what, tables)
        relation, wrong = f"{name(schema)}.{name(table)}", "{what} cannot be read"
    whole = attempt(lambda: schema_of(f"SELECT * FROM {relation}"), what, wrong)

    def select(wanted: list[str]) -> str:
        return f"SELECT {', '.join(postgres_column(whole, column) for column in wanted)} FROM {relation}"

    def batches(wanted: list[str], schema: Any) -> Iterator[Any]:
        with run(select(wanted)) as cursor, closing(cursor.fetch_record_batch()) as reader:
            for batch in reader:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def data(wanted: list[str]) -> Any:
        schema = schema_of(select(wanted))
        return pa.RecordBatchReader.from_batches(schema, batches(wanted, schema))

    otherwise = "{what} cannot be read: the connection was lost, or permission denied"
    return ArrowSource(what, whole.names, lambda wanted: schema_of(select(wanted)), data, otherwise)


def database_name(address: str) -> str:
    """The database in a sentence: its name and its machine, without user and password."""
    parts = urlsplit(address)
    named = f" {parts.path.strip('/')!r}" if parts.path.strip("/") else ""
    return f"the PostgreSQL database{named} on {parts.hostname or 'this machine'}"


def postgres_column(schema: Any, column: str) -> str:
    """A column as Arrow can hold it: numeric and types of PostgreSQL's own come as text."""
    import pyarrow as pa

    kind = schema.field(column).type
    own = getattr(kind, "type_name", "") if isinstance(kind, pa.BaseExtensionType) else ""
    if own == "numeric":
        return f"trim_scale({name(column)})::text AS {name(column)}"
    return f"{name(column)}::text AS {name(column)}" if own else name(column)
