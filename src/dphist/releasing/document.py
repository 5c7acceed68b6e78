"""The certificate of a release as a document: everything that is needed to recompute its guarantee.

It holds facts. The sentences that explain them are made from the same facts when somebody reads: `guarantee` and
`not_covered`. What a document says of a plan is computed here from the plan's own numbers: its certificate, how
its contract is enforced, and the limit that noisy numbers of users choose.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Final

from dphist.display import upper_figure
from dphist.errors import InvalidParameter, NotPrivate
from dphist.planning.auto_cap import ChoicePlan, check_goal, choose_plan, excess_of, plan_choice
from dphist.planning.optimum import FINEST_REACH, check_bounds
from dphist.planning.planner import Excess, check_excess, contract_of, family_shares, public_plan
from dphist.planning.planner import plan as make_plan
from dphist.planning.utility import Correction, shared_part
from dphist.privacy.certificate import certify_noise
from dphist.privacy.types import (
    FORMAT,
    AnyNoise,
    Budget,
    Certificate,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    Plan,
    PublicNoise,
    SumNoise,
    caps_up_to,
)
from dphist.releasing.aggregates import aggregates_of, sums_facts
from dphist.releasing.request import Request, is_query

# What a guarantee rests on that only the publisher can know, with the words for readers.
_CONDITIONS: Final = {
    "counts-per-user": "no user contributes to more than {items} of the counts or more than 1 to any of them",
    "item-types": "the types of the items do not depend on the data of any one user",
    "max-nonzero": "no possible data has more than {nonzero} items",
    "one-update-per-user": (
        "every user came in one update of one sketch, the update and the items of a user depend on that user "
        "alone, and without that user all others would have come in the same order and the same sketches would "
        "have been merged in the same order"
    ),
    # Libraries infer types from values, and change values with them: 007 becomes 7, and a large number a float.
    "frame-values": "the values that the frame holds for one user do not depend on the rows of other users",
    "fixed-types": "the types of the input's columns were fixed before the data was seen",
    "query": "the rows that the query returns for one user depend on that user alone",
}
# What a reader should know about the numbers, and is easily overlooked.
_CAVEATS: Final = {
    "other-releases": "Other releases of the same data: their epsilons and deltas add up.",
    "groups": "Groups: a household, or one person with two accounts, is more than one user.",
    "user-limit": (
        "Users with more than {cap} {noun} contributed a random {cap} of them: a count may be lower than the "
        "number of users. Standard errors and intervals cover the noise only."
    ),
    "spread": (
        "Users with more than {cap} {noun} count less for each of them, down to {least}, and of more than {most} "
        "items a random {most} count: a count may be lower than the number of users. Standard errors and "
        "intervals of counts cover the noise only."
    ),
    "estimate": (
        "Estimates correct counts for what the limit left out on average. That is right where users with "
        "many items choose the same items as others. Where they do not, an estimate is off, and no interval shows "
        "by how much."
    ),
    "max-nonzero": (
        "The bound of {nonzero} items is guaranteed by the publisher: if the data had more items, nothing would "
        "have been released."
    ),
    "differences": "Counts are differences to the count after the largest ones, which is not released.",
    "perhaps-reduced": (
        "Counts may be lower than the numbers of users: unless it was guaranteed that no possible data has more "
        "than {nonzero} items, the count after the largest ones was subtracted from all. It is not released."
    ),
    "reduced": (
        "If the data had more than {nonzero} items, counts are lower than the numbers of users: the count of rank "
        "{rank} was subtracted from all, and it is not released."
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
        "Sums and means are over the users that were counted, of each user's own sum for the item, clamped "
        "({bounds}). Values that are missing or not numbers add nothing to it. They are of users, not of events."
    ),
    "weighted-sums": (
        "Sums and means count each user by the same weight as the counts do. Estimates of sums suppose that the "
        "values of users do not depend on how many items they have."
    ),
    "selected-sums": (
        "A sum takes part in the error of its count: the middle of its range is added once for each noisy user, "
        "so sums of items that barely passed the threshold are too high, or too low, as well."
    ),
    "shared-noise": "All counts share one draw of noise: their sum is less precise than it looks.",
}
NO_GUARANTEE: Final = "None: the noise was made from a seed, for tests."
# No plan has longer numbers; a certificate that has would take hours to verify.
_NUMBER: Final = re.compile(r"[0-9]{1,60}(/[0-9]{1,60})?")
_LARGEST_LATTICE: Final = 1 << 13
_LARGEST_VARIANCE: Final = 10**40
_LARGEST_SHARED_VARIANCE: Final = 10**12
_MOST_SUMS: Final = 64
# With a public list noise is shared only if a user may touch one item in so many: otherwise it helps little.
_WORTH_SHARING: Final = 8
# From so many deviations on, estimates were seen to be within their intervals.
_CLEAR: Final = 50.0
# For a smaller delta the certificates of all limits would take minutes.
LEAST_DELTA: Final = 1e-30


class Nonzero(Enum):
    """How `max_nonzero` is enforced."""

    NOT_NEEDED = "the certificate holds for any number of non-zero counts"
    TOP_K = "the (max_nonzero + 1)-th largest count is subtracted from all"
    PROMISED = "the caller guarantees it; if it does not hold, nothing is released"


def certify_again(plan: object) -> Plan:
    """The plan with a certificate that is computed here from its own numbers, whatever it claimed.

    Guarantee: the noise can be drawn exactly and its certified delta is within the plan's budget.
    """
    if not isinstance(plan, Plan):
        raise InvalidParameter(f"plan must be a dphist.Plan, as dphist.plan makes it, not {type(plan).__name__}")
    return replace(plan, certificate=certificate_of(plan.noise, plan.contract, plan.budget))


def certificate_of(noise: AnyNoise, contract: Contract, budget: Budget) -> Certificate:
    """The certificate of this noise. Raises if it cannot be drawn exactly, or its delta exceeds the budget's."""
    if not isinstance(noise, (LatticeNoise, LaplaceNoise)):
        raise InvalidParameter(
            "the plan is for continuous noise, which cannot be drawn exactly: plan with noise='discrete'"
        )
    sums = () if isinstance(noise, LaplaceNoise) else noise.sums
    exact = [noise.scale] if isinstance(noise, LaplaceNoise) else [noise.variance, noise.variance_shared]
    exact += [number for one in sums for number in (one.low, one.high, one.variance)]
    whole = all(isinstance(n, int) for n in (noise.lattice, noise.limit, *(one.reach for one in sums)))
    if not whole or not all(isinstance(v, (int, Fraction)) for v in exact):
        raise InvalidParameter("the plan's lattice and limit must be whole numbers and its variances fractions")
    certificate = _certificate(noise, contract, budget)
    if not certificate.delta <= budget.delta:
        raise NotPrivate(
            f"the plan does not keep its budget: at epsilon {budget.epsilon:g} no delta up to {budget.delta:g} "
            "can be certified for its noise and threshold"
        )
    return certificate


def nonzero_rule(plan: Plan, *, promised: bool) -> Nonzero:
    """How the bound on the non-zero counts of a certified plan is enforced.

    `promised`: the caller guarantees that no possible data has more non-zero counts.
    """
    contract = plan.contract
    if contract.max_nonzero is None or isinstance(plan.noise, PublicNoise):
        return Nonzero.NOT_NEEDED
    if plan.releases_offset:
        return Nonzero.TOP_K
    # With shared noise other statements about the plan, such as its profile, rest on max_nonzero all the same.
    alone = plan.sigma_shared == 0.0 and contract.items < contract.max_nonzero
    if alone and _keeps(plan, Contract(None, contract.items, contract.spread)):
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


def top_k_keeps(plan: Plan) -> bool:
    """Whether a top-k step can enforce `max_nonzero` for this plan.

    A user who raises the (k+1)-th largest count lowers all others. That breaks a smaller limit on the items of a
    user, and with it the plan's profile. With sums it changes counts whose sums stay the same, and the reverse,
    while the analysis assumes that both change together. It is not analysed for weighted counts.
    """
    contract = plan.contract
    return contract.items == contract.max_nonzero and contract.spread is None and not plan.sums


def _keeps(plan: Plan, contract: Contract) -> bool:
    """Whether the plan's noise is within its budget under this contract as well."""
    assert isinstance(plan.noise, (LatticeNoise, LaplaceNoise))
    try:
        return _certificate(plan.noise, contract, plan.budget).delta <= plan.budget.delta
    except NotPrivate:
        return False


@lru_cache(maxsize=256)
def _certificate(noise: LatticeNoise | LaplaceNoise, contract: Contract, budget: Budget) -> Certificate:
    return certify_noise(noise, contract, epsilon=budget.epsilon, budget=budget.delta)


@dataclass(frozen=True)
class Chosen:
    """The plan that was chosen, the noisy numbers of users that decided, and what was on offer. No true number."""

    plan: ChoicePlan
    noisy: tuple[int, ...]
    release: Plan
    correction: Correction

    @classmethod
    def by(cls, plan: ChoicePlan, noisy: tuple[int, ...]) -> Chosen:
        """What the noisy numbers decide: post-processing, which costs nothing."""
        return cls(plan, noisy, *choose_plan(plan, noisy))

    @property
    def cap(self) -> int:
        """The limit on the items of a user."""
        return self.release.contract.items

    @property
    def excess(self) -> Excess:
        """What happens to the items of a user beyond the limit."""
        return excess_of(self.release)

    @property
    def rough(self) -> bool:
        """Whether the noisy numbers say so little that estimates lean on the model of typical data."""
        return sizes_are_rough(self.noisy, math.sqrt(self.plan.choice.variance))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the certificate."""
        return {
            **self.plan.to_dict(),
            "noisy_users": list(self.noisy),
            "cap": self.cap,
            "excess": self.excess,
            "correction": self.correction.to_dict(),
        }


def correction_from(document: Mapping[str, Any]) -> Correction:
    """What the certificate says its estimates were made with; raises what any damaged certificate raises."""
    said, names = document["choice"]["correction"], ("counts", "factors", "standard_errors")
    if said.keys() != set(names) or not all(isinstance(one, float) for name in names for one in said[name]):
        raise ValueError
    return Correction(*(tuple(said[name]) for name in names))


def sizes_are_rough(noisy: Sequence[float], deviation: float) -> bool:
    """Whether all users together are few against the noise of one number of them (found on real data)."""
    return sum(noisy) < _CLEAR * deviation


@lru_cache(maxsize=16)
def choice_for(
    budget: Budget,
    *,
    share: float | None = None,
    mechanism: str = "best",
    minimize: str = "threshold",
    sums: tuple[tuple[Fraction, Fraction], ...] = (),
    weights: tuple[float, ...] | None = None,
    public_items: int | None = None,
    excess: str | None = None,
    goal: str = "accuracy",
) -> ChoicePlan:
    """The plans that a request may choose from; nothing depends on the data.

    Without `excess` both ways to treat the items beyond a limit are on offer.
    """
    ways = ("drop", "spread") if excess is None else (check_excess(excess),)
    if mechanism == "laplace":
        if excess == "spread":
            raise InvalidParameter("--excess spread needs Gaussian noise, not --mechanism laplace")
        ways = ("drop",)
    if budget.delta < LEAST_DELTA:
        raise InvalidParameter(
            f"max_items_per_user='auto' needs a delta of at least {LEAST_DELTA:g}, not {budget.delta!r}"
        )
    shares = family_shares([check_bounds(low, high) for low, high in sums], weights, budget, Contract(None, 1))

    def plan_of(spreads: bool, epsilon: float, delta: float, cap: int) -> Plan:
        if public_items is not None:
            listed, may_share = contract_of(public_items, cap, spreads), _WORTH_SHARING * cap >= public_items
            return public_plan(Budget(epsilon, delta), listed, shares, may_share=may_share)
        # After noisy sizes Laplace noise must leave so much of epsilon that it is better only for one item.
        kind = "gaussian" if spreads or (mechanism == "best" and cap > 1) else mechanism
        return make_plan(
            epsilon=epsilon, delta=delta, max_items_per_user=cap, mechanism=kind, minimize=minimize, sums=sums,
            weights=shares.weights, excess="spread" if spreads else "drop",
        )  # fmt: skip

    makers = [partial(plan_of, way == "spread") for way in ways]
    return plan_choice(budget, *makers, share=share, caps=caps_up_to(public_items), goal=check_goal(goal))


def plan_choice_for(request: Request, public_items: int | None) -> ChoicePlan:
    """The plans that this request may choose from, with the length of its public list."""
    return choice_for(
        Budget(request.epsilon, request.delta), share=request.cap_share, mechanism=request.mechanism,
        minimize=request.minimize, sums=tuple((low, high) for _, low, high in request.sums),
        weights=request.weights or None, public_items=public_items, excess=request.excess_on_offer,
        goal=request.goal or "accuracy",
    )  # fmt: skip


def guarantee_facts(plan: Plan, request: Mapping[str, Any], budget: Budget | None = None) -> dict[str, Any]:
    """The guarantee, for the plan or for all of the budget where a cap was chosen as well, and its conditions."""
    whole = plan.budget if budget is None else budget
    return {
        "epsilon": whole.epsilon,
        "delta": whole.delta,
        "unit": "user",
        "neighbours": "add-or-remove",
        "conditions": _conditions(plan, request),
    }


def guarantee(plan: Plan, request: Mapping[str, Any], budget: Budget | None = None) -> str:
    """The guarantee as a sentence."""
    whole = plan.budget if budget is None else budget
    factor = f" ≈ {upper_figure(math.exp(whole.epsilon), 4)}" if whole.epsilon < 30.0 else ""
    conditions = ", and that ".join(_sentences(_CONDITIONS, _conditions(plan, request), plan, request))
    return (
        f"This release is (epsilon = {whole.epsilon!r}, delta = {whole.delta!r})-differentially private at the "
        "user level: adding or removing all data of any one user changes the probability of any outcome by at "
        f"most a factor of e^{whole.epsilon!r}{factor}, plus {whole.delta!r}"
        f"{f', provided that {conditions}' if conditions else ''}."
    )


def _conditions(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    types = {"text": "frame-values", "fixed": "fixed-types"}
    conditions = {
        "counts-per-user": not request,
        "item-types": not request,
        "max-nonzero": _relies_on_promise(plan, request),
        "one-update-per-user": "sketch" in request,
        types.get(request.get("types", ""), ""): "types" in request and request["types"] != "none",
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
        # A top-k step has no use for a bound on users, and none is applied.
        "user-limit": "max-items-per-user" in request
        and plan.contract.spread is None
        and ("top" not in request or plan.contract.max_nonzero is None),
        "spread": plan.contract.spread is not None,
        "estimate": request.get("max-items-per-user") == "auto",
        "max-nonzero": _relies_on_promise(plan, request),
        "differences": is_difference(plan, request),
        "perhaps-reduced": is_perhaps_reduced(plan, request),
        "reduced": "max-nonzero" in request and top_k_keeps(plan),
        "sketch-with-offset" if plan.releases_offset else "sketch": "sketch" in request,
        "selection": not public,
        "clamped-sums": bool(plan.sums),
        "weighted-sums": bool(plan.sums) and plan.contract.spread is not None,
        "selected-sums": bool(plan.sums) and not public,
        "shared-noise": plan.sigma_shared > 0.0,
    }
    return [caveat for caveat, holds in caveats.items() if holds]


def not_covered(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    """What a reader might assume and should not, as sentences."""
    return _sentences(_CAVEATS, _caveats(plan, request), plan, request)


def caveats(plan: Plan, request: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted caveats that hold, as sentences, in the order wanted."""
    found = _caveats(plan, request)
    return _sentences(_CAVEATS, [code for code in wanted if code in found], plan, request)


def conditions(plan: Plan, request: Mapping[str, Any], wanted: Sequence[str]) -> list[str]:
    """Those of the wanted conditions that the guarantee rests on, as sentences, in the order wanted."""
    found = _conditions(plan, request)
    chosen = _sentences(_CONDITIONS, [code for code in wanted if code in found], plan, request)
    return [f"The guarantee supposes that {one}." for one in chosen]


def _sentences(texts: Mapping[str, str], codes: list[str], plan: Plan, request: Mapping[str, Any]) -> list[str]:
    cap, size = request.get("max-items-per-user"), request.get("sketch-size", 0)
    ranges = (
        f"{one.name}: {one.column} from {float(one.low):g} to {float(one.high):g}"
        for one in (aggregates_of(request) if plan.sums else ())
    )
    cap = plan.contract.items if cap == "auto" else cap
    values = {
        "items": plan.contract.items,
        "cap": cap,
        "noun": "item" if cap == 1 else "items",
        "most": plan.contract.spread,
        "least": f"{plan.least_weight:.2g}",
        "nonzero": f"{plan.contract.nonzero:.0f}",
        "rank": f"{plan.contract.nonzero + 1:.0f}",
        "size": size,
        "pairs": size + 1,
        "bounds": "; ".join(ranges),
    }
    return [texts[code].format(**values) for code in codes]


def is_difference(plan: Plan, request: Mapping[str, Any]) -> bool:
    """The plain top-k step: nothing is added to the counts again."""
    return request.get("offset") == "none" and plan.contract.max_nonzero is not None


def is_perhaps_reduced(plan: Plan, request: Mapping[str, Any]) -> bool:
    """A histogram with a bound that a top-k step keeps, or a promise: the certificate does not say which."""
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
    """The time in the form of a certificate."""
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
    """The document, still without the facts of its output."""
    budget = None if chosen is None else chosen.plan.budget
    return {
        "format": FORMAT,
        "dphist": version,
        "created": created,
        "private": private,
        "guarantee": guarantee_facts(plan, request, budget) if private else None,
        "caveats": _caveats(plan, request),
        "request": dict(request),
        "plan": plan_facts(plan),
        "counts": counts_facts(plan, request, offset),
        **({} if chosen is None else {"choice": chosen.to_dict()}),
        **({} if receipt is None else {"booking": dict(receipt)}),
        **({"sums": sums_facts(plan, aggregates_of(request))} if plan.sums else {}),
    }


def plan_facts(plan: Plan) -> dict[str, Any]:
    """The plan as a certificate has it: the exact numbers and those that follow from them."""
    explaining = ("analysis", "binding_case", "certificate", "notes")
    return {name: value for name, value in plan.to_dict().items() if name not in explaining}


def plan_from(data: Any) -> Plan:
    """The plan of a document, from its exact numbers, with a certificate that is computed here and now."""
    try:
        budget = Budget(data["epsilon"], data["delta"])
        contract = Contract(data["max_nonzero"], data["max_items_per_user"], data.get("spread"))
        noise = _noise_from(data)
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise InvalidParameter(f"the certificate's plan cannot be read ({type(error).__name__})") from None
    if contract.spread is not None and contract != contract_of(contract.max_nonzero, contract.items, True):
        # Before it is certified: the work grows with the number of levels.
        raise InvalidParameter("the certificate's plan spreads the items of a user as no release does")
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
