"""Releases on a ledger in real processes: killed at any point, and racing for a budget."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dphist
import release_workers
from release_commands import BOOKED, FLAGS, bookings, certificate, log_in, names

REAL = ["-m", "dphist"]
LATE = [release_workers.__file__, "late"]
RACERS, WINNERS = 8, 3
# Files that may exist without a booking.
OWN = {"events.parquet", "a.ledger", "a.ledger-journal", "list.csv"}
QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def releasing(folder: Path, program: list[str], *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *program, "release", "events.parquet", *words, *BOOKED, "--output", "out.csv"],
        cwd=folder, **QUIET,
    )  # fmt: skip


def soon(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until the condition holds or the process has ended."""
    while not condition() and process.poll() is None:
        time.sleep(0.0005)


def killed(folder: Path, program: list[str], point: int, moments: random.Random) -> tuple[bool, bool]:
    """Whether there is anything of a release, and whether there is a booking, after a kill at some moment."""
    log_in(folder)
    before = os.stat(folder / "a.ledger").st_mtime_ns
    process = releasing(folder, program, *FLAGS)
    try:
        if point % 3 == 0:
            time.sleep(moments.uniform(0.2, 1.2))
        elif point % 3 == 1:
            # After the booking: counting, drawing noise and writing take at most this long.
            soon(lambda: os.stat(folder / "a.ledger").st_mtime_ns != before, process)
            time.sleep(moments.uniform(0.0, 0.25))
        else:
            # As soon as any file of a release appears.
            soon(lambda: bool(names(folder) - OWN), process)
            time.sleep(moments.choice([0.0, 0.001, 0.003]))
    finally:
        process.kill()
        process.wait()
    return bool(names(folder) - OWN), bool(bookings(folder))


def orphans(place: Path, program: list[str], points: int) -> tuple[int, int, int]:
    """The numbers of releases without a booking, of releases, and of bookings, after this many kills."""
    moments = random.Random(f"{points}")
    found = []
    for point in range(points):
        folder = place / str(point)
        folder.mkdir()
        found.append(killed(folder, program, point, moments))
        if (folder / "out.csv.certificate.json").exists() and program is REAL:
            assert certificate(folder, "out.csv")["booking"] == bookings(folder)[0].receipt()
    there = [booked for released, booked in found if released]
    return there.count(False), len(there), sum(booked for _, booked in found)


@pytest.mark.slow
def test_no_release_without_its_booking_when_killed(tmp_path: Path) -> None:
    lost, released, booked = orphans(tmp_path, REAL, 100)
    assert lost == 0
    assert released > 30
    assert booked > released


@pytest.mark.slow
def test_kills_find_a_release_that_is_booked_when_it_is_written(tmp_path: Path) -> None:
    """Power: booking after writing is detected."""
    moments = random.Random(1)
    for point in range(2, 90, 3):
        folder = tmp_path / str(point)
        folder.mkdir()
        if killed(folder, LATE, point, moments) == (True, False):
            return
    raise AssertionError("a release that is booked too late was not detected")


def race(place: Path, rounds: int) -> None:
    """Releases by processes that start at once, for a total that suffices for three of them."""
    words = [sys.executable, "-W", "error", release_workers.__file__, "race", str(RACERS)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with subprocess.Popen(words, **pipes) as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        for number in range(rounds):
            folder = place / str(number)
            folder.mkdir()
            log_in(folder, epsilon=WINNERS * 1.0)
            starter.stdin.write(f"{folder}\n")
            answers = sorted(starter.stdout.readline().rstrip("\n") for _ in range(RACERS))
            assert answers == ["refused"] * (RACERS - WINNERS) + ["released"] * WINNERS
            outputs = list(folder.glob("*.csv"))
            assert len(outputs) == WINNERS
            assert all(dphist.verify(output).verified for output in outputs)
            receipts = [certificate(folder, output.name)["booking"] for output in outputs]
            booked = [booking.receipt() for booking in bookings(folder)]
            assert sorted(receipts, key=str) == sorted(booked, key=str)
            assert all(booking.written is not None for booking in bookings(folder))


@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_only_three_of_eight_releases_fit(tmp_path: Path, rounds: int) -> None:
    race(tmp_path, rounds)
