"""Databases in files: DuckDB and SQLite, both of them read-only."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from dphist.engines.failures import about_sql, attempt, listed
from dphist.engines.sources import ArrowSource, Opened, Source, describe, numbered, require
from dphist.engines.sql import name, text
from dphist.errors import InputError
from dphist.types import Events

BATCH: Final = 50_000
EXACT: Final = 2**53


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


def sqlite_source(path: str, events: Events) -> Source:
    """An SQLite file, streamed in batches."""
    what = f"the database {path!r}"
    with closing(attempt(lambda: sqlite_connection(path), what)) as database:
        if events.query is not None:
            relation = f"(\n{only_select(events.query)}\n)"
        else:
            found = attempt(
                lambda: database.execute(
                    "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
                ).fetchall(),
                what,
            )
            relation = name(chosen_table(events, what, sorted(("main", str(row[0])) for row in found))[1])
        probe = f"SELECT * FROM {relation} LIMIT 0"
        wrong = "{what} cannot be read" if events.query is None else f"the query {events.query!r} is not valid SQL"
        names = [str(column[0]) for column in attempt(lambda: database.execute(probe), what, wrong).description]

    def schema(wanted: list[str]) -> Any:
        with closing(sqlite_connection(path)) as database:
            return sqlite_schema(database, relation, wanted, what)

    def data(wanted: list[str]) -> Any:
        return sqlite_reader(path, relation, wanted, schema(wanted))

    return ArrowSource(what, names, schema, data)


def sqlite_connection(path: str) -> sqlite3.Connection:
    """A read-only connection. Text that is not UTF-8 is kept apart by its bytes."""
    address = "file:" + re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", os.path.abspath(path)) + "?mode=ro"
    database = sqlite3.connect(address, uri=True, check_same_thread=False)
    database.text_factory = lambda raw: raw.decode("utf-8", "backslashreplace")
    database.execute("PRAGMA query_only = ON")
    return database


def sqlite_schema(database: sqlite3.Connection, relation: str, wanted: list[str], what: str) -> Any:
    """The types that columns really hold: SQLite lets every cell have its own."""
    import pyarrow as pa

    tests = []
    for column in map(name, wanted):
        tests += [f"max(typeof({column}) = '{kind}')" for kind in ("integer", "real", "text", "blob")]
        tests.append(f"max(typeof({column}) = 'integer' AND ({column} > {EXACT} OR {column} < -{EXACT}))")
    row = database.execute(f"SELECT {', '.join(tests)} FROM {relation}").fetchone()
    plain = {
        "1000": pa.int64(),
        "0100": pa.float64(),
        "1100": pa.float64(),
        "0010": pa.string(),
        "0001": pa.binary(),
    }
    fields = []
    for k, column in enumerate(wanted):
        *held, large = (bool(value) for value in row[5 * k : 5 * k + 5])
        kind = plain.get("".join("1" if flag else "0" for flag in held)) if any(held) else pa.string()
        if kind is None or (large and held[1]):
            raise InputError(f"the column {column!r} of {what} holds values of several types; cast it in a query")
        fields.append(pa.field(column, kind))
    return numbered(fields)


def sqlite_reader(path: str, relation: str, wanted: list[str], schema: Any) -> Any:
    """An Arrow reader over the rows."""
    import pyarrow as pa

    def each() -> Iterator[Any]:
        with closing(sqlite_connection(path)) as database:
            cursor = database.execute(f"SELECT {', '.join(map(name, wanted))} FROM {relation}")
            while rows := cursor.fetchmany(BATCH):
                columns = zip(*rows, strict=True)
                arrays = [pa.array(column, entry.type) for column, entry in zip(columns, schema, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, each())
