"""Files: Parquet, CSV, JSON lines and Arrow; single ones, lists, globs, and folders of one format."""

from __future__ import annotations

import csv
import glob
import io
import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from dphist.counting.frames import ArrowSource, Opened, Source, demand, describe, numbered, renamed, streamed
from dphist.counting.sql import FLOATS, WHOLE, name, text
from dphist.counting.workspace import attempt, listed
from dphist.errors import InputError

# Files that DuckDB reads by itself, grouped by their columns: each column is found by its name.
#
# Folders named key=value add columns, always of text. Where a file has a column of such a name itself, the folders
# are just folders: a column is never replaced silently.

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
            column: common_sql_type(self.what, column, [group.column(column)[1] for group in self.groups])
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


def common_sql_type(what: str, column: str, kinds: Sequence[str]) -> str:
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


# Files without types: CSV and JSON. All of their values are text, so that no value decides about another.
#
# CSV: 007 stays 007; an empty field, quoted or not, is NULL. The delimiter is that of the header line. JSON:
# strings as they are, numbers as DuckDB writes them (1 and 1.0 are two texts), true and false, lists and objects
# as their JSON; null and a missing key are NULL. Nobody can know which keys there are without reading all rows, so
# every key is a column. Rows that cannot be read (too few fields, no UTF-8, no JSON, longer than 2 MB) are left
# out: an error would tell of them. Only a JSON array is one value as a whole, and it must be right as a whole.

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


FORMATS: Final = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "json", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".duckdb": "duckdb",
    ".ddb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "db",
}  # fmt: skip
NAMES: Final = {suffix[1:]: kind for suffix, kind in FORMATS.items()}
COMPRESSED: Final = (".gz", ".zst")


def files_of(source: Any, file_format: str | None) -> tuple[list[str], str]:
    """The files that a path, a glob, a folder or a list of them stands for, and their one format."""
    if file_format is not None and file_format.lower().lstrip(".") not in NAMES:
        raise InputError(f"the format {file_format!r} is not known; known formats are {', '.join(NAMES)}")
    found: list[str] = []
    for one in source if isinstance(source, (tuple, list)) else [source]:
        if not isinstance(one, (str, os.PathLike)):
            raise InputError(f"a list of files must hold paths, not an object of type {type(one).__qualname__!r}")
        found += matching(os.fspath(one))
    if not found:
        raise InputError("the list of files is empty")
    if file_format is not None:
        return found, NAMES[file_format.lower().lstrip(".")]
    kinds = {kind_of(path): path for path in reversed(found)}
    if len(kinds) > 1:
        examples = listed([str(path) for path in kinds.values()])
        raise InputError(f"the files are of several formats, such as {examples}; give files of one format")
    return found, next(iter(kinds))


def matching(path: str) -> list[str]:
    """The files of one path: itself, those of a folder, or those of a pattern."""
    if os.path.isdir(path):
        inside = sorted(str(one) for one in Path(path).rglob("*") if one.is_file() and not hidden(one, Path(path)))
        if not inside:
            raise InputError(f"the folder {path!r} holds no files")
        return inside
    if os.path.isfile(path):
        return [path]
    if os.path.exists(path):
        # A look at its columns would take from it what is to be counted.
        raise InputError(f"{path!r} is not a file but a pipe or a device, which can be read only once")
    if glob.has_magic(path):
        inside = sorted(one for one in glob.glob(path, recursive=True) if os.path.isfile(one))
        if not inside:
            raise InputError(f"no file matches {path!r}")
        return inside
    raise InputError(f"the file {path!r} does not exist")


def hidden(path: Path, root: Path) -> bool:
    """Names that begin with a dot or an underscore are other programs' notes, not data."""
    return any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def kind_of(path: str) -> str:
    """The format that a name tells."""
    plain = Path(path.lower())
    squeezed = plain.suffix in COMPRESSED
    kind = FORMATS.get(plain.with_suffix("").suffix if squeezed else plain.suffix)
    if kind is None or (squeezed and kind not in ("csv", "tsv", "json", "jsonl")):
        raise InputError(
            f"the name {path!r} does not tell the format; give --input-format (input_format=), one of "
            f"{', '.join(NAMES)}"
        )
    return kind


def readable(files: list[str]) -> list[str]:
    """The files that hold anything; all must be readable."""

    def first(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read(1)

    return [path for path in files if attempt(lambda path=path: first(path), f"the file {path!r}")]  # type: ignore[misc]


def file_source(connection: Any, files: list[str], kind: str) -> Source:
    """The source for data files of one format."""
    what = f"the file {files[0]!r}" if len(files) == 1 else f"the input of {len(files)} files ({files[0]!r} ...)"
    full = readable(files)
    if kind in ("json", "jsonl"):
        return json_files(connection, what, files, kind)  # which have no header: an empty file has no rows
    if not full:
        raise InputError(f"{what} is empty: it has not even columns")
    if kind == "parquet":
        return GroupedFiles(what, parquet_groups(connection, files))
    if kind == "arrow":
        return arrow_files(what, files)
    # Of several CSV files some may be empty; other empty files are damaged.
    return GroupedFiles(what, csv_groups(connection, full, "\t" if kind == "tsv" else None))


def arrow_files(what: str, files: list[str]) -> Source:
    """Arrow files; streams, which have no table of contents, are read from front to back."""
    import pyarrow as pa

    def is_stream(path: str) -> bool:
        with open(path, "rb") as file:
            return file.read(6) != b"ARROW1"

    if not any(is_stream(path) for path in files):
        return arrow_tables(what, files)
    if len(files) > 1:
        raise InputError(f"{what} cannot be read: Arrow streams must be given one at a time")
    whole = attempt(lambda: pa.ipc.open_stream(files[0]).schema, what)

    def schema(wanted: list[str]) -> Any:
        return numbered([whole.field(column) for column in wanted])

    def stream(wanted: list[str]) -> Any:
        return renamed(pa.ipc.open_stream(files[0]), wanted, schema(wanted))

    return ArrowSource(what, whole.names, schema, stream)


def arrow_tables(what: str, files: list[str]) -> Source:
    """Arrow files with tables of contents, read in parts as one dataset."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    def schema_of(path: str) -> Any:
        with pa.OSFile(path) as file:
            return pa.ipc.open_file(file).schema

    schemas = {path: attempt(lambda path=path: schema_of(path), f"the file {path!r}") for path in files}  # type: ignore[misc]

    def common(wanted: list[str]) -> Any:
        for path, schema in schemas.items():
            demand(f"the file {path!r}", schema.names, wanted)
        return pa.schema([
            (column, common_arrow_type(what, column, [schema.field(column).type for schema in schemas.values()]))
            for column in wanted
        ])  # fmt: skip

    def data(wanted: list[str]) -> Any:
        return streamed(ds.dataset(files, schema=common(wanted), format="ipc"), wanted, threads=False)

    return ArrowSource(what, schemas[files[0]].names, lambda wanted: numbered(common(wanted)), data)


def common_arrow_type(what: str, column: str, kinds: list[Any]) -> Any:
    """The one type of a column in several Arrow files that holds all values of the others exactly."""
    import pyarrow as pa

    different = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if len(different) <= 1:
        return (different or [pa.string()])[0]
    for alike in (pa.types.is_signed_integer, pa.types.is_unsigned_integer, pa.types.is_floating):
        if all(alike(kind) for kind in different):
            return max(different, key=lambda kind: kind.bit_width)
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in different]
    if all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in plain):
        return pa.large_string()
    raise InputError(
        f"the column {column!r} of {what} has types that cannot be joined without loss: "
        f"{' and '.join(str(kind) for kind in different)}; write the files with one type"
    )
