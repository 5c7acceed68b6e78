"""The summary of a release: its order, its numbers and its warnings."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dphist
from dphist.certificate.request import request_for_plan
from dphist.certificate.verify import verify
from dphist.display import figure, plain_number
from dphist.model import Budget
from dphist.planning.utility import count_noise
from dphist.proof.verdict import LEVELS, right_guesses, verdict_of
from dphist.releasing.summary import summarize

LOG = pd.DataFrame({
    "user": [*range(3000), *range(1000)],
    "item": ["a"] * 3000 + ["b"] * 1000,
    "rating": [4.0] * 3000 + [2.0] * 1000,
})  # fmt: skip


def made(**options: Any) -> dphist.Release:
    budget = {"epsilon": 1.0, "delta": 1e-6, "seed": 3} | options
    if budget["seed"] is None:
        del budget["seed"]
    return dphist.release(LOG, user="user", item="item", **budget)


# The verdict.


@pytest.mark.parametrize(
    ("epsilon", "delta", "largest", "level"),
    [
        (0.1, 1e-6, None, "strong"),
        (1.0, 1e-6, 1e5, "strong"),
        (1.01, 1e-6, None, "moderate"),
        (3.0, 1e-6, None, "moderate"),
        (3.01, 1e-6, None, "weak"),
        (10.1, 1e-6, None, "very weak"),
        (0.1, 2e-3, None, "weak"),
        (0.1, 0.2, None, "very weak"),
        (0.1, 2e-5, None, "moderate"),
        (0.1, 1e-5, 9_000.0, "strong"),
        (0.1, 1e-5, 11_000.0, "moderate"),
        (0.1, 1e-5, 110_000.0, "weak"),
    ],
)
def test_levels(epsilon: float, delta: float, largest: float | None, level: str) -> None:
    found = verdict_of(Budget(epsilon, delta), largest)
    assert found.level == level
    assert found.weak == (LEVELS.index(found.level) >= 2)
    assert found.sentence.startswith(f"{level}: ")


@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 1e-6), (1.0, 0.05), (4.0, 1e-3)])
def test_right_guesses_are_those_of_the_worst_mechanism(epsilon: float, delta: float) -> None:
    """Randomized response that reveals the truth with probability delta has this budget and attains the bound."""
    truth = math.exp(epsilon) / (1.0 + math.exp(epsilon))
    with_person = np.array([delta, 0.0, (1 - delta) * truth, (1 - delta) * (1 - truth)])
    without = np.array([0.0, delta, (1 - delta) * (1 - truth), (1 - delta) * truth])
    assert (with_person - math.exp(epsilon) * without).clip(0).sum() == pytest.approx(delta)
    best_guess = 0.5 * np.maximum(with_person, without).sum()
    assert right_guesses(Budget(epsilon, delta)) == pytest.approx(best_guess, rel=1e-12)
    assert f"{right_guesses(Budget(1.0, 1e-6)):.4f}" == "0.7311"
    assert "73.2 %" in verdict_of(Budget(1.0, 1e-6)).sentence, "bounds are rounded up"


def test_numbers_are_short_and_exact() -> None:
    assert [plain_number(n) for n in (1.0, 0.5, 1e-6, 2.5e-7, 50.0, 1e22)] == [
        "1", "0.5", "1e-6", "2.5e-7", "50", "1e22",
    ]  # fmt: skip
    assert all(float(plain_number(n)) == n for n in (0.1 + 0.2, 1e-300, 123456789.0))


# The order of what is printed.


def test_results_come_first() -> None:
    lines = repr(made(max_items_per_user=2)).splitlines()
    assert lines[0] == "NOT PRIVATE: the noise was made from a seed"
    assert lines[1] == "2 items released"
    assert [line.split("  ")[0] for line in lines[2:4]] == ["Margin of error", "Mostly hidden"]
    table = next(place for place, line in enumerate(lines) if line.split() == ["item", "count"])
    notes = next(place for place, line in enumerate(lines) if line.startswith("Note:"))
    assert table < notes


def test_few_items_are_explained() -> None:
    none = made(epsilon=0.001, max_items_per_user=2)
    assert not len(none)
    assert "No item passed the threshold. An item needs about" in repr(none)
    assert "a larger ε" in none.summary.why_few
    assert "a lower limit per user" in none.summary.why_few
    assert "Only 2 items passed" in made(max_items_per_user=2).summary.why_few
    many = pd.DataFrame({"user": range(12_000), "item": [number % 6 for number in range(12_000)]})
    asked: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "max_items_per_user": 1, "seed": 1}
    assert dphist.release(many, user="user", item="item", **asked).summary.why_few == ""


def test_top_counts_the_items_that_stood_out() -> None:
    found = made(top=20).summary
    assert found.headline == "2 of at most 20 items stood out"
    assert "more than the item of rank 21" in found.hidden_words
    assert found.limit_words == "none: every item of every user counts"
    assert made(top=1).summary.headline == "1 item released"


def test_a_public_list_hides_nothing() -> None:
    found = made(items=pd.DataFrame({"item": ["a", "b", "zero"]}), max_items_per_user=2).summary
    assert found.headline == "3 items released, all of a public list"
    assert found.hidden_below is None
    assert not found.why_few


def test_hidden_below_has_even_odds() -> None:
    found = made(max_items_per_user=2)
    law = count_noise(found.plan.noise)
    below = found.summary.hidden_below
    assert below is not None
    assert law.probability(below) >= 0.5 > law.probability(below - 1)


# Warnings about weak budgets.


def test_weak_budget(tmp_path: Any) -> None:
    weak = made(epsilon=50.0, delta=0.01, max_items_per_user=2, seed=None, output=tmp_path / "weak.csv")
    for text in (repr(weak), weak._repr_html_(), str(verify(tmp_path / "weak.csv"))):
        assert "ε = 50 is a very weak guarantee" in text
        assert "δ = 0.01 is too large" in text
    found = verify(tmp_path / "weak.csv")
    assert found.verified
    assert (
        "is verified: it matches its certificate, which proves its guarantee, but its guarantee is very weak"
        in (str(found))
    )
    assert found.to_dict()["verdict"] == "very weak"
    assert len(found.to_dict()["warnings"]) == 2
    assert len(weak.summary.warnings) <= 3
    calm = made(max_items_per_user=2, seed=None, output=tmp_path / "calm.csv")
    assert "Warning" not in repr(calm)
    assert verify(tmp_path / "calm.csv").warnings == ()


def test_a_delta_above_one_over_the_users_of_an_item(tmp_path: Any) -> None:
    """The released counts show it: 3,000 users, and a delta of about 1 in 1,000."""
    made(delta=0.0009, max_items_per_user=2, seed=None, output=tmp_path / "a.csv")
    assert re.search("and one item has about (2,9|3,0)", str(verify(tmp_path / "a.csv")))


# Digits and intervals.


def test_digits_follow_the_error_of_each_column() -> None:
    found = made(mean="rating:1:5", sum="rating:1:5", max_items_per_user=2, interval=0.95)
    row = found.table_text().splitlines()[1].split()
    head = found.table_text().splitlines()[0].split()
    by_name = dict(zip(head, row, strict=True))
    assert float(by_name["rating_mean"]) == pytest.approx(4.0, abs=0.1)
    assert "." in by_name["rating_mean_low"]
    assert float(by_name["rating_mean_low"]) < float(by_name["rating_mean"]) < float(by_name["rating_mean_high"])
    assert "." not in by_name["count"]
    assert "." not in by_name["rating_sum"]


def test_notes_about_intervals() -> None:
    limited = made(max_items_per_user=1, interval=0.95)
    assert "Intervals cover noise, not what the user limit leaves out" in limited.table_text()
    assert "Intervals cover noise" in limited._repr_html_()
    assert "Intervals" not in made(max_items_per_user=1).table_text()
    assert "Intervals" not in made(top=2, interval=0.95).table_text()
    rounds = made(interval=0.95)
    assert "Intervals" not in rounds.table_text()
    assert rounds.table_text().split()[:3] == ["item", "count", "margin"]


def test_the_summary_as_data() -> None:
    found = made(max_items_per_user=2).summary.to_dict()
    assert json.loads(json.dumps(found)) == found
    assert found["verdict"] == "not private"
    assert [row["label"] for row in found["rows"]] == ["Margin of error", "Mostly hidden", "User limit", "Privacy"]


def test_a_release_in_rounds_says_its_margins_and_what_is_hidden() -> None:
    found = made(epsilon=5.0)
    summary, table = found.summary, found.to_arrow()
    margins = table["margin"].to_numpy()
    assert summary.margin == float(np.median(margins))
    assert summary.margin_words.endswith("(95 %)")
    assert found.findings is not None
    assert f"fewer than about {found.findings.needed} users" in summary.hidden_words
    assert "none up to 256 items" in summary.limit_words


def few(counts: dict[str, int], **options: Any) -> str:
    users = [user for count in counts.values() for user in range(count)]
    items = [item for item, count in counts.items() for _ in range(count)]
    frame = pd.DataFrame({"user": users, "item": items})
    return str(dphist.release(frame, user="user", item="item", epsilon=1, delta=1e-6, seed=1, **options))


EIGHT = {f"i{rank}": 3000 - 300 * rank for rank in range(8)}


def test_a_full_release_does_not_blame_the_threshold() -> None:
    """As many items as it may have: no other option but a larger K would give more."""
    for options in ({"top": 4}, {"max_nonzero": 5}):
        assert "passed the threshold" not in few(EIGHT, **options), options
    # A larger one subtracts a smaller count.
    near = {"a": 302, "b": 301, "c": 300, "d": 2}
    assert "\n3 items released\n" in few(near, top=3)
    assert "To get more: a larger or a smaller top, data" in " ".join(few(near, top=2).split())
    assert "To get more: a larger top, data" in " ".join(few(near, top=1).split())
    assert "smaller top" not in few({"a": 900, "b": 3}, max_nonzero=5)


def test_the_margin_does_not_hide_what_a_top_k_step_subtracts() -> None:
    """Of eight items with a bound of five, the sixth count is subtracted from all."""
    shown = " ".join(few(EIGHT, max_nonzero=5).split())
    assert "of noise; if there is an item of rank 6, all counts are also lower by its count" in shown
    for options in ({"top": 5}, {"max_items_per_user": 3}):
        assert "also lower by its count" not in few(EIGHT, **options), options
    # Nothing may be left after the subtraction, which is not the threshold's doing alone.
    none = " ".join(few(dict.fromkeys("abcdefgh", 3000), max_nonzero=5).split())
    assert "more than the item of rank 6 if there is one" in none


def test_a_query_is_a_warning() -> None:
    query = "SELECT user, item FROM e GROUP BY ALL HAVING count(*) > 3"
    request = request_for_plan({"epsilon": 1, "delta": 1e-6, "input": "x.duckdb", "query": query})
    found = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=3)
    shown = summarize(found, request, items=9, largest=100.0).lines("")
    assert any(line.startswith("Warning: The guarantee assumes that the rows") for line in shown)


def test_no_number_is_minus_zero() -> None:
    assert figure(-0.0) == "0"
    assert "-0" not in few({"a": 900}, max_items_per_user=1)
