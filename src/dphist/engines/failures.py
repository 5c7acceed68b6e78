"""From the exceptions of readers to one sentence, in which no value of the data can be.

Readers quote what they stumble over: a cell of a CSV file, a text that is no number, the size of a table. None of
it may leave the engine, so the sentences are written here and the reader's own text is dropped, together with the
exception that carries it. Only of errors in the user's own SQL the first line is kept: it is bound against column
names and types alone before any row is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeVar

from dphist.errors import DphistError, InputError

T = TypeVar("T")

DAMAGED: Final = "{what} cannot be read: it is damaged, or it is of another kind than its name says"
NO_MEMORY: Final = (
    "there is not enough memory to count {what}: allow more with --memory (memory=), or use fewer threads (long "
    "values, long lines of CSV and large row groups of Parquet need more)"
)
NO_DISK: Final = (
    "there is not enough space for temporary files while counting {what}: choose a temporary folder on a larger "
    "disk, or allow more memory with --memory (memory=)"
)
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
        sentence = explained(error, what, otherwise)
    raise InputError(sentence)


def explained(error: Exception, what: str, otherwise: str = DAMAGED) -> str:
    """One sentence of ours for an exception of a reader."""
    kind, text = type(error).__name__, str(error)
    if "max_temp_directory_size" in text or "No space left" in text or getattr(error, "errno", None) == 28:
        return NO_DISK.format(what=what)
    no_room = "failed to map segment" in text or "can't start new thread" in text or "std::bad_alloc" in text
    if isinstance(error, MemoryError) or kind in ("OutOfMemoryException", "ArrowMemoryError") or no_room:
        return NO_MEMORY.format(what=what)
    if isinstance(error, FileNotFoundError):
        return f"{what} does not exist"
    if isinstance(error, PermissionError) or "Permission denied" in text:
        return f"{what} cannot be read: permission denied"
    if "Could not set lock" in text or "already attached" in text or "same database file" in text:
        return f"{what} cannot be read while another program or connection has it open for writing"
    if kind == "InvalidInputException" and ("CSV Error" in text or "CSV File" in text):
        return f"{what} cannot be read: a line of it does not fit its header, or is not UTF-8 text"
    return otherwise.format(what=what)


def about_sql(error: Exception) -> str:
    """The first line of an error about the user's own SQL, which was bound against names and types alone."""
    line = str(error).strip().split("\n", 1)[0]
    line = re.sub(r"\s+", " ", re.sub(r"^[A-Za-z ]+ Error: ", "", line)).rstrip(".! ")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def listed(names: list[str] | tuple[str, ...], most: int = 40) -> str:
    """Names for a sentence, each quoted so that odd ones are told apart, not endless."""
    shown = ", ".join(repr(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown or "none"
