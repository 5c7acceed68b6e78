"""Public or synthetic data for predictions: users per item, items per user, and what a limit keeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

import numpy as np

from dphist.counting.duckdb import DuckDBEngine, Shape
from dphist.counting.streams import read_once
from dphist.counting.task import Events
from dphist.errors import InputError, InvalidParameter, finite_number, one_of, positive_count
from dphist.model import Budget
from dphist.proof.numerics import FloatArray
from dphist.releasing.request import Request

# Every view of a simulation starts with this.
NOTICE: Final = "NOT PRIVATE: a simulation, for public or synthetic data only; nothing in it is protected."

Limited = Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, eq=False, repr=False)
class Population:
    """Groups of items with the same count, largest first. It holds true numbers: use public data only.

    `number` is the number of items in each group. `sizes` are pairs (n, number of users with n items). `left`
    takes mean and variance of what a user of each size adds to a count, and returns mean and variance of each
    group's count.
    """

    label: str
    counts: FloatArray
    number: FloatArray
    sizes: tuple[tuple[int, int], ...]
    left: Limited

    def __repr__(self) -> str:
        return f"<Population of {self.label}. {NOTICE}>"

    @property
    def items(self) -> int:
        return int(self.number.sum())

    @property
    def users(self) -> int:
        return sum(users for _, users in self.sizes)

    @property
    def pairs(self) -> int:
        """The number of (user, item) pairs."""
        return round(float(self.counts @ self.number))

    @property
    def largest(self) -> int:
        """The largest number of items of any user."""
        return self.sizes[-1][0]

    def under(self, limit: int | None) -> tuple[FloatArray, FloatArray]:
        """Mean and variance of the counts under a limit on the items per user.

        A user with more items keeps a random choice of them.
        """
        if limit is None or limit >= self.largest:
            return self.counts, np.zeros_like(self.counts)
        items = np.array([items for items, _ in self.sizes], dtype=np.float64)
        chance = np.minimum(1.0, limit / items)
        return self.left(chance, chance * (1.0 - chance))

    def count_at(self, rank: int, limit: int | None = None) -> float:
        """The expected count of this rank under a limit, from 1 for the largest; 0 if there are fewer items."""
        counts, _ = self.under(limit)
        order = np.argsort(-counts, kind="stable")
        place = int(np.searchsorted(np.cumsum(self.number[order]), rank))
        return float(counts[order[place]]) if place < counts.size else 0.0

    def first(self, items: int) -> Population:
        """Only this many items, with the largest counts."""
        before = np.cumsum(self.number) - self.number
        return replace(self, number=np.clip(items - before, 0.0, self.number))


def reading_request(
    source: object, budget: Budget, command: str, allowed: Collection[str], options: Mapping[str, Any]
) -> Request:
    """A release request with the `allowed` options of a command, so that it reads columns as a release does."""
    for name in options:
        if name not in allowed:
            raise InvalidParameter(f"{command} has no {name!r}")
    for name in ("user", "item"):
        if options.get(name) is None:
            raise InvalidParameter(f"give the column of the {name} with <--{name}>")
    given = {name: value for name, value in options.items() if value is not None}
    return Request(input=source, epsilon=budget.epsilon, delta=budget.delta, engine="duckdb", **given)


def population_of(events: Events, label: str) -> Population:
    with read_once(events) as given:
        shape = DuckDBEngine().shape(given)
    if not shape[0]:
        raise InputError("the data has no event with a user and an item")
    return population_of_shape(shape, label)


def population_of_shape(shape: Shape, label: str) -> Population:
    sizes, table = shape
    users, alike, items, pairs = (
        np.asarray(table.column(name).to_numpy(), dtype=np.float64)
        for name in ("users", "alike", "items", "pairs")
    )
    groups, group = np.unique(np.stack((-users, alike)), axis=1, return_inverse=True)
    counts, size = -groups[0], np.searchsorted([n for n, _ in sizes], items)
    number: FloatArray = np.rint(np.bincount(group, pairs) / counts)

    def left(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
        summed, squares = (np.bincount(group, pairs * of_user[size]) / number for of_user in (mean, variance))
        return summed, squares

    return Population(label, counts, number, tuple(sizes), left)


Spread = Literal["geometric", "same"]
DEFAULT_ITEMS: Final = 10.0
# No user has more than half of all items. The label mentions it if less than this share of the pairs is left.
_HARDLY_CUT: Final = 0.99
MOST_ITEMS: Final = 10**8
# Ranks and sizes are computed one by one up to here, and in steps of 2 % above.
_ONE_BY_ONE: Final = 512
_STEP: Final = 1.02
# Counts are rounded one by one up to this rank; above, each step of 0.1 % has two counts.
_ROUNDED: Final = 1 << 17
_FINE_STEP: Final = 1.001
_GRID: Final = 512


@dataclass(frozen=True)
class Zipf:
    """Item i of `items` has weight 1/i^exponent; users have a geometric number of items with a given mean.

    A user draws items by weight until they have that many different ones, never more than half of all. With the
    spread `same` all users have the same number of items, or two neighbouring numbers if the mean is not whole.
    """

    exponent: float
    items: int
    users: int
    items_per_user: float = DEFAULT_ITEMS
    spread: Spread = "geometric"

    def __post_init__(self) -> None:
        exponent = finite_number("the exponent of Zipf's law", self.exponent)
        if not 0.0 <= exponent <= 10.0:
            raise InvalidParameter(f"the exponent of Zipf's law must be from 0 to 10, not {self.exponent!r}")
        if positive_count("the number of items", self.items) > MOST_ITEMS:
            raise InvalidParameter(f"there may be at most {MOST_ITEMS:,} items, not {self.items!r}")
        positive_count("the number of users", self.users)
        mean = finite_number("the mean number of items per user", self.items_per_user)
        if not 1.0 <= mean <= max(1.0, self.items / 2.0):
            raise InvalidParameter(
                f"users must have at least 1 item and at most half of all items, not {self.items_per_user!r}"
            )
        one_of("the spread", self.spread, get_args(Spread))

    @property
    def label(self) -> str:
        how = "on average (geometric)" if self.spread == "geometric" else "each"
        sizes = self.sizes()
        if sum(size * users for size, users in sizes) < _HARDLY_CUT * self.items_per_user * self.users:
            how = f"on average (geometric, cut at {sizes[-1][0]:,})"
        return (
            f"Zipf's law with exponent {self.exponent:g} over {self.items:,} items, users with "
            f"{self.items_per_user:g} of them {how}"
        )

    def population(self) -> Population:
        """Expected counts, rounded so that their sums stay the same.

        A user with n items has item i with probability 1 - exp(-w_i t), where t makes the probabilities sum to n:
        almost that of drawing until n are different (Rosen 1972). Memory does not grow with the number of items.
        """
        ranks, per_rank = _steps(self.items, _ONE_BY_ONE, _STEP)
        weights = ranks**-self.exponent
        sizes = self.sizes()
        n = np.array([size for size, _ in sizes], dtype=np.float64)
        users = np.array([number for _, number in sizes], dtype=np.float64)
        has = -np.expm1(-np.outer(weights, _times(weights, per_rank, n))) * users
        expected = has.sum(axis=1)
        # Counts change slowly with the rank, so they can be interpolated.
        fine, per_fine = _steps(self.items, _ROUNDED, _FINE_STEP)
        counts, first, number = _whole(np.exp(np.interp(np.log(fine), np.log(ranks), np.log(expected))), per_fine)
        at = np.log(first + 0.5 * (number + 1.0))

        def left(mean: FloatArray, variance: FloatArray) -> tuple[FloatArray, FloatArray]:
            summed, squares = (
                np.interp(at, np.log(ranks), has @ of_user / expected) * counts for of_user in (mean, variance)
            )
            return summed, squares

        return Population(self.label, counts, number, sizes, left)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """Pairs of a number of items and the number of users with so many."""
        if self.spread == "same" or self.items_per_user == 1.0:
            low = math.floor(self.items_per_user)
            more = round(self.users * (self.items_per_user - low))
            return tuple((size, u) for size, u in ((low, self.users - more), (low + 1, more)) if u > 0)
        stay = 1.0 - 1.0 / self.items_per_user
        most = min(math.ceil(-math.log(4.0 * self.users) / math.log(stay)), self.items // 2)
        reps, width = _steps(most, _ONE_BY_ONE, _STEP)
        upper = np.cumsum(width)
        below = np.rint(self.users * -np.expm1(math.log(stay) * upper))
        below[-1] = self.users
        users = np.diff(np.concatenate(([0.0], below)))
        return tuple((round(size), int(u)) for size, u in zip(reps, users, strict=True) if u > 0)


def _steps(last: int, singly: int, step: float) -> tuple[FloatArray, FloatArray]:
    """Numbers that represent 1, 2, ..., last, and how many each represents: only itself up to `singly`."""
    edges = [float(edge) for edge in range(min(last, singly) + 1)]
    while edges[-1] < last:
        edges.append(min(float(last), math.ceil(edges[-1] * step)))
    lower, upper = np.array(edges[:-1]), np.array(edges[1:])
    return 0.5 * (lower + 1.0 + upper), upper - lower


def _times(weights: FloatArray, number: FloatArray, sizes: FloatArray) -> FloatArray:
    """For each size n the t at which the probabilities 1 - exp(-w t) sum to n."""

    def users_reached(t: FloatArray) -> FloatArray:
        return np.asarray(number @ -np.expm1(-np.outer(weights, t)))

    # From at most 1 expected item to all.
    low, high = math.log(1.0 / float(number @ weights)), math.log(25.0 / float(weights.min()))
    grid = np.linspace(low, high, _GRID)
    sought = np.log(np.minimum(sizes, float(number.sum()) * (1.0 - 1e-9)))
    log_t = np.interp(sought, np.log(users_reached(np.exp(grid))), grid)
    for _ in range(4):  # Newton's method, on scales where the curve is nearly straight
        t = np.exp(log_t)
        now = users_reached(t)
        slope = t * ((number * weights) @ np.exp(-np.outer(weights, t))) / now
        log_t = np.clip(log_t - (np.log(now) - sought) / np.maximum(slope, 1e-9), low, high)
    return np.asarray(np.exp(log_t), dtype=np.float64)


def _whole(each: FloatArray, per: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Expected counts rounded, with the same sums: distinct counts, the rank before each, its number of items.

    Each expected count represents `per` ranks, which get the whole numbers below and above it.
    """
    sums = np.diff(np.floor(np.concatenate(([0.0], np.cumsum(each * per))) + 0.5))
    below = np.floor(sums / per)
    above = sums - below * per
    counts, place = np.unique(-np.concatenate((below, below + 1.0)), return_inverse=True)
    number: FloatArray = np.zeros(counts.size)
    np.add.at(number, place, np.concatenate((per - above, above)))
    kept = (counts < 0.0) & (number > 0.0)
    before: FloatArray = np.cumsum(number[kept]) - number[kept]
    return -counts[kept], before, number[kept]


def zipf_from(given: object) -> Zipf:
    """Parse `S,N,USERS` or `S,N,USERS,ITEMS`, as text or as a list of numbers."""
    if isinstance(given, Zipf):
        return given
    parts = given.split(",") if isinstance(given, str) else given
    shown = f"{given!r:.80}" if isinstance(given, (str, list, tuple)) else f"a {type(given).__name__}"
    try:
        if not isinstance(parts, (list, tuple, np.ndarray)) or any(isinstance(part, bool) for part in parts):
            raise TypeError
        exponent, items, users, *more = (float(part) for part in parts)
        if not (items.is_integer() and users.is_integer()) or len(more) > 1:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise InvalidParameter(
            f"zipf must be of the form S,N,USERS or S,N,USERS,ITEMS, with whole numbers N and USERS, not {shown}"
        ) from None
    # By default users have 10 items, or half of all if there are fewer than 20.
    (mean,) = more or [min(DEFAULT_ITEMS, max(1.0, items / 2.0))]
    return Zipf(exponent, int(items), int(users), mean)
