"""No leaks: a release writes, prints and raises no true counts and no unreleased items."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import time
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.errors import DphistError
from release_commands import command
from release_data import events
from scheduling import crossed

# True counts that occur nowhere else, and names that must not be seen.
TRUE = {"seen often": 49731, "seen too": 35171, "planted-secret-item": 3, "another-planted-secret": 1}
SECRETS = ["planted-secret", "49731", "35171"]
FLAGS = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]


@cache
def true_events() -> pa.Table:
    return events(TRUE)


def everything(folder: Path, skip: set[str]) -> bytes:
    """All bytes of all files below a folder, and all their names."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.name not in skip:
            found.append(str(path).encode())
            if path.is_file():
                found.append(path.read_bytes())
    return b"\n".join(found)


def without_digests(content: bytes) -> bytes:
    """Without digests and ledger names, which contain any digits by chance."""
    return re.sub(rb"[0-9a-f]{32,}", b"", content)


def hidden_in(content: bytes) -> list[str]:
    """The secrets in it, as text or as numbers in a file format.

    False alarms are below 2e-10: the checksums of a database have fewer than 100 bytes, and five of them must
    be the digits of a count.
    """
    plain = without_digests(content)
    found = [secret for secret in SECRETS if re.search(rb"(?<![\d.])" + secret.encode() + rb"(?!\.?\d)", plain)]
    for count in (49731, 35171):
        found += [f"{count} as {form}" for form in ("<q", "<d") if struct.pack(form, count) in content]
    return found


def test_the_search_ignores_digests_alone() -> None:
    digest = b"9a" * 14 + b"a49731f" + b"0c" * 14
    assert hidden_in(b'"sha256": "' + digest + b'"') == []
    for shown in (b'"rows": 49731', b"49731," + digest, digest + b" 49731"):
        assert hidden_in(shown) == ["49731"]


OUTPUTS = ["out.parquet", "out.csv", "out.jsonl", "out.arrow", "out.sqlite", "out.duckdb"]
# Not Laplace noise, which is often zero, so that the noisy count is the true one.
CAP = ["--max-items-per-user", "2", "--mechanism", "gaussian"]


@pytest.mark.parametrize(("output", "contract"), crossed(OUTPUTS, [CAP, ["--top", "2"], ["--max-nonzero", "9"]]))
def test_nothing_written_or_printed_holds_a_secret(
    tmp_path: Path, output: str, contract: list[str], monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    pq.write_table(true_events(), tmp_path / "events.parquet")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    # With this seed no noise is zero, as it may be by chance.
    words = ["events.parquet", *FLAGS, *contract, "--output", output, "--interval", "0.9", "--seed", "3"]
    done = command(tmp_path, "release", *words)
    assert done.code == 0, done.err
    # Libraries may bypass Python's own streams.
    printed = done.out + done.err + "".join(capfd.readouterr())
    content = everything(tmp_path, {"events.parquet"}) + printed.encode()
    assert b"seen often" in content
    assert hidden_in(content) == []
    # Power: the search finds the secrets in the input.
    assert hidden_in(everything(tmp_path, set())) != []


BAD: list[dict[str, Any]] = [
    {"item": "missing column"},
    {"where": "nonsense("},
    {"user": "nobody"},
    {"output": "/proc/nowhere/x.csv"},
    {"memory": "much"},
]


@pytest.mark.parametrize(
    "condition", ["item = 4 / 'x'", "cast(item as integer) > 4", "1 / (length(item) - 9) > 0"]
)
def test_a_condition_that_fails_on_a_row_is_not_an_error(condition: str) -> None:
    """An error would reveal data, so the row just does not satisfy the condition."""
    few = events({"seen often": 9, "planted-secret-item": 3})
    dphist.release(few, user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=1, where=condition)


@pytest.mark.parametrize("change", BAD)
def test_no_error_holds_a_secret(tmp_path: Path, change: dict[str, Any]) -> None:
    pq.write_table(true_events(), tmp_path / "events.parquet")
    request: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6, "top": 2}
    with pytest.raises(DphistError) as caught:
        dphist.release(tmp_path / "events.parquet", **{**request, **change})
    text = "".join(traceback.format_exception(caught.value))
    assert hidden_in(text.encode()) == []
    assert "\n" not in str(caught.value).strip()
    assert caught.value.__cause__ is None


def test_items_of_all_types_are_released(tmp_path: Path) -> None:
    """No type of item is an error after counting."""
    many = 600
    columns = [
        pa.array(["word"] * many).dictionary_encode(),
        pa.array([b"\x00\xff"] * many),
        pa.array([1.5] * many),
        pa.array([True] * many),
        pa.array([86_400] * many, pa.date32()),
        pa.array([86_400] * many, pa.timestamp("us", "UTC")),
        pa.array([None] * many, pa.int32()),
    ]
    for number, column in enumerate(columns):
        table = pa.table({"user": list(range(many)), "item": column})
        found = dphist.release(
            table, user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, null_items=True,
            output=tmp_path / f"{number}.parquet", types="fixed",
        )  # fmt: skip
        assert len(found) == 1, column.type
        assert found.to_arrow().column("item")[0].as_py() == column[0].as_py()
        assert dphist.verify(tmp_path / f"{number}.parquet").verified


BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.slow
@pytest.mark.parametrize("signals", [BOTH * 2, BOTH[::-1] * 2])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, signals: list[int]) -> None:
    """Stopped at several moments, during the count and after it."""
    source, temp, work = tmp_path / "in", tmp_path / "temp", tmp_path / "work"
    for folder in (source, temp, work):
        folder.mkdir()
    numbers = pa.array(range(3_000_000))
    pq.write_table(pa.table({"user": numbers, "item": numbers}), source / "e.parquet")
    words = [
        sys.executable, "-m", "dphist", "release", str(source / "e.parquet"), *FLAGS, "--top", "5",
        "--memory", "700MB", "--output", "out.parquet",
    ]  # fmt: skip
    quiet: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for wait, number in zip((0.4, 1.0, 1.5, 2.2), signals, strict=True):
        process = subprocess.Popen(words, cwd=work, env={**os.environ, "TMPDIR": str(temp)}, **quiet)
        time.sleep(wait)
        process.send_signal(number)
        process.communicate(timeout=60)
        assert list(temp.iterdir()) == []
        left = {path.name for path in work.iterdir()}
        assert left in (set(), {"out.parquet", "out.parquet.certificate.json"})
        for path in work.iterdir():
            path.unlink()
