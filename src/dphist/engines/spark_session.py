"""Spark itself: the session that is there, or one of our own that leaves nothing behind."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dphist.engines.java import require_java
from dphist.engines.protocol import Resources
from dphist.engines.spark_arrow import spark_ready
from dphist.engines.workspace import available_memory, private_folder, size_of, threads_for_counting
from dphist.errors import InputError, InvalidParameter, MissingExtra

NEEDED: Final = "the Spark engine needs PySpark 4: pip install 'dphist[spark]'"
LEAST_VERSION: Final = 4
# Half of the memory for Java; the rest is for Python's workers and the system's cache of files.
SHARE: Final = 0.5
LEAST_MEMORY: Final = 1 << 30
# Parts of a shuffle on one machine: enough that the parts of 10^9 pairs fit into memory.
PARTITIONS: Final = 32
# Kept while a histogram is counted, whatever the session has them at: a value that does not fit is NULL and no
# error, which would tell of it; times are in UTC; the names of folders are text, and JSON is right or nothing.
WHILE_COUNTING: Final = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
}


@dataclass(frozen=True)
class Cluster:
    """Where Spark runs: the address of a master, and settings of Spark by their names."""

    master: str | None = None
    settings: tuple[tuple[str, str], ...] = ()


def pyspark() -> Any:
    """PySpark, of a version that will do."""
    try:
        import pyspark
    except ImportError:
        raise MissingExtra(NEEDED) from None
    found = str(getattr(pyspark, "__version__", "unknown"))
    if not found.partition(".")[0].isdigit() or int(found.partition(".")[0]) < LEAST_VERSION:
        raise MissingExtra(f"{NEEDED} (this is PySpark {found})")
    return pyspark


def is_spark_frame(value: object) -> bool:
    """Whether it is a DataFrame of Spark, in whatever way it talks to its cluster."""
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return ("pyspark", "DataFrame") in names


@contextmanager
def session_for(source: object, resources: Resources, cluster: Cluster) -> Iterator[Any]:
    """The session of a DataFrame, the one that is active, or a new one that is stopped afterwards."""
    pyspark()
    from pyspark.sql import SparkSession

    there = source.sparkSession if is_spark_frame(source) else SparkSession.getActiveSession()  # type: ignore[attr-defined]
    if there is None:
        with private_folder(resources.folder) as folder, _started(resources, cluster, folder) as session:
            yield session
        return
    if cluster != Cluster():
        raise InvalidParameter("--master and --spark-conf are for a new Spark session, and one is there already")
    _check_version(there.version)
    with _kept(there, WHILE_COUNTING):
        yield there


def frame_in(session: Any, table: Any) -> Any:
    """A table of Arrow as a DataFrame of a session, or of the one that is active."""
    pyspark()
    from pyspark.sql import SparkSession

    there = session or SparkSession.getActiveSession()
    if there is None:
        raise InvalidParameter("there is no Spark session: start one, or name it with session=")
    return there.createDataFrame(spark_ready(table, table.column_names))


def _check_version(version: str) -> None:
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < LEAST_VERSION:
        raise InputError(f"the Spark engine needs Spark 4, and this session is of Spark {version}")


@contextmanager
def _kept(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while, and then the old ones."""
    old = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, before in old.items():
            with suppress(Exception):  # the session may be gone
                if before is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, before)


def settings_for(resources: Resources, cluster: Cluster, folder: Path) -> dict[str, str]:
    """The settings of a session of our own; those that the user gave come last."""
    memory = size_of(resources.memory) if resources.memory else max(int(available_memory() * SHARE), LEAST_MEMORY)
    threads = threads_for_counting(resources, memory)
    master = cluster.master or f"local[{threads}]"
    megabytes = f"{max(memory >> 20, 512)}m"
    chosen = {
        "spark.master": master,
        "spark.app.name": "dphist",
        "spark.local.dir": str(folder),
        # What Spark would write down, or show on a page, are numbers of the data.
        "spark.eventLog.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        **WHILE_COUNTING,
    }
    if master.startswith("local"):
        here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        chosen |= {**here, "spark.driver.memory": megabytes, "spark.sql.shuffle.partitions": str(PARTITIONS)}
    elif resources.memory:
        chosen["spark.executor.memory"] = megabytes
    return {**chosen, **dict(cluster.settings)}


@contextmanager
def _started(resources: Resources, cluster: Cluster, folder: Path) -> Iterator[Any]:
    """A session of our own. What Java says goes to the private folder: its errors quote data."""
    require_java()
    settings = settings_for(resources, cluster, folder)
    # On one machine the workers run in this very Python; on a cluster theirs is the user's to name.
    if settings["spark.master"].startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    said = folder / "java.log"
    session = None
    try:
        with _standard_error(said):
            session = _new_session(settings)
    except Exception as error:
        reason = _why_not(said, error, settings["spark.master"])
    if session is None:
        raise InputError(reason)
    try:
        yield session
    finally:
        with suppress(Exception):
            session.stop()


def _new_session(settings: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder._options = {}  # the builder is one for all of Python, and remembers what others set
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@contextmanager
def _standard_error(path: Path) -> Iterator[None]:
    """What is started meanwhile writes its errors into a file."""
    sys.stderr.flush()
    saved, log = os.dup(2), os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)


def _why_not(said: Path, error: Exception, master: str) -> str:
    """One sentence about a session that did not start; no data were read yet."""
    text = said.read_text(errors="replace") if said.exists() else ""
    text += str(error)
    if "UnsupportedClassVersionError" in text:
        return "Spark does not start: this Java is too old for it; Spark 4 needs Java 17 or newer"
    if "Could not parse Master URL" in text:
        return f"Spark does not start: {master!r} is not the address of a master"
    if re.search(r"All masters are unresponsive|Failed to connect|Connection refused|UnknownHost", text):
        return f"Spark does not start: no master answers at {master!r}"
    found = re.search(r"(?:Exception|Error): ([^\n]{1,200})", text)
    return f"Spark does not start: {found[1].strip() if found else type(error).__name__}"
