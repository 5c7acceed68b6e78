"""A limit chosen privately: a little of the budget buys noisy sizes of users, the rest goes to the release.

No data is involved here: every limit on offer gets its plans beforehand, with and without spread, and one
certificate covers the choice and the release together. The sizes also give estimates of the numbers of users.
Proofs: docs/theory/choice.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Final, Literal, get_args

import numpy as np
from flint import arb
from scipy import special

from dphist.display import html_grid, text_grid
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
    Noise,
    Plan,
    PublicNoise,
)

# How good a release would be, from noisy sizes and its plan alone. A model, not a guarantee: privacy does not rest
# on it. docs/theory/choice.md has its errors on real data.

# The commonest item is taken to be one of every fourth user; in real data it was one of every fourth to tenth.
_COMMONEST: Final = 0.25
_POINTS: Final = 64
# What sizes are like: the density of users over the logarithm of their items is smooth, and it falls where noise
# hides it. Its slope in logarithms is taken to be about -3 +- 1 and to change over a factor of about 2 in items
# (an Ornstein-Uhlenbeck process: stationary deviation sqrt(1.6 * 1.2/2), rate 1.6/1.2). Counts that stand out of
# the noise override it. With slopes of -2.5 to -3.5 the choice is about the same; the steeper ones are better,
# because too large a correction costs more accuracy than too small a one.
_SLOPE: Final = -3.0
_SLOPE_DEVIATION: Final = 1.2
_CURVATURE: Final = 1.6
# Beyond this many deviations a jump counts little more than a smaller one: users of a separate kind exist.
_JUMP: Final = 2.0
# Keeps the fit finite where nothing but noise is seen; far too weak to matter elsewhere.
_LEVEL_DEVIATION: Final = 10.0
# The fit takes 10 to 100 steps, to the last digits that there are: another machine must find the same numbers.
_MOST_STEPS: Final = 1000
_SHORT_STEP: Final = 0.1
_EXACT: Final = 1e-12
# Noise is taken to be larger than it is by this: several buckets of huge users that it fills together by chance,
# in one release of some hundred, would otherwise pass for a group of users.
_CAUTION: Final = 1.5
# More users than there can be: a step of the fit beyond it must not overflow.
_LARGEST_LOGARITHM: Final = 100.0
_POINTS_PER_BUCKET: Final = 8
# Within a bucket the slope is that of its neighbours, up to this much (a steeper one belongs to a jump), give or
# take this deviation: how sizes are distributed within a bucket shows in no count.
_STEEPEST: Final = 4.0
_TILT: Final = 2.0
# How far the tastes of heavy users differ from those of others: the mean relative error that one correction for
# all items leaves, in units of `Sizes.unevenness`. On real data it was 0.13 (retail), 0.19 (words) and 0.27
# (films), nearly the same for every plan; 0.10 where users differ in nothing but size, 0.42 where two kinds of
# users have few items in common. At the upper end of the real ones: too large a limit costs less than too small.
_TASTES: Final = 0.27

# Where the factor of an item is computed: the chance of the item in one draw, times the mean number of items. From
# so rare that the factor does not change to so common that almost every user has the item.
_CHANCES: Final = 2.0 ** np.arange(-9.0, 4.5, 0.5)

Levels = tuple[tuple[int, float], ...]
"""The weight of a user's items: (items, weight) pairs, items increasing, weights decreasing from 1.

A user with n items keeps n' = min(n, last items) of them, each with the weight of the first pair whose items are
at least n'. A cap of 20 is ((20, 1.0),). Without any pair, every item counts in full.
"""
# What a release is to be best at: the counts of all items together, or the number of items it finds.
Goal = Literal["accuracy", "keys"]


@dataclass(frozen=True)
class Sizes:
    """Users by their number of items, as far as noise lets them be seen.

    Each row of `errors` is one independent source of error: how far one standard deviation of it moves `users`.
    """

    items: tuple[float, ...]
    users: tuple[float, ...]
    errors: tuple[tuple[float, ...], ...] = ()

    @property
    def total(self) -> float:
        """All users."""
        return sum(self.users)

    @property
    def pairs(self) -> float:
        """All (user, item) pairs."""
        return sum(n * size for n, size in zip(self.users, self.items, strict=True))

    def correction(self, levels: Levels) -> float:
        """F = all pairs / sum of all weights: an item of c users has a weighted count of c/F on average.

        At least 1, and 1 without users.
        """
        weights = self._users @ self._weights(levels)
        return max(1.0, float(self._users @ self._items / weights)) if weights > 0.0 else 1.0

    def correction_error(self, levels: Levels) -> float:
        """The standard error of `correction`, to first order in `errors`."""
        weights = self._users @ self._weights(levels)
        if not self.errors or weights <= 0.0:
            return 0.0
        gradient = (self._items - self.correction(levels) * self._weights(levels)) / weights
        return float(np.linalg.norm(self._errors @ gradient))

    def corrections(self, levels: Levels) -> Correction:
        """The factor of an item by its weighted count. For rare ones it is that of `correction`.

        All users are taken to choose their items from one law. An item with the chance x in one draw is then among
        the n items of a user with 1 - exp(-n x): a user has it once at most, however large n is. The sums of this
        over all users and over their weights are the number of users and the weighted count that belong to x.
        """
        users, items = self._users, self._items
        weight = self._weights(levels) / items
        if not users @ weight > 0.0:
            return Correction((0.0,), (1.0,), (0.0,))
        draws = np.outer(_CHANCES * users.sum() / (users @ items), items)
        has, slope = -np.expm1(-draws), draws * np.exp(-draws)
        count, number = has @ (users * weight), has @ users
        # Sizes that are off move the chance that belongs to a count, and with it the number of users.
        per_count = (slope @ users) / (slope @ (users * weight))
        moves = has * (1.0 - per_count[:, None] * weight)
        errors = np.linalg.norm(moves @ self._errors.T, axis=1) / count if self.errors else 0.0 * count
        # Six digits: the last ones of a fit differ between machines. Counts that hardly differ are one.
        apart = np.concatenate(([True], np.diff(count) > 1e-3 * count[1:]))
        rows = ([_six_digits(float(one)) for one in column[apart]] for column in (count, number / count, errors))
        counts, factors, deviations = (tuple(row) for row in rows)
        return Correction(counts, tuple(max(1.0, factor) for factor in factors), deviations)

    def unevenness(self, levels: Levels) -> float:
        """The coefficient of variation of the weight of a (user, item) pair, a dropped pair having weight 0.

        If it is 0, all pairs count the same and one correction is right for every item.
        """
        pairs = self._users * self._items
        if pairs.sum() <= 0.0:
            return 0.0
        weight = self._weights(levels) / self._items
        mean = pairs @ weight / pairs.sum()
        return float(np.sqrt(pairs @ (weight - mean) ** 2 / pairs.sum()) / mean)

    @cached_property
    def _items(self) -> FloatArray:
        return np.asarray(self.items, dtype=np.float64)

    @cached_property
    def _users(self) -> FloatArray:
        return np.maximum(0.0, np.asarray(self.users, dtype=np.float64))

    @cached_property
    def _errors(self) -> FloatArray:
        return np.asarray(self.errors, dtype=np.float64)

    def _weights(self, levels: Levels) -> FloatArray:
        """The sum of the weights of one user of each size."""
        if not levels:
            return self._items
        kept, weight = items_kept(levels, self._items)
        return kept * weight


def items_kept(levels: Levels, items: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How many of their items users keep who have so many, and the weight of each."""
    limits, weights = (np.asarray(column, dtype=np.float64) for column in zip(*levels, strict=True))
    kept = np.minimum(items, limits[-1])
    return kept, weights[np.searchsorted(limits, kept)]


def estimate_sizes(choice: CapChoice, noisy: Sequence[int], *, most: int | None = None) -> Sizes:
    """The sizes behind the noise: the most likely smooth density of users, and how far off it may be.

    By itself a bucket of huge users that only noise has filled would count for more than all others. With a public
    list, no user has more than its `most` items.
    """
    found, deviation = np.asarray(noisy, dtype=np.float64), _CAUTION * math.sqrt(choice.variance)
    edges = (0, *choice.caps, *(() if most == choice.caps[-1] else (2 * choice.caps[-1],)))
    found = found[: len(edges) - 1]
    # Sizes are whole: at most m means below m + 1/2.
    ends = np.log(np.array(edges) + 0.5)
    widths, middles = np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
    prior, target = _smoothness(middles, level=math.log(deviation / widths[0]))

    def users_of(density: FloatArray) -> FloatArray:
        return np.asarray(np.exp(np.minimum(density, _LARGEST_LOGARITHM)) * widths)

    def residuals(density: FloatArray) -> FloatArray:
        jumps = _JUMP * np.arcsinh((prior @ density - target) / _JUMP)
        return np.concatenate(((users_of(density) - found) / deviation, jumps))

    def jacobian(density: FloatArray) -> FloatArray:
        jumps = prior / np.hypot(1.0, (prior @ density - target) / _JUMP)[:, None]
        return np.vstack((np.diag(users_of(density) / deviation), jumps))

    def curvature(density: FloatArray) -> FloatArray:
        jumps = (prior @ density - target) / _JUMP
        bends = -np.arcsinh(jumps) * jumps / np.hypot(1.0, jumps) ** 3
        users = users_of(density)
        return np.asarray(np.diag((users - found) * users / deviation**2) + prior.T @ (bends[:, None] * prior))

    start = np.log(np.maximum(found, deviation) / widths)
    density = _least_squares(residuals, jacobian, curvature, start)
    users = users_of(density)
    # The inverse of R'R = J'J is the covariance of the logarithms.
    errors = np.linalg.inv(np.linalg.qr(jacobian(density), mode="r")).T * users
    slopes = np.gradient(density, middles) if middles.size > 1 else np.zeros(1)
    items, shares, tilts = _points_of_buckets(edges, slopes)
    rows = np.vstack((errors @ shares, users[:, None] * tilts))
    return Sizes(tuple(items.tolist()), tuple((users @ shares).tolist()), tuple(map(tuple, rows.tolist())))


def _least_squares(
    residuals: Callable[[FloatArray], FloatArray],
    jacobian: Callable[[FloatArray], FloatArray],
    curvature: Callable[[FloatArray], FloatArray],
    start: FloatArray,
) -> FloatArray:
    """The minimum of the sum of squares that damped Gauss-Newton steps from `start` lead to.

    `curvature` is what the second derivatives of the residuals add to the Hessian. It is used near the minimum
    alone: there it makes the last steps quick, further out it might lead to another one.
    """
    found, left, damping, near = start, residuals(start), 0.0, False
    for _ in range(_MOST_STEPS):
        rows = jacobian(found)
        hessian = rows.T @ rows + damping * np.eye(start.size)
        step = -np.linalg.solve(hessian + curvature(found) if near else hessian, rows.T @ left)
        trial, size = residuals(found + step), float(np.abs(step).max())
        # But for rounding.
        if trial @ trial <= left @ left * (1.0 + _EXACT):
            found, left, near = found + step, trial, size < _SHORT_STEP
            damping = damping / 8.0 if damping > 1e-6 else 0.0
        else:
            near, damping = False, max(4.0 * damping, 1e-3)
        if size <= _EXACT:
            break
    return found


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
    """A few sizes that stand for each bucket, the share of each bucket (row) that has each, and its error."""
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


@dataclass(frozen=True)
class Candidate:
    """What a release on offer does to counts: all of it public.

    `noise` is the standard deviation of a count, `threshold` what a noisy count must pass (minus infinity for a
    public list). `most_items` bounds the released items where a public list or a top-k step does.
    """

    noise: float
    threshold: float
    levels: Levels
    most_items: int | None = None


def choose_best(candidates: Sequence[Candidate], sizes: Sizes, goal: Goal) -> int:
    """The index of the candidate with the least predicted loss, the first of several."""
    return int(np.argmin([predicted_loss(each, sizes, goal) for each in candidates]))


def predicted_loss(candidate: Candidate, sizes: Sizes, goal: Goal) -> float:
    """How bad a release is predicted to be: smaller is better.

    For `keys`: the number of users that an item needs on average, threshold times correction. Without a threshold
    all items are released, and the loss is that of `accuracy`.

    For `accuracy`: the sum over all items of |estimate - truth| divided by the sum of the truths, where an
    estimate is the released count times the correction, or 0. By Zipf's law, as many pairs belong to items with 1
    to 2 users as to items with 2 to 4, so this is a mean over the logarithms of counts c:

        1/ln(largest) * integral of error(c)/c from 1 to the largest count
        error(c) = 1 below the least count that is released, from there on E|N(0, s^2)| with
        s^2 = (noise correction/c)^2 + (standard error of correction/correction)^2 + pi/2 tastes^2
    """
    correction = sizes.correction(candidate.levels)
    needed = candidate.threshold * correction
    if goal == "keys" and needed > -math.inf:
        return needed
    largest = max(math.e, _COMMONEST * sizes.total)
    least = max(1.0, needed, _least_of_list(candidate.most_items, sizes, largest))
    # If nothing is likely to be released, the candidate that comes closest to it is the best.
    width = max(0.0, math.log(largest / least))
    counts = least * np.exp(width * (np.arange(_POINTS) + 0.5) / _POINTS)
    tastes = _TASTES * sizes.unevenness(candidate.levels)
    of_all = (sizes.correction_error(candidate.levels) / correction) ** 2 + 0.5 * math.pi * tastes**2
    error = math.sqrt(2.0 / math.pi) * np.sqrt((candidate.noise * correction / counts) ** 2 + of_all)
    return (math.log(least) + width * float(error.mean())) / math.log(largest)


def _least_of_list(bound: int | None, sizes: Sizes, largest: float) -> float:
    """The least count among as many as can be released, where that is bounded: a public list, a top-k step."""
    if bound is None or sizes.pairs <= 0.0:
        return 1.0
    # All counts from 1 to the largest make the pairs: the sum of a/(i + q) is a ln(largest).
    scale = sizes.pairs / max(1.0, math.log(largest))
    return scale / (bound + scale / largest)


# Plans for a cap that is chosen privately: a little of the budget for noisy sizes, the rest for the release.
#
# `choose_plan` is a function of the noisy sizes and of these plans alone.

PlanOf = Callable[[float, float, int], Plan]
"""From epsilon, delta and a cap to the plan of the release that would follow."""

# Keys need the sizes for the choice alone, estimates for every number.
DEFAULT_SHARES: Final[dict[Goal, float]] = {"accuracy": 0.02, "keys": 0.005}
ANALYSIS: Final = "exact-discrete, cap chosen"
_LARGEST_SHARE: Final = 0.5
# From a total this close to delta, in proportion, the next step meets the aim.
_CLOSE: Final = 0.9
_AIM: Final = 0.993
_MOST_ROUNDS: Final = 6
# Where delta would have to fall so far, the epsilons are what is wrong.
_LEAST_PART: Final = 1e-3
# The threshold is weighed at this cap; it matters little which.
_TYPICAL_CAP: Final = 64
# What Laplace noise may cost, as a share of delta, because its profile rises steeply below its epsilon.
_FOR_LAPLACE: Final = 0.004
# Nodes every so many nats of delta: their chords are then within 2 % of the profile.
_NATS: Final = 0.4
_COLUMNS: Final = ("limit", "excess", "mechanism", "noise", "threshold")


@dataclass(frozen=True)
class ChoicePlan:
    """The plans on offer, with caps and with spread, and one certificate for the choice and what follows."""

    budget: Budget
    share: float
    choice: CapChoice
    budget_of_release: Budget
    plans: tuple[Plan, ...]
    certificate: Certificate
    goal: Goal = "accuracy"

    def plan(self, limit: int, excess: Excess = "drop") -> Plan:
        """The plan of the release with this limit."""
        for plan in self.plans:
            if plan.contract.items == limit and excess_of(plan) == excess:
                return plan
        raise InvalidParameter(f"no plan on offer has the limit {limit!r} and excess = {excess!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data of the choice; the plan that follows has its own."""
        return {
            "share": self.share,
            "goal": self.goal,
            **self.choice.to_dict(),
            "epsilon_of_release": self.budget_of_release.epsilon,
            "delta_of_release": self.budget_of_release.delta,
            "certificate": self.certificate.to_dict(),
        }

    @property
    def title(self) -> str:
        """What is spent on what, in one line."""
        whole, rest = self.budget, self.budget_of_release
        return (
            f"A limit chosen privately: epsilon {whole.epsilon:g}, delta {whole.delta:g}; noise of the sizes "
            f"{math.sqrt(self.choice.variance):.4g}; then epsilon {rest.epsilon:g}, delta {rest.delta:g}; "
            f"certified delta of both {self.certificate.delta:.6g}"
        )

    def cells(self) -> list[tuple[str, ...]]:
        """Each limit with the noise and the threshold that it would lead to."""
        return [
            (
                f"{one.contract.items:,}",
                excess_of(one),
                one.mechanism,
                f"{one.total_noise:.4g}",
                f"{one.threshold:.5g}",
            )
            for one in self.plans
        ]

    def __str__(self) -> str:
        return f"{self.title}\n\n{text_grid(_COLUMNS, self.cells(), left=0)}"

    def _repr_html_(self) -> str:
        return html_grid(self.title, _COLUMNS, self.cells())


def check_goal(goal: str) -> Goal:
    """What a release is to be best at, by name."""
    return one_of("goal", goal, get_args(Goal))


def excess_of(plan: Plan) -> Excess:
    """What happens to the items of a user beyond the limit."""
    return "drop" if plan.contract.spread is None else "spread"


def plan_choice(
    budget: Budget,
    *makers: PlanOf,
    share: float | None = None,
    caps: tuple[int, ...] = DEFAULT_CAPS,
    goal: Goal = "accuracy",
) -> ChoicePlan:
    """Noise for the sizes, and for each cap the plans of the releases that it would lead to.

    `share` is what the noisy sizes use of the squared sensitivity that the budget allows. Each of the `makers`
    makes a plan for every cap, all of them for one budget a little below the whole; only plans with Laplace noise
    are asked for again with a smaller epsilon, so that Gaussian noise is the better one from two items a user on.
    The same arguments give the same result.

    Guarantee: the certificate's delta, for the sizes and the release with whatever cap is chosen from them, is
    within the budget.
    """
    share = DEFAULT_SHARES[goal] if share is None else finite_number("share", share)
    if not 0.0 < share <= _LARGEST_SHARE:
        raise InvalidParameter(f"share must be above 0 and at most {_LARGEST_SHARE:g}, not {share!r}")
    choice = CapChoice(caps, variance_of_sizes(budget, share))
    deviation = 1.0 / math.sqrt(choice.variance)
    epsilon, delta = _proposal(budget, deviation)
    # A few caps tell nearly all of it, since all plans have the same budget: these rounds are quick.
    few = tuple(sorted({caps[0], caps[len(caps) // 2], caps[-1]}))
    for offered in (few, caps):
        for _ in range(_MOST_ROUNDS):
            release = Budget(epsilon, delta)
            plans = tuple(_plan_for(maker, cap, budget, release, deviation) for maker in makers for cap in offered)
            certificate = certify_choice(choice.variance, plans, budget)
            if offered is caps and certificate.delta <= budget.delta:
                return ChoicePlan(budget, share, choice, release, plans, certificate, goal)
            # Nearly proportional: what is close by now needs no second look.
            spent = certificate.delta / budget.delta
            delta = min(budget.delta, _six_digits(delta * _AIM / spent))
            if delta < _LEAST_PART * budget.delta:
                break
            if offered is few and _CLOSE <= spent <= 1.0 / _CLOSE:
                break
    raise NoPlan(f"no cap could be chosen for {budget}: give one by number")


def variance_of_sizes(budget: Budget, share: float) -> Fraction:
    """The variance of the noisy sizes: 1/(share mu^2), rounded up to four digits, at least one."""
    mu = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    return max(Fraction(1), Fraction(Decimal(repr(round_up(1.0 / (share * mu * mu), 4)))))


def certify_choice(variance: Fraction, plans: Sequence[Plan], budget: Budget) -> Certificate:
    """Certificate at the budget's epsilon of noisy sizes and of whatever release follows them.

    Guarantee: `delta` is an upper bound in ball arithmetic, for any rule that takes one of `plans` by the noisy
    sizes. The budget's delta only proposes where to evaluate.
    """
    points = _nodes(budget, 1.0 / math.sqrt(variance), {plan.budget.epsilon for plan in plans})
    delta = delta_adaptive_upper(variance, largest_of_all(plans, points), epsilon=budget.epsilon)
    worst = max(plans, key=lambda plan: plan.certificate.delta)
    # A user whose items are all new shows by each release with at least the least of these probabilities.
    lower = min(delta, *(plan.certificate.delta_lower for plan in plans))
    return Certificate(budget.epsilon, delta, ANALYSIS, worst.certificate.binding_case, lower)


def choose_plan(planned: ChoicePlan, noisy: Sequence[int]) -> tuple[Plan, Correction]:
    """The plan that is best for the goal, as far as these noisy sizes show, and what corrects its counts.

    Post-processing: it sees the noisy sizes and the plans, which are public.
    """
    if len(noisy) != planned.choice.buckets:
        raise InvalidParameter(f"there must be {planned.choice.buckets} noisy sizes, not {len(noisy)}")
    sizes = estimate_sizes(planned.choice, noisy, most=planned.plans[0].contract.max_nonzero)
    candidates = [candidate_of(plan) for plan in planned.plans]
    best = choose_best(candidates, sizes, planned.goal)
    return planned.plans[best], sizes.corrections(candidates[best].levels)


def candidate_of(plan: Plan) -> Candidate:
    """What the release of a plan does to counts."""
    return Candidate(plan.total_noise, plan.threshold, levels_of(plan), plan.contract.max_nonzero)


def levels_of(plan: Plan) -> Levels:
    """The weight of a user's items under a plan, by their number."""
    lattice = plan.levels[0].weight if plan.levels else 1
    levels = tuple((level.items, level.weight / lattice) for level in plan.levels)
    return levels or ((plan.contract.items, 1.0),)


def _plan_for(plan_of: PlanOf, cap: int, budget: Budget, release: Budget, deviation: float) -> Plan:
    """The plan of one cap; with Laplace noise at an epsilon that the sizes almost never use up."""
    found = plan_of(release.epsilon, release.delta, cap)
    if isinstance(found.noise, LaplaceNoise):
        found = plan_of(_epsilon_for_laplace(budget, deviation), release.delta, cap)
    if isinstance(found.noise, Noise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    return found


def _nodes(budget: Budget, deviation: float, kinks: set[float]) -> list[float]:
    """Where the profiles are evaluated: closely where both steps together spend their delta, else sparsely."""
    mu = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    height = float(-special.ndtri(budget.delta * 1e-3))
    # By how many nats delta falls in one deviation of the loss; the sum is centred as many deviations out.
    tilt = max(0.05, float(-special.ndtri(budget.delta)) * deviation / mu)
    step, heights = min(0.6, _NATS / tilt), [-1.5, 0.0]
    while heights[-1] < height:
        heights.append(min(height, heights[-1] + (step if heights[-1] < tilt + 2.5 else 3.0 * step)))
    return sorted({*(budget.epsilon - z * deviation for z in heights), *kinks})


def _losses(deviation: float) -> tuple[FloatArray, FloatArray]:
    """The privacy loss of the sizes, taken for normal, at many points, and their weights."""
    z = np.linspace(-38.0, 38.0, 3801)  # as far as doubles know a normal law
    weights = np.exp(-0.5 * z * z)
    return deviation * z + 0.5 * deviation**2, weights / weights.sum()


def _proposal(budget: Budget, deviation: float) -> tuple[float, float]:
    """The epsilon and delta of the release with the lowest threshold, by doubles.

    The release spends max(Gaussian delta, infinite event). One larger and the other smaller may make the same
    total with the sizes: the noise follows the first, the threshold both.
    """
    whole = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    losses, weights = _losses(deviation)
    # Further out, whatever the divergence is would be lost in rounding.
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
        # Of e^pure, which a double may not hold: pure = epsilon - slack.
        over = -np.expm1(np.minimum(slack - losses, 0.0))
        share = 1.0 + math.exp(min(slack - budget.epsilon, 700.0))
        return log_excess(float((weights * over).sum()) / share, _FOR_LAPLACE * budget.delta)

    epsilon = _six_digits(budget.epsilon - least_passing(excess, 4.0 * deviation, relative=1e-6))
    if epsilon <= 0.0:
        raise NoPlan(f"Laplace noise cannot follow noisy sizes within {budget}: make plans with Gaussian noise")
    return epsilon


def _six_digits(value: float) -> float:
    """Six digits: what doubles proposed does not hang on their last bits."""
    return float(f"{value:.6g}")


# Chords over half a nat are some 3 % above the profile; longer ones where delta is so small that there would be
# too many: each node is computed for each of two dozen plans.
_CURVE_NATS: Final = 0.5
_MOST_NODES: Final = 32
_GRID: Final = 4001
# How many deviations of the loss of the sizes are looked at on either side.
_WIDE: Final = 4.0
# In squared steps: from here on what whole numbers may be off is nothing beside delta.
_FINE: Final = 10_000
# Every so many nodes a plan is evaluated in any case.
_STEP: Final = 6


def choice_curve(planned: ChoicePlan, epsilons: Sequence[float]) -> list[float]:
    """delta at each epsilon of the noisy sizes and of whatever release follows them.

    Guarantee: each is an upper bound in ball arithmetic, as `certify_choice` has at the budget's epsilon; where
    to evaluate the plans is all that doubles propose.
    Valid for: epsilons from 0 on.
    """
    nodes = largest_of_all(planned.plans, _curve_nodes(planned, max(epsilons)))
    least, found = 1.0, {}
    for epsilon in sorted(epsilons):
        delta = delta_adaptive_upper(planned.choice.variance, nodes, epsilon=epsilon)
        # The certificate has its nodes where its own epsilon needs them. What holds at an epsilon holds above it.
        own = planned.certificate.delta if epsilon >= planned.certificate.epsilon else 1.0
        least = found[epsilon] = min(least, delta, own)
    return [found[epsilon] for epsilon in epsilons]


def largest_of_all(plans: Sequence[Plan], points: Sequence[float]) -> list[Node]:
    """At each point the largest delta of all plans, certified.

    Plans whose noise is not shared have one bound together. Another one is evaluated at a few points, and at those
    in between only where a chord does not show that it is smaller there: delta is convex in e^x.
    """
    alone = [plan for plan in plans if _shares_nothing(plan.noise)]
    # One plan of those that draw the same noise for the same users.
    others = {(plan.noise, plan.contract): plan for plan in plans if not _shares_nothing(plan.noise)}.values()
    largest = [0.0] * len(points)
    if alone:
        with balls.precision(bits_for(min(plan.budget.delta for plan in alone)) + 64):
            family = WeightedFamily.of((plan.noise, plan.contract) for plan in alone)  # type: ignore[misc]
            largest = [at_any_epsilon(lambda x: family.delta(arb(x)), point) for point in points]
    coarse = sorted({*range(0, len(points), _STEP), len(points) - 1})
    # The quick ones first: Laplace noise is the largest of all nearly everywhere below its epsilon.
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
    """Whether every count has noise of its own and nothing else, with steps as fine as all real plans have."""
    if not isinstance(noise, LatticeNoise):
        return False
    return noise.variance_shared == 0 and noise.offset == "none" and noise.variance >= _FINE


def _curve_nodes(planned: ChoicePlan, last: float) -> list[float]:
    """Closely where delta falls. Above the release's own epsilon that of new counts is left, which does not; of a
    public list there are none, and it falls on.
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
