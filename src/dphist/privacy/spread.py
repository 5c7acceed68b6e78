"""Spread: users with more than m items add a smaller weight to each item, instead of dropping items.

A user of one level changes up to `items` counts by exactly `weight` steps, all in one direction. In units of that
weight this is the exact analysis with the same noise and `weight` steps per count. So a plan with spread is
private if it is private for every level. Proof: docs/theory/spread.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from flint import arb

from dphist.privacy import balls
from dphist.privacy.balls import hockey_stick_normal, rational, tail, theta_excess
from dphist.privacy.lattice import change_of_one
from dphist.privacy.types import Contract, LatticeNoise, Level, NeighbourCase, PublicNoise, at_level

# A sum over the integers differs from its integral by at most this over the variance: 4 phi(1)/8, rounded up.
_ROUGHEST = arb("0.121")
# Mixed neighbours are bounded to within this of the worst, relatively.
_CLOSE = 1e-4


def _likeliest(noise: LatticeNoise, levels: Sequence[Level]) -> tuple[arb, Level]:
    """The largest probability over all levels that a new count of a user passes the threshold, and its level.

    Branch and bound: a range of levels is bounded by the items of its last level with the weight of its first.
    """
    variance = rational(noise.variance)

    @cache
    def hidden(first: int) -> arb:
        return 1 - tail(noise.limit + noise.lattice - levels[first].weight + 1, variance)

    def event(first: int, last: int) -> arb:
        return 1 - hidden(first) ** levels[last].items

    # Start from the worse end.
    place = 0 if event(0, 0) > event(len(levels) - 1, len(levels) - 1) else len(levels) - 1
    worst = event(place, place)
    waiting = [(0, len(levels) - 1)]
    while waiting:
        first, last = waiting.pop()
        bound = event(first, last)
        if bound <= worst:
            continue
        if first == last:
            worst, place = worst.max(bound), first
            continue
        middle = (first + last) // 2
        waiting += [(first, middle), (middle + 1, last)]
    return worst, levels[place]


@dataclass(frozen=True)
class WeightedFamily:
    """Upper bounds of delta as balls, for all levels of one or more plans without shared noise.

    Each number is the worst over all levels. `square` is the squared sensitivity of all items of a user over the
    variance; `variance` is the least variance of the combination of draws for one changed count; `factor` bounds
    the factor by which sums of draws exceed discrete Gaussians. `passing` is the number of items times the
    probability that one new count passes the threshold; `event` is the probability that any of them does, at
    `event_level` (items, weight).
    """

    square: arb
    variance: arb
    factor: arb
    passing: arb
    event: arb
    event_level: tuple[int, Fraction]
    items: int

    @classmethod
    def of(cls, plans: Iterable[tuple[LatticeNoise, Contract]], *, thresholds: bool = True) -> WeightedFamily:
        """The bounds of these plans together, at the current precision; new counts only if `thresholds`."""
        square, factor, event, variance = arb(0), arb(1), arb(0), arb("inf")
        worst, items = (1, Fraction(1)), 1
        for noise, contract in plans:
            assert noise.variance_shared == 0
            levels = contract.levels(noise.lattice)
            items = max(items, levels[-1].items)
            # Without sums the draws are the same at all levels, and the longest move is worst.
            longest = max(levels, key=lambda level: level.items * level.weight**2)
            for level in levels if noise.sums else (longest,):
                change = change_of_one(at_level(noise, contract, level)[0])
                square = square.max(level.items * arb(change.shift) ** 2 / change.variance)
                variance, factor = variance.min(change.variance), factor.max(change.factor ** levels[-1].items)
            if thresholds and not isinstance(noise, PublicNoise):
                likeliest, level = _likeliest(noise, levels)
                if not likeliest <= event:
                    worst = level.items, Fraction(level.weight, noise.lattice)
                event = event.max(likeliest)
        # (1 - p)^n <= e^(-n p) for every level.
        passing = -(1 - event).log() if event < 1 else arb("inf")
        return cls(square, variance, factor, passing, event, worst, items)

    def scale(self, ratio: arb) -> WeightedFamily:
        """The bounds for variances larger by `ratio`, with the same thresholds."""
        return replace(self, square=self.square / ratio, variance=self.variance * ratio)

    def gaussian(self, epsilon: arb, share: float = 0.0) -> arb:
        """Upper bound of delta if at least this share of a user's counts are new and hidden.

        The normal divergence plus the error of the two tails of integer noise: z phi(z)/(8 S^2) each if the nearer
        one begins at z >= 1. The other one begins mu further, where e^epsilon phi equals phi at the nearer one, up
        to half a step.
        """
        mu, half = (self.square * (1 - arb(share))).sqrt(), 1 / (2 * self.variance.sqrt())
        near, ratio = epsilon / mu - mu / 2 - half, epsilon.exp()
        if near >= 1:
            density = (-near * near / 2).exp() / (2 * arb.pi()).sqrt()
            off = density * (near + (near + mu) * (mu * half).exp()) / 8
        else:
            off = _ROUGHEST * (1 + ratio)
        tails = off / self.variance + ratio * theta_excess(self.variance)
        return (hockey_stick_normal(mu, epsilon) + tails) * self.factor

    def delta(self, epsilon: arb, budget: float | None = None) -> float:
        """Upper bound of delta over all neighbours, in both directions.

        If a share x of a user's counts is new, one of them passes with probability at most x times `passing`, and
        the changed ones have at most the share 1 - x of the squared sensitivity. A range of shares is bounded by
        the larger of each, and split until it is below the pure cases or the budget.
        """
        pure = max(balls.upper(self.gaussian(epsilon)), balls.upper(self.event))
        enough, worst = max(pure, budget or 0.0), pure
        # At least one count is new and one is not; the ends of the range are rounded outwards.
        waiting = (
            [(1.0 / self.items * (1.0 - 1e-15), 1.0)] if self.items > 1 and balls.upper(self.event) > 0.0 else []
        )
        while waiting:
            first, last = waiting.pop()
            changed = self.gaussian(epsilon, first)
            bound = balls.upper((self.passing * arb(last)).min(self.event) + changed)
            if bound > enough:
                # This share alone reaches about as much: closer bounds of other shares are not needed.
                reached = balls.upper((self.passing * arb(first)).min(self.event) + changed)
                enough = max(enough, reached * (1.0 + _CLOSE))
            if bound > enough:
                middle = math.sqrt(first * last)
                waiting += [(first, middle), (middle, last)]
            else:
                worst = max(worst, bound)
        return min(1.0, worst)

    def binding_case(self, epsilon: arb, items: int) -> NeighbourCase:
        """The worse of the two pure classes of neighbours."""
        if not self.gaussian(epsilon) < self.event:
            return NeighbourCase(math.inf, 0, items, "either")
        new, weight = self.event_level
        return NeighbourCase(math.inf, new, 0, "add", weight)
