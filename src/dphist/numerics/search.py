"""Searches that return a value which was itself tested and passed, and roundings to the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal

from dphist.errors import NoPlan

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def round_up(value: float, digits: int = 10) -> float:
    """The least double, among those nearest to decimals of `digits` significant digits, that is >= value."""
    context = Context(prec=digits, rounding=ROUND_CEILING)
    rounded = float(context.create_decimal(Decimal(value)))
    # The decimal is at least `value`, but the double nearest to it may lie a hair below.
    return rounded if rounded >= value else math.nextafter(rounded, math.inf)


def log_excess(value: float, target: float) -> float:
    """log(value/target), with the sign of the exact comparison: a secant likes it and no rounding passes."""
    if value <= 0.0:
        return -1e3
    log_ratio = math.log(value) - math.log(target)
    return min(log_ratio, 0.0) if value <= target else max(log_ratio, 1e-300)


def least_passing(excess: Callable[[float], float], start: float, *, relative: float = 1e-13) -> float:
    """The least x > 0 with excess(x) <= 0, for an excess that falls as x grows.

    Guarantee: the returned x was tested and passed; x (1 - relative) or so did not.
    The bracket keeps `low` failing and `high` passing; secant steps inside it make it quick.
    """
    low, high = 0.0, start
    f_low, f_high = math.nan, excess(high)
    while f_high > 0.0:
        low, f_low = high, f_high
        high *= 2.0
        if not math.isfinite(high):
            raise NoPlan("no parameter, however large, satisfies the privacy budget")
        f_high = excess(high)
    while low == 0.0:
        trial = high / 2.0
        if trial == 0.0:
            return high
        f_trial = excess(trial)
        if f_trial > 0.0:
            low, f_low = trial, f_trial
        else:
            high, f_high = trial, f_trial
    side = 0
    while high - low > relative * high:
        trial, side = _next_trial(low, high, f_low, f_high, side, relative)
        f_trial = excess(trial)
        if f_trial > 0.0:
            low, f_low = trial, f_trial
            side = side + 1 if side > 0 else 1
        else:
            high, f_high = trial, f_trial
            side = side - 1 if side < 0 else -1
    return high


def _next_trial(
    low: float, high: float, f_low: float, f_high: float, side: int, relative: float
) -> tuple[float, int]:
    """A secant point kept inside the bracket; bisection after three moves of the same end."""
    middle = low + (high - low) / 2.0
    spread = f_low - f_high
    if abs(side) >= 3 or not math.isfinite(spread) or spread <= 0.0:
        return middle, 0
    # Aim a hair beyond the root, alternately from each side, so that both ends close in.
    step = 0.25 * relative * high
    trial = low + (high - low) * f_low / spread
    trial += step if side >= 0 else -step
    return (trial, side) if low + step < trial < high - step else (middle, 0)


def golden_minimum(
    objective: Callable[[float], float], low: float, high: float, *, tolerance: float
) -> tuple[float, float]:
    """Argument and value of the minimum of a unimodal function on [low, high]."""
    a, b = low, high
    c, d = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    f_c, f_d = objective(c), objective(d)
    while b - a > tolerance:
        if f_c <= f_d:
            b, d, f_d = d, c, f_c
            c = b - _GOLDEN * (b - a)
            f_c = objective(c)
        else:
            a, c, f_c = c, d, f_d
            d = a + _GOLDEN * (b - a)
            f_d = objective(d)
    return (c, f_c) if f_c <= f_d else (d, f_d)
