"""The Laplace stability histogram on whole counts: the classic for users with one item."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from dphist.analysis.laplace import certify_discrete_laplace, tau_laplace
from dphist.errors import NotPrivate
from dphist.mechanisms.base import IntArray, Released, checked_counts
from dphist.sampling.draws import Draws, Fresh
from dphist.sampling.samplers import DiscreteLaplace
from dphist.sampling.tap import Tap
from dphist.types import Budget, Certificate, Contract, LaplaceNoise


@dataclass(frozen=True)
class LaplaceSession:
    """One run: fresh noise for every non-zero count, none of it shared."""

    scale: Fraction
    limit: int
    tap: Tap

    def release(self, counts: IntArray, draws: Draws | None = None) -> Released:
        """Noisy counts strictly above the threshold."""
        checked = checked_counts(counts, lattice=1)
        present = np.flatnonzero(checked)
        noisy = checked[present] + (draws or Fresh(self.tap)).of(DiscreteLaplace(self.scale), present)
        passed = noisy > 1 + self.limit
        return Released(present[passed], noisy[passed].astype(np.float64))


@dataclass(frozen=True)
class LaplaceMechanism:
    """Discrete Laplace noise of a rational scale on non-zero counts, released iff strictly above 1 + limit."""

    scale: Fraction
    limit: int
    contract: Contract
    certificate: Certificate
    name: str = "laplace"

    @classmethod
    def for_budget(cls, budget: Budget, contract: Contract) -> LaplaceMechanism:
        """The least noise and limit for a budget: scale m/epsilon, exactly, and the least whole limit."""
        scale = Fraction(contract.items) / Fraction(budget.epsilon)
        limit = int(tau_laplace(m=contract.items, scale=float(scale), delta=budget.delta, discrete=True))
        for candidate in (limit, limit + 1):
            certificate = certify_discrete_laplace(scale, candidate, contract, epsilon=budget.epsilon)
            if certificate.delta <= budget.delta:
                return cls(scale, candidate, contract, certificate)
        raise NotPrivate(f"no limit near {limit} is certified for {budget}")

    @property
    def threshold(self) -> float:
        """A noisy count is released if it is strictly greater."""
        return 1.0 + self.limit

    @property
    def variance(self) -> float:
        """Variance of a noisy count."""
        return LaplaceNoise(self.scale, self.limit).sigma ** 2

    def begin(self, tap: Tap) -> LaplaceSession:
        """Nothing is shared, so nothing is drawn yet."""
        return LaplaceSession(self.scale, self.limit, tap)
