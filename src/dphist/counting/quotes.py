"""Refuse CSV files whose rows cannot be told apart.

A quote that is not closed makes a reader swallow the rows of others. DuckDB loses the rest of a file after a
quoted row that does not fit in its buffer, and counts empty lines towards the length of the row after them, which
it skips if that is too long. A file is read only if no row of it can do this:

- the quotes are as in RFC 4180: around whole fields, doubled inside them. A row with an odd number of quotes is
  always found, because all other rows have an even number;
- or no quoted field has a line break. Quotes inside unquoted fields and spaces after quotes then affect no other
  line;
- no row with quotes is longer than `LONGEST_ROW`;
- empty lines in succession are shorter than `EMPTY`, and no row is so close to `SKIPPED` that they would matter.

Guarantee: rows of an accepted file are read independently of each other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.counting.workspace import attempt
from dphist.errors import InputError

# DuckDB skips longer rows. It does so reliably up to the size of its buffer, of which `LONGEST_ROW` is half.
SKIPPED: Final = 2 << 20
LONGEST_ROW: Final = 16 << 20
BUFFER: Final = 2 * LONGEST_ROW
EMPTY: Final = 1 << 16
# Smaller than a row that DuckDB skips, so that each such row begins before the block in which it ends.
BLOCK: Final = 1 << 20
QUOTE, LINE_FEED, RETURN = b'"\n\r'
BREAKS: Final = b"\n\r"
NO_QUOTES: Final = np.empty(0, np.int64)
UNREADABLE: Final = (
    "the file {path!r} cannot be read: {reason}, so its rows cannot be told apart; write it with a CSV library, "
    "or as Parquet"
)
LONG: Final = f"a row with quotes is longer than {LONGEST_ROW >> 20} MB"
CLOSE: Final = f"a row has nearly the {SKIPPED >> 20} MB from which rows are skipped"
GAP: Final = f"it has {EMPTY >> 11} KB of empty lines or more in succession"
WRONG: Final = "it has quotes that are misplaced or not closed"


CODECS: Final[dict[str, Literal["gzip", "zstd"]]] = {".gz": "gzip", ".zst": "zstd"}


def open_text(path: str) -> pa.NativeFile:
    """A stream of the bytes of a file, unpacked if DuckDB unpacks it, which also goes by the ending."""
    file, ending = pa.OSFile(path, "r"), os.path.splitext(path.lower())[1]
    return pa.CompressedInputStream(file, CODECS[ending]) if ending in CODECS else file


def check_quotes(files: Sequence[str], delimiter: str) -> None:
    """Raise `InputError` unless the rows of each CSV file, compressed or not, can be told apart."""
    for path in files:
        # The second reading is for files with misplaced quotes only.
        for check in (has_strict_quotes, has_quotes_within_lines):
            if attempt(partial(check_file, path, check, delimiter), f"the file {path!r}"):
                break
        else:
            raise InputError(UNREADABLE.format(path=path, reason=WRONG))


def check_file(path: str, check: Callable[[Iterator[bytes], bytes], bool], delimiter: str) -> bool:
    with open_text(path) as stream:
        try:
            return check(read_blocks(stream), delimiter.encode())
        except Mixed as found:
            reason = str(found)
    raise InputError(UNREADABLE.format(path=path, reason=reason))


class Mixed(Exception):
    """Why a row could change how others are read."""


def read_blocks(stream: pa.NativeFile) -> Iterator[bytes]:
    """The text in blocks, without a byte order mark. Raises `Mixed` for too many empty lines."""
    block = stream.read(BLOCK).removeprefix(b"\xef\xbb\xbf")
    before = b""
    while block:
        before = (before + block)[-len(block) - EMPTY :]
        # Any run of `EMPTY` line breaks covers one of these windows.
        half = EMPTY // 2
        for start in range(0, len(before) - half + 1, half):
            if before[start] in BREAKS and not before[start : start + half].strip(BREAKS):
                raise Mixed(GAP)
        yield block
        before = before[-EMPTY:]
        block = stream.read(BLOCK)


def check_length(row: int, quoted: bool) -> None:
    """Raise `Mixed` for a row of this length that could change how others are read."""
    if row > LONGEST_ROW and quoted:
        raise Mixed(LONG)
    if SKIPPED - EMPTY < row < SKIPPED + len(b"\r\n\r\n"):
        raise Mixed(CLOSE)


def has_strict_quotes(blocks: Iterator[bytes], delimiter: bytes) -> bool:
    """Whether all quotes are as in RFC 4180. Raises `Mixed`."""
    outside = np.zeros(256, dtype=bool)
    outside[[QUOTE, LINE_FEED, RETURN, *delimiter]] = True
    before = b"\n"  # the last byte of the block before
    is_open = False  # a quote, at the end of the block before
    row, quoted = 0, False  # bytes of the unfinished row, and whether it has a quote
    for block in blocks:
        found = NO_QUOTES
        if QUOTE in block or before == b'"':
            cells = np.frombuffer(before + block, np.uint8)
            quotes = np.flatnonzero(cells == QUOTE)
            # Not the quote before the block: it was counted, but what follows it was not seen.
            found = quotes[1:] if before == b'"' else quotes
            opening, closing_quotes = found[is_open::2], found[1 - is_open :: 2]
            if not outside[cells[opening - 1]].all():
                return False
            after = closing_quotes + 1
            if not outside[cells[after[after < len(cells)]]].all():
                return False
            if before == b'"' and not is_open and not outside[cells[1]]:
                return False
        ends = row_ends(block, found - 1, is_open)
        if ends is None:
            row, quoted = row + len(block), quoted or is_open or bool(len(found))
        else:
            first, last = ends
            row += first
            quoted = quoted or is_open or bool(len(found) and found[0] - 1 < first)
        if row > LONGEST_ROW or ends is not None:
            check_length(row, quoted)
        if ends is not None:
            row, quoted = len(block) - last, bool(len(found) and found[-1] - 1 > last)
        is_open ^= bool(len(found) % 2)
        before = block[-1:]
    check_length(row, quoted)
    return not is_open


def row_ends(block: bytes, quotes: NDArray[np.int64], is_open: bool) -> tuple[int, int] | None:
    """The places of the first and the last line break outside quotes."""
    if not len(quotes):
        first = [] if is_open else [place for place in map(block.find, (b"\n", b"\r")) if place >= 0]
        return (min(first), max(map(block.rfind, (b"\n", b"\r")))) if first else None
    cells = np.frombuffer(block, np.uint8)
    breaks = np.flatnonzero((cells == LINE_FEED) | (cells == RETURN))
    breaks = breaks[np.searchsorted(quotes, breaks) % 2 == is_open]
    return (int(breaks[0]), int(breaks[-1])) if len(breaks) else None


def has_quotes_within_lines(blocks: Iterator[bytes], delimiter: bytes) -> bool:
    """Whether each line can be read by itself, with quotes inside unquoted fields and spaces after quotes.

    Raises `Mixed`.
    """
    other = re.escape(delimiter)
    # DuckDB takes a quote after spaces as the first character of a field.
    field = rb'(?:"[^"\r\n]*+(?:""[^"\r\n]*+)*+" *+| *+(?:[^" %b\r\n][^%b\r\n]*+)?+)' % (other, other)
    line = re.compile(rb"%b(?:%b%b)*+(?=[\r\n]|\Z)" % (field, other, field))
    rest = b""
    for block in blocks:
        whole = rest + block
        ends = row_ends(whole, NO_QUOTES, False)
        if ends is not None or len(whole) > LONGEST_ROW:
            check_length(len(whole) if ends is None else ends[0], True)
        end = 0 if ends is None else ends[1] + 1
        if not lines_match(whole[:end], line):
            return False
        rest = whole[end:]
    check_length(len(rest), True)
    return lines_match(rest, line)


def lines_match(text: bytes, line: re.Pattern[bytes]) -> bool:
    """Whether each line with a quote matches."""
    place = text.find(b'"')
    while place >= 0:
        start = max(text.rfind(b"\n", 0, place), text.rfind(b"\r", 0, place)) + 1
        match = line.match(text, start)
        if match is None:
            return False
        place = text.find(b'"', match.end())
    return True
