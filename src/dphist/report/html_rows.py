"""The released rows on the page: a table that sorts and searches, and holds a hundred thousand rows lightly."""

from __future__ import annotations

import json
import math
from html import escape
from typing import Any, Final

from dphist.report.rows import Rows
from dphist.report.unseen import UNSEEN, visible

# What the rows may take of a page, so that it opens on a phone; the rest is in the release.
LARGEST: Final = 8_000_000
# Rows that are there without a script.
_PLAIN: Final = 20


def rows_section(rows: Rows, shown: int) -> str:
    """The table with its search, of which `shown` rows are on the page."""
    heads = [(column.name, column.kind) for column in rows.columns]
    notes = rows.notes
    if rows.width is not None:
        place = [name for name, _ in heads].index(rows.count) + 1
        heads[place:place] = [(name, "number") for name in rows.intervals]
    if shown < rows.total:
        notes.append(f"This page has the {shown:,} largest of {rows.total:,} counts; the release has all of them.")
    if rows.cut:
        notes.append("Long items are cut short here; the release has them in full.")
    order = ' aria-sort="descending"'
    head = "".join(
        f'<th scope="col" class="{kind}"{order if name == rows.count else ""}>'
        f'<button type="button" disabled dir="auto">{escape(name)}</button></th>'
        for name, kind in heads
    )
    return (
        f"<p>{escape(' '.join(notes))}</p>"
        '<div class="tools"><label for="search">Search</label><input id="search" type="search" disabled '
        'placeholder="part of an item" autocomplete="off" spellcheck="false">'
        '<p id="found" role="status"></p></div>'
        '<div id="scroll" tabindex="0" role="region" aria-label="Released counts, scrollable">'
        f'<table id="table"><thead><tr>{head}</tr></thead><tbody>{_plain_rows(rows)}</tbody></table></div>'
        f'<p id="printed">{_printed(rows)}</p>'
        "<noscript><p>Without scripts only the first rows are shown, and they cannot be sorted.</p></noscript>"
    )


def _printed(rows: Rows) -> str:
    """What paper says below the rows without a script; the script prints more of them."""
    more = rows.total - _PLAIN
    return f"And {more:,} more rows, which are in the release." if more > 0 else ""


def _plain_rows(rows: Rows) -> str:
    """The first rows as they are without a script."""
    first = min(_PLAIN, rows.total)
    columns: list[tuple[str, list[str]]] = []
    for column in rows.columns:
        columns.append((column.kind, column.texts(first)))
        if column.name == rows.count and rows.width is not None:
            for sign in (-1, 1):
                ends = [f"{value + sign * rows.width:,.{column.digits}f}" for value in column.values[:first]]
                columns.append(("number", ends))
    return "".join(
        "<tr>"
        + "".join(f'<td class="{kind}" dir="auto">{escape(visible(cells[row]))}</td>' for kind, cells in columns)
        + "</tr>"
        for row in range(first)
    )


def rows_data(rows: Rows) -> tuple[str, int]:
    """The rows for the script, and how many of them fit."""
    shown = rows.total
    while True:
        text = _json(_columns(rows, shown), shown)
        if len(text.encode()) <= LARGEST or shown == 0:
            return text, shown
        shown = min(shown - 1, int(0.98 * shown * LARGEST / len(text.encode())))


def _columns(rows: Rows, shown: int) -> list[dict[str, Any]]:
    columns: list[dict[str, Any]] = []
    for column in rows.columns:
        values = column.values if shown == rows.total else column.values[:shown]
        facts: dict[str, Any] = {"name": column.name, "kind": column.kind}
        if column.kind == "text":
            columns.append({**facts, "number": column.by_number, "values": values})
            continue
        finite = [value if math.isfinite(value) else None for value in values]
        wide = max((len(text) for text in column.texts(1)), default=1)
        columns.append({**facts, "digits": column.digits, "wide": wide + 1, "values": finite})
        if column.name == rows.count and rows.width is not None:
            made = {"kind": "number", "digits": column.digits, "wide": wide + 1, "of": len(columns) - 1}
            low, high = rows.intervals
            columns += [{"name": low, **made, "plus": -rows.width}, {"name": high, **made, "plus": rows.width}]
    return columns


def _json(columns: list[dict[str, Any]], rows: int) -> str:
    """JSON that cannot end its script: no `<`, and nothing in it that is not seen."""
    order = next((place for place, column in enumerate(columns) if column["kind"] == "number"), 0)
    text = json.dumps(
        {"rows": rows, "sorted": order, "columns": columns},
        ensure_ascii=False,
        separators=(",", ":"),
        allow_nan=False,
    )
    return UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text.replace("<", "\\u003c"))
