"""Releases that are booked in a ledger, before any noise is drawn.

A booking stays after every failure, also after one before the first draw of noise. Returning it would make
failures free, and a failure can reveal data: a condition that exhausts the memory only if one person is in the
log, or an interrupt after looking at the clock, would be a noiseless query that can be repeated without limit.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
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
    """The composer of a dataset with this accounting and total."""
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
    """What a release spends, by an accounting."""
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


@dataclass
class Attempt:
    """How far a release with a ledger has come: what is booked, and what a failure has to say about it."""

    request: Request
    placed: Callable[[Any], None] | None = None
    ledger: Ledger | None = None
    booking: Booking | None = None
    release: Any = None
    written: Any = None

    def book(self, planned: Plan | ChoicePlan) -> None:
        """Book what the release will spend, durably, or raise an error that says what is left."""
        if self.request.ledger is None:
            return
        from dphist.ledger import Ledger

        assert self.request.dataset is not None
        self.ledger = Ledger.open(self.request.ledger)
        account = self.ledger.account(self.request.dataset)
        plan = planned.plans[0] if isinstance(planned, ChoicePlan) else planned
        recorded = self.request.to_dict()
        promise = guarantee_facts(plan, recorded, planned.budget)
        document = {"request": recorded, "plan": planned.to_dict(), "guarantee": promise}
        self.booking = self.ledger.book(
            account.name,
            spend_of(planned, account.accounting, document),
            composer_for(account.accounting, account.total),
        )

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The booking as the certificate records it."""
        return None if self.booking is None else self.booking.receipt()

    def note_written(self, written: Any) -> None:
        """The release is in its place."""
        self.written = written
        if self.placed is not None:
            self.placed(written)

    def settle(self, written: Any) -> None:
        """Note in the ledger where the release is. It stays booked if this fails."""
        if written is not None and self.ledger is not None and self.booking is not None:
            with suppress(LedgerError):
                self.ledger.settle(self.booking, sha256=written.digest, address=written.address)

    def remaining_booking(self) -> dict[str, Any]:
        """The booking that stays after a failure."""
        request = self.request
        facts = {
            "ledger_file": os.fspath(request.ledger or ""),
            **(self.receipt or {"ledger": None, "entry": None, "hash": None}),
            "dataset": request.dataset, "epsilon": request.epsilon, "delta": request.delta,
            "state": "unknown" if self.booking is None else "booked",
            "written": None if self.written is None else self.written.address,
        }  # fmt: skip
        return {**facts, "summary": _summary(facts)}


def _summary(facts: Mapping[str, Any]) -> str:
    budget = f"epsilon {facts['epsilon']!r} and delta {facts['delta']!r} of the dataset {facts['dataset']!r}"
    ledger = facts["ledger_file"]
    if facts["entry"] is None:
        return f"It is not known whether {budget} were booked: see dphist ledger show {ledger}"
    place = f"entry {facts['entry']} of the ledger {ledger}"
    if facts["written"] is not None:
        return f"The release was written to {facts['written']}, and its budget is booked as {place}"
    return (
        f"The privacy budget was spent: {budget} stay booked as {place}. Every run books its budget again: fix "
        "the cause of the failure first"
    )


@contextmanager
def booked_attempt(request: Request, placed: Callable[[Any], None] | None = None) -> Iterator[Attempt]:
    """Any failure within says what stays booked: in its text, and in attributes (see `DphistError`)."""
    attempt = Attempt(request, placed)
    try:
        yield attempt
    except BaseException as error:
        # If the ledger itself refused, nothing is booked.
        if request.ledger is not None and (attempt.booking is not None or not isinstance(error, DphistError)):
            _add_booking(error, attempt)
        raise


def _add_booking(error: BaseException, attempt: Attempt) -> None:
    booking = attempt.remaining_booking()
    if isinstance(error, DphistError):
        message = f"{str(error).rstrip('.')}. {booking['summary']}"
        error.args = (message,)
        if isinstance(error, ImportError):  # which keeps its text twice
            error.msg = message
    else:
        error.add_note(booking["summary"])
    with suppress(AttributeError):
        error.booking = booking  # type: ignore[attr-defined]
    if attempt.release is not None and attempt.written is None:
        error.add_note("error.release is the release: error.release.write(NAME) writes it without a new booking")
        with suppress(AttributeError):
            error.release = attempt.release  # type: ignore[attr-defined]


def check_ledger(request: Request, target: Any) -> None:
    """Raise unless the ledger is there, has the dataset, and is not where the release will be written."""
    if request.ledger is None:
        return
    from dphist.ledger import Ledger

    ledger = os.fspath(request.ledger)
    if "\0" in ledger:
        raise InvalidParameter(f"--ledger must be the name of a file, not {ledger!r}")
    # SQLite would take a file in the place of its journal for one, and remove it.
    own = {os.path.realpath(ledger), os.path.realpath(ledger) + "-journal"}
    places = [] if target is None else [target.address, f"{target.address}.certificate.json"]
    for place in places if target is None or target.certificate is None else [target.certificate]:
        if os.path.realpath(place) in own:
            raise InvalidParameter(f"the release cannot be written to {place}, which is its ledger")
    assert request.dataset is not None
    Ledger.open(ledger).account(request.dataset)
