"""The Gaussian sparse histogram mechanism, as the paper restates it. Its k is our m: items per user."""

from __future__ import annotations

import math

import numpy as np

from dphist.analysis.gaussian import delta_gaussian
from dphist.numerics.blocks import FloatArray, IntArray, bound_over_blocks
from dphist.numerics.normal import hockey_stick_normal, log_probability_none_passes, probability_some_passes
from dphist.numerics.search import least_passing, log_excess


def delta_gshm_add_the_deltas(*, m: int, sigma: float, tau: float, epsilon: float) -> float:
    """Delta of the GSHM by adding both worst cases.

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
    """Delta of the GSHM, exactly: the worst of all mixtures of new and changed counts.

        max of 1 - Phi(tau/sigma)^m and, over j in 1..m with G = (m-j) log Phi(tau/sigma), of
        1 - e^G + e^G delta_gaussian(sqrt j, epsilon - G)  and  delta_gaussian(sqrt j, epsilon + G)

    Guarantee: exact, within 1e-7 from above when the worst j is neither 0 nor m.
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
