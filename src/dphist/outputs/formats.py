"""File formats that keep every cell exactly."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from functools import partial
from io import BufferedWriter, BytesIO
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from dphist.certificate.cells import ESCAPE, PACKED, as_text, encode_json, json_cells, parts_of, texts_of
from dphist.errors import OutputError

OpenFile = BufferedWriter | BytesIO
_PACKING: Final = 6
# Rows between two checks for signals; in Parquet a row group.
_PIECE: Final = 262_144


def write_rows(
    table: pa.Table, kind: str, file: OpenFile, check: Callable[[], None], *, escape_formulas: bool = False
) -> None:
    """Write the table, calling `check` from time to time. No error quotes a cell."""
    try:
        if escape_formulas:
            table = _escape_formulas(table)
        write = _WRITERS[kind.removesuffix(PACKED)]
        if not kind.endswith(PACKED):
            return write(table, file, check)
        # Without time and file name, the same rows give the same bytes.
        with gzip.GzipFile("", "wb", _PACKING, file, mtime=0) as packed:
            write(table, packed, check)  # type: ignore[arg-type]
    except OSError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        raise OutputError(f"the released columns cannot be written as {kind}") from None


def _parquet(table: pa.Table, file: OpenFile, check: Callable[[], None]) -> None:
    with parquet.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for part in parts_of(table, _PIECE):
            writer.write_table(part)
            check()


def _arrow(table: pa.Table, file: OpenFile, check: Callable[[], None]) -> None:
    with pa.ipc.new_file(file, table.schema) as writer:
        for part in parts_of(table, _PIECE):
            # Copied, because the buffers of a slice hold its neighbours, and those of nulls hidden values.
            for batch in part.to_batches():
                writer.write_batch(batch.take(pa.array(range(batch.num_rows), pa.int64())))
            check()


def _csv(table: pa.Table, file: OpenFile, check: Callable[[], None], delimiter: str = ",") -> None:
    flat = _flatten(table)
    options = csv.WriteOptions(delimiter=delimiter)
    with csv.CSVWriter(file, flat.schema, write_options=options) as writer:
        for part in parts_of(flat, _PIECE):
            writer.write_table(part)
            check()


def _jsonl(table: pa.Table, file: OpenFile, check: Callable[[], None]) -> None:
    keys = [encode_json(name) + ":" for name in table.column_names]
    for part in parts_of(table):
        cells = [
            [key + cell for cell in texts_of(json_cells(c))] for key, c in zip(keys, part.columns, strict=True)
        ]
        file.write("".join("{" + ",".join(row) + "}\n" for row in zip(*cells, strict=True)).encode())
        check()


_WRITERS: Final[dict[str, Callable[[pa.Table, OpenFile, Callable[[], None]], None]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t"),
    "jsonl": _jsonl,
}


def _flatten(table: pa.Table) -> pa.Table:
    """The table for CSV: binary and time zone columns as text."""
    types = pa.types
    simple = (
        types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_string,
        types.is_large_string, types.is_date32, types.is_time, types.is_null,
        lambda kind: types.is_timestamp(kind) and kind.tz is None,
    )  # fmt: skip
    columns = [c if any(test(c.type) for test in simple) else as_text(c) for c in table.columns]
    return pa.table(columns, names=table.column_names)


def _escape_formulas(table: pa.Table) -> pa.Table:
    """The table for CSV, with a quote before text and names that a spreadsheet would read as formulas."""
    flat = _flatten(table)
    columns = [
        pc.replace_substring_regex(column, *ESCAPE)
        if "string" in str(column.type) and not pa.types.is_decimal(given)
        else column
        for column, given in zip(flat.columns, table.schema.types, strict=True)
    ]
    return pa.table(columns, names=[re.sub(*ESCAPE, name) for name in table.column_names])
