"""`simulate`: populations, candidates, recommendations, and releases as they were predicted."""

from __future__ import annotations

import doctest
import importlib
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dphist
from dphist.errors import InputError, InvalidParameter
from dphist.planning.auto_cap import choose_plan
from dphist.privacy.types import DEFAULT_CAPS, Budget, LatticeNoise
from dphist.releasing.document import choice_for
from dphist.releasing.noise import begin, noisy_sizes
from dphist.sampling.tap import SeededTap
from dphist.simulation.population import NOTICE, Population, Zipf, zipf_from
from dphist.simulation.predict import totals_of
from dphist.simulation.simulate import default_caps, predict
from simulation_data import job, released

BUDGET = Budget(1.0, 1e-6)
COLUMNS: dict[str, Any] = {"user": "user", "item": "item"}
# Real data is beside the project where it is at hand.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def log() -> Any:
    return job()


@pytest.fixture(scope="module")
def found(log: Any) -> dphist.Simulation:
    return dphist.simulate(log.table, **COLUMNS, epsilon=1, delta=1e-6, caps=[1, 3, 10, 30, 100], tops=[10, 100])


def test_the_population_is_counted_exactly(log: Any, found: dphist.Simulation) -> None:
    population, truth = found.population, log.truth
    sizes = np.bincount(log.users)
    assert (population.users, population.items, population.pairs) == ((sizes > 0).sum(), truth.size, truth.sum())
    assert population.largest == sizes.max()
    assert dict(population.sizes) == {int(n): int((sizes == n).sum()) for n in set(sizes.tolist()) - {0}}
    for cap in (1, 10, 16):
        chance = np.minimum(1.0, cap / sizes[log.users])
        mean, variance = population.under(cap)
        assert mean @ population.number == pytest.approx(chance.sum(), rel=1e-9)
        assert variance @ population.number == pytest.approx((chance * (1 - chance)).sum(), rel=1e-9)
        # The large counts are alone in their groups.
        expected = np.bincount(log.items, chance)[truth.argmax()]
        assert mean[population.counts.argmax()] == pytest.approx(expected, rel=1e-9)
    counted = np.repeat(population.counts, population.number.astype(int))
    assert np.array_equal(np.sort(counted), np.sort(truth))
    assert population.count_at(20) == np.sort(truth)[-20]
    assert sum(population.buckets(DEFAULT_CAPS)) == population.users


def test_repeats_count_once_and_conditions_hold() -> None:
    table = pa.table({"user": [1, 1, 1, 2, None], "item": ["a", "a", "b", "a", "a"], "ok": [1, 1, 1, 1, 1]})
    population = dphist.simulate(table, **COLUMNS, epsilon=1, delta=1e-6, caps=[1], auto=False).population
    assert (population.users, population.items, population.pairs, population.largest) == (2, 2, 3, 2)
    some = dphist.simulate(table, **COLUMNS, where="item = 'a'", epsilon=1, delta=1e-6, auto=False).population
    assert (some.users, some.items, some.pairs, some.largest) == (2, 1, 2, 1)


@pytest.mark.parametrize(
    "place", [2, 4, *(pytest.param(place, marks=pytest.mark.slow) for place in (0, 1, 3, 5, 6))]
)
def test_releases_are_as_predicted(log: Any, found: dphist.Simulation, place: int) -> None:
    """Items within 4.5 standard errors (a false alarm in 150,000), mean errors within 3 %."""
    one = [one for one in found.candidates if one.kind in ("cap", "top")][place]
    # All counts of a top-k step share the noise of its offset: that takes more releases to average out.
    runs = max(60, round(6000 / one.items)) if one.kind == "cap" else 2500
    seen = released(log, one, runs)
    assert abs(seen.surprise) < 4.5, (one, seen)
    assert seen.mean_error == pytest.approx(one.mean_error, rel=0.03)
    assert seen.relative_error == pytest.approx(one.relative_error, rel=0.03)
    slack = 4.5 * one.plan.total_noise / math.sqrt(one.items * runs)
    assert seen.bias == pytest.approx(one.bias, abs=0.03 * float(one.mean_error or 0.0) + slack)
    assert seen.missing == pytest.approx(one.missing, abs=0.003)


@pytest.mark.parametrize("wrong", ["threshold a tenth higher", "noise a tenth larger", "no cap", "users alike"])
def test_a_wrong_formula_is_noticed(log: Any, found: dphist.Simulation, wrong: str) -> None:
    """The comparison above has the power to see such mistakes: it allows half of what they change."""
    cap = 100 if wrong == "noise a tenth larger" else 10
    plan, population = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=cap), found.population
    right, other, noise = totals_of(plan, population, cap=cap), plan, plan.noise
    assert isinstance(noise, LatticeNoise)
    if wrong == "threshold a tenth higher":
        other = replace(plan, noise=replace(noise, limit=noise.limit * 11 // 10))
    elif wrong == "noise a tenth larger":
        other = replace(plan, noise=replace(noise, variance=noise.variance * 121 / 100))
    elif wrong == "users alike":
        mean, _ = population.under(10)
        total = float(mean @ population.number) / population.pairs
        alike = population.counts * total, population.counts * total * (1 - total)
        population = Population("test", population.counts, population.number, population.sizes, lambda *_: alike)
    mistaken = totals_of(other, population, cap=None if wrong == "no cap" else cap)
    surprise = abs(mistaken.released - right.released) / math.sqrt(right.variance / 60)
    errors = mistaken.distance / mistaken.released / (right.distance / right.released)
    assert surprise > 9.0 or abs(errors - 1.0) > 0.06


def test_a_cap_chosen_privately_is_predicted(log: Any, found: dphist.Simulation) -> None:
    one = next(one for one in found.candidates if one.kind == "auto")
    assert sum(chance for _, _, chance in one.limits) == pytest.approx(1.0)
    planned, tap, rng = choice_for(BUDGET, goal="accuracy"), SeededTap(3), np.random.default_rng(3)
    sizes = found.population.buckets(planned.choice.caps)
    items, errors, estimates = [], 0.0, 0.0
    for _ in range(60):
        plan, correction = choose_plan(planned, noisy_sizes(planned.choice, sizes, tap))
        out = begin(plan, tap).release(log.weighted(plan, rng))
        true = log.truth[out.index]
        items.append(out.index.size)
        errors += np.abs(out.values - true).sum()
        found_here = correction.factors_at(out.values) * out.values
        estimates += np.abs(found_here - true).sum() + log.truth.sum() - true.sum()
    assert np.mean(items) == pytest.approx(one.items, abs=4.5 * one.items_deviation * math.sqrt(1 / 60 + 1 / 64))
    assert errors / sum(items) == pytest.approx(one.mean_error, rel=0.05)
    assert estimates / 60 / log.truth.sum() == pytest.approx(one.estimate_distance, rel=0.02)


def test_a_whole_release_is_as_predicted(log: Any, found: dphist.Simulation) -> None:
    by_name = {one.name: one for one in found.candidates}
    for seed, name in enumerate(("max_items_per_user=10", "top=100", "max_items_per_user=1"), 5):
        one = by_name[name]
        release = dphist.release(log.table, **COLUMNS, seed=seed, epsilon=1, delta=1e-6, **one.options)
        assert release.plan == one.plan
        assert abs(len(release) - one.items) < 4.5 * one.items_deviation


@pytest.mark.slow
@pytest.mark.parametrize("name", ["movietweetings_100k", "online_retail_2009_2010"])
def test_releases_of_real_data_are_as_predicted(name: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("there is no folder shared/data with real data beside the project")
    import duckdb

    from simulation_data import Log

    path = SHARED / f"{name}.parquet"
    columns = ", ".join(f'dense_rank() OVER (ORDER BY "{one}") - 1 AS "{one}"' for one in ("user", "item"))
    read = duckdb.connect().execute(f"SELECT {columns} FROM '{path}'").fetchnumpy()
    log = Log(read["user"].astype(np.int64), read["item"].astype(np.int64))
    simulated = dphist.simulate(path, **COLUMNS, epsilon=4, delta=1e-6, caps=[1, 128], tops=[100], auto=False)
    for one in simulated.candidates:
        seen = released(log, one, 1500 if one.kind == "top" else 25)
        assert abs(seen.surprise) < 4.5, (one, seen)
        assert seen.mean_error == pytest.approx(one.mean_error, rel=0.03)
        assert seen.missing == pytest.approx(one.missing, abs=0.005)


def test_recommendations(found: dphist.Simulation) -> None:
    """Estimates are published if the limit is chosen privately; else the counts are all there is."""
    distances = {
        one.name: one.estimate_distance if one.kind == "auto" else one.distance for one in found.candidates
    }
    assert found.best.name == min(distances, key=distances.__getitem__)
    for kind in ("cap", "spread", "top"):
        ranked = [one for one in found.candidates if one.kind == kind]
        assert found.best_of(kind) is min(ranked, key=lambda one: one.distance)
    keys = replace(found, goal="keys")
    assert keys.best is max(found.candidates, key=lambda one: one.items)
    mass = replace(found, goal="mass")
    assert mass.best is min(found.candidates, key=lambda one: one.missing)
    for one in (found, keys, mass):
        assert one.reason.startswith(f"Choose {one.best.name}: ")
        others = {
            "cap": "that drops",
            "spread": "that spreads",
            "top": "top-k step",
            "auto": "the automatic limit",
        }
        for kind, words in others.items():
            assert (words in one.reason) == (one.best.kind != kind)
        assert one.reason.count(".") >= 1
        assert str(one).splitlines()[0] == NOTICE


def test_the_bias_of_estimates_is_shown_by_true_counts(found: dphist.Simulation) -> None:
    best = found.best
    for (low, items, bias), row in zip(best.bands, best.to_dict()["items_by_true_count"], strict=True):
        assert row == {"from": low, "items": items, "estimate_bias": bias}
        assert (bias is None) == (items < 1e-3)
        if items >= 0.05 and bias is not None:
            assert f"{bias:+.1%}" in str(found)
    assert f"{best.correction:.4g} * count" in str(found)


def test_a_recommendation_says_what_it_was_chosen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit chosen privately is recommended if nothing that was tried beats it; or nothing is."""
    monkeypatch.setattr(importlib.import_module("dphist.simulation.simulate"), "_TRIALS", 8)
    few = dphist.simulate(zipf="3,1000,1000", epsilon=1, delta=1e-6, caps=[1], tops=[])
    assert few.best.kind == "auto"
    assert few.reason.startswith("Choose max_items_per_user='auto': of all candidates, its published numbers")
    assert re.search(
        r"max_items_per_user='auto' would publish about \d+ of \d+ items and [\d.]+% of all pairs", few.reason
    )
    flags = few.recommendation(flags=True)
    assert flags.startswith("Choose --max-items-per-user auto: of all candidates, its published numbers")
    assert "the best limit that drops the excess, --max-items-per-user 1, has a distance of" in flags
    assert "_" not in flags
    none = dphist.simulate(zipf="1,1000,20", epsilon=1, delta=1e-6, caps=[4], tops=[10], auto=False)
    assert re.match(r"Choose none of them: at most [\d.]+e-\d+ items are expected", none.reason), none.reason
    assert none.to_dict()["recommended"]["option"] is None
    assert "*" not in str(none)


def test_it_says_that_nothing_of_it_is_private(log: Any, found: dphist.Simulation) -> None:
    assert found.private is False
    assert found.to_dict()["private"] is False
    assert "public or synthetic data only" in NOTICE
    assert str(found).startswith("NOT PRIVATE")
    assert str(found).startswith(NOTICE)
    assert f"<strong>{NOTICE}" in found._repr_html_()
    everything: list[Any] = [found, *found.candidates]
    for one in everything:
        assert NOTICE in repr(one)
        assert NOTICE in str(one)
        assert (one.to_dict()["private"], one.to_dict()["notice"]) == (False, NOTICE)
    assert NOTICE in repr(found.population)
    assert pd.DataFrame(found.table()).to_string().splitlines()[1].split(maxsplit=1)[1].startswith("NOT PRIVATE")
    assert len(found.table()) == len(found.candidates)
    first = found.table()[0]
    assert first["option"] == "max_items_per_user=1"
    assert found.to_dict()["candidates"][0]["option"] == "--max-items-per-user 1"
    told = found.to_dict()["population"]
    assert sum(band["items"] for band in told["items_by_true_count"]) == told["items"]
    assert told["items_by_true_count"][1]["items"] == ((log.truth >= 10) & (log.truth < 100)).sum()
    by_count = found.to_dict()["candidates"][0]["items_by_true_count"]
    assert sum(band["items"] for band in by_count) == pytest.approx(first["items"])


def test_default_caps() -> None:
    assert default_caps(10) == (1, 2, 3, 4, 6, 8, 12)
    assert default_caps(12) == (1, 2, 3, 4, 6, 8, 12)
    assert default_caps(10**6) == DEFAULT_CAPS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give public data, or zipf"),
        ({"source": "x.csv", "zipf": "1,10,10"}, "give public data, or zipf"),
        ({"zipf": "1,10"}, "of the form S,N,USERS"),
        ({"zipf": "1,10.5,10"}, "of the form S,N,USERS"),
        ({"zipf": (1, "ten", 10)}, "of the form S,N,USERS"),
        ({"zipf": "11,10,10"}, "from 0 to 10"),
        *(({"zipf": f"{wrong},10,10"}, "must be a finite number") for wrong in ("nan", "inf", "1e400")),
        *(({"zipf": f"1,10,10,{wrong}"}, "must be a finite number") for wrong in ("nan", "-inf", "1e400")),
        *(
            ({"zipf": wrong}, "of the form S,N,USERS")
            for wrong in (
                5,
                True,
                [1, [2], 3],
                [[1, 10, 10]],
                (None, 10, 10),
                (True, 10, 10),
                b"1,10,10",
                {1, 10, 11},
                {},
                "",
                "a,b,c",
                "1,,10",
                "1,inf,10",
                "1,nan,10",
                "1,10,1e400",
                (1, 10**400, 5),
                "1,2,3,4,5",
                object(),
            )
        ),
        ({"zipf": "x" * 500}, r"not 'x{79}$"),
        ({"zipf": "-1,10,10"}, "from 0 to 10"),
        ({"zipf": "1,-10,10"}, "number of items"),
        ({"zipf": "1,10,-10"}, "number of users"),
        ({"zipf": Zipf}, "of the form S,N,USERS"),
        ({"zipf": "1,0,10"}, "number of items"),
        ({"zipf": "1,1e9,10"}, "at most 100,000,000 items"),
        ({"zipf": "1,10,10,9"}, "at least 1 item"),
        ({"zipf": "1,10,10", "user": "u"}, "synthetic data has no 'user'"),
        ({"zipf": "1,1000,10", "goal": "all"}, "goal must be 'counts' or 'keys' or 'mass', not 'all'"),
        ({"zipf": "1,1000,10", "caps": [0]}, "each of the caps"),
        ({"zipf": "1,1000,10", "tops": [True]}, "each of the tops"),
        ({"zipf": "1,1000,10", "caps": [], "tops": [], "auto": False}, "no candidate"),
        ({"source": "x.csv", "user": "u"}, "give the column of the item with item"),
        ({"source": "x.csv", "user": "u", "item": "i", "top": 3}, "simulate has no 'top'"),
    ],
)
def test_bad_requests(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        dphist.simulate(given.pop("source", None), epsilon=1, delta=1e-6, **given)


def test_docstring_example() -> None:
    result = doctest.testmod(importlib.import_module("dphist.simulation.simulate"))
    assert result.attempted > 0
    assert result.failed == 0


def test_what_cannot_be_read() -> None:
    with pytest.raises(InputError):
        dphist.simulate("nothing.parquet", **COLUMNS, epsilon=1, delta=1e-6)
    empty = pa.table({"user": pa.array([], pa.int64()), "item": pa.array([], pa.string())})
    with pytest.raises(InputError, match="no event"):
        dphist.simulate(empty, **COLUMNS, epsilon=1, delta=1e-6)


def test_tiny_populations_release_nothing() -> None:
    tiny = dphist.simulate(zipf=(0.0, 4, 3, 1.0), epsilon=0.1, delta=1e-9, tops=[2], auto=False)
    assert all(one.items < 1e-3 and one.mean_error is None for one in tiny.candidates)
    assert all(one.missing == pytest.approx(1.0) for one in tiny.candidates)
    assert "-" in str(tiny)
    assert zipf_from(Zipf(1.0, 4, 3, 1.0)) == Zipf(1.0, 4, 3, 1.0)
    assert predict(BUDGET, tiny.population, "top", 2).items < 1e-3
