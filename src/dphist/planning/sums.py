"""Sums beside the counts: how the budget is shared between them, and which steps their noise takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Rational
from typing import Final

from dphist.errors import InvalidParameter, NoPlan, finite_number
from dphist.privacy.search import golden_minimum
from dphist.privacy.types import Noise, SumNoise

# Steps of half a range: fine enough that rounding a user's value to them is nothing beside the noise.
FINEST_REACH: Final = 1 << 20
# The samplers' largest deviation is 1e8 steps.
_LARGEST_DEVIATION: Final = 5e7
_LEAST_REACH: Final = 16
# Weights of several sums are whole multiples of a unit of which the smallest has so many.
_LEAST_WEIGHT: Final = 4
_MOST_SUMS: Final = 64
# How far all shares may be moved together so that the best offset is on the lattice.
_NEAR_SHARE: Final = 0.1
# Half a unit in place of the best offset costs at most this share of the squared sensitivity, twice.
_LEAST_OFFSET_EXTRA: Final = 0.005
Bounds = tuple[Fraction, Fraction]


def check_bounds(low: object, high: object) -> Bounds:
    """The bounds of a value, exactly as they were written."""
    exact = []
    for name, value in (("LOW", low), ("HIGH", high)):
        finite_number(name, value)
        # A float is the decimal number that it is written as.
        exact.append(Fraction(value) if isinstance(value, Rational) else Fraction(repr(float(value))))  # type: ignore[arg-type]
    if not exact[0] < exact[1]:
        raise InvalidParameter(f"the bounds of a sum must be LOW < HIGH, not {low!r} and {high!r}")
    return exact[0], exact[1]


@dataclass(frozen=True)
class SumShares:
    """The bounds of sums, and how much each adds to the squared sensitivity of a changed count (in its units)."""

    bounds: tuple[Bounds, ...]
    extras: tuple[float, ...]

    @property
    def extra(self) -> float:
        """What all of them add."""
        return sum(self.extras)

    @property
    def weights(self) -> tuple[float, ...]:
        """The shares of the whole squared sensitivity."""
        return tuple(extra / (1.0 + self.extra) for extra in self.extras)

    def on_lattice(self, sigma: float, lattice: int) -> LatticeSums:
        """Whole weights near the shares, for counts with this deviation on a lattice of so many steps."""
        least, reach = min(self.extras), self._reach(sigma)
        common = max(1, round(self._smallest_weight() * reach / (least * lattice**2)))
        weights = [max(1, round(extra * lattice**2 * common / reach)) for extra in self.extras]
        return LatticeSums(self.bounds, reach, tuple(Fraction(weight, common) for weight in weights))

    @property
    def wants_one_offset(self) -> bool:
        """Whether the best offset is worth a lattice of its own: for small shares half a unit is as good."""
        return self.extra >= _LEAST_OFFSET_EXTRA

    def lattice_of_one_offset(self, least: int) -> int:
        """A power of two for a lattice on which (1 + extra)/2 is a whole number of steps, near enough."""
        lattice = 16
        while lattice < least or abs(self._offset_steps(lattice) * 2 / lattice / self.extra - 1.0) > _NEAR_SHARE:
            lattice *= 2
        return lattice

    def with_one_offset(self, sigma: float, lattice: int) -> LatticeSums:
        """Weights for which (1 + extra)/2 is exactly a whole number of steps of such a lattice.

        With that offset every number of changed counts has the same sensitivity, the worst of all, so that one
        bound serves them all. Extra is reach W/(U b^2), W all the weights; 2 t/b asks for U = reach W/(2 t b).
        """
        reach, steps = self._reach(sigma), self._offset_steps(lattice)
        least = min(self.extras) / self.extra * steps
        times = math.ceil(self._smallest_weight() / least) * max(1, 2 * lattice // reach)
        shares = [extra / self.extra * steps * times for extra in self.extras]
        weights = [max(1, math.floor(share)) for share in shares]
        # What rounding down left over goes to the weights that lost most.
        for place in sorted(range(len(shares)), key=lambda k: weights[k] - shares[k])[
            : steps * times - sum(weights)
        ]:
            weights[place] += 1
        common = Fraction(reach * sum(weights), 2 * steps * lattice)
        return LatticeSums(self.bounds, reach, tuple(weight / common for weight in weights))

    def _offset_steps(self, lattice: int) -> int:
        """How many steps extra/2 is."""
        return max(1, round(self.extra * lattice / 2))

    def _smallest_weight(self) -> int:
        return 1 if len(self.extras) == 1 else _LEAST_WEIGHT

    def _reach(self, sigma: float) -> int:
        """The steps of half a range: as many as the samplers can serve."""
        reach = FINEST_REACH
        while reach * sigma / math.sqrt(min(self.extras)) > _LARGEST_DEVIATION:
            reach //= 2
        if reach < _LEAST_REACH:
            raise NoPlan(f"the noise of the sums would exceed {_LARGEST_DEVIATION / _LEAST_REACH:g} half ranges")
        return reach


@dataclass(frozen=True)
class LatticeSums:
    """Sums whose variances are reach V/ratio for counts of the variance V: whole weights in one combination."""

    bounds: tuple[Bounds, ...]
    reach: int
    ratios: tuple[Fraction, ...]

    def noise(self, variance: Fraction) -> tuple[SumNoise, ...]:
        """The noise of the sums beside counts of this variance."""
        return tuple(
            SumNoise(low, high, self.reach, self.reach * variance / ratio)
            for (low, high), ratio in zip(self.bounds, self.ratios, strict=True)
        )


def total(sums: SumShares | None) -> float:
    """What the sums add, nothing if there are none."""
    return 0.0 if sums is None else sums.extra


def share_budget(
    bounds: Sequence[Bounds], weights: Sequence[float] | None, noise_at: Callable[[float], Noise]
) -> SumShares | None:
    """The shares of sums: by `weights` (of the squared sensitivity, the counts have the rest), or the best ones.

    `noise_at` is the noise of the counts if the sums add so much. The best shares have the least sum of variances
    of the count and of all sums, each sum in units of the largest value a user can have. With c the middle and h
    half of a range, M the larger of |low| and |high|, extra K in all, total noise S and sigma of the counts, it is

        S^2 (1 + sum of c^2/M^2) + sigma^2 (sum of h/M)^2/K,    each with the share h/M of K.
    """
    if not bounds:
        if weights:
            raise InvalidParameter("weights are for sums, and there are none")
        return None
    if len(bounds) > _MOST_SUMS:
        raise InvalidParameter(f"at most {_MOST_SUMS} sums can be released together, not {len(bounds)}")
    if weights is not None:
        return SumShares(tuple(bounds), _check_weights(weights, len(bounds)))
    largest = [max(abs(low), abs(high)) for low, high in bounds]
    own = [float((high - low) / 2 / most) for (low, high), most in zip(bounds, largest, strict=True)]
    middles = sum(float((low + high) / 2 / most) ** 2 for (low, high), most in zip(bounds, largest, strict=True))

    def cost(log_extra: float) -> float:
        extra = math.exp(log_extra)
        noise = noise_at(extra)
        return noise.total_noise**2 * (1.0 + middles) + noise.sigma**2 * sum(own) ** 2 / extra

    best, _ = golden_minimum(cost, math.log(1e-3), math.log(1e3), tolerance=1e-3)
    return SumShares(tuple(bounds), tuple(math.exp(best) * one / sum(own) for one in own))


def _check_weights(weights: Sequence[float], count: int) -> tuple[float, ...]:
    """Shares as they were asked for."""
    if len(weights) != count:
        raise InvalidParameter(f"give one weight for each sum: there are {count} sums and {len(weights)} weights")
    numbers = [finite_number("weight", weight) for weight in weights]
    rest = 1.0 - sum(numbers)
    if min(numbers) < 1e-6 or rest < 1e-6:
        raise InvalidParameter(
            f"weights are shares of the whole, each at least 1e-6 and together below 1, not {list(weights)}"
        )
    return tuple(number / rest for number in numbers)
