"""The digest of a table's values, and the types in which databases store them exactly."""

from __future__ import annotations

from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from dphist.aliases import ChunkedArray
from dphist.certificate.cells import ROWS, as_text, encode_json, json_cells, parts_of, texts_of


def digest_of(table: pa.Table) -> str:
    """SHA-256 of the column names and the sorted rows, each as one line with a JSON array."""
    rows: list[str] = []
    for part in parts_of(table):
        cells = [texts_of(_digest_cells(column)) for column in part.columns]
        rows += ["[" + ",".join(row) + "]" for row in zip(*cells, strict=True)]
    rows.sort()
    total = sha256((encode_json(table.column_names) + "\n").encode())
    for start in range(0, len(rows), ROWS):
        total.update(("\n".join(rows[start : start + ROWS]) + "\n").encode())
    return total.hexdigest()


def _digest_cells(column: ChunkedArray) -> list[object]:
    """Cells for the digest; without trailing zeros of decimals, which PostgreSQL drops."""
    cells = json_cells(column)
    if not pa.types.is_decimal(column.type):
        return cells
    return [c.rstrip("0").rstrip(".") if isinstance(c, str) and "." in c else c for c in cells]


def storable(table: pa.Table, kind: str) -> pa.Table:
    """The table in types that this kind of database stores exactly; text for the rest."""
    return pa.table([_column(column, kind) for column in table.columns], names=table.column_names)


def _column(column: ChunkedArray, kind: str) -> ChunkedArray:
    given, types = column.type, pa.types
    if types.is_string(given) or types.is_large_string(given):
        # PostgreSQL cannot store NUL, and failing now would reveal that a released item has one: use its symbol.
        return pc.replace_substring(column, "\x00", "\u2400") if kind == "postgresql" else column
    if types.is_null(given):
        return column.cast(pa.string())
    if types.is_floating(given):
        # Adding zero turns -0.0 into 0.0, as SQLite does.
        wide = column.cast(pa.float32() if given == pa.float16() else given)
        return pc.add(wide, 0.0).cast(wide.type)
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


def _or_text(column: ChunkedArray, kind: pa.DataType) -> ChunkedArray:
    """The column in this type if that is exact, else as text."""
    try:
        return column.cast(kind)
    except (pa.ArrowException, ValueError):
        return as_text(column)


def digest_of_values(table: pa.Table, kind: str) -> str:
    """The digest of a table of this kind of database: it is the same for every export that keeps the values.

    The order of rows does not matter.
    """
    return digest_of(storable(table, kind))
