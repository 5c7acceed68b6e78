"""What a plan would release of a population: expected values by formula, and a trial with seeded noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.aliases import JsonObject, Numbers
from dphist.errors import InvalidParameter
from dphist.model import LatticeNoise, Plan
from dphist.planning.utility import LatticeTails, ReleaseMoments, count_noise, moments_with_offset
from dphist.proof.numerics import FloatArray, IntArray
from dphist.releasing.noise import Subtracted, begin
from dphist.sampling.rng import SeededRng
from dphist.simulation.population import NOTICE, Population, Zipf

_REACH: Final = 6.0
# Points per standard deviation: for a smooth function, sums over every s-th value are as good as over all.
_POINTS: Final = 4.0
_NOTHING: Final = 1e-9


class Thinned(NamedTuple):
    """Possible values of counts, each with its probability and the place of its count."""

    place: IntArray
    left: FloatArray
    weight: FloatArray


def lost_users(counts: FloatArray, mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Trials and probability of the binomial number of users that a limit removes from each count.

    The number of lost users is a sum of independent indicators. The binomial variable has the same mean and, up to
    rounding of the number of trials, the same variance: exact if all probabilities are equal.
    """
    loss = np.maximum(counts - mean, 0.0)
    loss = np.where(loss < _NOTHING * counts, 0.0, loss)
    trials = np.rint(loss**2 / np.maximum(loss - np.minimum(variance, loss), _NOTHING * np.maximum(loss, 1.0)))
    trials = np.clip(trials, np.ceil(loss), counts)
    return trials, np.clip(loss / np.maximum(trials, 1.0), 0.0, 1.0 - 1e-12)


def thin_counts(counts: FloatArray, mean: FloatArray, variance: FloatArray) -> Thinned:
    """The distribution of each count under a limit, by its mean and variance."""
    trials, chance = lost_users(counts, mean, variance)
    centre, deviation = trials * chance, np.sqrt(trials * chance * (1.0 - chance))
    stride = np.maximum(1.0, np.floor(deviation / _POINTS))
    low = np.maximum(0.0, np.floor(centre - _REACH * deviation) - 3.0)
    low = np.where(centre == 0.0, 0.0, low)
    high = np.where(centre == 0.0, 0.0, np.minimum(trials, np.ceil(centre + _REACH * deviation) + 3.0))
    number = ((high - low) // stride + 1.0).astype(np.int64)
    place = np.repeat(np.arange(counts.size), number)
    within = np.arange(place.size) - np.repeat(np.cumsum(number) - number, number)
    gone: FloatArray = low[place] + stride[place] * within
    weight = _binomial(gone, trials[place], chance[place])
    weight /= np.bincount(place, weight, counts.size)[place]
    return Thinned(place, counts[place] - gone, weight)


def _binomial(k: FloatArray, n: FloatArray, p: FloatArray) -> FloatArray:
    """Binomial probabilities for real arguments."""
    log_ways = special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)
    return np.asarray(np.exp(log_ways + special.xlogy(k, p) + special.xlog1py(n - k, -p)))


# A count this many deviations from the threshold is released with probability 1e-19 or 1 - 1e-19.
_SURE: Final = 9.0
# In squared steps: from here on, sums over the lattice are integrals to four digits.
_FINE: Final = 1000
_CHUNK: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class Totals:
    """Expected values, summed over items.

    `released` items, with the `variance` of their number and the pairs `kept` in them; the sums of their `error`,
    of their `distance` from the truth and of that `relative` to it; `missed`, the true users of items that are not
    released.
    """

    released: float
    variance: float
    kept: float
    error: float
    distance: float
    relative: float
    missed: float

    def plus(self, other: Totals) -> Totals:
        """With those of other items."""
        return Totals(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class Items(NamedTuple):
    """Groups of items: true counts, numbers of items, mean and variance under the limit."""

    truth: FloatArray
    number: FloatArray
    mean: FloatArray
    variance: FloatArray

    def take(self, places: slice | NDArray[np.bool_]) -> Items:
        return Items(*(column[places] for column in self))


def applied_limit(plan: Plan, limit: int | None) -> int | None:
    """The limit on the items of a user, if the plan needs one: a top-k step alone does not."""
    return None if plan.releases_offset and plan.contract.user_limit is None else limit


def totals_of(plan: Plan, population: Population, *, limit: int | None = None) -> Totals:
    """What a plan releases of a population, with each user limited to `limit` random items."""
    if plan.noise.kind == "continuous":
        raise InvalidParameter("continuous noise cannot be drawn: make the plan with noise='discrete'")
    if plan.mechanism == "known-domain":
        raise InvalidParameter("a public list is released completely: there is nothing to predict")
    limit = applied_limit(plan, limit)
    floor = population.count_at(int(plan.contract.nonzero) + 1, limit) if plan.releases_offset else 0.0
    truth, (mean, variance) = population.counts, population.under(limit)
    every = Items(truth, population.number, mean, variance)
    # All users are missed, until something is released.
    totals = Totals(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, float(truth @ population.number))
    law = count_noise(plan.noise)
    uncertain = rest = every.take(truth - floor > max(0.0, (law.least - law.tails.reach) / law.steps))
    if isinstance(plan.noise, LatticeNoise) and plan.noise.variance >= _FINE and not plan.releases_offset:
        sure = rest.mean - plan.threshold > _SURE * np.sqrt(rest.variance + plan.total_noise**2)
        uncertain = rest.take(~sure)
        totals = totals.plus(_normal(plan, rest.take(sure)))
        rest = uncertain
    for start in range(0, rest.truth.size, _CHUNK):
        totals = totals.plus(_totals_of_part(plan, rest.take(slice(start, start + _CHUNK)), floor))
    shared = _shared_variance(plan, np.rint(uncertain.mean) - floor, uncertain.number)
    return replace(totals, variance=totals.variance + shared)


def _totals_of_part(plan: Plan, items: Items, floor: float) -> Totals:
    """Items that keep a random number of users under the limit, of which a top-k step subtracts `floor`.

    Under a limit that count is random too; here it is the expected one.
    """
    law = thin_counts(items.truth, items.mean, items.variance)
    truth, above = items.truth[law.place], law.left - floor
    # A count of zero gets no noise and is never released.
    weight = np.where(above > 0.0, law.weight, 0.0)

    def over(values: FloatArray) -> FloatArray:
        return np.asarray(np.bincount(law.place, weight * values, items.truth.size), dtype=np.float64)

    if plan.releases_offset:
        passed = moments_with_offset(plan.noise, above, truth - law.left)
    else:
        passed = count_noise(plan.noise).moments_if_passed(law.left, truth)
    counts = ReleaseMoments(over(passed.probability), over(passed.error), over(passed.distance))
    return sum_over_items(counts, over(passed.probability * law.left), items)


def _normal(plan: Plan, items: Items) -> Totals:
    """Items whose count under the limit, together with its noise, is practically normal.

    With S of mean m and variance s^2, of which v is due to the limit, and u = (t - m)/s:
    Pr[S > t] = Q(u), E[S - m; S > t] = s phi(u), and the kept part of S has mean m Q(u) + v/s phi(u).
    """
    law, mean, truth = count_noise(plan.noise), items.mean, items.truth
    # Between the last count that does not pass and the first that does.
    threshold = (law.least - 0.5) / law.steps
    deviation = np.sqrt(items.variance + plan.total_noise**2)

    def above(point: FloatArray | float) -> tuple[FloatArray, FloatArray]:
        height = (point - mean) / deviation
        return special.ndtr(-height), np.exp(-0.5 * height**2) / math.sqrt(2.0 * math.pi)

    probability, density = above(threshold)

    error = (mean - truth) * probability + deviation * density
    beyond, at = above(truth)
    over = (mean - truth) * beyond + deviation * at
    # |x - s| = (s - x) + 2 (x - s)^+ where the threshold is below the truth.
    passed = ReleaseMoments(probability, error, np.where(truth < threshold, error, 2.0 * over - error))
    return sum_over_items(passed, mean * probability + items.variance / deviation * density, items)


def sum_over_items(counts: ReleaseMoments, kept: FloatArray, items: Items) -> Totals:
    probability, truth, number = counts.probability, items.truth, items.number
    return Totals(
        released=float(probability @ number),
        variance=float((probability * (1.0 - probability)) @ number),
        kept=float(kept @ number),
        error=float(counts.error @ number),
        distance=float(counts.distance @ number),
        relative=float((counts.distance / truth) @ number),
        missed=-float((probability * truth) @ number),
    )


def _shared_variance(plan: Plan, counts: FloatArray, number: FloatArray) -> float:
    """What shared noise adds to the variance of the number of items: it moves all counts together."""
    noise = plan.noise
    if not isinstance(noise, LatticeNoise) or noise.variance_shared == 0:
        return 0.0
    shared = LatticeTails(float(noise.variance_shared))
    own = replace(count_noise(noise), tails=LatticeTails(float(noise.variance)))
    # Whether other items are released does not depend on the draw.
    open_to_chance = np.abs(own.first(counts)) < own.tails.reach + shared.reach
    counts, number = counts[open_to_chance], number[open_to_chance]
    drawn, weights = shared.points()
    alone = np.array([own.tails.above(own.first(counts) - shift).mass for shift in drawn])
    items = alone @ number
    # p(1 - p) with the average p already includes each item's own share of this.
    each = weights @ (alone - weights @ alone) ** 2
    return max(0.0, float(weights @ (items - weights @ items) ** 2) - float(each @ number))


# A trial shows this many of the largest counts.
SHOWN: Final = 50


def given_population(counts: IntArray, per_user: float = 1.0) -> Population:
    """The population of given counts, as if users had a geometric number of items, alike for all items.

    Users have fewer than `per_user` items on average if the counts need more users.
    """
    values, number = np.unique(-counts[counts > 0], return_counts=True)
    each, pairs = -values.astype(np.float64), int(counts.sum())
    mean = max(1.0, min(per_user, counts.size / 2.0, pairs / max(1.0, float(counts.max(initial=0)))))
    sizes = ((1, pairs),) if mean == 1.0 else Zipf(1.0, counts.size, max(1, round(pairs / mean)), mean).sizes()
    share = np.array([items * users for items, users in sizes], dtype=np.float64) / max(1, pairs)
    share /= max(share.sum(), 1e-300)
    return Population(
        "given counts", each, number.astype(np.float64), sizes,
        lambda mean, variance: (each * float(share @ mean), each * float(share @ variance)),
    )  # fmt: skip


def trial(
    plan: Plan,
    population: Population,
    seed: int,
    *,
    limit: int | None = None,
    largest: int | None = None,
    names: Sequence[str] | None = None,
) -> JsonObject:
    """One release with seeded noise, and the expected number of released items. NOT PRIVATE.

    `largest` keeps only that many of the released counts, for a limit that replaces a top-k step. `names` are
    those of the `SHOWN` largest items.
    """
    # A top-k step alone needs no limit, and a public bound on the items holds before data is read.
    top, bound = plan.releases_offset, plan.contract.max_nonzero
    limit = applied_limit(plan, limit)
    counted = population if top or bound is None else population.first(bound)
    expected = totals_of(plan, counted, limit=limit).released
    each = population.number.astype(np.int64)
    whole = np.repeat(population.counts, each).astype(np.int64)
    # Independent of the noise, which has the same seed.
    generator = np.random.default_rng([seed, 1])
    trials, chance = lost_users(population.counts, *population.under(limit))
    lost = generator.binomial(np.repeat(trials, each).astype(np.int64), np.repeat(chance, each))
    counts = (whole - lost)[: counted.items]
    floor = int(np.sort(counts)[-bound - 1]) if top and bound is not None and counts.size > bound else 0
    # A trial shows no sums.
    no_sums = [np.zeros_like(counts) for _ in plan.summed]
    released = begin(plan, SeededRng(seed), Subtracted(floor)).release(counts, no_sums)
    index, values, total = released.index, released.values, int(whole.sum())
    if largest is not None and not top:
        kept = np.sort(np.argsort(-values, kind="stable")[:largest])
        index, values, expected = index[kept], values[kept], min(expected, float(largest))
    return trial_facts(
        whole, index, {"released": values}, names, cut=int(whole.size - counts.size), expected=expected,
        kept=int(counts.sum()) / total if total else 0.0,
    )  # fmt: skip


def trial_facts(
    whole: IntArray,
    index: IntArray,
    columns: Mapping[str, Numbers],
    names: Sequence[str] | None,
    **facts: float | None,
) -> JsonObject:
    """What a trial released: `columns` of the items at `index` of the `whole`; the first one are their counts."""
    total, errors = int(whole.sum()), np.abs(next(iter(columns.values())) - whole[index])
    row_of = {item: row for row, item in enumerate(index.tolist())}
    return {
        "notice": NOTICE,
        "items": int(whole.size),
        "users_items": total,
        "released": int(index.size),
        "mean_absolute_error": float(errors.mean()) if errors.size else None,
        "share": float(whole[index].sum()) / total if total else 0.0,
        "top": [
            {
                "item": names[i] if names else str(i + 1), "true": int(true),
                **{name: column[row_of[i]].item() if i in row_of else None for name, column in columns.items()},
            }
            for i, true in enumerate(whole[:SHOWN])
        ],
        **facts,
    }  # fmt: skip
