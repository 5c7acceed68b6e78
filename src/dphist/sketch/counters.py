"""The counters of a sketch as columns, and the one step that everything is made of.

Whoever is added (one user's set, the exact counts of a batch of users, another sketch), the counters are added up;
then, if more than k are left, the (k+1)-th largest is subtracted from all and what is not positive is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
# Larger counts are cut there, and so is what was subtracted: that moves neighbours no further apart, and an error
# would tell of them.
LARGEST: Final = 2**53


@dataclass(frozen=True)
class Counters:
    """Different items with positive counts, and what was subtracted on the way. True numbers: never shown."""

    items: tuple[Any, ...]
    counts: IntArray
    subtracted: int = 0

    def __repr__(self) -> str:
        return "Counters(secret)"


def rank_value(counts: IntArray, k: int) -> int:
    """The (k+1)-th largest of positive counts, 0 if there are no more than k."""
    if counts.size <= k:
        return 0
    place = counts.size - k - 1
    return int(np.partition(counts, place)[place])


def reduced(items: tuple[Any, ...], counts: IntArray, k: int, subtracted: int) -> Counters:
    """At most k counters, of positive counts of different items in any number. What is no item takes no rank:
    it must be gone before.

    Guarantee: every count falls by the same number, which is added to `subtracted`, or to zero.
    """
    kept = np.minimum(counts, LARGEST)
    floor = rank_value(kept, k)
    if floor:
        where = np.flatnonzero(kept > floor)
        items, kept = tuple(taken(column, where) for column in items), kept[where] - floor
    return Counters(items, kept, min(subtracted + floor, LARGEST))


def arrow_numbers(values: IntArray) -> Any:
    """Numbers of numpy as Arrow has them. Arrow's own way would import pandas, where it is installed."""
    plain = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), plain.size, [None, pa.py_buffer(plain)])


def taken(column: Any, where: IntArray) -> Any:
    """These rows as one array of its own."""
    found = column.take(arrow_numbers(where))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
