"""Ball arithmetic: numbers with rigorous error bounds, by Arb through python-flint.

Doubles enter exactly; every result is an enclosure, and `upper` turns one into a double that is not below it.
The second half is the discrete Gaussian in balls: its normaliser, its tail, and the divergence of a shift.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache
from itertools import islice
from typing import Final

from flint import acb, arb, ctx, fmpq, fmpz

BallFunction = Callable[[acb, bool], acb]


# Arb's precision belongs to the process, not to a thread: one block at a time. Blocks may nest. The lock guards
# speed and repeatability, not exactness: enclosures hold at any precision.
_one_at_a_time = threading.RLock()


def renew_lock() -> None:
    """For the child of a fork: another thread may have held the lock, and it does not exist there."""
    global _one_at_a_time
    _one_at_a_time = threading.RLock()


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Work at `bits` bits inside the block; other threads wait."""
    with _one_at_a_time:
        before = ctx.prec
        ctx.prec = bits
        try:
            yield
        finally:
            ctx.prec = before


def rational(value: Fraction) -> arb:
    """A ball around a rational number."""
    return arb(fmpq(value.numerator, value.denominator))


def upper(ball: arb) -> float:
    """A double that is not below any point of the ball; infinite if the ball says nothing."""
    end = ball.upper()
    if not end.is_finite():
        return math.inf
    nearest = float(end)
    # The conversion may round down: step up until the double provably covers the end point.
    while not (arb(nearest) >= end):
        nearest = math.nextafter(nearest, math.inf)
    return nearest


def normal_cdf(x: arb) -> arb:
    """Phi(x), relatively accurate in the lower tail."""
    return (-x / arb(2).sqrt()).erfc() / 2


def hockey_stick_normal(mu: arb, epsilon: arb) -> arb:
    """Hockey-stick divergence of N(mu, 1) from N(0, 1) at e^epsilon, for mu > 0."""
    ratio = epsilon / mu
    return normal_cdf(mu / 2 - ratio) - epsilon.exp() * normal_cdf(-mu / 2 - ratio)


def integral(function: BallFunction, low: arb, high: arb, *, absolute: float) -> arb:
    """Enclosure of the integral of an analytic function that is real on the real line."""
    raised: list[BaseException] = []

    def evaluate(x: acb, analytic: bool) -> acb:
        # An exception, such as an interrupt, must not be lost in the integrator's C code.
        try:
            return acb("nan") if raised else function(x, analytic)
        except BaseException as error:
            raised.append(error)
            return acb("nan")

    value = acb.integral(evaluate, acb(low), acb(high), abs_tol=arb(absolute), rel_tol=arb(2) ** -ctx.prec)
    if raised:
        raise raised[0]
    return value.real


_TERMS: Final = 10
_DIRECT_BELOW_VARIANCE: Final = 400
_TERMS_BELOW: Final = 60


@cache
def midpoint_coefficient(order: int) -> fmpq:
    """Coefficient of f^(order) in the midpoint Euler-Maclaurin formula: -B_n(1/2)/n! for n = order + 1."""
    n = order + 1
    return -(fmpq(2, 2**n) - 1) * fmpq.bernoulli(n) / fmpz.fac_ui(n)


def theta_excess(variance: arb) -> arb:
    """2 e^(-2 pi^2 V) + 2 e^(-8 pi^2 V) + ..., bounded: how far a sum over the integers is from its integral.

    By Poisson summation the sum of e^(-(x - c)^2/(2V)) over integers x is sqrt(2 pi V) (1 + 2 sum over k >= 1
    of cos(2 pi k c) e^(-2 pi^2 k^2 V)), for every c.
    """
    first = (-2 * arb.pi() ** 2 * variance).exp()
    return 2 * first / (1 - first**3)


def normaliser(variance: arb) -> arb:
    """Enclosure of the sum of e^(-x^2/(2V)) over all integers."""
    one = arb(1).union(1 + theta_excess(variance))
    return (2 * arb.pi() * variance).sqrt() * one


def tail(n: int, variance: arb) -> arb:
    """Enclosure of Pr[X >= n] for the discrete Gaussian."""
    if n <= 0:
        return 1 - tail(1 - n, variance)
    if variance < _DIRECT_BELOW_VARIANCE:
        return _tail_by_terms(n, variance)
    deviation = variance.sqrt()
    t = (arb(n) - arb(0.5)) / deviation
    density = (-t * t / 2).exp() / (2 * arb.pi()).sqrt()
    if t > 1 and density < arb(2) ** -ctx.prec:
        # Nothing beside any delta at this precision: a rough enclosure is as good as a fine one.
        return _tail_by_convexity(n, variance)
    corrections, previous, current, step = arb(0), arb(1), t, 1 / deviation
    for order in range(1, 2 * _TERMS):
        if order % 2 == 1:
            corrections -= _midpoint_coefficients(ctx.prec)[order // 2] * current * step
            step /= variance
        previous, current = current, t * current - order * previous
    value = normal_cdf(-t) + density * corrections / deviation
    remainder = _remainder(t, deviation)
    if not remainder < value * arb(2) ** -40:
        # Far out the remainder falls more slowly than the tail; there the terms themselves may fall fast.
        return _tail_by_terms(n, variance) if deviation < _TERMS_BELOW * t else _tail_by_convexity(n, variance)
    ratio = (2 * arb.pi() * variance).sqrt() / normaliser(variance)
    return (value + (-remainder).union(remainder)) * ratio


def _tail_by_convexity(n: int, variance: arb) -> arb:
    """Between two integrals, for f is convex beyond one deviation: from n on, and from half a step before it."""
    deviation = variance.sqrt()
    least, most = normal_cdf(-arb(n) / deviation), normal_cdf((arb(0.5) - n) / deviation)
    return least.union(most) * ((2 * arb.pi() * variance).sqrt() / normaliser(variance))


def _remainder(t: arb, deviation: arb) -> arb:
    """Bound of what Euler and Maclaurin leave out after the terms above, relative to the whole mass.

    |R| <= 4 zeta(N)/(2 pi)^N times the integral of |f^(N)| from t on, N = 20, and Cramer's inequality
    |He_N(t)| <= 1.0865 sqrt(N!) e^(t^2/4).
    """
    return _remainder_factor(ctx.prec) * normal_cdf(-t / arb(2).sqrt()) / deviation ** (2 * _TERMS)


@cache
def _remainder_factor(_bits: int) -> arb:
    """What does not depend on t and the deviation, at the precision that is set."""
    order = 2 * _TERMS
    constant = arb("4.1") * arb("1.0865") * arb(math.factorial(order)).sqrt() / (2 * arb.pi()) ** order
    return constant * arb(2).sqrt()


@cache
def _midpoint_coefficients(_bits: int) -> tuple[arb, ...]:
    """The coefficients of all odd orders, at the precision that is set."""
    return tuple(arb(midpoint_coefficient(order)) for order in range(1, 2 * _TERMS, 2))


def _tail_by_terms(n: int, variance: arb) -> arb:
    """The sum itself; what lies beyond the last term is below a geometric series."""
    total, nothing, x = arb(0), arb(2) ** -(ctx.prec + 8), n - 1
    for term in islice(weights_from(n, 1, variance), 10_002):
        total, x = total + term, x + 1
        if term < total * nothing:
            break
    ratio = (-arb(x) / variance).exp()
    return (total + arb(0).union(term * ratio / (1 - ratio))) / normaliser(variance)


def weights_from(start: int, sign: int, variance: arb) -> Iterator[arb]:
    """e^(-x^2/(2V)) for x = start, start + sign, ..., each from the one before."""
    weight = (-(arb(start) ** 2) / (2 * variance)).exp()
    ratio, bend = (-arb(2 * sign * start + 1) / (2 * variance)).exp(), (-1 / variance).exp()
    while True:
        yield weight
        weight, ratio = weight * ratio, ratio * bend


def shift_divergence(*, variance: arb, shift: int, epsilon: arb) -> arb:
    """Enclosure of the hockey-stick divergence of X from X - shift at e^epsilon, X a discrete Gaussian.

        Pr[X >= n] - e^epsilon Pr[X >= n + shift],  n the least integer with (2 n + shift) shift > 2 epsilon V

    If the balls cannot tell n, the neighbouring n are tried: the divergence is the maximum over all n.
    """
    turn = (epsilon * variance - arb(shift) ** 2 / 2) / shift
    below = turn.floor().unique_fmpz()
    middle = math.floor(float(turn.mid()))
    best = arb(0)
    for n in (middle, middle + 1, middle + 2) if below is None else (int(below) + 1,):
        best = best.max(tail(n, variance) - epsilon.exp() * tail(n + shift, variance))
    return best
