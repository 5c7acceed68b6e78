"""A release by Spark is the same however often its tasks are run: killed in the middle, repeated, run twice.

Tasks are held where they are until something is broken, so that it always breaks in the middle; each attempt at a
task leaves a file that says what it drew, so that it is known to have been made twice.
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
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import dphist
from dphist.releasing import on_spark
from dphist.sampling.sampler import Repeatable
from dphist.sampling.tap import SecureTap, SeededTap
from processes import tree, wait_until
from spark_cluster import ON_SPARK, Cluster

pytestmark = ON_SPARK

PARTITIONS, USERS, SEED = 4, 600, 20
CAP: dict[str, Any] = {"max_items_per_user": 2, "mechanism": "gaussian"}
TOP: dict[str, Any] = {"top": 15}
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 3.0, "delta": 1e-6}
SEEDED = "the noise was made from a seed, so that nobody is protected"
# Every part of a shuffle is a task, and a batch is a few rows.
FINE = {f"spark.sql.{name}": value for name, value in (
    ("adaptive.coalescePartitions.enabled", "false"), ("execution.arrow.maxRecordsPerBatch", "2")
)}  # fmt: skip
EAGER = {"": "true", ".interval": "50ms", ".quantile": "0.5", ".multiplier": "1.1"}
Rows = list[tuple[Any, ...]]
Go = Callable[[int], bool]


class RepeatedTap(SeededTap):
    """A seed that passes for a secret: so the private path can be compared with itself."""

    private = True  # type: ignore[misc]


@pytest.fixture(scope="module")
def spark(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with cluster.session(tmp_path_factory.mktemp("session"), **FINE) as running:
        yield running


def mark_and_wait(folder: Path, go: Go, drawn: dict[str, int] | None = None) -> None:
    """In a task: a file with its process and what it drew appears at once; then the task waits for its turn."""
    context = TaskContext.get()
    assert context is not None
    name = f"{context.partitionId()}.{context.taskAttemptId()}.{os.getpid()}"
    (folder / f".{name}").write_text(json.dumps(drawn))
    (folder / f".{name}").rename(folder / name)
    deadline = time.monotonic() + 90
    while not go(context.partitionId()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held(folder: Path, go: Go, after: int = 0) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Each attempt at a task leaves a file after some batches, and waits until it may go on."""
    folder.mkdir()

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            if number == after:
                mark_and_wait(folder, go)
            yield batch

    return run


def watched(folder: Path, go: Go, *, fresh: bool = False) -> Callable[[Any, Any, Any], DataFrame]:
    """In the place of `on_executors`: each attempt writes down what it drew for which item, and waits."""
    folder.mkdir()

    def run(function: Any, batches: Iterator[Any]) -> Iterator[Any]:
        made, drawn = Repeatable.of, dict[str, int]()
        names: list[str] = []

        def spy(self: Repeatable, sampler: Any, rows: Any, *, compiled: bool | None = None) -> Any:
            steps = sampler.draw(rows.size, SecureTap()) if fresh else made(self, sampler, rows, compiled=compiled)
            drawn.update({names[row]: int(step) for row, step in zip(rows, steps, strict=True)})
            return steps

        found = []
        with mock.patch.object(Repeatable, "of", spy):
            for batch in batches:
                names[:] = batch.column(0).to_pylist()
                found += list(function([batch]))
        mark_and_wait(folder, go, drawn)
        yield from found

    def handed(frame: DataFrame, function: Any, schema: Any) -> DataFrame:
        return frame.mapInArrow(lambda batches: run(function, batches), schema)

    return handed


def attempts(folder: Path) -> dict[int, list[int]]:
    """For each task that was begun, the processes of its attempts."""
    found = defaultdict(list)
    for path in folder.glob("[0-9]*"):
        partition, _, pid = path.name.split(".")
        found[int(partition)].append(int(pid))
    return found


def drawn(folder: Path) -> dict[str, list[int]]:
    """For each item what every attempt drew for it."""
    found = defaultdict(list)
    for item, steps in (pair for path in folder.glob("[0-9]*") for pair in json.loads(path.read_text()).items()):
        found[item].append(steps)
    return found


def check_drawn(folder: Path) -> None:
    """Some items were drawn for again, and all attempts drew the same for them."""
    assert max(map(len, drawn(folder).values())) > 1
    assert all(len(set(steps)) == 1 for steps in drawn(folder).values())


def asked(spark: SparkSession, hold: Any = None) -> DataFrame:
    """Users with five items each, so that a cap leaves some out; and items of one user, which nobody may see."""
    ids: DataFrame = spark.range(0, USERS * 5, numPartitions=PARTITIONS)
    ids = ids if hold is None else ids.mapInArrow(hold, "id long")
    group = f"id div {USERS}"
    item = f"if(id < 40, concat('rare ', id), concat('item ', {group}, '.', id % (2 + 3 * ({group}))))"
    return ids.selectExpr(f"id % {USERS} as user", f"{item} as item")


def released(frame: Any, **options: Any) -> Rows:
    found = dphist.release(frame, **{**ASKED, **options})
    rows = sorted(tuple(row) for row in found.to_spark().collect())
    assert len(found) == len(rows) == len({item for item, _ in rows}) > 1
    assert not [item for item, _ in rows if item.startswith("rare")]
    return rows


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession) -> dict[str, Rows]:
    """What comes out if nothing goes wrong."""
    with mock.patch("dphist.sampling.tap.SecureTap", return_value=RepeatedTap(SEED)):
        private = released(asked(spark), **CAP)
    return {
        "private": private,
        "seeded": released(asked(spark), seed=SEED, **CAP),
        "top": released(asked(spark), seed=SEED, **TOP),
    }


@contextmanager
def broken(cluster: Cluster, spark: SparkSession, marks: Path, lost: str, flag: Path) -> Iterator[None]:
    """Kill what runs a task that waits, tell that it is done; in the end the cluster is whole again."""

    def break_it() -> int:
        wait_until(lambda: any(partition > 1 for partition in attempts(marks)), "a task that waits")
        victim = next(pids[0] for partition, pids in attempts(marks).items() if partition > 1)
        assert any(victim in tree(executor) for executor in cluster.executors())
        (cluster.kill_executor if lost == "executor" else cluster.kill_worker)(of=victim)
        flag.touch()
        return victim

    try:
        with ThreadPoolExecutor(1) as beside:
            victim = beside.submit(break_it)
            yield
            again = attempts(marks)
            assert again.keys() == set(range(PARTITIONS))
            # The proof that it was in the middle: the very task of the dead process was made again.
            assert any(victim.result() in pids and len(pids) > 1 for pids in again.values())
    finally:
        if lost == "worker":
            cluster.add_workers(1)
        known = spark.sparkContext._jsc.sc().statusTracker()
        wait_until(lambda: len(cluster.executors()) == 2, "two executors")
        wait_until(lambda: len(known.getExecutorInfos()) == 3, "the driver and two executors that it knows")


@pytest.mark.parametrize("lost", ["executor", pytest.param("worker", marks=pytest.mark.slow)])
def test_killed_in_the_middle_of_the_count(
    lost: str, cluster: Cluster, spark: SparkSession, undisturbed: dict[str, Rows], tmp_path: Path
) -> None:
    """The choice of a user's items is made again to the same: counts and noise are those of a quiet run."""
    marks, flag = tmp_path / "marks", tmp_path / "flag"
    hold = held(marks, lambda partition: partition < 2 or flag.exists())
    with (
        broken(cluster, spark, marks, lost, flag),
        mock.patch("dphist.sampling.tap.SecureTap", return_value=RepeatedTap(SEED)),
    ):
        assert released(asked(spark, hold), **CAP) == undisturbed["private"]


@pytest.mark.parametrize(
    ("lost", "kind"),
    [
        ("executor", "seeded"),
        pytest.param("executor", "top", marks=pytest.mark.slow),
        pytest.param("worker", "seeded", marks=pytest.mark.slow),
    ],
)
def test_killed_in_the_middle_of_the_noise(
    lost: str, kind: str, cluster: Cluster, spark: SparkSession, undisturbed: dict[str, Rows], tmp_path: Path
) -> None:
    """A task that is run again draws what it drew before; for a top-k step it also counts again."""
    marks, flag = tmp_path / "marks", tmp_path / "flag"
    watch = watched(marks, lambda partition: partition < 2 or flag.exists())
    with broken(cluster, spark, marks, lost, flag), mock.patch.object(on_spark, "on_executors", watch):
        assert released(asked(spark), seed=SEED, **(TOP if kind == "top" else CAP)) == undisturbed[kind]
    assert {item for item, _ in undisturbed[kind]} <= drawn(marks).keys()
    check_drawn(marks)


def test_fresh_noise_would_be_noticed(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    """Power: with a tap on the executors two attempts at a task are two observations of its counts."""
    marks, flag = tmp_path / "marks", tmp_path / "flag"
    watch = watched(marks, lambda partition: partition < 2 or flag.exists(), fresh=True)
    with broken(cluster, spark, marks, "executor", flag), mock.patch.object(on_spark, "on_executors", watch):
        # Fresh noise has no seed: so that no item of one user passes, delta is as small as this.
        released(asked(spark), seed=SEED, **CAP, delta=1e-13)
    assert any(len(set(steps)) > 1 for steps in drawn(marks).values())


@pytest.mark.parametrize(
    ("kept", "lost"),
    [
        ("folder", "executor"),
        pytest.param("frame", "executor", marks=pytest.mark.slow),
        *(pytest.param(kind, "worker", marks=pytest.mark.slow) for kind in ("folder", "frame")),
    ],
)
def test_killed_in_the_middle_of_the_output(
    kept: str, lost: str, cluster: Cluster, spark: SparkSession, undisturbed: dict[str, Rows], tmp_path: Path
) -> None:
    """Half of the rows are written, or kept by the executors, when one of them dies with all that it holds."""
    marks, flag, target = tmp_path / "marks", tmp_path / "flag", tmp_path / "out"
    hold = held(marks, lambda partition: partition < 2 or flag.exists(), after=1)
    plain = on_spark.without_traces

    def slowly(frame: DataFrame) -> DataFrame:
        rows: DataFrame = plain(frame)
        return rows.mapInArrow(hold, rows.schema)

    more = {"output": f"{target}/"} if kept == "folder" else {}
    with (
        broken(cluster, spark, marks, lost, flag),
        mock.patch.object(on_spark, "without_traces", slowly),
        mock.patch.object(on_spark, "ROWS_A_PART", a_part(undisturbed["seeded"])),
    ):
        assert released(asked(spark), seed=SEED, **CAP, **more) == undisturbed["seeded"]
    if kept == "folder":
        check_folder(target, undisturbed["seeded"])


def a_part(rows: Rows) -> int:
    """So many rows that they make as many files as there are parts of a shuffle."""
    return -(-len(rows) // PARTITIONS)


def check_folder(target: Path, rows: Rows) -> None:
    """The files of one run, each item once, and nothing else; nothing beside it."""
    names, others = {path.name for path in target.iterdir()}, {"_SUCCESS", "_certificate.json"}
    parts = {name for name in names if re.fullmatch(r"part-0000\d-[-0-9a-f]+-c000\.\w+\.parquet", name)}
    assert names == parts | others | {f".{name}.crc" for name in parts | others}
    assert (len({name[:10] for name in parts}), len({name[10:] for name in parts})) == (PARTITIONS, 1)
    table = pa.concat_tables(pq.read_table(target / name) for name in parts)
    assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == rows
    assert not [path for path in target.parent.iterdir() if path.name.startswith(".dphist")]
    assert dphist.verify(target).problems == (SEEDED,)


@pytest.mark.slow
def test_speculation_runs_a_slow_task_twice_to_the_same(
    cluster: Cluster, spark: SparkSession, undisturbed: dict[str, Rows], tmp_path: Path
) -> None:
    """Last, for it ends the session of the others."""
    spark.stop()
    wait_until(lambda: not cluster.executors(), "the end of its executors")
    counting, noise, target = tmp_path / "counting", tmp_path / "noise", tmp_path / "out"
    eager = {f"spark.speculation{name}": value for name, value in EAGER.items()}
    with cluster.session(tmp_path, **FINE, **eager) as running:
        # One task of each stage goes on only when it runs twice.
        hold = held(counting, lambda partition: partition != 1 or len(attempts(counting)[1]) > 1)
        watch = watched(noise, lambda partition: partition != 2 or len(attempts(noise)[2]) > 1)
        with (
            mock.patch.object(on_spark, "on_executors", watch),
            mock.patch.object(on_spark, "ROWS_A_PART", a_part(undisturbed["seeded"])),
        ):
            found = released(asked(running, hold), seed=SEED, **CAP, output=f"{target}/")
        assert found == undisturbed["seeded"]
    assert min(len(attempts(counting)[1]), len(attempts(noise)[2])) > 1
    check_drawn(noise)
    check_folder(target, undisturbed["seeded"])
