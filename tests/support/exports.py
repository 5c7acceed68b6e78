"""Tables of databases, exported to files as users do it, and read back through these files."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from base64 import b64encode
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

import dphist
from dphist.certificate.reading import Readback, read_release

DATABASES = (".duckdb", ".sqlite", ".db")


def certificate_of(path: Path, table: str | None = None) -> Path:
    """The certificate of a release: of a file, or of a table."""
    named = f".{quote(table or 'release', safe=' ').lower()}" if path.suffix in DATABASES else ""
    return path.with_name(f"{path.name}{named}.certificate.json")


def export(path: Path, table: str | None = None, to: Path | None = None) -> Path:
    """A file with the table of a database: of SQLite as CSV, of DuckDB as Parquet.

    Of a copy, because opening a database completes or undoes what a killed process has begun.
    """
    folder, table = Path(tempfile.mkdtemp(prefix="dphist-export-")), table or "release"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    to = to or folder / f"table{'.parquet' if path.suffix == '.duckdb' else '.csv'}"
    for ending in ("", "-journal", "-wal", ".wal"):
        if Path(f"{path}{ending}").exists():
            shutil.copy(f"{path}{ending}", folder)
    path = folder / path.name
    name = '"' + table.replace('"', '""') + '"'
    if path.suffix == ".duckdb":
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"COPY (FROM {name}) TO '{to}'")
        return to
    with closing(sqlite3.connect(path)) as plain:
        cursor = plain.execute(f"SELECT * FROM {name}")
        rows = [[column[0] for column in cursor.description], *cursor.fetchall()]
    to.write_text("".join(",".join(map(_csv_cell, row)) + "\n" for row in rows), encoding="utf-8", newline="")
    return to


def _csv_cell(value: Any) -> str:
    if value is None:
        return ""
    value = b64encode(value).decode() if isinstance(value, bytes) else value
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else repr(value)


def export_from_server(address: str, to: Path, table: str = '"release"') -> Path:
    """A Parquet file with the table of a PostgreSQL server."""
    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        rows = cursor.fetch_arrow_table()
    columns = [
        column.cast(column.type.storage_type) if isinstance(column.type, pa.BaseExtensionType) else column
        for column in rows.columns
    ]
    pq.write_table(pa.table(columns, names=rows.column_names), to)
    return to


def read_back(path: Path, table: str | None = None) -> Readback:
    """A release as its readers have it: a table through an export."""
    if path.suffix not in DATABASES:
        return read_release(path)
    return read_release(export(path, table), certificate_of(path, table))


def verify(path: Path, table: str | None = None, **options: Any) -> dphist.Verification:
    """`dphist.verify`, of a table through an export."""
    if path.suffix not in DATABASES:
        return dphist.verify(path, **options)
    return dphist.verify(export(path, table), certificate=certificate_of(path, table), **options)
