"""The best noise for an analysis: sigma for a given gamma, and gamma itself.

An analysis is its two pure cases and the delta of everything together; the paper's first analyses add the deltas
of noise and threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from dphist.errors import NoPlan, NotPrivate
from dphist.privacy.certificate import CERTIFICATE_GAP
from dphist.privacy.exact import largest_squared_sensitivity, mixed_blocks, mixed_blocks_upper
from dphist.privacy.noise import Noise, gamma_from
from dphist.privacy.offset import infinite_event, infinite_event_upper
from dphist.privacy.paper import (
    delta_csh_add_the_deltas,
    delta_csh_tighter,
    delta_gaussian,
    delta_gshm_add_the_deltas,
    delta_gshm_exact,
    largest_sensitivity_per_sigma,
    tau_csh_add_the_deltas,
    tau_gshm_add_the_deltas,
)
from dphist.privacy.search import golden_minimum, least_passing, log_excess, round_up
from dphist.privacy.types import Budget, Contract, Objective

# The paper's first analyses as plans: the deltas of noise and threshold are added.


def add_the_deltas(budget: Budget, contract: Contract, gamma: float, objective: Objective) -> Noise:
    """The least threshold by adding the deltas: of the GSHM for infinite gamma, otherwise of the CSH."""
    least = least_sigma_add_the_deltas(budget, contract, gamma)
    if objective == "noise":
        raise NoPlan(
            "adding the deltas has no plan of least noise: "
            f"the threshold grows without bound as sigma nears {least:.10g}"
        )

    def tau_at(stretch: float) -> float:
        return tau_add_the_deltas(budget, contract, gamma, least * (1.0 + stretch))

    stretch, _ = golden_minimum(tau_at, 1e-6, 2.0, tolerance=1e-9)
    sigma = round_up(least * (1.0 + stretch))
    shared = 0.0 if math.isinf(gamma) else round_up(sigma / math.sqrt(gamma))
    tau = round_up(_tau_for_noise(budget, contract, sigma, shared))
    while _delta_add_the_deltas(budget, contract, Noise(sigma, shared, tau)) > budget.delta:
        tau = round_up(tau * (1.0 + 1e-12))
    return Noise(sigma, shared, tau)


def least_sigma_add_the_deltas(budget: Budget, contract: Contract, gamma: float) -> float:
    """The sigma at which the Gaussian part alone spends the whole delta."""
    largest = largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    if math.isinf(gamma):
        return math.sqrt(contract.items) / largest
    return math.sqrt(contract.nonzero + gamma) / 2.0 / largest


def tau_add_the_deltas(budget: Budget, contract: Contract, gamma: float, sigma: float) -> float:
    """The least tau at this sigma by adding the deltas; infinite where sigma is too small."""
    return _tau_for_noise(budget, contract, sigma, 0.0 if math.isinf(gamma) else sigma / math.sqrt(gamma))


def _tau_for_noise(budget: Budget, contract: Contract, sigma: float, sigma_shared: float) -> float:
    try:
        if sigma_shared == 0.0:
            return tau_gshm_add_the_deltas(
                m=contract.items, sigma=sigma, epsilon=budget.epsilon, delta=budget.delta
            )
        return tau_csh_add_the_deltas(
            k=int(contract.nonzero), sigma=sigma, sigma_shared=sigma_shared, epsilon=budget.epsilon,
            delta=budget.delta,
        )  # fmt: skip
    except NotPrivate:
        return math.inf


def _delta_add_the_deltas(budget: Budget, contract: Contract, noise: Noise) -> float:
    if noise.sigma_shared == 0.0:
        return delta_gshm_add_the_deltas(
            m=contract.items, sigma=noise.sigma, tau=noise.tau, epsilon=budget.epsilon
        )
    return delta_csh_add_the_deltas(
        k=int(contract.nonzero), sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau,
        epsilon=budget.epsilon,
    )  # fmt: skip


# What calibration needs to know of an analysis: its two pure cases and the delta of everything together.

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

    def round_up_noise(self, sigma: float, gamma: float) -> tuple[float, float]:
        """Sigma and sigma_shared rounded up: more of either only lowers the Gaussian part of delta."""
        sigma_up = round_up(sigma)
        return sigma_up, (0.0 if math.isinf(gamma) else round_up(sigma_up / math.sqrt(gamma)))

    def tau(self, sigma: float, sigma_shared: float) -> float:
        """The least tau for this noise over all cases, rounded up."""
        tau = least_tau(self.analysis, self.contract, self.budget, sigma=sigma, sigma_shared=sigma_shared)
        return round_up(tau) if math.isfinite(tau) else tau

    def optimistic_tau(self, gamma: float) -> float:
        """Tau at the least sigma if mixed cases do not bind, which they seldom do."""
        sigma, shared = self.round_up_noise(self.least_sigma(gamma), gamma)
        return tau_of_infinite_event(
            self.analysis, self.contract, sigma=sigma, sigma_shared=shared, delta=self.budget.delta
        )

    def at_least_noise(self, gamma: float) -> Noise:
        """The plan of least noise for this gamma, with the least tau that goes with it."""
        sigma, shared = self.round_up_noise(self.least_sigma(gamma), gamma)
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
            sigma, shared = self.round_up_noise(first.sigma * stretch, gamma)
            return Noise(sigma, shared, self.tau(sigma, shared), self.analysis.extra)

        stretch, tau = golden_minimum(lambda x: louder(x).tau, 1.0, _WIDEST_SIGMA, tolerance=1e-4)
        return first if first.tau <= tau else louder(stretch)

    def best(self, gamma: float, objective: Objective) -> Noise:
        """The best plan for this gamma."""
        return self.at_least_tau(gamma) if objective == "threshold" else self.at_least_noise(gamma)


def tune_gamma(calibration: Calibration, objective: Objective) -> Noise:
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
