"""A release by Spark: executors count and add noise, and only released rows come back.

The driver draws the shared noise, the noise of the offset and secret keys. Executors derive the noise of a count
from a key, the item and the count, so that a task that runs again adds the same noise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from dphist.aliases import ArrowArray
from dphist.certificate.plans import Nonzero
from dphist.counting.columns import arrow_numbers, as_numpy, one_chunk, release_order, take_rows
from dphist.counting.task import Secret
from dphist.errors import is_spark_frame
from dphist.outputs.target import Target, Written
from dphist.releasing.aggregates import Columns
from dphist.releasing.noise import Job, NoiseSession
from dphist.releasing.result import ARROW, ROWS_SHOWN, Release
from dphist.releasing.summary import Summary
from dphist.sampling.rng import DIGEST_BYTES, KEY_BYTES, ClosedRng, KeyedWords, Rng
from dphist.sampling.sampler import Repeatable
from dphist.spark.counting import SparkHistogram, run
from dphist.spark.dataframes import arrow_frame, detached, numbered, on_executors, persist
from dphist.spark.folder import Placed, read_folder, write_folder
from dphist.spark.session import is_connect, log_only

ROWS_A_PART: Final = 1 << 20
_WORD_BYTES: Final = 8
# Messages between Python and Spark are logged under these names.
_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")
# Spark's error if an executor is lost with rows that cannot be recomputed, and how often to try again.
_LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
_RETRIES: Final = 3


def release_on_spark(job: Job, histogram: SparkHistogram, target: Target | None, placed: Placed | None) -> Release:
    """Add noise on the executors.

    They also write the rows if the target is a folder. The release of a DataFrame stays on the cluster. Otherwise
    the released rows come to the driver.
    """
    request = job.request
    if job.rule is Nonzero.PROMISED and histogram.at_rank > 0:
        # An error would reveal that the guaranteed bound does not hold; an empty release reveals the least.
        histogram = replace(histogram, frame=histogram.frame.where("false"))
    session = job.begin(histogram.at_rank)
    noise = executor_noise(session, job.columns, job.names.items, job.rng)
    model = job.complete(
        Release((), np.empty(0), job.plan, job.rng.private, job.names, offset=session.noisy_offset)
    )
    with without_logging():
        frame = released_frame(histogram, noise)
        if request.top is not None and job.rule is not Nonzero.TOP_K:
            # A limit on users has replaced the top-k step: keep the largest noisy counts.
            frame = largest_rows(frame, len(noise.items), request.top)
        if target is not None and target.kind == "folder":
            written, rows = write_release_folder(
                frame, histogram.what, model, target, force=request.force, placed=placed
            )
            return with_first_rows(rows, replace(model, written=written), written.rows)
        if is_spark_frame(request.input):
            with persist(frame) as rows:
                return run(lambda: keep_on_cluster(without_traces(rows), model), histogram.what)
        return collect_release(run(frame.toArrow, histogram.what), model)


# Noise on the executors.


@dataclass(frozen=True, repr=False)
class ExecutorStep(Secret):
    """Noise for the batches of an executor, with a key for each draw. Spark may call it repeatedly."""

    keys: tuple[bytes, ...]

    @property
    def __name__(self) -> str:
        """What Spark calls it in its plans."""
        return "dphist_noise"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield self.of(batch)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        raise NotImplementedError

    def draws(self, digests: ArrowArray, numbers: Sequence[NDArray[np.int64] | None]) -> list[Repeatable]:
        """The noise of these true numbers of items; None for numbers that their digests depend on already."""
        rows = rows_of_bytes(digests)
        # If the data changed between two attempts at a task, equal noise on two different numbers would reveal
        # their difference.
        seeds = [rows if column is None else mix_numbers(rows, column) for column in numbers]
        return [Repeatable(KeyedWords(key, seed)) for key, seed in zip(self.keys, seeds, strict=True)]


@dataclass(frozen=True, repr=False)
class ExecutorNoise(ExecutorStep):
    """Adds noise and applies the threshold, with a key for the counts and one for each summed column."""

    session: NoiseSession
    items: tuple[str, ...]
    columns: Columns

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """From items, counts, sums and digests to the released rows. No item is in two rows."""
        *columns, digests = batch.columns
        counts, *sums = (as_numpy(column) for column in columns[len(self.items) :])
        released = self.session.release(counts, sums, self.draws(digests, [None, *sums]))
        items = [take_rows(column, released.index) for column in columns[: len(self.items)]]
        numbers = self.columns.numbers(released.values, released.sums, self.session.plan)
        arrays = [*items, *(arrow_numbers(column) for column in numbers.values())]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.items, *numbers])


def executor_noise(session: NoiseSession, columns: Columns, items: tuple[str, ...], rng: Rng) -> ExecutorNoise:
    """The noise for the executors, with fresh keys. It has no rng, because fresh noise would not be repeatable."""
    keys = tuple(new_key(rng) for _ in range(1 + len(session.plan.summed)))
    return ExecutorNoise(keys, replace(session, rng=ClosedRng()), items, columns)


def new_key(rng: Rng) -> bytes:
    return rng.words(KEY_BYTES // _WORD_BYTES).tobytes()


def mix_numbers(rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Digests that differ if the numbers do: a part of each is combined with its number."""
    words = rows.copy().view("<u8")
    words[:, 0] ^= numbers.astype(np.uint64)
    return words.view(np.uint8)


def rows_of_bytes(digests: ArrowArray) -> NDArray[np.uint8]:
    """Digests as rows of bytes; the cast checks their length."""
    fixed = digests.cast(pa.binary(DIGEST_BYTES))
    size, start = len(fixed) * DIGEST_BYTES, fixed.offset * DIGEST_BYTES
    content = pa.Array.from_buffers(pa.uint8(), size, [None, fixed.buffers()[1]], offset=start)
    return as_numpy(content).reshape(-1, DIGEST_BYTES)


def released_frame(histogram: SparkHistogram, noise: ExecutorNoise) -> DataFrame:
    """The released rows as a Spark DataFrame, not computed yet."""
    types = {field.name: field.dataType for field in histogram.frame.schema.fields}
    items = [StructField(name, types[column]) for name, column in zip(noise.items, histogram.items(), strict=True)]
    plan, empty = noise.session.plan, np.empty(0)
    numbers = [
        StructField(name, LongType() if column.dtype.kind == "i" else DoubleType())
        for name, column in noise.columns.numbers(empty, [empty] * len(plan.summed), plan).items()
    ]
    return on_executors(histogram.with_digests(), noise, StructType([*items, *numbers]))


@contextmanager
def without_logging() -> Iterator[None]:
    """Do not log this thread's messages to Spark: at level DEBUG they contain the keys."""
    this_thread = threading.get_ident()

    def is_other_thread(_record: logging.LogRecord) -> bool:
        return threading.get_ident() != this_thread

    with log_only(is_other_thread, [logging.getLogger(name) for name in _LOGGERS]):
        yield


# Released rows.


def without_traces(frame: DataFrame) -> DataFrame:
    """The released rows, in parts and in an order that depend on released values alone.

    This computes them. The number of parts depends on the number of rows: Spark's own choice would depend on the
    size of the shuffle, and so reveal how many items were counted but not released.
    """
    rows = numbered(frame)
    parts = max(1, -(-rows.count() // ROWS_A_PART))
    rows = rows.repartition(parts, *rows.columns).sortWithinPartitions(*rows.columns)
    return rows.toDF(*frame.columns)


def largest_rows(frame: DataFrame, items: int, limit: int) -> DataFrame:
    """The rows with the largest counts; the count follows the item's columns."""
    rows = numbered(frame)
    ordered = rows.orderBy(sql.col(rows.columns[items]).desc(), *rows.columns[:items])
    return ordered.limit(limit).toDF(*frame.columns)


def collect_release(table: pa.Table, model: Release) -> Release:
    """A release in memory, from the rows of the output and a release without rows."""
    width = len(model.names.items)
    columns = [one_chunk(column) for column in table.columns]
    counts, *added = [as_numpy(column) for column in columns[width:]]
    order = release_order(counts, columns[:width])
    named = zip(table.column_names[width + 1 :], added, strict=True)
    return replace(
        model, columns=tuple(take_rows(column, order) for column in columns[:width]), counts=counts[order],
        form=ARROW, added={name: column[order] for name, column in named}, total=None,
    )  # fmt: skip


def write_release_folder(
    frame: DataFrame, what: str, model: Release, target: Target, *, force: bool, placed: Placed | None
) -> tuple[Written, DataFrame]:
    """Write the rows and the certificate of a release as a folder. Also returns a frame of the rows in it."""
    with persist(frame) as rows:
        written = write_folder(
            run(lambda: without_traces(rows), what), model.document(), target, force=force,
            run=lambda action: run(action, what), placed=placed,
        )  # fmt: skip
    return written, read_folder(frame.sparkSession, target)


def keep_on_cluster(frame: DataFrame, model: Release) -> Release:
    """The release, whose rows stay on the cluster. If an executor is lost with rows meanwhile, try again."""
    for _ in range(_RETRIES):
        try:
            return with_first_rows(compute_once(frame), model)
        except Exception as error:
            if _LOST not in str(error):
                raise
    return with_first_rows(compute_once(frame), model)


def compute_once(frame: DataFrame) -> DataFrame:
    """The rows, detached from the input: recomputing them from changed data would be a second release.

    They are stored in the session's checkpoint folder if there is one, otherwise on two executors each.
    """
    session = frame.sparkSession
    if is_connect(session):
        return frame.localCheckpoint(eager=True)
    context = session.sparkContext
    if context.getCheckpointDir() is not None:
        rows = frame.checkpoint(eager=True)
    elif context._jsc.sc().isLocal():
        rows = frame.localCheckpoint(eager=True)
    else:
        rows = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK_2)
    return detached(rows)


class SparkRelease(Release):
    """A release on the cluster.

    `to_spark()` returns the DataFrame. Its rows were computed once and do not change with the input. `collect()`
    brings all rows to the driver, as does everything else that needs them, such as `to_pandas()` or `counts`.
    """

    _writes_objects = False

    def __init__(self, frame: DataFrame, head: Release) -> None:
        """`head` has the first rows (or all, without a `total`), and all other attributes of the release."""
        self.__dict__.update(frame=frame, head=head)
        for name in Release.__dataclass_fields__.keys() - {"columns", "counts", "added"}:
            self.__dict__[name] = getattr(head, name)

    frame: DataFrame
    head: Release

    def to_spark(self, session: SparkSession | None = None) -> DataFrame:
        """The Spark DataFrame, in its own session unless you name another."""
        return self.frame if session is None else arrow_frame(session, self.to_arrow())

    def to_native(self) -> DataFrame:
        """The Spark DataFrame."""
        return self.frame

    @cached_property
    def _collected(self) -> Release:
        complete = self.head.total is None
        return self.head if complete else collect_release(self.frame.toArrow(), self.head)

    def collect(self) -> Release:
        """The release with all rows in this process, largest counts first."""
        return self._collected

    @property
    def columns(self) -> tuple[ArrowArray, ...]:
        return self.collect().columns

    @property
    def counts(self) -> NDArray[Any]:
        return self.collect().counts

    @property
    def added(self) -> Mapping[str, NDArray[Any]]:
        return self.collect().added

    def _write_to(self, target: Target, *, force: bool, escape_formulas: bool) -> Written:
        if target.kind == "folder":
            return write_folder(self.frame, self.document(), target, force=force)
        return super()._write_to(target, force=force, escape_formulas=escape_formulas)

    def with_written(self, written: Written) -> Self:
        return type(self)(self.frame, replace(self.head, written=written))

    @cached_property
    def summary(self) -> Summary:
        return self.head.summary

    def _first_rows(self) -> list[tuple[str, ...]]:
        return self.head._first_rows()


def with_first_rows(frame: DataFrame, model: Release, total: int | None = None) -> SparkRelease:
    """A release on the cluster, with its first rows here.

    A `total` means that it is written already. Then it stands even if its first rows cannot be read.
    """
    try:
        first = largest_rows(frame, len(model.names.items), ROWS_SHOWN).toArrow()
    except Exception:
        if total is None:
            raise
        first = to_arrow_schema(frame.schema, timezone="UTC").empty_table()
    total = int(frame.count()) if total is None else total
    return SparkRelease(frame, replace(collect_release(first, model), total=total))
