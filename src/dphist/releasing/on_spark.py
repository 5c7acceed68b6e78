"""A release by Spark: counted, ranked and given noise on its executors; only released rows come back.

The driver draws the shared noise, the noise of the offset and a secret key. An executor makes the noise of a count
from that key, the item and the count, so that a task that is run again makes the same noise.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from dphist.counting.spark import SparkHistogram, on_executors, persist, run
from dphist.errors import is_spark_frame
from dphist.releasing.document import Nonzero
from dphist.releasing.noise import Columns, Job, NoiseSession, begin, numbers_of
from dphist.releasing.request import Request
from dphist.releasing.result import ARROW, Form, Release, arrow_numbers, one_chunk, release_order, take_rows
from dphist.releasing.summary import Summary
from dphist.sampling.sampler import Repeatable
from dphist.sampling.tap import DIGEST_BYTES, KEY_BYTES, ClosedTap, KeyedWords, Tap

SHOWN: Final = 10
ROWS_A_PART: Final = 1 << 20
_WORD: Final = 8
# Messages between Python and Spark are logged under these names.
_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway", "pyspark.sql.connect.logging")
# What Spark says where rows are lost that cannot be computed again, and how often that may happen.
LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
TIMES: Final = 3


class SparkRelease(Release):
    """A release on the cluster.

    `to_spark()` is the DataFrame: its rows are computed once and kept, without the way they were computed.
    `collect()` brings all rows here, and so does all else that needs them, such as `to_pandas()` or `counts`.
    """

    _writes_objects = False

    def __init__(self, frame: Any, head: Release) -> None:
        """`head` has the first rows, and all else that a release has."""
        self.__dict__.update(frame=frame, head=head)
        for name in Release.__dataclass_fields__.keys() - {"columns", "counts", "added"}:
            self.__dict__[name] = getattr(head, name)

    frame: Any
    head: Release

    def to_spark(self, session: Any = None) -> Any:
        """The release as a DataFrame of Spark, in its own session unless another is named."""
        return self.frame if session is None else super().to_spark(session)

    def to_native(self) -> Any:
        """The release as the data came."""
        return self.frame

    @cached_property
    def _collect(self) -> Release:
        return collect_release(self.frame.toArrow(), self.head)

    def collect(self) -> Release:
        """All rows in this process, the largest count first."""
        return self._collect

    @property
    def columns(self) -> tuple[Any, ...]:
        """The item's columns, brought here."""
        return self.collect().columns

    @property
    def counts(self) -> NDArray[Any]:
        """The noisy counts, brought here."""
        return self.collect().counts

    @property
    def added(self) -> Mapping[str, NDArray[Any]]:
        """The requested columns beside the counts, brought here."""
        return self.collect().added

    def _write_to(self, target: Any, *, force: bool, escape_formulas: bool) -> Any:
        """From the executors to a folder, else from here."""
        from dphist.outputs.spark_folder import write_folder

        if target.kind == "folder":
            return write_folder(self.frame, self.document(), target, force=force)
        return super()._write_to(target, force=force, escape_formulas=escape_formulas)

    def with_written(self, written: Any) -> Self:
        """The same release, with the place that it was written to."""
        return type(self)(self.frame, replace(self.head, written=written))

    @cached_property
    def summary(self) -> Summary:
        """The summary, from the first rows."""
        return self.head.summary

    def table_text(self) -> str:
        """The first rows."""
        return self.head.table_text()

    def __repr__(self) -> str:
        return repr(self.head)

    def _repr_html_(self) -> str:
        return self.head._repr_html_()


def collect_release(table: Any, model: Release) -> Release:
    """A release in memory from the rows of an output, in the order of a release."""
    width = len(model.names.items)
    columns = [one_chunk(column) for column in table.columns]
    count, *added = [numbers_of(column) for column in columns[width:]]
    order = release_order(count, columns[:width])
    numbers = zip(table.column_names[width + 1 :], added, strict=True)
    return replace(
        model, columns=tuple(take_rows(column, order) for column in columns[:width]), counts=count[order],
        form=ARROW, added={name: column[order] for name, column in numbers}, total=None,
    )  # fmt: skip


def largest_rows(frame: Any, items: int, limit: int) -> Any:
    """The rows with the largest counts, of a frame whose first columns are the item's and the next the count."""
    names = [f"n{place}" for place in range(len(frame.columns))]
    ordered = frame.toDF(*names).orderBy(sql.col(names[items]).desc(), *names[:items])
    return ordered.limit(limit).toDF(*frame.columns)


def with_first_rows(frame: Any, model: Release, total: int | None = None) -> SparkRelease:
    """A release that stays where it is, with its first rows at hand.

    With a `total` it is written already: that its first rows cannot be shown does not undo it.
    """
    try:
        first = largest_rows(frame, len(model.names.items), SHOWN).toArrow()
    except Exception:
        if total is None:
            raise
        first = to_arrow_schema(frame.schema, timezone="UTC").empty_table()
    total = int(frame.count()) if total is None else total
    return SparkRelease(frame, replace(collect_release(first, model), total=total))


@dataclass(frozen=True)
class ExecutorNoise:
    """Noise and threshold for the batches of any executor; called by Spark, as often as it likes."""

    session: NoiseSession
    keys: tuple[bytes, ...]  # one for the counts and one for each of the sums: all noise is independent
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
        *columns, digests = batch.columns
        counts, *sums = (numbers_of(column) for column in columns[len(self.items) :])
        rows = _rows_of_bytes(digests)
        # Another sum of the same item and count gets other noise: were the data to change between two attempts
        # at a task, the same noise on both would give away their difference.
        marked = [rows, *(_mix_numbers(rows, column) for column in sums)]
        draws = [Repeatable(KeyedWords(key, one)) for key, one in zip(self.keys, marked, strict=True)]
        found = self.session.release(counts, sums, draws)
        taken = [take_rows(column, found.index) for column in columns[: len(self.items)]]
        numbers = self.columns.numbers(found.values, found.sums, self.session.plan)
        arrays = [*taken, *(arrow_numbers(column) for column in numbers.values())]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.items, *numbers])


def executor_noise(session: NoiseSession, columns: Columns, request: Request, tap: Tap) -> ExecutorNoise:
    """What the executors get, with fresh keys. Their session has no tap: fresh noise would not be repeatable."""
    keys = tuple(tap.words(KEY_BYTES // _WORD).tobytes() for _ in range(1 + len(session.plan.sums)))
    names = tuple(column.name for column in request.columns)
    return ExecutorNoise(replace(session, tap=ClosedTap()), keys, names, columns)


def released_frame(histogram: Any, noise: ExecutorNoise) -> Any:
    """The released rows as a frame of Spark, not yet computed."""
    fields = dict(zip(histogram.frame.columns, histogram.frame.schema.fields, strict=True))
    items = [
        StructField(name, fields[own].dataType) for name, own in zip(noise.items, histogram.items(), strict=True)
    ]
    plan, none = noise.session.plan, np.empty(0)
    numbers = [
        StructField(name, LongType() if column.dtype.kind == "i" else DoubleType())
        for name, column in noise.columns.numbers(none, [none] * len(plan.sums), plan).items()
    ]
    return on_executors(histogram.with_digests(), noise, StructType([*items, *numbers]))


@contextmanager
def without_logging() -> Iterator[None]:
    """This thread's messages to Spark are not logged: at the level DEBUG the key would be in them."""
    own = threading.get_ident()

    def others(_record: logging.LogRecord) -> bool:
        return threading.get_ident() != own

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(others)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(others)


def without_traces(frame: Any) -> Any:
    """The released rows, in parts and in an order by their own values alone, which show nothing of the count.

    They are computed for this. The number of parts depends on the number of rows: Spark's own choice would depend
    on the sizes of what it shuffled, and so on how many items were counted but not released.
    """
    numbered = frame.toDF(*(f"n{place}" for place in range(len(frame.columns))))
    parts = max(1, -(-numbered.count() // ROWS_A_PART))
    rows = numbered.repartition(parts, *numbered.columns).sortWithinPartitions(*numbered.columns)
    return rows.toDF(*frame.columns)


def _mix_numbers(rows: NDArray[np.uint8], numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Digests that differ where the numbers do: a part of each is combined with its number."""
    words = rows.copy().view("<u8")
    words[:, 0] ^= numbers.astype(np.uint64)
    return words.view(np.uint8)


def _rows_of_bytes(digests: Any) -> Any:
    """A column of digests as rows of bytes; the cast makes sure of their length."""
    plain = digests.cast(pa.binary(DIGEST_BYTES))
    whole = np.frombuffer(plain.buffers()[1] or b"", dtype=np.uint8)
    start = plain.offset * DIGEST_BYTES
    return whole[start : start + len(plain) * DIGEST_BYTES].reshape(-1, DIGEST_BYTES)


Placed = Callable[[Any], None]


def release_on_spark(job: Job, histogram: SparkHistogram, target: Any, placed: Placed | None) -> Release:
    """Add noise where the data are.

    To a folder the executors write by themselves. The release of a DataFrame stays on the cluster. Otherwise the
    released rows come here.
    """
    request, plan = job.request, job.plan
    if job.rule is Nonzero.PROMISED and histogram.at_rank > 0:
        # Not an error, which would reveal data: an empty release reveals the least.
        histogram = replace(histogram, frame=histogram.frame.where("false"))
    session = begin(plan, job.tap, job.cut(histogram.at_rank))
    noise = executor_noise(session, job.columns, request, job.tap)
    none: Any = np.empty(0)
    # The release without its rows.
    model = Release((), none, plan, job.tap.private, job.names, Form(), session.noisy_offset)
    with without_logging():
        frame = released_frame(histogram, noise)
        if request.top is not None and job.rule is not Nonzero.TOP_K:
            # Where a limit on users replaced the top-k step: the counts with the most noisy users.
            frame = largest_rows(frame, len(noise.items), request.top)
        return _deliver(frame, histogram, request, job.complete(model), target, placed)


def _deliver(
    frame: Any,
    histogram: SparkHistogram,
    request: Request,
    model: Release,
    target: Any,
    placed: Placed | None,
) -> Release:
    what = histogram.what
    if target is not None and target.kind == "folder":
        from dphist.outputs.spark_folder import read_folder, write_folder

        with persist(frame) as rows:
            clean = run(lambda: without_traces(rows), what)
            written = write_folder(
                clean, model.document(), target, force=request.force, run=lambda action: run(action, what),
                placed=placed,
            )  # fmt: skip
        rows_written = read_folder(histogram.session, target)
        return with_first_rows(rows_written, replace(model, written=written), written.rows)
    if is_spark_frame(request.input):
        with persist(frame) as rows:
            return run(lambda: keep_on_cluster(without_traces(rows), model), what)
    table = run(frame.toArrow, what)
    return collect_release(table, model)


def keep_on_cluster(frame: Any, model: Release) -> Release:
    """The release of the rows, which stay there. Rows that go with an executor meanwhile are computed again."""
    for _ in range(TIMES):
        try:
            return with_first_rows(compute_once(frame), model)
        except Exception as error:
            if LOST not in str(error):
                raise
    return with_first_rows(compute_once(frame), model)


def compute_once(frame: Any) -> Any:
    """The rows as they are now, without the way to compute them again: data that change would be a second release.

    They are in the session's checkpoint folder if there is one, otherwise with the executors, on two of them each.
    """
    session = frame.sparkSession
    context = getattr(session, "_sc", None)
    if context is None:
        return frame.localCheckpoint(eager=True)
    if context.getCheckpointDir() is not None:
        rows = frame.checkpoint(eager=True)
    elif context._jsc.sc().isLocal():
        rows = frame.localCheckpoint(eager=True)
    else:
        rows = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK_2)
    # A new frame of the same rows: Spark passes on statistics, which it estimated from the true counts.
    java = rows._jdf
    plain = session._jsparkSession.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    return DataFrame(plain, session)
