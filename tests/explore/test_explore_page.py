"""The page of `dphist explore` in a browser, served by the command."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="no uvicorn: pip install -e '.[dev]'")

import dphist
from browser import accessibility_violations, chromium, opened_page
from dphist.explore.fields import FIELDS, PRIVACY
from explore_page import START, Opened, assert_agrees, change, explore, settled, shown, unfold
from scheduling import THOROUGH

pytestmark = pytest.mark.together("test_explore_page")
# Its certificate takes seconds.
SLOW = {**START, "epsilon": "0.05", "delta": "1e-12", "publish": "top", "top": "1000000"}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """One server for all tests; the last one stops it."""
    chromium()
    with explore(tmp_path_factory.mktemp("explore")) as found:
        yield found


@pytest.fixture(scope="module")
def address(opened: Opened) -> str:
    return opened.address


def drawing(page: Any, name: str) -> str:
    return str(page.inner_html(f"#{name} svg"))


def test_the_main_questions_and_their_answer(opened: Opened, browser: Any) -> None:
    assert opened.browser_arguments() == [opened.address]
    with opened_page(browser, opened.address, viewport={"width": 1400, "height": 1000}) as (page, seen):
        settled(page)
        assert not page.is_visible("#delta")
        assert not page.is_visible("#threshold")
        assert page.inner_text("#headline").startswith("Items with about ")
        assert "--epsilon 1 --delta 1e-6 --output" in page.inner_text("#release_command")
        before = {name: drawing(page, name) for name in ("picture", "shares")}
        changes = [
            ("privacy", "3", "--epsilon 3 --delta 1e-6"),
            ("users", "2000000", "--delta 1e-8"),
            ("mean_items", "4", "--delta 1e-8 --output"),
            ("max_items_per_user", "5", "--max-items-per-user 5"),
            ("publish", "top", "--top 100"),
            ("publish", "list", "--items items.csv"),
            ("publish", "sums", "--sum amount:0:100"),
        ]
        for name, value, command in changes if THOROUGH else changes[::3]:
            if name in ("privacy", "publish"):
                page.check(f"[name={name}][value='{value}']")
            else:
                page.fill(f"#{name}", value)
            settled(page)
            assert command in page.inner_text("#release_command")
            after = {name: drawing(page, name) for name in before}
            assert after["picture"] != before["picture"], command
            before = after
        assert page.is_visible("#sum_high")
        assert not page.is_visible("#top")
        assert "per amount_sum" in page.inner_text("#headline")
        assert seen.errors == []
        assert seen.elsewhere(opened.address) == []


@pytest.mark.slow  # the levels are tested without a browser
def test_each_privacy_level_has_its_badge(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, _):
        colours = set()
        for level, epsilon in {**PRIVACY, "very weak": "50"}.items():
            change(page, epsilon=epsilon)
            assert page.inner_text("#state") == f"privacy: {level}"
            assert page.is_visible("#warnings") == (level in ("weak", "very weak"))
            assert page.is_checked(f"[name=privacy][value='{epsilon}']") if level in PRIVACY else True
            colours.add(page.eval_on_selector("#state", "state => getComputedStyle(state).color"))
        assert len(colours) == 4
        assert page.locator("[name=privacy]:checked").count() == 0


def test_numbers_and_charts_follow_every_option(address: str, browser: Any) -> None:
    with opened_page(browser, address, viewport={"width": 1200, "height": 900}) as (page, seen):
        unfold(page)
        assert assert_agrees(page)["threshold"] == dphist.plan(epsilon=1, delta=1e-6).threshold
        assert not page.is_visible("#sigma")
        change(page, delta="1e-5", max_nonzero="9")
        assert assert_agrees(page)["delta"] == 1e-5
        room, wide = page.eval_on_selector(
            "#comparison", "table => [table.parentElement.clientWidth, table.parentElement.scrollWidth]"
        )
        assert wide <= room, "the last column of the table is cut off"
        assert page.locator("#comparison tr.best").count() >= 1
        assert page.is_visible("#sigma")
        # The slower answers are not requested while they are folded.
        page.click("#more > summary")
        change(page, epsilon="0.7", max_nonzero="", max_items_per_user="12")
        assert assert_agrees(page)["mechanism"] == "gshm"
        page.click("#more > summary")
        page.select_option("#mechanism", "laplace")
        settled(page)
        assert assert_agrees(page)["mechanism"] == "laplace"
        change(page, max_items_per_user="")
        page.wait_for_selector("#mechanism-adjusted:has-text('Not used')")
        page.select_option("#goal", "keys")
        settled(page)
        assert assert_agrees(page)["mechanism"] == "rounds"
        assert "--goal keys --output" in page.inner_text("#release_command")
        jargon = re.findall(r"gshm|csh|\btau\b|τ|add-the-deltas", page.inner_text("body"), re.IGNORECASE)
        assert jargon == []
        assert seen.errors == []
        kinds = {url.partition("/api/")[2] for url in seen.requests if "/api/" in url}
        assert kinds == {"plain", "trial", "table"}


def test_the_address_keeps_the_values(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, _):
        settled(page)
        assert page.url == address
        change(page, epsilon="0.7", users="5000")
        page.check("[name=publish][value=top]")
        settled(page)
        command = page.inner_text("#release_command")
        assert not page.get_attribute("#options", "open")
        page.reload()
        settled(page)
        assert page.inner_text("#release_command") == command
        if THOROUGH:
            page.click("#options > summary")
            change(page, delta="1e-9")
            page.reload()
            settled(page)
            assert page.input_value("#delta") == "1e-9"
            assert page.is_visible("#delta")


def test_sliders_by_keyboard(address: str, browser: Any) -> None:
    """Sliders move to both ends and always get an answer; in `make test-slow` all of them."""
    with opened_page(browser, address) as (page, seen):
        settled(page)
        page.focus("input[type=range][data-for=epsilon]")
        first = shown(page, "threshold")
        for _ in range(10):
            page.keyboard.press("ArrowRight")
        settled(page)
        assert float(page.input_value("#epsilon")) > 1
        assert shown(page, "threshold") < first
        assert_agrees(page)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "epsilon"
        page.click("#options > summary")
        for field in FIELDS if THOROUGH else FIELDS[2:4]:
            slider = f"input[type=range][data-for={field.name}]"
            # The certificate for the largest bound takes seconds.
            if not field.slider or not page.is_visible(slider) or field.name in ("max_nonzero", "items"):
                continue
            page.focus(slider)
            for key, value in (("End", field.slider.last), ("Home", field.slider.first)):
                page.keyboard.press(key)
                assert float(page.input_value(f"#{field.name}")) == value
        settled(page)
        assert_agrees(page)
        assert seen.errors == []


def test_errors_are_shown_at_their_field(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, seen):
        page.click("#options > summary")
        settled(page)
        for name, value in (("epsilon", "words 💥"), ("max_nonzero", "1.5")):
            good = page.input_value(f"#{name}")
            page.fill(f"#{name}", value)
            page.wait_for_selector(f"#{name}-error:has-text('Please enter a')")
            assert page.get_attribute(f"#{name}", "aria-invalid") == "true"
            assert page.locator("#results.stale").count() == 1
            page.fill(f"#{name}", good)
            page.wait_for_selector(f"#{name}-error", state="detached")
        settled(page)
        assert [text for text in seen.errors if "422" not in text] == []


def test_uploads_and_trial_releases(address: str, browser: Any) -> None:
    def upload(content: bytes) -> None:
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": content})

    with opened_page(browser, address) as (page, seen):
        unfold(page)
        upload("\n".join(f"<b>w{i},{90_000 // i}" for i in range(1, 60)).encode())
        page.wait_for_selector("#outcome:has-text('of 59 items are released')")
        page.click("#largest summary")
        assert "<b>w1" in page.inner_text("#largest tbody")
        assert len(page.inner_text("#trial-words")) > 40
        assert "In the uploaded counts" in page.inner_text("#example")
        upload(b"item;count;count_low\nKaese;1200.5;1\nBrot;900;1\nMilch;800.25;1\n")
        page.wait_for_selector("#outcome:has-text('2 uploaded counts had decimals')")
        wrong = [
            (b"a,1\nb,x\n", "line 2"),
            (b"\x89PNG\r\n\x1a\n\0\0", "not text in UTF-8"),
            (b"", "no count above 0"),
            (b"1\n" * (5 * 2**19 + 1), "larger than 5 MB"),
        ]
        for content, part in wrong if THOROUGH else wrong[:2]:
            upload(content)
            page.wait_for_selector(f"#csv-error:has-text('{part}')")
        page.click("#forget")
        page.wait_for_selector("#outcome:has-text('of 10,000 items')")
        assert (page.query_selector("#csv-error"), page.input_value("#csv")) == (None, "")
        assert [text for text in seen.errors if "422" not in text] == []


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_it_fits_a_phone_and_is_readable(address: str, browser: Any, scheme: str) -> None:
    phone = {"width": 360, "height": 740}
    with opened_page(browser, address, viewport=phone, color_scheme=scheme) as (page, seen):
        settled(page)
        unfold(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        for node in ("body", "#picture svg text", "#trial svg text"):
            style = f"getComputedStyle(document.querySelector('{node}'))"
            ground = sum(
                map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
            )
            ink = sum(
                map(int, re.findall(r"\d+", page.evaluate(f"{style}.{'color' if node == 'body' else 'fill'}")))
            )
            assert (ground > ink) == (scheme == "light")
            assert abs(ground - ink) > 450
        for chart in ("picture", "shares"):
            assert len(page.get_attribute(f"#{chart} svg", "aria-label")) > 40
        assert page.get_attribute("#trial svg", "role") == "img"
        assert len(page.inner_text("#trial-words")) > 40
        assert accessibility_violations(page) == []
        page.emulate_media(media="print", color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not page.is_visible("input[type=range]")
        assert seen.errors == []


def test_outdated_numbers_are_pale_and_not_copied(address: str, browser: Any) -> None:
    """And an answer to an older request is dropped."""
    permissions = ["clipboard-read", "clipboard-write"]
    with opened_page(browser, address, permissions=permissions) as (page, _):
        settled(page)
        page.click("[data-copy=release_command]")
        page.wait_for_selector("text=Copied.")
        copied = page.inner_text("#release_command")
        assert page.evaluate("navigator.clipboard.readText()") == copied
        held: list[Any] = []
        page.route("**/api/plain", lambda route: route.continue_() if held else held.append(route))
        page.fill("#epsilon", "0.8")
        page.wait_for_selector("#state.busy")
        assert page.get_attribute("#results", "aria-busy") == "true"
        for part in ("#headline", "#picture", "#privacy", "#release_command-box"):
            assert float(page.eval_on_selector(part, "part => getComputedStyle(part).opacity")) < 1, part
        page.click("[data-copy=release_command]")
        page.wait_for_selector("text=Not copied")
        assert page.evaluate("navigator.clipboard.readText()") == copied
        with page.expect_event("requestfailed") as dropped:
            page.fill("#epsilon", "0.9")
        settled(page)
        assert dropped.value.post_data_json["epsilon"] == "0.8"
        assert "--epsilon 0.9" in page.inner_text("#release_command")
        assert_agrees(page)


@pytest.mark.slow
def test_slower_answers_are_shown_together(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, _):
        unfold(page)
        before = page.inner_text("#outcome"), drawing(page, "trial")
        held: list[Any] = []
        page.route("**/api/table", lambda route: held.append(route))
        with page.expect_request("**/api/table"):
            page.fill("#max_items_per_user", "7")
        assert "--max-items-per-user 7" in page.inner_text("#release_command")
        assert page.get_attribute("#results", "aria-busy") == "false"
        assert page.get_attribute("#more", "aria-busy") == "true"
        assert (page.inner_text("#outcome"), drawing(page, "trial")) == before
        held[0].continue_()
        settled(page)
        after = page.inner_text("#outcome"), drawing(page, "trial")
        assert after[0] != before[0]
        assert after[1] != before[1]


def test_a_stopped_server_is_reported(opened: Opened, browser: Any) -> None:
    """An interrupt stops the command at once, even while it computes. This must be the last test of the file."""
    found = opened
    with opened_page(browser, found.address) as (page, _):
        settled(page)
        computing = HTTPConnection(found.home.removeprefix("http://"), timeout=60)
        headers = {"Content-Type": "application/json", "Origin": found.home}
        computing.request("POST", f"/{found.token}/api/plain", json.dumps(SLOW), headers)
        page.reload()
        out, err = found.stop(signal.SIGINT)
        assert (found.process.returncode, err) == (0, "")
        assert found.token not in out
        assert out.endswith("Stopped.\n")
        page.fill("#epsilon", "0.8")
        page.wait_for_selector("#state.wrong")
        assert "does not answer" in page.inner_text("#problem")
        computing.close()
