"""Plans for the top-k step with a released offset: no bound on users is needed."""

from __future__ import annotations

import math
from dataclasses import replace

from scipy import special

from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.analysis.top_k import squared_sensitivity_top_k
from dphist.calibrate.lattice import on_lattice
from dphist.calibrate.sums import SumShares, total
from dphist.types import Budget, Certificate, Contract, LatticeNoise, Noise, OffsetRule


def top_k_noise(
    budget: Budget, contract: Contract, rule: OffsetRule, sums: SumShares | None = None
) -> tuple[LatticeNoise, Certificate]:
    """Noise and threshold for the `max_nonzero` largest counts with their offset, and the certificate.

    Guarantee: the certificate's delta is within the budget.
    Source: `alg:top-k` with the offset of `sec:top-k` (rule `independent`) or our own (rule `opposite`).
    """
    guess = first_guess(budget, contract, rule, total(sums))
    # To find the lattice and to start the search of the limit.
    tau = guess.total_noise * -float(special.ndtri(budget.delta / (1.0 + contract.nonzero)))
    return on_lattice(replace(guess, tau=max(tau, guess.sigma)), budget, contract, rule, sums)


def first_guess(budget: Budget, contract: Contract, rule: OffsetRule, extra: float) -> Noise:
    """The noise as it would be if it were continuous; tau plays no part in it."""
    k = contract.nonzero
    gamma = gamma_top_k(k, rule, extra)
    squared = squared_sensitivity_top_k(shared=k, gamma=gamma, rule=rule, extra=extra)
    sigma = math.sqrt(squared) / largest_sensitivity_per_sigma(epsilon=budget.epsilon, delta=budget.delta)
    return Noise(sigma, sigma / math.sqrt(gamma), sigma, extra)


def gamma_top_k(k: float, rule: OffsetRule, extra: float = 0.0) -> int:
    """Gamma, a whole number, for shared and offset noise of one variance.

    The paper has sqrt k. With the opposite offset a count has the variance (k + 2 gamma)(1 + 1/gamma)/4 of a unit,
    which is least at sqrt(k/2); tau is least there as well, for W has the same variance as the offset's own noise.
    Sums beside the counts weigh as 4 extra times as many further counts.
    """
    if rule == "independent":
        return max(1, round(math.sqrt(k)))
    counts = k * (1.0 + 4.0 * extra)
    root = math.sqrt(counts / 2.0)
    near = {max(1, math.floor(root)), math.ceil(root)}
    return min(near, key=lambda gamma: (counts + 2.0 * gamma) * (1.0 + 1.0 / gamma))
