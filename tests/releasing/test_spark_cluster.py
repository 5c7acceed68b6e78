"""The Spark cluster of the tests: it computes, it breaks where it should, and it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions

import dphist
from processes import parents, tree, wait_until
from spark_cluster import ON_SPARK, Cluster, running_cluster, session

# Of the harness itself; the tests of failures use all of it too.
pytestmark = [*ON_SPARK, pytest.mark.slow]

Batches = Iterator[pa.RecordBatch]
PARTITIONS = 4
KILLED = """
import os, sys
from pathlib import Path
from spark_cluster import running_cluster, tree
with running_cluster(Path(sys.argv[1]), workers=1) as cluster, cluster.session(Path(sys.argv[1])) as spark:
    assert spark.range(3).mapInArrow(lambda batches: batches, "id long").count() == 3
    print(*tree(os.getpid()), flush=True)
    sys.stdin.read()
"""


def marking(folder: Path, go: Callable[[int], bool]) -> Callable[[Batches], Batches]:
    """Each attempt at a partition leaves a file that names its process, and waits until it may go on."""
    folder.mkdir()

    def run(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        (folder / f"{partition}.{context.taskAttemptId()}.{os.getpid()}").touch()
        deadline = time.monotonic() + 120
        while not go(partition):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield from batches

    return run


def attempts(folder: Path) -> dict[int, list[int]]:
    """For each partition, the processes of its attempts."""
    found = defaultdict(list)
    for path in folder.iterdir():
        partition, _, pid = path.name.split(".")
        found[int(partition)].append(int(pid))
    return found


def look(batches: Batches) -> Batches:
    """The Python of a task and the library it imports."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"python": [sys.executable], "file": [dphist.__file__]})


def tasks(spark: SparkSession) -> dict[str, int]:
    """How many tasks each executor has run."""
    store = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    executors = [store.apply(index) for index in range(store.size())]
    return {executor.id(): executor.totalTasks() for executor in executors if executor.id() != "driver"}


def test_jobs_run_on_both_executors(cluster: Cluster, tmp_path: Path) -> None:
    with cluster.session(tmp_path) as spark:
        numbers = spark.range(0, 7000, numPartitions=PARTITIONS)
        counts = numbers.groupBy((functions.col("id") % 7).alias("rest")).count().collect()
        assert {row["rest"]: row["count"] for row in counts} == dict.fromkeys(range(7), 1000)
        ran = tasks(spark)
        assert len(ran) == 2
        assert min(ran.values()) > 0
        marked = numbers.mapInArrow(marking(tmp_path / "marks", lambda _: True), "id long")
        assert sorted(row["id"] for row in marked.collect()) == list(range(7000))
        pids = {pid for pids in attempts(tmp_path / "marks").values() for pid in pids}
        assert all(pids & set(tree(executor)) for executor in cluster.executors())
        rows = spark.range(0, 2, numPartitions=2).mapInArrow(look, "python string, file string").collect()
        assert {tuple(row) for row in rows} == {(sys.executable, dphist.__file__)}


@pytest.mark.parametrize("lost", ["executor", "worker"])
def test_what_is_lost_in_the_middle_of_a_job_is_done_again(lost: str, cluster: Cluster, tmp_path: Path) -> None:
    first, second, broken = tmp_path / "first", tmp_path / "second", tmp_path / "broken"

    def break_it() -> int:
        wait_until(lambda: second.exists() and attempts(second), "a task")
        victim = next(iter(attempts(second).values()))[0]
        (cluster.kill_executor if lost == "executor" else cluster.kill_worker)(of=victim)
        broken.touch()
        return victim

    with cluster.session(tmp_path) as spark, ThreadPoolExecutor(1) as beside:
        before = cluster.executors()
        victim = beside.submit(break_it)
        numbers = spark.range(0, 1000, numPartitions=PARTITIONS)
        mapped = numbers.mapInArrow(marking(first, lambda _: True), "id long")
        shuffled = mapped.repartition(PARTITIONS, "id")
        done = shuffled.mapInArrow(marking(second, lambda _: broken.exists()), "id long")
        assert sorted(row["id"] for row in done.collect()) == list(range(1000))
        # Finished work is lost too: the shuffle files of the first stage.
        for folder in (first, second):
            assert attempts(folder).keys() == set(range(PARTITIONS))
            assert sum(map(len, attempts(folder).values())) > PARTITIONS
        assert any(victim.result() in pids and len(pids) > 1 for pids in attempts(second).values())
        left = 2 if lost == "executor" else 1
        wait_until(lambda: len(cluster.executors()) == left, "an executor in the place of the lost one")
        assert len(set(before) & set(cluster.executors())) == 1
    if lost == "worker":
        cluster.add_workers(1)


def test_speculation_runs_a_slow_task_twice(cluster: Cluster, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
    }
    with cluster.session(tmp_path, **settings) as spark:
        # The first partition goes on only when it runs twice.
        mark = marking(marks, lambda partition: partition > 0 or len(list(marks.glob("0.*"))) > 1)
        rows = spark.range(0, 1000, numPartitions=PARTITIONS).mapInArrow(mark, "id long").collect()
        assert sorted(row["id"] for row in rows) == list(range(1000))
    assert len(attempts(marks)[0]) == 2


def test_a_session_inherits_nothing_from_one_with_another_master(cluster: Cluster, tmp_path: Path) -> None:
    before = dict(os.environ)
    with session("local[2]", tmp_path / "local", **{"spark.speculation": "true", "spark.cores.max": "7"}) as spark:
        assert spark.sparkContext.master == "local[2]"
        assert spark.range(10).agg(functions.sum("id")).collect()[0][0] == 45
    with cluster.session(tmp_path / "cluster") as spark:
        conf = spark.sparkContext.getConf()
        assert (conf.get("spark.master"), conf.get("spark.cores.max")) == (cluster.master, "2")
        assert conf.get("spark.speculation") is None
        assert spark.range(10).agg(functions.sum("id")).collect()[0][0] == 45
        assert list((tmp_path / "cluster" / "driver").glob("spark-*"))
    with session("local[2]", tmp_path / "again") as spark:
        assert spark.range(10).agg(functions.sum("id")).collect()[0][0] == 45
    assert dict(os.environ) == before
    assert not cluster.executors()


def test_nothing_outlives_a_killed_process(cluster: Cluster, tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(Path(running_cluster.__code__.co_filename).parent),
        "PYTHONWARNINGS": "ignore",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    with process:
        assert process.stdout is not None
        started = {int(pid) for pid in process.stdout.readline().split()}
        # The process, driver, guard, master, worker, executor, and Python of the executor.
        assert len(started) >= 8
        assert started <= parents().keys()
        process.kill()
    wait_until(lambda: not started & parents().keys(), "the end of all processes", seconds=20)
