"""What a privately chosen limit costs, compared with the best fixed limit.

Run `python benchmarks/auto_cap.py [--folder DIR] [--data DIR] [--epsilon 1] [--goal keys] [--runs 20]`.

Data: the common job of benchmarks/peers.py, synthetic data in which heavy users choose other items, and the
Parquet files with the columns user and item in `--data`. Reported are the number of released items, and the sum
over all items of |estimate - truth| (0 for items that are not released) divided by the sum of the truth. A fixed
limit, with and without spread, gets the whole budget and the correction from the true sizes. The chosen limit pays
for its choice and uses its own correction. Noise is seeded. The ratio is to the best fixed limit, which is known
only in hindsight.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Final

import duckdb
import numpy as np
from numpy.typing import NDArray

import dphist
from dphist.planning.auto_cap import ChoicePlan, Goal, Sizes, choose_plan, excess_of, levels_of
from dphist.planning.utility import Correction
from dphist.privacy.types import DEFAULT_CAPS, Budget, Plan
from dphist.releasing.document import choice_for
from dphist.releasing.noise import begin, noisy_sizes
from dphist.sampling.tap import SeededTap

Ints = NDArray[np.int64]
BANDS: Final = (0, 10, 100, 1_000, 10_000)


@dataclass
class Events:
    """Pairs in random order within each user, and the counts that each plan makes of them."""

    users: Ints
    items: Ints
    by_plan: dict[tuple[int, int | None, int], Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes: Ints = np.bincount(self.users)
        self.truth: Ints = np.bincount(self.items)
        order = np.lexsort((np.random.default_rng(1).random(self.users.size), self.users))
        self.users, self.items = self.users[order], self.items[order]
        first = np.cumsum(self.sizes) - self.sizes
        self.rank: Ints = np.arange(self.users.size) - first[self.users]

    def counts(self, plan: Plan) -> Ints:
        """Count users, or the steps of their weights, as an engine does."""
        lattice = 1 if not plan.levels else plan.levels[0].weight
        key = plan.contract.items, plan.contract.spread, lattice
        if key not in self.by_plan:
            limits = np.array([level.items for level in plan.levels] or [plan.contract.items])
            steps = np.array([level.weight for level in plan.levels] or [1])
            own = steps[np.searchsorted(limits, np.minimum(self.sizes, limits[-1]))]
            kept = self.rank < limits[-1]
            weights = own[self.users[kept]].astype(np.float64)
            self.by_plan[key] = np.bincount(self.items[kept], weights, self.truth.size).astype(np.int64)
        return self.by_plan[key]

    def buckets(self) -> list[int]:
        place = np.searchsorted(np.array(DEFAULT_CAPS), self.sizes)
        return [int(n) for n in np.bincount(place, minlength=len(DEFAULT_CAPS) + 1)]

    def correction(self, plan: Plan) -> Correction:
        """The correction from the true sizes."""
        sizes, users = np.unique(self.sizes, return_counts=True)
        known = Sizes(sizes.astype(float), users.astype(float), np.zeros((0, sizes.size)))
        return known.corrections(levels_of(plan))


@dataclass(frozen=True)
class Outcome:
    """Released items, distance, and mean relative error by popularity."""

    keys: float
    distance: float
    bias: tuple[float, ...]


def read(path: Path) -> Events:
    columns = ", ".join(f'dense_rank() OVER (ORDER BY "{name}") - 1 AS "{name}"' for name in ("user", "item"))
    found = duckdb.connect().execute(f"SELECT DISTINCT {columns} FROM '{path}'").fetchnumpy()
    return Events(found["user"].astype(np.int64), found["item"].astype(np.int64))


def other_tastes() -> Events:
    """100,000 users; the more items a user has, the more of them are drawn from another distribution."""
    rng = np.random.default_rng(7)
    sizes = np.maximum(1, rng.lognormal(1.8, 1.1, 100_000)).astype(np.int64)
    users = np.repeat(np.arange(sizes.size), sizes)
    common = np.minimum(rng.zipf(1.25, users.size), 200_000)
    other = 50 + np.minimum(rng.zipf(1.15, users.size), 400_000)
    heavy = rng.random(users.size) < sizes[users] / (sizes[users] + 20.0)
    pairs = np.unique(np.stack((users, np.where(heavy, other, common)), axis=1), axis=0)
    return Events(pairs[:, 0], np.unique(pairs[:, 1], return_inverse=True)[1])


def outcome(events: Events, plan: Plan, correction: Correction, tap: SeededTap) -> Outcome:
    released = begin(plan, tap).release(events.counts(plan))
    estimate = np.zeros(events.truth.size)
    estimate[released.index] = released.values * correction.factors_at(released.values)
    distance = float(np.abs(estimate - events.truth).sum() / events.truth.sum())
    order = released.index[np.argsort(-events.truth[released.index])]
    relative = estimate[order] / events.truth[order] - 1.0
    bands = [relative[low:high] for low, high in pairwise(BANDS)]
    return Outcome(released.index.size, distance, tuple(float(b.mean()) if b.size else math.nan for b in bands))


def mean(found: list[Outcome]) -> Outcome:
    bias = tuple(float(np.mean(column)) for column in zip(*(one.bias for one in found), strict=True))
    return Outcome(float(np.mean([one.keys for one in found])), float(np.mean([o.distance for o in found])), bias)


def fixed(events: Events, budget: Budget, runs: int) -> dict[tuple[int, str], Outcome]:
    print(f"  {'limit':>6} {'excess':>7} {'noise':>7} {'threshold':>9} {'keys':>8} {'distance':>8}")
    found, tap = {}, SeededTap(1)
    for cap in DEFAULT_CAPS:
        for excess in ("drop", "spread"):
            plan = dphist.plan(epsilon=budget.epsilon, delta=budget.delta, max_items_per_user=cap, excess=excess)
            correction = events.correction(plan)
            one = mean([outcome(events, plan, correction, tap) for _ in range(runs)])
            found[cap, excess] = one
            print(
                f"  {cap:>6} {excess:>7} {plan.total_noise:>7.1f} {plan.threshold:>9.1f} {one.keys:>8,.0f} "
                f"{one.distance:>8.4f}"
            )
        if cap >= min(256, events.sizes.max()):
            break
    return found


def chosen(events: Events, plan: ChoicePlan, runs: int) -> tuple[Outcome, Counter[str], float]:
    """Mean of many releases with a chosen limit, the limits, and the worst distance."""
    limits, found, tap = Counter[str](), [], SeededTap(2)
    for _ in range(runs):
        release, correction = choose_plan(plan, noisy_sizes(plan.choice, events.buckets(), tap))
        limits[f"{excess_of(release)} {release.contract.items}"] += 1
        found.append(outcome(events, release, correction, tap))
    return mean(found), limits, max(one.distance for one in found)


def compare(name: str, events: Events, plans: dict[Goal, ChoicePlan], runs: int) -> None:
    budget = next(iter(plans.values())).budget
    users, pairs = events.sizes.size, events.items.size
    print(f"\n{name}: {users:,} users, {pairs:,} pairs, epsilon {budget.epsilon:g}, delta {budget.delta:g}")
    table = fixed(events, budget, max(3, runs // 5))
    for goal, plan in plans.items():
        own, limits, worst = chosen(events, plan, runs)
        said = ", ".join(f"{limit} ({n})" for limit, n in limits.most_common())
        bias = ", ".join(f"{100 * one:+.0f} %" for one in own.bias)
        print(f"  goal {goal}: {said}: keys {own.keys:,.0f}, distance {own.distance:.4f} (worst {worst:.4f})")
        print(f"    bias of the estimates of released items 1-10, 11-100, 101-1,000, 1,001-10,000: {bias}")
        if goal == "keys":
            best = max(table, key=lambda key: table[key].keys)
            print(f"    keys, ratio to the best fixed limit {best}: {own.keys / max(1.0, table[best].keys):.3f}")
        else:
            best = min(table, key=lambda key: table[key].distance)
            ratio = own.distance / table[best].distance
            print(f"    distance, ratio to the best fixed limit {best}: {ratio:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of choosing the limit privately.")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--data", type=Path, help="a folder of Parquet files with the columns user and item")
    parser.add_argument("--epsilon", type=float, action="append", help="may be repeated; default 1")
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--goal", choices=["accuracy", "keys"], help="one goal; default both")
    parser.add_argument("--runs", type=int, default=20)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    job = given.folder / "pairs.parquet"
    if not job.exists():
        peers = Path(__file__).with_name("peers.py")
        subprocess.run([sys.executable, str(peers), "--make", str(job)], check=True)
    goals: list[Goal] = [given.goal] if given.goal else ["accuracy", "keys"]
    plans = []
    for epsilon in given.epsilon or [1.0]:
        start = process_time()
        plans.append({goal: choice_for(Budget(epsilon, given.delta), goal=goal) for goal in goals})
        print(f"epsilon {epsilon:g}: {(process_time() - start) / len(goals):.2f} CPU s to plan one choice")
    files = sorted(given.data.glob("*.parquet")) if given.data else []
    sets = [("common job", job), ("other tastes", None), *((file.stem, file) for file in files)]
    for name, path in sets:
        events = other_tastes() if path is None else read(path)
        for of_epsilon in plans:
            compare(name, events, of_epsilon, given.runs)


if __name__ == "__main__":
    main()
