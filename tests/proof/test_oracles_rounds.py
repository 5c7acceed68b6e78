"""The oracle of releases in rounds: its sums against plainer ones, and theorem 1 against enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from mpmath import mpf

import oracles_rounds as oracle
import oracles_rounds_law as plain
from oracles_discrete import discrete_gaussian_tail
from oracles_rounds import DIRECTIONS, Gaussian, Laplace, Rounds, World
from rounds_worlds import honest_world, random_tiny, random_world
from scheduling import THOROUGH

TINY = Rounds(
    lattice=3,
    variance=Fraction(2),
    parts=(2, 3),
    limits=(4, 3),
    cuts=(-1,),
    sizes=4,
    measure=4,
    most_items=2,
    growth=2,
)


# The pooled evidence.


@pytest.mark.parametrize("variance", [Fraction(9), Fraction(1001, 4), Fraction(10**5)])
def test_the_fast_tail_is_the_tail(variance: Fraction) -> None:
    for n in (-20, 0, 1, 17, 400, 6000):
        exact = discrete_gaussian_tail(n=n, variance=variance)
        assert abs(oracle.gaussian_tail(n, variance) / exact - 1) < mpf("1e-15")


@pytest.mark.parametrize(
    ("parts", "variance"),
    [((3, 4), 30), ((2, 4), 40), ((6, 10, 15), 300), ((5,), 8), ((1, 1, 1), 2), ((12, 18, 7), 500)],
)
def test_pooled_noise_by_convolution_is_below_the_lemma_and_close(parts: tuple[int, ...], variance: int) -> None:
    v = Fraction(variance)
    factor = oracle.pooled_factor(parts, v)
    divisor = math.gcd(*parts)
    for deviations in (0.0, 0.7, 3, 6, 9):
        n = math.floor(deviations * math.sqrt(v * sum(parts)))
        by_sum = mpf(str(oracle.pooled_tail_summed(parts, v, n)))
        bound = oracle.pooled_tail_by_lemma(parts, v, n)
        assert by_sum <= bound * (1 + mpf("1e-14"))
        assert bound <= by_sum * factor**2 * (1 + mpf("1e-14"))
        nearest = -(-n // divisor) * divisor
        assert float(oracle.pooled_tail_summed(parts, v, nearest)) == pytest.approx(float(by_sum), rel=1e-15)


def test_pooled_noise_by_every_draw() -> None:
    parts, v = (2, 3), Fraction(5)
    laws = [plain.draws(v / k, 12) for k in parts]
    for n in (-4, 0, 5, 11, 26):
        every = math.fsum(a * b for (x, a), (y, b) in itertools.product(*laws) if parts[0] * x + parts[1] * y >= n)
        assert float(oracle.pooled_tail_summed(parts, v, n)) == pytest.approx(every, rel=1e-12)


def test_passing_by_integrals_by_sums_and_by_every_draw() -> None:
    noise = Rounds(16, Fraction(16**2 * 16), (3, 5, 7), (130, 90, 70), (0, 9), 2, 9, 8, 3)
    for new in (1, 3, 8):
        caps = noise.caps(new)
        exact = float(oracle.passing_summed(noise, caps))
        assert oracle.passing_integrated(noise, caps) == pytest.approx(exact, rel=1e-3)
        union = oracle.passing_union(noise, caps)
        assert exact <= union <= 1.4 * exact
    caps, laws = TINY.caps(2), [plain.draws(TINY.variance / k, 12) for k in TINY.parts]
    every = math.fsum(
        a * b
        for (x, a), (y, b) in itertools.product(*laws)
        if x + caps[0] > TINY.limits[0] or 2 * (x + caps[0]) + 3 * (y + caps[1]) > 5 * TINY.limits[1]
    )
    assert float(oracle.passing_summed(TINY, caps)) == pytest.approx(every, rel=1e-12)


def test_the_worst_number_of_new_items() -> None:
    for growth, limits in ((1, (26, 25)), (3, (26, 25)), (8, (40, 25))):
        noise = Rounds(16, Fraction(16 * 700), (16, 20), limits, (0,), 2, 9, 12, growth)
        events = {new: oracle.event(noise, union=True, new=new) for new in range(1, 13)}
        assert oracle.event(noise, union=True) == max(events.values())


def test_weights_keep_their_squared_length_and_caps() -> None:
    noise = Rounds(4096, Fraction(10**9), (1, 2), (9, 9), (0,), 1, 1, 256, 8)
    for first, n in itertools.product((1, 2, 3, 7, 64, 65, 256), repeat=2):
        if n <= first:
            weight = noise.later_weight(n, first)
            assert n * weight**2 <= noise.lattice**2
            assert all(weight <= noise.caps(new)[1] for new in range(1, first + 1))
            assert all(n * noise.measure_weight(n, most) ** 2 <= most * noise.lattice**2 for most in (1, 5, 300))
    # A user with one item left out of 256 adds half a user, not a whole one.
    assert noise.later_weight(1, 256) == noise.lattice // 2


# Users with one item.


@pytest.mark.parametrize(
    "own",
    [
        Laplace(Fraction(1), 9),
        Laplace(Fraction(7, 3), 4),
        Gaussian(4, Fraction(60), 21),
        Gaussian(2, Fraction(90), 5),
    ],
)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 1.7])
def test_users_with_one_item_by_every_draw(own: Laplace | Gaussian, epsilon: float) -> None:
    noise = Rounds(8, Fraction(400), (10, 9), (40, 30), (0,), 2, 9, 3, 2, own)
    cases, bound = oracle.alone_cases(noise, epsilon), own.limit + own.lattice
    masses = {z: float(own.mass(z)) for z in range(-400, 401)}
    p = {(z + own.lattice, z + own.lattice > bound): mass for z, mass in masses.items()}
    q = {(z, z > bound): mass for z, mass in masses.items()}
    never = {(z, False): mass for z, mass in masses.items()}
    others: list[tuple[oracle.Others, dict[tuple[int, bool], float]]] = [("alone", q), ("several", never)]
    for name, without in others:
        assert plain.divergence(p, without, epsilon) == pytest.approx(
            float(cases[name, "add"]), rel=1e-9, abs=1e-14
        )
        assert plain.divergence(without, p, epsilon) == pytest.approx(
            float(cases[name, "remove"]), rel=1e-9, abs=1e-14
        )
    shown = sum(mass for (_, found), mass in p.items() if found)
    later = float(oracle.passing_summed(noise, [0, 0]))
    assert float(cases["nobody", "add"]) == pytest.approx(1 - (1 - shown) * (1 - later), rel=1e-9)


def test_gaussian_noise_for_users_with_one_item_costs_more_than_the_worse_of_both_parts() -> None:
    """Others with several items have the item: it may be found and its number, if not, is published later."""
    own = Gaussian(4, Fraction(16 * 18), 82)
    noise = Rounds(8, Fraction(400), (10, 9), (400, 300), (0,), 2, 9, 3, 2, own)
    cases = oracle.alone_cases(noise, 1.0)
    assert cases["several", "add"] > 1.4 * max(cases["nobody", "add"], cases["alone", "add"])


# Enumeration.


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """Noise within 3 deviations, in both enumerations alike."""
    deviations = 3.0
    monkeypatch.setattr(oracle, "BOX", deviations)
    oracle._draws.cache_clear()
    yield deviations
    oracle._draws.cache_clear()


@pytest.mark.parametrize(
    ("shared", "new", "others"),
    [
        (1, 1, 1),
        (0, 2, 0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0, 2), (1, 1, 2), (2, 0, 1))),
    ],
)
def test_enumeration_is_the_law_of_the_definition(shared: int, new: int, others: int, few_draws: float) -> None:
    own = frozenset("ab"[:shared] + "yz"[:new])
    lists = [frozenset("ab"[:shared])] * others if shared else []

    def others_later(states: oracle.States) -> list[int]:
        left = sum(state == 1 for state in states)
        return [others * TINY.later_weight(left, shared) if state == 1 else 0 for state in states]

    def later(states: oracle.States) -> list[int]:
        left = sum(state == 1 for state in states)
        return [TINY.later_weight(left, len(own)) if state == 1 else 0 for state in states]

    def limit(y: int) -> int:
        return 0 if y < 1 else 1 if y < 4 else 2

    world = World(
        shared=shared,
        new=new,
        others=tuple(others * TINY.first_weight(shared) for _ in range(shared)),
        first=(TINY.first_weight(len(own)),) * len(own),
        others_later=others_later,
        later=later,
        limit=limit,
    )
    # One bucket, in which the others are as soon as the user is with a shared item.
    base = TINY.lattice * len(lists)
    p = plain.release_law(TINY, [*lists, own], lambda y: limit(y - base), [2], few_draws)
    q = plain.release_law(TINY, lists, lambda y: limit(y - base), [2], few_draws)
    # Where two items are measured, the likelihood depends on more than their sum at the edges of their noise.
    tolerance = 1e-10 if shared < 2 else 1e-7
    for epsilon in (0.3, 1.0, 2.5):
        exact = oracle.enumerated(TINY, world, [epsilon])[epsilon]
        assert exact["add"] == pytest.approx(plain.divergence(p, q, epsilon), abs=tolerance)
        assert exact["remove"] == pytest.approx(plain.divergence(q, p, epsilon), abs=tolerance)


@pytest.mark.parametrize("part", range(40 if THOROUGH else 2))
def test_theorem_1_is_above_every_enumerated_pair(part: int) -> None:
    """Users who react to noisy numbers, others who react to everything that is published or all of it."""
    rng = random.Random(f"theorem {part}")
    for _ in range(25 if THOROUGH else 10):
        noise = random_tiny(rng)
        world, epsilons = random_world(rng, noise), [rng.uniform(0, 3), math.exp(rng.uniform(-3, 2))]
        assert oracle.allowed(noise, world)
        for epsilon, deltas in oracle.enumerated(noise, world, epsilons).items():
            bounds = (oracle.several_delta(noise, epsilon, union=False, rounding=v) for v in (1, 2, 4))
            bound = float(min(bounds))
            for direction in DIRECTIONS:
                assert deltas[direction] <= bound + 1e-9, (noise, world, epsilon, direction)


def test_a_single_new_item_attains_the_event() -> None:
    noise = Rounds(8, Fraction(600), (10, 12), (30, 28), (0,), 3, 8, 3, 2)
    world = honest_world(noise, shared=0, new=1, others=0)
    exact = oracle.enumerated(noise, world, [0.7])[0.7]
    # A hopeless item stays out, which the bound does not use.
    assert (
        0.97 * oracle.event(noise, union=False, new=1) <= exact["add"] <= oracle.event(noise, union=False, new=1)
    )
    assert exact["remove"] == 0


def test_the_bound_is_close_where_all_is_published() -> None:
    noise = Rounds(16, Fraction(16 * 16 * 8), (4, 4), (40, 10**4), (-(10**4),), 2, 4, 4, 2)
    noise = replace(noise, limits=(10**5, 10**5))
    world = replace(honest_world(noise, shared=1, new=0, others=9), reveal="all")
    exact = oracle.enumerated(noise, world, [1.0])[1.0]["add"]
    only_rounds = replace(noise, sizes=0, measure=0)
    bound = oracle.gaussian_part(only_rounds, 1.0, 1)
    assert exact <= bound <= 1.05 * exact
