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
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from dphist.errors import DphistError, InvalidParameter, LedgerError
from dphist.ledger.accounts import AUTO, HALF, concentrated, largest_rho, round_down
from dphist.planning.auto_cap import ChoicePlan
from dphist.planning.planner import plan as make_plan
from dphist.privacy.paper import delta_zcdp
from dphist.privacy.types import Budget, Plan
from dphist.releasing.certificate import guarantee_facts
from dphist.releasing.request import Request

if TYPE_CHECKING:
    from dphist.accounting import Concentrated
    from dphist.ledger import Account, Booking, Composer, Ledger, Spend
    from dphist.releasing.run_once import Earlier


def composer_for(accounting: str, total: Budget, share: float = HALF) -> Composer:
    """The composer of a dataset with this accounting and total; `share` is for zcdp, see `limits_of`."""
    from dphist.ledger import ConcentratedComposer, ProfileComposer, SumComposer

    if accounting == "sum":
        return SumComposer()
    if accounting == "zcdp":
        return ConcentratedComposer(total, limits_of(total, share), delta_of_rho, share)
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
def limits_of(total: Budget, share: float = HALF) -> tuple[float, float]:
    """The largest rho, and the delta beside it, that a total allows: this share of delta beside it.

    Guarantee: the delta of that rho at the total's epsilon was computed, and is within the rest of delta.
    """
    beside = total.delta * share
    # Of a share of at least a half the difference is exact.
    return largest_rho(total.epsilon, total.delta - beside, delta_of_rho), beside


# With more of delta beside rho more releases of a small delta fit; rho shrinks with the logarithm of the rest.
SHARES: Final = (HALF, 0.75, 0.9)


def price_of(
    planned: Plan | ChoicePlan, account: Account, document: dict[str, Any] | None = None
) -> tuple[Spend, Composer]:
    """What a release spends by the accounting of a dataset, and how that adds up.

    The first booking of a dataset with the accounting auto decides between zcdp, with one of the shares of delta,
    and sum: by which more releases like it fit, and zcdp if both are equal. Nothing was drawn yet: whatever
    comes later, the limits do not depend on a result. See docs/theory/accounting.md.
    """
    if account.accounting != AUTO:
        spend = spend_of(planned, account.accounting, document)
        return spend, composer_for(account.accounting, account.total, account.share)
    added, composed = (spend_of(planned, accounting, document) for accounting in ("sum", "zcdp"))
    rho, delta = (float(number) for number in concentrated(composed))

    def releases(share: float) -> float:
        most, beside = limits_of(account.total, share)
        return min(most / rho if rho else math.inf, beside / delta if delta else math.inf)

    zcdp = composer_for("zcdp", account.total, max(SHARES, key=releases))
    plain = composer_for("sum", account.total)
    fit = account.more_that_fit(composed, zcdp)
    if not fit or account.more_that_fit(added, plain) > fit:
        return added, plain
    return composed, zcdp


WEEKS: Final = 52


def weekly_budget(account: Account) -> Budget | None:
    """About the largest budget of 52 equal releases, planned with a limit of 20 items; None if there is none."""
    total = account.total
    if account.accounting == "sum":
        return Budget(round_down(total.epsilon / WEEKS), round_down(total.delta / WEEKS))
    share = account.share if account.accounting == "zcdp" else SHARES[-1]
    delta = round_down(total.delta * share / WEEKS)

    def spend_at(epsilon: float, by: Composer) -> Spend:
        return spend_of(make_plan(epsilon=epsilon, delta=delta, max_items_per_user=20), by.accounting)

    composer = composer_for("zcdp", total, share)
    first = spend_at(round_down(total.epsilon / 8), composer)
    epsilon = account.largest_epsilon_like(first, composer, spend_at, times=WEEKS)
    return Budget(epsilon, delta) if epsilon else None


def remaining_after(ledger: str | os.PathLike[str], dataset: str, receipt: Mapping[str, Any] | None) -> str:
    """What remains after the release with this receipt, and what it has decided if it was the first."""
    from dphist.ledger import Ledger

    assert receipt is not None
    with suppress(LedgerError):  # the release is there: only this is not known
        account = Ledger.open(ledger).account(dataset)
        booking = next(one for one in account.bookings if one.number == receipt["entry"])
        composer = composer_for(account.accounting, account.total, account.share)
        first = account.by_first and booking is account.bookings[0]
        left = account.remaining_in_words(composer, booking.spend, "this one")
        return f"{left}. {_DECIDED[account.accounting] if first else ''}".rstrip()
    return "not known, because the ledger cannot be read now."


_DECIDED: Final = {
    "zcdp": "As the first release it fixes the accounting of the dataset: zcdp.",
    "sum": "As the first release it fixes the accounting of the dataset: sum (epsilons and deltas are added), by "
    "which more releases like it fit than by zcdp.",
}


def replan(request: Request, epsilon: float, composer: Composer) -> Spend:
    """What the release that is asked for would spend with another epsilon."""
    from dphist.releasing.run import engine_for, plan_request

    other = replace(request, epsilon=epsilon)
    return spend_of(plan_request(other, engine_for(other)), composer.accounting)


def delta_of_rho(rho: float, epsilon: float) -> float:
    """delta of rho-zCDP at epsilon, by the tight conversion."""
    return delta_zcdp(rho=rho, epsilon=epsilon)


@dataclass(frozen=True)
class SketchRequest:
    """What is booked of a release that is not made from events: the parts of a `Request` that a ledger needs."""

    recorded: Mapping[str, Any]
    ledger: str | os.PathLike[str] | None
    dataset: str | None
    id: None = None

    def __post_init__(self) -> None:
        if (self.ledger is None) != (self.dataset is None):
            raise InvalidParameter("--ledger and --dataset go together: a ledger has a budget for each dataset")
        if self.ledger is not None and "seed" in self.recorded:
            raise InvalidParameter("--seed cannot be used with --ledger: a seeded release is not private")

    @property
    def epsilon(self) -> float:
        """The epsilon of the plan."""
        return float(self.recorded["epsilon"])

    @property
    def delta(self) -> float:
        """The delta of the plan."""
        return float(self.recorded["delta"])

    def to_dict(self) -> dict[str, Any]:
        """As the certificate records it."""
        return {**self.recorded, **({} if self.dataset is None else {"dataset": self.dataset})}


@dataclass
class Attempt:
    """How far a release with a ledger has come: what is booked, and what a failure has to say about it."""

    request: Request | SketchRequest
    placed: Callable[[Any], None] | None = None
    earlier: Earlier | None = None
    ledger: Ledger | None = None
    booking: Booking | None = None
    release: Any = None
    written: Any = None
    drawn: str | None = None
    noted: bool = True

    def book(self, planned: Plan | ChoicePlan) -> None:
        """Book what the release will spend, durably, or raise an error that says what is left."""
        if self.request.ledger is None:
            return
        from dphist.ledger import Ledger

        assert self.request.dataset is not None
        self.ledger = Ledger.open(self.request.ledger)
        recorded = self.request.to_dict()
        plan = planned.plans[0] if isinstance(planned, ChoicePlan) else planned
        promise = guarantee_facts(plan, recorded, planned.budget)
        document = {"request": recorded, "plan": planned.to_dict(), "guarantee": promise}
        earlier = self.earlier
        if earlier is not None and earlier.booking is not None:
            _check_same_spend(earlier.booking, planned, self.ledger.account(self.request.dataset), document)
            self.ledger.note_run(earlier.booking)
            self.booking = earlier.booking
            return
        self.booking = self.ledger.book_release(
            self.request.dataset,
            lambda account: price_of(planned, account, document),
            spend_at=partial(replan, self.request) if isinstance(self.request, Request) else None,
            id=self.request.id,
            run=None if earlier is None else earlier.run,
        )

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The booking as the certificate records it."""
        return None if self.booking is None else self.booking.receipt()

    def note_drawn(self, address: str, digest: str) -> None:
        """Note the result that the booking of an id has, before anyone can see it: no other is drawn for it."""
        if self.booking is None or self.booking.id is None or self.drawn == digest:
            return
        assert self.ledger is not None
        self.ledger.settle(self.booking, sha256=digest, address=address)
        self.drawn = digest

    def note_written(self, written: Any) -> None:
        """The release is in its place."""
        self.written = written
        if self.placed is not None:
            self.placed(written)

    def settle(self, written: Any) -> None:
        """Note in the ledger where the release is. It stays booked if this fails."""
        if written is not None and self.ledger is not None and self.booking is not None and self.drawn is None:
            with suppress(LedgerError):
                self.ledger.settle(self.booking, sha256=written.digest, address=written.address)

    def close(self, error: BaseException) -> None:
        """Note a failure of a run with an id, so that no noise is drawn again: it may depend on events or noise.

        Whether a result fits on a disk depends on the result. An interrupt comes from outside.
        """
        if self.booking is None or self.booking.id is None or self.ledger is None or self.drawn is not None:
            return
        if isinstance(error, Exception) and not isinstance(error, LedgerError):
            try:
                self.ledger.fail(self.booking, type(error).__name__)
                self.booking = replace(self.booking, failed=type(error).__name__)
            except LedgerError:
                self.noted = False

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
        if self.booking is not None and self.booking.id is not None:
            closed = self.booking.failed is not None or self.drawn is not None or not self.noted
            facts |= {"id": self.booking.id, "state": "closed" if closed else "booked"}
            if not self.noted:
                facts["unnoted"] = True
        return {**facts, "summary": _summary(facts)}


_UNNOTED: Final = ". The ledger could not be told: do NOT run this id again"


def _summary(facts: Mapping[str, Any]) -> str:
    budget = f"epsilon {facts['epsilon']!r} and delta {facts['delta']!r} of the dataset {facts['dataset']!r}"
    ledger = facts["ledger_file"]
    if facts["entry"] is None:
        return f"It is not known whether {budget} were booked: see dphist ledger show {ledger}"
    place = f"entry {facts['entry']} of the ledger {ledger}"
    if facts["written"] is not None:
        return f"The release was written to {facts['written']}, and its budget is booked as {place}"
    if facts["state"] == "closed":
        return (
            f"The privacy budget was spent: {budget} stay booked as {place}. Such a failure may depend on the "
            f"events or on the noise, so the booking of the id {facts['id']!r} is closed: fix the cause, then "
            f"choose another id, which books again{_UNNOTED if 'unnoted' in facts else ''}"
        )
    if "id" in facts:
        return (
            f"The privacy budget is booked: {budget}, as {place}. Run the same command again: the id "
            f"{facts['id']!r} uses this booking, with new noise, which is sound only if nothing of this attempt "
            "was published, copied or seen"
        )
    return (
        f"The privacy budget was spent: {budget} stay booked as {place}. Every run books its budget again: fix "
        "the cause of the failure first"
    )


@contextmanager
def booked_attempt(
    request: Request | SketchRequest,
    placed: Callable[[Any], None] | None = None,
    earlier: Earlier | None = None,
) -> Iterator[Attempt]:
    """Any failure within says what stays booked: in its text, and in attributes (see `DphistError`).

    `earlier` is what an earlier run of the same id has left.
    """
    attempt = Attempt(request, placed, earlier)
    try:
        yield attempt
    except BaseException as error:
        # If the ledger itself refused, nothing is booked.
        if request.ledger is not None and (attempt.booking is not None or not isinstance(error, DphistError)):
            attempt.close(error)
            _add_booking(error, attempt)
        raise


def _check_same_spend(
    booking: Booking, planned: Plan | ChoicePlan, account: Account, document: dict[str, Any]
) -> None:
    """Raise unless the plan is the one that was booked: another version of dphist may plan differently."""
    now, then = price_of(planned, account, document)[0].through_json(), booking.spend
    same = all(getattr(now, name) == getattr(then, name) for name in ("epsilon", "delta", "profile"))
    if not same or now.document["plan"] != then.document.get("plan"):
        raise LedgerError(
            f"the plan of the id {booking.id!r} is not the one that was booked, as with another version of "
            "dphist: choose another id"
        )


def _add_booking(error: BaseException, attempt: Attempt) -> None:
    booking = attempt.remaining_booking()
    if isinstance(error, DphistError):
        message = f"{error.with_flags.rstrip('.')}. {booking['summary']}"
        error.args = (message,)
        if isinstance(error, ImportError):  # which keeps its text twice
            error.msg = message
    else:
        error.add_note(booking["summary"])
    with suppress(AttributeError):
        error.booking = booking  # type: ignore[attr-defined]
    # With an id the next run draws again: this result must not be used as well.
    if attempt.release is not None and attempt.written is None and attempt.request.id is None:
        error.add_note("error.release is the release: error.release.write(NAME) writes it without a new booking")
        with suppress(AttributeError):
            error.release = attempt.release  # type: ignore[attr-defined]


def check_ledger(request: Request | SketchRequest, target: Any) -> None:
    """Raise unless the ledger is there, has the dataset, and is not where the release will be written."""
    if request.ledger is None:
        return
    from dphist.ledger import Ledger

    ledger = os.fspath(request.ledger)
    if "\0" in ledger:
        raise InvalidParameter(f"--ledger must be the name of a file, not {ledger!r}")
    # SQLite would take a file in the place of its journal for one, and remove it.
    own = {os.path.realpath(ledger), os.path.realpath(ledger) + "-journal"}
    places = () if target is None else (target.address, target.certificate or f"{target.address}.certificate.json")
    for place in places:
        if os.path.realpath(place) in own:
            raise InvalidParameter(f"the release cannot be written to {place}, which is its ledger")
    assert request.dataset is not None
    Ledger.open(ledger).account(request.dataset)
