"""The Laplace stability histogram: the classic for users with one item, and a rival when m is small."""

from __future__ import annotations

import math
from fractions import Fraction

from flint import arb, fmpq

from dphist.errors import NotPrivate
from dphist.privacy import balls
from dphist.privacy.types import Certificate, Contract, NeighbourCase


def infinite_event_laplace(*, m: int, scale: float, tau: float) -> float:
    """Probability that one of m new counts passes under continuous Laplace noise.

        1 - (1 - e^(-tau/scale)/2)^m

    Guarantee: exact.
    Valid for: tau >= 0, scale > 0.
    Source: beyond the paper, which cites it as the stability histogram (Korolova et al. 2009).
    """
    return -math.expm1(m * math.log1p(-math.exp(-tau / scale) / 2.0))


def infinite_event_discrete_laplace(*, m: int, scale: float, tau: float) -> float:
    """The same under noise on the integers with probabilities proportional to e^(-|x|/scale).

        1 - (1 - e^(-n/scale)/(1 + e^(-1/scale)))^m,  n = floor(tau) + 1, for a count passes if noise > tau

    Guarantee: exact.
    Valid for: tau >= 0, scale > 0.
    Source: beyond the paper.
    """
    least = math.floor(tau) + 1
    return -math.expm1(m * math.log1p(-math.exp(-least / scale) / (1.0 + math.exp(-1.0 / scale))))


def delta_laplace(*, m: int, scale: float, tau: float, epsilon: float, discrete: bool = False) -> float:
    """Delta of the Laplace stability histogram.

        max of the infinite event and, for m = 1, the hockey-stick divergence of the noise shifted by one:
        (1 - e^((epsilon - 1/scale)/2))_+ continuous,  ((1 - e^(epsilon - 1/scale))/(1 + e^(-1/scale)))_+ discrete

    With scale >= m/epsilon the shared counts lose at most epsilon, so that only new counts spend delta:
    adding a user gives 1 - g(r) <= 1 - g(m), and removing one is bounded by the same.

    Guarantee: exact.
    Valid for: m = 1 with any scale, m > 1 with scale >= m/epsilon; otherwise raises `NotPrivate`.
    Source: beyond the paper.
    """
    event = infinite_event_discrete_laplace if discrete else infinite_event_laplace
    infinite = event(m=m, scale=scale, tau=tau)
    if m / scale <= epsilon:
        return infinite
    if m > 1:
        raise NotPrivate(f"a Laplace scale of {scale!r} is below m/epsilon = {m / epsilon!r} for m = {m}")
    loss = epsilon - 1.0 / scale
    if discrete:
        return max(infinite, -math.expm1(loss) / (1.0 + math.exp(-1.0 / scale)))
    return max(infinite, -math.expm1(loss / 2.0))


def certify_discrete_laplace(scale: Fraction, limit: int, contract: Contract, *, epsilon: float) -> Certificate:
    """Certificate of the discrete Laplace stability histogram whose scale is at least m/epsilon.

    Guarantee: `delta` is an upper bound in ball arithmetic, from the very rational scale; exact up to rounding.
    Valid for: scale >= m/epsilon, compared exactly; otherwise raises `NotPrivate`.
    Source: beyond the paper.
    """
    items = contract.items
    if Fraction(items) > scale * Fraction(epsilon):
        raise NotPrivate(f"a Laplace scale of {scale} is below m/epsilon for m = {items}, epsilon = {epsilon!r}")
    with balls.precision(2048):
        rate = arb(fmpq(scale.denominator, scale.numerator))
        passes = (-(limit + 1) * rate).exp() / (1 + (-rate).exp())
        delta = balls.upper(1 - (1 - passes) ** items)
    case = NeighbourCase(contract.nonzero - items, items, 0, "add")
    return Certificate(epsilon, delta, "laplace", case, math.nextafter(delta, 0.0))


def tau_laplace(*, m: int, scale: float, delta: float, discrete: bool = False) -> float:
    """The least tau at which the infinite event is within delta.

    Guarantee: tested; discrete values are whole numbers.
    Source: the inverse of `infinite_event_laplace`.
    """
    one = -math.expm1(math.log1p(-delta) / m)
    if not discrete:
        tau = max(0.0, -scale * math.log(2.0 * one))
        while infinite_event_laplace(m=m, scale=scale, tau=tau) > delta:
            tau = tau * (1.0 + 1e-14) + scale * 1e-14
        return tau
    least = math.ceil(-scale * math.log(one * (1.0 + math.exp(-1.0 / scale))))
    tau = float(max(0, least - 2))
    while infinite_event_discrete_laplace(m=m, scale=scale, tau=tau) > delta:
        # Beyond 2^53 a step of one is no step.
        tau = max(tau + 1.0, math.nextafter(tau, math.inf))
    return tau
