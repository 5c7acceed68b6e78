"""Sentences that readers must not miss or misread: kinds of counts, seeds, weak budgets, public lists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import dphist
from dphist.certificate.request import AnyRequest, request_for_plan, request_of
from dphist.errors import InputError
from dphist.report.charts import report_charts
from dphist.report.facts import Facts, counts_kind, gather_facts, largest_users
from dphist.report.render import render, report_data
from release_data import events
from report_cases import BUDGET, flat, forged, made
from report_cases import released as released_file

pytestmark = pytest.mark.usefixtures("quick_curve")
COUNTS = {f"item {place}": 1200 - 90 * place for place in range(4)}
ITEMS = {f"i{place}": 2000 - 50 * place for place in range(40)}


def histogram(epsilon: float = 1.0, delta: float = 1e-6, largest: int = 1193, **options: Any) -> Facts:
    plan = dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=3)
    return gather_facts(dphist.release_histogram(["tea", "milk"], [largest, 900], plan, **options))


def test_counts_that_are_not_numbers_of_users_are_announced(tmp_path: Path) -> None:
    """Differences of a top-k step without its offset, and a histogram that may have had such a step."""
    plan, path = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=20), tmp_path / "reduced.csv"
    dphist.release_histogram(list(ITEMS), list(ITEMS.values()), plan).write(path)
    for facts, kind, text, first in (
        (made("top-k, differences")[1], "differences", "Counts are NOT numbers of users", "item 0"),
        (gather_facts(path), "perhaps_reduced", "Counts may be lower than the number of users", "i0"),
    ):
        data = report_data(facts)
        assert (facts.kind, data["counts_are"], data["interval"]) == (kind, kind, None)
        report = flat(facts)
        assert text in report[: report.index(first)]
        assert "95 % interval" not in report
        assert "Nothing was released" not in report
        assert [column.name for column in facts.rows.columns] == ["item", "count"]
    codes = json.loads(Path(f"{path}.certificate.json").read_text())["caveats"]
    assert "perhaps-reduced" in codes
    forged(path, caveats=[code for code in codes if code != "perhaps-reduced"])
    assert not dphist.verify(path).verified


def asked_for(options: dict[str, Any]) -> AnyRequest:
    """A request with these options; that of a histogram without any."""
    return request_for_plan(options) if options and "sketch" not in options else request_of(options)


def test_the_kind_of_counts_follows_from_plan_and_request() -> None:
    asked = {"epsilon": 1.0, "delta": 1e-6}
    for options, request, kind in (
        ({}, asked, "estimates"),
        ({"max_items_per_user": 3}, {}, "users"),
        ({"top": 20}, {}, "users"),
        ({"max_nonzero": 20}, {}, "perhaps_reduced"),
        # If both bounds are needed, a top-k step would break one of them, so there is none.
        ({"max_nonzero": 20, "max_items_per_user": 3}, {}, "users"),
        ({"max_nonzero": 20}, {**asked, "max-nonzero": 20}, "users"),
        ({"top": 20}, {**asked, "top": 20}, "users"),
        ({"top": 20, "offset": "none"}, {**asked, "top": 20, "offset": "none"}, "differences"),
        ({"max_items_per_user": 1}, {**asked, "top": 20, "offset": "none"}, "users"),
        ({"max_nonzero": 20}, {**asked, "sketch": "misra-gries", "sketch-size": 20}, "sketch"),
    ):
        assert counts_kind(dphist.plan(epsilon=1.0, delta=1e-6, **options), asked_for(request)) == kind, (
            options,
            request,
        )


def test_seeded_noise_is_named_in_report_and_charts(tmp_path: Path) -> None:
    facts = gather_facts(released_file(tmp_path, max_items_per_user=2, seed=1))
    data = report_data(facts)
    assert data["title"].startswith("NOT PRIVATE: ")
    assert (data["cautions"], data["summary"]["verdict"]) == ([], "not private")
    charts = report_charts(facts)
    assert len(charts) == 4
    for chart in charts:
        assert chart.title.startswith("NOT PRIVATE: ")
        assert chart.words.startswith("NOT PRIVATE: ")
    # In the drawing, not only in its text alternative.
    assert f">{charts[1].title}</text>" in charts[1].svg()
    assert ">this release</text>" not in charts[1].svg()
    text = flat(facts)
    assert "what was proved holds for the plan only, not for this release" in text
    assert "neither the curve nor the mark holds for this release" in text
    assert "Nobody. NOT PRIVATE" in text
    assert "does not make noise from a seed private" in text
    assert "✗ Not private" in text
    assert "Strong" not in text


def test_a_weak_budget_is_named_at_the_top() -> None:
    weak, sound = histogram(8.0, 0.01), histogram()
    assert report_data(weak)["cautions"] == list(weak.summary.verdict.warnings)
    assert len(weak.summary.verdict.warnings) == 2
    assert report_data(sound)["cautions"] == []
    text = flat(weak)
    assert text[: text.index("tea")].count("Warning:") == 2
    assert weak.summary.verdict.level in text
    assert "so it hides" not in text
    assert "warning:" not in flat(sound).lower()
    # A delta is too large if it exceeds 1 / largest count.
    assert len(report_data(histogram(delta=0.01, largest=2000))["cautions"]) == 1
    assert report_data(histogram(delta=1e-4, largest=2000))["cautions"] == []
    assert report_data(histogram(delta=0.01, largest=2000, seed=1))["cautions"] == []


def test_a_sketch_subtracts_its_offset_from_the_largest_count() -> None:
    facts = made("sketch")[1]
    offset, largest = facts.stated.counts.offset, max(facts.rows.counts)
    assert offset is not None
    assert largest_users(facts.rows, "sketch", facts.stated.counts) == largest - offset
    assert largest_users(facts.rows, "users", facts.stated.counts) == largest


def test_the_limits_on_beliefs() -> None:
    """The odds times 1.1 e^epsilon, except with probability 11 delta."""
    answers = {one["label"]: " ".join(one["sentences"]) for one in report_data(histogram())["meaning"]}
    assert list(answers) == [
        "Who is protected", "Against what", "How much: strong", "What is not covered", "What was verified"
    ]  # fmt: skip
    # 1.1 e is 2.99: odds of 1 to 99 become 2.93 %.
    assert "guesses right at most 73.2 % of the time" in answers["How much: strong"]
    assert (
        "1 % sure that a given person is in the data can become at most 3.0 % sure" in answers["How much: strong"]
    )
    assert "at most 1 in 90,909" in answers["How much: strong"]
    assert "who contributed to at most 3 of the counts" in answers["Who is protected"]
    for epsilon, delta, text in ((50.0, 0.01, "can become 100 % sure"), (1.0, 0.2, "too large to limit")):
        meaning = report_data(histogram(epsilon, delta))["meaning"]
        _, sentence = next(one["sentences"] for one in meaning if one["label"].startswith("How much"))
        assert text in sentence


def test_a_report_gives_one_number_for_one_promise() -> None:
    """The bound on right guesses, which follows from epsilon and delta; not the curve or single odds."""
    facts = histogram()
    text = flat(facts)
    shares = set(re.findall(r"(\d+\.\d) % (?:of the time|sure)", text))
    assert shares == {"73.2", "3.0"}, shares
    assert text.count("guesses right at most 73.2 % of the time") >= 3


def test_few_items_are_explained_at_the_top(tmp_path: Path) -> None:
    facts = gather_facts(released_file(tmp_path, top=60))
    assert facts.rows.total < 60
    text = flat(facts)
    assert f"{facts.rows.total} of at most 60 items" in text
    assert text.index(f"{facts.summary.headline}. Mostly hidden: items with") < text.index("item 0")


def test_a_limit_as_long_as_the_public_list_drops_nothing(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\nitem 0\nitem 1\nnobody\n")
    options: dict[str, Any] = {"items": str(tmp_path / "list.csv"), "interval": 0.9}
    for limit in (8, 2):
        release = dphist.release(events(COUNTS, items_per_user=2), **BUDGET, **options, max_items_per_user=limit)
        facts = gather_facts(release)
        data, drops = report_data(facts), limit == 2
        value = next(one["value"] for one in data["numbers"] if one["label"] == "Items per user")
        assert value.startswith("2 items" if drops else "none")
        assert any("more than 2 items" in sentence for sentence in data["not_covered"]) == drops
        assert [column.name for column in facts.rows.columns] == ["item", "count", "90 % interval"]
        assert ("not what the user limit leaves out" in " ".join(data["rows_notes"])) == drops


def test_an_empty_release_and_one_item() -> None:
    # A single user passes with a probability below delta = 1e-12.
    plan = dphist.plan(epsilon=1.0, delta=1e-12, max_items_per_user=3)
    one = gather_facts(dphist.release_histogram(["tea"], [900], plan))
    none = gather_facts(dphist.release_histogram(["tea"], [1], plan))
    assert report_data(none)["lead"].startswith("This release is empty: no count passed the threshold.")
    assert report_data(one)["lead"].startswith("For 1 item, ")
    assert all("Totals" not in render(facts) for facts in (one, none))


def test_a_user_limit_instead_of_a_top_k_step_keeps_the_largest(tmp_path: Path) -> None:
    facts = gather_facts(released_file(tmp_path, top=10, max_items_per_user=2))
    assert facts.plan.contract.max_nonzero is None
    assert facts.rows.total == 10
    assert facts.selection is not None
    assert facts.selection.largest == 10
    # An item that passes the threshold may still be cut, so no probability is one of release.
    text = flat(facts).lower()
    assert "released with" not in text
    assert "probability of release" not in text
    assert made("gshm")[1].selection.largest is made("top-k")[1].selection.largest is None  # type: ignore[union-attr]


def test_the_offset_is_part_of_the_threshold() -> None:
    facts = gather_facts(dphist.release(events(COUNTS, items_per_user=2), **BUDGET, top=3))
    counts = facts.stated.counts
    assert counts.threshold == pytest.approx((counts.offset or 0.0) + facts.plan.threshold)
    (threshold,) = [one for one in report_data(facts)["numbers"] if one["label"] == "Threshold"]
    assert f"offset + {facts.plan.threshold:.4g}" in threshold["meaning"]


def test_an_invalid_certificate_is_an_error_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate of a seeded release is not checked completely."""

    def fails(*_: Any) -> None:
        raise KeyError("counts")

    monkeypatch.setattr("dphist.report.facts.rows_of", fails)
    with pytest.raises(InputError, match="the certificate is invalid"):
        histogram()
