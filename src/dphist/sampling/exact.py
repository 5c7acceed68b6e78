"""Ball arithmetic as the samplers use it: rationals in, whole-number bounds out, one thread at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from flint import arb, fmpq

from dphist.numerics.balls import precision

_lock = threading.RLock()


def _renew_lock() -> None:
    """Another thread may have held the lock at the moment of the fork, and it does not exist in the child."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


@contextmanager
def ball_bits(bits: int) -> Iterator[None]:
    """Work at `bits` bits inside the block.

    Arb's precision belongs to the whole process, hence the lock. It guards speed and repeatability, not
    exactness: enclosures hold at any precision.
    """
    with _lock, precision(bits):
        yield


def ball(value: Fraction) -> arb:
    """Enclosure of a rational at the current precision."""
    return arb(fmpq(value.numerator, value.denominator))


def floor_scaled(value: arb, bits: int) -> int:
    """A whole number that is not above value * 2^bits, at any precision."""
    with ball_bits(2 * bits + 64):
        return _floor_of_exact(value.lower(), bits)


def ceil_scaled(value: arb, bits: int) -> int:
    """A whole number that is not below value * 2^bits, at any precision."""
    with ball_bits(2 * bits + 64):
        return -_floor_of_exact(-value.upper(), bits)


def _floor_of_exact(value: arb, bits: int) -> int:
    """floor(value * 2^bits) of a ball without radius, in whole numbers alone."""
    mantissa, exponent = (int(part) for part in value.man_exp())
    shift = exponent + bits
    return mantissa << shift if shift >= 0 else mantissa >> -shift
