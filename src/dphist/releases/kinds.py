"""The kinds of columns that come in and go out: lists, numpy, pandas, polars, Arrow.

What goes out is built from the released values alone. A dictionary of categories, the width of a text array, an
index, or a buffer shared with the input would tell of rows that were not released, so none of them is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.releases.order import has_duplicates, release_order

Positions = NDArray[np.int64]


class Kind(Protocol):
    """What a release needs of one kind of column."""

    def size(self, column: Any) -> int:
        """Number of rows."""

    def numbers(self, column: Any) -> NDArray[Any]:
        """A column of counts as numpy sees it, without nulls."""

    def take(self, column: Any, where: Positions) -> Any:
        """These rows as a new column that shares nothing with the old one."""

    def concat(self, columns: Sequence[Any]) -> Any:
        """One column from several taken ones."""

    def keys(self, column: Any) -> NDArray[Any]:
        """The values for sorting and comparing."""

    def repeats(self, columns: Sequence[Any]) -> bool:
        """Whether two rows are equal in all columns."""

    def order(self, counts: NDArray[np.float64], columns: Sequence[Any]) -> Positions:
        """Positions by count, the largest first, then by the item's columns."""

    def column(self, values: Any, name: str) -> Any:
        """A column of this kind from an array of numbers or a list of values."""


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """A one-dimensional array of the very objects, whatever they are."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def plain_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Counts in an array of objects as whole numbers; no error repeats a count."""
    if any(value is None for value in values):
        raise InvalidParameter("counts must not be null")
    real = (int, float, Decimal, Fraction, np.integer, np.floating)
    if any(isinstance(value, (bool, np.bool_)) or not isinstance(value, real) for value in values):
        raise InvalidParameter("counts must be numbers, and one of them is not")
    if any(value != value for value in values):
        raise InvalidParameter("counts must not be NaN")
    if any(not 0 <= value <= 2**53 for value in values):
        raise InvalidParameter("counts must be between 0 and 2^53, and one of them is not")
    if any(value != int(value) for value in values):
        raise InvalidParameter("counts must be whole numbers")
    return np.array([int(value) for value in values], dtype=np.int64)


class SortedByKeys:
    """The order of the release, from the keys of a column."""

    def keys(self, column: Any) -> NDArray[Any]:
        """The values for sorting and comparing."""
        raise NotImplementedError

    def order(self, counts: NDArray[np.float64], columns: Sequence[Any]) -> Positions:
        """Positions by count, the largest first, then by the item's columns."""
        return release_order(counts, [self.keys(column) for column in columns])


class NumpyKind(SortedByKeys):
    """Arrays of numpy."""

    def size(self, column: Any) -> int:
        """Number of rows."""
        if column.ndim != 1:
            raise InvalidParameter(f"items and counts must be one-dimensional, not of shape {column.shape}")
        return int(column.size)

    def numbers(self, column: Any) -> NDArray[Any]:
        """The array, with objects as numbers."""
        if isinstance(column, np.ma.MaskedArray):
            raise InvalidParameter("counts must not be masked: a masked count is a null")
        return plain_numbers(column) if column.dtype.kind == "O" else np.asarray(column)

    def take(self, column: Any, where: Positions) -> Any:
        """A copy, with texts no wider than the longest of them."""
        taken = np.asarray(column)[where]
        if taken.dtype.kind in "US":
            return np.array(taken.tolist(), dtype=taken.dtype.kind)
        return taken

    def concat(self, columns: Sequence[Any]) -> Any:
        """End to end."""
        return np.concatenate(columns)

    def keys(self, column: Any) -> NDArray[Any]:
        """The array."""
        return np.asarray(column)

    def repeats(self, columns: Sequence[Any]) -> bool:
        """Exactly."""
        return has_duplicates([self.keys(column) for column in columns])

    def column(self, values: Any, name: str) -> Any:  # noqa: ARG002
        """An array; the name is lost."""
        return values if isinstance(values, np.ndarray) else objects(values)


class ListKind(NumpyKind):
    """Lists and tuples, whose values stay as they are."""

    def size(self, column: Any) -> int:
        """Number of rows."""
        return len(column)

    def numbers(self, column: Any) -> NDArray[Any]:
        """The numbers in it."""
        return plain_numbers(objects(column))

    def take(self, column: Any, where: Positions) -> Any:
        """A list of these values."""
        return [column[i] for i in where.tolist()]

    def concat(self, columns: Sequence[Any]) -> Any:
        """End to end."""
        return [value for column in columns for value in column]

    def keys(self, column: Any) -> NDArray[Any]:
        """The very objects."""
        return objects(column)

    def column(self, values: Any, name: str) -> Any:  # noqa: ARG002
        """A list; the name is lost."""
        return values.tolist() if isinstance(values, np.ndarray) else list(values)


LISTS, NUMPY = ListKind(), NumpyKind()


def origins(value: object) -> set[str]:
    """The packages that a value's classes come from, so that none has to be imported to ask."""
    return {base.__module__.partition(".")[0] for base in type(value).__mro__}


def kind_of(column: object, name: str) -> Kind:
    """The kind of a column, by the package of its class."""
    if isinstance(column, np.ndarray):
        return NUMPY
    if isinstance(column, (list, tuple)):
        return LISTS
    found = origins(column) & {"pandas", "polars", "pyarrow"}
    columns = {"Series", "Index", "Array", "ChunkedArray"}
    if found and columns & {base.__name__ for base in type(column).__mro__}:
        # By name, for the modules import the packages they are for.
        module = import_module(f"dphist.releases.{found.pop()}_kind")
        kind: Kind = module.KIND
        return kind
    raise InvalidParameter(
        f"{name} must be a list, a numpy array, a Series of pandas or polars or an Arrow array, "
        f"not {type(column).__name__}"
    )
