"""Noise and threshold on an existing histogram, compared with numpy's float normal and OpenDP.

Run `python benchmarks/noise_stage.py`.

Wall-clock seconds, the minimum of several runs. The numpy version is unsafe: float noise from a generator that is
not cryptographic. OpenDP runs on 10^5 counts and is extrapolated linearly, because 10^7 counts would take minutes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import dphist
from dphist.audit import PlannedMechanism
from dphist.model import Plan
from dphist.releasing.histogram import release_histogram
from dphist.sampling.rng import SecureRng

OPENDP_SIZE = 10**5
OPENDP = """
import sys, time
import opendp.prelude as dp
dp.enable_features("contrib")
n, sigma, threshold = int(sys.argv[1]), float(sys.argv[2]), int(float(sys.argv[3]))
domain = dp.map_domain(dp.atom_domain(T=str), dp.atom_domain(T=int))
metric = dp.l02inf_distance(dp.absolute_distance(T="u32"))
release = dp.m.make_gaussian_threshold(domain, metric, scale=sigma, threshold=threshold)
data = {str(i): 1 + i % 100 for i in range(n)}
start = time.perf_counter()
release(data)
print(time.perf_counter() - start)
"""


def seconds(work: Callable[[], object], runs: int = 5) -> float:
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def histogram(n: int) -> NDArray[np.int64]:
    """Zipf-distributed counts."""
    return np.minimum(np.random.default_rng(1).zipf(1.8, n), 10**9).astype(np.int64)


def float_normal(counts: NDArray[np.int64], plan: Plan) -> NDArray[np.float64]:
    """The naive version: float noise on every non-zero count, then the threshold."""
    generator = np.random.default_rng()
    present = np.flatnonzero(counts)
    noisy = counts[present] + plan.sigma * generator.standard_normal(present.size)
    noisy += plan.sigma_shared * generator.standard_normal()
    return np.asarray(noisy[noisy > plan.threshold])


def opendp_seconds(plan: Plan) -> float | None:
    """Seconds per count of OpenDP's Gaussian threshold measurement; None if it cannot be run."""
    words = [sys.executable, "-c", OPENDP, str(OPENDP_SIZE), str(plan.sigma), str(plan.threshold)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"OpenDP could not be run: {done.stderr.strip().splitlines()[-1]}")
        return None
    return float(done.stdout) / OPENDP_SIZE


def report(name: str, plan: Plan, n: int, a_count: float | None) -> None:
    counts, items, rng = histogram(n), np.arange(n), SecureRng()
    mechanism = PlannedMechanism(plan)
    floats = seconds(lambda: float_normal(counts, plan))
    rows = [
        ("numpy float normal", floats),
        ("dphist, the noise stage", seconds(lambda: mechanism.begin(rng).release(counts))),
        ("dphist, release_histogram", seconds(lambda: release_histogram(items, counts, plan))),
    ]
    if a_count is not None:
        rows.append(("OpenDP, scaled up", a_count * n))
    for label, taken in rows:
        speed, ratio = n / taken / 1e6, floats / taken
        print(f"{name:<14} {n:>10,} {label:<26} {taken:>10.4f} {speed:>8.3f} {ratio:>14.3g}")


def main() -> None:
    plans = {
        "GSHM, m = 10": dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=10, noise="discrete"),
        "CSH, k = 10^7": dphist.plan(epsilon=0.35, delta=1e-5, max_nonzero=10**7, noise="discrete"),
    }
    a_count = opendp_seconds(plans["GSHM, m = 10"])
    print(f"{'plan':<14} {'counts':>10} {'method':<26} {'seconds':>10} {'M/s':>8} {'speed to numpy':>14}")
    for name, plan in plans.items():
        for n in (10**6, 10**7):
            report(name, plan, n, a_count)


if __name__ == "__main__":
    main()
