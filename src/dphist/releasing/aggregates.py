"""The columns of numbers in a release: noisy counts, sums, means and vectors, with their errors and intervals."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.counting.task import Value
from dphist.errors import InvalidParameter
from dphist.planning.estimate import Estimates
from dphist.planning.utility import added_columns, count_decimals, half_width, rounded, rounding_step, shared_part
from dphist.privacy.types import MOST_COLUMNS, Plan, SumNoise
from dphist.releasing.request import MARGIN, Request

FloatArray = NDArray[np.float64]
# The level of margins, unless an interval is asked for.
LEVEL: Final = 0.95
Kind = Literal["sum", "mean", "vector"]
KINDS: Final[tuple[Kind, ...]] = ("sum", "mean", "vector")
# The columns that are summed, and the bounds of a user's own sum; of several columns, those of a norm.
Summed = tuple[tuple[str, ...], Fraction, Fraction]
_NUMBER: Final = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,3})?")


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
        form = f"--{kind} must be COLUMN:LOW:HIGH, such as amount:0:500, not {text!r}"
        parts = text.rsplit(":", 2) if isinstance(text, str) else []
        if len(parts) < 3 or not parts[0]:
            raise InvalidParameter(form)
        name, equals, column = parts[0].partition("=")
        if not equals or not name or not column:
            name, column = f"{parts[0]}_{kind}", parts[0]
        low, high = _bounds(parts[1:], form)
        Value(column, low, high)  # checks the bounds
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
    form = f"--vector must be NAME=COLUMN,COLUMN,...:NORM, such as move=dx,dy:10, not {text!r}"
    start, _, norm = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    name, _, listed = start.partition("=")
    columns = tuple(listed.split(","))
    if not name or not all(columns):
        raise InvalidParameter(form)
    for column in columns:
        if columns.count(column) > 1:
            raise InvalidParameter(f"--vector {name} names the column {column!r} twice: name each column once")
    if len(columns) > MOST_COLUMNS:
        raise InvalidParameter(f"--vector {name} has {len(columns)} columns: use at most {MOST_COLUMNS}")
    most = _norm(norm, form)
    Value(columns[0], -most, most)  # checks the norm
    return tuple(Aggregate("vector", one, -most, most, f"{name}_{one}", name, columns) for one in columns)


def bounds_from(text: str) -> tuple[Fraction, Fraction]:
    """The exact bounds in `LOW:HIGH`."""
    form = f"--sum must be LOW:HIGH, such as 0:500, not {text!r}"
    parts = text.split(":")
    if len(parts) != 2:
        raise InvalidParameter(form)
    return _bounds(parts, form)


def vector_bounds_from(text: str) -> tuple[Fraction, Fraction, int]:
    """The exact bounds and the number of columns in `COLUMNS:NORM`."""
    form = f"--vector must be COLUMNS:NORM, such as 3:10 for 3 columns, not {text!r}"
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


def aggregates_of(request: Mapping[str, Any]) -> tuple[Aggregate, ...]:
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


@dataclass(frozen=True)
class Columns:
    """All columns of numbers of a release, computed in this process or on executors."""

    count: str
    look: Published
    whole: bool
    aggregates: tuple[Aggregate, ...]

    @classmethod
    def of(cls, request: Request) -> Columns:
        look = Published(request.standard_error, request.interval)
        return cls(request.count_name, look, request.round, request.aggregates)

    def numbers(self, counts: FloatArray, sums: Sequence[FloatArray], plan: Plan) -> dict[str, NDArray[Any]]:
        """The columns by name, from noisy counts and noisy centred sums."""
        look = self.look
        noisy, added = added_columns(
            counts, plan, self.count, error=look.error, interval=look.interval, whole=self.whole,
            decimals=0 if self.whole else count_decimals(plan),
        )  # fmt: skip
        columns = {self.count: noisy, **added}
        for aggregate, noise, centred in self._sums(plan, sums):
            compute = _mean_columns if aggregate.kind == "mean" else sum_columns
            columns |= zip(look.names(aggregate.name), compute(counts, centred, plan, noise, look), strict=True)
        return columns

    def _sums(self, plan: Plan, sums: Sequence[FloatArray]) -> Iterator[tuple[Aggregate, SumNoise, FloatArray]]:
        """Each aggregate with its noise and its noisy centred sum."""
        places = [(of, column) for of in distinct_sums(self.aggregates) for column in of[0]]
        centred = dict(zip(places, sums, strict=True))
        for aggregate, noise in sums_with_noise(plan, self.aggregates):
            yield aggregate, noise, centred[aggregate.of, aggregate.column]

    def estimates(
        self, estimates: Estimates, sums: Sequence[FloatArray], limit: int, plan: Plan
    ) -> dict[str, NDArray[Any]]:
        """The columns by name of a release in rounds, from estimates of counts and noisy centred sums.

        `limit` is that of the measurement, whose square root multiplies the noise of the sums.
        """
        look, level = self.look, LEVEL if self.look.interval is None else self.look.interval
        decimals = 0 if self.whole else count_decimals(plan)
        counts = rounded(estimates.count, decimals, whole=self.whole)
        # Rounding adds at most half a step.
        margin = estimates.margin(level) + rounding_step(decimals) / 2.0
        columns = {self.count: counts, MARGIN: rounded(margin, decimals, whole=self.whole, towards=np.ceil)}
        if look.error:
            errors = np.hypot(estimates.standard_error, rounding_step(decimals) / math.sqrt(12.0))
            columns[f"{self.count}_standard_error"] = rounded(errors, None if decimals is None else decimals + 2)
        if look.interval is not None:
            columns |= {
                f"{self.count}_low": counts - columns[MARGIN],
                f"{self.count}_high": counts + columns[MARGIN],
            }
        for aggregate, noise, around in self._sums(plan, sums):
            deviation, bounds = noise.sigma * math.sqrt(limit), (float(noise.low), float(noise.high))
            if aggregate.kind == "mean":
                value, error = estimates.mean_columns(around, deviation, *bounds)
                low, high = estimates.mean_interval(around, deviation, *bounds, level)
            else:
                value, error = estimates.sum_columns(around, deviation, float(noise.middle))
                width = -float(special.ndtri((1.0 - level) / 2.0))
                low, high = value - width * error, value + width * error
            ends = [] if look.interval is None else [low, high]
            columns |= zip(
                look.names(aggregate.name), [value, *([error] if look.error else []), *ends], strict=True
            )
        return columns


def sum_error(plan: Plan, noise: SumNoise) -> float:
    """Standard error of a sum: its own noise, and the noise of the count times the middle of the range."""
    return math.hypot(noise.sigma, float(noise.middle) * plan.total_noise)


def sum_columns(
    counts: FloatArray, centred: FloatArray, plan: Plan, noise: SumNoise, look: Published
) -> list[FloatArray]:
    """A sum with its standard error and interval, from noisy counts and the noisy centred sum."""
    total = centred + float(noise.middle) * counts
    error = sum_error(plan, noise)
    columns = [total, *([np.full(total.size, error)] if look.error else [])]
    if look.interval is not None:
        width = -float(special.ndtri((1.0 - look.interval) / 2.0)) * error
        columns += [total - width, total + width]
    return columns


def _mean_columns(
    counts: FloatArray, centred: FloatArray, plan: Plan, noise: SumNoise, look: Published
) -> list[FloatArray]:
    """The middle plus the centred sum divided by the count, clamped to the bounds, with the error of the ratio."""
    middle, low, high = float(noise.middle), float(noise.low), float(noise.high)
    # Counts of a public list may be near or below zero, where a mean has no meaning.
    safe = np.maximum(counts, 1.0)
    ratio = np.clip(centred / safe, low - middle, high - middle)
    columns = [middle + ratio]
    if look.error:
        columns.append(np.hypot(noise.sigma, ratio * plan.total_noise) / safe)
    if look.interval is not None:
        columns += [
            middle + np.clip(end, low - middle, high - middle)
            for end in _ratio_ends(counts, centred, plan, noise, look.interval)
        ]
    return columns


def _ratio_ends(
    counts: FloatArray, centred: FloatArray, plan: Plan, noise: SumNoise, level: float
) -> tuple[FloatArray, FloatArray]:
    """The smallest and largest ratio of a sum and a count that are both within their own intervals.

    Each interval fails with probability at most (1 - level)/2, so the ratio is covered with at least `level`.
    """
    each = (1.0 + level) / 2.0
    width = -float(special.ndtri((1.0 - each) / 2.0)) * noise.sigma
    reach = half_width(plan, each)
    fewest, most = np.maximum(counts - reach, 1.0), np.maximum(counts + reach, 1.0)
    low, high = centred - width, centred + width
    return np.minimum(low / fewest, low / most), np.maximum(high / fewest, high / most)


def sums_facts(plan: Plan, aggregates: Sequence[Aggregate]) -> list[dict[str, Any]]:
    """The errors of sums, means and vectors, and the covariances of sums, as the certificate states them."""
    # On average, a released count whose true value is at the threshold is too high by E[Z | Z > 0] of its noise.
    bias = 0.0 if math.isinf(plan.threshold) else math.sqrt(2.0 / math.pi) * plan.total_noise
    all_facts = []
    for aggregate, noise in sums_with_noise(plan, aggregates):
        middle = float(noise.middle)
        facts: dict[str, Any] = {"name": aggregate.vector or aggregate.name, "kind": aggregate.kind}
        if aggregate.vector:
            norm = float(aggregate.high)
            facts |= {"columns": list(aggregate.columns), "norm": norm, "standard_error": noise.sigma}
        else:
            bounds = {"low": float(aggregate.low), "high": float(aggregate.high)}
            facts |= {"column": aggregate.column, **bounds, "own_standard_error": noise.sigma}
        if aggregate.kind == "sum":
            facts |= {
                "standard_error": sum_error(plan, noise),
                "covariance_with_count": middle * plan.total_noise**2,
                "covariance_between_items": middle**2 * shared_part(plan),
                "bias_at_threshold": middle * bias,
            }
        if not aggregate.vector or aggregate.column == aggregate.columns[0]:
            all_facts.append(facts)
    return all_facts
