"""Links, control characters in names, and leftovers of killed processes next to the folders of users."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import dphist
from dphist.errors import LedgerError, OutputError
from dphist.ledger import Ledger
from dphist.outputs.readback import read_release
from dphist.outputs.target import target_of
from dphist.outputs.write import check_target, write_release
from dphist.publishing import LOCK, MARK, hold, sweep, workplace
from release_commands import BOOKED, FLAGS, command, log_in, names

TABLE = pa.table({"item": ["tea"], "count": [1.5]})
RED = "\x1b[31mred"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("name", ["a.csv", "a.sqlite", "a.csv.certificate.json"])
def test_a_release_is_not_written_through_a_link(tmp_path: Path, name: str, exists: bool, force: bool) -> None:
    (tmp_path / "elsewhere").mkdir()
    linked = tmp_path / "elsewhere" / "file"
    if exists:
        linked.write_bytes(b"")
    (tmp_path / name).symlink_to(linked)
    target = target_of(tmp_path / name.removesuffix(".certificate.json"))
    for attempt in (
        lambda: check_target(target, force=force),
        lambda: write_release(TABLE, {}, target, force=force),
    ):
        with pytest.raises(OutputError, match="it is a link; name the file itself"):
            attempt()
    assert names(tmp_path) == {name, "elsewhere"}
    assert (linked.read_bytes() == b"") if exists else not linked.exists()


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out").symlink_to("folder")
    with pytest.raises(OutputError, match="it is a link; name the folder itself"):
        check_target(target_of(f"{tmp_path}/out/"), force=True)


@pytest.mark.usefixtures("quick_curve", "plans_once")
@pytest.mark.parametrize("output", [f"{RED}.csv", pytest.param(f"{RED}.sqlite", marks=pytest.mark.slow)])
def test_a_name_with_an_escape_sequence_is_shown_as_text(tmp_path: Path, output: str) -> None:
    log_in(tmp_path)
    os.rename(tmp_path / "events.parquet", tmp_path / f"{RED}.parquet")
    (tmp_path / f"{RED}.txt").write_text("no ledger")
    words = ["release", f"{RED}.parquet", *FLAGS, "--output", output]
    flows = [
        ["ledger", "init", f"{RED}.ledger", "--dataset", "log", "--epsilon", "3", "--delta", "1e-6"],
        ["ledger", "show", f"{RED}.ledger"],
        [*words, *BOOKED],
        [*words, *BOOKED],
        ["ledger", "show", "a.ledger"],
        ["verify", output],
        ["report", output],
        ["report", output, "--output", f"{RED}.md"],
        [*words, "--report", f"{RED}.html", "--force"],
        ["verify", f"{RED}.parquet"],
        ["verify", f"missing{RED}.csv"],
        ["release", f"missing{RED}.csv", *FLAGS, "--output", "b.csv"],
        ["release", f"{RED}.txt", *FLAGS, "--output", "b.csv"],
        ["ledger", "show", f"{RED}.txt"],
        ["ledger", "show", f"missing{RED}"],
        ["release", f"{RED}.parquet", *FLAGS, "--output", "b.csv", "--where", RED],
        ["release", f"{RED}.parquet", *FLAGS[2:], "--user", RED, "--output", "b.csv"],
        ["sketch", "build", f"{RED}.parquet", "--user", "user", "--item", "item", "--output", f"{RED}.sketch"],
    ]
    # The report with charts is slow.
    for words in flows[:8] + flows[9:] if output.endswith("csv") else [flows[place] for place in (2, 3, 5, 7, 8)]:
        done = command(tmp_path, *words)
        assert "\x1b" not in done.out + done.err, words
        assert done.out + done.err
    assert "\\x1b[31mred" in command(tmp_path, *words[:0], "verify", f"missing{RED}.csv").err


def test_the_command_prints_in_one_place() -> None:
    """So that no print of a name can forget to escape it."""
    folder = Path(dphist.__file__).parent / "cli"
    printing = {
        path.name
        for path in folder.glob("*.py")
        if re.search(r"std(out|err)\.write|typer\.echo|(?<!\.)\bprint\(", path.read_text(encoding="utf-8"))
    }
    assert printing == {"base.py"}


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    ours, unmarked, marked_file, locked, near, broken = (
        tmp_path / name
        for name in (
            ".dphist-0123456789abcdef", ".dphist-1123456789abcdef", ".dphist-2123456789abcdef",
            ".dphist-3123456789abcdef", ".dphist-notes", ".dphist-4123456789abcdef",
        )
    )  # fmt: skip
    for folder in (ours, unmarked, locked, near, broken):
        folder.mkdir()
        (folder / "data").write_text("42")
    marked_file.write_bytes(MARK)
    for folder in (ours, near):
        (folder / LOCK).write_bytes(MARK)
    (broken / LOCK).write_text("")
    held = hold(locked)
    try:
        write_release(TABLE, {}, target_of(tmp_path / "a.csv"), force=False)
    finally:
        os.close(held)
    stays = {path.name for path in (unmarked, marked_file, locked, near, broken)}
    assert names(tmp_path) == {"a.csv", "a.csv.certificate.json", *stays}
    assert all((tmp_path / name / "data").read_text() == "42" for name in stays - {marked_file.name})
    # As after the end of its process.
    sweep(tmp_path)
    assert not locked.exists()


def test_a_folder_in_use_is_never_removed(tmp_path: Path) -> None:
    """While other threads sweep without end."""
    stop = threading.Event()

    def sweeping() -> None:
        while not stop.is_set():
            sweep(tmp_path)

    def working(n: int) -> bool:
        with workplace(tmp_path) as work:
            (work / "data").write_text(str(n))
            return (work / "data").read_text() == str(n)

    with ThreadPoolExecutor(6) as pool:
        sweepers = [pool.submit(sweeping) for _ in range(2)]
        try:
            assert all(pool.map(working, range(200)))
        finally:
            stop.set()
        for sweeper in sweepers:
            sweeper.result()
    assert names(tmp_path) == set()


def test_writers_with_force_never_mix_their_files(tmp_path: Path) -> None:
    target, start = target_of(tmp_path / "a.csv"), threading.Barrier(4)

    def write(n: int) -> None:
        start.wait()
        for turn in range(25):
            write_release(pa.table({"item": [n], "count": [float(turn)]}), {"n": n}, target, force=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert read_release(tmp_path / "a.csv").problems == ()
    assert names(tmp_path) == {"a.csv", "a.csv.certificate.json"}


def test_data_without_a_certificate_is_reported_as_interrupted(tmp_path: Path) -> None:
    write_release(TABLE, {}, target_of(tmp_path / "a.csv"), force=False)
    (tmp_path / "a.csv.certificate.json").unlink()
    verification = dphist.verify(tmp_path / "a.csv")
    assert not verification.verified
    assert "writing it was interrupted" in str(verification)
    write_release(TABLE, {}, target_of(tmp_path / "a.csv"), force=True)
    assert read_release(tmp_path / "a.csv").problems == ()


INTERRUPTED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE release SET count = 7")
connection.execute("CREATE TABLE more (text)")
connection.executemany("INSERT INTO more VALUES (?)", [("x" * 1000,)] * 5000)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("decoded_here")
def test_a_killed_write_to_a_database_is_undone(tmp_path: Path) -> None:
    """By the next release; a reader reports it, because it may not write."""
    target = target_of(tmp_path / "a.sqlite")
    write_release(TABLE, {}, target, force=False)
    subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path / "a.sqlite")], check=False)
    assert names(tmp_path) == {"a.sqlite", "a.sqlite-journal"}
    (problem,) = read_release(tmp_path / "a.sqlite").problems
    assert "a write to it was interrupted" in problem
    check_target(target, force=True)
    assert read_release(tmp_path / "a.sqlite").problems == ()
    write_release(TABLE, {}, target, force=True)
    assert names(tmp_path) == {"a.sqlite"}


LIMITED = """
import resource, sys
from dphist.errors import LedgerError
from dphist.ledger import Ledger
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    Ledger.init(sys.argv[1], "log", epsilon=1, delta=1e-6)
except LedgerError as error:
    sys.exit(str(error))
"""


def test_a_ledger_that_cannot_be_created_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "a.ledger")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"the ledger {tmp_path / 'a.ledger'} cannot be ")
    assert ".dphist-" not in done.stderr
    assert names(tmp_path) == set()


def test_a_new_ledger_with_the_second_name_of_a_killed_process(tmp_path: Path) -> None:
    """The leftover name is removed; another second name is refused."""
    pytest.importorskip("fcntl")
    Ledger.init(tmp_path / "a.ledger", "log", epsilon=1, delta=1e-6)
    leftover = tmp_path / ".dphist-0123456789abcdef"
    leftover.mkdir()
    (leftover / LOCK).write_bytes(MARK)
    os.link(tmp_path / "a.ledger", leftover / "a.ledger")
    assert list(Ledger.open(tmp_path / "a.ledger").accounts().datasets) == ["log"]
    assert names(tmp_path) == {"a.ledger"}
    os.link(tmp_path / "a.ledger", tmp_path / "b.ledger")
    with pytest.raises(LedgerError, match="has a second name"):
        Ledger.open(tmp_path / "a.ledger")
