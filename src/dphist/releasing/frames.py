"""Histograms that come in as columns, frames or batches of either, and releases that go out in the same form.

At the door every column becomes an array of Arrow, or of numpy where Arrow has no type for it, as for lists of any
objects. What goes out is built from the released values alone: a dictionary of categories, the width of a text
array, an index or a buffer shared with the input would disclose rows that were not released.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter, package
from dphist.sampling.mechanisms import IntArray, check_counts

Positions = NDArray[np.int64]
Package = Literal["list", "numpy", "pandas", "polars", "pyarrow"]
Shape = Literal["columns", "frame", "lazy", "reader", "relation"]

_SERIES: Final = {"Series", "Index", "Array", "ChunkedArray"}
_SHAPES: Final[dict[str, dict[str, Shape]]] = {
    "pandas": {"DataFrame": "frame"},
    "polars": {"DataFrame": "frame", "LazyFrame": "lazy"},
    "pyarrow": {"Table": "frame", "RecordBatch": "frame", "RecordBatchReader": "reader"},
}
# Kinds of numpy arrays that sort by themselves: whole numbers, truth values, text and times.
_SORTABLE: Final = "iubUSmM"


@dataclass(frozen=True)
class Form:
    """How a histogram came in, so that the release goes out the same way. `types` are those of pandas columns."""

    package: Package = "numpy"
    shape: Shape = "columns"
    types: tuple[Any, ...] = field(default=(), compare=False)


ARROW: Final = Form("pyarrow", "frame")


@dataclass(frozen=True)
class Piece:
    """Some rows: the item's columns, checked counts, and the sums of an engine in its steps."""

    form: Form
    items: tuple[Any, ...] = field(repr=False)
    counts: IntArray = field(repr=False)
    sums: tuple[IntArray, ...] = field(default=(), repr=False)
    size: int = field(default=0, repr=False)  # in bytes, where blocks are bounded by them


@dataclass(frozen=True)
class Names:
    """The columns of a frame: those of the item and that of the count."""

    items: tuple[str, ...]
    count: str


@dataclass(frozen=True)
class Source:
    """Pieces of one histogram; `again` if they can be read a second time."""

    pieces: Callable[[], Iterator[Piece]]
    again: bool


# ------------------------------------------------------------------------------------------------------------ in


def checked_names(item: str | Sequence[str], count: str) -> Names:
    """The names of the columns, each used once."""
    items = (item,) if isinstance(item, str) else tuple(item)
    every = (*items, count)
    if not items or not all(isinstance(name, str) for name in every) or len(set(every)) < len(every):
        raise InvalidParameter(f"item and count must be different names of columns, not {item!r} and {count!r}")
    return Names(items, count)


def origins(value: object) -> set[str]:
    """The packages that a value's classes come from, so that none has to be imported to ask."""
    return {base.__module__.partition(".")[0] for base in type(value).__mro__}


def frame_form(value: object) -> Form | None:
    """The form of a frame; None for anything else."""
    for name in origins(value) & _SHAPES.keys():
        for base in type(value).__mro__:
            if base.__name__ in _SHAPES[name]:
                return Form(name, _SHAPES[name][base.__name__])  # type: ignore[arg-type]
    if type(value).__name__ == "DuckDBPyRelation":
        return Form("pyarrow", "relation")
    return ARROW if hasattr(value, "__arrow_c_stream__") and not _is_series(value) else None


def _is_series(value: object) -> bool:
    return bool(_SERIES & {base.__name__ for base in type(value).__mro__})


def source_of(items: Any, counts: Any, names: Names, *, lattice: int) -> Source:
    """The pieces of a histogram in any form."""
    form = frame_form(items)
    if counts is not None:
        if form is not None:
            raise InvalidParameter("a frame holds its counts: name their column with count=, and give the plan=")
        return Source(lambda: iter([_columns_piece(items, counts, lattice)]), again=True)
    if form is not None:
        frame = items if origins(items) & _SHAPES.keys() else package("pyarrow").table(items)
        _check_names(frame, form, names)
        if form.shape == "reader":
            return Source(lambda: (_frame_piece(batch, form, names, lattice) for batch in frame), again=False)
        return Source(lambda: iter([_frame_piece(frame, form, names, lattice)]), again=True)
    if isinstance(items, (str, bytes)) or not (callable(items) or isinstance(items, Iterable)):
        raise InvalidParameter(
            f"a histogram must be a frame or batches of (items, counts), not {type(items).__name__}"
        )
    if callable(items):
        return Source(lambda: _batches(items(), names, lattice), again=True)
    return Source(lambda: _batches(items, names, lattice), again=iter(items) is not items)


def _batches(batches: Iterable[Any], names: Names, lattice: int) -> Iterator[Piece]:
    for batch in batches:
        form = frame_form(batch)
        if form is not None and form.shape != "reader":
            _check_names(batch, form, names)
            yield _frame_piece(batch, form, names, lattice)
        elif isinstance(batch, tuple) and len(batch) == 2:
            yield _columns_piece(batch[0], batch[1], lattice)
        else:
            raise InvalidParameter(f"a batch must be (items, counts) or a frame, not {type(batch).__name__}")


def _check_names(frame: Any, form: Form, names: Names) -> None:
    if form.package == "pandas":
        present = list(frame.columns)
    else:
        present = list(frame.schema.names if form.package == "pyarrow" else frame.collect_schema().names())
    for name in (*names.items, names.count):
        if present.count(name) != 1:
            found = "more than one" if name in present else "no"
            raise InvalidParameter(f"the frame has {found} column {name!r}: name yours with item= and count=")


def _frame_piece(frame: Any, form: Form, names: Names, lattice: int) -> Piece:
    if form.shape == "lazy":
        frame = frame.select([*names.items, names.count]).collect()
    items = [frame[name] for name in names.items]
    counts = numbers_of(_array(frame[names.count], "counts"))
    return _piece(form, items, check_counts(counts, lattice=lattice))


def _columns_piece(items: Any, counts: Any, lattice: int) -> Piece:
    column, numbers = _array(items, "items"), _array(counts, "counts")
    if len(column) != len(numbers):
        raise InvalidParameter("items and counts must have the same length")
    return _piece(Form(_package_of(items)), [items], check_counts(numbers_of(numbers), lattice=lattice))


def _piece(form: Form, items: list[Any], counts: IntArray) -> Piece:
    if form.package == "pandas":
        form = Form(form.package, form.shape, tuple(column.dtype for column in items))
    arrays = tuple(_array(column, "items") for column in items)
    if has_repeats(arrays):
        raise InvalidParameter("items must differ, and one of them comes twice: add up the counts of equal items")
    return Piece(form, arrays, counts)


def _package_of(values: object) -> Package:
    if isinstance(values, (list, tuple)):
        return "list"
    if isinstance(values, np.ndarray):
        return "numpy"
    if "pandas" in origins(values):
        return "pandas"
    return "polars" if "polars" in origins(values) else "pyarrow"


def _array(values: Any, name: str) -> Any:
    """A column as an array of Arrow, or of numpy where that is what it is or where Arrow has no type for it."""
    if isinstance(values, (list, tuple)):
        return objects(values)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise InvalidParameter(f"items and counts must be one-dimensional, not of shape {values.shape}")
        return values
    if not _is_series(values) or not (origins(values) & _SHAPES.keys() or hasattr(values, "__arrow_c_stream__")):
        raise InvalidParameter(
            f"{name} must be a list, a numpy array, a Series of pandas or polars or an Arrow array, "
            f"not {type(values).__name__}"
        )
    if _package_of(values) == "pandas" and isinstance(values.dtype, np.dtype):
        return values.to_numpy()
    pa = package("pyarrow")
    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    try:
        array = values.to_arrow() if _package_of(values) == "polars" else pa.array(values)
    except (pa.ArrowException, TypeError, ValueError):
        return objects(list(values))
    return objects(list(values)) if isinstance(array.type, pa.BaseExtensionType) else array


def objects(values: Sequence[Any]) -> NDArray[Any]:
    """A one-dimensional array of the very objects, whatever they are."""
    return np.fromiter(values, dtype=object, count=len(values))


def numbers_of(column: Any) -> NDArray[Any]:
    """A column of counts as numpy has it, without nulls. No error repeats a count."""
    if isinstance(column, np.ma.MaskedArray):
        raise InvalidParameter("counts must not be masked: a masked count is a null")
    if isinstance(column, np.ndarray):
        return _whole_numbers(column) if column.dtype.kind == "O" else column
    if column.null_count > 0:
        raise InvalidParameter("counts must not be null")
    types = package("pyarrow").types
    if types.is_integer(column.type) or types.is_floating(column.type):
        return _as_numpy(_one_chunk(column))
    return _whole_numbers(objects(column.to_pylist()))


def _whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
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


# ---------------------------------------------------------------------------------------------------------- rows


def take_rows(column: Any, where: Positions) -> Any:
    """These rows as a new array that shares nothing with the old one, texts no wider than the longest of them."""
    if isinstance(column, np.ndarray):
        taken: Any = np.asarray(column)[where]
        return np.array(taken.tolist(), dtype=taken.dtype.kind) if taken.dtype.kind in "US" else taken
    pa = package("pyarrow")
    taken = _one_chunk(column.take(arrow_numbers(where)))
    if pa.types.is_dictionary(taken.type):
        taken = taken.dictionary_decode()
    if "dictionary" in str(taken.type):
        raise InvalidParameter(
            "items must not have dictionaries or categories inside lists or structs: decode them"
        )
    # Views share the buffers of the whole column; through Python they do not.
    return pa.array(taken.to_pylist(), taken.type) if "view" in str(taken.type) else taken


def join_rows(columns: Sequence[Any]) -> Any:
    """One array from several taken ones, in a type that holds them all."""
    plain = [isinstance(column, np.ndarray) for column in columns]
    if all(plain):
        return np.concatenate(columns)
    if any(plain):
        return objects([value for column in columns for value in _keys(column).tolist()])
    pa = package("pyarrow")
    try:
        tables = [pa.table({"item": column}) for column in columns]
        return _one_chunk(pa.concat_tables(tables, promote_options="permissive").column("item"))
    except pa.ArrowException:
        raise InvalidParameter("the items of all batches must be of one type") from None


def has_repeats(columns: Sequence[Any]) -> bool:
    """Whether two rows are equal in all columns, exactly; found by Arrow where it can compare the values."""
    if any(isinstance(column, np.ndarray) for column in columns):
        return _keys_repeat([_keys(column) for column in columns])
    pa = package("pyarrow")
    types = [column.type for column in columns]
    if any(pa.types.is_nested(kind) or "view" in str(kind) for kind in types):
        return _keys_repeat([_keys(column) for column in columns])
    if len(columns) == 1 and not pa.types.is_dictionary(types[0]):
        # Many times the speed of grouping.
        different = package("pyarrow.compute").count_distinct(columns[0], mode="all").as_py()
        return bool(different < len(columns[0]))
    names = [str(place) for place in range(len(columns))]
    table = pa.table(dict(zip(names, columns, strict=True))).unify_dictionaries()
    return bool(table.group_by(names).aggregate([]).num_rows < table.num_rows)


def release_order(counts: NDArray[np.float64], columns: Sequence[Any]) -> Positions:
    """Positions by count, the largest first, then by the item's columns: it depends on nothing but the rows.

    Sorted by Arrow where it can: millions of texts are slow as objects of Python.
    """
    if any(isinstance(column, np.ndarray) or not _is_sortable(column.type) for column in columns):
        ranks = [_ranks(_keys(column)) for column in columns]
        return np.lexsort((*reversed(ranks), -counts)).astype(np.int64)
    names = [str(place) for place in range(len(columns))]
    table = package("pyarrow").table({"count": arrow_numbers(counts), **dict(zip(names, columns, strict=True))})
    keys = [("count", "descending"), *((name, "ascending") for name in names)]
    return _as_numpy(package("pyarrow.compute").sort_indices(table, sort_keys=keys)).astype(np.int64)


def _is_sortable(kind: Any) -> bool:
    """Types with a total order in Arrow. A NaN is not among them: it and the missing values change places."""
    types = package("pyarrow").types
    checks = (
        types.is_integer, types.is_string, types.is_large_string, types.is_date, types.is_timestamp,
        types.is_decimal, types.is_binary, types.is_large_binary,
    )  # fmt: skip
    return any(check(kind) for check in checks)


def _keys(column: Any) -> NDArray[Any]:
    """The values for sorting and comparing."""
    if isinstance(column, np.ndarray):
        return np.asarray(column)
    if package("pyarrow").types.is_integer(column.type) and column.null_count == 0:
        return _as_numpy(_one_chunk(column))
    return objects(column.to_pylist())


def _ranks(key: NDArray[Any]) -> NDArray[Any]:
    """Something that numpy sorts as the key should be sorted."""
    if key.dtype.kind in _SORTABLE or (key.dtype.kind == "f" and not np.isnan(key).any()):
        return key
    # A NaN has no place among other floats: it counts as missing.
    values = [None if isinstance(v, float) and v != v else v for v in key.tolist()]
    try:
        if len({type(v) for v in values}) > 1:
            return _places([(type(v).__name__, v) for v in values])
        return _places(values)
    except TypeError:
        # What cannot be compared or hashed has at least a text.
        return _places([(type(v).__name__, repr(v)) for v in values])


def _places(values: list[Any]) -> NDArray[np.int64]:
    """The place of each value among the sorted different ones."""
    place = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.fromiter((place[value] for value in values), dtype=np.int64, count=len(values))


def _keys_repeat(keys: Sequence[NDArray[Any]]) -> bool:
    if len(keys) == 1 and keys[0].dtype.kind in _SORTABLE:
        ordered = np.sort(keys[0])
        return bool((ordered[1:] == ordered[:-1]).any())
    rows = zip(*(key.tolist() for key in keys), strict=True) if len(keys) > 1 else iter(keys[0].tolist())
    return len({_hashable(row) for row in rows}) < keys[0].size


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and value != value:
        return "nan", None  # one item, though it differs from itself
    try:
        hash(value)
    except TypeError:
        return type(value).__name__, repr(value)
    return value  # type: ignore[no-any-return]


def _as_numpy(array: Any) -> NDArray[Any]:
    """Numbers without nulls as numpy has them. Arrow's own way would import pandas, where it is installed."""
    if len(array) == 0:
        return np.empty(0, dtype=np.dtype(array.type.to_pandas_dtype()))
    return np.from_dlpack(array)


def arrow_numbers(values: NDArray[Any]) -> Any:
    """Numbers of numpy as Arrow has them, likewise without pandas."""
    pa = package("pyarrow")
    if values.dtype.kind not in "iuf" or values.dtype.itemsize < 4 or not values.dtype.isnative:
        return pa.array(values)
    plain = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(plain.dtype), plain.size, [None, pa.py_buffer(plain)])


def _one_chunk(column: Any) -> Any:
    pa = package("pyarrow")
    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return combined if not isinstance(combined, pa.ChunkedArray) else pa.concat_arrays(combined.chunks)


def empty_batch(schema: Any) -> Any:
    """No rows, but all types."""
    pa = package("pyarrow")
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


# ----------------------------------------------------------------------------------------------------------- out


def native_column(column: Any, name: str, kind: Package, dtype: Any = None) -> Any:
    """An array as a column of this package; `dtype` is the pandas type that it came in."""
    plain = isinstance(column, np.ndarray)
    values = column.tolist() if plain and column.dtype.kind == "O" else column
    if kind == "list":
        return column.tolist() if plain else column.to_pylist()
    if kind == "numpy":
        return column if plain else _keys(column)
    if kind == "polars":
        return package("polars").Series(name, values)
    if kind == "pyarrow":
        if not plain:
            return column
        return package("pyarrow").array(values) if values is not column else arrow_numbers(column)
    pd = package("pandas")
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = None  # categories disclose what was not released
    if plain:
        return pd.Series(values, dtype=dtype, name=name)
    if hasattr(dtype, "__from_arrow__"):
        return pd.Series(dtype.__from_arrow__(column), name=name)
    return column.to_pandas(integer_object_nulls=True).rename(name)


def native_frame(columns: dict[str, Any], kind: Package, note: dict[str, str]) -> Any:
    """A frame of columns of this package; the note is in the attrs of pandas or the schema of Arrow."""
    if kind == "pandas":
        frame = package("pandas").DataFrame(columns)
        frame.attrs.update(note)
        return frame
    if kind == "polars":
        return package("polars").DataFrame(columns)
    return package("pyarrow").table(columns).replace_schema_metadata(note)
