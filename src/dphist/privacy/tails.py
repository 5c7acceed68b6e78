"""Symmetric laws above a point: their mass, and their first and second moments. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

FloatArray = NDArray[np.float64]
_ROOT: Final = math.sqrt(2.0 * math.pi)
# In squared steps: up to here the law is summed, beyond the formula of Euler and Maclaurin is as good.
_SUMMED: Final = 1e6
_REACH: Final = 15.0
# Points to a standard deviation: sums over every s-th value of a smooth law are as good as over all.
_POINTS: Final = 4.0


class Tails(Protocol):
    """A law that is symmetric about zero, above a point."""

    @property
    def reach(self) -> float:
        """Noise above this has a probability below 1e-18."""

    def mass(self, first: FloatArray) -> FloatArray:
        """Pr[X >= first]."""

    def moment(self, first: FloatArray) -> FloatArray:
        """The mean of X where X >= first, and of 0 elsewhere."""

    def square(self, first: FloatArray) -> FloatArray:
        """The mean of X^2 where X >= first, and of 0 elsewhere."""


@dataclass(frozen=True)
class NormalTails:
    """A normal law.

    Guarantee: right to rounding.
    """

    sigma: float

    @property
    def reach(self) -> float:
        """9 deviations: 1e-19."""
        return 9.0 * self.sigma

    def mass(self, first: FloatArray) -> FloatArray:
        """Q(first/sigma)."""
        return np.asarray(special.ndtr(-first / self.sigma), dtype=np.float64)

    def moment(self, first: FloatArray) -> FloatArray:
        """sigma^2 times the density."""
        return np.asarray(self.sigma / _ROOT * np.exp(-0.5 * (first / self.sigma) ** 2), dtype=np.float64)

    def square(self, first: FloatArray) -> FloatArray:
        """sigma^2 (Q(u) + u phi(u)) with u = first/sigma."""
        return self.sigma**2 * self.mass(first) + first * self.moment(first)


@dataclass(frozen=True)
class LatticeTails:
    """A discrete Gaussian: Pr[x] proportional to exp(-x^2/(2 variance)) on whole steps.

    Up to a deviation of 1,000 steps the law is summed, from its small end. Beyond, the sum over x >= n of g is
    the integral from t = n - 1/2 and g'(t)/24, by Euler and Maclaurin; what they leave out is 7 h^4/5760 of it,
    with h = t/variance.
    Guarantee: relative errors below 1e-12 where it is summed, and below 1e-10 beyond, up to 12 deviations; more
    noise than that has a probability of 1e-32, and where the law is summed none.
    Valid for: variance >= 1. A `first` that is no whole number is rounded up.
    """

    variance: float

    @property
    def reach(self) -> float:
        """9 deviations: 1e-19."""
        return 9.0 * math.sqrt(self.variance)

    def mass(self, first: FloatArray) -> FloatArray:
        """Pr[X >= first]."""
        n = np.ceil(first)
        if self.variance <= _SUMMED:
            beyond = self._summed(0, n)
            return np.where(n >= 1.0, beyond, 1.0 - beyond)
        t = n - 0.5
        whole = special.ndtr(-t / math.sqrt(self.variance))
        return np.asarray(whole - t / self.variance * self._density(t) / 24.0, dtype=np.float64)

    def moment(self, first: FloatArray) -> FloatArray:
        """The mean of X where X >= first. That of all is zero, so that it is even."""
        n = np.ceil(first)
        if self.variance <= _SUMMED:
            return self._summed(1, n)
        t = n - 0.5
        return self._density(t) * (self.variance + (1.0 - t * t / self.variance) / 24.0)

    def square(self, first: FloatArray) -> FloatArray:
        """The mean of X^2 where X >= first."""
        n = np.ceil(first)
        if self.variance <= _SUMMED:
            beyond, all_of = self._summed(2, n), 2.0 * _sums_above(self.variance)[2][1]
            return np.where(n >= 1.0, beyond, all_of - beyond)
        t = n - 0.5
        whole = self.variance * (special.ndtr(-t / math.sqrt(self.variance)) + t * self._density(t))
        return np.asarray(whole + (2.0 * t - t**3 / self.variance) * self._density(t) / 24.0, dtype=np.float64)

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Whole steps that stand for all, with their probabilities: as good as all for smooth functions."""
        sigma = math.sqrt(self.variance)
        stride = max(1.0, math.floor(sigma / _POINTS))
        steps = stride * np.arange(-math.ceil(8.0 * sigma / stride), math.ceil(8.0 * sigma / stride) + 1.0)
        weights = np.exp(-0.5 * steps**2 / self.variance)
        return steps, weights / weights.sum()

    def _summed(self, power: int, n: FloatArray) -> FloatArray:
        """The sum of x^power over x >= n, or over x > -n where n is not above zero."""
        sums = _sums_above(self.variance)[power]
        place = np.minimum(_mirrored(n), sums.size - 1.0).astype(np.int64)
        return np.asarray(sums[place], dtype=np.float64)

    def _density(self, t: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * t * t / self.variance) / (_ROOT * math.sqrt(self.variance)))


def _mirrored(first: FloatArray) -> FloatArray:
    """n where n >= 1; else the 1 - n whose tail below is what the one above leaves."""
    return np.where(first >= 1.0, first, 1.0 - first)


@lru_cache(maxsize=32)
def _sums_above(variance: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For n = 0, 1, ...: the sums of the probabilities of x >= n, times 1, x and x^2."""
    x = np.arange(math.ceil(_REACH * math.sqrt(variance)) + 2, dtype=np.float64)
    weights = np.exp(-0.5 * x * x / variance)
    # From the small end, so that nothing is lost.
    weights /= 2.0 * float(np.cumsum(weights[::-1])[-1]) - 1.0
    mass, moment, square = (np.append(np.cumsum((weights * x**p)[::-1])[::-1], 0.0) for p in range(3))
    return mass, moment, square


@dataclass(frozen=True)
class LaplaceTails:
    """Pr[x] = (1 - q)/(1 + q) q^|x| on whole numbers, with q = e^(-1/scale): above n >= 1 it is geometric.

    Guarantee: right to rounding.
    Valid for: scale > 0. A `first` that is no whole number is rounded up.
    """

    scale: float

    @property
    def reach(self) -> float:
        """45 scales: e^-45 is 3e-20."""
        return 45.0 * self.scale

    def mass(self, first: FloatArray) -> FloatArray:
        """q^n/(1 + q) from n = 1 on, and by symmetry below."""
        n = np.ceil(first)
        beyond = self._beyond(n)
        return np.where(n >= 1.0, beyond, 1.0 - beyond)

    def moment(self, first: FloatArray) -> FloatArray:
        """q^n (n + r)/(1 + q) with r = q/(1 - q) from n = 1 on; the mean of all is zero, so that it is even."""
        n = np.ceil(first)
        return self._beyond(n) * (_mirrored(n) + self._rest)

    def square(self, first: FloatArray) -> FloatArray:
        """q^n (n^2 + 2 n r + r + 2 r^2)/(1 + q) from n = 1 on, and by symmetry below: all is 2 r (1 + r)."""
        n, rest = np.ceil(first), self._rest
        up = _mirrored(n)
        beyond = self._beyond(n) * (up * up + 2.0 * up * rest + rest + 2.0 * rest**2)
        return np.where(n >= 1.0, beyond, 2.0 * rest * (1.0 + rest) - beyond)

    @property
    def _rest(self) -> float:
        return math.exp(-1.0 / self.scale) / -math.expm1(-1.0 / self.scale)

    def _beyond(self, n: FloatArray) -> FloatArray:
        tail = np.exp(-_mirrored(n) / self.scale) / (1.0 + math.exp(-1.0 / self.scale))
        return np.asarray(tail, dtype=np.float64)
