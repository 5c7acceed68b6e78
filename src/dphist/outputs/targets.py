"""Where a release goes: a file, a folder, or a table of a database; and what it must not replace there."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from dphist.display import printable
from dphist.errors import DphistError, InvalidParameter, OutputError
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


# Files that neither a release nor its report may replace: the input, the list of items, the release itself.

# The file itself, its certificate, and the journals of databases.
_BESIDE: Final = ("", CERTIFICATE, "-journal", "-wal", "-shm", ".wal")


@dataclass(frozen=True)
class Kept:
    """A file, folder or glob in which nothing new may be written, and what it is for the release."""

    what: str
    path: str


def kept_files(release: Any, certificate: Any = None, input: Any = None, items: Any = None) -> list[Kept]:
    """What the report of a release must not replace: the release, and what it is made of."""
    parts = {
        "the release": release,
        "its certificate": certificate,
        "the input": input,
        "the list of items": items,
    }
    return [Kept(what, path) for what, value in parts.items() for path in local_paths(value)]


def refuse_overwriting(path: str | os.PathLike[str], kept: Sequence[Kept]) -> None:
    """Raise `InvalidParameter` if a file of this name is protected, or would become part of what is."""
    name = os.fspath(path)
    for one in kept:
        if any(same_file(name, one.path.rstrip("/") + end) for end in _BESIDE):
            raise InvalidParameter(f"{printable(name)} cannot be written: it is {one.what}, or belongs to it")
        if _is_inside(name, one.path):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be inside {one.what}")
        # A new file would be read the next time.
        if glob.has_magic(one.path) and _matches(_steps(name), _steps(one.path)):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be a part of {one.what}")


def refuse_own_input(
    target: Target,
    input: Any,
    items: Any = None,
    *,
    table: str | None = None,
    query: str | None = None,
    key: Any = None,
) -> None:
    """Raise `InvalidParameter` if a release would replace its own input. A database may hold both.

    `table` and `query` are those of the input, `key` is the file of the private key.
    """
    if target.is_object:
        sources = [one if isinstance(one, (tuple, list)) else [one] for one in (input, items)]
        objects = [one for source in sources for one in source if is_object(one)]
        taken = any(_is_same_object(target.address, one) for one in objects)
    elif target.is_database:
        taken = _takes_table(input, target, table, query) or _takes_table(items, target, None, None)
    else:
        made_of = [one for path in (*local_paths(input), *local_paths(items)) for one in _files(path)]
        # Also by another name of the same file. A file that does not exist yet cannot be lost.
        taken = any(_is_same(path, one) for path in _own_files(target) for one in (*made_of, *local_paths(key)))
    if taken:
        raise InvalidParameter(
            f"the release cannot be written to {printable(target.title())}, which it is made of"
        )


def _is_same_object(written: str, read: str) -> bool:
    """Whether an object, or its certificate, is among those that an address stands for."""
    source = without_options(read).rstrip("/")
    names = [without_options(beside(written, ending)) for ending in ("", ".certificate.json")]
    return any(
        name == source or name.startswith(source + "/") or _matches(name.split("/"), source.split("/"))
        for name in names
    )


def _own_files(target: Target) -> list[str]:
    """The files of a release and its certificate, or the folder."""
    if target.kind == "folder":
        return list(local_paths(target.address))
    return [*([] if target.is_stdout else [str(target.path)]), str(target.certificate_path)]


def _takes_table(source: Any, target: Target, table: str | None, query: str | None) -> bool:
    """Whether a release would write one of the tables that are read."""
    if not _is_same_database(source, target):
        return False
    written = [_table(name) for name in (target.table_name, target.certificate_table)]
    if table is not None:
        return _table(table) in written
    if query is not None:
        # Only the database can tell which tables a query reads: a query with the name in it counts as reading it.
        return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query.casefold()) for name in written)
    # Without a name the only table is read: if one of these exists, it is that one.
    return any(_exists(target, name) for name in (target.table_name, target.certificate_table))


def _table(name: str) -> str:
    """A table without its schema; DuckDB and SQLite ignore case."""
    return name.rpartition(".")[2].strip('"').casefold()


def _is_same_database(source: Any, target: Target) -> bool:
    if target.kind == "postgresql":
        return isinstance(source, str) and _server(source) == _server(target.address)
    return any(_is_same(str(target.path), path) for path in local_paths(source))


def _server(address: str) -> str | None:
    """Host and database of a PostgreSQL address, without the user."""
    found = re.match(r"postgres(?:ql)?://([^?]*)", address, re.IGNORECASE)
    return None if found is None else found[1].rpartition("@")[2].rstrip("/")


def _exists(target: Target, table: str) -> bool:
    from dphist.outputs.stores import store_of

    try:
        store = store_of(target.kind, target.address, writing=False)
        try:
            return store.find(table) is not None
        finally:
            store.close()
    except DphistError:
        return False  # a database that cannot be opened cannot be written either


def local_paths(value: Any) -> Iterator[str]:
    """The local paths of an input; a frame or a server has none."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from local_paths(one)
    elif isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path and "\0" not in path:
            # Spark's form: file:/path, file:///path or file://host/path.
            path = re.sub(r"^file:(//[^/]*)?(?=/)", "", path)
            if "://" not in path:
                yield path


def _files(path: str) -> list[str]:
    """The path itself, and the files that are read from a folder or a glob."""
    from dphist.counting.files import matching_files

    try:
        return [path, *matching_files(path)]
    except (DphistError, OSError):
        return [path]  # cannot be read: the engine says so


def _is_same(first: str, second: str) -> bool:
    """Whether two names are one existing file, through links of either kind."""
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def same_file(first: str, second: str) -> bool:
    """Whether two names are one file, or will be once it exists."""
    if os.path.exists(first) and os.path.exists(second):
        return _is_same(first, second)
    return _place(first) == _place(second)


def _place(path: str) -> tuple[Any, str]:
    """The folder of a file and its name in it; some disks ignore case, or how a letter is composed."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        found = os.stat(folder)
    except OSError:
        return folder, name
    return (found.st_dev, found.st_ino), unicodedata.normalize("NFC", name).casefold()


def _is_inside(name: str, folder: str) -> bool:
    """Whether a name is below a folder, which may not exist yet."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return False
    # Where it leads, and where it is if it is a link: the link would be replaced.
    own = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.basename(name))
    above = {*Path(os.path.realpath(name)).parents, *Path(own).parents}
    return any(same_file(str(one), folder) for one in above)


def _steps(path: str) -> list[str]:
    """Folders and name; for a link its own place, as a glob finds it."""
    return os.path.abspath(path).split(os.sep)


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether a glob finds this name: * ends at a slash, ** is any number of folders."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[start:], pattern[1:]) for start in range(len(name) + 1)) or len(pattern) == 1
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])
