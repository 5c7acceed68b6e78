"""Numerics in doubles: quadrature, the normal distribution with accurate tails, and branch and bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# Gauss-Legendre quadrature on panels whose ends follow the integrand.

_GRID: Final = 129
_ROOT_STEPS: Final = 12
_STEP_OFFSETS: Final = np.array([-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


def panel_nodes(breaks: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights for each row of breakpoints, which may be unsorted and repeated."""
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
    """Breakpoints at and around the two points where a concave curve crosses a level.

    `curve` maps rows of points to rows of values. The integrand has a smooth step at each crossing, as wide as
    `spread` (one entry per row) in the curve's value, or a kink if spread is 0.
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
        # The Illinois rule halves the value at the end that stays, so that both ends approach the root.
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
    """Standard deviations beyond which a normal law holds less than 1e-14 of a mass of `smallest`."""
    return float(-special.ndtri_exp(np.log(max(smallest, 1e-308)) - 32.0))


# The normal distribution.

_SQRT2: Final = math.sqrt(2.0)
_TWO_OVER_SQRT_PI: Final = 2.0 / math.sqrt(math.pi)
# For arguments closer than this, the difference of two erfcx loses digits; integrate its slope instead.
_INTEGRATE_BELOW_MU: Final = 0.5
# Above this, exp(-a^2) underflows, and the hockey-stick divergence is 0 in doubles.
_UNDERFLOW_A: Final = 27.3
_ASYMPTOTIC_FROM: Final = 8.0
_ASYMPTOTIC_TERMS: Final = 20
_FEW_POINTS: Final = 64
# Gauss-Legendre rules, each accurate to about 1e-13 for half-widths up to the given limit.
_RULES = [(limit, *np.polynomial.legendre.leggauss(n)) for limit, n in ((0.01, 3), (0.05, 4), (math.inf, 6))]


def log_probability_none_passes(count: ArrayLike, u: ArrayLike) -> FloatArray:
    """Log of Phi(u)^count."""
    at = np.asarray(u, dtype=np.float64)
    return np.asarray(np.asarray(count, dtype=np.float64) * special.log_ndtr(at), dtype=np.float64)


def probability_some_passes(count: ArrayLike, u: ArrayLike) -> FloatArray:
    """1 - Phi(u)^count, accurate when it is tiny."""
    return np.asarray(-np.expm1(log_probability_none_passes(count, u)), dtype=np.float64)


def _minus_erfcx_slope(t: FloatArray) -> FloatArray:
    """-erfcx'(t) = 2/sqrt(pi) - 2 t erfcx(t) for t >= -1/2; positive and decreasing."""
    slope = np.asarray(_TWO_OVER_SQRT_PI - 2.0 * t * special.erfcx(t), dtype=np.float64)
    far = t > _ASYMPTOTIC_FROM
    if far.any():
        # The direct form loses a factor 2 t^2; from t = 8 on the asymptotic series is exact in doubles.
        inverse = 1.0 / (2.0 * t[far] ** 2)
        series = np.zeros_like(inverse)
        for n in range(_ASYMPTOTIC_TERMS, 0, -1):
            series = (2 * n - 1) * inverse * (1.0 - series)
        slope[far] = _TWO_OVER_SQRT_PI * series
    return slope


def _erfcx_drop(middle: FloatArray, half: FloatArray) -> FloatArray:
    """erfcx(middle - half) - erfcx(middle + half) for arguments above -1/2, without cancellation."""
    nodes, weights = next((nodes, weights) for limit, nodes, weights in _RULES if half.max() <= limit)
    # For few points one call for all nodes is fastest; for many it would take too much memory.
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
    """x y - product exactly (Dekker), where product is the rounded x y."""
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    return ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def _normal_exponential(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """exp(-(epsilon/mu - mu/2)^2 / 2) in doubled precision: 1 ulp in the exponent would cost 1e-13."""
    ratio, half_mu = epsilon / mu, mu / 2.0
    ratio_error = -_product_error(ratio, mu, epsilon) / mu
    z = ratio - half_mu
    back = z - ratio
    z_error = (ratio - (z - back)) + (-half_mu - back) + ratio_error
    square = z * z
    correction = _product_error(z, z, square) / 2.0 + z * z_error
    return np.asarray(np.exp(-square / 2.0) * np.exp(-correction), dtype=np.float64)


def _hockey_stick_nonnegative(mu: FloatArray, epsilon: FloatArray) -> FloatArray:
    """`hockey_stick_normal` for epsilon >= 0 and mu > 0."""
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
    large = (mu >= _INTEGRATE_BELOW_MU) & (a < -5.0)
    if large.any():
        x, e = mu[large], epsilon[large]
        out[large] = special.ndtr(-_SQRT2 * a[large]) - np.exp(e + special.log_ndtr(-(e / x + x / 2.0)))
    return out


def hockey_stick_normal(mu: ArrayLike, epsilon: ArrayLike) -> FloatArray:
    """Hockey-stick divergence of N(mu, 1) from N(0, 1) at e^epsilon, elementwise, any real epsilon.

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    Guarantee: relative error below 1e-12 for values from 1e-300 to 1 (measured against mpmath); 0 below 1e-323.
    Valid for: mu >= 0.
    """
    mu_all, eps_all = np.broadcast_arrays(np.asarray(mu, dtype=np.float64), np.asarray(epsilon, dtype=np.float64))
    out = np.zeros(mu_all.shape)
    moves = mu_all > 0.0
    if moves.any():
        positive = _hockey_stick_nonnegative(mu_all[moves], np.abs(eps_all[moves]))
        # H(-e) = 1 - e^-e + e^-e H(e): all terms are positive, so nothing cancels for negative epsilon.
        low = np.minimum(eps_all[moves], 0.0)
        out[moves] = -np.expm1(low) + np.exp(low) * positive
    still = ~moves
    if still.any():
        out[still] = -np.expm1(np.minimum(eps_all[still], 0.0))
    return out


_PIECES: Final = 4
_MOST_ROUNDS: Final = 64
_MOST_BLOCKS_A_ROUND: Final = 4096


@dataclass(frozen=True)
class Blocks:
    """A partition of a range of integers into blocks first..last, each with a valid upper bound."""

    first: IntArray
    last: IntArray
    upper: FloatArray

    @property
    def maximum(self) -> float:
        return float(self.upper.max()) if self.upper.size else 0.0

    @property
    def argument(self) -> int:
        """The first integer of the block with the largest bound."""
        return int(self.first[int(self.upper.argmax())])


def bound_over_blocks(
    upper: Callable[[IntArray, IntArray], FloatArray],
    first: int,
    last: int,
    *,
    enough: float,
    relative: float = 1e-7,
    growth: float = 1.5,
) -> Blocks:
    """Branch and bound: split first..last into blocks until their bounds are tight where it matters.

    A block is final if its bound is at most `enough` (the caller has a case as bad), or within `relative` of the
    largest value known to be attained, or if it is a single integer.

    Guarantee: every returned bound is valid, even if the refinement stopped early.
    """
    # The first blocks are single integers at both ends and grow geometrically towards the middle.
    steps = np.unique(np.floor(growth ** np.arange(0, 2 + int(np.log(last - first + 2) / np.log(growth)))))
    offsets, middle = steps.astype(np.int64) - 1, first + (last - first) // 2
    left, right = first + offsets, last + 1 - offsets
    starts = np.unique(np.concatenate([left[left <= middle], right[(right > middle) & (right <= last)]]))
    ends = np.concatenate([starts[1:] - 1, np.array([last], dtype=np.int64)])
    values = upper(starts, ends)
    done: list[tuple[IntArray, IntArray, FloatArray]] = []
    attained = enough
    for _ in range(_MOST_ROUNDS):
        single = starts == ends
        if single.any():
            attained = max(attained, float(values[single].max()))
        final = single | (values <= max(enough, attained * (1.0 + relative)))
        done.append((starts[final], ends[final], values[final]))
        starts, ends, values = starts[~final], ends[~final], values[~final]
        if not starts.size or starts.size > _MOST_BLOCKS_A_ROUND:
            break
        # Cut each block into up to four.
        cuts = [starts + (ends - starts + 1) * piece // _PIECES for piece in range(_PIECES + 1)]
        starts, ends = np.concatenate(cuts[:-1]), np.concatenate(cuts[1:]) - 1
        starts, ends = starts[starts <= ends], ends[starts <= ends]
        values = upper(starts, ends)
    done.append((starts, ends, values))
    first_all, last_all, upper_all = (np.concatenate(part) for part in zip(*done, strict=True))
    return Blocks(first=first_all, last=last_all, upper=upper_all)
