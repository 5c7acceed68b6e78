"""Publish files: unfinished work in a hidden folder, a name for what is whole, signals that wait meanwhile.

The process that works in such a folder marks and locks it. What a killed process has left is recognised by its
mark and its free lock, and the next writer in the same place removes it. A folder without the mark, or of another
user, is never touched.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from types import FrameType
from typing import Any, Final

from dphist.errors import InvalidParameter, OutputError

try:
    import fcntl
except ImportError:  # not on Windows, where nothing is swept
    fcntl = None  # type: ignore[assignment]

LOCK: Final = "lock"
MARK: Final = b"dphist: unfinished work; the next run removes it\n"
WORKPLACE: Final = re.compile(r"\.dphist-[0-9a-f]{16}")
# What a file system says that has no hard links.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
# Publishing takes milliseconds: a lock on a folder that is held longer than this has another purpose.
_WAIT_SECONDS: Final = 30.0
# A folder that is still empty can be swept away, but not a thousand times in a row.
ATTEMPTS: Final = 1000


def checked_path(path: str | os.PathLike[str], what: str) -> Path:
    """The path, if it is the name of a file."""
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter(f"{what} needs the name of a file, not {name!r}")
    return Path(name)


@contextmanager
def open_regular(path: str | os.PathLike[str]) -> Iterator[BufferedReader]:
    """Open a regular file for reading: a pipe would block, and a device never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


def odd_file(mode: int) -> str | None:
    """What a path is whose mode is not that of a regular file, as a sentence goes on; None for a file."""
    if stat.S_ISREG(mode):
        return None
    other = "a folder" if stat.S_ISDIR(mode) else "not a file"
    return "a link; name the file itself" if stat.S_ISLNK(mode) else other


def link_new(new: Path, final: Path) -> None:
    """Give a file its name, unless something has it already."""
    try:
        os.link(new, final)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # The empty file holds the name until the real one replaces it.
        os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        try:
            os.replace(new, final)
        except BaseException:
            os.unlink(final)
            raise


def keep_old(path: Path, old: Path) -> None:
    """A second name for an old file, or a new one where a file has one name only."""
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    try:
        os.link(path, old, follow_symlinks=False)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LINKS:
            raise
        os.replace(path, old)


def identity(path: Path) -> tuple[int, int]:
    """Which file a name stands for."""
    try:
        found = os.lstat(path)
    except OSError:
        return (-1, -1)
    return found.st_dev, found.st_ino


def place_new(pairs: Sequence[tuple[Path, Path]], *, force: bool = False) -> None:
    """Give new files their names, in this order; on any error none of them. With `force` older files go."""
    if force and len(pairs) == 1:
        ((new, final),) = pairs
        os.replace(new, final)
        sync_folder(final.parent)
        return
    final = Path()
    try:
        with ExitStack() as placed:
            for new, final in pairs:
                old = new.with_name(f"{new.name}-old")
                # Recorded first: after an interruption the file itself shows whether it was placed.
                placed.callback(_withdraw, final, old, identity(new))
                if not force:
                    link_new(new, final)
                    continue
                if os.path.lexists(final):
                    keep_old(final, old)
                os.replace(new, final)
            placed.pop_all()
    except FileExistsError as error:
        raise FileExistsError(errno.EEXIST, f"{final} already exists", str(final)) from error
    for folder in {final.parent for _, final in pairs}:
        sync_folder(folder)


def _withdraw(path: Path, old: Path, written: tuple[int, int]) -> None:
    """The older file is there again, or none; what others put there meanwhile stays."""
    with suppress(OSError):
        ours = identity(path) == written
        if os.path.lexists(old) and (ours or not os.path.lexists(path)):
            os.replace(old, path)
        elif ours:
            os.unlink(path)


def replace_pair(data: Path, final: Path, certificate: Path, certified: Path, work: Path) -> None:
    """Put both files in the place of older ones; on any error the older ones are there again.

    The certificate is the last to appear and the first to go: none ever stands beside other data.
    """
    ours, sealing = identity(data), identity(certificate)
    old_data, old_certificate = work / "old", work / "old-certificate"
    try:
        if os.path.lexists(final):
            keep_old(final, old_data)
        if os.path.lexists(certified):
            os.replace(certified, old_certificate)
        os.replace(data, final)
        # On the disk in this order too: after a power failure no certificate is there before its data.
        sync_folder(final.parent)
        os.replace(certificate, certified)
    except BaseException:
        if identity(certified) != sealing:
            if os.path.lexists(old_data):
                os.replace(old_data, final)
            elif identity(final) == ours:
                os.unlink(final)
            if os.path.lexists(old_certificate):
                os.replace(old_certificate, certified)
        raise
    sync_folder(final.parent)


def sync_folder(folder: Path) -> None:
    """Make names last over a power failure; a folder that cannot be synced is not an error."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_synced(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a new file through to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def write_files(files: Mapping[Path, tuple[bytes, int]], *, force: bool = False) -> None:
    """Put whole files with these modes in their places, all or none. With `force` older files are replaced."""
    try:
        with defer_signals(), ExitStack() as works:
            folders = {
                folder: works.enter_context(workplace(folder)) for folder in {path.parent for path in files}
            }
            pairs = [(folders[path.parent] / str(number), path) for number, path in enumerate(files)]
            for new, path in pairs:
                write_synced(new, *files[path])
            place_new(pairs, force=force)
    except FileExistsError as error:
        raise OutputError(f"{error.filename} already exists: choose another name") from None
    except OSError as error:
        raise OutputError(f"{' and '.join(map(str, files))} cannot be written: {error.strerror}") from None


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A hidden folder for what is unfinished, closed to other users; gone afterwards, or with the next run."""
    sweep(folder)
    lock = -1
    work = folder
    try:
        for _ in range(ATTEMPTS):
            work = folder / f".dphist-{secrets.token_hex(8)}"
            work.mkdir(mode=0o700)
            lock = hold(work)
            if lock >= 0:
                break
        else:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(work))
        yield work
    finally:
        if work != folder:
            _remove(work)
        if lock >= 0:
            os.close(lock)


def hold(folder: Path) -> int:
    """Mark a folder and lock it while the descriptor is open; -1 if it was swept away before that."""
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return -1
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # on a full disk, which may still have room in memory for the work itself
            os.write(descriptor, MARK)
        found = os.fstat(descriptor)
        if identity(path) == (found.st_dev, found.st_ino):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return -1


def sweep(folder: Path) -> None:
    """Remove the hidden folders that killed processes have left here."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if WORKPLACE.fullmatch(entry.name):
                remove_abandoned(Path(entry.path))


def remove_abandoned(folder: Path) -> bool:
    """Remove a folder that has our mark, belongs to us and is not locked, or has nothing in it yet."""
    if fcntl is None:
        return False
    try:
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return False
        inside = os.listdir(folder)
        if not inside:
            os.rmdir(folder)
            return True
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # Before the mark is written there is nothing else in the folder.
        marks = (MARK, b"") if inside == [LOCK] else (MARK,)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or os.read(descriptor, len(MARK) + 1) not in marks:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(folder: Path) -> None:
    """Remove a folder of ours, the mark last: whatever interrupts this, the rest is still recognised."""
    with suppress(OSError):
        for name in os.listdir(folder):
            if name != LOCK:
                path = folder / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        path.unlink()
        with suppress(FileNotFoundError):
            os.unlink(folder / LOCK)
        os.rmdir(folder)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One writer at a time gives names in a folder, so that no pair of files is mixed from two.

    A folder that cannot be locked, as on some network file systems, is not an error.
    """
    descriptor, end = -1, time.monotonic() + _WAIT_SECONDS
    if fcntl is not None:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            while time.monotonic() < end:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(0.01)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Stopped(BaseException):
    """A signal came that ends the process; unfinished work is removed first."""


@contextmanager
def defer_signals() -> Iterator[Callable[[], None]]:
    """Within this context signals wait for its end, or for a call of the function that it gives, which may raise.

    A signal could otherwise raise between making a temporary file and noting it. In other threads nothing is
    changed: signals are handled in the main thread alone.
    """
    handlers: dict[int, Any] = {}
    waiting: list[int] = []

    def handle() -> None:
        while waiting:
            handler = handlers[waiting[0]]
            if not callable(handler):
                raise _Stopped
            handler(waiting.pop(0), None)

    try:
        with ExitStack() as restored:
            for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
                handler = signal.getsignal(number)
                # None is a handler that Python did not install and could not put back.
                if handler is not None and handler != signal.SIG_IGN:
                    handlers[number] = handler
                    restored.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, _: waiting.append(number))
            yield handle
    finally:
        while waiting:
            signal.raise_signal(waiting.pop(0))


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the signals that end a process at once into `SystemExit`, so that temporary files are removed.

    For a command's main function. The exit code is the one a shell expects: 128 and the signal's number.
    """

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    with ExitStack() as restored:
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_DFL:
                restored.callback(signal.signal, number, signal.SIG_DFL)
                signal.signal(number, leave)
        yield
