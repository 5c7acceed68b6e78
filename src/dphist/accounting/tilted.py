"""The sum of many privacy losses, tilted so that the tail that matters is large when it is rounded.

Losses are whole multiples of one step. Each law is weighted by e^(t l) and scaled to one, the laws are convolved
by Fourier transforms, and the weight is taken off again: rounding is then small beside the tail, not beside one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import fft, special

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# The worst relative error of a transform per doubling of its length: Higham 2002, theorem 24.2, gives 7.7 u.
_PER_DOUBLING: Final = 10.0 * 2.0**-53
# What each factor of the product may lose beside its transforms, and each law in being made.
_PER_FACTOR: Final = 1e-12
_PER_EXPONENT: Final = 1e-15
_LOST: Final = 1e-9
LONGEST: Final = 2**21


@dataclass(frozen=True, eq=False)
class Losses:
    """A law of losses on a grid: places in steps, masses (the rest is at infinity), how often it is drawn."""

    places: IntArray
    masses: FloatArray
    count: int


def on_grid(losses: FloatArray, masses: FloatArray, *, step: float, count: int) -> Losses:
    """Atoms moved to the two nearest multiples of the step, so that both laws of the pair keep their mass.

        mass e^(-a) - e^(-l) over e^(-a) - e^(-b) goes up to b, the rest down to a   (a <= l < b = a + step)

    Guarantee: the profile of the result is nowhere below: on [e^a, e^b] it is the chord of the old one.
    Source: Doroshenko et al. 2022, *Connect the Dots*.
    """
    below = np.floor(losses / step)
    up = np.clip(np.expm1(below * step - losses) / math.expm1(-step), 0.0, 1.0)
    places = np.concatenate([below, below + 1.0]).astype(np.int64)
    split = np.concatenate([masses * (1.0 - up), masses * up])
    kept = split > 0.0
    unique, inverse = np.unique(places[kept], return_inverse=True)
    summed = np.zeros(unique.size)
    np.add.at(summed, inverse, split[kept])
    return Losses(unique, summed, count)


def log_moment(laws: Sequence[Losses], tilt: float, step: float) -> float:
    """K(t), the logarithm of the moment generating function of the sum of all finite losses."""
    return float(
        sum(
            law.count * special.logsumexp(tilt * step * law.places, b=law.masses)
            for law in laws
            if law.masses.size
        )
    )


def best_tilt(laws: Sequence[Losses], epsilon: float, step: float) -> float:
    """The tilt with the least K(t) - t epsilon, roughly: any t >= 0 gives a right result, this a sharp one."""

    def mean(tilt: float) -> float:
        total = 0.0
        for law in laws:
            weights = special.softmax(tilt * step * law.places + np.log(law.masses))
            total += law.count * step * float(weights @ law.places)
        return total

    low, high = 0.0, 1.0
    if mean(0.0) >= epsilon:
        return 0.0
    while mean(high) < epsilon and high * step < 1.0:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if mean(middle) < epsilon else (low, middle)
    return high


@dataclass(frozen=True, eq=False)
class Tilted:
    """The tilted law of a sum on a window, and what bounds the rest."""

    step: float
    tilt: float
    log_scale: float
    first: int
    weights: FloatArray
    error: float  # of the weights, in the Euclidean norm
    beyond: float  # mass, of the plain law, above the window
    slack: float  # relative, for what the doubles around the transforms lose

    def delta(self, epsilon: float) -> float:
        """Upper bound of E[(1 - e^(epsilon - L))_+] over finite losses L.

        Guarantee: an upper bound that counts the rounding of the transforms, what lies above the window, and
        what wraps around from below it; 1 for an epsilon below the window.
        """
        start = math.floor(epsilon / self.step)
        if start < self.first:
            # Losses between epsilon and the window are not in it.
            return 1.0
        distance = (np.arange(start, self.first + self.weights.size) * self.step - epsilon).clip(min=0.0)
        gain = np.exp(-self.tilt * distance) * -np.expm1(-distance)
        tail = self.weights[start - self.first :]
        inside = float(gain @ tail) + float(np.linalg.norm(gain)) * self.error
        scale = math.exp(min(700.0, self.log_scale - self.tilt * epsilon))
        # An exponent is rounded relative to its size.
        reach = abs(epsilon) + self.step * max(abs(self.first), abs(self.first + self.weights.size))
        return scale * inside * (1.0 + self.slack + _PER_EXPONENT * self.tilt * reach) + self.beyond


def tilted(laws: Sequence[Losses], tilt: float, step: float, *, near: float) -> Tilted:
    """The law of the sum under one tilt, on a window that holds what matters for epsilons about `near`."""
    log_scale = log_moment(laws, tilt, step)
    first, last, beyond = _window(laws, tilt, step, log_scale, near)
    length = fft.next_fast_len(last - first + 1, real=True)
    product, error, factors, slack = np.ones(length // 2 + 1, dtype=np.complex128), 0.0, 0, 0.0
    for law in laws:
        scale = log_moment([Losses(law.places, law.masses, 1)], tilt, step)
        weights = np.zeros(length)
        # Adding, not setting: places that are a whole window apart fall together.
        np.add.at(weights, law.places % length, law.masses * np.exp(tilt * step * law.places - scale))
        product *= fft.rfft(weights) ** law.count
        error += law.count * float(np.linalg.norm(weights))
        factors += law.count
        furthest = step * float(np.abs(law.places).max())
        slack += law.count * (_PER_FACTOR + _PER_EXPONENT * (tilt * furthest + abs(scale)))
    error = (error + 1.0) * _PER_DOUBLING * math.log2(2 * length) + factors * 1e-15
    weights = np.roll(fft.irfft(product, length), -(first % length))[: last - first + 1]
    return Tilted(step, tilt, log_scale, first, np.maximum(weights, 0.0), error, beyond, slack)


def _window(
    laws: Sequence[Losses], tilt: float, step: float, log_scale: float, near: float
) -> tuple[int, int, float]:
    """First and last place of the window, and Chernoff's bound of the plain mass above it."""
    lowest = sum(law.count * int(law.places[0]) for law in laws)
    highest = sum(law.count * int(law.places[-1]) for law in laws)
    # The plain mass that may be lost: little beside the tail at `near`.
    lost = max(-690.0, log_scale - tilt * near + math.log(_LOST))
    last, beyond = highest, 0.0
    for factor in (1.25, 1.5, 2.0, 3.0, 5.0, 9.0):
        more = tilt * factor + 0.1 * factor
        bound = log_moment(laws, more, step)
        place = math.ceil((bound - lost) / (more * step))
        if place < last:
            last, beyond = place, math.exp(lost) * (1.0 + 1e-9)
    first = lowest
    for factor in (0.1, 0.3, 1.0, 3.0, 10.0):
        less = tilt - (tilt * factor + factor)
        # Tilted mass below the window wraps around to its top: pessimistic, so it need only be small.
        place = math.floor((log_scale + math.log(_LOST) - log_moment(laws, less, step)) / ((tilt - less) * step))
        first = max(first, place)
    last = max(last, math.ceil(near / step) + 1)
    first = min(first, math.floor(near / step), last)
    return first, last, beyond
