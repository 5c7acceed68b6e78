"""Real processes: they race for a budget, and are killed at any point."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import ledger_workers
from dphist.errors import LedgerError
from dphist.ledger import Ledger

RACERS, WINNERS = 8, 3


class Worker:
    """A process that answers each line with a line."""

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
def workers(count: int, *words: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        found = [Worker(*words) for _ in range(count)]
        for worker in found:
            stack.callback(worker.close)
        yield found


def winners(racers: list[Worker], path: Path) -> int:
    """How many book, of a budget that three can have; what they say and what the ledger says must agree."""
    Ledger.init(path, "log", epsilon=WINNERS * ledger_workers.SHARE.epsilon, delta=1e-3, accounting="sum")
    for racer in racers:
        racer.tell(str(path))
    said = [racer.answer() for racer in racers]
    booked = sorted(text for text in said if len(text) == 64)
    assert len(booked) + said.count("refused") == len(racers), said
    assert sorted(booking.hash for booking in Ledger.open(path).account("log").bookings) == booked
    path.unlink()
    return len(booked)


def race(folder: Path, rounds: int) -> None:
    with workers(RACERS, "race", "good") as racers:
        assert {winners(racers, folder / f"{n}.ledger") for n in range(rounds)} == {WINNERS}


def test_only_three_of_eight_processes_book(tmp_path: Path) -> None:
    race(tmp_path, 20)


@pytest.mark.slow
def test_only_three_of_eight_processes_book_in_a_thousand_rounds(tmp_path: Path) -> None:
    race(tmp_path, 1000)


def test_the_race_is_lost_by_a_ledger_that_looks_and_then_writes(tmp_path: Path) -> None:
    """Power: without the comparison in the transaction, too many book, and soon."""
    with workers(RACERS, "race", "naive") as racers:
        assert any(winners(racers, tmp_path / f"{n}.ledger") > WINNERS for n in range(20))


def killed(folder: Path, mode: str, points: int) -> tuple[int, int, int]:
    """Releases without a booking, releases, and kills within a transaction, of so many random points."""
    moments = random.Random(f"{mode} {points}")
    orphans: set[str] = set()
    releases: set[str] = set()
    halfway = 0
    with workers(1, "kill", mode) as (worker,):
        for point in range(points):
            # A new ledger now and then: the longer a chain, the more of the kills come while it is checked.
            place = folder / str(point // 4)
            if not place.exists():
                place.mkdir()
                Ledger.init(place / "a.ledger", "log", epsilon=800, delta=0.1, accounting="sum")
            at = f"line {moments.randrange(1, 1500)}" if point % 2 else f"{moments.uniform(0.0, 0.06)}"
            worker.tell(f"{place} {at}")
            assert worker.answer() == "killed"
            halfway += (place / "a.ledger-journal").exists()
            bookings = Ledger.open(place / "a.ledger").account("log").bookings
            booked = {booking.spend.document["release"] for booking in bookings}
            written = {path.stem for path in place.glob("*.release")}
            orphans |= written - booked
            releases |= written
    return len(orphans), len(releases), halfway


def test_no_release_without_a_booking_when_killed(tmp_path: Path) -> None:
    orphans, releases, _ = killed(tmp_path, "good", 60)
    assert orphans == 0
    assert releases > 0


@pytest.mark.slow
def test_no_release_without_a_booking_at_two_hundred_points(tmp_path: Path) -> None:
    orphans, releases, halfway = killed(tmp_path, "good", 200)
    assert orphans == 0
    # The kills came where it matters: after releases, and within transactions that had to be undone.
    assert releases > 50
    assert halfway > 20


def test_kills_find_releases_that_were_written_before_they_were_booked(tmp_path: Path) -> None:
    """Power: the other order is caught."""
    assert killed(tmp_path, "write-first", 40)[0] > 0


def test_a_ledger_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    """Killed while it is made: what is left is no ledger, or one with its dataset; either way one can go on."""
    states: set[object] = set()
    with workers(1, "kill", "init") as (worker,):
        for line in range(1, 160, 4):
            place = tmp_path / str(line)
            place.mkdir()
            worker.tell(f"{place} line {line}")
            assert worker.answer() == "killed"
            try:
                states.add(tuple(Ledger.open(place / "a.ledger").accounts().datasets))
            except LedgerError as error:
                states.add(str(error).partition(str(place / "a.ledger"))[2])
            Ledger.init(place / "a.ledger", "more", epsilon=1, delta=1e-6)
            assert "more" in Ledger.open(place / "a.ledger").accounts().datasets
    hint = ": make it with dphist ledger init"
    # Never an empty file that looks like one.
    assert states == {hint, ("log",)}
