"""Sketches of whole inputs: by the embedded engine, from a stream of Arrow batches, or on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.spark_session import Cluster, require_pyspark, session_for
from dphist.counting.task import Choice, Column, Counted, Events, Resources, Task, is_frame
from dphist.errors import InvalidParameter, positive_count
from dphist.sketch.misra_gries import MisraGries
from dphist.sketch.values import (
    IntArray,
    ItemKind,
    arrow_numbers,
    keep_largest,
    plain_column,
    plainest,
    rank_value,
)

# No user's items are left out, so that there is nothing to choose.
NO_CHOICE: Final = Choice(bytes(32))
# Counts beyond twice the size of the sketch that are held before the smallest are dropped.
SPARE: Final = 1 << 16
EMPTY: Final[IntArray] = np.empty(0, dtype=np.int64)


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
    types: str | None = None,
    memory: str | None = None,
    threads: int | None = None,
    temp_folder: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] | None = None,
) -> MisraGries:
    """The sketch of user events: a path, a glob, a folder, the address of a database, or a frame.

    All users of the input are one batch, so that it does not matter where their rows are and in which order, and
    nothing but the (k+1)-th largest count is subtracted. The engine counts within its memory and spills to a
    private folder. A user whose events are in several files must be in one build: give all of these files as the
    input. The columns of a frame are read as text unless `types="fixed"`, as `dphist.release` does.
    """
    size = positive_count("k", k)
    events = events_of(input, user, item, types, table=table, query=query, where=where, file_format=input_format)
    resources = Resources(memory, threads, None if temp_folder is None else Path(temp_folder))
    # No rank is asked for: NaN, which is not an item, would take one.
    with DuckDBEngine(resources).count(Task(events, NO_CHOICE), progress) as counted:
        return _largest(counted, tuple(column.name for column in events.items), size)


def events_of(input: Any, user: str, item: Any, types: str | None, **more: Any) -> Events:
    """The events to read. The columns of frames are text unless their types are fixed."""
    columns = tuple(Column.parse(text) for text in names_of(item))
    check_user(user, [column.source for column in columns])
    if types not in (None, "text", "fixed"):
        raise InvalidParameter(f"types must be 'text' or 'fixed', not {types!r}")
    if types == "text" and not is_frame(input):
        raise InvalidParameter("types='text' is for frames: files have the types they declare")
    return Events(input, user, columns, as_text=is_frame(input) and types != "fixed", **more)


def names_of(item: Any) -> tuple[str, ...]:
    """One name or several."""
    names = (item,) if isinstance(item, str) else item
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidParameter(f"item must be the name of a column, or a list of names, not {item!r}")
    return tuple(names)


def check_user(user: Any, items: Sequence[str]) -> None:
    """Raise `InvalidParameter` if the user's column is one of the item's."""
    if user in items:
        raise InvalidParameter(f"the column {user!r} cannot be both the user and the item")


def _largest(counted: Counted, names: tuple[str, ...], k: int) -> MisraGries:
    """The counts above the (k+1)-th largest, less that; of all others only as many are held as can matter."""
    types = tuple(plainest(field.type) for field in list(counted.schema)[:-1])
    labels = [str(place) for place in range(len(types) + 1)]
    held = pa.table([pa.array([], kind) for kind in (*types, pa.int64())], names=labels)
    floor = 0
    for batch in counted.batches():
        *items, counts = batch.columns
        keep = arrow_numbers(np.flatnonzero(np.from_dlpack(counts) > floor))
        above = [plain_column(c.take(keep), kind) for c, kind in zip(items, types, strict=True)]
        # A value that is not an item is null by now, and takes no rank.
        part = pa.table([*above, counts.take(keep)], names=labels).drop_null()
        held = pa.concat_tables([held, part])
        if held.num_rows > 2 * k + SPARE:
            # The k + 1 largest so far: nothing at or below the last of them can change it any more.
            most = np.argpartition(_counts(held), -(k + 1))[-(k + 1) :]
            held = held.take(arrow_numbers(most)).combine_chunks()
            floor = rank_value(_counts(held), k)
    columns = tuple(column.combine_chunks() for column in held.columns[:-1])
    return MisraGries.of_counters(k, ItemKind(names, types), keep_largest(columns, _counts(held), k, 0))


def _counts(held: Any) -> IntArray:
    return np.concatenate([np.from_dlpack(chunk) for chunk in held.columns[-1].chunks if len(chunk)] or [EMPTY])


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

    All rows are one batch of users, in any order, and are held in memory until the last has come. With `group`,
    a column of whole numbers by which the rows are in order, each value of it is a batch of its own and only its
    rows are held; rows without a value are left out. All rows of a user must have the same value, and it must not
    depend on other users: a hash of the user modulo a fixed number, for example.

    The users of the stream must be in no other sketch that this one is merged with, and which stream a user is in
    must not depend on other users: partition by a hash of the user, into a number of partitions that is fixed
    beforehand and never changed to fit the data. `schema` is that of the batches, for a partition may have none;
    `names` are what the item's columns are called in the sketch, if not as in the batches.
    """
    own = names_of(item)
    wanted = _wanted(schema, user, own, group)
    called = own if names is None else (names,) if isinstance(names, str) else tuple(names)
    if len(called) != len(own):
        raise InvalidParameter(f"the item has {len(own)} columns, and {len(called)} names are given for them")
    sketch = MisraGries(k, ItemKind(called, tuple(wanted[name] for name in own)))
    for rows in _groups(_wanted_batches(batches, wanted), group):
        sketch.update_columns(rows.column(user), tuple(rows.column(name) for name in own))
    return sketch


def _wanted(schema: Any, user: str, own: tuple[str, ...], group: str | None) -> dict[str, Any]:
    """The plainest types of the columns that are needed, by their names."""
    if not isinstance(schema, pa.Schema):
        raise InvalidParameter(f"schema must be that of the Arrow batches, not {type(schema).__name__}")
    check_user(user, own)
    wanted = {}
    for name in (user, *own, *([] if group is None else [group])):
        if not isinstance(name, str) or schema.names.count(name) != 1:
            raise InvalidParameter(f"the batches have no column {name!r}, or several")
        kind = schema.field(name).type
        if name == group and not pa.types.is_integer(kind):
            raise InvalidParameter(f"the group's column must be of whole numbers, and {group!r} is of {kind}")
        wanted[name] = plainest(kind)
    return wanted


def _wanted_batches(batches: Iterable[Any], wanted: Mapping[str, Any]) -> Iterator[Any]:
    """Batches of the wanted columns alone, in these types."""
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidParameter(f"batches must be record batches of Arrow, not {type(batch).__name__}")
        columns = [_column(batch, name, kind) for name, kind in wanted.items()]
        yield pa.RecordBatch.from_arrays(columns, names=list(wanted))


def _column(batch: Any, name: str, kind: Any) -> Any:
    """A column of a batch in its plainest type. Where Arrow found no type there are no values."""
    if batch.schema.names.count(name) != 1:
        raise InvalidParameter(f"a batch has no column {name!r}, or several, and the schema has one")
    found = batch.column(name)
    if pa.types.is_null(found.type):
        return pa.nulls(len(found), kind)
    if plainest(found.type) != kind:
        raise InvalidParameter(f"a batch has the type {found.type} in {name!r}, and the schema has {kind}")
    return (found.dictionary_decode() if pa.types.is_dictionary(found.type) else found).cast(kind, safe=False)


def _groups(batches: Iterator[Any], group: str | None) -> Iterator[Any]:
    """Tables of the rows that belong together: all of them, or those with one value of the group's column."""
    held: list[Any] = []
    last: int | None = None
    for whole in batches:
        if group is None:
            held.append(whole)
            continue
        batch = whole.filter(whole.column(group).is_valid())
        if batch.num_rows == 0:
            continue
        values = np.from_dlpack(batch.column(group))
        # Compared and never subtracted: the difference of two numbers of 64 bits may not be one.
        if (values[1:] < values[:-1]).any() or (last is not None and values[0] < last):
            raise InvalidParameter("the rows must be in order of the group's column, and they are not")
        inside = (np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()
        for start, stop in pairwise([0, *inside, len(values)]):
            if held and values[start] != last:
                yield pa.Table.from_batches(held)
                held = []
            held.append(batch.slice(start, stop - start))
            last = int(values[start])
    if held:
        yield pa.Table.from_batches(held)


PARTITIONS: Final = 64


@dataclass(frozen=True)
class PartitionSketch:
    """Of the rows of a partition, in which every user is whole or not at all, the bytes of one sketch."""

    k: int
    schema: Any
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Called by Spark for each partition, as often as it likes: the same rows give the same sketch."""
        import pyarrow as pa

        own = [name for name in self.schema.names if name != "u"]
        # Times come in the zone of the user's session; the instants are the same.
        alike = (batch.cast(self.schema) for batch in batches)
        sketch = build_batches(alike, self.k, user="u", item=own, schema=self.schema, names=self.names)
        yield pa.RecordBatch.from_pydict({"sketch": [sketch.to_bytes()]})


def build_on_spark(
    frame: Any,
    k: int,
    *,
    user: str,
    item: str | Sequence[str],
    where: str | None = None,
    types: str | None = None,
    partitions: int = PARTITIONS,
) -> MisraGries:
    """The sketch of a DataFrame of Spark, or of a path that its active session reads.

    Users go to one of `partitions` by a hash, which does not depend on other users; the executors make a sketch of
    each, at most k counters of each come here, and all are merged at once: nothing depends on the order in which
    they come. More partitions need less memory on the executors, and lose
    more: each may subtract up to its (user, item) pairs divided by k + 1. The columns of a DataFrame are read as
    text unless `types="fixed"`.
    """
    size, parts = positive_count("k", k), positive_count("partitions", partitions)
    events = events_of(frame, user, item, types, where=where)
    require_pyspark()
    from dphist.counting.spark import on_executors, pairs_of, rehearse, run

    with session_for(frame, Resources(), Cluster()) as session:
        pairs, _, what = pairs_of(session, events)
        rehearse(session)
        schema = _arrow_schema(pairs)
        task = PartitionSketch(size, schema, tuple(column.name for column in events.items))
        # A fixed number of partitions: one that fits the data would let a user decide where others go.
        placed = pairs.repartition(parts, "u")
        rows = run(on_executors(placed, task, "sketch binary").collect, what)
    return MisraGries.merge(*(MisraGries.from_bytes(bytes(row[0]), k=size) for row in rows))


def _arrow_schema(frame: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")
