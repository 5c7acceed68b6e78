"""Sketches of whole inputs: with DuckDB, from a stream of Arrow batches, or on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.spark_session import Cluster, require_pyspark, session_for
from dphist.counting.task import Choice, Column, Counted, Events, Resources, Task, is_frame
from dphist.errors import InvalidParameter, positive_count
from dphist.releasing.result import arrow_numbers
from dphist.sketch.counters import keep_largest, numbers, rank_value
from dphist.sketch.items import ItemKind, plain_column, plainest
from dphist.sketch.misra_gries import MisraGries

# All items of a user count, so there is nothing to choose.
NO_CHOICE: Final = Choice(bytes(32))
# Counts beyond twice the size of the sketch that are held before the smallest are dropped.
SPARE: Final = 1 << 16
PARTITIONS: Final = 64


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

    All users of the input are one batch, so the order of the rows does not matter, and only the (k+1)-th largest
    count is subtracted. DuckDB counts within its memory and spills to a private folder. Give all files that have
    events of the same users in one build. The columns of a frame are read as text unless `types="fixed"`, as in
    `dphist.release`.
    """
    size = positive_count("k", k)
    events = events_of(input, user, item, types, table=table, query=query, where=where, file_format=input_format)
    resources = Resources(memory, threads, None if temp_folder is None else Path(temp_folder))
    # The engine computes no rank: NaN, which is not an item, would take one.
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
    """Raise `InvalidParameter` if the user's column is also one of the item's."""
    if user in items:
        raise InvalidParameter(f"the column {user!r} cannot be both the user and the item")


def _largest(counted: Counted, names: tuple[str, ...], k: int) -> MisraGries:
    """The counts above the (k+1)-th largest, minus that count. Only counts that can matter are held."""
    types = tuple(plainest(field.type) for field in list(counted.schema)[:-1])
    labels = [str(place) for place in range(len(types) + 1)]
    held = pa.table([pa.array([], kind) for kind in (*types, pa.int64())], names=labels)
    floor = 0
    for batch in counted.batches():
        *items, counts = batch.columns
        keep = arrow_numbers(np.flatnonzero(np.from_dlpack(counts) > floor))
        above = [plain_column(c.take(keep), kind) for c, kind in zip(items, types, strict=True)]
        # Values that are not items are null now, and take no rank.
        part = pa.table([*above, counts.take(keep)], names=labels).drop_null()
        held = pa.concat_tables([held, part])
        if held.num_rows > 2 * k + SPARE:
            # The k + 1 largest so far: a count at or below the last of them can no longer change the result.
            most = np.argpartition(numbers(held.columns[-1]), -(k + 1))[-(k + 1) :]
            held = held.take(arrow_numbers(most)).combine_chunks()
            floor = rank_value(numbers(held.columns[-1]), k)
    columns = tuple(column.combine_chunks() for column in held.columns[:-1])
    found = keep_largest(columns, numbers(held.columns[-1]), k, 0)
    return MisraGries.of_counters(k, ItemKind(names, types), found)


def build_batches(
    batches: Iterable[Any],
    k: int,
    *,
    user: str,
    item: str | Sequence[str],
    schema: Any,
    names: Sequence[str] | None = None,
) -> MisraGries:
    """The sketch of a stream of Arrow batches, cut anywhere: a partition of a distributed table, for example.

    All rows are one batch of users, in any order, and are held in memory until the last has come.

    The users of the stream must be in no other sketch that this one is merged with, and which stream a user is
    in must not depend on other users: partition by a hash of the user, into a number of partitions that is fixed
    beforehand and never changed to fit the data. `schema` is that of the batches, because a partition may have
    none; `names` are those of the item's columns in the sketch, if they differ from those in the batches.
    """
    own = names_of(item)
    wanted = _wanted_types(schema, user, own)
    called = own if names is None else (names,) if isinstance(names, str) else tuple(names)
    if len(called) != len(own):
        raise InvalidParameter(f"the item has {len(own)} columns, and {len(called)} names are given for them")
    sketch = MisraGries(k, ItemKind(called, tuple(wanted[name] for name in own)))
    tables = [_wanted_columns(batch, wanted) for batch in batches]
    if tables:
        rows = pa.concat_tables(tables)
        sketch.add_plain(rows.column(user), tuple(rows.column(name) for name in own))
    return sketch


def _wanted_types(schema: Any, user: str, own: tuple[str, ...]) -> dict[str, Any]:
    """The plainest types of the columns that are needed, by name."""
    if not isinstance(schema, pa.Schema):
        raise InvalidParameter(f"schema must be that of the Arrow batches, not {type(schema).__name__}")
    check_user(user, own)
    wanted = {}
    for name in (user, *own):
        if not isinstance(name, str) or schema.names.count(name) != 1:
            raise InvalidParameter(f"the batches have no column {name!r}, or several")
        wanted[name] = plainest(schema.field(name).type)
    return wanted


def _wanted_columns(batch: Any, wanted: dict[str, Any]) -> Any:
    """A table of these columns in these types. A column of the null type has no values."""
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidParameter(f"batches must be record batches of Arrow, not {type(batch).__name__}")
    columns = {}
    for name, kind in wanted.items():
        if batch.schema.names.count(name) != 1:
            raise InvalidParameter(f"a batch has no column {name!r}, or several, and the schema has one")
        found = batch.column(name)
        if not pa.types.is_null(found.type) and plainest(found.type) != kind:
            raise InvalidParameter(f"a batch has the type {found.type} in {name!r}, and the schema has {kind}")
        columns[name] = plain_column(found, kind)
    return pa.table(columns)


@dataclass(frozen=True)
class PartitionSketch:
    """The bytes of the sketch of a partition, which has all rows of its users."""

    k: int
    schema: Any
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Called by Spark for each partition, perhaps several times: the same rows give the same sketch."""
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
    """The sketch of a Spark DataFrame, or of a path that its active session reads.

    A hash assigns each user to one of `partitions`, independently of other users. Executors sketch each partition
    with at most k counters, and all sketches are merged at once here, whatever the order in which they come. More
    partitions need less memory on the executors, and lose more: each may subtract up to its (user, item) pairs
    divided by k + 1. The columns of a DataFrame are read as text unless `types="fixed"`.
    """
    size, parts = positive_count("k", k), positive_count("partitions", partitions)
    events = events_of(frame, user, item, types, where=where)
    require_pyspark()
    from pyspark.sql.pandas.types import to_arrow_schema

    from dphist.counting.spark import on_executors, pairs_of, rehearse, run

    with session_for(frame, Resources(), Cluster()) as session:
        pairs, _, what = pairs_of(session, events)
        rehearse(session)
        schema = to_arrow_schema(pairs.schema, timezone="UTC")
        task = PartitionSketch(size, schema, tuple(column.name for column in events.items))
        # A fixed number of partitions: one that fits the data would let a user change where others go.
        placed = pairs.repartition(parts, "u")
        rows = run(on_executors(placed, task, "sketch binary").collect, what)
    return MisraGries.merge(*(MisraGries.from_bytes(bytes(row[0]), k=size) for row in rows))
