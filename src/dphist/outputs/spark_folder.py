"""A folder of Parquet files, written by Spark's executors wherever Spark can write, with the certificate inside.

Everything is written to a hidden folder beside the final one, which gets its name at the end: so there are both
the data and the certificate, or neither. A file system that cannot rename a folder at once, such as an object
store, copies it, the certificate included.
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
from dphist.outputs.formats import seal
from dphist.outputs.target import Target, already_exists
from dphist.outputs.write import Written
from dphist.publishing import defer_signals

T = TypeVar("T")

CERTIFICATE: Final = "_certificate.json"
# Where Spark's tasks write before they commit.
UNFINISHED: Final = "_temporary"
# Spark reads a whole file to compute its digest.
ROWS_A_FILE: Final = 5_000_000
NOT_A_RELEASE: Final = "{} is not a folder that a release wrote, and only such a folder is replaced"


def check_folder(target: Target, *, force: bool) -> None:
    """Raise `OutputError` if a local folder cannot be written; Spark checks all others when it writes."""
    if "://" in target.address:
        return
    folder = target.address.rstrip("/")
    parent = os.path.dirname(os.path.abspath(folder)) or "/"
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{target.address} cannot be written: {parent} is not a folder that can be written to")
    if os.path.islink(folder):
        raise OutputError(f"{target.address} cannot be written: it is a link; name the folder itself")
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise OutputError(f"{target.address} cannot be written: it is not a folder")
    if not force:
        raise already_exists(target.public_address())
    inside = list(os.scandir(folder))
    if CERTIFICATE not in {entry.name for entry in inside} or any(entry.is_dir() for entry in inside):
        raise OutputError(NOT_A_RELEASE.format(target.public_address()))


def write_folder(
    frame: Any,
    document: dict[str, Any],
    target: Target,
    *,
    force: bool,
    run: Callable[[Callable[[], Any]], Any] = lambda action: action(),
    placed: Callable[[Any], None] | None = None,
) -> Written:
    """Write the rows from the executors, then the certificate, and give the folder its name.

    `run` runs the work of the executors. `placed` is called once everything is there, before signals that waited.
    """
    session = frame.sparkSession
    files = FileSystem(session, target)
    files.check(force=force)
    work = files.path(files.final.getParent(), f".dphist-{secrets.token_hex(8)}")
    try:
        run(lambda: write_rows(frame, str(work)))
        facts = one_sentence(lambda: folder_facts(session, target, str(work)), target)
        text = seal(document, facts, target.sign).encode()
        with defer_signals():
            one_sentence(lambda: files.write(files.path(work, CERTIFICATE), text), target)
            one_sentence(lambda: files.place(work, len(text), force=force), target)
            certificate = f"{target.public_address().rstrip('/')}/{CERTIFICATE}"
            signed_by = None if target.sign is None else target.sign.fingerprint
            written = Written(target.public_address(), certificate, facts["sha256"], facts["rows"], signed_by)
            if placed is not None:
                placed(written)
    finally:
        files.remove(work)
    return written


def read_folder(session: Any, target: Target) -> Any:
    """The rows that were written."""
    return session.read.parquet(without_patterns(spark_address(target)))


def one_sentence(action: Callable[[], T], target: Target) -> T:
    """The result; errors of Spark or Java, which may quote data, are replaced by one sentence."""
    try:
        return action()
    except OutputError:
        raise
    except Exception:
        message = f"{target.public_address()} cannot be written: the file system refused it"
    raise OutputError(message)


def spark_address(target: Target) -> str:
    """The address for Spark; a plain name is a local folder."""
    plain = target.address.rstrip("/")
    return plain if "://" in plain else "file://" + os.path.abspath(plain)


def without_patterns(address: str) -> str:
    """An address to read from, in which no character is a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", address)


def write_rows(frame: Any, address: str) -> None:
    """Write the rows as Parquet files."""
    frame.write.option("maxRecordsPerFile", ROWS_A_FILE).parquet(address)


def folder_facts(session: Any, target: Target, address: str) -> dict[str, Any]:
    """What the certificate says of the files: their digests, computed where they are read, columns and rows."""
    from pyspark.sql import functions as sql

    place = without_patterns(address)
    contents = session.read.format("binaryFile").option("pathGlobFilter", "*.parquet").load(place)
    digests = contents.select(sql.element_at(sql.split("path", "/"), -1), sql.sha2("content", 256)).collect()
    files = dict(sorted((row[0], row[1]) for row in digests))
    rows = session.read.parquet(place)
    return {
        "name": os.path.basename(target.address.rstrip("/")),
        "kind": "folder",
        "sha256": whole_digest(files),
        "files": files,
        "columns": rows.columns,
        "rows": rows.count(),
    }


def whole_digest(files: dict[str, str]) -> str:
    """One digest for all files: SHA-256 of their names and digests."""
    return sha256(json.dumps(files, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class FileSystem:
    """The file system of a target, as Spark has it."""

    def __init__(self, session: Any, target: Target) -> None:
        if not hasattr(session, "_jsparkSession"):
            raise OutputError(
                "folders cannot be written through Spark Connect: write a file, or use a Spark session"
            )
        self.path, self._target = session._jvm.org.apache.hadoop.fs.Path, target
        self.final = self.path(spark_address(target))
        settings = session._jsparkSession.sessionState().newHadoopConf()
        try:
            self._system = self.final.getFileSystem(settings)
            return
        except Exception:
            scheme = spark_address(target).partition("://")[0]
        raise OutputError(
            f"{target.public_address()} cannot be written: this Spark has no file system {scheme}://"
        )

    def check(self, *, force: bool) -> None:
        """Raise `OutputError` if the folder exists; with `force` only if it is not that of a release."""
        if not one_sentence(lambda: self._system.exists(self.final), self._target):
            return
        if not force:
            raise already_exists(self._target.public_address())

        def is_release() -> bool:
            inside = self._system.listStatus(self.final)
            certified = self._system.exists(self.path(self.final, CERTIFICATE))
            return bool(certified) and not any(entry.isDirectory() for entry in inside)

        if not one_sentence(is_release, self._target):
            raise OutputError(NOT_A_RELEASE.format(self._target.public_address()))

    def write(self, path: Any, data: bytes) -> None:
        """Write a new file."""
        stream = self._system.create(path, False)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def place(self, work: Any, size: int, *, force: bool) -> None:
        """Give the folder its name; with `force` an older release is moved aside until then."""
        self.check(force=force)
        title, old = self._target.public_address(), None
        if self._system.exists(self.final):
            old = self.path(self.final.getParent(), f".dphist-{secrets.token_hex(8)}")
            self._system.rename(self.final, old)
        try:
            if self._system.exists(self.final) or not self._system.rename(work, self.final):
                raise already_exists(title)
            nested = self.path(self.final, work.getName())
            if self._system.exists(nested):
                # A folder that appeared at the last moment: the move went into it.
                self.remove(nested)
                raise already_exists(title)
            if self._system.getFileStatus(self.path(self.final, CERTIFICATE)).getLen() != size:
                raise OutputError(f"{title} cannot be written: its certificate is missing")
            # The slower of two attempts at a task may still have been writing when its job was done. After the
            # move it can only write where the folder was.
            self.remove(self.path(self.final, UNFINISHED))
        except BaseException:
            if old is not None and not self._system.exists(self.final):
                self._system.rename(old, self.final)
            raise
        if old is not None:
            self.remove(old)

    def remove(self, path: Any) -> None:
        """Remove a folder. If it cannot be removed, it stays hidden, and holds released rows alone."""
        with suppress(Exception):
            self._system.delete(path, True)
