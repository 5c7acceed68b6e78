"""Adaptive normal shifts: their divergence, and what other releases cost in their terms.

Several releases are together at most as far apart as one normal law moved by the root of their squared moves, in
deviations, however each was chosen from the results before it. Proof: docs/theory/accounting.md.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from flint import arb
from scipy import special

from dphist.proof import balls
from dphist.proof.balls import hockey_stick_normal, normal_cdf, rational, theta_excess

_BITS = 256
# More than the relative error of the first guess.
_HAIR = 1e-14


def delta_of_squared_move(squared: Fraction, *, epsilon: float) -> float:
    """delta of normal noise moved by mu = sqrt(squared) deviations, in one step or in many that adapt.

        Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)

    Guarantee: an upper bound in ball arithmetic, for the exact rational.
    Valid for: squared >= 0, epsilon >= 0.
    Source: Balle and Wang 2018; beyond the paper for adaptive steps.
    """
    if squared <= 0:
        return 0.0
    with balls.precision(_BITS):
        return min(1.0, max(0.0, balls.upper(hockey_stick_normal(rational(squared).sqrt(), arb(epsilon)))))


@lru_cache(maxsize=256)
def largest_squared_move(epsilon: float, delta: float) -> float:
    """About the largest squared move whose delta at this epsilon is at most `delta`.

    Guarantee: the certified delta of the result is at most `delta`; a result 1e-12 larger, relatively, exceeds it.
    Source: the inverse of `delta_of_squared_move`.
    """

    def fits(squared: float) -> bool:
        return delta_of_squared_move(Fraction(squared), epsilon=epsilon) <= delta

    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 4.0 * high
    while high - low > 1e-12 * high and high > 1e-300:
        # From above by the geometric mean: the result may be tiny.
        middle = math.sqrt(low * high) if low > 0.0 else high / 1024.0
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def squared_move_of_pure(epsilon: Fraction) -> Fraction:
    """The squared move of normal noise whose sign is randomised response at epsilon.

        (2 z)^2,  Phi(z) = e^epsilon/(1 + e^epsilon)

    Every epsilon-private release is a function of such a response, so this is its cost among normal moves.

    Guarantee: an upper bound in ball arithmetic, at most 1e-12 above, relatively.
    Valid for: epsilon >= 0.
    Source: Kairouz, Oh and Viswanath 2015; beyond the paper.
    """
    if epsilon <= 0:
        return Fraction(0)
    with balls.precision(_BITS):
        wrong = 1 / (1 + rational(epsilon).exp())
        # Of 1/2 - wrong, which is exact where epsilon is tiny, or of the logarithm where wrong is.
        gap = float((arb(0.5) - wrong).mid())
        guess = math.sqrt(2.0) * float(special.erfinv(2.0 * gap))
        if gap > 0.25:
            guess = -float(special.ndtri_exp(float(wrong.log().mid())))
        move, hair = guess, _HAIR
        while not normal_cdf(arb(-move)) <= wrong:
            move, hair = guess * (1.0 + hair), 2.0 * hair
        return 4 * Fraction(move) ** 2


def rounding_loss(variance: Fraction) -> float:
    """The loss of treating this part of a discrete Gaussian's variance as rounding of normal noise.

        ln((1 + theta)/(1 - theta)),  theta = 2 e^(-2 pi^2 v) + 2 e^(-8 pi^2 v) + ...

    A draw N_Z(V) around an integer is at least e^(-loss) times normal noise of variance V - v that is rounded by a
    random rule, which does not depend on the integer.

    Guarantee: an upper bound in ball arithmetic, for every V > v.
    Valid for: v >= 1/4.
    Source: beyond the paper, after the convolution theorem of Peikert 2010.
    """
    with balls.precision(_BITS):
        excess = theta_excess(rational(variance))
        return balls.upper((2 * excess / (1 - excess)).log1p())
