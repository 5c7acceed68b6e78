"""From `Events` to rows: which source it is, which columns are wanted, and whether the condition is one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dphist.engines.conditions import bind, columns_of
from dphist.engines.databases import database_kind, duckdb_source
from dphist.engines.files import file_source, files_of
from dphist.engines.frames import frame_source
from dphist.engines.postgres import postgres_source
from dphist.engines.sources import Opened, Source, require
from dphist.engines.sql import Rows, as_text
from dphist.engines.sqlite_file import sqlite_source
from dphist.engines.value_sql import no_number
from dphist.engines.value_sql import number as number_of
from dphist.errors import InputError
from dphist.types import Events
from dphist.types.events import is_frame


def source_of(connection: Any, events: Events, label: str) -> Source:
    """The source that the events are in."""
    source = events.source
    if isinstance(source, str) and re.match(r"postgres(ql)?://", source):
        return postgres_source(source, events)
    if isinstance(source, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", source):
        scheme = source.split("://", 1)[0]
        raise InputError(f"events cannot be read from {scheme}:// addresses; download the files first")
    if is_frame(source):
        no_database(events, "data in memory")
        return frame_source(source, as_text=events.as_text)
    files, kind = files_of(source, events.file_format)
    if kind not in ("duckdb", "sqlite", "db"):
        no_database(events, "files")
        return file_source(connection, files, kind)
    if len(files) > 1:
        raise InputError(f"a database must be a single file, and {len(files)} were given")
    if database_kind(files[0], kind) == "sqlite":
        return sqlite_source(files[0], events)
    return duckdb_source(connection, files[0], events, label)


def no_database(events: Events, kind: str) -> None:
    """One sentence if a table or a query is asked of what has none."""
    if events.table is not None or events.query is not None:
        given = "table" if events.table is not None else "query"
        raise InputError(f"a {given} is for databases; to choose rows of {kind} use a condition (where)")


def opened_rows(
    connection: Any,
    events: Events,
    label: str,
    probe: bool,
    with_user: bool = True,
    summed: Sequence[str] = (),
) -> tuple[Rows, Opened, str]:
    """The rows of the events (user first, then the item's columns), and what they are called in a sentence.

    A public list has no user. The columns that are `summed` must be of types that have numbers.
    """
    source = source_of(connection, events, label)
    values = ([events.user] if with_user else []) + [column.source for column in events.items]
    numbers = list(dict.fromkeys(summed))
    require(source, [*values, *numbers])
    named = [] if events.where is None else columns_of(connection, events.where, source.names)
    require(source, named)
    opened = source.open(connection, list(dict.fromkeys([*values, *named, *numbers])), label, probe)
    read = {column: _read(events, *opened.columns[column]) for column in (*values, *named)}
    if events.where is not None:
        bind(connection, events.where, {column: read[column][1] for column in named}, source.names)
    rows = Rows(
        opened.relation,
        tuple((*read[column], column) for column in values),
        tuple((read[column][0], column) for column in named),
        events.where,
        with_user,
        tuple((*opened.columns[column], column) for column in numbers),
    )
    rows.types()
    for number in rows.numbers:
        number_of(*number)
        if events.as_text and number[1] == "BOOLEAN":
            raise no_number(number[2])
    return rows, opened, source.what


def _read(events: Events, expression: str, kind: str) -> tuple[str, str]:
    """A column as it is counted, and its type; lists and structures become text later, as JSON."""
    text = as_text(expression, kind) if events.as_text else expression
    return (text, "VARCHAR") if text != expression else (expression, kind)
