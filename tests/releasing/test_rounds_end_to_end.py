"""Releases in rounds of a small table have the law of the mechanism, simulated in floats from its definition.

The real functions run with secure randomness. Means and sums of squares are compared with those of the simulation:
15 statistics, each within 6.7 standard errors, so a false alarm has a probability below 1e-9. Power: noise that is
wrong by 5 % is refused, by each kind of number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from dphist.model import Budget, LaplaceNoise, Plan, RoundsNoise
from dphist.planning.estimate import Evidence, estimate, size_bounds
from dphist.planning.rounds import plan_rounds
from dphist.releasing.rounds import evidence_of, find_items, limit_of, measure_items
from dphist.sampling.rng import SecureRng
from rounds_counts import MemoryRounds, task_of
from scheduling import THOROUGH

ITEMS: Final = 1000
ALLOWED: Final = 6.7


@cache
def pairs() -> tuple[Any, Any]:
    """Users with up to 30 items, so that items are found in every round, by users with one item, and never."""
    rng = np.random.default_rng(1)
    has = rng.random((8000, ITEMS)) < 0.04 * np.arange(1, ITEMS + 1) ** -0.25
    single = np.minimum(rng.zipf(1.2, 3000) - 1, ITEMS - 1)
    user, item = np.nonzero(has)
    return np.append(user, 8000 + np.arange(3000)), np.append(item, single)


@cache
def plan_of(gaussian: bool) -> Plan:
    return plan_rounds(Budget(1.0, 1e-6), gaussian=gaussian)


def noise_of(plan: Plan) -> RoundsNoise:
    assert isinstance(plan.noise, RoundsNoise)
    return plan.noise


class Released(NamedTuple):
    """Of one release, in users; by item, and nan where nothing was released."""

    found_in: Any
    score: Any
    alone: Any
    measured: Any
    count: Any
    sizes: Any
    limit: int


def released(plan: Plan, rng: SecureRng) -> Released:
    noise = noise_of(plan)
    counted = MemoryRounds(*pairs(), ITEMS, task_of(noise))
    found = find_items(noise, counted, rng)
    result = measure_items(plan, counted, found, rng)
    counts = estimate(evidence_of(plan, found, result)).count

    def whole(column: Any) -> Any:
        rows = np.full(ITEMS, np.nan)
        rows[found.numbers] = np.nan if column is None else column
        return rows

    place = whole(found.found_in)
    score = np.where(place > 0, whole(found.score), np.nan)
    sizes = np.array(result.sizes) / noise.lattice
    return Released(place, score, whole(found.alone), whole(result.weights), whole(counts), sizes, result.limit)


class Law:
    """The mechanism in floats, with normal noise whose deviation is `scale` times the right one."""

    def __init__(self, plan: Plan, scale: float = 1.0) -> None:
        self.plan, self.noise, self.scale = plan, noise_of(plan), scale
        user, item = pairs()
        one = (np.bincount(user) == 1)[user]
        self.alone = np.bincount(item[one], minlength=ITEMS)
        self.user, self.item = user[~one], item[~one]

    def normal(self, rng: np.random.Generator, variance: float, size: int) -> Any:
        return rng.normal(0.0, self.scale * np.sqrt(variance) / self.noise.lattice, size)

    def sizes(self, items: Any) -> Any:
        """How many of these items each user has."""
        return np.bincount(self.user, items[self.item])

    def sums(self, weights: Any, items: Any) -> Any:
        return np.bincount(self.item, weights[self.user] * items[self.item], ITEMS)

    def of_one(self, rng: np.random.Generator) -> tuple[Any, float]:
        """Noise of users with one item, and the threshold."""
        own = self.noise.alone
        assert own is not None
        if not isinstance(own, LaplaceNoise):
            return self.normal(rng, float(own.variance), ITEMS), own.threshold
        # The difference of two geometric variables. Scaled, and rounded to whole numbers at random.
        draws = rng.geometric(-np.expm1(-1 / float(own.scale)), (2, ITEMS))
        noise = self.scale * (draws[0] - draws[1])
        return np.floor(noise + rng.random(ITEMS)) if self.scale != 1 else noise, own.threshold

    def once(self, rng: np.random.Generator) -> Released:
        noise, W = self.noise, float(self.noise.variance)
        drawn, threshold = self.of_one(rng)
        alone = self.alone + drawn
        found_in = np.where((self.alone > 0) & (alone > threshold), 0.0, np.nan)
        alive, score, first = np.isnan(found_in), np.full(ITEMS, np.nan), np.zeros(0)
        pooled = np.zeros(ITEMS)
        for r, part in enumerate(noise.parts):
            sizes = np.maximum(self.sizes(alive), 1.0)
            first = sizes if r == 0 else first
            weights = np.minimum(1.0, 1.0 / np.sqrt(sizes))
            if r:
                weights = np.minimum(weights, noise.growth / np.sqrt(first))
            sums = self.sums(weights, alive)
            alive &= sums > 0
            pooled += part * (sums + self.normal(rng, W / part, ITEMS))
            total = sum(noise.parts[: r + 1])
            found = alive & (pooled / total > noise.thresholds_steps[r] / noise.lattice)
            found_in[found], score[found] = r + 1, (pooled / total)[found]
            alive &= ~found
            if r < len(noise.cuts):
                alive &= pooled / total >= noise.cuts[r] / noise.lattice
        return self.measured(rng, found_in, score, alone)

    def measured(self, rng: np.random.Generator, found_in: Any, score: Any, alone: Any) -> Released:
        noise, W = self.noise, float(self.noise.variance)
        found = ~np.isnan(found_in)
        sizes = self.sizes(found)
        bounds = size_bounds(noise.most_items)
        edges = np.searchsorted(np.array(bounds), sizes[sizes > 0])
        users = np.bincount(edges, minlength=len(bounds)) + self.normal(rng, W / noise.sizes, len(bounds))
        steps = tuple(np.rint(users * noise.lattice).astype(int).tolist())
        by_round = [int((found_in == place).sum()) for place in range(-1, noise.rounds + 1)]
        limit = limit_of(self.plan, steps, by_round)
        weights = self.sums(np.minimum(1.0, np.sqrt(limit / np.maximum(sizes, 1.0))), found)
        noisy = np.where(found, weights + self.normal(rng, limit * W / noise.measure, ITEMS), np.nan)
        own, shared = (np.sqrt(float(part)) / noise.lattice for part in noise.measure_noise(limit))
        counts = np.full(ITEMS, np.nan)
        evidence = Evidence(
            found_in[found].astype(int), np.nan_to_num(score[found]),
            tuple(noise.deviation(r) for r in range(noise.rounds)), alone[found],
            noise.alone.sigma if noise.alone else 0.0, noisy[found], own, shared, limit, users, noise.sigma_sizes,
            bounds, tuple(limit / noise.lattice for limit in noise.thresholds_steps), noise.most_items,
        )  # fmt: skip
        counts[found] = estimate(evidence).count
        return Released(found_in, score, np.where(found, alone, np.nan), noisy, counts, users, limit)


def means(rows: Sequence[Any]) -> Any:
    """Of each number where it was released, 0 where it never was."""
    numbers = np.array(rows)
    return np.nansum(numbers, axis=0) / np.maximum(np.isfinite(numbers).sum(axis=0), 1)


class Seen:
    """Means and standard errors of statistics of many releases, around numbers of `others`."""

    def __init__(self, releases: list[Released], others: list[Released]) -> None:
        self.centre = {name: means([getattr(one, name) for one in others]) for name in COLUMNS}
        self.measured = {
            limit: means([one.measured for one in others if one.limit == limit])
            for limit in {one.limit for one in others}
        }
        values = np.array([[*self._moments(one)] for one in releases])
        self.mean = values.mean(axis=0)
        self.error = values.std(axis=0, ddof=1) / np.sqrt(len(releases))

    def _moments(self, one: Released) -> Any:
        """Numbers of items by place, and sums of numbers and of squares around the centres."""
        for place in range(5):
            yield np.count_nonzero(one.found_in == place)
        for name in COLUMNS:
            off = getattr(one, name) - self.centre[name]
            if name == "measured":  # both weights and noise depend on the limit
                off = (one.measured - self.measured.get(one.limit, np.nan)) / np.sqrt(one.limit)
            yield np.nansum(off)
            # All counts share the errors of factors, which are large in few releases.
            yield self._spread_of_counts(one.count) if name == "count" else np.nansum(off**2)

    def _spread_of_counts(self, counts: Any) -> Any:
        centre = np.where(np.isnan(counts), np.nan, self.centre["count"])
        return np.nansum(np.abs(counts - centre * (np.nansum(counts) / np.nansum(centre))))

    def away(self, other: Seen) -> Any:
        """By how many standard errors each statistic differs."""
        return np.abs(self.mean - other.mean) / np.hypot(self.error, other.error)


COLUMNS: Final = ("score", "alone", "measured", "count", "sizes")
NAMES: Final = [*range(5), *(f"{kind} of {name}" for name in COLUMNS for kind in ("sum", "spread"))]


def simulated(law: Law, runs: int, seed: int) -> list[Released]:
    rng = np.random.default_rng(seed)
    return [law.once(rng) for _ in range(runs)]


@pytest.mark.parametrize("gaussian", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_releases_have_the_law_of_the_mechanism(gaussian: bool) -> None:
    plan, rng, runs = plan_of(gaussian), SecureRng(), 1000 if THOROUGH else 200
    law, others = Law(plan), simulated(Law(plan), 100, 1)
    right = Seen(simulated(law, 2 * runs, 2), others)
    away = Seen([released(plan, rng) for _ in range(runs)], others).away(right)
    assert away.max() < ALLOWED, NAMES[int(away.argmax())]
    # The same number of wrong releases, simulated so that this does not depend on chance.
    wrong = Seen(simulated(Law(plan, scale=1.05), runs, 3), others).away(right)
    off = dict(zip(NAMES, wrong, strict=True))
    # Users by size are few numbers.
    for name in ("score", "alone", "measured", "count"):
        assert off[f"spread of {name}"] > ALLOWED, (name, off)
