"""One word to one draw, in two versions that give the same integers: numpy, and compiled by numba.

Both do the same work for every word: no loop and no branch depends on it, and the one memory access that does is
the look into the table.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

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
