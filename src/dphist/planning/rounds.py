"""`plan_rounds`: from a budget to a certified plan of rounds of discovery and a measurement.

The parts of the budget are fixed. delta is split between the noise and the event that an item which only one user
has is found, such that the threshold of the last round is least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal, get_args

import numpy as np
from scipy import special

from dphist.errors import InvalidParameter, NoPlan, one_of, positive_count
from dphist.model import (
    FINEST_REACH,
    LARGEST_SCALE,
    LARGEST_VARIANCE,
    LEAST_SCALE,
    MOST_ITEMS_IN_ROUNDS,
    ROUNDING,
    Budget,
    LaplaceNoise,
    LatticeNoise,
    Noise,
    Plan,
    Proof,
    RoundsNoise,
    SumNoise,
)
from dphist.paper.bounds import largest_sensitivity_per_sigma, tau_laplace
from dphist.planning.optimum import Bounds, check_bounds, dyadic_up, share_budget
from dphist.proof.numerics import FloatArray, hockey_stick_normal
from dphist.proof.rounds import certify_rounds, estimated_events, event_of_rounds, squared_mu
from dphist.proof.searches import golden_minimum, least_passing, least_whole_passing, log_excess
from dphist.proof.tails import discrete_gaussian_tail
from dphist.proof.verdict import verdict_of

RoundsGoal = Literal["accuracy", "keys"]
# With a smaller delta, doubles are too coarse to plan.
LEAST_DELTA: Final = 1e-100
# Items of a user that count.
MOST_ITEMS: Final = 256
# By how much a user's weights may exceed those of the first round. With little noise, weights that grow raise the
# threshold more than they find: on real data 4 was better from this epsilon on.
GROWTH: Final = 8
GROWTH_OF_LITTLE_NOISE: Final = 4
_LITTLE_NOISE: Final = 2.0
# Evidence below this many deviations after a round: the item is hopeless. Items that leave early make room for
# others: on tables of few users with many items, lower cuts found 13 % fewer items (benchmarks/rounds.py).
_CUTS: Final = (0.5, 1.75, 2.5, 3.25)
# The share of all rounds but the last in the probability that an item of one user is found.
_EARLY: Final = 0.1
_FINEST_LATTICE: Final = 1 << 12
_COARSEST_LATTICE: Final = 1 << 6
_MOST_CORRECTIONS: Final = 12
# Shared noise is worth it if it lowers the variance of a measurement by this much.
_WORTH_SHARING: Final = 0.98


@dataclass(frozen=True)
class Parts:
    """How the rounds, the sizes and the measurement share the budget."""

    rounds: tuple[int, ...]
    sizes: int
    measure: int
    sums: tuple[float, ...] = ()

    @property
    def whole(self) -> float:
        return sum(self.rounds) + self.sizes + self.measure + sum(self.sums)


PARTS: Final[dict[RoundsGoal, Parts]] = {
    "accuracy": Parts((20, 25, 30, 35, 50), 4, 28),
    "keys": Parts((20, 25, 30, 35, 50), 2, 5),
}
PARTS_OF_LIST: Final = Parts((), 1, 31)


def plan_rounds(
    budget: Budget,
    *,
    goal: str = "accuracy",
    public_items: int | None = None,
    gaussian: bool = False,
    alone: bool = True,
    sums: Sequence[tuple[object, ...]] = (),
    weights: Sequence[float] | None = None,
) -> Plan:
    """The certified plan of rounds with the lowest threshold in the last round.

    `goal` is `accuracy` of the counts, or as many `keys` as possible. With `public_items`, the length of a public
    list, there is nothing to discover: all of the budget goes to sizes and measurement. `gaussian` gives users
    with one item Gaussian noise in place of Laplace noise; without `alone` they are no group of their own: with
    totals nobody has one item. `sums` and `weights` are those of `plan`; the weights
    are shares of the measurement.

    >>> from dphist.planning.rounds import plan_rounds
    >>> from dphist.model import Budget
    >>> plan_rounds(Budget(1.0, 1e-6)).noise.alone.threshold
    14.0
    """
    if budget.delta < LEAST_DELTA:
        raise InvalidParameter(f"rounds need a delta of at least {LEAST_DELTA:g}, not {budget.delta!r}")
    parts = PARTS[one_of("goal", goal, get_args(RoundsGoal))]
    if public_items is not None:
        public_items, parts = positive_count("<--public-items>", public_items), PARTS_OF_LIST
    bounds = tuple(check_bounds(*one) for one in sums)
    group = (_gaussian_alone if gaussian else _laplace_alone) if alone and not bounds else None
    return _plan(budget, parts, public_items or 0, group, bounds, None if weights is None else tuple(weights))


# The noise for users with one item, for a budget, a lattice and the part of delta that others need.
_NoiseOfOne = Callable[[Budget, int, float], LaplaceNoise | LatticeNoise]


@lru_cache(maxsize=128)
def _plan(
    budget: Budget,
    parts: Parts,
    listed: int,
    group: _NoiseOfOne | None,
    bounds: tuple[Bounds, ...],
    weights: tuple[float, ...] | None,
) -> Plan:
    shares = share_budget(bounds, weights, lambda extra: Noise(math.sqrt(1.0 + extra), 0.0, 1.0))
    if bounds:
        counts = max(1, round(parts.measure * (1 + len(bounds)) / (1.0 + shares.extra)))
        parts = replace(parts, measure=counts, sums=tuple(counts * extra for extra in shares.extras))
    search = _Search(budget, parts, listed)
    noise = search.noise(bounds)
    if parts.rounds and group is not None:
        without = event_of_rounds(noise).without_weight
        noise = replace(noise, alone=group(budget, noise.lattice, without))
    noise, certificate = _certified(noise, budget)
    return Plan(budget, noise.contract, noise, "exact", certificate, verdict_of(budget).warnings)


def _certified(noise: RoundsNoise, budget: Budget) -> tuple[RoundsNoise, Proof]:
    """The noise with its certificate; slightly more noise if ball arithmetic rejects what doubles accepted."""
    for attempt in range(_MOST_CORRECTIONS):
        certificate = certify_rounds(noise, epsilon=budget.epsilon, budget=budget.delta)
        if certificate.delta <= budget.delta:
            return noise, certificate
        noise = _with_variance(noise, float(noise.variance) * (1.0 + 1e-9 * 8.0**attempt))
        if isinstance(noise.alone, LaplaceNoise):
            noise = replace(noise, alone=replace(noise.alone, tau_steps=noise.alone.tau_steps + (attempt > 6)))
        elif noise.alone is not None:
            limit = noise.alone.tau_steps + (attempt > 2)
            more = dyadic_up(float(noise.alone.variance) * (1.0 + 1e-9 * 8.0**attempt))
            noise = replace(noise, alone=replace(noise.alone, variance=more, tau_steps=limit))
    raise NoPlan(f"no plan of rounds could be certified for {budget}")


def _with_variance(noise: RoundsNoise, variance: float) -> RoundsNoise:
    """The same noise with another variance, which the sums follow."""
    new = dyadic_up(variance)
    sums = tuple(replace(one, variance=one.variance * new / noise.variance) for one in noise.sums)
    return replace(noise, variance=new, sums=sums)


class _Search:
    """The search for the noise of one budget, in doubles."""

    def __init__(self, budget: Budget, parts: Parts, listed: int) -> None:
        self.budget, self.parts, self.listed = budget, parts, listed
        self.most_items = min(listed, MOST_ITEMS_IN_ROUNDS) if listed else MOST_ITEMS
        items = np.arange(1, self.most_items + 1)
        self.items, pooled = items, np.cumsum(parts.rounds)
        self.growth = GROWTH if budget.epsilon < _LITTLE_NOISE else GROWTH_OF_LITTLE_NOISE
        # Weights in users if users were not counted in steps.
        first, later = 1.0 / np.sqrt(items), np.minimum(1.0, self.growth / np.sqrt(items))
        part = parts.rounds[0] / pooled[:, None] if parts.rounds else np.ones((0, 1))
        self.shifts, self.pooled = part * first + (1.0 - part) * later, pooled

    def noise(self, bounds: tuple[Bounds, ...]) -> RoundsNoise:
        delta = self.budget.delta
        event = 0.0
        if self.parts.rounds:
            logit, _ = golden_minimum(self._threshold, -5.0, 5.0, tolerance=0.02)
            event = delta * float(special.expit(logit))
        noise = self._on_lattice(self._mu(delta - event), event, bounds)
        if self.parts.rounds:
            noise = self._with_limit(noise)
        return self._with_least_variance(noise)

    def _mu(self, delta: float) -> float:
        return largest_sensitivity_per_sigma(epsilon=self.budget.epsilon, delta=delta)

    def _threshold(self, logit: float) -> float:
        """The threshold of the last round if the event has this share of delta."""
        event = self.budget.delta * float(special.expit(logit))
        return float(self._limits(self._mu(self.budget.delta - event), event)[-1])

    def _limits(self, mu: float, event: float) -> FloatArray:
        """The limits of all rounds, in users, each for its share of the event."""
        rounds = len(self.parts.rounds)
        shares = np.full(rounds, _EARLY / max(1, rounds - 1))
        shares[-1] = 1.0 - shares[:-1].sum()
        deviations = np.sqrt(self.parts.whole / self.pooled) / mu
        # The probability that one of n items may be found with, from 1 - (1 - p)^n.
        log_passes = np.log(-np.expm1(np.log1p(-event * shares)[:, None] / self.items))
        heights = -special.ndtri_exp(log_passes)
        return np.asarray((self.shifts + deviations[:, None] * heights).max(axis=1), dtype=np.float64)

    def _on_lattice(self, mu: float, event: float, bounds: tuple[Bounds, ...]) -> RoundsNoise:
        """The noise at this mu on the finest lattice on which it can be drawn."""
        parts, one = self.parts, self.parts.whole / mu**2
        least = min(*parts.rounds, parts.sizes, parts.measure / self.most_items, *parts.sums, math.inf)
        least = min(least, *(part / self.most_items for part in parts.sums), math.inf)
        lattice = _FINEST_LATTICE
        # Room for the search and for rounding.
        while 1.1 * one * lattice**2 / least > LARGEST_VARIANCE:
            lattice //= 2
        if lattice < _COARSEST_LATTICE:
            raise NoPlan(
                f"epsilon {self.budget.epsilon:g} with delta {self.budget.delta:g} needs more noise than can be "
                "drawn in rounds: increase epsilon or delta, or the weights of sums"
            )
        variance = dyadic_up(one * lattice**2 + 2 * ROUNDING * max(*parts.rounds, parts.sizes, parts.measure))
        reach = FINEST_REACH
        while parts.sums and 1.1 * one * reach**2 * self.most_items / min(parts.sums) > LARGEST_VARIANCE:
            reach //= 2
        sums = tuple(
            SumNoise(low, high, reach, dyadic_up(reach**2 / (lattice**2 * part)) * variance, columns)
            for (low, high, columns), part in zip(bounds, parts.sums, strict=True)
        )
        limits = self._limits(mu, event) if parts.rounds else np.zeros(0)
        whole = tuple(max(1, math.ceil(limit * lattice)) for limit in limits.tolist())
        noise = RoundsNoise(
            lattice, variance, parts.rounds, whole, (0,) * max(0, len(whole) - 1), parts.sizes, parts.measure,
            self.most_items, self.growth, None, 0, sums, self.listed,
        )  # fmt: skip
        return _with_shared_draw(noise) if self.listed else noise

    def _with_limit(self, noise: RoundsNoise) -> RoundsNoise:
        """The least limit of the last round at which all of delta is used."""
        rest = self.budget.delta - self._normal(noise)

        def excess(limit: int) -> float:
            moved = replace(noise, thresholds_steps=(*noise.thresholds_steps[:-1], max(limit, *noise.cuts, 1)))
            return log_excess(math.exp(float(estimated_events(moved).max())), rest)

        return replace(
            noise,
            thresholds_steps=(
                *noise.thresholds_steps[:-1],
                least_whole_passing(excess, noise.thresholds_steps[-1]),
            ),
        )

    def _with_least_variance(self, noise: RoundsNoise) -> RoundsNoise:
        """The least variance at which delta is within the budget; the cuts follow it."""
        start = float(noise.variance)

        def excess(variance: float) -> float:
            moved = _with_variance(noise, variance)
            event = math.exp(float(estimated_events(moved).max())) if moved.parts else 0.0
            return log_excess(event + self._normal(moved), self.budget.delta)

        noise = _with_variance(noise, least_passing(excess, start, relative=1e-10))
        cuts = (
            min(limit, round(cut * noise.deviation(number) * noise.lattice))
            for number, (cut, limit) in enumerate(zip(_CUTS, noise.thresholds_steps[:-1], strict=True))
        )
        return replace(noise, cuts=tuple(cuts) if noise.parts else ())

    def _normal(self, noise: RoundsNoise) -> float:
        return float(hockey_stick_normal(math.sqrt(squared_mu(noise)), self.budget.epsilon))


def _with_shared_draw(noise: RoundsNoise) -> RoundsNoise:
    """With a shared draw in the measurement where it lowers the noise, for the gamma of the paper, sqrt k."""
    shared = replace(noise, shared=max(1, round(math.sqrt(noise.listed))))
    most = noise.most_items
    own, common = shared.measure_noise(most)
    if own + common > _WORTH_SHARING * noise.measure_noise(most)[0]:
        return noise
    # The rounding of the shared draw takes more of the variance.
    return _with_variance(shared, float(noise.variance) + 4 * ROUNDING * shared.shared * noise.measure)


def _laplace_alone(budget: Budget, _lattice: int, without_weight: float) -> LaplaceNoise:
    """Laplace noise of the scale 1/epsilon, as far as it can be drawn, with the least threshold."""
    scale = min(max(1 / Fraction(budget.epsilon), LEAST_SCALE), LARGEST_SCALE)
    if scale * Fraction(budget.epsilon) < 1:
        raise NoPlan(f"epsilon {budget.epsilon:g} needs more Laplace noise than can be drawn")
    rest = budget.delta - without_weight
    return LaplaceNoise(scale, int(tau_laplace(m=1, scale=float(scale), delta=rest, discrete=True)))


def _gaussian_alone(budget: Budget, lattice: int, without_weight: float) -> LatticeNoise:
    """Gaussian noise for users with one item, with the least threshold.

    delta is the event plus the divergence of the count, as the item may be known from users with several.
    """
    epsilon, delta = budget.epsilon, budget.delta

    def sigma(event: float) -> float:
        return 1.0 / largest_sensitivity_per_sigma(epsilon=epsilon, delta=delta - event)

    def threshold(logit: float) -> float:
        event = delta * float(special.expit(logit))
        return sigma(event) * -float(special.ndtri_exp(math.log(event)))

    logit, tau = golden_minimum(threshold, -5.0, 5.0, tolerance=0.01)
    start = (lattice * sigma(delta * float(special.expit(logit)))) ** 2
    limit = max(1, math.ceil(tau * lattice))

    def excess(variance: float) -> float:
        event = float(discrete_gaussian_tail(limit + 1, variance=variance))
        moved = float(hockey_stick_normal(lattice / math.sqrt(variance), epsilon))
        return log_excess(event + max(moved, without_weight), delta)

    if excess(start) > 0.0:
        limit += 1
    variance = least_passing(excess, start, relative=1e-10) if excess(start) <= 0.0 else start
    return LatticeNoise(lattice, dyadic_up(variance), Fraction(0), limit)
