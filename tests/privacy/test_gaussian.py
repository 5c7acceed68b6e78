"""The Gaussian mechanism against its oracle over the whole range that is promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

import oracles
from dphist.privacy.numerics import hockey_stick_normal
from dphist.privacy.paper import (
    delta_correlated_gaussian,
    delta_gaussian,
    largest_sensitivity_per_sigma,
)


def relative_error(value: float, truth: object) -> float:
    with mp.workdps(50):
        return float(abs(mp.mpf(value) / truth - 1))


def sensitivity_for(epsilon: float, z: float) -> float:
    """The sensitivity, at sigma = 1, with epsilon/S - S/2 = z: z = 37 is about delta = 1e-300."""
    return -z + math.sqrt(z * z + 2.0 * epsilon)


@given(epsilon=st.floats(1e-6, 800.0), z=st.floats(-6.0, 36.9))
def test_delta_is_accurate_from_1e_minus_300_to_1(epsilon: float, z: float) -> None:
    sensitivity = sensitivity_for(epsilon, z)
    truth = oracles.delta_gaussian(sensitivity=sensitivity, sigma=1, epsilon=epsilon)
    if truth > 1e-300:
        assert relative_error(delta_gaussian(sensitivity=sensitivity, sigma=1.0, epsilon=epsilon), truth) < 1e-12


@given(
    sensitivity=st.floats(1e-9, 60.0),
    epsilon=st.sampled_from([0.0, 1e-9, 0.3, 20.0, 800.0]),
    negative=st.booleans(),
)
def test_delta_is_accurate_for_any_sensitivity(sensitivity: float, epsilon: float, negative: bool) -> None:
    at = -epsilon if negative else epsilon
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
def test_the_inverse_passes_and_hardly_more_would(epsilon: float, log_delta: float) -> None:
    delta = math.exp(log_delta)
    mu = largest_sensitivity_per_sigma(epsilon=epsilon, delta=delta)
    assert hockey_stick_normal(mu, epsilon) <= delta
    assert hockey_stick_normal(mu * (1.0 + 1e-9), epsilon) > delta


def test_no_sensitivity_costs_nothing() -> None:
    assert delta_gaussian(sensitivity=0.0, sigma=1.0, epsilon=0.5) == 0.0
    assert delta_gaussian(sensitivity=0.0, sigma=1.0, epsilon=-0.5) == pytest.approx(1.0 - math.exp(-0.5))


def test_arrays_of_every_branch_agree_with_single_values() -> None:
    mu = np.array([0.0, 1e-6, 0.01, 0.049, 0.3, 0.6, 5.0, 20.0, 50.0])
    epsilon = np.array([-700.0, -1.0, 0.0, 1e-3, 1.0, 700.0])
    table = hockey_stick_normal(mu[:, None], epsilon)
    for i, x in enumerate(mu):
        for j, e in enumerate(epsilon):
            assert table[i, j] == pytest.approx(float(hockey_stick_normal(x, e)), rel=1e-12, abs=1e-300)
