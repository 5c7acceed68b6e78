"""The report as Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import quote

from dphist.display import printable, raised
from dphist.report.charts import charts_of
from dphist.report.facts import Facts
from dphist.report.marks import MARKDOWN
from dphist.report.sentences import CURVE, VERIFYING
from dphist.report.text import (
    SIZES_HEAD,
    exactly,
    first_rows,
    peer_rows,
    selection_head,
    selection_rows,
    size_rows,
    state,
)

_ROWS: Final = 100
# Whatever could be read as markup: by Markdown, by HTML, as the end of a cell, or as an address to be linked.
_MARKUP: Final = re.compile(r"([\\`*_\[\]#|<>~&$@]|:(?=//)|(?<=www)\.)")


def markdown(facts: Facts, figures: Mapping[str, str]) -> str:
    """Markdown with tables. `figures` are the files of charts by their names; without one a chart is its words."""
    words = {chart.name: (chart.title, chart.words) for chart in charts_of(facts)}

    def picture(name: str) -> list[str]:
        if name not in words:
            return []
        title, said = words[name]
        linked = (
            [f"![{_plain(title)}: {_plain(said)}](<{quote(os.fsencode(figures[name]))}>)"]
            if name in figures
            else []
        )
        return [*linked, _plain(said)]

    parts = [f"# {_plain(facts.title)}", *(f"**Caution:** {_plain(one)}" for one in facts.cautions)]
    parts.append(f"**{_plain(state(facts))}**")
    # What a count is comes first where it is no number of users.
    parts += [*([_plain(facts.rows.note)] if facts.rows.note else []), _plain(facts.lead)]
    parts += ["## What was released, and from what", _table(("", ""), facts.about)]
    parts += ["## What is promised", *map(_plain, facts.promise), _plain(exactly(facts))]
    parts += ["## What was verified", _listed(facts.checks)]
    numbers = [(one.label, one.value, one.meaning) for one in facts.numbers]
    parts += ["## The numbers of this release", _table(("number", "value", "what it means"), numbers)]
    parts += ["## The guarantee for every epsilon", _plain(f"{CURVE} {facts.curve_note}"), *picture("guarantee")]
    step = max(1, (len(facts.curve) - 1) // 10)
    parts.append(_table(("epsilon", "delta"), [(raised(e, 4), raised(d, 4)) for e, d in facts.curve[::step]], 0))
    parts += ["## Against other analyses", _plain(facts.peers_note), *picture("threshold"), *picture("noise")]
    parts.append(_table(("way to count", "noise", "threshold"), peer_rows(facts), 1))
    parts += ["## What is released, and how far off it is", *map(_plain, facts.selected)]
    parts += [*picture("release"), *picture("error")]
    selected = selection_rows(facts)
    if selected:
        parts.append(_table(selection_head(facts), selected, 0))
    if facts.sizes is not None:
        parts += ["## How the cap was chosen", *picture("sizes"), _table(SIZES_HEAD, size_rows(facts), 1)]
    parts += ["## The released counts", _rows(facts)]
    if facts.receipt:
        parts += ["## Booked in a ledger", _table(("", ""), facts.receipt)]
    parts += ["## What is not covered", _listed(facts.uncovered)]
    parts += ["## How to verify it", *([_table(("", ""), facts.sealed)] if facts.sealed else [])]
    parts += [
        *([_plain(facts.uncertified)] if facts.uncertified else []),
        _plain(VERIFYING),
        f"```sh\n{printable(facts.command)}\n```",
    ]
    return "\n\n".join([*parts, MARKDOWN]) + "\n"


def _plain(text: str) -> str:
    """A text that stays one."""
    return _MARKUP.sub(r"\\\1", printable(text))


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(sentence)}" for sentence in sentences)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int | None = None) -> str:
    """The first `texts` columns, or all, are words; the others numbers, to the right."""
    words = len(head) if texts is None else texts
    rule = ["---" if place < words else "---:" for place in range(len(head))]
    lines = [list(map(_plain, head)), rule, *(list(map(_plain, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows(facts: Facts) -> str:
    names, cells, texts = first_rows(facts.rows, _ROWS)
    if not facts.rows.total:
        return "No count has passed the threshold."
    more = facts.rows.total - _ROWS
    notes = "".join(f"{_plain(note)}\n\n" for note in facts.rows.notes)
    return (
        notes
        + _table(names, cells, texts)
        + (f"\n\nand {more:,} more, in the release itself." if more > 0 else "")
    )
