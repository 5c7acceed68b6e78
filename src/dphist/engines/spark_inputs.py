"""What Spark reads: its own DataFrames, Parquet, CSV and JSON lines; frames of this process are handed over.

A path that exists on this machine is a file of this machine, which every executor must see under the same name;
any other path or address is Spark's to find. Arrow files, databases and JSON arrays are read by the embedded
engine alone.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from dphist.engines.failures import attempt
from dphist.engines.files import FORMATS, NAMES, files_of, kind_of
from dphist.engines.frames import frame_source
from dphist.engines.inputs import no_database
from dphist.engines.sources import ArrowSource, demand
from dphist.engines.spark_arrow import arrow_frame
from dphist.engines.spark_conditions import chosen_rows
from dphist.engines.spark_parquet import far_parquet_source, parquet_source
from dphist.engines.spark_sources import SparkSource, by_places
from dphist.engines.spark_text import csv_source, far_csv_source, json_source, lines_source
from dphist.engines.spark_types import as_text
from dphist.engines.spark_values import number
from dphist.engines.value_sql import no_number
from dphist.errors import InputError
from dphist.extras import is_spark_frame
from dphist.types import Events
from dphist.types.events import is_frame

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
