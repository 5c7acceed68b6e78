"""Estimates of the number of users per item, from the noisy results of a release in rounds.

Everything here is post-processing: its input is noisy or public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Relative standard deviation of the ratio of an item's evidence to its users, within a round.
_TASTE: Final = 0.12
# Bias of the limit: the share of this part of what the limit removes that may be wrong for one item.
_LIMIT_ERROR: Final = 0.5
# Noisy numbers of users below this many standard deviations are taken for 0.
_CLEAR: Final = 3.0
_FEW: Final = 3


def size_bounds(most: int) -> tuple[int, ...]:
    """The largest number of items in each bucket of users: 1, 2, 3, 4, 6, 8, 12, 16, ..., `most`."""
    powers = [2**k for k in range(most.bit_length())]
    bounds = {1, *powers, *(power + power // 2 for power in powers[1:])}
    return (*sorted(bound for bound in bounds if bound < most), most)


@dataclass(frozen=True)
class _Sizes:
    """Users by their number of found items, without the buckets that may be noise alone."""

    items: FloatArray
    users: FloatArray

    @classmethod
    def of(cls, noisy: FloatArray, deviation: float, bounds: tuple[int, ...]) -> _Sizes:
        last = np.array(bounds, dtype=np.float64)
        first = np.append(1.0, last[:-1] + 1.0)
        return cls((first + last) / 2.0, np.where(noisy < _CLEAR * deviation, 0.0, noisy))

    @property
    def pairs(self) -> float:
        return float(self.users @ self.items)

    def weight(self, limit: int) -> float:
        """The mean weight of a user's item in a measurement with this limit."""
        return float(self.users @ np.minimum(self.items, np.sqrt(limit * self.items))) / self.pairs


def choose_limit(sizes: FloatArray, deviation: float, sigma: float, items: int) -> int:
    """The limit of the measurement for noisy numbers of users by size; 0 if there is nobody to measure.

    `sigma` is the noise of the measurement at a limit of 1, in users. The number of sizes determines the bounds.
    """
    bounds = _bounds_of(len(sizes))
    seen = _Sizes.of(np.asarray(sizes, dtype=np.float64), deviation, bounds)
    if not items or not seen.pairs:
        return 0
    typical = max(seen.pairs / items, 1.0)
    return min(
        bounds, key=lambda m: math.hypot(math.sqrt(m) * sigma / typical, _LIMIT_ERROR * (1.0 - seen.weight(m)))
    )


def _bounds_of(buckets: int) -> tuple[int, ...]:
    """The bounds of that many buckets (a `most` in between has the same limits to choose from)."""
    return size_bounds(1 << 20)[:buckets]


@dataclass(frozen=True)
class Evidence:
    """What a release in rounds made noisy, for the found items.

    `found_in` is -1 for known and public items, 0 for those found by users with one item, and r + 1 for round r.
    `score` is the pooled evidence in users (nan without), with the deviations of `deviations` and above `limits`
    in each round. `measured` are weights in users, with independent noise `sigma` and one shared draw `shared`.
    `sizes` are users by number of found items, up to the `bounds`.
    """

    found_in: IntArray
    score: FloatArray
    deviations: tuple[float, ...]
    alone: FloatArray | None
    alone_deviation: float
    measured: FloatArray | None
    sigma: float
    shared: float
    limit: int
    sizes: FloatArray
    sizes_deviation: float
    bounds: tuple[int, ...]
    limits: tuple[float, ...]
    most_items: int


class Column(NamedTuple):
    """A column of numbers with standard errors."""

    value: FloatArray
    standard_error: FloatArray


@dataclass(frozen=True)
class Estimates:
    """The number of users of each item, with standard errors; `reason` says why intervals cannot be trusted.

    `factor` turns measured weights into users, with the relative error `factor_error`.
    """

    count: FloatArray
    standard_error: FloatArray
    factor: FloatArray
    factor_error: FloatArray
    reason: str | None = None

    def margin(self, level: float) -> FloatArray:
        """Half the width of the confidence intervals of the counts."""
        return _quantile(level) * self.standard_error

    def sum_columns(self, centred: FloatArray, deviation: float, middle: float = 0.0) -> Column:
        """Sums over all users, from noisy measured sums of (value - middle) and the deviation of their noise."""
        scaled = self.factor * centred
        error = np.hypot(self.factor * deviation, scaled * self.factor_error)
        return Column(scaled + middle * self.count, np.hypot(error, middle * self.standard_error))

    def mean_columns(self, centred: FloatArray, deviation: float, low: float, high: float) -> Column:
        """Means over the users of an item, within the bounds of a user's value."""
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        # Estimates of a public list may be near or below zero, where a mean has no meaning.
        safe = np.maximum(self.count, 1.0)
        total, error = self.sum_columns(centred, deviation)
        ratio = np.clip(total / safe, -half, half)
        return Column(middle + ratio, np.hypot(error, ratio * self.standard_error) / safe)

    def mean_interval(
        self, centred: FloatArray, deviation: float, low: float, high: float, level: float
    ) -> tuple[FloatArray, FloatArray]:
        """The least and the largest ratio of a sum and a count that are both within their own intervals.

        Each of the two fails with probability at most (1 - level)/2, so the mean is covered with `level`.
        """
        middle, half = (low + high) / 2.0, (high - low) / 2.0
        each = (1.0 + level) / 2.0
        total, error = self.sum_columns(centred, deviation)
        reach, width = self.margin(each), _quantile(each) * error
        fewest, most = np.maximum(self.count - reach, 1.0), np.maximum(self.count + reach, 1.0)
        first, last = total - width, total + width
        ends = np.minimum(first / fewest, first / most), np.maximum(last / fewest, last / most)
        return middle + np.clip(ends[0], -half, half), middle + np.clip(ends[1], -half, half)


def _quantile(level: float) -> float:
    return NormalDist().inv_cdf((1.0 + level) / 2.0)


def estimate(evidence: Evidence) -> Estimates:
    """The number of users of each found item."""
    e, items = evidence, evidence.found_in.size
    factor = np.ones(items)
    factor_error = np.zeros(items)
    count, variance = np.zeros(items), np.zeros(items)
    reason = None
    if e.measured is not None and e.limit > 0:
        sizes = _Sizes.of(e.sizes, e.sizes_deviation, e.bounds)
        weight = sizes.weight(e.limit) if sizes.pairs else 1.0
        factor /= weight
        factor_error += _LIMIT_ERROR * (1.0 - weight)
        noise = math.hypot(e.sigma, e.shared) / weight
        users = e.measured / weight
        count = users.copy()
        variance = noise**2 + (factor_error * np.maximum(users, 0.0)) ** 2
        for r, deviation in enumerate(e.deviations):
            here = (e.found_in == r + 1) & np.isfinite(e.score)
            total = float(e.score[here].sum())
            if total <= 0.0:
                continue
            ratio = max(1.0, float(users[here].sum()) / total)
            of_ratio = min(noise * math.sqrt(float(here.sum())) / total, ratio)
            view = ratio * e.score[here]
            error = (ratio * deviation) ** 2 + (_TASTE * view) ** 2 + (of_ratio * e.score[here]) ** 2
            precision = 1.0 / variance[here] + 1.0 / error
            count[here] = (users[here] / variance[here] + view / error) / precision
            variance[here] = 1.0 / precision
    elif items and (e.found_in != 0).any():
        reason = "nothing was measured"
        unknown = e.found_in != 0
        count[unknown] = np.where(np.isfinite(e.score[unknown]), e.score[unknown], np.nan)
        variance[unknown] = np.nan
    if e.alone is not None:
        count = count + e.alone
        variance = variance + e.alone_deviation**2
    return Estimates(count, np.sqrt(variance), factor, factor_error, reason)
