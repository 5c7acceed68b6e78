"""PostgreSQL through ADBC, streamed and read-only."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from dphist.counting.events import Events
from dphist.counting.frames import (
    ArrowSource,
    Opened,
    Source,
    blobs,
    describe,
    numbered,
    reals,
    require,
    texts,
    wholes,
)
from dphist.counting.sql import name, text
from dphist.counting.workspace import about_sql, attempt, listed
from dphist.errors import InputError, postgres_driver

# Databases in files: which kind and which table; and DuckDB's own, read-only.


def database_kind(path: str, kind: str) -> str:
    """`duckdb` or `sqlite`; a name that ends in .db may be either."""

    def head() -> bytes:
        with open(path, "rb") as file:
            return file.read(16)

    first = attempt(head, f"the database {path!r}")
    if kind == "db":
        kind = "sqlite" if first == b"SQLite format 3\0" else "duckdb" if first[8:12] == b"DUCK" else ""
    if not kind or (kind == "sqlite" and first and first != b"SQLite format 3\0"):
        raise InputError(f"the file {path!r} is not a database of a known kind")
    return kind


def chosen_table(events: Events, what: str, tables: list[tuple[str, str]]) -> tuple[str, str]:
    """The schema and name of the table to read: the one that is named, or the only one there is."""
    names = [table if schema in ("main", "public", "") else f"{schema}.{table}" for schema, table in tables]
    if events.table is None:
        if len(tables) == 1:
            return tables[0]
        if not tables:
            raise InputError(f"{what} has no tables")
        raise InputError(f"{what} has several tables: say which with --table (table=), one of {listed(names)}")
    exact = [k for k, (schema, table) in enumerate(tables) if events.table in (names[k], f"{schema}.{table}")]
    if not exact:
        raise InputError(f"{what} has no table {events.table!r}; its tables are {listed(names)}")
    return tables[exact[0]]


def only_select(query: str) -> str:
    """The query without a trailing semicolon; an error if it does not begin like a query."""
    trimmed = query.strip().rstrip(";").strip()
    if not re.match(
        r"(SELECT|WITH|VALUES|FROM|TABLE)\b|\(", re.sub(r"\A(\s|--.*\n|/\*.*?\*/)*", "", trimmed), re.I
    ):
        raise InputError(f"the query {query!r} is not a SELECT")
    return trimmed


@dataclass(frozen=True)
class DuckDBFile:
    """A table, a view or a query of an attached DuckDB file."""

    what: str
    names: list[str]
    types: list[str]
    relation: str
    before: str | None

    def open(self, _connection: Any, wanted: list[str], _label: str, _probe: bool, /) -> Opened:
        """The wanted columns."""
        require(self, wanted)
        kinds = dict(zip(self.names, self.types, strict=True))
        return Opened(self.relation, {column: (name(column), kinds[column]) for column in wanted}, self.before)


def duckdb_source(connection: Any, path: str, events: Events, label: str) -> Source:
    """A DuckDB file, attached read-only."""
    what = f"the database {path!r}"
    alias = attempt(lambda: attached(connection, os.path.abspath(path), label), what)
    if events.query is not None:
        relation = f"(\n{checked_query(connection, events.query)}\n)"
        before = f"USE {name(alias)}"
        connection.execute(before)
        columns = own_sql(lambda: describe(connection, relation), events.query)
        connection.execute("USE memory")
        return DuckDBFile(what, [c for c, _ in columns], [t for _, t in columns], relation, before)
    rows = connection.execute(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = {text(alias)} UNION ALL "
        f"SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = {text(alias)} AND NOT internal"
    ).fetchall()
    schema, table = chosen_table(events, what, sorted((str(a), str(b)) for a, b in rows))
    relation = f"{name(alias)}.{name(schema)}.{name(table)}"
    columns = attempt(lambda: describe(connection, relation), what)
    return DuckDBFile(what, [c for c, _ in columns], [t for _, t in columns], relation, None)


def attached(connection: Any, path: str, label: str) -> str:
    """The name under which a file is attached: a file can be attached once, though two inputs may want it."""
    known = connection.execute("SELECT database_name, path FROM duckdb_databases()").fetchall()
    for alias, place in known:
        if place is not None and os.path.realpath(place) == os.path.realpath(path):
            return str(alias)
    connection.execute(f"ATTACH {text(path)} AS {name(label)} (TYPE duckdb, READ_ONLY)").fetchall()
    return label


def checked_query(connection: Any, query: str) -> str:
    """The user's query if it is one SELECT."""
    statements = own_sql(lambda: connection.extract_statements(query), query)
    if len(statements) != 1 or not str(statements[0].type).endswith("SELECT"):
        raise InputError(f"the query {query!r} is not a single SELECT")
    return query.strip().rstrip(";")


def own_sql(action: Any, query: str) -> Any:
    """Run what only binds the user's own query: errors of the parser and the binder are told."""
    try:
        return action()
    except Exception as error:
        safe = type(error).__name__ in ("ParserException", "BinderException", "CatalogException")
        said = about_sql(error) if safe else "it cannot be run"
    raise InputError(f"the query {query!r} cannot be used: {said}")


# SQLite files, read-only and streamed. SQLite lets every cell have a type of its own: the declared type rules.
#
# A column declared as whole numbers, floats, text or bytes (by SQLite's own rule of affinity) has that type, and a
# cell that is of another is missing. All other columns (without a declaration, numeric, or of an expression in a
# query) are text. Text that is not UTF-8 is missing.

# A batch ends after so many rows, or bytes of text; rows come from the database a few at a time.
BATCH: Final = 50_000
BYTES: Final = 32_000_000
FEW: Final = 64
PROBE: Final = "dphist_probe"
# In SQLite's order: the first that a declaration holds.
AFFINITIES: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("INT", wholes), ("CHAR", texts), ("CLOB", texts), ("TEXT", texts), ("BLOB", blobs), ("REAL", reals),
    ("FLOA", reals), ("DOUB", reals),
)  # fmt: skip


def sqlite_source(path: str, events: Events) -> Source:
    """An SQLite file, streamed in batches."""
    what = f"the database {path!r}"
    with closing(attempt(lambda: sqlite_connection(path), what)) as database:
        if events.query is not None:
            relation, is_table = f"(\n{only_select(events.query)}\n)", False
        else:
            found = dict(attempt(lambda: tables_of(database), what))
            table = chosen_table(events, what, sorted(("main", one) for one in found))[1]
            relation, is_table = name(table), found[table] == "table"
        wrong = "{what} cannot be read" if events.query is None else f"the query {events.query!r} is not valid SQL"
        columns = attempt(lambda: columns_of(database, relation, is_table), what, wrong)
    makers = dict(columns)

    def schema(wanted: list[str]) -> Any:
        import pyarrow as pa

        return pa.schema([(f"c{k}", makers[column]([]).type) for k, column in enumerate(wanted)])

    def data(wanted: list[str]) -> Any:
        return sqlite_reader(path, relation, wanted, [makers[column] for column in wanted], schema(wanted))

    return ArrowSource(what, [column for column, _ in columns], schema, data)


def sqlite_connection(path: str) -> sqlite3.Connection:
    """A read-only connection."""
    address = "file:" + re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", os.path.abspath(path)) + "?mode=ro"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = decoded
    database.execute("PRAGMA query_only = ON")
    return database


def decoded(raw: bytes) -> str | None:
    """A text; one that is not UTF-8 is missing, because any replacement could be somebody else's text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def tables_of(database: sqlite3.Connection) -> list[tuple[str, str]]:
    """Names of tables and views, with which of the two they are."""
    rows = database.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return [(str(table), str(kind)) for table, kind in rows]


def columns_of(
    database: sqlite3.Connection, relation: str, is_table: bool
) -> list[tuple[str, Callable[[Any], Any]]]:
    """Names of all columns, and how their cells become arrays; nothing is read for this."""
    names = [str(column[0]) for column in database.execute(f"SELECT * FROM {relation} LIMIT 0").description]
    if is_table:
        rows = database.execute(f"PRAGMA table_xinfo({relation})").fetchall()
    else:
        # Of a view SQLite tells which columns of tables it shows; of a query only after making it one.
        database.execute("PRAGMA query_only = OFF")
        database.execute(f"CREATE TEMP VIEW {PROBE} AS SELECT * FROM {relation}")
        rows = database.execute(f"PRAGMA temp.table_xinfo({PROBE})").fetchall()
    declared = [str(row[2]).upper() for row in rows if row[6] != 1]  # 1: hidden, and not one of *
    makers = [maker_of(kind) for kind in declared]
    if not is_table:
        # Some versions call a column of unknown type in a query BLOB.
        makers = [texts if maker is blobs else maker for maker in makers]
    return list(zip(names, makers, strict=True))


def maker_of(declared: str) -> Callable[[Any], Any]:
    """How cells of a declared type become an array."""
    return next((maker for part, maker in AFFINITIES if part in declared), texts)


def sqlite_reader(path: str, relation: str, wanted: list[str], makers: list[Any], schema: Any) -> Any:
    """An Arrow reader over the rows."""
    import pyarrow as pa

    def each() -> Iterator[Any]:
        with closing(sqlite_connection(path)) as database:
            cursor = database.execute(f"SELECT {', '.join(map(name, wanted))} FROM {relation}")
            for rows in batches_of(cursor):
                columns = zip(*rows, strict=True)
                arrays = [maker(column) for maker, column in zip(makers, columns, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, each())


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


def postgres_source(address: str, events: Events) -> Source:
    """A table or a query of PostgreSQL. The address may hold a password, so it is never told."""
    driver = postgres_driver()
    what = attempt(lambda: called(address), "the address of the PostgreSQL database", "{what} is not one")
    database = PostgresReader(driver, address, what)
    if events.query is not None:
        relation = f"(\n{only_select(events.query)}\n) AS dphist_query"
    else:
        schema, table = chosen_table(events, what, database.tables(events.table is not None))
        relation = f"{name(schema)}.{name(table)}"
    wrong = (
        "{what} cannot be read"
        if events.query is None
        else f"the query {events.query!r} cannot be run by {{what}}"
    )
    whole = attempt(lambda: database.schema(f"SELECT * FROM {relation}"), what, wrong)

    def select(wanted: list[str]) -> str:
        return f"SELECT {', '.join(database.expression(whole, column) for column in wanted)} FROM {relation}"

    return ArrowSource(
        what,
        whole.names,
        lambda wanted: numbered(database.schema(select(wanted))),
        lambda wanted: database.stream(select(wanted)),
        "{what} cannot be read: the connection was lost, or permission denied",
    )


def called(address: str) -> str:
    """The database in a sentence: its name and its machine, without user and password."""
    parts = urlsplit(address)
    named = f" {parts.path.strip('/')!r}" if parts.path.strip("/") else ""
    return f"the PostgreSQL database{named} on {parts.hostname or 'this machine'}"


@dataclass(frozen=True)
class PostgresReader:
    """One connection for each thing that is read: a stream keeps its connection busy."""

    driver: Any
    address: str
    what: str

    def connection(self) -> Any:
        """A connection in a read-only transaction."""
        return attempt(
            lambda: self.driver.connect(self.address),
            self.what,
            "{what} cannot be reached: check the address, the user and the password",
        )

    def tables(self, all_schemas: bool) -> list[tuple[str, str]]:
        """Tables and views, of the schema `public` alone unless one is named."""
        only = "" if all_schemas else "AND table_schema = 'public'"
        query = (
            "SELECT table_schema::text, table_name::text FROM information_schema.tables "
            f"WHERE table_schema NOT IN ('pg_catalog', 'information_schema') {only} ORDER BY 1, 2"
        )
        with closing(self.connection()) as connection, closing(connection.cursor()) as cursor:
            rows = attempt(lambda: (cursor.execute(query), cursor.fetchall())[1], self.what)
        return [(str(schema), str(table)) for schema, table in rows]

    def schema(self, query: str) -> Any:
        """The Arrow schema of a query's result."""
        with closing(self.connection()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(f"SELECT * FROM ({query}) AS dphist_rows LIMIT 0")
            return cursor.fetch_arrow_table().schema

    def expression(self, whole: Any, column: str) -> str:
        """A column as Arrow can hold it: numeric and types of PostgreSQL's own come as text."""
        import pyarrow as pa

        kind = whole.field(column).type
        own = getattr(kind, "type_name", "") if isinstance(kind, pa.BaseExtensionType) else ""
        if own == "numeric":
            return f"trim_scale({name(column)})::text AS {name(column)}"
        return f"{name(column)}::text AS {name(column)}" if own else name(column)

    def stream(self, query: str) -> Any:
        """A reader over the rows, which closes its connection at the end."""
        import pyarrow as pa

        connection = self.connection()
        cursor = connection.cursor()
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(query)
        reader = cursor.fetch_record_batch()
        schema = numbered(reader.schema)

        def each() -> Iterator[Any]:
            try:
                for batch in reader:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            finally:
                reader.close()
                cursor.close()
                connection.close()

        return pa.RecordBatchReader.from_batches(schema, each())
