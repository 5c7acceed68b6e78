"""How quickly the page answers a slider: certified plans and what follows them, through a real server on one core.

    python benchmarks/explore.py

Every request has another epsilon and delta, so that nothing comes from the cache. A slider waits for the plan
alone; the chart of released items, a trial release, the table and the paper's figure follow. The times are
those of the processor, of the server and of the client, so that other work on the computer does not count.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from explore_page import serving

CASES = [
    {"max_items_per_user": "20"},
    {"max_nonzero": "10"},
    {"max_nonzero": "1000"},
    {"max_nonzero": "51914"},
    {"max_nonzero": "1000000"},
    {"max_nonzero": "1000", "max_items_per_user": "100"},
    {"max_nonzero": "1000000", "max_items_per_user": "100"},
    {"top": "1000"},
    {"top": "1000000"},
]
LAW = {"items": "10000", "users": "1000000", "exponent": "1", "mean_items": "20", "seed": "1"}
FOLLOWING = ("curve", "limit", "trial", "table", "figure")
ROUNDS = 15
TOKEN = "benchmark"


def timed(client: httpx.Client, kind: str, fields: dict[str, str]) -> float:
    began = time.process_time()
    response = client.post(f"/{TOKEN}/api/{kind}", json={**LAW, **fields})
    assert response.status_code == 200, response.text
    return 1e3 * (time.process_time() - began)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    heads = ("plan: median", "worst", *FOLLOWING)
    print(f"{'milliseconds for':<50}" + "".join(f"{head:>13}" for head in heads))
    with serving(TOKEN) as client:
        for kind in ("plan", *FOLLOWING):
            timed(client, kind, {"epsilon": "1", "delta": "1e-6", **CASES[0]})
        for case in CASES:
            asked = [
                {"epsilon": f"{0.35 + 0.01 * i:.4g}", "delta": f"{1e-5 + 1e-7 * i:.6g}", **case}
                for i in range(ROUNDS)
            ]
            plans = [timed(client, "plan", fields) for fields in asked]
            others = [timed(client, kind, asked[0]) for kind in FOLLOWING]
            bounds = ", ".join(f"{name} {value}" for name, value in case.items())
            numbers = (statistics.median(plans), max(plans), *others)
            print(f"{bounds:<50}" + "".join(f"{number:>13.0f}" for number in numbers))


if __name__ == "__main__":
    main()
