"""Canonical cells, and text files read back in the types that they were written from."""

from __future__ import annotations

import json
import math
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from dphist.aliases import ArrowArray, ArrowColumn, ChunkedArray
from dphist.certificate.text import unique_keys

# Every format and database gives cells back exactly. Values that it cannot store exactly become text: binary ones
# in base64, numbers and times out of its range in digits.

ROWS: Final = 65_536
encode_json: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_QUOTE: Final = json.encoder.encode_basestring
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def parts_of(table: pa.Table, rows: int = ROWS) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows):
        yield table.slice(start, rows)


def json_cells(column: ChunkedArray) -> list[object]:
    """The cells as JSON values, without losing a digit."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return json_cells(_storage(column, kind))
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    cells: list[object] = (_times(column) if pa.types.is_temporal(kind) else column).to_pylist()
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind) or "binary" in str(kind):
        return [_json_value(value) for value in cells]
    return cells


def _storage(column: ChunkedArray, kind: pa.BaseExtensionType) -> ChunkedArray:
    storages = [chunk.storage for chunk in column.chunks if isinstance(chunk, pa.ExtensionArray)]
    return pa.chunked_array([pa.array([], kind.storage_type), *storages])


def _json_value(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value


def _duration(count: int, unit: str) -> str:
    whole, part = divmod(abs(count), _PER_SECOND[unit])
    digits = len(str(_PER_SECOND[unit])) - 1
    return f"{'-' if count < 0 else ''}PT{whole}" + (f".{part:0{digits}}S" if digits else "S")


def _times(column: ChunkedArray) -> ArrowColumn:
    """Dates and times as ISO 8601; with a time zone in UTC."""
    kind = column.type
    if pa.types.is_duration(kind):
        counts = column.cast(pa.int64()).to_pylist()
        return pa.array([None if c is None else _duration(c, kind.unit) for c in counts], pa.string())
    if not pa.types.is_timestamp(kind):
        if pa.types.is_interval(kind):
            return pa.array([None if v is None else str(v) for v in column.to_pylist()], pa.string())
        return column.cast(pa.date32() if pa.types.is_date(kind) else kind).cast(pa.string())
    # Stored values are UTC; without the zone the cast needs no time zone database.
    text = column.cast(pa.timestamp(kind.unit)).cast(pa.string())
    text = pc.replace_substring(text, " ", "T", max_replacements=1)
    return text if kind.tz is None else pc.replace_substring_regex(text, r"\z", "Z")


def as_text(column: ChunkedArray) -> ChunkedArray:
    """The column as text."""
    cells = [c if c is None or isinstance(c, str) else encode_json(c) for c in json_cells(column)]
    return pa.chunked_array([pa.array(cells, pa.string())])


def texts_of(cells: list[object]) -> list[str]:
    """Each cell as JSON text; simple ones without the encoder, which is ten times slower."""
    return [_QUOTE(c) if type(c) is str else repr(c) if type(c) in (float, int) else encode_json(c) for c in cells]


# The stubs accept only literal names.
_BY_ALIAS: Final[Callable[[str], pa.DataType]] = pa.type_for_alias  # type: ignore[assignment]
_STAMPS: Final[Mapping[str, Callable[[str], pa.DataType]]] = {
    "s": partial(pa.timestamp, "s"), "ms": partial(pa.timestamp, "ms"), "us": partial(pa.timestamp, "us"),
    "ns": partial(pa.timestamp, "ns"),
}  # fmt: skip
_DECIMALS: Final[Mapping[str, Callable[[int, int], pa.DataType]]] = {
    name: getattr(pa, f"decimal{name}") for name in ("32", "64", "128", "256") if hasattr(pa, f"decimal{name}")
}


def type_named(described: str) -> pa.DataType | None:
    """The Arrow type that is written like this, or None for an unknown type."""
    try:
        if match := re.fullmatch(r"timestamp\[(s|ms|us|ns), tz=([\w/+:-]+)\]", described, re.ASCII):
            return _STAMPS[match[1]](match[2])
        if match := re.fullmatch(r"decimal(32|64|128|256)\((\d{1,3}), (-?\d{1,3})\)", described, re.ASCII):
            return _DECIMALS[match[1]](int(match[2]), int(match[3]))
        if match := re.fullmatch(r"fixed_size_binary\[(\d{1,9})\]", described, re.ASCII):
            return pa.binary(int(match[1]))
        return _BY_ALIAS(described)
    except (ValueError, KeyError):
        return None


def restore_column(column: ChunkedArray, described: str | None) -> ChunkedArray:
    """A column in the type that it was written from, or unchanged if it cannot be converted."""
    wanted = None if described is None else type_named(described)
    if wanted is None or wanted == column.type:
        return column
    try:
        if pa.types.is_null(wanted) and column.null_count == len(column):
            return pa.chunked_array([pa.nulls(len(column))])
        if isinstance(column.type, pa.BaseExtensionType):
            column = _storage(column, column.type)
        if pa.types.is_boolean(wanted) and pa.types.is_string(column.type):
            return _truth_values(column)
        if "binary" in str(wanted) and pa.types.is_string(column.type):
            cells = [None if c is None else b64decode(c, validate=True) for c in column.to_pylist()]
            return pa.chunked_array([pa.array(cells, wanted)])
        if pa.types.is_string(column.type) and pa.types.is_temporal(wanted):
            return _times_of(column, wanted)
        return column.cast(wanted)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return column


def _truth_values(texts: ChunkedArray) -> ChunkedArray:
    """True and false from text; PostgreSQL writes t and f."""
    for letter, word in (("t", "true"), ("f", "false")):
        texts = pc.if_else(pc.equal(texts, pa.scalar(letter)), pa.scalar(word), texts)
    return texts.cast(pa.bool_())


def _times_of(texts: ChunkedArray, wanted: pa.DataType) -> ChunkedArray:
    """Dates and times from ISO 8601, through microseconds where the text has more digits than the type."""
    if pa.types.is_time(wanted):
        stamp = pa.timestamp("ns") if wanted.unit == "ns" else pa.timestamp("us")
        return pc.replace_substring_regex(texts, r"\A", "1970-01-01T").cast(stamp).cast(wanted)
    if pa.types.is_timestamp(wanted) and wanted.unit in ("s", "ms"):
        return texts.cast(pa.timestamp("us", wanted.tz)).cast(wanted)
    return texts.cast(wanted)


def column_of(cells: list[object], described: str | None) -> ChunkedArray:
    """A column from JSON or SQLite cells, which have mixed types if someone changed them."""
    wanted = None if described is None else type_named(described)
    try:
        if wanted is not None and pa.types.is_floating(wanted):
            cells = [float(c) if isinstance(c, str) else c for c in cells]
        if wanted is not None and (pa.types.is_integer(wanted) or pa.types.is_floating(wanted)):
            return pa.chunked_array([pa.array(cells, wanted)])
        column: ArrowArray = pa.array(cells)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        texts = [c if c is None or isinstance(c, str) else json.dumps(_json_value(c)) for c in cells]
        column = pa.array(texts, pa.string())
    return restore_column(pa.chunked_array([column]), described)


# Characters that begin a formula in a spreadsheet. Quotes before them match too, so that the escape, one more
# quote, can be undone exactly.
ESCAPE: Final = (r"^('*[=+\-@\t\r])", r"'\1")
_UNESCAPE: Final = (r"^'('*[=+\-@\t\r])", r"\1")
ESCAPES: Final = ("csv", "tsv", "csv.gz", "tsv.gz")
PACKED: Final = ".gz"


def read_text(
    file: BinaryIO,
    kind: str,
    types: dict[str, str],
    columns: list[str],
    *,
    escape_formulas: bool = False,
    exported: bool = False,
) -> pa.Table:
    """Read a text file, already unpacked, whose columns were written from these Arrow types.

    Raises `ValueError` for numbers in another form than dphist writes, unless a database `exported` the file.
    """
    file.seek(0)
    kind = kind.removesuffix(PACKED)
    if kind == "jsonl":
        return _read_jsonl(file, types, columns, exported=exported)
    parse = csv.ParseOptions(delimiter="\t" if kind == "tsv" else ",", newlines_in_values=True)
    names = [re.sub(*ESCAPE, name) for name in columns] if escape_formulas else columns
    # Every column is read as text, because 007 is not 7.
    convert = csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    table = csv.read_csv(file, csv.ReadOptions(use_threads=False), parse_options=parse, convert_options=convert)
    if table.column_names != names:
        raise ValueError("other columns")
    cells = table.columns
    if escape_formulas:
        for place, name in enumerate(columns):
            if not types.get(name, "").startswith("decimal"):
                cells[place] = pc.replace_substring_regex(cells[place], *_UNESCAPE)
    restored = [restore_column(c, types.get(n)) for n, c in zip(columns, cells, strict=True)]
    if not exported and not all(map(_is_as_written, cells, restored)):
        raise ValueError("other text of numbers")
    return pa.table(restored, names=columns)


def _is_as_written(texts: ChunkedArray, column: ChunkedArray) -> bool:
    """Whether numbers have the text that dphist writes: 500 may be neither 5e2 nor 0500."""
    given = column.type
    if not (pa.types.is_integer(given) or pa.types.is_float32(given) or pa.types.is_float64(given)):
        return True
    return bool(texts.equals(column.cast(pa.string())))


def _read_jsonl(file: BinaryIO, types: dict[str, str], columns: list[str], *, exported: bool) -> pa.Table:
    cells: list[list[object]] = [[] for _ in columns]
    keys = [encode_json(name) + ":" for name in columns]
    for line in file:
        row = json.loads(line.decode(), object_pairs_hook=unique_keys)
        if not isinstance(row, dict) or list(row) != columns:
            raise ValueError("other columns")
        if not exported:
            texts = map(str.__add__, keys, texts_of(list(row.values())))
            if line != ("{" + ",".join(texts) + "}\n").encode():
                raise ValueError("other text of cells")
        for column, cell in zip(cells, row.values(), strict=True):
            column.append(cell)
    arrays = [column_of(column, types.get(name)) for name, column in zip(columns, cells, strict=True)]
    return pa.table(arrays, names=columns)
