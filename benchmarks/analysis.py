"""What the exact analysis changes: thresholds and noise of plans, for docs/analysis.md. No data is read.

Run `python benchmarks/analysis.py [--json FILE]`; it takes two minutes. `docs/figures.py` makes the figures and
tables of the page from these numbers.

- paper: the rows and curves of the paper's figure, for its epsilon = 0.35 and for epsilon = 0.349;
- shared: threshold and noise with shared noise, divided by those of the GSHM at the same limit m per user;
- crossings: the least m from which shared noise pays;
- discrete: what discrete noise costs, for dphist's plans and for the paper's theorem;
- both: the noise of the K largest counts, of a limit on items per user, and of both, at epsilon 1, delta 1e-6.

All other budgets are the paper's.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import dphist
from dphist.model import Budget, Contract
from dphist.paper.bounds import delta_zcdp, delta_zcdp_loose, rho_discrete_correlated_gaussian
from dphist.planning.compare import discrete_theorem, frontiers
from dphist.proof.searches import least_passing, log_excess

EPSILON, DELTA = 0.35, 1e-5
SIZES: Final = (10, 51914)
SHARED_SIZES: Final = (10, 100, 1_000, 10_000, 51_914)
# Where shared noise starts to pay for k = 1,000, all three ways.
DETAIL: Final = 1_000
DETAIL_LIMITS: Final = (
    1,
    2,
    3,
    5,
    7,
    10,
    14,
    20,
    25,
    32,
    40,
    50,
    70,
    100,
    140,
    200,
    250,
    300,
    400,
    500,
    700,
    1_000,
)
SHARES: Final = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
DISCRETE_SIZES: Final = (2, 5, 10, 30, 100, 300, 1_000, 10_000, 51_914)
DISCRETE_EPSILONS: Final = (8.0, 4.0, 2.0, 1.0, 0.7)

TOP_SIZES: Final = (100, 1_000, 10_000)
TOP_SHARES: Final = (
    0.05,
    0.1,
    0.15,
    0.2,
    0.22,
    0.24,
    0.25,
    0.26,
    0.28,
    0.3,
    0.32,
    0.34,
    0.4,
    0.5,
    0.6,
    0.75,
    0.9,
    1.0,
)


@dataclass(frozen=True)
class PaperRow:
    epsilon: float
    k: int
    analysis: str
    noise: float
    tau: float


@dataclass(frozen=True)
class Curve:
    """The least tau by total noise."""

    k: int
    analysis: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Shared:
    """Ratios to the exact GSHM for at most m of k items per user."""

    k: int
    m: int
    way: str
    noise: float
    tau: float


@dataclass(frozen=True)
class Crossing:
    """The least m at which shared noise with gamma = sqrt k has less noise, and a lower threshold, than the GSHM,
    and those at which tuned noise lowers the threshold by 1 % and by 10 %."""

    k: int
    noise: int
    tau: int
    one_percent: int
    ten_percent: int


@dataclass(frozen=True)
class Discrete:
    """Least noise and least threshold of discrete noise with m = k, divided by those of continuous noise."""

    epsilon: float
    k: int
    sigma: float
    way: str
    noise: float
    tau: float


@dataclass(frozen=True)
class Both:
    """Total noise of `top` alone, of `max_items_per_user` alone, and of both together."""

    k: int
    m: int
    top: float
    limit: float
    both: float


@dataclass(frozen=True)
class Analysis:
    paper: list[PaperRow]
    curves: list[Curve]
    shared: list[Shared]
    crossings: list[Crossing]
    discrete: list[Discrete]
    both: list[Both]


def short(number: float) -> float:
    """Seven digits: less than what the planner's searches leave open."""
    return float(f"{number:.7g}")


def paper_rows(epsilon: float, k: int) -> tuple[list[PaperRow], list[Curve]]:
    comparison = dphist.compare(epsilon=epsilon, delta=DELTA, max_nonzero=k)
    rows = [
        PaperRow(epsilon, k, row.analysis, short(row.total_noise), short(row.tau))
        for row in comparison.rows
        if row.mechanism != "laplace"
    ]
    # Curves are drawn for one epsilon only.
    curves = frontiers(comparison) if epsilon == EPSILON else ()
    return rows, [Curve(k, one.analysis, [(short(a), short(b)) for a, b in one.points]) for one in curves]


@cache
def planned(k: int, m: int, way: str) -> tuple[float, float]:
    """Total noise and tau of one way to plan, with continuous noise."""
    common = partial(dphist.plan, epsilon=EPSILON, delta=DELTA, max_items_per_user=m)
    if way == "gshm":
        made = common(analysis="gshm-exact")
    elif way == "tuned":
        made = common(max_nonzero=k, noise="continuous")
    elif way == "sqrt k":
        made = common(max_nonzero=k, noise="continuous", gamma="sqrt")
    else:
        made = common(max_nonzero=k, noise="continuous", analysis="csh-tighter")
    return made.total_noise, made.tau


def ratios(k: int, m: int, way: str) -> tuple[float, float]:
    noise, tau = planned(k, m, way)
    least_noise, least_tau = planned(k, m, "gshm")
    return noise / least_noise, tau / least_tau


def shared_noise() -> list[Shared]:
    cases = {(k, max(1, round(share * k)), "tuned") for k in SHARED_SIZES for share in SHARES}
    cases |= {(DETAIL, m, way) for m in DETAIL_LIMITS for way in ("tuned", "sqrt k", "paper")}
    return [Shared(k, m, way, *map(short, ratios(k, m, way))) for k, m, way in sorted(cases)]


def least_limit(k: int, passes: Callable[[int], bool]) -> int:
    """The least m <= k that passes, if all above it pass."""
    low, high = 0, k
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle, high)
    return high


def crossing(k: int) -> Crossing:
    return Crossing(
        k,
        noise=least_limit(k, lambda m: ratios(k, m, "sqrt k")[0] < 1.0),
        tau=least_limit(k, lambda m: ratios(k, m, "sqrt k")[1] < 1.0),
        one_percent=least_limit(k, lambda m: ratios(k, m, "tuned")[1] <= 0.99),
        ten_percent=least_limit(k, lambda m: ratios(k, m, "tuned")[1] <= 0.9),
    )


def least_theorem_noise(epsilon: float, k: int, tight: bool) -> float:
    """The least total noise of the paper's theorem for discrete noise; its least threshold needs some more."""
    convert = delta_zcdp if tight else delta_zcdp_loose

    def excess(sigma: float) -> float:
        return log_excess(convert(rho=rho_discrete_correlated_gaussian(k=k, sigma=sigma), epsilon=epsilon), DELTA)

    return least_passing(excess, math.sqrt(k) / epsilon, relative=1e-9) * math.sqrt(1 + k**-0.5)


def discrete_noise(epsilon: float, k: int) -> list[Discrete]:
    best = dphist.plan(epsilon=epsilon, delta=DELTA, max_nonzero=k, noise="continuous")
    ours = dphist.plan(epsilon=epsilon, delta=DELTA, max_nonzero=k)
    ways = {"dphist": (ours.total_noise, ours.tau)}
    for way, tight in (("theorem, printed", False), ("theorem, tight", True)):
        least = least_theorem_noise(epsilon, k, tight)
        ways[way] = (least, discrete_theorem(Budget(epsilon, DELTA), Contract(k, None), tight).tau)
    sigma = short(best.total_noise)
    return [
        Discrete(epsilon, k, sigma, way, short(noise / best.total_noise), short(tau / best.tau))
        for way, (noise, tau) in ways.items()
    ]


def both_limits(k: int, share: float) -> Both:
    m = max(1, round(share * k))
    given = partial(dphist.plan, epsilon=1, delta=1e-6, mechanism="gaussian")
    plans = given(top=k), given(max_items_per_user=m), given(top=k, max_items_per_user=m)
    return Both(k, m, *(short(made.total_noise) for made in plans))


def compute() -> Analysis:
    paper = [paper_rows(epsilon, k) for epsilon in (EPSILON, 0.349) for k in SIZES]
    cases = [(EPSILON, k) for k in DISCRETE_SIZES] + [(epsilon, 10) for epsilon in DISCRETE_EPSILONS]
    discrete = [row for case in cases for row in discrete_noise(*case)]
    rows = [row for rows, _ in paper for row in rows]
    curves = [curve for _, curves in paper for curve in curves]
    both = [both_limits(k, share) for k in TOP_SIZES for share in TOP_SHARES]
    return Analysis(rows, curves, shared_noise(), [crossing(k) for k in SHARED_SIZES], discrete, both)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the exact analysis changes.")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    given = parser.parse_args()
    found = compute()
    for rows in (found.paper, found.shared, found.crossings, found.discrete, found.both):
        for row in rows:
            print(row)
    if given.json:
        given.json.write_text(json.dumps(asdict(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
