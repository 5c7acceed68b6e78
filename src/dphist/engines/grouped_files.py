"""Files that DuckDB reads by itself, grouped by their columns: each column is found by its name.

Folders named key=value add columns, always of text. Where a file has a column of such a name itself, the folders
are just folders: a column is never replaced silently.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from dphist.engines.failures import attempt
from dphist.engines.sources import Opened, demand, describe
from dphist.engines.sql import FLOATS, WHOLE, name, text
from dphist.errors import InputError

HIVE: Final = "hive_types_autocast=false"
NOTHING: Final = '"NULL"'  # DuckDB's name for the type of a column that can hold no value
DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
DIGITS: Final = 38


def paths(files: Sequence[str]) -> str:
    """A list of files in SQL. DuckDB would take [ and * in a name for a pattern."""
    return "[" + ", ".join(text(glob.escape(os.path.abspath(path))) for path in files) + "]"


def folders(files: Sequence[str], names: Sequence[str]) -> str:
    """Options of a reader: folders named key=value add columns unless a file has a column of such a name."""
    keys = set()
    for path in files:
        for part in re.split(r"[/\\]", os.path.abspath(path)):
            key = part.partition("=")[0] if "=" in part else ""
            keys |= {key.casefold(), unquote(key).casefold()}
    own = {column.casefold() for column in names}
    return f"{HIVE}, hive_partitioning=false" if keys & own else HIVE


@dataclass(frozen=True)
class Group:
    """Files with the same columns: exact names, and DuckDB's names and types for them."""

    files: tuple[str, ...]
    relation: str
    names: tuple[str, ...]
    sql: tuple[tuple[str, str], ...]

    def column(self, wanted: str) -> tuple[str, str]:
        """DuckDB's name and type for a column."""
        return self.sql[self.names.index(wanted)]


@dataclass(frozen=True)
class GroupedFiles:
    """Files whose columns may be in different orders, and of types that one type can hold."""

    what: str
    groups: list[Group]

    @property
    def names(self) -> Sequence[str]:
        """Of the first file; the others are checked when opened."""
        return self.groups[0].names

    def open(self, connection: Any, wanted: list[str], _label: str, _probe: bool, /) -> Opened:
        """All groups one after the other; types that differ meet in one that holds both."""
        for group in self.groups:
            demand(f"the file {group.files[0]!r}", group.names, wanted)
        empty = {
            column: joined(self.what, column, [group.column(column)[1] for group in self.groups])
            for column in wanted
        }
        parts = []
        for group in self.groups:
            found = [group.column(column) for column in wanted]
            chosen = ", ".join(
                f"CAST(NULL AS {empty[column]}) AS c{k}" if kind == NOTHING else f"{name(sql)} AS c{k}"
                for k, (column, (sql, kind)) in enumerate(zip(wanted, found, strict=True))
            )
            parts.append(f"SELECT {chosen} FROM {group.relation}")
        relation = f"({' UNION ALL '.join(parts)})"
        types = attempt(lambda: describe(connection, relation), self.what)
        # Only Parquet reads some columns without reading all of the file.
        again = all(group.relation.startswith("read_parquet(") for group in self.groups)
        return Opened(relation, {column: types[k] for k, column in enumerate(wanted)}, again=again)


def joined(what: str, column: str, kinds: Sequence[str]) -> str:
    """One of a column's types in several files, after making sure that joining them merges and splits no values.

    Whole numbers as floats would merge (2^53 and 2^53 + 1), and numbers as text would split (7 and 7.0).
    """
    different = sorted({kind for kind in kinds if kind != NOTHING})
    alike = len(different) <= 1 or set(different) <= WHOLE or set(different) <= FLOATS or decimals(different)
    if not alike:
        raise InputError(
            f"the column {column!r} of {what} has types that cannot be joined without loss: "
            f"{' and '.join(different)}; write the files with one type"
        )
    return different[0] if different else "VARCHAR"


def decimals(kinds: Sequence[str]) -> bool:
    """Whether all are decimals that one decimal can hold."""
    found = [DECIMAL.fullmatch(kind) for kind in kinds]
    sizes = [(int(one[1]) - int(one[2]), int(one[2])) for one in found if one is not None]
    return len(sizes) == len(kinds) and max(n for n, _ in sizes) + max(n for _, n in sizes) <= DIGITS


def grouped(connection: Any, headers: dict[str, tuple[Any, ...]], reader: Any) -> list[Group]:
    """Files with equal headers together; `reader` makes the SQL for files and the names of their columns."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for path, header in headers.items():
        alike.setdefault(header, []).append(path)
    groups = []
    for header, files in alike.items():
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in header]
        relation = reader(files, names)
        sql = attempt(lambda relation=relation: describe(connection, relation), f"the file {files[0]!r}")  # type: ignore[misc]
        # Folders named key=value add columns after those of the files.
        names += [column for column, _ in sql[len(names) :]]
        groups.append(Group(tuple(files), relation, tuple(names), tuple(sql)))
    return groups


def parquet_groups(connection: Any, files: list[str]) -> list[Group]:
    """Parquet files by their schemas."""
    import pyarrow.parquet as pq

    def header(path: str) -> tuple[Any, ...]:
        schema = attempt(lambda: pq.read_schema(path), f"the file {path!r}")
        for entry in schema:
            if str(entry.type).startswith("decimal256"):
                # DuckDB would read it as floats, and merge values that differ in their last digits.
                raise InputError(f"the column {entry.name!r} of {path!r} has decimals of more than 38 digits")
        return tuple((entry.name, str(entry.type)) for entry in schema)

    def reader(some: list[str], names: list[str]) -> str:
        return f"read_parquet({paths(some)}, {folders(some, names)})"

    return grouped(connection, {path: header(path) for path in files}, reader)
