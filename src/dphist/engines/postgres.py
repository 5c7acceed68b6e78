"""PostgreSQL through ADBC, streamed and read-only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dphist.engines.databases import chosen_table, only_select
from dphist.engines.failures import attempt
from dphist.engines.sources import ArrowSource, Source, numbered
from dphist.engines.sql import name
from dphist.extras import postgres_driver
from dphist.types import Events


def postgres_source(address: str, events: Events) -> Source:
    """A table or a query of PostgreSQL. The address may hold a password, so it is never told."""
    driver = postgres_driver()
    what = attempt(lambda: called(address), "the address of the PostgreSQL database", "{what} is not one")
    database = PostgresReader(driver, address, what)
    if events.query is not None:
        relation = f"(\n{only_select(events.query)}\n) AS dphist_query"
    else:
        schema, table = chosen_table(events, what, database.tables(events.table is not None))
        relation = f"{name(schema)}.{name(table)}"
    wrong = (
        "{what} cannot be read"
        if events.query is None
        else f"the query {events.query!r} cannot be run by {{what}}"
    )
    whole = attempt(lambda: database.schema(f"SELECT * FROM {relation}"), what, wrong)

    def select(wanted: list[str]) -> str:
        return f"SELECT {', '.join(database.expression(whole, column) for column in wanted)} FROM {relation}"

    return ArrowSource(
        what,
        whole.names,
        lambda wanted: numbered(database.schema(select(wanted))),
        lambda wanted: database.stream(select(wanted)),
        "{what} cannot be read: the connection was lost, or permission denied",
    )


def called(address: str) -> str:
    """The database in a sentence: its name and its machine, without user and password."""
    parts = urlsplit(address)
    named = f" {parts.path.strip('/')!r}" if parts.path.strip("/") else ""
    return f"the PostgreSQL database{named} on {parts.hostname or 'this machine'}"


@dataclass(frozen=True)
class PostgresReader:
    """One connection for each thing that is read: a stream keeps its connection busy."""

    driver: Any
    address: str
    what: str

    def connection(self) -> Any:
        """A connection in a read-only transaction."""
        return attempt(
            lambda: self.driver.connect(self.address),
            self.what,
            "{what} cannot be reached: check the address, the user and the password",
        )

    def tables(self, all_schemas: bool) -> list[tuple[str, str]]:
        """Tables and views, of the schema `public` alone unless one is named."""
        only = "" if all_schemas else "AND table_schema = 'public'"
        query = (
            "SELECT table_schema::text, table_name::text FROM information_schema.tables "
            f"WHERE table_schema NOT IN ('pg_catalog', 'information_schema') {only} ORDER BY 1, 2"
        )
        with closing(self.connection()) as connection, closing(connection.cursor()) as cursor:
            rows = attempt(lambda: (cursor.execute(query), cursor.fetchall())[1], self.what)
        return [(str(schema), str(table)) for schema, table in rows]

    def schema(self, query: str) -> Any:
        """The Arrow schema of a query's result."""
        with closing(self.connection()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
            cursor.execute(f"SELECT * FROM ({query}) AS dphist_rows LIMIT 0")
            return cursor.fetch_arrow_table().schema

    def expression(self, whole: Any, column: str) -> str:
        """A column as Arrow can hold it: numeric and types of PostgreSQL's own come as text."""
        import pyarrow as pa

        kind = whole.field(column).type
        own = getattr(kind, "type_name", "") if isinstance(kind, pa.BaseExtensionType) else ""
        if own == "numeric":
            return f"trim_scale({name(column)})::text AS {name(column)}"
        return f"{name(column)}::text AS {name(column)}" if own else name(column)

    def stream(self, query: str) -> Any:
        """A reader over the rows, which closes its connection at the end."""
        import pyarrow as pa

        connection = self.connection()
        cursor = connection.cursor()
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(query)
        reader = cursor.fetch_record_batch()
        schema = numbered(reader.schema)

        def each() -> Iterator[Any]:
            try:
                for batch in reader:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            finally:
                reader.close()
                cursor.close()
                connection.close()

        return pa.RecordBatchReader.from_batches(schema, each())
