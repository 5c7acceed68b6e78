"""What one plan would release of a population: expectations, by formulas and not by trials."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.errors import InvalidParameter
from dphist.planning.utility import LatticeTails, Passed, count_noise, own_noise, with_offset
from dphist.privacy.types import LatticeNoise, Noise, Plan
from dphist.simulation.population import FloatArray, IntArray, Population

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

    `released` items, the pairs `kept` in them, the sums of their `error`, of their `distance` from the truth and
    of that `relative` to it; `missed` are the true users of items that are not released; `bands` are released
    items by true counts.
    """

    released: float
    variance: float
    kept: float
    error: float
    distance: float
    relative: float
    missed: float
    bands: FloatArray

    def plus(self, other: Totals) -> Totals:
        """Of other items as well."""
        return Totals(*(getattr(self, name) + getattr(other, name) for name in _FIELDS))


_FIELDS: Final = tuple(Totals.__dataclass_fields__)


def mixed(parts: Iterable[tuple[float, Totals]]) -> Totals:
    """One of several plans by chance: shares that sum to one, and what each of them releases."""
    listed = list(parts)
    means = {name: sum(share * getattr(totals, name) for share, totals in listed) for name in _FIELDS}
    between = sum(share * (totals.released - means["released"]) ** 2 for share, totals in listed)
    return Totals(**{**means, "variance": means["variance"] + between})


def totals_of(plan: Plan, population: Population, *, cap: int | None = None) -> Totals:
    """What a plan releases of a population, each user having at most `cap` random items."""
    if isinstance(plan.noise, Noise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    if plan.mechanism == "known-domain":
        raise InvalidParameter("all of a public list is released: there is nothing to predict")
    floor = population.count_at(int(plan.contract.nonzero) + 1) if plan.releases_offset else 0.0
    truth, (mean, variance) = population.counts, population.under(None if plan.releases_offset else cap)
    hope = np.flatnonzero(truth - floor > max(0.0, least_hope(plan)))
    found = _nothing(population)
    if isinstance(plan.noise, LatticeNoise) and plan.noise.variance >= _FINE and not plan.releases_offset:
        spread = np.sqrt(variance[hope] + plan.total_noise**2)
        sure = mean[hope] - plan.threshold > _HOPELESS * spread
        found = found.plus(_certain(plan, truth, population.number, mean, variance, hope[sure]))
        hope = hope[~sure]
    for start in range(0, hope.size, _CHUNK):
        part = hope[start : start + _CHUNK]
        number = population.number[part]
        if plan.releases_offset:
            found = found.plus(_topped(plan, truth[part], number, floor))
        else:
            found = found.plus(_capped(plan, truth[part], number, mean[part], variance[part]))
    shared = _shared_variance(plan, np.rint(mean[hope]) - floor, population.number[hope])
    return found.plus(Totals(0.0, shared, 0.0, 0.0, 0.0, 0.0, 0.0, np.zeros(len(BANDS))))


def least_hope(plan: Plan) -> float:
    """The least count, less what is subtracted, that may be released at all."""
    meets = count_noise(plan.noise)
    return (meets.least - meets.tails.reach) / meets.steps


def _nothing(population: Population) -> Totals:
    """Where nothing is released all users are missed."""
    missed = float(population.counts @ population.number)
    return Totals(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, missed, np.zeros(len(BANDS)))


def _capped(plan: Plan, truth: FloatArray, number: FloatArray, mean: FloatArray, variance: FloatArray) -> Totals:
    """Items of which a cap leaves a random number of users."""
    law = thin_counts(truth, mean, variance)
    passed = count_noise(plan.noise).moments_if_passed(law.left, truth[law.place])
    # A count of zero draws no noise and is never released.
    weight = np.where(law.left > 0.0, law.weight, 0.0)

    def over(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(law.place, weight * values, truth.size), dtype=np.float64)

    means = Passed(over(passed.probability), over(passed.error), over(passed.distance))
    return _summed(means, over(passed.probability * law.left), truth, number)


def _certain(
    plan: Plan, truth: FloatArray, number: FloatArray, mean: FloatArray, variance: FloatArray, where: IntArray
) -> Totals:
    """Items that are released for sure: what a cap leaves and noise are together as good as normal.

    E|N(b, s^2)| = s sqrt(2/pi) exp(-b^2/(2 s^2)) + b erf(b/(s sqrt 2))
    """
    bias = mean[where] - truth[where]
    spread = np.sqrt(variance[where] + plan.total_noise**2)
    z = bias / (spread * math.sqrt(2.0))
    distance = spread * math.sqrt(2.0 / math.pi) * np.exp(-z * z) + bias * special.erf(z)
    return _summed(Passed(np.ones_like(bias), bias, distance), mean[where], truth[where], number[where])


def _topped(plan: Plan, truth: FloatArray, number: FloatArray, floor: float) -> Totals:
    """Items from which a top-k step subtracts the count after the largest."""
    passed = with_offset(plan.noise, truth - floor)
    return _summed(passed, passed.probability * truth, truth, number)


def _summed(passed: Passed, kept: FloatArray, truth: FloatArray, number: FloatArray) -> Totals:
    probability = passed.probability
    band = np.searchsorted(np.array(BANDS), truth, side="right") - 1
    return Totals(
        float(probability @ number),
        float((probability * (1.0 - probability)) @ number),
        float(kept @ number),
        float(passed.error @ number),
        float(passed.distance @ number),
        float((passed.distance / truth) @ number),
        -float((probability * truth) @ number),
        np.asarray(np.bincount(band, probability * number, len(BANDS)), dtype=np.float64),
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
