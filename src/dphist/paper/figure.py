"""The paper's figure: the least tau by total noise, for each analysis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from dphist.errors import InvalidParameter, one_of, positive_count, positive_number
from dphist.model import ANALYSES, Budget, Contract, Noise
from dphist.paper.analyses import ANALYSES_BY_NAME, Analysis, Gamma, gamma_value, least_sigma, least_tau


@dataclass(frozen=True)
class Frontier:
    """A curve of the paper's figure.

    Attributes:
        analysis: The analysis.
        least_noise: The least total noise; with less, no tau is enough.
        points: Pairs of total noise and the least tau.
    """

    analysis: str
    least_noise: float
    points: tuple[tuple[float, float], ...]


@lru_cache(maxsize=32)
def tau_for_noise(
    *,
    epsilon: float,
    delta: float,
    sigma: float,
    sigma_shared: float = 0.0,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    analysis: str = "exact",
) -> float:
    """The least tau for a given noise, by one analysis; infinite if the noise is too small.

    Args:
        epsilon: Privacy loss ε, above 0.
        delta: Probability that the ε guarantee may fail.
        sigma: Standard deviation of each count's own noise.
        sigma_shared: Standard deviation of the shared noise.
        max_nonzero: The most non-zero counts of any dataset.
        max_items_per_user: The most counts that one user contributes to.
        analysis: As for `plan`.
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    noise = Noise(positive_number("sigma", sigma), sigma_shared, 1.0)
    chosen = _checked_analysis(analysis, contract, noise.sigma_shared)
    return least_tau(chosen, contract, budget, sigma=noise.sigma, sigma_shared=noise.sigma_shared)


def _checked_analysis(analysis: str, contract: Contract, sigma_shared: float) -> Analysis:
    one_of("analysis", analysis, ANALYSES)
    if analysis.startswith("gshm") and sigma_shared > 0.0:
        raise InvalidParameter(f"{analysis} has no shared noise, but sigma_shared is {sigma_shared!r}")
    if analysis.startswith("csh") and (sigma_shared == 0.0 or contract.max_nonzero is None):
        raise InvalidParameter(f"{analysis} needs max_nonzero and a sigma_shared above 0, not {sigma_shared!r}")
    return ANALYSES_BY_NAME[analysis]


def frontier(
    *,
    epsilon: float,
    delta: float,
    analysis: str,
    max_nonzero: int | None = None,
    max_items_per_user: int | None = None,
    gamma: Gamma | None = None,
    largest_noise: float | None = None,
    points: int = 40,
) -> Frontier:
    """The curve of the paper's figure: the least tau by total noise, from the least noise to `largest_noise`.

    Args:
        epsilon: Privacy loss ε, above 0.
        delta: Probability that the ε guarantee may fail.
        analysis: As for `plan`.
        max_nonzero: The most non-zero counts of any dataset.
        max_items_per_user: The most counts that one user contributes to.
        gamma: Variance of own over shared noise, or "sqrt"; without it there is no shared noise.
        largest_noise: Where the curve ends. By default at 1.6 times the least noise.
        points: Number of points.
    """
    budget, contract = Budget(epsilon, delta), Contract(max_nonzero, max_items_per_user)
    if positive_count("points", points) < 2:
        raise InvalidParameter(f"a frontier needs at least 2 points, not {points}")
    ratio = math.inf if gamma is None else gamma_value(gamma, contract)
    shared_per_sigma = 1.0 / math.sqrt(ratio)
    chosen = _checked_analysis(analysis, contract, shared_per_sigma)
    least = least_sigma(chosen, contract, budget, ratio)
    if not chosen.adds_deltas:
        least *= 1.0 + 1e-9
    total, widest = math.hypot(1.0, shared_per_sigma), 1.6
    if largest_noise is not None:
        widest = max(1.0, positive_number("largest_noise", largest_noise) / (least * total))
    curve = []
    for i in range(points):
        # Dense near the least noise, where the curves of added deltas are steep.
        sigma = least * (1.0 + (widest - 1.0) * (i / (points - 1)) ** 2)
        tau = least_tau(chosen, contract, budget, sigma=sigma, sigma_shared=sigma * shared_per_sigma)
        if math.isfinite(tau):
            curve.append((sigma * total, tau))
    return Frontier(analysis, least * total, tuple(curve))
