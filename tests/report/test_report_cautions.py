"""What a newcomer must not miss or misread: weak budgets, public lists, intervals, sums, and noise below zero."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dphist
from dphist.privacy.types import Budget
from dphist.report import curve
from dphist.report.cautions import cautions_of
from dphist.report.charts import BarChart, charts_of
from dphist.report.data import data_of
from dphist.report.drawing import figure_bytes
from dphist.report.facts import CapSizes, Facts
from dphist.report.making import FORMATS, render, report_facts
from dphist.report.meaning import also_released, meaning_of
from dphist.report.rows import Column, Rows
from release_data import events
from report_cases import BUDGET

COUNTS = {f"item {place}": 1200 - 90 * place for place in range(4)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "_SECONDS", -1.0)


def flat(facts: Facts, format: Any) -> str:
    return " ".join(render(facts, format).replace("\\", "").split())


def of_histogram(epsilon: float = 1.0, delta: float = 1e-6, largest: int = 1193, **options: Any) -> Facts:
    plan = dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=3)
    return report_facts(dphist.release_histogram(["tea", "milk"], [largest, 900], plan, **options))


def released(**options: Any) -> Facts:
    return report_facts(dphist.release(events(COUNTS, items_per_user=2), **BUDGET, **options))


def test_a_weak_budget_is_told_before_anything_else() -> None:
    weak, sound = of_histogram(8.0, 0.01), of_histogram()
    assert data_of(weak)["cautions"] == list(weak.cautions)
    assert sound.cautions == ()
    # e^8 is 2,980.96; odds of 1 to 99 become odds of 2,981 to 99.
    assert "factor of 2,981, and that a belief of 1 % becomes 96.8 %" in weak.cautions[0]
    assert re.match(r"delta 0\.01 is more than one over the 1,\d\d\d users that one item alone", weak.cautions[1])
    for format in FORMATS:
        text = flat(weak, format)
        top = text[: text.index("What was released, and from what")]
        assert top.lower().count("caution:") == 2, format
        assert "epsilon 8 is a weak promise" in top
        assert "caution" not in flat(sound, format).partition("What was released")[0].lower()
    assert '<span class="badge bad">! epsilon 8, delta 0.01</span>' in render(weak, "html")
    assert '<span class="badge">epsilon 1, delta 1e-06</span>' in render(sound, "html")
    # Nothing is promised of a seed, weakly or not; its own banner says so.
    assert of_histogram(8.0, 0.01, seed=1).cautions == ()


@pytest.mark.parametrize(
    ("request_", "options", "offset", "said"),
    [
        ({}, {"max_items_per_user": 3}, None, "one over the 1,193 users that one item alone has"),
        (
            {"top": 9, "offset": "none"},
            {"top": 9, "offset": "none"},
            None,
            "over 1,193, the largest released diff",
        ),
        ({"sketch": "misra-gries"}, {"top": 9}, 193.0, "over 1,000, the largest released count less the offset"),
        ({"sketch": "misra-gries"}, {"top": 9}, 1193.0, ""),
    ],
)
def test_delta_is_held_against_what_is_known_of_the_users(
    request_: dict[str, Any], options: dict[str, Any], offset: float | None, said: str
) -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, **options)
    counts = Column("count", "number", (1193.0, 900.0))
    rows, meaning = Rows((counts,), (), "count", 2, None, 0.95, False), meaning_of(plan, request_, ["item"])
    document = {"counts": {"offset": offset}}
    found = cautions_of(Budget(3.0, 0.01), document, rows, meaning)
    assert (said in found[0]) if said else not found
    # One over the count is the bound itself; and of no counts nothing is known.
    assert not cautions_of(Budget(3.0, 1.0 / 1193.0), document, rows, meaning)
    empty = replace(rows, columns=(replace(counts, values=()),))
    assert not cautions_of(Budget(3.0, 0.5), document, empty, meaning)
    for epsilon, factor in ((31.0, "e^epsilon"), (800.0, "e^epsilon"), (3.1, "22.2")):
        assert factor in cautions_of(Budget(epsilon, 1e-9), document, rows, meaning)[0]


def test_a_public_list_is_not_said_to_lose_what_it_counts(tmp_path: Path) -> None:
    """The list is applied before a cap: one that is as long as the list takes nothing from anybody."""
    (tmp_path / "list.csv").write_text("item\nitem 0\nitem 1\nnobody\n")
    for cap, value, said in ((8, "not bounded", "leaves nothing out"), (2, "at most 2", "more items of the list")):
        facts = released(items=str(tmp_path / "list.csv"), max_items_per_user=cap, interval=0.9)
        cards = {one.label: one for one in facts.numbers}
        assert cards["Items of a user"].value == value
        assert said in cards["Items of a user"].meaning
        assert any(one.startswith("Of users with more than") for one in facts.uncovered) == (cap == 2)
        assert "threshold selects" not in cards["Noise of a count"].meaning
        # The share of an interval that the release has itself is in its heads and above them.
        assert [column.name for column in facts.rows.columns][2:] == ["count_low (90 %)", "count_high (90 %)"]
        for format in FORMATS:
            text = flat(facts, format)
            assert "count_low and count_high are the ends of an interval of 90 % around each count" in text
            assert "count_high (90 %)" in text
            assert "with the Python package dphist" in text


def test_noise_below_zero_is_told_and_only_drawn_as_nothing() -> None:
    sizes = CapSizes(("1", "2", "3", "4", "5 to 6", "over 6"), (800, 90, -31, 7, -5, -48), 10.0, 2)
    facts = replace(of_histogram(), sizes=sizes)
    chart = charts_of(facts)[-1]
    assert isinstance(chart, BarChart)
    assert [bar.value for bar in chart.bars] == [800, 90, -31, 7]
    assert "its bar has no length" in chart.words
    assert "The 2 numbers from 5 to 6 items on are not drawn" in chart.words
    page = render(facts, "html")
    assert ">-31</text>" in page
    assert "<td>-48</td>" in page
    assert "| over 6 | -48 |" in render(facts, "markdown")
    assert "-31" in figure_bytes(chart, "svg").decode().replace("\u2212", "-")
    whole = replace(facts, sizes=replace(sizes, users=(800, 90, 80, 70, 60, 50)))
    assert "not drawn" not in charts_of(whole)[-1].words
    assert "no length" not in charts_of(whole)[-1].words


def test_sums_are_named_where_counts_are() -> None:
    sums = [{"kind": "sum", "column": "a"}, {"kind": "mean", "column": "a"}, {"kind": "mean", "column": "b"}]
    assert also_released([]) == ""
    assert also_released(sums[:1]) == "the sum of a"
    assert also_released(sums) == "the sum of a, the mean of a and the mean of b"
    assert also_released(sums * 2) == "6 sums and means"


def test_one_number_has_one_form_and_an_offset_is_named() -> None:
    facts = released(top=3)
    threshold = next(one for one in facts.numbers if one.label == "Threshold")
    own = next(peer for peer in facts.peers if peer.own)
    assert threshold.meaning.endswith(f"It is the offset + {own.threshold:.4g}.")
    assert next(one for one in facts.numbers if one.label == "Largest counts").meaning.startswith(
        "At most so many"
    )
    first = re.search(r"delta falls from (\S+) at epsilon 0", charts_of(facts)[0].words)
    assert first is not None
    for format in FORMATS:
        text = flat(facts, format)
        assert f"offset + {own.threshold:.4g}" in text.partition("Against other analyses")[2]
        assert re.search(rf"epsilon\W.{{0,150}}\b0\W+(?:td\W+)*{re.escape(first[1])}\b", text), format


def test_of_a_seed_only_the_plan_is_said_to_be_of_the_plan_alone() -> None:
    facts = of_histogram(seed=1)
    assert [one.startswith("of its plan alone: the plan is") for one in facts.checks] == [True, False]
    assert "Guarantee: none; the noise was made from a seed" in flat(facts, "text")
    assert "Exactly:" not in flat(facts, "markdown")
    # One user passes with a probability below delta, which is none for a test.
    plan = dphist.plan(epsilon=1.0, delta=1e-12, max_items_per_user=3)
    assert "all counts" not in " ".join(report_facts(dphist.release_histogram(["tea"], [1], plan)).checks)
