"""The paper's route to discrete noise: zero-concentrated differential privacy, converted to (epsilon, delta)."""

from __future__ import annotations

import math

from scipy.optimize import minimize_scalar

from dphist.analysis.discrete import infinite_event_discrete_upper


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

    Guarantee: an upper bound, for any a is one; the minimum is found to about 1e-12.
    Source: Canonne, Kamath and Steinke 2020, Corollary 13; sharper than `lem:zCDP-implies-approx-DP`.
    """

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
    """delta of the discrete CSH by the paper's recipe: zCDP for the noise, and the deltas added.

        delta_zcdp((k + sqrt k)/(8 sigma^2), epsilon) + infinite_event_discrete_upper

    Guarantee: an upper bound. `tight` takes the tight conversion in place of the printed one.
    Valid for: noise on the lattice 1/2 with gamma = sqrt k.
    Source: `theorem:discrete-cor-GSHM`.
    """
    rho = rho_discrete_correlated_gaussian(k=k, sigma=sigma)
    convert = delta_zcdp if tight else delta_zcdp_loose
    return convert(rho=rho, epsilon=epsilon) + infinite_event_discrete_upper(k=k, sigma=sigma, tau=tau)
