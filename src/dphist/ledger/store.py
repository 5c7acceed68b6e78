"""The ledger: an append-only SQLite file that keeps the releases of each dataset within its total.

It uses a rollback journal, not a write-ahead log, so that between transactions the ledger is one file, and a copy
of it is complete. `synchronous=EXTRA` syncs the folder when the journal is removed; otherwise the journal could
reappear after a power failure and roll back a booking.

Only SQLite opens the file. Its locks belong to the process, and closing any other handle would release them.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from dphist.aliases import JsonObject
from dphist.certificate.text import certificate_text, signed_bytes
from dphist.display import Listing
from dphist.errors import AlreadyRunning, DphistError, InvalidParameter, LedgerError, one_of
from dphist.files import PathLike, checked_path
from dphist.ledger.accounts import (
    ACCOUNTINGS,
    AUTO,
    BY_FIRST,
    HALF,
    Account,
    Booking,
    Composer,
    FilterComposer,
    Spend,
    SpendAt,
    canonical,
)
from dphist.ledger.schema import (
    BODIES,
    FORMAT,
    AnyBody,
    BookingBody,
    DatasetBody,
    FailureBody,
    LedgerBody,
    Rule,
    RunBody,
    SettlementBody,
    decode_body,
)
from dphist.model import Budget
from dphist.objects import scheme_of
from dphist.publishing import (
    WORK_FOLDER,
    identity,
    link_new,
    remove_leftovers,
    sync_folder,
    why_not_a_file,
    work_folder,
    write_file,
)
from dphist.signatures import (
    CHECKPOINT_DOMAIN,
    SIGNATURE,
    examine_signature,
    read_public_key,
    read_small,
    signer_of,
)

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

CHECKPOINT_FORMAT: Final = "dphist-checkpoint/1"
# The first entry has this as the hash of the one before it.
NOTHING: Final = "0" * 64
_LIST: Final = json.JSONEncoder(separators=(",", ":"))
_LONGEST_NAME: Final = 200
# How many runs may use one booking: a run may have been killed because of the events.
_MOST_RUNS: Final = 3
# In the last attempt the ledger stays locked while spends are composed, so that no other process can book first.
_ATTEMPTS: Final = 3
_CUT: Final = "entries it had a moment ago are missing"


# -------------------------------------------------------------------------------------- a chain of hashed entries


class Damage(Exception):
    """What is wrong with the entries of a ledger."""


class RemovedAccounting(Exception):
    """The name of a dataset with the accounting pld, of an earlier version."""


# A row as SQLite returns it.
Row = tuple[object, ...]


class Entry(NamedTuple):
    """A row of the ledger; `body` is canonical JSON, `previous` the hash of the entry before."""

    number: int
    kind: str
    dataset: str
    created: str
    body: str
    previous: str
    hash: str


msgspec.json.Decoder(Entry)


def digest(number: int, kind: str, dataset: str, created: str, body: str, previous: str) -> str:
    """SHA-256 of an entry, including the hash of the one before it."""
    # As a JSON list, so that no two different entries have the same text.
    inner = sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return sha256(_LIST.encode([number, kind, dataset, created, inner, previous]).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Chain:
    """Checked entries: numbered 1, 2, 3 ..., each with the hash of the one before it."""

    entries: tuple[Entry, ...] = ()

    @property
    def number(self) -> int:
        """The number of the last entry."""
        return len(self.entries)

    @property
    def hash(self) -> str:
        """The hash of the last entry, which depends on all entries."""
        return self.entries[-1].hash if self.entries else NOTHING

    def extend_by(self, rows: Iterable[Row]) -> Chain:
        """Append the rows that follow; raises `Damage` if one of them was changed."""
        entries, previous = list(self.entries), self.hash
        for number, row in enumerate(rows, self.number + 1):
            try:
                # Exact types, because bytes instead of text would look the same.
                entry = msgspec.convert(row, Entry)
            except msgspec.ValidationError:
                raise Damage(f"entry {number} was changed") from None
            if entry.number != number:
                wrong = f"{number} is missing" if entry.number > number else f"{entry.number} is out of place"
                raise Damage(f"entry {wrong}")
            if entry.previous != previous or entry.hash != digest(*entry[:6]):
                raise Damage(f"entry {number} was changed, or one before it")
            if entry.kind not in BODIES:
                raise Damage(f"entry {number} has an unknown kind")
            entries.append(entry)
            previous = entry.hash
        return Chain(tuple(entries))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ------------------------------------------------------------------------------------------------- the SQLite file

WAIT_SECONDS: Final = 30.0
# "dpHl" marks SQLite files that are ledgers.
_APPLICATION: Final = 0x6470486C
_VERSION: Final = 1
# The last one also stops INSERT OR REPLACE, which removes rows without firing the others.
_TRIGGERS: Final = {
    "entries_stay_as_they_are": "BEFORE UPDATE ON entries",
    "entries_stay": "BEFORE DELETE ON entries",
    "entries_are_appended": (
        "BEFORE INSERT ON entries WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM entries)"
    ),
}
_SCHEMA: Final = {
    "entries": (
        "CREATE TABLE entries(number INTEGER PRIMARY KEY, kind TEXT NOT NULL, dataset TEXT NOT NULL, "
        "created TEXT NOT NULL, body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)"
    ),
    **{
        name: f"CREATE TRIGGER {name} {when} BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
        for name, when in _TRIGGERS.items()
    },
}
_SETTINGS: Final = ("synchronous = EXTRA", "fullfsync = ON", "trusted_schema = OFF", "cell_size_check = ON")
_REPLACED: Final = "was replaced while in use"
_UNREADABLE: Final = "is damaged: SQLite cannot read all of it"
_REASONS: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "cannot be written: the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be used: the disk reports an input/output error",
    sqlite3.SQLITE_READONLY_DBMOVED: _REPLACED,
    sqlite3.SQLITE_READONLY: "cannot be written: the file or its folder is read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check the permissions of the file and its folder",
    sqlite3.SQLITE_NOTADB: "cannot be read: it is not a SQLite file",
    sqlite3.SQLITE_CORRUPT: _UNREADABLE,
}
# A new ledger has two names for microseconds.
_MAKING_SECONDS: Final = 5.0


def ledger_path(path: PathLike) -> Path:
    """The path of a ledger, which may not exist yet; raises for a link, a folder or a file with two names."""
    scheme = scheme_of(os.fspath(path))
    if scheme is not None:
        raise InvalidParameter(f"a ledger is a file on this machine, not a {scheme}:// address")
    file = checked_path(path, "a ledger")
    try:
        status = os.lstat(file)
    except FileNotFoundError:
        return file
    except OSError as error:
        raise LedgerError(f"the ledger {file} cannot be opened: {error.strerror}") from None
    if (what := why_not_a_file(status.st_mode)) is not None:
        raise LedgerError(f"the ledger {file} cannot be used: it is {what}")
    if status.st_nlink > 1 and not _has_one_name(file):
        # SQLite finds the journal of a crashed transaction only under the name that was used.
        raise LedgerError(f"the ledger {file} has a second name (a hard link): remove that name first")
    return file


def _has_one_name(file: Path) -> bool:
    """Wait for the second name that a new ledger has for a moment; `remove_leftovers` removes it after a kill."""
    end = time.monotonic() + _MAKING_SECONDS
    while True:
        remove_leftovers(file.parent)
        try:
            if os.lstat(file).st_nlink == 1:
                return True
            making = any(WORK_FOLDER.fullmatch(name) for name in os.listdir(file.parent))
        except OSError:
            return False
        if not making or time.monotonic() > end:
            return False
        time.sleep(0.01)


@contextmanager
def transaction(path: Path, wait: float, *, writing: bool) -> Iterator[sqlite3.Connection]:
    """One transaction on an existing ledger; a writer has the exclusive lock from the beginning.

    Raises `LedgerError` for all errors of SQLite.
    """
    before = identity(ledger_path(path))
    if before == (-1, -1):
        raise LedgerError(f"there is no ledger {path}: create it with dphist ledger init")
    # SQLite opens a read-only file for reading only.
    where = path.absolute().as_uri() + "?mode=rw"
    try:
        with closing(sqlite3.connect(where, uri=True, timeout=wait, isolation_level=None)) as connection:
            # Bytes that are not UTF-8 become text that dphist never writes, so that the check notices them.
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            for setting in _SETTINGS:
                connection.execute(f"PRAGMA {setting}")
            # Durability depends on this mode, which another program may have changed.
            if writing and connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
                raise sqlite3.OperationalError
            connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # A dead disk may refuse this; closing the connection has the same effect.
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
    except UnicodeError:  # a name in the schema is not text
        raise LedgerError(f"the ledger {path} {_UNREADABLE}") from None
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", 0)
        code = full if full in _REASONS else full & 0xFF
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        reason = _REASONS.get(code, f"cannot be used: SQLite reports {name}")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            reason = f"is locked by another process (waited {wait:g} seconds): try again later"
        raise LedgerError(f"the ledger {path} {reason}") from None
    # Entries appended to a file that was replaced meanwhile are lost.
    if identity(path) != before:
        raise LedgerError(f"the ledger {path} {_REPLACED}")


def _read_rows(connection: sqlite3.Connection, path: Path, after: int | None = None) -> list[Row]:
    """All entries, or those `after` a number; raises unless the schema is exactly that of a ledger."""
    schema = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    # Size, not tables: another program's file may have no tables either.
    if os.stat(path).st_size == 0:
        raise LedgerError(f"the ledger {path} is empty: create it with dphist ledger init")
    if connection.execute("PRAGMA application_id").fetchone() != (_APPLICATION,):
        raise LedgerError(f"{path} is a SQLite file of another program, not a ledger")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != _VERSION:
        raise LedgerError(f"the ledger {path} has format {version}, but this version of dphist reads {_VERSION}")
    if schema != sorted(_SCHEMA.items()):
        raise LedgerError(f"the ledger {path} is damaged: its tables were changed")
    # Pages that are unused, or used twice, may hide lost rows.
    if after is None and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise LedgerError(f"the ledger {path} {_UNREADABLE}")
    where = "" if after is None else f"WHERE number > {after}"
    return connection.execute(f"SELECT * FROM entries {where} ORDER BY number").fetchall()


def _lock_file(path: Path) -> int:
    """Create and lock a file, while the returned descriptor is open; raises `BlockingIOError` if it is locked."""
    if fcntl is None:
        raise InvalidParameter("<--id> needs the file locks of Linux or macOS")
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        status = os.fstat(descriptor)
        if identity(path) == (status.st_dev, status.st_ino):
            return descriptor
        # The process that held the lock has just removed the file.
        os.close(descriptor)


# ------------------------------------------------------------------------------------------- accounts from entries


@dataclass(frozen=True)
class Accounts(Listing):
    """The datasets of a ledger, read from a checked chain."""

    chain: Chain
    id: str
    datasets: dict[str, Account]

    def rows(self) -> list[tuple[str, str]]:
        """Each dataset, with its total and the number of booked releases."""
        return [
            (name, f"epsilon {a.total.epsilon:g}, delta {a.total.delta:g}, {len(a.bookings)} booked")
            for name, a in self.datasets.items()
        ]

    @property
    def title(self) -> str:
        return f"Ledger {self.id}"

    def find(self, dataset: str) -> Account:
        """The account of a dataset; raises `LedgerError` with the existing names."""
        if dataset in self.datasets:
            return self.datasets[dataset]
        near = difflib.get_close_matches(dataset, self.datasets, n=1) if isinstance(dataset, str) else []
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(repr(name) for name in sorted(self.datasets))
        raise LedgerError(f"the ledger has no dataset {dataset!r:.80}{hint}: it has {known}")


def _checked_name(name: str, what: str = "dataset") -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        raise InvalidParameter(f"{what} must be a name of 1 to {_LONGEST_NAME} characters, not {name!r:.80}")
    if not name.isprintable() or name != name.strip():
        raise InvalidParameter(f"{what} must be a name of printable characters, not {name!r}")
    return name


def _plain_name(name: str) -> str:
    """Equal for names that differ only in case or Unicode form, which would look like one dataset."""
    return unicodedata.normalize("NFKC", name).casefold()


def _accounts_of(chain: Chain) -> Accounts:
    """The accounts that a chain describes; raises `Damage` for an entry that is not valid."""
    datasets: dict[str, Account] = {}
    bookings: dict[str, dict[int, Booking]] = {}
    id = ""
    for entry in chain.entries:
        try:
            body = decode_body(entry.kind, entry.body)
            if isinstance(body, LedgerBody) is not (entry.number == 1):
                raise ValueError
            if isinstance(body, LedgerBody):
                id = body.id
            elif isinstance(body, DatasetBody):
                if entry.dataset in datasets:
                    raise ValueError
                if body.accounting == "pld":
                    raise RemovedAccounting(entry.dataset)
                total, name = Budget(body.epsilon, body.delta), _checked_name(entry.dataset)
                datasets[name] = Account(name, total, one_of("accounting", body.accounting, ACCOUNTINGS))
                bookings[name] = {}
            elif isinstance(body, BookingBody):
                known, booking = bookings[entry.dataset], _booking_from(id, entry, body)
                datasets[entry.dataset] = _with_rule(datasets[entry.dataset], body.accounting)
                if booking.id is not None and any(other.id == booking.id for other in known.values()):
                    raise ValueError
                known[entry.number] = booking
            else:
                known = bookings[entry.dataset]
                known[body.booking] = _with_outcome(known[body.booking], body)
        except (KeyError, ValueError, RecursionError, DphistError):
            raise Damage(f"entry {entry.number} is not valid") from None
    if not datasets:
        raise Damage("it has no dataset")
    for name, account in datasets.items():
        datasets[name] = replace(account, bookings=tuple(bookings[name].values()))
    return Accounts(chain, id, datasets)


def _with_rule(account: Account, rule: Rule | UnsetType) -> Account:
    """The account with the accounting that its first booking fixed: only that of "auto" has a rule."""
    if (account.accounting == AUTO) is (rule is UNSET):
        raise ValueError
    if rule is UNSET:
        return account
    if rule.name not in BY_FIRST:
        raise ValueError
    share = HALF if rule.share is UNSET else rule.share
    return replace(account, accounting=rule.name, share=share, by_first=True)


def _rule_of(composer: Composer) -> Rule:
    share = composer.share if isinstance(composer, FilterComposer) else UNSET
    return Rule(name=composer.accounting, share=share)


def _booking_from(ledger: str, entry: Entry, body: BookingBody) -> Booking:
    spend = Spend(body.epsilon, body.delta, body.profile, body.document)
    if (body.id is UNSET) is not (body.run is UNSET):
        raise ValueError
    id = None if body.id is UNSET else _checked_name(body.id, "id")
    run = None if body.run is UNSET else body.run
    return Booking(ledger, entry.dataset, entry.number, entry.hash, entry.created, spend, id=id, run=run)


def _with_outcome(booking: Booking, body: RunBody | SettlementBody | FailureBody) -> Booking:
    if booking.written is not None or booking.failed is not None:
        raise ValueError
    if isinstance(body, RunBody):
        return replace(booking, runs=booking.runs + 1)
    if isinstance(body, SettlementBody):
        return replace(booking, written={"sha256": body.sha256, "address": body.address})
    return replace(booking, failed=body.error)


# ----------------------------------------------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """The state of a ledger, from `Ledger.checkpoint`.

    The hash depends on all entries. Signed and kept elsewhere, a checkpoint shows later whether the ledger was
    replaced by an older copy or changed.

    Attributes:
        ledger: The id of the ledger.
        entry: The number of its entries.
        hash: The hash of the last one.
        created: The time of the checkpoint, in UTC.
    """

    ledger: str
    entry: int
    hash: str
    created: str

    def write(self, path: PathLike, *, sign: PathLike) -> str:
        """Write a new file at `path`, signed with the private key in the file `sign`; returns the fingerprint."""
        file, signer = checked_path(path, "a checkpoint"), signer_of(sign)
        document: JsonObject = {"format": CHECKPOINT_FORMAT, **asdict(self)}
        document[SIGNATURE] = signer(signed_bytes(document), CHECKPOINT_DOMAIN)
        write_file(file, certificate_text(document).encode(), 0o644)
        return signer.fingerprint

    @classmethod
    def read(cls, path: PathLike, *, public_key: PathLike) -> Checkpoint:
        """Read a checkpoint from `path` that is signed by `public_key`; raises `LedgerError` for anything else."""
        trusted, data = read_public_key(public_key), read_small(path, "the checkpoint")
        try:
            document = json.loads(data.decode())
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("format") != CHECKPOINT_FORMAT:
            raise LedgerError(f"{path} is not a checkpoint of a ledger")
        try:
            signed = signed_bytes(document)
        except ValueError:
            signed = b""
        _, _, problems = examine_signature(document, signed, CHECKPOINT_DOMAIN, trusted)
        if problems or certificate_text(document).encode() != data:
            reason = problems[0] if problems else "it was changed after it was signed"
            raise LedgerError(f"the checkpoint {path} is refused: {reason}")
        # The signature is valid, so these are the values that `write` wrote.
        return cls(*(document[name] for name in ("ledger", "entry", "hash", "created")))

    def check(self, accounts: Accounts, path: Path) -> None:
        """Raise `LedgerError` unless the ledger still begins with the entries of the checkpoint."""
        chain = accounts.chain
        if accounts.id != self.ledger:
            raise LedgerError(f"the checkpoint is of the ledger {self.ledger}, but {path} is {accounts.id}")
        if chain.number < self.entry:
            raise LedgerError(
                f"the ledger {path} has {chain.number} entries, but had {self.entry} on {self.created}: entries "
                "are missing, as in an older copy"
            )
        if chain.entries[self.entry - 1].hash != self.hash:
            raise LedgerError(f"the ledger {path} was changed after {self.created}: its entries are different")


# ------------------------------------------------------------------------------------------------------ the ledger


@dataclass
class _Page:
    """The ledger during a write transaction."""

    connection: sqlite3.Connection
    accounts: Accounts
    chain: Chain

    def append(self, kind: str, dataset: str, body: JsonObject) -> Entry:
        facts = (self.chain.number + 1, kind, dataset, _now(), canonical(body), self.chain.hash)
        entry = Entry(*facts, digest(*facts))
        self.connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", entry)
        self.chain = Chain((*self.chain.entries, entry))
        return entry

    def add(self, dataset: str, body: AnyBody) -> Entry:
        return self.append(body.kind, dataset, body.to_dict())

    def book(
        self, dataset: str, spend: Spend, composer: Composer, id: str | None, run: JsonObject | None
    ) -> Booking:
        account = self.accounts.find(dataset)
        if id is not None and account.booking_of(id) is not None:
            raise AlreadyRunning(f"another run of the id {id!r} has just booked its release")
        body = BookingBody(
            **asdict(spend),
            accounting=_rule_of(composer) if account.accounting == AUTO else UNSET,
            id=UNSET if id is None else id,
            run=UNSET if run is None else run,
        )
        return _booking_from(self.accounts.id, self.add(dataset, body), body)


class Ledger:
    """A ledger in a file: a total budget for each dataset, and all spends of it.

    Every method opens, checks and closes the file. Entries that were read once must still be there the next time,
    or it is refused with `LedgerError`. Begin with `Ledger.init` or `Ledger.open`.

    >>> from dphist.ledger import Ledger
    >>> ledger = Ledger.init("python.ledger", "searches", epsilon=3, delta=1e-6)
    >>> print(ledger.account("searches").remaining())
    all of epsilon 3.0 and delta 1e-06

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path, wait_seconds: float) -> None:
        self.path = path
        self._wait = wait_seconds
        self._seen = (0, NOTHING)

    @classmethod
    def open(
        cls,
        path: PathLike,
        *,
        expect: str | None = None,
        checkpoint: Checkpoint | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> Ledger:
        """Open an existing ledger and check all of it.

        Args:
            path: The file.
            expect: A hash that an entry must have, from the booking in a certificate.
            checkpoint: A state that the ledger must have had.
            wait_seconds: How long to wait while another process writes.
        """
        if expect is not None and not (isinstance(expect, str) and re.fullmatch("[0-9a-f]{64}", expect)):
            raise InvalidParameter(f"expect must be the hash of a receipt, 64 digits, not {expect!r:.80}")
        ledger = cls(ledger_path(path), wait_seconds)
        accounts = ledger.accounts()
        if expect is not None and all(entry.hash != expect for entry in accounts.chain.entries):
            raise LedgerError(
                f"the ledger {ledger.path} has no entry with the hash {expect}: entries are missing, or it is "
                "another ledger"
            )
        if checkpoint is not None:
            checkpoint.check(accounts, ledger.path)
        return ledger

    def checkpoint(self) -> Checkpoint:
        """The current state of the ledger."""
        accounts = self.accounts()
        return Checkpoint(accounts.id, accounts.chain.number, accounts.chain.hash, _now())

    @classmethod
    def init(
        cls,
        path: PathLike,
        dataset: str,
        *,
        epsilon: float,
        delta: float,
        accounting: str = AUTO,
        wait_seconds: float = WAIT_SECONDS,
    ) -> Ledger:
        """Add a dataset with its total to a new or existing ledger. The total can never be changed.

        Args:
            path: The file, on a local disk.
            dataset: Name of the dataset.
            epsilon: Total ε of all its releases.
            delta: Total δ of all its releases.
            accounting: How releases add up: "gdp", "zcdp", "sum", or "auto", which the first release decides.
            wait_seconds: How long to wait while another process writes.
        """
        total, name = Budget(epsilon, delta), _checked_name(dataset)
        rule = one_of("accounting", accounting, ACCOUNTINGS)
        body = DatasetBody(epsilon=total.epsilon, delta=total.delta, accounting=rule)
        ledger = cls(ledger_path(path), wait_seconds)
        if not ledger._create_file(name, body) and not ledger._create_tables(name, body):
            with ledger._writing(ledger.accounts()) as page:
                for known in page.accounts.datasets:
                    if _plain_name(known) == _plain_name(name):
                        raise LedgerError(
                            f"the ledger {ledger.path} already has a dataset {known!r}, and a total cannot be "
                            "changed"
                        )
                page.add(name, body)
        return ledger

    def accounts(self) -> Accounts:
        """All datasets, after checking the ledger from the first entry to the last."""
        with transaction(self.path, self._wait, writing=False) as connection:
            rows = _read_rows(connection, self.path)
        # Outside of the transaction, so that other processes do not wait.
        return self._check_chain(Chain(), rows)

    def account(self, dataset: str) -> Account:
        """The account of one `dataset`: its total, bookings and remaining budget."""
        return self.accounts().find(dataset)

    def book(self, dataset: str, spend: Spend, composer: Composer) -> Booking:
        """Book a `spend` of a `dataset`, or raise `OverBudget`. The `composer` is that of its account.

        *Guarantee*: once this returns, the booking survives a crash of the process and of the machine, and all
        bookings of the dataset together, composed, are within its total. Draw noise after it, never before.
        """
        return self.book_release(dataset, lambda _: (spend, composer))

    def book_release(
        self,
        dataset: str,
        price: Callable[[Account], tuple[Spend, Composer]],
        *,
        spend_at: SpendAt | None = None,
        id: str | None = None,
        run: JsonObject | None = None,
    ) -> Booking:
        """Book a release whose spend and composer depend on the account, as `price` returns them.

        An `id` can be booked once, with `run` as its request. `spend_at` is passed to `check_fits`.
        """

        def spend_within(account: Account) -> tuple[Spend, Composer]:
            spend, composer = price(account)
            spend = spend.through_json()
            account.check_fits(spend, composer, spend_at)
            return spend, composer

        attempt = 1
        while True:
            # Composing may take seconds; if another process books meanwhile, it is done again.
            before = self.accounts()
            spend, composer = spend_within(before.find(dataset))
            with self._writing(before) as page:
                unchanged = _is_unchanged(before.find(dataset), page.accounts.find(dataset))
                if not unchanged and attempt == _ATTEMPTS:
                    spend, composer = spend_within(page.accounts.find(dataset))
                if unchanged or attempt == _ATTEMPTS:
                    return page.book(dataset, spend, composer, id, run)
            attempt += 1

    def settle(self, booking: Booking, *, sha256: str, address: str) -> None:
        """Record that the release of a booking was written, and where. Its cost stays the same.

        Args:
            booking: From `book`.
            sha256: Digest of the data.
            address: Where the data is.
        """
        self._note(booking, SettlementBody(booking=booking.number, sha256=str(sha256), address=str(address)))

    def note_run(self, booking: Booking) -> None:
        """Record that the booking of an id is used again; raises after a few times."""
        if booking.runs >= _MOST_RUNS:
            raise LedgerError(
                f"the id {booking.id!r} was run {booking.runs} times without a result, possibly because of the "
                "events: choose another id, which books again"
            )
        self._note(booking, RunBody(booking=booking.number))

    def fail(self, booking: Booking, error: str) -> None:
        """Record that a run with an id failed, so that its booking is not used again."""
        self._note(booking, FailureBody(booking=booking.number, error=error))

    def _note(self, booking: Booking, body: RunBody | SettlementBody | FailureBody) -> None:
        with self._writing(self.accounts()) as page:
            bookings = (known for account in page.accounts.datasets.values() for known in account.bookings)
            stored = next((b for b in bookings if (b.number, b.hash) == (booking.number, booking.hash)), None)
            if stored is None:
                raise LedgerError(f"the ledger {self.path} has no booking {booking.number} with this hash")
            if stored.written is not None or stored.failed is not None:
                raise LedgerError(f"booking {booking.number} of the ledger {self.path} is already settled")
            page.add(stored.dataset, body)

    @contextmanager
    def only_run_of(self, dataset: str, id: str) -> Iterator[None]:
        """Raise `AlreadyRunning` while another process or thread is in this context for the same id."""
        name = sha256(canonical([dataset, id]).encode()).hexdigest()[:16]
        path = self.path.with_name(f".{self.path.name}.{name}.lock")
        try:
            descriptor = _lock_file(path)
        except BlockingIOError:
            raise AlreadyRunning(f"another run of the id {id!r} of the dataset {dataset!r} is going on") from None
        except OSError as error:
            raise LedgerError(f"the lock {path} cannot be made: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(path)
            os.close(descriptor)

    def _create_file(self, name: str, body: DatasetBody) -> bool:
        """Create the ledger with this dataset unless the file exists; a killed process leaves no file."""
        path = self.path
        if os.path.lexists(path):
            remove_leftovers(path.parent)  # the leftovers of a process that was killed after it created the ledger
            return False
        try:
            with work_folder(path.parent) as work:
                file = work / path.name
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                made = Ledger(file, self._wait)
                try:
                    made._create_tables(name, body)
                except LedgerError as error:
                    raise LedgerError(str(error).replace(str(file), str(path))) from None
                link_new(file, path)
                with suppress(FileNotFoundError):  # moved, where there are no hard links
                    os.unlink(file)
                sync_folder(path.parent)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise LedgerError(f"the ledger {path} cannot be made: there is no folder {path.parent}") from None
        except OSError as error:
            raise LedgerError(f"the ledger {path} cannot be made: {error.strerror}") from None
        self._seen = made._seen
        return True

    def _create_tables(self, name: str, body: DatasetBody) -> bool:
        """Turn an empty file into a ledger with this dataset, in one transaction; False if it is not empty."""
        with transaction(self.path, self._wait, writing=True) as connection:
            # Within the transaction, because opening it undoes unfinished work.
            if os.stat(self.path).st_size:
                return False
            for statement in _SCHEMA.values():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            page = _Page(connection, Accounts(Chain(), "", {}), Chain())
            page.add("", LedgerBody(format=FORMAT, id=secrets.token_hex(16)))
            page.add(name, body)
        self._seen = (page.chain.number, page.chain.hash)
        return True

    @contextmanager
    def _writing(self, before: Accounts) -> Iterator[_Page]:
        """A write transaction, with the current accounts; entries are durable when it ends.

        `before` was checked outside of the lock: only the entries that follow are checked here.
        """
        known = before.chain
        with transaction(self.path, self._wait, writing=True) as connection:
            last, *more = _read_rows(connection, self.path, known.number - 1) or [()]
            if last != known.entries[-1]:
                raise LedgerError(f"the ledger {self.path} is damaged: {_CUT}")
            now = self._check_chain(known, more) if more else before
            page = _Page(connection, now, now.chain)
            yield page
        self._seen = (page.chain.number, page.chain.hash)

    def _check_chain(self, known: Chain, rows: list[Row]) -> Accounts:
        """The accounts of a chain; raises unless it is valid and still has the last entry that was seen."""
        number, value = self._seen
        try:
            chain = known.extend_by(rows)
            if number and (chain.number < number or chain.entries[number - 1].hash != value):
                raise Damage(_CUT)
            accounts = _accounts_of(chain)
        except Damage as damage:
            raise LedgerError(f"the ledger {self.path} is damaged: {damage}") from None
        except RemovedAccounting as dataset:
            raise LedgerError(
                f"the ledger {self.path} cannot be used: its dataset {str(dataset)!r} has the accounting 'pld', "
                "which was removed. Create a new ledger, with totals reduced by what was spent in this one"
            ) from None
        self._seen = (chain.number, chain.hash)
        return accounts


def _is_unchanged(before: Account, now: Account) -> bool:
    """Whether no other process booked for this dataset meanwhile."""
    return [booking.hash for booking in before.bookings] == [booking.hash for booking in now.bookings]
