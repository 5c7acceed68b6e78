"""Rounds of discovery and a measurement: their privacy, in ball arithmetic from the exact numbers that are drawn.

A user is in one of two groups by their own data: users with one item, if they are a group of their own, and all
others. delta is that of the worse group. For the others it is the divergence of all moved draws together, as if
they were normal, plus the probability that an item that only this user has is ever found. Proofs:
docs/theory/rounds.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Final

import numpy as np
from flint import arb
from numpy.typing import NDArray
from scipy import special

from dphist.errors import InvalidParameter
from dphist.model import ROUNDING, LaplaceNoise, LatticeNoise, NeighbourCase, Proof, RoundsNoise
from dphist.proof import balls
from dphist.proof.balls import bits_for, hockey_stick_normal, rational, shift_divergence, tail, upper_factor
from dphist.proof.gaussian import rounding_loss, squared_move_of_pure

FloatArray = NDArray[np.float64]
# More draws than can differ between neighbours, in one release or in many.
_MOST_DRAWS: Final = 1 << 64
# Events below this probability need no digits.
_SMALLEST_LOG: Final = -690.0
_COST_BITS: Final = 64


@dataclass(frozen=True)
class GaussianCost:
    """What a release adds to the squared mu of normal noise, and to the probability of the excluded events."""

    squared: Fraction
    event: float


def squared_mu(noise: RoundsNoise) -> Fraction:
    """The squared distance of neighbours in the group of several, in units of the normal part of the noise.

        sum over all draws of L^2/(W/k - v),  v = 16 squared steps, plus reach^2/(V - v) for each sum

    One user moves every round, the sizes and a measurement by at most L in Euclidean norm; a measurement with the
    limit M by at most sqrt(M) L, with at least M times the noise. A shared draw of variance own/gamma moves by a
    whole number of steps c, and each of the K - gamma counts by c less: own is at least their squared moves, at
    M >= 1, and its rounding is gamma v at most.

    Guarantee: exact rational; an upper bound over all data, limits and results of earlier rounds.
    Source: beyond the paper; docs/theory/rounds.md.
    """
    one, square = noise.variance / noise.measure, noise.lattice**2
    rounding = Fraction(ROUNDING)
    if noise.shared:
        whole = noise.shared + noise.listed
        rounding *= noise.shared * Fraction(whole, whole - 1)
    moves = [square / (noise.variance / part - ROUNDING) for part in (*noise.parts, noise.sizes)]
    moves.append(square / (one - rounding))
    moves += [part.reach**2 / (part.variance - ROUNDING) for part in noise.sums]
    return sum(moves, Fraction(0))


def delta_of_gaussian_cost(squared: Fraction, event: float, *, epsilon: float) -> float:
    """delta of rounded normal noise at a squared distance, with events of this probability.

        event + e^a H(epsilon - 2 a, mu),    a = 2^64 `rounding_loss`(16),  H that of `delta_of_squared_move`

    Guarantee: an upper bound in ball arithmetic, for any number of adaptive releases with fewer draws in all.
    Valid for: any epsilon; squared > 0.
    Source: beyond the paper; docs/theory/rounds.md.
    """
    bits = 128
    while True:
        bits *= 2
        with balls.precision(bits):
            rounding = _MOST_DRAWS * arb(rounding_loss(Fraction(ROUNDING)))
            normal = hockey_stick_normal(rational(squared).sqrt(), arb(epsilon) - 2 * rounding) * rounding.exp()
            if normal.rel_accuracy_bits() >= 50 or bits >= 4096:
                return min(1.0, balls.upper(normal + arb(event)))


@dataclass(frozen=True)
class RoundsEvent:
    """Upper bounds of the probabilities that items which only one user has are found.

    `several` is for all new items of a user in the group of several, who is the worst with `items` of them;
    `without_weight` for one item to which nobody adds weight.
    """

    several: float
    items: int
    without_weight: float


class _Evidence:
    """Tails of the pooled noise after each round, as balls at the current precision.

    The sum of parts k times draws of variance W/k is g = gcd of the parts times an integer, which is a discrete
    Gaussian of variance K W/g^2, K = sum of the parts, up to a factor: draw by draw, by the lemma on sums of two
    discrete Gaussians with coprime coefficients (docs/theory/discrete.md).
    """

    def __init__(self, noise: RoundsNoise) -> None:
        self.noise = noise
        self.units = list(accumulate(noise.parts, math.gcd))
        self.pooled = list(accumulate(noise.parts))
        whole, factor = rational(noise.variance), arb(1)
        self.variances, self.factors = [], []
        before: tuple[arb, int] | None = None
        for part, unit, pooled in zip(noise.parts, self.units, self.pooled, strict=True):
            if before is not None:
                variance, divisor = before
                own = arb((divisor // unit) ** 2) / (whole / part)
                factor *= upper_factor(1 / (arb((part // unit) ** 2) / variance + own))
            before = whole * pooled / unit**2, unit
            self.variances.append(before[0])
            self.factors.append(factor)

    def found(self, first: int, later: int) -> arb:
        """The probability that an item with at most these weights, in the first and in later rounds, is found."""
        total, weight = arb(0), 0
        for number, part in enumerate(self.noise.parts):
            weight += part * (later if number else first)
            spare = (self.pooled[number] * self.noise.thresholds_steps[number] - weight) // self.units[number]
            total += tail(spare + 1, self.variances[number]) * self.factors[number]
        return total.min(arb(1))

    def some_found(self, first: int, last: int) -> arb:
        """Upper bound of the probability that any item of a user with `first` to `last` new items is found."""
        noise = self.noise
        passes = self.found(noise.first_weight(first), noise.largest_later_weight(first))
        return passes if last == 1 else 1 - (1 - passes) ** last


def estimated_events(noise: RoundsNoise) -> FloatArray:
    """For n = 1, 2, ... new items: the logarithm, in doubles, of the bound that any of them is found."""
    items = np.arange(1, noise.most_items + 1)
    first, later = _largest_weights(noise.lattice, noise.growth, noise.most_items)
    pooled, unit = np.cumsum(noise.parts)[:, None], np.gcd.accumulate(noise.parts)[:, None]
    weights = noise.parts[0] * first + (pooled - noise.parts[0]) * later
    # An integer above this is at least half a step above it.
    least = (np.floor((np.array(noise.thresholds_steps)[:, None] * pooled - weights) / unit) + 0.5) * unit
    passes = special.logsumexp(special.log_ndtr(-least / np.sqrt(float(noise.variance) * pooled)), axis=0)
    # log(1 - (1 - p)^n), which is log(n p) for small n p.
    small = passes + np.log(items)
    exact = np.log(-np.expm1(items * np.log1p(-np.exp(np.clip(passes, -40.0, -1e-12)))))
    return np.asarray(np.where(small < -36.0, small, exact), dtype=np.float64)


@lru_cache(maxsize=64)
def _largest_weights(lattice: int, growth: int, most_items: int) -> tuple[FloatArray, FloatArray]:
    """The largest weights in the first and in later rounds, by number of items, which is at least 1."""
    first = [math.isqrt(lattice**2 // n) for n in range(1, most_items + 1)]
    later = [min(lattice, math.isqrt((growth * lattice) ** 2 // n)) for n in range(1, most_items + 1)]
    return np.array(first, dtype=np.float64), np.array(later, dtype=np.float64)


@lru_cache(maxsize=256)
def event_of_rounds(noise: RoundsNoise) -> RoundsEvent:
    """The probability that any item that only one user has is found in any round.

        max over n of 1 - (1 - p_n)^n,  p_n <= sum over rounds r of Pr[sum over q <= r of k_q Z_q > K_r T_r - B_r]

    B_r = sum over q <= r of k_q b_q, with the largest weights b_q that a user with n new items can add to one of
    them: those with no other items, as weights decrease in the number of items of the first round, and the cap in
    later rounds, as the user's other items may have left. Ranges of n have the weights of the first n and the
    number of the last, and are split where that is not enough.

    Guarantee: an upper bound in ball arithmetic, for any weights up to these and any rule of removing items.
    Valid for: any limits.
    Source: beyond the paper; docs/theory/rounds.md.
    """
    if not noise.parts:
        return RoundsEvent(0.0, 1, 0.0)
    some = estimated_events(noise)
    worst_items = int(some.argmax()) + 1
    with balls.precision(bits_for(math.exp(max(_SMALLEST_LOG, min(-30.0, float(some.max()) - 10.0)))) + 32):
        evidence = _Evidence(noise)
        worst = balls.upper(evidence.some_found(worst_items, worst_items))
        waiting = [(1, noise.most_items)]
        while waiting:
            first, last = waiting.pop()
            bound = balls.upper(evidence.some_found(first, last))
            if bound <= worst:
                continue
            if first == last:
                worst = bound
                continue
            middle = (first + last) // 2
            waiting += [(first, middle), (middle + 1, last)]
        return RoundsEvent(worst, worst_items, balls.upper(evidence.found(0, 0)))


def certify_rounds(noise: RoundsNoise, *, epsilon: float, budget: float | None = None) -> Proof:
    """Proof of rounds of discovery and a measurement: the worse of the two groups of users.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals of `noise`. If the noise alone
    exceeds a given `budget`, the events are left out, and it is 1.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/rounds.md.
    """
    if epsilon < 0.0:
        raise InvalidParameter(f"epsilon must be at least 0, not {epsilon!r}")
    squared = squared_mu(noise)
    noise_alone = delta_of_gaussian_cost(squared, 0.0, epsilon=epsilon)
    public = NeighbourCase(noise.listed or math.inf, 0, noise.most_items, "either")
    if not noise.parts or (budget is not None and noise_alone > budget):
        return Proof(epsilon, noise_alone if not noise.parts else 1.0, "rounds", public, 0.0)
    event = event_of_rounds(noise)
    delta = delta_of_gaussian_cost(squared, event.several, epsilon=epsilon)
    of_one = 0.0 if noise.alone is None else _delta_of_one(noise.alone, event.without_weight, epsilon=epsilon)
    if of_one > delta:
        case = NeighbourCase(math.inf, 1, 0, "add")
    elif event.several > noise_alone:
        case = NeighbourCase(math.inf, event.items, 0, "add")
    else:
        case = public
    return Proof(epsilon, max(delta, of_one), "rounds", case, 0.0)


@dataclass(frozen=True)
class _OneItem:
    """The group of users with one item, at the current precision.

    `passes` is the probability that an item that one user has is above the threshold, `moved` the divergence of a
    count moved by one, and `squared` its squared move in units of normal noise.
    """

    passes: arb
    moved: Callable[[float], arb]
    squared: Callable[[], Fraction]


def _one_item(noise: LaplaceNoise | LatticeNoise) -> _OneItem:
    if isinstance(noise, LatticeNoise):
        variance = rational(noise.variance)
        return _OneItem(
            tail(noise.tau_steps + 1, variance),
            lambda epsilon: shift_divergence(variance=variance, shift=noise.lattice, epsilon=arb(epsilon)),
            lambda: noise.lattice**2 / (noise.variance - ROUNDING),
        )
    scale, rate = noise.scale, rational(1 / noise.scale)

    def moved(epsilon: float) -> arb:
        pure = Fraction(epsilon) * scale >= 1
        return arb(0) if pure else (1 - (arb(epsilon) - rate).exp()) / (1 + (-rate).exp())

    passes = (-(noise.tau_steps + 1) * rate).exp() / (1 + (-rate).exp())
    return _OneItem(passes, moved, lambda: squared_move_of_pure(1 / scale))


def _delta_of_one(noise: LaplaceNoise | LatticeNoise, without_weight: float, *, epsilon: float) -> float:
    """delta of the group of users with one item.

        p + max(p0, divergence of a count moved by one)

    p is the probability that the item passes as an item of this user alone, p0 that it is then found in a round,
    to which this user adds nothing. Others of the group may have the item, or only users with several items: then
    it may be published without this user as well, with a noisy count that is lower by one.
    """
    bits = bits_for(1e-300 if without_weight == 0.0 else max(1e-300, min(1e-30, without_weight)))
    with balls.precision(bits):
        group = _one_item(noise)
        return min(1.0, balls.upper(group.passes + group.moved(epsilon).max(arb(without_weight))))


def gaussian_cost_of_rounds(noise: RoundsNoise) -> GaussianCost:
    """What a ledger of normal noise has to book: the larger squared mu, and the larger event, of the two groups.

    That of Laplace noise of scale b is `squared_move_of_pure`(1/b).

    Guarantee: both numbers are rounded up.
    Valid for: releases composed adaptively, by `delta_of_gaussian_cost` of the sums.
    Source: beyond the paper; docs/theory/rounds.md.
    """
    squared, event = squared_mu(noise), event_of_rounds(noise)
    several = event.several
    if noise.alone is not None:
        with balls.precision(256):
            group = _one_item(noise.alone)
            several = max(several, balls.upper(group.passes + arb(event.without_weight)))
        squared = max(squared, group.squared())
    return GaussianCost(_rounded_up(squared), several)


def _rounded_up(value: Fraction) -> Fraction:
    """A fraction of a power of two that is not below `value`, within 2^-63 of it relatively."""
    shift = _COST_BITS - value.numerator.bit_length() + value.denominator.bit_length()
    scaled = value * (1 << shift) if shift >= 0 else value / (1 << -shift)
    whole = math.ceil(scaled)
    return Fraction(whole, 1 << shift) if shift >= 0 else Fraction(whole << -shift)
