"""What Spark reads: its own DataFrames, Parquet, CSV and JSON lines; frames of this process are handed over.

A path that exists on this machine is a file of this machine, which every executor must see under the same name;
any other path or address is Spark's to find. Arrow files, databases and JSON arrays are read by the embedded
engine alone.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from dphist.counting.duckdb import no_database
from dphist.counting.events import FINE_LIMIT, FINE_STEPS, LONGEST_VALUE, Events, Value, is_frame
from dphist.counting.files import (
    DECIMAL,
    FORMATS,
    MARK,
    NAMES,
    NOTHING,
    common_sql_type,
    delimiter_of,
    files_of,
    header_of,
    kind_of,
    lines_of,
    readable,
    start_of,
)
from dphist.counting.frames import ArrowSource, demand, frame_source
from dphist.counting.spark_session import arrow_frame
from dphist.counting.sql import EXACT, NUMBER, no_number, refused
from dphist.counting.workspace import LONGEST, attempt, listed
from dphist.errors import InputError, is_spark_frame

# What every kind of input of Spark is made into, and the folders whose names add columns.


@dataclass(frozen=True)
class SparkSource:
    """An input: `select` gives a frame of the wanted columns under the names c0, c1, ...

    It is asked for few columns, each once, by their exact names. A probe is about types alone: it must not consume
    what can be read once. Without `names` only the rows know, and any name will do.
    """

    what: str
    names: list[str] | None
    select: Callable[[list[str], bool], Any]


def by_places(frame: Any, names: Sequence[str], wanted: list[str]) -> Any:
    """Columns c0, c1, ... of a frame, by the places of their names; Spark's own names are blind to case."""
    numbered = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    return numbered.select(*(numbered[f"n{names.index(name)}"].alias(f"c{k}") for k, name in enumerate(wanted)))


def union(frames: list[Any]) -> Any:
    """All rows of frames with the same columns."""
    return reduce(lambda one, other: one.unionAll(other), frames)


def address(path: str) -> str:
    """Of a file of this machine, for Spark. In a name nothing is a pattern: what could be one is escaped."""
    name = os.path.basename(path)
    if name.startswith(("_", ".")):
        raise InputError(f"the file {path!r} has a name that Spark takes for hidden: rename it")
    if ":" in name:
        raise InputError(f"the file {path!r} has a colon in its name, with which Spark cannot open it: rename it")
    return "file://" + re.sub(r"([\\\[\]{}*?])", r"\\\1", os.path.abspath(path))


def folder_root(files: Sequence[str], names: Sequence[str]) -> str | None:
    """The address above the folders named key=value, which add columns of text.

    None where there are none, where files differ in their keys, or where a file has a column of such a name: a
    column is never replaced silently.
    """
    folders = [Path(os.path.abspath(path)).parent.parts for path in files]
    keys = [tuple(part.partition("=")[0] for part in parts if "=" in part) for parts in folders]
    own = {name.casefold() for name in names}
    if not keys[0] or set(keys) != {keys[0]} or own & {unquote(key).casefold() for key in keys[0]}:
        return None
    roots = {parts[: next(k for k, part in enumerate(parts) if "=" in part)] for parts in folders}
    return "file://" + os.path.join(*roots.pop()) if len(roots) == 1 else None


def located(reader: Any, files: Sequence[str], names: Sequence[str]) -> Any:
    """The reader, told where the folders begin whose names are columns."""
    root = folder_root(files, names)
    return reader if root is None else reader.option("basePath", root)


# The types of Spark: in which form a column is counted, and how a value is written for a hash.

# Types of Spark that are counted as they are, with the type that DuckDB has for them.
KEPT: Final = {
    "boolean": "BOOLEAN", "tinyint": "TINYINT", "smallint": "SMALLINT", "int": "INTEGER", "bigint": "BIGINT",
    "date": "DATE", "timestamp": "TIMESTAMP WITH TIME ZONE", "timestamp_ntz": "TIMESTAMP", "binary": "BLOB",
}  # fmt: skip
FLOATS: Final = {"float": "FLOAT", "double": "DOUBLE"}
# All fields, and times to the last digit, whatever the session's zone is.
TO_JSON: Final = {
    "ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}  # fmt: skip
NESTED: Final = ("array", "struct", "map")


@dataclass(frozen=True)
class Counted:
    """A column in the form in which it is counted; `kind` is the type that DuckDB has for it."""

    column: Any
    kind: str


def counted(column: Any, kind: str, name: str, *, is_user: bool) -> Counted:
    """One form for equal values, as the embedded engine has it; types that few programs know become text."""
    from pyspark.sql import functions as sql

    if kind == "binary":
        return Counted(short(column), KEPT[kind])
    if kind in KEPT:
        return Counted(column, KEPT[kind])
    if kind.startswith("decimal("):
        return Counted(column, kind.upper())
    if kind in FLOATS:
        # Floats have two zeros and many NaNs, which engines group differently.
        plain = sql.when(column == 0, sql.lit(0.0)).when(sql.isnan(column), sql.lit(float("nan")))
        return Counted(plain.otherwise(column).cast(kind), FLOATS[kind])
    if kind.startswith((*NESTED, "variant")):
        if is_user or kind.startswith("variant"):
            raise InputError(f"the column {name!r} holds lists or structures, which cannot be users")
        return Counted(short(text(sql.to_json(column, TO_JSON))), "VARCHAR")
    return Counted(short(text(column.cast("string"))), "VARCHAR")


def short(column: Any) -> Any:
    """A text or bytes of at most `LONGEST_VALUE` bytes; a longer one is missing, as with the embedded engine."""
    from pyspark.sql import functions as sql

    return sql.when(sql.octet_length(column) <= LONGEST_VALUE, column)


def as_text(column: Any, kind: str) -> Any:
    """The text of a value, by a rule about that value alone: see `dphist.counting.sql.as_text`."""
    from pyspark.sql import functions as sql

    exact = sql.abs(column) < sql.lit(EXACT)
    if kind in FLOATS:
        whole = sql.when(exact & (column == sql.floor(column)), column.cast("bigint").cast("string"))
        found = whole.when(exact, column.cast("string"))
        for name in ("nan", "inf", "-inf"):
            found = found.when(column == sql.lit(float(name)), sql.lit(name))
        return found
    if kind in ("bigint", "decimal(20,0)"):
        return sql.when((column > sql.lit(-EXACT)) & (column < sql.lit(EXACT)), column.cast("string"))
    if kind in ("timestamp", "timestamp_ntz"):
        # In UTC, whatever the session's zone is, and without zeros at the end of the fraction.
        local = sql.to_utc_timestamp(column, sql.current_timezone()) if kind == "timestamp" else column
        found = sql.date_format(local, "yyyy-MM-dd HH:mm:ss.SSSSSS")
        zone = sql.lit("+00" if kind == "timestamp" else "")
        return sql.concat(sql.regexp_replace(found, r"\.?0*$", ""), zone)
    if kind == "binary":
        return sql.coalesce(sql.try_validate_utf8(column.cast("string")), sql.lower(sql.hex(column)))
    return column if kind.startswith((*NESTED, "variant")) else column.cast("string")


def text(column: Any) -> Any:
    """Text as bytes have it: a collation would show one user's spelling for all; invalid UTF-8 is no text."""
    from pyspark.sql import functions as sql

    return sql.try_validate_utf8(sql.collate(column, "UTF8_BINARY"))


def written(column: Any, kind: str) -> Any:
    """A value as text, different values differently and whatever the session's settings; NULL stays NULL."""
    from pyspark.sql import functions as sql

    if kind == "binary":
        return sql.hex(column)
    if kind == "timestamp":
        return sql.unix_micros(column).cast("string")
    if kind == "date":
        return sql.unix_date(column).cast("string")
    return column.cast("string")


def length_prefixed(parts: list[Any]) -> Any:
    """Texts joined so that no two rows of texts give the same: each with its length, a missing one as a hyphen."""
    from pyspark.sql import functions as sql

    told = [
        sql.coalesce(sql.concat(sql.length(part).cast("string"), sql.lit(":"), part), sql.lit("-"))
        for part in parts
    ]
    return reduce(sql.concat, told)


def portable_order(key: bytes, user: Any, items: list[Any]) -> Any:
    """The keyed order that every engine repeats: see `dphist.counting.sql.portable_order`."""
    from pyspark.sql import functions as sql

    values = [column.cast("string") for column in (user, *items)]
    return sql.md5(sql.concat(sql.lit(key.hex() + ":"), length_prefixed(values)).cast("binary"))


def fast_order(key: bytes, user: Any, items: list[Any]) -> Any:
    """A keyed order by Spark's own hash, each value hashed from where the last one left off.

    The hash passes over missing values, so that which of them are missing is hashed too. The key stands in Spark's
    plan for whoever may read it. That is no secret given away: privacy needs the choice of a user's items to
    depend on that user alone, and it does for any key.
    """
    from pyspark.sql import functions as sql

    a, b = (int.from_bytes(key[k : k + 8], "little", signed=True) for k in (0, 8))
    missing = [column.isNull() for column in items]
    return sql.xxhash64(sql.lit(a), user, sql.lit(b), *items, *missing)


def digest(columns: list[tuple[Any, str]], count: Any) -> Any:
    """SHA-256 of an item and its count, by which a key makes the noise of this very count."""
    from pyspark.sql import functions as sql

    parts = [written(column, kind) for column, kind in columns]
    return sql.unhex(sql.sha2(length_prefixed([*parts, count.cast("string")]).cast("binary"), 256))


# The user's condition on Spark: an expression of Spark SQL about one row and nothing else.
#
# It sees the columns that it names, exactly or else without regard to case, and no others. A text that is no
# number is NULL where it is taken for one. A row on which a condition fails all the same is not taken, because an
# error would tell of that row. Functions of the user's own are refused: they can remember other rows, and fail. So
# is any condition on a frame of Spark Connect, whose server does not show what it makes of it.

# Quoted texts and names, and comments: what is in them is no SQL.
QUOTED: Final = re.compile(
    r"""'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*"|`(?:``|[^`])*`|--[^\n]*|/\*.*?\*/""", re.DOTALL
)
# A query in brackets, or a star for all columns. It could let one user decide about rows of another.
QUERY: Final = re.compile(r"\(\s*(select|with|values|table|from|map|reduce)\b|(^|[(,.])\s*\*", re.IGNORECASE)
# These are functions of Spark that need no brackets: no column of such a name would be asked for.
FUNCTIONS: Final = re.compile(r"\b(user|session_user|current_\w+|localtimestamp)\b(?!\s*\()", re.IGNORECASE)
# The first of the names of which Spark says that it does not know it.
NAME: Final = re.compile(r"`((?:[^`]|``)*)`")
WORD: Final = re.compile(r"`((?:[^`]|``)*)`|\b([^\W\d]\w*)\b")
# Expressions that Spark did not bring along itself.
FOREIGN: Final = re.compile(r"UDF|Udf|UserDefined|Hive|Reflection|ApplyFunction|VariableReference|SQLFunction")
MOST_NAMES: Final = 200


def chosen_rows(source: SparkSource, values: list[str], condition: str | None, *, probe: bool) -> Any:
    """A frame of the values c0, c1, ... in the rows that satisfy the condition; NULL is not enough."""
    if source.names is not None:
        demand(source.what, source.names, values)
    if condition is None:
        return _view(source, values, {}, "c", probe=probe)
    _check(condition)
    if not hasattr(source.select(values, True), "_jdf"):
        raise InputError("a condition is not possible through Spark Connect: filter the DataFrame before")
    own = "dphist_"
    while own in condition.casefold():  # so that it cannot name the values as we do
        own += "_"
    named = _named(source, values, condition, own)
    rows = _filtered(_view(source, values, named, own, probe=probe), condition)
    return rows.select(*(rows[f"{own}{k}"].alias(f"c{k}") for k in range(len(values))))


def _check(condition: str) -> None:
    bare = QUOTED.sub(" ", condition)
    if not condition.strip() or ";" in bare:
        raise InputError(f"the condition {condition!r} is not a condition in SQL")
    if QUERY.search(bare):
        raise InputError(f"the condition {condition!r} must be about single rows: no subqueries and no *")


def _without_texts(condition: str) -> str:
    """Without texts and comments; quoted names stay."""
    return QUOTED.sub(lambda found: found[0] if found[0].startswith("`") else " ", condition)


def _view(source: SparkSource, values: list[str], named: dict[str, str], own: str, *, probe: bool) -> Any:
    """The values as `own` 0, 1, ... and the named columns as the condition writes them, and nothing else.

    Without an alias Spark would also find the columns that these were made of.
    """
    wanted = list(dict.fromkeys([*values, *named.values()]))
    frame = source.select(wanted, probe)
    cells = [frame[f"c{wanted.index(value)}"].alias(f"{own}{k}") for k, value in enumerate(values)]
    cells += [frame[f"c{wanted.index(column)}"].alias(written) for written, column in named.items()]
    return frame.select(*cells).alias(f"{own}rows")


def _named(source: SparkSource, values: list[str], condition: str, own: str) -> dict[str, str]:
    """The columns that a condition names, by its spelling: Spark asks for one after the other until it has them.

    The condition is bound to names and types alone, so that what Spark says of it is about them.
    """
    named: dict[str, str] = {}
    for written in FUNCTIONS.findall(_without_texts(condition)):
        # In a file whose columns nobody knows a user is a column, and today is today.
        if written.casefold() in {name.casefold() for name in source.names or ["user"]}:
            named[written] = _column(source, written, named, condition)
    for written in _words(condition):
        # Columns before anything else that may have their names: variables of the session, for example.
        if written not in named and written.casefold() in {name.casefold() for name in source.names or ()}:
            named[written] = _column(source, written, named, condition)
    for _ in range(MOST_NAMES):
        try:
            rows = _filtered(_view(source, values, named, own, probe=True), condition)
            said = _objection(rows)
            asked = None
        except InputError:
            raise
        except Exception as error:
            said, asked = about(error), _asked_for(error)
        if asked is None and not said:
            return named
        if asked is None or asked in named:
            raise InputError(f"the condition {condition!r} cannot be used: {said}")
        named[asked] = _column(source, asked, named, condition)
    raise InputError(f"the condition {condition!r} cannot be used: it names more than {MOST_NAMES} columns")


def _asked_for(error: Exception) -> str | None:
    """The column that Spark does not know; of a field of a structure the structure."""
    if not str(error).startswith("[UNRESOLVED_COLUMN"):
        return None
    told: dict[str, str] = getattr(error, "getMessageParameters", dict)() or {}
    found = NAME.match(told.get("objectName", ""))
    return None if found is None else found[1].replace("``", "`")


def _column(source: SparkSource, written: str, named: dict[str, str], condition: str) -> str:
    """The column that a condition means: the exact one, or else one without regard to case, as SQL has it."""
    known = [written] if source.names is None else source.names
    alike = list(dict.fromkeys(name for name in known if name.casefold() == written.casefold()))
    matches = [written] if written in alike else alike
    if not matches:
        raise InputError(
            f"the condition {condition!r} cannot be used: it names a column that {source.what} does not have; "
            f"the columns are {listed(known)}"
        )
    others = {column for other, column in named.items() if other.casefold() == written.casefold()}
    if len({*matches, *others}) > 1:
        raise InputError(
            f"the condition {condition!r} cannot tell apart the columns {listed(sorted({*alike, *others}))}"
        )
    demand(source.what, known, matches)
    return matches[0]


def _filtered(frame: Any, condition: str) -> Any:
    """The rows that satisfy it. Where it fails it is NULL."""
    from pyspark.sql import Column
    from pyspark.sql import functions as sql

    spark = frame.sparkSession._jvm.org.apache.spark.sql
    plain = spark.classic.ExpressionUtils.expression(sql.expr(condition)._jc)
    tried = spark.catalyst.expressions.TryEval(plain)
    return frame.filter(Column(spark.classic.ExpressionUtils.column(tried)))


def _objection(rows: Any) -> str:
    """What is wrong with a condition that Spark understands; nothing, if it is of the row alone and stays so.

    A task that is run again would see other rows otherwise.
    """
    plan = rows._jdf.queryExecution().analyzed()
    if plan.nodeName() != "Filter" or not plan.subqueries().isEmpty():
        return "it must be about the columns of one row alone"
    kinds = {str(node.get("class", "")).rpartition(".")[2] for node in json.loads(plan.condition().toJSON())}
    if any(FOREIGN.search(kind) for kind in kinds):
        return "functions and variables of your own cannot be in it: filter the DataFrame before"
    if not plan.condition().deterministic():
        return "it must give the same for the same row, whenever it is asked"
    return ""


def _words(condition: str) -> list[str]:
    """What may be a name in a condition, as it is written."""
    found = WORD.findall(_without_texts(condition))
    return list(dict.fromkeys(quoted.replace("``", "`") or plain for quoted, plain in found))


def about(error: Exception) -> str:
    """The first line of what Spark says about an expression, which was bound to names and types alone."""
    line = str(error).strip().split("\n", 1)[0].split(" SQLSTATE", 1)[0]
    line = re.sub(r"\s+", " ", line).rstrip(".; ")
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


# Parquet on Spark: files of this machine by their schemas, whose types meet as in `grouped_files`.
#
# Times are cut to microseconds, and those of a day are text, for Spark has no others.

# Whole numbers by what they can hold; the last is what Spark reads numbers of 64 bits without a sign as.
WHOLE: Final = ("tinyint", "smallint", "int", "bigint", "decimal(20,0)")
UNKNOWN: Final = "{what} cannot be read: it is damaged, or has a column of a type that Spark does not know"


@dataclass(frozen=True)
class Group:
    """Files with the same columns: their frame, its names, and the types they have in Arrow, if any."""

    file: str
    frame: Any
    names: list[str]
    arrow: dict[str, str]

    def column(self, name: str) -> Any:
        """A column of its frame in a type that is counted."""
        from pyspark.sql import functions as sql

        column = self.frame[f"n{self.names.index(name)}"]
        if self.arrow.get(name) == "null":
            return sql.lit(None)
        if self.arrow.get(name, "").startswith("timestamp[ns"):
            # Which Spark reads as numbers.
            moment = sql.timestamp_micros(sql.call_function("div", column, sql.lit(1000)))
            return moment if "tz=" in self.arrow[name] else moment.cast("timestamp_ntz")
        return column

    def kind(self, name: str) -> tuple[str, str]:
        """The type that Spark has for a column, and the one that DuckDB has."""
        kind = str(self.frame.select(self.column(name)).dtypes[0][1])
        if self.arrow.get(name) == "null":
            return kind, NOTHING
        known = "UBIGINT" if self.arrow.get(name) == "uint64" else {**KEPT, **FLOATS}.get(kind, kind)
        return kind, known.upper()


def parquet_source(session: Any, files: list[str], what: str) -> SparkSource:
    """Parquet files of this machine."""
    import pyarrow.parquet as pq

    if not readable(files):
        raise InputError(f"{what} is empty: it has not even columns")
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for path in files:
        schema = attempt(lambda path=path: pq.read_schema(path), f"the file {path!r}")  # type: ignore[misc]
        for entry in schema:
            if str(entry.type).startswith("decimal256"):
                raise InputError(f"the column {entry.name!r} of {path!r} has decimals of more than 38 digits")
        alike.setdefault(tuple((entry.name, str(entry.type)) for entry in schema), []).append(path)
    groups = [
        attempt(lambda some=some, header=header: _group(session, some, header), f"the file {some[0]!r}", UNKNOWN)  # type: ignore[misc]
        for header, some in alike.items()
    ]
    return SparkSource(what, groups[0].names, lambda wanted, _probe: _selected(groups, wanted, what))


def _group(session: Any, files: list[str], header: tuple[tuple[str, str], ...]) -> Group:
    names = [name for name, _ in header]
    frame = located(session.read, files, names).parquet(*(address(path) for path in files))
    if frame.columns[: len(names)] != names:
        raise ValueError("Spark reads other columns")
    numbered = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    return Group(files[0], numbered, list(frame.columns), dict(header))


def _selected(groups: list[Group], wanted: list[str], what: str) -> Any:
    for group in groups:
        demand(f"the file {group.file!r}", group.names, wanted)
    targets = []
    for name in wanted:
        kinds = [group.kind(name) for group in groups]
        common_sql_type(what, name, [known for _, known in kinds])
        targets.append(one_type([kind for kind, known in kinds if known != NOTHING]))
    return union([
        group.frame.select(*(
            group.column(name).cast(target).alias(f"c{k}")
            for k, (name, target) in enumerate(zip(wanted, targets, strict=True))
        ))
        for group in groups
    ])  # fmt: skip


def one_type(kinds: list[str]) -> str:
    """The type that holds all values of types that can be joined; text where there can be no value at all."""
    different = list(dict.fromkeys(kinds))
    if len(different) <= 1:
        return (different or ["string"])[0]
    if set(different) <= set(WHOLE):
        return max(different, key=WHOLE.index)
    if set(different) <= set(FLOATS):
        return "double"
    found = [DECIMAL.fullmatch(kind.upper()) for kind in different]
    sizes = [(int(one[1]) - int(one[2]), int(one[2])) for one in found if one is not None]
    whole, fraction = max(n for n, _ in sizes), max(n for _, n in sizes)
    return f"decimal({whole + fraction},{fraction})"


def far_parquet_source(session: Any, places: list[str], what: str) -> SparkSource:
    """Parquet of other machines; columns that differ between files must have one type."""
    frame = session.read.option("mergeSchema", "true").parquet(*places)
    names = list(frame.columns)
    return SparkSource(what, names, lambda wanted, _probe: by_places(frame, names, wanted))


# Files without types on Spark: CSV and JSON lines. All of their values are text; see `text_files` for why.
#
# It is as the embedded engine has it, but for this. CSV: a row with the character U+FFFD is left out, for Spark
# puts it where there was no UTF-8, and so is a row with too many fields; quotes out of place are read in another
# way; files that are not on this machine have commas between their fields, or tabs. JSON: numbers with a fraction
# or an exponent are written as Java does (1.5E7, and Infinity where one is too large); half of a surrogate pair is
# a question mark; of a key that a row has twice the last one counts; a line may be longer than 2 MB; a line with a
# comma before the end of an object is left out, and a second object on a line is passed over.

# A file is read from end to end by one task: parts that begin in the middle would have to guess whether they are
# within quotes. Many files are read side by side.
CSV: Final = {
    "quote": '"', "escape": '"', "multiLine": "true", "mode": "DROPMALFORMED", "inferSchema": "false",
    "nullValue": "", "emptyValue": "", "encoding": "UTF-8", "comment": "", "maxCharsPerColumn": "-1",
    "unescapedQuoteHandling": "STOP_AT_DELIMITER", "header": "true",
}  # fmt: skip
LOST: Final = "\ufffd"
FROM_JSON: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}
# What is no number of JSON, and yet often written, comes from Spark in quotes.
UNREAL: Final = ('"NaN"', '"Infinity"', '"-Infinity"')


def csv_source(session: Any, files: list[str], delimiter: str | None, what: str) -> SparkSource:
    """CSV files of this machine, by their header lines. The delimiter is that of the first file."""
    full = readable(files)
    if not full:
        raise InputError(f"{what} is empty: it has not even columns")
    found = delimiter or attempt(lambda: delimiter_of(full[0]), f"the file {full[0]!r}")
    groups: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for path in full:
        groups.setdefault((header_of(path, found), line_end(path)), []).append(path)
    parts = [
        (some, attempt(lambda some=some, names=names, end=end: _csv_group(session, some, names, found, end), what))  # type: ignore[misc]
        for (names, end), some in groups.items()
    ]

    def select(wanted: list[str], _probe: bool) -> Any:
        for some, (_, names) in parts:
            demand(f"the file {some[0]!r}", names, wanted)
        return union([_text(by_places(frame, names, wanted)) for _, (frame, names) in parts])

    return SparkSource(what, parts[0][1][1], select)


def line_end(path: str) -> str:
    """What ends the header line, and so all lines; what is before a line feed is taken off later."""
    with lines_of(path) as lines:
        return "\r" if lines.readline().endswith("\r") else "\n"


def _csv_group(
    session: Any, files: list[str], names: Sequence[str], delimiter: str, end: str
) -> tuple[Any, list[str]]:
    """Files with one header line, by the places of their columns: names may be odd, or differ in case alone."""
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [f"c{k}" for k in range(len(names))]
    schema = StructType([StructField(field, StringType()) for field in fields])
    reader = session.read.schema(schema).options(**CSV, sep=delimiter, lineSep=end)
    frame = located(reader, files, [*names, *fields]).csv([address(path) for path in files])
    return _ended(frame, len(fields) - 1), [*names, *frame.columns[len(names) :]]


def far_csv_source(session: Any, places: list[str], delimiter: str | None, what: str) -> SparkSource:
    """CSV files of other machines, whose header lines Spark reads."""
    frame = session.read.options(**CSV, sep=delimiter or ",", lineSep="\n", enforceSchema="false").csv(places)
    names = [name.removesuffix("\r") for name in frame.columns]
    rows = _ended(frame, len(names) - 1)
    return SparkSource(what, names, lambda wanted, _probe: _text(by_places(rows, names, wanted)))


def _ended(frame: Any, last: int) -> Any:
    """The columns n0, n1, ...; of the last one of a line what is before its line feed is no part."""
    from pyspark.sql import functions as sql

    rows = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    return rows.withColumn(f"n{last}", sql.regexp_replace(rows[f"n{last}"], r"\r+\z", ""))


def _text(rows: Any) -> Any:
    """An empty field, quoted or not, is NULL; rows in which a byte was no UTF-8 are left out."""
    from pyspark.sql import functions as sql

    valid = rows.where(~sql.contains(sql.concat_ws("", *rows.columns), sql.lit(LOST)))
    return valid.select(*(sql.nullif(valid[name], sql.lit("")).alias(name) for name in valid.columns))


def json_source(session: Any, files: list[str], kind: str, what: str) -> SparkSource:
    """Lines of JSON in files of this machine. What a row has itself comes before what its folder is called."""
    for path in files:
        start = attempt(lambda path=path: start_of(path), f"the file {path!r}")  # type: ignore[misc]
        if start.startswith(MARK):
            raise InputError(f"the file {path!r} begins with a mark of byte order, which JSON may not; remove it")
        if kind == "json" and start.startswith(b"["):
            raise InputError(
                f"the file {path!r} is a JSON array, which Spark cannot read in parts: give lines, or use the "
                "engine duckdb"
            )
    if folder_root(files, []) != folder_root(files, ["value"]):
        raise InputError(
            f"{what} has folders named value=..., which Spark cannot tell from the lines: rename them"
        )
    reader = located(session.read, files, [])
    return lines_source(attempt(lambda: reader.text([address(path) for path in files]), what), what)


def lines_source(lines: Any, what: str) -> SparkSource:
    """Lines of text, one object each: every key is a column, whether any row has it or not."""
    return SparkSource(what, None, lambda wanted, _probe: _objects(lines, wanted))


def _objects(lines: Any, wanted: list[str]) -> Any:
    from pyspark.sql import functions as sql
    from pyspark.sql.types import StringType, StructField, StructType

    folders = lines.columns[1:]
    numbered = lines.toDF(*(f"f{k}" for k in range(len(lines.columns))))
    line = sql.try_validate_utf8(sql.trim(numbered["f0"], sql.lit(" \t\r")))
    # Spark would take an array of one object for the object, and not look beyond its end.
    whole = sql.when(sql.startswith(line, sql.lit("{")) & sql.endswith(line, sql.lit("}")), line)
    keys = StructType([StructField(name, StringType()) for name in wanted])
    parsed = numbered.select("*", sql.from_json(whole, keys, FROM_JSON).alias("object"))
    cells = []
    for k, name in enumerate(wanted):
        own = sql.col("object").getField(name)
        own = sql.when(own.isin(*UNREAL), sql.trim(own, sql.lit('"'))).otherwise(own)
        from_folder = [parsed[f"f{folders.index(name) + 1}"]] if name in folders else []
        cells.append(sql.coalesce(own, *from_folder).alias(f"c{k}"))
    return parsed.select(*cells)


# Sums on Spark: rows in whole fine steps, and a user's sum of them in steps. See `types.Value` and `value_sql`.
#
# A sum of fine steps is kept in two halves, each of which Spark adds up quickly. It is exact for up to 2^38 rows
# of one user and item; beyond that it wraps around, which no order of rows changes and no other user.

NUMBERS: Final = frozenset({"boolean", "tinyint", "smallint", "int", "bigint", *FLOATS})
LOW_BITS: Final = 25
LOW: Final = (1 << LOW_BITS) - 1
# Upper halves beyond this are outside of all bounds, whatever the lower half is.
MOST: Final = FINE_LIMIT >> (LOW_BITS - 1)


def number(column: Any, kind: str, name: str) -> Any:
    """The number of a value as the nearest double; NULL if it is none. An error if the type has no numbers."""
    from pyspark.sql import functions as sql

    if kind in NUMBERS or kind.startswith("decimal("):
        return column.cast("double")
    if kind == "void":
        return sql.lit(None).cast("double")
    if not kind.startswith(("string", "char", "varchar")):
        raise refused(name)
    written = text(column.cast("string"))
    return sql.when(written.rlike(NUMBER), written.try_cast("double"))


def fine_steps(x: Any, value: Value) -> Any:
    """A row's number in fine steps."""
    from pyspark.sql import functions as sql

    scaled = x * sql.lit(value.scale) + sql.lit(0.5)
    bounded = sql.least(sql.greatest(scaled, sql.lit(float(-FINE_LIMIT))), sql.lit(float(FINE_LIMIT)))
    # What is no number is sorted out first: `least` and `greatest` pass over NULL. Within bounds no cast fails.
    return sql.when(x.isNull() | sql.isnan(x), sql.lit(0)).otherwise(sql.floor(bounded).cast("bigint"))


def own_sums(pairs: Any, keys: list[str], values: tuple[Value, ...]) -> Any:
    """Each pair of the keys once, with the user's own sums of fine steps f0, f1, ... in steps, as v0, v1, ..."""
    from pyspark.sql import functions as sql

    halves = []
    for k in range(len(values)):
        fine = pairs[f"f{k}"]
        halves.append(sql.sum(sql.shiftright(fine, LOW_BITS)).alias(f"upper{k}"))
        halves.append(sql.sum(fine.bitwiseAND(sql.lit(LOW))).alias(f"lower{k}"))
    found = pairs.groupBy(*keys).agg(*halves)
    own = [steps(found[f"upper{k}"], found[f"lower{k}"], value).alias(f"v{k}") for k, value in enumerate(values)]
    return found.select(*keys, *own)


def steps(upper: Any, lower: Any, value: Value) -> Any:
    """A user's sum of fine steps for an item, by its two halves, clamped and in steps from the lower bound."""
    from pyspark.sql import functions as sql

    carried = upper + sql.shiftright(lower, LOW_BITS)
    near = sql.least(sql.greatest(carried, sql.lit(-MOST)), sql.lit(MOST))
    fine = near * sql.lit(1 << LOW_BITS) + lower.bitwiseAND(sql.lit(LOW))
    lowest, highest = value.lowest, value.lowest + 2 * FINE_STEPS
    clamped = sql.least(sql.greatest(fine, sql.lit(lowest)), sql.lit(highest))
    half = sql.lit(1 << (value.fine_bits - 1))
    return sql.shiftright(clamped - sql.lit(lowest) + half, value.fine_bits)


T = TypeVar("T")

FRAME: Final = "the Spark DataFrame"
ADDRESS: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
READ: Final = ("parquet", "csv", "tsv", "json", "jsonl")


def chosen_columns(
    session: Any, events: Events, summed: Sequence[str] = (), *, probe: bool = False
) -> tuple[Any, str]:
    """A DataFrame of the rows that satisfy the condition: the user, the item's columns, and those that are summed.

    They are called c0, c1, ... in this order. Also what the input is called in a sentence. A probe has the types
    of the columns, and its rows are nobody's business.
    """
    source = source_of(session, events)
    if events.as_text:
        source = as_texts(source, summed)
    values = [events.user, *(column.source for column in events.items), *summed]
    return chosen_rows(source, values, events.where, probe=probe), source.what


def as_texts(source: SparkSource, summed: Sequence[str]) -> SparkSource:
    """The source with text in all columns. What is summed must hold numbers, or text."""
    if source.names is not None:
        demand(source.what, source.names, summed)

    def select(wanted: list[str], probe: bool) -> Any:
        frame = source.select(wanted, probe)
        for name, (place, kind) in zip(wanted, frame.dtypes, strict=True):
            if name in summed:
                number(frame[place], kind, name)
                if kind == "boolean":
                    raise no_number(name)
        return frame.select(*(as_text(frame[name], kind).alias(name) for name, kind in frame.dtypes))

    return replace(source, select=select)


def source_of(session: Any, events: Events) -> SparkSource:
    """The source that the events are in."""
    source = events.source
    if is_spark_frame(source):
        no_database(events, "a DataFrame")
        return frame_of_spark(source)
    if is_frame(source):
        no_database(events, "data in memory")
        return handed_over(session, source, as_text=events.as_text)
    far = far_places(source)
    if not far:
        files, kind = files_of(source, events.file_format)
        what = (
            f"the file {files[0]!r}" if len(files) == 1 else f"the input of {len(files)} files ({files[0]!r} ...)"
        )
        check_kind(events, kind, what)
        return here(session, files, kind, what)
    what = f"the input {without_password(far[0])!r}"
    what = what if len(far) == 1 else f"the input of {len(far)} files ({without_password(far[0])!r} ...)"
    kind = far_kind(far, events.file_format)
    check_kind(events, kind, what)
    return found(lambda: elsewhere(session, far, kind, what), what, far[0])


def check_kind(events: Events, kind: str, what: str) -> None:
    """One sentence about files that Spark does not read."""
    if kind not in READ:
        raise InputError(
            f"{what} is not what Spark reads: give Parquet, CSV or JSON lines, or a DataFrame of Spark; the "
            "engine duckdb reads Arrow files and databases"
        )
    no_database(events, "files")


def here(session: Any, files: list[str], kind: str, what: str) -> SparkSource:
    """Files of this machine."""
    if kind == "parquet":
        return parquet_source(session, files, what)
    if kind in ("json", "jsonl"):
        return json_source(session, files, kind, what)
    return csv_source(session, files, "\t" if kind == "tsv" else None, what)


def elsewhere(session: Any, places: list[str], kind: str, what: str) -> SparkSource:
    """Files that Spark finds."""
    if kind == "parquet":
        return far_parquet_source(session, places, what)
    if kind in ("json", "jsonl"):
        return lines_source(session.read.text(places), what)
    return far_csv_source(session, places, "\t" if kind == "tsv" else None, what)


def frame_of_spark(frame: Any) -> SparkSource:
    """A DataFrame of the user's."""
    names = list(frame.columns)
    return SparkSource(FRAME, names, lambda wanted, _probe: by_places(frame, names, wanted))


def handed_over(session: Any, data: Any, *, as_text: bool) -> SparkSource:
    """A frame of this process."""
    source = frame_source(data, as_text=as_text)
    assert isinstance(source, ArrowSource)

    def select(wanted: list[str], probe: bool) -> Any:
        names = [f"c{k}" for k in range(len(wanted))]

        def made() -> Any:
            schema = source.schema(wanted)  # also says whether a reader was read before
            return arrow_frame(session, schema.empty_table() if probe else source.data(wanted), names)

        return attempt(made, source.what, source.otherwise)

    return SparkSource(source.what, list(source.names), select)


def far_places(source: Any) -> list[str]:
    """Paths and addresses that are not files of this machine; none if all of them are."""
    given = source if isinstance(source, (tuple, list)) else [source]
    paths = [os.fspath(one) for one in given if isinstance(one, (str, os.PathLike))]
    if len(paths) < len(given):
        return []  # which is no list of files at all
    far = [path for path in paths if ADDRESS.match(path) or not is_here(path)]
    if any(re.match(r"postgres(ql)?://", path) for path in far):
        raise InputError("Spark does not read PostgreSQL by itself: use the engine duckdb, or spark.read.jdbc")
    if far and len(far) < len(paths):
        raise InputError("the files are partly on this machine and partly not; give files of one place")
    return far


def is_here(path: str) -> bool:
    """Whether it is a file, a folder or a pattern of this machine."""
    return os.path.exists(path) or (glob.has_magic(path) and bool(glob.glob(path, recursive=True)))


def far_kind(given: list[str], file_format: str | None) -> str:
    """The format of files that Spark finds."""
    if file_format is not None:
        kind = NAMES.get(file_format.lower().lstrip("."))
        if kind is None:
            raise InputError(f"the format {file_format!r} is not known; known formats are {', '.join(NAMES)}")
        return kind
    if len(given) == 1 and not ADDRESS.match(given[0]) and Path(given[0].lower()).suffix not in FORMATS:
        raise InputError(f"the file {given[0]!r} does not exist here, and its name does not tell Spark the format")
    return kind_of(given[0].rstrip("/"))


def without_password(place: str) -> str:
    """An address for a sentence."""
    return re.sub(r"://[^/]*@", "://", place)


def found(action: Callable[[], T], what: str, place: str) -> T:
    """The action's result; one sentence if Spark does not find the place, or cannot read what is there."""
    missing = f"no file matches {place!r}" if glob.has_magic(place) else f"{what} does not exist"
    scheme = ADDRESS.match(place)
    try:
        return action()
    except InputError:
        raise
    except Exception as error:
        text = str(error)
    if "PATH_NOT_FOUND" in text:
        raise InputError(missing)
    if scheme is not None and "No FileSystem for scheme" in text:
        raise InputError(
            f"Spark cannot read {scheme[1]}:// addresses as it is set up here: it needs a package for them, "
            "such as by --spark-conf spark.jars.packages=..."
        )
    raise InputError(f"{what} cannot be read: Spark does not reach it, or it is damaged or of another kind")
