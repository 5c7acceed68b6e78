"""The page of `dphist explore` in a real browser, against a real server."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="no uvicorn: pip install -e '.[dev]'")
pytest.importorskip("starlette", reason="no Starlette: pip install -e '.[dev]'")
pytest.importorskip("httpx", reason="no httpx: pip install -e '.[dev]'")

import dphist
from browser import Seen, chromium, opened_browser, opened_page
from web_explore import Neighbour, Opened, agrees, changed, drawing, explore, settled, shown
from web_stories import (
    both_losses_of_pairs_are_told,
    few_counts_of_a_release,
    gamma_is_whole_on_a_lattice,
    nothing_old_stands_beside_new_values,
    refused_files_are_told,
    told_apart,
)

pytestmark = pytest.mark.together("test_web_page")
START: dict[str, Any] = {"epsilon": 1, "delta": 1e-6, "max_items_per_user": 20}


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The command as people run it. Its browser only writes down what it was called with."""
    chromium()
    with explore(tmp_path_factory.mktemp("explore")) as found:
        yield found
        out, err = found.ended(signal.SIGINT)
    assert (found.process.returncode, err) == (0, "")
    assert found.token not in out
    assert out.endswith("The page has ended.\n")
    assert found.left_behind() == []


@pytest.fixture(scope="module")
def address(opened: Opened) -> str:
    return opened.address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with opened_browser() as found:
        yield found


def test_the_browser_is_sent_by_a_file_that_works_once(opened: Opened, browser: Any) -> None:
    """No secret is in its command line. Other services of this computer never get the cookie; tabs go on."""
    (shown_to_all,) = opened.arguments()
    path, code = opened.file_and_code()
    assert shown_to_all == path.as_uri()
    assert opened.token not in shown_to_all
    assert code not in shown_to_all
    assert code != opened.token
    assert opened.token not in path.read_text()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with Neighbour() as neighbour, opened_page(browser, shown_to_all) as (page, seen):
        page.wait_for_url(f"{opened.home}/s/*/")
        settled(page)
        assert opened.left_behind() == []
        (cookie,) = page.context.cookies()
        assert (cookie["sameSite"], cookie["httpOnly"]) == ("Strict", True)
        assert cookie["path"] in page.url
        assert opened.token not in page.url + cookie["value"]
        second = page.context.new_page()
        seen.watch(second)
        # The neighbour's own cookie goes to all ports, ours to none but its place, even by links of the page.
        for name in ("127.0.0.1", "localhost", "127.0.0.1"):
            second.goto(f"http://{name}:{neighbour.port}/")
            second.evaluate("fetch('/s/', {credentials: 'include'}).then(answer => answer.text())")
        second.goto(f"http://127.0.0.1:{neighbour.port}{cookie['path'][:-1]}")
        assert len(neighbour.cookies) == 7
        assert set(neighbour.cookies) == {None, "neighbour=1"}
        assert [text for text in seen.errors if "favicon" not in text] == [], seen.requests
        assert second.goto(f"{opened.home}/?code={code}").status == 403
        assert "works once" in second.inner_text("body")
        second.goto(opened.address)
        second.wait_for_url(page.url)
        page.reload()
        settled(page)
        first = shown(page, "threshold")
        for tab in (page, second):
            tab.fill("#epsilon", "0.6")
        settled(page)
        settled(second)
        assert shown(page, "threshold") == shown(second, "threshold") > first


def test_numbers_and_curves_follow_every_field(address: str, browser: Any) -> None:
    with opened_page(browser, address, viewport={"width": 1200, "height": 900}) as (page, seen):
        settled(page)
        assert "token" not in page.url
        assert agrees(page)["threshold"] == pytest.approx(dphist.plan(**START).threshold)
        assert "--max-items-per-user 20 --output" in page.inner_text("#release_command")
        changed(page, epsilon="0.35", delta="1e-5", max_nonzero="51914", max_items_per_user="")
        assert shown(page, "threshold") == pytest.approx(6988.5)
        room, wide = page.eval_on_selector(
            "#comparison", "table => [table.parentElement.clientWidth, table.parentElement.scrollWidth]"
        )
        assert wide <= room, "the last column of the table is cut off"
        assert page.inner_text("#budget-hint").endswith("changes by at most a factor eε, plus δ.")
        assert "loss" not in page.inner_text("body")
        before = {name: drawing(page, name) for name in ("figure", "curve")}
        for fields, mechanism in (
            ({"max_nonzero": "300"}, "csh"),
            ({"epsilon": "0.7"}, "csh"),
            ({"delta": "3e-8"}, "csh"),
            ({"max_items_per_user": "12"}, "csh"),
            ({"max_nonzero": ""}, "gshm"),
            ({"max_items_per_user": "", "top": "250"}, "top-k"),
        ):
            changed(page, **fields)
            assert agrees(page)["mechanism"] == mechanism
            after = {name: drawing(page, name) for name in before}
            assert all(after[name] != before[name] for name in before), fields
            before = after
        told_apart(page)
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
        changed(page, max_nonzero="300")
        slider = page.locator("input[type=range][data-for=epsilon]")
        slider.focus()
        first = shown(page, "threshold")
        for _ in range(20):
            page.keyboard.press("ArrowRight")
        settled(page)
        assert float(page.input_value("#epsilon")) > 1
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
            page.fill("#max_nonzero", "300")
            page.fill(f"#{name}", good)
        settled(page)
        assert seen.errors == []
        gamma_is_whole_on_a_lattice(page)
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
        both_losses_of_pairs_are_told(page, kept=100 * (1 - 0.95**5))
        before = page.get_attribute("#outcome", "data-released")
        # In one turn of the page, so that no answer comes between.
        changing = "field => { field.value = '0.5'; field.dispatchEvent(new Event('input')); return %s.className }"
        assert page.eval_on_selector("#exponent", changing % "document.getElementById('outcome')") == "stale"
        page.wait_for_selector(f"#outcome:not([data-released='{before}'])", timeout=20_000)
        rows = "\n".join(f"w{i},{90_000 // i}" for i in range(1, 60))
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": rows.encode()})
        page.wait_for_selector("text=of 59 items are released", timeout=20_000)
        assert page.locator("#top50 circle.dot").count() >= 50
        page.click("#top50-table summary")
        assert "w1" in page.inner_text("#top50-table tbody")
        assert [text for text in seen.errors if "422" not in text] == []
        few_counts_of_a_release(page)
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": b"a,1\nb,x\n"})
        page.wait_for_selector("#csv-error", timeout=20_000)
        assert "line 2" in page.inner_text("#csv-error")
        page.click("#forget")
        page.wait_for_selector("#csv-error", state="detached", timeout=20_000)
        refused_files_are_told(page)
        assert [text for text in seen.errors if "422" not in text] == []


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
        for path in ("", "?token=guessed", "static/page.js", "s/guessed/", "s/guessed/api/plan"):
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
        copied = page.inner_text("#command")
        assert page.evaluate("navigator.clipboard.readText()") == copied
        page.wait_for_selector("#figure-note:has-text('full analyses')")
        nothing_old_stands_beside_new_values(page)
        page.click("[data-copy=command]")
        page.wait_for_selector("text=Not copied")
        assert page.evaluate("navigator.clipboard.readText()") == copied
        page.unroute("**/api/*")
        page.fill("#epsilon", "0.9")
        page.clock.run_for(1000)
        settled(page)
        assert (page.get_attribute("#results", "class"), page.is_visible("#problem")) == ("", False)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminated_command_is_quiet_and_leaves_no_file(tmp_path: Path, number: signal.Signals) -> None:
    """Even while it computes what would take minutes."""
    with explore(tmp_path) as found:
        path, _ = found.file_and_code()
        waiting = found.asks({"epsilon": "1e-6", "delta": "1e-12", "top": "1000000"})
        out, err = found.ended(number)
        assert waiting.getresponse().read() == b'{"superseded":true}'
        waiting.close()
    assert (found.process.returncode, err) == (128 + number, "")
    assert not path.exists()
    assert found.left_behind() == []
    assert found.token not in out
