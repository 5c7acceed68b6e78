"""Releases that are booked in a ledger: before any noise is drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dphist.calibrate.auto_cap import ChoicePlan
from dphist.errors import InvalidParameter, LedgerError
from dphist.releases.document import guarantee
from dphist.types import Plan

if TYPE_CHECKING:
    from dphist.ledger import Booking, Composer, Ledger, Spend


def composer_for(accounting: str) -> Composer:
    """What adds up the spends of a dataset: plainly, or by their privacy profiles."""
    from dphist.ledger import ProfileComposer, SumComposer

    if accounting == "sum":
        return SumComposer()
    from dphist.accounting import Profile, total_delta

    def profile_of(spend: Spend) -> Profile:
        if spend.profile is None:
            return Profile.of_budget(spend.epsilon, spend.delta)
        return Profile.from_dict(spend.profile)

    return ProfileComposer(profile_of, total_delta)


def spend_of(planned: Plan | ChoicePlan, accounting: str, document: dict[str, Any] | None = None) -> Spend:
    """What a release spends. That of a chosen cap counts by its budget alone, that of one plan by its profile."""
    from dphist.ledger import Spend

    epsilon, delta = planned.budget.epsilon, planned.budget.delta
    if accounting == "sum" or isinstance(planned, ChoicePlan):
        return Spend(epsilon, delta, None, document or {})
    from dphist.accounting import profile_of_plan

    # Within half a percent: twice as quick as the finest, and epsilon of ten releases is 0.1 % larger.
    return Spend(epsilon, delta, profile_of_plan(planned, excess=5e-3).to_dict(), document or {})


@dataclass(frozen=True)
class Booked:
    """A booking in its ledger."""

    ledger: Ledger
    booking: Booking

    def receipt(self) -> dict[str, Any]:
        """What a certificate says of it."""
        return self.booking.receipt()

    def settle(self, written: Any) -> None:
        """Note where the release was written. It is booked whether or not this can be noted too."""
        if written is not None:
            with suppress(LedgerError):
                self.ledger.settle(self.booking, sha256=written.digest, address=written.address)


def check_place(ledger: Any, target: Any) -> None:
    """A release that is written into its own ledger would damage it."""
    if not isinstance(ledger, (str, os.PathLike)) or "\0" in str(ledger):
        raise InvalidParameter(f"--ledger must be the name of a file, not {ledger!r}")
    if target is None:
        return
    places = (target.address, f"{target.address}.certificate.json")
    # What lies in the place of its journal, SQLite takes for one and removes.
    own = {os.path.realpath(ledger), os.path.realpath(ledger) + "-journal"}
    for place in places:
        if os.path.realpath(place) in own:
            raise InvalidParameter(f"the release cannot be written to {place}, which is its ledger")


def book(path: Any, dataset: str, planned: Plan | ChoicePlan, request: Mapping[str, Any]) -> Booked:
    """Book what a release will spend: durably, or an error that says what is left."""
    from dphist.ledger import Ledger

    ledger = Ledger.open(path)
    accounting = ledger.account(dataset).accounting
    plan = planned.plans[0] if isinstance(planned, ChoicePlan) else planned
    promise = guarantee(plan, request, planned.budget)
    document = {"request": dict(request), "plan": planned.to_dict(), "guarantee": promise}
    return Booked(ledger, ledger.book(dataset, spend_of(planned, accounting, document), composer_for(accounting)))
