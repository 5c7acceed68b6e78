"""Files without types: CSV and JSON. All of their values are text, so that no value decides about another.

CSV: 007 stays 007; an empty field, quoted or not, is NULL. The delimiter is that of the header line. JSON: strings
as they are, numbers as DuckDB writes them (1 and 1.0 are two texts), true and false, lists and objects as their
JSON; null and a missing key are NULL. Nobody can know which keys there are without reading all rows, so every key
is a column. Rows that cannot be read (too few fields, no UTF-8, no JSON, longer than 2 MB) are left out: an error
would tell of them. Only a JSON array is one value as a whole, and it must be right as a whole.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dphist.engines.failures import attempt
from dphist.engines.grouped_files import HIVE, Group, folders, grouped, paths
from dphist.engines.sources import Opened, Source, describe
from dphist.engines.sql import name, text
from dphist.errors import InputError

ROWS: Final = "auto_detect=false, comment='', skip=0, nullstr='', ignore_errors=true, strict_mode=false"
# One reader from end to end: several of them begin in the middle and guess whether they are within quotes, and one
# user's text with a line break at such a place would lose, or make up, the rows of others.
CSV: Final = f"header=true, quote='\"', escape='\"', parallel=false, {ROWS}"
# A control character cannot be in a valid line of JSON, so each line is one field.
LINE: Final = "dphist_line"
LINES: Final = f"header=false, quote='', escape='', delim='\x01', columns={{'{LINE}': 'VARCHAR'}}, {ROWS}, {HIVE}"
DELIMITERS: Final = ",;|\t"
MARK: Final = b"\xef\xbb\xbf"


def csv_groups(connection: Any, files: list[str], delimiter: str | None) -> list[Group]:
    """CSV files by their header lines. The delimiter is that of the first file; quotes are always double."""
    found = delimiter or attempt(lambda: delimiter_of(files[0]), f"the file {files[0]!r}")
    headers = {path: header_of(path, found) for path in files}

    def reader(some: list[str], names: list[str]) -> str:
        fields = [f"c{k}" for k in range(len(names))]
        columns = ", ".join(f"'{field}': 'VARCHAR'" for field in fields)
        options = f"{CSV}, delim={text(found)}, {folders(some, [*names, *fields])}"
        return f"read_csv({paths(some)}, columns={{{columns}}}, {options})"

    return grouped(connection, headers, reader)


def lines_of(path: str) -> io.TextIOWrapper:
    """The text of a file, compressed or not. Bytes that are no UTF-8 stay apart: they may be in later lines."""
    import pyarrow as pa

    return io.TextIOWrapper(pa.input_stream(path), "utf-8-sig", "surrogateescape", newline="")


def delimiter_of(path: str) -> str:
    """The most frequent of the known delimiters in the header line, outside quotes."""
    with lines_of(path) as lines:
        first = re.sub(r'"[^"]*"', "", lines.readline())
    return max(DELIMITERS, key=first.count)


def header_of(path: str, delimiter: str) -> tuple[str, ...]:
    """The names of the columns."""

    def first() -> list[str]:
        with lines_of(path) as lines:
            names = next(csv.reader(itertools.chain([lines.readline()], lines), delimiter=delimiter), [])
            for column in names:
                column.encode("utf-8")
            return names

    wrong = "{what} cannot be read: its header line is not UTF-8 text, or it is damaged"
    return tuple(attempt(first, f"the file {path!r}", wrong))


@dataclass(frozen=True)
class JsonFiles:
    """JSON: `relation` has a text `line` of each object, and a column for each of the folders' keys."""

    what: str
    relation: str
    line: str
    keys: Sequence[str]

    @property
    def names(self) -> None:
        """Any: keys are data, and none is listed."""

    def open(self, _connection: Any, wanted: list[str], _label: str, _probe: bool, /) -> Opened:
        """The wanted columns, by the exact names of their keys; what a row has itself comes before its folder."""
        pointers = ", ".join(text("/" + key.replace("~", "~0").replace("/", "~1")) for key in wanted)
        cells = f"json_extract_string({self.line}, [{pointers}]) AS cells"
        chosen = [cells, *(f"{name(key)} AS folder{k}" for k, key in enumerate(self.keys))]
        columns = {}
        for k, key in enumerate(wanted):
            own = f"cells[{k + 1}]"
            place = self.keys.index(key) if key in self.keys else None
            columns[key] = (own if place is None else f"coalesce({own}, folder{place})", "VARCHAR")
        return Opened(f"(SELECT {', '.join(chosen)} FROM {self.relation})", columns)


def json_files(connection: Any, what: str, files: list[str], kind: str) -> Source:
    """JSON lines, or JSON arrays of objects in files named .json."""
    starts = [attempt(lambda path=path: start_of(path), f"the file {path!r}") for path in files]  # type: ignore[misc]
    for path, start in zip(files, starts, strict=True):
        if start.startswith(MARK):
            raise InputError(f"the file {path!r} begins with a mark of byte order, which JSON may not; remove it")
    arrays = kind == "json" and any(start.startswith(b"[") for start in starts)
    if arrays and not all(start.startswith(b"[") or not start for start in starts):
        raise InputError(f"{what} holds arrays in some files and lines in others; give files of one kind")
    if arrays:
        relation, line = f"read_json_objects({paths(files)}, format='array', {HIVE})", "json"
    else:
        relation = f"read_csv({paths(files)}, {LINES})"
        line = f"CASE WHEN json_valid({LINE}) THEN {LINE} END"
    columns = attempt(lambda: describe(connection, relation), what)
    return JsonFiles(what, relation, line, [column for column, _ in columns[1:]])


def start_of(path: str) -> bytes:
    """The first bytes that are not blank."""
    import pyarrow as pa

    with pa.input_stream(path) as stream:
        while block := stream.read(4096):
            if start := bytes(block).lstrip(b" \t\r\n"):
                return start[:3]
    return b""
