"""Synthetic populations by Zipf's law, and trial releases of them."""

from __future__ import annotations

import importlib
import math
import tracemalloc

import numpy as np
import pytest

import dphist
from dphist.errors import InvalidParameter
from dphist.simulation.population import NOTICE, Zipf, zipf_from
from dphist.simulation.predict import totals_of, trial


def test_counts_of_zipf_are_those_of_random_draws() -> None:
    """20,000 users who draw until enough items are different, by exponential races."""
    law = Zipf(1.2, 300, 20_000, 6.0)
    population, rng = law.population(), np.random.default_rng(2)
    assert population.users == 20_000
    assert population.pairs / population.users == pytest.approx(6.0, rel=0.02)
    sizes = np.repeat([n for n, _ in population.sizes], [u for _, u in population.sizes])
    races = rng.exponential(size=(20_000, 300)) * np.arange(1.0, 301.0) ** 1.2
    first = np.sort(np.partition(races, sizes.max(), axis=1)[:, : sizes.max()], axis=1)
    has = races <= np.take_along_axis(first, sizes[:, None] - 1, axis=1)
    counts, kept = has.sum(axis=0), (has * np.minimum(1.0, 2.0 / sizes)[:, None]).sum(axis=0)
    assert population.counts[0] == pytest.approx(counts[0], rel=0.02)
    predicted = np.repeat(population.counts, population.number.astype(int))
    mean = np.repeat(population.under(2)[0], population.number.astype(int))
    for rank in (0, 3, 10, 50, 200):
        assert predicted[rank] == pytest.approx(counts[rank], abs=4.5 * math.sqrt(counts[rank]))
        assert mean[rank] == pytest.approx(kept[rank], abs=4.5 * math.sqrt(counts[rank]))


def test_zipf_of_any_size_takes_little_memory() -> None:
    """A hundred million items: one array of a number for each would be 800 MB."""
    tracemalloc.start()
    try:
        large = dphist.simulate(zipf="1.05,1e8,1e9,40", epsilon=1, delta=1e-8, limits=[64], tops=[1000])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (large.population.users, large.population.items) == (10**9, 10**8)
    assert large.population.pairs == pytest.approx(4e10, rel=0.01)
    assert large.best.items > 10**6
    assert peak < 300e6


def test_ranks_in_steps_are_as_good_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    law = Zipf(1.05, 30_000, 10**8, 20.0)
    plan = dphist.plan(epsilon=0.02, delta=1e-6, max_items_per_user=20)
    one_by_one = law.population()
    monkeypatch.setattr(importlib.import_module("dphist.simulation.population"), "_ROUNDED", 1000)
    in_steps = law.population()
    assert in_steps.pairs == pytest.approx(one_by_one.pairs, rel=1e-6)
    assert in_steps.items == one_by_one.items
    assert 2 * in_steps.counts.size < one_by_one.counts.size
    totals = [totals_of(plan, each, limit=20) for each in (one_by_one, in_steps)]
    for name in ("released", "kept", "distance", "missed"):
        assert getattr(totals[1], name) == pytest.approx(getattr(totals[0], name), rel=1e-3)
    assert 3_000 < totals[0].released < 29_000


def test_users_with_the_same_number_of_items() -> None:
    same = Zipf(1.0, 100, 1000, 2.25, "same").population()
    assert same.sizes == ((2, 750), (3, 250))
    assert same.pairs == 2250
    mean, variance = same.under(1)
    assert mean @ same.number == pytest.approx(1000)
    # Users drop an item with probability 1/2 or 2/3.
    assert np.all((variance <= mean / 2 * 1.34) & (variance >= mean / 2 * 0.99))


def test_trials_are_as_simulate_predicts() -> None:
    """The same population and expectation; the mean of 40 trials is within 4.5 standard errors."""
    predicted = dphist.simulate(zipf=(1.1, 1000, 5000, 4), epsilon=1, delta=1e-6, limits=[2], tops=[20])
    population = Zipf(1.1, 1000, 5000, 4.0).population()
    for one in predicted.candidates[2:]:
        cap = one.value if isinstance(one.value, int) and one.kind == "limit" else None
        trials = [trial(one.plan, population, seed, limit=cap) for seed in range(40)]
        assert (trials[0]["items"], trials[0]["users_items"]) == (
            predicted.population.items, predicted.population.pairs,
        )  # fmt: skip
        assert trials[0]["expected"] == one.items
        assert trials[0]["notice"] == NOTICE
        found = float(np.mean([each["released"] for each in trials]))
        assert found == pytest.approx(one.items, abs=4.5 * one.items_deviation / math.sqrt(40))
        error = float(np.mean([each["mean_absolute_error"] for each in trials]))
        assert error == pytest.approx(one.mean_error, rel=0.05)
    # A top-k step ignores a limit.
    assert trial(one.plan, population, 1, limit=2) == trial(one.plan, population, 1)


def test_a_trial_of_many_items() -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20)
    population = Zipf(1.1, 100_000, 10**6, 20.0).population()
    whole = trial(plan, population, 1, limit=20)
    assert whole["released"] > 1000
    # If a limit replaces a top-k step, only the largest counts remain, unchanged.
    cut = trial(plan, population, 1, limit=20, largest=30)
    assert cut["released"] == cut["expected"] == 30
    shown = [row["released"] for row in cut["top"]]
    assert sum(one is not None for one in shown) == 30
    noisy = sorted((row["released"] for row in whole["top"]), reverse=True)
    assert {one for one in shown if one is not None} == set(noisy[:30])


def test_forms_of_zipf() -> None:
    for given in (" 1 , 1e6 , 2000 ", [1, 1e6, 2000], np.array([1, 1e6, 2000]), ("1", "1e6", 2000)):
        assert zipf_from(given) == Zipf(1.0, 10**6, 2000)
    with pytest.raises(InvalidParameter, match="spread must be 'geometric' or 'same'"):
        Zipf(1.0, 10, 10, 2.0, "even")  # type: ignore[arg-type]


def test_few_items_lower_the_default_number_per_user_and_a_cut_is_shown() -> None:
    assert zipf_from("1,10,7").items_per_user == 5.0
    assert zipf_from("1,1,7").items_per_user == 1.0
    assert zipf_from("1,1000,7").items_per_user == 10.0
    cut = Zipf(1.0, 50, 8000, 20.0)
    assert "20 of them on average (geometric, cut at 25)" in cut.label
    assert cut.population().pairs < 0.99 * 20 * 8000
    assert "cut" not in Zipf(1.0, 1000, 8000, 20.0).label
