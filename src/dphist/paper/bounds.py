"""Bounds in doubles: the paper's, in its order (Gaussian mechanisms, GSHM, CSH, zCDP), then Laplace noise."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import special

from dphist.errors import NotPrivate
from dphist.model import gamma_from
from dphist.proof.exact import infinite_event_upper
from dphist.proof.numerics import (
    FloatArray,
    IntArray,
    bound_over_blocks,
    hockey_stick_normal,
    log_probability_none_passes,
    probability_some_passes,
)
from dphist.proof.searches import least_passing, log_excess
from dphist.proof.tails import infinite_event_discrete_upper

# The Gaussian mechanism and the correlated Gaussian mechanism on a known domain.


@lru_cache(maxsize=4096)  # a search for tau repeats the same call
def delta_gaussian(*, sensitivity: float, sigma: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism.

        Phi(S/(2 sigma) - epsilon sigma/S) - e^epsilon Phi(-S/(2 sigma) - epsilon sigma/S)

    Guarantee: exact; relative error below 1e-12 for delta from 1e-300 to 1.
    Valid for: sensitivity S >= 0, sigma > 0, any real epsilon.
    Source: `lem:standard-gaussian-mechanism` (Balle and Wang 2018, Theorem 8).
    """
    return float(hockey_stick_normal(sensitivity / sigma, epsilon))


def delta_correlated_gaussian(*, dimension: int, gamma: float, sigma: float, epsilon: float) -> float:
    """Delta of the correlated Gaussian mechanism on `dimension` monotone counts.

    The Gaussian mechanism with sensitivity sqrt(dimension + gamma)/2, gamma = sigma^2/sigma_shared^2.

    Guarantee: an upper bound; exact when (dimension + gamma)/2 is an integer, at most `dimension`.
    Valid for: gamma > 0, sigma > 0.
    Source: `lem:restated-Leb24-for-approx` (Lebeda 2025, Lemma 3.5).
    """
    return delta_gaussian(sensitivity=math.sqrt(dimension + gamma) / 2.0, sigma=sigma, epsilon=epsilon)


@lru_cache(maxsize=256)
def largest_sensitivity_per_sigma(*, epsilon: float, delta: float) -> float:
    """The largest mu = sensitivity/sigma at which the Gaussian mechanism is (epsilon, delta)-private.

    Guarantee: `hockey_stick_normal(mu, epsilon) <= delta` was tested for the returned mu.
    Source: the inverse of `lem:standard-gaussian-mechanism`.
    """

    def excess(inverse_mu: float) -> float:
        return log_excess(float(hockey_stick_normal(1.0 / inverse_mu, epsilon)), delta)

    return 1.0 / least_passing(excess, start=1.0, relative=1e-15)


# The Gaussian sparse histogram mechanism, as the paper restates it. Its k is our m: items per user.


def delta_gshm_add_the_deltas(*, m: int, sigma: float, tau: float, epsilon: float) -> float:
    """Delta of the GSHM as the sum of both worst cases.

        delta_gaussian(sqrt m) + 1 - Phi(tau/sigma)^m

    Guarantee: an upper bound.
    Valid for: m >= 1, sigma > 0, epsilon >= 0.
    Source: `lem:related-add-the-delta`.
    """
    gauss = delta_gaussian(sensitivity=math.sqrt(m), sigma=sigma, epsilon=epsilon)
    return gauss + float(probability_some_passes(m, tau / sigma))


def tau_gshm_add_the_deltas(*, m: int, sigma: float, epsilon: float, delta: float) -> float:
    """The least tau that `delta_gshm_add_the_deltas` allows at this sigma; infinite if there is none.

    Guarantee: the returned tau was tested and passed.
    Source: the inverse of `lem:related-add-the-delta`.
    """
    if delta_gaussian(sensitivity=math.sqrt(m), sigma=sigma, epsilon=epsilon) >= delta:
        return math.inf

    def excess(tau: float) -> float:
        return log_excess(delta_gshm_add_the_deltas(m=m, sigma=sigma, tau=tau, epsilon=epsilon), delta)

    return least_passing(excess, start=sigma)


def delta_gshm_exact(*, m: int, sigma: float, tau: float, epsilon: float) -> float:
    """Exact delta of the GSHM: the worst mixture of new and changed counts.

        max of 1 - Phi(tau/sigma)^m and, over j in 1..m with G = (m-j) log Phi(tau/sigma), of
        1 - e^G + e^G delta_gaussian(sqrt j, epsilon - G)  and  delta_gaussian(sqrt j, epsilon + G)

    Guarantee: exact; at most 1e-7 too high, relatively, when the worst j is neither 0 nor m.
    Valid for: m >= 1, sigma > 0, epsilon >= 0.
    Source: `lem:related-GSHM` (Wilkins, Kifer, Zhang and Karrer 2024).
    """
    u = tau / sigma

    def upper(first: IntArray, last: IntArray) -> FloatArray:
        # Blocks of j: more changed counts (last) and more new ones (m - first) dominate.
        mu = np.sqrt(last.astype(np.float64)) / sigma
        log_g = log_probability_none_passes(m - first, u)
        add = probability_some_passes(m - first, u) + np.exp(log_g) * hockey_stick_normal(mu, epsilon - log_g)
        return np.maximum(add, hockey_stick_normal(mu, epsilon + log_g))

    only_new = float(probability_some_passes(m, u))
    none_new = delta_gaussian(sensitivity=math.sqrt(m), sigma=sigma, epsilon=epsilon)
    worst = max(only_new, none_new)
    if m == 1:
        return worst
    return max(worst, bound_over_blocks(upper, 1, m - 1, enough=worst).maximum)


# The correlated stability histogram, as the paper analyses it.
#
# The paper fixes sigma_shared = sigma k^(-1/4); every proof holds for any sigma_shared > 0 with
# gamma = sigma^2/sigma_shared^2 instead of sqrt k, and so do these functions.


def delta_csh_add_the_deltas(*, k: int, sigma: float, sigma_shared: float, tau: float, epsilon: float) -> float:
    """Delta of the CSH as the sum of both worst cases.

        delta_gaussian(sqrt(k + gamma)/2) + 1 - Phi(tau/(sigma + sigma_shared))^(k+1)

    Guarantee: an upper bound.
    Valid for: sigma > 0, sigma_shared > 0, tau > 0, epsilon >= 0.
    Source: `thm:algorithm-privacy-add-the-deltas`.
    """
    gauss = delta_correlated_gaussian(
        dimension=k, gamma=gamma_from(sigma, sigma_shared), sigma=sigma, epsilon=epsilon
    )
    return gauss + float(infinite_event_upper(count=k, sigma=sigma, sigma_shared=sigma_shared, tau=tau))


def tau_csh_add_the_deltas(*, k: int, sigma: float, sigma_shared: float, epsilon: float, delta: float) -> float:
    """The least tau that `delta_csh_add_the_deltas` allows, in closed form.

        Phi^-1((1 - delta + delta_gauss)^(1/(k+1))) (sigma + sigma_shared)

    The paper prints `1 - delta - delta_gauss`, which is unsafe; see docs/theory/errata.md. Raises `NotPrivate`
    if delta_gauss >= delta: then the noise alone exceeds delta, and no threshold helps.

    Guarantee: solves the equation up to rounding in doubles; callers that need a safe tau test it.
    Source: `lem:computing-threshold-add-the-delta`, with the sign its proof needs.
    """
    gauss = delta_correlated_gaussian(
        dimension=k, gamma=gamma_from(sigma, sigma_shared), sigma=sigma, epsilon=epsilon
    )
    if gauss >= delta:
        raise NotPrivate(f"sigma = {sigma!r} alone gives delta = {gauss:.6g}, which is not below {delta:g}")
    log_root = math.log1p(-(delta - gauss)) / (k + 1)
    # Phi^-1(1 - x) = -Phi^-1(x) keeps the digits of a probability close to one.
    height = special.ndtri_exp(log_root) if log_root < -1e-3 else -special.ndtri(-math.expm1(log_root))
    return float(height) * (sigma + sigma_shared)


def delta_csh_tighter(*, k: int, sigma: float, sigma_shared: float, tau: float, epsilon: float) -> float:
    """Delta of the CSH by the paper's case distinction, as printed.

        max of 1 - psi(k); delta_gaussian(sqrt(k + gamma)/2, epsilon); and over j in 1..k-1 of
        1 - psi(k-j) + delta_gaussian(c(j), epsilon)  and  delta_gaussian(c(j), epsilon + ln psi(k-j)),
        psi(n) = Phi(tau/(sigma + sigma_shared))^(n+1),  c(j) = min(sqrt j, sqrt(j + gamma)/2)

    Guarantee: an upper bound; at most 1e-7 above the formula, relatively, when the worst j is mixed. The last term
    is false for the case it is printed for, but the theorem holds because the third bounds both directions:
    docs/theory/errata.md.
    Valid for: sigma > 0, sigma_shared > 0, tau > 0, epsilon >= 0.
    Source: `thm:privacy-tighter-analysis`.
    """
    gamma = gamma_from(sigma, sigma_shared)
    u = tau / (sigma + sigma_shared)

    def upper(first: IntArray, last: IntArray) -> FloatArray:
        j = last.astype(np.float64)
        mu = np.minimum(np.sqrt(j), np.sqrt(j + gamma) / 2.0) / sigma
        log_psi = log_probability_none_passes(k - first.astype(np.float64) + 1.0, u)
        third = -np.expm1(log_psi) + hockey_stick_normal(mu, epsilon)
        return np.maximum(third, hockey_stick_normal(mu, epsilon + log_psi))

    only_new = float(infinite_event_upper(count=k, sigma=sigma, sigma_shared=sigma_shared, tau=tau))
    none_new = delta_correlated_gaussian(dimension=k, gamma=gamma, sigma=sigma, epsilon=epsilon)
    worst = max(only_new, none_new)
    if k == 1:
        return worst
    return max(worst, bound_over_blocks(upper, 1, k - 1, enough=worst).maximum)


def rho_discrete_correlated_gaussian(*, k: int, sigma: float) -> float:
    """rho of the discrete correlated Gaussian mechanism on k monotone counts with gamma = sqrt k.

        (k + sqrt k)/(8 sigma^2)

    Guarantee: the mechanism satisfies rho-zCDP.
    Valid for: k >= 1, sigma > 0.
    Source: `lem:discrete-cor-privacy`, from `lem:discrete-gaussian-mechanism`.
    """
    return (k + math.sqrt(k)) / (8.0 * sigma**2)


def delta_zcdp_loose(*, rho: float, epsilon: float) -> float:
    """delta of rho-zCDP at epsilon by the simple conversion.

        e^(-(epsilon - rho)^2/(4 rho)),  the inverse of epsilon = rho + 2 sqrt(rho log(1/delta))

    Guarantee: an upper bound; 1 where epsilon <= rho.
    Source: `lem:zCDP-implies-approx-DP`, as printed.
    """
    return math.exp(-((epsilon - rho) ** 2) / (4.0 * rho)) if epsilon > rho else 1.0


def delta_zcdp(*, rho: float, epsilon: float) -> float:
    """delta of rho-zCDP at epsilon by the tight conversion.

        min over a > 1 of e^((a-1)(a rho - epsilon)) (1 - 1/a)^a/(a-1)

    Guarantee: an upper bound, as every a gives one; the minimum is found to about 1e-12.
    Source: Canonne, Kamath and Steinke 2020, Corollary 13; sharper than `lem:zCDP-implies-approx-DP`.
    """
    from scipy.optimize import minimize_scalar  # slow to import, and plans do not need it

    def log_delta(log_excess: float) -> float:
        excess = math.exp(log_excess)  # a - 1
        order = 1.0 + excess
        return excess * (order * rho - epsilon) + order * math.log1p(-1.0 / order) - math.log(excess)

    # The best order lies near (epsilon + rho)/(2 rho).
    centre = math.log(max(1e-6, (epsilon - rho) / (2.0 * rho), 1.0 / (1.0 + rho)))
    best = minimize_scalar(
        log_delta, bounds=(centre - 20.0, centre + 5.0), method="bounded", options={"xatol": 1e-10}
    )
    return min(1.0, math.exp(float(best.fun)))


def delta_discrete_csh(*, k: int, sigma: float, tau: float, epsilon: float, tight: bool = False) -> float:
    """delta of the discrete CSH by the paper's recipe: zCDP for the noise, plus the infinite event.

        delta_zcdp((k + sqrt k)/(8 sigma^2), epsilon) + infinite_event_discrete_upper

    Guarantee: an upper bound. `tight` uses the tight conversion instead of the printed one.
    Valid for: noise on the lattice 1/2 with gamma = sqrt k.
    Source: `theorem:discrete-cor-GSHM`.
    """
    rho = rho_discrete_correlated_gaussian(k=k, sigma=sigma)
    convert = delta_zcdp if tight else delta_zcdp_loose
    return convert(rho=rho, epsilon=epsilon) + infinite_event_discrete_upper(k=k, sigma=sigma, tau=tau)


# The Laplace stability histogram: the classic for users with one item, and competitive when m is small.


def infinite_event_laplace(*, m: int, scale: float, tau: float) -> float:
    """Probability that one of m new counts passes under continuous Laplace noise.

        1 - (1 - e^(-tau/scale)/2)^m

    Guarantee: exact.
    Valid for: tau >= 0, scale > 0.
    Source: beyond the paper, which cites it as the stability histogram (Korolova et al. 2009).
    """
    return -math.expm1(m * math.log1p(-math.exp(-tau / scale) / 2.0))


def infinite_event_discrete_laplace(*, m: int, scale: float, tau: float) -> float:
    """Probability that one of m new counts passes under discrete Laplace noise, Pr[x] ~ e^(-|x|/scale).

        1 - (1 - e^(-n/scale)/(1 + e^(-1/scale)))^m,  n = floor(tau) + 1 (a count passes if noise > tau)

    Guarantee: exact.
    Valid for: tau >= 0, scale > 0.
    Source: beyond the paper.
    """
    least = math.floor(tau) + 1
    return -math.expm1(m * math.log1p(-math.exp(-least / scale) / (1.0 + math.exp(-1.0 / scale))))


def tau_laplace(*, m: int, scale: float, delta: float, discrete: bool = False) -> float:
    """The least tau at which the infinite event is within delta.

    Guarantee: the returned tau was tested and passed; it is a whole number if `discrete`.
    Source: the inverse of `infinite_event_laplace`.
    """
    delta_of_one = -math.expm1(math.log1p(-delta) / m)
    if not discrete:
        tau = max(0.0, -scale * math.log(2.0 * delta_of_one))
        while infinite_event_laplace(m=m, scale=scale, tau=tau) > delta:
            tau = tau * (1.0 + 1e-14) + scale * 1e-14
        return tau
    least = math.ceil(-scale * math.log(delta_of_one * (1.0 + math.exp(-1.0 / scale))))
    tau = float(max(0, least - 2))
    while infinite_event_discrete_laplace(m=m, scale=scale, tau=tau) > delta:
        # Above 2^53, adding one has no effect.
        tau = max(tau + 1.0, math.nextafter(tau, math.inf))
    return tau
