"""Independent oracles for discrete Gaussian noise: the law itself, the paper's zCDP route, exact divergences.

Everything is in lattice units here: with noise in steps of 1/lattice, a count that moves by one moves by
``lattice`` steps, and a new count (true value one) passes iff Z_i + Z_shared > limit = lattice tau. The law of
variance parameter v gives every integer x the weight exp(-x^2/(2 v)); v is not quite its variance for small v.
Labels such as ``lem:discrete-upperbounddeltainf`` are those of the paper "The Correlated Gaussian Sparse
Histogram Mechanism". Sums are brute force, with the neglected part stated beside each.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import count as integers_from

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

from oracles import DPS, Real, real

Long = NDArray[np.longdouble]

GUARD = 30
"""Extra digits: n steps of a recurrence lose about n^2 units in the last place, and n stays below 10^8."""
SUMMED = mpf("1e6")
"""Up to this variance parameter everything is summed term by term; beyond it, Poisson and Euler-Maclaurin."""
DIGITS_SUMMED = 70
"""Weights below 10^-70 of the largest are left out of sums."""
MASS_LEFT_OUT = mpf("1e-26")
"""Per truncated law in delta_discrete_case: the probability beyond its box."""


def reach_of(variance: Real) -> int:
    """An n with exp(-n^2/(2 variance)) < 10^-DIGITS_SUMMED."""
    return int(mp.ceil(mp.sqrt(2 * real(variance) * DIGITS_SUMMED * mp.log(10)))) + 1


def floor_of(x: mpf) -> int:
    """The integer part of a computed number: within 10^-40 of an integer it is taken for that integer."""
    nearest = mp.nint(x)
    return int(nearest if abs(x - nearest) <= mpf("1e-40") * max(abs(x), 1) else mp.floor(x))


def weights_from(start: int, variance: Real) -> Iterator[mpf]:
    """exp(-x^2/(2 variance)) for x = start, start + 1, ..., each from the one before by its ratio."""
    v = real(variance)
    weight, ratio, step = (
        mp.exp(-(mpf(start) ** 2) / (2 * v)),
        mp.exp(-(2 * mpf(start) + 1) / (2 * v)),
        mp.exp(-1 / v),
    )
    while True:
        yield weight
        weight, ratio = weight * ratio, ratio * step


def normaliser_summed(variance: Real) -> mpf:
    """The sum of all weights, term by term; what is left out is below 10^-65 of it for sigma < 10^4."""
    terms = weights_from(1, variance)
    return 1 + 2 * mp.fsum(next(terms) for _ in range(reach_of(variance)))


def normaliser_poisson(variance: Real) -> mpf:
    """The same by Poisson summation: sqrt(2 pi v) (1 + 2 sum over m >= 1 of exp(-2 pi^2 v m^2))."""
    v = real(variance)
    total, m = mpf(1), 1
    while (term := 2 * mp.exp(-2 * mp.pi**2 * v * m**2)) > mp.eps / 10:
        total, m = total + term, m + 1
    return mp.sqrt(2 * mp.pi * v) * total


@cache
def _normaliser(variance: mpf) -> mpf:
    """By the method for this variance, to DPS + GUARD digits whatever the caller's precision."""
    with mp.workdps(DPS + GUARD):
        return normaliser_summed(variance) if variance <= SUMMED else normaliser_poisson(variance)


def upper_sum_brute(n: int, variance: Real) -> mpf:
    """The sum of the weights of n, n + 1, ... for n >= 1, until they are 10^-70 of the first and beyond."""
    weights, total = weights_from(n, variance), mpf(0)
    term = next(weights)
    least = term * mpf(10) ** -DIGITS_SUMMED
    while term > least:
        total, term = total + term, next(weights)
    return total


def upper_sum_euler_maclaurin(n: int, variance: Real) -> mpf:
    """The same for large variances and n <= variance/10.

    The integral from n plus f(n)/2 minus the sum over m of B_2m/(2m)! f^(2m-1)(n), where
    f^(d)(n) = (-1)^d v^(-d/2) He_d(n/sqrt v) f(n). The terms fall like (n/(2 pi v))^(2m) at first; the last one
    used bounds the order of the error, and the sum gives up if they grow before 10^-60 is reached.
    """
    v = real(variance)
    root = mp.sqrt(v)
    z = n / root
    value = mp.exp(-(z**2) / 2)
    total = mp.sqrt(mp.pi * v / 2) * mp.erfc(z / mp.sqrt(2)) + value / 2
    before, hermite, scale = mpf(1), z, 1 / root
    for m in range(1, 60):
        term = mp.bernoulli(2 * m) / mp.factorial(2 * m) * scale * hermite * value
        total += term
        if abs(scale * hermite * value) < mpf("1e-60") * total and abs(term) < mpf("1e-65") * total:
            return total
        for degree in (2 * m - 1, 2 * m):
            before, hermite, scale = hermite, z * hermite - degree * before, scale / root
    raise ArithmeticError("the Euler-Maclaurin series did not settle")


@cache
def discrete_gaussian_pmf(*, x: int, variance: Real) -> mpf:
    """exp(-x^2/(2 variance)) / sum over y of exp(-y^2/(2 variance)) (def:discrete-distribution-gaussian)."""
    with mp.workdps(DPS + GUARD):
        v = real(variance)
        return mp.exp(-(mpf(x) ** 2) / (2 * v)) / _normaliser(v)


@cache
def discrete_gaussian_tail(*, n: int, variance: Real) -> mpf:
    """Pr[X >= n], to relative precision for n > 0; for n <= 0 it is 1 - Pr[X >= 1 - n] by symmetry."""
    with mp.workdps(DPS + GUARD):
        v = real(variance)
        if n <= 0:
            return 1 - discrete_gaussian_tail(n=1 - n, variance=v)
        brute = v <= SUMMED or n > v / 10
        upper = upper_sum_brute(n, v) if brute else upper_sum_euler_maclaurin(n, v)
        return upper / _normaliser(v)


def some_of_tail(count: int, tail: Real) -> mpf:
    """1 - (1 - tail)^count without cancellation."""
    if count == 0:
        return mpf(0)
    return mpf(1) if tail >= 1 else -mp.expm1(count * mp.log1p(-tail))


@cache
def infinite_event_discrete(*, count: int, variance: Real, variance_shared: Real, limit: Real) -> mpf:
    """Pr[some Z_i + Z_shared > limit, i <= count] = sum over w of Pr[Z_shared = w] (1 - Pr[Z <= limit - w]^count).

    The second factor increases with w, so that the terms below -reach_of(variance_shared) are together less
    than 10^-65 of the rest. The terms are log-concave in w (the law of w is, and so is the survival function of a
    maximum of log-concave variables), so that they have one peak and may be left at 10^-60 of it beyond. The tail
    Pr[Z > limit - w] grows with w by positive terms, without cancellation.
    """
    with mp.workdps(DPS + GUARD):
        v, shared, top = real(variance), real(variance_shared), floor_of(real(limit))
        if count == 0 or shared == 0:
            return some_of_tail(count, discrete_gaussian_tail(n=top + 1, variance=v))
        low = -reach_of(shared)
        tail = discrete_gaussian_tail(n=top - low + 1, variance=v)
        total, peak, last, whole = mpf(0), mpf(0), mpf(0), _normaliser(v)
        steps = zip(integers_from(low), weights_from(low, shared), weights_from(low - top, v), strict=False)
        for w, weight, next_weight in steps:
            term = weight * some_of_tail(count, tail)
            total, peak = total + term, max(peak, term)
            if w > 0 and term < last and term < peak * mpf("1e-60"):
                break
            last, tail = term, tail + next_weight / whole
        return total / _normaliser(shared)


def infinite_event_discrete_upper(*, k: int, sigma: Real, tau: Real) -> mpf:
    """lem:discrete-upperbounddeltainf, in units of half counts:

    1 - Pr[N(0, 4 sigma^2/sqrt k) <= 2 tau k^(-1/4)/(k^(-1/4) + 1)] Pr[N(0, 4 sigma^2) <= 2 tau/(k^(-1/4) + 1)]^k.
    Both fractions are written with k^(1/4), which is exact for fourth powers.
    """
    with mp.workdps(DPS + GUARD):
        root, variance, double = mp.root(k, 4), 4 * real(sigma) ** 2, 2 * real(tau)
        shared = discrete_gaussian_tail(n=floor_of(double / (1 + root)) + 1, variance=variance / mp.sqrt(k))
        single = discrete_gaussian_tail(n=floor_of(double * root / (1 + root)) + 1, variance=variance)
        return -mp.expm1(mp.log1p(-shared) + k * mp.log1p(-single))


def rho_discrete_correlated_gaussian(*, k: int, sigma: Real) -> mpf:
    """lem:discrete-cor-privacy: rho = (k + sqrt k)/(8 sigma^2)."""
    with mp.workdps(DPS):
        return (k + mp.sqrt(k)) / (8 * real(sigma) ** 2)


def delta_zcdp_loose(*, rho: Real, epsilon: Real) -> mpf:
    """lem:zCDP-implies-approx-DP solved for delta: exp(-(epsilon - rho)^2/(4 rho)), and 1 for epsilon <= rho."""
    with mp.workdps(DPS):
        r, eps = real(rho), real(epsilon)
        return mpf(1) if eps <= r else mp.exp(-((eps - r) ** 2) / (4 * r))


def delta_zcdp(*, rho: Real, epsilon: Real) -> mpf:
    """inf over alpha > 1 of exp((alpha-1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha/(alpha - 1), at most 1.

    (Canonne, Kamath, Steinke.) With t = alpha - 1 the logarithm is t((t+1) rho - epsilon) + t ln t -
    (t+1) ln(t+1). Its derivative (2t+1) rho - epsilon - ln(1 + 1/t) increases from -infinity to infinity, so
    the minimum is its only zero, found by bisection of ln t to full precision.
    """
    with mp.workdps(DPS + GUARD):
        r, eps = real(rho), real(epsilon)
        if r == 0 and eps >= 0:
            return mpf(0)

        def slope(t: mpf) -> mpf:
            return (2 * t + 1) * r - eps - mp.log1p(1 / t)

        low, high = mpf(1), mpf(1)
        while slope(low) > 0:
            low /= 2
        while slope(high) < 0:
            high *= 2
        for _ in range(140):  # the error of the value is the square of this one's
            middle = mp.sqrt(low * high)
            low, high = (middle, high) if slope(middle) < 0 else (low, middle)
        exponent = low * ((low + 1) * r - eps) - low * mp.log1p(1 / low) - mp.log1p(low)
        return min(mp.exp(exponent), mpf(1))


def delta_discrete_csh(*, k: int, sigma: Real, tau: Real, epsilon: Real, tight: bool) -> mpf:
    """theorem:discrete-cor-GSHM: the delta of zCDP plus the split bound. It may exceed 1, as printed."""
    with mp.workdps(DPS):
        rho = rho_discrete_correlated_gaussian(k=k, sigma=sigma)
        convert = delta_zcdp if tight else delta_zcdp_loose
        return convert(rho=rho, epsilon=epsilon) + infinite_event_discrete_upper(k=k, sigma=sigma, tau=tau)


def delta_discrete_shift(*, variance: Real, shift: int, epsilon: Real) -> mpf:
    """Sum over x of (Pr[X + shift = x] - e^epsilon Pr[X = x])_+, the same for -shift by symmetry.

    The first law wins where x > variance epsilon/shift + shift/2 and the gain has one peak there; the sum starts
    before that point (or 10^-70 of the mass to the left of everything) and ends at 10^-60 of the peak.
    """
    with mp.workdps(DPS + GUARD):
        v, eps, step = real(variance), real(epsilon), abs(shift)
        factor = mp.exp(eps)
        if step == 0:
            return max(1 - factor, mpf(0))
        crossing = int(mp.floor(v * eps / step + mpf(step) / 2)) - 1
        start = max(crossing, -reach_of(v))
        total, peak, last = mpf(0), mpf(0), mpf(0)
        pairs = zip(integers_from(start), weights_from(start - step, v), weights_from(start, v), strict=False)
        for x, moved, still in pairs:
            gain = max(moved - factor * still, mpf(0))
            total, peak = total + gain, max(peak, gain)
            if x > max(crossing + 2, step) and gain < last and gain < peak * mpf("1e-60"):
                break
            last = gain
        return total / _normaliser(v)


def to_long(value: mpf) -> np.longdouble:
    """The nearest long double."""
    return np.longdouble(mp.nstr(value, 25))


def box_of(variance: Real) -> int:
    """R with Pr[|X| > R] <= MASS_LEFT_OUT, also for sums: 2 exp(-R^2/(2 v)), v the sum of the parameters.

    (Discrete Gaussians have moment generating functions at most those of the normal laws.)
    """
    return int(mp.ceil(mp.sqrt(2 * real(variance) * mp.log(2 / MASS_LEFT_OUT))))


@cache
def law_of_sum(terms: int, variance: mpf) -> Long:
    """Pr[X_1 + ... + X_terms = n] for n = -R..R, R = box_of(terms variance), by convolution of the exact masses.

    Nothing but positive numbers is added: the relative error is a few hundred units of 2^-64 at most, apart from
    the mass left out of each factor, MASS_LEFT_OUT apiece.
    """
    law: Long = np.ones(1, dtype=np.longdouble)
    if terms == 0:
        return law
    box = box_of(variance)
    side = [to_long(discrete_gaussian_pmf(x=n, variance=variance)) for n in range(box + 1)]
    single: Long = np.array(side[:0:-1] + side, dtype=np.longdouble)
    for n in range(1, terms + 1):
        law = np.convolve(law, single)
        excess = (len(law) - 1) // 2 - box_of(n * variance)
        law = law[excess : len(law) - excess] if excess > 0 else law
    return law


@lru_cache(maxsize=64)
def _law_of_sums(*, s: int, u: int, r: int, variance: mpf, shared: mpf, limit: int) -> Long:
    """Joint masses of (sum of s noisy counts, sum of u others) and "none of r new counts passes".

    Given the shared noise w the two sums are independent, moved by s w and u w, and each new count stays below
    with probability Pr[Z <= limit - w]. The array is centred at (0, 0).
    """
    box = box_of(shared) if shared > 0 else 0
    block = np.outer(law_of_sum(s, variance), law_of_sum(u, variance))
    rows, columns = block.shape
    joint: Long = np.zeros((rows + 2 * s * box, columns + 2 * u * box), dtype=np.longdouble)
    for w in range(-box, box + 1):
        mass = discrete_gaussian_pmf(x=w, variance=shared) if shared > 0 else mpf(1)
        passes = discrete_gaussian_tail(n=limit - w + 1, variance=variance) if r > 0 else mpf(0)
        top, left = s * (w + box), u * (w + box)
        joint[top : top + rows, left : left + columns] += to_long(mass * (1 - passes) ** r) * block
    return joint


def delta_discrete_case(
    *,
    j: int,
    r: int,
    s: int,
    lattice: int,
    variance: Real,
    variance_shared: Real,
    limit: Real,
    epsilon: Real,
    direction: str,
) -> mpf:
    """Exact divergence for neighbours with j shared counts, s of them larger by `lattice` in H, and r new ones.

    With y the noisy shared counts minus those of H: pg(y) = sum over w of Ps(w) prod P(y_i - w) F(limit - w)^r,
    and q(y) = sum over w of Ps(w) prod P(y_i + lattice v_i - w), v having s ones. Expanding the squares,
    both are exp(-sum y_i^2/(2 variance)) times functions of A = sum over the changed and B = sum over the others,
    so that pg/q depends on (A, B) only and nothing is lost by summing over the lattice of (A, B):
        add    Pr[some passes] + sum (pg - e^epsilon q)_+        remove  sum (q - e^epsilon pg)_+

    The masses carry relative errors of about 1e-17 and the boxes leave out less than
    (j + 3) 1e-26 (1 + e^epsilon): the absolute error is below 1e-16 (Pr[positive part] + 1e-9), hence 1e-10
    relative for results from 1e-6 on.
    """
    if direction not in ("add", "remove") or not 0 <= s <= j or r < 0 or lattice < 1:
        raise ValueError("no such case")
    with mp.workdps(DPS):
        v, shared, eps = real(variance), real(variance_shared), real(epsilon)
        top = floor_of(real(limit))
        with_user = _law_of_sums(s=s, u=j - s, r=r, variance=v, shared=shared, limit=top)
        without = _law_of_sums(s=s, u=j - s, r=0, variance=v, shared=shared, limit=top)
        gap: Long = np.zeros((s * lattice, with_user.shape[1]), dtype=np.longdouble)
        p, q = np.concatenate((gap, with_user)), np.concatenate((without, gap))  # q is s lattice rows lower
        factor = to_long(mp.exp(eps))
        gains = p - factor * q if direction == "add" else q - factor * p
        total = np.sum(np.maximum(gains, 0))
        head = float(total)
        event = infinite_event_discrete(count=r, variance=v, variance_shared=shared, limit=top)
        return mpf(head) + mpf(float(total - head)) + (event if direction == "add" else 0)
