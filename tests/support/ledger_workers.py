"""Processes that book, for the tests of ledgers: they race, or are killed at any point.

`race good|naive` reads the paths of ledgers; `RACERS` children book in each and print the result. `kill
good|write-first|init` reads "FOLDER SECONDS" or "FOLDER line N", and prints "killed" after each.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from dphist.errors import DphistError, OverBudget
from dphist.ledger import Ledger, Spend, SumComposer, store

SHARE = Spend(1.0, 1e-6)
RACERS = 8


class SlowComposer(SumComposer):
    """Slow enough for other processes to book meanwhile."""

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        total = super().total_delta(spends, epsilon)
        time.sleep(random.uniform(0.0, 0.004))
        return total


def race(mode: str) -> None:
    """Book in each ledger by several processes at once."""
    if mode == "naive":
        # As if no other process could have booked meanwhile.
        store._is_unchanged = lambda *_: True
    for line in sys.stdin:
        at_once(RACERS, partial(book, line.rstrip()))


def at_once(racers: int, act: Callable[[], str]) -> None:
    """Run `act` in several processes at the same time. Each prints its result."""
    waiting, start = os.pipe()
    children = []
    for _ in range(racers):
        children.append(os.fork())
        if children[-1] == 0:
            os.close(start)
            os.read(waiting, 1)  # until all have started
            os.write(1, f"{act()}\n".encode())
            os._exit(0)
    os.close(waiting)
    os.close(start)
    for child in children:
        os.waitpid(child, 0)


def book(path: str) -> str:
    try:
        return Ledger.open(path).book("log", SHARE, SlowComposer()).hash
    except OverBudget:
        return "refused"
    except DphistError as error:
        return f"error: {error}"


def release(folder: Path, ledger: Ledger, mode: str) -> None:
    """Book, draw noise and write, as a release does."""
    name = secrets.token_hex(8)
    if mode == "good":
        ledger.book("log", Spend(0.001, 1e-9, None, {"release": name}), SumComposer())
    noise = secrets.token_bytes(100)
    (folder / f".{name}").write_bytes(noise)
    os.rename(folder / f".{name}", folder / f"{name}.release")
    if mode == "write-first":
        ledger.book("log", Spend(0.001, 1e-9, None, {"release": name}), SumComposer())


def releases(folder: Path, mode: str, line: int) -> None:
    """Release again and again until killed, from outside or at the Nth executed line of Python."""
    left = line

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        name = frame.f_code.co_filename
        if "/dphist/ledger/" not in name and name != __file__:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return at_line

    if line:
        sys.settrace(at_line)
    if mode == "init":
        Ledger.init(folder / "a.ledger", "log", epsilon=1, delta=1e-6)
        os.kill(os.getpid(), signal.SIGKILL)
    ledger = Ledger.open(folder / "a.ledger")
    while True:
        release(folder, ledger, mode)


def kill(mode: str) -> None:
    """Kill forked children, because starting Python would take most of the time."""
    for request in sys.stdin:
        folder, *when = request.split()
        child = os.fork()
        if child == 0:
            releases(Path(folder), mode, int(when[1]) if when[0] == "line" else 0)
        if when[0] != "line":
            time.sleep(float(when[0]))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        sys.stdout.write("killed\n" if os.WTERMSIG(status) == signal.SIGKILL else f"ended: {status}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    {"race": race, "kill": kill}[sys.argv[1]](sys.argv[2])
