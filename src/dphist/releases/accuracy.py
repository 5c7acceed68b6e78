"""How far a released count may be from the true one: from the plan alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.types import LaplaceNoise, Noise, Plan


def half_width(plan: Plan, share: float) -> float:
    """Half the width of an interval around a noisy count that holds the true one with at least this probability.

    Of one count, before the threshold chose: counts that barely passed are too high more often than that. Rounded
    up to the lattice of the noise.
    """
    noise, outside = plan.noise, 1.0 - share
    if isinstance(noise, LaplaceNoise):
        # Pr[|X| > t] = 2 q^(t+1)/(1+q)
        step = 1.0 / float(noise.scale)
        tail = math.log(outside * (1.0 + math.exp(-step)) / 2.0) / -step - 1.0
        return float(max(0, math.ceil(tail - 1e-9)))
    width = -float(special.ndtri(outside / 2.0)) * plan.total_noise
    return width if isinstance(noise, Noise) else math.ceil(width * noise.lattice) / noise.lattice


def shared_part(plan: Plan) -> float:
    """Covariance of any two released counts: the variance of what they share."""
    opposite = getattr(plan.noise, "offset", "none")
    return plan.sigma_shared**2 * (2 if opposite == "independent" else 1)


def added_columns(
    counts: NDArray[np.float64], plan: Plan, name: str, *, error: bool, interval: float | None, rounded: bool
) -> tuple[NDArray[Any], Mapping[str, NDArray[Any]]]:
    """The counts as they are to be published, and the columns beside them that were asked for."""
    published = np.rint(counts).astype(np.int64) if rounded else counts
    added: dict[str, NDArray[Any]] = {}
    if error:
        # Rounding adds its own error, uniform on half a count to either side at worst.
        spread = math.hypot(plan.total_noise, math.sqrt(1.0 / 12.0) if rounded else 0.0)
        added[f"{name}_standard_error"] = np.full(counts.size, spread)
    if interval is not None:
        width = half_width(plan, interval) + (0.5 if rounded else 0.0)
        low, high = published - width, published + width
        # Whole counts have whole intervals, rounded outwards.
        added[f"{name}_low"] = np.floor(low).astype(np.int64) if rounded else np.asarray(low)
        added[f"{name}_high"] = np.ceil(high).astype(np.int64) if rounded else np.asarray(high)
    return published, added
