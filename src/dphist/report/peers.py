"""This release beside other ways to count: each with what it is, and what is not the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dphist.errors import DphistError
from dphist.planning.compare import Comparison, compare
from dphist.privacy.types import Budget, Contract, Plan

# The rows of `dphist compare` that are shown. Shared noise is there in the paper's ratio but for the last.
_NAMES: Final = {
    "gshm-add-the-deltas": "Gaussian noise, deltas added (the usual analysis)",
    "gshm-exact": "Gaussian noise, exact analysis",
    "csh-add-the-deltas": "Shared noise, gamma = sqrt k, deltas added",
    "csh-tighter": "Shared noise, gamma = sqrt k, the paper's analysis",
    "exact, gamma = sqrt k": "Shared noise, gamma = sqrt k, exact analysis",
    "exact, gamma tuned": "Shared noise, best gamma, exact analysis",
    "scale m/epsilon": "Laplace noise of scale m/epsilon",
}


@dataclass(frozen=True)
class Peer:
    """What one way to count would have needed; `own` is this release."""

    label: str
    noise: float
    threshold: float | None
    own: bool = False


def peers_of(plan: Plan, budget: Budget, request: Mapping[str, Any], chosen: bool) -> tuple[tuple[Peer, ...], str]:
    """This release, and what others need for the same budget and bounds: for counts of unknown items."""
    contract = plan.contract
    threshold = None if plan.mechanism == "known-domain" else plan.threshold
    own = Peer("This release", plan.total_noise, threshold, own=True)
    try:
        found = _compared(budget, contract)
    except DphistError:
        return (own,), "There is nothing to compare it with at this budget."
    rows = [Peer(_NAMES[row.analysis], row.total_noise, row.threshold) for row in found.rows]
    return (own, *rows), " ".join(_notes(plan, request, chosen))


@lru_cache(maxsize=64)
def _compared(budget: Budget, contract: Contract) -> Comparison:
    """It takes half a second, and whoever makes several reports often has one budget for all."""
    return compare(
        epsilon=budget.epsilon, delta=budget.delta,
        max_nonzero=contract.max_nonzero, max_items_per_user=contract.items,
    )  # fmt: skip


def _notes(plan: Plan, request: Mapping[str, Any], chosen: bool) -> list[str]:
    """What a reader of the comparison must know: what is the same for all, and what is this release's alone."""
    contract = plan.contract
    bounds = f"m = {contract.items:,} items a user"
    if contract.max_nonzero is not None:
        bounds = f"k = {contract.max_nonzero:,} counts, of which a user may have m = {contract.items:,}"
    notes = [
        f"All for the same epsilon, delta and bounds ({bounds}). The others are computed, not drawn: each at its "
        "lowest threshold and with continuous noise, while this release's noise is in whole steps."
    ]
    if contract.max_nonzero is not None:
        notes.append("Gamma is the variance of a count's own noise over that of the shared one.")
    if "gamma" in request:
        notes.append(f"For this release gamma was asked for and not tuned: it is {plan.gamma:g}.")
    if request.get("minimize") == "noise":
        notes.append("This release was asked for the least noise in place of the lowest threshold.")
    if plan.mechanism == "known-domain":
        notes.append("The others do not know the list of items, and need a threshold for it.")
    notes += _relative(plan, request)
    if plan.sums:
        notes.append("The others count only; this release has sums as well, for which its counts are noisier.")
    if chosen:
        notes.append("The others are told the cap for nothing; this release paid for choosing it.")
    return notes


def _relative(plan: Plan, request: Mapping[str, Any]) -> list[str]:
    """What the thresholds are against, where it is not the count itself."""
    lower = request.get("lower-threshold", 1)
    notes = []
    if plan.releases_offset:
        notes.append(
            "Thresholds are against the counts less the one after the largest. Only this release adds that one "
            "again, with noise, which is a part of its own noise here."
        )
    elif request.get("offset") == "none" and plan.contract.max_nonzero is not None:
        notes.append("Thresholds are against the counts less the one after the largest, as the release has them.")
    elif "sketch" in request:
        notes.append("Thresholds are against the counters of the sketch.")
    if lower != 1 and notes:
        notes.append(f"Counts below {lower:,} were removed before.")
    elif lower != 1:
        notes.append(
            f"Counts below {lower:,} were removed before, so that a count must pass {lower - 1:,} more than the "
            "thresholds shown here: in this release, and so it would be for the others."
        )
    return notes
