"""An order of the released rows that depends on nothing but the rows, and whether items repeat."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Kinds of numpy arrays that sort by themselves: whole numbers, truth values, text and times.
_SORTABLE = "iubUSmM"


def release_order(counts: NDArray[np.float64], keys: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Positions by noisy count, the largest first, then by the item's columns."""
    ranks = [_ranks(key) for key in keys]
    return np.lexsort((*reversed(ranks), -counts)).astype(np.int64)


def _ranks(key: NDArray[Any]) -> NDArray[Any]:
    """Something that numpy sorts as the key should be sorted."""
    if key.dtype.kind in _SORTABLE or (key.dtype.kind == "f" and not np.isnan(key).any()):
        return key
    # A float that is no number has no place among the others: it counts as missing.
    values = [None if isinstance(v, float) and v != v else v for v in key.tolist()]
    try:
        if len({type(v) for v in values}) > 1:
            return _places([(type(v).__name__, v) for v in values])
        return _places(values)
    except TypeError:
        # What cannot be compared or hashed has at least a text.
        return _places([(type(v).__name__, repr(v)) for v in values])


def _places(values: list[Any]) -> NDArray[np.int64]:
    """Of each value, its place among the sorted different ones."""
    place = {value: rank for rank, value in enumerate(sorted(set(values)))}
    return np.fromiter((place[value] for value in values), dtype=np.int64, count=len(values))


def has_duplicates(keys: Sequence[NDArray[Any]]) -> bool:
    """Whether two rows have the same item, exactly."""
    size = keys[0].size
    if len(keys) == 1 and keys[0].dtype.kind in _SORTABLE:
        return _repeats(keys[0])
    rows = zip(*(key.tolist() for key in keys), strict=True) if len(keys) > 1 else iter(keys[0].tolist())
    return len({_hashable(row) for row in rows}) < size


def _repeats(key: NDArray[Any]) -> bool:
    if key.size < 2 or bool((key[1:] > key[:-1]).all()):
        return False
    ordered = np.sort(key)
    return bool((ordered[1:] == ordered[:-1]).any())


def _hashable(value: Any) -> Hashable:
    if isinstance(value, float) and value != value:
        return "nan", None  # one item, though it differs from itself
    try:
        hash(value)
    except TypeError:
        return type(value).__name__, repr(value)
    return value  # type: ignore[no-any-return]
