"""Plans beside the family for unknown items: Laplace noise, public lists; and notes on any plan."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Final

from dphist.analysis.laplace import tau_laplace
from dphist.calibrate.known_domain import public_noise
from dphist.calibrate.sums import SumShares
from dphist.errors import InvalidParameter
from dphist.mechanisms.laplace import LaplaceMechanism
from dphist.types import (
    LARGEST_SCALE,
    LEAST_SCALE,
    OFFSET_RULES,
    AnyNoise,
    Budget,
    Contract,
    LaplaceNoise,
    Objective,
    OffsetRule,
    Plan,
    PublicNoise,
)

# e^3 is 20: from there on a belief of 5 % may pass 50 %.
WEAK_EPSILON: Final = 3.0
# One user in a thousand.
_WEAK_DELTA: Final = 1e-3


def offset_rule(offset: str | None) -> OffsetRule:
    """The rule by name; the opposite one unless another is asked for."""
    for rule in OFFSET_RULES:
        if offset == rule:
            return rule
    if offset is None:
        return "opposite"
    raise InvalidParameter(f"offset must be one of {', '.join(OFFSET_RULES)}, not {offset!r}")


def public_plan(budget: Budget, contract: Contract, sums: SumShares | None = None) -> Plan:
    """The quietest plan for a public list of items."""
    noise, certificate = public_noise(budget, contract, sums)
    return Plan(budget, contract, noise, "exact", certificate, notes_for(budget, contract, noise))


def laplace_plan(budget: Budget, contract: Contract) -> Plan:
    """Laplace noise of scale m/epsilon, exactly, and the least whole threshold."""
    found = LaplaceMechanism.for_budget(budget, contract)
    noise = LaplaceNoise(found.scale, found.limit)
    return Plan(budget, contract, noise, "exact", found.certificate, notes_for(budget, contract, noise))


def laplace_is_better(plan: Plan, objective: Objective) -> bool:
    """Whether Laplace noise would have the lower threshold, or the smaller deviation, at the same budget."""
    budget, contract = plan.budget, plan.contract
    if not laplace_can_be_drawn(budget, contract):
        return False
    scale = contract.items / budget.epsilon
    if objective == "threshold":
        return tau_laplace(m=contract.items, scale=scale, delta=budget.delta, discrete=True) < plan.tau
    return LaplaceNoise(Fraction(scale), 0).sigma < plan.total_noise


def laplace_can_be_drawn(budget: Budget, contract: Contract) -> bool:
    """Whether noise of scale m/epsilon is neither too narrow nor too wide for an exact sampler."""
    return LEAST_SCALE <= Fraction(contract.items) / Fraction(budget.epsilon) <= LARGEST_SCALE


def _weak_promises(budget: Budget) -> list[str]:
    """Budgets with which a release is certified and all the same says much about a person."""
    notes = []
    if budget.epsilon > WEAK_EPSILON:
        factor = f"{math.exp(budget.epsilon):,.0f}" if budget.epsilon < 30.0 else f"e^{budget.epsilon:g}"
        notes.append(f"Epsilon {budget.epsilon:g} is a weak promise: odds may change by a factor of {factor}.")
    if budget.delta > _WEAK_DELTA:
        notes.append(
            f"Delta {budget.delta:g} is large: it should be well below one over the number of users, for it "
            "allows that the data of as large a share of them are published as they are."
        )
    return notes


def notes_for(budget: Budget, contract: Contract, noise: AnyNoise) -> tuple[str, ...]:
    """What a person should know beside the numbers."""
    notes = _weak_promises(budget)
    scale = contract.items / budget.epsilon
    deviation = math.sqrt(2.0) * scale
    unknown_items = not isinstance(noise, (LaplaceNoise, PublicNoise)) and noise.mechanism != "top-k"
    tau = tau_laplace(m=contract.items, scale=scale, delta=budget.delta)
    if unknown_items and not getattr(noise, "sums", ()) and tau < noise.tau:
        noise_is = "less" if deviation < noise.total_noise else "more"
        notes.append(
            f"Laplace noise of scale {scale:.6g} would have the lower threshold {1.0 + tau:.6g}, with {noise_is} "
            f"noise (standard deviation {deviation:.6g} against {noise.total_noise:.6g})."
        )
    if noise.sigma_shared > 0.0:
        notes.append(
            "All counts share one draw of noise: good for counts, ranks and differences, bad for their sum."
        )
    if noise.mechanism == "top-k":
        notes.append(
            "The count after the largest ones is subtracted before the threshold and released with noise, so that "
            "the counts are not biased; a count must pass the threshold by itself above it."
        )
    return tuple(notes)
