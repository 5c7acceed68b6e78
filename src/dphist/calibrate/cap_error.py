"""What a cap costs: an estimate of the mean error of released counts, from noisy sizes and a plan alone.

A model and no guarantee: privacy does not rest on it. docs/auto-cap.md says how far it is off on real data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.types import CapChoice, Plan

FloatArray = NDArray[np.float64]

# The commonest item is taken to be one of every fourth user; in real data it was one of every fourth to tenth.
_COMMONEST: Final = 0.25
_POINTS: Final = 64
# The laws that sizes are fitted with: Weibull, by the logarithm of its scale and by its shape. Small shapes have
# long tails.
_LOG_SCALES: Final = np.arange(-1.0, 8.76, 0.125)
_SHAPES: Final = np.array(
    [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0]
)
# A law is no better than to a tenth of a bucket; where a bucket is off by this many deviations, it is believed.
_LAW_ERROR: Final = 0.1
_SIGNIFICANT: Final = 4.0


@dataclass(frozen=True)
class Sizes:
    """Users by their number of items, as far as noise lets them be seen."""

    items: tuple[float, ...]
    users: tuple[float, ...]

    @property
    def total(self) -> float:
        """All users."""
        return sum(self.users)

    @property
    def pairs(self) -> float:
        """All (user, item) pairs."""
        return sum(n * size for n, size in zip(self.users, self.items, strict=True))

    def lost(self, cap: int) -> float:
        """The share of the pairs that a cap drops."""
        over = sum(n * max(0.0, size - cap) for n, size in zip(self.users, self.items, strict=True))
        return over / self.pairs if over > 0.0 else 0.0


def sizes_seen(choice: CapChoice, noisy: Sequence[int]) -> Sizes:
    """The sizes behind the noise: a smooth law fitted to all buckets, and the buckets that clearly differ from it.

    By itself a bucket of huge users that only noise has filled would count for more than all others. Users of a
    bucket are taken to be in its geometric middle.
    """
    found, deviation = np.asarray(noisy, dtype=np.float64), math.sqrt(choice.variance)
    seen = np.maximum(found, 0.0)
    law = _fitted(found, 1.0 / (deviation**2 + (_LAW_ERROR * seen) ** 2), choice)
    users = np.where(np.abs(found - law) > _SIGNIFICANT * deviation, seen, law)
    lower, edges = (0, *choice.caps), (*choice.caps, 2 * choice.caps[-1])
    # The middle of the whole numbers from lower + 1 to the edge.
    items = tuple(math.sqrt((low + 1) * edge) for low, edge in zip(lower, edges, strict=True))
    return Sizes(items, tuple(users.tolist()))


def _fitted(found: FloatArray, weights: FloatArray, choice: CapChoice) -> FloatArray:
    """The users of each bucket by the law with the least weighted squares, its total included."""
    log_scale, shape = (each.reshape(-1, 1) for each in np.meshgrid(_LOG_SCALES, _SHAPES))
    # Sizes are whole: at most m means below m + 1/2.
    height = np.log(np.array(choice.caps) + 0.5) - log_scale
    beyond = np.exp(-np.exp(np.minimum(shape * height, 700.0)))
    ends = np.ones_like(shape), np.zeros_like(shape)
    law = -np.diff(np.concatenate((ends[0], beyond, ends[1]), axis=1), axis=1)
    total = np.maximum(0.0, (law * weights) @ found / ((law * law) @ weights))
    misses = ((found - total[:, None] * law) ** 2) @ weights
    best = int(np.argmin(misses))
    return np.asarray(total[best] * law[best], dtype=np.float64)


def error_of_cap(plan: Plan, cap: int, sizes: Sizes) -> float:
    """The estimated mean distance of a released count from the true one.

        mean of E|N(lost c, noise^2)| over counts c with density proportional to 1/c^2 from the least count that is
        released to a quarter of the users

    The density is Zipf's law: the i-th largest count is proportional to 1/(i + q).
    """
    lost = sizes.lost(cap) if plan.contract.max_items_per_user == cap else 0.0
    largest = max(1.0, _COMMONEST * sizes.total)
    least = min(largest, max(1.0, plan.threshold / (1.0 - lost), _least_of_list(plan, sizes, largest)))
    # At evenly spaced shares of the released items, largest counts first.
    share = (np.arange(_POINTS) + 0.5) / _POINTS
    counts = 1.0 / (1.0 / largest + share * (1.0 / least - 1.0 / largest))
    bias, noise = lost * counts, plan.total_noise
    error = noise * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * (bias / noise) ** 2) + bias * special.erf(
        bias / (noise * math.sqrt(2.0))
    )
    return float(error.mean())


def _least_of_list(plan: Plan, sizes: Sizes, largest: float) -> float:
    """The least count among as many as can be released, where that is bounded: a public list, a top-k step."""
    bound = plan.contract.max_nonzero
    if bound is None or sizes.pairs <= 0.0:
        return 1.0
    # All counts from 1 to the largest make the pairs: the sum of a/(i + q) is a ln(largest).
    scale = sizes.pairs / max(1.0, math.log(largest))
    return scale / (bound + scale / largest)
