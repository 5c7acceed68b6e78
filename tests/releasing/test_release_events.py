"""`dphist.release`: from events in any form to a private histogram."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dphist
from dphist.cli import commands
from dphist.errors import InvalidParameter
from dphist.model import Contract, LaplaceNoise
from dphist.releasing.request import Request
from release_commands import command
from release_data import as_dict, events, resealed
from scheduling import crossed

COUNTS = {"tea": 900, "milk": 700, "bread": 500, "salt": 400, "rare": 2, "unique": 1}
BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}


def near(found: dphist.Release, truth: dict[Any, int]) -> bool:
    """Within 7 standard deviations, or 20 for Laplace noise: false alarms below 1e-11 per count."""
    far = (20 if isinstance(found.plan.noise, LaplaceNoise) else 7) * found.plan.total_noise
    return all(abs(count - truth[item]) < far for item, count in as_dict(found).items())


@pytest.mark.parametrize(
    "options",
    [
        {"max_items_per_user": 2},
        {"max_items_per_user": 2, "mechanism": "gaussian"},
        {"max_items_per_user": 1, "mechanism": "laplace"},
        {"top": 3},
        {"top": 3, "offset": "independent"},
        {"max_nonzero": 6},
        {"max_nonzero": 6, "max_items_per_user": 2},
        {"max_items_per_user": 2, "lower_threshold": 20},
        {"top": 3, "lower_threshold": 20},
    ],
)
def test_counts_are_right_up_to_noise(options: dict[str, Any]) -> None:
    # With this delta, a count of one or two passes with a probability below 1e-11.
    found = dphist.release(events(COUNTS), **{**BUDGET, "delta": 1e-12}, **options)
    released = as_dict(found)
    assert set(released) >= {"tea", "milk"}
    assert not set(released) & {"rare", "unique"}
    assert near(found, COUNTS)
    assert found.private
    assert found.proof.delta <= 1e-12
    assert list(released.values()) == sorted(released.values(), reverse=True)


@pytest.mark.parametrize("lower", [1, 100])
def test_without_an_offset_counts_are_differences_to_the_next_count(lower: int) -> None:
    found = dphist.release(events(COUNTS), **BUDGET, top=2, offset="none", lower_threshold=lower)
    assert near(found, {"tea": 400, "milk": 200})
    assert found.offset is None


def test_a_missing_file_is_noticed_before_planning_and_impossible_noise_before_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impossible: dict[str, Any] = {
        "epsilon": 800.0, "delta": 1e-300, "max_items_per_user": 1, "mechanism": "laplace",
    }  # fmt: skip
    with pytest.raises(dphist.InputError, match=r"missing\.parquet' does not exist"):
        dphist.release(tmp_path / "missing.parquet", user="u", item="i", **impossible)
    (tmp_path / "log.csv").write_text("u,i\n1,tea\n")
    monkeypatch.setattr("dphist.counting.duckdb.DuckDBEngine.count", lambda *_: pytest.fail("it was counted"))
    with pytest.raises(dphist.DphistError):
        dphist.release(tmp_path / "log.csv", user="u", item="i", **impossible)


def test_the_offset_is_the_count_that_was_subtracted() -> None:
    found = dphist.release(events(COUNTS), **BUDGET, top=2)
    assert found.offset is not None
    assert abs(found.offset - COUNTS["bread"]) < 7 * 2 * found.plan.sigma_shared
    assert found.document()["counts"]["offset"] == found.offset


def test_lower_threshold_raises_the_threshold_by_as_much() -> None:
    at_one = dphist.release(events({"a": 60}), **BUDGET, max_items_per_user=1, seed=1)
    assert len(at_one) == 1
    assert len(dphist.release(events({"a": 60}), **BUDGET, max_items_per_user=1, lower_threshold=60, seed=1)) == 0
    assert at_one.document()["counts"]["threshold"] == at_one.plan.threshold


def test_top_with_a_cap_keeps_the_largest() -> None:
    found = dphist.release(events(COUNTS), **BUDGET, top=2, max_items_per_user=1)
    assert found.plan.mechanism == "laplace"
    assert list(as_dict(found)) == ["tea", "milk"]


def test_top_with_a_cap_limits_users_before_it_subtracts(tmp_path: Path) -> None:
    """2,000 users with the same 64 items count for 32 of them; 20 others have each of 64 more items."""
    user, item = np.divmod(np.arange(128_000), 64)
    rows = np.arange(1_280)
    table = pa.table({"user": np.append(user, 2000 + rows // 32), "item": np.append(item, 100 + rows % 64)})
    asked: dict[str, Any] = {**BUDGET, "top": 100, "max_items_per_user": 32}
    found = dphist.release(table, **asked, output=tmp_path / "out.csv")
    assert found.plan.contract == Contract(100, 32)
    assert dphist.verify(tmp_path / "out.csv").verified
    assert found.offset is not None
    assert abs(found.offset - 20) < 7 * 2 * found.plan.sigma_shared
    # Half of the users of an item are kept at random, and nobody else's items are dropped.
    width = 7 * (found.plan.total_noise + math.sqrt(2000) / 2)
    assert set(as_dict(found)) == {str(number) for number in range(64)}
    assert all(abs(count - 1000) < width for count in as_dict(found).values())
    assert found.summary.limit_words.startswith("32 items per user")
    assert "counted users more than the item of rank 101" in found.summary.hidden_words
    assert "user-limit" in found.document()["caveats"]
    # The same plan holds for counts from elsewhere, if no user changes more of them.
    names = [str(number) for number in range(200)]
    counted = dphist.release_histogram(names, [1000] * 64 + [20] * 136, found.plan)
    assert counted.document()["guarantee"]["conditions"] == ["counts-per-user", "item-types"]
    assert near(counted, dict.fromkeys(names[:64], 1000))


@pytest.mark.usefixtures("plans_once")
@pytest.mark.parametrize("lower", [1, 3])
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_one_item_more_than_the_bound_does_not_empty_the_release(lower: int, times: int) -> None:
    """The sixth count, 1, is subtracted from all: neighbours release the same items, with similar counts."""
    asked = {**BUDGET, "delta": 1e-12, "max_nonzero": 5, "lower_threshold": lower}
    four = {item: count for item, count in COUNTS.items() if item not in ("rare", "unique")}
    for _ in range(times):
        for counts in (four, {**four, "rare": 2}, COUNTS, {**four, "rare": 2, "unique": 1, "own": 1, "other": 1}):
            found = dphist.release(events(counts), **asked)
            assert set(as_dict(found)) == set(four)
            assert near(found, four)


def test_an_enforced_bound_subtracts_the_next_count() -> None:
    """From 200 items with 1,000 users each and one with 5,000, a bound of 3 leaves one, less 1,000."""
    counts = {**{f"item {i}": 1000 for i in range(200)}, "large": 5000}
    found = dphist.release(events(counts), **BUDGET, max_nonzero=3)
    assert near(found, {"large": 4000})
    assert "max-nonzero" not in found.document()["guarantee"]["conditions"]
    assert "reduced" in found.document()["caveats"]
    assert any("the count of rank 4 was subtracted from all" in note for note in found.caveats)


@pytest.mark.parametrize("options", [{"max_items_per_user": 4, "mechanism": "gaussian"}, {"sum": "user:0:1"}])
def test_a_broken_promise_releases_nothing(options: dict[str, Any]) -> None:
    """If a top-k step would break the analysis, the bound is a promise. An error would reveal data."""
    assert len(dphist.release(events(COUNTS), **BUDGET, max_nonzero=5, **options)) == 0
    found = dphist.release(events(COUNTS), **BUDGET, max_nonzero=6, **options)
    assert len(found) > 0
    assert "max-nonzero" in found.document()["guarantee"]["conditions"]
    assert "max-nonzero" in found.document()["caveats"]
    assert "no possible dataset has more than 6 items" in found.guarantee


@pytest.mark.parametrize(
    ("mechanism", "k", "cap"), crossed(["best", "gaussian", "laplace"], [1, 2, 50], [None, 1, 150])
)
def test_a_promise_is_checked_for_all_noise(mechanism: Any, k: int, cap: int | None) -> None:
    """200 equal items of 300 users: a plan that relies on fewer items releases none, or at most that many.

    Without a limit the counts are equal, and a top-k step leaves none. A limit makes them differ by chance, and
    the step leaves at most k. With a broken promise nothing is released. None of this depends on noise.
    """
    data = events({f"item {i}": 300 for i in range(200)}, items_per_user=200)
    found = dphist.release(data, **BUDGET, max_nonzero=k, max_items_per_user=cap, mechanism=mechanism)
    enforced = cap is None or cap >= k
    relies = not enforced and found.plan.mechanism == "csh"
    if enforced or relies:
        assert len(found) <= (k if enforced and cap is not None else 0)
    assert ("max-nonzero" in found.document()["guarantee"]["conditions"]) == relies


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_histogram_is_cut_to_its_bound_for_all_noise(mechanism: Any) -> None:
    """The top-k step of `release_histogram` cuts 1,000 equal counts to nothing."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=3, mechanism=mechanism)
    names, counts = [f"item {i}" for i in range(1000)], [1000] * 1000
    assert len(dphist.release_histogram(names, counts, plan)) == 0
    assert len(dphist.release_histogram(names, counts, plan, guarantee_max_nonzero=True)) == 0
    assert len(dphist.release_histogram(names[:3], counts[:3], plan)) == 3


def test_a_public_list_is_released_completely_and_nothing_else(tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("item\ntea\nnobody\nunique\n")
    found = dphist.release(events(COUNTS), **BUDGET, items=str(listed))
    assert set(as_dict(found)) == {"tea", "nobody", "unique"}
    assert near(found, {**COUNTS, "nobody": 0})
    assert found.plan.mechanism == "rounds"
    assert found.document()["counts"]["threshold"] is None


def frames() -> list[Any]:
    table = events(COUNTS)
    return [
        table.to_pandas(),
        pl.from_arrow(table),
        pl.from_arrow(table).lazy(),  # type: ignore[union-attr]
        table,
        table.to_reader(),
        table.to_batches()[0],
    ]


@pytest.mark.parametrize("options", [{"max_items_per_user": 1}, {"top": 3}])
def test_the_result_is_the_kind_of_frame_that_was_passed(options: dict[str, Any]) -> None:
    kinds: list[type] = [pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.Table, pa.RecordBatchReader, pa.Table]
    want = dphist.release(events(COUNTS), **BUDGET, **options, seed=3)
    for frame, kind in zip(frames(), kinds, strict=True):
        found = dphist.release(frame, **BUDGET, **options, seed=3)
        assert as_dict(found) == as_dict(want)
        assert isinstance(found.to_native(), kind)


def test_the_result_does_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [{"max_items_per_user": 2}, {"top": 2}, {"max_nonzero": 10}]
    for options in cases:
        results = []
        for shuffle in (None, 1, 2):
            path = tmp_path / f"{shuffle}.parquet"
            pq.write_table(events(COUNTS, items_per_user=6, shuffle=shuffle), path)
            results.append(as_dict(dphist.release(path, **BUDGET, **options, seed=9)))
        assert results[0] == results[1] == results[2]


def test_several_item_columns_and_new_names() -> None:
    table = events(COUNTS).append_column("country", pa.array(["de", "fr"] * 2503))
    found = dphist.release(
        table, user="user", item=["land=country", "item"], epsilon=1, delta=1e-6, max_items_per_user=4, seed=2
    )
    out = found.to_pandas()
    assert list(out.columns) == ["land", "item", "count"]
    assert set(out["land"]) == {"de", "fr"}


def test_extra_columns_and_rounding() -> None:
    found = dphist.release(
        events(COUNTS), **BUDGET, max_items_per_user=1, standard_error=True, interval=0.95, round=True,
        count_name="users",
    )  # fmt: skip
    out = found.to_pandas()
    assert list(out.columns) == ["item", "users", "users_standard_error", "users_low", "users_high"]
    assert out["users"].dtype.kind == "i"
    assert (out["users_low"] < out["users"]).all()
    assert (out["users_high"] - out["users"] == out["users"] - out["users_low"]).all()


@pytest.mark.parametrize("share", [0.5, 0.95])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_intervals_cover_as_often_as_they_say(share: float, mechanism: Any) -> None:
    """3,000 independent counts of one run; false alarms below 1e-9 by the binomial law, at 6.2 standard errors."""
    truth = {f"item {number}": 60 for number in range(3000)}
    found = dphist.release(events(truth), **BUDGET, max_items_per_user=1, mechanism=mechanism, interval=share)
    out = found.to_pandas()
    covered = float(((out["count_low"] <= 60) & (out["count_high"] >= 60)).mean())
    spread = (share * (1 - share) / 3000) ** 0.5
    assert len(out) == 3000
    assert covered > share - 6.2 * spread
    # Power: half the width covers at most 0.78 instead of 0.95 (Laplace), or 0.67 (normal).
    assert covered - 6.2 * spread > (0.79 if share == 0.95 else 0.26)


def test_seed_is_marked_and_repeats() -> None:
    one = dphist.release(events(COUNTS), **BUDGET, top=3, seed=4)
    two = dphist.release(events(COUNTS), **BUDGET, top=3, seed=4)
    assert as_dict(one) == as_dict(two)
    assert not one.private
    assert "NOT PRIVATE" in repr(one)
    assert one.document()["private"] is False


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"top": 3, "max_nonzero": 4}, "not both"),
        ({"top": 0}, "from 1 to"),
        ({"max_items_per_user": 2.5}, "whole number"),
        ({"max_items_per_user": 2, "offset": "none"}, "offset needs top"),
        ({"max_items_per_user": 2, "interval": 2}, "between 0 and 1"),
        ({"max_items_per_user": 2, "count_name": "item"}, "with count_name"),
        ({"max_items_per_user": 2, "engine": "abacus"}, "engine"),
        ({"max_items_per_user": 2, "table": "a", "query": "b"}, "not both"),
        ({"max_items_per_user": 2, "mechanism": "magic"}, "mechanism"),
        ({"max_items_per_user": 3, "gamma": 3}, "gamma needs max_nonzero"),
        ({"top": 3, "gamma": 3}, "gamma needs max_nonzero"),
        ({"max_nonzero": 50, "gamma": 0.5}, "whole number of at least 1"),
        ({"max_nonzero": 50, "gamma": "root"}, "gamma must be a number or sqrt, not 'root'"),
        ({"max_nonzero": 50, "gamma": True}, "gamma"),
        ({"max_nonzero": 50, "gamma": 3, "mechanism": "laplace"}, "no gamma"),
        ({"max_nonzero": 50, "gamma": 3, "sum": "user:0:1"}, "with gamma tuned"),
        ({"max_nonzero": 50, "input_name": " "}, "input_name must have 1 to 200 characters"),
        ({"max_nonzero": 50, "input_name": 7}, "input_name must be a text"),
        ({"max_items_per_user": 3, "goal": "keys"}, "goal cannot be used with max_items_per_user"),
        ({"goal": "all"}, "one of accuracy, keys"),
        ({"item": "margin"}, "two columns would be called 'margin'"),
        ({"max_nonzero": 50, "gamma": 2.6}, "gamma must be a whole number of at least 1, not 2.6"),
    ],
)
def test_contradictions_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence) as caught:
        dphist.release(events(COUNTS), **{**BUDGET, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("gamma", "whole"), [(3, 3.0), pytest.param("sqrt", 7.0, marks=pytest.mark.slow)])
def test_gamma_is_that_of_the_plan(tmp_path: Path, gamma: Any, whole: float) -> None:
    found = dphist.release(events(COUNTS), **BUDGET, max_nonzero=50, gamma=gamma, output=tmp_path / "out.csv")
    assert found.plan.to_dict() == dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=50, gamma=gamma).to_dict()
    assert found.plan.gamma == whole
    assert dphist.verify(tmp_path / "out.csv").verified
    certificate = tmp_path / "out.csv.certificate.json"
    document = json.loads(certificate.read_text())
    assert document["request"]["gamma"] == gamma
    document["request"]["gamma"] = 20.0
    certificate.write_text(resealed(document))
    (problem,) = dphist.verify(tmp_path / "out.csv").problems
    assert "for another request" in problem


@pytest.mark.usefixtures("quick_curve")
def test_a_name_replaces_the_path_of_the_input(tmp_path: Path) -> None:
    pq.write_table(events(COUNTS), tmp_path / "a secret project.parquet")
    words = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "1"]
    done = command(
        tmp_path, "release", "a secret project.parquet", *words, "--input-name", "orders of 2026", "--output",
        "out.csv", "--report", "report.html",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out.csv.certificate.json").read_text())["request"]["input"] == "orders of 2026"
    for written in tmp_path.glob("[or]*"):
        assert "a secret project" not in written.read_text(), written
    assert "It was made from orders of 2026 on " in (tmp_path / "report.html").read_text()
    found = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=1, input_name="orders of 2026")
    assert found.document()["request"]["input"] == "orders of 2026"


def test_an_unknown_option_is_a_type_error() -> None:
    options: dict[str, Any] = {**BUDGET, "intervall": 0.5}
    with pytest.raises(TypeError, match="intervall"):
        dphist.release(events(COUNTS), **options)


def test_input_of_an_unknown_kind() -> None:
    with pytest.raises(InvalidParameter, match="must be a path"):
        dphist.release({"user": [1]}, **BUDGET, top=3)


def test_every_option_is_an_argument_and_a_flag() -> None:
    names = {entry.name for entry in dataclasses.fields(Request)}
    assert set(inspect.signature(dphist.release).parameters) == names
    shown = CliRunner().invoke(commands(), ["release", "--help"]).output
    for name in names - {"types", "progress"}:
        assert f"--{name.replace('_', '-')} " in shown.replace("\n", " "), name
