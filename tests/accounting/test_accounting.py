"""Profiles of plans, and what many releases spend together, against sums made from scratch."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

import dphist
import oracles_accounting as oracle
from dphist.accounting import Profile, compose, profile_of_plan
from dphist.accounting.composition import total_delta
from dphist.accounting.profile import certified_delta, delta_laplace_upper
from dphist.errors import InvalidParameter
from dphist.privacy.types import LatticeNoise, Plan

PLANS: dict[str, dict[str, Any]] = {
    "gshm": {"epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 10, "mechanism": "gaussian"},
    "small": {"epsilon": 0.1, "delta": 1e-9, "max_items_per_user": 3, "mechanism": "gaussian"},
    "spread": {"epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 3, "excess": "spread"},
    "public": {"epsilon": 1.0, "delta": 1e-6, "public_items": 200},
    "csh": {},
    "laplace": {"epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 4, "mechanism": "laplace"},
}


@cache
def planned(name: str) -> Plan:
    if name == "csh":
        # Made by hand, with few steps: the fine lattices of `dphist.plan` have slower certificates.
        base = dphist.plan(epsilon=3.0, delta=1e-2, max_nonzero=3)
        return replace(base, noise=LatticeNoise(2, Fraction(12), Fraction(4), 18))
    return dphist.plan(**PLANS[name])


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("number", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_a_profile_is_never_below_the_certificates_and_close_to_them(name: str, number: int) -> None:
    plan = planned(name)
    profile, delta = profile_of_plan(plan), certified_delta(plan)
    draws = np.random.default_rng(5).uniform(0.0, profile.epsilons[-1] * 1.1, number).tolist()
    for epsilon in (*draws, plan.budget.epsilon, 0.0, 30.0):
        truth = delta(epsilon)
        assert truth <= profile.delta(epsilon)
        # Plans with spread have new and changed counts that are equally bad at their own epsilon.
        near_a_kink = name in ("laplace", "spread") and abs(epsilon - plan.budget.epsilon) < 2e-4
        if not near_a_kink and truth > 1e-3 * plan.budget.delta:
            assert profile.delta(epsilon) <= truth * 1.001


def test_the_profile_of_a_pair_is_mirrored_below_zero() -> None:
    pair = oracle.shifted_pair(Fraction(16), 1, infinite=0.0, reach=50)
    for epsilon in (0.1, 0.4):
        ours = Profile.from_points([(epsilon, pair.divergence(epsilon))])
        alpha = math.exp(-epsilon)
        left = float(np.maximum(pair.first - alpha * pair.second, 0.0).sum())
        assert ours.delta(-epsilon) == pytest.approx(left, rel=1e-9)


def test_chains_are_convex_and_survive_json() -> None:
    profile = Profile.from_points([(0.0, 0.5), (0.5, 0.49), (1.0, 0.1), (2.0, 0.1), (1.5, 0.2)])
    assert profile.epsilons == (0.0, 1.0)
    assert profile.deltas == (0.5, 0.1)
    again = Profile.from_dict(json.loads(json.dumps(profile_of_plan(planned("gshm")).to_dict())))
    assert again == profile_of_plan(planned("gshm"))


@pytest.mark.parametrize(
    "change",
    [
        {"format": "another"},
        {"deltas": [0.1, 0.2]},
        {"epsilons": [1.0, 0.5]},
        {"epsilons": [0.0, math.nan]},
        {"epsilons": None},
        {"deltas": [0.2]},
        {"deltas": [2.0, 0.1]},
        {"interval": 0.0},
        {"interval": "1e-4"},
    ],
)
def test_damaged_profiles_are_refused(change: dict[str, Any]) -> None:
    good = Profile((0.0, 1.0), (0.2, 0.1)).to_dict()
    assert Profile.from_dict(good).infinite == 0.1
    with pytest.raises(InvalidParameter):
        Profile.from_dict({**good, **change})


def test_epsilons_at_the_end_of_doubles() -> None:
    huge = dphist.plan(epsilon=750.0, delta=1e-6, max_items_per_user=2, mechanism="gaussian")
    profile = profile_of_plan(huge, excess=0.1)
    assert profile.epsilons[-1] <= 700.0
    assert profile.delta(700.0) >= dphist.delta_at(huge, 700.0)
    # A delta far right says nothing of what is further left.
    assert Profile.from_points([(1.0, 0.5), (750.0, 1e-9)]).delta(700.0) == 0.5
    with pytest.raises(InvalidParameter, match="at most 700"):
        Profile.from_points([(750.0, 1e-9)])
    assert Profile.from_points([(1.0, 0.2), (1.0, 0.1)]).deltas == (0.1,)


def test_a_budget_alone_is_randomised_response() -> None:
    profile = Profile.of_budget(1.0, 1e-5)
    losses, masses = profile.atoms()
    assert losses.tolist() == [-1.0, 1.0]
    assert masses == pytest.approx([(1 - 1e-5) / (1 + math.e), (1 - 1e-5) * math.e / (1 + math.e)])
    assert profile.delta(0.0) == pytest.approx(1e-5 + (1 - 1e-5) * (math.e - 1) / (math.e + 1))


def exact_profile(pair: oracle.Pair, *, top: float, interval: float, factor: float = 1.0) -> Profile:
    """The profile of a pair, from its divergences at many points."""
    points = [(i * interval, min(1.0, pair.divergence(i * interval) * factor)) for i in range(int(top / interval))]
    return Profile.from_points(points, interval=interval)


@pytest.mark.parametrize(("infinite", "shift"), [(1e-6, 1), (0.0, 3), (1e-3, 2)])
def test_two_and_three_releases_against_products_made_from_scratch(infinite: float, shift: int) -> None:
    pair = oracle.shifted_pair(Fraction(9), shift, infinite=infinite, reach=27)
    profile = exact_profile(pair, top=7.0, interval=0.001)
    two = pair.times(pair)
    three = two.times(pair)
    for many, product in ((2, two), (3, three)):
        for epsilon in (0.0, 0.5, 1.0, 2.0):
            truth = product.divergence(epsilon)
            ours = compose((profile, many)).delta(epsilon)
            assert truth * (1.0 - 1e-9) <= ours <= truth * 1.005 + 1e-15


def test_an_optimistic_profile_is_noticed() -> None:
    """The comparison above has the power to see one part in a thousand."""
    pair = oracle.shifted_pair(Fraction(9), 2, infinite=1e-3, reach=27)
    wrong = exact_profile(pair, top=7.0, interval=0.001, factor=0.999)
    two = pair.times(pair)
    assert any(compose((wrong, 2)).delta(e) < two.divergence(e) * (1.0 - 1e-9) for e in (0.5, 1.0, 2.0))


def test_a_plan_of_one_item_composes_as_its_own_worst_pairs() -> None:
    """With one item a user is new or shared, never both: the two pairs of the analysis are all there is."""
    plan = dphist.plan(epsilon=1.0, delta=1e-3, max_items_per_user=1, mechanism="gaussian")
    noise: Any = plan.noise
    reach = math.ceil(9 * math.sqrt(noise.variance))
    shared = oracle.shifted_pair(noise.variance, noise.lattice, infinite=0.0, reach=reach, merge=reach // 800 + 1)
    passes = float(oracle.discrete_gaussian(noise.variance, reach)[reach + noise.limit + 1 :].sum())
    new = oracle.Pair(np.array([1.0 - passes, passes]), np.array([1.0, 0.0]))
    profile = profile_of_plan(plan)
    for first, second in ((shared, shared), (shared, new), (new, new)):
        both = first.times(second)
        for epsilon in (0.0, 0.5, 1.0, 1.5):
            assert both.divergence(epsilon) <= compose((profile, 2)).delta(epsilon)
    truth = shared.times(shared).divergence(1.0)
    # The profile also holds the new count, so that it is above either pair by itself, though not by much here.
    assert compose((profile, 2)).delta(1.0) <= (truth + 2.0 * passes) * 1.005


@pytest.mark.parametrize("many", [1, 10, 100])
def test_gaussian_releases_compose_as_one_gaussian(many: int) -> None:
    plan = planned("public")
    noise: Any = plan.noise
    gamma = 0 if noise.gamma_whole is None else noise.gamma_whole
    mu = math.sqrt((200 + gamma) / 4 / noise.sigma**2 * many)
    together = compose((plan, many))
    for z in (1.0, 3.0, 5.0):
        epsilon = z * mu + mu * mu / 2
        truth = oracle.gaussian_delta(mu, epsilon)
        assert truth * (1.0 - 1e-6) <= together.delta(epsilon) <= truth * 1.006


def test_epsilon_is_the_inverse_of_delta_and_infinite_mass_adds_up() -> None:
    profile = profile_of_plan(planned("gshm"))
    together = compose((profile, 10), planned("laplace"))
    epsilon = together.epsilon(3e-5)
    assert together.delta(epsilon) <= 3e-5 < together.delta(epsilon * (1.0 - 1e-6))
    assert together.releases == 11
    assert together.infinite == pytest.approx(
        10 * profile.infinite + profile_of_plan(planned("laplace")).infinite, rel=1e-4
    )
    assert together.epsilon(together.infinite * 0.99) == math.inf
    assert compose(profile).epsilon(0.5) == 0.0
    assert compose().delta(1.0) == 0.0


def test_one_release_composed_is_the_release() -> None:
    for name in PLANS:
        profile = profile_of_plan(planned(name))
        for epsilon in (0.0, 0.3, 0.9, 1.0):
            assert compose(profile).delta(epsilon) == pytest.approx(profile.delta(epsilon), rel=3e-4)


def test_thirty_spends_take_less_than_a_second() -> None:
    base = profile_of_plan(planned("gshm"))
    spends = [(Profile(base.epsilons, tuple(d * (1 - i * 1e-4) for d in base.deltas)), 1) for i in range(30)]
    start = time.process_time()
    delta = total_delta(spends, 6.0)
    assert time.process_time() - start < 2.0  # less than one on a quiet core
    assert delta == pytest.approx(compose((base, 30)).delta(6.0), rel=0.05)
    assert total_delta([(base, 1)] * 30, 6.0) == compose((base, 30)).delta(6.0)
    assert total_delta([(Profile((0.0,), (1.0,)), 1)], 1.0) == 1.0
    assert total_delta([], 1.0) == 0.0


def test_adding_is_an_upper_bound_of_what_is_composed() -> None:
    plan = planned("gshm")
    assert compose((plan, 10)).delta(10.0 * plan.budget.epsilon) <= 10.0 * plan.budget.delta


@pytest.mark.parametrize("bad", [(1, 0), (1, True), (1, 1.5)])
def test_counts_must_be_whole(bad: tuple[int, Any]) -> None:
    with pytest.raises(InvalidParameter):
        compose((Profile.of_budget(1.0, 1e-6), bad[1]))
    with pytest.raises(InvalidParameter):
        compose("a plan")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter):
        compose(Profile.of_budget(1.0, 1e-6)).delta(-1.0)


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.45, 0.5, 0.9, 0.999999, 1.0, 1.5])
def test_laplace_at_any_epsilon_against_the_pairs_themselves(epsilon: float) -> None:
    scale, limit, items = Fraction(4), 30, 4
    ours = delta_laplace_upper(scale, limit, items, epsilon=epsilon)
    pairs = [oracle.laplace_pair(scale, limit, changed=items - new, new=new) for new in range(items + 1)]
    truth = max(pair.divergence(epsilon) for pair in pairs)
    assert truth * (1.0 - 1e-9) <= ours <= truth * 1.002
