"""Reports and plots as files, which are checked before any work."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from dphist.display import printable
from dphist.errors import InvalidParameter, OutputError
from dphist.outputs.write import ProtectedFile, refuse_overwriting
from dphist.publishing import write_file
from dphist.report.charts import PLOTS, chart, require_plotting
from dphist.report.render import PAGE_MARK

PAGES: Final = (".html", ".htm")
# Bytes at the beginning of a page that contain the mark.
_HEAD: Final = 4096


def is_replaceable(path: Path) -> bool:
    """Whether a file is empty, or a report made by dphist."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    return not head or (head.startswith(b"<!doctype html>") and PAGE_MARK.encode() in head)


def check_report(path: Path, kept: Sequence[ProtectedFile], *, force: bool) -> None:
    """Raise if a report could not be written there. Files in `kept` are never replaced."""
    if re.match(r"[\w+.-]{2,}:/", str(path)):
        raise InvalidParameter("a report is written to a local file, not to an object store")
    if path.suffix.lower() not in PAGES:
        raise InvalidParameter(f"the report must end in {', '.join(PAGES)}, not {printable(path.name)!r}")
    require_plotting()
    refuse_overwriting(path, kept)
    check_place(path, force=force)


def write_report(page: str, path: Path, kept: Sequence[ProtectedFile], *, force: bool) -> None:
    """Check once more, because time has passed, and write."""
    check_report(path, kept, force=force)
    write_file(path, page.encode(), force=force)


def check_plot(path: Path, *, force: bool) -> None:
    if path.suffix.lower() not in PLOTS:
        raise InvalidParameter(f"the plot must end in {', '.join(PLOTS)}, not {path.name!r}")
    check_place(path, force=force, what="plot")
    require_plotting()


def write_plot(result: object, path: Path, *, force: bool) -> None:
    write_file(path, chart(result).content(path), force=force)


def check_place(path: Path, *, force: bool, what: Literal["report", "plot"] = "report") -> None:
    """Raise if a file cannot be written or already exists.

    `force` replaces any plot, but instead of a report only earlier reports.
    """
    name = printable(str(path))
    try:
        if not path.parent.is_dir():
            raise OutputError(f"the folder of the {what} {name!r} does not exist; create it first")
        if path.is_dir():
            raise OutputError(f"the {what} {name!r} is a folder")
        if not os.path.lexists(path):
            return
        if not force:
            raise OutputError(f"the {what} {name!r} already exists; <--force> replaces it")
        # Not a pipe or a device; a dangling link may be replaced.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise OutputError(f"the {what} {name!r} is not a file")
        if what == "report" and path.exists() and not is_replaceable(path):
            raise InvalidParameter(
                f"{name} cannot be written: it already exists and is not a report of dphist; remove it yourself"
            )
    except InvalidParameter:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "invalid file name"
        raise OutputError(f"cannot write the {what} {name!r}: {reason}") from None
