"""Ledgers that were tampered with, or that a disk has damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dphist.errors import LedgerError
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.ledger.accounts import canonical
from dphist.ledger.store import digest
from ledger_data import COLUMNS, ENTRIES, noticed, tamper, whole_ledger
from scheduling import crossed

SUM = SumComposer()
INSERT = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "a.ledger"
    place.write_bytes(whole_ledger())
    return place


def test_a_ledger_that_is_whole_is_taken(path: Path) -> None:
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
        return  # as it was
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


def test_a_body_with_a_hash_that_fits_breaks_what_follows(path: Path) -> None:
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
    ("booking", "nowhere", '{"delta":1e-6,"document":{},"epsilon":1.0,"profile":null}'),
    ("booking", "log", "[" * 100_000),
    ("settlement", "log", '{"address":"","booking":4,"sha256":""}'),
    ("settlement", "log", '{"address":"","booking":5,"sha256":""}'),
    ("dataset", "log", '{"accounting":"sum","delta":0.5,"epsilon":100.0}'),
    ("dataset", "more", '{"accounting":"none","delta":0.5,"epsilon":100.0}'),
    ("ledger", "", '{"format":"dphist-ledger-1","id":"00000000000000000000000000000000"}'),
    ("ledger", "", "7"),
])  # fmt: skip
def test_entries_that_make_no_sense_are_refused_even_with_a_hash_that_fits(
    path: Path, kind: str, dataset: str, body: str
) -> None:
    last = Ledger.open(path).accounts().chain.hash
    row = (ENTRIES + 1, kind, dataset, "", body, last)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(INSERT, (*row, digest(*row)))
        connection.commit()
    assert f"entry {ENTRIES + 1} is not valid" in noticed(path)


def test_a_cut_tail_is_found_by_a_receipt_alone(path: Path) -> None:
    """The limit that the documentation states: the chain that is left is a chain."""
    head = Ledger.open(path).accounts().chain.hash
    used = Ledger.open(path)
    tamper(path, REMOVED.format(6), REMOVED.format(5))
    assert len(Ledger.open(path).account("orders").bookings) == 0
    with pytest.raises(LedgerError, match="entries are missing, or it is another ledger"):
        Ledger.open(path, expect=head)
    with pytest.raises(LedgerError, match="entries it had a moment ago are missing"):
        used.book("log", Spend(0.1, 1e-6), SUM)


def test_a_ledger_that_is_replaced_or_cut_within_a_booking_is_noticed(path: Path) -> None:
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
def test_a_file_that_loses_its_name_while_it_is_written(path: Path, before: bool) -> None:
    """What is appended to it would be lost with it."""
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
    for _ in range(400):
        position = where.randrange(len(whole))
        place.write_bytes(
            whole[:position] + bytes([whole[position] ^ where.randrange(1, 256)]) + whole[position + 1 :]
        )
        try:
            assert Ledger.open(place).accounts() == before
        except LedgerError:
            found += 1
    # Most of the file is room that nothing is in yet.
    assert found > 40


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


def test_ten_thousand_entries_are_checked_within_a_second(tmp_path: Path) -> None:
    place = tmp_path / "big"
    ledger = Ledger.init(place, "log", epsilon=800, delta=0.5, accounting="sum")
    document = {f"key {n}": "a value of some length" for n in range(40)}
    body, last = canonical(Spend(0.01, 1e-9, None, document).to_dict()), ledger.accounts().chain.hash
    with closing(sqlite3.connect(place)) as connection:
        for number in range(3, 10_003):
            row = (number, "booking", "log", "2026-11-15T12:00:00Z", body, last)
            last = digest(*row)
            connection.execute(INSERT, (*row, last))
        connection.commit()

    def seconds() -> float:
        before = time.process_time()
        assert Ledger.open(place, expect=last).path == place
        return time.process_time() - before

    # No check can do with less than twice this. Where it takes an eighth of a second, the machine is slow.
    before = time.process_time()
    for _ in range(5_000):
        assert digest(*row) == last
        json.loads(body)
    least = time.process_time() - before
    # A machine that does other things may need another attempt.
    assert any(seconds() < max(1.0, 8 * least) for _ in range(3))
    assert ledger.book("log", Spend(0.1, 1e-9), SUM).number == 10_003
