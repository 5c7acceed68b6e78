"""The noise stage on Spark's executors: true counts meet noise where they are counted.

All of it is decided on the driver: the shared draw, the noise of the offset and a secret key. An executor makes
the noise of a count from that key, the item and the count, so that a task that is run again makes the same noise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.engines.spark_engine import on_executors
from dphist.releases.columns import Columns
from dphist.releases.pyarrow_kind import KIND
from dphist.releases.request import Request
from dphist.releases.stage import Begun
from dphist.sampling.draws import Repeatable
from dphist.sampling.keyed import DIGEST_BYTES, KEY_BYTES, KeyedWords
from dphist.sampling.tap import ClosedTap, Tap
from dphist.types import Plan

_WORD: Final = 8
# What Python tells Spark is logged under these names.
_TALK: Final = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")
ROWS_A_PART: Final = 1 << 20


@dataclass(frozen=True)
class ExecutorNoise:
    """Noise and threshold for the batches of any executor; called by Spark, as often as it likes."""

    begun: Begun
    keys: tuple[bytes, ...]  # one for the counts and one for each of the sums: all noise is independent
    plan: Plan
    items: tuple[str, ...]
    columns: Columns

    def __repr__(self) -> str:
        return "ExecutorNoise(secret)"

    @property
    def __name__(self) -> str:
        """What Spark calls it in its plans."""
        return "dphist_noise"

    def __call__(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Of batches with items, counts and digests the released rows, in the columns of the output."""
        for batch in batches:
            yield self.released(batch)

    def released(self, batch: Any) -> Any:
        """The released rows of one batch. An item is in one row of all batches, as the histogram has it."""
        import pyarrow as pa

        *columns, digests = batch.columns
        counts, *sums = (KIND.numbers(column) for column in columns[len(self.items) :])
        rows = _rows_of_bytes(digests)
        # Another sum of the same item and count gets other noise: were the data to change between two attempts
        # at a task, the same noise on both would give away their difference.
        marked = [rows, *(_marked(rows, column) for column in sums)]
        draws = [Repeatable(KeyedWords(key, one)) for key, one in zip(self.keys, marked, strict=True)]
        found = self.begun.release(counts, sums, draws)
        taken = [KIND.take(column, found.index) for column in columns[: len(self.items)]]
        numbers = self.columns.numbers(found.values, found.sums, self.plan)
        arrays = [*taken, *(KIND.column(column, name) for name, column in numbers.items())]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.items, *numbers])


def executor_noise(begun: Begun, plan: Plan, request: Request, tap: Tap) -> ExecutorNoise:
    """What the executors get, with fresh keys. Their session has no tap: fresh noise would not be repeatable."""
    keys = tuple(tap.words(KEY_BYTES // _WORD).tobytes() for _ in range(1 + len(plan.sums)))
    closed = replace(begun, session=replace(begun.session, tap=ClosedTap()))  # type: ignore[type-var]
    names = tuple(column.name for column in request.columns())
    return ExecutorNoise(closed, keys, plan, names, Columns.of(request))


def released_frame(histogram: Any, noise: ExecutorNoise) -> Any:
    """The released rows as a frame of Spark, not yet computed."""
    from pyspark.sql.types import DoubleType, LongType, StructField, StructType

    fields = dict(zip(histogram.frame.columns, histogram.frame.schema.fields, strict=True))
    items = [
        StructField(name, fields[own].dataType) for name, own in zip(noise.items, histogram.items(), strict=True)
    ]
    numbers = [
        StructField(name, LongType() if column.dtype.kind == "i" else DoubleType())
        for name, column in noise.columns.numbers(
            np.empty(0), [np.empty(0)] * len(noise.plan.sums), noise.plan
        ).items()
    ]
    return on_executors(histogram.with_digests(), noise, StructType([*items, *numbers]))


@contextmanager
def unlogged() -> Iterator[None]:
    """Meanwhile this thread's talk with Spark is not logged: at the level DEBUG the key would be in it."""
    own = threading.get_ident()

    def others(_record: logging.LogRecord) -> bool:
        return threading.get_ident() != own

    loggers = [logging.getLogger(name) for name in _TALK]
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(others)


def without_traces(frame: Any) -> Any:
    """The released rows, in parts and in an order by their own values: nothing tells how they were counted.

    They are computed for this. How many parts there are depends on their number: Spark's own choice would depend
    on the sizes of what it shuffled, and so on how many items were counted but not released.
    """
    numbered = frame.toDF(*(f"n{place}" for place in range(len(frame.columns))))
    parts = max(1, -(-numbered.count() // ROWS_A_PART))
    rows = numbered.repartition(parts, *numbered.columns).sortWithinPartitions(*numbered.columns)
    return rows.toDF(*frame.columns)


def _marked(rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Digests that differ where the numbers do: a part of each is combined with its number."""
    words = rows.copy().view("<u8")
    words[:, 0] ^= numbers.astype(np.uint64)
    return words.view(np.uint8)


def _rows_of_bytes(digests: Any) -> Any:
    """A column of digests as rows of bytes; the cast makes sure of their length."""
    import pyarrow as pa

    plain = digests.cast(pa.binary(DIGEST_BYTES))
    whole = np.frombuffer(plain.buffers()[1] or b"", dtype=np.uint8)
    start = plain.offset * DIGEST_BYTES
    return whole[start : start + len(plain) * DIGEST_BYTES].reshape(-1, DIGEST_BYTES)
