"""The noise stage: the only place where true counts meet noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.privacy.noise import SumNoise
from dphist.privacy.types import Plan
from dphist.releasing.frames import Form, Names, Piece
from dphist.releasing.result import Release
from dphist.releasing.soundness import Nonzero
from dphist.sampling.mechanisms import IntArray, NoiseSession, Released, begin, noisy_sums
from dphist.sampling.sampler import Draws, Fresh
from dphist.sampling.tap import Tap

# Pieces of any size, cut and joined into blocks of one size; and the (k+1)-th largest count of all of them.


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


@dataclass(frozen=True)
class Total:
    """Enough about the counts to notice that a second reading differs from the first."""

    rows: int = field(default=0, repr=False)
    nonzero: int = field(default=0, repr=False)
    mass: int = field(default=0, repr=False)

    def after(self, counts: IntArray) -> Total:
        """With more counts."""
        nonzero = self.nonzero + int(np.count_nonzero(counts))
        return Total(self.rows + counts.size, nonzero, (self.mass + int(counts.sum())) % 2**64)


@dataclass(frozen=True)
class Cut:
    """What is taken from every count before noise: the count after the largest ones, and a fixed lower threshold.

    Counts below `lower` were removed, by a rule that does not look at the data; what is left begins at 1 again
    once `lower` - 1 is subtracted, and it is added to what passes unless `difference`s to the count after the
    largest are released. `floor` is the count of rank k + 1 among what is left of the counts: a secret.
    """

    floor: int = 0
    lower: int = 1
    difference: bool = False

    def __repr__(self) -> str:
        return "Cut(secret)"

    @property
    def subtracted(self) -> int:
        """The top-k step's part, on the scale that begins at the lower threshold."""
        return max(self.floor - (self.lower - 1), 0)

    def apply(self, counts: IntArray) -> IntArray:
        """Algorithm 3 of the paper: less what is cut, and what is not positive is no count."""
        amount = self.lower - 1 + self.subtracted
        return np.maximum(counts - amount, 0) if amount else counts


@dataclass(frozen=True)
class Begun:
    """A release whose shared noise is drawn. `restored` comes to every count that has passed the threshold."""

    session: NoiseSession
    offset: float | None
    cut: Cut
    restored: int
    sums: tuple[SumNoise, ...] = ()

    @classmethod
    def with_tap(cls, plan: Plan, tap: Tap, cut: Cut) -> Begun:
        """Draw the noise that all counts share, once."""
        session, offset = begin(plan, tap, subtracted=cut.subtracted)
        return cls(session, offset, cut, 0 if cut.difference else cut.lower - 1, plan.sums)

    def release(
        self, counts: IntArray, sums: Sequence[IntArray] = (), draws: Sequence[Draws] | None = None
    ) -> Released:
        """What passes of a batch of true counts, noisy, with the noisy sums beside it, which came in steps.

        `draws` are for the counts and for each of the sums, all different; otherwise the noise is fresh.
        """
        sources = [Fresh(self.session.tap)] * (1 + len(self.sums)) if draws is None else draws
        released = self.session.release(self.cut.apply(counts), sources[0])
        around = noisy_sums(self.sums, counts, sums, released.index, sources[1:])
        return Released(released.index, released.values + self.restored, around)


class NoiseStage:
    """One release in the making: the noise that all blocks share is drawn, blocks come, the release goes."""

    def __init__(
        self, plan: Plan, rule: Nonzero, names: Names, tap: Tap, cut: Cut, *, distinct: bool = False
    ) -> None:
        self.seen = Total()
        self._plan, self._rule, self._names, self._tap = plan, rule, names, tap
        self._begun = Begun.with_tap(plan, tap, cut)
        self._gathered = Gathered(names, distinct=distinct)

    def add(self, block: list[Span]) -> None:
        """Noise and threshold for a block; what passes is kept."""
        true = counts_of(block)
        self.seen = self.seen.after(true)
        self._gathered.add(block, self._begun.release(true, sums_of(block)))

    def release(self, limit: int | None = None) -> Release:
        """All that passed, in an order of its own; the `limit` largest, if there is one."""
        gathered, plan = self._gathered, self._plan
        if self._rule is Nonzero.PROMISED and self.seen.nonzero > plan.contract.nonzero:
            # Never an error, for that would tell of the data; an empty release tells the least.
            gathered = gathered.nothing()
        columns, counts, sums = gathered.sorted()
        if limit is not None and counts.size > limit:
            first = np.arange(limit, dtype=np.int64)
            columns, counts = tuple(gathered.form.kind.take(c, first) for c in columns), counts[:limit].copy()
            sums = tuple(column[:limit].copy() for column in sums)
        return Release(
            columns,
            counts,
            plan.certificate,
            plan,
            self._tap.private,
            self._names,
            gathered.form,
            self._begun.offset,
            sums=sums or tuple(np.empty(0) for _ in plan.sums),
        )


class Gathered:
    """The released rows so far, in the kind they came in."""

    def __init__(self, names: Names, *, distinct: bool = False) -> None:
        self._names = names
        self._distinct = distinct
        self._parts: list[tuple[Any, ...]] = []
        self._values: list[NDArray[np.float64]] = []
        self._sums: list[tuple[NDArray[np.float64], ...]] = []
        self._pieces = 0
        self._last: Piece | None = None
        self.form = Form()

    def add(self, block: list[Span], released: Released) -> None:
        """The items at the released positions of a block."""
        offset = 0
        for span in block:
            self._check_form(span.piece)
            first, last = np.searchsorted(released.index, [offset, offset + span.stop - span.start])
            where = released.index[first:last] - offset + span.start
            # Of the first piece even nothing is taken: its types make an empty result of the same kind.
            if where.size or not self._parts:
                self._parts.append(tuple(self.form.kind.take(column, where) for column in span.piece.items))
            offset += span.stop - span.start
        self._values.append(released.values)
        self._sums.append(released.sums)

    def _check_form(self, piece: Piece) -> None:
        if piece is self._last:
            return
        if self._last is None:
            self.form = piece.form
        elif piece.form != self.form:
            raise InvalidParameter("all batches must be of one kind")
        self._last = piece
        self._pieces += 1

    def nothing(self) -> Gathered:
        """The same kind without rows."""
        empty = Gathered(self._names)
        empty.form = self.form
        none = np.empty(0, dtype=np.int64)
        empty._parts = [tuple(self.form.kind.take(column, none) for column in part) for part in self._parts[:1]]
        return empty

    def sorted(self) -> tuple[tuple[Any, ...], NDArray[np.float64], tuple[NDArray[np.float64], ...]]:
        """All rows in the order of the release, each item once: items, counts and sums."""
        kind = self.form.kind
        if not self._parts:
            empty: list[Any] = []
            return tuple(kind.column(empty, name) for name in self._names.items), np.empty(0), ()
        columns = [kind.concat(parts) for parts in self._columns()]
        values = np.concatenate([*self._values, np.empty(0)])
        if self._pieces > 1 and not self._distinct and kind.repeats(columns):
            raise InvalidParameter("items must differ across batches, and one that was to be released comes twice")
        order = kind.order(values, columns)
        sums = tuple(np.concatenate(parts)[order] for parts in zip(*self._sums, strict=True))
        return tuple(kind.take(column, order) for column in columns), values[order], sums

    def _columns(self) -> Iterator[Sequence[Any]]:
        return zip(*self._parts, strict=True)
