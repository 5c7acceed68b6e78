"""The certificate for noise on a lattice, in ball arithmetic.

Offsets a = c/b are whole numbers of steps on the lattice 1/b, so that the representation of the offset bound is
integral. Given the shared draw, the log likelihood ratio is linear in one integer combination of the draws,
and that is a discrete Gaussian up to a factor within e^(-2 pi^2 V') of one. Derivation: docs/discrete.md.
"""

from __future__ import annotations

import math
from functools import cached_property

from flint import arb, fmpq

from dphist.analysis.chords import reach
from dphist.analysis.family import delta_family, mixed_blocks
from dphist.analysis.sensitivity import worst_changed
from dphist.numerics import balls
from dphist.numerics.discrete_balls import normaliser, shift_divergence, tail, theta_excess
from dphist.types import Certificate, Contract, LatticeNoise, NeighbourCase

_EXACT_CHANGED = 48


def bits_for(scale: float) -> int:
    """Precision at which deltas of this size keep their digits."""
    return 128 + int(-1.1 * math.log2(scale))


def _rational(value: object) -> arb:
    return arb(fmpq(value.numerator, value.denominator))  # type: ignore[attr-defined]


class DiscreteFamily:
    """The bounds of the family on its lattice as balls, for one plan and one epsilon."""

    def __init__(self, noise: LatticeNoise, contract: Contract, *, epsilon: float, scale: float) -> None:
        self.noise, self.contract, self.epsilon = noise, contract, arb(epsilon)
        # Far enough into the shared noise that what lies beyond is nothing beside delta.
        self.reach = math.ceil(reach(scale) * math.sqrt(noise.variance_shared))
        self.variance, self.shared = _rational(noise.variance), _rational(noise.variance_shared)

    def offset(self, shared: float, changed: int) -> int:
        """The offset in steps nearest to the best one, s/(j + gamma) of a unit; none without shared noise."""
        gamma, lattice = self.noise.gamma_whole, self.noise.lattice
        if gamma is None or math.isinf(shared):
            return 0
        step = round(lattice * changed / (shared + gamma))
        if changed == shared and math.gcd(lattice - step, step * gamma) != math.gcd(lattice - step, step):
            # With every count changed and this offset the combination would miss some integers.
            return lattice // 2
        return min(step, lattice - 1)

    def gaussian_worst(self, new: int) -> arb:
        """Upper bound of delta over all changed counts when at least `new` counts are new and stay hidden."""
        shared = self.contract.nonzero - new
        most = int(min(shared, self.contract.items - new))
        if most < 1:
            return arb(0)
        gamma = self.noise.gamma_whole
        if most > 2 * _EXACT_CHANGED and gamma is not None and 2 * most >= shared + gamma:
            # Half a unit covers every number of changed counts at once.
            return self._changed(shared, most, self.noise.lattice // 2)
        worst = arb(0)
        every = most <= 2 * _EXACT_CHANGED
        step = self.offset(shared, most)
        for changed in range(most, 0 if every else most - _EXACT_CHANGED, -1):
            worst = worst.max(self._changed(shared, changed, self.offset(shared, changed) if every else step))
        high = 0 if every else most - _EXACT_CHANGED
        while high >= 1:
            low = max(1, high // 2)
            worst = worst.max(self._changed_range(shared, low, high, step))
            high = low - 1
        return worst

    def _problem(self, shared: float, changed: int, step: int) -> tuple[arb, int, arb]:
        """Variance and shift of the combination, and how far it may be from a discrete Gaussian (a factor)."""
        lattice, gamma = self.noise.lattice, self.noise.gamma_whole
        if step == 0:
            # Only the changed counts take part: a sum of `changed` draws, shifted by one unit each.
            return self.variance * changed, lattice * changed, self._factor([self.variance / 2], changed)
        assert gamma is not None
        unit = math.gcd(lattice - step, step)
        large, small, quiet = (lattice - step) // unit, step // unit, int(shared) - changed
        total = changed * large**2 + quiet * small**2 + gamma * small**2
        spreads = [self.variance / 2]
        if changed > 0 and quiet > 0 and large != small:
            spreads.append(self.variance / (arb(small**2) / changed + arb(large**2) / quiet))
        counts = self.variance * (changed * large**2 + quiet * small**2)
        spreads.append(1 / (arb((small * gamma) ** 2) / counts + 1 / self.shared))
        return self.variance * total, unit * total, self._factor(spreads, int(shared))

    @staticmethod
    def _factor(spreads: list[arb], draws: int) -> arb:
        """(1 + theta)/(1 - theta) over all the sums: `draws` of the first kind, one of each other."""
        excess = theta_excess(spreads[0]) * (2 * draws)
        for spread in spreads[1:]:
            excess += 2 * theta_excess(spread)
        return (2 * excess).exp()

    def _changed(self, shared: float, changed: int, step: int) -> arb:
        variance, shift, factor = self._problem(shared, changed, step)
        return shift_divergence(variance=variance, shift=shift, epsilon=self.epsilon) * factor

    def _changed_range(self, shared: float, low: int, high: int, step: int) -> arb:
        """A bound for all numbers of changed counts from low to high, from the continuous divergence.

        Each tail is within z phi(z)/(8 S^2) of the normal one for z >= 1, half a step from its point.
        """
        variance_low, shift_low, factor_low = self._problem(shared, low, step)
        variance_high, shift_high, factor_high = self._problem(shared, high, step)
        mu_high, mu_low = shift_high / variance_high.sqrt(), shift_low / variance_low.sqrt()
        half = 1 / (2 * variance_low.sqrt())
        near = self.epsilon / mu_high - mu_high / 2 - half
        if not near >= 1:
            return arb(1)
        far = self.epsilon / mu_low + mu_high + half
        density = (-near * near / 2).exp() / (2 * arb.pi()).sqrt()
        error = (near + far) * density * self.epsilon.exp() / (8 * variance_low)
        smooth = balls.hockey_stick_normal(mu_high, self.epsilon)
        return (smooth + error) * factor_low.max(factor_high) * (1 + 2 * theta_excess(variance_low))

    @cached_property
    def _passing(self) -> list[tuple[arb, arb]]:
        """For each value of the shared draw: its probability, and that of one new count to pass."""
        limit = self.noise.limit
        if self.noise.variance_shared == 0:
            return [(arb(1), tail(limit + 1, self.variance))]
        whole, whole_shared = normaliser(self.variance), normaliser(self.shared)
        passes = tail(limit + self.reach + 2, self.variance)
        rows = []
        for w in range(-self.reach, self.reach + 1):
            passes += (-(arb(limit - w + 1) ** 2) / (2 * self.variance)).exp() / whole
            rows.append(((-(arb(w) ** 2) / (2 * self.shared)).exp() / whole_shared, passes))
        return rows

    @cached_property
    def _beyond(self) -> arb:
        """The shared draws that are left out, as if all of them let a count pass."""
        return arb(0) if self.noise.variance_shared == 0 else 2 * tail(self.reach + 1, self.shared)

    def infinite_event(self, count: int) -> arb:
        """Upper enclosure of the probability that one of `count` new counts passes: the exact sum."""
        total = arb(0)
        for weight, passes in self._passing:
            total += weight * (1 - (1 - passes) ** count)
        return total + self._beyond

    @cached_property
    def _ends(self) -> tuple[arb, arb, arb]:
        """The infinite event of 1 and of m new counts, and its last step from m to m + 1."""
        last_step = arb(0)
        for weight, passes in self._passing:
            last_step += weight * (1 - passes) ** self.contract.items * passes
        return self.infinite_event(1), self.infinite_event(self.contract.items), last_step

    def _infinite_event_upper(self, count: int) -> arb:
        """A bound without a sum of its own: the event is concave in the number of counts, and 0 for none."""
        one, items, last_step = self._ends
        return (count * one).min(items - (self.contract.items - count) * last_step)

    def sum_block(self, first: int, last: int, goal: float) -> float:
        """Infinite event plus Gaussian part: an upper bound for all cases with first <= r <= last."""
        gaussian = self.gaussian_worst(first)
        bound = balls.upper(self._infinite_event_upper(last) + gaussian)
        return bound if bound <= goal else balls.upper(self.infinite_event(last) + gaussian)


def certify_lattice(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of a plan on a lattice: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`. Where it exceeds
    a given `budget` it may be 1, for the work stops at the first case that does.
    Valid for: epsilon >= 0; variances of at least 4 steps.
    Source: beyond the paper; `theorem:discrete-cor-GSHM` is its looser relative.
    """
    items, scale = contract.items, max(1e-300, delta_family(noise.continuous(), contract, epsilon=epsilon).delta)
    with balls.precision(bits_for(scale)):
        family = DiscreteFamily(noise, contract, epsilon=epsilon, scale=scale)
        gaussian, infinite = balls.upper(family.gaussian_worst(0)), balls.upper(family.infinite_event(items))
        pure = max(gaussian, infinite)
        goal = pure if budget is None else max(pure, budget)
        delta = max(pure, _mixed_upper(family, goal, stop=budget is not None)) if items > 1 else pure
    below, _ = worst_changed(shared=contract.nonzero, most=float(items), gamma=noise.gamma)
    case = (
        NeighbourCase(contract.nonzero, 0, int(below), "either")
        if gaussian >= infinite
        else NeighbourCase(contract.nonzero - items, items, 0, "add")
    )
    return Certificate(epsilon, min(1.0, delta), "exact-discrete", case, min(delta, infinite))


def certify_known_domain(noise: LatticeNoise, contract: Contract, *, epsilon: float) -> Certificate:
    """Certificate of discrete correlated noise on a known domain of `max_nonzero` keys: no key is ever new.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`.
    Valid for: epsilon >= 0.
    Source: `alg:discrete-correlated-gaussian`, beyond `lem:discrete-cor-privacy`.
    """
    below, _ = worst_changed(shared=contract.nonzero, most=float(contract.items), gamma=noise.gamma)
    with balls.precision(256):
        family = DiscreteFamily(noise, contract, epsilon=epsilon, scale=1e-16)
        delta = min(1.0, balls.upper(family.gaussian_worst(0)))
    case = NeighbourCase(contract.nonzero, 0, int(below), "either")
    return Certificate(epsilon, delta, "exact-discrete", case, 0.0)


def _mixed_upper(family: DiscreteFamily, goal: float, *, stop: bool) -> float:
    """Ball upper bound over mixed cases; the continuous analysis only proposes how to cut them into blocks."""
    twin = family.noise.continuous()
    blocks = mixed_blocks(
        twin, family.contract, epsilon=float(family.epsilon.mid()), enough=goal, relative=0.0, growth=4.0
    )
    waiting = list(zip(blocks.first.tolist(), blocks.last.tolist(), strict=True))
    worst = 0.0
    while waiting:
        first, last = waiting.pop()
        bound = family.sum_block(first, last, goal)
        if bound > goal and last > first:
            middle = (first + last) // 2
            waiting += [(first, middle), (middle + 1, last)]
            continue
        worst = max(worst, bound)
        if stop and worst > goal:
            return math.inf
    return worst
