"""The counting, audited exactly and without noise: one user must change only what the plan allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dphist.audit import Attack, case_of_counts
from dphist.counting.task import Choice, Engine, Events, Task
from dphist.model import Plan, SumNoise
from dphist.releasing.noise import IntArray
from dphist.releasing.run import values_of
from dphist.sampling.rng import SecureRng


@dataclass(frozen=True)
class Contribution:
    """Counts and sums of all items with one user and without: a row for each item, the count first, in steps.

    These are true counts: the events must be synthetic. `problem` is how the change exceeds what the certificate
    covers, if it does.
    """

    counts: IntArray = field(repr=False)
    neighbour: IntArray = field(repr=False)
    problem: str | None

    def case(self, name: str) -> Attack:
        """These neighbours as an attack on the noise: `audit(..., more_cases=[...])`."""
        return case_of_counts(name, self.counts[:, 0].tolist(), self.neighbour[:, 0].tolist())


def contribution_of_user(
    engine: Engine, plan: Plan, events: Events, without: Events, *, summed: Sequence[str] = ()
) -> Contribution:
    """Count synthetic events under a plan, with one user and `without`, and compare exactly.

    `summed` names the columns of the plan's sums and vectors. Top-k steps and public lists are not covered.
    """
    cap = plan.contract.items
    task = Task(events, Choice(SecureRng().words(4).tobytes()), cap, values=values_of(plan, summed))
    with engine:
        both = [_count_rows(engine, counted) for counted in (task, replace(task, events=without))]
    items, absent = sorted({*both[0], *both[1]}, key=repr), (0,) * (1 + len(plan.summed))
    counts, neighbour = (
        np.array([rows.get(item, absent) for item in items], dtype=np.int64).reshape(len(items), len(absent))
        for rows in both
    )
    return Contribution(counts, neighbour, problem_of(counts - neighbour, cap, plan.sums))


def _count_rows(engine: Engine, task: Task) -> dict[Any, tuple[int, ...]]:
    names, rows = len(task.events.items) + bool(task.events.totals), {}
    with engine.count(task) as counted:
        for batch in counted.batches():
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                rows[row[:names]] = row[names:]
    return rows


def problem_of(moved: IntArray, most: int, sums: Sequence[SumNoise]) -> str | None:
    """Why a plan does not cover a user who moves counts and sums by this, a row for each item."""
    touched = moved[moved[:, 0] != 0]
    if moved[moved[:, 0] == 0].any():
        return "a sum changes where the count does not"
    steps = np.unique(touched[:, 0]).tolist()
    if not steps:
        return None
    if steps != [1]:
        return f"a count changes by {steps[-1] if steps[-1] != 1 else steps[0]}, and one user counts once"
    if len(touched) > most:
        return f"{len(touched)} counts change, and the plan allows {most}"
    first = 1
    for place, noise in enumerate(sums, start=1):
        # Vectors are relative to the middle of their range, other sums to its lower end.
        middle = noise.reach if noise.columns == 1 else 0
        # As objects, whose squares do not overflow.
        around = touched[:, first : first + noise.columns].astype(object) - middle
        first += noise.columns
        if (around**2).sum(axis=1).max() > noise.reach**2:
            return f"sum {place} changes by more than half its range"
    return None
