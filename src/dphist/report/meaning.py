"""What a released count is: a number of users, or one less something that is in no release."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dphist.privacy.types import Plan
from dphist.releasing.certificate import is_difference, is_perhaps_reduced

Kind = Literal["users", "differences", "perhaps_reduced", "sketch"]


@dataclass(frozen=True)
class Meaning:
    """How the counts are called, and what the noise is around.

    Without `intervals` there is nothing around a count that could be taken for the number of its users.
    """

    kind: Kind
    title: str
    says: str
    around: str
    note: str = ""
    intervals: bool = True


def meaning_of(plan: Plan, request: Mapping[str, Any], items: Sequence[str]) -> Meaning:
    """What the counts of a release are, from its plan and its request alone."""
    what = ", ".join(items)
    if is_difference(plan, request):
        assert plan.contract.max_nonzero is not None
        ranked, lower = f"the item ranked {plan.contract.max_nonzero + 1:,}", request.get("lower-threshold", 1)
        # Of counts from a lower threshold on at least its place before them is taken.
        ranked += f" (or to {lower - 1:,}, if that is more)" if lower > 1 else ""
        return Meaning(
            "differences", f"Differences of the numbers of users per {what}",
            f"by how much the number of users exceeds that of {ranked}", "the true difference",
            f"A count here is NOT a number of users: it is a difference to the count of {ranked}, which is not "
            "released. How many users an item has cannot be told from it, and there is no interval for that.",
            intervals=False,
        )  # fmt: skip
    if is_perhaps_reduced(plan, request):
        return Meaning(
            "perhaps_reduced", f"Users per {what}, possibly less a number that was subtracted from all",
            "how many users there are, possibly less a number that was subtracted from all counts,",
            "the true one, possibly less what was subtracted",
            "A count here may be less than the number of users: unless whoever counted promised that no possible "
            f"data have more than {plan.contract.max_nonzero:,} items, the count after the largest "
            f"{plan.contract.max_nonzero:,} was subtracted from all, and it is not released. So there are no "
            "intervals.",
            intervals=False,
        )  # fmt: skip
    if "sketch" in request:
        way = "above" if plan.releases_offset else "below"
        return Meaning(
            "sketch", f"About how many users per {what}, from a sketch", "about how many users there are",
            "the counter of the sketch",
            f"A count here is of a sketch, which is {way} the number of users by itself, beside the noise: by how "
            "much at most is told below. Intervals are of the noise alone.",
        )  # fmt: skip
    return Meaning("users", f"How many users per {what}", "how many users there are", "the true one")


def also_released(sums: Sequence[Mapping[str, Any]]) -> str:
    """What is released beside the counts, in a few words."""
    names = [f"the {one['kind']} of {one['column']}" for one in sums]
    if len(names) > 4:
        kinds = [f"{one['kind']}s" for one in sums]
        return f"{len(names)} {' and '.join(dict.fromkeys(kinds))}"
    return " and ".join([*([", ".join(names[:-1])] if names[1:] else []), *names[-1:]])


def lead_of(meaning: Meaning, source: str, rows: int, threshold: float, also: str = "") -> str:
    """The first sentences of a report."""
    if rows == 0:
        none = "no count has passed the threshold" if math.isfinite(threshold) else "the list of items was empty"
        found = f"Nothing is in this release: {none}."
    else:
        items = "for 1 item" if rows == 1 else f"for each of {rows:,} items"
        found = f"This release says {meaning.says} {items}{f', and {also}' if also else ''}, with noise."
    return f"{found} It was made from {source}. No true count is in it, or in this report."
