"""Arrays and tables of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter, package
from dphist.releasing.frames import Positions, SortedByKeys, has_duplicates, objects, plain_numbers

pa: Any = package("pyarrow")


class ArrowKind(SortedByKeys):
    """Arrays and chunked arrays."""

    def size(self, column: Any) -> int:
        """Number of rows."""
        return len(column)

    def numbers(self, column: Any) -> NDArray[Any]:
        """The values, without nulls."""
        if column.null_count > 0:
            raise InvalidParameter("counts must not be null")
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            return _numpy(_one(column))
        return plain_numbers(objects(column.to_pylist()))

    def take(self, column: Any, where: Positions) -> Any:
        """An array of its own; dictionaries are decoded, for they know what was not released."""
        taken = _one(column.take(_arrow(where)))
        if pa.types.is_dictionary(taken.type):
            taken = taken.dictionary_decode()
        if "dictionary" in str(taken.type):
            raise InvalidParameter("items must not have dictionaries inside of lists or structs: decode them")
        # Views share the buffers of the whole column; through Python they do not.
        return pa.array(taken.to_pylist(), taken.type) if "view" in str(taken.type) else taken

    def concat(self, columns: Sequence[Any]) -> Any:
        """End to end."""
        return pa.concat_arrays(columns)

    def keys(self, column: Any) -> NDArray[Any]:
        """Numbers as they are, everything else as objects."""
        if pa.types.is_integer(column.type) and column.null_count == 0:
            return _numpy(_one(column))
        return objects(column.to_pylist())

    def repeats(self, columns: Sequence[Any]) -> bool:
        """Exactly, and by Arrow itself where it can compare the values."""
        types = [column.type for column in columns]
        if any(pa.types.is_nested(kind) or "view" in str(kind) for kind in types):
            return has_duplicates([self.keys(column) for column in columns])
        if len(columns) == 1 and not pa.types.is_dictionary(types[0]):
            # Many times the speed of grouping.
            different = package("pyarrow.compute").count_distinct(columns[0], mode="all").as_py()
            return bool(different < len(columns[0]))
        names = [str(i) for i in range(len(columns))]
        table = pa.table(dict(zip(names, columns, strict=True))).unify_dictionaries()
        return bool(table.group_by(names).aggregate([]).num_rows < table.num_rows)

    def order(self, counts: NDArray[np.float64], columns: Sequence[Any]) -> Positions:
        """By Arrow itself where it can sort the values: millions of texts are slow as objects of Python."""
        if any(not _sortable(column.type) for column in columns):
            return super().order(counts, columns)
        names = [str(place) for place in range(len(columns))]
        table = pa.table({"count": _arrow(counts), **dict(zip(names, columns, strict=True))})
        keys = [("count", "descending"), *((name, "ascending") for name in names)]
        return _numpy(package("pyarrow.compute").sort_indices(table, sort_keys=keys)).astype(np.int64)

    def column(self, values: Any, name: str) -> Any:  # noqa: ARG002
        """An array; the name is lost."""
        return _arrow(values) if isinstance(values, np.ndarray) else pa.array(values)


KIND = ArrowKind()


def _numpy(array: Any) -> NDArray[Any]:
    """Numbers without nulls as numpy has them. Arrow's own way would import pandas, where it is installed."""
    if len(array) == 0:
        return np.empty(0, dtype=np.dtype(array.type.to_pandas_dtype()))
    return np.from_dlpack(array)


def _arrow(values: NDArray[Any]) -> Any:
    """Numbers of numpy as Arrow has them, likewise without pandas."""
    if values.dtype.kind not in "iuf" or values.dtype.itemsize < 4 or not values.dtype.isnative:
        return pa.array(values)
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), plain.size, [None, pa.py_buffer(plain)])


def _one(column: Any) -> Any:
    """One array from a chunked one."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)


def _sortable(kind: Any) -> bool:
    """Types with a total order in Arrow. A NaN is not among them: it and the missing values change places."""
    types = pa.types
    checks = (
        types.is_integer, types.is_string, types.is_large_string, types.is_date, types.is_timestamp,
        types.is_decimal, types.is_binary, types.is_large_binary,
    )  # fmt: skip
    return any(check(kind) for check in checks)


def empty_batch(schema: Any) -> Any:
    """No rows, but all types."""
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def names_of(frame: Any) -> list[str]:
    """The names of its columns: of a table, a batch or a reader of batches."""
    return list(frame.schema.names)


def columns_of(frame: Any, names: Sequence[str]) -> list[Any]:
    """The columns of these names."""
    return [frame.column(frame.schema.get_field_index(name)) for name in names]


def frame_of(columns: dict[str, Any], note: dict[str, str]) -> Any:
    """A Table, with the note in the metadata of its schema."""
    return pa.table(columns).replace_schema_metadata(note)
