"""The squared sensitivity of the family when no count is new, and the number of changed counts behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def squared_sensitivity(*, shared: ArrayLike, changed: ArrayLike, gamma: float, extra: float = 0.0) -> FloatArray:
    """Squared sensitivity, in units of sigma^2, when `changed` of `shared` noisy counts move by one.

        (1 + extra) s - s^2/(gamma + j)     (j = shared, s = changed; infinite j or gamma give (1 + extra) s)

    `extra` is what the sums beside a changed count add, in the same units.

    Guarantee: exact: v^T Sigma^-1 v sigma^2 for Sigma = sigma^2 I + sigma_shared^2 11^T.
    Source: beyond the paper, whose min(sqrt j, sqrt(j + sqrt k)/2) in `lem:difference-for-j-sparse` bounds it.
    """
    s = np.asarray(changed, dtype=np.float64)
    alone = s if extra == 0.0 else (1.0 + extra) * s
    return np.asarray(alone - s * s / (gamma + np.asarray(shared, dtype=np.float64)), dtype=np.float64)


def worst_changed(
    *, shared: ArrayLike, most: ArrayLike, gamma: float, extra: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """The two integers s next to (1 + extra)(gamma + j)/2, from below and above, as far as `most` allows.

    `squared_sensitivity` rises up to the first and falls from the second on, so that no other s is worse.
    With the offset a = s/(gamma + j) of either of them, the offset bound covers all s on its own side.
    """
    half = (1.0 + extra) * (gamma + np.asarray(shared, dtype=np.float64)) / 2.0
    limit = np.asarray(most, dtype=np.float64)
    return np.minimum(np.floor(half), limit), np.minimum(np.floor(half) + 1.0, limit)


def largest_squared_sensitivity(
    *, shared: ArrayLike, most: ArrayLike, gamma: float, extra: float = 0.0
) -> FloatArray:
    """The maximum of `squared_sensitivity` over integers s <= most.

    Guarantee: exact maximum over the integers.
    Source: beyond the paper.
    """
    below, above = worst_changed(shared=shared, most=most, gamma=gamma, extra=extra)
    return np.maximum(
        squared_sensitivity(shared=shared, changed=below, gamma=gamma, extra=extra),
        squared_sensitivity(shared=shared, changed=above, gamma=gamma, extra=extra),
    )
