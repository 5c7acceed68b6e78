"""The best noise for an analysis: sigma for a given gamma, and gamma itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.calibrate.analyses import CaseAnalysis, least_tau, tau_of_infinite_event
from dphist.numerics.search import golden_minimum, round_up
from dphist.types import Budget, Contract, Noise, Objective

# Beyond this spread of sigma above its least value no threshold has been seen to fall any more.
_WIDEST_SIGMA: Final = 1.5


@dataclass(frozen=True)
class Calibration:
    """One analysis, one budget, one contract: where the best plans are searched."""

    analysis: CaseAnalysis
    budget: Budget
    contract: Contract

    @cached_property
    def largest_mu(self) -> float:
        """The largest sensitivity per sigma that the budget allows when no count is new."""
        return largest_sensitivity_per_sigma(epsilon=self.budget.epsilon, delta=self.budget.delta)

    def least_sigma(self, gamma: float) -> float:
        """The least sigma for this gamma, not rounded."""
        return self.analysis.sensitivity(self.contract, gamma) / self.largest_mu

    def rounded(self, sigma: float, gamma: float) -> tuple[float, float]:
        """Sigma and sigma_shared rounded up: more of either only lowers the Gaussian part of delta."""
        sigma_up = round_up(sigma)
        return sigma_up, (0.0 if math.isinf(gamma) else round_up(sigma_up / math.sqrt(gamma)))

    def tau(self, sigma: float, sigma_shared: float) -> float:
        """The least tau for this noise over all cases, rounded up."""
        tau = least_tau(self.analysis, self.contract, self.budget, sigma=sigma, sigma_shared=sigma_shared)
        return round_up(tau) if math.isfinite(tau) else tau

    def optimistic_tau(self, gamma: float) -> float:
        """Tau at the least sigma if mixed cases do not bind, which they seldom do."""
        sigma, shared = self.rounded(self.least_sigma(gamma), gamma)
        return tau_of_infinite_event(
            self.analysis, self.contract, sigma=sigma, sigma_shared=shared, delta=self.budget.delta
        )

    def at_least_noise(self, gamma: float) -> Noise:
        """The plan of least noise for this gamma, with the least tau that goes with it."""
        sigma, shared = self.rounded(self.least_sigma(gamma), gamma)
        return Noise(sigma, shared, self.tau(sigma, shared))

    def at_least_tau(self, gamma: float) -> Noise:
        """The plan of least threshold for this gamma.

        Without binding mixtures tau grows with sigma, so the least sigma is best; otherwise sigma is searched.
        """
        first = self.at_least_noise(gamma)
        if first.tau <= round_up(self.optimistic_tau(gamma)):
            return first

        return self.stretched(gamma, first)

    def stretched(self, gamma: float, first: Noise) -> Noise:
        """The least threshold over sigma >= the least sigma, where a mixture binds at the least sigma."""
        plans = {1.0: first}

        def tau_at(stretch: float) -> float:
            sigma, shared = self.rounded(first.sigma * stretch, gamma)
            plans[stretch] = Noise(sigma, shared, self.tau(sigma, shared))
            return plans[stretch].tau

        widest = 1.002
        if tau_at(widest) >= first.tau:
            return first
        while tau_at(1.0 + 2.0 * (widest - 1.0)) < plans[widest].tau and widest < _WIDEST_SIGMA:
            widest = 1.0 + 2.0 * (widest - 1.0)
        golden_minimum(tau_at, 1.0, 1.0 + 2.0 * (widest - 1.0), tolerance=(widest - 1.0) / 8.0)
        return min(plans.values(), key=lambda noise: noise.tau)

    def best(self, gamma: float, objective: Objective) -> Noise:
        """The best plan for this gamma."""
        return self.at_least_tau(gamma) if objective == "threshold" else self.at_least_noise(gamma)


def tuned(calibration: Calibration, objective: Objective) -> Noise:
    """The best plan over gamma, never worse than without shared noise."""
    without = calibration.best(math.inf, objective)
    contract = calibration.contract
    if contract.max_nonzero is None or contract.items < 2:
        return without
    quietest = _best_gamma(calibration, _total_noise(calibration), _quietest_on_grid(calibration))
    if objective == "noise":
        found = calibration.at_least_noise(quietest)
        return found if found.total_noise < without.total_noise * (1.0 - 1e-9) else without
    gamma = min(
        quietest, _best_gamma(calibration, calibration.optimistic_tau, quietest), key=calibration.optimistic_tau
    )
    found = calibration.at_least_tau(gamma)
    if found.tau > round_up(calibration.optimistic_tau(gamma)):
        found = min(found, _tuned_with_mixtures(calibration, gamma), key=lambda noise: noise.tau)
    return found if found.tau < without.tau * (1.0 - 1e-9) else without


def _total_noise(calibration: Calibration) -> Callable[[float], float]:
    def total(gamma: float) -> float:
        return calibration.analysis.sensitivity(calibration.contract, gamma) * math.sqrt(1.0 + 1.0 / gamma)

    return total


def _quietest_on_grid(calibration: Calibration) -> float:
    """Gamma of least total noise on a coarse grid; the curve is closed form."""
    total = _total_noise(calibration)
    top = math.log10(calibration.contract.nonzero) + 4.0
    return min((float(g) for g in np.logspace(-2.0, top, 240)), key=total)


def _best_gamma(calibration: Calibration, objective: Callable[[float], float], start: float) -> float:
    """Minimise over log gamma around `start`, then try the kinks nearby.

    The sensitivity is a maximum over integers s, with kinks where k + gamma is odd; minima like to sit there.
    """

    def by_log(log_gamma: float) -> float:
        return objective(math.exp(log_gamma))

    centre, width = math.log(start), math.log(8.0)
    log_best, _ = golden_minimum(by_log, centre - width, centre + width, tolerance=0.01)
    best = math.exp(log_best)
    k, m = int(calibration.contract.nonzero), calibration.contract.items
    nearest = 2 * round((best + k - 1) / 2) + 1 - k
    kinks = [float(g) for g in range(nearest - 4, nearest + 5, 2) if g > 0 and (g + k) / 2 < m + 1]
    return min([best, *kinks], key=objective) if k <= 10_000 else best


def _tuned_with_mixtures(calibration: Calibration, gamma: float) -> Noise:
    """The best plan around gamma where mixed cases bind: every step is a search of its own, so few steps."""
    plans: dict[float, Noise] = {}

    def tau(log_gamma: float) -> float:
        plans[log_gamma] = calibration.at_least_tau(math.exp(log_gamma))
        return plans[log_gamma].tau

    centre, width = math.log(gamma), math.log(2.0)
    best, _ = golden_minimum(tau, centre - width, centre + width, tolerance=0.25)
    return plans[best]
