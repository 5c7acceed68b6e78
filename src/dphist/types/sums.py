"""Sums beside the counts: their bounds, and the noise they get."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dphist.errors import InvalidParameter


@dataclass(frozen=True)
class SumNoise:
    """A sum of values from `low` to `high`, one of each user, in whole steps around their middle.

    Half the range is `reach` steps, so that one user moves the sum by at most as many. The noise has the variance
    parameter `variance`, in squared steps. To the sum around the middle, the middle is added once for each user:
    the noisy count in place of the true one.
    """

    low: Fraction
    high: Fraction
    reach: int
    variance: Fraction

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidParameter(f"the bounds of a sum must be LOW < HIGH, not {self.low} and {self.high}")
        if self.reach < 1 or self.variance <= 0:
            raise InvalidParameter(
                f"a sum needs a reach of at least one step and noise, not {self.reach} and {self.variance}"
            )

    @property
    def step(self) -> Fraction:
        """What a step is worth."""
        return (self.high - self.low) / (2 * self.reach)

    @property
    def middle(self) -> Fraction:
        """The value that a user is taken to have but for the sum's own steps."""
        return (self.low + self.high) / 2

    @property
    def sigma(self) -> float:
        """Standard deviation parameter of the sum's own noise, as a value."""
        return math.sqrt(self.variance) * float(self.step)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, exact."""
        return {
            "low": str(self.low),
            "high": str(self.high),
            "sigma": self.sigma,
            "reach_steps": self.reach,
            "variance_steps": str(self.variance),
        }
