"""Run a command and measure its whole process tree, within limits of time and memory."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

# Heavy imports come late: a child's peak starts with the memory of its parent.

SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Limits:
    seconds: float = 3600.0
    gib: float = 1024.0


@dataclass(frozen=True)
class Used:
    """Resources used by a process tree: seconds, CPU seconds and peak memory in MiB."""

    wall: float
    cpu: float
    peak: float


@dataclass(frozen=True)
class Run:
    """What a command used, and why it failed, if it did."""

    used: Used
    said: str = ""


def adopt_orphans() -> None:
    """Make orphaned grandchildren children of this process: Spark's Java outlives its Python. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def measured(command: list[str], limits: Limits | None = None, environment: dict[str, str] | None = None) -> Run:
    """Run a command and wait for all its processes, including orphans.

    The peak is that of the largest process, or of all processes together, looked at five times a second, if that
    is more. Nothing else may be started by this process meanwhile.
    """
    limits = limits or Limits()
    with tempfile.TemporaryFile() as said:
        start = perf_counter()
        process = subprocess.Popen(
            command, stdout=said, stderr=said, env=environment and {**os.environ, **environment}
        )
        watch = _Watch(limits, start)
        cpu, peak = 0.0, 0.0
        while True:
            try:
                pid, status, usage = os.wait4(-1, 0)
            except ChildProcessError:
                break
            cpu += usage.ru_utime + usage.ru_stime
            peak = max(peak, usage.ru_maxrss / 1024)
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
        used = Used(perf_counter() - start, cpu, max(peak, watch.stop()))
        said.seek(0)
        printed = said.read().decode(errors="replace")
    if watch.exceeded:
        return Run(used, watch.exceeded)
    return Run(used, "" if process.returncode == 0 else printed.strip()[-1500:] or f"exit {process.returncode}")


class _Watch:
    """Ends all descendants of this process once they exceed a limit."""

    def __init__(self, limits: Limits, start: float) -> None:
        self.limits, self.start = limits, start
        self.peak, self.exceeded = 0.0, ""
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return self.peak

    def _look(self) -> None:
        while not self._done.wait(_SECONDS_BETWEEN_LOOKS):
            memory = resident_mib()
            self.peak = max(self.peak, sum(memory.values()))
            if perf_counter() - self.start > self.limits.seconds:
                self.exceeded = f"over the limit of {self.limits.seconds:g} s"
            elif self.peak > 1024 * self.limits.gib:
                self.exceeded = f"over the limit of {self.limits.gib:g} GiB"
            if self.exceeded:
                for pid in memory:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue


def resident_mib() -> dict[int, float]:
    """The resident memory of each descendant of this process (Linux only; elsewhere empty)."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The name, in parentheses, may contain anything.
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        children[int(parent)].append(int(folder.name))
    memory, open_ = {}, list(children[os.getpid()])
    while open_:
        pid = open_.pop()
        open_ += children[pid]
        try:
            memory[pid] = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20
        except (OSError, IndexError):
            continue
    return memory


def reason(said: str) -> str:
    """The last line of what a failed command printed, without the paths of this machine."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return re.sub(r"(?<![\w.])/[^\s'\":,]*/", "", lines[-1])[:200].replace("|", "/") if lines else "no message"
