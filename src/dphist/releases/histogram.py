"""`release_histogram`: noise and threshold for people who counted by themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import IntArray, Released, Session
from dphist.mechanisms.family import FamilyMechanism
from dphist.releases.blocks import Largest, Span, blocks, counts_of
from dphist.releases.order import release_order
from dphist.releases.result import Release
from dphist.releases.soundness import Nonzero, certified, nonzero_rule
from dphist.releases.sources import Form, Names, Piece, Source, checked_names, source_of
from dphist.sampling.tap import SecureTap, SeededTap, Tap
from dphist.types import LatticeNoise, Plan

# Rows that meet noise together: enough for the compiled sampler, and some 150 MB of working memory.
BATCH_SIZE: Final = 1 << 22


def release_histogram(
    items: Any,
    counts: Any = None,
    plan: Plan | None = None,
    *,
    item: str | Sequence[str] = "item",
    count: str = "count",
    seed: int | None = None,
    batch_size: int = BATCH_SIZE,
    promise_max_nonzero: bool = False,
) -> Release:
    """Noisy counts above the threshold, for a histogram that was counted elsewhere.

    Give `items` and `counts` (lists, numpy, Series of pandas or polars, Arrow arrays), or a frame in place of both
    (pandas, polars, Arrow) with the names of its columns in `item` and `count`, or batches of either. All batches
    share one draw. `to_native()` of the result has the kind that came in.

    A plan with `max_nonzero` alone is kept by the top-k step: the (max_nonzero + 1)-th largest count is subtracted
    from all. That reads the data twice. `promise_max_nonzero` says that no possible dataset has more non-zero
    counts; then nothing is subtracted, and nothing is released should the data have more.
    That one user touches at most `max_items_per_user` counts, each by one, cannot be seen in counts: it is the
    caller's promise, always. `seed` is for tests: what it makes is not private.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise="discrete")
    >>> release_histogram(["tea", "rare"], [5000, 1], plan, seed=1).items
    ['tea']
    """
    sound = certified(plan)
    rule = nonzero_rule(sound, promised=promise_max_nonzero)
    names = checked_names(item, count)
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise InvalidParameter(f"batch_size must be a whole number of at least 1, not {batch_size!r}")
    tap: Tap = SecureTap() if seed is None else SeededTap(seed)
    assert isinstance(sound.noise, LatticeNoise)
    source = source_of(items, counts, names, lattice=sound.noise.lattice)
    if rule is Nonzero.TOP_K and not source.again:
        raise InvalidParameter(
            "a plan with max_nonzero reads the data twice, and this stream can be read only once: give a function "
            "that starts it anew, a list of batches or a frame, or promise_max_nonzero=True if that bound holds"
        )
    return _release(source, sound, rule, names, tap, int(batch_size))


def _release(source: Source, plan: Plan, rule: Nonzero, names: Names, tap: Tap, size: int) -> Release:
    """Both passes. Nothing leaves before the last block was checked."""
    total = Total()
    floor = 0
    if rule is Nonzero.TOP_K:
        assert plan.contract.max_nonzero is not None
        floor, total = _floor(source, plan.contract.max_nonzero + 1, size)
    session = FamilyMechanism(plan).begin(tap)
    gathered = Gathered(names)
    seen = Total()
    for block in blocks(source.pieces(), size):
        true = counts_of(block)
        seen = seen.after(true)
        gathered.add(block, _noisy(session, true, floor))
    if rule is Nonzero.TOP_K and seen != total:
        raise InvalidParameter("the batches must be the same at both readings, and they were not")
    if rule is Nonzero.PROMISED and seen.nonzero > plan.contract.nonzero:
        # Never an error, for that would tell of the data; an empty release tells the least.
        gathered = gathered.nothing()
    columns, counts = gathered.sorted()
    return Release(columns, counts, plan.certificate, plan, tap.private, names, gathered.form)


@dataclass(frozen=True)
class Total:
    """Enough about the counts to notice that a second reading differs from the first."""

    rows: int = 0
    nonzero: int = 0
    mass: int = 0

    def after(self, counts: IntArray) -> Total:
        """With more counts."""
        nonzero = self.nonzero + int(np.count_nonzero(counts))
        return Total(self.rows + counts.size, nonzero, (self.mass + int(counts.sum())) % 2**64)


def _floor(source: Source, rank: int, size: int) -> tuple[int, Total]:
    """The count of this rank over all blocks, and what was seen."""
    largest, total = Largest(rank), Total()
    for block in blocks(source.pieces(), size):
        counts = counts_of(block)
        largest.show(counts)
        total = total.after(counts)
    return largest.value, total


def _noisy(session: Session, true: IntArray, floor: int) -> Released:
    """Algorithm 3 of the paper: less the (k+1)-th largest count, and what is not positive is no count."""
    return session.release(np.maximum(true - floor, 0) if floor else true)


class Gathered:
    """The released rows so far, in the kind they came in."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._parts: list[tuple[Any, ...]] = []
        self._values: list[NDArray[np.float64]] = []
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

    def sorted(self) -> tuple[tuple[Any, ...], NDArray[np.float64]]:
        """All rows in the order of the release, each item once."""
        kind = self.form.kind
        if not self._parts:
            empty: list[Any] = []
            return tuple(kind.column(empty, name) for name in self._names.items), np.empty(0, dtype=np.float64)
        columns = [kind.concat(parts) for parts in self._columns()]
        values = np.concatenate([*self._values, np.empty(0)])
        if self._pieces > 1 and kind.repeats(columns):
            raise InvalidParameter("items must differ across batches, and one that was to be released comes twice")
        order = release_order(values, [kind.keys(column) for column in columns])
        return tuple(kind.take(column, order) for column in columns), values[order]

    def _columns(self) -> Iterator[Sequence[Any]]:
        return zip(*self._parts, strict=True)
