"""What the pages of reports share: their style and script, the rows as data for the script, and limits."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from markupsafe import Markup, escape

from dphist.report.facts import LONGEST_ITEM, ReleasedRows, TextColumn

if TYPE_CHECKING:
    from dphist.aliases import JsonObject

# Marks the files that a later report may replace.
PAGE_MARK: Final = '<meta name="generator" content="dphist report">'
# How many rows the page shows without scripts; it has the others as data.
STATIC_ROWS: Final = 25
# Bytes of rows in a page, so that it opens on a phone; the rest is only in the release.
LARGEST: Final = 8_000_000


def read_template(name: str) -> str:
    return files("dphist.report").joinpath("templates", name).read_text(encoding="utf-8")


def breakable(name: str) -> Markup:
    """A column name that may wrap after a _."""
    return escape(name).replace("_", Markup("_<wbr>"))


def digest(text: str) -> str:
    """For the content security policy, which allows only the page's own style and script."""
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def page_data(rows: ReleasedRows) -> tuple[str, int]:
    """The rows for the page's script as JSON, and how many of them fit."""
    shown = rows.total
    while True:
        text = _page_json(rows, shown)
        size = len(text.encode())
        if size <= LARGEST or shown == 0:
            return text, shown
        shown = min(shown - 1, int(0.98 * shown * LARGEST / size))


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _page_json(rows: ReleasedRows, shown: int) -> str:
    """JSON without `<`, so that it cannot end its script."""
    columns: list[JsonObject] = []
    for column in rows.columns:
        head = {"name": column.name, "kind": column.kind}
        if isinstance(column, TextColumn):
            columns.append({**head, "digits": 0, "number": column.by_number, "values": column.values[:shown]})
        elif column.half is not None:
            columns.append({**head, "digits": column.digits, "of": rows.place, "half": column.half})
        else:
            ends = {"values": _finite(column.values[:shown]), "upper": _finite(column.upper[:shown])}
            columns.append({**head, "digits": column.digits, **ends})
    data = {"rows": shown, "sorted": rows.place, "columns": columns, "longest": LONGEST_ITEM}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
