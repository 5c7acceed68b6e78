"""Processes of this machine: who runs beneath whom, and waiting for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def wait_until(condition: Callable[[], object], what: str, seconds: float = 120) -> None:
    """Until the condition holds; an error that says what was waited for if that takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} seconds: {what}"
        time.sleep(0.02)


def parents() -> dict[int, int]:
    """The parent of each process that runs; zombies do not."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        # A process may end while its file is read.
        with suppress(OSError):
            # The name of the program, in brackets, may hold anything.
            state, parent = path.read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(path.parent.name)] = int(parent)
    return found


def tree(pid: int) -> list[int]:
    """A process and everything beneath it."""
    found, above = [pid], parents()
    for known in found:
        found += [child for child, parent in above.items() if parent == known]
    return found


def kill(pids: list[int]) -> None:
    """Dead at the return of the call, without a chance to say goodbye."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not parents().keys() & set(pids), f"the end of {pids}")
