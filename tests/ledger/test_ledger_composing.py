"""How spends add up: plainly and exactly, or by their privacy profiles."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dphist
from dphist.accounting import Profile
from dphist.errors import InvalidParameter, OverBudget
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.ledger.accounts import Account, Booking, ProfileComposer, composer_for, decimal_fraction, largest_float
from dphist.privacy.types import Budget
from dphist.releasing.spending import spend_of

SUM = SumComposer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.ledger"
    Ledger.init(place, "log", epsilon=0.3, delta=1e-5, accounting="sum")
    return place


def test_the_accounting_of_a_dataset_is_the_one_that_counts(path: Path) -> None:
    other = ProfileComposer()
    with pytest.raises(InvalidParameter, match="'log' has the accounting 'sum', not 'pld'"):
        Ledger.open(path).book("log", Spend(0.1, 1e-6), other)


def test_profiles_are_composed_in_groups_and_nan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[tuple[Any, int]]] = []
    answers = [1e-7, 1e-6, math.nan, math.nan, 1e-7]

    def total(pairs: list[tuple[Any, int]], epsilon: float) -> float:
        assert epsilon == 3.0
        asked.append(pairs)
        return answers.pop(0)

    class Named(str):
        def delta(self, _epsilon: float) -> float:
            return 1e-7

    monkeypatch.setattr("dphist.accounting.composition.total_delta", total)
    monkeypatch.setattr(Profile, "from_dict", lambda data: Named(data["s"]))
    monkeypatch.setattr(Profile, "of_budget", lambda *_: Named("none"))
    composer = ProfileComposer()
    ledger = Ledger.init(tmp_path / "p", "log", epsilon=3, delta=1e-6, accounting="pld")
    ledger.book("log", Spend(1, 1e-7, {"s": "5"}), composer)
    ledger.book("log", Spend(1, 1e-7, {"s": "5"}, {"another": "document"}), composer)
    with pytest.raises(OverBudget, match=r"would be nan; remaining: .* of the delta 1e-06 at epsilon 3\.0"):
        ledger.book("log", Spend(1, 1e-7), composer)
    assert asked[:3] == [[("5", 1)], [("5", 2)], [("5", 2), ("none", 1)]]
    assert composer.total_delta([], 3.0) == 0.0
    # What contradicts its own budget is refused, for the smaller of both would count.
    with pytest.raises(InvalidParameter, match="exceeds its delta"):
        ledger.book("log", Spend(1, 1e-8, {"s": "5"}), composer)


NUMBERS = st.floats(1e-12, 2.0) | st.decimals("0.01", "1", places=2).map(float)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=6), NUMBERS, NUMBERS)
def test_sums_are_compared_exactly(spends: list[tuple[float, float]], epsilon: float, delta: float) -> None:
    """Against fractions of what is written; a float that rounds could let too much through."""
    given_spends = [Spend(e, min(d, 0.999)) for e, d in spends]
    delta = min(delta, 0.999)
    total = SUM.total_delta(given_spends, epsilon)
    within = (
        sum(Fraction(str(one.epsilon)) for one in given_spends) <= Fraction(str(epsilon)),
        sum(Fraction(str(one.delta)) for one in given_spends) <= Fraction(str(delta)),
    )
    assert (total <= delta) is all(within)


@given(st.lists(NUMBERS, min_size=1, max_size=6), NUMBERS)
def test_what_is_left_fits_and_nothing_more(epsilons: list[float], total: float) -> None:
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


@given(st.fractions(0, 3))
def test_the_largest_float_below(exact: Fraction) -> None:
    value = largest_float(exact)
    assert decimal_fraction(value) <= exact < decimal_fraction(math.nextafter(value, math.inf))


@pytest.mark.parametrize(("share", "expected"), [(1.0, 0), (0.3, 1), (0.1, 3), (0.03, 10), (0.00001, 1000)])
def test_how_many_more_fit(path: Path, share: float, expected: int) -> None:
    account = Ledger.open(path).account("log")
    assert account.more_that_fit(Spend(share, 1e-9), SUM) == expected


@pytest.fixture(scope="module")
def release() -> Spend:
    """A release as it would be booked: with its budget and its profile."""
    plan = dphist.plan(epsilon=1, delta=1e-7, max_items_per_user=20)
    return spend_of(plan, "pld")


def test_more_releases_fit_by_their_profiles(tmp_path: Path, release: Spend) -> None:
    pld = composer_for("pld", Budget(3, 1e-6))
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6, accounting="pld")
    account = ledger.account("log")
    assert account.more_that_fit(Spend(1, 1e-7), pld) == 3
    most = account.more_that_fit(release, pld)
    assert most > 5
    for _ in range(most):
        ledger.book("log", release, pld)
    with pytest.raises(OverBudget, match=r"delta at epsilon 3\.0 would be .*; remaining: .* of the delta"):
        ledger.book("log", release, pld)
    left = ledger.account("log").left(pld)
    assert 0.0 < left["delta_spent"] <= 1e-6
    # A smaller one still fits, as large as is said.
    epsilon = ledger.account("log").largest_epsilon(1e-8, pld)
    if epsilon:
        ledger.book("log", Spend(epsilon, 1e-8), pld)


def test_one_release_may_have_all_of_the_total(tmp_path: Path, release: Spend) -> None:
    """The profile of a plan lies a little above the truth: composed alone it would not fit in its own budget."""
    pld = composer_for("pld", Budget(3, 1e-6))
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=1, delta=1e-7, accounting="pld")
    assert ledger.account("log").largest_epsilon(1e-7, pld) == 1.0
    assert ledger.book("log", release, pld).number == 3
    with pytest.raises(OverBudget):
        ledger.book("log", Spend(1e-6, 1e-12), pld)


def test_a_profile_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6, accounting="pld")
    with pytest.raises(InvalidParameter, match="this is not a dphist-profile"):
        ledger.book("log", Spend(1, 1e-7, {"format": "another"}), composer_for("pld", Budget(3, 1e-6)))
    assert ledger.account("log").bookings == ()
