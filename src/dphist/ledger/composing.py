"""What is spent, and how spends add up."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, Protocol

from dphist.errors import InvalidParameter
from dphist.ledger.chain import canonical
from dphist.types import Budget

ACCOUNTINGS: Final = ("pld", "sum")


@dataclass(frozen=True)
class Spend:
    """The privacy that one release costs, with the certificate's document.

    `profile` is what a composer knows more of the release than its epsilon and delta; the ledger does not look
    into it. Neither it nor the document may hold a true count or a password: they are kept as they are.
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

    def plain(self) -> Spend:
        """Through JSON and back, so that what is composed is what will be read again."""
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
    """Epsilons and deltas add up: true for all releases, whatever they are and however they were chosen."""

    accounting: Final = "sum"

    def total_delta(self, spends: Sequence[Spend], epsilon: float) -> float:
        """The sum of the deltas if the sum of the epsilons is within `epsilon`, else 1, which promises nothing."""
        if sum((written(spend.epsilon) for spend in spends), Fraction()) > written(epsilon):
            return 1.0
        return _float_from_above(sum((written(spend.delta) for spend in spends), Fraction()))


class ProfileComposer:
    """The accounting by privacy profiles, with the functions of that layer passed in.

    `profile_of` makes a profile of a spend; `total_delta` composes pairs of a profile and how often it occurs.
    """

    accounting: Final = "pld"

    def __init__(
        self,
        profile_of: Callable[[Spend], Any],
        total_delta: Callable[[list[tuple[Any, int]], float], float],
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
        pairs = [(self._profile_of(first[key]), count) for key, count in times.items()]
        composed, added = self._total_delta(pairs, epsilon), SumComposer().total_delta(spends, epsilon)
        # In this order NaN stays, and is refused.
        return added if composed >= added else composed


def written(number: float) -> Fraction:
    """The number as it is written: three times 0.1 is 0.3, as everyone who reads a certificate will add."""
    return Fraction(repr(number))


def _float_from_above(exact: Fraction) -> float:
    """*Guarantee*: the smallest float that is written as `exact` or more; hence `<=` of it is exact."""
    value = float(exact)
    # The nearest float is at most one too small, and what is below it is written as less than `exact`.
    return value if written(value) >= exact else math.nextafter(value, math.inf)


def largest_float(exact: Fraction) -> float:
    """*Guarantee*: the largest float that is written as `exact` or less, at least 0."""
    value = float(exact)
    return max(0.0, value if written(value) <= exact else math.nextafter(value, -math.inf))
