"""Real processes race for a budget, and are killed at any point."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ledger_workers
from dphist.errors import LedgerError
from dphist.ledger import Ledger
from scheduling import THOROUGH

WINNERS = 3


class Worker:
    """A process that answers lines with lines."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", ledger_workers.__file__, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def worker(*words: str) -> Iterator[Worker]:
    process = Worker(*words)
    try:
        yield process
    finally:
        process.close()


def winners(racers: Worker, path: Path) -> int:
    """How many of 8 processes book, if the budget is enough for three; the ledger must agree with them."""
    Ledger.init(path, "log", epsilon=WINNERS * ledger_workers.SHARE.epsilon, delta=1e-3, accounting="sum")
    racers.tell(str(path))
    answers = [racers.answer() for _ in range(ledger_workers.RACERS)]
    booked = sorted(text for text in answers if len(text) == 64)
    assert len(booked) + answers.count("refused") == len(answers), answers
    assert sorted(booking.hash for booking in Ledger.open(path).account("log").bookings) == booked
    path.unlink()
    return len(booked)


def race(folder: Path, rounds: int) -> None:
    with worker("race", "good") as racers:
        assert {winners(racers, folder / f"{n}.ledger") for n in range(rounds)} == {WINNERS}


def test_only_three_of_eight_processes_book(tmp_path: Path) -> None:
    race(tmp_path, 10)


@pytest.mark.slow
def test_only_three_of_eight_processes_book_in_a_thousand_rounds(tmp_path: Path) -> None:
    race(tmp_path, 1000)


def test_the_race_detects_a_ledger_that_does_not_compare(tmp_path: Path) -> None:
    """Power: without the comparison in the transaction, too many book."""
    with worker("race", "naive") as racers:
        assert any(winners(racers, tmp_path / f"{n}.ledger") > WINNERS for n in range(20))


def killed(folder: Path, mode: str, points: int) -> tuple[int, int, int]:
    """Releases without a booking, all releases, and kills within a transaction, at random points."""
    moments = random.Random(f"{mode} {points}")
    orphans: set[str] = set()
    releases: set[str] = set()
    halfway = 0
    with worker("kill", mode) as process:
        for point in range(points):
            # A new ledger now and then, because most kills of a long chain come while it is checked.
            place = folder / str(point // 4)
            if not place.exists():
                place.mkdir()
                Ledger.init(place / "a.ledger", "log", epsilon=800, delta=0.1, accounting="sum")
            at = f"line {moments.randrange(1, 1500)}" if point % 2 else f"{moments.uniform(0.0, 0.06)}"
            process.tell(f"{place} {at}")
            assert process.answer() == "killed"
            halfway += (place / "a.ledger-journal").exists()
            bookings = Ledger.open(place / "a.ledger").account("log").bookings
            booked = {booking.spend.document["release"] for booking in bookings}
            written = {path.stem for path in place.glob("*.release")}
            orphans |= written - booked
            releases |= written
    return len(orphans), len(releases), halfway


def test_no_release_without_a_booking_when_killed(tmp_path: Path) -> None:
    orphans, releases, _ = killed(tmp_path, "good", 40)
    assert orphans == 0
    assert releases > 0


@pytest.mark.slow
def test_no_release_without_a_booking_at_two_hundred_points(tmp_path: Path) -> None:
    orphans, releases, halfway = killed(tmp_path, "good", 200)
    assert orphans == 0
    # Kills came after releases, and within transactions that had to be undone.
    assert releases > 50
    assert halfway > 20


def test_kills_detect_releases_that_are_written_before_they_are_booked(tmp_path: Path) -> None:
    """Power."""
    assert killed(tmp_path, "write-first", 40)[0] > 0


def test_a_killed_init_leaves_a_complete_ledger_or_none(tmp_path: Path) -> None:
    states: set[object] = set()
    with worker("kill", "init") as process:
        for line in range(1, 160, 4 if THOROUGH else 8):
            place = tmp_path / str(line)
            place.mkdir()
            process.tell(f"{place} line {line}")
            assert process.answer() == "killed"
            try:
                states.add(tuple(Ledger.open(place / "a.ledger").accounts().datasets))
            except LedgerError as error:
                states.add(str(error).partition(str(place / "a.ledger"))[2])
            Ledger.init(place / "a.ledger", "more", epsilon=1, delta=1e-6)
            assert "more" in Ledger.open(place / "a.ledger").accounts().datasets
    # Never an empty file.
    assert states == {": create it with dphist ledger init", ("log",)}
