"""How quickly the page's server answers a slider: the quick part, through a real server on one core.

    python benchmarks/explore.py

Every request has another epsilon and delta, so that nothing is remembered. The certified plan follows later, in a
process of its own; its time is in the last column, and is not what a slider waits for.
"""

from __future__ import annotations

import os
import re
import statistics
import threading
import time

import httpx
import uvicorn

from dphist.web.app import make_app
from dphist.web.guard import Keys
from dphist.web.server import listener_on

CASES = [
    {"max_nonzero": "10"},
    {"max_nonzero": "1000"},
    {"max_nonzero": "51914"},
    {"max_nonzero": "1000000"},
    {"max_nonzero": "1000", "max_items_per_user": "100"},
    {"max_nonzero": "1000000", "max_items_per_user": "100"},
    {"max_items_per_user": "20"},
    {"top": "1000"},
    {"top": "1000000"},
]
ROUNDS = 25


def entered(client: httpx.Client, token: str) -> str:
    """The place of the page, as its welcome tells it."""
    found = re.search(r"url=(/s/[^\"]+)", client.get(f"/?token={token}").text)
    assert found is not None
    return found[1]


def timed(client: httpx.Client, place: str, kind: str, fields: dict[str, str]) -> float:
    began = time.perf_counter()
    response = client.post(f"{place}api/{kind}", json=fields)
    assert response.status_code == 200, response.text
    return 1e3 * (time.perf_counter() - began)


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    listener = listener_on(0)
    port = listener.getsockname()[1]
    home, keys = f"http://127.0.0.1:{port}", Keys()
    server = uvicorn.Server(uvicorn.Config(make_app(keys=keys, port=port), log_level="critical", lifespan="on"))
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    print(f"{'bounds':<52}{'median ms':>10}{'worst ms':>10}{'certified ms':>14}")
    try:
        headers = {"Origin": home, "X-Dphist-Tab": "benchmark"}
        with httpx.Client(base_url=home, timeout=120.0, headers=headers, trust_env=False) as client:
            place = entered(client, keys.token)
            timed(client, place, "plan", {"epsilon": "1", "delta": "1e-6", **CASES[0]})
            for case in CASES:
                times = [
                    timed(
                        client,
                        place,
                        "quick",
                        {"epsilon": f"{0.35 + 0.01 * i:.4g}", "delta": f"{1e-5 + 1e-7 * i:.6g}", **case},
                    )
                    for i in range(ROUNDS)
                ]
                sound = timed(client, place, "plan", {"epsilon": "0.3517", "delta": "1e-5", **case})
                bounds = ", ".join(f"{name} {value}" for name, value in case.items())
                print(f"{bounds:<52}{statistics.median(times):>10.1f}{max(times):>10.1f}{sound:>14.1f}")
    finally:
        server.should_exit = True
        thread.join()


if __name__ == "__main__":
    main()
