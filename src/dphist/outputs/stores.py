"""Write a release and its certificate as two database tables in one transaction, and read them back.

DuckDB and PostgreSQL (through ADBC) exchange Arrow columns. SQLite uses Python's own module: its ADBC driver turns
NaN into null, lacks booleans and decimals, and offers neither the authorizer nor the limits that make it safe to
read an untrusted file.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from dphist.errors import DphistError, OutputError, package, postgres_driver
from dphist.outputs.certificate_text import LARGEST_CERTIFICATE
from dphist.outputs.formats import as_text, column_of, digest_of, json_cells, parts_of
from dphist.outputs.target import Target, already_exists, schema_and_table

if TYPE_CHECKING:
    from dphist.outputs.write import WriteJob

CERTIFICATE_COLUMN: Final = "document"
WAIT_SECONDS: Final = 5.0
_ROWS: Final = 2048
# The most bytes of one text, or of a batch of rows.
_MOST_BYTES: Final = 1 << 28
Trouble = Literal["absent", "unavailable", "other"]


class StoreError(DphistError):
    """An error of a database. Its text completes a sentence and never quotes a value.

    `trouble` is "absent" if there is no such table, "unavailable" if the database cannot be used at all.
    """

    def __init__(self, reason: str, trouble: Trouble = "other") -> None:
        super().__init__(reason)
        self.trouble = trouble


def _not_a_table(name: str) -> StoreError:
    return StoreError(
        f"{name} is not a plain table, but a view or something else that is computed when it is read"
    )


def _check_beside(address: str, *endings: str) -> None:
    """Raise `StoreError` if a file that the database opens next to its own is not a file: a pipe would block."""
    for ending in endings:
        if os.path.lexists(address + ending) and not os.path.isfile(address + ending):
            raise StoreError(f"its {ending} is not a file")


def quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class Store:
    """A connection to a database, in a transaction; what is not committed before it closes is lost.

    All methods raise `StoreError`. Without `writing` only plain tables are read.
    """

    # SQL: the type of the certificate column, its cell unless it is too long, and the placeholder of a value.
    text, cell, value = "TEXT", CERTIFICATE_COLUMN, "?"
    failures: tuple[type[Exception], ...]

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Any = None

    def explain(self, error: Any) -> StoreError:
        """Translate an error of the database, whose own text may quote a value."""
        raise NotImplementedError

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise self.explain(error) from None

    def run(self, statement: str, *values: Any) -> list[Any]:
        with self.errors():
            rows: list[Any] = self.connection.execute(statement, values).fetchall()
            return rows

    def full_name(self, name: str) -> str:
        return quote_name(name)

    def may_create(self, name: str) -> bool:  # noqa: ARG002
        return os.access(self.address, os.W_OK)

    def find(self, name: str) -> str | None:
        """The kind of object that has this name, such as "table"; None if there is none."""
        raise NotImplementedError

    def drop(self, name: str) -> None:
        self.run(f"DROP TABLE {self.full_name(name)}")

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        raise NotImplementedError

    def create_certificate(self, name: str, text: str) -> None:
        self.run(f"CREATE TABLE {self.full_name(name)} ({CERTIFICATE_COLUMN} {self.text} NOT NULL)")
        self.run(f"INSERT INTO {self.full_name(name)} VALUES ({self.value})", text)

    def stored_columns(self, name: str) -> list[tuple[str, str]]:
        """Names and types of the columns; raises unless every value is stored and none computed."""
        raise NotImplementedError

    def stored_rows(self, name: str) -> str:
        """SQL that names the table, restricted to its own rows."""
        return self.full_name(name)

    def batches(self, name: str) -> Iterator[Any]:
        """The rows of a plain table as Arrow batches, at least one, in types that `digest_of` supports."""
        raise NotImplementedError

    def read_certificate(self, name: str) -> list[Any]:
        """At most two cells (one is valid), None for a cell that is too long."""
        if self.stored_columns(name) != [(CERTIFICATE_COLUMN, self.text)]:
            raise StoreError(f"{name} is not a certificate table")
        return [row[0] for row in self.run(f"SELECT {self.cell} FROM {self.stored_rows(name)} LIMIT 2")]

    def commit(self) -> None:
        self.run("COMMIT")

    def close(self) -> None:
        with suppress(StoreError), self.errors():
            self.connection.close()


@contextmanager
def open_store(kind: str, address: str, *, writing: bool = False) -> Iterator[Store]:
    stores: dict[str, Callable[[str, bool], Store]] = {
        "duckdb": _DuckDB, "sqlite": _SQLite, "postgresql": _Postgres,
    }  # fmt: skip
    store = stores[kind](address, writing)
    try:
        yield store
    finally:
        store.close()


# -------------------------------------------------------------------------------------------------------- DuckDB

# For untrusted files: DuckDB opens nothing but the file itself, and SQL cannot change these settings.
_READING: Final = {
    "enable_external_access": "false", "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false", "allow_community_extensions": "false",
    "python_enable_replacements": "false", "temp_directory": "", "memory_limit": "1GB", "threads": "1",
    "lock_configuration": "true",
}  # fmt: skip
# The types that `storable` returns; others could be computed, or take far more memory than they do in the file.
_TYPES: Final = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT",
    "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE",
)  # fmt: skip
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
    text = "VARCHAR"
    cell = f"CASE WHEN strlen({CERTIFICATE_COLUMN}) <= {LARGEST_CERTIFICATE} THEN {CERTIFICATE_COLUMN} END"

    def __init__(self, address: str, writing: bool) -> None:
        super().__init__(address)
        self.failures = (package("duckdb").Error,)
        # Absolute, because DuckDB reads some names as network addresses.
        place, settings = os.path.abspath(address), {} if writing else _READING
        self._log = None if writing else place + ".wal"
        if not writing:
            _check_beside(place, ".wal")
        with self.errors():
            self.connection = package("duckdb").connect(place, read_only=not writing, config=settings)
        self.run("BEGIN TRANSACTION")
        self._database = self.run("SELECT current_database()")[0][0]

    def explain(self, error: Exception) -> StoreError:
        for words, reason in _DUCKDB_REASONS.items():
            if re.search(words, f"{type(error).__name__} {error}"):
                return StoreError(reason, "unavailable" if reason == _LOCKED else "other")
        return StoreError(f"DuckDB reports a {type(error).__name__}")

    def _find_names(self, name: str) -> list[tuple[str, str]]:
        """Name and type of all tables and views with this name in any case."""
        rows = self.run(
            "SELECT table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = current_database() AND table_schema = current_schema()"
        )
        return [(table, kind) for table, kind in rows if table.casefold() == name.casefold()]

    def find(self, name: str) -> str | None:
        kinds = [kind for _, kind in self._find_names(name)]
        return None if not kinds else "table" if kinds[0] == "BASE TABLE" else "view"

    def _only_table(self, name: str) -> str:
        """The table's exact name; raises if there are two, because DuckDB could read the one not checked."""
        match self._find_names(name):
            case [(table, "BASE TABLE")]:
                return table
        raise _not_a_table(name)

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        view = f"dphist_{secrets.token_hex(8)}"
        with self.errors():
            self.connection.register(view, table)
            self.run(f"CREATE TABLE {quote_name(name)} AS SELECT * FROM {view}")
            self.connection.unregister(view)
        check()

    def stored_columns(self, name: str) -> list[tuple[str, str]]:
        if self._log and os.path.lexists(self._log):
            # DuckDB would read this log, which is not part of the file that is passed on.
            raise StoreError("it was not closed properly: open and close it once with DuckDB")
        columns = self.run(
            "SELECT column_name, data_type, column_default FROM duckdb_columns() WHERE table_name = ? "
            "AND database_name = current_database() AND schema_name = current_schema() ORDER BY column_index",
            self._only_table(name),
        )
        # The default of a generated column is its expression.
        if any(default is not None for _, _, default in columns):
            raise _not_a_table(name)
        return [(column, kind) for column, kind, _ in columns]

    def stored_rows(self, name: str) -> str:
        return f"{quote_name(self._database)}.main.{quote_name(self._only_table(name))}"

    def batches(self, name: str) -> Iterator[Any]:
        columns, rows = self.stored_columns(name), self.stored_rows(name)
        if not all(kind in _TYPES or re.fullmatch(r"DECIMAL\(\d+,\d+\)", kind) for _, kind in columns):
            raise StoreError("it has a column of a type that no release has")
        sizes = {"VARCHAR": "strlen", "BLOB": "octet_length"}
        longest = [
            f"coalesce(max({sizes[kind]}({quote_name(column)})), 0)" for column, kind in columns if kind in sizes
        ]
        width = sum(self.run(f"SELECT {', '.join(['0', *longest])} FROM {rows}")[0])
        with self.errors():
            # Few rows at a time, because a small file may repeat one long text.
            size = max(1, min(_ROWS, _MOST_BYTES // max(1, width)))
            reader = self.connection.sql(f"SELECT * FROM {rows}").to_arrow_reader(size)
            yield pa.RecordBatch.from_pylist([], reader.schema)
            yield from reader

    def close(self) -> None:
        # Fails if DuckDB has ended the transaction itself after an error.
        with suppress(StoreError):
            self.run("ROLLBACK")
        super().close()


# -------------------------------------------------------------------------------------------------------- SQLite

# Enough to read plain tables; views, generated columns and virtual tables would need more.
_ALLOWED: Final = (
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_PRAGMA,
)  # fmt: skip
_SQLITE_REASONS: Final = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "no space is left on the disk",
    sqlite3.SQLITE_IOERR: "the disk reports an input/output error",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_READONLY_ROLLBACK: (
        "a write to it was interrupted; the next release into it, or any program with write access, restores it"
    ),
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

    def __init__(self, address: str, writing: bool) -> None:
        super().__init__(address)
        if not writing:
            _check_beside(address, "-journal", "-wal", "-shm")
        where = Path(address).absolute().as_uri() + ("?mode=rwc" if writing else "?mode=ro")
        with self.errors():
            self.connection = sqlite3.connect(where, uri=True, timeout=WAIT_SECONDS, isolation_level=None)
        # An error would quote text that is not UTF-8.
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            # Locked at once, so that two writers cannot both begin.
            self.run("BEGIN IMMEDIATE" if writing else "BEGIN")
            self.run("SELECT name FROM sqlite_master LIMIT 1")
            # For untrusted files: tables are read and no function is called.
            for setting in () if writing else ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                self.run(f"PRAGMA {setting}")
        except StoreError:
            self.close()
            raise
        if writing:
            return
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
        self.connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self.connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )

    def explain(self, error: Exception) -> StoreError:
        full = getattr(error, "sqlite_errorcode", 0)
        code = full if full in _SQLITE_REASONS else full & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        reason = _SQLITE_REASONS.get(code, f"SQLite reports {name}")
        return StoreError(reason, "unavailable" if reason == _LOCKED else "other")

    def find(self, name: str) -> str | None:
        # As SQLite folds names (ASCII only), because it will drop the table that is found here.
        rows = self.run("SELECT type FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type <> 'trigger'", name)
        return next((kind for (kind,) in rows), None)

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
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

    def stored_columns(self, name: str) -> list[tuple[str, str]]:
        rows = self.run("SELECT name, type, rootpage FROM sqlite_master")
        objects = [(kind, page) for known, kind, page in rows if known.casefold() == name.casefold()]
        # A virtual table has no root page.
        if (
            len(objects) != 1
            or objects[0][0] != "table"
            or not isinstance(objects[0][1], int)
            or objects[0][1] < 1
        ):
            raise _not_a_table(name)
        columns = self.run(f"PRAGMA table_xinfo({quote_name(name)})")
        # Columns 4 and 6: the default, and whether the column is hidden or generated.
        if any(row[4] is not None or row[6] != 0 for row in columns):
            raise _not_a_table(name)
        return [(row[1], row[2]) for row in columns]

    def stored_rows(self, name: str) -> str:
        # In a forged file an index may hold other rows than its table.
        return f"main.{quote_name(name)} NOT INDEXED"

    def batches(self, name: str) -> Iterator[Any]:
        columns = self.stored_columns(name)
        with self.errors():
            cursor = self.connection.execute(f"SELECT * FROM {self.stored_rows(name)}")
            rows: list[Any] | None = None
            while rows is None or len(rows) == _ROWS:
                rows = cursor.fetchmany(_ROWS)
                cells = list(zip(*rows, strict=True)) or [()] * len(columns)
                arrays = [_from_sqlite(list(part), kind) for part, (_, kind) in zip(cells, columns, strict=True)]
                table = pa.table(arrays, names=[column for column, _ in columns])
                yield from table.to_batches() or [pa.RecordBatch.from_pylist([], table.schema)]


def _sqlite_cells(column: Any) -> list[Any]:
    """SQLite stores bytes and infinity, but no dates or decimals, and turns NaN into null."""
    if str(column.type) in ("binary", "float", "double"):
        return ["NaN" if cell != cell else cell for cell in column.to_pylist()]
    return json_cells(column)


def _from_sqlite(cells: list[Any], declared: str) -> Any:
    """SQLite stores booleans as 1 and 0."""
    if declared == "BOOLEAN" and all(cell in (None, 0, 1) for cell in cells):
        return pa.chunked_array([pa.array([None if cell is None else bool(cell) for cell in cells], pa.bool_())])
    types = {"REAL": "double", "INTEGER": "int64", "BLOB": "binary", "BOOLEAN": "int64"}
    return column_of(cells, types.get(declared, "string"))


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
_SECONDS: Final = 600
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
    text, value = "text", "$1"
    cell = f"CASE WHEN octet_length({CERTIFICATE_COLUMN}) <= {LARGEST_CERTIFICATE} THEN {CERTIFICATE_COLUMN} END"

    def __init__(self, address: str, writing: bool) -> None:
        super().__init__(address)
        driver = postgres_driver()
        self.failures = (driver.Error,)
        try:
            # ADBC begins a transaction by itself.
            self.connection = driver.connect(address)
        except driver.Error as error:
            reasons = (reason for words, reason in _CONNECTING.items() if words in str(error))
            raise StoreError(next(reasons, "it cannot be reached"), "unavailable") from None
        try:
            if not writing:
                # One state of the database for the table and its certificate.
                self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                self.run(f"SET LOCAL statement_timeout = '{_SECONDS}s'")
                # An error instead of rows that a policy selects.
                self.run("SET LOCAL row_security = off")
            self._schema = self.run("SELECT current_schema()::text")[0][0]
        except StoreError:
            self.close()
            raise

    def explain(self, error: Any) -> StoreError:
        match = re.search(r"SQLSTATE: (\w{5})", str(error))
        state = error.sqlstate or (match[1] if match else "")
        for sign, reason in _POSTGRES_REASONS.items():
            # The driver has no code for a table that it could not create.
            if state.startswith(sign) or (" " in sign and sign in str(error)):
                return StoreError(reason)
        return StoreError(f"PostgreSQL reports {state or type(error).__name__}")

    def run(self, statement: str, *values: Any) -> list[Any]:
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

    def _relation(self, name: str) -> tuple[str, bool, int]:
        """Kind (empty if there is none), whether it may have rows of other tables, and object id."""
        rows = self.run(
            "SELECT c.relkind::text, c.relrowsecurity OR c.relhassubclass OR c.relhasrules, c.oid::bigint "
            "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = $2",
            *self._parts(name),
        )
        return rows[0] if rows else ("", False, 0)

    def find(self, name: str) -> str | None:
        if not self.run("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", self._parts(name)[0]):
            raise StoreError("there is no such schema", "unavailable")
        kind, _, _ = self._relation(name)
        return None if not kind else "table" if kind in ("r", "p") else "view or an index"

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        schema, plain = self._parts(name)
        with self.errors(), self.connection.cursor() as cursor:
            cursor.adbc_ingest(plain, table, mode="create", db_schema_name=schema)
        check()

    def stored_columns(self, name: str) -> list[tuple[str, str]]:
        # Inheriting tables add rows, and a type that a user defined may compute its text.
        kind, shared, number = self._relation(name)
        columns = self.run(
            "SELECT a.attname::text, t.typname::text, "
            "a.attgenerated::text <> '' OR a.atthasdef OR t.typtype <> 'b' "
            "OR t.typnamespace <> 'pg_catalog'::regnamespace FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            number,
        )
        if kind != "r" or shared or any(computed for _, _, computed in columns):
            raise _not_a_table(name)
        return [(column, given) for column, given, _ in columns]

    def stored_rows(self, name: str) -> str:
        return f"ONLY {self.full_name(name)}"

    def batches(self, name: str) -> Iterator[Any]:
        self.stored_columns(name)
        with self.errors(), self.connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {self.stored_rows(name)}")
            reader = cursor.fetch_record_batch()
            yield pa.RecordBatch.from_pylist([], reader.schema)
            yield from reader

    def commit(self) -> None:
        with self.errors():
            self.connection.commit()


# ------------------------------------------------------------------------------------------------------- writing


def storable(table: Any, kind: str) -> Any:
    """The table in types that the database stores exactly; text for the rest."""
    return pa.table([_column(column, kind) for column in table.columns], names=table.column_names)


def _column(column: Any, kind: str) -> Any:
    import pyarrow.compute as pc

    given, types = column.type, pa.types
    if types.is_string(given) or types.is_large_string(given):
        # PostgreSQL cannot store NUL, and failing now would reveal that a released item has one: use its symbol.
        return pc.replace_substring(column, "\x00", "\u2400") if kind == "postgresql" else column
    if types.is_null(given):
        return column.cast(pa.string())
    if types.is_floating(given):
        # Adding zero turns -0.0 into 0.0, as SQLite does.
        wide = column.cast(pa.float32() if given == pa.float16() else given)
        return pc.add(wide, pa.scalar(0.0, wide.type))
    if types.is_integer(given):
        if kind == "duckdb" or given in (pa.int16(), pa.int32(), pa.int64()):
            return column
        return _or_text(column, pa.int64())
    if types.is_decimal(given):
        # SQLite would turn decimals into floats.
        if kind == "sqlite" or given.precision > 38 or not 0 <= given.scale <= given.precision:
            return as_text(column)
        return _or_text(column, pa.decimal128(given.precision, given.scale))
    if types.is_timestamp(given):
        return _or_text(column, pa.timestamp("us", None if given.tz is None else "UTC"))
    if types.is_date(given) or types.is_time(given):
        return _or_text(column, pa.date32() if types.is_date(given) else pa.time64("us"))
    if types.is_binary(given) or types.is_large_binary(given) or types.is_fixed_size_binary(given):
        return column.cast(pa.binary())
    return column if types.is_boolean(given) else as_text(column)


def _or_text(column: Any, kind: Any) -> Any:
    """The column in this type if that is exact, else as text."""
    try:
        return column.cast(kind)
    except (pa.ArrowException, ValueError):
        return as_text(column)


@contextmanager
def _store_to_write(target: Target, address: str, *, writing: bool) -> Iterator[Store]:
    try:
        with open_store(target.kind, address, writing=writing) as store:
            yield store
    except StoreError as error:
        raise OutputError(f"{target.title()} cannot be written: {error}") from None


def check_database(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if the database cannot be opened, or has tables with these names."""
    if target.kind == "sqlite":
        recover_database(target)
    with _store_to_write(target, target.address, writing=False) as store:
        _tables_to_replace(store, target, force)
        if not store.may_create(target.table_name):
            raise StoreError(_NOT_ALLOWED)


def recover_database(target: Target) -> None:
    """Let SQLite or DuckDB undo or complete the transaction of a killed process, by opening it for writing."""
    journal = {"sqlite": "-journal", "duckdb": ".wal"}[target.kind]
    # An error is reported by whoever uses the database next.
    if os.path.lexists(target.address + journal):
        with suppress(StoreError), open_store(target.kind, target.address, writing=True):
            pass


def _tables_to_replace(store: Store, target: Target, force: bool) -> list[str]:
    tables = []
    for name in (target.table_name, target.certificate_table):
        kind = store.find(name)
        if kind is None:
            continue
        where = f"{name} in {target.public_address()}"
        if kind != "table":
            raise OutputError(f"{where} already exists and is a {kind}: choose another name")
        if not force:
            raise already_exists(f"table {where}")
        tables.append(name)
    return tables


def write_database(job: WriteJob, address: str) -> str:
    """Write both tables; returns the digest of the rows, after comparing it with that of the stored rows."""
    target, stored = job.target, storable(job.table, job.target.kind)
    digest = digest_of(stored)
    # Other databases may have a table with this name, so a signature covers the database's name too.
    named = target.sign is not None and target.kind != "postgresql"
    text = job.certificate(target.table_name, digest, **({"database": target.shown_name} if named else {}))
    job.check()

    def ready() -> None:
        job.check()
        job.note(digest)

    _write_tables(target, address, stored, digest, text, force=job.force, check=job.check, ready=ready)
    return digest


def _write_tables(
    target: Target, address: str, stored: Any, digest: str, text: str, *,
    force: bool, check: Callable[[], None] = lambda: None, ready: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Write both tables in one transaction. `ready` is called before it is committed."""
    with _store_to_write(target, address, writing=True) as store:
        for name in _tables_to_replace(store, target, force):
            store.drop(name)
        store.create(target.table_name, stored, check)
        if digest_of(pa.Table.from_batches(list(store.batches(target.table_name)))) != digest:
            raise StoreError("the database did not store the values exactly")
        store.create_certificate(target.certificate_table, text)
        ready()
        store.commit()


def copy_tables(copy: Path, table: Any, digest: str, target: Target, *, force: bool) -> None:
    """Write the release of a complete database file, which was read as `table`, into the target's database."""
    with _store_to_write(target, str(copy), writing=False) as store:
        (text,) = store.read_certificate(target.certificate_table)
    _write_tables(target, target.address, storable(table, target.kind), digest, text, force=force)
