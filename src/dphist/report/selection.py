"""What the threshold does to counts: how likely each is to be released, and how far off it is then.

A true count c is released if its noise X, in steps of the lattice, is above n = limit + lattice (lower - c). So
all is in three sums over the law of X: Pr[X > n], E[X; X > n] and E[X^2; X > n]. No data is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.types import LaplaceNoise, LatticeNoise, Plan

FloatArray = NDArray[np.float64]
# Up to this deviation in steps the discrete law is summed; beyond, half a step's correction leaves no difference.
_SUMMED: Final = 20_000.0
_REACH: Final = 12.0
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = zip(self.counts, self.probability, self.bias, self.deviation, strict=True)
        return {
            "axis": self.axis,
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
    lower = int(request.get("lower-threshold", 1))
    spread = math.hypot(plan.sigma, plan.sigma_shared)
    middle = plan.threshold + lower - 1
    first, last = max(lower, math.floor(middle - 4.0 * spread)), math.ceil(middle + 5.0 * spread) + 1
    even = _first(plan, lower, 0.5)
    counts = np.unique(np.append(np.linspace(first, last, _POINTS).astype(np.int64), even))
    probability, bias, deviation = released_with(plan, counts, lower, rounded=request.get("round") is True)
    unlikely = _first(plan, lower, 0.01) - 1
    return Selection(
        tuple(int(count) for count in counts),
        _floats(probability),
        _floats(bias),
        _floats(deviation),
        unlikely if unlikely >= lower else None,
        even,
        _first(plan, lower, 0.99),
        _axis(plan, request),
    )


def _floats(numbers: FloatArray) -> tuple[float, ...]:
    return tuple(float(number) for number in numbers)


def _axis(plan: Plan, request: Mapping[str, Any]) -> str:
    """What is meant by a true count."""
    subtracted = plan.releases_offset or request.get("offset") == "none"
    if "sketch" in request:
        return "counter of the sketch"
    if subtracted and plan.contract.max_nonzero is not None:
        return f"true count less that of the item ranked {plan.contract.max_nonzero + 1:,}"
    if not request and plan.contract.max_nonzero is not None:
        return "true count, less what was subtracted from all"
    return "true number of users counted"


def _first(plan: Plan, lower: int, aim: float) -> int:
    """The least count that is released with at least this probability."""
    spread = math.hypot(plan.sigma, plan.sigma_shared)
    low, high = lower - 1, math.ceil(plan.threshold + lower + 40.0 * spread)
    while high - low > 1:
        middle = (low + high) // 2
        passes = released_with(plan, np.array([middle]), lower)[0][0] >= aim
        low, high = (low, middle) if passes else (middle, high)
    return high


def released_with(
    plan: Plan, counts: NDArray[Any], lower: int = 1, *, rounded: bool = False
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Probability of release of true counts; mean and deviation of the error of those that are released."""
    noise = plan.noise
    assert isinstance(noise, (LatticeNoise, LaplaceNoise))
    lattice = noise.lattice
    steps = noise.limit + lattice * (lower - counts.astype(np.float64))
    moments = _laplace(noise, steps) if isinstance(noise, LaplaceNoise) else _gaussian(noise, steps)
    probability, first, second = moments
    kept = np.maximum(probability, 1e-300)
    mean = first / kept / lattice
    variance = np.maximum(second / kept / lattice**2 - mean**2, 0.0)
    part, rest = _published_part(plan)
    rounding = 1.0 / 12.0 if rounded else 0.0
    deviation = np.sqrt(part**2 * variance + rest + rounding)
    return np.where(counts >= lower, probability, 0.0), part * mean, deviation


def _published_part(plan: Plan) -> tuple[float, float]:
    """Which part of the noise that met the threshold is in the published count, and the variance of all else.

    With the opposite offset Z + W meets the threshold and Z + Z_c is published. Given S = Z + W, Z has the mean
    rho S and the variance rho sigma_shared^2, rho = sigma^2/(sigma^2 + sigma_shared^2).
    """
    offset, own, shared = getattr(plan.noise, "offset", "none"), plan.sigma**2, plan.sigma_shared**2
    if offset == "none":
        return 1.0, 0.0
    if offset == "independent":
        return 1.0, shared
    part = own / (own + shared)
    return part, part * shared + shared


def _gaussian(noise: LatticeNoise, steps: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of the sum of both draws, which is a discrete Gaussian itself but for less than 1e-16."""
    variance = float(noise.variance + noise.variance_shared)
    sigma = math.sqrt(variance)
    if sigma > _SUMMED:
        u = (steps + 0.5) / sigma
        density = np.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)
        tail = special.ndtr(-u)
        return tail, sigma * density, variance * (tail + u * density)
    reach = math.ceil(_REACH * sigma) + 1
    x = np.arange(reach + 1, dtype=np.float64)
    weights = np.exp(-0.5 * x * x / variance)
    weights /= 2.0 * weights.sum() - 1.0
    return _from_halves([_tails(weights * x**power) for power in range(3)], steps, reach)


def _tails(terms: FloatArray) -> FloatArray:
    """For n = 0, 1, ...: the sum of what comes after n; from the small end, so that nothing is lost."""
    after: FloatArray = np.append(np.cumsum(terms[::-1])[::-1][1:], 0.0)
    return after


def _from_halves(
    tails: list[FloatArray], steps: FloatArray, reach: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The sums above any n from those above n >= 0 of a symmetric law."""
    negative = steps < 0.0
    place = np.minimum(np.where(negative, -steps - 1.0, steps), reach).astype(np.int64)
    all_of = (1.0, 0.0, 2.0 * (tails[2][0]))
    found = [tail[place] for tail in tails]
    return (
        np.where(negative, all_of[0] - found[0], found[0]),
        found[1],
        np.where(negative, all_of[2] - found[2], found[2]),
    )


def _laplace(noise: LaplaceNoise, steps: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """In closed form: above n >= 0 the law is geometric, Pr[X > n] = q^(n+1)/(1+q)."""
    step = 1.0 / float(noise.scale)
    q = math.exp(-step)
    ratio = q / -math.expm1(-step)
    negative = steps < 0.0
    n = np.where(negative, -steps - 1.0, steps) + 1.0
    tail = np.exp(-n * step) / (1.0 + q)
    first = tail * (n + ratio)
    second = tail * (n * n + 2.0 * n * ratio + ratio + 2.0 * ratio**2)
    return np.where(negative, 1.0 - tail, tail), first, np.where(negative, noise.sigma**2 - second, second)
