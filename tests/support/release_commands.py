"""Releases for tests: run the command in this process, create small logs, read a ledger."""

from __future__ import annotations

import io
import json
import runpy
import sqlite3
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dphist.cli import main
from dphist.ledger import Ledger
from dphist.ledger.accounts import Booking
from dphist.sampling import rng as tapping
from release_data import events

COUNTS = {"tea": 900, "milk": 700, "bread": 500, "rare": 2}
BUDGET = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-7"]
FLAGS = [*BUDGET, "--max-items-per-user", "2"]
BOOKED = ["--ledger", "a.ledger", "--dataset", "log"]


@dataclass(frozen=True)
class Done:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON that it printed."""
        return json.loads(self.out)


def run_here(folder: Path, words: list[str], program: Callable[[], object]) -> Done:
    """Run a program in this process, with this command line and working folder."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with patch.object(sys, "argv", words), chdir(folder), redirect_stdout(out), redirect_stderr(err):
        try:
            program()
        except SystemExit as end:
            code = end.code
    return Done(int(code or 0), out.getvalue(), err.getvalue())


def command(folder: Path, *words: str) -> Done:
    """`dphist WORDS` in a folder, without starting Python."""
    return run_here(folder, ["dphist", *words], main)


def script(folder: Path, path: Path, *words: str) -> Done:
    """`python PATH WORDS` in a folder, in this process."""
    return run_here(folder, [str(path), *words], lambda: runpy.run_path(str(path), run_name="__main__"))


def log_in(folder: Path, counts: Mapping[str, int] = COUNTS, **total: Any) -> Path:
    """Write events with a column of numbers and a ledger with room for three releases into a folder."""
    table = events(counts)
    spent = pa.array([float(n % 7) for n in range(table.num_rows)])
    pq.write_table(table.append_column("spent", spent), folder / "events.parquet")
    allowed = {"epsilon": 3.0, "delta": 1e-6, "accounting": "sum", **total}
    Ledger.init(folder / "a.ledger", "log", **allowed)
    return folder


def bookings(folder: Path) -> tuple[Booking, ...]:
    """The bookings of the dataset `log`."""
    return Ledger.open(folder / "a.ledger").account("log").bookings


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def certificate(folder: Path, output: str) -> dict[str, Any]:
    """The certificate beside a file."""
    found: dict[str, Any] = json.loads((folder / f"{output}.certificate.json").read_text())
    return found


def sized_events(users: Mapping[int, int]) -> pa.Table:
    """Events of `users[n]` users with n items each: items 0 to n - 1."""
    rows: list[tuple[int, str, float]] = []
    first = 0
    for size, many in users.items():
        rows += [(user, f"item {k}", float(k)) for user in range(first, first + many) for k in range(size)]
        first += many
    columns = list(zip(*rows, strict=True))
    return pa.table({"user": columns[0], "item": columns[1], "spent": columns[2]})


class Watched:
    """Asserts that random words are drawn only after a booking is in the ledger, for another connection."""

    def __init__(self, ledger: Path) -> None:
        self.ledger, self.drawn, self.wanted = ledger, 0, 1

    def see(self) -> None:
        with closing(sqlite3.connect(self.ledger)) as other:
            (found,) = other.execute("SELECT count(*) FROM entries WHERE kind = 'booking'").fetchone()
        assert found == self.wanted, "noise before its booking"
        self.drawn += 1


def watching(ledger: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Watch every word of the secure rng and every key of its cipher."""
    watched = Watched(ledger)
    words, take = tapping.SecureRng.words, tapping._Stream.take

    def watched_words(rng: tapping.SecureRng, n: int, /) -> Any:
        watched.see()
        return words(rng, n)

    def watched_take(stream: tapping._Stream, n: int) -> Any:
        watched.see()
        return take(stream, n)

    monkeypatch.setattr(tapping.SecureRng, "words", watched_words)
    monkeypatch.setattr(tapping._Stream, "take", watched_take)
    return watched
