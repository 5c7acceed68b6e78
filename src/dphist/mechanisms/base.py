"""What every mechanism looks like: begun once with a tap, then fed batches of one histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.sampling.draws import Draws
from dphist.sampling.samplers import DiscreteGaussian
from dphist.sampling.tap import Tap
from dphist.types import Certificate, Contract, LatticeNoise, Plan

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

LARGEST_COUNT: Final = 2**53


@dataclass(frozen=True)
class Released:
    """What may leave: positions in the batch, increasing, and their noisy counts. No true count is in it.

    `sums` are noisy too: those around the middles of their ranges, as values.
    """

    index: IntArray
    values: FloatArray
    sums: tuple[FloatArray, ...] = ()


class Session(Protocol):
    """One run of a mechanism: the shared noise is drawn, and serves every batch of the histogram."""

    def release(self, counts: IntArray) -> Released:
        """Noise and threshold for one batch of counts."""


class PlannedSession(Session, Protocol):
    """A session whose noise can also come from elsewhere than its own tap."""

    @property
    def tap(self) -> Tap:
        """Where its noise comes from otherwise."""

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noise and threshold for one batch of counts, the noise from `draws` if they are given."""


class Mechanism(Protocol):
    """A mechanism with its certificate."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def contract(self) -> Contract:
        """What its certificate takes for granted."""

    @property
    def certificate(self) -> Certificate:
        """The proof of its privacy."""

    def begin(self, tap: Tap) -> Session:
        """Draw the noise that all batches share. One session serves one histogram, once."""


def shared_steps(noise: LatticeNoise, tap: Tap) -> int:
    """The one draw that all counts of a session share, in steps; 0 where nothing is shared."""
    if noise.variance_shared == 0:
        return 0
    return int(DiscreteGaussian(noise.variance_shared).draw(1, tap)[0])


@dataclass(frozen=True)
class Planned:
    """A mechanism that is all in its plan."""

    plan: Plan

    @property
    def contract(self) -> Contract:
        """The plan's."""
        return self.plan.contract

    @property
    def certificate(self) -> Certificate:
        """The plan's."""
        return self.plan.certificate


def checked_counts(counts: object, *, lattice: int) -> IntArray:
    """Counts as int64, refused with one sentence that repeats no count: a true count is a secret."""
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
    if array.size and (array.min() < 0 or array.max() > LARGEST_COUNT // lattice):
        raise InvalidParameter(f"counts must be between 0 and 2^53/{lattice}, and one of them is not")
    return array.astype(np.int64, copy=False)
