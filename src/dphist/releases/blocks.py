"""Pieces of any size, cut and joined into blocks of one size; and the (k+1)-th largest count of all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dphist.mechanisms.base import IntArray
from dphist.releases.sources import Piece


@dataclass(frozen=True)
class Span:
    """Some consecutive rows of a piece."""

    piece: Piece
    start: int
    stop: int


def blocks(pieces: Iterable[Piece], size: int, most: int | None = None) -> Iterator[list[Span]]:
    """Blocks of exactly `size` rows, the last one smaller: the same rows however the pieces were cut.

    A block ends earlier where its pieces hold `most` bytes: a span keeps all of its piece in memory.
    """
    block: list[Span] = []
    room = size
    held = 0
    for piece in pieces:
        if piece.counts.size == 0:
            block.append(Span(piece, 0, 0))  # no rows, but it knows the kind
        start = 0
        while start < piece.counts.size:
            stop = min(piece.counts.size, start + room)
            block.append(Span(piece, start, stop))
            room -= stop - start
            start = stop
            if room == 0:
                yield block
                block, room, held = [], size, 0
        held += piece.size
        if block and most is not None and held >= most:
            yield block
            block, room, held = [], size, 0
    if block:
        yield block


def counts_of(block: list[Span]) -> IntArray:
    """The counts of a block, not copied where they lie together."""
    parts = [span.piece.counts[span.start : span.stop] for span in block]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def sums_of(block: list[Span]) -> tuple[IntArray, ...]:
    """The sums of a block, one array for each of them."""
    columns = zip(*([column[s.start : s.stop] for column in s.piece.sums] for s in block), strict=True)
    return tuple(np.concatenate(parts) for parts in columns)


class Largest:
    """The `rank`-th largest of all counts shown to it, in memory for `rank` counts and a block."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._largest: IntArray = np.empty(0, dtype=np.int64)

    def show(self, counts: IntArray) -> None:
        """More counts."""
        candidates = np.concatenate([self._largest, counts[counts > self.value]])
        if candidates.size > self._rank:
            candidates = np.partition(candidates, candidates.size - self._rank)[-self._rank :]
        self._largest = candidates

    @property
    def value(self) -> int:
        """The count of that rank, 0 where fewer counts are positive. A secret like any other count."""
        return int(self._largest.min()) if self._largest.size == self._rank else 0
