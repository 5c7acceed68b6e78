"""What Spark reads: its own DataFrames, Parquet, CSV and JSON lines; frames of this process are handed over.

A path that exists on this machine is a file of this machine; any other path or address is Spark's to find.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

from dphist.engines.failures import attempt
from dphist.engines.files import FORMATS, NAMES, files_of, kind_of
from dphist.engines.frames import frame_source
from dphist.engines.inputs import no_database
from dphist.engines.sources import ArrowSource, demand
from dphist.engines.spark_arrow import spark_ready
from dphist.engines.spark_conditions import filtered, filtered_objects
from dphist.engines.spark_session import is_spark_frame
from dphist.engines.spark_text import csv_frame, lines_frame
from dphist.errors import InputError
from dphist.types import Events

FRAME: Final = "the Spark DataFrame"
ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
READ: Final = ("parquet", "csv", "tsv", "json", "jsonl")


def chosen_columns(session: Any, events: Events, *, with_user: bool = True) -> tuple[Any, str]:
    """A DataFrame of the rows that satisfy the condition: the user (if there is one) and the item's columns.

    They are called c0, c1, ... in this order. Also what the input is called in a sentence.
    """
    values = ([events.user] if with_user else []) + [column.source for column in events.items]
    source = events.source
    if is_spark_frame(source):
        no_database(events, "a DataFrame")
        return picked(source, FRAME, values, events.where), FRAME
    if not isinstance(source, (str, os.PathLike, tuple, list)):
        no_database(events, "data in memory")
        return handed_over(session, source, values, events.where)
    return from_files(session, events, values)


def picked(frame: Any, what: str, values: list[str], where: str | None) -> Any:
    """The columns by their exact names; Spark's own names are blind to case."""
    demand(what, frame.columns, values)
    rows = frame if where is None else filtered(frame, where, what)
    numbered = rows.toDF(*(f"n{k}" for k in range(len(frame.columns))))
    places = [frame.columns.index(name) for name in values]
    return numbered.select(*(numbered[f"n{place}"].alias(f"c{k}") for k, place in enumerate(places)))


def handed_over(session: Any, data: Any, values: list[str], where: str | None) -> tuple[Any, str]:
    """A frame of this process, as Spark has it. A condition may name any of its columns."""
    source = frame_source(data)
    assert isinstance(source, ArrowSource)
    demand(source.what, source.names, values)
    wanted = list(dict.fromkeys(values)) if where is None else list(dict.fromkeys([*values, *source.names]))

    def table() -> Any:
        return spark_ready(source.data(wanted), wanted)

    frame = session.createDataFrame(attempt(table, source.what, source.otherwise))
    return picked(frame, source.what, values, where), source.what


def from_files(session: Any, events: Events, values: list[str]) -> tuple[Any, str]:
    """The columns of files that Spark reads."""
    paths, kind, what, root = places(events)
    if kind not in READ:
        raise InputError(
            f"{what} is not what Spark reads: give Parquet, CSV or JSON lines, or a DataFrame of Spark; the "
            "engine duckdb reads Arrow files and databases"
        )
    no_database(events, "files")
    if kind in ("json", "jsonl"):
        objects = lines_frame(session, paths, kind, root, what)
        return filtered_objects(objects, values, events.where, what), what
    if kind == "parquet":
        frame = attempt(lambda: parquet_frame(session, paths, root), what)
    else:
        frame = attempt(lambda: csv_frame(session, paths, "\t" if kind == "tsv" else None, root, values), what)
    return picked(frame, what, values, events.where), what


def places(events: Events) -> tuple[list[str], str, str, str | None]:
    """Addresses for Spark, the format, what they are in a sentence, and the folder that they are all in."""
    source = events.source
    given = [os.fspath(one) for one in (source if isinstance(source, (tuple, list)) else [source])]
    remote = [one for one in given if ADDRESS.match(one) or not _is_here(one)]
    if remote and len(remote) < len(given):
        raise InputError("the files are partly on this machine and partly not; give files of one place")
    what = f"the input {given[0]!r}" if len(given) == 1 else f"the input of {len(given)} files ({given[0]!r} ...)"
    if remote:
        if any(re.match(r"postgres(ql)?://", one) for one in given):
            raise InputError("Spark does not read PostgreSQL by itself: use the engine duckdb, or spark.read.jdbc")
        return given, _remote_kind(given, events.file_format), what, None
    files, kind = files_of(source, events.file_format)
    root = os.path.abspath(given[0]) if len(given) == 1 and os.path.isdir(given[0]) else None
    return [local(path) for path in files], kind, what, None if root is None else local(root)


def _is_here(path: str) -> bool:
    import glob

    return os.path.exists(path) or (glob.has_magic(path) and bool(glob.glob(path, recursive=True)))


def _remote_kind(given: list[str], file_format: str | None) -> str:
    if file_format is not None:
        kind = NAMES.get(file_format.lower().lstrip("."))
        if kind is None:
            raise InputError(f"the format {file_format!r} is not known; known formats are {', '.join(NAMES)}")
        return kind
    if len(given) == 1 and not ADDRESS.match(given[0]) and Path(given[0].lower()).suffix not in FORMATS:
        raise InputError(f"the file {given[0]!r} does not exist here, and its name does not tell Spark the format")
    return kind_of(given[0].rstrip("/"))


def local(path: str) -> str:
    """The address of a file of this machine. In a name nothing is a pattern: what could be one is escaped."""
    return "file://" + re.sub(r"([\\\[\]{}*?])", r"\\\1", os.path.abspath(path))


def parquet_frame(session: Any, paths: list[str], root: str | None) -> Any:
    """Parquet; columns that differ between files must have one type."""
    reader = session.read.option("mergeSchema", "true")
    if root is not None:
        reader = reader.option("basePath", root)
    return reader.parquet(*paths)
