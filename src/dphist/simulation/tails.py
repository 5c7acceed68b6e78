"""The tails of one count's noise: which counts pass the threshold, and how far off they then are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.errors import InvalidParameter
from dphist.types import AnyNoise, LaplaceNoise, Noise, PublicNoise

FloatArray = NDArray[np.float64]
_ROOT: Final = math.sqrt(2.0 * math.pi)


class Passed(NamedTuple):
    """Of counts: the probability to be released, and the means of error and of distance over that event."""

    probability: FloatArray
    error: FloatArray
    distance: FloatArray


class Tails(Protocol):
    """A law that is symmetric about zero."""

    def mass(self, first: FloatArray) -> FloatArray:
        """Pr[X >= first]."""

    def moment(self, first: FloatArray) -> FloatArray:
        """The mean of X where X >= first, and of 0 elsewhere."""


@dataclass(frozen=True)
class NormalTails:
    """A normal law."""

    sigma: float

    def mass(self, first: FloatArray) -> FloatArray:
        """Q(first/sigma)."""
        return np.asarray(special.ndtr(-first / self.sigma))

    def moment(self, first: FloatArray) -> FloatArray:
        """sigma^2 times the density."""
        return self.sigma / _ROOT * np.exp(-0.5 * (first / self.sigma) ** 2)


@dataclass(frozen=True)
class LatticeTails:
    """Pr[x] proportional to exp(-x^2/(2 variance)) on whole steps, by the sums of Euler and Maclaurin.

    The sum over x >= n of g is the integral from t = n - 1/2 and g'(t)/24. What follows is below 1e-3/variance^2
    for the mass: 6e-5 for the least variance there can be, 4, and nothing for those of real plans.
    """

    variance: float

    def mass(self, first: FloatArray) -> FloatArray:
        """Pr[X >= first] for a whole number of steps."""
        t = first - 0.5
        return np.asarray(
            special.ndtr(-t / math.sqrt(self.variance)) - t / self.variance * self._density(t) / 24.0
        )

    def moment(self, first: FloatArray) -> FloatArray:
        """The mean of X where X >= first."""
        t = first - 0.5
        return self._density(t) * (self.variance + (1.0 - t * t / self.variance) / 24.0)

    def _density(self, t: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * t * t / self.variance) / (_ROOT * math.sqrt(self.variance)))


@dataclass(frozen=True)
class LaplaceTails:
    """Pr[x] = (1 - q)/(1 + q) q^|x| on whole numbers, with q = e^(-1/scale)."""

    scale: float

    def mass(self, first: FloatArray) -> FloatArray:
        """q^n/(1 + q) from n = 1 on, and by symmetry below."""
        q, up = math.exp(-1.0 / self.scale), self._up(first)
        beyond = np.exp(-up / self.scale) / (1.0 + q)
        return np.where(first >= 1.0, beyond, 1.0 - beyond)

    def moment(self, first: FloatArray) -> FloatArray:
        """q^n (n + q/(1 - q))/(1 + q) from n = 1 on; the mean of all is zero, so that it is even."""
        q, up = math.exp(-1.0 / self.scale), self._up(first)
        rest = q / -math.expm1(-1.0 / self.scale)
        return np.asarray(np.exp(-up / self.scale) * (up + rest) / (1.0 + q))

    @staticmethod
    def _up(first: FloatArray) -> FloatArray:
        return np.where(first >= 1.0, first, 1.0 - first)


@dataclass(frozen=True)
class CountNoise:
    """The noise of one count and its threshold, in steps: released are x with count + x >= least."""

    tails: Tails
    steps: int
    least: float

    def passed(self, counts: FloatArray, truth: FloatArray) -> Passed:
        """Counts that meet noise, and the true ones that they are held against, which are not smaller."""
        first, short = self.first(counts), (truth - counts) * self.steps
        mass, moment = self.tails.mass(first), self.tails.moment(first)
        error = moment - short * mass
        # |x - s| = (s - x) + 2 (x - s)^+ where the threshold is below the truth.
        over = self.tails.moment(short) - short * self.tails.mass(short)
        distance = np.where(first > short, error, 2.0 * over - error)
        return Passed(mass, error / self.steps, distance / self.steps)

    def first(self, counts: FloatArray) -> FloatArray:
        """The least noise with which a count passes."""
        return np.asarray(self.least - counts * self.steps, dtype=np.float64)


def count_noise(noise: AnyNoise) -> CountNoise:
    """All the noise that one count gets before the threshold, its own and the shared, as one law.

    The sum of two discrete Gaussians is taken for one, which is right to about e^(-2 pi^2 variance).
    """
    if isinstance(noise, PublicNoise):
        raise InvalidParameter("a public list of items has no threshold: all of it is released")
    if isinstance(noise, LaplaceNoise):
        return CountNoise(LaplaceTails(float(noise.scale)), 1, noise.limit + 2)
    if isinstance(noise, Noise):
        return CountNoise(NormalTails(math.hypot(noise.sigma, noise.sigma_shared)), 1, noise.threshold)
    variance = float(noise.variance + noise.variance_shared)
    return CountNoise(LatticeTails(variance), noise.lattice, noise.lattice + noise.limit + 1)


def own_noise(noise: AnyNoise) -> CountNoise:
    """The same with the shared noise left out: what is left to chance once that is drawn."""
    if isinstance(noise, (LaplaceNoise, Noise)):
        return count_noise(noise)
    return CountNoise(LatticeTails(float(noise.variance)), noise.lattice, noise.lattice + noise.limit + 1)


def with_offset(noise: AnyNoise, above: FloatArray) -> Passed:
    """A top-k step: counts `above` what is subtracted, which comes back with the offset's own noise.

    With A what meets the threshold and E the error, both normal with correlation rho, and r^2 = 1 - rho^2, in
    units of E's deviation: E[|E|; A > t] = 2 phi(0) Q(t/r) + rho phi(t) (2 Phi(rho t/r) - 1), and the mean of E
    itself is rho phi(t).
    """
    if isinstance(noise, (LaplaceNoise, Noise)) or noise.offset == "none":
        raise InvalidParameter("this noise has no offset")
    meets, seen = count_noise(noise), float(noise.variance + noise.variance_shared)
    opposite = noise.offset == "opposite"
    spread = math.sqrt(float(noise.variance + (1 if opposite else 2) * noise.variance_shared))
    rho = float(noise.variance if opposite else noise.variance + noise.variance_shared) / (
        spread * math.sqrt(seen)
    )
    height = (meets.first(above) - 0.5) / math.sqrt(seen)
    density, rest = np.exp(-0.5 * height**2) / _ROOT, math.sqrt(1.0 - rho * rho)
    # Whole steps make the corner of |E| at zero blunter by a twelfth of a squared step.
    corner = 1.0 - 1.0 / (12.0 * spread**2)
    distance = 2.0 / _ROOT * corner * special.ndtr(-height / rest) + rho * density * special.erf(
        rho * height / (rest * math.sqrt(2.0))
    )
    scale = spread / noise.lattice
    return Passed(meets.tails.mass(meets.first(above)), scale * rho * density, scale * distance)


def release_probability(noise: AnyNoise, counts: FloatArray) -> FloatArray:
    """The probability that an item of so many users is released; zero counts never are."""
    found = np.asarray(counts, dtype=np.float64)
    meets = count_noise(noise)
    return np.where(found > 0.0, meets.tails.mass(meets.first(found)), 0.0)
