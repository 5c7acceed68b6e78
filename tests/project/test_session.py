"""`dphist.Session`: several releases under one total, in a temporary ledger or in a file."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dphist
from dphist.errors import InvalidParameter, LedgerError, OverBudget
from dphist.ledger import Ledger
from release_data import events

COUNTS = {"tea": 900, "milk": 700, "bread": 500}
ASKED: dict[str, Any] = {"item": "item", "epsilon": 1.0, "delta": 1e-7, "max_items_per_user": 2}
TOTAL: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-6}


def session(**more: Any) -> dphist.Session:
    return dphist.Session(events(COUNTS), user="user", **{**TOTAL, **more})


def test_releases_until_the_total_is_spent() -> None:
    made = session()
    assert repr(made) == (
        "Session with a total of epsilon 3 and delta 1e-06; remaining: all of epsilon 3.0 and delta 1e-06"
    )
    asked = {**ASKED, "mechanism": "gaussian"}
    first = made.release(**asked)
    assert sorted(first.items.to_pylist()) == ["bread", "milk", "tea"]
    assert first.receipt is not None
    assert made.remaining.more == 7
    assert made.remaining.largest_epsilon > 1.0
    assert str(made.remaining).startswith("about 7 more releases like the last one, or one with epsilon up to 2.")
    for _ in range(7):
        made.release(**asked)
    assert made.remaining.more == 0
    with pytest.raises(OverBudget, match="remaining: "):
        made.release(**asked)
    assert len(made.account.bookings) == 8


def test_one_release_for_the_whole_total() -> None:
    made = session(epsilon=1.0)
    made.release(**{**ASKED, "delta": 1e-6})
    assert str(made.remaining) == "nothing"
    assert made.account.accounting == "sum"
    with pytest.raises(OverBudget):
        made.release(**{**ASKED, "epsilon": 0.01})


def test_over_budget_before_any_event_is_read() -> None:
    table, read = events(COUNTS), []

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in table.to_batches():
            read.append(batch.num_rows)
            yield batch

    reader = pa.RecordBatchReader.from_batches(table.schema, batches())
    made = dphist.Session(reader, user="user", **TOTAL)
    with pytest.raises(OverBudget):
        made.release(**{**ASKED, "epsilon": 4.0})
    assert read == []
    # The same reader is read once a release fits.
    assert len(made.release(**ASKED)) == 3
    assert sum(read) == table.num_rows


def test_repr() -> None:
    made = session(accounting="sum")
    made.release(**ASKED)
    made.release(**{**ASKED, "item": "word=item", "epsilon": 0.5})
    lines = repr(made).split("\n")
    assert lines[0] == (
        "Session with a total of epsilon 3 and delta 1e-06; remaining: about 3 more releases like the last one, "
        "or one with epsilon up to 1.5"
    )
    assert [line.split()[0] for line in lines[2:]] == ["item", "item", "word=item"]
    html = made._repr_html_()
    assert html.startswith("<table><caption>Session with a total of epsilon 3")
    assert "<td>word=item</td><td>0.5</td><td>1e-07</td>" in html


def test_a_temporary_ledger_is_removed_with_its_session_but_not_by_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = session(), session()
    folders = [Path(made._path).parent for made in (first, second)]
    assert all(folder.is_dir() for folder in folders)
    del first
    gc.collect()
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    del second
    gc.collect()
    assert [folder.exists() for folder in folders] == [False, True]
    shutil.rmtree(folders[1])


def test_a_session_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place: dict[str, Any] = {"ledger": "budget.ledger", "dataset": "log", "accounting": "sum"}
    session(**place).release(**ASKED, output="a.csv")
    # A notebook runs the same line again: total and bookings are still there.
    again = session(**place)
    assert again.remaining.more == 2
    assert "a.csv" in repr(again)
    existing = dphist.Session(events(COUNTS), user="user", ledger="budget.ledger", dataset="log")
    existing.release(**{**ASKED, "epsilon": 2.0})
    assert again.remaining.more == 0
    with pytest.raises(
        InvalidParameter, match=r"has a total of epsilon 3\.0 and delta 1e-06, which cannot be changed"
    ):
        session(**place, epsilon=9.0)
    account = Ledger.open("budget.ledger").account("log")
    assert [booking.written is not None for booking in account.bookings] == [True, False]


BAD = [
    ({"epsilon": None, "delta": None}, InvalidParameter, "needs the total epsilon and delta, or a ledger"),
    ({"delta": None}, InvalidParameter, "epsilon and delta go together"),
    ({"ledger": "a"}, InvalidParameter, "ledger and dataset go together"),
    (
        {"epsilon": None, "delta": None, "ledger": "none", "dataset": "log"},
        LedgerError,
        r"there is no ledger /.*/none",
    ),
    ({"epsilon": -1.0}, InvalidParameter, "epsilon must be"),
    ({"accounting": "moments"}, InvalidParameter, "accounting must be 'auto' or"),
]


@pytest.mark.parametrize(("more", "kind", "message"), BAD)
def test_bad_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], kind: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message):
        session(**more)


def test_options_of_the_session() -> None:
    made = session(where="item <> 'milk'")
    assert sorted(made.release(**ASKED).items.to_pylist()) == ["bread", "tea"]
    for name in ("ledger", "dataset", "user", "input", "where"):
        with pytest.raises(InvalidParameter, match=f"{name} is fixed for the session"):
            made.release(**ASKED, **{name: "x"})
    with pytest.raises(InvalidParameter, match=r"^seed cannot be used with ledger"):
        made.release(**ASKED, seed=1)
    assert len(made.account.bookings) == 1


def test_the_ledger_stays_the_same_file_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    made = session(ledger="budget.ledger", dataset="log")
    # Another ledger with the same name, with all of its budget left.
    Ledger.init("other/budget.ledger", "log", **TOTAL)
    monkeypatch.chdir(tmp_path / "other")
    made.release(**ASKED)
    assert len(made.account.bookings) == 1
    assert len(Ledger.open(tmp_path / "budget.ledger").account("log").bookings) == 1
    assert len(Ledger.open("budget.ledger").account("log").bookings) == 0


def test_accounting(tmp_path: Path) -> None:
    place: dict[str, Any] = {"ledger": tmp_path / "ledger", "dataset": "log"}
    for more in ({}, place):
        with pytest.raises(InvalidParameter, match=r"accounting must be 'auto' .* not 'pld'"):
            session(accounting="pld", **more)
    assert not place["ledger"].exists()
    session(**place, accounting="auto").release(**ASKED)
    chosen = session(**place, accounting="auto").account.accounting
    assert session(**place).account.accounting == session(**place, accounting=chosen).account.accounting == chosen
    other = {"zcdp": "sum", "sum": "zcdp"}[chosen]
    for total in (TOTAL, {"epsilon": None, "delta": None}):
        with pytest.raises(InvalidParameter, match=f"has the accounting '{chosen}', which cannot be changed"):
            session(**{**place, **total}, accounting=other)
