"""The report for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Final

from dphist.display import printable, raised
from dphist.report.facts import Facts
from dphist.report.marks import TEXT
from dphist.report.peers import Peer
from dphist.report.rows import Rows, digits_of
from dphist.report.sentences import CURVE, VERIFYING, figure, percent

_WIDTH: Final = 100
_ROWS: Final = 20
_LONGEST: Final = 60
SIZES_HEAD: Final = ("items of a user", "users, with noise")


def text(facts: Facts) -> str:
    """Plain text, a hundred characters wide; nothing in it can move a cursor."""
    parts = [_title(facts.title), *(_wrapped(f"CAUTION: {one}") for one in facts.cautions)]
    parts += [state(facts).upper() if facts.private else state(facts)]
    # What a count is comes first where it is no number of users.
    parts += [*([_wrapped(facts.rows.note)] if facts.rows.note else []), _wrapped(facts.lead)]
    sections: list[tuple[str, list[str]]] = [
        ("What was released, and from what", [_grid(facts.about)]),
        ("What is promised", [_wrapped(sentence) for sentence in (*facts.promise, exactly(facts))]),
        ("What was verified", [_listed(facts.checks)]),
        ("The numbers of this release", [_numbers(facts)]),
        ("The guarantee for every epsilon", [_wrapped(f"{CURVE} {facts.curve_note}"), _curve(facts)]),
        ("Against other analyses", [_wrapped(facts.peers_note), _peers(facts)]),
        ("What is released, and how far off it is", [*map(_wrapped, facts.selected), *_selection(facts)]),
        *([("How the cap was chosen", [_sizes(facts)])] if facts.sizes else []),
        ("The released counts", [_rows(facts.rows)]),
        *([("Booked in a ledger", [_grid(facts.receipt)])] if facts.receipt else []),
        ("What is not covered", [_listed(facts.uncovered)]),
        ("How to verify it", _verifying(facts)),
    ]
    for title, content in sections:
        parts.append("\n\n".join([_title(title), *content]))
    return "\n\n".join([*parts, TEXT]) + "\n"


def state(facts: Facts) -> str:
    """Whether it can be published, in a few words."""
    if not facts.private:
        return "NOT PRIVATE: the noise was made from a seed. Do not publish this."
    weak = f", with {'a caution' if len(facts.cautions) == 1 else 'cautions'}" if facts.cautions else ""
    if facts.certificate is not None:
        return f"Verified, private{weak}"
    return "Guarantee verified, private" + weak + ("" if facts.written else ", not yet written")


def exactly(facts: Facts) -> str:
    """The guarantee as it stands in the certificate."""
    if facts.private:
        return f"Exactly: {facts.guarantee}"
    return f"Guarantee: none;{facts.guarantee.removeprefix('None:')}"


def _verifying(facts: Facts) -> list[str]:
    known = [_grid(facts.sealed)] if facts.sealed else []
    missing = [_wrapped(facts.uncertified)] if facts.uncertified else []
    return [*known, *missing, _wrapped(VERIFYING), f"  {printable(facts.command)}"]


def _title(title: str) -> str:
    shown = printable(title)
    return f"{shown}\n{'=' * min(_WIDTH, len(shown))}"


def _wrapped(sentence: str) -> str:
    return textwrap.fill(printable(sentence), _WIDTH, break_on_hyphens=False)


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(
        textwrap.fill(printable(one), _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
        for one in sentences
    )


def _grid(pairs: Sequence[tuple[str, str]]) -> str:
    wide = max(len(printable(label)) for label, _ in pairs)
    return "\n".join(f"{printable(label):<{wide}}  {printable(value)}" for label, value in pairs)


def _numbers(facts: Facts) -> str:
    lines = []
    for one in facts.numbers:
        lines.append(f"{printable(one.label)}: {printable(one.value)}")
        lines.append(textwrap.indent(textwrap.fill(printable(one.meaning), _WIDTH - 4), "    "))
    return "\n".join(lines)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int) -> str:
    """Columns side by side; the first `texts` to the left, numbers to the right."""
    wide = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(size) if place < texts else cell.rjust(size)
            for place, (cell, size) in enumerate(zip(row, wide, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def _curve(facts: Facts) -> str:
    step = max(1, (len(facts.curve) - 1) // 10)
    return table(("epsilon", "delta"), [(raised(e, 4), raised(d, 4)) for e, d in facts.curve[::step]], 0)


def peer_rows(facts: Facts) -> list[tuple[str, str, str]]:
    """Each way to count with its noise and its threshold."""

    def shown(peer: Peer) -> str:
        if peer.threshold is None:
            return "none"
        # The threshold of the release itself has the offset in it.
        return ("offset + " if peer.own and facts.plan.releases_offset else "") + figure(peer.threshold)

    return [(peer.label, figure(peer.noise), shown(peer)) for peer in facts.peers]


def _peers(facts: Facts) -> str:
    return table(("way to count", "noise", "threshold"), peer_rows(facts), 1)


def selection_rows(facts: Facts) -> list[tuple[str, str, str, str]]:
    """A few true counts: with which probability they are released, and how far off they are then."""
    found = facts.selection
    if found is None:
        return []
    step, digits = max(1, len(found.counts) // 10), digits_of(facts.plan.total_noise)
    return [
        (f"{count:,}", percent(p), f"{bias:,.{digits}f}", f"{deviation:,.{digits}f}")
        for count, p, bias, deviation in list(
            zip(found.counts, found.probability, found.bias, found.deviation, strict=True)
        )[::step]
        if p >= 1e-4
    ]


def selection_head(facts: Facts) -> tuple[str, str, str, str]:
    """The names of the columns; what is meant by a count differs."""
    found = facts.selection
    axis = "true count" if found is None else found.axis
    return (
        axis,
        "released with" if found is None or found.largest is None else "passes with",
        "too high by",
        "deviation",
    )


def _selection(facts: Facts) -> list[str]:
    rows = selection_rows(facts)
    return [table(selection_head(facts), rows, 0)] if rows else []


def size_rows(facts: Facts) -> list[tuple[str, str]]:
    """All noisy numbers by which a cap was chosen, those below zero too."""
    sizes = facts.sizes
    assert sizes is not None
    return [(label, f"{users:,}") for label, users in zip(sizes.labels, sizes.users, strict=True)]


def _sizes(facts: Facts) -> str:
    sizes = facts.sizes
    assert sizes is not None
    note = f"The cap {sizes.cap:,} was chosen from these numbers, noisy by {figure(sizes.deviation)} each."
    return _wrapped(note) + "\n\n" + table(SIZES_HEAD, size_rows(facts), 1)


def first_rows(rows: Rows, first: int) -> tuple[list[str], list[list[str]], int]:
    """Names of the columns, the first rows as texts, and how many columns are items."""
    names, columns = [], []
    for column in rows.columns:
        names.append(printable(column.name))
        columns.append([_short(cell) for cell in column.texts(first)])
        if column.name == rows.count and rows.width is not None:
            for name, sign in zip(rows.intervals, (-1, 1), strict=True):
                names.append(name)
                columns.append([f"{n + sign * rows.width:,.{column.digits}f}" for n in column.values[:first]])
    return names, [list(row) for row in zip(*columns, strict=True)], len(rows.items)


def _short(cell: str) -> str:
    shown = printable(cell)
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"


def _rows(rows: Rows) -> str:
    names, cells, texts = first_rows(rows, _ROWS)
    if not rows.total:
        return "No count has passed the threshold."
    more = f"\n... and {rows.total - _ROWS:,} more" if rows.total > _ROWS else ""
    notes = "".join(f"{_wrapped(note)}\n\n" for note in rows.notes)
    return notes + table(names, cells, texts) + more
