"""Ball arithmetic: numbers with rigorous error bounds, by Arb through python-flint.

Doubles enter exactly; every result is an enclosure, and `upper` turns one into a double that is not below it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flint import acb, arb, ctx

BallFunction = Callable[[acb, bool], acb]


# Arb's precision belongs to the process, not to a thread: one block at a time. Blocks may nest.
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

    def guarded(x: acb, analytic: bool) -> acb:
        # An exception, such as an interrupt, must not be lost in the integrator's C code.
        try:
            return acb("nan") if raised else function(x, analytic)
        except BaseException as error:
            raised.append(error)
            return acb("nan")

    value = acb.integral(guarded, acb(low), acb(high), abs_tol=arb(absolute), rel_tol=arb(2) ** -ctx.prec)
    if raised:
        raise raised[0]
    return value.real
