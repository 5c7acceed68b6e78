"""The input of a count (events, values to sum, limits) and the interface of a counting engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor, isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, Self

from dphist.certificate.request import Column
from dphist.errors import InvalidParameter

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from dphist.aliases import ArrowColumn

# A user or an item of more bytes is treated as missing, so that hash tables, batches and outputs stay bounded.
LONGEST_VALUE: Final = 1 << 13


def is_frame(source: object) -> bool:
    """True for an object in memory or a Spark DataFrame, False for paths and database addresses."""
    return not isinstance(source, (str, os.PathLike, tuple, list))


def origins(value: object) -> set[str]:
    """The packages that define a value's classes: an `isinstance` would have to import them."""
    return {base.__module__.partition(".")[0] for base in type(value).__mro__}


# Classes with `__arrow_c_stream__` that can be read again, or are not frames.
_NOT_STREAMS: Final = {
    "DataFrame", "LazyFrame", "Table", "RecordBatch", "DuckDBPyRelation", "Series", "Index", "ChunkedArray",
}  # fmt: skip
_FRAMES: Final = {"pandas", "polars", "pyarrow", "duckdb", "_duckdb", "pyspark"}


def is_stream(source: object) -> bool:
    """Whether an object exports an Arrow stream, and is not known to be readable more than once."""
    known = {base.__name__ for base in type(source).__mro__ if base.__module__.partition(".")[0] in _FRAMES}
    return hasattr(type(source), "__arrow_c_stream__") and not known & _NOT_STREAMS


class Secret:
    """Shows nothing but its name: tracebacks, logs and notebooks print the repr of what they hold."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(secret)"


@dataclass(frozen=True)
class Events:
    """User events: the source and what to read from it.

    `source` is a path, glob, folder, database address, tuple of paths, or frame. `table` or `query` selects from a
    database, `where` is an SQL condition, and `file_format` is for names without a known ending. `as_text` reads
    every column as text, cell by cell, whatever its type. Rows without a user are dropped; so are rows without an
    item unless `null_items` is set. Values longer than `LONGEST_VALUE` are missing. `encoding` and `delimiter` are
    those of CSV files, and `decimal` is the decimal sign of numbers in text.

    `totals` are names of item columns. For each of them, every row is there once more without its value, marked as
    a total in one more column of truth values after those of the items. In a list of items, whose columns include
    the mark, `totals` say which of them may be empty.
    """

    # Hidden: an address may contain a password, and a frame contains the data.
    source: object = field(repr=False)
    user: str
    items: tuple[Column, ...]
    table: str | None = None
    query: str | None = None
    where: str | None = None
    file_format: str | None = None
    null_items: bool = False
    as_text: bool = False
    totals: tuple[str, ...] = ()
    encoding: str | None = None
    delimiter: str | None = None
    decimal: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not self.user:
            raise InvalidParameter(f"user must be a column name, not {self.user!r}")
        if not self.items:
            raise InvalidParameter("item must name at least one column")
        names = [column.name for column in self.items]
        if len(set(names)) < len(names):
            raise InvalidParameter(f"the item columns must have different names, not {names!r}")
        if self.table is not None and self.query is not None:
            raise InvalidParameter("give a table or a query, not both")

    @property
    def totalled(self) -> list[int]:
        """The places of the columns with totals."""
        return [place for place, column in enumerate(self.items) if column.name in self.totals]

    @property
    def can_be_null(self) -> bool:
        """Whether a column of an item can be NULL: in a total, or in an item with a missing value."""
        return self.null_items or bool(self.totals)


# A user's sum leaves an engine as a number of steps above the lower bound; half the range is at most this many.
HALF_STEPS: Final = 2**20
# Rows are added in finer integer steps, so their order does not matter.
FINE_BITS: Final = 10
FINE_STEPS: Final = HALF_STEPS << FINE_BITS
# A row is clamped to this many fine steps in either direction.
FINE_LIMIT: Final = 2**50


@dataclass(frozen=True)
class Value:
    """A column of numbers to sum; each user's sum for an item is clamped to [low, high].

    With h = (high - low) / 2, `scale` = 2^30 / h as a double and `lowest` = floor(low 2^30 / h + 1/2):
        f = floor(x scale + 1/2), within 2^50 on either side, for the number x of a row;
        F = the sum of f over the user's rows of the item, an integer;
        y = (min(max(F, lowest), lowest + 2^31) - lowest + 2^(b-1)) >> b, from 0 to 2 `half_steps` = 2^(31-b).
    A row whose value is missing, NaN or non-numeric text adds nothing (f = 0).
    Guarantee: y depends only on that user's rows of that item, not on their order or on the engine.

    Values with the same number `vector`, next to each other, are the columns of a vector around 0: a user's sums F
    are clipped together to the Euclidean norm `high`, and their steps y are signed. In doubles, with
    R = 2^30 - 2^-10 and n the root of the sum of F^2:
        g = F R/n 2^-b if n > R, else F 2^-b, for F within 2^50 on either side;
        y = floor(g + 1/2) for all columns if then the sum of y^2 is at most half_steps^2, else g towards 0.
    Guarantee: the sum of y^2 over the columns is at most half_steps^2 (R leaves room for rounding).
    """

    column: str
    low: Fraction
    high: Fraction
    half_steps: int = HALF_STEPS
    vector: int | None = None

    def __post_init__(self) -> None:
        # Some engines turn a scale that is not a normal double into zero or infinity.
        if not sys.float_info.min <= FINE_STEPS / self.half <= sys.float_info.max:
            raise InvalidParameter(
                f"the bounds of the value {self.column!r} are too close together or too far apart"
            )
        if self.lowest < -FINE_LIMIT or self.lowest + 2 * FINE_STEPS > FINE_LIMIT:
            raise InvalidParameter(
                f"the bounds of the value {self.column!r} are too close together for numbers of their size"
            )

    @property
    def half(self) -> Fraction:
        return (self.high - self.low) / 2

    @property
    def step(self) -> Fraction:
        """The value of one step: n users with Y steps in total have the sum n low + Y step."""
        return self.half / self.half_steps

    @property
    def scale(self) -> float:
        """Fine steps per unit, as the nearest double."""
        return float(FINE_STEPS / self.half)

    @property
    def fine_bits(self) -> int:
        """log2 of the fine steps per step."""
        return FINE_BITS + (HALF_STEPS // self.half_steps).bit_length() - 1

    @property
    def lowest(self) -> int:
        """The lower bound in fine steps, rounded to the nearest."""
        return floor(self.low * FINE_STEPS / self.half + Fraction(1, 2))


def vectors_of(values: Sequence[Value]) -> list[list[int]]:
    """The places of the columns of each vector."""
    numbers = dict.fromkeys(value.vector for value in values if value.vector is not None)
    return [[place for place, value in enumerate(values) if value.vector == number] for number in numbers]


# Called with the share of the work done, from 0 to 1; it reveals no count.
Progress = Callable[[float], None]


@dataclass(frozen=True, repr=False)
class Choice(Secret):
    """The secret key that selects each user's items: 32 bytes from the secure rng, fresh for every run.

    A `portable` choice selects the same items on every engine, so that tests can compare them; otherwise each
    engine uses its fastest keyed hash.
    """

    key: bytes
    portable: bool = False


@dataclass(frozen=True)
class Task:
    """A histogram to count: distinct users per item.

    Each user contributes at most `max_items_per_user` items, chosen at random by `choice`. Counts below
    `lower_threshold` are removed. With `public_items`, other items are ignored before a user's items are chosen,
    and the histogram contains every public item, zeros included. `rank` asks for the count of that rank (1 is the
    largest). `ordered` sorts the histogram by item, so that a seed reproduces a release. Each of the `values` is
    summed over the same users, as `Value` defines.
    """

    events: Events
    choice: Choice
    max_items_per_user: int | None = None
    lower_threshold: int = 1
    public_items: Events | None = None
    rank: int | None = None
    ordered: bool = False
    values: tuple[Value, ...] = ()


@dataclass(frozen=True)
class RoundsTask:
    """A table of users and items to count in rounds (see `RoundsCount`), with weights in steps of 1 / `lattice`.

    Each user keeps at most `most_items` items, chosen once by `choice` as for a `Task`. With `alone`, users with
    exactly one item in their data, before any limit, are a group of their own. `known` items need not be found:
    they are there even if no user has them. They are matched to the items as public items are; those that are not
    values of the input's type are left out. With `listed` they are a public list: other items are ignored before a
    user's items are chosen or counted, and every entry is there. `ordered` numbers the items in their order.
    """

    events: Events
    choice: Choice
    most_items: int
    lattice: int
    growth: int
    alone: bool
    known: Events | None = None
    listed: bool = False
    values: tuple[Value, ...] = ()
    ordered: bool = False

    def as_task(self) -> Task:
        """A task that reads the same columns of the same inputs."""
        return Task(self.events, self.choice, public_items=self.known, values=self.values)

    def first_weight(self, items: int) -> int:
        """The steps that a user with so many items in the first round adds to each."""
        return isqrt(self.lattice**2 // items)

    def most_weight(self, first: int) -> int:
        """The most steps in a later round for a user with `first` items in the first round."""
        return min(isqrt(self.growth**2 * self.lattice**2 // first), self.lattice)

    def measure_weight(self, items: int, limit: int) -> int:
        """The steps in the measurement with this limit for a user with so many of the measured items."""
        return min(isqrt(limit * self.lattice**2 // items), self.lattice)


@dataclass(frozen=True)
class Resources:
    """Settings that affect speed only: `memory` is a size such as 2GB, `folder` is for temporary files."""

    memory: str | None = None
    threads: int | None = None
    folder: Path | None = None


class Counted(Protocol):
    """A histogram of true counts, for the noise stage only."""

    @property
    def schema(self) -> pa.Schema:
        """Under any names: the item columns, the count and a sum per value, in steps (int64)."""

    @property
    def at_rank(self) -> int:
        """The count of the task's rank; 0 without a rank, or with fewer items than that."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, which can be read once."""


class RoundsCount(Protocol):
    """Users and items for counting in rounds, for the noise stage only: everything here is secret.

    Items have the numbers 0, 1, ... Results are arrays of whole numbers by item number unless stated otherwise.
    """

    @property
    def items(self) -> int:
        """The number of items: those that a user keeps, and those known in advance."""

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether the item is known in advance (a boolean for each item)."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """Whether any user keeps the item (a boolean for each item)."""

    def alone(self) -> NDArray[np.int64]:
        """Users of the group of one with the item; zeros without the group."""

    def leave(self, gone: NDArray[np.int64]) -> None:
        """Remove these items from the lists of all users, before the first round or after any."""

    def round(self) -> NDArray[np.int64]:
        """Count the next round: the sum of the weights of the users with the item on their list.

        A user with n items on their list has the weight `first_weight(n)` of `RoundsTask`, and in later rounds at
        most `most_weight(first)`, where `first` is their number of items in the first round.
        """

    def sizes(self, found: NDArray[np.int64], bounds: Sequence[int]) -> list[int]:
        """Users of the group of several by how many of the found items they keep.

        Entry k counts users with more than bounds[k - 1] and at most bounds[k] of them, at least one. Users who
        have left out items are counted by the number of all their items instead.
        """

    def measure(self, found: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], ...]:
        """For each of the found items: the sum of its users' weights, and of their weighted values.

        A user with n found items has the weight a = `RoundsTask.measure_weight(n, limit)`; values are weighted by
        a / lattice: instead of the steps y, a user adds
            floor((2 (y - half_steps) a + lattice) / (2 lattice)), at most half_steps a / lattice around 0,
        and to a column of a vector y a / lattice, rounded towards 0.
        """

    def rows(self, found: NDArray[np.int64]) -> Sequence[ArrowColumn]:
        """The found items, by item column."""


class Engine(Protocol):
    """A counting engine. Once it counts, no data value can make it raise an error.

    Each call uses its own session and removes all temporary files. Calls within `with engine:` share a session.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def size(self, public_items: Events) -> int:
        """The number of distinct items in a public list."""

    def check(self, task: Task) -> None:
        """Raise `InputError` if the events cannot be read or lack a column, without counting."""

    def count(self, task: Task, progress: Progress | None = None) -> AbstractContextManager[Counted]:
        """Count. The true counts are available within the context only."""
