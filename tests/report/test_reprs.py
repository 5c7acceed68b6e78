"""Notebooks show every result as a plain table, with all texts escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd

import dphist
from dphist.certificate.verify import Verification
from dphist.ledger import Ledger

EVIL = "<script>alert('x & y')</script>"


def make_release(name: str = "query") -> dphist.Release:
    log = pd.DataFrame({"user": range(400), name: [EVIL] * 300 + ["b"] * 100})
    return dphist.release(log, user="user", item=name, epsilon=1, delta=1e-6, max_items_per_user=1, seed=1)


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.rows: list[int] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert {name for name, _ in attrs} <= {"scope"}, f"{tag} has {attrs}"
        self.seen.append(tag)
        if tag == "tr":
            self.rows.append(0)
        if tag in ("td", "th"):
            self.rows[-1] += 1
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check_table(html: str) -> None:
    """A table without colours, styles and scripts, whose rows have the same length."""
    checker = Checker()
    checker.feed(html)
    assert not checker.open
    assert set(checker.seen) <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "strong", "br", "p"}
    assert checker.seen[:2] == ["table", "caption"]
    assert len(set(checker.rows)) == 1, "rows of different lengths"
    assert not re.search(r"colou?r|style|#[0-9a-f]{3}", html)


def test_every_result_is_a_plain_table(tmp_path: Path) -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=10)
    bounds: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "max_items_per_user": 10}
    accounts = Ledger.init(tmp_path / "budget.ledger", "a & b", epsilon=3, delta=1e-5, accounting="sum").accounts()
    for result in (
        plan,
        plan.proof,
        make_release(),
        dphist.compare(**bounds),
        dphist.compare_sums(**bounds, sums=[(0, 5), (0, 9)]),
        dphist.certify(epsilon=1, sigma=30, tau=165, max_items_per_user=50),
        Verification("out.csv", ("fine & good",), (), False, None),
        dphist.simulate(zipf=(1.1, 1000, 5000), epsilon=1, delta=1e-6, limits=[1, 4]),
        accounts,
        accounts.find("a & b"),
    ):
        check_table(result._repr_html_())
        text = str(result)
        assert text
        assert not text.startswith(f"{type(result).__name__}("), "a representation for programmers"
        assert all(line == line.rstrip() for line in text.splitlines())
    assert "a &amp; b" in accounts._repr_html_()


def test_items_and_names_are_escaped() -> None:
    refused = Verification(EVIL, ("fine",), (EVIL,), False, None)
    for html in (make_release()._repr_html_(), make_release(EVIL)._repr_html_(), refused._repr_html_()):
        check_table(html)
        assert "<script" not in html
        assert "&lt;script&gt;" in html
    assert "NOT verified" in refused._repr_html_()
    assert "<strong>NOT PRIVATE" in make_release()._repr_html_()


def test_a_long_item_does_not_widen_the_table() -> None:
    """A person sees its beginning; the output has all of it."""
    log = pd.DataFrame({"user": range(800), "query": ["y" * 3_000] * 500 + ["tea"] * 300})
    result = dphist.release(log, user="user", item="query", epsilon=1, delta=1e-6, max_items_per_user=1, seed=1)
    assert "y" * 57 + "..." in repr(result)
    assert max(map(len, repr(result).splitlines())) <= 100
    assert "y" * 100 not in result._repr_html_()
    assert "y" * 3_000 in result.to_pandas()["query"].tolist()
