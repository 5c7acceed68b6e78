"""Tables of databases: written in one transaction, and read back by those who wrote them.

DuckDB and PostgreSQL (through ADBC) exchange Arrow columns. SQLite uses Python's own module: its ADBC driver turns
NaN into null and lacks booleans and decimals.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from dphist.aliases import ChunkedArray
from dphist.certificate.cells import column_of, json_cells, parts_of, restore_column
from dphist.certificate.digests import digest_of, digest_of_values
from dphist.counting.sql import name as quote_name
from dphist.errors import DphistError, OutputError, package, postgres_driver
from dphist.outputs.target import Target, already_exists, schema_and_table

if TYPE_CHECKING:
    from adbc_driver_manager import dbapi
    from duckdb import DuckDBPyConnection

WAIT_SECONDS: Final = 5.0


# A row of a query; its cells are of the types that the query asks for.
Row = tuple[Any, ...]


class StoreError(DphistError):
    """An error of a database. Its text completes a sentence and never quotes a value."""


class Connection(Protocol):
    def close(self) -> None: ...


class Store:
    """A connection to a database, in a transaction; what is not committed before it closes is lost.

    All methods raise `StoreError`.
    """

    failures: tuple[type[Exception], ...]
    connection: Connection

    def __init__(self, address: str) -> None:
        self.address = address

    def explain(self, error: Exception) -> StoreError:
        """Translate an error of the database, whose own text may quote a value."""
        raise NotImplementedError

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise self.explain(error) from None

    def run(self, statement: str, *values: str) -> list[Row]:
        """Run a statement and return its rows."""
        raise NotImplementedError

    def full_name(self, name: str) -> str:
        return quote_name(name)

    def may_create(self, name: str) -> bool:  # noqa: ARG002
        return os.access(self.address, os.W_OK)

    def find(self, name: str) -> str | None:
        """The kind of object that has this name, such as "table"; None if there is none."""
        raise NotImplementedError

    def drop(self, name: str) -> None:
        self.run(f"DROP TABLE {self.full_name(name)}")

    def create(self, name: str, table: pa.Table, check: Callable[[], None]) -> None:
        raise NotImplementedError

    def rows(self, name: str) -> pa.Table:
        """The rows of a table as an Arrow table."""
        raise NotImplementedError

    def read(self, name: str, types: Mapping[str, str]) -> pa.Table:
        """A table that was written from columns of these types, in these types."""
        stored = self.rows(name)
        columns = [
            restore_column(c, types.get(n)) for n, c in zip(stored.column_names, stored.columns, strict=True)
        ]
        return pa.table(columns, names=stored.column_names)

    def commit(self) -> None:
        self.run("COMMIT")

    def close(self) -> None:
        with suppress(StoreError), self.errors():
            self.connection.close()


@contextmanager
def open_store(kind: str, address: str) -> Iterator[Store]:
    """A connection for writing; SQLite and DuckDB first undo or complete the transaction of a killed process."""
    stores: dict[str, Callable[[str], Store]] = {"duckdb": _DuckDB, "sqlite": _SQLite, "postgresql": _Postgres}
    store = stores[kind](address)
    try:
        yield store
    finally:
        store.close()


# -------------------------------------------------------------------------------------------------------- DuckDB

_LOCKED: Final = "the database is locked by another process or connection"
# DuckDB has no error codes. Memory comes first: its message contains "block".
_DUCKDB_REASONS: Final = {
    "^OutOfMemoryException": "it needs too much memory",
    "lock|different configuration": _LOCKED,
    "not a valid DuckDB|(newer|older) version": "the file is not a DuckDB database that this version reads",
    "No space left|File too large|(?i:out of disk)": "no space is left on the disk",
    "ermission denied|(?i:read-only)": "permission denied",
}


class _DuckDB(Store):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.failures = (package("duckdb").Error,)
        with self.errors():
            # Absolute, because DuckDB reads some names as network addresses.
            self.connection: DuckDBPyConnection = package("duckdb").connect(os.path.abspath(address))
        self.run("BEGIN TRANSACTION")

    def run(self, statement: str, *values: str) -> list[Row]:
        with self.errors():
            return self.connection.execute(statement, values).fetchall()

    def explain(self, error: Exception) -> StoreError:
        for words, reason in _DUCKDB_REASONS.items():
            if re.search(words, f"{type(error).__name__} {error}"):
                return StoreError(reason)
        return StoreError(f"DuckDB reports a {type(error).__name__}")

    def find(self, name: str) -> str | None:
        rows = self.run(
            "SELECT table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = current_database() AND table_schema = current_schema()"
        )
        kinds = [kind for table, kind in rows if table.casefold() == name.casefold()]
        return None if not kinds else "table" if kinds[0] == "BASE TABLE" else "view"

    def create(self, name: str, table: pa.Table, check: Callable[[], None]) -> None:
        view = f"dphist_{secrets.token_hex(8)}"
        with self.errors():
            self.connection.register(view, table)
            self.run(f"CREATE TABLE {quote_name(name)} AS SELECT * FROM {view}")
            self.connection.unregister(view)
        check()

    def rows(self, name: str) -> pa.Table:
        with self.errors():
            table: pa.Table = self.connection.sql(f"SELECT * FROM {quote_name(name)}").to_arrow_table()
            return table

    def close(self) -> None:
        # Fails if DuckDB has ended the transaction itself after an error.
        with suppress(StoreError):
            self.run("ROLLBACK")
        super().close()


# -------------------------------------------------------------------------------------------------------- SQLite

_SQLITE_REASONS: Final = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "no space is left on the disk",
    sqlite3.SQLITE_IOERR: "the disk reports an input/output error",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "the SQLite database is damaged",
}

# How the types that `storable` returns are declared; all others are text.
_DECLARED: Final = {
    "bool": "BOOLEAN", "int16": "INTEGER", "int32": "INTEGER", "int64": "INTEGER", "float": "REAL",
    "double": "REAL", "date32": "DATE", "time64": "TIME", "timestamp": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip


class _SQLite(Store):
    failures = (sqlite3.Error, UnicodeError, OverflowError)

    def __init__(self, address: str) -> None:
        super().__init__(address)
        where = Path(address).absolute().as_uri() + "?mode=rwc"
        with self.errors():
            self.connection: sqlite3.Connection = sqlite3.connect(
                where, uri=True, timeout=WAIT_SECONDS, isolation_level=None
            )
        # An error would quote text that is not UTF-8.
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            # Locked at once, so that two writers cannot both begin.
            self.run("BEGIN IMMEDIATE")
            self.run("SELECT name FROM sqlite_master LIMIT 1")
        except StoreError:
            self.close()
            raise

    def run(self, statement: str, *values: str) -> list[Row]:
        with self.errors():
            return self.connection.execute(statement, values).fetchall()

    def explain(self, error: Exception) -> StoreError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        return StoreError(_SQLITE_REASONS.get(code, f"SQLite reports {name}"))

    def find(self, name: str) -> str | None:
        # As SQLite folds names (ASCII only), because it will drop the table that is found here.
        rows = self.run("SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type <> 'trigger'", name)
        return next((kind for (kind,) in rows), None)

    def create(self, name: str, table: pa.Table, check: Callable[[], None]) -> None:
        kinds = [_DECLARED.get(str(kind).partition("[")[0], "TEXT") for kind in table.schema.types]
        fields = zip(table.column_names, kinds, strict=True)
        columns = ", ".join(f"{quote_name(column)} {kind}" for column, kind in fields)
        self.run(f"CREATE TABLE {quote_name(name)} ({columns})")
        places = ", ".join("?" * table.num_columns)
        for part in parts_of(table):
            rows = zip(*(_sqlite_cells(column) for column in part.columns), strict=True)
            with self.errors():
                self.connection.executemany(f"INSERT INTO {quote_name(name)} VALUES ({places})", rows)
            check()

    def read(self, name: str, types: Mapping[str, str]) -> pa.Table:
        with self.errors():
            cursor = self.connection.execute(f"SELECT * FROM {quote_name(name)}")
            names = [column[0] for column in cursor.description]
            cells = list(zip(*cursor.fetchall(), strict=True)) or [()] * len(names)
        columns = [column_of(list(part), types.get(column)) for part, column in zip(cells, names, strict=True)]
        return pa.table(columns, names=names)


def _sqlite_cells(column: ChunkedArray) -> list[object]:
    """SQLite stores bytes and infinity, but no dates or decimals, and turns NaN into null."""
    if str(column.type) in ("binary", "float", "double"):
        return ["NaN" if cell != cell else cell for cell in column.to_pylist()]
    return json_cells(column)


# ---------------------------------------------------------------------------------------------------- PostgreSQL

_NOT_ALLOWED: Final = "this user does not have permission"
_CREATED: Final = "another writer created the table at the same time"
_ENCODING: Final = "a text has a character that the database's encoding lacks"
_REFUSED: Final = "the server refuses this user or password"
# By the beginning of PostgreSQL's error code, or by the driver's words where it has no code.
_POSTGRES_REASONS: Final = {
    "22021": _ENCODING,
    "22P05": _ENCODING,
    "25006": "the database is read-only",
    "2BP01": "other objects of the database depend on the table to replace",
    "23505": _CREATED,
    "28": _REFUSED,
    "3D000": "there is no such database",
    "3F000": "there is no such schema",
    "42501": _NOT_ALLOWED,
    "42P07": _CREATED,
    "53100": "no space is left on the server's disk",
    "55P03": "the table is locked",
    "57014": "the server cancelled it",
    "permission denied": _NOT_ALLOWED,
    "already exists": _CREATED,
}
# libpq has no error codes, and its messages may quote a part of the address.
_CONNECTING: Final = {
    "authentication failed": _REFUSED,
    "no password supplied": "the server asks for a password",
    "Connection refused": "no server answers there",
    "translate host name": "there is no such host",
    "does not exist": "this database or user does not exist on the server",
    "timeout": "the server does not answer",
}


class _Postgres(Store):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        driver = postgres_driver()
        self.failures = (driver.Error,)
        try:
            # ADBC begins a transaction by itself.
            self.connection: dbapi.Connection = driver.connect(address)
        except driver.Error as error:
            reasons = (reason for words, reason in _CONNECTING.items() if words in str(error))
            raise StoreError(next(reasons, "it cannot be reached")) from None
        try:
            self._schema = self.run("SELECT current_schema()::text")[0][0]
        except StoreError:
            self.close()
            raise

    def explain(self, error: Exception) -> StoreError:
        match = re.search(r"SQLSTATE: (\w{5})", str(error))
        state = getattr(error, "sqlstate", None) or (match[1] if match else "")
        for sign, reason in _POSTGRES_REASONS.items():
            # The driver has no code for a table that it could not create.
            if state.startswith(sign) or (" " in sign and sign in str(error)):
                return StoreError(reason)
        return StoreError(f"PostgreSQL reports {state or type(error).__name__}")

    def run(self, statement: str, *values: str) -> list[Row]:
        with self.errors(), self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def _parts(self, name: str) -> tuple[str, str]:
        """Schema and table; without a schema the name could mean a table elsewhere on the search path."""
        schema, table = schema_and_table(name)
        schema = schema or self._schema
        if schema is None:
            raise StoreError("the user has no schema: name the table as schema.table")
        return schema, table

    def full_name(self, name: str) -> str:
        return ".".join(map(quote_name, self._parts(name)))

    def may_create(self, name: str) -> bool:
        return bool(self.run("SELECT has_schema_privilege($1, 'CREATE')", self._parts(name)[0])[0][0])

    def find(self, name: str) -> str | None:
        if not self.run("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", self._parts(name)[0]):
            raise StoreError("there is no such schema")
        rows = self.run(
            "SELECT c.relkind::text FROM pg_catalog.pg_class c "
            "JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
            *self._parts(name),
        )
        return None if not rows else "table" if rows[0][0] in ("r", "p") else "view or an index"

    def create(self, name: str, table: pa.Table, check: Callable[[], None]) -> None:
        schema, plain = self._parts(name)
        with self.errors(), self.connection.cursor() as cursor:
            cursor.adbc_ingest(plain, table, mode="create", db_schema_name=schema)
        check()

    def rows(self, name: str) -> pa.Table:
        with self.errors(), self.connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.full_name(name)}")
            table: pa.Table = cursor.fetch_arrow_table()
            return table

    def commit(self) -> None:
        with self.errors():
            self.connection.commit()


# ------------------------------------------------------------------------------------------------------- writing


@contextmanager
def writing_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        raise OutputError(f"{target.title()} cannot be written: {error}") from None


def check_database(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if the database cannot be opened, or has a table with this name."""
    with writing_errors(target), open_store(target.kind, target.address) as store:
        _is_to_be_replaced(store, target, force)
        if not store.may_create(target.table_name):
            raise StoreError(_NOT_ALLOWED)


def _is_to_be_replaced(store: Store, target: Target, force: bool) -> bool:
    kind, where = store.find(target.table_name), f"{target.table_name} in {target.public_address()}"
    if kind is not None and kind != "table":
        raise OutputError(f"{where} already exists and is a {kind}: choose another name")
    if kind is not None and not force:
        raise already_exists(f"table {where}")
    return kind is not None


def put_table(
    store: Store, target: Target, stored: pa.Table, types: Mapping[str, str], *,
    force: bool, check: Callable[[], None],
) -> None:  # fmt: skip
    """Create the table, in place of an older one with `force`. Nothing is committed."""
    if _is_to_be_replaced(store, target, force):
        store.drop(target.table_name)
    store.create(target.table_name, stored, check)
    if digest_of_values(store.read(target.table_name, types), target.kind) != digest_of(stored):
        raise StoreError("the database did not store the values exactly")


def read_table(target: Target, types: Mapping[str, str]) -> pa.Table | None:
    """The table that an earlier run has written, in the types that it was written from; None if there is none."""
    if target.kind != "postgresql" and not target.path.exists():
        return None
    with open_store(target.kind, target.address) as store:
        return None if store.find(target.table_name) != "table" else store.read(target.table_name, types)
