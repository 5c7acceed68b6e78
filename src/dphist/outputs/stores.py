"""A release as a table of a database, and its certificate as a second one, in one transaction.

DuckDB and PostgreSQL (through ADBC) take and give columns of Arrow. SQLite is read and written by Python's own
module: ADBC's driver turns NaN into null and has no types for truth values and decimals, and it offers neither the
authorizer nor the limits that make it safe to read a file of unknown origin.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal

from dphist.errors import DphistError, OutputError, package, postgres_driver
from dphist.outputs.formats import LARGEST_CERTIFICATE, as_text, column_of, digest_of, json_cells, parts_of
from dphist.outputs.write import Job, Target, already_exists, schema_and_table

CERTIFICATE_COLUMN: Final = "document"
WAIT_SECONDS: Final = 5.0
_ROWS: Final = 2048
# The size of a text, or of a batch of rows with long texts.
_MOST_BYTES: Final = 1 << 28
Trouble = Literal["absent", "unavailable", "other"]


class StoreError(DphistError):
    """A database refuses. The reason completes a sentence and has no cell in it.

    The trouble is "absent" if there is no such table, "unavailable" if the database cannot be used at all now.
    """

    def __init__(self, reason: str, trouble: Trouble = "other") -> None:
        super().__init__(reason)
        self.trouble = trouble


def _not_a_table(name: str) -> StoreError:
    return StoreError(
        f"{name} is not a plain table, but a view or something else that is computed when it is read"
    )


def _check_beside(address: str, *endings: str) -> None:
    """Raise `StoreError` if what the database opens beside its file is not a file: it would wait for a pipe."""
    for ending in endings:
        if os.path.lexists(address + ending) and not os.path.isfile(address + ending):
            raise StoreError(f"there is something beside it that is not a file, named {ending}")


def quote_name(name: str) -> str:
    """A name as all three databases quote it."""
    return '"' + name.replace('"', '""') + '"'


class Store:
    """One connection to a database, with a transaction under way. All methods raise `StoreError`.

    Without `writing` nothing but base tables is read. What was not committed when it is closed is gone.
    """

    # The type of the column of certificates, the cell if it is not too long, and the place of a value.
    text, cell, value = "TEXT", CERTIFICATE_COLUMN, "?"
    failures: tuple[type[Exception], ...]

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection: Any = None

    def explain(self, error: Any) -> StoreError:
        """The reason of an error of the database, whose own text may hold a cell."""
        raise NotImplementedError

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The database's errors as reasons."""
        try:
            yield
        except self.failures as error:
            raise self.explain(error) from None

    def run(self, statement: str, *values: Any) -> list[Any]:
        """The rows of a statement."""
        with self.errors():
            rows: list[Any] = self.connection.execute(statement, values).fetchall()
            return rows

    def full_name(self, name: str) -> str:
        """A table as statements name it."""
        return quote_name(name)

    def may_create(self, name: str) -> bool:  # noqa: ARG002
        """Whether this user may create a table of this name."""
        return os.access(self.address, os.W_OK)

    def find(self, name: str) -> str | None:
        """What has this name: a table, a view, or nothing."""
        raise NotImplementedError

    def drop(self, name: str) -> None:
        """Remove a table."""
        self.run(f"DROP TABLE {self.full_name(name)}")

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        """Create a table of these columns and rows."""
        raise NotImplementedError

    def create_certificate(self, name: str, text: str) -> None:
        """Create the table of one row that holds the certificate."""
        self.run(f"CREATE TABLE {self.full_name(name)} ({CERTIFICATE_COLUMN} {self.text} NOT NULL)")
        self.run(f"INSERT INTO {self.full_name(name)} VALUES ({self.value})", text)

    def stored_columns(self, name: str) -> list[tuple[str, str]]:
        """The columns of a table with their types; raises unless all of it is stored, and nothing computed."""
        raise NotImplementedError

    def stored_rows(self, name: str) -> str:
        """A table as it is read: its own rows and no others."""
        return self.full_name(name)

    def batches(self, name: str) -> Iterator[Any]:
        """The rows of a plain table in batches of Arrow, at least one, in types that the digest understands."""
        raise NotImplementedError

    def read_certificate(self, name: str) -> list[Any]:
        """At most two cells of a table of certificates, for one is right; None for one that is too long."""
        if self.stored_columns(name) != [(CERTIFICATE_COLUMN, self.text)]:
            raise StoreError(f"{name} is not a table of a certificate")
        return [row[0] for row in self.run(f"SELECT {self.cell} FROM {self.stored_rows(name)} LIMIT 2")]

    def commit(self) -> None:
        """Make the changes last."""
        self.run("COMMIT")

    def close(self) -> None:
        """Close; what was not committed is gone."""
        with suppress(StoreError), self.errors():
            self.connection.close()


@contextmanager
def open_store(kind: str, address: str, *, writing: bool = False) -> Iterator[Store]:
    """A connection to a database of this kind."""
    stores: dict[str, Callable[[str, bool], Store]] = {
        "duckdb": _DuckDB, "sqlite": _SQLite, "postgresql": _Postgres,
    }  # fmt: skip
    store = stores[kind](address, writing)
    try:
        yield store
    finally:
        store.close()


# -------------------------------------------------------------------------------------------------------- DuckDB

# For files of unknown origin: nothing but the file itself is opened, and none of this can be changed.
_READING: Final = {
    "enable_external_access": "false", "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false", "allow_community_extensions": "false",
    "python_enable_replacements": "false", "temp_directory": "", "memory_limit": "1GB", "threads": "1",
    "lock_configuration": "true",
}  # fmt: skip
# The types that `storable` leaves; others could be computed, or take far more room than they do in the file.
_TYPES: Final = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT",
    "DOUBLE", "VARCHAR", "BLOB", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE",
)  # fmt: skip
_LOCKED: Final = "the database is locked by another process or connection"
# DuckDB has no error codes. Memory comes before locks: its text has the word "block".
_DUCKDB_REASONS: Final = {
    "^OutOfMemoryException": "reading it takes too much memory",
    "lock|different configuration": _LOCKED,
    "not a valid DuckDB|(newer|older) version": "the file is not a DuckDB database that this version reads",
    "No space left|File too large|(?i:out of disk)": "no space is left for it",
    "ermission denied|(?i:read-only)": "it is not permitted",
}


class _DuckDB(Store):
    """Tables of a DuckDB file."""

    text = "VARCHAR"
    cell = f"CASE WHEN strlen({CERTIFICATE_COLUMN}) <= {LARGEST_CERTIFICATE} THEN {CERTIFICATE_COLUMN} END"

    def __init__(self, address: str, writing: bool) -> None:
        super().__init__(address)
        self.failures = (package("duckdb").Error,)
        # DuckDB takes some names for addresses of a network.
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
        """All tables and views that this name may stand for, as they are spelled, and which of the two each is."""
        rows = self.run(
            "SELECT table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = current_database() AND table_schema = current_schema()"
        )
        return [(found, kind) for found, kind in rows if found.casefold() == name.casefold()]

    def find(self, name: str) -> str | None:
        kinds = [kind for _, kind in self._find_names(name)]
        return None if not kinds else "table" if kinds[0] == "BASE TABLE" else "view"

    def _only_table(self, name: str) -> str:
        """The one table of this name. DuckDB folds less than we do: with two, another than the checked is read."""
        match self._find_names(name):
            case [(found, "BASE TABLE")]:
                return found
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
            # It is part of what DuckDB reads, but not of the file that is passed on.
            raise StoreError("it was not closed properly: open it once with DuckDB, and close it")
        columns = self.run(
            "SELECT column_name, data_type, column_default FROM duckdb_columns() WHERE table_name = ? "
            "AND database_name = current_database() AND schema_name = current_schema() ORDER BY column_index",
            self._only_table(name),
        )
        # A generated column has its expression as its default.
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
            f"coalesce(max({sizes[kind]}({quote_name(each)})), 0)" for each, kind in columns if kind in sizes
        ]
        width = sum(self.run(f"SELECT {', '.join(['0', *longest])} FROM {rows}")[0])
        with self.errors():
            # Few rows at a time: a short table may repeat one long text.
            size = max(1, min(_ROWS, _MOST_BYTES // max(1, width)))
            reader = self.connection.sql(f"SELECT * FROM {rows}").to_arrow_reader(size)
            yield package("pyarrow").RecordBatch.from_pylist([], reader.schema)
            yield from reader

    def close(self) -> None:
        # After an error DuckDB may have ended the transaction, or the whole database, by itself.
        with suppress(StoreError):
            self.run("ROLLBACK")
        super().close()


# -------------------------------------------------------------------------------------------------------- SQLite

# What reading takes; views, generated columns and virtual tables would need functions or pragmas besides.
_ALLOWED: Final = (
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_PRAGMA,
)  # fmt: skip
_SQLITE_REASONS: Final = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_FULL: "no space is left for it",
    sqlite3.SQLITE_IOERR: "the disk reports an input/output error",
    sqlite3.SQLITE_READONLY: "the database is read-only",
    sqlite3.SQLITE_READONLY_ROLLBACK: (
        "writing to it was interrupted; the next release into it, or any program that may write, restores it"
    ),
    sqlite3.SQLITE_PERM: "it is not permitted",
    sqlite3.SQLITE_CANTOPEN: "the database cannot be opened",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "the SQLite database is damaged",
}


# How the types that `storable` leaves are declared; all others are text.
_DECLARED: Final = {
    "bool": "BOOLEAN", "int16": "INTEGER", "int32": "INTEGER", "int64": "INTEGER", "float": "REAL",
    "double": "REAL", "date32": "DATE", "time64": "TIME", "timestamp": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip


class _SQLite(Store):
    """Tables of a SQLite file."""

    failures = (sqlite3.Error, UnicodeError, OverflowError)

    def __init__(self, address: str, writing: bool) -> None:
        super().__init__(address)
        if not writing:
            _check_beside(address, "-journal", "-wal", "-shm")
        where = Path(address).absolute().as_uri() + ("?mode=rwc" if writing else "?mode=ro")
        with self.errors():
            self.connection = sqlite3.connect(where, uri=True, timeout=WAIT_SECONDS, isolation_level=None)
        # Text that is not UTF-8 would be repeated in an error.
        self.connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            # Written at once, so that two writers do not both begin.
            self.run("BEGIN IMMEDIATE" if writing else "BEGIN")
            self.run("SELECT name FROM sqlite_master LIMIT 1")
            # For files of unknown origin: tables are read, and no function is called.
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
        reason = _SQLITE_REASONS.get(code, f"SQLite reports a {type(error).__name__}")
        return StoreError(reason, "unavailable" if reason == _LOCKED else "other")

    def find(self, name: str) -> str | None:
        # SQLite folds the letters of ASCII alone, and it is asked to drop what is found here.
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
        found = [(kind, page) for known, kind, page in rows if known.casefold() == name.casefold()]
        # A virtual table has no page of its own.
        if len(found) != 1 or found[0][0] != "table" or not isinstance(found[0][1], int) or found[0][1] < 1:
            raise _not_a_table(name)
        columns = self.run(f"PRAGMA table_xinfo({quote_name(name)})")
        # A column's default, and whether it is hidden or generated.
        if any(row[4] is not None or row[6] != 0 for row in columns):
            raise _not_a_table(name)
        return [(row[1], row[2]) for row in columns]

    def stored_rows(self, name: str) -> str:
        # An index may hold other rows than its table, in a file that was made for that.
        return f"main.{quote_name(name)} NOT INDEXED"

    def batches(self, name: str) -> Iterator[Any]:
        pa, columns = package("pyarrow"), self.stored_columns(name)
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
    """SQLite has bytes and infinity, but neither dates nor decimals, and NaN would become null."""
    if str(column.type) in ("binary", "float", "double"):
        return ["NaN" if cell != cell else cell for cell in column.to_pylist()]
    return json_cells(column)


def _from_sqlite(cells: list[Any], declared: str) -> Any:
    """True and false are 1 and 0 in SQLite."""
    pa = package("pyarrow")
    if declared == "BOOLEAN" and all(cell in (None, 0, 1) for cell in cells):
        return pa.chunked_array([pa.array([None if cell is None else bool(cell) for cell in cells], pa.bool_())])
    types = {"REAL": "double", "INTEGER": "int64", "BLOB": "binary", "BOOLEAN": "int64"}
    return column_of(cells, types.get(declared, "string"))


# ---------------------------------------------------------------------------------------------------- PostgreSQL

# By the beginning of PostgreSQL's error code.
_POSTGRES_REASONS: Final = {
    "22021": "a text has a character that the database's encoding lacks",
    "22P05": "a text has a character that the database's encoding lacks",
    "25006": "the database is read-only",
    "2BP01": "other objects of the database depend on the table that is to be replaced",
    "23505": "another writer made the table at the same time",
    "28": "the server refuses this user or password",
    "3D000": "there is no such database",
    "3F000": "there is no such schema",
    "42501": "it is not permitted to this user",
    "42P07": "another writer made the table at the same time",
    "53100": "no space is left on the server's disk",
    "55P03": "the table is locked",
    "57014": "the server cancelled it",
}
_SECONDS: Final = 600
# libpq's own words, which have no code; they may repeat a part of the address and so are not passed on.
_WORDS: Final = {
    "authentication failed": "the server refuses this user or password",
    "no password supplied": "the server asks for a password",
    "Connection refused": "no server answers there",
    "translate host name": "there is no such host",
    "does not exist": "this database or user does not exist on the server",
    "timeout": "the server does not answer",
}


class _Postgres(Store):
    """Tables of a PostgreSQL server. ADBC begins a transaction by itself."""

    text, value = "text", "$1"
    cell = f"CASE WHEN octet_length({CERTIFICATE_COLUMN}) <= {LARGEST_CERTIFICATE} THEN {CERTIFICATE_COLUMN} END"

    def __init__(self, address: str, writing: bool) -> None:
        super().__init__(address)
        driver = postgres_driver()
        self.failures = (driver.Error,)
        try:
            self.connection = driver.connect(address)
        except driver.Error as error:
            reason = next((said for word, said in _WORDS.items() if word in str(error)), "it cannot be reached")
            raise StoreError(reason, "unavailable") from None
        try:
            if not writing:
                # One state of the database for the table and its certificate.
                self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                self.run(f"SET LOCAL statement_timeout = '{_SECONDS}s'")
                # An error instead of rows that a policy lets through, or computes.
                self.run("SET LOCAL row_security = off")
            self._schema = self.run("SELECT current_schema()::text")[0][0]
        except StoreError:
            self.close()
            raise

    def explain(self, error: Any) -> StoreError:
        found = re.search(r"SQLSTATE: (\w{5})", str(error))
        state = error.sqlstate or (found[1] if found else "")
        reason = _POSTGRES_REASONS.get(state) or _POSTGRES_REASONS.get(state[:2])
        # The driver keeps no code of a table that it could not create.
        for words, code in (("permission denied", "42501"), ("already exists", "42P07")):
            if reason is None and words in str(error):
                reason = _POSTGRES_REASONS[code]
        return StoreError(reason or f"PostgreSQL reports {state or type(error).__name__}")

    def run(self, statement: str, *values: Any) -> list[Any]:
        with self.errors(), self.connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall()) if cursor.description else []

    def _parts(self, name: str) -> tuple[str, str]:
        """Always with a schema: without one a table elsewhere on the search path could be meant."""
        schema, table = schema_and_table(name)
        schema = schema or self._schema
        if schema is None:
            raise StoreError("the user has no schema there: name the table as schema.table")
        return schema, table

    def full_name(self, name: str) -> str:
        return ".".join(map(quote_name, self._parts(name)))

    def may_create(self, name: str) -> bool:
        return bool(self.run("SELECT has_schema_privilege($1, 'CREATE')", self._parts(name)[0])[0][0])

    def _relation(self, name: str) -> tuple[str, bool, int]:
        """The kind of what has this name, empty for nothing; whether it may have rows of others; its number."""
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
        # Rows of inheriting tables are not its own, and a user's type may compute its text.
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
            yield package("pyarrow").RecordBatch.from_pylist([], reader.schema)
            yield from reader

    def commit(self) -> None:
        with self.errors():
            self.connection.commit()


# ------------------------------------------------------------------------------------------------------- writing


def storable(table: Any, kind: str) -> Any:
    """The table in types that the database holds exactly; text for the rest."""
    pa = package("pyarrow")
    return pa.table([_column(column, kind) for column in table.columns], names=table.column_names)


def _column(column: Any, kind: str) -> Any:
    pa, types, compute = package("pyarrow"), package("pyarrow").types, package("pyarrow.compute")
    given = column.type
    if types.is_string(given) or types.is_large_string(given):
        # PostgreSQL holds no NUL, and to fail because of an item would come after the noise: show its symbol.
        return compute.replace_substring(column, "\x00", "\u2400") if kind == "postgresql" else column
    if types.is_null(given):
        return column.cast(pa.string())
    if types.is_floating(given):
        # Adding zero makes -0.0 to 0.0, which SQLite does by itself.
        wide = column.cast(pa.float32() if given == pa.float16() else given)
        return compute.add(wide, pa.scalar(0.0, wide.type))
    if types.is_integer(given):
        if kind == "duckdb" or given in (pa.int16(), pa.int32(), pa.int64()):
            return column
        return _or_text(column, pa.int64())
    if types.is_decimal(given):
        # SQLite would make floats of decimals.
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
    """The column in this type if not a digit is lost by it."""
    try:
        return column.cast(kind)
    except (package("pyarrow").ArrowException, ValueError):
        return as_text(column)


@contextmanager
def _store_to_write(target: Target, address: str, *, writing: bool) -> Iterator[Store]:
    """A store whose refusals are sentences on the target."""
    try:
        with open_store(target.kind, address, writing=writing) as store:
            yield store
    except StoreError as error:
        raise OutputError(f"{target.title()} cannot be written: {error}") from None


def check_database(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if the database cannot be opened, or has tables of these names.

    What a killed process has left half written is undone: SQLite does so wherever it may write.
    """
    if target.kind == "sqlite" and os.path.lexists(f"{target.address}-journal"):
        with suppress(StoreError):  # which is reported when the database is opened
            _SQLite(target.address, writing=True).close()
    with _store_to_write(target, target.address, writing=False) as store:
        _tables_to_replace(store, target, force)
        if not store.may_create(target.table_name):
            raise StoreError("it is not permitted to this user")


def _tables_to_replace(store: Store, target: Target, force: bool) -> list[str]:
    tables = []
    for name in (target.table_name, target.certificate_table):
        found = store.find(name)
        if found is None:
            continue
        where = f"{name} in {target.public_address()}"
        if found != "table":
            raise OutputError(f"{where} already exists and is a {found}: choose another name")
        if not force:
            raise already_exists(f"table {where}")
        tables.append(name)
    return tables


def write_database(job: Job, address: str) -> str:
    """Write both tables and return the digest of the rows, which was computed again from what was stored."""
    target, held = job.target, storable(job.table, job.target.kind)
    digest = digest_of(held)
    # All databases may have a table of this name: a signature tells them apart.
    named = target.sign is not None and target.kind != "postgresql"
    text = job.certificate(target.table_name, digest, **({"database": target.shown_name} if named else {}))
    job.check()
    with _store_to_write(target, address, writing=True) as store:
        for name in _tables_to_replace(store, target, job.force):
            store.drop(name)
        store.create(target.table_name, held, job.check)
        if digest_of(package("pyarrow").Table.from_batches(list(store.batches(target.table_name)))) != digest:
            raise StoreError("the database did not keep the values as they are")
        store.create_certificate(target.certificate_table, text)
        job.check()
        job.ready(digest)
        store.commit()
    return digest
