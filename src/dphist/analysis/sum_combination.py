"""The whole-numbered combination of draws in which a log likelihood ratio is linear, and how sums join it.

Counts have the variance V and sums the variances V_l, one user moves them by N_l steps. Where r_l = N_l V/V_l has
the denominator U in common for all l, the log likelihood ratio is 1/(V U) times

    U u A + sum over l of U r_l B_l,

A the combination of the counts (theirs is u/V times A) and B_l the draws of the moved sums added up: the
coefficients are whole again. Derivation: docs/sums.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from flint import arb, fmpq

from dphist.numerics.discrete_balls import shift_divergence, theta_excess
from dphist.types import LatticeNoise


def rational(value: Fraction) -> arb:
    """A ball around a rational number."""
    return arb(fmpq(value.numerator, value.denominator))


def upper_factor(spreads: list[arb], draws: int) -> arb:
    """An upper factor over all the sums of draws: `draws` of the first kind, one of each other.

    One sum is above a discrete Gaussian by (1 + theta)(1 + theta') <= (1 + theta)^2 at most, since the
    normaliser is never below its integral and the sum's own spread is the larger; e^(4 theta) is more.
    """
    excess = theta_excess(spreads[0]) * (2 * draws)
    for spread in spreads[1:]:
        excess += 2 * theta_excess(spread)
    return (2 * excess).exp()


@dataclass(frozen=True)
class Combination:
    """A whole-numbered combination of draws: near a discrete Gaussian, up to `factor`, and moved by `shift`.

    `unit` is its coefficient in the log likelihood ratio, in units of 1/V, V the variance of a count's draw.
    """

    variance: arb
    shift: int
    unit: int
    factor: arb

    def divergence(self, epsilon: arb) -> arb:
        """Upper bound of the hockey-stick divergence at e^epsilon."""
        return shift_divergence(variance=self.variance, shift=self.shift, epsilon=epsilon) * self.factor


class SumTerms:
    """The sums of a plan, ready to join a combination of its counts."""

    def __init__(self, noise: LatticeNoise) -> None:
        ratios = [one.reach * noise.variance / one.variance for one in noise.sums]
        self.common = math.lcm(*(ratio.denominator for ratio in ratios))
        self._terms = [
            (int(ratio * self.common), one.reach, rational(one.variance))
            for ratio, one in zip(ratios, noise.sums, strict=True)
        ]

    def joined(self, counts: Combination, moved: int) -> Combination:
        """With `moved` draws of each sum, each moved by all that one user can.

        Guarantee: an upper bound for any smaller moves too, since the divergence grows with each of them.
        """
        if not self._terms or moved == 0:
            return counts
        variance, shift, factor = counts.variance, counts.shift, counts.factor
        unit = self.common * counts.unit
        for weight, reach, of_one in self._terms:
            shared = math.gcd(unit, weight)
            before, own, all_draws = unit // shared, weight // shared, of_one * moved
            spread = 1 / (arb(own**2) / variance + arb(before**2) / all_draws)
            factor *= upper_factor([of_one / 2, spread], moved)
            variance = variance * before**2 + all_draws * own**2
            shift, unit = shift * before + own * moved * reach, shared
        return Combination(variance, shift, unit, factor)
