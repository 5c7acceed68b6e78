"""Public counts uploaded as CSV: one column of counts, item and count, or a header that names `count`."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Final

from dphist.explore.fields import WrongField
from dphist.explore.guard import LARGEST_UPLOAD

MOST_ITEMS: Final = 10**6
_LARGEST_COUNT: Final = 10**12
_WHOLE: Final = re.compile(r"\d{1,13}", re.ASCII)
_DECIMAL: Final = re.compile(r"\d{1,13}(\.\d+)?", re.ASCII)
# With a comma in it a number is refused, but it is seen to be one.
_LIKE_A_NUMBER: Final = re.compile(r"\d[\d.,]*", re.ASCII)
# Text in UTF-8 has none of these: control characters, halves of characters.
_NOT_TEXT: Final = re.compile(r"[\x00-\x08\x0e-\x1f\ud800-\udfff]")


@dataclass(frozen=True)
class Upload:
    """The counts of a file, their items, and how many of the counts were rounded to whole numbers."""

    items: tuple[str, ...]
    counts: list[int]
    rounded: int


def read_counts(text: object) -> Upload:
    """The counts of a CSV text; an error is one sentence that names the line."""
    if not isinstance(text, str) or _NOT_TEXT.search(text):
        raise _wrong("the file is not text in UTF-8: save a spreadsheet or a table as CSV first")
    if len(text.encode()) > LARGEST_UPLOAD:
        raise _wrong(f"the file is larger than {LARGEST_UPLOAD // 1024**2} MB")
    try:
        rows = _split(text.removeprefix("\ufeff"))
    except csv.Error as error:
        raise _wrong(f"the file is not CSV: {error}") from None
    has_header, named, place = _header(rows[0][1]) if rows else (False, False, 0)
    width = len(rows[0][1]) if rows else 1
    if has_header:
        rows = rows[1:]
    if len(rows) > MOST_ITEMS:
        raise _wrong(f"the file has more than {MOST_ITEMS:,} items")
    if not named and width > 2:
        raise _wrong(f"line 1 has {width} columns: use one count, or item,count, or a header that names `count`")
    items, counts, rounded = [], [], 0
    for line, row in rows:
        if len(row) != width:
            raise _wrong(f"line {line} has {len(row)} columns, but the first line has {width}")
        count = row[place].strip()
        # A column of that name may come from a release, whose counts have decimals.
        if not (_DECIMAL if named else _WHOLE).fullmatch(count) or float(count) > _LARGEST_COUNT:
            kind = "number" if named else "whole number"
            raise _wrong(f"line {line}: {count[:40]!r} is not a {kind} from 0 to {_LARGEST_COUNT:,}")
        whole = round(float(count))
        rounded += whole != float(count)
        counts.append(whole)
        items.append(str(line) if width == 1 else row[0 if place else 1].strip()[:60])
    if not any(counts):
        raise _wrong("the file has no count above 0: enter one whole number per line, or item,count")
    return Upload(tuple(items), counts, rounded)


def _split(text: str) -> list[tuple[int, list[str]]]:
    """The rows that are not empty, with their numbers, by the separator that leaves numbers as counts.

    A comma is tried last: "bread;1,5" is refused rather than misread.
    """
    rows: list[tuple[int, list[str]]] = []
    for separator in ("\t", ";", ","):
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        rows = [(number, row) for number, row in enumerate(reader, start=1) if row]
        if rows and len(rows[0][1]) > 1:
            _, _, place = _header(rows[0][1])
            if any(len(row) > place and _LIKE_A_NUMBER.fullmatch(row[place].strip()) for _, row in rows[:20]):
                break
    return rows


def _header(first: list[str]) -> tuple[bool, bool, int]:
    """Whether the first row is a header, whether it names a column `count`, and where the counts are."""
    words = [cell.strip().lower() for cell in first]
    is_header = not any(character.isdigit() for character in words[-1])
    # In a row of two, an item may be called so.
    if "count" in words and (is_header or len(words) > 2):
        return True, True, words.index("count")
    return is_header, False, len(words) - 1


def _wrong(sentence: str) -> WrongField:
    return WrongField("csv", sentence)
