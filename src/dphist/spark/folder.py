"""Write a release as a folder of Parquet files from Spark's executors, with the certificate inside.

Everything is written to a hidden folder next to the final one, which is renamed at the end, so that data and
certificate appear together. File systems that cannot rename a folder, such as object stores, copy it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql

from dphist.aliases import JsonObject
from dphist.certificate.endings import FOLDER_CERTIFICATE, whole_digest
from dphist.certificate.text import seal
from dphist.errors import OutputError
from dphist.outputs.target import Target, Written, already_exists
from dphist.outputs.write import NOT_A_RELEASE
from dphist.publishing import defer_signals
from dphist.spark.inputs import without_patterns
from dphist.spark.session import is_connect, java_of

T = TypeVar("T")
Placed = Callable[[Written], None]

# Spark's tasks write here before they commit.
UNFINISHED: Final = "_temporary"
# Spark holds a whole file in memory to compute its digest.
ROWS_A_FILE: Final = 5_000_000


def write_folder(
    frame: DataFrame,
    document: JsonObject,
    target: Target,
    *,
    force: bool,
    run: Callable[[Callable[[], None]], None] = lambda action: action(),
    placed: Placed | None = None,
) -> Written:
    """Write the rows from the executors, then the certificate, and give the folder its name.

    `run` runs the executors' work. `placed` is called once all is in place, before pending signals are handled.
    """
    session = frame.sparkSession
    files = FileSystem(session, target)
    files.check(force=force)
    work = files.path(files.final.getParent(), f".dphist-{secrets.token_hex(8)}")
    try:
        run(lambda: write_rows(frame, str(work)))
        facts = hide_error(lambda: folder_facts(session, target, str(work)), target)
        text = seal(document, facts, target.sign).encode()
        with defer_signals():
            hide_error(lambda: files.write(files.path(work, FOLDER_CERTIFICATE), text), target)
            hide_error(lambda: files.place(work, len(text), force=force), target)
            certificate = f"{target.public_address().rstrip('/')}/{FOLDER_CERTIFICATE}"
            signed_by = None if target.sign is None else target.sign.fingerprint
            written = Written(target.public_address(), certificate, facts["sha256"], facts["rows"], signed_by)
            if placed is not None:
                placed(written)
    finally:
        files.remove(work)
    return written


def read_folder(session: SparkSession, target: Target) -> DataFrame:
    return session.read.parquet(without_patterns(spark_address(target)))


def hide_error(action: Callable[[], T], target: Target) -> T:
    """Run an action; errors of Spark or Java, which may quote data, are replaced by one sentence."""
    try:
        return action()
    except OutputError:
        raise
    except Exception:
        message = f"{target.public_address()} cannot be written: the file system refused it"
    raise OutputError(message)


def spark_address(target: Target) -> str:
    plain = target.address.rstrip("/")
    return plain if "://" in plain else "file://" + os.path.abspath(plain)


def write_rows(frame: DataFrame, address: str) -> None:
    frame.write.option("maxRecordsPerFile", ROWS_A_FILE).parquet(address)


def folder_facts(session: SparkSession, target: Target, address: str) -> JsonObject:
    """The facts about the files for the certificate; the executors compute the digests."""
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


class HadoopPath(Protocol):
    """A path in Java."""

    def getName(self) -> str: ...  # noqa: N802

    def getParent(self) -> HadoopPath: ...  # noqa: N802


class FileSystem:
    """Spark's file system of a target."""

    def __init__(self, session: SparkSession, target: Target) -> None:
        if is_connect(session):
            raise OutputError("Spark Connect cannot write folders: write a file, or use a classic Spark session")
        self.path, self._target = java_of(session).org.apache.hadoop.fs.Path, target
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
        if not hide_error(lambda: self._system.exists(self.final), self._target):
            return
        if not force:
            raise already_exists(self._target.public_address())

        def is_release() -> bool:
            inside = self._system.listStatus(self.final)
            certified = self._system.exists(self.path(self.final, FOLDER_CERTIFICATE))
            return bool(certified) and not any(entry.isDirectory() for entry in inside)

        if not hide_error(is_release, self._target):
            raise OutputError(NOT_A_RELEASE.format(self._target.public_address()))

    def write(self, path: HadoopPath, data: bytes) -> None:
        stream = self._system.create(path, False)
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()

    def place(self, work: HadoopPath, size: int, *, force: bool) -> None:
        """Give the folder its name; with `force` an older release is first moved aside."""
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
                # A folder appeared at the last moment, and the rename moved ours into it.
                self.remove(nested)
                raise already_exists(title)
            if self._system.getFileStatus(self.path(self.final, FOLDER_CERTIFICATE)).getLen() != size:
                raise OutputError(f"{title} cannot be written: its certificate is missing")
            # The slower of two attempts at a task may have been writing until the rename; it cannot any more.
            self.remove(self.path(self.final, UNFINISHED))
        except BaseException:
            if old is not None and not self._system.exists(self.final):
                self._system.rename(old, self.final)
            raise
        if old is not None:
            self.remove(old)

    def remove(self, path: HadoopPath) -> None:
        """Remove a folder. If that fails, it stays hidden, and holds only released rows."""
        with suppress(Exception):
            self._system.delete(path, True)
