"""Tables of a SQLite file."""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from dphist.errors import package
from dphist.outputs.cells import column_of, json_cells, parts_of
from dphist.outputs.seal import LARGEST_CERTIFICATE
from dphist.outputs.stores import CERTIFICATE_COLUMN, StoreError, Trouble, not_a_certificate, not_a_table, quoted

_ROWS: Final = 2048
# Of a text or of a row of texts.
_LONGEST: Final = 1 << 28
# What reading takes; views, generated columns and virtual tables would need functions or pragmas besides.
_ALLOWED: Final = (
    sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_PRAGMA,
)  # fmt: skip
_WAIT_SECONDS: Final = 5.0
_REASONS: Final[dict[int, tuple[str, Trouble]]] = {
    sqlite3.SQLITE_BUSY: ("the database is locked", "locked"),
    sqlite3.SQLITE_LOCKED: ("the database is locked", "locked"),
    sqlite3.SQLITE_FULL: ("there is no room left for it", "other"),
    sqlite3.SQLITE_IOERR: ("the disk does not take or give it", "other"),
    sqlite3.SQLITE_READONLY: ("the database is read-only", "other"),
    sqlite3.SQLITE_READONLY_ROLLBACK: (
        "writing to it was interrupted; the next release into it, or any program that may write, restores it",
        "other",
    ),
    sqlite3.SQLITE_PERM: ("it is not permitted", "other"),
    sqlite3.SQLITE_CANTOPEN: ("the database cannot be opened", "other"),
    sqlite3.SQLITE_NOTADB: ("the file is not a SQLite database", "foreign"),
    sqlite3.SQLITE_CORRUPT: ("the SQLite database is damaged", "foreign"),
}


@contextmanager
def _told() -> Iterator[None]:
    """SQLite's errors as reasons, by their codes: the text may hold a cell."""
    try:
        yield
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        full = getattr(error, "sqlite_errorcode", 0)
        code = full if full in _REASONS else full & 0xFF
        reason, trouble = _REASONS.get(code, (f"SQLite reports a {type(error).__name__}", "other"))
        raise StoreError(reason, trouble) from None


class SQLiteStore:
    """A connection with a transaction under way."""

    def __init__(self, address: str, writing: bool) -> None:
        self._address = address
        for name in () if writing else ("-journal", "-wal", "-shm"):
            # SQLite opens what lies there, and would wait for the other end of a pipe.
            if os.path.lexists(address + name) and not os.path.isfile(address + name):
                raise StoreError(f"there is something beside it that is not a file, named {name}", "foreign")
        with _told():
            where = Path(address).absolute().as_uri() + ("?mode=rwc" if writing else "?mode=ro")
            self._connection = sqlite3.connect(where, uri=True, timeout=_WAIT_SECONDS, isolation_level=None)
        # Text that is not UTF-8 would be repeated in an error.
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        try:
            # Written at once, so that two writers do not both begin.
            self._run("BEGIN IMMEDIATE" if writing else "BEGIN")
            self._run("SELECT name FROM sqlite_master LIMIT 1")
            if not writing:
                self._restrict()
        except StoreError:
            self.close()
            raise

    def _restrict(self) -> None:
        """For files that anybody may have written: tables are read, and no function is called."""
        self._run("PRAGMA trusted_schema = OFF")
        self._run("PRAGMA query_only = ON")
        self._run("PRAGMA cell_size_check = ON")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.set_authorizer(
            lambda action, *_: sqlite3.SQLITE_OK if action in _ALLOWED else sqlite3.SQLITE_DENY
        )

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with _told():
            return self._connection.execute(statement, values).fetchall()

    def may_create(self, name: str) -> bool:  # noqa: ARG002
        """By the rights of the file."""
        return os.access(self._address, os.W_OK)

    def find(self, name: str) -> str | None:
        """By the catalog; SQLite does not tell capitals from small letters."""
        rows = self._run("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view', 'index')")
        return next((kind for found, kind in rows if found.lower() == name.lower()), None)

    def drop(self, name: str) -> None:
        """Remove a table."""
        self._run(f"DROP TABLE {quoted(name)}")

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        """Row by row, in pieces."""
        fields = zip(table.column_names, table.schema.types, strict=True)
        columns = ", ".join(f"{quoted(column)} {_declared(kind)}" for column, kind in fields)
        self._run(f"CREATE TABLE {quoted(name)} ({columns})")
        places = ", ".join("?" * table.num_columns)
        for part in parts_of(table):
            cells = [_cells(column) for column in part.columns]
            with _told():
                self._connection.executemany(
                    f"INSERT INTO {quoted(name)} VALUES ({places})", zip(*cells, strict=True)
                )
            check()

    def create_certificate(self, name: str, text: str) -> None:
        """One row of text."""
        self._run(f"CREATE TABLE {quoted(name)} ({CERTIFICATE_COLUMN} TEXT NOT NULL)")
        self._run(f"INSERT INTO {quoted(name)} VALUES (?)", (text,))

    def _plain(self, name: str) -> dict[str, str]:
        """The columns of a table with their declared types; raises unless all of it is stored."""
        rows = self._run("SELECT name, type, rootpage FROM sqlite_master")
        found = [(kind, page) for known, kind, page in rows if known.lower() == name.lower()]
        # A virtual table has no page of its own.
        if len(found) != 1 or found[0][0] != "table" or not isinstance(found[0][1], int) or found[0][1] < 1:
            raise not_a_table(name)
        columns = self._run(f"PRAGMA table_xinfo({quoted(name)})")
        # Of a column: its default, and whether it is hidden or generated.
        if any(row[4] is not None or row[6] != 0 for row in columns):
            raise not_a_table(name)
        return {row[1]: row[2] for row in columns}

    def batches(self, name: str) -> Iterator[Any]:
        """As Arrow, in types by what the columns were declared as."""
        pa = package("pyarrow")
        declared = self._plain(name)
        with _told():
            # An index may hold other rows than its table, in a file that was made for that.
            cursor = self._connection.execute(f"SELECT * FROM main.{quoted(name)} NOT INDEXED")
        first = True
        while True:
            with _told():
                rows = cursor.fetchmany(_ROWS)
            if not rows and not first:
                return
            cells = zip(*rows, strict=True) if rows else [()] * len(declared)
            columns = [
                _read_column(list(column), kind) for kind, column in zip(declared.values(), cells, strict=True)
            ]
            yield from pa.table(columns, names=list(declared)).to_batches() or [
                pa.RecordBatch.from_pylist([], pa.table(columns, names=list(declared)).schema)
            ]
            first = False

    def read_certificate(self, name: str) -> list[Any]:
        """At most two cells, for one is right."""
        if self._plain(name) != {CERTIFICATE_COLUMN: "TEXT"}:
            raise not_a_certificate(name)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_CERTIFICATE)
        try:
            return [
                row[0]
                for row in self._run(f"SELECT {CERTIFICATE_COLUMN} FROM main.{quoted(name)} NOT INDEXED LIMIT 2")
            ]
        finally:
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)

    def commit(self) -> None:
        """Make it last."""
        self._run("COMMIT")

    def close(self) -> None:
        """Close; SQLite rolls back what was not committed."""
        with suppress(sqlite3.Error):
            self._connection.close()


def _declared(kind: Any) -> str:
    """The SQL type."""
    types = package("pyarrow").types
    names = {
        "BOOLEAN": types.is_boolean,
        "INTEGER": types.is_integer,
        "REAL": types.is_floating,
        "DATE": types.is_date,
        "TIME": types.is_time,
        "TIMESTAMP": types.is_timestamp,
        "BLOB": types.is_binary,
    }
    return next((name for name, test in names.items() if test(kind)), "TEXT")


def _cells(column: Any) -> list[Any]:
    """What SQLite is given: it has bytes, but neither dates nor decimals, and NaN would become null."""
    types = package("pyarrow").types
    if types.is_binary(column.type):
        cells: list[Any] = column.to_pylist()
        return cells
    if types.is_floating(column.type):
        values = column.to_pylist()
        return ["NaN" if value is not None and math.isnan(value) else value for value in values]
    return json_cells(column)


def _read_column(cells: list[Any], declared: str) -> Any:
    """A column of what is stored. True and false are 1 and 0 in SQLite."""
    pa = package("pyarrow")
    if declared == "BOOLEAN" and all(cell in (None, 0, 1) for cell in cells):
        return pa.chunked_array([pa.array([None if cell is None else bool(cell) for cell in cells], pa.bool_())])
    types = {"REAL": "double", "INTEGER": "int64", "BLOB": "binary", "BOOLEAN": "int64"}
    return column_of(cells, types.get(declared, "string"))


def roll_back(address: str) -> None:
    """Undo what a killed process has left half written; SQLite does so wherever it may write."""
    if os.path.lexists(f"{address}-journal"):
        with suppress(StoreError):  # which is said when the database is opened
            SQLiteStore(address, writing=True).close()


def open_store(address: str, writing: bool) -> SQLiteStore:
    """Connect."""
    return SQLiteStore(address, writing)
