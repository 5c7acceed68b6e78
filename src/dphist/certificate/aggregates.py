"""Sums, means and vectors as they are requested."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from dphist.errors import InvalidParameter
from dphist.model import MOST_COLUMNS, Plan, SumNoise

Kind = Literal["sum", "mean", "vector"]
KINDS: Final[tuple[Kind, ...]] = ("sum", "mean", "vector")
# The columns that are summed, and the bounds of a user's own sum; of several columns, those of a norm.
Summed = tuple[tuple[str, ...], Fraction, Fraction]
_NUMBER: Final = re.compile(r"[+-]?([0-9]{1,300}\.?[0-9]{0,300}|\.[0-9]{1,300})([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True)
class Aggregate:
    """A sum or a mean over the users of an item, or one column of a sum of vectors.

    Each user's value is clamped to [low, high]. The columns of a vector are clipped together to the norm `high`.
    """

    kind: Kind
    column: str
    low: Fraction
    high: Fraction
    name: str
    vector: str = ""
    columns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, kind: Kind, text: object) -> Aggregate:
        """From `COLUMN:LOW:HIGH` or `NAME=COLUMN:LOW:HIGH`; the default name is COLUMN_sum or COLUMN_mean."""
        form = f"<--{kind}> must be COLUMN:LOW:HIGH, such as amount:0:500, not {text!r}"
        parts = text.rsplit(":", 2) if isinstance(text, str) else []
        if len(parts) < 3 or not parts[0]:
            raise InvalidParameter(form)
        name, equals, column = parts[0].partition("=")
        if not equals or not name or not column:
            name, column = f"{parts[0]}_{kind}", parts[0]
        low, high = _bounds(parts[1:], form)
        return cls(kind, column, low, high, name)

    @property
    def of(self) -> Summed:
        """What is summed. A sum and a mean of the same values share one noisy sum."""
        return self.columns or (self.column,), self.low, self.high

    @property
    def label(self) -> str:
        return f"column of {self.vector}" if self.vector else self.name


def parse_vector(text: object) -> tuple[Aggregate, ...]:
    """The columns of a vector, from `NAME=COLUMN,COLUMN,...:NORM`; they are called NAME_COLUMN."""
    form = f"<--vector> must be NAME=COLUMN,COLUMN,...:NORM, such as move=dx,dy:10, not {text!r}"
    start, _, norm = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    name, _, listed = start.partition("=")
    columns = tuple(listed.split(","))
    if not name or not all(columns):
        raise InvalidParameter(form)
    if len(columns) > MOST_COLUMNS:
        raise InvalidParameter(f"<--vector> {name} has {len(columns)} columns: use at most {MOST_COLUMNS}")
    for column in columns:
        if columns.count(column) > 1:
            raise InvalidParameter(f"<--vector> {name} names the column {column!r} twice: name each column once")
    most = _norm(norm, form)
    return tuple(Aggregate("vector", one, -most, most, f"{name}_{one}", name, columns) for one in columns)


def bounds_from(text: str) -> tuple[Fraction, Fraction]:
    """The exact bounds in `LOW:HIGH`."""
    form = f"<--sum> must be LOW:HIGH, such as 0:500, not {text!r}"
    parts = text.split(":")
    if len(parts) != 2:
        raise InvalidParameter(form)
    return _bounds(parts, form)


def vector_bounds_from(text: str) -> tuple[Fraction, Fraction, int]:
    """The exact bounds and the number of columns in `COLUMNS:NORM`."""
    form = f"<--vector> must be COLUMNS:NORM, such as 3:10 for 3 columns, not {text!r}"
    columns, _, norm = text.partition(":")
    if not re.fullmatch("[1-9][0-9]{0,3}", columns):
        raise InvalidParameter(form)
    most = _norm(norm, form)
    return -most, most, int(columns)


def _number(part: str, form: str) -> Fraction:
    if not _NUMBER.fullmatch(part.strip()):
        raise InvalidParameter(f"{form}: {part!r} is not a number")
    return Fraction(part.strip())


def _norm(part: str, form: str) -> Fraction:
    norm = _number(part, form)
    if norm <= 0:
        raise InvalidParameter(f"{form}: NORM must be above 0")
    return norm


def _bounds(parts: Sequence[str], form: str) -> tuple[Fraction, Fraction]:
    low, high = (_number(part, form) for part in parts)
    if low >= high:
        raise InvalidParameter(f"{form}: LOW must be below HIGH")
    return low, high


def aggregates_of(request: Mapping[Kind, Sequence[str]]) -> tuple[Aggregate, ...]:
    """The sums, means and columns of vectors of a request, in this order."""
    aggregates: list[Aggregate] = []
    for kind in KINDS:
        for text in request.get(kind, ()):
            aggregates += parse_vector(text) if kind == "vector" else (Aggregate.parse(kind, text),)
    return tuple(aggregates)


def distinct_sums(aggregates: Sequence[Aggregate]) -> tuple[Summed, ...]:
    """The noisy sums that the aggregates need, in the order of their first use."""
    return tuple(dict.fromkeys(aggregate.of for aggregate in aggregates))


def sums_with_noise(plan: Plan, aggregates: Sequence[Aggregate]) -> list[tuple[Aggregate, SumNoise]]:
    """Each aggregate with the noise of its sum."""
    noises = dict(zip(distinct_sums(aggregates), plan.sums, strict=True))
    return [(aggregate, noises[aggregate.of]) for aggregate in aggregates]


@dataclass(frozen=True)
class Published:
    """Which columns are published with each number: a standard error, an interval, both or neither."""

    error: bool = False
    interval: float | None = None

    def names(self, name: str) -> list[str]:
        error = [f"{name}_standard_error"] if self.error else []
        return [name, *error, *([f"{name}_low", f"{name}_high"] if self.interval is not None else [])]
