"""The certificate of a release as a document: everything needed to recompute its guarantee.

It holds facts only; `guarantee` and `not_covered` turn them into sentences. This file also recomputes what a
document states about a plan: its certificate, and how its bounds are enforced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

from dphist.display import upper_figure
from dphist.errors import InvalidParameter, NotPrivate
from dphist.planning.planner import top_k_keeps
from dphist.planning.utility import shared_part
from dphist.privacy.certificate import certify_noise
from dphist.privacy.types import (
    FINEST_REACH,
    FORMAT,
    AnyNoise,
    Budget,
    Certificate,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    Plan,
    PublicNoise,
    RoundsNoise,
    SumNoise,
)
from dphist.releasing.aggregates import aggregates_of, sums_facts
from dphist.releasing.request import is_query

# Conditions of a guarantee that only the publisher can ensure.
_CONDITIONS: Final = {
    "counts-per-user": "no user contributes to more than {items} of the counts or more than 1 to any of them",
    "item-types": "the types of the items do not depend on the data of any one user",
    "max-nonzero": "no possible dataset has more than {nonzero} items",
    "one-update-per-user": (
        "every user came in one update of one sketch, the update and the items of a user depend on that user "
        "alone, and without that user all others would have come in the same order and the sketches would have "
        "been merged in the same order"
    ),
    # Libraries that infer types change values: 007 becomes 7, and a large number becomes a float.
    "frame-values": "the values that the frame holds for one user do not depend on the rows of other users",
    "fixed-types": "the types of the input's columns were fixed before the data was seen",
    "query": "the rows that the query returns for one user depend on that user alone",
}
# What readers of the numbers easily overlook.
_CAVEATS: Final = {
    "other-releases": "Other releases of the same data: their epsilons and deltas add up.",
    "groups": "Groups: a household, or one person with two accounts, is more than one user.",
    "user-limit": (
        "Users with more than {cap} {noun} contributed a random {cap} of them: a count may be lower than the "
        "number of users. Standard errors and intervals cover the noise only."
    ),
    "rounds": (
        "Counts are estimates of the number of users, from everything that was measured. Margins cover the noise, "
        "what was left out and differences in taste, as far as they could be measured; of users with more than "
        "{cap} items a random {cap} count."
    ),
    "max-nonzero": (
        "The bound of {nonzero} items is guaranteed by the publisher: if the data had more items, nothing would "
        "have been released."
    ),
    "differences": "Counts are differences from the next largest count, which is not released.",
    "perhaps-reduced": (
        "Counts may be lower than the numbers of users: unless the publisher guarantees that no possible dataset "
        "has more than {nonzero} items, the next largest count was subtracted from all. It is not released."
    ),
    "reduced": (
        "If the data had more than {nonzero} items, counts are lower than the numbers of users: the count of rank "
        "{rank} was subtracted from all. It is not released."
    ),
    "sketch": (
        "Counts are of a sketch with {size} counters: apart from noise, each may be below the number of users by "
        "up to the number of (user, item) pairs divided by {pairs}."
    ),
    "sketch-with-offset": (
        "Counts are of a sketch with {size} counters: apart from noise, each may be above the number of users by "
        "up to the number of (user, item) pairs divided by {pairs}, and by no more than the offset."
    ),
    "selection": "Counts that barely passed the threshold are too high on average.",
    "clamped-sums": (
        "Sums and means are over the counted users, not over events: each user's own sum for the item is clamped "
        "({bounds}). Values that are missing or not numbers add nothing."
    ),
    "selected-sums": (
        "A sum shares the error of its count: the middle of its range is added once for each noisy user. Sums of "
        "items that barely passed the threshold are therefore too high, or too low, on average."
    ),
    "shared-noise": "All counts share one draw of noise: their sum is less precise than it looks.",
}
NO_GUARANTEE: Final = "None: the noise was made from a seed, for tests."
# Larger numbers are in no plan, and would take hours to verify.
_NUMBER: Final = re.compile(r"[0-9]{1,60}(/[0-9]{1,60})?")
_LARGEST_LATTICE: Final = 1 << 13
_LARGEST_VARIANCE: Final = 10**40
_LARGEST_SHARED_VARIANCE: Final = 10**12
_MOST_SUMS: Final = 64
_LONGEST_REASON: Final = 300


class Nonzero(Enum):
    """How `max_nonzero` is enforced."""

    NOT_NEEDED = "the certificate holds for any number of non-zero counts"
    TOP_K = "the (max_nonzero + 1)-th largest count is subtracted from all"
    PROMISED = "the caller guarantees it; if it does not hold, nothing is released"


def certify_again(plan: object) -> Plan:
    """The plan with a recomputed certificate, whatever it claimed.

    Guarantee: the noise can be drawn exactly, and its certified delta is within the plan's budget.
    """
    if not isinstance(plan, Plan):
        raise InvalidParameter(
            f"plan must be a dphist.Plan, as returned by dphist.plan, not {type(plan).__name__}"
        )
    return replace(plan, certificate=certificate_of(plan.noise, plan.contract, plan.budget))


def certificate_of(noise: AnyNoise, contract: Contract, budget: Budget) -> Certificate:
    """Certify this noise. Raises if it cannot be drawn exactly, or if its delta exceeds the budget's."""
    if not isinstance(noise, (LatticeNoise, LaplaceNoise, RoundsNoise)):
        raise InvalidParameter(
            "the plan has continuous noise, which cannot be drawn exactly: plan with noise='discrete'"
        )
    _check_exact(noise)
    if isinstance(noise, RoundsNoise) and noise.alone is not None:
        _check_exact(noise.alone)
    certificate = _certify(noise, contract, budget)
    if not certificate.delta <= budget.delta:
        raise NotPrivate(
            f"the plan does not keep its budget: at epsilon {budget.epsilon:g} no delta up to {budget.delta:g} "
            "can be certified for its noise and threshold"
        )
    return certificate


def _check_exact(noise: LatticeNoise | LaplaceNoise | RoundsNoise) -> None:
    sums = () if isinstance(noise, LaplaceNoise) else noise.sums
    exact = [noise.scale] if isinstance(noise, LaplaceNoise) else [noise.variance]
    exact += [noise.variance_shared] if isinstance(noise, LatticeNoise) else []
    exact += [number for part in sums for number in (part.low, part.high, part.variance)]
    # Rounds check their own whole numbers.
    whole = [noise.lattice, *([] if isinstance(noise, RoundsNoise) else [noise.limit])]
    whole += [n for part in sums for n in (part.reach, part.columns)]
    if not all(isinstance(n, int) for n in whole) or not all(isinstance(n, (int, Fraction)) for n in exact):
        raise InvalidParameter("the plan's lattice and limit must be whole numbers and its variances fractions")


@lru_cache(maxsize=256)
def _certify(noise: LatticeNoise | LaplaceNoise | RoundsNoise, contract: Contract, budget: Budget) -> Certificate:
    return certify_noise(noise, contract, epsilon=budget.epsilon, budget=budget.delta)


def nonzero_rule(plan: Plan, *, promised: bool) -> Nonzero:
    """How `max_nonzero` of a certified plan is enforced; `promised` means that the caller guarantees it."""
    contract = plan.contract
    if contract.max_nonzero is None or isinstance(plan.noise, (PublicNoise, RoundsNoise)):
        return Nonzero.NOT_NEEDED
    if plan.releases_offset:
        return Nonzero.TOP_K
    # With shared noise the plan's profile relies on max_nonzero, even if its certificate does not.
    if plan.sigma_shared == 0.0 and contract.items < contract.max_nonzero:
        with suppress(NotPrivate):
            certificate_of(plan.noise, Contract(None, contract.items), plan.budget)
            return Nonzero.NOT_NEEDED
    if promised:
        return Nonzero.PROMISED
    if top_k_keeps(plan):
        return Nonzero.TOP_K
    raise InvalidParameter(
        f"the plan relies on max_nonzero = {contract.max_nonzero} and max_items_per_user = {contract.items} "
        "together, and the top-k step that enforces the first would break the second: pass "
        "promise_max_nonzero=True if no possible dataset has more non-zero counts, or plan with one of the bounds"
    )


@dataclass(frozen=True)
class Findings:
    """What a release in rounds shows besides its counts. All of it follows from noisy numbers.

    `found` are the numbers of items that were known, found by users with one item, and found in each round.
    `sizes` are the users by number of found items, in steps, `limit` that of the measurement (0 without one), and
    `needed` the users with which an item has an even chance of being found. `reason` says why margins may be too
    narrow, or is None.
    """

    found: tuple[int, ...]
    sizes: tuple[int, ...]
    limit: int
    needed: int | None
    reason: str | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "found": list(self.found),
            "noisy_sizes_steps": list(self.sizes),
            "limit": self.limit,
            "needed": self.needed,
            "reason": self.reason,
        }


def findings_from(document: Mapping[str, Any]) -> Findings:
    """The findings in a certificate; a `ValueError` or the like if they are damaged."""
    data = document["findings"]
    found, sizes = tuple(map(_whole, data["found"])), tuple(data["noisy_sizes_steps"])
    if any(isinstance(number, bool) or not isinstance(number, int) or abs(number) > 2**62 for number in sizes):
        raise ValueError
    needed, reason = data["needed"], data["reason"]
    if not isinstance(reason, str | None) or len(reason or "") > _LONGEST_REASON:
        raise ValueError
    findings = Findings(found, sizes, _whole(data["limit"]), None if needed is None else _whole(needed), reason)
    if findings.to_dict() != data:
        raise ValueError
    return findings


def guarantee_facts(plan: Plan, request: Mapping[str, Any]) -> dict[str, Any]:
    """The guarantee of a release."""
    return {
        "epsilon": plan.budget.epsilon,
        "delta": plan.budget.delta,
        "unit": "user",
        "neighbours": "add-or-remove",
        "conditions": _conditions(plan, request),
    }


def guarantee(plan: Plan, request: Mapping[str, Any]) -> str:
    """`guarantee_facts` as a sentence."""
    budget = plan.budget
    factor = f" ≈ {upper_figure(math.exp(budget.epsilon), 4)}" if budget.epsilon < 30.0 else ""
    conditions = ", and that ".join(_sentences(_CONDITIONS, _conditions(plan, request), plan, request))
    return (
        f"This release is (epsilon = {budget.epsilon!r}, delta = {budget.delta!r})-differentially private at the "
        "user level: adding or removing all data of any one user changes the probability of any outcome by at "
        f"most a factor of e^{budget.epsilon!r}{factor}, plus {budget.delta!r}"
        f"{f', provided that {conditions}' if conditions else ''}."
    )


def _conditions(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    conditions = {
        "counts-per-user": not request,
        "item-types": not request,
        "max-nonzero": _relies_on_promise(plan, request),
        "one-update-per-user": "sketch" in request,
        "frame-values": request.get("types") == "text",
        "fixed-types": request.get("types") == "fixed",
        "query": "query" in request or is_query(request.get("input")),
    }
    return [condition for condition, holds in conditions.items() if holds]


def _relies_on_promise(plan: Plan, request: Mapping[str, Any]) -> bool:
    return (
        "max-nonzero" in request
        and not top_k_keeps(plan)
        and nonzero_rule(plan, promised=True) is Nonzero.PROMISED
    )


def _caveats(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    public = isinstance(plan.noise, PublicNoise)
    caveats = {
        "other-releases": True,
        "groups": True,
        # A top-k step needs no limit on users, and none is applied.
        "user-limit": "max-items-per-user" in request
        and ("top" not in request or plan.contract.max_nonzero is None),
        "rounds": isinstance(plan.noise, RoundsNoise),
        "max-nonzero": _relies_on_promise(plan, request),
        "differences": is_difference(plan, request),
        "perhaps-reduced": is_perhaps_reduced(plan, request),
        "reduced": "max-nonzero" in request and top_k_keeps(plan),
        "sketch-with-offset" if plan.releases_offset else "sketch": "sketch" in request,
        "selection": not public,
        "clamped-sums": bool(plan.sums),
        "selected-sums": any(noise.columns == 1 for noise in plan.sums) and not public,
        "shared-noise": plan.sigma_shared > 0.0,
    }
    return [caveat for caveat, holds in caveats.items() if holds]


def not_covered(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    """All caveats of a release, as sentences."""
    return _sentences(_CAVEATS, _caveats(plan, request), plan, request)


def caveats(plan: Plan, request: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted caveats that hold, as sentences, in the order wanted."""
    codes = [code for code in wanted if code in _caveats(plan, request)]
    return _sentences(_CAVEATS, codes, plan, request)


def conditions(plan: Plan, request: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted conditions that the guarantee has, as sentences, in the order wanted."""
    codes = [code for code in wanted if code in _conditions(plan, request)]
    return [f"The guarantee assumes that {text}." for text in _sentences(_CONDITIONS, codes, plan, request)]


def _sentences(texts: Mapping[str, str], codes: list[str], plan: Plan, request: Mapping[str, Any]) -> list[str]:
    size, contract = request.get("sketch-size", 0), plan.contract
    cap = request.get("max-items-per-user", contract.items)
    ranges = dict.fromkeys(
        f"{aggregate.vector}: {', '.join(aggregate.columns)} to a norm of {float(aggregate.high):g}"
        if aggregate.vector
        else f"{aggregate.name}: {aggregate.column} from {float(aggregate.low):g} to {float(aggregate.high):g}"
        for aggregate in (aggregates_of(request) if plan.sums else ())
    )
    values = {
        "items": contract.items,
        "cap": cap,
        "noun": "item" if cap == 1 else "items",
        "nonzero": f"{contract.nonzero:.0f}",
        "rank": f"{contract.nonzero + 1:.0f}",
        "size": size,
        "pairs": size + 1,
        "bounds": "; ".join(ranges),
    }
    return [texts[code].format(**values) for code in codes]


def is_difference(plan: Plan, request: Mapping[str, Any]) -> bool:
    """Whether counts are differences: a top-k step whose subtracted count is not released."""
    return request.get("offset") == "none" and plan.contract.max_nonzero is not None


def is_perhaps_reduced(plan: Plan, request: Mapping[str, Any]) -> bool:
    """Whether a count may have been subtracted from a histogram: the certificate does not record a promise."""
    return (
        not request and not plan.releases_offset and top_k_keeps(plan) and not isinstance(plan.noise, PublicNoise)
    )


def with_lower_threshold(plan: Plan, request: Mapping[str, Any]) -> Plan:
    """The plan as it is applied to published counts. Differences do not get back what was subtracted from them."""
    return replace(plan, lower_threshold=1 if is_difference(plan, request) else request.get("lower-threshold", 1))


def recorded_decimals(document: Mapping[str, Any]) -> int | None:
    """Decimals to which the counts of a release are rounded; None if they are not, as in older releases."""
    whole = 0 if document["request"].get("round") is True else None
    decimals: int | None = document["counts"].get("decimals", whole)
    return decimals


def counts_facts(
    plan: Plan, request: Mapping[str, Any], offset: float | None, decimals: int | None = None
) -> dict[str, Any]:
    rounding = {} if decimals is None else {"decimals": decimals}
    if isinstance(plan.noise, RoundsNoise):
        # Each count has a margin of its own, in a column beside it.
        return {"standard_error": None, "offset": None, "greater_than": None, **rounding}
    # The plans of older certificates did not include the lower threshold of their request.
    threshold = with_lower_threshold(plan, request).threshold
    return {
        "standard_error": plan.total_noise,
        "covariance": shared_part(plan),
        "offset": offset,
        "lower_threshold": request.get("lower-threshold", 1),
        "greater_than": None if math.isinf(threshold) else threshold + (offset or 0.0),
        **rounding,
    }


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def document_of(
    plan: Plan,
    request: Mapping[str, Any],
    *,
    private: bool,
    offset: float | None,
    version: str,
    created: str,
    findings: Findings | None = None,
    receipt: Mapping[str, Any] | None = None,
    decimals: int | None = None,
) -> dict[str, Any]:
    """The certificate without the entries about its output, which follow when it is written."""
    return {
        "format": FORMAT,
        "dphist": version,
        "created": created,
        "private": private,
        "guarantee": guarantee_facts(plan, request) if private else None,
        "caveats": _caveats(plan, request),
        "request": dict(request),
        "plan": plan_facts(plan),
        "counts": counts_facts(plan, request, offset, decimals),
        **({} if findings is None else {"findings": findings.to_dict()}),
        **({} if receipt is None else {"booking": dict(receipt)}),
        **({"sums": sums_facts(plan, aggregates_of(request))} if plan.sums and findings is None else {}),
    }


def plan_facts(plan: Plan) -> dict[str, Any]:
    """The plan in a certificate: its exact numbers, and those that follow from them."""
    left_out = ("analysis", "binding_case", "certificate", "notes")
    return {name: value for name, value in plan.to_dict().items() if name not in left_out}


def plan_from(data: Any) -> Plan:
    """The plan in a certificate, which may be forged: from its exact numbers, and certified again."""
    try:
        budget = Budget(data["epsilon"], data["delta"])
        contract = Contract(data["max_nonzero"], data["max_items_per_user"])
        rounds = data["mechanism"] == "rounds"
        noise = _rounds_from(data, contract) if rounds else _noise_of_one_step(data)
        lower = max(1, _whole(data.get("lower_threshold", 1)))
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InvalidParameter(f"the certificate's plan cannot be read ({type(error).__name__})") from None
    certificate = certificate_of(noise, contract, budget)
    return Plan(budget, contract, noise, "exact", certificate, lower_threshold=lower)


def _rounds_from(data: Mapping[str, Any], contract: Contract) -> RoundsNoise:
    parts, limits, cuts = (
        tuple(map(_whole, data[name])) for name in ("parts_of_rounds", "limits_steps", "cuts_steps")
    )
    alone, sums = data["alone"], tuple(map(_sum_from, data.get("sums", ())))
    noise = None if alone is None else _noise_of_one_step(alone)
    if len(sums) > _MOST_SUMS or not isinstance(noise, (LatticeNoise, LaplaceNoise, type(None))):
        raise ValueError
    return RoundsNoise(
        _whole(data["lattice"]), _fraction(data["variance_steps"]), parts, limits, cuts,
        _whole(data["part_of_sizes"]), _whole(data["part_of_measurement"]), contract.items,
        _whole(data["growth"]), noise, _whole(data.get("shared", 0)), sums, contract.max_nonzero or 0,
    )  # fmt: skip


def _noise_of_one_step(data: Mapping[str, Any]) -> LatticeNoise | LaplaceNoise:
    if data["mechanism"] == "laplace":
        return LaplaceNoise(_fraction(data["scale"]), _whole(data["limit_steps"]))
    variances = _fraction(data["variance_steps"]), _fraction(data["variance_shared_steps"])
    lattice, sums = _whole(data["lattice"]), tuple(map(_sum_from, data.get("sums", ())))
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
    return SumNoise(low, high, reach, _fraction(data["variance_steps"]), _whole(data.get("columns", 1)))


def _fraction(text: Any) -> Fraction:
    if not isinstance(text, str) or not _NUMBER.fullmatch(text) or Fraction(text) > _LARGEST_VARIANCE:
        raise ValueError
    return Fraction(text)


def _whole(number: Any) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= 2**53:
        raise ValueError
    return number
