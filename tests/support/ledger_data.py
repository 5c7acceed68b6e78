"""A small ledger that is whole, and how to damage it."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dphist.errors import LedgerError
from dphist.ledger import Ledger, Spend, SumComposer, store

COLUMNS = ("number", "kind", "dataset", "created", "body", "previous", "hash")
ENTRIES = 6


@cache
def whole_ledger() -> bytes:
    """Two datasets, two bookings and a settlement."""
    with tempfile.TemporaryDirectory() as folder:
        path, composer = Path(folder) / "whole", SumComposer()
        ledger = Ledger.init(path, "log", epsilon=3, delta=1e-5, accounting="sum")
        Ledger.init(path, "orders", epsilon=1, delta=1e-6, accounting="sum")
        document = {"request": {"user": "user", "item": ["query"]}}
        first = ledger.book("log", Spend(1, 1e-6, {"p": 1}, document), composer)
        ledger.book("orders", Spend(0.5, 1e-7), composer)
        ledger.settle(first, sha256="ab" * 32, address="queries.parquet")
        return path.read_bytes()


def tamper(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    """Change rows as someone would who can write the file, and put the triggers back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for name in store._TRIGGERS:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement, values if "?" in statement else ())
        for name in store._TRIGGERS:
            connection.execute(store._SCHEMA[name])
        connection.execute("COMMIT")


def noticed(path: Path) -> str:
    """The sentence with which the ledger is refused, by all that would use it."""
    said = set()
    uses: list[Callable[[], object]] = [
        lambda: Ledger.open(path),
        lambda: Ledger.init(path, "new", epsilon=1, delta=1e-6),
    ]
    for use in uses:
        with pytest.raises(LedgerError) as refused:
            use()
        said.add(str(refused.value))
    assert len(said) == 1, said
    text = said.pop()
    assert str(path) in text
    assert "\n" not in text
    return text
