"""What is counted and by what: events, values to sum, and the contract of an engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Rational
from pathlib import Path
from typing import Any, Final, Protocol, Self

from dphist.errors import InvalidParameter

# The format of a file by the ending of its name; .db is a database of either kind.
FORMATS: Final = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "json", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".duckdb": "duckdb",
    ".ddb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "db",
}  # fmt: skip

# What is to be read and summed: where the events are, which columns matter, within which bounds. Plain data.

# Bytes of a user or an item; a longer text is missing, by its own length alone, so that no hash table, batch or
# output holds values without bound.
LONGEST_VALUE: Final = 1 << 13


def is_frame(source: Any) -> bool:
    """Whether a source is an object in memory or a DataFrame of Spark rather than a path or an address."""
    return not isinstance(source, (str, os.PathLike, tuple, list))


@dataclass(frozen=True)
class Column:
    """A column of the input, and the name it has in the output."""

    name: str
    source: str

    @classmethod
    def parse(cls, text: str) -> Column:
        """`COLUMN`, or `NAME=COLUMN`, which reads one column and gives it another name."""
        name, equals, source = text.partition("=")
        return cls(name, source) if equals and name and source else cls(text, text)


@dataclass(frozen=True)
class Events:
    """User events: a source, and what of it to read.

    `source` is a path, a glob, a folder, the address of a database, a tuple of paths, or a frame. `table` or
    `query` say what to read of a database; `where` is a condition in SQL; `file_format` is for names without
    a known ending. `as_text` reads every column as text, cell by cell, whatever type the input gives it.
    Rows without a user are dropped. A missing item does not count unless `null_items`; a text or bytes of more
    than `LONGEST_VALUE` bytes is missing.
    """

    # Not shown: an address may hold a password, and a frame holds the data.
    source: Any = field(repr=False)
    user: str
    items: tuple[Column, ...]
    table: str | None = None
    query: str | None = None
    where: str | None = None
    file_format: str | None = None
    null_items: bool = False
    as_text: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not self.user:
            raise InvalidParameter(f"user must be the name of a column, not {self.user!r}")
        if not self.items:
            raise InvalidParameter("item must name at least one column")
        names = [column.name for column in self.items]
        if len(set(names)) < len(names):
            raise InvalidParameter(f"the item's columns must have different names, not {names!r}")
        if self.table is not None and self.query is not None:
            raise InvalidParameter("give a table or a query, not both")


# A user's own sum leaves an engine in steps from the lower bound: this many, or fewer, are half the range.
HALF_STEPS: Final = 2**20
# Single rows are added up in finer steps, which are whole too: their sum does not depend on any order.
FINE_BITS: Final = 10
FINE_STEPS: Final = HALF_STEPS << FINE_BITS
# No row counts for more fine steps than this, in either direction.
FINE_LIMIT: Final = 2**50


@dataclass(frozen=True)
class Value:
    """A column of numbers; each user's own sum for an item is clamped to [low, high].

    With h = (high - low) / 2, `scale` = 2^30 / h as a double and `lowest` = floor(low 2^30 / h + 1/2):
        f = floor(x scale + 1/2), within 2^50 on either side, for the number x of a row;
        F = the sum of f over the user's rows of the item, a whole number;
        y = (min(max(F, lowest), lowest + 2^31) - lowest + 2^(b-1)) >> b, from 0 to 2 `half_steps` = 2^(31-b).
    A row whose value is missing, NaN, or a text that is not a number adds nothing: f = 0.
    Guarantee: y is a function of that user's own rows of that item, whatever their order and the engine.
    """

    column: str
    low: Fraction
    high: Fraction
    half_steps: int = HALF_STEPS

    def __post_init__(self) -> None:
        if self.half_steps not in {HALF_STEPS >> n for n in range(HALF_STEPS.bit_length())}:
            raise InvalidParameter(f"half a range must be a power of two of steps, not {self.half_steps!r}")
        if not isinstance(self.column, str) or not self.column:
            raise InvalidParameter(f"a value must be the name of a column, not {self.column!r}")
        bounds = (self.low, self.high)
        if any(isinstance(bound, bool) or not isinstance(bound, Rational) for bound in bounds):
            raise InvalidParameter(f"the bounds of the value {self.column!r} must be exact numbers")
        for name, bound in (("low", self.low), ("high", self.high)):
            object.__setattr__(self, name, Fraction(bound))
        if self.low >= self.high:
            raise InvalidParameter(f"the lower bound of the value {self.column!r} must be below its upper bound")
        # Outside of this the scale is not a normal double, which some engines take for zero or infinity.
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
        """Half the range."""
        return (self.high - self.low) / 2

    @property
    def step(self) -> Fraction:
        """What one step is worth: n users with Y steps have the sum n low + Y step."""
        return self.half / self.half_steps

    @property
    def scale(self) -> float:
        """Fine steps of one, as the nearest double."""
        return float(FINE_STEPS / self.half)

    @property
    def fine_bits(self) -> int:
        """How many times two fine steps make a step."""
        return FINE_BITS + (HALF_STEPS // self.half_steps).bit_length() - 1

    @property
    def lowest(self) -> int:
        """The lower bound in fine steps, rounded to the nearest."""
        return int((self.low * FINE_STEPS / self.half + Fraction(1, 2)).__floor__())


# Called with the share of the work done, from 0 to 1. It never carries a number of the data.
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Choice:
    """The secret by which a user's items are chosen at random: 32 bytes of the secure tap, fresh for every run.

    A `portable` choice is the same on every engine, for tests that compare them; otherwise each engine uses the
    fastest keyed hash it has.
    """

    key: bytes
    portable: bool = False

    def __repr__(self) -> str:
        return "Choice(secret)"


@dataclass(frozen=True)
class Task:
    """What to count.

    One row per (user, item); of each user at most `max_items_per_user` items, chosen at random by `choice`; users
    counted per item; counts below `lower_threshold` removed. With `public_items` only those are counted (before a
    user's items are chosen), and all of them are in the histogram, zeros included. `rank` asks for the count of
    that rank, the largest having rank 1. `ordered` sorts the histogram by item, so that a seed repeats a release.
    Each of the `values` is summed over the same users: see `Value` for what of a user is added.

    With `weights`, a user with more items counts less for each of them. They are levels (items, steps): items
    increase to N = `max_items_per_user`, steps decrease from `unit`, the steps of one whole count. A user with n
    different items (of the public list, if there is one) keeps n' = min(n, N) and adds to the count of each the
    steps a of the first level with items >= n', instead of 1; to each sum, instead of y, the part
        floor((2 (y - half_steps) a + unit) / (2 unit)), at most half_steps a / unit on either side of 0.
    """

    events: Events
    choice: Choice
    max_items_per_user: int | None = None
    lower_threshold: int = 1
    public_items: Events | None = None
    rank: int | None = None
    ordered: bool = False
    values: tuple[Value, ...] = ()
    weights: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Resources:
    """What affects speed alone. `memory` is a size such as 2GB; `folder` is where work spills to."""

    memory: str | None = None
    threads: int | None = None
    folder: Path | None = None


class Counted(Protocol):
    """A histogram that is counted: true counts, for the noise stage and for nothing else."""

    @property
    def schema(self) -> Any:
        """Arrow schema of the batches; any names.

        The item's columns in their order, the count (int64; in steps if the task has weights), and a sum in steps
        (int64) for each of the values.
        """

    @property
    def at_rank(self) -> int:
        """The count of the task's rank; 0 where fewer items have a count, or no rank was asked for."""

    def batches(self) -> Iterator[Any]:
        """Arrow record batches of the schema, once."""


class Engine(Protocol):
    """An engine. It raises nothing because of what the data holds once it has begun to count.

    Each call works in a session of its own, and nothing temporary is left of it. Calls within `with engine:`
    follow each other in one session, and nothing is left when that ends.
    """

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    @property
    def name(self) -> str:
        """What it is called."""

    def size(self, public_items: Events) -> int:
        """The number of different items of a public list."""

    def check(self, task: Task) -> None:
        """Raise `InputError` if the events cannot be read or lack a column; nothing is counted yet."""

    def count(self, task: Task, progress: Progress | None = None) -> AbstractContextManager[Counted]:
        """Count. True counts leave the engine only within the context."""

    def sizes(self, task: Task, bounds: Sequence[int], progress: Progress | None = None) -> list[int]:
        """How many users have how many different items, before any cap: true numbers, as secret as counts.

        Entry k is for more than bounds[k - 1] and at most bounds[k] items, the last one for more than the last
        bound. Each user with an item is in exactly one of them. The events are read for this alone: of a source
        that can be read only once it is an `InputError`, and nothing of it is read.
        """


def engine_for(
    name: str,
    resources: Resources,
    master: str | None = None,
    spark_settings: tuple[tuple[str, str], ...] = (),
) -> Engine:
    """The engine of this name, duckdb or spark; master and settings are those of a new Spark session."""
    if name == "spark":
        from dphist.counting.spark_session import Cluster, require_pyspark

        require_pyspark()
        from dphist.counting.spark import SparkEngine

        return SparkEngine(resources, Cluster(master, spark_settings))
    from dphist.counting.duckdb import DuckDBEngine

    return DuckDBEngine(resources)
