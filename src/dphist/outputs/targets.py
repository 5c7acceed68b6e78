"""Where a release goes: a file, a folder, or a table of a database. Nothing is opened yet."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from dphist.errors import InvalidParameter, OutputError
from dphist.objects import beside, is_object, is_postgres, without_options, without_secrets
from dphist.outputs.seal import Sign

OutputKind = Literal[
    "parquet", "csv", "tsv", "jsonl", "arrow", "csv.gz", "tsv.gz", "jsonl.gz", "folder", "duckdb", "sqlite",
    "postgresql",
]  # fmt: skip
DATABASES: Final = ("duckdb", "sqlite", "postgresql")
DEFAULT_TABLE: Final = "release"
CERTIFICATE: Final = ".certificate.json"
_SUFFIXES: Final[dict[str, OutputKind]] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".duckdb": "duckdb",
    ".ddb": "duckdb",
    ".sqlite": "sqlite",
    ".sqlite3": "sqlite",
    ".db": "sqlite",
    ".csv.gz": "csv.gz",
    ".tsv.gz": "tsv.gz",
    ".jsonl.gz": "jsonl.gz",
    ".ndjson.gz": "jsonl.gz",
}
_STREAMED: Final[tuple[OutputKind, ...]] = ("csv", "tsv", "jsonl")
# PostgreSQL cuts longer names off without an error.
_POSTGRES_NAME_BYTES: Final = 63


@dataclass(frozen=True)
class Target:
    """A place for a release. `table` is for databases alone; `sign` signs what is written there.

    `certificate` is for standard output, which has no place beside it.
    """

    address: str = field(repr=False)
    table: str | None
    kind: OutputKind
    sign: Sign | None = field(default=None, compare=False)
    certificate: str | None = None

    @property
    def is_object(self) -> bool:
        """Whether the release is an object in S3 or Google Cloud Storage, and not a folder of Spark there."""
        return is_object(self.address) and self.kind != "folder"

    @property
    def is_stdout(self) -> bool:
        """Whether the release goes to standard output, and its certificate to the file `certificate`."""
        return self.certificate is not None

    @property
    def is_database(self) -> bool:
        """Whether the release is a table of a database."""
        return self.kind in DATABASES

    @property
    def path(self) -> Path:
        """The file of the release or of its database."""
        return Path(self.address)

    @property
    def table_name(self) -> str:
        """The table of a database."""
        return DEFAULT_TABLE if self.table is None else self.table

    @property
    def certificate_path(self) -> Path:
        """The certificate of a file stands next to it under the full name of the file."""
        if self.certificate is not None:
            return Path(self.certificate)
        return self.path.with_name(self.path.name + CERTIFICATE)

    @property
    def certificate_table(self) -> str:
        """The certificate of a table is a table too."""
        return self.table_name + "_certificate"

    def public_address(self) -> str:
        """The address without a password."""
        return without_secrets(self.address)

    def title(self) -> str:
        """The release as a sentence names it."""
        if self.is_database:
            return f"table {self.table_name} in {self.public_address()}"
        return "standard output" if self.is_stdout else self.public_address()

    def certificate_title(self) -> str:
        """The certificate as a sentence names it."""
        if self.is_database:
            return f"table {self.certificate_table} in {self.public_address()}"
        return without_secrets(beside(self.address, CERTIFICATE)) if self.is_object else str(self.certificate_path)


@dataclass(frozen=True)
class Written:
    """Where a release is, where its certificate is, and the SHA-256 of its data."""

    address: str
    certificate: str
    digest: str
    rows: int | None = None
    signed_by: str | None = None


def suffix_kind(address: str) -> OutputKind | None:
    """The kind by the ending of a name."""
    endings = Path(address.lower()).suffixes
    return _SUFFIXES.get("".join(endings[-2:] if endings[-1:] == [".gz"] else endings[-1:]))


def target_of(
    output: str | os.PathLike[str],
    table: str | None = None,
    file_format: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    *,
    objects: bool = True,
) -> Target:
    """The place that a user names, of the kind by its ending or by `file_format`; - is standard output.

    Without `objects` an address in an object store is a folder, which Spark writes.
    """
    address = os.fspath(output)
    if address == "-" and certificate is not None:
        return _standard_output(table, file_format, os.fspath(certificate))
    if not isinstance(address, str) or not address or "\0" in address:
        raise InvalidParameter(f"output must be the name of a file or a postgresql:// address, not {address!r}")
    kind = _kind_of(without_options(address) if objects else address, file_format, objects)
    if kind in DATABASES and is_object(address):
        raise InvalidParameter(
            f"a database cannot be written to {without_secrets(address)}: name a file, such as counts.parquet"
        )
    if kind in DATABASES:
        target = Target(address, DEFAULT_TABLE if table is None else table, kind)
        _check_table(target)
        return target
    if table is not None:
        what = "a folder" if kind == "folder" else f"a file of kind {kind}"
        raise InvalidParameter(f"table is for databases, and {without_secrets(address)} is {what}")
    if kind != "folder" and Path(address).name in ("", ".."):
        raise InvalidParameter(f"output must name a file, not the folder {without_secrets(address)}")
    return Target(address, None, kind)


def _standard_output(table: str | None, file_format: str | None, certificate: str) -> Target:
    if table is not None:
        raise InvalidParameter("table is for databases, and the output is standard output")
    if "\0" in certificate or Path(certificate).name in ("", ".."):
        raise InvalidParameter(f"--certificate must be the name of a file, not {certificate!r}")
    kind = next((one for one in _STREAMED if one == (file_format or "csv")), None)
    if kind is None:
        raise InvalidParameter(f"standard output is written as {', '.join(_STREAMED)}, not as {file_format!r}")
    return Target("-", None, kind, certificate=certificate)


def _kind_of(address: str, file_format: str | None, objects: bool) -> OutputKind:
    if is_postgres(address):
        if file_format not in (None, "postgresql"):
            raise InvalidParameter(f"file_format is {file_format!r}, and the output is a PostgreSQL address")
        return "postgresql"
    is_file = objects and is_object(address) and (file_format is not None or suffix_kind(address) is not None)
    if not is_file and ("://" in address or (address.endswith("/") and address.strip("/."))):
        # Only Spark writes there; a folder of Parquet files is what it writes.
        if file_format not in (None, "parquet"):
            raise InvalidParameter(f"Spark writes folders of Parquet files, and file_format is {file_format!r}")
        return "folder"
    if file_format is None:
        kind = suffix_kind(address)
        if kind is None:
            raise InvalidParameter(
                f"output {without_secrets(address)} must end in one of {', '.join(_SUFFIXES)}, or be named "
                "with --output-format"
            )
        return kind
    kinds: list[OutputKind] = list(dict.fromkeys(_SUFFIXES.values()))
    if file_format not in kinds:
        raise InvalidParameter(f"file_format must be one of {', '.join(kinds)}, not {file_format!r}")
    return kinds[kinds.index(file_format)]


def _check_table(target: Target) -> None:
    name = target.table_name
    if not name or "\0" in name:
        raise InvalidParameter(f"table must be a name, not {name!r}")
    if target.kind == "sqlite" and name.lower().startswith("sqlite_"):
        raise InvalidParameter(f"table must not begin with sqlite_, which SQLite keeps for itself: {name}")
    if target.kind == "postgresql":
        schema, table = schema_and_table(name)
        if not table or schema == "":
            raise InvalidParameter(f"table must be a name or schema.name, not {name!r}")
        _, certificate = schema_and_table(target.certificate_table)
        if max(len(part.encode()) for part in (schema or "", certificate)) > _POSTGRES_NAME_BYTES:
            raise InvalidParameter(f"table is too long for PostgreSQL, with _certificate at its end: {name}")


def schema_and_table(name: str) -> tuple[str | None, str]:
    """The two parts of schema.table."""
    schema, dot, table = name.partition(".")
    return (schema, table) if dot else (None, name)


def check_columns(target: Target, columns: Sequence[str]) -> None:
    """Raise `OutputError` if the place cannot hold columns of these names."""
    seen: dict[str, str] = {}
    for name in columns:
        # DuckDB, SQLite and Spark do not tell A from a.
        key = name.lower() if target.kind in ("duckdb", "sqlite", "folder") else name
        if key in seen:
            raise OutputError(f"two columns cannot both be in {target.title()}: {seen[key]} and {name}")
        seen[key] = name
        if target.is_database and (not name or "\0" in name):
            raise OutputError(f"a column without a proper name cannot be in {target.title()}")
        if target.kind == "postgresql" and len(name.encode()) > _POSTGRES_NAME_BYTES:
            raise OutputError(f"a column's name is too long for PostgreSQL: {name}")


def check_files(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if the files of a release cannot be where they are to be."""
    paths = [target.certificate_path] if target.is_stdout else [target.path]
    folder, name = paths[0].parent, target.certificate or target.address
    if not folder.is_dir():
        raise OutputError(f"{name} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{name} cannot be written: the folder {folder} is not writable")
    for path in paths if target.is_database or target.is_stdout else [*paths, target.certificate_path]:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from None
        if stat.S_ISLNK(mode):
            raise OutputError(f"{path} cannot be written: it is a link; name the file itself")
        if stat.S_ISDIR(mode):
            raise OutputError(f"{path} cannot be written: it is a folder")
        if not stat.S_ISREG(mode):
            raise OutputError(f"{path} cannot be written: it is not a file")
        if not force and not target.is_database:
            raise OutputError(f"{path} already exists: choose another name, or replace it with --force")
