"""What calibration needs to know of an analysis: its two pure cases and the delta of everything together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from dphist.analysis.certificate import CERTIFICATE_GAP
from dphist.analysis.csh import delta_csh_tighter
from dphist.analysis.family import mixed_blocks, mixed_blocks_upper
from dphist.analysis.gaussian import delta_gaussian
from dphist.analysis.gshm import delta_gshm_exact
from dphist.analysis.infinite_event import infinite_event, infinite_event_upper
from dphist.analysis.sensitivity import largest_squared_sensitivity
from dphist.numerics.search import least_passing, log_excess
from dphist.types import Budget, Contract, Noise, gamma_from

_LEAST_TAU_PER_SIGMA: Final = 1e-9


class CaseAnalysis(Protocol):
    """An analysis that takes the worst of cases: no new count, only new counts, and mixtures."""

    @property
    def closed_form(self) -> bool:
        """Whether the mixed cases cost no integral."""

    @property
    def extra(self) -> float:
        """What sums beside a changed count add to the squared sensitivity, in units of the count's own."""

    def sensitivity(self, contract: Contract, gamma: float) -> float:
        """Sensitivity without new counts, for sigma = 1."""

    def infinite(self, contract: Contract, noise: Noise, smallest: float) -> float:
        """Delta when all the user's counts are new."""

    def mixed_tau(self, contract: Contract, noise: Noise, budget: Budget) -> float:
        """The least tau, not below the one in `noise`, at which the mixed cases are within the budget too."""


@dataclass(frozen=True)
class Exact:
    """This project's analysis: exact ends, and the offset bound between them."""

    closed_form: bool = False
    extra: float = 0.0

    def sensitivity(self, contract: Contract, gamma: float) -> float:
        """The exact one, over integers."""
        squared = largest_squared_sensitivity(
            shared=contract.nonzero, most=float(contract.items), gamma=gamma, extra=self.extra
        )
        return math.sqrt(float(squared))

    def infinite(self, contract: Contract, noise: Noise, smallest: float) -> float:
        """The exact integral."""
        value = infinite_event(
            count=contract.items, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau,
            smallest=smallest,
        )  # fmt: skip
        return float(value[0])

    def mixed_tau(self, contract: Contract, noise: Noise, budget: Budget) -> float:
        """Raise tau to satisfy the worst mixture, as often as another one takes its place."""
        if contract.items < 2:
            return noise.tau
        enough = budget.delta
        while True:
            blocks = mixed_blocks(noise, contract, epsilon=budget.epsilon, enough=enough, relative=0.0)
            if blocks.maximum <= enough:
                return noise.tau
            # The certificate bounds a mixture by chords, which lie a little above: leave them their room.
            enough = budget.delta * (1.0 - 2.0 * CERTIFICATE_GAP)
            raised = _tau_for_mixture(contract, noise, enough, budget.epsilon, blocks.argument)
            # A block that was not resolved to single cases asks for a hair more than any of them.
            noise = replace(noise, tau=max(raised, noise.tau * (1.0 + 1e-7)))


@dataclass(frozen=True)
class GshmExact:
    """`lem:related-GSHM`, without shared noise."""

    closed_form: bool = True
    extra: float = 0.0

    def sensitivity(self, contract: Contract, gamma: float) -> float:
        """Sqrt m."""
        return math.sqrt(contract.items)

    def infinite(self, contract: Contract, noise: Noise, smallest: float) -> float:
        """1 - Phi(tau/sigma)^m."""
        return float(infinite_event(count=contract.items, sigma=noise.sigma, sigma_shared=0.0, tau=noise.tau)[0])

    def mixed_tau(self, contract: Contract, noise: Noise, budget: Budget) -> float:
        """By the exact delta of the GSHM."""

        def delta(tau: float) -> float:
            return delta_gshm_exact(m=contract.items, sigma=noise.sigma, tau=tau, epsilon=budget.epsilon)

        return _tau_for_delta(delta, noise.tau, budget.delta)


@dataclass(frozen=True)
class CshTighter:
    """`thm:privacy-tighter-analysis`; it knows k alone."""

    closed_form: bool = True
    extra: float = 0.0

    def sensitivity(self, contract: Contract, gamma: float) -> float:
        """sqrt(k + gamma)/2."""
        return math.sqrt(contract.nonzero + gamma) / 2.0

    def infinite(self, contract: Contract, noise: Noise, smallest: float) -> float:
        """1 - psi(k)."""
        return float(
            infinite_event_upper(
                count=contract.nonzero, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau
            )
        )

    def mixed_tau(self, contract: Contract, noise: Noise, budget: Budget) -> float:
        """By the paper's maximum."""

        def delta(tau: float) -> float:
            return delta_csh_tighter(
                k=int(contract.nonzero), sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=tau,
                epsilon=budget.epsilon,
            )  # fmt: skip

        return _tau_for_delta(delta, noise.tau, budget.delta)


def _tau_for_delta(delta: Callable[[float], float], start: float, target: float) -> float:
    """`start` if it passes, otherwise the least tau above it that does."""

    def excess(tau: float) -> float:
        return log_excess(delta(tau), target)

    return start if excess(start) <= 0.0 else least_passing(excess, start * 1.01, relative=1e-12)


def _tau_for_mixture(contract: Contract, noise: Noise, target: float, epsilon: float, new: int) -> float:
    """The least tau at which neighbours with `new` new counts are within the target, by the offset bound."""
    one = np.array([new], dtype=np.int64)

    def delta(tau: float) -> float:
        deltas = mixed_blocks_upper(replace(noise, tau=tau), contract, one, one, epsilon=epsilon, smallest=target)
        return float(deltas.worst[0])

    return _tau_for_delta(delta, noise.tau, target)


def tau_of_infinite_event(
    analysis: CaseAnalysis, contract: Contract, *, sigma: float, sigma_shared: float, delta: float
) -> float:
    """The least tau at which the infinite event alone is within delta.

    Guarantee: the returned tau was tested and passed.
    """

    def excess(tau: float) -> float:
        noise = Noise(sigma, sigma_shared, tau, analysis.extra)
        return log_excess(analysis.infinite(contract, noise, delta * 1e-3), delta)

    # tau is positive by convention; a delta near 1 would let it vanish.
    floor = sigma * _LEAST_TAU_PER_SIGMA
    if excess(floor) <= 0.0:
        return floor
    # A little above sqrt(2 ln(m/delta)) standard deviations is where the solution lies.
    start = math.hypot(sigma, sigma_shared) * math.sqrt(2.0 * (math.log(contract.items) - math.log(delta)) + 1e-3)
    return least_passing(excess, start)


def least_tau(
    analysis: CaseAnalysis, contract: Contract, budget: Budget, *, sigma: float, sigma_shared: float
) -> float:
    """The least tau for a given noise, over all cases; infinite if the noise alone is too small.

    Guarantee: the returned tau was tested and passed.
    """
    sensitivity = analysis.sensitivity(contract, gamma_from(sigma, sigma_shared))
    if delta_gaussian(sensitivity=sensitivity, sigma=sigma, epsilon=budget.epsilon) > budget.delta:
        return math.inf
    tau = tau_of_infinite_event(analysis, contract, sigma=sigma, sigma_shared=sigma_shared, delta=budget.delta)
    return analysis.mixed_tau(contract, Noise(sigma, sigma_shared, tau, analysis.extra), budget)
