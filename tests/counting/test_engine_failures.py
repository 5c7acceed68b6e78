"""Errors are one line, and neither they nor their tracebacks contain data."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from dphist.counting.task import Resources, Task
from dphist.counting.workspace import attempt
from dphist.errors import DphistError, InputError, InvalidParameter
from engine_cases import (
    EACH_ENGINE,
    EMBEDDED,
    NOT_ON_SPARK,
    QUICK_ON_DUCKDB,
    WITHOUT_CLUSTER,
    Factory,
    by_engine,
    histogram,
    is_spark,
    task,
)

SECRET = "S3CR3T-cell"
ROWS = 5000


def sentence_of(engine: Factory, wanted: Task, resources: Resources | None = None) -> str:
    """The error message, after checking that it is one line and contains no data."""
    with pytest.raises(DphistError) as caught:
        histogram(engine, wanted, resources)
    message = str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert "\n" not in message
    assert 10 < len(message) < 700
    for text in (message, shown):
        assert SECRET not in text
        assert "424242" not in text
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
    return message


def table() -> Any:
    return pa.table({"user": list(range(ROWS)), "item": [SECRET] * ROWS, "n": [424242] * ROWS})


def cut_parquet(path: Path) -> None:
    pa.parquet.write_table(table(), path)
    path.write_bytes(path.read_bytes()[:-200])


def damaged_parquet(path: Path) -> None:
    pa.parquet.write_table(table(), path, use_dictionary=False)
    whole = bytearray(path.read_bytes())
    whole[200:3000] = bytes(b ^ 0x5A for b in whole[200:3000])
    path.write_bytes(whole)


def cut_gzip(path: Path) -> None:
    lines = "".join(f"{n},{SECRET}{n * 7919 % 1000}\n" for n in range(50_000))
    compressed = gzip.compress(f"user,item\n{lines}".encode())
    path.write_bytes(compressed[: len(compressed) // 2])


def not_sqlite(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0" + SECRET.encode() * 999)


def cut_arrow(path: Path) -> None:
    pa.feather.write_feather(table(), path)
    path.write_bytes(path.read_bytes()[:-50])


BAD_FILES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "cut Parquet": ("x.parquet", cut_parquet),
    "damaged Parquet": ("x.parquet", damaged_parquet),
    "text as Parquet": ("x.parquet", lambda path: path.write_text(SECRET * 99)),
    "empty Parquet": ("x.parquet", lambda path: path.write_text("")),
    "cut gzip": ("x.csv.gz", cut_gzip),
    "text as gzip": ("x.csv.gz", lambda path: path.write_text(f"user,item\n1,{SECRET}\n")),
    "empty CSV": ("x.csv", lambda path: path.write_text("")),
    "CSV with a header that is not UTF-8": (
        "x.csv", lambda path: path.write_bytes(b"user,item,\xff\n1," + SECRET.encode() + b"\n"),
    ),
    "broken JSON array": ("x.json", lambda path: path.write_text('[{"user": 1}, {"user": "' + SECRET + '}]')),
    "cut Arrow": ("x.arrow", cut_arrow),
    "text as Arrow": ("x.arrow", lambda path: path.write_text(SECRET)),
    "text as DuckDB": ("x.duckdb", lambda path: path.write_text(SECRET * 999)),
    "text as SQLite": ("x.sqlite", lambda path: path.write_text(SECRET * 999)),
    "damaged SQLite": ("x.sqlite", not_sqlite),
    "text as some database": ("x.db", lambda path: path.write_text(SECRET * 999)),
}  # fmt: skip


@by_engine("kind", list(BAD_FILES), ["damaged Parquet", "cut gzip", "text as SQLite"], list(BAD_FILES)[:9])
def test_damaged_files(engine: Factory, tmp_path: Path, kind: str) -> None:
    name, write = BAD_FILES[kind]
    write(tmp_path / name)
    sentence = sentence_of(engine, task(tmp_path / name))
    assert str(tmp_path / name) in sentence
    assert (name.split(".")[-1] in NOT_ON_SPARK and is_spark(engine)) == (
        "Spark" in sentence and "give" in sentence
    )


@QUICK_ON_DUCKDB
def test_values_that_change_their_type_late(engine: Factory, tmp_path: Path) -> None:
    rows = 300 if is_spark(engine) else 30_000  # Spark infers no types at all
    path = tmp_path / "x.jsonl"
    path.write_text('{"user": 1, "item": 2}\n' * rows + '{"user": 2, "item": "x"}\n')
    assert sorted(histogram(engine, task(path)).values()) == [1, 1]
    path = tmp_path / "x.csv"
    path.write_text("user,item\n" + "1,2\n" * rows + "x,y\n")
    assert histogram(engine, task(path)) == {"2": 1, "y": 1}


@WITHOUT_CLUSTER
def test_invalid_paths(engine: Factory, tmp_path: Path) -> None:
    assert "does not exist" in sentence_of(engine, task(tmp_path / "none.parquet"))
    assert "no file matches" in sentence_of(engine, task(str(tmp_path / "*.csv")))
    assert "holds no files" in sentence_of(engine, task(tmp_path))
    assert "list of files is empty" in sentence_of(engine, task(()))
    assert "must hold paths" in sentence_of(engine, task([table()]))
    assert "object of type 'int'" in sentence_of(engine, task(5))
    assert "s3:// addresses" in sentence_of(engine, task("s3://user:password@bucket/x.parquet"))
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    (tmp_path / "b.json").write_text('{"user": 1}\n')
    assert "several formats" in sentence_of(engine, task(tmp_path))
    (tmp_path / "b.json").rename(tmp_path / "readme.txt")
    assert "has no known ending" in sentence_of(engine, task(tmp_path))
    assert "is for databases" in sentence_of(engine, task(tmp_path / "a.csv", table="t"))
    word = "is for databases" if is_spark(engine) else "must be SELECT expressions FROM input"
    assert word in sentence_of(engine, task(tmp_path / "a.csv", query="SELECT 1"))
    assert "is for databases" in sentence_of(engine, task(table(), table="t"))


@WITHOUT_CLUSTER
def test_files_without_permission(engine: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Patched, because root may open every file.
    path = tmp_path / "x.csv"
    path.write_text("user,item\n1,2\n")
    opened = open

    def refused(file: Any, *more: Any, **named: Any) -> Any:
        if str(file) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(file, *more, **named)

    monkeypatch.setattr("builtins.open", refused)
    assert "permission denied" in sentence_of(engine, task(path))


@EACH_ENGINE
def test_missing_columns(engine: Factory, tmp_path: Path) -> None:
    assert "no column 'who'; its columns are 'user', 'item', 'n'" in sentence_of(engine, task(table(), user="who"))
    (tmp_path / "a.csv").write_text("user,item\n1,2\n")
    (tmp_path / "b.csv").write_text("user,thing\n1,2\n")
    assert "b.csv" in sentence_of(engine, task(tmp_path))
    (tmp_path / "c.csv").write_text("user,item,item\n1,2,3\n")
    assert "2 columns with the name 'item'" in sentence_of(engine, task(tmp_path / "c.csv"))
    twice = pa.Table.from_arrays([pa.array([1])] * 3, names=["user", "item", "item"])
    assert "2 columns with the name 'item'" in sentence_of(engine, task(twice))


INVALID_CONDITIONS = [
    "n = ", "n = 1; DROP TABLE x", "1 = 1) --", "1)) UNION SELECT ((1", "1 = 1)) LIMIT ((1", "x = 1", "(", "",
    ";",
    "n IN (SELECT 1)", "EXISTS (FROM read_csv('/etc/passwd'))", "row_number() OVER () = 1", "sum(n) > 1",
    "random() < 0.5", "COLUMNS(*) = 1", "n = ?", "n = $1", "nofunction(n)", "'x", "/*", "1 = 1)) GROUP BY ((1",
    "n = 1) AS y, (SELECT 1", "list_sum([1]) > n.field", "1 = 1)) QUALIFY ((TRUE",
]  # fmt: skip


@by_engine("condition", INVALID_CONDITIONS, INVALID_CONDITIONS[::3], INVALID_CONDITIONS)
def test_invalid_conditions(engine: Factory, condition: str) -> None:
    assert "condition" in sentence_of(engine, task(table(), where=condition))


DUCKDB_CONDITIONS = {
    '"a\'b""" > 2': {"c": 1}, '"user" BETWEEN 2 AND 3': {"b": 1, "c": 1}, "list_contains(['a'], item)": {"a": 1},
    """'{"y": [1, 5]}'->>'$.y[1]' = '5' AND n = 'x'""": {"b": 1},
    """CAST('{"y": 1}'->'$.y' AS INT) = 1 AND n = 'x'""": {"b": 1},
}  # fmt: skip
SPARK_CONDITIONS = {
    "`a'b\"` > 2": {"c": 1}, "`user` BETWEEN 2 AND 3": {"b": 1, "c": 1},
    "array_contains(array('a'), item)": {"a": 1},
    "size(filter(array(1, 5), y -> y > 3)) = 1 AND n = 'x'": {"b": 1}, 'item = "a"': {"a": 1},
    # It fails on a row, which is dropped.
    "element_at(array(1, 1, 1), CASE WHEN n = 'x' THEN 0 ELSE 1 END) = 1": {"a": 1, "c": 1},
    "CASE WHEN n = 'x' THEN raise_error(item) ELSE 1 END = 1": {"a": 1, "c": 1},
}  # fmt: skip


@WITHOUT_CLUSTER
def test_conditions(engine: Factory) -> None:
    rows = pa.table({"user": [1, 2, 3], "item": ["a", "b", "c"], "n": ["1", "x", None], "a'b\"": [1, 2, 3]})
    cases = {
        "N::INT = 1": {"a": 1}, "n IS NULL -- the end": {"c": 1}, "1 = 2": {},
        "item IN ('a', 'b') OR n IS NULL": {"a": 1, "b": 1, "c": 1},
        "item LIKE 'a%' AND item <> ';' /* or */": {"a": 1},
        "1 / (CASE WHEN n = 'x' THEN 0 ELSE 1 END) = 1": {"a": 1, "c": 1},
    }  # fmt: skip
    cases = SPARK_CONDITIONS if is_spark(engine) else cases | DUCKDB_CONDITIONS
    for condition, expected in cases.items():
        assert histogram(engine, task(rows, where=condition)) == expected, condition


@EACH_ENGINE
def test_readers_that_fail_midway(engine: Factory) -> None:
    whole = table().to_batches(max_chunksize=100)

    def each() -> Iterator[Any]:
        yield whole[0]
        raise ValueError(f"stumbled over {SECRET} at 424242")

    for more in ({}, {"rank": 1}, {"max_items_per_user": 1}):
        sentence_of(engine, task(pa.RecordBatchReader.from_batches(whole[0].schema, each()), **more))


@EMBEDDED
def test_databases(engine: Factory, tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    with contextlib.closing(sqlite3.connect(empty)) as connection:
        connection.execute("PRAGMA user_version = 1")
    assert "has no tables" in sentence_of(engine, task(empty))
    assert "must be a single file" in sentence_of(engine, task([empty, empty]))
    path = tmp_path / "x.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.register("given", table())
        connection.execute("CREATE TABLE t AS FROM given")
        # The cast fails on the data.
        query = 'SELECT "user", item::INT AS item FROM t'
        assert "another program" in sentence_of(engine, task(path))
    assert "cannot be counted" in sentence_of(engine, task(path, query=query))
    assert "nope" in sentence_of(engine, task(path, query="SELECT nope FROM t"))
    assert "not a single SELECT" in sentence_of(engine, task(path, query="SELECT 1; SELECT 2"))
    assert "not a single SELECT" in sentence_of(engine, task(path, query="CREATE TABLE z (a INT)"))


@WITHOUT_CLUSTER
def test_an_unreachable_server_keeps_the_password_secret(engine: Factory) -> None:
    pytest.importorskip("adbc_driver_postgresql")
    message = sentence_of(engine, task(f"postgresql://me:{SECRET}@127.0.0.1:1/shop", table="t"))
    if is_spark(engine):
        assert "Spark does not read PostgreSQL by itself" in message
        return
    assert "cannot be reached" in message
    assert "'shop' on 127.0.0.1" in message
    assert SECRET not in sentence_of(engine, task(f"postgres://{SECRET}:{SECRET}@[bad", table="t"))


@EMBEDDED
@pytest.mark.parametrize("memory", ["2 apples", "-1GB", "", "0GB", "GB"])
def test_invalid_sizes(engine: Factory, memory: str) -> None:
    with pytest.raises(InvalidParameter, match="memory must be a size such as 2GB"):
        engine(Resources(memory=memory)).check(task(table()))


@WITHOUT_CLUSTER
def test_invalid_threads_and_folders(engine: Factory, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="threads"):
        engine(Resources(threads=0)).check(task(table()))
    with pytest.raises(InputError, match=r"temporary folder .* does not exist"):
        engine(Resources(folder=tmp_path / "none")).check(task(table()))


@pytest.mark.parametrize(
    "kind", [OSError, FileNotFoundError, PermissionError, IsADirectoryError, MemoryError, ValueError, RuntimeError]
)
def test_the_text_of_an_error_of_a_reader_is_not_repeated(kind: type[Exception]) -> None:
    """An OSError may quote a value or a path of the data as any other error may."""

    text = "cannot parse 'secretcell' in /secretpath"

    def fail() -> None:
        raise kind(text)

    with pytest.raises(InputError) as refused:
        attempt(fail, "the input log.csv")
    shown = "".join(traceback.format_exception(refused.value))
    assert "secret" not in shown, "the text of the reader's error is in the message"
    assert "log.csv" in str(refused.value)
