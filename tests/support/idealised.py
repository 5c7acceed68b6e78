"""Continuous noise, for tests only: floating point cannot draw it exactly, and what it draws can be attacked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from dphist.audit import PlannedMechanism
from dphist.model import Noise
from dphist.releasing.noise import FloatArray, IntArray, Released, check_counts
from dphist.sampling.rng import Rng


def rounded_normals(n: int, rng: Rng) -> FloatArray:
    """n doubles near independent standard normals, by inversion of 53-bit uniforms. Not exact, not private."""
    uniforms = ((rng.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.asarray(special.ndtri(uniforms), dtype=np.float64)


@dataclass(frozen=True)
class IdealisedSession:
    noise: Noise
    shared: float
    rng: Rng

    def release(self, counts: IntArray) -> Released:
        counts = check_counts(counts, lattice=1)
        present = np.flatnonzero(counts)
        noisy = counts[present] + self.noise.sigma * rounded_normals(present.size, self.rng) + self.shared
        passed = noisy > self.noise.threshold
        return Released(present[passed], noisy[passed])


@dataclass(frozen=True)
class IdealisedMechanism(PlannedMechanism):
    """The family with continuous noise: its certificate is for real numbers, which this does not draw."""

    def begin(self, rng: Rng) -> IdealisedSession:  # type: ignore[override]
        noise = self.plan.noise
        assert isinstance(noise, Noise)
        return IdealisedSession(noise, noise.sigma_shared * float(rounded_normals(1, rng)[0]), rng)
