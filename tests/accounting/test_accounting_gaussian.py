"""The Gaussian filter: numbers against quadrature, costs against distances, the guarantee by enumeration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dphist
import oracles_gdp as oracle
from dphist.accounting import gaussian_of_plan, zcdp_of_plan
from dphist.accounting.gaussian import squared_move_of_laplace
from dphist.model import Budget, Contract, LaplaceNoise, LatticeNoise, Plan, PublicNoise, RoundsNoise
from dphist.planning.rounds import plan_rounds
from dphist.proof.gaussian import (
    delta_of_squared_move,
    largest_squared_move,
    rounding_loss,
    squared_move_of_pure,
)
from dphist.proof.rounds import event_of_rounds
from oracles_accounting import Pair, laplace_pair

# The oracle.


@pytest.mark.parametrize("squared", [1e-4, 0.0033, 0.25, 4.0, 90.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 3.0, 20.0])
def test_the_integral_has_the_known_form(squared: float, epsilon: float) -> None:
    with mp.workdps(50):
        known = oracle.gaussian_delta_of_move(mp.sqrt(mpf(squared)), epsilon)
        assert abs(oracle.gaussian_delta(squared, epsilon) / known - 1) < 1e-6


@pytest.mark.parametrize("epsilon", [1e-6, 0.3, 1.0, 12.0])
def test_the_sign_of_a_normal_draw_is_randomised_response(epsilon: float) -> None:
    with mp.workdps(50):
        half = mp.sqrt(oracle.pure_squared(epsilon)) / 2
        assert abs(mp.ncdf(half) / mp.ncdf(-half) / mp.exp(mpf(epsilon)) - 1) < mpf(10) ** -30
        # The normal law is no closer at any epsilon, and the same at 0.
        for other in (0.0, epsilon / 2, epsilon, epsilon * 1.5):
            response = max(mpf(0), (mp.exp(mpf(epsilon)) - mp.exp(mpf(other))) / (1 + mp.exp(mpf(epsilon))))
            found = oracle.gaussian_delta_of_move(2 * half, other)
            assert found >= response * (1 - mpf(10) ** -30)
            assert other or found <= response * (1 + mpf(10) ** -30)


@pytest.mark.parametrize("offset", ["none", "opposite", "independent"])
def test_the_distance_is_that_of_the_covariance(offset: str) -> None:
    """Of all outputs together, as numpy computes it."""
    law = oracle.Law(6, Fraction(50), Fraction(10), offset=offset)
    for changed, still in ((1, 0), (2, 3), (4, 1)):
        for raised in (0,) if offset == "none" else (0, 1):
            n = changed + still
            covariance = np.eye(n) * 50 + 10.0
            move = np.array([6.0] * changed + [0.0] * still)
            if offset != "none":
                across = np.full((n, 1), -10.0 if offset == "opposite" else 0.0)
                corner = [[20.0 if offset == "opposite" else 10.0]]
                covariance = np.block([[covariance, across], [across.T, np.array(corner)]])
                move = np.append(move, -6.0 * raised)
            expected = move @ np.linalg.solve(covariance, move)
            assert float(oracle.squared_distance(law, changed, still, raised)) == pytest.approx(expected)


# The numbers.


@given(st.floats(1e-3, 60.0), st.floats(0.0, 40.0))
def test_delta_is_rounded_up(mu: float, epsilon: float) -> None:
    squared = Fraction(mu) ** 2
    found = delta_of_squared_move(squared, epsilon=epsilon)
    with mp.workdps(60):
        truth = oracle.gaussian_delta_of_move(mpf(mu), epsilon)
        assert mpf(found) >= truth
        assert found <= float(truth) * (1 + 1e-12) + 1e-300


def test_no_move_has_no_delta() -> None:
    assert delta_of_squared_move(Fraction(0), epsilon=1.0) == 0.0
    assert squared_move_of_pure(Fraction(0)) == 0


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 3.0, 50.0, 800.0])
@pytest.mark.parametrize("delta", [0.9, 1e-2, 1e-7, 1e-30, 1e-300])
def test_the_largest_move_is_within_delta(epsilon: float, delta: float) -> None:
    found = largest_squared_move(epsilon, delta)
    with mp.workdps(60):
        for factor, within in ((1, True), (1 + 1e-10, False)):
            assert (oracle.gaussian_delta_of_move(mp.sqrt(mpf(found) * factor), epsilon) <= mpf(delta)) is within


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.3, 1.0, 3.0, 30.0, 800.0])
def test_the_move_of_pure_privacy_is_rounded_up(epsilon: float) -> None:
    found = squared_move_of_pure(Fraction(epsilon))
    with mp.workdps(60):
        truth = oracle.pure_squared(epsilon)
        ours = mpf(found.numerator) / found.denominator
        assert truth <= ours <= truth * (1 + mpf(10) ** -11)


@pytest.mark.parametrize("part", [Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(3), Fraction(16)])
def test_the_loss_of_rounding_is_rounded_up(part: Fraction) -> None:
    assert (
        oracle.rounding_loss(part) <= mpf(rounding_loss(part)) <= oracle.rounding_loss(part) * (1 + mpf(10) ** -12)
    )


@pytest.mark.parametrize("part", [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)])
@pytest.mark.parametrize("variance", [Fraction(1), Fraction(5, 2)])
def test_a_discrete_draw_is_a_rounded_normal_one(part: Fraction, variance: Fraction) -> None:
    """The rounding rule by the trapezoidal rule, which is exact for such functions, where its error shows."""
    v, rest = float(part), float(variance - part)
    x = np.arange(-15.0, 15.0, 1 / 64)
    draws = np.arange(-40, 41)
    rounding = np.exp(-((draws[:, None] - x) ** 2) / (2 * v))
    density = np.exp(-x * x / (2 * rest)) / np.sqrt(2 * np.pi * rest)
    rounded = (rounding / rounding.sum(axis=0) * density).sum(axis=1) / 64
    discrete = np.exp(-draws * draws / (2 * float(variance)))
    near = np.abs(draws) <= 4
    losses = np.log(rounded[near] * discrete.sum() / discrete[near])
    assert rounded.sum() == pytest.approx(1, abs=1e-13)
    assert losses.max() <= rounding_loss(part) + 1e-14
    if part == Fraction(1, 4):
        assert losses.max() > 1e-5, "this part is too large to show anything"


# The costs of plans.


@dataclass(frozen=True)
class Case:
    request: dict[str, Any]
    epsilon: float = 1.0
    delta: float = 1e-6

    @property
    def plan(self) -> Plan:
        return _planned(self.epsilon, self.delta, tuple(self.request.items()))


@cache
def _planned(epsilon: float, delta: float, request: tuple[tuple[str, Any], ...]) -> Plan:
    return dphist.plan(epsilon=epsilon, delta=delta, **dict(request))


CASES = [
    Case({"max_items_per_user": 1, "mechanism": "gaussian"}),
    Case({"max_items_per_user": 20}, 0.3, 1e-8),
    Case({"max_items_per_user": 20}, 0.01, 1e-30),
    Case({"max_items_per_user": 3, "sums": ((0, 1), (-2, 5))}),
    Case({"max_items_per_user": 4, "sums": ((-3, 3, 8),)}),
    Case({"max_nonzero": 40}),
    Case({"max_nonzero": 60, "max_items_per_user": 11, "sums": ((0, 9),)}, 3.0),
    Case({"public_items": 50}),
    Case({"public_items": 30, "max_items_per_user": 7}, 20.0),
    Case({"top": 20}),
    Case({"top": 20, "offset": "independent"}),
]


def law_of(noise: LatticeNoise) -> oracle.Law:
    sums = tuple((one.reach, one.variance) for one in noise.sums)
    return oracle.Law(noise.lattice, noise.variance, noise.variance_shared, sums, noise.offset)


def farthest(law: oracle.Law, contract: Contract) -> Fraction:
    """The largest distance over all neighbours without new counts."""
    most = contract.items
    shared = contract.max_nonzero if contract.max_nonzero is not None and law.shared else most
    raises = (0, 1) if law.offset != "none" else (0,)
    return max(
        oracle.squared_distance(law, changed, shared - changed, raised)
        for changed in range(most + 1)
        for raised in raises
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cost_of_a_plan_covers_every_neighbour(case: Case) -> None:
    """There is a share of rounding with which the squared move covers all distances and the event its loss."""
    plan = case.plan
    noise, contract = plan.noise, plan.contract
    assert isinstance(noise, LatticeNoise)
    cost = gaussian_of_plan(plan)
    law = law_of(noise)
    share = 1 - farthest(law, contract) / cost.squared
    assert 0 < share < Fraction(1, 50)
    assert farthest(law.less(share), contract) <= cost.squared * (1 + Fraction(1, 10**12))
    least = min([noise.variance, noise.variance_shared or noise.variance, *(v for _, v in law.sums)])
    draws = (contract.max_nonzero or 0) + 2 if law.shared else contract.items
    draws += contract.items * sum(one.columns for one in noise.sums)
    # The whole steps of c leave the distance a little below the bound, so that the share found is an upper bound.
    loss = draws * oracle.rounding_loss(share * least)
    event = 0.0 if isinstance(noise, PublicNoise) else zcdp_of_plan(plan).delta
    assert mpf(cost.event) >= mpf(event) + loss
    assert cost.event <= event + 1e-8 * case.delta


def test_continuous_noise_is_not_rounded() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=4, noise="continuous", mechanism="gaussian")
    cost = gaussian_of_plan(plan)
    assert cost.squared == 4 / Fraction(plan.sigma) ** 2
    assert cost.event == zcdp_of_plan(plan).delta


@pytest.mark.parametrize(("epsilon", "items"), [(0.3, 1), (1.0, 2), (6.0, 2), (1.0, 20)])
def test_laplace_noise_is_so_many_responses(epsilon: float, items: int) -> None:
    plan = dphist.plan(epsilon=epsilon, delta=1e-6, max_items_per_user=items, mechanism="laplace")
    assert isinstance(plan.noise, LaplaceNoise)
    scale = plan.noise.scale
    cost = gaussian_of_plan(plan)
    each, together = items * oracle.pure_squared(1 / scale), oracle.pure_squared(items / scale)
    assert float(cost.squared) == pytest.approx(float(min(each, together)), rel=1e-10)
    assert mpf(float(cost.squared)) >= min(each, together) * (1 - mpf(10) ** -15)
    assert cost.event == plan.proof.delta
    # The exact divergence of all counts, at several epsilons.
    pair = laplace_pair(scale, plan.noise.tau_steps, changed=min(items, 2), new=0)
    for at in (0.0, 0.5 * epsilon, epsilon):
        assert pair.divergence(at) <= delta_of_squared_move(squared_move_of_laplace(scale, 2), epsilon=at) + 1e-12


# The guarantee, outcome by outcome.


def plan_of(noise: LatticeNoise | LaplaceNoise, contract: Contract) -> Plan:
    """A plan with this noise: the budget only says what rounding is negligible."""
    base = dphist.plan(epsilon=1.0, delta=1e-2, max_items_per_user=1, mechanism="gaussian")
    return Plan(base.budget, contract, noise, "exact", base.proof)


def offer(plan: Plan, pair: Pair) -> oracle.Offer:
    cost = gaussian_of_plan(plan)
    return oracle.Offer(pair, cost.squared, Fraction(cost.event))


def menu(kind: str) -> list[oracle.Offer]:
    """Releases with little noise, for neighbours with a changed count, a new one, or both."""
    offers = []
    if kind == "alone":
        for variance, limit in ((12, 9), (40, 12), (90, 18)):
            noise = LatticeNoise(4, Fraction(variance), Fraction(0), limit)
            law = law_of(noise)
            for changed, new in ((1, 0), (0, 1), (1, 1)):
                plan = plan_of(noise, Contract(None, changed + new))
                offers.append(offer(plan, oracle.law_of_release(law, limit, changed=changed, new=new)))
    if kind == "shared":
        for variance, gamma, limit in ((24, 2, 14), (90, 3, 30)):
            noise = LatticeNoise(4, Fraction(variance), Fraction(variance, gamma), limit)
            for changed, new in ((1, 0), (1, 1)):
                plan = plan_of(noise, Contract(changed + new, changed + new))
                offers.append(offer(plan, oracle.law_of_release(law_of(noise), limit, changed=changed, new=new)))
    if kind == "mixed":
        noise = LatticeNoise(4, Fraction(40), Fraction(0), 14)
        offers.append(
            offer(plan_of(noise, Contract(None, 2)), oracle.law_of_release(law_of(noise), 14, changed=1, new=1))
        )
        for scale, limit in ((2, 4), (4, 20)):
            laplace = LaplaceNoise(Fraction(scale), limit)
            for changed, new in ((1, 0), (0, 1)):
                offers.append(
                    offer(
                        plan_of(laplace, Contract(None, 1)),
                        laplace_pair(laplace.scale, limit, changed=changed, new=new),
                    )
                )
    return offers


@pytest.mark.parametrize("kind", ["alone", "shared", "mixed"])
@pytest.mark.parametrize("epsilon", [0.5, 1.5, 3.0])
def test_no_strategy_exceeds_the_limits(kind: str, epsilon: float) -> None:
    """The limits are those of any two offers, so that every pair of offers within them is a branch."""
    offers, nothing = menu(kind), oracle.Offer(Pair(np.ones(1), np.ones(1)), Fraction(0), Fraction(0))
    closest = adapted = 0.0
    for first in offers:
        for second in offers:
            squared, event = first.squared + second.squared, first.event + second.event
            worst = oracle.worst_strategy(offers, squared, event, epsilon=epsilon, rounds=2)
            bound = delta_of_squared_move(squared, epsilon=epsilon) + float(event)
            assert worst <= bound * (1 + 1e-9)
            fixed = max(
                one.pair.times(other.pair).divergence(epsilon)
                for one in offers
                for other in [*offers, nothing]
                if one.squared + other.squared <= squared and one.event + other.event <= event
            )
            closest, adapted = max(closest, worst / bound), max(adapted, worst / fixed)
    assert closest > 0.3, "the bound is far above all strategies"
    assert kind != "alone" or adapted > 1.05, "no analyst gains by adapting"


@pytest.mark.parametrize("kind", ["alone", "mixed"])
def test_three_releases(kind: str) -> None:
    offers = menu(kind)[::2]
    squared, event = sum(one.squared for one in offers[:3]), sum(one.event for one in offers[:3])
    worst = oracle.worst_strategy(offers, squared, event, epsilon=1.0, rounds=3)  # type: ignore[arg-type]
    assert 0.3 < worst / (delta_of_squared_move(squared, epsilon=1.0) + float(event)) <= 1  # type: ignore[arg-type]


# Rounds.


def test_rounds_cost_what_their_draws_move() -> None:
    """Of every draw that one user moves by a whole user, with 16 squared steps of its variance as rounding."""
    plan = dphist.plan(epsilon=0.3, delta=1e-8, mechanism="gaussian")
    noise = plan.noise
    assert isinstance(noise, RoundsNoise)
    assert isinstance(noise.alone, LatticeNoise)
    parts = (*noise.parts, noise.sizes, noise.measure)
    moves = sum((noise.lattice**2 / (noise.variance / k - 16) for k in parts), Fraction(0))
    of_one = noise.alone.lattice**2 / (noise.alone.variance - 16)
    cost = gaussian_of_plan(plan)
    assert max(moves, of_one) <= cost.squared <= max(moves, of_one) * (1 + Fraction(1, 2**50))
    # About as much as any release within the budget can cost.
    assert 0.9 < float(cost.squared) / largest_squared_move(0.3, 1e-8) <= 1.0
    several = event_of_rounds(noise).several
    assert delta_of_squared_move(moves, epsilon=0.3) + several <= 1e-8
    draws = noise.most_items * (noise.rounds + 1) + 1
    assert several + draws * oracle.rounding_loss(Fraction(16)) <= cost.event <= 0.6e-8


def test_laplace_noise_for_users_with_one_item_is_booked_if_it_is_worse() -> None:
    plan = dphist.plan(epsilon=0.3, delta=1e-8)
    noise = plan.noise
    assert isinstance(noise, RoundsNoise)
    assert isinstance(noise.alone, LaplaceNoise)
    cost, concentrated = gaussian_of_plan(plan), zcdp_of_plan(plan)
    scale = noise.alone.scale
    assert float(cost.squared) == pytest.approx(float(oracle.pure_squared(1 / scale)), rel=1e-10)
    assert mpf(float(cost.squared)) >= oracle.pure_squared(1 / scale) * (1 - mpf(10) ** -15)
    least = float(1 / (2 * scale**2))
    assert least <= concentrated.rho <= (least**0.5 + (2 * concentrated.delta) ** 0.5) ** 2
    q = math.exp(-1 / scale)
    assert concentrated.delta >= q ** (noise.alone.tau_steps + 1) / (1 + q) * (1 - 1e-12)


def test_sums_and_a_public_list_are_covered() -> None:
    for sums in ((), ((0, 9), (-1, 1)), ((-3, 3, 8),)):
        plan = plan_rounds(Budget(1.0, 1e-6), public_items=40, sums=sums)
        cost = gaussian_of_plan(plan)
        assert delta_of_squared_move(cost.squared, epsilon=1.0) + cost.event <= 1e-6
        assert cost.event < 1e-100
        assert delta_of_squared_move(cost.squared * Fraction(11, 10), epsilon=1.0) > 1e-6
