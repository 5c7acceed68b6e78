"""What a release in rounds would find in a population: its own code, over expected numbers instead of data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import stats

from dphist.aliases import ArrowArray, JsonObject
from dphist.certificate.numbers import count_decimals, rounded
from dphist.certificate.schema import Findings
from dphist.errors import InvalidParameter
from dphist.model import Plan, RoundsNoise
from dphist.planning.estimate import choose_limit, estimate
from dphist.planning.utility import ReleaseMoments
from dphist.proof.numerics import FloatArray, IntArray
from dphist.releasing.rounds import (
    Found,
    Measurement,
    bounds_of,
    evidence_of,
    find_items,
    findings_of,
    measure_items,
    rounds_noise,
)
from dphist.sampling.rng import SeededRng
from dphist.simulation.population import Population
from dphist.simulation.predict import Items, Totals, sum_over_items, trial_facts

# Draws for the items of a forecast: more for each item if there are few different counts.
_DRAWS: Final = 1 << 17
_MOST_DRAWS: Final = 256
_LEVEL: Final = 0.95
# Releases with more items are not forecast: each takes 500 bytes.
_MOST_RELEASED: Final = 1 << 18
# The errors of all counts share that of the measurement, so several forecasts are averaged.
_FORECASTS: Final = 8


@dataclass
class ExpectedCounts:
    """A population as the counts of a release in rounds: each number is its expected value.

    An item has the count of its group, `place`, and stands for `share` items. On the list of a user are the items
    that are left, in their share of all (user, item) pairs.
    """

    population: Population
    noise: RoundsNoise
    place: IntArray
    share: FloatArray
    known: NDArray[np.bool_]

    def __post_init__(self) -> None:
        self._left = np.ones(self.place.size, dtype=bool)
        self._first: FloatArray | None = None
        self._sizes, self._users = np.array(self.population.sizes, dtype=np.float64).T
        self._kept = np.minimum(self._sizes, self.noise.most_items)
        self._most = int(self._kept.max())

    @property
    def keeps(self) -> FloatArray:
        """The users of each group of items who keep it: no user keeps more than `most_items`."""
        return self.population.under(self.noise.most_items)[0]

    @property
    def items(self) -> int:
        return self.place.size

    @property
    def present(self) -> NDArray[np.bool_]:
        return np.ones(self.items, dtype=bool)

    @property
    def several(self) -> NDArray[np.bool_]:
        """The sizes of users in the group of several."""
        return np.ones(self._sizes.size, dtype=bool) if self.noise.alone is None else self._sizes > 1.0

    def alone(self) -> IntArray:
        return self._steps((~self.several).astype(np.float64), 1)

    def leave(self, gone: IntArray) -> None:
        self._left[gone] = False

    def round(self) -> IntArray:
        left = np.flatnonzero(self._left)
        if self._first is None:
            self._first = self._mean(left, np.ones(self._sizes.size))
            most = np.ones(self._sizes.size)
        else:
            most = np.minimum(1.0, self.noise.growth * self._first)
        return np.where(self._left, self._weighted(self._mean(left, most)), 0)

    def sizes(self, found: IntArray, bounds: Sequence[int]) -> list[int]:
        number = np.arange(self._most + 1)
        law = self._law(number, self._kept, self._pairs(found))
        law[0] = 0.0
        # Users with more items than count are counted by all of them.
        group, many = self.several, self._sizes > self.noise.most_items
        users = np.bincount(np.searchsorted(bounds, number), law @ (self._users * (group & ~many)), len(bounds))
        users += np.bincount(
            np.searchsorted(bounds, self._sizes), law.sum(axis=0) * self._users * (group & many), len(bounds)
        )
        return [round(float(number)) for number in users]

    def measure(self, found: IntArray, limit: int) -> tuple[IntArray, ...]:
        root = math.sqrt(limit)
        steps = self._weighted(root * self._mean(found, np.full(self._sizes.size, 1.0 / root)))[found]
        # Nobody looks at sums.
        return steps, *(np.zeros_like(steps) for part in self.noise.sums for _ in range(part.columns))

    def rows(self, found: IntArray) -> list[ArrowArray]:
        return [pa.array(found)]

    def _pairs(self, items: IntArray) -> float:
        """The share of these items in all (user, item) pairs."""
        pairs = self.share * self.population.counts[self.place]
        return min(1.0, float(pairs[items].sum() / pairs.sum()))

    def _mean(self, items: IntArray, most: FloatArray) -> FloatArray:
        """The mean of 1/sqrt(n), at most `most`; n of these items has a user of each size who has one of them."""
        others = np.arange(self._most)
        law = self._law(others, self._kept - 1.0, self._pairs(items))
        weights: FloatArray = (np.minimum(1.0 / np.sqrt(1.0 + others)[:, None], most) * law).sum(axis=0)
        return weights

    def _law(self, number: IntArray, kept: FloatArray, share: float) -> FloatArray:
        """The probability that so many of the kept items of a user are in a share of all pairs."""
        return np.asarray(stats.binom.pmf(number[:, None], kept, share), dtype=np.float64)

    def _weighted(self, weights: FloatArray) -> IntArray:
        """The sum of these weights of users of each size, over the group of several."""
        return self._steps(self.several * weights * self._kept / self._sizes)

    def _steps(self, of_user: FloatArray, lattice: int = 0) -> IntArray:
        """What all users add to each item, from what a user of each size adds on average."""
        summed, _ = self.population.left(of_user, np.zeros_like(of_user))
        steps: IntArray = np.rint(summed * (lattice or self.noise.lattice)).astype(np.int64)
        return steps[self.place]


@dataclass(frozen=True, eq=False)
class Forecast:
    """By group of items: the probability of release, the margin of a count (nan if none is released), how many
    users keep an item, and the mean error and distance from the truth of a count. `margins` (95 %) and `findings`
    are of the released items.
    """

    chance: FloatArray
    margin: FloatArray
    kept: FloatArray
    error: FloatArray
    distance: FloatArray
    margins: FloatArray
    findings: Findings


class TooLarge(InvalidParameter):
    """More items would be released than can be forecast."""


def forecast(plan: Plan, population: Population, known: int = 0, seed: int = 0) -> Forecast:
    """What a plan of rounds releases of a population whose `known` most common items are known in advance."""
    noise, groups = rounds_noise(plan), population.counts.size
    sure = population.number if noise.listed else population.first(known).number
    draws = min(_MOST_DRAWS, max(4, _DRAWS // groups))
    open_, fixed = np.flatnonzero(population.number > sure), np.flatnonzero(sure > 0.0)
    place = np.concatenate((fixed, np.repeat(open_, draws)))
    share = np.concatenate((sure[fixed], np.repeat((population.number - sure)[open_] / draws, draws)))
    counted = ExpectedCounts(population, noise, place, share, np.arange(place.size) < fixed.size)
    found = find_items(noise, counted, SeededRng(seed))
    # Estimates need whole items.
    whole = np.diff(np.floor(np.cumsum(share[found.numbers]) + 0.5), prepend=0.0).astype(np.int64)
    if whole.sum() > _MOST_RELEASED:
        raise TooLarge(f"a release of more than {_MOST_RELEASED:,} items cannot be forecast: use fewer users")
    real = np.repeat(np.arange(whole.size), whole)
    alone = None if found.alone is None else found.alone[real]
    items = Found(found.numbers[real], found.found_in[real], found.score[real], alone)
    measured = _measured(plan, counted, found.numbers, real, seed)
    estimates = estimate(evidence_of(plan, items, measured))
    at, margins = counted.place[items.numbers], estimates.margin(_LEVEL)
    searched = found.numbers[found.numbers >= fixed.size]
    chance = np.bincount(place[searched], minlength=groups) / draws
    errors = estimates.count - population.counts[at]

    def mean(values: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore"):
            return np.asarray(np.bincount(at, values, groups) / np.bincount(at, minlength=groups))

    findings = findings_of(plan, items, measured, estimates)
    passed = (sure + chance * (population.number - sure)) / population.number
    return Forecast(passed, mean(margins), counted.keeps, mean(errors), mean(np.abs(errors)), margins, findings)


def totals_in_rounds(plan: Plan, population: Population) -> Totals:
    """What a plan of rounds releases of a population, summed over items. Raises `TooLarge`."""
    counts, number = population.counts, population.number
    seeds = range(max(1, min(_FORECASTS, _FORECASTS * _DRAWS // (8 * counts.size))))
    ahead = [forecast(plan, population, seed=seed) for seed in seeds]
    chance = np.mean([one.chance for one in ahead], axis=0)
    # Where no item was drawn, none is released.
    error = np.mean([one.chance * np.nan_to_num(one.error) for one in ahead], axis=0)
    distance = np.mean([one.chance * np.nan_to_num(one.distance) for one in ahead], axis=0)
    keeps = ahead[0].kept
    items = Items(counts, number, keeps, np.zeros_like(keeps))
    none = Totals(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, float(counts @ number))
    return none.plus(sum_over_items(ReleaseMoments(chance, error, distance), chance * keeps, items))


def _measured(plan: Plan, counted: ExpectedCounts, numbers: IntArray, real: IntArray, seed: int) -> Measurement:
    """The measurement of a forecast: each of the `real` items is one of the found `numbers`, by its place."""
    noise, random = rounds_noise(plan), np.random.default_rng(seed)
    bounds = bounds_of(plan)
    true = np.array(counted.sizes(numbers, bounds), dtype=np.float64)
    users = true + random.normal(0.0, noise.sigma_sizes, true.size)
    limit = choose_limit(users, bounds, deviation=noise.sigma_sizes, sigma=noise.sigma, items=real.size)
    sizes = tuple(np.rint(users * noise.lattice).astype(int).tolist())
    if limit == 0:
        return Measurement(sizes, 0)
    steps = counted.measure(numbers, limit)[0][real]
    own = math.sqrt(noise.measure_noise(limit)[0]) / noise.lattice
    return Measurement(sizes, limit, steps / noise.lattice + random.normal(0.0, own, steps.size))


def trial_in_rounds(
    plan: Plan, population: Population, seed: int, *, known: int = 0, names: Sequence[str] | None = None
) -> JsonObject:
    """One release in rounds with seeded noise, like `trial`, with the margins of the counts. NOT PRIVATE."""
    noise, rng = rounds_noise(plan), SeededRng(seed)
    place = np.repeat(np.arange(population.counts.size), population.number.astype(np.int64))
    first = np.arange(place.size) < (place.size if noise.listed else known)
    counted = ExpectedCounts(population, noise, place, np.ones(place.size), first)
    found = find_items(noise, counted, rng)
    measured = measure_items(plan, counted, found, rng)
    estimates = estimate(evidence_of(plan, found, measured))
    whole, decimals = population.counts[place].astype(np.int64), count_decimals(plan)
    counts, margins = (rounded(column, decimals) for column in (estimates.count, estimates.margin(_LEVEL)))
    within = np.abs(counts - whole[found.numbers]) <= margins
    return trial_facts(
        whole, found.numbers, {"released": counts, "margin": margins}, names, cut=0,
        kept=float(counted.keeps @ population.number) / float(population.counts @ population.number),
        expected=float(forecast(plan, population, known).chance @ population.number),
        within_margin=float(within.mean()) if within.size else None,
    )  # fmt: skip
