"""Columns and frames of pandas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter, package
from dphist.releasing.frames import NUMPY, Positions, SortedByKeys, plain_numbers

pd: Any = package("pandas")


class PandasKind(SortedByKeys):
    """Series (and indexes, which become Series)."""

    def size(self, column: Any) -> int:
        """Number of rows."""
        return len(column)

    def numbers(self, column: Any) -> NDArray[Any]:
        """The values; a NaN of numpy's own floats is told from a null later."""
        if isinstance(column.dtype, np.dtype):
            return NUMPY.numbers(column.to_numpy())
        if column.isna().any():
            raise InvalidParameter("counts must not be null")
        values = column.to_numpy()
        return plain_numbers(values) if values.dtype.kind == "O" else np.asarray(values)

    def take(self, column: Any, where: Positions) -> Any:
        """A Series with a new index, and categories replaced by their values: both know what was not released."""
        taken = pd.Series(column.array.take(where))
        if isinstance(taken.dtype, pd.CategoricalDtype):
            return taken.astype(taken.cat.categories.dtype)
        if "dictionary" in str(taken.dtype):
            raise InvalidParameter("items of pandas must not be dictionary-encoded by Arrow: decode them first")
        return taken

    def concat(self, columns: Sequence[Any]) -> Any:
        """End to end, with an index from zero."""
        return pd.concat(columns, ignore_index=True)

    def keys(self, column: Any) -> NDArray[Any]:
        """The values, missing ones as None."""
        values = column.to_numpy()
        if values.dtype.kind != "O":
            return np.asarray(values)
        keys = np.array(values, dtype=object)
        keys[column.isna().to_numpy(dtype=bool)] = None
        return keys

    def repeats(self, columns: Sequence[Any]) -> bool:
        """Exactly."""
        frame = pd.DataFrame(dict(enumerate(pd.Series(column).reset_index(drop=True) for column in columns)))
        return bool(frame.duplicated().any())

    def column(self, values: Any, name: str) -> Any:
        """A Series."""
        return pd.Series(values, name=name)


KIND = PandasKind()


def names_of(frame: Any) -> list[str]:
    """The names of its columns."""
    return list(frame.columns)


def columns_of(frame: Any, names: Sequence[str]) -> list[Any]:
    """The columns of these names."""
    return [frame[name] for name in names]


def frame_of(columns: dict[str, Any], note: dict[str, str]) -> Any:
    """A DataFrame, with the note in its attrs."""
    frame = pd.DataFrame(columns)
    frame.attrs.update(note)
    return frame
