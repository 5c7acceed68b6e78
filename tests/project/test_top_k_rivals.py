"""The algorithms in benchmarks/top_k.py are as private as their papers say: brute force over tiny histograms."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import top_k

Law = dict[tuple[int, ...], float]
END = -1


def neighbours(items: int, most: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All histograms of small counts, and each with one more user of any set of items."""
    for counts in itertools.product(range(most + 1), repeat=items):
        for user in itertools.product((0, 1), repeat=items):
            if any(user):
                yield counts, tuple(a + b for a, b in zip(counts, user, strict=True))


def divergence(one: Law, other: Law, epsilon: float) -> float:
    return sum(max(0.0, p - math.exp(epsilon) * other.get(outcome, 0.0)) for outcome, p in one.items())


def largest_delta(law: Callable[[tuple[int, ...]], Law], items: int, most: int, epsilon: float) -> float:
    laws: dict[tuple[int, ...], Law] = {}
    found = 0.0
    for pair in neighbours(items, most):
        for counts in pair:
            if counts not in laws:
                laws[counts] = law(counts)
        one, other = (laws[counts] for counts in pair)
        found = max(found, divergence(one, other, epsilon), divergence(other, one, epsilon))
    return found


def drawn_one_by_one(weights: dict[int, float], length: int) -> Law:
    """The law of the largest `length` of ln(weight) plus Gumbel noise, in order; it stops after END."""
    law: Law = {(): 1.0}
    for _ in range(length):
        longer: Law = {}
        for chosen, probability in law.items():
            left = {item: weight for item, weight in weights.items() if item not in chosen}
            if END in chosen or not left:
                longer[chosen] = longer.get(chosen, 0.0) + probability
                continue
            total = sum(left.values())
            for item, weight in left.items():
                longer[(*chosen, item)] = probability * weight / total
        law = longer
    return law


@pytest.mark.parametrize(
    ("k", "epsilon", "delta"), [(1, 1.0, 1e-3), (2, 1.0, 1e-3), (3, 0.5, 1e-2), (3, 2.0, 1e-4)]
)
def test_peeling_is_private(k: int, epsilon: float, delta: float) -> None:
    rate = top_k.peeling_rate(k, top_k.Budget(epsilon, delta))

    def law(counts: tuple[int, ...]) -> Law:
        return drawn_one_by_one({item: math.exp(rate * count) for item, count in enumerate(counts)}, k)

    assert largest_delta(law, 4, 2, epsilon) <= delta
    assert largest_delta(law, 4, 2, epsilon / 4) > delta


@pytest.mark.parametrize(("k", "k_bar"), [(1, 1), (1, 2), (2, 2), (2, 3), (2, 9)])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.02), (2.0, 1e-3)])
def test_limited_domain_is_private(k: int, k_bar: int, epsilon: float, delta: float) -> None:
    """Half of delta is for the threshold, and half for the draws."""
    rate = top_k.peeling_rate(k, top_k.Budget(epsilon, delta / 2))

    def law(counts: tuple[int, ...]) -> Law:
        order = sorted((item for item, count in enumerate(counts) if count), key=lambda item: -counts[item])
        truth = np.array([counts[item] for item in order], dtype=np.int64)
        threshold = top_k.limited_threshold(truth, k_bar, rate, delta / 2)
        weights = {item: math.exp(rate * counts[item]) for item in order[:k_bar]}
        return drawn_one_by_one({**weights, END: math.exp(rate * threshold)}, k)

    assert 0 < largest_delta(law, 4, 3, epsilon) <= delta


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("epsilon", [0.35, 1.0])
def test_joint_draws_each_sequence_with_its_weight_and_is_private(k: int, epsilon: float) -> None:
    def weight(counts: tuple[int, ...], chosen: tuple[int, ...]) -> float:
        top = sorted(counts, reverse=True)
        return math.exp(-epsilon / 2 * max(top[place] - counts[item] for place, item in enumerate(chosen)))

    def law(counts: tuple[int, ...]) -> Law:
        weights = {chosen: weight(counts, chosen) for chosen in itertools.permutations(range(len(counts)), k)}
        return {chosen: one / sum(weights.values()) for chosen, one in weights.items()}

    assert largest_delta(law, 4, 2, epsilon) <= 1e-12
    for counts in ((3, 1, 1, 0), (5, 4, 2, 2), (2, 2, 2, 2)):
        truth = np.array(counts, dtype=np.int64)
        drawn = dict.fromkeys(law(counts), 0.0)
        losses, chances = top_k.loss_law(truth, k, epsilon)
        numbers = np.exp(top_k.log_sequences(truth, k, losses))
        for loss, chance, number in zip(losses.tolist(), chances.tolist(), numbers.tolist(), strict=True):
            within = [
                one for one in drawn if all(counts[place] - counts[item] <= loss for place, item in enumerate(one))
            ]
            assert number == pytest.approx(len(within))
            for one in within:
                drawn[one] += chance / len(within)
        assert drawn == pytest.approx(law(counts))


def test_losses_that_are_left_out_have_no_weight() -> None:
    truth = np.sort(np.random.default_rng(2).zipf(1.3, 300).clip(max=5_000))[::-1].astype(np.int64)
    for epsilon in (0.35, 1.0):
        losses, chances = top_k.loss_law(truth, 20, epsilon)
        every, all_chances = top_k.loss_law(truth, 20, epsilon, least=-math.inf)
        assert losses.size < every.size == truth[0] + 1
        assert all_chances[losses] == pytest.approx(chances, abs=1e-15)
        assert 1 - all_chances[losses].sum() < 1e-12


def test_each_algorithm_finds_items_that_stand_out() -> None:
    """Twenty items a thousand times above the noise: a wrong one has a probability far below 1e-9."""
    truth = np.concatenate([np.arange(10_000_000, 30_000_000, 1_000_000)[::-1], np.full(200, 3)]).astype(np.int64)
    budget, generator = top_k.Budget(1.0, 1e-6), np.random.default_rng(1)
    rate = top_k.peeling_rate(20, budget)
    chosen = [
        top_k.peel(truth, 20, rate, generator),
        top_k.limited_domain(truth, 20, 40, rate, 5e-7, generator),
        top_k.dphist_top(truth, 20, budget).places,
        top_k.largest_of(top_k.dphist_top(truth, 40, budget), 20).places,
    ]
    small = truth.copy()
    small[:20] //= 100_000
    chosen.append(top_k.joint(small, 20, top_k.loss_law(small, 20, 30.0), generator))
    for places in chosen:
        assert sorted(places.tolist()) == list(range(20))
    for places in chosen[:2]:
        perfect = top_k.score(top_k.Released(places, truth[places].astype(np.float64)), truth, 20)
        assert perfect == top_k.Score(1.0, 1.0, 0.0)
