"""A plan in sentences: what was chosen, what a count must pass, and what else could be had."""

from __future__ import annotations

import math

from dphist.errors import DphistError
from dphist.planning.planner import CAP_ALONE
from dphist.planning.planner import plan as make_plan
from dphist.planning.utility import count_noise
from dphist.privacy.noise import PublicNoise
from dphist.privacy.types import Plan

_NAMES = {
    "gshm": "Gaussian noise on every count (the Gaussian sparse histogram mechanism)",
    "csh": "Gaussian noise on every count and one draw that all counts share (the correlated mechanism)",
    "top-k": "the top-k step, with Gaussian noise on every count and on what is subtracted from all",
    "laplace": "Laplace noise on every count",
    "known-domain": "Gaussian noise on the count of every listed item",
}


def explain(plan: Plan, *, alternatives: bool = True) -> list[str]:
    """Sentences for the person who is about to release. No data is looked at."""
    sentences = [_chosen(plan), _passing(plan), *_sums(plan)]
    if alternatives:
        sentences += _alternatives(plan)
    return [sentence for sentence in sentences if sentence]


def _chosen(plan: Plan) -> str:
    contract = plan.contract
    if isinstance(plan.noise, PublicNoise):
        reason = f"the {contract.max_nonzero:,} items are public"
    elif plan.mechanism == "top-k":
        reason = f"the {contract.max_nonzero:,} largest counts are wanted and users are not bounded"
    elif contract.max_nonzero is not None:
        reason = f"at most {contract.max_nonzero:,} counts can be non-zero and one user touches {contract.items:,}"
    else:
        reason = f"one user touches at most {_items(contract.items)} and the items are not bounded"
    bounded = contract.items < contract.nonzero
    dropped = f" Of users with more than {_items(contract.items)}, random ones are left out." if bounded else ""
    return (
        f"The mechanism is {_NAMES[plan.mechanism]}, because {reason}. Noise moves a released count by "
        f"{_figure(plan.total_noise)} (one standard deviation).{dropped}"
    )


def _sums(plan: Plan) -> list[str]:
    """What is to be known of each sum."""
    return [
        f"A sum of values from {float(one.low):g} to {float(one.high):g}: its standard error is "
        f"{_figure(math.hypot(one.sigma, float(one.middle) * plan.total_noise))}, of which the noise of the "
        f"count, times {float(one.middle):g}, is a part. A mean over n users has a standard error of "
        f"{_figure(one.sigma)}/n or a little more."
        for one in plan.sums
    ]


def _figure(number: float) -> str:
    """As many digits as a person can use."""
    return f"{number:,.0f}" if number >= 1000.0 else f"{number:.4g}"


def _items(number: int) -> str:
    return "1 item" if number == 1 else f"{number:,} items"


def _passing(plan: Plan) -> str:
    """Which items have a good chance to be seen."""
    if isinstance(plan.noise, PublicNoise):
        return "Every listed item is released; there is no threshold."
    law = count_noise(plan.noise)
    half, likely, unlikely = law.passing_count(0.5), law.passing_count(0.99), law.passing_count(0.01) - 1
    more = " more users than that" if plan.releases_offset else " users"
    must = (
        f"A count must, with its noise, exceed the one after the largest by {_figure(plan.threshold)}"
        if plan.releases_offset
        else f"A noisy count must be above {_figure(plan.threshold)}"
    )
    seldom = f", one of {unlikely:,} at most 1 %" if unlikely > 0 else ""
    seen = "pass" if CAP_ALONE in plan.notes else "be released"
    return f"{must}: an item of {half:,}{more} has an even chance to {seen}, one of {likely:,} has 99 %{seldom}."


def _alternatives(plan: Plan) -> list[str]:
    """What other requests would give for the same budget."""
    if isinstance(plan.noise, PublicNoise):
        return []
    sentences = []
    contract = plan.contract
    if contract.max_nonzero is None:
        sentences.append(_other_bounds(plan))
        if CAP_ALONE not in plan.notes:
            sentences.append(_top_in_place(plan))
    else:
        bound = _attempt(plan, max_items_per_user=max(1, contract.max_nonzero // 20))
        if bound is not None:
            items = bound.contract.items
            sentences.append(
                f"With at most {_items(items)} a user (--max-items-per-user {items}) and any number of counts, "
                f"the threshold would be {_figure(bound.threshold)} and the noise {_figure(bound.total_noise)}; "
                "the other items of a user are dropped at random."
            )
    return [sentence for sentence in sentences if sentence]


def _other_bounds(plan: Plan) -> str:
    """Half and twice as many items a user."""
    items = plan.contract.items
    others = [other for other in (_attempt(plan, max_items_per_user=m) for m in _near(items)) if other]
    parts = [
        f"{_figure(other.threshold)} with {_items(other.contract.items)} a user"
        + (" (Laplace noise)" if other.mechanism == "laplace" else "")
        for other in others
    ]
    if not parts:
        return ""
    listed = ", ".join(parts[:-1]) + (" and " if len(parts) > 1 else "") + parts[-1]
    return (
        f"Other bounds: the threshold would be {listed}. A lower bound means less noise, and more of the items of "
        "active users dropped; the best bound keeps most users whole."
    )


def _near(items: int) -> list[int]:
    return sorted({1, max(1, items // 2), items * 2} - {items})


def _top_in_place(plan: Plan) -> str:
    largest = max(10, 10 ** round(math.log10(4 * plan.contract.items)))
    top = _attempt(plan, top=largest)
    if top is None:
        return ""
    return (
        f"For the {largest:,} largest counts alone (--top {largest}) no user need be bounded: noise "
        f"{_figure(top.total_noise)}, and a count must exceed the one after them by {_figure(top.threshold)}."
    )


def _attempt(plan: Plan, *, top: int | None = None, max_items_per_user: int | None = None) -> Plan | None:
    try:
        return make_plan(
            epsilon=plan.budget.epsilon, delta=plan.budget.delta, top=top, max_items_per_user=max_items_per_user,
            sums=[(one.low, one.high) for one in plan.sums],
        )  # fmt: skip
    except DphistError:
        return None
