"""Everything that a report says, computed once from a release and its certificate. No true count is known here."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final

from dphist.analysis.adaptive import delta_profile_upper
from dphist.calibrate.comparison import compare
from dphist.errors import DphistError
from dphist.releases.document import plan_from
from dphist.releases.result import NOT_PRIVATE
from dphist.releases.verify import Verification
from dphist.report.rows import Rows, clean, rows_of
from dphist.report.selection import Selection, selection
from dphist.report.sentences import Number, numbers, promise, selected, uncovered
from dphist.types import LARGEST_EPSILON, Budget, LaplaceNoise, LatticeNoise, Plan

# Shared noise takes a tenth of a second a point.
_POINTS: Final = 41
_POINTS_SHARED: Final = 21
# Plans for millions of counts take seconds a point, and have fewer of them.
_SECONDS: Final = 3.0
_PEERS: Final = {
    "gshm-add-the-deltas": "Gaussian noise, deltas added (the usual analysis)",
    "gshm-exact": "Gaussian noise, exact analysis",
    "csh-add-the-deltas": "Shared noise, deltas added",
    "csh-tighter": "Shared noise, the paper's analysis",
    "exact, gamma = sqrt k": "Shared noise, exact analysis",
    "scale m/epsilon": "Laplace noise",
}


@dataclass(frozen=True)
class Peer:
    """What one way to count would have needed; `own` is this release."""

    label: str
    noise: float
    threshold: float | None
    own: bool = False


@dataclass(frozen=True)
class CapSizes:
    """The noisy numbers of users by which a cap was chosen."""

    labels: tuple[str, ...]
    users: tuple[int, ...]
    deviation: float
    cap: int


@dataclass(frozen=True)
class Facts:
    """What a report shows, in the order in which it does."""

    title: str
    lead: str
    address: str
    command: str
    about: tuple[tuple[str, str], ...]
    private: bool
    checks: tuple[str, ...]
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
    certificate: str
    certificate_name: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the keys of `dphist report --json`; the rows are in the release."""
        return {
            "title": self.title,
            "release": self.address,
            "about": dict(self.about),
            "private": self.private,
            "checks": list(self.checks),
            "guarantee": self.guarantee,
            "promise": list(self.promise),
            "numbers": [vars(one) for one in self.numbers],
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "delta_certified": self.delta_proved,
            "curve": [{"epsilon": epsilon, "delta": delta} for epsilon, delta in self.curve],
            "comparison": [vars(peer) for peer in self.peers],
            "selection": None if self.selection is None else self.selection.to_dict(),
            "rows": self.rows.total,
            "not_covered": list(self.uncovered),
        }


def facts_of(
    document: Mapping[str, Any], table: Any, verified: Verification, certificate: str, options: Sequence[str] = ()
) -> Facts:
    """The facts of a release that was verified, or that has no fault but its seed.

    `options` are what `dphist verify` needs beside the address.
    """
    plan, request = plan_from(document["plan"]), document["request"]
    budget = Budget(request["epsilon"], request["delta"]) if "choice" in document else plan.budget
    curve, note = _curve(plan, "choice" in document)
    rows = rows_of(table, plan, request)
    peers, peers_note = _peers(plan, budget, "choice" in document)
    proved = plan.certificate.delta if verified.delta_certified is None else verified.delta_certified
    output, about = document.get("output", {}), _about(document, rows)
    found = selection(plan, request)
    return Facts(
        title="How many users per " + ", ".join(clean(name) for name in rows.items),
        lead=_lead(about, rows),
        address=clean(verified.address),
        command=clean(shlex.join(["dphist", "verify", _short(verified.address), *options])),
        about=about,
        private=verified.private,
        checks=verified.checks,
        guarantee=document["guarantee"],
        promise=_promise(document, budget, curve, verified.private),
        numbers=numbers(plan, document, budget, verified.delta_certified),
        budget=budget,
        plan=plan,
        delta_proved=proved,
        curve=curve,
        curve_note=note,
        peers=peers,
        peers_note=peers_note,
        selection=found,
        selected=selected(plan, found),
        rows=rows,
        sizes=_sizes(document.get("choice")),
        receipt=tuple((key, clean(str(value))) for key, value in document.get("booking", {}).items()),
        uncovered=uncovered(plan, document, rows.total),
        certificate=certificate,
        certificate_name=clean(str(output.get("name", "release"))) + ".certificate.json",
    )


def _short(address: str) -> str:
    """A file by its name: whoever gets it has it elsewhere."""
    return address if "://" in address else PurePath(address).name


def _promise(
    document: Mapping[str, Any], budget: Budget, curve: tuple[tuple[float, float], ...], private: bool
) -> tuple[str, ...]:
    if not private:
        return (f"{NOT_PRIVATE}. Whoever knows the seed, or guesses it, can take the noise off again.",)
    # The curve is of the release alone: with a choice before it, the budget's own bound is the one that holds.
    return promise(budget, 1.0 if "choice" in document else curve[0][1], document["guarantee"])


def _lead(about: tuple[tuple[str, str], ...], rows: Rows) -> str:
    items = "1 item has" if rows.total == 1 else f"each of {rows.total:,} items has"
    source = dict(about)["from"]
    return (
        f"This release says how many users {items}, with noise. It was made from {source}. "
        "No true count is in it, or in this report."
    )


def _about(document: Mapping[str, Any], rows: Rows) -> tuple[tuple[str, str], ...]:
    """What was released, from what, when."""
    request = document["request"]
    found = [("released items", f"{rows.total:,}"), ("counted", "users per " + ", ".join(rows.items))]
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
    return tuple((label, clean(value)) for label, value in found)


def _curve(plan: Plan, chosen: bool) -> tuple[tuple[tuple[float, float], ...], str]:
    """delta for many epsilons from 0 to twice the plan's, each a certified upper bound."""
    noise = plan.noise
    assert isinstance(noise, (LatticeNoise, LaplaceNoise))
    points = _POINTS if plan.sigma_shared == 0.0 else _POINTS_SHARED
    # The own epsilon of the plan is the one in the middle, but for very large ones; its delta is known.
    last, curve = min(2.0 * plan.budget.epsilon, LARGEST_EPSILON), {plan.budget.epsilon: plan.certificate.delta}
    until = time.monotonic() + _SECONDS
    for place in _coarse_first(points - 1):
        epsilon = last * place / (points - 1)
        if epsilon not in curve and (place == 0 or time.monotonic() < until):
            curve[epsilon] = delta_profile_upper(noise, plan.contract, epsilon=epsilon)
    note = (
        "The curve is of the release alone. The point is of the whole, with the choice of the cap before it."
        if chosen
        else "The point is the promise of this release; the whole curve holds at once."
    )
    return tuple(sorted(curve.items())), note


def _coarse_first(last: int) -> list[int]:
    """0 to last, the ends first and then those in between: a curve that is cut short is still a curve."""
    step = 1 << last.bit_length()
    order = [0, last]
    while step := step // 2:
        order += [place for place in range(0, last, step) if place not in order]
    return order


def _peers(plan: Plan, budget: Budget, chosen: bool) -> tuple[tuple[Peer, ...], str]:
    """This release, and what others need for the same budget and bounds: for counts of unknown items."""
    contract = plan.contract
    threshold = None if plan.mechanism == "known-domain" else plan.threshold
    own = Peer("This release", plan.total_noise, threshold, own=True)
    try:
        found = compare(
            epsilon=budget.epsilon, delta=budget.delta,
            max_nonzero=contract.max_nonzero, max_items_per_user=contract.items,
        )  # fmt: skip
    except DphistError:
        return (own,), "There is nothing to compare it with at this budget."
    peers = [
        Peer(_PEERS[row.analysis], row.total_noise, row.threshold) for row in found.rows if row.analysis in _PEERS
    ]
    notes = ["All for the same epsilon, delta and bounds, each at its lowest threshold, with normal noise."]
    if plan.mechanism == "known-domain":
        notes.append("The others do not know the list of items, and need a threshold for it.")
    if plan.releases_offset:
        notes.append(
            "Thresholds are against the counts less the one after the largest, which only this release adds again."
        )
    if plan.sums:
        notes.append("The others count only; this release has sums as well, for which its counts are noisier.")
    if chosen:
        notes.append("The others are told the cap for nothing; this release paid for choosing it.")
    return (own, *peers), " ".join(notes)


def _sizes(choice: Mapping[str, Any] | None) -> CapSizes | None:
    if choice is None:
        return None
    caps = [0, *choice["caps"]]
    labels = [f"{a + 1:,}" if b == a + 1 else f"{a + 1:,} to {b:,}" for a, b in pairwise(caps)]
    deviation = float(Fraction(choice["variance"])) ** 0.5
    return CapSizes((*labels, f"over {caps[-1]:,}"), tuple(choice["noisy_users"]), deviation, choice["cap"])
