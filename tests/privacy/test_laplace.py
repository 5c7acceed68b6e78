"""The Laplace stability histogram against brute force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from dphist.errors import NotPrivate
from dphist.privacy.laplace import (
    delta_laplace,
    infinite_event_discrete_laplace,
    infinite_event_laplace,
    tau_laplace,
)


@pytest.mark.parametrize("scale", [0.4, 1.0, 3.5])
@pytest.mark.parametrize("tau", [0.0, 2.0, 7.5])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_single_items(scale: float, tau: float, epsilon: float) -> None:
    truth = float(oracles.delta_laplace_single(scale=scale, tau=tau, epsilon=epsilon))
    assert delta_laplace(m=1, scale=scale, tau=tau, epsilon=epsilon) == pytest.approx(truth, rel=1e-9, abs=1e-15)
    truth = float(oracles.delta_discrete_laplace_single(scale=scale, tau=tau, epsilon=epsilon))
    value = delta_laplace(m=1, scale=scale, tau=tau, epsilon=epsilon, discrete=True)
    assert value == pytest.approx(truth, rel=1e-9, abs=1e-15)


@given(m=st.integers(1, 10**6), scale=st.floats(0.1, 12.0), height=st.floats(0.0, 80.0))
def test_infinite_event(m: int, scale: float, height: float) -> None:
    tau = scale * height
    truth = float(oracles.infinite_event_laplace(m=m, scale=scale, tau=tau, discrete=False))
    assert infinite_event_laplace(m=m, scale=scale, tau=tau) == pytest.approx(truth, rel=1e-11)
    truth = float(oracles.infinite_event_laplace(m=m, scale=scale, tau=tau, discrete=True))
    assert infinite_event_discrete_laplace(m=m, scale=scale, tau=tau) == pytest.approx(truth, rel=1e-11)


@given(m=st.integers(1, 10**6), scale=st.floats(0.1, 1e4), log_delta=st.floats(-600.0, -0.1))
def test_least_tau_passes(m: int, scale: float, log_delta: float) -> None:
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


def test_too_little_noise_for_several_items_is_refused() -> None:
    with pytest.raises(NotPrivate, match="below m/epsilon"):
        delta_laplace(m=3, scale=2.9, tau=5.0, epsilon=1.0)
