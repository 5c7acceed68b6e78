"""A made-up population: Zipf's law for the items, a geometric law for the items of a user."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dphist.errors import InvalidParameter
from dphist.simulation.population import FloatArray, Population, caps_to_know
from dphist.types import finite_number
from dphist.types.checks import positive_count

DEFAULT_ITEMS: Final = 10.0
_MOST_ITEMS: Final = 10**8
# Ranks and sizes up to here one by one, beyond in steps of a few percent.
_ONE_BY_ONE: Final = 512
_STEP: Final = 1.02


@dataclass(frozen=True)
class Zipf:
    """Item i of `items` has the weight 1/i^exponent, and a user has a geometric number of items with this mean.

    A user draws items by their weights until as many different ones are there.
    """

    exponent: float
    items: int
    users: int
    items_per_user: float = DEFAULT_ITEMS

    def __post_init__(self) -> None:
        exponent = finite_number("the exponent of Zipf's law", self.exponent)
        if not 0.0 <= exponent <= 10.0:
            raise InvalidParameter(f"the exponent of Zipf's law must be from 0 to 10, not {self.exponent!r}")
        if positive_count("the number of items", self.items) > _MOST_ITEMS:
            raise InvalidParameter(f"there may be at most {_MOST_ITEMS:,} items, not {self.items!r}")
        positive_count("the number of users", self.users)
        mean = finite_number("the mean number of items of a user", self.items_per_user)
        if not 1.0 <= mean <= max(1.0, self.items / 2.0):
            raise InvalidParameter(
                f"users must have at least 1 item each, and half of all at most, not {self.items_per_user!r}"
            )

    @property
    def label(self) -> str:
        """The law in one line."""
        return (
            f"Zipf's law with exponent {self.exponent:g} over {self.items:,} items, users with "
            f"{self.items_per_user:g} of them in the mean (geometric)"
        )

    def population(self, caps: Sequence[int] | None = None) -> Population:
        """Expected counts, rounded so that their sums are right, and what each cap leaves of them.

        The chance that a user with n items has item i is 1 - exp(-w_i t), where t makes all chances sum to n: very
        nearly that of drawing until n are different (Rosen 1972).
        """
        ranks, per_rank = _steps(self.items)
        weights = ranks**-self.exponent
        sizes = self._sizes()
        n = np.array([size for size, _ in sizes], dtype=np.float64)
        users = np.array([number for _, number in sizes], dtype=np.float64)
        has = -np.expm1(-np.outer(weights, _times(weights, per_rank, n))) * users
        expected = has.sum(axis=1)
        # All items at once: the counts fall slowly with the rank.
        each = np.exp(np.interp(np.log(np.arange(1, self.items + 1)), np.log(ranks), np.log(expected)))
        counts, first, number = _whole(each)
        left = {}
        for cap in caps_to_know(sizes[-1][0], caps):
            chance = np.minimum(1.0, cap / n)
            mean, square = has @ chance / expected, has @ chance**2 / expected
            at = np.log(first + 0.5 * (number + 1.0))
            shares = [np.interp(at, np.log(ranks), share) * counts for share in (mean, square)]
            left[cap] = shares[0], np.maximum(shares[0] - shares[1], 0.0)
        return Population(self.label, counts, number, sizes, left)

    def _sizes(self) -> tuple[tuple[int, int], ...]:
        """Whole users by whole sizes."""
        stay = 1.0 - 1.0 / self.items_per_user
        most = 1 if stay == 0.0 else math.ceil(-math.log(4.0 * self.users) / math.log(stay))
        most = max(1, min(most, self.items // 2 if self.items > 1 else 1))
        reps, width = _steps(most)
        upper = np.cumsum(width)
        below = np.rint(self.users * -np.expm1(log_or_low(stay) * upper))
        below[-1] = self.users
        users = np.diff(np.concatenate(([0.0], below)))
        return tuple((round(size), int(u)) for size, u in zip(reps, users, strict=True) if u > 0)


def log_or_low(stay: float) -> float:
    """The logarithm, which for zero is as low as it needs to be."""
    return math.log(stay) if stay > 0.0 else -1e3


def _steps(last: int) -> tuple[FloatArray, FloatArray]:
    """Numbers that stand for 1, 2, ..., last, and how many of them each stands for."""
    edges = [float(edge) for edge in range(min(last, _ONE_BY_ONE) + 1)]
    while edges[-1] < last:
        edges.append(min(float(last), math.ceil(edges[-1] * _STEP)))
    lower, upper = np.array(edges[:-1]), np.array(edges[1:])
    return 0.5 * (lower + 1.0 + upper), upper - lower


def _times(weights: FloatArray, number: FloatArray, sizes: FloatArray) -> FloatArray:
    """For each size n the t at which the chances 1 - exp(-w t) sum to n."""
    low, high = np.zeros_like(sizes), np.ones_like(sizes)
    total = float(number.sum())

    def reached(t: FloatArray) -> Any:
        return number @ -np.expm1(-np.outer(weights, t))

    sought = np.minimum(sizes, total * (1.0 - 1e-9))
    while np.any(short := reached(high) < sought):
        high = np.where(short, 4.0 * high, high)
    for _ in range(60):
        middle = 0.5 * (low + high)
        short = reached(middle) < sought
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high


def _whole(each: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Expected counts as whole ones with the same sums: different counts, their first ranks, and how often."""
    rounded = np.diff(np.floor(np.concatenate(([0.0], np.cumsum(each))) + 0.5))
    seen = -np.sort(-rounded[rounded > 0.0])
    counts, first, number = np.unique(-seen, return_index=True, return_counts=True)
    return -counts, first.astype(np.float64), number.astype(np.float64)


def zipf_from(given: Zipf | Sequence[float] | str) -> Zipf:
    """`S,N,USERS` or `S,N,USERS,ITEMS`, as text or as numbers."""
    if isinstance(given, Zipf):
        return given
    parts = given.split(",") if isinstance(given, str) else list(given)
    try:
        numbers = [float(part) for part in parts]
        whole = [int(number) for number in numbers[1:3]]
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(f"zipf must be of the form S,N,USERS or S,N,USERS,ITEMS, not {given!r}") from None
    if len(numbers) not in (3, 4) or whole != numbers[1:3]:
        raise InvalidParameter(f"zipf must be of the form S,N,USERS or S,N,USERS,ITEMS, not {given!r}")
    return Zipf(numbers[0], *whole, *numbers[3:])
