"""The only place where true counts meet noise, in this process and on Spark's executors.

Every mechanism is one formula on a lattice of whole steps. For a true count H,

    noisy = H + (Z + W + c)/lattice,    released iff H > 0 and H + (Z + W)/lattice > 1 + tau,

with fresh noise Z for each count, one draw W shared by all counts (0 if the plan shares no noise) and the noisy
offset c of a top-k step (0 without one). A public list of items has no threshold, and its zero counts are released
too.

`begin` draws the shared noise. The resulting `NoiseSession` adds noise to batches of counts and applies the
threshold. `release_blocks` does so for a whole histogram in this process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.aliases import ArrowArray, ArrowColumn
from dphist.certificate.numbers import count_decimals
from dphist.certificate.plans import Nonzero
from dphist.counting.columns import as_numpy, has_repeats, item_column, join_rows, release_order, take_rows
from dphist.counting.task import Counted, RoundsTask, Secret, Task
from dphist.errors import InvalidParameter
from dphist.ledger.schema import Receipt
from dphist.model import LaplaceNoise, LatticeNoise, Plan
from dphist.releasing.aggregates import Columns
from dphist.releasing.request import Request
from dphist.releasing.result import ARROW, Form, Names, Release
from dphist.sampling.rng import Rng, SeededRng
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, Draws, ExactSampler, Fresh

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# A double holds whole numbers up to this exactly.
LARGEST_EXACT: Final = 2**53
# Counts that get noise at once: few enough for the CPU's cache.
CACHED_ROWS: Final = 1 << 17
# For fewer counts than this, importing the compiled sampler costs more time than it saves.
COMPILED_FROM: Final = 1 << 20


def noise_of_group(noise: LaplaceNoise | LatticeNoise) -> ExactSampler:
    """The law of the noise of a count, or of the users with one item."""
    return DiscreteLaplace(noise.scale) if isinstance(noise, LaplaceNoise) else DiscreteGaussian(noise.variance)


def check_counts(counts: object, *, lattice: int) -> IntArray:
    """Counts as int64. Error messages never contain a count: true counts are secret."""
    array = np.asarray(counts)
    if array.ndim != 1:
        raise InvalidParameter(f"counts must be one-dimensional, not of shape {array.shape}")
    if array.dtype.kind == "f":
        if np.isnan(array).any():
            raise InvalidParameter("counts must not be NaN")
        if (array != np.floor(array)).any():
            raise InvalidParameter("counts must be whole numbers")
    elif array.dtype.kind not in "iu":
        raise InvalidParameter(f"counts must be numbers, not of type {array.dtype}")
    if array.size and (array.min() < 0 or array.max() > LARGEST_EXACT // lattice):
        raise InvalidParameter(f"all counts must be between 0 and 2^53/{lattice}")
    return array.astype(np.int64, copy=False)


# The mechanism.


@dataclass(frozen=True, repr=False)
class Subtracted(Secret):
    """What is subtracted from every count before noise is added.

    `floor` is the count of rank k + 1 in a top-k step, and secret. `lower` is the fixed lower threshold: counts
    below it were removed, and `lower` - 1 is subtracted so that the others start at 1 again. That is added back to
    released counts, unless they are a `difference` from the count of rank k + 1.
    """

    floor: int = 0
    lower: int = 1
    difference: bool = False

    @property
    def restored(self) -> int:
        """Added back to every released count."""
        return 0 if self.difference else self.lower - 1

    @property
    def subtracted(self) -> int:
        """What the top-k step subtracts, on the scale that starts at the lower threshold."""
        return max(self.floor - (self.lower - 1), 0)

    def apply(self, counts: IntArray) -> IntArray:
        """Subtract, and set counts that are not positive to 0 (Algorithm 3 of the paper)."""
        amount = self.lower - 1 + self.subtracted
        return np.maximum(counts - amount, 0) if amount else counts


@dataclass(frozen=True)
class Released:
    """The part of a batch that may be published: positions in increasing order, and their noisy counts.

    `sums` are noisy too. They are sums of distances from the middle of each range, as values.
    """

    index: IntArray
    values: FloatArray
    sums: tuple[FloatArray, ...] = ()


@dataclass(frozen=True)
class NoiseSession:
    """One run of a plan's mechanism on one histogram; `begin` starts it.

    `shared` is the draw that all counts share, secret like all noise. `offset` is the noisy count that a top-k
    step subtracted; it is added to every released count. Both are in steps.
    """

    plan: Plan
    rng: Rng
    cut: Subtracted
    shared: int = field(default=0, repr=False)
    offset: int = field(default=0, repr=False)

    @property
    def noise(self) -> LatticeNoise | LaplaceNoise:
        assert isinstance(self.plan.noise, (LatticeNoise, LaplaceNoise))
        return self.plan.noise

    @property
    def noisy_offset(self) -> float | None:
        """The noisy count that a top-k step subtracted, which may be published; None without one."""
        return self.offset / self.noise.lattice if self.plan.releases_offset else None

    def release(
        self, counts: IntArray, sums: Sequence[IntArray] = (), draws: Sequence[Draws] | None = None
    ) -> Released:
        """The noisy counts of a batch that pass the threshold, with noisy sums of the same items.

        Sums come in whole steps, one for each column of a vector. `draws` are independent sources of noise, one
        for the counts and one for each of these sums; without them all noise is fresh.
        """
        plan = self.plan
        draws = [Fresh(self.rng)] * (1 + len(plan.summed)) if draws is None else draws
        remaining = check_counts(self.cut.apply(counts), lattice=plan.steps_of_count)
        if plan.noise.public and remaining.size > plan.contract.nonzero:
            # The length of a public list may be in the message.
            raise InvalidParameter(
                f"a batch of {remaining.size} keys exceeds the public domain of {plan.contract.nonzero:.0f}"
            )
        compiled = True if remaining.size >= COMPILED_FROM else None
        blocks = [
            self._release_block(remaining[start : start + CACHED_ROWS], start, draws[0], compiled)
            for start in range(0, max(remaining.size, 1), CACHED_ROWS)
        ]
        index, values = (np.concatenate(column) for column in zip(*blocks, strict=True))
        return Released(index, values + self.cut.restored, self.noisy_sums(counts, sums, index, draws[1:]))

    def _release_block(
        self, counts: IntArray, start: int, draws: Draws, compiled: bool | None
    ) -> tuple[IntArray, FloatArray]:
        """The formula at the top of this file, for consecutive counts of a batch."""
        noise = self.noise
        law, public = noise_of_group(noise), noise.public
        present = np.arange(counts.size, dtype=np.int64) if public else np.flatnonzero(counts)
        steps = draws.of(law, present + start, compiled=compiled)
        steps += counts[present] * self.plan.steps_of_count
        if not public:
            # The comparison is in whole steps, so that nothing is rounded before it.
            passed = np.flatnonzero(steps > noise.lattice + noise.tau_steps - self.shared)
            present, steps = present[passed], steps[passed]
        return present + start, (steps + (self.shared + self.offset)) / noise.lattice

    def noisy_sums(
        self, counts: IntArray, sums: Sequence[IntArray], index: IntArray, draws: Sequence[Draws]
    ) -> tuple[FloatArray, ...]:
        """Noisy sums of the distances from the middle of each range, as values, at the positions `index`.

        `counts` are true numbers of users. `sums` are in steps from the lower end of each range; those of vectors
        are relative to the middle already. Only released items need noise, because
        whether an item is released depends on its count alone.
        """
        noisy_sums = []
        for noise, steps, source in zip(self.plan.summed, sums, draws, strict=True):
            is_centred = noise.columns > 1
            # The middle is `reach` steps above the lower end, so one user changes the centred sum by at most that.
            centred = steps[index] if is_centred else steps[index] - noise.reach * counts[index]
            noisy = centred + source.of(DiscreteGaussian(noise.variance), index)
            noisy_sums.append(np.asarray(noisy * float(noise.step), dtype=np.float64))
        return tuple(noisy_sums)


def begin(plan: Plan, rng: Rng, cut: Subtracted | None = None) -> NoiseSession:
    """Start a session: draw the noise that all batches share, and the noise of the offset if there is one.

    For a count C that a top-k step subtracts, the noisy offset is C + (Z - W)/lattice by the rule `opposite` and
    C + Z/lattice by the rule `independent`, with noise Z of its own.
    """
    cut, noise = cut or Subtracted(), plan.noise
    if noise.mechanism == "laplace":
        return NoiseSession(plan, rng, cut)
    if not isinstance(noise, LatticeNoise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    shared = _draw_shared(noise, rng)
    if not plan.releases_offset:
        return NoiseSession(plan, rng, cut, shared)
    offset = cut.subtracted * noise.lattice + _draw_shared(noise, rng)
    return NoiseSession(plan, rng, cut, shared, offset - shared if noise.offset == "opposite" else offset)


def _draw_shared(noise: LatticeNoise, rng: Rng) -> int:
    if noise.variance_shared == 0:
        return 0
    return int(DiscreteGaussian(noise.variance_shared).draw(1, rng)[0])


def check_drawing(plan: Plan) -> None:
    """Draw noise for a synthetic count: noise that cannot be drawn must be an error before events are read."""
    one, first = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    session, sums = begin(plan, SeededRng(0)), [one] * len(plan.summed)
    session.release(one, sums)
    # The count has probably not passed the threshold, so no noise was drawn for its sums yet.
    session.noisy_sums(one, sums, first, [Fresh(session.rng)] * len(sums))


# A whole histogram in this process.


@dataclass(frozen=True)
class CountRows:
    """Rows of a histogram: the item's columns, true counts, and sums in steps."""

    form: Form
    items: tuple[ArrowColumn, ...] = field(repr=False)
    counts: IntArray = field(repr=False)
    sums: tuple[IntArray, ...] = field(default=(), repr=False)
    size: int = field(default=0, repr=False)  # bytes, if blocks are limited by them

    def part(self, start: int, stop: int) -> CountRows:
        """Consecutive rows, not copied: they keep the whole piece in memory."""
        items = tuple(column[start:stop] for column in self.items)
        sums = tuple(column[start:stop] for column in self.sums)
        return CountRows(self.form, items, self.counts[start:stop], sums)


def blocks(pieces: Iterable[CountRows], size: int, most: int | None = None) -> Iterator[list[CountRows]]:
    """Blocks of exactly `size` rows (the last one may be smaller), independent of how the pieces were cut.

    A block ends earlier once its pieces hold `most` bytes.
    """
    block: list[CountRows] = []
    room = size
    held = 0
    for piece in pieces:
        if piece.counts.size == 0:
            block.append(piece)  # no rows, but it has the types of the columns
        start = 0
        while start < piece.counts.size:
            stop = min(piece.counts.size, start + room)
            block.append(piece.part(start, stop))
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


def engine_pieces(counted: Counted, plan: Plan) -> Iterator[CountRows]:
    """The batches of an engine, after an empty one that has their types."""
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in counted.schema], schema=counted.schema)
    width = len(counted.schema) - len(plan.summed) - 1
    for batch in chain([empty], counted.batches()):
        counts, *sums = (as_numpy(column) for column in batch.columns[width:])
        yield CountRows(ARROW, tuple(batch.columns[:width]), counts, tuple(sums), batch.nbytes)


def counts_of(block: list[CountRows]) -> IntArray:
    return block[0].counts if len(block) == 1 else np.concatenate([piece.counts for piece in block])


@dataclass(frozen=True)
class Total:
    """Totals of a histogram, to detect that a second reading returned other data."""

    rows: int = field(default=0, repr=False)
    nonzero: int = field(default=0, repr=False)
    mass: int = field(default=0, repr=False)

    def after(self, counts: IntArray) -> Total:
        """The totals including these counts."""
        nonzero = self.nonzero + int(np.count_nonzero(counts))
        return Total(self.rows + counts.size, nonzero, (self.mass + int(counts.sum())) % 2**64)


def release_blocks(
    blocks: Iterable[list[CountRows]],
    session: NoiseSession,
    rule: Nonzero,
    names: Names,
    *,
    distinct: bool = False,
    limit: int | None = None,
    expected: Total | None = None,
) -> Release:
    """Release a histogram that comes in blocks. Only what passes the threshold is kept of each block.

    Items must differ between pieces: pass `distinct` if they are known to, which saves the check. With a `limit`,
    only that many of the largest counts are released. `expected` are the totals of an earlier reading.
    """
    plan, form, pieces, seen = session.plan, ARROW, 0, Total()
    items: list[tuple[ArrowArray, ...]] = []
    numbers: list[tuple[FloatArray, ...]] = []
    for block in blocks:
        true_counts = counts_of(block)
        seen = seen.after(true_counts)
        true_sums = [np.concatenate(parts) for parts in zip(*(piece.sums for piece in block), strict=True)]
        released = session.release(true_counts, true_sums)
        numbers.append((released.values, *released.sums))
        start = 0
        for piece in block:
            if pieces and form != piece.form:
                raise InvalidParameter("all batches must be of the same type")
            form = piece.form if not pieces or form.types == piece.form.types else replace(form, types=())
            pieces += 1
            stop = start + piece.counts.size
            first, last = np.searchsorted(released.index, [start, stop])
            # The first piece gives an empty result its types, even if the piece has no rows.
            if first < last or not items:
                positions = released.index[first:last] - start
                items.append(tuple(take_rows(column, positions) for column in piece.items))
            start = stop
    if expected is not None and seen != expected:
        raise InvalidParameter(
            "the batches were not the same at the second reading: return the same ones each time"
        )
    columns = tuple(map(join_rows, zip(*items, strict=True))) or (item_column([]),) * len(names.items)
    counts, *sums = (
        np.concatenate([np.empty(0), *(parts[place] for parts in numbers)])
        for place in range(1 + len(plan.summed))
    )
    if rule is Nonzero.PROMISED and seen.nonzero > plan.contract.nonzero:
        # An error would reveal that the guaranteed bound does not hold; an empty release reveals the least.
        order = np.empty(0, dtype=np.int64)
    elif pieces > 1 and not distinct and has_repeats(columns):
        raise InvalidParameter("a released item occurs in two batches: each item must be in only one")
    else:
        order = release_order(counts, columns)[:limit]
    rows = tuple(take_rows(column, order) for column in columns)
    sums = [column[order] for column in sums]
    private, offset = session.rng.private, session.noisy_offset
    return Release(rows, counts[order], plan, private, names, form, offset, sums=tuple(sums))


@dataclass(frozen=True)
class Job:
    """A release that is planned and booked: what to count, and how to add noise."""

    request: Request
    plan: Plan
    rule: Nonzero
    task: Task | RoundsTask
    rng: Rng
    receipt: Receipt | None

    @property
    def names(self) -> Names:
        return Names(self.request.item_columns, self.request.count_name)

    @property
    def columns(self) -> Columns:
        return Columns.of(self.request)

    def begin(self, at_rank: int) -> NoiseSession:
        """Start the noise; `at_rank` is the true count at the task's rank, and secret."""
        top_k = self.rule is Nonzero.TOP_K
        difference = top_k and self.request.offset == "none"
        return begin(
            self.plan, self.rng, Subtracted(at_rank if top_k else 0, self.request.lower_threshold, difference)
        )

    def complete(self, release: Release) -> Release:
        """Add what the certificate records, as plain data: a release must not keep the events in memory."""
        return replace(
            release, request=self.request.recorded(), receipt=self.receipt,
            decimals=count_decimals(self.plan, whole=self.request.round),
        )  # fmt: skip
