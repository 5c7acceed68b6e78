"""Files: Parquet, CSV, JSON lines and Arrow; single ones, lists, globs, and folders of one format."""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any, Final

from dphist.engines.failures import attempt, listed
from dphist.engines.frames import renamed, streamed
from dphist.engines.grouped_files import GroupedFiles, parquet_groups
from dphist.engines.sources import ArrowSource, Source, demand, numbered
from dphist.engines.text_files import csv_groups, json_files
from dphist.errors import InputError

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
            (column, joined_type(what, column, [schema.field(column).type for schema in schemas.values()]))
            for column in wanted
        ])  # fmt: skip

    def data(wanted: list[str]) -> Any:
        return streamed(ds.dataset(files, schema=common(wanted), format="ipc"), wanted, threads=False)

    return ArrowSource(what, schemas[files[0]].names, lambda wanted: numbered(common(wanted)), data)


def joined_type(what: str, column: str, kinds: list[Any]) -> Any:
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
