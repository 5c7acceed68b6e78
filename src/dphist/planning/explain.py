"""A plan in sentences: what was chosen, what it means for a count, and what other options would give."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from dphist.certificate.numbers import half_width
from dphist.certificate.plans import top_k_keeps
from dphist.display import count_items, figure, join_words
from dphist.errors import DphistError
from dphist.model import Plan, RoundsNoise
from dphist.planning.planner import LIMIT_ALONE
from dphist.planning.planner import plan as make_plan
from dphist.planning.utility import count_noise

MECHANISMS: Final = {
    "gshm": ("Gaussian noise", "Each count gets its own Gaussian noise (Gaussian sparse histogram mechanism)."),
    "csh": (
        "Gaussian noise, partly shared",
        "Each count gets its own Gaussian noise, and all counts share one more draw (correlated Gaussian sparse "
        "histogram mechanism).",
    ),
    "top-k": (
        "top-k with Gaussian noise",
        "The count after the K largest is subtracted from all counts, and added back with its own noise.",
    ),
    "laplace": ("Laplace noise", "Each count gets its own integer Laplace noise."),
    "rounds": (
        "rounds",
        "Items are found in rounds whose evidence is pooled, and then measured.",
    ),
    "known-domain": (
        "Gaussian noise on a public list",
        "The items come from a public list, so all of them are released, including those with no users.",
    ),
}


def explain(plan: Plan, *, alternatives: bool = True) -> list[str]:
    """Sentences about a plan, and about what other options would give for the same budget.

    >>> import dphist
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20)
    >>> print(dphist.explain(plan, alternatives=False)[0].partition(",")[0])
    Mechanism: Gaussian noise

    Args:
        plan: The plan.
        alternatives: Whether to plan other options too, which takes longer.
    """
    if plan.rounds is not None:
        return _rounds(plan.rounds)
    others = _alternatives(plan) if alternatives else []
    return [sentence for sentence in (_choice(plan), _passing(plan), *_sums(plan), *others) if sentence]


def _rounds(noise: RoundsNoise) -> list[str]:
    """What to expect of a release in rounds. How much noise a count has depends on what is found."""
    whole = sum(noise.parts) + noise.sizes + noise.measure
    share = f"{100.0 * noise.measure / whole:.0f} %"
    least = f"±{figure(1.96 * noise.sigma)}"
    measured = (
        f"The items are measured with {share} of the budget. With a limit of M items per user, which follows from "
        f"noisy numbers of users, the noise is {least} times the square root of M (95 %). Each count gets a "
        "margin of its own."
    )
    if not noise.parts:
        return [f"Every item on the list is released; there is no threshold. {measured}"]
    found = (
        f"Items are found in {len(noise.parts)} rounds whose evidence is pooled; found and hopeless items leave "
        "the lists of the users, so that the others count for more. A user with n items counts 1/√n for each in "
        f"the first round. In the end an item needs evidence of {figure(noise.threshold)} users who count in full."
    )
    if noise.alone is None:
        return [found, measured]
    kind = "Laplace" if noise.alone.mechanism == "laplace" else "Gaussian"
    alone = (
        f"Users with one item are a group of their own, with {kind} noise of ±{figure(1.96 * noise.alone.sigma)} "
        f"(95 %): what more than {figure(noise.alone.threshold)} of them have is found too."
    )
    return [found, alone, measured]


def _choice(plan: Plan) -> str:
    contract, items = plan.contract, plan.contract.items
    if plan.noise.public:
        reason = f"the {contract.max_nonzero:,} items are public"
    elif plan.mechanism == "top-k":
        limit = contract.user_limit
        limited = (
            "items per user are not limited" if limit is None else f"each user has at most {count_items(limit)}"
        )
        reason = f"the {contract.max_nonzero:,} largest counts are wanted and {limited}"
    elif top_k_keeps(plan):
        reason = f"at most {contract.max_nonzero:,} counts are released and one user may change all of them"
    elif contract.max_nonzero is not None:
        reason = f"at most {contract.max_nonzero:,} counts are not zero, {items:,} of them for one user"
    else:
        reason = f"each user has at most {count_items(items)} and the number of items is not limited"
    dropped = f" Users with more than {count_items(items)} contribute a random {items:,} of them."
    return (
        f"Mechanism: {MECHANISMS[plan.mechanism][0]}, because {reason}. Each count carries "
        f"±{figure(half_width(plan, 0.95))} of noise (95 %; standard deviation {figure(plan.total_noise)})."
        f"{dropped if items < contract.nonzero else ''}"
    )


def _sums(plan: Plan) -> list[str]:
    return [
        f"A sum of values from {float(value.low):g} to {float(value.high):g} has a standard error of "
        f"{figure(math.hypot(value.sigma, float(value.middle) * plan.total_noise))}, which includes "
        f"{float(value.middle):g} times the noise of the count. A mean over n users has a standard error of "
        f"{figure(value.sigma)}/n or slightly more."
        if value.columns == 1
        else f"Each of the {value.columns} columns of a vector with a norm of at most {float(value.high):g} has a "
        f"standard error of {figure(value.sigma)}."
        for value in plan.sums
    ]


def _passing(plan: Plan) -> str:
    if plan.noise.public:
        return "Every item on the list is released; there is no threshold."
    law, lower, rank = count_noise(plan.noise), plan.lower_threshold, f"{plan.contract.nonzero + 1:,.0f}"
    # With an offset, counts are relative to the one that was subtracted, which is at least `lower` - 1.
    added = 0 if plan.releases_offset else lower - 1
    half, likely, unlikely = (law.passing_count(chance) + added for chance in (0.5, 0.99, 0.01))
    if plan.releases_offset:
        least = f" (or {lower - 1:,}, if that is more)" if lower > 1 else ""
        must, more = f"the one of rank {rank}{least} by {figure(plan.noise.threshold)}", " more users than that"
    else:
        must, more = figure(plan.threshold), " users"
        # What a top-k step subtracts is not added back.
        if top_k_keeps(plan):
            more += f", and {half - added:,} more than the item of rank {rank} if there is one,"
    rarely = f", one with {unlikely - 1:,} at most 1 %" if unlikely - 1 > added else ""
    what = "pass" if LIMIT_ALONE in plan.notes else "be released"
    return (
        f"A noisy count must exceed {must}: an item with {half:,}{more} has a 50 % chance to {what}, one with "
        f"{likely:,} has 99 %{rarely}."
    )


def _alternatives(plan: Plan) -> list[str]:
    contract = plan.contract
    if plan.noise.public:
        return []
    if contract.max_nonzero is None:
        return [_other_limits(plan), "" if LIMIT_ALONE in plan.notes else _top_instead(plan)]
    other = _attempt(plan, max_items_per_user=max(1, contract.max_nonzero // 20))
    if other is None:
        return []
    items = other.contract.items
    return [
        f"With at most {count_items(items)} per user (--max-items-per-user {items}) and any number of counts, the "
        f"threshold would be {figure(other.threshold)} and the noise {figure(other.total_noise)}; other items of "
        "a user are dropped at random."
    ]


def _other_limits(plan: Plan) -> str:
    items = plan.contract.items
    near = sorted({1, max(1, items // 2), items * 2} - {items})
    parts = [
        f"{figure(other.threshold)} with {count_items(other.contract.items)} per user"
        + (" (Laplace noise)" if other.mechanism == "laplace" else "")
        for other in (_attempt(plan, max_items_per_user=number) for number in near)
        if other is not None
    ]
    if not parts:
        return ""
    return (
        f"Other limits: the threshold would be {join_words(parts)}. A lower limit means less noise, and more "
        "items of active users dropped; the best limit covers most users completely."
    )


def _top_instead(plan: Plan) -> str:
    largest = max(10, 10 ** round(math.log10(4 * plan.contract.items)))
    top = _attempt(plan, top=largest)
    if top is None:
        return ""
    return (
        f"For only the {largest:,} largest counts (--top {largest}) no limit per user is needed: noise "
        f"{figure(top.total_noise)}, and a count must exceed the one after them by {figure(top.noise.threshold)}."
    )


def _attempt(plan: Plan, *, top: int | None = None, max_items_per_user: int | None = None) -> Plan | None:
    try:
        other = make_plan(
            epsilon=plan.budget.epsilon, delta=plan.budget.delta, top=top, max_items_per_user=max_items_per_user,
            sums=[(value.low, value.high, value.columns) for value in plan.sums],
        )  # fmt: skip
    except DphistError:
        return None
    return replace(other, lower_threshold=plan.lower_threshold)
