"""Counts for releases in rounds, in memory: of pairs of user and item, or any numbers that an adversary likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from dphist.certificate.request import Column
from dphist.counting.task import Choice, Events, RoundsTask
from dphist.model import RoundsNoise


def task_of(noise: RoundsNoise, table: Any = None, **options: Any) -> RoundsTask:
    """The task of a release with this noise."""
    events = Events(table, "user", (Column.parse("item"),))
    return RoundsTask(
        events, Choice(bytes(32), portable=True), noise.most_items, noise.lattice, noise.growth,
        **{"alone": noise.alone is not None, "ordered": True, **options},
    )  # fmt: skip


class MemoryRounds:
    """Rounds of distinct pairs, plain and with the `fault` of that name; see `RoundsCount`."""

    def __init__(
        self, user: Any, item: Any, items: int, task: RoundsTask, *, known: Sequence[int] = (), fault: str = ""
    ) -> None:
        self.items, self.task, self.fault = items, task, fault
        self.user, self.item = np.asarray(user, np.int64), np.asarray(item, np.int64)
        self.users = int(self.user.max(initial=-1)) + 1
        self.known = np.isin(np.arange(items), list(known))
        sizes = self._sizes_of(self.user)
        own = (sizes == 1)[self.user] & task.alone
        self.in_alone = np.bincount(self.item[own], minlength=items)
        if fault != "a user in both groups":
            self.user, self.item = self.user[~own], self.item[~own]
        self.all = self.user, self.item
        self.kept = self._limited(0)
        self.present = np.bincount(self.kept[1], minlength=items) + self.in_alone > 0
        self.on_lists, self.first, self.number = np.ones(items, bool), np.zeros(0, np.int64), 0
        self.last = np.zeros(items, np.int64)

    def _sizes_of(self, user: Any) -> Any:
        return np.bincount(user, minlength=self.users)

    def _limited(self, seed: int) -> tuple[Any, Any]:
        """The items that users keep, by a hash of the item that a seed makes another."""
        user, item = self.all
        order = np.lexsort((item * 2654435761 * (2 * seed + 1) % 2**32, user))
        starts = np.cumsum(self._sizes_of(user)) - self._sizes_of(user)
        kept = order[np.arange(order.size) - starts[user[order]] < self.task.most_items]
        return user[kept], item[kept]

    def alone(self) -> Any:
        return self.in_alone

    def leave(self, gone: Any) -> None:
        if self.fault == "a list that depends on a true count":
            gone = np.append(gone, np.flatnonzero((self.last > 0) & (self.last < 3.4 * self.task.lattice)))
        self.on_lists[gone] = False

    def round(self) -> Any:
        pairs = self._limited(self.number) if self.fault == "N drawn afresh in every round" else self.kept
        live = self.on_lists[pairs[1]]
        user, item = pairs[0][live], pairs[1][live]
        sizes = self._sizes_of(user)
        weights = self._by_size(self.task.first_weight)[sizes]
        if self.number == 0:
            self.first = sizes
        elif self.fault != "the growth cap ignored":
            weights = np.minimum(weights, self._by_size(self.task.most_weight)[self.first])
        if self.fault == "found items not removed":
            user, item = pairs
        self.number += 1
        self.last = self._summed(user, item, weights)
        return self.last

    def _by_size(self, weight: Callable[[int], int]) -> Any:
        return np.array([0, *(weight(n) for n in range(1, int(self._sizes_of(self.all[0]).max(initial=0)) + 1))])

    def _summed(self, user: Any, item: Any, weights: Any) -> Any:
        return np.bincount(item, weights[user], self.items).astype(np.int64)

    def _found(self, found: Any) -> tuple[Any, Any]:
        chosen = np.isin(self.kept[1], found)
        return self.kept[0][chosen], self.kept[1][chosen]

    def sizes(self, found: Any, bounds: Sequence[int]) -> list[int]:
        sizes, own = self._sizes_of(self._found(found)[0]), self._sizes_of(self.all[0])
        sizes = np.where((own > self.task.most_items) & (sizes > 0), own, sizes)
        places = np.searchsorted(np.asarray(bounds), sizes[sizes > 0])
        return list(np.bincount(places, minlength=len(bounds)).tolist())

    def measure(self, found: Any, limit: int) -> tuple[Any, ...]:
        user, item = self._found(found)
        weights = self._by_size(lambda n: self.task.measure_weight(n, limit))[self._sizes_of(user)]
        return (self._summed(user, item, weights)[found],)

    def rows(self, found: Any) -> list[Any]:
        return [pa.array(found)]


@dataclass
class GivenCounts:
    """Any numbers in steps, by item: of rounds, and of a measurement by its limit. `left` is what left when."""

    rounds: Sequence[Any]
    measured: Callable[[int], tuple[Any, ...]]
    in_buckets: Callable[[int], list[int]]
    in_alone: Any = None
    known: Any = None
    left: list[tuple[int, ...]] = field(default_factory=list)
    place: int = 0

    def __post_init__(self) -> None:
        self.items = len(self.rounds[0]) if self.rounds else len(self.measured(1)[0])
        self.known = np.zeros(self.items, bool) if self.known is None else self.known
        self.in_alone = np.zeros(self.items, np.int64) if self.in_alone is None else self.in_alone
        self.present = np.ones(self.items, bool)
        self.on_lists = np.ones(self.items, bool)

    def alone(self) -> Any:
        return self.in_alone

    def leave(self, gone: Any) -> None:
        self.left.append(tuple(gone.tolist()))
        self.on_lists[gone] = False

    def round(self) -> Any:
        self.place += 1
        return np.where(self.on_lists, self.rounds[self.place - 1], 0)

    def sizes(self, _found: Any, bounds: Sequence[int]) -> list[int]:
        return self.in_buckets(len(bounds))

    def measure(self, found: Any, limit: int) -> tuple[Any, ...]:
        return tuple(column[found] for column in self.measured(limit))

    def rows(self, found: Any) -> list[Any]:
        return [pa.array(found)]
