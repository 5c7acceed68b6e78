"""Write a release and its certificate, both or neither.

Everything is made in a hidden folder next to where it goes, closed to others, and put in place at the end. The
certificate is the commit record: the last file to appear and, with `force`, the first to go. So whatever kills the
process, a certificate never stands alone or beside other data: there is the old pair, or data that are not yet (or
no longer) a release, or the new pair. Data without a certificate are whole and noisy, old or new; a certificate
beside other data would vouch for numbers that it is not about. Without `force` nothing is ever replaced, not even
what appears at the last moment. Signals wait while it happens.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import file_digest, sha256
from typing import Any, Final, TypeVar

from dphist.errors import InvalidParameter, OutputError
from dphist.outputs.cells import compact
from dphist.outputs.formats import ESCAPES, write_rows
from dphist.outputs.seal import output_facts, seal
from dphist.outputs.stores import check_database, roll_back, write_database
from dphist.outputs.targets import Target, check_columns, check_files, target_of
from dphist.publishing import Deferred, alone, place_new, replace_pair, sync_folder, workplace, write_synced

# A folder of Parquet files, written by Spark's executors wherever Spark can write, with the certificate inside.
#
# Everything is made in a hidden folder beside the one it is for, which gets its name at the end: so there are both
# the data and the certificate, or neither. On a file system that cannot rename a folder at once, as object stores
# cannot, it is copied, the certificate with it.

T = TypeVar("T")

CERTIFICATE: Final = "_certificate.json"
# Where Spark's tasks write until they are taken into account.
UNFINISHED: Final = "_temporary"
# Spark reads a file back whole to tell its digest.
ROWS_A_FILE: Final = 5_000_000


def check_folder(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if a folder of this machine is there already; of others only Spark knows."""
    if "://" in target.address:
        return
    parent = os.path.dirname(os.path.abspath(target.address)) or "/"
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(
            f"{target.address} cannot be written: there is no folder {parent} that can be written to"
        )
    if os.path.islink(target.address.rstrip("/")):
        raise OutputError(f"{target.address} cannot be written: it is a link; name the folder itself")
    if os.path.lexists(target.address.rstrip("/")):
        if not os.path.isdir(target.address):
            raise OutputError(f"{target.address} cannot be written: it is not a folder")
        if not force:
            raise OutputError(_exists(target))
        inside = list(os.scandir(target.address))
        if CERTIFICATE not in {entry.name for entry in inside} or any(entry.is_dir() for entry in inside):
            raise OutputError(_no_release(target))


def _exists(target: Target) -> str:
    return (
        f"{target.public_address()} exists already: choose another name, or replace it with --force (force=True)"
    )


def _no_release(target: Target) -> str:
    return f"{target.public_address()} is not a folder that a release wrote, and only such a one is replaced"


def address_of(target: Target) -> str:
    """The address as Spark has it; a plain name is a folder of this machine."""
    plain = target.address.rstrip("/")
    return plain if "://" in plain else "file://" + os.path.abspath(plain)


def write_folder(
    frame: Any,
    document: dict[str, Any],
    target: Target,
    *,
    force: bool,
    attempted: Callable[[Callable[[], Any]], Any] = lambda action: action(),
    placed: Callable[[Any], None] | None = None,
) -> Any:
    """Write the rows from the executors, then the certificate, and give the folder its name.

    `attempted` runs the work of the executors. `placed` is told once everything is there, before any signal that
    waited. What goes wrong is one sentence.
    """
    session = frame.sparkSession
    files = _FileSystem(session, address_of(target), target)
    files.check(force=force)
    work = files.beside(f".dphist-{secrets.token_hex(8)}")
    try:
        attempted(lambda: _write_rows(frame, str(work)))
        told = _with_sentence(lambda: _facts(session, target, str(work)), target)
        text = seal(document, told, target.sign).encode()
        with Deferred():
            _with_sentence(lambda: files.write(files.within(work, CERTIFICATE), text), target)
            _with_sentence(lambda: files.place(work, len(text), force=force), target)
            certificate = f"{target.public_address().rstrip('/')}/{CERTIFICATE}"
            signed_by = None if target.sign is None else target.sign.fingerprint
            written = Written(target.public_address(), certificate, told["sha256"], told["rows"], signed_by)
            if placed is not None:
                placed(written)
    finally:
        files.remove(work)
    return written


def _with_sentence(action: Callable[[], T], target: Target) -> T:
    """What Spark or Java says in an exception is not known to be free of secrets; one sentence in its place."""
    try:
        return action()
    except OutputError:
        raise
    except Exception:
        message = f"{target.public_address()} cannot be written: the file system refused it"
    raise OutputError(message)


def read_folder(session: Any, target: Target) -> Any:
    """The rows that were written."""
    return session.read.parquet(_plain(address_of(target)))


def _plain(address: str) -> str:
    """An address to read from. In a name nothing is a pattern: what could be one is escaped."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", address)


def _write_rows(frame: Any, address: str) -> None:
    frame.write.option("maxRecordsPerFile", ROWS_A_FILE).parquet(address)


def _digests(session: Any, address: str) -> dict[str, str]:
    """The SHA-256 of each file, computed where the files are read."""
    from pyspark.sql import functions as sql

    contents = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(_plain(address))
    rows = contents.select(sql.element_at(sql.split("path", "/"), -1), sql.sha2("content", 256)).collect()
    return dict(sorted((row[0], row[1]) for row in rows))


def whole_digest(files: dict[str, str]) -> str:
    """One digest for all files: SHA-256 of their names and digests."""
    return sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _facts(session: Any, target: Target, address: str) -> dict[str, Any]:
    rows, files = session.read.parquet(_plain(address)), _digests(session, address)
    return {
        "name": os.path.basename(target.address.rstrip("/")),
        "kind": "folder",
        "sha256": whole_digest(files),
        "files": files,
        "columns": rows.columns,
        "rows": rows.count(),
    }


class _FileSystem:
    """The file system of an address, as Spark has it."""

    def __init__(self, session: Any, address: str, target: Target) -> None:
        if not hasattr(session, "_jsparkSession"):
            raise OutputError("folders are written by sessions of Spark's own, not through Spark Connect")
        self._jvm, self._target = session._jvm, target
        self.final = self._jvm.org.apache.hadoop.fs.Path(address)
        settings = session._jsparkSession.sessionState().newHadoopConf()
        try:
            self._system = self.final.getFileSystem(settings)
        except Exception:
            scheme = address.partition("://")[0]
            message = f"{target.public_address()} cannot be written: this Spark knows no file system {scheme}://"
        else:
            return
        raise OutputError(message)

    def beside(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.final.getParent(), name)

    def within(self, folder: Any, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(folder, name)

    def check(self, *, force: bool) -> None:
        """Only a release is ever replaced, and only with `force`."""
        if not _with_sentence(lambda: self._system.exists(self.final), self._target):
            return
        if not force:
            raise OutputError(_exists(self._target))
        if not _with_sentence(self._is_release, self._target):
            raise OutputError(_no_release(self._target))

    def _is_release(self) -> bool:
        """Whether a folder holds a certificate and nothing but files."""
        return bool(self._system.exists(self.within(self.final, CERTIFICATE))) and not any(
            entry.isDirectory() for entry in self._system.listStatus(self.final)
        )

    def write(self, path: Any, data: bytes) -> None:
        stream = self._system.create(path, False)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def place(self, work: Any, size: int, *, force: bool) -> None:
        """Give the folder its name; an older release, with `force`, is aside until then."""
        self.check(force=force)
        old = None
        if self._system.exists(self.final):
            old = self.beside(f".dphist-{secrets.token_hex(8)}")
            self._system.rename(self.final, old)
        try:
            if self._system.exists(self.final) or not self._system.rename(work, self.final):
                raise OutputError(_exists(self._target))
            nested = self.within(self.final, work.getName())
            if self._system.exists(nested):
                # A folder that appeared at the last moment: the move went into it.
                self.remove(nested)
                raise OutputError(_exists(self._target))
            if self._system.getFileStatus(self.within(self.final, CERTIFICATE)).getLen() != size:
                raise OutputError(
                    f"{self._target.public_address()} cannot be written: its certificate is not there"
                )
            # The slower of two attempts at a task may still have been writing when its job was done. From the
            # move on it can only write where the folder was.
            self.remove(self.within(self.final, UNFINISHED))
        except BaseException:
            if old is not None and not self._system.exists(self.final):
                self._system.rename(old, self.final)
            raise
        if old is not None:
            self.remove(old)

    def remove(self, path: Any) -> None:
        with suppress(Exception):  # what cannot be removed is hidden, and holds released rows alone
            self._system.delete(path, True)


__all__ = ["Target", "Written", "check_target", "target_of", "write_release"]

_REASONS: Final = {
    errno.ENOSPC: "there is no room left on the disk",
    errno.EDQUOT: "there is no room left in the quota",
    errno.EFBIG: "it is larger than a file may be here",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "it is not permitted",
    errno.EPERM: "it is not permitted",
}


@dataclass(frozen=True)
class Written:
    """Where a release is, where its certificate is, and the SHA-256 of its data."""

    address: str
    certificate: str
    digest: str
    rows: int | None = None
    signed_by: str | None = None


def check_target(target: Target, *, force: bool, columns: Sequence[str] = ()) -> None:
    """Raise `OutputError` if a release of these columns could not be written there; nothing is changed.

    Only what a killed process has left in a SQLite file is undone.
    """
    check_columns(target, columns)
    if target.kind == "folder":
        return check_folder(target, force=force)
    if target.kind != "postgresql":
        check_files(target, force=force)
    if target.kind == "sqlite" and os.path.lexists(target.path):
        roll_back(target.address)
    if target.is_database and (target.kind == "postgresql" or os.path.lexists(target.path)):
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
    placed: Callable[[Written], None] | None = None,
) -> Written:
    """Write a table of Arrow and the certificate's document; with `force` in the place of an older release.

    With `escape_formulas` a spreadsheet takes no text in a CSV file for a formula. `placed` is called once both
    are there, before any signal that waited.
    """
    check_columns(target, table.column_names)
    check_formulas(target, escape_formulas)
    plain = compact(table)
    with Deferred() as signals, _system_errors(target):
        if target.kind == "postgresql":
            digest = write_database(plain, document, target, target.address, force=force, check=signals.check)
        else:
            check_files(target, force=force)
            if target.is_database:
                digest = _write_into_file(plain, document, target, force, signals)
            else:
                digest = _write_files(plain, document, target, force, signals, escape_formulas)
        signed_by = None if target.sign is None else target.sign.fingerprint
        written = Written(target.title(), target.certificate_title(), digest, signed_by=signed_by)
        if placed is not None:
            placed(written)
    return written


@contextmanager
def _system_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Arrow's own errors have no number, and their text is not known to be free of cells.
        reason = _REASONS.get(error.errno or 0) or error.strerror or "writing it failed"
        raise OutputError(f"{target.title()} cannot be written: {reason}") from None


def _write_files(
    plain: Any, document: dict[str, Any], target: Target, force: bool, signals: Deferred, escape_formulas: bool
) -> str:
    with workplace(target.path.parent) as work:
        data, certificate = work / "data", work / "certificate"
        with data.open("xb") as file:
            write_rows(plain, target.kind, file, signals.check, escape_formulas=escape_formulas)
            file.flush()
            os.fsync(file.fileno())
        with data.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        # A name that is not text in this system's encoding is shown with escapes.
        name = target.path.name.encode("utf-8", "backslashreplace").decode()
        escaped = {"escape_formulas": True} if escape_formulas else {}
        text = seal(document, {**output_facts(plain, target.kind, name, digest), **escaped}, target.sign)
        write_synced(certificate, text.encode())
        signals.check()
        with alone(target.path.parent):
            if force:
                replace_pair(data, target.path, certificate, target.certificate_path, work)
            else:
                place_new([(data, target.path), (certificate, target.certificate_path)])
            sync_folder(target.path.parent)
    return digest


def _write_into_file(plain: Any, document: dict[str, Any], target: Target, force: bool, signals: Deferred) -> str:
    """A table of a database in a file. A new database is made aside, for it must not be there half made."""
    with workplace(target.path.parent) as work:
        if not os.path.lexists(target.path):
            new = work / target.path.name
            digest = write_database(plain, document, target, str(new), force=force, check=signals.check)
            signals.check()
            with suppress(FileExistsError):
                place_new([(new, target.path)])
                sync_folder(target.path.parent)
                return digest
    # It is there, or someone made it just now: its own transactions keep it whole.
    return write_database(plain, document, target, target.address, force=force, check=signals.check)
