"""What a reader must not miss or misread: differences, seeds, weak budgets, public lists and noise below zero."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dphist
from dphist.errors import InputError
from dphist.report.charts import report_charts
from dphist.report.facts import Facts, LimitChoice, counts_kind, gather_facts, largest_users, limit_choice
from dphist.report.render import FORMATS, render, report_data
from release_data import events
from report_cases import BUDGET, Page, forged, made
from report_cases import released as released_file

pytestmark = pytest.mark.usefixtures("quick_curve")
COUNTS = {f"item {place}": 1200 - 90 * place for place in range(4)}
ITEMS = {f"i{place}": 2000 - 50 * place for place in range(40)}


def histogram(epsilon: float = 1.0, delta: float = 1e-6, largest: int = 1193, **options: Any) -> Facts:
    plan = dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=3)
    return gather_facts(dphist.release_histogram(["tea", "milk"], [largest, 900], plan, **options))


def reduced(folder: Path) -> Path:
    """A histogram with a bound: its counts may have been reduced."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_nonzero=20)
    dphist.release_histogram(list(ITEMS), list(ITEMS.values()), plan).write(folder / "reduced.csv")
    return folder / "reduced.csv"


def flat(facts: Facts) -> dict[str, str]:
    """Every format without its line ends and what Markdown escapes."""
    return {format: " ".join(render(facts, format).replace("\\", "").split()) for format in FORMATS}


def test_differences_are_not_taken_for_numbers_of_users(tmp_path: Path) -> None:
    """Neither those of a top-k step without its offset, nor those of a histogram that may have had one."""
    for facts, kind, says in (
        (
            made("top-k, differences")[1],
            "differences",
            "Counts are NOT numbers of users",
        ),
        (
            gather_facts(reduced(tmp_path)),
            "perhaps_reduced",
            "Counts may be lower than the number of users",
        ),
    ):
        data = report_data(facts)
        assert (facts.kind, data["counts_are"], data["interval"]) == (kind, kind, None)
        for format, text in flat(facts).items():
            # Before the first number.
            assert says in text[: text.index("item 0") if kind == "differences" else text.index("i0")], format
            assert "95 % interval" not in text, format
            assert "Nothing was released" not in text
        names = [column["name"] for column in Page(render(facts, "html")).data["columns"]]
        assert names == ["item", "count"]


def test_counts_that_are_numbers_of_users_stay_so() -> None:
    """By plan and request, as a certificate has them."""
    asked = {"epsilon": 1.0, "delta": 1e-6}
    for options, request, kind in (
        ({"max_items_per_user": 3}, {}, "users"),
        ({"top": 20}, {}, "users"),
        ({"max_nonzero": 20}, {}, "perhaps_reduced"),
        # Where both bounds are needed, a step would break one of them, and is refused.
        ({"max_nonzero": 20, "max_items_per_user": 3}, {}, "users"),
        ({"max_nonzero": 20}, {**asked, "max-nonzero": 20}, "users"),
        ({"top": 20}, {**asked, "top": 20}, "users"),
        ({"top": 20, "offset": "none"}, {**asked, "top": 20, "offset": "none"}, "differences"),
        ({"max_items_per_user": 1}, {**asked, "top": 20, "offset": "none"}, "users"),
        ({"max_nonzero": 20}, {**asked, "sketch": "misra-gries", "sketch-size": 20}, "sketch"),
    ):
        assert counts_kind(dphist.plan(epsilon=1.0, delta=1e-6, **options), request) == kind, (options, request)


def test_a_histogram_with_a_bound_says_that_counts_may_be_reduced(tmp_path: Path) -> None:
    path = reduced(tmp_path)
    noted = json.loads(Path(f"{path}.certificate.json").read_text())["caveats"]
    assert "perhaps-reduced" in noted
    said = [one for one in report_data(gather_facts(path))["not_covered"] if "Counts may be lower" in one]
    assert len(said) == 1
    forged(path, caveats=[one for one in noted if one != "perhaps-reduced"])
    assert not dphist.verify(path).verified


def test_a_seed_is_named_by_every_format_and_every_chart(tmp_path: Path) -> None:
    facts = gather_facts(released_file(tmp_path, max_items_per_user=2, seed=1))
    assert report_data(facts)["title"].startswith("NOT PRIVATE: ")
    assert report_data(facts)["cautions"] == []
    charts = report_charts(facts)
    assert len(charts) == 4
    for chart in charts:
        assert chart.title.startswith("NOT PRIVATE: ")
        assert chart.words.startswith("NOT PRIVATE: ")
        # What is seen, not only what is read aloud.
        assert f">{chart.title}</text>" in chart.svg()
    for format, text in flat(facts).items():
        assert "what was proved holds for the plan only, not for this release" in text, format
        assert "neither the curve nor the mark holds for this release" in text, format
        assert ">this release</text>" not in text
        assert "Nobody. NOT PRIVATE" in text, format
        assert "does not make noise from a seed private" in text, format
    assert report_data(facts)["summary"]["verdict"] == "not private"
    assert "✗ Not private" in render(facts, "html")
    assert "Strong" not in render(facts, "html")


def test_a_weak_budget_is_named_before_anything_else() -> None:
    weak, sound = histogram(8.0, 0.01), histogram()
    assert report_data(weak)["cautions"] == list(weak.summary.verdict.warnings)
    assert len(weak.summary.verdict.warnings) == 2
    assert report_data(sound)["cautions"] == []
    for format, text in flat(weak).items():
        top = text[: text.index("tea")]
        assert top.count("WARNING:" if format == "text" else "Warning:") == 2, format
        assert weak.summary.verdict.level in text, format
        # Nothing of the numbers is claimed that so little noise does not give.
        assert "so it hides" not in text
        assert "no true count" not in text.lower()
    assert all("warning:" not in text.lower() for text in flat(sound).values())


def test_an_officer_reads_a_belief_that_holds() -> None:
    """The odds times 1.1 e^epsilon, but for 11 delta; nothing is promised where there is no limit."""
    found = {one["label"]: " ".join(one["sentences"]) for one in report_data(histogram())["meaning"]}
    assert list(found) == [
        "Who is protected", "Against what", "How much: strong", "What is not covered", "What was verified"
    ]  # fmt: skip
    # 1.1 e is 2.99: odds of 1 to 1 and of 1 to 99 become 74.94 % and 2.93 %.
    assert "50 % sure that a given person is in the data can become at most 75.0 %" in found["How much: strong"]
    assert "1 % sure, at most 3.0 %" in found["How much: strong"]
    assert "at most 1 in 90,909" in found["How much: strong"]
    assert "who contributed to at most 3 of the counts" in found["Who is protected"]
    assert "No file can show that the data was complete" in found["What was verified"]
    for epsilon, delta, says in ((50.0, 0.01, "can become 100 % sure"), (1.0, 0.2, "too large to limit")):
        shown = {one["label"]: one["sentences"] for one in report_data(histogram(epsilon, delta))["meaning"]}
        (sentence,) = shown[next(label for label in shown if label.startswith("How much"))]
        assert says in sentence


def test_few_items_are_explained_at_the_top(tmp_path: Path) -> None:
    facts = gather_facts(released_file(tmp_path, top=60))
    assert facts.rows.total < 60
    for text in flat(facts).values():
        assert f"{facts.rows.total} of at most 60 items stood out. Mostly hidden: items with" in text
        assert text.index("Mostly hidden: items with") < text.index("item 0")


def test_a_large_delta_is_named_by_the_released_counts_alone() -> None:
    def cautions(facts: Facts) -> list[str]:
        found: list[str] = report_data(facts)["cautions"]
        return found

    assert len(cautions(histogram(delta=0.01, largest=2000))) == 1
    assert cautions(histogram(delta=1e-4, largest=2000)) == []
    assert cautions(histogram(delta=0.01, largest=2000, seed=1)) == []


def test_from_a_count_of_a_sketch_the_offset_is_taken_first() -> None:
    facts = made("sketch")[1]
    offset, largest = facts.document["counts"]["offset"], max(facts.rows.counts)
    assert offset != 0.0
    assert largest_users(facts.rows, "sketch", facts.document["counts"]) == largest - offset
    assert largest_users(facts.rows, "users", facts.document["counts"]) == largest


def test_a_limit_as_long_as_the_public_list_drops_nothing(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("item\nitem 0\nitem 1\nnobody\n")
    for limit, value in ((8, "none: every item of every user counts"), (2, "2 items per user")):
        table = events(COUNTS, items_per_user=2)
        facts = gather_facts(
            dphist.release(
                table, **BUDGET, items=str(tmp_path / "list.csv"), max_items_per_user=limit, interval=0.9
            )
        )
        data = report_data(facts)
        assert next(one["value"] for one in data["numbers"] if one["label"] == "Items per user") == value
        assert any(one.startswith("Users with more than") for one in data["not_covered"]) == (limit == 2)
        # The level of an interval that the release has itself is in its heads.
        assert [column.name for column in facts.rows.columns] == ["item", "count", "90 % interval"]
        for text in flat(facts).values():
            assert "90 % interval" in text
            assert ("not what the user limit leaves out" in text) == (limit == 2)


def test_noise_below_zero_is_shown_and_drawn_without_length() -> None:
    choice = LimitChoice((1, 2, 3, 4, 6), (800, 90, -31, 7, -5, -48), 10.0, 2)
    facts = replace(histogram(), choice=choice)
    chart = report_charts(facts)[-1]
    assert len(chart.to_dict()["data"]["values"]) == 4
    assert "are drawn at zero" in chart.words
    assert "The last 2 numbers, from 5 to 6 items on, are not drawn" in chart.words
    assert ">-31</text>" in chart.svg().replace("\u2212", "-")
    assert "<td>-48</td>" in render(facts, "html")
    assert "| over 6 | -48 |" in render(facts, "markdown")
    whole = replace(facts, choice=replace(choice, users=(800, 90, 80, 70, 60, 50)))
    assert not any(said in report_charts(whole)[-1].words for said in ("not drawn", "drawn at zero"))


def test_an_empty_release_and_one_item() -> None:
    # One user passes with a probability below delta, which is none for a test.
    plan = dphist.plan(epsilon=1.0, delta=1e-12, max_items_per_user=3)
    one = gather_facts(dphist.release_histogram(["tea"], [900], plan))
    none = gather_facts(dphist.release_histogram(["tea"], [1], plan))
    assert report_data(none)["lead"].startswith("This release is empty: no count passed the threshold.")
    assert report_data(one)["lead"].startswith("For 1 item, ")
    assert all("Totals" not in render(facts, "text") for facts in (one, none))


def test_a_limit_in_place_of_a_top_k_step_keeps_the_largest(tmp_path: Path) -> None:
    facts = gather_facts(released_file(tmp_path, top=10, max_items_per_user=2))
    assert facts.plan.contract.max_nonzero is None
    assert facts.rows.total == 10
    assert facts.selection is not None
    assert facts.selection.largest == 10
    # Of what is cut nothing may say that it is released with some probability.
    for text in flat(facts).values():
        assert "released with" not in text.lower()
        assert "probability of release" not in text.lower()
    assert made("gshm")[1].selection.largest is made("top-k")[1].selection.largest is None  # type: ignore[union-attr]


def test_the_offset_is_part_of_the_threshold() -> None:
    facts = gather_facts(dphist.release(events(COUNTS, items_per_user=2), **BUDGET, top=3))
    counts = facts.document["counts"]
    assert counts["greater_than"] == pytest.approx(counts["offset"] + facts.plan.threshold)
    for text in flat(facts).values():
        assert f"offset + {facts.plan.threshold:.4g}" in text


def test_a_forged_choice_is_refused() -> None:
    """Not everything in a seeded certificate is checked; whatever it says, there is no traceback."""
    choice = {"caps": [1, 2], "variance": "4", "cap": 1, "noisy_users": ["a", "b", "c"]}
    for wrong in ({}, {"noisy_users": "abc"}, {"cap": "1", "noisy_users": [1, 2, 3]}):
        with pytest.raises(TypeError):
            limit_choice({**choice, **wrong})


def test_a_certificate_that_makes_no_sense_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise KeyError("counts")

    monkeypatch.setattr("dphist.report.facts.rows_of", fails)
    with pytest.raises(InputError, match="the certificate is invalid"):
        histogram()
