"""Every bound of the paper against its oracle, and the order among them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from dphist.errors import NotPrivate
from dphist.privacy.exact import infinite_event, infinite_event_upper
from dphist.privacy.paper import (
    delta_correlated_gaussian,
    delta_csh_add_the_deltas,
    delta_csh_tighter,
    delta_gshm_add_the_deltas,
    delta_gshm_exact,
    tau_csh_add_the_deltas,
    tau_gshm_add_the_deltas,
)
from dphist.privacy.types import Noise
from scheduling import examples

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


def test_closed_form_threshold_refuses_noise_that_breaks_the_promise() -> None:
    with pytest.raises(NotPrivate, match=r"sigma = 1\.0 alone gives delta"):
        tau_csh_add_the_deltas(k=10, sigma=1.0, sigma_shared=0.5, epsilon=0.35, delta=1e-5)


def test_threshold_of_the_gshm_passes() -> None:
    tau = tau_gshm_add_the_deltas(m=50, sigma=31.0, epsilon=1.0, delta=1e-6)
    assert delta_gshm_add_the_deltas(m=50, sigma=31.0, tau=tau, epsilon=1.0) <= 1e-6
    assert delta_gshm_add_the_deltas(m=50, sigma=31.0, tau=tau * (1.0 - 1e-9), epsilon=1.0) > 1e-6
    assert math.isinf(tau_gshm_add_the_deltas(m=50, sigma=1.0, epsilon=1.0, delta=1e-6))


def test_large_counts_by_blocks_agree_with_all_cases() -> None:
    """A thousand cases in blocks against the oracle's one by one; of the CSH mixtures are the worst."""
    gshm = {"sigma": 400.0, "tau": 1600.0, "epsilon": 0.01}
    truth = float(oracles.delta_gshm_exact(m=1000, **gshm))
    assert delta_gshm_exact(m=1000, **gshm) == pytest.approx(truth, rel=2e-7)
    csh = {"sigma": 200.0, "sigma_shared": 40.0, "tau": 961.0}
    truth = float(oracles.delta_csh_tighter(k=1000, epsilon=0.01, **csh))
    assert delta_csh_tighter(k=1000, epsilon=0.01, **csh) == pytest.approx(truth, rel=2e-7)
    assert truth > 1.1 * float(infinite_event_upper(count=1000, **csh))
    assert truth > 1.1 * delta_correlated_gaussian(dimension=1000, gamma=25.0, sigma=200.0, epsilon=0.01)
