"""The oracle for weighted users: exact formulas against brute force from the definition."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

import spread
from scheduling import crossed
from spread import Case, Item, Level, Move

LADDERS = (
    (Level(1, 4), Level(3, 2)),
    (Level(1, 6), Level(2, 4)),
    (Level(2, 4), Level(3, 2)),
    (Level(1, 6), Level(2, 4), Level(3, 2)),
    (Level(3, 2),),
)
ROUNDING = 1e-13


def slack(epsilon: float) -> float:
    """What brute force may be off by."""
    return 4 * (1 + math.exp(epsilon)) * spread.MASS_LEFT_OUT + ROUNDING


@pytest.mark.parametrize("variance", [Fraction(1), Fraction(4), Fraction(13, 2), Fraction(19), Fraction(20)])
def test_masses_of_sums_of_draws_by_convolution_also_far_out(variance: Fraction) -> None:
    with mp.workdps(60):
        v = mpf(variance.numerator) / variance.denominator
        reach = math.isqrt(int(2 * 140 * variance)) + 1
        weights = {x: mp.exp(-(mpf(x) ** 2) / (2 * v)) for x in range(-reach, reach + 1)}
        total = mp.fsum(weights.values())
        law = single = {x: weight / total for x, weight in weights.items()}
        far = math.isqrt(int(40 * variance))
        for draws in (1, 2, 3):
            xs = np.arange(-far, far + 1)
            for x, mass in zip(xs, spread._masses(xs, variance, draws), strict=True):
                assert abs(mpf(str(mass)) / law[int(x)] - 1) < mpf("1e-16")
            law = {
                x: mp.fsum(mass * single[x - y] for y, mass in law.items() if abs(x - y) <= reach)
                for x in range(-far - reach, far + reach + 1)
            }


def test_tails_by_summation() -> None:
    for variance, n in product((Fraction(4), Fraction(50)), (-9, -1, 0, 3, 40)):
        with mp.workdps(40):
            v = mpf(variance.numerator)
            above = mp.fsum(mp.exp(-(mpf(x) ** 2) / (2 * v)) for x in range(n + 1, 400))
            every = mp.fsum(mp.exp(-(mpf(x) ** 2) / (2 * v)) for x in range(-400, 400))
            assert abs(mpf(str(spread.tail(n, variance))) / (above / every) - 1) < mpf("1e-16")


@pytest.mark.parametrize(
    ("levels", "noise", "epsilon"),
    crossed(LADDERS, [(4, 8), (4, 13), (11, 10), (Fraction(61, 2), 20)], [0.0, 0.3, 1.5, 4.0]),
)
def test_brute_force_agrees_without_shared_noise(
    levels: tuple[Level, ...], noise: tuple[Any, int], epsilon: float
) -> None:
    variance, threshold = noise
    v = Fraction(variance)
    exact, case = spread.exact_delta(v, threshold, levels, epsilon)
    brute, *_ = spread.brute_force_delta(
        levels, v, threshold, epsilon, nonzero=levels[-1].items if variance < 30 else 2
    )
    assert brute <= exact + slack(epsilon)
    if variance < 30 or case.level.items <= 2:
        assert brute >= exact - slack(epsilon)
    for items in spread.neighbouring_data(levels, (threshold + 200,), 2):
        both = spread.brute_force_delta_of(items, levels, v, threshold, epsilon)
        new = sum(item.base == 0 for item in items)
        changed = sum(item.touched for item in items) - new
        level = spread.level_of(levels, new + changed)
        for way in spread.DIRECTIONS:
            formula = spread.delta_of_neighbours(Case(level, new, changed, way), v, threshold, epsilon)
            assert abs(both[way] - float(formula)) <= slack(epsilon), (items, way)


@pytest.mark.parametrize(
    ("levels", "epsilon", "variance_shared"), crossed(LADDERS[1:4], [0.2, 1.0], [Fraction(0), Fraction(4)])
)
def test_low_counts_and_fewer_items_are_never_worse(
    levels: tuple[Level, ...], epsilon: float, variance_shared: Fraction
) -> None:
    threshold = levels[0].weight + 5
    given: dict[str, Any] = {"variance_shared": variance_shared}
    worst, *_ = spread.brute_force_delta(levels, Fraction(4), threshold, epsilon, nonzero=2, **given)
    lows = (2, levels[0].weight, threshold - 3, threshold - 1, threshold, threshold + 1, threshold + 4)
    some, *_ = spread.brute_force_delta(
        levels, Fraction(4), threshold, epsilon, nonzero=2, low_bases=lows, **given
    )
    assert worst - slack(epsilon) <= some <= worst + slack(epsilon)
    three, *_ = spread.brute_force_delta(levels, Fraction(4), threshold, epsilon, nonzero=3, **given)
    assert three >= worst - slack(epsilon)
    for level, way in product(levels, spread.DIRECTIONS):
        for new, changed in product(range(level.items + 1), repeat=2):
            if new + changed <= level.items:
                small = spread.delta_of_neighbours(Case(level, new, changed, way), Fraction(4), threshold, epsilon)
                assert any(
                    small <= spread.delta_of_neighbours(larger, Fraction(4), threshold, epsilon) * (1 + 1e-15)
                    for larger in spread.cases_of([level])
                    if larger.direction == way and larger.new >= new and larger.changed >= changed
                )


@pytest.mark.parametrize(("levels", "epsilon"), crossed(LADDERS[:4], [0.1, 1.0]))
def test_with_shared_noise_delta_is_the_mean_over_what_it_may_be(
    levels: tuple[Level, ...], epsilon: float
) -> None:
    variance, own, threshold = Fraction(4), Fraction(8), levels[0].weight + 4
    exact, _ = spread.exact_delta(own, threshold, levels, epsilon, variance_shared=variance)
    draws, chances = spread._box(variance)
    for one in spread.cases_of(levels):
        if one.new + one.changed > 2:
            continue
        items = (*[Item(0, True)] * one.new, *[Item(threshold + 200, True)] * one.changed)
        mean = sum(
            chance * spread.brute_force_delta_of(items, levels, own, threshold - int(w), epsilon)[one.direction]
            for w, chance in zip(draws, chances, strict=True)
        )
        formula = spread.delta_of_neighbours(one, own, threshold, epsilon, variance_shared=variance)
        assert abs(mean - float(formula)) <= 2 * slack(epsilon)
        assert formula <= exact * (1 + 1e-15)
    # A bound on the non-zero counts hides the shared draw: the fewer, the smaller is delta.
    bounded = [
        spread.brute_force_delta(levels, own, threshold, epsilon, nonzero=nonzero, variance_shared=variance)[0]
        for nonzero in (levels[0].items, levels[0].items + 1)
    ]
    assert bounded[0] <= bounded[1] + slack(epsilon)
    assert bounded[1] <= exact + slack(epsilon)


@pytest.mark.parametrize(("base", "threshold"), [(0, 7), (0, 12), (200, 12), (9, 12)])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 2.0])
def test_one_item_with_a_sum(base: int, threshold: int, epsilon: float) -> None:
    variance, own, weight, steps = Fraction(9), Fraction(17, 2), 4, 3
    item = Item(base, True)
    every = {
        (move, way): delta
        for move in range(-steps, steps + 1)
        for way, delta in spread.brute_force_delta_with_sum(
            item, weight, Move(move, own), variance, threshold, epsilon
        ).items()
    }
    for way in spread.DIRECTIONS:
        case = Case(Level(1, weight), int(base == 0), int(base > 0), way)
        formula = spread.delta_of_neighbours(case, variance, threshold, epsilon, sums=[Move(steps, own)])
        worst = max(delta for (_, direction), delta in every.items() if direction == way)
        assert every[steps, way] == pytest.approx(worst, rel=0, abs=slack(epsilon))
        assert every[-steps, way] == pytest.approx(worst, rel=0, abs=slack(epsilon))
        assert worst <= float(formula) + slack(epsilon)
        if base != 9:  # neither a new item nor far above the threshold
            assert worst == pytest.approx(float(formula), rel=0, abs=slack(epsilon))


def test_a_sum_makes_delta_larger_and_a_public_list_has_the_changed_items() -> None:
    levels, variance, sums = LADDERS[3], Fraction(40), [(6, Fraction(50))]
    alone, _ = spread.exact_delta(variance, 30, levels, 0.5)
    beside, _ = spread.exact_delta(variance, 30, levels, 0.5, sums=sums)
    assert beside > alone * 1.01
    high, _ = spread.exact_delta(variance, 400, levels, 0.5, sums=sums)
    assert spread.exact_delta_public(variance, levels, 0.5, sums=sums) == pytest.approx(high, rel=1e-14)


def test_concentrated_divergence_of_a_level_is_below_that_of_the_cap() -> None:
    variance, own, lattice, reach = Fraction(9), Fraction(17, 2), 6, 9
    cap = [Move(lattice, variance), Move(reach, own)]
    for order in (Fraction(3, 2), Fraction(2), Fraction(10, 3), Fraction(7)):
        rho = Fraction(lattice**2) / (2 * variance) + Fraction(reach**2) / (2 * own)
        largest = mpf(rho.numerator) / rho.denominator * order.numerator / order.denominator
        assert spread.renyi_divergence(cap, order) <= largest * (1 + mpf("1e-14"))
        if order.denominator == 1:
            assert abs(spread.renyi_divergence(cap, order) / largest - 1) < mpf("1e-14")
        for items, weight in LADDERS[1][1:]:
            level = [Move(weight, variance), Move(reach * weight // lattice, own)]
            assert items * spread.renyi_divergence(level, order) <= largest * (1 + mpf("1e-14"))


def test_levels_by_number_of_items() -> None:
    levels = (Level(2, 6), Level(5, 4), Level(9, 2))
    weights = [spread.level_of(levels, items).weight for items in range(1, 12)]
    assert weights == [6, 6, 4, 4, 4, 2, 2, 2, 2, 2, 2]
