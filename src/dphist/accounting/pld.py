"""Plans as privacy loss distributions of dp_accounting, which composes them with those of other mechanisms."""

from __future__ import annotations

import math
from typing import Any

from dphist.accounting.profile import INTERVAL, Profile, profile_of_plan
from dphist.errors import package, positive_number
from dphist.model import Plan


def to_pld(plan: Plan | Profile, *, value_discretization_interval: float = INTERVAL) -> Any:
    """The `PrivacyLossDistribution` of dp_accounting, to compose with any other of the same interval.

    Its losses are the multiples of the interval next to the points of the profile and to their mirror images.

    Guarantee: its delta is nowhere below the plan's, and equal to the profile's at points that are multiples of
    the interval.
    Source: Doroshenko et al. 2022, *Connect the Dots*.

    >>> import dphist
    >>> from dphist.accounting import to_pld
    >>> plan = dphist.plan(epsilon=0.1, delta=1e-8, max_items_per_user=10)
    >>> print(f"{to_pld(plan).self_compose(10).get_epsilon_for_delta(1e-7):.3f}")
    0.354

    Args:
        plan: A plan or its profile.
        value_discretization_interval: The interval of the losses, as in dp_accounting.

    Raises:
        MissingExtra: The extra `accounting` is not installed.
    """
    interval = positive_number("value_discretization_interval", value_discretization_interval)
    profile = plan if isinstance(plan, Profile) else profile_of_plan(plan)
    names = ("pld_pmf", "privacy_loss_distribution")
    pmf, pld = (package(f"dp_accounting.pld.{name}", "accounting") for name in names)
    after = {end for e in profile.epsilons for end in (math.floor(e / interval), math.ceil(e / interval))}
    steps = sorted({*after, *(-step for step in after)})
    deltas = [profile.delta(step * interval) for step in steps]
    return pld.PrivacyLossDistribution(pmf.create_pmf_pessimistic_connect_dots(interval, steps, deltas))
