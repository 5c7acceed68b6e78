"""Several releases planned together under one total budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from scipy import special

from dphist.accounting.composition import Composition, compose
from dphist.accounting.profile import profile_of_plan
from dphist.display import html_grid, text_grid
from dphist.errors import LARGEST_EPSILON, InvalidParameter, NoPlan, positive_number
from dphist.planning.planner import plan
from dphist.privacy.numerics import golden_minimum
from dphist.privacy.paper import largest_sensitivity_per_sigma
from dphist.privacy.types import Budget, Plan

# How far the profiles that steer the search may lie above the truth.
_ROUGH: Final = 2e-2
_FINE: Final = 2e-3
# The search ends when this share of delta is spent, or when the loss rate is known this well.
_NEARLY: Final = 0.97
_AIM: Final = 0.985
_CLOSE: Final = 1.001
_MOST_ROUNDS: Final = 12
_COLUMNS: Final = ("release", "mechanism", "noise", "threshold", "noise to added", "threshold to added")


@dataclass(frozen=True)
class JointPlan:
    """Plans that are within one total together: `delta` is certified, at the total's epsilon.

    `alone` are the plans under basic composition, with epsilon and delta of the total split by the shares.
    """

    total: Budget
    plans: tuple[Plan, ...]
    composition: Composition = field(repr=False)
    delta: float
    alone: tuple[Plan, ...] = field(repr=False)

    @property
    def noise_ratios(self) -> tuple[float, ...]:
        """The noise of each plan, relative to basic composition."""
        return tuple(a.total_noise / b.total_noise for a, b in zip(self.plans, self.alone, strict=True))

    @property
    def threshold_ratios(self) -> tuple[float, ...]:
        """The threshold of each plan, relative to basic composition; 1 for public lists, which have none."""
        pairs = zip(self.plans, self.alone, strict=True)
        return tuple(1.0 if math.isinf(a.threshold) else a.threshold / b.threshold for a, b in pairs)

    @property
    def title(self) -> str:
        return (
            f"{len(self.plans)} releases together: epsilon {self.total.epsilon:g}, delta {self.total.delta:g}; "
            f"certified delta {self.delta:.6g}"
        )

    def cells(self) -> list[tuple[str, ...]]:
        ratios = zip(self.plans, self.noise_ratios, self.threshold_ratios, strict=True)
        return [
            (
                str(number), plan.mechanism, f"{plan.total_noise:.4g}",
                "-" if math.isinf(plan.threshold) else f"{plan.threshold:.5g}", f"{noise:.3f}",
                "-" if math.isinf(plan.threshold) else f"{threshold:.3f}",
            )
            for number, (plan, noise, threshold) in enumerate(ratios, 1)
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.title}\n\n{text_grid(_COLUMNS, self.cells(), left=0)}"

    def _repr_html_(self) -> str:
        return html_grid(self.title, _COLUMNS, self.cells())


def plan_many(
    requests: Sequence[Mapping[str, Any]],
    *,
    epsilon: float,
    delta: float,
    weights: Sequence[float] | None = None,
) -> JointPlan:
    """A plan for each request such that all of them together are (epsilon, delta)-private.

    A request has the options of `dphist.plan`, without epsilon and delta. `weights` are shares of the total, equal
    by default: a release with twice the share has about 0.7 times the noise. All releases may use the same data.

    Guarantee: the composition of the certified profiles of these plans is within the total.

    >>> from dphist.accounting import plan_many
    >>> both = plan_many([dict(max_items_per_user=10), dict(public_items=50)], epsilon=1, delta=1e-6)
    >>> both.delta <= 1e-6
    True
    """
    total, shares = Budget(epsilon, delta), _shares(requests, weights)
    infinite = _infinite_part(total, shares)
    plans, composed, worst = _search(requests, shares, total, infinite)
    alone = tuple(
        plan(epsilon=share * total.epsilon, delta=share * total.delta, **request)
        for request, share in zip(requests, shares, strict=True)
    )
    return JointPlan(total, plans, composed, worst, alone)


def _search(
    requests: Sequence[Mapping[str, Any]], shares: Sequence[float], total: Budget, infinite: float
) -> tuple[tuple[Plan, ...], Composition, float]:
    """Plans whose composition is within the total and spends nearly all of it, with their delta.

    Each round costs a profile for every plan, so the search follows the slope of a Gaussian tail.
    """
    mu = _largest_loss_rate(total, infinite)
    best, low, high, below, above = None, 0.0, math.inf, 0.0, 1.0
    for attempt in range(_MOST_ROUNDS):
        plans = _plans_at(mu, requests, shares, infinite)
        excess = _ROUGH if attempt == 0 else _FINE
        composed = compose(*((profile_of_plan(plan, excess=excess), n) for plan, n in Counter(plans).items()))
        worst = composed.delta(total.epsilon)
        if worst <= total.delta:
            # A rough profile only overstates delta.
            best, low, below = (plans, composed, worst), mu, worst
            if worst >= _NEARLY * total.delta or high <= mu * _CLOSE:
                break
        else:
            high, above = mu, worst
        if low > 0.0 and math.isfinite(high):
            part = math.log(_AIM * total.delta / below) / math.log(above / below)
            mu = low * (high / low) ** min(0.9, max(0.1, part))
            continue
        spare, used = total.delta - infinite, max(worst - infinite, total.delta * 1e-3)
        steep = max(2.0, (total.epsilon / mu) ** 2)
        # Slightly further than the slope suggests, so that the next round is on the other side.
        step = min(2.0, max(0.5, (_AIM * spare / used) ** (1.2 / steep)))
        mu *= step if (step > 1.0) == (worst <= total.delta) else (1.05 if worst <= total.delta else 0.95)
    if best is None:
        raise NoPlan(f"no plans for these {len(requests)} requests are within {total} together")
    return best


def _plans_at(
    mu: float, requests: Sequence[Mapping[str, Any]], shares: Sequence[float], infinite: float
) -> tuple[Plan, ...]:
    """Plans for a loss rate mu of all releases together: release i has mu sqrt(share), and its part of delta."""
    made: list[tuple[Mapping[str, Any], float, Plan]] = []
    for request, share in zip(requests, shares, strict=True):
        same = [earlier for other, part, earlier in made if part == share and other == request]
        if not same:
            epsilon = _epsilon_for(mu * math.sqrt(share), infinite * share)
            same = [plan(epsilon=epsilon, delta=infinite * share, **request)]
        made.append((request, share, same[0]))
    return tuple(made_plan for _, _, made_plan in made)


def _epsilon_for(mu: float, delta: float) -> float:
    """The epsilon at which a Gaussian of this sensitivity per deviation spends delta."""
    low, high = 1e-6, 1.0
    while largest_sensitivity_per_sigma(epsilon=high, delta=delta) < mu and high < LARGEST_EPSILON:
        low, high = high, min(2.0 * high, LARGEST_EPSILON)
    for _ in range(60):
        middle = math.sqrt(low * high)
        enough = largest_sensitivity_per_sigma(epsilon=middle, delta=delta) >= mu
        low, high = (low, middle) if enough else (middle, high)
    return high


def _largest_loss_rate(total: Budget, infinite: float) -> float:
    return largest_sensitivity_per_sigma(epsilon=total.epsilon, delta=total.delta - infinite)


def _infinite_part(total: Budget, shares: Sequence[float]) -> float:
    """The part of delta for new counts, which adds up: the one with the lowest threshold, quantile/loss rate."""
    least = min(shares)

    def cost(part: float) -> float:
        return -float(special.ndtri(part * total.delta * least)) / _largest_loss_rate(total, part * total.delta)

    part, _ = golden_minimum(cost, 0.05, 0.95, tolerance=1e-3)
    return part * total.delta


def _shares(requests: Sequence[Mapping[str, Any]], weights: Sequence[float] | None) -> list[float]:
    if not requests:
        raise InvalidParameter("plan_many needs at least one request")
    for request in requests:
        for name in ("epsilon", "delta"):
            if name in request:
                raise InvalidParameter(f"a request must not have {name}: give the total of all requests")
    if weights is None:
        return [1.0 / len(requests)] * len(requests)
    if len(weights) != len(requests):
        raise InvalidParameter(f"give a weight for each of {len(requests)} requests, not {len(weights)}")
    checked = [positive_number("weight", weight) for weight in weights]
    return [weight / math.fsum(checked) for weight in checked]
