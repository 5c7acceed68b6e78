"""Releases of sketches with a ledger: booked before noise, in the certificate, within the total."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dphist
from dphist.errors import InvalidParameter, OutputError, OverBudget
from dphist.ledger import Ledger
from dphist.sketch import MisraGries
from release_commands import bookings, command, names, watching
from release_data import events

COUNTS = {"tea": 900, "milk": 700, "bread": 500}
RELEASE = ["sketch", "release", "a.sketch", "--epsilon", "1", "--delta", "1e-7"]
BOOKED = ["--ledger", "a.ledger", "--dataset", "log"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(events(COUNTS), tmp_path / "events.parquet")
    words = ["sketch", "build", "events.parquet", "--user", "user", "--item", "item", "--size", "20"]
    assert command(tmp_path, *words, "--output", "a.sketch").code == 0
    Ledger.init(tmp_path / "a.ledger", "log", epsilon=2, delta=1e-6, accounting="sum")
    return tmp_path


def test_booked_before_any_word_is_drawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = watching(folder / "a.ledger", monkeypatch)
    done = command(folder, *RELEASE, *BOOKED, "--output", "out.csv", "--json")
    assert done.code == 0, done.err
    assert watched.drawn > 0
    (booking,) = bookings(folder)
    document = json.loads((folder / "out.csv.certificate.json").read_text())
    assert document["booking"] == booking.receipt()
    assert booking.written == {"sha256": done.data["sha256"], "address": "out.csv"}
    assert booking.spend.document["request"] == document["request"]
    assert booking.spend.document["guarantee"] == document["guarantee"]
    assert done.data["remaining"].startswith("about 1 more release like this one, or one with epsilon up to 1")
    assert dphist.verify(folder / "out.csv").verified


def test_noise_before_the_booking_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power: a release without a booking is caught."""
    watching(folder / "a.ledger", monkeypatch)
    with pytest.raises(AssertionError, match="noise before its booking"):
        command(folder, *RELEASE, "--output", "out.csv")


def test_over_budget(folder: Path) -> None:
    for number in range(2):
        done = command(folder, *RELEASE, *BOOKED, "--output", f"{number}.csv")
        assert done.code == 0, done.err
        assert "Remaining budget of the dataset 'log': " in done.out
    before = names(folder)
    done = command(folder, *RELEASE, *BOOKED, "--output", "more.csv")
    assert (done.code, done.out) == (3, "")
    assert "has no room for epsilon 1.0 and delta 1e-07" in done.err
    assert names(folder) == before
    assert len(bookings(folder)) == 2


REFUSED = [
    (["--ledger", "a.ledger"], 2, "--ledger and --dataset go together"),
    ([*BOOKED, "--seed", "1"], 2, "--seed cannot be used with --ledger"),
    (["--ledger", "a.ledger", "--dataset", "lag"], 2, "did you mean 'log'?"),
    (["--ledger", "none", "--dataset", "log"], 2, "there is no ledger none"),
    ([*BOOKED, "--output", "none/out.csv"], 1, "there is no folder none"),
    ([*BOOKED, "--count-name", "item"], 1, "item"),
    ([*BOOKED, "--output", "a.ledger", "--output-format", "csv", "--force"], 2, "it is the ledger"),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_refused_before_anything_is_booked(folder: Path, words: list[str], code: int, message: str) -> None:
    done = command(folder, *RELEASE, "--output", "out.csv", *words)
    assert (done.code, done.out) == (code, ""), done
    assert message in done.err
    assert bookings(folder) == ()


def test_from_python(folder: Path) -> None:
    sketch = MisraGries.load(folder / "a.sketch")
    plan = dphist.plan(epsilon=1, delta=1e-7, max_nonzero=20)
    place: dict[str, Any] = {"ledger": folder / "a.ledger", "dataset": "log"}
    found = sketch.release(plan, **place)
    (booking,) = bookings(folder)
    assert found.document()["booking"] == booking.receipt()
    with pytest.raises(InvalidParameter, match="in a sketch of size 20"):
        sketch.release(dphist.plan(epsilon=1, delta=1e-7, max_items_per_user=2), **place)
    with pytest.raises(OverBudget):
        sketch.release(dphist.plan(epsilon=1.5, delta=1e-7, max_nonzero=20), **place)
    assert len(bookings(folder)) == 1
    # Without a ledger nothing has changed.
    assert sketch.release(plan).receipt is None


def test_what_cannot_be_written_stays_booked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    sketch, plan = MisraGries.load("a.sketch"), dphist.plan(epsilon=1, delta=1e-7, max_nonzero=20)
    Path("out.csv").write_text("kept\n")
    with pytest.raises(OutputError, match="stay booked as entry 3") as failed:
        sketch.release(plan, output="out.csv", ledger="a.ledger", dataset="log")
    assert failed.value.release.write("other.csv").written.address == "other.csv"
    assert [one.written for one in bookings(folder)] == [None]
