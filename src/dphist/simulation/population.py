"""Public or made-up data, as far as predictions need it: users per item, items per user, what caps leave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dphist.engines.duckdb_engine import DuckDBEngine
from dphist.errors import InputError, InvalidParameter
from dphist.simulation.notice import NOTICE
from dphist.types import DEFAULT_CAPS, Events
from dphist.types.checks import positive_count

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Groups of items with as many users each. It holds true numbers, and must be made of public data alone.

    `left` has for each cap the mean and the variance of what it leaves of a count of each group.
    """

    label: str
    counts: FloatArray
    number: FloatArray
    sizes: tuple[tuple[int, int], ...]
    left: Mapping[int, tuple[FloatArray, FloatArray]]

    def __repr__(self) -> str:
        return f"<Population of {self.label}. {NOTICE}>"

    @property
    def items(self) -> int:
        """Different items."""
        return int(self.number.sum())

    @property
    def users(self) -> int:
        """Users with an item."""
        return sum(users for _, users in self.sizes)

    @property
    def pairs(self) -> int:
        """Different (user, item) pairs."""
        return round(float(self.counts @ self.number))

    @property
    def largest(self) -> int:
        """The most items of one user."""
        return self.sizes[-1][0]

    @property
    def caps(self) -> tuple[int, ...]:
        """The caps that predictions can be made for, beside those that drop nothing."""
        return tuple(sorted(self.left))

    def under(self, cap: int | None) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of what a cap leaves of the counts; without one they stay as they are."""
        if cap is None or cap >= self.largest:
            return self.counts, np.zeros_like(self.counts)
        if cap not in self.left:
            raise InvalidParameter(f"the population was not made for the cap {cap!r}")
        return self.left[cap]

    def count_at(self, rank: int) -> float:
        """The count of this rank, the largest having rank 1; 0 where there are fewer."""
        order = np.argsort(-self.counts, kind="stable")
        place = int(np.searchsorted(np.cumsum(self.number[order]), rank))
        return float(self.counts[order[place]]) if place < order.size else 0.0

    def first(self, items: int) -> Population:
        """Of the largest counts so many, the others left out."""
        order = np.argsort(-self.counts, kind="stable")
        before = np.cumsum(self.number[order]) - self.number[order]
        number = np.empty_like(self.number)
        number[order] = np.clip(items - before, 0.0, self.number[order])
        return replace(self, number=number)

    def buckets(self, caps: Sequence[int]) -> list[int]:
        """Users by their number of items, as a private choice of a cap counts them."""
        place = np.searchsorted(np.array(caps), [items for items, _ in self.sizes])
        users = np.array([users for _, users in self.sizes], dtype=np.float64)
        return [int(n) for n in np.bincount(place, users, len(caps) + 1)]


def caps_to_try(largest: int, given: Sequence[int] | None = None) -> tuple[int, ...]:
    """The caps that were given; else the usual ones, up to the first that drops nothing."""
    if given is not None:
        return tuple(sorted({positive_count("each of the caps", cap) for cap in given}))
    below = tuple(cap for cap in DEFAULT_CAPS if cap < largest)
    return (*below, *DEFAULT_CAPS[len(below) : len(below) + 1])


def caps_to_know(largest: int, given: Sequence[int] | None) -> tuple[int, ...]:
    """Those, and all that a private choice may take."""
    every = {*caps_to_try(largest, given), *DEFAULT_CAPS}
    return tuple(sorted(cap for cap in every if cap < largest))


def population_of(events: Events, label: str, caps: Sequence[int] | None = None) -> Population:
    """The population of public events, counted by DuckDB."""
    known: list[int] = []

    def told(largest: int) -> Sequence[int]:
        known.extend(caps_to_know(largest, caps))
        return known

    sizes, table = DuckDBEngine().shape(events, told)
    if not sizes:
        raise InputError("there is no event with a user and an item to simulate with")

    def column(name: str) -> FloatArray:
        return np.asarray(table.column(name).to_numpy(), dtype=np.float64)

    left = {}
    for k, cap in enumerate(known):
        mean, squares = column(f"m{k}"), column(f"q{k}")
        left[cap] = mean, np.maximum(mean - squares, 0.0)
    return Population(label, column("users"), column("number"), tuple(sizes), left)
