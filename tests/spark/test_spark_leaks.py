"""A release by Spark leaves no key, no shared draw and no trace of what was not released."""

from __future__ import annotations

import base64
import logging
import os
import re
import struct
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import dphist
from dphist.errors import DphistError
from dphist.spark import noise as on_spark
from dphist.spark.counting import SparkHistogram
from dphist.spark.noise import ExecutorNoise
from dphist.spark.session import java_of
from release_data import events
from spark_cluster import ON_SPARK, session

pytestmark = ON_SPARK

# True counts that occur nowhere else, and names that must not be seen.
TRUE = {"seen often": 49731, "seen too": 35171, **{f"planted-secret-{k}": 1 + k % 3 for k in range(300)}}
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
# One of 300 planted items passes with probability 1e-11; with the delta above it would be one in 750.
NONE_PASSES: dict[str, Any] = {**ASKED, "delta": 1e-14}
MODES = ("simple", "extended", "codegen", "cost", "formatted")
LOGGING = """
rootLogger.level = debug
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
"""


@pytest.fixture(scope="module", params=["local", pytest.param("cluster", marks=pytest.mark.slow)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that Spark writes is below this folder."""
    if request.param == "local":
        return tmp_path_factory.mktemp("local")
    return Path(request.getfixturevalue("cluster").folder.parent)


@pytest.fixture(scope="module")
def spark(request: pytest.FixtureRequest, folder: Path) -> Iterator[SparkSession]:
    """A session that logs as much as possible."""
    (folder / "events").mkdir()
    (folder / "executor.properties").write_text(LOGGING.format(path="debug.log"))
    options = f"-Dlog4j2.configurationFile=file://{folder / 'executor.properties'} -XX:TieredStopAtLevel=1"
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder / 'events'}",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.executor.extraJavaOptions": options,
        "spark.task.maxFailures": "2",
        # Uncompressed files can be searched.
        "spark.sql.parquet.compression.codec": "uncompressed",
        **{
            f"spark.{name}.compress": "false" for name in ("eventLog", "broadcast", "shuffle", "rdd", "checkpoint")
        },
    }
    if (folder / "cluster").exists():
        running = request.getfixturevalue("cluster").session(folder / "session", **settings)
    else:
        running = session("local[2]", folder / "session", **settings)
    with running as spark:
        yield spark


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "events.parquet"
    pq.write_table(events(TRUE), path)
    return path


@contextmanager
def logged(spark: SparkSession, folder: Path) -> Iterator[Path]:
    """Everything that Java and Python log in this process at level DEBUG."""
    folder.mkdir()
    (folder / "driver.properties").write_text(LOGGING.format(path=folder / "java.log"))
    jvm = java_of(spark)
    java = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    before = java.getConfigLocation()
    python, handler = logging.getLogger("py4j"), logging.FileHandler(folder / "python.log")
    with mock.patch.object(python, "propagate", False):
        java.setConfigLocation(jvm.java.io.File(str(folder / "driver.properties")).toURI())
        python.addHandler(handler)
        python.setLevel(logging.DEBUG)
        try:
            yield folder
        finally:
            python.setLevel(logging.NOTSET)
            python.removeHandler(handler)
            handler.close()
            java.setConfigLocation(before)


@contextmanager
def overheard() -> Iterator[tuple[list[ExecutorNoise], list[str]]]:
    """What the executors are given, and everything that Spark shows of its plans."""
    noise: list[ExecutorNoise] = []
    plans: list[str] = []
    made, cleaned = on_spark.executor_noise, on_spark.without_traces

    def listening(*arguments: Any) -> ExecutorNoise:
        noise.append(made(*arguments))
        return noise[-1]

    def looking(frame: DataFrame) -> DataFrame:
        plans.append(plans_of(frame))
        return cleaned(frame)

    with (
        mock.patch.object(on_spark, "executor_noise", listening),
        mock.patch.object(on_spark, "without_traces", looking),
    ):
        yield noise, plans


def plans_of(frame: DataFrame) -> str:
    execution, jvm = frame._jdf.queryExecution(), java_of(frame.sparkSession)
    modes = [jvm.org.apache.spark.sql.execution.ExplainMode.fromString(mode) for mode in MODES]
    texts = [execution.explainString(mode) for mode in modes]
    return "\n".join([*texts, execution.logical().toJSON(), execution.executedPlan().toJSON(), str(frame)])


def in_base64(secret: bytes) -> list[bytes]:
    """How it appears within a longer text in base64, wherever it begins there."""
    return [base64.b64encode(bytes(shift) + secret)[4 * bool(shift) :].rstrip(b"=")[:-1] for shift in range(3)]


def forms(key: bytes) -> dict[str, bytes]:
    """How a key may be written."""
    signed = [byte - 256 * (byte > 127) for byte in key]
    return {
        "raw": key,
        "reversed": key[::-1],
        "hex": key.hex().encode(),
        "HEX": key.hex().upper().encode(),
        "python": repr(key)[2:-1].encode(),
        "list": ", ".join(map(str, key)).encode(),
        "java list": ", ".join(map(str, signed)).encode(),
        "json": ",".join(map(str, key)).encode(),
        "java json": ",".join(map(str, signed)).encode(),
        **{f"word {k}": str(word).encode() for k, word in enumerate(struct.unpack("<4Q", key))},
        **{f"base64 {k}": text for k, text in enumerate(in_base64(key))},
        # The class that holds the shared draw.
        "session": b"NoiseSession",
        **{f"session {k}": text for k, text in enumerate(in_base64(b"NoiseSession"))},
    }


def found_in(
    folder: Path, secrets: Mapping[str, bytes | re.Pattern[bytes]], skip: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    found = []
    # A running cluster removes files meanwhile; this walk skips them.
    for place, _, names in os.walk(folder):
        for path in (Path(place) / name for name in names if name not in skip):
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                found += [(str(path), name) for name, secret in secrets.items() if is_in(secret, content)]
    return sorted(found)


def is_in(secret: bytes | re.Pattern[bytes], content: bytes) -> bool:
    return secret in content if isinstance(secret, bytes) else bool(secret.search(content))


def values(counts: Iterable[int]) -> dict[str, bytes | re.Pattern[bytes]]:
    """True counts as files would store them, and the names of items that were not released.

    A text must stand alone, because checksums contain any digits by chance.
    """
    numbers = list(counts)
    packed = {f"{n} {form}": struct.pack(form, n) for n in numbers for form in ("<q", ">q", "<d", ">d")}
    written = {f"{n} text": re.compile(rb"(?<![0-9a-f])%d(?![0-9a-f])" % n) for n in numbers}
    return {"name": b"planted-secret", **packed, **written}


def released_numbers(table: pa.Table) -> list[float]:
    """Counts and the ends of their intervals."""
    columns = table.to_pydict()
    return [number for column in columns.values() for number in column if isinstance(number, (int, float))]


def hidden_by(noisy: Iterable[float]) -> set[int]:
    """The true counts that must not be found. If noise is zero by chance, the true count is released."""
    return {TRUE["seen often"], TRUE["seen too"]} - set(noisy)


def test_the_key_is_not_written_anywhere(spark: SparkSession, folder: Path, data: Path, tmp_path: Path) -> None:
    """Not in logs, events, checkpoints, plans or files of the cluster, while the session runs."""
    spark.sparkContext.setCheckpointDir(f"file://{tmp_path / 'checkpoint'}")
    with logged(spark, tmp_path / "logs") as logs, overheard() as (noise, plans):
        frame = spark.read.parquet(f"file://{data}")
        found = dphist.release(frame, **NONE_PASSES, top=2)
        written = found.write(tmp_path / "written.csv").write(f"{tmp_path / 'more'}/")
        more: dict[str, Any] = {"max_items_per_user": 1, "mechanism": "gaussian"}
        dphist.release(frame, **NONE_PASSES, **more, output=f"{tmp_path / 'out'}/")
    assert found.private
    assert len(found) == len(written) == 2
    assert len(noise) == len(plans) == 2
    for given_away, plan in zip(noise, plans, strict=True):
        secrets = forms(given_away.keys[0])
        assert [name for name, secret in secrets.items() if secret in plan.encode()] == []
        assert "dphist_noise" in plan
        for where in (folder, tmp_path):
            assert found_in(where, secrets) == []
    text = plans_of(found.to_spark())
    assert "planted" not in text
    assert "Scan ExistingRDD" in text
    shown = repr(found) + found._repr_html_() + repr(noise[0]) + repr(noise[0].session.cut)
    assert "seen often" in shown
    assert "planted" not in shown
    assert noise[0].keys[0].hex() not in shown
    secret = "|".join(map(str, hidden_by(released_numbers(found.to_arrow())))) or "planted"
    assert not re.search(rf"(?<![\d.])({secret})(?!\.?\d)", shown)
    # Power: the logs are written and searched.
    assert (logs / "java.log").stat().st_size > 10_000
    assert b"Command to send" in (logs / "python.log").read_bytes()
    assert found_in(folder, {"plan": b"dphist_noise"})
    assert not (folder / "cluster").exists() or found_in(folder / "cluster", {"level": b" DEBUG "})
    # Files and checkpoints have released rows and nothing else.
    kept = {name: released_numbers(pq.read_table(tmp_path / name)) for name in ("out", "more")}
    for name, noisy in {**kept, "checkpoint": kept["more"]}.items():
        assert found_in(tmp_path / name, {"released": b"seen often"})
        assert found_in(tmp_path / name, values(hidden_by(noisy))) == []
        # Power: the search finds the counts that were released.
        assert found_in(tmp_path / name, {"noisy": struct.pack("<d", max(noisy))})


def test_the_search_finds_a_key_that_is_logged(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    """Power: without `without_logging` the key is in Python's log, and the search finds it."""
    with (
        logged(spark, tmp_path / "logs") as logs,
        overheard() as (noise, _),
        mock.patch.object(on_spark, "without_logging", nullcontext),
    ):
        dphist.release(spark.read.parquet(f"file://{data}"), **ASKED, max_items_per_user=1, mechanism="gaussian")
    names = {name[:7] for _, name in found_in(logs, forms(noise[0].keys[0]))}
    assert names == {"base64 ", "session"}


def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        raise ValueError(f"planted-secret in {batch.to_pylist()}")
    yield from ()


@pytest.mark.parametrize("output", [pytest.param(None, marks=pytest.mark.slow), "out/"])
def test_the_error_of_a_task_reveals_nothing(output: str | None, spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(3).mapInArrow(fails, "id long").selectExpr("id as user", "'tea' as item")
    more: dict[str, Any] = {} if output is None else {"output": f"{tmp_path}/{output}"}
    with pytest.raises(DphistError, match="cannot be counted") as caught:
        dphist.release(frame, **ASKED, **more, max_items_per_user=1)
    assert "planted" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert not list(tmp_path.iterdir())


def test_a_histogram_shows_no_count(spark: SparkSession) -> None:
    assert "4973" not in repr(SparkHistogram(spark, spark.range(3), 4973, "the input"))
