"""The columns of items: Arrow arrays of numbers, truth values, texts, bytes and times.

`item_column` converts all that callers pass. Types come from types, never from values: Python objects, lists and
structures are text, cell by cell. Nothing refers to the input: a dictionary of categories or a shared buffer would
disclose rows that are not released.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dphist.aliases import ArrowArray, ArrowColumn
from dphist.counting.frames import pandas_column, texts
from dphist.counting.task import origins
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Positions = NDArray[np.int64]

_SERIES: Final = {"Series", "Index", "Array", "ChunkedArray"}
_TYPES: Final = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_string,
    pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary, pa.types.is_date, pa.types.is_time,
    pa.types.is_timestamp, pa.types.is_duration,
)  # fmt: skip
_texts: Final = partial(texts, kind=pa.string())
# The same values in a type of items.
_WIDER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.null(): pa.large_string(), pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary(),
    pa.float16(): pa.float32(),
}  # fmt: skip


def is_series(value: object) -> bool:
    """Whether a value is a single column of pandas, polars or Arrow."""
    return bool(_SERIES & {base.__name__ for base in type(value).__mro__})


def arrow_column(values: object, what: str) -> ArrowColumn:
    """A column as an Arrow array; lists and arrays of Python objects, which have no type, as text."""
    packages = origins(values) if is_series(values) else set()
    try:
        if isinstance(values, (pa.Array, pa.ChunkedArray)):
            return values
        if isinstance(values, (list, tuple)):
            return _texts(values)
        if isinstance(values, np.ndarray) and values.ndim == 1:
            return _numpy_column(values)
        if "pandas" in packages:
            return _from_pandas(values)
        if "polars" in packages:
            return cast("pl.Series", values).to_arrow()
        if packages and hasattr(values, "__arrow_c_stream__"):
            stream: Any = values  # Arrow's stubs do not have it as an argument
            return pa.chunked_array(stream)
    except Exception:
        raise _no_type(what, getattr(values, "dtype", type(values).__name__)) from None
    raise InvalidParameter(
        f"{what} must be columns of one dimension: Arrow arrays, numpy arrays, Series or lists, "
        f"not {type(values).__name__}"
    )


def _from_pandas(values: pd.Series | pd.Index) -> ArrowColumn:
    series = values if hasattr(values, "iloc") else values.to_series(index=range(len(values)))
    return pandas_column(series.sparse.to_dense() if hasattr(series, "sparse") else series)


def _numpy_column(values: NDArray[np.generic]) -> ArrowArray:
    if values.dtype.kind in "OU":
        return _texts(values.tolist())
    if values.dtype.kind == "S":
        return pa.array(values.tolist(), pa.large_binary())
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return pa.array(native) if isinstance(values, np.ma.MaskedArray) else arrow_numbers(native)


def _no_type(what: str, kind: object) -> InvalidParameter:
    return InvalidParameter(
        f"Arrow has no type for {what} of the type {kind}: convert them first, for example times to datetime64[s] "
        "or datetime64[D]"
    )


def item_column(values: object) -> ArrowColumn:
    """A column of items, with one form for NaN and for the two zeros. Lists and structures are text, as JSON."""
    column = arrow_column(values, "items")
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = pa.large_binary() if pa.types.is_fixed_size_binary(column.type) else column.type
    column = column.cast(_WIDER.get(kind, kind))
    if pa.types.is_floating(column.type):
        return _normal_floats(column)
    if pa.types.is_nested(kind):
        return _texts(column.to_pylist())
    if not any(test(column.type) for test in _TYPES):
        raise _no_type("items", kind)
    return column


def _normal_floats(column: ArrowColumn) -> ArrowColumn:
    nan, zero = (pa.scalar(number, column.type) for number in (float("nan"), 0.0))
    floats: ArrowColumn = pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))
    return floats


def take_rows(column: ArrowColumn, where: Positions) -> ArrowArray:
    """These rows as a new array, which shares nothing with the column."""
    return one_chunk(column.take(arrow_numbers(where)))


def join_rows(columns: Sequence[ArrowColumn]) -> ArrowArray:
    """One array from several, in a type that holds them all, or as text."""
    try:
        tables = [pa.table({"item": column}) for column in columns]
        return one_chunk(pa.concat_tables(tables, promote_options="permissive").column("item"))
    except pa.ArrowException:
        return _texts([value for column in columns for value in column.to_pylist()])


def has_repeats(columns: Sequence[ArrowColumn]) -> bool:
    """Whether two rows are equal in all columns."""
    if len(columns) == 1:
        # Much faster than grouping.
        return bool(pc.count_distinct(columns[0], mode="all").as_py() < len(columns[0]))
    names = [str(place) for place in range(len(columns))]
    table = pa.table(dict(zip(names, columns, strict=True)))
    return bool(table.group_by(names).aggregate([]).num_rows < table.num_rows)


def release_order(counts: NDArray[np.float64], columns: Sequence[ArrowColumn]) -> Positions:
    """Positions by descending count, then by the item's columns: the order reveals nothing but the rows."""
    names = [str(place) for place in range(len(columns))]
    table = pa.table({"count": arrow_numbers(counts), **dict(zip(names, columns, strict=True))})
    keys: list[tuple[str, Literal["ascending", "descending"]]] = [("count", "descending")]
    keys += [(name, "ascending") for name in names]
    return as_numpy(pc.sort_indices(table, sort_keys=keys)).astype(np.int64)


def as_numpy(array: ArrowArray) -> NDArray[Any]:
    """Numbers without nulls as a numpy array. Arrow's `to_numpy` would import pandas if it is installed."""
    if len(array) == 0:
        return np.empty(0, dtype=np.dtype(array.type.to_pandas_dtype()))
    numbers: NDArray[Any] = np.from_dlpack(array)
    return numbers


def arrow_numbers(values: NDArray[np.generic]) -> ArrowArray:
    """Numbers as an Arrow array, likewise without importing pandas."""
    if values.dtype.kind not in "iuf" or values.dtype.itemsize < 4 or not values.dtype.isnative:
        array: ArrowArray = pa.array(values)
        return array
    values = np.ascontiguousarray(values)
    kind: pa.DataType = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, values.size, [None, pa.py_buffer(values.data)])


def one_chunk(column: ArrowColumn) -> ArrowArray:
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)
