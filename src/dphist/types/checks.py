"""Checks of single numbers: each error is one sentence with the value."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Final

from dphist.errors import InvalidParameter

SMALLEST_DELTA: Final = 1e-300
LARGEST_EPSILON: Final = 800.0
LARGEST_COUNT: Final = 10**12
SMALLEST_SIZE: Final = 1e-30
LARGEST_SIZE: Final = 1e30


def finite_number(name: str, value: object) -> float:
    """The value as a float, or one sentence saying why not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidParameter(f"{name} is too large for a number: {len(str(value))} digits") from None
    if not math.isfinite(number):
        raise InvalidParameter(f"{name} must be a finite number, not {value!r}")
    return number


def positive_number(name: str, value: object) -> float:
    """The value as a float above zero."""
    number = finite_number(name, value)
    if number <= 0.0:
        raise InvalidParameter(f"{name} must be greater than zero, not {value!r}")
    return number


def sized_number(name: str, value: object) -> float:
    """The value as a float above zero, of a size whose square and ratios stay in range."""
    number = positive_number(name, value)
    if not SMALLEST_SIZE <= number <= LARGEST_SIZE:
        raise InvalidParameter(f"{name} must be between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g}, not {value!r}")
    return number


def positive_count(name: str, value: object) -> int:
    """The value as an integer of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidParameter(f"{name} must be a whole number, not {value!r}")
    count = int(value)
    if not 1 <= count <= LARGEST_COUNT:
        raise InvalidParameter(f"{name} must be between 1 and {LARGEST_COUNT}, not {count}")
    return count
