"""Searches for the least number that passes, and rounding up. Proofs need none of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal
from fractions import Fraction

from dphist.errors import NoPlan

_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def round_up(value: float, digits: int = 10) -> float:
    """`value` rounded up to `digits` significant decimal digits, as a double that is not below it."""
    context = Context(prec=digits, rounding=ROUND_CEILING)
    rounded = float(context.create_decimal(Decimal(value)))
    # The decimal is at least `value`, but the double nearest to it may be slightly below.
    return rounded if rounded >= value else math.nextafter(rounded, math.inf)


def fraction_up(value: Fraction) -> float:
    """The least double that is at least `value`."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def log_excess(value: float, target: float) -> float:
    """log(value/target), nearly linear for secant steps, with the sign of the exact comparison."""
    if value <= 0.0:
        return -1e3
    log_ratio = math.log(value) - math.log(target)
    return min(log_ratio, 0.0) if value <= target else max(log_ratio, 1e-300)


def least_passing(excess: Callable[[float], float], start: float, *, relative: float = 1e-13) -> float:
    """The least x > 0 with excess(x) <= 0, for an excess that decreases in x.

    Guarantee: the returned x was tested and passed; about x (1 - relative) was tested and failed.
    """
    low, high = 0.0, start
    f_low, f_high = math.nan, excess(high)
    while f_high > 0.0:
        low, f_low = high, f_high
        high *= 2.0
        if not math.isfinite(high):
            raise NoPlan(
                "no noise or threshold is large enough for this privacy budget; increase epsilon or delta"
            )
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
        # A secant step inside the bracket, or bisection after three moves of the same end.
        trial, spread, step = low + (high - low) / 2.0, f_low - f_high, 0.25 * relative * high
        if abs(side) < 3 and math.isfinite(spread) and spread > 0.0:
            # Aim slightly beyond the root, so that both ends of the bracket approach it.
            aim = low + (high - low) * f_low / spread
            aim += step if side >= 0 else -step
            trial, side = (aim, side) if low + step < aim < high - step else (trial, 0)
        else:
            side = 0
        f_trial = excess(trial)
        if f_trial > 0.0:
            low, f_low = trial, f_trial
            side = side + 1 if side > 0 else 1
        else:
            high, f_high = trial, f_trial
            side = side - 1 if side < 0 else -1
    return high


def least_whole_passing(excess: Callable[[int], float], start: int) -> int:
    """The least whole n >= 1 with excess(n) <= 0, for an excess that decreases in n.

    Guarantee: the returned n was tested and passed; n - 1 is 0 or was tested and failed.
    """
    low, high, trial = 0, 0, start  # high = 0: nothing has passed yet
    before, f_before, tests = start, 0.0, 0
    while True:
        f_trial, tests = excess(trial), tests + 1
        low, high = (low, trial) if f_trial <= 0.0 else (trial, high)
        if high == low + 1:
            return high
        slope = (f_trial - f_before) / (trial - before) if tests > 1 else 0.0
        if tests == 1:
            # The neighbour often ends the search; otherwise it gives the slope.
            aim = trial - 1 if f_trial <= 0.0 else trial + 1
        elif tests < 12 and -math.inf < slope < 0.0:
            aim = math.ceil(trial - f_trial / slope)
        else:
            aim = (low + high) // 2 if high else 2 * low
        before, f_before = trial, f_trial
        trial = max(low + 1, min(aim, high - 1 if high else 2 * low))


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
