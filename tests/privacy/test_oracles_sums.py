"""The oracle for counts and sums against the mechanism run on all noise, and against the oracle without sums."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import NamedTuple

import pytest

from oracles_sums import Case, Mechanism, Values, cases, deltas, extreme, worst_case
from oracles_sums_law import Output, divergence, release_law
from oracles_top_k import NeighbourType, claimed_types, delta_exact

HALF = Fraction(1, 2)
COARSE = 1e-5
"""What each draw may miss where all draws are enumerated."""
SLACK = 40 * COARSE

Law = dict[Output, float]


class Pair(NamedTuple):
    """A histogram, the values of a further user by item, and the case that this is for k."""

    before: tuple[int, ...]
    user: dict[int, tuple[int, ...]]
    k: int
    case: Case
    values: Values


# 50 always passes the threshold. The values are those of the items in both worlds that the user has.
PLAIN = [
    Pair((50,), {0: (2,)}, 1, Case(1, 1, 0), ((2,),)),
    Pair((50, 0), {0: (-1,), 1: (2,)}, 2, Case(1, 1, 1), ((-1,),)),
    Pair((50, 60), {1: (2,)}, 2, Case(2, 1, 0), ((2,),)),
    Pair((50, 60), {0: (2,), 1: (-1,)}, 2, Case(2, 2, 0), ((2,), (-1,))),
]
TOP_K = [
    Pair((50, 0), {0: (2,)}, 1, Case(1, 1, 0, 0), ((2,),)),
    Pair((50, 3), {1: (2,)}, 1, Case(1, 1, 0, 1), ()),
    Pair((50, 3), {0: (2,), 1: (1,)}, 1, Case(1, 0, 0, 1), ((2,),)),
    Pair((50, 1, 1), {0: (-1,), 1: (2,)}, 2, Case(1, 1, 1, 0), ((-1,),)),
    Pair((50, 2, 1), {0: (2,), 2: (2,)}, 2, Case(1, 0, 1, 1), ((2,),)),
    Pair((50, 60, 1), {1: (2,), 2: (1,)}, 2, Case(2, 1, 0, 1), ((2,),)),
]


def laws(mechanism: Mechanism, pair: Pair, tail: float) -> tuple[Law, Law]:
    """The laws of the output with and without the user."""
    zero = (0,) * len(mechanism.sums)
    after = tuple(count + (item in pair.user) for item, count in enumerate(pair.before))
    totals = [pair.user.get(item, zero) for item in range(len(after))]
    with_user = release_law(mechanism, pair.k, after, totals, tail)
    return with_user, release_law(mechanism, pair.k, pair.before, [zero] * len(after), tail)


@pytest.mark.parametrize(("pair", "top"), [*((p, False) for p in PLAIN), *((p, True) for p in TOP_K)])
def test_against_the_mechanism_run_on_all_noise(pair: Pair, top: bool) -> None:
    mechanism = Mechanism(2, Fraction(3, 4), Fraction(3, 8), 2, ((2, HALF),), top)
    larger, smaller = laws(mechanism, pair, COARSE)
    if pair.case.offset:
        larger, smaller = smaller, larger
    for epsilon in (0.0, 0.75):
        exact = deltas(mechanism, pair.case, epsilon, pair.values)
        assert divergence(larger, smaller, epsilon) == pytest.approx(exact[0], abs=SLACK)
        assert divergence(smaller, larger, epsilon) == pytest.approx(exact[1], abs=SLACK)


@pytest.mark.parametrize("shared", [Fraction(0), HALF])
def test_two_sums_and_a_public_list(shared: Fraction) -> None:
    sums = ((2, HALF), (1, Fraction(1, 3)))
    mechanism = Mechanism(2, HALF, shared, None, sums)
    pair = Pair((0,), {0: (-2, 1)}, 1, Case(1, 1, 0), ((-2, 1),))
    more, less = laws(mechanism, pair, COARSE)
    exact = deltas(mechanism, pair.case, 0.5, pair.values)
    assert divergence(more, less, 0.5) == pytest.approx(exact[0], abs=SLACK)
    assert divergence(less, more, 0.5) == pytest.approx(exact[1], abs=SLACK)


def users(items: int, most: int) -> Iterator[dict[int, tuple[int, ...]]]:
    """All users with one sum, of values of both signs."""
    for chosen in itertools.product((None, -1, 1), repeat=items):
        user: dict[int, tuple[int, ...]] = {
            item: (value,) for item, value in enumerate(chosen) if value is not None
        }
        if 1 <= len(user) <= most:
            yield user


@pytest.mark.parametrize(
    ("top", "k", "most"), [pytest.param(False, 2, 2, marks=pytest.mark.slow), (False, 2, 1), (True, 1, 2)]
)
def test_no_small_dataset_is_worse_than_the_worst_case(top: bool, k: int, most: int) -> None:
    mechanism = Mechanism(2, HALF, HALF, 2, ((1, HALF),), top)
    bound, _ = worst_case(mechanism, k, min(k, most), 0.5)
    attained = 0.0
    for before in itertools.combinations_with_replacement((0, 1, 50), 2):
        for user in users(2, most):
            more, less = laws(mechanism, Pair(before, user, k, Case(0, 0, 0), ()), 1e-5)
            attained = max(attained, divergence(more, less, 0.5), divergence(less, more, 0.5))
    assert attained == pytest.approx(bound, abs=4e-4)


def test_many_shared_items_tend_to_the_limit() -> None:
    mechanism = Mechanism(2, Fraction(4), Fraction(4), 5, ((1, Fraction(3)),))
    for changed, single in ((1, 0), (1, 1), (0, 2)):
        limit = deltas(mechanism, Case(None, changed, single), 0.5)
        for direction in (0, 1):
            some = [deltas(mechanism, Case(j, changed, single), 0.5)[direction] for j in (1, 2, 8, 32, 128)]
            assert all(low <= high + 1e-14 for low, high in itertools.pairwise([*some, limit[direction]]))
            assert some[-1] == pytest.approx(limit[direction], rel=0.02)


@pytest.mark.parametrize("kind", sorted(claimed_types(2)))
@pytest.mark.parametrize("gamma", [1, 3])
def test_without_sums(kind: NeighbourType, gamma: int) -> None:
    for rule, top in (("none", False), ("opposite", True)):
        if rule == "none" and kind.offset_change:
            continue
        exact = delta_exact(kind, 2, 3 * gamma, gamma, 5, "opposite" if top else "none", 0.5)
        mechanism = Mechanism(2, Fraction(3 * gamma), Fraction(3), 5, (), top)
        assert deltas(mechanism, Case(*kind), 0.5) == pytest.approx(exact[:2], abs=1e-12)


@pytest.mark.parametrize("top", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_smaller_values_are_no_worse(seed: int, top: bool) -> None:
    random = Random(seed)
    sums = tuple((random.randint(1, 5), Fraction(random.randint(1, 40), 2)) for _ in range(2))
    mechanism = Mechanism(2, Fraction(9), Fraction(9, 2), random.randint(1, 9), sums, top)
    for case in cases(mechanism, 2, 2):
        worst = deltas(mechanism, case, 0.5)
        signs = tuple(tuple(random.choice((-n, n)) for n in row) for row in extreme(mechanism, case))
        assert deltas(mechanism, case, 0.5, signs) == worst
        values = tuple(tuple(random.randint(-n, n) for n, _ in sums) for _ in range(case.moved))
        for less, most in zip(deltas(mechanism, case, 0.5, values), worst, strict=True):
            assert less <= most + 1e-14
