"""Read a release and its certificate, and report whether they match. Both may be of unknown origin.

A few hundred KB of Parquet, or of a database, can decode to any number of GB, and a damaged file can end the
process that decodes it. So the decoder is a child process with limits of memory and time: it reads from an open
file or a database, and streams batches of Arrow to its standard output until it is done or reaches a limit. Text
files need none of this: they decode to a few times their size.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from dphist.errors import InputError, MissingExtra, package
from dphist.objects import beside, copy_objects, exists, is_object, is_postgres, name_of, without_secrets
from dphist.outputs.formats import (
    ESCAPES,
    LARGEST_CERTIFICATE,
    PACKED,
    SIGNATURE,
    digest_of,
    holds,
    output_of,
    parse_certificate,
    read_text,
    restore_column,
    same_json,
    types_of,
)
from dphist.outputs.spark_folder import CERTIFICATE as FOLDER_CERTIFICATE
from dphist.outputs.spark_folder import whole_digest
from dphist.outputs.stores import CERTIFICATE_COLUMN, Store, StoreError, open_store
from dphist.outputs.target import CERTIFICATE, DATABASES, KINDS, Target, suffix_kind, target_of
from dphist.publishing import open_regular

# A table may take so many bytes in memory, or so many times the bytes of its file, whichever is more.
LEAST_BYTES: Final = 1 << 30
TIMES: Final = 32
# Packed text is parsed in this process, where it takes a few times its size.
LEAST_TEXT: Final = 256 << 20
_BLOCK: Final = 1 << 20
# What the decoder takes for itself: its libraries, and what it holds of a batch.
_OVERHEAD: Final = 1 << 30
SECONDS = 600.0
_ROWS: Final = 8192
MOST_COLUMNS: Final = 2000
# Types that no release has: a few bytes of them may stand for any number of values.
_FOLDED: Final = (
    "dictionary", "string_view", "binary_view", "list_view", "large_list_view", "run_end_encoded", "dense_union",
    "sparse_union",
)  # fmt: skip
_REFUSED, _TOO_LARGE, _FAILED = 3, 4, 5
_NO_MATCH: Final = "does not match the digest in its certificate: one of them was changed or damaged"
# Some minutes of work to digest; a sparse file can be of any size.
_LARGEST_FILE: Final = 256 << 30
_LARGEST_ANSWER: Final = 4 << 30


class Absent(InputError):
    """There is no release at the address, nor anything else."""


@dataclass(frozen=True)
class Readback:
    """A release as it was found. `table` and `document` are None where they cannot be read, or do not match.

    `problems` are sentences, none of which repeats a cell; without a problem data and certificate match.
    """

    table: Any | None
    document: dict[str, Any] | None
    digest_matches: bool
    problems: tuple[str, ...]


def read_release(
    address: str | os.PathLike[str], table: str | None = None, certificate: str | os.PathLike[str] | None = None
) -> Readback:
    """Read a release back. `certificate` is its file, or for a database its table, if not next to the release.

    Raises `InputError` where there are no data to read; whatever is wrong with them is in `problems`.
    """
    name = os.fspath(address)
    if is_object(name) or (certificate is not None and is_object(os.fspath(certificate))):
        with tempfile.TemporaryDirectory(prefix="dphist-read-") as folder:
            return read_release(*_fetch_objects(name, table, certificate, Path(folder)))
    if is_postgres(name):
        return _from_database(target_of(name, table), certificate)
    if not os.path.isfile(name) and not os.path.isdir(name):
        raise Absent(f"there is no file {without_secrets(name)}")
    try:
        if os.path.isdir(name):
            return _from_folder(Path(name), certificate)
        kind = suffix_kind(name) or _database_kind(Path(name))
        if kind in DATABASES:
            return _from_database(target_of(name, table, kind), certificate)
        return _from_file(Path(name), kind, certificate)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or 'reading it failed'}") from None


def _fetch_objects(
    name: str, table: str | None, certificate: str | os.PathLike[str] | None, folder: Path
) -> tuple[str, str | None, str | None]:
    """What to read instead of objects: copies of them. A missing certificate is missing there too."""
    copies = {}
    sealed = beside(name, CERTIFICATE) if certificate is None else os.fspath(certificate)
    for place, given in (("data", name), ("certificate", sealed)):
        copies[place] = given
        if is_object(given):
            copies[place] = str(folder / place / name_of(given))
            if exists(given):
                (copies[place],) = copy_objects(given, folder / place)
            elif place == "data":
                raise InputError(f"there is no file {without_secrets(given)}")
    return copies["data"], table, copies["certificate"]


def _database_kind(path: Path) -> str | None:
    """The kind of a database whose name has another ending."""
    with open_regular(path) as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        return "sqlite"
    return "duckdb" if head[8:12] == b"DUCK" else None


def _digest(file: BufferedReader) -> str:
    """Of the whole file; empty for one that is larger than any release, such as a sparse file."""
    if os.fstat(file.fileno()).st_size > _LARGEST_FILE:
        return ""
    return file_digest(file, "sha256").hexdigest()


def _certificate_file(path: Path, given: str | os.PathLike[str] | None) -> tuple[dict[str, Any] | None, list[str]]:
    where = Target(str(path), None, "csv").certificate_path if given is None else Path(given)
    try:
        with open_regular(where) as file:
            return parse_certificate(file.read(LARGEST_CERTIFICATE + 1), where.name)
    except FileNotFoundError:
        return None, [f"there is no certificate {where.name}: it was removed, or writing it was interrupted"]
    except OSError as error:
        return None, [f"the certificate {where.name} cannot be read: {error.strerror}"]


def _from_file(path: Path, kind: str | None, certificate: str | os.PathLike[str] | None) -> Readback:
    document, problems = _certificate_file(path, certificate)
    output = output_of(document)
    with open_regular(path) as file:
        matches = output.get("sha256") == _digest(file)
        if document is not None and not matches:
            problems.append(f"{path.name} {_NO_MATCH}")
        # The file may have been written in another format than its name says.
        chosen = next((each for each in KINDS if each == output.get("kind") and each not in DATABASES), kind)
        if chosen is None:
            problems.append(f"neither the name of {path.name} nor a certificate says what kind of file it is")
        if chosen is None or problems:
            return Readback(None, document, matches, tuple(problems))
        try:
            table = _read_file(file, chosen, output)
        except StoreError as error:
            return Readback(None, document, matches, (_unreadable(path.name, chosen, error),))
    return Readback(table, document, matches, _shape_problems(table, output, path.name, chosen))


def _unreadable(name: str, kind: str, error: StoreError) -> str:
    return f"{name} cannot be read as {kind}" + (f": {error}" if str(error) else "")


def _read_file(file: BufferedReader, kind: str, output: dict[str, Any]) -> Any:
    """The table of a file that matches its digest. Raises `StoreError`, without a reason if it is damaged."""
    names, rows = output.get("columns"), output.get("rows")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        names = []
    if len(names) > MOST_COLUMNS:
        raise StoreError(f"it has more than {MOST_COLUMNS:,} columns")
    try:
        if kind in ("parquet", "arrow"):
            return _restore_types(_decode_file(file, kind, rows if isinstance(rows, int) else 0), output)
        escaped = output.get("escape_formulas") is True
        text = _unpack(file) if kind.endswith(PACKED) else file
        return read_text(text, kind, types_of(output, names), names, escape_formulas=escaped)
    except (
        package("pyarrow").ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError,
        EOFError, zlib.error,
    ):  # fmt: skip
        # The error's own words could repeat a cell.
        raise StoreError("") from None


def _unpack(file: BufferedReader) -> BinaryIO:
    """The text of a packed file, which a few KB could stretch to any number of GB."""
    allowed, text = max(LEAST_TEXT, TIMES * os.fstat(file.fileno()).st_size), BytesIO()
    file.seek(0)
    with gzip.GzipFile(fileobj=file) as packed:
        while block := packed.read(_BLOCK):
            text.write(block)
            if text.tell() > allowed:
                raise StoreError(f"it unpacks to more than {allowed >> 20:,} MiB, which is too much for its size")
    return text


def _restore_types(table: Any, output: dict[str, Any]) -> Any:
    """The columns in the types they were written from."""
    types, names = types_of(output, table.column_names), table.column_names
    columns = [restore_column(c, types.get(n)) for n, c in zip(names, table.columns, strict=True)]
    return package("pyarrow").table(columns, names=names)


def _from_folder(path: Path, certificate: str | os.PathLike[str] | None) -> Readback:
    """A folder of Parquet files, as Spark writes it, with the certificate inside."""
    document, problems = _certificate_file(path, certificate or path / FOLDER_CERTIFICATE)
    output = output_of(document)
    parts = sorted(part for part in path.iterdir() if not part.name.startswith(("_", ".")))
    found = {}
    for part in parts:
        found[part.name] = ""  # anything but a file does not belong to a release
        if part.is_file() and not part.is_symlink():
            with open_regular(part) as file:
                found[part.name] = _digest(file)
    matches = same_json(output.get("files"), found) and output.get("sha256") == whole_digest(found)
    if document is not None and not matches:
        problems.append(f"the files in {path.name} do not match the digests in its certificate")
    if problems:
        return Readback(None, document, matches, tuple(problems))
    try:
        table = _read_parts(parts)
    except StoreError as error:
        return Readback(None, document, matches, (_unreadable(path.name, "a folder of Parquet files", error),))
    return Readback(table, document, matches, _shape_problems(table, output, path.name, "folder"))


def _read_parts(parts: list[Path]) -> Any:
    """All files of a folder together; a part may be as large as they may be together."""
    pa = package("pyarrow")
    allowed, tables = _bytes_allowed(sum(part.stat().st_size for part in parts)), []
    for part in parts:
        with open_regular(part) as file:
            tables.append(_decode_file(file, "parquet", None))
        if sum(table.nbytes for table in tables) > allowed:
            raise StoreError("it takes too much memory for its size")
    try:
        # Spark writes a file even where no row was released.
        return pa.concat_tables(tables)
    except (pa.ArrowException, ValueError):
        raise StoreError("") from None


def _shape_problems(
    table: Any, output: dict[str, Any], title: str, kind: str, *, signed: bool = False
) -> tuple[str, ...]:
    """Whether the certificate's facts of the output are true; `table` has the types that it was written from."""
    shape = {"kind": kind, "columns": table.column_names, "rows": table.num_rows}
    # Spark has other names for types, which are in the files themselves.
    if kind == "folder":
        shape["files"] = output.get("files")
    else:
        shape["types"] = _types(table, output.get("types"), exact=kind in ("parquet", "arrow"))
    if kind in ESCAPES and "escape_formulas" in output:
        shape["escape_formulas"] = True
    # The name of a database is in a certificate that is signed, and compared with the signature.
    stated = {"name", "sha256", *({"database"} if signed and kind in ("sqlite", "duckdb") else ())}
    problems = []
    if not same_json({name: value for name, value in output.items() if name not in stated}, shape):
        problems.append(f"{title} does not have the columns, types or rows that its certificate says")
    if not isinstance(output.get("name"), str):
        problems.append("the certificate does not name what it belongs to")
    return tuple(problems)


def _types(table: Any, said: Any, *, exact: bool) -> list[str]:
    """The types of the columns; as the certificate has them where text stands for them, or types are nested."""
    kinds = table.schema.types
    if not isinstance(said, list) or len(said) != len(kinds) or not all(isinstance(one, str) for one in said):
        return [str(kind) for kind in kinds]
    nested = package("pyarrow").types.is_nested
    return [
        one if nested(kind) or (not exact and str(kind) == "string") else str(kind)
        for kind, one in zip(kinds, said, strict=True)
    ]


def _from_database(target: Target, certificate: str | os.PathLike[str] | None) -> Readback:
    name = target.certificate_table if certificate is None else os.fspath(certificate)
    try:
        if target.kind == "postgresql":
            table, cells = _read_server(target, name)
        else:
            job = {"path": os.path.abspath(target.address), "table": target.table_name, "certificate": name}
            # Open until it is read: to close it would end a lock that this process holds on the database.
            with open_regular(target.path) as file:
                size = os.fstat(file.fileno()).st_size
                found, table = _decode({"kind": target.kind, **job}, _bytes_allowed(size), 2)
            cells = found.column(0).to_pylist() if found.num_columns else None
    except StoreError as error:
        if error.trouble == "absent":
            raise Absent(f"there is no {target.title()}") from None
        if error.trouble == "unavailable":
            raise InputError(f"{target.title()} cannot be read: {error}") from None
        return Readback(None, None, False, (f"{target.title()} cannot be read: {error}",))
    title = f"the certificate in table {name}"
    if cells is None:
        document, problems = None, [f"there is no certificate: no table {name}"]
    elif len(cells) != 1 or cells[0] is None:
        document, problems = None, [f"{title} is not one text of at most {LARGEST_CERTIFICATE >> 20} MiB"]
    else:
        document, problems = parse_certificate(cells[0], title)
    pa, output = package("pyarrow"), output_of(document)
    try:
        digest = digest_of(table)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        problems.append(f"{target.title()} has values that were not written by dphist")
        return Readback(None, document, False, tuple(problems))
    matches = output.get("sha256") == digest
    if document is not None and not matches:
        problems.append(f"{target.title()} {_NO_MATCH}")
    table = _restore_types(table, output)
    if document is not None:
        problems += _shape_problems(table, output, target.title(), target.kind, signed=SIGNATURE in document)
    return Readback(table, document, matches, tuple(problems))


def _parts_of_store(store: Store, table: str, certificate: str) -> tuple[list[str | None] | None, Iterator[Any]]:
    """The cells of the table of a certificate, None if there is none, and the rows of the release."""
    if store.find(table) is None:
        raise StoreError("there is no such table", "absent")
    cells = None if store.find(certificate) is None else store.read_certificate(certificate)
    if cells is not None:
        cells = [c if isinstance(c, str) and len(c) <= LARGEST_CERTIFICATE else None for c in cells]
    return cells, store.batches(table)


def _read_server(target: Target, certificate: str) -> tuple[Any, list[str | None] | None]:
    """From PostgreSQL, in this process: the server has limits of its own."""
    with open_store(target.kind, target.address) as store:
        cells, batches = _parts_of_store(store, target.table_name, certificate)
        found, size = [], 0
        for batch in batches:
            size += batch.nbytes
            if size > _LARGEST_ANSWER:
                raise StoreError("it has more rows than can be held in memory")
            found.append(batch)
        return package("pyarrow").Table.from_batches(found), cells


# ----------------------------------------------------------------------------------------------------- the decoder


def _bytes_allowed(size: int) -> int:
    """How many bytes a table of a file of this size may take."""
    return max(LEAST_BYTES, TIMES * size)


def _decode_file(file: BinaryIO, kind: str, rows: int | None) -> Any:
    """The table of an open Parquet or Arrow file that has this many rows. Raises `StoreError`."""
    file.seek(0)
    limit = _bytes_allowed(os.fstat(file.fileno()).st_size)
    return _decode({"kind": kind, "rows": rows}, limit, 1, file)[0]


def _decode(job: dict[str, Any], limit: int, number: int, file: BinaryIO | None = None) -> list[Any]:
    """So many tables that a child process decodes. Raises `StoreError` with the reason why it did not."""
    pa, late = package("pyarrow"), threading.Event()
    # Without the working folder among the places of modules: it may be a folder of downloads.
    command = [sys.executable, "-P", "-m", "dphist.outputs.readback", json.dumps({**job, "limit": limit})]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL if file is None else file, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    ) as process:  # fmt: skip

        def stop() -> None:
            late.set()
            process.kill()

        timer, tables = threading.Timer(SECONDS, stop), list[Any]()
        timer.start()
        try:
            with suppress(pa.ArrowException, OSError, EOFError):
                while len(tables) < number:
                    tables.append(_read_stream(process.stdout, limit))
            # A stream that breaks off looks like one that ends: the child must say that it was done.
            if len(tables) == number and process.wait() == 0:
                return tables
            _, said = process.communicate()
        finally:
            timer.cancel()
            process.kill()
    code = process.returncode
    if late.is_set():
        raise StoreError(f"reading it takes longer than {SECONDS:g} seconds")
    if code == _REFUSED:
        reason, trouble = json.loads(said)
        raise StoreError(reason, trouble)
    raise StoreError(_too_large(limit) if code == _TOO_LARGE else "it is damaged")


def _read_stream(file: Any, limit: int) -> Any:
    """The next table that the child has read."""
    pa = package("pyarrow")
    batches, taken = [], 0
    with pa.ipc.open_stream(file) as stream:
        for batch in stream:
            # Empty values count as well: a column of nulls takes no bytes until it is used.
            taken += max(batch.nbytes, 16 * batch.num_rows * batch.num_columns)
            if taken > limit:
                raise StoreError(_too_large(limit))
            batches.append(batch)
        return pa.Table.from_batches(batches, stream.schema)


def _too_large(limit: int) -> str:
    return f"its table takes more than {limit >> 20:,} MiB of memory, which is too much for its size"


def _run_child(job: dict[str, Any]) -> None:
    """Stream what the job asks for to standard output."""
    pa = package("pyarrow")
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    # Allocations fail beyond the limit, where the system can do that.
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (job["limit"] + _OVERHEAD, job["limit"] + _OVERHEAD))
    if job["kind"] in ("parquet", "arrow"):
        read = _parquet if job["kind"] == "parquet" else _arrow
        _stream(read(os.fdopen(0, "rb", closefd=False), job["rows"]))
        return
    with open_store(job["kind"], job["path"]) as store:
        cells, batches = _parts_of_store(store, job["table"], job["certificate"])
        columns = {} if cells is None else {CERTIFICATE_COLUMN: pa.array(cells, pa.string())}
        _stream(iter([pa.record_batch(columns)]))
        _stream(batches)


def _stream(batches: Iterator[Any]) -> None:
    """At least one batch, for its schema. In their order: each is gone before the next one is read."""
    out, first = os.fdopen(1, "wb", closefd=False), next(batches)
    with package("pyarrow").ipc.new_stream(out, first.schema) as writer:
        writer.write_batch(first)
        for batch in batches:
            writer.write_batch(batch)
    out.flush()


def _parquet(file: BinaryIO, rows: int | None) -> Iterator[Any]:
    found = package("pyarrow.parquet").ParquetFile(file)
    _check_shape(found.schema_arrow, found.metadata.num_rows, rows)
    yield package("pyarrow").RecordBatch.from_pylist([], found.schema_arrow)
    for batch in found.iter_batches(_ROWS, use_threads=False):
        # A damaged file can make a batch whose use would end the process.
        batch.validate(full=True)
        yield batch


def _arrow(file: BinaryIO, rows: int | None) -> Iterator[Any]:
    pa, seen = package("pyarrow"), 0
    with pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)) as found:
        _check_shape(found.schema, None, rows)
        yield pa.RecordBatch.from_pylist([], found.schema)
        for place in range(found.num_record_batches):
            batch = found.get_batch(place)
            batch.validate(full=True)
            seen += batch.num_rows
            _check_shape(found.schema, None if rows is None or seen <= rows else seen, rows)
            yield batch


def _check_shape(schema: Any, found: int | None, rows: int | None) -> None:
    """Before anything is decoded: types that a release has, and no more rows than its certificate says."""
    if len(schema) > MOST_COLUMNS:
        raise StoreError(f"it has more than {MOST_COLUMNS:,} columns")
    for kind in schema.types:
        if holds(kind, _FOLDED) or (kind.num_fields and holds(kind, ("null",))):
            raise StoreError("it has a column of a type that no release has")
    if found is not None and rows is not None and found != rows:
        raise StoreError("it does not have as many rows as its certificate says")


class _Without:
    """Lets imports of packages fail. Arrow imports pandas and numpy where they are installed: half of the time."""

    names: tuple[str, ...] = ("pandas", "numpy")

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname in self.names:
            raise ModuleNotFoundError(name=fullname)


def _main() -> None:
    without = _Without()
    sys.meta_path.insert(0, without)
    try:
        pa, code = package("pyarrow"), 0
    except MissingExtra:  # before version 18 it needs numpy
        without.names = ("pandas",)
        pa, code = package("pyarrow"), 0
    try:
        _run_child(json.loads(sys.argv[1]))
    except StoreError as error:
        sys.stderr.write(json.dumps([str(error), error.trouble]))
        code = _REFUSED
    except (MemoryError, pa.ArrowMemoryError):
        code = _TOO_LARGE
    except Exception:  # damaged in whatever way; the error's own words could repeat a cell
        code = _FAILED
    # Without the destructors of libraries that ran out of memory.
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _main()
