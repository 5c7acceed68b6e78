"""The squared sensitivity of the family when no count is new, and the number of changed counts behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def squared_sensitivity(*, shared: ArrayLike, changed: ArrayLike, gamma: float) -> FloatArray:
    """Squared sensitivity, in units of sigma^2, when `changed` of `shared` noisy counts move by one.

        s - s^2/(gamma + j)     (j = shared, s = changed; infinite j or gamma give s)

    Guarantee: exact: v^T Sigma^-1 v sigma^2 for Sigma = sigma^2 I + sigma_shared^2 11^T.
    Source: beyond the paper, whose min(sqrt j, sqrt(j + sqrt k)/2) in `lem:difference-for-j-sparse` bounds it.
    """
    s = np.asarray(changed, dtype=np.float64)
    return np.asarray(s - s * s / (gamma + np.asarray(shared, dtype=np.float64)), dtype=np.float64)


def worst_changed(*, shared: ArrayLike, most: ArrayLike, gamma: float) -> tuple[FloatArray, FloatArray]:
    """The two integers s next to (gamma + j)/2, from below and above, as far as `most` allows.

    `squared_sensitivity` rises up to the first and falls from the second on, so that no other s is worse.
    With the offset a = s/(gamma + j) of either of them, the offset bound covers all s on its own side.
    """
    half = (gamma + np.asarray(shared, dtype=np.float64)) / 2.0
    limit = np.asarray(most, dtype=np.float64)
    return np.minimum(np.floor(half), limit), np.minimum(np.floor(half) + 1.0, limit)


def largest_squared_sensitivity(*, shared: ArrayLike, most: ArrayLike, gamma: float) -> FloatArray:
    """The maximum of `squared_sensitivity` over integers s <= most.

    Guarantee: exact maximum over the integers.
    Source: beyond the paper.
    """
    below, above = worst_changed(shared=shared, most=most, gamma=gamma)
    return np.maximum(
        squared_sensitivity(shared=shared, changed=below, gamma=gamma),
        squared_sensitivity(shared=shared, changed=above, gamma=gamma),
    )
