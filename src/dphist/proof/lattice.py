"""Noise on a lattice: the parts of its delta in ball arithmetic, also for a top-k step with its offset.

Offsets a = c/b are whole numbers of steps on the lattice 1/b, so that the representation of the offset bound is
integral. Given the shared draw, the log likelihood ratio is linear in one integer combination of the draws, which
is a discrete Gaussian up to a factor within e^(-2 pi^2 V') of one. Derivation: docs/theory/discrete.md. Sums are
further terms of the combination: docs/theory/sums.md.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce
from itertools import islice
from typing import Final, NamedTuple

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

    `unit` is its coefficient in the log likelihood ratio, in units of 1/V for draws of variance V; 0 if nothing
    moves.
    """

    variance: arb
    shift: int
    unit: int
    factor: arb

    @classmethod
    def of(cls, draws: int, move: int, unit: int, variance: arb) -> Combination:
        """The sum of `draws` draws of one law, each moved by `move`."""
        if draws * move == 0:
            return cls(arb(0), 0, 0, arb(1))
        return cls(variance * draws, draws * move, unit, upper_factor(variance / 2, draws))

    def beside(self, other: Combination) -> Combination:
        """The combination of independent parts, with coprime coefficients.

        Guarantee: the divergence of both parts together is at most that of the discrete Gaussian times `factor`.
        Source: the lemma on sums of discrete Gaussians in docs/theory/discrete.md.
        """
        if not self.unit or not other.unit:
            return self if self.unit else other
        unit = math.gcd(self.unit, other.unit)
        mine, its = self.unit // unit, other.unit // unit
        spread = 1 / (arb(its**2) / self.variance + arb(mine**2) / other.variance)
        return Combination(
            self.variance * mine**2 + other.variance * its**2, self.shift * mine + other.shift * its, unit,
            self.factor * other.factor * upper_factor(spread),
        )  # fmt: skip


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
        total = replace(counts, unit=counts.unit * self.common)
        for weight, move, variance in self._terms:
            total = total.beside(Combination.of(moved, move, weight, variance))
        return replace(total, factor=total.factor * (moved * self._excess).exp())


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
        self.noise, self.contract, self.epsilon = noise, contract, arb(epsilon)
        self.budget = budget
        # Shared noise beyond this is negligible compared with delta.
        self.reach = math.ceil(reach(scale) * math.sqrt(noise.variance_shared))
        self.variance, self.shared = rational(noise.variance), rational(noise.variance_shared)
        self.sums = SumTerms(noise)
        self._divergences: dict[tuple[int, int], arb] = {}
        self._events: dict[int, arb] = {}

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
        others = int(shared) - changed if step else 0
        counts = self._moved(changed, self.noise.lattice - step).beside(self._moved(others, step, shared_draws=1))
        return self.sums.with_sums(counts, changed)

    def _moved(self, counts: int, move: int, shared_draws: int = 0) -> Combination:
        """Draws of counts and of shared noise that all move by `move` steps."""
        common = Combination.of(shared_draws, move, move * (self.noise.gamma_whole or 0), self.shared)
        return Combination.of(counts, move, move, self.variance).beside(common)

    def _delta_of_changed(self, shared: float, changed: int, step: int) -> arb:
        return self._delta_of(self._combination(shared, changed, step))

    def _delta_of(self, moved: Combination) -> arb:
        if moved.shift == 0:
            return arb(0)
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
# noise, by the opposite rule with the opposite of the shared noise, so that W cancels in the counts:
#     y_i = H~_i + Z_i + W,    c~ = c + Z_c - W,    y_i + c~ = H_i + Z_i + Z_c.
# Derivation and comparison with the paper's rule: docs/theory/top-k.md.


class TopKMove(NamedTuple):
    """Neighbours of a top-k step whose user touches `touched` of the `shared` counts, explained by a whole `step`.

    If c `rises` with the user, the other counts fall; otherwise the touched ones rise.
    """

    rises: bool
    shared: int
    touched: int
    step: int

    def of_shared_noise(self, lattice: int, rule: OffsetRule) -> tuple[int, int]:
        """The moves of W and Z_c. Touched counts move by lattice - step, the other counts by `step`."""
        common = lattice - self.step if self.rises else self.step
        return common, {"opposite": self.step, "independent": lattice * self.rises, "none": 0}[rule]


def moves_top_k(
    *, shared: int, new: int, limit: int | None, gamma: int, rule: OffsetRule, lattice: int, sums: bool
) -> list[list[TopKMove]]:
    """Covers of all neighbours with `shared` common counts and `new` others, one list for each of c's two moves.

    A list's first move covers all of them alone; so do the others together, if there are any. A step of at most
    half a count covers all users that touch fewer counts, one of at least half a count all that touch more.
    """
    covers, half = [], lattice // 2
    for rises in (False, True):
        most = shared if limit is None else min(shared, limit - (1 if rises else new))
        if most < 0:
            continue  # no user has so many new counts
        if rule != "opposite":
            # If no count is shared, only the noise of c has to move.
            covers.append([TopKMove(rises, shared, most, half if shared else lattice * rises)])
            continue
        # W moves like the touched counts if c rises, and like the others if not.
        whole, beside = shared + 2 * gamma, gamma * rises
        below = min(most, whole // 2 - beside)
        first = min(half, round(Fraction(lattice * (below + beside), whole)))
        cover = [TopKMove(rises, shared, most, half)]
        # Sums move with touched counts: there, steps of more than half a count do not cover users who touch more.
        if first < half and (below == most or not sums):
            cover.append(TopKMove(rises, shared, below, first))
            if below < most:
                second = max(half, round(Fraction(lattice * (below + 1 + beside), whole)))
                cover.append(TopKMove(rises, shared, below + 1, second))
        covers.append(cover)
    return covers


def contract_of_new(noise: LatticeNoise, contract: Contract) -> Contract:
    """The bound on new counts: in a top-k step all counts can vanish, whatever the limit on a user's items."""
    return contract if noise.offset == "none" else Contract(contract.max_nonzero)


class TopKFamily(DiscreteFamily):
    """The bounds with one more coordinate, the offset."""

    def __init__(self, noise: LatticeNoise, contract: Contract, **options: float) -> None:
        super().__init__(noise, contract_of_new(noise, contract), **options)
        self.limit = contract.user_limit

    def gaussian_worst(self, new: int) -> arb:
        """Upper bound of delta over all neighbours, if at least `new` counts are new and hidden."""
        noise, worst = self.noise, arb(0)
        covers = moves_top_k(
            shared=int(self.contract.nonzero) - new, new=new, limit=self.limit, gamma=int(noise.gamma),
            rule=noise.offset, lattice=noise.lattice, sums=bool(noise.sums),
        )  # fmt: skip
        for first, *others in covers:
            together = reduce(arb.max, map(self._delta_of_move, others or [first]))
            worst = worst.max(together.min(self._delta_of_move(first)))
        return worst

    def _delta_of_move(self, move: TopKMove) -> arb:
        # By size of the move, so that all coefficients are 1 or gamma before the sizes are combined.
        lattice, shared_draws = self.noise.lattice, move.of_shared_noise(self.noise.lattice, self.noise.offset)
        counts = Counter({lattice - move.step: move.touched}) + Counter({move.step: move.shared - move.touched})
        sizes = sorted({*counts, *shared_draws})
        parts = (self._moved(counts[size], size, shared_draws.count(size)) for size in sizes)
        return self._delta_of(self.sums.with_sums(reduce(Combination.beside, parts), move.touched))
