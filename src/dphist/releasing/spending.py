"""Releases that are booked in a ledger, before any noise is drawn; and runs with an id, which can be repeated.

A booking stays after every failure, also after one before the first draw of noise. Returning it would make
failures free, and a failure can reveal data: a condition that exhausts the memory only if one person is in the
log, or an interrupt after looking at the clock, would be a noiseless query that can be repeated without limit.

The first run of an id books its release under the id. A later run finds the booking, and then one of these:

- A result is noted, which happens before anyone can see it: it is put in place if that was not done, and read
  back. If it is gone, that is an error; no other result is ever drawn.
- None is noted: the first run was killed, or stopped, before anything could be seen. What it had begun is removed,
  and this run uses the same booking and draws new noise; the ledger counts such runs.
- The first run is still running (a lock says so), or has failed, which may depend on the events or on the noise:
  an error.

*Guarantee*: the last case with new noise is as private as one release if nothing of the earlier attempt was
published, copied or seen, and it did not end because of what is in the events. Then all that anyone knows is the
result of the last attempt, and the earlier ones, drawn independently, could as well not have been made.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dphist.errors import DphistError, InputError, InvalidParameter, LedgerError, OutputError
from dphist.ledger import Ledger
from dphist.ledger.accounts import AUTO, HALF, Spend, composer_for, limits_of, round_down, zcdp_of
from dphist.outputs.certificate_text import output_of, parse_certificate, same_json
from dphist.outputs.target import Target, target_of
from dphist.outputs.write import Written
from dphist.privacy.types import Budget, Plan
from dphist.publishing import WORKPLACE, identity, lock_folder, place_new, sweep, sync_folder
from dphist.releasing.request import Request, check_booking

if TYPE_CHECKING:
    from dphist.ledger.accounts import Account, Booking, Composer
    from dphist.outputs.readback import Readback
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.releasing.result import Release


def spend_of(planned: Plan | ChoicePlan, accounting: str, document: dict[str, Any] | None = None) -> Spend:
    """What a release spends, by an accounting. The profile of a chosen cap is not computed: its budget counts."""
    from dphist.accounting import profile_of_plan

    profile: dict[str, Any] | None = None
    if accounting == "zcdp":
        profile = _zcdp_cost(planned)
    elif accounting == "pld" and isinstance(planned, Plan):
        # Within half a percent: twice as quick as the finest, and epsilon of ten releases is 0.1 % larger.
        profile = profile_of_plan(planned, excess=5e-3).to_dict()
    return Spend(planned.budget.epsilon, planned.budget.delta, profile, document or {})


def _zcdp_cost(planned: Plan | ChoicePlan) -> dict[str, float]:
    """rho and delta of a release: with a chosen cap, of its noisy sizes and the worst release that may follow.

    The sizes are one discrete Gaussian that moves by one: rho = 1/(2 V). What follows may depend on them.
    """
    from dphist.accounting import zcdp_of_plan

    each = [zcdp_of_plan(plan) for plan in ([planned] if isinstance(planned, Plan) else planned.plans)]
    rho, delta = max(one.rho for one in each), max(one.delta for one in each)
    if not isinstance(planned, Plan):
        sizes = math.nextafter(float(1 / (2 * planned.choice.variance)), math.inf)
        rho = math.nextafter(sizes + rho, math.inf)
    return {"rho": rho, "delta": delta}


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
    rho, delta = (float(number) for number in zcdp_of(composed))

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
    from dphist.planning.planner import plan as make_plan

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


@dataclass(frozen=True)
class SketchRequest:
    """What is booked of a release that is not made from events: the parts of a `Request` that a ledger needs."""

    recorded: Mapping[str, Any]
    ledger: str | os.PathLike[str] | None
    dataset: str | None
    id: None = None

    def __post_init__(self) -> None:
        check_booking(self.ledger, self.dataset, self.recorded.get("seed"))

    def to_dict(self) -> dict[str, Any]:
        """As the certificate records it."""
        return {**self.recorded, **({} if self.dataset is None else {"dataset": self.dataset})}


@dataclass
class Attempt:
    """How far a release with a ledger has come: what is booked, and what a failure has to say about it.

    `run` is what a run with an id records of its request. An earlier run of the id has left its `finished`
    release, or an `earlier` booking that can be used again, or nothing.
    """

    request: Request | SketchRequest
    placed: Callable[[Any], None] | None
    run: dict[str, Any] | None = None
    earlier: Booking | None = None
    finished: Release | None = None
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
        from dphist.releasing.document import guarantee_facts

        assert self.request.dataset is not None
        self.ledger = Ledger.open(self.request.ledger)
        recorded = self.request.to_dict()
        plan = planned if isinstance(planned, Plan) else planned.plans[0]
        promise = guarantee_facts(plan, recorded, planned.budget)
        document = {"request": recorded, "plan": planned.to_dict(), "guarantee": promise}
        if self.earlier is not None:
            _check_same_spend(self.earlier, planned, self.ledger.account(self.request.dataset), document)
            self.ledger.note_run(self.earlier)
            self.booking = self.earlier
            return
        self.booking = self.ledger.book_release(
            self.request.dataset,
            lambda account: price_of(planned, account, document),
            spend_at=partial(replan, self.request) if isinstance(self.request, Request) else None,
            id=self.request.id,
            run=self.run,
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
        recorded = self.request.to_dict()
        facts = {
            "ledger_file": os.fspath(self.request.ledger or ""),
            **(self.receipt or {"ledger": None, "entry": None, "hash": None}),
            **{name: recorded[name] for name in ("dataset", "epsilon", "delta")},
            "state": "unknown" if self.booking is None else "booked",
            "written": None if self.written is None else self.written.address,
        }  # fmt: skip
        if self.booking is not None and self.booking.id is not None:
            closed = self.booking.failed is not None or self.drawn is not None or not self.noted
            facts |= {"id": self.booking.id, "state": "closed" if closed else "booked"}
            if not self.noted:
                facts["unnoted"] = True
        return {**facts, "summary": _summary(facts)}


_UNNOTED: Final = ". The ledger could not be updated: do NOT run this id again"


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
    request: Request | SketchRequest, placed: Callable[[Any], None] | None = None
) -> Iterator[Attempt]:
    """Any failure within says what stays booked: in its text, and in attributes (see `DphistError`).

    Within this context no other process can run the same id.
    """
    attempt = Attempt(request, placed)
    with _only_run_of_id(request, attempt) if isinstance(request, Request) and request.id else nullcontext():
        try:
            yield attempt
        except BaseException as error:
            # If the ledger itself refused, nothing is booked.
            tried = attempt.ledger is not None and not isinstance(error, DphistError)
            if attempt.booking is not None or tried:
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


# Runs with an id.

# What may differ between two runs of an id: neither the question nor the place of the answer depends on it.
_MAY_DIFFER: Final = ("id", "ledger", "force", "sign")


@contextmanager
def _only_run_of_id(request: Request, attempt: Attempt) -> Iterator[None]:
    """Find what earlier runs have left. Within this context no other process can run the same id."""
    assert request.output is not None
    assert request.ledger is not None
    assert request.dataset is not None
    assert request.id is not None
    target = target_of(request.output, request.output_table, request.output_format, request.certificate)
    if target.is_object:
        raise InvalidParameter(
            "--id needs an output that a later run can find and finish, a file or a database: not an object store"
        )
    if request.engine_name == "spark" or target.kind == "folder":
        raise InvalidParameter(
            "--id cannot be used with Spark: executors of a run that was killed may still be writing"
        )
    check_ledger(request, target)
    ledger, attempt.run = Ledger.open(request.ledger), _run_facts(request, target)
    with ledger.only_run_of(request.dataset, request.id):
        attempt.earlier = ledger.account(request.dataset).booking_of(request.id)
        if attempt.earlier is not None:
            _check_same(request.id, attempt.earlier.run or {}, attempt.run)
            attempt.finished = _find_release(request, attempt.earlier, target)
        yield


def _run_facts(request: Request, target: Target) -> dict[str, Any]:
    """Everything that must be the same in all runs of an id; also what can make a run fail, such as --memory."""
    facts = request.to_dict(everything=True)
    for name in _MAY_DIFFER:
        facts.pop(name, None)
    if request.spark_conf:
        # Their values may be secrets.
        facts["spark-conf"] = [name for name, _ in request.spark_settings]
    title = target.title()
    # A relative path is another place in another folder.
    facts["output"] = title if target.kind == "postgresql" else title.replace(
        target.address, os.path.realpath(target.address)
    )  # fmt: skip
    return facts


def _check_same(id: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    names = [name for name in sorted({*before, *now}) if not same_json(before.get(name), now.get(name))]
    if names:
        differences = "; ".join(
            f"{name} was {before.get(name, 'not given')!r:.80} and is {now.get(name, 'not given')!r:.80}"
            for name in names[:3]
        )
        raise LedgerError(
            f"the id {id!r} is that of another release ({differences}): every run of an id must be the same, so "
            "choose another id"
        )


def _find_release(request: Request, booking: Booking, target: Target) -> Release | None:
    """The release of a booking, if it is noted. None if noise has to be drawn."""
    if booking.failed is not None:
        raise LedgerError(
            f"the run of the id {booking.id!r} failed after its release was booked ({booking.failed}), which may "
            "depend on the events or on the noise: its booking is closed. Choose another id, which books again"
        )
    if booking.written is None:
        # Nothing of it was visible: the ledger notes a result first.
        if target.kind != "postgresql":
            sweep(target.path.parent)
        return None
    _finish(request, booking, target)
    found = _read(target)
    if found is None or found.problems or found.table is None or not _is_result(found.document, booking):
        state = "no longer there" if found is None else "not what was written then"
        raise OutputError(
            f"the id {booking.id!r} was released to {booking.written['address']}, which is {state}. Noise is not "
            "drawn twice for one booking: restore the file, or choose another id, which books again"
        )
    if target.kind != "postgresql":
        sweep(target.path.parent)
    return _release_from(found, request, target)


def _is_result(document: dict[str, Any] | None, booking: Booking) -> bool:
    """Whether a certificate is that of the result which the ledger has noted."""
    assert booking.written is not None
    if document is None or document.get("booking") != booking.receipt():
        return False
    return bool(output_of(document).get("sha256") == booking.written["sha256"])


def _read(target: Target) -> Readback | None:
    """What is at the output, if anything is. What cannot be read now may be a release, so that it is an error."""
    from dphist.outputs.readback import Absent, read_release

    try:
        found = read_release(target.address, target.table_name if target.is_database else None)
    except Absent:
        return None
    except InputError as error:
        raise OutputError(f"it is not known whether this id was released: {error}") from None
    if target.is_database and found.table is None and found.document is None:
        raise OutputError(f"it is not known whether this id was released: {found.problems[0]}")
    return found


def _finish(request: Request, booking: Booking, target: Target) -> None:
    """Give the files of a result their names if a run was killed after it was noted: they are whole then."""
    if target.is_database:
        return
    folder = target.path.parent
    for work in (folder / name for name in os.listdir(folder) if WORKPLACE.fullmatch(name)):
        made = work / "certificate"
        try:
            document, problems = parse_certificate(made.read_bytes(), made.name)
        except OSError:  # not ours
            continue
        if problems or not _is_result(document, booking):
            continue
        try:
            with lock_folder(folder):
                _place(work, target, force=request.force)
        except OSError as error:
            raise OutputError(
                f"{target.title()} could not be put in place: {error.strerror or type(error).__name__}. Run the "
                "same command again once it can be"
            ) from None
        return


def _place(work: Path, target: Target, *, force: bool) -> None:
    """Data and certificate in their places, whatever the earlier run had put there already."""
    data, certificate = (work / "data", target.path), (work / "certificate", target.certificate_path)
    if identity(certificate[0]) == identity(certificate[1]):
        return
    if not data[0].exists() or identity(data[0]) == identity(data[1]):  # it has its name already
        place_new([certificate])
    elif force:
        # Not `replace_pair`, which after an error would put older data in the place of this result.
        certificate[1].unlink(missing_ok=True)
        os.replace(*data)
        sync_folder(target.path.parent)
        os.replace(*certificate)
    else:
        place_new([data, certificate])
    sync_folder(target.path.parent)


def _release_from(found: Readback, request: Request, target: Target) -> Release:
    """The release as it was written, with the certificate that was written."""
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.releasing.document import Chosen, plan_from
    from dphist.releasing.result import Names, Release
    from dphist.releasing.run import engine_for, plan_request
    from dphist.signatures import NO_TRUST, examine

    document, table = found.document, found.table
    assert document is not None
    assert table is not None
    plan, chosen = plan_from(document["plan"]), None
    if "choice" in document:
        # Made again: what is on offer is not believed from a file.
        planned = plan_request(request, engine_for(request))
        assert isinstance(planned, ChoicePlan)
        chosen = Chosen.by(planned, tuple(document["choice"]["noisy_users"]))
    items = tuple(column.name for column in request.columns)
    numbers = {name: table.column(name).to_numpy() for name in table.column_names if name not in items}
    counts = numbers.pop(request.count_name)
    written = Written(
        target.title(), target.certificate_title(), str(output_of(document)["sha256"]),
        signed_by=examine(document, target.address, target.table, NO_TRUST).fingerprint,
    )  # fmt: skip
    return Release(
        tuple(table.column(name).combine_chunks() for name in items), counts, plan, bool(document["private"]),
        Names(items, request.count_name), offset=document["counts"].get("offset"), added=numbers,
        request=document["request"], written=written, chosen=chosen, receipt=document["booking"],
        created=document["created"],
    )  # fmt: skip
