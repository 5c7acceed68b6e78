"""Several releases planned under one total."""

from __future__ import annotations

from typing import Any

import pytest

from dphist.accounting import compose, plan_many, to_pld
from dphist.errors import InvalidParameter

GAUSSIAN: dict[str, Any] = {"max_items_per_user": 10, "mechanism": "gaussian"}


def test_twelve_months_cost_far_less_than_twelve_shares() -> None:
    year = plan_many([GAUSSIAN] * 12, epsilon=1.0, delta=1e-6)
    assert 0.9e-6 <= year.delta <= 1e-6
    # An independent accountant agrees that the very plans keep the total.
    assert (
        to_pld(year.plans[0], value_discretization_interval=2.5e-5).self_compose(12).get_delta_for_epsilon(1.0)
        <= 1e-6
    )
    assert len(year.plans) == 12
    assert max(year.noise_ratios) < 0.32
    assert max(year.threshold_ratios) < 0.33


@pytest.mark.slow
def test_different_requests_and_weights() -> None:
    both = plan_many([GAUSSIAN, {"public_items": 300}], epsilon=1.0, delta=1e-6, weights=[3, 1])
    assert both.delta <= 1e-6
    assert compose(*both.plans).delta(1.0) <= both.delta * (1 + 1e-9)
    equal = plan_many([GAUSSIAN, {"public_items": 300}], epsilon=1.0, delta=1e-6)
    assert both.plans[0].total_noise < equal.plans[0].total_noise
    assert both.plans[1].total_noise > equal.plans[1].total_noise
    assert both.threshold_ratios[1] == 1.0
    assert all(ratio < 0.85 for ratio in equal.noise_ratios)


@pytest.mark.slow
def test_one_request_is_nearly_a_plan_of_its_own() -> None:
    one = plan_many([GAUSSIAN], epsilon=1.0, delta=1e-6)
    assert one.delta <= 1e-6
    # The composed pair has the new counts and the moved ones at once; a plan of its own knows better.
    assert 1.0 <= one.noise_ratios[0] < 1.1


@pytest.mark.parametrize(
    ("requests", "weights", "words"),
    [
        ([], None, "at least one request"),
        ([{"epsilon": 1.0, "top": 5}], None, "must not have epsilon"),
        ([GAUSSIAN, GAUSSIAN], [1.0], "a weight for each of 2"),
        ([GAUSSIAN], [0.0], "weight must be greater than zero"),
    ],
)
def test_bad_requests_are_refused(requests: list[dict[str, Any]], weights: list[float] | None, words: str) -> None:
    with pytest.raises(InvalidParameter, match=words):
        plan_many(requests, epsilon=1.0, delta=1e-6, weights=weights)
