"""Processes that release with a ledger, for tests: they race, wait, or book too late.

`race N` reads folders, one per line; N children release the events of each at once and print the outcome.
`wait FOLDER STEP` releases with an id, prints STEP when it reaches it, and waits for a line.
`late WORDS` is the command `dphist WORDS`, but books after the release is written.
`small WORDS` is the command `dphist WORDS` on a disk without room for files above 100,000 bytes.
`kill VARIANT` reads requests as JSON, one per line, runs each command in a child and kills it: after some time, at
an audit event of Python that names a file, at a system call that does (by strace), or once the ledger has noted
the result. It prints how it ended.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dphist
from dphist import publishing
from dphist.cli import main
from dphist.errors import OverBudget
from dphist.ledger import Ledger
from dphist.ledger.schema import Receipt
from dphist.model import Plan
from dphist.outputs import write
from dphist.outputs.target import Written
from dphist.releasing import spending
from ledger_workers import at_once

# Audit events that change a folder; `open` only if it creates a file.
NAMING = ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "open", "sqlite3.connect")


class Late(spending.Attempt):
    """Books after the release is written, which is too late."""

    planned: Plan

    def book(self, planned: Plan, plan_with: Callable[[float], Plan] | None = None) -> None:
        self.planned, self.plan_with = planned, plan_with

    @property
    def receipt(self) -> Receipt:
        return {"ledger": "0" * 32, "dataset": "log", "entry": 3, "hash": "0" * 64}

    def settle(self, written: Written | None) -> None:
        super().book(self.planned, self.plan_with)
        super().settle(written)


def race(racers: int) -> None:
    for name in ("duckdb", "pyarrow", "dphist.counting.duckdb", "dphist.outputs.write", "dphist.releasing.noise"):
        importlib.import_module(name)
    for line in sys.stdin:
        at_once(racers, partial(released_by_racer, Path(line.rstrip("\n"))))


def released_by_racer(folder: Path) -> str:
    try:
        dphist.release(
            folder / "events.parquet", user="user", item="item", epsilon=1.0, delta=1e-7, max_items_per_user=2,
            ledger=folder / "a.ledger", dataset="log", output=folder / f"{os.getpid()}.csv",
        )  # fmt: skip
    except OverBudget:
        return "refused"
    except Exception as error:
        return f"error: {error}"
    return "released"


def wait(folder: Path, step: str) -> None:
    def watch(name: str, share: float) -> None:
        if name == step:
            sys.stdout.write(f"{step}\n")
            sys.stdout.flush()
            sys.stdin.readline()

    os.chdir(folder)
    dphist.release(
        "events.parquet", user="user", item="item", epsilon=1.0, delta=1e-7, max_items_per_user=2,
        ledger="a.ledger", dataset="log", id="weekly-46", output="out.csv", progress=watch,
    )  # fmt: skip


def certificate_first(put_data: Callable[[], None], certificate: Path, final: Path, *, force: bool) -> None:
    """The wrong order: for a moment a new certificate is beside old data."""
    publishing.place(certificate, final, force=force)
    put_data()


# For a run that is not killed: the number of events, and those before which the folder had changed.
EVENTS = [0]
CHANGES: list[int] = []
LOADED = ("dphist", "typer", "rich", "pyarrow", "duckdb", "_duckdb", "numpy", "flint", "sqlite3")


def content(folder: str) -> dict[str, bytes]:
    """All files below a folder with their contents, which a kill would leave at this moment."""
    found: dict[str, bytes] = {}
    for place, folders, files in os.walk(folder):
        found |= {os.path.join(place, name): b"" for name in folders}
        for name in files:
            with suppress(OSError), os.fdopen(os.open(os.path.join(place, name), os.O_RDONLY), "rb") as file:
                found[os.path.join(place, name)] = file.read()
    return found


def killed_at_event(number: int, folder: str) -> None:
    """Kill this process before the event of this number that names something in the folder.

    For number 0, count all events and note those before which the folder has changed.
    """
    last: list[Any] = [None]

    def hook(event: str, values: tuple[Any, ...]) -> None:
        if event not in NAMING or (
            event == "open" and not (isinstance(values[2], int) and values[2] & os.O_CREAT)
        ):
            return
        if str(Path(folder, str(values[0]).removeprefix("file:").removeprefix("//"))).startswith(folder):
            EVENTS[0] += 1
            if EVENTS[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            if number == 0 and (now := content(folder)) != last[0]:
                last[0] = now
                CHANGES.append(EVENTS[0])

    sys.addaudithook(hook)


def killed_once_noted() -> None:
    """Kill this process between the note of a result in the ledger and the moment when it becomes visible."""
    settle = Ledger.settle

    def settle_and_die(self: Ledger, *words: Any, **more: Any) -> None:
        settle(self, *words, **more)
        os.kill(os.getpid(), signal.SIGKILL)

    Ledger.settle = settle_and_die  # type: ignore[method-assign]


def run_command(request: dict[str, Any]) -> None:
    """Run the command in a child, which never returns."""
    code: Any = 70
    # A child that hangs is killed.
    signal.alarm(300)
    try:
        os.chdir(request["folder"])
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
        sys.argv = ["dphist", *request["words"]]
        tempfile.tempdir = request["temporary"]
        if "syscall" in request:
            os.kill(os.getpid(), signal.SIGSTOP)
        if "event" in request:
            killed_at_event(request["event"], request["folder"])
        if "noted" in request:
            killed_once_noted()
        code = 0
        main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        Path(request["folder"] + ".events").write_text(json.dumps([*CHANGES, EVENTS[0]]))
        Path(request["folder"] + ".modules").write_text(json.dumps(sorted(sys.modules)))
        os._exit(code if isinstance(code, int) else 70)


def traced(child: int, call: list[Any], trace: str) -> subprocess.Popen[bytes]:
    """Attach strace to a stopped child: it records the calls that name a file, and kills the child at one.

    A call is identified by its name and its number among the calls of that name.
    """
    os.waitpid(child, os.WUNTRACED)
    words = ["strace", "-f", "-qq", "-s", "4096", "-o", trace, "-e", "trace=%file", "-p", str(child)]
    if call:
        words[1:1] = ["-e", f"inject={call[0]}:signal=SIGKILL:when={call[1]}"]
    tracer = subprocess.Popen(words)
    while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text() and tracer.poll() is None:
        time.sleep(0.001)
    os.kill(child, signal.SIGCONT)
    return tracer


def carried_out(request: dict[str, Any]) -> dict[str, Any]:
    """How a child ended, and after how many seconds."""
    begun = time.monotonic()
    child = os.fork()
    if child == 0:
        run_command(request)
    tracer = traced(child, request["syscall"], request["folder"] + ".trace") if "syscall" in request else None
    if "seconds" in request:
        time.sleep(request["seconds"])
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    seconds = time.monotonic() - begun
    if tracer is not None and tracer.wait() != 0:
        sys.exit("strace cannot trace a child")
    return {
        "killed": os.waitstatus_to_exitcode(status) == -signal.SIGKILL,
        "code": os.waitstatus_to_exitcode(status),
        "seconds": seconds,
    }


def kills(variant: str) -> None:
    if variant == "late":
        vars(spending)["Attempt"] = Late
    if variant == "certificate-first":
        vars(write)["publish"] = certificate_first
    for line in sys.stdin:
        request = json.loads(line)
        answer = carried_out(request)
        if request.get("load"):
            # Import what the command imports, so that children start with it.
            for name in json.loads(Path(request["folder"] + ".modules").read_text()):
                if name.partition(".")[0] in LOADED and not name.endswith("__main__"):
                    importlib.import_module(name)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    mode = sys.argv.pop(1)
    if mode == "kill":
        kills(sys.argv[1])
        sys.exit()
    if mode == "wait":
        wait(Path(sys.argv[1]), sys.argv[2])
        sys.exit()
    if mode == "late":
        vars(spending)["Attempt"] = Late
    if mode == "small":
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    race(int(sys.argv[1])) if mode == "race" else main()
