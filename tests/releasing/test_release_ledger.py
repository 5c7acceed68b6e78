"""Releases on a ledger: booked before noise is drawn, recorded in the certificate, and within the total."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from adbc_driver_postgresql import dbapi
from scipy import special
from test_release_leaks import TRUE, hidden_in, without_digests

import dphist
from dphist.errors import OverBudget
from dphist.ledger import Ledger, SumComposer
from dphist.ledger.accounts import composer_for
from dphist.model import RoundsNoise
from dphist.releasing.spending import Attempt, spend_of
from postgres_server import PASSWORD, postgres_address  # noqa: F401
from release_commands import (
    BOOKED,
    BUDGET,
    COUNTS,
    FLAGS,
    Watched,
    bookings,
    certificate,
    command,
    log_in,
    names,
    watching,
)
from release_data import events

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-7}
PLAIN = ["--max-items-per-user", "2"]
ROUNDS: list[str] = []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return log_in(tmp_path)


@pytest.fixture
def watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return watching(folder / "a.ledger", monkeypatch)


@pytest.mark.parametrize("cap", [PLAIN, ROUNDS], ids=["plain", "rounds"])
def test_booked_before_noise_is_drawn(folder: Path, watched: Watched, cap: list[str]) -> None:
    done = command(folder, "release", "events.parquet", *BUDGET, *cap, *BOOKED, "--output", "out.csv")
    assert done.code == 0, done.err
    assert watched.drawn > 2


def test_noise_before_the_booking_is_detected(
    folder: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Power of the test above."""
    monkeypatch.setattr(Attempt, "book", lambda *_: None)
    with pytest.raises(AssertionError, match="noise before its booking"):
        command(folder, "release", "events.parquet", *FLAGS, *BOOKED, "--output", "out.csv")


@pytest.mark.parametrize("cap", [PLAIN, ROUNDS], ids=["plain", "rounds"])
def test_the_receipt_is_in_the_certificate_and_the_state_in_the_ledger(folder: Path, cap: list[str]) -> None:
    done = command(folder, "release", "events.parquet", *BUDGET, *cap, *BOOKED, "--output", "out.csv", "--json")
    assert done.code == 0, done.err
    (booking,) = bookings(folder)
    document = certificate(folder, "out.csv")
    assert document["booking"] == booking.receipt()
    assert "ledger" not in document["request"]
    assert document["request"]["dataset"] == "log"
    assert (booking.spend.epsilon, booking.spend.delta) == (1.0, 1e-7)
    assert booking.written == {"sha256": done.data["sha256"], "address": "out.csv"}
    assert booking.spend.document["guarantee"] == document["guarantee"]
    assert {"kind": "events", **booking.spend.document["request"]} == document["request"]
    assert dphist.verify(folder / "out.csv").verified
    shown = command(folder, "ledger", "show", "a.ledger", "--expect", document["booking"]["hash"], "--json")
    assert shown.data["datasets"][0]["bookings"][0]["state"] == "written"


def test_from_python_with_and_without_an_output(folder: Path) -> None:
    found = dphist.release(
        events(COUNTS), **ASKED, max_items_per_user=2, ledger=folder / "a.ledger", dataset="log"
    )
    assert found.receipt is not None
    (booking,) = bookings(folder)
    assert found.document()["booking"] == booking.receipt()
    assert booking.written is None
    written = dphist.release(
        events(COUNTS), **ASKED, max_items_per_user=2, ledger=str(folder / "a.ledger"), dataset="log",
        output=folder / "out.parquet",
    )  # fmt: skip
    assert written.written is not None
    assert bookings(folder)[1].written == {"sha256": written.written.digest, "address": written.written.address}


def test_a_reader_can_be_released(folder: Path) -> None:
    """Checking the columns does not consume a reader."""
    place: dict[str, Any] = {"ledger": folder / "a.ledger", "dataset": "log"}
    # An item of two users is released with probability below delta.
    asked = {**ASKED, "delta": 1e-12, "max_items_per_user": 2}
    assert len(dphist.release(events(COUNTS).to_reader(), **asked, **place)) == 3


def test_a_request_file_and_a_dry_run(folder: Path) -> None:
    (folder / "request.toml").write_text(
        'input = "events.parquet"\nuser = "user"\nitem = "item"\nepsilon = 1\ndelta = 1e-7\noutput = "out.csv"\n'
        'max-items-per-user = 2\nledger = "a.ledger"\ndataset = "log"\n'
    )
    assert command(folder, "release", "request.toml", "--dry-run").code == 0
    assert bookings(folder) == ()
    assert command(folder, "release", "request.toml").code == 0
    assert len(bookings(folder)) == 1


def test_over_budget_by_sum(folder: Path) -> None:
    for number in range(3):
        done = command(folder, "release", "events.parquet", *FLAGS, *BOOKED, "--output", f"{number}.csv")
        assert done.code == 0, done.err
    before = names(folder)
    done = command(folder, "release", "events.parquet", *FLAGS, *BOOKED, "--output", "more.csv")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "Error: the dataset 'log' has no room for epsilon 1.0 and delta 1e-07: the total is epsilon 3.0 and delta "
        "1e-06; remaining: nothing. What these users' data has cost stays spent, and a new period does not bring "
        "it back: to go on is a decision for people, on a further total for the same users (docs/weekly.md)\n"
    )
    assert names(folder) == before
    assert len(bookings(folder)) == 3


def test_more_releases_fit_by_squared_moves_than_by_sum(tmp_path: Path) -> None:
    """Three releases of epsilon 1 fit a total of 1.8; the fourth is refused, with what remains."""
    folder = log_in(tmp_path, epsilon=1.8, delta=1e-6, accounting="gdp")
    words = ["release", "events.parquet", *BUDGET, "--max-items-per-user", "20", *BOOKED]
    for number in range(3):
        done = command(folder, *words, "--output", f"{number}.csv")
        assert done.code == 0, done.err
    account = Ledger.open(folder / "a.ledger").account("log")
    assert SumComposer().total_delta(account.spends, 1.8) == 1.0
    spent = account.left(composer_for("gdp", account.total))["delta_spent"]
    # Between delta of normal noise alone, and that plus the probability that a new count is released.
    assert normal_of(folder, 3) <= spent <= 1.05 * (normal_of(folder, 3) + 3e-7)
    before = names(folder)
    done = command(folder, *words, "--output", "more.csv")
    assert (done.code, done.out) == (3, "")
    message = re.fullmatch(
        "Error: the dataset 'log' has no room for epsilon 1.0 and delta 1e-07: the total is epsilon 1.8 and delta "
        r"1e-06; remaining: one release like this one with epsilon up to (\S+)\. What these users' data has cost "
        r"stays spent, .*\n",
        done.err,
    )
    assert message is not None, done.err
    # The limit of normal noise is half of delta.
    assert normal_of(folder, 4) > 5e-7
    assert 0.1 < float(message[1]) < 1.0
    assert names(folder) == before


def normal_of(folder: Path, releases: int) -> float:
    """The delta at epsilon 1.8 of this many releases of 20 counts with normal noise."""
    mu = math.sqrt(releases * 20) / certificate(folder, "0.csv")["plan"]["total_noise"]
    upper, lower = mu / 2 - 1.8 / mu, -mu / 2 - 1.8 / mu
    return float(special.ndtr(upper) - math.exp(1.8) * special.ndtr(lower))


@pytest.mark.parametrize("accounting", ["gdp", pytest.param("zcdp", marks=pytest.mark.slow)])
def test_releases_in_rounds_are_booked_until_the_total_is_spent(tmp_path: Path, accounting: str) -> None:
    """By the squared move or the rho of the rounds, and no user has noise of another kind."""
    folder = log_in(tmp_path, epsilon=1.8, delta=1e-6, accounting=accounting)
    plan = dphist.plan(epsilon=1.0, delta=1e-7, mechanism="gaussian")
    account = Ledger.open(folder / "a.ledger").account("log")
    composer, spend = composer_for(accounting, account.total), spend_of(plan, accounting)
    most = account.more_that_fit(spend, composer)
    assert most >= 2, "more than by sum"
    words = ["release", "events.parquet", *BUDGET, *BOOKED]
    for number in range(most):
        done = command(folder, *words, "--output", f"{number}.csv")
        assert done.code == 0, done.err
        assert certificate(folder, f"{number}.csv")["booking"]["dataset"] == "log"
    assert all(one.spend.profile == spend.profile for one in bookings(folder))
    before = names(folder)
    done = command(folder, *words, "--output", "more.csv")
    assert (done.code, done.out) == (3, "")
    assert "has no room for epsilon 1.0 and delta 1e-07" in done.err
    assert names(folder) == before
    assert len(bookings(folder)) == most
    # At least delta of normal noise for a user who moves every round, the sizes and the measurement.
    noise = plan.noise
    assert isinstance(noise, RoundsNoise)
    parts = sum(noise.parts) + noise.sizes + noise.measure
    mu = math.sqrt(most * parts * noise.lattice**2 / noise.variance)
    normal = special.ndtr(mu / 2 - 1.8 / mu) - math.exp(1.8) * special.ndtr(-mu / 2 - 1.8 / mu)
    spent = Ledger.open(folder / "a.ledger").account("log").left(composer)["delta_spent"]
    assert normal * (1 - 1e-3) <= spent <= 1e-6


def test_one_release_for_the_whole_total(tmp_path: Path) -> None:
    for number, cap in enumerate((PLAIN, ROUNDS)):
        (tmp_path / str(number)).mkdir()
        folder = log_in(tmp_path / str(number), epsilon=1.0, delta=1e-7, accounting="sum")
        words = ["release", "events.parquet", *BUDGET, *cap, *BOOKED]
        assert command(folder, *words, "--output", "one.csv").code == 0
        with pytest.raises(OverBudget):
            dphist.release(
                folder / "events.parquet", **ASKED, max_items_per_user=2, ledger=folder / "a.ledger", dataset="log"
            )
        assert len(bookings(folder)) == 1


@pytest.mark.parametrize(
    ("cap", "accounting"), [([*PLAIN, "--mechanism", "gaussian"], "zcdp"), (ROUNDS, "sum"), (ROUNDS, "gdp")]
)
def test_no_true_count_is_in_the_ledger(tmp_path: Path, cap: list[str], accounting: str) -> None:
    folder = log_in(tmp_path, TRUE, accounting=accounting)
    sums = ["--sum", "spent:0:5"] if "gaussian" in cap else []
    done = command(folder, "release", "events.parquet", *BUDGET, *cap, *sums, *BOOKED, "--output", "out.csv")
    assert done.code == 0, done.err
    content = (folder / "a.ledger").read_bytes()
    assert b"out.csv" in content
    assert hidden_in(content) == []
    # Nor the number of users with one item.
    assert str(sum(TRUE.values())).encode() not in without_digests(content)


def test_no_password_is_in_the_ledger_or_the_certificate(folder: Path, postgres_address: str) -> None:  # noqa: F811
    with dbapi.connect(postgres_address) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("booked_events", events(COUNTS), mode="replace")
        cursor.execute("DROP TABLE IF EXISTS booked_release")
        connection.commit()
    done = command(
        folder, "release", postgres_address, "--table", "booked_events", *FLAGS, *BOOKED,
        "--output", postgres_address, "--output-table", "booked_release", "--certificate", "c.json",
    )  # fmt: skip
    assert done.code == 0, done.err
    (booking,) = bookings(folder)
    assert booking.written is not None
    assert "tester@127.0.0.1" in booking.written["address"]
    content = (folder / "a.ledger").read_bytes()
    assert b"booked_events" in content
    assert PASSWORD.encode() not in content
    assert PASSWORD not in done.out + done.err
    text = (folder / "c.json").read_text()
    assert "tester@127.0.0.1" in text
    assert PASSWORD not in text


def test_a_release_with_sums_a_list_and_a_condition_is_booked_once(folder: Path) -> None:
    (folder / "list.csv").write_text("item\ntea\nmilk\nnone\n")
    done = command(
        folder, "release", "events.parquet", *FLAGS, *BOOKED, "--items", "list.csv", "--sum", "spent:0:5",
        "--where", "spent >= 0", "--output", "out.parquet",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert pq.read_table(folder / "out.parquet").num_rows == 3
    (booking,) = bookings(folder)
    assert booking.spend.document["request"]["where"] == "spent >= 0"
    assert dphist.verify(folder / "out.parquet").verified
