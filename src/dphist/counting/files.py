"""Files: Parquet, CSV, JSON and Arrow; single ones, lists, globs, and folders of one format.

Folders named key=value add columns of text, unless a file has a column of that name: a column is never replaced
silently.

CSV and JSON have no types: all of their values are text, so that no value decides about another. CSV: 007 stays
007; an empty field, quoted or not, is NULL; the delimiter is that of the header line. JSON: strings as they are,
numbers as DuckDB writes them (1 and 1.0 are two texts), true and false, lists and objects as their JSON; null and
a missing key are NULL. Every key is a column, because only reading all rows could say which keys exist. Rows that
cannot be read (too few fields, not UTF-8, not JSON, longer than 2 MB) are left out: an error would tell of them.
Only a JSON array is one value as a whole, and it must be valid as a whole.
"""

from __future__ import annotations

import csv
import glob
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from dphist.counting.frames import BATCH, ArrowSource
from dphist.counting.sql import FLOATS, WHOLE, Opened, Source, demand, describe, name, text
from dphist.counting.task import FORMATS
from dphist.counting.workspace import attempt, header_names, name_list, private_folder
from dphist.errors import DphistError, InputError
from dphist.objects import copy_objects, is_object, scheme_of, without_secrets

NAMES: Final = {suffix[1:]: kind for suffix, kind in FORMATS.items()}
COMPRESSED: Final = (".gz", ".zst")
COMPRESSION_MARKS: Final = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
_LONGEST_MARK: Final = max(map(len, COMPRESSION_MARKS))
SPOOL: Final = 1 << 20


def files_of(source: Any, file_format: str | None) -> tuple[list[str], str]:
    """The files that a path, a glob, a folder or a list of them stands for, and their one format."""
    known = None if file_format is None else known_format(file_format)
    found: list[str] = []
    for one in source if isinstance(source, (tuple, list)) else [source]:
        if not isinstance(one, (str, os.PathLike)):
            raise InputError(f"a list of files must hold paths, not an object of type {type(one).__qualname__!r}")
        found += matching_files(os.fspath(one))
    if not found:
        raise InputError("the list of files is empty")
    if known is not None:
        return found, known
    kinds = {kind_of(path): path for path in reversed(found)}
    if len(kinds) > 1:
        raise InputError(
            f"the files have several formats, such as {name_list(list(kinds.values()))}; give files of one format"
        )
    return found, next(iter(kinds))


def known_format(given: str) -> str:
    """The format by the name that the user gave it."""
    kind = NAMES.get(given.lower().lstrip("."))
    if kind is None:
        raise InputError(f"the format {given!r} is not known; known formats are {', '.join(NAMES)}")
    return kind


@contextmanager
def spool_stdin(kind: str, folder: Path | None) -> Iterator[str]:
    """A file with all of standard input, in a private folder that is gone afterwards, even after a kill.

    Messages name it as what it is. Whether it is compressed shows in its first bytes.
    """
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or stream.closed or stream.isatty():
        raise InputError("there is nothing on standard input: pipe the events into the command")
    with private_folder(folder) as work:

        def spool() -> str:
            # In pieces as they come: while a whole block is awaited, Python handles no signal.
            first = b""
            while len(first) < _LONGEST_MARK and (piece := stream.read1(SPOOL)):
                first += piece
            ending = next((end for mark, end in COMPRESSION_MARKS.items() if first.startswith(mark)), "")
            path = work / f"input.{kind}{ending}"
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(first)
                while piece := stream.read1(SPOOL):
                    file.write(piece)
            return str(path)

        path = attempt(spool, "standard input", "{what} cannot be read")
        with _named_as_given({f"the file {path!r}": "standard input", repr(path): "standard input"}):
            yield path


@contextmanager
def spool_objects(given: Sequence[str], folder: Path | None) -> Iterator[tuple[str, ...]]:
    """Local paths, with copies of the objects among them in a private folder that is gone afterwards."""
    with private_folder(folder) as work:
        found: list[str] = []
        for number, one in enumerate(given):
            place = work / str(number)
            found += (
                attempt(lambda one=one, place=place: copy_objects(one, place), without_secrets(one))  # type: ignore[misc]
                if is_object(one)
                else matching_files(one)
            )
        scheme = next(one for one in given if is_object(one)).partition("://")[0]
        with _named_as_given({f"{work}{os.sep}{number}{os.sep}": f"{scheme}://" for number in range(len(given))}):
            yield tuple(found)


@contextmanager
def _named_as_given(names: Mapping[str, str]) -> Iterator[None]:
    """Errors name an input as it was given, and not the copy of it."""
    try:
        yield
    except DphistError as error:
        said = error.with_flags
        for own, name in names.items():
            said = said.replace(own, name)
        error.args = (said,)
        raise


def given_paths(source: Any) -> list[str]:
    """The paths and addresses that an input names; none for a frame."""
    given = source if isinstance(source, (tuple, list)) else [source]
    return [os.fspath(one) for one in given if isinstance(one, (str, os.PathLike))]


def matching_files(path: str) -> list[str]:
    """The files of one path: itself, those of a folder, or those of a pattern."""
    scheme = scheme_of(path)
    if scheme is not None:
        raise InputError(f"events cannot be read from {scheme}:// addresses; download the files first")
    if os.path.isdir(path):
        root = Path(path)
        inside = sorted(str(one) for one in root.rglob("*") if one.is_file() and not is_hidden(one, root))
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


def is_hidden(path: Path, root: Path) -> bool:
    """Names that begin with a dot or an underscore are other programs' notes, not data."""
    return any(part.startswith((".", "_")) for part in path.relative_to(root).parts)


def kind_of(path: str) -> str:
    """The format by the ending of a name."""
    plain = Path(path.lower())
    squeezed = plain.suffix in COMPRESSED
    kind = FORMATS.get(plain.with_suffix("").suffix if squeezed else plain.suffix)
    if kind is None or (squeezed and kind not in ("csv", "tsv", "json", "jsonl")):
        raise InputError(
            f"the name {without_secrets(path)!r} does not tell the format; give --input-format, one of "
            f"{', '.join(NAMES)}"
        )
    return kind


def readable(files: list[str]) -> list[str]:
    """The files that are not empty; all must be readable."""

    def first(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read(1)

    return [path for path in files if attempt(lambda path=path: first(path), f"the file {path!r}")]  # type: ignore[misc]


def file_source(connection: Any, files: list[str], kind: str, label: str, probe: bool) -> Source:
    """The source for data files of one format."""
    what = f"the file {files[0]!r}" if len(files) == 1 else f"the input of {len(files)} files ({files[0]!r} ...)"
    if kind in ("json", "jsonl"):
        return json_source(connection, what, files, kind)  # an empty file has no rows
    if kind in ("csv", "tsv"):
        mark, headers = csv_headers(files, kind, what)
        return grouped_source(connection, what, headers, lambda some, names: read_csv(some, names, mark))
    if not readable(files):
        raise InputError(f"{what} is empty: it has no columns")
    if kind == "parquet":
        footers = {path: parquet_header(path) for path in files}
        return grouped_source(
            connection, what, footers, lambda some, names: f"read_parquet({paths(some)}, {folders(some, names)})"
        )
    return arrow_source(what, files).as_source(connection, label, probe)


HIVE: Final = "hive_types_autocast=false"
NOTHING: Final = '"NULL"'  # DuckDB's name for the type of a column that can hold no value
DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
DIGITS: Final = 38


def files_by_header(headers: Mapping[str, Sequence[Any]]) -> dict[tuple[Any, ...], list[str]]:
    """Files with equal headers together."""
    alike: dict[Any, list[str]] = {}
    for path, header in headers.items():
        alike.setdefault(tuple(header), []).append(path)
    return alike


def grouped_source(
    connection: Any, what: str, headers: Mapping[str, Sequence[Any]], reader: Callable[[list[str], list[str]], str]
) -> Source:
    """Files whose columns may be in different orders, and of types that one type can hold.

    Files with equal headers are read together; `reader` makes the SQL for files and the names of their columns.
    """
    # Of each group its first file, the FROM item, the names of its columns, and DuckDB's names and types for them.
    groups = []
    for header, files in files_by_header(headers).items():
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in header]
        relation = reader(files, names)
        sql = attempt(lambda relation=relation: describe(connection, relation), f"the file {files[0]!r}")  # type: ignore[misc]
        # Folders named key=value add columns after those of the files.
        names += [column for column, _ in sql[len(names) :]]
        groups.append((files[0], relation, names, dict(zip(names, sql, strict=True))))

    def open_groups(wanted: list[str]) -> Opened:
        for file, _, names, _ in groups:
            demand(f"the file {file!r}", names, wanted)
        empty = {
            column: common_sql_type(what, column, [columns[column][1] for *_, columns in groups])
            for column in wanted
        }
        parts = []
        for _, relation, _, columns in groups:
            chosen = ", ".join(
                f"CAST(NULL AS {empty[column]}) AS c{k}" if kind == NOTHING else f"{name(sql)} AS c{k}"
                for k, (column, (sql, kind)) in enumerate((column, columns[column]) for column in wanted)
            )
            parts.append(f"SELECT {chosen} FROM {relation}")
        joined = f"({' UNION ALL '.join(parts)})"
        types = attempt(lambda: describe(connection, joined), what)
        # Only Parquet reads some columns without reading all of the file.
        again = all(relation.startswith("read_parquet(") for _, relation, _, _ in groups)
        return Opened(joined, dict(zip(wanted, types, strict=True)), again=again)

    # The columns of the first file; the others are checked when opened.
    return Source(what, groups[0][2], open_groups)


def common_sql_type(what: str, column: str, kinds: Sequence[str]) -> str:
    """One of a column's types in several files, after making sure that joining them merges and splits no values.

    Whole numbers as floats would merge (2^53 and 2^53 + 1), and numbers as text would split (7 and 7.0).
    """
    different = sorted({kind for kind in kinds if kind != NOTHING})
    alike = len(different) <= 1 or set(different) <= WHOLE or set(different) <= FLOATS or decimals(different)
    if not alike:
        raise types_differ(what, column, different)
    return different[0] if different else "VARCHAR"


def types_differ(what: str, column: str, kinds: Sequence[str]) -> InputError:
    """The error of a column that has different types in several files."""
    return InputError(
        f"the column {column!r} of {what} has types that cannot be joined without loss: {' and '.join(kinds)}; "
        "write the files with one type"
    )


def decimals(kinds: Sequence[str]) -> bool:
    """Whether all are decimals that one decimal can hold."""
    found = [DECIMAL.fullmatch(kind) for kind in kinds]
    sizes = [(int(one[1]) - int(one[2]), int(one[2])) for one in found if one is not None]
    return len(sizes) == len(kinds) and max(n for n, _ in sizes) + max(n for _, n in sizes) <= DIGITS


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


def parquet_header(path: str) -> tuple[Any, ...]:
    """Names and types of the columns."""
    import pyarrow.parquet as pq

    schema = attempt(lambda: pq.read_schema(path), f"the file {path!r}")
    for entry in schema:
        if str(entry.type).startswith("decimal256"):
            # DuckDB would read it as floats, and merge values that differ in their last digits.
            raise InputError(f"the column {entry.name!r} of {path!r} has decimals of more than 38 digits")
    return tuple((entry.name, str(entry.type)) for entry in schema)


def arrow_source(what: str, files: list[str]) -> ArrowSource:
    """Arrow files and streams, one batch at a time: Arrow's memory is not under DuckDB's limit."""
    import pyarrow as pa

    def schema_of(path: str) -> Any:
        with pa.OSFile(path) as file:
            return open_arrow(file).schema

    schemas = {path: attempt(lambda path=path: schema_of(path), f"the file {path!r}") for path in files}  # type: ignore[misc]

    def common(wanted: list[str]) -> Any:
        for path, schema in schemas.items():
            demand(f"the file {path!r}", schema.names, wanted)
        return pa.schema([
            (column, common_arrow_type(what, column, [schema.field(column).type for schema in schemas.values()]))
            for column in wanted
        ])  # fmt: skip

    def read(wanted: list[str]) -> Any:
        whole = common(wanted)
        return pa.RecordBatchReader.from_batches(whole, arrow_batches(schemas, wanted, whole))

    return ArrowSource(what, schemas[files[0]].names, common, read)


def open_arrow(file: Any, options: Any = None) -> Any:
    """A reader of Arrow's file format, or of its stream format, which has no table of contents."""
    import pyarrow as pa

    start = file.read(6)
    file.seek(0)
    return (pa.ipc.open_file if start == b"ARROW1" else pa.ipc.open_stream)(file, options=options)


def arrow_batches(schemas: dict[str, Any], wanted: list[str], whole: Any) -> Iterator[Any]:
    """The wanted columns of all files in the types of the schema `whole`."""
    import pyarrow as pa

    for path, schema in schemas.items():
        options = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(column) for column in wanted])
        with pa.OSFile(path) as file:
            reader = open_arrow(file, options)
            count = getattr(reader, "num_record_batches", None)
            for batch in reader if count is None else map(reader.get_batch, range(count)):
                columns = [batch.column(entry.name).cast(entry.type) for entry in whole]
                rows = pa.RecordBatch.from_arrays(columns, schema=whole)
                yield from (rows.slice(start, BATCH) for start in range(0, rows.num_rows, BATCH))


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
    raise types_differ(what, column, [str(kind) for kind in different])


ROWS: Final = "auto_detect=false, comment='', skip=0, nullstr='', ignore_errors=true, strict_mode=false"
# One reader from end to end: several of them begin in the middle and guess whether they are within quotes, and one
# user's text with a line break at such a place would lose, or make up, the rows of others.
CSV: Final = f"header=true, quote='\"', escape='\"', parallel=false, {ROWS}"
DELIMITERS: Final = ",;|\t"


def read_csv(files: list[str], names: list[str], delimiter: str) -> str:
    """The FROM item of CSV files with these columns, which it calls c0, c1, ...; quotes are always double."""
    fields = [f"c{k}" for k in range(len(names))]
    columns = ", ".join(f"'{field}': 'VARCHAR'" for field in fields)
    options = f"{CSV}, delim={text(delimiter)}, {folders(files, [*names, *fields])}"
    return f"read_csv({paths(files)}, columns={{{columns}}}, {options})"


def csv_headers(files: list[str], kind: str, what: str, *, line_feed: bool = False) -> tuple[str, dict[str, Any]]:
    """The delimiter of CSV files, and the names of the columns of each that is not empty.

    With `line_feed` a file whose lines end with a carriage return alone is an error.
    """
    lines = {}
    for path in readable(files):
        lines[path] = attempt(lambda path=path: first_line(path), f"the file {path!r}")  # type: ignore[misc]
        if line_feed and lines[path].endswith("\r"):
            raise InputError(
                f"the lines of the file {path!r} end with a carriage return alone: use the engine duckdb"
            )
    if not lines:
        raise InputError(f"{what} is empty (no header row)")
    # The most frequent in the header line of the first file, outside quotes.
    unquoted = re.sub(r'"[^"]*"', "", next(iter(lines.values())))
    delimiter = "\t" if kind == "tsv" else max(DELIMITERS, key=unquoted.count)
    return delimiter, {path: header_of(path, line, delimiter) for path, line in lines.items()}


def first_line(path: str) -> str:
    """The first line of a file, compressed or not. Bytes that are not UTF-8 stay apart."""
    import pyarrow as pa

    with io.TextIOWrapper(pa.input_stream(path), "utf-8-sig", "surrogateescape", newline="") as lines:
        return lines.readline()


def header_of(path: str, line: str, delimiter: str) -> tuple[str, ...]:
    """The names of the columns in the header line of a CSV file."""

    def one_line() -> Iterator[str]:
        """The line; what a quote without its end would take for a part of it may be users' rows."""
        line.encode("utf-8")
        yield line
        raise InputError(f"the header of the file {path!r} does not end in its first line: a quote is not closed")

    wrong = "{what} cannot be read: its header line is not UTF-8 text, or it is damaged"
    names = attempt(lambda: next(csv.reader(one_line(), delimiter=delimiter), []), f"the file {path!r}", wrong)
    return tuple(header_names(names))


# A control character cannot be in a valid line of JSON, so each line is one field.
LINE: Final = "dphist_line"
LINES: Final = f"header=false, quote='', escape='', delim='\x01', columns={{'{LINE}': 'VARCHAR'}}, {ROWS}, {HIVE}"


def json_source(connection: Any, what: str, files: list[str], kind: str) -> Source:
    """JSON lines, or JSON arrays of objects in files named .json. Any name may be a key: keys are data."""
    starts = json_starts(files)
    arrays = kind == "json" and b"[" in starts
    if arrays and not {*starts} <= {b"[", b""}:
        raise InputError(f"{what} holds arrays in some files and lines in others; give files of one kind")
    if arrays:
        relation, line = f"read_json_objects({paths(files)}, format='array', {HIVE})", "json"
    else:
        relation = f"read_csv({paths(files)}, {LINES})"
        line = f"CASE WHEN json_valid({LINE}) THEN {LINE} END"
    folder_keys = [column for column, _ in attempt(lambda: describe(connection, relation), what)[1:]]

    def open_keys(wanted: list[str]) -> Opened:
        """Columns by the exact names of their keys; what a row has itself comes before its folder."""
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
    """The first byte of each file that is not blank; an error for a byte order mark."""
    import pyarrow as pa

    def start_of(path: str) -> bytes:
        with pa.input_stream(path) as stream:
            while block := stream.read(4096):
                if start := bytes(block).lstrip(b" \t\r\n"):
                    if start.startswith(b"\xef\xbb\xbf"):
                        raise InputError(
                            f"the file {path!r} begins with a byte order mark, which JSON forbids; remove it"
                        )
                    return start[:1]
        return b""

    return [attempt(lambda path=path: start_of(path), f"the file {path!r}") for path in files]  # type: ignore[misc]
