"""A release by Spark: counted, ranked and noised on its executors; what comes back was released."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from dphist.engines.protocol import Progress, Task
from dphist.engines.spark_engine import SparkEngine, SparkHistogram, kept, run
from dphist.extras import is_spark_frame
from dphist.releases.request import Request
from dphist.releases.result import Facts, Release
from dphist.releases.soundness import Nonzero
from dphist.releases.sources import Form, Names
from dphist.releases.spark_result import collected, headed, headed_if_possible, largest_rows
from dphist.releases.spark_stage import ExecutorNoise, executor_noise, released_frame, unlogged, without_traces
from dphist.releases.stage import Begun, Cut
from dphist.sampling.tap import Tap
from dphist.types import Plan

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
        from dphist.outputs.spark_folder import read_folder, write_folder

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
