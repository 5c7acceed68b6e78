"""The profile of a plan, from as few certificates as it takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

from dphist.accounting.laplace import MOST_ITEMS, delta_laplace_upper
from dphist.accounting.profile import INTERVAL, LARGEST_KNOT, Profile
from dphist.calibrate.certification import delta_at
from dphist.errors import NotPrivate
from dphist.types import LARGEST_EPSILON, Contract, LaplaceNoise, Plan, positive_number

# How far a chord may lie above the truth, relative to it.
EXCESS: Final = 5e-4
# Below, nothing adds up to a delta that anybody promises.
_TINY: Final = 1e-15
_FLAT: Final = 1e-4
# Deltas below this part of the plan's own need no digits.
_SMALL: Final = 1e-3
_PIECES: Final = 8
# Estimates are not exact: what is less above than this is not worth another certificate.
_SLACK: Final = 1.4


def profile_of_plan(plan: Plan, *, excess: float = EXCESS) -> Profile:
    """The privacy profile of a plan: certified points whose chords are at most `excess` above the truth.

    Guarantee: never below the truth, at any epsilon. Within `excess` of it, relative to it or to a thousandth of
    the plan's delta, as far as the certificates are, except within one step (1e-4 at epsilon 1) of a kink.
    """
    return _profile(plan, positive_number("excess", excess))


@lru_cache(maxsize=256)
def _profile(plan: Plan, excess: float) -> Profile:
    delta = certified_delta(plan)
    tiny = min(_TINY, plan.budget.delta * _FLAT)
    interval = INTERVAL * 2.0 ** min(0, math.floor(math.log2(plan.budget.epsilon)))
    small, floor = plan.budget.delta * _SMALL, delta(LARGEST_EPSILON)
    top = _flat_from(delta, floor * (1.0 + _FLAT) + tiny, plan.budget.epsilon, interval)
    known: dict[int, float] = {}

    def at(mark: int) -> float:
        if mark not in known:
            known[mark] = delta(mark * interval)
        return known[mark]

    marks = _march(top, lambda a, b, c: _estimate(at, a, b, c, interval) / (excess * (at(c) + small)))
    # One more beyond the top: the corner where delta gets flat is the sharpest of all.
    marks = sorted(
        {*marks, *_corners(plan, interval, top), min(top + max(1, top // 64), math.floor(LARGEST_KNOT / interval))}
    )
    while True:
        wrong = [
            (left + right) // 2
            for before, left, right, after in zip(
                [0, *marks], marks, marks[1:], [*marks[2:], marks[-1]], strict=False
            )
            if right > left + 1
            and max(_estimate(at, before, left, right, interval), _estimate(at, left, right, after, interval))
            > _SLACK * excess * (at(right) + small)
        ]
        if not wrong:
            return Profile.from_points(((mark * interval, at(mark)) for mark in marks), interval=interval)
        marks = sorted({*marks, *wrong})


def _march(top: int, badness: Callable[[int, int, int], float]) -> list[int]:
    """Points from zero to the top, each as far from the last as the curvature so far allows."""
    marks, width = [0], max(1, top // 64)
    while marks[-1] < top:
        marks.append(min(top, marks[-1] + width))
        if len(marks) > 2:
            bad = badness(*marks[-3:])
            width = max(1, int(width * min(2.0, max(0.25, 0.95 / math.sqrt(max(bad, 0.05))))))
    return marks


def _estimate(at: Callable[[int], float], left: int, middle: int, right: int, interval: float) -> float:
    """About how far the wider of two chords is above a smooth curve: the change of slope tells the curvature."""
    if left == middle or middle == right:
        return 0.0
    first, second = math.expm1((middle - left) * interval), math.expm1((right - middle) * interval)
    second *= math.exp((middle - left) * interval)
    bend = (at(left) - at(middle)) / first - (at(middle) - at(right)) / second
    wider = max(first, second)
    return bend * wider * (wider / (4.0 * (first + second)))


def certified_delta(plan: Plan) -> Callable[[float], float]:
    """delta of the plan at any epsilon >= 0 as a certified upper bound; 1 where there is no certificate."""
    noise, contract = plan.noise, plan.contract

    def delta(epsilon: float) -> float:
        if isinstance(noise, LaplaceNoise) and _plain_laplace(noise, contract):
            return delta_laplace_upper(noise.scale, noise.limit, contract.items, epsilon=epsilon)
        try:
            return min(1.0, delta_at(plan, epsilon))
        except NotPrivate:
            return 1.0

    return delta


def _plain_laplace(noise: LaplaceNoise, contract: Contract) -> bool:
    """Whether each count moves by one, as `delta_laplace_upper` has it; a subclass may be for something else."""
    return type(noise) is LaplaceNoise and type(contract) is Contract and contract.items <= MOST_ITEMS


def _corners(plan: Plan, interval: float, top: int) -> set[int]:
    """Where a profile has corners by nature: at the multiples of 1/scale."""
    if not isinstance(plan.noise, LaplaceNoise):
        return set()
    # One at the least is kept where there are many; the chords in between are then tested as all others.
    step = max(1, plan.contract.items // _PIECES)
    steps = (float(count / plan.noise.scale) / interval for count in range(1, plan.contract.items + 1, step))
    last = float(plan.contract.items / plan.noise.scale) / interval
    marks = {round(mark) for mark in (*steps, last)} | {math.ceil(last)}
    return {mark for mark in marks if 0 < mark < top}


def _flat_from(delta: Callable[[float], float], target: float, start: float, interval: float) -> int:
    """The first multiple of the interval, within a tenth of a percent, at which delta is within the target."""
    most = math.floor(LARGEST_KNOT / interval)
    low, high = 0, min(most, max(1, math.ceil(start / interval)))
    while high < most and delta(high * interval) > target:
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if delta(middle * interval) <= target else (middle, high)
    return high
