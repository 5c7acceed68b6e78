"""The entries of a ledger as a chain of hashes: each one carries the hash of the one before it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final, Literal, get_args

from dphist.errors import InvalidParameter

Kind = Literal["ledger", "dataset", "booking", "settlement"]
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

    def following(self, kind: Kind, dataset: str, data: Any) -> Entry:
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
