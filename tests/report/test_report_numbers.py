"""The numbers of a report agree with independent computations, and it contains no true count."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

import dphist
from dphist.accounting.profile import delta_at
from dphist.display import upper_figure
from dphist.model import Budget, LaplaceNoise
from dphist.report.facts import Facts, gather_facts
from dphist.report.render import render, report_data
from dphist.report.words import (
    DELTAS,
    SLACK,
    at_most,
    list_uncovered,
    move_belief,
    one_in,
    promise,
)
from release_data import events
from report_cases import BUDGET, COUNTS, FOLDER, KINDS, Page, made, released, render_quickly

DOCS = Path(__file__).parents[2] / "docs" / "report.md"
# Others cover their parts.
SLOW = ("top-k, independent", "lower threshold", "exported", "booked", "laplace")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in KINDS]
)
def test_every_kind_of_release_has_every_format(name: str) -> None:
    facts = made(name)[1]
    assert facts.private
    assert facts.origin.certificate is not None
    certificate = json.loads(facts.origin.certificate)
    assert facts.rows.total == certificate["output"]["rows"]
    text = render_quickly(facts)
    for part in (facts.origin.place, certificate["self_sha256"], "dphist verify"):
        assert part in text, part
    assert "nan" not in re.findall(r"[a-z]+", without_chance(text))
    check_data(facts, name)
    sums = "the sum of amount and the mean of amount"
    data = report_data(facts)
    for text in (data["title"], data["lead"], data["about"]["counted"]):
        assert (sums in text) == (name == "sums")


def without_chance(text: str) -> str:
    """A report without its random parts: temporary folders, digests and the certificate in base 64."""
    return without_digests(text.split("<script")[0].replace("\\", "")).replace(FOLDER.name, "")


def without_digests(text: str) -> str:
    return re.sub(r"(base64,|sha256-)[A-Za-z0-9+/=]+|\b[0-9a-f]{64}\b", "", text)


def keys(data: dict[str, Any]) -> set[str]:
    """All keys of a document, including those in its lists."""
    names = set(data)
    for value in data.values():
        for part in value if isinstance(value, list) else [value]:
            names |= keys(part) if isinstance(part, dict) else set()
    return names


def check_data(facts: Facts, name: str) -> None:
    """The keys of --json are those in docs/report.md."""
    data = report_data(facts)
    listed = set(re.findall(r"^\| `([a-z_]+)` \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {"report", *data}
    assert all(re.fullmatch("[a-z][a-z0-9_]*", key) for key in keys(data))
    assert json.dumps(data, allow_nan=False)
    rounds = ("rounds", "nothing in rounds")
    assert (data["rounds"] is None) == (name not in rounds)
    assert (data["booking"] is None) == (name != "booked")
    assert (data["selection"] is None) == (name in ("known-domain", *rounds))
    assert (data["interval"] is None) == (name in ("csh", "top-k, differences", *rounds))
    assert data["charts"][0]["name"] == ("guarantee" if name.startswith("nothing") else "counts")
    assert data["summary"] == facts.summary.to_dict()


def test_the_curve_is_the_certified_one() -> None:
    for name in ("gshm", "csh", "top-k", "sums"):
        facts = made(name, curve=name == "gshm")[1]
        assert len(facts.curve) == (41 if name == "gshm" else 5)
        for epsilon, delta in facts.curve[:: 10 if name == "gshm" else 2]:
            assert delta == delta_at(facts.plan, epsilon)
        assert dict(facts.curve)[facts.plan.budget.epsilon] == facts.plan.proof.delta <= facts.plan.budget.delta
        assert all(after <= before for (_, before), (_, after) in zip(facts.curve, facts.curve[1:], strict=False))


def test_the_curve_of_laplace_noise() -> None:
    """By a sum over the distribution: a count that moves by one, or one that is new."""
    facts = made("laplace", curve=True)[1]
    noise, curve = facts.plan.noise, dict(facts.curve)
    assert isinstance(noise, LaplaceNoise)
    assert facts.plan.contract.items == 1
    q = math.exp(-1.0 / float(noise.scale))
    new = q ** (noise.tau_steps + 1) / (1.0 + q)
    for epsilon in list(curve)[::5]:
        law = {x: (1 - q) / (1 + q) * q ** abs(x) for x in range(-200, 201)}
        moved_by_one = math.fsum(max(0.0, law[x] - math.exp(epsilon) * law[x - 1]) for x in range(-199, 201))
        assert curve[epsilon] == pytest.approx(max(moved_by_one, new), rel=1e-9)


def test_the_curve_of_a_seeded_release_is_that_of_its_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dphist.report.facts._POINTS", 5)
    facts = gather_facts(released(tmp_path, seed=1))
    assert facts.curve == made("rounds")[1].curve
    assert not facts.private


def test_the_promise_holds_for_a_real_plan() -> None:
    """delta does not bound how often the loss exceeds epsilon; 11 delta bounds how often by more than ln 1.1."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=20)
    # The privacy loss of 20 counts that move by one, each with Gaussian noise, is normal.
    spread = math.sqrt(20.0) / plan.sigma
    over, far_over = (stats.norm.sf((bound - spread**2 / 2.0) / spread) for bound in (1.0, 1.0 + math.log(SLACK)))
    assert over > 15 * 1e-6
    assert far_over <= DELTAS * 1e-6
    assert pytest.approx(1.0) == DELTAS * (1.0 - 1.0 / SLACK)
    text = " ".join(promise(plan.budget))
    # From odds of 1 to 99 to odds of 2.99 to 99.
    assert "1 % sure that a given person is in the data can become at most 3.0 % sure" in text
    assert "at most 1 in 90,909" in text
    assert "11 δ = 1.1e-05" in text


def test_bounds_are_never_rounded_down() -> None:
    assert [at_most(share) for share in (0.5501, 0.55, 0.02001, 0.99999999, 1.0)] == [
        "55.1 %", "55.0 %", "2.1 %", "100 %", "100 %"
    ]  # fmt: skip
    assert one_in(1.1e-5) == "1 in 90,909"
    assert [upper_figure(n, 3) for n in (1.1e-5, 1.2341e-6, 0.9991, 9.999e-7, 0.0)] == [
        "1.1e-05", "1.24e-06", "1", "1e-06", "0"
    ]  # fmt: skip
    epsilon, delta = 1.2345611, 1.2345611e-6
    plan = dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=3)
    facts = gather_facts(dphist.release_histogram(["tea"], [900], plan))
    shown = {one["label"]: one["value"] for one in report_data(facts)["numbers"]}
    assert (shown["Epsilon (ε)"], shown["Delta (δ)"]) == ("1.23457", "1.23457e-06")
    assert float(shown["Certified δ"]) >= facts.delta_certified
    assert "11 δ = 1.36e-05" in " ".join(promise(Budget(epsilon, delta)))
    assert "ε = 1.2345611, δ = 1.2345611e-6" in render(facts)


def test_the_promise_follows_from_the_budget() -> None:
    assert move_belief(0.5, 1.0) == pytest.approx(math.e / (1 + math.e))
    # From odds of 1 to 99 to odds of e to 99.
    assert move_belief(0.01, 1.0) == pytest.approx(math.e / (99 + math.e))
    # e/(1 + e) is 73.106 %, and delta is within the last digit.
    assert "at most 73.2 % of the time" in promise(Budget(1.0, 1e-6))[0]
    assert "too large to limit" in promise(Budget(1.0, 0.2))[1]
    # If someone else counted, the guarantee is for users within the limit that they declared.
    assert "however many items" in promise(Budget(1.0, 1e-6))[0]
    assert "at most 3 items" in promise(Budget(1.0, 1e-6), 3)[0]


def test_totals_include_shared_noise() -> None:
    facts = made("csh")[1]
    noise, rows = facts.plan.noise, facts.rows.total
    error = math.sqrt(noise.sigma**2 * rows + noise.sigma_shared**2 * rows**2)
    assert any(f"standard error of {error:.4g}" in sentence for sentence in list_uncovered(facts))
    plain = made("gshm")[1]
    assert any(f"standard error of {plain.plan.total_noise * 20**0.5:.4g}" in one for one in list_uncovered(plain))


@pytest.mark.usefixtures("quick_curve")
def test_the_sum_of_counts_at_the_threshold_is_too_high() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=8)
    near, size = round(plan.threshold), 3000
    result = dphist.release_histogram([str(n) for n in range(size)], [near] * size, plan, seed=1)
    noise = plan.total_noise * math.sqrt(len(result))
    assert float(result.counts.sum()) - near * len(result) > 10 * noise
    total = next(one for one in list_uncovered(gather_facts(result)) if one.startswith("Totals"))
    assert f"standard error of {noise:.0f} (the noise" in total
    assert "too high" in total
    listed = next(one for one in list_uncovered(made("known-domain")[1]) if one.startswith("Totals"))
    assert "too high" not in listed


def test_shared_noise_includes_the_noise_of_the_offset() -> None:
    facts = made("top-k, independent")[1]
    shown = {one["label"]: one["value"] for one in report_data(facts)["numbers"]}
    # The offset has noise of the same variance, and it is in all counts.
    assert float(shown["Shared noise"]) == pytest.approx(math.sqrt(2.0) * facts.plan.sigma_shared, rel=1e-3)


@pytest.mark.usefixtures("quick_curve")
def test_no_true_count_is_in_a_report(tmp_path: Path) -> None:
    """From a seed, so that the released numbers are always the same."""
    counts = {f"item {place}": 7_001 + 1_013 * place for place in range(6)} | {"rare secret": 3, "rarer": 2}
    facts = gather_facts(released(tmp_path, counts=counts, max_items_per_user=30, seed=3))
    assert facts.origin.certificate is not None
    page = render(facts)
    # The page has the certificate in base 64, so it is searched separately.
    for text in (page, facts.origin.certificate):
        digits = set(re.findall(r"\d+", without_digests(text).replace(",", "")))
        for number in (*counts.values(), sum(counts.values()), max(counts.values()) * 2):
            assert number < 10 or str(number) not in digits, number
        assert "rare secret" not in text
    assert "NOT PRIVATE" in page


@pytest.mark.usefixtures("quick_curve")
def test_a_release_in_memory_has_no_certificate_yet(tmp_path: Path) -> None:
    result = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=2)
    result = replace(result, created="2020-01-02T03:04:05Z")
    facts = gather_facts(result)
    assert facts.private
    assert facts.origin.certificate is None
    data = report_data(facts)
    assert data["about"]["created"] == "2020-01-02T03:04:05Z"
    assert (data["certificate"], data["written"]) == (None, False)
    text = render(facts)
    assert "dphist verify FILE" in text
    assert "of a release in memory" in text.lower()
    assert "download" not in [attributes.get("id") for _, attributes in Page(text).tags]
    written = result.write(tmp_path / "out.csv")
    again = report_data(gather_facts(written))
    assert again["written"]
    assert "of a release in memory" in render(gather_facts(written)).lower()
    assert report_data(gather_facts(tmp_path / "out.csv"))["about"]["created"] == "2020-01-02T03:04:05Z"


@pytest.mark.usefixtures("quick_curve")
def test_rows_are_sorted_and_of_any_type(tmp_path: Path) -> None:
    table = pa.table({
        "user": list(range(3000)),
        "day": pa.array([19000 + i % 3 for i in range(3000)], pa.date32()),
        "n": pa.array([None if i % 3 == 0 else 2**62 + i % 3 for i in range(3000)], pa.int64()),
    })  # fmt: skip
    path = tmp_path / "out.parquet"
    dphist.release(
        table, user="user", item=["day", "n"], epsilon=1.0, delta=1e-6, max_items_per_user=1, null_items=True,
        output=path, types="fixed",
    )  # fmt: skip
    rows = gather_facts(path).rows
    assert rows.items == ("day", "n")
    assert sorted(map(str, rows.labels[1].values)) == ["4611686018427387905", "4611686018427387906", "None"]
    assert rows.labels[1].by_number
    assert "2022-01-08" in rows.labels[0].values
    counts = rows.counts
    assert list(counts) == sorted(counts, reverse=True)
    written = pq.read_table(path).column("count").to_numpy()
    assert sorted(counts) == pytest.approx(sorted(written), abs=0.5)
    assert "(missing)" in dphist.make_report(path)


@pytest.mark.usefixtures("quick_curve")
def test_the_column_of_counts_of_a_histogram_may_have_any_name(tmp_path: Path) -> None:
    table = pa.table({"count": ["tea", "milk"], "n": [900, 800]})
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=3)
    dphist.release_histogram(table, plan=plan, item="count", count="n").write(tmp_path / "out.parquet")
    rows = gather_facts(tmp_path / "out.parquet").rows
    assert (rows.count, rows.items, rows.total) == ("n", ("count",), 2)
