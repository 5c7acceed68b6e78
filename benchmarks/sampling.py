"""Speed of drawing noise, relative to numpy's `standard_normal` in the same run.

Each number is the best of several runs of 10^7 draws, including the secure rng: CPU time on one core, and
wall-clock time for two threads. The baseline, on one core, is neither secure nor exact.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np

from dphist.sampling import DiscreteGaussian, DiscreteLaplace, ExactSampler, SecureRng, sampler
from dphist.sampling.sampler import compiled_kernel

DRAWS = 10**7


Clock = Callable[[], float]


def rates(draws: int, works: dict[Callable[[], object], Clock], runs: int = 9) -> list[float]:
    """Best rate of each; they alternate, so that other load affects all of them."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(runs):
        for work, clock in works.items():
            start = clock()
            work()
            best[work] = min(best[work], clock() - start)
    return [draws / seconds for seconds in best.values()]


def build_seconds(variance: int) -> float:
    sampler.residual_of.cache_clear()
    start = time.perf_counter()
    DiscreteGaussian(variance)
    return time.perf_counter() - start


def opendp_rate(deviation: float) -> float | None:
    """OpenDP's discrete Gaussian, if it is installed."""
    try:
        prelude: Any = importlib.import_module("opendp.prelude")
    except ImportError:
        return None
    prelude.enable_features("contrib")
    space = prelude.vector_domain(prelude.atom_domain(T=int)), prelude.l2_distance(T=float)
    measurement = prelude.m.make_gaussian(*space, scale=deviation)
    zeros = [0] * 100_000
    return rates(len(zeros), {lambda: measurement(zeros): time.thread_time}, runs=3)[0]


def report(title: str, sampler: ExactSampler, pool: ThreadPoolExecutor) -> float:
    """Print rates and their ratios to the baseline; return the compiled rate."""
    generator, rng = np.random.default_rng(0), SecureRng()

    def two_threads() -> object:
        return list(pool.map(lambda _: sampler.draw(DRAWS // 2, rng, compiled=True), range(2)))

    floor, *measured = rates(
        DRAWS,
        {
            lambda: generator.standard_normal(DRAWS): time.thread_time,
            lambda: sampler.draw(DRAWS, rng, compiled=True): time.thread_time,
            lambda: sampler.draw(DRAWS, rng, compiled=False): time.thread_time,
            two_threads: time.perf_counter,
        },
    )
    cells = "".join(f"{value / 1e6:>8.0f} ({value / floor:4.1f})" for value in measured)
    print(f"{title:<24}{floor / 1e6:>8.0f}{cells}")
    return measured[0]


def main() -> None:
    rng = SecureRng()
    (words,) = rates(DRAWS, {lambda: [rng.words(DRAWS // 1000).size for _ in range(1000)]: time.thread_time})
    print(f"secure rng alone: {words / 1e6:.0f} million words a second")
    if compiled_kernel() is None:
        print("numba is not installed: its columns show numpy again")
    print(
        f"load: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; million draws a second (times numpy's normal)"
    )
    print(f"{'':<24}{'normal':>8}{'numba':>15}{'numpy':>15}{'2 threads':>15}")
    with ThreadPoolExecutor(2) as pool:
        for deviation in (3, 30, 3000, 10**6, 10**8):
            fast = report(f"Gaussian, sd {deviation:g}", DiscreteGaussian(deviation**2), pool)
            if deviation <= 3000 and (peer := opendp_rate(deviation)) is not None:
                print(f"  OpenDP: {peer:.0f} a second, {fast / peer:.0f} times slower")
        for scale in (Fraction(30), Fraction(10**6)):
            report(f"Laplace, scale {float(scale):g}", DiscreteLaplace(scale), pool)
    if opendp_rate(3.0) is None:
        print("OpenDP is not installed: no comparison with it")
    for deviation in (3, 3000, 10**8):
        print(f"table for sd {deviation:g}: {build_seconds(deviation**2):.3f} s")


if __name__ == "__main__":
    main()
