"""Whatever holds a histogram, as a row of pieces: columns, frames, and batches of either."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import IntArray, checked_counts
from dphist.releases.kinds import NUMPY, Kind, kind_of, origins

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
                kind: Kind = import_module(f"dphist.releases.{package}_kind").KIND
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
    present = import_module(f"dphist.releases.{form.package}_kind").names_of(frame)
    for name in (*names.items, names.count):
        if present.count(name) != 1:
            found = "more than one" if name in present else "no"
            raise InvalidParameter(f"the frame has {found} column {name!r}: name yours with item= and count=")


def _frame_piece(frame: Any, form: Form, names: Names, lattice: int) -> Piece:
    module = import_module(f"dphist.releases.{form.package}_kind")
    *items, counts = module.columns_of(frame, (*names.items, names.count))
    return _checked(form, tuple(items), checked_counts(form.kind.numbers(counts), lattice=lattice))


def _columns_piece(items: Any, counts: Any, lattice: int) -> Piece:
    kind, kind_of_counts = kind_of(items, "items"), kind_of(counts, "counts")
    if kind.size(items) != kind_of_counts.size(counts):
        raise InvalidParameter("items and counts must have the same length")
    package = type(kind).__module__.rpartition(".")[2].removesuffix("_kind")
    numbers = checked_counts(kind_of_counts.numbers(counts), lattice=lattice)
    return _checked(Form(kind, "columns", package), (items,), numbers)


def _checked(form: Form, items: tuple[Any, ...], counts: IntArray) -> Piece:
    if form.kind.repeats(items):
        raise InvalidParameter("items must differ, and one of them comes twice: add up the counts of equal items")
    return Piece(form, items, counts)
