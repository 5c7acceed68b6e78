"""Spark DataFrames: made from Arrow, kept on the executors, cut off from their plans, and worked on in batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from dphist.aliases import ArrowColumn, ChunkedArray
from dphist.spark.session import is_connect

OnBatches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def arrow_frame(
    session: SparkSession, data: pa.Table | pa.RecordBatchReader, names: list[str] | None = None
) -> DataFrame:
    """A Spark DataFrame from an Arrow table or reader, with these column names or its own.

    Timestamps are truncated to microseconds. Times of day, durations and decimals of more than 38 digits become
    text, and unsigned 64-bit integers become decimals.
    """
    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data, data.schema)
    columns = [spark_column(table.column(place)) for place in range(table.num_columns)]
    ready = pa.table(columns, names=table.column_names if names is None else names)
    # Otherwise a time without a zone would get the session's.
    return session.createDataFrame(ready, from_arrow_schema(ready.schema, prefer_timestamp_ntz=True))


def spark_column(column: ChunkedArray) -> ArrowColumn:
    """An Arrow column in a type that Spark has."""
    types, kind = pa.types, column.type
    supported = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
        pa.float16(): pa.float32(), pa.null(): pa.string(),
    }  # fmt: skip
    if kind in supported:
        return column.cast(supported[kind])
    if types.is_dictionary(kind):
        return spark_column(column.cast(kind.value_type))
    if types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if types.is_time(kind) or types.is_duration(kind):
        cut = column.cast(pa.time64("us") if types.is_time(kind) else pa.duration("us"), safe=False)
        return pa.array([None if cell is None else str(cell) for cell in cut.to_pylist()], pa.string())
    if types.is_decimal256(kind):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if types.is_fixed_size_binary(kind) else column


def numbered(frame: DataFrame) -> DataFrame:
    """The frame with columns n0, n1, ...: Spark's names ignore case, and may be odd."""
    return frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))


def all_of(conditions: Iterable[Column]) -> Column:
    return reduce(lambda left, right: left & right, conditions)


def on_executors(frame: DataFrame, function: OnBatches, schema: StructType | str) -> DataFrame:
    """The result of a function on the Arrow batches of a frame, where they are."""
    with warnings.catch_warnings():
        # PySpark warns about new versions of pandas, which this does not use.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support", category=FutureWarning)
        return frame.mapInArrow(function, schema)


@contextmanager
def persist(frame: DataFrame) -> Iterator[DataFrame]:
    """Keep the rows on the executors; lost ones are recomputed."""
    rows = frame.persist()
    try:
        yield rows
    finally:
        with suppress(Exception):  # the cluster may be gone
            rows.unpersist(blocking=False)


def detached(frame: DataFrame) -> DataFrame:
    """A new frame of the same rows, without the plan that made them.

    Spark would pass on that plan, and statistics that it estimated from true counts.
    """
    session = frame.sparkSession
    if is_connect(session):
        return frame
    java = frame._jdf
    rows = session._jsparkSession.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    return DataFrame(rows, session)
