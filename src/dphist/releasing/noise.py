"""The only place where true counts meet noise, in this process and on Spark's executors.

Every mechanism is one formula on a lattice of whole steps. For a count H of a batch,

    noisy = H + (Z + W + c)/lattice,    released iff H > 0 and H + (Z + W)/lattice > 1 + tau,

with fresh noise Z for each count, one shared draw W for all (0 where the plan shares nothing) and the offset c
of a top-k step (0 without one). With spread, H is a sum of weights, which are whole steps. A public list of items
has no threshold, and its zero counts are released as well.

`begin` draws the shared noise; the `NoiseSession` then adds noise to batches of counts and drops what does not
pass the threshold. `NoiseStage` does so for the blocks of a histogram in this process, and gathers what passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.counting.task import Counted, Task
from dphist.errors import InvalidParameter, package
from dphist.planning.utility import Correction, added_columns
from dphist.privacy.types import CapChoice, LaplaceNoise, LatticeNoise, Plan, PublicNoise
from dphist.releasing.document import Chosen, Nonzero
from dphist.releasing.result import (
    ARROW,
    Form,
    Names,
    Release,
    as_numpy,
    has_repeats,
    join_rows,
    objects,
    one_chunk,
    release_order,
    take_rows,
)
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, Draws, ExactSampler, Fresh
from dphist.sampling.tap import SeededTap, Tap

if TYPE_CHECKING:
    from dphist.releasing.aggregates import Aggregate
    from dphist.releasing.request import Request

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Counts are whole numbers of steps that a double holds exactly.
LARGEST_EXACT: Final = 2**53
# Blocks that stay in the cache; and from how many counts on the compiled kernel is worth its import.
_BLOCK: Final = 1 << 17
_COMPILED_FROM: Final = 1 << 20
# Made once for each variance: an audit runs many sessions.
_gaussian = lru_cache(maxsize=16)(DiscreteGaussian)
_laplace = lru_cache(maxsize=16)(DiscreteLaplace)


# True counts, as they come in.


def check_counts(counts: object, *, lattice: int) -> IntArray:
    """Counts as int64. The error repeats no count: a true count is a secret."""
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
        raise InvalidParameter(f"counts must be between 0 and 2^53/{lattice}, and one of them is not")
    return array.astype(np.int64, copy=False)


def numbers_of(column: Any) -> NDArray[Any]:
    """A column of counts as numpy has it, without nulls. No error repeats a count."""
    if isinstance(column, np.ma.MaskedArray):
        raise InvalidParameter("counts must not be masked: a masked count is a null")
    if isinstance(column, np.ndarray):
        return _whole_numbers(column) if column.dtype.kind == "O" else column
    if column.null_count > 0:
        raise InvalidParameter("counts must not be null")
    types = package("pyarrow").types
    if types.is_integer(column.type) or types.is_floating(column.type):
        return as_numpy(one_chunk(column))
    return _whole_numbers(objects(column.to_pylist()))


def _whole_numbers(values: NDArray[Any]) -> NDArray[Any]:
    if any(value is None for value in values):
        raise InvalidParameter("counts must not be null")
    real = (int, float, Decimal, Fraction, np.integer, np.floating)
    if any(isinstance(value, (bool, np.bool_)) or not isinstance(value, real) for value in values):
        raise InvalidParameter("counts must be numbers, and one of them is not")
    if any(value != value for value in values):
        raise InvalidParameter("counts must not be NaN")
    if any(not 0 <= value <= 2**53 for value in values):
        raise InvalidParameter("counts must be between 0 and 2^53, and one of them is not")
    if any(value != int(value) for value in values):
        raise InvalidParameter("counts must be whole numbers")
    return np.array([int(value) for value in values], dtype=np.int64)


@dataclass(frozen=True)
class Piece:
    """Some rows: the item's columns, checked counts, and the sums of an engine in its steps."""

    form: Form
    items: tuple[Any, ...] = field(repr=False)
    counts: IntArray = field(repr=False)
    sums: tuple[IntArray, ...] = field(default=(), repr=False)
    size: int = field(default=0, repr=False)  # in bytes, where blocks are bounded by them

    def part(self, start: int, stop: int) -> Piece:
        """Some consecutive rows, not copied: they keep the whole piece in memory."""
        items, sums = (tuple(column[start:stop] for column in columns) for columns in (self.items, self.sums))
        return Piece(self.form, items, self.counts[start:stop], sums)


def blocks(pieces: Iterable[Piece], size: int, most: int | None = None) -> Iterator[list[Piece]]:
    """Blocks of exactly `size` rows, the last one smaller: the same rows however the pieces were cut.

    A block ends earlier if its pieces hold `most` bytes.
    """
    block: list[Piece] = []
    room = size
    held = 0
    for piece in pieces:
        if piece.counts.size == 0:
            block.append(piece)  # no rows, but it has the kind
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


def engine_pieces(counted: Counted, plan: Plan) -> Iterator[Piece]:
    """The batches of an engine, after an empty one that has their types."""
    pa = package("pyarrow")
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, one.type) for one in counted.schema], schema=counted.schema)
    place = len(counted.schema) - len(plan.sums) - 1
    for batch in chain([empty], counted.batches()):
        columns = list(batch.columns)
        numbers = check_counts(numbers_of(columns[place]), lattice=plan.steps_of_count)
        sums = tuple(numbers_of(column) for column in columns[place + 1 :])
        yield Piece(ARROW, tuple(columns[:place]), numbers, sums, batch.nbytes)


def counts_of(block: list[Piece]) -> IntArray:
    """The counts of a block, not copied where they lie together."""
    return block[0].counts if len(block) == 1 else np.concatenate([piece.counts for piece in block])


def largest_counts(known: IntArray, more: IntArray, rank: int) -> IntArray:
    """The `rank` largest positive counts of both."""
    candidates = np.concatenate([known, more[more > 0]])
    return candidates if candidates.size <= rank else np.partition(candidates, -rank)[-rank:]


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


# The mechanism.


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
    def restored(self) -> int:
        """What is added to every count that has passed the threshold."""
        return 0 if self.difference else self.lower - 1

    @property
    def subtracted(self) -> int:
        """The top-k step's part, on the scale that begins at the lower threshold."""
        return max(self.floor - (self.lower - 1), 0)

    def apply(self, counts: IntArray) -> IntArray:
        """Algorithm 3 of the paper: subtract, and drop what is not positive."""
        amount = self.lower - 1 + self.subtracted
        return np.maximum(counts - amount, 0) if amount else counts


@dataclass(frozen=True)
class Released:
    """What may be published: positions in the batch, increasing, and their noisy counts. No true count is in it.

    `sums` are noisy too: those around the middles of their ranges, as values.
    """

    index: IntArray
    values: FloatArray
    sums: tuple[FloatArray, ...] = ()


@dataclass(frozen=True)
class NoiseSession:
    """One run of a plan's mechanism on one histogram. The shared draw is a secret, like all noise.

    `offset` is in steps, and added to every released count: what a top-k step subtracted, with noise.
    """

    plan: Plan
    tap: Tap
    cut: Cut
    shared: int = field(default=0, repr=False)
    offset: int = field(default=0, repr=False)

    @property
    def noise(self) -> LatticeNoise | LaplaceNoise:
        """The plan's noise, which can be drawn exactly."""
        assert isinstance(self.plan.noise, (LatticeNoise, LaplaceNoise))
        return self.plan.noise

    @property
    def noisy_offset(self) -> float | None:
        """The noisy value of what a top-k step subtracted, which may be published; None without one."""
        return self.offset / self.noise.lattice if self.plan.releases_offset else None

    def release(
        self, counts: IntArray, sums: Sequence[IntArray] = (), draws: Sequence[Draws] | None = None
    ) -> Released:
        """The noisy counts of a batch that pass the threshold, with their noisy sums. Sums come in whole steps.

        `draws` are for the counts and for each of the sums, all different; without them the noise is fresh.
        """
        plan = self.plan
        sources = [Fresh(self.tap)] * (1 + len(plan.sums)) if draws is None else draws
        rest = check_counts(self.cut.apply(counts), lattice=plan.steps_of_count)
        if isinstance(plan.noise, PublicNoise) and rest.size > plan.contract.nonzero:
            # The number of keys is public here, so the message may contain it.
            raise InvalidParameter(
                f"a batch of {rest.size} keys exceeds the public domain of {plan.contract.nonzero:.0f}"
            )
        compiled = True if rest.size >= _COMPILED_FROM else None
        parts = [
            self._release_block(rest[start : start + _BLOCK], start, sources[0], compiled)
            for start in range(0, max(rest.size, 1), _BLOCK)
        ]
        index, values = (np.concatenate(column) for column in zip(*parts, strict=True))
        around = self.noisy_sums(counts, sums, index, sources[1:]) if plan.sums else ()
        return Released(index, values + self.cut.restored, around)

    def _release_block(
        self, counts: IntArray, start: int, draws: Draws, compiled: bool | None
    ) -> tuple[IntArray, FloatArray]:
        noise = self.noise
        law: ExactSampler = _laplace(noise.scale) if isinstance(noise, LaplaceNoise) else _gaussian(noise.variance)
        public = isinstance(noise, PublicNoise)
        present = np.arange(counts.size, dtype=np.int64) if public else np.flatnonzero(counts)
        steps = draws.of(law, present + start, compiled=compiled)
        steps += counts[present] * self.plan.steps_of_count
        if not public:
            # noisy > 1 + tau, in whole steps: nothing is rounded before the comparison.
            passed = np.flatnonzero(steps > noise.lattice + noise.limit - self.shared)
            present, steps = present[passed], steps[passed]
        return present + start, (steps + (self.shared + self.offset)) / noise.lattice

    def noisy_sums(
        self, counts: IntArray, sums: Sequence[IntArray], index: IntArray, draws: Sequence[Draws]
    ) -> tuple[FloatArray, ...]:
        """The sums around the middle of each range, with noise, at the positions `index` of a batch: as values.

        `counts` are the true numbers of users, `sums` in steps from the lower end of the range; those of weighted
        users are around the middle already. Only what is released needs noise: whether an item is depends on its
        count alone.
        """
        weighted, released = bool(self.plan.levels), []
        for one, steps, source in zip(self.plan.sums, sums, draws, strict=True):
            # Every user is taken at the middle, `reach` steps from the lower end: one user moves this by that at
            # most.
            around = steps[index] if weighted else steps[index] - one.reach * counts[index]
            noisy = around + source.of(_gaussian(one.variance), index)
            released.append(np.asarray(noisy * float(one.step), dtype=np.float64))
        return tuple(released)


def begin(plan: Plan, tap: Tap, cut: Cut | None = None) -> NoiseSession:
    """Draw what all batches share, once; and the noise of the offset where the plan releases one.

    With c the count that a top-k step subtracts, the noisy offset is c + (Z_c - W)/lattice for the rule `opposite`
    and c + Z_c/lattice for `independent`.
    """
    cut, noise = cut or Cut(), plan.noise
    if isinstance(noise, LaplaceNoise):
        return NoiseSession(plan, tap, cut)
    if not isinstance(noise, LatticeNoise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    shared = _draw_shared(noise, tap)
    if not plan.releases_offset:
        return NoiseSession(plan, tap, cut, shared)
    own = _draw_shared(noise, tap)
    offset = cut.subtracted * noise.lattice + own - (shared if noise.offset == "opposite" else 0)
    return NoiseSession(plan, tap, cut, shared, offset)


def _draw_shared(noise: LatticeNoise, tap: Tap) -> int:
    if noise.variance_shared == 0:
        return 0
    return int(_gaussian(noise.variance_shared).draw(1, tap)[0])


def noisy_sizes(choice: CapChoice, sizes: Sequence[int], tap: Tap) -> tuple[int, ...]:
    """How many users have how many items: each bucket of `choice` with fresh noise of its variance.

    All buckets get noise, empty ones too; none is dropped. `sizes` are true counts, and no error repeats them.
    """
    counts = check_counts(list(sizes), lattice=1)
    if counts.size != choice.buckets:
        raise InvalidParameter(f"there must be {choice.buckets} buckets of users, not {counts.size}")
    noise = DiscreteGaussian(choice.variance).draw(counts.size, tap)
    return tuple((counts + noise).tolist())


def rehearse(plan: Plan) -> None:
    """Draw noise for an invented count: noise that cannot be drawn is an error before any event is read."""
    one, none = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    session, sums = begin(plan, SeededTap(0)), [one] * len(plan.sums)
    session.release(one, sums)
    # Sums get noise only where the count has passed.
    session.noisy_sums(one, sums, none, [Fresh(session.tap)] * len(sums))


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
        self._session = begin(plan, tap, cut)
        self._form = Form()
        self._pieces = 0
        self._items: list[tuple[Any, ...]] = []
        self._numbers: list[tuple[FloatArray, ...]] = []

    def add(self, block: list[Piece]) -> None:
        """Noise and threshold for a block."""
        true = counts_of(block)
        self.seen = self.seen.after(true)
        sums = [np.concatenate(parts) for parts in zip(*(piece.sums for piece in block), strict=True)]
        released = self._session.release(true, sums)
        self._numbers.append((released.values, *released.sums))
        start = 0
        for piece in block:
            self._check_form(piece)
            stop = start + piece.counts.size
            first, last = np.searchsorted(released.index, [start, stop])
            # Even if it has no rows, the first piece gives an empty result its types.
            if first < last or not self._items:
                where = released.index[first:last] - start
                self._items.append(tuple(take_rows(column, where) for column in piece.items))
            start = stop

    def _check_form(self, piece: Piece) -> None:
        if self._pieces == 0:
            self._form = piece.form
        elif piece.form != self._form:
            raise InvalidParameter("all batches must be of one kind")
        elif piece.form.types != self._form.types:
            self._form = replace(self._form, types=())
        self._pieces += 1

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
            plan,
            self._tap.private,
            self._names,
            self._form,
            self._session.noisy_offset,
            sums=tuple(column[order] for column in sums),
        )


@dataclass(frozen=True)
class Columns:
    """The columns of numbers that are published, wherever noise is added: here or on executors."""

    count: str
    error: bool
    interval: float | None
    rounded: bool
    aggregates: tuple[Aggregate, ...] = ()
    correction: Correction | None = None

    @classmethod
    def of(cls, request: Request, correction: Correction | None = None) -> Columns:
        """The columns of a request."""
        return cls(
            request.count_name, request.standard_error, request.interval, request.round, request.aggregates,
            correction,
        )  # fmt: skip

    def numbers(
        self, values: NDArray[np.float64], sums: Sequence[NDArray[np.float64]], plan: Plan
    ) -> dict[str, NDArray[Any]]:
        """The columns by their names, for these noisy counts and sums."""
        noisy, added = added_columns(
            values, plan, self.count, error=self.error, interval=self.interval, rounded=self.rounded,
            correction=self.correction,
        )  # fmt: skip
        columns = {self.count: noisy, **added}
        if self.aggregates:
            from dphist.releasing.aggregates import Published, published_sums

            columns |= published_sums(values, sums, plan, self.aggregates, Published(self.error, self.interval))
        if self.correction is not None:
            factors = self.correction.factors_at(noisy)
            totals = [one.name for one in self.aggregates if one.kind == "sum"]
            columns |= {f"{name}_estimate": columns[name] * factors for name in totals}
        return columns


@dataclass(frozen=True)
class Job:
    """A release that is planned and booked: what to count, and what noise to add."""

    request: Request
    plan: Plan
    rule: Nonzero
    task: Task
    tap: Tap
    chosen: Chosen | None
    receipt: Mapping[str, Any] | None

    @property
    def names(self) -> Names:
        """Names of the columns of items and counts."""
        return Names(tuple(column.name for column in self.request.columns), self.request.count_name)

    @property
    def columns(self) -> Columns:
        """The columns of numbers that are published; estimates need a limit that was chosen."""
        return Columns.of(self.request, None if self.chosen is None else self.chosen.correction)

    def cut(self, at_rank: int) -> Cut:
        """What is taken from every count before noise; `at_rank` is the count after the largest ones, a secret."""
        top_k = self.rule is Nonzero.TOP_K
        difference = top_k and self.request.offset == "none"
        return Cut(at_rank if top_k else 0, self.request.lower_threshold, difference)

    def complete(self, release: Release) -> Release:
        """The release with what its certificate records. Plain data: a release must not keep the events alive."""
        return replace(release, request=self.request.to_dict(), chosen=self.chosen, receipt=self.receipt)
