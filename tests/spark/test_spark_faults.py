"""A release by Spark does not change if its tasks are killed, repeated or run twice at once.

Tasks wait until something is killed, so that it always dies in the middle. Each attempt at a task leaves a file
with the noise it drew, which proves that the task ran twice.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import dphist
from dphist.sampling.rng import SeededRng
from dphist.sampling.sampler import ExactSampler, Repeatable
from dphist.spark import noise as on_spark
from dphist.spark import rounds as rounds_on_spark
from dphist.spark.dataframes import OnBatches, on_executors
from processes import tree, wait_until
from spark_cluster import ON_SPARK, Cluster

pytestmark = ON_SPARK

PARTITIONS, USERS, SEED = 4, 600, 20
CAP: dict[str, Any] = {"max_items_per_user": 2, "mechanism": "gaussian"}
TOP: dict[str, Any] = {"top": 15}
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 3.0, "delta": 1e-6}
# Every shuffle partition is a task, and a batch has two rows.
FINE = {f"spark.sql.{name}": value for name, value in (
    ("adaptive.coalescePartitions.enabled", "false"), ("execution.arrow.maxRecordsPerBatch", "2")
)}  # fmt: skip
EAGER = {"": "true", ".interval": "50ms", ".quantile": "0.5", ".multiplier": "1.1"}
Rows = list[tuple[Any, ...]]
IntArray = NDArray[np.int64]
OnExecutors = Callable[[DataFrame, OnBatches, StructType | str], DataFrame]
Go = Callable[[int], bool]


class RepeatedRng(SeededRng):
    """A seed that claims to be secret, so that private releases can be compared."""

    private = True  # type: ignore[misc]


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with cluster.session(tmp_path_factory.mktemp("session"), **FINE) as running:
        yield running


def until_killed(folder: Path) -> Go:
    """The first two tasks run through, the others wait until `killing` has killed one of them."""
    return lambda partition: partition < 2 or (folder / "killed").exists()


def mark_and_wait(folder: Path, go: Go, drawn: dict[str | None, int] | None = None) -> None:
    """In a task: leave a file with its process and its draws, then wait."""
    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId()}.{context.taskAttemptId()}.{os.getpid()}"
    (folder / f".{name}").write_text(json.dumps(drawn))
    (folder / f".{name}").rename(folder / name)
    deadline = time.monotonic() + 90
    while not go(context.partitionId()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held(folder: Path, go: Go | None = None, after: int = 0) -> OnBatches:
    """Each attempt at a task leaves a file after some batches, and waits."""
    folder.mkdir()
    ready = go or until_killed(folder)

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == after:
                mark_and_wait(folder, ready)
            yield batch

    return run


def watched(folder: Path, go: Go | None = None, *, fresh: bool = False) -> OnExecutors:
    """Replaces `on_executors`: each attempt records the noise of each item, and waits."""
    folder.mkdir()
    ready = go or until_killed(folder)

    def run(function: OnBatches, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made, drawn = Repeatable.of, dict[str | None, int]()
        names: list[str | None] = []

        def spy(
            self: Repeatable, sampler: ExactSampler, rows: IntArray, *, compiled: bool | None = None
        ) -> IntArray:
            steps = made(self, sampler, rows, compiled=compiled)
            if fresh:
                # Imported here, because the driver pickles this function while its own class is replaced.
                from dphist.sampling.rng import SecureRng

                steps = sampler.draw(rows.size, SecureRng())
            drawn.update({names[row]: int(step) for row, step in zip(rows, steps, strict=True)})
            return steps

        rows: list[pa.RecordBatch] = []
        with mock.patch.object(Repeatable, "of", spy):
            for batch in batches:
                names[:] = batch.column(0).to_pylist()
                rows += list(function(iter([batch])))
        mark_and_wait(folder, ready, drawn)
        yield from rows

    def on_executors(frame: DataFrame, function: OnBatches, schema: StructType | str) -> DataFrame:
        return frame.mapInArrow(lambda batches: run(function, batches), schema)

    return on_executors


def attempts(folder: Path) -> dict[int, list[int]]:
    """The processes of the attempts at each task."""
    found = defaultdict(list)
    for path in folder.glob("[0-9]*"):
        partition, _, pid = path.name.split(".")
        found[int(partition)].append(int(pid))
    return found


def is_waiting(folder: Path) -> bool:
    return any(partition > 1 for partition in attempts(folder))


def drawn(folder: Path) -> dict[str, list[int]]:
    """The noise that each attempt drew for each item."""
    found = defaultdict(list)
    for item, steps in (pair for path in folder.glob("[0-9]*") for pair in json.loads(path.read_text()).items()):
        found[item].append(steps)
    return found


def check_drawn(folder: Path) -> None:
    """Some items got noise repeatedly, and always the same noise."""
    assert max(map(len, drawn(folder).values())) > 1
    assert all(len(set(steps)) == 1 for steps in drawn(folder).values())


def asked(spark: SparkSession, hold: OnBatches | None = None) -> DataFrame:
    """Users with five items each, more than the limit, and items of a single user, which must not be released."""
    ids: DataFrame = spark.range(0, USERS * 5, numPartitions=PARTITIONS)
    ids = ids if hold is None else ids.mapInArrow(hold, "id long")
    group = f"id div {USERS}"
    item = f"if(id < 40, concat('rare ', id), concat('item ', {group}, '.', id % (2 + 3 * ({group}))))"
    return ids.selectExpr(f"id % {USERS} as user", f"{item} as item")


def released(frame: DataFrame, **options: Any) -> Rows:
    """Private releases whose noise is that of the seed."""
    with mock.patch("dphist.releasing.run.SecureRng", return_value=RepeatedRng(SEED)):
        result = dphist.release(frame, **{**ASKED, **options})
    rows = sorted(tuple(row) for row in result.to_spark().collect())
    assert result.private
    assert len(result) == len(rows) == len({item for item, *_ in rows}) > 1
    assert not [item for item, *_ in rows if item.startswith("rare")]
    return rows


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession) -> Rows:
    """The release if nothing is killed."""
    return released(asked(spark), **CAP)


@contextmanager
def killing(cluster: Cluster, spark: SparkSession, lost: str, *stages: Path) -> Iterator[None]:
    """Kill the executor or worker of a waiting task, in one stage after the other; finally repair the cluster."""

    def kill_each() -> list[int]:
        victims = []
        for marks in stages:
            wait_until(partial(is_waiting, marks), "a waiting task")
            victims.append(next(pids[0] for partition, pids in attempts(marks).items() if partition > 1))
            assert any(victims[-1] in tree(executor) for executor in cluster.executors())
            (cluster.kill_executor if lost == "executor" else cluster.kill_worker)(of=victims[-1])
            (marks / "killed").touch()
        return victims

    try:
        with ThreadPoolExecutor(1) as beside:
            killed = beside.submit(kill_each)
            yield
            for marks, victim in zip(stages, killed.result(), strict=True):
                again = attempts(marks)
                assert again.keys() == set(range(PARTITIONS))
                # The task of the dead process ran again, so it was killed in the middle.
                assert any(victim in pids and len(pids) > 1 for pids in again.values())
    finally:
        if lost == "worker":
            cluster.add_workers(1)
        known = spark.sparkContext._jsc.sc().statusTracker()
        wait_until(lambda: len(cluster.executors()) == 2, "two executors")
        wait_until(lambda: len(known.getExecutorInfos()) == 3, "the driver and two executors that it knows")


def slowly(folder: Path) -> Callable[[DataFrame], DataFrame]:
    """Replaces `without_traces`: the tasks that write or keep the rows wait."""
    hold, clean = held(folder, after=1), on_spark.without_traces

    def without_traces(frame: DataFrame) -> DataFrame:
        rows: DataFrame = clean(frame)
        return rows.mapInArrow(hold, rows.schema)

    return without_traces


@pytest.mark.parametrize("stages", [["noise"], pytest.param(["noise", "output"], marks=pytest.mark.slow)])
def test_executors_killed_during_noise_and_output(
    stages: list[str], cluster: Cluster, spark: SparkSession, undisturbed: Rows, tmp_path: Path
) -> None:
    """Counts and rows of a dead executor are lost too, so its items are counted and get noise again."""
    noise, target = tmp_path / "noise", tmp_path / "out"
    write = slowly(tmp_path / "output") if "output" in stages else on_spark.without_traces
    with (
        mock.patch.object(on_spark, "on_executors", watched(noise)),
        mock.patch.object(on_spark, "without_traces", write),
        mock.patch.object(on_spark, "ROWS_A_PART", a_part(undisturbed)),
        killing(cluster, spark, "executor", *(tmp_path / stage for stage in stages)),
    ):
        assert released(asked(spark), **CAP, output=f"{target}/") == undisturbed
    assert {item for item, _ in undisturbed} <= drawn(noise).keys()
    check_drawn(noise)
    check_folder(target, undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["executor", "worker"])
def test_killed_during_the_count(
    lost: str, cluster: Cluster, spark: SparkSession, undisturbed: Rows, tmp_path: Path
) -> None:
    """The same items of each user are chosen again."""
    hold = held(tmp_path / "marks")
    with killing(cluster, spark, lost, tmp_path / "marks"):
        assert released(asked(spark, hold), **CAP) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(("lost", "options"), [("executor", TOP), ("worker", CAP)])
def test_killed_during_the_noise(
    lost: str, options: dict[str, Any], cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """A task that runs again draws the same noise; for a top-k step it also counts again."""
    marks = tmp_path / "marks"
    expected = released(asked(spark), **options)
    with mock.patch.object(on_spark, "on_executors", watched(marks)), killing(cluster, spark, lost, marks):
        assert released(asked(spark), **options) == expected
    assert {item for item, _ in expected} <= drawn(marks).keys()
    check_drawn(marks)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["executor", "worker"])
def test_killed_during_a_round(lost: str, cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    """What the executor had of earlier rounds is made again, with the same noise: so is what is found."""
    marks = tmp_path / "marks"
    expected, watch, plain = released(asked(spark)), watched(marks), on_executors

    def second_round(frame: DataFrame, function: OnBatches, schema: StructType | str) -> DataFrame:
        is_it = isinstance(function, rounds_on_spark.RoundStep) and function.number == 1
        made: DataFrame = (watch if is_it else plain)(frame, function, schema)
        return made

    with (
        mock.patch.object(rounds_on_spark, "on_executors", second_round),
        killing(cluster, spark, lost, marks),
    ):
        assert released(asked(spark)) == expected
    check_drawn(marks)


@pytest.mark.slow
def test_fresh_noise_would_be_noticed(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    """Power: with fresh noise on executors, two attempts at a task reveal its counts twice."""
    marks = tmp_path / "marks"
    watch = watched(marks, fresh=True)
    with mock.patch.object(on_spark, "on_executors", watch), killing(cluster, spark, "executor", marks):
        # Fresh noise has no seed, so delta is small enough that no item of a single user passes.
        released(asked(spark), **CAP, delta=1e-13)
    assert any(len(set(steps)) > 1 for steps in drawn(marks).values())


@pytest.mark.slow
@pytest.mark.parametrize(("kept", "lost"), [("frame", "executor"), ("folder", "worker"), ("frame", "worker")])
def test_killed_during_the_output(
    kept: str, lost: str, cluster: Cluster, spark: SparkSession, undisturbed: Rows, tmp_path: Path
) -> None:
    """Half of the rows are written, or kept by the executors, when one of them dies with all that it holds."""
    marks, target = tmp_path / "marks", tmp_path / "out"
    more = {"output": f"{target}/"} if kept == "folder" else {}
    with (
        mock.patch.object(on_spark, "without_traces", slowly(marks)),
        mock.patch.object(on_spark, "ROWS_A_PART", a_part(undisturbed)),
        killing(cluster, spark, lost, marks),
    ):
        assert released(asked(spark), **CAP, **more) == undisturbed
    if kept == "folder":
        check_folder(target, undisturbed)


def a_part(rows: Rows) -> int:
    """Rows per file that give as many files as shuffle partitions."""
    return -(-len(rows) // PARTITIONS)


def check_folder(target: Path, rows: Rows) -> None:
    """The folder has the files of one run, with each item once, and no temporary files are left."""
    names, others = {path.name for path in target.iterdir()}, {"_SUCCESS", "_certificate.json"}
    parts = {name for name in names if re.fullmatch(r"part-0000\d-[-0-9a-f]+-c000\.\w+\.parquet", name)}
    assert names == parts | others | {f".{name}.crc" for name in parts | others}
    assert (len({name[:10] for name in parts}), len({name[10:] for name in parts})) == (PARTITIONS, 1)
    table = pa.concat_tables(pq.read_table(target / name) for name in parts)
    assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == rows
    assert not [path for path in target.parent.iterdir() if path.name.startswith(".dphist")]
    assert dphist.verify(target).verified


@pytest.mark.slow
def test_speculation_runs_a_slow_task_twice_with_one_result(
    cluster: Cluster, spark: SparkSession, undisturbed: Rows, tmp_path: Path
) -> None:
    """The last test, because it ends the session of the others."""
    spark.stop()
    wait_until(lambda: not cluster.executors(), "the end of the executors")
    counting, noise, target = tmp_path / "counting", tmp_path / "noise", tmp_path / "out"
    eager = {f"spark.speculation{name}": value for name, value in EAGER.items()}
    with cluster.session(tmp_path, **FINE, **eager) as running:
        # One task of each stage waits until it runs twice.
        hold = held(counting, lambda partition: partition != 1 or len(attempts(counting)[1]) > 1)
        watch = watched(noise, lambda partition: partition != 2 or len(attempts(noise)[2]) > 1)
        with (
            mock.patch.object(on_spark, "on_executors", watch),
            mock.patch.object(on_spark, "ROWS_A_PART", a_part(undisturbed)),
        ):
            assert released(asked(running, hold), **CAP, output=f"{target}/") == undisturbed
    assert min(len(attempts(counting)[1]), len(attempts(noise)[2])) > 1
    check_drawn(noise)
    check_folder(target, undisturbed)
