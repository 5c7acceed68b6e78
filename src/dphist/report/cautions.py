"""Budgets that promise little: verified is not the same as safe, and nobody should take the one for the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dphist.display import raised
from dphist.planning.planner import WEAK_EPSILON
from dphist.privacy.types import Budget
from dphist.report.meaning import Meaning
from dphist.report.promise import at_most, moved
from dphist.report.rows import Rows
from dphist.report.sentences import figure


def cautions_of(budget: Budget, document: Mapping[str, Any], rows: Rows, meaning: Meaning) -> tuple[str, ...]:
    """What follows from the budget and the released counts alone, both of them public."""
    return (*_weak(budget.epsilon), *_large(budget.delta, document["counts"]["offset"], rows, meaning))


def _weak(epsilon: float) -> list[str]:
    if epsilon <= WEAK_EPSILON:
        return []
    factor = f"{figure(math.exp(epsilon))}" if epsilon < 30.0 else "e^epsilon"
    return [
        f"epsilon {raised(epsilon, 6)} is a weak promise: it allows that the odds that a person is in the data "
        f"change by a factor of {factor}, and that a belief of 1 % becomes {at_most(moved(0.01, epsilon))}."
    ]


def _large(delta: float, offset: float | None, rows: Rows, meaning: Meaning) -> list[str]:
    """The largest count, noise aside, is no more than the number of users there are."""
    counts = next(column.values for column in rows.columns if column.name == rows.count)
    # Of a sketch a count may be above the number of users, by no more than the offset.
    spare = offset or 0.0 if meaning.kind == "sketch" else 0.0
    most = max(counts, default=0.0) - spare
    if most < 1.0 or delta * most <= 1.0:
        return []
    less = " less the offset" if spare else ""
    whose = {
        "users": f"{most:,.0f} users that one item alone has by its released count",
        "differences": f"{most:,.0f}, the largest released difference, and its item has more users still",
    }.get(meaning.kind, f"{most:,.0f}, the largest released count{less}")
    return [
        f"delta {raised(delta, 6)} is more than one over {'the ' if meaning.kind == 'users' else ''}{whose}: by "
        "itself, such a delta allows that the data of some users are published outright. It should be well below "
        "one over the number of users."
    ]
