"""Reports and figures as files: checked before any work, and written all or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from dphist.display import printable
from dphist.errors import InvalidParameter, OutputError
from dphist.outputs.write import Kept, refuse_overwriting, same_file
from dphist.publishing import write_files
from dphist.report.charts import PNG_MARK, SVG_MARK, FigureFormat, report_charts, require_plotting
from dphist.report.facts import Facts
from dphist.report.render import MARKDOWN_MARK, PAGE_MARK, TEXT_MARK, ReportFormat, render

PLOTS: Final = (".png", ".svg")
# Bytes at both ends of a file that contain the marks.
_HEAD: Final = 4096
_TAIL: Final = 256


def is_replaceable(path: Path) -> bool:
    """Whether a file is empty, or a report or figure made by dphist."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        tail = file.read(_TAIL)
    if not head:
        return True
    last = tail.rstrip(b"\r\n").rpartition(b"\n")[2].rstrip(b"\r")
    return (
        (head.startswith(b"<!doctype html>") and PAGE_MARK.encode() in head)
        or (head.startswith(b"<svg ") and SVG_MARK.encode() in head)
        or (head.startswith(b"\x89PNG\r\n") and PNG_MARK in head)
        or last in (TEXT_MARK.encode(), MARKDOWN_MARK.encode())
    )


def check_plot(path: Path, *, force: bool) -> None:
    if path.suffix.lower() not in PLOTS:
        raise InvalidParameter(f"the plot must end in {', '.join(PLOTS)}, not {path.name!r}")
    check_place(path, force=force, what="plot")
    require_plotting()


def check_place(path: Path, *, force: bool, what: Literal["report", "plot"] = "report") -> None:
    """Raise if a file cannot be written or already exists.

    `force` replaces any plot, but instead of a report only earlier reports and their figures.
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
            raise OutputError(f"the {what} {name!r} already exists; --force replaces it")
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


def write_report(
    facts: Facts, format: ReportFormat, output: Path | None, figures: Path | None, kind: FigureFormat, *,
    force: bool, kept: Sequence[Kept],
) -> tuple[list[str], str]:  # fmt: skip
    """Write the report and its figures, all or none; returns the names of the figures and the report's text.

    Files in `kept` are never replaced. A new folder for the figures is removed again if writing fails.
    """
    drawn: dict[str, tuple[Path, bytes]] = {}
    if figures is not None:
        drawn = {c.name: (figures / f"{c.name}.{kind}", c.content(kind)) for c in report_charts(facts)}
    start = Path.cwd() if output is None else output.parent
    links = {name: Path(os.path.relpath(path, start)).as_posix() for name, (path, _) in drawn.items()}
    content, files = render(facts, format, links), dict(drawn.values())
    if output is not None:
        if any(same_file(str(output), str(path)) for path in files):
            raise InvalidParameter(f"{str(output)!r} is the report and one of its figures; use another name")
        files[output] = content.encode()
    for path in files:
        refuse_overwriting(path, kept)
    missing = [] if figures is None else [f for f in (figures, *figures.parents) if not os.path.lexists(f)]
    try:
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
        for path in files:
            check_place(path, force=force)
        write_files({path: (data, 0o666) for path, data in files.items()}, force=force)
    except BaseException as error:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, OSError):
            raise OutputError(f"cannot create the folder {printable(str(figures))!r}: {error.strerror}") from None
        raise
    return [str(path) for path, _ in drawn.values()], content
