"""How many users have how many items, with noise: the first step of a release that chooses its cap."""

from __future__ import annotations

from collections.abc import Sequence

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import checked_counts
from dphist.sampling.samplers import DiscreteGaussian
from dphist.sampling.tap import Tap
from dphist.types import CapChoice


def noisy_sizes(choice: CapChoice, sizes: Sequence[int], tap: Tap) -> tuple[int, ...]:
    """The users of each bucket of `choice`, each with fresh discrete Gaussian noise of its variance.

    All buckets get noise, empty ones too; none is dropped. `sizes` are true counts, and are repeated in no error.
    """
    counts = checked_counts(list(sizes), lattice=1)
    if counts.size != choice.buckets:
        raise InvalidParameter(f"there must be {choice.buckets} buckets of users, not {counts.size}")
    noise = DiscreteGaussian(choice.variance).draw(counts.size, tap)
    return tuple((counts + noise).tolist())
