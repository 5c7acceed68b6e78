"""Releases with spread and with estimates: options, columns, certificates, errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dphist
from dphist.errors import InvalidParameter

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1, "delta": 1e-6}


def log(users: int = 8000, seed: int = 5) -> pd.DataFrame:
    """Users with 1 to 48 items, by one law; half of the rows twice."""
    rng = np.random.default_rng(seed)
    sizes = np.minimum(48, np.maximum(1, rng.lognormal(1.5, 1.2, users))).astype(int)
    who = np.repeat(np.arange(users), sizes)
    rows = pd.DataFrame({"user": who, "item": np.minimum(rng.zipf(1.4, who.size), 50_000)})
    rows["amount"] = rng.integers(0, 50, len(rows))
    return pd.concat((rows, rows[::2]), ignore_index=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("spread") / "log.parquet"
    log().to_parquet(file)
    return file


def weighted_counts(frame: pd.DataFrame, plan: dphist.Plan) -> pd.Series[float]:
    """The weighted counts; no user may have more items than are counted."""
    pairs = frame[["user", "item"]].drop_duplicates()
    items = pairs.groupby("user").item.transform("size")
    assert items.max() <= plan.levels[-1].items
    limits = np.array([level.items for level in plan.levels])
    steps = np.array([level.weight for level in plan.levels])
    weights = pd.Series(steps[np.searchsorted(limits, items)] / steps[0], index=pairs.index)
    return weights.groupby(pairs["item"]).sum()


def test_counts_are_weighted_and_noisy(path: Path) -> None:
    found = dphist.release(path, **ASKED, max_items_per_user=3, excess="spread")
    plan, table = found.plan, found.to_pandas()
    assert (plan.contract.items, plan.contract.spread) == (3, 48)
    assert found.certificate.delta <= 1e-6
    true = weighted_counts(log(), plan).reindex(table["item"])
    off = (table["count"].to_numpy() - true.to_numpy()) / plan.sigma
    assert len(table) > 20
    # False alarms: 200 items beyond 8 deviations, 3e-13.
    assert np.abs(off).max() < 8.0
    # They are weights: numbers of users are far larger.
    users = log().drop_duplicates(["user", "item"]).groupby("item").size().reindex(table["item"]).to_numpy()
    assert np.abs((users - table["count"].to_numpy()) / plan.sigma).max() > 8.0
    assert "estimate" not in table


def test_written_releases_verify(path: Path, tmp_path: Path) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "number.csv": {"max_items_per_user": 8, "excess": "spread", "sum": "amount:0:100"},
        "auto.parquet": {"goal": "keys", "interval": 0.9, "standard_error": True},
        "rounded.jsonl": {"round": True, "sum": "amount:0:100", "mean": "m=amount:0:100"},
    }
    for name, options in kinds.items():
        dphist.release(path, **ASKED, **options, output=tmp_path / name)
        found = dphist.verify(tmp_path / name)
        assert found.verified, (name, found.problems)


def test_without_a_limit_one_is_chosen_and_estimates_are_added(path: Path) -> None:
    found = dphist.release(path, **ASKED, standard_error=True, interval=0.95, sum="amount:0:100")
    assert found.request["max-items-per-user"] == "auto"
    assert found.chosen is not None
    table, correction = found.to_pandas(), found.chosen.correction
    names = ["count", "estimate", "amount_sum"]
    assert list(table) == [
        "item",
        *(name + end for name in names for end in ("", "_standard_error", "_low", "_high")),
        "amount_sum_estimate",
    ]
    factors = correction.factors_at(table["count"])
    assert (table["estimate"].to_numpy() == np.rint(table["count"].to_numpy() * factors)).all()
    assert table["amount_sum_estimate"].to_numpy() == pytest.approx(table["amount_sum"].to_numpy() * factors)
    # Rounding adds the variance of a uniform error.
    noise = math.hypot(found.plan.total_noise, math.sqrt(1 / 12))
    error = np.hypot(factors * noise, table["count"] * correction.errors_at(table["count"]))
    assert (table["estimate_standard_error"].to_numpy() == np.round(error.to_numpy(), 2)).all()
    assert ((table["estimate_low"] < table["estimate"]) & (table["estimate"] < table["estimate_high"])).all()
    # Printed tables have estimates first.
    assert found.table_text().split()[:2] == ["item", "estimate"]


def test_invalid_plans_with_spread() -> None:
    for options in ({"top": 10}, {"max_nonzero": 10}, {"max_items_per_user": 3, "gamma": 2.0, "max_nonzero": 9}):
        with pytest.raises(InvalidParameter, match="spread"):
            dphist.plan(epsilon=1, delta=1e-6, excess="spread", **options)
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=3, excess="spread")
    with pytest.raises(InvalidParameter, match="excess='drop'"):
        dphist.release_histogram(["a"], [5], plan)
    with pytest.raises(InvalidParameter, match="between"):
        dphist.Contract(None, 5, spread=4)


def test_a_public_list_with_spread(path: Path, tmp_path: Path) -> None:
    listed = tmp_path / "items.csv"
    listed.write_text("item\n" + "\n".join(map(str, range(1, 40))) + "\nnever\n")
    found = dphist.release(
        path, **ASKED, max_items_per_user=2, excess="spread", items=listed, output=tmp_path / "out.csv"
    )
    assert len(found) == 40
    assert dphist.verify(tmp_path / "out.csv").verified
    # Weights depend on listed items alone: users with at most two of them count in full.
    pairs = log()[["user", "item"]].drop_duplicates()
    pairs = pairs[pairs["item"] < 40]
    true = weighted_counts(pairs, found.plan)
    table = found.to_pandas().set_index("item")["count"]
    off = [(table[str(item)] - count) / found.plan.sigma for item, count in true.items()]
    assert np.abs(off).max() < 8.0
