"""Reports of releases in rounds: one count with its margin, what was found where, and how it was measured."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dphist
from dphist.certificate.sentences import caveats
from dphist.model import RoundsNoise
from dphist.planning.estimate import size_bounds
from dphist.proof.rounds import certify_rounds
from dphist.report.charts import Dot, dot_chart, report_charts
from dphist.report.facts import Facts, Rounds, gather_facts
from dphist.report.render import render, report_data
from report_cases import BUDGET, EVIL, Page, data_of, flat, forged, made, released

pytestmark = pytest.mark.usefixtures("quick_curve")


@cache
def release_of(**options: Any) -> dphist.Release:
    """Users with 1 to 20 items each, the first ones the most common: thousands have each of those."""
    sizes = 1 + np.arange(6000) % 20
    items = np.concatenate([np.arange(size) for size in sizes])
    table = pa.table({
        "user": np.repeat(np.arange(sizes.size), sizes), "item": [f"item {one}" for one in items],
        "amount": items % 7,
    })  # fmt: skip
    return dphist.release(table, **BUDGET, **options)


@cache
def facts_of(**options: Any) -> Facts:
    return gather_facts(release_of(**options))


def rounds_of(facts: Facts) -> Rounds:
    assert facts.rounds is not None
    return facts.rounds


def test_a_count_has_one_margin() -> None:
    facts, table = facts_of(), release_of().to_arrow()
    names, rows = facts.rows.first(3)
    assert names == ["item", "count", "margin (95 %)"]
    assert facts.rows.margins is not None
    assert list(facts.rows.counts) == table.column("count").to_pylist()
    assert list(facts.rows.margins) == table.column("margin").to_pylist()
    assert [row[2] for row in rows] == [f"±{margin:,.0f}" for margin in facts.rows.margins[:3]]
    page = Page(render(facts))
    assert [column["kind"] for column in page.data["columns"]] == ["text", "number", "margin"]
    assert page.data["columns"][page.data["sorted"]]["name"] == "count"
    assert facts.summary.to_dict() == release_of().summary.to_dict()


def test_intervals_of_the_release_are_its_margins() -> None:
    options: dict[str, Any] = {"interval": 0.9, "standard_error": True, "round": True}
    options |= {"sum": ("amount:0:10",), "mean": ("amount:0:10",)}
    facts, table = facts_of(**options), release_of(**options).to_arrow()
    assert [column.name for column in facts.rows.columns] == [
        "item", "count", "margin (90 %)", "count_standard_error",
        "amount_sum", "amount_sum_standard_error", "90 % interval of amount_sum",
        "amount_mean", "amount_mean_standard_error", "90 % interval of amount_mean",
    ]  # fmt: skip
    assert facts.rows.intervals is not None
    for ends, name in zip(facts.rows.intervals, ("count_low", "count_high"), strict=True):
        assert list(ends) == table.column(name).to_pylist()
    assert "the sum of amount and the mean of amount" in report_data(facts)["lead"]


def test_the_search_and_the_measurement_are_described() -> None:
    facts = facts_of()
    noise, findings, rounds = facts.plan.noise, release_of().findings, rounds_of(facts)
    assert isinstance(noise, RoundsNoise)
    assert findings is not None
    assert [step.name for step in rounds.steps] == ["users with one item", *(f"round {n}" for n in range(1, 6))]
    assert [step.items for step in rounds.steps] == list(findings.found[1:])
    assert sum(step.items for step in rounds.steps) == facts.rows.total
    assert [step.evidence for step in rounds.steps[1:]] == [
        limit / noise.lattice for limit in noise.thresholds_steps
    ]
    assert (rounds.limit, rounds.needed) == (findings.limit, findings.needed)
    assert rounds.measured == pytest.approx(noise.sigma * math.sqrt(rounds.limit))
    assert rounds.most == size_bounds(256)
    # 300 users have each number of items, up to the noise.
    assert all(abs(users - 300) < 6 * rounds.deviation for users in rounds.users[1:4])
    text, (estimates,) = flat(facts), caveats(facts.plan, facts.request, ("rounds",))
    for part in (
        estimates, f"with about {rounds.needed:,} users an item is found half of the time",
        f"with a limit of {rounds.limit} items", f"{rounds.users[2]:,}", "users with one item", "round 5",
    ):  # fmt: skip
        assert part in text, part
    assert not re.search(
        r"estimate_|random \d+ of them|spread|predicted", text[text.index("<body>") :].partition("{")[0]
    )
    data = report_data(facts)
    assert data["rounds"] == json.loads(json.dumps(rounds.to_dict()))
    assert (data["selection"], data["interval"], data["counts_are"]) == (None, None, "estimates")
    assert data["rounds_notes"]
    assert report_data(made("gshm")[1])["rounds"] is None


def test_the_curve_is_that_of_the_rounds() -> None:
    facts = made("rounds", curve=True)[1]
    noise = facts.plan.noise
    assert isinstance(noise, RoundsNoise)
    assert len(facts.curve) == 41
    for epsilon, delta in facts.curve[::10]:
        assert delta == certify_rounds(noise, epsilon=epsilon).delta
    assert dict(facts.curve)[1.0] == facts.plan.proof.delta == facts.delta_certified


def test_known_items_and_public_lists(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\nitem 0\nitem 3\nnobody has this\n")
    known, listed = (facts_of(**{name: str(tmp_path / "list.csv")}) for name in ("known", "items"))
    assert (rounds_of(known).steps[0].name, rounds_of(known).steps[0].items) == ("known in advance", 3)
    assert known.rows.total > 3
    assert report_data(known)["about"]["known"] == "list.csv"
    assert "known in advance were not searched for" in flat(known)
    assert [step.name for step in rounds_of(listed).steps] == ["public list"]
    assert (rounds_of(listed).needed, listed.rows.total, listed.selection) == (None, 3, None)
    text = flat(listed)
    assert "Every item of the public list is released" in text
    assert "found half of the time" not in text


def test_margins_that_cannot_be_trusted_are_named_at_the_top() -> None:
    doubtful = replace(rounds_of(facts_of()), reason="too few items were measured")
    facts = replace(facts_of(), rounds=doubtful)
    text = flat(facts)
    assert "Do not rely on the margins: too few items were measured." in text[: text.index("item 0")]
    assert "is within its margin in 95 % of cases" not in text
    assert "is within its margin in 95 % of cases" in flat(facts_of())
    nothing = replace(facts_of(), rounds=replace(doubtful, limit=0))
    assert "Nothing was measured after that" in flat(nothing)


def test_few_items_are_explained() -> None:
    facts = made("nothing in rounds")[1]
    assert facts.rows.total == 0
    assert report_data(facts)["lead"].startswith("This release is empty")
    assert facts.summary.why_few in flat(facts)
    assert [chart.name for chart in report_charts(facts)] == ["guarantee", "sizes"]


def test_noise_below_zero_is_shown_and_drawn_at_zero() -> None:
    rounds = replace(
        rounds_of(facts_of()), most=(1, 2, 3, 4, 6, 8), users=(800, 90, -31, 7, -5, -48), deviation=10.0
    )
    facts = replace(facts_of(), rounds=rounds)
    chart = report_charts(facts)[-1]
    assert len(chart.to_dict()["data"]["values"]) == 4
    assert "are drawn at zero" in chart.words
    assert "From 5 to 6 items on they are not drawn" in chart.words
    assert ">-31</text>" in chart.svg().replace("\u2212", "-")
    assert "<td>-48</td>" in flat(facts)
    whole = replace(facts, rounds=replace(rounds, users=(800, 90, 80, 70, 60, 50)))
    assert not any(text in report_charts(whole)[-1].words for text in ("not drawn", "drawn at zero"))


def test_the_chart_of_a_release_shows_counts_with_their_margins() -> None:
    facts = facts_of()
    rows = [row for row in data_of(dphist.chart(release_of())) if "begin" in row]
    assert len({row["place"] for row in rows}) == min(20, facts.rows.total)
    assert facts.rows.margins is not None
    for row in rows:
        count, margin = facts.rows.counts[row["place"]], facts.rows.margins[row["place"]]
        assert (row["value"], row["begin"], row["end"]) == (count, max(0, count - margin), count + margin)
        assert row["number"].startswith(f"{count:,.0f} ± {margin:,.0f}"[:6])
    evil = dot_chart("counts", "t", "w", [Dot(EVIL, 9.0, 8.0, 10.0)], x_label="users", legend="dots")
    assert "<script" not in evil.svg()
    assert "9.0 ± 1.0" in evil.svg()


def test_a_plan_of_rounds_has_a_profile_and_no_chart_of_release() -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6)
    assert len(dphist.chart(plan).to_dict()["concat"]) == 1


def test_forged_findings_have_no_report(tmp_path: Path) -> None:
    """Those of a seeded release are verified too."""
    path = released(tmp_path, "out.csv", seed=1)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    wrong: list[dict[str, Any]] = [
        {"found": 3}, {"found": []}, {"noisy_sizes_steps": None}, {"noisy_sizes_steps": [0]}, {"limit": "many"},
        {"limit": 5}, {"needed": -1}, {"reason": 5}, {"reason": "x" * 400},
    ]  # fmt: skip
    for changes in wrong:
        forged(path, findings={**document["findings"], **changes})
        with pytest.raises(dphist.NotVerified):
            dphist.make_report(path)
    forged(path, findings=document["findings"])
    assert "Do not publish it" in dphist.make_report(path)
