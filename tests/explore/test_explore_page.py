"""The page of `dphist explore` in a real browser, against the command as people run it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="no uvicorn: pip install -e '.[dev]'")

import dphist
from browser import accessibility_violations, chromium, opened_browser, opened_page
from explore_page import Opened, assert_agrees, change, explore, settled, shown

pytestmark = pytest.mark.together("test_explore_page")
# A certificate for this takes seconds.
SLOW = {"epsilon": "0.05", "delta": "1e-12", "top": "1000000"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    chromium()
    with explore(tmp_path_factory.mktemp("explore")) as found:
        yield found
        out, err = found.stop(signal.SIGINT)
    assert (found.process.returncode, err) == (0, "")
    assert found.token not in out
    assert out.endswith("Stopped.\n")


@pytest.fixture(scope="module")
def address(opened: Opened) -> str:
    return opened.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


def drawing(page: Any, name: str) -> str:
    return str(page.inner_html(f"#{name} svg"))


def test_numbers_and_charts_follow_every_field(opened: Opened, browser: Any) -> None:
    assert opened.browser_arguments() == [opened.address]
    with opened_page(browser, opened.address, viewport={"width": 1200, "height": 900}) as (page, seen):
        settled(page)
        assert (
            assert_agrees(page)["threshold"] == dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=20).threshold
        )
        assert "--max-items-per-user 20 --output" in page.inner_text("#release_command")
        change(page, epsilon="0.35", delta="1e-5", max_nonzero="51914", max_items_per_user="")
        assert shown(page, "threshold") == pytest.approx(6988.5)
        room, wide = page.eval_on_selector(
            "#comparison", "table => [table.parentElement.clientWidth, table.parentElement.scrollWidth]"
        )
        assert wide <= room, "the last column of the table is cut off"
        assert page.locator("#comparison tr.best").count() >= 1
        before = {name: drawing(page, name) for name in ("figure", "curve")}
        for fields, mechanism in (
            ({"max_nonzero": "300", "max_items_per_user": "12"}, "csh"),
            ({"epsilon": "0.7"}, "csh"),
            ({"max_nonzero": ""}, "gshm"),
            ({"max_items_per_user": "", "top": "250"}, "top-k"),
        ):
            change(page, **fields)
            assert assert_agrees(page)["mechanism"] == mechanism
            after = {name: drawing(page, name) for name in before}
            assert all(after[name] != before[name] for name in before), fields
            before = after
        assert not page.is_visible("#limit-section")
        change(page, max_items_per_user="12", top="")
        dropped = drawing(page, "limit")
        page.select_option("#excess", "spread")
        settled(page)
        spread = dphist.plan(epsilon=0.7, delta=1e-5, max_items_per_user=12, excess="spread")
        assert assert_agrees(page)["threshold"] == spread.threshold
        assert "--excess spread --output" in page.inner_text("#release_command")
        assert drawing(page, "limit") != dropped
        assert "with 192 items 48 in all" in page.inner_text("#limit-words")
        page.select_option("#excess", "drop")
        change(page, max_items_per_user="", top="250")
        page.select_option("#mechanism", "laplace")
        page.wait_for_selector("#mechanism-error")
        assert page.inner_text("#state") == "no plan"
        change(page, max_items_per_user="1", top="")
        assert assert_agrees(page)["mechanism"] == "laplace"
        page.select_option("#noise", "continuous")
        page.select_option("#mechanism", "gaussian")
        page.wait_for_selector("#release-hint:has-text('discrete noise')")
        assert not page.is_visible("#release_command")
        assert assert_agrees(page)["mechanism"] == "gshm"
        page.wait_for_selector("#outcome:has-text('No trial release')")
        # Refusals are in the console; nothing else is.
        assert [text for text in seen.errors if "422" not in text] == []
        assert seen.elsewhere(opened.address) == []
        kinds = {url.partition("/api/")[2] for url in seen.requests if "/api/" in url}
        assert kinds == {"plan", "curve", "limit", "trial", "table", "figure"}


@pytest.mark.slow
def test_sliders_by_keyboard(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, seen):
        change(page, max_nonzero="300")
        page.focus("input[type=range][data-for=epsilon]")
        first = shown(page, "threshold")
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        settled(page)
        assert float(page.input_value("#epsilon")) > 1
        assert shown(page, "threshold") < first
        assert_agrees(page)
        page.focus("input[type=range][data-for=top]")
        page.keyboard.press("End")
        assert (page.input_value("#top"), page.input_value("#max_nonzero")) == ("1000000", "")
        settled(page)
        assert_agrees(page)
        page.focus("input[type=range][data-for=top]")
        page.keyboard.press("Home")
        assert page.input_value("#top") == "1"
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.activeElement.id") == "top"
        assert seen.errors == []


def test_what_is_wrong_is_shown_at_its_field(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, seen):
        settled(page)
        for name in ("epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "gamma", "exponent", "seed"):
            good = page.input_value(f"#{name}")
            for value in ("NaN", "-1", "words 💥"):
                page.fill(f"#{name}", value)
                page.wait_for_selector(f"#{name}-error:has-text('{value}')")
                assert page.get_attribute(f"#{name}", "aria-invalid") == "true"
            page.fill("#top", "")
            page.fill(f"#{name}", good)
            page.wait_for_selector(f"#{name}-error", state="detached")
        settled(page)
        assert [text for text in seen.errors if "422" not in text] == []


def test_uploads_and_trial_releases(address: str, browser: Any) -> None:
    def upload(content: bytes) -> None:
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": content})

    with opened_page(browser, address) as (page, seen):
        change(page, max_items_per_user="5")
        kept = re.search(r"The bounds keep ([\d.]+) % of the pairs", page.inner_text("#outcome"))
        assert kept is not None
        assert float(kept[1]) == pytest.approx(100 * (1 - 0.95**5), abs=0.2)
        before = page.get_attribute("#outcome", "data-released")
        page.fill("#exponent", "0.5")
        page.wait_for_selector(f"#outcome:not([data-released='{before}'])")
        upload("\n".join(f"<b>w{i},{90_000 // i}" for i in range(1, 60)).encode())
        page.wait_for_selector("#outcome:has-text('of 59 items are released')")
        page.click("#largest-table summary")
        assert "<b>w1" in page.inner_text("#largest-table tbody")
        assert len(page.inner_text("#largest-words")) > 40
        upload(b"item;count;count_low\nKaese;1200.5;1\nBrot;900;1\nMilch;800.25;1\n")
        page.wait_for_selector("#outcome:has-text('2 uploaded counts had decimals')")
        for content, part in (
            (b"a,1\nb,x\n", "line 2"),
            (b"", "no count above 0"),
            (b"\x89PNG\r\n\x1a\n\0\0", "not text in UTF-8"),
            (b"1\n" * (5 * 2**19 + 1), "larger than 5 MB"),
        ):
            upload(content)
            page.wait_for_selector(f"#csv-error:has-text('{part}')")
        page.click("#forget")
        page.wait_for_selector("#outcome:has-text('of 10,000 items')")
        assert (page.query_selector("#csv-error"), page.input_value("#csv")) == (None, "")
        assert [text for text in seen.errors if "422" not in text] == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_it_fits_a_phone_and_is_readable(address: str, browser: Any, scheme: str) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme}
    with opened_page(browser, address, **options) as (page, seen):
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for node in ("body", "#curve svg text"):
            style = f"getComputedStyle(document.querySelector('{node}'))"
            ground = sum(
                map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
            )
            ink = sum(
                map(int, re.findall(r"\d+", page.evaluate(f"{style}.{'color' if node == 'body' else 'fill'}")))
            )
            assert (ground > ink) == (scheme == "light")
            assert abs(ground - ink) > 450
        for chart in ("figure", "curve", "limit", "largest"):
            assert page.get_attribute(f"#{chart} svg", "role") == "img"
            for part in page.get_attribute(f"#{chart} svg", "aria-labelledby").split():
                assert len(page.text_content(f"#{part}")) > 10
            assert len(page.inner_text(f"#{chart}-words")) > 40
        assert accessibility_violations(page) == []
        page.emulate_media(media="print", color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.is_visible("input[type=range]")
        assert seen.errors == []


def test_old_numbers_are_pale_and_not_copied(address: str, browser: Any) -> None:
    """From a change on, until its plan is there."""
    options = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened_page(browser, address, **options) as (page, _):
        settled(page)
        page.click("[data-copy=command]")
        page.wait_for_selector("text=Copied.")
        copied = page.inner_text("#command")
        assert page.evaluate("navigator.clipboard.readText()") == copied
        page.route("**/api/plan", lambda _: None)
        page.fill("#epsilon", "0.8")
        page.wait_for_selector("#state.busy")
        assert page.locator("section.stale").count() == page.locator("section").count()
        page.click("[data-copy=command]")
        page.wait_for_selector("text=Not copied")
        assert page.evaluate("navigator.clipboard.readText()") == copied
        page.unroute("**/api/plan")
        page.fill("#epsilon", "0.9")
        settled(page)
        assert "--epsilon 0.9" in page.inner_text("#command")
        assert_agrees(page)


def test_a_server_that_is_gone_is_reported(tmp_path: Path, browser: Any) -> None:
    """An interrupt ends the command at once and quietly, even while it computes."""
    with explore(tmp_path) as found, opened_page(browser, found.address) as (page, _):
        settled(page)
        computing = HTTPConnection(found.home.removeprefix("http://"), timeout=60)
        headers = {"Content-Type": "application/json", "Origin": found.home}
        computing.request("POST", f"/{found.token}/api/plan", json.dumps(SLOW), headers)
        page.reload()
        out, err = found.stop(signal.SIGINT)
        assert (found.process.returncode, err) == (0, "")
        assert found.token not in out
        page.fill("#epsilon", "0.8")
        page.wait_for_selector("#state.wrong")
        assert "does not answer" in page.inner_text("#problem")
        computing.close()
