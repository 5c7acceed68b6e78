"""What is promised (the budget) and what is known of every dataset (the contract)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dphist.errors import InvalidParameter
from dphist.types.checks import LARGEST_EPSILON, SMALLEST_DELTA, positive_count, positive_number


@dataclass(frozen=True)
class Budget:
    """The promise: (epsilon, delta)-differential privacy for adding or removing one user."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon = positive_number("epsilon", self.epsilon)
        delta = positive_number("delta", self.delta)
        if epsilon > LARGEST_EPSILON:
            raise InvalidParameter(f"epsilon must be at most {LARGEST_EPSILON:g}, not {self.epsilon!r}")
        if delta >= 1.0:
            raise InvalidParameter(f"delta must be below 1, not {self.delta!r}")
        if delta < SMALLEST_DELTA:
            raise InvalidParameter(f"delta must be at least {SMALLEST_DELTA:g}, not {self.delta!r}")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)


@dataclass(frozen=True)
class Contract:
    """What is known of every dataset: how many counts can be non-zero, how many one user can touch."""

    max_nonzero: int | None = None
    max_items_per_user: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_nonzero", "max_items_per_user"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, positive_count(name, value))
        if self.max_nonzero is None and self.max_items_per_user is None:
            raise InvalidParameter(
                "max_nonzero or max_items_per_user must be given: without a bound one user could change everything"
            )
        if self.items > self.nonzero:
            raise InvalidParameter(
                f"max_items_per_user ({self.items}) must not exceed max_nonzero ({self.max_nonzero})"
            )

    @property
    def items(self) -> int:
        """The most counts one user can touch: the m of the analysis."""
        bound = self.max_nonzero if self.max_items_per_user is None else self.max_items_per_user
        assert bound is not None
        return bound

    @property
    def nonzero(self) -> float:
        """The most non-zero counts, infinite when unknown: the k of the analysis."""
        return math.inf if self.max_nonzero is None else float(self.max_nonzero)
