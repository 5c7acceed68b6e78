"""The report of a series: the largest items over time, what may be compared, and what the releases cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from jinja2 import Environment, PackageLoader

from dphist.certificate.request import TOTAL
from dphist.display import count_items, figure, plain_number, printable, upper_figure
from dphist.proof.verdict import verdict_of
from dphist.releasing.series import Item, Part, Point, Series
from dphist.releasing.summary import NOT_PRIVATE
from dphist.report.charts import can_draw, series_charts
from dphist.report.facts import NumberColumn, ReleasedRows, cut_item, text_column, with_totals
from dphist.report.page import (
    PAGE_MARK,
    STATIC_ROWS,
    breakable,
    digest,
    page_data,
    read_template,
)

if TYPE_CHECKING:
    from dphist.aliases import ArrowArray, JsonObject


def series_page(series: Series) -> str:
    """The report of a series: an HTML page that needs no network and prints well."""
    rows = item_rows(series)
    names, shown_rows = rows.first(STATIC_ROWS)
    data, shown = page_data(rows)
    environment = Environment(loader=PackageLoader("dphist.report"), keep_trailing_newline=True, autoescape=True)
    environment.filters |= {"breakable": breakable, "cut": cut_item, "digest": digest}
    return environment.get_template("series.html").render(
        title=_title(series),
        lead=_lead(series),
        private=series.private,
        strip=_strip(series),
        charts=series_charts(series),
        can_draw=can_draw(),
        chart_note=_chart_note(series),
        notes=series.notes(),
        table_note=_table_note(series),
        releases=_releases(series),
        releases_note="Each release was verified: its data matches its certificate, which proves its guarantee.",
        cost=series.cost_words(),
        total=rows.total,
        shown=shown,
        row_names=names,
        kinds=[column.kind for column in rows.columns],
        sorted_by=rows.count,
        rows=shown_rows,
        item_columns=len(rows.items),
        data=data,
        mark=PAGE_MARK,
        style=read_template("page.css"),
        script=read_template("page.js"),
    )


def series_data(series: Series) -> JsonObject:
    """The keys of `dphist series --json`."""
    charts = [{"name": c.name, "title": c.title, "words": c.words} for c in series_charts(series)]
    return {**series.to_dict(), "charts": charts}


def _title(series: Series) -> str:
    title = f"{', '.join(printable(name) for name in series.shown_items)} by {series.parts[0].period.kind}"
    return title if series.private else f"NOT PRIVATE: {title}"


def _lead(series: Series) -> str:
    first, last = series.parts[0].period, series.parts[-1].period
    ends = f"{first} to {last}" if first != last else str(first)
    without = len(series.missing)
    missing = f", {without:,} {'period' if without == 1 else 'periods'} without a release" if without else ""
    return f"Noisy numbers of users of each item, {ends}{missing}. All releases are verified."


def _strip(series: Series) -> list[tuple[str, str, str]]:
    margins = [part.margin for part in series.parts if part.margin is not None]
    usual = "none" if not margins else f"±{figure(float(np.median(margins)))}"
    spread = ""
    if margins and max(margins) > 1.2 * min(margins):
        spread = (
            f"Usual margin of a count (95 %); from ±{figure(min(margins))} to ±{figure(max(margins))} by release"
        )
    cost = series.cost
    privacy = ("Not stated", "The releases are not all booked in one ledger")
    if not series.private:
        privacy = (NOT_PRIVATE.partition(":")[0].capitalize(), "The noise comes from a seed")
    elif cost is not None:
        more = f"For each user, with δ = {upper_figure(cost.delta)}, over all releases"
        privacy = (f"ε = {plain_number(cost.epsilon)}", more)
    return [
        ("Releases", f"{len(series.parts):,}", f"One per {series.parts[0].period.kind}"),
        ("Items", f"{len(series.lines):,}", f"{series.always:,} of them in every release"),
        ("Margin", usual, spread or "Usual margin of a count (95 %)"),
        ("Cost together", *privacy),
    ]


def _chart_note(series: Series) -> str:
    if not series.lines:
        return "No item was released."
    drawn = min(len(series.lines), len(series_charts(series)))
    which = (
        f"The {drawn} largest of {count_items(len(series.lines))}" if drawn < len(series.lines) else "All items"
    )
    if not can_draw():
        return f"{which}."
    return (
        f"{which}. Line: released counts. Band: their margins. Grey: periods in which the item was not released, "
        "which does not mean zero. Every chart has its own scale, from zero."
    )


def _table_note(series: Series) -> str:
    if len(series.parts) == 1:
        return "The counts of the only release."
    first, last = (part.period.name for part in (series.parts[0], series.parts[-1]))
    return (
        f"Counts of the first and the last release, {first} and {last}, and their difference with its margin. "
        "–: not released then."
    )


def _ends(series: Series) -> list[Part]:
    """The first and the last release; one if they are the same."""
    return list(dict.fromkeys((series.parts[0], series.parts[-1])))


def item_rows(series: Series) -> ReleasedRows:
    """One row for each item, by its count in the last release."""
    places = {period: place for place, period in enumerate(series.periods)}
    ends = _ends(series)
    at = [places[part.period] for part in ends]

    def latest(line: tuple[Item, object]) -> float:
        point = series.lines[line[0]].get(at[-1])
        return -math.inf if point is None else point[0]

    ordered = [item for item, _ in sorted(series.lines.items(), key=latest, reverse=True)]
    values = {name: [item[place] for item in ordered] for place, name in enumerate(series.items)}
    labels = tuple(text_column(name, pa.chunked_array([_texts(values[name])])) for name in series.shown_items)
    if series.totals:
        labels = with_totals(labels, pa.chunked_array([pa.array(values[TOTAL], pa.bool_())]), series.totals)
    nothing: Point = (math.nan, math.nan, math.nan)
    columns, pairs = [], []
    for part, place in zip(ends, at, strict=True):
        points = [series.lines[item].get(place, nothing) for item in ordered]
        counts, margins = [point[0] for point in points], [(point[2] - point[1]) / 2.0 for point in points]
        pairs.append((counts, margins))
        columns.append(NumberColumn(part.period.name, "number", tuple(counts)))
        columns.append(NumberColumn(f"± {part.period.name}", "number", tuple(margins)))
    if len(pairs) == 2:
        change = [two - one for one, two in zip(pairs[0][0], pairs[1][0], strict=True)]
        margin = [math.hypot(one, two) for one, two in zip(pairs[0][1], pairs[1][1], strict=True)]
        columns.append(NumberColumn("change", "number", tuple(change)))
        columns.append(NumberColumn("± change", "number", tuple(margin)))
    columns.append(NumberColumn("releases", "number", tuple(float(len(series.lines[item])) for item in ordered)))
    return ReleasedRows(labels, tuple(columns), ends[-1].period.name, len(ordered), None, 0.95)


def _texts(values: Sequence[object]) -> ArrowArray:
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _releases(series: Series) -> tuple[Sequence[str], Sequence[Sequence[str]], int]:
    booked = any(part.booking for part in series.parts)
    head = (
        "period",
        "release",
        "verdict",
        "items",
        "usual margin",
        "ε",
        "δ",
        *(("ledger entry",) if booked else ()),
    )
    rows = [
        (
            part.period.name, printable(part.name),
            verdict_of(part.budget).level if part.private else "not private",
            f"{part.rows:,}", "" if part.margin is None else f"±{figure(part.margin)}",
            plain_number(part.budget.epsilon), plain_number(part.budget.delta),
            *((("" if part.booking is None else str(part.booking["entry"])),) if booked else ()),
        )
        for part in series.parts
    ]  # fmt: skip
    return head, rows, 3
