"""Attacks on floating-point noise: could this very double have come from that count?

A generator of doubles reaches only some of them. Where the reachable values of count + noise have gaps, a released
value says which counts it cannot have come from, whatever the analysis of real numbers promised.
Source: Mironov 2012 for Laplace noise; Jin, McMurtry, Rubinstein and Ohrimenko 2022 for Gaussian noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy import special

from dphist.audit.cases import MOST_ITEMS, BoolArray, Case, Score
from dphist.mechanisms.base import FloatArray
from dphist.types import Contract

# (values, count) -> whether the mechanism can turn the count into exactly that value.
Reachable = Callable[[FloatArray, int], BoolArray]

_GRID: Final = 2.0**-53
_NEAREST = np.arange(-4.0, 5.0)  # the rounding of ndtr and ndtri moves the preimage by a grid point or two


def from_inverse_cdf(sigma: float) -> Reachable:
    """Values fl(count + fl(sigma * ndtri(u))) for u a multiple of 2^-53: the textbook's way to draw a normal."""

    def reachable(values: FloatArray, count: int) -> BoolArray:
        middle = np.rint(special.ndtr((values - count) / sigma) / _GRID)
        preimages = np.clip((middle[..., None] + _NEAREST) * _GRID, _GRID, 1.0 - _GRID)
        return np.asarray((count + sigma * special.ndtri(preimages) == values[..., None]).any(axis=-1))

    return reachable


def from_single_precision(sigma: float) -> Reachable:
    """Values fl(count + fl(sigma * z)) for z of 24 bits: single-precision normals added to double counts."""

    def reachable(values: FloatArray, count: int) -> BoolArray:
        middle = ((values - count) / sigma).astype(np.float32)
        neighbours = (np.nextafter(middle, np.float32(-np.inf)), middle, np.nextafter(middle, np.float32(np.inf)))
        tries = [count + sigma * z.astype(np.float64) == values for z in neighbours]
        return np.asarray(np.logical_or.reduce(tries))

    return reachable


def reachability_case(contract: Contract, *, count: int, reachable: Reachable) -> Case:
    """A user in every one of m counts: H has `count` everywhere, H' one less (at least 1).

    The score is 1 if some value can be from H and not from H', -1 if some can be from H' and not from H.
    """
    items = min(contract.items, MOST_ITEMS)

    def score(values: FloatArray) -> FloatArray:
        seen = ~np.isnan(values)
        mine, theirs = (np.zeros(values.shape, dtype=bool) for _ in range(2))
        mine[seen], theirs[seen] = reachable(values[seen], count), reachable(values[seen], count - 1)
        ours, not_ours = (mine & ~theirs).any(axis=1), (theirs & ~mine).any(axis=1)
        return np.asarray(ours.astype(np.float64) - not_ours)

    def fit(_values: FloatArray, _values_neighbour: FloatArray) -> Score:
        return score

    name = f"reachable from counts of {count} or of {count - 1}"
    return Case(name, (count,) * items, (count - 1,) * items, fit)
