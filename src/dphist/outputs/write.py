"""Write a release and then its certificate, and never over its own input.

Files are written in a private hidden folder next to their final place and moved there at the end. The certificate
is the commit record: it is the last file to appear and, with `force`, the first to be removed. So after a failure
or a kill at any moment there is the old pair, data without a certificate, or the new pair; never a certificate
next to data that it does not describe. Without `force` nothing is replaced, not even a file that appears at the
last moment. Signals are deferred until both are in place.
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
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest, sha256
from io import BytesIO
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import pyarrow as pa

from dphist.aliases import JsonObject
from dphist.certificate.cells import ESCAPES
from dphist.certificate.digests import digest_of, storable
from dphist.certificate.endings import CERTIFICATE, FOLDER_CERTIFICATE
from dphist.certificate.text import output_facts, seal
from dphist.counting.files import given_paths, matching_files
from dphist.display import printable
from dphist.errors import DphistError, InputError, InvalidParameter, OutputError
from dphist.files import PathLike
from dphist.objects import (
    beside,
    exists,
    is_object,
    matches_pattern,
    name_of,
    remove_object,
    without_options,
    without_secrets,
    write_object,
)
from dphist.outputs.formats import OpenFile, write_rows
from dphist.outputs.stores import check_database, open_store, put_table, writing_errors
from dphist.outputs.target import Placed, Target, Written, already_exists, check_columns, local_paths
from dphist.publishing import (
    defer_signals,
    lock_folder,
    place,
    publish,
    why_not_a_file,
    work_folder,
    write_synced,
)


def check_target(target: Target, *, force: bool, columns: Sequence[str] = ()) -> None:
    """Raise `OutputError` if a release with these columns could not be written there.

    Changes nothing, except that databases undo or complete the transaction of a killed process.
    """
    check_columns(target, columns)
    if target.kind == "folder":
        _check_folder(target, force=force)
    elif target.is_object:
        _check_object(target, force=force)
    else:
        _check_files(target, force=force)
        if target.kind == "postgresql" or (target.is_database and os.path.lexists(target.path)):
            check_database(target, force=force)


NOT_A_RELEASE: Final = "{} was not written by a release, so it is not replaced: choose another folder"


def _check_folder(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if a local folder cannot be written. Spark checks others when it writes."""
    if "://" in target.address:
        return
    folder = target.address.rstrip("/")
    parent = os.path.dirname(os.path.abspath(folder)) or "/"
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target.address} cannot be written: {parent} is not a writable folder")
    if os.path.islink(folder):
        raise OutputError(f"{target.address} cannot be written: it is a link; name the folder itself")
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise OutputError(f"{target.address} cannot be written: it is not a folder")
    if not force:
        raise already_exists(target.public_address())
    entries = list(os.scandir(folder))
    if FOLDER_CERTIFICATE not in {entry.name for entry in entries} or any(entry.is_dir() for entry in entries):
        raise OutputError(NOT_A_RELEASE.format(target.public_address()))


def check_formulas(target: Target, escape_formulas: bool) -> None:
    if escape_formulas and target.kind not in ESCAPES:
        raise InvalidParameter(f"<--escape-formulas> is for CSV and TSV files, but {target.title()} is not one")


def _check_files(target: Target, *, force: bool) -> None:
    paths = [*([] if target.certificate is not None else [target.path]), target.certificate_path]
    folder, name = target.certificate_path.parent, target.certificate or target.address
    if not folder.is_dir():
        raise OutputError(f"{name} cannot be written: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"{name} cannot be written: the folder {folder} is not writable")
    if target.sign is not None and target.certificate is not None and target.name == "-":
        raise InvalidParameter(
            "<--sign> signs the name of the release: <--certificate> must be NAME.certificate.json. "
            "With <--output ->, "
            "NAME must be the file that the data will be saved to"
        )
    for path in paths:
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror}") from None
        if (what := why_not_a_file(mode)) is not None:
            raise OutputError(f"{path} cannot be written: it is {what}")
        if not force and (path == target.certificate_path or not target.is_database):
            raise already_exists(path)


def write_release(
    table: pa.Table,
    document: JsonObject,
    target: Target,
    *,
    force: bool,
    escape_formulas: bool = False,
    ready: Callable[[str], None] | None = None,
    placed: Placed | None = None,
) -> Written:
    """Write an Arrow table and the document of its certificate; with `force` they replace an older release.

    `ready` is called with the digest of the data once both are complete, before anyone can see them; from then on
    signals are deferred, and after a kill each is in place or complete in the hidden folder. `placed` is called
    once both are in place, before deferred signals are handled.
    """
    check_columns(target, table.column_names)
    with defer_signals() as check, _system_errors(target):
        job = WriteJob(table, document, target, force, check, escape_formulas, ready)
        if target.is_object:
            digest = _write_object(job)
        else:
            _check_files(target, force=force)
            write = _write_table if target.is_database else _write_stdout if target.is_stdout else _write_files
            digest = write(job)
        signed_by = None if target.sign is None else target.sign.fingerprint
        written = Written(target.title(), target.certificate_title(), digest, signed_by=signed_by)
        if placed is not None:
            placed(written)
    return written


@dataclass(frozen=True)
class WriteJob:
    """A release to write. `check` handles pending signals; `ready` is called before the data can be seen."""

    table: pa.Table
    document: JsonObject
    target: Target
    force: bool
    check: Callable[[], None]
    escape_formulas: bool
    ready: Callable[[str], None] | None

    def note(self, digest: str) -> None:
        if self.ready is not None:
            self.ready(digest)

    def write_rows(self, file: OpenFile) -> None:
        write_rows(self.table, self.target.kind, file, self.check, escape_formulas=self.escape_formulas)

    def certificate(self, name: str, digest: str) -> str:
        escaped = {"escape_formulas": True} if self.escape_formulas else {}
        facts = output_facts(self.table, self.target.kind, name, digest)
        return seal(self.document, {**facts, **escaped}, self.target.sign)

    def render(self, name: str) -> tuple[bytes, bytes, str]:
        """Data, certificate, and the digest of the data."""
        file = BytesIO()
        self.write_rows(file)
        data = file.getvalue()
        digest = sha256(data).hexdigest()
        return data, self.certificate(name, digest).encode(), digest


@contextmanager
def _system_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise already_exists(error.filename) from None
    except OSError as error:
        # Only the error number is used, because the text of an Arrow error may quote a value.
        reason = os.strerror(error.errno) if error.errno else "writing it failed"
        raise OutputError(f"{target.title()} cannot be written: {reason}") from None


def _write_files(job: WriteJob) -> str:
    target = job.target
    with work_folder(target.path.parent) as work:
        data, certificate = work / "data", work / "certificate"
        with data.open("xb") as file:
            job.write_rows(file)
            file.flush()
            os.fsync(file.fileno())
        with data.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        write_synced(certificate, job.certificate(target.name, digest).encode())
        job.check()
        with lock_folder(target.path.parent):
            job.note(digest)
            put_data = partial(place, data, target.path, force=job.force)
            publish(put_data, certificate, target.certificate_path, force=job.force)
    return digest


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn an object store's errors into `OutputError`, without their context, which may hold a key."""
    try:
        yield
    except InputError as error:
        message = error.marked
    else:
        return
    raise OutputError(message)


def _check_object(target: Target, *, force: bool) -> None:
    for address in () if force else (target.address, beside(target.address, CERTIFICATE)):
        with _store_errors():
            if exists(address):
                raise already_exists(without_secrets(address))


def _write_object(job: WriteJob) -> str:
    """Write the data, then the certificate: each appears whole, but a store cannot place two objects at once.

    With `force` the old certificate is removed first, so that it never describes other data.
    """
    address = job.target.address
    _check_object(job.target, force=job.force)
    data, text, digest = job.render(name_of(address))
    certificate = beside(address, CERTIFICATE)
    with _store_errors():
        if job.force:
            remove_object(certificate)
        job.check()
        job.note(digest)
        write_object(address, data)
        try:
            write_object(certificate, text)
        except BaseException:
            with suppress(InputError):
                remove_object(address)
            raise
    return digest


def _write_stdout(job: WriteJob) -> str:
    """Write the data to standard output, then the certificate to its file."""
    final = job.target.certificate_path
    data, text, digest = job.render(job.target.name)
    with work_folder(final.parent) as work:
        certificate = work / "certificate"
        write_synced(certificate, text)
        job.check()
        job.note(digest)
        publish(partial(_send, data), certificate, final, force=job.force)
    return digest


def _send(data: bytes) -> None:
    stream, rest = sys.stdout.buffer, memoryview(data)
    try:
        while rest:
            # Unbuffered (PYTHONUNBUFFERED), a signal or a non-blocking pipe can end a write early.
            count = stream.write(rest)
            if count is None:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            rest = rest[count:]
        stream.flush()
    except OSError:
        # Otherwise Python would write the rest of the buffer when the process ends.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def _write_table(job: WriteJob) -> str:
    """Write a table in one transaction, and then its certificate."""
    target, stored = job.target, storable(job.table, job.target.kind)
    digest = digest_of(stored)
    with work_folder(target.certificate_path.parent) as work:
        write_synced(work / "certificate", job.certificate(target.name, digest).encode())
        if job.ready is not None:
            # A later run of the id may have to write the table.
            with (work / "data").open("xb") as file:
                write_rows(job.table, "arrow", file, job.check)
                file.flush()
                os.fsync(file.fileno())
        place_table(target, job.table, work, force=job.force, check=job.check, ready=partial(job.note, digest))
    return digest


def place_table(
    target: Target, table: pa.Table, work: Path, *,
    force: bool, check: Callable[[], None] = lambda: None, ready: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Put the table, and then the certificate from the hidden folder, in place.

    A new database file is built in the hidden folder, so that it appears complete. `ready` is called before
    anything can be seen.
    """
    stored = storable(table, target.kind)
    types = {name: str(kind) for name, kind in zip(table.column_names, table.schema.types, strict=True)}

    def finish(put_data: Callable[[], None]) -> None:
        check()
        ready()
        publish(put_data, work / "certificate", target.certificate_path, force=force)

    with writing_errors(target):
        if target.kind != "postgresql" and not os.path.lexists(target.path):
            # In a folder of its own: a killed run may have left one.
            new = Path(mkdtemp(dir=work)) / target.path.name
            with open_store(target.kind, str(new)) as store:
                put_table(store, target, stored, types, force=force, check=check)
                store.commit()
            with lock_folder(target.path.parent):
                if not os.path.lexists(target.path):
                    finish(partial(place, new, target.path))
                    return
        # The database exists, or another process has just created it.
        with open_store(target.kind, target.address) as store:
            put_table(store, target, stored, types, force=force, check=check)
            with lock_folder(target.certificate_path.parent):
                finish(store.commit)


# Files and tables that must not be overwritten: the input, the list of items, the key, the release itself.

# The file itself, its certificate, and the journals of databases.
_ENDINGS: Final = ("", CERTIFICATE, "-journal", "-wal", "-shm", ".wal")


@dataclass(frozen=True)
class ProtectedFile:
    """A file, folder or glob in which no new file may be written, and how messages call it."""

    what: str
    path: str


def protected_files(
    release: object, certificate: object = None, input: object = None, items: object = None
) -> list[ProtectedFile]:
    """The files that the report of a release must not overwrite."""
    parts = {
        "the release": release,
        "its certificate": certificate,
        "the input": input,
        "the list of items": items,
    }
    return [ProtectedFile(what, path) for what, value in parts.items() for path in local_paths(value)]


def refuse_overwriting(path: PathLike, kept: Sequence[ProtectedFile]) -> None:
    """Raise `InvalidParameter` if a file is kept, or would become part of a kept folder or glob."""
    name = os.fspath(path)
    for keep in kept:
        if any(same_file(name, keep.path.rstrip("/") + ending) for ending in _ENDINGS):
            raise InvalidParameter(f"{printable(name)} cannot be written: it is {keep.what}, or belongs to it")
        if _is_inside(name, keep.path):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be inside {keep.what}")
        # The next run would read the new file as input.
        if glob.has_magic(keep.path) and matches_pattern(_steps(name), _steps(keep.path)):
            raise InvalidParameter(f"{printable(name)} cannot be written: it would be part of {keep.what}")


def refuse_own_input(
    target: Target,
    input: object,
    items: object = None,
    *,
    table: str | None = None,
    query: str | None = None,
    key: object = None,
) -> None:
    """Raise `InvalidParameter` if a release would overwrite its own input. One database may hold both.

    `table` and `query` are those of the input, `key` is the file of the private key.
    """
    if target.is_object:
        sources = [source if isinstance(source, (tuple, list)) else [source] for source in (input, items)]
        addresses = [address for source in sources for address in source if is_object(address)]
        taken = any(_is_among_objects(target.address, address) for address in addresses)
    else:
        read = [file for path in (*local_paths(input), *local_paths(items)) for file in _files(path)]
        own_file = not (target.is_stdout or target.is_database)
        written = [*(local_paths(target.address) if own_file else []), str(target.certificate_path)]
        # Compared as files, not as names: a link may lead to the input.
        taken = any(_is_same(path, file) for path in written for file in (*read, *local_paths(key)))
        if target.is_database:
            taken = taken or _is_read(input, target, table, query) or _is_read(items, target, None, None)
    if taken:
        raise InvalidParameter(
            f"cannot write the release to {printable(target.title())}: it is the input, the list of items or the "
            "key; choose another output"
        )


def have_common_source(first: object, second: object) -> bool:
    """Whether two inputs have a file, an address or a frame in common."""
    if first is second or {*given_paths(first)} & {*given_paths(second)}:
        return True
    files = [[file for path in local_paths(source) for file in _files(path)] for source in (first, second)]
    return any(_is_same(one, other) for one, other in product(*files))


def _is_among_objects(written: str, read: str) -> bool:
    """Whether an object, or its certificate, is one of those that an address stands for."""
    source = without_options(read).rstrip("/")
    names = [without_options(beside(written, ending)) for ending in ("", CERTIFICATE)]
    return any(
        name == source or name.startswith(source + "/") or matches_pattern(name.split("/"), source.split("/"))
        for name in names
    )


def _is_read(source: object, target: Target, table: str | None, query: str | None) -> bool:
    """Whether the release reads the table that it writes."""
    if target.kind == "postgresql":
        same = isinstance(source, str) and _server(source) == _server(target.address)
    else:
        same = any(_is_same(target.address, path) for path in local_paths(source))
    if not same:
        return False
    name = _plain_table(target.table_name)
    if table is not None:
        return _plain_table(table) == name
    if query is not None:
        # Only the database knows which tables a query reads, so a query that contains the name counts.
        return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", query.casefold()) is not None
    # Without a name the only table is read: if the written one exists, it is that one.
    return _exists(target)


def _plain_table(name: str) -> str:
    """A table without its schema; DuckDB and SQLite ignore case."""
    return name.rpartition(".")[2].strip('"').casefold()


def _server(address: str) -> str | None:
    """Host and database of a PostgreSQL address, without the user."""
    match = re.match(r"postgres(?:ql)?://([^?]*)", address, re.IGNORECASE)
    return None if match is None else match[1].rpartition("@")[2].rstrip("/")


def _exists(target: Target) -> bool:
    try:
        with open_store(target.kind, target.address) as store:
            return store.find(target.table_name) is not None
    except DphistError:
        return False  # a database that cannot be opened cannot be written either


def _files(path: str) -> list[str]:
    """The path itself, and the files of a folder or a glob."""
    try:
        return [path, *matching_files(path)]
    except (DphistError, OSError):
        return [path]  # the engine reports that it cannot be read


def _is_same(first: str, second: str) -> bool:
    """Whether two names are one existing file, also through links."""
    try:
        return os.path.samefile(first, second)
    except (OSError, ValueError):
        return False


def same_file(first: str, second: str) -> bool:
    """Whether two names are one file, or will be once it exists."""
    if os.path.exists(first) and os.path.exists(second):
        return _is_same(first, second)
    return _folder_and_name(first) == _folder_and_name(second)


def _folder_and_name(path: str) -> tuple[str | tuple[int, int], str]:
    """Some disks ignore case, or Unicode normalization."""
    folder, name = os.path.split(os.path.realpath(path))
    try:
        status = os.stat(folder)
    except OSError:
        return folder, name
    return (status.st_dev, status.st_ino), unicodedata.normalize("NFC", name).casefold()


def _is_inside(name: str, folder: str) -> bool:
    """Whether a name is below a folder, which may not exist yet."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        return False
    # The target of a link, and the link itself, which would be replaced.
    link = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(name))), os.path.basename(name))
    parents = {*Path(os.path.realpath(name)).parents, *Path(link).parents}
    return any(same_file(str(parent), folder) for parent in parents)


def _steps(path: str) -> list[str]:
    """Folders and name, without following links, as a glob does."""
    return os.path.abspath(path).split(os.sep)
