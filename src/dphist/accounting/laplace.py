"""The whole profile of the discrete Laplace histogram: below m/scale, where its certificate says nothing."""

from __future__ import annotations

from fractions import Fraction

from flint import arb, fmpq

from dphist.numerics import balls

# Beyond, randomised response at m/scale says almost the same.
MOST_ITEMS = 512


def delta_laplace_upper(scale: Fraction, limit: int, items: int, *, epsilon: float) -> float:
    """delta of the discrete Laplace stability histogram at any epsilon.

        max over r <= m of  g(r) + (1 - g(r)) H(m - r),    g(r) = 1 - (1 - p)^r,
        H(s) = sum over l of binom(s, l) a^l (1 - a)^(s-l) (1 - e^(epsilon - (2l - s)/scale))_+

    a = 1/(1 + e^(-1/scale)), and p is the probability that a new count passes. A count moved by one has the loss
    +1/scale or -1/scale and no other, so that s of them are a binomial. With r new counts, adding a user gives
    g + integral of ((1-g) P - e^epsilon Q)_+, and removing one
    Q - e^epsilon (1-g) P = (1-g)(Q - e^epsilon P) + g Q. Both are at most g + (1-g) H.

    Guarantee: an upper bound in ball arithmetic, exact up to rounding where r = 0 or r = m is the worst.
    Valid for: epsilon >= 0, 1 <= items <= `MOST_ITEMS`.
    Source: beyond the paper.
    """
    with balls.precision(256):
        rate = arb(fmpq(scale.denominator, scale.numerator))
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
