"""Files of a release: Parquet, CSV, JSON lines and Arrow, written piece by piece and read back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, Final

from dphist.errors import OutputError, package
from dphist.outputs.cells import as_text, column_of, lines_of, parts_of, restore_column
from dphist.outputs.seal import named_once

# What a spreadsheet takes for the beginning of a formula. Quotes before it count as well, so that the escape, one
# more quote, can be undone exactly.
_ESCAPE: Final = (r"^('*[=+\-@\t\r])", r"'\1")
_UNESCAPE: Final = (r"^'('*[=+\-@\t\r])", r"\1")
ESCAPES: Final = ("csv", "tsv")
# Signals are looked for after each piece; in Parquet it is one row group.
_PIECE: Final = 262_144


def write_rows(
    table: Any, kind: str, file: BinaryIO, check: Callable[[], None], *, escape_formulas: bool = False
) -> None:
    """Write the table; `check` is called now and then and may raise. No error repeats a cell."""
    pa = package("pyarrow")
    try:
        if escape_formulas:
            table = _escape_formulas(table)
        _WRITERS[kind](table, file, check)
    except OSError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        raise OutputError(f"the released columns cannot be written as {kind}") from None


def _parquet(table: Any, file: BinaryIO, check: Callable[[], None]) -> None:
    parquet = package("pyarrow.parquet")
    with parquet.ParquetWriter(file, table.schema, compression="zstd") as writer:
        for part in parts_of(table, _PIECE):
            writer.write_table(part)
            check()


def _arrow(table: Any, file: BinaryIO, check: Callable[[], None]) -> None:
    pa = package("pyarrow")
    with pa.ipc.new_file(file, table.schema) as writer:
        for part in parts_of(table, _PIECE):
            # Taken afresh: a slice's buffers are padded with the values next to it, and nulls keep what they hide.
            for batch in part.to_batches():
                writer.write_batch(batch.take(pa.array(range(batch.num_rows), pa.int64())))
            check()


def _csv(table: Any, file: BinaryIO, check: Callable[[], None], delimiter: str = ",") -> None:
    csv = package("pyarrow.csv")
    flat = flattened(table)
    options = csv.WriteOptions(delimiter=delimiter)
    with csv.CSVWriter(file, flat.schema, write_options=options) as writer:
        for part in parts_of(flat, _PIECE):
            writer.write_table(part)
            check()


def _jsonl(table: Any, file: BinaryIO, check: Callable[[], None]) -> None:
    for part in parts_of(table):
        file.write("".join(lines_of(part)).encode())
        check()


_WRITERS: Final[dict[str, Callable[[Any, BinaryIO, Callable[[], None]], None]]] = {
    "parquet": _parquet,
    "arrow": _arrow,
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t"),
    "jsonl": _jsonl,
}


def flattened(table: Any) -> Any:
    """The table as CSV can hold it: text for what is nested, binary or in a time zone."""
    pa = package("pyarrow")
    columns = [column if _simple(column.type) else as_text(column) for column in table.columns]
    return pa.table(columns, names=table.column_names)


def _escape_formulas(table: Any) -> Any:
    """The table as CSV holds it, text and names with a quote before what looks like a formula."""
    pa, flat = package("pyarrow"), flattened(table)
    types = pa.types
    columns = [
        _replaced(column, *_ESCAPE)
        if (types.is_string(column.type) or types.is_large_string(column.type)) and not types.is_decimal(given)
        else column
        for column, given in zip(flat.columns, table.schema.types, strict=True)
    ]
    return pa.table(columns, names=[re.sub(*_ESCAPE, name) for name in table.column_names])


def _replaced(column: Any, pattern: str, replacement: str) -> Any:
    return package("pyarrow.compute").replace_substring_regex(column, pattern, replacement)


def _simple(kind: Any) -> bool:
    types = package("pyarrow").types
    if types.is_timestamp(kind):
        return bool(kind.tz is None)
    tests = (types.is_boolean, types.is_integer, types.is_float32, types.is_float64, types.is_string)
    more = (types.is_large_string, types.is_date32, types.is_time, types.is_null)
    return any(test(kind) for test in (*tests, *more))


def read_text(
    file: BinaryIO, kind: str, types: dict[str, str], columns: list[str], *, escape_formulas: bool = False
) -> Any:
    """The table of a text file with these columns; `types` are what the columns were written from."""
    file.seek(0)
    if kind == "jsonl":
        return _read_jsonl(file, types, columns)
    return _read_csv(file, "\t" if kind == "tsv" else ",", types, columns, escape_formulas)


def _read_csv(
    file: BinaryIO, delimiter: str, types: dict[str, str], columns: list[str], escape_formulas: bool
) -> Any:
    pa, csv = package("pyarrow"), package("pyarrow.csv")
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    names = [re.sub(*_ESCAPE, name) for name in columns] if escape_formulas else columns
    # Every column is read as text: 007 is not 7.
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = csv.read_csv(file, csv.ReadOptions(use_threads=False), parse_options=parse, convert_options=convert)
    if table.column_names != names:
        raise ValueError("other columns")
    found = table.columns
    if escape_formulas:
        plain = [types.get(name, "").startswith("decimal") for name in columns]
        found = [c if number else _replaced(c, *_UNESCAPE) for number, c in zip(plain, found, strict=True)]
    return pa.table([restore_column(c, types.get(n)) for n, c in zip(columns, found, strict=True)], names=columns)


def _read_jsonl(file: BinaryIO, types: dict[str, str], columns: list[str]) -> Any:
    cells: list[list[Any]] = [[] for _ in columns]
    for line in file:
        row = json.loads(line.decode(), object_pairs_hook=named_once)
        if not isinstance(row, dict) or list(row) != columns:
            raise ValueError("other columns")
        for column, cell in zip(cells, row.values(), strict=True):
            column.append(cell)
    made = [column_of(column, types.get(name)) for name, column in zip(columns, cells, strict=True)]
    return package("pyarrow").table(made, names=columns)
