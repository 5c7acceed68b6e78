"""A release by Spark: counted, ranked and noised on its executors; what comes back was released."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dphist.counting.spark import SparkEngine, SparkHistogram, kept, on_executors, run
from dphist.counting.task import Progress, Task
from dphist.errors import is_spark_frame
from dphist.privacy.types import Plan
from dphist.releasing.frames import Form, Names
from dphist.releasing.noise import Begun, Cut
from dphist.releasing.pyarrow_kind import KIND
from dphist.releasing.request import Columns, Request
from dphist.releasing.result import Facts, Release
from dphist.releasing.soundness import Nonzero
from dphist.sampling.keyed import DIGEST_BYTES, KEY_BYTES, KeyedWords
from dphist.sampling.sampler import Repeatable
from dphist.sampling.tap import ClosedTap, Tap

# A release that Spark holds: as a DataFrame of its own, or in a folder that its executors wrote.

SHOWN: Final = 10
# What a release on the cluster has in common with its first rows.
_SHARED: Final = (
    "certificate", "plan", "private", "names", "form", "offset", "request", "came", "written", "sums", "chosen",
    "receipt", "created",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Head(Release):
    """The first rows of a release of `total` rows."""

    total: int = 0

    def __len__(self) -> int:
        return self.total


class SparkRelease(Release):
    """A release on the cluster.

    `to_spark()` is the DataFrame: its rows are computed once and kept, and it has no memory of how they were made.
    `collect()` brings all rows here, and so does whatever else needs them, such as `to_pandas()` or `counts`.
    """

    def __init__(self, frame: Any, head: Head) -> None:
        self.__dict__.update(frame=frame, head=head)
        for name in _SHARED:
            self.__dict__[name] = getattr(head, name)

    frame: Any
    head: Head

    def __len__(self) -> int:
        return self.head.total

    def to_spark(self, session: Any = None) -> Any:
        """The release as a DataFrame of Spark: the one that is there, unless another session is named."""
        return self.frame if session is None else super().to_spark(session)

    def to_native(self) -> Any:
        """The release as the data came."""
        return self.frame

    @cached_property
    def _collected(self) -> Release:
        return collected(self.frame.toArrow(), self.head)

    def collect(self) -> Release:
        """All rows in this process, the largest count first."""
        return self._collected

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
        """The columns that were asked for beside the counts, brought here."""
        return self.collect().added

    def _frame(self, package: str) -> Any:
        return self.collect()._frame(package)

    def write(
        self,
        output: str | os.PathLike[str],
        *,
        table: str | None = None,
        force: bool = False,
        sign: str | os.PathLike[str] | None = None,
        escape_formulas: bool = False,
    ) -> SparkRelease:
        """Write the release with its certificate, both or neither: from the executors to a folder, else from here.

        A folder is named with a slash at its end, or by an address that Spark knows, such as hdfs://...
        """
        from dphist.outputs.write import check_formulas, target_of, write_folder, write_release
        from dphist.signatures import signer_of

        target = replace(target_of(output, table), sign=signer_of(sign))
        check_formulas(target, escape_formulas)
        if target.kind == "folder":
            return self.with_written(write_folder(self.frame, self.document(), target, force=force))
        written = write_release(
            self.to_arrow(), self.document(), target, force=force, escape_formulas=escape_formulas
        )
        return self.with_written(written)

    def with_written(self, written: Any) -> SparkRelease:
        """The same release, which knows where it was written to."""
        return SparkRelease(self.frame, replace(self.head, written=written))

    def __repr__(self) -> str:
        return repr(self.head)

    def _repr_html_(self) -> str:
        return self.head._repr_html_()


def collected(table: Any, model: Release) -> Release:
    """A release in memory from the rows of an output, in the order of a release."""
    columns = [table.column(place).combine_chunks() for place in range(table.num_columns)]
    items = [_one(column) for column in columns[: len(model.names.items)]]
    count, *added = [KIND.numbers(column) for column in columns[len(model.names.items) :]]
    order = KIND.order(count, items)
    return Release(
        tuple(KIND.take(column, order) for column in items), count[order], model.certificate, model.plan,
        model.private, model.names, Form(KIND, "frame", "pyarrow"), model.offset,
        {name: column[order] for name, column in zip(_added_names(table, model.names), added, strict=True)},
        model.request, model.came, model.written, chosen=model.chosen, receipt=model.receipt,
        created=model.created,
    )  # fmt: skip


def _added_names(table: Any, names: Names) -> list[str]:
    added: list[str] = table.column_names[len(names.items) + 1 :]
    return added


def _one(column: Any) -> Any:
    import pyarrow as pa

    return column if not isinstance(column, pa.ChunkedArray) else pa.concat_arrays(column.chunks)


def largest_rows(frame: Any, items: int, limit: int) -> Any:
    """The rows with the largest counts, of a frame whose first columns are the item's and the next the count."""
    from pyspark.sql import functions as sql

    names = [f"n{place}" for place in range(len(frame.columns))]
    ordered = frame.toDF(*names).orderBy(sql.col(names[items]).desc(), *names[:items])
    return ordered.limit(limit).toDF(*frame.columns)


def headed(frame: Any, model: Release, total: int | None = None) -> SparkRelease:
    """A release that stays where it is, with its first rows at hand."""
    first = largest_rows(frame, len(model.names.items), SHOWN).toArrow()
    return _with_head(frame, first, model, int(frame.count()) if total is None else total)


def headed_if_possible(frame: Any, model: Release, total: int) -> SparkRelease:
    """A release that is written already: that its first rows cannot be shown does not undo it."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return headed(frame, model, total)
    except Exception:
        nothing = to_arrow_schema(frame.schema, timezone="UTC").empty_table()
    return _with_head(frame, nothing, model, total)


def _with_head(frame: Any, first: Any, model: Release, total: int) -> SparkRelease:
    rows = collected(first, model)
    fields = {name: getattr(rows, name) for name in rows.__dataclass_fields__}
    return SparkRelease(frame, Head(**fields, total=total))


# The noise stage on Spark's executors: true counts meet noise where they are counted.
#
# All of it is decided on the driver: the shared draw, the noise of the offset and a secret key. An executor makes
# the noise of a count from that key, the item and the count, so that a task that is run again makes the same
# noise.

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
    closed = replace(begun, session=replace(begun.session, tap=ClosedTap()))
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


# What Spark says where rows are lost that nobody could make again, and how often that may happen.
LOST: Final = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
TIMES: Final = 3


Placed = Callable[[Any], None]


def released_by_spark(
    request: Request,
    plan: Plan,
    rule: Nonzero,
    task: Task,
    tap: Tap,
    engine: SparkEngine,
    target: Any,
    counting: Progress | None,
    placed: Placed | None = None,
    facts: Facts | None = None,
) -> Release:
    """Count and add noise where the data are.

    To a folder the executors write by themselves. The release of a DataFrame stays on the cluster. Otherwise the
    released rows come here.
    """
    if rule is Nonzero.PROMISED:
        # Whether there are more counts than promised is asked with a rank, which subtracts nothing then.
        task = replace(task, rank=int(plan.contract.nonzero) + 1)
    with engine.counted(task, counting) as histogram:
        broken = rule is Nonzero.PROMISED and histogram.at_rank > 0
        floor = histogram.at_rank if rule is Nonzero.TOP_K else 0
        cut = Cut(floor, request.lower_threshold, rule is Nonzero.TOP_K and request.offset == "none")
        begun = Begun.with_tap(plan, tap, cut)
        noise = executor_noise(begun, plan, request, tap)
        model = (facts or Facts(request.to_dict())).told(_model(request, plan, begun, tap))
        with unlogged():
            frame = _noised(histogram, noise, nothing=broken)
            if request.top is not None and rule is not Nonzero.TOP_K:
                # Where a bound on users served in place of a top-k step: those with the most noisy users.
                frame = largest_rows(frame, len(noise.items), request.top)
            return _delivered(frame, histogram, request, model, target, placed)


def _model(request: Request, plan: Plan, begun: Begun, tap: Tap) -> Release:
    """The release without its rows."""
    names = Names(tuple(column.name for column in request.columns()), request.count_name)
    none: Any = np.empty(0)
    return Release((), none, plan.certificate, plan, tap.private, names, Form(), begun.offset)


def _noised(histogram: SparkHistogram, noise: ExecutorNoise, *, nothing: bool) -> Any:
    if nothing:
        # Never an error, for that would tell of the data; an empty release tells the least.
        histogram = replace(histogram, frame=histogram.frame.where("false"))
    return released_frame(histogram, noise)


def _delivered(
    frame: Any,
    histogram: SparkHistogram,
    request: Request,
    model: Release,
    target: Any,
    placed: Placed | None,
) -> Release:
    what = histogram.what
    if target is not None and target.kind == "folder":
        from dphist.outputs.write import read_folder, write_folder

        with kept(frame) as rows:
            clean = run(lambda: without_traces(rows), what)
            written = write_folder(
                clean, model.document(), target, force=request.force, attempted=lambda action: run(action, what),
                placed=placed,
            )  # fmt: skip
        found = read_folder(histogram.session, target)
        return headed_if_possible(found, replace(model, written=written), written.rows)
    if is_spark_frame(request.input):
        with kept(frame) as rows:
            return run(lambda: _on_cluster(without_traces(rows), model), what)
    table = run(frame.toArrow, what)
    return collected(table, model)


def _on_cluster(frame: Any, model: Release) -> Release:
    """The release of the rows, which stay there. Rows that go with an executor meanwhile are made again."""
    for _ in range(TIMES):
        try:
            return headed(_computed_once(frame), model)
        except Exception as error:
            if LOST not in str(error):
                raise
    return headed(_computed_once(frame), model)


def _computed_once(frame: Any) -> Any:
    """The rows as they are now, without the way to make them again: data that change would be a second release.

    On storage of the user's, if the session has some for this; otherwise with the executors, on two of them each.
    """
    context = getattr(frame.sparkSession, "_sc", None)
    if context is None:
        return frame.localCheckpoint(eager=True)
    if context.getCheckpointDir() is not None:
        return _without_statistics(frame.checkpoint(eager=True))
    if context._jsc.sc().isLocal():
        return _without_statistics(frame.localCheckpoint(eager=True))
    from pyspark import StorageLevel

    return _without_statistics(frame.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK_2))


def _without_statistics(kept: Any) -> Any:
    """A frame of the same rows that knows nothing else: Spark passes on what it guessed from the true counts."""
    from pyspark.sql import DataFrame

    session, java = kept.sparkSession, kept._jdf
    rows = java.queryExecution().toRdd()
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rows, java.schema(), False), session)
