"""`simulate` in Python and on the command line: populations, predictions against releases, recommendations."""

from __future__ import annotations

import doctest
import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dphist
from dphist.cli import commands
from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.model import Budget, LatticeNoise
from dphist.simulation.population import NOTICE, Population, Zipf, zipf_from
from dphist.simulation.predict import totals_of
from dphist.simulation.simulate import DEFAULT_LIMITS, Kind, default_limits, predict
from simulation_data import job, released

BUDGET = Budget(1.0, 1e-6)
COLUMNS: dict[str, Any] = {"user": "user", "item": "item"}
# Real data, if it is available next to the project.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def log() -> Any:
    return job()


@pytest.fixture(scope="module")
def found(log: Any) -> dphist.Simulation:
    return dphist.simulate(log.table, **COLUMNS, epsilon=1, delta=1e-6, limits=[1, 3, 10, 30, 100], tops=[10, 100])


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


def test_repeats_count_once_and_conditions_hold() -> None:
    table = pa.table({"user": [1, 1, 1, 2, None], "item": ["a", "a", "b", "a", "a"], "ok": [1, 1, 1, 1, 1]})
    population = dphist.simulate(table, **COLUMNS, epsilon=1, delta=1e-6, limits=[1]).population
    assert (population.users, population.items, population.pairs, population.largest) == (2, 2, 3, 2)
    some = dphist.simulate(table, **COLUMNS, where="item = 'a'", epsilon=1, delta=1e-6).population
    assert (some.users, some.items, some.pairs, some.largest) == (2, 1, 2, 1)


@pytest.mark.parametrize(
    "place", [2, *(pytest.param(place, marks=pytest.mark.slow) for place in (0, 1, 3, 4, 5, 6))]
)
def test_releases_are_as_predicted(log: Any, found: dphist.Simulation, place: int) -> None:
    """Items within 4.5 standard errors (a false alarm in 150,000), mean errors within 3 %."""
    one = [each for each in found.candidates if each.kind != "goal"][place]
    # All counts of a top-k step share the noise of its offset, which takes more releases to average out.
    runs = max(60, round(6000 / one.items)) if one.kind == "limit" else 2500
    seen = released(log, one, runs)
    assert abs(seen.surprise) < 4.5, (one, seen)
    assert seen.mean_error == pytest.approx(one.mean_error, rel=0.03)
    assert seen.relative_error == pytest.approx(one.relative_error, rel=0.03)
    slack = 4.5 * one.plan.total_noise / math.sqrt(one.items * runs)
    assert seen.bias == pytest.approx(one.bias, abs=0.03 * float(one.mean_error or 0.0) + slack)
    assert seen.missing == pytest.approx(one.missing, abs=0.003)


@pytest.mark.parametrize("wrong", ["threshold a tenth higher", "noise a tenth larger", "no cap", "users alike"])
def test_a_wrong_formula_is_noticed(log: Any, found: dphist.Simulation, wrong: str) -> None:
    """The comparison above would notice such mistakes: it allows half of what they change."""
    cap = 100 if wrong == "noise a tenth larger" else 10
    plan, population = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=cap), found.population
    right, other, noise = totals_of(plan, population, limit=cap), plan, plan.noise
    assert isinstance(noise, LatticeNoise)
    if wrong == "threshold a tenth higher":
        other = replace(plan, noise=replace(noise, tau_steps=noise.tau_steps * 11 // 10))
    elif wrong == "noise a tenth larger":
        other = replace(plan, noise=replace(noise, variance=noise.variance * 121 / 100))
    elif wrong == "users alike":
        mean, _ = population.under(10)
        total = float(mean @ population.number) / population.pairs
        alike = population.counts * total, population.counts * total * (1 - total)
        population = Population("test", population.counts, population.number, population.sizes, lambda *_: alike)
    mistaken = totals_of(other, population, limit=None if wrong == "no cap" else cap)
    surprise = abs(mistaken.released - right.released) / math.sqrt(right.variance / 60)
    errors = mistaken.distance / mistaken.released / (right.distance / right.released)
    assert surprise > 9.0 or abs(errors - 1.0) > 0.06


def test_a_whole_release_is_as_predicted(log: Any, found: dphist.Simulation) -> None:
    by_name = {one.name: one for one in found.candidates}
    for seed, name in enumerate(("max_items_per_user=10", "top=100"), 5):
        one = by_name[name]
        release = dphist.release(log.table, **COLUMNS, seed=seed, epsilon=1, delta=1e-6, **one.options)
        assert release.plan == one.plan
        assert abs(len(release) - one.items) < 4.5 * one.items_deviation


@pytest.mark.slow
@pytest.mark.parametrize("name", ["movietweetings_100k", "online_retail_2009_2010"])
def test_releases_of_real_data_are_as_predicted(name: str) -> None:
    if not SHARED.is_dir():
        pytest.skip("real data in shared/data is not available")
    import duckdb

    from simulation_data import Log

    path = SHARED / f"{name}.parquet"
    columns = ", ".join(f'dense_rank() OVER (ORDER BY "{one}") - 1 AS "{one}"' for one in ("user", "item"))
    read = duckdb.connect().execute(f"SELECT {columns} FROM '{path}'").fetchnumpy()
    log = Log(read["user"].astype(np.int64), read["item"].astype(np.int64))
    simulated = dphist.simulate(path, **COLUMNS, epsilon=4, delta=1e-6, limits=[1, 128], tops=[100])
    for one in [each for each in simulated.candidates if each.kind != "goal"]:
        seen = released(log, one, 1500 if one.kind == "top" else 25)
        assert abs(seen.surprise) < 4.5, (one, seen)
        assert seen.mean_error == pytest.approx(one.mean_error, rel=0.03)
        assert seen.missing == pytest.approx(one.missing, abs=0.005)


def test_recommendations(found: dphist.Simulation) -> None:
    assert found.best is min(found.candidates, key=lambda one: one.distance)
    kinds: tuple[Kind, ...] = ("goal", "limit", "top")
    for kind in kinds:
        ranked = [one for one in found.candidates if one.kind == kind]
        assert found.best_of(kind) is min(ranked, key=lambda one: one.distance)
    keys = replace(found, goal="keys")
    assert keys.best is max(found.candidates, key=lambda one: one.items)
    mass = replace(found, goal="mass")
    assert mass.best is min(found.candidates, key=lambda one: one.missing)
    for one in (found, keys, mass):
        assert one.recommendation().startswith(f"Choose {one.best.name}: ")


def test_nothing_is_recommended_where_nothing_is_released() -> None:
    none = dphist.simulate(zipf="1,1000,20", epsilon=1, delta=1e-6, limits=[4], tops=[10])
    assert none.recommendation().startswith("Choose none of them")
    assert none.to_dict()["recommended"]["option"] is None
    assert "*" not in str(none)


def test_every_view_says_that_it_is_not_private(log: Any, found: dphist.Simulation) -> None:
    assert found.private is False
    assert NOTICE.startswith("NOT PRIVATE")
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
    assert [row["option"] for row in found.table()[:3]] == [
        "goal='accuracy'",
        "goal='keys'",
        "max_items_per_user=1",
    ]
    assert found.to_dict()["candidates"][2]["option"] == "--max-items-per-user 1"
    assert found.table()[0]["threshold"] is None


def test_default_limits() -> None:
    assert default_limits(10) == (1, 2, 3, 4, 6, 8, 12)
    assert default_limits(12) == (1, 2, 3, 4, 6, 8, 12)
    assert default_limits(10**6) == DEFAULT_LIMITS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give public data, or zipf"),
        ({"source": "x.csv", "zipf": "1,10,10"}, "give public data or zipf, not both"),
        ({"zipf": "1,10"}, "of the form S,N,USERS"),
        ({"zipf": "1,10.5,10"}, "of the form S,N,USERS"),
        ({"zipf": 5}, "of the form S,N,USERS"),
        ({"zipf": {}}, "of the form S,N,USERS"),
        ({"zipf": (True, 10, 10)}, "of the form S,N,USERS"),
        ({"zipf": (1, "ten", 10)}, "of the form S,N,USERS"),
        ({"zipf": (1, 10**400, 5)}, "of the form S,N,USERS"),
        *(({"zipf": wrong}, "of the form S,N,USERS") for wrong in ("", "1,inf,10", "1,2,3,4,5")),
        *(({"zipf": wrong}, "must be a finite number") for wrong in ("nan,10,10", "1,10,10,1e400")),
        ({"zipf": "x" * 500}, r"not 'x{79}$"),
        ({"zipf": "-1,10,10"}, "from 0 to 10"),
        ({"zipf": "1,0,10"}, "number of items"),
        ({"zipf": "1,10,-10"}, "number of users"),
        ({"zipf": "1,1e9,10"}, "at most 100,000,000 items"),
        ({"zipf": "1,10,10,9"}, "at least 1 item"),
        ({"zipf": "1,10,10", "user": "u"}, "synthetic data has no 'user'"),
        ({"zipf": "1,1000,10", "goal": "all"}, "goal must be 'accuracy' or 'keys' or 'mass', not 'all'"),
        ({"zipf": "1,1000,10", "limits": [0]}, "each of the limits"),
        ({"zipf": "1,1000,10", "tops": [True]}, "each of the tops"),
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
    tiny = dphist.simulate(zipf=(0.0, 4, 3, 1.0), epsilon=0.1, delta=1e-9, tops=[2])
    assert all(one.items < 1e-3 and one.mean_error is None for one in tiny.candidates)
    assert all(one.missing == pytest.approx(1.0) for one in tiny.candidates)
    assert "-" in str(tiny)
    assert zipf_from(Zipf(1.0, 4, 3, 1.0)) == Zipf(1.0, 4, 3, 1.0)
    assert predict(BUDGET, tiny.population, "top", 2).items < 1e-3


def run(*words: str) -> str:
    command = ["simulate", "--epsilon", "1", "--delta", "1e-6", *words]
    result = CliRunner().invoke(commands(), command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


ZIPF = ("--zipf", "1.1,1000,5000", "--limits", "1,4", "--tops", "10")


def test_the_command_starts_with_the_notice_and_ends_with_the_recommendation() -> None:
    shown = run(*ZIPF, "--goal", "keys")
    assert shown.startswith(NOTICE)
    assert shown.split("\n\n")[-1].startswith("Choose --")
    assert "it releases the most items" in " ".join(shown.split())
    assert all(len(line) <= 110 for line in shown.splitlines())


def test_json_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "public.parquet"
    log = job(4_000, 500, 300)
    pq.write_table(log.table, path)
    options = ("--limits", "2,5", "--tops", "", "--json")
    data = json.loads(run("--from", str(path), "--user", "user", "--item", "item", *options))
    assert (data["private"], data["notice"], data["goal"]) == (False, NOTICE, "accuracy")
    assert (data["population"]["name"], data["population"]["pairs"]) == ("public.parquet", log.users.size)
    limits = ["--max-items-per-user 2", "--max-items-per-user 5"]
    assert [one["option"] for one in data["candidates"]] == ["--goal accuracy", "--goal keys", *limits]
    assert data["recommended"]["limit"] in {2, 5}
    assert data["recommended"]["top"] is None


def test_a_plot_replaces_a_file_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("mine")
    words = [*ZIPF, "--plot", str(path)]
    with pytest.raises(OutputError, match="already exists; force=True replaces it"):
        run(*words)
    assert path.read_text() == "mine"
    run(*words, "--force")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert b"NOT PRIVATE" in path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([*ZIPF, "--limits", "1,x"], "limits must be whole numbers"),
        ([*ZIPF, "--plot", "a.txt"], "must end in"),
        (["--from", "x.csv"], "give the column of the user with user"),
    ],
)
def test_bad_commands(words: list[str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        run(*words)
