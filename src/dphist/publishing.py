"""Publish files atomically: write in a hidden folder, then give complete files their names while signals wait.

A process marks and locks its hidden folder. The next writer in the same place removes what killed processes left
behind: folders of the same user with the mark that are no longer locked.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from dphist.errors import OutputError

try:
    import fcntl
except ImportError:  # on Windows, where leftovers are not removed
    fcntl = None  # type: ignore[assignment]

LOCK: Final = "lock"
MARK: Final = b"dphist: unfinished work; the next run removes it\n"
WORK_FOLDER: Final = re.compile(r"\.dphist-[0-9a-f]{16}")
# The errors of file systems without hard links.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)
Handler = Callable[[int, FrameType | None], object] | int
# Publishing takes milliseconds, so a folder that is locked for longer is locked for another reason.
_WAIT_SECONDS: Final = 30.0
# Another process may remove a folder that is still empty, but not a thousand times in a row.
ATTEMPTS: Final = 1000


def why_not_a_file(mode: int) -> str | None:
    """What a path is instead of a regular file, to complete "it is ..."; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISLNK(mode):
        return "a link; name the file itself"
    return "a folder" if stat.S_ISDIR(mode) else "not a file"


def link_new(new: Path, final: Path) -> None:
    """Give a file its name; raises `FileExistsError` if the name is taken."""
    try:
        try:
            os.link(new, final)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # The empty file reserves the name until the real one replaces it.
            os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            try:
                os.replace(new, final)
            except BaseException:
                os.unlink(final)
                raise
    except FileExistsError:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final)) from None


def identity(path: Path) -> tuple[int, int]:
    """Device and inode of a file, (-1, -1) if there is none."""
    try:
        status = os.lstat(path)
    except OSError:
        return (-1, -1)
    return status.st_dev, status.st_ino


def place(new: Path, final: Path, *, force: bool = False) -> None:
    """Give a complete file its name. With `force` it replaces an older file."""
    if force:
        os.replace(new, final)
    else:
        link_new(new, final)
    sync_folder(final.parent)


def publish(put_data: Callable[[], None], certificate: Path, final: Path, *, force: bool) -> None:
    """Put data in place and then its certificate; with `force` an older certificate is removed first.

    So a certificate never stands next to data that it does not describe: in between there is none.
    """
    if force:
        final.unlink(missing_ok=True)
        # Before the data can change, also after a power failure.
        sync_folder(final.parent)
    elif os.path.lexists(final):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(final))
    put_data()
    place(certificate, final, force=force)


def sync_folder(folder: Path) -> None:
    """Make names durable; does nothing where a folder cannot be synced."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_synced(path: Path, data: bytes, mode: int = 0o666) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def write_file(path: Path, data: bytes, mode: int = 0o666, *, force: bool = False) -> None:
    """Write a whole file or none. With `force` it replaces an older file."""
    try:
        with defer_signals(), work_folder(path.parent) as work:
            write_synced(work / "0", data, mode)
            place(work / "0", path, force=force)
    except FileExistsError as error:
        raise OutputError(f"{error.filename} already exists: choose another name") from None
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """A private hidden folder for unfinished files, removed at the end, or by the next run after a kill."""
    remove_leftovers(folder)
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
    """Mark a folder, and lock it while the returned descriptor is open; -1 if another process removed it first."""
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileNotFoundError:
        return -1
    with ExitStack() as undo, suppress(BlockingIOError):
        undo.callback(os.close, descriptor)
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(OSError):  # a full disk; the work itself may need none
            os.write(descriptor, MARK)
        status = os.fstat(descriptor)
        if identity(path) == (status.st_dev, status.st_ino):
            undo.pop_all()
            return descriptor
    return -1


def remove_leftovers(folder: Path) -> None:
    """Remove the hidden folders that killed processes left here."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if WORK_FOLDER.fullmatch(entry.name):
                remove_abandoned(Path(entry.path))


def _is_own_folder(path: Path) -> bool:
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def own_work_folders(folder: Path) -> list[Path]:
    """The hidden folders of this user, in which no other user can have written."""
    places = (folder / name for name in os.listdir(folder) if WORK_FOLDER.fullmatch(name))
    return [place for place in places if _is_own_folder(place)]


def remove_abandoned(folder: Path) -> bool:
    """Remove a folder of this user that is empty, or has the mark and is not locked; whether it was removed."""
    if fcntl is None:
        return False
    try:
        if not _is_own_folder(folder):
            return False
        names = os.listdir(folder)
        if not names:
            os.rmdir(folder)
            return True
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        # A process writes its mark before anything else.
        marks = (MARK, b"") if names == [LOCK] else (MARK,)
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
    """Remove the mark last: if this is interrupted, the rest is still recognised."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name != LOCK:
                with suppress(OSError):
                    path.unlink()
        with suppress(FileNotFoundError):
            os.unlink(folder / LOCK)
        os.rmdir(folder)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one writer at a time place files in a folder, so that pairs of two writers do not mix.

    Goes on without a lock where a folder cannot be locked, as on some network file systems.
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
    """A signal that ends the process arrived; unfinished files are removed first."""


@contextmanager
def defer_signals() -> Iterator[Callable[[], None]]:
    """Hold back signals until the end of the context, or until a call of the function that it yields.

    Otherwise a signal could raise between the creation of a temporary file and its registration. Has no effect in
    other threads than the main thread, where Python handles no signals.
    """
    handlers: dict[int, Handler] = {}
    pending: list[int] = []

    def handle() -> None:
        while pending:
            handler = handlers[pending[0]]
            if not callable(handler):
                raise _Stopped
            handler(pending.pop(0), None)

    try:
        with ExitStack() as restore:
            for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
                handler = signal.getsignal(number)
                # None is a handler that Python did not install and cannot restore.
                if handler is not None and handler != signal.SIG_IGN:
                    handlers[number] = handler
                    restore.callback(signal.signal, number, handler)
                    signal.signal(number, lambda number, _: pending.append(number))
            yield handle
    finally:
        while pending:
            signal.raise_signal(pending.pop(0))


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit` with the shell's code, so that temporary files are removed.

    These and the `KeyboardInterrupt` of SIGINT are raised outside imports: within one, the import system or a
    library may replace them by its own exception, which looks like a failure.
    """
    outer = len(_importing_frames(sys._getframe()))

    def leave(number: int, frame: FrameType | None) -> None:
        stop = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        importing = _importing_frames(frame)
        if len(importing) <= outer:
            raise stop

        def raise_stop(*_: object) -> None:
            raise stop

        # Called at the next line of the outermost import's frame; Python ends the tracing when it raises.
        importing[-1 - outer].f_trace = raise_stop
        sys.settrace(lambda *_: None)

    with ExitStack() as restore:
        for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
            handler = signal.getsignal(number)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                restore.callback(signal.signal, number, handler)
                signal.signal(number, leave)
        yield


def _importing_frames(frame: FrameType | None) -> list[FrameType]:
    """The frames below this one that are importing something, innermost first."""
    found, imported = [], False
    while frame is not None:
        is_import = frame.f_code.co_filename.startswith("<frozen importlib")
        if imported and not is_import:
            found.append(frame)
        frame, imported = frame.f_back, is_import
    return found
