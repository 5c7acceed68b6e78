"""Misra-Gries sketches: how fast they are built, and how they compare with the exact top-k release.

Run `python benchmarks/sketch.py` for pairs per second on one core, compared with two baselines: Arrow's `group_by`
of the items, which does not check whether a user had the item before, and `collections.Counter` of the pairs.

Run `python benchmarks/sketch.py --events 1e8 --size 1000 [--folder DIR]` for the stream: 50 events per user, Zipf
items over five million keys, written once as Parquet files of 100,000 users each. The sketch reads one file after
the other, one update each; the exact release (`dphist.release(..., top=1000)`) reads all of them at once. Each
runs in a separate process. Synthetic data allows comparing with the true counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import dphist
from dphist.sketch import MisraGries

KEYS = 5_000_000
EXPONENT = 1.1
EVENTS_A_USER = 50
USERS_A_FILE = 100_000
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}


class Stream:
    """Events user by user; keys are shuffled, so that small keys are not the frequent ones."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(1)
        weight = np.cumsum(np.arange(1, KEYS + 1, dtype=np.float64) ** -EXPONENT)
        self._weight = weight / weight[-1]
        self._key = self._random.permutation(KEYS)

    def events(self, first: int, users: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """The events of these users, in random order."""
        n = users * EVENTS_A_USER
        rank = np.minimum(np.searchsorted(self._weight, self._random.random(n)), KEYS - 1)
        return self._random.integers(first, first + users, n), self._key[rank]


def once(action: Callable[[], object]) -> float:
    """CPU seconds, with this process bound to one core."""
    start = process_time()
    action()
    return process_time() - start


def speed(size: int) -> None:
    """Pairs per second for batches of two sizes, of integers and words."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    stream = Stream()
    print(f"k = {size}, one core, CPU time, best of 3")
    print(f"{'batch':<32} {'M pairs/s':>10} {'to group_by':>12} {'to Counter':>11}")
    for users in (20_000, 200_000):
        batches = [stream.events(place * users, users) for place in range(3)]
        pairs = users * EVENTS_A_USER
        for kind in ("whole numbers", "items are words", "both are words"):
            columns = [texts(u, i, kind) for u, i in batches]
            sketch = MisraGries(size, columns[0][1].type)
            ours = min(once(lambda c=c, s=sketch: s.update_columns(*c)) for c in columns)  # type: ignore[misc]
            grouped = min(once(lambda c=c: by_item(c[1])) for c in columns)  # type: ignore[misc]
            some = [column.slice(0, 1_000_000).to_pylist() for column in columns[0]]
            python = once(lambda s=some: Counter(zip(*s, strict=True))) * pairs / len(some[0])  # type: ignore[misc]
            name = f"{pairs / 1e6:g} M pairs, {kind}"
            print(f"{name:<32} {pairs / ours / 1e6:>10.1f} {ours / grouped:>12.2f} {ours / python:>11.2f}")


def texts(users: Any, items: Any, kind: str) -> tuple[Any, Any]:
    """Words instead of numbers, if requested."""
    whose, what = pa.array(users), pa.array(items)
    if kind != "whole numbers":
        what = pc.binary_join_element_wise("the word", what.cast(pa.string()), " ")
    if kind == "both are words":
        whose = pc.binary_join_element_wise("user", whose.cast(pa.string()), " ")
    return whose, what


def by_item(items: Any) -> object:
    return pa.table({"item": items}).group_by("item", use_threads=False).aggregate([("item", "count")])


def make(folder: Path, events: int) -> None:
    """Write the stream as files of whole users, and count the true number of users of every key."""
    stream, truth = Stream(), np.zeros(KEYS, dtype=np.int64)
    for place in range(max(1, events // (EVENTS_A_USER * USERS_A_FILE))):
        users, items = stream.events(place * USERS_A_FILE, USERS_A_FILE)
        pq.write_table(pa.table({"user": users, "item": items}), folder / f"{place:05}.parquet")
        pairs = np.unique((users - place * USERS_A_FILE) * KEYS + items)
        truth += np.bincount(pairs % KEYS, minlength=KEYS)
    np.save(folder / "truth.npy", truth)


def sketched(folder: Path, size: int, offset: bool) -> Any:
    """One update per file; the file of a user depends only on the user's number."""
    sketch = MisraGries(size, "int64")
    for path in sorted(folder.glob("*.parquet")):
        table = pq.read_table(path)
        sketch.update_columns(table["user"], table["item"])
    plan = dphist.plan(**BUDGET, top=size) if offset else dphist.plan(**BUDGET, max_nonzero=size)
    return sketch.release(plan)


def exact(folder: Path, size: int) -> Any:
    inputs = [str(path) for path in sorted(folder.glob("*.parquet"))]
    return dphist.release(inputs, user="user", item="item", top=size, memory="4GB", **BUDGET)


def judged(found: Any, truth: Any) -> dict[str, float]:
    """Compare a release with the truth."""
    items, counts = np.array(found.items.to_pylist(), dtype=np.int64), found.counts
    order = np.argsort(-truth)
    # Only counts that exceed the (k+1)-th largest by the threshold can be released.
    within = order[truth[order] > truth[order[found.plan.contract.max_nonzero]] + found.plan.threshold]
    error = counts - truth[items]
    return {
        "noise": found.plan.total_noise, "threshold": found.plan.threshold, "released": len(found),
        "100": float(np.isin(order[:100], items).mean()), "within": float(np.isin(within, items).mean()),
        "1000": float(np.isin(order[:1000], items).mean()), "reachable": int(within.size),
        "mean error": float(error.mean()), "root mean square": float(np.sqrt((error**2).mean())),
    }  # fmt: skip


def compare(folder: Path, events: int, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "truth.npy").exists():
        run("make", folder, events, size)
    truth = np.load(folder / "truth.npy")
    print(f"{events:,} events, {truth.sum():,} (user, item) pairs, k = {size}, epsilon 1, delta 1e-6")
    print(f"the bound of the sketch, pairs/(k + 1): {truth.sum() // (size + 1):,}")
    print(f"true counts of rank 1, 100, 1000, k + 1: {np.sort(truth)[::-1][[0, 99, 999, size]].tolist()}")
    ways = {"exact": "exact top-k", "offset": "sketch, top", "plain": "sketch, max_nonzero"}
    answers = {name: json.loads(run(part, folder, events, size)) for part, name in ways.items()}
    rows = {
        "seconds": ("wall", ".1f"), "seconds of all cores": ("cpu", ".1f"), "peak memory, MB": ("peak", ".0f"),
        "noise of a count": ("noise", ".1f"), "threshold": ("threshold", ".1f"),
        "items released": ("released", "d"),
        "of the true 100 largest": ("100", ".1%"), "of the true 1000 largest": ("1000", ".1%"),
        "items above k + 1st + threshold": ("reachable", "d"), "of these released": ("within", ".1%"),
        "mean error of a count": ("mean error", ".1f"), "root mean square error": ("root mean square", ".1f"),
    }  # fmt: skip
    print(f"{'':<32}" + "".join(f"{name:>21}" for name in answers))
    for label, (key, form) in rows.items():
        print(f"{label:<32}" + "".join(f"{format(answer[key], form):>21}" for answer in answers.values()))


def run(part: str, folder: Path, events: int, size: int) -> str:
    """Run one method in a separate process."""
    words_of_command = [sys.executable, __file__, "--part", part, "--folder", str(folder)]
    words_of_command += ["--events", str(events), "--size", str(size)]
    return subprocess.run(words_of_command, check=True, stdout=subprocess.PIPE, text=True).stdout


def one(part: str, folder: Path, events: int, size: int) -> None:
    if part == "make":
        make(folder, events)
        return
    wall, cpu = perf_counter(), process_time()
    found = exact(folder, size) if part == "exact" else sketched(folder, size, part == "offset")
    used = {
        "wall": perf_counter() - wall, "cpu": process_time() - cpu,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }  # fmt: skip
    print(json.dumps({**used, **judged(found, np.load(folder / "truth.npy"))}))


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of sketches, and a sketch beside the exact top-k release.")
    parser.add_argument(
        "--events", type=lambda said: int(float(said)), help="compare on a stream of this many events"
    )
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="where the stream is kept; a temporary folder by default")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        one(given.part, given.folder, given.events, given.size)
    elif given.events is None:
        speed(given.size)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            compare(given.folder or Path(temporary), given.events, given.size)


if __name__ == "__main__":
    main()
