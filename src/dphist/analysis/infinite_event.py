"""The infinite event: a count that only one of two neighbours has passes the threshold."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dphist.numerics.normal import probability_some_passes
from dphist.numerics.quadrature import normal_reach, panel_nodes

FloatArray = NDArray[np.float64]

_TURNING_OFFSETS = np.array([-8.0, -6.0, -4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 4.0])
_PEAK_OFFSETS = np.array([-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0])


def shared_noise_breaks(
    counts: FloatArray, *, sigma: float, sigma_shared: float, tau: float, low: float, high: float
) -> FloatArray:
    """Breakpoints, in units of sigma_shared, for integrals of Phi((tau - w)/sigma)^count against normals."""
    uniform = np.linspace(low, high, int(np.ceil(high - low)) + 1)
    # Phi^count turns from 1 to 0 around u_turn, within a few units of u.
    u_turn = special.ndtri(np.exp2(-1.0 / counts))[:, None] - _TURNING_OFFSETS
    turning = (tau - sigma * u_turn) / sigma_shared
    # For a high threshold the mass sits where -x^2/2 - u(x)^2/2 peaks, not at the origin.
    variance = sigma**2 + sigma_shared**2
    peak = tau * sigma_shared / variance + (sigma / np.sqrt(variance)) * _PEAK_OFFSETS
    rows = [np.broadcast_to(part, (counts.size, part.shape[-1])) for part in (uniform, turning, peak)]
    return np.asarray(np.clip(np.concatenate(rows, axis=1), low, high), dtype=np.float64)


def infinite_event(
    *, count: ArrayLike, sigma: float, sigma_shared: float, tau: float, smallest: float = 1e-300
) -> FloatArray:
    """Probability that at least one of `count` new counts passes, exactly.

        1 - E over Z_shared of Phi((tau - Z_shared)/sigma)^count

    Guarantee: relative error about 1e-13 for values above `smallest`.
    Valid for: count >= 0 (an array is allowed), sigma > 0, sigma_shared >= 0.
    Source: the exact value that `claim:upperbounddeltainf` bounds.
    """
    counts = np.atleast_1d(np.asarray(count, dtype=np.float64))
    if sigma_shared == 0.0:
        return probability_some_passes(counts, tau / sigma)
    reach = normal_reach(smallest)
    breaks = shared_noise_breaks(
        np.maximum(counts, 1.0), sigma=sigma, sigma_shared=sigma_shared, tau=tau, low=-reach, high=reach
    )
    x, weights = panel_nodes(breaks)
    passes = probability_some_passes(counts[:, None], (tau - sigma_shared * x) / sigma)
    density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    return np.asarray((weights * density * passes).sum(axis=1), dtype=np.float64)


def infinite_event_upper(*, count: ArrayLike, sigma: float, sigma_shared: float, tau: float) -> FloatArray:
    """The paper's upper bound of the infinite event, which splits tau between the two noises.

        1 - Phi(tau/(sigma + sigma_shared))^(count + 1)

    Guarantee: an upper bound of `infinite_event`. The paper's sigma_shared is sigma k^(-1/4).
    Valid for: count >= 0, sigma > 0, sigma_shared > 0, tau > 0.
    Source: `claim:upperbounddeltainf`.
    """
    exponent = np.asarray(count, dtype=np.float64) + 1.0
    return probability_some_passes(exponent, tau / (sigma + sigma_shared))
