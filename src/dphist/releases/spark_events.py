"""A release by Spark: counted, ranked and noised on its executors; what comes back was released."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dphist.engines.protocol import Progress, Task
from dphist.engines.spark_engine import SparkEngine, SparkHistogram, run
from dphist.engines.spark_session import is_spark_frame
from dphist.releases.request import Request
from dphist.releases.result import Release
from dphist.releases.soundness import Nonzero
from dphist.releases.sources import Form, Names
from dphist.releases.spark_result import collected, headed
from dphist.releases.spark_stage import ExecutorNoise, executor_noise, released_frame, without_traces
from dphist.releases.stage import Begun, Cut
from dphist.sampling.tap import Tap
from dphist.types import Plan


def released_by_spark(
    request: Request,
    plan: Plan,
    rule: Nonzero,
    task: Task,
    tap: Tap,
    engine: SparkEngine,
    target: Any,
    counting: Progress | None,
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
        cut = Cut(histogram.at_rank if rule is Nonzero.TOP_K else 0, request.lower_threshold)
        begun = Begun.with_tap(plan, rule, tap, cut)
        noise = executor_noise(begun, plan, request, tap)
        model = _model(request, plan, begun, tap)
        frame = _noised(histogram, noise, nothing=broken)
        if request.top is not None and rule is not Nonzero.TOP_K:
            frame = _largest(frame, noise, request.top)
        return _delivered(frame, histogram, request, model, target)


def _model(request: Request, plan: Plan, begun: Begun, tap: Tap) -> Release:
    """The release without its rows."""
    names = Names(tuple(column.name for column in request.columns()), request.count_name)
    none: Any = np.empty(0)
    return Release(
        (), none, plan.certificate, plan, tap.private, names, Form(), begun.offset, request=request.to_dict()
    )


def _noised(histogram: SparkHistogram, noise: ExecutorNoise, *, nothing: bool) -> Any:
    if nothing:
        # Never an error, for that would tell of the data; an empty release tells the least.
        histogram = replace(histogram, frame=histogram.frame.where("false"))
    return released_frame(histogram, noise)


def _largest(frame: Any, noise: ExecutorNoise, limit: int) -> Any:
    """Where a bound on users served in place of a top-k step: those with the most noisy users."""
    from pyspark.sql import functions as sql

    numbered = frame.toDF(*(f"n{place}" for place in range(len(frame.columns))))
    items = [f"n{place}" for place in range(len(noise.items))]
    ordered = numbered.orderBy(sql.col(f"n{len(items)}").desc(), *items).limit(limit)
    return ordered.toDF(*frame.columns)


def _delivered(frame: Any, histogram: SparkHistogram, request: Request, model: Release, target: Any) -> Release:
    what = histogram.what
    if target is not None and target.kind == "folder":
        from dphist.outputs.spark_folder import read_folder, write_folder

        rows = without_traces(frame)
        written = write_folder(
            rows, model.document(), target, force=request.force, attempted=lambda action: run(action, what)
        )
        return headed(read_folder(histogram.session, target), replace(model, written=written), written.rows)
    if is_spark_frame(request.input):
        kept = run(lambda: _computed_once(without_traces(frame)), what)
        return headed(kept, model)
    table = run(frame.toArrow, what)
    return collected(table, model)


def _computed_once(frame: Any) -> Any:
    """The rows as they are now, without the way to make them again: data that change would be a second release.

    On storage of the user's, if the session has some for this; otherwise with the executors, and lost with them.
    """
    context = getattr(frame.sparkSession, "_sc", None)
    if context is not None and context.getCheckpointDir() is not None:
        return frame.checkpoint(eager=True)
    return frame.localCheckpoint(eager=True)
