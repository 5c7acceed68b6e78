"""Read an untrusted release and its certificate, and report whether they match.

A few hundred KB of Parquet can decode to many GB, and a damaged file can crash the process that decodes it. So a
child process with limits on memory and time reads the open file, and streams Arrow batches to its standard output.
Text files decode to a few times their size and need no child.

A certificate of a database table has a digest of its values, which every file that the table is exported to keeps.
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
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa

from dphist.aliases import JsonObject
from dphist.certificate.cells import ESCAPES, PACKED, read_text, restore_column
from dphist.certificate.decoder import MOST_COLUMNS, REFUSED, TOO_LARGE, Unreadable
from dphist.certificate.endings import CERTIFICATE, DATABASES, FOLDER_CERTIFICATE, KINDS, suffix_kind, whole_digest
from dphist.certificate.schema import Output, output_of
from dphist.certificate.text import LARGEST_CERTIFICATE, parse_certificate
from dphist.errors import InputError
from dphist.files import PathLike, open_regular
from dphist.objects import beside, copy_objects, exists, is_object, is_postgres, name_of, without_secrets

# A table may take this much memory, or this many times the size of its file, whichever is more.
LEAST_BYTES: Final = 1 << 30
TIMES: Final = 32
# Packed text is parsed in this process, where it takes a few times its size.
LEAST_TEXT: Final = 256 << 20
_BLOCK: Final = 1 << 20
SECONDS = 600.0
_NO_MATCH: Final = "does not match the digest in its certificate: one of them was changed or damaged"
# Takes minutes to digest; a sparse file can have any size.
_LARGEST_FILE: Final = 256 << 30
_EXPORT: Final = (
    "{} is a database: export the table to a file, such as TABLE.csv, and run dphist verify TABLE.csv "
    "--certificate {}"
)


# Arrow imports pandas and numpy where they are installed, which would take half of the time.
_CHILD: Final = """
import sys
sys.modules["pandas"] = sys.modules["numpy"] = None
from dphist.certificate.decoder import decode_for_parent
decode_for_parent()
"""


class Absent(InputError):
    """There is nothing at the address."""


@dataclass(frozen=True)
class Readback:
    """A release as it was read. `table` and `document` are None if they cannot be read or do not match.

    `problems` are sentences that never quote a cell. Without problems, data and certificate match.
    """

    table: pa.Table | None
    document: JsonObject | None
    digest_matches: bool
    problems: tuple[str, ...]


def read_release(address: PathLike, certificate: PathLike | None = None) -> Readback:
    """Read a release back. `certificate` is its file, if it is not the usual one.

    Raises `InputError` if there is no data to read; anything wrong with it is in `problems`.
    """
    name = os.fspath(address)
    if is_postgres(name):
        raise InputError(_EXPORT.format(without_secrets(name), "FILE"))
    if is_object(name) or (certificate is not None and is_object(os.fspath(certificate))):
        with tempfile.TemporaryDirectory(prefix="dphist-read-") as folder:
            return read_release(*_fetch_objects(name, certificate, Path(folder)))
    if not os.path.isfile(name) and not os.path.isdir(name):
        raise Absent(f"there is no file {without_secrets(name)}")
    try:
        return (_from_folder if os.path.isdir(name) else _from_file)(Path(name), certificate)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or 'reading it failed'}") from None


def _fetch_objects(name: str, certificate: PathLike | None, folder: Path) -> tuple[str, str]:
    """Arguments for `read_release` with local copies of objects; a missing certificate is missing there too."""
    copies = {}
    certified = beside(name, CERTIFICATE) if certificate is None else os.fspath(certificate)
    for place, given in (("data", name), ("certificate", certified)):
        copies[place] = given
        if is_object(given):
            copies[place] = str(folder / place / name_of(given))
            if exists(given):
                (copies[place],) = copy_objects(given, folder / place)
            elif place == "data":
                raise InputError(f"there is no file {without_secrets(given)}")
    return copies["data"], copies["certificate"]


def _digest(file: BufferedReader) -> str:
    """The SHA-256 of a file, or empty if it is larger than any release."""
    if os.fstat(file.fileno()).st_size > _LARGEST_FILE:
        return ""
    return file_digest(file, "sha256").hexdigest()


def read_certificate(where: Path) -> tuple[JsonObject | None, list[str]]:
    """The document of a certificate, if it can be read, and problems."""
    try:
        with open_regular(where) as file:
            return parse_certificate(file.read(LARGEST_CERTIFICATE + 1), where.name)
    except FileNotFoundError:
        return None, [
            f"there is no certificate {where.name}: the file is not a release, or its certificate was removed or "
            "never written"
        ]
    except OSError as error:
        return None, [f"the certificate {where.name} cannot be read: {error.strerror}"]


def _from_file(path: Path, given: PathLike | None) -> Readback:
    kind = suffix_kind(path.name)
    with open_regular(path) as file:
        head = file.read(16)
        if head.startswith(b"SQLite format 3") or head[8:12] == b"DUCK":
            raise InputError(_EXPORT.format(path, f"{path.name}.TABLE{CERTIFICATE}"))
        file.seek(0)
        document, problems = read_certificate(Path(given or path.with_name(path.name + CERTIFICATE)))
        output = output_of(document)
        written = next((known for known in (*KINDS, *DATABASES) if output and known == output.kind), None)
        exported = written in DATABASES
        matches = output is not None and not exported and output.sha256 == _digest(file)
        if document is not None and not matches and not exported:
            problems.append(f"{path.name} {_NO_MATCH}")
        # The file may have another format than its name suggests, unless it was exported from a database.
        chosen = kind if written is None or exported else written
        if chosen is None or chosen in DATABASES:
            problems.append(f"{path.name} has neither a known ending nor a certificate that names its format")
        if chosen is None or output is None or problems:
            return Readback(None, document, matches, tuple(problems))
        try:
            table = _read_file(file, chosen, output, exported=exported)
        except Unreadable as error:
            return Readback(None, document, matches, (_unreadable(path.name, chosen, error),))
    if exported:
        return match_values(table, document, [], path.name)
    return Readback(table, document, matches, _shape_problems(table, output, path.name, chosen))


def match_values(table: pa.Table, document: JsonObject | None, problems: list[str], title: str) -> Readback:
    """Compare the rows of a database table, or of a file that it was exported to, with its certificate."""
    from dphist.certificate.digests import digest_of_values

    output, matches = output_of(document), False
    with suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
        if output is not None:
            table = _restore_types(table, output)
            matches = output.sha256 == digest_of_values(table, output.kind)
    if output is None or not matches:
        lost = "" if document is None else f"{title} {_NO_MATCH}, or the export has lost digits or types"
        return Readback(None, document, False, (*problems, *([lost] if lost else [])))
    shape = _shape_problems(table, output, title, output.kind)
    return Readback(table, document, True, (*problems, *shape))


def _unreadable(name: str, kind: str, error: Unreadable) -> str:
    return f"{name} cannot be read as {kind}" + (f": {error}" if str(error) else "")


def _read_file(file: BufferedReader, kind: str, output: Output, *, exported: bool) -> pa.Table:
    """The table of a file that matches its digest. Raises `Unreadable`, with an empty text if it is damaged."""
    if len(output.columns) > MOST_COLUMNS:
        raise Unreadable(f"it has more than {MOST_COLUMNS:,} columns")
    try:
        if kind in ("parquet", "arrow"):
            return _restore_types(_decode_file(file, kind, output.rows), output)
        text = _unpack(file) if kind.endswith(PACKED) else file
        return read_text(
            text, kind, output.type_of(), list(output.columns), escape_formulas=output.escape_formulas,
            exported=exported,
        )  # fmt: skip
    except (
        pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError,
        EOFError, zlib.error,
    ):  # fmt: skip
        # The error itself could quote a cell.
        raise Unreadable("") from None


def _unpack(file: BufferedReader) -> BinaryIO:
    """The text of a packed file, up to a limit: a few KB could unpack to many GB."""
    allowed, text = max(LEAST_TEXT, TIMES * os.fstat(file.fileno()).st_size), BytesIO()
    file.seek(0)
    with gzip.GzipFile(fileobj=file) as packed:
        while block := packed.read(_BLOCK):
            text.write(block)
            if text.tell() > allowed:
                raise Unreadable(f"it unpacks to more than {allowed >> 20:,} MiB, which is too much for its size")
    return text


def _restore_types(table: pa.Table, output: Output) -> pa.Table:
    types, names = output.type_of(), table.column_names
    columns = [restore_column(c, types.get(n)) for n, c in zip(names, table.columns, strict=True)]
    return pa.table(columns, names=names)


def _from_folder(path: Path, certificate: PathLike | None) -> Readback:
    """A folder of Parquet files, as Spark writes it, with the certificate inside."""
    document, problems = read_certificate(Path(certificate or path / FOLDER_CERTIFICATE))
    output = output_of(document)
    parts = sorted(part for part in path.iterdir() if not part.name.startswith(("_", ".")))
    digests = {}
    for part in parts:
        digests[part.name] = ""  # only regular files belong to a release
        if part.is_file() and not part.is_symlink():
            with open_regular(part) as file:
                digests[part.name] = _digest(file)
    matches = output is not None and output.files == digests and output.sha256 == whole_digest(digests)
    if document is not None and not matches:
        problems.append(f"the files in {path.name} do not match the digests in its certificate")
    if output is None or problems:
        return Readback(None, document, matches, tuple(problems))
    try:
        table = _read_parts(parts)
    except Unreadable as error:
        return Readback(None, document, matches, (_unreadable(path.name, "a folder of Parquet files", error),))
    return Readback(table, document, matches, _shape_problems(table, output, path.name, "folder"))


def _read_parts(parts: list[Path]) -> pa.Table:
    """The files of a folder as one table; the limit is for all of them together."""
    allowed, tables = _bytes_allowed(sum(part.stat().st_size for part in parts)), []
    for part in parts:
        with open_regular(part) as file:
            tables.append(_decode_file(file, "parquet", None))
        if sum(table.nbytes for table in tables) > allowed:
            raise Unreadable("it takes too much memory for its size")
    try:
        # Spark writes a file even if no row was released.
        return pa.concat_tables(tables)
    except (pa.ArrowException, ValueError):
        raise Unreadable("") from None


def _shape_problems(table: pa.Table, output: Output, title: str, kind: str) -> tuple[str, ...]:
    """Compare the table, in the types that it was written from, with what the certificate says about it."""
    # A certificate by Spark does not name types.
    types = None if kind == "folder" else _types(table, output.types or (), exact=kind in ("parquet", "arrow"))
    files = output.files if kind == "folder" else None
    escaped = output.escape_formulas and kind in ESCAPES
    # Compared elsewhere: the digest, and the name with the signature.
    shape = Output(
        name=output.name, kind=kind, sha256=output.sha256, files=files, columns=tuple(table.column_names),
        types=types, rows=table.num_rows, escape_formulas=escaped,
    )  # fmt: skip
    if output != shape:
        return (f"{title} does not have the columns, types or rows that its certificate lists",)
    return ()


def _types(table: pa.Table, listed: tuple[str, ...], *, exact: bool) -> tuple[str, ...]:
    """The types of the columns; those in the certificate where text replaces a type."""
    types = table.schema.types
    if len(listed) != len(types):
        return tuple(str(kind) for kind in types)
    is_text = [not exact and str(kind) == "string" for kind in types]
    return tuple(name if text else str(kind) for text, kind, name in zip(is_text, types, listed, strict=True))


# ----------------------------------------------------------------------------------------------------- the decoder


def _bytes_allowed(size: int) -> int:
    return max(LEAST_BYTES, TIMES * size)


def _decode_file(file: BinaryIO, kind: str, rows: int | None) -> pa.Table:
    """The table of an open Parquet or Arrow file, which must have this many rows. Raises `Unreadable`."""
    file.seek(0)
    limit = _bytes_allowed(os.fstat(file.fileno()).st_size)
    return _decode({"kind": kind, "rows": rows}, limit, file)


def _decode(job: JsonObject, limit: int, file: BinaryIO) -> pa.Table:
    """Let a child process decode the table. Raises `Unreadable` with the reason if it does not."""
    late = threading.Event()
    # -P, because modules in the working folder, which may be one of downloads, must not be imported.
    command = [sys.executable, "-P", "-c", _CHILD, json.dumps({**job, "limit": limit})]
    with subprocess.Popen(
        command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"},
    ) as process:  # fmt: skip

        def stop() -> None:
            late.set()
            process.kill()

        timer, table = threading.Timer(SECONDS, stop), None
        timer.start()
        try:
            assert isinstance(process.stdout, BufferedReader)
            with suppress(pa.ArrowException, OSError, EOFError):
                table = _read_stream(process.stdout, limit)
            # A stream that breaks off can look complete: only the exit code shows that the child has finished.
            if table is not None and process.wait() == 0:
                return table
            _, refusal = process.communicate()
        finally:
            timer.cancel()
            process.kill()
    code = process.returncode
    if late.is_set():
        raise Unreadable(f"reading it takes longer than {SECONDS:g} seconds")
    if code == REFUSED:
        raise Unreadable(refusal.decode())
    raise Unreadable(_too_large(limit) if code == TOO_LARGE else "it is damaged")


def _read_stream(file: BufferedReader, limit: int) -> pa.Table:
    batches, taken = [], 0
    with pa.ipc.open_stream(file) as stream:
        for batch in stream:
            # Nulls count too: they take no bytes until they are used.
            taken += max(batch.nbytes, 16 * batch.num_rows * batch.num_columns)
            if taken > limit:
                raise Unreadable(_too_large(limit))
            batches.append(batch)
        return pa.Table.from_batches(batches, stream.schema)


def _too_large(limit: int) -> str:
    return f"its table takes more than {limit >> 20:,} MiB of memory, which is too much for its size"
