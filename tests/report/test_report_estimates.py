"""Reports with estimates and with spread: estimates come first, with what they assume."""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import dphist
from dphist.planning.auto_cap import estimate_sizes, levels_of, predicted_loss
from dphist.releasing.document import caveats
from dphist.report.charts import Dot, dot_chart, kept_chart, report_charts
from dphist.report.facts import Column, Facts, gather_facts, selection_of
from dphist.report.render import render, report_data
from report_cases import BUDGET, Page, data_of, flat, made

pytestmark = pytest.mark.usefixtures("quick_curve")
EVIL = "<script>alert('x & y')</script>"


@cache
def facts_of(**options: Any) -> Facts:
    return gather_facts(release_of(**options))


@cache
def release_of(**options: Any) -> dphist.Release:
    """Users with 1 to 20 items each, the first ones the most common: thousands have each of those."""
    sizes = 1 + np.arange(6000) % 20
    items = np.concatenate([np.arange(size) for size in sizes])
    table = pa.table({"user": np.repeat(np.arange(sizes.size), sizes), "item": [f"item {one}" for one in items]})
    return dphist.release(table, **BUDGET, **options)


def values(facts: Facts, name: str) -> list[float]:
    return list(next(column.values for column in facts.rows.columns if column.name == name))


def interval_of(facts: Facts) -> Column:
    interval = facts.rows.main[1]
    assert interval is not None
    return interval


def test_estimates_come_first_with_their_margins() -> None:
    facts = facts_of(excess="spread")
    assert facts.correction is not None
    names, _ = facts.rows.first(3)
    assert names == ["item", "estimate", "95 % interval", "count"]
    counts, step = np.array(values(facts, "count")), 10.0 ** -next(c.digits for c in facts.rows.columns[1:2])
    table = facts.document["choice"]["correction"]
    factor, error = (np.interp(counts, table["counts"], table[name]) for name in ("factors", "standard_errors"))
    np.testing.assert_allclose(values(facts, "estimate"), factor * counts, atol=factor.max() * step)
    due = stats.norm.ppf(0.975) * np.hypot(factor * facts.plan.total_noise, error * counts)
    for ends, sign in ((interval_of(facts).values, -1), (interval_of(facts).upper, 1)):
        np.testing.assert_allclose(ends, factor * counts + sign * due, atol=(2.0 + factor.max()) * step)
    page = render(facts, "html")
    data = Page(page).data
    assert [column["name"] for column in data["columns"]] == names
    assert data["columns"][data["sorted"]]["name"] == "estimate"
    assert re.findall(r'<th [^>]*aria-sort="descending"[^>]*><button[^>]*>([^<]*)', page) == ["estimate"]
    for format in ("markdown", "text"):
        assert any(
            line.replace("|", " ").split()[:3] == ["item", "estimate", "95"]
            for line in render(facts, format).splitlines()
        )


def test_intervals_of_the_release_itself_replace_the_margins() -> None:
    options = {"excess": "drop", "interval": 0.9, "standard_error": True, "round": True}
    facts = facts_of(**options)
    names = [column.name for column in facts.rows.columns]
    assert names[1:] == [
        "estimate", "estimate_standard_error", "90 % interval of estimate",
        "count", "count_standard_error", "90 % interval of count",
    ]  # fmt: skip
    assert facts.rows.width is None
    interval, written = interval_of(facts), release_of(**options).to_arrow()
    assert interval.name == "90 % interval of estimate"
    assert list(interval.values) == written.column("estimate_low").to_pylist()
    assert list(interval.upper) == written.column("estimate_high").to_pylist()


def test_every_format_explains_estimates() -> None:
    for facts in (
        facts_of(excess="spread"),
        facts_of(excess="drop", interval=0.9, standard_error=True, round=True),
    ):
        assert facts.correction is not None
        for format, text in flat(facts).items():
            assert "An estimate is the count times a factor" in text, format
            assert f"{facts.correction.factor:.4g} ± {facts.correction.errors[0]:.2g}" in text
            (assumption,) = caveats(facts.plan, facts.request, ("estimate",))
            assert assumption in text
            # Intervals cover noise: no text claims that one contains the number of users.
            assert not re.search(r"interval[^.]*(holds|contains|includes)|true number of users (is|lies)", text)
        data = report_data(facts)
        assert data["cap_choice"]["correction"] == facts.correction.to_dict()
        assert "an estimate of the number of users" in data["lead"]
    assert all("estimate" not in text for text in flat(made("gshm")[1]).values())


def test_spread_is_not_described_as_dropping_items() -> None:
    for facts in (facts_of(excess="spread"), made("spread")[1]):
        limit = facts.plan.contract.items
        assert facts.kind == report_data(facts)["counts_are"] == "weighted"
        (spread,) = caveats(facts.plan, facts.request, ("spread",))
        for format, text in flat(facts).items():
            assert spread in text, format
            assert not re.search(rf"random {limit:,} of them", text), format
            assert "true weighted count" in text
    dropped = facts_of(excess="drop", interval=0.9, standard_error=True, round=True)
    assert dropped.kind == "users"
    for text in flat(dropped).values():
        assert f"a random {dropped.plan.contract.items:,} of them" in text
        assert "weight" not in text.partition("{")[0]
    # Without estimates, the report says first that counts are weighted.
    for text in flat(made("spread")[1]).values():
        assert "Counts are weighted" in text[: text.index("item 0")]
    found = selection_of(made("spread")[1].plan, made("spread")[1].request)
    assert found is not None
    assert found.axis == "true weighted count"


@pytest.mark.parametrize("excess", ["drop", "spread"])
def test_the_limit_chart_shows_how_much_a_user_counts(excess: str) -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=5, excess=excess)
    chart = kept_chart(plan)
    drawn = sorted((row["x"], row["y"]) for row in data_of(chart) if row.get("label") == "counted")
    for items in range(1, 200):
        kept = min(items, plan.contract.spread or 5)
        weight = 1.0
        if plan.levels:
            level = next(one for one in plan.levels if one.items >= kept)
            weight = level.weight / plan.levels[0].weight
        # The chart is straight between its points in logarithms.
        xs, ys = np.log(drawn).T
        if items <= drawn[-1][0]:
            assert math.exp(np.interp(math.log(items), xs, ys)) == pytest.approx(kept * weight, rel=1e-9)
    drawing = chart.svg(inline=True)
    assert "currentColor" in drawing
    assert drawing.count(">counted</text>") == 1, "one legend for colour and dashes"
    assert drawing.count(">5</text>") >= 1


def test_limit_charts_appear_where_they_apply() -> None:
    names = {name: [chart.name for chart in report_charts(facts)] for name, facts in (
        ("auto", facts_of(excess="spread")), ("given", made("spread")[1]), ("drop", made("gshm")[1]),
    )}  # fmt: skip
    assert all(found[0] == "counts" for found in names.values())
    assert names["auto"][-2:] == ["kept", "sizes"]
    assert names["given"][-1] == "kept"
    assert "kept" not in names["drop"]
    page = render(facts_of(excess="spread"), "html")
    assert {"kept-title", "counts-title", "sizes-title"} <= set(Page(page).ids)


def test_the_chart_of_a_release_shows_estimates_with_error_bars() -> None:
    release, facts = release_of(excess="spread"), facts_of(excess="spread")
    chart = dphist.chart(release)
    rows = [row for row in data_of(chart) if "begin" in row]
    assert len({row["place"] for row in rows}) == min(20, facts.rows.total)
    for row in rows:
        place = row["place"]
        assert row["value"] == pytest.approx(values(facts, "estimate")[place])
        assert (row["begin"], row["end"]) == (interval_of(facts).values[place], interval_of(facts).upper[place])
        assert row["begin"] < row["value"] < row["end"]
        # The factor is at least 1, up to rounding.
        assert row["count"] <= row["value"] + 1.0
    evil = dot_chart("counts", "t", "w", [Dot(EVIL, 9.0, 8.0, 10.0, 5.0)], x_label="users", legend="dots")
    assert "<script" not in evil.svg()
    assert "9.0 ± 1.0" in evil.svg()


def test_the_choice_is_explained_by_predicted_losses() -> None:
    for options, goal in (({}, "accuracy"), ({"goal": "keys"}, "keys")):
        facts = facts_of(**options)
        choice, planned = facts.choice, facts.verified.choice
        assert choice is not None
        assert planned is not None
        best = choice.offers[0]
        assert (choice.goal, choice.cap, choice.excess) == (goal, best.limit, best.excess)
        assert (best.limit, best.noise) == (facts.plan.contract.items, facts.plan.total_noise)
        assert {offer.excess for offer in choice.offers} == {"drop", "spread"}
        losses = [offer.loss for offer in choice.offers]
        assert losses == sorted(losses)
        sizes = planned.estimate_sizes(choice.users)
        for offer in choice.offers:
            plan = planned.plan(offer.limit, offer.excess)
            assert offer.loss == predicted_loss(plan, sizes, planned.goal)
        shown = [f"{100 * loss:.1f} %" if goal == "accuracy" else f"{loss:.4g}" for loss in losses]
        for format, text in flat(facts).items():
            assert f"The limit {choice.cap:,} with {choice.excess} (" in text, format
            assert f"The goal was {goal}" in text
            assert f"this is {shown[0]} for {best.limit:,} with {best.excess}, the best of the 48 plans" in text
            assert all(loss in text for loss in shown)
            assert "privacy does not depend on them" in text
        data = report_data(facts)["cap_choice"]
        assert [one["loss"] for one in data["offers"]] == losses
        assert (data["goal"], data["excess"]) == (goal, choice.excess)


@pytest.mark.slow
def test_a_public_list_has_estimates_and_no_threshold(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\n" + "\n".join(f"item {place}" for place in range(30)))
    facts = facts_of(items=str(tmp_path / "list.csv"), goal="keys", max_items_per_user="auto")
    choice, planned = facts.choice, facts.verified.choice
    assert choice is not None
    assert planned is not None
    assert all(offer.threshold is None for offer in choice.offers)
    # The losses are those that decided: no user has more than the 30 items of the list.
    best, sizes = choice.offers[0], estimate_sizes(planned.choice, choice.users, most=30)
    assert (best.limit, best.excess) == (choice.cap, choice.excess)
    assert best.loss == predicted_loss(facts.plan, sizes, planned.goal)
    assert best.loss != predicted_loss(facts.plan, estimate_sizes(planned.choice, choice.users), planned.goal)
    assert facts.rows.total == 30
    notes = " ".join(report_data(facts)["limit_notes"])
    assert "The goal was keys, but all items of a public list are released: the smallest total error" in notes
    assert levels_of(facts.plan)[0][0] == choice.cap
