"""`make_report`: the report of a verified release as HTML, Markdown or text, from jinja2 templates."""

from __future__ import annotations

import base64
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from dphist.display import fill, printable, text_grid, text_table
from dphist.errors import InvalidParameter, one_of
from dphist.releasing.result import Release
from dphist.report import words
from dphist.report.charts import Chart, report_charts
from dphist.report.facts import Facts, Rows, gather_facts

# Mark the files that a later report may replace.
PAGE_MARK: Final = '<meta name="generator" content="dphist report">'
TEXT_MARK: Final = "This is a report by dphist."
MARKDOWN_MARK: Final = "<!-- dphist report -->"
ReportFormat = Literal["html", "markdown", "text"]
FORMATS: Final[tuple[ReportFormat, ...]] = get_args(ReportFormat)
_ENDINGS: Final[dict[str, ReportFormat]] = {
    ".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".txt": "text",
}  # fmt: skip
# How many rows each format shows; the page has the others as data.
_ROWS: Final[dict[ReportFormat, int]] = {"html": 25, "markdown": 100, "text": 20}
# Bytes of rows in a page, so that it opens on a phone; the rest is only in the release.
LARGEST: Final = 8_000_000
_CELL: Final = 60
# Items longer than this are cut: on the page they unfold, elsewhere the release has the whole text.
LONGEST_ITEM: Final = 240
CUT_ITEM: Final = 160
_TITLES: Final = {
    "results": "Results",
    "meaning": "What it means for people in the data",
    "limits": "What the numbers leave out",
    "expert": "For experts: the proof, the noise and the certificate",
    "about": "What was released",
    "promise": "What is guaranteed",
    "checks": "What was verified",
    "numbers": "The numbers of this release",
    "curve": "The guarantee for every epsilon",
    "selection": "What is released, and how accurate it is",
    "rounds": "How the items were found and measured",
    "booking": "Booked in a ledger",
    "certificate": "Certificate and verification",
}
_ABOUT: Final = {
    "counted": "Counted", "a_count_is": "A count is", "source": "Source", "table": "Table", "query": "Query",
    "where": "Condition", "user": "User column", "items": "Public list", "known": "Known items", "goal": "Goal",
    "dataset": "Dataset",
    "created": "Created", "made_by": "Made by", "sha256": "SHA-256 of the data",
}  # fmt: skip
_CURVE: Final = (
    "For every ε there is a certified δ: a release with this plan is (ε, δ)-differentially private. Lower is more "
    "private."
)
_VERIFYING: Final = (
    "The certificate has every number of the proof. Anyone can recompute the proof, without the data, with the "
    "Python package dphist:"
)

# Characters that Markdown, HTML, a table or an automatic link would interpret.
_MARKUP: Final = re.compile(r"([\\`*_\[\]#|<>~&$@]|:(?=//)|(?<=www)\.)")


def make_report(
    release: Release | str | os.PathLike[str],
    format: ReportFormat = "html",
    *,
    table: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
) -> str:
    """The report of a release: an HTML page that needs no network, Markdown, or plain text.

    `release` is the result of `dphist.release`, or the address it was written to (then `table`, `certificate` and
    `public_key` are as for `verify`). It is verified first; any problem raises `NotVerified`, except noise from a
    seed, for tests, which the report states at the top. HTML needs the extra `plot` for its charts.
    """
    checked = one_of("format", format, FORMATS)
    return render(gather_facts(release, table=table, certificate=certificate, public_key=public_key), checked)


def format_of(path: Path, hint: str = "") -> ReportFormat:
    """The format by the end of the file name; `hint` is added to the error if there is none."""
    if re.match(r"[\w+.-]{2,}:/", str(path)):
        raise InvalidParameter("a report is written to a local file, not to an object store")
    format = _ENDINGS.get(path.suffix.lower())
    if format is None:
        raise InvalidParameter(f"the report must end in {', '.join(_ENDINGS)}, not {printable(path.name)!r}{hint}")
    return format


def report_data(facts: Facts) -> dict[str, Any]:
    """The report as plain data with the keys of `dphist report --json`; docs/report.md explains them."""
    charts = [{"name": c.name, "title": c.title, "words": c.words} for c in report_charts(facts)]
    return {**words.describe(facts), "charts": charts}


def render(facts: Facts, format: ReportFormat, figures: Mapping[str, str] | None = None) -> str:
    """The report in one format. Markdown links to `figures`, the files of charts by their names."""
    described, summary = words.describe(facts), facts.summary
    names, rows = facts.rows.first(_ROWS[format])
    if format != "html":
        texts = len(facts.rows.items)
        rows = [[*map(_cut_item, row[:texts]), *row[texts:]] for row in rows]
    skipped = {"rounds": not described["rounds"], "booking": not described["booking"]}
    sealed = (described["certificate"] or {}).values()
    *first, (_, privacy) = summary.rows()
    shared: dict[str, Any] = {
        "r": described,
        "titles": {name: title for name, title in _TITLES.items() if not skipped.get(name)},
        "strip": [("Items", summary.headline, ""), *((label, *_split(text)) for label, text in first)],
        "summary_rows": [("Items", summary.headline), *summary.rows()],
        "privacy": privacy.replace(f"; {summary.verdict.level}: ", ": "),
        "verdict": summary.verdict.level.capitalize() if facts.private else "Not private",
        "weak": not facts.private or summary.verdict.weak,
        "warnings": words.warnings(facts),
        "count_note": words.count_words(facts).note,
        "about": [
            ("Released items", f"{facts.rows.total:,}"),
            *((_ABOUT[key], value) for key, value in described["about"].items()),
        ],
        "curve_text": _CURVE,
        "tables": words.tables(facts),
        "row_names": names,
        "item_columns": len(facts.rows.items),
        "sealed": list(zip(("Certificate", "SHA-256 of its content (self_sha256)"), sealed, strict=False)),
        "verifying": _VERIFYING,
        "charts": {chart.name: chart for chart in report_charts(facts)},
    }
    if format == "html":
        return _html(facts, shared, rows)
    shared["more"] = facts.rows.total - len(rows)
    if format == "markdown":
        environment = _environment(autoescape=True, finalize=_escape_markdown)
        parts = {**_markdown_parts(shared["charts"], figures or {}), "rows": rows, "mark": Markup(MARKDOWN_MARK)}
    else:
        environment = _environment()
        parts = {**_TEXT_PARTS, "rows": _wrap_cells(rows, len(facts.rows.items)), "mark": TEXT_MARK}
    return environment.get_template("report.txt").render(shared, **parts)


@cache
def _environment(**options: Any) -> Environment:
    return Environment(loader=PackageLoader("dphist.report"), keep_trailing_newline=True, **options)


def _split(text: str) -> tuple[str, str]:
    """A text of the summary as a large headline and its explanation."""
    large, _, more = (text[:1].upper() + text[1:]).partition("; ")
    return large, more[:1].upper() + more[1:]


def _cut_item(item: str) -> str:
    return item if len(item) <= LONGEST_ITEM else f"{item[:CUT_ITEM]}… ({len(item):,} characters)"


def _wrap_cells(rows: list[list[str]], items: int) -> list[list[str]]:
    """Rows whose long names continue in further lines."""
    wrapped = []
    for row in rows:
        names = [textwrap.wrap(printable(name), _CELL // items) or [""] for name in row[:items]]
        for place, line in enumerate(zip_longest(*names, fillvalue="")):
            wrapped.append([*line, *(row[items:] if place == 0 else [""] * (len(row) - items))])
    return wrapped


# --- text and Markdown share a template that calls these functions


_TEXT_PARTS: Final[dict[str, Callable[..., str]]] = {
    "heading": lambda title, _=2: f"{title}\n{'=' * min(len(title), 100)}",
    "paragraph": fill,
    "bullet": lambda text: fill(text, "- "),
    "strong": str,
    "labelled": lambda label, text: fill(f"{label}. {text}"),
    "warning": lambda kind, text: fill(f"{kind.upper()}: {text}"),
    "summary": lambda rows: "\n".join(fill(text, f"{label:<17}") for label, text in rows),
    "numbers": lambda numbers: "\n".join(
        f"{one['label']}: {one['value']}\n{fill(one['meaning'], '    ')}" for one in numbers
    ),
    "pairs": lambda rows: text_table(list(rows)),
    "table": lambda head, rows, texts: text_grid(head, rows, left=texts),
    "picture": lambda _: "",
    "code": lambda command: f"  {command}",
}


def _escape_markdown(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup(_MARKUP.sub(r"\\\1", printable(str(value))))


def _markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 2) -> Markup:
    """The first `texts` columns are texts, the others numbers, which are aligned right."""
    rule = ["---" if place < texts else "---:" for place in range(len(head))]
    lines: list[list[str]] = [[_escape_markdown(cell) for cell in row] for row in (head, *rows)]
    return Markup("\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])))


def _markdown_parts(charts: Mapping[str, Chart], figures: Mapping[str, str]) -> dict[str, Callable[..., Markup]]:
    escaped = _escape_markdown

    def picture(name: str) -> Markup:
        if name not in charts:
            return Markup()
        words = escaped(charts[name].words)
        link = ""
        if name in figures:
            link = f"![{escaped(charts[name].title)}: {words}](<{quote(os.fsencode(figures[name]))}>)\n\n"
        return Markup(f"{link}{words}\n\n")

    return {
        "heading": lambda title, level=2: Markup(f"{'#' * level} {escaped(title)}"),
        "paragraph": escaped,
        "bullet": lambda text: Markup(f"- {escaped(text)}"),
        "strong": lambda text: Markup(f"**{escaped(text)}**"),
        "labelled": lambda label, text: Markup(f"**{escaped(label)}.** {escaped(text)}"),
        "warning": lambda kind, text: Markup(f"**{escaped(kind)}:** {escaped(text)}"),
        "summary": lambda rows: _markdown_table(("", ""), rows),
        "numbers": lambda numbers: _markdown_table(
            ("number", "value", "what it means"), [tuple(one.values()) for one in numbers], 3
        ),
        "pairs": lambda rows: _markdown_table(("", ""), rows),
        "table": _markdown_table,
        "picture": picture,
        "code": lambda command: Markup(f"```sh\n{command}\n```"),
    }


# --- HTML


def _html(facts: Facts, shared: dict[str, Any], rows: list[list[str]]) -> str:
    environment = _environment(autoescape=True)
    environment.filters |= {"breakable": _breakable, "base64": _base64}
    data, shown = page_data(facts.rows)
    certificate = facts.origin.certificate
    return environment.get_template("report.html").render(
        shared,
        rows=rows,
        mark=PAGE_MARK,
        style=_read("page.css"),
        script=_read("page.js"),
        digest=_digest,
        longest=LONGEST_ITEM,
        cut=CUT_ITEM,
        data=data,
        shown=shown,
        kinds=[column.kind for column in facts.rows.columns],
        sorted_by=facts.rows.count,
        certificate=certificate,
        # The download is the certificate as written; the text on the page has no invisible characters.
        certificate_shown="\n".join(map(printable, (certificate or "").split("\n"))),
        certificate_name=printable(f"{facts.document.get('output', {}).get('name', 'release')}.certificate.json"),
    )


def _read(name: str) -> str:
    return files("dphist.report").joinpath("templates", name).read_text(encoding="utf-8")


def _breakable(name: str) -> Markup:
    """A column name that may wrap after a _."""
    return escape(name).replace("_", Markup("_<wbr>"))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _digest(text: str) -> str:
    """For the content security policy, which allows only the page's own style and script."""
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def page_data(rows: Rows) -> tuple[str, int]:
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


def _page_json(rows: Rows, shown: int) -> str:
    """JSON without `<`, so that it cannot end its script."""
    columns: list[dict[str, Any]] = []
    for column in rows.columns:
        if column.kind == "text":
            values: dict[str, Any] = {"number": column.by_number, "values": column.values[:shown]}
        elif column.half is not None:
            values = {"of": rows.place, "half": column.half}
        else:
            values = {"values": _finite(column.values[:shown]), "upper": _finite(column.upper[:shown])}
        columns.append({"name": column.name, "kind": column.kind, "digits": column.digits, **values})
    data = {"rows": shown, "sorted": rows.place, "columns": columns, "longest": LONGEST_ITEM, "cut": CUT_ITEM}
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
