"""Composition: delta of many releases together, far below the sum of their budgets; export to dp_accounting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Final

import numpy as np
from scipy import fft, special

from dphist.accounting.profile import INTERVAL, LARGEST_KNOT, Profile, profile_of_plan
from dphist.display import html_table, text_table
from dphist.errors import InvalidParameter, MissingExtra, install_command, positive_number
from dphist.privacy.numerics import FloatArray, IntArray
from dphist.privacy.types import Plan

# The distribution of the sum of many privacy losses. Losses are whole multiples of one step. Each distribution is
# tilted (weighted by e^(t l) and scaled to one), all are convolved by Fourier transforms, and the tilt is undone:
# rounding errors are then small relative to the tail, not only relative to one.

# The worst relative error of a transform per doubling of its length: Higham 2002, theorem 24.2, gives 7.7 u.
_PER_DOUBLING: Final = 10.0 * 2.0**-53
# Relative rounding errors of each factor of the product, apart from its transforms, and of each exponent.
_PER_FACTOR: Final = 1e-12
_PER_EXPONENT: Final = 1e-15
_LOST: Final = 1e-9
LONGEST: Final = 2**21


@dataclass(frozen=True, eq=False)
class Losses:
    """A distribution of losses on a grid: places in steps, masses (the rest is at infinity), number of draws."""

    places: IntArray
    masses: FloatArray
    count: int


def on_grid(losses: FloatArray, masses: FloatArray, *, step: float, count: int) -> Losses:
    """Atoms moved to the two nearest multiples of the step, keeping the mass of both distributions.

        mass e^(-a) - e^(-l) over e^(-a) - e^(-b) goes up to b, the rest down to a   (a <= l < b = a + step)

    Guarantee: the profile is nowhere lower than before: on [e^a, e^b] it is the chord of the old one.
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
    return float(sum(law.count * special.logsumexp(tilt * step * law.places, b=law.masses) for law in laws))


def best_tilt(laws: Sequence[Losses], epsilon: float, step: float) -> float:
    """The tilt with about the least K(t) - t epsilon: any t >= 0 gives a valid bound, this one a sharp bound."""

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
    """The tilted distribution of a sum on a window, and bounds of the rest."""

    step: float
    tilt: float
    log_scale: float
    first: int
    weights: FloatArray
    error: float  # of the weights, in the Euclidean norm
    beyond: float  # mass above the window, not tilted
    slack: float  # relative, for rounding around the transforms

    def delta(self, epsilon: float) -> float:
        """Upper bound of E[(1 - e^(epsilon - L))_+] over finite losses L.

        Guarantee: an upper bound that includes the rounding of the transforms, the mass above the window, and
        mass that wraps around from below it; 1 for an epsilon below the window.
        """
        start = math.floor(epsilon / self.step)
        if start < self.first:
            return 1.0
        distance = (np.arange(start, self.first + self.weights.size) * self.step - epsilon).clip(min=0.0)
        gain = np.exp(-self.tilt * distance) * -np.expm1(-distance)
        tail = self.weights[start - self.first :]
        inside = float(gain @ tail) + float(np.linalg.norm(gain)) * self.error
        scale = math.exp(min(700.0, self.log_scale - self.tilt * epsilon))
        # An exponent is rounded relative to its size.
        reach = abs(epsilon) + self.step * max(abs(self.first), abs(self.first + self.weights.size))
        return scale * inside * (1.0 + self.slack + _PER_EXPONENT * self.tilt * reach) + self.beyond


def tilted_law(laws: Sequence[Losses], tilt: float, step: float, *, near: float) -> Tilted:
    """The distribution of the sum under one tilt, on a window that is wide enough for epsilons about `near`."""
    log_scale = log_moment(laws, tilt, step)
    first, last, beyond = _window(laws, tilt, step, log_scale, near)
    length = fft.next_fast_len(last - first + 1, real=True)
    product, error, factors, slack = np.ones(length // 2 + 1, dtype=np.complex128), 0.0, 0, 0.0
    for law in laws:
        scale = log_moment([replace(law, count=1)], tilt, step)
        weights = np.zeros(length)
        # Places that are a whole window apart coincide.
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
    """First and last place of the window, and Chernoff's bound of the mass above it."""
    lowest = sum(law.count * int(law.places[0]) for law in laws)
    highest = sum(law.count * int(law.places[-1]) for law in laws)
    # The mass that may be lost, small relative to the tail at `near`.
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
        # Tilted mass below the window wraps around to its top, which only overstates delta.
        place = math.floor((log_scale + math.log(_LOST) - log_moment(laws, less, step)) / ((tilt - less) * step))
        first = max(first, place)
    last = max(last, math.ceil(near / step) + 1)
    first = min(first, math.floor(near / step), last)
    return first, last, beyond


Spend = Plan | Profile | tuple[Plan | Profile, int]
_MOST_RELEASES: Final = 10**6
# From here on there is no privacy to account for.
_HOPELESS: Final = 0.999


@dataclass(frozen=True)
class Composition:
    """Several releases of the same users' data: their profiles, and how often each is made.

    Each release may depend on the results of earlier ones (docs/theory/accounting.md).
    """

    spends: tuple[tuple[Profile, int], ...]

    @property
    def releases(self) -> int:
        return sum(count for _, count in self.spends)

    @property
    def infinite(self) -> float:
        """The delta that no epsilon removes; it adds up."""
        log_rest = math.fsum(
            count * math.log1p(-min(profile.infinite, _HOPELESS)) for profile, count in self.spends
        )
        return min(1.0, -math.expm1(log_rest) * (1.0 + 1e-13))

    def rows(self) -> list[tuple[str, str]]:
        deltas = [delta for delta in (1e-4, 1e-5, 1e-6, 1e-8, 1e-10) if delta > self.infinite]
        return [
            ("releases", f"{self.releases:,}"),
            *((f"epsilon at delta {delta:g}", f"{self.epsilon(delta):.6g}") for delta in deltas),
            ("delta that no epsilon removes", f"{self.infinite:.6g}"),
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table("Releases together", self.rows())

    def delta(self, epsilon: float) -> float:
        """Delta of all releases together at an epsilon.

        Guarantee: an upper bound, including rounding; about 1e-9 above the exact composition of the profiles if
        their points are on one grid.
        Source: Zhu, Dong and Wang 2022 for the composition of dominating pairs.
        """
        if not isinstance(epsilon, (int, float)) or not epsilon >= 0.0:
            raise InvalidParameter(f"epsilon must be a number of at least zero, not {epsilon!r}")
        if any(profile.infinite >= _HOPELESS for profile, _ in self.spends):
            return 1.0
        if not self.spends or epsilon >= self._largest_loss:
            return self.infinite
        return min(1.0, self.infinite + self._tilted_at(epsilon).delta(epsilon))

    def epsilon(self, delta: float) -> float:
        """The least epsilon, to a relative 1e-7, at which delta is enough; infinite if there is none.

        Guarantee: `delta(epsilon)` was tested and is within delta.
        """
        target = positive_number("delta", delta)
        if self.infinite > target or any(profile.infinite >= _HOPELESS for profile, _ in self.spends):
            return math.inf
        if self.delta(0.0) <= target:
            return 0.0
        # Invariant: delta(low) is above the target and delta(high) is not.
        low, high = 0.0, self._largest_loss
        guess = self._chernoff_epsilon(target - self.infinite)
        while high - low > 1e-7 * high:
            if not low < guess < high:
                guess = (low + high) / 2.0
            law = self._tilted_at(guess)
            delta_here = min(1.0, self.infinite + law.delta(guess))
            low, high = (low, guess) if delta_here <= target else (guess, high)
            # Delta falls about like e^(-tilt epsilon); a slightly longer step brackets the solution.
            step = math.log((delta_here - self.infinite + 1e-300) / (target - self.infinite + 1e-300)) / (
                law.tilt + 1.0
            )
            guess += step + math.copysign(2e-8 * high, step)
        return high

    @property
    def _largest_loss(self) -> float:
        return math.fsum(count * profile.epsilons[-1] for profile, count in self.spends) * (1.0 + 1e-12)

    @cached_property
    def _step(self) -> float:
        """The finest step of the profiles, or a coarser one if the window would be too long."""
        step = min(profile.interval for profile, _ in self.spends)
        while self._largest_loss / step > 0.25 * LONGEST and self._spread / step > 0.02 * LONGEST:
            step *= 2.0
        return step

    @property
    def _spread(self) -> float:
        """Roughly the standard deviation of all losses together."""
        total = 0.0
        for profile, count in self.spends:
            losses, masses = profile.atoms()
            total += count * float(masses @ (losses.clip(-LARGEST_KNOT, LARGEST_KNOT) ** 2))
        return math.sqrt(total)

    @cached_property
    def _laws(self) -> list[Losses]:
        return [on_grid(*profile.atoms(), step=self._step, count=count) for profile, count in self.spends]

    def _tilted_at(self, epsilon: float) -> Tilted:
        return tilted_law(self._laws, best_tilt(self._laws, epsilon, self._step), self._step, near=epsilon)

    def _chernoff_epsilon(self, delta: float) -> float:
        """Roughly the epsilon for this delta, by Chernoff's bound."""
        low, high = 0.0, self._largest_loss
        for _ in range(24):
            middle = (low + high) / 2.0
            tilt = best_tilt(self._laws, middle, self._step)
            bound = log_moment(self._laws, tilt, self._step) - tilt * middle
            low, high = (low, middle) if bound <= math.log(max(delta, 1e-300)) else (middle, high)
        return high


def compose(*spends: Spend) -> Composition:
    """Compose plans or profiles; a pair (plan, number) stands for that many releases.

    >>> import dphist
    >>> from dphist.accounting import compose
    >>> plan = dphist.plan(epsilon=0.1, delta=1e-8, max_items_per_user=10)
    >>> compose((plan, 10)).epsilon(1e-6) < 10 * 0.1
    True
    """
    counted = []
    for spend in spends:
        release, count = spend if isinstance(spend, tuple) else (spend, 1)
        if not isinstance(release, (Plan, Profile)):
            raise InvalidParameter(f"compose needs plans or profiles, not {type(release).__name__}")
        profile = profile_of_plan(release) if isinstance(release, Plan) else release
        counted.append((profile, _check_count(count)))
    return Composition(tuple(counted))


def total_delta(spends: Sequence[tuple[Profile, int]], epsilon: float) -> float:
    """Upper bound of delta of all spends together at one epsilon. Equal profiles cost no more time than one."""
    counts: dict[Profile, int] = {}
    for profile, count in spends:
        counts[profile] = counts.get(profile, 0) + _check_count(count)
    return Composition(tuple(counts.items())).delta(epsilon)


def _check_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_RELEASES:
        raise InvalidParameter(f"the number of releases must be between 1 and {_MOST_RELEASES}, not {count!r}")
    return count


def to_pld(plan: Plan | Profile, *, value_discretization_interval: float = INTERVAL) -> Any:
    """The `PrivacyLossDistribution` of dp_accounting, to compose with any other of the same interval.

    Guarantee: its delta is nowhere below the plan's, and equal to the profile's at points that are multiples of
    the interval.
    Source: Doroshenko et al. 2022, *Connect the Dots*.
    """
    interval = positive_number("value_discretization_interval", value_discretization_interval)
    profile = plan if isinstance(plan, Profile) else profile_of_plan(plan)
    law = on_grid(*profile.atoms(), step=interval, count=1)
    masses = dict(zip(law.places.tolist(), law.masses.tolist(), strict=True))
    try:
        distribution = import_module("dp_accounting.pld.privacy_loss_distribution").PrivacyLossDistribution
    except ImportError:
        raise MissingExtra(f"this needs dp_accounting: {install_command('accounting')}") from None
    return distribution.create_from_rounded_probability(masses, profile.infinite, interval)
