"""What each analysis, the paper's and the exact one, says of noise: sensitivities, delta, the least tau."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Final, Literal

import numpy as np

from dphist.errors import InvalidParameter, NotPrivate, positive_number
from dphist.model import Budget, Contract, Noise, gamma_from
from dphist.paper import bounds as paper
from dphist.proof import exact
from dphist.proof.continuous import CERTIFICATE_GAP
from dphist.proof.numerics import probability_some_passes
from dphist.proof.searches import least_passing, log_excess

# Gamma is the ratio of a count's own variance to the shared one; outside this range one of them is negligible.
Gamma = float | Literal["sqrt"]
LEAST_GAMMA: Final = 0.01
LARGEST_GAMMA: Final = 1e15
_LEAST_TAU_PER_SIGMA: Final = 1e-9


@dataclass(frozen=True)
class Exact:
    """This project's analysis: exact pure cases, and the offset bound for mixtures of changed and new counts.

    `extra` is what sums beside a changed count add to the squared sensitivity.
    """

    adds_deltas: ClassVar[bool] = False
    extra: float = 0.0

    def sensitivity(self, contract: Contract, gamma: float) -> float:
        """For sigma = 1, without new counts."""
        squared = exact.largest_squared_sensitivity(
            shared=contract.nonzero, most=float(contract.items), gamma=gamma, extra=self.extra
        )
        return math.sqrt(float(squared))

    def infinite(self, contract: Contract, noise: Noise, smallest: float) -> float:
        """delta if all counts of the user are new."""
        return float(exact.infinite_event(noise, contract.items, smallest=smallest)[0])

    def mixed_tau(self, contract: Contract, noise: Noise, budget: Budget) -> float:
        """The least tau, not below that of `noise`, at which all mixtures are within the budget."""
        if contract.items < 2:
            return noise.tau
        enough, epsilon = budget.delta, budget.epsilon
        while True:
            blocks = exact.mixed_blocks(noise, contract, epsilon=epsilon, enough=enough, relative=0.0)
            if blocks.maximum <= enough:
                return noise.tau
            # The certificate bounds a mixture by chords, which are slightly higher: leave room for them.
            enough = budget.delta * (1.0 - 2.0 * CERTIFICATE_GAP)
            raised = _tau_for_mixture(contract, noise, enough, epsilon, blocks.argument)
            # A block that was not resolved to single cases needs slightly more than any of them.
            noise = replace(noise, tau=max(raised, noise.tau * (1.0 + 1e-7)))


@dataclass(frozen=True)
class PaperAnalysis:
    """An analysis of the paper, which has delta in closed form.

    With `adds_deltas`, `lem:related-add-the-delta` and `thm:algorithm-privacy-add-the-deltas`: noise and threshold
    share delta. Otherwise the worst case, by `lem:related-GSHM` without shared noise and, with it, by
    `thm:privacy-tighter-analysis`, which uses k only.
    """

    extra: ClassVar[float] = 0.0
    adds_deltas: bool

    def sensitivity(self, contract: Contract, gamma: float) -> float:
        return math.sqrt(contract.items) if math.isinf(gamma) else math.sqrt(contract.nonzero + gamma) / 2.0

    def delta(self, contract: Contract, noise: Noise, epsilon: float) -> float:
        numbers = {"sigma": noise.sigma, "tau": noise.tau, "epsilon": epsilon}
        if noise.sigma_shared == 0.0:
            gshm = paper.delta_gshm_add_the_deltas if self.adds_deltas else paper.delta_gshm_exact
            return gshm(m=contract.items, **numbers)
        csh = paper.delta_csh_add_the_deltas if self.adds_deltas else paper.delta_csh_tighter
        return csh(k=int(contract.nonzero), sigma_shared=noise.sigma_shared, **numbers)

    def infinite(self, contract: Contract, noise: Noise, smallest: float) -> float:
        if noise.sigma_shared == 0.0:
            return float(probability_some_passes(contract.items, noise.tau / noise.sigma))
        numbers = {"sigma": noise.sigma, "sigma_shared": noise.sigma_shared, "tau": noise.tau}
        return float(exact.infinite_event_upper(count=contract.nonzero, **numbers))

    def mixed_tau(self, contract: Contract, noise: Noise, budget: Budget) -> float:
        def delta(tau: float) -> float:
            return self.delta(contract, replace(noise, tau=tau), budget.epsilon)

        return _tau_for_delta(delta, noise.tau, budget.delta)


Analysis = Exact | PaperAnalysis
PAPER_ANALYSES: Final[dict[str, PaperAnalysis]] = {
    "gshm-add-the-deltas": PaperAnalysis(adds_deltas=True), "gshm-exact": PaperAnalysis(adds_deltas=False),
    "csh-add-the-deltas": PaperAnalysis(adds_deltas=True), "csh-tighter": PaperAnalysis(adds_deltas=False),
}  # fmt: skip
ANALYSES_BY_NAME: Final[dict[str, Analysis]] = {"exact": Exact(), **PAPER_ANALYSES}


def _tau_for_delta(delta: Callable[[float], float], start: float, target: float) -> float:
    """`start` if it passes, otherwise the least tau above it that does."""

    def excess(tau: float) -> float:
        return log_excess(delta(tau), target)

    return start if excess(start) <= 0.0 else least_passing(excess, start * 1.01, relative=1e-12)


def _tau_for_mixture(contract: Contract, noise: Noise, target: float, epsilon: float, new: int) -> float:
    """The least tau at which neighbours with `new` new counts are within the target, by the offset bound."""
    one = np.array([new], dtype=np.int64)

    def delta(tau: float) -> float:
        moved = replace(noise, tau=tau)
        return float(exact.mixed_blocks_upper(moved, contract, one, one, epsilon=epsilon, smallest=target)[0])

    return _tau_for_delta(delta, noise.tau, target)


@lru_cache(maxsize=256)
def tau_of_infinite_event(
    analysis: Analysis, contract: Contract, *, sigma: float, sigma_shared: float, delta: float
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
    analysis: Analysis, contract: Contract, budget: Budget, *, sigma: float, sigma_shared: float
) -> float:
    """The least tau for a given noise, over all cases; infinite if the noise alone is too small.

    Guarantee: the returned tau was tested and passed, except where the deltas are added with shared noise.
    """
    numbers = {"sigma": sigma, "epsilon": budget.epsilon, "delta": budget.delta}
    if analysis.adds_deltas and sigma_shared == 0.0:
        return paper.tau_gshm_add_the_deltas(m=contract.items, **numbers)
    if analysis.adds_deltas:
        try:
            return paper.tau_csh_add_the_deltas(k=int(contract.nonzero), sigma_shared=sigma_shared, **numbers)
        except NotPrivate:
            return math.inf
    sensitivity = analysis.sensitivity(contract, gamma_from(sigma, sigma_shared))
    if paper.delta_gaussian(sensitivity=sensitivity, sigma=sigma, epsilon=budget.epsilon) > budget.delta:
        return math.inf
    tau = tau_of_infinite_event(analysis, contract, sigma=sigma, sigma_shared=sigma_shared, delta=budget.delta)
    return analysis.mixed_tau(contract, Noise(sigma, sigma_shared, tau, analysis.extra), budget)


def least_sigma(analysis: Analysis, contract: Contract, budget: Budget, gamma: float) -> float:
    """The least sigma at which the noise alone, without new counts, is private."""
    largest = paper.largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    return analysis.sensitivity(contract, gamma) / largest


def gamma_value(gamma: Gamma, contract: Contract) -> float:
    """Gamma as a number; `sqrt` means the paper's sqrt(max_nonzero)."""
    if isinstance(gamma, str):
        if gamma != "sqrt":
            raise InvalidParameter(f"gamma must be 'sqrt' or a number, not {gamma!r}")
        if contract.max_nonzero is None:
            raise InvalidParameter("gamma = 'sqrt' needs <--max-nonzero>")
        return math.sqrt(contract.max_nonzero)
    number = positive_number("gamma", gamma)
    if not LEAST_GAMMA <= number <= LARGEST_GAMMA:
        raise InvalidParameter(f"gamma must be between {LEAST_GAMMA:g} and {LARGEST_GAMMA:g}, not {gamma!r}")
    return number
