"""Certificates: upper bounds of delta in ball arithmetic, valid whatever errors the doubles have.

First continuous noise, where doubles only propose how to partition the mixed cases; then discrete noise: lattices,
top-k steps with an offset, public lists, Laplace, rounds.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

import numpy as np
from flint import acb, arb

from dphist.errors import InvalidParameter, NotPrivate
from dphist.privacy import balls, exact
from dphist.privacy.balls import rational
from dphist.privacy.exact import (
    block_offsets,
    delta_family,
    delta_of_case,
    gaussian_case,
    infinite_case,
    mixed_blocks,
    sum_bound,
    worst_changed,
)
from dphist.privacy.lattice import DiscreteFamily, TopKFamily, bits_for
from dphist.privacy.rounds import certify_rounds
from dphist.privacy.types import (
    AnyNoise,
    Certificate,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    NeighbourCase,
    Noise,
    PublicNoise,
    RoundsNoise,
)

# Largest relative excess of the certificate over the fast value where mixed neighbours are the worst.
CERTIFICATE_GAP: Final = 2e-6
# Assumed error of doubles when they propose a partition; a wrong proposal costs time, not privacy.
_DOUBLE_ERROR: Final = 1e-11
# Relative error of the lower bound, which is computed in doubles.
_LOWER_ERROR: Final = 1e-7
_CHORD_LADDER: Final = (150, 600, 2400, 9600)


class BallFamily:
    """Bounds of the parts of delta as balls, for one plan with continuous noise and one epsilon."""

    def __init__(self, noise: Noise, contract: Contract, *, epsilon: float, scale: float) -> None:
        if noise.extra > 0.0:
            raise InvalidParameter("sums can be certified for discrete noise only; use noise='discrete'")
        self.noise, self.contract, self.epsilon = noise, contract, epsilon
        self.scale = min(max(scale, 1e-300), 1.0)
        self.bits = 96 + int(-1.1 * math.log2(self.scale))
        self.sigma, self.shared, self.tau = arb(noise.sigma), arb(noise.sigma_shared), arb(noise.tau)

    def infinite_event(self, count: int) -> arb:
        """Upper enclosure of the probability that one of `count` new counts passes."""
        if self.noise.sigma_shared == 0.0:
            return 1 - balls.normal_cdf(self.tau / self.sigma) ** count
        sqrt2, root = arb(2).sqrt(), (2 * arb.pi()).sqrt()

        def integrand(x: acb, _analytic: bool) -> acb:
            u = (self.tau - self.shared * x) / (self.sigma * sqrt2)
            return (1 - (1 - u.erfc() / 2) ** count) * (-x * x / 2).exp() / root

        reach = arb(exact.reach(self.scale))
        inside = balls.integral(integrand, -reach, reach, absolute=self.scale * 2.0**-70)
        # Outside, the integrand is at most the normal density.
        return inside + 2 * balls.normal_cdf(-reach)

    def gaussian(self, shared: float, changed: int) -> arb:
        """Gaussian delta at the sensitivity of `changed` among `shared` counts."""
        s = arb(changed)
        squared = s / self.sigma**2
        if self.noise.sigma_shared > 0.0 and not math.isinf(shared):
            # s - s^2/(gamma + j) with gamma = sigma^2/sigma_shared^2, all in balls.
            squared -= s * s / (self.sigma**2 * ((self.sigma / self.shared) ** 2 + arb(int(shared))))
        return balls.hockey_stick_normal(squared.sqrt(), arb(self.epsilon))

    def gaussian_worst(self, new: int) -> arb:
        """The largest Gaussian delta if at least `new` of the user's counts are new.

        Tries the integers next to the real maximum and one more on each side, so that rounding of gamma does not
        matter.
        """
        shared = self.contract.nonzero - new
        most = int(min(shared, self.contract.items - new))
        if most < 1:
            return arb(0)
        below, above = worst_changed(shared=shared, most=float(most), gamma=self.noise.gamma)
        candidates = {min(most, max(1, int(below) + d)) for d in (-1, 0)} | {
            min(most, int(above) + d) for d in (0, 1)
        }
        worst = arb(0)
        for changed in candidates:
            worst = worst.max(self.gaussian(shared, changed))
        return worst

    def sum_block(self, first: int, last: int) -> float:
        """`exact.sum_bound` for a block of mixed cases."""
        return balls.upper(self.infinite_event(last) + self.gaussian_worst(first))

    def offset_block(self, first: int, last: int, goal: float) -> float:
        """The offset bound for a block of mixed cases, with enough chords to be below `goal` if possible."""
        ends = np.array([first], dtype=np.int64), np.array([last], dtype=np.int64)
        worst = 0.0
        for j, r, s, a in block_offsets(self.noise, self.contract, *ends):
            counts = float(j[0]), int(r[0]), int(s[0])
            case = exact.Case(self.noise, *counts, float(a[0]), self.epsilon, self.scale)
            # Each offset covers one side of s, so the bound of the block is the larger of the two.
            worst = max(worst, _enough_chords(case, goal))
        return worst


def _enough_chords(case: exact.Case, goal: float) -> float:
    """The chord bound with more and more chords, until it is below `goal` or clearly cannot be."""
    bound = math.inf
    for count in _CHORD_LADDER:
        finer = exact.offset_bound_upper(case, count)
        # The excess shrinks by a factor of 16 per step: stop if that is not enough.
        hopeless = math.isfinite(bound) and finer - (bound - finer) / 15.0 > goal * (1.0 + 1e-9)
        bound = min(bound, finer)
        if bound <= goal or hopeless:
            break
    return bound


def certify_family(
    noise: Noise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of continuous noise at epsilon: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact doubles of `noise`. If it exceeds a
    given `budget` it may be 1, as the work stops at the first case above the budget.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    fast = delta_family(noise, contract, epsilon=epsilon)
    goal = fast.delta * (1.0 + CERTIFICATE_GAP)
    if budget is not None and fast.delta <= budget:
        goal = min(goal, budget)
    family = BallFamily(noise, contract, epsilon=epsilon, scale=fast.delta)
    with balls.precision(family.bits):
        delta = max(
            balls.upper(family.gaussian_worst(0)),
            balls.upper(family.infinite_event(contract.items)),
            _mixed_upper(family, goal, budget),
        )
    attained = max(
        gaussian_case(noise, contract, epsilon=epsilon).delta, infinite_case(noise, contract).delta,
        delta_of_case(fast.case, noise, epsilon=epsilon, smallest=family.scale),
    )  # fmt: skip
    if attained > delta * (1.0 + _LOWER_ERROR):
        raise ArithmeticError(f"the certificate {delta!r} is below the exact delta {attained!r} of {fast.case}")
    return Certificate(epsilon, min(1.0, delta), "exact", fast.case, min(delta, attained))


def _mixed_upper(family: BallFamily, goal: float, budget: float | None) -> float:
    """Ball upper bound over all mixed cases 0 < r < m."""
    noise, contract, epsilon = family.noise, family.contract, family.epsilon
    if contract.items < 2:
        return 0.0
    enough = goal * (1.0 - _DOUBLE_ERROR)
    blocks = mixed_blocks(noise, contract, epsilon=epsilon, enough=enough, relative=0.0, growth=4.0)
    sums = sum_bound(noise, contract, blocks.first, blocks.last, epsilon=epsilon, smallest=family.scale)
    worst = 0.0
    for first, last, by_sum in zip(blocks.first.tolist(), blocks.last.tolist(), sums.tolist(), strict=True):
        bound = family.sum_block(first, last) if by_sum <= enough else math.inf
        if bound > goal:
            bound = min(bound, family.offset_block(first, last, goal))
        worst = max(worst, bound)
        if budget is not None and worst > budget:
            return math.inf  # over the budget: skip the remaining blocks
    return worst


def certify_noise(
    noise: AnyNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of any noise.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals or doubles of `noise`.
    """
    if isinstance(noise, RoundsNoise):
        if contract != noise.contract:
            raise InvalidParameter(f"the noise of rounds is for {noise.contract}, not for {contract}")
        return certify_rounds(noise, epsilon=epsilon, budget=budget)
    if isinstance(noise, LaplaceNoise):
        return certify_discrete_laplace(noise.scale, noise.limit, contract, epsilon=epsilon)
    if isinstance(noise, Noise):
        return certify_family(noise, contract, epsilon=epsilon, budget=budget)
    if isinstance(noise, PublicNoise):
        return certify_known_domain(noise, contract, epsilon=epsilon)
    return certify_lattice(noise, contract, epsilon=epsilon, budget=budget)


def certify_discrete_laplace(scale: Fraction, limit: int, contract: Contract, *, epsilon: float) -> Certificate:
    """Certificate of the discrete Laplace stability histogram with a scale of at least m/epsilon.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rational scale; exact up to rounding.
    Valid for: scale >= m/epsilon, compared exactly; otherwise raises `NotPrivate`.
    Source: beyond the paper.
    """
    items = contract.items
    if Fraction(items) > scale * Fraction(epsilon):
        raise NotPrivate(f"a Laplace scale of {scale} is below m/epsilon for m = {items}, epsilon = {epsilon!r}")
    with balls.precision(2048):
        rate = rational(1 / scale)
        passes = (-(limit + 1) * rate).exp() / (1 + (-rate).exp())
        delta = balls.upper(1 - (1 - passes) ** items)
    case = NeighbourCase(contract.nonzero - items, items, 0, "add")
    return Certificate(epsilon, delta, "laplace", case, math.nextafter(delta, 0.0))


def lattice_family(noise: LatticeNoise, contract: Contract, *, epsilon: float, scale: float) -> DiscreteFamily:
    kind = DiscreteFamily if noise.offset == "none" else TopKFamily
    return kind(noise, contract, epsilon=epsilon, scale=scale)


def certify_lattice(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of a plan on a lattice: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals of `noise`. If it exceeds a
    given `budget` it may be 1, as the work stops at the first case above the budget.
    Valid for: epsilon >= 0; variances of at least 4 steps.
    Source: beyond the paper; tighter than `theorem:discrete-cor-GSHM`.
    """
    if epsilon < 0.0:
        raise InvalidParameter(f"epsilon must be at least 0, not {epsilon!r}")
    items = contract.items
    scale = min(0.5, max(1e-300, delta_family(noise.continuous(), contract, epsilon=epsilon).delta))
    with balls.precision(bits_for(scale)):
        family = lattice_family(noise, contract, epsilon=epsilon, scale=scale)
        gaussian = balls.upper(family.gaussian_worst(0))
        # If all counts are new, only the offset of a top-k step is shared. Without it, the event is the exact
        # delta of the neighbours with new counts alone, a lower bound.
        event = family.infinite_event(items)
        infinite = balls.upper(event + family.gaussian_worst(items))
        delta = max(gaussian, infinite)
        if items > 1 and delta < 1.0:
            goal = delta if budget is None else max(delta, budget)
            delta = max(delta, _discrete_mixed_upper(family, goal, stop=budget is not None))
    only_new = NeighbourCase(contract.nonzero - items, items, 0, "add")
    case = _worst_without_new(noise, contract) if gaussian >= infinite else only_new
    return Certificate(epsilon, min(1.0, delta), "exact-discrete", case, min(1.0, delta, balls.upper(event)))


def certify_known_domain(noise: LatticeNoise, contract: Contract, *, epsilon: float) -> Certificate:
    """Certificate of discrete correlated noise on a public list of `max_nonzero` items: no item is ever new.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals of `noise`.
    Valid for: epsilon >= 0.
    Source: `alg:discrete-correlated-gaussian`, beyond `lem:discrete-cor-privacy`.
    """
    with balls.precision(256):
        family = DiscreteFamily(noise, contract, epsilon=epsilon, scale=1e-16)
        delta = min(1.0, balls.upper(family.gaussian_worst(0)))
    return Certificate(epsilon, delta, "exact-discrete", _worst_without_new(noise, contract), 0.0)


def _worst_without_new(noise: LatticeNoise, contract: Contract) -> NeighbourCase:
    """The worst neighbours without new counts."""
    numbers = {"shared": contract.nonzero, "most": float(contract.items), "gamma": noise.gamma}
    below, _ = worst_changed(extra=float(noise.extra), **numbers)
    return NeighbourCase(contract.nonzero, 0, int(below), "either")


def _discrete_mixed_upper(family: DiscreteFamily, goal: float, *, stop: bool) -> float:
    """Ball upper bound over mixed cases; the continuous analysis only proposes how to cut them into blocks."""
    noise, epsilon = family.noise.continuous(), float(family.epsilon.mid())
    blocks = mixed_blocks(noise, family.contract, epsilon=epsilon, enough=goal, relative=0.0, growth=4.0)
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
