"""Takes the screenshots of the documentation: `make pictures`. The report is that of `make demo`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from browser import opened_browser, opened_page
from explore_page import explore, settled

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "demo-output" / "demo-report.html"
IMAGES = ROOT / "docs" / "images"
SIZE = {"width": 1200, "height": 1000}
PAPER = {"width": 860, "height": 810}


def of_report(page: Page) -> None:
    page.screenshot(path=IMAGES / "report.png")


def of_declaration(page: Page) -> None:
    page.emulate_media(media="print")
    page.evaluate("document.body.style.margin = '24px'")  # that of the paper
    page.screenshot(path=IMAGES / "declaration.png")


def of_explore(page: Page) -> None:
    settled(page)
    page.screenshot(path=IMAGES / "explore.png")


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, explore(Path(folder)) as found, opened_browser() as browser:
        with opened_page(browser, REPORT.as_uri(), viewport=SIZE) as (page, _):
            of_report(page)
        with opened_page(browser, f"{REPORT.as_uri()}#print-declaration", viewport=PAPER) as (page, _):
            of_declaration(page)
        with opened_page(browser, found.address, viewport=SIZE) as (page, _):
            of_explore(page)


if __name__ == "__main__":
    main()
