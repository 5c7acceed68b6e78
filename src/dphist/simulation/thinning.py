"""What a cap leaves of a count: users drop out at random, each with a chance of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special

FloatArray = NDArray[np.float64]
_REACH: Final = 6.0
# Points to a standard deviation: sums over every s-th value of a smooth law are as good as over all.
_POINTS: Final = 4.0
_NOTHING: Final = 1e-9


@dataclass(frozen=True)
class Thinned:
    """Values that counts may have, each with its probability and the place of its count."""

    place: NDArray[np.int64]
    left: FloatArray
    weight: FloatArray


def lost(counts: FloatArray, mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """How many users of each count may drop out, and with which chance: by the mean and variance of what is left.

    The number that is lost is a sum of independent chances. It is taken for binomial with the same mean and, up to
    the rounding of the number of trials, the same variance. That is exact where all chances are equal.
    """
    loss = np.maximum(counts - mean, 0.0)
    loss = np.where(loss < _NOTHING * counts, 0.0, loss)
    trials = np.rint(loss**2 / np.maximum(loss - np.minimum(variance, loss), _NOTHING * np.maximum(loss, 1.0)))
    trials = np.clip(trials, np.ceil(loss), counts)
    return trials, np.clip(loss / np.maximum(trials, 1.0), 0.0, 1.0 - 1e-12)


def thinned(counts: FloatArray, mean: FloatArray, variance: FloatArray) -> Thinned:
    """The law of what is left of each count, by its mean and variance."""
    trials, chance = lost(counts, mean, variance)
    centre, spread = trials * chance, np.sqrt(trials * chance * (1.0 - chance))
    stride = np.maximum(1.0, np.floor(spread / _POINTS))
    low = np.maximum(0.0, np.floor(centre - _REACH * spread) - 3.0)
    low = np.where(centre == 0.0, 0.0, low)
    high = np.where(centre == 0.0, 0.0, np.minimum(trials, np.ceil(centre + _REACH * spread) + 3.0))
    number = ((high - low) // stride + 1.0).astype(np.int64)
    place = np.repeat(np.arange(counts.size), number)
    within = np.arange(place.size) - np.repeat(np.cumsum(number) - number, number)
    gone: FloatArray = low[place] + stride[place] * within
    weight = _binomial(gone, trials[place], chance[place])
    weight /= np.bincount(place, weight, counts.size)[place]
    return Thinned(place, counts[place] - gone, weight)


def _binomial(k: FloatArray, n: FloatArray, p: FloatArray) -> FloatArray:
    """The binomial law."""
    log_ways = special.gammaln(n + 1.0) - special.gammaln(k + 1.0) - special.gammaln(n - k + 1.0)
    return np.asarray(np.exp(log_ways + special.xlogy(k, p) + special.xlog1py(n - k, -p)))
