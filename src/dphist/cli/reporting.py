"""The subcommand that explains a release, and the report that a release writes by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphist.cli.base import AsJson, app, print_json, shown
from dphist.errors import DphistError, OutputError

if TYPE_CHECKING:
    from dphist.releases.result import Release
    from dphist.report.facts import Facts
    from dphist.report.making import ReportFormat

Format = Annotated[
    Literal["html", "markdown", "text"] | None,
    typer.Option("--format", help="What to make, where the name of --output does not tell. [text]"),
]
Figures = Annotated[
    Path | None, typer.Option("--figures", metavar="DIR", help="Also each chart as a file in this folder.")
]
FigureFormat = Annotated[Literal["svg", "png"], typer.Option("--figure-format", help="Kind of these files.")]


@app.command()
def report(
    name: Annotated[str, typer.Argument(metavar="RELEASE", help="A released file, a folder, or a database.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help=".html, .md or .txt; without it, text on the screen."),
    ] = None,
    format: Format = None,
    figures: Figures = None,
    figure_format: FigureFormat = "svg",
    table: Annotated[str | None, typer.Option("--table", metavar="NAME", help="Table of the database.")] = None,
    certificate: Annotated[
        str | None, typer.Option("--certificate", metavar="FILE", help="Where it is not beside the release.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing report and figures.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain a release: what is promised, what the numbers mean, what is not covered.

    The release is verified first; nothing is made of one that is not as it was written. The HTML page is one file
    that needs no network.

    \b
    Examples:
      dphist report queries.parquet
      dphist report queries.parquet --output report.html
      dphist report results.duckdb --table queries --output report.md --figures charts
    \b
    Exit code 0: made. 1: the release is not verified, or the report could not be written. 2: bad parameters.
    """
    from dphist.report.making import report_facts

    chosen = chosen_format(output, format)
    if figures is not None and figures.exists() and not figures.is_dir():
        raise OutputError(f"the place for figures {str(figures)!r} is not a folder")
    if output is not None:
        from dphist.report.writing import check_place

        check_place(output, force=force)
    facts = report_facts(name, table=table, certificate=certificate)
    written, content = _made(facts, chosen, output, figures, figure_format, force)
    with shown():
        if as_json:
            paths = {"report": None if output is None else str(output), "figures": written}
            print_json({**paths, **facts.to_dict()})
        elif output is None:
            sys.stdout.write(content)
        else:
            sys.stdout.write(f"Report written to {output}\n")
        if not as_json and written and output is not None:
            sys.stdout.write("Figures written to " + ", ".join(written) + "\n")


def chosen_format(output: Path | None, format: str | None) -> ReportFormat:
    """What is to be made: as it was asked for, or as the name of the file tells."""
    from dphist.report.making import checked_format, format_of

    if format is not None:
        return checked_format(format)
    return "text" if output is None else format_of(output)


def _made(
    facts: Facts, format: ReportFormat, output: Path | None, figures: Path | None, kind: Any, force: bool
) -> tuple[list[str], str]:
    """Write the report and its figures, all of them or none; the names of figures, and the report's text."""
    from dphist.report.charts import charts_of
    from dphist.report.drawing import figure_files
    from dphist.report.making import render
    from dphist.report.writing import write_files

    drawn = {} if figures is None else figure_files(charts_of(facts), figures, kind)
    start = Path.cwd() if output is None else output.parent
    links = {name: Path(os.path.relpath(path, start)).as_posix() for name, (path, _) in drawn.items()}
    content = render(facts, format, links)
    files = dict(drawn.values())
    if output is not None:
        files[output] = content.encode()
    if figures is not None:
        try:
            figures.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(f"the folder {str(figures)!r} cannot be made: {error.strerror}") from None
    write_files(files, force=force)
    return [str(path) for path, _ in drawn.values()], content


def check_report(name: str | None, *, force: bool) -> None:
    """Before any event is read or anything booked: that the report of a release can be written."""
    if name is None:
        return
    from dphist.report.writing import check_place

    path = Path(name)
    chosen_format(path, None)
    check_place(path, force=force)


def report_release(result: Release, name: str, output: Any, table: str | None, *, force: bool) -> None:
    """The report of a release that was just written: read back, so that it is of what is there."""
    address, path = os.fspath(output), Path(name)
    # What lies on a cluster is not read from here: then it is the release in memory that is reported.
    readable = os.path.exists(address) or address.startswith(("postgresql://", "postgres://"))
    try:
        from dphist.report.making import make_report

        content = make_report(address if readable else result, chosen_format(path, None), table=table)
        from dphist.report.writing import write_files

        write_files({path: content.encode()}, force=force)
    except DphistError as error:
        raise OutputError(f"the release was written, but its report was not: {error}") from None
