"""The proof of a plan: its delta, recomputed from the numbers of its noise; and how its bounds are enforced."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import lru_cache

from dphist.certificate.request import AnyRequest, HistogramRequest
from dphist.certificate.schema import PlanPart
from dphist.errors import InvalidParameter, NotPrivate
from dphist.model import AnyNoise, Budget, Contract, Plan, Proof
from dphist.proof.certify import certify_drawn


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
    return replace(plan, proof=certificate_of(plan.noise, plan.contract, plan.budget))


def plan_of(part: PlanPart) -> Plan:
    """The plan in a certificate, certified again; an error if its numbers prove nothing."""
    try:
        budget, contract = Budget(part.epsilon, part.delta), Contract(part.max_nonzero, part.max_items_per_user)
        noise = part.noise_of()
    except (ValueError, ArithmeticError) as error:
        raise InvalidParameter(f"the certificate's plan cannot be read ({type(error).__name__})") from None
    certificate = certificate_of(noise, contract, budget)
    return Plan(budget, contract, noise, "exact", certificate, lower_threshold=part.lower_threshold)


def certificate_of(noise: AnyNoise, contract: Contract, budget: Budget) -> Proof:
    """Certify this noise. Raises if it cannot be drawn exactly, or if its delta exceeds the budget's."""
    if noise.kind == "continuous":
        raise InvalidParameter(
            "the plan has continuous noise, which cannot be drawn exactly: plan with noise='discrete'"
        )
    if not noise.is_exact:
        raise InvalidParameter("the plan's lattice and limit must be whole numbers and its variances fractions")
    certificate = _certify(noise, contract, budget)
    if not certificate.delta <= budget.delta:
        raise NotPrivate(
            f"the plan does not keep its budget: at epsilon {budget.epsilon:g} no delta up to {budget.delta:g} "
            "can be certified for its noise and threshold"
        )
    return certificate


@lru_cache(maxsize=256)
def _certify(noise: AnyNoise, contract: Contract, budget: Budget) -> Proof:
    return certify_drawn(noise, contract, epsilon=budget.epsilon, budget=budget.delta)


def nonzero_rule(plan: Plan, *, promised: bool) -> Nonzero:
    """How `max_nonzero` of a certified plan is enforced; `promised` means that the caller guarantees it."""
    contract = plan.contract
    if contract.max_nonzero is None or plan.noise.public or plan.noise.in_rounds:
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
        "guarantee_max_nonzero=True if no possible dataset has more non-zero counts, or plan with one of them"
    )


def top_k_keeps(plan: Plan) -> bool:
    """Whether a top-k step can enforce `max_nonzero` for this plan.

    A user who raises the (k+1)-th largest count lowers all others. That breaks a smaller limit on the items of a
    user, and with it the plan's profile. The analysis of sums assumes that counts and sums change together.
    """
    contract = plan.contract
    return contract.items == contract.max_nonzero and not plan.sums


def is_difference(plan: Plan, request: AnyRequest) -> bool:
    """Whether counts are differences: a top-k step whose subtracted count is not released."""
    return request.offset == "none" and plan.contract.max_nonzero is not None


def is_perhaps_reduced(plan: Plan, request: AnyRequest) -> bool:
    """Whether a count may have been subtracted from a histogram."""
    unknown = isinstance(request, HistogramRequest) and not request.guarantee_max_nonzero and not plan.noise.public
    return unknown and not plan.releases_offset and top_k_keeps(plan)


def with_lower_threshold(plan: Plan, request: AnyRequest) -> Plan:
    """The plan as it is applied to published counts. Differences do not get back what was subtracted from them."""
    return replace(plan, lower_threshold=1 if is_difference(plan, request) else request.lower_threshold)


def sketch_problem(plan: Plan, size: int) -> str | None:
    """Why a certified plan does not hold for sketches of this size; None if it does.

    One user changes up to `size` counters of a sketch, all by +1 or all by -1, even with a single item. Together
    with the total that was subtracted, these are the neighbours of a top-k step, so plans with an offset hold too.
    """
    if plan.sums:
        return "a plan with sums does not hold for a sketch, which only counts"
    if plan.noise.in_rounds:
        return "a plan in rounds does not hold for a sketch, which cannot be counted again"
    if plan.noise.public:
        return "a plan for a public list of items does not hold for a sketch, whose items are not public"
    if plan.contract.items < size or (plan.releases_offset and plan.contract.user_limit is not None):
        return (
            f"the plan lets one user touch {plan.contract.items} counts, and in a sketch of size {size} a user "
            f"with a single item can change all {size}: plan with max_nonzero={size} or top={size}, and without "
            "a smaller max_items_per_user"
        )
    return None
