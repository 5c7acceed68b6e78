"""The two noise laws and their tables, which turn nearly every word into a draw with one lookup.

Both laws have Pr[X = x] = peak * exp(-exponent(|x|)) on the integers. The exponent is a polynomial of degree at
most two with rational coefficients, convex and increasing from 0. Nothing else about them is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Rational, Real
from typing import Final, Protocol

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.proof.balls import precision, rational

LEAST_VARIANCE: Final = Fraction(1, 16)

# Less than 2^-60 of the mass is beyond the tables: exp(-41.6) < 2^-60.
_REACH_EXPONENT: Final = 42.5


class SymmetricLaw(Protocol):
    def __hash__(self) -> int: ...

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
        """A magnitude beyond which there is less than 2^-60 of the mass."""
        ...


def exact_rational(name: str, value: Fraction | float, *, least: Fraction, largest: Fraction | int) -> Fraction:
    """The exact value as a Fraction; raises `InvalidParameter` unless it is between `least` and `largest`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(f"{name} must be a rational number, not {value!r}")
    if isinstance(value, Rational):
        # A Fraction of numpy integers would keep them, and overflow.
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
        return Fraction(magnitude * magnitude) / (2 * self.variance)

    def float_exponents(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(magnitudes * magnitudes / float(2 * self.variance), dtype=np.float64)

    def peak(self) -> arb:
        """Enclosure of Pr[X = 0], by Poisson summation.

            1/peak = sum over x of exp(-x^2/(2 v)) = sqrt(2 pi v) * sum over n of exp(-2 pi^2 v n^2)

        Guarantee: an enclosure; a geometric series bounds the terms left out.
        Valid for: variance >= 1/16, where each term is below 1/3 of the one before.
        Source: Canonne, Kamath and Steinke 2020, Fact 17.
        """
        rate = 2 * arb.pi() ** 2 * rational(self.variance)
        total, n = arb(1), 1
        while float(2 * math.pi**2 * self.variance) * n * n < ctx.prec:
            total += 2 * (-rate * n * n).exp()
            n += 1
        # The rest is between 0 and 2 e^(-rate n^2) (1 + r + r^2 + ...) with r = e^(-rate) < 1/3.
        total += (3 * (-rate * n * n).exp()).union(arb(0))
        return 1 / (total * (2 * arb.pi() * rational(self.variance)).sqrt())

    def reach(self) -> int:
        return math.ceil(math.sqrt(2.0 * _REACH_EXPONENT * float(self.variance))) + 1


@dataclass(frozen=True)
class LaplaceLaw:
    """Pr[X = x] proportional to exp(-|x|/scale)."""

    scale: Fraction

    def exponent(self, magnitude: int) -> Fraction:
        return Fraction(magnitude) / self.scale

    def float_exponents(self, magnitudes: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(magnitudes / float(self.scale), dtype=np.float64)

    def peak(self) -> arb:
        return (1 / (2 * rational(self.scale))).tanh()

    def reach(self) -> int:
        return math.ceil(_REACH_EXPONENT * float(self.scale)) + 1


# The table holds almost all of a law's mass, arranged so that one lookup turns a word into a draw.
#
# Magnitudes are grouped in blocks of 2^offset_bits. Each block has a whole number of units of 2^-mass_bits
# probability: at most the mass of the block if every magnitude in it were as unlikely as its least likely one. The
# mass left over is the residual (sampler.py), and it is small. The units are dealt exactly to 2^cell_bits equal
# cells, each with at most two blocks in it (Walker 1974).

# 2^16 cells of 8 bytes fit into the second-level cache of any recent processor.
LARGEST_CELL_BITS: Final = 16
# A word is one sign bit and 63 bits for the magnitude.
MAGNITUDE_BITS: Final = 63
# Fixed-point bits of the recurrences; their errors of about 2^-90 are far below one unit.
FIXED_BITS: Final = 128


@dataclass(frozen=True)
class StepTable:
    """The units of each block, and the cells they are dealt to.

    The bits of a word are: 1 for the sign, `cell_bits` for the cell, and the rest, which chooses one of the cell's
    two blocks and whose last `offset_bits` choose the magnitude within the block. An entry is a threshold, shifted
    by `cell_bits`, and the number of the cell's other block. Block number `blocks` is the residual.
    """

    law: SymmetricLaw
    blocks: int
    cell_bits: int
    offset_bits: int
    mass_bits: int
    units: tuple[int, ...] = field(repr=False)
    entries: NDArray[np.int64] = field(repr=False, compare=False)

    @property
    def residual_units(self) -> int:
        return (1 << self.mass_bits) - sum(self.units)

    @property
    def width(self) -> int:
        """Magnitudes per block."""
        return 1 << self.offset_bits

    @property
    def end(self) -> int:
        """The first magnitude beyond the blocks."""
        return self.blocks << self.offset_bits


def floor_scaled(value: arb, bits: int) -> int:
    """A whole number that is not above value * 2^bits, at any precision."""
    with precision(2 * bits + 64):
        mantissa, exponent = (int(part) for part in value.lower().man_exp())
    shift = exponent + bits
    return mantissa << shift if shift >= 0 else mantissa >> -shift


def ceil_scaled(value: arb, bits: int) -> int:
    """A whole number that is not below value * 2^bits, at any precision."""
    with precision(2 * bits + 64):
        return -floor_scaled(-value, bits)


def bound_probabilities(law: SymmetricLaw, *, start: int, stride: int, count: int, upper: bool) -> list[int]:
    """Lower or upper bounds of 2^128 Pr[X = start + i stride], i = 0 ... count - 1.

        p_(i+1) = p_i r_i,   r_(i+1) = r_i s:   the exponent has a constant second difference

    Guarantee: valid bounds, as every rounding is in one direction and every factor positive; at most 2^-90 off.
    Valid for: an exponent of degree at most two.
    """
    first, second, third = (law.exponent(start + i * stride) for i in range(3))
    with precision(FIXED_BITS + 64):
        factors = (
            law.peak() * (-rational(first)).exp(),
            (-rational(second - first)).exp(),
            (-rational(third - 2 * second + first)).exp(),
        )
    scaled, sign = (ceil_scaled, -1) if upper else (floor_scaled, 1)
    value, ratio, step = (scaled(factor, FIXED_BITS) for factor in factors)
    bounds = []
    for _ in range(count):
        bounds.append(value)
        # A shift rounds down; shifting the negated number rounds up.
        value = sign * (sign * value * ratio >> FIXED_BITS)
        ratio = sign * (sign * ratio * step >> FIXED_BITS)
    return bounds


def block_units(law: SymmetricLaw, *, blocks: int, offset_bits: int, mass_bits: int) -> tuple[int, ...]:
    """Units per block: width * (least Pr[|X| = m] in the block), rounded down.

    Guarantee: units/(2^mass_bits width) <= Pr[|X| = m] for every m of the block.
    """
    width = 1 << offset_bits
    # A block's last magnitude is its least likely. Zero has one sign, all other magnitudes two.
    last = bound_probabilities(law, start=width - 1, stride=width, count=blocks, upper=False)
    shift = FIXED_BITS - mass_bits
    units = [(2 * width * value) >> shift for value in last]
    zero = bound_probabilities(law, start=0, stride=1, count=1, upper=False)[0]
    least = zero if width == 1 else min(zero, 2 * last[0])
    units[0] = (width * least) >> shift
    return tuple(units)


def deal(units: list[int], *, cell_bits: int, low_bits: int) -> NDArray[np.int64]:
    """Walker's alias table: entry i gives its first `threshold` words to block i and the rest to another block.

    Guarantee: block b owns units[b] 2^(cell_bits + low_bits)/sum(units) of all words, exactly.
    Valid for: sum(units) a power of two, at least 2^cell_bits and at most 2^(cell_bits + low_bits); at most
        2^cell_bits blocks.
    """
    cells = 1 << cell_bits
    capacity = sum(units) // cells
    scale = (1 << low_bits) // capacity
    left = np.zeros(cells, dtype=np.int64)
    left[: len(units)] = units
    # Poor cells, last first, are filled from rich ones, last first; a rich cell that gives too much is refilled
    # from the next rich one. So the running totals of what is lacking and what is spare determine everything.
    poor, rich = np.flatnonzero(left < capacity)[::-1], np.flatnonzero(left >= capacity)[::-1]
    lacking, spare = np.cumsum(capacity - left[poor]), np.cumsum(left[rich] - capacity)
    # With threshold 0 and itself as the other block, a cell belongs to one block.
    thresholds, others = np.zeros(cells, dtype=np.int64), np.arange(cells, dtype=np.int64)
    if poor.size:
        before = np.concatenate((np.zeros(1, dtype=np.int64), lacking[:-1]))
        thresholds[poor], others[poor] = left[poor] * scale, rich[np.searchsorted(spare, before)]
        spent = np.flatnonzero(spare < lacking[-1])
        owed = lacking[np.searchsorted(lacking, spare[spent], side="right")] - spare[spent]
        thresholds[rich[spent]], others[rich[spent]] = (capacity - owed) * scale, rich[spent + 1]
    packed = (thresholds << cell_bits) | others
    packed.flags.writeable = False
    return packed


def build_table(
    law: SymmetricLaw, *, mass_bits: int | None = None, largest_cell_bits: int = LARGEST_CELL_BITS
) -> StepTable:
    """The table of a law. Tests that try all words use a lower precision and fewer cells.

    Guarantee: every block's units are a lower bound, and their sum is at most 2^mass_bits.
    """
    reach = law.reach()
    # The smallest blocks with which `reach` fits into all cells but the residual's.
    offset_bits = ((reach - 1) // ((1 << largest_cell_bits) - 1)).bit_length()
    blocks = -(-reach >> offset_bits)
    cell_bits = blocks.bit_length()  # at least one cell more than blocks, for the residual
    most = MAGNITUDE_BITS - offset_bits
    bits = most if mass_bits is None else mass_bits
    if not cell_bits <= bits <= most:
        raise InvalidParameter(f"mass_bits must be between {cell_bits} and {most}, not {mass_bits!r}")
    units = block_units(law, blocks=blocks, offset_bits=offset_bits, mass_bits=bits)
    residual = (1 << bits) - sum(units)
    if residual < 0:
        raise AssertionError(f"the lower bounds of {law} sum to more than one")
    entries = deal([*units, residual], cell_bits=cell_bits, low_bits=MAGNITUDE_BITS - cell_bits)
    return StepTable(law, blocks, cell_bits, offset_bits, bits, units, entries)


def probability_of_magnitude(law: SymmetricLaw, magnitude: int) -> arb:
    """Enclosure of Pr[|X| = magnitude] at the current precision."""
    signs = 1 if magnitude == 0 else 2
    return signs * law.peak() * (-rational(law.exponent(magnitude))).exp()
