"""Response time of the explore page: 50 typical slider moves, through a real server on one core.

    python benchmarks/explore.py

Every move has new values, so that no plan comes from the cache. Times are CPU times of server and client.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from explore_page import START, serving

TOKEN = "benchmark"
# Start values of each slider; other fields keep their defaults.
MOVES: dict[str, tuple[dict[str, str], list[float]]] = {
    "privacy": ({}, [0.1, 0.25, 0.5, 0.75, 1.2, 1.5, 2, 2.5, 4, 6, 8, 9.5]),
    "limit": ({}, [1, 2, 3, 5, 8, 13, 30, 50, 100, 300]),
    "users": ({}, [1000, 5000, 20_000, 500_000, 2_000_000, 10_000_000]),
    "items per user": ({}, [1, 3, 5, 20, 50, 150]),
    "most common items": ({"publish": "top"}, [10, 30, 100, 300, 1000, 3000]),
    "known list": ({"publish": "list"}, [10, 50, 200, 1000, 5000]),
    "sums": ({"publish": "sums"}, [1, 10, 50, 200, 1000]),
}
FIELDS = ("epsilon", "max_items_per_user", "users", "mean_items", "top", "public_items", "sum_high")


def typical_moves() -> Iterator[tuple[str, dict[str, str]]]:
    for field, (name, (fixed, values)) in zip(FIELDS, MOVES.items(), strict=True):
        for value in values:
            yield name, {**START, **fixed, field: f"{value:g}"}


def timed(client: httpx.Client, data: dict[str, str]) -> float:
    began = time.process_time()
    response = client.post(f"/{TOKEN}/api/plain", json=data)
    assert response.status_code == 200, response.text
    return 1e3 * (time.process_time() - began)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    times: dict[str, list[float]] = {name: [] for name in MOVES}
    with serving(TOKEN) as client:
        timed(client, START)
        for name, data in typical_moves():
            times[name].append(timed(client, data))
    every = [one for found in times.values() for one in found]
    for name, found in {**times, "all moves": every}.items():
        middle, slowest = statistics.median(found), max(found)
        print(f"{name:<20} {len(found):3} moves: median {middle:4.0f} ms, slowest {slowest:4.0f} ms")


if __name__ == "__main__":
    main()
