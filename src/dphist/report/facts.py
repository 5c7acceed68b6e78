"""Everything that a report says, computed once from a release and its certificate. No true count is known here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final

from dphist.display import printable
from dphist.privacy.types import Budget, Plan
from dphist.releasing.certificate import NO_GUARANTEE, guarantee, plan_from
from dphist.releasing.result import NOT_PRIVATE
from dphist.releasing.verify import Verification
from dphist.report.cautions import cautions_of
from dphist.report.curve import curve_of
from dphist.report.meaning import Meaning, also_released, lead_of
from dphist.report.peers import Peer, peers_of
from dphist.report.promise import promise
from dphist.report.rows import Rows, rows_of
from dphist.report.selection import Selection, selection
from dphist.report.sentences import Number, numbers, selected, uncovered

SEALED: Final = "SHA-256 of its content (self_sha256)"


@dataclass(frozen=True)
class CapSizes:
    """The noisy numbers of users by which a cap was chosen."""

    labels: tuple[str, ...]
    users: tuple[int, ...]
    deviation: float
    cap: int


@dataclass(frozen=True)
class Origin:
    """Where the certificate of a release is: its text, its place, and what `dphist verify` needs beside a name.

    A release in memory has no text, for a certificate belongs to a file; then `missing` says so.
    """

    text: str | None
    place: str = ""
    options: Sequence[str] = ()
    missing: str = ""
    written: bool = True


@dataclass(frozen=True)
class Facts:
    """What a report shows, in the order in which it does."""

    title: str
    lead: str
    cautions: tuple[str, ...]
    counts_are: str
    address: str
    written: bool
    command: str
    about: tuple[tuple[str, str], ...]
    private: bool
    checks: tuple[str, ...]
    signature: tuple[str, str | None]
    guarantee: str
    promise: tuple[str, ...]
    numbers: tuple[Number, ...]
    budget: Budget
    plan: Plan
    delta_proved: float
    curve: tuple[tuple[float, float], ...]
    curve_note: str
    peers: tuple[Peer, ...]
    peers_note: str
    selection: Selection | None
    selected: tuple[str, ...]
    rows: Rows
    sizes: CapSizes | None
    receipt: tuple[tuple[str, str], ...]
    uncovered: tuple[str, ...]
    certificate: str | None
    certificate_name: str
    sealed: tuple[tuple[str, str], ...]
    uncertified: str


def facts_of(document: Mapping[str, Any], table: Any, verified: Verification, origin: Origin) -> Facts:
    """The facts of a release that was verified, or that has no fault but its seed."""
    plan, request = plan_from(document["plan"]), document["request"]
    budget = Budget(request["epsilon"], request["delta"]) if "choice" in document else plan.budget
    curve = curve_of(plan, verified.choice, seeded=not verified.private)
    rows, meaning = rows_of(table, plan, request)
    peers, peers_note = peers_of(plan, budget, request, "choice" in document)
    proved = plan.certificate.delta if verified.delta_certified is None else verified.delta_certified
    output, also = document.get("output", {}), also_released(document.get("sums", ()))
    about, found = _about(document, rows, meaning, also), selection(plan, request)
    facts = Facts(
        title=("" if verified.private else "NOT PRIVATE: ") + meaning.title + (f", with {also}" if also else ""),
        lead=lead_of(meaning, dict(about)["from"], rows.total, plan.threshold, also),
        # Of a release from a seed nothing is promised, be it weak or not.
        cautions=cautions_of(budget, document, rows, meaning) if verified.private else (),
        counts_are=meaning.kind,
        address=verified.address,
        written=origin.written,
        command=shlex.join(["dphist", "verify", _short(verified.address), *origin.options]),
        about=about,
        private=verified.private,
        checks=_checks(verified, rows.total),
        signature=(verified.signature, verified.signed_by),
        guarantee=guarantee(plan, request, budget) if verified.private else NO_GUARANTEE,
        promise=_promise(guarantee(plan, request, budget), budget, curve.points[0][1], verified.private),
        numbers=numbers(plan, document, budget, verified.delta_certified, meaning),
        budget=budget,
        plan=plan,
        delta_proved=proved,
        curve=curve.points,
        curve_note=curve.note,
        peers=peers,
        peers_note=peers_note,
        selection=found,
        selected=selected(plan, found, intervals=meaning.intervals),
        rows=rows,
        sizes=_sizes(document.get("choice")),
        receipt=tuple((key, str(value)) for key, value in document.get("booking", {}).items()),
        uncovered=uncovered(plan, document, rows.total),
        certificate=origin.text,
        certificate_name=f"{output.get('name', 'release')}.certificate.json",
        sealed=_sealed(document, origin),
        uncertified=origin.missing,
    )
    # Of all that a certificate says, some is whatever its writer wrote. The text to take along is as it was.
    names = [entry.name for entry in fields(facts) if entry.name != "certificate"]
    return replace(facts, **{name: _shown(getattr(facts, name)) for name in names})


def _checks(verified: Verification, rows: int) -> tuple[str, ...]:
    """What was verified; what holds of a plan does not hold of noise that somebody can draw again."""
    # Of no counts it is true, and says nothing.
    checks = [one for one in verified.checks if rows or one != "all counts are above the threshold"]
    if verified.private:
        return tuple(checks)
    return tuple(f"of its plan alone: {one}" if "differentially private" in one else one for one in checks)


def _shown(value: Any) -> Any:
    """Every text in it without what moves a cursor, turns a line round, or cannot be encoded."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, tuple):
        return tuple(_shown(one) for one in value)
    if isinstance(value, (Number, Peer, CapSizes)):
        return replace(value, **{name: _shown(one) for name, one in vars(value).items()})
    return value


def _sealed(document: Mapping[str, Any], origin: Origin) -> tuple[tuple[str, str], ...]:
    """Which certificate it is, for a report that does not hold it."""
    if origin.text is None:
        return ()
    return (("certificate", origin.place), (SEALED, str(document["self_sha256"])))


def _short(address: str) -> str:
    """A file by its name: whoever gets it has it elsewhere."""
    return address if "://" in address else PurePath(address).name


def _promise(guaranteed: str, budget: Budget, delta_at_zero: float, private: bool) -> tuple[str, ...]:
    if not private:
        return (f"{NOT_PRIVATE}. Whoever knows the seed, or guesses it, can take the noise off again.",)
    return promise(budget, delta_at_zero, guaranteed)


def _about(document: Mapping[str, Any], rows: Rows, meaning: Meaning, also: str) -> tuple[tuple[str, str], ...]:
    """What was released, from what, when."""
    request = document["request"]
    counted = "users per " + ", ".join(rows.items) + (f", with {also}" if also else "")
    found = [("released items", f"{rows.total:,}"), ("counted", counted)]
    if meaning.note:
        found.append(("a count is", f"{meaning.around}, with noise"))
    if "sketch" in request:
        found.append(("from", f"a sketch ({request['sketch']}) of {request['sketch-size']:,} counters"))
    elif not request:
        found.append(("from", "counts that were made elsewhere"))
    for key, label in (
        ("input", "from"), ("table", "table"), ("query", "query"), ("where", "only events with"),
        ("user", "column of users"), ("items", "public list"), ("dataset", "dataset"),
    ):  # fmt: skip
        if key in request:
            value = request[key]
            found.append((label, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    found += [("made", str(document.get("created"))), ("by", f"dphist {document.get('dphist')}")]
    if "output" in document:
        found.append(("SHA-256 of the data", str(document["output"].get("sha256"))))
    return tuple(found)


def _sizes(choice: Mapping[str, Any] | None) -> CapSizes | None:
    if choice is None:
        return None
    caps = [0, *choice["caps"]]
    labels = [f"{a + 1:,}" if b == a + 1 else f"{a + 1:,} to {b:,}" for a, b in pairwise(caps)]
    deviation, users = float(Fraction(choice["variance"])) ** 0.5, tuple(choice["noisy_users"])
    if not all(isinstance(number, int) for number in (*users, choice["cap"])):
        raise TypeError
    return CapSizes((*labels, f"over {caps[-1]:,}"), users, deviation, choice["cap"])
