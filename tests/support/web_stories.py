"""What happens on the page of `dphist explore` in one field or at one moment, told step by step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from web_explore import settled

ORIGINS = ("#table-note", "#figure-note", "#curve-note")
# What is asked when nothing has changed for a moment.
SLOW = re.compile("/api/(plan|simulate)$")


def _held_until(page: Any, wanted: Callable[[], list[Any]]) -> list[Any]:
    """Requests that are held, once there are those that are wanted."""
    deadline = time.monotonic() + 60
    while not (found := wanted()):
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)
    return found


def told_apart(page: Any) -> None:
    """What is estimated says so until the full analyses have answered, and never that it is certified."""
    held: list[Any] = []
    page.route(SLOW, lambda route: held.append(route))
    page.fill("#epsilon", "0.8")
    page.wait_for_selector("text=estimate, not certified yet")
    assert page.inner_text("#delta_certified") == "not yet"
    assert all("estimated" in page.inner_text(note) for note in ORIGINS)
    assert "estimate" in page.text_content("#summary")
    assert "stale" in page.get_attribute("#outcome", "class")
    for route in _held_until(page, lambda: held if len(held) > 1 else []):
        route.continue_()
    page.unroute(SLOW)
    settled(page)
    page.wait_for_selector("#figure-note:has-text('full analyses')")
    assert not any("estimated" in page.inner_text(note) for note in ORIGINS)
    assert page.get_attribute("#outcome", "class") == ""


def gamma_is_whole_on_a_lattice(page: Any) -> None:
    slider = page.locator("input[type=range][data-for=gamma]")
    for noise, first, too_small in (("discrete", "1", "0.5"), ("continuous", "0.1", "0.001")):
        page.select_option("#noise", noise)
        page.fill("#gamma", "30")
        slider.press("ArrowRight")
        assert page.input_value("#gamma").isdecimal() == (noise == "discrete")
        slider.press("Home")
        assert page.input_value("#gamma") == first
        assert page.query_selector("#gamma-error") is None
        page.fill("#gamma", too_small)
        assert page.inner_text("#gamma-error").endswith(f"not {too_small}.")
    page.fill("#gamma", "1e15")
    assert page.query_selector("#gamma-error") is None
    page.select_option("#noise", "discrete")
    assert "at most 1,000,000" in page.inner_text("#gamma-error")
    page.fill("#gamma", "")
    settled(page)


def both_losses_of_pairs_are_told(page: Any, *, kept: float) -> None:
    """Nearly all items are released, but most pairs are missing: a cap has dropped them."""
    page.wait_for_selector("#outcome:not(.stale)")
    told = re.search(
        r"([\d.]+) % belong to released items\. The cap keeps ([\d.]+) % of the pairs, "
        r"so about ([\d.]+) %.* and ([\d.]+) % to be missing",
        page.inner_text("#outcome"),
    )
    assert told is not None
    held, left, counted, missing = (float(share) for share in told.groups())
    assert held > 99
    assert left == pytest.approx(kept, abs=0.2)
    assert counted == pytest.approx(left, abs=0.5)
    assert counted + missing == pytest.approx(100, abs=0.11)


def few_counts_of_a_release(page: Any) -> None:
    """Each bar has its rank, and it is said that decimals were rounded."""
    rows = b"item;count;count_low\nKaese;1200.5;1\nBrot;900;1\nMilch;800.25;1\n"
    page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": rows})
    page.wait_for_selector("#outcome:has-text('2 of the uploaded counts had decimals and were rounded')")
    labels = page.locator("#top50 text[text-anchor=middle]").all_text_contents()
    assert labels == ["1", "2", "3", "rank of the item", "users (log)"]


def refused_files_are_told(page: Any) -> None:
    """One that is not taken leaves its sentence, and not its name: what is simulated is the Zipf law."""
    page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": b"0\n0\n"})
    page.wait_for_selector("#csv-error:has-text('no count above 0')")
    assert page.inner_text("#top50-alt") == ""
    for buffer, part in (
        (b" \n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "no text in UTF-8"),
        (b"1\n" * (5 * 2**19 + 1), "larger than 5 MB"),
    ):
        page.set_input_files("#csv", {"name": "c.csv", "mimeType": "text/csv", "buffer": buffer})
        page.wait_for_selector(f"#csv-error:has-text('{part}')")
        page.wait_for_selector("#outcome:not(.stale) p:has-text('of 10,000 items')")
        assert part in page.inner_text("#csv-error")
        assert (page.input_value("#csv"), page.is_visible("#forget")) == ("", False)
    # Should there ever be no item at all, nothing of the simulation before stays.
    page.route("**/api/simulate", lambda route: route.fulfill(json={**route.fetch().json(), "top": []}))
    page.fill("#seed", "2")
    page.wait_for_selector("#top50-alt:has-text('no item with a user')")
    assert page.inner_html("#top50") == ""
    page.unroute("**/api/simulate")


def nothing_old_stands_beside_new_values(page: Any) -> None:
    """From the change on, and where the server hangs; that is told after a while, which is not waited for here."""
    page.clock.install()
    held: list[Any] = []
    # All of its answers: that of a simulation would be shown.
    page.route("**/api/*", lambda route: held.append(route))
    # All in one turn of the page: not even the shortest answer comes between.
    old = page.evaluate(
        """() => {
            const field = document.getElementById("epsilon");
            field.value = "0.8";
            field.dispatchEvent(new Event("input"));
            const words = ["summary", "state", "delta_certified", "table-note", "figure-note", "curve-note"];
            return [document.getElementById("results").className, document.getElementById("outcome").className,
                ...words.map((id) => document.getElementById(id).textContent)];
        }"""
    )
    note = "Of other values than the fields have now."
    assert old == ["stale", "stale", "Estimating…", "estimating…", "not yet", note, note, note]
    page.clock.fast_forward(5500)
    page.wait_for_selector("#problem:has-text('has not answered for 5 seconds')")
    assert page.inner_text("#state") == "no certificate"
    assert page.get_attribute("#results", "class") == "stale"
    # A simulation that is answered takes the reason away no more.
    simulations = _held_until(page, lambda: [one for one in held if one.request.url.endswith("/api/simulate")])
    simulations[-1].continue_()
    page.wait_for_selector("#outcome:not(.stale) p", timeout=60_000)
    assert "has not answered for 5 seconds" in page.inner_text("#problem")
