"""SQLite files, read-only and streamed. SQLite lets every cell have a type of its own: the declared type rules.

A column declared as whole numbers, floats, text or bytes (by SQLite's own rule of affinity) has that type, and a
cell that is of another is missing. All other columns (without a declaration, numeric, or of an expression in a
query) are text. Text that is not UTF-8 is missing.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

from dphist.engines.cells import blobs, reals, texts, wholes
from dphist.engines.databases import chosen_table, only_select
from dphist.engines.failures import attempt
from dphist.engines.sources import ArrowSource, Source
from dphist.engines.sql import name
from dphist.types import Events

# A batch ends after so many rows, or bytes of text; rows come from the database a few at a time.
BATCH: Final = 50_000
BYTES: Final = 32_000_000
FEW: Final = 64
PROBE: Final = "dphist_probe"
# In SQLite's order: the first that a declaration holds.
AFFINITIES: Final[tuple[tuple[str, Callable[[Any], Any]], ...]] = (
    ("INT", wholes), ("CHAR", texts), ("CLOB", texts), ("TEXT", texts), ("BLOB", blobs), ("REAL", reals),
    ("FLOA", reals), ("DOUB", reals),
)  # fmt: skip


def sqlite_source(path: str, events: Events) -> Source:
    """An SQLite file, streamed in batches."""
    what = f"the database {path!r}"
    with closing(attempt(lambda: sqlite_connection(path), what)) as database:
        if events.query is not None:
            relation, is_table = f"(\n{only_select(events.query)}\n)", False
        else:
            found = dict(attempt(lambda: tables_of(database), what))
            table = chosen_table(events, what, sorted(("main", one) for one in found))[1]
            relation, is_table = name(table), found[table] == "table"
        wrong = "{what} cannot be read" if events.query is None else f"the query {events.query!r} is not valid SQL"
        columns = attempt(lambda: columns_of(database, relation, is_table), what, wrong)
    makers = dict(columns)

    def schema(wanted: list[str]) -> Any:
        import pyarrow as pa

        return pa.schema([(f"c{k}", makers[column]([]).type) for k, column in enumerate(wanted)])

    def data(wanted: list[str]) -> Any:
        return sqlite_reader(path, relation, wanted, [makers[column] for column in wanted], schema(wanted))

    return ArrowSource(what, [column for column, _ in columns], schema, data)


def sqlite_connection(path: str) -> sqlite3.Connection:
    """A read-only connection."""
    address = "file:" + re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", os.path.abspath(path)) + "?mode=ro"
    database = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
    database.text_factory = decoded
    database.execute("PRAGMA query_only = ON")
    return database


def decoded(raw: bytes) -> str | None:
    """A text; one that is not UTF-8 is missing, because any replacement could be somebody else's text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def tables_of(database: sqlite3.Connection) -> list[tuple[str, str]]:
    """Names of tables and views, with which of the two they are."""
    rows = database.execute(
        "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite_%'"
    ).fetchall()
    return [(str(table), str(kind)) for table, kind in rows]


def columns_of(
    database: sqlite3.Connection, relation: str, is_table: bool
) -> list[tuple[str, Callable[[Any], Any]]]:
    """Names of all columns, and how their cells become arrays; nothing is read for this."""
    names = [str(column[0]) for column in database.execute(f"SELECT * FROM {relation} LIMIT 0").description]
    if is_table:
        rows = database.execute(f"PRAGMA table_xinfo({relation})").fetchall()
    else:
        # Of a view SQLite tells which columns of tables it shows; of a query only after making it one.
        database.execute("PRAGMA query_only = OFF")
        database.execute(f"CREATE TEMP VIEW {PROBE} AS SELECT * FROM {relation}")
        rows = database.execute(f"PRAGMA temp.table_xinfo({PROBE})").fetchall()
    declared = [str(row[2]).upper() for row in rows if row[6] != 1]  # 1: hidden, and not one of *
    makers = [maker_of(kind) for kind in declared]
    if not is_table:
        # Some versions call a column of unknown type in a query BLOB.
        makers = [texts if maker is blobs else maker for maker in makers]
    return list(zip(names, makers, strict=True))


def maker_of(declared: str) -> Callable[[Any], Any]:
    """How cells of a declared type become an array."""
    return next((maker for part, maker in AFFINITIES if part in declared), texts)


def sqlite_reader(path: str, relation: str, wanted: list[str], makers: list[Any], schema: Any) -> Any:
    """An Arrow reader over the rows."""
    import pyarrow as pa

    def each() -> Iterator[Any]:
        with closing(sqlite_connection(path)) as database:
            cursor = database.execute(f"SELECT {', '.join(map(name, wanted))} FROM {relation}")
            for rows in batches_of(cursor):
                columns = zip(*rows, strict=True)
                arrays = [maker(column) for maker, column in zip(makers, columns, strict=True)]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, each())


def batches_of(cursor: sqlite3.Cursor) -> Iterator[list[Any]]:
    """The rows of a query in batches that end by rows or by bytes: a cell may be as long as a file."""
    rows: list[Any] = []
    held = 0
    while some := cursor.fetchmany(FEW):
        rows += some
        held += sum(len(cell) for row in some for cell in row if isinstance(cell, (str, bytes)))
        if len(rows) >= BATCH or held >= BYTES:
            yield rows
            rows, held = [], 0
    if rows:
        yield rows
