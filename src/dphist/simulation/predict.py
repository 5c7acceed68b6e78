"""What one plan would release of a population: expectations, by formulas and not by trials."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.errors import InvalidParameter
from dphist.planning.auto_cap import levels_of
from dphist.planning.utility import LatticeTails, Passed, count_noise, own_noise, with_offset
from dphist.privacy.types import LatticeNoise, Noise, Plan
from dphist.simulation.population import FloatArray, Population

# What a cap leaves of a count: users drop out at random, each with a chance of their own.

_REACH: Final = 6.0
# Points to a standard deviation: sums over every s-th value of a smooth law are as good as over all.
_POINTS: Final = 4.0
_NOTHING: Final = 1e-9


@dataclass(frozen=True)
class Thinned:
    """Values that counts may have, each with its probability and the place of its count."""

    place: NDArray[np.int64]
    left: FloatArray
    weight: FloatArray


def lost_users(counts: FloatArray, mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How many users of each count may drop out, and with which chance: by the mean and variance of what is left.

    The number that is lost is a sum of independent chances. It is taken for binomial with the same mean and, up to
    the rounding of the number of trials, the same variance. That is exact where all chances are equal.
    """
    loss = np.maximum(counts - mean, 0.0)
    loss = np.where(loss < _NOTHING * counts, 0.0, loss)
    trials = np.rint(loss**2 / np.maximum(loss - np.minimum(variance, loss), _NOTHING * np.maximum(loss, 1.0)))
    trials = np.clip(trials, np.ceil(loss), counts)
    return trials, np.clip(loss / np.maximum(trials, 1.0), 0.0, 1.0 - 1e-12)


def thin_counts(counts: FloatArray, mean: FloatArray, variance: FloatArray) -> Thinned:
    """The law of what is left of each count, by its mean and variance."""
    trials, chance = lost_users(counts, mean, variance)
    centre, spread = trials * chance, np.sqrt(trials * chance * (1.0 - chance))
    stride = np.maximum(1.0, np.floor(spread / _POINTS))
    low = np.maximum(0.0, np.floor(centre - _REACH * spread) - 3.0)
    low = np.where(centre == 0.0, 0.0, low)
    high = np.where(centre == 0.0, 0.0, np.minimum(trials, np.ceil(centre + _REACH * spread) + 3.0))
    number = ((high - low) // stride + 1.0).astype(np.int64)
    place = np.repeat(np.arange(counts.size), number)
    within = np.arange(place.size) - np.repeat(np.cumsum(number) - number, number)
    gone: FloatArray = low[place] + stride[place] * within
    weight = _binomial(gone, trials[place], chance[place])
    weight /= np.bincount(place, weight, counts.size)[place]
    return Thinned(place, counts[place] - gone, weight)


def _binomial(k: FloatArray, n: FloatArray, p: FloatArray) -> FloatArray:
    """The binomial law."""
    log_ways = special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)
    return np.asarray(np.exp(log_ways + special.xlogy(k, p) + special.xlog1py(n - k, -p)))


# Counts so many deviations below the threshold are never released: 1e-19 each.
_HOPELESS: Final = 9.0
# In squared steps: from there on sums over the lattice are integrals to four digits.
_FINE: Final = 1000
_CHUNK: Final = 1 << 14
BANDS: Final = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True, eq=False)
class Totals:
    """Expectations over all items. All but the variance are linear, so that plans can be mixed.

    `released` items, the weight of the pairs `kept` in them, the sums of their `error`, of their `distance` from
    the truth and of that `relative` to it; `missed` are the true users of items that are not released. An estimate
    is the count times `factor`; `estimate` is the sum of the estimates' distances. By true counts: the released
    items (`bands`), and the sum of their estimates' errors relative to the truth (`estimate_errors`).
    """

    released: float
    variance: float
    kept: float
    error: float
    distance: float
    relative: float
    missed: float
    factor: float
    estimate: float
    bands: FloatArray
    estimate_errors: FloatArray

    def plus(self, other: Totals) -> Totals:
        """Of other items as well, with the same factor."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in _FIELDS}
        return Totals(**{**sums, "factor": self.factor})


_FIELDS: Final = tuple(Totals.__dataclass_fields__)


def mixed(parts: Iterable[tuple[float, Totals]]) -> Totals:
    """One of several plans by chance: shares that sum to one, and what each of them releases."""
    listed = list(parts)
    means = {name: sum(share * getattr(totals, name) for share, totals in listed) for name in _FIELDS}
    between = sum(share * (totals.released - means["released"]) ** 2 for share, totals in listed)
    return Totals(**{**means, "variance": means["variance"] + between})


def totals_of(
    plan: Plan, population: Population, *, cap: int | None = None, factor: float | None = None
) -> Totals:
    """What a plan releases of a population, each user having at most `cap` random items, or the plan's levels.

    `factor` is what estimates multiply counts by; by default what makes the sum of all counts right.
    """
    if isinstance(plan.noise, Noise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    if plan.mechanism == "known-domain":
        raise InvalidParameter("all of a public list is released: there is nothing to predict")
    floor = population.count_at(int(plan.contract.nonzero) + 1) if plan.releases_offset else 0.0
    limit = None if plan.releases_offset else levels_of(plan) if plan.levels else cap
    truth, (mean, variance) = population.counts, population.under(limit)
    if factor is None:
        left = float(mean @ population.number)
        factor = float(truth @ population.number) / left if left > 0.0 else 1.0
    hope = np.flatnonzero(truth - floor > max(0.0, least_hope(plan)))
    found = _nothing(population, factor)
    chance = hope
    if isinstance(plan.noise, LatticeNoise) and plan.noise.variance >= _FINE and not plan.releases_offset:
        spread = np.sqrt(variance[hope] + plan.total_noise**2)
        sure = mean[hope] - plan.threshold > _HOPELESS * spread
        # Weighted counts have so many values, and so fine steps, that with noise they are as good as normal.
        normal = hope if plan.levels else hope[sure]
        found = found.plus(
            _normal(plan, truth[normal], population.number[normal], mean[normal], variance[normal], factor)
        )
        chance = hope[~sure]
        hope = hope[:0] if plan.levels else chance
    for start in range(0, hope.size, _CHUNK):
        part = hope[start : start + _CHUNK]
        number = population.number[part]
        if plan.releases_offset:
            found = found.plus(_topped(plan, truth[part], number, floor))
        else:
            found = found.plus(_capped(plan, truth[part], number, mean[part], variance[part], factor))
    shared = _shared_variance(plan, np.rint(mean[chance]) - floor, population.number[chance])
    return replace(found, variance=found.variance + shared)


def least_hope(plan: Plan) -> float:
    """The least count, less what is subtracted, that may be released at all."""
    meets = count_noise(plan.noise)
    return (meets.least - meets.tails.reach) / meets.steps


def _nothing(population: Population, factor: float) -> Totals:
    """Where nothing is released all users are missed."""
    missed = float(population.counts @ population.number)
    none = np.zeros(len(BANDS))
    return Totals(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, missed, factor, 0.0, none, none)


def _capped(
    plan: Plan, truth: FloatArray, number: FloatArray, mean: FloatArray, variance: FloatArray, factor: float
) -> Totals:
    """Items of which a cap leaves a random number of users."""
    law, noise = thin_counts(truth, mean, variance), count_noise(plan.noise)
    # A count of zero draws no noise and is never released.
    weight = np.where(law.left > 0.0, law.weight, 0.0)

    def over(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(law.place, weight * values, truth.size), dtype=np.float64)

    def against(target: FloatArray) -> Passed:
        passed = noise.moments_if_passed(law.left, target[law.place])
        return Passed(over(passed.probability), over(passed.error), over(passed.distance))

    counts = against(truth)
    estimates = counts if factor == 1.0 else against(truth / factor)
    kept = over(noise.tails.mass(noise.first(law.left)) * law.left)
    return _summed(counts, estimates, kept, truth, number, factor)


def _normal(
    plan: Plan, truth: FloatArray, number: FloatArray, mean: FloatArray, variance: FloatArray, factor: float
) -> Totals:
    """Items of which the limit leaves a random count that is together with its noise as good as normal.

    With S of the mean m and the variance s^2, of which v is that of what the limit leaves, and u = (t - m)/s:
    Pr[S > t] = Q(u), E[S - m; S > t] = s phi(u), and the kept part of S has the mean m Q(u) + v/s phi(u).
    """
    meets = count_noise(plan.noise)
    # Between the last count that does not pass and the first that does.
    threshold = (meets.least - 0.5) / meets.steps
    spread = np.sqrt(variance + plan.total_noise**2)

    def above(point: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        height = (point - mean) / spread
        return special.ndtr(-height), np.exp(-0.5 * height**2) / math.sqrt(2.0 * math.pi)

    probability, density = above(threshold)

    def against(target: FloatArray) -> Passed:
        error = (mean - target) * probability + spread * density
        beyond, at = above(target)
        over = (mean - target) * beyond + spread * at
        # |x - s| = (s - x) + 2 (x - s)^+ where the threshold is below the target.
        return Passed(probability, error, np.where(target < threshold, error, 2.0 * over - error))

    kept = mean * probability + variance / spread * density
    return _summed(against(truth), against(truth / factor), kept, truth, number, factor)


def _topped(plan: Plan, truth: FloatArray, number: FloatArray, floor: float) -> Totals:
    """Items from which a top-k step subtracts the count after the largest."""
    passed = with_offset(plan.noise, truth - floor)
    return _summed(passed, passed, passed.probability * truth, truth, number, 1.0)


def _summed(
    counts: Passed, estimates: Passed, kept: FloatArray, truth: FloatArray, number: FloatArray, factor: float
) -> Totals:
    """Sums over items; `estimates` are against the truth over the factor, in units of counts."""
    probability = counts.probability
    band = np.searchsorted(np.array(BANDS), truth, side="right") - 1

    def by_band(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(band, values * number, len(BANDS)), dtype=np.float64)

    return Totals(
        released=float(probability @ number),
        variance=float((probability * (1.0 - probability)) @ number),
        kept=float(kept @ number),
        error=float(counts.error @ number),
        distance=float(counts.distance @ number),
        relative=float((counts.distance / truth) @ number),
        missed=-float((probability * truth) @ number),
        factor=factor,
        estimate=factor * float(estimates.distance @ number),
        bands=by_band(probability),
        estimate_errors=by_band(factor * estimates.error / truth),
    )


def in_bands(population: Population) -> list[tuple[int, int]]:
    """How many items there are, by true counts: where each band begins, and its items."""
    band = np.searchsorted(np.array(BANDS), population.counts, side="right") - 1
    return list(zip(BANDS, np.bincount(band, population.number, len(BANDS)).astype(int).tolist(), strict=True))


def _shared_variance(plan: Plan, counts: FloatArray, number: FloatArray) -> float:
    """What the shared noise adds to the variance of the number of items: it moves all of them together."""
    noise = plan.noise
    if not isinstance(noise, LatticeNoise) or noise.variance_shared == 0:
        return 0.0
    own, shared = own_noise(noise), LatticeTails(float(noise.variance_shared))
    # Of the others all are released, or none, whatever is drawn.
    open_to_chance = np.abs(own.first(counts)) < own.tails.reach + shared.reach
    counts, number = counts[open_to_chance], number[open_to_chance]
    drawn, weights = shared.points()
    alone = np.array([own.tails.mass(own.first(counts) - shift) for shift in drawn])
    items = alone @ number
    # p(1 - p) with the average p counts each item's own share of this already.
    each = weights @ (alone - weights @ alone) ** 2
    return max(0.0, float(weights @ (items - weights @ items) ** 2) - float(each @ number))
