"""Warnings about released numbers that cannot be what was meant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dphist
from dphist.releasing.plausibility import NOTHING
from release_commands import command

BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1, "delta": 1e-6, "seed": 5}
LIMITS: list[dict[str, Any]] = [{}, {"max_items_per_user": 2}, {"top": 2}, {"interval": 0.5}]


def log(amount: str, users: int = 4000) -> pd.DataFrame:
    return pd.DataFrame({
        "user": [*range(users), *range(users // 2)],
        "item": ["a"] * users + ["b"] * (users // 2),
        "amount": amount,
    })  # fmt: skip


def warnings(amount: str, **options: Any) -> str:
    return " ".join(dphist.release(log(amount), **BUDGET, **options).summary.warnings)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize(
    ("amount", "sums", "expected"),
    [
        ("12,5", {"sum": "amount:0:50"}, "Every amount_sum is zero up to its noise"),
        ("12.5", {"sum": "amount:0:50"}, ""),
        ("12,5", {"sum": "amount:-50:50"}, "Every amount_sum is zero up to its noise"),
        ("12,5", {"mean": "amount:0:50"}, "Every amount_mean is zero up to its noise"),
        ("12.5", {"mean": "amount:0:50"}, ""),
        ("n/a", {"vector": "v=amount,user:50"}, "Every v_amount is zero up to its noise"),
        ("12,5", {"sum": "amount:10:50"}, "Every amount_sum is at its lower bound"),
        ("99.5", {"sum": "amount:0:50"}, "Every amount_sum is at its upper bound"),
        ("99.5", {"mean": "amount:10:50"}, "Every amount_mean is at its upper bound"),
        ("-1", {"sum": "amount:-50:-10"}, ""),
    ],
    ids=str,
)
def test_sums_that_are_zero_or_at_a_bound(
    limit: dict[str, Any], amount: str, sums: dict[str, str], expected: str
) -> None:
    found = warnings(amount, **limit, **sums)
    assert expected in found
    assert ("Every " in found) == bool(expected)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_sums_of_a_file_with_decimal_commas(tmp_path: Path, limit: dict[str, Any]) -> None:
    log("12,5").to_csv(tmp_path / "log.csv", index=False)
    for decimal, expected in ((None, "needs the decimal sign ','"), (",", "")):
        options = {**BUDGET, **limit, "decimal": decimal, "sum": "amount:0:50"}
        found = " ".join(dphist.release(tmp_path / "log.csv", **options).summary.warnings)
        assert expected in found
        assert ("Every " in found) == bool(expected)


def test_a_few_zeros_are_no_reason() -> None:
    data = log("0")
    data.loc[data["item"] == "a", "amount"] = "20"
    assert "Every" not in " ".join(dphist.release(data, sum="amount:0:50", **BUDGET).summary.warnings)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_sums_beyond_what_the_counts_allow(limit: dict[str, Any]) -> None:
    made = dphist.release(log("12.5"), sum="amount:0:50", **BUDGET, **limit)
    assert "beyond" not in " ".join(made.summary.warnings)
    for wrong in (-0.5, 1.5):
        numbers = {**made.added, "amount_sum": wrong * 50 * np.asarray(made.counts, dtype=np.float64)}
        changed = replace(made, added=numbers)
        assert "amount_sum of 2 items is beyond what the counts allow" in changed.summary.warnings[0]
        assert "Warning: amount_sum of 2 items" in repr(changed).replace("\n", " ")


def test_nothing_released() -> None:
    made = dphist.release(log("1").head(5), **BUDGET)
    assert made.summary.warnings[0] == NOTHING
    assert len(made) == 0


def test_the_command_warns_in_text_and_in_json(tmp_path: Path) -> None:
    log("1.234,56").to_csv(tmp_path / "log.csv", index=False)
    flags = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--sum", "amount:0:3000"]
    told = command(tmp_path, "release", "log.csv", *flags, "-o", "a.csv")
    assert told.code == 0
    assert "Warning: Every amount_sum is zero up to its noise." in told.out
    told = command(tmp_path, "release", "log.csv", *flags, "-o", "b.csv", "--json")
    assert json.loads(told.out)["summary"]["warnings"][0].startswith("Every amount_sum is zero")
    told = command(tmp_path, "release", "log.csv", *flags, "--decimal", ",", "-o", "c.csv")
    assert "Every" not in told.out
