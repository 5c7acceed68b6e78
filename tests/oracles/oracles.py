"""Independent high-precision oracles: closed forms of the paper, the infinite event, Laplace histograms.

Everything here is derived from the definitions and computed with mpmath and Arb's erfc, for clarity and not for
speed. Mixed neighbours are in ``oracles_family``. Labels such as ``lem:related-GSHM`` are those
of the paper "The Correlated Gaussian Sparse Histogram Mechanism".

Conventions: noisy_i = H_i + Z_i + Z_shared for H_i > 0, released iff noisy_i > 1 + tau (strict);
Z_i ~ N(0, sigma^2) independent, Z_shared ~ N(0, sigma_shared^2) drawn once; gamma = sigma^2/sigma_shared^2.
The hockey-stick divergence of P from Q at e^epsilon is the integral of (dP - e^epsilon dQ)_+, epsilon real.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, TypeAlias

from flint import arb, ctx
from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre

Real: TypeAlias = Any
"""An int, float, Fraction or mpf."""

DPS = 50
"""Working precision in decimal digits."""
NEGLIGIBLE = mpf("1e-26")
"""An integrand below this fraction of its peak is left out."""
CONVERGED = mpf("1e-13")
"""Two trapezoidal sums this close end the refinement; the finer one is then off by about its square."""
MAX_NODES = 200_000
MAX_PANELS = 5_000
"""Where a refinement gives up (with an error)."""


def real(value: Real) -> mpf:
    """The number exactly as given (a float is taken as the binary fraction that it is)."""
    if isinstance(value, Fraction):
        return mpf(value.numerator) / value.denominator
    return mpf(value)


def to_ball(x: mpf) -> arb:
    """The same number for Arb, which is ten times as fast as mpmath."""
    sign, mantissa, exponent, _ = x._mpf_
    return arb(-int(mantissa) if sign else int(mantissa)) * arb(2) ** exponent


def from_ball(x: arb) -> mpf:
    """The middle of a ball, rounded to the digits that are set."""
    mantissa, exponent = x.mid().man_exp()
    return mp.ldexp(mpf(int(mantissa)), int(exponent))


def normal_cdf(x: Real) -> mpf:
    """Phi(x) by erfc, so that the left tail keeps its relative precision.

    Arb's erfc, which a test compares with that of mpmath.
    """
    if mp.isinf(x):
        return mpf(x > 0)
    with ctx.workprec(mp.prec + 20):
        return from_ball((-to_ball(real(x)) / arb(2).sqrt()).erfc() / 2)


def normal_density(x: Real) -> mpf:
    """exp(-x^2/2) / sqrt(2 pi)."""
    return mp.exp(-(x**2) / 2) / mp.sqrt(2 * mp.pi)


def log_normal_cdf(x: Real) -> mpf:
    """ln Phi(x), precise in both tails: ln(1 - Phi(-x)) is taken by log1p for x > 0."""
    if mp.isinf(x):
        return mpf(0) if x > 0 else mpf(x)
    with ctx.workprec(mp.prec + 20):
        tail = (to_ball(abs(real(x))) / arb(2).sqrt()).erfc() / 2
        return from_ball((-tail).log1p() if x > 0 else tail.log())


def some_of(count: int, x: Real) -> mpf:
    """1 - Phi(x)^count, that one of `count` standard normals exceeds x, without cancellation."""
    return mpf(0) if count == 0 else -mp.expm1(count * log_normal_cdf(x))


def normal_upper_quantile(tail: Real) -> mpf:
    """The x with 1 - Phi(x) = tail: bisection of ln Phi(-x), which is decreasing, then three Newton steps."""
    target, low, high = mp.log(real(tail)), mpf(-1), mpf(1)
    while mp.log(normal_cdf(-low)) < target:
        low *= 2
    while mp.log(normal_cdf(-high)) > target:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mp.log(normal_cdf(-middle)) > target else (low, middle)
    x = (low + high) / 2
    for _ in range(3):
        x += (mp.log(normal_cdf(-x)) - target) * normal_cdf(-x) / normal_density(x)
    return x


def real_line_integral(f: Callable[[Any], Any], *, low: Real, high: Real, step: Real) -> mpf:
    """Integral over R of a smooth non-negative f by the trapezoidal rule, halving the step until it settles.

    [low, high] is always covered, and is extended on each side until f has decreased below NEGLIGIBLE times
    its peak: with one peak beyond [low, high] at most, nothing is missed. For analytic integrands with
    Gaussian tails the rule converges at least like exp(-c/step): halving the step squares the error.
    """
    start = real(low)
    values = [f(start + n * step) for n in range(int(mp.ceil((high - low) / step)) + 1)]
    peak = max(values)
    while values[-1] > NEGLIGIBLE * peak or values[-1] > values[-2]:
        values.append(f(start + len(values) * step))
        peak = max(peak, values[-1])
    left: list[mpf] = [values[1], values[0]]
    while left[-1] > NEGLIGIBLE * peak or left[-1] > left[-2]:
        left.append(f(start - (len(left) - 1) * step))
        peak = max(peak, left[-1])
    start -= (len(left) - 2) * step
    cells = len(values) + len(left) - 3
    total = step * (mp.fsum(values) + mp.fsum(left[2:]))
    while cells < MAX_NODES:
        middles = mp.fsum(f(start + (n + mpf(1) / 2) * step) for n in range(cells))
        refined = (total + step * middles) / 2
        if abs(refined - total) <= CONVERGED * abs(refined):
            return refined
        total, step, cells = refined, step / 2, 2 * cells
    raise ArithmeticError("the trapezoidal rule did not settle")


@cache
def gauss_legendre_of(degree: int) -> list[tuple[mpf, mpf]]:
    """The nodes and weights of mpmath's rule with 3 2^(degree-1) points on [-1, 1], to 70 digits."""
    nodes: list[tuple[mpf, mpf]] = GaussLegendre(mp).calc_nodes(degree, 240)
    return nodes


def _panel(f: Callable[[Any], Any], low: Real, high: Real) -> mpf:
    """Gauss-Legendre on one panel."""
    half, middle = (high - low) / 2, (high + low) / 2
    return half * mp.fsum(w * f(middle + half * x) for x, w in gauss_legendre_of(4))


def adaptive_integral(f: Callable[[Any], Any], *, low: Real, high: Real, width: Real) -> mpf:
    """Integral over R of a continuous f >= 0 that may turn sharply: panels are halved where they disagree.

    [low, high] is always covered, and extended by panels of the given width as in real_line_integral. A
    panel is accepted when it and the sum of its halves agree to CONVERGED of the whole integral, and the
    halves are used: where f is smooth they are off by about 2^-48 of that difference.
    """
    count = int(mp.ceil((high - low) / width))
    panels = [(low + n * width, low + (n + 1) * width) for n in range(count)]
    found = [(a, b, _panel(f, a, b)) for a, b in panels]
    for sign in (1, -1):
        edge, last = (panels[-1][1], found[-1][2]) if sign > 0 else (panels[0][0], found[0][2])
        while last > NEGLIGIBLE * max(v for _, _, v in found):
            a, b = sorted((edge, edge + sign * width))
            edge, last = edge + sign * width, _panel(f, a, b)
            found.append((a, b, last))
    scale, total = mp.fsum(v for _, _, v in found), mpf(0)
    for _ in range(MAX_PANELS):
        if not found:
            return total
        a, b, whole = found.pop()
        middle = (a + b) / 2
        left, right = _panel(f, a, middle), _panel(f, middle, b)
        if abs(left + right - whole) <= CONVERGED * scale:
            total += left + right
        else:
            found += [(a, middle, left), (middle, b, right)]
    raise ArithmeticError("the adaptive quadrature did not settle")


def hockey_stick_scaled(*, a: Real, b: Real, mu: Real) -> mpf:
    """Integral of (a N(mu, 1) - b N(0, 1))_+ for weights a, b >= 0 and mu >= 0.

    For mu > 0 the first density wins where x > mu/2 - ln(a/b)/mu, hence
    a Phi(mu/2 + ln(a/b)/mu) - b Phi(-mu/2 + ln(a/b)/mu).
    """
    if a == 0:
        return mpf(0)
    if b == 0:
        return real(a)
    if mu == 0:
        return max(a - b, mpf(0))
    ratio = mp.log(a / b) / mu
    return max(a * normal_cdf(mu / 2 + ratio) - b * normal_cdf(-mu / 2 + ratio), mpf(0))


def delta_gaussian(*, sensitivity: Real, sigma: Real, epsilon: Real) -> mpf:
    """Hockey-stick divergence of N(D, sigma^2) from N(0, sigma^2) (lem:standard-gaussian-mechanism).

    Phi(D/(2 sigma) - epsilon sigma/D) - e^epsilon Phi(-D/(2 sigma) - epsilon sigma/D).
    """
    with mp.workdps(2 * DPS):
        mu = abs(real(sensitivity)) / real(sigma)
        return hockey_stick_scaled(a=mpf(1), b=mp.exp(real(epsilon)), mu=mu)


def delta_correlated_gaussian(*, dimension: int, gamma: Real, sigma: Real, epsilon: Real) -> mpf:
    """lem:restated-Leb24-for-approx: the Gaussian mechanism with sensitivity sqrt(dimension + gamma)/2."""
    with mp.workdps(2 * DPS):
        sensitivity = mp.sqrt(dimension + real(gamma)) / 2
        return delta_gaussian(sensitivity=sensitivity, sigma=sigma, epsilon=epsilon)


def delta_gshm_add_the_deltas(*, m: int, sigma: Real, tau: Real, epsilon: Real) -> mpf:
    """lem:related-add-the-delta: delta_gauss(sqrt m) + 1 - Phi(tau/sigma)^m."""
    with mp.workdps(DPS):
        gauss = delta_gaussian(sensitivity=mp.sqrt(m), sigma=sigma, epsilon=epsilon)
        return gauss + some_of(m, real(tau) / real(sigma))


def delta_gshm_exact(*, m: int, sigma: Real, tau: Real, epsilon: Real) -> mpf:
    """lem:related-GSHM (Wilkins et al.): j of the m counts are shared, m - j are new; all j are tried.

    With none = Phi(tau/sigma)^(m-j) the two terms are 1 - none + none delta_gauss(sqrt j, epsilon - ln
    none) and delta_gauss(sqrt j, epsilon + ln none). For j = 0 both outputs are a coin: 1 - none, and 1 -
    e^epsilon none, which is the larger for epsilon < 0 only and which the lemma (epsilon >= 0) omits.
    """
    with mp.workdps(DPS):
        x, eps = real(tau) / real(sigma), real(epsilon)
        best = max(some_of(m, x), 1 - mp.exp(eps + m * log_normal_cdf(x)))
        for j in range(1, m + 1):
            log_none = (m - j) * log_normal_cdf(x)
            root = mp.sqrt(j)
            added = delta_gaussian(sensitivity=root, sigma=sigma, epsilon=eps - log_none)
            removed = delta_gaussian(sensitivity=root, sigma=sigma, epsilon=eps + log_none)
            best = max(best, some_of(m - j, x) + mp.exp(log_none) * added, removed)
        return best


def infinite_event_upper(*, count: int, sigma: Real, sigma_shared: Real, tau: Real) -> mpf:
    """claim:upperbounddeltainf: 1 - Phi(tau/(sigma + sigma_shared))^(count + 1).

    All noises are within tau in proportion to their deviations with probability Phi(...)^(count + 1), and
    then no sum exceeds tau. The paper's sigma_shared is sigma k^(-1/4); nothing in the argument needs it.
    """
    with mp.workdps(DPS):
        return some_of(count + 1, real(tau) / (real(sigma) + real(sigma_shared)))


def infinite_event(*, count: int, sigma: Real, sigma_shared: Real, tau: Real) -> mpf:
    """Pr[some Z_i + Z_shared > tau, i <= count] = 1 - E over Z_shared of Phi((tau - Z_shared)/sigma)^count.

    The integrand density(z) (1 - Phi(...)^count) is log-concave (both factors are), so it has one peak.
    """
    with mp.workdps(DPS):
        s, shared, t = real(sigma), real(sigma_shared), real(tau)
        if count == 0 or shared == 0:
            return some_of(count, t / s)

        def integrand(z: mpf) -> mpf:
            return normal_density(z) * some_of(count, (t - shared * z) / s)

        return real_line_integral(integrand, low=mpf(-1), high=mpf(1), step=mpf(1) / 2)


def gamma_of(*, sigma: Real, sigma_shared: Real) -> mpf:
    """gamma = sigma^2/sigma_shared^2, with sigma_shared > 0."""
    if not sigma_shared > 0:
        raise ValueError("this bound needs shared noise")
    return (real(sigma) / real(sigma_shared)) ** 2


def delta_csh_add_the_deltas(*, k: int, sigma: Real, sigma_shared: Real, tau: Real, epsilon: Real) -> mpf:
    """thm:algorithm-privacy-add-the-deltas: delta_gauss(sqrt(k + gamma)/2) + the split bound for k counts."""
    with mp.workdps(DPS):
        gamma = gamma_of(sigma=sigma, sigma_shared=sigma_shared)
        gauss = delta_correlated_gaussian(dimension=k, gamma=gamma, sigma=sigma, epsilon=epsilon)
        return gauss + infinite_event_upper(count=k, sigma=sigma, sigma_shared=sigma_shared, tau=tau)


def _tau_csh(*, k: int, sigma: Real, sigma_shared: Real, delta: Real, epsilon: Real, sign: int) -> mpf:
    """(sigma + sigma_shared) Phi^-1((1 - delta + sign delta_gauss)^(1/(k+1))), infinite beyond [0, 1]."""
    with mp.workdps(2 * DPS):
        gamma = gamma_of(sigma=sigma, sigma_shared=sigma_shared)
        gauss = delta_correlated_gaussian(dimension=k, gamma=gamma, sigma=sigma, epsilon=epsilon)
        left = real(delta) - sign * gauss
        if left <= 0:
            return mp.inf
        if left >= 1:
            return -mp.inf
        tail = -mp.expm1(mp.log1p(-left) / (k + 1))
        return (real(sigma) + real(sigma_shared)) * normal_upper_quantile(tail)


def tau_csh_add_the_deltas(*, k: int, sigma: Real, sigma_shared: Real, delta: Real, epsilon: Real) -> mpf:
    """lem:computing-threshold-add-the-delta, corrected: the infinite event may take delta - delta_gauss.

    Solving 1 - Phi(x)^(k+1) = delta - delta_gauss gives Phi(x) = (1 - delta + delta_gauss)^(1/(k+1)).
    """
    return _tau_csh(k=k, sigma=sigma, sigma_shared=sigma_shared, delta=delta, epsilon=epsilon, sign=1)


def tau_csh_add_the_deltas_as_printed(
    *, k: int, sigma: Real, sigma_shared: Real, delta: Real, epsilon: Real
) -> mpf:
    """The same lemma as printed, (1 - delta - delta_gauss)^(1/(k+1)): too low a threshold, hence UNSAFE."""
    return _tau_csh(k=k, sigma=sigma, sigma_shared=sigma_shared, delta=delta, epsilon=epsilon, sign=-1)


def delta_csh_tighter(*, k: int, sigma: Real, sigma_shared: Real, tau: Real, epsilon: Real) -> mpf:
    """thm:privacy-tighter-analysis as printed, every j tried, gamma in place of sqrt k.

    psi(n) = Phi(tau/(sigma + sigma_shared))^(n+1); Gamma(j) = min(sqrt j, sqrt(j + gamma)/2).
    """
    with mp.workdps(DPS):
        eps, x = real(epsilon), real(tau) / (real(sigma) + real(sigma_shared))
        gamma = gamma_of(sigma=sigma, sigma_shared=sigma_shared)
        gauss = delta_correlated_gaussian(dimension=k, gamma=gamma, sigma=sigma, epsilon=eps)
        best = max(some_of(k + 1, x), gauss)
        for j in range(1, k):
            root = min(mp.sqrt(j), mp.sqrt(j + gamma) / 2)
            third = some_of(k - j + 1, x) + delta_gaussian(sensitivity=root, sigma=sigma, epsilon=eps)
            lowered = eps + (k - j + 1) * log_normal_cdf(x)
            best = max(best, third, delta_gaussian(sensitivity=root, sigma=sigma, epsilon=lowered))
        return best


def laplace_tail(*, scale: Real, tau: Real, discrete: bool) -> mpf:
    """Pr[Z > tau] for the Laplace law, by quadrature of its density or by summing its mass function.

    The mass function is e^(-|x|/scale) / (sum over all integers), summed until the terms are 1e-60 of the
    first.
    """
    b, t = real(scale), real(tau)
    if not discrete:
        points = [t, *(p * b for p in (-64, -16, -4, 0) if p * b > t)]
        points += [points[-1] + n * b for n in (4, 16, 64, 150)]
        least = max(t, mpf(0))  # taken out: mp.quad's tolerance is absolute
        return mp.exp(-least / b) * mp.quad(lambda x: mp.exp((least - abs(x)) / b) / (2 * b), points)
    reach = int(mp.ceil(140 * b))
    first = int(mp.floor(t)) + 1
    ratio = mp.exp(-1 / b)
    total = 1 + 2 * mp.fsum(ratio**n for n in range(1, reach))
    return mp.fsum(ratio ** abs(n) for n in range(first, max(first, 0) + reach)) / total


def _new_count_divergence(*, tail: Real, epsilon: Real) -> mpf:
    """A count 1 that may pass (probability `tail`, a point the other side never yields) against no count."""
    factor = mp.exp(epsilon)
    added = tail + max(1 - tail - factor, mpf(0))
    removed = max(1 - factor * (1 - tail), mpf(0))
    return max(added, removed)


def delta_discrete_laplace_single(*, scale: Real, tau: Real, epsilon: Real) -> mpf:
    """Exact delta of the stability histogram with integer Laplace noise, for users with one item.

    Either a shared count moves by one (thresholding it is post-processing, so the supremum over counts is the
    divergence of two whole laws at distance 1), or a new count appears.
    """
    with mp.workdps(DPS):
        b, eps = real(scale), real(epsilon)
        reach = int(mp.ceil(140 * b))
        mass = [mp.exp(-mpf(n) / b) for n in range(reach + 2)]
        total = 2 * mp.fsum(mass) - mass[0]
        factor = mp.exp(eps)
        gains = (mass[abs(n - 1)] - factor * mass[abs(n)] for n in range(-reach, reach + 2))
        shared = mp.fsum(gain for gain in gains if gain > 0) / total
        tail = laplace_tail(scale=b, tau=tau, discrete=True)
        return max(shared, _new_count_divergence(tail=tail, epsilon=eps))


def infinite_event_laplace(*, m: int, scale: Real, tau: Real, discrete: bool) -> mpf:
    """1 - (1 - Pr[Z > tau])^m: one of m new counts passes under independent (discrete) Laplace noise."""
    with mp.workdps(DPS):
        return -mp.expm1(m * mp.log1p(-laplace_tail(scale=scale, tau=tau, discrete=discrete)))
