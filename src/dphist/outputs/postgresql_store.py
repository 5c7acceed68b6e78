"""Tables of a PostgreSQL server, through ADBC."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from dphist.errors import package, postgres_driver
from dphist.outputs.seal import LARGEST_CERTIFICATE
from dphist.outputs.stores import CERTIFICATE_COLUMN, StoreError, not_a_certificate, not_a_table, quoted
from dphist.outputs.targets import schema_and_table

# By the beginning of PostgreSQL's code of an error.
_REASONS: Final = {
    "22021": "a text has a character that the database's encoding lacks",
    "22P05": "a text has a character that the database's encoding lacks",
    "25006": "the database is read-only",
    "2BP01": "other objects of the database depend on the table that is to be replaced",
    "23505": "another writer made the table at the same time",
    "28": "the server does not let this user in",
    "3D000": "there is no such database",
    "3F000": "there is no such schema",
    "42501": "it is not permitted to this user",
    "42P07": "another writer made the table at the same time",
    "53100": "there is no room left on the server's disk",
    "55P03": "the table is locked",
    "57014": "the server cancelled it",
}
_SECONDS: Final = 600
# libpq's own words, which have no code; they may repeat a part of the address and so are not passed on.
_WORDS: Final = {
    "authentication failed": "the server does not let this user in",
    "no password supplied": "the server asks for a password",
    "Connection refused": "no server answers there",
    "translate host name": "there is no such host",
    "does not exist": "the server does not know this database or user",
    "timeout": "the server does not answer",
}


@contextmanager
def _told() -> Iterator[None]:
    """The driver's errors as reasons. Their text is looked at and not repeated: it may hold a cell."""
    driver = postgres_driver()
    try:
        yield
    except driver.Error as error:
        found = re.search(r"SQLSTATE: (\w{5})", str(error))
        state = error.sqlstate or (found[1] if found else "")
        for length in (5, 2):
            if state[:length] in _REASONS:
                raise StoreError(_REASONS[state[:length]]) from None
        # The driver keeps no code of a table that it could not make.
        if "permission denied" in str(error):
            raise StoreError(_REASONS["42501"]) from None
        if "already exists" in str(error):
            raise StoreError(_REASONS["42P07"]) from None
        raise StoreError(f"PostgreSQL reports {state or type(error).__name__}") from None


class PostgresStore:
    """A connection; ADBC begins a transaction by itself."""

    def __init__(self, address: str, writing: bool) -> None:
        driver = postgres_driver()
        try:
            self._connection = driver.connect(address)
        except driver.Error as error:
            reason = next((said for word, said in _WORDS.items() if word in str(error)), "it cannot be reached")
            raise StoreError(reason, "missing") from None
        self._cursor = self._connection.cursor()
        try:
            if not writing:
                # One state of the database for the table and its certificate.
                self._run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                self._run(f"SET LOCAL statement_timeout = '{_SECONDS}s'")
                # An error in place of rows that a policy lets through, or computes.
                self._run("SET LOCAL row_security = off")
            self._schema = self._row("SELECT current_schema()::text")[0]
        except StoreError:
            self.close()
            raise

    def _run(self, statement: str, values: tuple[Any, ...] | None = None) -> None:
        with _told():
            self._cursor.execute(statement, values)

    def _row(self, statement: str, values: tuple[Any, ...] | None = None) -> Any:
        self._run(statement, values)
        with _told():
            return self._cursor.fetchone()

    def _parts(self, name: str) -> tuple[str, str]:
        """Always with a schema: without one a table elsewhere on the search path could be meant."""
        schema, table = schema_and_table(name)
        schema = schema or self._schema
        if schema is None:
            raise StoreError("the user has no schema there: name the table as schema.table")
        return schema, table

    def _name(self, name: str) -> str:
        return ".".join(map(quoted, self._parts(name)))

    def may_create(self, name: str) -> bool:
        """By the rights of the user."""
        return bool(self._row("SELECT has_schema_privilege($1, 'CREATE')", self._parts(name)[:1])[0])

    def find(self, name: str) -> str | None:
        """By the catalog."""
        if self._row("SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1", self._parts(name)[:1]) is None:
            raise StoreError("there is no such schema", "missing")
        row = self._row(
            "SELECT c.relkind::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n "
            "ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2",
            self._parts(name),
        )
        return None if row is None else "table" if row[0] in ("r", "p") else "view or an index"

    def drop(self, name: str) -> None:
        """Remove a table."""
        self._run(f"DROP TABLE {self._name(name)}")

    def create(self, name: str, table: Any, check: Callable[[], None]) -> None:
        """By COPY."""
        schema, plain = self._parts(name)
        with _told():
            self._cursor.adbc_ingest(plain, table, mode="create", db_schema_name=schema)
        check()

    def create_certificate(self, name: str, text: str) -> None:
        """One row of text."""
        self._run(f"CREATE TABLE {self._name(name)} ({CERTIFICATE_COLUMN} text NOT NULL)")
        self._run(f"INSERT INTO {self._name(name)} VALUES ($1)", (text,))

    def _plain(self, name: str) -> list[tuple[str, str]]:
        """The columns of a table with their types; raises unless all of it is stored there, and by its owner.

        Rows of other tables that inherit from it are not its own. A type of somebody's own may compute its text.
        """
        schema, plain = self._parts(name)
        row = self._row(
            "SELECT c.relkind::text, c.relrowsecurity OR c.relhassubclass OR c.relhasrules, c.oid::bigint "
            "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = $2",
            (schema, plain),
        )
        if row is None or row[0] != "r" or row[1]:
            raise not_a_table(name)
        self._run(
            "SELECT a.attname::text, t.typname::text, "
            "a.attgenerated::text <> '' OR a.atthasdef OR t.typtype <> 'b' "
            "OR t.typnamespace <> 'pg_catalog'::regnamespace FROM pg_catalog.pg_attribute a "
            "JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (row[2],),
        )
        with _told():
            columns = self._cursor.fetchall()
        if any(computed for _, _, computed in columns):
            raise not_a_table(name)
        return [(column, kind) for column, kind, _ in columns]

    def batches(self, name: str) -> Iterator[Any]:
        """As Arrow, as they come."""
        self._plain(name)
        self._run(f"SELECT * FROM ONLY {self._name(name)}")
        with _told():
            reader = self._cursor.fetch_record_batch()
            yield package("pyarrow").RecordBatch.from_pylist([], reader.schema)
            yield from reader

    def read_certificate(self, name: str) -> list[Any]:
        """At most two cells, for one is right; none that is too long for a certificate."""
        if self._plain(name) != [(CERTIFICATE_COLUMN, "text")]:
            raise not_a_certificate(name)
        self._run(
            f"SELECT CASE WHEN octet_length({CERTIFICATE_COLUMN}) <= {LARGEST_CERTIFICATE} "
            f"THEN {CERTIFICATE_COLUMN} END FROM ONLY {self._name(name)} LIMIT 2"
        )
        with _told():
            return [row[0] for row in self._cursor.fetchall()]

    def commit(self) -> None:
        """Make it last."""
        with _told():
            self._connection.commit()

    def close(self) -> None:
        """Close; the server rolls back what was not committed."""
        with suppress(postgres_driver().Error):
            self._cursor.close()
        with suppress(postgres_driver().Error):
            self._connection.close()


def open_store(address: str, writing: bool) -> PostgresStore:
    """Connect."""
    return PostgresStore(address, writing)
