"""Whatever holds a histogram, as a row of pieces: columns, frames, and batches of either."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.sampling.mechanisms import IntArray, check_counts

# An order of the released rows that depends on nothing but the rows, and whether items repeat.

# Kinds of numpy arrays that sort by themselves: whole numbers, truth values, text and times.
_SORTABLE = "iubUSmM"


def release_order(counts: NDArray[np.float64], keys: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Positions by noisy count, the largest first, then by the item's columns."""
    ranks = [_ranks(key) for key in keys]
    return np.lexsort((*reversed(ranks), -counts)).astype(np.int64)


def _ranks(key: NDArray[Any]) -> NDArray[Any]:
    """Something that numpy sorts as the key should be sorted."""
    if key.dtype.kind in _SORTABLE or (key.dtype.kind == "f" and not np.isnan(key).any()):
        return key
    # A float that is no number has no place among the others: it counts as missing.
    values = [None if isinstance(v, float) and v != v else v for v in key.tolist()]
    try:
        if len({type(v) for v in values}) > 1:
            return _places([(type(v).__name__, v) for v in values])
        return _places(values)
    except TypeError:
        # What cannot be compared or hashed has at least a text.
        return _places([(type(v).__name__, repr(v)) for v in values])


def _places(values: list[Any]) -> NDArray[np.int64]:
    """Of each value, its place among the sorted different ones."""
    place = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.fromiter((place[value] for value in values), dtype=np.int64, count=len(values))


def has_duplicates(keys: Sequence[NDArray[Any]]) -> bool:
    """Whether two rows have the same item, exactly."""
    size = keys[0].size
    if len(keys) == 1 and keys[0].dtype.kind in _SORTABLE:
        return _repeats(keys[0])
    rows = zip(*(key.tolist() for key in keys), strict=True) if len(keys) > 1 else iter(keys[0].tolist())
    return len({_hashable(row) for row in rows}) < size


def _repeats(key: NDArray[Any]) -> bool:
    if key.size < 2 or bool((key[1:] > key[:-1]).all()):
        return False
    ordered = np.sort(key)
    return bool((ordered[1:] == ordered[:-1]).any())


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and value != value:
        return "nan", None  # one item, though it differs from itself
    try:
        hash(value)
    except TypeError:
        return type(value).__name__, repr(value)
    return value  # type: ignore[no-any-return]


# The kinds of columns that come in and go out: lists, numpy, pandas, polars, Arrow.
#
# What goes out is built from the released values alone. A dictionary of categories, the width of a text array, an
# index, or a buffer shared with the input would tell of rows that were not released, so none of them is kept.

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
        module = import_module(f"dphist.releasing.{found.pop()}_kind")
        kind: Kind = module.KIND
        return kind
    raise InvalidParameter(
        f"{name} must be a list, a numpy array, a Series of pandas or polars or an Arrow array, "
        f"not {type(column).__name__}"
    )


Shape = Literal["columns", "frame", "lazy", "reader"]


@dataclass(frozen=True)
class Form:
    """How a histogram came in, so that the release goes out the same way."""

    kind: Kind = NUMPY
    shape: Shape = "columns"
    package: str = "numpy"


@dataclass(frozen=True)
class Piece:
    """Some rows: the item's columns as they came, checked counts, and the sums of an engine in its steps."""

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


def checked_names(item: str | Sequence[str], count: str) -> Names:
    """The names of the columns, each used once."""
    items = (item,) if isinstance(item, str) else tuple(item)
    every = (*items, count)
    if not items or not all(isinstance(name, str) for name in every) or len(set(every)) < len(every):
        raise InvalidParameter(f"item and count must be different names of columns, not {item!r} and {count!r}")
    return Names(items, count)


def frame_form(value: object) -> Form | None:
    """The form of a frame; None for anything else."""
    shapes: dict[str, dict[str, Shape]] = {
        "pandas": {"DataFrame": "frame"},
        "polars": {"DataFrame": "frame", "LazyFrame": "lazy"},
        "pyarrow": {"Table": "frame", "RecordBatch": "frame", "RecordBatchReader": "reader"},
    }
    for package in origins(value) & shapes.keys():
        for base in type(value).__mro__:
            if base.__name__ in shapes[package]:
                kind: Kind = import_module(f"dphist.releasing.{package}_kind").KIND
                return Form(kind, shapes[package][base.__name__], package)
    return None


def source_of(items: Any, counts: Any, names: Names, *, lattice: int) -> Source:
    """The pieces of whatever was given."""
    if counts is not None:
        if frame_form(items) is not None:
            raise InvalidParameter("a frame holds its counts: name their column with count=, and give the plan=")
        return Source(lambda: iter([_columns_piece(items, counts, lattice)]), again=True)
    form = frame_form(items)
    if form is not None and form.shape == "reader":
        _check_names(items, form, names)
        return Source(lambda: (_frame_piece(batch, form, names, lattice) for batch in items), again=False)
    if form is not None:
        _check_names(items, form, names)
        return Source(lambda: iter([_frame_piece(items, form, names, lattice)]), again=True)
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
    present = import_module(f"dphist.releasing.{form.package}_kind").names_of(frame)
    for name in (*names.items, names.count):
        if present.count(name) != 1:
            found = "more than one" if name in present else "no"
            raise InvalidParameter(f"the frame has {found} column {name!r}: name yours with item= and count=")


def _frame_piece(frame: Any, form: Form, names: Names, lattice: int) -> Piece:
    module = import_module(f"dphist.releasing.{form.package}_kind")
    *items, counts = module.columns_of(frame, (*names.items, names.count))
    return _checked(form, tuple(items), check_counts(form.kind.numbers(counts), lattice=lattice))


def _columns_piece(items: Any, counts: Any, lattice: int) -> Piece:
    kind, kind_of_counts = kind_of(items, "items"), kind_of(counts, "counts")
    if kind.size(items) != kind_of_counts.size(counts):
        raise InvalidParameter("items and counts must have the same length")
    package = type(kind).__module__.rpartition(".")[2].removesuffix("_kind")
    numbers = check_counts(kind_of_counts.numbers(counts), lattice=lattice)
    return _checked(Form(kind, "columns", package), (items,), numbers)


def _checked(form: Form, items: tuple[Any, ...], counts: IntArray) -> Piece:
    if form.kind.repeats(items):
        raise InvalidParameter("items must differ, and one of them comes twice: add up the counts of equal items")
    return Piece(form, items, counts)
