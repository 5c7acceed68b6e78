"""The formulas of a prediction against enumeration."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dphist
import oracles_simulation as oracle
from dphist.errors import InvalidParameter
from dphist.model import Contract, LaplaceNoise, LatticeNoise, Noise, Plan, PublicNoise
from dphist.planning.utility import count_noise, moments_with_offset
from dphist.simulation.population import Population
from dphist.simulation.predict import thin_counts, totals_of

LAPLACE = LaplaceNoise(Fraction(3, 2), 7)
GAUSSIAN = LatticeNoise(2, Fraction(40), Fraction(0), 21)
SHARED = LatticeNoise(2, Fraction(36), Fraction(9), 21)
TOP = LatticeNoise(2, Fraction(24), Fraction(6), 15, "opposite")


def population(chances: list[list[float]]) -> Population:
    """Items with users who stay with these chances under a cap of 1, whatever their sizes."""
    counts = np.array([len(one) for one in chances], dtype=float)
    mean = np.array([sum(one) for one in chances])
    variance = np.array([sum(p * (1 - p) for p in one) for one in chances])
    return Population("test", counts, np.ones(len(chances)), ((1, 1), (9, 1)), lambda *_: (mean, variance))


def no_limit(*_: object) -> Any:
    raise AssertionError("no user has more than one item")


def plan_with(noise: LatticeNoise | LaplaceNoise, *, top: int | None = None) -> Plan:
    made = dphist.plan(epsilon=1, delta=1e-3, max_items_per_user=1)
    return replace(made, noise=noise, contract=made.contract if top is None else Contract(top))


def test_continuous_noise_is_one_normal_law() -> None:
    found = count_noise(Noise(2.0, 1.5, 6.25)).probability(np.array([0.0, 7.25, 9.75]))
    assert found == pytest.approx([0.0, 0.5, 0.8413447460685429], rel=1e-11)


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN, SHARED], ids=["laplace", "gaussian", "shared"])
@pytest.mark.parametrize("users", [1, 8, 12, 30])
def test_counts_without_a_cap(noise: LatticeNoise | LaplaceNoise, users: int) -> None:
    expected = oracle.counted(noise, [1.0] * users)
    at = np.array([float(users)])
    found = count_noise(noise).moments_if_passed(at, at)
    assert found.probability[0] == pytest.approx(expected.probability, abs=1e-12)
    assert found.error[0] == pytest.approx(expected.error, abs=1e-12)
    assert found.distance[0] == pytest.approx(expected.distance, abs=1e-12)
    assert count_noise(noise).probability(at)[0] == found.probability[0]


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
@pytest.mark.parametrize("chance", [0.03, 0.4, 0.9, 0.999])
@pytest.mark.parametrize("users", [1, 9, 25, 60])
def test_a_cap_that_drops_all_users_alike_is_exact(
    noise: LatticeNoise | LaplaceNoise, chance: float, users: int
) -> None:
    """Also the biases of the cap and of the selection: their means and distances are those of the enumeration."""
    chances = [chance] * users
    expected = oracle.counted(noise, chances)
    found = totals_of(plan_with(noise), population([chances]), limit=1)
    assert found.released == pytest.approx(expected.probability, rel=1e-4, abs=2e-6)
    assert found.error == pytest.approx(expected.error, rel=1e-4, abs=2e-5)
    assert found.distance == pytest.approx(expected.distance, rel=1e-4, abs=2e-5)
    assert found.relative == pytest.approx(expected.distance / users, rel=1e-4, abs=2e-5)
    assert found.kept == pytest.approx(expected.kept, rel=1e-4, abs=2e-5)
    assert found.missed == pytest.approx(users * (1 - expected.probability), rel=1e-4, abs=2e-5)
    assert found.variance == pytest.approx(expected.probability * (1 - expected.probability), rel=1e-3, abs=2e-6)


@pytest.mark.parametrize("noise", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_a_cap_that_drops_users_by_their_sizes_is_close(noise: LatticeNoise | LaplaceNoise) -> None:
    rng = np.random.default_rng(5)
    items = [(rng.random(users) ** power).tolist() for users in (12, 30, 70) for power in (0.1, 1.0, 3.0)]
    expected = [oracle.counted(noise, chances) for chances in items]
    found = totals_of(plan_with(noise), population(items), limit=1)
    assert found.released == pytest.approx(sum(one.probability for one in expected), rel=2e-3)
    assert found.error == pytest.approx(sum(one.error for one in expected), rel=2e-3)
    assert found.distance == pytest.approx(sum(one.distance for one in expected), rel=2e-3)
    assert found.kept == pytest.approx(sum(one.kept for one in expected), rel=2e-3)


def test_items_that_are_released_for_sure_are_taken_for_normal() -> None:
    """Where a count is far above the threshold nothing is enumerated, and the means are the same."""
    noise = LatticeNoise(14, Fraction(1960), Fraction(0), 147)
    for chance in (0.3, 0.97):
        chances = [chance] * 400
        expected, found = (
            oracle.counted(noise, chances),
            totals_of(plan_with(noise), population([chances]), limit=1),
        )
        assert found.released == pytest.approx(expected.probability)
        assert found.error == pytest.approx(expected.error, rel=1e-6)
        assert found.distance == pytest.approx(expected.distance, rel=1e-3)
        assert found.kept == pytest.approx(expected.kept, rel=1e-9)


def test_wide_laws_are_summed_in_strides() -> None:
    """A count of a million users: a few hundred points, with the mean and variance of all."""
    law = thin_counts(np.array([1e6]), np.array([3e5]), np.array([2.1e5]))
    assert law.left.size < 200
    mean = float(law.weight @ law.left)
    assert mean == pytest.approx(3e5, rel=1e-6)
    assert float(law.weight @ (law.left - mean) ** 2) == pytest.approx(2.1e5, rel=1e-3)


@pytest.mark.parametrize("rule", ["opposite", "independent"])
@pytest.mark.parametrize("above", [1, 5, 9, 14, 40])
@pytest.mark.parametrize("short", [0, 1, 4, 30])
def test_a_top_k_step(rule: str, above: int, short: int) -> None:
    noise = replace(TOP, offset=rule)  # type: ignore[arg-type]
    expected, found = (
        oracle.topped(noise, above, short),
        moments_with_offset(noise, np.array([float(above)]), short),
    )
    assert found.probability[0] == pytest.approx(expected.probability, abs=1e-12)
    assert found.error[0] == pytest.approx(expected.error, abs=1e-12)
    assert found.distance[0] == pytest.approx(expected.distance, abs=4e-3)


def test_a_top_k_step_subtracts_the_count_after_the_largest() -> None:
    counts = [40.0, 30.0, 30.0, 22.0, 21.0, 3.0]
    number = np.array([1.0, 1, 1, 1, 1, 50])
    everyone = Population("test", np.array(counts), number, ((1, 1),), no_limit)
    found = totals_of(plan_with(TOP, top=4), everyone)
    expected = [oracle.topped(TOP, int(count) - 21) for count in counts[:4]]
    assert everyone.count_at(5) == 21.0
    assert found.released == pytest.approx(sum(one.probability for one in expected), abs=5e-4)
    assert found.distance == pytest.approx(sum(one.distance for one in expected), abs=0.01)
    kept = sum(one.probability * count for one, count in zip(expected, counts, strict=False))
    assert found.kept == pytest.approx(kept, abs=0.02)
    assert everyone.count_at(56) == 0.0


def test_a_top_k_step_of_counts_with_a_limit() -> None:
    """Users stay with a chance of 1/2. The count that is subtracted is the expected one."""
    everyone = population([[0.5] * 80, [0.5] * 40, [0.5] * 20])
    plan = plan_with(TOP, top=2)
    plan = replace(plan, contract=Contract(2, 1))
    found = totals_of(plan, everyone, limit=1)
    assert everyone.count_at(3, 1) == 10.0
    released = distance = 0.0
    for users in (80, 40, 20):
        for left in range(11, users + 1):
            one, chance = oracle.topped(TOP, left - 10, users - left), math.comb(users, left) / 2**users
            released, distance = released + chance * one.probability, distance + chance * one.distance
    assert found.released == pytest.approx(released, abs=1e-6)
    assert found.distance == pytest.approx(distance, rel=1e-4)


def test_shared_noise_moves_all_items_together() -> None:
    """The variance of how many are released, by enumeration over the shared draw."""
    counts = np.array([9.0, 11.0, 12.0, 14.0])
    number = np.array([20.0, 10.0, 5.0, 3.0])
    shared, own = oracle.gaussian(9.0), oracle.gaussian(36.0)
    each = np.array([[own.chance[own.steps + w + 2 * c > 2 + 21].sum() for c in counts] for w in shared.steps])
    items = each @ number
    mean = shared.chance @ items
    expected = shared.chance @ ((each * (1 - each)) @ number) + shared.chance @ (items - mean) ** 2
    everyone = Population("test", counts, number, ((1, 1),), no_limit)
    found = totals_of(plan_with(SHARED), everyone, limit=1)
    assert found.released == pytest.approx(mean, rel=1e-9)
    assert found.variance == pytest.approx(expected, rel=1e-6)
    assert found.variance > 2 * totals_of(plan_with(GAUSSIAN), everyone, limit=1).variance


def test_what_has_no_threshold_or_cannot_be_drawn_is_refused() -> None:
    everyone = population([[1.0]])
    with pytest.raises(InvalidParameter, match="no threshold"):
        count_noise(PublicNoise(2, Fraction(40), Fraction(0)))
    with pytest.raises(InvalidParameter, match="nothing to predict"):
        totals_of(dphist.plan(epsilon=1, delta=1e-6, public_items=5), everyone)
    with pytest.raises(InvalidParameter, match="discrete"):
        totals_of(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=9, noise="continuous"), everyone)
    with pytest.raises(InvalidParameter, match="no offset"):
        moments_with_offset(GAUSSIAN, np.ones(1))


def test_plans_of_large_counts_stay_finite() -> None:
    plan = dphist.plan(epsilon=0.01, delta=1e-9, max_items_per_user=4096)
    counts = np.array([1.0, 1e4, 1e6, 1e9])
    sizes = ((1, 1), (5000, 1))
    everyone = Population("test", counts, np.ones(4), sizes, lambda *_: (counts * 0.9, counts * 0.09))
    found = totals_of(plan, everyone, limit=4096)
    assert all(math.isfinite(value) for value in (found.released, found.error, found.distance, found.kept))
