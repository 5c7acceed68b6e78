"""Many independent sessions of one mechanism on one small histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import FloatArray, IntArray, Mechanism
from dphist.mechanisms.family import FamilyMechanism
from dphist.sampling.samplers import DiscreteGaussian
from dphist.sampling.tap import Tap
from dphist.types import LatticeNoise

_CELLS: Final = 1 << 22  # of noise at once: 32 MB


def simulate(mechanism: Mechanism, counts: Sequence[int], runs: int, tap: Tap) -> FloatArray:
    """Released values of `runs` independent sessions, a row each; NaN for what was not released.

    Guarantee: the distribution of one session per row through the protocol. The family's own class is drawn many
        sessions at a time; a subclass of it may differ, and goes through the protocol like everything else.
    """
    if type(mechanism) is FamilyMechanism:
        return _family(mechanism, np.asarray(counts, dtype=np.int64), runs, tap)
    return through_protocol(mechanism, [counts], runs, tap)


def through_protocol(mechanism: Mechanism, batches: Sequence[Sequence[int]], runs: int, tap: Tap) -> FloatArray:
    """The same by `begin` and `release` alone, the histogram cut into batches; columns follow the batches."""
    arrays = [np.asarray(batch, dtype=np.int64) for batch in batches]
    starts = np.cumsum([0, *(array.size for array in arrays)])
    out = np.full((runs, int(starts[-1])), np.nan)
    for row in out:
        session = mechanism.begin(tap)
        for start, array in zip(starts, arrays, strict=False):
            # The mechanism gets a copy: one that writes into its input must not change the next run.
            released = session.release(array.copy())
            row[start + released.index] = released.values
    return out


def _family(mechanism: FamilyMechanism, counts: IntArray, runs: int, tap: Tap) -> FloatArray:
    """The family, vectorised over sessions: the formula of `FamilySession`, a shared draw for each row."""
    noise = mechanism.plan.noise
    if not isinstance(noise, LatticeNoise):
        raise InvalidParameter("only discrete noise can be drawn")
    out = np.full((runs, counts.size), np.nan)
    present = np.flatnonzero(counts)
    rows = max(1, _CELLS // max(1, present.size))
    for start in range(0, runs, rows):
        size = min(rows, runs - start)
        steps = DiscreteGaussian(noise.variance).draw(size * present.size, tap).reshape(size, present.size)
        steps += counts[present] * noise.lattice
        if noise.variance_shared > 0:
            steps += DiscreteGaussian(noise.variance_shared).draw(size, tap)[:, None]
        values = steps / noise.lattice
        values[steps <= noise.lattice + noise.limit] = np.nan
        out[start : start + size, present] = values
    return out
