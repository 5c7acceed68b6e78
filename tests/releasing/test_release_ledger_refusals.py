"""Releases that are refused before booking, and releases that fail afterwards and stay booked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dphist
from dphist.errors import DphistError, InvalidParameter, OutputError
from dphist.ledger import Ledger
from ledger_data import tamper
from release_commands import BOOKED, BUDGET, COUNTS, FLAGS, bookings, command, log_in, names
from release_data import events

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-7}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log_in(tmp_path)
    (tmp_path / "there.csv").write_text("kept\n")
    whole = (tmp_path / "events.parquet").read_bytes()
    (tmp_path / "broken.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "list.csv").write_text("item\ntea\n")
    return tmp_path


Case = tuple[str, list[str], int, str]
OUT = ["--output", "out.csv"]
# The input, bad flags, the exit code and the message.
REFUSED: list[Case] = [
    ("events.parquet", ["--output", "none/out.csv"], 1, "there is no folder none"),
    ("events.parquet", ["--output", "there.csv"], 1, "there.csv already exists"),
    ("events.parquet", ["--output", "out.docx"], 2, "out.docx"),
    ("missing.parquet", OUT, 2, "missing.parquet"),
    ("broken.parquet", OUT, 2, "broken.parquet"),
    ("events.parquet", [*OUT, "--item", "nothing"], 2, "has no column 'nothing'"),
    ("events.parquet", [*OUT, "--user", "nobody"], 2, "has no column 'nobody'"),
    ("events.parquet", [*OUT, "--where", "nonsense("], 2, "is not a condition"),
    ("events.parquet", [*OUT, "--where", "nowhere = 1"], 2, "nowhere"),
    ("events.parquet", [*OUT, "--memory", "much"], 2, "much"),
    ("events.parquet", [*OUT, "--temp-folder", "none"], 2, "none"),
    ("events.parquet", [*OUT, "--items", "none.csv"], 2, "none.csv"),
    ("events.parquet", [*OUT, "--items", "events.parquet"], 2, "--items is the input itself"),
    ("events.parquet", [*OUT, "--items", "there.csv", "--item", "nothing"], 2, "nothing"),
    ("events.parquet", [*OUT, "--epsilon", "0"], 2, "epsilon"),
    ("events.parquet", [*OUT, "--delta", "1"], 2, "delta"),
    ("events.parquet", [*OUT, "--seed", "1"], 2, "--seed cannot be used with --ledger"),
    ("events.parquet", [*OUT, "--dataset", "lag"], 2, "has no dataset 'lag' (did you mean 'log'?): it has 'log'"),
    ("events.parquet", [*OUT, "--ledger", "none.ledger"], 2, "there is no ledger none.ledger"),
    ("events.parquet", [*OUT, "--ledger", "there.csv"], 2, "there.csv cannot be read: it is not a SQLite file"),
    ("events.parquet", [*OUT, "--epsilon", "3.5"], 3, "remaining: one release like this one with epsilon up to 3"),
    ("events.parquet", [*OUT, "--ledger", "none.ledger", "--output", "there.csv", "--force"], 2, "no ledger none"),
]
# Sums have Gaussian noise.
SUMS: list[Case] = [
    ("events.parquet", [*OUT, "--sum", "nothing:0:5"], 2, "has no column 'nothing'"),
    ("events.parquet", [*OUT, "--mean", "nothing:0:5"], 2, "has no column 'nothing'"),
    ("events.parquet", [*OUT, "--sum", "spent:5:0"], 2, "5"),
    ("events.parquet", [*OUT, "--sum", "spent:0:x"], 2, "spent:0:x"),
    ("events.parquet", [*OUT, "--sum", "spent:1e300:1.1e300"], 2, "bounds of a sum are too large"),
    # `verify` could not read these in a certificate.
    ("events.parquet", [*OUT, "--sum", "spent:0:1e60"], 2, "bounds of a sum are too large"),
    ("events.parquet", [*OUT, "--mean", "spent:0:1e-80"], 2, "or have too many digits"),
]


def refused(folder: Path, budget: list[str], case: Case) -> None:
    source, words, code, message = case
    before = names(folder)
    done = command(folder, "release", source, *budget, *BOOKED, *words)
    assert (done.code, done.out) == (code, ""), (words, done)
    assert message in done.err
    assert "Traceback" not in done.err
    # Errors of typer begin with the usage.
    assert done.err.count("\n") == 1 or done.err.startswith("Usage"), done.err
    assert names(folder) == before
    assert bookings(folder) == ()
    assert (folder / "there.csv").read_text() == "kept\n"


@pytest.mark.parametrize(("budget", "cases"), [(FLAGS, REFUSED), (BUDGET, REFUSED[3:6])], ids=["plain", "rounds"])
def test_refused_before_anything_is_booked(folder: Path, budget: list[str], cases: list[Case]) -> None:
    for case in cases:
        refused(folder, budget, case)
    # Without the bad flags the release is booked.
    assert command(folder, "release", "events.parquet", *budget, *BOOKED, *OUT).code == 0
    assert len(bookings(folder)) == 1


def test_bad_sums_are_refused_before_anything_is_booked(folder: Path) -> None:
    for case in SUMS:
        refused(folder, FLAGS, case)
    _, words, code, message = SUMS[0]
    refused(folder, [*BUDGET, "--items", "list.csv"], ("events.parquet", words, code, message))


@pytest.mark.parametrize("words", [["--ledger", "a.ledger"], ["--dataset", "log"]])
def test_a_ledger_and_a_dataset_go_together(folder: Path, words: list[str]) -> None:
    done = command(folder, "release", "events.parquet", *FLAGS, *words, *OUT)
    assert (done.code, done.out) == (2, "")
    assert "--ledger and --dataset go together" in done.err
    assert bookings(folder) == ()


PLACES = [
    ("a.ledger.csv", "a.ledger.csv"),  # the output itself
    ("a.csv.certificate.json", "a.csv"),  # its certificate
    ("a.db", "./a.db"),  # a database, to which a release would be added
    ("a.db", "sub/../a.db"),
    ("a", "a-journal"),  # SQLite would mistake it for the ledger's journal, and remove it
]


@pytest.mark.parametrize(("ledger", "output"), PLACES)
def test_a_release_cannot_replace_its_ledger(folder: Path, ledger: str, output: str) -> None:
    (folder / "sub").mkdir()
    (folder / "a.ledger").rename(folder / ledger)
    whole, before = (folder / ledger).read_bytes(), names(folder)
    form = ["--output-format", "csv"] if output.endswith("journal") else []
    words = ["--ledger", ledger, "--dataset", "log", "--output", output, *form]
    done = command(folder, "release", "events.parquet", *FLAGS, *words, "--force")
    assert (done.code, done.out) == (2, "")
    assert "it is the ledger" in done.err
    assert done.err.count("\n") == 1
    assert command(folder, "release", "events.parquet", *FLAGS, *words).code in (1, 2)
    assert names(folder) == before
    assert (folder / ledger).read_bytes() == whole


@pytest.mark.parametrize("ledger", ["", "a\0b", 5, b"a.ledger"])
def test_bad_names_of_ledgers_in_python(folder: Path, ledger: Any) -> None:
    for output in (None, folder / "out.csv"):
        with pytest.raises(InvalidParameter, match="the name of a file"):
            dphist.release(
                events(COUNTS), **ASKED, max_items_per_user=2, ledger=ledger, dataset="log", output=output
            )


@pytest.mark.parametrize(
    "statement", ["UPDATE entries SET body = replace(body, '3.0', '9.0')", "DELETE FROM entries WHERE number = 1"]
)
def test_a_damaged_ledger(folder: Path, statement: str) -> None:
    tamper(folder / "a.ledger", statement)
    before = names(folder)
    done = command(folder, "release", "events.parquet", *FLAGS, *BOOKED, *OUT)
    assert (done.code, done.out) == (2, "")
    assert "the ledger a.ledger is damaged" in done.err
    assert done.err.count("\n") == 1
    assert names(folder) == before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait 30 seconds for a locked ledger."""
    defaults: Any = Ledger.open.__kwdefaults__
    assert defaults["wait_seconds"] == 30.0
    monkeypatch.setitem(defaults, "wait_seconds", 0.2)


def test_a_locked_ledger(folder: Path, impatient: None) -> None:
    with closing(sqlite3.connect(folder / "a.ledger", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        before = names(folder)
        done = command(folder, "release", "events.parquet", *FLAGS, *BOOKED, *OUT)
        assert (done.code, done.out) == (2, "")
        assert done.err == (
            "Error: the ledger a.ledger is locked by another process (waited 0.2 seconds): try again later\n"
        )
        assert names(folder) == before
        other.execute("ROLLBACK")
    assert command(folder, "release", "events.parquet", *FLAGS, *BOOKED, *OUT).code == 0


def test_a_ledger_that_is_locked_while_the_release_is_written(
    folder: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The release is complete and booked; the ledger just cannot note that it was written."""
    with closing(sqlite3.connect(folder / "a.ledger", isolation_level=None)) as other:

        def watch(step: str, share: float) -> None:
            if step == "writing" and share == 0.0:
                other.execute("BEGIN IMMEDIATE")

        dphist.release(
            folder / "events.parquet", **ASKED, max_items_per_user=2, ledger=folder / "a.ledger", dataset="log",
            output=folder / "out.csv", progress=watch,
        )  # fmt: skip
        other.execute("ROLLBACK")
    assert [booking.written for booking in bookings(folder)] == [None]
    assert dphist.verify(folder / "out.csv").verified
    shown = command(folder, "ledger", "show", "a.ledger")
    assert "not known to be written" in shown.out


class Stop(BaseException):
    """An exception that nothing catches."""


@pytest.mark.parametrize(
    ("step", "end", "limit"),
    [
        ("counting", KeyboardInterrupt, None), ("counting", Stop, 2), ("adding noise", KeyboardInterrupt, 2),
        ("adding noise", Stop, None), ("writing", Stop, 2),
    ],
)  # fmt: skip
def test_a_run_that_ends_after_the_booking_stays_booked(
    folder: Path, step: str, end: type[BaseException], limit: int | None
) -> None:
    def watch(name: str, share: float) -> None:
        if name == step:
            raise end

    before = names(folder)
    with pytest.raises((end, DphistError)):
        dphist.release(
            folder / "events.parquet", **ASKED, max_items_per_user=limit, progress=watch,
            ledger=folder / "a.ledger", dataset="log", output=folder / "out.csv",
        )  # fmt: skip
    assert [booking.written for booking in bookings(folder)] == [None]
    assert names(folder) == before


def test_an_output_that_appears_meanwhile_is_kept_and_the_release_stays_booked(folder: Path) -> None:
    def watch(step: str, share: float) -> None:
        (folder / "out.csv").write_text("another file\n")

    with pytest.raises(OutputError, match="already exists"):
        dphist.release(
            folder / "events.parquet", **ASKED, max_items_per_user=2, ledger=folder / "a.ledger", dataset="log",
            output=folder / "out.csv", progress=watch,
        )  # fmt: skip
    assert [booking.written for booking in bookings(folder)] == [None]
    assert (folder / "out.csv").read_text() == "another file\n"
