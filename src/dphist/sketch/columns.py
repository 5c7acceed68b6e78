"""Columns of users and items as a caller has them: Arrow, numpy, pandas, polars, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dphist.engines.cells import texts
from dphist.engines.frames import pandas_column
from dphist.errors import InvalidParameter
from dphist.sketch.kinds import TEXT, ItemKind, bare, key_rule, plain_column, plainest, stored_as


def arrow_column(column: Any, what: str, kind: Any = None) -> Any:
    """A column as Arrow has it. Values without a type (lists, objects) become `kind`, text by default."""
    if isinstance(column, (pa.Array, pa.ChunkedArray)):
        return column
    try:
        found = _typed_or_cells(column, kind)
    except pa.ArrowException:
        raise InvalidParameter(
            f"{what} of the type {getattr(column, 'dtype', type(column).__name__)} are not known to Arrow: "
            "convert them to another type first, times for example to datetime64[s] or datetime64[D]"
        ) from None
    if found is None:
        raise InvalidParameter(
            f"{what} must be columns: Arrow arrays, numpy arrays, Series or lists, not {type(column).__name__}"
        )
    return found


def _typed_or_cells(column: Any, kind: Any) -> Any:
    """By the type that the column has, if it has one; None if it is no column."""
    package = type(column).__module__.partition(".")[0]
    if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biufMm":
        return pa.array(column.astype(column.dtype.newbyteorder("="), copy=False))
    if package == "pandas" and hasattr(column, "isna") and (column.dtype.kind != "O" or kind in (None, TEXT)):
        return pandas_column(column)
    if package == "polars" and hasattr(column, "to_arrow"):
        return column.to_arrow()
    if isinstance(column, (list, tuple)):
        return cells(column, kind)
    if hasattr(column, "tolist") and getattr(column, "ndim", 0) == 1:
        return cells(column.tolist(), kind)
    return None


def cells(values: Any, kind: Any) -> Any:
    """Values without a type of their own, each by a rule about that value alone."""
    if kind is None or kind == TEXT:
        return texts([value if type(value) is str else bare(value) for value in values])
    rule = key_rule(kind)
    return pa.array([None if value is None else rule(value) for value in values], stored_as(kind)).cast(kind)


def user_column(users: Any) -> Any:
    """Users as a chunked column in their plainest type."""
    column = arrow_column(users, "users")
    if pa.types.is_null(column.type):
        return pa.chunked_array([column.cast(TEXT)])
    return plain_column(column, plainest(column.type))


def is_column(given: Any) -> bool:
    """Whether an object is a column rather than a value."""
    package = type(given).__module__.partition(".")[0]
    arrays = (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)
    return isinstance(given, arrays) or (package in ("pandas", "polars") and hasattr(given, "__len__"))


def given_columns(items: Any) -> Any:
    """A tuple of columns as it is, and one column as a tuple of it. A tuple of values is a column."""
    return items if isinstance(items, tuple) and items and all(map(is_column, items)) else (items,)


def item_columns(items: Any, kind: ItemKind) -> tuple[Any, ...]:
    """The columns of the items, in the types of the sketch. Another type is an error, whatever its values are."""
    given = items if len(kind.names) > 1 else given_columns(items)
    if not isinstance(given, (tuple, list)) or len(given) != len(kind.names):
        raise InvalidParameter(
            f"the sketch counts items of {len(kind.names)} columns: give as many, as a tuple of columns"
        )
    columns = []
    for column, name, wanted in zip(given, kind.names, kind.types, strict=True):
        found = arrow_column(column, "items", wanted)
        if not pa.types.is_null(found.type) and plainest(found.type) != wanted:
            raise InvalidParameter(
                f"the sketch counts items of the type {wanted} in {name!r}, and the column is of type {found.type}"
            )
        columns.append(plain_column(found, wanted))
    return tuple(columns)


def same_length(users: Any, items: tuple[Any, ...]) -> None:
    """An error unless all columns have one row for each event."""
    if any(len(column) != len(users) for column in items):
        raise InvalidParameter("users and items must have the same length: one row for each event")
