"""The maximum of a function of one integer from upper bounds on blocks of it (branch and bound)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
