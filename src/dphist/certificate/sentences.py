"""The guarantee of a release, its conditions and its caveats as sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from dphist.certificate.guarantee import caveats_of, conditions_of
from dphist.certificate.request import TOTAL, AnyRequest, SketchRequest
from dphist.display import upper_figure
from dphist.model import Plan

# Conditions of a guarantee that only the publisher can ensure.
CONDITIONS: Final = {
    "counts-per-user": "no user contributes to more than {items} of the counts or more than 1 to any of them",
    "one-per-count": "no user contributes more than 1 to any of the counts",
    "item-types": "the types of the items do not depend on the data of any one user",
    "max-nonzero": "no possible dataset has more than {nonzero} items",
    "one-update-per-user": (
        "every user came in one update of one sketch, the update and the items of a user depend on that user "
        "alone, and without that user all others would have come in the same order and the sketches would have "
        "been merged in the same order"
    ),
    # Libraries that infer types change values: 007 becomes 7, and a large number becomes a float.
    "frame-values": "the values that the frame holds for one user do not depend on the rows of other users",
    "fixed-types": "the types of the input's columns were fixed before the data was seen",
    "query": "the rows that the query returns for one user depend on that user alone",
}
# What readers of the numbers easily overlook.
CAVEATS: Final = {
    "other-releases": "Other releases of the same data: their epsilons and deltas add up.",
    "groups": "Groups: a household, or one person with two accounts, is more than one user.",
    "user-limit": (
        "Users with more than {limit} {noun} contributed a random {limit} of them: a count may be lower than the "
        "number of users. Standard errors and intervals cover the noise only."
    ),
    "rounds": (
        "Counts are estimates of the number of users, from everything that was measured. Margins cover the noise, "
        "what was left out and differences in taste, as far as they could be measured; of users with more than "
        "{limit} items a random {limit} count."
    ),
    "totals": (
        "A row with {total} = true counts the different users of all values of {totals} together, also of values "
        "that are not released. Users in several of its rows count once, so it is not their sum: do not add up "
        "totals and rows. A total is one more item of each of its users."
    ),
    "max-nonzero": (
        "The bound of {nonzero} items is guaranteed by the publisher: if the data had more items, nothing would "
        "have been released."
    ),
    "differences": "Counts are differences from the next largest count, which is not released.",
    "perhaps-reduced": (
        "Counts may be lower than the numbers of users: unless the publisher guarantees that no possible dataset "
        "has more than {nonzero} items, the next largest count was subtracted from all. It is not released."
    ),
    "reduced": (
        "If the data had more than {nonzero} items, counts are lower than the numbers of users: the count of rank "
        "{rank} was subtracted from all. It is not released."
    ),
    "sketch": (
        "Counts are of a sketch with {size} counters: apart from noise, each may be below the number of users by "
        "up to the number of (user, item) pairs divided by {pairs}."
    ),
    "sketch-with-offset": (
        "Counts are of a sketch with {size} counters: apart from noise, each may be above the number of users by "
        "up to the number of (user, item) pairs divided by {pairs}, and by no more than the offset."
    ),
    "selection": "Counts that barely passed the threshold are too high on average.",
    "clamped-sums": (
        "Sums and means are over the counted users, not over events: each user's own sum for the item is clamped "
        "({bounds}). Values that are missing or not numbers add nothing."
    ),
    "selected-sums": (
        "A sum shares the error of its count: the middle of its range is added once for each noisy user. Sums of "
        "items that barely passed the threshold are therefore too high, or too low, on average."
    ),
    "shared-noise": "All counts share one draw of noise: their sum is less precise than it looks.",
}
NO_GUARANTEE: Final = "None: the noise was made from a seed, for tests."


def guarantee(plan: Plan, request: AnyRequest) -> str:
    """`guarantee_facts` as a sentence."""
    budget = plan.budget
    factor = f" ≈ {upper_figure(math.exp(budget.epsilon), 4)}" if budget.epsilon < 30.0 else ""
    conditions = ", and that ".join(_sentences(CONDITIONS, conditions_of(plan, request), plan, request))
    return (
        f"This release is (epsilon = {budget.epsilon!r}, delta = {budget.delta!r})-differentially private at the "
        "user level: adding or removing all data of any one user changes the probability of any outcome by at "
        f"most a factor of e^{budget.epsilon!r}{factor}, plus {budget.delta!r}"
        f"{f', provided that {conditions}' if conditions else ''}."
    )


def not_covered(plan: Plan, request: AnyRequest) -> list[str]:
    """All caveats of a release, as sentences."""
    return _sentences(CAVEATS, caveats_of(plan, request), plan, request)


def caveats(plan: Plan, request: AnyRequest, wanted: Sequence[str]) -> list[str]:
    """Those of the wanted caveats that hold, as sentences, in the order wanted."""
    codes = [code for code in wanted if code in caveats_of(plan, request)]
    return _sentences(CAVEATS, codes, plan, request)


def conditions(plan: Plan, request: AnyRequest, wanted: Sequence[str]) -> list[str]:
    """Those of the wanted conditions that the guarantee has, as sentences, in the order wanted."""
    codes = [code for code in wanted if code in conditions_of(plan, request)]
    return [f"The guarantee assumes that {text}." for text in _sentences(CONDITIONS, codes, plan, request)]


def _sentences(texts: Mapping[str, str], codes: Sequence[str], plan: Plan, request: AnyRequest) -> list[str]:
    contract = plan.contract
    size = request.sketch_size if isinstance(request, SketchRequest) else 0
    limit = contract.items if request.max_items_per_user is None else request.max_items_per_user
    ranges = dict.fromkeys(
        f"{aggregate.vector}: {', '.join(aggregate.columns)} to a norm of {float(aggregate.high):g}"
        if aggregate.vector
        else f"{aggregate.name}: {aggregate.column} from {float(aggregate.low):g} to {float(aggregate.high):g}"
        for aggregate in (request.aggregates if plan.sums else ())
    )
    values = {
        "items": contract.items,
        "limit": limit,
        "noun": "item" if limit == 1 else "items",
        "total": TOTAL,
        "totals": " or of ".join(request.total) + (" (whichever is empty)" if request.total[1:] else ""),
        "nonzero": f"{contract.nonzero:.0f}",
        "rank": f"{contract.nonzero + 1:.0f}",
        "size": size,
        "pairs": size + 1,
        "bounds": "; ".join(ranges),
    }
    return [texts[code].format(**values) for code in codes]
