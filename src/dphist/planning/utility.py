"""What a plan means: how likely a count is released, and its error if it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, singledispatch
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dphist.errors import InvalidParameter
from dphist.model import AnyNoise, LaplaceNoise, LatticeNoise, Noise
from dphist.proof.numerics import FloatArray

_ROOT: Final = math.sqrt(2.0 * math.pi)
# In squared steps: up to here the distribution is summed; beyond, the Euler-Maclaurin formula is as good.
_SUMMED: Final = 1e6
_REACH: Final = 15.0
# Points per standard deviation: for a smooth function, sums over every s-th value are as good as over all.
_POINTS: Final = 4.0
# Normal noise is a lattice with this many steps (as a power of two) per standard deviation, to 12 digits.
_CONTINUOUS_BITS: Final = 40


class TailMoments(NamedTuple):
    """The part of symmetric noise X from n on: Pr[X >= n], E[X; X >= n] and E[X^2; X >= n]."""

    mass: FloatArray
    moment: FloatArray
    square: FloatArray


@dataclass(frozen=True)
class LatticeTails:
    """A discrete Gaussian: Pr[x] proportional to exp(-x^2/(2 variance)) on whole steps.

    Up to a deviation of 1,000 steps the terms are summed, smallest first. Beyond, the sum over x >= n of g is the
    integral from t = n - 1/2 plus g'(t)/24, by Euler and Maclaurin, which leaves out 7 h^4/5760 of it, with
    h = t/variance.
    Guarantee: relative errors below 1e-12 where terms are summed, and below 1e-10 beyond, up to 12 deviations.
    Valid for: variance >= 1. A `first` that is not a whole number is rounded up.
    """

    variance: float

    @property
    def reach(self) -> float:
        """Larger noise has a probability below 1e-18."""
        return 9.0 * math.sqrt(self.variance)

    def above(self, first: FloatArray) -> TailMoments:
        n = np.ceil(first)
        if self.variance <= _SUMMED:
            sums = _sums_above(self.variance)
            place = np.minimum(_mirror(n), sums.mass.size - 1.0).astype(np.int64)
            return _unmirror(n, *(column[place] for column in sums), variance=2.0 * float(sums.square[1]))
        t, sigma = n - 0.5, math.sqrt(self.variance)
        density = np.asarray(np.exp(-0.5 * t * t / self.variance) / (_ROOT * sigma))
        tail = special.ndtr(-t / sigma)
        return TailMoments(
            np.asarray(tail - t / self.variance * density / 24.0),
            density * (self.variance + (1.0 - t * t / self.variance) / 24.0),
            self.variance * (tail + t * density) + (2.0 * t - t**3 / self.variance) * density / 24.0,
        )

    def points(self) -> tuple[FloatArray, FloatArray]:
        """Enough whole steps, with probabilities, to average a smooth function as exactly as over all of them."""
        sigma = math.sqrt(self.variance)
        stride = max(1.0, math.floor(sigma / _POINTS))
        steps = stride * np.arange(-math.ceil(8.0 * sigma / stride), math.ceil(8.0 * sigma / stride) + 1.0)
        weights = np.exp(-0.5 * steps**2 / self.variance)
        return steps, weights / weights.sum()


@lru_cache(maxsize=32)
def _sums_above(variance: float) -> TailMoments:
    """`TailMoments` for n = 0, 1, ..."""
    x = np.arange(math.ceil(_REACH * math.sqrt(variance)) + 2, dtype=np.float64)
    weights = np.exp(-0.5 * x * x / variance)
    # From the small end, so that no digit is lost.
    weights /= 2.0 * float(np.cumsum(weights[::-1])[-1]) - 1.0
    return TailMoments(*(np.append(np.cumsum((weights * x**p)[::-1])[::-1], 0.0) for p in range(3)))


@dataclass(frozen=True)
class LaplaceTails:
    """Pr[x] = (1 - q)/(1 + q) q^|x| on whole numbers, with q = e^(-1/scale): geometric from 1 on.

        Pr[X >= n] = q^n/(1 + q),  E[X; X >= n] = (n + r) q^n/(1 + q),
        E[X^2; X >= n] = (n^2 + 2 n r + r + 2 r^2) q^n/(1 + q)     for n >= 1, with r = q/(1 - q)

    Guarantee: exact up to rounding.
    Valid for: scale > 0. A `first` that is not a whole number is rounded up.
    """

    scale: float

    @property
    def reach(self) -> float:
        """Larger noise has a probability below 1e-18."""
        return 45.0 * self.scale

    def above(self, first: FloatArray) -> TailMoments:
        n = np.ceil(first)
        up, r = _mirror(n), math.exp(-1.0 / self.scale) / -math.expm1(-1.0 / self.scale)
        tail = np.asarray(np.exp(-up / self.scale) / (1.0 + math.exp(-1.0 / self.scale)), dtype=np.float64)
        square = tail * (up * up + 2.0 * up * r + r + 2.0 * r**2)
        return _unmirror(n, tail, tail * (up + r), square, variance=2.0 * r * (1.0 + r))


Tails = LatticeTails | LaplaceTails


def _mirror(n: FloatArray) -> FloatArray:
    """n where n >= 1; otherwise 1 - n: X >= 1 - n is the mirror image of what X >= n leaves out."""
    return np.where(n >= 1.0, n, 1.0 - n)


def _unmirror(
    n: FloatArray, mass: FloatArray, moment: FloatArray, square: FloatArray, *, variance: float
) -> TailMoments:
    """From the sums at `_mirror(n)` to those at n. The mean of all noise is 0, so the moment is the same."""
    up = n >= 1.0
    return TailMoments(np.where(up, mass, 1.0 - mass), moment, np.where(up, square, variance - square))


class ReleaseMoments(NamedTuple):
    """For each count: the probability of release, and the means of error and |error| over that event."""

    probability: FloatArray
    error: FloatArray
    distance: FloatArray


@dataclass(frozen=True)
class CountNoise:
    """The noise of one count and its threshold, in steps: a count is released if count + noise >= least.

    Reports, simulations and the page all compute release probabilities and errors here.
    With the opposite offset of a top-k step, Z + W is compared with the threshold, but Z + Z_c is published. Given
    S = Z + W, Z has the mean rho S and the variance rho sigma_shared^2, rho = sigma^2/(sigma^2 + sigma_shared^2).
    So `part` of S is in the published count, and independent noise of the variance `rest`.
    """

    tails: Tails
    steps: float
    least: float
    part: float = 1.0
    rest: float = 0.0

    def first(self, counts: ArrayLike) -> FloatArray:
        """The least noise with which a count passes."""
        return np.asarray(self.least - np.asarray(counts, dtype=np.float64) * self.steps, dtype=np.float64)

    def probability(self, counts: ArrayLike) -> FloatArray:
        """The probability that a count, less what a top-k step subtracts, is released. One of zero never is."""
        return np.where(np.asarray(counts) > 0.0, self.tails.above(self.first(counts)).mass, 0.0)

    def passing_count(self, chance: float) -> int:
        """The least count that is released with at least this probability, which is in (0, 1)."""
        low, high = 0, 1
        while self.probability(high) < chance:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.probability(middle) >= chance else (middle, high)
        return high

    def released(self, counts: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The probability of release; mean and variance of the error of a released count."""
        above = self.tails.above(self.first(counts))
        kept = np.maximum(above.mass, 1e-300)
        mean = above.moment / kept
        variance = np.maximum(above.square / kept - mean**2, 0.0)
        error, deviation = self.part * mean / self.steps, (self.part**2 * variance + self.rest) / self.steps**2
        return self.probability(counts), error, deviation

    def moments_if_passed(self, counts: FloatArray, truth: FloatArray) -> ReleaseMoments:
        """The errors of `counts`, which get noise, against the `truth`, which is at least as large."""
        first, short = self.first(counts), (truth - counts) * self.steps
        mass, moment, _ = self.tails.above(first)
        error = moment - short * mass
        # |x - s| = (s - x) + 2 (x - s)^+ where the threshold is below the truth.
        beyond = self.tails.above(short)
        over = beyond.moment - short * beyond.mass
        distance = np.where(first > short, error, 2.0 * over - error)
        return ReleaseMoments(mass, error / self.steps, distance / self.steps)


@singledispatch
def count_noise(noise: AnyNoise) -> CountNoise:
    """All the noise that is added to one count before the threshold, its own and the shared, as one distribution.

    The sum of two discrete Gaussians of variances a and b is treated as one, which is exact to
    e^(-2 pi^2 ab/(a+b)): below 1e-16 for the smallest variances there are, 4 squared steps.
    """
    raise InvalidParameter(f"in {noise.mechanism} the noise of a count depends on what is found")


@count_noise.register(LaplaceNoise)
def _laplace_noise(noise: LaplaceNoise) -> CountNoise:
    return CountNoise(LaplaceTails(float(noise.scale)), 1, noise.tau_steps + 2)


@count_noise.register(Noise)
def _continuous_noise(noise: Noise) -> CountNoise:
    steps = 2.0 ** (_CONTINUOUS_BITS - math.frexp(noise.total_noise)[1])
    return CountNoise(LatticeTails((noise.total_noise * steps) ** 2), steps, noise.threshold * steps)


@count_noise.register(LatticeNoise)
def _lattice_noise(noise: LatticeNoise) -> CountNoise:
    if noise.public:
        raise InvalidParameter("a public list of items has no threshold: all of it is released")
    own, shared = float(noise.variance), float(noise.variance_shared)
    part, rest = 1.0, 0.0
    if noise.offset == "opposite":
        part = own / (own + shared)
        rest = part * shared + shared
    elif noise.offset == "independent":
        rest = shared
    return CountNoise(LatticeTails(own + shared), noise.lattice, noise.lattice + noise.tau_steps + 1, part, rest)


def moments_with_offset(noise: AnyNoise, above: FloatArray, short: ArrayLike = 0.0) -> ReleaseMoments:
    """`moments_if_passed` for a top-k step, of counts `above` the one that is subtracted.

    `short` is what a limit on users has removed from each of them. With A the noise at the threshold and E the
    published error, both treated as normal with correlation rho, in units of their deviations, r^2 = 1 - rho^2 and
    a = `short`,

        E[(E - a)^+; A > t] = phi(a) Q((t - rho a)/r) + rho phi(t) Q((a - rho t)/r) - a Pr[E > a, A > t].

    Guarantee: probability and error are as exact as the tails, the distance to 1/variance of its steps.
    """
    if not isinstance(noise, LatticeNoise) or noise.offset == "none":
        raise InvalidParameter("this noise has no offset")
    law = count_noise(noise)
    first, variance = law.first(above), float(noise.variance + noise.variance_shared)
    deviation = math.sqrt(law.part**2 * variance + law.rest)
    rho = law.part * math.sqrt(variance) / deviation
    height, lost = (first - 0.5) / math.sqrt(variance), np.asarray(short) * noise.lattice / deviation
    r = math.sqrt(1.0 - rho * rho)
    mass, moment, _ = law.tails.above(first)
    # Whole steps make the corner of |E| at zero blunter by a twelfth of a squared step.
    corner = 1.0 - 1.0 / (12.0 * deviation**2)
    density = rho * np.exp(-0.5 * height**2) / _ROOT
    over = corner * np.exp(-0.5 * lost**2) / _ROOT * special.ndtr((rho * lost - height) / r)
    over += density * special.ndtr((rho * height - lost) / r) - lost * _both_above(lost, height, rho)
    # |x - a| = 2 (x - a)^+ - (x - a).
    distance = 2.0 * over - density + lost * mass
    error = law.part * moment / noise.lattice - np.asarray(short) * mass
    return ReleaseMoments(mass, error, deviation / noise.lattice * distance)


def _both_above(x: FloatArray, y: FloatArray, rho: float) -> FloatArray:
    """Pr[X > x, Y > y] of standard normal variables with this correlation, by Owen's function; x >= 0."""
    x, y = np.maximum(x, 1e-300), np.where(y == 0.0, 1e-300, y)
    r = math.sqrt(1.0 - rho * rho)
    parts = special.owens_t(x, (y / x - rho) / r) + special.owens_t(y, (x / y - rho) / r)
    return np.asarray(0.5 * (special.ndtr(-x) + special.ndtr(-y)) - parts - np.where(y < 0.0, 0.5, 0.0))
