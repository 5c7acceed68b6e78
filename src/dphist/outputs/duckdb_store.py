"""Tables of a DuckDB file."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dphist.extras import package
from dphist.outputs.stores import CERTIFICATE_COLUMN, StoreError, quoted


@contextmanager
def _told() -> Iterator[None]:
    """DuckDB's errors as reasons. Their text is looked at and not repeated: it may hold a cell."""
    try:
        yield
    except package("duckdb").Error as error:
        text = str(error)
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
        with _told():
            self._connection = package("duckdb").connect(address, read_only=not writing)
            self._run("BEGIN TRANSACTION")

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

    def read(self, name: str) -> Any:
        """The table as Arrow."""
        with _told():
            return self._connection.sql(f"SELECT * FROM {quoted(name)}").to_arrow_table()

    def read_certificate(self, name: str) -> list[Any]:
        """At most two cells, for one is right."""
        return [row[0] for row in self._run(f"SELECT {CERTIFICATE_COLUMN} FROM {quoted(name)} LIMIT 2")]

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
