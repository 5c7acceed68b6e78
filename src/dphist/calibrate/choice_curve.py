"""delta for every epsilon of a privately chosen cap and the release that follows, together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from dphist.analysis.adaptive import Node, delta_adaptive_upper
from dphist.analysis.gaussian import largest_sensitivity_per_sigma
from dphist.calibrate.auto_cap import ChoicePlan, delta_of_plan, different_plans
from dphist.numerics.normal import hockey_stick_normal
from dphist.types import LaplaceNoise, Plan, PublicNoise

# Chords over half a nat are some 3 % above the profile; longer ones where delta is so small that there would be
# too many: each node is computed for each of two dozen plans.
_NATS: Final = 0.5
_MOST_NODES: Final = 32
_GRID: Final = 4001
# How many deviations of the loss of the sizes are looked at on either side.
_WIDE: Final = 4.0
# Every so many nodes a plan is evaluated in any case.
_STEP: Final = 6


def choice_curve(planned: ChoicePlan, epsilons: Sequence[float]) -> list[float]:
    """delta at each epsilon of the noisy sizes and of whatever release follows them.

    Guarantee: each is an upper bound in ball arithmetic, as `certify_choice` has at the budget's epsilon; where
    to evaluate the plans is all that doubles propose.
    Valid for: epsilons from 0 on.
    """
    nodes = largest_of_all(planned.plans, _nodes(planned, max(epsilons)))
    least, found = 1.0, {}
    for epsilon in sorted(epsilons):
        delta = delta_adaptive_upper(planned.choice.variance, nodes, epsilon=epsilon)
        # The certificate has its nodes where its own epsilon needs them. What holds at an epsilon holds above it.
        own = planned.certificate.delta if epsilon >= planned.certificate.epsilon else 1.0
        least = found[epsilon] = min(least, delta, own)
    return [found[epsilon] for epsilon in epsilons]


def largest_of_all(plans: Sequence[Plan], points: Sequence[float]) -> list[Node]:
    """At each point the largest delta of all plans, certified.

    A plan is evaluated at a few points, and at those in between only where a chord does not show that another one
    is larger there anyway: delta is convex in e^x.
    """
    # The quick ones first: Laplace noise is the largest of all nearly everywhere below its epsilon.
    ordered = sorted(different_plans(plans), key=lambda plan: not isinstance(plan.noise, LaplaceNoise))
    largest = [0.0] * len(points)
    coarse = sorted({*range(0, len(points), _STEP), len(points) - 1})
    for plan in ordered:
        at = {place: delta_of_plan(plan, points[place]) for place in coarse}
        for low, high in pairwise(coarse):
            for place in range(low + 1, high):
                below = math.exp(points[low] - points[place])
                above = math.exp(min(points[high] - points[place], 700.0))
                chord = (at[low] * (above - 1.0) + at[high] * (1.0 - below)) / (above - below)
                if chord * (1.0 + 1e-9) > largest[place]:
                    at[place] = delta_of_plan(plan, points[place])
        for place, delta in at.items():
            largest[place] = max(largest[place], delta)
    return list(zip(points, largest, strict=True))


def _nodes(planned: ChoicePlan, last: float) -> list[float]:
    """Closely where delta falls. Above the release's own epsilon that of new counts is left, which does not; of a
    public list there are none, and it falls on.
    """
    release, deviation = planned.budget_of_release, 1.0 / math.sqrt(planned.choice.variance)
    mu = largest_sensitivity_per_sigma(epsilon=release.epsilon, delta=release.delta)
    end = last if all(isinstance(plan.noise, PublicNoise) for plan in planned.plans) else release.epsilon
    grid = np.linspace(-_WIDE * deviation, end, _GRID)
    fallen = -np.log(np.maximum(np.asarray(hockey_stick_normal(mu, grid)), 1e-300))
    fallen -= fallen[0]
    steps = min(_MOST_NODES, math.ceil(float(fallen[-1]) / _NATS))
    places = np.searchsorted(fallen, np.linspace(0.0, float(fallen[-1]), steps + 1))
    near = (release.epsilon + step * deviation for step in (0.5, 1.5, _WIDE))
    kinks = {plan.budget.epsilon for plan in planned.plans}
    return sorted({*grid[np.minimum(places, _GRID - 1)].tolist(), *kinks, *near, last})
