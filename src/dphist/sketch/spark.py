"""A sketch of a DataFrame of Spark: one for each partition of users, where they are, merged here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dphist.engines.protocol import Resources
from dphist.engines.spark_engine import on_executors, pairs_of, rehearse, run
from dphist.engines.spark_session import Cluster, session_for
from dphist.sketch.building import build_batches, check_user, columns_of, reads_as_text
from dphist.sketch.misra_gries import MisraGries
from dphist.types import Events
from dphist.types.checks import positive_count

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
    columns = columns_of(item)
    check_user(user, [column.source for column in columns])
    events = Events(frame, user, columns, where=where, as_text=reads_as_text(frame, types))
    with session_for(frame, Resources(), Cluster()) as session:
        pairs, _, what = pairs_of(session, events)
        rehearse(session)
        schema = _arrow_schema(pairs)
        task = PartitionSketch(size, schema, tuple(column.name for column in columns))
        # A fixed number of partitions: one that fits the data would let a user decide where others go.
        placed = pairs.repartition(parts, "u")
        rows = run(on_executors(placed, task, "sketch binary").collect, what)
    return MisraGries.merge(*(MisraGries.from_bytes(bytes(row[0]), k=size) for row in rows))


def _arrow_schema(frame: Any) -> Any:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(frame.schema, timezone="UTC")
