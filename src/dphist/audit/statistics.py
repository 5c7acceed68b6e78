"""Tests with a stated chance of a false alarm, at most 1e-10 each."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from dphist.mechanisms.base import FloatArray

FALSE_ALARM: Final = 1e-10
# Normal tails beyond 8 have 6.2e-16 on each side. Squares are skewed, and the studentised mean of n of them errs
# from the normal tail by a factor of about exp(skewness z^3/(3 sqrt n)): at n = 10,000 it is 130 for squares of
# normals (skewness 2.83) and 8e4 for those of Laplace noise (6.6), which makes 8e-14 and 5e-11.
STUDENT_BOUND: Final = 8.0


def student(samples: FloatArray, expected: float) -> float:
    """The studentised mean of independent samples; its scale is estimated, so fourth moments need no model.

    Not a number, which passes no test, if a sample is missing; 0 for constant samples that are as expected.
    """
    difference = float(samples.mean()) - expected
    error = float(samples.std(ddof=1)) / math.sqrt(samples.size)
    if error == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return difference / error


def kolmogorov_distance(one: FloatArray, other: FloatArray) -> float:
    """Largest difference of two empirical distribution functions; NaN, a value withheld, counts as lowest."""
    first, second = (np.sort(np.nan_to_num(samples, nan=-np.inf, neginf=-np.inf)) for samples in (one, other))
    points = np.concatenate([first, second])
    below = [np.searchsorted(samples, points, side="right") / samples.size for samples in (first, second)]
    return float(np.abs(below[0] - below[1]).max())


def kolmogorov_bound(samples: int, tests: int) -> float:
    """What the largest of `tests` distances of two samples exceeds with probability at most 1e-10.

    Guarantee: Pr[D > d] <= 2 exp(-samples d^2) for two samples of one size, ties or not, from 458 samples on.
    Source: Wei and Dudley 2012.
    """
    return math.sqrt(math.log(2.0 * tests / FALSE_ALARM) / samples)
