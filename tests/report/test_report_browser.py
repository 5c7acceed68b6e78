"""The report in a browser: it sorts, searches, fits a phone, follows light and dark, and loads nothing."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pytest
from pypdf import PdfReader

import dphist
from browser import accessibility_violations, opened_page, page_without_scripts
from dphist.report.facts import Facts, gather_facts
from dphist.report.render import render
from release_data import events
from report_cases import ALIKE, STRANGE, released, report_of

pytestmark = pytest.mark.together("report")
ROOT = Path(__file__).resolve().parents[2]
PHONE = {"width": 360, "height": 740}
UNFOLD = "document.querySelectorAll('details').forEach(part => { part.open = true })"


def page_of(release: Any, folder: Path) -> str:
    """The address of the report of a release, of facts, or of a kind by its name."""
    path = folder / "report.html"
    if isinstance(release, str):
        text = report_of(release)
    else:
        text = render(release if isinstance(release, Facts) else gather_facts(release))
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Items that look like code or are in other scripts, and plain ones."""
    folder = tmp_path_factory.mktemp("page")
    counts = {item: 900 + 10 * place for place, item in enumerate(STRANGE)}
    counts |= {f"item {place}": 1500 + 17 * place for place in range(60)}
    return page_of(released(folder, counts=counts, max_items_per_user=8), folder)


def found(page: Any, text: str | re.Pattern[str]) -> None:
    """Wait until the page shows this number of rows."""
    from playwright.sync_api import expect

    expect(page.locator("#found")).to_have_text(text)


def column(page: Any, place: int) -> list[str]:
    cells: list[str] = page.locator(f"#table tbody tr td:nth-child({place})").all_text_contents()
    return cells


def numbers(page: Any, place: int = 2) -> list[float]:
    return [float(cell.replace(",", "")) for cell in column(page, place)]


def test_the_table_sorts_and_searches(browser: Any, address: str) -> None:
    with opened_page(browser, address) as (page, seen):
        counts = numbers(page)
        assert len(counts) > 15
        assert counts == sorted(counts, reverse=True)
        page.click("#table th:nth-child(2) button")
        assert numbers(page) == sorted(numbers(page))
        assert page.get_attribute("#table th:nth-child(2)", "aria-sort") == "ascending"
        page.click("#table th:nth-child(1) button")
        items = [item for item in column(page, 1) if item.startswith("item ")]
        # Numbers within texts sort by size.
        assert items == sorted(items, key=lambda item: int(item.split()[1]))
        assert page.get_attribute("#table th:nth-child(2)", "aria-sort") is None
        page.click("#table th:nth-child(3) button")
        ends = [[float(end.replace(",", "")) for end in cell.split(" to ")] for cell in column(page, 3)]
        assert ends == sorted(ends, reverse=True)
        assert all(low < count < high for (low, high), count in zip(ends, numbers(page), strict=True))
        assert page.inner_text("#found") == "75 rows"
        page.fill("#search", "ITEM 4")
        found(page, "11 of 75 rows")
        assert {item[:6] for item in column(page, 1)} == {"item 4"}
        page.click("#table th:nth-child(1) button")
        assert column(page, 1)[0] == "item 4"
        page.fill("#search", "nobody")
        found(page, "0 of 75 rows")
        assert column(page, 1) == []
        page.fill("#search", "")
        found(page, "75 rows")
        assert seen.errors == []


def test_items_stay_text_and_nothing_is_loaded(browser: Any, address: str) -> None:
    with opened_page(browser, address) as (page, seen):
        for wanted, item in (("window.hacked", None), ("nul", r"nul\x00and\x1b[31mred"), ("x" * 50, "x" * 8_000)):
            page.fill("#search", wanted)
            found(page, re.compile("^[12] of"))
            # A long item is cut, and followed by its whole text when it is unfolded.
            cut = item is not None and len(item) > 80
            assert item is None or column(page, 1) == [item[:52] + "…" + item[-27:] + item if cut else item]
            page.fill("#search", "")
            found(page, "75 rows")
        assert page.evaluate("window.hacked") is None
        assert page.locator("img, iframe, form").count() == 0
        assert seen.errors == []
        assert seen.requests == [address]
        # The content security policy would stop injected code from sending anything.
        blocked = page.evaluate("fetch('https://example.org/').then(() => 'sent', () => 'blocked')")
        assert blocked == "blocked"


def test_missing_empty_and_invisible_items(browser: Any, tmp_path: Path) -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1)
    table = pa.table({"item": [None, *ALIKE], "count": [900] * (1 + len(ALIKE))})
    facts = gather_facts(dphist.release_histogram(table, plan=plan))
    with opened_page(browser, page_of(facts, tmp_path)) as (page, seen):
        assert sorted(column(page, 1)) == sorted([*ALIKE.values(), "(missing)"])
        assert page.locator("td.missing").all_text_contents().count("(missing)") == 1
        page.fill("#search", "(empty)")
        found(page, re.compile("^2 of"))
        assert seen.errors == []


def test_the_certificate_can_be_downloaded(browser: Any, address: str) -> None:
    path = Path(address.removeprefix("file://")).with_name("out.parquet")
    with opened_page(browser, address) as (page, seen):
        assert not page.is_visible("#download")
        page.click("nav a[href='#expert']")
        with page.expect_download() as waiting:
            page.click("#download")
        download = waiting.value
        assert download.suggested_filename == f"{path.name}.certificate.json"
        assert Path(download.path()).read_bytes() == Path(f"{path}.certificate.json").read_bytes()
        assert seen.errors == []


def luminance(colour: str) -> float:
    """Relative luminance of a CSS colour, by WCAG 2."""
    parts = [float(part) / 255.0 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_contrast_in_light_and_dark(browser: Any, address: str) -> None:
    with opened_page(browser, address) as (page, seen):
        page.evaluate(UNFOLD)
        assert accessibility_violations(page) == []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            paper = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert (paper > 0.9) == (scheme == "light")
            css = "getComputedStyle(e)"
            for which, style in (
                ("body *:not(svg *):not(script)", "color"), ("svg text", "fill"),
                ("svg .mark-line path", "stroke"),
            ):  # fmt: skip
                for colour in set(page.eval_on_selector_all(which, f"all => all.map(e => {css}.{style})")):
                    low, high = sorted((luminance(colour), paper))
                    # WCAG 2 asks for 4.5 for text and 3 for lines.
                    assert (high + 0.05) / (low + 0.05) >= (3.0 if style == "stroke" else 4.5), (which, colour)
        assert seen.errors == []


FITS = (
    "[...document.querySelectorAll('svg text')].filter(t => { const a = t.getBoundingClientRect(), "
    "b = t.ownerSVGElement.getBoundingClientRect(); return a.right > b.right + 1 || a.left < b.left - 1 })"
    ".map(t => t.textContent)"
)


def check_phone(page: Any) -> None:
    """The page needs no horizontal scrolling, and no text leaves its chart."""
    page.set_viewport_size(PHONE)
    page.evaluate(UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.evaluate(FITS) == []


def test_margins_and_the_chart_of_the_sizes(browser: Any, tmp_path: Path) -> None:
    with opened_page(browser, page_of("rounds", tmp_path), color_scheme="dark") as (page, seen):
        assert page.inner_text("#table th:nth-child(3)").split()[0] == "margin"
        assert all(re.fullmatch(r"±[\d,]+", cell) for cell in column(page, 3))
        counts = numbers(page, 2)
        assert counts == sorted(counts, reverse=True)
        drawn = {
            name: page.locator(f"svg[aria-labelledby='{name}-title {name}-desc']") for name in ("sizes", "counts")
        }
        assert drawn["counts"].is_visible()
        assert not drawn["sizes"].is_visible()
        page.click("#expert > summary")
        assert drawn["sizes"].is_visible()
        check_phone(page)
        assert seen.errors == []


@pytest.mark.slow  # two quick tests also look at a phone
@pytest.mark.parametrize("name", ["top-k", "known-domain", "booked", "rounds"])
def test_it_fits_a_phone(name: str, browser: Any, tmp_path: Path) -> None:
    with opened_page(browser, page_of(name, tmp_path), color_scheme="dark") as (page, seen):
        check_phone(page)
        assert accessibility_violations(page) == []
        assert seen.errors == []


def test_an_empty_release_has_no_empty_table(browser: Any, tmp_path: Path) -> None:
    with opened_page(browser, page_of("nothing", tmp_path)) as (page, seen):
        assert page.is_visible("text=Nothing was released.")
        assert not page.is_visible("#table")
        assert not page.is_visible("#search")
        check_phone(page)
        assert seen.errors == []


def test_long_names_and_many_columns_fit_a_screen_a_phone_and_paper(browser: Any, tmp_path: Path) -> None:
    address = "https://example.org/" + "a_long_segment/" * 12
    rows = [(user, f"{address}{user % 3}", f"campaign {user % 3}") for user in range(3000)]
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = ["user", "landing_page_address_of_the_visit", "campaign_as_entered_by_marketing"]
    result = dphist.release(
        pa.table(dict(zip(names, columns, strict=True))), user="user", item=names[1:], epsilon=1.0, delta=1e-6,
        max_items_per_user=3, interval=0.9, standard_error=True,
    )  # fmt: skip
    facts = gather_facts(result)
    assert facts.rows.total == 3
    # Cells are within the frame of the table, and texts within their cells.
    inside = (
        "(() => { const frame = document.getElementById('scroll').getBoundingClientRect(); "
        "return [...document.querySelectorAll('#table td')].every(td => { const box = td.getBoundingClientRect(); "
        "return box.left >= frame.left - 1 && box.right <= frame.right + 1 && "
        "td.scrollWidth <= td.clientWidth + 1 && getComputedStyle(td).textOverflow === 'clip' }) })()"
    )
    wide = {"width": 1400, "height": 900}
    with opened_page(browser, page_of(facts, tmp_path)) as (page, seen):
        for viewport, media in ((wide, "screen"), (PHONE, "screen"), ({"width": 718, "height": 1000}, "print")):
            page.set_viewport_size(viewport)
            page.emulate_media(media=media)
            assert all(address in cell for cell in column(page, 1))
            assert media == "print" or page.evaluate(inside), (viewport, media)
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
            assert page.evaluate("document.querySelectorAll('#table th').length") == 5
        assert seen.errors == []


def test_a_very_long_item_unfolds(browser: Any, tmp_path: Path) -> None:
    """3,000 characters would fill the screen; the whole text is one click away, and still found by a search."""
    item = " ".join(f"word{number}" for number in range(400))
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(page_of(dphist.release_histogram([item, "tea"], [9000, 5000], plan=plan), tmp_path))
    row = page.locator("#table tbody tr").first
    assert row.bounding_box()["height"] < 200
    assert item not in row.inner_text()
    row.locator("summary").click()
    assert "word399" in row.inner_text()
    assert row.bounding_box()["height"] > 200
    page.locator("#search").fill("word399")
    found(page, "1 of 2 rows")
    page.close()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """More rows than a page shows or prints."""
    size = 3_000
    table = pa.table({
        "item": [f"query number {n}" for n in range(size)],
        "count": np.random.default_rng(1).integers(500, 10**6, size),
    })  # fmt: skip
    result = dphist.release_histogram(table, plan=dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=9))
    return page_of(result, tmp_path_factory.mktemp("many"))


def test_many_rows_are_searched_sorted_and_paged(browser: Any, many: str) -> None:
    from playwright.sync_api import expect

    with opened_page(browser, many) as (page, seen):
        found(page, "3,000 rows")
        assert page.locator("#table tbody tr").count() == 25
        page.fill("#search", "2999")
        found(page, "1 of 3,000 rows")
        page.fill("#search", "")
        found(page, "3,000 rows")
        page.click("#table th:nth-child(1) button")
        expect(page.locator("#table td.text").first).to_have_text("query number 0")
        page.click("#pager button:nth-of-type(4)")
        expect(page.locator("#table tbody tr td.text").last).to_have_text("query number 2999")
        assert page.inner_text("#pager span") == "2,976 to 3,000 of 3,000"
        assert page.get_attribute("#table tbody tr:last-child", "aria-rowindex") == "3001"
        assert page.is_disabled("#pager button:nth-of-type(3)")
        page.click("#pager button:nth-of-type(2)")
        expect(page.locator("#table tbody tr td.text").last).to_have_text("query number 2974")
        page.click("#pager button:nth-of-type(1)")
        expect(page.locator("#table tbody tr td.text").first).to_have_text("query number 0")
        page.fill("#search", "query number 17")
        # 17, 170 to 179 and 1700 to 1799
        found(page, "111 of 3,000 rows")
        page.click("#pager button:nth-of-type(3)")
        assert page.inner_text("#pager span") == "26 to 50 of 111"
        assert seen.errors == []


def pages(page: Any, address: str, fragment: str = "", size: str = "A4") -> list[str]:
    """The text of each page on paper; `fragment` is that of a link that prints something else."""
    page.goto("about:blank")  # a change of the fragment alone would not load the page again
    page.goto(address + fragment)
    page.emulate_media(media="null")
    printed = PdfReader(io.BytesIO(page.pdf(format=size)))
    # Fonts have ligatures, such as one for fi.
    return [" ".join(normalize("NFKC", part.extract_text()).split()) for part in printed.pages]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of `make demo`."""
    folder = tmp_path_factory.mktemp("demo")
    make = ROOT / "examples" / "search_log" / "make_log.py"
    subprocess.run([sys.executable, make, "--output", folder / "log.parquet"], check=True, capture_output=True)
    dphist.release(
        folder / "log.parquet", user="user_id", item="query", epsilon=1, delta=1e-6, output=folder / "out.parquet"
    )
    return page_of(folder / "out.parquet", folder)


def test_the_report_of_the_demo_is_two_pages_and_a_declaration(browser: Any, demo: str) -> None:
    certificate = json.loads(
        (Path(demo.removeprefix("file://")).with_name("out.parquet.certificate.json")).read_text()
    )
    with opened_page(browser, demo) as (page, seen):
        for size in ("A4", "Letter"):
            first, second = pages(page, demo, size=size)
            assert "The largest released counts" in first
            assert "weather tomorrow" in first
            assert "What it means for people in the data" in first
            assert "What was verified" in second
            assert "What the numbers leave out" in second
            # Readers of the paper can find the file that it is about.
            assert certificate["self_sha256"] in second.replace(" ", "")
            assert "For experts" not in first + second
            assert "Declaration to sign" not in first + second
            (declaration,) = pages(page, demo, "#print-declaration", size)
            for wanted in (
                "Publisher", "Period of the data", "epsilon = 1.0, delta = 1e-06", "identified by user_id",
                "Rounds.", "Not in a ledger", "Place and date", "Signature",
            ):  # fmt: skip
                assert wanted in declaration
            assert certificate["self_sha256"] in declaration
            assert certificate["output"]["sha256"] in declaration
            assert "What the numbers leave out" not in declaration
        assert seen.errors == []


def test_wide_tables_long_names_and_warnings_leave_two_pages(browser: Any, tmp_path: Path) -> None:
    counts = {f"https://example.org/{'segment/' * 20}page-{place}": 2000 - place for place in range(40)}
    weak = tmp_path / "weak.parquet"
    dphist.release(
        events(counts), user="user", item="item", epsilon=9.0, delta=0.01, max_items_per_user=8, interval=0.9,
        standard_error=True, output=weak,
    )  # fmt: skip
    for number, release in enumerate((weak, "sums", "known-domain")):
        folder = tmp_path / str(number)
        folder.mkdir()
        address = page_of(release, folder)
        with opened_page(browser, address) as (page, seen):
            for size in ("A4", "Letter"):
                printed = pages(page, address, size=size)
                assert len(printed) == 2, (release, size)
                # Columns beyond those of the chart are in a table.
                assert ("item count" in printed[0]) == (release != "known-domain"), (release, size)
                assert len(pages(page, address, "#print-declaration", size)) == 1, (release, size)
            assert seen.errors == []


def test_everything_is_printed_on_request_with_heads_on_every_page(browser: Any, demo: str, many: str) -> None:
    for address, rows in ((demo, r"\d ±\d"), (many, r"query number \d+ [\d,]+")):
        with opened_page(browser, address) as (page, seen):
            assert len(pages(page, address)) == 2
            printed = pages(page, address, "#print-all")
            assert 4 < len(printed) < 12
            # Most of each page is used: none has only a line or two, except the last.
            assert all(len(text) > 250 for text in printed[:-1])
            assert "The guarantee for every epsilon" in " ".join(printed)
            with_rows = [text for text in printed if len(re.findall(rows, text)) > 5]
            assert len(with_rows) >= 2
            head = re.compile(r"(query|item) count (margin|95 %)")
            assert all(head.search(text) for text in with_rows)
            assert seen.errors == []


def test_links_print_a_part_and_leave_the_page_as_it_was(browser: Any, demo: str) -> None:
    from playwright.sync_api import expect

    with opened_page(browser, demo) as (page, seen):
        page.evaluate("window.print = () => { window.asked = document.documentElement.dataset.print }")
        for name, part, other in (("all", "#expert", "#declaration"), ("declaration", "#declaration", "#expert")):
            page.click(f"{part} > summary")
            page.click(f"#print-{name}")
            assert page.evaluate("window.asked") == name
            page.emulate_media(media="print")
            assert page.is_visible(part)
            assert not page.is_visible(other)
            page.emulate_media(media="screen")
            expect(page.locator("html:not([data-print])")).to_have_count(1)
            assert page.is_visible(other)
        assert seen.errors == []


def test_print_has_the_first_rows_and_everything_that_is_folded(browser: Any, many: str) -> None:
    from playwright.sync_api import expect

    with opened_page(browser, many) as (page, seen):
        found(page, "3,000 rows")
        assert not page.is_visible("#printed")
        page.click("#pager button:nth-of-type(4)")
        assert not page.is_visible("#curve")
        page.emulate_media(media="print")
        expect(page.locator("#table tbody tr")).to_have_count(10)
        assert not page.is_visible("#curve")
        page.emulate_media(media="screen")
        expect(page.locator("#table tbody tr")).to_have_count(25)
        page.evaluate("document.documentElement.dataset.print = 'all'")
        page.emulate_media(media="print")
        expect(page.locator("#table tbody tr")).to_have_count(100)
        assert page.inner_text("#printed") == "And 2,900 more in the release."
        assert page.evaluate("document.documentElement.scrollHeight") < 20_000
        assert page.is_visible("#curve")
        page.emulate_media(media="screen")
        expect(page.locator("#table tbody tr")).to_have_count(25)
        assert not page.is_visible("#curve")
        page.fill("#search", "2999")
        found(page, "1 of 3,000 rows")
        page.evaluate("document.documentElement.dataset.print = 'all'")
        page.emulate_media(media="print")
        expect(page.locator("#printed")).to_have_text('Only rows with "2999" in them.')
        assert seen.errors == []
    with page_without_scripts(browser, f"{many}#print-all") as page:
        page.emulate_media(media="print")
        assert page.inner_text("#printed") == "And 2,975 more in the release."
        assert page.is_visible("#curve")


def test_the_sort_controls_of_a_phone_are_in_one_line(browser: Any, tmp_path: Path) -> None:
    with opened_page(browser, page_of("sums", tmp_path), viewport={"width": 390, "height": 844}) as (page, seen):
        tops = {page.locator(one).bounding_box()["y"] for one in ("#sort", "#direction")}
        assert max(tops) - min(tops) < 8
        assert not page.is_visible("#table thead")
        page.select_option("#sort", "amount_mean")
        means = numbers(page, 5)
        assert means == sorted(means, reverse=True)
        assert page.inner_text("#direction") == "↓"
        page.click("#direction")
        assert numbers(page, 5) == means[::-1] or numbers(page, 5) == sorted(means)
        assert page.inner_text("#direction") == "↑"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.evaluate(UNFOLD)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert accessibility_violations(page) == []
        assert seen.errors == []


def test_it_can_be_read_without_scripts_and_by_keyboard(browser: Any, address: str) -> None:
    with page_without_scripts(browser, address) as page:
        assert page.locator("#table tbody tr").count() == 25
        assert page.is_visible("svg[aria-labelledby='counts-title counts-desc']")
        page.click("#expert > summary")
        assert page.is_visible("#curve")
        assert "Without scripts" in page.inner_text("noscript")
    with opened_page(browser, address) as (page, seen):
        page.focus("#search")
        page.keyboard.press("Tab")  # the region of the table, then its heads
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.get_attribute("#table th:nth-child(1)", "aria-sort") == "ascending"
        assert seen.errors == []
