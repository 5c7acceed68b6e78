"""The mechanisms: what they release, with which variance, and which counts they reject."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import oracles
import oracles_discrete
from dphist import plan
from dphist.audit import Mechanism, PlannedMechanism
from dphist.errors import InvalidParameter
from dphist.model import Contract, LaplaceNoise, LatticeNoise
from dphist.proof.certify import certify_discrete_laplace
from dphist.proof.certify_lattice import certify_known_domain
from dphist.sampling.rng import SeededRng
from idealised import IdealisedMechanism


def family(**numbers: Any) -> PlannedMechanism:
    return PlannedMechanism(plan(epsilon=1.0, delta=1e-6, noise="discrete", **numbers))


MECHANISMS: list[Mechanism] = [
    family(max_items_per_user=5),
    family(max_nonzero=40),
    family(max_items_per_user=1, mechanism="laplace"),
    IdealisedMechanism(plan(epsilon=1.0, delta=1e-6, max_nonzero=40, noise="continuous")),
]


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
def test_zero_counts_stay_hidden_and_the_threshold_is_strict(mechanism: Any) -> None:
    threshold = mechanism.plan.threshold
    counts = np.array([0, 1, 5, 10**6, 0, round(threshold), 10**6 + 1] * 500, dtype=np.int64)
    released = mechanism.begin(SeededRng(1)).release(counts)
    assert (counts[released.index] > 0).all()
    assert (released.values > threshold).all()
    assert (np.diff(released.index) > 0).all()
    large = counts[released.index] >= 10**6
    assert large.sum() == 1000, "large counts are always released"
    assert 0 < (~large).sum() < 500, "counts at the threshold are released about half the time"


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: m.name)
@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([1, -2], "all counts must be between 0 and"),
        ([1.0, float("nan")], "must not be NaN"),
        ([1.0, 2.5], "must be whole numbers"),
        ([2**60, 1], "all counts must be between 0 and"),
        (["many"], "must be numbers"),
        ([[1, 2]], "one-dimensional"),
    ],
)
def test_bad_counts_are_rejected_without_repeating_them(mechanism: Mechanism, counts: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message) as error:
        mechanism.begin(SeededRng(2)).release(counts)
    for secret in ("-2", "2.5", str(2**60)):
        assert secret not in str(error.value)


def test_shared_and_own_noise_have_the_planned_variances() -> None:
    """Normal-theory intervals at 6.5 standard errors: false alarm below 1e-9 for both together.

    With 40,000 draws of each they are 4.6 % wide, so a variance wrong by 10 % fails. That counts of a session have
    the sum of both is tested below, and exactly in `test_count_noise.py`.
    """
    mechanism = family(max_nonzero=40)
    noise, rng, draws = mechanism.plan.noise, SeededRng(3), 40_000
    session = mechanism.begin(rng)
    own = session.release(np.full(draws, 10**6, dtype=np.int64)).values
    shared = np.array([mechanism.begin(rng).shared for _ in range(draws)]) / session.noise.lattice
    width = 6.5 * math.sqrt(2.0 / draws)
    for found, expected in ((own.var(), noise.sigma**2), (shared.var(), noise.sigma_shared**2)):
        assert abs(found / expected - 1.0) < width
        assert abs(found / (1.1 * expected) - 1.0) > width
        assert abs(found / (0.9 * expected) - 1.0) > width


def test_one_shared_draw_serves_all_batches() -> None:
    mechanism = family(max_nonzero=40)
    session = mechanism.begin(SeededRng(4))
    batches = [session.release(np.full(4000, 10**6, dtype=np.int64)).values - 10**6 for _ in range(3)]
    means = [batch.mean() for batch in batches]
    # Within a session the means differ only by own noise: 7 standard errors, false alarm below 1e-11.
    assert max(means) - min(means) < 7.0 * mechanism.plan.sigma * math.sqrt(2.0 / 4000)
    assert np.mean(means) == pytest.approx(
        session.shared / session.noise.lattice, abs=7.0 * mechanism.plan.sigma / 100.0
    )
    other = mechanism.begin(SeededRng(5))
    assert other.shared != session.shared


def test_the_idealised_mechanism_has_the_planned_variance() -> None:
    """6.5 standard errors: false alarm below 1e-10; a variance wrong by 10 % fails."""
    mechanism = IdealisedMechanism(plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, noise="continuous"))
    values = mechanism.begin(SeededRng(9)).release(np.full(100_000, 10**6, dtype=np.int64)).values - 10**6
    assert abs(values.var() / mechanism.plan.sigma**2 - 1.0) < 6.5 * math.sqrt(2.0 / 100_000) < 0.05


def test_continuous_plans_cannot_be_drawn() -> None:
    made = plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, noise="continuous")
    with pytest.raises(InvalidParameter, match="noise='discrete'"):
        PlannedMechanism(made).begin(SeededRng(1))


def test_known_domain_releases_everything() -> None:
    mechanism = family(public_items=30, max_items_per_user=4)
    counts = np.arange(30, dtype=np.int64)
    released = mechanism.begin(SeededRng(6)).release(counts)
    assert released.index.tolist() == list(range(30))
    assert mechanism.proof.delta <= 1e-6
    with pytest.raises(InvalidParameter, match="31 keys exceeds the public domain of 30"):
        mechanism.begin(SeededRng(7)).release(np.arange(31))


def test_known_domain_against_enumeration() -> None:
    noise = LatticeNoise(2, Fraction(30), Fraction(15), 1)
    truth = max(
        float(
            oracles_discrete.delta_discrete_case(
                j=3, r=0, s=s, lattice=2, variance=30, variance_shared=15, limit=1, epsilon=0.2, direction="add"
            )
        )
        for s in range(4)
    )
    value = certify_known_domain(noise, Contract(3), epsilon=0.2).delta
    assert truth * (1.0 - 1e-9) <= value <= 1.1 * truth


@pytest.mark.parametrize("items", [1, 3])
def test_laplace_plan_has_the_least_threshold(items: int) -> None:
    made = plan(epsilon=0.7, delta=1e-6, max_items_per_user=items, mechanism="laplace")
    noise = made.noise
    assert isinstance(noise, LaplaceNoise)
    truth = float(
        oracles.infinite_event_laplace(m=items, scale=float(noise.scale), tau=noise.tau_steps, discrete=True)
    )
    assert made.proof.delta == pytest.approx(truth, rel=1e-12)
    assert made.proof.delta <= 1e-6
    below = certify_discrete_laplace(noise.scale, noise.tau_steps - 1, made.contract, epsilon=0.7)
    assert below.delta > 1e-6


def test_laplace_variance() -> None:
    """6.5 standard errors with the kurtosis 6 of a Laplace law: false alarm below 1e-10; 10 % off fails."""
    mechanism = PlannedMechanism(plan(epsilon=0.5, delta=1e-6, max_items_per_user=1, mechanism="laplace"))
    size = 200_000
    values = mechanism.begin(SeededRng(8)).release(np.full(size, 10**6, dtype=np.int64)).values - 10**6
    width = 6.5 * math.sqrt(5.0 / size)
    assert abs(values.var() / mechanism.plan.total_noise**2 - 1.0) < width < 0.05
