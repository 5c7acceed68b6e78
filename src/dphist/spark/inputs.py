"""Inputs of the Spark engine: Spark DataFrames, Parquet, CSV and JSON lines, and frames of this process.

A path that exists here is a local file, which every executor must see under the same name; Spark resolves any
other path or address. Only the embedded engine reads Arrow files, databases and JSON arrays.

CSV and JSON values are text, as in the embedded engine (see `files`), with these differences. CSV: rows with the
character U+FFFD are dropped, because Spark replaces invalid UTF-8 by it; so are rows with too many fields; a file
with misplaced quotes, or with line breaks in quoted values, is refused; remote files are delimited by commas or
tabs. JSON: numbers with a fraction
or an exponent are written as Java writes them (1.5E7, or Infinity if too large); half of a surrogate pair is a
question mark; the last value of a repeated key counts; a trailing comma makes a line invalid; a second object on a
line is ignored.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from dphist.certificate.endings import FORMATS
from dphist.certificate.request import Column as Item
from dphist.counting.duckdb import not_a_database
from dphist.counting.expressions import CALL_OR_CAST, ambiguous_case, title_of
from dphist.counting.files import (
    NOTHING,
    common_sql_type,
    csv_headers,
    files_by_header,
    files_of,
    format_of,
    given_paths,
    json_starts,
    known_format,
    parquet_header,
)
from dphist.counting.frames import frame_source
from dphist.counting.sql import EXACT, NUMBER, boolean_as_text, not_a_user, not_summable, require_columns
from dphist.counting.task import LONGEST_VALUE, Events, is_frame
from dphist.counting.workspace import about_sql, attempt, column_list, header_names
from dphist.errors import InputError, is_spark_frame
from dphist.objects import is_postgres, scheme_of, without_secrets
from dphist.spark.dataframes import arrow_frame, numbered
from dphist.spark.session import is_connect, java_of

T = TypeVar("T")

# Spark types that are counted as they are, and their DuckDB types.
KEPT: Final = {
    "boolean": "BOOLEAN", "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
    "date": "DATE", "timestamp": "TIMESTAMP WITH TIME ZONE", "timestamp_ntz": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip
FLOATS: Final = {"float": "FLOAT", "double": "DOUBLE"}
NUMBERS: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", *FLOATS})
NESTED: Final = ("array", "struct", "map")
TEXTS: Final = ("string", "char", "varchar")
# All fields, and times with all digits, in any session zone.
TO_JSON: Final = {
    "ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}  # fmt: skip

UNKNOWN: Final = "{what} cannot be read: it is damaged, or has a column of a type that Spark does not support"
# Each line is read by itself, so that it cannot change how others are read. Spark fails on lines with more fields
# than `FIELDS`.
FIELDS: Final = 1 << 18
CSV: Final = {
    "quote": '"', "escape": '"', "multiLine": "false", "maxColumns": str(FIELDS),
    "mode": "DROPMALFORMED", "inferSchema": "false",
    "nullValue": "", "emptyValue": "", "encoding": "UTF-8", "comment": "", "maxCharsPerColumn": "-1",
    "unescapedQuoteHandling": "STOP_AT_DELIMITER", "header": "true",
}  # fmt: skip
NOT_UTF8: Final = "\ufffd"
FROM_JSON: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}
# Not JSON, but many programs write them, and Spark returns them in quotes.
NOT_FINITE: Final = ('"NaN"', '"Infinity"', '"-Infinity"')

# Functions that Spark parses as column names.
VALUES: Final = {
    "current_date", "current_time", "current_timestamp", "current_user", "session_user", "localtimestamp",
}  # fmt: skip
# A subquery or a star, through which one user could affect rows of another.
NOT_OF_ONE_ROW: Final = re.compile(r"Subquery|Exists|ListQuery|Star|Regex")
# Expressions that are not part of Spark.
FOREIGN: Final = re.compile(r"UDF|Udf|UserDefined|Hive|Reflection|ApplyFunction|VariableReference|SQLFunction")
# Expressions whose value may differ between two jobs.
CHANGING: Final = re.compile(r"^Current|^Now$|^Local")


@dataclass(frozen=True)
class SparkSource:
    """An input: `select` returns a frame of the wanted columns, named c0, c1, ...

    `names` is None for JSON, where any name is a column.
    """

    what: str
    names: list[str] | None
    select: Callable[[list[str]], DataFrame]


def read_rows(
    session: SparkSession, events: Events, summed: Sequence[str] = (), *, probe: bool = False
) -> tuple[DataFrame, str]:
    """The rows that satisfy the condition, as c0, c1, ... (user, item, summed columns), and the input's name.

    A probe has their types only, and reads nothing that can be read only once.
    """
    source = find_source(session, events, probe)
    computed = [item.source for item in events.items if is_computed(source, item)]
    values = [events.user, *(item.source for item in events.items), *summed]
    plain = [name for name in values if name not in computed]
    if source.names is not None:
        require_columns(source.what, source.names, plain)
    texts = dict.fromkeys(computed, "expression")
    if events.where is not None:
        texts[events.where] = "condition"
    named = columns_named(session, source, texts) if texts else {}
    wanted = list(dict.fromkeys([*plain, *named.values()]))
    frame = source.select(wanted)
    if events.as_text:
        for name, (place, kind) in zip(wanted, frame.dtypes, strict=True):
            if name in summed:
                number(frame[place], kind, name)
                if kind == "boolean":
                    raise boolean_as_text(name)
        frame = frame.select(*(as_text(frame[place], kind).alias(place) for place, kind in frame.dtypes))
    cells = {name: frame[f"c{k}"] for k, name in enumerate(wanted)}
    prefix = "dphist_"
    while prefix in "".join(texts).casefold():  # an expression cannot use our names
        prefix += "_"
    places = {name: f"{prefix}{k}" for k, name in enumerate(values)}
    chosen = [cells[name].alias(places[name]) for name in dict.fromkeys(plain)]
    # An expression sees no value that is longer than users and items may be: a row must not take long.
    kinds = {name: frame.select(cell).dtypes[0][1] for name, cell in cells.items() if name in named.values()}
    chosen += [limit_value(cells[column], kinds[column]).alias(word) for word, column in named.items()]
    # Without an alias Spark would also find the columns of `frame`.
    rows = view = frame.select(*chosen).alias(f"{prefix}rows")
    if events.where is not None:
        where = events.where
        rows = bind_text(lambda: view.filter(value_or_null(view, where)), where, source, "condition")
        check_plan(rows, where, "condition")
    columns = {
        name: computed_column(view, name, source, events.as_text) if name in computed else rows[places[name]]
        for name in values
    }
    return rows.select(*(columns[name].alias(f"c{k}") for k, name in enumerate(values))), source.what


def find_source(session: SparkSession, events: Events, probe: bool) -> SparkSource:
    source = events.source
    from_database = events.table is not None or events.query is not None
    if from_database and is_frame(source):
        raise not_a_database(events, "a DataFrame" if is_spark_frame(source) else "data in memory")
    if is_spark_frame(source):
        return SparkSource("the Spark DataFrame", list(source.columns), columns_of(source))
    if is_frame(source):
        return memory_source(session, source, events.as_text, probe)
    remote = remote_paths(source)
    if remote:
        paths = [without_secrets(path) for path in remote]
        kind = remote_format(remote, events.file_format)
    else:
        paths, kind = files_of(source, events.file_format)
    what = f"the {'input' if remote else 'file'} {paths[0]!r}"
    what = what if len(paths) == 1 else f"the input of {len(paths)} files ({paths[0]!r} ...)"
    if kind not in ("parquet", "csv", "tsv", "json", "jsonl"):
        raise InputError(
            f"{what} is not supported by Spark: give Parquet, CSV or JSON lines, or a Spark DataFrame; the "
            "engine duckdb reads Arrow files and databases"
        )
    if from_database:
        raise not_a_database(events, "files")
    if remote:
        return remote_source(session, remote, kind, what, probe)
    if kind == "parquet":
        return parquet_source(session, paths, what)
    if kind in ("json", "jsonl"):
        return json_source(session, paths, kind, what)
    return csv_source(session, paths, kind, what, probe)


def columns_of(frame: DataFrame, names: Sequence[str] | None = None) -> Callable[[list[str]], DataFrame]:
    """Selects columns of a frame by position, because Spark's names ignore case."""
    known, rows = list(names or frame.columns), numbered(frame)

    def select(wanted: list[str]) -> DataFrame:
        places = [f"n{known.index(name)}" for name in wanted]
        return rows.select(*(rows[place].alias(f"c{k}") for k, place in enumerate(places)))

    return select


def memory_source(session: SparkSession, data: object, as_text: bool, probe: bool) -> SparkSource:
    source = frame_source(data, as_text=as_text)

    def select(wanted: list[str]) -> DataFrame:
        def create() -> DataFrame:
            schema = source.schema(wanted)  # raises an error if a reader was read before
            table = schema.empty_table() if probe else source.data(wanted)
            return arrow_frame(session, table, [f"c{k}" for k in range(len(wanted))])

        return attempt(create, source.what, source.otherwise)

    return SparkSource(source.what, list(source.names), select)


def without_patterns(address: str) -> str:
    """The address with glob characters escaped."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", address)


def local_address(path: str) -> str:
    """The address of a local file, which is not a pattern."""
    name = os.path.basename(path)
    if name.startswith(("_", ".")):
        raise InputError(f"the file {path!r} has a name that Spark treats as hidden: rename it")
    if ":" in name:
        raise InputError(f"the file {path!r} has a colon in its name, which Spark does not support: rename it")
    return "file://" + without_patterns(os.path.abspath(path))


def folder_option(files: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The reader option (the folder above) by which folders named key=value add text columns.

    Empty without such folders, if files differ in their keys, or if a file has a column of that name.
    """
    folders = [Path(os.path.abspath(path)).parent.parts for path in files]
    keys = [tuple(part.partition("=")[0] for part in parts if "=" in part) for parts in folders]
    columns = {name.casefold() for name in names}
    if not keys[0] or set(keys) != {keys[0]} or columns & {unquote(key).casefold() for key in keys[0]}:
        return {}
    roots = {parts[: next(k for k, part in enumerate(parts) if "=" in part)] for parts in folders}
    return {"basePath": "file://" + os.path.join(*roots.pop())} if len(roots) == 1 else {}


class FileGroup(NamedTuple):
    """Files with the same header: the first one, their rows, and the names and DuckDB types of the columns."""

    file: str
    rows: DataFrame
    names: Sequence[str]
    kinds: Sequence[str]


def union_source(what: str, groups: Sequence[FileGroup]) -> SparkSource:
    """The rows of all groups, whose columns may differ in order."""

    def select(wanted: list[str]) -> DataFrame:
        for group in groups:
            require_columns(f"the file {group.file!r}", group.names, wanted)
        for name in wanted:
            common_sql_type(what, name, [group.kinds[group.names.index(name)] for group in groups])
        # Spark widens the remaining types without loss.
        frames = [columns_of(group.rows, group.names)(wanted) for group in groups]
        return reduce(lambda left, right: left.unionAll(right), frames)

    return SparkSource(what, list(groups[0].names), select)


def parquet_source(session: SparkSession, files: list[str], what: str) -> SparkSource:
    """Parquet files; those with equal footers are read together."""

    def read(footer: tuple[tuple[str, str], ...], paths: list[str]) -> FileGroup:
        names = [name for name, _ in footer]
        frame = session.read.options(**folder_option(paths, names)).parquet(*map(local_address, paths))
        if frame.columns[: len(names)] != names:
            raise ValueError("Spark reads other columns")
        arrow = [kind for _, kind in footer] + [""] * (len(frame.columns) - len(names))
        rows = numbered(frame)
        rows = rows.select(*(parquet_column(rows[f"n{k}"], kind).alias(f"n{k}") for k, kind in enumerate(arrow)))
        # DuckDB's names for the types.
        kinds = [
            {"null": NOTHING, "uint64": "UBIGINT"}.get(known) or {**KEPT, **FLOATS}.get(kind, kind).upper()
            for (_, kind), known in zip(rows.dtypes, arrow, strict=True)
        ]
        return FileGroup(paths[0], rows, frame.columns, kinds)

    footers = files_by_header({path: parquet_header(path) for path in files})
    groups = [
        attempt(partial(read, footer, paths), f"the file {paths[0]!r}", UNKNOWN)
        for footer, paths in footers.items()
    ]
    return union_source(what, groups)


def parquet_column(column: Column, arrow: str) -> Column:
    """A column in a type that is counted, given its Arrow type."""
    if arrow == "null":
        return sql.lit(None)
    if arrow.startswith("timestamp[ns"):  # Spark reads integers; times are truncated to microseconds
        moment = sql.timestamp_micros(sql.call_function("div", column, sql.lit(1000)))
        return moment if "tz=" in arrow else moment.cast("timestamp_ntz")
    return column


def csv_source(session: SparkSession, files: list[str], kind: str, what: str, probe: bool) -> SparkSource:
    delimiter, headers = csv_headers(files, kind, what)
    if not probe:
        check_lines(session, [local_address(path) for path in headers], delimiter, what)

    def read(header: tuple[str, ...], paths: list[str]) -> FileGroup:
        # Columns are numbered: names may be odd, or differ in case only.
        fields = [f"n{k}" for k in range(len(header))]
        schema = StructType([StructField(field, StringType()) for field in fields])
        options = {**CSV, **folder_option(paths, [*header, *fields]), "sep": delimiter}
        frame = session.read.options(**options).schema(schema).csv([local_address(path) for path in paths])
        names = [*header, *frame.columns[len(header) :]]
        return FileGroup(paths[0], frame, names, ["VARCHAR"] * len(names))

    groups = [attempt(partial(read, header, paths), what) for header, paths in files_by_header(headers).items()]
    union = union_source(what, groups)
    return replace(union, select=lambda wanted: valid_rows(union.select(wanted)))


def check_lines(session: SparkSession, paths: Sequence[str], delimiter: str, what: str) -> None:
    """Raise `InputError` unless the quotes of each line are as in RFC 4180: each line is then one row.

    A line of a quoted value with line breaks could be taken for a row of another user.
    """
    line = sql.col("value")
    # Those with even places are outside quotes; an empty one is the middle of a doubled quote.
    parts = sql.split(line, sql.lit('"'), -1)
    count = sql.size(parts)

    def is_misplaced(part: Column, place: Column) -> Column:
        before = (place == 0) | sql.startswith(part, sql.lit(delimiter))
        after = (place == count - 1) | sql.endswith(part, sql.lit(delimiter))
        return (place % 2 == 0) & (part != "") & ~(before & after)

    fields = sql.length(line) - sql.length(sql.replace(line, sql.lit(delimiter), sql.lit("")))
    wrong = (count % 2 == 0) | (sql.size(sql.filter(parts, is_misplaced)) > 0) | (fields >= FIELDS)
    lines = attempt(lambda: session.read.text([*paths]).where(wrong).isEmpty(), what, UNKNOWN)
    if not lines:
        raise InputError(
            f"{what} cannot be read by Spark: it has quotes that are misplaced, a line break in a quoted value, "
            f"or a line of more than {FIELDS:,} fields; use the engine duckdb, or Parquet"
        )


def valid_rows(rows: DataFrame) -> DataFrame:
    """CSV rows without invalid UTF-8; an empty field is NULL, quoted or not."""
    valid = rows.where(~sql.contains(sql.concat_ws("", *rows.columns), sql.lit(NOT_UTF8)))
    return valid.select(*(sql.nullif(valid[name], sql.lit("")).alias(name) for name in valid.columns))


def json_source(session: SparkSession, files: list[str], kind: str, what: str) -> SparkSource:
    for path, start in zip(files, json_starts(files), strict=True):
        if kind == "json" and start == b"[":
            raise InputError(
                f"the file {path!r} is a JSON array, which Spark cannot read in parts: give JSON lines, or use "
                "the engine duckdb"
            )
    if folder_option(files, []) != folder_option(files, ["value"]):
        raise InputError(f"{what} has folders named value=..., which Spark confuses with the lines: rename them")
    reader = session.read.options(**folder_option(files, []))
    return lines_source(attempt(lambda: reader.text([local_address(path) for path in files]), what), what)


def lines_source(lines: DataFrame, what: str) -> SparkSource:
    """Lines with one JSON object each, and the columns of folders. A row's own value takes precedence."""
    folders = lines.columns[1:]
    rows = numbered(lines)
    line = sql.try_validate_utf8(sql.trim(rows["n0"], sql.lit(" \t\r")))
    # Spark would accept an array of one object, and ignore text after the object.
    valid = sql.when(sql.startswith(line, sql.lit("{")) & sql.endswith(line, sql.lit("}")), line)

    def select(wanted: list[str]) -> DataFrame:
        keys = StructType([StructField(name, StringType()) for name in wanted])
        parsed = rows.select("*", sql.from_json(valid, keys, FROM_JSON).alias("object"))
        cells = []
        for k, name in enumerate(wanted):
            value = sql.col("object").getField(name)
            value = sql.when(value.isin(*NOT_FINITE), sql.trim(value, sql.lit('"'))).otherwise(value)
            from_folder = [parsed[f"n{folders.index(name) + 1}"]] if name in folders else []
            cells.append(sql.coalesce(value, *from_folder).alias(f"c{k}"))
        return parsed.select(*cells)

    return SparkSource(what, None, select)


def remote_paths(source: object) -> list[str]:
    """The paths and addresses that only Spark can find; empty if all are local files."""
    paths = given_paths(source)
    if isinstance(source, (tuple, list)) and len(paths) < len(source):
        return []  # not a list of files: `files_of` raises the error
    remote = [
        path
        for path in paths
        if scheme_of(path)
        or not (os.path.exists(path) or (glob.has_magic(path) and glob.glob(path, recursive=True)))
    ]
    if any(map(is_postgres, remote)):
        raise InputError("Spark does not read PostgreSQL by itself: use the engine duckdb, or spark.read.jdbc")
    if remote and len(remote) < len(paths):
        raise InputError("some files are on this machine and some are not: give files of one place")
    return remote


def remote_format(paths: list[str], file_format: str | None) -> str:
    if file_format is not None:
        return known_format(file_format)
    if len(paths) == 1 and not scheme_of(paths[0]) and Path(paths[0].lower()).suffix not in FORMATS:
        raise InputError(f"the file {paths[0]!r} does not exist here, and its name has no known ending for Spark")
    return format_of(paths[0].rstrip("/"))


def remote_source(session: SparkSession, paths: list[str], kind: str, what: str, probe: bool) -> SparkSource:
    """Remote files. Spark checks that CSV files have equal headers, and merges Parquet schemas."""

    def read() -> SparkSource:
        if kind == "parquet":
            frame = session.read.option("mergeSchema", "true").parquet(*paths)
            return SparkSource(what, list(frame.columns), columns_of(frame))
        if kind in ("json", "jsonl"):
            return lines_source(session.read.text(paths), what)
        delimiter = "\t" if kind == "tsv" else ","
        frame = session.read.options(**CSV, sep=delimiter, enforceSchema="false").csv(paths)
        names = header_names(frame.columns)
        if not probe:
            check_lines(session, paths, delimiter, what)
        select = columns_of(frame, names)
        return SparkSource(what, names, lambda wanted: valid_rows(select(wanted)))

    try:
        return read()
    except InputError:
        raise
    except Exception as error:
        message = str(error)
    if "PATH_NOT_FOUND" in message:
        path = without_secrets(paths[0])
        raise InputError(f"no file matches {path!r}" if glob.has_magic(path) else f"{what} does not exist")
    if "No FileSystem for scheme" in message:
        raise InputError(
            f"this Spark cannot read {scheme_of(paths[0])}:// addresses: add a package for them, such as with "
            "<--spark-conf> spark.jars.packages=..."
        )
    raise InputError(f"{what} cannot be read: Spark does not reach it, or it is damaged or has another format")


def counted_column(column: Column, kind: str, name: str, *, is_user: bool) -> tuple[Column, str]:
    """The column normalized like `sql.normalize`, and its DuckDB type; rare types are text."""
    if kind == "binary":
        return limit_length(column), KEPT[kind]
    if kind in KEPT:
        return column, KEPT[kind]
    if kind.startswith("decimal("):
        return column, kind.upper()
    if kind in FLOATS:
        special = sql.when(column == 0, sql.lit(0.0)).when(sql.isnan(column), sql.lit(float("nan")))
        return special.otherwise(column).cast(kind), FLOATS[kind]
    if kind.startswith((*NESTED, "variant")):
        if is_user or kind.startswith("variant"):
            raise not_a_user(name)
        return limit_length(valid_text(sql.to_json(column, TO_JSON))), "VARCHAR"
    return limit_length(valid_text(column.cast("string"))), "VARCHAR"


def limit_length(column: Column) -> Column:
    return sql.when(sql.octet_length(column) <= LONGEST_VALUE, column)


def limit_value(column: Column, kind: str) -> Column:
    """The value of a column, NULL if it is longer than a user or an item may be."""
    if kind.startswith((*NESTED, "variant")):
        written = sql.to_json(column, TO_JSON) if kind.startswith(NESTED) else column.cast("string")
        return sql.when(sql.octet_length(written) <= LONGEST_VALUE, column)
    return limit_length(column) if kind.startswith((*TEXTS, "binary")) else column


def valid_text(column: Column) -> Column:
    """Text without its collation, which would show one user's spelling for all; NULL if not UTF-8."""
    return sql.try_validate_utf8(sql.collate(column, "UTF8_BINARY"))


def number(column: Column, kind: str, name: str) -> Column:
    """The value as the nearest double; NULL if it is not a number. An error if the type is not numeric or text."""
    if kind in NUMBERS or kind.startswith("decimal("):
        return column.cast("double")
    if kind == "void":
        return sql.lit(None).cast("double")
    if not kind.startswith(TEXTS):
        raise not_summable(name)
    text = valid_text(column.cast("string"))
    return sql.when(text.rlike(NUMBER), text.try_cast("double"))


def as_text(column: Column, kind: str) -> Column:
    """The same text as `dphist.counting.sql.as_text`."""
    if kind in FLOATS:
        exact = sql.abs(column) < sql.lit(EXACT)
        whole = sql.when(exact & (column == sql.floor(column)), column.cast("bigint").cast("string"))
        text = whole.when(exact, column.cast("string"))
        for name in ("nan", "inf", "-inf"):
            text = text.when(column == sql.lit(float(name)), sql.lit(name))
        return text
    if kind == "bigint":
        return sql.when((column > sql.lit(-EXACT)) & (column < sql.lit(EXACT)), column.cast("string"))
    if kind.startswith("decimal("):
        # Zero would be 0E-18 in a session without ANSI.
        text = sql.when(column == 0, sql.lit("0")).otherwise(column.cast("string"))
        plain = text if kind.endswith(",0)") else sql.regexp_replace(text, r"(\.[0-9]*?)0+$", "$1")
        plain = sql.regexp_replace(plain, r"\.$", "")
        return sql.when(sql.abs(column.cast("double")) < sql.lit(EXACT), plain)
    if kind in ("timestamp", "timestamp_ntz"):
        # In UTC, and without zeros at the end of the fraction.
        local = sql.to_utc_timestamp(column, sql.current_timezone()) if kind == "timestamp" else column
        text = sql.date_format(local, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        zone = sql.lit("+00" if kind == "timestamp" else "")
        return sql.concat(sql.regexp_replace(text, r"\.?0*$", ""), zone)
    if kind == "binary":
        return sql.coalesce(sql.try_validate_utf8(column.cast("string")), sql.lower(sql.hex(column)))
    return column if kind.startswith((*NESTED, "variant")) else column.cast("string")


def columns_named(session: SparkSession, source: SparkSource, texts: Mapping[str, str]) -> dict[str, str]:
    """The columns that the user's SQL names, by their spelling in it: the exact one, or one that differs in case.

    For JSON every name that Spark parses is a column; too many do no harm.
    """
    if is_connect(session):
        raise InputError("conditions are not supported through Spark Connect: filter the DataFrame first")
    exact = session.conf.get("spark.sql.caseSensitive") == "true"
    named: dict[str, str] = {}
    for word in dict.fromkeys(
        word for text, kind in texts.items() for word in words_of(session, text, source, kind)
    ):
        if source.names is None:
            matches = [] if word.casefold() in VALUES else [word]
        else:
            alike = list(dict.fromkeys(name for name in source.names if name.casefold() == word.casefold()))
            matches = [word] if word in alike else alike
        others = {column for other, column in named.items() if other.casefold() == word.casefold()}
        if matches and len({*matches, *others}) > 1:
            quoted = word.replace("`", "``")
            title = title_of(*next((kind, text) for text, kind in texts.items() if quoted in text))
            raise ambiguous_case(title, sorted({*matches, *others}))
        if matches and (exact or not others):
            named[word] = matches[0]
    if source.names is not None:
        require_columns(source.what, source.names, list(dict.fromkeys(named.values())))
    return named


def words_of(session: SparkSession, text: str, source: SparkSource, kind: str) -> list[str]:
    """The first parts of the names in an expression, by Spark's parser, which resolves nothing."""
    parser = session._jsparkSession.sessionState().sqlParser()
    leaves = bind_text(lambda: parser.parseExpression(text).collectLeaves(), text, source, kind)
    words = []
    for leaf in (leaves.apply(k) for k in range(leaves.size())):
        form = leaf.getClass().getSimpleName()
        if NOT_OF_ONE_ROW.search(form):
            raise InputError(f"{title_of(kind, text)} must use one row at a time: no subqueries and no *")
        if form in ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable"):
            words.append(str(leaf.nameParts().head()))
    return words


def value_or_null(view: DataFrame, text: str) -> Column:
    """The value of an expression, or NULL where it fails: an error would reveal that row."""
    # The class TryEval, because a session can replace functions.
    spark = java_of(view.sparkSession).org.apache.spark.sql
    expression = spark.classic.ExpressionUtils.expression(sql.expr(text)._jc)
    return Column(spark.classic.ExpressionUtils.column(spark.catalyst.expressions.TryEval(expression)))


def is_computed(source: SparkSource, column: Item) -> bool:
    """Whether an item is an SQL expression; a column of that name takes precedence."""
    if column.name == column.source:
        return False
    if source.names is None:
        return CALL_OR_CAST.search(column.source) is not None
    return column.source not in source.names and re.fullmatch(r"\w+|`[^`]*`", column.source) is None


def computed_column(view: DataFrame, text: str, source: SparkSource, read_as_text: bool) -> Column:
    """A computed item. It is checked as a condition, where Spark allows expressions of one row only."""
    probe = bind_text(lambda: view.filter(value_or_null(view, text).isNull()), text, source, "expression")
    check_plan(probe, text, "expression")
    # The checked expression is evaluated, not its text, whose meaning may have changed.
    checked = probe._jdf.queryExecution().analyzed().condition().child()
    column = Column(java_of(view.sparkSession).org.apache.spark.sql.classic.ExpressionUtils.column(checked))
    return as_text(column, view.select(column).dtypes[0][1]) if read_as_text else column


def check_plan(rows: DataFrame, text: str, kind: str) -> None:
    """Raise `InputError` unless the condition of a filter is a deterministic function of one row.

    The plan that is executed is checked, not the text: sessions and catalogs can have functions that read other
    rows, tables and files, under names that only Spark resolves.
    """
    plan = rows._jdf.queryExecution().analyzed()
    wrong = ""
    if plan.nodeName() != "Filter" or not plan.subqueries().isEmpty():
        wrong = "it must use the columns of one row only"
    else:
        kinds = {str(node.get("class", "")).rpartition(".")[2] for node in json.loads(plan.condition().toJSON())}
        if any(FOREIGN.search(name) for name in kinds):
            wrong = "user-defined functions and variables are not supported: filter the DataFrame first"
        elif not plan.condition().deterministic() or (
            kind == "expression" and any(CHANGING.search(name) for name in kinds)
        ):
            wrong = "it must always give the same result for the same row"
    if wrong:
        raise InputError(f"{title_of(kind, text)} cannot be used: {wrong}")


def bind_text(action: Callable[[], T], text: str, source: SparkSource, kind: str) -> T:
    """Run an action that only binds the user's SQL, and show the first line of Spark's error."""
    try:
        return action()
    except Exception as error:
        reason = about_sql(str(error).partition(" SQLSTATE")[0])
    if reason.startswith("[UNRESOLVED_COLUMN"):
        reason = f"it names a column that {source.what} does not have"
        reason += "" if source.names is None else f"; the columns are {column_list(source.names)}"
    raise InputError(f"{title_of(kind, text)} cannot be used: {reason}")
