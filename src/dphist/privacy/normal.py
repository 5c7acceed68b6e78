"""The normal distribution in forms that keep their relative accuracy in the tails, and quadrature for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

# Gauss-Legendre quadrature on panels whose ends are laid where the integrand turns.

FloatArray = NDArray[np.float64]

NODES_PER_PANEL: Final = 16
_GRID: Final = 129
_ROOT_STEPS: Final = 12
_STEP_OFFSETS: Final = np.array([-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(NODES_PER_PANEL)


def panel_nodes(breaks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights for each row of breakpoints (sorted here; repeated ones cost nothing but time)."""
    ends = np.sort(breaks, axis=-1)
    half = (ends[..., 1:] - ends[..., :-1]) / 2.0
    middle = (ends[..., 1:] + ends[..., :-1]) / 2.0
    nodes = middle[..., None] + half[..., None] * _NODES
    weights = half[..., None] * _WEIGHTS
    shape = (*breaks.shape[:-1], -1)
    return nodes.reshape(shape), weights.reshape(shape)


def crossing_breaks(
    curve: Callable[[FloatArray], FloatArray], level: float, spread: FloatArray, low: float, high: float
) -> FloatArray:
    """Breakpoints where a concave curve crosses a level, and around there within spread/slope.

    `curve` maps rows of points to rows of values; `spread` has one entry a row. A smooth step of width spread in
    the curve's value sits at each crossing, and is a kink when spread is 0.
    """
    grid = np.broadcast_to(np.linspace(low, high, _GRID), (spread.size, _GRID))
    values = curve(grid) - level
    above = values > 0.0
    row = np.arange(spread.size)[:, None]
    first, last = above.argmax(axis=1), _GRID - 1 - above[:, ::-1].argmax(axis=1)
    outside = np.stack([np.maximum(first - 1, 0), np.minimum(last + 1, _GRID - 1)], axis=1)
    inside = np.stack([first, last], axis=1)
    x_out, x_in = grid[row, outside], grid[row, inside]
    f_out, f_in = values[row, outside], values[row, inside]
    crosses = (f_out <= 0.0) & (f_in > 0.0)
    slope = np.abs(f_in - f_out) / np.maximum(np.abs(x_in - x_out), 1e-300)
    for _ in range(_ROOT_STEPS):
        # Illinois: the end that stays is weighed down, so that both ends close in on the root.
        share = np.clip(np.where(crosses, f_out / np.where(crosses, f_out - f_in, 1.0), 0.0), 0.0, 1.0)
        x = x_out + share * (x_in - x_out)
        f = curve(x) - level
        up = f > 0.0
        f_out, f_in = np.where(up, f_out / 2.0, f), np.where(up, f, f_in / 2.0)
        x_out, x_in = np.where(up, x_out, x), np.where(up, x, x_in)
    root = np.where(crosses, x, low)
    width = np.where(crosses, np.minimum(spread[:, None] / np.maximum(slope, 1e-300), high - low), 0.0)
    around = root[:, :, None] + width[:, :, None] * _STEP_OFFSETS
    return np.asarray(np.clip(around.reshape(spread.size, -1), low, high), dtype=np.float64)


def normal_reach(smallest: float) -> float:
    """How many standard deviations hold all but a negligible share (1e-14) of a mass of `smallest`."""
    return float(-special.ndtri_exp(np.log(max(smallest, 1e-308)) - 32.0))


_SQRT2: Final = math.sqrt(2.0)
_TWO_OVER_SQRT_PI: Final = 2.0 / math.sqrt(math.pi)
# Below this distance of the two arguments the difference of two erfcx loses digits; integrate instead.
_INTEGRATE_BELOW_MU: Final = 0.5
# exp(-a^2) underflows beyond; the hockey-stick divergence is then 0 in doubles.
_UNDERFLOW_A: Final = 27.3
_ASYMPTOTIC_FROM: Final = 8.0
_ASYMPTOTIC_TERMS: Final = 20
_FEW_POINTS: Final = 64
# Gauss-Legendre rules for half-widths up to the given one, each exact to about 1e-13 there.
_RULES = [(limit, *np.polynomial.legendre.leggauss(n)) for limit, n in ((0.01, 3), (0.05, 4), (math.inf, 6))]


def log_probability_none_passes(count: ArrayLike, u: ArrayLike) -> FloatArray:
    """Log of Phi(u)^count."""
    exponent, at = np.asarray(count, dtype=np.float64), np.asarray(u, dtype=np.float64)
    return np.asarray(exponent * special.log_ndtr(at), dtype=np.float64)


def probability_some_passes(count: ArrayLike, u: ArrayLike) -> FloatArray:
    """1 - Phi(u)^count, accurate when it is tiny."""
    return np.asarray(-np.expm1(log_probability_none_passes(count, u)), dtype=np.float64)


def _minus_erfcx_slope(t: FloatArray) -> FloatArray:
    """-erfcx'(t) = 2/sqrt(pi) - 2 t erfcx(t) for t >= -1/2; positive and decreasing."""
    direct = _TWO_OVER_SQRT_PI - 2.0 * t * special.erfcx(t)
    far = t > _ASYMPTOTIC_FROM
    if not far.any():
        return np.asarray(direct, dtype=np.float64)
    # The direct form loses a factor 2 t^2; from t = 8 on the asymptotic series is exact in doubles.
    inverse = 1.0 / (2.0 * np.where(far, t, _ASYMPTOTIC_FROM) ** 2)
    series = np.zeros_like(inverse)
    for n in range(_ASYMPTOTIC_TERMS, 0, -1):
        series = (2 * n - 1) * inverse * (1.0 - series)
    return np.asarray(np.where(far, _TWO_OVER_SQRT_PI * series, direct), dtype=np.float64)


def _erfcx_drop(middle: FloatArray, half: FloatArray) -> FloatArray:
    """erfcx(middle - half) - erfcx(middle + half) for arguments above -1/2, without cancellation."""
    widest = float(half.max())
    nodes, weights = next((nodes, weights) for limit, nodes, weights in _RULES if widest <= limit)
    # Few points cost calls, so all nodes go into one; many points cost memory.
    slopes: Iterable[FloatArray] = (
        _minus_erfcx_slope(middle + nodes[:, None] * half)
        if middle.size <= _FEW_POINTS
        else (_minus_erfcx_slope(middle + node * half) for node in nodes)
    )
    total = np.zeros_like(middle)
    for weight, slope in zip(weights, slopes, strict=True):
        total += weight * slope
    return total * half


def _split(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Veltkamp's split of a double into two halves whose products are exact."""
    scaled = 134217729.0 * x
    high = scaled - (scaled - x)
    return high, x - high


def _product_error(x: FloatArray, y: FloatArray, product: FloatArray) -> FloatArray:
    """X y - product exactly (Dekker), where product is the rounded x y."""
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def _normal_exponential(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """exp(-(epsilon/mu - mu/2)^2 / 2), where an error of 1 ulp in the exponent would cost 1e-13."""
    ratio, half_mu = epsilon / mu, mu / 2.0
    ratio_error = -_product_error(ratio, mu, epsilon) / mu
    z = ratio - half_mu
    back = z - ratio
    z_error = (ratio - (z - back)) + (-half_mu - back) + ratio_error
    square = z * z
    correction = _product_error(z, z, square) / 2.0 + z * z_error
    return np.asarray(np.exp(-square / 2.0) * np.exp(-correction), dtype=np.float64)


def _hockey_stick_nonnegative(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """The divergence for epsilon >= 0 and mu > 0."""
    out = np.zeros_like(mu)
    a = (epsilon / mu - mu / 2.0) / _SQRT2
    in_reach = a < _UNDERFLOW_A
    close = (mu < _INTEGRATE_BELOW_MU) & in_reach
    if close.any():
        x, e = mu[close], epsilon[close]
        out[close] = 0.5 * _normal_exponential(x, e) * _erfcx_drop(e / x / _SQRT2, x / (2.0 * _SQRT2))
    apart = (mu >= _INTEGRATE_BELOW_MU) & (a >= -5.0) & in_reach
    if apart.any():
        x, e = mu[apart], epsilon[apart]
        drop = special.erfcx(a[apart]) - special.erfcx((e / x + x / 2.0) / _SQRT2)
        out[apart] = 0.5 * _normal_exponential(x, e) * drop
    plain = (mu >= _INTEGRATE_BELOW_MU) & (a < -5.0)
    if plain.any():
        x, e = mu[plain], epsilon[plain]
        out[plain] = special.ndtr(-_SQRT2 * a[plain]) - np.exp(e + special.log_ndtr(-(e / x + x / 2.0)))
    return out


def hockey_stick_normal(mu: ArrayLike, epsilon: ArrayLike) -> FloatArray:
    """Hockey-stick divergence of N(mu, 1) from N(0, 1) at e^epsilon, elementwise, any real epsilon.

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    Guarantee: relative error below 1e-12 from 1e-300 to 1 (measured against mpmath); 0 below 1e-323.
    Valid for: mu >= 0.
    """
    mu_all, eps_all = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(epsilon, dtype=np.float64))
    out = np.zeros(mu_all.shape)
    moves = mu_all > 0.0
    if moves.any():
        positive = _hockey_stick_nonnegative(mu_all[moves], np.abs(eps_all[moves]))
        # H(-e) = 1 - e^-e + e^-e H(e): every term positive, so nothing cancels for negative epsilon.
        low = np.minimum(eps_all[moves], 0.0)
        out[moves] = -np.expm1(low) + np.exp(low) * positive
    still = ~moves
    if still.any():
        out[still] = -np.expm1(np.minimum(eps_all[still], 0.0))
    return out


def log_hockey_stick_normal(*, mu: float, epsilon: float) -> float:
    """Natural logarithm of `hockey_stick_normal`, finite where the divergence itself underflows.

    Valid for: mu > 0, epsilon >= 0.
    """
    value = float(hockey_stick_normal(mu, epsilon))
    if value > 1e-300:
        return math.log(value)
    ratio = epsilon / mu
    a = (ratio - mu / 2.0) / _SQRT2
    if mu < _INTEGRATE_BELOW_MU:
        drop = float(_erfcx_drop(np.array([ratio / _SQRT2]), np.array([mu / (2.0 * _SQRT2)]))[0])
    else:
        drop = float(special.erfcx(a) - special.erfcx((ratio + mu / 2.0) / _SQRT2))
    return -a * a + math.log(0.5 * drop)
