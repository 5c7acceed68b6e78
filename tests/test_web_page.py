"""The page of `dphist explore` in a real browser, against a real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from browser import Seen, chromium, opened_browser, opened_page
from dphist.cli.app import app

pytestmark = pytest.mark.xdist_group("explore")
pytest.importorskip("uvicorn", reason="no uvicorn: pip install -e '.[dev]'")
EXPLORE = [sys.executable, "-m", "dphist", "explore", "--no-browser"]


@contextmanager
def running() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The command, with the address that it prints."""
    process = subprocess.Popen(EXPLORE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", process.stdout.readline())
        assert found is not None
        yield found[0], process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    chromium()
    with running() as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


def settled(page: Any) -> None:
    """Until the certified plan, table and figure of the newest change are shown."""
    page.wait_for_selector("#state.certified", timeout=30_000)
    page.wait_for_selector("#outcome p", timeout=30_000)


def changed(page: Any, **fields: str) -> None:
    for name, value in fields.items():
        page.fill(f"#{name}", value)
    # It is no longer certified from the very change on.
    settled(page)


def shown(page: Any, name: str) -> float:
    return float(page.get_attribute(f"#{name}", "data-value"))


def planned(command: str) -> dict[str, Any]:
    """What the command says that the page shows."""
    words = command.split()
    assert words[:2] == ["dphist", "plan"]
    run = CliRunner().invoke(app, [*words[1:], "--json"])
    assert run.exit_code == 0
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def agrees(page: Any) -> dict[str, Any]:
    expected = planned(page.inner_text("#command"))
    for name in ("threshold", "total_noise", "sigma", "sigma_shared", "delta_certified"):
        assert shown(page, name) == expected[name], name
    assert page.get_attribute("#chosen", "data-value") == expected["mechanism"]
    return expected


def drawing(page: Any, name: str) -> str:
    return str(page.inner_html(f"#{name} svg"))


def test_numbers_and_curves_follow_every_field(address: str, browser: Any) -> None:
    with opened_page(browser, address, viewport={"width": 1280, "height": 900}) as (page, seen):
        settled(page)
        assert "token" not in page.url
        expected = agrees(page)
        assert expected["threshold"] == pytest.approx(6988.5)
        before = {name: drawing(page, name) for name in ("figure", "curve")}
        for fields, mechanism in (
            ({"epsilon": "0.7"}, "csh"),
            ({"delta": "3e-8"}, "csh"),
            ({"max_nonzero": "300"}, "csh"),
            ({"max_items_per_user": "12"}, "csh"),
            ({"max_nonzero": ""}, "gshm"),
            ({"max_items_per_user": "", "top": "250"}, "top-k"),
        ):
            changed(page, **fields)
            assert agrees(page)["mechanism"] == mechanism
            after = {name: drawing(page, name) for name in before}
            assert all(after[name] != before[name] for name in before), fields
            before = after
        page.select_option("#mechanism", "laplace")
        page.wait_for_selector("#state.wrong")
        assert "top-k has Gaussian noise" in page.inner_text("#top-error")
        changed(page, max_items_per_user="1", top="")
        assert agrees(page)["mechanism"] == "laplace"
        # The one refusal that only the server could know of is in the console; nothing else is.
        assert [text for text in seen.errors if "422" not in text] == []
        assert seen.elsewhere(address.partition("?")[0]) == []
        assert {url.partition("/api/")[2] for url in seen.requests if "/api/" in url} >= {
            "quick", "plan", "compare", "figure", "simulate",
        }  # fmt: skip


def test_sliders_answer_at_once_and_by_keyboard(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, seen):
        settled(page)
        slider = page.locator("input[type=range][data-for=epsilon]")
        slider.focus()
        first = shown(page, "threshold")
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        settled(page)
        assert float(page.input_value("#epsilon")) > 0.35
        assert shown(page, "threshold") < first
        agrees(page)
        page.locator("input[type=range][data-for=top]").focus()
        page.keyboard.press("End")
        assert page.input_value("#top") == "1000000"
        assert page.input_value("#max_nonzero") == ""
        settled(page)
        agrees(page)
        assert page.get_attribute("html", "data-quick-ms") is not None
        assert seen.errors == []


NONSENSE = ["", "NaN", "1e999", "-1", "words 💥", "9" * 60]


def test_nonsense_is_told_at_its_field(address: str, browser: Any) -> None:
    """Nothing is asked of the server, and the last good numbers are marked as old."""
    with opened_page(browser, address) as (page, seen):
        settled(page)
        for name in ("epsilon", "delta", "max_nonzero", "max_items_per_user", "top", "gamma"):
            good = page.input_value(f"#{name}")
            for value in NONSENSE[1:] if name not in ("epsilon", "delta") else NONSENSE:
                page.fill(f"#{name}", value)
                page.wait_for_selector(f"#{name}-error")
                assert page.inner_text(f"#{name}-error").startswith("This "), value
                assert page.get_attribute(f"#{name}", "aria-invalid") == "true"
                assert page.inner_text("#state") == "needs a correction"
            page.fill("#top", "")
            page.fill("#max_nonzero", "51914")
            page.fill(f"#{name}", good)
        settled(page)
        assert seen.errors == []
        for name in ("exponent", "items", "users", "mean_items", "seed"):
            good = page.input_value(f"#{name}")
            for value in ("-1", "x", "1e999"):
                page.fill(f"#{name}", value)
                page.wait_for_selector(f"#{name}-error")
            page.fill(f"#{name}", good)
            page.wait_for_selector(f"#{name}-error", state="detached")
        assert seen.errors == []


def test_uploads_and_simulations(address: str, browser: Any) -> None:
    with opened_page(browser, address) as (page, seen):
        settled(page)
        changed(page, max_nonzero="", max_items_per_user="5", epsilon="1")
        before = page.get_attribute("#outcome", "data-released")
        page.fill("#exponent", "0.5")
        page.wait_for_selector(f"#outcome:not([data-released='{before}'])", timeout=20_000)
        rows = "\n".join(f"w{i},{90_000 // i}" for i in range(1, 60))
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": rows.encode()})
        page.wait_for_selector("text=of 59 items are released", timeout=20_000)
        assert page.locator("#top50 circle.dot").count() >= 50
        page.click("#top50-table summary")
        assert "w1" in page.inner_text("#top50-table tbody")
        assert [text for text in seen.errors if "422" not in text] == []
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": b"a,1\nb,x\n"})
        page.wait_for_selector("#csv-error", timeout=20_000)
        assert "line 2" in page.inner_text("#csv-error")
        page.click("#forget")
        page.wait_for_selector("#csv-error", state="detached", timeout=20_000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_readable(address: str, browser: Any, scheme: str) -> None:
    options = {"viewport": {"width": 360, "height": 740}, "color_scheme": scheme}
    with opened_page(browser, address, **options) as (page, seen):
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        colours = page.evaluate(
            "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        )
        ground, ink = (sum(int(n) for n in re.findall(r"\d+", colour)[:3]) for colour in colours)
        assert (ground > ink) == (scheme == "light")
        assert abs(ground - ink) > 450
        assert page.locator("svg[role=img]").count() == 3
        for chart in ("figure", "curve", "top50"):
            assert page.get_attribute(f"#{chart} svg", "aria-labelledby") == f"{chart}-alt"
            assert len(page.inner_text(f"#{chart}-alt")) > 40
        unnamed = page.evaluate(
            "[...document.querySelectorAll('input,select,button')].filter(e => "
            "!(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).length"
        )
        assert unnamed == 0
        assert seen.errors == []


def test_a_second_user_without_the_token_sees_nothing(address: str, browser: Any) -> None:
    home = address.partition("?")[0]
    context = browser.new_context()
    seen = Seen()
    try:
        page = context.new_page()
        seen.watch(page)
        for path in ("", "?token=guessed", "static/page.js", "api/plan"):
            response = page.goto(home + path)
            assert response.status == 403
            assert "belongs to the person who started it" in page.inner_text("body")
            assert len(page.content()) < 600
        assert context.cookies() == []
    finally:
        context.close()


def test_copies_what_is_shown(address: str, browser: Any) -> None:
    options = {"permissions": ["clipboard-read", "clipboard-write"]}
    with opened_page(browser, address, **options) as (page, _):
        settled(page)
        page.click("[data-copy=command]")
        page.wait_for_selector("text=Copied.")
        assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#command")


def test_the_command_ends_quietly() -> None:
    with running() as (address, process):
        token = address.rpartition("=")[2]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert err == ""
    assert token not in out
    assert out.endswith("The page has ended.\n")
