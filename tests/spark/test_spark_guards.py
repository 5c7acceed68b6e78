"""What a release by Spark must not do: share noise, fail for one row, overwrite, reveal more than it releases."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import BooleanType

import dphist
from dphist.errors import InputError, OutputError
from dphist.objects import without_secrets
from dphist.outputs.target import target_of
from dphist.spark import folder as spark_folder
from dphist.spark import noise as on_spark
from dphist.spark.folder import HadoopPath
from release_data import events
from spark_cluster import ON_SPARK
from spark_shared import shared_session

pytestmark = ON_SPARK

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6, "max_items_per_user": 3}


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return shared_session("local")


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    rows = spark.range(1200).selectExpr("id AS user", "concat('item ', id % 3) AS item", "id % 50 AS n")
    return rows.withColumn("text", sql.expr("CASE WHEN user = 7 THEN 'x' ELSE 'xx' END"))


def test_listed_items_that_are_equal_for_spark_have_their_own_noise(spark: SparkSession) -> None:
    """DuckDB distinguishes nanoseconds, and Spark does not. Equal noise would show which item is real."""
    when = datetime(2026, 1, 2, 3, 4, 5)
    frame = spark.createDataFrame([(user, when) for user in range(50)], "user int, item timestamp_ntz")
    base = int(when.timestamp()) * 10**9
    listed = pa.table({"item": pa.array([base + step for step in range(200)], pa.timestamp("ns"))})
    result = dphist.release(frame, **ASKED, items=listed)
    assert len(result) == 200
    assert len(set(result.counts.tolist())) > 20


SIMPLER = ["1 / (n - n) > 0 or true", "cast(text as int) is null", "raise_error(text) is null"]


@pytest.mark.parametrize(
    "condition",
    [
        "element_at(array(1, 2), cast(length(text) - 1 as int)) > 0 or raise_error(text) is null",
        *(pytest.param(condition, marks=pytest.mark.slow) for condition in SIMPLER),
    ],
)
def test_a_row_on_which_a_condition_fails_is_not_an_error(frame: DataFrame, condition: str) -> None:
    dphist.release(frame, **ASKED, where=condition)


def test_functions_and_variables_of_the_session_are_refused(spark: SparkSession, frame: DataFrame) -> None:
    seen: list[Any] = []

    def every_other(text: str) -> bool:
        seen.append(text)
        return len(seen) % 2 == 0

    spark.udf.register("every_other", every_other, BooleanType())
    spark.sql("DECLARE OR REPLACE VARIABLE limit_of_mine INT DEFAULT 5")
    spark.sql("DECLARE OR REPLACE VARIABLE n INT DEFAULT 5")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW others AS SELECT 1 AS x")
    spark.sql("CREATE OR REPLACE FUNCTION plus_one(x INT) RETURNS INT RETURN x + 1")
    spark.sql(
        "CREATE OR REPLACE FUNCTION looks_around(x INT) RETURNS BOOLEAN RETURN (SELECT count(*) FROM range(3)) > x"
    )
    for condition in (
        "every_other(text)",
        "plus_one(n) = 2",
        "default.plus_one(n) = 2",
        "`plus_one` (n) = 2",
        "plus_one --\n(n) = 2",
        "plus_one/**/(n) = 2",
        "identifier('plus_one')(n) = 2",
        "looks_around(n)",
        "looks_around/* */(n)",
        "identifier('looks_around')(n)",
        "identifier('default.looks_around')(n)",
        "every_other/**/(text)",
        "identifier('every_other')(text)",
        "java_method('java.lang.System', 'nanoTime') > n",
        "/* /* */ ' */ exists (select 1 from others) --'",
        "n = 1 -- \\\n ' \n or exists (select 1 from others) --'",
        "n = (select max(x) from others)",
        "exists(array(1), x -> x = (select max(x) from others))",
        "array_contains(array(*), 'x')",
        "n < limit_of_mine",
        r"r'\' = text or exists (select 1 from others where '\'' <> 'x')",
        "n in (select x from others)",
        "rand() < 0.5",
        "monotonically_increasing_id() < 7",
        "_metadata.row_index < 7",
        "count(n) > 3",
        "row_number() over (order by n) < 7",
    ):
        with pytest.raises(InputError, match="condition") as caught:
            dphist.release(frame, **ASKED, where=condition)
        assert "Trace" not in str(caught.value)
    spark.sql("DROP FUNCTION plus_one")
    spark.sql("DROP FUNCTION looks_around")
    # A column has precedence over a variable of the same name.
    some = dphist.release(frame, **ASKED, where="n < 10").to_pandas()["count"]
    assert all(abs(count - 80) < 60 for count in some)


def test_functions_that_replace_those_of_spark(spark: SparkSession, frame: DataFrame) -> None:
    """A session can give precedence to its own functions, even over those of operators."""
    setting = "spark.sql.functionResolution.sessionOrder"
    spark.conf.set(setting, "first")
    try:
        for name in ("isnull", "between", "try_to_binary"):
            spark.udf.register(name, lambda *_: True, BooleanType())
        for condition in ("isnull(text)", "isnull/**/(text)", "n between 1000 and 2000"):
            # Refused, or computed by Spark's own function, which no row satisfies.
            with suppress(InputError):
                assert len(dphist.release(frame, **ASKED, where=condition)) == 0
        assert len(dphist.release(frame, **ASKED, where="text = 'nobody has this'")) == 0
    finally:
        spark.conf.unset(setting)
        for name in ("isnull", "between", "try_to_binary"):
            spark.sql(f"DROP TEMPORARY FUNCTION IF EXISTS {name}")


def test_folders_that_are_not_releases_are_not_replaced(frame: DataFrame, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "letters").mkdir(parents=True)
    (home / "letters" / "thesis.txt").write_text("mine")
    result = dphist.release(frame, **ASKED)
    for force in (False, True):
        with pytest.raises(OutputError, match=r"already exists|was not written by a release"):
            dphist.release(frame, **ASKED, output=f"{home}/", force=force)
        with pytest.raises(OutputError, match=r"already exists|was not written by a release"):
            result.write(f"file://{home}", force=force)
    assert (home / "letters" / "thesis.txt").read_text() == "mine"


def test_a_folder_that_appears_meanwhile(
    frame: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the last check, and after it: nothing is replaced, and no temporary files are left."""
    late = tmp_path / "late"
    write, check = spark_folder.write_rows, spark_folder.FileSystem.check

    def appear() -> None:
        late.mkdir()
        (late / "precious.txt").write_text("mine")

    def slow_write(rows: DataFrame, address: str) -> None:
        write(rows, address)
        appear()

    with monkeypatch.context() as patch:
        patch.setattr(spark_folder, "write_rows", slow_write)
        with pytest.raises(OutputError, match="already exists"):
            dphist.release(frame, **ASKED, output=f"{late}/")
    assert [path.name for path in tmp_path.iterdir()] == ["late"]
    assert [path.name for path in late.iterdir()] == ["precious.txt"]
    (late / "precious.txt").unlink()
    late.rmdir()

    class Blind(spark_folder.FileSystem):
        def place(self, work: HadoopPath, size: int, *, force: bool) -> None:
            exists = self._system.exists
            late_once = iter([False])

            class System:
                def __getattr__(system, name: str) -> object:  # noqa: N805
                    return getattr(real, name)

                def exists(system, path: HadoopPath) -> bool:  # noqa: N805
                    if path is self.final and next(late_once, None) is False:
                        appear()
                        return False
                    return bool(exists(path)) if path is not self.final else False

            real, self._system = self._system, System()
            super().place(work, size, force=force)

    with monkeypatch.context() as patch:
        patch.setattr(spark_folder, "FileSystem", Blind)
        patch.setattr(spark_folder.FileSystem, "check", lambda *_, **__: None)
        with pytest.raises(OutputError, match="already exists"):
            dphist.release(frame, **ASKED, output=f"{late}/")
    assert check is spark_folder.FileSystem.check
    assert [path.name for path in late.iterdir()] == ["precious.txt"]


def test_an_attempt_that_still_writes_leaves_nothing_in_the_folder(
    frame: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower of two attempts at a task, under speculation, writes on after its job has committed."""
    write = spark_folder.write_rows

    def with_late_attempt(rows: DataFrame, address: str) -> None:
        write(rows, address)
        late = Path(address.removeprefix("file:")) / "_temporary" / "0" / "attempt_1"
        late.mkdir(parents=True)
        (late / "part-00000.parquet").write_text("half a file")

    monkeypatch.setattr(spark_folder, "write_rows", with_late_attempt)
    dphist.release(frame, **ASKED, output=f"{tmp_path}/out/")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert not [path for path in (tmp_path / "out").iterdir() if path.is_dir()]
    assert dphist.verify(tmp_path / "out").problems == ()


@pytest.mark.slow
def test_folder_names_are_not_patterns(frame: DataFrame, tmp_path: Path) -> None:
    name = "g*b[1]p{a,b} q? ü"
    for other in ("gxb1pa qx ü", "gb1pb qy ü", "g"):
        (tmp_path / other).mkdir(exist_ok=True)
        pq.write_table(pa.table({"item": ["other"], "count": [1.0]}), tmp_path / other / "x.parquet")
    found = dphist.release(frame, **ASKED, output=f"{tmp_path}/{name}/")
    assert len(found) == found.to_spark().count() == 3
    assert found.to_pandas()["item"].tolist() != ["other"]
    assert dphist.verify(tmp_path / name).verified


def test_columns_that_a_folder_cannot_hold(frame: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot have two columns"):
        dphist.release(frame, **{**ASKED, "item": ("item", "Item=n")}, output=f"{tmp_path}/out/")


def test_passwords_are_in_no_address_that_is_shown() -> None:
    shown = {
        "s3a://KEY:SECRET@bucket/x": "s3a://bucket/x",
        "abfss://container@account.dfs/x": "abfss://container@account.dfs/x",
        "hdfs://host:8020/x": "hdfs://host:8020/x",
        "/a:b@c": "/a:b@c",
    }
    assert {address: without_secrets(address) for address in shown} == shown
    assert "SECRET" not in target_of("s3a://KEY:SECRET@bucket/x").title()


def test_a_release_keeps_no_link_to_its_input(spark: SparkSession, tmp_path: Path) -> None:
    """It does not change with the input, and Spark's plan and statistics reveal nothing of what was counted."""
    seen = []
    for rare in (0, 3000):
        path = str(tmp_path / "changing.parquet")
        counts = {"tea": 700, "milk": 500, **{f"rare {k}": 1 for k in range(rare)}}
        spark.createDataFrame(events(counts)).write.mode("overwrite").parquet(path)
        asked = {**ASKED, "max_items_per_user": None, "top": 1, "seed": 1}
        rows = dphist.release(spark.read.parquet(path), **asked).to_spark()
        before = rows.collect()
        assert [row[0] for row in before] == ["tea"]
        spark.createDataFrame(events({"other": 900})).write.mode("overwrite").parquet(path)
        assert rows.collect() == before
        plan: str = rows._jdf.queryExecution().stringWithStats()
        assert "sizeInBytes" in plan
        assert "Scan ExistingRDD" in plan
        for text in (plan, (rows.rdd.toDebugString() or b"").decode()):
            assert not re.search("FileScan|changing|dphist_noise|rare", text)
        seen.append((before, re.sub(r"#\d+L?|RDD\[\d+\]|\[\d+\]", "#", plan)))
    assert seen[0] == seen[1]


def test_rows_and_files_do_not_depend_on_how_they_were_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled, in other partitions, or with many items that are not released: the same rows in the same files."""
    true = {f"item {k:03}": 60 + k for k in range(40)}
    more = {f"rare {k:05}": 1 for k in range(4000)}
    tables: list[tuple[pa.Table, int]] = [(events(true, shuffle=5), 7), (events(true | more, shuffle=6), 3)]
    small = {
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1k",
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1",
    }
    before = {name: str(spark.conf.get(name)) for name in small}
    monkeypatch.setattr(on_spark, "ROWS_A_PART", 11)
    asked = {**ASKED, "max_items_per_user": 1, "mechanism": "gaussian", "seed": 3}
    seen = []
    try:
        for name, value in small.items():
            spark.conf.set(name, value)
        for number, (table, parts) in enumerate(tables):
            frame: DataFrame = spark.createDataFrame(table).repartition(parts)
            kept = dphist.release(frame, **asked).to_spark()
            dphist.release(frame, **asked, output=f"{tmp_path}/{number}/")
            # Not the bytes: an executor lists the encodings of a column in any order.
            files = [(path.name[:10], path.stat().st_size, pq.read_table(path)) for path in
                     sorted((tmp_path / f"{number}").glob("part-*"))]  # fmt: skip
            seen.append((kept.rdd.glom().map(lambda rows: [tuple(row) for row in rows]).collect(), files))
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert len(seen[0][0]) == len(seen[0][1]) == 4
    assert sum(map(len, seen[0][0])) == 40
    assert seen[0] == seen[1]


@pytest.mark.slow
def test_times_in_structures_keep_their_digits(spark: SparkSession) -> None:
    rows = [(user, f"2026-01-02 03:04:05.00000{user % 2}") for user in range(400)]
    frame = spark.createDataFrame(rows, "user int, text string").selectExpr(
        "user", "named_struct('at', cast(text as timestamp)) AS item"
    )
    found = dphist.release(frame, **ASKED).to_pandas()["item"].tolist()
    assert len(found) == 2
    assert all(re.search(r'"at":"2026-01-0\dT\d\d:04:05\.00000[01](Z|\+00:00)"', text) for text in found)
