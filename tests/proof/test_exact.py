"""The exact analysis: every part against its oracle, the order of the bounds, limits and monotonicity."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_oracles import NOISE, simulated_divergence

import oracles_family as family_oracle
from dphist.model import Contract, Direction, NeighbourCase, Noise
from dphist.paper.bounds import delta_csh_add_the_deltas, delta_csh_tighter, delta_gshm_exact
from dphist.proof import continuous as continuous_module
from dphist.proof.continuous import delta_of_all_cases, delta_of_case
from dphist.proof.exact import (
    block_offsets,
    delta_family,
    gaussian_case,
    largest_squared_sensitivity,
    mixed_blocks,
    offset_bound,
    squared_sensitivity,
    sum_bound,
)
from scheduling import THOROUGH, examples

noises = st.builds(
    lambda sigma, ratio, height: Noise(sigma, sigma * ratio, sigma * height),
    st.floats(0.8, 6.0), st.floats(0.1, 1.5), st.floats(0.5, 5.0),
)  # fmt: skip
epsilons = st.floats(0.0, 1.5)


DIRECTIONS: tuple[Direction, Direction] = ("add", "remove")


@st.composite
def cases(draw: st.DrawFn) -> tuple[int, int, int]:
    j = draw(st.integers(0, 6))
    return j, draw(st.integers(0, 5)), draw(st.integers(0, j))


def as_oracle(noise: Noise) -> dict[str, float]:
    return {"sigma": noise.sigma, "sigma_shared": noise.sigma_shared, "tau": noise.tau}


@settings(max_examples=60 if THOROUGH else 3)
@given(case=cases(), noise=noises, epsilon=epsilons)
def test_exact_case(case: tuple[int, int, int], noise: Noise, epsilon: float) -> None:
    j, r, s = case
    for direction in DIRECTIONS:
        truth = family_oracle.delta_case(j=j, r=r, s=s, epsilon=epsilon, direction=direction, **as_oracle(noise))
        value = delta_of_case(NeighbourCase(j, r, s, direction), noise, epsilon=epsilon)
        assert value == pytest.approx(float(truth), rel=1e-8, abs=1e-13)


@settings(max_examples=12 if THOROUGH else 3)
@given(case=cases(), noise=noises, epsilon=epsilons, offset=st.just(0.0) | st.floats(0.01, 1.0))
def test_offset_bound(case: tuple[int, int, int], noise: Noise, epsilon: float, offset: float) -> None:
    j, r, s = case
    both = offset_bound(noise, shared=j, new=r, changed=s, offset=offset, epsilon=epsilon)
    for direction, value in zip(DIRECTIONS, (both.add[0], both.remove[0]), strict=True):
        truth = family_oracle.offset_bound(
            j=j, r=r, s=s, a=offset, epsilon=epsilon, direction=direction, **as_oracle(noise)
        )
        assert value == pytest.approx(float(truth), rel=1e-7, abs=1e-12)
        exact = delta_of_case(NeighbourCase(j, r, s, direction), noise, epsilon=epsilon)
        assert value >= exact * (1.0 - 1e-8) - 1e-13


def check_family(shape: tuple[int, int], noise: Noise, epsilon: float) -> None:
    """Never below the brute-force maximum; equal to it unless mixed neighbours are the worst."""
    k, m = shape
    truth, _ = family_oracle.delta_family(k=k, m=m, epsilon=epsilon, **as_oracle(noise))
    value = delta_family(noise, Contract(k, m), epsilon=epsilon)
    assert value.delta >= float(truth) * (1.0 - 1e-9)
    assert value.delta <= float(truth) * (1.0 + (1e-7 if value.case.new in (0, m) else 0.25))
    delta, complete = delta_of_all_cases(noise, Contract(k, m), epsilon=epsilon)
    assert complete
    assert delta == pytest.approx(float(truth), rel=1e-8)


@pytest.mark.parametrize(
    ("shape", "noise", "epsilon", "gap"),
    [
        ((5, 2), Noise(0.85, 1.7, 1.74), 1.0, 0.0058),
        ((3, 2), Noise(27.1, 27.1 / math.sqrt(0.6), 108.0), 0.0, 0.0498),
        ((2, 2), Noise(50.35, 50.35 / math.sqrt(0.93), 195.6), 0.0, 0.103),
    ],
)
def test_exact_delta_where_the_bound_of_mixed_neighbours_has_a_gap(
    shape: tuple[int, int], noise: Noise, epsilon: float, gap: float
) -> None:
    """The bound's worst neighbours are mixed; the worst ones are mixed, or have only new counts."""
    check_family(shape, noise, epsilon)
    bound, contract = delta_family(noise, Contract(*shape), epsilon=epsilon), Contract(*shape)
    assert bound.delta > delta_of_all_cases(noise, contract, epsilon=epsilon)[0] * (1.0 + gap)


def test_exact_delta_that_would_take_too_long_is_a_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, contract = Noise(0.85, 1.7, 1.74), Contract(5, 2)
    truth, _ = delta_of_all_cases(noise, contract, epsilon=1.0)
    for limit in ("_MOST_PAIRS", "_MOST_CASES"):
        with monkeypatch.context() as patched:
            patched.setattr(continuous_module, limit, 0)
            lower, complete = delta_of_all_cases(noise, contract, epsilon=1.0)
        assert not complete
        assert 0.9 * truth < lower <= truth * (1.0 + 1e-9)


@settings(max_examples=examples(6))
@given(shape=st.sampled_from([(1, 1), (2, 1), (2, 2)]), noise=noises, epsilon=epsilons)
def test_family_against_all_neighbours(shape: tuple[int, int], noise: Noise, epsilon: float) -> None:
    check_family(shape, noise, epsilon)


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(shape=st.sampled_from([(3, 2), (3, 3), (4, 1), (4, 3), (4, 4), (5, 2)]), noise=noises, epsilon=epsilons)
def test_family_against_all_neighbours_of_more_counts(
    shape: tuple[int, int], noise: Noise, epsilon: float
) -> None:
    check_family(shape, noise, epsilon)


def test_exact_case_of_tiny_delta() -> None:
    noise, case = Noise(20.0, 12.0, 2000.0), NeighbourCase(5, 1, 5, "remove")
    truth = family_oracle.delta_case(j=5, r=1, s=5, epsilon=1.0, direction="remove", **as_oracle(noise))
    assert truth < 1e-50
    assert delta_of_case(case, noise, epsilon=1.0) == pytest.approx(float(truth), rel=1e-8)


@pytest.mark.parametrize(
    ("case", "epsilon", "direction"),
    [
        ((2, 2, 1), 0.05, "remove"),
        pytest.param((2, 1, 1), 0.05, "add", marks=pytest.mark.slow),
        pytest.param((3, 2, 1), 0.1, "add", marks=pytest.mark.slow),
    ],
)
def test_exact_case_against_simulation(case: tuple[int, int, int], epsilon: float, direction: Direction) -> None:
    """In the full space R^j. By Hoeffding, a correct value fails with probability <= 3e-10 in all three cases.

    Power: the margin is below 5 % of delta, so a value wrong by 10 % fails, up to the same probability.
    """
    samples = 400_000
    margin = math.sqrt(math.log(2 / 1e-10) / (2 * samples))
    noise = Noise(NOISE["sigma"], NOISE["sigma_shared"], NOISE["tau"])
    value = delta_of_case(NeighbourCase(*case, direction), noise, epsilon=epsilon)
    mean = simulated_divergence(case=case, epsilon=epsilon, add=direction == "add", samples=samples)
    assert 2 * margin < 0.1 * value, "no power here: choose another case"
    assert abs(mean - value) <= margin
    assert abs(mean - 1.1 * value) > margin
    assert abs(mean - 0.9 * value) > margin


@given(j=st.integers(1, 400), gamma=st.floats(0.01, 900.0), data=st.data())
def test_largest_sensitivity_is_the_maximum_over_integers(j: int, gamma: float, data: st.DataObject) -> None:
    most = data.draw(st.integers(1, j))
    every = squared_sensitivity(shared=j, changed=np.arange(most + 1), gamma=gamma)
    assert largest_squared_sensitivity(shared=j, most=most, gamma=gamma) == pytest.approx(every.max(), rel=1e-14)
    if most <= 12 and j <= 12:
        truth = family_oracle.squared_sensitivity(j=j, s=most, sigma=2.0, sigma_shared=2.0 / math.sqrt(gamma))
        assert every[-1] / 4.0 == pytest.approx(float(truth), rel=1e-12)


@settings(max_examples=60 if THOROUGH else 6)
@given(noise=noises, epsilon=epsilons, k=st.integers(3, 300), share=st.floats(0.05, 1.0))
def test_blocks_cover_every_case(noise: Noise, epsilon: float, k: int, share: float) -> None:
    """The blocks partition 1..m-1, and no single case exceeds the bound of its block."""
    m = max(2, round(k * share))
    contract = Contract(k, m)
    scale = math.sqrt(k)
    big = Noise(noise.sigma * scale, noise.sigma_shared * math.sqrt(scale), noise.tau * scale)
    blocks = mixed_blocks(big, contract, epsilon=epsilon, enough=1e-9)
    order = np.argsort(blocks.first)
    first, last, upper = blocks.first[order], blocks.last[order], blocks.upper[order]
    assert first[0] == 1
    assert last[-1] == m - 1
    assert (first[1:] == last[:-1] + 1).all()
    rng = np.random.default_rng(k)
    for new in rng.integers(1, m, size=3):
        here = upper[np.searchsorted(last, new)]
        one = np.array([new])
        most = min(k - int(new), m - int(new))
        # One offset covers all s up to its own, the other all s from its own.
        below, above = block_offsets(big, contract, one, one)
        for (j, r, own, offset), first_s, last_s in (
            (below, 0, int(below[2][0])),
            (above, int(above[2][0]), most),
        ):
            assert first_s <= own[0] <= last_s
            s = np.arange(first_s, last_s + 1)
            single = offset_bound(big, shared=j, new=r, changed=s, offset=offset, epsilon=epsilon)
            assert single.worst.max() <= max(here, 1e-9) * (1.0 + 1e-9)


@settings(max_examples=examples(24))
@given(noise=noises, epsilon=epsilons, k=st.integers(2, 60))
def test_offset_bound_is_never_above_the_sum(noise: Noise, epsilon: float, k: int) -> None:
    contract = Contract(k, k)
    every = np.arange(1, k, dtype=np.int64)
    by_sum = sum_bound(noise, contract, every, every, epsilon=epsilon, smallest=1e-300)
    by_offset = mixed_blocks(noise, contract, epsilon=epsilon, enough=0.0, relative=0.0)
    assert by_offset.maximum <= by_sum.max() * (1.0 + 1e-9)


# Limits, order and monotonicity.

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


@settings(max_examples=examples(24))
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
