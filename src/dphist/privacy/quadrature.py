"""Gauss-Legendre quadrature on panels whose ends are laid where the integrand turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

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
