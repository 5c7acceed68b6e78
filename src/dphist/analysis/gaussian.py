"""The Gaussian mechanism and the correlated Gaussian mechanism on a known domain."""

from __future__ import annotations

import math

from dphist.numerics.normal import hockey_stick_normal, log_hockey_stick_normal
from dphist.numerics.search import least_passing, log_excess


def delta_gaussian(*, sensitivity: float, sigma: float, epsilon: float) -> float:
    """Delta of the Gaussian mechanism.

        Phi(S/(2 sigma) - epsilon sigma/S) - e^epsilon Phi(-S/(2 sigma) - epsilon sigma/S)

    Guarantee: exact; relative error below 1e-12 for delta from 1e-300 to 1.
    Valid for: sensitivity S >= 0, sigma > 0, any real epsilon.
    Source: `lem:standard-gaussian-mechanism` (Balle and Wang 2018, Theorem 8).
    """
    return float(hockey_stick_normal(sensitivity / sigma, epsilon))


def log_delta_gaussian(*, sensitivity: float, sigma: float, epsilon: float) -> float:
    """Natural logarithm of `delta_gaussian`, finite where delta underflows.

    Guarantee: exact; relative error below 1e-12, absolute below 1e-11 near zero.
    Valid for: sensitivity > 0, sigma > 0, epsilon >= 0.
    Source: `lem:standard-gaussian-mechanism`.
    """
    return log_hockey_stick_normal(mu=sensitivity / sigma, epsilon=epsilon)


def delta_correlated_gaussian(*, dimension: int, gamma: float, sigma: float, epsilon: float) -> float:
    """Delta of the correlated Gaussian mechanism on `dimension` monotone counts.

    The Gaussian mechanism with sensitivity sqrt(dimension + gamma)/2, gamma = sigma^2/sigma_shared^2.

    Guarantee: an upper bound; exact when (dimension + gamma)/2 is an integer, at most `dimension`.
    Valid for: gamma > 0, sigma > 0.
    Source: `lem:restated-Leb24-for-approx` (Lebeda 2025, Lemma 3.5).
    """
    return delta_gaussian(sensitivity=math.sqrt(dimension + gamma) / 2.0, sigma=sigma, epsilon=epsilon)


def largest_sensitivity_per_sigma(*, epsilon: float, delta: float) -> float:
    """The largest mu = sensitivity/sigma at which the Gaussian mechanism is (epsilon, delta)-private.

    Guarantee: `hockey_stick_normal(mu, epsilon) <= delta` was tested for the returned mu.
    Source: the inverse of `lem:standard-gaussian-mechanism`.
    """

    def excess(inverse_mu: float) -> float:
        return log_excess(float(hockey_stick_normal(1.0 / inverse_mu, epsilon)), delta)

    return 1.0 / least_passing(excess, start=1.0, relative=1e-15)
