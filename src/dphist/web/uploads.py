"""Counts that somebody uploads: public or made up, one column of whole numbers, or item and count.

A table of more columns, such as a release, has a header that names the column `count`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final

import numpy as np

from dphist.simulation.trial import MOST_ITEMS, TrialData, given_population
from dphist.web.fields import WrongField

MOST_BYTES: Final = 5 * 1024 * 1024
LARGEST_COUNT: Final = 10**12
_FIELD: Final = "csv"
_SEPARATORS: Final = ("\t", ";", ",")
_SAMPLE: Final = 20
_WHOLE: Final = re.compile(r"\d{1,13}", re.ASCII)
_DECIMAL: Final = re.compile(r"\d{1,13}(\.\d+)?", re.ASCII)
# With a comma in it a number is refused, but it is seen to be one.
_LIKE_A_NUMBER: Final = re.compile(r"\d[\d.,]*", re.ASCII)
# What no text has, and files of other kinds have at their very beginning.
_BINARY: Final = re.compile(r"[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Upload:
    """The counts of a file, and how many of them were rounded to whole numbers."""

    data: TrialData
    rounded: int


@dataclass(frozen=True)
class _Named:
    """Where a header says that the count is, and so the item, if there is one."""

    width: int
    item: int | None
    count: int


def upload_from(text: object) -> Upload:
    """The counts of a CSV text, or one sentence that says what is wrong and in which line."""
    text = _checked(text)
    counts: list[int] = []
    names: list[str] = []
    rounded = 0
    try:
        rows = _rows(text, _separator(text))
        first = next(rows, (1, [""]))
        named = _named(first[1])
        for number, row in rows if named or _is_header(first[1]) else chain([first], rows):
            name, count = _line(row, number, named)
            whole = round(count)
            counts.append(whole)
            names.append(name)
            rounded += whole != count
            if len(counts) > MOST_ITEMS:
                raise WrongField(_FIELD, f"the file has more than {MOST_ITEMS:,} items")
    except csv.Error as error:
        raise WrongField(_FIELD, f"the file is no CSV: {error}") from None
    if not counts:
        raise WrongField(_FIELD, "the file has no counts: give one whole number a line, or item,count")
    if not any(counts):
        raise WrongField(_FIELD, "the file has no count above 0: there is nothing to release")
    return Upload(given_population(np.array(counts, dtype=np.int64), tuple(names)), rounded)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise WrongField(_FIELD, "the uploaded counts must be text")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        raise WrongField(
            _FIELD, f"line {line} has half a character (a lone surrogate): no text has that"
        ) from None
    if size > MOST_BYTES:
        raise WrongField(_FIELD, f"the file is larger than {MOST_BYTES // 1024**2} MB")
    if _BINARY.search(text):
        raise WrongField(_FIELD, "the file is no text in UTF-8: save a spreadsheet or a table as CSV first")
    return text.removeprefix("\ufeff")


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not empty, with their numbers."""
    found = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    return ((number, row) for number, row in enumerate(found, start=1) if row)


def _separator(text: str) -> str:
    """What parts the first line and leaves a number where a count should be; a comma where nothing does.

    A comma comes last: in "bread;1,5" it is taken for that of a number, which is then refused, not misread.
    """
    for separator in _SEPARATORS:
        sample = [row for _, row in islice(_rows(text, separator), _SAMPLE)]
        if not sample or len(sample[0]) < 2:
            continue
        named = _named(sample[0])
        place = named.count if named else len(sample[0]) - 1
        if any(len(row) > place and _LIKE_A_NUMBER.fullmatch(row[place].strip()) for row in sample):
            return separator
    return ","


def _is_header(first: list[str]) -> bool:
    return not any(ch.isdigit() for ch in first[-1])


def _named(first: list[str]) -> _Named | None:
    """The columns of a header that names `count`; in a line of two, an item may have that name."""
    words = [cell.strip().lower() for cell in first]
    if "count" not in words or not (_is_header(first) or len(words) > 2):
        return None
    count = words.index("count")
    return _Named(len(words), None if len(words) == 1 else int(count == 0), count)


def _line(row: list[str], number: int, named: _Named | None) -> tuple[str, float]:
    if named is not None and len(row) != named.width:
        raise WrongField(_FIELD, f"line {number} has {len(row)} columns, and the header has {named.width}")
    if named is None and len(row) > 2:
        expected = "expected is one count, or item,count, or a header that names the column count"
        raise WrongField(_FIELD, f"line {number} has {len(row)} columns: {expected}")
    item, place = (0 if len(row) == 2 else None, -1) if named is None else (named.item, named.count)
    text = row[place].strip()
    # A column that is called so may be that of a release, which has decimals; it is said that they are rounded.
    if not (_WHOLE if named is None else _DECIMAL).fullmatch(text) or float(text) > LARGEST_COUNT:
        kind = "whole number" if named is None else "number"
        raise WrongField(_FIELD, f"line {number}: {text[:40]!r} is no {kind} from 0 to {LARGEST_COUNT:,}")
    return (str(number) if item is None else row[item].strip()[:60]), float(text)
