"""The mechanisms of other papers and libraries in benchmarks/rivals.py behave as published."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import rivals

ITEMS = 8


def random_lists(generator: np.random.Generator, users: int, most: int) -> list[list[int]]:
    sizes = generator.integers(1, most + 1, users)
    return [list(generator.choice(ITEMS, size, replace=False)) for size in sizes]


def pairs_of(lists: list[list[int]]) -> rivals.Pairs:
    user = np.repeat(np.arange(len(lists)), [len(one) for one in lists])
    return rivals.Pairs(user, np.concatenate(lists).astype(np.int64), len(lists), ITEMS)


@pytest.mark.parametrize(("degree", "least", "most"), [(2, 1.0, 1.0), (4, 1.0, 1.0), (6, 1.0, 1.0), (6, 0.5, 2.0)])
def test_one_user_moves_adaptive_weights_by_at_most_one(degree: int, least: float, most: float) -> None:
    generator = np.random.default_rng(degree)
    largest = 0.0
    for _ in range(150):
        lists = random_lists(generator, int(generator.integers(2, 12)), 6)
        bias = None if least == 1 else generator.uniform(least, 1.5, ITEMS).clip(least, 1.0)
        target = float(generator.uniform(1, 2))
        before, after = (
            rivals.adaptive_weights(
                pairs_of(some), target=target, degree=degree, bias=bias, least=least, most=most
            )
            for some in (lists[:-1], lists)
        )
        new = ~np.isin(np.arange(ITEMS), np.concatenate(lists[:-1]))
        change = after - before
        largest = max(largest, float(np.linalg.norm(change)))
        assert change.min() >= -1e-12
        if new[lists[-1]].any():
            count = np.count_nonzero(new[lists[-1]])
            assert change[new].max() <= min(1.0, most / np.sqrt(count)) + 1 / degree
    assert 0.9 < largest <= 1 + 1e-12


def test_without_the_discount_adaptive_weights_move_by_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "reroute_share", lambda _degree, _least=1.0: 1.0)
    lists = [[0], *[[0, 1]] * 20]
    before, after = (
        rivals.adaptive_weights(pairs_of(some), target=10.5, degree=2) for some in (lists[:-1], lists)
    )
    assert np.linalg.norm(after - before) > 1


def test_one_user_moves_policy_weights_by_at_most_one() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        lists = random_lists(generator, int(generator.integers(2, 9)), 5)
        target = float(generator.uniform(1, 3))
        starts = np.concatenate([[0], np.cumsum([len(one) for one in lists])])
        order = generator.permutation(len(lists))
        item = np.concatenate(lists)
        everyone = rivals.policy_weights(item, starts, order, target, ITEMS)
        others = rivals.policy_weights(item, starts, order[order != len(lists) - 1], target, ITEMS)
        assert np.linalg.norm(everyone - others) <= 1 + 1e-12


def test_the_set_union_threshold_is_minimal() -> None:
    t = np.arange(1, 101)
    threshold = rivals.set_union_threshold(4.0, 5e-7, 100)
    passes = -np.expm1(t * norm.logcdf((threshold - 1 / np.sqrt(t)) / 4.0))
    assert passes.max() == pytest.approx(5e-7, rel=1e-9)


def test_noise_and_threshold_of_the_libraries() -> None:
    """As measured with OpenDP 0.16.0 and PipelineDP 0.3.1 at epsilon 1, delta 1e-6."""
    plans = [plan(1.0, cap) for plan in (rivals.opendp_plan, rivals.pipelinedp_plan) for cap in (10, 50)]
    measured = [(14.76, 80), (33.01, 187), (13.8, 74.6), (30.9, 174.3)]
    assert np.array(plans) == pytest.approx(np.array(measured), abs=0.1)


def test_private_count_release_finds_large_counts_and_no_item_of_one_user() -> None:
    generator = np.random.default_rng(4)
    users = np.repeat(np.arange(4000), 2)
    item = np.stack([np.arange(4000) % 20, np.arange(4000) + 20], axis=1).ravel()
    pairs = rivals.Pairs(users, item, 4000, 4020)
    found = rivals.private_count_release(pairs, 4.0, generator, most=30, share=0.5)
    assert found.found[:20].all()
    assert not found.found[20:].any()
    assert found.estimate is not None
    # sigma = sqrt(30/rho) at half of rho; ten deviations
    assert np.abs(found.estimate[:20] - 200).max() < 10 * np.sqrt(30 / rivals.largest_rho(4.0, rivals.DELTA / 2))
