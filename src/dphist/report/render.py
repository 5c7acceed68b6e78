"""`make_report`: the report of a verified release as an HTML page, from a jinja2 template."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Final

from jinja2 import Environment, PackageLoader

from dphist.certificate.schema import Certificate
from dphist.display import printable
from dphist.errors import InvalidParameter
from dphist.releasing.result import Release
from dphist.releasing.series import Series
from dphist.report import words
from dphist.report.charts import SHOWN, can_draw, report_charts
from dphist.report.declaration import declaration_of
from dphist.report.facts import Facts, cut_item, gather_facts
from dphist.report.page import PAGE_MARK, STATIC_ROWS, breakable, digest, page_data, read_template
from dphist.report.series import series_page

if TYPE_CHECKING:
    from dphist.aliases import JsonObject

_ABOUT: Final = {
    "counted": "Counted", "a_count_is": "A count is", "source": "Source", "table": "Table", "query": "Query",
    "where": "Condition", "user": "User column", "items": "Public list", "known": "Known items", "goal": "Goal",
    "dataset": "Dataset",
    "created": "Created", "made_by": "Made by", "sha256": "SHA-256 of the data",
}  # fmt: skip


def make_report(
    release: Release | Series | str | os.PathLike[str],
    *,
    certificate: str | os.PathLike[str] | None = None,
    public_key: str | os.PathLike[str] | None = None,
) -> str:
    """The report of a release: the text of an HTML page that needs no network and prints well.

    The release is verified first. Noise from a seed, for tests, is stated at the top. Without the extra `plot`,
    the report has the words and numbers of its charts, but no pictures.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> result = dphist.release(log, user="user", item="query", epsilon=1, delta=1e-6, top=2, seed=7)
    >>> page = dphist.make_report(result)
    >>> print(page.splitlines()[0])
    <!doctype html>

    Args:
        release: The result of `dphist.release`, or the file it was written to; or the result of `dphist.series`,
            whose largest items are shown over time.
        certificate: As for `verify`; also for a result that was written to a database.
        public_key: As for `verify`.

    Raises:
        NotVerified: The release does not match its certificate.
    """
    if isinstance(release, Series):
        if certificate is not None or public_key is not None:
            raise InvalidParameter("a series was verified when it was read: pass public_key to dphist.series")
        return series_page(release)
    return render(gather_facts(release, certificate=certificate, public_key=public_key))


def report_data(facts: Facts) -> JsonObject:
    """The report as plain data with the keys of `dphist report --json`; docs/report.md explains them."""
    charts = [{"name": c.name, "title": c.title, "words": c.words} for c in report_charts(facts)]
    declaration = declaration_of(facts)
    return {
        **words.describe(facts),
        "declaration": None if declaration is None else declaration.to_dict(),
        "charts": charts,
    }


def render(facts: Facts) -> str:
    """The report as a page."""
    described, summary = words.describe(facts), facts.summary
    names, rows = facts.rows.first(STATIC_ROWS)
    sealed = (described["certificate"] or {}).values()
    *first, _ = summary.rows()
    environment = Environment(loader=PackageLoader("dphist.report"), keep_trailing_newline=True, autoescape=True)
    environment.filters |= {"breakable": breakable, "base64": _base64, "cut": cut_item, "digest": digest}
    data, shown = page_data(facts.rows)
    certificate, stated = facts.origin.certificate, facts.stated
    name = stated.output.name if isinstance(stated, Certificate) else "release"
    return environment.get_template("report.html").render(
        r=described,
        strip=[("Items", summary.headline, ""), *((label, *_split(text)) for label, text in first)],
        privacy=summary.privacy_words,
        verdict=summary.verdict.level.capitalize() if facts.private else "Not private",
        weak=not facts.private or summary.verdict.weak,
        warnings=words.warnings(facts),
        count_note=words.count_words(facts).note,
        about=[
            ("Released items", f"{facts.rows.total:,}"),
            *((_ABOUT[key], value) for key, value in described["about"].items()),
        ],
        tables=words.tables(facts),
        row_names=names,
        item_columns=len(facts.rows.items),
        sealed=list(zip(("Certificate", "SHA-256 of its content (self_sha256)"), sealed, strict=False)),
        charts={chart.name: chart for chart in report_charts(facts)},
        rows=rows,
        mark=PAGE_MARK,
        style=read_template("page.css"),
        script=read_template("page.js"),
        declaration=declaration_of(facts),
        can_draw=can_draw(),
        drawn=min(SHOWN, facts.rows.total),
        data=data,
        shown=shown,
        kinds=[column.kind for column in facts.rows.columns],
        sorted_by=facts.rows.count,
        certificate=certificate,
        # The download is the certificate as written; the text on the page has no invisible characters.
        certificate_shown="\n".join(map(printable, (certificate or "").split("\n"))),
        certificate_name=printable(f"{name}.certificate.json"),
    )


def _split(text: str) -> tuple[str, str]:
    """A text of the summary as a large headline and its explanation."""
    large, _, more = (text[:1].upper() + text[1:]).partition("; ")
    return large, more[:1].upper() + more[1:]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
