"""Where a release goes: a file, a database table, an object in a store, a Spark folder, or standard output."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from dphist.certificate.endings import CERTIFICATE, DATABASES, ENDINGS, KINDS, suffix_kind
from dphist.errors import InvalidParameter, OutputError
from dphist.files import PathLike
from dphist.objects import beside, is_object, is_postgres, without_options, without_secrets

if TYPE_CHECKING:
    from dphist.signatures import Signer

DEFAULT_TABLE: Final = "release"
_STREAMED: Final = ("csv", "tsv", "jsonl")
# PostgreSQL truncates longer names without an error.
_POSTGRES_NAME_BYTES: Final = 63


@dataclass(frozen=True)
class Target:
    """Where a release goes. `table` is set for databases, `certificate` for standard output and PostgreSQL."""

    address: str = field(repr=False)
    table: str | None
    kind: str
    sign: Signer | None = field(default=None, compare=False)
    certificate: str | None = None

    @property
    def is_object(self) -> bool:
        return is_object(self.address) and self.kind != "folder"

    @property
    def is_stdout(self) -> bool:
        return self.certificate is not None and not self.is_database

    @property
    def is_database(self) -> bool:
        return self.kind in DATABASES

    @property
    def path(self) -> Path:
        """The file of the release, or of its database."""
        return Path(self.address)

    @property
    def name(self) -> str:
        """The name of the release in its certificate: that of the certificate's file, without its ending."""
        file = self.certificate_path.name
        name = file.removesuffix(CERTIFICATE)
        return "-" if name in ("", file) else name.encode("utf-8", "backslashreplace").decode()

    @property
    def table_name(self) -> str:
        return DEFAULT_TABLE if self.table is None else self.table

    @property
    def certificate_path(self) -> Path:
        if self.certificate is not None:
            return Path(self.certificate)
        # Databases ignore the case of ASCII letters in names, so that one table has one certificate.
        table = "" if self.table is None else "." + quote(self.table, safe=" ").lower()
        return self.path.with_name(f"{self.path.name}{table}{CERTIFICATE}")

    def public_address(self) -> str:
        return without_secrets(self.address)

    def title(self) -> str:
        """The release as it is named in messages."""
        if self.is_database:
            return f"table {self.table_name} in {self.public_address()}"
        return "standard output" if self.is_stdout else self.public_address()

    def certificate_title(self) -> str:
        return without_secrets(beside(self.address, CERTIFICATE)) if self.is_object else str(self.certificate_path)


@dataclass(frozen=True)
class Written:
    """Where a release and its certificate are, and the SHA-256 of the data."""

    address: str
    certificate: str
    digest: str
    rows: int | None = None
    signed_by: str | None = None


# Called as soon as a release and its certificate are in place.
Placed = Callable[[Written], None]


def target_of(
    output: PathLike,
    table: str | None = None,
    file_format: str | None = None,
    certificate: PathLike | None = None,
    *,
    objects: bool = True,
) -> Target:
    """The target for the name of an output; `-` with a `certificate` is standard output.

    A `certificate` is also the file for the certificate of a PostgreSQL table.

    Without `objects`, an address in an object store is a folder, which Spark writes.
    """
    address = os.fspath(output)
    if address == "-" and certificate is not None:
        return _standard_output(table, file_format, os.fspath(certificate))
    if not isinstance(address, str) or not address or "\0" in address:
        raise InvalidParameter(f"output must be the name of a file or a postgresql:// address, not {address!r}")
    kind = _kind_of(without_options(address) if objects else address, file_format, objects)
    if kind in DATABASES:
        if is_object(address):
            raise InvalidParameter(
                f"a database cannot be written to {without_secrets(address)}: name a file, such as counts.parquet"
            )
        server = kind == "postgresql"
        if server and certificate is None:
            raise InvalidParameter(
                "a table in PostgreSQL needs <--certificate FILE>: a release is written with its certificate"
            )
        named = _certificate_name(os.fspath(certificate)) if server and certificate is not None else None
        target = Target(address, DEFAULT_TABLE if table is None else table, kind, certificate=named)
        _check_table(target)
        return target
    if table is not None:
        what = "a folder" if kind == "folder" else f"a {kind} file"
        raise InvalidParameter(f"<--output-table> is for databases, but {without_secrets(address)} is {what}")
    if kind != "folder" and Path(address).name in ("", ".."):
        raise InvalidParameter(f"output must name a file, not the folder {without_secrets(address)}")
    return Target(address, None, kind)


def _standard_output(table: str | None, file_format: str | None, certificate: str) -> Target:
    if table is not None:
        raise InvalidParameter("<--output-table> is for databases, but the output is standard output")
    kind = file_format or "csv"
    if kind not in _STREAMED:
        raise InvalidParameter(f"standard output can be {', '.join(_STREAMED)}, not {file_format!r}")
    return Target("-", None, kind, certificate=_certificate_name(certificate))


def _certificate_name(certificate: str) -> str:
    if "\0" in certificate or Path(certificate).name in ("", ".."):
        raise InvalidParameter(f"<--certificate> must be the name of a file, not {certificate!r}")
    return certificate


def _kind_of(address: str, file_format: str | None, objects: bool) -> str:
    if is_postgres(address):
        if file_format not in (None, "postgresql"):
            raise InvalidParameter(f"<--output-format> is {file_format!r}, but the output is a PostgreSQL address")
        return "postgresql"
    kind = file_format or suffix_kind(address)
    is_file = objects and is_object(address) and kind is not None
    if not is_file and ("://" in address or (address.endswith("/") and address.strip("/."))):
        if file_format not in (None, "parquet"):
            raise InvalidParameter(
                f"Spark writes folders of Parquet files, but <--output-format> is {file_format!r}"
            )
        return "folder"
    if file_format is not None and file_format not in KINDS:
        raise InvalidParameter(f"<--output-format> must be one of {', '.join(KINDS)}, not {file_format!r}")
    if kind is None:
        raise InvalidParameter(
            f"the output {without_secrets(address)} has no known ending: use one of {', '.join(ENDINGS)}, "
            "or give <--output-format>"
        )
    return kind


def _check_table(target: Target) -> None:
    name = target.table_name
    if not name or "\0" in name:
        raise InvalidParameter(f"table must be a name, not {name!r}")
    if target.kind == "sqlite" and name.lower().startswith("sqlite_"):
        raise InvalidParameter(f"table must not begin with sqlite_, which SQLite reserves: {name}")
    if target.kind == "postgresql":
        schema, table = schema_and_table(name)
        if not table or schema == "":
            raise InvalidParameter(f"table must be a name or schema.name, not {name!r}")
        if max(len(part.encode()) for part in (schema or "", table)) > _POSTGRES_NAME_BYTES:
            raise InvalidParameter(f"the table name {name} is too long for PostgreSQL")


def schema_and_table(name: str) -> tuple[str | None, str]:
    schema, dot, table = name.partition(".")
    return (schema, table) if dot else (None, name)


def already_exists(place: object) -> OutputError:
    return OutputError(f"{place} already exists: choose another name, or replace it with <--force>")


def check_columns(target: Target, columns: Sequence[str]) -> None:
    """Raise `OutputError` if the target cannot have columns with these names."""
    seen: dict[str, str] = {}
    for name in columns:
        # DuckDB, SQLite and Spark ignore case.
        key = name.lower() if target.kind in ("duckdb", "sqlite", "folder") else name
        if key in seen:
            raise OutputError(f"{target.title()} cannot have two columns named {seen[key]} and {name}")
        seen[key] = name
        if target.is_database and (not name or "\0" in name):
            raise OutputError(f"{target.title()} cannot have a column named {name!r}")
        if target.kind == "postgresql" and len(name.encode()) > _POSTGRES_NAME_BYTES:
            raise OutputError(f"the column name {name} is too long for PostgreSQL")


def local_paths(value: object) -> Iterator[str]:
    """The local paths of an input; a frame or a server has none."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from local_paths(part)
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            # Spark's form: file:/path, file:///path or file://host/path.
            path = re.sub(r"^file:(//[^/]*)?(?=/)", "", path)
            if "://" not in path:
                yield path
