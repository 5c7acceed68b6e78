"""A trial release of counts that are public or made up: how many items pass, and how far off they are.

The population is that of `simulate`, and so is what is expected. NOT PRIVATE: its noise comes from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.planning.auto_cap import levels_of
from dphist.privacy.types import Noise, Plan, PublicNoise
from dphist.releasing.noise import Cut, begin
from dphist.sampling.tap import SeededTap
from dphist.simulation.population import NOTICE, FloatArray, IntArray, Population, Spread, Zipf
from dphist.simulation.predict import lost_users, totals_of

MOST_ITEMS: Final = 10**6
_SHOWN: Final = 50


@dataclass(frozen=True, eq=False)
class TrialData:
    """A population, what bounds the items of its users, and what its largest items are called."""

    population: Population
    cap: int | None = None
    names: tuple[str, ...] | None = field(default=None, repr=False)

    @property
    def whole(self) -> IntArray:
        """The count of every item, from the largest down."""
        return np.repeat(self.population.counts, self.population.number.astype(np.int64)).astype(np.int64)

    def draw_counts(self, plan: Plan, seed: int) -> IntArray:
        """What the limit of a plan leaves of these counts, as `simulate` has it.

        Users drop items at random. With spread, counts are in steps of the noise, and taken for normal.
        """
        mean, variance = self.population.under(levels_of(plan) if plan.levels else self.cap)
        each = self.population.number.astype(np.int64)
        # Beside the stream of the noise, which comes from the same seed.
        generator = np.random.default_rng([seed, 1])
        if plan.levels:
            drawn = generator.normal(np.repeat(mean, each), np.repeat(np.sqrt(variance), each))
            return np.rint(np.clip(drawn, 0.0, self.whole) * plan.levels[0].weight).astype(np.int64)
        trials, chance = lost_users(self.population.counts, mean, variance)
        gone = generator.binomial(np.repeat(trials, each).astype(np.int64), np.repeat(chance, each))
        return self.whole - gone


def zipf_population(
    *, items: int, users: int, exponent: float, mean_items: float, spread: Spread, cap: int | None
) -> TrialData:
    """The population of `dphist simulate --zipf`, whose users have a geometric or the same number of items."""
    if not 1 <= items <= MOST_ITEMS:
        raise InvalidParameter(f"items must be between 1 and {MOST_ITEMS}, not {items}")
    if not 0.0 <= exponent <= 5.0:
        raise InvalidParameter(f"exponent must be between 0 and 5, not {exponent:g}")
    if not 1.0 <= mean_items <= max(1.0, items / 2.0):
        raise InvalidParameter(f"mean_items must be between 1 and half of the {items} items, not {mean_items:g}")
    law = Zipf(exponent, items, users, mean_items, spread)
    return TrialData(law.population(), cap)


def given_population(counts: IntArray, names: tuple[str, ...] | None) -> TrialData:
    """Counts that were given; they are taken for those after the cap, as if no user had more than one item."""
    order = np.argsort(-counts, kind="stable")
    values, number = np.unique(-counts[counts > 0], return_counts=True)
    each, sizes = -values.astype(np.float64), ((1, int(counts.sum())),)

    def left(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
        return each * mean[0], each * variance[0]

    population = Population("given counts", each, number.astype(np.float64), sizes, left)
    return TrialData(population, None, None if names is None else tuple(names[i] for i in order[:_SHOWN]))


def trial(plan: Plan, data: TrialData, seed: int, largest: int | None = None) -> dict[str, Any]:
    """One release with noise from a seed, and what is expected of any: the numbers of `simulate`.

    `largest` is how many are wanted where a cap serves in place of a top-k step: the largest of those that passed.
    """
    if isinstance(plan.noise, Noise):
        raise InvalidParameter("continuous noise cannot be drawn: choose discrete noise to simulate a release")
    if isinstance(plan.noise, PublicNoise):
        raise InvalidParameter("all of a public list is released: there is nothing to simulate")
    # A top-k step has no use for a cap, as in a release.
    used = replace(data, cap=None) if plan.releases_offset else data
    whole, counts = data.whole, used.draw_counts(plan, seed)
    bound, floor = plan.contract.max_nonzero, 0
    population = used.population
    if bound is not None and plan.releases_offset:
        floor = int(population.count_at(bound + 1))
    elif bound is not None:
        # A bound that is public holds before the data is looked at.
        counts, population = counts[:bound], population.first(bound)
    unit = plan.levels[0].weight if plan.levels else 1
    released = begin(plan, SeededTap(seed), Cut(floor)).release(counts)
    index, values, total = released.index, released.values, int(whole.sum())
    expected = totals_of(plan, population, cap=used.cap).released
    if largest is not None and not plan.releases_offset:
        kept = np.sort(np.argsort(-values, kind="stable")[:largest])
        index, values, expected = index[kept], values[kept], min(expected, float(largest))
    errors = np.abs(values - whole[index])
    return {
        "notice": NOTICE,
        "items": int(whole.size),
        "users_items": total,
        "cut": int(whole.size - counts.size),
        "kept": int(counts.sum()) / (unit * total) if total else 0.0,
        "released": int(index.size),
        "expected": expected,
        "mean_absolute_error": float(errors.mean()) if errors.size else None,
        "share": float(whole[index].sum()) / total if total else 0.0,
        "top": _top(data, whole, index, values),
    }


def _top(data: TrialData, whole: IntArray, index: IntArray, noisy: NDArray[np.float64]) -> list[dict[str, Any]]:
    """The largest true counts beside what was released of them."""
    found = dict(zip(index.tolist(), noisy.tolist(), strict=True))
    return [
        {
            "item": str(i + 1) if data.names is None else data.names[i],
            "true": int(whole[i]),
            "released": found.get(i),
        }
        for i in range(min(_SHOWN, whole.size))
    ]
