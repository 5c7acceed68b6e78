"""Searches that return a value which was itself tested and passed, and roundings to the safe side.

Also the maximum of a function of one integer from upper bounds on blocks of it (branch and bound).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dphist.errors import NoPlan

# Searches that return a value which was itself tested and passed, and roundings to the safe side.

_MOST_SECANTS: Final = 12
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


def least_whole_passing(excess: Callable[[int], float], start: int) -> int:
    """The least whole n >= 1 with excess(n) <= 0, for an excess that falls as n grows.

    Guarantee: the returned n was tested and passed, and n - 1 is 0 or did not. Secant steps need few tests if the
    excess is nearly a line and `start` is near; after some of them the bracket is halved.
    """
    low, high, trial = 0, 0, start  # a high of 0: nothing has passed yet
    before, f_before, tests = start, 0.0, 0
    while True:
        f_trial, tests = excess(trial), tests + 1
        low, high = (low, trial) if f_trial <= 0.0 else (trial, high)
        if high == low + 1:
            return high
        slope = (f_trial - f_before) / (trial - before) if tests > 1 else 0.0
        if tests == 1:
            # A neighbour: often that is the end, otherwise it gives the slope.
            aim = trial - 1 if f_trial <= 0.0 else trial + 1
        elif tests < _MOST_SECANTS and -math.inf < slope < 0.0:
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


IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BlockBound = Callable[[IntArray, IntArray], FloatArray]

_PIECES: Final = 4
_MOST_ROUNDS: Final = 64
_MOST_BLOCKS_A_ROUND: Final = 4096


@dataclass(frozen=True)
class Blocks:
    """A partition of the integers first..last into blocks, each with a valid upper bound."""

    first: IntArray
    last: IntArray
    upper: FloatArray

    @property
    def maximum(self) -> float:
        """An upper bound of the function everywhere."""
        return float(self.upper.max()) if self.upper.size else 0.0

    @property
    def argument(self) -> int:
        """The first integer of the block with the largest bound."""
        return int(self.first[int(self.upper.argmax())])


def _geometric_partition(first: int, last: int, growth: float) -> tuple[IntArray, IntArray]:
    """Blocks that are single at both ends and grow geometrically towards the middle."""
    steps = np.unique(np.floor(growth ** np.arange(0, 2 + int(np.log(last - first + 2) / np.log(growth)))))
    offsets = steps.astype(np.int64) - 1
    middle = first + (last - first) // 2
    left = first + offsets
    right = last + 1 - offsets
    starts = np.unique(np.concatenate([left[left <= middle], right[(right > middle) & (right <= last)]]))
    return starts, np.concatenate([starts[1:] - 1, np.array([last], dtype=np.int64)])


def _split(first: IntArray, last: IntArray) -> tuple[IntArray, IntArray]:
    """Each block cut into up to four, none of them empty."""
    cuts = [first + (last - first + 1) * piece // _PIECES for piece in range(_PIECES + 1)]
    starts = np.concatenate(cuts[:-1])
    ends = np.concatenate(cuts[1:]) - 1
    filled = starts <= ends
    return starts[filled], ends[filled]


def bound_over_blocks(
    upper: BlockBound,
    first: int,
    last: int,
    *,
    enough: float,
    relative: float = 1e-7,
    growth: float = 1.5,
) -> Blocks:
    """Partition first..last until no block's bound exceeds what matters.

    A block is left alone when its bound is at most `enough` (the caller knows of a case as bad), or within
    `relative` of the largest value known to be attained, or when it is a single integer.
    Guarantee: every returned bound is valid, whatever stopped the refinement.
    """
    starts, ends = _geometric_partition(first, last, growth)
    values = upper(starts, ends)
    done: list[tuple[IntArray, IntArray, FloatArray]] = []
    attained = enough
    for _ in range(_MOST_ROUNDS):
        single = starts == ends
        if single.any():
            attained = max(attained, float(values[single].max()))
        final = single | (values <= max(enough, attained * (1.0 + relative)))
        done.append((starts[final], ends[final], values[final]))
        starts, ends, values = starts[~final], ends[~final], values[~final]
        if not starts.size or starts.size > _MOST_BLOCKS_A_ROUND:
            break
        starts, ends = _split(starts, ends)
        values = upper(starts, ends)
    done.append((starts, ends, values))
    first_all, last_all, upper_all = (np.concatenate(part) for part in zip(*done, strict=True))
    return Blocks(first=first_all, last=last_all, upper=upper_all)
