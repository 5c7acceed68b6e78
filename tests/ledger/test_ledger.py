"""Totals, bookings and settlements of a ledger."""

from __future__ import annotations

import json
import math
import sqlite3
import stat
import tempfile
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dphist.errors import DphistError, InvalidParameter, LedgerError, OverBudget
from dphist.ledger import Ledger, Spend, SumComposer, store
from dphist.ledger.accounts import Booking, FilterComposer, composer_for
from dphist.model import Budget
from scheduling import examples

SUM = SumComposer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.ledger"
    Ledger.init(place, "log", epsilon=0.3, delta=1e-5, accounting="sum")
    return place


def test_bookings_until_nothing_is_left(path: Path) -> None:
    for number in range(3):
        found = Ledger.open(path).book("log", Spend(0.1, 1e-6, {"p": 1}, {"request": number}), SUM)
        assert found.number == 3 + number
    with pytest.raises(OverBudget) as refused:
        Ledger.open(path).book("log", Spend(1e-9, 1e-6), SUM)
    assert "remaining: nothing" in str(refused.value)
    bookings = Ledger.open(path).account("log").bookings
    assert [booking.spend.document for booking in bookings] == [{"request": number} for number in range(3)]
    assert bookings[0].spend.profile == {"p": 1}
    assert bookings[2] == found


def test_a_booking_counts_whether_or_not_it_was_settled(path: Path) -> None:
    ledger = Ledger.open(path)
    first, second = (ledger.book("log", Spend(0.15, 1e-6), SUM) for _ in range(2))
    ledger.settle(second, sha256="ab" * 32, address="out.parquet")
    states = [booking.written for booking in Ledger.open(path).account("log").bookings]
    assert states == [None, {"sha256": "ab" * 32, "address": "out.parquet"}]
    with pytest.raises(LedgerError, match=f"booking {second.number} .* is already settled"):
        ledger.settle(second, sha256="", address="")
    strange = Booking("", "log", first.number, "0" * 64, "", first.spend)
    with pytest.raises(LedgerError, match="has no booking 3 with this hash"):
        ledger.settle(strange, sha256="", address="")
    with pytest.raises(OverBudget):
        ledger.book("log", Spend(0.1, 1e-6), SUM)


def test_a_receipt_finds_its_booking_again(path: Path) -> None:
    ledger = Ledger.open(path)
    receipt = ledger.book("log", Spend(0.1, 1e-6), SUM).receipt()
    assert receipt == {
        "ledger": ledger.accounts().id, "dataset": "log", "entry": 3, "hash": ledger.accounts().chain.hash
    }  # fmt: skip
    assert json.loads(json.dumps(receipt)) == receipt
    assert Ledger.open(path, expect=receipt["hash"]).path == path
    with pytest.raises(LedgerError, match=f"no entry with the hash {'1' * 64}: entries are missing"):
        Ledger.open(path, expect="1" * 64)
    with pytest.raises(InvalidParameter, match="expect must be the hash of a receipt, 64 digits, not 'abc'"):
        Ledger.open(path, expect="abc")


def test_each_dataset_has_its_own_budget(path: Path) -> None:
    Ledger.init(path, "orders", epsilon=1, delta=1e-6, accounting="sum")
    ledger = Ledger.open(path)
    ledger.book("log", Spend(0.3, 1e-6), SUM)
    ledger.book("orders", Spend(1, 1e-6), SUM)
    assert [account.name for account in ledger.accounts().datasets.values()] == ["log", "orders"]
    with pytest.raises(LedgerError, match="already has a dataset 'orders'"):
        Ledger.init(path, "orders", epsilon=5, delta=1e-6)
    assert ledger.account("orders").total == Budget(1.0, 1e-6)


def test_only_its_owner_can_read_a_ledger(path: Path) -> None:
    Ledger.open(path).book("log", Spend(0.1, 1e-6), SUM)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["a.ledger"]


def test_bookings_are_durable(path: Path) -> None:
    with store.transaction(path, 1.0, writing=False) as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    # A mode that another program set is undone.
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    Ledger.open(path).book("log", Spend(0.1, 1e-6), SUM)
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ("lgo", "the ledger has no dataset 'lgo' (did you mean 'log'?): it has 'log'"),
        ("orders", "the ledger has no dataset 'orders': it has 'log'"),
        ("", "the ledger has no dataset '': it has 'log'"),
    ],
)
def test_an_unknown_dataset(path: Path, dataset: str, message: str) -> None:
    with pytest.raises(LedgerError) as refused:
        Ledger.open(path).book(dataset, Spend(0.1, 1e-6), SUM)
    assert str(refused.value) == message


BAD: list[tuple[dict[str, Any], str]] = [
    ({"epsilon": math.nan}, "epsilon must be a finite number, not nan"),
    ({"delta": 1}, "delta must be below 1, not 1"),
    ({"accounting": "moments"}, "accounting must be 'auto' or 'gdp' or 'zcdp' or 'sum', not 'moments'"),
    ({"dataset": ""}, "dataset must be a name of 1 to 200 characters, not ''"),
    ({"dataset": "x" * 201}, "dataset must be a name of 1 to 200 characters"),
    ({"dataset": "a\nb"}, "dataset must be a name of printable characters, not 'a\\nb'"),
    ({"dataset": "\udc80"}, "dataset must be a name of printable characters"),
    ({"dataset": 7}, "dataset must be a name of 1 to 200 characters, not 7"),
    ({"path": ""}, "a ledger needs the name of a file, not ''"),
    ({"path": "a\0b"}, "a ledger needs the name of a file"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=lambda value: str(value)[:40])
def test_invalid_totals_create_no_file(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"path": tmp_path / "new", "dataset": "log", "epsilon": 1, "delta": 1e-6}
    with pytest.raises(InvalidParameter) as refused:
        Ledger.init(**{**good, **change})
    assert message in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Spend(math.nan, 1e-6),
        lambda: Spend(1, 0),
        lambda: Spend(1, 1e-6, "profile"),  # type: ignore[arg-type]
        lambda: Spend(1, 1e-6, None, {"a": math.nan}).through_json(),
        lambda: Spend(1, 1e-6, None, {"a": object()}).through_json(),
    ],
)
def test_invalid_spends(bad: Any) -> None:
    with pytest.raises(InvalidParameter) as refused:
        bad()
    assert "\n" not in str(refused.value)


def test_the_stored_spend_is_composed(path: Path) -> None:
    seen: list[Spend] = []

    class Watching(SumComposer):
        def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
            seen.extend(spends)
            return super().total_delta(spends, epsilon)

    given_profile: dict[str, Any] = {"points": (1, 2.5), "name": "\udc80 ü"}
    Ledger.open(path).book("log", Spend(0.1, 1e-6, given_profile), Watching())
    (stored,) = Ledger.open(path).account("log").spends
    assert seen == [stored]
    assert stored.profile == {"points": [1, 2.5], "name": "\udc80 ü"}


def test_a_process_that_is_always_overtaken_books_in_the_end(path: Path) -> None:
    """Because its last attempt locks the others out."""
    fast = Ledger.open(path, wait_seconds=0.0)
    overtaken = []

    class Overtaken(SumComposer):
        def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
            with suppress(LedgerError):  # locked in the last attempt
                overtaken.append(fast.book("log", Spend(0.001, 1e-9), SUM).number)
            return super().total_delta(spends, epsilon)

    found = Ledger.open(path).book("log", Spend(0.1, 1e-6), Overtaken())
    assert len(overtaken) == store._ATTEMPTS
    assert found.number == 3 + len(overtaken)
    assert len(Ledger.open(path).account("log").bookings) == 1 + len(overtaken)


def test_bookings_of_other_datasets_do_not_repeat_the_composition(path: Path) -> None:
    Ledger.init(path, "orders", epsilon=1, delta=1e-3, accounting="sum")
    other, asked = Ledger.open(path), []

    class Busy(SumComposer):
        def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
            asked.append(len(spends))
            other.book("orders", Spend(0.01, 1e-9), SUM)
            return super().total_delta(spends, epsilon)

    assert Ledger.open(path).book("log", Spend(0.1, 1e-6), Busy()).number == 5
    assert asked == [1]


def test_nothing_is_booked_when_the_composer_fails(path: Path) -> None:
    class Broken(SumComposer):
        def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
            raise DphistError(f"cannot compose {len(spends)} at {epsilon}")

    with pytest.raises(DphistError, match="cannot compose 1 at"):
        Ledger.open(path).book("log", Spend(0.1, 1e-6), Broken())
    assert Ledger.open(path).account("log").bookings == ()


ACTS = st.lists(
    st.tuples(st.sampled_from(["book", "settle", "open"]), st.sampled_from(["log", "orders"]), st.integers(1, 40)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=examples(20))
@given(ACTS)
def test_any_order_of_actions_agrees_with_a_model(acts: list[tuple[str, str, int]]) -> None:
    """The model is a list of hundredths per dataset, and a set of settled bookings."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "m"
        ledger = Ledger.init(place, "log", epsilon=1, delta=0.5, accounting="sum")
        Ledger.init(place, "orders", epsilon=0.5, delta=0.5, accounting="sum")
        limits, spent = {"log": 100, "orders": 50}, {"log": list[int](), "orders": list[int]()}
        booked: list[Booking] = []
        settled: set[int] = set()
        for act, dataset, hundredths in acts:
            if act == "open":
                ledger = Ledger.open(place)
            elif act == "book":
                fits = sum(spent[dataset]) + hundredths <= limits[dataset]
                with nullcontext() if fits else pytest.raises(OverBudget):
                    booked.append(ledger.book(dataset, Spend(hundredths / 100, 1e-9), SUM))
                    spent[dataset].append(hundredths)
            elif booked:
                booking = booked[hundredths % len(booked)]
                known = booking.number in settled
                with pytest.raises(LedgerError, match="already") if known else nullcontext():
                    ledger.settle(booking, sha256="", address="")
                settled.add(booking.number)
        found = Ledger.open(place).accounts()
        for name, account in found.datasets.items():
            assert [spend.epsilon for spend in account.spends] == [part / 100 for part in spent[name]]
            numbers = {booking.number for booking in booked if booking.dataset == name}
            assert {booking.number for booking in account.bookings if booking.written} == settled & numbers


@pytest.mark.parametrize("accounting", ["sum", "zcdp", "gdp"])
@pytest.mark.parametrize("above", [math.nextafter(1e-6, 1), 1.0000000005e-6, 1.01e-6])
def test_a_delta_above_the_total_by_the_least_is_refused(tmp_path: Path, accounting: str, above: float) -> None:
    """The total is a promise: no tolerance, neither for one release nor for the last of several."""
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=1.0, delta=1e-6, accounting=accounting)
    composer = composer_for(accounting, Budget(1.0, 1e-6))
    part, loss = 1e-6, ""
    if isinstance(composer, FilterComposer):
        part, loss = 5e-7, composer.loss.name  # the half for counts that pass a threshold
    profile = {loss: 1e-9, "delta": above * part / 1e-6} if loss else None
    with pytest.raises(OverBudget):
        pytest.fail(f"booked above the total: {ledger.book('log', Spend(0.5, above, profile), composer)}")
    half = {loss: 1e-9, "delta": part / 2} if loss else None
    ledger.book("log", Spend(0.25, 5e-7, half), composer)
    rest = math.nextafter(5e-7, 1) if above < 1.0000000001e-6 else above - 5e-7
    more = {loss: 1e-9, "delta": rest * part / 1e-6} if loss else None
    with pytest.raises(OverBudget):
        pytest.fail(f"booked above the total: {ledger.book('log', Spend(0.25, rest, more), composer)}")
    assert len(ledger.account("log").bookings) == 1
    ledger.book("log", Spend(0.25, 5e-7, half), composer)  # exactly the total fits


def test_sums_of_deltas_are_not_rounded_down_to_the_total(tmp_path: Path) -> None:
    """Two decimals whose exact sum is above 1e-6, though the nearest float to it is 1e-6."""
    deltas = (2.1661370546203162e-07, 7.833862945379684e-07)
    exact = sum(Fraction(repr(delta)) for delta in deltas)
    assert exact > Fraction("1e-6")
    assert float(exact) == 1e-6
    ledger, composer = Ledger.init(tmp_path / "a", "log", epsilon=1.0, delta=1e-6, accounting="sum"), SumComposer()
    ledger.book("log", Spend(0.25, deltas[0]), composer)
    with pytest.raises(OverBudget):
        pytest.fail(f"booked above the total: {ledger.book('log', Spend(0.25, deltas[1]), composer)}")


@pytest.mark.parametrize("accounting", ["zcdp", "gdp"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_loss_above_its_limit_by_the_least_is_refused(tmp_path: Path, accounting: str, times: int) -> None:
    """rho and mu squared have no tolerance either, in one release or in two."""
    ledger = Ledger.init(tmp_path / "a", "log", epsilon=1.0, delta=1e-6, accounting=accounting)
    composer = composer_for(accounting, Budget(1.0, 1e-6))
    assert isinstance(composer, FilterComposer)
    limit = composer.limits[0]
    assert limit > 1e-3
    half = Spend(0.1, 1e-9, {composer.loss.name: limit / 2, "delta": 1e-9})
    if times == 2:
        ledger.book("log", half, composer)
    over = Spend(0.1, 1e-9, {composer.loss.name: math.nextafter(limit / times, 1), "delta": 1e-9})
    with pytest.raises(OverBudget):
        pytest.fail(f"booked above the limit: {ledger.book('log', over, composer)}")
    for _ in range(3 - times):
        ledger.book("log", half, composer)  # exactly the limit fits
