"""Top-k with its offset: the oracle against definitions and enumeration, the certificate against the oracle."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from functools import cache
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from dphist.errors import InvalidParameter
from dphist.model import Contract, LatticeNoise, OffsetRule
from dphist.planning.planner import plan
from dphist.proof.certify_lattice import certify_lattice
from dphist.proof.sensitivity import squared_sensitivity_top_k
from dphist.releasing.noise import Subtracted, begin
from dphist.sampling.rng import SeededRng
from oracles_discrete import infinite_event_discrete as oracle_infinite_event
from oracles_top_k import (
    RULES,
    NeighbourType,
    Output,
    Rule,
    claimed_types,
    delta_exact,
    delta_multiprecision,
    discrete_gaussian,
    gaussian_delta,
    gaussian_sensitivity_squared,
    hockey_stick,
    neighbour_type,
    neighbour_types,
    release,
    release_law,
    top_k,
    worst_case,
    worst_delta,
)
from scheduling import crossed

FAR = 10_000  # a limit that no noise passes
COARSE = 1e-9  # mass of each draw that an enumeration may leave out


# The oracle: neighbours.


def test_top_k_of_an_example() -> None:
    assert top_k([5, 3, 3, 9, 0], 2) == ((2, 0, 0, 6, 0), 3)
    assert top_k([5, 3], 2) == ((5, 3), 0)
    assert top_k([], 1) == ((), 0)


@pytest.mark.parametrize(
    ("k", "items", "most"),
    [
        (2, 4, 4),
        (1, 2, 2),
        (2, 3, 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 4, 4), (3, 4, 4), (4, 5, 2))),
    ],
)
def test_the_neighbours_are_all_that_are_claimed_and_no_others(k: int, items: int, most: int) -> None:
    assert neighbour_types(k, items, most) == claimed_types(k)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_without_a_further_item_the_offset_stays_zero(k: int) -> None:
    assert neighbour_types(k, k, 3) == {kind for kind in claimed_types(k) if kind.offset_change == 0}


# The oracle: noise.


@pytest.mark.parametrize("variance", [Fraction(1, 2), Fraction(1), Fraction(16), Fraction(125, 7)])
def test_the_noise_is_a_discrete_gaussian(variance: Fraction) -> None:
    law = discrete_gaussian(variance)
    assert (law == law[::-1]).all()
    assert 1 - 3e-15 <= math.fsum(law.tolist()) <= 1 + 1e-15
    radius = (law.size - 1) // 2
    normaliser = mp.jtheta(3, 0, mp.exp(-mpf(variance.denominator) / (2 * variance.numerator)))
    for x in range(radius + 1):
        expected = mp.exp(-mpf(x * x) * variance.denominator / (2 * variance.numerator)) / normaliser
        assert law[radius + x] == pytest.approx(float(expected), rel=1e-14)


# The oracle: exact delta.


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        pytest.param(kind, noise, marks=() if n % 17 == 0 else pytest.mark.slow)
        for n, (kind, noise) in enumerate(
            itertools.product(
                sorted(kind for kind in claimed_types(2) if kind.shared <= 1), itertools.product(RULES, (1, 3))
            )
        )
    ],
)
def test_against_multiprecision(kind: NeighbourType, noise: tuple[Rule, int]) -> None:
    rule, gamma = noise
    exact = delta_exact(kind, 2, 3, gamma, 5, rule, 0.75)
    larger, smaller = delta_multiprecision(kind, 2, 3, gamma, 5, rule, 0.75, tail=1e-17)
    assert exact.error < 1e-12
    assert abs(exact.larger - larger) < exact.error
    assert abs(exact.smaller - smaller) < exact.error


@pytest.mark.parametrize("rule", RULES)
def test_the_sums_are_sufficient(rule: Rule) -> None:
    for kind in sorted(claimed_types(2)):
        direct = delta_exact(kind, 2, Fraction(25, 2), 2, 9, rule, 0.5)
        reduced = delta_exact(kind, 2, Fraction(25, 2), 2, 9, rule, 0.5, "reduced")
        assert direct.larger == pytest.approx(reduced.larger, abs=direct.error + reduced.error), kind
        assert direct.smaller == pytest.approx(reduced.smaller, abs=direct.error + reduced.error), kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NeighbourType(3, 1, 0, 1), NeighbourType(3, 2, 1, 0)])
def test_the_sums_are_sufficient_for_three_entries(kind: NeighbourType) -> None:
    direct = delta_exact(kind, 2, 4, 2, 7, "opposite", 1.0)
    reduced = delta_exact(kind, 2, 4, 2, 7, "opposite", 1.0, "reduced")
    assert direct.larger == pytest.approx(reduced.larger, abs=1e-12)
    assert direct.smaller == pytest.approx(reduced.smaller, abs=1e-12)


@cache
def law_of(
    histogram: tuple[int, ...], k: int, b: int, V: Fraction, gamma: int, limit: int, rule: Rule
) -> dict[Output, float]:
    return release_law(histogram, k, b, V, gamma, limit, rule, COARSE)


# The pairs (without the user, with the user), k, and the type of the pair; 50 always passes the threshold.
PAIRS = [
    ((50, 0), (51, 0), 1, NeighbourType(1, 1, 0, 0)),
    ((50, 3), (50, 4), 1, NeighbourType(1, 1, 0, 1)),
    ((50, 3), (51, 4), 1, NeighbourType(1, 0, 0, 1)),
    ((4, 4), (5, 5), 1, NeighbourType(0, 0, 0, 1)),
    ((4, 4), (5, 4), 1, NeighbourType(0, 0, 1, 0)),
    ((5, 4), (5, 5), 1, NeighbourType(0, 0, 1, 1)),
    ((50, 0, 0), (51, 1, 0), 2, NeighbourType(1, 1, 1, 0)),
    ((50, 2, 1), (50, 2, 2), 2, NeighbourType(1, 1, 1, 1)),
    ((50, 2, 1), (51, 2, 2), 2, NeighbourType(1, 0, 1, 1)),
    ((2, 2, 1), (2, 2, 2), 2, NeighbourType(0, 0, 2, 1)),
    ((50, 60, 1), (51, 60, 1), 2, NeighbourType(2, 1, 0, 0)),
    ((50, 60, 1), (51, 60, 2), 2, NeighbourType(2, 1, 0, 1)),
    ((50, 60, 1), (50, 60, 2), 2, NeighbourType(2, 2, 0, 1)),
]


@pytest.mark.parametrize("rule", RULES)
def test_against_the_mechanism_run_on_all_noise(rule: Rule) -> None:
    b, V, gamma, limit, epsilon = 2, Fraction(3, 4), 2, 2, 0.5
    for without, with_user, k, kind in PAIRS:
        assert neighbour_type(without, with_user, k) == kind
        less, more = (law_of(histogram, k, b, V, gamma, limit, rule) for histogram in (without, with_user))
        larger, smaller = (less, more) if kind.offset_change else (more, less)
        exact = delta_exact(kind, b, V, gamma, limit, rule, epsilon)
        assert hockey_stick(larger, smaller, epsilon) == pytest.approx(exact.larger, abs=20 * COARSE), kind
        assert hockey_stick(smaller, larger, epsilon) == pytest.approx(exact.smaller, abs=20 * COARSE), kind


@pytest.mark.parametrize(
    ("noise", "rule"), crossed([(2, 1, 1, 3), (1, Fraction(1, 2), 2, 1), (2, 1, 2, -1)], RULES)
)
def test_no_small_dataset_is_worse_than_the_worst_case(noise: tuple[Any, ...], rule: Rule) -> None:
    b, V, gamma, limit = noise
    epsilon, bound, attained = 0.5, worst_delta(1, b, V, gamma, limit, rule, 0.5), 0.0
    for before in itertools.product((0, 1, 2, 3, 50), repeat=2):
        for user in itertools.product((0, 1), repeat=2):
            after = (before[0] + user[0], before[1] + user[1])
            p, q = (law_of(histogram, 1, b, Fraction(V), gamma, limit, rule) for histogram in (before, after))
            attained = max(attained, hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))
    assert attained <= bound + 20 * COARSE
    assert attained == pytest.approx(bound, abs=20 * COARSE), "large counts attain the worst case"


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_against_a_simulation(rule: Rule) -> None:
    """The probabilities of the best event, estimated from random noise, give delta."""
    b, V, gamma, limit, epsilon, k, runs = 2, Fraction(4), 2, 5, 0.5, 2, 40_000
    without, with_user = (50, 2, 1), (50, 2, 2)  # both positive entries fall, one of them vanishes
    kind = neighbour_type(without, with_user, k)
    assert kind == (1, 1, 1, 1)
    random = np.random.default_rng(20240607)
    own, shared = discrete_gaussian(V), discrete_gaussian(V / gamma)

    def draw(law: np.ndarray[tuple[int], np.dtype[np.float64]], size: int) -> list[int]:
        radius = (law.size - 1) // 2
        values: list[int] = random.choice(np.arange(-radius, radius + 1), size, p=law / law.sum()).tolist()
        return values

    def outputs(histogram: tuple[int, ...]) -> list[Output]:
        positive = sum(count > 0 for count in top_k(histogram, k)[0])
        z = [draw(own, runs) for _ in range(positive)]
        w, z_c = draw(shared, runs), draw(shared, runs)
        return [release(histogram, k, b, limit, rule, [x[i] for x in z], w[i], z_c[i]) for i in range(runs)]

    law_larger = release_law(without, k, b, V, gamma, limit, rule, 1e-3)
    law_smaller = release_law(with_user, k, b, V, gamma, limit, rule, 1e-3)
    factor = math.exp(epsilon)
    event = {output for output, mass in law_larger.items() if mass > factor * law_smaller.get(output, 0.0)}
    difference = sum(output in event for output in outputs(without)) / runs
    difference -= factor * sum(output in event for output in outputs(with_user)) / runs
    deviation = (1 + factor) / (2 * math.sqrt(runs))
    assert abs(difference - delta_exact(kind, b, V, gamma, limit, rule, epsilon).larger) < 3 * deviation + 0.01


@pytest.mark.parametrize(("b", "V", "epsilon"), [(2, 16, 0.5), (2, 36, 1.0), (4, Fraction(99, 2), 0.3)])
def test_the_offset_alone_is_a_discrete_gaussian_mechanism(b: int, V: Fraction | int, epsilon: float) -> None:
    """Pr[x > epsilon V/b - b/2] - e^epsilon Pr[x > epsilon V/b + b/2], of Canonne, Kamath and Steinke."""
    law = discrete_gaussian(Fraction(V))
    x = np.arange(law.size) - (law.size - 1) // 2
    middle = epsilon * float(V) / b
    expected = law[x > middle - b / 2].sum() - math.exp(epsilon) * law[x > middle + b / 2].sum()
    exact = delta_exact(NeighbourType(0, 0, 0, 1), b, V, 1, 0, "independent", epsilon)
    assert exact.larger == pytest.approx(expected, abs=1e-13)
    assert exact.smaller == pytest.approx(expected, abs=1e-13)


def test_a_single_entry_is_released_or_not() -> None:
    own, shared = discrete_gaussian(Fraction(16)), discrete_gaussian(Fraction(8))
    total = np.convolve(own, shared)
    seen = total[np.arange(total.size) - (total.size - 1) // 2 > 12].sum()
    exact = delta_exact(NeighbourType(0, 0, 1, 0), 2, 16, 2, 12, "none", 1.0)
    assert exact.larger == pytest.approx(seen, abs=1e-13)
    assert exact.smaller == 0


@pytest.mark.parametrize("rule", RULES)
def test_extreme_limits(rule: Rule) -> None:
    seen = delta_exact(NeighbourType(1, 0, 1, 0), 2, 5, 1, -FAR, rule, 1.0)
    assert seen.larger == pytest.approx(1, abs=1e-13)
    assert seen.smaller == pytest.approx(1, abs=1e-13)
    with_single = delta_exact(NeighbourType(1, 1, 2, 1), 2, 5, 1, FAR, rule, 1.0)
    without = delta_exact(NeighbourType(1, 1, 0, 1), 2, 5, 1, FAR, rule, 1.0)
    assert with_single[:2] == without[:2]


@pytest.mark.parametrize("rule", RULES)
def test_without_single_entries_the_directions_agree(rule: Rule) -> None:
    for kind in sorted(kind for kind in claimed_types(2) if kind.single == 0):
        exact = delta_exact(kind, 2, 10, 2, 0, rule, 0.5)
        assert exact.larger == pytest.approx(exact.smaller, abs=1e-13), kind


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [NeighbourType(1, 1, 1, 1), NeighbourType(1, 0, 1, 0), NeighbourType(0, 0, 2, 1)])
def test_monotonicity(kind: NeighbourType, rule: Rule) -> None:
    """A larger epsilon, a higher limit and less to look at never increase delta."""
    slack = 1e-12
    for less, more in itertools.pairwise([0.0, 0.25, 0.5, 1.0, 2.0]):
        one, two = (delta_exact(kind, 2, 9, 2, 8, rule, epsilon) for epsilon in (less, more))
        assert two.larger <= one.larger + slack
        assert two.smaller <= one.smaller + slack
    for low, high in itertools.pairwise([-5, 0, 4, 8, 12, 16]):
        one, two = (delta_exact(kind, 2, 9, 2, limit, rule, 0.5) for limit in (low, high))
        assert two.larger <= one.larger + slack
        assert two.smaller <= one.smaller + slack
    for limit in (0, 8):
        one, two = (delta_exact(kind, 2, 9, 2, limit, which, 0.5) for which in (rule, RULES[0]))
        assert two.larger <= one.larger + slack
        assert two.smaller <= one.smaller + slack


@pytest.mark.parametrize("rule", RULES)
def test_the_worst_case_names_its_type(rule: Rule) -> None:
    worst = worst_case(2, 2, 16, 2, 16, rule, 1.0)
    deltas = [delta_exact(kind, 2, 16, 2, 16, rule, 1.0) for kind in claimed_types(2)]
    assert worst.delta == max(exact.worst for exact in deltas)
    assert worst.delta == getattr(delta_exact(worst.kind, 2, 16, 2, 16, rule, 1.0), worst.direction)
    assert worst.error < 1e-12


# The oracle: the continuous limit.


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("sigma", "shared", "c"), [(1, 1, 1), (2.5, 1.25, 1.25), (3, 0.5, 2), (1.5, 4, 0.25)])
def test_the_distance_has_a_closed_form(sigma: float, shared: float, c: float, rule: Rule) -> None:
    """By Sherman and Morrison, (D + a u u^T)^-1 = D^-1 - a D^-1 u u^T D^-1/(1 + a u^T D^-1 u)."""
    for j, s, change in itertools.product(range(5), range(5), (0, -1)):
        if s > j:
            continue
        sign = {"none": 0, "opposite": -1, "independent": 0}[rule]
        visible = change if rule != "none" else 0
        plain = s / sigma**2 + visible**2 / c**2
        inner = s / sigma**2 + sign * visible / c**2
        length = j / sigma**2 + sign**2 / c**2
        expected = plain - shared**2 * inner**2 / (1 + shared**2 * length)
        distance = gaussian_sensitivity_squared(j, s, change, sigma, shared, c, rule)
        assert float(distance) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_known_gaussian_deltas() -> None:
    assert gaussian_delta(1, 0) == pytest.approx(0.38292492254802624)  # 2 Phi(1/2) - 1
    assert gaussian_delta(1, 1) == pytest.approx(0.12693673750664400)  # Phi(-1/2) - e Phi(-3/2)
    assert gaussian_delta(0, 1) == 0


@pytest.mark.parametrize(
    ("kind", "rule"), crossed([(1, 1, 0, 1), (1, 1, 0, 0), (2, 1, 0, 1), (2, 2, 0, 1)], RULES)
)
def test_fine_noise_tends_to_the_gaussian(kind: tuple[int, int, int, int], rule: Rule) -> None:
    j, s, _, change = kind
    sigma, gamma, epsilon = 1.5, 2, 0.5
    shared = sigma / math.sqrt(gamma)
    distance = mp.sqrt(gaussian_sensitivity_squared(j, s, -change, sigma, shared, shared, rule))
    limit = float(gaussian_delta(distance, epsilon))
    for b, tolerance in ((2, 0.02), (6, 0.002)):
        V = Fraction(9, 4) * b * b
        exact = delta_exact(NeighbourType(*kind), b, V, gamma, FAR, rule, epsilon, "reduced")
        assert exact.larger == pytest.approx(limit, abs=tolerance)


# The certificate and the mechanism.

WITH_OFFSET: tuple[OffsetRule, ...] = ("opposite", "independent")
GRID = list(product((1, 2), (16, 60), (1, 2, 4), (12, 30), (0.2, 0.5, 1.0)))


def certified(k: int, v: int, gamma: int, limit: int, epsilon: float, rule: OffsetRule) -> float:
    noise = LatticeNoise(2, Fraction(v), Fraction(v, gamma), limit, rule)
    return certify_lattice(noise, Contract(k), epsilon=epsilon).delta


@pytest.mark.parametrize("rule", WITH_OFFSET)
@pytest.mark.parametrize(
    "cases",
    [[GRID[n] for n in (0, 35, 62)], pytest.param(GRID, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_certificate_is_never_below_the_exact_delta(rule: OffsetRule, cases: list[Any]) -> None:
    excess = []
    for k, v, gamma, limit, epsilon in cases:
        exact = worst_case(k, 2, Fraction(v), gamma, limit, rule, epsilon)
        bound = certified(k, v, gamma, limit, epsilon, rule)
        assert bound >= exact.delta - exact.error
        excess.append(bound / exact.delta)
    # The certificate adds both parts, and half a count is not the best offset for very few counts.
    assert np.median(excess) < 1.06
    assert max(excess) < 1.7


def test_the_pure_cases_alone_would_be_too_low() -> None:
    """Why the certificate includes mixed cases: here all counts are new AND the offset moves."""
    k, v, gamma, limit, epsilon = 1, 36, 1, 20, 0.5
    exact = worst_case(k, 2, Fraction(v), gamma, limit, "opposite", epsilon).delta
    new_alone = 0.007817051673995233
    assert exact > new_alone * 1.04
    assert certified(k, v, gamma, limit, epsilon, "opposite") >= exact


@pytest.mark.parametrize(("v", "gamma"), [(4, 1), (Fraction(26, 3), 2)])
@pytest.mark.parametrize("limit", [0, 9])
@pytest.mark.parametrize("new", [1, 3])
def test_a_larger_offset_makes_passing_less_likely(v: Fraction | int, gamma: int, limit: int, new: int) -> None:
    """The proof in docs/theory/top-k.md for no shared entry uses that Pr[none passes | c~] increases in c~.

    All sums are from the definition. With the opposite offset, Z_c - W, that probability increases strictly, and
    the probability of passing if c is larger by one (two steps) is below P_r. With an offset of the same sign, Z_c
    + W, both are the other way round, so the test depends on the sign.
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
            # Far out g is 0 or 1 to all digits.
            steps = [given[t + 1] - given[t] for t in range(-far // 2, far // 2)]
            assert all(step > 0 for step in steps) if sign < 0 else all(step < 0 for step in steps)
            total = mp.fsum(law.values())
            passes = [mp.fsum(law[t] * (1 - given[t + b]) for t in range(-far, far + 1)) / total for b in (0, 2)]
            assert abs(passes[0] - event) < mpf("1e-12")
            assert passes[1] < 0.99 * event if sign < 0 else passes[1] > 1.01 * event


@pytest.mark.parametrize("kind", [NeighbourType(0, 0, 1, 1), NeighbourType(0, 0, 2, 1), NeighbourType(1, 1, 1, 1)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_the_sum_bound_holds_in_both_directions(kind: NeighbourType, epsilon: float) -> None:
    """delta <= P_r + the divergence without new entries, in each direction."""
    b, variance, gamma, limit = 2, Fraction(16), 2, 14
    alone = delta_exact(kind._replace(single=0), b, variance, gamma, limit, "opposite", epsilon).worst
    event = float(
        oracle_infinite_event(count=kind.single, variance=variance, variance_shared=variance / gamma, limit=limit)
    )
    exact = delta_exact(kind, b, variance, gamma, limit, "opposite", epsilon)
    assert exact.larger <= event + alone + exact.error
    assert exact.smaller <= event + alone + exact.error
    assert max(exact.larger, exact.smaller) > alone


@pytest.mark.parametrize("rule", ["none", *WITH_OFFSET])
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
    ours, paper = (plan(epsilon=0.35, delta=1e-5, top=k, offset=rule) for rule in WITH_OFFSET)
    assert ours.proof.delta <= 1e-5
    assert ours.total_noise / paper.total_noise <= noise
    assert ours.tau / paper.tau <= threshold


def test_plan_for_top_k() -> None:
    made = plan(epsilon=1.0, delta=1e-6, top=100)
    assert (made.mechanism, made.contract.max_nonzero) == ("top-k", 100)
    assert plan(epsilon=1.0, delta=1e-6, top=100, offset="none").mechanism == "csh"
    # A bound on users far below k is better alone; one near k does not help the top-k step.
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


@pytest.mark.parametrize("rule", ["opposite", pytest.param("independent", marks=pytest.mark.slow)])
def test_law_of_the_released_counts(rule: OffsetRule) -> None:
    """Mean H_i, variance and covariance as planned.

    5,000 runs, 6.5 standard errors: false alarm below 1e-9 in all. Power: an offset with the wrong sign of the
    shared noise has twice its variance in the covariance, over 30 standard errors away.
    """
    runs, count, subtracted = 5_000, 5000, 700
    made = plan(epsilon=1.0, delta=1e-4, top=8, offset=rule)
    rng, noise = SeededRng(5), made.noise
    values = np.array(
        [
            begin(made, rng, Subtracted(subtracted)).release(subtracted + np.array([count, count + 10])).values
            - [0, 10]
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
