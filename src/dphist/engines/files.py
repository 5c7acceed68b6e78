"""Files: Parquet, CSV, JSON lines and Arrow; single ones, lists, globs, and folders of one format.

CSV has no types. All of its columns are text, so that 007 stays 007 and no guess fails late; an empty field,
quoted or not, is NULL. A condition on a CSV file therefore compares texts unless it casts. JSON keeps numbers and
booleans; its strings are text as they are written, dates among them.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dphist.engines.failures import attempt, listed
from dphist.engines.frames import dataset_source, renamed
from dphist.engines.sources import ArrowSource, Opened, Source, describe, numbered, require
from dphist.engines.sql import name, text
from dphist.errors import InputError

FORMATS: Final = {
    ".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl",
    ".json": "json", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".duckdb": "duckdb",
    ".ddb": "duckdb", ".sqlite": "sqlite", ".sqlite3": "sqlite", ".db": "db",
}  # fmt: skip
NAMES: Final = {suffix[1:]: kind for suffix, kind in FORMATS.items()}
COMPRESSED: Final = (".gz", ".zst")
CSV: Final = "all_varchar=true, quote='\"', escape='\"', comment='', skip=0, nullstr=''"


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
    if os.path.exists(path):
        return [path]
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
            f"the name {path!r} does not tell the format; give --format (file_format=), one of {', '.join(NAMES)}"
        )
    return kind


def readable(files: list[str], what: str) -> list[str]:
    """The files that hold anything: all must be readable, and one of them not empty."""
    full = []
    for path in files:

        def first(path: str = path) -> bytes:
            with open(path, "rb") as file:
                return file.read(1)

        if attempt(first, f"the file {path!r}"):
            full.append(path)
    if not full:
        raise InputError(f"{what} is empty: it has not even columns")
    return full


def file_source(connection: Any, files: list[str], kind: str) -> Source:
    """The source for data files of one format."""
    what = f"the file {files[0]!r}" if len(files) == 1 else f"the input of {len(files)} files ({files[0]!r} ...)"
    full = readable(files, what)
    if kind != "parquet" and kind != "arrow":
        files = full  # text files without any text have no rows; other empty files are damaged
    if kind == "parquet":
        return GroupedFiles(what, parquet_groups(connection, files))
    if kind in ("csv", "tsv"):
        return GroupedFiles(what, csv_groups(connection, files, "\t" if kind == "tsv" else None))
    if kind == "arrow":
        return arrow_files(what, files)
    return json_files(connection, what, files, kind)


def paths(files: Sequence[str]) -> str:
    """A list of files in SQL. DuckDB would take [ and * in a name for a pattern."""
    return "[" + ", ".join(text(glob.escape(os.path.abspath(path))) for path in files) + "]"


@dataclass(frozen=True)
class Group:
    """Files with the same columns: exact names, and DuckDB's names and types for them."""

    files: tuple[str, ...]
    relation: str
    names: tuple[str, ...]
    sql: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GroupedFiles:
    """Files whose columns may be in different orders or of different types: each column is found by its name."""

    what: str
    groups: list[Group]

    @property
    def names(self) -> Sequence[str]:
        """Of the first file; the others are checked when opened."""
        return self.groups[0].names

    def open(self, connection: Any, wanted: list[str], _label: str, _probe: bool, /) -> Opened:
        """All groups one after the other; types that differ meet in one that holds both."""
        parts = []
        for group in self.groups:
            require(self, wanted, group.names, f"the file {group.files[0]!r}")
            found = [name(group.sql[group.names.index(column)][0]) for column in wanted]
            chosen = ", ".join(f"{column} AS c{k}" for k, column in enumerate(found))
            parts.append(f"SELECT {chosen} FROM {group.relation}")
        relation = f"({' UNION ALL '.join(parts)})"
        types = attempt(lambda: describe(connection, relation), self.what)
        return Opened(relation, {column: types[k] for k, column in enumerate(wanted)})


def grouped(connection: Any, headers: dict[str, tuple[Any, ...]], reader: Any) -> list[Group]:
    """Files with equal headers together; `reader` makes the SQL for files and their number of columns."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for path, header in headers.items():
        alike.setdefault(header, []).append(path)
    groups = []
    for header, files in alike.items():
        relation = reader(files, len(header))
        sql = attempt(lambda relation=relation: describe(connection, relation), f"the file {files[0]!r}")  # type: ignore[misc]
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in header]
        # Folders named key=value add columns after those of the files.
        names += [column for column, _ in sql[len(names) :]]
        groups.append(Group(tuple(files), relation, tuple(names), tuple(sql)))
    return groups


def parquet_groups(connection: Any, files: list[str]) -> list[Group]:
    """Parquet files by their schemas."""
    import pyarrow.parquet as pq

    def header(path: str) -> tuple[Any, ...]:
        schema = attempt(lambda: pq.read_schema(path), f"the file {path!r}")
        return tuple((entry.name, str(entry.type)) for entry in schema)

    headers = {path: header(path) for path in files}
    return grouped(connection, headers, lambda some, _: f"read_parquet({paths(some)})")


def csv_groups(connection: Any, files: list[str], delimiter: str | None) -> list[Group]:
    """CSV files by their header lines. The delimiter is that of the first file; quotes are always double."""
    if delimiter is None:
        sniff = (
            f"SELECT Delimiter FROM sniff_csv({text(glob.escape(os.path.abspath(files[0])))}, {CSV}, header=true)"
        )
        sniffed = attempt(lambda: connection.execute(sniff).fetchall(), f"the file {files[0]!r}")
        delimiter = str(sniffed[0][0])
    options = f"{CSV}, delim={text(delimiter)}"

    def header(path: str) -> tuple[Any, ...]:
        query = (
            f"SELECT * FROM read_csv({paths([path])}, header=false, hive_partitioning=false, {options}) LIMIT 1"
        )
        rows = attempt(lambda: connection.execute(query).fetchall(), f"the file {path!r}")
        return tuple("" if cell is None else str(cell) for cell in rows[0]) if rows else ()

    def reader(some: list[str], width: int) -> str:
        columns = ", ".join(f"'c{k}': 'VARCHAR'" for k in range(width))
        return f"read_csv({paths(some)}, header=true, auto_detect=false, columns={{{columns}}}, {options})"

    return grouped(connection, {path: header(path) for path in files}, reader)


@dataclass(frozen=True)
class JsonFiles:
    """JSON: all of it is read for its types first, so that none fails later."""

    what: str
    names: Sequence[str]
    types: dict[str, str]
    reader: str

    def open(self, connection: Any, wanted: list[str], _label: str, _probe: bool, /) -> Opened:
        """The wanted columns, with their types given: so keys are matched exactly."""
        require(self, wanted)
        if len({column.casefold() for column in wanted}) < len(wanted):
            raise InputError(f"{self.what}: columns of JSON that differ only in case cannot be used together")
        columns = ", ".join(f"{text(column)}: {text(self.types[column])}" for column in wanted)
        relation = self.reader.format(f", columns={{{columns}}}")
        sql = attempt(lambda: describe(connection, relation), self.what)
        return Opened(relation, {column: (name(s), kind) for column, (s, kind) in zip(wanted, sql, strict=False)})


def json_files(connection: Any, what: str, files: list[str], kind: str) -> Source:
    """JSON lines, or a JSON array of objects."""
    shape = "auto" if kind == "json" else "newline_delimited"
    reader = f"read_json({paths(files).replace('{', '{{').replace('}', '}}')}, format='{shape}'{{}})"
    found = dict(
        attempt(lambda: describe(connection, reader.format(", sample_size=-1, union_by_name=true")), what)
    )
    if any(column.rpartition("_")[2].isdigit() for column in found):
        # DuckDB numbers keys that differ only in case, so these names may not be the keys.
        objects = f"read_json_objects({paths(files)}, format='{shape}')"
        found = attempt(lambda: exact_types(connection, objects, found), what)
    kept = ("BIGINT", "UBIGINT", "HUGEINT", "DOUBLE", "BOOLEAN", "JSON")
    types = {
        key: guess if guess in kept or guess.endswith((")", "]")) else "VARCHAR" for key, guess in found.items()
    }
    return JsonFiles(what, list(types), types, reader)


def exact_types(connection: Any, objects: str, found: dict[str, str]) -> dict[str, str]:
    """The keys as they are written, and types for those that DuckDB could not tell apart."""
    rows = connection.execute(f"SELECT DISTINCT unnest(json_keys(json)) FROM {objects}").fetchall()
    keys = sorted(str(row[0]) for row in rows)
    alike = Counter(key.casefold() for key in keys)
    plain = {
        "BIGINT": "BIGINT",
        "UBIGINT": "BIGINT",
        "DOUBLE": "DOUBLE",
        "BOOLEAN": "BOOLEAN",
        "VARCHAR": "VARCHAR",
    }
    types = {}
    for key in keys:
        if alike[key.casefold()] == 1 and key in found:
            types[key] = found[key]
            continue
        pointer = text("/" + key.replace("~", "~0").replace("/", "~1"))
        kinds = connection.execute(f"SELECT DISTINCT json_type(json, {pointer}) FROM {objects}").fetchall()
        held = {plain.get(str(kind), "JSON") for (kind,) in kinds if kind not in (None, "NULL")}
        types[key] = held.pop() if len(held) == 1 else "DOUBLE" if held == {"BIGINT", "DOUBLE"} else "JSON"
    return types


def arrow_files(what: str, files: list[str]) -> Source:
    """Arrow files; streams, which have no table of contents, are read from front to back."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    def is_stream(path: str) -> bool:
        with open(path, "rb") as file:
            return file.read(6) != b"ARROW1"

    if not any(is_stream(path) for path in files):
        return attempt(lambda: dataset_source(what, ds.dataset(files, format="ipc")), what)
    if len(files) > 1:
        raise InputError(f"{what} cannot be read: Arrow streams must be given one at a time")
    whole = attempt(lambda: pa.ipc.open_stream(files[0]).schema, what)

    def schema(wanted: list[str]) -> Any:
        return numbered([whole.field(column) for column in wanted])

    def stream(wanted: list[str]) -> Any:
        return renamed(pa.ipc.open_stream(files[0]), wanted, schema(wanted))

    return ArrowSource(what, whole.names, schema, stream)
