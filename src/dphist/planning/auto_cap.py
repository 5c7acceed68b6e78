"""A cap chosen privately: a little of the budget buys noisy sizes of users, the rest goes to the release.

No data is involved here: every cap on offer gets its plan beforehand, and one certificate covers the choice and
the release together. Proofs: docs/theory/choice.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from flint import arb
from numpy.typing import NDArray
from scipy import special

from dphist.display import html_grid, text_grid
from dphist.errors import InvalidParameter, NoPlan, finite_number
from dphist.planning.planner import Excess
from dphist.privacy import balls
from dphist.privacy.choice import Node, at_any_epsilon, delta_adaptive_upper, delta_profile_upper
from dphist.privacy.lattice import bits_for
from dphist.privacy.normal import hockey_stick_normal
from dphist.privacy.paper import largest_sensitivity_per_sigma
from dphist.privacy.search import golden_minimum, least_passing, log_excess, round_up
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

# What a cap costs: an estimate of the mean error of released counts, from noisy sizes and a plan alone.
#
# A model and no guarantee: privacy does not rest on it. docs/theory/choice.md says how far it is off on real data.

FloatArray = NDArray[np.float64]

# The commonest item is taken to be one of every fourth user; in real data it was one of every fourth to tenth.
_COMMONEST: Final = 0.25
_POINTS: Final = 64
# The laws that sizes are fitted with: Weibull, by the logarithm of its scale and by its shape. Small shapes have
# long tails.
_LOG_SCALES: Final = np.arange(-1.0, 8.76, 0.125)
_SHAPES: Final = np.array(
    [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0]
)
# A law is no better than to a tenth of a bucket; where a bucket is off by this many deviations, it is believed.
_LAW_ERROR: Final = 0.1
_SIGNIFICANT: Final = 4.0


@dataclass(frozen=True)
class Sizes:
    """Users by their number of items, as far as noise lets them be seen."""

    items: tuple[float, ...]
    users: tuple[float, ...]

    @property
    def total(self) -> float:
        """All users."""
        return sum(self.users)

    @property
    def pairs(self) -> float:
        """All (user, item) pairs."""
        return sum(n * size for n, size in zip(self.users, self.items, strict=True))

    def dropped_share(self, cap: int) -> float:
        """The share of the pairs that a cap drops."""
        over = sum(n * max(0.0, size - cap) for n, size in zip(self.users, self.items, strict=True))
        return over / self.pairs if over > 0.0 else 0.0


def sizes_seen(choice: CapChoice, noisy: Sequence[int]) -> Sizes:
    """The sizes behind the noise: a smooth law fitted to all buckets, and the buckets that clearly differ from it.

    By itself a bucket of huge users that only noise has filled would count for more than all others. Users of a
    bucket are taken to be in its geometric middle.
    """
    found, deviation = np.asarray(noisy, dtype=np.float64), math.sqrt(choice.variance)
    seen = np.maximum(found, 0.0)
    law = _fit_sizes(found, 1.0 / (deviation**2 + (_LAW_ERROR * seen) ** 2), choice)
    users = np.where(np.abs(found - law) > _SIGNIFICANT * deviation, seen, law)
    lower, edges = (0, *choice.caps), (*choice.caps, 2 * choice.caps[-1])
    # The middle of the whole numbers from lower + 1 to the edge.
    items = tuple(math.sqrt((low + 1) * edge) for low, edge in zip(lower, edges, strict=True))
    return Sizes(items, tuple(users.tolist()))


def _fit_sizes(found: FloatArray, weights: FloatArray, choice: CapChoice) -> FloatArray:
    """The users of each bucket by the law with the least weighted squares, its total included."""
    log_scale, shape = (each.reshape(-1, 1) for each in np.meshgrid(_LOG_SCALES, _SHAPES))
    # Sizes are whole: at most m means below m + 1/2.
    height = np.log(np.array(choice.caps) + 0.5) - log_scale
    beyond = np.exp(-np.exp(np.minimum(shape * height, 700.0)))
    ends = np.ones_like(shape), np.zeros_like(shape)
    law = -np.diff(np.concatenate((ends[0], beyond, ends[1]), axis=1), axis=1)
    total = np.maximum(0.0, (law * weights) @ found / ((law * law) @ weights))
    misses = ((found - total[:, None] * law) ** 2) @ weights
    best = int(np.argmin(misses))
    return np.asarray(total[best] * law[best], dtype=np.float64)


def error_of_cap(plan: Plan, cap: int, sizes: Sizes) -> float:
    """The estimated mean distance of a released count from the true one.

        mean of E|N(lost c, noise^2)| over counts c with density proportional to 1/c^2 from the least count that is
        released to a quarter of the users

    The density is Zipf's law: the i-th largest count is proportional to 1/(i + q).
    """
    lost = sizes.dropped_share(cap) if plan.contract.max_items_per_user == cap else 0.0
    largest = max(1.0, _COMMONEST * sizes.total)
    least = min(largest, max(1.0, plan.threshold / (1.0 - lost), _least_of_list(plan, sizes, largest)))
    # At evenly spaced shares of the released items, largest counts first.
    share = (np.arange(_POINTS) + 0.5) / _POINTS
    counts = 1.0 / (1.0 / largest + share * (1.0 / least - 1.0 / largest))
    bias, noise = lost * counts, plan.total_noise
    error = noise * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * (bias / noise) ** 2) + bias * special.erf(
        bias / (noise * math.sqrt(2.0))
    )
    return float(error.mean())


def _least_of_list(plan: Plan, sizes: Sizes, largest: float) -> float:
    """The least count among as many as can be released, where that is bounded: a public list, a top-k step."""
    bound = plan.contract.max_nonzero
    if bound is None or sizes.pairs <= 0.0:
        return 1.0
    # All counts from 1 to the largest make the pairs: the sum of a/(i + q) is a ln(largest).
    scale = sizes.pairs / max(1.0, math.log(largest))
    return scale / (bound + scale / largest)


# Plans for a cap that is chosen privately: a little of the budget for noisy sizes, the rest for the release.
#
# No data is involved: every cap on offer gets its plan beforehand, and one certificate covers the choice and
# whatever release follows. `chosen_cap` is then a function of the noisy sizes and these plans alone.
# Proofs: docs/theory/choice.md.

# What a release is to be best at: the counts of all items together, or the number of items it finds.
Goal = Literal["accuracy", "keys"]
PlanOf = Callable[[float, float, int], Plan]
"""From epsilon, delta and a cap to the plan of the release that would follow."""

DEFAULT_SHARE: Final = 0.02
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
_FLOAT = np.float64
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
    if goal == "accuracy":
        return "accuracy"
    if goal == "keys":
        return "keys"
    raise InvalidParameter(f"goal must be 'accuracy' or 'keys', not {goal!r}")


def excess_of(plan: Plan) -> Excess:
    """What happens to the items of a user beyond the limit."""
    return "drop" if plan.contract.spread is None else "spread"


def plan_choice(
    budget: Budget,
    *makers: PlanOf,
    share: float = DEFAULT_SHARE,
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
    share = finite_number("share", share)
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
    sizes = sizes_seen(planned.choice, noisy)
    losses = [error_of_cap(one, one.contract.items, sizes) for one in planned.plans]
    return planned.plans[int(np.argmin(losses))]


def _plan_for(plan_of: PlanOf, cap: int, budget: Budget, release: Budget, deviation: float) -> Plan:
    """The plan of one cap; with Laplace noise at an epsilon that the sizes almost never use up."""
    found = plan_of(release.epsilon, release.delta, cap)
    if isinstance(found.noise, LaplaceNoise):
        found = plan_of(_epsilon_for_laplace(budget, deviation), release.delta, cap)
    if isinstance(found.noise, Noise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    return found


def different_plans(plans: Sequence[Plan]) -> list[Plan]:
    """One plan of those that draw the same noise for the same users."""
    return list({(plan.noise, plan.contract): plan for plan in plans}.values())


def delta_of_plan(plan: Plan, epsilon: float) -> float:
    """A certified upper bound of a plan's delta at any epsilon."""
    assert not isinstance(plan.noise, Noise)
    return delta_profile_upper(plan.noise, plan.contract, epsilon=epsilon)


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


def _losses(deviation: float) -> tuple[NDArray[_FLOAT], NDArray[_FLOAT]]:
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

    def delta_of(mu: float) -> float:
        gaussian = np.asarray(hockey_stick_normal(mu, budget.epsilon - losses))
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
    largest = _largest_together(alone, points) if alone else [0.0] * len(points)
    coarse = sorted({*range(0, len(points), _STEP), len(points) - 1})
    others = different_plans([plan for plan in plans if plan not in alone])
    # The quick ones first: Laplace noise is the largest of all nearly everywhere below its epsilon.
    for plan in sorted(others, key=lambda plan: not isinstance(plan.noise, LaplaceNoise)):
        at = {place: delta_of_plan(plan, points[place]) for place in coarse}
        for low, high in pairwise(coarse):
            for place in range(low + 1, high):
                below = math.exp(points[low] - points[place])
                above = math.exp(min(points[high] - points[place], 700.0))
                chord = (at[low] * (above - 1.0) + at[high] * (1.0 - below)) / (above - below)
                if chord * (1.0 + 1e-9) > largest[place]:
                    at[place] = delta_of_plan(plan, points[place])
        for place, delta in at.items():
            largest[place] = max(largest[place], delta)
    return list(zip(points, largest, strict=True))


def _shares_nothing(noise: AnyNoise) -> bool:
    """Whether every count has noise of its own and nothing else."""
    return isinstance(noise, LatticeNoise) and noise.variance_shared == 0 and noise.offset == "none"


def _largest_together(plans: Sequence[Plan], points: Sequence[float]) -> list[float]:
    """At each point an upper bound of the deltas of all these plans, none of which has shared noise."""
    with balls.precision(bits_for(min(plan.budget.delta for plan in plans)) + 64):
        family = WeightedFamily.of((plan.noise, plan.contract) for plan in plans)  # type: ignore[misc]
        return [at_any_epsilon(lambda x: family.delta(arb(x)), point) for point in points]


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
