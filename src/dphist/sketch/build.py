"""Sketches of whole inputs: with DuckDB, from a stream of Arrow batches, or on Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dphist.certificate.request import Column
from dphist.counting.columns import arrow_numbers, as_numpy, one_chunk
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.streams import read_once
from dphist.counting.task import Choice, Counted, Events, Resources, Task, is_frame
from dphist.errors import InvalidParameter, positive_count
from dphist.sketch.counters import keep_largest
from dphist.sketch.items import ItemKind, plain_column, plainest
from dphist.sketch.misra_gries import MisraGries
from dphist.spark.session import Cluster, require_pyspark, session_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# All items of a user count, so no secret is needed to choose some.
NO_CHOICE: Final = Choice(bytes(32))
# Counts held beyond twice the size of the sketch before the smallest are dropped.
SPARE: Final = 1 << 16
PARTITIONS: Final = 64


def build(
    input: object,
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
    """The sketch of user events: a path, a glob, a folder, the address of a database, a frame or an Arrow stream.

    All users of the input are one batch, so the order of the rows does not matter, and only the (k+1)-th largest
    count is subtracted. Pass all files with events of the same users to one build.

    >>> import dphist, pandas
    >>> log = pandas.DataFrame({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> sketch = dphist.sketch.build(log, 100, user="user", item="query")
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_nonzero=100)
    >>> print(sketch.release(plan, seed=1).to_pandas())
      query  count
    0   tea  599.0
    1  milk  269.0

    Args:
        input: The events, in any form that `dphist.release` reads.
        k: Largest number of counters.
        user: Column that identifies the user.
        item: Column to count, or a list, as for `dphist.release`.
        table: Table of the input database.
        query: Query for the input database.
        where: Count only events that satisfy this SQL condition.
        input_format: Format of the files, if it does not follow from their names.
        types: "fixed" keeps the types of a frame, as for `dphist.release`.
        memory: Memory limit for counting, such as 2GB.
        threads: Threads used for counting.
        temp_folder: Folder for data that exceeds the memory limit.
        progress: Called with the share of the work that is done.
    """
    size = positive_count("k", k)
    events = events_of(input, user, item, types, table=table, query=query, where=where, file_format=input_format)
    resources = Resources(memory, threads, None if temp_folder is None else Path(temp_folder))
    # The engine must not compute the rank: NaN, which is not an item, would take one.
    engine = DuckDBEngine(resources)
    with read_once(events) as given, engine.count(Task(given, NO_CHOICE), progress) as counted:
        return _largest(counted, tuple(column.name for column in events.items), size)


def events_of(
    input: object,
    user: str,
    item: str | Sequence[str],
    types: str | None,
    *,
    table: str | None = None,
    query: str | None = None,
    where: str | None = None,
    file_format: str | None = None,
) -> Events:
    columns = tuple(Column.parse(text) for text in names_of(item))
    check_user(user, [column.source for column in columns])
    if types not in (None, "text", "fixed"):
        raise InvalidParameter(f"types must be 'text' or 'fixed', not {types!r}")
    if types == "text" and not is_frame(input):
        raise InvalidParameter("types='text' is for frames: files have the types they declare")
    as_text = is_frame(input) and types != "fixed"
    return Events(input, user, columns, table, query, where, file_format, as_text=as_text)


def names_of(item: object) -> tuple[str, ...]:
    names = (item,) if isinstance(item, str) else item
    if not isinstance(names, (list, tuple)) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidParameter(f"item must be the name of a column, or a list of names, not {item!r}")
    return tuple(names)


def check_user(user: str, items: Sequence[str]) -> None:
    if user in items:
        raise InvalidParameter(f"the column {user!r} cannot be both the user and the item")


def _largest(counted: Counted, names: tuple[str, ...], k: int) -> MisraGries:
    """The sketch of a complete histogram, holding only counts that can still matter."""
    types = tuple(plainest(field.type) for field in list(counted.schema)[:-1])
    labels = [*map(str, range(len(types))), "count"]
    held = pa.table([pa.array([], kind) for kind in (*types, pa.int64())], names=labels)
    floor = 0
    for batch in counted.batches():
        *items, counts = batch.columns
        keep = arrow_numbers(np.flatnonzero(np.from_dlpack(counts) > floor))
        plain = [plain_column(column.take(keep), kind) for column, kind in zip(items, types, strict=True)]
        # Values that are not items are null now, and take no rank.
        held = pa.concat_tables([held, pa.table([*plain, counts.take(keep)], names=labels).drop_null()])
        if held.num_rows > 2 * k + SPARE:
            # Only the k + 1 largest so far, and counts above the least of them, can change the result.
            largest = pc.select_k_unstable(held.column("count"), k + 1, [("count", "descending")])
            held = held.take(largest).combine_chunks()
            floor = held.column("count")[-1].as_py()
    *columns, counts = (one_chunk(column) for column in held.columns)
    counters = keep_largest(tuple(columns), as_numpy(counts), k, 0)
    return MisraGries.of_counters(k, ItemKind(names, types), counters)


def build_batches(
    batches: Iterable[pa.RecordBatch],
    k: int,
    *,
    user: str,
    item: str | Sequence[str],
    schema: pa.Schema,
    names: Sequence[str] | None = None,
) -> MisraGries:
    """The sketch of a stream of Arrow batches, such as a partition of a distributed table.

    All rows are one batch of users, in any order, and are held in memory until the stream ends.

    No user of the stream may be in another sketch that this one is merged with, and which stream a user is in must
    not depend on other users: partition by a hash of the user, into a number of partitions that is fixed
    beforehand and never adapted to the data.

    >>> import pyarrow, dphist
    >>> log = pyarrow.table({"user": range(900), "query": ["tea"] * 600 + ["milk"] * 300})
    >>> sketch = dphist.sketch.build_batches(log.to_batches(), 100, user="user", item="query", schema=log.schema)
    >>> print(sketch)
    MisraGries(k=100)

    Args:
        batches: The record batches.
        k: Largest number of counters.
        user: Column that identifies the user.
        item: Column to count, or a list.
        schema: The schema of the batches, because a partition may have none.
        names: Names of the item's columns in the sketch, if they differ from those in the batches.
    """
    columns = names_of(item)
    if not isinstance(schema, pa.Schema):
        raise InvalidParameter(f"schema must be that of the Arrow batches, not {type(schema).__name__}")
    check_user(user, columns)
    types = {name: plainest(_type_of(schema, name, "the schema")) for name in (user, *columns)}
    called = columns if names is None else (names,) if isinstance(names, str) else tuple(names)
    if len(called) != len(columns):
        raise InvalidParameter(f"the item has {len(columns)} columns, but {len(called)} names are given for them")
    sketch = MisraGries(k, ItemKind(called, tuple(types[name] for name in columns)))
    tables = [_typed_columns(batch, types) for batch in batches]
    if tables:
        rows = pa.concat_tables(tables)
        sketch.add_plain(rows.column(user), tuple(rows.column(name) for name in columns))
    return sketch


def _type_of(schema: pa.Schema, name: str, where: str) -> pa.DataType:
    if not isinstance(name, str) or schema.names.count(name) != 1:
        raise InvalidParameter(f"{where} has no column {name!r}, or several of this name")
    kind: pa.DataType = schema.field(name).type
    return kind


def _typed_columns(batch: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.Table:
    """The columns of these names in these types. A column of the null type has no values."""
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidParameter(f"batches must be Arrow record batches, not {type(batch).__name__}")
    for name, kind in types.items():
        given = _type_of(batch.schema, name, "a batch")
        if not pa.types.is_null(given) and plainest(given) != kind:
            raise InvalidParameter(f"a batch has the type {given} in {name!r}, but the schema has {kind}")
    return pa.table({name: plain_column(batch.column(name), kind) for name, kind in types.items()})


@dataclass(frozen=True)
class PartitionSketch:
    """On an executor: the sketch, as bytes, of a partition that has all rows of its users."""

    k: int
    schema: pa.Schema
    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Spark may repeat a partition: the same rows give the same sketch.
        items = [name for name in self.schema.names if name != "u"]
        # Times come in the time zone of the session; the instants are the same.
        rows = (batch.cast(self.schema) for batch in batches)
        sketch = build_batches(rows, self.k, user="u", item=items, schema=self.schema, names=self.names)
        yield pa.RecordBatch.from_pydict({"sketch": [sketch.to_bytes()]})


def build_on_spark(
    frame: DataFrame | str | os.PathLike[str],
    k: int,
    *,
    user: str,
    item: str | Sequence[str],
    where: str | None = None,
    types: str | None = None,
    partitions: int = PARTITIONS,
) -> MisraGries:
    """The sketch of a Spark DataFrame, or of a path that the active session reads.

    A hash assigns each user to one of `partitions`, independently of other users. Executors sketch each partition,
    and all sketches are merged at once here, so their order does not matter. More partitions need less memory on
    the executors, and lose more: each may subtract up to its (user, item) pairs divided by k + 1. An example is in
    docs/sketches.md.

    Args:
        frame: A Spark DataFrame, or a path.
        k: Largest number of counters.
        user: Column that identifies the user.
        item: Column to count, or a list, as for `dphist.release`.
        where: Count only events that satisfy this SQL condition.
        types: "fixed" keeps the types of a DataFrame, as for `dphist.release`.
        partitions: Number of partitions, fixed before the data is seen.
    """
    size, parts = positive_count("k", k), positive_count("partitions", partitions)
    events = events_of(frame, user, item, types, where=where)
    require_pyspark()
    from pyspark.sql.pandas.types import to_arrow_schema

    from dphist.spark.counting import check_executors, pairs_of, run
    from dphist.spark.dataframes import on_executors

    with session_for(frame, Resources(), Cluster()) as session:
        pairs, _, what = pairs_of(session, events)
        check_executors(session)
        schema = to_arrow_schema(pairs.schema, timezone="UTC")
        task = PartitionSketch(size, schema, tuple(column.name for column in events.items))
        # If the number of partitions followed the data, a user could change where others go.
        placed = pairs.repartition(parts, "u")
        rows = run(on_executors(placed, task, "sketch binary").collect, what)
    return MisraGries.merge(*(MisraGries.from_bytes(bytes(row[0]), k=size) for row in rows))
