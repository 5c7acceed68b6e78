"""Inputs in memory: pandas and polars frames, Arrow tables, streams and datasets, DuckDB relations.

Missing values of pandas, including NaN in a float column, are NULL; elsewhere NaN is a value. A pandas column of
objects is text, cell by cell: its type must not depend on the values.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dphist.aliases import ArrowArray, ArrowColumn
from dphist.counting.sql import EXACT, Opened, Source, describe, name
from dphist.counting.streams import BATCH, UNREADABLE, WHAT, ArrowStream
from dphist.counting.task import is_stream
from dphist.counting.workspace import attempt
from dphist.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow.dataset as ds
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
LIMIT: Final = 2**63
TEXT: Final = pa.large_string()


def texts(cells: Sequence[object], *, like_columns: bool = False, kind: pa.DataType = TEXT) -> ArrowArray:
    """An Arrow array of the cells as text; `like_columns` writes numbers and times like typed columns."""
    if set(map(type, cells)) <= {str, type(None)}:
        try:
            return pa.array(cells, kind)
        except (UnicodeError, pa.ArrowException):
            pass
    return pa.array([text_of(_like_columns(cell) if like_columns else cell) for cell in cells], kind)


def _like_columns(cell: object) -> object:
    """A number or a time among objects in the form of `sql.as_text`.

    A single value that does not fit turns a whole pandas column into objects; that must not change other rows.
    """
    if isinstance(cell, (bool, np.bool_)):
        return cell
    if isinstance(cell, (int, np.integer)):
        return int(cell) if abs(int(cell)) < EXACT else None
    if isinstance(cell, (float, np.floating)) and math.isfinite(cell):
        number = float(cell)
        return None if abs(number) >= EXACT else int(number) if number.is_integer() else number
    if isinstance(cell, decimal.Decimal) and cell.is_finite():
        whole, point, rest = f"{cell:f}".partition(".")
        text = f"{whole}{point}{rest.rstrip('0')}".rstrip(".")
        return None if abs(float(cell)) >= EXACT else "0" if cell == 0 else text
    if isinstance(cell, datetime.datetime) and cell == cell:
        zone = "" if cell.tzinfo is None else "+00"
        local = cell if cell.tzinfo is None else cell.astimezone(datetime.UTC).replace(tzinfo=None)
        text = local.isoformat(sep=" ")
        return (text.rstrip("0") if "." in text else text) + zone
    return cell


def text_of(cell: object) -> str | None:
    """A cell as text: numbers as Python writes them, bytes in hexadecimal, lists and dictionaries as JSON.

    Other types and invalid Unicode are missing.
    """
    try:
        if isinstance(cell, (list, tuple, dict, np.ndarray)):
            text = json.dumps(cell, default=_single_text, ensure_ascii=False, separators=(",", ":"))
        else:
            text = str(_single_text(cell))
        text.encode("utf-8")
        return text
    except Exception:
        return None


def _single_text(cell: object) -> object:
    if isinstance(cell, str):
        return str(cell)
    if isinstance(cell, (bool, np.bool_)):
        return "true" if cell else "false"
    if isinstance(cell, (int, np.integer)):
        return str(int(cell))
    if isinstance(cell, (float, np.floating)):
        return repr(float(cell) + 0.0)  # so that -0.0 is 0.0
    if isinstance(cell, (bytes, bytearray, memoryview)):
        return bytes(cell).hex()
    if isinstance(cell, (datetime.date, datetime.time)):  # a datetime is a date
        return cell.isoformat()
    if isinstance(cell, (decimal.Decimal, uuid.UUID, datetime.timedelta, np.datetime64, np.timedelta64)):
        return str(cell)
    if isinstance(cell, np.ndarray):
        return cell.tolist()
    raise TypeError


def decode_text(raw: bytes) -> str | None:
    """The text, or None if it is not UTF-8: any replacement could be another user's text."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def whole_of(cell: object) -> int | None:
    """The cell as an integer of 64 bits, or None."""
    if isinstance(cell, str):
        cell = int(cell) if WHOLE.fullmatch(cell) else None
    elif isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None
    return cell if isinstance(cell, int) and -LIMIT <= cell < LIMIT else None


@dataclass(frozen=True)
class ArrowSource:
    """Arrow data: `data` returns the wanted columns, in their order, as a table or a reader."""

    what: str
    names: Sequence[str]
    schema: Callable[[list[str]], pa.Schema]
    data: Callable[[list[str]], pa.Table | pa.RecordBatchReader]
    otherwise: str = "{what} cannot be read: a column has an unsupported type, or it is damaged"

    def as_source(self, connection: DuckDBPyConnection, label: str, probe: bool) -> Source:
        """The data as a DuckDB table named `label`. A probe has no rows: some data can be read only once."""

        def register(wanted: list[str]) -> Opened:
            connection.register(label, self.schema(wanted).empty_table())
            columns = dict(zip(wanted, describe(connection, name(label)), strict=True))
            if not probe:
                connection.unregister(label)
                connection.register(label, without_far_times(self.data(wanted)))
            return Opened(name(label), {column: (name(sql), kind) for column, (sql, kind) in columns.items()})

        return Source(
            self.what, self.names, lambda wanted: attempt(lambda: register(wanted), self.what, self.otherwise)
        )


# DuckDB counts microseconds in 64 bits, and one time beyond them would make the whole input unreadable.
_FARTHEST: Final = 9 * 10**18


def without_far_times(data: pa.Table | pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """The data with times beyond about the year 287,000, and durations as long, missing."""
    units = {"s": 10**6, "ms": 10**3}
    limits = {
        place: _FARTHEST // units[kind.unit]
        for place, kind in enumerate(data.schema.types)
        if isinstance(kind, (pa.TimestampType, pa.DurationType)) and kind.unit in units
    }
    if not limits:
        return data
    if isinstance(data, pa.Table):
        for place, limit in limits.items():
            data = data.set_column(place, data.schema.field(place), _within(data.column(place), limit))
        return data

    def bounded(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            _within(column, limits[place]) if place in limits else column
            for place, column in enumerate(batch.columns)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    return pa.RecordBatchReader.from_batches(data.schema, map(bounded, data))


def _within(column: Any, limit: int) -> Any:
    whole = column.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(whole, pa.scalar(-limit)), pc.less_equal(whole, pa.scalar(limit)))
    # DuckDB also converts what is stored below a NULL.
    safe = pc.if_else(inside, whole, pa.scalar(0))
    return pc.if_else(inside, safe, pa.scalar(None, pa.int64())).cast(column.type)


def stream_of(
    schema: Callable[[list[str]], pa.Schema], batches: Callable[[list[str], pa.Schema], Iterator[pa.RecordBatch]]
) -> Callable[[list[str]], pa.RecordBatchReader]:
    """The `data` of an `ArrowSource`: a reader of the batches of the wanted columns, in their schema."""

    def data(wanted: list[str]) -> pa.RecordBatchReader:
        common = schema(wanted)
        return pa.RecordBatchReader.from_batches(common, batches(wanted, common))

    return data


def is_pandas_frame(data: object) -> TypeGuard[pd.DataFrame]:
    return _names(data) == ("pandas", "DataFrame")


def is_polars_frame(data: object) -> TypeGuard[pl.DataFrame | pl.LazyFrame]:
    return _names(data) in (("polars", "DataFrame"), ("polars", "LazyFrame"))


def is_relation(data: object) -> TypeGuard[DuckDBPyRelation]:
    return _names(data)[1] == "DuckDBPyRelation"


def is_dataset(data: object) -> TypeGuard[ds.Dataset]:
    # Importing `pyarrow.dataset` would import pandas.
    return ("pyarrow._dataset", "Dataset") in ((base.__module__, base.__name__) for base in type(data).__mro__)


def _names(data: object) -> tuple[str, str]:
    """The package and the name of a class: `isinstance` would import the package."""
    return type(data).__module__.partition(".")[0], type(data).__name__


def frame_source(data: object, *, as_text: bool = False) -> ArrowSource:
    """The source of an object in memory. `as_text` writes numbers among objects like those of typed columns."""
    if is_pandas_frame(data):
        return pandas_source(data, as_text=as_text)
    if is_polars_frame(data):
        return polars_source(data)
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        return arrow_source("the Arrow table", data.schema, lambda wanted: pa.table(data.select(wanted)))
    if isinstance(data, ArrowStream):
        return stream_source(data)
    if is_stream(data):
        return stream_source(ArrowStream(data))
    if is_dataset(data):
        # Little read-ahead: DuckDB's limit does not cover Arrow's memory.
        scanner = partial(data.scanner, batch_size=BATCH, batch_readahead=1, fragment_readahead=1)
        return arrow_source("the Arrow dataset", data.schema, lambda wanted: scanner(wanted).to_reader())
    if is_relation(data):
        what = "the DuckDB relation"
        schema = attempt(lambda: data.limit(0).to_arrow_table().schema, what, ArrowSource.otherwise)
        return arrow_source(what, schema, lambda wanted: select_columns(data.to_arrow_reader(2048), wanted))
    raise InputError(
        f"events cannot be read from an object of type {type(data).__qualname__!r}: give a path, a database "
        "address, a pandas or polars frame, an Arrow table or dataset, or an object with __arrow_c_stream__"
    )


def arrow_source(
    what: str, schema: pa.Schema, data: Callable[[list[str]], pa.Table | pa.RecordBatchReader]
) -> ArrowSource:
    return ArrowSource(what, schema.names, lambda wanted: select_fields(schema, wanted), data)


def select_fields(schema: pa.Schema, wanted: list[str]) -> pa.Schema:
    return pa.schema([schema.field(column) for column in wanted])


def select_columns(reader: pa.RecordBatchReader, wanted: list[str]) -> pa.RecordBatchReader:
    """A reader of the wanted columns."""
    schema = select_fields(reader.schema, wanted)
    return pa.RecordBatchReader.from_batches(schema, (batch.select(wanted) for batch in reader))


def stream_source(stream: ArrowStream) -> ArrowSource:
    names = stream.reader.schema.names
    data = stream_of(stream.schema, lambda _, common: stream.batches(common))
    return ArrowSource(WHAT, names, stream.schema, data, UNREADABLE)


def pandas_source(frame: pd.DataFrame, *, as_text: bool) -> ArrowSource:
    names = [str(column) for column in frame.columns]

    def convert(rows: pd.DataFrame, wanted: list[str]) -> pa.Table:
        arrays = [pandas_column(rows.iloc[:, names.index(column)], as_text=as_text) for column in wanted]
        return pa.table(arrays, names=wanted)

    return ArrowSource(
        "the pandas frame",
        names,
        lambda wanted: convert(frame.iloc[:0], wanted).schema,
        lambda wanted: convert(frame, wanted),
        "{what} cannot be read: a column has an unsupported type; convert it to another",
    )


def pandas_column(series: pd.Series, *, as_text: bool = False) -> ArrowColumn:
    """An Arrow column: Python objects and strings as text, categories by the type of their values."""
    kind = series.dtype
    if kind.kind == "O" and (kind.name == "object" or getattr(kind, "storage", "") == "python"):
        cells = series.to_numpy(dtype=object, copy=True)
        cells[series.isna().to_numpy()] = None
        return texts(cells, like_columns=as_text)
    if hasattr(series, "cat"):
        codes = series.cat.codes.to_numpy().astype("int32")
        values = series.cat.categories
        return pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=codes < 0),
            pandas_column(values.to_series(index=range(len(values))), as_text=as_text),
        )
    return pa.Table.from_pandas(series.to_frame("c"), preserve_index=False).column(0)


def polars_source(frame: pl.DataFrame | pl.LazyFrame) -> ArrowSource:
    import polars.selectors as cs  # pl.col reads a name from ^ to $ as a pattern

    def select(wanted: list[str]) -> pl.LazyFrame:
        return frame.lazy().select([cs.by_name(column) for column in wanted])

    def schema(wanted: list[str]) -> pa.Schema:
        return select(wanted).head(0).collect().to_arrow().schema

    def batches(wanted: list[str], common: pa.Schema) -> Iterator[pa.RecordBatch]:
        for part in select(wanted).collect_batches(maintain_order=False):
            yield from part.to_arrow().cast(common).to_batches()

    return ArrowSource("the polars frame", frame.collect_schema().names(), schema, stream_of(schema, batches))
