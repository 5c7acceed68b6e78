"""What a plan means: how likely a count is released, how far off it then is, and how much the budget protects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dphist.display import plain_number
from dphist.errors import InvalidParameter
from dphist.privacy.numerics import FloatArray
from dphist.privacy.types import AnyNoise, Budget, LaplaceNoise, LatticeNoise, Noise, Plan, PublicNoise

# Symmetric laws above a point: mass(n) = Pr[X >= n], moment(n) and square(n) the means of X and X^2 where X >= n
# and of 0 elsewhere. Noise above `reach` has a probability below 1e-18.

_ROOT: Final = math.sqrt(2.0 * math.pi)
# In squared steps: up to here the law is summed, beyond the formula of Euler and Maclaurin is as good.
_SUMMED: Final = 1e6
_REACH: Final = 15.0
# Points to a standard deviation: sums over every s-th value of a smooth law are as good as over all.
_POINTS: Final = 4.0


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
    Valid for: variance >= 1. A `first` that is not a whole number is rounded up.
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
            beyond = self._power_sums(0, n)
            return np.where(n >= 1.0, beyond, 1.0 - beyond)
        t = n - 0.5
        whole = special.ndtr(-t / math.sqrt(self.variance))
        return np.asarray(whole - t / self.variance * self._density(t) / 24.0, dtype=np.float64)

    def moment(self, first: FloatArray) -> FloatArray:
        """The mean of X where X >= first. That of all is zero, so that it is even."""
        n = np.ceil(first)
        if self.variance <= _SUMMED:
            return self._power_sums(1, n)
        t = n - 0.5
        return self._density(t) * (self.variance + (1.0 - t * t / self.variance) / 24.0)

    def square(self, first: FloatArray) -> FloatArray:
        """The mean of X^2 where X >= first."""
        n = np.ceil(first)
        if self.variance <= _SUMMED:
            beyond, all_of = self._power_sums(2, n), 2.0 * _sums_above(self.variance)[2][1]
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

    def _power_sums(self, power: int, n: FloatArray) -> FloatArray:
        """The sum of x^power over x >= n, or over x > -n where n is not above zero."""
        sums = _sums_above(self.variance)[power]
        place = np.minimum(_mirror(n), sums.size - 1.0).astype(np.int64)
        return np.asarray(sums[place], dtype=np.float64)

    def _density(self, t: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * t * t / self.variance) / (_ROOT * math.sqrt(self.variance)))


def _mirror(first: FloatArray) -> FloatArray:
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
    Valid for: scale > 0. A `first` that is not a whole number is rounded up.
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
        return self._beyond(n) * (_mirror(n) + self._rest)

    def square(self, first: FloatArray) -> FloatArray:
        """q^n (n^2 + 2 n r + r + 2 r^2)/(1 + q) from n = 1 on, and by symmetry below: all is 2 r (1 + r)."""
        n, rest = np.ceil(first), self._rest
        up = _mirror(n)
        beyond = self._beyond(n) * (up * up + 2.0 * up * rest + rest + 2.0 * rest**2)
        return np.where(n >= 1.0, beyond, 2.0 * rest * (1.0 + rest) - beyond)

    @property
    def _rest(self) -> float:
        return math.exp(-1.0 / self.scale) / -math.expm1(-1.0 / self.scale)

    def _beyond(self, n: FloatArray) -> FloatArray:
        tail = np.exp(-_mirror(n) / self.scale) / (1.0 + math.exp(-1.0 / self.scale))
        return np.asarray(tail, dtype=np.float64)


Tails = NormalTails | LatticeTails | LaplaceTails

# The one law of release: how likely a count is to pass the threshold, and how far off it then is.
#
# A count c meets noise X in steps of 1/lattice and is released if lattice c + X > lattice + limit, strictly. So
# all is in three sums over the law of X: Pr[X >= n], E[X; X >= n] and E[X^2; X >= n], where n is the least noise
# that lifts the count. Reports, simulations and the page all take them from here. No data is looked at.


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


# The columns of estimates, where there are any.
ESTIMATE: Final = "estimate"
ESTIMATES: Final = tuple(ESTIMATE + end for end in ("", "_standard_error", "_low", "_high"))


@dataclass(frozen=True)
class Correction:
    """What a count is multiplied by to estimate the number of users: `factors` at some `counts`, and their errors.

    Between two counts the factor is interpolated; below the first and above the last it does not change. It is
    largest for rare items: a common item is one that many users have whatever the number of their items.
    """

    counts: tuple[float, ...]
    factors: tuple[float, ...]
    errors: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = np.array([self.counts, self.factors, self.errors], dtype=np.float64)
        if not (numbers.shape[1] and np.isfinite(numbers).all() and (numbers >= 0.0).all()):
            raise InvalidParameter("a correction needs counts with finite factors and errors")
        if (np.diff(numbers[0]) <= 0.0).any() or (numbers[1] < 1.0).any():
            raise InvalidParameter("a correction needs increasing counts, and factors of at least one")

    @property
    def factor(self) -> float:
        """The factor of rare items."""
        return self.factors[0]

    @property
    def error(self) -> float:
        """The standard error of the factor of rare items."""
        return self.errors[0]

    def factors_at(self, counts: ArrayLike) -> FloatArray:
        """The factor of each count."""
        return np.interp(np.asarray(counts, dtype=np.float64), self.counts, self.factors)

    def errors_at(self, counts: ArrayLike) -> FloatArray:
        """The standard error of the factor of each count."""
        return np.interp(np.asarray(counts, dtype=np.float64), self.counts, self.errors)

    def to_dict(self) -> dict[str, list[float]]:
        """Plain data."""
        return {
            "counts": list(self.counts),
            "factors": list(self.factors),
            "standard_errors": list(self.errors),
        }


def added_columns(
    counts: NDArray[np.float64],
    plan: Plan,
    name: str,
    *,
    error: bool,
    interval: float | None,
    rounded: bool,
    correction: Correction | None = None,
) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
    """The counts as they are to be published, and the columns beside them that were asked for.

    With a `correction`, an estimate of the number of users follows, with the same columns.
    """
    published = np.rint(counts).astype(np.int64) if rounded else counts
    # Rounding adds its own error, uniform on half a count to either side at worst.
    spread = math.hypot(plan.total_noise, math.sqrt(1.0 / 12.0) if rounded else 0.0)
    width = 0.0 if interval is None else half_width(plan, interval) + (0.5 if rounded else 0.0)
    added = _beside(name, published, spread, width, error=error, interval=interval is not None)
    if correction is not None:
        # Estimates rise more slowly than counts: the factor is an upper bound of what noise is multiplied by.
        factors = correction.factors_at(published)
        estimate: NDArray[Any] = np.rint(published * factors).astype(np.int64) if rounded else published * factors
        of_factor = np.abs(published) * correction.errors_at(published)
        outside = 0.0 if interval is None else -float(special.ndtri((1.0 - interval) / 2.0))
        added[ESTIMATE] = estimate
        added |= _beside(
            ESTIMATE, estimate, np.hypot(spread * factors, of_factor),
            np.hypot(width * factors, outside * of_factor) + (0.5 if rounded else 0.0),
            error=error, interval=interval is not None,
        )  # fmt: skip
    return published, added


def _beside(
    name: str,
    values: NDArray[Any],
    spread: FloatArray | float,
    width: FloatArray | float,
    *,
    error: bool,
    interval: bool,
) -> dict[str, NDArray[Any]]:
    """The standard error and the ends of the interval of a column, as far as they were asked for."""
    added: dict[str, NDArray[Any]] = {f"{name}_standard_error": np.full(values.size, spread)} if error else {}
    if interval:
        low, high = values - width, values + width
        # Whole numbers have whole intervals, rounded outwards.
        whole = values.dtype == np.int64
        added[f"{name}_low"] = np.floor(low).astype(np.int64) if whole else np.asarray(low)
        added[f"{name}_high"] = np.ceil(high).astype(np.int64) if whole else np.asarray(high)
    return added


# How much a budget protects, in words, so that commands, reports and the page agree.

LEVELS: Final = ("strong", "moderate", "weak", "very weak")
# The largest epsilon of each level but the last. e^3 is 20: from there on a belief of 5 % may pass 50 %.
_EPSILONS: Final = (1.0, 3.0, 10.0)
# And the largest delta: one user in a hundred thousand, in a thousand, in ten.
_DELTAS: Final = (1e-5, 1e-3, 1e-1)


@dataclass(frozen=True)
class Verdict:
    """The level of protection, what it means for a guess about one person, and what to warn of."""

    level: str
    sentence: str
    warnings: tuple[str, ...]

    @property
    def weak(self) -> bool:
        """Whether it needs a warning."""
        return bool(self.warnings)


def verdict_of(budget: Budget, largest_count: float | None = None) -> Verdict:
    """How much a budget protects. With the largest released count, a delta above one over it is noticed too."""
    epsilon, delta = budget.epsilon, budget.delta
    of_epsilon = sum(epsilon > most for most in _EPSILONS)
    users = max(1.0, largest_count or 1.0)
    # Among so many users as one item has, delta should leave hardly one without protection.
    of_delta = max(sum(delta > most for most in _DELTAS), sum(delta * users > most for most in (0.1, 1.0)))
    level = LEVELS[max(of_epsilon, of_delta)]
    warnings = []
    if of_epsilon >= 2:
        near = "counts may be close to the true ones, and " if of_epsilon == 3 else ""
        warnings.append(
            f"ε = {plain_number(epsilon)} is a {LEVELS[of_epsilon]} guarantee: {near}a guess whether a given "
            f"person is in the data, 50 % before, may be right {_percent(right_guesses(budget))} of the time. Use "
            "ε of 1 or less for sensitive data."
        )
    if of_delta >= 2:
        many = f"1 in {1.0 / delta:,.0f} users" if delta < 0.5 else "most users"
        known = f", and one item has about {users:,.0f}" if delta * users > 1.0 and users > 1.0 else ""
        warnings.append(
            f"δ = {plain_number(delta)} is too large: it allows all data of {many} to be published{known}. "
            "Choose δ well below 1 / number of users."
        )
    sentence = (
        f"{level}: someone who thinks it as likely as not that a given person is in the data, and now guesses, is "
        f"right at most {_percent(right_guesses(budget))} of the time"
    )
    return Verdict(level, sentence, tuple(warnings))


def right_guesses(budget: Budget) -> float:
    """The largest share of right guesses whether one person is in the data, if both are as likely beforehand.

    Guarantee: for any test, Pr[right] = (1 + TV)/2, and (epsilon, delta) on both sides allow a total variation of
    TV <= (e^epsilon - 1 + 2 delta)/(e^epsilon + 1).
    """
    shrink = math.exp(-budget.epsilon)
    return min(1.0, (1.0 + budget.delta * shrink) / (1.0 + shrink))


def _percent(share: float) -> str:
    """Rounded up to a tenth of a percent."""
    return f"{math.ceil(1000.0 * share - 1e-9) / 10.0:g} %"
