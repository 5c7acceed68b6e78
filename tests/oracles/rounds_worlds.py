"""Tiny releases in rounds to enumerate: random numbers, honest users, and adversaries who react."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache

from oracles_rounds import Reveal, Rounds, States, Sum, World


def random_tiny(rng: random.Random, least: int = 20, lowest: float = -2) -> Rounds:
    """Two rounds on a coarse lattice, variances of at least `least`, any limits, cuts from `lowest` deviations."""
    lattice, parts = rng.choice((2, 4, 5, 8, 12, 16, 64)), (rng.randint(1, 6), rng.randint(1, 8))
    sizes, measure, most = rng.randint(1, 5), rng.randint(1, 8), rng.randint(1, 6)
    largest = max(*parts, sizes, measure)
    variance = Fraction(round(8 * largest * least * math.exp(rng.uniform(0, 0.9))), 8)
    first, both = (math.sqrt(variance / k) for k in (parts[0], sum(parts)))
    limits = round(rng.uniform(0.5, 3.5) * first + lattice / 2), round(rng.uniform(0.5, 3.5) * both + lattice / 2)
    cut = min(round(rng.uniform(lowest, 1.5) * first), limits[0])
    own = Fraction(rng.randint(8 * least, 30 * least), 8)
    sums = (Sum(lattice * rng.randint(1, 3), own),) if lattice < 10 and rng.random() < 0.3 else ()
    return Rounds(lattice, variance, parts, limits, (cut,), sizes, measure, most, rng.randint(1, 4), None, sums)


def random_public(rng: random.Random, least: int = 20) -> Rounds:
    """A public list of a few items, sizes and a measurement, with a draw that all share or without."""
    lattice, listed, shared = rng.choice((2, 4, 8, 16, 64)), rng.randint(2, 3), rng.choice((0, 1, 1, 2, 3))
    sizes, measure, most = rng.randint(1, 4), rng.randint(1, 6), rng.randint(1, listed)
    variance = Fraction(round(8 * (shared + 1) * max(sizes, measure) * least * math.exp(rng.uniform(0, 0.9))), 8)
    return Rounds(lattice, variance, (), (), (), sizes, measure, most, 1, None, (), shared, listed)


def left_of(noise: Rounds, states: States, splits: int) -> list[bool]:
    """The items that are neither hopeless nor found."""
    return [0 < state < splits + 2 for state in states]


def honest_world(noise: Rounds, *, shared: int, new: int, others: int) -> World:
    """A user and so many others, with the same shared items, who do as the mechanism says."""
    count = shared + new

    def others_later(states: States) -> Sequence[int]:
        left = left_of(noise, states, 0)
        return [others * noise.later_weight(sum(left), shared) if one else 0 for one in left]

    def later(states: States) -> Sequence[int]:
        left = left_of(noise, states, 0)
        return [noise.later_weight(sum(left), count) if one else 0 for one in left]

    first = tuple(others * noise.first_weight(shared) for _ in range(shared))
    own = (noise.first_weight(count),) * count
    return World(shared, new, first, own, others_later, later, lambda y: 1 if y < noise.lattice // 2 else 2)


def random_weights(rng: random.Random, noise: Rounds, shared: int, caps: Sequence[int]) -> tuple[int, ...]:
    """Weights within the squared length and the caps of new items: often all on a few items."""
    room, weights = noise.lattice**2, [0] * (shared + len(caps))
    for place in rng.sample(range(len(weights)), len(weights)):
        most = min(math.isqrt(room), noise.lattice if place < shared else caps[place - shared])
        weights[place] = rng.choice((most, most, rng.randint(0, most), 0))
        room -= weights[place] ** 2
    return tuple(weights)


def random_world(rng: random.Random, noise: Rounds) -> World:
    """Sometimes honest; else others and the user react to the states of items in any way that theorem 1 allows."""
    shared, new = rng.choice(((1, 0), (1, 0), (0, 1), (1, 1), (1, 1), (1, 2), (0, 3), (2, 0), (2, 1)))
    if shared == 2 and noise.variance**2 > 1600 * noise.parts[0] * noise.parts[1]:
        shared = 1  # four noisy numbers would be too many to enumerate
    while shared + new > noise.most_items:
        shared, new = (shared - 1, new) if shared > 1 or new == 0 else (shared, new - 1)
        if shared + new == 0:
            shared = 1
    reveals: tuple[Reveal, ...] = ("found", "states", "all") if shared == 1 else ("found", "states")
    reveal = rng.choice(reveals)
    if rng.random() < 0.25:
        honest = honest_world(noise, shared=shared, new=new, others=rng.randint(1, 9))
        return World(**{**vars(honest), "reveal": reveal})
    low, high = noise.cuts[0], noise.limits[0]
    splits = tuple(sorted(rng.sample(range(low, high), 1))) if shared < 2 and low + 1 < high else ()
    seed, caps = rng.random(), noise.caps(max(new, 1))
    around = [
        noise.limits[0],
        noise.limits[1],
        noise.limits[1] - noise.lattice,
        0,
        10**4,
    ]

    @cache
    def others_later(states: States) -> tuple[int, ...]:
        now = random.Random(f"{seed} others {states}")
        return tuple(max(0, now.choice(around) + now.randint(-5, 5)) for _ in states)

    @cache
    def later(states: States) -> tuple[int, ...]:
        return random_weights(random.Random(f"{seed} own {states}"), noise, shared, [caps[1]] * new)

    bound = rng.randint(-3, noise.lattice + 3)
    choices = rng.choice(((1, 1), (1, 3), (0, 2), (5, 1), (0, 0)))
    limit: Callable[[int], int] = lambda y: choices[y > bound]  # noqa: E731
    first = random_weights(rng, noise, shared, [caps[0]] * new)
    others = tuple(max(0, rng.choice(around) + rng.randint(-5, 5)) for _ in range(shared))
    return World(shared, new, others, first, others_later, later, limit, splits, reveal)
