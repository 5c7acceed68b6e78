"""A browser for tests of pages: the system's Chromium, driven by Playwright."""

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
    """The path of the browser; without one the test is skipped."""
    pytest.importorskip("playwright.sync_api", reason="no Playwright: pip install -e '.[dev]'")
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return found


@dataclass
class Seen:
    """Errors and requests of a page."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    @contextmanager
    def watching(self, page: Any) -> Iterator[None]:
        listeners = {
            "console": self._on_console,
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

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def elsewhere(self, *allowed: str) -> list[str]:
        """Requests that do not start with any of these."""
        return [url for url in self.requests if not url.startswith(allowed)]


@contextmanager
def opened_browser() -> Iterator[Any]:
    path = chromium()
    from playwright.sync_api import expect, sync_playwright

    # Pages respond at once, but the machine may be busy.
    expect.set_options(timeout=60_000)
    # Root cannot use the sandbox, and small machines have little shared memory.
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
    """Open an address in the page that all tests share, because a new page takes a second."""
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
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(address)
        yield page
    finally:
        context.close()


def accessibility_violations(page: Any) -> list[str]:
    """The findings of axe-core (WCAG 2 and best practices), one line for each rule and element."""
    from axe_playwright_python.base import AXE_SCRIPT

    # Injected by the debugging protocol, which the content security policy does not restrict.
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run(document)")["violations"]
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found for node in rule["nodes"]]
