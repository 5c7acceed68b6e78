"""`dphist release`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

import dphist
from dphist.cli.base import (
    AsJson,
    Quiet,
    app,
    closed_pipe_ignored,
    print_json,
    word_without_secrets,
    write_out,
)
from dphist.cli.flags import input_option, output_option, takes
from dphist.cli.planning import show_plan
from dphist.cli.running import progress_bars, steps_shown, stoppable
from dphist.counting.task import Resources
from dphist.counting.workspace import check_address_space
from dphist.display import fill
from dphist.errors import DphistError, InvalidParameter, flag
from dphist.releasing.request import STREAM, FilePath, Request, options, read_request, request_from

if TYPE_CHECKING:
    from dphist.aliases import JsonObject
    from dphist.model import Plan
    from dphist.releasing.result import Release


_REQUIRED: Final = [option.name for option in options() if option.required]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show the plan and what it means, without reading any event.")
]


@app.command()
@takes(*(option.name for option in options()), required=_REQUIRED, in_file=True)
def release(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="INPUT|REQUEST.toml",
            help="A file, glob or folder (Parquet, CSV, JSON lines, Arrow), a database (DuckDB, SQLite, "
            "postgresql://...), - for standard input, or a request file whose keys are these flags (its paths are "
            "relative to the working folder).",
            show_default=False,
            rich_help_panel="Input",
        ),
    ] = None,
    *,
    input: Annotated[
        list[str] | None,
        input_option(metavar="INPUT", help="Input, instead of the argument; may be repeated."),
    ] = None,
    report: Annotated[
        str | None,
        output_option(metavar="FILE", help="Also write a report, such as report.html; see dphist report."),
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
    verbose: Annotated[
        int,
        typer.Option(
            "-v",
            "--verbose",
            count=True,
            show_default=False,
            help="Log the steps on standard error; -vv logs more. Never counts or items.",
        ),
    ] = 0,
    **given: Any,
) -> None:
    """Publish how many users each item has, from user events, with differential privacy.

    \b
    Examples:
      dphist release log.parquet --user user_id --item query \\
        --epsilon 1 --delta 1e-6 -o queries.parquet
      dphist release 'logs/*.csv' --user user --item country --item page \\
        --where "status = '200'" --top 1000 --interval 0.95 \\
        --epsilon 1 --delta 1e-6 -o pages.csv
      dphist release shop.sqlite --table orders --user customer \\
        --item product --items products.csv --max-items-per-user 10 \\
        --epsilon 0.5 --delta 1e-6 -o sold.parquet
      dphist release orders.csv --user customer --item product \\
        --sum amount:0:500 --mean rating:1:5 --epsilon 1 --delta 1e-6 \\
        --ledger budget.db --dataset shop --sign release.key -o sold.csv
      dphist release request.toml --dry-run
      dphist release 'logs/{period}/*.parquet' --user user_id --item query \\
        --epsilon 0.42 --delta 1.7e-8 --ledger budget.db --dataset log \\
        --id last-week -o 'releases/{period}.parquet'
      dphist release hdfs://logs/2026/ --input-format parquet \\
        --engine spark --master spark://host:7077 --user user_id \\
        --item query --epsilon 1 --delta 1e-6 -o hdfs://out/queries
    \b
    Exit code 0: released, or already released under this --id. 1: the
    result could not be written. 2: bad parameters or unreadable input.
    3: over budget. 4: another run with this --id is in progress. 130, 143:
    interrupted; nothing was written.
    """
    if not dry_run:
        # Before large imports: without enough address space, libraries abort the process instead of raising.
        check_address_space(Resources(given.get("memory")))
    values = _add_input(source, input, given)
    required = ["input", *_REQUIRED, *([] if dry_run else ["output"])]
    missing = [name for name in required if values.get(name) is None]
    # If only --output is missing, other mistakes are reported first.
    if missing == ["output"]:
        request_from(values)
    if missing:
        raise _missing_options(values, missing)
    from dphist.releasing.periods import fill_name, fill_period

    request = fill_period(request_from(values))
    report = None if report is None else fill_name(report, request)
    if dry_run and report is not None:
        raise InvalidParameter("<--report> cannot be used with <--dry-run>: nothing is released")
    if dry_run:
        _dry_run(request, as_json)
    else:
        _release(request, as_json, report, quiet, verbose)


def _add_input(source: str | None, input: list[str] | None, given: dict[str, object]) -> dict[str, object]:
    """Flags, input and the keys of a request file, which flags override."""
    flags = {**given, "input": input} if input else given
    if source is not None and source.lower().endswith(".toml"):
        return {**read_request(source), **flags}
    if source is not None and input:
        raise InvalidParameter("the input is given twice, as the first argument and with <--input>")
    return flags if source is None else {**flags, "input": source}


def _missing_options(values: Mapping[str, object], missing: list[str]) -> InvalidParameter:
    """An error that names all missing options and the columns of the input, and completes the command."""
    from dphist.releasing.suggest import describe_missing

    # Reading the columns uses a temporary folder, which must go if the command is stopped.
    with stoppable():
        sentence, guesses = describe_missing(values, missing)
    if not guesses:
        return InvalidParameter(f"{sentence} (see dphist release --help)")
    added = [word for name in missing for word in ("-o" if name == "output" else flag(name), guesses[name])]
    error = InvalidParameter(f"{sentence}. For example:")
    error.example = shlex.join(["dphist", *map(word_without_secrets, sys.argv[1:]), *added])
    return error


def _release(request: Request, as_json: bool, report: str | None, quiet: bool, verbose: int) -> None:
    # Every run of an id writes the report again.
    reported_as = request if request.id is None else replace(request, force=True)
    if report is not None:
        from dphist.report.writing import check_report_of, report_release

        check_report_of(Path(report), reported_as)
    failed = None
    # Then standard output has only the release.
    aside = redirect_stdout(sys.stderr) if str(request.output) == STREAM else nullcontext()
    # A log and bars would overwrite each other.
    bars = progress_bars(quiet or verbose > 0)
    with _failures_as_json(as_json, aside), stoppable() as placed, steps_shown(verbose), bars as watcher:
        from dphist.releasing.run import run

        result = run(replace(request, progress=watcher), placed.append)
        if report is not None:
            failed = report_release(Path(report), reported_as, result)
    # Show the release even if its report failed.
    reported = {} if report is None else {"report": report if failed is None else None}
    already = f"the id {request.id!r} has this result" if request.id is not None and not placed else ""
    left = remaining_budget(result, request.ledger) if as_json or not quiet else ""
    with closed_pipe_ignored(), aside:
        show_release(result, as_json, quiet, left, already, reported)
    if failed is not None:
        raise failed


@contextmanager
def _failures_as_json(wanted: bool, aside: AbstractContextManager[object]) -> Iterator[None]:
    """With --json, print what stays booked if a release fails after booking."""
    try:
        yield
    except BaseException as error:
        booking = getattr(error, "booking", None)
        if wanted and booking is not None:
            # The text of other exceptions may contain a cell.
            message = getattr(error, "message", type(error).__name__)
            message = error.with_flags if isinstance(error, DphistError) else message
            with closed_pipe_ignored(), aside:
                print_json({"error": message, "booking": booking})
        raise


def remaining_budget(result: Release, ledger: FilePath | None) -> str:
    from dphist.releasing.spending import remaining_after

    receipt = result.receipt
    return "" if receipt is None or ledger is None else remaining_after(ledger, receipt["dataset"], receipt)


def show_release(
    result: Release, as_json: bool, quiet: bool, left: str, already: str = "",
    report: Mapping[str, str | None] | None = None,
) -> None:  # fmt: skip
    if as_json:
        budget = {"remaining": left} if left else {}
        print_json({**_facts(result), **budget, **({"already": True} if already else {}), **(report or {})})
    elif not quiet:
        write_out(f"Already released: {already}. Nothing was drawn or booked.\n\n" if already else "")
        write_out(_text(result, report or {}))
        if left and result.receipt is not None:
            dataset = result.receipt["dataset"]
            write_out("\n" + fill(f"Remaining budget of the dataset {dataset!r}: {left}") + "\n")


def _facts(result: Release) -> JsonObject:
    written, document = result.written, result.document()
    assert written is not None
    return {
        "output": written.address,
        "certificate": written.certificate,
        "sha256": written.digest,
        "signed_by": written.signed_by,
        "rows": len(result),
        "private": result.private,
        "summary": result.summary.to_dict(),
        "guarantee": document["guarantee"],
        "counts": document["counts"],
        **{name: document[name] for name in ("sums", "findings", "booking") if name in document},
        "plan": result.plan.to_dict(),
    }


def _text(result: Release, report: Mapping[str, str | None]) -> str:
    written = result.written
    assert written is not None
    files = {"Written to": written.address, "Certificate": written.certificate, "Signed by": written.signed_by}
    if result.receipt is not None:
        files["Booked"] = f"entry {result.receipt['entry']} of the dataset {result.receipt['dataset']!r}"
    if report.get("report"):
        from dphist.report.writing import shown_name

        files["Report"] = shown_name(str(report["report"]))
    lines = [f"{name:<12} {value}" for name, value in files.items() if value is not None]
    table = "\n".join([result.table_text(), *([""] if len(result) else []), *lines])
    return "\n".join(result.summary.lines(table.lstrip("\n"))) + "\n"


def _dry_run(request: Request, as_json: bool) -> None:
    from dphist.releasing.run import engine_for, plan_request

    plan = plan_request(request, engine_for(request))
    end = "No event was read and nothing was released (--dry-run)."
    show_dry_run(plan, as_json, end, {"request": request.to_dict()})


def show_dry_run(plan: Plan, as_json: bool, end: str, data: JsonObject | None = None) -> None:
    advice = dphist.explain(plan)
    if as_json:
        print_json({**(data or {}), "plan": plan.to_dict(), "advice": advice})
    else:
        show_plan(plan, advice)
        write_out(f"\n{end}\n")
