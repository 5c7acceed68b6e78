"""Files without types on Spark: CSV and JSON lines. All of their values are text; see `text_files` for why."""

from __future__ import annotations

from typing import Any

from dphist.engines.failures import attempt
from dphist.engines.sources import demand
from dphist.engines.text_files import MARK, delimiter_of, header_of, start_of
from dphist.errors import InputError

LINE = "value"


def csv_frame(session: Any, paths: list[str], delimiter: str | None, root: str | None, values: list[str]) -> Any:
    """CSV with a header line, of which no value decides about another.

    A file is read from end to end by one task: parts that begin in the middle would have to guess whether they are
    within quotes. Many files are read side by side.
    """
    from pyspark.sql import functions as sql

    if not paths[0].startswith("file://"):
        reader = _csv_options(session.read, delimiter or ",").option("header", "true")
        return _without_blanks(reader.option("enforceSchema", "false").csv(paths))
    plain = [_unescaped(path) for path in paths]
    full = [(path, name) for path, name in zip(paths, plain, strict=True) if _holds_anything(name)]
    if not full:
        raise InputError("the input is empty: it has not even columns")
    found = delimiter or delimiter_of(full[0][1])
    groups: dict[tuple[str, ...], list[str]] = {}
    for path, name in full:
        groups.setdefault(header_of(name, found), []).append(path)
    for names, some in groups.items():
        if root is None:  # folders may add columns of their own
            demand(f"the file {_unescaped(some[0])!r}", names, values)
    frames = [_csv_group(session, some, names, found, root) for names, some in groups.items()]
    shared = [name for name in frames[0].columns if all(frame.columns.count(name) == 1 for frame in frames)]
    if len(frames) == 1:
        return frames[0]
    picked = [frame.select(*(sql.col(f"`{n.replace('`', '``')}`") for n in shared)) for frame in frames]
    joined = picked[0]
    for frame in picked[1:]:
        joined = joined.unionByName(frame)
    return joined


def _csv_options(reader: Any, delimiter: str) -> Any:
    options = {
        "sep": delimiter, "quote": '"', "escape": '"', "multiLine": "true", "mode": "DROPMALFORMED",
        "inferSchema": "false", "nullValue": "", "emptyValue": "", "encoding": "UTF-8", "comment": "",
        "maxCharsPerColumn": "-1", "unescapedQuoteHandling": "STOP_AT_DELIMITER",
    }  # fmt: skip
    return reader.options(**options)


def _csv_group(session: Any, paths: list[str], names: tuple[str, ...], delimiter: str, root: str | None) -> Any:
    """Files with one header line, by the places of their columns: names may be odd, or differ in case alone."""
    from pyspark.sql.types import StringType, StructField, StructType

    places = StructType([StructField(f"c{k}", StringType()) for k in range(len(names))])
    reader = _csv_options(session.read.schema(places), delimiter).option("header", "true")
    if root is not None:
        reader = reader.option("basePath", root)
    frame = _without_blanks(reader.csv(paths))
    return frame.toDF(*names, *frame.columns[len(names) :])


def _without_blanks(frame: Any) -> Any:
    """An empty field, quoted or not, is NULL."""
    from pyspark.sql import functions as sql

    numbered = frame.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    cells = [sql.nullif(numbered[name], sql.lit("")) for name in numbered.columns]
    return numbered.select(*cells).toDF(*frame.columns)


def _unescaped(path: str) -> str:
    import re

    return re.sub(r"\\(.)", r"\1", path.removeprefix("file://"))


def _holds_anything(path: str) -> bool:
    def first() -> bytes:
        with open(path, "rb") as file:
            return file.read(1)

    return bool(attempt(first, f"the file {path!r}"))


def lines_frame(session: Any, paths: list[str], kind: str, root: str | None, what: str) -> Any:
    """Lines of text, one object each, under the name `value`, with the columns that folders' names add."""
    if paths[0].startswith("file://"):
        for path in map(_unescaped, paths):
            start = attempt(lambda path=path: start_of(path), f"the file {path!r}")  # type: ignore[misc]
            if start.startswith(MARK):
                raise InputError(
                    f"the file {path!r} begins with a mark of byte order, which JSON may not; remove it"
                )
            if kind == "json" and start.startswith(b"["):
                raise InputError(
                    f"the file {path!r} is a JSON array, which Spark cannot read in parts: give lines"
                )
    reader = session.read if root is None else session.read.option("basePath", root)
    return attempt(lambda: reader.text(paths), what)
