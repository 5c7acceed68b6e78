"""Synthetic logs for tests of simulations, and statistics of seeded releases of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dphist.releasing.noise import Subtracted, begin
from dphist.sampling.rng import SeededRng
from dphist.simulation.simulate import Prediction


@dataclass(frozen=True)
class Log:
    """Different (user, item) pairs, by numbers from zero."""

    users: Any
    items: Any

    @property
    def table(self) -> pa.Table:
        """As events."""
        return pa.table({"user": self.users, "item": self.items})

    @property
    def truth(self) -> Any:
        """Users per item."""
        return np.bincount(self.items)

    def capped(self, cap: int, rng: np.random.Generator) -> Any:
        """Users per item if each user keeps at most `cap` items, at random."""
        # Sorted by user and, within each, at random.
        order = np.argsort(self.users + rng.random(self.users.size))
        sizes = np.bincount(self.users)
        rank = np.arange(order.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept = order[rank < cap]
        return np.bincount(self.items[kept], minlength=self.truth.size)


def job(pairs: int = 60_000, users: int = 5_000, keys: int = 20_000, seed: int = 1) -> Log:
    """Like the common job of benchmarks/peers.py: log-normal activity, weights 1/(rank + 1)^1.1."""
    rng = np.random.default_rng(seed)
    item = np.cumsum(np.arange(2.0, keys + 2.0) ** -1.1)
    user = np.cumsum(rng.lognormal(0.0, 0.77, users))
    who = np.minimum(np.searchsorted(user / user[-1], rng.random(pairs)), users - 1)
    what = np.minimum(np.searchsorted(item / item[-1], rng.random(pairs)), keys - 1)
    both = np.unique(who.astype(np.int64) * keys + what)
    _, compact = np.unique(both % keys, return_inverse=True)
    return Log(both // keys, compact)


@dataclass(frozen=True)
class Seen:
    """Means over releases, and how far they are from a prediction, in standard errors."""

    items: float
    mean_error: float
    relative_error: float
    bias: float
    missing: float
    surprise: float


def released(log: Log, one: Prediction, runs: int, seed: int = 7) -> Seen:
    """Many releases of one plan with the real noise stage, from seeds; each with a fresh choice of items."""
    generator, rng, truth = np.random.default_rng(seed), SeededRng(seed), log.truth
    sums, numbers = np.zeros(4), []
    for _ in range(runs):
        counts, floor = truth, 0
        if one.kind == "top":
            largest = np.sort(truth)[::-1]
            floor = int(largest[one.value]) if one.value < truth.size else 0
            counts = np.maximum(truth - floor, 0)
        else:
            counts = log.capped(int(one.value), generator)
        # The session subtracts the floor itself.
        found = begin(one.plan, rng, Subtracted(floor)).release(truth if one.kind == "top" else counts)
        error, true = found.values - truth[found.index], truth[found.index]
        kept = (truth if one.kind == "top" else counts)[found.index].sum()
        sums += [np.abs(error).sum(), (np.abs(error) / true).sum(), error.sum(), kept]
        numbers.append(found.index.size)
    total = max(1, sum(numbers))
    mean = float(np.mean(numbers))
    surprise = (mean - one.items) / max(one.items_deviation / math.sqrt(runs), 1e-9)
    return Seen(
        mean, sums[0] / total, sums[1] / total, sums[2] / total, 1.0 - sums[3] / runs / truth.sum(), surprise
    )
