"""Exact draws from the discrete Gaussian and the discrete Laplace.

A kernel turns each word into a draw by one lookup in the law's table. There are two kernels with the same results,
in numpy and compiled by numba. The rare words that the table assigns to the residual (the mass that its whole
units leave over, and the tail beyond its blocks) are drawn by rejection, exactly, with ball arithmetic in doubtful
cases. Words come from a rng, or from a key that makes them repeatable.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from typing import Any, Final, Protocol

import numpy as np
from flint import arb
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.model import LARGEST_SCALE, LARGEST_VARIANCE, LEAST_SCALE
from dphist.proof.balls import precision, rational
from dphist.sampling.rng import KeyedWords, Rng, Words, word_count
from dphist.sampling.table import (
    FIXED_BITS,
    LEAST_VARIANCE,
    GaussianLaw,
    LaplaceLaw,
    StepTable,
    SymmetricLaw,
    bound_probabilities,
    build_table,
    ceil_scaled,
    exact_rational,
    probability_of_magnitude,
)

# Words per call: the arrays of a chunk fit into the second-level cache.
CHUNK: Final = 1 << 14
# For fewer draws, importing numba takes longer than it saves.
WORTH_COMPILING: Final = 1 << 21

IntArray = NDArray[np.int64]
# Writes one draw per word to `out`, and returns the greatest block number met, that of the residual included. The
# arguments are words, out, entries, cell_bits and offset_bits. No loop or branch depends on a word, and no memory
# access but the lookup.
Kernel = Callable[[IntArray, IntArray, IntArray, int, int], int]


def numpy_kernel(words: IntArray, out: IntArray, entries: IntArray, cell_bits: int, offset_bits: int) -> int:
    low_bits = 63 - cell_bits
    cell_mask = (1 << cell_bits) - 1
    cells = words >> low_bits
    cells &= cell_mask
    blocks = entries.take(cells)
    thresholds = blocks >> cell_bits
    own = (words & ((1 << low_bits) - 1)) < thresholds
    blocks &= cell_mask
    np.copyto(blocks, cells, where=own)
    greatest = int(blocks.max(initial=0))
    magnitudes = blocks
    if offset_bits:
        magnitudes <<= offset_bits
        magnitudes |= words & ((1 << offset_bits) - 1)
    # Words are signed here: the shift gives 0 or -1, and (m ^ s) - s is m or -m.
    signs = words >> 63
    magnitudes ^= signs
    np.subtract(magnitudes, signs, out=out)
    return greatest


def _scalar_kernel(words: Any, out: Any, entries: Any, cell_bits: Any, offset_bits: Any) -> Any:
    """`numpy_kernel` for numba, one word at a time."""
    low_bits = 63 - cell_bits
    cell_mask = (1 << cell_bits) - 1
    low_mask = (1 << low_bits) - 1
    offset_mask = (1 << offset_bits) - 1
    greatest = 0
    for i in range(words.size):
        word = words[i]
        cell = (word >> low_bits) & cell_mask
        entry = entries[cell]
        block = cell if (word & low_mask) < (entry >> cell_bits) else entry & cell_mask
        greatest = max(greatest, block)
        sign = word >> 63
        out[i] = (((block << offset_bits) | (word & offset_mask)) ^ sign) - sign
    return greatest


@cache
def compiled_kernel() -> Kernel | None:
    """The kernel compiled by numba, cached on disk if possible; None if numba is not installed."""
    try:
        # Importing numba is slow, so it is imported only here.
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    array, fixed, whole = numba.int64[::1], numba.types.Array(numba.int64, 1, "C", readonly=True), numba.int64
    signature = whole(fixed, array, fixed, whole, whole)
    kernel: Kernel
    try:
        kernel = numba.njit([signature], cache=True, nogil=True)(_scalar_kernel)
    except RuntimeError:  # no cache folder is writable
        kernel = numba.njit([signature], nogil=True)(_scalar_kernel)
    return kernel


def kernel_for(n: int, compiled: bool | None) -> Kernel:
    if compiled is False or (compiled is None and n < WORTH_COMPILING):
        return numpy_kernel
    return compiled_kernel() or numpy_kernel


# Called with (draws, columns): returns word number columns[i] = 1, 2, ... of draw draws[i]. Its first word is
# number 0.
MoreWords = Callable[[IntArray, IntArray], Words]

# Additional bits of a ball over the uniform number it is compared with.
_GUARD_BITS: Final = 64


class Tape:
    """An endless sequence of words for each of several draws.

    Guarantee: asks `more` for each (draw, column) at most once, and for each draw's columns in order from 1.
    """

    def __init__(self, draws: IntArray, more: MoreWords) -> None:
        self._draws = draws
        self._columns = np.zeros(draws.size, dtype=np.int64)
        self._more = more

    def take(self, positions: IntArray) -> Words:
        """The next word of each draw at these positions, which must differ."""
        self._columns[positions] += 1
        words = self._more(self._draws[positions], self._columns[positions])
        if words.dtype != np.uint64 or words.shape != positions.shape:
            raise InvalidParameter(
                f"{positions.size} further words must be numpy.uint64, not {words.dtype} of shape {words.shape}"
            )
        return words

    def reader(self, position: int) -> Callable[[], int]:
        """A function that returns the next word of one draw."""
        positions = np.array([position], dtype=np.int64)
        return lambda: int(self.take(positions)[0])


class LazyUniform:
    """A uniform number on [0, 1) whose bits are read as needed.

    The number is in [value, value + 1)/2^bits, and each further word makes this interval 2^64 times narrower.
    """

    def __init__(self, next_word: Callable[[], int], first: int | None = None) -> None:
        self._next_word = next_word
        self.value = next_word() if first is None else first
        self.bits = 64

    def extend(self) -> None:
        self.value = (self.value << 64) | self._next_word()
        self.bits += 64

    def is_below(self, bound: Callable[[], arb]) -> bool:
        """Whether the number is below a real number, which `bound` encloses at the current precision.

        Guarantee: the exact answer; True has exactly the probability min(1, max(0, bound)).
        Valid for: enclosures that shrink as the precision grows. Reads 1 + 2^-64 + ... words on average.
        """
        while True:
            with precision(self.bits + _GUARD_BITS):
                scaled = bound() * arb(2) ** self.bits
                if scaled >= self.value + 1:
                    return True
                if scaled <= self.value:
                    return False
            self.extend()

    def geometric(self, rate: Callable[[], arb]) -> int:
        """floor(-log(number)/rate): t with probability (1 - e^(-rate)) e^(-rate t), by inversion.

        Guarantee: the exact value for the number that the words define.
        Valid for: rate > 0.
        """
        while True:
            if self.value > 0:
                with precision(self.bits + _GUARD_BITS):
                    scale = arb(2) ** self.bits
                    most = -(arb(self.value) / scale).log() / rate()
                    least = -(arb(self.value + 1) / scale).log() / rate()
                    # The quotient is in (least, most].
                    upper, lower = most.floor().unique_fmpz(), least.floor().unique_fmpz()
                    if upper is not None and upper == lower:
                        return int(upper)
            self.extend()


# Assumed relative error of Pr[|X| = m] in doubles; docs/theory/sampling.md proves 2^-44.
FILTER_ERROR: Final = 2.0**-40


class Residual:
    """Exact draws from the law of the magnitudes minus the table, by rejection.

    Block q is proposed with `excess[q]` units, an upper bound of width * max (Pr[|X| = m] - table) on the block.
    The magnitude is uniform on the block, and accepted with probability (width Pr[|X| = m] - units)/excess. The
    tail is proposed with `excess[blocks]` units as end + t with t geometric, which is above the law because the
    exponent is convex.

    Guarantee: magnitudes with probability exactly proportional to Pr[|X| = m] - table.
    """

    def __init__(self, table: StepTable) -> None:
        self.table = table

    @cached_property
    def excess(self) -> tuple[int, ...]:
        """Units of each block's proposal, and of the tail's as the last entry.

        Guarantee: together with the table's units they are at least the law; their total is checked.
        """
        table = self.table
        shift = FIXED_BITS - table.mass_bits
        # A block's first magnitude is its most likely. Magnitudes above 0 count with both signs.
        first = bound_probabilities(table.law, start=0, stride=table.width, count=table.blocks, upper=True)
        most = [2 * table.width * value for value in first]
        if table.width == 1:
            most[0] = first[0]
        above = [-(-value >> shift) - units for value, units in zip(most, table.units, strict=True)]
        with precision(FIXED_BITS + 64):
            tail = ceil_scaled(self._tail_envelope(), table.mass_bits)
        excess = (*above, tail)
        if min(excess) < 0 or sum(excess) < table.residual_units:
            raise AssertionError(f"the table of {table.law} and its residual do not cover a mass of one")
        return excess

    @cached_property
    def _cumulative(self) -> IntArray:
        return np.cumsum(np.array(self.excess, dtype=np.int64))

    @cached_property
    def _floats(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Units and excess of each block, and 2^mass_bits width Pr[X = 0]."""
        with precision(FIXED_BITS):
            peak = float(self.table.law.peak().mid())
        units = np.array(self.table.units, dtype=np.float64)
        excess = np.array(self.excess[:-1], dtype=np.float64)
        return units, excess, peak * 2.0 ** (self.table.mass_bits + self.table.offset_bits)

    def magnitudes(self, count: int, tape: Tape) -> IntArray:
        """One magnitude for each of `count` draws, in rounds of proposals until all are accepted."""
        drawn = np.zeros(count, dtype=np.int64)
        pending = np.arange(count, dtype=np.int64)
        while pending.size:
            proposals, uniforms = tape.take(pending), tape.take(pending)
            done = np.zeros(pending.size, dtype=bool)
            blocks, values = self._propose(proposals)
            inside = np.flatnonzero(blocks < self.table.blocks)
            done[inside] = self._accepts(blocks[inside], values[inside], uniforms[inside], pending[inside], tape)
            for position in np.flatnonzero(blocks == self.table.blocks):
                value = self._tail(tape, int(pending[position]), int(uniforms[position]))
                done[position] = value is not None
                values[position] = 0 if value is None else value
            drawn[pending[done]] = values[done]
            pending = pending[~done]
        return drawn

    def _propose(self, words: Words) -> tuple[IntArray, IntArray]:
        """A block and a magnitude from each word: its first bits choose the block, its last bits the offset.

        Units beyond the total choose a block beyond the tail, which is never accepted.
        """
        total = int(self._cumulative[-1])
        # At least one bit, as a shift by 64 is undefined. As total < 2^mass_bits and mass_bits + offset_bits <=
        # 63, the bits of block and offset do not overlap.
        bits = max(1, (total - 1).bit_length())
        units = (words >> np.uint64(64 - bits)).astype(np.int64)
        blocks = np.searchsorted(self._cumulative, units, side="right").astype(np.int64)
        offsets = (words & np.uint64(self.table.width - 1)).astype(np.int64)
        return blocks, (blocks << self.table.offset_bits) | offsets

    def _accepts(
        self, blocks: IntArray, magnitudes: IntArray, uniforms: Words, positions: IntArray, tape: Tape
    ) -> NDArray[np.bool_]:
        """Whether each magnitude is accepted: decided in doubles if possible, otherwise in ball arithmetic."""
        chances, errors = self.float_chances(blocks, magnitudes)
        distance = uniforms.astype(np.float64) * 2.0**-64 - chances
        accepted = np.asarray(distance < 0.0, dtype=np.bool_)
        for i in np.flatnonzero(np.abs(distance) <= errors):
            uniform = LazyUniform(tape.reader(int(positions[i])), int(uniforms[i]))
            accepted[i] = uniform.is_below(partial(self.chance, int(blocks[i]), int(magnitudes[i])))
        return accepted

    def float_chances(
        self, blocks: IntArray, magnitudes: IntArray
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The acceptance probabilities in doubles, with bounds of their error.

            (2^mass_bits width Pr[|X| = m] - units)/excess,   error <= FILTER_ERROR (2 + units/excess)

        Guarantee: the bound holds with a factor of 16 to spare if `numpy.exp` is accurate to 4 ulp.
        Valid for: magnitudes within the blocks, where the exponent is below 88.
        """
        units, excess, peak = self._floats
        signs = np.where(magnitudes == 0, 1.0, 2.0)
        law = signs * peak * np.exp(-self.table.law.float_exponents(magnitudes.astype(np.float64)))
        errors = FILTER_ERROR * (2.0 + units[blocks] / excess[blocks])
        return (law - units[blocks]) / excess[blocks], errors

    def chance(self, block: int, magnitude: int) -> arb:
        """The acceptance probability as an enclosure at the current precision."""
        table = self.table
        law = probability_of_magnitude(table.law, magnitude) * arb(2) ** (table.mass_bits + table.offset_bits)
        return (law - table.units[block]) / self.excess[block]

    def _tail_envelope(self) -> arb:
        """Pr[|X| = end]/(1 - e^(-rate)): the mass of the geometric law above the tail."""
        table = self.table
        return probability_of_magnitude(table.law, table.end) / (1 - (-self._tail_rate()).exp())

    def _tail_rate(self) -> arb:
        law, end = self.table.law, self.table.end
        return rational(law.exponent(end + 1) - law.exponent(end))

    def _tail(self, tape: Tape, position: int, uniform: int) -> int | None:
        """A magnitude beyond the blocks; None if the proposal is rejected."""
        table, reader = self.table, tape.reader(position)
        t = LazyUniform(reader, uniform).geometric(self._tail_rate)
        beyond = table.law.exponent(table.end + t) - table.law.exponent(table.end)

        def chance() -> arb:
            bend = (t * self._tail_rate() - rational(beyond)).exp()  # at most 1, as the exponent is convex
            return bend * self._tail_envelope() * arb(2) ** table.mass_bits / self.excess[-1]

        return table.end + t if LazyUniform(reader).is_below(chance) else None


@lru_cache(maxsize=32)
def residual_of(law: SymmetricLaw) -> Residual:
    return Residual(build_table(law))


class ExactSampler:
    """Draws from a symmetric law on the integers: one word each, rarely more.

    Guarantee: given independent uniform words, the draws are independent and have exactly the stated law; the same
        words give the same draws with and without numba.
    """

    def __init__(self, residual: Residual) -> None:
        self._residual = residual

    @property
    def table(self) -> StepTable:
        return self._residual.table

    def draw(self, n: int, rng: Rng, *, compiled: bool | None = None) -> IntArray:
        """`n` independent draws. `compiled` requests or forbids numba; by default `n` decides."""
        size = word_count(n)

        def more(draws: IntArray, _columns: IntArray) -> Words:
            return rng.words(draws.size)

        return self._sample(size, lambda start, stop: rng.words(stop - start), more, compiled)

    def sample_from_words(self, words: Words, more: MoreWords, *, compiled: bool | None = None) -> IntArray:
        """Draw number i from words[i], and from more words of that draw if needed.

        `more(draws, columns)` returns word number columns[i] = 1, 2, ... of draw draws[i]. Each word is requested
        at most once, in order, for many draws at a time. So a keyed function of item and column can supply the
        words.

        Guarantee: the stated law, if all words are independent and uniform.
        Valid for: a one-dimensional array of numpy.uint64.
        """
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.ndim != 1:
            raise InvalidParameter(f"words must be a one-dimensional array of numpy.uint64, not {words!r}")
        words = np.require(words, requirements=["C", "ALIGNED"])
        return self._sample(words.size, lambda start, stop: words[start:stop], more, compiled)

    def _sample(
        self, n: int, words: Callable[[int, int], Words], more: MoreWords, compiled: bool | None
    ) -> IntArray:
        """Draw chunk by chunk from the table, then all undecided draws at once from the residual."""
        table = self.table
        kernel = kernel_for(n, compiled)
        out = np.empty(n, dtype=np.int64)
        undecided: list[IntArray] = []
        for start in range(0, n, CHUNK):
            stop = min(n, start + CHUNK)
            piece = out[start:stop]
            signed = words(start, stop).view(np.int64)
            if kernel(signed, piece, table.entries, table.cell_bits, table.offset_bits) == table.blocks:
                undecided.append(np.flatnonzero(np.abs(piece) >= table.end) + start)
        if undecided:
            draws = np.concatenate(undecided).astype(np.int64)
            # Their first word has already chosen the sign, as |out| >= end > 0.
            out[draws] = np.sign(out[draws]) * self._residual.magnitudes(draws.size, Tape(draws, more))
        return out


class DiscreteGaussian(ExactSampler):
    """Discrete Gaussian noise.

        Pr[X = x] = exp(-x^2/(2 variance)) / sum over y of exp(-y^2/(2 variance)),  x an integer

    Guarantee: exact, given uniform words.
    Valid for: variances from 1/16 to 10^16, as rationals or as floats, which are taken at their exact value.
    Source: Canonne, Kamath and Steinke 2020 for the law; docs/theory/sampling.md for the method.
    """

    def __init__(self, variance: Fraction | float) -> None:
        self.variance = exact_rational("the variance", variance, least=LEAST_VARIANCE, largest=LARGEST_VARIANCE)
        super().__init__(residual_of(GaussianLaw(self.variance)))

    def __repr__(self) -> str:
        return f"DiscreteGaussian({self.variance})"


class DiscreteLaplace(ExactSampler):
    """Discrete Laplace noise, also called the two-sided geometric.

        Pr[X = x] = tanh(1/(2 scale)) exp(-|x|/scale),  x an integer

    Guarantee: exact, given uniform words.
    Valid for: scales from 1/16 to 10^8, as rationals or as floats, which are taken at their exact value.
    Source: Ghosh, Roughgarden and Sundararajan 2009 for the law; docs/theory/sampling.md for the method.
    """

    def __init__(self, scale: Fraction | float) -> None:
        self.scale = exact_rational("the scale", scale, least=LEAST_SCALE, largest=LARGEST_SCALE)
        super().__init__(residual_of(LaplaceLaw(self.scale)))

    def __repr__(self) -> str:
        return f"DiscreteLaplace({self.scale})"


class Draws(Protocol):
    """Noise for the rows of one batch."""

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        """One draw for each of these rows, which are distinct positions in the batch."""


@dataclass(frozen=True)
class Fresh:
    """Independent noise in every call."""

    rng: Rng

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        return sampler.draw(rows.size, self.rng, compiled=compiled)


@dataclass(frozen=True)
class Repeatable:
    """The same noise whenever a row comes with the same key."""

    words: KeyedWords

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        def more(draws: IntArray, numbers: IntArray) -> Words:
            return self.words.words_numbered(rows[draws], numbers)

        return sampler.sample_from_words(self.words.words_numbered(rows, 0), more, compiled=compiled)
