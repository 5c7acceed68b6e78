"""Read-only databases: DuckDB files in an instance of their own, SQLite files by sqlite3, PostgreSQL by ADBC.

Every SQLite cell may have its own type; here the declared type applies. A column declared as integer, float, text
or bytes (by SQLite's affinity rules) has that type, and cells of other types are missing. All other columns
(undeclared, numeric, or computed in a query) are text. Text that is not UTF-8 is missing. ADBC's SQLite driver
cannot do this: it infers types from the first rows, and fails on a later row of another type.
"""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import quote, urlsplit

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from dphist.aliases import ArrowArray
from dphist.counting.files import file_head
from dphist.counting.frames import ArrowSource, decode_text, stream_of, text_of, whole_of
from dphist.counting.sql import Source, describe, name, text
from dphist.counting.task import Events
from dphist.counting.workspace import about_sql, attempt, name_list
from dphist.errors import InputError, postgres_driver

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Cursor

T = TypeVar("T")

# Rows of a batch from DuckDB, which computes as many at a time.
VECTOR: Final = 2048
NO_OTHER_FILES: Final = (
    "{what} cannot be read: it is damaged, or has a view that fails or reads other files, which is not allowed"
)
# Functions and tables that show settings and paths of this machine, and functions that run a text as SQL, in which
# these names may be put together.
COMPUTED: Final = "GENERATED ALWAYS AS"
_SYSTEM: Final = re.compile(
    r"\b(current_setting|getvariable|which_secret|query|query_table|json_execute_serialized_sql)\"?\s*\("
    r"|\b(duckdb_\w+|pragma_\w+|pg_catalog|pg_settings|pg_prepared_statements)\b",
    re.IGNORECASE,
)


def database_source(
    connection: DuckDBPyConnection, path: str, kind: str, events: Events, label: str, probe: bool
) -> Source:
    head = file_head(path, 16)
    is_sqlite = head == b"SQLite format 3\0"
    if kind == "db":
        kind = "sqlite" if is_sqlite else "duckdb" if head[8:12] == b"DUCK" else ""
    if not kind or (kind == "sqlite" and head and not is_sqlite):
        raise InputError(f"the file {path!r} is not a DuckDB or SQLite database")
    if kind == "sqlite":
        return sqlite_source(path, events).as_source(connection, label, probe)
    return duckdb_source(connection, path, events, label, probe)


def choose_table(events: Events, what: str, tables: list[tuple[str, str]]) -> tuple[str, str]:
    """The schema and name of the given table, or of the only one."""
    names = [table if schema in ("main", "public", "") else f"{schema}.{table}" for schema, table in tables]
    if events.table is None:
        if len(tables) == 1:
            return tables[0]
        if not tables:
            raise InputError(f"{what} has no tables")
        raise InputError(f"{what} has several tables: choose one with <--table>, of {name_list(names)}")
    exact = [k for k, (schema, table) in enumerate(tables) if events.table in (names[k], f"{schema}.{table}")]
    if not exact:
        raise InputError(f"{what} has no table {events.table!r}; its tables are {name_list(names)}")
    return tables[exact[0]]


def duckdb_source(connection: DuckDBPyConnection, path: str, events: Events, label: str, probe: bool) -> Source:
    """A table, view or query of a DuckDB file, read in a DuckDB instance of its own that opens no other file.

    The rows come as Arrow. So macros of the file replace no function in the SQL that counts, and its views cannot
    read files of this machine.
    """
    what = f"the database {path!r}"
    locked = "{what} cannot be read: it is damaged, or another program or connection has it open for writing"
    settings = reader_settings(connection)
    readers: list[DuckDBPyConnection] = []  # those in use

    @contextmanager
    def open_reader() -> Iterator[DuckDBPyConnection]:
        reader = attempt(lambda: connect_reader(settings, os.path.abspath(path), label), what, locked)
        readers.append(reader)
        try:
            yield reader
        finally:
            readers.remove(reader)
            reader.close()

    query = events.query
    with open_reader() as reader:
        definitions = reader.execute(
            f"SELECT sql FROM duckdb_views() WHERE database_name = {text(label)} AND NOT internal UNION ALL "
            f"SELECT macro_definition FROM duckdb_functions() WHERE database_name = {text(label)} UNION ALL "
            f"SELECT sql FROM duckdb_tables() WHERE database_name = {text(label)} AND sql LIKE '%{COMPUTED}%'"
        ).fetchall()
        if query is not None:
            statements = bind_query(lambda: reader.extract_statements(query), query)
            if len(statements) != 1 or not str(statements[0].type).endswith("SELECT"):
                raise InputError(f"the query {query!r} is not a single SELECT")
            refuse_replacements(reader, what)
            relation, before = subquery(query), f"USE {name(label)}"
            reader.execute(before)
            columns = bind_query(lambda: describe(reader, relation), query)
        else:
            tables = {
                (str(schema), str(table)): sql
                for schema, table, sql in reader.execute(
                    "SELECT schema_name, table_name, sql FROM duckdb_tables() "
                    f"WHERE database_name = {text(label)} UNION ALL "
                    "SELECT schema_name, view_name, NULL FROM duckdb_views() "
                    f"WHERE database_name = {text(label)} AND NOT internal"
                ).fetchall()
            }
            schema, table = choose_table(events, what, sorted(tables))
            if COMPUTED not in (tables[schema, table] or COMPUTED):
                definitions = []  # a table without computed columns uses no view and no macro
            relation, before = f"{name(label)}.{name(schema)}.{name(table)}", "USE memory"
        refuse_system(what, definitions)
        if query is None:
            columns = attempt(lambda: describe(reader, relation), what, NO_OTHER_FILES)

    def select(reader: DuckDBPyConnection, wanted: list[str], rows: str = "") -> DuckDBPyRelation:
        reader.execute(before)
        return reader.sql(f"SELECT {', '.join(map(name, wanted))} FROM {relation}{rows}")

    def schema_of(wanted: list[str]) -> pa.Schema:
        with open_reader() as reader:
            empty: pa.Table = select(reader, wanted, " LIMIT 0").to_arrow_table()
            return empty.schema

    def batches(wanted: list[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with open_reader() as reader, closing(select(reader, wanted).to_arrow_reader(VECTOR)) as stream:
            for batch in stream:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    names, data = [column for column, _ in columns], stream_of(schema_of, batches)
    source = ArrowSource(what, names, schema_of, data, NO_OTHER_FILES).as_source(connection, label, probe)
    return replace(source, open=lambda wanted: replace(source.open(wanted), readers=readers))


def reader_settings(connection: DuckDBPyConnection) -> dict[str, str]:
    """Settings of `connect_reader`: a third of the connection's memory, which is lowered by that."""
    kept = ("threads", "max_temp_directory_size", "temp_directory", "TimeZone")
    given = ", ".join(f"current_setting({text(setting)})" for setting in kept)
    values = connection.execute(f"SELECT getvariable('dphist_memory'), {given}").fetchall()[0]
    memory, share = int(values[0]), int(values[0]) // 3
    connection.execute(f"SET memory_limit = '{memory - share}B'")
    return {
        **dict(zip(kept, map(str, values[1:]), strict=True)),
        "allow_community_extensions": "false",
        "allow_persistent_secrets": "false",
        "arrow_lossless_conversion": "true",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "memory_limit": f"{share}B",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",
    }


def connect_reader(settings: Mapping[str, str], path: str, label: str) -> DuckDBPyConnection:
    """A DuckDB instance that reads one database, attached as `label`, and can open no other file.

    The database may come from anyone. The instance spills to a folder of its own, which its SQL may read.
    """
    folder = tempfile.mkdtemp(prefix="reader-", dir=settings["temp_directory"])
    reader = duckdb.connect(":memory:")
    try:
        for setting, value in {**settings, "temp_directory": folder}.items():
            reader.execute(f"SET {setting} = {text(value)}")
        reader.execute(f"ATTACH {text(path)} AS {name(label)} (TYPE duckdb, READ_ONLY)")
        # After ATTACH, which opens the file; before anything in it is bound.
        reader.execute("SET enable_external_access = false; SET lock_configuration = true")
    except BaseException:
        reader.close()
        raise
    return reader


def refuse_system(what: str, definitions: Sequence[tuple[str | None, ...]]) -> None:
    """Raise `InputError` if a view, a macro or a computed column can release settings or paths of this machine."""
    found = next(filter(None, (_SYSTEM.search(sql or "") for (sql,) in definitions)), None)
    if found is not None:
        raise InputError(
            f"{what} has a view, macro or column that uses {found[0].rstrip('( ')!r}, which may show settings of "
            "this machine: it is not allowed"
        )


def refuse_replacements(reader: DuckDBPyConnection, what: str) -> None:
    """Raise `InputError` if a query would use macros of the database instead of DuckDB's functions."""
    rows = reader.execute(
        "SELECT lower(function_name) AS own FROM duckdb_functions() GROUP BY own "
        "HAVING bool_or(internal) AND NOT bool_and(internal) ORDER BY own"
    ).fetchall()
    if rows:
        names = name_list([str(row[0]) for row in rows])
        raise InputError(
            f"{what} has macros that replace functions of DuckDB ({names}), which <--query> would use: give "
            "<--table>, or remove them"
        )


def subquery(query: str) -> str:
    """A query in brackets, on lines of its own so that a trailing comment ends there."""
    return f"(\n{query.strip().rstrip(';')}\n)"


def bind_query(action: Callable[[], T], query: str) -> T:
    """Run an action that only binds the user's query, and show errors of the parser and the binder."""
    try:
        return action()
    except (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException) as error:
        reason = about_sql(error)
    except Exception:
        reason = "it cannot be run"
    raise InputError(f"the query {query!r} cannot be used: {reason}")


# A batch ends after this many rows or bytes of text; rows are fetched a few at a time.
BATCH: Final = 50_000
BYTES: Final = 32_000_000
FEW: Final = 64
PROBE: Final = "dphist_probe"


# A Python type, the Arrow type of the column, and how cells of other types become the Python type or None.
Affinity = tuple[type, pa.DataType, Callable[[object], object]]
TEXT: Final[Affinity] = (str, pa.large_string(), text_of)
INTEGER: Final[Affinity] = (int, pa.int64(), whole_of)
REAL: Final[Affinity] = (float, pa.float64(), lambda cell: float(cell) if isinstance(cell, (int, float)) else None)
BLOB: Final[Affinity] = (bytes, pa.large_binary(), lambda cell: cell if isinstance(cell, bytes) else None)
# In SQLite's order: the first part that a declaration contains.
AFFINITIES: Final = {
    "INT": INTEGER, "CHAR": TEXT, "CLOB": TEXT, "TEXT": TEXT, "BLOB": BLOB,
    "REAL": REAL, "FLOA": REAL, "DOUB": REAL,
}  # fmt: skip


def array_of(cells: Sequence[object], affinity: Affinity) -> ArrowArray:
    python, arrow, convert = affinity
    if not set(map(type, cells)) <= {python, type(None)}:
        cells = [convert(cell) for cell in cells]
    return pa.array(cells, arrow)


def sqlite_source(path: str, events: Events) -> ArrowSource:
    what = f"the database {path!r}"
    with closing(attempt(lambda: sqlite_connection(path), what)) as database:
        if events.query is not None:
            relation, is_table = subquery(events.query), False
        else:
            listed = (
                "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
            )
            tables = dict(attempt(lambda: database.execute(listed).fetchall(), what))
            table = choose_table(events, what, sorted(("main", table) for table in tables))[1]
            relation, is_table = name(table), tables[table] == "table"
        wrong = "{what} cannot be read" if events.query is None else f"the query {events.query!r} is not valid SQL"
        columns = attempt(lambda: sqlite_columns(database, relation, is_table), what, wrong)
    affinities = dict(columns)

    def schema(wanted: list[str]) -> pa.Schema:
        return pa.schema([(column, affinities[column][1]) for column in wanted])

    def batches(wanted: list[str], common: pa.Schema) -> Iterator[pa.RecordBatch]:
        with closing(sqlite_connection(path)) as database:
            cursor = database.execute(f"SELECT {', '.join(map(name, wanted))} FROM {relation}")
            for rows in batches_of(cursor):
                cells = zip(wanted, zip(*rows, strict=True), strict=True)
                arrays = [array_of(column, affinities[name]) for name, column in cells]
                yield pa.RecordBatch.from_arrays(arrays, schema=common)

    return ArrowSource(what, [column for column, _ in columns], schema, stream_of(schema, batches))


def sqlite_connection(path: str) -> sqlite3.Connection:
    address = "file:" + quote(os.fsencode(os.path.abspath(path))) + "?mode=ro"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = decode_text
    database.execute("PRAGMA query_only = ON")
    database.execute("PRAGMA trusted_schema = OFF")  # views cannot use functions with side effects
    return database


def sqlite_columns(database: sqlite3.Connection, relation: str, is_table: bool) -> list[tuple[str, Affinity]]:
    """Names and affinities of all columns, without reading a row."""
    names = [str(column[0]) for column in database.execute(f"SELECT * FROM {relation} LIMIT 0").description]
    if is_table:
        rows = database.execute(f"PRAGMA table_xinfo({relation})").fetchall()
    else:
        # SQLite shows declared types for views, so a query becomes one.
        database.execute("PRAGMA query_only = OFF")
        database.execute(f"CREATE TEMP VIEW {PROBE} AS SELECT * FROM {relation}")
        rows = database.execute(f"PRAGMA temp.table_xinfo({PROBE})").fetchall()
    declared = [str(row[2]).upper() for row in rows if row[6] != 1]  # 1: hidden, not selected by *
    affinities = [next((a for part, a in AFFINITIES.items() if part in kind), TEXT) for kind in declared]
    if not is_table:
        # Some versions declare a computed column as BLOB.
        affinities = [TEXT if affinity is BLOB else affinity for affinity in affinities]
    return list(zip(names, affinities, strict=True))


def batches_of(cursor: sqlite3.Cursor) -> Iterator[list[tuple[object, ...]]]:
    """Rows in batches that are limited by rows and by bytes: a cell may be as long as a file."""
    rows: list[tuple[object, ...]] = []
    size = 0
    while some := cursor.fetchmany(FEW):
        rows += some
        size += sum(len(cell) for row in some for cell in row if isinstance(cell, (str, bytes)))
        if len(rows) >= BATCH or size >= BYTES:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def postgres_source(address: str, events: Events) -> ArrowSource:
    """A table or a query of PostgreSQL. The address may contain a password, so no message shows it."""
    driver = postgres_driver()
    what = attempt(lambda: database_name(address), "the address of the PostgreSQL database", "{what} is not valid")
    unreachable = "{what} cannot be reached: check the address, the user and the password"

    @contextmanager
    def run(query: str) -> Iterator[Cursor]:
        """Run a query in a read-only transaction, on a connection of its own because a stream keeps it busy."""
        connection = attempt(lambda: driver.connect(address), what, unreachable)
        with closing(connection), closing(connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(query)
            yield cursor

    def rows_of(query: str) -> list[tuple[str, ...]]:
        with run(query) as cursor:
            return cursor.fetchall()

    def schema_of(query: str) -> pa.Schema:
        with run(f"SELECT * FROM ({query}) AS dphist_rows LIMIT 0") as cursor:
            return cursor.fetch_arrow_table().schema

    if events.query is not None:
        relation = f"{subquery(events.query)} AS dphist_query"
        wrong = f"the query {events.query!r} cannot be run by {{what}}"
    else:
        # Without --table only the schema `public` counts.
        only = "" if events.table is not None else "AND table_schema = 'public'"
        query = (
            "SELECT table_schema::text, table_name::text FROM information_schema.tables "
            f"WHERE table_schema NOT IN ('pg_catalog', 'information_schema') {only} ORDER BY 1, 2"
        )
        tables = [(str(folder), str(table)) for folder, table in attempt(lambda: rows_of(query), what)]
        relation, wrong = ".".join(map(name, choose_table(events, what, tables))), "{what} cannot be read"
    all_columns = attempt(lambda: schema_of(f"SELECT * FROM {relation}"), what, wrong)

    def select(wanted: list[str]) -> str:
        return f"SELECT {', '.join(postgres_column(all_columns, column) for column in wanted)} FROM {relation}"

    def schema(wanted: list[str]) -> pa.Schema:
        return schema_of(select(wanted))

    def batches(wanted: list[str], common: pa.Schema) -> Iterator[pa.RecordBatch]:
        with run(select(wanted)) as cursor, closing(cursor.fetch_record_batch()) as reader:
            for batch in reader:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=common)

    otherwise = "{what} cannot be read: the connection was lost, or permission denied"
    return ArrowSource(what, all_columns.names, schema, stream_of(schema, batches), otherwise)


def database_name(address: str) -> str:
    """The database for messages: name and host, without user and password."""
    parts = urlsplit(address)
    database = f" {parts.path.strip('/')!r}" if parts.path.strip("/") else ""
    return f"the PostgreSQL database{database} on {parts.hostname or 'this machine'}"


def postgres_column(schema: pa.Schema, column: str) -> str:
    """A column in a type that Arrow has: numeric and PostgreSQL's own types come as text."""
    kind = schema.field(column).type
    extension = getattr(kind, "type_name", "") if isinstance(kind, pa.BaseExtensionType) else ""
    if extension == "numeric":
        return f"trim_scale({name(column)})::text AS {name(column)}"
    return f"{name(column)}::text AS {name(column)}" if extension else name(column)
