"""CPU time of a plan, relative to baselines in the same run: `make bench`.

Baselines: the paper's tighter theorem evaluated once over all j with numpy (one step of a naive search), and an
empty Python process. Each number is the minimum of several runs.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from dphist.model import Budget, Contract
from dphist.paper.analyses import Exact
from dphist.planning.optimum import Calibration, tune_gamma
from dphist.proof.continuous import certify_family
from dphist.proof.numerics import hockey_stick_normal, log_probability_none_passes

BUDGET = Budget(0.35, 1e-5)


def cpu_seconds(work: Callable[[], object], runs: int = 5) -> float:
    """Minimum CPU time of a call."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def process_seconds(*words: str, runs: int = 7) -> float:
    """Minimum CPU time of a process."""
    best = float("inf")
    for _ in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return best


def naive_tighter(k: int, sigma: float, tau: float) -> float:
    """Evaluate `thm:privacy-tighter-analysis` for all j at once."""
    j = np.arange(1.0, k)
    mu = np.minimum(np.sqrt(j), np.sqrt(j + np.sqrt(k)) / 2.0) / sigma
    log_psi = log_probability_none_passes(k - j + 1.0, tau / (sigma * (1.0 + k**-0.25)))
    third = -np.expm1(log_psi) + hockey_stick_normal(mu, BUDGET.epsilon)
    return float(max(third.max(), hockey_stick_normal(mu, BUDGET.epsilon + log_psi).max()))


def main() -> None:
    floor = cpu_seconds(lambda: naive_tighter(51914, 1113.75, 7433.9))
    print(f"floor: the tighter theorem once over all j, k = 51914: {floor:.4f} CPU s")
    print(f"{'k':>11} {'m':>11} {'plan s':>8} {'certified s':>12} {'to floor':>9}")
    for k, m in ((10, 10), (51914, 51914), (51914, 100), (10**7, 10**7), (10**9, 10**9), (10**9, 1000)):
        contract = Contract(k, m)
        noise = tune_gamma(Calibration(Exact(), BUDGET, contract), "threshold")

        def plan(contract: Contract = contract) -> object:
            return tune_gamma(Calibration(Exact(), BUDGET, contract), "threshold")

        def certify(contract: Contract = contract, noise: object = noise) -> object:
            return certify_family(noise, contract, epsilon=BUDGET.epsilon, budget=BUDGET.delta)  # type: ignore[arg-type]

        planned = cpu_seconds(plan)
        both = planned + cpu_seconds(certify)
        print(f"{k:>11} {m:>11} {planned:>8.3f} {both:>12.3f} {both / floor:>9.1f}")
    empty = process_seconds(sys.executable, "-c", "pass")
    print(f"floor: an empty Python process: {empty:.3f} CPU s")
    for title, words in (
        ("import dphist", (sys.executable, "-c", "import dphist")),
        ("dphist --help", (sys.executable, "-m", "dphist", "--help")),
        ("dphist plan, k = 51914", (sys.executable, "-m", "dphist", "plan", "--epsilon", "0.35", "--delta", "1e-5",
                                    "--max-nonzero", "51914")),
    ):  # fmt: skip
        seconds = process_seconds(*words)
        print(f"{title:<24} {seconds:>6.3f} CPU s  {seconds / empty:>5.1f} times the empty process")


if __name__ == "__main__":
    main()
