"""`Request` declares every option of a release once: its name, type, default and help.

From it follow the flags and help of `dphist release`, the keys of a request file and the arguments of
`dphist.release`. This module opens no files and imports nothing large.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from functools import lru_cache, partial
from inspect import Signature, cleandoc, signature
from pathlib import Path
from textwrap import TextWrapper
from types import NoneType, UnionType
from typing import (
    Annotated,
    Final,
    Literal,
    ParamSpec,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from dphist.aliases import JsonObject
from dphist.certificate.request import (
    LARGEST_WHOLE,
    STREAM_INPUT,
    AnyRequest,
    Asked,
    Column,
    is_query,
    request_of,
)
from dphist.counting.encodings import codec_of
from dphist.counting.task import Events, Value, is_frame, is_stream
from dphist.errors import (
    LARGEST_COUNT,
    InputError,
    InvalidParameter,
    finite_number,
    flag,
    is_spark_frame,
    with_keywords,
)
from dphist.model import Budget, OffsetRule
from dphist.objects import is_postgres, scheme_of, without_options, without_secrets

# Called with the name of a step and the fraction of it that is done, never with a number from the data.
Watcher = Callable[[str, float], None]
STREAM: Final = "-"  # standard input or output
STREAM_FORMATS: Final = ("csv", "tsv", "jsonl", "ndjson", "json", "parquet", "arrow")
_TEXT_FILE: Final = re.compile(r"\.(csv|tsv|json|jsonl|ndjson)(\.gz|\.zst)?$", re.IGNORECASE)
# Not a dot or a sign, which would split numbers.
_DELIMITER: Final = re.compile(r"[!#$%&*,/:;<=>?@\\^_`|~]")
# Files, of which the certificate has the names without the folders.
_PATHS: Final = {"input", "items", "known"}
# Column names and SQL. The certificate records them as they are; other texts may be addresses with secrets.
_LITERAL: Final = {
    "user", "item", "total", "where", "query", "table", "delimiter", "sum", "mean", "vector", "count_name",
    "output_table",
}  # fmt: skip


@dataclass(frozen=True)
class Help:
    """The panel of an option in `dphist release --help`, its placeholder, help text and short flag.

    Options that affect neither privacy nor the numbers are not `recorded` in the certificate.
    """

    panel: str
    metavar: str
    text: str
    recorded: bool = True
    short: str = ""


PANELS: Final = (
    "Input", "Privacy", "Limit per user", "Sums and means", "Output", "Budget", "Engine", "Other options",
    "Advanced",
)  # fmt: skip
_input = partial(Help, "Input")
_privacy = partial(Help, "Privacy")
_limit = partial(Help, "Limit per user")
_sums = partial(Help, "Sums and means")
_columns = partial(Help, "Output")
_output = partial(Help, "Output", recorded=False)
_ledger = partial(Help, "Budget")
_engine = partial(Help, "Engine", recorded=False)
_advanced = partial(Help, "Advanced")
FilePath = str | os.PathLike[str]
Json: TypeAlias = "bool | int | float | str | list[Json] | None"
Options = ParamSpec("Options")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Request(Asked):
    """All options of a release. `input`, `types` and `progress` are not flags."""

    # fmt: off
    input: object
    _: KW_ONLY
    user: Annotated[str, _input("COLUMN", "Column that identifies the user.")]
    item: Annotated[str | Sequence[str], _input("COLUMN",
        "Column to count. Repeat it for several columns; NAME=COLUMN renames one, and NAME=EXPRESSION counts an "
        "SQL expression of one row.")]
    total: Annotated[str | Sequence[str], _input("COLUMN",
        "Add totals over this item column: for each value of the other item columns, a row with the number of "
        "different users of all its values together. Its column COLUMN is empty, and the column total is true. "
        "May be repeated, each for itself. Totals are items like others: they share the user's weight, and count "
        "for <--max-items-per-user>, <--top> and <--max-nonzero>.")] = ()
    where: Annotated[str | None, _input("SQL", "Count only events that satisfy this condition.")] = None
    table: Annotated[str | None, _input("NAME", "Table of the input database.")] = None
    query: Annotated[str | None, _input("SQL",
        "Query for the input database, instead of a table. Over files: SELECT expressions FROM input WHERE "
        "condition.")] = None
    input_format: Annotated[str | None, _input("FORMAT",
        "parquet, csv, jsonl or arrow. [from the file names]")] = None
    encoding: Annotated[str | None, _input("NAME",
        "Encoding of CSV files: latin-1, windows-1252, utf-16, ... [utf-8]")] = None
    delimiter: Annotated[str | None, _input("C",
        "Character between the columns of CSV files; tab for a tab. [the most frequent of , ; | and tab in the "
        "header line]")] = None
    decimal: Annotated[Literal[".", ","] | None, _input("",
        "Decimal sign of numbers in CSV files. With a comma, dots separate thousands. [.]")] = None
    input_name: Annotated[str | None, _advanced("NAME",
        "Name of the input in certificate and report, instead of its path.")] = None
    null_items: Annotated[bool, _input("", "Count a missing item as an item of its own.")] = False
    types: Literal["text", "fixed", "none"] | None = None

    epsilon: Annotated[float, _privacy("E", "Privacy loss ε, above 0. Smaller is more private.")]
    delta: Annotated[float, _privacy("D",
        "Probability that the ε guarantee may fail, e.g. 1e-6. Choose it well below 1 / number of users.")]
    max_items_per_user: Annotated[int | None, _limit("M",
        "Limit on the items of one user: a random M of them count, with the same noise for all. [no limit: items "
        "are found in rounds and then measured]")] = None
    goal: Annotated[Literal["accuracy", "keys"] | None, _limit("",
        "Without a limit: spend the budget on accurate counts, or on finding many items. [accuracy]")] = None
    known: Annotated[object, _limit("FILE",
        "Without a limit: items that are public already, such as last week's release. They are measured without "
        "being found again. previous: the newest earlier release next to <--output>, if there is one.")] = None
    top: Annotated[int | None, _limit("K",
        "Instead of a limit: release the K largest counts. The count of rank K + 1 is subtracted.")] = None
    offset: Annotated[OffsetRule | None, _advanced("",
        "With <--top>: how the subtracted count is released: with noise opposite to the shared noise, with "
        "independent noise (the paper's rule), or not at all. [opposite]")] = None
    max_nonzero: Annotated[int | None, _advanced("K",
        "Public bound on the number of items. On its own it is enforced: with more items, the count of rank K + 1 "
        "is subtracted from all. With a smaller <--max-items-per-user>, or with sums, you guarantee it: with more "
        "items, nothing is released.")] = None
    items: Annotated[object, _limit("FILE",
        "Public list of items. Exactly these items are counted and released.")] = None
    lower_threshold: Annotated[int, _advanced("T",
        "Remove counts below T before adding noise; also needed if they were removed before. [1]")] = 1
    mechanism: Annotated[Literal["best", "gaussian", "laplace"], _advanced("",
        "Kind of noise; best is the one with the lower threshold. Without a limit, gaussian also replaces the "
        "Laplace noise for users with a single item, as a ledger does by default. [best]")] = "best"
    gamma: Annotated[float | Literal["sqrt"] | None, _advanced("G|sqrt",
        "Variance of each count's own noise divided by that of the shared noise, a whole number; sqrt is the "
        "square root of <--max-nonzero>. [chosen by the plan]")] = None
    minimize: Annotated[Literal["threshold", "noise"], _advanced("",
        "What the plan minimizes: the threshold, or the noise of each count. [threshold]")] = "threshold"
    seed: Annotated[int | None, _advanced("N",
        "For tests: seed of the noise. The release is NOT PRIVATE.")] = None

    sum: Annotated[str | Sequence[str], _sums("COLUMN:LOW:HIGH",
        "Add the sum of a column. Each user's own sum for an item is clamped to LOW..HIGH. May be repeated; "
        "NAME=COLUMN:LOW:HIGH renames it.")] = ()
    mean: Annotated[str | Sequence[str], _sums("COLUMN:LOW:HIGH",
        "Add the mean over the users of an item; bounds as for <--sum>.")] = ()
    vector: Annotated[str | Sequence[str], _sums("NAME=COLUMN,...:NORM",
        "Add the sums of several columns, called NAME_COLUMN. Each user's own vector of sums for an item is "
        "clipped to the Euclidean norm NORM. May be repeated.")] = ()
    weight: Annotated[float | Sequence[float], _advanced("SHARE",
        "Share of the budget for a sum or vector; give one for each, in order. The counts get the rest. [least "
        "total variance]"
        )] = ()

    output: Annotated[FilePath | None, _output("NAME",
        "Where to write: .parquet, .csv, .tsv, .jsonl, .arrow, .csv.gz or a database. The certificate is written "
        "next to it. - is standard output, as CSV. With <--engine spark> also a folder (NAME/ or hdfs://...), "
        "written by the executors.", short="-o")] = None
    output_table: Annotated[str | None, _output("NAME", "Table of the output database. [release]")] = None
    output_format: Annotated[str | None, _output("FORMAT",
        "Format of the output, for example tsv or jsonl on standard output. [from the name; csv]")] = None
    certificate: Annotated[FilePath | None, _output("FILE",
        "With <--output -> or a PostgreSQL address: file for the certificate. [next to the output]")] = None
    sign: Annotated[FilePath | None, _output("KEY",
        "Sign data and certificate with this private key; see dphist keygen.")] = None
    escape_formulas: Annotated[bool, _output("",
        "CSV and TSV: put ' before text that a spreadsheet would run as a formula (=, +, -, @, tab).")] = False
    force: Annotated[bool, _output("", "Replace an existing release.")] = False
    count_name: Annotated[str, _columns("NAME", "Name of the count column. [count]")] = "count"
    standard_error: Annotated[bool, _columns("", "Add a column with the standard error.")] = False
    interval: Annotated[float | None, _columns("LEVEL",
        "Add a confidence interval for each count (e.g. 0.95), which is then the level of margins too. With a "
        "limit on users it covers the noise, not the items that the limit leaves out.")] = None
    round: Annotated[bool, _columns("",
        "Whole counts, as integers, however small the noise. [no more decimals than the noise justifies]")] = False

    ledger: Annotated[FilePath | None, _ledger("FILE",
        "Book the release in this ledger before any noise is drawn.", recorded=False)] = None
    dataset: Annotated[str | None, _ledger("NAME", "With <--ledger>: the dataset whose budget is spent.")] = None
    id: Annotated[str | None, _ledger("NAME",
        "With <--ledger>: name of this run, for scheduled jobs. After a crash, run the same command again: a "
        "finished release is not repeated, and an unfinished one reuses its booking with new noise. That is "
        "private only if nothing of the earlier attempt was published, copied or seen. last-week, yesterday, "
        "last-month and last-quarter stand for a period, such as 2026-W46, which replaces {period} in the names "
        "of input and output; {start} and {end} are its first day and the day after it.", recorded=False)] = None

    engine: Annotated[Literal["duckdb", "spark"] | None, _engine("",
        "Engine that reads and counts: DuckDB on this machine, or Spark. [duckdb]", recorded=True)] = None
    master: Annotated[str | None, _engine("URL",
        "With <--engine spark>: spark://..., yarn, k8s://... [local[*]]")] = None
    spark_conf: Annotated[str | Sequence[str], _engine("NAME=VALUE",
        "With <--engine spark>: a Spark setting; may be repeated.")] = ()
    memory: Annotated[str | None, _engine("SIZE",
        "Memory limit for counting, such as 2GB. [65 % of the available memory]")] = None
    threads: Annotated[int | None, _engine("N",
        "Threads used for counting. [one per processor, as far as memory allows]")] = None
    temp_folder: Annotated[FilePath | None, _engine("DIR",
        "Folder for data that exceeds the memory limit. [the system's]")] = None
    progress: Watcher | None = None
    # fmt: on

    def __post_init__(self) -> None:
        for option in options():
            value = getattr(self, option.name)
            if option.many:
                value = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
                object.__setattr__(self, option.name, value)
                if not value and option.required:
                    raise InvalidParameter(f"<{flag(option.name)}> must name at least one column")
            for element in value if option.many else (value,):
                if element is not None or not option.allows_none:
                    option.check(element)
        budget = Budget(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", budget.epsilon)
        object.__setattr__(self, "delta", budget.delta)
        if self.types not in (None, "text", "fixed", "none"):
            raise InvalidParameter(f"types must be 'text' or 'fixed', not {self.types!r}")
        if self.types is None:
            # Frames are read as text by default; CSV and JSON files have no types; other files declare theirs.
            default = "text" if is_frame(self.input) else "none" if self._is_text_file() else "fixed"
            object.__setattr__(self, "types", default)
        self.check_contract()
        self._check_ledger()
        self._check_columns()
        self._check_streams()
        self._check_reading()
        self._check_engine()

    def _is_text_file(self) -> bool:
        paths = self.input if isinstance(self.input, (tuple, list)) else [self.input]
        names = paths if self.input_format is None else [f".{self.input_format.lstrip('.')}"]
        return all(_TEXT_FILE.search(without_options(str(name))) for name in names)

    def _check_ledger(self) -> None:
        for name in ("ledger", "certificate", "sign", "temp_folder"):
            path = getattr(self, name)
            scheme = None if path is None else scheme_of(os.fspath(path))
            if scheme is not None:
                raise InvalidParameter(f"<{flag(name)}> must be a local path, not a {scheme}:// address")
        check_booking(self.ledger, self.dataset, self.seed)
        if self.id is not None:
            if self.ledger is None or self.output is None:
                raise InvalidParameter("<--id> needs <--ledger>, <--dataset> and <--output>")
            if os.fspath(self.output) == STREAM:
                raise InvalidParameter(
                    "<--id> needs a file or a table as <--output>: what is printed cannot be taken back"
                )
            if not self.id.isprintable() or not 0 < len(self.id.strip()) == len(self.id) <= 200:
                raise InvalidParameter(
                    "<--id> must have 1 to 200 printable characters, without surrounding spaces"
                )

    def _check_columns(self) -> None:
        if self.sign is not None and self.output is None:
            raise InvalidParameter("<--sign> needs <--output>: it signs the written release")
        if self.input_name is not None and not 0 < len(self.input_name.strip()) <= len(self.input_name) <= 200:
            raise InvalidParameter("<--input-name> must have 1 to 200 characters")
        for aggregate in self.aggregates:
            Value(aggregate.column, aggregate.low, aggregate.high)  # checks the bounds
        self.check_columns()

    def _check_streams(self) -> None:
        from_stream = isinstance(self.input, str) and self.input == STREAM
        if from_stream and (self.input_format or "").lower().lstrip(".") not in STREAM_FORMATS:
            raise InvalidParameter(f"standard input needs <--input-format>, one of {', '.join(STREAM_FORMATS)}")
        if from_stream and self.engine_name == "spark":
            raise InvalidParameter("Spark cannot read standard input: name a file, or use the engine duckdb")
        for name, listed in (("items", self.items), ("known", self.known)):
            if is_stream(listed):
                raise InvalidParameter(
                    f"<{flag(name)}> is read more than once: give a file or a table, not an Arrow stream"
                )
        to_stream = self.output is not None and os.fspath(self.output) == STREAM
        to_server = self.output is not None and is_postgres(os.fspath(self.output))
        if self.certificate is None and (to_stream or to_server):
            what = "<--output ->" if to_stream else "a table in PostgreSQL"
            raise InvalidParameter(f"{what} needs <--certificate FILE>: a release is written with its certificate")
        if self.certificate is not None and not (to_stream or to_server):
            raise InvalidParameter(
                "<--certificate> is for <--output -> and PostgreSQL: otherwise it is written beside the output"
            )

    def _check_reading(self) -> None:
        codec_of(self.encoding)
        if self.delimiter is not None:
            if self.delimiter in ("tab", "\\t"):
                object.__setattr__(self, "delimiter", "\t")
            if self.delimiter != "\t" and not _DELIMITER.fullmatch(self.delimiter):
                raise InvalidParameter(
                    f"<--delimiter> must be one character, such as ; or tab, not {self.delimiter!r}: letters, "
                    "digits, spaces, dots, signs and quotes cannot separate columns"
                )
        if self.engine_name == "spark":
            for name in ("encoding", "delimiter", "decimal"):
                if getattr(self, name) is not None:
                    raise InvalidParameter(
                        f"<{flag(name)}> is for the engine duckdb: for Spark, write the files as Parquet"
                    )

    def _check_engine(self) -> None:
        if self.engine == "duckdb" and is_spark_frame(self.input):
            raise InvalidParameter("a Spark DataFrame needs the engine spark, not duckdb")
        for name, listed in (("items", self.items), ("known", self.known)):
            lists = listed if isinstance(listed, (tuple, list)) else [listed]
            schemes = [scheme_of(path) for path in lists if isinstance(path, str) and not is_postgres(path)]
            if any(schemes) and self.engine_name != "spark":
                raise InvalidParameter(
                    f"<{flag(name)}> cannot be read from {next(filter(None, schemes))}:// addresses: download the "
                    "list first"
                )
        for name in ("master", "spark_conf"):
            if getattr(self, name) and self.engine_name != "spark":
                raise InvalidParameter(f"<{flag(name)}> needs <--engine spark>")
        for text in self.spark_conf:
            if not text.startswith("spark.") or "=" not in text:
                # The value may be a secret, so it is not in the message.
                raise InvalidParameter("<--spark-conf> must be of the form spark.NAME=VALUE, and one is not")

    @property
    def engine_name(self) -> str:
        return self.engine or ("spark" if is_spark_frame(self.input) else "duckdb")

    @property
    def spark_settings(self) -> tuple[tuple[str, str], ...]:
        pairs = (text.partition("=") for text in self.spark_conf)
        return tuple((name, value) for name, _, value in pairs)

    @property
    def summed(self) -> list[str]:
        """The column of each sum, and all columns of each vector."""
        return [column for columns, _, _ in self.sums for column in columns]

    def events(self) -> Events:
        return Events(
            self.input, self.user, self.columns, self.table, self.query, self.where, self.input_format,
            self.null_items, as_text=self.types == "text", totals=self.totals, encoding=self.encoding,
            delimiter=self.delimiter, decimal=self.decimal,
        )  # fmt: skip

    def listed_items(self) -> Events | None:
        """The public list of items, or the items that are public already, with the names of the output."""
        source = self.known if self.items is None else self.items
        columns = tuple(Column(name, name) for name in self.item_columns)
        # A list has no users, and any of its columns can stand in for them.
        user = columns[0].name
        return (
            None
            if source is None
            else Events(source, user, columns, null_items=self.null_items, totals=self.totals)
        )

    def to_dict(self, *, everything: bool = False) -> JsonObject:
        """JSON by flag names, for the certificate: without defaults, without passwords and without folders.

        A certificate is published, and folders may name people, projects and machines. With `everything`, options
        that affect neither privacy nor the numbers are included, and folders.
        """
        recorded = {"input", "types"} | {option.name for option in options() if option.help.recorded or everything}
        data: JsonObject = {}
        for entry in fields(self):
            if entry.name in recorded:
                # Compared as JSON, because frames can only be compared with frames.
                value = _as_json(getattr(self, entry.name), hide_secrets=entry.name not in _LITERAL)
                if value != _as_json(entry.default):
                    if entry.name in _PATHS and not everything:
                        value = _without_folders(value)
                    data[entry.name.replace("_", "-")] = value
        name = data.pop("input-name", None)
        if name is None:
            return data
        # The guarantee depends on whether the input is a query, so that is recorded under any name.
        return {**data, "input": f"{name} ({data['input']})" if is_query(data["input"]) else name}

    def recorded(self) -> AnyRequest:
        """The request as the certificate has it."""
        return request_of(self.to_dict())


@dataclass(frozen=True)
class Option:
    """An option as declared in `Request`: its value is of type `kind`, or one of the `words`."""

    name: str
    help: Help
    kind: type
    words: tuple[str, ...]
    many: bool
    required: bool
    allows_none: bool

    def check(self, value: object) -> None:
        """Raise `InvalidParameter` for a value of another type."""
        name = f"<{flag(self.name)}>"
        if isinstance(value, str) and value in self.words:
            return
        if self.kind is bool and not isinstance(value, bool):
            raise InvalidParameter(f"{name} must be true or false, not {value!r}")
        if self.kind is float and self.words and isinstance(value, str):
            raise InvalidParameter(f"{name} must be a number or {self.words[0]}, not {value!r}")
        if self.kind is float:
            finite_number(self.name, value)
        if self.kind is int:
            # A seed may be any whole number.
            whole = value if isinstance(value, int) and not isinstance(value, bool) else None
            if whole is None or (self.name != "seed" and not 1 <= whole <= LARGEST_COUNT):
                words = "".join(f" or {word}" for word in self.words)
                raise InvalidParameter(
                    f"{name} must be a whole number from 1 to {LARGEST_COUNT}{words}, not {value!r}"
                )
        if self.kind is str and self.words:
            raise InvalidParameter(f"{name} must be one of {', '.join(self.words)}, not {value!r}")
        if self.kind is str and not (isinstance(value, (str, os.PathLike)) and os.fspath(value)):
            expected = {"COLUMN": "the name of a column", "FILE": "the name of a file"}
            what = expected.get(self.help.metavar, "a text that is not empty")
            raise InvalidParameter(f"{name} must be {what}, not {value!r}")


@lru_cache(maxsize=1)
def options() -> tuple[Option, ...]:
    """All options, in the order of their panels."""
    hints = get_type_hints(Request, include_extras=True)
    declared = (
        _option(entry.name, *get_args(hints[entry.name]), required=entry.default is MISSING)
        for entry in fields(Request)
        if get_origin(hints[entry.name]) is Annotated
    )
    return tuple(sorted(declared, key=lambda option: PANELS.index(option.help.panel)))


def _option(name: str, hint: object, help: Help, *, required: bool) -> Option:
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = tuple(word for part in members if get_origin(part) is Literal for word in get_args(part))
    kinds = [part for part in members if isinstance(part, type) and part in (bool, int, float, str, object)]
    many = any(get_origin(part) is Sequence for part in members)
    allows_none = hint is object or NoneType in get_args(hint)
    return Option(name, help, kinds[0] if kinds else str, words, many, required, allows_none)


# Phrases about flags, and their Python equivalents.
_IN_PYTHON: Final = {
    "Repeat it for": "A list for",
    "May be repeated": "Also a list",
    "may be repeated": "also a list",
    "give one for each, in order": "a list for several, in order",
    "see dphist keygen": "see `dphist.signatures.make_key`",
}


def _options_help() -> str:
    """The help of all options as keyword arguments, required ones first."""
    wrapper = TextWrapper(
        115, initial_indent=" " * 4, subsequent_indent=" " * 8, break_on_hyphens=False, break_long_words=False
    )
    lines = []
    for option in sorted(options(), key=lambda option: not option.required):
        text = f"{option.help.metavar}. {option.help.text}" if ":" in option.help.metavar else option.help.text
        for flags, python in _IN_PYTHON.items():
            text = text.replace(flags, python)
        lines.append(wrapper.fill(f"{option.name}: {with_keywords(text)}") + "\n")
    return "".join(lines)


def takes_options_of(
    request: Callable[Options, Request],
) -> Callable[[Callable[..., Result]], Callable[Options, Result]]:
    """Give a function the parameters that `Request` declares, and their help, for type checkers and `help`."""

    def decorate(function: Callable[..., Result]) -> Callable[Options, Result]:
        types = get_type_hints(request)
        declared = signature(request).parameters.values()
        parameters = [parameter.replace(annotation=types[parameter.name]) for parameter in declared]
        function.__signature__ = Signature(parameters, return_annotation=signature(function).return_annotation)  # type: ignore[attr-defined]
        if function.__doc__ is not None:
            # Since Python 3.13, docstrings have no indentation of their own; `cleandoc` removes that of others.
            function.__doc__ = cleandoc(function.__doc__).replace(
                "    types: ", f"{_options_help()}    types: ", 1
            )
        return function

    return decorate


def check_booking(ledger: FilePath | None, dataset: str | None, seed: int | str | None) -> None:
    """Raise `InvalidParameter` for a ledger without a dataset, or with a seed."""
    if (ledger is None) != (dataset is None):
        raise InvalidParameter("<--ledger> and <--dataset> go together: a ledger has a budget for each dataset")
    if ledger is not None and seed is not None:
        raise InvalidParameter("<--seed> cannot be used with <--ledger>: a seeded release is not private")


def _as_json(value: object, *, hide_secrets: bool = False) -> Json:
    """Plain values; a frame is recorded by its type, and all streams alike."""
    if isinstance(value, (bool, int, float)) or value is None:
        # RFC 8785, the form that digests are of, has no larger whole numbers.
        return str(value) if isinstance(value, int) and abs(value) > LARGEST_WHOLE else value
    if isinstance(value, (str, os.PathLike)):
        text = os.fsdecode(value).encode("utf-8", "backslashreplace").decode()
        return without_secrets(text) if hide_secrets else text
    if isinstance(value, (tuple, list)):
        return [_as_json(element, hide_secrets=hide_secrets) for element in value]
    if is_stream(value):
        return STREAM_INPUT
    return f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"


def _without_folders(value: Json) -> Json:
    """The name of a file or of the last folder. Addresses with a scheme, such as s3://, are unchanged."""
    if isinstance(value, list):
        return [_without_folders(element) for element in value]
    if not isinstance(value, str) or scheme_of(value):
        return value
    return value.rstrip("/").rpartition("/")[2] or value


def _by_name(values: Mapping[str, object]) -> JsonObject:
    """The values by option name. Raises `InvalidParameter` for an unknown or repeated key."""
    known = {entry.name for entry in fields(Request)} - {"progress"}
    given: JsonObject = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {near[0].replace('_', '-')!r}?" if near else ""
            raise InvalidParameter(f"a request has no key {key!r}{hint}")
        if name in given:
            raise InvalidParameter(f"the key {key!r} is given twice")
        given[name] = value
    return given


def request_from(values: Mapping[str, object]) -> Request:
    """A request from option names and values; names may have - or _."""
    given = _by_name(values)
    for name in ("input", "user", "item", "epsilon", "delta"):
        if given.get(name) is None:
            raise InvalidParameter(f"a release needs {'an input' if name == 'input' else f'<{flag(name)}>'}")
    return Request(**given)


def read_request(path: str | os.PathLike[str]) -> JsonObject:
    """The options in a TOML request file."""
    try:
        return _by_name(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except tomllib.TOMLDecodeError as error:
        raise InvalidParameter(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise InvalidParameter(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
