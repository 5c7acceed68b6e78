"""Sketches of whole inputs: files, databases and frames by the embedded engine, and streams of Arrow batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dphist.engines.duckdb_engine import DuckDBEngine
from dphist.engines.protocol import Choice, Counted, Resources, Task
from dphist.errors import InvalidParameter
from dphist.sketch.counters import arrow_numbers, reduced
from dphist.sketch.kinds import ItemKind, plain_column, plainest
from dphist.sketch.misra_gries import MisraGries
from dphist.types import Column, Events
from dphist.types.checks import positive_count

# No user's items are left out, so that there is nothing to choose.
NO_CHOICE: Final = Choice(bytes(32))
# The group of rows that have none.
LEAST: Final = -(2**63)


def build(
    input: Any,
    k: int,
    *,
    user: str,
    item: str | Sequence[str],
    table: str | None = None,
    query: str | None = None,
    where: str | None = None,
    input_format: str | None = None,
    memory: str | None = None,
    threads: int | None = None,
    temp_folder: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> MisraGries:
    """The sketch of user events: a path, a glob, a folder, the address of a database, or a frame.

    All users of the input are one batch, so that it does not matter where their rows are, and nothing but the
    (k+1)-th largest count is subtracted. The engine counts within its memory and spills to a private folder. A
    user whose events are in several files must be in one build: give all of these files as the input.
    """
    size = positive_count("k", k)
    columns = columns_of(item)
    if user in {column.source for column in columns}:
        raise InvalidParameter(f"the column {user!r} cannot be both the user and the item")
    events = Events(input, user, columns, table, query, where, input_format)
    resources = Resources(memory, threads, None if temp_folder is None else Path(temp_folder))
    task = Task(events, NO_CHOICE, rank=size + 1)
    with DuckDBEngine(resources).count(task, progress) as counted:
        return _largest(counted, tuple(column.name for column in columns), size)


def columns_of(item: str | Sequence[str]) -> tuple[Column, ...]:
    """The item's columns. NAME=COLUMN reads one column and gives it another name."""
    return tuple(Column.told(text) for text in ((item,) if isinstance(item, str) else item))


def _largest(counted: Counted, names: tuple[str, ...], k: int) -> MisraGries:
    """The counts above the (k+1)-th largest, less that; never more than k of them are kept in memory."""
    floor = counted.at_rank
    types = tuple(plainest(field.type) for field in list(counted.schema)[:-1])
    names_and_count = [str(place) for place in range(len(types) + 1)]
    parts = [pa.table([pa.array([], kind) for kind in (*types, pa.int64())], names=names_and_count)]
    for batch in counted.batches():
        *items, counts = batch.columns
        keep = arrow_numbers(np.flatnonzero(np.from_dlpack(counts) > floor))
        if len(keep):
            above = [plain_column(c.take(keep), kind) for c, kind in zip(items, types, strict=True)]
            parts.append(pa.table([*above, counts.take(keep)], names=names_and_count))
    # What is no item of its type is null by now.
    *columns, above_floor = pa.concat_tables(parts).drop_null().combine_chunks().columns
    numbers = np.array(above_floor.to_pylist(), dtype=np.int64) - floor
    items = tuple(column.combine_chunks() for column in columns)
    return MisraGries.of_counters(k, ItemKind(names, types), reduced(items, numbers, k, floor))


def build_batches(
    batches: Iterable[Any],
    k: int,
    *,
    user: str,
    item: str | Sequence[str],
    schema: Any,
    group: str | None = None,
    names: Sequence[str] | None = None,
) -> MisraGries:
    """The sketch of a stream of Arrow batches, cut anywhere: a partition of a distributed table, for example.

    All rows are one batch of users, and are held in memory until the last has come. With `group`, a column of
    whole numbers by which the rows are in order, each value of it is a batch of its own and only its rows are
    held. All rows of a user must have the same value, and it must not depend on other users: a hash of the user
    modulo a fixed number, for example.

    The users of the stream must be in no other sketch that this one is merged with, and which stream a user is in
    must not depend on other users: partition by a hash of the user, into a number of partitions that is fixed
    beforehand and never changed to fit the data. `schema` is that of the batches, for a partition may have none;
    `names` are what the item's columns are called in the sketch, if not as in the batches.
    """
    own = (item,) if isinstance(item, str) else tuple(item)
    wanted = [user, *own, *([] if group is None else [group])]
    for name in wanted:
        if schema.names.count(name) != 1:
            raise InvalidParameter(f"the batches have no column {name!r}, or several")
    kinds = [schema.field(name).type for name in own]
    sketch = MisraGries(k, pa.schema(list(zip(own if names is None else names, kinds, strict=True))))
    for rows in _groups((batch.select(wanted) for batch in batches), group):
        users, *items = (rows.column(name) for name in (user, *own))
        sketch.update_columns(users, tuple(items) if len(items) > 1 else items[0])
    return sketch


def _groups(batches: Iterator[Any], group: str | None) -> Iterator[Any]:
    """Tables of the rows that belong together."""
    held: list[Any] = []
    last: int | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        cuts: list[int] = []
        start = 0
        if group is not None:
            cuts, last = _cuts(batch.column(group), last)
        for cut in cuts:
            held += [batch.slice(start, cut - start)] if cut > start else []
            yield pa.Table.from_batches(held)
            held, start = [], cut
        held.append(batch.slice(start))
    if held:
        yield pa.Table.from_batches(held)


def _cuts(numbers: Any, before: int | None) -> tuple[list[int], int]:
    """The rows at which another value of the group begins, and the last value. Values must not fall."""
    values = np.array(numbers.cast(pa.int64()).fill_null(LEAST).to_pylist(), dtype=np.int64)
    steps = np.diff(values, prepend=values[0] if before is None else before)
    if (np.diff(values) < 0).any() or (before is not None and values[0] < before):
        raise InvalidParameter("the rows must be in order of the group's column, and they are not")
    return np.flatnonzero(steps).tolist(), int(values[-1])
