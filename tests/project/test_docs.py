"""Everything that the documentation shows was really printed."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import generate
import pytest

from markdown import PAGES, ROOT, Block, blocks, run_apart, run_console, run_python, run_shell

# A process has one Spark session, and other tests have theirs.
APART = ROOT / "docs" / "spark.md"
# Pages that compute for several seconds.
LONG = ("exact-analysis.md", "accounting.md", "audit.md", "discrete.md", "simulate.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=page.name)
        for page in PAGES
        if page != APART
    ],
)
def test_code_blocks_print_what_the_page_says(
    page: Path, demo_output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All blocks of all pages, pasted in order into the folder that `make demo` leaves."""
    monkeypatch.chdir(demo_output)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for block, following in pairwise([*blocks(page), Block("end", "")]):
        if block.language == "python":
            printed = run_python(block.text, namespace)
            if following.language == "text":
                assert printed == following.text
        elif block.language == "console":
            assert run_console(block.text) == block.text
        elif block.language == "sh":
            printed = run_shell(block.text, fails=following.text.startswith("Error"))
            assert not following.text.startswith("Error") or printed == following.text


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of `make demo`, smaller."""
    folder = tmp_path_factory.mktemp("demo-output")
    for script, *options in (
        ("search_log/make_log.py", "--events", "60000", "--output", "log.parquet"),
        ("purchases/make_shop.py", "--customers", "4000", "--output", "shop.sqlite", "--orders"),
    ):
        subprocess.run([sys.executable, ROOT / "examples" / script, *options], cwd=folder, check=True)
    return folder


@pytest.mark.together("spark")
def test_code_blocks_of_the_page_about_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    everything = blocks(APART)
    codes = [block.text for block in everything if block.language == "python"]
    shown = [following.text for block, following in pairwise(everything) if block.language == "python"]
    assert run_apart(codes) == shown


def test_formulas_page_is_current() -> None:
    """`make docs` writes it; it names every formula, its source and the tests of it."""
    assert (ROOT / "docs" / "theory" / "formulas.md").read_text(encoding="utf-8") == generate.formulas_page()


def test_the_signature_of_release_is_current() -> None:
    """`make docs` writes it from the options that `Request` declares."""
    assert generate.RELEASE.read_text(encoding="utf-8") == generate.release_module()


def test_every_label_of_the_paper_is_accounted_for() -> None:
    page = (ROOT / "docs" / "theory" / "formulas.md").read_text(encoding="utf-8")
    for label in generate.PAPER_LABELS:
        assert f"`{label}`" in page, label


def test_every_formula_has_a_source_a_guarantee_an_oracle_and_a_test() -> None:
    for formula in generate.formulas():
        assert formula.source, formula.name
        assert formula.tests, f"{formula.name} is not tested"
        assert formula.guarantee, formula.name
        assert formula.oracles, f"{formula.name} has no oracle"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
