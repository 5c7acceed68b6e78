"""Exact discrete noise: the discrete Gaussian and the discrete Laplace, on one table each.

The kernel turns one word into one draw by a look into the table, in two versions that give the same integers:
numpy, and compiled by numba. What the table's whole units leave of the law, with the tail beyond its blocks, is
the residual: it is drawn by rejection, in the rare case that a word falls to it, and doubts are settled in ball
arithmetic. Draws come from fresh words of a tap, or from words that a key can make again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property, lru_cache
from typing import Any, Final, Protocol

import numpy as np
from flint import arb
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.privacy.balls import precision, rational
from dphist.privacy.types import LARGEST_SCALE, LEAST_SCALE
from dphist.sampling.table import (
    FIXED_BITS,
    LARGEST_VARIANCE,
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
from dphist.sampling.tap import KeyedWords, Tap, Words, word_count

# Both kernels do the same work for every word: no loop and no branch depends on it, and the only memory access
# that does is the look into the table.

# Words per call: the arrays of a chunk stay within the second-level cache, and memory stays bounded.
CHUNK: Final = 1 << 14
# Below this many draws the import of numba costs more than it saves.
WORTH_COMPILING: Final = 1 << 21

IntArray = NDArray[np.int64]


class Kernel(Protocol):
    """Writes one draw per word to `out`, and returns the greatest block number met."""

    def __call__(self, words: IntArray, out: IntArray, entries: IntArray, cell_bits: int, offset_bits: int) -> int:
        """Draws of the residual are written as well, and recognised by their block number."""
        ...


def numpy_kernel(words: IntArray, out: IntArray, entries: IntArray, cell_bits: int, offset_bits: int) -> int:
    """The kernel in numpy, one pass per operation."""
    low_bits = 63 - cell_bits
    cell_mask = (1 << cell_bits) - 1
    cells = words >> low_bits
    cells &= cell_mask
    found = entries.take(cells)
    thresholds = found >> cell_bits
    own = (words & ((1 << low_bits) - 1)) < thresholds
    found &= cell_mask
    np.copyto(found, cells, where=own)
    greatest = int(found.max(initial=0))
    if offset_bits:
        found <<= offset_bits
        found |= words & ((1 << offset_bits) - 1)
    # Words are read as signed: the shift gives 0 or -1, and (m ^ s) - s is m or -m.
    signs = words >> 63
    found ^= signs
    np.subtract(found, signs, out=out)
    return greatest


def _scalar_kernel(words: Any, out: Any, entries: Any, cell_bits: Any, offset_bits: Any) -> Any:
    """The kernel for numba, one word at a time."""
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
    """The compiled kernel, from numba's cache on disk if it is there; None if numba is not installed."""
    try:
        # By name, so that nothing else of dphist needs numba, and importing dphist does not load it.
        numba: Any = importlib.import_module("numba")
    except ImportError:
        return None
    array, fixed, whole = numba.int64[::1], numba.types.Array(numba.int64, 1, "C", readonly=True), numba.int64
    signature = whole(fixed, array, fixed, whole, whole)
    kernel: Kernel
    try:
        kernel = numba.njit([signature], cache=True, nogil=True)(_scalar_kernel)
    except RuntimeError:  # no folder for the cache is writable: compile afresh in every process
        kernel = numba.njit([signature], nogil=True)(_scalar_kernel)
    return kernel


def kernel_for(n: int, compiled: bool | None) -> Kernel:
    """The kernel to use for `n` draws: numba's if asked for, or if it is there and worth its import."""
    if compiled is False or (compiled is None and n < WORTH_COMPILING):
        return numpy_kernel
    return compiled_kernel() or numpy_kernel


# Asked for the words number `columns[i]` (1, 2, ...; the draw's own word is number 0) of the draws `draws[i]`.
MoreWords = Callable[[IntArray, IntArray], Words]

# Bits by which a ball is computed more finely than the uniform number it is compared with.
_GUARD_BITS: Final = 64


class Tape:
    """An endless row of words for each of several draws, read once and in order.

    Guarantee: asks `more` for every (draw, column) at most once, each draw's columns in order from 1.
    """

    def __init__(self, draws: IntArray, more: MoreWords) -> None:
        self._draws = draws
        self._columns = np.zeros(draws.size, dtype=np.int64)
        self._more = more

    def take(self, positions: IntArray) -> Words:
        """The next word of each of these draws, which are named by their positions and must differ."""
        self._columns[positions] += 1
        words = self._more(self._draws[positions], self._columns[positions])
        if words.dtype != np.uint64 or words.shape != positions.shape:
            raise InvalidParameter(
                f"{positions.size} further words must be numpy.uint64, not {words.dtype} of shape {words.shape}"
            )
        return words

    def reader(self, position: int) -> Callable[[], int]:
        """The words of one draw, one call each."""
        where = np.array([position], dtype=np.int64)
        return lambda: int(self.take(where)[0])


class LazyUniform:
    """A uniform number on [0, 1). Only its leading bits are known so far.

    The number lies in [value, value + 1)/2^bits, and every word read makes that 2^64 times narrower.
    """

    def __init__(self, next_word: Callable[[], int], first: int | None = None) -> None:
        self._next_word = next_word
        self.value = next_word() if first is None else first
        self.bits = 64

    def extend(self) -> None:
        """Read another word."""
        self.value = (self.value << 64) | self._next_word()
        self.bits += 64

    def is_below(self, bound: Callable[[], arb]) -> bool:
        """Whether the number is below a real number; `bound` gives an enclosure of it at the current precision.

        Guarantee: the exact answer. True has the probability min(1, max(0, bound)), to the last digit.
        Valid for: enclosures that shrink with the precision. Needs 1 + 2^-64 + ... words on average.
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

        Guarantee: the exact value for the number that the tape defines.
        Valid for: rate > 0.
        """
        while True:
            if self.value > 0:
                with precision(self.bits + _GUARD_BITS):
                    scale = arb(2) ** self.bits
                    most = -(arb(self.value) / scale).log() / rate()
                    least = -(arb(self.value + 1) / scale).log() / rate()
                    # The number is in [value, value + 1): its quotient is in (least, most].
                    floors = most.floor().unique_fmpz(), least.floor().unique_fmpz()
                    if floors[0] is not None and floors[0] == floors[1]:
                        return int(floors[0])
            self.extend()


# Relative error granted to the double precision value of Pr[|X| = m]; docs/theory/sampling.md proves 2^-44.
FILTER_ERROR: Final = 2.0**-40


class Residual:
    """Exact draws from the magnitudes' law minus the table.

    Block q is proposed with `excess[q]` units, an upper bound of width * max (Pr[|X| = m] - table) on the block; a
    magnitude is then uniform on the block, and accepted with probability (width Pr[|X| = m] - units)/excess.
    The tail is proposed with `excess[blocks]` units as end + t, t geometric, which lies above the law because the
    exponent is convex.

    Guarantee: magnitudes with probability proportional to Pr[|X| = m] - table, to the last digit.
    """

    def __init__(self, table: StepTable) -> None:
        self.table = table

    @cached_property
    def excess(self) -> tuple[int, ...]:
        """Units of each block's proposal, and last the tail's.

        Guarantee: together with the table's units they are not below the law, which is checked by their total.
        """
        table = self.table
        shift = FIXED_BITS - table.mass_bits
        # A block's first magnitude is its most likely; within block 0 that is 1 at most, counted with both signs.
        first = bound_probabilities(table.law, start=0, stride=table.width, count=table.blocks, upper=True)
        most = [2 * table.width * value for value in first]
        if table.width == 1:
            most[0] = first[0]
        above = [-(-value >> shift) - units for value, units in zip(most, table.units, strict=True)]
        with precision(FIXED_BITS + 64):
            tail = ceil_scaled(self._tail_envelope(), table.mass_bits)
        excess = (*above, tail)
        if min(excess) < 0 or sum(excess) < table.residual_units:
            raise AssertionError(f"the table of {table.law} and its residual do not enclose a mass of one")
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
        """One magnitude for each of `count` draws, by as many rounds of proposals as it takes."""
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
        """Block and magnitude from one word each: its leading bits choose the block, its last ones the offset.

        Units beyond the total choose a block beyond the tail, which nothing accepts.
        """
        total = int(self._cumulative[-1])
        # Not below one bit, for a shift by 64 is undefined. The excess is a small part of 2^mass_bits, so that its
        # bits and the offset's are apart: mass_bits + offset_bits <= 63.
        bits = max(1, (total - 1).bit_length())
        units = (words >> np.uint64(64 - bits)).astype(np.int64)
        blocks = np.searchsorted(self._cumulative, units, side="right").astype(np.int64)
        offsets = (words & np.uint64(self.table.width - 1)).astype(np.int64)
        return blocks, (blocks << self.table.offset_bits) | offsets

    def _accepts(
        self,
        blocks: IntArray,
        magnitudes: IntArray,
        uniforms: Words,
        positions: IntArray,
        tape: Tape,
    ) -> NDArray[np.bool_]:
        """Whether each magnitude is accepted: in double precision if that decides, in ball arithmetic if not."""
        chances, errors = self.float_chances(blocks, magnitudes)
        distance = uniforms.astype(np.float64) * 2.0**-64 - chances
        accepted = np.asarray(distance < 0.0, dtype=np.bool_)
        for i in np.flatnonzero(np.abs(distance) <= errors):
            uniform = LazyUniform(tape.reader(int(positions[i])), int(uniforms[i]))
            block, magnitude = int(blocks[i]), int(magnitudes[i])
            accepted[i] = uniform.is_below(lambda b=block, m=magnitude: self.chance(b, m))  # type: ignore[misc]
        return accepted

    def float_chances(
        self, blocks: IntArray, magnitudes: IntArray
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The chances of acceptance in double precision, with bounds of their error.

            (2^mass_bits width Pr[|X| = m] - units)/excess,   error <= FILTER_ERROR (2 + units/excess)

        Guarantee: the bound holds with a factor of 16 to spare if `numpy.exp` is within 4 units in the last place.
        Valid for: magnitudes within the blocks, where the exponent is below 88.
        """
        units, excess, peak = self._floats
        signs = np.where(magnitudes == 0, 1.0, 2.0)
        law = signs * peak * np.exp(-self.table.law.float_exponents(magnitudes.astype(np.float64)))
        errors = FILTER_ERROR * (2.0 + units[blocks] / excess[blocks])
        return (law - units[blocks]) / excess[blocks], errors

    def chance(self, block: int, magnitude: int) -> arb:
        """The same as an enclosure at the current precision."""
        table = self.table
        law = probability_of_magnitude(table.law, magnitude) * arb(2) ** (table.mass_bits + table.offset_bits)
        return (law - table.units[block]) / self.excess[block]

    def _tail_envelope(self) -> arb:
        """Pr[|X| = end]/(1 - e^(-rate)), the mass of the geometric proposal that lies above the tail."""
        table = self.table
        return probability_of_magnitude(table.law, table.end) / (1 - (-self._tail_rate()).exp())

    def _tail_rate(self) -> arb:
        law, end = self.table.law, self.table.end
        return rational(law.exponent(end + 1) - law.exponent(end))

    def _tail(self, tape: Tape, position: int, uniform: int) -> int | None:
        """A magnitude beyond the blocks, or None if the proposal is rejected."""
        table, reader = self.table, tape.reader(position)
        t = LazyUniform(reader, uniform).geometric(self._tail_rate)
        beyond = table.law.exponent(table.end + t) - table.law.exponent(table.end)

        def chance() -> arb:
            bend = (t * self._tail_rate() - rational(beyond)).exp()  # at most 1, for the exponent is convex
            return bend * self._tail_envelope() * arb(2) ** table.mass_bits / self.excess[-1]

        return table.end + t if LazyUniform(reader).is_below(chance) else None


@lru_cache(maxsize=16)
def residual_of(law: SymmetricLaw) -> Residual:
    """The table of a law with its residual, built once."""
    return Residual(build_table(law))


class ExactSampler:
    """Draws from a symmetric law on the integers: one word each, and more if that does not decide.

    Guarantee: given independent uniform words, the draws are independent and have exactly the stated law; given
        the same words, they are the same with and without numba.
    """

    def __init__(self, residual: Residual) -> None:
        self._residual = residual

    @property
    def table(self) -> StepTable:
        """The table that decides nearly all draws."""
        return self._residual.table

    def draw(self, n: int, tap: Tap, *, compiled: bool | None = None) -> IntArray:
        """`n` independent draws. `compiled` asks for numba or forbids it; by default size decides."""
        size = word_count(n)

        def more(draws: IntArray, _columns: IntArray) -> Words:
            return tap.words(draws.size)  # fresh, whatever draw they are for

        return self._sample(size, lambda start, stop: tap.words(stop - start), more, compiled)

    def sample_from_words(self, words: Words, more: MoreWords, *, compiled: bool | None = None) -> IntArray:
        """Draw number i from words[i], a function of the words alone.

        The few draws that their word does not decide ask `more(draws, columns)` for the words number
        `columns[i]` = 1, 2, ... of the draws `draws[i]`: each at most once, in order, many draws at a time. A
        function that is keyed by the item and numbered by the column can thus feed the sampler.

        Guarantee: the stated law, if all these words are independent and uniform.
        Valid for: a one-dimensional array of numpy.uint64.
        """
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.ndim != 1:
            raise InvalidParameter(f"words must be a one-dimensional array of numpy.uint64, not {words!r}")
        own = np.require(words, requirements=["C", "ALIGNED"])
        return self._sample(own.size, lambda start, stop: own[start:stop], more, compiled)

    def _sample(
        self, n: int, words: Callable[[int, int], Words], more: MoreWords, compiled: bool | None
    ) -> IntArray:
        """Chunk by chunk through the table, and then all undecided draws at once through the residual."""
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
            # Their own word has given them a sign, which the residual leaves as it is: |out| >= end > 0.
            out[draws] = np.sign(out[draws]) * self._residual.magnitudes(draws.size, Tape(draws, more))
        return out


class DiscreteGaussian(ExactSampler):
    """Discrete Gaussian noise.

        Pr[X = x] = exp(-x^2/(2 variance)) / sum over y of exp(-y^2/(2 variance)),  x an integer

    Guarantee: exact, given uniform words.
    Valid for: rational variances from 1/16 to 10^16; floats are taken at their exact value.
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
    Valid for: rational scales from 1/16 to 10^8; floats are taken at their exact value.
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
        """One draw for each of these rows, which are positions in the batch and differ."""


@dataclass(frozen=True)
class Fresh:
    """Never the same twice."""

    tap: Tap

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        """Draws from the tap."""
        return sampler.draw(rows.size, self.tap, compiled=compiled)


@dataclass(frozen=True)
class Repeatable:
    """The same whenever the same row comes with the same key."""

    words: KeyedWords

    def of(self, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None) -> IntArray:
        """Draws that are functions of the rows' own words."""

        def more(draws: IntArray, numbers: IntArray) -> Words:
            return self.words.words_numbered(rows[draws], numbers)

        return sampler.sample_from_words(self.words.first(rows), more, compiled=compiled)
