"""Kills at every step: no release without its booking, and no half release that passes for a whole one.

A server with everything imported forks a child for each run of the command `dphist`. The child is killed with
SIGKILL at a random moment, at each audit event of Python that names a file, or at each system call that does (by
strace). After each kill the ledger and the output are checked, and the same command must succeed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import release_workers
from dphist.certificate.reading import read_release
from dphist.ledger import Ledger
from dphist.ledger.schema import Receipt
from dphist.publishing import LOCK
from exports import DATABASES, certificate_of, export, verify
from processes import wait_until
from release_commands import BOOKED, FLAGS, bookings, command, log_in, names
from scheduling import crossed

RANDOM_KILLS = 1000


class Wrong(AssertionError):
    """A state that no kill may leave."""


@dataclass
class Server:
    """Forks children, with their temporary files in its own folder."""

    process: Any
    temporary: Path
    runs: int = 0

    def ask(self, **request: Any) -> dict[str, Any]:
        # A new temporary folder has nothing to clean up, so that each run makes the same system calls.
        self.runs += 1
        place = self.temporary / str(self.runs)
        place.mkdir()
        self.process.stdin.write(json.dumps({"temporary": str(place), **request}) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


@contextmanager
def server(
    temporary: Path, variant: str = "as-it-is", outputs: tuple[str, ...] = ("out.csv", "out.sqlite", "out.duckdb")
) -> Iterator[Server]:
    temporary.mkdir()
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    words = [sys.executable, release_workers.__file__, "kill", variant]
    with subprocess.Popen(words, env=environment, **pipes) as process:
        try:
            made = Server(process, temporary)
            load(made, outputs)
            yield made
            # A guard process removes the temporary files of a killed run, so that no true counts remain. A run
            # that was killed before it had a guard had no such files.
            wait_until(lambda: files_in(temporary) <= {LOCK}, "the end of the guards")
        finally:
            process.kill()


def files_in(folder: Path) -> set[str]:
    return {name for _, _, found in os.walk(folder) for name in found}


def load(served: Server, outputs: tuple[str, ...]) -> None:
    """Release to each output, so that the server imports what a release needs."""
    folder = served.temporary.with_name("first")
    folder.mkdir()
    log_in(folder)
    for output in outputs:
        words = ["release", "events.parquet", *FLAGS, *BOOKED, "--output", output]
        assert served.ask(folder=str(folder), words=words, load=True)["code"] == 0


@dataclass
class Scene:
    """The folder before each kill, and counts of the states after kills."""

    template: Path
    output: str
    force: bool
    left: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    # Try the next run once for each state, not after each kill.
    quick: bool = False

    @property
    def words(self) -> list[str]:
        again = ["--force"] if self.force else []
        return ["release", "events.parquet", *FLAGS, *BOOKED, "--output", self.output, *again]

    @property
    def folder(self) -> Path:
        return self.template.with_name("now")

    def afresh(self) -> str:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.template, self.folder)
        return str(self.folder)

    def check(self) -> None:
        """The output is whole and booked, or not a release; and the next run succeeds."""
        self.kills += 1
        before = len(bookings(self.template))
        booked = [one.receipt() for one in bookings(self.folder)]
        state = self._state(booked)
        if state == "new" and len(booked) != before + 1:
            raise Wrong("a release without its booking")
        label = f"{state}, {'booked' if len(booked) > before else 'not booked'}"
        self.left[label] += 1
        if self.quick and self.left[label] > 1:
            return
        words = [*self.words, *([] if self.force else ["--force"])]
        again = command(self.folder, *words)
        if again.code != 0 or self._state([one.receipt() for one in bookings(self.folder)]) != "new":
            raise Wrong(f"the next run fails: {again.err}")
        if any(name.startswith(".dphist-") for name in names(self.folder)):
            raise Wrong("the next run leaves what a killed one has left")

    def _state(self, booked: list[Receipt]) -> str:
        """nothing, unfinished, old or new."""
        path = self.folder / self.output
        certificate = certificate_of(path)
        if not certificate.exists():
            if path.exists() and not self._is_whole(path):
                raise Wrong("data that are neither old nor new")
            return "unfinished" if path.exists() else "nothing"
        if not path.exists():
            raise Wrong("a certificate without data")
        document = json.loads(certificate.read_text())
        if not verify(path).verified:
            raise Wrong("a certificate beside other data")
        if document["booking"] not in booked:
            raise Wrong("a release without its booking")
        old = certificate_of(self.template / self.output)
        return "old" if self.force and document == json.loads(old.read_text()) else "new"

    def _is_whole(self, path: Path) -> bool:
        """Whether data without a certificate are the old ones, or those of a certificate not placed yet."""
        sealed = [certificate_of(self.template / self.output)] if self.force else []
        sealed += self.folder.glob(".dphist-*/certificate")
        file = export(path) if path.suffix in DATABASES else path
        return any(
            not read_release(file, certificate).problems for certificate in sealed if certificate.read_bytes()
        )


def scene(place: Path, output: str, *, force: bool) -> Scene:
    """Events, a ledger with room for all runs, and with `force` a release that is replaced."""
    template = place / "template"
    template.mkdir()
    # No noise is more likely than 0.3, so two releases of 40 items are equal with probability below 1e-20.
    log_in(template, {f"item {number}": 90 for number in range(40)}, epsilon=10.0)
    made = Scene(template, output, force)
    if force:
        assert command(template, *made.words).code == 0
    return made


def moments_of(served: Server, one: Scene) -> list[int]:
    """The events of a whole run before which the folder has changed, and the last one.

    Kills at events between which nothing has changed leave the same files.
    """
    assert served.ask(folder=one.afresh(), words=one.words, event=0)["code"] == 0
    found: list[int] = json.loads(one.folder.with_name("now.events").read_text())
    return sorted(set(found))


def kill_at_each(served: Server, one: Scene, check: Callable[[], None], *, backwards: bool = False) -> None:
    """A kill at each moment of a run that leaves different files."""
    for number in sorted(moments_of(served, one), reverse=backwards):
        assert served.ask(folder=one.afresh(), words=one.words, event=number)["killed"]
        check()


Call = tuple[str, int]


def calls_of(served: Server, folder: Path, words: list[str]) -> list[tuple[Call, str]]:
    """The system calls of a whole run that name a file in the folder, in order, with their text."""
    assert served.ask(folder=str(folder), words=words, syscall=[])["code"] == 0
    lines = folder.with_name(f"{folder.name}.trace").read_text().splitlines()
    counts: Counter[str] = Counter()
    found = []
    for line in lines:
        # Process number, name of the call and its first path, for the main thread only.
        match = re.match(r'(\d+) +(\w+)\((?:AT_FDCWD, |\d+, )?"([^"]*)"', line)
        if match and match[1] == lines[0].split()[0]:
            counts[match[2]] += 1
            if match[3] and (not match[3].startswith("/") or match[3].startswith(f"{folder}")):
                found.append(((match[2], counts[match[2]]), line))
        elif line.split()[0] == lines[0].split()[0] and (other := re.match(r"\d+ +(\w+)\(", line)):
            counts[other[1]] += 1
    return found


def at_each_call(served: Server, one: Scene) -> None:
    """Kills at each call, from just before the booking to the end."""
    one.afresh()
    calls = calls_of(served, one.folder, one.words)
    booked = next(place for place, (_, line) in enumerate(calls) if 'unlink("' in line and "-journal" in line)
    for call, line in calls[booked - 5 :]:
        done = served.ask(folder=one.afresh(), words=one.words, syscall=call)
        assert done["killed"], line
        one.check()


def report(text: str) -> None:
    """Print a summary, which pytest -rP shows."""
    sys.stdout.write(f"{text}\n")


def needs_strace() -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: no kill at a system call")


def test_kills_at_each_event_that_names_a_file(tmp_path: Path) -> None:
    one = scene(tmp_path, "out.csv", force=True)
    one.quick = True
    with server(tmp_path / "temp", outputs=("out.csv",)) as served:
        kill_at_each(served, one, one.check)
    # A kill also hit the moment between the old and the new pair, when data has no certificate.
    assert {"old, not booked", "old, booked", "unfinished, booked", "new, booked"} == set(one.left)


@pytest.mark.parametrize(("variant", "force"), crossed(["certificate-first", "late"], [False, True]))
def test_kills_find_a_wrong_order(tmp_path: Path, variant: str, force: bool) -> None:
    """Power: kills detect a certificate before its data, or a release before its booking."""
    one = scene(tmp_path, "out.csv", force=force)
    one.quick = True
    wanted = "booking" if variant == "late" else "certificate"
    with server(tmp_path / "temp", variant, ("out.csv",)) as served, pytest.raises(Wrong, match=wanted):
        kill_at_each(served, one, one.check, backwards=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "force"),
    [("out.csv", False), ("out.csv", True), ("out.sqlite", False), ("out.sqlite", True), ("out.duckdb", True)],
)
def test_kills_at_each_system_call_that_names_a_file(tmp_path: Path, output: str, force: bool) -> None:
    """From just before the booking to the end."""
    needs_strace()
    one = scene(tmp_path, output, force=force)
    with server(tmp_path / "temp") as served:
        at_each_call(served, one)
    report(f"{output}{' --force' if force else ''}: {one.kills} kills, {dict(one.left)}")
    # Kills have also hit the moment when data has no certificate.
    before = "old" if force else "nothing"
    assert set(one.left) == {f"{before}, not booked", f"{before}, booked", "unfinished, booked", "new, booked"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("output", "force"), [("out.csv", False), ("out.csv", True), ("out.sqlite", True), ("out.duckdb", False)]
)
def test_a_thousand_kills_at_random_moments(tmp_path: Path, output: str, force: bool) -> None:
    """A quarter for each kind of output, spread over the duration of a run."""
    moments = random.Random(f"{output} {force}")
    one = scene(tmp_path, output, force=force)
    with server(tmp_path / "temp") as served:
        while one.kills < RANDOM_KILLS // 4:
            if one.kills % 25 == 0:
                whole = served.ask(folder=one.afresh(), words=one.words)
                assert whole["code"] == 0
            latest = 1.1 * whole["seconds"]
            done = served.ask(folder=one.afresh(), words=one.words, seconds=moments.uniform(0.0, latest))
            if done["killed"]:
                one.check()
    report(f"{output}{' --force' if force else ''}: {one.kills} kills, {dict(one.left)}")


@pytest.mark.slow
def test_kills_while_a_ledger_is_made(tmp_path: Path) -> None:
    """There is no file or a complete ledger, never an empty one. Either way the next command succeeds."""
    needs_strace()
    words = ["ledger", "init", "a.ledger", "--dataset", "log", "--epsilon", "1", "--delta", "1e-6"]
    left: Counter[str] = Counter()
    folder = tmp_path / "now"
    with server(tmp_path / "temp") as served:
        folder.mkdir()
        for call, line in calls_of(served, folder, words):
            shutil.rmtree(folder)
            folder.mkdir()
            assert served.ask(folder=str(folder), words=words, syscall=call)["killed"], line
            there = (folder / "a.ledger").exists()
            left["whole" if there else "nothing"] += 1
            if there:
                assert list(Ledger.open(folder / "a.ledger").accounts().datasets) == ["log"]
            Ledger.init(folder / "a.ledger", "more", epsilon=1, delta=1e-6)
            assert "more" in Ledger.open(folder / "a.ledger").accounts().datasets
            assert names(folder) == {"a.ledger"}
    report(f"ledger init: {sum(left.values())} kills, {dict(left)}")
    assert set(left) == {"whole", "nothing"}
