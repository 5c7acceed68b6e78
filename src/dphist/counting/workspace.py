"""Private folders, memory, threads and DuckDB connections; and error messages without data.

Readers quote values in their errors: a cell of a CSV file, a text that is not a number, the size of a table. These
must not leave the engine, so `attempt` replaces both the message and the exception. Only errors in the user's own
SQL are shown: the SQL is bound to column names and types before any row is read.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final, Generic, Self, TypeVar

from dphist.counting.task import Resources
from dphist.errors import DphistError, InputError, InvalidParameter
from dphist.publishing import ATTEMPTS, defer_signals, hold, remove_abandoned

T = TypeVar("T")
S = TypeVar("S")

DAMAGED: Final = "{what} cannot be read: it is damaged, or its format does not match its name"
NO_ROOM: Final = (
    "there is not enough memory, or space for temporary files, to count {what}: allow more with <--memory>, "
    "choose a temporary folder on a larger disk, or use fewer threads (long values, long CSV lines "
    "and large Parquet row groups need more)"
)
# Found in the messages of exceptions whose type is too general.
NO_ROOM_SIGNS: Final = (os.strerror(errno.ENOSPC), "failed to map segment", "can't start new thread", "bad_alloc")
LONGEST: Final = 300


def attempt(action: Callable[[], T], what: str, otherwise: str = DAMAGED) -> T:
    """Run the action; a failure becomes an `InputError` about `what` that contains no data.

    It is raised after the handler has ended, so that not even `__context__` carries the reader's message.
    """
    try:
        return action()
    except DphistError:
        raise
    except Exception as error:
        out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryException"
        sentence = otherwise
        if out_of_memory or any(sign in str(error) for sign in NO_ROOM_SIGNS):
            sentence = NO_ROOM
        elif isinstance(error, FileNotFoundError):
            sentence = "{what} does not exist"
        elif isinstance(error, PermissionError):
            sentence = "{what} cannot be read: permission denied"
    raise InputError(sentence.replace("{what}", what))  # the rest may be a query with braces


def about_sql(error: Exception | str) -> str:
    """The first line of an error about the user's SQL, which was bound to column names and types only."""
    line = str(error).strip().split("\n", 1)[0]
    line = re.sub(r"\s+", " ", re.sub(r"^[A-Za-z ]+ Error: ", "", line)).rstrip(".;! ")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def name_list(names: Sequence[str]) -> str:
    """At most 40 quoted names."""
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "none"


LOOKS_LIKE_DATA: Final = "looks like data, not like column names: add a header line"
_LONGEST_NAME: Final = 64
_SHOWN: Final = 40  # names in a list, and characters of a name
_UUID: Final = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


class DataName(str):
    """A column name from a header line that looks like data. It can be used, but messages do not repeat it."""

    __slots__ = ()


def header_names(names: Sequence[str]) -> list[str]:
    """The names of a header line, as `DataName` if it may be a data row of a file without a header."""
    stripped = [name.strip() for name in names]
    looks_like_data = len(set(stripped)) < len(stripped) or any(
        not name
        or len(name) > _LONGEST_NAME
        or re.match(r"[-+.,(]*\d", name)
        or re.search(r"[@\r\n]", name)
        or _UUID.fullmatch(name)
        for name in stripped
    )
    return [DataName(name) for name in names] if looks_like_data else list(names)


def is_data(names: Sequence[str]) -> bool:
    return any(isinstance(name, DataName) for name in names)


def short_name(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def column_list(names: Sequence[str]) -> str:
    """The columns for an error message, unless they may be a user's data."""
    if is_data(names):
        return f"not shown, because the first line {LOOKS_LIKE_DATA}"
    return name_list([short_name(name) for name in names])


try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

MEGABYTE: Final = 1_000_000
# For Python, Arrow batches and the noise stage, which DuckDB's limit does not cover.
HEADROOM: Final = 350 * MEGABYTE
LEAST: Final = 100 * MEGABYTE
# Address space (`ulimit -v`) that libraries reserve, far beyond the memory they use; without it some abort. The
# first number was measured on two processors, the one per thread is a safe guess.
RESERVED: Final = 1500 * MEGABYTE
RESERVED_A_THREAD: Final = 150 * MEGABYTE
SHARE: Final = 0.65
PREFIX: Final = "dphist-"
PATTERN: Final = re.compile(rf"{PREFIX}(\d+)-\w+")


def size_of(text: str) -> int:
    """Parse a size such as 2GB, 500 MB or 1.5GiB into bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?))?B?\s*", str(text), re.IGNORECASE)
    size = 0.0
    if match is not None:
        unit = 1024 if match[3] else 1000
        size = float(match[1]) * unit ** ("KMGT".index(match[2].upper()) + 1 if match[2] else 0)
    if size < 1:
        raise InvalidParameter(f"memory must be a size such as 2GB, not {text!r}")
    return int(size)


@cache
def memory_limit() -> int:
    """Bytes of the machine, for systems without /proc: DuckDB takes 80 % of them by default."""
    import duckdb

    with defer_signals(), duckdb.connect(":memory:") as connection:
        return int(size_of(connection.execute("SELECT current_setting('memory_limit')").fetchall()[0][0]) / 0.8)


def available_memory() -> int:
    """Bytes this process can still get."""
    sizes = []
    with suppress(OSError, ValueError, StopIteration):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
        sizes.append(int(line.split()[1]) * 1024)
    if not sizes:
        sizes.append(memory_limit())
    for limit in _control_group_limits():
        with suppress(OSError, ValueError):
            sizes.append(int(limit.read_text()))
    if (space := address_space()) is not None:
        sizes.append(max(space - reserved_space(), 0))
    return min(sizes)


# The groups of this process, and where their files are.
_CONTROL_GROUPS: Final = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def _control_group_limits() -> list[Path]:
    """Files with the memory limits of this process's control group and its parents."""
    own, root = _CONTROL_GROUPS
    files = []
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            group = Path(path.lstrip("/"))
            if not controllers:
                files += [root / each / "memory.max" for each in (group, *group.parents)]
            elif "memory" in controllers.split(","):
                files += [root / "memory" / each / "memory.limit_in_bytes" for each in (group, *group.parents)]
    return files


def address_space() -> int | None:
    """The address space limit of this process in bytes (`ulimit -v`), if any."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else int(limit)


def reserved_space() -> int:
    """Address space that a release needs before it counts anything."""
    return RESERVED + RESERVED_A_THREAD * processors()


def check_address_space(resources: Resources) -> None:
    """Raise an error if the address space is too small for a release: libraries would abort the process."""
    space = address_space()
    needed = LEAST if resources.memory is None else memory_for_counting(resources)
    if space is not None and space < reserved_space() + needed:
        least = -(-(reserved_space() + needed) // MEGABYTE)
        raise InvalidParameter(
            f"this release needs {least:,} MB of address space, and the limit of this process is "
            f"{space // MEGABYTE:,} MB: raise it (ulimit -v {least * 1000}, or unlimited)"
            + ("" if needed <= LEAST else ", or give less <--memory>")
        )


def memory_for_counting(resources: Resources) -> int:
    """Bytes for DuckDB: the given memory without the headroom, or a share of the available memory."""
    if resources.memory is None:
        return max(int(available_memory() * SHARE), LEAST)
    size = size_of(resources.memory)
    return max(size - HEADROOM, int(size * 0.4), LEAST)


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for_counting(resources: Resources, memory: int) -> int:
    """The given number of threads, or one per processor as far as memory allows."""
    if resources.threads is not None:
        if isinstance(resources.threads, bool) or not 1 <= int(resources.threads) <= 1024:
            raise InvalidParameter(f"threads must be between 1 and 1024, not {resources.threads!r}")
        return int(resources.threads)
    return max(1, min(processors(), memory // (100 * MEGABYTE)))


@contextmanager
def private_folder(parent: Path | None) -> Iterator[Path]:
    """A new folder that only this user can enter. It is removed afterwards, even if the process is killed."""
    root = Path(tempfile.gettempdir()) if parent is None else Path(parent)
    if not root.is_dir():
        raise InputError(f"the temporary folder {str(root)!r} does not exist")
    remove_killed_folders(root)

    def make_locked_folder() -> tuple[Path, int]:
        for _ in range(ATTEMPTS):
            # mkdtemp creates it for its owner alone, so DuckDB's files in it need no mode of their own.
            folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
            lock = hold(folder)
            if lock >= 0:
                return folder, lock
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    folder, lock = attempt(make_locked_folder, f"the temporary folder {str(root)!r}", "cannot write to {what}")
    guard = None
    try:
        guard = start_guard(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        if guard is not None:
            guard.communicate()


def start_guard(folder: Path) -> subprocess.Popen[bytes] | None:
    """Start a small process that removes the folder if this one is killed: true counts must not stay on disk.

    Its input ends when this process ends, however it does.
    """
    command = ["/bin/sh", "-c", 'cat >/dev/null; rm -rf -- "$1"', "sh", str(folder)]
    with suppress(OSError):
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    return None


def remove_killed_folders(root: Path) -> None:
    """Remove folders of runs that were killed together with their guard.

    The lock decides: a process in another container looks dead from here but holds its lock.
    """
    if os.name == "nt":  # os.kill would end the process there
        return
    with suppress(OSError):
        for folder in root.glob(f"{PREFIX}*-*"):
            if match := PATTERN.fullmatch(folder.name):
                try:
                    os.kill(int(match[1]), 0)
                except ProcessLookupError:
                    remove_abandoned(folder)
                except OSError:  # it runs, under another user
                    continue


class SessionKeeper(Generic[S]):
    """Opens a session for each call; calls within `with engine:` share one, unless it has failed."""

    _open: ExitStack | None = None
    _idle: list[S]

    def __enter__(self) -> Self:
        self._open, self._idle = ExitStack(), []
        return self

    def __exit__(self, *error: object) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None

    @contextmanager
    def _share(self, new: Callable[[], AbstractContextManager[S]]) -> Iterator[S]:
        """An idle session, or a new one."""
        if self._open is None:
            with new() as session:
                yield session
        else:
            session = self._idle.pop() if self._idle else self._open.enter_context(new())
            yield session
            self._idle.append(session)
