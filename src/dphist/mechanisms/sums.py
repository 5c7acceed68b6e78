"""Sums beside the counts: noise for the sums of items whose counts have passed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dphist.mechanisms.base import FloatArray, IntArray
from dphist.sampling.draws import Draws
from dphist.sampling.samplers import DiscreteGaussian
from dphist.types import SumNoise


def noisy_sums(
    noise: Sequence[SumNoise],
    counts: IntArray,
    steps: Sequence[IntArray],
    index: IntArray,
    draws: Sequence[Draws],
) -> tuple[FloatArray, ...]:
    """The sums around the middle of each range, with noise, at the positions `index` of a batch: as values.

    `counts` are the true numbers of users, `steps` their sums in steps from the lower end of the range. Only what
    is released needs noise: whether an item is depends on its count alone.
    """
    released = []
    for one, whole, source in zip(noise, steps, draws, strict=True):
        # Every user is taken at the middle, `reach` steps from the lower end: one user moves this by that at most.
        around = whole[index] - one.reach * counts[index]
        noisy = around + source.of(DiscreteGaussian(one.variance), index)
        released.append(np.asarray(noisy * float(one.step), dtype=np.float64))
    return tuple(released)
