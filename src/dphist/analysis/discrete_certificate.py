"""Certificates for the noise that is drawn: lattices, top-k with an offset, public lists, Laplace."""

from __future__ import annotations

import math

from dphist.analysis.discrete_family import DiscreteFamily, bits_for
from dphist.analysis.family import delta_family, mixed_blocks
from dphist.analysis.laplace import certify_discrete_laplace
from dphist.analysis.sensitivity import worst_changed
from dphist.analysis.top_k import TopKFamily
from dphist.errors import InvalidParameter
from dphist.numerics import balls
from dphist.types import Certificate, Contract, LaplaceNoise, LatticeNoise, NeighbourCase, PublicNoise


def certify_noise(
    noise: LatticeNoise | LaplaceNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Certificate:
    """Certificate of any noise that can be drawn.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rationals of `noise`.
    """
    if isinstance(noise, LaplaceNoise):
        return certify_discrete_laplace(noise.scale, noise.limit, contract, epsilon=epsilon)
    if isinstance(noise, PublicNoise):
        return certify_known_domain(noise, contract, epsilon=epsilon)
    return certify_lattice(noise, contract, epsilon=epsilon, budget=budget)


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
            delta = max(delta, _mixed_upper(family, goal, stop=budget is not None))
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
