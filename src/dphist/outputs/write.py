"""Where a release goes, and how it is written there with its certificate: both or neither.

Everything is made in a hidden folder next to where it goes, closed to others, and put in place at the end. The
certificate is the commit record: the last file to appear and, with `force`, the first to go. So after any kill of
the process a certificate never stands alone or beside other data: there is the old pair, or data that are not yet
(or no longer) a release, or the new pair. Data without a certificate are whole and noisy, old or new; a
certificate beside other data would vouch for numbers that it is not about. Without `force` nothing is ever
replaced, not even what appears at the last moment. Signals wait while it happens.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import file_digest, sha256
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from dphist.counting.task import FORMATS
from dphist.display import printable
from dphist.errors import DphistError, InputError, InvalidParameter, OutputError
from dphist.objects import (
    beside,
    exists,
    is_object,
    is_postgres,
    matches_pattern,
    name_of,
    remove_object,
    without_options,
    without_secrets,
    write_object,
)
from dphist.outputs.formats import ESCAPES, Sign, compact, output_facts, seal, write_rows
from dphist.publishing import (
    alone,
    defer_signals,
    odd_file,
    place_new,
    replace_pair,
    sync_folder,
    workplace,
    write_synced,
)

DATABASES: Final = ("duckdb", "sqlite", "postgresql")
DEFAULT_TABLE: Final = "release"
CERTIFICATE: Final = ".certificate.json"
_SUFFIXES: Final = {
    **{ending: kind for ending, kind in FORMATS.items() if kind != "json"},
    ".db": "sqlite",
    **{f"{ending}.gz": f"{FORMATS[ending]}.gz" for ending in (".csv", ".tsv", ".jsonl", ".ndjson")},
}
KINDS: Final = tuple(dict.fromkeys(_SUFFIXES.values()))
_STREAMED: Final = ("csv", "tsv", "jsonl")
# PostgreSQL cuts longer names off without an error.
_POSTGRES_NAME_BYTES: Final = 63


@dataclass(frozen=True)
class Target:
    """A place for a release. `table` is for databases alone; `sign` signs what is written there.

    `certificate` is for standard output, which has no place beside it.
    """

    address: str = field(repr=False)
    table: str | None
    kind: str
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
    def shown_name(self) -> str:
        """The name of the file; one that is not text in this system's encoding is shown with escapes."""
        return self.path.name.encode("utf-8", "backslashreplace").decode()

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


def suffix_kind(address: str) -> str | None:
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
    if kind in DATABASES:
        if is_object(address):
            raise InvalidParameter(
                f"a database cannot be written to {without_secrets(address)}: name a file, such as counts.parquet"
            )
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
    kind = file_format or "csv"
    if kind not in _STREAMED:
        raise InvalidParameter(f"standard output is written as {', '.join(_STREAMED)}, not as {file_format!r}")
    return Target("-", None, kind, certificate=certificate)


def _kind_of(address: str, file_format: str | None, objects: bool) -> str:
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
    if file_format is not None and file_format not in KINDS:
        raise InvalidParameter(f"file_format must be one of {', '.join(KINDS)}, not {file_format!r}")
    kind = file_format or suffix_kind(address)
    if kind is None:
        raise InvalidParameter(
            f"output {without_secrets(address)} must end in one of {', '.join(_SUFFIXES)}, or be named "
            "with --output-format"
        )
    return kind


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


def already_exists(place: object) -> OutputError:
    """The error of a place that is taken."""
    return OutputError(f"{place} already exists: choose another name, or replace it with --force")


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
        if (odd := odd_file(mode)) is not None:
            raise OutputError(f"{path} cannot be written: it is {odd}")
        if not force and not target.is_database:
            raise already_exists(path)


# --------------------------------------------------------------------------------------------------------- writing


def check_target(target: Target, *, force: bool, columns: Sequence[str] = ()) -> None:
    """Raise `OutputError` if a release of these columns could not be written there; nothing is changed.

    Only what a killed process has left in a SQLite file is undone.
    """
    check_columns(target, columns)
    if target.kind == "folder":
        from dphist.outputs.spark_folder import check_folder

        return check_folder(target, force=force)
    if target.is_object:
        return _check_object(target, force=force)
    if target.kind != "postgresql":
        check_files(target, force=force)
    if target.is_database and (target.kind == "postgresql" or os.path.lexists(target.path)):
        from dphist.outputs.stores import check_database

        check_database(target, force=force)
    return None


def check_formulas(target: Target, escape_formulas: bool) -> None:
    """Raise `InvalidParameter` where there are no formulas to escape."""
    if escape_formulas and target.kind not in ESCAPES:
        raise InvalidParameter(f"--escape-formulas is for CSV and TSV files, and {target.title()} is not one")


def write_release(
    table: Any,
    document: dict[str, Any],
    target: Target,
    *,
    force: bool,
    escape_formulas: bool = False,
    ready: Callable[[str], None] = lambda _: None,
    placed: Callable[[Written], None] | None = None,
) -> Written:
    """Write a table of Arrow and the certificate's document; with `force` in the place of an older release.

    With `escape_formulas` a spreadsheet takes no text in a CSV file for a formula. `ready` is called with the
    digest of the data once both are whole, before anyone can see them: no signal comes from then on. `placed` is
    called once both are there, before any signal that waited.
    """
    check_columns(target, table.column_names)
    check_formulas(target, escape_formulas)
    plain = compact(table)
    with defer_signals() as check, _system_errors(target):
        job = Job(plain, document, target, force, check, escape_formulas, ready)
        if target.kind == "postgresql":
            digest = job.write_to_database(target.address)
        elif target.is_object:
            digest = _write_object(job)
        else:
            check_files(target, force=force)
            write = _write_database_file if target.is_database else _write_files
            digest = _write_stdout(job) if target.is_stdout else write(job)
        signed_by = None if target.sign is None else target.sign.fingerprint
        written = Written(target.title(), target.certificate_title(), digest, signed_by=signed_by)
        if placed is not None:
            placed(written)
    return written


@dataclass(frozen=True)
class Job:
    """What is written, where and how. `check` handles signals; `ready` is called before the data can be seen."""

    table: Any
    document: dict[str, Any]
    target: Target
    force: bool
    check: Callable[[], None]
    escape_formulas: bool
    ready: Callable[[str], None]

    def write_rows(self, file: Any) -> None:
        """The rows in the format of the target."""
        write_rows(self.table, self.target.kind, file, self.check, escape_formulas=self.escape_formulas)

    def certificate(self, name: str, digest: str, **more: Any) -> str:
        """The certificate of data with this digest, under the name that they get."""
        escaped = {"escape_formulas": True} if self.escape_formulas else {}
        facts = output_facts(self.table, self.target.kind, name, digest)
        return seal(self.document, {**facts, **escaped, **more}, self.target.sign)

    def render(self, name: str) -> tuple[bytes, bytes, str]:
        """Data and certificate as bytes, and the digest of the data."""
        file = BytesIO()
        self.write_rows(file)
        data = file.getvalue()
        digest = sha256(data).hexdigest()
        return data, self.certificate(name, digest).encode(), digest

    def write_to_database(self, address: str) -> str:
        """Both as tables of the database at this address; the digest of the rows."""
        from dphist.outputs.stores import write_database

        return write_database(self, address)


@contextmanager
def _system_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise already_exists(error.filename) from None
    except OSError as error:
        # By its number: the text of Arrow's own errors may hold a cell.
        reason = os.strerror(error.errno) if error.errno else "writing it failed"
        raise OutputError(f"{target.title()} cannot be written: {reason}") from None


def _write_files(job: Job) -> str:
    target = job.target
    with workplace(target.path.parent) as work:
        data, certificate = work / "data", work / "certificate"
        with data.open("xb") as file:
            job.write_rows(file)
            file.flush()
            os.fsync(file.fileno())
        with data.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        write_synced(certificate, job.certificate(target.shown_name, digest).encode())
        job.check()
        with alone(target.path.parent):
            job.ready(digest)
            if job.force:
                replace_pair(data, target.path, certificate, target.certificate_path, work)
            else:
                place_new([(data, target.path), (certificate, target.certificate_path)])
    return digest


@contextmanager
def _store_errors() -> Iterator[None]:
    """An object store's errors as those of an output, without their context."""
    try:
        yield
    except InputError as error:
        sentence = error.with_flags
    else:
        return
    raise OutputError(sentence)


def _check_object(target: Target, *, force: bool) -> None:
    for address in () if force else (target.address, beside(target.address, CERTIFICATE)):
        with _store_errors():
            if exists(address):
                raise already_exists(without_secrets(address))


def _write_object(job: Job) -> str:
    """The data, then the certificate: each appears whole, but a store cannot put two in place at once.

    With `force` the old certificate goes first: nothing ever vouches for other data.
    """
    address = job.target.address
    _check_object(job.target, force=job.force)
    data, text, digest = job.render(name_of(address))
    certificate = beside(address, CERTIFICATE)
    with _store_errors():
        if job.force:
            remove_object(certificate)
        job.check()
        job.ready(digest)
        write_object(address, data)
        try:
            write_object(certificate, text)
        except BaseException:
            with suppress(InputError):
                remove_object(address)
            raise
    return digest


def _write_stdout(job: Job) -> str:
    """The data to standard output, then the certificate to its file: what was read there cannot be taken back."""
    final = job.target.certificate_path
    name = final.name.removesuffix(CERTIFICATE) if final.name.endswith(CERTIFICATE) else "-"
    if job.target.sign is not None and name in ("-", ""):
        raise InvalidParameter(
            "--sign signs the name of the data: with --output -, --certificate must be NAME.certificate.json, "
            "where NAME is the file that the data will be in"
        )
    data, text, digest = job.render(name)
    with workplace(final.parent) as work:
        certificate = work / "certificate"
        write_synced(certificate, text)
        job.check()
        job.ready(digest)
        _send(data)
        if job.force:
            os.replace(certificate, final)
            sync_folder(final.parent)
        else:
            place_new([(certificate, final)])
    return digest


def _send(data: bytes) -> None:
    """Write all of it to standard output."""
    stream, rest = sys.stdout.buffer, memoryview(data)
    try:
        while rest:
            # Without a buffer (PYTHONUNBUFFERED) a signal, or a pipe that does not block, ends a write early.
            count = stream.write(rest)
            if count is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            rest = rest[count:]
        stream.flush()
    except OSError:
        # What is left in the buffer would be tried again at the end of the process.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def _write_database_file(job: Job) -> str:
    """A table of a database in a file. A new database is made aside, because it must not appear unfinished."""
    path = job.target.path
    with workplace(path.parent) as work:
        if not os.path.lexists(path):
            new = work / path.name
            # Aside it cannot be seen: it is ready when it gets its name.
            digest = replace(job, ready=lambda _: None).write_to_database(str(new))
            job.check()
            job.ready(digest)
            with suppress(FileExistsError):
                place_new([(new, path)])
                return digest
    # It is there, or someone made it just now: its own transactions keep it whole.
    return job.write_to_database(job.target.address)


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
        if glob.has_magic(one.path) and matches_pattern(_steps(name), _steps(one.path)):
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
        # A folder holds its certificate; standard output is not a file.
        own = [*([] if target.is_stdout else local_paths(target.address)), str(target.certificate_path)]
        # Also by another name of the same file. A file that does not exist yet cannot be lost.
        taken = any(_is_same(path, one) for path in own for one in (*made_of, *local_paths(key)))
    if taken:
        raise InvalidParameter(
            f"the release cannot be written to {printable(target.title())}, which it is made of"
        )


def _is_same_object(written: str, read: str) -> bool:
    """Whether an object, or its certificate, is among those that an address stands for."""
    source = without_options(read).rstrip("/")
    names = [without_options(beside(written, ending)) for ending in ("", CERTIFICATE)]
    return any(
        name == source or name.startswith(source + "/") or matches_pattern(name.split("/"), source.split("/"))
        for name in names
    )


def _takes_table(source: Any, target: Target, table: str | None, query: str | None) -> bool:
    """Whether a release would write one of the tables that are read."""
    if target.kind == "postgresql":
        same = isinstance(source, str) and _server(source) == _server(target.address)
    else:
        same = any(_is_same(target.address, path) for path in local_paths(source))
    if not same:
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


def _server(address: str) -> str | None:
    """Host and database of a PostgreSQL address, without the user."""
    found = re.match(r"postgres(?:ql)?://([^?]*)", address, re.IGNORECASE)
    return None if found is None else found[1].rpartition("@")[2].rstrip("/")


def _exists(target: Target, table: str) -> bool:
    from dphist.outputs.stores import open_store

    try:
        with open_store(target.kind, target.address) as store:
            return store.find(table) is not None
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
