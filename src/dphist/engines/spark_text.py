"""Files without types on Spark: CSV and JSON lines. All of their values are text; see `text_files` for why.

It is as the embedded engine has it, but for this. CSV: a row with the character U+FFFD is left out, for Spark puts
it where there was no UTF-8, and so is a row with too many fields; quotes out of place are read in another way;
files that are not on this machine have commas between their fields, or tabs. JSON: numbers with a fraction or an
exponent are written as Java does (1.5E7, and Infinity where one is too large); half of a surrogate pair is a
question mark; of a key that a row has twice the last one counts; a line may be longer than 2 MB; a line with a
comma before the end of an object is left out, and a second object on a line is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dphist.engines.failures import attempt
from dphist.engines.files import readable
from dphist.engines.sources import demand
from dphist.engines.spark_sources import SparkSource, address, by_places, folder_root, located, union
from dphist.engines.text_files import MARK, delimiter_of, header_of, lines_of, start_of
from dphist.errors import InputError

# A file is read from end to end by one task: parts that begin in the middle would have to guess whether they are
# within quotes. Many files are read side by side.
CSV: Final = {
    "quote": '"', "escape": '"', "multiLine": "true", "mode": "DROPMALFORMED", "inferSchema": "false",
    "nullValue": "", "emptyValue": "", "encoding": "UTF-8", "comment": "", "maxCharsPerColumn": "-1",
    "unescapedQuoteHandling": "STOP_AT_DELIMITER", "header": "true",
}  # fmt: skip
LOST: Final = "\ufffd"
JSON: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false"}
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
    parsed = numbered.select("*", sql.from_json(whole, keys, JSON).alias("object"))
    cells = []
    for k, name in enumerate(wanted):
        own = sql.col("object").getField(name)
        own = sql.when(own.isin(*UNREAL), sql.trim(own, sql.lit('"'))).otherwise(own)
        from_folder = [parsed[f"f{folders.index(name) + 1}"]] if name in folders else []
        cells.append(sql.coalesce(own, *from_folder).alias(f"c{k}"))
    return parsed.select(*cells)
