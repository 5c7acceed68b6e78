"""The oracle of counts above the (K+1)-th largest, against literal enumeration and against closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from typing import TypeAlias, TypeVar

import numpy as np
import pytest

import oracles_top_k_users as oracle
from oracles import delta_gaussian
from oracles_discrete import delta_discrete_case, delta_discrete_shift, infinite_event_discrete
from oracles_top_k_users import Direction, Histogram, Noise, Offset, Pattern, Variance

DIRECTIONS: tuple[Direction, Direction] = ("add", "remove")
OFFSETS: tuple[Offset, ...] = ("opposite", "independent", "none")
FAR = 30
SMALL = Noise(2, Fraction(1, 2), Fraction(1, 3), Fraction(3, 4), 2, "opposite")
SMALLER = Noise(1, Fraction(1, 4), Fraction(1, 6), Fraction(3, 8), 1, "opposite")
"""Noise of so few values that all outputs can be listed."""
MIDDLE = Noise(3, 9, 4, Fraction(27, 2), 11, "opposite")

# Which pairs of neighbours there are.


def expected_patterns(k: int, m: int | None) -> Iterator[Pattern]:
    """Counted by hand, with j items that the user lifts to the new c when it moves.

    c stays: the user has all items that rise or appear. c moves: K + 1 items reach the new c, the shared and the
    vanishing ones among them, so that j is at least K + 1 minus their number; the user has these j >= 1 items and
    all shared items that stay.
    """
    limit = 2 * k + 1 if m is None else m
    for a, b, n in itertools.product(range(k + 1), repeat=3):
        if a + b + n <= k:
            if a + n <= limit:
                yield Pattern(up=a, stay=b, appear=n)
            if a + (k + 1 - a - b - n) <= limit:
                yield Pattern(stay=a, down=b, vanish=n, offset=1)


@pytest.mark.parametrize(
    ("k", "m"), [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3), (2, None), (3, 1), (3, 2), (3, None)]
)
def test_the_patterns_of_all_small_histograms(k: int, m: int | None) -> None:
    found = oracle.patterns(k, m)
    assert found == set(expected_patterns(k, m))
    assert found == oracle.patterns(k, m, far_only=True)


def test_more_items_have_no_other_patterns() -> None:
    for k, m in ((1, 1), (1, None), (2, 1), (2, 2), (2, None)):
        assert oracle.patterns(k, m) == oracle.patterns(k, m, k + 4)


# Every output of the mechanism, for every pair of small histograms.


@cache
def draws(variance: Variance) -> tuple[tuple[int, float], ...]:
    """The values with a weight above 1e-17 of the largest, and their probabilities."""
    weights = [(x, math.exp(-x * x / (2 * float(variance)))) for x in range(-60, 61)]
    total = math.fsum(weight for _, weight in weights)
    return tuple((x, weight / total) for x, weight in weights if weight > 1e-17)


Output: TypeAlias = tuple[int | None, tuple[tuple[int, int], ...]]
Shown = TypeVar("Shown")


@cache
def outputs(counts: Histogram, k: int, noise: Noise) -> dict[Output, float]:
    """The probability of every output: the definition, one combination of draws after the other."""
    cut = sorted([*counts, *[0] * (k + 1)], reverse=True)[k]
    excess = {item: count - cut for item, count in enumerate(counts) if count > cut}
    assert len(excess) <= k
    offset_draws = draws(noise.variance_offset) if noise.offset != "none" else ((0, 1.0),)
    law: dict[Output, float] = {}
    for w, of_w in draws(noise.variance_shared):
        for zs in itertools.product(draws(noise.variance), repeat=len(excess)):
            noisy = [
                (item, noise.lattice * h + z + w) for (item, h), (z, _) in zip(excess.items(), zs, strict=True)
            ]
            shown = tuple((item, y) for item, y in noisy if y > noise.lattice + noise.limit)
            mass = of_w * math.prod(of_z for _, of_z in zs)
            for z, of_z in offset_draws:
                published = noise.lattice * cut + z - (w if noise.offset == "opposite" else 0)
                output = (None if noise.offset == "none" else published, shown)
                law[output] = law.get(output, 0.0) + mass * of_z
    return law


def literal_divergence(p: dict[Shown, float], q: dict[Shown, float], epsilon: float) -> float:
    return math.fsum(max(mass - math.exp(epsilon) * q.get(output, 0.0), 0.0) for output, mass in p.items())


def literal_divergences(
    before: Histogram, after: Histogram, k: int, noise: Noise, epsilon: float
) -> dict[Direction, float]:
    p, q = outputs(after, k, noise), outputs(before, k, noise)
    return {"add": literal_divergence(p, q, epsilon), "remove": literal_divergence(q, p, epsilon)}


@pytest.mark.parametrize(
    ("k", "m", "counts", "noise"),
    [
        (1, 1, (0, 1, 2, 3, FAR), SMALL),
        (1, None, (0, 1, 2, 3, FAR), SMALL),
        (1, None, (0, 1, 2, FAR), SMALL._replace(offset="independent")),
        (2, 1, (0, 1, 2, FAR), SMALL._replace(offset="none")),
        (2, None, (0, 1, 2, FAR), SMALL._replace(offset="none")),
        (2, 1, (0, 1, FAR), SMALLER),
        (2, 2, (0, 1, FAR), SMALLER),
        (2, None, (0, 1, FAR), SMALLER),
    ],
)
def test_the_delta_is_the_largest_of_all_pairs_of_small_histograms(
    k: int, m: int | None, counts: tuple[int, ...], noise: Noise
) -> None:
    epsilon = 0.7
    worst = oracle.exact_delta(k=k, m=m, epsilon=epsilon, **noise._asdict())
    every = []
    for before in oracle.histograms(k + 2, counts):
        for after in oracle.neighbours(before, m):
            pattern = oracle.pattern_of(before, after, k)
            exact = oracle.divergences(pattern, noise, epsilon)
            literal = literal_divergences(before, after, k, noise, epsilon)
            for direction in DIRECTIONS:
                assert literal[direction] <= exact[direction].delta + 1e-13  # equal if the shared counts are far
                every.append(literal[direction])
    assert max(every) == pytest.approx(worst.delta, rel=0, abs=1e-13)


def far_pair(pattern: Pattern, k: int) -> tuple[Histogram, Histogram]:
    """Neighbours with this pattern whose shared counts are far above the threshold."""
    for before in oracle.histograms(k + 2, (0, 1, 2, FAR)):
        for after in oracle.neighbours(before, None):
            near = any(
                0 < old < FAR // 2 and new > 0
                for old, new in zip(oracle.heights_of(before, k), oracle.heights_of(after, k), strict=True)
            )
            if oracle.pattern_of(before, after, k) == pattern and not near:
                return before, after
    raise AssertionError(f"no neighbours have {pattern}")


@pytest.mark.parametrize("offset", OFFSETS)
def test_every_pattern_of_two_items_against_every_output(offset: Offset) -> None:
    noise, epsilon = SMALL._replace(offset=offset, lattice=1, limit=1), 0.4
    for pattern in oracle.largest(oracle.patterns(2, None)):
        literal = literal_divergences(*far_pair(pattern, 2), 2, noise, epsilon)
        exact = oracle.divergences(pattern, noise, epsilon)
        for direction in DIRECTIONS:
            assert exact[direction].delta == pytest.approx(literal[direction], rel=0, abs=1e-13)


def with_sums(law: dict[Output, float], noise: Noise, moved: dict[int, int]) -> dict[tuple[Output, object], float]:
    """The same outputs with the sums of each shown item, which are 0 or `moved` in steps."""
    joint: dict[tuple[Output, object], float] = {}
    laws = [draws(variance) for _, variance in noise.sums]
    for output, mass in law.items():
        for of_items in itertools.product(itertools.product(*laws), repeat=len(output[1])):
            noisy = tuple(
                tuple(moved.get(item, 0) + z for z, _ in one)
                for (item, _), one in zip(output[1], of_items, strict=True)
            )
            share = math.prod(of_z for one in of_items for _, of_z in one)
            joint[output, noisy] = joint.get((output, noisy), 0.0) + mass * share
    return joint


@pytest.mark.parametrize(
    ("k", "pattern", "offset"),
    [
        *((1, Pattern(up=1), rule) for rule in OFFSETS),
        (1, Pattern(stay=1, offset=1), "opposite"),
        (1, Pattern(vanish=1, offset=1), "opposite"),
        (2, Pattern(up=1, stay=1), "none"),
        (2, Pattern(stay=1, down=1, offset=1), "none"),
        (2, Pattern(up=1, appear=1), "none"),
    ],
)
def test_patterns_with_sums_against_every_output(k: int, pattern: Pattern, offset: Offset) -> None:
    """The sums move by at most 2 steps, in either direction."""
    noise, epsilon = SMALLER._replace(offset=offset, sums=((2, Fraction(1, 4)),)), 0.4
    before, after = far_pair(pattern, k)
    items = [item for item, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
    exact = oracle.divergences(pattern, noise, epsilon)
    old = with_sums(outputs(before, k, noise), noise, {})
    literal: dict[Direction, list[float]] = {"add": [], "remove": []}
    for move in (2, 1, -2):
        new = with_sums(outputs(after, k, noise), noise, dict.fromkeys(items, move))
        literal["add"].append(literal_divergence(new, old, epsilon))
        literal["remove"].append(literal_divergence(old, new, epsilon))
    for direction in DIRECTIONS:
        assert max(literal[direction]) == pytest.approx(exact[direction].delta, rel=0, abs=1e-13)


# One pattern at a time.


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_one_item_without_shared_noise_is_a_shift(epsilon: float) -> None:
    noise = Noise(4, Fraction(55, 2), 0, 1, 100, "none")
    worst = oracle.exact_delta(k=1, m=1, epsilon=epsilon, **noise._asdict())
    exact = float(delta_discrete_shift(variance=Fraction(55, 2), shift=4, epsilon=epsilon))
    assert abs(worst.delta - exact) <= worst.error < 1e-12
    assert worst.pattern in (Pattern(up=1), Pattern(down=1, offset=1))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("limit", [-5, 6, 20])
def test_new_items_alone(count: int, limit: int) -> None:
    noise, epsilon = MIDDLE._replace(limit=limit, offset="none"), 0.2
    event = infinite_event_discrete(count=count, variance=9, variance_shared=4, limit=limit)
    found = oracle.divergences(Pattern(appear=count), noise, epsilon)
    assert abs(found["add"].delta - float(event)) <= found["add"].error
    hidden = max(float(1 - math.exp(epsilon) * (1 - event)), 0)
    assert abs(found["remove"].delta - hidden) <= found["remove"].error
    mirrored = oracle.divergences(Pattern(vanish=count, offset=1), noise, epsilon)
    assert mirrored["remove"] == found["add"]
    assert mirrored["add"] == found["remove"]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("up", "stay", "appear"), [(1, 0, 0), (2, 1, 0), (1, 1, 1), (0, 2, 1), (1, 0, 2)])
def test_the_released_items_against_the_oracle_of_one_group(
    up: int, stay: int, appear: int, direction: Direction
) -> None:
    found = oracle.divergences(Pattern(up=up, stay=stay, appear=appear), MIDDLE._replace(offset="none"), 0.5)
    exact = delta_discrete_case(
        j=up + stay,
        r=appear,
        s=up,
        lattice=3,
        variance=9,
        variance_shared=4,
        limit=11,
        epsilon=0.5,
        direction=direction,
    )
    assert abs(found[direction].delta - float(exact)) <= found[direction].error


@pytest.mark.parametrize("offset", ["opposite", "independent"])
def test_the_offset_alone(offset: Offset) -> None:
    epsilon, noise = 0.5, MIDDLE._replace(offset=offset)
    found = oracle.divergences(Pattern(offset=1), noise, epsilon)["add"].delta
    if offset == "independent":
        exact = float(delta_discrete_shift(variance=noise.variance_offset, shift=3, epsilon=epsilon))
    else:  # the law of Z_c - W, summed out here
        own, shared = ([mass for _, mass in draws(v)] for v in (noise.variance_offset, noise.variance_shared))
        law = np.concatenate((np.zeros(3), np.convolve(own, shared)))
        exact = float(np.maximum(law - math.exp(epsilon) * np.roll(law, -3), 0).sum())
    assert found == pytest.approx(exact, rel=0, abs=1e-13)


def test_an_opposite_offset_with_the_variance_of_a_count_is_one_more_item() -> None:
    noise = MIDDLE._replace(variance_offset=9)
    for pattern, like in (
        (Pattern(stay=1, down=1, offset=1), Pattern(stay=1, down=2)),
        (Pattern(down=1, vanish=1, offset=1), Pattern(down=2, vanish=1)),
        (Pattern(up=1, appear=1), Pattern(up=1, stay=1, appear=1)),
    ):
        ours = oracle.divergences(pattern, noise, 0.3)
        theirs = oracle.divergences(like, noise._replace(offset="none"), 0.3)
        for direction in DIRECTIONS:
            assert abs(ours[direction].delta - theirs[direction].delta) <= ours[direction].error * 2


def test_joining_the_offset_to_the_items_that_move_alike_changes_nothing() -> None:
    for pattern in oracle.largest(oracle.patterns(2, None)):
        joined = oracle.divergences(pattern, MIDDLE, 0.3)
        apart = oracle.divergences(pattern, MIDDLE, 0.3, join=False)
        for direction in DIRECTIONS:
            assert abs(joined[direction].delta - apart[direction].delta) <= 2 * apart[direction].error


def test_a_pattern_below_another_has_a_smaller_divergence() -> None:
    every = {p: oracle.divergences(p, SMALL, 0.3) for p in oracle.patterns(2, None)}
    for low, high in itertools.permutations(every, 2):
        if low.below(high):
            for direction in DIRECTIONS:
                assert every[low][direction].delta <= every[high][direction].delta + 1e-14


def test_everything_down_is_a_shift_of_the_shared_noise_seen_through_the_rest() -> None:
    """All y_i down and an opposite offset up is W down: as bad as showing W if there is no other noise."""
    shift = float(delta_discrete_shift(variance=40, shift=3, epsilon=0.5))
    pattern, noise = Pattern(down=2, offset=1), Noise(3, 20, 40, 30, 20, "opposite")
    assert oracle.divergences(pattern, noise, 0.5)["add"].delta < 0.99 * shift
    clear = oracle.divergences(pattern, noise._replace(variance=0, variance_offset=0), 0.5)["add"]
    assert abs(clear.delta - shift) <= clear.error


@pytest.mark.parametrize(("up", "stay"), [(1, 2), (2, 1), (3, 0)])
def test_many_steps_approach_the_normal_law(up: int, stay: int) -> None:
    """The covariance is V I + V_W 11^T over up + stay items and the offset: mu^2 by Sherman and Morrison."""
    b, v, shared, columns = 6, 60, 45, up + stay + 1
    mu_squared = b**2 / v * (up - up**2 * shared / (v + columns * shared))
    found = oracle.divergences(Pattern(up=up, stay=stay), Noise(b, v, shared, v, 10**6, "opposite"), 0.5)
    normal = float(delta_gaussian(sensitivity=math.sqrt(mu_squared), sigma=1, epsilon=0.5))
    assert found["add"].delta == pytest.approx(normal, rel=2e-3)
    assert found["remove"].delta == pytest.approx(normal, rel=2e-3)
