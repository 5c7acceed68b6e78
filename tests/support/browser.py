"""A real browser for pages: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str:
    """The browser's file; without one the test is skipped, and says what to do."""
    pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install -e '.[dev]'")
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium to look at pages with: apt-get install chromium")
    return found


@dataclass
class Seen:
    """What a page did beyond its task: errors, and requests for anything but itself."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @contextmanager
    def watching(self, page: Any) -> Iterator[None]:
        listeners = {
            "console": self._said,
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
        }
        for event, listener in listeners.items():
            page.on(event, listener)
        try:
            yield
        finally:
            for event, listener in listeners.items():
                page.remove_listener(event, listener)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def elsewhere(self, *allowed: str) -> list[str]:
        """Requests that do not start with any of these."""
        return [url for url in self.requests if not url.startswith(allowed)]


@contextmanager
def opened_browser() -> Iterator[Any]:
    """A browser without a window. Nothing of it is kept."""
    path = chromium()
    from playwright.sync_api import expect, sync_playwright

    # What is expected comes at once; a machine that does other things as well may take longer.
    expect.set_options(timeout=60_000)
    # As root there is no sandbox, and small machines have little shared memory.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened_page(
    browser: Any,
    address: str,
    *,
    viewport: Mapping[str, int] | None = None,
    color_scheme: str = "light",
    permissions: Sequence[str] = (),
) -> Iterator[tuple[Any, Seen]]:
    """An address in the one page that all tests of a browser share, and what it did: a new page costs a second."""
    context = browser.contexts[0] if browser.contexts else browser.new_context(accept_downloads=True)
    page = context.pages[0] if context.pages else context.new_page()
    page.set_viewport_size(viewport or {"width": 1280, "height": 720})
    page.emulate_media(media="screen", color_scheme=color_scheme, reduced_motion="reduce")
    context.grant_permissions(list(permissions))
    seen = Seen()
    try:
        with seen.watching(page):
            page.goto(address)
            yield page, seen
    finally:
        page.unroute_all(behavior="ignoreErrors")
        context.clear_permissions()


@contextmanager
def page_without_scripts(browser: Any, address: str) -> Iterator[Any]:
    """A page in a context of its own that runs no scripts."""
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(address)
        yield page
    finally:
        context.close()


def accessibility_violations(page: Any) -> list[str]:
    """What axe-core finds in a page, one line for each rule and element; WCAG 2 and good practice."""
    from axe_playwright_python.base import AXE_SCRIPT

    # Comes by the debugging protocol, so that the page's own policy stays as strict as it is.
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run(document)")["violations"]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]
