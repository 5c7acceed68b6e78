"""Plans in dp_accounting: distributions, events and its accountant."""

from __future__ import annotations

import importlib
import math
import sys
from functools import cache
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import dphist
from dphist.accounting import Profile, compose, profile_of_plan, to_pld
from dphist.accounting.profile import certified_delta
from dphist.errors import MissingExtra
from dphist.privacy.types import Plan


@cache
def planned(**request: Any) -> Plan:
    return dphist.plan(epsilon=1.0, delta=1e-6, **request)


REQUESTS: list[dict[str, Any]] = [
    {"max_items_per_user": 10, "mechanism": "gaussian"},
    {"public_items": 300},
    {"max_items_per_user": 2, "mechanism": "laplace"},
    {"max_items_per_user": 3, "excess": "spread"},
]


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_distribution_reproduces_delta_within_a_thousandth_and_never_below(request_: dict[str, Any]) -> None:
    plan = planned(**request_)
    pld, delta = to_pld(plan), certified_delta(plan)
    off_grid = np.random.default_rng(3).uniform(0.0, 1.2, 30).tolist()
    for epsilon in (*off_grid, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0001, 3.0):
        truth = delta(epsilon)
        assert truth <= pld.get_delta_for_epsilon(epsilon)
        # Plans with spread have new and changed counts that are equally bad at their own epsilon.
        kinked = plan.mechanism == "laplace" or plan.contract.spread is not None
        near_a_kink = kinked and abs(epsilon - 1.0) < 2e-4
        if not near_a_kink and truth >= 1e-9:
            assert pld.get_delta_for_epsilon(epsilon) <= truth * 1.001


def test_an_optimistic_distribution_would_be_noticed() -> None:
    plan = planned(**REQUESTS[0])
    profile = profile_of_plan(plan)
    low = Profile(profile.epsilons, tuple(d * 0.9999 for d in profile.deltas), profile.interval)
    assert any(to_pld(low).get_delta_for_epsilon(e) < certified_delta(plan)(e) for e in profile.epsilons[::10])


@pytest.mark.parametrize(("many", "request_"), [(2, REQUESTS[0]), (10, REQUESTS[0]), (4, REQUESTS[-1])])
def test_two_ways_to_compose_agree(many: int, request_: dict[str, Any]) -> None:
    """Ours counts its rounding and dp_accounting its truncation, of 1e-15: both are above, and close."""
    plan = planned(**request_)
    theirs, ours = to_pld(plan).self_compose(many), compose((plan, many))
    for epsilon in (0.5, 1.0, 2.0, 3.0):
        assert ours.delta(epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-6)
    target = many * 2e-6
    assert ours.epsilon(target) == pytest.approx(theirs.get_epsilon_for_delta(target), rel=1e-5)


def test_a_plan_composes_with_other_mechanisms() -> None:
    plan = planned(**REQUESTS[0])
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(5.0)
    both = to_pld(plan).compose(gaussian)
    assert gaussian.get_epsilon_for_delta(1e-5) < both.get_epsilon_for_delta(1e-5) < 2.0
    assert both.get_delta_for_epsilon(1.0) > to_pld(plan).get_delta_for_epsilon(1.0)


def test_a_coarser_interval_is_pessimistic() -> None:
    plan = planned(**REQUESTS[0])
    fine, coarse = to_pld(plan), to_pld(plan, value_discretization_interval=3e-3)
    for epsilon in (0.1, 0.5, 0.9, 1.0):
        assert fine.get_delta_for_epsilon(epsilon) <= coarse.get_delta_for_epsilon(epsilon) * (1 + 1e-12)


def test_without_dp_accounting_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(**REQUESTS[1])
    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=r"dphist\[accounting\]"):
        to_pld(plan)
    assert importlib.import_module("dphist.accounting").compose(plan).delta(1.0) <= 1.001e-6
    assert math.isfinite(compose((plan, 2)).epsilon(1e-6))
