"""The Laplace stability histogram against brute force."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from dphist.errors import NotPrivate
from dphist.privacy.certificate import certify_discrete_laplace
from dphist.privacy.paper import infinite_event_discrete_laplace, infinite_event_laplace, tau_laplace
from dphist.privacy.types import Contract
from scheduling import examples


@pytest.mark.parametrize(("scale", "epsilon"), [(Fraction(1), 1.0), (Fraction(7, 2), 0.5), (Fraction(10), 0.1)])
@pytest.mark.parametrize("limit", [0, 2, 7])
def test_single_items(scale: Fraction, limit: int, epsilon: float) -> None:
    truth = float(oracles.delta_discrete_laplace_single(scale=float(scale), tau=limit, epsilon=epsilon))
    found = certify_discrete_laplace(scale, limit, Contract(None, 1), epsilon=epsilon)
    assert found.delta >= truth * (1.0 - 1e-13)
    assert found.delta == pytest.approx(truth, rel=1e-9, abs=1e-15)


@settings(max_examples=examples(100))
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
        certify_discrete_laplace(Fraction(29, 10), 5, Contract(None, 3), epsilon=1.0)
