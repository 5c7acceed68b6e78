"""How far certificates of lattice noise are above the exact delta, and what that costs a plan.

    python benchmarks/tightness.py --only named         # the worst known cases, quoted in the docs
    python benchmarks/tightness.py --only histogram     # the table of docs/limits.md
    python benchmarks/tightness.py                      # everything; takes an hour

`histogram` and `top-k` certify random noise and divide by the largest exact delta over all neighbours and both
directions, which an oracle of the tests computes by summing over all noise. `search` climbs from the worst of
them. `threshold` compares the thresholds of discrete plans, certified by the sum bound, with those of continuous
plans.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Final

from dphist import plan
from dphist.errors import InvalidParameter, NoPlan
from dphist.model import LEAST_VARIANCE, Contract, LatticeNoise
from dphist.proof import balls
from dphist.proof.balls import bits_for
from dphist.proof.certify_lattice import certify_lattice, lattice_family
from dphist.proof.tails import infinite_event_discrete

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "oracles"))

from oracles_top_k import NeighbourType, Rule, claimed_types, delta_exact

# The oracle's error is about 1e-13, so smaller deltas have too few digits.
LEAST_DELTA: Final = 1e-6
PARTS: Final = ("named", "histogram", "top-k", "search", "threshold")
# The largest variance by k: all noise of j counts, of the shared draw and of the offset is summed.
MOST: Final[dict[Rule, dict[int, int]]] = {
    "none": dict.fromkeys((1, 2, 3, 4), 100),
    "opposite": {1: 100, 2: 30, 3: 16},
}


@dataclass(frozen=True)
class Case:
    """Noise on a lattice, the contract it is certified for, and epsilon."""

    k: int
    m: int
    lattice: int
    variance: int
    gamma: int
    limit: int
    epsilon: float
    rule: Rule = "none"

    @property
    def noise(self) -> LatticeNoise:
        """The noise, with shared variance V/gamma."""
        return LatticeNoise(
            self.lattice, Fraction(self.variance), Fraction(self.variance, self.gamma), self.limit, self.rule
        )

    @property
    def kinds(self) -> list[NeighbourType]:
        """All neighbours that can be the worst; fewer shared entries are a projection of more."""
        if self.rule != "none":
            return sorted(kind for kind in claimed_types(self.k) if kind.shared + kind.single == self.k)
        return [
            NeighbourType(self.k - r, s, r, 0) for r in range(self.m + 1) for s in range(self.m - r + 1) if r + s
        ]


# The worst cases found by searches, for histograms and for --top.
NAMED: Final = (
    Case(2, 2, 6, 9, 1, 1, 0.3327),
    Case(4, 3, 12, 74, 3, 4, 0.0514),
    Case(1, 1, 2, 200, 1, 33, 0.0, "opposite"),
)


def described(value: float, case: Case, term: str) -> str:
    kind = "" if case.rule == "none" else " with --top"
    return (
        f"k {case.k}, m {case.m}{kind}: {value:.1%} ({term}; lattice {case.lattice}, V {case.variance}, "
        f"gamma {case.gamma}, limit {case.limit}, epsilon {case.epsilon:g})"
    )


def print_named() -> None:
    for case in NAMED:
        found = excess(case)
        assert found is not None
        print(described(found[0], case, found[1]), flush=True)


def exact_delta(case: Case, *, new: bool = True) -> float:
    """The largest delta over all neighbours and both directions, by summing over all noise."""
    return max(
        delta_exact(
            kind, case.lattice, case.variance, case.gamma, case.limit, case.rule, case.epsilon, "reduced"
        ).worst
        for kind in case.kinds
        if new or kind.single == 0
    )


def certified(case: Case) -> tuple[float, str]:
    """The certificate's delta, and which of its terms is the largest."""
    contract = Contract(case.k, case.m) if case.rule == "none" else Contract(case.k)
    delta = certify_lattice(case.noise, contract, epsilon=case.epsilon).delta
    with balls.precision(bits_for(delta)):
        family = lattice_family(case.noise, contract, epsilon=case.epsilon, scale=delta)
        gaussian = balls.upper(family.gaussian_worst(0))
        new = balls.upper(family.infinite_event(contract.items))
    if delta > max(gaussian, new) * (1 + 1e-9):
        return delta, "mixed"
    return delta, "no new count" if gaussian >= new else "new counts alone"


def excess(case: Case) -> tuple[float, str] | None:
    """Certificate / exact delta - 1, and the largest term; None if the oracle has too few digits."""
    bound, term = certified(case)
    if not LEAST_DELTA < bound < 1.0:
        return None
    exact = exact_delta(case)
    return None if exact < LEAST_DELTA else (bound / exact - 1.0, term)


def random_case(dice: random.Random, rule: Rule) -> Case:
    """Random noise, small enough to sum over; half of the cases have the limit that their delta requires."""
    k = dice.randint(1, 4 if rule == "none" else 3)
    m = dice.randint(1, k) if rule == "none" else k
    gamma = dice.randint(1, 4)
    case = Case(
        k=k,
        m=m,
        lattice=lattice_for(k, m, gamma) if rule == "none" else 2 * dice.randint(1, 4),
        variance=round(math.exp(dice.uniform(math.log(LEAST_VARIANCE * gamma), math.log(MOST[rule][k])))),
        gamma=gamma,
        limit=1,
        epsilon=round(dice.choice((dice.uniform(0.0, 0.1), dice.uniform(0.0, 2.0))), 4),
        rule=rule,
    )
    if dice.random() < 0.5:
        return replace(case, limit=balanced_limit(case))
    return replace(case, limit=max(1, round(dice.uniform(0.0, 6.0) * math.sqrt(case.variance * (1 + 1 / gamma)))))


def lattice_for(k: int, m: int, gamma: int) -> int:
    """The coarsest even lattice whose best offset costs at most 0.1 % of the squared sensitivity, as in plans."""
    best = min(m, (k + gamma) // 2) / (k + gamma)
    lattice = 2
    while (round(lattice * best) / lattice - best) ** 2 > 1e-3 * best * (1 - best):
        lattice += 2
    return lattice


def balanced_limit(case: Case) -> int:
    """The least limit at which new counts alone have no larger delta than none, as in plans."""
    gaussian = exact_delta(case, new=False)
    limit = 1
    while passing(case, limit) > gaussian and limit < 200:
        limit += 1
    return limit


def passing(case: Case, limit: int) -> float:
    """The probability that one of m new counts passes."""
    return infinite_event_discrete(
        count=case.m, variance=float(case.variance), variance_shared=case.variance / case.gamma, limit=limit,
        smallest=LEAST_DELTA,
    )  # fmt: skip


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, math.floor(share * len(ordered)))]


def measure(cases: int, dice: random.Random, rules: tuple[Rule, ...]) -> tuple[list[tuple[float, Case, str]], str]:
    """Compute the excess of random cases and print a table."""
    found: list[tuple[float, Case, str]] = []
    while len(found) < cases:
        case = random_case(dice, dice.choice(rules))
        result = excess(case)
        if result is not None:
            found.append((result[0], case, result[1]))
    lines = [
        f"{'largest term':18} {'cases':>6} {'lowest':>9} {'median':>9} {'90 %':>8} {'99 %':>8} {'largest':>8}"
    ]
    for term in ("no new count", "new counts alone", "mixed"):
        values = [value for value, _, name in found if name == term]
        if values:
            shown = [quantile(values, share) for share in (0.5, 0.9, 0.99)]
            lines.append(
                f"{term:18} {len(values):6,} {min(values):9.1e} {shown[0]:9.2%} {shown[1]:8.2%} {shown[2]:8.2%} "
                f"{max(values):8.2%}"
            )
    return found, "\n".join(lines)


def neighbours_of(case: Case, dice: random.Random) -> Case:
    """A random neighbouring case."""
    name = dice.choice(("variance", "gamma", "limit", "epsilon", "lattice"))
    if case.rule == "none" and name in ("gamma", "lattice"):
        gamma = max(1, case.gamma + dice.choice((-1, 1)))
        return replace(case, gamma=gamma, lattice=lattice_for(case.k, case.m, gamma))
    if name == "variance":
        return replace(case, variance=max(1, round(case.variance * math.exp(dice.gauss(0.0, 0.3)))))
    if name == "gamma":
        return replace(case, gamma=max(1, case.gamma + dice.choice((-1, 1))))
    if name == "limit":
        return replace(case, limit=max(1, case.limit + round(dice.gauss(0.0, 1 + 0.1 * case.limit))))
    if name == "lattice":
        return replace(case, lattice=max(2, case.lattice + dice.choice((-2, 2))))
    return replace(case, epsilon=max(0.0, round(case.epsilon * math.exp(dice.gauss(0.0, 0.5)), 4)))


def climb(start: Case, steps: int, dice: random.Random) -> tuple[float, Case, str]:
    """The largest excess found by hill climbing."""
    first = excess(start)
    assert first is not None
    best = (first[0], start, first[1])
    for _ in range(steps):
        case = neighbours_of(best[1], dice)
        if case == best[1] or not LEAST_VARIANCE * case.gamma <= case.variance <= MOST[case.rule][case.k]:
            continue
        result = excess(case)
        if result is not None and result[0] >= best[0]:
            best = (result[0], case, result[1])
    return best


def threshold_cost(dice: random.Random) -> tuple[float, str]:
    """Excess of the threshold of a discrete plan over that of the continuous plan, both with shared noise."""
    while True:
        k = dice.choice((2, 3, 5, 10, 30, 100))
        m = dice.choice((k, max(2, k // 2)))
        epsilon = round(math.exp(dice.uniform(math.log(0.01), math.log(2.0))), 4)
        delta = float(f"{10 ** dice.uniform(-8.0, -1.0):.2e}")
        taus = []
        for noise in ("discrete", "continuous"):
            with contextlib.suppress(InvalidParameter, NoPlan):
                made = plan(
                    epsilon=epsilon, delta=delta, max_nonzero=k, max_items_per_user=m, gamma="sqrt", noise=noise
                )
                taus.append(made.tau)
        if len(taus) == 2:
            return taus[0] / taus[1] - 1.0, f"k {k}, m {m}, epsilon {epsilon:g}, delta {delta:g}"


def print_search(found: list[tuple[float, Case, str]], steps: int, dice: random.Random) -> None:
    for k in sorted({case.k for _, case, _ in found}):
        starts = sorted((one for one in found if one[1].k == k), key=lambda one: -one[0])[:3]
        value, case, term = max((climb(start[1], steps, dice) for start in starts), key=lambda one: one[0])
        print(described(value, case, term), flush=True)


def print_thresholds(cases: int, dice: random.Random) -> None:
    """The distribution of the cost, by how large delta is."""
    found = [threshold_cost(dice) for _ in range(cases)]
    values = [value for value, _ in found]
    shown = ", ".join(f"{share:.0%} {quantile(values, share):.2%}" for share in (0.5, 0.75, 0.9, 0.99))
    worst = max(found, key=lambda one: one[0])
    print(f"{cases:,} plans: {shown}, largest {worst[0]:.1%} ({worst[1]})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000, help="random cases a table")
    parser.add_argument("--steps", type=int, default=150, help="steps of each climb")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=PARTS, action="append")
    asked = parser.parse_args()
    parts = asked.only or list(PARTS)
    if "named" in parts:
        print_named()
    groups: dict[str, tuple[Rule, ...]] = {"histogram": ("none",), "top-k": ("opposite",)}
    title: Callable[[str], str] = {
        "histogram": "Lattice certificates of histograms above the exact delta",
        "top-k": "Lattice certificates of --top above the exact delta",
    }.__getitem__
    for name, rules in groups.items():
        if name in parts or "search" in parts:
            dice = random.Random(asked.seed)
            found, table = measure(asked.cases, dice, rules)
            print(f"{title(name)}, {asked.cases:,} random cases:\n{table}", flush=True)
            if "search" in parts:
                print("The worst found by climbing:")
                print_search(found, asked.steps, dice)
            print()
    if "threshold" in parts:
        print("Thresholds of discrete plans above those of continuous plans:")
        print_thresholds(max(1, asked.cases // 5), random.Random(asked.seed))


if __name__ == "__main__":
    main()
