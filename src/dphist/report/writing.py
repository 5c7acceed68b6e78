"""Reports and plots as files, which are checked before any work."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from dphist.display import printable
from dphist.errors import DphistError, InvalidParameter, OutputError, install_command
from dphist.outputs.target import Target, target_of
from dphist.outputs.write import ProtectedFile, protected_files, refuse_overwriting
from dphist.publishing import write_file
from dphist.releasing.request import Request
from dphist.releasing.result import Release
from dphist.releasing.series import Series, series
from dphist.report.charts import PLOTS, can_draw, chart, require_plotting
from dphist.report.facts import gather_facts
from dphist.report.page import PAGE_MARK
from dphist.report.render import make_report, render, report_data
from dphist.report.series import series_data, series_page

if TYPE_CHECKING:
    from dphist.aliases import JsonObject

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
    refuse_overwriting(path, kept)
    check_place(path, force=force)


def write_report(page: str, path: Path, kept: Sequence[ProtectedFile], *, force: bool) -> None:
    """Check once more, because time has passed, and write."""
    check_report(path, kept, force=force)
    write_file(path, page.encode(), force=force)


def shown_name(page: Path | str) -> str:
    """The name of a report that was written, and how to get its charts if it has none."""
    return str(page) if can_draw() else f"{page} (without charts: they need {install_command('plot')})"


def report_file(
    name: str,
    page: Path | None,
    *,
    certificate: str | None = None,
    public_key: str | None = None,
    force: bool = False,
) -> JsonObject:
    """Verify a release, write its report to `page` if there is one, and return what it says as plain data."""
    kept = protected_files(name, certificate)
    if page is not None:
        check_report(page, kept, force=force)
    facts = gather_facts(name, certificate=certificate, public_key=public_key)
    if page is not None:
        write_report(render(facts), page, kept, force=force)
    return {"report": None if page is None else str(page), **report_data(facts)}


def series_report(
    folder: str, page: Path | None, *, public_key: str | None, force: bool
) -> tuple[Series, JsonObject]:
    """Read a series, write its report to `page` if there is one, and return both."""
    kept = [ProtectedFile("the folder of the releases", folder)]
    if page is not None:
        check_report(page, kept, force=force)
    found = series(folder, public_key=public_key)
    if page is not None:
        write_report(series_page(found), page, kept, force=force)
    return found, {**series_data(found), "report": None if page is None else str(page)}


def check_report_of(path: Path, request: Request) -> None:
    """Raise, before any event is read or anything booked, if the report of a release could not be written."""
    target = _target_of(request)
    check_report(path, _protected_files(request, target), force=request.force)
    if target is None:
        return
    if target.is_stdout:
        raise InvalidParameter(
            "<--report> has to read the release back: write it to a file instead of standard output"
        )
    master = request.master or dict(request.spark_settings).get("spark.master", "local")
    # Only files on this machine can be read back.
    if target.kind == "folder" and ("://" in target.address or not master.startswith("local")):
        raise InvalidParameter(
            f"<--report> has to read the release back, but a cluster writes {target.public_address()}: leave out "
            "<--report>, and run dphist report FOLDER where the folder can be read"
        )


def report_release(path: Path, request: Request, result: Release) -> OutputError | None:
    """Write the report of a release that was just written.

    Returns an error instead of raising it: the release itself has succeeded.
    """
    target = _target_of(request)
    assert target is not None
    try:
        if target.is_database:
            page = make_report(result, certificate=target.certificate_path)
        else:
            page = make_report(target.address)
        write_report(page, path, _protected_files(request, target), force=request.force)
    except Exception as error:
        if isinstance(error, DphistError):
            reason = error.marked
        else:
            reason = (isinstance(error, OSError) and error.strerror) or type(error).__name__
        return OutputError(f"the release was written, but its report was not: {reason}")
    return None


def _target_of(request: Request) -> Target | None:
    if request.output is None:
        return None
    return target_of(
        request.output, request.output_table, request.output_format, request.certificate,
        objects=request.engine_name != "spark",
    )  # fmt: skip


def _protected_files(request: Request, target: Target | None) -> list[ProtectedFile]:
    certificate = None if target is None or target.is_object else target.certificate_path
    return protected_files(request.output, certificate, input=request.input, items=request.items)


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
