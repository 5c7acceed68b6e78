"""A limit chosen privately: a small part of the budget buys noisy sizes of users, the rest goes to the release.

The size of a user is their number of items. Plans for every limit, with the excess dropped and spread, are made
before any data is read, and one certificate covers the choice and the release together. The noisy sizes decide
between the plans, and give the correction that turns counts into estimates. Proofs: docs/theory/choice.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
from flint import arb
from scipy import special

from dphist.errors import InvalidParameter, NoPlan, finite_number, one_of
from dphist.planning.planner import Excess
from dphist.planning.utility import Correction
from dphist.privacy import balls
from dphist.privacy.certificate import Node, at_any_epsilon, delta_adaptive_upper, delta_profile_upper
from dphist.privacy.lattice import bits_for
from dphist.privacy.numerics import (
    FloatArray,
    golden_minimum,
    hockey_stick_normal,
    least_passing,
    log_excess,
    round_up,
)
from dphist.privacy.paper import largest_sensitivity_per_sigma
from dphist.privacy.spread import WeightedFamily
from dphist.privacy.types import (
    DEFAULT_CAPS,
    AnyNoise,
    Budget,
    CapChoice,
    Certificate,
    LaplaceNoise,
    LatticeNoise,
    Plan,
    PublicNoise,
)

# The best plan has the most accurate counts over all items, or releases the most items.
Goal = Literal["accuracy", "keys"]
PlanOf = Callable[[float, float, int], Plan]
"""From epsilon, delta and a limit to the plan of the release that would follow."""

# Estimates depend on the sizes in every number, the choice for keys only once.
DEFAULT_SHARES: Final[dict[Goal, float]] = {"accuracy": 0.02, "keys": 0.005}
ANALYSIS: Final = "exact-discrete, cap chosen"
_LARGEST_SHARE: Final = 0.5
# Once the total is this close to delta, in proportion, the next step reaches the aim.
_CLOSE: Final = 0.9
_AIM: Final = 0.993
_MOST_ROUNDS: Final = 6
# If delta would have to fall to less than this share, no search over delta helps.
_LEAST_PART: Final = 1e-3
# The threshold is minimised for this limit; another one gives nearly the same result.
_TYPICAL_CAP: Final = 64
# The share of delta that Laplace noise may cost, because its profile is steep below its epsilon.
_FOR_LAPLACE: Final = 0.004
# Nodes this close, in nats of delta, have chords within 2 % of the profile.
_NATS: Final = 0.4


@dataclass(frozen=True)
class ChoicePlan:
    """The plans on offer, and one certificate for the choice and the release together."""

    budget: Budget
    share: float
    choice: CapChoice
    budget_of_release: Budget
    plans: tuple[Plan, ...]
    certificate: Certificate
    goal: Goal = "accuracy"

    def plan(self, limit: int, excess: Excess = "drop") -> Plan:
        for plan in self.plans:
            if plan.contract.items == limit and excess_of(plan) == excess:
                return plan
        raise InvalidParameter(f"no plan on offer has the limit {limit!r} and excess = {excess!r}")

    def estimate_sizes(self, noisy: Sequence[int]) -> Sizes:
        """What the noisy sizes show. With a public list, no user has more items than the list."""
        return estimate_sizes(self.choice, noisy, most=self.plans[0].contract.max_nonzero)

    def to_dict(self) -> dict[str, Any]:
        return {
            "share": self.share,
            "goal": self.goal,
            **self.choice.to_dict(),
            "epsilon_of_release": self.budget_of_release.epsilon,
            "delta_of_release": self.budget_of_release.delta,
            "certificate": self.certificate.to_dict(),
        }


def check_goal(goal: str) -> Goal:
    return one_of("goal", goal, get_args(Goal))


def excess_of(plan: Plan) -> Excess:
    return "drop" if plan.contract.spread is None else "spread"


def plan_choice(
    budget: Budget,
    *makers: PlanOf,
    share: float | None = None,
    caps: tuple[int, ...] = DEFAULT_CAPS,
    goal: Goal = "accuracy",
) -> ChoicePlan:
    """The noise of the sizes, and for each limit the plans of the releases that may follow.

    `share` is the part of the squared sensitivity within the budget that the noisy sizes use. Each of the `makers`
    makes a plan for every limit, all with the same budget, slightly below the whole. Only Laplace noise gets a
    smaller epsilon, so that Gaussian noise is better from two items per user on.

    Guarantee: the certificate's delta, for the sizes and the release with whatever plan is chosen from them, is
    within the budget. The same arguments give the same result.
    """
    share = DEFAULT_SHARES[goal] if share is None else finite_number("share", share)
    if not 0.0 < share <= _LARGEST_SHARE:
        raise InvalidParameter(f"share must be above 0 and at most {_LARGEST_SHARE:g}, not {share!r}")
    choice = CapChoice(caps, variance_of_sizes(budget, share))
    deviation = 1.0 / math.sqrt(choice.variance)
    epsilon, delta = _proposal(budget, deviation)
    # All plans have the same budget, so a few limits are enough to find it.
    few = tuple(sorted({caps[0], caps[len(caps) // 2], caps[-1]}))
    for offered in (few, caps):
        for _ in range(_MOST_ROUNDS):
            release = Budget(epsilon, delta)
            plans = tuple(_plan_for(maker, cap, budget, release, deviation) for maker in makers for cap in offered)
            certificate = certify_choice(choice.variance, plans, budget)
            if offered is caps and certificate.delta <= budget.delta:
                return ChoicePlan(budget, share, choice, release, plans, certificate, goal)
            # The total is nearly proportional to delta.
            spent = certificate.delta / budget.delta
            delta = min(budget.delta, _six_digits(delta * _AIM / spent))
            if delta < _LEAST_PART * budget.delta:
                break
            if offered is few and _CLOSE <= spent <= 1.0 / _CLOSE:
                break
    raise NoPlan(f"no limit can be chosen privately for {budget}: give --max-items-per-user as a number")


def variance_of_sizes(budget: Budget, share: float) -> Fraction:
    """The variance of the noisy sizes: 1/(share mu^2), rounded up to four digits, at least one."""
    mu = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    return max(Fraction(1), Fraction(Decimal(repr(round_up(1.0 / (share * mu * mu), 4)))))


def _plan_for(plan_of: PlanOf, cap: int, budget: Budget, release: Budget, deviation: float) -> Plan:
    """The plan of one limit; Laplace noise gets an epsilon that leaves room for the loss of the sizes."""
    plan = plan_of(release.epsilon, release.delta, cap)
    if isinstance(plan.noise, LaplaceNoise):
        return plan_of(_epsilon_for_laplace(budget, deviation), release.delta, cap)
    return plan


def _losses(deviation: float) -> tuple[FloatArray, FloatArray]:
    """The privacy loss of the sizes, as a normal variable: points, and their weights."""
    z = np.linspace(-38.0, 38.0, 3801)  # normal densities further out are 0 in doubles
    weights = np.exp(-0.5 * z * z)
    return deviation * z + 0.5 * deviation**2, weights / weights.sum()


def _proposal(budget: Budget, deviation: float) -> tuple[float, float]:
    """The epsilon and delta of the release with the lowest threshold, in doubles.

    The release spends max(Gaussian delta, infinite event), and the sizes add to both. A larger one can be balanced
    by a smaller other: the noise depends on the first, the threshold on both.
    """
    whole = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    losses, weights = _losses(deviation)
    # Further out, rounding hides any divergence.
    near = weights > 1e-20 * budget.delta
    gaussian = np.zeros_like(weights)

    def delta_of(mu: float) -> float:
        gaussian[near] = hockey_stick_normal(mu, budget.epsilon - losses[near])
        low, high = 0.0, budget.delta
        for _ in range(40):
            middle = 0.5 * (low + high)
            fits = float((weights * np.maximum(gaussian, middle)).sum()) <= _AIM * budget.delta
            low, high = (middle, high) if fits else (low, middle)
        return max(low, budget.delta * 1e-9)

    def threshold(mu: float) -> float:
        return float(-special.ndtri(delta_of(mu) / _TYPICAL_CAP)) / mu

    mu, _ = golden_minimum(threshold, 0.5 * whole, whole, tolerance=1e-4 * whole)
    delta = delta_of(mu)
    epsilon = least_passing(lambda x: log_excess(float(hockey_stick_normal(mu, x)), delta), budget.epsilon)
    return _six_digits(min(epsilon, budget.epsilon)), _six_digits(delta)


def _epsilon_for_laplace(budget: Budget, deviation: float) -> float:
    """The largest epsilon of a pure release that the losses of the sizes exceed too rarely to matter."""
    losses, weights = _losses(deviation)

    def excess(slack: float) -> float:
        # Relative to e^(epsilon - slack), which may be too large for a double.
        over = -np.expm1(np.minimum(slack - losses, 0.0))
        share = 1.0 + math.exp(min(slack - budget.epsilon, 700.0))
        return log_excess(float((weights * over).sum()) / share, _FOR_LAPLACE * budget.delta)

    epsilon = _six_digits(budget.epsilon - least_passing(excess, 4.0 * deviation, relative=1e-6))
    if epsilon <= 0.0:
        raise NoPlan(f"Laplace noise cannot follow noisy sizes within {budget}: use --mechanism gaussian")
    return epsilon


def _six_digits(value: float) -> float:
    """Rounded, so that the result does not depend on the last bits of a search."""
    return float(f"{value:.6g}")


# Certificates of the choice together with the release that follows it.

# Chords over half a nat are about 3 % above the profile. Each node is computed for each of two dozen plans, so
# there is a limit to their number.
_CURVE_NATS: Final = 0.5
_MOST_NODES: Final = 32
_GRID: Final = 4001
# The curve covers this many deviations of the loss of the sizes on either side.
_WIDE: Final = 4.0
# In squared steps: above, the error bound for whole numbers is negligible against delta.
_FINE: Final = 10_000
# A plan is evaluated at every node of this many in any case.
_STEP: Final = 6


def certify_choice(variance: Fraction, plans: Sequence[Plan], budget: Budget) -> Certificate:
    """Certificate at the budget's epsilon of noisy sizes and of whatever release follows them.

    Guarantee: `delta` is an upper bound in ball arithmetic, for any rule that chooses one of `plans` by the noisy
    sizes. The budget's delta only proposes where to evaluate.
    """
    points = _nodes(budget, 1.0 / math.sqrt(variance), {plan.budget.epsilon for plan in plans})
    delta = delta_adaptive_upper(variance, largest_of_all(plans, points), epsilon=budget.epsilon)
    worst = max(plans, key=lambda plan: plan.certificate.delta)
    # Each release reveals a user whose items are all new with at least the least of these probabilities.
    lower = min(delta, *(plan.certificate.delta_lower for plan in plans))
    return Certificate(budget.epsilon, delta, ANALYSIS, worst.certificate.binding_case, lower)


def choice_curve(planned: ChoicePlan, epsilons: Sequence[float]) -> list[float]:
    """delta at each epsilon, from 0 on, of the noisy sizes and of whatever release follows them.

    Guarantee: each is an upper bound in ball arithmetic; doubles only propose where to evaluate the plans.
    """
    nodes = largest_of_all(planned.plans, _curve_nodes(planned, max(epsilons)))
    certificate, least, deltas = planned.certificate, 1.0, {}
    for epsilon in sorted(epsilons):
        delta = delta_adaptive_upper(planned.choice.variance, nodes, epsilon=epsilon)
        # The certificate is sharper at its own epsilon, and a bound at one epsilon holds at all larger ones.
        least = min(least, delta, certificate.delta if epsilon >= certificate.epsilon else 1.0)
        deltas[epsilon] = least
    return [deltas[epsilon] for epsilon in epsilons]


def largest_of_all(plans: Sequence[Plan], points: Sequence[float]) -> list[Node]:
    """At each point the largest delta of all plans, certified.

    Plans without shared noise have one bound together. Every other plan is evaluated at a few points, and in
    between only where a chord does not show that it is smaller: delta is convex in e^x.
    """
    alone = [plan for plan in plans if _shares_nothing(plan.noise)]
    # One of all plans that draw the same noise for the same users.
    others = {(plan.noise, plan.contract): plan for plan in plans if not _shares_nothing(plan.noise)}.values()
    largest = [0.0] * len(points)
    if alone:
        with balls.precision(bits_for(min(plan.budget.delta for plan in alone)) + 64):
            family = WeightedFamily.of((plan.noise, plan.contract) for plan in alone)  # type: ignore[misc]
            largest = [at_any_epsilon(lambda x: family.delta(arb(x)), point) for point in points]
    coarse = sorted({*range(0, len(points), _STEP), len(points) - 1})
    # Laplace noise first: it is quick, and nearly everywhere below its epsilon the largest.
    for plan in sorted(others, key=lambda plan: not isinstance(plan.noise, LaplaceNoise)):
        delta_at = partial(delta_profile_upper, plan.noise, plan.contract)
        at = {place: delta_at(epsilon=points[place]) for place in coarse}
        for low, high in pairwise(coarse):
            for place in range(low + 1, high):
                below = math.exp(points[low] - points[place])
                above = math.exp(min(points[high] - points[place], 700.0))
                chord = (at[low] * (above - 1.0) + at[high] * (1.0 - below)) / (above - below)
                if chord * (1.0 + 1e-9) > largest[place]:
                    at[place] = delta_at(epsilon=points[place])
        for place, delta in at.items():
            largest[place] = max(largest[place], delta)
    return list(zip(points, largest, strict=True))


def _shares_nothing(noise: AnyNoise) -> bool:
    """Whether counts have independent noise only, in fine steps, as all real plans have."""
    if not isinstance(noise, LatticeNoise):
        return False
    return noise.variance_shared == 0 and noise.offset == "none" and noise.variance >= _FINE


def _nodes(budget: Budget, deviation: float, kinks: set[float]) -> list[float]:
    """Where the profiles are evaluated for a certificate: densely where both steps together spend their delta."""
    mu = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    height = float(-special.ndtri(budget.delta * 1e-3))
    # By how many nats delta falls in one deviation of the loss, which is also where the sum is centred.
    tilt = max(0.05, float(-special.ndtri(budget.delta)) * deviation / mu)
    step, heights = min(0.6, _NATS / tilt), [-1.5, 0.0]
    while heights[-1] < height:
        heights.append(min(height, heights[-1] + (step if heights[-1] < tilt + 2.5 else 3.0 * step)))
    return sorted({*(budget.epsilon - z * deviation for z in heights), *kinks})


def _curve_nodes(planned: ChoicePlan, last: float) -> list[float]:
    """Where the profiles are evaluated for a curve: densely where delta falls.

    Above the release's own epsilon it only falls for a public list, which has no new counts.
    """
    release, deviation = planned.budget_of_release, 1.0 / math.sqrt(planned.choice.variance)
    mu = largest_sensitivity_per_sigma(epsilon=release.epsilon, delta=release.delta)
    end = last if all(isinstance(plan.noise, PublicNoise) for plan in planned.plans) else release.epsilon
    grid = np.linspace(-_WIDE * deviation, end, _GRID)
    fallen = -np.log(np.maximum(np.asarray(hockey_stick_normal(mu, grid)), 1e-300))
    fallen -= fallen[0]
    steps = min(_MOST_NODES, math.ceil(float(fallen[-1]) / _CURVE_NATS))
    places = np.searchsorted(fallen, np.linspace(0.0, float(fallen[-1]), steps + 1))
    near = (release.epsilon + step * deviation for step in (0.5, 1.5, _WIDE))
    kinks = {plan.budget.epsilon for plan in planned.plans}
    return sorted({*grid[np.minimum(places, _GRID - 1)].tolist(), *kinks, *near, last})


# The choice, from noisy sizes and public plans alone. It is a model, and privacy does not depend on it;
# docs/theory/choice.md has its errors on real data.

# The most common item is assumed to belong to every fourth user; in real data, to every fourth to tenth.
_COMMONEST: Final = 0.25
_POINTS: Final = 64
# On average, how far the tastes of heavy users differ: the relative error that one correction for all items
# leaves, in units of `Sizes.unevenness`. Real data had 0.13 (retail), 0.19 (words) and 0.27 (films), nearly the
# same for every plan. The upper end is used, since too large a limit costs less than too small a one.
_TASTES: Final = 0.27
# Where the factor of an item is computed: the chance of the item in one draw, times the mean number of items. From
# so rare that the factor is constant to so common that almost every user has the item.
_CHANCES: Final = 2.0 ** np.arange(-9.0, 4.5, 0.5)

Levels = tuple[tuple[int, float], ...]
"""The weight of a user's items: (items, weight) pairs, items increasing, weights decreasing from 1.

A user with n items keeps n' = min(n, last items) of them, each with the weight of the first pair whose items are
at least n'. A limit of 20 is ((20, 1.0),).
"""


def choose_plan(planned: ChoicePlan, noisy: Sequence[int]) -> tuple[Plan, Correction]:
    """The best plan for the goal, as far as the noisy sizes show, and the correction of its counts.

    Post-processing: it sees the noisy sizes and the plans, which are public.
    """
    if len(noisy) != planned.choice.buckets:
        raise InvalidParameter(f"there must be {planned.choice.buckets} noisy sizes, not {len(noisy)}")
    sizes = planned.estimate_sizes(noisy)
    best = min(planned.plans, key=lambda plan: predicted_loss(plan, sizes, planned.goal))
    return best, sizes.corrections(levels_of(best))


def levels_of(plan: Plan) -> Levels:
    lattice = plan.levels[0].weight if plan.levels else 1
    levels = tuple((level.items, level.weight / lattice) for level in plan.levels)
    return levels or ((plan.contract.items, 1.0),)


def items_kept(levels: Levels, items: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How many items users with these numbers of items keep, and the weight of each."""
    limits, weights = (np.asarray(column, dtype=np.float64) for column in zip(*levels, strict=True))
    kept = np.minimum(items, limits[-1])
    return kept, weights[np.searchsorted(limits, kept)]


def predicted_loss(plan: Plan, sizes: Sizes, goal: Goal) -> float:
    """How bad the release of a plan is predicted to be: smaller is better.

    For `keys`: the number of users that an item needs on average, threshold times correction. Without a threshold
    all items are released, and the loss is that of `accuracy`.

    For `accuracy`: the sum over all items of |estimate - truth| divided by the sum of the truths, where an
    estimate is the released count times the correction, or 0. By Zipf's law, as many pairs belong to items with 1
    to 2 users as to items with 2 to 4, so this is a mean over the logarithms of counts c:

        1/ln(largest) * integral of error(c)/c from 1 to the largest count
        error(c) = 1 below the least count that is released, from there on E|N(0, s^2)| with
        s^2 = (noise correction/c)^2 + (standard error of correction/correction)^2 + pi/2 tastes^2
    """
    levels = levels_of(plan)
    correction, correction_error = sizes.correction(levels)
    needed = plan.threshold * correction
    if goal == "keys" and needed > -math.inf:
        return needed
    largest = max(math.e, _COMMONEST * sizes.total)
    least = max(1.0, needed, _least_listed(plan.contract.max_nonzero, sizes, largest))
    # If no item is likely to be released, the plan that comes closest to it has the least loss.
    width = max(0.0, math.log(largest / least))
    counts = least * np.exp(width * (np.arange(_POINTS) + 0.5) / _POINTS)
    tastes = _TASTES * sizes.unevenness(levels)
    of_all = (correction_error / correction) ** 2 + 0.5 * math.pi * tastes**2
    error = math.sqrt(2.0 / math.pi) * np.sqrt((plan.total_noise * correction / counts) ** 2 + of_all)
    return (math.log(least) + width * float(error.mean())) / math.log(largest)


def _least_listed(most_items: int | None, sizes: Sizes, largest: float) -> float:
    """The least count that can be released where a public list or a top-k step bounds the number of items."""
    if most_items is None or sizes.pairs <= 0.0:
        return 1.0
    # All counts from 1 to the largest make the pairs: the sum of a/(i + q) is a ln(largest).
    scale = sizes.pairs / max(1.0, math.log(largest))
    return scale / (most_items + scale / largest)


@dataclass(frozen=True, eq=False)
class Sizes:
    """Estimated numbers of users by their number of items.

    Each row of `errors` is one independent source of error: how far one standard deviation of it moves `users`.
    """

    items: FloatArray
    users: FloatArray
    errors: FloatArray

    @property
    def total(self) -> float:
        return float(sum(self.users))

    @property
    def pairs(self) -> float:
        """The number of (user, item) pairs."""
        return float(sum(self.users * self.items))

    def correction(self, levels: Levels) -> tuple[float, float]:
        """F = all pairs / sum of all weights, and its standard error, to first order in `errors`.

        An item of c users has a weighted count of c/F on average. F is at least 1, and 1 without users.
        """
        per_user = self._weights(levels)
        weights = self.users @ per_user
        if weights <= 0.0:
            return 1.0, 0.0
        factor = max(1.0, float(self.users @ self.items / weights))
        return factor, float(np.linalg.norm(self.errors @ ((self.items - factor * per_user) / weights)))

    def corrections(self, levels: Levels) -> Correction:
        """The factor of an item by its weighted count; for rare items, that of `correction`.

        All users are assumed to draw their items from one distribution. An item with the chance x in one draw is
        then among the n items of a user with probability 1 - exp(-n x), since a user has it at most once. The sums
        of this over all users and over their weights are the number of users and the weighted count for x.
        """
        users, items = self.users, self.items
        weight = self._weights(levels) / items
        if not users @ weight > 0.0:
            return Correction((0.0,), (1.0,), (0.0,))
        draws = np.outer(_CHANCES * users.sum() / (users @ items), items)
        has, slope = -np.expm1(-draws), draws * np.exp(-draws)
        count, number = has @ (users * weight), has @ users
        # An error in the sizes moves the chance for a given count, and with it the number of users.
        per_count = (slope @ users) / (slope @ (users * weight))
        moves = has * (1.0 - per_count[:, None] * weight)
        errors = np.linalg.norm(moves @ self.errors.T, axis=1) / count
        # Six digits, because the last ones of a fit differ between machines; counts that hardly differ are merged.
        apart = np.concatenate(([True], np.diff(count) > 1e-3 * count[1:]))
        counts, factors, deviations = (
            tuple(_six_digits(float(value)) for value in column[apart])
            for column in (count, number / count, errors)
        )
        return Correction(counts, tuple(max(1.0, factor) for factor in factors), deviations)

    def unevenness(self, levels: Levels) -> float:
        """The coefficient of variation of the weight of a (user, item) pair, a dropped pair having weight 0.

        If it is 0, all pairs count the same and one correction is right for every item.
        """
        pairs = self.users * self.items
        if pairs.sum() <= 0.0:
            return 0.0
        weight = self._weights(levels) / self.items
        mean = pairs @ weight / pairs.sum()
        return float(np.sqrt(pairs @ (weight - mean) ** 2 / pairs.sum()) / mean)

    def _weights(self, levels: Levels) -> FloatArray:
        """The sum of the weights of one user of each size."""
        kept, weight = items_kept(levels, self.items)
        return kept * weight


# The estimate of the sizes. The density of users over the logarithm of their items is assumed to be smooth, and to
# fall where noise hides it: its logarithmic slope is about -3 +- 1 and changes over a factor of about 2 in items
# (an Ornstein-Uhlenbeck process: stationary deviation sqrt(1.6 * 1.2/2), rate 1.6/1.2). Counts that stand out of
# the noise override it. Slopes from -2.5 to -3.5 give about the same choice; too large a correction costs more
# accuracy than too small a one, so the slope is rather steep.
_SLOPE: Final = -3.0
_SLOPE_DEVIATION: Final = 1.2
_CURVATURE: Final = 1.6
# Beyond this many deviations a larger jump costs little more: separate kinds of users exist.
_JUMP: Final = 2.0
# Keeps the fit finite where only noise is seen; too weak to matter elsewhere.
_LEVEL_DEVIATION: Final = 10.0
# The noise is overstated by this factor: otherwise several buckets of huge users, filled by chance in one release
# of some hundred, would look like a group of users.
_CAUTION: Final = 1.5
# More users than there can be, so that no step of the fit overflows.
_LARGEST_LOGARITHM: Final = 100.0
_POINTS_PER_BUCKET: Final = 8
# The slope within a bucket is that of its neighbours, up to this much (a steeper one is a jump), with this
# deviation: no count shows how sizes are distributed within a bucket.
_STEEPEST: Final = 4.0
_TILT: Final = 2.0
# The fit takes 10 to 100 steps to the last digit, so that another machine finds the same numbers.
_MOST_STEPS: Final = 1000
_SHORT_STEP: Final = 0.1
_EXACT: Final = 1e-12

Terms = tuple[FloatArray, FloatArray, FloatArray]


def estimate_sizes(choice: CapChoice, noisy: Sequence[int], *, most: int | None = None) -> Sizes:
    """The most likely smooth density of users behind the noisy sizes, with its errors.

    Without smoothing, a bucket of huge users that only noise has filled would outweigh all others. With a public
    list, no user has more than its `most` items.
    """
    deviation = _CAUTION * math.sqrt(choice.variance)
    edges = (0, *choice.caps, *(() if most == choice.caps[-1] else (2 * choice.caps[-1],)))
    seen = np.asarray(noisy, dtype=np.float64)[: len(edges) - 1]
    # Sizes are whole: at most m means below m + 1/2.
    ends = np.log(np.array(edges) + 0.5)
    widths, middles = np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
    prior, target = _smoothness(middles, level=math.log(deviation / widths[0]))

    def users_of(density: FloatArray) -> FloatArray:
        return np.asarray(np.exp(np.minimum(density, _LARGEST_LOGARITHM)) * widths)

    def terms(density: FloatArray) -> Terms:
        users, jumps = users_of(density), (prior @ density - target) / _JUMP
        root, bent = np.hypot(1.0, jumps), np.arcsinh(jumps)
        residuals = np.concatenate(((users - seen) / deviation, _JUMP * bent))
        jacobian = np.vstack((np.diag(users / deviation), prior / root[:, None]))
        bends = (-bent * jumps / root**3)[:, None] * prior
        curvature = np.asarray(np.diag((users - seen) * users / deviation**2) + prior.T @ bends)
        return residuals, jacobian, curvature

    density = _least_squares(terms, np.log(np.maximum(seen, deviation) / widths))
    users = users_of(density)
    # The inverse of R'R = J'J is the covariance of the logarithms.
    errors = np.linalg.inv(np.linalg.qr(terms(density)[1], mode="r")).T * users
    slopes = np.gradient(density, middles) if middles.size > 1 else np.zeros(1)
    items, shares, tilts = _points_of_buckets(edges, slopes)
    return Sizes(items, users @ shares, np.vstack((errors @ shares, users[:, None] * tilts)))


def _least_squares(terms: Callable[[FloatArray], Terms], start: FloatArray) -> FloatArray:
    """The minimum of the sum of squares that damped Gauss-Newton steps from `start` lead to.

    `terms` are the residuals, their Jacobian, and the part of the Hessian from their second derivatives. The last
    is used near the minimum only: there it makes the last steps quick, further out it might lead to another one.
    """
    point, (left, rows, curvature), damping, near = start, terms(start), 0.0, False
    for _ in range(_MOST_STEPS):
        hessian = rows.T @ rows + damping * np.eye(start.size)
        step = -np.linalg.solve(hessian + curvature if near else hessian, rows.T @ left)
        trial, size = terms(point + step), float(np.abs(step).max())
        # Up to rounding.
        if trial[0] @ trial[0] <= left @ left * (1.0 + _EXACT):
            point, (left, rows, curvature), near = point + step, trial, size < _SHORT_STEP
            damping = damping / 8.0 if damping > 1e-6 else 0.0
        else:
            near, damping = False, max(4.0 * damping, 1e-3)
        if size <= _EXACT:
            break
    return point


def _smoothness(middles: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Rows and targets of least squares: level, slopes and changes of slope of a logarithmic density."""
    gaps = np.diff(middles)
    first = np.eye(1, middles.size) / _LEVEL_DEVIATION
    slopes = np.diff(np.eye(middles.size), axis=0) / gaps[:, None]
    weights = np.sqrt(gaps) / _SLOPE_DEVIATION
    between = 0.5 * (gaps[1:] + gaps[:-1])
    changes = np.diff(slopes, axis=0) / (np.sqrt(between) * _CURVATURE)[:, None]
    rows = np.vstack((first, slopes * weights[:, None], changes))
    return rows, np.concatenate(([level / _LEVEL_DEVIATION], _SLOPE * weights, np.zeros(changes.shape[0])))


def _points_of_buckets(edges: Sequence[int], slopes: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """A few sizes to represent each bucket, and by bucket (row) the share of its users at each and its error."""
    from scipy.linalg import block_diag  # not needed by other plans

    items, shares, tilts = [], [], []
    for (low, edge), slope in zip(pairwise(edges), np.clip(slopes, -_STEEPEST, _STEEPEST), strict=True):
        ends = np.unique(np.linspace(low, edge, _POINTS_PER_BUCKET + 1).round())
        logs = np.log(ends + 0.5)
        middles = 0.5 * (logs[1:] + logs[:-1])
        share = np.exp(slope * (middles - middles[0])) * np.diff(logs)
        share /= share.sum()
        items.append(0.5 * (ends[:-1] + 1.0 + ends[1:]))
        shares.append(share)
        tilts.append(_TILT * share * (middles - share @ middles))
    return np.concatenate(items), block_diag(*shares), block_diag(*tilts)
