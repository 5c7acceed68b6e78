"""Inputs in memory: frames of pandas and polars, tables, batches, readers and datasets of Arrow, DuckDB relations.

A missing value of pandas (NaN in a column of floats among them) is NULL; in all others NaN is a value. A column of
objects is text whatever the objects are (see `cells`): its type must not depend on them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Final

from dphist.engines.cells import inferred, texts
from dphist.engines.sources import ArrowSource, Source, numbered
from dphist.errors import InputError

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
