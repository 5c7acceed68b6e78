"""Options of `plan` that do not go together, gammas of discrete noise, and the law of release of a plan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dphist.errors import InvalidParameter
from dphist.planning.planner import plan
from dphist.planning.utility import release_probability
from dphist.privacy.paper import tau_laplace
from dphist.releasing.noise import begin
from dphist.sampling.tap import SeededTap

TEN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "max_nonzero": 10}


@pytest.mark.parametrize(
    "wrong",
    [
        {"top": 10, "max_nonzero": 10},
        {"top": 10, "gamma": 2.0},
        {"top": 10, "mechanism": "laplace"},
        {"max_nonzero": 10, "gamma": 2.0, "mechanism": "laplace"},
        {"max_nonzero": 10, "mechanism": "other"},
        {"max_nonzero": 10, "minimize": "other"},
        {},
    ],
    ids=str,
)
def test_options_that_do_not_go_together(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        plan(epsilon=1.0, delta=1e-6, **wrong)


@pytest.mark.parametrize("gamma", [1.0, 1.4, 12.5, 40.0])
def test_a_given_gamma_is_that_of_the_plan(gamma: float) -> None:
    """That of discrete noise is a whole number, and a note says so."""
    found = plan(**TEN, gamma=gamma)
    assert (found.sigma / found.sigma_shared) ** 2 == pytest.approx(round(gamma))
    assert any(note.startswith("Gamma is ") for note in found.notes) == (gamma != round(gamma))
    ideal = plan(**TEN, gamma=gamma, noise="continuous")
    assert (ideal.sigma / ideal.sigma_shared) ** 2 == pytest.approx(gamma)


@pytest.mark.parametrize("gamma", [0.3, 0.01])
def test_a_gamma_below_one_is_for_continuous_noise(gamma: float) -> None:
    with pytest.raises(InvalidParameter, match="gamma of discrete noise is a whole number from 1 on"):
        plan(**TEN, gamma=gamma)
    ideal = plan(**TEN, gamma=gamma, noise="continuous")
    assert (ideal.sigma / ideal.sigma_shared) ** 2 == pytest.approx(gamma)


def test_a_gamma_that_leaves_no_shared_noise_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="gamma = 1e\\+12 leaves too little shared noise"):
        plan(**TEN, gamma=1e12)


def test_laplace_thresholds_beyond_the_whole_doubles() -> None:
    law: dict[str, Any] = {"m": 10**12, "scale": 1e18, "delta": 1e-12}
    assert tau_laplace(**law, discrete=True) > 2**53
    assert tau_laplace(**law, discrete=True) == pytest.approx(tau_laplace(**law), rel=1e-9)


@pytest.mark.parametrize(
    "bounds",
    [{"max_items_per_user": 1}, {"top": 10}, pytest.param({"max_nonzero": 10}, marks=pytest.mark.slow)],
    ids=str,
)
def test_release_probability_is_that_of_the_mechanism(bounds: dict[str, Any]) -> None:
    """The noise of 2,000 fixed seeds: the share that passes is within 4 standard deviations."""
    sound = plan(epsilon=1.0, delta=1e-5, **bounds)
    count = round(sound.threshold) - 1
    runs, passed = 2000, 0
    for seed in range(runs):
        run = begin(sound, SeededTap(seed))
        passed += run.release(np.array([count], dtype=np.int64)).index.size
    expected = float(release_probability(sound.noise, [count])[0])
    assert abs(passed / runs - expected) < 4.0 * math.sqrt(expected * (1 - expected) / runs)


def test_release_probabilities_rise_from_nothing_to_certainty() -> None:
    for bounds in ({"max_nonzero": 10}, {"max_items_per_user": 1}, {"top": 100}):
        found = plan(epsilon=1.0, delta=1e-6, **bounds)  # type: ignore[arg-type]
        spread = math.hypot(found.sigma, found.sigma_shared)
        low = max(1, round(found.threshold - 4 * spread))
        chances = release_probability(found.noise, np.arange(low, round(found.threshold + 4 * spread))).tolist()
        assert chances == sorted(chances)
        assert chances[0] < 0.02
        assert chances[-1] > 0.98
    public = plan(epsilon=1.0, delta=1e-6, public_items=10)
    assert release_probability(public.noise, [1, 2]).tolist() == [1.0, 1.0]
