"""Tables as plain text and HTML, numbers for people, and escaping of text from the data."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from typing import ClassVar, Protocol


class _WithRows(Protocol):
    @property
    def title(self) -> str: ...
    def rows(self) -> Sequence[tuple[str, str]]: ...


class _WithCells(Protocol):
    texts: ClassVar[int]

    @property
    def title(self) -> str: ...
    @property
    def columns(self) -> Sequence[str]: ...
    def cells(self) -> Sequence[Sequence[str]]: ...


class Listing:
    """A result with `rows` of labels and values: as text and, in notebooks, as a table with its `title`."""

    def __str__(self: _WithRows) -> str:
        return text_table(self.rows())

    def _repr_html_(self: _WithRows) -> str:
        return html_table(self.title, self.rows())


class Grid:
    """A result with a `title` and `cells` below its `columns`, of which the first `texts` are not numbers."""

    texts: ClassVar[int] = 1

    def __str__(self: _WithCells) -> str:
        cells = self.cells()
        return f"{self.title}\n\n{text_grid(self.columns, cells, left=self.texts)}" if cells else self.title

    def _repr_html_(self: _WithCells) -> str:
        return html_grid(self.title, self.columns, self.cells())


def html_table(caption: str, rows: Iterable[tuple[str, str]], *, warning: str = "") -> str:
    body = "".join(f"<tr><th scope='row'>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{_caption(caption, warning)}<tbody>{body}</tbody></table>"


def html_grid(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, warning: str = "") -> str:
    top = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{_caption(caption, warning)}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _caption(caption: str, warning: str) -> str:
    loud = f"<strong>{escape(warning)}</strong><br>" if warning else ""
    return f"<caption>{loud}{escape(caption)}</caption>"


def text_table(rows: Sequence[tuple[str, str]]) -> str:
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join(f"{label:<{width}}  {value}" for label, value in rows)


def text_grid(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """A table whose first `left` columns are texts, aligned left, and the others numbers."""
    table = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    )


def fill(text: str, label: str = "") -> str:
    """Wrap at 100 characters; the text after a label is indented by its width."""
    return textwrap.fill(
        text, 100, initial_indent=label, subsequent_indent=" " * len(label), break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def printable(text: str) -> str:
    """Escape characters that move the cursor, change the direction of a line or cannot be encoded."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def shorten(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def upper_figure(number: float, digits: int = 3) -> str:
    """An upper bound with this number of significant digits, rounded up."""
    rounded = f"{number:.{digits}g}"
    if number == 0.0 or float(rounded) >= number * (1.0 - 1e-12):
        return rounded
    return f"{number + 10.0 ** (math.floor(math.log10(number)) + 1 - digits):.{digits}g}"


def figure(number: float) -> str:
    """Four significant digits; whole numbers from 1,000 to 1e15."""
    if number != 0.0 and not 1e-4 <= abs(number) < 1e15:
        return f"{number:.4g}"
    return f"{number:,.0f}" if abs(number) >= 1000.0 else f"{number:z.4g}"


def plain_number(number: float) -> str:
    """The shortest decimal that parses to this number: 1, 0.5, 1e-6."""
    text = repr(float(number))
    digits, exponent, power = text.removesuffix(".0").partition("e")
    return f"{digits.removesuffix('.0')}e{int(power)}" if exponent else digits


def count_items(number: int) -> str:
    return "1 item" if number == 1 else f"{number:,} items"


def join_words(words: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), *words[-1:]])
