"""Read a release and its certificate, and say whether one matches the other. Anybody may have written them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from dphist.errors import InputError
from dphist.extras import package
from dphist.outputs.cells import digest_of, restored
from dphist.outputs.databases import store_of
from dphist.outputs.formats import ESCAPES, read_text
from dphist.outputs.seal import LARGEST_CERTIFICATE, SIGNATURE, output_of, parsed, same_json, too_large, types_of
from dphist.outputs.spark_folder import CERTIFICATE, whole_digest
from dphist.outputs.stores import StoreError
from dphist.outputs.targets import DATABASES, OutputKind, Target, is_postgres, suffix_kind, target_of
from dphist.outputs.untrusted import MOST_COLUMNS, bytes_allowed, certificate_cells, read_database, read_file

_FILES: Final[tuple[OutputKind, ...]] = ("parquet", "csv", "tsv", "jsonl", "arrow")
_NO_MATCH: Final = "does not match the digest in its certificate: one of them was changed or damaged"
# Some minutes of work to digest; a sparse file can be of any size.
_LARGEST_FILE: Final = 256 << 30
_LARGEST_ANSWER: Final = 4 << 30


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
    if is_postgres(name):
        return _from_database(target_of(name, table), certificate)
    if not os.path.isfile(name) and not os.path.isdir(name):
        raise InputError(f"there is no file {name}")
    try:
        if os.path.isdir(name):
            return _from_folder(Path(name), certificate)
        kind = suffix_kind(name) or _sniffed(Path(name))
        if kind in DATABASES:
            return _from_database(target_of(name, table, kind), certificate)
        return _from_file(Path(name), kind, certificate)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or 'reading it failed'}") from None


@contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file: a pipe would never be opened, and a device never end."""
    found = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(found, "rb") as file:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        yield file


def _sniffed(path: Path) -> OutputKind | None:
    """The kind of a database under a name that does not tell it."""
    with _opened(path) as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        return "sqlite"
    return "duckdb" if head[8:12] == b"DUCK" else None


def _digest(file: BufferedReader) -> str:
    """Of the whole file; empty for one that is larger than any release, such as a sparse file of no end."""
    if os.fstat(file.fileno()).st_size > _LARGEST_FILE:
        return ""
    return file_digest(file, "sha256").hexdigest()


def _from_file(path: Path, kind: OutputKind | None, certificate: str | os.PathLike[str] | None) -> Readback:
    document, problems = _certificate_file(path, certificate)
    output = output_of(document)
    with _opened(path) as file:
        matches = output.get("sha256") == _digest(file)
        if document is not None and not matches:
            problems.append(f"{path.name} {_NO_MATCH}")
        # The name may tell another kind than the one that was asked for.
        known: list[OutputKind] = [each for each in _FILES if each == output.get("kind")]
        chosen = known[0] if known else kind
        if chosen is None:
            problems.append(f"neither the name of {path.name} nor a certificate tells what kind of file it is")
        if chosen is None or problems:
            # What is not what its certificate says has nothing to say either.
            return Readback(None, document, matches, tuple(problems))
        names = _names(output)
        table, reason = _read_file(file, chosen, output, names)
    if table is None:
        problems.append(f"{path.name} cannot be read as {chosen}{reason}")
    else:
        problems += _shape_problems(table, output, path.name, chosen)
    return Readback(table, document, matches, tuple(problems))


def _from_folder(path: Path, certificate: str | os.PathLike[str] | None) -> Readback:
    """A folder of Parquet files, as Spark writes it, with the certificate inside."""
    document, problems = _certificate_file(path, certificate or path / CERTIFICATE)
    output = output_of(document)
    parts = sorted(part for part in path.iterdir() if not part.name.startswith(("_", ".")))
    found = {}
    for part in parts:
        found[part.name] = ""  # what is no file is no part of a release
        if part.is_file() and not part.is_symlink():
            with _opened(part) as file:
                found[part.name] = _digest(file)
    matches = same_json(output.get("files"), found) and output.get("sha256") == whole_digest(found)
    if document is not None and not matches:
        problems.append(f"the files in {path.name} do not match the digests in its certificate")
    if problems:
        return Readback(None, document, matches, tuple(problems))
    table, reason = _read_parts(parts)
    if table is None:
        problems.append(f"{path.name or path} cannot be read as a folder of Parquet files{reason}")
    else:
        problems += _shape_problems(table, output, path.name, "folder")
    return Readback(table, document, matches, tuple(problems))


def _read_parts(parts: list[Path]) -> tuple[Any | None, str]:
    """All files of a folder together; a part may be as large as they may be together."""
    pa = package("pyarrow")
    allowed, tables = bytes_allowed(sum(part.stat().st_size for part in parts)), []
    try:
        for part in parts:
            with _opened(part) as file:
                tables.append(read_file(file, "parquet", None))
            if sum(table.nbytes for table in tables) > allowed:
                return None, ": it takes too much memory for its size"
        # No file at all is no release: Spark writes one even where no row was released.
        return (pa.concat_tables(tables), "") if tables else (None, "")
    except StoreError as error:
        return None, f": {error}"
    except pa.ArrowException:
        return None, ""


def _certificate_file(path: Path, given: str | os.PathLike[str] | None) -> tuple[dict[str, Any] | None, list[str]]:
    where = Target(str(path), None, "csv").certificate_path if given is None else Path(given)
    try:
        with _opened(where) as file:
            if os.fstat(file.fileno()).st_size > LARGEST_CERTIFICATE:
                return None, [too_large(where.name)]
            return parsed(file.read(LARGEST_CERTIFICATE + 1), where.name)
    except FileNotFoundError:
        return None, [f"there is no certificate {where.name}: it was removed, or writing it was interrupted"]
    except OSError as error:
        return None, [f"the certificate {where.name} cannot be read: {error.strerror}"]


def _read_file(
    file: BufferedReader, kind: OutputKind, output: dict[str, Any], names: list[str]
) -> tuple[Any, str]:
    """The table of a file that matches its digest, or None and why."""
    pa, rows = package("pyarrow"), output.get("rows")
    if len(names) > MOST_COLUMNS:
        return None, f": it has more than {MOST_COLUMNS:,} columns"
    try:
        if kind in ("parquet", "arrow"):
            table = read_file(file, kind, rows if isinstance(rows, int) else 0)
            types = types_of(output, table.column_names)
            columns = [restored(c, types.get(n)) for n, c in zip(table.column_names, table.columns, strict=True)]
            return pa.table(columns, names=table.column_names), ""
        escaped = output.get("escape_formulas") is True
        return read_text(file, kind, types_of(output, names), names, escape_formulas=escaped), ""
    except StoreError as error:
        return None, f": {error}"
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        # Damaged in whatever way; the error's own words could repeat a cell.
        return None, ""


def _names(output: dict[str, Any]) -> list[str]:
    """The columns' names that a certificate tells, if they are names."""
    names = output.get("columns")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _shape_problems(
    table: Any, output: dict[str, Any], title: str, kind: str, *, signed: bool = False
) -> list[str]:
    """Whether what the certificate says of the output is so; `table` has the types that it was written from."""
    problems = []
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
    said = {name: value for name, value in output.items() if name not in stated}
    if not same_json(said, shape):
        problems.append(f"{title} does not have the columns, types or rows that its certificate says")
    if not isinstance(output.get("name"), str):
        problems.append("the certificate does not name what it belongs to")
    return problems


def _types(table: Any, said: Any, *, exact: bool) -> list[str]:
    """The types of the columns; as they are said to be where text stands for them, or a file has its own names."""
    kinds = table.schema.types
    if not isinstance(said, list) or len(said) != len(kinds) or not all(isinstance(one, str) for one in said):
        return [str(kind) for kind in kinds]
    nested = package("pyarrow").types.is_nested
    return [
        told if nested(kind) or (not exact and str(kind) == "string") else str(kind)
        for kind, told in zip(kinds, said, strict=True)
    ]


def _from_database(target: Target, certificate: str | os.PathLike[str] | None) -> Readback:
    name = target.certificate_table if certificate is None else os.fspath(certificate)
    try:
        if target.kind == "postgresql":
            table, cells = _from_server(target, name)
        else:
            with _opened(target.path):
                table, cells = read_database(os.path.abspath(target.address), target.kind, target.table_name, name)
    except StoreError as error:
        if error.trouble == "absent":
            raise InputError(f"there is no {target.title()}") from None
        if error.trouble in ("missing", "locked"):
            raise InputError(f"{target.title()} cannot be read: {error}") from None
        return Readback(None, None, False, (f"{target.title()} cannot be read: {error}",))
    document, problems = _certificate_of(cells, name)
    return _from_table(table, document, problems, target)


def _from_server(target: Target, certificate: str) -> tuple[Any, list[str | None] | None]:
    """From PostgreSQL, in this process: the server has limits of its own."""
    store = store_of(target.kind, target.address, writing=False)
    try:
        if store.find(target.table_name) is None:
            raise StoreError("there is no such table", "absent")
        cells = certificate_cells(store, certificate)
        batches, taken = [], 0
        for batch in store.batches(target.table_name):
            taken += batch.nbytes
            if taken > _LARGEST_ANSWER:
                raise StoreError("it has more rows than can be held in memory")
            batches.append(batch)
        return package("pyarrow").Table.from_batches(batches), cells
    finally:
        store.close()


def _certificate_of(cells: list[str | None] | None, name: str) -> tuple[dict[str, Any] | None, list[str]]:
    title = f"the certificate in table {name}"
    if cells is None:
        return None, [f"there is no certificate: no table {name}"]
    if len(cells) != 1 or cells[0] is None:
        return None, [f"{title} is not one text of at most {LARGEST_CERTIFICATE >> 20} MiB"]
    return parsed(cells[0], title)


def _from_table(table: Any, document: dict[str, Any] | None, problems: list[str], target: Target) -> Readback:
    pa = package("pyarrow")
    output = output_of(document)
    try:
        digest = digest_of(table)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        problems.append(f"{target.title()} has values that were not written by dphist")
        return Readback(None, document, False, tuple(problems))
    matches = output.get("sha256") == digest
    if document is not None and not matches:
        problems.append(f"{target.title()} {_NO_MATCH}")
    types = types_of(output, table.column_names)
    columns = [restored(c, types.get(n)) for n, c in zip(table.column_names, table.columns, strict=True)]
    found = pa.table(columns, names=table.column_names)
    if document is not None:
        problems += _shape_problems(
            found, output, target.title(), target.kind, signed=SIGNATURE in (document or {})
        )
    return Readback(found, document, matches, tuple(problems))
