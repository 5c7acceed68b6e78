"""Privacy profiles: convex chains of certified points (epsilon, delta), never below the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
from flint import arb

from dphist.errors import LARGEST_EPSILON, InvalidParameter, NotPrivate, finite_number, positive_number
from dphist.model import Budget, LaplaceNoise, Noise, Plan
from dphist.paper.certification import GivenNoise, given_noise
from dphist.proof import balls
from dphist.proof.balls import rational
from dphist.proof.continuous import certify_noise
from dphist.proof.exact import delta_family
from dphist.proof.searches import least_passing, log_excess, round_up

# For more items, the profile of Laplace noise is almost that of randomised response at m/scale.
MOST_ITEMS: Final = 512


def delta_laplace_upper(scale: Fraction, limit: int, items: int, *, epsilon: float) -> float:
    """delta of the discrete Laplace stability histogram at any epsilon, also below m/scale.

        max over r <= m of  g(r) + (1 - g(r)) H(m - r),    g(r) = 1 - (1 - p)^r,
        H(s) = sum over l of binom(s, l) a^l (1 - a)^(s-l) (1 - e^(epsilon - (2l - s)/scale))_+

    a = 1/(1 + e^(-1/scale)), and p is the probability that a new count passes. A count moved by one has the loss
    +1/scale or -1/scale, so s of them have a binomial loss. With r new counts, adding a user gives
    g + integral of ((1-g) P - e^epsilon Q)_+, and removing one
    Q - e^epsilon (1-g) P = (1-g)(Q - e^epsilon P) + g Q. Both are at most g + (1-g) H.

    Guarantee: an upper bound in ball arithmetic, exact up to rounding where r = 0 or r = m is the worst.
    Valid for: epsilon >= 0, 1 <= items <= `MOST_ITEMS`.
    Source: beyond the paper.
    """
    with balls.precision(256):
        rate = rational(1 / scale)
        passes = (-(limit + 1) * rate).exp() / (1 + (-rate).exp())
        worst = arb(0)
        for changed in range(items + 1):
            hidden = (1 - passes) ** (items - changed)
            worst = worst.max(1 - hidden + hidden * _binomial_divergence(changed, rate, arb(epsilon)))
        return min(1.0, balls.upper(worst))


def _binomial_divergence(changed: int, rate: arb, epsilon: arb) -> arb:
    """H(s): the hockey-stick divergence of `changed` counts moved by one each."""
    if not changed * rate > epsilon:
        return arb(0) if changed * rate <= epsilon else (changed * rate - epsilon).max(arb(0))
    up = 1 / (1 + (-rate).exp())
    weight, total = up**changed, arb(0)
    for down in range(changed + 1):
        gain = 1 - (epsilon - (changed - 2 * down) * rate).exp()
        if gain < 0:
            break
        total += weight * gain.max(arb(0))
        weight *= (-rate).exp() * (changed - down) / (down + 1)
    return total


INTERVAL: Final = 1e-4
# e^epsilon must be a double; beyond, the last delta holds.
LARGEST_KNOT: Final = 700.0
# More than the relative rounding error of a few hundred sums and quotients of doubles.
_HAIR: Final = 1e-12


@dataclass(frozen=True)
class Profile:
    """Upper bounds (epsilon, delta) of a mechanism, convex in e^epsilon, for adding and for removing a user.

    Between two points the chord in e^epsilon is the bound, after the last point its delta, below zero the mirror
    image delta(-e) = 1 - e^(-e) + e^(-e) delta(e).

    Args:
        epsilons: The ε of the points, rising from 0 or more.
        deltas: The δ of the points, falling.
        interval: All ε should be multiples of it.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]
    interval: float = INTERVAL

    def __post_init__(self) -> None:
        numbers = [*self.epsilons, *self.deltas, self.interval]
        if not all(isinstance(x, (int, float)) and math.isfinite(x) for x in numbers) or not self.epsilons:
            raise InvalidParameter("a profile needs points of finite numbers")
        rising = all(left < right for left, right in pairwise((-1.0, *self.epsilons)))
        falling = all(left >= right for left, right in pairwise((1.0, *self.deltas, 0.0)))
        if not (rising and falling and self.epsilons[0] >= 0.0 and self.interval > 0.0):
            raise InvalidParameter("a profile's epsilons must rise from 0, and its deltas fall from 1 to 0")
        if self.epsilons[-1] > LARGEST_KNOT:
            raise InvalidParameter(f"a profile's epsilons must be at most {LARGEST_KNOT:g}")

    @classmethod
    def from_points(cls, points: Iterable[tuple[float, float]], *, interval: float = INTERVAL) -> Profile:
        """The lowest convex chain through `points`, upper bounds of one mechanism's deltas; `interval` as above.

        Guarantee: never below the truth, which is convex and below each point, hence below all chords.
        """
        highest = 1.0
        chain: list[tuple[float, float]] = []
        for epsilon, delta in sorted(points):
            # delta never rises with epsilon, so a bound holds at larger epsilons as well.
            highest = min(highest, delta)
            if epsilon > LARGEST_KNOT or (chain and chain[-1][0] == epsilon):
                continue
            chain.append((epsilon, highest))
            while len(chain) > 2 and _slope(chain[-3], chain[-2]) <= _slope(chain[-2], chain[-1]):
                del chain[-2]
        while len(chain) > 1 and _first_slope(chain) <= _slope(chain[0], chain[1]):
            del chain[0]
        # A flat end is implied by its first point.
        while len(chain) > 1 and chain[-2][1] == chain[-1][1]:
            del chain[-1]
        if not chain:
            raise InvalidParameter(f"a profile needs a point at an epsilon of at most {LARGEST_KNOT:g}")
        return cls(tuple(e for e, _ in chain), tuple(d for _, d in chain), interval)

    @property
    def infinite(self) -> float:
        """The delta that remains at any epsilon."""
        return self.deltas[-1]

    def delta(self, epsilon: float) -> float:
        """Upper bound of delta at any `epsilon`, also below zero."""
        if epsilon < 0.0:
            return min(1.0, -math.expm1(epsilon) + math.exp(epsilon) * self.delta(-epsilon))
        if epsilon >= self.epsilons[-1]:
            return self.deltas[-1]
        after = int(np.searchsorted(self.epsilons, epsilon, side="right"))
        right = (self.epsilons[after], self.deltas[after])
        left = (self.epsilons[after - 1], self.deltas[after - 1])
        slope = _first_slope([right]) if after == 0 else _slope(left, right)
        rise = slope * math.exp(epsilon) * math.expm1(right[0] - epsilon)
        return min(1.0, (right[1] + rise) * (1.0 + _HAIR))


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    """The fall of delta between two points, per unit of e^epsilon."""
    return (left[1] - right[1]) / (math.exp(left[0]) * math.expm1(right[0] - left[0]))


def _first_slope(chain: list[tuple[float, float]]) -> float:
    """The fall on the chord from the mirror image of the first point to the point.

    A first point at zero is its own image; the slope on its left is that of the image of the first chord.
    """
    epsilon, delta = chain[0]
    if epsilon > 0.0:
        return (1.0 - delta) / (1.0 + math.exp(epsilon))
    return 1.0 - delta - _slope(chain[0], chain[1])


# How far chords may lie above the truth, relative to it.
EXCESS: Final = 5e-4
# Smaller deltas are negligible in any composition.
_TINY: Final = 1e-15
_FLAT: Final = 1e-4
# Deltas below this part of the plan's own need no precision.
_SMALL: Final = 1e-3
_PIECES: Final = 8
# Estimated excesses are inexact; one below this multiple of the allowed one is not worth another certificate.
_SLACK: Final = 1.4


def profile_of_plan(plan: Plan, *, excess: float = EXCESS) -> Profile:
    """The privacy profile of a plan: certified points whose chords are at most `excess` above the truth.

    Guarantee: never below the truth, at any epsilon. Within `excess` of the certificates, relative to them or to a
    thousandth of the plan's delta, except within one step (1e-4 at epsilon 1) of a kink.

    >>> import dphist
    >>> from dphist.accounting import profile_of_plan
    >>> profile = profile_of_plan(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20))
    >>> print(f"{profile.delta(0.5):.2e}")
    1.89e-03

    Args:
        plan: The plan.
        excess: How far chords may lie above the certified points, relatively.
    """
    return _profile(plan, positive_number("excess", excess))


@lru_cache(maxsize=256)
def _profile(plan: Plan, excess: float) -> Profile:
    delta = certified_delta(plan)
    tiny = min(_TINY, plan.budget.delta * _FLAT)
    interval = INTERVAL * 2.0 ** min(0, math.floor(math.log2(plan.budget.epsilon)))
    small, floor = plan.budget.delta * _SMALL, delta(LARGEST_EPSILON)
    top = _flat_from(delta, floor * (1.0 + _FLAT) + tiny, plan.budget.epsilon, interval)

    @cache
    def at(mark: int) -> float:
        return delta(mark * interval)

    def estimate(left: int, middle: int, right: int) -> float:
        return _estimate(at, left, middle, right, interval) / (excess * (at(right) + small))

    # One more beyond the top: the corner where delta becomes flat is the sharpest.
    last = min(top + max(1, top // 64), math.floor(LARGEST_KNOT / interval))
    marks = sorted({*_march(top, estimate), *_corners(plan, interval, top), last})

    def is_too_high(i: int) -> bool:
        """Whether the chord after point i is."""
        before, left, right, after = (marks[min(max(n, 0), len(marks) - 1)] for n in range(i - 1, i + 3))
        highest = max(_estimate(at, before, left, right, interval), _estimate(at, left, right, after, interval))
        return right > left + 1 and highest > _SLACK * excess * (at(right) + small)

    while chords := [i for i in range(len(marks) - 1) if is_too_high(i)]:
        marks = sorted({*marks, *((marks[i] + marks[i + 1]) // 2 for i in chords)})
    return Profile.from_points(((mark * interval, at(mark)) for mark in marks), interval=interval)


def _march(top: int, badness: Callable[[int, int, int], float]) -> list[int]:
    """Points from zero to the top, each as far from the last as the curvature allows."""
    marks, width = [0], max(1, top // 64)
    while marks[-1] < top:
        marks.append(min(top, marks[-1] + width))
        if len(marks) > 2:
            bad = badness(*marks[-3:])
            width = max(1, int(width * min(2.0, max(0.25, 0.95 / math.sqrt(max(bad, 0.05))))))
    return marks


def _estimate(at: Callable[[int], float], left: int, middle: int, right: int, interval: float) -> float:
    """Roughly how far the wider of two chords is above a smooth curve, by the change of slope."""
    if left == middle or middle == right:
        return 0.0
    first, second = math.expm1((middle - left) * interval), math.expm1((right - middle) * interval)
    second *= math.exp((middle - left) * interval)
    bend = (at(left) - at(middle)) / first - (at(middle) - at(right)) / second
    wider = max(first, second)
    return bend * wider * (wider / (4.0 * (first + second)))


def certified_delta(plan: Plan) -> Callable[[float], float]:
    """delta of the plan at any epsilon >= 0: a certified upper bound, 1 if there is no certificate."""
    noise, contract = plan.noise, plan.contract

    def delta(epsilon: float) -> float:
        if isinstance(noise, LaplaceNoise) and contract.items <= MOST_ITEMS:
            return delta_laplace_upper(noise.scale, noise.tau_steps, contract.items, epsilon=epsilon)
        try:
            return min(1.0, delta_at(plan, epsilon))
        except NotPrivate:
            return 1.0

    return delta


def _corners(plan: Plan, interval: float, top: int) -> set[int]:
    """The corners of the profile of Laplace noise: the multiples of 1/scale."""
    if not isinstance(plan.noise, LaplaceNoise):
        return set()
    # Only some of many; the chords between them are tested like all others.
    step = max(1, plan.contract.items // _PIECES)
    steps = (float(count / plan.noise.scale) / interval for count in range(1, plan.contract.items + 1, step))
    last = float(plan.contract.items / plan.noise.scale) / interval
    marks = {round(mark) for mark in (*steps, last)} | {math.ceil(last)}
    return {mark for mark in marks if 0 < mark < top}


def _flat_from(delta: Callable[[float], float], target: float, start: float, interval: float) -> int:
    """The first multiple of the interval, within a tenth of a percent, at which delta is within the target."""
    most = math.floor(LARGEST_KNOT / interval)
    low, high = 0, min(most, max(1, math.ceil(start / interval)))
    while high < most and delta(high * interval) > target:
        low, high = high, min(2 * high, most)
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if delta(middle * interval) <= target else (middle, high)
    return high


def delta_at(plan: Plan | GivenNoise, epsilon: float) -> float:
    """Certified upper bound of delta at another epsilon, for a fixed plan.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20)
    >>> print(f"{dphist.delta_at(plan, 0.5):.2e}")
    1.89e-03

    Args:
        plan: The plan.
        epsilon: The ε, from 0 to 800.
    """
    number = finite_number("epsilon", epsilon)
    if not 0.0 <= number <= LARGEST_EPSILON:
        raise InvalidParameter(f"epsilon must be between 0 and {LARGEST_EPSILON:g}, not {epsilon!r}")
    return certify_noise(plan.noise, plan.contract, epsilon=number).delta


def epsilon_at(plan: Plan | GivenNoise, delta: float) -> float:
    """The least epsilon, up to rounding, at which a fixed plan is certified for delta.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20)
    >>> print(f"{dphist.epsilon_at(plan, 1e-5):.4f}")
    0.8725

    Args:
        plan: The plan.
        delta: The δ.

    Raises:
        NotPrivate: No ε is enough: new counts pass the threshold with a larger probability.
    """
    target = Budget(1.0, delta).delta
    floor = delta_at(plan, LARGEST_EPSILON)
    if floor > target:
        raise NotPrivate(f"no epsilon reaches delta = {delta!r}: delta stays at {floor:.10g}")
    if delta_at(plan, 0.0) <= target:
        return 0.0

    def excess(epsilon: float) -> float:
        # Doubles are quicker where they are available.
        if isinstance(plan.noise, Noise):
            return log_excess(delta_family(plan.noise, plan.contract, epsilon=epsilon).delta, target)
        return log_excess(certify_noise(plan.noise, plan.contract, epsilon=epsilon).delta, target)

    epsilon = round_up(least_passing(excess, 1.0, relative=1e-10))
    step = 1e-9
    while epsilon < LARGEST_EPSILON:
        if delta_at(plan, epsilon) <= target:
            return epsilon
        step *= 4.0
        epsilon = round_up(epsilon * (1.0 + step))
    return LARGEST_EPSILON


def profile(plan: Plan, epsilons: Iterable[float]) -> list[tuple[float, float]]:
    """The privacy profile as (epsilon, certified delta) pairs.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20)
    >>> print([(epsilon, f"{delta:.1e}") for epsilon, delta in dphist.profile(plan, [0.5, 1, 2])])
    [(0.5, '1.9e-03'), (1.0, '1.0e-06'), (2.0, '1.0e-06')]

    Args:
        plan: The plan.
        epsilons: Where to compute δ.
    """
    return [(float(epsilon), delta_at(plan, epsilon)) for epsilon in epsilons]


def profile_of(*, epsilons: Iterable[float], deltas: Iterable[float], **noise: Any) -> list[tuple[float, float]]:
    """The privacy profile of given noise, with the options of `certify`: (epsilon, delta) pairs, by epsilon.

    Epsilon is infinite for a delta that no epsilon reaches.
    """
    given = given_noise(**noise)
    pairs = [(float(epsilon), delta_at(given, epsilon)) for epsilon in epsilons]
    for delta in deltas:
        try:
            pairs.append((epsilon_at(given, delta), float(delta)))
        except NotPrivate:
            pairs.append((math.inf, float(delta)))
    if not pairs:
        raise InvalidParameter("a privacy profile needs at least one <--epsilon> or <--delta>")
    return sorted(pairs)
