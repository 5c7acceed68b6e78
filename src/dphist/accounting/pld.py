"""Plans for dp_accounting: as privacy loss distributions, as events, and an accountant that knows both."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any

from dphist.accounting.composition import on_grid
from dphist.accounting.profile import INTERVAL, Profile, profile_of_plan
from dphist.errors import MissingExtra, positive_number
from dphist.privacy.types import Plan


def to_pld(plan: Plan | Profile, *, value_discretization_interval: float = INTERVAL) -> Any:
    """The plan's `PrivacyLossDistribution`, to compose with any other of the same interval.

    Guarantee: its delta is nowhere below the profile's, and so nowhere below the plan's; the same at the profile's
    points where those are multiples of the interval.
    Source: Doroshenko et al. 2022, *Connect the Dots*.
    """
    interval = positive_number("value_discretization_interval", value_discretization_interval)
    profile = plan if isinstance(plan, Profile) else profile_of_plan(plan)
    law = on_grid(*profile.atoms(), step=interval, count=1)
    masses = dict(zip(law.places.tolist(), law.masses.tolist(), strict=True))
    distribution = _package("dp_accounting.pld.privacy_loss_distribution").PrivacyLossDistribution
    return distribution.create_from_rounded_probability(masses, profile.infinite, interval)


def to_dp_event(plan: Plan | Profile) -> Any:
    """The plan as a `DpEvent`, which `plan_accountant` understands, also inside composed events.

    It holds the points of the profile, and so all that an accountant needs.
    """
    profile = plan if isinstance(plan, Profile) else profile_of_plan(plan)
    event: Any = _classes()[0](profile.epsilons, profile.deltas, profile.interval)
    return event


def plan_accountant(value_discretization_interval: float = INTERVAL) -> Any:
    """A `PLDAccountant` for adding or removing one user that knows the events of plans beside all of its own."""
    accountant: Any = _classes()[1](value_discretization_interval=value_discretization_interval)
    return accountant


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any]:
    """The event and the accountant, made when dp_accounting is there."""
    dp, attrs = _package("dp_accounting"), _package("attr")
    base = _package("dp_accounting.pld.pld_privacy_accountant").PLDAccountant
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE

    @attrs.s(frozen=True, slots=True, auto_attribs=True)
    class DphistEvent(dp.DpEvent):  # type: ignore[misc,name-defined]
        """A release by a plan of dphist, told by the points of its privacy profile."""

        epsilons: tuple[float, ...]
        deltas: tuple[float, ...]
        interval: float

    class PlanAccountant(base):  # type: ignore[misc,valid-type]
        """The accountant of privacy loss distributions, which has no hook for events from elsewhere."""

        def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:
            # Composed events come back here for each of their parts: the base class calls this method for them.
            if not isinstance(event, DphistEvent):
                return super()._maybe_compose(event, count, do_compose)
            if self.neighboring_relation is not relation:
                return base.CompositionErrorDetails(event, "a plan of dphist is for adding or removing one user.")
            if do_compose:
                profile = Profile(event.epsilons, event.deltas, event.interval)
                pld = to_pld(profile, value_discretization_interval=self._value_discretization_interval)
                self._pld: Any = self._pld.compose(pld.self_compose(count) if count > 1 else pld)
            return None

    return DphistEvent, PlanAccountant


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("this needs dp_accounting: pip install 'dphist[accounting]'") from None
