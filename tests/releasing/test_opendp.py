"""Plans inside OpenDP: measurements, compositors, odometers and contexts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import opendp.prelude as dp
import pytest
from opendp.mod import Measurement, OpenDPException

import dphist
from dphist.accounting import zcdp_of_plan
from dphist.errors import InvalidParameter
from dphist.model import Plan
from dphist.opendp import as_measurement, input_domain, input_metric

HISTOGRAM = {"tea": 5000, "rye": 3000, "mine": 1, "none": 0}


@pytest.fixture(autouse=True)
def features() -> None:
    dp.enable_features("contrib", "honest-but-curious")


@cache
def planned() -> Plan:
    """With this delta, the count of one user is released in one of 1e13 releases."""
    return dphist.plan(epsilon=1.0, delta=1e-12, max_items_per_user=10)


def loss(measurement: Measurement, users: int) -> tuple[float, float]:
    map_users: Callable[[int], tuple[float, float]] = measurement.map
    return map_users(users)


def test_release_and_privacy_map() -> None:
    measurement = as_measurement(planned())
    released = measurement(HISTOGRAM)
    assert set(released) == {"tea", "rye"}
    assert abs(released["tea"] - 5000) < 200
    assert loss(measurement, 1) == (1.0, 1e-12)
    assert loss(measurement, 0) == (0.0, 0.0)
    with pytest.raises(OpenDPException, match="differ by one user"):
        loss(measurement, 2)


def test_the_top_k_step_is_applied() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, top=2)
    histogram = {f"item {i}": 100 * (i + 1) for i in range(50)}
    assert set(as_measurement(plan)(histogram)) <= {"item 49", "item 48"}


@pytest.mark.parametrize("measure", ["approximate-dp", "approximate-zcdp"])
def test_plans_compose_inside_a_context(measure: Any) -> None:
    measurement = as_measurement(planned(), measure=measure)
    spent = loss(measurement, 1)
    context = dp.Context.compositor(
        data=HISTOGRAM,
        privacy_unit=(input_metric(), 1),
        privacy_loss=(measurement.output_measure, tuple(2 * part for part in spent)),
        split_evenly_over=2,
        domain=input_domain(),
    )
    assert set(context(measurement)) == {"tea", "rye"}
    context(measurement)
    with pytest.raises(OpenDPException, match="out of queries"):
        context(measurement)


def test_an_odometer_adds_up() -> None:
    measurement = as_measurement(planned(), measure="approximate-zcdp")
    odometer = dp.c.make_fully_adaptive_composition(input_domain(), input_metric(), measurement.output_measure)
    queryable = odometer(HISTOGRAM)
    for _ in range(3):
        queryable(measurement)
    cost = zcdp_of_plan(planned())
    assert queryable.privacy_loss(1) == (pytest.approx(3 * cost.rho), pytest.approx(3 * cost.delta))


def test_opendp_does_not_accept_privacy_profiles_yet() -> None:
    """Once this fails, plans can compose tightly inside OpenDP."""
    make_profile: Any = dp.new_privacy_profile
    curve = make_profile(lambda _: 1e-6)
    measurement: Any = dp.m.make_user_measurement(
        input_domain(), input_metric(), dp.smoothed_max_divergence(), lambda _: {}, lambda _: curve
    )
    with pytest.raises(OpenDPException):
        loss(measurement, 1)


def test_bad_parameters_and_missing_features() -> None:
    with pytest.raises(InvalidParameter, match="approximate-zcdp"):
        as_measurement(planned(), measure="pure")  # type: ignore[arg-type]
    dp.disable_features("honest-but-curious")
    with pytest.raises(InvalidParameter, match="honest-but-curious"):
        as_measurement(planned())
