"""The certificate of a release as a document: everything that is needed to recompute its guarantee."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Final

from dphist.errors import InvalidParameter
from dphist.planning.sums import FINEST_REACH
from dphist.planning.utility import shared_part
from dphist.privacy.noise import LaplaceNoise, LatticeNoise, PublicNoise, SumNoise
from dphist.privacy.types import FORMAT, AnyNoise, Budget, Contract, Plan
from dphist.releasing.aggregates import Aggregate, aggregates_of, sums_facts
from dphist.releasing.soundness import Chosen, Nonzero, certificate_of, nonzero_rule, top_k_keeps

_ONE_UPDATE: Final = (
    "every user came in one update of one sketch, the update and the items of a user depend on that user alone, "
    "and without that user all others would have come in the same order and the same sketches would have been "
    "merged in the same order"
)
# Libraries infer types from values, and change values with them: 007 becomes 7, and a large number a float.
_INFERRED: Final = {
    "text": "the values that the frame holds for one user do not depend on the rows of other users",
    "fixed": "the types of the input's columns were fixed before the data was seen",
}
NO_GUARANTEE: Final = "None: the noise was made from a seed, for tests."
# No plan of ours has longer numbers; a certificate that has is not worth the hours it would take.
_NUMBER: Final = re.compile(r"[0-9]{1,60}(/[0-9]{1,60})?")
_LARGEST_LATTICE: Final = 1 << 13
_LARGEST_VARIANCE: Final = 10**40
_LARGEST_SHARED_VARIANCE: Final = 10**12
_MOST_SUMS: Final = 64


def guarantee(plan: Plan, request: Mapping[str, Any], budget: Budget | None = None) -> str:
    """What is promised: for the plan, or for all of the budget where a cap was chosen as well."""
    whole = plan.budget if budget is None else budget
    return (
        "Whatever else is known, the probability of anything that this release could have been changes by at "
        "most a factor of e^epsilon, plus delta, with one user: it is "
        f"(epsilon, delta)-differentially private with epsilon = {whole.epsilon!r} and "
        f"delta = {whole.delta!r} for adding or removing one user with all their items"
        f"{_provided(plan, request)}."
    )


def _provided(plan: Plan, request: Mapping[str, Any]) -> str:
    """What the guarantee rests on that nobody but the person who asks can know."""
    conditions = []
    if not request:
        conditions.append(f"no user touches more than {plan.contract.items} of the counts, each by one")
        conditions.append("the types of the items do not depend on the data of any one user")
    if _relies_on_promise(plan, request):
        conditions.append(f"no possible data has more than {plan.contract.max_nonzero} items")
    if "sketch" in request:
        conditions.append(_ONE_UPDATE)
    if request and "sketch" not in request and request["types"] != "none":
        conditions.append(_INFERRED[request["types"]])
    if "query" in request:
        conditions.append("the rows that the query gives for one user depend on that user alone")
    return f", provided that {' and '.join(conditions)}" if conditions else ""


def _relies_on_promise(plan: Plan, request: Mapping[str, Any]) -> bool:
    return (
        "max-nonzero" in request
        and not top_k_keeps(plan)
        and nonzero_rule(plan, promised=True) is Nonzero.PROMISED
    )


def not_covered(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    """What a reader might believe and should not."""
    notes = [
        "Other releases of the same data: their epsilons and deltas add up.",
        "Groups: a household, or one person with two accounts, is more than one user.",
    ]
    cap = request.get("max-items-per-user")
    if cap == "auto":
        cap = plan.contract.items
    # A top-k step has no use for a bound on users, and none is applied.
    if cap is not None and ("top" not in request or plan.contract.max_nonzero is None):
        notes.append(
            f"Of users with more than {cap} items only {cap} were counted, chosen at random: a count may be lower "
            "than the number of users. Standard errors and intervals speak of the noise alone."
        )
    if _relies_on_promise(plan, request):
        notes.append(
            f"The bound of {plan.contract.max_nonzero} items is a promise of whoever made the release: had the "
            "data had more items, nothing would have been released."
        )
    if is_difference(plan, request):
        notes.append("Counts are differences to the count after the largest ones, which is not released.")
    if is_perhaps_reduced(plan, request):
        notes.append(
            f"Counts may be less than the numbers of users: where it was not promised that no possible data have "
            f"more than {plan.contract.max_nonzero} items, the count after the largest ones was subtracted from "
            "all, and it is not released."
        )
    if "max-nonzero" in request and top_k_keeps(plan):
        bound = plan.contract.nonzero
        notes.append(
            f"If the data had more than {bound:.0f} items, counts are less than the numbers of users: the count "
            f"of rank {bound + 1:.0f} was subtracted from all, and it is not released."
        )
    if "sketch" in request:
        notes.append(_sketch_note(request["sketch-size"], restored=plan.releases_offset))
    if not isinstance(plan.noise, PublicNoise):
        notes.append("Counts that barely passed the threshold are too high on average.")
    if plan.sums:
        notes += _sum_notes(plan, aggregates_of(request))
    if plan.sigma_shared > 0.0:
        notes.append("All counts share one draw of noise: their sum is less precise than it looks.")
    return notes


def _sum_notes(plan: Plan, aggregates: Sequence[Aggregate]) -> list[str]:
    """What sums and means do not say."""
    bounds = "; ".join(
        f"{one.name}: {one.column} from {float(one.low):g} to {float(one.high):g}" for one in aggregates
    )
    notes = [
        "Sums and means are over the users that were counted, of each user's own sum for the item, clamped "
        f"({bounds}). Values that are missing or no numbers add nothing to it. They are of users, not of events."
    ]
    if not isinstance(plan.noise, PublicNoise):
        notes.append(
            "A sum takes part in its count's error: the middle of its range is added once for each noisy user, so "
            "that sums of items that barely passed the threshold are too high, or too low, as well."
        )
    return notes


def _sketch_note(size: int, *, restored: bool) -> str:
    """What a sketch does not know of a count."""
    way, known = ("above", ", and by no more than the offset") if restored else ("below", "")
    return (
        f"Counts are of a sketch with {size} counters: noise aside, each may be {way} the number of users by up "
        f"to the number of (user, item) pairs divided by {size + 1}{known}."
    )


def is_difference(plan: Plan, request: Mapping[str, Any]) -> bool:
    """The plain top-k step: nothing is added to the counts again."""
    return request.get("offset") == "none" and plan.contract.max_nonzero is not None


def is_perhaps_reduced(plan: Plan, request: Mapping[str, Any]) -> bool:
    """A histogram with a bound that a top-k step keeps, or a promise: the certificate does not know which."""
    if request or plan.releases_offset:
        return False
    return top_k_keeps(plan) and not isinstance(plan.noise, PublicNoise)


def counts_facts(plan: Plan, request: Mapping[str, Any], offset: float | None) -> dict[str, Any]:
    """What a reader must know to use the counts."""
    lower = request.get("lower-threshold", 1)
    restored = 0.0 if is_difference(plan, request) else lower - 1 + (offset or 0.0)
    return {
        "standard_error": plan.total_noise,
        "covariance": shared_part(plan),
        "offset": offset,
        "lower_threshold": lower,
        "greater_than": None if math.isinf(plan.threshold) else plan.threshold + restored,
    }


def now() -> str:
    """The time as a certificate tells it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def document_of(
    plan: Plan,
    request: Mapping[str, Any],
    *,
    private: bool,
    offset: float | None,
    version: str,
    created: str,
    chosen: Chosen | None = None,
    receipt: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document, still without what only the writer knows."""
    budget = None if chosen is None else chosen.plan.budget
    return {
        "format": FORMAT,
        "dphist": version,
        "created": created,
        "private": private,
        "guarantee": guarantee(plan, request, budget) if private else NO_GUARANTEE,
        "not_covered": not_covered(plan, request),
        "request": dict(request),
        "plan": plan_facts(plan),
        "counts": counts_facts(plan, request, offset),
        **({} if chosen is None else {"choice": chosen.to_dict()}),
        **({} if receipt is None else {"booking": dict(receipt)}),
        **({"sums": sums_facts(plan, aggregates_of(request))} if plan.sums else {}),
    }


def plan_facts(plan: Plan) -> dict[str, Any]:
    """The plan as a certificate has it: numbers that follow from the exact ones, and nothing that is only told."""
    told = ("analysis", "binding_case", "certificate", "notes")
    return {name: value for name, value in plan.to_dict().items() if name not in told}


def plan_from(data: Any) -> Plan:
    """The plan of a document, from its exact numbers, with a certificate that is computed here and now."""
    try:
        budget = Budget(data["epsilon"], data["delta"])
        contract = Contract(data["max_nonzero"], data["max_items_per_user"])
        noise = _noise_from(data)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InvalidParameter(f"the certificate's plan cannot be read ({type(error).__name__})") from None
    return Plan(budget, contract, noise, "exact", certificate_of(noise, contract, budget))


def _noise_from(data: Mapping[str, Any]) -> AnyNoise:
    if data["mechanism"] == "laplace":
        return LaplaceNoise(_fraction(data["scale"]), _whole(data["limit_steps"]))
    variances = _fraction(data["variance_steps"]), _fraction(data["variance_shared_steps"])
    lattice, sums = _whole(data["lattice"]), tuple(_sum_from(one) for one in data.get("sums", ()))
    if lattice > _LARGEST_LATTICE or variances[1] > _LARGEST_SHARED_VARIANCE or len(sums) > _MOST_SUMS:
        raise ValueError
    if data["mechanism"] == "known-domain":
        return PublicNoise(lattice, *variances, sums=sums)
    return LatticeNoise(lattice, *variances, _whole(data["limit_steps"]), data.get("offset", "none"), sums)


def _sum_from(data: Mapping[str, Any]) -> SumNoise:
    low, high = (
        _fraction(data[end].removeprefix("-")) * (-1) ** data[end].startswith("-") for end in ("low", "high")
    )
    reach = _whole(data["reach_steps"])
    if reach > FINEST_REACH:
        raise ValueError
    return SumNoise(low, high, reach, _fraction(data["variance_steps"]))


def _fraction(text: Any) -> Fraction:
    if not isinstance(text, str) or not _NUMBER.fullmatch(text) or Fraction(text) > _LARGEST_VARIANCE:
        raise ValueError
    return Fraction(text)


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 2**53:
        raise ValueError
    return number
