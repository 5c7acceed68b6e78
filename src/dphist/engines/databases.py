"""Databases in files: which kind and which table; and DuckDB's own, read-only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from dphist.engines.failures import about_sql, attempt, listed
from dphist.engines.sources import Opened, Source, describe, require
from dphist.engines.sql import name, text
from dphist.errors import InputError
from dphist.types import Events


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
