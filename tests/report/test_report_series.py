"""The report of a series: charts with bands and gaps, all items, a page that fits a phone and loads nothing."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dphist
from browser import accessibility_violations, opened_page
from dphist.errors import InvalidParameter
from dphist.report.charts import series_charts
from release_commands import command
from release_data import events

pytestmark = pytest.mark.together("report")
PHONE = {"width": 390, "height": 844}
WEEKS = {
    "2026-W01": {"tea": 900, "milk": 700, "<b>bread</b>": 500},
    "2026-W02": {"tea": 950, "<b>bread</b>": 480},
    "2026-W03": {"tea": 400, "milk": 650},
    "2026-W05": {"tea": 990, "milk": 600},
}


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dphist.Series:
    """Counts of 400 and more pass the threshold of 44, except with a probability below 1e-12."""
    folder = tmp_path_factory.mktemp("series") / "releases"
    folder.mkdir()
    for week, counts in WEEKS.items():
        dphist.release(
            events(counts), user="user", item="item", epsilon=1, delta=1e-7, max_items_per_user=2,
            output=folder / f"{week}.parquet",
        )  # fmt: skip
    return dphist.series(folder)


@pytest.fixture(scope="module")
def page(series: dphist.Series) -> str:
    return dphist.make_report(series)


def layers_of(chart: Any) -> dict[str, list[dict[str, float]]]:
    return {layer["mark"]["type"]: layer["data"]["values"] for layer in chart.spec["layer"]}


def test_gaps_are_gaps(series: dphist.Series) -> None:
    tea, milk, bread = (layers_of(chart) for chart in series_charts(series))
    # 2026-W04 has no release.
    assert [(gap["x"], gap["end"]) for gap in tea["rect"]] == [(2.5, 3.5)]
    assert [(gap["x"], gap["end"]) for gap in milk["rect"]] == [(0.5, 1.5), (2.5, 3.5)]
    assert [(gap["x"], gap["end"]) for gap in bread["rect"]] == [(1.5, 4)]
    assert [(value["x"], value["run"]) for value in milk["line"]] == [(0, 0), (2, 1), (4, 2)]
    assert len(milk["rule"]) == 3, "single periods have a bar instead of a band"
    assert [value["x"] for value in tea["rule"]] == [4]
    assert "rule" not in bread
    for chart, (item, line) in zip(series_charts(series), series.lines.items(), strict=True):
        drawn = {value["x"]: (value["y"], value["low"], value["high"]) for value in layers_of(chart)["line"]}
        assert drawn == dict(line), item


def test_text_alternatives(series: dphist.Series) -> None:
    tea, milk, _ = series_charts(series)
    assert re.fullmatch(r"tea: in 4 of 4 releases, \S+ ± \S+ in 2026-W01 and \S+ ± \S+ in 2026-W05\.", tea.words)
    assert milk.words.endswith("Grey periods: not released, which is not zero.")
    whole = dphist.chart(series)
    assert tea.words in whole.words
    assert whole.svg().count("<svg") == 1
    with pytest.raises(InvalidParameter, match="was verified when it was read"):
        dphist.make_report(series, public_key="a.pub")


class Texts(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_says_what_may_be_compared(series: dphist.Series, page: str) -> None:
    text = " ".join(" ".join(Texts(page).texts).split())
    for note in [*series.notes(), series.cost_words()]:
        assert " ".join(note.split()) in text
    assert "<b>bread</b>" not in page, "items are text"
    assert "There is no release of 2026-W04." in text
    rows = json.loads(re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)[0])
    assert [column["name"] for column in rows["columns"]] == [
        "item", "2026-W01", "± 2026-W01", "2026-W05", "± 2026-W05", "change", "± change", "releases",
    ]  # fmt: skip
    assert rows["columns"][0]["values"] == ["tea", "milk", "<b>bread</b>"]
    assert rows["columns"][7]["values"] == [4, 3, 2]
    assert rows["columns"][5]["values"][2] is None


def test_totals_are_shown_as_all(tmp_path: Path) -> None:
    """Items that are texts such as "(all)" are quoted; a missing value is not."""
    days = ["a"] * 1000 + ["(all)"] * 900 + [None] * 3000
    log = pa.table({"user": range(len(days)), "day": pa.array(days, pa.string())})
    for week in ("2026-W01", "2026-W02"):
        dphist.release(
            log, user="user", item="day", total="day", null_items=True, epsilon=8, delta=1e-3,
            output=tmp_path / f"{week}.parquet",
        )  # fmt: skip
    series = dphist.series(tmp_path)
    shown = ["(all)", "(missing)", "a", '"(all)"']
    assert [chart.title for chart in series_charts(series)] == shown
    rows = json.loads(
        re.findall(r'<script type="application/json" id="data">(.*?)</script>', dphist.make_report(series))[0]
    )
    assert [column["name"] for column in rows["columns"]][:2] == ["day", "2026-W01"]
    assert rows["columns"][0]["values"] == ["(all)", None, "a", '"(all)"']


def test_only_one_release_and_none_with_rows(tmp_path: Path) -> None:
    options: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1, "max_items_per_user": 1, "seed": 1}
    dphist.release(events({"rare": 1}), **options, delta=1e-15, output=tmp_path / "2026-11-19.csv")
    empty = dphist.make_report(dphist.series(tmp_path))
    assert "No item was released." in empty
    assert "NOT PRIVATE" in empty
    with pytest.raises(InvalidParameter, match="nothing to draw"):
        dphist.chart(dphist.series(tmp_path))
    dphist.release(events({"tea": 900}), **options, delta=1e-7, output=tmp_path / "2026-11-20.csv")
    (chart,) = series_charts(dphist.series(tmp_path))
    assert chart.title.startswith("NOT PRIVATE")
    (tmp_path / "2026-11-19.csv").unlink()
    (tmp_path / "2026-11-19.csv.certificate.json").unlink()
    assert "The counts of the only release." in dphist.make_report(dphist.series(tmp_path))


def test_the_command_writes_and_protects(series: dphist.Series) -> None:
    folder = Path(series.folder).parent
    done = command(folder, "series", "releases", "--report", "s.html", "--json")
    assert (done.code, done.data["report"]) == (0, "s.html")
    assert command(folder, "series", "releases", "--report", "s.html").code == 1
    assert command(folder, "series", "releases", "--report", "s.html", "--force", "-q").code == 0
    for wrong in ("releases/s.html", "s.txt"):
        done = command(folder, "series", "releases", "--report", wrong)
        assert (done.code, done.out) == (2, "")
    assert len(list(Path(series.folder).iterdir())) == 2 * len(WEEKS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser(browser: Any, page: str, tmp_path: Path, scheme: str) -> None:
    from playwright.sync_api import expect

    path = tmp_path / "series.html"
    path.write_text(page, encoding="utf-8")
    with opened_page(browser, path.as_uri(), viewport=PHONE, color_scheme=scheme) as (shown, seen):
        assert shown.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        assert accessibility_violations(shown) == []
        assert shown.locator("svg.dphist-chart").count() == 3
        cells = shown.locator("#table tbody tr td:nth-child(6)").all_text_contents()
        assert cells[2] == "–"
        shown.fill("#search", "BREAD")
        expect(shown.locator("#found")).to_have_text("1 of 3 rows")
        shown.emulate_media(media="print")
        expect(shown.locator("details:not([open])")).to_have_count(0)
        assert not seen.errors
        assert not seen.elsewhere(path.as_uri(), "data:")
