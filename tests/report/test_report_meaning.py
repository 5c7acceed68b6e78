"""What a count is: nobody takes a difference for a number of users, or a seed for noise."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dphist
from dphist.display import raised
from dphist.privacy.types import Budget
from dphist.report import curve
from dphist.report.charts import charts_of
from dphist.report.data import data_of
from dphist.report.drawing import figure_bytes
from dphist.report.facts import Facts
from dphist.report.making import FORMATS, render, report_facts
from dphist.report.meaning import meaning_of
from dphist.report.promise import promise
from dphist.report.sentences import uncovered
from report_cases import Page, forged, made, released

ITEMS = {f"i{place}": 2000 - 50 * place for place in range(40)}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two points of the curve are as good as all here; what is `made` has all of them."""
    monkeypatch.setattr(curve, "_SECONDS", -1.0)


def histogram(folder: Path, name: str = "out.csv", counts: dict[str, int] = ITEMS, **options: Any) -> Path:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, **options)
    dphist.release_histogram(list(counts), list(counts.values()), plan).write(folder / name)
    return folder / name


def flat(facts: Facts) -> dict[str, str]:
    """Every format without the ends of its lines and what Markdown escapes."""
    return {format: " ".join(render(facts, format).replace("\\", "").split()) for format in FORMATS}


def test_differences_are_not_taken_for_numbers_of_users(tmp_path: Path) -> None:
    """Neither those of a top-k step without its offset, nor those of a histogram that may have had one."""
    reduced = report_facts(histogram(tmp_path, max_nonzero=20))
    for facts, kind, says in (
        (
            report_facts(released(tmp_path, top=10, offset="none")),
            "differences",
            "A count here is NOT a number of users",
        ),
        (reduced, "perhaps_reduced", "A count here may be less than the number of users"),
    ):
        assert facts.counts_are == data_of(facts)["counts_are"] == kind
        assert facts.rows.width is data_of(facts)["interval"] is None
        assert not facts.title.startswith("How many users")
        for format, text in flat(facts).items():
            assert says in text[: text.index("What was released, and from what")], format
            assert says in text[text.index("The released counts") :], format
            for wrong in ("low (95", "high (95", "how many users each of", "of the true one,", "intervals of the"):
                assert wrong not in text.replace("of the true one, possibly less", ""), (format, wrong)
        names = [column["name"] for column in Page(render(facts, "html")).data["columns"]]
        assert names == ["item", "count"]
    cards = {one.label: (one.value, one.meaning) for one in reduced.numbers}
    assert cards["Items of a user"] == ("at most 20", "Whoever counted promised this.")
    assert "within it of the true one, possibly less what was subtracted, 95 %" in cards["Noise of a count"][1]
    assert any("Counts may be less than the numbers of users" in one for one in reduced.uncovered)


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
        found = meaning_of(dphist.plan(epsilon=1.0, delta=1e-6, **options), request, ["item"])
        assert found.kind == kind, (options, request)
        assert (found.note == "") == (kind == "users")
        assert (found.title == "How many users per item") == (kind == "users")
        assert found.intervals == (kind in ("users", "sketch"))


def test_a_histogram_with_a_bound_says_that_counts_may_be_reduced(tmp_path: Path) -> None:
    path = histogram(tmp_path, max_nonzero=20)
    noted = json.loads(Path(f"{path}.certificate.json").read_text())["caveats"]
    assert "perhaps-reduced" in noted
    assert any("Counts may be lower than the numbers of users" in one for one in report_facts(path).uncovered)
    forged(path, caveats=[one for one in noted if one != "perhaps-reduced"])
    assert not dphist.verify(path).verified


def test_the_sum_of_what_was_selected_is_too_high() -> None:
    """Many counts at the threshold: what passed is too high by far more than the noise of a sum."""
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=8)
    near, size = round(plan.threshold), 3000
    result = dphist.release_histogram([str(n) for n in range(size)], [near] * size, plan, seed=1)
    noise = plan.total_noise * math.sqrt(len(result))
    assert float(result.counts.sum()) - near * len(result) > 10 * noise
    said = next(one for one in report_facts(result).uncovered if one.startswith("Totals"))
    assert f"before selection has a standard error of {noise:.0f} the noise" in said.replace(",", "")
    assert "every count near the threshold adds its bias" in said
    public = dphist.plan(epsilon=1.0, delta=1e-6, public_items=5)
    counts = {"covariance": 0.0, "standard_error": public.total_noise}
    assert "bias" not in " ".join(uncovered(public, {"not_covered": [], "request": {}, "counts": counts}, 5))


def test_shared_noise_is_all_that_counts_share(tmp_path: Path) -> None:
    facts = report_facts(released(tmp_path, top=10, offset="independent"))
    plan = facts.plan
    shared = next(float(one.value) for one in facts.numbers if one.label == "Shared noise")
    # The offset has noise of its own, of the same variance, and it is in all counts.
    assert shared == pytest.approx(math.sqrt(2.0) * plan.sigma_shared, rel=1e-3)
    assert f"{shared**2:.2g}" in next(one for one in facts.uncovered if one.startswith("Totals"))


def test_a_seed_is_told_by_every_chart_and_every_number(tmp_path: Path) -> None:
    facts = report_facts(released(tmp_path, max_items_per_user=2, seed=1))
    assert facts.title.startswith("NOT PRIVATE: ")
    charts = charts_of(facts)
    assert len(charts) == 5
    for chart in charts:
        assert chart.title.startswith("NOT PRIVATE: ")
        assert chart.words.startswith("NOT PRIVATE: the noise was made from a seed")
        drawn = figure_bytes(chart, "svg").decode()
        # What is seen, not only what is read aloud.
        assert "NOT PRIVATE" in re.sub(r"<(title|desc)[^>]*>.*?</\1>", "", drawn)
    for format, text in flat(facts).items():
        assert "The mark is the promise" not in text, format
        assert "of its plan alone: the plan is (1.0, 1e-06)-differentially private" in text, format
        assert "no point of the curve, nor the mark, holds for this release" in text, format
        assert ">this release</text>" not in text
    assert "planned for epsilon 1, delta 1e-06" in render(facts, "html")
    for chart in charts_of(replace(facts, private=True)):
        assert "NOT PRIVATE" not in figure_bytes(chart, "svg").decode()


def test_what_is_written_is_not_called_unwritten(tmp_path: Path) -> None:
    result = dphist.release_histogram(["tea"], [900], dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=3))
    assert all("not yet written" in text.lower() for text in flat(report_facts(result)).values())
    written = report_facts(result.write(tmp_path / "out.csv"))
    assert data_of(written)["written"]
    assert all("not yet written" not in text.lower() for text in flat(written).values())
    assert all("guarantee verified" in text.lower() for text in flat(written).values())


def test_a_promise_is_for_those_it_is_for() -> None:
    budget = Budget(1.0, 1e-6)
    assert "and however many items that person had" in promise(budget, 0.1)[0]
    bounded = promise(budget, 0.1, "..., provided that no user touches more than 3 of the counts, each by one.")[0]
    assert "however many" not in bounded
    assert "if that person has no more items than the guarantee rests on" in bounded


def test_budgets_and_bounds_are_rounded_up(tmp_path: Path) -> None:
    epsilon, delta = 1.2345611, 1.2345611e-6
    sentences = " ".join(promise(Budget(epsilon, delta), 0.1))
    assert "delta = 1.23457e-06" in sentences
    assert "(epsilon = 31.2346)" in " ".join(promise(Budget(31.23451, delta), 0.1))
    plan = dphist.plan(epsilon=epsilon, delta=delta, max_items_per_user=3)
    facts = report_facts(dphist.release_histogram(["tea"], [900], plan))
    told = {one.label: float(one.value) for one in facts.numbers if one.label[0] in "ED"}
    assert told["Epsilon"] == 1.23457
    assert told["Delta"] == 1.23457e-6
    assert told["Delta, as proved"] >= facts.delta_proved
    assert "epsilon 1.23457, delta 1.23457e-06" in render(facts, "html")
    found = next(one for one in facts.checks if "at most" in one)
    assert float(found.rpartition(" ")[2]) >= facts.delta_proved
    assert raised(1.2345611, 6) == "1.23457"


def test_nothing_and_one_are_told_as_such() -> None:
    # One user passes with a probability below delta, which is none for a test.
    plan = dphist.plan(epsilon=1.0, delta=1e-12, max_items_per_user=3)
    one = report_facts(dphist.release_histogram(["tea"], [900], plan))
    none = report_facts(dphist.release_histogram(["tea"], [1], plan))
    assert none.lead.startswith("Nothing is in this release: no count has passed the threshold.")
    assert "how many users there are for 1 item, with noise" in one.lead
    for facts in (one, none):
        text = flat(facts)["text"]
        assert "Totals" not in text
        assert not re.search(r"\b(0 items has|all [01] released|root of 0)\b", text)


def test_a_column_of_counts_may_have_any_name(tmp_path: Path) -> None:
    """Of a histogram as well, whose certificate has no request that names it."""
    table = pa.table({"count": ["tea", "milk"], "n": [900, 800]})
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=3)
    result = dphist.release_histogram(table, plan=plan, item="count", count="n")
    result.write(tmp_path / "out.parquet")
    assert dphist.verify(tmp_path / "out.parquet").verified
    rows = report_facts(tmp_path / "out.parquet").rows
    assert (rows.count, rows.items, rows.total) == ("n", ("count",), 2)


def test_a_forged_seeded_choice_is_refused_in_a_sentence() -> None:
    """Not all of a seeded certificate is looked at; whatever it says, there is no traceback."""
    from dphist.report.facts import _sizes

    choice = {"caps": [1, 2], "variance": "4", "cap": 1, "noisy_users": ["a", "b", "c"]}
    for wrong in ({}, {"noisy_users": "abc"}, {"cap": "1", "noisy_users": [1, 2, 3]}):
        with pytest.raises(TypeError):
            _sizes({**choice, **wrong})
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=3)
    whole = report_facts(dphist.release_histogram(["tea"], [900], plan))
    facts = replace(whole, uncovered=([1],), private=False)  # type: ignore[arg-type]
    for format in FORMATS:
        with pytest.raises(dphist.DphistError, match="the certificate cannot be understood"):
            render(facts, format)


def test_a_cap_in_place_of_a_top_k_step_leaves_the_largest(tmp_path: Path) -> None:
    path = released(tmp_path, top=10, max_items_per_user=2)
    facts = report_facts(path)
    assert facts.plan.contract.max_nonzero is None
    assert facts.rows.total == 10
    assert any("the 10 with the largest noisy counts are in the release" in one for one in facts.selected)
    # Of what is cut nothing may promise that it is released.
    assert "it passes the threshold with at least 50 %" in facts.selected[0]
    texts = flat(facts)
    assert "Probability that an item passes the threshold" in texts["html"]
    for text in texts.values():
        assert not re.search("released with|probability of release", text, re.IGNORECASE)
    assert not any("largest noisy counts" in one for one in made("gshm")[1].selected + made("top-k")[1].selected)
