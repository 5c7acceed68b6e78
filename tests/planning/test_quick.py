"""The quick numbers of the page against the certified ones: near enough for a curve."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dphist.errors import InvalidParameter
from dphist.planning.compare import compare
from dphist.planning.planner import plan
from dphist.planning.quick import quick_comparison, quick_frontiers, quick_plan, release_curve
from dphist.planning.utility import release_probability
from dphist.privacy.laplace import tau_laplace
from dphist.report.figure import frontiers
from dphist.sampling.mechanisms import begin
from dphist.sampling.tap import SeededTap

NEAR = 5e-3
BOUNDS: list[dict[str, Any]] = [
    {"max_nonzero": 2},
    {"max_nonzero": 10},
    {"max_nonzero": 1000},
    {"max_nonzero": 51914},
    {"max_nonzero": 10**6},
    {"max_nonzero": 1000, "max_items_per_user": 100},
    {"max_nonzero": 10**6, "max_items_per_user": 100},
    {"max_items_per_user": 1},
    {"max_items_per_user": 20},
    {"top": 1000},
    {"top": 10**6},
    {"top": 1000, "max_items_per_user": 30},
]

BUDGETS = [
    (0.35, 1e-5),
    (3.0, 1e-4),
    *(pytest.param(*more, marks=pytest.mark.slow) for more in ((1.0, 1e-6), (0.5, 1e-12))),
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_quick_plans_are_near(epsilon: float, delta: float, bounds: dict[str, Any]) -> None:
    quick = quick_plan(epsilon=epsilon, delta=delta, **bounds)
    sound = plan(epsilon=epsilon, delta=delta, **bounds)
    assert quick.mechanism == sound.mechanism
    assert quick.threshold == pytest.approx(sound.threshold, rel=NEAR)
    assert quick.total_noise == pytest.approx(sound.total_noise, rel=NEAR)


@pytest.mark.parametrize(
    "others",
    [
        {"mechanism": "laplace"},
        {"mechanism": "gaussian"},
        {"gamma": "sqrt"},
        {"gamma": 7.0},
        {"minimize": "noise"},
    ],
    ids=str,
)
@pytest.mark.parametrize("bounds", [{"max_nonzero": 50}, {"max_nonzero": 300, "max_items_per_user": 2}], ids=str)
def test_choices_by_hand(others: dict[str, Any], bounds: dict[str, Any]) -> None:
    quick = quick_plan(epsilon=1.0, delta=1e-6, **bounds, **others)
    sound = plan(epsilon=1.0, delta=1e-6, **bounds, **others)
    assert quick.mechanism == sound.mechanism
    assert quick.threshold == pytest.approx(sound.threshold, rel=NEAR)
    assert quick.total_noise == pytest.approx(sound.total_noise, rel=NEAR)


@pytest.mark.parametrize(
    ("k", "m"),
    [
        (10, None),
        (51914, None),
        (1000, 100),
        (None, 1),
        *(pytest.param(*more, marks=pytest.mark.slow) for more in ((2, None), (10**6, None), (None, 20))),
    ],
)
def test_the_quick_table_and_curves_are_near(k: int | None, m: int | None) -> None:
    quick = quick_comparison(epsilon=0.35, delta=1e-5, max_nonzero=k, max_items_per_user=m)
    sound = compare(epsilon=0.35, delta=1e-5, max_nonzero=k, max_items_per_user=m)
    for ours, theirs in zip(quick.rows, sound.rows, strict=True):
        assert (ours.mechanism, ours.analysis) == (theirs.mechanism, theirs.analysis)
        assert ours.threshold == pytest.approx(theirs.threshold, rel=NEAR)
        assert ours.total_noise == pytest.approx(theirs.total_noise, rel=NEAR)
    for curve, theirs_curve in zip(quick_frontiers(quick), frontiers(sound), strict=True):
        assert curve.analysis == theirs_curve.analysis
        assert curve.least_noise == pytest.approx(theirs_curve.least_noise, rel=NEAR)
        xs, ys = zip(*theirs_curve.points, strict=True)
        here = [(x, y) for x, y in curve.points if xs[2] <= x <= xs[-1]]
        assert len(here) > 20
        for x, y in here:
            assert y == pytest.approx(float(np.interp(x, xs, ys)), rel=2 * NEAR)


@pytest.mark.parametrize("bounds", [{"max_nonzero": 10}, {"max_items_per_user": 1}, {"top": 10}], ids=str)
def test_release_probability_is_that_of_the_mechanism(bounds: dict[str, Any]) -> None:
    """Of 2,000 runs the share that passes is within 4 standard deviations: a false alarm in 16,000."""
    sound = plan(epsilon=1.0, delta=1e-5, **bounds)
    count = round(sound.threshold) - 1
    runs, passed = 2000, 0
    for seed in range(runs):
        run, _ = begin(sound, SeededTap(seed))
        passed += run.release(np.array([count], dtype=np.int64)).index.size
    expected = float(release_probability(sound.noise, [count])[0])
    assert abs(passed / runs - expected) < 4.0 * math.sqrt(expected * (1 - expected) / runs)


def test_release_curves_rise_from_nothing_to_certainty() -> None:
    for bounds in ({"max_nonzero": 10}, {"max_items_per_user": 1}, {"top": 100}):
        quick = release_curve(quick_plan(epsilon=1.0, delta=1e-6, **bounds))  # type: ignore[arg-type]
        sound = release_curve(plan(epsilon=1.0, delta=1e-6, **bounds).noise)  # type: ignore[arg-type]
        for curve in (quick, sound):
            chances = [chance for _, chance in curve]
            assert chances == sorted(chances)
            assert chances[0] < 0.02
            assert chances[-1] > 0.98
    public = plan(epsilon=1.0, delta=1e-6, public_items=10)
    assert {chance for _, chance in release_curve(public.noise)} == {1.0}


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
def test_requests_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        quick_plan(epsilon=1.0, delta=1e-6, **wrong)
    with pytest.raises(InvalidParameter):
        plan(epsilon=1.0, delta=1e-6, **wrong)


def test_thresholds_beyond_the_whole_doubles_are_found() -> None:
    found = quick_plan(epsilon=1e-6, delta=1e-12, max_nonzero=10**12, mechanism="laplace")
    scale = 1e18
    tau = tau_laplace(m=10**12, scale=scale, delta=1e-12, discrete=True)
    assert tau > 2**53
    assert tau == pytest.approx(found.tau, rel=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 1.4, 12.5, 40.0])
def test_a_given_gamma_is_that_of_the_plan(gamma: float) -> None:
    """Discrete noise has whole ones, and says so; estimates have the same."""
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "max_nonzero": 10, "gamma": gamma}
    found, quick = plan(**asked), quick_plan(**asked)
    assert quick.threshold == pytest.approx(found.threshold, rel=0.005)
    assert (quick.sigma / quick.sigma_shared) ** 2 == pytest.approx(round(gamma))
    told = [note for note in found.notes if note.startswith("Gamma is ")]
    assert told == ([] if gamma == round(gamma) else [
        f"Gamma is {round(gamma)} in place of {gamma:g}: that of discrete noise is a whole number."
    ])  # fmt: skip
    ideal, estimate = plan(**asked, noise="continuous"), quick_plan(**asked, noise="continuous")
    assert estimate.threshold == pytest.approx(ideal.threshold, rel=0.005)


@pytest.mark.parametrize("gamma", [0.3, 0.01])
def test_a_gamma_below_one_is_for_continuous_noise(gamma: float) -> None:
    asked: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "max_nonzero": 10, "gamma": gamma}
    for make in (plan, quick_plan):
        with pytest.raises(InvalidParameter, match="gamma of discrete noise is a whole number from 1 on"):
            make(**asked)
    ideal, estimate = plan(**asked, noise="continuous"), quick_plan(**asked, noise="continuous")
    assert estimate.threshold == pytest.approx(ideal.threshold, rel=0.005)


def test_a_gamma_that_leaves_no_shared_noise_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="gamma = 1e\\+12 leaves so little shared noise"):
        plan(epsilon=1, delta=1e-6, max_nonzero=10, gamma=1e12)
