"""Where true counts meet noise: a plan's mechanism, begun once with a tap, then fed batches of one histogram.

Every mechanism is one formula on a lattice of whole steps. For a count H of a batch,

    noisy = H + (Z + W + c)/lattice,    released iff H > 0 and H + (Z + W)/lattice > 1 + tau,

with fresh noise Z for each count, one shared draw W for all (0 where the plan shares nothing) and the offset c
of a top-k step (0 without one). With spread, H is a sum of weights, which are whole steps. A public list of items
has no threshold, and its zero counts are released as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.privacy.types import CapChoice, LaplaceNoise, LatticeNoise, Plan, PublicNoise, SumNoise
from dphist.sampling.sampler import DiscreteGaussian, DiscreteLaplace, Draws, ExactSampler, Fresh
from dphist.sampling.tap import Tap

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

# Counts are whole numbers of steps that a double holds exactly.
LARGEST_EXACT: Final = 2**53
# Blocks that stay in the cache; and from how many counts on the compiled kernel is worth its import.
_BLOCK: Final = 1 << 17
_COMPILED_FROM: Final = 1 << 20


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
    """One run of a mechanism on one histogram. The shared draw and the offset are secrets, like all noise."""

    noise: LatticeNoise | LaplaceNoise
    tap: Tap
    steps_of_count: int
    shared: int = field(default=0, repr=False)
    offset: int = field(default=0, repr=False)
    public_items: int | None = None

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noise and threshold for one batch of counts; the noise comes from `draws`, or from the tap."""
        counts = check_counts(counts, lattice=self.steps_of_count)
        if self.public_items is not None and counts.size > self.public_items:
            # The number of keys is public here, so the message may contain it.
            raise InvalidParameter(
                f"a batch of {counts.size} keys exceeds the public domain of {self.public_items}"
            )
        compiled = True if counts.size >= _COMPILED_FROM else None
        source = draws or Fresh(self.tap)
        parts = [
            self._release_block(counts[start : start + _BLOCK], start, source, compiled)
            for start in range(0, max(counts.size, 1), _BLOCK)
        ]
        if len(parts) == 1:
            return parts[0]
        return Released(
            np.concatenate([part.index for part in parts]), np.concatenate([part.values for part in parts])
        )

    def _release_block(self, counts: IntArray, start: int, draws: Draws, compiled: bool | None) -> Released:
        noise = self.noise
        law: ExactSampler = (
            DiscreteLaplace(noise.scale) if isinstance(noise, LaplaceNoise) else DiscreteGaussian(noise.variance)
        )
        public = isinstance(noise, PublicNoise)
        present = np.arange(counts.size, dtype=np.int64) if public else np.flatnonzero(counts)
        steps = draws.of(law, present + start, compiled=compiled)
        steps += counts[present] * self.steps_of_count
        if not public:
            # noisy > 1 + tau, in whole steps: nothing is rounded before the comparison.
            passed = np.flatnonzero(steps > noise.lattice + noise.limit - self.shared)
            present, steps = present[passed], steps[passed]
        return Released(present + start, (steps + (self.shared + self.offset)) / noise.lattice)


def begin(plan: Plan, tap: Tap, *, subtracted: int = 0) -> tuple[NoiseSession, float | None]:
    """Draw what all batches share, once; and the noisy offset where the plan releases one.

    `subtracted` is the count c that a top-k step took from all others: a true count, a secret. Its noisy value is
    c + (Z_c - W)/lattice for the rule `opposite`, c + Z_c/lattice for `independent`; it may be published.
    """
    noise = plan.noise
    if isinstance(noise, LaplaceNoise):
        return NoiseSession(noise, tap, noise.lattice), None
    if not isinstance(noise, LatticeNoise):
        raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
    shared, each = _draw_shared(noise, tap), plan.steps_of_count
    if isinstance(noise, PublicNoise):
        return NoiseSession(noise, tap, each, shared, public_items=int(plan.contract.nonzero)), None
    if not plan.releases_offset:
        return NoiseSession(noise, tap, each, shared), None
    own = _draw_shared(noise, tap)
    offset = subtracted * noise.lattice + own - (shared if noise.offset == "opposite" else 0)
    return NoiseSession(noise, tap, each, shared, offset), offset / noise.lattice


def _draw_shared(noise: LatticeNoise, tap: Tap) -> int:
    if noise.variance_shared == 0:
        return 0
    return int(DiscreteGaussian(noise.variance_shared).draw(1, tap)[0])


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


def noisy_sums(
    noise: Sequence[SumNoise],
    counts: IntArray,
    steps: Sequence[IntArray],
    index: IntArray,
    draws: Sequence[Draws],
    *,
    weighted: bool = False,
) -> tuple[FloatArray, ...]:
    """The sums around the middle of each range, with noise, at the positions `index` of a batch: as values.

    `counts` are the true numbers of users, `steps` their sums in steps from the lower end of the range; those of
    `weighted` users are around the middle already. Only what is released needs noise: whether an item is depends
    on its count alone.
    """
    released = []
    for one, whole, source in zip(noise, steps, draws, strict=True):
        # Every user is taken at the middle, `reach` steps from the lower end: one user moves this by that at most.
        around = whole[index] if weighted else whole[index] - one.reach * counts[index]
        noisy = around + source.of(DiscreteGaussian(one.variance), index)
        released.append(np.asarray(noisy * float(one.step), dtype=np.float64))
    return tuple(released)


def noisy_sizes(choice: CapChoice, sizes: Sequence[int], tap: Tap) -> tuple[int, ...]:
    """How many users have how many items: each bucket of `choice` with fresh noise of its variance.

    All buckets get noise, empty ones too; none is dropped. `sizes` are true counts, and no error repeats them.
    """
    counts = check_counts(list(sizes), lattice=1)
    if counts.size != choice.buckets:
        raise InvalidParameter(f"there must be {choice.buckets} buckets of users, not {counts.size}")
    noise = DiscreteGaussian(choice.variance).draw(counts.size, tap)
    return tuple((counts + noise).tolist())
