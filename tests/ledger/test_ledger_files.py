"""Files that are no ledger, and ledgers that are locked or cannot be written."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from dphist.errors import LedgerError
from dphist.ledger import Ledger, Spend, SumComposer
from ledger_data import ENTRIES, noticed, whole_ledger

SUM = SumComposer()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.ledger"
    place.write_bytes(whole_ledger())
    return place


CONTENTS: dict[str, tuple[bytes, str]] = {
    "text": (b"user,item\n1,tea\n", "is not a ledger: it is not a SQLite file"),
    "long": (os.urandom(10_000), "is not a ledger: it is not a SQLite file"),
    "head": (b"SQLite format 3\0", "is not a ledger: it is not a SQLite file"),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_files_that_are_no_ledger_are_left_as_they_are(tmp_path: Path, name: str) -> None:
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


def test_places_where_no_ledger_is(path: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    messages = {
        "missing": "there is no ledger {}: make it with dphist ledger init",
        "no/folder": "there is no ledger {}: make it with dphist ledger init",
        "empty": "the ledger {} is empty: make it with dphist ledger init",
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
    # Reading never makes a file, and what was not finished can be.
    assert not (tmp_path / "missing").exists()
    Ledger.init(tmp_path / "empty", "log", epsilon=1, delta=1e-6)
    with pytest.raises(LedgerError, match="cannot be made: there is no folder"):
        Ledger.init(tmp_path / "no" / "folder", "log", epsilon=1, delta=1e-6)
    os.link(path, tmp_path / "second")
    assert "has a second name (a hard link): remove that name first" in noticed(path)


def test_a_ledger_that_vanishes_is_not_made_again(path: Path) -> None:
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


@pytest.mark.skipif(os.name != "posix", reason="rights of files")
@pytest.mark.parametrize(("file", "folder", "said"), [
    (0o444, 0o555, ["1", "the ledger {} cannot be written: the file or its folder is read-only",
                    "the ledger {}.new cannot be made: Permission denied"]),
    (0o666, 0o555, ["1", "the ledger {} cannot be written: the file or its folder is read-only",
                    "the ledger {}.new cannot be made: Permission denied"]),
    (0o000, 0o777, ["the ledger {} cannot be opened: check the permissions of the file and its folder"] * 2),
])  # fmt: skip
def test_files_and_folders_that_may_not_be_written(file: int, folder: int, said: list[str]) -> None:
    # Not beneath the folder of the test, which other users may not enter.
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
        assert done.stdout.splitlines()[: len(said)] == [text.format(path) for text in said]
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
    # What was booked before is there, and what could not be booked is not.
    assert len(Ledger.open(path).account("log").bookings) == 1 + int(number) > 1
    Ledger.open(path).book("log", Spend(0.1, 1e-6), SUM)


def test_the_folder_of_a_ledger_is_not_the_working_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    strange = path.parent / "a?b%20#c ü.ledger"
    os.rename(path, strange)
    assert Ledger.open(strange.name).book("log", Spend(0.1, 1e-6), SUM).number == ENTRIES + 1
    assert {one.name for one in path.parent.iterdir()} == {strange.name}


def test_several_that_make_the_same_ledger_make_one(tmp_path: Path) -> None:
    names = [f"dataset {number}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Ledger.init(tmp_path / "a", name, epsilon=1, delta=1e-6), names))
    assert sorted(Ledger.open(tmp_path / "a").accounts().datasets) == names
