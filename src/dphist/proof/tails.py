"""Discrete Gaussian noise in doubles, for planning: tails, and the infinite event as an exact sum."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dphist.proof.balls import midpoint_coefficient
from dphist.proof.numerics import FloatArray, normal_reach

# All numbers are in units of the lattice: variance V means Pr[X = x] proportional to exp(-x^2/(2V)) on the
# integers. The paper's lattice is 1/2, so its N_Z(0, 4 sigma^2)/2 has V = 4 sigma^2.

_LARGEST_TABLE_DEVIATION: Final = 64.0
_REACH: Final = 38.6  # beyond this, a standard normal underflows in doubles
_CHUNK: Final = 1 << 20
_MOST_DRAWS: Final = 1 << 22
# Coefficients of f', f''', f^(5), f^(7), f^(9) in the midpoint Euler-Maclaurin formula.
_MIDPOINT: Final = tuple(
    int(c.numer()) / int(c.denom()) for c in (midpoint_coefficient(order) for order in (1, 3, 5, 7, 9))
)


@lru_cache(maxsize=32)
def _tail_table(variance: float) -> FloatArray:
    """Sums of exp(-x^2/(2V)) over x >= n for n = 0, 1, ..., added from the smallest term up."""
    x = np.arange(math.ceil(_REACH * math.sqrt(variance)) + 2, dtype=np.float64)
    weights = np.exp(-x * x / (2.0 * variance))
    return np.asarray(np.cumsum(weights[::-1])[::-1], dtype=np.float64)


def _hermite_terms(t: FloatArray, deviation: float) -> FloatArray:
    """Euler-Maclaurin corrections to the tail integral at t, divided by the density."""
    previous, current = np.ones_like(t), t  # He_0, He_1
    total = np.zeros_like(t)
    for order in range(1, 2 * len(_MIDPOINT)):
        if order % 2 == 1:
            # f^(n)(y) = (-1)^n He_n(y/S) f(y)/S^n; only odd n occur.
            total -= _MIDPOINT[order // 2] * current / deviation**order
        previous, current = current, t * current - order * previous
    return total


def discrete_gaussian_tail(n: ArrayLike, *, variance: float) -> FloatArray:
    """Pr[X >= n] for the discrete Gaussian of this variance parameter, elementwise for whole n.

        sum over x >= n of e^(-x^2/(2V)) / sum over all x

    Guarantee: relative error about 1e-13 down to 1e-300: a table of sums up to a deviation of 64 steps, the
    midpoint Euler-Maclaurin formula beyond.
    Valid for: variance >= 1/16.
    Source: `def:discrete-distribution-gaussian`.
    """
    points = np.asarray(n, dtype=np.float64)
    mirrored = points <= 0.0
    # Pr[X >= n] = 1 - Pr[X >= 1 - n]: summing for positive n only, nothing cancels in the tail.
    positive = np.where(mirrored, 1.0 - points, points)
    deviation = math.sqrt(variance)
    if deviation <= _LARGEST_TABLE_DEVIATION:
        table = _tail_table(variance)
        index = np.minimum(positive, table.size - 1).astype(np.int64)
        tail = np.where(positive < table.size, table[index], 0.0) / (2.0 * table[0] - 1.0)
    else:
        t = (positive - 0.5) / deviation
        density = np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
        tail = special.ndtr(-t) + density * _hermite_terms(t, deviation) / deviation
    return np.asarray(np.where(mirrored, 1.0 - tail, tail), dtype=np.float64)


def infinite_event_discrete(
    *, count: int, variance: float, variance_shared: float, limit: int, smallest: float = 1e-300
) -> float:
    """Exact probability that one of `count` new counts passes under discrete noise.

        1 - sum over w of Pr[Z_shared = w] Pr[Z <= limit - w]^count,  a count passes if Z + Z_shared > limit

    Guarantee: an exact sum, relative error about 1e-12 for values above `smallest`. Of more than 2^22 shared draws
    only equidistant ones, more than 10,000 per deviation, whose mean over such smooth values is as accurate.
    Valid for: variances of at least 1/16 in lattice units; variance_shared = 0 for no shared noise.
    Source: the exact value that `lem:discrete-upperbounddeltainf` bounds.
    """
    if variance_shared == 0.0:
        passes = discrete_gaussian_tail(limit + 1, variance=variance)
        return float(-np.expm1(count * np.log1p(-passes)))
    deviation = math.sqrt(variance_shared)
    reach = math.ceil(deviation * normal_reach(smallest)) + 1
    normaliser = (
        2.0 * float(_tail_table(variance_shared)[0]) - 1.0
        if deviation <= _LARGEST_TABLE_DEVIATION
        else math.sqrt(2.0 * math.pi * variance_shared)
    )
    total, step = 0.0, -(-2 * reach // _MOST_DRAWS)
    for start in range(-reach, reach + 1, _CHUNK * step):
        w = np.arange(start, min(start + _CHUNK * step, reach + 1), step, dtype=np.float64)
        passes = discrete_gaussian_tail(limit - w + 1.0, variance=variance)
        with np.errstate(divide="ignore"):
            some = -np.expm1(count * np.log1p(-passes))
        total += float((np.exp(-w * w / (2.0 * variance_shared)) * some).sum())
    return total * step / normaliser


def infinite_event_discrete_upper(*, k: int, sigma: float, tau: float) -> float:
    """The paper's upper bound of the infinite event under its discrete noise with gamma = sqrt k.

        1 - Pr[N_Z(0, 4 sigma^2/sqrt k) <= 2 tau c/(c+1)] Pr[N_Z(0, 4 sigma^2) <= 2 tau/(c+1)]^k,  c = k^(-1/4)

    Guarantee: an upper bound of the infinite event of k new counts.
    Valid for: sigma > 0, tau > 0.
    Source: `lem:discrete-upperbounddeltainf`.
    """
    root = k**-0.25
    shared = discrete_gaussian_tail(
        math.floor(2.0 * tau * root / (root + 1.0)) + 1, variance=4.0 * sigma**2 / math.sqrt(k)
    )
    single = discrete_gaussian_tail(math.floor(2.0 * tau / (root + 1.0)) + 1, variance=4.0 * sigma**2)
    return float(-np.expm1(np.log1p(-shared) + k * np.log1p(-single)))
