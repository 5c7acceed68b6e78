"""The Spark engine: the same counts as the embedded one; the user's session and DataFrames do not change."""

from __future__ import annotations

import datetime
import random
import threading
from decimal import Context, Decimal
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from dphist.aliases import ArrowArray
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Resources
from dphist.errors import InputError
from dphist.spark.counting import SparkEngine
from engine_cases import (
    EACH_ENGINE,
    KEY,
    Factory,
    Rows,
    by_engine,
    counts_by_hand,
    events,
    histogram,
    is_spark,
    kept_by_hand,
    on_engines,
    task,
)
from spark_shared import shared_session

ON_SPARK_ALONE = on_engines("spark-local")
SECRET = "S3CR3T-cell"
T = TypeVar("T")
ODD = [
    "a", "b", "é", "e\u0301", "👩‍👩‍👧", "3:abc", "12", "-", "'", '"', " x ", "a\tb", "你好", "ẞ", "\u202eabc",
    "1:a1:b",
]  # fmt: skip
DAYS = [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29), datetime.date(2024, 3, 1)]


@cache
def rows() -> Rows:
    """Users, texts, numbers and days, some of them missing."""
    drawn = random.Random(20260101)

    def some(values: list[T]) -> T | None:
        return None if drawn.random() < 0.03 else drawn.choice(values)

    users = [*range(-20, 380), 2**62]
    return [(some(users), some(ODD), some([*range(-3, 9)]), some(DAYS)) for _ in range(4000)]


def table() -> pa.Table:
    kinds = [pa.int64(), pa.string(), pa.int32(), pa.date32()]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows(), strict=True), kinds, strict=True)]
    return pa.table(arrays, names=["user", "text", "number", "day"])


CASES: list[dict[str, Any]] = [
    {"items": ("day", "text"), "null_items": True},
    {"items": ("text", "number"), "max_items_per_user": 2, "portable": True, "null_items": True},
    {"items": ("number", "day"), "max_items_per_user": 4, "portable": True, "lower_threshold": 20},
    {"items": "number", "user": "text", "max_items_per_user": 5, "portable": True},
]  # fmt: skip


@by_engine("case", range(len(CASES)), [0, 1], range(len(CASES)))
def test_all_engines_give_the_same_counts_before_noise(engine: Factory, tmp_path: Path, case: int) -> None:
    pq.write_table(table(), tmp_path / "e.parquet")
    more = CASES[case]
    found = histogram(engine, task(tmp_path / "e.parquet", **more))
    names = [more.get("user", "user"), *([more["items"]] if isinstance(more["items"], str) else more["items"])]
    places = [table().column_names.index(name) for name in names]
    chosen = [tuple(row[place] for place in places) for row in rows()]
    kept = kept_by_hand(chosen, more.get("max_items_per_user"), more.get("null_items", False), KEY)
    counts = counts_by_hand(kept)
    assert found == {item: n for item, n in counts.items() if n >= more.get("lower_threshold", 1)}
    if is_spark(engine):
        assert found == histogram(DuckDBEngine, task(tmp_path / "e.parquet", **more))


@EACH_ENGINE
def test_the_portable_choice_of_times_and_decimals(engine: Factory) -> None:
    moments = [datetime.datetime(2024, 1, 1, 1, 2, 3, n * 1000) for n in range(5)]
    prices = pa.array([f"{n % 25 // 5}.50" for n in range(50)]).cast(pa.decimal128(9, 2))
    whole = {"user": [1] * 25 + [2] * 25, "when": pa.array(moments * 10, pa.timestamp("us")), "price": prices}
    source = pa.table(whole)
    for items in (("when", "price"),) if is_spark(engine) else ("when", "price", ("when", "price")):
        wanted = task(source, items=items, max_items_per_user=2, portable=True)
        assert histogram(engine, wanted) == histogram(DuckDBEngine, wanted)


@EACH_ENGINE
def test_lists_have_the_same_text_on_all_engines(engine: Factory) -> None:
    columns: list[ArrowArray] = [
        pa.array([[1, None], [], [2**62]], pa.list_(pa.int64())),
        pa.array([["a", 'b"c'], ["é👩"], [None]], pa.list_(pa.string())),
        pa.array([[True], [False], None], pa.list_(pa.bool_())),
    ]
    for column in columns:
        source = pa.table({"user": [1, 2, 3], "item": column})
        assert histogram(engine, task(source)) == histogram(DuckDBEngine, task(source))


def settings(spark: SparkSession) -> dict[str, str]:
    return dict(spark.conf.getAll)


@ON_SPARK_ALONE
def test_the_settings_of_a_session_are_restored(engine: Factory, tmp_path: Path) -> None:
    spark = shared_session("local")
    pq.write_table(table(), tmp_path / "e.parquet")
    own = {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "Asia/Tokyo",
           "spark.sql.caseSensitive": "false", "spark.sql.json.enablePartialResults": "true"}  # fmt: skip
    unset = settings(spark)
    for name, value in own.items():
        spark.conf.set(name, value)
    before = settings(spark)
    assert before != unset
    frame = spark.createDataFrame(table().select(["user", "text"]).slice(0, 9))
    for source in (tmp_path / "e.parquet", frame):
        with engine(Resources()).count(task(source, items="text", rank=2)) as counted:
            assert spark.conf.get("spark.sql.ansi.enabled") == "false"
            assert counted.at_rank > 0
        assert settings(spark) == before
        with pytest.raises(InputError, match="no column"):
            engine(Resources()).check(task(source, items="nope"))
        with pytest.raises(KeyboardInterrupt), engine(Resources()).count(task(source, items="text")):
            raise KeyboardInterrupt
        assert settings(spark) == before
    counts = [threading.Thread(target=lambda: histogram(engine, task(table(), items="text"))) for _ in range(3)]
    for thread in counts:
        thread.start()
    for thread in counts:
        thread.join()
    assert settings(spark) == before
    # Counts in other threads used the session and did not stop it.
    assert spark.range(3).count() == 3
    for name in own:
        spark.conf.unset(name)


@ON_SPARK_ALONE
def test_columns_of_a_frame(engine: Factory, tmp_path: Path) -> None:
    spark = shared_session("local")
    pq.write_table(pa.table({"User": [1, 2, None], "ITEM": ["a", "a", "b"]}), tmp_path / "e.parquet")
    frame = spark.read.schema("user bigint, item string").parquet(str(tmp_path / "e.parquet"))
    assert histogram(engine, task(frame)) == {"a": 2}
    assert histogram(engine, task(frame, where="ITEM = 'a' AND user < 2")) == {"a": 1}
    with pytest.raises(InputError, match=r"no column 'User' .*'user'.*; its columns are 'user', 'item'"):
        engine(Resources()).check(task(frame, user="User"))
    # Names that Spark finds twice, and that only their position distinguishes.
    twice = frame.join(frame.withColumnRenamed("item", "Item"), "user")
    assert histogram(engine, task(twice, items=("item", "Item"))) == {("a", "a"): 2}
    with pytest.raises(InputError, match="2 columns with the name 'item'"):
        engine(Resources()).check(task(frame.select("user", "item", "item")))


def broadcasts(frame: DataFrame) -> list[str]:
    """The parts of a frame's executed plan that went through the driver."""
    frame.collect()
    lines = frame._jdf.queryExecution().executedPlan().toString().split("== Initial Plan ==")[0].splitlines()
    depths = [len(line) - len(line.lstrip(" :+-*()0123456789")) for line in lines]
    found = []
    for start, line in enumerate(lines):
        if "BroadcastExchange" in line:
            below = range(start + 1, len(lines))
            end = next((n for n in below if depths[n] <= depths[start]), len(lines))
            found.append("\n".join(lines[start:end]))
    return found


@ON_SPARK_ALONE
def test_counts_of_a_public_list_do_not_go_through_the_driver(engine: Factory) -> None:
    """The driver collects a small table on one side of a join, unless a hint forbids it."""
    spark = shared_session("local")
    frame = spark.sql("SELECT id AS user, 'item ' || id % 7 AS item FROM range(100)")
    listed = events(pa.table({"item": [f"item {n}" for n in range(9)]}))
    spark_engine = engine(Resources())
    assert isinstance(spark_engine, SparkEngine)
    with spark_engine.count(task(frame, public_items=listed, max_items_per_user=1)) as found:
        sent = broadcasts(found.frame)
        assert {row["users"] for row in found.frame.collect()} == {0, 14, 15}
    assert len(sent) == 1  # the public list itself
    assert "LocalTableScan" in sent[0]
    assert "Aggregate" not in sent[0]


@ON_SPARK_ALONE
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_decimals_have_the_text_of_all_engines(engine: Factory, ansi: str) -> None:
    """Without zeros at the end, however many digits the type has: these can follow from other rows."""
    spark, digits = shared_session("local"), ["1.50", "2.00", "-20", "0", "0.05", "9007199254740992", "-0.5"]
    texts = {"1.5": 1, "2": 1, "-20": 1, "0": 1, "0.05": 1, "-0.5": 1}
    before = spark.conf.get("spark.sql.ansi.enabled")
    try:
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        for places in (2, 3, 18):
            kind = pa.decimal128(38, places)
            exact = [Decimal(text).quantize(Decimal(1).scaleb(-places), context=Context(60)) for text in digits]
            made = pa.table({"user": range(len(digits)), "item": pa.array(exact, kind)})
            for source in (made, spark.createDataFrame(made)):
                assert histogram(engine, task(source, as_text=True)) == texts
            assert histogram(DuckDBEngine, task(made, as_text=True)) == texts
        whole = pa.table({"user": [1, 2], "item": pa.array([Decimal(900), Decimal(2**53)])})
        assert histogram(engine, task(whole, as_text=True)) == {"900": 1}
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


@ON_SPARK_ALONE
def test_collations_of_a_frame_are_ignored(engine: Factory) -> None:
    spark = shared_session("local")
    made = "SELECT 'u' || id AS user, 'resume' AS item FROM range(40)"
    made += " UNION ALL VALUES ('x', 'RESUME'), ('X', 'resume')"
    blind = spark.sql(
        f"SELECT collate(user, 'UTF8_LCASE') AS user, collate(item, 'UTF8_LCASE') AS item FROM ({made})"
    )
    assert histogram(engine, task(blind, max_items_per_user=1)) == {"RESUME": 1, "resume": 41}
    listed = events(spark.sql("SELECT explode(array('resume', 'Resume')) AS item"))
    assert histogram(engine, task(blind, public_items=listed)) == {"resume": 41, "Resume": 0}
    engine(Resources()).check(task(blind, public_items=listed))


@ON_SPARK_ALONE
def test_a_frame_that_fails_on_its_data_reveals_none(engine: Factory, capfd: pytest.CaptureFixture[str]) -> None:
    spark = shared_session("local")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    frame = spark.sql(f"SELECT id AS user, CAST('{SECRET}' || id AS INT) AS item FROM range(5)")
    spark.conf.unset("spark.sql.ansi.enabled")
    for more in ({}, {"rank": 1}):
        with pytest.raises(InputError, match="the Spark DataFrame cannot be counted") as caught:
            histogram(engine, task(frame, **more))
        assert SECRET not in str(caught.value)
        assert caught.value.__context__ is None
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err


@ON_SPARK_ALONE
def test_parquet_types_that_spark_lacks(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    nanoseconds = 1_704_070_923_000_000_999
    for zone in (None, "UTC"):
        moments = pa.array([nanoseconds, nanoseconds + 1, -1500], pa.timestamp("ns", zone))
        pq.write_table(pa.table({"user": [1, 2, 3], "item": moments}), path)
        found = {item.replace(tzinfo=None): n for item, n in histogram(engine, task(path)).items()}
        epoch = datetime.datetime(1970, 1, 1)
        cut = [
            epoch + datetime.timedelta(microseconds=n) for n in (nanoseconds // 1000, nanoseconds // 1000 + 1, -1)
        ]
        assert found == dict.fromkeys(cut, 1)
        assert found == {
            item.replace(tzinfo=None): n for item, n in histogram(engine, task(pq.read_table(path))).items()
        }
    pq.write_table(pa.table({"user": [1], "item": pa.array([1.5], pa.float16())}), path)
    with pytest.raises(InputError, match=r"e\.parquet' cannot be read: .* a type that Spark does not support"):
        engine(Resources()).check(task(path))


@ON_SPARK_ALONE
def test_paths_that_spark_does_not_find_or_would_skip(engine: Factory, tmp_path: Path) -> None:
    hidden = tmp_path / "_x.csv"
    hidden.write_text("user,item\n1,a\n")
    with pytest.raises(InputError, match="a name that Spark treats as hidden"):
        engine(Resources()).check(task(hidden))
    (tmp_path / "value=1").mkdir()
    (tmp_path / "value=1" / "x.jsonl").write_text('{"user": 1, "item": "a"}\n')
    with pytest.raises(InputError, match=r"folders named value=\.\.\., which Spark confuses"):
        engine(Resources()).check(task(tmp_path / "value=1"))
    colon = tmp_path / "12:30.csv"
    colon.write_text("user,item\n1,a\n")
    with pytest.raises(InputError, match="a colon in its name"):
        engine(Resources()).check(task(colon))
    colon.unlink()
    plain = tmp_path / "odd name%20 #+;,.csv"
    plain.write_text("user,item\n1,a\n")
    assert histogram(engine, task(plain)) == {"a": 1}
    assert histogram(engine, task(f"file://{tmp_path}/*.csv")) == {"a": 1}
    for address, sentence in {
        "hdfs://127.0.0.1:1/x.pq": "the input 'hdfs://127.0.0.1:1/x.pq' cannot be read: Spark does not reach it",
        "file:///nowhere/x.jsonl": "the input 'file:///nowhere/x.jsonl' does not exist",
        "s3://me:password@place/x.csv": "this Spark cannot read s3:// addresses: add a package",
    }.items():
        with pytest.raises(InputError) as caught:
            engine(Resources()).check(task(address))
        assert str(caught.value).startswith(sentence)
        assert "password" not in str(caught.value)
    with pytest.raises(InputError, match="some files are on this machine"):
        engine(Resources()).check(task([plain, "hdfs://x/y.csv"]))


@ON_SPARK_ALONE
def test_the_active_session_is_used(engine: Factory) -> None:
    assert isinstance(engine(Resources()), SparkEngine)
    spark = shared_session("local")
    with SparkEngine().count(task(spark.range(5).selectExpr("id AS user", "'a' AS item"))) as counted:
        assert counted.session is spark
        assert counted.frame.collect()[0]["users"] == 5


@ON_SPARK_ALONE
def test_a_condition_on_columns_that_differ_in_case_only(engine: Factory) -> None:
    """Also if the condition spells the name differently."""
    rows = [(1, "x", "a", "b")]
    frame = shared_session("local").createDataFrame(rows, ["user", "item", "Q`x", "q`X"])
    with pytest.raises(InputError, match="cannot tell apart the columns"):
        engine(Resources()).check(task(frame, where="`q``x` = 'a'"))


CSV_ROWS = [
    b"1",
    b"2,a",
    b"3,\xff,z",
    b"4,a4,\xff",
    b'5,a"5,z',
    b'6,"a""6",z',
    b'7,"a\r\n7",z',
    b'8,"a\n8",z',
    b"9,a9,z\r",
    b"",
    b"  ",
    b",,",
    b"10, a ,z",
    b'11,"",z',
    b'12,"  ",z',
    b'13,"a, b",z',
    b"14,a\\,z",
    b"15,#a,z",
    b"#16,a16,z",
    b"17,NULL,z",
    b"18,\\N,z",
    b"19,a\0b,z",
    b'"20","a20","z"',
    b'21,"x21" ,z',
    b"22,nan,z",
    b"23,-,z",
    b'24,a,"z\n"',
]
# Refused by Spark, which reads each line by itself.
REFUSED = [
    b'5,a"5,z', b'7,"a\r\n7",z', b'8,"a\n8",z', b'21,"x21" ,z', b'24,a,"z\n"', b'25,"a\r25",z', b'26,"a,z',
    b'27,a,"z', b'28,""a",z', b'29,"a"x,z', b'30, "a",z', b'31,"x\n4,forged,z\n",z',
]  # fmt: skip
OTHER_CSV: dict[bytes, dict[str, int]] = {
    b"1,a,z,more": {}, b"1,'a,b',z": {}, b"1,\xef\xbf\xbd,z": {},
}  # fmt: skip
JSON_LINES = [
    b'{"user":1,"item":"a1"} ', b' {"user":2,"item":"a2"}', b'{"user":3,"item":"a3"}\r',
    b'{"user":4,"item":"a"}x', b'{"user":5,"item":"\xff"}', b'{"user":6,"item":"a","z":"\xff"}',
    b'[{"user":7,"item":"a"}]', b"{user:9}",
    b'{"user":8,"item":NaN}', b'{"user":9,"item":"a9","p":NaN}', b'{"user":10,"item":Infinity}', b"null", b"5",
    b"",
    b"{'user':11,'item':'a'}", b'{"user":12,"item":""}', b'{"user":13,"item":" "}', b'{"user":14,"item":null}',
    b'{"user":15,"item":{"b":1,"a":[1, 2]}}', b'{"user":16,"item":true}', b'{"user":17,"item":1.0}', b'"x"',
    b'{"user":18,"item":1e2}', b'{"user":19,"item":"\\u00e9\\n\\t"}', b'{"user":20,"item":"a\tb"}',
    b'{"user":21,"item":01}', b'{"user":22,"item":+1}', b'{"user":23,"item":-0.0}', b'{"user":24,"item":"\\x41"}',
    b'{"user":25,"item":12345678901234567890}', b'{"user":26,"item":["a", {"b" :  null}]}', b"/* c */ {}",
    b'{"user":27,"item":"a\\u0000b"}', b'{"user":28,"item":0.1}', b'{"user":29,"item":"a"} // c',
]  # fmt: skip
OTHER_JSON = {
    b'{"user":1,"item":"a",}': {}, b'{"user":1,"item":"a"}{"user":2,"item":"b"}': {"a": 1},
    b'{"user":1,"item":"a","item":"b"}': {"b": 1}, b'{"user":1,"item":"\\ud800"}': {"?": 1},
    b'{"user":1,"item":15000000.0}': {"1.5E7": 1}, b'{"user":1,"item":1e400}': {"Infinity": 1},
}  # fmt: skip


@ON_SPARK_ALONE
@pytest.mark.parametrize("end", [pytest.param(b"\n", marks=pytest.mark.slow), b"\r\n"])
def test_csv_rows_match_the_embedded_engine(engine: Factory, tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "x.csv"
    rows = [row for row in CSV_ROWS if row not in REFUSED]
    for rest in (b"\n", b"\r", end):  # line endings may differ from that of the header
        path.write_bytes(b"user,item,more" + end + b"".join(row + rest for row in rows))
        found = histogram(engine, task(path, null_items=True))
        assert found == histogram(DuckDBEngine, task(path, null_items=True))
        assert len(found) > 12
    assert histogram(engine, task(path, items="more")) == histogram(DuckDBEngine, task(path, items="more"))


@ON_SPARK_ALONE
def test_a_csv_line_does_not_change_others(engine: Factory, tmp_path: Path) -> None:
    """Neither here nor in a remote file, which only Spark reads."""
    path = tmp_path / "x.csv"
    others = b'1s,tea,z\n2s,"tea",z\n3s,tea,"z"\n4s,tea,z\n'
    for row in REFUSED:
        path.write_bytes(b"user,item,more\n" + row + b"\n" + others)
        for source in (path, f"file://{path}") if row in REFUSED[:3] else (path,):
            with pytest.raises(
                InputError, match="it has quotes that are misplaced, a line break in a quoted value"
            ):
                histogram(engine, task(source))
    rows = [
        b"5,x,z\r", b"," * 50_000, b"6," + b"x" * 3_000_000, b'7,"' + b'""' * 100_000 + b'",z', b"\0\xff",
        b"\n" * 9, b'","","\r","\rxyz\n',
    ]  # fmt: skip
    path.write_bytes(b"user,item,more\n" + b"\n".join(rows) + b"\n" + others)
    for source in (path, f"file://{path}"):
        assert histogram(engine, task(source))["tea"] == 4
    path.write_bytes(b"user,item,more\n" + b"," * 300_000 + b"\n" + others)
    with pytest.raises(InputError, match="or a line of more than 262,144 fields"):
        histogram(engine, task(path))


@ON_SPARK_ALONE
def test_json_lines_match_the_embedded_engine(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in JSON_LINES))
    found = histogram(engine, task(path, null_items=True))
    assert found == histogram(DuckDBEngine, task(path, null_items=True))
    assert len(found) > 12


@ON_SPARK_ALONE
@pytest.mark.slow
def test_documented_differences(engine: Factory, tmp_path: Path) -> None:
    for name, head, cases in (("x.csv", b"user,item,more\n", OTHER_CSV), ("x.jsonl", b"", OTHER_JSON)):
        for row, expected in cases.items():
            (tmp_path / name).write_bytes(head + row + b"\n")
            assert histogram(DuckDBEngine, task(tmp_path / name)) != expected, row
        # On Spark all at once: the rows have different items.
        (tmp_path / name).write_bytes(head + b"".join(row + b"\n" for row in cases))
        together = {item: count for expected in cases.values() for item, count in expected.items()}
        assert histogram(engine, task(tmp_path / name)) == together
