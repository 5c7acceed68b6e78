"""The accounting that the first booking fixes, and what remains, in words."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from mpmath import mp
from test_ledger_composing import worst_of

import dphist
import oracles_gdp as oracle
from dphist.errors import InvalidParameter, LedgerError, OverBudget
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.ledger.accounts import Account, FilterComposer, composer_for, limits_of
from dphist.model import Budget
from dphist.paper.bounds import delta_zcdp
from dphist.releasing.spending import SHARES, price_of, spend_of
from release_commands import bookings, command, log_in

ONE = Budget(1.0, 1e-6)
THREE = Budget(3.0, 1e-6)
CAPPED: dict[str, Any] = {"max_items_per_user": 20}


def account(total: Budget) -> Account:
    return Account("log", total, "auto")


@pytest.mark.parametrize(
    "limit", [["--max-items-per-user", "20"], pytest.param([], marks=pytest.mark.slow)], ids=["given", "chosen"]
)
def test_the_obvious_first_release_fits(tmp_path: Path, limit: list[str]) -> None:
    """A total of (1, 1e-6) and a release of (1, 1e-6)."""
    folder = log_in(tmp_path, epsilon=1.0, delta=1e-6, accounting="auto")
    words = ["release", "events.parquet", "--user", "user", "--item", "item", "--epsilon", "1", *limit]
    words += ["--delta", "1e-6", "--ledger", "a.ledger", "--dataset", "log"]
    done = command(folder, *words, "--output", "out.csv")
    assert done.code == 0, done.err
    assert "nothing. As the first release it fixes the accounting" in " ".join(done.out.split())
    assert Ledger.open(folder / "a.ledger").account("log").accounting == "sum"
    refused = command(folder, *words, "--output", "more.csv")
    assert (refused.code, refused.out) == (3, "")
    assert refused.err.partition("remaining: ")[2].startswith("nothing. What these users' data has cost stays")
    assert len(bookings(folder)) == 1


CASES = [
    # Total, first release, contract: the accounting, and how many such releases fit.
    (ONE, 1.0, 1e-6, CAPPED, "sum", 1),
    (THREE, 1.0, 1e-7, CAPPED, "gdp", 8),
    (THREE, 1.0, 3.3e-7, CAPPED, "sum", 3),
    (THREE, 0.3, 1e-8, CAPPED, "gdp", 90),
    (THREE, 0.3, 1e-8, {"public_items": 50}, "gdp", 102),
    (THREE, 0.3, 1e-8, CAPPED | {"mechanism": "laplace"}, "zcdp", 74),
    (THREE, 0.3, 1e-8, {"mechanism": "gaussian"}, "gdp", 105),
    (THREE, 1.0, 1e-7, {"mechanism": "gaussian"}, "gdp", 9),
    (THREE, 1.0, 1e-7, {}, "sum", 3),
    (Budget(10.0, 1e-6), 1.0, 1e-7, CAPPED, "sum", 10),
]


@pytest.mark.parametrize(("total", "epsilon", "delta", "contract", "accounting", "number"), CASES)
def test_the_accounting_by_which_more_releases_fit(
    total: Budget, epsilon: float, delta: float, contract: Any, accounting: str, number: int
) -> None:
    planned = dphist.plan(epsilon=epsilon, delta=delta, **contract)
    spend, composer = price_of(planned, account(total))
    assert composer.accounting == accounting
    fit = account(total).more_that_fit(spend, composer)
    assert fit == number
    for other in ("sum", "zcdp", "gdp"):
        for share in SHARES:
            others = composer_for(other, total, share)
            assert account(total).more_that_fit(spend_of(planned, other), others) <= fit


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("total", [ONE, THREE, Budget(0.1, 1e-9), Budget(20.0, 1e-3)])
@pytest.mark.parametrize(
    ("accounting", "name", "delta_of"),
    [
        ("zcdp", "rho", lambda rho, epsilon: delta_zcdp(rho=rho, epsilon=epsilon)),
        ("gdp", "mu_squared", lambda squared, epsilon: oracle.gaussian_delta_of_move(mp.sqrt(squared), epsilon)),
    ],
    ids=["zcdp", "gdp"],
)
def test_the_limits_of_each_share_are_within_the_total(
    accounting: str, name: str, delta_of: Any, total: Budget, share: float
) -> None:
    loss, beside = limits_of(total, share, accounting)
    assert delta_of(loss, total.epsilon) + beside <= total.delta
    assert delta_of(loss, total.epsilon) <= total.delta - beside
    # A slightly larger loss is too much.
    assert delta_of(loss * 1.001, total.epsilon) > total.delta - beside
    composer = composer_for(accounting, total, share)
    assert composer.total_delta([Spend(0.1, 1e-12, {name: loss, "delta": beside})], total.epsilon) <= total.delta
    for more in (
        {name: loss, "delta": math.nextafter(beside, 1)},
        {name: math.nextafter(loss, math.inf), "delta": 0.0},
    ):
        assert composer.total_delta([Spend(0.1, 1e-12, more)], total.epsilon) == 1.0


def test_the_first_booking_fixes_the_accounting(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6)
    assert ledger.account("log").accounting == "auto"
    plan = dphist.plan(epsilon=1, delta=1e-7, **CAPPED)
    first = ledger.book_release("log", lambda known: price_of(plan, known))
    found = Ledger.open(tmp_path / "a").account("log")
    assert (found.accounting, found.share, found.by_first) == ("gdp", 0.8, True)
    assert first.spend.profile == spend_of(plan, "gdp").profile
    # Later releases are priced by it, even if another accounting would suit them better.
    large = dphist.plan(epsilon=3, delta=8e-7, **CAPPED)
    spend, composer = price_of(large, found)
    assert isinstance(composer, FilterComposer)
    assert composer.share == 0.8
    with pytest.raises(OverBudget):
        ledger.book("log", spend, composer)
    with pytest.raises(InvalidParameter, match="has the accounting 'gdp', not 'sum'"):
        ledger.book("log", Spend(0.1, 1e-9), SumComposer())
    # Another share or total would change the limits.
    for other in (composer_for("gdp", THREE, 0.25), composer_for("gdp", Budget(9, 1e-6), 0.8)):
        for ask in (found.left, lambda one: ledger.book("log", Spend(0.01, 1e-12), one)):
            with pytest.raises(
                InvalidParameter, match=r"the composer must have the total .*, and its share, 0\.8"
            ):
                ask(other)
    assert len(ledger.account("log").bookings) == 1
    ledger.book("log", Spend(0.01, 1e-12), composer_for("gdp", THREE, 0.8))


def test_a_composer_of_another_total_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6)
    with pytest.raises(InvalidParameter, match="the composer must have the total"):
        ledger.book("log", Spend(0.01, 1e-12), composer_for("zcdp", Budget(9, 1e-6)))
    assert ledger.account("log").bookings == ()


def test_choosing_the_second_release_by_the_first_result_stays_within_the_total() -> None:
    laplace: dict[str, Any] = {"max_items_per_user": 1, "mechanism": "laplace"}
    # The worst of these pairs spends nearly twice the total.
    seconds = [
        dphist.plan(epsilon=1.2, delta=1e-12, **laplace), dphist.plan(epsilon=0.01, delta=9.9e-7, **laplace),
        dphist.plan(epsilon=0.9, delta=1e-7, **laplace), dphist.plan(epsilon=0.3, delta=1e-8, **laplace),
    ]  # fmt: skip
    compared = 0
    for epsilon in (0.5, 1.0, 2.0, 2.9):
        first = dphist.plan(epsilon=epsilon, delta=1e-7, public_items=1)
        spend, composer = price_of(first, account(THREE))
        allowed = [
            plan
            for plan in seconds
            if composer.total_delta([spend, spend_of(plan, composer.accounting)], 3.0) <= THREE.delta
        ]
        if allowed:
            compared += 1
            assert worst_of(first, allowed) <= THREE.delta
    assert compared >= 2
    # Power: without a limit they are too much.
    assert worst_of(dphist.plan(epsilon=2.0, delta=1e-7, public_items=1), seconds) > 1.5 * THREE.delta


def test_two_first_bookings_at_once_have_one_accounting(tmp_path: Path) -> None:
    """The slower one is priced again by the accounting that the faster one fixed."""
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6)
    small, large = (dphist.plan(epsilon=e, delta=d, **CAPPED) for e, d in ((0.3, 1e-8), (1.0, 3.3e-7)))
    seen: list[str] = []

    def price(known: Account) -> Any:
        seen.append(known.accounting)
        if len(seen) == 1:
            ledger.book_release("log", lambda found: price_of(small, found))
        return price_of(large, known)

    Ledger.open(tmp_path / "a").book_release("log", price)
    found = ledger.account("log")
    assert seen == ["auto", "gdp"]
    assert found.accounting == "gdp"
    assert all(one.spend.profile is not None for one in found.bookings)


def test_a_ledger_keeps_the_accounting_that_an_earlier_version_chose(tmp_path: Path) -> None:
    """Its limits and its prices, although gdp would fit more."""
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6)
    plan = dphist.plan(epsilon=0.3, delta=1e-8, **CAPPED)
    spend = spend_of(plan, "zcdp")
    with ledger._writing(ledger.accounts()) as page:
        body = asdict(spend) | {"accounting": {"name": "zcdp", "share": 0.9}}
        page.append("booking", "log", body)
    found = Ledger.open(tmp_path / "a").account("log")
    assert (found.accounting, found.share, found.by_first) == ("zcdp", 0.9, True)
    again, composer = price_of(plan, found)
    assert (again, composer.accounting) == (spend, "zcdp")
    assert found.more_that_fit(again, composer) == 80
    assert sorted(found.left(composer)) == ["delta_left", "delta_spent", "rho_left"]
    with pytest.raises(InvalidParameter, match="has the accounting 'zcdp', not 'gdp'"):
        ledger.book("log", Spend(0.1, 1e-9), composer_for("gdp", THREE, 0.9))


@pytest.mark.parametrize(
    "rule",
    [None, {"name": "pld"}, {"name": "auto"}, {"name": "zcdp", "share": 1.5}, {"name": "zcdp", "share": "1"}],
)
def test_a_first_booking_without_a_valid_rule_is_refused(tmp_path: Path, rule: Any) -> None:
    path = tmp_path / "a"
    ledger = Ledger.init(path, "log", epsilon=3, delta=1e-6)
    body: dict[str, Any] = asdict(Spend(1, 1e-7)) | ({} if rule is None else {"accounting": rule})
    with ledger._writing(ledger.accounts()) as page:
        page.append("booking", "log", body)
    with pytest.raises(LedgerError, match="entry 3 is not valid"):
        Ledger.open(path)


# Words.


def test_the_largest_epsilon_is_exact_for_the_requested_release(tmp_path: Path) -> None:
    """It fits, and a little more does not."""
    folder = log_in(tmp_path, epsilon=1.0, delta=1e-6, accounting="zcdp")
    budget = ["--dataset", "log", "--delta", "1e-7", "--max-items-per-user", "20"]
    done = command(folder, "ledger", "plan", "a.ledger", *budget, "--epsilon", "2", "--json")
    assert done.code == 3
    largest = done.data["largest_epsilon"]
    assert largest >= 0.97
    fits = command(folder, "ledger", "plan", "a.ledger", *budget, "--epsilon", repr(largest))
    assert (fits.code, fits.out.split(".")[0]) == (0, "It fits")
    assert command(folder, "ledger", "plan", "a.ledger", *budget, "--epsilon", repr(largest + 0.05)).code == 3
    words = ["release", "events.parquet", "--user", "user", "--item", "item", *budget, "--ledger", "a.ledger"]
    refused = command(folder, *words, "--epsilon", "2", "--output", "out.csv")
    assert refused.code == 3
    assert f"remaining: one release like this one with epsilon up to {largest:g}" in refused.err


@pytest.mark.parametrize(
    "accounting", ["gdp", *(pytest.param(k, marks=pytest.mark.slow) for k in ("zcdp", "sum"))]
)
def test_as_many_releases_fit_as_reported(tmp_path: Path, accounting: str) -> None:
    folder = log_in(tmp_path, epsilon=2.0, delta=1e-6, accounting=accounting)
    words = ["release", "events.parquet", "--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-7"]
    words += ["--max-items-per-user", "2", "--mechanism", "gaussian", "--ledger", "a.ledger", "--dataset", "log"]
    done = command(folder, *words, "--output", "0.csv", "--json")
    more = int(done.data["remaining"].removeprefix("about ").split()[0])
    for number in range(1, more + 1):
        assert command(folder, *words, "--output", f"{number}.csv").code == 0
    assert command(folder, *words, "--output", "more.csv").code == 3
    shown = command(folder, "ledger", "show", "a.ledger").out
    assert "more release" not in shown


def test_init_reports_a_weekly_budget(tmp_path: Path) -> None:
    """52 releases with it fit, but not with a fifth more."""
    done = command(tmp_path, "ledger", "init", "a", "--dataset", "log", "--epsilon", "3", "--delta", "1e-6")
    weekly = " ".join(done.out.split()).split("52 weekly default releases with epsilon ")[1]
    epsilon, delta = float(weekly.split()[0]), float(weekly.split("delta ")[1].split()[0])
    for factor, enough in ((1.0, True), (1.2, False)):
        planned = dphist.plan(epsilon=factor * epsilon, delta=delta, mechanism="gaussian")
        spend, composer = price_of(planned, account(THREE))
        assert (account(THREE).more_that_fit(spend, composer) >= 52) is enough


def test_the_delta_is_named_if_it_is_the_reason() -> None:
    plan = dphist.plan(epsilon=0.5, delta=9e-7, **CAPPED)
    known = Account("log", ONE, "zcdp")
    spend = spend_of(plan, "zcdp")
    assert spend.profile is not None
    assert spend.profile["delta"] > 5e-7
    left = known.remaining(composer_for("zcdp", ONE), spend)
    assert (left.more, left.largest_epsilon, left.largest_delta) == (0, 0.0, 5e-7)
    assert str(left) == "too little for its delta: a release needs a delta of at most 5e-07"
