"""The discrete correlated Gaussian mechanism for a known, public domain: no threshold, every key is released."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dphist.errors import InvalidParameter
from dphist.mechanisms.base import IntArray, Released, checked_counts, shared_steps
from dphist.sampling.draws import Draws, Fresh
from dphist.sampling.samplers import DiscreteGaussian
from dphist.sampling.tap import Tap
from dphist.types import Certificate, Contract, LatticeNoise


@dataclass(frozen=True)
class KnownDomainSession:
    """One run: a shared draw, and fresh noise for every key, zero counts included."""

    noise: LatticeNoise
    domain: int
    shared: int = field(repr=False)
    tap: Tap

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """All noisy counts of a batch of keys."""
        checked = checked_counts(counts, lattice=self.noise.lattice)
        if checked.size > self.domain:
            # The number of keys is public here, so saying it gives nothing away.
            raise InvalidParameter(f"a batch of {checked.size} keys exceeds the public domain of {self.domain}")
        rows = np.arange(checked.size, dtype=np.int64)
        steps = (draws or Fresh(self.tap)).of(DiscreteGaussian(self.noise.variance), rows)
        steps += checked * self.noise.lattice + self.shared
        return Released(rows, steps / self.noise.lattice)


@dataclass(frozen=True)
class KnownDomainMechanism:
    """Algorithm 4 of the paper on a lattice as fine as wanted: counts of a public list of keys.

    The contract's `max_nonzero` is the number of keys. The limit of `noise` plays no part.
    """

    noise: LatticeNoise
    contract: Contract
    certificate: Certificate
    name: str = "known-domain"

    def begin(self, tap: Tap) -> KnownDomainSession:
        """Draw the shared noise, once."""
        return KnownDomainSession(self.noise, int(self.contract.nonzero), shared_steps(self.noise, tap), tap)
