"""Profiles of plans, and what dp_accounting composes of them, against products made from scratch."""

from __future__ import annotations

import doctest
import importlib
import math
import sys
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import dphist
import oracles_accounting as oracle
from dphist.accounting import Profile, profile_of_plan, to_pld
from dphist.accounting.profile import certified_delta, delta_laplace_upper
from dphist.errors import InvalidParameter, MissingExtra
from dphist.model import LatticeNoise, Plan

PLANS: dict[str, dict[str, Any]] = {
    "gshm": {"epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 10, "mechanism": "gaussian"},
    "small": {"epsilon": 0.1, "delta": 1e-9, "max_items_per_user": 3, "mechanism": "gaussian"},
    "public": {"epsilon": 1.0, "delta": 1e-6, "public_items": 200},
    "csh": {},
    "laplace": {"epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 4, "mechanism": "laplace"},
}


@cache
def planned(name: str) -> Plan:
    if name == "csh":
        # With few steps: certificates on the fine lattices of `dphist.plan` are slower.
        base = dphist.plan(epsilon=3.0, delta=1e-2, max_nonzero=3)
        return replace(base, noise=LatticeNoise(2, Fraction(12), Fraction(4), 18))
    return dphist.plan(**PLANS[name])


@cache
def rough_profile(name: str) -> Profile:
    """With fewer points than by default."""
    return profile_of_plan(planned(name), excess=1e-2)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("excess", "number"), [(1e-2, 6), pytest.param(5e-4, 40, marks=pytest.mark.slow)])
def test_a_profile_is_never_below_the_certificates_and_close_to_them(
    name: str, excess: float, number: int
) -> None:
    plan = planned(name)
    profile, delta = profile_of_plan(plan, excess=excess), certified_delta(plan)
    draws = np.random.default_rng(5).uniform(0.0, profile.epsilons[-1] * 1.1, number).tolist()
    for epsilon in (*draws, plan.budget.epsilon, 0.0, 30.0):
        truth = delta(epsilon)
        assert truth <= profile.delta(epsilon)
        # There the profile of Laplace noise has a kink.
        near_a_kink = name == "laplace" and abs(epsilon - plan.budget.epsilon) < 2e-4
        if not near_a_kink and truth > 1e-3 * plan.budget.delta:
            assert profile.delta(epsilon) <= truth * (1.0 + 2.0 * excess)


def test_the_profile_of_a_pair_is_mirrored_below_zero() -> None:
    pair = oracle.shifted_pair(Fraction(16), 1, infinite=0.0, reach=50)
    for epsilon in (0.1, 0.4):
        ours = Profile.from_points([(epsilon, pair.divergence(epsilon))])
        alpha = math.exp(-epsilon)
        left = float(np.maximum(pair.first - alpha * pair.second, 0.0).sum())
        assert ours.delta(-epsilon) == pytest.approx(left, rel=1e-9)


def test_chains_are_convex() -> None:
    profile = Profile.from_points([(0.0, 0.5), (0.5, 0.49), (1.0, 0.1), (2.0, 0.1), (1.5, 0.2)])
    assert profile.epsilons == (0.0, 1.0)
    assert profile.deltas == (0.5, 0.1)


@pytest.mark.parametrize(
    "change",
    [
        {"deltas": (0.1, 0.2)},
        {"epsilons": (1.0, 0.5)},
        {"epsilons": (0.0, math.nan)},
        {"epsilons": (), "deltas": ()},
        {"epsilons": (0.0, 701.0)},
        {"deltas": (2.0, 0.1)},
        {"interval": 0.0},
        {"interval": "1e-4"},
    ],
)
def test_invalid_profiles_are_refused(change: dict[str, Any]) -> None:
    good = Profile((0.0, 1.0), (0.2, 0.1))
    assert good.infinite == 0.1
    with pytest.raises(InvalidParameter):
        replace(good, **change)


def test_epsilons_at_the_end_of_doubles() -> None:
    huge = dphist.plan(epsilon=750.0, delta=1e-6, max_items_per_user=2, mechanism="gaussian")
    profile = profile_of_plan(huge, excess=0.1)
    assert profile.epsilons[-1] <= 700.0
    assert profile.delta(700.0) >= dphist.delta_at(huge, 700.0)
    # A delta at a large epsilon is no bound at smaller ones.
    assert Profile.from_points([(1.0, 0.5), (750.0, 1e-9)]).delta(700.0) == 0.5
    with pytest.raises(InvalidParameter, match="at most 700"):
        Profile.from_points([(750.0, 1e-9)])
    assert Profile.from_points([(1.0, 0.2), (1.0, 0.1)]).deltas == (0.1,)


def test_a_budget_alone_is_randomised_response() -> None:
    profile = Profile((1.0,), (1e-5,))
    for epsilon in (0.5, 1.0, 2.0):
        assert to_pld(profile).get_delta_for_epsilon(epsilon) == pytest.approx(profile.delta(epsilon))
    assert profile.delta(0.0) == pytest.approx(1e-5 + (1 - 1e-5) * (math.e - 1) / (math.e + 1))


def composed(profile: Profile, many: int, *, interval: float = 1e-4) -> Any:
    """This many releases together, as dp_accounting composes them."""
    return to_pld(profile, value_discretization_interval=interval).self_compose(many)


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
            ours = composed(profile, many, interval=0.001).get_delta_for_epsilon(epsilon)
            assert truth * (1.0 - 1e-9) <= ours <= truth * 1.005 + 1e-15


def test_an_optimistic_profile_is_noticed() -> None:
    """The comparison above would notice one part in a thousand."""
    pair = oracle.shifted_pair(Fraction(9), 2, infinite=1e-3, reach=27)
    wrong = exact_profile(pair, top=7.0, interval=0.001, factor=0.999)
    two, ours = pair.times(pair), composed(wrong, 2, interval=0.001)
    assert any(ours.get_delta_for_epsilon(e) < two.divergence(e) * (1.0 - 1e-9) for e in (0.5, 1.0, 2.0))


def test_a_plan_of_one_item_composes_as_its_own_worst_pairs() -> None:
    """With one item a user is new or shared, never both, so the analysis has two pairs only."""
    plan = dphist.plan(epsilon=1.0, delta=1e-3, max_items_per_user=1, mechanism="gaussian")
    noise: Any = plan.noise
    reach = math.ceil(9 * math.sqrt(noise.variance))
    shared = oracle.shifted_pair(noise.variance, noise.lattice, infinite=0.0, reach=reach, merge=reach // 800 + 1)
    passes = float(oracle.discrete_gaussian(noise.variance, reach)[reach + noise.tau_steps + 1 :].sum())
    new = oracle.Pair(np.array([1.0 - passes, passes]), np.array([1.0, 0.0]))
    ours = to_pld(plan).self_compose(2)
    for first, second in ((shared, shared), (shared, new), (new, new)):
        both = first.times(second)
        for epsilon in (0.0, 0.5, 1.0, 1.5):
            assert both.divergence(epsilon) <= ours.get_delta_for_epsilon(epsilon)
    truth = shared.times(shared).divergence(1.0)
    # The profile also covers the new count, so it is slightly above either pair.
    assert ours.get_delta_for_epsilon(1.0) <= (truth + 2.0 * passes) * 1.005


@pytest.mark.parametrize("many", [1, 10, 100])
def test_gaussian_releases_compose_as_one_gaussian(many: int) -> None:
    plan = planned("public")
    noise: Any = plan.noise
    gamma = 0 if noise.gamma_whole is None else noise.gamma_whole
    mu = math.sqrt((200 + gamma) / 4 / noise.sigma**2 * many)
    together = to_pld(plan).self_compose(many)
    for z in (1.0, 3.0, 5.0):
        epsilon = z * mu + mu * mu / 2
        truth = oracle.gaussian_delta(mu, epsilon)
        assert truth * (1.0 - 1e-6) <= together.get_delta_for_epsilon(epsilon) <= truth * 1.006


def test_what_is_infinite_adds_up() -> None:
    profile, laplace = rough_profile("gshm"), rough_profile("laplace")
    together = composed(profile, 10).compose(to_pld(laplace))
    infinite = together.get_delta_for_epsilon(math.inf)
    assert infinite == pytest.approx(10 * profile.infinite + laplace.infinite, rel=1e-4)
    assert together.get_epsilon_for_delta(infinite * 0.99) == math.inf


def test_basic_composition_is_an_upper_bound() -> None:
    assert composed(rough_profile("gshm"), 10).get_delta_for_epsilon(10.0) <= 10.0 * 1e-6


@pytest.mark.parametrize("epsilon", [0.0, 0.2, 0.45, 0.5, 0.9, 0.999999, 1.0, 1.5])
def test_laplace_at_any_epsilon_against_the_pairs_themselves(epsilon: float) -> None:
    scale, limit, items = Fraction(4), 30, 4
    ours = delta_laplace_upper(scale, limit, items, epsilon=epsilon)
    pairs = [oracle.laplace_pair(scale, limit, changed=items - new, new=new) for new in range(items + 1)]
    truth = max(pair.divergence(epsilon) for pair in pairs)
    assert truth * (1.0 - 1e-9) <= ours <= truth * 1.002


def pld_of(name: str, **options: Any) -> Any:
    return to_pld(rough_profile(name), **options)


@pytest.mark.parametrize("name", ["gshm", "public", "laplace"])
def test_a_distribution_is_never_below_the_certificates_and_close_to_the_profile(name: str) -> None:
    profile, pld, delta = rough_profile(name), pld_of(name), certified_delta(planned(name))
    off_grid = np.random.default_rng(3).uniform(0.0, 1.2, 30).tolist()
    for epsilon in (*off_grid, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0001, 3.0):
        found = pld.get_delta_for_epsilon(epsilon)
        assert delta(epsilon) <= found
        # With Laplace noise, profiles have a kink at the budget's epsilon.
        near_a_kink = name == "laplace" and abs(epsilon - 1.0) < 2e-4
        if not near_a_kink and delta(epsilon) >= 1e-9:
            assert found <= profile.delta(epsilon) * 1.0005


def test_an_optimistic_distribution_is_noticed() -> None:
    profile, delta = rough_profile("gshm"), certified_delta(planned("gshm"))
    low = Profile(profile.epsilons, tuple(d * 0.9999 for d in profile.deltas), profile.interval)
    assert any(to_pld(low).get_delta_for_epsilon(e) < delta(e) for e in profile.epsilons[::5])


def test_a_plan_composes_with_other_mechanisms() -> None:
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(5.0)
    both = pld_of("gshm").compose(gaussian)
    assert gaussian.get_epsilon_for_delta(1e-5) < both.get_epsilon_for_delta(1e-5) < 2.0
    assert both.get_delta_for_epsilon(1.0) > pld_of("gshm").get_delta_for_epsilon(1.0)


def test_a_coarser_interval_is_pessimistic() -> None:
    fine, coarse = pld_of("gshm"), pld_of("gshm", value_discretization_interval=3e-3)
    for epsilon in (0.1, 0.5, 0.9, 1.0):
        assert fine.get_delta_for_epsilon(epsilon) <= coarse.get_delta_for_epsilon(epsilon) * (1 + 1e-12)


def test_a_missing_dp_accounting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"pip install dp-accounting$"):
        pld_of("public")
    assert profile_of_plan(planned("public")).delta(1.0) <= 1.001e-6


def test_docstring_examples() -> None:
    result = doctest.testmod(importlib.import_module("dphist.accounting.pld"))
    assert result.attempted > 0
    assert result.failed == 0
