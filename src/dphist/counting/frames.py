"""Inputs in memory: frames of pandas and polars, tables, batches, readers and datasets of Arrow, DuckDB relations.

A missing value of pandas (NaN in a column of floats among them) is NULL; in all others NaN is a value. A column of
objects is text whatever the objects are (see `cells`): its type must not depend on them.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import uuid
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from dphist.counting.sql import EXACT, name
from dphist.counting.workspace import attempt, listed
from dphist.errors import InputError

# Cells of columns without a type (pandas objects, SQLite): each becomes text by a rule about that cell alone.

WHOLE: Final = re.compile(r"-?(0|[1-9][0-9]{0,18})")
LIMIT: Final = 2**63


def texts(cells: Sequence[Any]) -> Any:
    """An Arrow array of the cells' texts."""
    import pyarrow as pa

    if set(map(type, cells)) <= {str, type(None)}:
        try:
            return pa.array(cells, pa.large_string())
        except (UnicodeError, pa.ArrowException):
            pass
    return pa.array([text_of(cell) for cell in cells], pa.large_string())


def inferred(cells: Sequence[Any]) -> Sequence[Any]:
    """Numbers and times among objects in the spelling of typed columns (see `sql.as_text`).

    pandas makes a column of objects where a single value does not fit the type of all others.
    """
    if set(map(type, cells)) <= {str, type(None)}:
        return cells
    return [_inferred(cell) for cell in cells]


def _inferred(cell: Any) -> Any:
    if isinstance(cell, (bool, np.bool_)):
        return cell
    if isinstance(cell, (int, np.integer)):
        return int(cell) if abs(int(cell)) < EXACT else None
    if isinstance(cell, (float, np.floating)) and math.isfinite(cell):
        number = float(cell)
        return None if abs(number) >= EXACT else int(number) if number.is_integer() else number
    if isinstance(cell, datetime.datetime) and cell == cell:
        zone = "" if cell.tzinfo is None else "+00"
        plain = cell if cell.tzinfo is None else cell.astimezone(datetime.UTC).replace(tzinfo=None)
        found = plain.isoformat(sep=" ")
        return (found.rstrip("0") if "." in found else found) + zone
    return cell


def text_of(cell: Any) -> str | None:
    """The text of a cell: numbers as Python writes them, bytes in hexadecimal, lists and dictionaries as JSON.

    What has no text of its own is missing, and so is a text that is no Unicode.
    """
    try:
        if isinstance(cell, (list, tuple, dict, np.ndarray)):
            found = json.dumps(cell, default=plain, ensure_ascii=False, separators=(",", ":"))
        else:
            found = str(plain(cell))
        found.encode("utf-8")
        return found
    except Exception:
        return None


def plain(cell: Any) -> Any:
    """The text of a value that is no list; of an array its list."""
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


def wholes(cells: Sequence[Any]) -> Any:
    """An Arrow array of whole numbers; cells that are none are missing."""
    import pyarrow as pa

    if not set(map(type, cells)) <= {int, type(None)}:
        cells = [whole_of(cell) for cell in cells]
    return pa.array(cells, pa.int64())


def whole_of(cell: Any) -> int | None:
    """The whole number that a cell is."""
    if isinstance(cell, str):
        cell = int(cell) if WHOLE.fullmatch(cell) else None
    elif isinstance(cell, float):
        cell = int(cell) if cell.is_integer() else None
    return cell if isinstance(cell, int) and -LIMIT <= cell < LIMIT else None


def reals(cells: Sequence[Any]) -> Any:
    """An Arrow array of floats; cells that are no numbers are missing."""
    import pyarrow as pa

    return pa.array([float(cell) if isinstance(cell, (int, float)) else None for cell in cells], pa.float64())


def blobs(cells: Sequence[Any]) -> Any:
    """An Arrow array of bytes; other cells are missing."""
    import pyarrow as pa

    return pa.array([cell if isinstance(cell, bytes) else None for cell in cells], pa.large_binary())


# What every kind of input is made into: exact column names, and a FROM item for the columns that are wanted.


@dataclass(frozen=True)
class Opened:
    """A FROM item, and for each wanted column its SQL expression and type. `before` is run before it is read.

    `again` where a second look costs next to nothing beside the count.
    """

    relation: str
    columns: dict[str, tuple[str, str]]
    before: str | None = None
    again: bool = False


class Source(Protocol):
    """An input. Its columns are found by their exact names; DuckDB's own names are blind to case."""

    @property
    def what(self) -> str:
        """What it is called in a sentence."""

    @property
    def names(self) -> Sequence[str] | None:
        """Names of all columns, as they are in the input; None where only the rows know, and any name will do."""

    def open(self, connection: Any, wanted: list[str], label: str, probe: bool, /) -> Opened:
        """The wanted columns. A probe may look at types alone: it must not consume what can be read once."""


def describe(connection: Any, relation: str) -> list[tuple[str, str]]:
    """DuckDB's names and types of a FROM item."""
    rows = connection.execute(f"DESCRIBE SELECT * FROM {relation}").fetchall()
    return [(str(row[0]), str(row[1])) for row in rows]


def require(source: Source, wanted: Sequence[str]) -> None:
    """One sentence if a wanted column does not exist, or exists twice."""
    if source.names is not None:
        demand(source.what, source.names, wanted)


def demand(what: str, names: Sequence[str], wanted: Sequence[str]) -> None:
    """One sentence if a wanted name is not there once."""
    times = Counter(names)
    for column in wanted:
        if times[column] == 0:
            raise InputError(f"{what} has no column {column!r}; its columns are {listed(list(names))}")
        if times[column] > 1:
            raise InputError(f"{what} has {times[column]} columns with the name {column!r}")


@dataclass
class ArrowSource:
    """Anything that comes as Arrow data: `schema` gives the wanted fields, `data` the wanted columns themselves.

    The data's columns are named c0, c1, ... in the order they are wanted in, so that DuckDB need not rename them.
    """

    what: str
    names: Sequence[str]
    schema: Callable[[list[str]], Any]
    data: Callable[[list[str]], Any]
    otherwise: str = "{what} cannot be read: its columns have types that cannot be counted, or it is damaged"
    kept: list[Any] = field(default_factory=list)

    def open(self, connection: Any, wanted: list[str], label: str, probe: bool, /) -> Opened:
        """Register the data under the label; a probe registers an empty table of the same schema."""
        require(self, wanted)

        def register() -> Opened:
            empty = self.schema(wanted).empty_table()
            connection.register(label, empty)
            columns = dict(zip(wanted, describe(connection, name(label)), strict=True))
            if not probe:
                connection.unregister(label)
                data = self.data(wanted)
                self.kept.append(data)
                connection.register(label, data)
            return Opened(name(label), {column: (name(sql), kind) for column, (sql, kind) in columns.items()})

        return attempt(register, self.what, self.otherwise)


def numbered(schema: Any) -> Any:
    """The schema with its fields named c0, c1, ..."""
    import pyarrow as pa

    return pa.schema([pa.field(f"c{k}", entry.type) for k, entry in enumerate(schema)])


# Rows of a batch that Arrow makes: with values of 8 KiB it holds 130 MB.
BATCH: Final = 1 << 14
ONCE: Final = "the Arrow reader"
_read: weakref.WeakSet[Any] = weakref.WeakSet()


def frame_source(data: Any, *, as_text: bool = False) -> Source:
    """The source for an object in memory. `as_text` spells numbers among objects as those of typed columns."""
    package = type(data).__module__.split(".")[0]
    kind = type(data).__name__
    if package == "pandas" and kind == "DataFrame":
        return pandas_source(data, as_text=as_text)
    if package == "polars" and kind in ("DataFrame", "LazyFrame"):
        return polars_source(data)
    if package in ("duckdb", "_duckdb") and kind == "DuckDBPyRelation":
        return relation_source(data)
    if package == "pyarrow":
        source = arrow_source(data)
        if source is not None:
            return source
    raise InputError(
        f"events cannot be read from an object of type {type(data).__qualname__!r}: give a path, the address of a "
        "database, a pandas or polars frame, or an Arrow table, reader or dataset"
    )


def read_once(data: Any) -> str | None:
    """What a source is called that can be read only once; None for all others."""
    import pyarrow as pa

    return ONCE if isinstance(data, pa.RecordBatchReader) else None


def arrow_source(data: Any) -> Source | None:
    """Tables and batches are scanned in place; datasets and readers are streamed."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return table_source("the Arrow table", data)
    if isinstance(data, ds.Dataset):
        return dataset_source("the Arrow dataset", data)
    if isinstance(data, pa.RecordBatchReader):
        return reader_source(ONCE, data)
    return None


def table_source(what: str, table: Any) -> Source:
    """A table in memory."""

    def select(wanted: list[str]) -> Any:
        return table.select(wanted).rename_columns([f"c{k}" for k in range(len(wanted))])

    return ArrowSource(what, table.column_names, lambda wanted: select(wanted).schema, select)


def dataset_source(what: str, dataset: Any) -> Source:
    """A dataset, streamed with little read ahead: Arrow's memory is not under DuckDB's limit."""

    def schema(wanted: list[str]) -> Any:
        return numbered([dataset.schema.field(column) for column in wanted])

    return ArrowSource(what, dataset.schema.names, schema, lambda wanted: streamed(dataset, wanted))


def streamed(dataset: Any, wanted: list[str], threads: bool = True) -> Any:
    """A reader of the wanted columns, named c0, c1, ...; without threads it never reads ahead."""
    import pyarrow.dataset as ds

    columns = {f"c{k}": ds.field(column) for k, column in enumerate(wanted)}
    ahead = 1 if threads else 0
    return dataset.scanner(
        columns=columns, batch_size=BATCH, batch_readahead=ahead, fragment_readahead=ahead, use_threads=threads
    ).to_reader()


def reader_source(what: str, reader: Any) -> Source:
    """A stream that can be read once; a second time would be an empty histogram, so it is an error."""

    def schema(wanted: list[str]) -> Any:
        if reader in _read:
            raise InputError(f"{what} has been read already, and it can be read only once")
        return numbered([reader.schema.field(column) for column in wanted])

    def stream(wanted: list[str]) -> Any:
        fields = schema(wanted)
        _read.add(reader)
        return renamed(reader, wanted, fields)

    return ArrowSource(what, reader.schema.names, schema, stream)


def renamed(batches: Any, wanted: list[str], schema: Any) -> Any:
    """A reader of the wanted columns under the names of the schema."""
    import pyarrow as pa

    def each() -> Iterator[Any]:
        for batch in batches:
            columns = [batch.column(column) for column in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, each())


def pandas_source(frame: Any, *, as_text: bool) -> Source:
    """A pandas frame by way of Arrow."""
    import pyarrow as pa

    def select(rows: Any, wanted: list[str]) -> Any:
        arrays = [pandas_column(rows.iloc[:, names.index(column)], as_text=as_text) for column in wanted]
        return pa.table(arrays, names=[f"c{k}" for k in range(len(arrays))])

    names = [str(column) for column in frame.columns]
    return ArrowSource(
        "the pandas frame",
        names,
        lambda wanted: select(frame.iloc[:0], wanted).schema,
        lambda wanted: select(frame, wanted),
        "{what} cannot be read: a column has a type that cannot be counted; convert it to another",
    )


def pandas_column(series: Any, *, as_text: bool = False) -> Any:
    """One column: objects and strings of Python as text, categories by their own type, all others as they are."""
    import pyarrow as pa

    kind = series.dtype
    if kind.kind == "O" and (kind.name == "object" or getattr(kind, "storage", "") == "python"):
        cells = series.to_numpy(dtype=object, copy=True)
        cells[series.isna().to_numpy()] = None
        return texts(inferred(cells) if as_text else cells)
    if hasattr(series, "cat"):
        codes = series.cat.codes.to_numpy().astype("int32")
        values = series.cat.categories
        return pa.DictionaryArray.from_arrays(
            pa.array(codes, mask=codes < 0),
            pandas_column(values.to_series(index=range(len(values))), as_text=as_text),
        )
    return pa.Table.from_pandas(series.to_frame("c"), preserve_index=False).column(0)


def polars_source(frame: Any) -> Source:
    """A polars frame; a lazy one is run in batches where polars can."""
    import polars as pl
    import polars.selectors as cs  # pl.col would take a name from ^ to $ for a pattern

    lazy = isinstance(frame, pl.LazyFrame)
    names = frame.collect_schema().names()

    def chosen(wanted: list[str]) -> Any:
        return frame.select([cs.by_name(column).alias(f"c{k}") for k, column in enumerate(wanted)])

    def schema(wanted: list[str]) -> Any:
        return chosen(wanted).head(0).lazy().collect().to_arrow().schema

    def data(wanted: list[str]) -> Any:
        return lazily(chosen(wanted), schema(wanted)) if lazy else chosen(wanted).to_arrow()

    return ArrowSource("the polars frame", names, schema, data)


def lazily(frame: Any, schema: Any) -> Any:
    """An Arrow reader over the batches of a lazy frame."""
    import pyarrow as pa

    if not hasattr(frame, "collect_batches"):
        return frame.collect().to_arrow()

    def each() -> Iterator[Any]:
        for part in frame.collect_batches(maintain_order=False):
            yield from part.to_arrow().cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, each())


def relation_source(relation: Any) -> Source:
    """A relation of the user's own DuckDB connection, streamed."""
    names = list(relation.columns)

    def stream(wanted: list[str]) -> Any:
        fields = schema(wanted)  # first: an open reader keeps its connection busy
        return renamed(relation.to_arrow_reader(2048), wanted, fields)

    def schema(wanted: list[str]) -> Any:
        empty = relation.limit(0).to_arrow_table().schema
        return numbered([empty.field(column) for column in wanted])

    return ArrowSource("the DuckDB relation", names, schema, stream)
