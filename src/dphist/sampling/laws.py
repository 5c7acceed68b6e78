"""The two laws that are drawn from: symmetric, unimodal, with logarithms that are exact rationals.

Both have Pr[X = x] = peak * exp(-exponent(|x|)) on the integers, where the exponent of a magnitude is a polynomial
of degree at most two with rational coefficients, convex and increasing from 0. Nothing else about them is used.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral, Rational, Real
from typing import Final, Protocol

import numpy as np
from flint import arb, ctx, fmpq
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.privacy.balls import precision

# Ball arithmetic as the samplers use it: rationals in, whole-number bounds out, one thread at a time.

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


LEAST_VARIANCE: Final = Fraction(1, 16)
LARGEST_VARIANCE: Final = Fraction(10**16)

# The tables reach so far that less than 2^-60 of the mass lies beyond them: exp(-41.6) < 2^-60.
_REACH_EXPONENT: Final = 42.5


class SymmetricLaw(Protocol):
    """What the table and its residual need to know of a law."""

    def exponent(self, magnitude: int) -> Fraction:
        """-log(Pr[X = magnitude]/Pr[X = 0])."""
        ...

    def float_exponents(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same in double precision, with a relative error of at most 5 * 2^-53."""
        ...

    def peak(self) -> arb:
        """Enclosure of Pr[X = 0] at the current precision."""
        ...

    def reach(self) -> int:
        """A magnitude beyond which less than 2^-60 of the mass lies."""
        ...


def exact_rational(name: str, value: object, *, least: Fraction, largest: Fraction) -> Fraction:
    """The value as an exact rational within its range, or one sentence saying why not."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(f"{name} must be a rational number, not {value!r}")
    if isinstance(value, Integral):
        exact = Fraction(int(value))
    elif isinstance(value, Rational):
        exact = Fraction(int(value.numerator), int(value.denominator))
    elif math.isfinite(value):
        exact = Fraction(float(value))
    else:
        raise InvalidParameter(f"{name} must be a finite number, not {value!r}")
    if not least <= exact <= largest:
        raise InvalidParameter(f"{name} must be between {least} and {largest}, not {value!r}")
    return exact


@dataclass(frozen=True)
class GaussianLaw:
    """Pr[X = x] proportional to exp(-x^2/(2 variance))."""

    variance: Fraction

    def exponent(self, magnitude: int) -> Fraction:
        """magnitude^2/(2 variance)."""
        return Fraction(magnitude * magnitude) / (2 * self.variance)

    def float_exponents(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Two roundings here and one in the variance's conversion."""
        return np.asarray(magnitudes * magnitudes / float(2 * self.variance), dtype=np.float64)

    def peak(self) -> arb:
        """Enclosure of Pr[X = 0], by Poisson's summation formula.

            1/peak = sum over x of exp(-x^2/(2 v)) = sqrt(2 pi v) * sum over n of exp(-2 pi^2 v n^2)

        Guarantee: an enclosure; the terms left out are enclosed by a geometric series.
        Valid for: variance >= 1/16, where each further term is below 1/3 of the one before.
        Source: Canonne, Kamath and Steinke 2020, Fact 17.
        """
        rate = 2 * arb.pi() ** 2 * ball(self.variance)
        total, n = arb(1), 1
        while float(2 * math.pi**2 * self.variance) * n * n < ctx.prec:
            total += 2 * (-rate * n * n).exp()
            n += 1
        # From n on: at most 2 e^(-rate n^2) (1 + r + r^2 + ...) with r = e^(-rate) < 1/3, so at most 3 times the
        # power, whose ball is widened down to zero.
        total += (3 * (-rate * n * n).exp()).union(arb(0))
        return 1 / (total * (2 * arb.pi() * ball(self.variance)).sqrt())

    def reach(self) -> int:
        """About 9.2 standard deviations."""
        return math.ceil(math.sqrt(2.0 * _REACH_EXPONENT * float(self.variance))) + 1


@dataclass(frozen=True)
class LaplaceLaw:
    """Pr[X = x] proportional to exp(-|x|/scale)."""

    scale: Fraction

    def exponent(self, magnitude: int) -> Fraction:
        """magnitude/scale."""
        return Fraction(magnitude) / self.scale

    def float_exponents(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        """One rounding here and one in the scale's conversion."""
        return np.asarray(magnitudes / float(self.scale), dtype=np.float64)

    def peak(self) -> arb:
        """Enclosure of Pr[X = 0] = (1 - e^(-1/scale))/(1 + e^(-1/scale)) = tanh(1/(2 scale))."""
        return (1 / (2 * ball(self.scale))).tanh()

    def reach(self) -> int:
        """42.5 scales."""
        return math.ceil(_REACH_EXPONENT * float(self.scale)) + 1
