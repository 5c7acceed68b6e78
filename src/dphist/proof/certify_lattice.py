"""Certificates of noise on a lattice: also with an offset, for a top-k step, and for public lists."""

from __future__ import annotations

import math

from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise, NeighbourCase, Proof
from dphist.proof import balls
from dphist.proof.balls import bits_for
from dphist.proof.exact import delta_family, mixed_blocks, worst_changed
from dphist.proof.lattice import DiscreteFamily, TopKFamily, contract_of_new


def lattice_family(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, scale: float, budget: float = math.inf
) -> DiscreteFamily:
    kind = DiscreteFamily if noise.offset == "none" else TopKFamily
    return kind(noise, contract, epsilon=epsilon, scale=scale, budget=budget)


def certify_lattice(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Proof:
    """Proof of a plan on a lattice: a rigorous upper bound of delta.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals of `noise`. If it exceeds a
    given `budget` it may be 1, as the work stops at the first case above the budget.
    Valid for: epsilon >= 0; variances of at least 4 steps.
    Source: beyond the paper; tighter than `theorem:discrete-cor-GSHM`.
    """
    if epsilon < 0.0:
        raise InvalidParameter(f"epsilon must be at least 0, not {epsilon!r}")
    hidden = contract_of_new(noise, contract)
    items = hidden.items
    scale = min(0.5, max(1e-300, delta_family(noise.continuous(), hidden, epsilon=epsilon).delta))
    with balls.precision(bits_for(scale)):
        most = math.inf if budget is None else budget
        family = lattice_family(noise, contract, epsilon=epsilon, scale=scale, budget=most)
        gaussian = balls.upper(family.gaussian_worst(0))
        if gaussian > most:
            return Proof(epsilon, 1.0, "exact-discrete", _worst_without_new(noise, contract), 0.0)
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
    return Proof(epsilon, min(1.0, delta), "exact-discrete", case, min(1.0, delta, balls.upper(event)))


def certify_known_domain(
    noise: LatticeNoise, contract: Contract, *, epsilon: float, budget: float | None = None
) -> Proof:
    """Proof of discrete correlated noise on a public list of `max_nonzero` items: no item is ever new.

    Guarantee: `delta` is an upper bound in ball arithmetic, for the exact rationals of `noise`. If it exceeds a
    given `budget` it may be 1.
    Valid for: epsilon >= 0.
    Source: `alg:discrete-correlated-gaussian`, beyond `lem:discrete-cor-privacy`.
    """
    with balls.precision(256):
        most = math.inf if budget is None else budget
        family = DiscreteFamily(noise, contract, epsilon=epsilon, scale=1e-16, budget=most)
        delta = min(1.0, balls.upper(family.gaussian_worst(0)))
    return Proof(epsilon, delta, "exact-discrete", _worst_without_new(noise, contract), 0.0)


def _worst_without_new(noise: LatticeNoise, contract: Contract) -> NeighbourCase:
    """The worst neighbours without new counts: under a limit, in a top-k step, most counts fall."""
    numbers = {"shared": contract.nonzero, "most": float(contract.items), "gamma": noise.gamma}
    below, _ = worst_changed(extra=float(noise.extra), **numbers)
    limit = None if noise.offset == "none" else contract.user_limit
    changed = below if limit is None else contract.nonzero - limit + 1
    return NeighbourCase(contract.nonzero, 0, int(changed), "either")


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
        if (stop and worst > goal) or family.is_exhausted:
            return math.inf
    return worst
