"""Sums and means beside the counts: the request for them, and the columns that are published."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.counting.task import Value
from dphist.errors import InvalidParameter
from dphist.planning.utility import half_width, shared_part
from dphist.privacy.types import Plan, SumNoise

FloatArray = NDArray[np.float64]
Kind = Literal["sum", "mean"]
KINDS: Final[tuple[Kind, ...]] = ("sum", "mean")
_NUMBER: Final = re.compile(r"[+-]?(\d{1,300}\.?\d{0,300}|\.\d{1,300})([eE][+-]?\d{1,3})?")


@dataclass(frozen=True)
class Aggregate:
    """A sum or a mean over the users of an item, of a column whose values are clamped to [low, high]."""

    kind: Kind
    column: str
    low: Fraction
    high: Fraction
    name: str

    @classmethod
    def parse(cls, kind: Kind, text: object) -> Aggregate:
        """`COLUMN:LOW:HIGH`, or `NAME=COLUMN:LOW:HIGH`, which gives the result another name than COLUMN_sum."""
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
    def of(self) -> tuple[str, Fraction, Fraction]:
        """What is summed: a sum and a mean of the same values are one sum."""
        return self.column, self.low, self.high


def bounds_from(text: str) -> tuple[Fraction, Fraction]:
    """`LOW:HIGH`, exactly as written."""
    form = f"--sum must be LOW:HIGH, such as 0:500, not {text!r}"
    parts = text.split(":")
    if len(parts) != 2:
        raise InvalidParameter(form)
    return _bounds(parts, form)


def _bounds(parts: Sequence[str], form: str) -> tuple[Fraction, Fraction]:
    for part in parts:
        if not _NUMBER.fullmatch(part.strip()):
            raise InvalidParameter(f"{form}: {part!r} is not a number")
    low, high = (Fraction(part.strip()) for part in parts)
    if low >= high:
        raise InvalidParameter(f"{form}: LOW must be below HIGH")
    return low, high


def aggregates_of(request: Mapping[str, Any]) -> tuple[Aggregate, ...]:
    """The sums and means of a request, sums first."""
    return tuple(Aggregate.parse(kind, text) for kind in KINDS for text in request.get(kind, ()))


def distinct_sums(aggregates: Sequence[Aggregate]) -> tuple[tuple[str, Fraction, Fraction], ...]:
    """The different sums that the aggregates need, in the order of their first use."""
    return tuple(dict.fromkeys(one.of for one in aggregates))


def sums_with_noise(plan: Plan, aggregates: Sequence[Aggregate]) -> list[tuple[Aggregate, SumNoise]]:
    """The aggregates, each with the noise of its sum."""
    noises = dict(zip(distinct_sums(aggregates), plan.sums, strict=True))
    return [(one, noises[one.of]) for one in aggregates]


@dataclass(frozen=True)
class Published:
    """Which columns each aggregate has."""

    error: bool = False
    interval: float | None = None

    def names(self, name: str) -> list[str]:
        """The columns of one aggregate."""
        error = [f"{name}_standard_error"] if self.error else []
        return [name, *error, *([f"{name}_low", f"{name}_high"] if self.interval is not None else [])]


def published_sums(
    counts: FloatArray, own: Sequence[FloatArray], plan: Plan, aggregates: Sequence[Aggregate], look: Published
) -> Mapping[str, NDArray[Any]]:
    """The columns of all aggregates, from noisy counts and the noisy sums around the middles of the ranges."""
    arounds = dict(zip(distinct_sums(aggregates), own, strict=True))
    columns: dict[str, NDArray[Any]] = {}
    for one, noise in sums_with_noise(plan, aggregates):
        made = sum_columns if one.kind == "sum" else _mean_columns
        columns |= zip(look.names(one.name), made(counts, arounds[one.of], plan, noise, look), strict=True)
    return columns


def sum_error(plan: Plan, noise: SumNoise) -> float:
    """Standard error of a sum: its own noise, and the middle of the range times that of the count."""
    return math.hypot(noise.sigma, float(noise.middle) * plan.total_noise)


def sum_columns(
    counts: FloatArray, around: FloatArray, plan: Plan, noise: SumNoise, look: Published
) -> list[FloatArray]:
    """A sum, and beside it what was asked for: its standard error, and the ends of its interval."""
    total = around + float(noise.middle) * counts
    spread = sum_error(plan, noise)
    columns = [total, *([np.full(total.size, spread)] if look.error else [])]
    if look.interval is not None:
        width = -float(special.ndtri((1.0 - look.interval) / 2.0)) * spread
        columns += [total - width, total + width]
    return columns


def _mean_columns(
    counts: FloatArray, around: FloatArray, plan: Plan, noise: SumNoise, look: Published
) -> list[FloatArray]:
    """The middle plus the sum around it divided by the count, within the bounds; its error is the ratio's."""
    middle, low, high = float(noise.middle), float(noise.low), float(noise.high)
    # Counts of a public list may be near zero or below, where a mean says nothing.
    safe = np.maximum(counts, 1.0)
    ratio = np.clip(around / safe, low - middle, high - middle)
    columns = [middle + ratio]
    if look.error:
        columns.append(np.hypot(noise.sigma, ratio * plan.total_noise) / safe)
    if look.interval is not None:
        columns += [
            middle + np.clip(end, low - middle, high - middle)
            for end in _ratio_ends(counts, around, plan, noise, look.interval)
        ]
    return columns


def _ratio_ends(
    counts: FloatArray, around: FloatArray, plan: Plan, noise: SumNoise, share: float
) -> tuple[FloatArray, FloatArray]:
    """The least and the largest ratio of a sum and a count that are both within their own intervals.

    Both intervals hold with at least `share`, each with half of what is left, so that their ratio does too.
    """
    each = (1.0 + share) / 2.0
    width = -float(special.ndtri((1.0 - each) / 2.0)) * noise.sigma
    reach = half_width(plan, each)
    fewest, most = np.maximum(counts - reach, 1.0), np.maximum(counts + reach, 1.0)
    low, high = around - width, around + width
    return np.minimum(low / fewest, low / most), np.maximum(high / fewest, high / most)


def sums_facts(plan: Plan, aggregates: Sequence[Aggregate]) -> list[dict[str, Any]]:
    """The errors of sums and means, and their covariance with the counts."""
    found = []
    for one, noise in sums_with_noise(plan, aggregates):
        middle = float(noise.middle)
        facts: dict[str, Any] = {
            "name": one.name,
            "kind": one.kind,
            "column": one.column,
            "low": float(one.low),
            "high": float(one.high),
            "own_standard_error": noise.sigma,
        }
        if one.kind == "sum":
            facts |= {
                "standard_error": sum_error(plan, noise),
                "covariance_with_count": middle * plan.total_noise**2,
                "covariance_between_items": middle**2 * shared_part(plan),
                "bias_at_threshold": middle * bias_at_threshold(plan),
            }
        found.append(facts)
    return found


def bias_at_threshold(plan: Plan) -> float:
    """How much too high a released count is on average whose true value is at the threshold: 0.8 deviations.

    E[Z | Z > 0] = sqrt(2/pi) of a normal Z; nothing where all counts are released
    """
    return 0.0 if math.isinf(plan.threshold) else math.sqrt(2.0 / math.pi) * plan.total_noise
