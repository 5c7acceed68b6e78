"""Reports and figures as files: checked before any work is done, and written all or none."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal

from dphist.display import printable
from dphist.errors import InvalidParameter, OutputError
from dphist.outputs.overwrite import Kept, refuse_overwriting, same_file
from dphist.publishing import write_files
from dphist.report.charts import PNG_MARK, SVG_MARK, FigureFormat, report_charts, require_plotting
from dphist.report.facts import Facts
from dphist.report.render import MARKDOWN_MARK, PAGE_MARK, TEXT_MARK, ReportFormat, render

PLOTS: Final = (".png", ".svg")
# The marks are near one end of a file; of a long one no more is read.
_HEAD: Final = 4096
_TAIL: Final = 256


def is_replaceable(path: Path) -> bool:
    """Whether a file is a report or a figure that dphist made, or is empty."""
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
    """Refuse a file that no plot can be written to, before any work is done."""
    if path.suffix.lower() not in PLOTS:
        raise InvalidParameter(f"the plot must end in {', '.join(PLOTS)}, not {path.name!r}")
    check_place(path, force=force, what="plot")
    require_plotting()


def check_place(path: Path, *, force: bool, what: Literal["report", "plot"] = "report") -> None:
    """Refuse a file that cannot be written or already exists.

    For a report `force` replaces only earlier reports and their figures: it never destroys anything else, whatever
    its name.
    """
    name = printable(str(path))
    try:
        if not path.parent.is_dir():
            raise OutputError(f"the folder of the {what} {name!r} does not exist")
        if path.is_dir():
            raise OutputError(f"the {what} {name!r} is a folder")
        if not os.path.lexists(path):
            return
        if not force:
            raise OutputError(f"the {what} {name!r} already exists; --force replaces it")
        # A pipe or a device is used by others too. A link that leads nowhere is only a name.
        if path.exists() and not stat.S_ISREG(path.stat().st_mode):
            raise OutputError(f"the {what} {name!r} is not a file")
        if what == "report" and path.exists() and not is_replaceable(path):
            raise InvalidParameter(
                f"{name} cannot be written: it already exists and is not a report of dphist; remove it yourself"
            )
    except InvalidParameter:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a valid file name"
        raise OutputError(f"the {what} {name!r} cannot be written: {reason}") from None


def write_report(
    facts: Facts, format: ReportFormat, output: Path | None, figures: Path | None, kind: FigureFormat, *,
    force: bool, kept: Sequence[Kept],
) -> tuple[list[str], str]:  # fmt: skip
    """Write the report and its figures, all of them or none; the names of figures, and the report's text.

    Nothing that is `kept` is replaced, and a folder that was made for the figures goes if they cannot be written.
    """
    drawn: dict[str, tuple[Path, bytes]] = {}
    if figures is not None:
        drawn = {one.name: (figures / f"{one.name}.{kind}", one.content(kind)) for one in report_charts(facts)}
    start = Path.cwd() if output is None else output.parent
    links = {name: Path(os.path.relpath(path, start)).as_posix() for name, (path, _) in drawn.items()}
    content, files = render(facts, format, links), dict(drawn.values())
    if output is not None:
        if any(same_file(str(output), str(path)) for path in files):
            raise InvalidParameter(f"the report and one of its figures cannot both be {str(output)!r}")
        files[output] = content.encode()
    for path in files:
        refuse_overwriting(path, kept)
    missing = [] if figures is None else [one for one in (figures, *figures.parents) if not os.path.lexists(one)]
    try:
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
        for path in files:
            check_place(path, force=force)
        write_files({path: (data, 0o666) for path, data in files.items()}, force=force)
    except BaseException as error:
        for one in missing:
            with suppress(OSError):
                one.rmdir()
        if isinstance(error, OSError):
            name = printable(str(figures))
            raise OutputError(f"the folder {name!r} cannot be created: {error.strerror}") from None
        raise
    return [str(path) for path, _ in drawn.values()], content
