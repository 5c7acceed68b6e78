"""Where work is done: a private folder for what spills, memory, disk and threads; and what failures say.

Readers quote values: a cell of a CSV file, a text that is not a number, the size of a table. None of it may leave
the engine, so the sentences are written here and the reader's own text is dropped, together with the exception
that carries it. Only the first line of an error in the user's own SQL is kept: it is bound against column names
and types alone before any row is read.
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
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from dphist.counting.task import Resources
from dphist.errors import DphistError, InputError, InvalidParameter
from dphist.publishing import ATTEMPTS, hold, remove_abandoned

T = TypeVar("T")

DAMAGED: Final = "{what} cannot be read: it is damaged, or it is of another kind than its name says"
NO_ROOM: Final = (
    "there is not enough memory, or space for temporary files, to count {what}: allow more with --memory, "
    "choose a temporary folder on a larger disk, or use fewer threads (long values, long lines of CSV "
    "and large row groups of Parquet need more)"
)
# In the texts of errors whose types do not say it.
NO_ROOM_SIGNS: Final = (os.strerror(errno.ENOSPC), "failed to map segment", "can't start new thread", "bad_alloc")
LONGEST: Final = 300


def attempt(action: Callable[[], T], what: str, otherwise: str = DAMAGED) -> T:
    """The action's result; any failure is one sentence about `what`, `otherwise` where the reason is not known.

    The error is raised after the handler has ended: so not even `__context__` carries the reader's text.
    """
    try:
        return action()
    except DphistError:
        raise
    except Exception as error:
        sentence = explain(error, what, otherwise)
    raise InputError(sentence)


def explain(error: Exception, what: str, otherwise: str = DAMAGED) -> str:
    """One sentence of ours for an exception of a reader."""
    no_room = isinstance(error, MemoryError) or type(error).__name__ in (
        "OutOfMemoryException",
        "ArrowMemoryError",
    )
    if no_room or any(sign in str(error) for sign in NO_ROOM_SIGNS):
        return NO_ROOM.format(what=what)
    if isinstance(error, FileNotFoundError):
        return f"{what} does not exist"
    if isinstance(error, PermissionError):
        return f"{what} cannot be read: permission denied"
    return otherwise.format(what=what)


def about_sql(error: Exception | str) -> str:
    """The first line of an error about the user's own SQL, which was bound against names and types alone."""
    line = str(error).strip().split("\n", 1)[0]
    line = re.sub(r"\s+", " ", re.sub(r"^[A-Za-z ]+ Error: ", "", line)).rstrip(".;! ")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def name_list(names: list[str] | tuple[str, ...], most: int = 40) -> str:
    """Names for a sentence, each quoted, and not endlessly many."""
    shown = ", ".join(repr(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"


LOOKS_LIKE_DATA: Final = "looks like data, not like column names: add a header line"
_LONGEST_NAME: Final = 64
_SHOWN: Final = 40
_UUID: Final = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


class DataName(str):
    """A column of a header line that looks like data: it works as any name, and messages do not repeat it."""

    __slots__ = ()


def header_names(names: Sequence[str]) -> list[str]:
    """The names of a header line, as `DataName` if it may be a row of a file without a header."""
    return [DataName(one) for one in names] if _is_like_data(names) else list(names)


def _is_like_data(names: Sequence[str]) -> bool:
    plain = [one.strip() for one in names]
    return len(set(plain)) < len(plain) or any(
        not one
        or len(one) > _LONGEST_NAME
        or re.match(r"[-+.,(]*\d", one)
        or re.search(r"[@\r\n]", one)
        or _UUID.fullmatch(one)
        for one in plain
    )


def is_data(names: Sequence[str]) -> bool:
    """Whether they are from a header line that looks like data."""
    return any(isinstance(one, DataName) for one in names)


def short_name(name: str) -> str:
    """A name of a column for a sentence, and not endlessly long."""
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def column_list(names: Sequence[str]) -> str:
    """Columns for a sentence, unless they may be a user's data."""
    if is_data(names):
        return f"not shown, because the first line {LOOKS_LIKE_DATA}"
    return name_list([short_name(one) for one in names])


try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

MEGABYTE: Final = 1_000_000
# Python, Arrow's batches and the noise stage, which DuckDB's limit does not see.
HEADROOM: Final = 350 * MEGABYTE
LEAST: Final = 100 * MEGABYTE
# Address space, as `ulimit -v` bounds it: libraries reserve far more of it than they use of memory, and without
# it some abort. The sum was tried on two processors; the share of a thread is a guess on the safe side.
RESERVED: Final = 1500 * MEGABYTE
RESERVED_A_THREAD: Final = 150 * MEGABYTE
SHARE: Final = 0.65
PREFIX: Final = "dphist-"
PATTERN: Final = re.compile(rf"{PREFIX}(\d+)-\w+")


def size_of(text: str) -> int:
    """A size such as 2GB, 500 MB or 1.5GiB in bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(I?))?B?\s*", str(text), re.IGNORECASE)
    size = 0.0
    if match is not None:
        unit = 1024 if match[3] else 1000
        size = float(match[1]) * unit ** ("KMGT".index(match[2].upper()) + 1 if match[2] else 0)
    if size < 1:
        raise InvalidParameter(f"memory must be a size such as 2GB, not {text!r}")
    return int(size)


def available_memory() -> int:
    """Bytes this process can still get: of the machine, or of its control group if that allows less."""
    found = []
    with suppress(OSError, ValueError, IndexError):
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
        found.append(int(line.split()[1]) * 1024)
    if not found:
        with suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in control_group_limits():
        with suppress(OSError, ValueError):
            found.append(int(limit.read_text()))
    if (space := address_space()) is not None:
        found.append(max(space - reserved_space(), 0))
    return min(found, default=4000 * MEGABYTE)


def control_group_limits() -> list[Path]:
    """The files with the limits of this process's control group and of those around it."""
    root = Path("/sys/fs/cgroup")
    found = [root / "memory.max", root / "memory/memory.limit_in_bytes"]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            own = Path(path.lstrip("/"))
            if not controllers:
                found += [root / group / "memory.max" for group in (own, *own.parents)]
            elif "memory" in controllers.split(","):
                found += [root / "memory" / group / "memory.limit_in_bytes" for group in (own, *own.parents)]
    return found


def address_space() -> int | None:
    """The limit of this process's address space in bytes (`ulimit -v`), if there is one."""
    if resource is None:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else int(limit)


def reserved_space() -> int:
    """The address space that a release takes before it counts anything."""
    return RESERVED + RESERVED_A_THREAD * processors()


def check_address_space(resources: Resources) -> None:
    """One sentence where the address space cannot hold a release: the libraries would abort the process."""
    space = address_space()
    if space is not None and space < reserved_space() + (needed := _for_counting(resources, LEAST)):
        least = -(-(reserved_space() + needed) // MEGABYTE)
        raise InvalidParameter(
            f"a release in this much memory needs {least:,} MB of address space, and the limit of this process is "
            f"{space // MEGABYTE:,} MB: raise it (ulimit -v {least * 1000}, or unlimited)"
            + ("" if needed <= LEAST else ", or give less --memory")
        )


def memory_for_counting(resources: Resources) -> int:
    """What DuckDB may use, in bytes: of a given size all but the headroom, otherwise a share of what there is."""
    return _for_counting(resources, max(int(available_memory() * SHARE), LEAST))


def _for_counting(resources: Resources, otherwise: int) -> int:
    if resources.memory is None:
        return otherwise
    size = size_of(resources.memory)
    return max(size - HEADROOM, int(size * 0.4), LEAST)


def processors() -> int:
    """How many of them this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for_counting(resources: Resources, memory: int) -> int:
    """As many as there are processors, unless memory is so small that they would starve each other."""
    if resources.threads is not None:
        if isinstance(resources.threads, bool) or not 1 <= int(resources.threads) <= 1024:
            raise InvalidParameter(f"threads must be between 1 and 1024, not {resources.threads!r}")
        return int(resources.threads)
    return max(1, min(processors(), memory // (100 * MEGABYTE)))


@contextmanager
def private_folder(parent: Path | None) -> Iterator[Path]:
    """A fresh folder that only this user can enter, gone afterwards, even if the process is killed."""
    root = Path(tempfile.gettempdir()) if parent is None else Path(parent)
    if not root.is_dir():
        raise InputError(f"the temporary folder {str(root)!r} does not exist")
    sweep(root)

    def make_marked_folder() -> tuple[Path, int]:
        """A new folder with our mark, and its lock, by which others see that it is in use."""
        for _ in range(ATTEMPTS):
            # mkdtemp makes it for its owner alone: DuckDB's files in it need no mode of their own.
            made = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=root))
            lock = hold(made)
            if lock >= 0:
                return made, lock
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    made, lock = attempt(make_marked_folder, f"the temporary folder {str(root)!r}", "{what} cannot be written to")
    guard = None
    try:
        guard = started_guard(made)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)
        if guard is not None:
            guard.communicate()


def started_guard(folder: Path) -> subprocess.Popen[bytes] | None:
    """A small process that outlives us to remove the folder: true counts must not stay on a disk after a kill.

    It waits for the end of its input, which comes when this process is gone, however it went. DuckDB's encryption
    of temporary files needs an extension that is not part of its package, and would not replace this.
    """
    command = ["/bin/sh", "-c", 'cat >/dev/null; rm -rf -- "$1"', "sh", str(folder)]
    with suppress(OSError):
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    return None


def sweep(root: Path) -> None:
    """Remove what earlier runs left that were killed together with their guard: ours by the mark, not locked.

    The lock decides: a process in another container looks dead from here but holds it.
    """
    if os.name == "nt":  # where asking after a process by a signal would end it
        return
    with suppress(OSError):
        for folder in root.glob(f"{PREFIX}*-*"):
            if match := PATTERN.fullmatch(folder.name):
                try:
                    os.kill(int(match[1]), 0)
                except ProcessLookupError:
                    remove_abandoned(folder)
                except OSError:  # it is another user's, and runs
                    continue


class SessionKeeper:
    """An engine that opens a session for each call; those within `with engine:` follow each other in one."""

    _idle: list[tuple[Any, ExitStack]] | None = None
    _entered: int = 0

    def __enter__(self) -> Self:
        self._entered += 1
        if self._idle is None:
            self._idle = []
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if not self._entered:
            idle, self._idle = self._idle or [], None
            with ExitStack() as endings:
                for _, ending in idle:
                    endings.callback(ending.close)

    @contextmanager
    def _share(self, new: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
        """The session that is idle, or a new one. After a failure it ends."""
        try:
            session, ending = (self._idle or []).pop()
        except IndexError:
            ending = ExitStack()
            session = ending.enter_context(new())
        idle = None
        try:
            yield session
            idle = self._idle
        finally:
            if idle is None:
                ending.close()
            else:
                idle.append((session, ending))


def connect_duckdb(resources: Resources, folder: Path) -> Any:
    """A DuckDB connection of its own with every setting explicit."""
    check_address_space(resources)
    import duckdb

    memory = memory_for_counting(resources)
    settings = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        # The first takes three times the memory for the cap. The second computes what occurs twice outside of TRY,
        # where one row that cannot be cast fails the release.
        "disabled_optimizers": "top_n_window_elimination,common_subexpressions",
        "max_temp_directory_size": f"{int(shutil.disk_usage(folder).free * 0.9)}B",
        "memory_limit": f"{memory}B",
        "preserve_insertion_order": "false",
        "python_enable_replacements": "false",  # a name in the user's SQL must not find a Python variable
        "temp_directory": str(folder),
        "threads": str(threads_for_counting(resources, memory)),
        "TimeZone": "UTC",
    }
    connection = duckdb.connect(":memory:")
    # In one call: each costs about a millisecond.
    connection.execute(
        "; ".join(f"SET {name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in settings.items())
    )
    # In a notebook without widgets DuckDB refuses to report progress; all else works.
    with suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = true")
        connection.execute("SET enable_progress_bar_print = false")
    return connection
