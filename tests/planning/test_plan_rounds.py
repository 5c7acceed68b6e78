"""Plans of rounds: the numbers to reach, budgets that are kept and used, documents, and what is refused."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import msgspec
import pytest

from dphist.accounting.profile import delta_at
from dphist.certificate.plans import certificate_of, certify_again
from dphist.errors import DphistError, InvalidParameter, NoPlan, NotPrivate
from dphist.model import Budget, Contract, LaplaceNoise, LatticeNoise, Plan, RoundsNoise
from dphist.planning.rounds import LEAST_DELTA, plan_rounds
from dphist.proof.continuous import certify_noise
from dphist.proof.rounds import (
    certify_rounds,
    delta_of_gaussian_cost,
    event_of_rounds,
    gaussian_cost_of_rounds,
    squared_mu,
)
from release_data import plan_facts, plan_from

VECTOR = (-1, 1, 3)


def noise_of(plan: Plan) -> RoundsNoise:
    assert isinstance(plan.noise, RoundsNoise)
    return plan.noise


# epsilon, goal -> threshold of the last round, threshold of users with one item with Laplace and Gaussian noise
NUMBERS = [
    (0.2, "accuracy", 127.585, 67, 97.48),
    (1.0, "accuracy", 28.618, 14, 22.35),
    (4.0, "accuracy", 8.181, 4, 7.00),
    (0.2, "keys", 119.019, 67, 97.48),
    (1.0, "keys", 26.720, 14, 22.35),
    (4.0, "keys", 7.692, 4, 7.00),
]


@pytest.mark.parametrize(("epsilon", "goal", "threshold", "laplace", "gaussian"), NUMBERS)
def test_thresholds(epsilon: float, goal: str, threshold: float, laplace: int, gaussian: float) -> None:
    plan = plan_rounds(Budget(epsilon, 1e-6), goal=goal)
    noise = noise_of(plan)
    assert plan.threshold == pytest.approx(threshold, abs=0.003)
    assert noise.thresholds_steps == tuple(sorted(noise.thresholds_steps, reverse=True))
    assert isinstance(noise.alone, LaplaceNoise)
    assert noise.alone.threshold == laplace
    assert noise.alone.scale == 1 / Fraction(epsilon)
    other = noise_of(plan_rounds(Budget(epsilon, 1e-6), goal=goal, gaussian=True)).alone
    assert isinstance(other, LatticeNoise)
    assert other.threshold == pytest.approx(gaussian, abs=0.006)


@pytest.mark.parametrize("epsilon", [0.01, 0.3, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-30, 1e-9, 1e-6, 0.01, 0.5])
@pytest.mark.parametrize("kind", ["accuracy", "keys", "gaussian", "list", "sums"])
def test_the_budget_is_kept_and_used(epsilon: float, delta: float, kind: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "accuracy": {},
        "keys": {"goal": "keys"},
        "gaussian": {"gaussian": True},
        "list": {"public_items": 12},
        "sums": {"sums": [(0, 10), VECTOR]},
    }
    plan = plan_rounds(Budget(epsilon, delta), **options[kind])
    assert 0.999 * delta <= plan.proof.delta <= delta
    noise = noise_of(plan)
    assert certify_rounds(noise, epsilon=epsilon).delta == plan.proof.delta
    # A little less noise, or lower limits, would exceed the budget.
    less = replace(
        noise,
        variance=noise.variance * Fraction(999, 1000),
        sums=tuple(replace(one, variance=one.variance * Fraction(999, 1000)) for one in noise.sums),
    )
    assert certify_rounds(less, epsilon=epsilon).delta > delta
    if noise.thresholds_steps:
        lower = replace(
            noise,
            thresholds_steps=tuple(limit * 99 // 100 for limit in noise.thresholds_steps),
            cuts=(0,) * len(noise.cuts),
        )
        assert certify_rounds(lower, epsilon=epsilon).delta > delta


def test_limits_are_near_those_of_one_round() -> None:
    """The threshold of one round with the noise of all rounds together and the same probability of the event."""
    noise = noise_of(plan_rounds(Budget(1.0, 1e-6)))
    event, deviation = event_of_rounds(noise).several, noise.deviation(noise.rounds - 1)
    # 1 - (1 - p)^n = event for n items that weigh 1/sqrt n.
    one_round = max(
        1 / math.sqrt(n) + deviation * NormalDist().inv_cdf((1 - event) ** (1 / n)) for n in range(1, 257)
    )
    assert noise.threshold <= 1.05 * one_round


def test_planning_and_certifying_are_fast() -> None:
    start = time.process_time()
    plan = plan_rounds(Budget(0.987, 1.23e-6))
    planned = time.process_time()
    event_of_rounds.cache_clear()
    certify_again(plan)
    assert planned - start < 1.5
    assert time.process_time() - planned < 0.5


def test_sums_share_the_measurement() -> None:
    budget = Budget(1.0, 1e-6)
    noise, alone = noise_of(plan_rounds(budget, sums=[(0, 10), VECTOR])), noise_of(plan_rounds(budget))
    assert noise.alone is None
    assert len(noise.sums) == 2
    assert noise.sums[1].columns == 3
    assert noise.measure + sum(
        float(one.reach**2 * noise.variance / (noise.lattice**2 * one.variance)) for one in noise.sums
    ) == pytest.approx(3 * alone.measure, rel=0.05)
    assert alone.threshold < noise.threshold < 1.3 * alone.threshold
    weighted = noise_of(plan_rounds(budget, sums=[(0, 10)], weights=[0.75]))
    (one,) = weighted.sums
    ratio = float(one.reach**2 * weighted.variance / (weighted.lattice**2 * one.variance)) / weighted.measure
    assert ratio == pytest.approx(3.0)
    with pytest.raises(InvalidParameter, match="weight"):
        plan_rounds(budget, weights=[0.5])


def test_public_lists() -> None:
    """Nothing is discovered; where users may have much of a list, a shared draw lowers the noise."""
    few, many = (noise_of(plan_rounds(Budget(1.0, 1e-6), public_items=n)) for n in (40, 10**9))
    for noise in (few, many):
        assert not noise.parts
        assert not noise.thresholds_steps
        assert not noise.cuts
        assert noise.alone is None
        assert noise.threshold == -math.inf
    assert few.most_items == 40
    assert few.contract == Contract(40, 40)
    assert few.shared == 6
    assert many.shared == 0
    assert many.measure_noise(9) == (9 * many.variance / 31, Fraction(0))
    own, shared = few.measure_noise(40)
    assert shared == own / 6
    assert own + shared < Fraction(1, 2) * 40 * few.measure_noise(1)[0]
    assert few.measure_noise(1) == (few.variance / 31, Fraction(0))
    assert plan_rounds(Budget(1.0, 1e-6), public_items=40).to_dict()["threshold"] is None


def test_profile() -> None:
    """delta at other epsilons than the planned one, also below the pure epsilon of Laplace noise."""
    for gaussian in (False, True):
        profile = [delta_at(plan_rounds(Budget(1.0, 1e-6), gaussian=gaussian), at / 4) for at in range(9)]
        assert profile == sorted(profile, reverse=True)
        assert profile[4] <= 1e-6 < profile[3]
        # At epsilon 0 it is the distance in total variation: that of one count, with Laplace noise.
        if not gaussian:
            assert profile[0] == pytest.approx(math.tanh(0.5), rel=1e-5)
    event = event_of_rounds(noise_of(plan_rounds(Budget(1.0, 1e-6))))
    assert certify_rounds(noise_of(plan_rounds(Budget(1.0, 1e-6))), epsilon=50.0).delta < 1e-6
    assert event.without_weight < 0.01 * event.several


def test_cost_of_rounds_in_a_filter() -> None:
    budget = Budget(0.3, 1e-8)
    cost = gaussian_cost_of_rounds(noise_of(plan_rounds(budget, gaussian=True)))
    assert delta_of_gaussian_cost(cost.squared, cost.event, epsilon=0.3) == pytest.approx(1e-8, rel=0.1)
    assert delta_of_gaussian_cost(80 * cost.squared, 80 * cost.event, epsilon=3.0) <= 1e-6
    laplace = noise_of(plan_rounds(budget))
    assert gaussian_cost_of_rounds(laplace).squared > 20 * cost.squared
    alone = replace(laplace, alone=None)
    assert (
        squared_mu(alone) <= gaussian_cost_of_rounds(alone).squared <= squared_mu(alone) * (1 + Fraction(1, 2**60))
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"gaussian": True}, {"public_items": 30}, {"sums": [(-3, 5), VECTOR]}, {"goal": "keys"}],
    ids=str,
)
def test_documents(options: dict[str, Any]) -> None:
    plan = plan_rounds(Budget(1.0, 1e-6), **options)
    assert plan_from(plan_facts(plan)) == replace(plan, notes=())
    assert certify_again(replace(plan, proof=replace(plan.proof, delta=0.0))) == plan
    assert json.loads(json.dumps(plan.to_dict()))["mechanism"] == "rounds"
    assert dict(plan.rows())["mechanism"].startswith("rounds")
    assert "<table" in plan._repr_html_()
    assert plan.steps_of_count == 1
    assert plan.sums == noise_of(plan).sums


def test_a_plan_must_keep_its_budget() -> None:
    plan = plan_rounds(Budget(1.0, 1e-6))
    noise = noise_of(plan)
    assert isinstance(noise.alone, LaplaceNoise)
    for worse in (
        replace(noise, parts=(*noise.parts[:-1], noise.parts[-1] + 1)),
        replace(noise, sizes=noise.sizes + 1),
        replace(noise, measure=noise.measure + 1),
        replace(noise, growth=16),
        replace(noise, most_items=257),
        replace(noise, thresholds_steps=(*noise.thresholds_steps[:-1], noise.thresholds_steps[-1] - 5)),
        replace(noise, alone=replace(noise.alone, tau_steps=12)),
        replace(noise, alone=replace(noise.alone, scale=Fraction(99, 100))),
    ):
        with pytest.raises(NotPrivate):
            certificate_of(worse, worse.contract, plan.budget)
    with pytest.raises(InvalidParameter, match="is for"):
        certify_noise(noise, Contract(None, 255), epsilon=1.0)


FORGED: list[dict[str, Any]] = [
    {"lattice": 0},
    {"lattice": 32},
    {"lattice": 4096.0},
    {"variance": Fraction(0)},
    {"variance": Fraction(500)},
    {"variance": Fraction(10**40)},
    {"variance": 1e10},
    {"parts": (1, 1, 1)},
    {"parts": (0, 25, 30, 35, 50)},
    {"parts": (20, 25, 30, 35, 10**5)},
    {"parts": (True, 25, 30, 35, 50)},
    {"parts": (1,) * 40, "thresholds_steps": (10**6,) * 40, "cuts": (0,) * 39},
    {"parts": (), "thresholds_steps": (), "cuts": ()},
    {"thresholds_steps": (10**6,) * 4},
    {"thresholds_steps": (10**6,) * 6},
    {"thresholds_steps": (*(10**6,) * 4, -1)},
    {"thresholds_steps": (*(10**6,) * 4, 10**30)},
    {"cuts": (0, 0)},
    {"cuts": (10**6, 10**7, 0, 0)},
    {"sizes": 0},
    {"measure": 0},
    {"most_items": 0},
    {"most_items": 10**6},
    {"growth": 0},
    {"growth": 10**9},
    {"shared": 3},
    {"listed": 100},
    {"alone": LatticeNoise(2, Fraction(8), Fraction(0), 9)},
    {"alone": LatticeNoise(64, Fraction(10**6), Fraction(10**5), 9)},
]


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_forged_noise_is_refused_at_once(forged: dict[str, Any]) -> None:
    noise = noise_of(plan_rounds(Budget(1.0, 1e-6)))
    start = time.process_time()
    with pytest.raises(InvalidParameter):
        replace(noise, **forged)
    assert time.process_time() - start < 0.1


@pytest.mark.parametrize(
    "change",
    [{"parts_of_rounds": 5}, {"alone": {"mechanism": "rounds"}}, {"thresholds_steps": ["1"]}, {"growth": None}],
    ids=str,
)
def test_damaged_documents_are_refused(change: dict[str, Any]) -> None:
    facts = plan_facts(plan_rounds(Budget(1.0, 1e-6)))
    with pytest.raises(msgspec.ValidationError):
        plan_from({**facts, **change})


def test_what_cannot_be_planned() -> None:
    with pytest.raises(NoPlan, match="more noise than can be drawn"):
        plan_rounds(Budget(1e-4, 1e-30))
    with pytest.raises(InvalidParameter, match="delta of at least"):
        plan_rounds(Budget(1.0, LEAST_DELTA / 10))
    for options in ({"goal": "speed"}, {"public_items": 0}, {"sums": [(1, 0)]}):
        with pytest.raises(DphistError):
            plan_rounds(Budget(1.0, 1e-6), **options)
