"""What a plan means for a count: how likely it is released, how far off it then is, and intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dphist.errors import InvalidParameter
from dphist.privacy.noise import LaplaceNoise, LatticeNoise, Noise, PublicNoise
from dphist.privacy.tails import FloatArray, LaplaceTails, LatticeTails, NormalTails, Tails
from dphist.privacy.types import AnyNoise, Plan

# The one law of release: how likely a count is to pass the threshold, and how far off it then is.
#
# A count c meets noise X in steps of 1/lattice and is released if lattice c + X > lattice + limit, strictly. So
# all is in three sums over the law of X: Pr[X >= n], E[X; X >= n] and E[X^2; X >= n], where n is the least noise
# that lifts the count. Reports, simulations and the page all take them from here. No data is looked at.

_ROOT: Final = math.sqrt(2.0 * math.pi)


class Passed(NamedTuple):
    """Of counts: the probability to be released, and the means of error and of distance over that event."""

    probability: FloatArray
    error: FloatArray
    distance: FloatArray


@dataclass(frozen=True)
class CountNoise:
    """The noise of one count and its threshold, in steps: released are x with count + x >= least.

    Of what met the threshold `part` is in the published count, and beside it noise of the variance `rest` that
    had no say: with the opposite offset of a top-k step Z + W meets the threshold, and Z + Z_c is published. Given
    S = Z + W, Z has the mean rho S and the variance rho sigma_shared^2, rho = sigma^2/(sigma^2 + sigma_shared^2).
    """

    tails: Tails
    steps: int
    least: float
    part: float = 1.0
    rest: float = 0.0

    def first(self, counts: ArrayLike) -> FloatArray:
        """The least noise with which a count passes."""
        return np.asarray(self.least - np.asarray(counts, dtype=np.float64) * self.steps, dtype=np.float64)

    def probability(self, counts: ArrayLike) -> FloatArray:
        """The probability that a count is released; zero counts draw no noise and never are."""
        found = np.asarray(counts, dtype=np.float64)
        return np.where(found > 0.0, self.tails.mass(self.first(found)), 0.0)

    def passing_count(self, chance: float) -> int:
        """The least count that is released with at least this probability.

        Guarantee: it was tested by `probability`; one less does not have it.
        Valid for: chance in (0, 1).
        """
        low, high = 0, 1
        while self.probability(high) < chance:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.probability(middle) >= chance else (middle, high)
        return high

    def released(self, counts: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The probability of release, and the mean and the variance of the error of a count that is released."""
        first = self.first(counts)
        probability, kept = self.probability(counts), np.maximum(self.tails.mass(first), 1e-300)
        mean = self.tails.moment(first) / kept
        variance = np.maximum(self.tails.square(first) / kept - mean**2, 0.0)
        return probability, self.part * mean / self.steps, (self.part**2 * variance + self.rest) / self.steps**2

    def moments_if_passed(self, counts: FloatArray, truth: FloatArray) -> Passed:
        """Counts that meet noise, and the true ones that they are held against, which are not smaller."""
        first, short = self.first(counts), (truth - counts) * self.steps
        mass, moment = self.tails.mass(first), self.tails.moment(first)
        error = moment - short * mass
        # |x - s| = (s - x) + 2 (x - s)^+ where the threshold is below the truth.
        over = self.tails.moment(short) - short * self.tails.mass(short)
        distance = np.where(first > short, error, 2.0 * over - error)
        return Passed(mass, error / self.steps, distance / self.steps)


def count_noise(noise: AnyNoise) -> CountNoise:
    """All the noise that one count gets before the threshold, its own and the shared, as one law.

    The sum of two discrete Gaussians of variances a and b is taken for one, right to e^(-2 pi^2 ab/(a+b)): below
    1e-16 for the least that there are, 4 squared steps.
    """
    if isinstance(noise, PublicNoise):
        raise InvalidParameter("a public list of items has no threshold: all of it is released")
    if isinstance(noise, LaplaceNoise):
        return CountNoise(LaplaceTails(float(noise.scale)), 1, noise.limit + 2)
    if isinstance(noise, Noise):
        return CountNoise(NormalTails(math.hypot(noise.sigma, noise.sigma_shared)), 1, noise.threshold)
    own, shared = float(noise.variance), float(noise.variance_shared)
    part, rest = 1.0, 0.0
    if noise.offset == "opposite":
        part = own / (own + shared)
        rest = part * shared + shared
    elif noise.offset == "independent":
        rest = shared
    return CountNoise(LatticeTails(own + shared), noise.lattice, noise.lattice + noise.limit + 1, part, rest)


def release_probability(noise: AnyNoise, counts: ArrayLike) -> FloatArray:
    """The probability that an item of so many users, less what a top-k step subtracts, is released."""
    if isinstance(noise, PublicNoise):
        return np.ones_like(np.asarray(counts, dtype=np.float64))
    return count_noise(noise).probability(counts)


def own_noise(noise: LatticeNoise) -> CountNoise:
    """The same with the shared noise left out: what is left to chance once that is drawn."""
    return CountNoise(LatticeTails(float(noise.variance)), noise.lattice, noise.lattice + noise.limit + 1)


def with_offset(noise: AnyNoise, above: FloatArray) -> Passed:
    """A top-k step: counts `above` what is subtracted, which comes back with the offset's own noise.

    With A what meets the threshold and E the error, both taken for normal with correlation rho, and
    r^2 = 1 - rho^2, in units of E's deviation: E[|E|; A > t] = 2 phi(0) Q(t/r) + rho phi(t) (2 Phi(rho t/r) - 1).
    Guarantee: probability and error as exact as the tails, the distance to 1/variance of its steps.
    """
    if isinstance(noise, (LaplaceNoise, Noise)) or noise.offset == "none":
        raise InvalidParameter("this noise has no offset")
    meets = count_noise(noise)
    first, seen = meets.first(above), float(noise.variance + noise.variance_shared)
    spread = math.sqrt(meets.part**2 * seen + meets.rest)
    rho = meets.part * math.sqrt(seen) / spread
    height = (first - 0.5) / math.sqrt(seen)
    density, rest = np.exp(-0.5 * height**2) / _ROOT, math.sqrt(1.0 - rho * rho)
    # Whole steps make the corner of |E| at zero blunter by a twelfth of a squared step.
    corner = 1.0 - 1.0 / (12.0 * spread**2)
    distance = 2.0 / _ROOT * corner * special.ndtr(-height / rest) + rho * density * special.erf(
        rho * height / (rest * math.sqrt(2.0))
    )
    error = meets.part * meets.tails.moment(first) / noise.lattice
    return Passed(meets.tails.mass(first), error, spread / noise.lattice * distance)


def half_width(plan: Plan, share: float) -> float:
    """Half the width of an interval around a noisy count that holds the true one with at least this probability.

    Of one count, before the threshold chose: counts that barely passed are too high more often than that. Rounded
    up to the lattice of the noise.
    """
    noise, outside = plan.noise, 1.0 - share
    if isinstance(noise, LaplaceNoise):
        # Pr[|X| > t] = 2 q^(t+1)/(1+q)
        step = 1.0 / float(noise.scale)
        tail = math.log(outside * (1.0 + math.exp(-step)) / 2.0) / -step - 1.0
        return float(max(0, math.ceil(tail - 1e-9)))
    width = -float(special.ndtri(outside / 2.0)) * plan.total_noise
    return width if isinstance(noise, Noise) else math.ceil(width * noise.lattice) / noise.lattice


def shared_part(plan: Plan) -> float:
    """Covariance of any two released counts: the variance of what they share."""
    opposite = getattr(plan.noise, "offset", "none")
    return plan.sigma_shared**2 * (2 if opposite == "independent" else 1)


def added_columns(
    counts: NDArray[np.float64], plan: Plan, name: str, *, error: bool, interval: float | None, rounded: bool
) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
    """The counts as they are to be published, and the columns beside them that were asked for."""
    published = np.rint(counts).astype(np.int64) if rounded else counts
    added: dict[str, NDArray[Any]] = {}
    if error:
        # Rounding adds its own error, uniform on half a count to either side at worst.
        spread = math.hypot(plan.total_noise, math.sqrt(1.0 / 12.0) if rounded else 0.0)
        added[f"{name}_standard_error"] = np.full(counts.size, spread)
    if interval is not None:
        width = half_width(plan, interval) + (0.5 if rounded else 0.0)
        low, high = published - width, published + width
        # Whole counts have whole intervals, rounded outwards.
        added[f"{name}_low"] = np.floor(low).astype(np.int64) if rounded else np.asarray(low)
        added[f"{name}_high"] = np.ceil(high).astype(np.int64) if rounded else np.asarray(high)
    return published, added
