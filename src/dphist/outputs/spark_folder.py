"""A folder of Parquet files, written by Spark's executors wherever Spark can write, with the certificate inside.

Everything is made in a hidden folder beside the one it is for, which gets its name at the end: so there are both
the data and the certificate, or neither. On a file system that cannot rename a folder at once, as object stores
cannot, it is copied, the certificate with it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from dphist.errors import OutputError
from dphist.outputs.seal import sealed
from dphist.outputs.targets import Target

CERTIFICATE: Final = "_certificate.json"
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
    if os.path.lexists(target.address.rstrip("/")):
        if not os.path.isdir(target.address):
            raise OutputError(f"{target.address} cannot be written: it is not a folder")
        if not force:
            raise OutputError(_exists(target))


def _exists(target: Target) -> str:
    return f"{target.address} exists already: choose another name, or replace it with --force (force=True)"


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
) -> Any:
    """Write the rows from the executors, then the certificate, and give the folder its name."""
    from dphist.outputs.writing import Written

    session = frame.sparkSession
    files = _FileSystem(session, address_of(target))
    if files.exists(files.final) and not force:
        raise OutputError(_exists(target))
    work = files.beside(f".dphist-{secrets.token_hex(8)}")
    try:
        attempted(lambda: _write_rows(frame, str(work)))
        listed = _digests(session, str(work))
        told = _facts(session, target, str(work), listed)
        files.write(files.within(work, CERTIFICATE), sealed(document, told).encode())
        files.place(work, target)
    finally:
        files.remove(work)
    certificate = f"{target.address.rstrip('/')}/{CERTIFICATE}"
    return Written(target.address, certificate, told["sha256"], told["rows"])


def read_folder(session: Any, target: Target) -> Any:
    """The rows that were written."""
    return session.read.parquet(address_of(target))


def _write_rows(frame: Any, address: str) -> None:
    frame.write.option("maxRecordsPerFile", ROWS_A_FILE).parquet(address)


def _digests(session: Any, address: str) -> dict[str, str]:
    """The SHA-256 of each file, computed where the files are read."""
    from pyspark.sql import functions as sql

    contents = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(address)
    rows = contents.select(sql.element_at(sql.split("path", "/"), -1), sql.sha2("content", 256)).collect()
    return dict(sorted((row[0], row[1]) for row in rows))


def whole_digest(files: dict[str, str]) -> str:
    """One digest for all files: SHA-256 of their names and digests."""
    return sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _facts(session: Any, target: Target, address: str, files: dict[str, str]) -> dict[str, Any]:
    rows = session.read.parquet(address)
    return {
        "name": os.path.basename(target.address.rstrip("/")),
        "kind": "folder",
        "sha256": whole_digest(files),
        "files": files,
        "columns": rows.columns,
        "types": [kind for _, kind in rows.dtypes],
        "rows": rows.count(),
    }


class _FileSystem:
    """The file system of an address, as Spark has it."""

    def __init__(self, session: Any, address: str) -> None:
        if not hasattr(session, "_jsparkSession"):
            raise OutputError("folders are written by sessions of Spark's own, not through Spark Connect")
        self._jvm = session._jvm
        self.final = self._jvm.org.apache.hadoop.fs.Path(address)
        settings = session._jsparkSession.sessionState().newHadoopConf()
        try:
            self._system = self.final.getFileSystem(settings)
        except Exception:
            scheme = address.partition("://")[0]
            message = f"{address} cannot be written: this Spark knows no file system {scheme}://"
        else:
            return
        raise OutputError(message)

    def beside(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.final.getParent(), name)

    def within(self, folder: Any, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(folder, name)

    def exists(self, path: Any) -> bool:
        return bool(self._system.exists(path))

    def write(self, path: Any, data: bytes) -> None:
        stream = self._system.create(path, False)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def place(self, work: Any, target: Target) -> None:
        """Give the folder its name; an older release with `force` is aside until then."""
        old = None
        if self.exists(self.final):
            old = self.beside(f".dphist-{secrets.token_hex(8)}")
            self._system.rename(self.final, old)
        if self.exists(self.final) or not self._system.rename(work, self.final):
            if old is not None:
                self._system.rename(old, self.final)
            raise OutputError(f"{target.address} cannot be written: the folder could not be given its name")
        if old is not None:
            self.remove(old)

    def remove(self, path: Any) -> None:
        self._system.delete(path, True)
