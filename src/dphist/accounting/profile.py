"""A privacy profile as data: a convex chain of certified points that never lies below the truth."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.errors import InvalidParameter
from dphist.types import Budget

FloatArray = NDArray[np.float64]

PROFILE_FORMAT: Final = "dphist-profile/1"
INTERVAL: Final = 1e-4
# e^epsilon must stay a double; beyond, the last delta holds.
LARGEST_KNOT: Final = 700.0
# More than what a few hundred sums and quotients of doubles can lose, relative to their result.
_HAIR: Final = 1e-12


@dataclass(frozen=True)
class Profile:
    """Points (epsilon, delta) of a mechanism, each an upper bound, convex in e^epsilon, for both directions.

    Between two points the chord in e^epsilon holds, after the last point its delta, below zero the mirror image
    delta(-e) = 1 - e^(-e) + e^(-e) delta(e). `interval` is the step that all epsilons are multiples of, if any.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    interval: float = INTERVAL

    def __post_init__(self) -> None:
        pairs = list(zip(self.epsilons, self.deltas, strict=True))
        numbers = [*self.epsilons, *self.deltas, self.interval]
        if not pairs or not all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
            raise InvalidParameter("a profile needs points of finite numbers")
        if not 0.0 <= self.epsilons[0] <= self.epsilons[-1] <= LARGEST_KNOT or self.interval <= 0.0:
            raise InvalidParameter(f"a profile's epsilons must be between 0 and {LARGEST_KNOT:g}")
        if not 0.0 <= self.deltas[-1] <= self.deltas[0] <= 1.0:
            raise InvalidParameter("a profile's deltas must be between 0 and 1")
        for (left, above), (right, below) in pairwise(pairs):
            if left >= right or above < below:
                raise InvalidParameter("a profile's epsilons must rise, and its deltas must not")

    @classmethod
    def from_points(cls, points: Iterable[tuple[float, float]], *, interval: float = INTERVAL) -> Profile:
        """The lowest convex chain over upper bounds of one mechanism's deltas.

        Guarantee: never below the truth: that is convex and below each point, hence below all of their chords.
        """
        highest = 1.0
        chain: list[tuple[float, float]] = []
        for epsilon, delta in sorted(points):
            # delta never rises with epsilon, so a bound holds further right as well.
            highest = min(highest, delta)
            if epsilon > LARGEST_KNOT or (chain and chain[-1][0] == epsilon):
                continue
            chain.append((epsilon, highest))
            while len(chain) > 2 and _slope(chain[-3], chain[-2]) <= _slope(chain[-2], chain[-1]):
                del chain[-2]
        while len(chain) > 1 and _first_slope(chain) <= _slope(chain[0], chain[1]):
            del chain[0]
        # A flat end says nothing that its first point does not.
        while len(chain) > 1 and chain[-2][1] == chain[-1][1]:
            del chain[-1]
        if not chain:
            raise InvalidParameter(f"a profile needs a point at an epsilon of at most {LARGEST_KNOT:g}")
        return cls(tuple(e for e, _ in chain), tuple(d for _, d in chain), interval)

    @classmethod
    def of_budget(cls, epsilon: float, delta: float) -> Profile:
        """The worst profile of anything that is (epsilon, delta)-private and of which no more is known.

        Guarantee: an upper bound, attained by randomised response that says everything with probability delta.
        Source: Kairouz, Oh and Viswanath 2015; here the chord between the point and its mirror image.
        """
        budget = Budget(epsilon, delta)
        return cls((budget.epsilon,), (budget.delta,))

    @property
    def infinite(self) -> float:
        """The delta that no epsilon removes: the mass at infinity."""
        return self.deltas[-1]

    def delta(self, epsilon: float) -> float:
        """An upper bound of delta at any epsilon, also below zero."""
        if epsilon < 0.0:
            return min(1.0, -math.expm1(epsilon) + math.exp(epsilon) * self.delta(-epsilon))
        if epsilon >= self.epsilons[-1]:
            return self.deltas[-1]
        after = int(np.searchsorted(self.epsilons, epsilon, side="right"))
        right = (self.epsilons[after], self.deltas[after])
        slope = (
            _first_slope([right])
            if after == 0
            else _slope((self.epsilons[after - 1], self.deltas[after - 1]), right)
        )
        rise = slope * math.exp(epsilon) * math.expm1(right[0] - epsilon)
        return min(1.0, (right[1] + rise) * (1.0 + _HAIR))

    def atoms(self) -> tuple[FloatArray, FloatArray]:
        """The losses at which the dominating pair has its mass, and that mass under the first law.

        A chain with corners at e^l is the profile of a pair whose loss takes the values l and infinity alone: the
        change of slope at e^l is the mass of l under the second law, e^l times as much under the first. The mirror
        image exchanges the laws.

        Guarantee: with the mass `infinite` at infinity, a pair whose profile is this one, up to a hair above.
        """
        slopes = self._slopes()
        corners = np.maximum(slopes - np.append(slopes[1:], 0.0), 0.0)
        losses = np.array(self.epsilons)
        if losses[0] == 0.0:
            centre = max(0.0, 1.0 - self.deltas[0] - 2.0 * float(slopes[1])) if losses.size > 1 else 1.0
            away, masses = losses[1:], corners[1:]
            mass = np.concatenate([masses[::-1], [centre], masses * np.exp(away)])
            return np.concatenate([-away[::-1], [0.0], away]), mass * (1.0 + _HAIR)
        mass = np.concatenate([corners[::-1], corners * np.exp(losses)])
        return np.concatenate([-losses[::-1], losses]), mass * (1.0 + _HAIR)

    def _slopes(self) -> FloatArray:
        """How fast delta falls with e^epsilon on the way to each point."""
        points = list(zip(self.epsilons, self.deltas, strict=True))
        first = 0.0 if points[0][0] == 0.0 else _first_slope(points)
        return np.array([first, *(_slope(a, b) for a, b in pairwise(points))])

    def to_dict(self) -> dict[str, Any]:
        """Plain data; JSON keeps every bit of it."""
        return {
            "format": PROFILE_FORMAT,
            "interval": self.interval,
            "epsilons": list(self.epsilons),
            "deltas": list(self.deltas),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """The profile that `to_dict` was made of; anything else is refused in one sentence."""
        if not isinstance(data, dict) or data.get("format") != PROFILE_FORMAT:
            raise InvalidParameter(f"this is no {PROFILE_FORMAT}")
        try:
            numbers = [*data["epsilons"], *data["deltas"], data["interval"]]
            if any(isinstance(number, bool) or not isinstance(number, (int, float)) for number in numbers):
                raise TypeError("not all of it are numbers")
            epsilons, deltas = (tuple(float(number) for number in data[name]) for name in ("epsilons", "deltas"))
            return cls(epsilons, deltas, float(data["interval"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidParameter(f"this profile is damaged: {error}") from None


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    """The fall of delta between two points, per unit of e^epsilon."""
    return (left[1] - right[1]) / (math.exp(left[0]) * math.expm1(right[0] - left[0]))


def _first_slope(chain: list[tuple[float, float]]) -> float:
    """The fall on the chord from the mirror image of the first point to the point.

    At a first point of zero, which is its own image, the slope on its left: the images of the first chord.
    """
    epsilon, delta = chain[0]
    if epsilon > 0.0:
        return (1.0 - delta) / (1.0 + math.exp(epsilon))
    return 1.0 - delta - _slope(chain[0], chain[1])
