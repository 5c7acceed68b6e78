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
        return Noise(sigma, shared, self.tau(sigma, shared), self.analysis.extra)

    def at_least_tau(self, gamma: float) -> Noise:
        """The plan of least threshold for this gamma.

        Unless a mixture binds, tau grows with sigma and the least sigma is best. Otherwise sigma is searched where
        delta is closed form; where it is an integral, a louder plan was never seen to have a lower tau.
        """
        first = self.at_least_noise(gamma)
        closed = self.analysis.closed_form or math.isinf(gamma)
        if not closed or first.tau <= round_up(self.optimistic_tau(gamma)):
            return first

        def louder(stretch: float) -> Noise:
            sigma, shared = self.rounded(first.sigma * stretch, gamma)
            return Noise(sigma, shared, self.tau(sigma, shared), self.analysis.extra)

        stretch, tau = golden_minimum(lambda x: louder(x).tau, 1.0, _WIDEST_SIGMA, tolerance=1e-4)
        return first if first.tau <= tau else louder(stretch)

    def best(self, gamma: float, objective: Objective) -> Noise:
        """The best plan for this gamma."""
        return self.at_least_tau(gamma) if objective == "threshold" else self.at_least_noise(gamma)


def tuned(calibration: Calibration, objective: Objective) -> Noise:
    """The best plan over gamma, never worse than without shared noise."""
    without = calibration.best(math.inf, objective)
    contract = calibration.contract
    if contract.max_nonzero is None or contract.items < 2:
        return without
    quietest = _best_gamma(calibration, _total_noise(calibration), quietest_on_grid(calibration))
    if objective == "noise":
        found = calibration.at_least_noise(quietest)
        return found if found.total_noise < without.total_noise * (1.0 - 1e-9) else without
    searched = _best_gamma(calibration, calibration.optimistic_tau, quietest)
    candidates = (quietest, searched, math.sqrt(contract.max_nonzero))
    found = calibration.at_least_tau(min(candidates, key=calibration.optimistic_tau))
    return found if found.tau < without.tau * (1.0 - 1e-9) else without


def least_total_noise(calibration: Calibration) -> Noise:
    """The quietest noise over gamma as far as a coarse grid knows; tau plays no part in it."""
    gammas = [math.inf]
    if calibration.contract.max_nonzero is not None and calibration.contract.items > 1:
        gammas.append(quietest_on_grid(calibration))

    def noise(gamma: float) -> Noise:
        sigma = calibration.least_sigma(gamma)
        return Noise(sigma, sigma / math.sqrt(gamma), sigma, calibration.analysis.extra)

    return min((noise(gamma) for gamma in gammas), key=lambda found: found.total_noise)


def _total_noise(calibration: Calibration) -> Callable[[float], float]:
    def total(gamma: float) -> float:
        return calibration.analysis.sensitivity(calibration.contract, gamma) * math.sqrt(1.0 + 1.0 / gamma)

    return total


def quietest_on_grid(calibration: Calibration) -> float:
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
