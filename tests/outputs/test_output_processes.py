"""Real signals, and a real limit on the size of files, in other processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dphist.outputs.target import target_of
from dphist.outputs.write import write_release
from dphist.publishing import defer_signals, interruptible
from exports import certificate_of, export, read_back
from scheduling import THOROUGH, crossed

PLACES = ["a.parquet", "a.csv", "a.jsonl", "a.duckdb", "a.sqlite"]
WORKER = """
import json, os, resource, sys
from contextlib import nullcontext
import duckdb, pyarrow as pa
from dphist.errors import OutputError
from dphist.outputs.target import target_of
from dphist.outputs.write import write_release
from dphist.publishing import interruptible

def write_until_stopped(path, mode):
    with interruptible() if mode == "leave" else nullcontext():
        for n in range(10_000):
            table = pa.table({"item": [f"item {n} {i}" for i in range(5_000)], "count": [float(n)] * 5_000})
            write_release(table, {"n": n}, target_of(path), force=True)
            if n == 0:
                print(os.getpid(), flush=True)

def write_on_a_small_disk(paths):
    table = pa.table({"item": [os.urandom(20).hex() for i in range(30_000)], "count": [1.5] * 30_000})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for path in paths:
        try:
            write_release(table, {}, target_of(path), force="force" in path)
            print("written", flush=True)
        except OutputError as error:
            print(error, flush=True)
    sys.exit()

for line in sys.stdin:
    function, *arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        globals()[function](*arguments)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Worker:
    """A process that runs a function of `WORKER` in a child and then prints the child's exit code."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
        )  # fmt: skip

    def start(self, function: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([function, *arguments]) + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.process.kill()
    worker.process.communicate()


SIGNALS = [
    (signal.SIGINT, "plain", -signal.SIGINT),
    (signal.SIGTERM, "leave", 128 + signal.SIGTERM),
    (signal.SIGTERM, "plain", -signal.SIGTERM),
]


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize(("name", "sent"), crossed(PLACES, SIGNALS))
def test_signals_at_random_moments(
    worker: Worker, tmp_path: Path, name: str, sent: tuple[signal.Signals, str, int]
) -> None:
    number, mode, code = sent
    moments = random.Random(f"{name} {number} {mode}")
    for attempt in range(2 if THOROUGH else 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        worker.start("write_until_stopped", str(folder / name), mode)
        child = int(worker.line())
        time.sleep(moments.uniform(0, 0.25))
        os.kill(child, number)
        assert int(worker.line()) == code
        names = {path.name for path in folder.iterdir()}
        assert names == {name, certificate_of(folder / name).name}
        back = read_back(folder / name)
        assert back.problems == ()
        assert back.table is not None
        assert set(back.table["count"].to_pylist()) == {float((back.document or {})["n"])}


@pytest.mark.usefixtures("decoded_here")
def test_a_full_disk(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "force").mkdir()
    (tmp_path / "fresh").mkdir()
    # Even an empty DuckDB file is larger than the limit.
    old = [tmp_path / "force" / name for name in PLACES if name != "a.duckdb"]
    for path in old:
        write_release(pa.table({"item": ["tea"], "count": [1.5]}), {}, target_of(path), force=False)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "force").iterdir())}
    places = [*old, *(tmp_path / "fresh" / name for name in PLACES)]
    worker.start("write_on_a_small_disk", list(map(str, places)))
    for _ in places:
        assert "cannot be written: " in worker.line()
    assert worker.line() == "0"
    assert list((tmp_path / "fresh").iterdir()) == []
    # SQLite finds out when it commits: then the old table stays, without its certificate.
    table = tmp_path / "force" / "a.sqlite"
    assert sorted((tmp_path / "force").iterdir()) == [path for path in before if path != certificate_of(table)]
    for path in old:
        if path != table:
            assert path.read_bytes() == before[path]
            assert read_back(path).problems == ()
    assert export(table).read_text() == '"item","count"\n"tea",1.5\n'


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    """Those of a new process, because Spark, in another test, installs its own."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("check", [True, False])
def test_signals_wait_until_they_are_handled(check: bool) -> None:
    steps: list[str] = []

    def interrupt() -> None:
        with defer_signals() as handle:
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("still here")
            if check:
                handle()
            steps.append("never checked")

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert steps == (["still here"] if check else ["still here", "never checked"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_callers_handler_is_called_once() -> None:
    seen: list[int] = []
    old = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with defer_signals() as handle:
            os.kill(os.getpid(), signal.SIGTERM)
            assert seen == []
            handle()
            handle()
            assert seen == [signal.SIGTERM]
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, old)


def test_interruptible_exits_with_the_code_of_a_shell() -> None:
    with pytest.raises(SystemExit) as left, interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
