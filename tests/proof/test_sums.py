"""Releases with sums and means: plans, the law of the results, columns and facts, bad requests, forgeries."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import dphist
from dphist.certificate.aggregates import Aggregate
from dphist.certificate.numbers import sum_error
from dphist.errors import InputError, InvalidParameter
from dphist.model import FINEST_REACH, LatticeNoise
from release_data import resealed
from scheduling import crossed
from spark_cluster import ON_SPARK
from spark_shared import shared_session

BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-3}
USERS, ITEMS = 250, 80
# Standard errors by which each statistic may be off: false alarm below 1e-9 in all.
ALLOWED = 6.7


@cache
def shop() -> pa.Table:
    """Every item has as many users, and each of them pays 0.005 i for item i, in two rows."""
    users = [f"{i}-{u}" for i in range(ITEMS) for u in range(USERS)]
    items = [f"item {i:02}" for i in range(ITEMS) for _ in range(USERS)]
    paid = np.repeat(np.arange(ITEMS) / 400.0, USERS)
    return pa.table({"user": users * 2, "item": items * 2, "paid": np.concatenate([paid, paid])})


def columns(release: Any) -> dict[str, Any]:
    table = release.to_arrow().sort_by("item")
    return {name: np.asarray(table.column(name)) for name in table.column_names}


@pytest.mark.parametrize(
    ("bound", "sums"),
    crossed(
        [
            {"max_items_per_user": 1},
            {"max_items_per_user": 30},
            {"max_nonzero": 400},
            {"top": 60},
            {"public_items": 40},
        ],
        [[(0, 1)], [(0, 500), (-3, 4), (18, 99)]],
    ),
)
def test_plans_are_certified_and_cost_what_they_must(bound: dict[str, Any], sums: list[tuple[int, int]]) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, sums=sums, **bound)
    assert plan.proof.delta <= 1e-6
    assert isinstance(plan.noise, LatticeNoise)
    assert [(int(sum_noise.low), int(sum_noise.high)) for sum_noise in plan.sums] == sums
    gaussian: dict[str, Any] = {} if "top" in bound or "public_items" in bound else {"mechanism": "gaussian"}
    alone = dphist.plan(epsilon=1.0, delta=1e-6, **gaussian, **bound)
    assert plan.total_noise > alone.total_noise
    # The shares add up to the whole squared sensitivity: no more noise than the exact analysis needs for it.
    if "max_items_per_user" in bound:
        whole = alone.sigma * math.sqrt(1 + float(plan.noise.extra))
        assert plan.sigma == pytest.approx(whole, rel=2e-3)


def test_shared_noise_makes_counts_cheap() -> None:
    """With a bound on all counts, sums cost less than without shared noise."""
    shared = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=1000, sums=[(0, 1)], weights=[0.5])
    plain = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=1000, sums=[(0, 1)], weights=[0.5])
    assert shared.sigma_shared > 0.0
    assert shared.total_noise < 0.75 * plain.total_noise
    assert shared.sums[0].sigma < 0.75 * plain.sums[0].sigma


def test_weights_are_shares_of_the_squared_sensitivity() -> None:
    for weights in ([0.1], [0.9], [0.2, 0.3]):
        bounds = [(0, 10)] * len(weights)
        plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, sums=bounds, weights=weights)
        noise = plan.noise
        assert isinstance(noise, LatticeNoise)
        for weight, one in zip(weights, plan.sums, strict=True):
            share = Fraction(one.reach**2) / one.variance / (noise.lattice**2 / noise.variance * (1 + noise.extra))
            assert float(share) == pytest.approx(weight, rel=0.1)


def test_the_best_weights_are_better_than_their_neighbours() -> None:
    def cost(**options: Any) -> float:
        plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=20, sums=[(0, 1)], **options)
        return plan.total_noise**2 + sum_error(plan, plan.sums[0]) ** 2

    best = cost()
    assert all(best < cost(weights=[weight]) for weight in (0.1, 0.2, 0.45, 0.6, 0.8))
    # The closed form without shared noise: the counts have sqrt(1 + 1/4), the sum 1/2.
    share = 0.5 / (0.5 + math.sqrt(1.25))
    assert best == pytest.approx(cost(weights=[share]), rel=1e-3)


@pytest.mark.usefixtures("plans_once")
@pytest.mark.usefixtures("unrounded")
@pytest.mark.parametrize(
    "options",
    [
        {"max_items_per_user": 1},
        *(
            pytest.param(other, marks=pytest.mark.slow)
            for other in ({"max_nonzero": 100}, {"top": 100}, {"items": "listed", "max_items_per_user": 1})
        ),
    ],
)
def test_errors_and_intervals_are_as_planned(options: dict[str, Any]) -> None:
    """The law of sums and means over 1,280 numbers: false alarm below 1e-9.

    Power: a standard deviation wrong by a quarter fails. Without shared noise, intervals miss as often as planned
    (binomial).
    """
    data, runs = shop(), 16
    if "items" in options:
        options = {**options, "items": pa.table({"item": [f"item {i:02}" for i in range(ITEMS)]})}
    asked = {**BUDGET, **options, "sum": "total=paid:0:0.5", "mean": "average=paid:0:0.5", "interval": 0.8}
    true = np.arange(ITEMS) / 200.0
    releases = [dphist.release(data, **asked) for _ in range(runs)]
    plan, rows = releases[0].plan, [columns(release) for release in releases]
    assert all(row["item"].tolist() == rows[0]["item"].tolist() and row["item"].size == ITEMS for row in rows)
    count = np.array([row["count"] for row in rows]) - USERS
    total = np.array([row["total"] for row in rows]) - true * USERS
    own = total - 0.25 * count
    number = runs * ITEMS
    expected = plan.sums[0].sigma
    error = expected**2 * math.sqrt(2 / number)
    assert abs((own**2).mean() - expected**2) < ALLOWED * error
    assert abs((own**2).mean() - (1.25 * expected) ** 2) > ALLOWED * error
    assert abs(own.mean()) < ALLOWED * expected / math.sqrt(number)
    # The noise of the sum is independent of that of its count: they must not share words.
    spread = count.std() * own.std() / math.sqrt(number)
    assert abs((count * own).mean()) < ALLOWED * spread
    # A mean is the middle plus the released sum around it per released user, clipped to the bounds.
    counts, totals, means = (np.array([row[name] for row in rows]) for name in ("count", "total", "average"))
    assert np.allclose(means, np.clip(0.25 + (totals - 0.25 * counts) / counts, 0.0, 0.5))
    if plan.sigma_shared == 0.0:
        misses = {
            name: sum(int(((row[f"{name}_low"] > truth) | (row[f"{name}_high"] < truth)).sum()) for row in rows)
            for name, truth in (("total", true * USERS), ("average", true))
        }
        allowed = ALLOWED * math.sqrt(0.16 * number)
        assert 0.2 * number - allowed < misses["total"] < 0.2 * number + allowed
        assert misses["average"] < 0.2 * number + allowed


def test_columns_names_and_facts(tmp_path: Path) -> None:
    release = dphist.release(
        shop(), **BUDGET, max_items_per_user=1, sum=["paid:0:1"], mean=["paid:0:1", "m2=paid:0:2"],
        standard_error=True, interval=0.9, output=tmp_path / "out.csv",
    )  # fmt: skip
    names = release.to_arrow().column_names
    assert names[:5] == ["item", "count", "count_standard_error", "count_low", "count_high"]
    assert names[5:] == [
        f"{name}{end}"
        for name in ("paid_sum", "paid_mean", "m2")
        for end in ("", "_standard_error", "_low", "_high")
    ]
    # A sum and a mean of the same values are one sum.
    assert [(int(sum_noise.low), int(sum_noise.high)) for sum_noise in release.plan.sums] == [(0, 1), (0, 2)]
    facts = release.document()["sums"]
    assert [one["name"] for one in facts] == ["paid_sum", "paid_mean", "m2"]
    plan = release.plan
    assert facts[0]["standard_error"] == math.hypot(plan.sums[0].sigma, 0.5 * plan.total_noise)
    assert facts[0]["covariance_with_count"] == pytest.approx(0.5 * plan.total_noise**2)
    assert facts[0]["bias_at_threshold"] == pytest.approx(0.5 * 0.7979 * plan.total_noise, rel=1e-3)
    table = columns(release)
    assert (table["paid_sum_standard_error"] == facts[0]["standard_error"]).all()
    assert ((table["paid_mean_low"] <= table["paid_mean"]) & (table["paid_mean"] <= table["paid_mean_high"])).all()
    assert (table["paid_mean_low"] >= 0).all()
    assert (table["paid_mean_high"] <= 1).all()
    assert dphist.verify(tmp_path / "out.csv").verified


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=ON_SPARK)])
def test_values_that_are_not_numbers_are_never_an_error(engine: str, tmp_path: Path) -> None:
    strange = ["", "NaN", "abc", "1e400", "-1e400", "inf", "12", "-7", " 3 ", "0x10", None, "1,5"]
    users = [str(n) for n in range(1200)]
    table = pa.table({"user": users, "item": ["tea"] * 1200, "v": (strange * 100)})
    source: Any = tmp_path / "v.csv"
    if engine == "spark":
        source = shared_session("local").createDataFrame(table)
    else:
        pa.csv.write_csv(table, source)
    release = dphist.release(source, **BUDGET, max_items_per_user=1, sum="v:0:10", seed=3)
    result = columns(release)
    # Of every twelve users, one counts 10 for infinity, one 10 for 12 and one 3; all others count 0.
    noise = sum_error(release.plan, release.plan.sums[0])
    assert abs(result["v_sum"][0] - 100 * 23) < 8 * noise
    assert result["item"].tolist() == ["tea"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sum": "paid"}, "COLUMN:LOW:HIGH"),
        ({"sum": "paid:1"}, "COLUMN:LOW:HIGH"),
        ({"sum": ":0:1"}, "COLUMN:LOW:HIGH"),
        ({"sum": "paid:1:0"}, "LOW must be below HIGH"),
        ({"sum": "paid:1:1"}, "LOW must be below HIGH"),
        ({"mean": "paid:nan:1"}, "not a number"),
        ({"mean": "paid:0:inf"}, "not a number"),
        ({"sum": "paid:0:1e999"}, "too"),
        ({"sum": "paid:1000000000:1000000001"}, "too close together"),
        ({"sum": ["paid:0:1", "paid:0:2"]}, "two columns would be called 'paid_sum'"),
        ({"sum": "item=paid:0:1"}, "two columns would be called 'item'"),
        ({"sum": "paid:0:1", "weight": [0.2, 0.3]}, "one weight for each sum"),
        ({"sum": "paid:0:1", "weight": [1.0]}, "together below 1"),
        ({"sum": "paid:0:1", "weight": [float("nan")]}, "finite"),
        ({"weight": [0.5]}, "one weight for each sum"),
        ({"sum": "paid:0:1", "mechanism": "laplace"}, "Gaussian"),
        ({"sum": 7}, "must be a text"),
    ],
)
def test_bad_requests_are_rejected_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said) as caught:
        dphist.release(shop(), **BUDGET, max_items_per_user=1, **options)
    assert "\n" not in str(caught.value)


def test_sums_with_a_top_k_step_need_its_offset() -> None:
    with pytest.raises(InvalidParameter, match="offset"):
        dphist.release(shop(), **BUDGET, top=10, offset="none", sum="paid:0:1")
    with pytest.raises(InvalidParameter, match="offset"):
        dphist.plan(epsilon=1.0, delta=1e-6, top=10, offset="none", sums=[(0, 1)])


def test_columns_that_cannot_be_summed() -> None:
    data = shop().append_column("when", pa.array([None] * (2 * USERS * ITEMS), pa.date32()))
    with pytest.raises(InputError, match="cannot be summed"):
        dphist.release(data, **BUDGET, max_items_per_user=1, sum="when:0:1")
    with pytest.raises(InputError, match="absent"):
        dphist.release(data, **BUDGET, max_items_per_user=1, sum="absent:0:1")


def test_plans_with_sums_serve_whole_releases_only() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, sums=[(0, 1)])
    with pytest.raises(InvalidParameter, match="sums"):
        dphist.release_histogram(["a"], [5], plan)
    for options in ({"noise": "continuous"}, {"mechanism": "laplace"}, {"analysis": "gshm-exact"}):
        with pytest.raises(InvalidParameter, match="sums need"):
            dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, sums=[(0, 1)], **options)  # type: ignore[arg-type]


def test_noise_too_large_for_the_finest_steps_uses_coarser_ones() -> None:
    plan = dphist.plan(epsilon=0.01, delta=1e-9, max_items_per_user=100, sums=[(0, 1)], weights=[0.01])
    assert plan.sums[0].reach < FINEST_REACH
    assert plan.proof.delta <= 1e-9


def less_noise(sum_noise: dict[str, Any]) -> dict[str, Any]:
    variance = Fraction(sum_noise["variance_steps"]) / 2
    return {"variance_steps": str(variance), "sigma": sum_noise["sigma"] / math.sqrt(2)}


FORGERIES: list[Callable[[dict[str, Any]], Any]] = [
    lambda document: document["request"].update({"sum": ["paid:0:2"]}),
    lambda document: document["plan"]["sums"][0].update(less_noise(document["plan"]["sums"][0])),
    lambda document: document["plan"]["sums"][0].update({"reach_steps": FINEST_REACH // 2}),
    lambda document: (document["plan"].pop("sums"), document.pop("sums")),
    lambda document: document["sums"][0].update({"standard_error": document["sums"][0]["standard_error"] / 2}),
    lambda document: document["plan"].update(
        {"sums": [{"low": "x", "high": "1", "reach_steps": -1, "variance_steps": "1/0"}]}
    ),
]


def test_forged_sums_are_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    dphist.release(shop(), **BUDGET, max_items_per_user=1, sum="paid:0:1", output=path)
    certificate = Path(f"{path}.certificate.json")
    sound = certificate.read_text()
    for number, forge in enumerate(FORGERIES):
        certificate.write_text(sound)
        assert dphist.verify(path).verified
        document = json.loads(sound)
        forge(document)
        certificate.write_text(resealed(document))
        assert not dphist.verify(path).verified, number


def test_bounds_are_taken_as_written() -> None:
    one = Aggregate.parse("sum", "a:b=c:0.1:1e-0")
    assert (one.column, one.low, one.high, one.name) == ("c", Fraction(1, 10), Fraction(1), "a:b")
    assert Aggregate.parse("mean", "x:-2:.5").name == "x_mean"
