"""The columns of numbers in a release: noisy counts, sums, means and vectors, with their errors and intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.aliases import Numbers
from dphist.certificate.aggregates import Aggregate, Published, distinct_sums, sums_with_noise
from dphist.certificate.numbers import (
    added_columns,
    count_decimals,
    half_width,
    rounded,
    rounding_step,
    sum_columns,
)
from dphist.certificate.request import MARGIN
from dphist.model import Plan, SumNoise
from dphist.planning.estimate import Estimates
from dphist.releasing.request import Request

FloatArray = NDArray[np.float64]
# The level of margins, unless an interval is asked for.
LEVEL: Final = 0.95


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

    def numbers(self, counts: FloatArray, sums: Sequence[FloatArray], plan: Plan) -> dict[str, Numbers]:
        """The columns by name, from noisy counts and noisy centred sums."""
        look = self.look
        noisy, added = added_columns(
            counts, plan, self.count, error=look.error, interval=look.interval, whole=self.whole,
            decimals=count_decimals(plan, whole=self.whole),
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
    ) -> dict[str, Numbers]:
        """The columns by name of a release in rounds, from estimates of counts and noisy centred sums.

        `limit` is that of the measurement, whose square root multiplies the noise of the sums.
        """
        look, level = self.look, LEVEL if self.look.interval is None else self.look.interval
        decimals = count_decimals(plan, whole=self.whole)
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

    def sum_errors(
        self, estimates: Estimates, sums: Sequence[FloatArray], limit: int, plan: Plan
    ) -> dict[str, Numbers]:
        """The standard errors of sums and means in a release in rounds, by their names."""
        complete = replace(self, look=Published(error=True))
        columns = complete.estimates(estimates, sums, limit, plan)
        return {one.name: columns[f"{one.name}_standard_error"] for one in self.aggregates}


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
