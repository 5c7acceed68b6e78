"""Top-k with its offset: the certificate against an oracle that enumerates, and the mechanism against its law."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from dphist.errors import InvalidParameter
from dphist.planning.planner import plan
from dphist.privacy.certificate import certify_lattice
from dphist.privacy.lattice import squared_sensitivity_top_k
from dphist.privacy.types import Contract, LatticeNoise, OffsetRule
from dphist.releasing.noise import Cut, begin
from dphist.sampling.tap import SeededTap
from oracles_discrete import infinite_event_discrete as oracle_infinite_event
from oracles_top_k import NeighbourType, delta_exact, gaussian_sensitivity_squared, worst_case

RULES: tuple[OffsetRule, ...] = ("opposite", "independent")
GRID = list(product((1, 2), (16, 60), (1, 2, 4), (12, 30), (0.2, 0.5, 1.0)))


def certified(k: int, v: int, gamma: int, limit: int, epsilon: float, rule: OffsetRule) -> float:
    noise = LatticeNoise(2, Fraction(v), Fraction(v, gamma), limit, rule)
    return certify_lattice(noise, Contract(k), epsilon=epsilon).delta


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("cases", [GRID[::13], pytest.param(GRID, marks=pytest.mark.slow)], ids=["some", "all"])
def test_certificate_is_never_below_the_exact_delta(rule: OffsetRule, cases: list[Any]) -> None:
    excess = []
    for k, v, gamma, limit, epsilon in cases:
        exact = worst_case(k, 2, Fraction(v), gamma, limit, rule, epsilon)
        bound = certified(k, v, gamma, limit, epsilon, rule)
        assert bound >= exact.delta - exact.error
        excess.append(bound / exact.delta)
    # The sum of both parts is a bound, and half a count is not the best offset for very few counts.
    assert np.median(excess) < 1.06
    assert max(excess) < 1.7


def test_the_pure_cases_alone_would_be_below_the_truth() -> None:
    """Why mixed cases are in the certificate: here all counts are new AND the offset moves."""
    k, v, gamma, limit, epsilon = 1, 36, 1, 20, 0.5
    exact = worst_case(k, 2, Fraction(v), gamma, limit, "opposite", epsilon).delta
    new_alone = 0.007817051673995233
    assert exact > new_alone * 1.04
    assert certified(k, v, gamma, limit, epsilon, "opposite") >= exact


@pytest.mark.parametrize(("v", "gamma"), [(4, 1), (Fraction(26, 3), 2)])
@pytest.mark.parametrize("limit", [0, 9])
@pytest.mark.parametrize("new", [1, 3])
def test_a_larger_offset_makes_passing_less_likely(v: Fraction | int, gamma: int, limit: int, new: int) -> None:
    """The step of the proof where no entry is shared: Pr[none passes | c~] rises with c~, in docs/theory/top-k.md.

    Everything is summed from the definition. With the opposite offset, Z_c - W, the probability rises strictly,
    and that of passing where c is larger by one (two steps) is below P_r. With an offset of the same sign,
    Z_c + W, both are the other way round: the sign is what is tested.
    """
    with mp.workdps(30):
        own, shared = Fraction(v), Fraction(v) / gamma
        reach, far = int(11 * math.sqrt(own)), int(11 * math.sqrt(shared))
        pmf = {w: mp.exp(mpf(-w * w * shared.denominator) / (2 * shared.numerator)) for w in range(-far, far + 1)}
        weights = [mp.exp(mpf(-z * z * own.denominator) / (2 * own.numerator)) for z in range(-reach, reach + 1)]
        below = [mpf(0), *accumulate(weights)]  # below[i] is of all z < i - reach
        none = {w: (below[min(max(limit - w + reach + 1, 0), 2 * reach + 1)] / below[-1]) ** new for w in pmf}
        event = oracle_infinite_event(count=new, variance=own, variance_shared=shared, limit=limit)
        for sign in (-1, 1):
            given = {}
            law = {}
            for t in range(-far, far + 3):
                joint = {w: mass * pmf[t - sign * w] for w, mass in pmf.items() if t - sign * w in pmf}
                law[t] = mp.fsum(joint.values())
                given[t] = mp.fsum(mass * none[w] for w, mass in joint.items()) / law[t]
            # Far out g is 0 or 1 to all digits that there are.
            steps = [given[t + 1] - given[t] for t in range(-far // 2, far // 2)]
            assert all(step > 0 for step in steps) if sign < 0 else all(step < 0 for step in steps)
            total = mp.fsum(law.values())
            passes = [mp.fsum(law[t] * (1 - given[t + b]) for t in range(-far, far + 1)) / total for b in (0, 2)]
            assert abs(passes[0] - event) < mpf("1e-12")
            assert passes[1] < 0.99 * event if sign < 0 else passes[1] > 1.01 * event


@pytest.mark.parametrize("kind", [NeighbourType(0, 0, 1, 1), NeighbourType(0, 0, 2, 1), NeighbourType(1, 1, 1, 1)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_sum_bound_holds_in_both_directions(kind: NeighbourType, epsilon: float) -> None:
    """delta <= P_r + the divergence without new entries, with `larger` and `smaller` each by itself."""
    b, variance, gamma, limit = 2, Fraction(16), 2, 14
    alone = delta_exact(kind._replace(single=0), b, variance, gamma, limit, "opposite", epsilon).worst
    event = float(
        oracle_infinite_event(count=kind.single, variance=variance, variance_shared=variance / gamma, limit=limit)
    )
    exact = delta_exact(kind, b, variance, gamma, limit, "opposite", epsilon)
    assert exact.larger <= event + alone + exact.error
    assert exact.smaller <= event + alone + exact.error
    assert max(exact.larger, exact.smaller) > alone


@pytest.mark.parametrize("rule", ["none", *RULES])
def test_sensitivity_covers_all_moves(rule: OffsetRule) -> None:
    for k, gamma in ((1, 1), (4, 2), (9, 3)):
        bound = squared_sensitivity_top_k(shared=k, gamma=gamma, rule=rule)
        shared = 1.0 / math.sqrt(gamma)
        exact = max(
            float(gaussian_sensitivity_squared(k, s, change, 1.0, shared, shared, rule))
            for s in range(k + 1)
            for change in (0, -1)
        )
        assert exact <= bound * (1 + 1e-12)
        if k >= 9:
            assert exact > 0.99 * bound


@pytest.mark.parametrize(
    ("k", "noise", "threshold"), [(10, 0.714, 0.795), (100, 0.856, 0.894), (1000, 0.944, 0.958)]
)
def test_opposite_offset_beats_the_papers_rule(k: int, noise: float, threshold: float) -> None:
    ours, paper = (plan(epsilon=0.35, delta=1e-5, top=k, offset=rule) for rule in RULES)
    assert ours.certificate.delta <= 1e-5
    assert ours.total_noise / paper.total_noise <= noise
    assert ours.tau / paper.tau <= threshold


def test_plan_for_top_k() -> None:
    made = plan(epsilon=1.0, delta=1e-6, top=100)
    assert (made.mechanism, made.contract.max_nonzero) == ("top-k", 100)
    assert plan(epsilon=1.0, delta=1e-6, top=100, offset="none").mechanism == "csh"
    # A bound on users far below k is better used by itself; one near k is worth nothing beside the top-k step.
    assert plan(epsilon=1.0, delta=1e-6, top=100, max_items_per_user=5).mechanism == "gshm"
    assert plan(epsilon=1.0, delta=1e-6, top=100, max_items_per_user=90).mechanism == "top-k"
    for wrong in (
        {"offset": "all"},
        {"max_nonzero": 5},
        {"public_items": 5},
        {"mechanism": "laplace"},
        {"mechanism": "magic"},
        {"noise": "loud"},
    ):
        with pytest.raises(InvalidParameter):
            plan(epsilon=1.0, delta=1e-6, top=10, **wrong)
    with pytest.raises(InvalidParameter):
        plan(epsilon=1.0, delta=1e-6, max_nonzero=10, offset="opposite")


def test_certificate_refuses_a_bound_on_users() -> None:
    noise = plan(epsilon=1.0, delta=1e-5, top=10).noise
    assert isinstance(noise, LatticeNoise)
    with pytest.raises(InvalidParameter, match="does not bound the items"):
        certify_lattice(noise, Contract(10, 3), epsilon=1.0)


@pytest.mark.parametrize("rule", RULES)
def test_law_of_the_released_counts(rule: OffsetRule) -> None:
    """Mean H_i, variance and covariance as planned.

    5,000 runs. Mean and variance are within 6.5 standard errors: false alarm below 1e-9 in all. Power: an offset
    with the wrong sign of the shared noise has twice its variance in the covariance, over 30 standard errors away.
    """
    runs, count, subtracted = 5_000, 5000, 700
    made = plan(epsilon=1.0, delta=1e-4, top=8, offset=rule)
    tap, noise = SeededTap(5), made.noise
    values = np.array(
        [
            begin(made, tap, Cut(subtracted)).release(subtracted + np.array([count, count + 10])).values - [0, 10]
            for _ in range(runs)
        ]
    )
    shared = noise.sigma_shared**2
    planned = noise.sigma**2 + shared * (1 if rule == "opposite" else 2)
    assert planned == pytest.approx(made.total_noise**2)
    assert abs(values[:, 0].mean() - count - subtracted) < 6.5 * math.sqrt(planned / runs)
    assert abs(values[:, 0].var() / planned - 1) < 6.5 * math.sqrt(2 / runs)
    covariance = float(np.cov(values.T)[0, 1])
    expected = planned - noise.sigma**2
    assert abs(covariance - expected) < 6.5 * math.sqrt((planned**2 + expected**2) / runs)
    wrong = expected + 4 * shared
    assert abs(covariance - wrong) > 20 * math.sqrt((planned**2 + wrong**2) / runs)
