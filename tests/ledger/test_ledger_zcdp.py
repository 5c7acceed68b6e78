"""The accounting by zero-concentrated privacy: two limits, however the releases are chosen."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

import dphist
from dphist.accounting import zcdp_of_plan
from dphist.errors import InvalidParameter, LedgerError, OverBudget
from dphist.ledger import Ledger, Spend
from dphist.ledger.accounts import ConcentratedComposer, composer_for, limits_of
from dphist.privacy.types import Budget, LaplaceNoise, LatticeNoise, Plan
from dphist.releasing.document import choice_for
from dphist.releasing.spending import spend_of

TOTAL = Budget(3.0, 1e-6)


def delta_of_rho(rho: float, epsilon: float) -> float:
    """The least of e^((a-1)(a rho - epsilon)) (1 - 1/a)^a/(a-1) over a grid of orders: an upper bound."""
    orders = 1.0 + np.geomspace(1e-3, 1e4, 20_000)
    logs = (orders - 1) * (orders * rho - epsilon) + orders * np.log1p(-1 / orders) - np.log(orders - 1)
    return float(np.exp(logs.min()))


@pytest.mark.parametrize("total", [TOTAL, Budget(0.1, 1e-9), Budget(10.0, 1e-4), Budget(1.0, 1e-30)])
def test_the_limits_of_a_total(total: Budget) -> None:
    rho, delta = limits_of(total)
    assert delta == total.delta / 2
    assert delta_of_rho(rho * (1 - 1e-9), total.epsilon) <= total.delta / 2 * (1 + 1e-3)
    assert delta_of_rho(rho * 1.01, total.epsilon) > total.delta / 2, "no larger rho would do"


def test_both_sums_are_exact_and_within_their_limits() -> None:
    rho, delta = limits_of(TOTAL)
    composer = composer_for("zcdp", TOTAL)
    third = Spend(1, 1e-7, {"rho": rho / 4, "delta": delta / 4})
    assert composer.total_delta([third] * 4, 3.0) <= 1e-6
    assert composer.total_delta([third] * 4 + [Spend(1, 1e-7, {"rho": 1e-300, "delta": 0.0})], 3.0) == 1.0
    assert composer.total_delta([third] * 4 + [Spend(1, 1e-7, {"rho": 0.0, "delta": 1e-300})], 3.0) == 1.0
    assert composer.total_delta([], 3.0) == 0.0
    # Nothing is known of a spend but its budget: rho = epsilon^2/2.
    least = 1 - 1e-9
    assert composer.total_delta([Spend(math.sqrt(2 * rho) * least, delta)], 3.0) <= 1e-6
    assert composer.total_delta([Spend(math.sqrt(2 * rho) / least, delta)], 3.0) == 1.0


@pytest.mark.parametrize(
    "profile", [{}, {"rho": -1.0, "delta": 0.0}, {"rho": math.nan, "delta": 0.0}, {"rho": True, "delta": 0.0},
                {"rho": 0.1, "delta": math.inf}, {"rho": "0", "delta": 0.0}]
)  # fmt: skip
def test_odd_spends_are_refused(profile: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match="rho and delta"):
        composer_for("zcdp", TOTAL).total_delta([Spend(1, 1e-7, profile)], 3.0)


def test_releases_are_booked_with_their_rho(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6, accounting="zcdp")
    account = ledger.account("log")
    assert account.accounting == "zcdp"
    composer = composer_for("zcdp", account.total)
    plan = dphist.plan(epsilon=1, delta=1e-7, max_items_per_user=20)
    spend = spend_of(plan, "zcdp")
    assert spend.profile == {"rho": zcdp_of_plan(plan).rho, "delta": zcdp_of_plan(plan).delta}
    most = account.more_that_fit(spend, composer)
    assert most > 3, "more than by adding epsilons"
    for _ in range(most):
        ledger.book("log", spend, composer)
    with pytest.raises(OverBudget, match=r"remaining: too little for its delta: .* at most 5\.9e-09"):
        ledger.book("log", spend, composer)
    left = ledger.account("log").left(composer)
    assert 0.0 < left["delta_spent"] <= 1e-6


def test_a_chosen_cap_is_booked_with_its_sizes_and_its_worst_release() -> None:
    planned = choice_for(Budget(1.0, 1e-6))
    spend = spend_of(planned, "zcdp")
    assert spend.profile is not None
    each = [zcdp_of_plan(plan) for plan in planned.plans]
    rho = Fraction(1, 2) / planned.choice.variance + max(Fraction(one.rho) for one in each)
    assert Fraction(spend.profile["rho"]) >= rho
    assert spend.profile["rho"] == pytest.approx(float(rho), rel=1e-12)
    assert spend.profile["delta"] == max(one.delta for one in each)


def worst_of(first: Plan, seconds: list[Plan]) -> float:
    """delta at the total epsilon of a release of one public item and then the second that its result makes worst.

    By sums over all outcomes of the first release; the second is Laplace noise on one count that the user moves
    (its loss is +-1/scale) or that the user alone has (it is seen with the probability that it passes).
    """
    noise = first.noise
    assert isinstance(noise, LatticeNoise)
    variance, step = float(noise.variance), noise.lattice
    x = np.arange(-int(60 * math.sqrt(variance)), int(60 * math.sqrt(variance)) + 1)
    law = np.exp(-x * x / (2 * variance))
    moved = np.exp(-((x - step) ** 2) / (2 * variance)) / law.sum()
    ratio = np.exp(TOTAL.epsilon) * law / law.sum() / np.where(moved > 0, moved, 1)
    gains = []
    for plan in seconds:
        assert isinstance(plan.noise, LaplaceNoise)
        scale = float(plan.noise.scale)
        likely = 1 / (1 + math.exp(-1 / scale))
        passes = math.exp(-(plan.noise.limit + 1) / scale) * likely
        known = np.maximum(likely - ratio * (1 - likely), 0) + np.maximum(1 - likely - ratio * likely, 0)
        new = passes + np.maximum(1 - passes - ratio, 0)
        gains.append(np.maximum(known, new))
    return float((moved * np.max(gains, axis=0))[moved > 0].sum())


def test_who_looks_first_gains_nothing(tmp_path: Path) -> None:
    """Two releases, the second chosen by the first: with profiles alone they spend nearly twice the total."""
    first = dphist.plan(epsilon=2.0, delta=1e-7, public_items=1)
    laplace: dict[str, Any] = {"max_items_per_user": 1, "mechanism": "laplace"}
    seconds = [
        dphist.plan(epsilon=1.2, delta=1e-12, **laplace), dphist.plan(epsilon=0.01, delta=9.9e-7, **laplace)
    ]  # fmt: skip
    assert worst_of(first, seconds) > 1.5 * TOTAL.delta
    fits = {}
    for accounting in ("pld", "zcdp", "sum"):
        composer = composer_for(accounting, TOTAL)
        fits[accounting] = [
            composer.total_delta([spend_of(first, accounting), spend_of(plan, accounting)], 3.0) <= TOTAL.delta
            for plan in seconds
        ]
    assert fits["pld"] == [True, True], "both may be chosen, and the worse one will be"
    assert not any(fits["zcdp"] + fits["sum"])


def test_names_that_look_alike_have_one_total(tmp_path: Path) -> None:
    Ledger.init(tmp_path / "a", "Orders", epsilon=1, delta=1e-6)
    for name in ("orders", "ORDERS", "\uff2frders"):
        with pytest.raises(LedgerError, match="already has a dataset 'Orders'"):
            Ledger.init(tmp_path / "a", name, epsilon=1, delta=1e-6)


def test_the_composer_promises_no_more_than_the_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    rho = 0.01
    composer = ConcentratedComposer(TOTAL)
    monkeypatch.setattr("dphist.ledger.accounts.delta_of_rho", lambda _rho, _epsilon: 0.25e-6)
    found = composer.total_delta([Spend(1, 1e-7, {"rho": rho, "delta": 1e-7})], 3.0)
    assert found == pytest.approx(3.5e-7)
    # A Gaussian with this rho has a smaller delta than its zCDP says: the conversion is an upper bound.
    mu = mpmath.sqrt(2 * rho)
    exact = mpmath.ncdf(mu / 2 - 1 / mu) - mpmath.e * mpmath.ncdf(-mu / 2 - 1 / mu)
    assert float(exact) < delta_of_rho(rho, 1.0)
