"""`Session`: several releases from the same events under one total budget, in a notebook or a script."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, ClassVar, Final

from dphist.display import Grid
from dphist.errors import InvalidParameter
from dphist.ledger import Ledger
from dphist.ledger.accounts import AUTO, Account, Remaining
from dphist.ledger.store import ledger_path
from dphist.releasing.result import Release
from dphist.releasing.run import release

_DATASET: Final = "events"


def _remove_folder(folder: str, owner: int) -> None:
    # A forked process must not remove the ledger of its parent.
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class Session(Grid):
    """One input with its column of users, and a total budget for all releases from it.

    Every release is booked before its noise is drawn; one that does not fit raises `OverBudget`.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> session = dphist.Session(log, user="user", epsilon=3, delta=1e-6)
    >>> found = session.release(item="query", epsilon=1, delta=1e-7, max_items_per_user=1)
    >>> print(len(session.account.bookings), "booked; remaining:", session.remaining)
    1 booked; remaining: about 2 more releases like the last one, or one with epsilon up to 2

    Args:
        input: The events, in any form that `dphist.release` reads.
        user: Column that identifies the user.
        epsilon: Total ε of all releases. Left out for a dataset that exists: it keeps its total.
        delta: Total δ of all releases, likewise.
        ledger: File of the ledger; without it, a temporary one, so that the total covers this session only.
        dataset: With `ledger`: the name of the dataset.
        accounting: How releases add up, as for `dphist.ledger.Ledger.init`.
        **options: Options of `dphist.release` that all releases share, such as `where` or `table`.
    """

    columns: ClassVar[tuple[str, ...]] = ("item", "epsilon", "delta", "written to")

    def __init__(
        self,
        input: object,
        *,
        user: str,
        epsilon: float | None = None,
        delta: float | None = None,
        ledger: str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        accounting: str | None = None,
        **options: Any,
    ) -> None:
        if (ledger is None) != (dataset is None):
            raise InvalidParameter("ledger and dataset go together: a ledger has a budget for each dataset")
        if (epsilon is None) != (delta is None):
            raise InvalidParameter("epsilon and delta go together: they are the total budget of all releases")
        self._given = {"input": input, "user": user, **options}
        if ledger is None or dataset is None:
            if epsilon is None or delta is None:
                raise InvalidParameter("a session needs the total epsilon and delta, or a ledger and a dataset")
            folder = tempfile.mkdtemp(prefix="dphist-session-")
            weakref.finalize(self, _remove_folder, folder, os.getpid())
            ledger, dataset = Path(folder) / "ledger", _DATASET
        # The working folder may change later.
        self._path, self._dataset = ledger_path(ledger).absolute(), dataset
        if epsilon is None or delta is None:
            self._ledger = Ledger.open(self._path)
        else:
            self._ledger = self._init(epsilon, delta, AUTO if accounting is None else accounting)
        account = self.account
        # The first booking has replaced "auto" by the accounting it chose.
        if accounting not in (None, account.accounting, *([AUTO] if account.by_first else [])):
            raise InvalidParameter(
                f"the dataset {dataset!r} has the accounting {account.accounting!r}, which cannot be changed: "
                "leave accounting out"
            )

    def _init(self, epsilon: float, delta: float, accounting: str) -> Ledger:
        """A new dataset with this total, or an existing one that has it."""
        if os.path.lexists(self._path):
            ledger = Ledger.open(self._path)
            known = ledger.accounts().datasets.get(self._dataset)
            if known is not None:
                if (known.total.epsilon, known.total.delta) != (epsilon, delta):
                    raise InvalidParameter(
                        f"the dataset {self._dataset!r} has a total of epsilon {known.total.epsilon!r} and delta "
                        f"{known.total.delta!r}, which cannot be changed: leave epsilon and delta out"
                    )
                return ledger
        return Ledger.init(self._path, self._dataset, epsilon=epsilon, delta=delta, accounting=accounting)

    @property
    def account(self) -> Account:
        """The total and all bookings."""
        return self._ledger.account(self._dataset)

    def release(self, **options: Any) -> Release:
        """`dphist.release` of the events, with these `options`; raises `OverBudget` if it does not fit."""
        for name in ("ledger", "dataset", *self._given):
            if name in options:
                raise InvalidParameter(f"{name} is fixed for the session: pass it to dphist.Session")
        return release(**{**self._given, **options, "ledger": self._path, "dataset": self._dataset})

    @property
    def remaining(self) -> Remaining:
        """The remaining budget, in releases like the last one."""
        return self.account.remaining()

    @property
    def title(self) -> str:
        total = self.account.total
        budget = f"epsilon {total.epsilon:g} and delta {total.delta:g}"
        return f"Session with a total of {budget}; remaining: {self.remaining}"

    def cells(self) -> list[tuple[str, ...]]:
        """The bookings."""
        return [
            (
                ", ".join(booking.spend.document.get("request", {}).get("item", ["-"])),
                f"{booking.spend.epsilon:g}",
                f"{booking.spend.delta:g}",
                "-" if booking.written is None else booking.written["address"],
            )
            for booking in self.account.bookings
        ]

    __repr__ = Grid.__str__
