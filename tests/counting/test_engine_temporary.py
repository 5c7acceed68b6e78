"""Temporary folders are removed after success, failure, interruption and a kill; memory stays within its limit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from dphist.counting.task import Resources
from dphist.counting.workspace import attempt
from dphist.errors import InputError
from dphist.publishing import MARK
from engine_cases import EMBEDDED, QUICK_ON_DUCKDB, WITHOUT_CLUSTER, Factory, histogram, is_spark, task
from processes import wait_until

SMALL = pa.table({"user": [1, 2, 2], "item": ["a", "a", "b"]})
# It stops itself at the first sign of progress, in the middle of the query.
PROGRAM = """
import os, signal, sys
from pathlib import Path
from dphist.counting.duckdb import DuckDBEngine
from engine_cases import task
from dphist.counting.task import Resources

stops = [signal.SIGSTOP]

def shown(share):
    print(share, flush=True)
    if stops:
        os.kill(os.getpid(), stops.pop())

engine = DuckDBEngine(Resources(folder=Path(sys.argv[1]), memory="300MB", threads=2))
try:
    with engine.count(task(sys.argv[2], max_items_per_user=20), shown) as counted:
        list(counted.batches())
    print("done", flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def left(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@WITHOUT_CLUSTER
def test_the_folder_is_private_and_gone_afterwards(engine: Factory, tmp_path: Path) -> None:
    resources = Resources(folder=tmp_path)
    with engine(resources).count(task(SMALL, rank=1)) as counted:
        for name in left(tmp_path):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o700
        assert len(list(counted.batches())) == 1
    assert left(tmp_path) == []
    engine(resources).check(task(SMALL))
    with pytest.raises(InputError):
        engine(resources).check(task(SMALL, user="who"))
    with pytest.raises(KeyboardInterrupt), engine(resources).count(task(SMALL)) as counted:
        raise KeyboardInterrupt
    assert left(tmp_path) == []


@QUICK_ON_DUCKDB
def test_unfinished_batches_leave_nothing(engine: Factory, tmp_path: Path) -> None:
    rows = np.arange(40_000 if is_spark(engine) else 400_000)
    many = pa.table({"user": rows % 1000, "item": rows})
    for more in ({}, {"rank": 5}, {"ordered": True}):
        with engine(Resources(folder=tmp_path, threads=2)).count(task(many, **more)) as counted:
            assert next(iter(counted.batches())).num_rows > 0
        assert left(tmp_path) == []


@EMBEDDED
def test_only_folders_of_dead_runs_are_removed(engine: Factory, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    gone = tmp_path / f"dphist-{dead.pid}-abcdefgh"
    alive = tmp_path / f"dphist-{os.getpid()}-abcdefgh"
    unmarked = tmp_path / f"dphist-{dead.pid}-zzzzzzzz"
    other = tmp_path / "dphist-data"
    # Folders of the user that look like ours: with another program's lock, and with a link as lock.
    locked = tmp_path / f"dphist-{dead.pid}-project"
    linked = tmp_path / f"dphist-{dead.pid}-linked"
    for folder in (gone, alive, unmarked, other, locked, linked):
        folder.mkdir()
        (folder / "counts.tmp").write_text("42")
    for folder in (gone, alive):
        (folder / "lock").write_bytes(MARK)
    (locked / "lock").write_text("")
    (linked / "lock").symlink_to(gone / "lock")
    (tmp_path / f"dphist-{dead.pid}-link").symlink_to(gone)
    assert histogram(engine, task(SMALL), Resources(folder=tmp_path)) == {"a": 2, "b": 1}
    kept = sorted(folder.name for folder in (alive, unmarked, other, locked, linked))
    assert left(tmp_path) == sorted([*kept, f"dphist-{dead.pid}-link"])
    assert all((tmp_path / name / "counts.tmp").read_text() == "42" for name in kept)


@EMBEDDED
def test_nobody_else_can_read_spill_files(
    engine: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever their mode is: only the owner can enter the folder, from the moment it exists."""
    modes: list[int] = []
    real = os.mkdir

    def noted(path: Any, mode: int = 0o777, **more: Any) -> None:
        modes.append(mode)
        real(path, mode, **more)

    monkeypatch.setattr(os, "mkdir", noted)
    old = os.umask(0)
    try:
        with engine(Resources(folder=tmp_path)).count(task(SMALL, rank=1)):
            (folder,) = tmp_path.iterdir()
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.name == "lock"} == {
                0o600
            }
    finally:
        os.umask(old)
    assert modes
    assert set(modes) == {0o700}


@QUICK_ON_DUCKDB
def test_progress_only_grows_and_cannot_break_a_run(engine: Factory) -> None:
    random = np.random.default_rng(3)
    rows = 10**5 if is_spark(engine) else 10**6
    many = pa.table({"user": random.integers(0, 10**5, rows), "item": random.integers(0, 10**5, rows)})

    def slowly() -> Iterator[Any]:
        for batch in many.to_batches(max_chunksize=rows // 5):
            time.sleep(0.15)
            yield batch

    for more in ({}, {"rank": 2, "max_items_per_user": 3}):
        seen: list[float] = []
        stream = pa.RecordBatchReader.from_batches(many.schema, slowly())
        with engine(Resources()).count(task(stream, **more), seen.append) as counted:
            for _ in counted.batches():
                pass
        assert seen == sorted(set(seen))
        assert seen[-1] == 1.0
        assert all(0.0 < share <= 1.0 for share in seen)

    def broken(share: float) -> None:
        raise ValueError("no display")

    with engine(Resources()).count(task(SMALL), broken) as counted:
        assert sum(batch.num_rows for batch in counted.batches()) == 2


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More rows than fit into the memory of these tests."""
    random = np.random.default_rng(11)
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    user, item = random.integers(0, 10**5, 3 * 10**6), random.integers(0, 2 * 10**6, 3 * 10**6)
    pa.parquet.write_table(pa.table({"user": user, "item": item}), path)
    return path


@EMBEDDED
def test_little_memory_gives_the_same_counts(
    engine: Factory, large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = task(large, max_items_per_user=20, rank=10, lower_threshold=2)
    little = Resources(memory="120MB", folder=tmp_path, threads=2)
    small = histogram(engine, wanted, little)
    assert left(tmp_path) == []
    assert small == histogram(engine, wanted, Resources(threads=2))
    # With a megabyte of disk it fails, so the count above did spill.
    full = shutil.disk_usage(tmp_path)._replace(free=10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(InputError, match="there is not enough"):
        histogram(engine, wanted, little)
    assert left(tmp_path) == []


def started(large: Path, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", PROGRAM, str(folder), str(large)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def state_of(process: int) -> str:
    """One letter, T for a process that is stopped."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_or_killed_run_leaves_nothing(large: Path, tmp_path: Path, how: signal.Signals) -> None:
    with started(large, tmp_path) as process:
        assert process.stdout is not None
        process.stdout.readline()  # the first sign of progress: the query is running
        wait_until(lambda: state_of(process.pid) == "T", "the stop in the middle of the query")
        assert len(left(tmp_path)) == 1
        begun = time.monotonic()
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        rest = process.stdout.read()
        assert "done" not in rest
        assert ("interrupted" in rest) == (how == signal.SIGINT)
        process.wait()
        # The guard of a killed run removes the folder after it.
        while left(tmp_path) and time.monotonic() - begun < 20:
            time.sleep(0.05)
    assert left(tmp_path) == []
    assert time.monotonic() - begun < 10


@QUICK_ON_DUCKDB
def test_two_counts_at_once(engine: Factory) -> None:
    results: list[dict[Any, int]] = []
    threads = [threading.Thread(target=lambda: results.append(histogram(engine, task(SMALL)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [{"a": 2, "b": 1}] * 4


def test_errors_of_memory_and_disk_contain_no_number(tmp_path: Path) -> None:
    for setting, expected in (("max_temp_directory_size = '1MB'", "temporary"), ("temp_directory = ''", "memory")):
        with contextlib.closing(duckdb.connect()) as connection:
            for one in ("threads = 1", "memory_limit = '30MB'", f"temp_directory = '{tmp_path}'", setting):
                connection.execute(f"SET {one}")
            rows = "CREATE TEMP TABLE t AS SELECT hash(i) AS h, i FROM range(30_000_000) AS r(i)"
            with pytest.raises(InputError) as caught:
                attempt(partial(connection.execute, rows), "the file 'x'")
        sentence = str(caught.value)
        assert expected in sentence
        assert not any(letter.isdigit() for letter in sentence)
