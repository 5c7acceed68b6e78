"""The exact delta of one kind of neighbours: the lower bound beside every upper bound."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dphist.analysis.infinite_event import infinite_event, shared_noise_breaks
from dphist.analysis.offset import offset_bound
from dphist.numerics.normal import hockey_stick_normal, log_probability_none_passes
from dphist.numerics.quadrature import crossing_breaks, normal_reach, panel_nodes
from dphist.types import NeighbourCase, Noise

FloatArray = NDArray[np.float64]

_PEAK_OFFSETS = np.array([-4.0, -2.0, 0.0, 2.0, 4.0])
_LOG_ROOT_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def delta_of_case(case: NeighbourCase, noise: Noise, *, epsilon: float, smallest: float = 1e-60) -> float:
    """Exact delta of neighbours (j, r, s) in the case's direction.

    The shared counts tell of Z_shared only through its posterior mean T, and the log likelihood ratio L is
    linear in them; given T, L is normal and the inner integral is closed:

        delta_add    = Pr[some new passes] + E over T of (g(T) - e^(epsilon - L))_+
        delta_remove = E over T of (e^-L - e^epsilon g(T))_+ ,
        g(T) = E over N(T, V) of Phi((tau - Z)/sigma)^r,  V = 1/(1/sigma_shared^2 + j/sigma^2)

    Guarantee: exact up to quadrature (relative error about 1e-9) for values above `smallest`. Neighbours come as
    near to it as one likes, as their shared counts grow; hence a lower bound of delta.
    Valid for: epsilon >= 0.
    Source: beyond the paper; docs/theory/exact-analysis.md.
    """
    values = {
        direction: _one_direction(case, noise, epsilon=epsilon, adding=direction == "add", smallest=smallest)
        for direction in (("add", "remove") if case.direction == "either" else (case.direction,))
    }
    return max(values.values())


def _one_direction(case: NeighbourCase, noise: Noise, *, epsilon: float, adding: bool, smallest: float) -> float:
    j, r, s = case.shared, case.new, case.changed
    some = float(infinite_event(count=r, sigma=noise.sigma, sigma_shared=noise.sigma_shared, tau=noise.tau)[0])
    if r == 0:
        squared = s - s * s / (noise.gamma + j)
        return float(hockey_stick_normal(math.sqrt(squared) / noise.sigma, epsilon))
    if s == 0 and adding:
        return some
    if noise.sigma_shared == 0.0 or math.isinf(j) or j == 0:
        # The shared noise is absent, known exactly or seen by nobody: the offset bound with a = 0 is exact,
        # except that nobody can tell anything from no shared count.
        if j == 0:
            return some if adding else max(0.0, 1.0 - math.exp(epsilon) * (1.0 - some))
        both = offset_bound(
            shared=j, new=r, changed=s, offset=0.0, sigma=noise.sigma, sigma_shared=noise.sigma_shared,
            tau=noise.tau, epsilon=epsilon,
        )  # fmt: skip
        return float(both.add[0] if adding else both.remove[0])
    return (some if adding else 0.0) + _finite_part(case, noise, epsilon=epsilon, adding=adding, smallest=smallest)


def _finite_part(case: NeighbourCase, noise: Noise, *, epsilon: float, adding: bool, smallest: float) -> float:
    """The integral over T of the finite privacy loss, in units of T's standard deviation."""
    j, r, s = case.shared, case.new, case.changed
    posterior = 1.0 / (1.0 / noise.sigma_shared**2 + j / noise.sigma**2)
    spread = math.sqrt(noise.sigma_shared**2 - posterior)
    covariance = s * posterior / noise.sigma**2
    squared = (s - s * s / (noise.gamma + j)) / noise.sigma**2
    slope = covariance / spread
    rest = math.sqrt(max(0.0, squared - slope**2))
    reach = normal_reach(smallest)
    low, high = -reach - slope, reach

    def log_none(t: FloatArray) -> FloatArray:
        return _log_posterior_none_passes(spread * t.ravel(), r, noise, posterior, reach).reshape(t.shape)

    def log_ratio(t: FloatArray) -> FloatArray:
        """The mean of L given T = spread t, plus log g: concave in t."""
        return log_none(t) + slope * (t + slope / 2.0)

    common = shared_noise_breaks(
        np.array([float(r)]), sigma=math.hypot(noise.sigma, math.sqrt(posterior)), sigma_shared=spread,
        tau=noise.tau, low=low, high=high,
    )  # fmt: skip
    level = epsilon if adding else -epsilon
    turns = crossing_breaks(log_ratio, level, np.array([rest]), low, high)
    nodes, weights = panel_nodes(np.concatenate([common, turns], axis=1))
    t = nodes[0]
    log_g = log_none(t)
    shift = slope * (t + slope / 2.0)
    if adding:
        density = np.exp(-0.5 * t**2 - _LOG_ROOT_TWO_PI + log_g)
        return float((weights[0] * density * hockey_stick_normal(rest, epsilon - log_g - shift)).sum())
    density = np.exp(-0.5 * (t + slope) ** 2 - _LOG_ROOT_TWO_PI)
    return float((weights[0] * density * hockey_stick_normal(rest, epsilon + log_g + shift)).sum())


def _log_posterior_none_passes(
    means: FloatArray, r: int, noise: Noise, posterior: float, reach: float
) -> FloatArray:
    """Log g(T) for each T: the average of Phi((tau - Z)/sigma)^r over Z ~ N(T, posterior)."""
    root = math.sqrt(posterior)
    uniform = np.linspace(-reach, reach, int(reach) * 2 + 1)
    u_turn = float(special.ndtri(np.exp2(-1.0 / r))) + np.array([-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0])
    turning = (noise.tau - noise.sigma * u_turn - means[:, None]) / root
    # For a far threshold the mass of "some passes" peaks where both normals meet, not at the mean.
    variance = noise.sigma**2 + posterior
    peak = (noise.tau - means[:, None]) * root / variance + noise.sigma / math.sqrt(variance) * _PEAK_OFFSETS
    rows = np.concatenate([np.broadcast_to(uniform, (means.size, uniform.size)), turning, peak], axis=1)
    x, weights = panel_nodes(np.clip(rows, -reach, reach))
    log_power = log_probability_none_passes(r, (noise.tau - means[:, None] - root * x) / noise.sigma)
    # 1 - E(1 - Phi^r) keeps the digits of a g close to 1; the sum itself those of a small g.
    density = weights * np.exp(-0.5 * x * x - _LOG_ROOT_TWO_PI)
    some = (density * -np.expm1(log_power)).sum(axis=1)
    none = (density * np.exp(log_power)).sum(axis=1)
    return np.asarray(np.where(some < 0.5, np.log1p(-np.minimum(some, 0.5)), np.log(np.maximum(none, 1e-300))))
