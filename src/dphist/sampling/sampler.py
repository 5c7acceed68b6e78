"""Exact discrete noise: the discrete Gaussian and the discrete Laplace, on one table each.

The kernel turns one word into one draw, in two versions that give the same integers: numpy, and compiled by numba.
Draws come from fresh words of a tap, or from words that a key can make again.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.privacy.types import LARGEST_SCALE, LEAST_SCALE
from dphist.sampling import table
from dphist.sampling.keyed import KeyedWords
from dphist.sampling.rejection import MoreWords, Residual, Tape
from dphist.sampling.table import StepTable, build_table
from dphist.sampling.tap import Tap, Words, word_count

# One word to one draw, in two versions that give the same integers: numpy, and compiled by numba.
#
# Both do the same work for every word: no loop and no branch depends on it, and the one memory access that does is
# the look into the table.

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


# Exact discrete noise: the discrete Gaussian and the discrete Laplace, on one table each.


@lru_cache(maxsize=16)
def residual_of(law: table.SymmetricLaw) -> Residual:
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
        return self._sample(size, lambda start, stop: tap.words(stop - start), _from_tap(tap), compiled)

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


def _from_tap(tap: Tap) -> MoreWords:
    """Further words from the tap, which are fresh whatever draw they are for."""
    return lambda draws, _columns: tap.words(draws.size)


class DiscreteGaussian(ExactSampler):
    """Discrete Gaussian noise.

        Pr[X = x] = exp(-x^2/(2 variance)) / sum over y of exp(-y^2/(2 variance)),  x an integer

    Guarantee: exact, given uniform words.
    Valid for: rational variances from 1/16 to 10^16; floats are taken at their exact value.
    Source: Canonne, Kamath and Steinke 2020 for the law; docs/theory/sampling.md for the method.
    """

    def __init__(self, variance: Fraction | float) -> None:
        self.variance = table.exact_rational(
            "the variance", variance, least=table.LEAST_VARIANCE, largest=table.LARGEST_VARIANCE
        )
        super().__init__(residual_of(table.GaussianLaw(self.variance)))

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
        self.scale = table.exact_rational("the scale", scale, least=LEAST_SCALE, largest=LARGEST_SCALE)
        super().__init__(residual_of(table.LaplaceLaw(self.scale)))

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

        def more(draws: IntArray, numbers: IntArray) -> NDArray[np.uint64]:
            return self.words.numbered(rows[draws], numbers)

        return sampler.sample_from_words(self.words.first(rows), more, compiled=compiled)
