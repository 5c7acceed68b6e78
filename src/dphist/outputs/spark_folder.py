"""A folder of Parquet files, written by Spark's executors wherever Spark can write, with the certificate inside.

Everything is made in a hidden folder beside the one it is for, which gets its name at the end: so there are both
the data and the certificate, or neither. On a file system that cannot rename a folder at once, as object stores
cannot, it is copied, the certificate with it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, TypeVar

from dphist.errors import OutputError
from dphist.outputs.interrupts import Deferred
from dphist.outputs.seal import sealed
from dphist.outputs.targets import Target

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
    from dphist.outputs.writing import Written

    session = frame.sparkSession
    files = _FileSystem(session, address_of(target), target)
    files.check(force=force)
    work = files.beside(f".dphist-{secrets.token_hex(8)}")
    try:
        attempted(lambda: _write_rows(frame, str(work)))
        told = _told(lambda: _facts(session, target, str(work)), target)
        text = sealed(document, told, target.sign).encode()
        with Deferred():
            _told(lambda: files.write(files.within(work, CERTIFICATE), text), target)
            _told(lambda: files.place(work, len(text), force=force), target)
            certificate = f"{target.public_address().rstrip('/')}/{CERTIFICATE}"
            signed_by = None if target.sign is None else target.sign.fingerprint
            written = Written(target.public_address(), certificate, told["sha256"], told["rows"], signed_by)
            if placed is not None:
                placed(written)
    finally:
        files.remove(work)
    return written


def _told(action: Callable[[], T], target: Target) -> T:
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
        if not _told(lambda: self._system.exists(self.final), self._target):
            return
        if not force:
            raise OutputError(_exists(self._target))
        if not _told(self._is_release, self._target):
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
