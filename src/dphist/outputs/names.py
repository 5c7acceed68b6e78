"""Give files their names, on disks with and without hard links, and take nobody else's."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Final

# What a file system says that knows no hard links.
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


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
    try:
        os.link(path, old, follow_symlinks=False)
    except NotImplementedError:
        os.replace(path, old)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.replace(path, old)


def identity(path: Path) -> tuple[int, int]:
    """Which file a name stands for."""
    try:
        found = os.lstat(path)
    except OSError:
        return (-1, -1)
    return found.st_dev, found.st_ino
