"""The flags of `dphist release`: their names are the keys of a request."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dphist.cli.base import number, whole_number


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
