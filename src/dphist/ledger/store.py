"""The file of a ledger: a SQLite database to which rows are only ever appended.

Why a rollback journal and not a write-ahead log: between two transactions the ledger is ONE file, so that a copy
of it is a whole ledger, while a copy without its log would have lost the last bookings. `synchronous=EXTRA` also
syncs the folder when the journal is removed: otherwise the journal could be there again after a power failure, and
roll back a booking that had been promised to last.

The file is never opened but by SQLite. Its locks belong to the process: closing any other handle of the file would
release them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, get_args

from dphist.errors import InvalidParameter, LedgerError
from dphist.objects import scheme_of
from dphist.publishing import WORKPLACE, link_new, sweep, sync_folder, workplace
from dphist.publishing import identity as file_identity

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

# The entries of a ledger as a chain of hashes: each one carries the hash of the one before it.

Kind = Literal["ledger", "dataset", "booking", "run", "settlement", "failure"]
_LIST: Final = json.JSONEncoder(separators=(",", ":"))
_KINDS: Final = frozenset(get_args(Kind))
# What the first entry names as the one before it.
NOTHING: Final = "0" * 64


class Damage(Exception):
    """What is wrong with the entries, to be said of a file."""


@dataclass(frozen=True)
class Entry:
    """One row, as it is stored; `body` is JSON in its canonical form."""

    number: int
    kind: Kind
    dataset: str
    created: str
    body: str
    previous: str
    hash: str

    def row(self) -> tuple[int, str, str, str, str, str, str]:
        """The columns in their order."""
        return self.number, self.kind, self.dataset, self.created, self.body, self.previous, self.hash


def canonical(data: Any) -> str:
    """JSON with sorted keys and no spaces, in ASCII: the same data give the same text."""
    try:
        return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("what is to be booked holds what JSON cannot write, such as NaN") from None


def digest(number: int, kind: str, dataset: str, created: str, body: str, previous: str) -> str:
    """SHA-256 over everything in an entry, the hash of the one before it included."""
    # A list of JSON: no two different entries have the same text, whatever stands in them. The body, which may be
    # long, stands there by a hash of its own.
    inner = sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return sha256(_LIST.encode([number, kind, dataset, created, inner, previous]).encode("ascii")).hexdigest()


@dataclass(frozen=True)
class Chain:
    """Entries that were checked: numbered 1, 2, 3 and so on, each with the hash of the one before it."""

    entries: tuple[Entry, ...] = ()

    @property
    def number(self) -> int:
        """How many entries there are, which is the number of the last."""
        return len(self.entries)

    @property
    def hash(self) -> str:
        """The hash of the last entry, which depends on all of them."""
        return self.entries[-1].hash if self.entries else NOTHING

    def extended(self, rows: Iterable[tuple[Any, ...]]) -> Chain:
        """With the rows that follow; raises `Damage` unless every one of them is as it was written."""
        entries = list(self.entries)
        number, previous = self.number, self.hash
        for row in rows:
            number += 1
            _check(row, number, previous)
            entries.append(Entry(*row))
            previous = row[6]
        return Chain(tuple(entries))

    def next_entry(self, kind: Kind, dataset: str, data: Any) -> Entry:
        """The entry that would come next."""
        number, body, created = self.number + 1, canonical(data), datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        value = digest(number, kind, dataset, created, body, self.hash)
        return Entry(number, kind, dataset, created, body, self.hash, value)

    def has(self, value: str) -> bool:
        """Whether an entry has this hash."""
        return any(entry.hash == value for entry in self.entries)


def _check(row: tuple[Any, ...], number: int, previous: str) -> None:
    """The row must be the entry of this number, and untouched."""
    # By exact types: bytes in the place of a text would be another entry with the same look.
    if len(row) != 7 or type(row[0]) is not int or any(type(cell) is not str for cell in row[1:]):
        raise Damage(f"entry {number} was changed")
    if row[0] != number:
        raise Damage(f"entry {number} is missing" if row[0] > number else f"entry {row[0]} is out of place")
    if row[5] != previous or row[6] != digest(*row[:6]):
        raise Damage(f"entry {number} was changed, or one before it")
    if row[1] not in _KINDS:
        raise Damage(f"entry {number} is of no known kind")


WAIT_SECONDS: Final = 30.0
# "dpHl", by which SQLite files of other programs are told apart, and the version of the tables.
APPLICATION: Final = 0x6470486C
VERSION: Final = 1
_ENTRIES: Final = (
    "CREATE TABLE entries(number INTEGER PRIMARY KEY, kind TEXT NOT NULL, dataset TEXT NOT NULL, "
    "created TEXT NOT NULL, body TEXT NOT NULL, previous TEXT NOT NULL, hash TEXT NOT NULL)"
)
# The last one also stops INSERT OR REPLACE, which removes rows without a word to the others.
_TRIGGERS: Final = {
    "entries_stay_as_they_are": "BEFORE UPDATE ON entries",
    "entries_stay": "BEFORE DELETE ON entries",
    "entries_are_appended": (
        "BEFORE INSERT ON entries WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM entries)"
    ),
}
_SCHEMA: Final = {
    "entries": _ENTRIES,
    **{
        name: f"CREATE TRIGGER {name} {when} BEGIN SELECT RAISE(ABORT, 'a ledger is append-only'); END"
        for name, when in _TRIGGERS.items()
    },
}
REPLACED: Final = "was replaced while it was used"
_REASONS: Final[dict[int, str]] = {
    sqlite3.SQLITE_FULL: "cannot be written: there is no room left on the disk",
    sqlite3.SQLITE_IOERR: "cannot be used: the disk does not take or give it",
    sqlite3.SQLITE_READONLY_DBMOVED: REPLACED,
    sqlite3.SQLITE_READONLY: "cannot be written: the file or its folder is read-only",
    sqlite3.SQLITE_PERM: "cannot be used: it is not permitted",
    sqlite3.SQLITE_AUTH: "cannot be used: it is not permitted",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: the file or its folder does not permit it",
    sqlite3.SQLITE_NOTADB: "is not a ledger: it is not a SQLite file",
    sqlite3.SQLITE_CORRUPT: "is damaged: SQLite cannot read all of it",
}
# To link a new ledger and to remove its other name takes microseconds.
_MAKING_SECONDS: Final = 5.0


@contextmanager
def sqlite_errors_as_sentences(path: Path, wait: float) -> Iterator[None]:
    """Raise SQLite's errors as `LedgerError`, with a sentence by their codes."""
    try:
        yield
    except UnicodeError:  # a name in the tables that is not text
        raise LedgerError(f"the ledger {path} {_REASONS[sqlite3.SQLITE_CORRUPT]}") from None
    except sqlite3.Error as error:
        full = getattr(error, "sqlite_errorcode", 0)
        code = full if full in _REASONS else full & 0xFF
        reason = _REASONS.get(code, f"cannot be used: SQLite reports a {type(error).__name__}")
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            reason = f"is locked by another process and was so for {wait:g} seconds: try again later"
        raise LedgerError(f"the ledger {path} {reason}") from None


def checked_path(path: str | os.PathLike[str]) -> Path:
    """The path of a ledger that may be there or not; never a link, a folder or a file with two names."""
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter(f"a ledger needs the name of a file, not {name!r}")
    scheme = scheme_of(name)
    if scheme is not None:
        raise InvalidParameter(f"a ledger is a file on this machine, not a {scheme}:// address")
    place = Path(name)
    try:
        found = os.lstat(place)
    except FileNotFoundError:
        return place
    except OSError as error:
        raise LedgerError(f"the ledger {place} cannot be opened: {error.strerror}") from None
    if stat.S_ISLNK(found.st_mode):
        raise LedgerError(f"the ledger {place} is a link: name the file itself")
    if stat.S_ISDIR(found.st_mode):
        raise LedgerError(f"{place} is a folder, not a ledger")
    if not stat.S_ISREG(found.st_mode):
        raise LedgerError(f"{place} is not a file, hence not a ledger")
    if found.st_nlink > 1 and not _has_one_name(place):
        # What a crash leaves half done is found by the name: under the other name it would not be repaired.
        raise LedgerError(f"the ledger {place} has a second name (a hard link): remove that first")
    return place


def identity(path: Path) -> tuple[int, int]:
    """Which file the name stands for."""
    try:
        found = os.lstat(checked_path(path))
    except FileNotFoundError:
        raise LedgerError(f"there is no ledger {path}: make it with dphist ledger init") from None
    return found.st_dev, found.st_ino


def _has_one_name(place: Path) -> bool:
    """Whether the second name was that of a ledger being made: then it is gone in a moment, or by `sweep`."""
    end = time.monotonic() + _MAKING_SECONDS
    while True:
        sweep(place.parent)
        try:
            if os.lstat(place).st_nlink == 1:
                return True
            making = any(WORKPLACE.fullmatch(name) for name in os.listdir(place.parent))
        except OSError:
            return False
        if not making or time.monotonic() > end:
            return False
        time.sleep(0.01)


@contextmanager
def new_file(place: Path) -> Iterator[Path]:
    """A place beside that of a new ledger, where it is made whole before it gets its name."""
    try:
        with workplace(place.parent) as work:
            file = work / place.name
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            try:
                yield file
            except LedgerError as error:
                raise LedgerError(str(error).replace(str(file), str(place))) from None
    except FileNotFoundError:
        raise LedgerError(f"the ledger {place} cannot be made: there is no folder {place.parent}") from None
    except OSError as error:
        raise LedgerError(f"the ledger {place} cannot be made: {error.strerror}") from None


def publish(file: Path, place: Path) -> bool:
    """Give a whole ledger its name; False if another was faster."""
    try:
        link_new(file, place)
    except FileExistsError:
        return False
    with suppress(FileNotFoundError):  # where there are no hard links it was moved
        os.unlink(file)
    sync_folder(place.parent)
    return True


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Whether this process has the lock of this name. It ends with the process; its file goes with it."""
    if fcntl is None:
        raise InvalidParameter("--id needs the file locks of Linux or macOS")
    try:
        descriptor = _take_lock(path)
    except OSError as error:
        raise LedgerError(f"the lock {path} cannot be made: {error.strerror}") from None
    try:
        yield descriptor >= 0
    finally:
        if descriptor >= 0:
            with suppress(OSError):
                os.unlink(path)
            os.close(descriptor)


def _take_lock(path: Path) -> int:
    """The descriptor that holds the lock, or -1 if another one does."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return -1
        found = os.fstat(descriptor)
        if file_identity(path) == (found.st_dev, found.st_ino):
            return descriptor
        # The process that had it before has just removed the file.
        os.close(descriptor)


@contextmanager
def connect_ledger(path: Path, wait: float) -> Iterator[sqlite3.Connection]:
    """A connection for one piece of work. A file that is not there is never made by it."""
    with sqlite_errors_as_sentences(path, wait):
        # A file that may not be written is opened for reading by SQLite itself.
        where = path.absolute().as_uri() + "?mode=rw"
        connection = sqlite3.connect(where, uri=True, timeout=wait, isolation_level=None)
    with closing(connection):
        # No byte may be lost before the check: what is not UTF-8 becomes a text that was never written.
        connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        with sqlite_errors_as_sentences(path, wait):
            for setting in (
                "synchronous = EXTRA",
                "fullfsync = ON",
                "trusted_schema = OFF",
                "cell_size_check = ON",
            ):
                connection.execute(f"PRAGMA {setting}")
            yield connection


@contextmanager
def transaction(connection: sqlite3.Connection, *, writing: bool) -> Iterator[None]:
    """All or nothing. A writer holds the only right to write from the beginning."""
    # A file that another program has put into another mode is put back: it is what the durability rests on.
    if writing and connection.execute("PRAGMA journal_mode = DELETE").fetchone() != ("delete",):
        raise sqlite3.OperationalError
    connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Without this a connection that is closed would do the same; a dead disk may refuse both.
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def check_format(connection: sqlite3.Connection, path: Path) -> None:
    """Raise unless these are the tables of a ledger, all of them and no other."""
    schema = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    if is_empty(path):
        raise LedgerError(f"the ledger {path} is empty: make it with dphist ledger init")
    if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION,):
        raise LedgerError(f"{path} is a SQLite file of another program, not a ledger")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise LedgerError(f"the ledger {path} has the format {version}, and this dphist reads only {VERSION}")
    if schema != sorted(_SCHEMA.items()):
        raise LedgerError(f"the ledger {path} is damaged: its tables were changed")


def check_pages(connection: sqlite3.Connection, path: Path) -> None:
    """Raise where SQLite finds that a part of the file is not used, or used twice: rows may have gone with it."""
    if connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise LedgerError(f"the ledger {path} is damaged: SQLite cannot read all of it")


def is_empty(path: Path) -> bool:
    """Whether nothing was ever written to the file; asked within a transaction, which undoes what a crash left."""
    # By its size: the file of another program may have no tables either.
    return os.stat(path).st_size == 0


def make_tables(connection: sqlite3.Connection) -> None:
    """The tables of a new ledger, within the transaction that also brings its first entries."""
    for statement in _SCHEMA.values():
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def all_rows(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    """All entries in their order."""
    return connection.execute("SELECT * FROM entries ORDER BY number").fetchall()


def rows_after(connection: sqlite3.Connection, number: int) -> list[tuple[Any, ...]]:
    """The entries that follow one, in their order."""
    return connection.execute("SELECT * FROM entries WHERE number > ? ORDER BY number", (number,)).fetchall()


def append(connection: sqlite3.Connection, row: tuple[Any, ...]) -> None:
    """One entry more."""
    connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", row)
