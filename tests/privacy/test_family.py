"""The exact analysis of the family: every piece against the independent oracle, and the bounds in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_oracles import NOISE, simulated_divergence

import oracles_family as family_oracle
from dphist.privacy.exact import (
    block_offsets,
    delta_family,
    delta_of_case,
    largest_squared_sensitivity,
    mixed_blocks,
    offset_bound,
    squared_sensitivity,
    sum_bound,
)
from dphist.privacy.types import Contract, Direction, NeighbourCase, Noise
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


def check_exact_case(case: tuple[int, int, int], noise: Noise, epsilon: float) -> None:
    j, r, s = case
    for direction in DIRECTIONS:
        truth = family_oracle.delta_case(j=j, r=r, s=s, epsilon=epsilon, direction=direction, **as_oracle(noise))
        value = delta_of_case(NeighbourCase(j, r, s, direction), noise, epsilon=epsilon)
        assert value == pytest.approx(float(truth), rel=1e-8, abs=1e-13)


@settings(max_examples=examples(9))
@given(case=cases(), noise=noises, epsilon=epsilons)
def test_exact_case(case: tuple[int, int, int], noise: Noise, epsilon: float) -> None:
    check_exact_case(case, noise, epsilon)


@settings(max_examples=examples(12))
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


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(case=cases(), noise=noises, epsilon=epsilons)
def test_exact_case_at_length(case: tuple[int, int, int], noise: Noise, epsilon: float) -> None:
    check_exact_case(case, noise, epsilon)


def test_exact_case_of_tiny_delta() -> None:
    noise, case = Noise(20.0, 12.0, 2000.0), NeighbourCase(5, 1, 5, "remove")
    truth = family_oracle.delta_case(j=5, r=1, s=5, epsilon=1.0, direction="remove", **as_oracle(noise))
    assert truth < 1e-50
    assert delta_of_case(case, noise, epsilon=1.0) == pytest.approx(float(truth), rel=1e-8)


@pytest.mark.parametrize(
    ("case", "epsilon", "direction"),
    [
        ((2, 1, 1), 0.05, "add"),
        ((2, 2, 1), 0.05, "remove"),
        pytest.param((3, 2, 1), 0.1, "add", marks=pytest.mark.slow),
    ],
)
def test_exact_case_against_simulation(case: tuple[int, int, int], epsilon: float, direction: Direction) -> None:
    """In the full space R^j. Hoeffding: a right value fails with probability <= 3e-10 in all three together.

    The margin is below 5 % of delta, so a value wrong by 10 % fails, up to that same probability.
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
        # One offset covers all s up to its own, the other all from its own on. With the offset of each s the bound
        # may be larger: it is another bound of the same delta.
        below, above = block_offsets(big, contract, one, one)
        for (j, r, own, offset), first_s, last_s in (
            (below, 0, int(below[2][0])),
            (above, int(above[2][0]), most),
        ):
            assert first_s <= own[0] <= last_s
            s = np.arange(first_s, last_s + 1)
            single = offset_bound(big, shared=j, new=r, changed=s, offset=offset, epsilon=epsilon)
            assert single.worst.max() <= max(here, 1e-9) * (1.0 + 1e-9)


@given(noise=noises, epsilon=epsilons, k=st.integers(2, 60))
def test_offset_bound_is_never_above_the_sum(noise: Noise, epsilon: float, k: int) -> None:
    contract = Contract(k, k)
    every = np.arange(1, k, dtype=np.int64)
    by_sum = sum_bound(noise, contract, every, every, epsilon=epsilon, smallest=1e-300)
    by_offset = mixed_blocks(noise, contract, epsilon=epsilon, enough=0.0, relative=0.0)
    assert by_offset.maximum <= by_sum.max() * (1.0 + 1e-9)
