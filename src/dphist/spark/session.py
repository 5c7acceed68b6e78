"""Spark sessions: the active one, or a private one that leaves nothing behind."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dphist.counting.task import Progress, Resources
from dphist.counting.workspace import available_memory, private_folder, size_of, threads_for_counting
from dphist.errors import InputError, InvalidParameter, MissingExtra, install_command, is_spark_frame
from dphist.spark.java import require_java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NEEDED: Final = f"the Spark engine needs PySpark 4.1 or newer: {install_command('spark')}"
LEAST_VERSION: Final = (4,)
# An older client cannot convert schemas as this version does.
LEAST_PYSPARK: Final = (4, 1)
# Half of the memory is for Java; Python workers and the file cache use the rest.
SHARE: Final = 0.5
LEAST_MEMORY: Final = 1 << 30
CONNECT_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.5
# Shuffle partitions on one machine, so that each partition of 10^9 pairs fits into memory.
PARTITIONS: Final = 32

# Settings while counting: a value that does not fit is NULL, because an error would reveal it; and no part of a
# condition is moved out of the expression that catches its errors. The last two are for rounds: pairs are not
# shuffled for a join, and small frames that are kept have few partitions.
WHILE_COUNTING: Final = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.requireAllClusterKeysForCoPartition": "false",
    "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
}
# Further settings for files and frames; they could change the contents of a Spark DataFrame. Names are exact,
# times are in UTC, folder names are text, invalid JSON is NULL as a whole, and Parquet has the types of its
# footer.
WHILE_READING: Final = {
    **WHILE_COUNTING,
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.timeType.enabled": "true",
}


@dataclass(frozen=True)
class Cluster:
    master: str | None = None
    settings: tuple[tuple[str, str], ...] = ()


@contextmanager
def session_for(source: object, resources: Resources, cluster: Cluster) -> Iterator[SparkSession]:
    """The session of a DataFrame, the active one, or a new one that is stopped afterwards."""
    require_pyspark()
    session = source.sparkSession if is_spark_frame(source) else active_session()
    if session is None:
        with private_folder(resources.folder) as folder, new_session(resources, cluster, folder) as new, quiet():
            yield new
        return
    if cluster != Cluster():
        raise InvalidParameter(
            "<--master> and <--spark-conf> are for a new Spark session, but one is there already"
        )
    if not is_supported(session.version):
        raise InputError(f"the Spark engine needs Spark 4, but this session is Spark {session.version}")
    # Invalid resources are an error, even if the session ignores them.
    threads_for_counting(resources, size_of(resources.memory) if resources.memory is not None else LEAST_MEMORY)
    if resources.folder is not None and not Path(resources.folder).is_dir():
        raise InputError(f"the temporary folder {str(resources.folder)!r} does not exist")
    with changed_settings(session, WHILE_COUNTING if is_spark_frame(source) else WHILE_READING), quiet():
        yield session


def require_pyspark() -> None:
    try:
        import pyspark
    except ImportError:
        raise MissingExtra(NEEDED) from None
    version = str(getattr(pyspark, "__version__", "unknown"))
    if not is_supported(version, LEAST_PYSPARK):
        raise MissingExtra(f"{NEEDED} (this is PySpark {version})")


def is_supported(version: str, least: tuple[int, ...] = LEAST_VERSION) -> bool:
    parts = version.split(".")[: len(least)]
    return all(map(str.isdigit, parts)) and tuple(map(int, parts)) >= least


def active_session() -> SparkSession | None:
    """The session of this thread, or of this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    context = SparkContext._active_spark_context
    # A context without a session is the user's too: we must not stop it.
    return SparkSession(context) if active is None and context is not None else active


def is_connect(session: SparkSession) -> bool:
    """Whether this is a session of Spark Connect, which has no Java."""
    return not hasattr(session, "_jsparkSession")


def java_of(session: SparkSession) -> Any:
    """The Java classes of a classic session."""
    assert session._jvm is not None
    return session._jvm


_lock = threading.Lock()
# For each session, the original values of changed settings and the number of counts that changed them.
_changed: weakref.WeakKeyDictionary[SparkSession, dict[str, tuple[str | None, int]]] = weakref.WeakKeyDictionary()


@contextmanager
def changed_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session; the last of several concurrent counts restores them."""
    names = []
    try:
        with _lock:
            changed = _changed.setdefault(session, {})
            for name, value in settings.items():
                before, users = changed.get(name) or (session.conf.get(name, None), 0)
                changed[name] = before, users + 1
                names.append(name)
                session.conf.set(name, value)
        yield
    finally:
        with _lock:
            for name in names:
                before, users = changed.pop(name)
                if users > 1:
                    changed[name] = before, users - 1
                else:
                    with suppress(Exception):  # the session may be gone
                        session.conf.unset(name) if before is None else session.conf.set(name, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable PySpark's error log, which quotes data."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    with log_only(lambda _record: False, loggers):
        yield


@contextmanager
def log_only(is_kept: Callable[[logging.LogRecord], bool], loggers: Sequence[logging.Logger]) -> Iterator[None]:
    for logger in loggers:
        logger.addFilter(is_kept)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_kept)


def frame_in(session: SparkSession | None, table: pa.Table) -> DataFrame:
    """An Arrow table as a DataFrame of the given session, or of the active one."""
    require_pyspark()
    from pyspark.sql import SparkSession

    from dphist.spark.dataframes import arrow_frame

    chosen = session or SparkSession.getActiveSession()
    if chosen is None:
        raise InvalidParameter("there is no active Spark session: start one, or pass session=")
    return arrow_frame(chosen, table)


@contextmanager
def report_progress(session: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Call `progress` with the increasing share of finished tasks, and with 1 at the end."""
    if progress is None or is_connect(session):
        yield
        return
    done, tracker = threading.Event(), session.sparkContext.statusTracker()

    def watch() -> None:
        stages: dict[int, tuple[int, int]] = {}
        shown = 0.0
        while not done.wait(POLL_SECONDS):
            with suppress(Exception):  # a failing display must not stop the count
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        stages[stage] = (info.numCompletedTasks, info.numTasks)
                tasks = sum(total for _, total in stages.values())
                # Stages that have not begun are unknown, so 1 is reserved for the end.
                share = min(0.99, sum(ready for ready, _ in stages.values()) / tasks) if tasks else 0.0
                if share > shown:
                    shown = share
                    progress(shown)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    with suppress(Exception):
        progress(1.0)


@contextmanager
def new_session(resources: Resources, cluster: Cluster, folder: Path) -> Iterator[SparkSession]:
    """A new session. Java logs to the private folder, because its errors quote data."""
    require_java()
    settings = settings_for(resources, cluster, folder)
    master = settings["spark.master"]
    check_master(master)
    # On one machine the workers use this Python; on a cluster the user chooses theirs.
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    log = folder / "java.log"
    session = None
    try:
        with standard_error_to(log):
            session = start_session(settings)
    except Exception as error:
        text = (log.read_text(errors="replace") if log.exists() else "") + str(error)
        reason = why_not_started(text, type(error).__name__, master)
    if session is None:
        raise InputError(f"Spark does not start: {reason}")
    try:
        yield session
    finally:
        with suppress(Exception):
            session.stop()
        reset_java(())


def settings_for(resources: Resources, cluster: Cluster, folder: Path) -> dict[str, str]:
    """The settings of a new session; the user's take precedence."""
    memory = size_of(resources.memory) if resources.memory else max(int(available_memory() * SHARE), LEAST_MEMORY)
    threads = threads_for_counting(resources, memory)
    master = cluster.master or f"local[{threads}]"
    megabytes = f"{max(memory >> 20, 512)}m"
    settings = {
        "spark.master": master,
        "spark.app.name": "dphist",
        "spark.local.dir": str(folder),
        # The event log and the web UI show counts.
        "spark.eventLog.enabled": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        **WHILE_READING,
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": megabytes, "spark.sql.shuffle.partitions": str(PARTITIONS),
        }  # fmt: skip
    elif resources.memory:
        settings["spark.executor.memory"] = megabytes
    return {**settings, **dict(cluster.settings)}


def check_master(master: str) -> None:
    """Raise `InputError` if no standalone master answers; Spark itself would try for a minute."""
    if not master.startswith("spark://"):
        return
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InputError(f"Spark does not start: {master!r} is not a valid master address")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            return
    raise InputError(f"Spark does not start: no master answers at {master!r}")


def start_session(settings: Mapping[str, str]) -> SparkSession:
    """Start Spark, and Java unless this process has started it before."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder._options = {}  # the builder is global, and keeps the settings of earlier sessions
    builder = builder.config(map=dict(settings))
    starts_java = SparkContext._gateway is None
    if not starts_java:
        reset_java(())
    try:
        session = builder.getOrCreate()
    finally:
        if starts_java and SparkContext._gateway is not None:
            reset_java(settings)
    session.sparkContext.setLogLevel("OFF")
    return session


def reset_java(settings: Iterable[str]) -> None:
    """Remove our folder and settings from Java, so that later sessions of this process do not inherit them."""
    from pyspark import SparkContext

    java = SparkContext._jvm
    if java is None:
        return
    with suppress(Exception):
        getattr(getattr(java, "org.apache.spark.util.Utils$"), "MODULE$").clearLocalRootDirs()
        for name in settings:
            java.java.lang.System.clearProperty(name)
        # PySpark's own default.
        java.java.lang.System.setProperty("spark.app.name", "pyspark-shell")


@contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Redirect standard error, also of new processes, to a file."""
    sys.stderr.flush()
    saved, log = os.dup(2), os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    try:
        os.dup2(log, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(log)


def why_not_started(text: str, error: str, master: str) -> str:
    """Why a session did not start, from the messages of Java and Python; no data was read yet."""
    if "UnsupportedClassVersionError" in text:
        return "this Java is too old; Spark 4 needs Java 17 or newer"
    if "Could not parse Master URL" in text or "Master must either be" in text:
        return f"{master!r} is not a valid master address"
    if re.search(r"All masters are unresponsive|Failed to connect|Connection refused|UnknownHost", text):
        return f"no master answers at {master!r}"
    match = re.search(r"(?:Exception|Error): ([^\n]{1,200})", text)
    return match[1].strip() if match else error
