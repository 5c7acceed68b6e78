"""zCDP and Renyi curves of plans, against divergences of the distributions themselves."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

import dphist
import oracles_accounting as oracle
import oracles_discrete as oracle_discrete
from dphist.accounting import renyi_of_plan, zcdp_of_plan
from dphist.accounting.concentrated import squared_sensitivity
from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise, Plan
from dphist.paper.bounds import delta_zcdp

ORDERS = (1.0001, 1.1, 2.0, 8.0, 64.0)


def renyi(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], order: float) -> float:
    """The Renyi divergence of two lists of probabilities."""
    # Masses of 1e-20 and less at the ends of the lists are ignored.
    kept = (first > 0.0) & (second > 0.0)
    logs = order * np.log(first[kept]) + (1.0 - order) * np.log(second[kept])
    top = logs.max()
    return float((top + math.log(np.exp(logs - top).sum())) / (order - 1.0))


@pytest.mark.parametrize(
    "request_",
    [
        {"max_items_per_user": 10, "mechanism": "gaussian"},
        {"public_items": 50}, {"max_nonzero": 30}, {"top": 30},
    ],
)  # fmt: skip
def test_the_conversion_of_a_curve_is_above_the_certificate(request_: dict[str, Any]) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, **request_)
    found = zcdp_of_plan(plan)
    for epsilon in (0.5, 1.0):
        assert dphist.delta_at(plan, epsilon) <= delta_zcdp(rho=found.rho, epsilon=epsilon) + found.delta
    # It is also tight: the Gaussian of this rho is the one that the plan was made for.
    assert oracle.gaussian_delta(math.sqrt(2 * found.rho), 1.0) == pytest.approx(1e-6, rel=0.35)
    assert (found.delta == 0.0) == ("public_items" in request_)


def shared_family(plan: Plan) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """One changed shared count and one new count, from scratch: distributions of the output, and Pr[hidden]."""
    noise: Any = plan.noise
    reach, wide = (math.ceil(12 * math.sqrt(v)) for v in (noise.variance, noise.variance_shared))
    own, common = (
        oracle.discrete_gaussian(noise.variance, reach),
        oracle.discrete_gaussian(noise.variance_shared, wide),
    )
    below = np.concatenate([[0.0], np.cumsum(own)])
    hidden = np.array(
        [below[np.clip(noise.tau_steps - w + reach + 1, 0, own.size)] for w in range(-wide, wide + 1)]
    )
    padding = np.zeros(noise.lattice)
    joint, joint_hidden = np.convolve(own, common), np.convolve(own, common * hidden)
    first, first_hidden = np.concatenate([padding, joint]), np.concatenate([padding, joint_hidden])
    return first, np.concatenate([joint, padding]), first_hidden


def test_shared_noise_with_a_new_count_keeps_the_curve() -> None:
    """The events of docs/theory/accounting.md: Renyi divergences of conditioned distributions, both ways."""
    noise = LatticeNoise(2, Fraction(8), Fraction(4), 9)
    base = dphist.plan(epsilon=1.0, delta=1e-2, max_nonzero=2)
    plan = Plan(base.budget, Contract(2), noise, "exact", base.proof)
    curve, found = renyi_of_plan(plan), zcdp_of_plan(plan)
    first, second, first_hidden = shared_family(plan)
    passes = 1.0 - first_hidden.sum()
    assert 1e-3 < passes <= curve.delta
    weight = np.divide(first_hidden, first, out=np.ones_like(first), where=first > 0.0)
    kept = second * weight
    assert kept.sum() >= 1.0 - curve.delta
    hidden = first_hidden / first_hidden.sum()
    for order in ORDERS:
        for one, other in ((hidden, second), (hidden, kept / kept.sum()), (kept / kept.sum(), hidden)):
            assert renyi(one, other, order) <= curve.epsilon(order) + 1e-9
            assert renyi(one, other, order) <= found.rho * order + 1e-9
    # One changed count, where the contract allows two, is not far from the bound.
    assert renyi(hidden, second, 2.0) > curve.epsilon(2.0) * 0.6


def test_laplace_is_randomised_response() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=2, mechanism="laplace")
    noise: Any = plan.noise
    pair = oracle.laplace_pair(noise.scale, noise.tau_steps, changed=2, new=0)
    curve, found = renyi_of_plan(plan), zcdp_of_plan(plan)
    assert found.rho == 2 * 0.5**2 / 2
    for order in ORDERS:
        truth = renyi(pair.first, pair.second, order)
        assert truth <= curve.epsilon(order) + 1e-9
        assert truth == pytest.approx(curve.epsilon(order), rel=1e-6)
        assert truth <= found.rho * order


@pytest.mark.parametrize(("k", "m", "gamma"), [(20, 20, 4), (20, 3, 4), (50, 10, 7), (8, 8, 3)])
def test_squared_sensitivity_holds_for_every_number_of_changed_counts(k: int, m: int, gamma: int) -> None:
    variance = Fraction(64 * gamma)
    noise = LatticeNoise(8, variance, variance / gamma, 100)
    ours = squared_sensitivity(noise, Contract(k, m))
    covariance = np.eye(k) * float(variance) + float(variance) / gamma
    for changed in range(1, m + 1):
        move = np.zeros(k)
        move[:changed] = noise.lattice
        exact = float(move @ np.linalg.solve(covariance, move))
        assert exact <= float(ours) * (1 + 1e-12)
    best = max(s - s * s / (gamma + k) for s in range(1, m + 1)) * 64 / float(variance)
    assert float(ours) <= best * 1.02


def test_orders_must_be_above_one() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=3)
    with pytest.raises(InvalidParameter, match="greater than 1"):
        renyi_of_plan(plan).epsilon(1.0)


@pytest.mark.parametrize(
    "bound", [{"max_items_per_user": 10}, {"max_nonzero": 40}, {"public_items": 30, "max_items_per_user": 7}]
)
def test_sums_are_included(bound: dict[str, Any]) -> None:
    """Counts and sums as one Gaussian: the largest squared move over all numbers of changed counts."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, sums=[(0, 1), (-2, 5)], **bound)
    noise = plan.noise
    assert isinstance(noise, LatticeNoise)
    own = sum(one.reach**2 / float(one.variance) for one in noise.sums)
    most, k = plan.contract.items, plan.contract.nonzero
    unit = noise.lattice**2 / float(noise.variance)
    exact = max(s * (unit + own) - unit * s * s / (noise.gamma + k) for s in range(1, most + 1))
    found = renyi_of_plan(plan).slope * 2
    assert exact * (1 - 1e-12) <= found <= exact * 1.02
    # Without the sums it would be far too small.
    assert max(s - s * s / (noise.gamma + k) for s in range(1, most + 1)) * unit < 0.9 * found


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_conditioning_shared_noise_costs_rho(delta: float) -> None:
    """(sqrt(D/2) + sqrt(h))^2 with D by search and delta0 by summation: without h, rho would be too small."""
    plan = dphist.plan(epsilon=1.0, delta=delta, max_nonzero=40, gamma=6)
    noise, k = plan.noise, 40
    assert isinstance(noise, LatticeNoise)
    assert noise.variance_shared > 0
    unit = noise.lattice**2 / float(noise.variance)
    move = unit * max(s - s * s / (noise.gamma + k) for s in range(1, k + 1))
    passes = float(
        oracle_discrete.infinite_event_discrete(
            count=k, variance=noise.variance, variance_shared=noise.variance_shared, limit=noise.tau_steps
        )
    )
    assert passes > delta / 1000
    found = zcdp_of_plan(plan)
    assert found.delta >= passes * (1 - 1e-9), "the delta of new counts is too small"
    with mp.workdps(50):
        due = (mp.sqrt(mpf(move) / 2) + mp.sqrt(-mp.log1p(-mpf(passes)))) ** 2
        assert due > mpf(renyi_of_plan(plan).slope), "the example does not show the difference"
    assert found.rho >= float(due) * (1 - 1e-9), "rho lacks the cost of conditioning the shared noise"
