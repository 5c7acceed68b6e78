"""Damaged, forged, replaced, locked and unwritable ledgers."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphist.errors import LedgerError
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.ledger.store import digest
from dphist.publishing import LOCK, MARK
from ledger_data import COLUMNS, ENTRIES, noticed, tamper, whole_ledger
from release_commands import names
from scheduling import crossed

SUM = SumComposer()
INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.ledger"
    place.write_bytes(whole_ledger())
    return place


def test_a_valid_ledger_is_accepted(path: Path) -> None:
    tamper(path)
    accounts = Ledger.open(path).accounts()
    assert accounts.chain.number == ENTRIES
    assert [len(account.bookings) for account in accounts.datasets.values()] == [1, 1]


@pytest.mark.parametrize("statement", [
    "UPDATE entries SET body = body WHERE number = 4",
    "DELETE FROM entries WHERE number = 6",
    "INSERT OR REPLACE INTO entries VALUES (6, 'booking', 'log', '', '{}', '', '')",
    "INSERT INTO entries VALUES (9, 'booking', 'log', '', '{}', '', '')",
    "INSERT INTO entries VALUES (NULL, 'booking', 'log', '', '{}', '', '')",
])  # fmt: skip
def test_rows_are_only_appended(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)


VALUES = ["''", "{0} || ' '", "CAST({0} AS BLOB)", "upper({0}) || '0'", "x'ff'", "7"]


@pytest.mark.parametrize(("number", "column", "value"), crossed(range(1, ENTRIES + 1), COLUMNS[1:], VALUES))
def test_every_changed_field_is_noticed(path: Path, number: int, column: str, value: str) -> None:
    if (number, column, value) == (1, "dataset", "''"):
        return  # no change
    tamper(path, f"UPDATE entries SET {column} = {value.format(column)} WHERE number = {number}")
    assert f"entry {number} was changed" in noticed(path)


@given(st.integers(1, ENTRIES), st.sampled_from(COLUMNS[1:]), st.integers(0, 10**6), st.integers(1, 255))
def test_every_changed_byte_of_a_field_is_noticed(number: int, column: str, place: int, change: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(whole_ledger())
        with closing(sqlite3.connect(path)) as connection:
            query = f"SELECT CAST({column} AS BLOB) FROM entries WHERE number = ?"
            cell = bytearray(connection.execute(query, (number,)).fetchone()[0])
        if not cell:
            return
        cell[place % len(cell)] ^= change
        tamper(
            path, f"UPDATE entries SET {column} = CAST(? AS TEXT) WHERE number = {number}", values=(bytes(cell),)
        )
        assert f"entry {number} was changed" in noticed(path)


REMOVED = "DELETE FROM entries WHERE number = {0}"
MOVED = "UPDATE entries SET number = {1} WHERE number = {0}"
COPIED = (
    "INSERT INTO entries SELECT {1}, kind, dataset, created, body, previous, hash FROM entries WHERE number = {0}"
)
TAMPERED = {
    "removed": ([REMOVED.format(4)], "entry 4 is missing"),
    "the first removed": ([REMOVED.format(1)], "entry 1 is missing"),
    "removed and closed up": (
        [REMOVED.format(4), MOVED.format(5, 4), MOVED.format(6, 5)], "entry 4 was changed, or one before it"),
    "swapped": (
        [MOVED.format(4, 99), MOVED.format(5, 4), MOVED.format(99, 5)], "entry 4 was changed, or one before it"),
    "renumbered": ([MOVED.format(1, 0)], "entry 0 is out of place"),
    "added with a gap": (
        [COPIED.format(6, 8)],
        "entry 7 is missing"),
    "repeated": (
        [COPIED.format(6, 7)],
        "entry 7 was changed, or one before it"),
    "all removed": (["DELETE FROM entries"], "it has no dataset"),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERED)
def test_removed_moved_and_added_entries_are_noticed(path: Path, name: str) -> None:
    statements, message = TAMPERED[name]
    tamper(path, *statements)
    assert message in noticed(path)


def test_a_changed_entry_with_a_valid_hash_breaks_the_next_one(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        row = connection.execute("SELECT * FROM entries WHERE number = 4").fetchone()
    body = row[4].replace('"epsilon":1.0', '"epsilon":0.1')
    assert body != row[4]
    number, kind, dataset, created, _, previous, _ = row
    new = digest(number, kind, dataset, created, body, previous)
    tamper(path, "UPDATE entries SET body = ?, hash = ? WHERE number = 4", values=(body, new))
    assert "entry 5 was changed, or one before it" in noticed(path)


@pytest.mark.parametrize(("kind", "dataset", "body"), [
    ("booking", "log", '{"delta":1e-6,"document":{},"epsilon":-1.0,"profile":null}'),
    ("booking", "log", '{"delta":1e-6,"document":{},"epsilon":NaN,"profile":null}'),
    ("booking", "log", '{"delta":1e-6,"document":{},"epsilon":1.0,"more":1,"profile":null}'),
    ("booking", "log", '{"delta":1e-6,"document":{},"epsilon":true,"profile":null}'),
    ("booking", "nowhere", '{"delta":1e-6,"document":{},"epsilon":1.0,"profile":null}'),
    ("booking", "log", "[" * 100_000),
    ("settlement", "log", '{"address":"","booking":4,"sha256":""}'),
    ("settlement", "log", '{"address":"","booking":5,"sha256":""}'),
    ("dataset", "log", '{"accounting":"sum","delta":0.5,"epsilon":100.0}'),
    ("dataset", "more", '{"accounting":"none","delta":0.5,"epsilon":100.0}'),
    ("ledger", "", '{"format":"dphist-ledger-1","id":"00000000000000000000000000000000"}'),
    ("ledger", "", "7"),
])  # fmt: skip
def test_invalid_entries_with_valid_hashes_are_refused(path: Path, kind: str, dataset: str, body: str) -> None:
    last = Ledger.open(path).accounts().chain.hash
    row = (ENTRIES + 1, kind, dataset, "", body, last)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(INSERT, (*row, digest(*row)))
        connection.commit()
    assert f"entry {ENTRIES + 1} is not valid" in noticed(path)


def test_missing_last_entries_are_found_only_by_a_receipt(path: Path) -> None:
    """The documented limit: the rest of the chain is valid."""
    head = Ledger.open(path).accounts().chain.hash
    used = Ledger.open(path)
    tamper(path, REMOVED.format(6), REMOVED.format(5))
    assert len(Ledger.open(path).account("orders").bookings) == 0
    with pytest.raises(LedgerError, match="entries are missing, or it is another ledger"):
        Ledger.open(path, expect=head)
    with pytest.raises(LedgerError, match="entries it had a moment ago are missing"):
        used.book("log", Spend(0.1, 1e-6), SUM)


def test_a_ledger_that_is_replaced_or_cut_during_a_booking(path: Path) -> None:
    class Acting(SumComposer):
        def __init__(self, act: Callable[[], object]) -> None:
            self._act = act

        def total_delta(self, spends: Any, epsilon: float) -> float:
            self._act()
            return super().total_delta(spends, epsilon)

    with pytest.raises(LedgerError, match="entries it had a moment ago are missing"):
        Ledger.open(path).book("log", Spend(0.1, 1e-6), Acting(lambda: tamper(path, REMOVED.format(6))))
    other = path.with_name("other")
    Ledger.init(other, "log", epsilon=800, delta=0.5, accounting="sum")
    with pytest.raises(LedgerError, match="entries it had a moment ago are missing"):
        Ledger.open(path).book("log", Spend(0.1, 1e-6), Acting(lambda: os.replace(other, path)))


def booked_while_replaced(path: Path, before: bool) -> None:
    def replace() -> None:
        shutil.copy(path, path.with_name("copy"))
        os.replace(path.with_name("copy"), path)

    ledger = Ledger.open(path)
    with ledger._writing(ledger.accounts()) as page:
        if before:
            replace()
        page.book("log", Spend(0.1, 1e-6), SumComposer(), None, None)
        if not before:
            replace()


@pytest.mark.parametrize("before", [True, False])
def test_a_file_that_is_replaced_while_it_is_written(path: Path, before: bool) -> None:
    with pytest.raises(LedgerError, match="was replaced while in use"):
        booked_while_replaced(path, before)


@pytest.mark.parametrize("statement", [
    "DROP TRIGGER entries_stay",
    "CREATE TABLE more(x)",
    "CREATE VIEW more AS SELECT 1",
    "CREATE TRIGGER more AFTER INSERT ON entries BEGIN SELECT 1; END",
    "ALTER TABLE entries ADD COLUMN more",
    "ALTER TABLE entries RENAME TO more",
])  # fmt: skip
def test_changed_tables_are_noticed(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    assert "is damaged: its tables were changed" in noticed(path)


def test_flipped_bytes_are_noticed_or_change_nothing(tmp_path: Path) -> None:
    place, whole = tmp_path / "a", whole_ledger()
    place.write_bytes(whole)
    before = Ledger.open(place).accounts()
    found, where = 0, random.Random(7)
    for _ in range(200):
        position = where.randrange(len(whole))
        place.write_bytes(
            whole[:position] + bytes([whole[position] ^ where.randrange(1, 256)]) + whole[position + 1 :]
        )
        try:
            assert Ledger.open(place).accounts() == before
        except LedgerError:
            found += 1
    # Most of the file is unused.
    assert found > 20


def test_lost_and_emptied_pages_are_noticed(tmp_path: Path) -> None:
    place = tmp_path / "a"
    ledger = Ledger.init(place, "log", epsilon=800, delta=0.5, accounting="sum")
    for number in range(30):
        ledger.book("log", Spend(0.1, 1e-6, None, {"text": "x" * 500, "number": number}), SUM)
    whole = place.read_bytes()
    page = 4096
    assert len(whole) > 5 * page
    for start in range(0, len(whole), page):
        place.write_bytes(whole[:start] + bytes(page) + whole[start + page :])
        assert "a" in noticed(place)
        if start:
            place.write_bytes(whole[:start])
            assert "damaged" in noticed(place)


CONTENTS: dict[str, tuple[bytes, str]] = {
    "text": (b"user,item\n1,tea\n", "cannot be read: it is not a SQLite file"),
    "long": (os.urandom(10_000), "cannot be read: it is not a SQLite file"),
    "head": (b"SQLite format 3\0", "cannot be read: it is not a SQLite file"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_other_files_are_refused_and_not_changed(tmp_path: Path, name: str) -> None:
    place, (content, message) = tmp_path / "a", CONTENTS[name]
    place.write_bytes(content)
    assert message in noticed(place)
    assert place.read_bytes() == content


def test_sqlite_files_of_other_programs_and_other_versions(path: Path, tmp_path: Path) -> None:
    place = tmp_path / "other"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("CREATE TABLE entries(number INTEGER PRIMARY KEY)")
    assert "is a SQLite file of another program, not a ledger" in noticed(place)
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("DROP TABLE entries")
    assert "is a SQLite file of another program, not a ledger" in noticed(place)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    assert "has format 2, but this version of dphist reads 1" in noticed(path)


def test_missing_ledgers_links_and_folders(path: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    messages = {
        "missing": "there is no ledger {}: create it with dphist ledger init",
        "no/folder": "there is no ledger {}: create it with dphist ledger init",
        "empty": "the ledger {} is empty: create it with dphist ledger init",
        "folder": "the ledger {} cannot be used: it is a folder",
        "link": "the ledger {} cannot be used: it is a link; name the file itself",
        "broken": "the ledger {} cannot be used: it is a link; name the file itself",
        "pipe": "the ledger {} cannot be used: it is not a file",
        "a.ledger/inside": "the ledger {} cannot be opened: Not a directory",
    }
    for name, message in messages.items():
        with pytest.raises(LedgerError) as refused:
            Ledger.open(tmp_path / name)
        assert str(refused.value) == message.format(tmp_path / name)
    # Reading never creates a file, and an empty file can become a ledger.
    assert not (tmp_path / "missing").exists()
    Ledger.init(tmp_path / "empty", "log", epsilon=1, delta=1e-6)
    with pytest.raises(LedgerError, match="cannot be made: there is no folder"):
        Ledger.init(tmp_path / "no" / "folder", "log", epsilon=1, delta=1e-6)
    os.link(path, tmp_path / "second")
    assert "has a second name (a hard link): remove that name first" in noticed(path)


def test_a_removed_ledger_is_not_created_again(path: Path) -> None:
    ledger = Ledger.open(path)
    path.unlink()
    with pytest.raises(LedgerError, match="there is no ledger"):
        ledger.book("log", Spend(0.1, 1e-6), SUM)
    assert not path.exists()


@pytest.mark.parametrize("lock", ["BEGIN EXCLUSIVE", "BEGIN IMMEDIATE"])
def test_a_locked_ledger(path: Path, lock: str) -> None:
    ledger = Ledger.open(path, wait_seconds=0.1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute(lock)
        with pytest.raises(LedgerError) as refused:
            ledger.book("log", Spend(0.1, 1e-6), SUM)
    assert str(refused.value) == (
        f"the ledger {path} is locked by another process (waited 0.1 seconds): try again later"
    )
    assert ledger.book("log", Spend(0.1, 1e-6), SUM).number == ENTRIES + 1


UNPRIVILEGED = """
import os, sys
from dphist.errors import LedgerError
from dphist.ledger import Ledger, Spend, SumComposer
os.umask(0)
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
path = sys.argv[1]
def attempt(what):
    try:
        print(what())
    except LedgerError as error:
        print(error)
attempt(lambda: len(Ledger.open(path).account("log").bookings))
attempt(lambda: Ledger.open(path).book("log", Spend(0.1, 1e-6), SumComposer()).number)
attempt(lambda: Ledger.init(path + ".new", "log", epsilon=1, delta=1e-6).path)
"""


@pytest.mark.skipif(os.name != "posix", reason="file permissions")
@pytest.mark.parametrize(("file", "folder", "messages"), [
    (0o444, 0o555, ["1", "the ledger {} cannot be written: the file or its folder is read-only",
                    "the ledger {}.new cannot be made: Permission denied"]),
    pytest.param(0o666, 0o555, ["1", "the ledger {} cannot be written: the file or its folder is read-only",
                                "the ledger {}.new cannot be made: Permission denied"], marks=pytest.mark.slow),
    (0o000, 0o777, ["the ledger {} cannot be opened: check the permissions of the file and its folder"] * 2),
])  # fmt: skip
def test_files_and_folders_without_permission(file: int, folder: int, messages: list[str]) -> None:
    # Outside of the test's folder, which other users cannot enter.
    place = Path(tempfile.mkdtemp())
    path = place / "a.ledger"
    try:
        path.write_bytes(whole_ledger())
        path.chmod(file)
        place.chmod(folder)
        done = subprocess.run(
            [sys.executable, "-c", UNPRIVILEGED, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[: len(messages)] == [text.format(path) for text in messages]
    finally:
        place.chmod(0o700)
        shutil.rmtree(place)


FULL = """
import resource, sys
from dphist.errors import LedgerError
from dphist.ledger import Ledger, Spend, SumComposer
ledger = Ledger.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for number in range(100):
    try:
        ledger.book("log", Spend(0.001, 1e-9, None, {"text": "x" * 1000}), SumComposer())
    except LedgerError as error:
        print(number, error)
        break
"""


def test_a_full_disk(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number, _, text = done.stdout.partition(" ")
    assert text.rstrip() in (
        f"the ledger {path} cannot be written: the disk is full",
        f"the ledger {path} cannot be used: the disk reports an input/output error",
    )
    assert len(Ledger.open(path).account("log").bookings) == 1 + int(number) > 1
    Ledger.open(path).book("log", Spend(0.1, 1e-6), SUM)


def test_a_relative_path_with_special_characters(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    strange = path.parent / "a?b%20#c ü.ledger"
    os.rename(path, strange)
    assert Ledger.open(strange.name).book("log", Spend(0.1, 1e-6), SUM).number == ENTRIES + 1
    assert {file.name for file in path.parent.iterdir()} == {strange.name}


def test_many_threads_create_one_ledger(tmp_path: Path) -> None:
    datasets = [f"dataset {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Ledger.init(tmp_path / "a", name, epsilon=1, delta=1e-6), datasets))
    assert sorted(Ledger.open(tmp_path / "a").accounts().datasets) == datasets


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
