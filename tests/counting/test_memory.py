"""Long values and little room: `--memory` holds, long texts are missing, and no limit makes the process abort."""

from __future__ import annotations

import contextlib
import json
import secrets
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dphist.counting.task import LONGEST_VALUE
from dphist.counting.workspace import reserved_space
from dphist.releasing.noise import Piece, blocks
from dphist.releasing.result import Form
from engine_cases import EACH_ENGINE, Factory, histogram, task

# A release in a process of its own; prints the peak of its resident memory in MB.
RELEASE = r"""
import re, sys, dphist
found = dphist.release(sys.argv[1], user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=3,
                       memory=sys.argv[2], threads=2)
# Not ru_maxrss, which begins at what the process had that started this one.
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
def test_a_value_that_is_too_long_is_missing_by_its_own_length_alone(engine: Factory) -> None:
    table = pa.table({"user": ["a", "b", LONG, "c"], "item": [LONGEST, LONG, "tea", "tea"]})
    assert histogram(engine, task(table)) == {LONGEST: 1, "tea": 1}
    without = pa.table({"user": ["a", "c"], "item": [LONGEST, "tea"]})
    assert histogram(engine, task(table)) == histogram(engine, task(without))
    assert histogram(engine, task(table, null_items=True)) == {LONGEST: 1, None: 1, "tea": 1}
    data = pa.table({"user": [1, 2, 3], "item": pa.array([b"\xff" * LONGEST_VALUE, LONG.encode(), b"tea"])})
    assert histogram(engine, task(data)) == {b"\xff" * LONGEST_VALUE: 1, b"tea": 1}
    lists = pa.table({"user": [1, 2], "item": pa.array([["tea"], [LONG]])})
    assert histogram(engine, task(lists)) == {'["tea"]': 1}


def write_long(path: Path, rows: int, length: int) -> None:
    """Events whose items are long and all different, but for one that 200 users have."""
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
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
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


@pytest.mark.parametrize(
    "ending", ["jsonl", *(pytest.param(ending, marks=pytest.mark.slow) for ending in ("arrow", "sqlite"))]
)
def test_long_values_stay_within_the_memory(tmp_path: Path, ending: str) -> None:
    """300 values of 1 MB took 0.8 to 1.4 GB, and the release failed, while values could have any length."""
    path = tmp_path / f"events.{ending}"
    write_long(path, 300, 1_000_000)
    assert peak(path, "700MB") < 700


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["jsonl", "arrow", "sqlite"])
def test_many_long_values_stay_within_the_memory(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"events.{ending}"
    write_long(path, 2000, 1_000_000)
    assert peak(path, "1GB") < 1000


@pytest.mark.parametrize(
    "limit", [300, 1500, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (500, 600, 700, 1000))]
)
def test_too_little_address_space_is_said_and_nothing_aborts(tmp_path: Path, limit: int) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,tea\n2,tea\n")
    request = [str(tmp_path / "log.csv"), "--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
    more = ["--max-items-per-user", "2", "--output", str(tmp_path / "out.csv")]
    command = [sys.executable, "-c", LIMITED, str(limit), "release", *request, *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"the limit of this process is {limit:,} MB: raise it (ulimit -v" in done.stderr
    assert not (tmp_path / "out.csv").exists()


def test_enough_address_space_is_enough(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,tea\n2,tea\n")
    request = [str(tmp_path / "log.csv"), "--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
    more = ["--max-items-per-user", "2", "--output", str(tmp_path / "out.csv")]
    limit = reserved_space() // 10**6 + 300
    for memory, code in (("500MB", 0), ("3GB", 2)):
        command = [sys.executable, "-c", LIMITED, str(limit), "release", *request, *more, "--memory", memory]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
    assert "or give less --memory" in done.stderr


def test_a_block_ends_where_its_pieces_hold_too_much() -> None:
    pieces = [Piece(Form(), (np.arange(4),), np.arange(4), size=10) for _ in range(5)]
    assert [len(block) for block in blocks(pieces, 1000)] == [5]
    assert [len(block) for block in blocks(pieces, 1000, most=20)] == [2, 2, 1]
    parts = [part for block in blocks(pieces, 6, most=20) for part in block]
    assert sum(part.counts.size for part in parts) == 20
