"""What Spark reads: its own DataFrames, Parquet, CSV and JSON lines, and frames of this process.

A path that exists on this machine is a local file, which every executor must see under the same name; Spark looks
up any other path or address. Arrow files, databases and JSON arrays are read by the embedded engine alone.

CSV and JSON have no types, so all values are text, as with the embedded engine (see `files`), but for this. CSV:
rows with the character U+FFFD are dropped, because Spark replaces bytes that are not UTF-8 by it; so are rows
with too many fields; misplaced quotes are read differently; files elsewhere are delimited by commas or tabs. JSON:
numbers with a fraction or an exponent are written as Java writes them (1.5E7, Infinity where one is too large);
half of a surrogate pair is a question mark; of a repeated key the last one counts; a trailing comma makes a line
invalid; a second object on a line is ignored.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from pyspark.sql import Column
from pyspark.sql import functions as sql
from pyspark.sql.types import StringType, StructField, StructType

from dphist.counting.duckdb import not_a_database
from dphist.counting.expressions import CALL_OR_CAST, cannot_tell_apart, title_of
from dphist.counting.files import (
    NOTHING,
    common_sql_type,
    csv_headers,
    files_by_header,
    files_of,
    given_paths,
    json_starts,
    kind_of,
    known_format,
    parquet_header,
)
from dphist.counting.frames import ArrowSource, frame_source
from dphist.counting.spark_session import arrow_frame
from dphist.counting.sql import EXACT, NUMBER, demand, no_number, not_summable
from dphist.counting.task import FORMATS, LONGEST_VALUE, Events, is_frame
from dphist.counting.task import Column as Item
from dphist.counting.workspace import about_sql, attempt, column_list, header_names
from dphist.errors import InputError, is_spark_frame
from dphist.objects import is_postgres, scheme_of, without_secrets

T = TypeVar("T")

# Types of Spark that are counted as they are, with the type that DuckDB has for them.
KEPT: Final = {
    "boolean": "BOOLEAN", "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
    "date": "DATE", "timestamp": "TIMESTAMP WITH TIME ZONE", "timestamp_ntz": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip
FLOATS: Final = {"float": "FLOAT", "double": "DOUBLE"}
NUMBERS: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", *FLOATS})
NESTED: Final = ("array", "struct", "map")
# All fields, and times to the last digit, whatever the session's zone is.
TO_JSON: Final = {
    "ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}  # fmt: skip

UNKNOWN: Final = "{what} cannot be read: it is damaged, or has a column of a type that Spark does not support"
# One task reads a whole file: parts that begin in the middle would have to guess whether they are within quotes.
# Lines end with a line feed; a carriage return before it is removed later.
CSV: Final = {
    "quote": '"', "escape": '"', "multiLine": "true", "mode": "DROPMALFORMED", "inferSchema": "false",
    "nullValue": "", "emptyValue": "", "encoding": "UTF-8", "comment": "", "maxCharsPerColumn": "-1",
    "unescapedQuoteHandling": "STOP_AT_DELIMITER", "header": "true", "lineSep": "\n",
}  # fmt: skip
NOT_UTF8: Final = "\ufffd"
FROM_JSON: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}
# These are not JSON, but many programs write them. Spark returns them in quotes.
NOT_FINITE: Final = ('"NaN"', '"Infinity"', '"-Infinity"')

# What Spark calls a column until it has looked: each of these is a name that stands for a value as well.
VALUES: Final = {
    "current_date",
    "current_time",
    "current_timestamp",
    "current_user",
    "session_user",
    "localtimestamp",
}
# A subquery, or a star for all columns: it could let one user decide about rows of another.
NOT_OF_ONE_ROW: Final = re.compile(r"Subquery|Exists|ListQuery|Star|Regex")
# Expressions that are not Spark's own.
FOREIGN: Final = re.compile(r"UDF|Udf|UserDefined|Hive|Reflection|ApplyFunction|VariableReference|SQLFunction")
# Expressions that change from one job over the events to the next.
CHANGING: Final = re.compile(r"^Current|^Now$|^Local")


@dataclass(frozen=True)
class SparkSource:
    """An input: `select` returns a frame of the wanted columns under the names c0, c1, ...

    It is called with each column once, by its exact name, and with whether the types are all that is needed: then
    nothing that can be read only once is read. `names` is None for JSON, where any name is a column.
    """

    what: str
    names: list[str] | None
    select: Callable[[list[str], bool], Any]


def read_rows(session: Any, events: Events, summed: Sequence[str] = (), *, probe: bool = False) -> tuple[Any, str]:
    """A frame of the rows that satisfy the condition (user, the item's columns, summed columns), and its title.

    The columns are called c0, c1, ... in this order. A probe has their types; its rows do not matter.
    """
    source = find_source(session, events)
    computed = [column.source for column in events.items if is_computed(source, column)]
    values = [events.user, *(column.source for column in events.items), *summed]
    plain = [name for name in values if name not in computed]
    if source.names is not None:
        demand(source.what, source.names, plain)
    texts = dict.fromkeys(computed, "expression")
    if events.where is not None:
        texts[events.where] = "condition"
    named = columns_named(session, source, texts) if texts else {}
    wanted = list(dict.fromkeys([*plain, *named.values()]))
    frame = source.select(wanted, probe)
    if events.as_text:
        for name, (place, kind) in zip(wanted, frame.dtypes, strict=True):
            if name in summed:
                number(frame[place], kind, name)
                if kind == "boolean":
                    raise no_number(name)
        frame = frame.select(*(as_text(frame[place], kind).alias(place) for place, kind in frame.dtypes))
    cells = {name: frame[f"c{k}"] for k, name in enumerate(wanted)}
    if not texts:
        return frame.select(*(cells[name].alias(f"c{k}") for k, name in enumerate(values))), source.what
    own = "dphist_"
    while own in "".join(texts).casefold():  # no expression can name the values by our names
        own += "_"
    places = {name: f"{own}{k}" for k, name in enumerate(values)}
    chosen = [cells[name].alias(places[name]) for name in dict.fromkeys(plain)]
    chosen += [cells[column].alias(written) for written, column in named.items()]
    # Without an alias Spark would also find the columns that these were made of.
    rows = view = frame.select(*chosen).alias(f"{own}rows")
    if events.where is not None:
        where = events.where
        rows = bind_text(lambda: view.filter(value_or_null(view, where)), where, source, "condition")
        check_plan(rows, where, "condition")
    found = {text: computed_column(view, text, source) for text in computed}
    rows = rows.select(*(
        (found[name] if name in found else rows[places[name]]).alias(f"c{k}") for k, name in enumerate(values)
    ))  # fmt: skip
    if events.as_text and computed:
        kinds = dict(rows.dtypes)
        of_items = {f"c{k}" for k, name in enumerate(values) if name in found}
        rows = rows.select(*(
            (as_text(rows[c], kinds[c]) if c in of_items else rows[c]).alias(c) for c in rows.columns
        ))  # fmt: skip
    return rows, source.what


def find_source(session: Any, events: Events) -> SparkSource:
    """The source of the events."""
    source = events.source
    of_database = events.table is not None or events.query is not None
    if of_database and is_frame(source):
        raise not_a_database(events, "a DataFrame" if is_spark_frame(source) else "data in memory")
    if is_spark_frame(source):
        return SparkSource("the Spark DataFrame", list(source.columns), columns_of(source))
    if is_frame(source):
        return memory_source(session, source, as_text=events.as_text)
    far = far_places(source)
    if far:
        places = [without_secrets(place) for place in far]
        kind = far_kind(far, events.file_format)
    else:
        places, kind = files_of(source, events.file_format)
    what = f"the {'input' if far else 'file'} {places[0]!r}"
    what = what if len(places) == 1 else f"the input of {len(places)} files ({places[0]!r} ...)"
    if kind not in ("parquet", "csv", "tsv", "json", "jsonl"):
        raise InputError(
            f"{what} is not what Spark reads: give Parquet, CSV or JSON lines, or a DataFrame of Spark; the "
            "engine duckdb reads Arrow files and databases"
        )
    if of_database:
        raise not_a_database(events, "files")
    if far:
        return far_source(session, far, kind, what)
    if kind == "parquet":
        return parquet_source(session, places, what)
    return (json_source if kind in ("json", "jsonl") else csv_source)(session, places, kind, what)


def columns_of(frame: Any, names: Sequence[str] | None = None) -> Callable[[list[str], bool], Any]:
    """Selects columns of a frame by the places of their names: Spark's own names are blind to case."""
    known = list(names or frame.columns)
    numbered = frame.toDF(*(f"n{k}" for k in range(len(known))))

    def select(wanted: list[str], _probe: bool) -> Any:
        return numbered.select(*(
            numbered[f"n{known.index(name)}"].alias(f"c{k}") for k, name in enumerate(wanted)
        ))  # fmt: skip

    return select


def memory_source(session: Any, data: Any, *, as_text: bool) -> SparkSource:
    """A frame of this process."""
    source = frame_source(data, as_text=as_text)
    assert isinstance(source, ArrowSource)

    def select(wanted: list[str], probe: bool) -> Any:
        def hand_over() -> Any:
            schema = source.schema(wanted)  # also says whether a reader was read before
            table = schema.empty_table() if probe else source.data(wanted)
            return arrow_frame(session, table, [f"c{k}" for k in range(len(wanted))])

        return attempt(hand_over, source.what, source.otherwise)

    return SparkSource(source.what, list(source.names), select)


# Files of this machine.


def local_address(path: str) -> str:
    """The address of a local file for Spark, in which no character of its name is a pattern."""
    name = os.path.basename(path)
    if name.startswith(("_", ".")):
        raise InputError(f"the file {path!r} has a name that Spark takes for hidden: rename it")
    if ":" in name:
        raise InputError(f"the file {path!r} has a colon in its name, with which Spark cannot open it: rename it")
    return "file://" + re.sub(r"([\\\[\]{}*?])", r"\\\1", os.path.abspath(path))


def folder_option(files: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The option of Spark's readers by which folders named key=value add columns of text: the address above them.

    None where there are no such folders, where files differ in their keys, or where a file has a column of such a
    name: a column is never replaced silently.
    """
    folders = [Path(os.path.abspath(path)).parent.parts for path in files]
    keys = [tuple(part.partition("=")[0] for part in parts if "=" in part) for parts in folders]
    own = {name.casefold() for name in names}
    if not keys[0] or set(keys) != {keys[0]} or own & {unquote(key).casefold() for key in keys[0]}:
        return {}
    roots = {parts[: next(k for k, part in enumerate(parts) if "=" in part)] for parts in folders}
    return {"basePath": "file://" + os.path.join(*roots.pop())} if len(roots) == 1 else {}


def union_source(what: str, groups: Sequence[tuple[str, Any, Sequence[str], Sequence[str]]]) -> SparkSource:
    """Files whose columns may be in different orders: the first file, frame, names and types of each group."""

    def select(wanted: list[str], probe: bool) -> Any:
        for file, _, names, _ in groups:
            demand(f"the file {file!r}", names, wanted)
        for name in wanted:
            common_sql_type(what, name, [kinds[names.index(name)] for _, _, names, kinds in groups])
        # Types that passed are widened by Spark without loss.
        frames = [columns_of(frame, names)(wanted, probe) for _, frame, names, _ in groups]
        return reduce(lambda one, other: one.unionAll(other), frames)

    return SparkSource(what, list(groups[0][2]), select)


def parquet_source(session: Any, files: list[str], what: str) -> SparkSource:
    """Parquet files. Files with the same footer are read together."""

    def read(footer: tuple[tuple[str, str], ...], some: list[str]) -> Any:
        names = [name for name, _ in footer]
        frame = session.read.options(**folder_option(some, names)).parquet(*map(local_address, some))
        if frame.columns[: len(names)] != names:
            raise ValueError("Spark reads other columns")
        arrow = [kind for _, kind in footer] + [""] * (len(frame.columns) - len(names))
        numbered = frame.toDF(*(f"n{k}" for k in range(len(arrow))))
        rows = numbered.select(*(
            parquet_column(numbered[f"n{k}"], kind).alias(f"n{k}") for k, kind in enumerate(arrow)
        ))  # fmt: skip
        # DuckDB's names for the types.
        kinds = [
            {"null": NOTHING, "uint64": "UBIGINT"}.get(known) or {**KEPT, **FLOATS}.get(kind, kind).upper()
            for (_, kind), known in zip(rows.dtypes, arrow, strict=True)
        ]
        return some[0], rows, frame.columns, kinds

    footers = files_by_header({path: parquet_header(path) for path in files})
    return union_source(what, [
        attempt(lambda f=footer, s=some: read(f, s), f"the file {some[0]!r}", UNKNOWN)  # type: ignore[misc]
        for footer, some in footers.items()
    ])  # fmt: skip


def parquet_column(column: Any, arrow: str) -> Any:
    """A column of a file in which Arrow has this type, in a type that is counted."""
    if arrow == "null":
        return sql.lit(None)
    if arrow.startswith("timestamp[ns"):  # which is read as whole numbers; times are cut to microseconds
        moment = sql.timestamp_micros(sql.call_function("div", column, sql.lit(1000)))
        return moment if "tz=" in arrow else moment.cast("timestamp_ntz")
    return column


def csv_source(session: Any, files: list[str], kind: str, what: str) -> SparkSource:
    """CSV files. Columns are found by name in each. Spark would read a file without line feeds as one line."""
    sep, headers = csv_headers(files, kind, what, line_feed=True)

    def read(header: tuple[str, ...], some: list[str]) -> Any:
        # Columns are numbered: names may be odd, or differ in case alone.
        fields = [f"n{k}" for k in range(len(header))]
        schema = StructType([StructField(field, StringType()) for field in fields])
        reader = session.read.options(**CSV, **folder_option(some, [*header, *fields]), sep=sep).schema(schema)
        frame = reader.csv([local_address(path) for path in some])
        names = [*header, *frame.columns[len(header) :]]
        return some[0], csv_cells(frame, len(header)), names, ["VARCHAR"] * len(names)

    union = union_source(what, [
        attempt(lambda h=header, s=some: read(h, s), what)  # type: ignore[misc]
        for header, some in files_by_header(headers).items()
    ])  # fmt: skip
    return replace(union, select=lambda wanted, probe: whole_text(union.select(wanted, probe)))


def csv_cells(frame: Any, fields: int) -> Any:
    """The frame, without the carriage return at the end of the last of a line's fields."""
    rows = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    last = f"n{fields - 1}"
    return rows.withColumn(last, sql.regexp_replace(rows[last], r"\r+\z", ""))


def whole_text(rows: Any) -> Any:
    """Cells of CSV: an empty field, quoted or not, is NULL; rows with bytes that are not UTF-8 are dropped."""
    valid = rows.where(~sql.contains(sql.concat_ws("", *rows.columns), sql.lit(NOT_UTF8)))
    return valid.select(*(sql.nullif(valid[name], sql.lit("")).alias(name) for name in valid.columns))


def json_source(session: Any, files: list[str], kind: str, what: str) -> SparkSource:
    """Files of JSON lines. A row's own value comes before that of its folder's name."""
    for path, start in zip(files, json_starts(files), strict=True):
        if kind == "json" and start == b"[":
            raise InputError(
                f"the file {path!r} is a JSON array, which Spark cannot read in parts: give lines, or use the "
                "engine duckdb"
            )
    if folder_option(files, []) != folder_option(files, ["value"]):
        raise InputError(
            f"{what} has folders named value=..., which Spark cannot tell from the lines: rename them"
        )
    reader = session.read.options(**folder_option(files, []))
    return lines_source(attempt(lambda: reader.text([local_address(path) for path in files]), what), what)


def lines_source(lines: Any, what: str) -> SparkSource:
    """Lines of text, one JSON object each; columns after the first are those of folders."""
    folders = lines.columns[1:]
    numbered = lines.toDF(*(f"f{k}" for k in range(len(lines.columns))))
    line = sql.try_validate_utf8(sql.trim(numbered["f0"], sql.lit(" \t\r")))
    # Spark would take an array of one object for the object, and ignore what follows it.
    whole = sql.when(sql.startswith(line, sql.lit("{")) & sql.endswith(line, sql.lit("}")), line)

    def select(wanted: list[str], _probe: bool) -> Any:
        keys = StructType([StructField(name, StringType()) for name in wanted])
        parsed = numbered.select("*", sql.from_json(whole, keys, FROM_JSON).alias("object"))
        cells = []
        for k, name in enumerate(wanted):
            own = sql.col("object").getField(name)
            own = sql.when(own.isin(*NOT_FINITE), sql.trim(own, sql.lit('"'))).otherwise(own)
            from_folder = [parsed[f"f{folders.index(name) + 1}"]] if name in folders else []
            cells.append(sql.coalesce(own, *from_folder).alias(f"c{k}"))
        return parsed.select(*cells)

    return SparkSource(what, None, select)


# Files that only Spark finds.


def far_places(source: Any) -> list[str]:
    """Paths and addresses that are not files of this machine; none if all of them are."""
    paths = given_paths(source)
    if isinstance(source, (tuple, list)) and len(paths) < len(source):
        return []  # not a list of files at all, which `files_of` says
    # A file, a folder or a pattern of this machine is not far.
    far = [
        path
        for path in paths
        if scheme_of(path)
        or not (os.path.exists(path) or (glob.has_magic(path) and glob.glob(path, recursive=True)))
    ]
    if any(map(is_postgres, far)):
        raise InputError("Spark does not read PostgreSQL by itself: use the engine duckdb, or spark.read.jdbc")
    if far and len(far) < len(paths):
        raise InputError("the files are partly on this machine and partly not; give files of one place")
    return far


def far_kind(given: list[str], file_format: str | None) -> str:
    """The format of files that Spark finds."""
    if file_format is not None:
        return known_format(file_format)
    if len(given) == 1 and not scheme_of(given[0]) and Path(given[0].lower()).suffix not in FORMATS:
        raise InputError(f"the file {given[0]!r} does not exist here, and its name does not tell Spark the format")
    return kind_of(given[0].rstrip("/"))


def far_source(session: Any, places: list[str], kind: str, what: str) -> SparkSource:
    """Files elsewhere. Spark checks that all CSV files have the same header, and merges Parquet schemas."""

    def read() -> SparkSource:
        if kind == "parquet":
            frame = session.read.option("mergeSchema", "true").parquet(*places)
            return SparkSource(what, list(frame.columns), columns_of(frame))
        if kind in ("json", "jsonl"):
            return lines_source(session.read.text(places), what)
        delimiter = "\t" if kind == "tsv" else ","
        frame = session.read.options(**CSV, sep=delimiter, enforceSchema="false").csv(places)
        names = header_names([name.removesuffix("\r") for name in frame.columns])
        select = columns_of(csv_cells(frame, len(names)), names)
        return SparkSource(what, names, lambda wanted, probe: whole_text(select(wanted, probe)))

    try:
        return read()
    except Exception as error:
        text = str(error)
    if "PATH_NOT_FOUND" in text:
        place = without_secrets(places[0])
        raise InputError(f"no file matches {place!r}" if glob.has_magic(place) else f"{what} does not exist")
    if "No FileSystem for scheme" in text:
        raise InputError(
            f"Spark cannot read {scheme_of(places[0])}:// addresses as it is set up here: it needs a package for "
            "them, such as by --spark-conf spark.jars.packages=..."
        )
    raise InputError(f"{what} cannot be read: Spark does not reach it, or it is damaged or of another kind")


# Columns in the form in which they are counted.


def counted_column(column: Any, kind: str, name: str, *, is_user: bool) -> tuple[Any, str]:
    """One form for equal values, as the embedded engine has it, and DuckDB's type for it; rare types are text."""
    if kind == "binary":
        return limit_length(column), KEPT[kind]
    if kind in KEPT:
        return column, KEPT[kind]
    if kind.startswith("decimal("):
        return column, kind.upper()
    if kind in FLOATS:
        # Floats have two zeros and many NaNs, which engines group differently.
        plain = sql.when(column == 0, sql.lit(0.0)).when(sql.isnan(column), sql.lit(float("nan")))
        return plain.otherwise(column).cast(kind), FLOATS[kind]
    if kind.startswith((*NESTED, "variant")):
        if is_user or kind.startswith("variant"):
            raise InputError(f"the column {name!r} holds lists or structures, which cannot be users")
        return limit_length(valid_text(sql.to_json(column, TO_JSON))), "VARCHAR"
    return limit_length(valid_text(column.cast("string"))), "VARCHAR"


def limit_length(column: Any) -> Any:
    """A text or bytes of at most `LONGEST_VALUE` bytes; a longer one is missing, as with the embedded engine."""
    return sql.when(sql.octet_length(column) <= LONGEST_VALUE, column)


def valid_text(column: Any) -> Any:
    """Text compared by its bytes, for a collation would show one user's spelling for all; NULL if not UTF-8."""
    return sql.try_validate_utf8(sql.collate(column, "UTF8_BINARY"))


def number(column: Any, kind: str, name: str) -> Any:
    """The value as the nearest double; NULL if it is not a number. An error if the type has no numbers."""
    if kind in NUMBERS or kind.startswith("decimal("):
        return column.cast("double")
    if kind == "void":
        return sql.lit(None).cast("double")
    if not kind.startswith(("string", "char", "varchar")):
        raise not_summable(name)
    text = valid_text(column.cast("string"))
    return sql.when(text.rlike(NUMBER), text.try_cast("double"))


def as_text(column: Any, kind: str) -> Any:
    """The text of a value, by a rule about that value alone: see `dphist.counting.sql.as_text`."""
    exact = sql.abs(column) < sql.lit(EXACT)
    if kind in FLOATS:
        whole = sql.when(exact & (column == sql.floor(column)), column.cast("bigint").cast("string"))
        text = whole.when(exact, column.cast("string"))
        for name in ("nan", "inf", "-inf"):
            text = text.when(column == sql.lit(float(name)), sql.lit(name))
        return text
    if kind in ("bigint", "decimal(20,0)"):
        return sql.when((column > sql.lit(-EXACT)) & (column < sql.lit(EXACT)), column.cast("string"))
    if kind in ("timestamp", "timestamp_ntz"):
        # In UTC, whatever the session's zone is, and without zeros at the end of the fraction.
        local = sql.to_utc_timestamp(column, sql.current_timezone()) if kind == "timestamp" else column
        text = sql.date_format(local, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        zone = sql.lit("+00" if kind == "timestamp" else "")
        return sql.concat(sql.regexp_replace(text, r"\.?0*$", ""), zone)
    if kind == "binary":
        return sql.coalesce(sql.try_validate_utf8(column.cast("string")), sql.lower(sql.hex(column)))
    return column if kind.startswith((*NESTED, "variant")) else column.cast("string")


# The user's conditions and items that are computed: expressions of Spark SQL about one row and nothing else.


def columns_named(session: Any, source: SparkSource, texts: Mapping[str, str]) -> dict[str, str]:
    """The columns that expressions name, by their spelling: the exact one, or else one that differs in case.

    Where any name is a column, every name of Spark's parse is one. A name too many does no harm.
    """
    if not hasattr(session, "_jsparkSession"):
        raise InputError("conditions are not supported through Spark Connect: filter the DataFrame before")
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
            raise cannot_tell_apart(title, sorted({*matches, *others}))
        if matches and (exact or not others):
            named[word] = matches[0]
    if source.names is not None:
        demand(source.what, source.names, list(dict.fromkeys(named.values())))
    return named


def words_of(session: Any, text: str, source: SparkSource, kind: str) -> list[str]:
    """The first parts of the names in an expression, by Spark's parser, which looks nothing up."""
    parser = session._jsparkSession.sessionState().sqlParser()
    leaves = bind_text(lambda: parser.parseExpression(text).collectLeaves(), text, source, kind)
    words = []
    for leaf in (leaves.apply(k) for k in range(leaves.size())):
        form = leaf.getClass().getSimpleName()
        if NOT_OF_ONE_ROW.search(form):
            raise InputError(f"{title_of(kind, text)} must be about single rows: no subqueries and no *")
        if form in ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable"):
            words.append(str(leaf.nameParts().head()))
    return words


def value_or_null(view: Any, text: str) -> Column:
    """The value of an expression. Where it fails it is NULL: an error would tell of that row."""
    # Spark's own TryEval, and not a function by its name, which a session can replace.
    spark = view.sparkSession._jvm.org.apache.spark.sql
    expression = spark.classic.ExpressionUtils.expression(sql.expr(text)._jc)
    return Column(spark.classic.ExpressionUtils.column(spark.catalyst.expressions.TryEval(expression)))


def is_computed(source: SparkSource, column: Item) -> bool:
    """Whether an item is an expression in SQL. A column of the input always wins."""
    if column.name == column.source:
        return False
    if source.names is None:
        return CALL_OR_CAST.search(column.source) is not None
    return column.source not in source.names and re.fullmatch(r"\w+|`[^`]*`", column.source) is None


def computed_column(view: Any, text: str, source: SparkSource) -> Column:
    """An item that is computed. It is checked as a condition, where Spark allows one row and nothing else."""
    probe = bind_text(lambda: view.filter(value_or_null(view, text).isNull()), text, source, "expression")
    check_plan(probe, text, "expression")
    # What was checked is what is evaluated, and not what its text may stand for by then.
    checked = probe._jdf.queryExecution().analyzed().condition().child()
    return Column(view.sparkSession._jvm.org.apache.spark.sql.classic.ExpressionUtils.column(checked))


def check_plan(rows: Any, text: str, kind: str) -> None:
    """Raise `InputError` unless the condition of a filter is a function of one row that never changes.

    It is read from the very plan that is executed. The text of a condition does not tell which function a name
    stands for: sessions and catalogs can have functions that read other rows, tables and files, and call them in
    spellings that only Spark resolves.
    """
    plan = rows._jdf.queryExecution().analyzed()
    wrong = ""
    if plan.nodeName() != "Filter" or not plan.subqueries().isEmpty():
        wrong = "it must be about the columns of one row alone"
    else:
        kinds = {str(node.get("class", "")).rpartition(".")[2] for node in json.loads(plan.condition().toJSON())}
        if any(FOREIGN.search(kind) for kind in kinds):
            wrong = "functions and variables of your own are not supported; filter the DataFrame before"
        elif not plan.condition().deterministic() or (
            kind == "expression" and any(CHANGING.search(one) for one in kinds)
        ):
            wrong = "it must give the same for the same row, whenever it is evaluated"
    if wrong:
        raise InputError(f"{title_of(kind, text)} cannot be used: {wrong}")


def bind_text(action: Callable[[], T], text: str, source: SparkSource, kind: str) -> T:
    """The action's result; what Spark says about the user's SQL, in one line without data."""
    try:
        return action()
    except Exception as error:
        said = about_sql(str(error).partition(" SQLSTATE")[0])
    if said.startswith("[UNRESOLVED_COLUMN"):
        said = f"it names a column that {source.what} does not have"
        said += "" if source.names is None else f"; the columns are {column_list(source.names)}"
    raise InputError(f"{title_of(kind, text)} cannot be used: {said}")
