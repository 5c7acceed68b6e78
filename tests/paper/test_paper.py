"""Every bound of the paper, and the Laplace histogram, against its oracle; and the order among the bounds."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

import oracles
from dphist.errors import NotPrivate
from dphist.model import Contract, Noise
from dphist.paper.bounds import (
    delta_correlated_gaussian,
    delta_csh_add_the_deltas,
    delta_csh_tighter,
    delta_gaussian,
    delta_gshm_add_the_deltas,
    delta_gshm_exact,
    infinite_event_discrete_laplace,
    infinite_event_laplace,
    largest_sensitivity_per_sigma,
    tau_csh_add_the_deltas,
    tau_gshm_add_the_deltas,
    tau_laplace,
)
from dphist.proof.certify import certify_discrete_laplace
from dphist.proof.exact import infinite_event, infinite_event_upper
from dphist.proof.numerics import hockey_stick_normal
from scheduling import examples

# The Gaussian mechanism.


def relative_error(value: float, truth: object) -> float:
    with mp.workdps(50):
        return float(abs(mp.mpf(value) / truth - 1))


@given(epsilon=st.floats(1e-6, 800.0), z=st.floats(-6.0, 36.9))
def test_gaussian_delta_from_1e_minus_300_to_1(epsilon: float, z: float) -> None:
    sensitivity = -z + math.sqrt(z * z + 2.0 * epsilon)  # epsilon/S - S/2 = z; z = 37 is about delta = 1e-300
    truth = oracles.delta_gaussian(sensitivity=sensitivity, sigma=1, epsilon=epsilon)
    if truth > 1e-300:
        assert relative_error(delta_gaussian(sensitivity=sensitivity, sigma=1.0, epsilon=epsilon), truth) < 1e-12


@given(
    sensitivity=st.floats(1e-9, 60.0), epsilon=st.sampled_from([0.0, 1e-9, 0.3, 20.0, 800.0]), sign=st.booleans()
)
def test_gaussian_delta_for_any_sensitivity(sensitivity: float, epsilon: float, sign: bool) -> None:
    at = -epsilon if sign else epsilon
    truth = oracles.delta_gaussian(sensitivity=sensitivity, sigma=1, epsilon=at)
    value = delta_gaussian(sensitivity=sensitivity, sigma=1.0, epsilon=at)
    if truth > 1e-300:
        assert relative_error(value, truth) < 1e-12
    else:
        assert value < 1e-299


@pytest.mark.parametrize(("dimension", "gamma"), [(1, 1.0), (10, math.sqrt(10)), (51914, 227.8), (10**9, 3e4)])
def test_correlated_gaussian(dimension: int, gamma: float) -> None:
    sigma = math.sqrt(dimension)
    truth = oracles.delta_correlated_gaussian(dimension=dimension, gamma=gamma, sigma=sigma, epsilon=0.35)
    value = delta_correlated_gaussian(dimension=dimension, gamma=gamma, sigma=sigma, epsilon=0.35)
    assert relative_error(value, truth) < 1e-12


@given(epsilon=st.floats(1e-4, 800.0), log_delta=st.floats(-690.0, -1e-3))
def test_largest_sensitivity_passes_and_hardly_more_would(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    mu = largest_sensitivity_per_sigma(epsilon=epsilon, delta=delta)
    assert hockey_stick_normal(mu, epsilon) <= delta
    assert hockey_stick_normal(mu * (1.0 + 1e-9), epsilon) > delta


def test_zero_sensitivity_has_no_delta() -> None:
    assert delta_gaussian(sensitivity=0.0, sigma=1.0, epsilon=0.5) == 0.0
    assert delta_gaussian(sensitivity=0.0, sigma=1.0, epsilon=-0.5) == pytest.approx(1.0 - math.exp(-0.5))


def test_arrays_of_every_branch_agree_with_single_values() -> None:
    mu = np.array([0.0, 1e-6, 0.01, 0.049, 0.3, 0.6, 5.0, 20.0, 50.0])
    epsilon = np.array([-700.0, -1.0, 0.0, 1e-3, 1.0, 700.0])
    table = hockey_stick_normal(mu[:, None], epsilon)
    for i, x in enumerate(mu):
        for j, e in enumerate(epsilon):
            assert table[i, j] == pytest.approx(float(hockey_stick_normal(x, e)), rel=1e-12, abs=1e-300)


# GSHM and CSH.

# sigma per sqrt(count), tau per sigma, epsilon: from hopeless plans to very private ones.
plans = st.tuples(st.floats(0.3, 12.0), st.floats(0.3, 9.0), st.floats(0.0, 5.0))
counts = st.integers(1, 40)


@given(m=counts, numbers=plans)
def test_gshm(m: int, numbers: tuple[float, float, float]) -> None:
    sigma, tau, epsilon = numbers[0] * math.sqrt(m), numbers[0] * math.sqrt(m) * numbers[1], numbers[2]
    added = delta_gshm_add_the_deltas(m=m, sigma=sigma, tau=tau, epsilon=epsilon)
    exact = delta_gshm_exact(m=m, sigma=sigma, tau=tau, epsilon=epsilon)
    assert added == pytest.approx(
        float(oracles.delta_gshm_add_the_deltas(m=m, sigma=sigma, tau=tau, epsilon=epsilon)), rel=1e-11
    )
    truth = float(oracles.delta_gshm_exact(m=m, sigma=sigma, tau=tau, epsilon=epsilon))
    assert exact == pytest.approx(truth, rel=2e-7)
    assert exact >= truth * (1.0 - 1e-12)
    assert exact <= added * (1.0 + 1e-12)


@given(k=counts, gamma=st.floats(0.2, 60.0), numbers=plans)
def test_csh(k: int, gamma: float, numbers: tuple[float, float, float]) -> None:
    sigma = numbers[0] * math.sqrt(k) / 2.0
    plan = {
        "sigma": sigma,
        "sigma_shared": sigma / math.sqrt(gamma),
        "tau": sigma * numbers[1],
        "epsilon": numbers[2],
    }
    added = delta_csh_add_the_deltas(k=k, **plan)
    tighter = delta_csh_tighter(k=k, **plan)
    assert added == pytest.approx(float(oracles.delta_csh_add_the_deltas(k=k, **plan)), rel=1e-11)
    truth = float(oracles.delta_csh_tighter(k=k, **plan))
    assert tighter == pytest.approx(truth, rel=2e-7)
    assert tighter >= truth * (1.0 - 1e-12)
    assert tighter <= added * (1.0 + 1e-7)


@settings(max_examples=examples(25))
@given(
    count=st.sampled_from([1, 2, 10, 1000, 51914, 10**9]), gamma=st.floats(0.05, 5e4), height=st.floats(0.5, 20.0)
)
def test_infinite_event_and_the_papers_bound(count: int, gamma: float, height: float) -> None:
    sigma = 3.0
    shared = sigma / math.sqrt(gamma)
    tau = height * math.hypot(sigma, shared)
    value = float(infinite_event(Noise(sigma, shared, tau), count)[0])
    bound = float(infinite_event_upper(count=count, sigma=sigma, sigma_shared=shared, tau=tau))
    truth = float(oracles.infinite_event(count=count, sigma=sigma, sigma_shared=shared, tau=tau))
    assert value == pytest.approx(truth, rel=1e-10)
    assert bound == pytest.approx(
        float(oracles.infinite_event_upper(count=count, sigma=sigma, sigma_shared=shared, tau=tau)), rel=1e-11
    )
    assert value <= bound * (1.0 + 1e-12)


@pytest.mark.parametrize("count", [1, 7, 10**6])
def test_infinite_event_without_shared_noise(count: int) -> None:
    truth = float(oracles.infinite_event(count=count, sigma=2.0, sigma_shared=0, tau=13.0))
    assert infinite_event(Noise(2.0, 0.0, 13.0), count)[0] == pytest.approx(truth, rel=1e-12)


@pytest.mark.parametrize("k", [1, 10, 51914, 10**9])
@pytest.mark.parametrize("epsilon", [0.1, 0.35, 3.0])
def test_closed_form_threshold(k: int, epsilon: float) -> None:
    sigma = 4.0 * math.sqrt(k) / epsilon
    numbers = {"k": k, "sigma": sigma, "sigma_shared": sigma / k**0.25, "epsilon": epsilon}
    tau = tau_csh_add_the_deltas(delta=1e-5, **numbers)
    assert tau == pytest.approx(float(oracles.tau_csh_add_the_deltas(delta=1e-5, **numbers)), rel=1e-10)
    assert delta_csh_add_the_deltas(tau=tau, **numbers) == pytest.approx(1e-5, rel=1e-9)


def test_closed_form_threshold_rejects_too_little_noise() -> None:
    with pytest.raises(NotPrivate, match=r"sigma = 1\.0 alone gives delta"):
        tau_csh_add_the_deltas(k=10, sigma=1.0, sigma_shared=0.5, epsilon=0.35, delta=1e-5)


def test_threshold_of_the_gshm_passes() -> None:
    tau = tau_gshm_add_the_deltas(m=50, sigma=31.0, epsilon=1.0, delta=1e-6)
    assert delta_gshm_add_the_deltas(m=50, sigma=31.0, tau=tau, epsilon=1.0) <= 1e-6
    assert delta_gshm_add_the_deltas(m=50, sigma=31.0, tau=tau * (1.0 - 1e-9), epsilon=1.0) > 1e-6
    assert math.isinf(tau_gshm_add_the_deltas(m=50, sigma=1.0, epsilon=1.0, delta=1e-6))


@pytest.mark.slow
def test_large_counts_by_blocks_agree_with_all_cases() -> None:
    """A thousand cases in blocks against the oracle's one by one; for the CSH a mixture is the worst."""
    gshm = {"sigma": 400.0, "tau": 1600.0, "epsilon": 0.01}
    truth = float(oracles.delta_gshm_exact(m=1000, **gshm))
    assert delta_gshm_exact(m=1000, **gshm) == pytest.approx(truth, rel=2e-7)
    csh = {"sigma": 200.0, "sigma_shared": 40.0, "tau": 961.0}
    truth = float(oracles.delta_csh_tighter(k=1000, epsilon=0.01, **csh))
    assert delta_csh_tighter(k=1000, epsilon=0.01, **csh) == pytest.approx(truth, rel=2e-7)
    assert truth > 1.1 * float(infinite_event_upper(count=1000, **csh))
    assert truth > 1.1 * delta_correlated_gaussian(dimension=1000, gamma=25.0, sigma=200.0, epsilon=0.01)


# The Laplace stability histogram.


@pytest.mark.parametrize(("scale", "epsilon"), [(Fraction(1), 1.0), (Fraction(7, 2), 0.5), (Fraction(10), 0.1)])
@pytest.mark.parametrize("limit", [0, 2, 7])
def test_laplace_certificate_of_single_items(scale: Fraction, limit: int, epsilon: float) -> None:
    truth = float(oracles.delta_discrete_laplace_single(scale=float(scale), tau=limit, epsilon=epsilon))
    certificate = certify_discrete_laplace(scale, limit, Contract(None, 1), epsilon=epsilon)
    assert certificate.delta >= truth * (1.0 - 1e-13)
    assert certificate.delta == pytest.approx(truth, rel=1e-9, abs=1e-15)


@settings(max_examples=examples(15))
@given(m=st.integers(1, 10**6), scale=st.floats(0.1, 12.0), height=st.floats(0.0, 80.0))
def test_infinite_event_laplace(m: int, scale: float, height: float) -> None:
    tau = scale * height
    truth = float(oracles.infinite_event_laplace(m=m, scale=scale, tau=tau, discrete=False))
    assert infinite_event_laplace(m=m, scale=scale, tau=tau) == pytest.approx(truth, rel=1e-11)
    truth = float(oracles.infinite_event_laplace(m=m, scale=scale, tau=tau, discrete=True))
    assert infinite_event_discrete_laplace(m=m, scale=scale, tau=tau) == pytest.approx(truth, rel=1e-11)


@given(m=st.integers(1, 10**6), scale=st.floats(0.1, 1e4), log_delta=st.floats(-600.0, -0.1))
def test_least_tau_of_laplace_noise_passes(m: int, scale: float, log_delta: float) -> None:
    delta = 2.718281828**log_delta
    tau = tau_laplace(m=m, scale=scale, delta=delta)
    assert infinite_event_laplace(m=m, scale=scale, tau=tau) <= delta
    if tau > 0.0:
        assert infinite_event_laplace(m=m, scale=scale, tau=tau * (1 - 1e-6) - 1e-6 * scale) > delta
    whole = tau_laplace(m=m, scale=scale, delta=delta, discrete=True)
    assert whole == int(whole)
    assert infinite_event_discrete_laplace(m=m, scale=scale, tau=whole) <= delta
    if whole > 0.0:
        assert infinite_event_discrete_laplace(m=m, scale=scale, tau=whole - 1.0) > delta


def test_too_little_laplace_noise_is_rejected() -> None:
    with pytest.raises(NotPrivate, match="below m/epsilon"):
        certify_discrete_laplace(3 - Fraction(1, 10**12), 5, Contract(None, 3), epsilon=1.0)
