"""Read a release and its certificate, and say whether one belongs to the other and neither was changed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

from dphist.errors import InputError
from dphist.extras import package
from dphist.outputs.cells import digest_of, restored
from dphist.outputs.databases import open_store
from dphist.outputs.formats import read_rows
from dphist.outputs.seal import output_of, parsed, types_of
from dphist.outputs.spark_folder import CERTIFICATE, whole_digest
from dphist.outputs.stores import Store, StoreError
from dphist.outputs.targets import DATABASES, OutputKind, Target, is_postgres, suffix_kind, target_of

_FILES: Final[tuple[OutputKind, ...]] = ("parquet", "csv", "tsv", "jsonl", "arrow")


@dataclass(frozen=True)
class Readback:
    """A release as it was found. `table` and `document` are None where they cannot be read.

    `problems` are sentences, none of which repeats a cell; without a problem the release is as it was written.
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


def _sniffed(path: Path) -> OutputKind | None:
    """The kind of a database under a name that does not tell it."""
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"SQLite format 3"):
        return "sqlite"
    return "duckdb" if head[8:12] == b"DUCK" else None


def _from_file(path: Path, kind: OutputKind | None, certificate: str | os.PathLike[str] | None) -> Readback:
    document, problems = _certificate_file(path, certificate)
    output = output_of(document)
    with path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()
    matches = output.get("sha256") == digest
    if document is not None and not matches:
        problems.append(f"{path.name} was changed after it was written")
    # The name may tell another kind than the one that was asked for.
    known: list[OutputKind] = [each for each in _FILES if each == output.get("kind")]
    chosen = known[0] if known else kind
    if chosen is None:
        problems.append(f"neither the name of {path.name} nor a certificate tells what kind of file it is")
        return Readback(None, document, matches, tuple(problems))
    names = _names(output)
    escaped = output.get("escape_formulas") is True
    table = _read_or_none(path, chosen, types_of(output, names), names, escaped)
    if table is None:
        problems.append(f"{path.name} cannot be read as {chosen}")
    elif document is not None:
        problems += _shape_problems(table, output, path.name)
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
            with part.open("rb") as file:
                found[part.name] = file_digest(file, "sha256").hexdigest()
    matches = output.get("files") == found and output.get("sha256") == whole_digest(found)
    if document is not None and not matches:
        problems.append(f"the files in {path.name} were changed after they were written")
    tables = [_read_or_none(part, "parquet", {}, []) for part in parts]
    pa = package("pyarrow")
    try:
        # No file at all is no release: Spark writes one even where no row was released.
        table = None if not tables or any(one is None for one in tables) else pa.concat_tables(tables)
    except pa.ArrowException:
        table = None
    if table is None:
        problems.append(f"{path.name or path} cannot be read as a folder of Parquet files")
    elif document is not None:
        problems += _shape_problems(table, output, path.name)
    return Readback(table, document, matches, tuple(problems))


def _certificate_file(path: Path, given: str | os.PathLike[str] | None) -> tuple[dict[str, Any] | None, list[str]]:
    where = Target(str(path), None, "csv").certificate_path if given is None else Path(given)
    try:
        return parsed(where.read_bytes(), where.name)
    except FileNotFoundError:
        return None, [f"there is no certificate {where.name}: it was removed, or writing it was interrupted"]
    except OSError as error:
        return None, [f"the certificate {where.name} cannot be read: {error.strerror}"]


def _read_or_none(
    path: Path, kind: OutputKind, types: dict[str, str], names: list[str], escaped: bool = False
) -> Any | None:
    pa = package("pyarrow")
    try:
        return read_rows(path, kind, types, names, escape_formulas=escaped)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        # Damaged in whatever way; the error's own words could repeat a cell.
        return None


def _names(output: dict[str, Any]) -> list[str]:
    """The columns' names that a certificate tells, if they are names."""
    names = output.get("columns")
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _shape_problems(table: Any, output: dict[str, Any], title: str) -> list[str]:
    problems = []
    if output.get("columns") != table.column_names:
        problems.append(f"the columns of {title} are not those of its certificate")
    rows = output.get("rows")
    # True is 1 for Python, but not for a reader of JSON.
    if rows != table.num_rows or isinstance(rows, (bool, float)):
        problems.append(f"{title} does not have as many rows as its certificate says")
    return problems


def _from_database(target: Target, certificate: str | os.PathLike[str] | None) -> Readback:
    try:
        store = open_store(target, target.address, writing=False)
    except StoreError as error:
        if error.trouble != "foreign":
            raise InputError(f"{target.title()} cannot be read: {error}") from None
        return Readback(None, None, False, (f"{target.title()} cannot be read: {error}",))
    try:
        if store.find(target.table_name) is None:
            raise InputError(f"there is no {target.title()}")
        return _from_store(
            store, target, target.certificate_table if certificate is None else os.fspath(certificate)
        )
    except StoreError as error:
        if error.trouble == "missing":
            raise InputError(f"{target.title()} cannot be read: {error}") from None
        return Readback(None, None, False, (f"{target.title()} cannot be read: {error}",))
    finally:
        store.close()


def _from_store(store: Store, target: Target, certificate: str) -> Readback:
    pa = package("pyarrow")
    # The table first: a certificate that cannot be read ends the transaction.
    table = store.read(target.table_name)
    document, problems = _certificate_table(store, certificate)
    output = output_of(document)
    try:
        digest = digest_of(table)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        problems.append(f"{target.title()} has values that were not written by dphist")
        return Readback(None, document, False, tuple(problems))
    matches = output.get("sha256") == digest
    if document is not None:
        if not matches:
            problems.append(f"{target.title()} was changed after it was written")
        problems += _shape_problems(table, output, target.title())
    types = types_of(output, table.column_names)
    columns = [restored(c, types.get(n)) for n, c in zip(table.column_names, table.columns, strict=True)]
    return Readback(pa.table(columns, names=table.column_names), document, matches, tuple(problems))


def _certificate_table(store: Store, name: str) -> tuple[dict[str, Any] | None, list[str]]:
    title = f"the certificate in table {name}"
    if store.find(name) is None:
        return None, [f"there is no certificate: no table {name}"]
    try:
        cells = store.read_certificate(name)
    except StoreError:
        return None, [f"{title} is not a dphist certificate"]
    if len(cells) != 1 or not isinstance(cells[0], str):
        return None, [f"{title} is not one text"]
    return parsed(cells[0], title)
