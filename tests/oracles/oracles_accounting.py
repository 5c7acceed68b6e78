"""Composition from scratch: pairs of laws as lists of probabilities, and products of them, outcome by outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """A pair of laws on the same outcomes. What the first has and the second has not is infinite loss."""

    first: FloatArray
    second: FloatArray

    def divergence(self, epsilon: float) -> float:
        """The larger hockey-stick divergence of both orders."""
        alpha = math.exp(epsilon)
        add = np.maximum(self.first - alpha * self.second, 0.0).sum()
        remove = np.maximum(self.second - alpha * self.first, 0.0).sum()
        return float(max(add, remove))

    def times(self, other: Pair) -> Pair:
        """Both releases: the outcomes are pairs, and nothing is merged."""
        return Pair(np.outer(self.first, other.first).ravel(), np.outer(self.second, other.second).ravel())


def discrete_gaussian(variance: Fraction, reach: int) -> FloatArray:
    """Probabilities of -reach..reach, summed in mpmath."""
    with mp.workdps(40):
        v = mpf(variance.numerator) / variance.denominator
        weights = [mp.exp(-(mpf(x) ** 2) / (2 * v)) for x in range(-reach, reach + 1)]
        total = mp.fsum(weights)
        return np.array([float(weight / total) for weight in weights])


def shifted_pair(variance: Fraction, shift: int, *, infinite: float, reach: int, merge: int = 1) -> Pair:
    """Discrete Gaussian noise moved by `shift` steps, and with probability `infinite` everything is said.

    `merge` neighbouring outcomes are taken for one: less can be told from that, so it is a lower bound.
    """
    law = discrete_gaussian(variance, reach)
    first = np.concatenate([np.zeros(shift), law]) * (1.0 - infinite)
    second = np.concatenate([law, np.zeros(shift)])
    pad = -first.size % merge
    first, second = (np.append(x, np.zeros(pad)).reshape(-1, merge).sum(axis=1) for x in (first, second))
    return Pair(np.append(first, infinite), np.append(second, 0.0))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta of a Gaussian whose mean moves by mu deviations (Balle and Wang 2018), in mpmath."""
    with mp.workdps(50):
        m, e = mpf(mu), mpf(epsilon)
        return float(mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m))


def laplace_pair(scale: Fraction, limit: int, *, changed: int, new: int) -> Pair:
    """The discrete Laplace histogram: `changed` counts move by one, `new` ones are in the first law alone."""
    reach = 60 * math.ceil(scale)
    q = math.exp(-1.0 / float(scale))
    law = np.array([q ** abs(x) * (1 - q) / (1 + q) for x in range(-reach, reach + 1)])
    one = Pair(np.append(0.0, law), np.append(law, 0.0))
    passes = sum(law[reach + limit + 1 :])
    hidden = Pair(np.array([1.0 - passes, passes]), np.array([1.0, 0.0]))
    # Losses of a moved count are +1/scale and -1/scale: equal likelihood ratios may be merged without loss.
    up, down = one.first > one.second, one.first <= one.second
    short = Pair(
        np.array([one.first[up].sum(), one.first[down].sum()]),
        np.array([one.second[up].sum(), one.second[down].sum()]),
    )
    result = Pair(np.ones(1), np.ones(1))
    for part in [short] * changed + [hidden] * new:
        result = result.times(part)
    return result
