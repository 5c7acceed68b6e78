"""Booking a release in a ledger before any noise is drawn, and runs with an id, which can be repeated.

A booking stays after every failure, even one before the first draw of noise. If failures were free, they could be
used as exact queries: a condition that runs out of memory only if one person is in the log, or an interrupt at the
right moment, would reveal data without noise, any number of times.

The first run of an id books its release under the id. A later run finds the booking, and one of these:

- A noted result. The ledger notes a result before it becomes visible. The run puts it in place if necessary and
  reads it back. If it is gone, that is an error: no other result is ever drawn.
- No noted result: the first run was killed or interrupted before anything was visible. The run removes what was
  begun and draws new noise under the same booking; the ledger counts such runs.
- A run in progress (it holds a lock), or a failure, which may depend on the events or on the noise: an error.

*Guarantee*: drawing new noise in the second case is as private as one release if nothing of the earlier attempt
was published, copied or seen, and if it did not end because of the events. Then only the last result is known, and
the earlier draws, which are independent of it, might as well not have been made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import file_digest
from pathlib import Path
from typing import Final

from pyarrow import ArrowException, ipc

from dphist import __version__
from dphist.accounting import gaussian_of_plan, zcdp_of_plan
from dphist.aliases import JsonObject
from dphist.certificate.digests import digest_of_values
from dphist.certificate.plans import plan_of
from dphist.certificate.reading import Absent, Readback, match_values, read_certificate, read_release
from dphist.certificate.request import SketchRequest
from dphist.certificate.schema import Certificate, decode, output_of
from dphist.certificate.statement import now, statement_of
from dphist.certificate.text import parse_certificate, same_json, signed_bytes
from dphist.errors import DphistError, InputError, InvalidParameter, LedgerError, OutputError
from dphist.files import open_regular
from dphist.ledger import Ledger
from dphist.ledger.accounts import (
    AUTO,
    BY_FIRST,
    HALF,
    LOSSES,
    Account,
    Booking,
    Composer,
    FilterComposer,
    Spend,
    composer_for,
    decimal_fraction,
    largest_float,
    round_down,
)
from dphist.ledger.schema import Receipt
from dphist.ledger.store import ledger_path
from dphist.model import Budget, Plan
from dphist.outputs.stores import StoreError, read_table
from dphist.outputs.target import Placed, Target, Written, target_of
from dphist.outputs.write import place_table
from dphist.planning.planner import plan as make_plan
from dphist.proof.searches import fraction_up
from dphist.publishing import lock_folder, own_work_folders, place, publish, remove_leftovers
from dphist.releasing.request import Request, check_booking
from dphist.releasing.result import Names, Release
from dphist.signatures import CERTIFICATE_DOMAIN, examine_signature


def spend_of(planned: Plan, accounting: str, document: JsonObject | None = None) -> Spend:
    """The cost of a release in an accounting."""
    profile: JsonObject | None = None
    if accounting == "gdp":
        move = gaussian_of_plan(planned)
        profile = {"mu_squared": fraction_up(move.squared), "delta": move.event}
    elif accounting == "zcdp":
        cost = zcdp_of_plan(planned)
        profile = {"rho": cost.rho, "delta": cost.delta}
    return Spend(planned.budget.epsilon, planned.budget.delta, profile, document or {})


def composes_gaussian(account: Account) -> bool:
    """Whether an account composes Gaussian noise: Laplace noise would cost many times as much there.

    Decided by the accounting that it was made with, so that a plan does not depend on what was booked.
    """
    return account.by_first or account.accounting != "sum"


def account_of(request: Request) -> Account | None:
    """The account of a request that names a ledger."""
    if request.ledger is None or request.dataset is None:
        return None
    return Ledger.open(request.ledger).account(request.dataset)


# Shares of delta for the deltas of releases: more of them fit, and the limit of the loss shrinks only by the
# logarithm of the rest.
SHARES: Final = (HALF, 0.75, 0.8, 0.85, 0.9, 0.95)


def price_of(planned: Plan, account: Account, document: JsonObject | None = None) -> tuple[Spend, Composer]:
    """The cost of a release in the accounting of a dataset, and how costs add up.

    With the accounting auto, the first booking decides between gdp and zcdp, with one of the shares of delta, and
    sum: the one by which most releases like it fit. If several fit the same number it is not sum, and of gdp and
    zcdp the one that leaves more room for the loss. Nothing was drawn yet, so the limits do not depend on a
    result. See docs/theory/accounting.md.
    """
    if account.accounting != AUTO:
        spend = spend_of(planned, account.accounting, document)
        return spend, account.composer

    def priced(accounting: str) -> tuple[int, float, Spend, Composer]:
        """How many such releases fit, how many times the loss does, the cost, and how costs add up."""
        spend = spend_of(planned, accounting, document)
        if accounting not in LOSSES:
            composer = composer_for(accounting, account.total)
            return account.more_that_fit(spend, composer), 0.0, spend, composer
        filters = [FilterComposer(accounting, account.total, share) for share in SHARES]
        best = max(filters, key=lambda one: one.copies(spend)[0])
        fit = account.more_that_fit(spend, best)
        return fit, best.copies(spend)[1] if fit else -1.0, spend, best

    _, _, spend, composer = max(map(priced, BY_FIRST), key=lambda found: found[:2])
    return spend, composer


WEEKS: Final = 52
_SHARE_OF_DELTA: Final = 0.9
# Shares of the room for events to try, because they grow a little with epsilon.
_SHARES_OF_EVENTS: Final = (0.97, 0.9, 0.8)


def equal_budget(account: Account, releases: int, plan_at: Callable[[Budget], Plan]) -> Budget | None:
    """About the largest budget for each of this many more equal releases; None if there is none.

    *Guarantee*: that many with this budget were planned and composed, and fit.
    """
    candidates = [
        budget
        for accounting in ((account.accounting,) if account.accounting != AUTO else ("gdp", "sum"))
        if (budget := _equal_budget(account, releases, plan_at, accounting)) is not None
    ]
    return max(candidates, key=lambda budget: budget.epsilon, default=None)


def _equal_budget(
    account: Account, releases: int, plan_at: Callable[[Budget], Plan], accounting: str
) -> Budget | None:
    total, composer = account.total, composer_for(accounting, account.total, account.share)
    left = account.left(composer)
    if not isinstance(composer, FilterComposer):
        each = [largest_float(decimal_fraction(left[name]) / releases) for name in ("epsilon_left", "delta_left")]
        return Budget(*map(round_down, each)) if min(each) > 0.0 else None

    def spend_at(epsilon: float, composer: Composer) -> Spend:
        return spend_of(plan_at(Budget(epsilon, delta)), composer.accounting)

    # About half of the delta of rounds is for events, so that half of the total is enough for all of them.
    delta = round_down(total.delta * _SHARE_OF_DELTA / releases)
    first = spend_at(round_down(total.epsilon / 8), composer)
    if epsilon := account.largest_epsilon_like(first, composer, spend_at, times=releases):
        return Budget(epsilon, delta)
    # Too much for events: they follow delta nearly in proportion, and never exceed it.
    events, room = float(composer.cost(first)[1]), left["delta_left"] / releases
    best = None
    shares = [share * delta * room / events for share in _SHARES_OF_EVENTS] if events else []
    for most in sorted([*shares, room], reverse=True) if room else ():
        delta = round_down(min(most, delta))  # of `spend_at` too
        like = spend_at(first.epsilon, composer)
        epsilon = account.largest_epsilon_like(like, composer, spend_at, times=releases)
        if epsilon and (best is None or epsilon > best.epsilon):
            best = Budget(epsilon, delta)
    return best


def weekly_budget(account: Account) -> Budget | None:
    """About the largest budget for each of 52 equal releases in rounds; None if there is none."""
    if account.accounting == "sum":
        return Budget(round_down(account.total.epsilon / WEEKS), round_down(account.total.delta / WEEKS))

    def plan_at(budget: Budget) -> Plan:
        return make_plan(epsilon=budget.epsilon, delta=budget.delta, mechanism="gaussian")

    return equal_budget(account, WEEKS, plan_at)


def remaining_after(ledger: str | os.PathLike[str], dataset: str, receipt: Receipt | None) -> str:
    """The remaining budget after the release with this receipt, and the accounting if this release fixed it."""
    assert receipt is not None
    with suppress(LedgerError):
        account = Ledger.open(ledger).account(dataset)
        booking = next(booking for booking in account.bookings if booking.number == receipt["entry"])
        first = account.by_first and booking is account.bookings[0]
        remaining = account.remaining(spend=booking.spend)
        decided = _ADDED if account.accounting == "sum" else account.accounting
        return f"{remaining}. {_DECIDED.format(decided) if first else ''}".rstrip()
    return "unknown, because the ledger cannot be read now."


_DECIDED: Final = "As the first release it fixes the accounting of the dataset: {}."
_ADDED: Final = "sum (epsilons and deltas are added), by which more releases like it fit than by gdp or zcdp"


@dataclass(frozen=True)
class SketchBooking:
    """The parts of a `Request` that booking a sketch needs."""

    options: SketchRequest
    ledger: str | os.PathLike[str] | None
    dataset: str | None
    id: None = None

    def __post_init__(self) -> None:
        check_booking(self.ledger, self.dataset, self.options.seed)

    def to_dict(self) -> JsonObject:
        return self.options.to_dict()

    def recorded(self) -> SketchRequest:
        return self.options


@dataclass
class Attempt:
    """How far a release has come: what is booked, and what a failure must report.

    `run` is the request that a run with an id records. An earlier run of the id may have left its `finished`
    release, or an `earlier` booking that is used again. `drawn` is the digest of the result that the ledger has
    noted for an id; `noted` is False if the ledger could not note a failure.
    """

    request: Request | SketchBooking
    placed: Placed | None
    run: JsonObject | None = None
    earlier: Booking | None = None
    finished: Release | None = None
    ledger: Ledger | None = None
    booking: Booking | None = None
    release: Release | None = None
    written: Written | None = None
    drawn: str | None = None
    noted: bool = True

    def book(self, planned: Plan, plan_with: Callable[[float], Plan] | None = None) -> None:
        """Book the release durably, or raise an error that states the remaining budget.

        `plan_with` plans the same release with another epsilon, for the error.
        """

        def spend_at(epsilon: float, composer: Composer) -> Spend:
            assert plan_with is not None
            return spend_of(plan_with(epsilon), composer.accounting)

        recorded = self.request.to_dict()
        promised = _rehearse_certificate(planned, self.request)
        if self.request.ledger is None:
            return
        assert self.request.dataset is not None
        self.ledger = Ledger.open(self.request.ledger)
        document = {"request": recorded, "plan": planned.to_dict(), "guarantee": promised}
        if self.earlier is not None:
            _check_same_spend(self.earlier, planned, self.ledger.account(self.request.dataset), document)
            self.ledger.note_run(self.earlier)
            self.booking = self.earlier
            return
        self.booking = self.ledger.book_release(
            self.request.dataset,
            lambda account: price_of(planned, account, document),
            spend_at=None if plan_with is None else spend_at,
            id=self.request.id,
            run=self.run,
        )

    @property
    def receipt(self) -> Receipt | None:
        return None if self.booking is None else self.booking.receipt()

    def note_drawn(self, address: str, digest: str) -> None:
        """Note the result of an id in the ledger before it becomes visible, so that no other is ever drawn."""
        if self.booking is None or self.booking.id is None or self.drawn == digest:
            return
        assert self.ledger is not None
        self.ledger.settle(self.booking, sha256=digest, address=address)
        self.drawn = digest

    def note_written(self, written: Written) -> None:
        self.written = written
        if self.placed is not None:
            self.placed(written)

    def settle(self, written: Written | None) -> None:
        """Note in the ledger where the release is. The booking stays if this fails."""
        if written is not None and self.ledger is not None and self.booking is not None and self.drawn is None:
            with suppress(LedgerError):
                self.ledger.settle(self.booking, sha256=written.digest, address=written.address)

    def close(self, error: BaseException) -> None:
        """Note a failure of a run with an id, so that noise is never drawn again.

        It may depend on events or noise: whether a result fits on a disk depends on the result. An interrupt comes
        from outside.
        """
        if self.booking is None or self.booking.id is None or self.ledger is None or self.drawn is not None:
            return
        if isinstance(error, Exception) and not isinstance(error, LedgerError):
            try:
                self.ledger.fail(self.booking, type(error).__name__)
                self.booking = replace(self.booking, failed=type(error).__name__)
            except LedgerError:
                self.noted = False

    def remaining_booking(self) -> JsonObject:
        """What stays booked after a failure: `DphistError.booking`."""
        recorded, ledger = self.request.to_dict(), os.fspath(self.request.ledger or "")
        epsilon, delta, dataset = (recorded[name] for name in ("epsilon", "delta", "dataset"))
        budget = f"epsilon {epsilon!r} and delta {delta!r} of the dataset {dataset!r}"
        facts = {
            "ledger_file": ledger,
            **(self.receipt or {"ledger": None, "entry": None, "hash": None}),
            "dataset": dataset,
            "epsilon": epsilon,
            "delta": delta,
            "state": "unknown" if self.booking is None else "booked",
            "written": None if self.written is None else self.written.address,
        }
        if self.booking is None:
            return {
                **facts,
                "summary": f"It is not known whether {budget} were booked: run dphist ledger show {ledger}",
            }
        closed = self.booking.failed is not None or self.drawn is not None or not self.noted
        if self.booking.id is not None:
            facts |= {"id": self.booking.id, "state": "closed" if closed else "booked"}
        entry = f"entry {facts['entry']} of the ledger {ledger}"
        spent = f"The privacy budget was spent: {budget} stay booked as {entry}."
        if self.written is not None:
            summary = f"The release was written to {self.written.address}, and its budget is booked as {entry}"
        elif self.booking.id is None:
            summary = f"{spent} Every run books its budget again, so fix the cause of the failure first"
        elif closed:
            summary = (
                f"{spent} This failure may depend on the events or on the noise, so the booking of the id "
                f"{self.booking.id!r} is closed: fix the cause, then choose another id, which books again"
            )
            summary += "" if self.noted else ". The ledger could not be updated: do NOT run this id again"
        else:
            summary = (
                f"The privacy budget is booked: {budget}, as {entry}. Run the same command again: the id "
                f"{self.booking.id!r} draws new noise under this booking. That is sound only if nothing of this "
                "attempt was published, copied or seen"
            )
        return {**facts, "summary": summary}


def _rehearse_certificate(plan: Plan, request: Request | SketchBooking) -> JsonObject:
    """The guarantee as the certificate will state it; an error, before anything is booked, if it cannot."""
    try:
        stated = statement_of(
            plan, request.recorded(), private=True, offset=None, version=__version__, created=now()
        )
        plan_of(decode(stated.to_dict()).plan)
    except (ArithmeticError, ValueError):
        what = "the bounds of a sum are too large, or have too many digits"
        raise InvalidParameter(what if plan.sums else "a certificate cannot state this request") from None
    guarantee: JsonObject = stated.to_dict()["guarantee"]
    return guarantee


@contextmanager
def booked_attempt(request: Request | SketchBooking, placed: Placed | None = None) -> Iterator[Attempt]:
    """Add to any failure what stays booked: to its message, and as attributes (see `DphistError`).

    Within this context no other process can run the same id.
    """
    attempt = Attempt(request, placed)
    with _only_run_of_id(request, attempt) if isinstance(request, Request) and request.id else nullcontext():
        try:
            yield attempt
        except BaseException as error:
            # An error of the ledger means that nothing was booked; after any other one that is unknown.
            unknown = attempt.ledger is not None and not isinstance(error, DphistError)
            if attempt.booking is not None or unknown:
                attempt.close(error)
                _add_booking(error, attempt)
            raise


def _check_same_spend(booking: Booking, planned: Plan, account: Account, document: JsonObject) -> None:
    """Raise unless the plan is the one that was booked: another version of dphist may plan differently."""
    now, then = price_of(planned, account, document)[0].through_json(), booking.spend
    same = (now.epsilon, now.delta, now.profile) == (then.epsilon, then.delta, then.profile)
    if not same or now.document["plan"] != then.document.get("plan"):
        raise LedgerError(
            f"the plan of the id {booking.id!r} is not the one that was booked, perhaps by another version of "
            "dphist: choose another id"
        )


def _add_booking(error: BaseException, attempt: Attempt) -> None:
    booking = attempt.remaining_booking()
    if isinstance(error, DphistError):
        message = f"{error.marked.rstrip('.')}. {booking['summary']}"
        error.args = (message,)
        if isinstance(error, ImportError):  # has a second copy of its message
            error.msg = message
    else:
        error.add_note(booking["summary"])
    with suppress(AttributeError):
        error.booking = booking  # type: ignore[attr-defined]
    # With an id the next run draws again, so this result must not be used.
    if attempt.release is not None and attempt.written is None and attempt.request.id is None:
        error.add_note("error.release.write(NAME) writes the release elsewhere without a new booking")
        with suppress(AttributeError):
            error.release = attempt.release  # type: ignore[attr-defined]


def check_ledger(request: Request | SketchBooking, target: Target | None) -> None:
    """Raise unless the ledger exists, has the dataset, and is not the release's own output."""
    if request.ledger is None:
        return
    # SQLite would mistake a file in the place of its journal for one, and remove it.
    ledger = os.path.realpath(ledger_path(request.ledger))
    if target is not None:
        files = (target.address, *([] if target.is_object else [os.fspath(target.certificate_path)]))
        for output in files:
            if os.path.realpath(output) in (ledger, f"{ledger}-journal"):
                raise InvalidParameter(f"cannot write the release to {output}: it is the ledger")
    assert request.dataset is not None
    Ledger.open(request.ledger).account(request.dataset)


# Runs with an id.

# Options that may differ between two runs of an id: neither request nor output depends on them.
_MAY_DIFFER: Final = ("id", "ledger", "force", "sign")


@contextmanager
def _only_run_of_id(request: Request, attempt: Attempt) -> Iterator[None]:
    """Find what earlier runs have left, while no other process can run the same id."""
    assert request.output is not None
    assert request.ledger is not None
    assert request.dataset is not None
    assert request.id is not None
    target = target_of(request.output, request.output_table, request.output_format, request.certificate)
    if target.is_object:
        raise InvalidParameter(
            "<--id> needs an output that a later run can find and finish: a file or a database, not "
            "an object store"
        )
    if request.engine_name == "spark" or target.kind == "folder":
        raise InvalidParameter("<--id> cannot be used with Spark: executors of a killed run may still be writing")
    check_ledger(request, target)
    ledger, attempt.run = Ledger.open(request.ledger), _run_facts(request, target)
    with ledger.only_run_of(request.dataset, request.id):
        attempt.earlier = ledger.account(request.dataset).booking_of(request.id)
        if attempt.earlier is not None:
            _check_same(request.id, attempt.earlier.run or {}, attempt.run)
            attempt.finished = _find_release(request, attempt.earlier, target)
        yield


def _run_facts(request: Request, target: Target) -> JsonObject:
    """What must be the same in all runs of an id, including options that can make a run fail, such as --memory."""
    facts = request.to_dict(everything=True)
    for name in _MAY_DIFFER:
        facts.pop(name, None)
    if request.spark_conf:
        # Values may be secrets.
        facts["spark-conf"] = [name for name, _ in request.spark_settings]
    title = target.title()
    if target.kind != "postgresql":
        # A relative path is another file in another folder.
        title = title.replace(target.address, os.path.realpath(target.address))
    return {**facts, "output": title}


def _check_same(id: str, before: JsonObject, now: JsonObject) -> None:
    names = [name for name in sorted({*before, *now}) if not same_json(before.get(name), now.get(name))]
    if names:
        differences = "; ".join(
            f"{name} was {before.get(name, 'not given')!r:.80} and is {now.get(name, 'not given')!r:.80}"
            for name in names[:3]
        )
        raise LedgerError(
            f"the id {id!r} belongs to another release ({differences}): all runs of an id must have the same "
            "options, so choose another id"
        )


def _find_release(request: Request, booking: Booking, target: Target) -> Release | None:
    """The noted result of a booking; None if noise has to be drawn."""
    if booking.failed is not None:
        raise LedgerError(
            f"the id {booking.id!r} failed after its release was booked ({booking.failed}), which may depend on "
            "the events or on the noise: its booking is closed. Choose another id, which books again"
        )
    if booking.written is None:
        # Nothing was visible: the ledger notes a result first.
        found = None
    else:
        _finish(request, booking, target)
        found = _read(target)
        if found is None or found.problems or found.table is None or not _is_result(found.document, booking):
            state = "missing now" if found is None else "not what was written"
            raise OutputError(
                f"the id {booking.id!r} was released to {booking.written['address']}, which is {state}. Noise is "
                "not drawn twice for one booking: restore the file, or choose another id, which books again"
            )
    remove_leftovers(target.certificate_path.parent)
    return None if found is None else _release_from(found, request, target)


def _is_result(document: JsonObject | None, booking: Booking) -> bool:
    """Whether this is the certificate of the result that the ledger has noted."""
    assert booking.written is not None
    if document is None or document.get("booking") != booking.receipt():
        return False
    output = output_of(document)
    return output is not None and bool(output.sha256 == booking.written["sha256"])


def _read(target: Target) -> Readback | None:
    """The release at the output, if it exists. An unreadable output may be the release, so it is an error."""
    try:
        if not target.is_database:
            return read_release(target.address)
        document, problems = read_certificate(target.certificate_path)
        output = output_of(document)
        table = read_table(target, {} if output is None else output.type_of())
        return None if table is None else match_values(table, document, problems, target.title())
    except Absent:
        return None
    except (InputError, StoreError) as error:
        raise OutputError(f"cannot tell whether this id was released: {error}") from None


def _finish(request: Request, booking: Booking, target: Target) -> None:
    """Put a noted result in place if a run was killed after noting it; it is complete in a hidden folder then."""
    final = target.certificate_path
    finish = _finish_table if target.is_database else _finish_file
    try:
        for work in own_work_folders(final.parent):
            text = _noted_certificate(work, booking)
            if text is None:
                continue
            if not final.exists() or final.read_bytes() != text:
                finish(work, request, booking, target)
            return
    except OSError as error:
        raise OutputError(
            f"cannot write {target.title()}: {error.strerror or type(error).__name__}. Fix the cause, then "
            "run the same command again"
        ) from None


def _noted_certificate(work: Path, booking: Booking) -> bytes | None:
    """The text of the certificate in a hidden folder, if it is that of the noted result."""
    try:
        text = (work / "certificate").read_bytes()
    except OSError:
        return None
    document, problems = parse_certificate(text, "certificate")
    return text if not problems and _is_result(document, booking) else None


def _finish_file(work: Path, request: Request, booking: Booking, target: Target) -> None:
    with lock_folder(target.path.parent):
        if _is_noted(target.path, booking):
            publish(lambda: None, work / "certificate", target.certificate_path, force=request.force)
        elif _is_noted(work / "data", booking):
            put_data = partial(place, work / "data", target.path, force=request.force)
            publish(put_data, work / "certificate", target.certificate_path, force=request.force)


def _is_noted(path: Path, booking: Booking) -> bool:
    """Whether this file is the noted result."""
    assert booking.written is not None
    try:
        with open_regular(path) as file:
            return bool(file_digest(file, "sha256").hexdigest() == booking.written["sha256"])
    except FileNotFoundError:
        return False


def _finish_table(work: Path, request: Request, booking: Booking, target: Target) -> None:
    """The kill may have come before or after the transaction was committed."""
    assert booking.written is not None
    try:
        with ipc.open_file(str(work / "data")) as file:
            table = file.read_all()
    except (OSError, ArrowException):
        return  # the folder was being removed
    if digest_of_values(table, target.kind) != booking.written["sha256"]:
        return
    types = {name: str(kind) for name, kind in zip(table.column_names, table.schema.types, strict=True)}
    try:
        present = read_table(target, types)
    except StoreError as error:
        raise OutputError(f"cannot tell whether this id was released: {error}") from None
    if present is not None and digest_of_values(present, target.kind) == booking.written["sha256"]:
        with lock_folder(target.certificate_path.parent):
            publish(lambda: None, work / "certificate", target.certificate_path, force=request.force)
    else:
        place_table(target, table, work, force=request.force)


def _release_from(found: Readback, request: Request, target: Target) -> Release:
    """The release as it was written, with its certificate."""
    document, table = found.document, found.table
    assert document is not None
    assert table is not None
    stated = decode(document)
    assert isinstance(stated, Certificate)
    # Certified again, because the file may be forged.
    plan = plan_of(stated.plan)
    items = request.item_columns
    numbers = {name: table.column(name).to_numpy() for name in table.column_names if name not in items}
    counts = numbers.pop(request.count_name)
    _, signed_by, _ = examine_signature(document, signed_bytes(document), CERTIFICATE_DOMAIN, None)
    written = Written(target.title(), target.certificate_title(), stated.output.sha256, signed_by=signed_by)
    return Release(
        tuple(table.column(name).combine_chunks() for name in items), counts, plan, stated.private,
        Names(items, request.count_name), offset=stated.counts.offset, added=numbers,
        request=stated.request, written=written, findings=stated.findings or None,
        receipt=document["booking"], created=stated.created, decimals=stated.counts.decimals,
    )  # fmt: skip
