"""Spark itself: the session that is there, or one of our own that leaves nothing behind."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dphist.engines.java import require_java
from dphist.engines.protocol import Resources
from dphist.engines.spark_arrow import arrow_frame
from dphist.engines.spark_settings import WHILE_COUNTING, WHILE_READING, kept, quiet
from dphist.engines.workspace import available_memory, private_folder, size_of, threads_for_counting
from dphist.errors import InputError, InvalidParameter, MissingExtra
from dphist.extras import is_spark_frame

NEEDED: Final = "the Spark engine needs PySpark 4: pip install 'dphist[spark]'"
LEAST_VERSION: Final = 4
# Half of the memory for Java; the rest is for Python's workers and the system's cache of files.
SHARE: Final = 0.5
LEAST_MEMORY: Final = 1 << 30
SECONDS: Final = 10.0  # for a master to answer
# Parts of a shuffle on one machine: enough that the parts of 10^9 pairs fit into memory.
PARTITIONS: Final = 32


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


@contextmanager
def session_for(source: object, resources: Resources, cluster: Cluster) -> Iterator[Any]:
    """The session of a DataFrame, the one that is active, or a new one that is stopped afterwards."""
    pyspark()
    there = source.sparkSession if is_spark_frame(source) else _there()  # type: ignore[attr-defined]
    if there is None:
        with private_folder(resources.folder) as folder, _started(resources, cluster, folder) as session, quiet():
            yield session
        return
    if cluster != Cluster():
        raise InvalidParameter("--master and --spark-conf are for a new Spark session, and one is there already")
    _check_version(there.version)
    _check_resources(resources)
    with kept(there, WHILE_COUNTING if is_spark_frame(source) else WHILE_READING), quiet():
        yield there


def _there() -> Any:
    """The session of this thread or, as Spark has one for each of them, of this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    context = SparkContext._active_spark_context
    # A context without a session is somebody's too, and must not be stopped by us.
    return SparkSession(context) if active is None and context is not None else active


def _check_resources(resources: Resources) -> None:
    """Wrong ones are an error, even if the session has its own."""
    threads_for_counting(resources, size_of(resources.memory) if resources.memory is not None else LEAST_MEMORY)
    if resources.folder is not None and not Path(resources.folder).is_dir():
        raise InputError(f"the temporary folder {str(resources.folder)!r} does not exist")


def frame_in(session: Any, table: Any) -> Any:
    """A table of Arrow as a DataFrame of a session, or of the one that is active."""
    pyspark()
    from pyspark.sql import SparkSession

    there = session or SparkSession.getActiveSession()
    if there is None:
        raise InvalidParameter("there is no Spark session: start one, or name it with session=")
    return arrow_frame(there, table, table.column_names)


def _check_version(version: str) -> None:
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < LEAST_VERSION:
        raise InputError(f"the Spark engine needs Spark 4, and this session is of Spark {version}")


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
        **WHILE_READING,
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
    _check_master(settings["spark.master"])
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
        _forget(())


def _check_master(master: str) -> None:
    """One sentence if no master of Spark's own kind answers; Spark would wait for a minute before it gives up."""
    if not master.startswith("spark://"):
        return
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InputError(f"Spark does not start: {master!r} is not the address of a master")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=SECONDS).close()
            return
    raise InputError(f"Spark does not start: no master answers at {master!r}")


def _new_session(settings: Mapping[str, str]) -> Any:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder._options = {}  # the builder is one for all of Python, and remembers what others set
    for name, value in settings.items():
        builder = builder.config(name, value)
    ours = SparkContext._gateway is None
    if not ours:
        _forget(())
    try:
        session = builder.getOrCreate()
    finally:
        if ours and SparkContext._gateway is not None:
            _forget(settings)
    session.sparkContext.setLogLevel("OFF")
    return session


def _forget(settings: Iterable[str]) -> None:
    """One Java serves all sessions of this process: it would hand our folder and our settings to others."""
    from pyspark import SparkContext

    java: Any = SparkContext._jvm
    with suppress(Exception):
        getattr(getattr(java, "org.apache.spark.util.Utils$"), "MODULE$").clearLocalRootDirs()
        for name in settings:
            java.java.lang.System.clearProperty(name)
        # Which sessions without a name of their own have from PySpark.
        java.java.lang.System.setProperty("spark.app.name", "pyspark-shell")


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
    if "Could not parse Master URL" in text or "Master must either be" in text:
        return f"Spark does not start: {master!r} is not the address of a master"
    if re.search(r"All masters are unresponsive|Failed to connect|Connection refused|UnknownHost", text):
        return f"Spark does not start: no master answers at {master!r}"
    found = re.search(r"(?:Exception|Error): ([^\n]{1,200})", text)
    return f"Spark does not start: {found[1].strip() if found else type(error).__name__}"
