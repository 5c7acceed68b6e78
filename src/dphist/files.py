"""Paths given by callers, and files opened without the risk of a pipe or a device."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from dphist.errors import InvalidParameter

PathLike = str | os.PathLike[str]


def checked_path(path: PathLike, what: str) -> Path:
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter(f"{what} needs the name of a file, not {name!r}")
    return Path(name)


@contextmanager
def open_regular(path: PathLike) -> Iterator[BufferedReader]:
    """Open a regular file for reading; raises `OSError` for pipes, which would block, and for devices."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file
