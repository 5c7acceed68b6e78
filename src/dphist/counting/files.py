"""Parquet, CSV, JSON and Arrow files: single files, lists, globs and folders of one format.

Folders named key=value add text columns, unless a file has a column of that name.

All CSV and JSON values are text, so that no value affects how another is read. In CSV, 007 stays 007, an empty
field is NULL whether quoted or not, and the header line determines the delimiter. In JSON, numbers are as DuckDB
writes them (1 and 1.0 are different texts), lists and objects are JSON, and null and missing keys are NULL; every
key is a column, because only reading all rows could tell which keys exist. Invalid rows (too few fields, not
UTF-8, not JSON, longer than 2 MB) are skipped: an error would reveal them. A JSON array must be valid as a whole.
`quotes` refuses CSV files in which a row could change how others are read. CSV files of another encoding are first
copied as UTF-8 (`encodings`).
"""

from __future__ import annotations

import csv
import glob
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeVar, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from dphist.certificate.endings import FORMATS
from dphist.counting.encodings import UNREADABLE, codec_of, convert_to_utf8
from dphist.counting.frames import ArrowSource, stream_of
from dphist.counting.quotes import BUFFER, EMPTY, SKIPPED, check_quotes, open_text
from dphist.counting.sql import DECIMAL, FLOATS, WHOLE, Opened, Source, describe, name, require_columns, text
from dphist.counting.streams import BATCH, validate
from dphist.counting.workspace import attempt, header_names, name_list, private_folder
from dphist.errors import DphistError, InputError
from dphist.objects import copy_objects, is_object, scheme_of, without_secrets

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

T = TypeVar("T")

NAMES: Final = {suffix[1:]: kind for suffix, kind in FORMATS.items()}
COMPRESSION_MARKS: Final = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
SPOOL: Final = 1 << 20


def files_of(source: object, file_format: str | None) -> tuple[list[str], str]:
    """The files of a path, a glob, a folder or a list of these, and their format."""
    known = None if file_format is None else known_format(file_format)
    files: list[str] = []
    for path in source if isinstance(source, (tuple, list)) else [source]:
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"a list of files must hold paths, not an object of type {type(path).__qualname__!r}")
        files += matching_files(os.fspath(path))
    if not files:
        raise InputError("the list of files is empty")
    if known is not None:
        return files, known
    formats = {format_of(path): path for path in reversed(files)}
    if len(formats) > 1:
        raise InputError(
            f"the files have several formats, such as {name_list([*formats.values()])}; give files of one format"
        )
    return files, next(iter(formats))


def known_format(name: str) -> str:
    kind = NAMES.get(name.lower().lstrip("."))
    if kind is None:
        raise InputError(f"the format {name!r} is not known; known formats are {', '.join(NAMES)}")
    return kind


@contextmanager
def spool_stdin(kind: str, folder: Path | None) -> Iterator[str]:
    """Copy standard input, compressed or not, to a private file that is removed even after a kill."""
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or stream.closed or stream.isatty():
        raise InputError("there is nothing on standard input: pipe the events into the command")
    with private_folder(folder) as work:

        def spool() -> str:
            # read1 returns what has arrived: Python handles no signal while it waits for a whole block.
            first = b""
            while len(first) < max(map(len, COMPRESSION_MARKS)) and (piece := stream.read1(SPOOL)):
                first += piece
            ending = next((end for mark, end in COMPRESSION_MARKS.items() if first.startswith(mark)), "")
            path = work / f"input.{kind}{ending}"
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(first)
                while piece := stream.read1(SPOOL):
                    file.write(piece)
            return str(path)

        path = attempt(spool, "standard input", "{what} cannot be read")
        with _replace_in_errors({f"the file {path!r}": "standard input", repr(path): "standard input"}):
            yield path


@contextmanager
def spool_objects(given: Sequence[str], folder: Path | None) -> Iterator[tuple[str, ...]]:
    """Local paths, with the objects among them copied to a private folder."""
    with private_folder(folder) as work:
        paths: list[str] = []
        for number, source in enumerate(given):
            if is_object(source):
                copy = partial(copy_objects, source, work / str(number))
                paths += attempt(copy, without_secrets(source))
            else:
                paths += matching_files(source)
        scheme = next(source for source in given if is_object(source)).partition("://")[0]
        copies = {f"{work}{os.sep}{number}{os.sep}": f"{scheme}://" for number in range(len(given))}
        with _replace_in_errors(copies):
            yield tuple(paths)


@contextmanager
def _replace_in_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Name the given input in errors instead of its copy."""
    try:
        yield
    except DphistError as error:
        message = error.marked
        for copy, original in names.items():
            message = message.replace(copy, original)
        error.args = (message,)
        raise


def given_paths(source: object) -> list[str]:
    """The paths and addresses of an input; none for a frame."""
    sources = source if isinstance(source, (tuple, list)) else [source]
    return [os.fspath(path) for path in sources if isinstance(path, (str, os.PathLike))]


def matching_files(path: str) -> list[str]:
    """The files of a path, a folder or a glob."""
    scheme = scheme_of(path)
    if scheme is not None:
        raise InputError(f"events cannot be read from {scheme}:// addresses; download the files first")
    if os.path.isdir(path):
        root = Path(path)
        # Other programs keep notes under names that begin with a dot or an underscore.
        files = sorted(
            str(file)
            for file in root.rglob("*")
            if file.is_file() and not any(part.startswith((".", "_")) for part in file.relative_to(root).parts)
        )
        if not files:
            raise InputError(f"the folder {path!r} holds no files")
        return files
    if os.path.isfile(path):
        return [path]
    if os.path.exists(path):
        # Reading its header would consume it.
        raise InputError(f"{path!r} is a pipe or a device, which can be read only once: give a file")
    if glob.has_magic(path):
        files = sorted(file for file in glob.glob(path, recursive=True) if os.path.isfile(file))
        if not files:
            raise InputError(f"no file matches {path!r}")
        return files
    raise InputError(f"the file {path!r} does not exist")


def format_of(path: str) -> str:
    """The format by the ending of a name."""
    name = Path(path.lower())
    compressed = name.suffix in COMPRESSION_MARKS.values()
    kind = FORMATS.get(name.with_suffix("").suffix if compressed else name.suffix)
    if kind is None or (compressed and kind not in ("csv", "tsv", "json", "jsonl")):
        raise InputError(
            f"the name {without_secrets(path)!r} has no known ending: give <--input-format>, one of "
            f"{', '.join(NAMES)}"
        )
    return kind


def file_head(path: str, size: int) -> bytes:
    def read() -> bytes:
        with open(path, "rb") as file:
            return file.read(size)

    return attempt(read, f"the file {path!r}")


def file_source(
    connection: DuckDBPyConnection,
    files: list[str],
    kind: str,
    label: str,
    probe: bool,
    encoding: str | None = None,
    delimiter: str | None = None,
) -> Source:
    what = f"the file {files[0]!r}" if len(files) == 1 else f"the input of {len(files)} files ({files[0]!r} ...)"
    if kind in ("json", "jsonl"):
        return json_source(connection, what, files, kind)  # an empty file has no rows
    if kind in ("csv", "tsv"):
        separator, headers = csv_headers(files, kind, what, encoding, delimiter)
        texts = {path: path for path in headers}
        if not probe:
            if codec_of(encoding) != "utf-8":
                texts = copy_as_utf8(connection, [*headers], codec_of(encoding))
            with _replace_in_errors({repr(copy): repr(path) for path, copy in texts.items()}):
                check_quotes([*texts.values()], separator)

        def read(paths: list[str], names: list[str]) -> str:
            return read_csv([texts[path] for path in paths], names, separator)

        return grouped_source(connection, what, headers, read)
    if not [path for path in files if file_head(path, 1)]:
        raise InputError(f"{what} is empty: it has no columns")
    if kind == "parquet":
        footers = {path: parquet_header(path) for path in files}
        return grouped_source(connection, what, footers, read_parquet)
    return arrow_file_source(what, files).as_source(connection, label, probe)


HIVE: Final = "hive_types_autocast=false"
NOTHING: Final = '"NULL"'  # DuckDB's type of a column without values
DIGITS: Final = 38


def files_by_header(headers: Mapping[str, Sequence[T]]) -> dict[tuple[T, ...], list[str]]:
    groups: dict[tuple[T, ...], list[str]] = {}
    for path, header in headers.items():
        groups.setdefault(tuple(header), []).append(path)
    return groups


def grouped_source(
    connection: DuckDBPyConnection,
    what: str,
    headers: Mapping[str, Sequence[str | tuple[str, str]]],
    reader: Callable[[list[str], list[str]], str],
) -> Source:
    """Files whose columns may differ in order, and in type as far as one type holds them all.

    Files with equal headers are read together. `reader` returns the FROM item for files and their column names.
    """
    # For each group: its first file, FROM item, column names, and DuckDB's names and types of the columns.
    groups = []
    for header, files in files_by_header(headers).items():
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in header]
        relation = reader(files, names)
        described = attempt(partial(describe, connection, relation), f"the file {files[0]!r}")
        # Folders named key=value add columns after those of the files.
        names += [column for column, _ in described[len(names) :]]
        groups.append((files[0], relation, names, dict(zip(names, described, strict=True))))

    def open_groups(wanted: list[str]) -> Opened:
        for file, _, names, _ in groups:
            require_columns(f"the file {file!r}", names, wanted)
        types = {
            column: common_sql_type(what, column, [columns[column][1] for *_, columns in groups])
            for column in wanted
        }
        parts = []
        for _, relation, _, columns in groups:
            chosen = ", ".join(
                f"CAST(NULL AS {types[column]}) AS c{k}" if kind == NOTHING else f"{name(sql)} AS c{k}"
                for k, (column, (sql, kind)) in enumerate((column, columns[column]) for column in wanted)
            )
            parts.append(f"SELECT {chosen} FROM {relation}")
        joined = f"({' UNION ALL '.join(parts)})"
        described = attempt(partial(describe, connection, joined), what)
        return Opened(joined, dict(zip(wanted, described, strict=True)))

    # The columns of the first file; the others are checked when opened.
    return Source(what, groups[0][2], open_groups)


def common_sql_type(what: str, column: str, kinds: Sequence[str]) -> str:
    """One of a column's types in several files; an error unless joining them merges and splits no values.

    Integers as floats would merge (2^53 and 2^53 + 1), and numbers as text would split (7 and 7.0).
    """
    different = sorted({kind for kind in kinds if kind != NOTHING})
    alike = len(different) <= 1 or set(different) <= WHOLE or set(different) <= FLOATS or decimals(different)
    if not alike:
        raise types_differ(what, column, different)
    return different[0] if different else "VARCHAR"


def types_differ(what: str, column: str, kinds: Sequence[str]) -> InputError:
    return InputError(
        f"the column {column!r} of {what} has types that cannot be joined without loss: {' and '.join(kinds)}; "
        "write the files with one type"
    )


def decimals(kinds: Sequence[str]) -> bool:
    """Whether all are decimals that one decimal can hold."""
    matches = [DECIMAL.fullmatch(kind) for kind in kinds]
    sizes = [(int(match[1]) - int(match[2]), int(match[2])) for match in matches if match is not None]
    return len(sizes) == len(kinds) and max(n for n, _ in sizes) + max(n for _, n in sizes) <= DIGITS


def path_list(files: Sequence[str]) -> str:
    """Files as an SQL list; DuckDB would read [ and * in a name as a pattern."""
    return "[" + ", ".join(text(glob.escape(os.path.abspath(path))) for path in files) + "]"


def read_parquet(files: list[str], names: list[str]) -> str:
    return f"read_parquet({path_list(files)}, {folder_options(files, names)})"


def folder_options(files: Sequence[str], names: Sequence[str]) -> str:
    """Reader options: folders named key=value add columns unless a file has a column of that name."""
    keys = set()
    for path in files:
        for part in re.split(r"[/\\]", os.path.abspath(path)):
            key = part.partition("=")[0] if "=" in part else ""
            keys |= {key.casefold(), unquote(key).casefold()}
    columns = {column.casefold() for column in names}
    return f"{HIVE}, hive_partitioning=false" if keys & columns else HIVE


def parquet_header(path: str) -> tuple[tuple[str, str], ...]:
    """Names and Arrow types of the columns."""

    def read() -> tuple[tuple[str, str], ...]:
        return tuple((field.name, str(field.type)) for field in pq.read_schema(path))

    columns = attempt(read, f"the file {path!r}")
    for column, kind in columns:
        if kind.startswith("decimal256"):
            # DuckDB would read floats, and merge values that differ in their last digits.
            raise InputError(f"the column {column!r} of {path!r} has decimals of more than 38 digits")
    return columns


def arrow_file_source(what: str, files: list[str]) -> ArrowSource:
    """Arrow files and streams, one batch at a time: DuckDB's limit does not cover Arrow's memory."""

    def schema_of(path: str) -> pa.Schema:
        with pa.OSFile(path, "r") as file:
            schema = open_arrow(file).schema
            list(schema.names)  # an error if a name is not UTF-8
            return schema

    schemas = {path: attempt(partial(schema_of, path), f"the file {path!r}") for path in files}

    def common_schema(wanted: list[str]) -> pa.Schema:
        for path, schema in schemas.items():
            require_columns(f"the file {path!r}", schema.names, wanted)
        return pa.schema([
            (column, common_arrow_type(what, column, [schema.field(column).type for schema in schemas.values()]))
            for column in wanted
        ])  # fmt: skip

    data = stream_of(common_schema, partial(arrow_batches, schemas))
    return ArrowSource(what, schemas[files[0]].names, common_schema, data)


def open_arrow(
    file: pa.NativeFile, options: pa.ipc.IpcReadOptions | None = None
) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    """A reader of Arrow's file or stream format."""
    start = file.read(6)
    file.seek(0)
    if start == b"ARROW1":
        return pa.ipc.open_file(file, options=options)
    return pa.ipc.open_stream(file, options=options)


def arrow_batches(schemas: dict[str, pa.Schema], wanted: list[str], common: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The wanted columns of all files in the common schema."""
    for path, schema in schemas.items():
        options = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(column) for column in wanted])
        with pa.OSFile(path, "r") as file:
            reader = open_arrow(file, options)
            for batch in (
                map(reader.get_batch, range(reader.num_record_batches))
                if isinstance(reader, pa.ipc.RecordBatchFileReader)
                else reader
            ):
                for column in batch.columns:
                    validate(column)
                columns = [batch.column(field.name).cast(field.type) for field in common]
                rows = pa.RecordBatch.from_arrays(columns, schema=common)
                yield from (rows.slice(start, BATCH) for start in range(0, rows.num_rows, BATCH))


def common_arrow_type(what: str, column: str, kinds: Sequence[pa.DataType]) -> pa.DataType:
    """A type that holds all values of a column in several Arrow files exactly."""
    different = [kind for kind in dict.fromkeys(kinds) if not pa.types.is_null(kind)]
    if len(different) <= 1:
        return (different or [pa.string()])[0]
    for alike in (pa.types.is_signed_integer, pa.types.is_unsigned_integer, pa.types.is_floating):
        if all(alike(kind) for kind in different):
            return max(different, key=lambda kind: kind.bit_width)
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in different]
    if all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in plain):
        return pa.large_string()
    raise types_differ(what, column, [str(kind) for kind in different])


# The line ending is given: DuckDB would take that of the header, and a row with another one would change the rows
# after it. With this setting all three end a line. The sizes are those that `check_quotes` relies on.
ROWS: Final = (
    "auto_detect=false, comment='', skip=0, nullstr='', ignore_errors=true, strict_mode=false, new_line='\\n', "
    f"max_line_size={SKIPPED}, buffer_size={BUFFER}"
)
# Not parallel: readers that begin in the middle guess whether they are within quotes, so one user's text with a
# line break there could remove or invent rows of others.
CSV: Final = f"header=true, quote='\"', escape='\"', parallel=false, {ROWS}"
DELIMITERS: Final = ",;|\t"
LONGEST_HEADER: Final = 1 << 20


def read_csv(files: list[str], names: list[str], delimiter: str) -> str:
    """The FROM item of CSV files with these columns, under the names c0, c1, ..."""
    fields = [f"c{k}" for k in range(len(names))]
    columns = ", ".join(f"'{field}': 'VARCHAR'" for field in fields)
    options = f"{CSV}, delim={text(delimiter)}, {folder_options(files, [*names, *fields])}"
    return f"read_csv({path_list(files)}, columns={{{columns}}}, {options})"


def csv_headers(
    files: list[str], kind: str, what: str, encoding: str | None = None, delimiter: str | None = None
) -> tuple[str, dict[str, tuple[str, ...]]]:
    """The delimiter of CSV files, if it is not given, and the column names of each file that is not empty."""
    lines = {}
    for path in files:
        if file_head(path, 1):
            lines[path] = attempt(partial(first_line, path, codec_of(encoding)), f"the file {path!r}")
    if not lines:
        raise InputError(f"{what} is empty (no header row)")
    # By default the one that is most frequent in the first header line, outside quotes.
    unquoted = re.sub(r'"[^"]*"', "", next(iter(lines.values())))
    separator = delimiter or ("\t" if kind == "tsv" else max(DELIMITERS, key=unquoted.count))
    return separator, {path: header_of(path, line, separator, encoding) for path, line in lines.items()}


def copy_as_utf8(connection: DuckDBPyConnection, files: Sequence[str], codec: str) -> dict[str, str]:
    """Each file's copy in UTF-8, in the private folder of the session, which removes it."""

    def copy_file(path: str) -> str:
        # Folders named key=value add columns.
        keys = [part for part in Path(os.path.abspath(path)).parent.parts if "=" in part]
        folder = Path(tempfile.mkdtemp(dir=work)).joinpath(*keys)
        folder.mkdir(parents=True, exist_ok=True)
        copy = folder / "utf-8.csv"
        with open_text(path) as source, copy.open("wb") as target:
            convert_to_utf8(source, codec, target, f"the file {path!r}")
        return str(copy)

    work = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0][0]
    return {path: attempt(partial(copy_file, path), f"the file {path!r}") for path in files}


def first_line(path: str, codec: str = "utf-8") -> str:
    """The first line of a file, compressed or not, with what is not text as surrogates."""
    errors = "surrogateescape" if codec == "utf-8" else UNREADABLE
    with io.TextIOWrapper(cast("IO[bytes]", open_text(path)), codec, errors, newline="") as lines:
        line = lines.readline(LONGEST_HEADER + 1).removeprefix("\ufeff")
    if len(line) > LONGEST_HEADER:
        raise InputError(f"the header line of the file {path!r} is longer than {LONGEST_HEADER >> 20} MB")
    return line


def header_of(path: str, line: str, delimiter: str, encoding: str | None = None) -> tuple[str, ...]:
    """The column names in the header line of a CSV file."""

    def one_line() -> Iterator[str]:
        line.encode("utf-8")
        yield line
        # The reader continues an open quote in the next line, which may be a user's row.
        raise InputError(f"the header of the file {path!r} does not end in its first line: a quote is not closed")

    expected = "UTF-8 (then give <--encoding>)" if encoding is None else encoding
    wrong = f"{{what}} cannot be read: its header line is not {expected}, or it is damaged"
    names = attempt(lambda: next(csv.reader(one_line(), delimiter=delimiter), []), f"the file {path!r}", wrong)
    return tuple(header_names(names))


# The delimiter is a control character, which is invalid in JSON, so each line is one field.
LINE: Final = "dphist_line"
LINES: Final = f"header=false, quote='', escape='', delim='\x01', columns={{'{LINE}': 'VARCHAR'}}, {ROWS}, {HIVE}"


def json_source(connection: DuckDBPyConnection, what: str, files: list[str], kind: str) -> Source:
    """JSON lines, or arrays of objects in files named .json."""
    starts = json_starts(files)
    arrays = kind == "json" and b"[" in starts
    if arrays and not {*starts} <= {b"[", b""}:
        raise InputError(f"{what} holds arrays in some files and lines in others; give files of one kind")
    if arrays:
        relation, line = f"read_json_objects({path_list(files)}, format='array', {HIVE})", "json"
    else:
        relation = f"read_csv({path_list(files)}, {LINES})"
        # DuckDB counts the empty lines before a line, 2048 at most, towards the length from which it skips lines.
        line = f"CASE WHEN strlen({LINE}) <= {SKIPPED - EMPTY} AND json_valid({LINE}) THEN {LINE} END"
    folder_keys = [column for column, _ in attempt(partial(describe, connection, relation), what)[1:]]

    def open_keys(wanted: list[str]) -> Opened:
        """Columns by their exact keys; a row's own value takes precedence over its folder's."""
        pointers = ", ".join(text("/" + key.replace("~", "~0").replace("/", "~1")) for key in wanted)
        cells = f"json_extract_string({line}, [{pointers}]) AS cells"
        chosen = [cells, *(f"{name(key)} AS folder{k}" for k, key in enumerate(folder_keys))]
        columns = {key: (f"cells[{k + 1}]", "VARCHAR") for k, key in enumerate(wanted)}
        for k, key in enumerate(folder_keys):
            if key in columns:
                columns[key] = (f"coalesce({columns[key][0]}, folder{k})", "VARCHAR")
        return Opened(f"(SELECT {', '.join(chosen)} FROM {relation})", columns)

    return Source(what, None, open_keys)


def json_starts(files: Sequence[str]) -> list[bytes]:
    """The first byte of each file that is not white space; an error for a byte order mark."""

    def start_of(path: str) -> bytes:
        with open_text(path) as stream:
            for _ in range(LONGEST_HEADER >> 12):
                block = stream.read(1 << 12)
                if not block:
                    return b""
                if start := bytes(block).lstrip(b" \t\r\n"):
                    if start.startswith(b"\xef\xbb\xbf"):
                        raise InputError(
                            f"the file {path!r} begins with a byte order mark, which JSON forbids: remove it"
                        )
                    return start[:1]
        raise InputError(f"the file {path!r} begins with more than {LONGEST_HEADER >> 20} MB of white space")

    return [attempt(partial(start_of, path), f"the file {path!r}") for path in files]
