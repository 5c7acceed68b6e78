"""Real signals and a real limit of the size of files, in processes of their own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dphist.outputs.readback import read_release
from dphist.outputs.target import target_of
from dphist.outputs.write import write_release
from dphist.publishing import defer_signals, interruptible
from scheduling import THOROUGH, crossed

PLACES = ["a.parquet", "a.csv", "a.jsonl", "a.duckdb", "a.sqlite"]
WRITER = """
import sys
from contextlib import nullcontext
import pyarrow as pa
from dphist.publishing import interruptible
from dphist.outputs.write import write_release
from dphist.outputs.target import target_of
target = target_of(sys.argv[1])
with interruptible() if sys.argv[2] == "leave" else nullcontext():
    for n in range(10_000):
        table = pa.table({"item": [f"item {n} {i}" for i in range(5_000)], "count": [float(n)] * 5_000})
        write_release(table, {"n": n}, target, force=True)
        if n == 0:
            print("ready", flush=True)
"""
LIMITED = """
import resource, sys
import pyarrow as pa
from dphist.errors import OutputError
from dphist.outputs.write import write_release
from dphist.outputs.target import target_of
import duckdb, os
table = pa.table({"item": [os.urandom(20).hex() for i in range(30_000)], "count": [1.5] * 30_000})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
for place in sys.argv[1:]:
    try:
        write_release(table, {}, target_of(place), force="force" in place)
    except OutputError as error:
        print(f"refused: {error}")
"""


def interrupted(path: Path, mode: str, number: signal.Signals, delay: float) -> int:
    """The exit code of a writer that got a signal so many seconds after its first release."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), mode], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        time.sleep(delay)
        process.send_signal(number)
        return process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


SIGNALS = [
    (signal.SIGINT, "plain", -signal.SIGINT),
    (signal.SIGTERM, "leave", 128 + signal.SIGTERM),
    (signal.SIGTERM, "plain", -signal.SIGTERM),
]


@pytest.mark.parametrize(("name", "sent"), crossed(PLACES, SIGNALS))
def test_signals_at_random_moments(tmp_path: Path, name: str, sent: tuple[signal.Signals, str, int]) -> None:
    number, mode, code = sent
    moments = random.Random(f"{name} {number} {mode}")
    for attempt in range(2 if THOROUGH else 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        assert interrupted(folder / name, mode, number, moments.uniform(0, 0.25)) == code
        names = {path.name for path in folder.iterdir()}
        # SIGTERM by itself ends a process between two writes, too; the release is whole in any case.
        assert names == ({name} if name in PLACES[3:] else {name, f"{name}.certificate.json"})
        back = read_release(str(folder / name))
        assert back.problems == ()
        assert back.table is not None
        assert set(back.table["count"].to_pylist()) == {float((back.document or {})["n"])}


def test_no_room_for_the_file(tmp_path: Path) -> None:
    """All places in one process, most of whose time goes into its start."""
    (tmp_path / "force").mkdir()
    (tmp_path / "fresh").mkdir()
    # An empty DuckDB file is larger than the limit by itself.
    old = [tmp_path / "force" / name for name in PLACES if name != "a.duckdb"]
    for path in old:
        write_release(pa.table({"item": ["tea"], "count": [1.5]}), {}, target_of(path), force=False)
    before = {path: path.read_bytes() for path in sorted((tmp_path / "force").iterdir())}
    places = [*old, *(tmp_path / "fresh" / name for name in PLACES)]
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, *map(str, places)], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    for path, said in zip(places, process.stdout.splitlines(), strict=True):
        assert said.startswith("refused: "), (path, said)
        assert "cannot be written: " in said, (path, said)
    assert list((tmp_path / "fresh").iterdir()) == []
    assert sorted((tmp_path / "force").iterdir()) == list(before)
    for path in old:
        assert path.suffix == ".sqlite" or path.read_bytes() == before[path]
        assert read_release(str(path)).problems == ()


def kill_within(steps: list[str], check: bool) -> None:
    with defer_signals() as handle:
        os.kill(os.getpid(), signal.SIGINT)
        steps.append("still here")
        if check:
            handle()
        steps.append("never checked")


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    """Those of a new process: Spark, in another test of this one, has installed its own."""
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.usefixtures("usual_handlers")
@pytest.mark.parametrize("check", [True, False])
def test_signals_wait_and_come(check: bool) -> None:
    steps: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        kill_within(steps, check)
    assert steps == (["still here"] if check else ["still here", "never checked"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_of_the_callers_is_asked_once() -> None:
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


def test_interruptible_leaves_with_the_shells_code() -> None:
    with pytest.raises(SystemExit) as left, interruptible():
        signal.raise_signal(signal.SIGTERM)
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
