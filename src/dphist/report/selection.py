"""What the threshold does to counts: how likely each is to be released, and how far off it is then.

A lower threshold shifts the law of release: what is below is removed, and what is left begins at 1 again. A top-k
step shifts it by what it subtracts, which is a secret: there counts are told relative to that, and begin at 1
whatever the lower threshold is. No data is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.planning.utility import count_noise
from dphist.privacy.types import Plan
from dphist.releasing.certificate import is_perhaps_reduced

FloatArray = NDArray[np.float64]
_POINTS: Final = 121


@dataclass(frozen=True)
class Selection:
    """By true count: the probability of release, and the mean and the deviation of the error of the released."""

    counts: tuple[int, ...]
    probability: tuple[float, ...]
    bias: tuple[float, ...]
    deviation: tuple[float, ...]
    unlikely: int | None
    even: int
    likely: int
    axis: str
    # How many are left of those that pass, where a cap serves in place of a top-k step.
    largest: int | None = None

    @property
    def does(self) -> str:
        """What has the probability: where what passes is cut to the largest, by their number, it is no release."""
        return "is released" if self.largest is None else "passes the threshold"

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = zip(self.counts, self.probability, self.bias, self.deviation, strict=True)
        return {
            "axis": self.axis,
            "largest_of_those_that_pass": self.largest,
            "count_released_with_1_percent": self.unlikely,
            "count_released_with_50_percent": self.even,
            "count_released_with_99_percent": self.likely,
            "by_count": [
                {"count": count, "probability": p, "bias": bias, "standard_deviation": deviation}
                for count, p, bias, deviation in rows
            ],
        }


def selection(plan: Plan, request: Mapping[str, Any]) -> Selection | None:
    """How the threshold selects; None where every item is released."""
    if math.isinf(plan.threshold):
        return None
    lower = 1 if _is_relative(plan, request) else int(request.get("lower-threshold", 1))
    law, spread = count_noise(plan.noise), math.hypot(plan.sigma, plan.sigma_shared)
    middle = plan.threshold + lower - 1
    first, last = max(lower, math.floor(middle - 4.0 * spread)), math.ceil(middle + 5.0 * spread) + 1
    unlikely, even, likely = (law.passing_count(aim) + lower - 1 for aim in (0.01, 0.5, 0.99))
    counts = np.unique(np.append(np.linspace(first, last, _POINTS).astype(np.int64), even))
    probability, bias, deviation = released_with(plan, counts, lower, rounded=request.get("round") is True)
    return Selection(
        tuple(int(count) for count in counts),
        _floats(probability),
        _floats(bias),
        _floats(deviation),
        unlikely - 1 if unlikely > lower else None,
        even,
        likely,
        _axis(plan, request),
        _largest(plan, request),
    )


def _largest(plan: Plan, request: Mapping[str, Any]) -> int | None:
    top = request.get("top")
    return top if isinstance(top, int) and plan.contract.max_nonzero is None else None


def _floats(numbers: FloatArray) -> tuple[float, ...]:
    return tuple(float(number) for number in numbers)


def _is_relative(plan: Plan, request: Mapping[str, Any]) -> bool:
    """Whether a top-k step subtracted something that only the data know."""
    # Where a bound on users serves in place of a top-k step, nothing is subtracted.
    return (plan.releases_offset or "top" in request) and plan.contract.max_nonzero is not None


def _axis(plan: Plan, request: Mapping[str, Any]) -> str:
    """What is meant by a true count."""
    if "sketch" in request:
        return "counter of the sketch"
    if _is_relative(plan, request):
        assert plan.contract.max_nonzero is not None
        lower = int(request.get("lower-threshold", 1))
        # Of counts from the lower threshold on at least its place before them is taken.
        least = f", or less {lower - 1:,} if that is more" if lower > 1 else ""
        return f"true count less that of the item ranked {plan.contract.max_nonzero + 1:,}{least}"
    if is_perhaps_reduced(plan, request):
        return "true count, less what was subtracted from all"
    return "true number of users counted"


def released_with(
    plan: Plan, counts: NDArray[Any], lower: int = 1, *, rounded: bool = False
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Probability of release of true counts; mean and deviation of the error of those that are released."""
    probability, bias, variance = count_noise(plan.noise).released(counts - (lower - 1))
    return probability, bias, np.sqrt(variance + (1.0 / 12.0 if rounded else 0.0))
