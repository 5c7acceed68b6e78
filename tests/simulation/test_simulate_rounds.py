"""What a forecast says of a release in rounds agrees with real releases of data with the same shape."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

import dphist
from dphist.model import Budget
from dphist.planning.rounds import plan_rounds
from dphist.releasing.request import Request
from dphist.simulation.population import Zipf, population_of
from dphist.simulation.predict import given_population
from dphist.simulation.rounds import forecast, trial_in_rounds

LAW = Zipf(1.0, 1000, 20_000, 5.0)


def drawn(exponent: float = 1.0) -> pa.Table:
    """Users draw items by weight until they have that many different ones."""
    random = np.random.default_rng(1)
    weights = np.arange(1.0, LAW.items + 1) ** -exponent
    weights /= weights.sum()
    users, items = [], []
    for user, size in enumerate(random.geometric(1.0 / LAW.items_per_user, LAW.users).clip(max=100)):
        chosen = random.choice(LAW.items, size, replace=False, p=weights)
        users += [user] * size
        items += chosen.tolist()
    return pa.table({"user": users, "item": [f"i{item}" for item in items]})


@pytest.mark.parametrize("goal", ["accuracy", "keys"])
def test_a_forecast_agrees_with_releases(goal: Literal["accuracy", "keys"]) -> None:
    plan, table = plan_rounds(Budget(1.0, 1e-6), goal=goal), drawn()
    request = Request(table, user="user", item="item", epsilon=1.0, delta=1e-6)
    population = population_of(request.events(), "drawn")
    ahead = forecast(plan, population)
    expected = float(ahead.chance @ population.number)
    made = [
        dphist.release(table, user="user", item="item", epsilon=1, delta=1e-6, goal=goal, seed=seed)
        for seed in range(3)
    ]
    released = float(np.mean([len(one) for one in made]))
    assert released == pytest.approx(expected, rel=0.05)
    margins = [float(np.median(one.added["margin"])) for one in made]
    assert float(np.mean(margins)) == pytest.approx(float(np.median(ahead.margins)), rel=0.25)
    found = np.mean([one.findings.found for one in made if one.findings is not None], axis=0)
    np.testing.assert_allclose(found, ahead.findings.found, rtol=0.2, atol=10)
    items, users = np.unique(table.column("item").to_numpy(zero_copy_only=False), return_counts=True)
    for low in (30, 40, 50, 60):
        some = items[(users >= low) & (users < low + 10)]
        hits = np.mean([np.isin(some, one.items.to_pylist()).mean() for one in made])
        group = (population.counts >= low) & (population.counts < low + 10)
        chance = np.average(ahead.chance[group], weights=population.number[group])
        assert float(hits) == pytest.approx(float(chance), abs=0.12)
    trial = trial_in_rounds(plan, population, 1)
    assert trial["expected"] == expected
    assert trial["released"] == pytest.approx(expected, rel=0.1)
    assert trial["within_margin"] > 0.9


@pytest.mark.parametrize("exponent", [1.0, pytest.param(1.3, marks=pytest.mark.slow)])
def test_the_default_is_simulated_like_limits(exponent: float) -> None:
    """Items within 5 % of releases, distances within 10 %; the default is better than a limit."""
    table = drawn(exponent)
    truth = dict(
        zip(*np.unique(table.column("item").to_numpy(zero_copy_only=False), return_counts=True), strict=True)
    )
    found = dphist.simulate(table, user="user", item="item", epsilon=1, delta=1e-6, limits=[8], tops=[])
    assert found.best.kind == "goal"
    for one in found.candidates:
        made = [
            dphist.release(table, user="user", item="item", epsilon=1, delta=1e-6, seed=seed, **one.options)
            for seed in range(8)
        ]
        assert float(np.mean([len(each) for each in made])) == pytest.approx(one.items, rel=0.05)
        distances = []
        for each in made:
            rows = each.to_arrow()
            counts = dict(zip(rows.column("item").to_pylist(), rows.column("count").to_pylist(), strict=True))
            distances.append(sum(abs(counts.get(item, 0) - users) for item, users in truth.items()))
        assert float(np.mean(distances)) / sum(truth.values()) == pytest.approx(one.distance, rel=0.1)


def test_known_items_and_lists_are_always_released() -> None:
    population = LAW.population()
    plan = plan_rounds(Budget(1.0, 1e-6))
    before, after = forecast(plan, population), forecast(plan, population, 400)
    first = population.first(400).number > 0
    assert (after.chance[first][:-1] == 1.0).all()
    assert float(after.chance @ population.number) > max(400, float(before.chance @ population.number))
    assert after.findings.found[0] == 400
    listed = forecast(plan_rounds(Budget(1.0, 1e-6), public_items=1000), population)
    assert (listed.chance == 1.0).all()
    assert (listed.findings.needed, listed.findings.found) == (None, (population.items, 0))


def test_given_counts_have_users_with_several_items() -> None:
    counts = np.array([5000, 3000, *[40] * 100], dtype=np.int64)
    for per_user in (1.0, 3.0, 500.0):
        population = given_population(counts, per_user)
        assert population.pairs == counts.sum()
        # No item has more users than there are.
        assert population.users >= 5000 or per_user > 1.0
        assert sum(n * users for n, users in population.sizes) == pytest.approx(counts.sum(), rel=0.02)
        everybody, _ = population.left(np.ones(len(population.sizes)), np.zeros(len(population.sizes)))
        np.testing.assert_allclose(everybody, population.counts)
    assert given_population(counts).sizes == ((1, int(counts.sum())),)
