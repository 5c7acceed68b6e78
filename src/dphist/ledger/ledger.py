"""The ledger: a spend is booked before noise is drawn, and the total of a dataset is never exceeded."""

from __future__ import annotations

import difflib
import json
import os
import re
import secrets
import sqlite3
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from dphist.display import html_grid, html_table, text_grid, text_table
from dphist.errors import AlreadyRunning, DphistError, InvalidParameter, LedgerError, OverBudget
from dphist.ledger import store
from dphist.ledger.composing import (
    ACCOUNTINGS,
    AUTO,
    HALF,
    Composer,
    ConcentratedComposer,
    Spend,
    concentrated,
    decimal_fraction,
    largest_float,
    round_down,
)
from dphist.ledger.store import NOTHING, Chain, Damage, Entry, Kind
from dphist.outputs.seal import SIGNATURE, certificate_text
from dphist.privacy.types import Budget
from dphist.publishing import sweep
from dphist.signatures import (
    CHECKPOINT_DOMAIN,
    PathLike,
    checked_path,
    examine_signature,
    read_public_key,
    read_small,
    signer_of,
    write_new,
)

# A checkpoint: what a ledger was at some time, signed, so that an older copy or a new chain is noticed later.

CHECKPOINT_FORMAT: Final = "dphist-checkpoint/1"


@dataclass(frozen=True)
class Checkpoint:
    """The id of a ledger, how many entries it had, and the hash of the last, which depends on all of them."""

    ledger: str
    entry: int
    hash: str
    created: str

    def write(self, path: PathLike, *, sign: PathLike) -> str:
        """Write it to a new file, signed by the private key in the file `sign`; the fingerprint of that key."""
        place, signer = checked_path(path, "a checkpoint"), signer_of(sign)
        assert signer is not None
        document: dict[str, Any] = {"format": CHECKPOINT_FORMAT, **asdict(self)}
        document[SIGNATURE] = signer(document, CHECKPOINT_DOMAIN)
        write_new({place: (certificate_text(document).encode(), 0o644)})
        return signer.fingerprint

    @classmethod
    def read(cls, path: PathLike, *, public_key: PathLike) -> Checkpoint:
        """A checkpoint that the owner of the public key signed; raises `LedgerError` for anything else."""
        trusted, data = read_public_key(public_key), read_small(path, "the checkpoint")
        try:
            document = json.loads(data.decode())
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or document.get("format") != CHECKPOINT_FORMAT:
            raise LedgerError(f"{path} is not a checkpoint of a ledger")
        _, _, problems = examine_signature(document, CHECKPOINT_DOMAIN, trusted)
        if problems or certificate_text(document).encode() != data:
            reason = problems[0] if problems else "it was changed after it was signed"
            raise LedgerError(f"the checkpoint {path} is refused: {reason}")
        # Signed by a key that is trusted: hence these are what `write` wrote.
        return cls(*(document[name] for name in ("ledger", "entry", "hash", "created")))


# What the entries of a ledger say of each dataset: its total, its bookings, what is left.

FORMAT: Final = "dphist-ledger-1"
_LONGEST_NAME: Final = 200
# Beyond this nobody counts; it bounds the work of a composer.
MOST_COUNTED: Final = 1000
# For an epsilon within a thousandth of the total.
_HALVINGS: Final = 10
# How often a run may be killed under one booking: that it was killed may depend on the events after all.
MOST_RUNS: Final = 3
# An estimate of the largest epsilon is nearly always right at once; to plan a release takes up to a second.
_TRIES: Final = 3
_COLUMNS: Final = ("entry", "booked", "epsilon", "delta", "written to")


@dataclass(frozen=True)
class Booking:
    """A spend in a ledger. It counts in full, whether or not the release is known to have been written.

    A run with an `id` records what it was asked for, in `run`. `failed` is the name of the error that closed the
    booking of such a run.
    """

    ledger: str
    dataset: str
    number: int
    hash: str
    created: str
    spend: Spend
    written: dict[str, Any] | None = None
    id: str | None = None
    run: dict[str, Any] | None = None
    failed: str | None = None
    runs: int = 1

    @property
    def state(self) -> str:
        """Whether the release is known to be written."""
        if self.written is not None:
            return "written"
        again = f" after {self.runs} runs" if self.runs > 1 else ""
        return f"not known to be written{again}" if self.failed is None else f"failed ({self.failed})"

    def receipt(self) -> dict[str, Any]:
        """For the certificate of the release: where its booking is, and the hash by which to find it again."""
        return {"ledger": self.ledger, "dataset": self.dataset, "entry": self.number, "hash": self.hash}


@dataclass(frozen=True, repr=False)
class Remaining:
    """What is left of a total: `more` releases like one that is known, or one like it with another epsilon.

    `largest_epsilon` is 0 if no epsilon would make it fit; `largest_delta` is what remains, if its delta is too
    large, or else 0. Before the first release, `like` is empty and both are the total.
    """

    more: int
    largest_epsilon: float
    largest_delta: float
    like: str

    def __repr__(self) -> str:
        if not self.like:
            return f"all of epsilon {self.largest_epsilon!r} and delta {self.largest_delta!r}"
        if not self.more and not self.largest_epsilon:
            if not self.largest_delta:
                return "nothing"
            return f"too little for its delta: a release needs a delta of at most {_shown(self.largest_delta)}"
        largest = _shown(self.largest_epsilon)
        if not self.more:
            return f"one release like {self.like} with epsilon up to {largest}"
        number = f"about {self.more}" if self.more < MOST_COUNTED else f"over {self.more}"
        releases = f"{number} more release{'s' if self.more > 1 else ''} like {self.like}"
        return f"{releases}, or one with epsilon up to {largest}"


def _shown(number: float) -> str:
    """Two digits, rounded down so that it fits; a number that was given with up to six digits as it was given."""
    return f"{number if float(f'{number:g}') == number else round_down(number):g}"


@dataclass(frozen=True)
class Account:
    """A dataset: the total that all releases of it may cost together, and what was booked.

    With the accounting `auto` nothing is booked yet: the first booking says how releases add up (`by_first`).
    `share` is the part of delta that zcdp reserves for counts that pass a threshold.
    """

    name: str
    total: Budget
    accounting: str
    bookings: tuple[Booking, ...] = ()
    share: float = HALF
    by_first: bool = False

    @property
    def spends(self) -> list[Spend]:
        """All that was booked, in order."""
        return [booking.spend for booking in self.bookings]

    @property
    def title(self) -> str:
        """The dataset and its total in one line."""
        total = self.total
        return (
            f"{self.name}: epsilon {total.epsilon:g}, delta {total.delta:g} in all, accounting {self.accounting}"
        )

    def cells(self) -> list[tuple[str, ...]]:
        """The bookings as texts."""
        return [
            (
                str(one.number), one.created, f"{one.spend.epsilon:g}", f"{one.spend.delta:g}",
                "-" if one.written is None else str(one.written["address"]),
            )
            for one in self.bookings
        ]  # fmt: skip

    def __str__(self) -> str:
        return f"{self.title}\n\n{text_grid(_COLUMNS, self.cells(), left=2)}"

    def _repr_html_(self) -> str:
        return html_grid(self.title, _COLUMNS, self.cells())

    def booking_of(self, id: str) -> Booking | None:
        """The booking of a run with this id."""
        return next((booking for booking in self.bookings if booking.id == id), None)

    def delta_with(self, spends: Sequence[Spend], composer: Composer) -> float:
        """The delta at the total epsilon of all that was booked and of these."""
        if composer.accounting not in ((self.accounting,) if self.accounting != AUTO else ("zcdp", "sum")):
            raise InvalidParameter(
                f"the dataset {self.name!r} has the accounting {self.accounting!r}, not {composer.accounting!r}"
            )
        if isinstance(composer, ConcentratedComposer):
            # Both limits hold for all releases together only if they never change.
            share = composer.share if self.accounting == AUTO else self.share
            if (composer.total, composer.share) != (self.total, share):
                raise InvalidParameter(
                    f"the composer must have the total of the dataset {self.name!r}, epsilon "
                    f"{self.total.epsilon!r} and delta {self.total.delta!r}, and its share, {share!r}"
                )
        return composer.total_delta([*self.spends, *spends], self.total.epsilon)

    def check_fits(self, spend: Spend, composer: Composer, spend_at: SpendAt | None = None) -> None:
        """Raise `OverBudget`, with what is left, if the total does not allow this spend.

        `spend_at` is for the message: what the same release would spend with another epsilon.
        """
        together = self.delta_with([spend], composer)
        # So that NaN is refused.
        if not together <= self.total.delta:
            reason = f"the total is epsilon {self.total.epsilon!r} and delta {self.total.delta!r}"
            if composer.accounting == "pld":
                reason = f"with it the delta at epsilon {self.total.epsilon!r} would be {together:.4g}"
            raise OverBudget(
                f"the dataset {self.name!r} has no room for epsilon {spend.epsilon!r} and delta {spend.delta!r}: "
                f"{reason}; remaining: {self.remaining_in_words(composer, spend, 'this one', spend_at)}"
            )

    def left(self, composer: Composer) -> dict[str, float]:
        """What is spent and what is left, in the numbers that the accounting has."""
        if isinstance(composer, ConcentratedComposer):
            return {"delta_spent": max(0.0, self.delta_with([], composer)), **composer.left(self.spends)}
        if composer.accounting != "sum":
            return {"delta_spent": max(0.0, self.delta_with([], composer))}
        epsilon = decimal_fraction(self.total.epsilon) - _sum(spend.epsilon for spend in self.spends)
        delta = decimal_fraction(self.total.delta) - _sum(spend.delta for spend in self.spends)
        return {"epsilon_left": largest_float(epsilon), "delta_left": largest_float(delta)}

    def remaining(
        self, composer: Composer, spend: Spend, like: str = "this one", spend_at: SpendAt | None = None
    ) -> Remaining:
        """What remains, in releases like one that spends this; with `spend_at`, the epsilon was tried out."""
        more, left = self.more_that_fit(spend, composer), self.left(composer)
        largest = max(self.largest_epsilon_like(spend, composer, spend_at), spend.epsilon if more else 0.0)
        needed = concentrated(spend)[1] if isinstance(composer, ConcentratedComposer) else spend.delta
        delta = left["delta_left"] if "delta_left" in left else self.total.delta - left["delta_spent"]
        return Remaining(more, largest, delta if needed > delta > 0.0 else 0.0, like)

    def remaining_in_words(
        self,
        composer: Composer,
        spend: Spend | None = None,
        like: str = "the last one",
        spend_at: SpendAt | None = None,
    ) -> str:
        """What remains, for people: in releases like this one, or like the last one that is booked."""
        total = self.total
        if not self.bookings and spend is None:
            return repr(Remaining(0, total.epsilon, total.delta, ""))
        if composer.accounting == "pld":
            # To count releases would compose them again and again.
            unspent = max(0.0, total.delta - self.left(composer)["delta_spent"])
            return f"{unspent:.4g} of the delta {total.delta!r} at epsilon {total.epsilon!r}"
        return str(self.remaining(composer, spend or self.spends[-1], like, spend_at))

    def more_that_fit(self, spend: Spend, composer: Composer) -> int:
        """How many more such spends the total allows, counted up to `MOST_COUNTED`.

        *Guarantee*: that many were composed and fit.
        """

        def fits(times: int) -> bool:
            return self.delta_with([spend] * times, composer) <= self.total.delta

        fit, too_many = 0, 1
        while too_many <= MOST_COUNTED and fits(too_many):
            fit, too_many = too_many, 2 * too_many
        too_many = min(too_many, MOST_COUNTED + 1)
        while too_many - fit > 1:
            middle = (fit + too_many) // 2
            fit, too_many = (middle, too_many) if fits(middle) else (fit, middle)
        return fit

    def largest_epsilon_like(
        self, spend: Spend, composer: Composer, spend_at: SpendAt | None = None, times: int = 1
    ) -> float:
        """About the largest epsilon with which a release like this one fits so many times; 0 if there is none.

        *Guarantee*: with `spend_at`, the release was planned with this epsilon, and fits.
        """
        if not isinstance(composer, ConcentratedComposer) or spend.profile is None:
            return self.largest_epsilon(spend.delta, composer)
        best = 0.0
        for _ in range(_TRIES):
            epsilon = composer.largest_epsilon(spend, self.spends, times)
            if spend_at is None:
                return epsilon
            # An estimate from far away can be much too small: then the next one is better.
            if round_down(epsilon) <= 1.05 * best:
                return best
            spend = spend_at(round_down(epsilon), composer)
            if self.delta_with([spend] * times, composer) <= self.total.delta:
                best = spend.epsilon
        return best

    def largest_epsilon(self, delta: float, composer: Composer) -> float:
        """About the largest epsilon that any one further release with this delta may have; 0 if there is none.

        *Guarantee*: it was composed, as the worst release with this epsilon and delta, and fits.
        """

        def fits(epsilon: float) -> bool:
            return self.delta_with([Spend(epsilon, delta)], composer) <= self.total.delta

        if composer.accounting == "sum":
            left = self.left(composer)["epsilon_left"]
            return left if left > 0.0 and fits(left) else 0.0
        fit, too_much = 0.0, self.total.epsilon
        if fits(too_much):
            return too_much
        for _ in range(_HALVINGS):
            middle = (fit + too_much) / 2.0
            fit, too_much = (middle, too_much) if fits(middle) else (fit, middle)
        return fit


# What a release would spend with another epsilon.
SpendAt = Callable[[float, Composer], Spend]


def _sum(numbers: Any) -> Fraction:
    return sum((decimal_fraction(number) for number in numbers), Fraction())


@dataclass(frozen=True)
class Accounts:
    """A checked chain and what it says."""

    chain: Chain
    id: str
    datasets: dict[str, Account]

    def rows(self) -> list[tuple[str, str]]:
        """Each dataset with its total and how many releases are booked."""
        return [
            (one.name, f"epsilon {one.total.epsilon:g}, delta {one.total.delta:g}, {len(one.bookings)} booked")
            for one in self.datasets.values()
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table(f"Ledger {self.id}", self.rows())

    def find(self, dataset: str) -> Account:
        """The account of a dataset, or one sentence with the names that there are."""
        if dataset in self.datasets:
            return self.datasets[dataset]
        near = difflib.get_close_matches(dataset, self.datasets, n=1) if isinstance(dataset, str) else []
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        known = ", ".join(repr(name) for name in sorted(self.datasets))
        raise LedgerError(f"the ledger has no dataset {dataset!r:.80}{hint}: it has {known}")

    def check_checkpoint(self, checkpoint: Checkpoint, path: Path) -> None:
        """Raise `LedgerError` unless the ledger begins with what it was at the checkpoint."""
        entry, chain = checkpoint.entry, self.chain
        if self.id != checkpoint.ledger:
            raise LedgerError(f"the checkpoint is of the ledger {checkpoint.ledger}, and {path} is {self.id}")
        if chain.number < entry:
            raise LedgerError(
                f"the ledger {path} has {chain.number} entries, and had {entry} on {checkpoint.created}: entries "
                "are missing from it, as from an older copy"
            )
        if chain.entries[entry - 1].hash != checkpoint.hash:
            raise LedgerError(f"the ledger {path} was changed after {checkpoint.created}: it is another chain")

    def booking(self, number: int, value: str) -> Booking | None:
        """The booking with this number and this hash."""
        for account in self.datasets.values():
            for booking in account.bookings:
                if (booking.number, booking.hash) == (number, value):
                    return booking
        return None


def checked_name(name: str, what: str = "dataset") -> str:
    """A name that can stand in tables and sentences."""
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        raise InvalidParameter(f"{what} must be a name of 1 to {_LONGEST_NAME} characters, not {name!r:.80}")
    if not name.isprintable() or name != name.strip():
        raise InvalidParameter(f"{what} must be a name of characters that can be printed, not {name!r}")
    return name


def alike(one: str, other: str) -> bool:
    """Whether two names are the same but for capitals and forms of letters; each would have its own total."""
    plain, again = (unicodedata.normalize("NFKC", name).casefold() for name in (one, other))
    return plain == again


def checked_accounting(accounting: str) -> str:
    """One of those that are known."""
    if accounting not in ACCOUNTINGS:
        raise InvalidParameter(f"accounting must be one of {', '.join(ACCOUNTINGS)}, not {accounting!r}")
    return accounting


def accounts_of(chain: Chain) -> Accounts:
    """The accounts that a chain describes; raises `Damage` where it makes no sense."""
    datasets: dict[str, Account] = {}
    bookings: dict[str, dict[int, Booking]] = {}
    name = ""
    for entry in chain.entries:
        try:
            body = json.loads(entry.body)
            if (entry.kind == "ledger") is not (entry.number == 1):
                raise ValueError
            if entry.kind == "ledger":
                name = _id_from(body)
            elif entry.kind == "dataset":
                _add_dataset(datasets, entry, body)
                bookings[entry.dataset] = {}
            elif entry.kind == "booking":
                _add_booking(datasets, bookings[entry.dataset], _booking_from(name, entry, body), body)
            else:
                _close(bookings[entry.dataset], entry.kind, body)
        except (KeyError, TypeError, ValueError, RecursionError, DphistError):
            raise Damage(f"entry {entry.number} makes no sense") from None
    if not datasets:
        raise Damage("it has no dataset")
    full = {key: replace(one, bookings=tuple(bookings[key].values())) for key, one in datasets.items()}
    return Accounts(chain, name, full)


def _id_from(body: Any) -> str:
    name = body["id"]
    if body["format"] != FORMAT or not isinstance(name, str) or not re.fullmatch("[0-9a-f]{32}", name):
        raise ValueError
    return name


def _add_dataset(datasets: dict[str, Account], entry: Entry, body: Any) -> None:
    if entry.dataset in datasets:
        raise ValueError
    total = Budget(body["epsilon"], body["delta"])
    name = checked_name(entry.dataset)
    datasets[name] = Account(name, total, checked_accounting(body["accounting"]))


def _booking_from(name: str, entry: Entry, body: Any) -> Booking:
    spend = Spend(body["epsilon"], body["delta"], body["profile"], body["document"])
    id, run = body.get("id"), body.get("run")
    if (id is None) != (run is None) or (id is not None and not isinstance(run, dict)):
        raise ValueError
    if id is not None:
        checked_name(id, "id")
    return Booking(name, entry.dataset, entry.number, entry.hash, entry.created, spend, id=id, run=run)


def _add_booking(datasets: dict[str, Account], bookings: dict[int, Booking], booking: Booking, body: Any) -> None:
    """One booking more; that of a dataset with the accounting auto, if it is the first, says what that is."""
    account, rule = datasets[booking.dataset], body.get("accounting")
    if (account.accounting == AUTO) is not (rule is not None):
        raise ValueError
    if rule is not None:
        share = rule.get("share", HALF)
        if rule["name"] not in ("zcdp", "sum") or not isinstance(share, float) or not 0.0 < share < 1.0:
            raise ValueError
        datasets[booking.dataset] = replace(account, accounting=rule["name"], share=share, by_first=True)
    if booking.id is not None and any(one.id == booking.id for one in bookings.values()):
        raise ValueError
    bookings[booking.number] = booking


def _close(bookings: dict[int, Booking], kind: Kind, body: Any) -> None:
    """A booking of which it is known that its release was written, that it failed, or that it was run again."""
    booking = bookings[body["booking"]]
    if booking.written is not None or booking.failed is not None:
        raise ValueError
    if kind == "run":
        closed = replace(booking, runs=booking.runs + 1)
    elif kind == "settlement":
        closed = replace(booking, written={"sha256": body["sha256"], "address": body["address"]})
    else:
        closed = replace(booking, failed=str(body["error"]))
    bookings[booking.number] = closed


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
        entry = self.chain.next_entry(kind, dataset, body)
        store.append(self.connection, entry.row())
        self.chain = Chain((*self.chain.entries, entry))
        return entry

    def book(self, dataset: str, spend: Spend, composer: Composer, id: str | None, run: Any) -> Booking:
        account = self.accounts.find(dataset)
        body = spend.to_dict()
        if account.accounting == AUTO:
            share = {"share": composer.share} if isinstance(composer, ConcentratedComposer) else {}
            body["accounting"] = {"name": composer.accounting, **share}
        if id is not None:
            if account.booking_of(id) is not None:
                raise AlreadyRunning(f"another run of the id {id!r} has just booked its release")
            body |= {"id": id, "run": run}
        entry = self.append("booking", dataset, body)
        return Booking(self.accounts.id, dataset, entry.number, entry.hash, entry.created, spend, id=id, run=run)


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
        wait_seconds: float = store.WAIT_SECONDS,
    ) -> Ledger:
        """A ledger that is there; all of it is checked.

        `expect` is a hash that must still be in it, `checkpoint` what the ledger must still begin with.
        """
        if expect is not None and not (isinstance(expect, str) and _HASH.fullmatch(expect)):
            raise InvalidParameter(f"expect must be the hash of a receipt, 64 digits, not {expect!r:.80}")
        ledger = cls(store.checked_path(path), wait_seconds)
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
        accounting: str = AUTO,
        wait_seconds: float = store.WAIT_SECONDS,
    ) -> Ledger:
        """A dataset and its total, in a new ledger or one that is there. A total is never changed afterwards."""
        total, name = Budget(epsilon, delta), checked_name(dataset)
        body = {"epsilon": total.epsilon, "delta": total.delta, "accounting": checked_accounting(accounting)}
        ledger = cls(store.checked_path(path), wait_seconds)
        if not ledger._create_file(name, body) and not ledger._create_tables(name, body):
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
        with self._connection() as connection, store.transaction(connection, writing=False):
            store.check_format(connection, self._path)
            store.check_pages(connection, self._path)
            rows = store.all_rows(connection)
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
        return self.book_release(dataset, lambda _: (spend, composer))

    def book_release(
        self,
        dataset: str,
        price: Callable[[Account], tuple[Spend, Composer]],
        *,
        spend_at: SpendAt | None = None,
        id: str | None = None,
        run: dict[str, Any] | None = None,
    ) -> Booking:
        """The same for a release whose spend depends on the accounting: `price` gives both for the account.

        With an `id` this is its only booking; `run` is what was asked for. `spend_at` is for `check_fits`.
        """
        for _ in range(_ATTEMPTS):
            # Composing may take seconds: others can book meanwhile, and then it is done again.
            before = self.accounts()
            account = before.find(dataset)
            spend, composer = price(account)
            spend = spend.through_json()
            account.check_fits(spend, composer, spend_at)
            with self._writing(before) as page:
                if _unchanged(account, page.accounts.find(dataset)):
                    return page.book(dataset, spend, composer, id, run)
        with self._writing(before) as page:
            # Nobody can be faster any more.
            spend, composer = price(page.accounts.find(dataset))
            spend = spend.through_json()
            page.accounts.find(dataset).check_fits(spend, composer, spend_at)
            return page.book(dataset, spend, composer, id, run)

    def settle(self, booking: Booking, *, sha256: str, address: str) -> None:
        """Note that the release of a booking was written, and where. What it costs stays the same."""
        self._close(booking, "settlement", {"sha256": str(sha256), "address": str(address)})

    def note_run(self, booking: Booking) -> None:
        """Note that the booking of an id is used again; not more than a few times."""
        if booking.runs >= MOST_RUNS:
            raise LedgerError(
                f"the id {booking.id!r} was run {booking.runs} times without a result, which may be because of "
                "what is in the events: choose another id, which books again"
            )
        self._close(booking, "run", {})

    def fail(self, booking: Booking, error: str) -> None:
        """Note that a run with an id has failed, so that its booking is not used again."""
        self._close(booking, "failure", {"error": error})

    def _close(self, booking: Booking, kind: Kind, facts: dict[str, Any]) -> None:
        with self._writing(self.accounts()) as page:
            found = page.accounts.booking(booking.number, booking.hash)
            if found is None:
                raise LedgerError(f"the ledger {self._path} has no booking {booking.number} with this hash")
            if found.written is not None or found.failed is not None:
                raise LedgerError(f"booking {booking.number} of the ledger {self._path} is settled already")
            page.append(kind, found.dataset, {"booking": booking.number, **facts})

    @contextmanager
    def only_run_of(self, dataset: str, id: str) -> Iterator[None]:
        """Raise `AlreadyRunning` while another process, or thread, has this context for the same id."""
        name = sha256(store.canonical([dataset, id]).encode()).hexdigest()[:16]
        with store.lock_file(self._path.with_name(f".{self._path.name}.{name}.lock")) as held:
            if not held:
                raise AlreadyRunning(f"another run of the id {id!r} of the dataset {dataset!r} is going on")
            yield

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        before = store.identity(self._path)
        with store.connect_ledger(self._path, self._wait) as connection:
            yield connection
        # What was appended to a file that has lost its name is lost with it.
        if store.identity(self._path) != before:
            raise LedgerError(f"the ledger {self._path} {store.REPLACED}")

    def _create_file(self, name: str, body: dict[str, Any]) -> bool:
        """Whether there was no file, and is a ledger with this dataset now; killed on the way there is no file."""
        if os.path.lexists(self._path):
            sweep(self._path.parent)  # what an init has left that was killed when its ledger was there
            return False
        with store.new_file(self._path) as file:
            made = Ledger(file, self._wait)
            if not made._create_tables(name, body) or not store.publish(file, self._path):
                return False
        self._seen = made._seen
        return True

    def _create_tables(self, name: str, body: dict[str, Any]) -> bool:
        """Whether the file was empty, and is a ledger with this dataset now: both at once, or not at all."""
        with self._connection() as connection, store.transaction(connection, writing=True):
            if not store.is_empty(self._path):
                return False
            store.make_tables(connection)
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
        with self._connection() as connection, store.transaction(connection, writing=True):
            store.check_format(connection, self._path)
            last, *more = store.rows_after(connection, known.number - 1) or [()]
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
