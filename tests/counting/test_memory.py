"""Long values and little memory: `--memory` holds, long texts are missing, and no limit aborts the process."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dphist.counting import workspace
from dphist.counting.task import LONGEST_VALUE
from dphist.counting.workspace import MEGABYTE, available_memory, reserved_space
from engine_cases import EACH_ENGINE, Factory, histogram, task

# Prints the number of released items and the peak of resident memory in MB.
RELEASE = r"""
import re, sys, dphist
found = dphist.release(sys.argv[1], user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=3,
                       memory=sys.argv[2], threads=2)
# Not ru_maxrss, which starts with that of the parent process.
print(len(found), int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) * 1024 // 10**6)
"""
LIMITED = """
import resource, sys
limit = int(sys.argv[1]) * 10**6
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sys.argv = ["dphist", *sys.argv[2:]]
from dphist.cli import main
main()
"""
LONG = "x" * (LONGEST_VALUE + 1)
LONGEST = "é" * (LONGEST_VALUE // 2)


@EACH_ENGINE
def test_values_that_are_too_long_are_missing(engine: Factory) -> None:
    table = pa.table({"user": ["a", "b", LONG, "c"], "item": [LONGEST, LONG, "tea", "tea"]})
    assert histogram(engine, task(table)) == {LONGEST: 1, "tea": 1}
    assert histogram(engine, task(table, null_items=True)) == {LONGEST: 1, None: 1, "tea": 1}
    data = pa.table({"user": [1, 2, 3], "item": pa.array([b"\xff" * LONGEST_VALUE, LONG.encode(), b"tea"])})
    assert histogram(engine, task(data)) == {b"\xff" * LONGEST_VALUE: 1, b"tea": 1}
    lists = pa.table({"user": [1, 2], "item": pa.array([["tea"], [LONG]])})
    assert histogram(engine, task(lists)) == {'["tea"]': 1}


def write_long(path: Path, rows: int, length: int) -> None:
    """Events with long distinct items, and one item of 200 users."""
    pairs: Iterator[tuple[str, str]] = ((f"u{k}", secrets.token_hex(length // 2)) for k in range(rows))
    usual = [(f"u{k}", "tea") for k in range(200)]
    if path.suffix == ".jsonl":
        with path.open("w") as file:
            for part in (pairs, usual):
                file.writelines(json.dumps({"user": user, "item": item}) + "\n" for user, item in part)
        return
    if path.suffix == ".sqlite":
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE events (user TEXT, item TEXT)")
            for part in (pairs, usual):
                database.executemany("INSERT INTO events VALUES (?, ?)", part)
            database.commit()
        return
    schema = pa.schema([("user", pa.string()), ("item", pa.string())])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for first in range(0, rows, 16):
            some = [next(pairs) for _ in range(min(16, rows - first))]
            writer.write_table(pa.table(list(zip(*some, strict=True)), schema=schema))
        writer.write_table(pa.table(list(zip(*usual, strict=True)), schema=schema))


def peak(path: Path, memory: str) -> int:
    command = [sys.executable, "-c", RELEASE, str(path), memory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    released, found = done.stdout.split()
    assert released == "1"
    return int(found)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "arrow", "sqlite"])
def test_long_values_stay_within_the_memory(tmp_path: Path, ending: str) -> None:
    """Without a limit on their length, 300 values of 1 MB took 0.8 to 1.4 GB."""
    path = tmp_path / f"events.{ending}"
    write_long(path, 300, 1_000_000)
    assert peak(path, "700MB") < 700


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "arrow", "sqlite"])
def test_many_long_values_stay_within_the_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"events.{ending}"
    write_long(path, 2000, 1_000_000)
    assert peak(path, "1GB") < 1000


def release_within(limit: int, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A release in a process with so many megabytes of address space."""
    (folder / "log.csv").write_text("user,item\n1,tea\n2,tea\n")
    request = ["--user=user", "--item=item", "--epsilon=1", "--delta=1e-6", "--max-items-per-user=2"]
    files = [str(folder / "log.csv"), "--output", str(folder / "out.csv")]
    command = [sys.executable, "-c", LIMITED, str(limit), "release", *files, *request, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "limit", [1500, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (300, 500, 600, 700, 1000))]
)
def test_too_little_address_space_is_an_error(tmp_path: Path, limit: int) -> None:
    done = release_within(limit, tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"the limit of this process is {limit:,} MB: raise it (ulimit -v" in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_enough_address_space(tmp_path: Path) -> None:
    limit = reserved_space() // 10**6 + 300
    assert release_within(limit, tmp_path, "--memory", "500MB").returncode == 0
    done = release_within(limit, tmp_path, "--memory", "3GB")
    assert done.returncode == 2
    assert "or give less --memory" in done.stderr


@pytest.mark.parametrize(
    ("own", "file"),
    [("0::/user.slice/a.scope", "memory.max"), ("4:cpu,memory:/user.slice/a.scope", "memory.limit_in_bytes")],
)
def test_the_limit_of_a_parent_control_group_counts(
    own: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "memory" if "memory:" in own else tmp_path
    (root / "user.slice" / "a.scope").mkdir(parents=True)
    (root / "user.slice" / file).write_text(f"{300 * MEGABYTE}\n")
    (root / "user.slice" / "a.scope" / file).write_text("max\n")
    (tmp_path / "own").write_text(f"{own}\n")
    monkeypatch.setattr(workspace, "_CONTROL_GROUPS", (tmp_path / "own", tmp_path))
    assert available_memory() == 300 * MEGABYTE
