"""The Gaussian filter of docs/theory/accounting.md, from its proof alone.

Divergences of normal laws by quadrature, moves as Mahalanobis distances, and the best strategy of an analyst who
sees every result before the next choice, outcome by outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from mpmath import mp, mpf

from oracles_accounting import FloatArray, Pair, discrete_gaussian

_DIGITS = 60


def _mpf(value: Fraction | float) -> mpf:
    exact = Fraction(value)
    return mpf(exact.numerator) / exact.denominator


def gaussian_delta(squared: Fraction | float, epsilon: float) -> mpf:
    """The integral of (p - e^epsilon q)^+, where p is q, the standard normal law, moved by sqrt(squared)."""
    with mp.workdps(_DIGITS):
        move, loss = mp.sqrt(_mpf(squared)), _mpf(epsilon)
        if not move:
            return mpf(0)
        start = move / 2 + loss / move

        def excess(x: mpf) -> mpf:
            return mp.npdf(x - move) - mp.exp(loss) * mp.npdf(x)

        # Far out the density falls within 1/start; the mean of p may be far above.
        unit = 1 / max(mpf(1), start)
        places = [start + unit * step for step in (0, 0.25, 1, 2, 4, 8, 16, 40, 80)]
        places += [place for step in (-8, -2, 0, 2, 8, 16) if (place := move + step) > start]
        return mp.quad(excess, sorted(places))


def largest_squared(epsilon: float, delta: float) -> mpf:
    """The squared move whose divergence is delta, by bisection."""
    with mp.workdps(_DIGITS):
        low, high = mpf(0), mpf(1)
        while mp.fabs(gaussian_delta_of_move(mp.sqrt(high), epsilon)) < _mpf(delta):
            high *= 2
        for _ in range(200):
            middle = (low + high) / 2
            below = gaussian_delta_of_move(mp.sqrt(middle), epsilon) < _mpf(delta)
            low, high = (middle, high) if below else (low, middle)
        return low


def gaussian_delta_of_move(move: mpf, epsilon: float) -> mpf:
    """Balle and Wang 2018; `gaussian_delta` computes the same without their formula."""
    loss = _mpf(epsilon)
    return mp.ncdf(move / 2 - loss / move) - mp.exp(loss) * mp.ncdf(-move / 2 - loss / move)


def pure_squared(epsilon: Fraction | float) -> mpf:
    """(2 z)^2 with Phi(z) = e^epsilon/(1 + e^epsilon): whose sign is randomised response at epsilon."""
    with mp.workdps(_DIGITS):
        wrong = 1 / (1 + mp.exp(_mpf(epsilon)))
        low, high = mpf(0), mpf(1)
        while mp.ncdf(-high) > wrong:
            high *= 2
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if mp.ncdf(-middle) > wrong else (low, middle)
        return (2 * low) ** 2


def theta(variance: Fraction) -> mpf:
    """2 sum over k of e^(-2 pi^2 k^2 V)."""
    with mp.workdps(_DIGITS):
        return 2 * mp.fsum(mp.exp(-2 * (mp.pi * k) ** 2 * _mpf(variance)) for k in range(1, 40))


def rounding_loss(variance: Fraction) -> mpf:
    """ln((1 + theta)/(1 - theta)): what one draw costs if this part of its variance is rounding."""
    with mp.workdps(_DIGITS):
        off = theta(variance)
        return mp.log1p(2 * off / (1 - off))


@dataclass(frozen=True)
class Law:
    """Noise in steps, with `step` of them per count: own variances, that of the shared draw, and sums.

    Each of the `sums` is (reach, variance). With `offset` the subtracted count is released too: "opposite" or
    "independent", see docs/theory/top-k.md.
    """

    step: int
    own: Fraction
    shared: Fraction = Fraction(0)
    sums: tuple[tuple[int, Fraction], ...] = ()
    offset: str = "none"

    def less(self, share: Fraction) -> Law:
        """Every variance reduced by this share."""
        rest = 1 - share
        sums = tuple((reach, variance * rest) for reach, variance in self.sums)
        return Law(self.step, self.own * rest, self.shared * rest, sums, self.offset)


def squared_distance(law: Law, changed: int, still: int, raised: int = 0) -> Fraction:
    """The squared Mahalanobis distance between the outputs of neighbours, as normal laws, exactly.

    `changed` counts move by one and `still` do not, all in the same direction; `raised` is 1 if the subtracted
    count moves by one the other way. The outputs are count + own + shared noise, and the subtracted count with its
    own noise, of the variance of the shared draw, less the shared draw if the offset is "opposite".
    """
    b, n = law.step, changed + still
    sums = changed * sum((Fraction(reach**2) / variance for reach, variance in law.sums), Fraction(0))
    if not law.shared:
        return changed * b**2 / law.own + sums
    # With the shared draw moved by c the rest is independent: the least over real c is the distance.
    weight = n / law.own + 1 / law.shared
    linear = Fraction(changed * b) / law.own
    constant = Fraction(changed * b**2) / law.own
    if law.offset == "opposite":
        # c~ = count + Z - W: its own draw moves by -raised b + c.
        weight += 1 / law.shared
        linear += Fraction(raised * b) / law.shared
    if law.offset != "none":
        constant += Fraction((raised * b) ** 2) / law.shared
    return constant - linear**2 / weight + sums


def law_of_release(law: Law, limit: int, *, changed: int, new: int) -> Pair:
    """Exact laws of one changed count (or none), and of new counts that all have to stay at most the limit.

    The last outcome is that a new count is shown, which happens with the user only.
    """
    reach = math.ceil(13 * math.sqrt(law.own)) + law.step
    own = discrete_gaussian(law.own, reach)
    wide = math.ceil(13 * math.sqrt(law.shared)) if law.shared else 0
    common = discrete_gaussian(law.shared, wide) if law.shared else np.ones(1)
    below = np.concatenate([[0.0], np.cumsum(own)])
    at = np.clip(limit - np.arange(-wide, wide + 1) + reach + 1, 0, own.size)
    hidden = below[at] ** new
    shown = float((common * (1.0 - hidden)).sum())
    if not changed:
        return Pair(np.array([1.0 - shown, shown]), np.array([1.0, 0.0]))
    assert changed == 1
    padding = np.zeros(law.step)
    first = np.concatenate([padding, np.convolve(own, common * hidden)])
    second = np.concatenate([np.convolve(own, common), padding])
    return Pair(np.append(first, shown), np.append(second, 0.0))


@dataclass(frozen=True)
class Offer:
    """A release that the analyst may choose, for one pair of neighbours, and what is booked for it."""

    pair: Pair
    squared: Fraction
    event: Fraction


def worst_strategy(
    offers: Sequence[Offer], squared: Fraction, event: Fraction, *, epsilon: float, rounds: int
) -> float:
    """The largest divergence, of both orders, that an analyst can reach within the limits in so many releases.

    After every outcome the analyst takes whichever release fits the limits and gains most, or stops.
    """
    backwards = [Offer(Pair(one.pair.second, one.pair.first), one.squared, one.event) for one in offers]
    one = np.ones(1)
    return max(
        float(_best(kind, squared, event, one, one * math.exp(epsilon), rounds)[0]) for kind in (offers, backwards)
    )


def _best(
    offers: Sequence[Offer], squared: Fraction, event: Fraction, p: FloatArray, q: FloatArray, rounds: int
) -> FloatArray:
    """By history: the best sum of (P - e^epsilon Q)^+ from here on; q includes e^epsilon."""
    best = np.maximum(p - q, 0.0)
    if not rounds:
        return best
    for offer in offers:
        if offer.squared <= squared and offer.event <= event:
            first, second = (np.outer(p, offer.pair.first), np.outer(q, offer.pair.second))
            rest = squared - offer.squared, event - offer.event
            after = _best(offers, *rest, first.ravel(), second.ravel(), rounds - 1)
            best = np.maximum(best, after.reshape(first.shape).sum(axis=1))
    return best
