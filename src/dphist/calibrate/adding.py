"""The paper's first analyses as plans: the deltas of noise and threshold are added."""

from __future__ import annotations

import math

from dphist.analysis.csh import delta_csh_add_the_deltas, tau_csh_add_the_deltas
from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.analysis.gshm import delta_gshm_add_the_deltas, tau_gshm_add_the_deltas
from dphist.errors import NoPlan, NotPrivate
from dphist.numerics.search import golden_minimum, round_up
from dphist.types import Budget, Contract, Noise, Objective


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
