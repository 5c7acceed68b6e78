"""The documentation site: it builds without a warning, asks no other host for anything, and fits a phone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from browser import accessibility_violations, opened_page

ROOT = Path(__file__).resolve().parents[2]
# Home, a guide, a page with wide tables, and two with formulas.
SEEN = ("index", "release", "rounds", "theory/exact-analysis", "theory/rounds")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("zensical", reason="no Zensical: pip install -e '.[site]'")
    pytest.importorskip("latex2mathml", reason="no latex2mathml: pip install -e '.[site]'")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"], cwd=folder, check=False, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "docs")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_every_page_is_built_and_every_formula_converted(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        built = (site / name).read_text(encoding="utf-8")
        assert r"\(" not in built, name
        assert r"\[" not in built, name
        formulas = built.count('class="arithmatex"')
        assert formulas == built.count("<math"), name
        assert formulas or "$$" not in page.read_text(encoding="utf-8"), name


def test_no_page_loads_from_another_host(site: Path) -> None:
    for file in site.rglob("*"):
        if file.suffix == ".html":
            loaded = r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(https?:)?//|<link[^>]*\shref=\"?(https?:)?//"
        elif file.suffix == ".css":
            loaded = r"(?:url\(|@import)\s*[\"']?(?:https?:)?//"
        else:
            continue
        assert not re.search(loaded, file.read_text(encoding="utf-8")), file


def test_pages_fit_a_phone_and_load_nothing_from_elsewhere(site: Path, browser: Any) -> None:
    for name in SEEN:
        address = (site / f"{name}.html").as_uri()
        with opened_page(browser, address, viewport={"width": 390, "height": 844}) as (page, seen):
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
            assert not seen.elsewhere("file:", "data:"), name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(site: Path, browser: Any, scheme: str) -> None:
    with opened_page(browser, (site / "five-minutes.html").as_uri(), color_scheme=scheme) as (page, _):
        found = accessibility_violations(page)
        assert not [finding for finding in found if finding.startswith("color-contrast")]
