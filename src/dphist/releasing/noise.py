"""The only place where true counts meet noise, in this process and on Spark's executors.

`Begun` is a release whose shared noise is drawn: it adds noise to batches of counts and drops what does not pass
the threshold. `NoiseStage` does so for the blocks of a histogram in this process, and gathers what passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dphist.errors import InvalidParameter
from dphist.privacy.types import Plan, SumNoise
from dphist.releasing.frames import Form, Names, Piece, has_repeats, join_rows, objects, release_order, take_rows
from dphist.releasing.result import Release
from dphist.releasing.soundness import Nonzero
from dphist.sampling.mechanisms import FloatArray, IntArray, NoiseSession, Released, begin, noisy_sums
from dphist.sampling.sampler import Draws, Fresh
from dphist.sampling.tap import SeededTap, Tap


@dataclass(frozen=True)
class Span:
    """Some consecutive rows of a piece."""

    piece: Piece
    start: int
    stop: int


def blocks(pieces: Iterable[Piece], size: int, most: int | None = None) -> Iterator[list[Span]]:
    """Blocks of exactly `size` rows, the last one smaller: the same rows however the pieces were cut.

    A block ends earlier if its pieces hold `most` bytes: a span keeps its whole piece in memory.
    """
    block: list[Span] = []
    room = size
    held = 0
    for piece in pieces:
        if piece.counts.size == 0:
            block.append(Span(piece, 0, 0))  # no rows, but it has the kind
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
    """Enough about the counts to detect that a second reading differs from the first."""

    rows: int = field(default=0, repr=False)
    nonzero: int = field(default=0, repr=False)
    mass: int = field(default=0, repr=False)

    def after(self, counts: IntArray) -> Total:
        """With more counts."""
        nonzero = self.nonzero + int(np.count_nonzero(counts))
        return Total(self.rows + counts.size, nonzero, (self.mass + int(counts.sum())) % 2**64)


@dataclass(frozen=True)
class Cut:
    """What is subtracted from every count before noise: the count of rank k + 1, and a fixed lower threshold.

    Counts below `lower` were removed, by a rule that does not depend on the data. The others begin at 1 again once
    `lower` - 1 is subtracted; it is added to what passes, unless `difference`s to the count of rank k + 1 are
    released. `floor` is the count of that rank among the remaining counts: a secret.
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
        """Algorithm 3 of the paper: subtract, and drop what is not positive."""
        amount = self.lower - 1 + self.subtracted
        return np.maximum(counts - amount, 0) if amount else counts


@dataclass(frozen=True)
class Begun:
    """A release whose shared noise is drawn. `restored` is added to every count that has passed the threshold."""

    session: NoiseSession
    offset: float | None
    cut: Cut
    restored: int
    sums: tuple[SumNoise, ...] = ()
    weighted: bool = False

    @classmethod
    def with_tap(cls, plan: Plan, tap: Tap, cut: Cut) -> Begun:
        """Draw the noise that all counts share, once."""
        session, offset = begin(plan, tap, subtracted=cut.subtracted)
        return cls(session, offset, cut, 0 if cut.difference else cut.lower - 1, plan.sums, bool(plan.levels))

    def release(
        self, counts: IntArray, sums: Sequence[IntArray] = (), draws: Sequence[Draws] | None = None
    ) -> Released:
        """The noisy counts of a batch that pass the threshold, with their noisy sums. Sums come in whole steps.

        `draws` are for the counts and for each of the sums, all different; without them the noise is fresh.
        """
        sources = [Fresh(self.session.tap)] * (1 + len(self.sums)) if draws is None else draws
        released = self.session.release(self.cut.apply(counts), sources[0])
        around = noisy_sums(self.sums, counts, sums, released.index, sources[1:], weighted=self.weighted)
        return Released(released.index, released.values + self.restored, around)


def rehearse(plan: Plan) -> None:
    """Draw noise for an invented count: noise that cannot be drawn is an error before any event is read."""
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    begun = Begun.with_tap(plan, SeededTap(0), Cut())
    begun.release(one, [one] * len(plan.sums))
    # Sums get noise only where the count has passed.
    noisy_sums(plan.sums, one, [one] * len(plan.sums), none, [Fresh(begun.session.tap)] * len(plan.sums))


class NoiseStage:
    """One release in the making: the shared noise is drawn once, then blocks of true counts come in.

    Of a block only what has passed noise and threshold is kept. Items of different pieces must differ, and are
    known to be `distinct` if an engine has counted them.
    """

    def __init__(
        self, plan: Plan, rule: Nonzero, names: Names, tap: Tap, cut: Cut, *, distinct: bool = False
    ) -> None:
        self.seen = Total()
        self._plan, self._rule, self._names, self._tap, self._distinct = plan, rule, names, tap, distinct
        self._begun = Begun.with_tap(plan, tap, cut)
        self._form = Form()
        self._last: Piece | None = None
        self._pieces = 0
        self._items: list[tuple[Any, ...]] = []
        self._numbers: list[tuple[FloatArray, ...]] = []

    def add(self, block: list[Span]) -> None:
        """Noise and threshold for a block."""
        true = counts_of(block)
        self.seen = self.seen.after(true)
        released = self._begun.release(true, sums_of(block))
        self._numbers.append((released.values, *released.sums))
        offset = 0
        for span in block:
            self._check_form(span.piece)
            first, last = np.searchsorted(released.index, [offset, offset + span.stop - span.start])
            where = released.index[first:last] - offset + span.start
            # Even if it has no rows, the first piece gives an empty result its types.
            if where.size or not self._items:
                self._items.append(tuple(take_rows(column, where) for column in span.piece.items))
            offset += span.stop - span.start

    def _check_form(self, piece: Piece) -> None:
        if self._last is None:
            self._form = piece.form
        elif piece.form != self._form:
            raise InvalidParameter("all batches must be of one kind")
        elif piece.form.types != self._form.types:
            self._form = replace(self._form, types=())
        if piece is not self._last:
            self._last, self._pieces = piece, self._pieces + 1

    def release(self, limit: int | None = None) -> Release:
        """What has passed, the largest counts first; the `limit` largest, if there is one."""
        plan = self._plan
        columns = tuple(join_rows(parts) for parts in zip(*self._items, strict=True))
        if not self._items:
            columns = tuple(objects([]) for _ in self._names.items)
        counts, *sums = (
            np.concatenate([np.empty(0), *(numbers[place] for numbers in self._numbers)])
            for place in range(1 + len(plan.sums))
        )
        if self._rule is Nonzero.PROMISED and self.seen.nonzero > plan.contract.nonzero:
            # Not an error, which would reveal data: an empty release reveals the least.
            order = np.empty(0, dtype=np.int64)
        elif self._pieces > 1 and not self._distinct and has_repeats(columns):
            raise InvalidParameter("items must differ across batches, and a released item occurs twice")
        else:
            order = release_order(counts, columns)[:limit]
        return Release(
            tuple(take_rows(column, order) for column in columns),
            counts[order],
            plan.certificate,
            plan,
            self._tap.private,
            self._names,
            self._form,
            self._begun.offset,
            sums=tuple(column[order] for column in sums),
        )
