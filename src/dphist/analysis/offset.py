"""The offset bound: reveal the shared noise, shifted for one neighbour, and the rest is independent.

For H write (H_i + Z_i, Z_shared); for its neighbour H' write (H'_i + a + Z_i, Z_shared - a). The sums have the
mechanism's distribution under both, so what bounds these vectors bounds the mechanism. Derivation:
docs/theory/exact-analysis.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dphist.analysis.infinite_event import infinite_event, shared_noise_breaks
from dphist.numerics.normal import hockey_stick_normal, log_probability_none_passes, probability_some_passes
from dphist.numerics.quadrature import crossing_breaks, normal_reach, panel_nodes

FloatArray = NDArray[np.float64]

_ROOT_TWO_PI = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class OffsetDeltas:
    """The bound in both directions: a user is added (only H has the new counts) or removed."""

    add: FloatArray
    remove: FloatArray

    @property
    def worst(self) -> FloatArray:
        """The larger direction, elementwise."""
        return np.maximum(self.add, self.remove)


def offset_bound(
    *,
    shared: ArrayLike,
    new: ArrayLike,
    changed: ArrayLike,
    offset: ArrayLike,
    sigma: float,
    sigma_shared: float,
    tau: float,
    epsilon: float,
    smallest: float = 1e-300,
    extra: float = 0.0,
) -> OffsetDeltas:
    """Upper bound of delta for neighbours with j shared, r new and s changed counts, elementwise.

        delta_add    <= Pr[some new passes] + integral over w of H(p g, e^epsilon q)
        delta_remove <= integral over w of H(q, e^epsilon p g)
        H(A, B) = A Phi(mu/2 + ln(A/B)/mu) - B Phi(-mu/2 + ln(A/B)/mu)
        mu^2 = (s (1-a)^2 + (j-s) a^2 + extra s)/sigma^2,  p = N(0, sigma_shared^2),  q = N(-a, sigma_shared^2),
        g(w) = Phi((tau - w)/sigma)^r

    Guarantee: an upper bound of the exact delta, up to quadrature (relative error about 1e-10).
    Valid for: any offset a; `shared` may be infinite with a = 0; sigma_shared = 0 needs a = 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    j, r, s, a = (
        np.atleast_1d(x)
        for x in np.broadcast_arrays(*(np.asarray(v, dtype=np.float64) for v in (shared, new, changed, offset)))
    )
    quiet = np.where(a == 0.0, 0.0, (np.where(np.isinf(j), s, j) - s) * a**2)
    mu = np.sqrt(s * ((1.0 - a) ** 2 + extra) + quiet) / sigma
    if sigma_shared == 0.0:
        return _without_shared_noise(r, mu, u=tau / sigma, epsilon=epsilon)
    alpha = a / sigma_shared
    reach = normal_reach(smallest)
    low, high = -reach - float(alpha.max()), reach
    common = shared_noise_breaks(
        np.maximum(r, 1.0), sigma=sigma, sigma_shared=sigma_shared, tau=tau, low=low, high=high
    )

    def log_none(x: FloatArray) -> FloatArray:
        return log_probability_none_passes(r[:, None], (tau - sigma_shared * x) / sigma)

    def log_ratio(x: FloatArray) -> FloatArray:
        """log(p g/q) at w = sigma_shared x, concave in x."""
        return log_none(x) + alpha[:, None] * (x + alpha[:, None] / 2.0)

    # H(A, B) = A times the hockey-stick divergence at -ln(A/B): nothing cancels, and it turns where A = B.
    breaks = np.concatenate([common, crossing_breaks(log_ratio, epsilon, mu, low, high)], axis=1)
    x, weights = panel_nodes(breaks)
    p_none = np.exp(log_none(x) - 0.5 * x * x) / _ROOT_TWO_PI
    add = (weights * p_none * hockey_stick_normal(mu[:, None], epsilon - log_ratio(x))).sum(axis=1)
    breaks = np.concatenate([common, crossing_breaks(log_ratio, -epsilon, mu, low, high)], axis=1)
    x, weights = panel_nodes(breaks)
    q = np.exp(-0.5 * (x + alpha[:, None]) ** 2) / _ROOT_TWO_PI
    remove = (weights * q * hockey_stick_normal(mu[:, None], epsilon + log_ratio(x))).sum(axis=1)
    some = infinite_event(count=r, sigma=sigma, sigma_shared=sigma_shared, tau=tau, smallest=smallest)
    return OffsetDeltas(add=some + add, remove=remove)


def _without_shared_noise(r: FloatArray, mu: FloatArray, *, u: float, epsilon: float) -> OffsetDeltas:
    """The same without shared noise: exact, and the terms of the GSHM's exact analysis."""
    log_g = log_probability_none_passes(r, u)
    add = probability_some_passes(r, u) + np.exp(log_g) * hockey_stick_normal(mu, epsilon - log_g)
    return OffsetDeltas(add=add, remove=hockey_stick_normal(mu, epsilon + log_g))
