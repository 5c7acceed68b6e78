"""Certificates: upper bounds of delta in ball arithmetic that hold whatever the doubles did.

First the family with continuous noise, where doubles only propose how to partition the mixed cases; then the noise
that is drawn: lattices, top-k steps with an offset, public lists, Laplace.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from flint import acb, arb

from dphist.errors import InvalidParameter
from dphist.privacy import balls, exact
from dphist.privacy.exact import (
    block_offsets,
    delta_family,
    delta_of_case,
    gaussian_case,
    mixed_blocks,
    sum_bound,
    worst_changed,
)
from dphist.privacy.laplace import certify_discrete_laplace
from dphist.privacy.lattice import DiscreteFamily, TopKFamily, bits_for
from dphist.privacy.search import Blocks
from dphist.privacy.spread import WeightedFamily, at_level
from dphist.privacy.types import (
    Certificate,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    NeighbourCase,
    Noise,
    PublicNoise,
)

# The certificate: an upper bound of delta in ball arithmetic that holds whatever the doubles did.
#
# The doubles only propose how to partition the mixed cases; every number that the verdict rests on is a ball.

# How far above the fast value the certificate may end, relatively, where mixed neighbours are the worst.
CERTIFICATE_GAP: Final = 2e-6
# Doubles are trusted to this when they propose a partition; a wrong proposal costs time, not privacy.
_DOUBLE_ERROR: Final = 1e-11
# The lower bound beside the certificate is in doubles, right to this.
_LOWER_ERROR: Final = 1e-7
# Deltas are computed to many digits down to this.
_SMALLEST: Final = 1e-40
_CHORD_LADDER: Final = (150, 600, 2400, 9600)


class BallFamily:
    """The family's bounds as balls, for one plan and one epsilon."""

    def __init__(
        self, noise: Noise, contract: Contract, *, epsilon: float, scale: float, budget: float | None
    ) -> None:
        if noise.extra > 0.0:
            raise InvalidParameter("sums are certified for discrete noise, the noise that is drawn")
        self.noise, self.contract, self.epsilon, self.budget = noise, contract, epsilon, budget
        self.scale = min(max(scale, 1e-300), 1.0)
        self.bits = 96 + int(-1.1 * math.log2(self.scale))
        self.sigma, self.shared, self.tau = arb(noise.sigma), arb(noise.sigma_shared), arb(noise.tau)

    def infinite_event(self, count: int) -> arb:
        """Upper enclosure of the probability that some of `count` new counts passes."""
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
            # s - s^2/(gamma + j) with gamma = sigma^2/sigma_shared^2, all from the drawn values.
            squared -= s * s / (self.sigma**2 * ((self.sigma / self.shared) ** 2 + arb(int(shared))))
        return balls.hockey_stick_normal(squared.sqrt(), arb(self.epsilon))

    def gaussian_worst(self, new: int) -> arb:
        """The largest Gaussian delta when at least `new` of the user's counts are new ones.

        The integers next to the real maximum, one further on each side: rounding of gamma cannot hide one.
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
        """`sum_bound` for a block of mixed cases."""
        return balls.upper(self.infinite_event(last) + self.gaussian_worst(first))

    def offset_block(self, first: int, last: int, goal: float) -> float:
        """The offset bound for a block of mixed cases, with more and more chords until it is below goal."""
        ends = np.array([first], dtype=np.int64), np.array([last], dtype=np.int64)
        worst = 0.0
        for j, r, s, a in block_offsets(self.noise, self.contract, *ends):
            case = exact.Case(
                shared=float(j[0]), new=int(r[0]), changed=int(s[0]), offset=float(a[0]),
                sigma=self.noise.sigma, sigma_shared=self.noise.sigma_shared, tau=self.noise.tau,
                epsilon=self.epsilon, scale=self.scale,
            )  # fmt: skip
            # Each offset covers its own side of s: the block is bounded only by both together.
            worst = max(worst, _enough_chords(case, goal))
        return worst


def _enough_chords(case: exact.Case, goal: float) -> float:
    """The chord bound with more and more chords, until it is below goal or clearly never will be."""
    bound = math.inf
    for count in _CHORD_LADDER:
        finer = exact.offset_bound_upper(case, count)
        # The excess falls by 16 from step to step: where that leaves it above goal, stop.
        hopeless = math.isfinite(bound) and finer - (bound - finer) / 15.0 > goal * (1.0 + 1e-9)
        bound = min(bound, finer)
        if bound <= goal or hopeless:
            break
    return bound


def certify_family(
    noise: Noise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of the family at epsilon: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very doubles of `noise`. Where it exceeds
    a given `budget` it may be 1, for the work stops at the first case that does.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    fast = delta_family(noise, contract, epsilon=epsilon)
    goal = fast.delta * (1.0 + CERTIFICATE_GAP)
    if budget is not None and fast.delta <= budget:
        goal = min(goal, budget)
    family = BallFamily(noise, contract, epsilon=epsilon, scale=fast.delta, budget=budget)
    with balls.precision(family.bits):
        delta = max(
            balls.upper(family.gaussian_worst(0)),
            balls.upper(family.infinite_event(contract.items)),
            _mixed_upper(family, goal),
        )
    attained = delta_of_case(fast.case, noise, epsilon=epsilon, smallest=family.scale)
    if attained > delta * (1.0 + _LOWER_ERROR):
        raise ArithmeticError(f"the certificate {delta!r} is below the exact delta {attained!r} of {fast.case}")
    return Certificate(
        epsilon=epsilon,
        delta=min(1.0, delta),
        analysis="exact",
        binding_case=fast.case,
        delta_lower=min(delta, attained),
    )


def certify_correlated_gaussian(noise: Noise, contract: Contract, *, epsilon: float) -> Certificate:
    """Certificate of continuous correlated noise on a known domain of `max_nonzero` keys: no key is ever new.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very doubles of `noise`; exact but for
    rounding.
    Valid for: epsilon >= 0. The tau of `noise` plays no part.
    Source: `lem:restated-Leb24-for-approx` with the exact sensitivity over whole numbers of changed counts.
    """
    fast = gaussian_case(noise, contract, epsilon=epsilon)
    family = BallFamily(noise, contract, epsilon=epsilon, scale=fast.delta, budget=None)
    with balls.precision(family.bits):
        delta = min(1.0, balls.upper(family.gaussian_worst(0)))
    return Certificate(epsilon, delta, "exact", fast.case, min(delta, fast.delta))


def _mixed_upper(family: BallFamily, goal: float) -> float:
    """Ball upper bound over all mixed cases 0 < r < m."""
    noise, contract, epsilon = family.noise, family.contract, family.epsilon
    if contract.items < 2:
        return 0.0
    enough = goal * (1.0 - _DOUBLE_ERROR)
    blocks: Blocks = mixed_blocks(noise, contract, epsilon=epsilon, enough=enough, relative=0.0, growth=4.0)
    sums = sum_bound(noise, contract, blocks.first, blocks.last, epsilon=epsilon, smallest=family.scale)
    worst = 0.0
    for first, last, by_sum in zip(blocks.first.tolist(), blocks.last.tolist(), sums.tolist(), strict=True):
        bound = family.sum_block(first, last) if by_sum <= enough else math.inf
        if bound > goal:
            bound = min(bound, family.offset_block(first, last, goal))
        worst = max(worst, bound)
        if family.budget is not None and worst > family.budget:
            return math.inf  # refused, and the blocks that are left were not looked at
    return worst


def certify_noise(
    noise: LatticeNoise | LaplaceNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of any noise that can be drawn.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`.
    """
    if isinstance(noise, LaplaceNoise):
        if contract.spread is not None:
            raise InvalidParameter("Laplace noise cannot be combined with spread, which bounds squared lengths")
        return certify_discrete_laplace(noise.scale, noise.limit, contract, epsilon=epsilon)
    if contract.spread is not None:
        return certify_spread(noise, contract, epsilon=epsilon, budget=budget)
    if isinstance(noise, PublicNoise):
        return certify_known_domain(noise, contract, epsilon=epsilon)
    return certify_lattice(noise, contract, epsilon=epsilon, budget=budget)


def certify_spread(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of a plan in which users with many items add less to each: the worst of all levels.

    Without shared noise one bound serves all levels; with it, each level is certified by itself.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`.
    Valid for: epsilon >= 0; no top-k step.
    Source: beyond the paper; docs/theory/spread.md.
    """
    if noise.offset != "none":
        raise InvalidParameter("a top-k step needs whole counts: it cannot be combined with spread")
    if epsilon < 0.0:
        raise InvalidParameter(f"epsilon must not be negative, not {epsilon!r}")
    if noise.variance_shared > 0:
        return _certify_each_level(noise, contract, epsilon=epsilon, budget=budget)
    bits = bits_for(_SMALLEST if budget is None else min(_SMALLEST, budget))
    with balls.precision(bits):
        family, at = _weighted_family(noise, contract, bits), arb(epsilon)
        delta, event = family.delta(at, budget), balls.upper(family.event)
        case = family.binding_case(at, contract.items)
    return Certificate(epsilon, delta, "exact-discrete", case, min(delta, event))


@lru_cache(maxsize=256)
def _weighted_family(noise: LatticeNoise, contract: Contract, _bits: int) -> WeightedFamily:
    """The bounds of one plan, made once for all epsilons at a precision, the one that is set."""
    return WeightedFamily.of([(noise, contract)])


def _certify_each_level(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None
) -> Certificate:
    """The certificate of the worst level."""
    found = []
    for level in contract.levels(noise.lattice):
        own, bounds = at_level(noise, contract, level)
        certificate = certify_noise(own, bounds, epsilon=epsilon, budget=budget)
        weight = Fraction(level.weight, noise.lattice)
        found.append(replace(certificate, binding_case=replace(certificate.binding_case, weight=weight)))
        if budget is not None and certificate.delta > budget:
            break
    return max(found, key=lambda one: one.delta)


def lattice_family(noise: LatticeNoise, contract: Contract, *, epsilon: float, scale: float) -> DiscreteFamily:
    """The bounds that fit the noise: with or without the offset of a top-k step."""
    kind = DiscreteFamily if noise.offset == "none" else TopKFamily
    return kind(noise, contract, epsilon=epsilon, scale=scale)


def certify_lattice(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of a plan on a lattice: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`. Where it exceeds
    a given `budget` it may be 1, for the work stops at the first case that does.
    Valid for: epsilon >= 0; variances of at least 4 steps.
    Source: beyond the paper; `theorem:discrete-cor-GSHM` is its looser relative.
    """
    if epsilon < 0.0:
        raise InvalidParameter(f"epsilon must not be negative, not {epsilon!r}")
    items = contract.items
    scale = min(0.5, max(1e-300, delta_family(noise.continuous(), contract, epsilon=epsilon).delta))
    with balls.precision(bits_for(scale)):
        family = lattice_family(noise, contract, epsilon=epsilon, scale=scale)
        gaussian = balls.upper(family.gaussian_worst(0))
        # With all counts new nothing is shared but the offset of a top-k step, if there is one. Without that it
        # is what the neighbours with new counts alone come to: a lower bound.
        event = family.infinite_event(items)
        infinite = balls.upper(event + family.gaussian_worst(items))
        delta = max(gaussian, infinite)
        if items > 1 and delta < 1.0:
            goal = delta if budget is None else max(delta, budget)
            delta = max(delta, _discrete_mixed_upper(family, goal, stop=budget is not None))
    below, _ = worst_changed(
        shared=contract.nonzero, most=float(items), gamma=noise.gamma, extra=float(noise.extra)
    )
    case = (
        NeighbourCase(contract.nonzero, 0, int(below), "either")
        if gaussian >= infinite
        else NeighbourCase(contract.nonzero - items, items, 0, "add")
    )
    return Certificate(epsilon, min(1.0, delta), "exact-discrete", case, min(1.0, delta, balls.upper(event)))


def certify_known_domain(noise: LatticeNoise, contract: Contract, *, epsilon: float) -> Certificate:
    """Certificate of discrete correlated noise on a known domain of `max_nonzero` keys: no key is ever new.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`.
    Valid for: epsilon >= 0.
    Source: `alg:discrete-correlated-gaussian`, beyond `lem:discrete-cor-privacy`.
    """
    below, _ = worst_changed(
        shared=contract.nonzero, most=float(contract.items), gamma=noise.gamma, extra=float(noise.extra)
    )
    with balls.precision(256):
        family = DiscreteFamily(noise, contract, epsilon=epsilon, scale=1e-16)
        delta = min(1.0, balls.upper(family.gaussian_worst(0)))
    case = NeighbourCase(contract.nonzero, 0, int(below), "either")
    return Certificate(epsilon, delta, "exact-discrete", case, 0.0)


def _discrete_mixed_upper(family: DiscreteFamily, goal: float, *, stop: bool) -> float:
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
