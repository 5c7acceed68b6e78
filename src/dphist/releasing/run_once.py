"""One release per id: a run that is repeated neither spends twice nor draws noise twice, if that can be avoided.

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

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dphist.errors import InputError, InvalidParameter, LedgerError, OutputError
from dphist.outputs.formats import output_of, parse_certificate, same_json
from dphist.outputs.readback import Absent, Readback, read_release
from dphist.outputs.write import Target, Written, target_of
from dphist.planning.auto_cap import ChoicePlan
from dphist.publishing import WORKPLACE, alone, identity, place_new, sweep, sync_folder
from dphist.releasing.certificate import plan_from
from dphist.releasing.frames import Names
from dphist.releasing.request import Request
from dphist.releasing.result import Release
from dphist.releasing.soundness import Chosen
from dphist.releasing.spending import check_ledger
from dphist.signatures import NO_TRUST, examine

if TYPE_CHECKING:
    from dphist.ledger import Booking

# What may differ between two runs of an id: neither the question nor the place of the answer depends on it.
_MAY_DIFFER: Final = ("id", "ledger", "force", "sign")


@dataclass(frozen=True)
class Earlier:
    """What an earlier run of the same id has left: its release, a booking that can be used again, or nothing."""

    release: Release | None = None
    booking: Booking | None = None
    run: dict[str, Any] | None = None


@contextmanager
def only_run_of_id(request: Request) -> Iterator[Earlier]:
    """What earlier runs have left. Within this context no other process can run the same id."""
    if request.id is None:
        yield Earlier()
        return
    from dphist.ledger import Ledger

    assert request.output is not None
    assert request.ledger is not None
    assert request.dataset is not None
    target = target_of(request.output, request.output_table, request.output_format, request.certificate)
    if target.is_stdout or target.is_object:
        raise InvalidParameter(
            "--id needs an output that a later run can find and finish, a file or a database: not - and not an "
            "object store"
        )
    if request.engine_name == "spark" or target.kind == "folder":
        raise InvalidParameter(
            "--id cannot be used with Spark: executors of a run that was killed may still be writing"
        )
    check_ledger(request, target)
    ledger, run = Ledger.open(request.ledger), _run_facts(request, target)
    with ledger.only_run_of(request.dataset, request.id):
        booking = ledger.account(request.dataset).booking_of(request.id)
        if booking is None:
            yield Earlier(run=run)
            return
        _check_same(request.id, booking.run or {}, run)
        found = _find_release(request, booking, target)
        yield Earlier(found, booking, run)


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
        # Nothing of it was visible: the ledger is told first.
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
        data, made = work / "data", work / "certificate"
        try:
            document, problems = parse_certificate(made.read_bytes(), made.name)
        except OSError:  # not ours
            continue
        if problems or not _is_result(document, booking):
            continue
        try:
            with alone(folder):
                _place(data, target.path, made, target.certificate_path, force=request.force)
        except OSError as error:
            raise OutputError(
                f"{target.title()} could not be put in place: {error.strerror or type(error).__name__}. Run the "
                "same command again once it can be"
            ) from None
        return


def _place(data: Path, final: Path, certificate: Path, certified: Path, *, force: bool) -> None:
    """Data and certificate in their places, in the order in which a run does it."""
    if identity(certificate) == identity(certified):
        return
    if not data.exists() or identity(data) == identity(final):  # it has its name already
        place_new([(certificate, certified)])
    elif force:
        certified.unlink(missing_ok=True)
        os.replace(data, final)
        sync_folder(final.parent)
        os.replace(certificate, certified)
    else:
        place_new([(data, final), (certificate, certified)])
    sync_folder(final.parent)


def _release_from(found: Readback, request: Request, target: Target) -> Release:
    """The release as it was written, with the certificate that was written."""
    from dphist.releasing.run import engine_for, plan_request

    document, table = found.document, found.table
    assert document is not None
    assert table is not None
    chosen = None
    if "choice" in document:
        planned = plan_request(request, engine_for(request))
        assert isinstance(planned, ChoicePlan)
        chosen = Chosen.by(planned, tuple(document["choice"]["noisy_users"]))
    plan = plan_from(document["plan"])
    items = tuple(column.name for column in request.columns)
    numbers = {name: table.column(name).to_numpy() for name in table.column_names if name not in items}
    counts = numbers.pop(request.count_name)
    written = Written(
        target.title(), target.certificate_title(), str(output_of(document)["sha256"]),
        signed_by=examine(document, target.address, target.table, NO_TRUST).fingerprint,
    )  # fmt: skip
    return Release(
        tuple(table.column(name).combine_chunks() for name in items), counts,
        plan.certificate if chosen is None else chosen.plan.certificate, plan, bool(document["private"]),
        Names(items, request.count_name), offset=document["counts"].get("offset"), added=numbers,
        request=document["request"], written=written, chosen=chosen, receipt=document["booking"],
        created=document["created"],
    )  # fmt: skip
