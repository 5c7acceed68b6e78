"""What a privately chosen cap costs, against the best cap that one could have given.

Run `python benchmarks/auto_cap.py [--folder DIR] [--data DIR] [--epsilon 1] [--runs 40]`.

On the common job of benchmarks/peers.py, and on the Parquet files with the columns user and item in `--data`: the
mean distance of released counts from the true counts without a cap, for each fixed cap with the whole budget, and
for the cap that is chosen from noisy sizes, with all that the choice spends. The noise is the real one, from
seeds. The ratio is that of the mean errors, to the best fixed cap, which nobody knows beforehand.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time

import duckdb
import numpy as np
from numpy.typing import NDArray

import dphist
from dphist.planning.auto_cap import ChoicePlan, chosen_cap, plan_choice
from dphist.privacy.types import DEFAULT_CAPS, Budget, Plan
from dphist.sampling.mechanisms import begin, noisy_sizes
from dphist.sampling.tap import SeededTap

Ints = NDArray[np.int64]


@dataclass
class Events:
    """Pairs in a random order within each user, and the counts that each cap leaves."""

    users: Ints
    items: Ints
    by_cap: dict[int, Ints] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes: Ints = np.bincount(self.users)
        self.truth: Ints = np.bincount(self.items)
        order = np.lexsort((np.random.default_rng(1).random(self.users.size), self.users))
        self.users, self.items = self.users[order], self.items[order]
        first = np.cumsum(self.sizes) - self.sizes
        self.rank: Ints = np.arange(self.users.size) - first[self.users]

    def counts(self, cap: int) -> Ints:
        """Users per item when each user has kept at most so many, at random."""
        if cap not in self.by_cap:
            kept = self.items[self.rank < cap]
            self.by_cap[cap] = np.bincount(kept, minlength=self.truth.size)
        return self.by_cap[cap]

    def buckets(self) -> list[int]:
        """Users by their number of items."""
        place = np.searchsorted(np.array(DEFAULT_CAPS), self.sizes)
        return [int(n) for n in np.bincount(place, minlength=len(DEFAULT_CAPS) + 1)]


def read(path: Path) -> Events:
    columns = ", ".join(f'dense_rank() OVER (ORDER BY "{name}") - 1 AS "{name}"' for name in ("user", "item"))
    found = duckdb.connect().execute(f"SELECT {columns} FROM '{path}'").fetchnumpy()
    return Events(found["user"].astype(np.int64), found["item"].astype(np.int64))


def error(events: Events, plan: Plan, cap: int, tap: SeededTap) -> tuple[float, int]:
    """Mean distance of released counts from the truth, and how many there are."""
    released = begin(plan, tap)[0].release(events.counts(cap))
    distance = np.abs(released.values - events.truth[released.index])
    return (float(distance.mean()) if distance.size else math.nan), distance.size


def plan_of(epsilon: float, delta: float, cap: int) -> Plan:
    return dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=cap)


def fixed(events: Events, budget: Budget, runs: int) -> dict[int, float]:
    """The mean error of every fixed cap that could be worth it; one that often releases nothing has none."""
    print(f"  {'cap':>6} {'noise':>7} {'threshold':>9} {'keys':>7} {'error':>8}")
    errors, tap = {}, SeededTap(1)
    for cap in DEFAULT_CAPS:
        plan = plan_of(budget.epsilon, budget.delta, cap)
        found = [error(events, plan, cap, tap) for _ in range(runs)]
        keys = float(np.mean([n for _, n in found]))
        if all(n > 0 for _, n in found):
            errors[cap] = float(np.mean([e for e, _ in found]))
            print(f"  {cap:>6} {plan.total_noise:>7.1f} {plan.threshold:>9.1f} {keys:>7,.0f} {errors[cap]:>8.1f}")
        if cap >= events.sizes.max():
            break
    return errors


def chosen(events: Events, plan: ChoicePlan, runs: int) -> tuple[list[float], Counter[int], float]:
    """The errors of many releases that choose their caps, and the caps."""
    errors, caps, keys, tap = [], Counter[int](), [], SeededTap(2)
    for _ in range(runs):
        cap = chosen_cap(plan, noisy_sizes(plan.choice, events.buckets(), tap))
        caps[cap] += 1
        distance, n = error(events, plan.plan(cap), cap, tap)
        errors += [distance] if n else []
        keys.append(n)
    return errors, caps, float(np.mean(keys))


def compared(name: str, events: Events, plan: ChoicePlan, runs: int) -> None:
    users, pairs = events.sizes.size, events.items.size
    print(
        f"\n{name}: {users:,} users, {pairs:,} pairs, epsilon {plan.budget.epsilon:g}, delta {plan.budget.delta:g}"
    )
    errors = fixed(events, plan.budget, max(5, runs // 5))
    best = min(errors, key=errors.__getitem__) if errors else 0
    own, caps, keys = chosen(events, plan, runs)
    said = ", ".join(f"{cap} ({n})" for cap, n in sorted(caps.items()))
    if not own or not errors:
        print(f"  chosen {said}: too few users for any release")
        return
    print(f"  chosen {said}: keys {keys:,.0f}, error {np.mean(own):.1f}, worst {max(own):.1f}")
    print(f"  ratio to the best fixed cap ({best}): {np.mean(own) / errors[best]:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of choosing the cap privately.")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--data", type=Path, help="a folder of Parquet files with the columns user and item")
    parser.add_argument("--epsilon", type=float, action="append", help="may be repeated; 1 unless told")
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--runs", type=int, default=40)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    job = given.folder / "pairs.parquet"
    if not job.exists():
        peers = Path(__file__).with_name("peers.py")
        subprocess.run([sys.executable, str(peers), "--make", str(job)], check=True)
    plans = []
    for epsilon in given.epsilon or [1.0]:
        start = process_time()
        plans.append(plan_choice(Budget(epsilon, given.delta), plan_of))
        release = plans[-1].budget_of_release
        print(
            f"epsilon {epsilon:g}: sizes with deviation {math.sqrt(plans[-1].choice.variance):.1f}, then epsilon "
            f"{release.epsilon:g} and delta {release.delta:g}; {process_time() - start:.1f} CPU s to plan"
        )
    files = sorted(given.data.glob("*.parquet")) if given.data else []
    for name, path in [("common job", job), *((file.stem, file) for file in files)]:
        events = read(path)
        for plan in plans:
            compared(name, events, plan, given.runs)


if __name__ == "__main__":
    main()
