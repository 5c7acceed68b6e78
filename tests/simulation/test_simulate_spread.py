"""Predictions for limits that spread the excess: exact moments, and releases as predicted."""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any

import numpy as np
import pytest

import dphist
from dphist.planning.auto_cap import levels_of
from dphist.planning.utility import Correction
from dphist.privacy.types import Budget
from dphist.releasing.noise import begin
from dphist.sampling.tap import SeededTap
from dphist.simulation.population import Population, Zipf
from dphist.simulation.predict import BANDS, totals_of
from dphist.simulation.simulate import Prediction, make_prediction, predict, predict_chosen_limit
from simulation_data import Log, job

BUDGET = Budget(1.0, 1e-6)
# Standard errors estimated from 400 releases; further out is less than 1e-10.
NEVER = 6.9


def population_of(log: Log) -> Population:
    return dphist.simulate(
        log.table, user="user", item="item", epsilon=1, delta=1e-6, caps=[1], tops=[], auto=False
    ).population


def test_mean_and_variance_are_exact() -> None:
    """All equally likely ways in which two users with too many items can lose some of them."""
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1, excess="spread")
    owned = {0: range(18), 1: range(1, 18), 2: (0, 1, 2), 3: (0,), 4: (3, 17)}
    pairs = [(user, item) for user, items in owned.items() for item in items]
    most = plan.levels[-1].items
    assert most == 16

    def weight(items: int) -> float:
        kept = min(items, most)
        return next(one.weight for one in plan.levels if one.items >= kept) / plan.levels[0].weight

    choices = [list(itertools.combinations(items, min(len(items), most))) for items in owned.values()]
    outcomes = []
    for kept in itertools.product(*choices):
        counts = np.zeros(18)
        for user, items in enumerate(kept):
            counts[list(items)] += weight(len(owned[user]))
        outcomes.append(counts)
    assert len(outcomes) == math.comb(18, 16) * 17
    # Items are grouped by the number and the mean size of their users.
    sizes = [[len(items) for items in owned.values() if item in items] for item in range(18)]
    groups: dict[Any, list[int]] = {}
    for item, of_users in enumerate(sizes):
        groups.setdefault((len(of_users), round(32 * float(np.mean(np.log(of_users))))), []).append(item)
    expected = [
        (key[0], len(items), np.mean(outcomes, axis=0)[items].mean(), np.var(outcomes, axis=0)[items].mean())
        for key, items in sorted(groups.items(), key=lambda group: (-group[0][0], group[0][1]))
    ]
    users, items = zip(*pairs, strict=True)
    found = population_of(Log(np.array(users), np.array(items)))
    mean, variance = found.under(levels_of(plan))
    for row, seen in zip(expected, zip(found.counts, found.number, mean, variance, strict=True), strict=True):
        assert seen == pytest.approx(row, rel=1e-12)
    # A limit that drops nothing changes nothing.
    assert found.under(None)[0] is found.counts
    assert found.under(18)[0] is found.counts


def test_spread_of_synthetic_data() -> None:
    """The total weight follows from the sizes of the users."""
    population = Zipf(1.1, 2000, 10_000, 20.0).population()
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=2, excess="spread")
    levels = levels_of(plan)
    kept = [
        users * min(size, levels[-1][0]) * next(w for items, w in levels if items >= min(size, levels[-1][0]))
        for size, users in population.sizes
    ]
    mean, variance = population.under(levels)
    assert mean @ population.number == pytest.approx(sum(kept), rel=1e-3)
    assert np.all(variance >= 0.0)
    assert np.all(mean <= population.counts)
    assert totals_of(plan, population).factor == pytest.approx(population.pairs / sum(kept), rel=1e-3)


def releases(log: Log, one: Prediction, runs: int) -> Any:
    """For each release with real noise: items, kept pairs, distances, and sums of errors by band."""
    rng, tap, truth = np.random.default_rng(11), SeededTap(11), log.truth
    band, unit = np.searchsorted(BANDS, truth, side="right") - 1, one.plan.levels[0].weight
    rows = []
    for _ in range(runs):
        counts = log.weighted(one.plan, rng)
        out = begin(one.plan, tap).release(counts)
        true, estimates = truth[out.index], one.correction * out.values
        missed = truth.sum() - true.sum()
        rows.append(
            [
                out.index.size,
                counts[out.index].sum() / unit / truth.sum(),
                (np.abs(out.values - true).sum() + missed) / truth.sum(),
                (np.abs(estimates - true).sum() + missed) / truth.sum(),
                *np.bincount(band[out.index], (estimates - true) / true, len(BANDS)),
            ]
        )
    return np.array(rows)


def predicted(one: Prediction) -> Any:
    errors = [(bias or 0.0) * items for _, items, bias in one.bands]
    return np.array([one.items, 1.0 - one.missing, one.distance, one.estimate_distance, *errors])


@pytest.mark.parametrize("limit", [4, *(pytest.param(limit, marks=pytest.mark.slow) for limit in (1, 16))])
def test_releases_with_spread_are_as_predicted(limit: int) -> None:
    """Means of 400 releases, with a false alarm below 1e-9; and a wrong formula is noticed."""
    log, runs = job(20_000, 2_000, 5_000), 400
    population = population_of(log)
    one = predict(BUDGET, population, "spread", limit)
    assert one.plan.levels
    found = releases(log, one, runs)
    error = found.std(axis=0, ddof=1) / math.sqrt(runs)
    error[0] = max(error[0], one.items_deviation / math.sqrt(runs))
    assert np.all(np.abs(found.mean(axis=0) - predicted(one)) <= NEVER * error + 1e-9), one
    # Wrong formulas: the counts of a cap, and no correction.
    plan = one.plan
    as_cap = Population("test", population.counts, population.number, population.sizes,
                        lambda *_: population.under(limit))  # fmt: skip
    for wrong in (
        totals_of(plan, as_cap),
        totals_of(plan, population, correction=Correction((0.0,), (1.0,), (0.0,))),
    ):
        mistaken = predicted(make_prediction("spread", limit, plan, wrong, population))
        assert np.any(np.abs(found.mean(axis=0) - mistaken) > 2 * NEVER * error + 1e-9)


def test_the_goal_decides_what_is_chosen_privately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("dphist.simulation.simulate"), "_TRIALS", 16)
    population = population_of(job(20_000, 2_000, 5_000))
    counts, keys = (predict_chosen_limit(BUDGET, population, goal) for goal in ("counts", "keys"))
    assert keys.items > counts.items
    assert counts.estimate_distance < keys.estimate_distance
    for one in (counts, keys):
        caps = one.to_dict()["caps"]
        assert sum(row["chance"] for row in caps) == pytest.approx(1.0)
        assert {row["excess"] for row in caps} <= {"drop", "spread"}
