"""Noise on a lattice: the parts of its delta in ball arithmetic, also for a top-k step with its offset.

Offsets a = c/b are whole numbers of steps on the lattice 1/b, so that the representation of the offset bound is
integral. Given the shared draw, the log likelihood ratio is linear in one integer combination of the draws, which
is a discrete Gaussian up to a factor within e^(-2 pi^2 V') of one. Derivation: docs/theory/discrete.md. Sums are
further terms of the combination: docs/theory/sums.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import islice
from typing import Final

from flint import arb, ctx

from dphist.errors import InvalidParameter
from dphist.model import ROUNDED_SHARE, Contract, LatticeNoise, OffsetRule, SumNoise
from dphist.proof import balls
from dphist.proof.balls import (
    normaliser,
    rational,
    shift_divergence,
    tail,
    theta_excess,
    upper_factor,
    weights_from,
)
from dphist.proof.exact import reach

# The integer combination of draws in which the log likelihood ratio is linear, and how sums join it.
#
# Counts have variance V and sums have variances V_l; one user moves them by N_l steps. If U is a common
# denominator of all r_l = N_l V/V_l, the log likelihood ratio is 1/(V U) times
#
#     U u A + sum over l of U r_l B_l,
#
# where u/V times A is that of the counts, and B_l is the sum of the draws of the moved sums: the coefficients are
# integers again. Derivation: docs/theory/sums.md.


@dataclass(frozen=True)
class Combination:
    """An integer combination of draws: a discrete Gaussian up to `factor`, moved by `shift`.

    `unit` is its coefficient in the log likelihood ratio, in units of 1/V for draws of variance V.
    """

    variance: arb
    shift: int
    unit: int
    factor: arb

    def divergence(self, epsilon: arb) -> arb:
        return shift_divergence(variance=self.variance, shift=self.shift, epsilon=epsilon) * self.factor


# A vector is covered by a sum in finer steps, this many per step.
_FINER: Final = 1 << 20
# Certificates may be forged: more than 64 vectors of a plan need.
_MOST_BITS_OF_A_UNIT: Final = 1 << 10


def cover_vector(vector: SumNoise, variance: Fraction) -> tuple[int, Fraction]:
    """Reach and variance of a sum whose divergence bounds that of a vector, beside counts of this `variance`.

    With V_l = U N V/p in lowest terms, the sum has the reach N' = 2^20 N and the variance U' N' V/p, for the
    largest U' <= 2^20 U (1 - 2^-24 - 1/N'). It is a little less noise on a finer lattice, with the same p.

    Guarantee: beside any other draws, the divergence of s vectors of d columns, each moved by at most N in
    Euclidean norm, is at most that of s such sums, each moved by N', times exp(s (d + 3) theta) with
    theta = `theta_excess`(V_l 2^-24).
    Valid for: V_l 2^-24 >= 1, N <= 2^20.
    Source: beyond the paper; docs/theory/sums.md, after the convolution theorem of Peikert 2010.
    """
    ratio, reach = vector.reach * variance / vector.variance, vector.reach * _FINER
    units = math.floor(ratio.denominator * _FINER * (1 - ROUNDED_SHARE - Fraction(1, reach)))
    return reach, units * reach * variance / ratio.numerator


class SumTerms:
    """The sums of a plan, as terms of a combination of draws. Vectors are covered by sums."""

    def __init__(self, noise: LatticeNoise) -> None:
        moves = [
            (one.reach, one.variance) if one.columns == 1 else cover_vector(one, noise.variance)
            for one in noise.sums
        ]
        ratios = [reach * noise.variance / variance for reach, variance in moves]
        self.common = math.lcm(*(ratio.denominator for ratio in ratios))
        if self.common.bit_length() > _MOST_BITS_OF_A_UNIT:
            raise InvalidParameter("the noise of the sums is not in simple ratios to that of the counts")
        self._terms = [
            (int(ratio * self.common), reach, rational(variance))
            for ratio, (reach, variance) in zip(ratios, moves, strict=True)
        ]
        excesses = (
            (one.columns + 3) * theta_excess(rational(one.variance * ROUNDED_SHARE))
            for one in noise.sums
            if one.columns > 1
        )
        self._excess = sum(excesses, arb(0))

    def with_sums(self, counts: Combination, moved: int) -> Combination:
        """The combination with `moved` draws of each sum, each moved as far as one user can.

        Guarantee: an upper bound for smaller moves too, since the divergence increases with each move.
        """
        if not self._terms or moved == 0:
            return counts
        variance, shift, factor = counts.variance, counts.shift, counts.factor
        unit = self.common * counts.unit
        for weight, move, variance_of_one in self._terms:
            divisor = math.gcd(unit, weight)
            before, own, added = unit // divisor, weight // divisor, variance_of_one * moved
            spread = 1 / (arb(own**2) / variance + arb(before**2) / added)
            factor *= upper_factor([variance_of_one / 2, spread], moved)
            variance = variance * before**2 + added * own**2
            shift, unit = shift * before + own * moved * move, divisor
        return Combination(variance, shift, unit, factor * (moved * self._excess).exp())


_EXACT_CHANGED = 48
_MOST_ONE_BY_ONE = 4096
# Certificates may be forged. Up to so many bits of shared draws are taken one by one, more in blocks; and so many
# are used in all for infinite events.
_MOST_BITS = 1 << 26
_BLOCKS = 1 << 15
_MOST_WORK = 1 << 30


class DiscreteFamily:
    """Bounds of the parts of delta as balls, for one plan on a lattice and one epsilon.

    A bound above `budget` may be any number above it, as the work stops there.
    """

    def __init__(
        self,
        noise: LatticeNoise,
        contract: Contract,
        *,
        epsilon: float,
        scale: float,
        budget: float = math.inf,
    ) -> None:
        self._check(contract)
        self.noise, self.contract, self.epsilon = noise, contract, arb(epsilon)
        self.budget = budget
        # Shared noise beyond this is negligible compared with delta.
        self.reach = math.ceil(reach(scale) * math.sqrt(noise.variance_shared))
        self.variance, self.shared = rational(noise.variance), rational(noise.variance_shared)
        self.sums = SumTerms(noise)
        self._divergences: dict[tuple[int, int], arb] = {}
        self._events: dict[int, arb] = {}

    @staticmethod
    def _check(contract: Contract) -> None:
        """Raise `InvalidParameter` for contracts that these bounds do not cover."""

    def gaussian_worst(self, new: int) -> arb:
        """Upper bound of delta over all numbers of changed counts, if at least `new` counts are new and hidden."""
        shared = self.contract.nonzero - new
        most = int(min(shared, self.contract.items - new))
        if most < 1:
            return arb(0)
        if self.noise.gamma_whole is None or math.isinf(shared):
            # With the shared noise revealed (offset 0), fewer changed counts are a projection of more.
            return self._delta_of_changed(shared, most, 0)
        if most <= 2 * _EXACT_CHANGED:
            # Each number of changed counts, the likely worst first: the others only have to be below it.
            likely = (1 + float(self.noise.extra)) * (shared + self.noise.gamma_whole) / 2
            worst = arb(0)
            for changed in sorted(range(1, most + 1), key=lambda s: abs(s - likely)):
                worst = worst.max(self._changed_best(shared, changed, enough=worst))
                if worst > self.budget:
                    return arb(1)
            return worst
        # Half a count covers all numbers of changed counts at once: all counts move alike, and fewer sums are a
        # projection of more.
        half = self._delta_of_changed(shared, most, self.noise.lattice // 2)
        if not self.noise.sums and 2 * most >= shared + self.noise.gamma_whole:
            return half
        return half.min(self._changed_many(shared, most))

    def _offset(self, shared: float, changed: int) -> int:
        """The offset in steps nearest to the best one, s/(j + gamma) of a count."""
        lattice = self.noise.lattice
        return min(round(lattice * changed / (shared + self.noise.gamma)), lattice - 1)

    def _changed_best(self, shared: float, changed: int, enough: arb | None = None) -> arb:
        """The least bound over a few offsets, or the first that is at most `enough`; every offset is valid."""
        best = arb(1)
        for step in dict.fromkeys((self._offset(shared, changed), 0, self.noise.lattice // 2)):
            best = best.min(self._delta_of_changed(shared, changed, step))
            if enough is not None and best <= enough:
                break
        return best

    def _changed_many(self, shared: float, most: int) -> arb:
        """All numbers of changed counts with one offset: the largest one by one, the rest in ranges."""
        step = self._offset(shared, most)
        # Up to this offset, more changed counts never decrease delta.
        turn = self.noise.lattice * (1 + self.noise.extra) / 2
        if step > turn or (step == turn and not self.noise.sums):
            step = min(math.floor(turn), self.noise.lattice - 1) - (0 if self.noise.sums else 1)
        worst, high = arb(0), most - _EXACT_CHANGED
        for changed in range(most, high, -1):
            # If all counts change, another offset may be better.
            if changed == shared:
                worst = worst.max(self._changed_best(shared, changed))
            else:
                worst = worst.max(self._delta_of_changed(shared, changed, step))
            if worst > self.budget:
                return arb(1)
        while high >= 1 and not worst > self.budget:
            low = max(1, high // 2)
            worst = worst.max(self._changed_range(shared, low, high, step))
            high = low - 1
        return worst if high < 1 else arb(1)

    def _combination(self, shared: float, changed: int, step: int) -> Combination:
        """The combination of draws when `changed` counts and their sums move."""
        return self.sums.with_sums(self._counts(shared, changed, step), changed)

    def _counts(self, shared: float, changed: int, step: int) -> Combination:
        lattice, gamma = self.noise.lattice, self.noise.gamma_whole
        if step == 0:
            # Only the changed counts matter: a sum of `changed` draws, each moved by one count.
            return Combination(
                self.variance * changed, lattice * changed, lattice, upper_factor([self.variance / 2], changed)
            )
        assert gamma is not None
        unchanged = int(shared) - changed
        if unchanged == 0:
            return self._counts_all_changed(changed, step, gamma)
        unit = math.gcd(lattice - step, step)
        large, small = (lattice - step) // unit, step // unit
        total = changed * large**2 + unchanged * small**2 + gamma * small**2
        spreads = [self.variance / 2]
        if large != small:
            spreads.append(self.variance / (arb(small**2) / changed + arb(large**2) / unchanged))
        counts = self.variance * (changed * large**2 + unchanged * small**2)
        spreads.append(1 / (arb((small * gamma) ** 2) / counts + 1 / self.shared))
        return Combination(self.variance * total, unit * total, unit, upper_factor(spreads, int(shared)))

    def _counts_all_changed(self, changed: int, step: int, gamma: int) -> Combination:
        """`_counts` if every shared count changes: two coefficients, divided by their common divisor."""
        move = self.noise.lattice - step
        unit = math.gcd(move, step * gamma)
        own, common = move // unit, step * gamma // unit
        variance = self.variance * (changed * own**2) + self.shared * common**2
        shift = (changed * move**2 + gamma * step**2) // unit
        spread = 1 / (arb(common**2) / (changed * self.variance) + arb(own**2) / self.shared)
        return Combination(variance, shift, unit, upper_factor([self.variance / 2, spread], changed))

    def _delta_of_changed(self, shared: float, changed: int, step: int) -> arb:
        moved = self._combination(shared, changed, step)
        # Shift and unit determine the variance, and many cases share them.
        key = moved.shift, moved.unit
        if key not in self._divergences:
            self._divergences[key] = shift_divergence(
                variance=moved.variance, shift=moved.shift, epsilon=self.epsilon
            )
        return self._divergences[key] * moved.factor

    def _changed_range(self, shared: float, low: int, high: int, step: int) -> arb:
        """A bound for all numbers of changed counts from low to high, from the continuous divergence.

        Each tail is within z phi(z)/(8 S^2) of the normal one for z >= 1, half a step from its point.
        """
        least, most = self._combination(shared, low, step), self._combination(shared, high, step)
        mu_high, mu_low = most.shift / most.variance.sqrt(), least.shift / least.variance.sqrt()
        half = 1 / (2 * least.variance.sqrt())
        near = self.epsilon / mu_high - mu_high / 2 - half
        if not near >= 1:
            # One by one if there are not too many; otherwise give up with the trivial bound.
            if high - low > _MOST_ONE_BY_ONE:
                return arb(1)
            worst = arb(0)
            for changed in range(low, high + 1):
                worst = worst.max(self._delta_of_changed(shared, changed, step))
                if worst > self.budget:
                    return arb(1)
            return worst
        far = self.epsilon / mu_low + mu_high + half
        density = (-near * near / 2).exp() / (2 * arb.pi()).sqrt()
        error = (near + far) * density * self.epsilon.exp() / (8 * least.variance)
        smooth = balls.hockey_stick_normal(mu_high, self.epsilon)
        # Each spread is worst at one of the ends, so both factors together cover the whole range.
        return (smooth + error) * least.factor * most.factor * (1 + 2 * theta_excess(least.variance))

    @cached_property
    def _passing(self) -> list[tuple[arb, arb]]:
        """For each value of the shared draw: its probability, and that of a new count passing given it."""
        limit = self.noise.tau_steps
        if self.noise.variance_shared == 0:
            return [(arb(1), tail(limit + 1, self.variance))]
        if (2 * self.reach + 1) * ctx.prec > _MOST_BITS:
            return self._passing_in_blocks(-(-2 * self.reach // _BLOCKS))
        whole, whole_shared = normaliser(self.variance), normaliser(self.shared)
        passes = tail(limit + self.reach + 2, self.variance)
        draws = weights_from(-self.reach, 1, self.shared)
        further = weights_from(limit + self.reach + 1, -1, self.variance)
        rows = []
        for draw, more in islice(zip(draws, further, strict=True), 2 * self.reach + 1):
            passes += more / whole
            rows.append((draw / whole_shared, passes))
        # All shared draws further out, as if a count always passed with them.
        return [*rows, (2 * tail(self.reach + 1, self.shared), arb(1))]

    def _passing_in_blocks(self, size: int) -> list[tuple[arb, arb]]:
        """`_passing` for blocks of `size` shared draws, from above.

        Each block has `size` times the probability of its most probable draw, and a count passes as often
        as with its last one. A block is a small part of a deviation, so that little is lost.
        """
        limit, ends = self.noise.tau_steps, -(-self.reach // size) * size
        whole, whole_shared = normaliser(self.variance), normaliser(self.shared)
        # Of the draws in a block, the nearest to 0 is the most probable one. No block has draws on both sides.
        draws = weights_from(-ends, size, self.shared)
        nearest = [next(draws) for _ in range(2 * ends // size)]
        nearest = [*nearest[1 : ends // size + 1], *nearest[ends // size :]]
        # A count passes with the last draw of a block if its own draw is at least this.
        least = limit + ends - size + 2
        passes, further = tail(least, self.variance), weights_from(least - size, -size, self.variance)
        rows = []
        for weight in nearest:
            rows.append((size * weight / whole_shared, passes))
            least -= size
            passes = (passes + size * next(further) / whole).min(arb(1)) if least > 0 else arb(1)
        return [*rows, (2 * tail(ends, self.shared), arb(1))]

    def infinite_event(self, count: int) -> arb:
        """Upper enclosure of the probability that one of `count` new counts passes."""
        if count not in self._events:
            total = arb(0)
            for weight, passes in self._passing:
                total += weight * (passes if count == 1 else 1 - (1 - passes) ** count)
            self._events[count] = total
        return self._events[count]

    @property
    def is_exhausted(self) -> bool:
        """Whether infinite events have taken more work than those of any plan."""
        return len(self._events) * len(self._passing) * int(ctx.prec) > _MOST_WORK

    @cached_property
    def _ends(self) -> tuple[arb, arb, arb]:
        """The infinite event of 1 and of m new counts, and its increase from m to m + 1."""
        items, last_step = self.contract.items, arb(0)
        for weight, passes in self._passing:
            last_step += weight * (1 - passes) ** items * passes
        return self.infinite_event(1), self.infinite_event(items), last_step

    def sum_block(self, first: int, last: int, goal: float) -> float:
        """Infinite event plus Gaussian part: an upper bound for all cases with first <= r <= last."""
        gaussian = self.gaussian_worst(first)
        # First a cheap bound: the event is concave in the number of counts, and 0 for none.
        event_of_one, event_of_all, last_step = self._ends
        event = (last * event_of_one).min(event_of_all - (self.contract.items - last) * last_step)
        bound = balls.upper(event + gaussian)
        return bound if bound <= goal else balls.upper(self.infinite_event(last) + gaussian)


# The top-k step with its offset: the (k+1)-th largest count c is subtracted from all counts and released with
# noise.
#
# Adding a user moves (counts, c) by (+v, 0) or by (-v, +1), with v of zeros and ones. The signs are opposite, so c
# is released with the opposite of the shared noise,
#
#     y_i = H~_i + Z_i + W,    c~ = c + Z_c - W,    y_i + c~ = H_i + Z_i + Z_c,
#
# and W cancels in the counts. Derivation and comparison with the paper's rule: docs/theory/top-k.md.

# How far the offset's own noise has to move, in half counts, if c does not change and if it does.
_HALVES: Final[dict[OffsetRule, tuple[int, int]]] = {"none": (0, 0), "opposite": (1, 1), "independent": (0, 2)}


def squared_sensitivity_top_k(*, shared: float, gamma: float, rule: OffsetRule, extra: float = 0.0) -> float:
    """Largest squared sensitivity, in units of 1/sigma^2, of `shared` counts and their offset.

        (j + gamma + h^2 gamma)/4 + extra j,    h = 1 for the opposite offset, 2 for the independent one, 0 without

    Guarantee: an upper bound, attained up to parity (of j for the opposite offset, else of j + gamma).
    Valid for: offset noise of the variance of the shared noise, sigma^2/gamma.
    Source: `sec:top-k`, whose sqrt(k + 5 sqrt k) is the independent rule at gamma = sqrt k; the other goes beyond.
    """
    return (shared + gamma * (1 + max(_HALVES[rule]) ** 2)) / 4.0 + extra * shared


class TopKFamily(DiscreteFamily):
    """The bounds with one more coordinate, the offset; the number of items per user is not bounded.

    Every draw moves by half a count: W by +1/2, each Z_i by +1/2 or -1/2, Z_c by the rest. All signs have the same
    likelihood ratio, so one bound covers every v, both moves of c and both directions.
    """

    @staticmethod
    def _check(contract: Contract) -> None:
        if contract.max_nonzero is None or contract.items != contract.max_nonzero:
            raise InvalidParameter(
                "a top-k step does not bound the items of a user: certify it with max_nonzero alone"
            )

    def gaussian_worst(self, new: int) -> arb:
        """Upper bound of delta over all moves of the shared counts and of c if `new` counts stay hidden.

        Fewer shared counts are a projection of more, so the largest number of shared counts bounds all.
        """
        worst = arb(0)
        for halves in set(_HALVES[self.noise.offset]):
            worst = worst.max(self._delta_of_move(int(self.contract.nonzero) - new, halves))
        return worst

    def _delta_of_move(self, shared: int, halves: int) -> arb:
        """delta of moving `shared` counts and W by half a count each, and Z_c by `halves` half counts."""
        gamma, lattice = self.noise.gamma_whole, self.noise.lattice
        assert gamma is not None
        if shared == 0 and halves == 0:
            return arb(0)
        if shared == 0:
            # The offset alone moves, by one count, with all its noise.
            draws = 2 if self.noise.offset == "opposite" else 1
            alone = shift_divergence(variance=self.shared * draws, shift=lattice, epsilon=self.epsilon)
            return alone * upper_factor([self.shared / 2], draws) if draws > 1 else alone
        total = shared + gamma + halves**2 * gamma
        spreads = [self.variance / 2, 1 / (gamma**2 / (self.variance * shared) + 1 / self.shared)]
        if halves:
            before = self.variance * (shared + gamma)
            spreads.append(1 / ((halves * gamma) ** 2 / before + 1 / self.shared))
        half = lattice // 2
        counts = Combination(self.variance * total, half * total, half, upper_factor(spreads, shared))
        # Which sums move depends on the user: assume all of them.
        return self.sums.with_sums(counts, shared).divergence(self.epsilon)
