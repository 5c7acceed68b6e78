"""Plans as privacy loss distributions of dp_accounting, which composes them with those of other mechanisms."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np

from dphist.accounting.profile import INTERVAL, Profile, profile_of_plan
from dphist.errors import MissingExtra, install_command, positive_number
from dphist.privacy.numerics import FloatArray
from dphist.privacy.types import Plan


def to_pld(plan: Plan | Profile, *, value_discretization_interval: float = INTERVAL) -> Any:
    """The `PrivacyLossDistribution` of dp_accounting, to compose with any other of the same interval.

    Guarantee: its delta is nowhere below the plan's, and equal to the profile's at points that are multiples of
    the interval.
    Source: Doroshenko et al. 2022, *Connect the Dots*.

    >>> import dphist
    >>> from dphist.accounting import to_pld
    >>> plan = dphist.plan(epsilon=0.1, delta=1e-8, max_items_per_user=10)
    >>> to_pld(plan).self_compose(10).get_epsilon_for_delta(1e-7) < 10 * 0.1
    True
    """
    interval = positive_number("value_discretization_interval", value_discretization_interval)
    profile = plan if isinstance(plan, Profile) else profile_of_plan(plan)
    masses = on_grid(*profile.atoms(), step=interval)
    try:
        distribution = import_module("dp_accounting.pld.privacy_loss_distribution").PrivacyLossDistribution
    except ImportError:
        raise MissingExtra(f"this needs dp_accounting: {install_command('accounting')}") from None
    return distribution.create_from_rounded_probability(masses, profile.infinite, interval)


def on_grid(losses: FloatArray, masses: FloatArray, *, step: float) -> dict[int, float]:
    """The mass at each multiple of the step, for atoms moved to the two nearest ones.

        mass e^(-a) - e^(-l) over e^(-a) - e^(-b) goes up to b, the rest down to a   (a <= l < b = a + step)

    Both laws of the pair keep their mass.

    Guarantee: the profile is nowhere lower than before: on [e^a, e^b] it is the chord of the old one.
    Source: Doroshenko et al. 2022, *Connect the Dots*.
    """
    below = np.floor(losses / step)
    up = np.clip(np.expm1(below * step - losses) / math.expm1(-step), 0.0, 1.0)
    places = np.concatenate([below, below + 1.0]).astype(np.int64)
    split = np.concatenate([masses * (1.0 - up), masses * up])
    kept = split > 0.0
    unique, inverse = np.unique(places[kept], return_inverse=True)
    summed = np.zeros(unique.size)
    np.add.at(summed, inverse, split[kept])
    return dict(zip(unique.tolist(), summed.tolist(), strict=True))
