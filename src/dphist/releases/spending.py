"""Releases that are booked in a ledger: before any noise is drawn."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dphist.analysis.zcdp import delta_zcdp
from dphist.calibrate.auto_cap import ChoicePlan
from dphist.errors import InvalidParameter, LedgerError
from dphist.releases.document import guarantee
from dphist.types import Budget, Plan

if TYPE_CHECKING:
    from dphist.accounting import Concentrated
    from dphist.ledger import Booking, Composer, Ledger, Spend


def composer_for(accounting: str, total: Budget) -> Composer:
    """What adds up the spends of a dataset with this total."""
    from dphist.ledger import ConcentratedComposer, ProfileComposer, SumComposer

    if accounting == "sum":
        return SumComposer()
    if accounting == "zcdp":
        return ConcentratedComposer(total, limits_of(total), delta_of_rho)
    from dphist.accounting import Profile, total_delta

    def profile_of(spend: Spend) -> Profile:
        if spend.profile is None:
            return Profile.of_budget(spend.epsilon, spend.delta)
        return Profile.from_dict(spend.profile)

    return ProfileComposer(profile_of, total_delta)


def spend_of(planned: Plan | ChoicePlan, accounting: str, document: dict[str, Any] | None = None) -> Spend:
    """What a release spends, in the terms of an accounting."""
    from dphist.ledger import Spend

    epsilon, delta = planned.budget.epsilon, planned.budget.delta
    if accounting == "zcdp":
        found = _concentrated(planned)
        return Spend(epsilon, delta, {"rho": found.rho, "delta": found.delta}, document or {})
    # The profile of a chosen cap is not computed: it counts by its budget.
    if accounting == "sum" or isinstance(planned, ChoicePlan):
        return Spend(epsilon, delta, None, document or {})
    from dphist.accounting import profile_of_plan

    # Within half a percent: twice as quick as the finest, and epsilon of ten releases is 0.1 % larger.
    return Spend(epsilon, delta, profile_of_plan(planned, excess=5e-3).to_dict(), document or {})


def _concentrated(planned: Plan | ChoicePlan) -> Concentrated:
    """rho and delta of a release: with a chosen cap, of its noisy sizes and the worst release that may follow.

    The sizes are one discrete Gaussian that moves by one: rho = 1/(2 V). What follows may depend on them.
    """
    from dphist.accounting import Concentrated, zcdp_of_plan

    if isinstance(planned, Plan):
        return zcdp_of_plan(planned)
    each = [zcdp_of_plan(plan) for plan in planned.plans]
    sizes = math.nextafter(float(1 / (2 * planned.choice.variance)), math.inf)
    rho = math.nextafter(sizes + max(one.rho for one in each), math.inf)
    return Concentrated(rho, max(one.delta for one in each))


@lru_cache(maxsize=256)
def limits_of(total: Budget) -> tuple[float, float]:
    """The largest rho, and the delta beside it, that a total allows: half of delta for each.

    Guarantee: the delta of that rho at the total's epsilon was computed, and is within the half.
    """
    half = total.delta / 2.0
    low, high = 0.0, total.epsilon
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if delta_zcdp(rho=middle, epsilon=total.epsilon) <= half else (low, middle)
    return low, half


def delta_of_rho(rho: float, epsilon: float) -> float:
    """delta of rho-zCDP at epsilon, by the tight conversion."""
    return delta_zcdp(rho=rho, epsilon=epsilon)


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
    account = ledger.account(dataset)
    accounting = account.accounting
    plan = planned.plans[0] if isinstance(planned, ChoicePlan) else planned
    promise = guarantee(plan, request, planned.budget)
    document = {"request": dict(request), "plan": planned.to_dict(), "guarantee": promise}
    return Booked(
        ledger,
        ledger.book(dataset, spend_of(planned, accounting, document), composer_for(accounting, account.total)),
    )
