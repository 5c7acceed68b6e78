"""The correlated stability histogram, as the paper analyses it.

The paper fixes sigma_shared = sigma k^(-1/4); every proof holds for any sigma_shared > 0 with
gamma = sigma^2/sigma_shared^2 in place of sqrt k, and so do these functions.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from dphist.analysis.gaussian import delta_correlated_gaussian
from dphist.analysis.infinite_event import infinite_event_upper
from dphist.errors import NotPrivate
from dphist.numerics.blocks import FloatArray, IntArray, bound_over_blocks
from dphist.numerics.normal import hockey_stick_normal, log_probability_none_passes
from dphist.types import gamma_from


def delta_csh_add_the_deltas(*, k: int, sigma: float, sigma_shared: float, tau: float, epsilon: float) -> float:
    """Delta of the CSH by adding both worst cases.

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
    where delta_gauss >= delta: no threshold helps when the noise alone breaks the promise.

    Guarantee: solves the equation up to rounding in doubles; callers that need safety test the value.
    Source: `lem:computing-threshold-add-the-delta`, with the sign its proof needs.
    """
    gauss = delta_correlated_gaussian(
        dimension=k, gamma=gamma_from(sigma, sigma_shared), sigma=sigma, epsilon=epsilon
    )
    if gauss >= delta:
        raise NotPrivate(f"sigma = {sigma!r} alone gives delta = {gauss:.6g}, which is not below {delta:g}")
    log_root = math.log1p(-(delta - gauss)) / (k + 1)
    return (
        float(special.ndtri_exp(log_root)) * (sigma + sigma_shared)
        if log_root < -1e-3
        # Phi^-1(1 - x) = -Phi^-1(x) keeps the digits of a probability close to one.
        else (-float(special.ndtri(-math.expm1(log_root))) * (sigma + sigma_shared))
    )


def delta_csh_tighter(*, k: int, sigma: float, sigma_shared: float, tau: float, epsilon: float) -> float:
    """Delta of the CSH by the paper's case distinction, as printed.

        max of 1 - psi(k); delta_gaussian(sqrt(k + gamma)/2, epsilon); and over j in 1..k-1 of
        1 - psi(k-j) + delta_gaussian(c(j), epsilon)  and  delta_gaussian(c(j), epsilon + ln psi(k-j)),
        psi(n) = Phi(tau/(sigma + sigma_shared))^(n+1),  c(j) = min(sqrt j, sqrt(j + gamma)/2)

    Guarantee: an upper bound, within 1e-7 from above when the worst j is mixed. The last term is false for the
    case it is printed for, but the theorem holds because the third bounds both directions; see
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
