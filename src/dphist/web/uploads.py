"""Counts that somebody uploads: public or made up, one column of whole numbers, or item and count."""

from __future__ import annotations

import csv
import io
from typing import Final

import numpy as np

from dphist.simulation.trial import MOST_ITEMS, TrialData, given_population
from dphist.web.fields import WrongField

MOST_BYTES: Final = 5 * 1024 * 1024
LARGEST_COUNT: Final = 10**12
_FIELD: Final = "csv"


def population_from(text: object) -> TrialData:
    """The counts of a CSV text, or one sentence that names the line that is wrong."""
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
    counts: list[int] = []
    names: list[str] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline="")), start=1):
            if row and not (number == 1 and _is_header(row)):
                name, count = _line(row, number)
                counts.append(count)
                names.append(name)
            if len(counts) > MOST_ITEMS:
                raise WrongField(_FIELD, f"the file has more than {MOST_ITEMS:,} items")
    except csv.Error as error:
        raise WrongField(_FIELD, f"the file is no CSV: {error}") from None
    if not counts:
        raise WrongField(_FIELD, "the file has no counts: give one whole number a line, or item,count")
    if not any(counts):
        raise WrongField(_FIELD, "the file has no count above 0: there is nothing to release")
    return given_population(np.array(counts, dtype=np.int64), tuple(names))


def _is_header(row: list[str]) -> bool:
    return not row[-1].strip().isdecimal() and not any(ch.isdigit() for ch in row[-1])


def _line(row: list[str], number: int) -> tuple[str, int]:
    if len(row) > 2:
        raise WrongField(_FIELD, f"line {number} has {len(row)} columns: one count, or item,count, is expected")
    text = row[-1].strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 13 or int(text) > LARGEST_COUNT:
        raise WrongField(_FIELD, f"line {number}: {text[:40]!r} is no whole number from 0 to {LARGEST_COUNT:,}")
    return (row[0].strip()[:60] if len(row) == 2 else str(number)), int(text)
