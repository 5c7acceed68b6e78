"""The certificate of a release as a document: everything that is needed to recompute its guarantee."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from dphist.errors import InvalidParameter
from dphist.releases.accuracy import shared_part
from dphist.types import (
    FORMAT,
    AnyNoise,
    Budget,
    Certificate,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    NeighbourCase,
    Plan,
    PublicNoise,
)


def guarantee(plan: Plan, request: Mapping[str, Any]) -> str:
    """What is promised, in one sentence."""
    promise = request.get("max-nonzero")
    provided = "" if promise is None else f", provided that no possible data has more than {promise} items"
    return (
        "Whoever sees this release, and all else there is, learns little about whether any one user was in the "
        f"data: it is (epsilon, delta)-differentially private with epsilon = {plan.budget.epsilon:g} and "
        f"delta = {plan.budget.delta:g} for adding or removing one user with all their items{provided}."
    )


def not_covered(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    """What a reader might believe and should not."""
    notes = [
        "Other releases of the same data: their epsilons and deltas add up.",
        "Groups: a household, or one person with two accounts, is more than one user.",
    ]
    cap = request.get("max-items-per-user")
    # A top-k step has no use for a bound on users, and none is applied.
    if cap is not None and ("top" not in request or plan.contract.max_nonzero is None):
        notes.append(
            f"Of users with more than {cap} items only {cap} were counted, chosen at random: a count may be lower "
            "than the number of users. Standard errors and intervals speak of the noise alone."
        )
    if request.get("max-nonzero") is not None:
        notes.append("Where the data have more items than the public bound, nothing at all is released.")
    if not isinstance(plan.noise, PublicNoise):
        notes.append("Counts that barely passed the threshold are too high on average.")
    if plan.sigma_shared > 0.0:
        notes.append("All counts share one draw of noise: their sum is less precise than it looks.")
    return notes


def document_of(
    plan: Plan, request: Mapping[str, Any], *, private: bool, offset: float | None, version: str
) -> dict[str, Any]:
    """The document, still without what only the writer knows."""
    lower = request.get("lower-threshold", 1)
    passes = None if math.isinf(plan.threshold) else plan.threshold + lower - 1 + (offset or 0.0)
    return {
        "format": FORMAT,
        "dphist": version,
        "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "private": private,
        "guarantee": guarantee(plan, request) if private else "None: the noise was made from a seed, for tests.",
        "not_covered": not_covered(plan, request),
        "request": dict(request),
        "plan": plan.to_dict(),
        "counts": {
            "standard_error": plan.total_noise,
            "covariance": shared_part(plan),
            "offset": offset,
            "lower_threshold": lower,
            "greater_than": passes,
        },
    }


def plan_from(data: Any) -> Plan:
    """The plan of a document, from its exact numbers; what it claims of its delta is kept, to be checked."""
    try:
        budget = Budget(data["epsilon"], data["delta"])
        contract = Contract(data["max_nonzero"], data["max_items_per_user"])
        claimed = data["certificate"]
        case = claimed["binding_case"]
        shared = math.inf if case["j"] is None else case["j"]
        certificate = Certificate(
            claimed["epsilon"],
            claimed["delta"],
            claimed["analysis"],
            NeighbourCase(shared, case["r"], case["s"], case["direction"]),
            claimed["delta_lower"],
        )
        return Plan(budget, contract, _noise_from(data), data["analysis"], certificate, tuple(data["notes"]))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise InvalidParameter(f"the certificate's plan cannot be read ({type(error).__name__})") from None


def _noise_from(data: Mapping[str, Any]) -> AnyNoise:
    if data["mechanism"] == "laplace":
        return LaplaceNoise(Fraction(data["scale"]), data["limit_steps"])
    variances = Fraction(data["variance_steps"]), Fraction(data["variance_shared_steps"])
    if data["mechanism"] == "known-domain":
        return PublicNoise(data["lattice"], *variances)
    return LatticeNoise(data["lattice"], *variances, data["limit_steps"], data.get("offset", "none"))
