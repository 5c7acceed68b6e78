"""The family on a lattice: the GSHM without shared noise, the CSH with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import IntArray, Planned, Released, checked_counts, shared_steps
from dphist.sampling.draws import Draws, Fresh
from dphist.sampling.samplers import DiscreteGaussian
from dphist.sampling.tap import Tap
from dphist.types import LatticeNoise

_BLOCK: Final = 1 << 17
_COMPILED_FROM: Final = 1 << 20


@dataclass(frozen=True)
class FamilySession:
    """One run: a shared draw, and fresh noise for every non-zero count.

    `added` steps come to what has passed the threshold: the noisy offset of a top-k step.
    """

    noise: LatticeNoise
    shared: int = field(repr=False)  # a secret, like all that is drawn
    tap: Tap
    added: int = field(default=0, repr=False)

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noisy counts strictly above the threshold; zero counts draw nothing and are never released."""
        checked = checked_counts(counts, lattice=self.noise.lattice)
        # Many counts are worth the compiled kernel; blocks that stay in the cache are worth it too.
        compiled = True if checked.size >= _COMPILED_FROM else None
        source = draws or Fresh(self.tap)
        parts = [
            self._block(checked[start : start + _BLOCK], start, source, compiled)
            for start in range(0, max(checked.size, 1), _BLOCK)
        ]
        if len(parts) == 1:
            return parts[0]
        return Released(
            np.concatenate([part.index for part in parts]), np.concatenate([part.values for part in parts])
        )

    def _block(self, counts: IntArray, start: int, draws: Draws, compiled: bool | None) -> Released:
        """Noise and threshold for one block that starts at this position of the batch."""
        noise = self.noise
        present = np.flatnonzero(counts)
        steps = draws.of(DiscreteGaussian(noise.variance), present + start, compiled=compiled)
        steps += counts[present] * noise.lattice
        # noisy > 1 + tau, in whole steps: nothing is rounded before the comparison.
        passed = np.flatnonzero(steps > noise.lattice + noise.limit - self.shared)
        return Released(present[passed] + start, (steps[passed] + (self.shared + self.added)) / noise.lattice)


@dataclass(frozen=True)
class FamilyMechanism(Planned):
    """A plan of the family, ready to run.

    noisy_i = H_i + (Z_i + Z_shared)/lattice for every H_i > 0, released iff strictly greater than 1 + tau.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.plan.noise, LatticeNoise):
            raise InvalidParameter("only discrete noise can be drawn exactly: make the plan with noise='discrete'")
        if self.plan.mechanism not in ("gshm", "csh"):
            raise InvalidParameter(f"the plan is for {self.plan.mechanism}, not for the family")

    @property
    def name(self) -> str:
        """`gshm` or `csh`."""
        return self.plan.mechanism

    def begin(self, tap: Tap) -> FamilySession:
        """Draw the shared noise, once."""
        noise = self.plan.noise
        assert isinstance(noise, LatticeNoise)
        return FamilySession(noise, shared_steps(noise, tap), tap)
