"""Columns and frames of polars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter, package
from dphist.releasing.frames import Positions, SortedByKeys, objects, plain_numbers

pl: Any = package("polars")


class PolarsKind(SortedByKeys):
    """Series of polars."""

    def size(self, column: Any) -> int:
        """Number of rows."""
        return len(column)

    def numbers(self, column: Any) -> NDArray[Any]:
        """The values, without nulls."""
        if column.null_count() > 0:
            raise InvalidParameter("counts must not be null")
        if column.dtype.is_decimal():
            return plain_numbers(objects(column.to_list()))
        values = column.to_numpy()
        return plain_numbers(values) if values.dtype.kind == "O" else np.asarray(values)

    def take(self, column: Any, where: Positions) -> Any:
        """A Series of its own; categories become text, for their list knows what was not released."""
        taken = column.gather(where)
        if taken.dtype in (pl.Categorical, pl.Enum):
            taken = taken.cast(pl.String)
        if "Categorical" in str(taken.dtype) or "Enum" in str(taken.dtype):
            raise InvalidParameter("items must not have categories inside of lists or structs: cast them to text")
        if taken.dtype.is_numeric() or taken.dtype.is_temporal():
            return taken
        # Gathered texts share the buffers of the whole column; through Python they do not.
        return pl.Series(taken.name, taken.to_list(), dtype=taken.dtype)

    def concat(self, columns: Sequence[Any]) -> Any:
        """End to end."""
        return pl.concat(columns, rechunk=True)

    def keys(self, column: Any) -> NDArray[Any]:
        """Numbers as they are, everything else as objects."""
        if column.dtype.is_integer() and column.null_count() == 0:
            return np.asarray(column.to_numpy())
        return objects(column.to_list())

    def repeats(self, columns: Sequence[Any]) -> bool:
        """Exactly."""
        frame = pl.DataFrame({str(i): column for i, column in enumerate(columns)})
        return bool(frame.n_unique() < frame.height)

    def column(self, values: Any, name: str) -> Any:
        """A Series."""
        return pl.Series(name, values)


KIND = PolarsKind()


def names_of(frame: Any) -> list[str]:
    """The names of its columns, without computing any."""
    return list(frame.collect_schema().names())


def columns_of(frame: Any, names: Sequence[str]) -> list[Any]:
    """The columns of these names; of a LazyFrame nothing else is computed."""
    chosen = frame.select(names)
    return list((chosen.collect() if isinstance(chosen, pl.LazyFrame) else chosen).get_columns())


def frame_of(columns: dict[str, Any], note: dict[str, str]) -> Any:  # noqa: ARG001
    """A DataFrame; polars has no place for a note."""
    return pl.DataFrame(columns)
