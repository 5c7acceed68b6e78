"""Ball arithmetic, by Arb through python-flint: numbers with rigorous error bounds.

Doubles enter exactly, every result is an enclosure, and `upper` turns it into a double that is not below it.
The second half is the discrete Gaussian: its normaliser, its tail, and the divergence of a shift.
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

# Arb's precision is global to the process, so one thread at a time may set it. The lock keeps results fast and
# repeatable; they are rigorous at any precision.
_precision_lock = threading.RLock()


def renew_lock() -> None:
    """To be called in a forked child, where the thread that held the lock may not exist."""
    global _precision_lock
    _precision_lock = threading.RLock()


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Compute with `bits` bits inside the block, which may be nested; other threads wait."""
    with _precision_lock:
        before = ctx.prec
        ctx.prec = bits
        try:
            yield
        finally:
            ctx.prec = before


def rational(value: Fraction) -> arb:
    return arb(fmpq(value.numerator, value.denominator))


def upper(ball: arb) -> float:
    """A double that is not below any point of the ball; infinite if the ball is unbounded."""
    end = ball.upper()
    if not end.is_finite():
        return math.inf
    nearest = float(end)
    # The conversion may round down.
    while not (arb(nearest) >= end):
        nearest = math.nextafter(nearest, math.inf)
    return nearest


def bits_for(scale: float) -> int:
    """Precision in bits for deltas of this size."""
    return 128 + int(-1.1 * math.log2(scale))


def normal_cdf(x: arb) -> arb:
    """Phi(x), with relative accuracy in the lower tail."""
    return (-x / arb(2).sqrt()).erfc() / 2


def hockey_stick_normal(mu: arb, epsilon: arb) -> arb:
    """Hockey-stick divergence of N(mu, 1) from N(0, 1) at e^epsilon, for mu > 0."""
    ratio = epsilon / mu
    return normal_cdf(mu / 2 - ratio) - epsilon.exp() * normal_cdf(-mu / 2 - ratio)


def integral(function: Callable[[acb, bool], acb], low: arb, high: arb, *, absolute: float) -> arb:
    """Enclosure of the integral of an analytic function that is real on the real line."""
    raised: list[BaseException] = []

    def evaluate(x: acb, analytic: bool) -> acb:
        # The integrator's C code would lose an exception, such as an interrupt.
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


def midpoint_coefficient(order: int) -> fmpq:
    """Coefficient of f^(order) in the midpoint Euler-Maclaurin formula: -B_n(1/2)/n! for n = order + 1."""
    n = order + 1
    return -(fmpq(2, 2**n) - 1) * fmpq.bernoulli(n) / fmpz.fac_ui(n)


def theta_excess(variance: arb) -> arb:
    """Bound of 2 e^(-2 pi^2 V) + 2 e^(-8 pi^2 V) + ...: the distance of a sum over the integers from its integral.

    By Poisson summation the sum of e^(-(x - c)^2/(2V)) over integers x is sqrt(2 pi V) (1 + 2 sum over k >= 1
    of cos(2 pi k c) e^(-2 pi^2 k^2 V)), for every c.
    """
    first = (-2 * arb.pi() ** 2 * variance).exp()
    # Not a power: its logarithm has no value if the ball of a tiny number reaches below 0.
    return 2 * first / (1 - first * first * first)


def upper_factor(spread: arb, sums: int = 1) -> arb:
    """Bound of the factor by which so many sums of this spread exceed discrete Gaussians.

    One sum is above a discrete Gaussian by at most (1 + theta)(1 + theta') <= (1 + theta)^2 <= e^(2 theta), since
    the normaliser is never below its integral and the sum's own spread is larger. We use e^(4 theta).
    """
    return (4 * sums * theta_excess(spread)).exp()


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
        # Negligible at this precision: a rough enclosure is enough.
        return _tail_by_convexity(n, variance)
    coefficients, remainder_factor = _euler_maclaurin(ctx.prec)
    corrections, previous, current, step = arb(0), arb(1), t, 1 / deviation
    for order in range(1, 2 * _TERMS):
        if order % 2 == 1:
            corrections -= coefficients[order // 2] * current * step
            step /= variance
        previous, current = current, t * current - order * previous
    value = normal_cdf(-t) + density * corrections / deviation
    remainder = remainder_factor * normal_cdf(-t / arb(2).sqrt()) / deviation ** (2 * _TERMS)
    if not remainder < value * arb(2) ** -40:
        # Far out the remainder decreases more slowly than the tail, but there the terms may decrease fast.
        return _tail_by_terms(n, variance) if deviation < _TERMS_BELOW * t else _tail_by_convexity(n, variance)
    ratio = (2 * arb.pi() * variance).sqrt() / normaliser(variance)
    return (value + (-remainder).union(remainder)) * ratio


def _tail_by_convexity(n: int, variance: arb) -> arb:
    """Between the integrals from n and from n - 1/2, as the density is convex beyond one deviation."""
    deviation = variance.sqrt()
    least, most = normal_cdf(-arb(n) / deviation), normal_cdf((arb(0.5) - n) / deviation)
    return least.union(most) * ((2 * arb.pi() * variance).sqrt() / normaliser(variance))


@cache
def _euler_maclaurin(_bits: int) -> tuple[tuple[arb, ...], arb]:
    """The coefficients of odd orders, and a factor of the remainder, at the current precision.

    |R| <= 4 zeta(N)/(2 pi)^N times the integral of |f^(N)| from t on, N = 20, and Cramer's inequality
    |He_N(t)| <= 1.0865 sqrt(N!) e^(t^2/4).
    """
    coefficients = tuple(arb(midpoint_coefficient(order)) for order in range(1, 2 * _TERMS, 2))
    order = 2 * _TERMS
    constant = arb("4.1") * arb("1.0865") * arb(math.factorial(order)).sqrt() / (2 * arb.pi()) ** order
    return coefficients, constant * arb(2).sqrt()


def _tail_by_terms(n: int, variance: arb) -> arb:
    """The sum, with a geometric series as the bound of the terms left out."""
    total, nothing, x = arb(0), arb(2) ** -(ctx.prec + 8), n - 1
    for term in islice(weights_from(n, 1, variance), 10_002):
        total, x = total + term, x + 1
        if term < total * nothing:
            break
    ratio = (-arb(x) / variance).exp()
    return (total + arb(0).union(term * ratio / (1 - ratio))) / normaliser(variance)


def weights_from(start: int, step: int, variance: arb) -> Iterator[arb]:
    """e^(-x^2/(2V)) for x = start, start + step, ..., by recurrence."""
    weight = (-(arb(start) ** 2) / (2 * variance)).exp()
    ratio, bend = (-arb((2 * start + step) * step) / (2 * variance)).exp(), (-(step**2) / variance).exp()
    while True:
        yield weight
        weight, ratio = weight * ratio, ratio * bend


def shift_divergence(*, variance: arb, shift: int, epsilon: arb) -> arb:
    """Enclosure of the hockey-stick divergence of X from X - shift at e^epsilon, X a discrete Gaussian.

        Pr[X >= n] - e^epsilon Pr[X >= n + shift],  n the least integer with (2 n + shift) shift > 2 epsilon V

    If the balls do not determine n, its neighbours are tried: the divergence is the maximum over all n.
    """
    turn = (epsilon * variance - arb(shift) ** 2 / 2) / shift
    below = turn.floor().unique_fmpz()
    middle = int(turn.mid().floor().unique_fmpz())
    if not turn.rad() < 1:
        return arb(1)  # too imprecise to know the neighbours
    worst = arb(0)
    for n in (middle, middle + 1, middle + 2) if below is None else (int(below) + 1,):
        worst = worst.max(tail(n, variance) - epsilon.exp() * tail(n + shift, variance))
    return worst
