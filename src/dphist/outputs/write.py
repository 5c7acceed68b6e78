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
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import file_digest, sha256
from io import BytesIO
from typing import Any, Final

from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.objects import beside, exists, name_of, remove_object, without_secrets, write_object
from dphist.outputs.formats import ESCAPES, compact, write_rows
from dphist.outputs.seal import output_facts, seal
from dphist.outputs.spark_folder import check_folder
from dphist.outputs.stores import check_database, roll_back, write_database
from dphist.outputs.targets import CERTIFICATE, Target, Written, check_columns, check_files, target_of
from dphist.publishing import Deferred, alone, place_new, replace_pair, sync_folder, workplace, write_synced

__all__ = ["Target", "Written", "check_target", "target_of", "write_release"]

_REASONS: Final = {
    errno.ENOSPC: "there is no room left on the disk",
    errno.EDQUOT: "there is no room left in the quota",
    errno.EFBIG: "it is larger than a file may be here",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "it is not permitted",
    errno.EPERM: "it is not permitted",
}


def check_target(target: Target, *, force: bool, columns: Sequence[str] = ()) -> None:
    """Raise `OutputError` if a release of these columns could not be written there; nothing is changed.

    Only what a killed process has left in a SQLite file is undone.
    """
    check_columns(target, columns)
    if target.kind == "folder":
        return check_folder(target, force=force)
    if target.is_object:
        return _check_object(target, force=force)
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
    with Deferred() as signals, _system_errors(target):
        job = _Writing(plain, document, target, force, signals, escape_formulas, ready)
        if target.kind == "postgresql":
            digest = job.into_database(target.address)
        elif target.is_object:
            digest = _write_object(job)
        else:
            check_files(target, force=force)
            if target.is_database:
                digest = _write_into_file(job)
            elif target.is_stdout:
                digest = _write_stdout(job)
            else:
                digest = _write_files(job)
        signed_by = None if target.sign is None else target.sign.fingerprint
        written = Written(target.title(), target.certificate_title(), digest, signed_by=signed_by)
        if placed is not None:
            placed(written)
    return written


@dataclass(frozen=True)
class _Writing:
    """What is written, where and how; `ready` is called once it is whole, before anyone can see it."""

    table: Any
    document: dict[str, Any]
    target: Target
    force: bool
    signals: Deferred
    escape_formulas: bool
    ready: Callable[[str], None]

    def rows_to(self, file: Any) -> None:
        """The rows in the format of the target."""
        write_rows(self.table, self.target.kind, file, self.signals.check, escape_formulas=self.escape_formulas)

    def certificate(self, name: str, digest: str) -> bytes:
        """The certificate of data with this digest, under the name that they get."""
        escaped = {"escape_formulas": True} if self.escape_formulas else {}
        facts = {**output_facts(self.table, self.target.kind, name, digest), **escaped}
        return seal(self.document, facts, self.target.sign).encode()

    def rendered(self, name: str) -> tuple[bytes, bytes, str]:
        """Data and certificate as bytes, and the digest of the data."""
        file = BytesIO()
        self.rows_to(file)
        data = file.getvalue()
        digest = sha256(data).hexdigest()
        return data, self.certificate(name, digest), digest

    def into_database(self, address: str) -> str:
        """Both as tables of the database at this address; the digest of the rows."""
        return write_database(
            self.table, self.document, self.target, address, force=self.force, check=self.signals.check,
            ready=self.ready,
        )  # fmt: skip


@contextmanager
def _system_errors(target: Target) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # Arrow's own errors have no number, and their text is not known to be free of cells.
        reason = _REASONS.get(error.errno or 0) or error.strerror or "writing it failed"
        raise OutputError(f"{target.title()} cannot be written: {reason}") from None


def _write_files(job: _Writing) -> str:
    target = job.target
    with workplace(target.path.parent) as work:
        data, certificate = work / "data", work / "certificate"
        with data.open("xb") as file:
            job.rows_to(file)
            file.flush()
            os.fsync(file.fileno())
        with data.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        # A name that is not text in this system's encoding is shown with escapes.
        name = target.path.name.encode("utf-8", "backslashreplace").decode()
        write_synced(certificate, job.certificate(name, digest))
        job.signals.check()
        with alone(target.path.parent):
            job.ready(digest)
            if job.force:
                replace_pair(data, target.path, certificate, target.certificate_path, work)
            else:
                place_new([(data, target.path), (certificate, target.certificate_path)])
            sync_folder(target.path.parent)
    return digest


def _check_object(target: Target, *, force: bool) -> None:
    for address in (target.address, beside(target.address, CERTIFICATE)):
        with _store_errors():
            if not force and exists(address):
                raise OutputError(
                    f"{without_secrets(address)} already exists: choose another name, or replace it with --force"
                )


@contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        sentence = error.with_flags
    else:
        return
    raise OutputError(sentence)


def _write_object(job: _Writing) -> str:
    """The data, then the certificate: each appears whole, but a store cannot put two in place at once.

    With `force` the old certificate goes first: nothing ever vouches for other data.
    """
    address = job.target.address
    _check_object(job.target, force=job.force)
    data, text, digest = job.rendered(name_of(address))
    certificate = beside(address, CERTIFICATE)
    with _store_errors():
        if job.force:
            remove_object(certificate)
        job.signals.check()
        job.ready(digest)
        write_object(address, data)
        try:
            write_object(certificate, text)
        except BaseException:
            with suppress(InputError):
                remove_object(address)
            raise
    return digest


def _write_stdout(job: _Writing) -> str:
    """The data to standard output, then the certificate to its file: what was read there cannot be taken back."""
    final = job.target.certificate_path
    name = final.name.removesuffix(CERTIFICATE) if final.name.endswith(CERTIFICATE) else "-"
    if job.target.sign is not None and name in ("-", ""):
        raise InvalidParameter(
            "--sign signs the name of the data: with --output -, --certificate must be NAME.certificate.json, "
            "where NAME is the file that the data will be in"
        )
    data, text, digest = job.rendered(name)
    with workplace(final.parent) as work:
        certificate = work / "certificate"
        write_synced(certificate, text)
        job.signals.check()
        job.ready(digest)
        _send(data)
        if job.force:
            os.replace(certificate, final)
        else:
            place_new([(certificate, final)])
        sync_folder(final.parent)
    return digest


def _send(data: bytes) -> None:
    """Write to standard output, through to whoever reads it."""
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


def _write_into_file(job: _Writing) -> str:
    """A table of a database in a file. A new database is made aside, for it must not be there half made."""
    path = job.target.path
    with workplace(path.parent) as work:
        if not os.path.lexists(path):
            new = work / path.name
            # Aside nobody can see it: it is ready when it gets its name.
            digest = replace(job, ready=lambda _: None).into_database(str(new))
            job.signals.check()
            job.ready(digest)
            with suppress(FileExistsError):
                place_new([(new, path)])
                sync_folder(path.parent)
                return digest
    # It is there, or someone made it just now: its own transactions keep it whole.
    return job.into_database(job.target.address)
