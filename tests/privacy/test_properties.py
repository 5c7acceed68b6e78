"""Monotone in every argument, the right limits, the right order: properties of the exact analysis."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphist.privacy.exact import delta_family, gaussian_case
from dphist.privacy.paper import delta_csh_add_the_deltas, delta_csh_tighter, delta_gshm_exact
from dphist.privacy.types import Contract, Noise
from scheduling import examples

SLACK = 1.0 + 3e-7


@st.composite
def plans(draw: st.DrawFn) -> tuple[Noise, Contract, float]:
    k = draw(st.sampled_from([1, 2, 3, 6, 17, 60, 1000]))
    m = draw(st.integers(1, k))
    sigma = math.sqrt(m) * draw(st.floats(0.5, 5.0))
    noise = Noise(sigma, sigma / math.sqrt(draw(st.floats(0.3, 200.0))), sigma * draw(st.floats(0.5, 7.0)))
    return noise, Contract(k, m), draw(st.floats(0.0, 3.0))


def delta(noise: Noise, contract: Contract, epsilon: float) -> float:
    return delta_family(noise, contract, epsilon=epsilon).delta


@settings(max_examples=examples(40))
@given(plans())
def test_monotone_in_every_argument(plan: tuple[Noise, Contract, float]) -> None:
    noise, contract, epsilon = plan
    k, m = int(contract.nonzero), contract.items
    here = delta(noise, contract, epsilon)
    assert delta(replace(noise, tau=noise.tau * 1.2), contract, epsilon) <= here * SLACK
    assert delta(noise, contract, epsilon + 0.3) <= here * SLACK
    assert delta(noise, Contract(k + 3, m), epsilon) >= here / SLACK
    if m < k:
        assert delta(noise, Contract(k, m + 1), epsilon) >= here / SLACK
    # More noise of both kinds with a threshold raised in proportion is never worse.
    louder = Noise(noise.sigma * 1.3, noise.sigma_shared * 1.3, noise.tau * 1.3)
    assert delta(louder, contract, epsilon) <= here * SLACK


@settings(max_examples=examples(40))
@given(plans())
def test_exact_is_never_above_the_papers_bounds(plan: tuple[Noise, Contract, float]) -> None:
    noise, contract, epsilon = plan
    numbers = {
        "k": int(contract.nonzero), "sigma": noise.sigma, "sigma_shared": noise.sigma_shared,
        "tau": noise.tau, "epsilon": epsilon,
    }  # fmt: skip
    exact = delta(noise, contract, epsilon)
    tighter, added = delta_csh_tighter(**numbers), delta_csh_add_the_deltas(**numbers)  # type: ignore[arg-type]
    assert exact <= min(1.0, tighter) * SLACK
    assert tighter <= added * SLACK


@given(plans())
def test_high_thresholds_leave_the_gaussian_mechanism(plan: tuple[Noise, Contract, float]) -> None:
    noise, contract, epsilon = plan
    far = replace(noise, tau=60.0 * noise.total_noise)
    assert delta(far, contract, epsilon) == pytest.approx(
        gaussian_case(far, contract, epsilon=epsilon).delta, rel=1e-6, abs=1e-300
    )


@settings(max_examples=examples(40))
@given(plans())
def test_vanishing_shared_noise_leaves_the_gshm(plan: tuple[Noise, Contract, float]) -> None:
    noise, contract, epsilon = plan
    gshm = delta_gshm_exact(m=contract.items, sigma=noise.sigma, tau=noise.tau, epsilon=epsilon)
    without = replace(noise, sigma_shared=0.0)
    assert delta(without, contract, epsilon) == pytest.approx(gshm, rel=3e-7)
    for ratio in (1e-3, 1e-5):
        almost = replace(noise, sigma_shared=noise.sigma * ratio)
        assert delta(almost, contract, epsilon) == pytest.approx(gshm, rel=60.0 * ratio)
