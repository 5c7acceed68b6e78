"""The subcommand that releases."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dphist.cli.base import (
    AsJson,
    GammaOption,
    app,
    gamma_from,
    number,
    print_json,
    shown,
    stoppable,
    whole_number,
    write_out,
)
from dphist.cli.reporting import check_report, report_release
from dphist.counting.task import Resources
from dphist.counting.workspace import check_address_space
from dphist.errors import DphistError, InvalidParameter

if TYPE_CHECKING:
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.privacy.types import Plan
    from dphist.releasing.result import Release
    from dphist.releasing.run import Watcher


# The flags of `dphist release`: their names are the keys of a request.


def _text(flag: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar=metavar, help=help_text)
    return option


def _whole(flag: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar=metavar, parser=whole_number, help=help_text)
    return option


def _number(flag: str, metavar: str, help_text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(flag, metavar=metavar, parser=number, help=help_text)
    return option


Source = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT|REQUEST.toml",
        help="A file, glob or folder (Parquet, CSV, JSON lines, Arrow), a database (DuckDB, SQLite, "
        "postgresql://...), or a request file whose keys are these flags; paths in it start from the "
        "working folder, like those of the flags.",
        show_default=False,
    ),
]
Input = Annotated[
    list[str] | None,
    _text("--input", "INPUT", "In place of the first argument, or of the request file's; may be repeated."),
]
User = Annotated[str | None, _text("--user", "COLUMN", "The column that says whose event it is.")]
Item = Annotated[
    list[str] | None,
    _text("--item", "COLUMN", "What is counted; repeat for several columns; NAME=COLUMN renames."),
]
Epsilon = Annotated[float | None, _number("--epsilon", "E", "Privacy loss, above 0.")]
Delta = Annotated[
    float | None,
    _number("--delta", "D", "What may be added to a probability beside e^epsilon times it, in (0, 1)."),
]
MaxItems = Annotated[
    str | None,
    _text(
        "--max-items-per-user",
        "M|auto",
        "Keep at most M random items of each user; auto chooses M privately, for a small share of the budget.",
    ),
]
CapShare = Annotated[
    float | None, _number("--cap-share", "SHARE", "With auto: the share that is spent on choosing. [0.02]")
]
Sum = Annotated[
    list[str] | None,
    _text(
        "--sum",
        "COLUMN:LOW:HIGH",
        "Also the sum of a column, each user's own sum for an item clamped to LOW..HIGH; may be repeated; "
        "NAME=COLUMN:LOW:HIGH renames.",
    ),
]
Mean = Annotated[
    list[str] | None,
    _text("--mean", "COLUMN:LOW:HIGH", "Also the mean over the users of an item, in the same way."),
]
Weight = Annotated[
    list[float] | None,
    _number("--weight", "SHARE", "Share of each sum, in order; the counts have the rest. [the best]"),
]
Ledger = Annotated[
    str | None, _text("--ledger", "FILE", "Book the release in this ledger before any noise is drawn.")
]
Dataset = Annotated[str | None, _text("--dataset", "NAME", "With --ledger: the dataset whose budget is spent.")]
Top = Annotated[
    int | None, _whole("--top", "K", "Only the K largest counts, less the count that follows; users unbounded.")
]
MaxNonzero = Annotated[
    int | None,
    _whole(
        "--max-nonzero",
        "K",
        "Public bound on the number of items. Alone it is enforced: with more items, the count of rank K + 1 is "
        "subtracted from all. With a smaller --max-items-per-user, or sums, it is your promise: with more items "
        "nothing is released.",
    ),
]
Items = Annotated[
    str | None, _text("--items", "FILE", "A public list of items: count these, all of them, and no other.")
]
PublicItems = Annotated[int | None, _whole("--public-items", "N", "Length of a public list of items.")]
NoOffset = Annotated[
    bool, typer.Option("--no-offset", help="With --top: leave out the noisy count that was subtracted.")
]
Offset = Annotated[
    Literal["opposite", "independent", "none"] | None,
    typer.Option("--offset", help="With --top: how that count is released; independent is the paper's rule."),
]
LowerThreshold = Annotated[
    int | None, _whole("--lower-threshold", "T", "Counts below T are, or were already, removed.")
]
Mechanism = Annotated[
    Literal["best", "gaussian", "laplace"] | None, typer.Option("--mechanism", help="Kind of noise.")
]
Minimize = Annotated[Literal["threshold", "noise"] | None, typer.Option("--minimize", help="What is to be least.")]
Table = Annotated[str | None, _text("--table", "NAME", "Table of the input database.")]
Query = Annotated[str | None, _text("--query", "SQL", "Query for the input database, in place of a table.")]
Where = Annotated[str | None, _text("--where", "SQL", "Only events that satisfy this condition.")]
InputFormat = Annotated[
    str | None, _text("--input-format", "FORMAT", "parquet, csv, jsonl or arrow, where names do not tell.")
]
InputName = Annotated[
    str | None,
    _text("--input-name", "NAME", "What certificate and report call the input, in place of its path."),
]
NullItems = Annotated[bool, typer.Option("--null-items", help="Count a missing item as an item of its own.")]
CountName = Annotated[str | None, _text("--count-name", "NAME", "Name of the column of counts. [count]")]
StandardError = Annotated[bool, typer.Option("--standard-error", help="Add a column with the standard error.")]
Interval = Annotated[
    float | None,
    _number("--interval", "SHARE", "Add an interval for each count, such as 0.95; it speaks of the noise alone."),
]
Round = Annotated[bool, typer.Option("--round", help="Whole-numbered counts.")]
Output = Annotated[
    str | None,
    _text(
        "--output",
        "NAME",
        ".parquet, .csv, .tsv, .jsonl, .arrow, or a database; the certificate goes beside. With --engine spark "
        "also a folder (NAME/ or hdfs://...), which the executors write.",
    ),
]
OutputTable = Annotated[str | None, _text("--output-table", "NAME", "Table of the output database. [release]")]
OutputFormat = Annotated[str | None, _text("--output-format", "FORMAT", "Where the name does not tell.")]
Sign = Annotated[
    str | None, _text("--sign", "KEY", "Sign data and certificate with this private key; see dphist keygen.")
]
EscapeFormulas = Annotated[
    bool,
    typer.Option(
        "--escape-formulas",
        help="CSV and TSV: put ' before text that a spreadsheet would take for a formula (=, +, -, @, tab).",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing release.")]
Engine = Annotated[
    Literal["duckdb", "spark"] | None,
    typer.Option("--engine", help="What reads and counts: this machine, or a Spark cluster. [duckdb]"),
]
Master = Annotated[
    str | None, _text("--master", "URL", "With --engine spark: spark://..., yarn, k8s://... [local[*]]")
]
SparkConf = Annotated[
    list[str] | None,
    _text("--spark-conf", "NAME=VALUE", "With --engine spark: a setting of Spark; may be repeated."),
]
Memory = Annotated[str | None, _text("--memory", "SIZE", "Keep within this much memory, such as 2GB.")]
Threads = Annotated[int | None, _whole("--threads", "N", "Threads that count.")]
TempFolder = Annotated[str | None, _text("--temp-folder", "DIR", "Where work goes that exceeds the memory.")]
Seed = Annotated[int | None, _whole("--seed", "N", "For tests: the release is NOT PRIVATE.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan and what it means; read no event.")]
Report = Annotated[
    str | None,
    _text("--report", "FILE", "Also a report of the release: .html, .md or .txt; see dphist report."),
]


_WIDTH = 100


@app.command()
def release(
    source: Source = None,
    user: User = None,
    item: Item = None,
    epsilon: Epsilon = None,
    delta: Delta = None,
    max_items_per_user: MaxItems = None,
    cap_share: CapShare = None,
    sums: Sum = None,
    mean: Mean = None,
    weight: Weight = None,
    top: Top = None,
    max_nonzero: MaxNonzero = None,
    items: Items = None,
    output: Output = None,
    input_override: Input = None,
    where: Where = None,
    table: Table = None,
    query: Query = None,
    input_format: InputFormat = None,
    input_name: InputName = None,
    null_items: NullItems = False,
    offset: Offset = None,
    no_offset: NoOffset = False,
    lower_threshold: LowerThreshold = None,
    mechanism: Mechanism = None,
    gamma: GammaOption = None,
    minimize: Minimize = None,
    count_name: CountName = None,
    standard_error: StandardError = False,
    interval: Interval = None,
    round_counts: Round = False,
    output_table: OutputTable = None,
    output_format: OutputFormat = None,
    sign: Sign = None,
    report: Report = None,
    escape_formulas: EscapeFormulas = False,
    force: Force = False,
    engine: Engine = None,
    master: Master = None,
    spark_conf: SparkConf = None,
    memory: Memory = None,
    threads: Threads = None,
    temp_folder: TempFolder = None,
    ledger: Ledger = None,
    dataset: Dataset = None,
    seed: Seed = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Release how many users each item has, privately, from user events.

    \b
    Examples:
      dphist release log.parquet --user user_id --item query --epsilon 1 --delta 1e-6 \\
        --max-items-per-user 20 --output queries.parquet
      dphist release 'logs/*.csv' --user user --item country --item page --where "status = '200'" \\
        --epsilon 1 --delta 1e-6 --top 1000 --output pages.csv --interval 0.95
      dphist release shop.sqlite --table orders --user customer --item product --items products.csv \\
        --epsilon 0.5 --delta 1e-6 --max-items-per-user 10 --output sold.parquet
      dphist release orders.csv --user customer --item product --sum amount:0:500 --mean rating:1:5 \\
        --epsilon 1 --delta 1e-6 --max-items-per-user auto --ledger budget.db --dataset shop --output sold.csv \\
        --sign release.key
      dphist release request.toml --dry-run
      dphist release hdfs://logs/2026/ --input-format parquet --engine spark --master spark://host:7077 \\
        --user user_id --item query --epsilon 1 --delta 1e-6 --max-items-per-user 20 --output hdfs://out/queries
    \b
    Exit code 0: released. 1: the result could not be written. 2: bad parameters or unreadable input.
    130, 143: interrupted; nothing was written.
    """
    given = dict(locals())
    if not dry_run:
        # Before anything large is imported: without room libraries abort the process instead of raising.
        check_address_space(Resources(memory))
    for name in ("source", "dry_run", "as_json", "no_offset", "round_counts", "report"):
        del given[name]
    given["input"], given["sum"] = given.pop("input_override"), given.pop("sums")
    given["gamma"] = gamma_from(gamma)
    if max_items_per_user is not None:
        given["max_items_per_user"] = _cap(max_items_per_user)
    # By identity: 0 is a value, and equal to False.
    given = {
        name: value for name, value in given.items() if value is not None and value is not False and value != []
    }
    if round_counts:
        given["round"] = True
    if no_offset:
        given["offset"] = _no_offset(offset)
    values = _values(source, given)
    if not dry_run:
        _release(values, as_json, report)
        return
    if report is not None:
        raise InvalidParameter("--report is of a release, and with --dry-run there is none: leave one of them out")
    _show_plan(values, as_json)


def _cap(text: str) -> int | str:
    """A number, or the word that stands for one that is chosen."""
    try:
        return int(text)
    except ValueError:
        return text


def _no_offset(offset: str | None) -> str:
    if offset not in (None, "none"):
        raise InvalidParameter(f"--no-offset and --offset {offset} contradict each other")
    return "none"


def _is_request(source: str | None) -> bool:
    return source is not None and source.lower().endswith(".toml")


def _values(source: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """The request file's keys, if there is one, and the flags over them."""
    from dphist.releasing.request import read_request

    if source is not None and _is_request(source):
        return {**read_request(source), **given}
    if source is not None and "input" in given:
        raise InvalidParameter("the input is given twice, as the first argument and with --input")
    if source is None and "input" not in given:
        raise InvalidParameter(
            "give the input, or a request file, as the first argument; see dphist release --help"
        )
    return given if source is None else {"input": source, **given}


def _show_plan(values: dict[str, Any], as_json: bool) -> None:
    from dphist.planning.auto_cap import ChoicePlan
    from dphist.releasing.request import request_from
    from dphist.releasing.run import engine_for, planned_for
    from dphist.report.explain import explain

    request = request_from(values)
    plan = planned_for(request, engine_for(request))
    if isinstance(plan, ChoicePlan):
        _show_choice(plan, request.to_dict(), as_json)
        return
    advice = explain(plan)
    if as_json:
        print_json({"request": request.to_dict(), "plan": plan.to_dict(), "advice": advice})
        return
    show_plan(plan, advice)
    write_out("\nNo event was read and nothing released (--dry-run).\n")


def _show_choice(planned: ChoicePlan, request: dict[str, Any], as_json: bool) -> None:
    """What would be spent on choosing a cap, and what each of them would lead to."""
    caps = [
        {"cap": cap, "total_noise": plan.total_noise, "threshold": plan.threshold}
        for cap, plan in zip(planned.choice.caps, planned.plans, strict=True)
    ]
    if as_json:
        print_json({"request": request, "choice": planned.to_dict(), "caps": caps})
        return
    whole, rest = planned.budget, planned.budget_of_release
    sentence = (
        f"The cap is chosen privately, for {planned.share:g} of the squared sensitivity that epsilon "
        f"{whole.epsilon:g} and delta {whole.delta:g} allow: users are counted by their number of items, with "
        f"noise of standard deviation {float(planned.choice.variance) ** 0.5:.4g}. The release that follows has "
        f"epsilon {rest.epsilon:g} and delta {rest.delta:g}; both together have a certified delta of "
        f"{planned.certificate.delta:.6g}."
    )
    write_out(wrapped(sentence) + "\n\n      cap     noise  threshold\n")
    for row in caps:
        write_out(f"{row['cap']:>9,} {row['total_noise']:>9.4g} {row['threshold']:>10.5g}\n")
    write_out("\nNo event was read and nothing released (--dry-run).\n")


def show_plan(plan: Plan, advice: list[str]) -> None:
    """A plan for people: its numbers, its notes and what it means."""
    write_out(f"{plan}\n")
    for sentence in (*(f"Note: {note}" for note in plan.notes), *advice):
        write_out(f"\n{wrapped(sentence)}\n")


def wrapped(sentence: str) -> str:
    return textwrap.fill(sentence, _WIDTH, break_on_hyphens=False)


def _release(values: dict[str, Any], as_json: bool, report: str | None) -> None:
    from dphist.releasing.protected import kept_for
    from dphist.releasing.request import request_from
    from dphist.releasing.run import run

    request, failed = request_from(values), None
    kept = [] if report is None else kept_for(request)
    if report is not None:
        check_report(report, request, kept)
    if request.output is None:
        raise InvalidParameter("give --output NAME (or --dry-run): a release is written with its certificate")
    with _failures_as_json(as_json), stoppable(_written) as placed, progress_bars() as watcher:
        result = run(request, watcher, placed.append)
        if report is not None:
            failed = report_release(report, request, kept)
    # What is known of the release is shown even where its report has failed.
    with shown():
        if as_json:
            told = {} if report is None else {"report": report if failed is None else None}
            print_json({**summary_of(result), **told})
        else:
            show_release(result)
            if report is not None and failed is None:
                write_out(f"\nReport       {report}\n")
    if failed is not None:
        raise failed


@contextmanager
def _failures_as_json(wanted: bool) -> Iterator[None]:
    """With --json a release that fails after it was booked prints what stays booked, for programs."""
    try:
        yield
    except BaseException as error:
        booking = getattr(error, "booking", None)
        if wanted and booking is not None:
            # The text of an exception that is not ours may repeat a cell.
            said = (
                str(error) if isinstance(error, DphistError) else getattr(error, "message", type(error).__name__)
            )
            with shown():
                print_json({"error": said, "booking": booking})
        raise


def _written(place: Any) -> str:
    return f"the release was already written to {place.address}"


@contextmanager
def progress_bars() -> Iterator[Watcher | None]:
    """Bars on a terminal, nothing in pipes. They know shares of the work alone, no number of the data."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(step: str, share: float) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0)
            bars.update(tasks[step], completed=share)

        yield watch


def summary_of(result: Release) -> dict[str, Any]:
    written, document = result.written, result.document()
    return {
        "output": written.address,
        "certificate": written.certificate,
        "sha256": written.digest,
        "signed_by": written.signed_by,
        "rows": len(result),
        "private": result.private,
        "guarantee": document["guarantee"],
        "counts": document["counts"],
        **{name: document[name] for name in ("sums", "choice", "booking") if name in document},
        "plan": result.plan.to_dict(),
    }


def show_release(result: Release) -> None:
    write_out(f"{result!r}\n")
    write_out(f"\nWritten to   {result.written.address}\nCertificate  {result.written.certificate}\n")
    if result.written.signed_by is not None:
        write_out(f"Signed by    {result.written.signed_by}\n")
    if result.receipt is not None:
        write_out(f"Booked       entry {result.receipt['entry']} of the dataset {result.receipt['dataset']!r}\n")
    if result.chosen is not None:
        write_out(f"Cap          {result.chosen.cap:,} items a user, chosen privately\n")
    write_out("\n" + wrapped(f"Guarantee: {result.guarantee}") + "\n")
    for note in result.not_covered[2:]:
        write_out("\n" + wrapped(f"Note: {note}") + "\n")
