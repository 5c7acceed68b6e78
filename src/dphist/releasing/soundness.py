"""Is a plan what it claims, how is its contract enforced, and how is a limit on users chosen privately?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Final

from dphist.counting.task import Engine, Task
from dphist.errors import InvalidParameter, NotPrivate
from dphist.planning.auto_cap import (
    ChoicePlan,
    check_goal,
    choose_plan,
    excess_of,
    plan_choice,
)
from dphist.planning.optimum import check_bounds
from dphist.planning.planner import Excess, check_excess, contract_of, family_shares, public_plan
from dphist.planning.planner import plan as make_plan
from dphist.planning.utility import Correction
from dphist.privacy.certificate import certify_noise
from dphist.privacy.types import (
    AnyNoise,
    Budget,
    Certificate,
    Contract,
    LaplaceNoise,
    LatticeNoise,
    Plan,
    PublicNoise,
    caps_up_to,
)
from dphist.sampling.mechanisms import noisy_sizes
from dphist.sampling.tap import Tap


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


# With a public list noise is shared only if a user may touch one item in so many: otherwise it helps little.
_WORTH_SHARING: Final = 8
# From so many deviations on, estimates were seen to be within their intervals.
_CLEAR: Final = 50.0
# For a smaller delta the certificates of all limits would take minutes.
LEAST_DELTA: Final = 1e-30


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


def sizes_are_rough(noisy: Sequence[float], deviation: float) -> bool:
    """Whether all users together are few against the noise of one number of them (found on real data)."""
    return sum(noisy) < _CLEAR * deviation


def choice_for(
    budget: Budget,
    *,
    share: float | None = None,
    mechanism: str = "best",
    minimize: str = "threshold",
    sums: Sequence[tuple[Fraction, Fraction]] = (),
    weights: Sequence[float] | None = None,
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
            weights=None if shares is None else shares.weights, excess="spread" if spreads else "drop",
        )  # fmt: skip

    makers = [partial(plan_of, way == "spread") for way in ways]
    return plan_choice(budget, *makers, share=share, caps=caps_up_to(public_items), goal=check_goal(goal))


def choose(
    planned: ChoicePlan, engine: Engine, task: Task, tap: Tap, progress: Callable[[float], None] | None = None
) -> Chosen:
    """Count users by their number of items, add noise, and choose the limit."""
    caps = planned.choice.caps
    noisy = noisy_sizes(planned.choice, engine.sizes(task, caps, progress), tap)
    return Chosen.by(planned, noisy)
