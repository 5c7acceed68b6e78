"""Whatever fails on the way: a certificate never stands next to data that it does not describe."""

from __future__ import annotations

import errno
import itertools
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.certificate.reading import read_release
from dphist.certificate.text import seal
from dphist.errors import DphistError, OutputError
from dphist.outputs import write
from dphist.outputs.stores import Store, open_store
from dphist.outputs.target import target_of
from dphist.outputs.write import check_target, write_release
from dphist.publishing import LOCK, MARK, hold, remove_leftovers, work_folder
from exports import certificate_of, export, read_back
from release_commands import names

pytestmark = pytest.mark.usefixtures("decoded_here")
FILES = ["a.parquet", "a.csv", "a.jsonl", "a.arrow"]
BASES = ["a.duckdb", "a.sqlite"]
OLD = pa.table({"item": ["old"], "count": [1.5]})
NEW = pa.table({"item": ["secretcell", None], "count": [2.5, 3.5]})
STORE_METHODS = ("find", "drop", "create", "rows", "commit")


class Fault:
    """Fails before or after one of the calls of the functions that it wraps."""

    def __init__(self, at: int, error: BaseException, late: bool) -> None:
        self.at, self.error, self.late, self.calls = at, error, late, 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*values: Any, **named: Any) -> Any:
            mine = self.calls == self.at
            self.calls += 1
            if mine and not self.late:
                raise self.error
            result = function(*values, **named)
            if mine:
                raise self.error
            return result

        return wrapped


@contextmanager
def faulty(fault: Fault) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("link", "replace", "fsync", "mkdir"):
            patch.setattr(os, name, fault.wrap(getattr(os, name)))
        for name in ("write_rows", "seal", "file_digest", "storable"):
            patch.setattr(write, name, fault.wrap(getattr(write, name)))
        for store in Store.__subclasses__():
            for name in STORE_METHODS:
                patch.setattr(store, name, fault.wrap(getattr(store, name)))
        yield


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def state(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() if path.is_file() else b"folder" for path in folder.iterdir()}


def read(path: Path, table: str | None = None) -> pa.Table | None:
    back = read_back(path, table)
    assert back.problems == ()
    return back.table


def release_in(folder: Path, name: str) -> pa.Table | None:
    """The release in the folder, which holds nothing else."""
    if not any(folder.iterdir()):
        return None
    assert names(folder) == {name, certificate_of(folder / name).name}
    return read(folder / name)


def data_in(folder: Path, name: str) -> list[str] | None:
    """The rows in the folder, if they have no certificate and nothing else is there."""
    if names(folder) != {name}:
        return None
    if name in BASES:
        data = export(folder / name)
        return sorted(
            map(str, pq.read_table(data).to_pylist() if name == "a.duckdb" else data.read_text().split())
        )
    return (folder / name).read_text().split()


def same(first: pa.Table | None, second: pa.Table | None) -> bool:
    if first is None or second is None:
        return first is second
    return bool(first.to_pylist() == second.to_pylist())


def faults_until_success(
    folder: Path, name: str, old: pa.Table | None, make: Callable[[], BaseException], late: bool, force: bool
) -> int:
    target = target_of(folder / name)
    for path in folder.iterdir():
        path.unlink()
    write_release(NEW, {"n": 2}, target, force=False)
    certificate_of(folder / name).unlink()
    allowed = [data_in(folder, name)]
    for path in folder.iterdir():
        path.unlink()
    if old is not None:
        write_release(old, {"n": 1}, target, force=False)
    before, bare = state(folder), 0
    if old is not None:
        certificate_of(folder / name).unlink()
        allowed.append(data_in(folder, name))
    for n in itertools.count():
        for path in folder.iterdir():
            path.unlink()
        for file, content in before.items():
            (folder / file).write_bytes(content)
        fault = Fault(n, make(), late)
        failed: BaseException | None = None
        try:
            with faulty(fault):
                write_release(NEW, {"n": 2}, target, force=force)
        except (DphistError, KeyboardInterrupt, OSError) as error:
            failed = error
        alone = data_in(folder, name)
        if alone is not None:
            # Between the removal of the old certificate and the new one, data are old or new, and whole.
            assert alone in allowed
            assert failed is not None
            bare += 1
            continue
        found = release_in(folder, name)
        if fault.calls <= n:
            assert failed is None
            assert same(found, NEW)
            # The moment was hit, and is short: two names, and folders that are synced.
            assert 1 <= bare <= 5
            return n
        assert same(found, NEW) or (same(found, old) and (name in BASES or state(folder) == before)), n
        if failed is None:
            assert same(found, NEW)
        else:
            assert not isinstance(failed, OSError)
            assert "secretcell" not in str(failed)
    raise AssertionError


FAULTS: dict[str, tuple[bool, Callable[[], BaseException]]] = {
    "before-full": (False, full),
    "behind-interrupt": (True, KeyboardInterrupt),
    "behind-full": (True, full),
    "before-interrupt": (False, KeyboardInterrupt),
}
PLACED: dict[str, tuple[pa.Table | None, bool]] = {
    "fresh": (None, False),
    "replaced": (OLD, True),
    "new": (None, True),
}
QUICK = {
    *itertools.product(["a.csv"], ["fresh", "replaced"], ["before-full", "behind-interrupt"]),
    ("a.sqlite", "fresh", "before-full"),
    *itertools.product(BASES, ["replaced"], ["behind-interrupt"]),
}


@pytest.mark.parametrize(
    ("name", "place", "fault"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
        for case in itertools.product(["a.csv", *BASES], PLACED, FAULTS)
    ],
)
def test_a_failure_at_every_step(tmp_path: Path, name: str, place: str, fault: str) -> None:
    (old, force), (late, error) = PLACED[place], FAULTS[fault]
    assert faults_until_success(tmp_path, name, old, error, late, force) >= 4


@pytest.mark.parametrize("old", [None, OLD], ids=["fresh", "force"])
def test_a_disk_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: pa.Table | None) -> None:
    def refuse(*values: Any, **named: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    assert faults_until_success(tmp_path, "a.csv", old, full, False, old is not None) >= 4
    with pytest.raises(OutputError, match=r"a\.csv already exists"):
        write_release(OLD, {}, target_of(tmp_path / "a.csv"), force=False)
    assert same(release_in(tmp_path, "a.csv"), NEW)


@pytest.mark.parametrize("name", [*FILES, *BASES])
def test_without_force_nothing_is_overwritten(tmp_path: Path, name: str) -> None:
    target = target_of(tmp_path / name)
    check_target(target, force=False, columns=OLD.column_names)
    write_release(OLD, {}, target, force=False)
    before = state(tmp_path)
    for attempt in (
        lambda: check_target(target, force=False),
        lambda: write_release(NEW, {}, target, force=False),
    ):
        with pytest.raises(OutputError, match="already exists"):
            attempt()
    assert state(tmp_path) == before
    check_target(target, force=True)
    write_release(NEW, {}, target, force=True)
    assert same(release_in(tmp_path, name), NEW)
    if name in FILES:
        (tmp_path / name).unlink()
        with pytest.raises(OutputError, match=r"certificate\.json already exists"):
            check_target(target, force=False)


@pytest.mark.parametrize("taken", ["a.csv", "a.csv.certificate.json"])
def test_a_file_that_appears_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    target = target_of(tmp_path / "a.csv")
    real = seal

    def late(*values: Any) -> str:
        (tmp_path / taken).write_text("someone else's")
        return real(*values)

    monkeypatch.setattr(write, "seal", late)
    with pytest.raises(OutputError, match="already exists"):
        write_release(NEW, {}, target, force=False)
    assert state(tmp_path) == {taken: b"someone else's"}


@pytest.mark.parametrize("name", [*FILES, *BASES])
def test_one_of_many_writers_wins(tmp_path: Path, name: str) -> None:
    target, start = target_of(tmp_path / name), threading.Barrier(6)

    def write(n: int) -> bool:
        start.wait()
        try:
            write_release(pa.table({"item": [n], "count": [1.0]}), {"n": n}, target, force=False)
        except OutputError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(write, range(6))) == 1
    assert release_in(tmp_path, name) is not None


@pytest.mark.parametrize("name", BASES)
def test_two_tables_of_one_database(tmp_path: Path, name: str) -> None:
    for table, rows in [("one", OLD), ("two", NEW)]:
        write_release(rows, {"t": table}, target_of(tmp_path / name, table=table), force=False)
    write_release(NEW, {"t": "again"}, target_of(tmp_path / name, table="one"), force=True)
    for table in ("one", "two"):
        assert same(read(tmp_path / name, table), NEW)
    with pytest.raises(OutputError, match="already exists"):
        check_target(target_of(tmp_path / name, table="ONE"), force=False)


def test_sqlite_ignores_the_case_of_ascii_letters_only(tmp_path: Path) -> None:
    """A table with another name for SQLite is neither replaced nor dropped."""
    path = tmp_path / "a.sqlite"
    write_release(OLD, {}, target_of(path, table="straße"), force=False)
    with open_store("sqlite", str(path)) as store:
        assert [store.find(name) for name in ("STRAßE", "strasse", "STRASSE")] == ["table", None, None]
    write_release(NEW, {}, target_of(path, table="strasse"), force=True)
    assert same(read(path, "straße"), OLD)
    # Another case is the same table, so it has the same certificate.
    write_release(NEW, {}, target_of(path, table="STRAßE"), force=True)
    assert names(tmp_path) == {"a.sqlite", *(certificate_of(path, name).name for name in ("straße", "strasse"))}
    assert same(read(path, "straße"), NEW)


@pytest.mark.parametrize("name", BASES)
def test_views_and_locks(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphist.outputs.stores.WAIT_SECONDS", 0.1)
    connection: Any = duckdb.connect(str(tmp_path / name)) if "duck" in name else sqlite3.connect(tmp_path / name)
    connection.execute("CREATE VIEW release AS SELECT 1 AS one")
    if "duck" not in name:
        connection.commit()
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputError, match="locked"):
            write_release(NEW, {}, target_of(tmp_path / name), force=True)
    connection.close()
    with pytest.raises(OutputError, match="is a view"):
        write_release(NEW, {}, target_of(tmp_path / name), force=True)
    assert {path.name for path in tmp_path.iterdir()} == {name}


@pytest.mark.parametrize("name", [*FILES, *BASES])
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_modes(tmp_path: Path, name: str, mask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = os.mkdir

    def noted(path: str, mode: int) -> None:
        seen.append(mode)
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", noted)
    old = os.umask(mask)
    try:
        write_release(NEW, {}, target_of(tmp_path / name), force=False)
    finally:
        os.umask(old)
    assert set(seen) == {0o700}, "unfinished files are closed to others"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    # DuckDB does not let others write its files.
    assert modes <= {0o666 & ~mask, 0o644 & ~mask}
    assert name == "a.duckdb" or name == "a.sqlite" or modes == {0o666 & ~mask}


@pytest.mark.parametrize("name", [*FILES, *BASES])
def test_places_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / f"pipe-{name}")
    cases = {
        tmp_path / "no" / name: "there is no folder",
        tmp_path / "file" / name: "there is no folder",
        tmp_path / name: "it is a folder",
        tmp_path / f"pipe-{name}": "it is not a file",
        tmp_path / f"{'x' * 300}{name}": "File name too long",
    }
    before = sorted(path.name for path in tmp_path.iterdir())
    for path, message in cases.items():
        for attempt in (
            lambda path=path: check_target(target_of(path), force=True),
            lambda path=path: write_release(NEW, {}, target_of(path), force=True),
        ):
            with pytest.raises(OutputError, match=message):
                attempt()
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    for columns in (["a", "a"], ["a", "A"] if name in BASES else ["b", "b"]):
        with pytest.raises(OutputError, match="two columns"):
            check_target(target_of(tmp_path / f"z-{name}"), force=True, columns=columns)


def test_a_folder_that_is_not_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match="is not writable"):
        check_target(target_of(tmp_path / "a.csv"), force=False)


def test_files_hold_only_the_released_rows(tmp_path: Path) -> None:
    whole = pa.table({"item": [f"unreleased{n}" for n in range(100)], "count": [float(n) for n in range(100)]})
    hidden = pa.array([7777777, 8888888], pa.int64())
    nulls = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), hidden.buffers()[1]], 1)
    part = whole.slice(40, 2).append_column("nulls", nulls)
    for name in FILES:
        write_release(part, {}, target_of(tmp_path / name), force=False)
        raw = (tmp_path / name).read_bytes()
        assert b"unreleased39" not in raw
        assert b"unreleased42" not in raw
        for value in (hidden[1:], pa.array([42.0]), pa.array([39.0])):
            assert value.to_numpy().tobytes() not in raw
        assert read_release(str(tmp_path / name)).problems == ()


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
        lambda: write_release(OLD, {}, target, force=force),
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
        write_release(OLD, {}, target_of(tmp_path / "a.csv"), force=False)
    finally:
        os.close(held)
    stays = {path.name for path in (unmarked, marked_file, locked, near, broken)}
    assert names(tmp_path) == {"a.csv", "a.csv.certificate.json", *stays}
    assert all((tmp_path / name / "data").read_text() == "42" for name in stays - {marked_file.name})
    # As after the end of its process.
    remove_leftovers(tmp_path)
    assert not locked.exists()


def test_a_folder_in_use_is_never_removed(tmp_path: Path) -> None:
    """While other threads sweep without end."""
    stop = threading.Event()

    def sweeping() -> None:
        while not stop.is_set():
            remove_leftovers(tmp_path)

    def working(n: int) -> bool:
        with work_folder(tmp_path) as work:
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


def test_data_without_a_certificate_is_not_verified_and_can_be_replaced(tmp_path: Path) -> None:
    write_release(OLD, {}, target_of(tmp_path / "a.csv"), force=False)
    (tmp_path / "a.csv.certificate.json").unlink()
    verification = dphist.verify(tmp_path / "a.csv")
    assert not verification.verified
    assert "there is no certificate a.csv.certificate.json" in str(verification)
    write_release(OLD, {}, target_of(tmp_path / "a.csv"), force=True)
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


def test_a_killed_write_to_a_database_is_undone(tmp_path: Path) -> None:
    """By the next release, or any program that opens the database."""
    target = target_of(tmp_path / "a.sqlite")
    write_release(OLD, {}, target, force=False)
    sealed = certificate_of(tmp_path / "a.sqlite").name
    subprocess.run([sys.executable, "-c", INTERRUPTED, str(tmp_path / "a.sqlite")], check=False)
    assert names(tmp_path) == {"a.sqlite", "a.sqlite-journal", sealed}
    check_target(target, force=True)
    assert same(read(tmp_path / "a.sqlite"), OLD)
    write_release(NEW, {}, target, force=True)
    assert names(tmp_path) == {"a.sqlite", sealed}


@pytest.mark.parametrize("number", [None, errno.ENOSPC], ids=str)
@pytest.mark.parametrize("name", FILES)
def test_the_text_of_a_system_error_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int | None
) -> None:
    """Arrow's errors are OSErrors whose text may quote a value or a path of the data, also beside a number."""
    text = "cannot encode 'secretcell' of /secretpath"

    def fail(*_: object, **__: object) -> None:
        raise OSError(text) if number is None else OSError(number, text, "/secretpath")

    monkeypatch.setattr(write, "write_rows", fail)
    with pytest.raises(OutputError) as refused:
        write_release(NEW, {}, target_of(tmp_path / name), force=False)
    shown = "".join(traceback.format_exception(refused.value))
    assert "secret" not in shown, "the text of the OSError is in the message"
    assert refused.value.__cause__ is None
    assert (os.strerror(number) if number else "writing it failed") in str(refused.value)
