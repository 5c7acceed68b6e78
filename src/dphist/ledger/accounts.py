"""What the entries of a ledger say of each dataset: its total, its bookings, what is left."""

from __future__ import annotations

import difflib
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from dphist.errors import DphistError, InvalidParameter, LedgerError, OverBudget
from dphist.ledger.chain import Chain, Damage, Entry
from dphist.ledger.checkpoint import Checkpoint
from dphist.ledger.composing import (
    ACCOUNTINGS,
    Composer,
    ConcentratedComposer,
    Spend,
    largest_float,
    written,
)
from dphist.types import Budget, html_grid, html_table, text_grid, text_table

FORMAT: Final = "dphist-ledger-1"
_LONGEST_NAME: Final = 200
# Beyond this nobody counts; it bounds the work of a composer.
MOST_COUNTED: Final = 1000
# For an epsilon within a thousandth of the total.
_HALVINGS: Final = 10
_COLUMNS: Final = ("entry", "booked", "epsilon", "delta", "written to")


@dataclass(frozen=True)
class Booking:
    """A spend in a ledger. It counts in full, whether or not the release is known to have been written."""

    ledger: str
    dataset: str
    number: int
    hash: str
    created: str
    spend: Spend
    written: dict[str, Any] | None = None

    def receipt(self) -> dict[str, Any]:
        """For the certificate of the release: where its booking is, and the hash by which to find it again."""
        return {"ledger": self.ledger, "dataset": self.dataset, "entry": self.number, "hash": self.hash}


@dataclass(frozen=True)
class Account:
    """A dataset: the total that all releases of it may cost together, and what was booked."""

    name: str
    total: Budget
    accounting: str
    bookings: tuple[Booking, ...] = ()

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

    def delta_with(self, spends: Sequence[Spend], composer: Composer) -> float:
        """The delta at the total epsilon of all that was booked and of these."""
        if composer.accounting != self.accounting:
            raise InvalidParameter(
                f"the dataset {self.name!r} has the accounting {self.accounting!r}, not {composer.accounting!r}"
            )
        return composer.total_delta([*self.spends, *spends], self.total.epsilon)

    def check_fits(self, spend: Spend, composer: Composer) -> None:
        """Raise `OverBudget`, with what is left, if the total does not allow this spend."""
        together = self.delta_with([spend], composer)
        # So that NaN is refused.
        if not together <= self.total.delta:
            raise OverBudget(
                f"the dataset {self.name!r} has no room for epsilon {spend.epsilon!r} and delta {spend.delta!r}: "
                f"{self._reason(together)}; {self.left_in_words(composer)}"
            )

    def _reason(self, together: float) -> str:
        if self.accounting == "sum":
            return f"the total is epsilon {self.total.epsilon!r} and delta {self.total.delta!r}"
        if self.accounting == "zcdp":
            return "its rho, or the delta beside it, is more than that"
        return f"with it the delta at epsilon {self.total.epsilon!r} would be {together:.4g}"

    def left(self, composer: Composer) -> dict[str, float]:
        """What is spent and what is left, in the numbers that the accounting has."""
        if isinstance(composer, ConcentratedComposer):
            return {"delta_spent": max(0.0, self.delta_with([], composer)), **composer.left(self.spends)}
        if self.accounting != "sum":
            return {"delta_spent": max(0.0, self.delta_with([], composer))}
        epsilon = written(self.total.epsilon) - _sum(spend.epsilon for spend in self.spends)
        delta = written(self.total.delta) - _sum(spend.delta for spend in self.spends)
        return {"epsilon_left": largest_float(epsilon), "delta_left": largest_float(delta)}

    def left_in_words(self, composer: Composer) -> str:
        """The same as the end of a sentence."""
        left = self.left(composer)
        if "rho_left" in left:
            return f"left are rho {left['rho_left']:.4g} and, beside it, delta {left['delta_left']:.4g}"
        if "delta_spent" in left:
            total = self.total
            return f"so far the delta at epsilon {total.epsilon!r} is {left['delta_spent']:.4g} of {total.delta!r}"
        return f"left are epsilon {left['epsilon_left']!r} and delta {left['delta_left']!r}"

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

    def largest_epsilon(self, delta: float, composer: Composer) -> float:
        """About the largest epsilon that any one further release with this delta may have; 0 if there is none.

        *Guarantee*: it was composed, as the worst release with this epsilon and delta, and fits.
        """

        def fits(epsilon: float) -> bool:
            return self.delta_with([Spend(epsilon, delta)], composer) <= self.total.delta

        if self.accounting == "sum":
            left = self.left(composer)["epsilon_left"]
            return left if left > 0.0 and fits(left) else 0.0
        fit, too_much = 0.0, self.total.epsilon
        if fits(too_much):
            return too_much
        for _ in range(_HALVINGS):
            middle = (fit + too_much) / 2.0
            fit, too_much = (middle, too_much) if fits(middle) else (fit, middle)
        return fit


def _sum(numbers: Any) -> Fraction:
    return sum((written(number) for number in numbers), Fraction())


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


def checked_name(dataset: str) -> str:
    """A name that can stand in tables and sentences."""
    if not isinstance(dataset, str) or not dataset.strip() or len(dataset) > _LONGEST_NAME:
        raise InvalidParameter(f"dataset must be a name of 1 to {_LONGEST_NAME} characters, not {dataset!r:.80}")
    if not dataset.isprintable() or dataset != dataset.strip():
        raise InvalidParameter(f"dataset must be a name of characters that can be printed, not {dataset!r}")
    return dataset


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
                bookings[entry.dataset][entry.number] = _booking_from(name, entry, body)
            else:
                _settle(bookings[entry.dataset], body)
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
    return Booking(name, entry.dataset, entry.number, entry.hash, entry.created, spend)


def _settle(bookings: dict[int, Booking], body: Any) -> None:
    booking = bookings[body["booking"]]
    if booking.written is not None:
        raise ValueError
    bookings[booking.number] = replace(booking, written={"sha256": body["sha256"], "address": body["address"]})
