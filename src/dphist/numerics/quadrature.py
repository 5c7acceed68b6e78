"""Gauss-Legendre quadrature on panels whose ends are laid where the integrand turns."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

FloatArray = NDArray[np.float64]

NODES_PER_PANEL: Final = 16
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


def normal_reach(smallest: float) -> float:
    """How many standard deviations hold all but a negligible share (1e-14) of a mass of `smallest`."""
    return float(-special.ndtri_exp(np.log(max(smallest, 1e-308)) - 32.0))
