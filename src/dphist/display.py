"""How results look: tables as text and HTML, and text of others made safe to print."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

# The one look of results in notebooks: plain tables with a caption, in whatever colours the notebook has.


def html_table(caption: str, rows: Iterable[tuple[str, str]], *, warning: str = "") -> str:
    """A small table of labels and values. A warning stands before the caption, and is not to be missed."""
    body = "".join(f"<tr><th scope='row'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{_caption(caption, warning)}<tbody>{body}</tbody></table>"


def html_grid(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, warning: str = "") -> str:
    """A table with names above its columns, and a warning before the caption as above."""
    top = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{_caption(caption, warning)}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _caption(caption: str, warning: str) -> str:
    loud = f"<strong>{escape(warning)}</strong><br>" if warning else ""
    return f"<caption>{loud}{escape(caption)}</caption>"


def text_table(rows: Sequence[tuple[str, str]]) -> str:
    """Labels and values in two columns."""
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def text_grid(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Columns under their names; the first `left` of them are texts, the others numbers."""
    table = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def printable(text: str) -> str:
    """A text that cannot move the cursor of a terminal, turn the direction of a line or fail to be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def raised(number: float, digits: int = 3) -> str:
    """An upper bound in so many digits, the last of them rounded up."""
    near = f"{number:.{digits}g}"
    if number == 0.0 or float(near) >= number * (1.0 - 1e-12):
        return near
    return f"{number + 10.0 ** (math.floor(math.log10(number)) + 1 - digits):.{digits}g}"
