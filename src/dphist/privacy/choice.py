"""Two steps in a row: noisy sizes choose a cap, and a release with that cap follows.

Which release it is depends on the noise of the first step, so the second may be the worst one for every value of
it: its privacy profile is the upper envelope of the profiles of all that could follow.
Proof: docs/theory/choice.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

from flint import arb, fmpq

from dphist.errors import InvalidParameter
from dphist.privacy import balls
from dphist.privacy.balls import tail
from dphist.privacy.certificate import certify_noise
from dphist.privacy.lattice import bits_for
from dphist.privacy.types import Contract, LaplaceNoise, LatticeNoise

# An epsilon, which may be negative, and an upper bound of delta there.
Node = tuple[float, float]


def delta_profile_upper(noise: LatticeNoise | LaplaceNoise, contract: Contract, *, epsilon: float) -> float:
    """delta of a plan at any epsilon, as a certified upper bound; below zero from that above it.

        1 - e^x + e^x delta(-x)     for x = epsilon < 0

    Laplace noise has a certificate from m/scale on. Below it the bound is the chord in e^x between -m/scale and
    m/scale: delta0 + (1 - delta0) (e^(m/scale) - e^x)/(1 + e^(m/scale)), which any (m/scale, delta0)-private
    release keeps.

    Guarantee: an upper bound in ball arithmetic of the hockey-stick divergence of neighbours, in both orders.
    Valid for: any finite epsilon.
    Source: beyond the paper; for Laplace noise Kairouz, Oh and Viswanath 2015.
    """
    if epsilon < 0.0:
        return at_any_epsilon(lambda x: delta_profile_upper(noise, contract, epsilon=x), epsilon)
    if isinstance(noise, LaplaceNoise):
        pure = _pure_epsilon(noise, contract)
        if epsilon < pure:
            least = certify_noise(noise, contract, epsilon=pure).delta
            with balls.precision(bits_for(least)):
                most = arb(pure).exp()
                return min(1.0, balls.upper(least + (1 - arb(least)) * (most - arb(epsilon).exp()) / (1 + most)))
    return certify_noise(noise, contract, epsilon=epsilon).delta


def at_any_epsilon(delta: Callable[[float], float], epsilon: float) -> float:
    """An upper bound of delta below zero too, from one that holds from zero on for both directions."""
    found = delta(abs(epsilon))
    if epsilon >= 0.0:
        return found
    with balls.precision(128):
        low = arb(epsilon).exp()
        return min(1.0, balls.upper(1 - low + low * arb(found)))


def _pure_epsilon(noise: LaplaceNoise, contract: Contract) -> float:
    """The least double from m/scale on: from there on only new counts spend delta."""
    exact = Fraction(contract.items) / noise.scale
    nearest = float(exact)
    return nearest if Fraction(nearest) >= exact else math.nextafter(nearest, math.inf)


def envelope(profiles: Sequence[Sequence[Node]]) -> list[Node]:
    """The largest of several profiles at each of their nodes, which must be the same, in order of epsilon."""
    points = sorted(x for x, _ in profiles[0]) if profiles else []
    if any(sorted(x for x, _ in profile) != points for profile in profiles):
        raise InvalidParameter("an envelope needs profiles with the same nodes")
    tables = [dict(profile) for profile in profiles]
    return [(x, max(table[x] for table in tables)) for x in points]


def delta_adaptive_upper(variance: Fraction, nodes: Sequence[Node], *, epsilon: float) -> float:
    """delta of both steps: a count with discrete Gaussian noise that moves by one, then what it chooses.

        sum over o of p(o) E(epsilon - L(o)),   p = N_Z(V),   L(o) = ln(p(o)/p(o + 1)) = (2 o + 1)/(2 V)

    E is bounded by chords between the nodes, for it is convex in e^x; by the last node's delta above it, and by
    the chord to (0, 1) below the first one. As p(o) e^(-L(o)) = p(o + 1), the sum of a chord over a cell is one
    of tails.

    Guarantee: an upper bound in ball arithmetic, if each node's delta is at least the divergence of every release
    that may follow, in both orders, at its epsilon.
    Valid for: increasing nodes, any rational variance from 1/16 on.
    Source: beyond the paper; docs/theory/choice.md.
    """
    if not nodes or any(after[0] <= before[0] for before, after in pairwise(nodes)):
        raise InvalidParameter("a profile needs nodes in increasing order of epsilon")
    with balls.precision(bits_for(max(1e-300, min(delta for _, delta in nodes))) + 64):
        spread, whole = arb(fmpq(variance.numerator, variance.denominator)), arb(epsilon).exp()
        # Draws up to this one have an x at or above the node; x falls as the draw grows.
        ends = [_last_draw(x, epsilon, variance) for x, _ in nodes]
        total = arb(nodes[-1][1]) * _between(None, ends[-1], spread)
        corners = [(arb(0), arb(1)), *((arb(x).exp(), arb(delta)) for x, delta in nodes)]
        for (low, high), after, before in zip(pairwise(corners), ends, [None, *ends[:-1]], strict=True):
            # The draws between the upper node, exclusive, and the lower one, inclusive.
            first, last = after + 1, before
            if last is not None and first > last:
                continue
            slope = (high[1] - low[1]) / (high[0] - low[0])
            moved = _between(first + 1, None if last is None else last + 1, spread)
            total += (low[1] - slope * low[0]) * _between(first, last, spread) + slope * whole * moved
        return min(1.0, balls.upper(total))


def _last_draw(x: float, epsilon: float, variance: Fraction) -> int:
    """The largest o with epsilon - (2 o + 1)/(2 V) >= x, exactly."""
    return math.floor((Fraction(epsilon) - Fraction(x)) * variance - Fraction(1, 2))


def _between(first: int | None, last: int | None, variance: arb) -> arb:
    """Pr[first <= o <= last]; None for no bound on that side."""
    above = arb(1) if first is None else tail(first, variance)
    return above if last is None else above - tail(last + 1, variance)
