"""Releases with vectors: columns, facts and reports, the law of the results, bad requests, forgeries, prices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from contribution import contribution_of_user, problem_of
from dphist.accounting.concentrated import zcdp_of_plan
from dphist.counting.task import Resources
from dphist.errors import InvalidParameter
from dphist.model import LatticeNoise
from engine_cases import QUICK_ON_DUCKDB, Factory, events
from release_data import resealed
from spark_cluster import ON_SPARK
from spark_shared import shared_session

BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-3}
USERS, ITEMS = 200, 20
# Standard errors by which each statistic may be off: false alarm below 1e-9 in all.
ALLOWED = 6.7
MOVE = "move=dx,dy:5"


@cache
def walks() -> pa.Table:
    """Every item has as many users. Half of them move by (3, -4) in two rows, the other half by ten times that."""
    users = [f"{i}-{u}" for i in range(ITEMS) for u in range(USERS)]
    items = [f"item {i:02}" for i in range(ITEMS) for _ in range(USERS)]
    far = np.where(np.arange(ITEMS * USERS) % 2 == 0, 0.5, 5.0)
    return pa.table({
        "user": users * 2, "item": items * 2, "dx": np.concatenate([3 * far] * 2),
        "dy": [str(-4 * one) for one in far] * 2,
    })  # fmt: skip


def columns(release: Any) -> dict[str, Any]:
    table = release.to_arrow().sort_by("item")
    return {name: np.asarray(table.column(name)) for name in table.column_names}


def test_columns_facts_and_report(tmp_path: Path) -> None:
    release = dphist.release(
        walks(), **BUDGET, max_items_per_user=1, vector=MOVE, sum="dx:0:3", standard_error=True, interval=0.9,
        output=tmp_path / "out.csv",
    )  # fmt: skip
    names = release.to_arrow().column_names
    ends = ("", "_standard_error", "_low", "_high")
    assert names[1:] == [name + end for name in ("count", "dx_sum", "move_dx", "move_dy") for end in ends]
    document, noise = release.document(), release.plan.sums[1]
    assert document["sums"][1] == {
        "name": "move", "kind": "vector", "columns": ["dx", "dy"], "norm": 5.0, "standard_error": noise.sigma,
    }  # fmt: skip
    table = columns(release)
    assert (table["move_dx_standard_error"] == noise.sigma).all()
    assert np.allclose(table["move_dy_high"] - table["move_dy_low"], 2 * 1.6448536 * noise.sigma)
    assert dphist.verify(tmp_path / "out.csv").verified
    shown = str(release)
    assert "per column of move (95 %)" in " ".join(shown.split())
    report = " ".join(unescape(dphist.make_report(tmp_path / "out.csv")).split())
    assert "the sum of dx and the vector move" in report
    assert "each user's own vector is clipped to a Euclidean norm of 5" in report
    assert "dx_sum: dx from 0 to 3; move: dx, dy to a norm of 5" in report


def test_vectors_are_clipped_and_noisy_as_planned() -> None:
    """The law of 640 numbers: false alarm below 1e-9. Power: a deviation or a length wrong by a third fails.

    All users move by (3, -4) or are clipped to it. One column's noise is independent of the other's.
    """
    runs = 16
    rows = [
        dphist.release(walks(), **BUDGET, max_items_per_user=1, vector=MOVE, seed=seed) for seed in range(runs)
    ]
    found = np.array([[columns(row)[name] for name in ("move_dx", "move_dy")] for row in rows])
    assert found.shape == (runs, 2, ITEMS)
    off = found - np.array([3.0, -4.0])[None, :, None] * USERS
    sigma, number = rows[0].plan.sums[0].sigma, off.size
    assert abs(off.mean(axis=(0, 2))).max() < ALLOWED * sigma / math.sqrt(number / 2)
    assert abs((off**2).mean() - sigma**2) < ALLOWED * sigma**2 * math.sqrt(2 / number)
    assert abs((off[:, 0] * off[:, 1]).mean()) < ALLOWED * sigma**2 / math.sqrt(number / 2)
    # Repeatable: the same seed, the same release.
    again = dphist.release(walks(), **BUDGET, max_items_per_user=1, vector=MOVE, seed=0)
    assert again.to_arrow().equals(rows[0].to_arrow())


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=ON_SPARK)])
def test_executors_add_noise_to_every_column(engine: Literal["spark"]) -> None:
    """No number is further than 8 deviations from the truth, which has a probability below 1e-13 if correct."""
    source = shared_session("local").createDataFrame(walks())
    release = dphist.release(source, **BUDGET, max_items_per_user=1, vector=MOVE, engine=engine)
    found = columns(release)
    off = np.array([found["move_dx"] - 3.0 * USERS, found["move_dy"] + 4.0 * USERS])
    assert off.shape == (2, ITEMS)
    assert abs(off).max() < 8 * release.plan.sums[0].sigma
    # Every column has noise of its own.
    assert np.unique(np.round(np.abs(off), 9)).size == off.size


@pytest.mark.parametrize(
    "options",
    [
        {"top": 25}, {"max_nonzero": 40}, {"items": "listed"},
        {},
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_release_has_vectors(options: dict[str, Any], tmp_path: Path) -> None:
    if "items" in options:
        options = {"items": pa.table({"item": ["item 00", "item 01", "nobody has this"]})}
    path = tmp_path / "out.parquet"
    release = dphist.release(walks(), **BUDGET, **options, vector=[MOVE, "other=dx:1"], interval=0.9, output=path)
    assert release.counts.size > 0
    names = release.to_arrow().column_names
    assert {"move_dx", "move_dy", "other_dx", "move_dx_low"} <= set(names)
    assert dphist.verify(path).verified, dphist.verify(path)
    off = columns(release)["move_dy"] / (columns(release)["count"] if "items" not in options else USERS)
    assert np.isfinite(off).all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vector": "dx,dy:5"}, "NAME=COLUMN,COLUMN,...:NORM"),
        ({"vector": "move=:5"}, "NAME=COLUMN,COLUMN,...:NORM"),
        ({"vector": "move=dx,,dy:5"}, "NAME=COLUMN,COLUMN,...:NORM"),
        ({"vector": "=dx:5"}, "NAME=COLUMN,COLUMN,...:NORM"),
        ({"vector": "move=dx,dy"}, "NAME=COLUMN,COLUMN,...:NORM"),
        ({"vector": "move=dx,dx:5"}, "names the column 'dx' twice"),
        ({"vector": "move=dx,dy:0"}, "NORM must be above 0"),
        ({"vector": "move=dx,dy:-5"}, "NORM must be above 0"),
        ({"vector": "move=dx,dy:inf"}, "not a number"),
        ({"vector": "move=dx,dy:1e999"}, "too"),
        ({"vector": f"move={','.join(map(str, range(257)))}:1"}, "at most 256"),
        ({"vector": [MOVE, "move=dx:1"]}, "two columns would be called 'move_dx'"),
        ({"vector": "count=dx:1", "count_name": "count_dx"}, "two columns would be called 'count_dx'"),
        (
            {"vector": MOVE, "interval": 0.9, "sum": "move_dx_low=dx:0:1"},
            "two columns would be called 'move_dx_low'",
        ),
        ({"vector": MOVE, "weight": [0.2, 0.3]}, "one weight for each sum or vector"),
        ({"vector": MOVE, "mechanism": "laplace"}, "Gaussian"),
        ({"vector": 7}, "must be a text"),
    ],
)
def test_bad_requests_are_rejected_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter, match=said) as caught:
        dphist.release(walks(), **BUDGET, max_items_per_user=1, **options)
    assert "\n" not in str(caught.value)


def scaled(factor: Fraction) -> Callable[[dict[str, Any]], Any]:
    def forge(document: dict[str, Any]) -> None:
        one = document["plan"]["sums"][0]
        one["variance_steps"] = str(Fraction(one["variance_steps"]) * factor)
        one["sigma"] *= math.sqrt(factor)
        document["sums"][0]["standard_error"] = one["sigma"]

    return forge


FORGERIES: list[Callable[[dict[str, Any]], Any]] = [
    lambda document: document["request"].update({"vector": ["move=dx,dy:10"]}),
    lambda document: document["request"].update({"vector": ["move=dx:5"]}),
    lambda document: document["request"].update({"vector": ["move=dx,dy,dz:5"]}),
    lambda document: document["request"].pop("vector"),
    scaled(Fraction(999, 1000)),
    scaled(Fraction(1, 2)),
    lambda document: document["plan"]["sums"][0].update({"columns": 1}),
    lambda document: document["plan"]["sums"][0].pop("columns"),
    lambda document: document["plan"]["sums"][0].update({"columns": 3}),
    lambda document: document["plan"]["sums"][0].update({"columns": 0}),
    lambda document: document["plan"]["sums"][0].update({"columns": 10**9}),
    lambda document: document["plan"]["sums"][0].update({"columns": "2"}),
    lambda document: document["plan"]["sums"][0].update({"low": "-4"}),
    lambda document: document["plan"]["sums"][0].update({"low": "-10", "high": "10"}),
    lambda document: document["plan"]["sums"][0].update({"reach_steps": 1 << 19}),
    lambda document: (document["plan"].pop("sums"), document.pop("sums")),
    lambda document: document["sums"][0].update({"norm": 4.0}),
    lambda document: document["sums"][0].update({"columns": ["dx"]}),
]


def test_forged_vectors_are_not_verified(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    dphist.release(walks(), **BUDGET, max_items_per_user=1, vector=MOVE, standard_error=True, output=path)
    certificate = Path(f"{path}.certificate.json")
    sound = certificate.read_text()
    for number, forge in enumerate(FORGERIES):
        certificate.write_text(sound)
        assert dphist.verify(path).verified
        document = json.loads(sound)
        forge(document)
        certificate.write_text(resealed(document))
        assert not dphist.verify(path).verified, number


@QUICK_ON_DUCKDB
def test_one_user_moves_a_vector_by_its_reach_at_most(engine: Factory, tmp_path: Path) -> None:
    """Exact, on counts without noise: with one hostile user and without."""
    plan = dphist.plan(epsilon=1.0, delta=1e-3, max_items_per_user=2, sums=[(-5, 5, 2), (0, 1)])
    rows = [(user, item, 1.0, 1.0) for user in range(9) for item in "ab"]
    hostile = [(99, item, far, -far) for item in "abcdefgh" for far in (1e308, math.inf, 7.0, math.nan)]
    both = []
    for name, content in (("with", rows + hostile), ("without", rows)):
        table = {key: [row[k] for row in content] for k, key in enumerate(("user", "item", "dx", "dy"))}
        pq.write_table(pa.table(table), tmp_path / f"{name}.parquet")
        both.append(events(str(tmp_path / f"{name}.parquet")))
    found = contribution_of_user(engine(Resources()), plan, both[0], both[1], summed=["dx", "dy", "dx"])
    assert found.problem is None
    moved = found.counts - found.neighbour
    assert (moved[:, 1] ** 2 + moved[:, 2] ** 2).max() > 0.9 * plan.sums[0].reach ** 2
    # Power: a longer vector is a problem.
    moved[:, 1] *= 2
    assert "sum 1 changes by more" in str(problem_of(moved, 2, plan.sums))


def test_ledgers_and_sessions_price_vectors() -> None:
    """A vector with half of the squared sensitivity doubles rho, and what a session books is the plan's own."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=5, sums=[(-1, 1, 4)], weights=[0.5])
    assert isinstance(plan.noise, LatticeNoise)
    alone = replace(plan, noise=replace(plan.noise, sums=()))
    assert zcdp_of_plan(plan).rho == pytest.approx(2 * zcdp_of_plan(alone).rho, rel=0.01)
    assert dphist.delta_at(plan, 0.5) > 2 * dphist.delta_at(alone, 0.5)
    session = dphist.Session(walks(), user="user", epsilon=3, delta=1e-2, accounting="zcdp")
    release = session.release(item="item", epsilon=1, delta=1e-3, max_items_per_user=1, vector=MOVE)
    (booked,) = session.account.spends
    assert booked.profile is not None
    assert booked.profile["rho"] == zcdp_of_plan(release.plan).rho
