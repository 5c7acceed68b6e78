"""How spends add up: by exact sums, by squared moves, and by zero-concentrated differential privacy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dphist
from dphist.accounting import to_pld, zcdp_of_plan
from dphist.errors import InvalidParameter, LedgerError, OverBudget
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.ledger.accounts import Account, Booking, FilterComposer, composer_for, limits_of
from dphist.model import Budget, LaplaceNoise, LatticeNoise, Plan
from dphist.releasing.spending import spend_of
from oracles_gdp import gaussian_delta_of_move, pure_squared

SUM = SumComposer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.ledger"
    Ledger.init(place, "log", epsilon=0.3, delta=1e-5, accounting="sum")
    return place


def test_a_composer_of_another_accounting_is_refused(path: Path) -> None:
    with pytest.raises(InvalidParameter, match="'log' has the accounting 'sum', not 'zcdp'"):
        Ledger.open(path).book("log", Spend(0.1, 1e-6), composer_for("zcdp", Budget(0.3, 1e-5)))


def test_nan_is_refused(path: Path) -> None:
    class Broken(SumComposer):
        def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
            return math.nan * super().total_delta(spends, epsilon)

    ledger = Ledger.open(path)
    with pytest.raises(OverBudget):
        ledger.book("log", Spend(0.1, 1e-6), Broken())
    assert ledger.account("log").bookings == ()


def test_a_ledger_with_the_removed_accounting_of_profiles_is_refused(path: Path) -> None:
    """Also a ledger that has other datasets, before anything is read from it or booked in it."""
    ledger = Ledger.open(path)
    with ledger._writing(ledger.accounts()) as page:
        page.append("dataset", "old", {"epsilon": 3.0, "delta": 1e-6, "accounting": "pld"})
    reason = (
        f"the ledger {path} cannot be used: its dataset 'old' has the accounting 'pld', which was removed. Create "
        "a new ledger, with totals reduced by what was spent in this one"
    )
    actions: list[Callable[[], Any]] = [
        lambda: Ledger.open(path),
        lambda: ledger.account("log"),
        lambda: ledger.book("log", Spend(0.1, 1e-6), SUM),
        lambda: Ledger.init(path, "new", epsilon=1, delta=1e-6),
    ]
    before = path.read_bytes()
    for act in actions:
        with pytest.raises(LedgerError) as refused:
            act()
        assert str(refused.value) == reason
    assert path.read_bytes() == before


NUMBERS = st.floats(1e-12, 2.0) | st.decimals("0.01", "1", places=2).map(float)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), NUMBERS, NUMBERS)
def test_sums_are_compared_exactly(spends: list[tuple[float, float]], epsilon: float, delta: float) -> None:
    """Against fractions of the decimal forms."""
    given_spends = [Spend(e, min(d, 0.999)) for e, d in spends]
    delta = min(delta, 0.999)
    total = SUM.total_delta(given_spends, epsilon)
    within = (
        sum(Fraction(str(spend.epsilon)) for spend in given_spends) <= Fraction(str(epsilon)),
        sum(Fraction(str(spend.delta)) for spend in given_spends) <= Fraction(str(delta)),
    )
    assert (total <= delta) is all(within)


@given(st.lists(NUMBERS, min_size=1, max_size=6), NUMBERS)
def test_the_remaining_epsilon_fits_and_no_more(epsilons: list[float], total: float) -> None:
    account = Account("log", Budget(total, 0.5), "sum")
    spent: list[Spend] = []
    for epsilon in epsilons:
        together = Account("log", account.total, "sum", tuple(map(as_booking, [*spent, Spend(epsilon, 1e-9)])))
        if together.delta_with([], SUM) <= 0.5:
            spent.append(Spend(epsilon, 1e-9))
    account = Account("log", account.total, "sum", tuple(map(as_booking, spent)))
    left = account.left(SUM)["epsilon_left"]
    more = math.nextafter(left, 900)
    if left > 0:
        account.check_fits(Spend(left, 1e-9), SUM)
        assert account.largest_epsilon(1e-9, SUM) == left
    if more <= 800:
        with pytest.raises(OverBudget):
            account.check_fits(Spend(more, 1e-9), SUM)


def as_booking(spend: Spend) -> Booking:
    return Booking("", "log", 1, "", "", spend)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 0), (0.3, 1), (0.1, 3), (0.03, 10), (0.00001, 1000)])
def test_how_many_more_fit(path: Path, share: float, expected: int) -> None:
    account = Ledger.open(path).account("log")
    assert account.more_that_fit(Spend(share, 1e-9), SUM) == expected


# Zero-concentrated differential privacy: two limits, however the releases are chosen.

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
    assert delta_of_rho(rho * 1.01, total.epsilon) > total.delta / 2, "no larger rho is valid"


def test_both_sums_are_exact_and_within_their_limits() -> None:
    rho, delta = limits_of(TOTAL)
    composer = composer_for("zcdp", TOTAL)
    third = Spend(1, 1e-7, {"rho": rho / 4, "delta": delta / 4})
    assert composer.total_delta([third] * 4, 3.0) <= 1e-6
    assert composer.total_delta([third] * 4 + [Spend(1, 1e-7, {"rho": 1e-300, "delta": 0.0})], 3.0) == 1.0
    assert composer.total_delta([third] * 4 + [Spend(1, 1e-7, {"rho": 0.0, "delta": 1e-300})], 3.0) == 1.0
    assert composer.total_delta([], 3.0) == 0.0
    # Without a profile rho is epsilon^2/2.
    least = 1 - 1e-9
    assert composer.total_delta([Spend(math.sqrt(2 * rho) * least, delta)], 3.0) <= 1e-6
    assert composer.total_delta([Spend(math.sqrt(2 * rho) / least, delta)], 3.0) == 1.0


@pytest.mark.parametrize(
    "profile", [{}, {"loss": -1.0, "delta": 0.0}, {"loss": math.nan, "delta": 0.0}, {"loss": True, "delta": 0.0},
                {"loss": 0.1, "delta": math.inf}, {"loss": "0", "delta": 0.0}]
)  # fmt: skip
@pytest.mark.parametrize(("accounting", "name"), [("zcdp", "rho"), ("gdp", "mu_squared")])
def test_invalid_losses_are_refused(accounting: str, name: str, profile: dict[str, Any]) -> None:
    named = {name if key == "loss" else key: value for key, value in profile.items()}
    with pytest.raises(InvalidParameter, match=f"the {name} and delta of a spend must be finite"):
        composer_for(accounting, TOTAL).total_delta([Spend(1, 1e-7, named)], 3.0)


def test_the_profile_of_another_accounting_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="the mu_squared and delta"):
        composer_for("gdp", TOTAL).total_delta([Spend(1, 1e-7, {"rho": 0.01, "delta": 0.0})], 3.0)


@given(st.lists(st.tuples(st.floats(0.0, 0.05), st.floats(0.0, 5e-8)), max_size=8), st.floats(3.0, 9.0))
def test_squared_moves_and_deltas_add_up(pairs: list[tuple[float, float]], epsilon: float) -> None:
    """The total delta is that of mpmath, rounded up, within the limits; else it is 1."""
    composer = composer_for("gdp", TOTAL)
    spends = [Spend(1, 1e-7, {"mu_squared": squared, "delta": delta}) for squared, delta in pairs]
    squared, delta = (sum((Fraction(pair[k]) for pair in pairs), Fraction()) for k in (0, 1))
    limits = limits_of(TOTAL, accounting="gdp")
    found = composer.total_delta(spends, epsilon)
    if squared > Fraction(limits[0]) or delta > Fraction(limits[1]):
        assert found == 1.0
        return
    with mp.workdps(40):
        move = mp.sqrt(mpf(squared.numerator) / squared.denominator)
        normal = gaussian_delta_of_move(move, epsilon) if move else mpf(0)
        truth = normal + mpf(delta.numerator) / delta.denominator
        assert truth * (1 - mpf(10) ** -12) <= mpf(found) <= truth * (1 + mpf(10) ** -12) + mpf(10) ** -300
    assert composer.total_delta(spends, 2.9) == 1.0


def test_without_a_profile_a_spend_counts_as_randomised_response() -> None:
    composer = composer_for("gdp", TOTAL)
    assert isinstance(composer, FilterComposer)
    squared, delta = composer.cost(Spend(0.25, 1e-7))
    assert delta == Fraction(1e-7)
    with mp.workdps(40):
        assert pure_squared(0.25) <= mpf(squared.numerator) / squared.denominator
    # Four such releases reach the limit, and zcdp allows six.
    assert Account("log", TOTAL, "gdp").more_that_fit(Spend(0.25, 1e-9), composer) == 4
    assert Account("log", TOTAL, "zcdp").more_that_fit(Spend(0.25, 1e-9), composer_for("zcdp", TOTAL)) == 5


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


def worst_of(first: Plan, seconds: list[Plan]) -> float:
    """delta at the total epsilon of a release of one public item, followed by the worst second release for it.

    Sums over all outcomes of the first release. The second adds Laplace noise to a count that the user changes by
    one (its loss is +-1/scale), or to one that only this user has (seen if it passes the threshold).
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
        passes = math.exp(-(plan.noise.tau_steps + 1) / scale) * likely
        known = np.maximum(likely - ratio * (1 - likely), 0) + np.maximum(1 - likely - ratio * likely, 0)
        new = passes + np.maximum(1 - passes - ratio, 0)
        gains.append(np.maximum(known, new))
    return float((moved * np.max(gains, axis=0))[moved > 0].sum())


def test_choosing_the_second_release_by_the_first_result(tmp_path: Path) -> None:
    """Composing profiles would allow nearly twice the total; zcdp, gdp and sum do not."""
    first = dphist.plan(epsilon=2.0, delta=1e-7, public_items=1)
    laplace: dict[str, Any] = {"max_items_per_user": 1, "mechanism": "laplace"}
    seconds = [
        dphist.plan(epsilon=1.2, delta=1e-12, **laplace), dphist.plan(epsilon=0.01, delta=9.9e-7, **laplace)
    ]  # fmt: skip
    assert worst_of(first, seconds) > 1.5 * TOTAL.delta
    fits = {}
    profiles = [to_pld(first).compose(to_pld(plan)).get_delta_for_epsilon(3.0) <= TOTAL.delta for plan in seconds]
    assert profiles == [True, True], "each fits, and the worse one would be chosen"
    for accounting in ("zcdp", "gdp", "sum"):
        composer = composer_for(accounting, TOTAL)
        fits[accounting] = [
            composer.total_delta([spend_of(first, accounting), spend_of(plan, accounting)], 3.0) <= TOTAL.delta
            for plan in seconds
        ]
    assert not any(fits["zcdp"] + fits["gdp"] + fits["sum"])


def test_names_that_look_alike_are_refused(tmp_path: Path) -> None:
    Ledger.init(tmp_path / "a", "Orders", epsilon=1, delta=1e-6)
    for name in ("orders", "ORDERS", "\uff2frders"):
        with pytest.raises(LedgerError, match="already has a dataset 'Orders'"):
            Ledger.init(tmp_path / "a", name, epsilon=1, delta=1e-6)
