"""The ledger: a spend is booked before noise is drawn, and the total of a dataset is never exceeded."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dphist.errors import InvalidParameter, LedgerError
from dphist.ledger import database
from dphist.ledger.accounts import (
    FORMAT,
    Account,
    Accounts,
    Booking,
    accounts_of,
    alike,
    checked_accounting,
    checked_name,
)
from dphist.ledger.chain import NOTHING, Chain, Damage, Entry, Kind
from dphist.ledger.checkpoint import Checkpoint
from dphist.ledger.composing import Composer, Spend
from dphist.publishing import sweep
from dphist.types import Budget

# After so many attempts that others were faster than, the ledger is kept locked while the spends are composed.
_ATTEMPTS: Final = 3
_HASH: Final = re.compile("[0-9a-f]{64}")
_CUT: Final = "entries that it had a moment ago are missing from it"


@dataclass
class _Page:
    """The end of a ledger in the hands of the only writer."""

    connection: sqlite3.Connection
    accounts: Accounts
    chain: Chain

    def append(self, kind: Kind, dataset: str, body: dict[str, Any]) -> Entry:
        entry = self.chain.following(kind, dataset, body)
        database.append(self.connection, entry.row())
        self.chain = Chain((*self.chain.entries, entry))
        return entry

    def book(self, dataset: str, spend: Spend) -> Booking:
        entry = self.append("booking", dataset, spend.to_dict())
        return Booking(self.accounts.id, dataset, entry.number, entry.hash, entry.created, spend)


class Ledger:
    """A ledger in a file. Every method opens the file, checks it and closes it again.

    What was seen once must still be there the next time: a file that was cut or replaced meanwhile is refused.
    """

    def __init__(self, path: Path, wait_seconds: float) -> None:
        self._path = path
        self._wait = wait_seconds
        self._seen = (0, NOTHING)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        expect: str | None = None,
        checkpoint: Checkpoint | None = None,
        wait_seconds: float = database.WAIT_SECONDS,
    ) -> Ledger:
        """A ledger that is there; all of it is checked.

        `expect` is a hash that must still be in it, `checkpoint` what the ledger must still begin with.
        """
        if expect is not None and not (isinstance(expect, str) and _HASH.fullmatch(expect)):
            raise InvalidParameter(f"expect must be the hash of a receipt, 64 digits, not {expect!r:.80}")
        ledger = cls(database.checked_path(path), wait_seconds)
        found = ledger.accounts()
        if expect is not None and not found.chain.has(expect):
            raise LedgerError(
                f"the ledger {ledger.path} has no entry with the hash {expect}: entries are missing from it, or "
                "it is another ledger"
            )
        if checkpoint is not None:
            found.check_checkpoint(checkpoint, ledger.path)
        return ledger

    def checkpoint(self) -> Checkpoint:
        """What the ledger is now."""
        found, now = self.accounts(), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return Checkpoint(found.id, found.chain.number, found.chain.hash, now)

    @classmethod
    def init(
        cls,
        path: str | os.PathLike[str],
        dataset: str,
        *,
        epsilon: float,
        delta: float,
        accounting: str = "zcdp",
        wait_seconds: float = database.WAIT_SECONDS,
    ) -> Ledger:
        """A dataset and its total, in a new ledger or one that is there. A total is never changed afterwards."""
        total, name = Budget(epsilon, delta), checked_name(dataset)
        body = {"epsilon": total.epsilon, "delta": total.delta, "accounting": checked_accounting(accounting)}
        ledger = cls(database.checked_path(path), wait_seconds)
        if not ledger._made(name, body) and not ledger._begun(name, body):
            with ledger._writing(ledger.accounts()) as page:
                near = next((known for known in page.accounts.datasets if alike(known, name)), None)
                if near is not None:
                    raise LedgerError(f"the ledger {ledger.path} has a dataset {near!r} already")
                page.append("dataset", name, body)
        return ledger

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def accounts(self) -> Accounts:
        """All that the ledger says, from a file that was checked from the first entry to the last."""
        with self._connection() as connection, database.transaction(connection, writing=False):
            database.check_format(connection, self._path)
            database.check_pages(connection, self._path)
            rows = database.all_rows(connection)
        # Out of the transaction, so that nobody waits for it.
        return self._checked(Chain(), rows)

    def account(self, dataset: str) -> Account:
        """All that the ledger says of one dataset."""
        return self.accounts().find(dataset)

    def book(self, dataset: str, spend: Spend, composer: Composer) -> Booking:
        """Book a spend, or raise `OverBudget`.

        *Guarantee*: once this returns, the booking survives a crash of the process and of the machine, and all
        bookings of the dataset together, composed, are within its total. Draw noise after it, never before.
        """
        spend = spend.plain()
        for _ in range(_ATTEMPTS):
            # Composing may take seconds: others can book meanwhile, and then it is done again.
            before = self.accounts()
            before.find(dataset).check_fits(spend, composer)
            with self._writing(before) as page:
                if _unchanged(before.find(dataset), page.accounts.find(dataset)):
                    return page.book(dataset, spend)
        with self._writing(before) as page:
            # Nobody can be faster any more.
            page.accounts.find(dataset).check_fits(spend, composer)
            return page.book(dataset, spend)

    def settle(self, booking: Booking, *, sha256: str, address: str) -> None:
        """Note that the release of a booking was written, and where. What it costs stays the same."""
        body = {"booking": booking.number, "sha256": str(sha256), "address": str(address)}
        with self._writing(self.accounts()) as page:
            found = page.accounts.booking(booking.number, booking.hash)
            if found is None:
                raise LedgerError(f"the ledger {self._path} has no booking {booking.number} with this hash")
            if found.written is not None:
                raise LedgerError(f"booking {booking.number} of the ledger {self._path} is settled already")
            page.append("settlement", found.dataset, body)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        before = database.identity(self._path)
        with database.connected(self._path, self._wait) as connection:
            yield connection
        # What was appended to a file that has lost its name is lost with it.
        if database.identity(self._path) != before:
            raise LedgerError(f"the ledger {self._path} {database.REPLACED}")

    def _made(self, name: str, body: dict[str, Any]) -> bool:
        """Whether there was no file, and is a ledger with this dataset now; killed on the way there is no file."""
        if os.path.lexists(self._path):
            sweep(self._path.parent)  # what an init has left that was killed when its ledger was there
            return False
        with database.aside(self._path) as file:
            made = Ledger(file, self._wait)
            if not made._begun(name, body) or not database.publish(file, self._path):
                return False
        self._seen = made._seen
        return True

    def _begun(self, name: str, body: dict[str, Any]) -> bool:
        """Whether the file was empty, and is a ledger with this dataset now: both at once, or not at all."""
        with self._connection() as connection, database.transaction(connection, writing=True):
            if not database.is_empty(self._path):
                return False
            database.make_tables(connection)
            page = _Page(connection, Accounts(Chain(), "", {}), Chain())
            page.append("ledger", "", {"format": FORMAT, "id": secrets.token_hex(16)})
            page.append("dataset", name, body)
        self._saw(page.chain)
        return True

    @contextmanager
    def _writing(self, before: Accounts) -> Iterator[_Page]:
        """The only right to write, and what the ledger says now; what is appended lasts when this ends.

        `before` was read and checked a moment ago: only what follows it is checked while others wait.
        """
        known = before.chain
        with self._connection() as connection, database.transaction(connection, writing=True):
            database.check_format(connection, self._path)
            last, *more = database.rows_after(connection, known.number - 1) or [()]
            if last != known.entries[-1].row():
                raise LedgerError(f"the ledger {self._path} is damaged: {_CUT}")
            now = self._checked(known, more) if more else before
            page = _Page(connection, now, now.chain)
            yield page
        self._saw(page.chain)

    def _checked(self, known: Chain, rows: list[tuple[Any, ...]]) -> Accounts:
        """The rows as accounts, if they are a whole chain in which all that was seen before still is."""
        number, value = self._seen
        try:
            chain = known.extended(rows)
            if number and (chain.number < number or chain.entries[number - 1].hash != value):
                raise Damage(_CUT)
            found = accounts_of(chain)
        except Damage as damage:
            raise LedgerError(f"the ledger {self._path} is damaged: {damage}") from None
        self._saw(chain)
        return found

    def _saw(self, chain: Chain) -> None:
        self._seen = (chain.number, chain.hash)


def _unchanged(before: Account, now: Account) -> bool:
    """Whether what was composed is still all there is. What others booked for other datasets does not matter."""
    return [booking.hash for booking in before.bookings] == [booking.hash for booking in now.bookings]
