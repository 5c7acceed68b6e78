"""Plans for the top-k step with a released offset: no bound on users is needed."""

from __future__ import annotations

import math

from scipy import special

from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.analysis.top_k import squared_sensitivity_top_k
from dphist.calibrate.lattice import on_lattice
from dphist.types import Budget, Certificate, Contract, LatticeNoise, Noise, OffsetRule


def top_k_noise(budget: Budget, contract: Contract, rule: OffsetRule) -> tuple[LatticeNoise, Certificate]:
    """Noise and threshold for the `max_nonzero` largest counts with their offset, and the certificate.

    Guarantee: the certificate's delta is within the budget.
    Source: `alg:top-k` with the offset of `sec:top-k` (rule `independent`) or our own (rule `opposite`).
    """
    k = contract.nonzero
    gamma = gamma_top_k(k, rule)
    squared = squared_sensitivity_top_k(shared=k, gamma=gamma, rule=rule)
    sigma = math.sqrt(squared) / largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    shared = sigma / math.sqrt(gamma)
    # Only a first guess, to find the lattice and to start the search of the limit.
    tau = math.hypot(sigma, shared) * -float(special.ndtri(budget.delta / (1.0 + k)))
    return on_lattice(Noise(sigma, shared, max(tau, sigma)), budget, contract, rule)


def gamma_top_k(k: float, rule: OffsetRule) -> int:
    """Gamma, a whole number, for shared and offset noise of one variance.

    The paper has sqrt k. With the opposite offset a count has the variance (k + 2 gamma)(1 + 1/gamma)/4 of a unit,
    which is least at sqrt(k/2); tau is least there as well, for W has the same variance as the offset's own noise.
    """
    if rule == "independent":
        return max(1, round(math.sqrt(k)))
    root = math.sqrt(k / 2.0)
    near = {max(1, math.floor(root)), math.ceil(root)}
    return min(near, key=lambda gamma: (k + 2.0 * gamma) * (1.0 + 1.0 / gamma))
