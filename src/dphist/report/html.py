"""The report as one page of HTML: nothing is loaded, nothing is sent, and items are never read as markup."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template

from dphist.display import printable, raised
from dphist.report.charts import BarChart, charts_of
from dphist.report.facts import Facts
from dphist.report.html_rows import rows_data, rows_section
from dphist.report.marks import PAGE
from dphist.report.sentences import CURVE, VERIFYING
from dphist.report.svg import drawings, stylesheet
from dphist.report.text import SIZES_HEAD, peer_rows, size_rows


def html(facts: Facts) -> str:
    """The whole page."""
    style, script = _read("page.css") + stylesheet(), _read("page.js")
    data, shown = rows_data(facts.rows)
    sections = _sections(facts, shown)
    return Template(_read("page.html")).substitute(
        title=escape(facts.title),
        mark=PAGE,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        badges=_badges(facts),
        banner=_banner(facts),
        lead=escape(facts.lead),
        contents="".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title, _ in sections),
        sections="\n".join(
            f'<section id="{name}" aria-labelledby="{name}-heading">'
            f'<h2 id="{name}-heading">{escape(title)}</h2>{content}</section>'
            for name, title, content in sections
        ),
        data=data,
    )


def _read(name: str) -> str:
    return files("dphist.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """By which the page allows its own style and script, and no other."""
    return "sha256-" + base64.b64encode(sha256(text.encode()).digest()).decode()


def _badges(facts: Facts) -> str:
    if not facts.private:
        verified = ("bad", "✗ Not verified: made from a seed")
    elif facts.certificate is None:
        verified = ("good", "✓ Guarantee verified" + ("" if facts.written else ", not yet written"))
    else:
        verified = ("good", "✓ Verified")
    private = ("good", "✓ Private") if facts.private else ("bad", "✗ NOT PRIVATE")
    budget = f"epsilon {raised(facts.budget.epsilon, 6)}, delta {raised(facts.budget.delta, 6)}"
    budget = budget if facts.private else f"planned for {budget}"
    marks = [*(f'<span class="badge {kind}">{text}</span>' for kind, text in (verified, private))]
    # Verified and private, but for a promise that is worth little: green alone would not say so.
    kind = "badge bad" if facts.cautions else "badge"
    return "".join([*marks, f'<span class="{kind}">{"! " if facts.cautions else ""}{budget}</span>'])


def _banner(facts: Facts) -> str:
    """What nobody may miss."""
    seeded = (
        '<p class="banner" role="alert"><strong>NOT PRIVATE.</strong> The noise of this release was made from a '
        "seed, for tests. It protects nobody. Do not publish it.</p>"
    )
    note = f'<p class="banner">{escape(facts.rows.note)}</p>' if facts.rows.note else ""
    weak = "".join(
        f'<p class="banner"><strong>Caution:</strong> {escape(sentence)}</p>' for sentence in facts.cautions
    )
    return ("" if facts.private else seeded) + weak + note


def _sections(facts: Facts, shown: int) -> list[tuple[str, str, str]]:
    """Name, title and content of each, in order."""
    drawn = drawings(charts := charts_of(facts))
    # Bars have their numbers beside them, and a table below.
    captions = {
        chart.name: "" if isinstance(chart, BarChart) and chart.name != "sizes" else _caption(chart.words)
        for chart in charts
    }
    titles = {chart.name: chart.title for chart in charts}

    def pictures(*names: str) -> str:
        made = [
            f"<figure><h3>{escape(titles[name])}</h3>{drawn[name]}{captions[name]}</figure>"
            for name in names
            if name in drawn
        ]
        return f'<div class="pair">{"".join(made)}</div>' if made else ""

    found = [
        ("about", "What was released, and from what", _pairs(facts.about)),
        ("promise", "What is promised", _promise(facts)),
        ("numbers", "The numbers of this release", _numbers(facts)),
        ("curve", "The guarantee for every epsilon", _curve(facts) + pictures("guarantee") + _curve_table(facts)),
        ("others", "Against other analyses", _others(facts, pictures("threshold", "noise"))),
        ("selection", "What is released, and how far off it is", _selection(facts) + pictures("release", "error")),
    ]
    if facts.sizes is not None:
        found.append(("cap", "How the cap was chosen", pictures("sizes") + _sizes_table(facts)))
    found.append(("rows", "The released counts", rows_section(facts.rows, shown)))
    if facts.receipt:
        found.append(("booking", "Booked in a ledger", _pairs(facts.receipt)))
    found.append(("limits", "What is not covered", _listed(facts.uncovered)))
    return [*found, ("certificate", "Certificate", _certificate(facts))]


def _caption(words: str) -> str:
    return f"<figcaption>{escape(words)}</figcaption>"


def _listed(sentences: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f'<dt>{escape(name)}</dt><dd dir="auto">{escape(value)}</dd>' for name, value in pairs)
    return f'<dl class="about">{rows}</dl>'


def _promise(facts: Facts) -> str:
    plain = "".join(f"<p>{escape(sentence)}</p>" for sentence in facts.promise)
    exact = f"<details><summary>The guarantee, exactly</summary><p>{escape(facts.guarantee)}</p></details>"
    checks = f"<details><summary>What was verified for this report</summary>{_listed(facts.checks)}</details>"
    return plain + exact + checks


def _numbers(facts: Facts) -> str:
    cards = "".join(
        f'<div><dt>{escape(one.label)}</dt><dd class="figure">{escape(one.value)}</dd>'
        f'<dd class="meaning">{escape(one.meaning)}</dd></div>'
        for one in facts.numbers
    )
    return f'<dl class="cards">{cards}</dl>'


def _selection(facts: Facts) -> str:
    return "".join(f"<p>{escape(sentence)}</p>" for sentence in facts.selected)


def _curve(facts: Facts) -> str:
    return f"<p>{escape(CURVE)} {escape(facts.curve_note)}</p>"


def _curve_table(facts: Facts) -> str:
    step = max(1, (len(facts.curve) - 1) // 10)
    rows = [(raised(epsilon, 4), raised(delta, 4)) for epsilon, delta in facts.curve[::step]]
    return (
        "<details><summary>The curve as a table</summary>"
        + _table("The curve as a table", ("epsilon", "delta"), rows, 0)
        + "</details>"
    )


def _others(facts: Facts, drawn: str) -> str:
    head = ("way to count", "noise", "threshold")
    table = _table("Other analyses as a table", head, peer_rows(facts), 1, bold=0)
    return f"<p>{escape(facts.peers_note)}</p>{drawn}<details><summary>As a table</summary>{table}</details>"


def _sizes_table(facts: Facts) -> str:
    table = _table("Users by number of items as a table", SIZES_HEAD, size_rows(facts), 1)
    return f"<details><summary>As a table</summary>{table}</details>"


def _table(
    name: str, head: Sequence[str], rows: Sequence[Sequence[str]], texts: int, bold: int | None = None
) -> str:
    """A small table; the first `texts` columns are words. Where it is too wide, keys can move it too."""

    def cells(row: Sequence[str], tag: str) -> str:
        kinds = [' class="text"' if place < texts else "" for place in range(len(row))]
        scope = ' scope="col"' if tag == "th" else ""
        return "".join(
            f"<{tag}{scope}{kind}>{escape(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    own = ' class="own"'
    body = "".join(f"<tr{own if place == bold else ''}>{cells(row, 'td')}</tr>" for place, row in enumerate(rows))
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}">'
        f"<table><thead><tr>{cells(head, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _certificate(facts: Facts) -> str:
    told = f"<p>{escape(VERIFYING)}</p><pre><code>{escape(facts.command)}</code></pre>"
    if facts.certificate is None:
        return told + f"<p>{escape(facts.uncertified)}</p>"
    content = base64.b64encode(facts.certificate.encode()).decode()
    # What is taken along is as it was written; what is shown has nothing in it that nobody sees.
    shown = "\n".join(map(printable, facts.certificate.split("\n")))
    name = escape(facts.certificate_name)
    return (
        f"{told}{_pairs(facts.sealed)}"
        f'<p><a class="button" id="download" download="{name}" href="data:application/json;base64,{content}">'
        f"Download the certificate</a></p><details><summary>{name}</summary>"
        f'<pre tabindex="0"><code>{escape(shown)}</code></pre></details>'
    )
