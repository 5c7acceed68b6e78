"""A Spark cluster for tests: one master and some workers on loopback, which can be killed.

Every daemon picks its own ports, so that several test processes can each have a cluster. Worker n listens on
127.0.0.n, so that Spark treats each worker as a host: it runs no second copy of a task on the same host, and drops
the shuffle files of a whole host when a worker is lost.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from unittest import mock

import pyspark
import pytest
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from dphist.spark.java import require_java
from processes import kill, parents, tree, wait_until

# The `pytestmark` of test modules. Sessions share one JVM, so one test process runs them all.
ON_SPARK = [
    pytest.mark.together("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas >= 3:FutureWarning"),
]
HOME = Path(pyspark.__file__).parent
EXECUTOR = b"CoarseGrainedExecutorBackend"
# The tests are too short for better compilation to pay off.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# No REST server, which has a fixed port. A silent worker is lost after 15 seconds instead of 60.
DAEMON_OPTIONS = f"{QUICK_JVM} -Dspark.master.rest.enabled=false -Dspark.worker.timeout=15"
# Log lines of a daemon that is ready. Before its election a master rejects workers for 5 to 15 seconds.
ELECTED = re.compile(r"Starting Spark master at (spark://\S+).*New state: ALIVE", re.DOTALL)
REGISTERED = re.compile(r"Successfully registered with master")
DRIVER_LOGGING = """
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d %p %c{1}: %m%n%ex
"""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Wait for all executors, so that small jobs use all of them.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    # An executor that hangs is lost after 30 seconds instead of 120.
    "spark.executor.heartbeatInterval": "2s",
    "spark.network.timeout": "30s",
    "spark.network.timeoutInterval": "5s",
    # Do not wait 3 times 5 seconds for the shuffle files of a dead executor.
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "200ms",
}


def is_executor(pid: int) -> bool:
    try:
        return EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@dataclass
class Cluster:
    """A running cluster. Kills take `of`, any process below the victim, such as that of a task."""

    folder: Path
    cores: int
    memory: str
    guard: int
    master: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, kind: str, name: str, host: str, *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        """A daemon in the process group of the guard, and the file of its log."""
        home = self.folder / name
        home.mkdir()
        environment = clean_environment() | {
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(home / "local"),
            "SPARK_WORKER_DIR": str(home / "work"),
            "SPARK_LOG_DIR": str(home),
            "SPARK_CONF_DIR": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": DAEMON_OPTIONS,
            "SPARK_LAUNCHER_OPTS": QUICK_JVM,
        }
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        command += f"--host {host} --port 0 --webui-port 0".split()
        log = home / "log"
        with log.open("wb") as output:
            daemon = subprocess.Popen(
                command, cwd=home, env=environment, process_group=self.guard,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        return daemon, log

    def add_workers(self, number: int) -> None:
        """More workers, started side by side; also in the place of killed ones."""
        options = ["--cores", str(self.cores), "--memory", self.memory, self.master]
        started = []
        for index in range(len(self.workers) + 1, len(self.workers) + number + 1):
            started.append(self.start("worker.Worker", f"worker-{index}", f"127.0.0.{index}", *options))
            self.workers.append(started[-1][0])
        for daemon, log in started:
            logged(daemon, log, REGISTERED)

    def executors(self) -> list[int]:
        """The JVMs of the executors that run, in the order of their workers."""
        alive, above = [worker.pid for worker in self.workers if worker.poll() is None], parents()
        return [pid for worker in alive for pid in above if above[pid] == worker and is_executor(pid)]

    def kill_executor(self, of: int | None = None) -> int:
        """An executor dies with its Python processes. Its worker soon starts a new one."""
        victim = self._victim(of)
        kill(tree(victim))
        return victim

    def kill_worker(self, of: int | None = None) -> int:
        """A worker dies with its executor and does not come back: the computer is lost."""
        victim = parents()[self._victim(of)]
        kill(tree(victim))
        # Reaps the dead child.
        next(worker for worker in self.workers if worker.pid == victim).wait()
        return victim

    def _victim(self, of: int | None) -> int:
        wait_until(self.executors, "an executor")
        return next(pid for pid in self.executors() if of is None or of in tree(pid))

    @contextmanager
    def session(self, folder: Path, **conf: str) -> Iterator[SparkSession]:
        """A session with one executor on each living worker, all of which are gone at the end."""
        living = sum(worker.poll() is None for worker in self.workers)
        try:
            with session(self.master, folder, **{"spark.cores.max": str(living * self.cores)} | conf) as spark:
                yield spark
        finally:
            # Or the next test would take them for executors of its own.
            wait_until(lambda: not self.executors(), "the end of the executors")


def logged(daemon: subprocess.Popen[bytes], log: Path, pattern: re.Pattern[str]) -> re.Match[str]:
    """Wait for a match in the log of a daemon."""

    def text() -> str:
        return log.read_text(errors="replace")

    wait_until(lambda: pattern.search(text()) or daemon.poll() is not None, f"{pattern.pattern} in {log}")
    found = pattern.search(text())
    assert found, text()
    return found


@cache
def java_home() -> dict[str, str]:
    """The environment variable for Java, if Spark does not find it without."""
    with mock.patch.dict(os.environ):
        require_java()
        return {name: value for name, value in os.environ.items() if name == "JAVA_HOME"}


def clean_environment() -> dict[str, str]:
    """The environment without settings of another Spark, with the Python of the tests and a suitable Java."""
    others = ("SPARK_", "PYSPARK_", "JAVA_HOME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return (
        kept
        | java_home()
        | {
            "SPARK_HOME": str(HOME),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
    )


@contextmanager
def running_cluster(folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """A new cluster, with its logs and files in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    # The guard leads the process group of all daemons and executors. When this process ends in any way, its input
    # ends, and it kills them all. The Python processes of an executor end with it.
    guard = subprocess.Popen(["sh", "-c", "read -r line; kill -KILL 0"], stdin=subprocess.PIPE, process_group=0)
    daemons = []
    cluster = Cluster(folder, cores, memory, guard.pid)
    try:
        daemon, log = cluster.start("master.Master", "master", "127.0.0.1")
        daemons.append(daemon)
        cluster.master = logged(daemon, log, ELECTED)[1]
        cluster.add_workers(workers)
        yield cluster
    finally:
        daemons += cluster.workers
        # Not those that were killed before, whose process numbers may have been reused.
        everything = [pid for daemon in daemons if daemon.poll() is None for pid in tree(daemon.pid)]
        os.killpg(guard.pid, signal.SIGKILL)
        kill(everything)
        for process in (guard, *daemons):
            process.wait()
        assert guard.stdin is not None
        guard.stdin.close()


def start_driver(folder: Path) -> None:
    """Start the JVM of this process, which all sessions share.

    Spark would pass it the settings of the first session as system properties, which later sessions would inherit.
    It gets only what cannot be set later.
    """
    if SparkContext._gateway is not None:
        return
    (folder / "log4j2.properties").write_text(DRIVER_LOGGING)
    conf = SparkConf(loadDefaults=False)
    conf.set("spark.driver.memory", "1g").set("spark.driver.extraJavaOptions", QUICK_JVM)
    environment = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(folder), "SPARK_LAUNCHER_OPTS": QUICK_JVM}
    with mock.patch.dict(os.environ, environment), (folder / "driver.log").open("wb") as log:
        # The JVM ends with its input, that is with this process.
        gateway = launch_gateway(conf, {"stdout": log, "stderr": log})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)


@contextmanager
def session(master: str, folder: Path, **conf: str) -> Iterator[SparkSession]:
    """A session, also after one with another master. Its files are in the folder."""
    from spark_shared import close_shared  # imports this module

    close_shared()
    assert SparkContext._active_spark_context is None, "one session at a time"
    local = folder / "driver"
    local.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | {
        "spark.master": master,
        "spark.app.name": "test",
        "spark.local.dir": str(local),
        "spark.sql.warehouse.dir": str(local / "warehouse"),
        # Functions of test modules are pickled by name, and executors must use the tested dphist.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    with mock.patch.dict(os.environ, clean_environment(), clear=True):
        start_driver(local)
        assert SparkContext._jvm is not None
        # Otherwise the temporary files of this session would go to the folder of the first one.
        getattr(getattr(SparkContext._jvm, "org.apache.spark.util.Utils$"), "MODULE$").clearLocalRootDirs()
        builder = SparkSession.builder
        for name, value in (settings | conf).items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()
