"""The lines of a CSV file, for `dphist check`: which of them a release cannot read, and which it reads wrongly.

NOT PRIVATE: line numbers and examples are those of the data.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Final, cast

from dphist.counting.encodings import UNREADABLE
from dphist.counting.quotes import open_text

_SHOWN: Final = 5
_EXAMPLE: Final = 40
_LONGEST: Final = 1 << 25
_HEAD: Final = 1 << 12
_NOT_TEXT: Final = re.compile(r"[\udc80-\udcff]")
# The bytes that windows-1252 does not use.
_NOT_IN_WINDOWS: Final = frozenset(b"\x81\x8d\x8f\x90\x9d")


@dataclass
class Places:
    """How often something was found, where first, and an example."""

    number: int = 0
    first: list[str] = field(default_factory=list)
    example: str = ""

    def add(self, place: str, example: str = "") -> None:
        self.number += 1
        if len(self.first) < _SHOWN:
            self.first.append(place)
            self.example = self.example or example

    @property
    def words(self) -> str:
        """Such as `lines 2, 7 and 9`, or `line 2, ...` if there are more."""
        more = ", ..." if self.number > len(self.first) else ""
        return f"line{'s' if self.number > 1 else ''} {', '.join(self.first)}{more}"


@dataclass
class Lines:
    """What was found in the lines of CSV files.

    `rows` are those that a reader of RFC 4180 finds, without headers. `encoding` is what the files look like, if
    that is not how they are read. `not_json` is for JSON lines. `swallowed` are quoted values whose lines look
    like rows, which are `swallowed_rows` in total; `misplaced` are quotes that are misplaced or not closed.
    """

    rows: int = 0
    encoding: str = ""
    not_text: Places = field(default_factory=Places)
    not_json: Places = field(default_factory=Places)
    too_few: Places = field(default_factory=Places)
    too_many: Places = field(default_factory=Places)
    misplaced: Places = field(default_factory=Places)
    swallowed: Places = field(default_factory=Places)
    swallowed_rows: int = 0
    # The bytes that are not UTF-8; in a file of another encoding, lines that are not ASCII, and those in UTF-8.
    strange: set[int] = field(default_factory=set)
    not_ascii: int = 0
    as_utf8: int = 0


def encoding_of_head(path: str) -> str:
    """UTF-16 or UTF-8, if a file begins like that; nothing if it is neither."""
    with open_text(path) as stream:
        head = bytes(stream.read(_HEAD))
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    for name, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if len(zeros) > 8 and zeros.count(0) > 0.7 * len(zeros):
            return name
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return ""
    return "utf-8"


def lines_of(path: str, codec: str) -> Iterator[str]:
    """The lines of a file without their ends, at most 32 MB of each at a time."""
    errors = "surrogateescape" if codec == "utf-8" else UNREADABLE
    with io.TextIOWrapper(cast("IO[bytes]", open_text(path)), codec, errors, newline=None) as text:
        first = True
        while line := text.readline(_LONGEST):
            yield line.rstrip("\n").removeprefix("\ufeff") if first else line.rstrip("\n")
            first = False


def scan_lines(paths: Sequence[str], codec: str, delimiter: str, columns: Mapping[str, int]) -> Lines:
    """Look at every line of files with this number of columns each."""
    found = Lines()
    for path in paths:
        prefix = f"{os.path.basename(path)}:" if len(paths) > 1 else ""
        _Scan(found, codec, delimiter, columns[path], prefix).read(path)
    if codec == "utf-8" and found.not_text.number:
        found.encoding = _guess(found.strange)
        found.not_text.example = found.not_text.example.encode("utf-8", "surrogateescape").decode(
            found.encoding, "replace"
        )
    elif (
        codec not in ("utf-8", "ascii") and not codec.startswith("utf-16") and found.not_ascii == found.as_utf8 > 0
    ):
        found.encoding = "utf-8"
    return found


def scan_json_lines(paths: Sequence[str]) -> Lines:
    """Which lines are not objects in JSON."""
    found = Lines()
    for path in paths:
        prefix = f"{os.path.basename(path)}:" if len(paths) > 1 else ""
        for number, line in enumerate(lines_of(path, "utf-8"), 1):
            if line.strip():
                found.rows += 1
                try:
                    valid = isinstance(json.loads(line), dict) and not _NOT_TEXT.search(line)
                except (ValueError, RecursionError):
                    valid = False
                if not valid:
                    found.not_json.add(f"{prefix}{number}")
    return found


def _guess(strange: set[int]) -> str:
    """The encoding of bytes that are not UTF-8: Latin-1, Windows' variant with more characters, or that of DOS."""
    if min(strange) >= 0xA0:
        return "latin-1"
    return "cp850" if strange & _NOT_IN_WINDOWS else "windows-1252"


class _Scan:
    """One file: a quoted value may go on over several lines."""

    def __init__(self, found: Lines, codec: str, delimiter: str, columns: int, prefix: str) -> None:
        self.found, self.codec, self.columns, self.prefix = found, codec, columns, prefix
        self.delimiter, other = delimiter, re.escape(delimiter)
        # Quotes inside unquoted fields and spaces after quotes are accepted, as by `quotes`.
        value = rf'(?:"[^"]*+(?:""[^"]*+)*+" *+| *+(?:[^" {other}][^{other}]*+)?+)'
        inside = r'[^"]*+(?:""[^"]*+)*+'
        self.complete = re.compile(rf"{value}(?:{other}{value})*+")
        self.opens = re.compile(rf'(?:{value}{other})*+"{inside}')
        self.between = re.compile(rf'"[^"{other}]*+{other}[^"]*+"')
        self.stays = re.compile(inside)
        self.closes = re.compile(rf'{inside}" *+(?:{other}{value})*+')
        self.reopens = re.compile(rf'{inside}" *+(?:{other}(?!"{inside}\Z){value})*+{other}"{inside}')
        self.start = 0  # the line in which a quote was opened
        self.inner: list[bool] = []  # whether the lines after it look like rows
        self.header = True

    def read(self, path: str) -> None:
        for number, line in enumerate(lines_of(path, self.codec), 1):
            if not line.isascii():
                self._encoding(number, line)
            if self.start:
                self._within(number, line)
            elif line:
                self._row(number, line)
        if self.start:
            self.found.misplaced.add(f"{self.prefix}{self.start}")

    def _encoding(self, number: int, line: str) -> None:
        found = self.found
        if _NOT_TEXT.search(line):
            found.not_text.add(f"{self.prefix}{number}", self._example(line))
            if self.codec == "utf-8":
                found.strange.update(ord(character) - 0xDC00 for character in _NOT_TEXT.findall(line))
        elif self.codec != "utf-8":
            found.not_ascii += 1
            with suppress(UnicodeError):
                line.encode(self.codec).decode("utf-8")
                found.as_utf8 += 1

    def _example(self, line: str) -> str:
        """The field with what is not text."""
        parts = [part for part in line.split(self.delimiter) if _NOT_TEXT.search(part)]
        return (parts or [line])[0].strip(' "')[:_EXAMPLE]

    def _row(self, number: int, line: str) -> None:
        if '"' not in line:
            self._fields(number, line.count(self.delimiter) + 1, line)
        elif self.complete.fullmatch(line):
            fields = line.count(self.delimiter) + 1
            if fields != self.columns or self.between.search(line):  # perhaps some are in quotes
                fields = len(next(csv.reader([line], delimiter=self.delimiter), []))
            self._fields(number, fields, line)
        elif self.opens.fullmatch(line):
            self.start, self.inner = number, []
        else:
            self.found.misplaced.add(f"{self.prefix}{number}", line[:_EXAMPLE])
            self._count()

    def _fields(self, number: int, fields: int, line: str) -> None:
        if not self.header and fields < self.columns:
            self.found.too_few.add(f"{self.prefix}{number}")
        # Empty fields at the end are harmless.
        elif not self.header and fields - self.columns > len(line) - len(line.rstrip(self.delimiter)):
            self.found.too_many.add(f"{self.prefix}{number}", line[:_EXAMPLE])
        self._count()

    def _count(self) -> None:
        self.found.rows += not self.header
        self.header = False

    def _within(self, number: int, line: str) -> None:
        self.inner.append(line.count(self.delimiter) == self.columns - 1 > 0)
        if self.stays.fullmatch(line):
            return
        if self.closes.fullmatch(line):
            self._close(number)
            self._count()
        elif self.reopens.fullmatch(line):
            self._close(number)
            self.start, self.inner = number, []
        else:
            # The quote before was not closed: this line is a row.
            self.found.misplaced.add(f"{self.prefix}{self.start}")
            self._count()
            self.start = 0
            self._row(number, line)

    def _close(self, number: int) -> None:
        if self.inner and all(self.inner):
            self.found.swallowed.add(f"{self.prefix}{self.start}-{number}")
            self.found.swallowed_rows += len(self.inner)
        self.start = 0


def find_values(
    paths: Sequence[str], codec: str, delimiter: str, wanted: Mapping[str, Sequence[str]]
) -> dict[tuple[str, str], str]:
    """The first line of each (column, value) in CSV files with a header, as far as they are found."""
    places: dict[tuple[str, str], str] = {}
    sought = {(column, value) for column, values in wanted.items() for value in values}
    for path in paths:
        prefix = f"{os.path.basename(path)}:" if len(paths) > 1 else ""
        rows = csv.reader((line + "\n" for line in lines_of(path, codec)), delimiter=delimiter)
        with suppress(csv.Error):  # a very long field
            header = next(rows, [])
            spots = [(header.index(column), column) for column in wanted if column in header]
            for row in rows:
                for spot, column in spots:
                    if spot < len(row) and (column, row[spot]) in sought:
                        sought.discard((column, row[spot]))
                        places[column, row[spot]] = f"{prefix}{rows.line_num}"
                if not sought:
                    return places
    return places
