"""Notebooks show every result as a plain table, with all texts escaped."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dphist
from dphist.accounting import compose, plan_many
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.privacy.types import Budget
from dphist.releasing.document import choice_for
from dphist.releasing.verify import Verification

EVIL = "<script>alert('x & y')</script>"


def make_release(name: str = "query") -> dphist.Release:
    log = pd.DataFrame({"user": range(400), name: [EVIL] * 300 + ["b"] * 100})
    return dphist.release(log, user="user", item=name, epsilon=1, delta=1e-6, max_items_per_user=1, seed=1)


@cache
def results() -> dict[str, Any]:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=10)
    return {
        "plan": plan,
        "certificate": plan.certificate,
        "release": make_release(),
        "comparison": dphist.compare(epsilon=1, delta=1e-6, max_items_per_user=10),
        "sums": dphist.compare_sums(epsilon=1, delta=1e-6, max_items_per_user=10, sums=[(0, 5), (0, 9)]),
        "certification": dphist.certify(epsilon=1, sigma=30, tau=165, max_items_per_user=50),
        "choice": choice_for(Budget(1, 1e-6)),
        "composition": compose((plan, 3)),
        "many": plan_many([{"public_items": 3}, {"public_items": 5}], epsilon=1, delta=1e-3),
        "verification": Verification(EVIL, ("fine & good",), (EVIL,), False, None),
        "simulation": dphist.simulate(zipf=(1.1, 1000, 5000), epsilon=1, delta=1e-6, caps=[1, 4], auto=False),
    }


KINDS = (
    "plan", "certificate", "release", "comparison", "sums", "certification", "choice", "composition",
    "many", "verification", "simulation",
)  # fmt: skip


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


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    assert not checker.open
    assert set(checker.seen) <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "strong", "br", "p"}
    assert checker.seen[:2] == ["table", "caption"]
    assert len(set(checker.rows)) == 1, "rows of different lengths"
    return checker


@pytest.mark.parametrize("kind", KINDS)
def test_every_result_is_a_plain_table(kind: str) -> None:
    one = results()[kind]
    html = one._repr_html_()
    checked(html)
    assert not re.search(r"colou?r|style|#[0-9a-f]{3}", html)
    text = str(one)
    assert text
    assert not text.startswith(f"{type(one).__name__}("), "that is for programmers"
    assert all(line == line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("kind", ["release", "verification"])
def test_items_and_names_are_escaped(kind: str) -> None:
    html = results()[kind]._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "<script" not in make_release(EVIL)._repr_html_()


def test_contents() -> None:
    found = results()
    assert "worst neighbours" in str(found["certificate"])
    assert f"{found['certificate'].delta:.10g}" in found["certificate"]._repr_html_()
    assert "error of sum 2" in found["sums"]._repr_html_()
    single = dphist.compare_sums(epsilon=1, delta=1e-6, max_items_per_user=10, sums=[(0, 5)])
    assert "error of the sum" in single._repr_html_()
    assert "4,096" in str(found["choice"])
    assert "certified delta of both" in str(found["choice"])
    assert found["composition"].rows()[0] == ("releases", "3")
    assert str(found["composition"]).count("epsilon at delta") >= 2
    assert "known-domain" in str(found["many"])
    assert "NOT verified" in found["verification"]._repr_html_()
    good = Verification("a.csv", ("fine",), (), True, 1e-6)
    assert "a.csv is verified" in good._repr_html_()
    assert "<strong>NOT PRIVATE" in found["release"]._repr_html_()


def test_accounts_of_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "budget.ledger"
    ledger = Ledger.init(path, "a & b", epsilon=3, delta=1e-5, accounting="sum")
    accounts = ledger.accounts()
    checked(accounts._repr_html_())
    assert "a &amp; b" in accounts._repr_html_()
    assert "0 booked" in str(accounts)
    ledger.book("a & b", Spend(1.0, 1e-6), SumComposer())
    account = ledger.accounts().find("a & b")
    checked(account._repr_html_())
    assert "a &amp; b: epsilon 3" in account._repr_html_()
    assert len(str(account).splitlines()) == 4
    assert "1 booked" in str(ledger.accounts())
