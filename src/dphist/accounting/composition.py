"""Releases together: the delta of all of them at any epsilon, far below the sum of their budgets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dphist.accounting.plan_profile import profile_of_plan
from dphist.accounting.profile import LARGEST_KNOT, Profile
from dphist.accounting.tilted import LONGEST, Losses, Tilted, best_tilt, log_moment, on_grid, tilted
from dphist.errors import InvalidParameter
from dphist.types import Plan, html_table, positive_number, text_table

Spend = Plan | Profile | tuple[Plan | Profile, int]
_MOST_RELEASES: Final = 10**6
# Nothing is left to account for, and 1 - delta would lose its digits.
_HOPELESS: Final = 0.999


@dataclass(frozen=True)
class Composition:
    """Several releases of the same users' data, each with its profile and how often it is made.

    Each release may depend on the results of those before it (docs/theory/accounting.md).
    """

    spends: tuple[tuple[Profile, int], ...]

    @property
    def releases(self) -> int:
        """How many releases there are."""
        return sum(count for _, count in self.spends)

    @property
    def infinite(self) -> float:
        """The delta that no epsilon removes; it adds up."""
        log_rest = math.fsum(
            count * math.log1p(-min(profile.infinite, _HOPELESS)) for profile, count in self.spends
        )
        return min(1.0, -math.expm1(log_rest) * (1.0 + 1e-13))

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values for people: epsilon for a few deltas."""
        deltas = [delta for delta in (1e-4, 1e-5, 1e-6, 1e-8, 1e-10) if delta > self.infinite]
        return [
            ("releases", f"{self.releases:,}"),
            *((f"epsilon at delta {delta:g}", f"{self.epsilon(delta):.6g}") for delta in deltas),
            ("delta that no epsilon removes", f"{self.infinite:.6g}"),
        ]

    def __str__(self) -> str:
        return text_table(self.rows())

    def _repr_html_(self) -> str:
        return html_table("Releases together", self.rows())

    def delta(self, epsilon: float) -> float:
        """Delta of all releases together at an epsilon.

        Guarantee: an upper bound, rounding included; above the exact composition of the profiles by about 1e-9
        where their points are on one grid.
        Source: Zhu, Dong and Wang 2022 for the composition of dominating pairs.
        """
        if not isinstance(epsilon, (int, float)) or not epsilon >= 0.0:
            raise InvalidParameter(f"epsilon must be a number of at least zero, not {epsilon!r}")
        if any(profile.infinite >= _HOPELESS for profile, _ in self.spends):
            return 1.0
        if not self.spends or epsilon >= self._largest_loss:
            return self.infinite
        return self._delta(self._tilted_at(epsilon), epsilon)

    def epsilon(self, delta: float) -> float:
        """The least epsilon, within a relative 1e-7, at which delta suffices; infinite where none does.

        Guarantee: `delta(epsilon)` was tested and is within delta.
        """
        target = positive_number("delta", delta)
        if self.infinite > target or any(profile.infinite >= _HOPELESS for profile, _ in self.spends):
            return math.inf
        if self.delta(0.0) <= target:
            return 0.0
        # The invariant: delta(low) is above the target and delta(high) is not.
        low, high = 0.0, self._largest_loss
        guess = self._chernoff_epsilon(target - self.infinite)
        while high - low > 1e-7 * high:
            if not low < guess < high:
                guess = (low + high) / 2.0
            law = self._tilted_at(guess)
            found = self._delta(law, guess)
            low, high = (low, guess) if found <= target else (guess, high)
            # Delta falls about as e^(-tilt epsilon); a step a little too far brackets the solution.
            step = math.log((found - self.infinite + 1e-300) / (target - self.infinite + 1e-300)) / (
                law.tilt + 1.0
            )
            guess += step + math.copysign(2e-8 * high, step)
        return high

    @property
    def _largest_loss(self) -> float:
        return math.fsum(count * profile.epsilons[-1] for profile, count in self.spends) * (1.0 + 1e-12)

    @cached_property
    def _step(self) -> float:
        """The finest step of the profiles, or a coarser one where a window of that step would be too long."""
        step = min(profile.interval for profile, _ in self.spends)
        while self._largest_loss / step > 0.25 * LONGEST and self._spread / step > 0.02 * LONGEST:
            step *= 2.0
        return step

    @property
    def _spread(self) -> float:
        """About the standard deviation of all losses together."""
        return math.sqrt(math.fsum(count * _second_moment(profile) for profile, count in self.spends))

    @cached_property
    def _laws(self) -> list[Losses]:
        return [on_grid(*profile.atoms(), step=self._step, count=count) for profile, count in self.spends]

    def _tilted_at(self, epsilon: float) -> Tilted:
        return tilted(self._laws, best_tilt(self._laws, epsilon, self._step), self._step, near=epsilon)

    def _delta(self, law: Tilted, epsilon: float) -> float:
        return min(1.0, self.infinite + law.delta(epsilon))

    def _chernoff_epsilon(self, delta: float) -> float:
        """About where delta falls to this: Chernoff's bound, which only has to be near."""
        low, high = 0.0, self._largest_loss
        for _ in range(24):
            middle = (low + high) / 2.0
            tilt = best_tilt(self._laws, middle, self._step)
            bound = log_moment(self._laws, tilt, self._step) - tilt * middle
            low, high = (low, middle) if bound <= math.log(max(delta, 1e-300)) else (middle, high)
        return high


def compose(*spends: Spend) -> Composition:
    """Plans or profiles together; a pair of one and a number stands for that many releases.

    >>> import dphist
    >>> from dphist.accounting import compose
    >>> plan = dphist.plan(epsilon=0.1, delta=1e-8, max_items_per_user=10)
    >>> compose((plan, 10)).epsilon(1e-6) < 10 * 0.1
    True
    """
    return Composition(tuple(_told(spend) for spend in spends))


def total_delta(spends: Sequence[tuple[Profile, int]], epsilon: float) -> float:
    """Delta of everything that was spent, at one epsilon: an upper bound, 1 where there is nothing better.

    Equal profiles are counted together, so that many equal spends cost no more than one.
    """
    counts: dict[Profile, int] = {}
    for profile, count in spends:
        counts[profile] = counts.get(profile, 0) + _counted(count)
    return Composition(tuple(counts.items())).delta(epsilon)


def naive_sum(budgets: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Epsilon and delta of all releases together by adding both, rounded up.

    Guarantee: an upper bound.
    Source: basic composition, Dwork et al. 2006.
    """
    pairs = list(budgets)
    return _sum_up(epsilon for epsilon, _ in pairs), min(1.0, _sum_up(delta for _, delta in pairs))


def _sum_up(values: Iterable[float]) -> float:
    total = math.fsum(values)
    return math.nextafter(total, math.inf) if total > 0.0 else total


def _told(spend: Spend) -> tuple[Profile, int]:
    what, count = spend if isinstance(spend, tuple) else (spend, 1)
    if isinstance(what, Plan):
        return profile_of_plan(what), _counted(count)
    if isinstance(what, Profile):
        return what, _counted(count)
    raise InvalidParameter(f"only plans and profiles compose, not {type(what).__name__}")


def _counted(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_RELEASES:
        raise InvalidParameter(f"the number of releases must be between 1 and {_MOST_RELEASES}, not {count!r}")
    return count


def _second_moment(profile: Profile) -> float:
    losses, masses = profile.atoms()
    return float(masses @ (losses.clip(-LARGEST_KNOT, LARGEST_KNOT) ** 2))
