"""Spends of privacy budget, and how they add up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
from typing import Any, Final, Protocol

from dphist.errors import InvalidParameter
from dphist.ledger.store import canonical
from dphist.privacy.types import Budget

# "auto" is zcdp or sum: the first booking says which, before any noise is drawn.
AUTO: Final = "auto"
ACCOUNTINGS: Final = (AUTO, "zcdp", "pld", "sum")
# The part of delta that zcdp reserves for counts that pass a threshold; the rest is that of rho.
HALF: Final = 0.5
# Profiles are drawn a little above the truth.
_NEAR: Final = 1.01


@dataclass(frozen=True)
class Spend:
    """The privacy that one release costs, with the certificate's document.

    `profile` is what a composer needs beside epsilon and delta; the ledger does not read it. Neither it nor the
    document may hold a true count or a password: both are stored as they are.
    """

    epsilon: float
    delta: float
    profile: dict[str, Any] | None = None
    document: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        budget = Budget(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", budget.epsilon)
        object.__setattr__(self, "delta", budget.delta)
        for name in ("profile", "document"):
            value = getattr(self, name)
            if value is None and name == "profile":
                continue
            if not isinstance(value, dict):
                raise InvalidParameter(f"{name} must be a dictionary, not {type(value).__name__}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as it is booked."""
        return {
            "epsilon": self.epsilon, "delta": self.delta, "profile": self.profile, "document": self.document
        }  # fmt: skip

    def through_json(self) -> Spend:
        """Through JSON and back, so that what is composed is what will be read later."""
        return Spend(**json.loads(canonical(self.to_dict())))


class Composer(Protocol):
    """How the spends of a dataset add up."""

    @property
    def accounting(self) -> str:
        """The name that a dataset asks for it by."""

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """*Guarantee*: all these releases together are (epsilon, result)-differentially private.

        One more spend never makes the result smaller.
        """


class SumComposer:
    """Epsilons and deltas are added: valid for all releases, however they were chosen."""

    accounting: Final = "sum"

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The sum of the deltas if the sum of the epsilons is within `epsilon`, else 1, which promises nothing."""
        if sum((decimal_fraction(spend.epsilon) for spend in spends), Fraction()) > decimal_fraction(epsilon):
            return 1.0
        return _float_from_above(sum((decimal_fraction(spend.delta) for spend in spends), Fraction()))


class ConcentratedComposer:
    """The accounting by zero-concentrated privacy: rho and the delta beside it add up, each within its own limit.

    `limits` are those of a dataset's whole `total`, with this `share` of delta beside rho, and `convert` gives the
    delta of a rho at an epsilon. A spend has its rho and delta as its profile; without one they are epsilon^2/2
    and delta, true of any such release.

    *Guarantee*: holds however the spends were chosen, by looking at earlier results too: both limits are fixed
    beforehand. (A limit on their converted sum would not do: who may choose where to end could gain by it.)
    """

    accounting: Final = "zcdp"

    def __init__(
        self,
        total: Budget,
        limits: tuple[float, float],
        convert: Callable[[float, float], float],
        share: float = HALF,
    ) -> None:
        self.total, self._limits, self._convert, self.share = total, limits, convert, share

    def left(self, spends: Sequence[Spend]) -> dict[str, float]:
        """What is left of both limits."""
        pairs = [concentrated(spend) for spend in spends]
        rest = [Fraction(limit) - sum(pair[k] for pair in pairs) for k, limit in enumerate(self._limits)]
        return {"rho_left": max(0.0, float(rest[0])), "delta_left": max(0.0, float(rest[1]))}

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The delta of all spends together while both sums are within their limits, else 1, which is nothing."""
        pairs = [concentrated(spend) for spend in spends]
        rho, delta = (sum((pair[place] for pair in pairs), Fraction()) for place in (0, 1))
        if rho > Fraction(self._limits[0]) or delta > Fraction(self._limits[1]) or epsilon < self.total.epsilon:
            return 1.0
        together = self._convert(float(rho), epsilon) if rho else 0.0
        # Within the limits it is within the total; what rounding adds must not turn a fit into none.
        return min(self.total.delta, math.nextafter(together + float(delta), math.inf)) if spends else 0.0

    def largest_epsilon(self, spend: Spend, spends: Sequence[Spend], times: int = 1) -> float:
        """About the largest epsilon with which `spend` fits so many times after the others; 0 if there is none.

        Rather too small: of Laplace noise rho grows with the square of epsilon, of Gaussian noise as the largest
        rho that epsilon and delta allow, and the smaller of the two answers is taken.
        """
        (rho, delta), left = concentrated(spend), self.left(spends)
        if times * delta > left["delta_left"] or not left["rho_left"] or not rho:
            return 0.0
        growth = left["rho_left"] / float(times * rho)
        wanted = largest_rho(spend.epsilon, spend.delta, self._convert) * growth
        low, high = 0.0, self.total.epsilon
        for _ in range(40):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if self._convert(wanted, middle) >= spend.delta else (low, middle)
        return min(low, spend.epsilon * math.sqrt(growth))


def largest_rho(epsilon: float, delta: float, convert: Callable[[float, float], float]) -> float:
    """*Guarantee*: the delta of the result at this epsilon was computed, and is at most `delta`."""
    low, high = 0.0, epsilon
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if convert(middle, epsilon) <= delta else (low, middle)
    return low


def concentrated(spend: Spend) -> tuple[Fraction, Fraction]:
    """The rho and the delta beside it that a spend was booked with, exactly."""
    if spend.profile is None:
        return Fraction(spend.epsilon) ** 2 / 2, Fraction(spend.delta)
    rho, delta = spend.profile.get("rho"), spend.profile.get("delta")
    for number in (rho, delta):
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0.0 <= number < math.inf:
            raise InvalidParameter("a spend's rho and delta must be finite numbers that are not negative")
    assert rho is not None
    assert delta is not None
    return Fraction(rho), Fraction(delta)


class ProfileComposer:
    """The accounting by privacy profiles, with the functions of that layer passed in.

    `profile_of` makes a profile of a spend; `total_delta` composes pairs of a profile and how often it occurs.
    Only for releases that were all fixed before the first of them was looked at.
    """

    accounting: Final = "pld"

    def __init__(
        self, profile_of: Callable[[Spend], Any], total_delta: Callable[[list[tuple[Any, int]], float], float]
    ) -> None:
        self._profile_of = profile_of
        self._total_delta = total_delta

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The composed delta, or the plain sum where that is smaller: both are proofs.

        So that one release may have all of the total, whatever a composition adds for rounding.
        """
        times: dict[str, int] = {}
        first: dict[str, Spend] = {}
        for spend in spends:
            # Equal spends are composed as one that occurs several times, which costs far less.
            key = canonical([spend.epsilon, spend.delta, spend.profile])
            times[key] = times.get(key, 0) + 1
            first.setdefault(key, spend)
        if not times:
            return 0.0
        pairs = [(self._checked(first[key]), count) for key, count in times.items()]
        composed, added = self._total_delta(pairs, epsilon), SumComposer().total_delta(spends, epsilon)
        # In this order NaN stays, and is refused.
        return added if composed >= added else composed

    def _checked(self, spend: Spend) -> Any:
        """The profile of a spend, which must not contradict its own epsilon and delta: both count as true."""
        profile = self._profile_of(spend)
        if not profile.delta(spend.epsilon) <= _NEAR * spend.delta:
            raise InvalidParameter("a spend's profile is above its own delta at its own epsilon")
        return profile


def round_down(number: float) -> float:
    """The number to two digits, rounded down, so that what was to fit still fits."""
    return float(Context(prec=2, rounding=ROUND_FLOOR).create_decimal_from_float(number))


def decimal_fraction(number: float) -> Fraction:
    """The number as it is written: three times 0.1 is 0.3, as readers of certificates will add."""
    return Fraction(repr(number))


def _float_from_above(exact: Fraction) -> float:
    """*Guarantee*: the smallest float that is written as `exact` or more; hence `<=` of it is exact."""
    value = float(exact)
    # The nearest float is at most one too small, and what is below it is written as less than `exact`.
    return value if decimal_fraction(value) >= exact else math.nextafter(value, math.inf)


def largest_float(exact: Fraction) -> float:
    """*Guarantee*: the largest float that is written as `exact` or less, at least 0."""
    value = float(exact)
    return max(0.0, value if decimal_fraction(value) <= exact else math.nextafter(value, -math.inf))
