"""The exact privacy of the whole family (sigma, sigma_shared, tau) under a contract (k, m).

Neighbours differ by (j, r, s): j counts are non-zero in both, s of them changed by one, r counts are 1 in one
and 0 in the other; s <= j, j + r <= k, r + s <= m. More shared or more new counts never lower delta, so only
j = k - r matters. Derivation: docs/theory/exact-analysis.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dphist.analysis.infinite_event import infinite_event
from dphist.analysis.offset import OffsetDeltas, offset_bound
from dphist.analysis.sensitivity import largest_squared_sensitivity, squared_sensitivity, worst_changed
from dphist.numerics.blocks import Blocks, IntArray, bound_over_blocks
from dphist.numerics.normal import hockey_stick_normal
from dphist.types import Contract, NeighbourCase, Noise

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class CaseDelta:
    """A value of delta and the neighbours that give it."""

    delta: float
    case: NeighbourCase


def gaussian_case(noise: Noise, contract: Contract, *, epsilon: float) -> CaseDelta:
    """Exact delta when no count is new (r = 0): the Gaussian mechanism at the largest sensitivity.

    Guarantee: exact: neighbours come as near to it as one likes, as their shared counts grow.
    Source: beyond the paper; `lem:standard-gaussian-mechanism` with the exact sensitivity.
    """
    most = float(contract.items)
    there = {"shared": contract.nonzero, "gamma": noise.gamma, "extra": noise.extra}
    squared = float(largest_squared_sensitivity(most=most, **there))
    below, above = worst_changed(most=most, **there)
    candidates = (float(above), float(below))
    changed = max(candidates, key=lambda s: float(squared_sensitivity(changed=s, **there)))
    delta = float(hockey_stick_normal(math.sqrt(squared) / noise.sigma, epsilon))
    return CaseDelta(delta, NeighbourCase(contract.nonzero, 0, int(changed), "either"))


def infinite_case(noise: Noise, contract: Contract, *, smallest: float = 1e-300) -> CaseDelta:
    """Exact delta when a user brings only new counts (r = m): the infinite event.

    Guarantee: exact for every epsilon >= 0, attained by a pair of neighbours.
    Source: beyond the paper; the exact value behind `claim:upperbounddeltainf`.
    """
    items = contract.items
    delta = infinite_event(
        count=items, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau, smallest=smallest
    )
    return CaseDelta(float(delta[0]), NeighbourCase(contract.nonzero - items, items, 0, "add"))


def block_offsets(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray
) -> list[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
    """(j, r, s, a) of the offset bounds that together cover all neighbours with first <= r <= last.

    More shared counts and more new counts dominate, hence j = k - first and r = last. The offset
    a = s/(j + gamma) of the integer s below (1 + extra)(j + gamma)/2 covers all smaller s, that of the next one
    all larger.
    """
    j = contract.nonzero - first.astype(np.float64)
    most = np.minimum(j, contract.items - first.astype(np.float64))
    below, above = worst_changed(shared=j, most=most, gamma=noise.gamma, extra=noise.extra)
    r, span, half = last.astype(np.float64), j + noise.gamma, (1.0 + noise.extra) / 2.0
    # mu^2 is linear in s with slope 1 + extra - 2a: the clamps keep its sign right whatever the division rounded.
    a_below = np.minimum(below / span, half)
    a_above = np.where(above > below, np.maximum(above / span, half), a_below)
    return [(j, r, below, a_below), (j, r, above, a_above)]


def sum_bound(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray, *, epsilon: float, smallest: float
) -> FloatArray:
    """The simplest upper bound for blocks of cases: infinite event plus Gaussian delta.

        Pr[some of r passes] + delta_gaussian(sqrt(max over s of D(j, s)), epsilon),  j = k - first, r = last

    Guarantee: an upper bound in both directions.
    Source: beyond the paper; the idea of `thm:privacy-tighter-analysis` with exact ingredients.
    """
    j = contract.nonzero - first.astype(np.float64)
    most = np.minimum(j, contract.items - first.astype(np.float64))
    squared = largest_squared_sensitivity(shared=j, most=most, gamma=noise.gamma, extra=noise.extra)
    some = infinite_event(
        count=last, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau, smallest=smallest
    )
    return np.asarray(some + hockey_stick_normal(np.sqrt(squared) / noise.sigma, epsilon))


def mixed_blocks_upper(
    noise: Noise, contract: Contract, first: IntArray, last: IntArray, *, epsilon: float, smallest: float
) -> OffsetDeltas:
    """Upper bounds of delta for blocks of mixed cases, by the offset bound."""
    both = [
        offset_bound(
            shared=j, new=r, changed=s, offset=a, sigma=noise.sigma, sigma_shared=noise.sigma_shared,
            tau=noise.tau, epsilon=epsilon, smallest=smallest, extra=noise.extra,
        )
        for j, r, s, a in block_offsets(noise, contract, first, last)
    ]  # fmt: skip
    return OffsetDeltas(
        add=np.maximum(both[0].add, both[1].add), remove=np.maximum(both[0].remove, both[1].remove)
    )


def mixed_blocks(
    noise: Noise,
    contract: Contract,
    *,
    epsilon: float,
    enough: float,
    relative: float = 1e-7,
    growth: float = 1.5,
) -> Blocks:
    """Upper bounds for all mixed cases 0 < r < m, refined as far as they exceed `enough`."""
    smallest = max(enough, 1e-300)

    def upper(first: IntArray, last: IntArray) -> FloatArray:
        bounds = sum_bound(noise, contract, first, last, epsilon=epsilon, smallest=smallest)
        # The offset bound is never larger, but an integral: compute it only where the sum does not do.
        unclear = bounds > enough
        if unclear.any():
            bounds[unclear] = mixed_blocks_upper(
                noise, contract, first[unclear], last[unclear], epsilon=epsilon, smallest=smallest
            ).worst
        return bounds

    return bound_over_blocks(upper, 1, contract.items - 1, enough=enough, relative=relative, growth=growth)


def delta_family(noise: Noise, contract: Contract, *, epsilon: float, relative: float = 1e-7) -> CaseDelta:
    """Delta of the family at epsilon, the maximum over all neighbours and both directions.

    Guarantee: an upper bound (in doubles); exact when the worst case is not mixed. Where it is mixed, as for an
    epsilon small against delta or a small gamma, it was above the exact value by 0.7 % in the median and 10 % at
    worst.
    Valid for: epsilon >= 0.
    Source: beyond the paper, which leaves it open (`sec:conclusion`); docs/theory/exact-analysis.md.
    """
    ends = (
        gaussian_case(noise, contract, epsilon=epsilon),
        infinite_case(noise, contract),
    )
    worst = max(ends, key=lambda end: end.delta)
    if contract.items < 2:
        return worst
    blocks = mixed_blocks(noise, contract, epsilon=epsilon, enough=worst.delta, relative=relative)
    if blocks.maximum <= worst.delta:
        return worst
    return CaseDelta(blocks.maximum, mixed_case(noise, contract, blocks.argument, epsilon=epsilon))


def mixed_case(noise: Noise, contract: Contract, new: int, *, epsilon: float) -> NeighbourCase:
    """The worst neighbours among those with `new` new counts, as the offset bound sees them."""
    one = np.array([new], dtype=np.int64)
    worst: list[tuple[float, NeighbourCase]] = []
    for j, r, s, a in block_offsets(noise, contract, one, one):
        both = offset_bound(
            shared=j, new=r, changed=s, offset=a, sigma=noise.sigma, sigma_shared=noise.sigma_shared,
            tau=noise.tau, epsilon=epsilon, extra=noise.extra,
        )  # fmt: skip
        worst.append((float(both.add[0]), NeighbourCase(float(j[0]), new, int(s[0]), "add")))
        worst.append((float(both.remove[0]), NeighbourCase(float(j[0]), new, int(s[0]), "remove")))
    return max(worst, key=lambda pair: pair[0])[1]
