"""The released rows as a page can hold them: texts and rounded numbers, the largest counts first."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from dphist.display import printable
from dphist.planning.utility import half_width
from dphist.privacy.types import Plan
from dphist.releasing.request import count_column
from dphist.report.meaning import Meaning, meaning_of
from dphist.report.sentences import figure

# An item may be as long as a book; the release itself has it in full.
LONGEST: Final = 300
SHARE: Final = 0.95
# What looks like another item, or like none: in quotation marks, and again if it has them already.
_MISTAKEN: Final = re.compile(r'^"*\((?:missing|empty)\)"*$|^[ \u3000]|[ \u3000]$')
Kind = Literal["text", "number"]


@dataclass(frozen=True)
class Column:
    """One column: texts (None where an item is missing), or numbers rounded to `digits`."""

    name: str
    kind: Kind
    values: tuple[Any, ...]
    digits: int = 0
    by_number: bool = False

    def texts(self, first: int) -> list[str]:
        """The first rows for people."""
        if self.kind == "text":
            return [told(value) for value in self.values[:first]]
        return [f"{value:,.{self.digits}f}" for value in self.values[:first]]


@dataclass(frozen=True)
class Rows:
    """All released rows in columns, and what must be known of them.

    `width` is half an interval around each count, where the release has none and there can be one.
    """

    columns: tuple[Column, ...]
    items: tuple[str, ...]
    count: str
    total: int
    width: float | None
    share: float
    cut: bool
    note: str = ""
    # The ends of intervals that the release has itself.
    own_ends: tuple[str, ...] = ()

    @property
    def intervals(self) -> tuple[str, str]:
        """Names of the columns that are made of the count and `width`."""
        return f"low ({100 * self.share:g} %)", f"high ({100 * self.share:g} %)"

    @property
    def notes(self) -> list[str]:
        """What the counts and the intervals are."""
        found = [self.note] if self.note else []
        if self.width is not None:
            found.append(
                f"The interval is the count ± {figure(self.width)}: noise stays within it with "
                f"{100 * self.share:g} %."
            )
        if self.own_ends:
            low, high = self.own_ends[:2]
            found.append(
                f"{low} and {high} are the ends of an interval of {100 * self.share:g} % around each count: noise "
                "stays within it with that probability."
            )
        return found


def rows_of(table: Any, plan: Plan, request: Mapping[str, Any]) -> tuple[Rows, Meaning]:
    """The rows of a release, a table of Arrow, and what the counts are."""
    name = count_column(request, table)
    place = table.column_names.index(name)
    counts = np.asarray(table.column(place).to_pylist(), dtype=np.float64)
    ordered = table.take(np.argsort(-counts, kind="stable")) if table.num_rows else table
    digits = 0 if str(table.schema.field(place).type).startswith("int") else digits_of(plan.total_noise)
    columns, cut, share = [], False, request.get("interval")
    ends = [] if share is None else [f"{name}{end}" for end in ("_low", "_high")]
    of_interval = {f"{one}{end}" for one in table.column_names[place:] for end in ("_low", "_high")}
    for index, title in enumerate(ordered.column_names):
        column = ordered.column(index)
        if index < place:
            made, was_cut = _text_column(printable(title), column)
            cut = cut or was_cut
        else:
            near = title == name or title.removeprefix(name) in ("_low", "_high", "_standard_error")
            level = f" ({100 * float(share):g} %)" if share is not None and title in of_interval else ""
            made = _number_column(printable(title) + level, column, digits if near else None)
        columns.append(made)
    items = tuple(map(printable, table.column_names[:place]))
    meaning = meaning_of(plan, request, items)
    width = half_width(plan, SHARE) + (0.5 if request.get("round") is True else 0.0)
    return Rows(
        tuple(columns), items, printable(name), table.num_rows,
        width if share is None and meaning.intervals else None, SHARE if share is None else float(share), cut,
        meaning.note, tuple(printable(end) for end in ends if end in table.column_names),
    ), meaning  # fmt: skip


def told(item: str | None) -> str:
    """An item as people see it: one that is empty, or begins or ends with a space, is not taken for another."""
    if item is None or item == "":
        return "(missing)" if item is None else "(empty)"
    return f'"{item}"' if _MISTAKEN.search(item) else item


def digits_of(spread: float) -> int:
    """No more digits than the noise leaves."""
    return max(0, 1 - math.floor(math.log10(spread)))


def _text_column(name: str, column: Any) -> tuple[Column, bool]:
    texts = [None if text is None else clean(text) for text in _texts(column)]
    cut = any(text is not None and len(text) > LONGEST for text in texts)
    short = tuple(text if text is None or len(text) <= LONGEST else text[:LONGEST] + "…" for text in texts)
    kind = str(column.type)
    return Column(
        name, "text", short, by_number=kind.startswith(("int", "uint", "float", "double", "decimal"))
    ), cut


def _texts(column: Any) -> list[str | None]:
    import pyarrow as pa

    try:
        found: list[str | None] = column.cast(pa.string()).to_pylist()
        return found
    except (pa.ArrowException, ValueError):
        pass
    try:
        return [None if value is None else str(value) for value in column.to_pylist()]
    except (OverflowError, ValueError):  # a time that Python cannot hold
        return ["?"] * len(column)


def _number_column(name: str, column: Any, digits: int | None) -> Column:
    numbers = [float(value) if value is not None else math.nan for value in column.to_pylist()]
    if digits is None:
        largest = max((abs(number) for number in numbers if math.isfinite(number)), default=1.0)
        digits = min(6, max(0, 4 - math.ceil(math.log10(max(largest, 1e-6)))))
    rounded = tuple(int(n) if digits == 0 and math.isfinite(n) else n for n in (round(n, digits) for n in numbers))
    return Column(name, "number", rounded, digits)


def clean(text: str) -> str:
    """A text that UTF-8 can hold: halves of surrogate pairs, from the names of files, are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()
