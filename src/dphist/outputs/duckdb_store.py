"""Tables of a DuckDB file."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from dphist.errors import package
from dphist.outputs.seal import LARGEST_CERTIFICATE
from dphist.outputs.stores import CERTIFICATE_COLUMN, StoreError, not_a_certificate, not_a_table, quoted

# For files that anybody may have written: nothing but the file itself is opened, and none of this can be changed.
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
_ROWS: Final = 2048
_MOST_BYTES: Final = 1 << 28


@contextmanager
def _told() -> Iterator[None]:
    """DuckDB's errors as reasons. Their text is looked at and not repeated: it may hold a cell."""
    try:
        yield
    except package("duckdb").Error as error:
        text = str(error)
        # Before locks: this one speaks of a block.
        if type(error).__name__ == "OutOfMemoryException":
            raise StoreError("reading it takes too much memory") from None
        if "lock" in text or "different configuration" in text:
            raise StoreError("the database is locked by another process or connection", "locked") from None
        if "not a valid DuckDB" in text or "newer version" in text or "older version" in text:
            raise StoreError("the file is not a DuckDB database that this version reads", "foreign") from None
        if "No space left" in text or "File too large" in text or "out of disk" in text.lower():
            raise StoreError("there is no room left for it") from None
        if "ermission denied" in text or "read-only" in text.lower():
            raise StoreError("it is not permitted") from None
        raise StoreError(f"DuckDB reports a {type(error).__name__}") from None


class DuckDBStore:
    """A connection with a transaction under way."""

    def __init__(self, address: str, writing: bool) -> None:
        self._address = address
        # DuckDB takes some names for addresses of a network.
        place, settings = os.path.abspath(address), {} if writing else _READING
        self._log = None if writing else place + ".wal"
        if self._log and os.path.lexists(self._log) and not os.path.isfile(self._log):
            raise StoreError("there is something beside it that is not a file, named .wal", "foreign")
        with _told():
            self._connection = package("duckdb").connect(place, read_only=not writing, config=settings)
            self._run("BEGIN TRANSACTION")
            self._database = self._run("SELECT current_database()")[0][0]

    def _run(self, statement: str, values: list[Any] | None = None) -> list[Any]:
        with _told():
            rows: list[Any] = self._connection.execute(statement, values or []).fetchall()
            return rows

    def may_create(self, name: str) -> bool:  # noqa: ARG002
        """By the rights of the file."""
        return os.access(self._address, os.W_OK)

    def find(self, name: str) -> str | None:
        """By the catalog; DuckDB does not tell capitals from small letters."""
        rows = self._run(
            "SELECT table_name, table_type FROM information_schema.tables "
            "WHERE table_catalog = current_database() AND table_schema = current_schema()"
        )
        kinds = [kind for found, kind in rows if found.lower() == name.lower()]
        return None if not kinds else "table" if kinds[0] == "BASE TABLE" else "view"

    def drop(self, name: str) -> None:
        """Remove a table."""
        self._run(f"DROP TABLE {quoted(name)}")

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        """From Arrow, under a name that no table of the database has."""
        view = f"dphist_{secrets.token_hex(8)}"
        with _told():
            self._connection.register(view, table)
        self._run(f"CREATE TABLE {quoted(name)} AS SELECT * FROM {view}")
        with _told():
            self._connection.unregister(view)
        check()

    def create_certificate(self, name: str, text: str) -> None:
        """One row of text."""
        self._run(f"CREATE TABLE {quoted(name)} ({CERTIFICATE_COLUMN} VARCHAR NOT NULL)")
        self._run(f"INSERT INTO {quoted(name)} VALUES (?)", [text])

    def _plain(self, name: str) -> tuple[str, list[tuple[str, str]]]:
        """A table in full, with its columns; raises unless all of it is stored, and nothing is computed."""
        if self._log and os.path.lexists(self._log):
            # It is part of what DuckDB reads, and not of the file that is passed on.
            raise StoreError("it was not closed properly: open it once with DuckDB, and close it", "foreign")
        own = "database_name = current_database() AND schema_name = current_schema() AND table_name = ?"
        spelled = self._run(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() "
            "AND schema_name = current_schema() AND NOT temporary AND lower(table_name) = lower(?)",
            [name],
        )
        if len(spelled) != 1:
            raise not_a_table(name)
        columns = self._run(
            f"SELECT column_name, data_type, column_default FROM duckdb_columns() WHERE {own} "
            "ORDER BY column_index",
            [spelled[0][0]],
        )
        # A column that is generated has its expression there.
        if any(default is not None for _, _, default in columns):
            raise not_a_table(name)
        return (
            f"{quoted(self._database)}.main.{quoted(spelled[0][0])}",
            [(column, kind) for column, kind, _ in columns],
        )

    def batches(self, name: str) -> Iterator[Any]:
        """As Arrow, few rows at a time: a short table may repeat one long text."""
        where, columns = self._plain(name)
        if not all(kind in _TYPES or re.fullmatch(r"DECIMAL\(\d+,\d+\)", kind) for _, kind in columns):
            raise StoreError("it has a column of a type that no release has")
        sizes = {"VARCHAR": "strlen", "BLOB": "octet_length"}
        longest = [f"coalesce(max({sizes[kind]}({quoted(each)})), 0)" for each, kind in columns if kind in sizes]
        row = sum(self._run(f"SELECT {', '.join(['0', *longest])} FROM {where}")[0])
        with _told():
            reader = self._connection.sql(f"SELECT * FROM {where}").to_arrow_reader(
                max(1, min(_ROWS, _MOST_BYTES // max(1, row)))
            )
            yield package("pyarrow").RecordBatch.from_pylist([], reader.schema)
            yield from reader

    def read_certificate(self, name: str) -> list[Any]:
        """At most two cells, for one is right."""
        where, columns = self._plain(name)
        if columns != [(CERTIFICATE_COLUMN, "VARCHAR")]:
            raise not_a_certificate(name)
        # What is too long for a certificate is not fetched.
        longest = self._run(f"SELECT max(strlen({CERTIFICATE_COLUMN})) FROM {where}")[0][0]
        if longest is not None and longest > LARGEST_CERTIFICATE:
            return [None]
        return [row[0] for row in self._run(f"SELECT {CERTIFICATE_COLUMN} FROM {where} LIMIT 2")]

    def commit(self) -> None:
        """Make it last."""
        self._run("COMMIT")

    def close(self) -> None:
        """Close, without the changes that were not committed."""
        # After an error DuckDB may have ended the transaction, or the whole database, by itself.
        for end in (lambda: self._connection.execute("ROLLBACK"), self._connection.close):
            with suppress(package("duckdb").Error):
                end()


def open_store(address: str, writing: bool) -> DuckDBStore:
    """Connect."""
    return DuckDBStore(address, writing)
