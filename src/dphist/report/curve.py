"""delta for every epsilon: certified points, and what holds between them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from dphist.accounting.profile import MOST_ITEMS, delta_laplace_upper
from dphist.errors import LARGEST_EPSILON
from dphist.planning.auto_cap import ChoicePlan, choice_curve, delta_of_plan
from dphist.privacy.noise import LaplaceNoise
from dphist.privacy.types import Plan

# Shared noise takes a tenth of a second a point.
_POINTS: Final = 41
_POINTS_SHARED: Final = 21
# Plans for millions of counts take seconds a point, and have fewer of them.
_SECONDS: Final = 3.0
BETWEEN: Final = (
    "Each point is a certified upper bound, computed in ball arithmetic. The lines between points only lead the "
    "eye: what is proved between two of them is the chord of delta over e^epsilon, which is above the line."
)


@dataclass(frozen=True)
class Curve:
    """Certified points from epsilon 0 to twice the plan's, and what is to be said of them."""

    points: tuple[tuple[float, float], ...]
    note: str


def delta_upper(plan: Plan, epsilon: float) -> float:
    """A certified upper bound of a plan's delta at any epsilon from 0 on."""
    noise, bound = plan.noise, delta_of_plan(plan, epsilon)
    if isinstance(noise, LaplaceNoise) and plan.contract.items <= MOST_ITEMS:
        # Below m/scale the profile above is that of any release with the same certificate; this is its own.
        return min(bound, delta_laplace_upper(noise.scale, noise.limit, plan.contract.items, epsilon=epsilon))
    return bound


def curve_of(plan: Plan, choice: ChoicePlan | None = None, *, seeded: bool = False) -> Curve:
    """The curve of a plan, with the `choice` of its cap if there was one; `seeded` if nothing of it holds."""
    points = _POINTS if plan.sigma_shared == 0.0 and choice is None else _POINTS_SHARED
    own = plan if choice is None else choice
    # The own epsilon is the one in the middle, but for very large ones; its delta is known.
    epsilon, last = own.budget.epsilon, min(2.0 * own.budget.epsilon, LARGEST_EPSILON)
    found, places = {epsilon: own.certificate.delta}, _coarse_first(points - 1)
    wanted = [x for place in places if (x := last * place / (points - 1)) not in found]
    if choice is None:
        until = time.monotonic() + _SECONDS
        for x in wanted:
            if x == 0.0 or time.monotonic() < until:
                found[x] = delta_upper(plan, x)
    else:
        found |= dict(zip(wanted, choice_curve(choice, wanted), strict=True))
    left_out = len(wanted) + 1 - len(found)
    return Curve(tuple(sorted(found.items())), " ".join(_notes(plan, choice, seeded, len(found), left_out)))


def _notes(plan: Plan, choice: ChoicePlan | None, seeded: bool, computed: int, left_out: int) -> list[str]:
    notes = ["The mark is the promise of this release; all points hold at once."]
    if choice is not None:
        notes.append(
            "The curve is of the noisy numbers that chose the cap and of the release together, whichever cap they "
            "choose; of a release with this one cap alone it would be lower."
        )
    if seeded:
        notes = [
            "NOT PRIVATE: this is the curve of the plan. The noise was made from a seed, and no point of the "
            "curve, nor the mark, holds for this release."
        ]
    if left_out:
        notes.append(f"A point takes long to compute for this plan: there are {computed}, and no more.")
    if any(isinstance(one.noise, LaplaceNoise) for one in (choice.plans if choice else (plan,))):
        notes.append("For Laplace noise a point is not always the least bound there is.")
    return notes


def _coarse_first(last: int) -> list[int]:
    """0 to last, the ends first and then those in between: a curve that is cut short is still a curve."""
    step = 1 << last.bit_length()
    order = [0, last]
    while step := step // 2:
        order += [place for place in range(0, last, step) if place not in order]
    return order
