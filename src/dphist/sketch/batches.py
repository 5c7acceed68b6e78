"""The exact histogram of a batch of whole users, added to the counters of a sketch.

Users and items become numbers, a (user, item) pair one number of 64 bits; sorted, equal pairs lie together and are
counted once. Sorting whole numbers is the fastest way that numpy has to find what repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dphist.sketch.counters import Counters, IntArray, arrow_numbers, reduced

# Bits of a pair's number, the sign aside.
ROOM: Final = 63
# Up to so many times as many different codes as rows, counting by position is quicker than by sorting.
SPARSE: Final = 4


@dataclass(frozen=True)
class Coded:
    """Items as whole numbers from 0 to `size` - 1: those of the rows, those of the counters, and the way back."""

    rows: IntArray
    known: IntArray
    size: int
    decode: Callable[[IntArray], tuple[Any, ...]]


def added(state: Counters, users: Any, items: tuple[Any, ...], k: int) -> Counters:
    """The counters after one batch. All columns are chunked, in their plainest types; null is missing."""
    users, items = present(users, items)
    if len(users) == 0:
        return state
    coded = item_codes(items, state.items)
    codes, counts = users_per_item(user_codes(users), coded)
    codes, counts = joined(codes, counts, coded.known, state.counts)
    if codes.size > k:
        # Only the largest are ever decoded.
        place = codes.size - k - 1
        most = np.argpartition(counts, place)[place:]
        codes, counts = codes[most], counts[most]
    return reduced(coded.decode(codes), counts, k, state.subtracted)


def present(users: Any, items: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Rows in which neither the user nor a part of the item is missing."""
    columns = (users, *items)
    if all(column.null_count == 0 for column in columns):
        return users, items
    keep = columns[0].is_valid()
    for column in columns[1:]:
        keep = pc.and_(keep, column.is_valid())
    first, *others = (column.filter(keep) for column in columns)
    return first, tuple(others)


def numbers(column: Any) -> IntArray:
    """Whole numbers without nulls as numpy has them. Arrow's own way would import pandas, where there is one."""
    parts = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    if not parts:
        return np.empty(0, dtype=np.int64)
    return np.concatenate(parts).astype(np.int64, copy=False)


def dense(column: Any) -> tuple[IntArray, Any]:
    """Codes in place of values, and the values of the codes."""
    encoded = column.dictionary_encode()
    values = encoded.chunk(0).dictionary
    if not all(chunk.dictionary.equals(values) for chunk in encoded.chunks[1:]):
        # Arrow gives all chunks one dictionary as a rule; to make sure by itself would cost as much again.
        encoded = encoded.unify_dictionaries()
        values = encoded.chunk(0).dictionary
    return numbers(pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32())), values


def user_codes(users: Any) -> tuple[IntArray, int]:
    """Users as whole numbers, and how many bits they take. Which number is whose does not matter."""
    if users.type == pa.int64():
        codes = numbers(users)
        low, high = int(codes.min()), int(codes.max())
        if (high - low).bit_length() <= ROOM // 2:
            return codes - low, (high - low).bit_length()
    codes, values = dense(users)
    return codes, (len(values) - 1).bit_length()


def item_codes(items: tuple[Any, ...], known: tuple[Any, ...]) -> Coded:
    """Items of the rows and of the counters by the same numbers."""
    columns = [column_codes(column, first) for column, first in zip(items, known, strict=True)]
    coded = columns[0]
    for other in columns[1:]:
        coded = combined(coded, other)
    return coded


def column_codes(column: Any, known: Any) -> Coded:
    """One column: whole numbers by their distance from the least, everything else by its place in a dictionary."""
    first = len(known)
    everything = pa.chunked_array([known, *column.chunks], column.type)
    if column.type == pa.int64():
        codes = numbers(everything)
        low, high = int(codes.min()), int(codes.max())
        if (high - low).bit_length() <= ROOM // 2:
            codes -= low
            return Coded(codes[first:], codes[:first], high - low + 1, lambda c: (arrow_numbers(c + low),))
    codes, values = dense(everything)
    return Coded(codes[first:], codes[:first], len(values), lambda c: (values.take(arrow_numbers(c)),))


def combined(one: Coded, other: Coded) -> Coded:
    """Two columns as one; the numbers are made dense, so that those of several columns stay small."""
    width = other.size
    assert one.size * width < 2**ROOM
    wide = np.concatenate([one.known * width + other.known, one.rows * width + other.rows])
    values, codes = np.unique(wide, return_inverse=True)
    first = one.known.size

    def decode(found: IntArray) -> tuple[Any, ...]:
        pairs = values[found]
        return *one.decode(pairs // width), *other.decode(pairs % width)

    return Coded(codes[first:], codes[:first], values.size, decode)


def users_per_item(users: tuple[IntArray, int], items: Coded) -> tuple[IntArray, IntArray]:
    """The codes of all items that have users, increasing, and how many different users each of them has."""
    bits = (items.size - 1).bit_length()
    assert users[1] + bits <= ROOM
    pairs = users[0] << bits
    pairs |= items.rows
    pairs.sort()
    first = np.empty(pairs.size, dtype=np.bool_)
    first[0] = True
    np.not_equal(pairs[1:], pairs[:-1], out=first[1:])
    pairs &= (1 << bits) - 1
    once = pairs[first]
    if items.size <= SPARSE * pairs.size:
        counts = np.bincount(once, minlength=items.size)
        codes = np.flatnonzero(counts)
        return codes, counts[codes]
    codes, counts = np.unique(once, return_counts=True)
    return codes, counts


def joined(codes: IntArray, counts: IntArray, known: IntArray, had: IntArray) -> tuple[IntArray, IntArray]:
    """The histogram and the counters added up."""
    place = np.minimum(np.searchsorted(codes, known), codes.size - 1)
    found = codes[place] == known
    counts[place[found]] += had[found]
    return np.concatenate([codes, known[~found]]), np.concatenate([counts, had[~found]])
