"""Makes the pictures of the documentation, in a real browser: `make pictures`.

The report is that of `make demo`, of a made-up log: nobody is in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "demo-output" / "report.html"
IMAGES = ROOT / "docs" / "images"
DPHIST = Path(sys.executable).with_name("dphist")


@contextmanager
def explore() -> Iterator[str]:
    """The address of the page of `dphist explore`, as long as it runs."""
    with subprocess.Popen([DPHIST, "explore", "--no-browser"], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield next(word for line in running.stdout for word in line.split() if "?token=" in word)
        finally:
            running.terminate()


def of_report(page: Any) -> None:
    """Who is released, and how far off it is."""
    page.goto(REPORT.as_uri())
    box = page.locator("#selection").bounding_box()
    page.evaluate("top => window.scrollTo(0, top)", box["y"] + 12)
    page.screenshot(
        path=IMAGES / "report.png", clip={"x": box["x"] - 24, "y": 0, "width": box["width"] + 48, "height": 690}
    )


def of_explore(page: Any, address: str) -> None:
    """The paper's own numbers: at most 51,914 counts."""
    page.goto(address)
    for name, value in (
        ("epsilon", "0.35"),
        ("delta", "1e-5"),
        ("max_items_per_user", ""),
        ("max_nonzero", "51914"),
    ):
        page.fill(f"#{name}", value)
    page.wait_for_selector("#state.certified", timeout=60_000)
    page.wait_for_selector("#figure-note:has-text('full analyses')", timeout=60_000)
    page.screenshot(path=IMAGES / "explore.png")


def main() -> None:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        sys.exit("pictures are made with Chromium: apt-get install chromium")
    IMAGES.mkdir(exist_ok=True)
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright, explore() as address:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        of_report(page)
        of_explore(page, address)
        browser.close()


if __name__ == "__main__":
    main()
