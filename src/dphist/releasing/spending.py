"""Releases that are booked in a ledger: before any noise is drawn.

A booking stays after every failure, also after one before the first draw of noise. To give it back would make
failures free, and a failure can tell of the data: a condition that exhausts the memory only if one person is in
the log, or an interrupt after looking at the clock, would be a noiseless question that can be asked without end.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dphist.errors import DphistError, InvalidParameter, LedgerError
from dphist.planning.auto_cap import ChoicePlan
from dphist.privacy.paper import delta_zcdp
from dphist.privacy.types import Budget, Plan
from dphist.releasing.certificate import guarantee_facts

if TYPE_CHECKING:
    from dphist.accounting import Concentrated
    from dphist.ledger import Booking, Composer, Ledger, Spend
    from dphist.releasing.request import Request


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


@dataclass
class Attempt:
    """How far a release has come that is booked: what a failure has to say of it."""

    request: Request
    booked: Booked | None = None
    release: Any = None
    written: Any = None

    def placed(self, written: Any) -> None:
        """The release is there."""
        self.written = written

    def booking(self) -> dict[str, Any]:
        """The booking that stays, as data."""
        known = {"ledger": None, "entry": None, "hash": None} if self.booked is None else self.booked.receipt()
        facts = {
            "ledger_file": os.fspath(self.request.ledger or ""), **known, "dataset": self.request.dataset,
            "epsilon": self.request.epsilon, "delta": self.request.delta,
            "state": "unknown" if self.booked is None else "booked",
            "written": None if self.written is None else self.written.address,
        }  # fmt: skip
        return {**facts, "summary": _summary(facts)}


def _summary(facts: Mapping[str, Any]) -> str:
    budget = f"epsilon {facts['epsilon']!r} and delta {facts['delta']!r} of the dataset {facts['dataset']!r}"
    ledger = facts["ledger_file"]
    if facts["entry"] is None:
        return f"Whether {budget} were booked is not known: see dphist ledger show {ledger}"
    place = f"entry {facts['entry']} of the ledger {ledger}"
    if facts["written"] is not None:
        return f"The release was written to {facts['written']}, and its budget is booked as {place}"
    return (
        f"The privacy budget was spent: {budget} stay booked as {place}. Every run books its budget anew: remove "
        "the cause of the failure before the next one"
    )


@contextmanager
def booked_attempt(request: Request) -> Iterator[Attempt]:
    """Whatever fails within says what stays booked: in its text, and in attributes (see `DphistError`)."""
    attempt = Attempt(request)
    try:
        yield attempt
    except BaseException as error:
        # What the ledger refuses by a sentence of its own is not booked.
        if request.ledger is not None and (attempt.booked is not None or not isinstance(error, DphistError)):
            _tell(error, attempt)
        raise


def _tell(error: BaseException, attempt: Attempt) -> None:
    booking = attempt.booking()
    if isinstance(error, DphistError):
        said = f"{str(error).rstrip('.')}. {booking['summary']}"
        error.args = (said,)
        if isinstance(error, ImportError):  # which keeps its text twice
            error.msg = said
    else:
        error.add_note(booking["summary"])
    with suppress(AttributeError):
        error.booking = booking  # type: ignore[attr-defined]
    if attempt.release is not None and attempt.written is None:
        error.add_note("error.release is the release: error.release.write(NAME) writes it without a new booking")
        with suppress(AttributeError):
            error.release = attempt.release  # type: ignore[attr-defined]


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
    promise = guarantee_facts(plan, request, planned.budget)
    document = {"request": dict(request), "plan": planned.to_dict(), "guarantee": promise}
    return Booked(
        ledger,
        ledger.book(dataset, spend_of(planned, accounting, document), composer_for(accounting, account.total)),
    )
