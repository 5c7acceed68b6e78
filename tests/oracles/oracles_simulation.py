"""What a plan releases of a few counts, by enumeration: no formula of dphist.simulation is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mpmath
import numpy as np
from numpy.typing import NDArray

from dphist.model import LaplaceNoise, LatticeNoise

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """Whole numbers of steps with their probabilities."""

    steps: NDArray[np.int64]
    chance: Floats


def gaussian(variance: float) -> Law:
    """Proportional to exp(-x^2/(2 variance)), summed up as far as doubles go."""
    reach = int(12.0 * variance**0.5) + 2
    steps = np.arange(-reach, reach + 1)
    weights = np.array([float(mpmath.exp(-(mpmath.mpf(int(x)) ** 2) / (2 * mpmath.mpf(variance)))) for x in steps])
    return Law(steps, weights / weights.sum())


def laplace(scale: float) -> Law:
    """Proportional to exp(-|x|/scale)."""
    reach = int(40.0 * scale) + 2
    steps = np.arange(-reach, reach + 1)
    weights = np.array([float(mpmath.exp(-abs(int(x)) / mpmath.mpf(scale))) for x in steps])
    return Law(steps, weights / weights.sum())


def thinned(chances: Sequence[float]) -> Floats:
    """How many of so many users stay, each with a chance of their own: the probabilities of 0, 1, 2, ..."""
    law = np.ones(1)
    for chance in chances:
        law = np.convolve(law, [1.0 - chance, chance])
    return law


@dataclass(frozen=True)
class Outcome:
    """Probability of release, and over that event the means of error, of |error| and of what was counted."""

    probability: float
    error: float
    distance: float
    kept: float


def counted(noise: LatticeNoise | LaplaceNoise, chances: Sequence[float]) -> Outcome:
    """An item with a user for each chance, under a cap, with noise and threshold."""
    if isinstance(noise, LaplaceNoise):
        laws, lattice = [laplace(float(noise.scale))], 1
    else:
        laws, lattice = [gaussian(float(noise.variance))], noise.lattice
        if noise.variance_shared:
            laws.append(gaussian(float(noise.variance_shared)))
    drawn, weight = laws[0].steps, laws[0].chance
    for law in laws[1:]:
        drawn = (drawn[:, None] + law.steps).ravel()
        weight = (weight[:, None] * law.chance).ravel()
    truth, sums = len(chances), np.zeros(4)
    for left, chance in enumerate(thinned(chances)):
        if left == 0:
            continue  # a count of zero draws no noise
        passes = left * lattice + drawn > lattice + noise.tau_steps
        error = left + drawn[passes] / lattice - truth
        share = chance * weight[passes]
        sums += [share.sum(), share @ error, share @ np.abs(error), left * share.sum()]
    return Outcome(*sums.tolist())


def topped(noise: LatticeNoise, above: int, short: int = 0) -> Outcome:
    """A count above the one after the largest: own, shared and the offset's noise; a limit took `short` of it."""
    own, shared = gaussian(float(noise.variance)), gaussian(float(noise.variance_shared))
    z, w, o = np.meshgrid(own.steps, shared.steps, shared.steps, indexing="ij", sparse=True)
    weight = own.chance[:, None, None] * shared.chance[None, :, None] * shared.chance[None, None, :]
    passes = (above * noise.lattice + z + w > noise.lattice + noise.tau_steps) & (o == o)
    error = (z + o + (0 if noise.offset == "opposite" else w) + 0 * w) / noise.lattice - short
    share = np.where(passes, weight, 0.0)
    return Outcome(float(share.sum()), float((share * error).sum()), float((share * np.abs(error)).sum()), 0.0)
