"""Continuous noise, for experiments only: floating point cannot draw it, and what it draws can be attacked."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import FloatArray, IntArray, Planned, Released, checked_counts
from dphist.sampling.tap import Tap
from dphist.types import Certificate, Contract, Noise


def rounded_normals(n: int, tap: Tap) -> FloatArray:
    """n doubles near independent standard normals, by inversion of 53-bit uniforms. Not exact, not private."""
    uniforms = ((tap.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.asarray(special.ndtri(uniforms), dtype=np.float64)


@dataclass(frozen=True)
class IdealisedSession:
    """One run of the continuous family."""

    noise: Noise
    shared: float
    tap: Tap

    def release(self, counts: IntArray) -> Released:
        """Noisy counts strictly above the threshold."""
        checked = checked_counts(counts, lattice=1)
        present = np.flatnonzero(checked)
        noisy = checked[present] + self.noise.sigma * rounded_normals(present.size, self.tap) + self.shared
        passed = noisy > self.noise.threshold
        return Released(present[passed], noisy[passed])


@dataclass(frozen=True)
class IdealisedKnownDomainSession:
    """One run of continuous correlated noise on a known domain."""

    noise: Noise
    shared: float
    tap: Tap

    def release(self, counts: IntArray) -> Released:
        """All noisy counts of a batch of keys."""
        checked = checked_counts(counts, lattice=1)
        noisy = checked + self.noise.sigma * rounded_normals(checked.size, self.tap) + self.shared
        return Released(np.arange(checked.size, dtype=np.int64), noisy)


@dataclass(frozen=True)
class IdealisedKnownDomainMechanism:
    """The correlated Gaussian mechanism for a public list of keys, with continuous noise: for experiments only."""

    noise: Noise
    contract: Contract
    certificate: Certificate
    name: str = "known-domain-idealised"
    private: bool = False

    def begin(self, tap: Tap) -> IdealisedKnownDomainSession:
        """Draw the shared noise, once."""
        shared = self.noise.sigma_shared * float(rounded_normals(1, tap)[0])
        return IdealisedKnownDomainSession(self.noise, shared, tap)


@dataclass(frozen=True)
class IdealisedMechanism(Planned):
    """The family with continuous noise: its certificate speaks of real numbers, which this does not draw."""

    private: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.plan.noise, Noise):
            raise InvalidParameter("the idealised mechanism takes a plan with noise='continuous'")

    @property
    def name(self) -> str:
        """Marked for what it is."""
        return f"{self.plan.mechanism}-idealised"

    def begin(self, tap: Tap) -> IdealisedSession:
        """Draw the shared noise, once."""
        noise = self.plan.noise
        assert isinstance(noise, Noise)
        return IdealisedSession(noise, noise.sigma_shared * float(rounded_normals(1, tap)[0]), tap)
