"""A cap that is chosen privately: from noisy numbers of users by their numbers of items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final

from dphist.calibrate.auto_cap import DEFAULT_SHARE, ChoicePlan, chosen_cap, plan_choice
from dphist.calibrate.planning import plan as make_plan
from dphist.engines.protocol import Engine, Task
from dphist.errors import InvalidParameter
from dphist.mechanisms.sizes import noisy_sizes
from dphist.sampling.tap import Tap
from dphist.types import Budget, Plan, caps_up_to

# Below, the certificate of all caps takes minutes, and nobody asks for less.
LEAST_DELTA: Final = 1e-30


@dataclass(frozen=True)
class Chosen:
    """A cap, the noisy numbers of users it was chosen by, and the plan of the choice. No true number is in it."""

    plan: ChoicePlan
    noisy: tuple[int, ...]
    cap: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the certificate."""
        return {**self.plan.to_dict(), "noisy_users": list(self.noisy), "cap": self.cap}


def choice_for(
    budget: Budget,
    *,
    share: float | None = None,
    mechanism: str = "best",
    minimize: str = "threshold",
    sums: Sequence[tuple[Fraction, Fraction]] = (),
    weights: Sequence[float] | None = None,
    public_items: int | None = None,
) -> ChoicePlan:
    """The plans of all caps on offer for a request. Of the data only the length of a public list is known."""
    if budget.delta < LEAST_DELTA:
        raise InvalidParameter(f"a cap is chosen for a delta of at least {LEAST_DELTA:g}, not {budget.delta!r}")
    planned = partial(make_plan, minimize=minimize, sums=sums, weights=weights, public_items=public_items)

    def plan_of(epsilon: float, delta: float, cap: int) -> Plan:
        # After noisy sizes Laplace noise has to keep so much of epsilon free that it is better for one item alone.
        kind = "gaussian" if mechanism == "best" and cap > 1 else mechanism
        return planned(epsilon=epsilon, delta=delta, max_items_per_user=cap, mechanism=kind)

    caps = caps_up_to(public_items)
    return plan_choice(budget, plan_of, share=DEFAULT_SHARE if share is None else share, caps=caps)


def choose(
    planned: ChoicePlan, engine: Engine, task: Task, tap: Tap, progress: Callable[[float], None] | None = None
) -> Chosen:
    """Count users by their numbers of items, add noise, and choose."""
    caps = planned.choice.caps
    noisy = noisy_sizes(planned.choice, engine.sizes(task, caps, progress), tap)
    return Chosen(planned, noisy, chosen_cap(planned, noisy))
