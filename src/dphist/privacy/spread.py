"""Spread: users with more than m items add a smaller weight to each of them, and lose none.

A user of one level changes up to `items` counts by exactly `weight` steps, all in one direction. In units of that
weight this is the family of the exact analysis: the same noise, with `weight` steps to the unit. So a plan with
spread is private if it is so for every level. Proof: docs/theory/spread.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache

from flint import arb

from dphist.errors import InvalidParameter
from dphist.privacy import balls
from dphist.privacy.balls import hockey_stick_normal, rational, tail, theta_excess
from dphist.privacy.lattice import change_of_one
from dphist.privacy.types import Contract, LatticeNoise, Level, NeighbourCase, PublicNoise

# No sum over the integers is further from its integral than this over the variance: 4 phi(1)/8, rounded up.
_ROUGHEST = arb("0.121")
# Mixed neighbours are bounded to this, relative to the worst of them.
_CLOSE = 1e-4


def at_level(noise: LatticeNoise, contract: Contract, level: Level) -> tuple[LatticeNoise, Contract]:
    """The plan as a user of one level sees it: the weight is the unit of counts and sums."""
    reaches = [Fraction(one.reach * level.weight, noise.lattice) for one in noise.sums]
    if any(reach.denominator > 1 for reach in reaches):
        raise InvalidParameter("with spread, the reach of a sum must be a whole number of steps for every weight")
    sums = tuple(replace(one, reach=int(reach)) for one, reach in zip(noise.sums, reaches, strict=True))
    limit = 1 if isinstance(noise, PublicNoise) else noise.limit + noise.lattice - level.weight
    own = replace(noise, lattice=level.weight, limit=limit, sums=sums)
    return own, Contract(contract.max_nonzero, level.items)


def _likeliest(noise: LatticeNoise, levels: Sequence[Level]) -> tuple[arb, Level]:
    """The largest probability over all levels that some new count of a user passes the threshold, and its level.

    A range of levels has no more than the most items of the last one with the largest weight, that of the first.
    Ranges that cannot be the worst by that are not looked at closer.
    """
    variance = rational(noise.variance)

    @cache
    def hidden(first: int) -> arb:
        """The probability that one new count does not pass."""
        return 1 - tail(noise.limit + noise.lattice - levels[first].weight + 1, variance)

    def event(first: int, last: int) -> arb:
        return 1 - hidden(first) ** levels[last].items

    # Either end to begin with; the loop comes to both again.
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
    """Upper bounds of delta for all levels of some plans without shared noise, as balls.

    Each number is the worst of all levels. `square` is the squared sensitivity of all items of a user over the
    variance; `variance` the least one of the combination of draws that one changed count gives; `factor` how far
    sums of draws are above discrete Gaussians. `passing` is the number of items times the probability that one new
    count passes the threshold; `event` the probability that any of them does, at `event_level` (items, weight).
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
        """The bounds of these plans together; made at the precision at which they are used.

        Without their `thresholds` there are no new counts.
        """
        square, factor, event, variance = arb(0), arb(1), arb(0), arb("inf")
        worst, items = (1, Fraction(1)), 1
        for noise, contract in plans:
            assert noise.variance_shared == 0
            levels = contract.levels(noise.lattice)
            items = max(items, levels[-1].items)
            # Without sums the draws are the same at all levels, and the longest move is the worst.
            longest = max(levels, key=lambda level: level.items * level.weight**2)
            for level in levels if noise.sums else (longest,):
                one = change_of_one(at_level(noise, contract, level)[0])
                square = square.max(level.items * arb(one.shift) ** 2 / one.variance)
                variance, factor = variance.min(one.variance), factor.max(one.factor ** levels[-1].items)
            if thresholds and not isinstance(noise, PublicNoise):
                found, level = _likeliest(noise, levels)
                if not found <= event:
                    worst = level.items, Fraction(level.weight, noise.lattice)
                event = event.max(found)
        # (1 - p)^n <= e^(-n p) for every level.
        passing = -(1 - event).log() if event < 1 else arb("inf")
        return cls(square, variance, factor, passing, event, worst, items)

    def scale(self, ratio: arb) -> WeightedFamily:
        """The bounds of the noise at variances that are larger by a ratio; thresholds are not moved."""
        return replace(self, square=self.square / ratio, variance=self.variance * ratio)

    def gaussian(self, epsilon: arb, share: float = 0.0) -> arb:
        """Upper bound of delta if at least this share of a user's counts are new and stay hidden.

        The normal divergence, and how far the two tails of whole-numbered noise may be off: z phi(z)/(8 S^2) each
        where the nearer one begins at z >= 1. The other one begins mu further, where e^epsilon phi is what phi is
        at the nearer one, but for half a step.
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

        If a share x of a user's counts is new, one of them passes with at most x times `passing`, and the changed
        ones have at most the squared sensitivity of 1 - x. Between two shares the larger of each serves. The work
        on mixtures stops where they are below the pure cases, or the budget.
        """
        pure = max(balls.upper(self.gaussian(epsilon)), balls.upper(self.event))
        enough, worst = max(pure, budget or 0.0), pure
        # At least one of the counts is new and one is not. Shares are rounded down and up.
        waiting = (
            [(1.0 / self.items * (1.0 - 1e-15), 1.0)] if self.items > 1 and balls.upper(self.event) > 0.0 else []
        )
        while waiting:
            first, last = waiting.pop()
            changed = self.gaussian(epsilon, first)
            bound = balls.upper((self.passing * arb(last)).min(self.event) + changed)
            if bound > enough:
                # What one share attains: the others need not be bounded more closely.
                reached = balls.upper((self.passing * arb(first)).min(self.event) + changed)
                enough = max(enough, reached * (1.0 + _CLOSE))
            if bound > enough:
                middle = math.sqrt(first * last)
                waiting += [(first, middle), (middle, last)]
            else:
                worst = max(worst, bound)
        return min(1.0, worst)

    def binding_case(self, epsilon: arb, items: int) -> NeighbourCase:
        """The worse one of the two pure kinds of neighbours."""
        if not self.gaussian(epsilon) < self.event:
            return NeighbourCase(math.inf, 0, items, "either")
        new, weight = self.event_level
        return NeighbourCase(math.inf, new, 0, "add", weight)
