"""Every kind of input gives the same histogram."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import math
import os
import sqlite3
import traceback
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from dphist.certificate.request import Column
from dphist.counting.task import Resources, Value
from dphist.errors import InputError
from engine_cases import (
    EACH_ENGINE,
    EMBEDDED,
    FILES,
    OBJECTS,
    QUICK_ON_DUCKDB,
    WITHOUT_CLUSTER,
    Factory,
    by_engine,
    histogram,
    in_duckdb,
    in_sqlite,
    is_refused,
    is_spark,
    rows_of,
    task,
    written,
)

USERS = ["u1", "u1", "u2", "u2", "u3", None, "u3", "u3", "o'hara"]
ITEMS = ["a", "a", "a", "b", "c", "a", None, "a", 'x "y", z']
EXPECTED = {"a": 3, "b": 1, "c": 1, 'x "y", z': 1}


def table() -> Any:
    return pa.table({"user": USERS, "item": ITEMS, "day": list(range(9))})


MODES: dict[str, dict[str, Any]] = {
    "plain": {}, "rank": {"rank": 2, "ordered": True}, "cap": {"max_items_per_user": 2},
    "where": {"where": "CAST(day AS INT) < 100"},
}  # fmt: skip
# Each kind in one mode, and some in all.
CASES = [
    f"{kind} {mode}"
    for k, kind in enumerate(FILES + OBJECTS)
    for m, mode in enumerate(MODES)
    if k % 4 == m or kind in ("parquet", "jsonl", "reader")
]
SPARK_CASES = [
    "csv.gz rank", "jsonl where", "pandas where", "json plain", "arrow rank",
    "duckdb cap", "sqlite where",
]  # fmt: skip
CLUSTER_CASES = [
    "parquet plain", "parquet cap", "parquet rank", "parquet where", "reader cap", "csv where", "csv cap",
    "csv rank", "tsv plain", "csv.zst cap", "jsonl.gz where", "jsonl.gz rank", "sqlite plain", "pandas cap",
    "lazy plain",
]  # fmt: skip


@by_engine("case", CASES, SPARK_CASES, CLUSTER_CASES)
def test_all_kinds_of_input_give_the_same_histogram(engine: Factory, tmp_path: Path, case: str) -> None:
    kind, mode = case.split()
    wanted = task(written(table(), tmp_path, kind), **MODES[mode])
    if is_refused(engine, wanted, kind):
        return
    with engine(Resources(threads=2)) as one:
        one.check(wanted)
        one.check(wanted)
        assert histogram(lambda _: one, wanted) == EXPECTED


@EACH_ENGINE
def test_a_check_does_not_consume_a_reader_and_a_second_count_is_refused(engine: Factory) -> None:
    wanted = task(table().to_reader())
    engine(Resources()).check(wanted)
    engine(Resources()).check(wanted)
    assert histogram(engine, wanted) == EXPECTED
    with pytest.raises(InputError, match="read already"):
        histogram(engine, wanted)
    with pytest.raises(InputError, match="read already"):
        engine(Resources()).check(wanted)


@QUICK_ON_DUCKDB
def test_folders_globs_and_lists(engine: Factory, tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "_temporary").mkdir()
    first, second = tmp_path / "a.parquet", tmp_path / "deep" / "er" / "b.parquet"
    pa.parquet.write_table(table().slice(0, 4), first)
    # Columns are found by name, in any order.
    pa.parquet.write_table(table().slice(4).select(["item", "day", "user"]), second)
    for hidden in (tmp_path / "_SUCCESS", tmp_path / ".notes.csv", tmp_path / "_temporary" / "x.csv"):
        hidden.write_text("no data")
    for source in (tmp_path, f"{tmp_path}/**/*.parquet", (second, str(first))):
        assert histogram(engine, task(source)) == EXPECTED


@WITHOUT_CLUSTER
def test_file_names_are_not_patterns(engine: Factory, tmp_path: Path) -> None:
    odd = tmp_path / "a[1]*{x}'.csv"
    odd.write_text("user,item\n1,right\n")
    (tmp_path / "a1z{x}'.csv").write_text("user,item\n1,wrong\n")
    assert histogram(engine, task(odd)) == {"right": 1}


@WITHOUT_CLUSTER
def test_csv_files_with_other_orders_of_columns(engine: Factory, tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("user;item\n1;a\n2;a\n")
    (tmp_path / "2.csv").write_text("more;item;user\nx;a;3\n\n")
    (tmp_path / "3.csv").write_text("")
    assert histogram(engine, task(tmp_path)) == {"a": 3}


@QUICK_ON_DUCKDB
def test_csv_values_are_text(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_bytes(
        b'user,item,n\r\n1,007,1\r\n2,7,2\r\n3,"",3\r\n4,,4\r\n5," 7",5\r\n6,"a""b",6\r\n7,#7,7\r\n8,NULL,8\r\n'
    )
    assert histogram(engine, task(path)) == {"007": 1, "7": 1, " 7": 1, 'a"b': 1, "#7": 1, "NULL": 1}
    assert histogram(engine, task(path, where="n > '6'")) == {"#7": 1, "NULL": 1}


@EMBEDDED
def test_quoted_csv_values_may_have_line_breaks(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'user,item\r\n1,"a\nb"\r\n2,"a\nb"\r\n3,"\r\n"\r\n')
    assert histogram(engine, task(path)) == {"a\nb": 2, "\r\n": 1}


@QUICK_ON_DUCKDB
def test_a_byte_order_mark_is_ignored_in_csv(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "marked.csv"
    path.write_text("user,item\n1,a\n", encoding="utf-8-sig")
    assert histogram(engine, task(path)) == {"a": 1}


@QUICK_ON_DUCKDB
def test_a_format_can_be_given(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "events.txt"
    path.write_text("user\titem\n1\ta\n")
    assert histogram(engine, task(path, file_format="tsv")) == {"a": 1}
    assert histogram(engine, task(path, file_format=".CSV")) == {"a": 1}
    with pytest.raises(InputError, match="has no known ending"):
        histogram(engine, task(path))
    with pytest.raises(InputError, match="'docx' is not known"):
        histogram(engine, task(path, file_format="docx"))


@EACH_ENGINE
def test_folders_named_key_value_add_columns(engine: Factory, tmp_path: Path) -> None:
    for day in ("2024-01-01", "2024-01-02"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "x.csv").write_text(f"user,item\n1,{day}\n")
    assert histogram(engine, task(tmp_path, where="day = '2024-01-02'")) == {"2024-01-02": 1}


@QUICK_ON_DUCKDB
def test_json_is_text(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(
        '{"user": 1, "item": "2024-01-01", "User": 9}\n{"user": 2, "item": "2024-01-01T00:00:00Z"}\n'
        '{"user": 3, "item": "007"}\n{"user": 3}\n'
    )
    assert histogram(engine, task(path)) == {"2024-01-01": 1, "2024-01-01T00:00:00Z": 1, "007": 1}
    assert histogram(engine, task(path, items="User", user="item", where="User = '9'")) == {"9": 1}
    path.write_text('{"user": 1, "item": "x", "item_1": "y", "user_1": 3, "ITEM": "z", "a/b~": true}\n')
    names = ("item", "item_1", "ITEM", "user_1", "a/b~")
    assert histogram(engine, task(path, items=names)) == {("x", "y", "z", "3", "true"): 1}
    # A key that no row has is missing everywhere, and not an error.
    wanted = task(path, items=("item", "nope"), where="gone IS NULL AND item = 'x'", null_items=True)
    assert histogram(engine, wanted) == {("x", None): 1}
    values = ["5", '"5"', "5.0", "1e400", "12345678901234567890123", "[1, 2]", '{"a": 1}', "null", "false"]
    path.write_text("".join(f'{{"user": {n}, "item": {value}}}\n' for n, value in enumerate(values)))
    found = histogram(engine, task(path))
    assert found == {
        "5": 2, "5.0": 1, "Infinity" if is_spark(engine) else "1e400": 1, "12345678901234567890123": 1, "[1,2]": 1,
        '{"a":1}': 1, "false": 1,
    }  # fmt: skip
    path.write_text("")
    assert histogram(engine, task(path)) == {}
    path.write_bytes(b'\xef\xbb\xbf{"user": 1}')
    with pytest.raises(InputError, match="byte order"):
        engine(Resources()).check(task(path))
    path.write_bytes(b" " * (1 << 20) + b'{"user": 1}')
    with pytest.raises(InputError, match="1 MB of white space"):
        engine(Resources()).check(task(path))


@QUICK_ON_DUCKDB
def test_arrays_and_lines_of_json(engine: Factory, tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(' \n[{"user": 1, "item": "a"}, 5,\n {"user": 2, "item": 7}]')
    (tmp_path / "2.json").write_text('{"user": 1, "item": "a"}\n')
    if not is_refused(engine, task(tmp_path), "json"):
        assert histogram(engine, task(tmp_path / "1.json")) == {"a": 1, "7": 1}
        with pytest.raises(InputError, match="arrays in some files"):
            engine(Resources()).check(task(tmp_path))
    assert histogram(engine, task(tmp_path / "2.json")) == {"a": 1}


@EMBEDDED
def test_missing_values_of_frames(engine: Factory) -> None:
    frame = pd.DataFrame({"user": [1.0, None, 2.0], "item": ["a", "a", None]})
    assert histogram(engine, task(frame, null_items=True)) == {"a": 1, None: 1}
    categories = pd.DataFrame({"user": [1, 2, 2], "item": pd.Categorical(["a", "b", "a"])})
    assert histogram(engine, task(categories)) == {"a": 2, "b": 1}
    mixed = pd.Categorical(["a", 5, None], categories=["a", 5, 7.5])
    assert histogram(engine, task(pd.DataFrame({"user": [1, 2, 2], "item": mixed}))) == {"a": 1, "5": 1}
    whole = pd.DataFrame({"user": [1, 2, 2], "item": pd.Categorical([1, 2, None])})
    assert histogram(engine, task(whole)) == {1: 1, 2: 1}
    objects: list[Any] = ["a", 5, 5.0, None, math.nan, pd.NaT, pd.NA, b"\xff", True, decimal.Decimal("1.50"), {1}]
    objects += [datetime.date(2024, 1, 2), pd.Timestamp("2024-01-02"), [1, "x"], np.int8(5), -0.0, 10**5000]
    found = histogram(engine, task(pd.DataFrame({"user": range(17), "item": pd.Series(objects, dtype=object)})))
    assert found == {
        "a": 1, "5": 2, "5.0": 1, "ff": 1, "true": 1, "1.50": 1, "2024-01-02": 1, "2024-01-02T00:00:00": 1,
        '[1,"x"]': 1, "0.0": 1,
    }  # fmt: skip
    lazy = pl.LazyFrame({"^user$": [1, 2], "item": ["a", "b"]}, schema_overrides={"item": pl.Categorical})
    assert histogram(engine, task(lazy, user="^user$")) == {"a": 1, "b": 1}


@by_engine(
    "kind",
    ["parquet", "csv", "arrow", "sqlite", "duckdb", *OBJECTS],
    [],
    ["parquet", "csv", "pandas", "reader"],
)
def test_an_input_without_rows_is_an_empty_histogram(engine: Factory, tmp_path: Path, kind: str) -> None:
    empty = table().slice(0, 0)
    none = pa.RecordBatch.from_pylist([], schema=empty.schema)
    source = none if kind == "batch" else written(empty, tmp_path, kind)
    wanted = task(source, rank=1, max_items_per_user=3)
    with engine(Resources()).count(wanted) as counted:
        assert counted.at_rank == 0
        assert len(counted.schema) == 2
        assert list(counted.batches()) == []
    if kind not in ("reader", "relation"):
        listed = task(pa.table({"item": ["q"]})).events
        assert rows_of(engine, task(source, public_items=listed)) == [("q", 0)]


@EMBEDDED
def test_a_pipe_is_refused_unread(engine: Factory, tmp_path: Path) -> None:
    pipe = tmp_path / "events.csv"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="only once"):
        engine(Resources()).check(task(str(pipe)))


@EMBEDDED
def test_tables_and_queries_of_databases(engine: Factory, tmp_path: Path) -> None:
    for path, write in ((tmp_path / "x.duckdb", in_duckdb), (tmp_path / "x.sqlite", in_sqlite)):
        write(table(), path)
        write(pa.table({"user": [1], "item": ["z"]}), path, "other")
        assert histogram(engine, task(path, table="events")) == EXPECTED
        assert histogram(engine, task(path, table="main.other")) == {"z": 1}
        query = "SELECT \"user\", item || '!' AS item FROM other;"
        assert histogram(engine, task(path, query=query)) == {"z!": 1}
        with pytest.raises(InputError, match=r"several tables.*'events', 'other'"):
            histogram(engine, task(path))
        with pytest.raises(InputError, match="no table 'nope'; its tables are 'events', 'other'"):
            histogram(engine, task(path, table="nope"))
        for bad in ("SELECT 1; DROP TABLE other", "DELETE FROM other", "SELECT nope FROM other", "SELECT (("):
            with pytest.raises(InputError, match="the query"):
                histogram(engine, task(path, query=bad))
        assert histogram(engine, task(path, table="other")) == {"z": 1}


@EMBEDDED
def test_views_and_schemas_of_duckdb(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute(
            'CREATE SCHEMA s; CREATE TABLE s.t ("user" INT, item INT); INSERT INTO s.t VALUES (1, 2)'
        )
        connection.execute("CREATE VIEW v AS SELECT * FROM s.t")
    assert histogram(engine, task(path, table="s.t")) == {2: 1}
    assert histogram(engine, task(path, table="v")) == {2: 1}
    assert histogram(engine, task(path, table="v", public_items=task(path, table="s.t").events)) == {2: 1}


@EMBEDDED
def test_types_of_sqlite_columns_are_the_declared_ones(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    kinds = 'free, "whole" BIGINT, "real" DOUBLE, "text" VARCHAR(9), "raw" BLOB, price DECIMAL(5,2)'
    cells = [
        "1", "2.5", "2e10", "'x'", "'07'", "x'ff'", "NULL", "CAST(x'ff' AS TEXT)", "9223372036854775807", "1e300",
    ]  # fmt: skip
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"CREATE TABLE t (user, {kinds})")
        for n, cell in enumerate(cells):
            connection.execute(f"INSERT INTO t VALUES ({n}, {', '.join([cell] * 6)})")
        connection.execute('CREATE VIEW v AS SELECT *, "whole" + 0 AS more FROM t')
        connection.commit()
    large = 2**63 - 1
    expected: dict[str, list[Any]] = {
        "free": ["1", "2.5", "20000000000.0", "x", "07", "ff", str(large), "1e+300"],
        "whole": [1, 20000000000, 7, large],
        "real": [1.0, 2.5, 2e10, 7.0, 2.0**63, 1e300],
        "text": ["1", "2.5", "20000000000.0", "x", "07", "ff", str(large), "1.0e+300"],
        "raw": [b"\xff"],
        "price": ["1", "2.5", "20000000000", "x", "7", "ff", str(large), "1e+300"],
    }
    for column, values in expected.items():
        assert histogram(engine, task(path, table="t", items=column)) == dict.fromkeys(values, 1), column
    for more in ({"table": "v"}, {"query": "SELECT * FROM t"}):
        for column in ("free", "whole", "real", "text"):
            found = histogram(engine, task(path, items=column, **more))
            assert found == dict.fromkeys(expected[column], 1), column
    assert set(histogram(engine, task(path, table="v", items="more"))) >= {"1", "2.5"}


READS_A_FILE = [
    "read_text({secret})", "read_blob({secret})",
    "read_csv({secret}, header=false, columns={{'content': 'VARCHAR'}})",
    "(SELECT file AS content FROM glob({secret}))", "{secret}",
    "(SELECT content FROM read_text({folder} || '/*'))",
]  # fmt: skip


@EMBEDDED
@pytest.mark.parametrize("reading", READS_A_FILE)
def test_a_view_of_a_duckdb_input_reads_no_other_file(engine: Factory, tmp_path: Path, reading: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("content\nS3CR3T\n")
    where = reading.format(secret=f"'{secret}'", folder=f"'{tmp_path}'")
    path = tmp_path / "x.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute(f'CREATE VIEW v AS SELECT 1 AS "user", content AS item FROM {where}')
        connection.execute(f'CREATE MACRO m() AS TABLE SELECT 1 AS "user", content AS item FROM {where}')
    for more in ({}, {"query": "FROM v"}, {"query": "FROM m()"}):
        with pytest.raises(InputError) as caught:
            engine(Resources()).check(task(path, **more))
        assert "S3CR3T" not in "".join(traceback.format_exception(caught.value))
        with pytest.raises(InputError):
            histogram(engine, task(path, **more))


SHOWS_SETTINGS = [
    "current_setting('temp_directory')", "\"current_setting\" ('memory_limit')",
    "current_SETTING('secret_directory')",
    "(SELECT max(value) FROM duckdb_settings() WHERE name = 'temp_directory')",
    "(SELECT max(path) FROM duckdb_databases())", "(SELECT max(file) FROM pragma_database_list)",
    "(SELECT max(setting) FROM pg_settings)", "(SELECT max(setting) FROM pg_catalog.pg_settings)",
    "(SELECT max(x) FROM query('SELECT current_' || 'setting(''temp_directory'') AS x'))",
    "(SELECT max(COLUMNS(*)) FROM json_execute_serialized_sql(json_serialize_sql('SELECT current_' || "
    "'setting(''temp_directory'')')))",
]  # fmt: skip


@EMBEDDED
@pytest.mark.parametrize("shown", SHOWS_SETTINGS)
def test_a_view_of_a_duckdb_input_shows_no_settings(engine: Factory, tmp_path: Path, shown: str) -> None:
    path = tmp_path / "x.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute('CREATE TABLE plain ("user" INT, item VARCHAR, pg_x INT, duckdb_y INT)')
        connection.execute("INSERT INTO plain VALUES (1, 'a', 2, 3)")
        connection.execute(f"CREATE MACRO shown() AS {shown}")
        connection.execute('CREATE VIEW v AS SELECT "user", item || shown() AS item FROM plain')
        if "SELECT" not in shown:
            connection.execute('CREATE TABLE g ("user" INT, item VARCHAR GENERATED ALWAYS AS (shown()))')
            connection.execute("INSERT INTO g VALUES (1)")
    for more in (
        {"table": "v"},
        {"query": "FROM v"},
        {"query": 'SELECT 1 AS "user", shown() AS item'},
        {"table": "g"},
    ):
        if more != {"table": "g"} or "SELECT" not in shown:
            with pytest.raises(InputError, match="which may show settings of this machine: it is not allowed"):
                engine(Resources()).check(task(path, **more))
    assert histogram(engine, task(path, table="plain")) == {"a": 1}


MACROS = [
    "least(a, b) AS a", "greatest(a, b) AS a", "strlen(a) AS 0", "hash(a) AS 0", "count(a) AS 7",
    "floor(a) AS 1e9",
    "isnan(a) AS false", "regexp_matches(a, b) AS true", "decode(a) AS 'x'", "encode(a) AS a", "lower(a) AS 'x'",
    "coalesce(a, b) AS 5", "sum(a) AS 1000000", "row_number() AS 1", "md5(a) AS 'x'", "count_star() AS 7",
    '"+"(a, b) AS 5', '"~~"(a, b) AS true', '"||"(a, b) AS a', "replace(a, b, c) AS 'x'",
    "range(a) AS TABLE SELECT 5",
    "read_csv(a) AS TABLE SELECT 5", "unnest(a) AS TABLE SELECT 5",
]  # fmt: skip


@EMBEDDED
def test_macros_types_and_tables_of_a_duckdb_input_do_not_replace_ours(engine: Factory, tmp_path: Path) -> None:
    found = []
    for macros in ([], MACROS):
        path = tmp_path / f"x{len(macros)}.duckdb"
        with contextlib.closing(duckdb.connect(str(path))) as connection:
            connection.execute('CREATE TABLE e ("user" INT, item VARCHAR, price DOUBLE)')
            connection.execute("INSERT INTO e SELECT range % 9, 'I' || range % 4, 1e6 FROM range(90)")
            connection.execute("INSERT INTO e VALUES (1, repeat('x', 9000), 1)")
            for macro in macros:
                with contextlib.suppress(duckdb.Error):  # some names are syntax
                    connection.execute(f"CREATE MACRO {macro}")
            for kind in ("VARCHAR", "DOUBLE", "BIGINT", "HUGEINT", "ubigint") if macros else ():
                with contextlib.suppress(duckdb.Error):
                    connection.execute(f"CREATE TYPE {kind} AS ENUM ('x')")
            for name in ("dphist_events", "dphist_listed", "dphist_counts", "dphist_pairs") if macros else ():
                connection.execute(f"CREATE TABLE {name} AS SELECT 5 AS p0, 5 AS k0, true AS matched")
        rows = task(
            path, table="e", where="lower(item) <> 'i3' AND item NOT LIKE 'I2%'", max_items_per_user=2,
            values=(Value("price", Fraction(0), Fraction(1)),),
        )  # fmt: skip
        found.append([sorted(rows_of(engine, rows)), histogram(engine, replace(rows, values=(), rank=1))])
        computed = (
            Column("x", "CAST(greatest(least(price + 1, 5), 2) AS BIGINT)"),
            Column("y", "md5(replace(item, 'I', ''))"),
        )
        found[-1].append(histogram(engine, replace(rows, events=replace(rows.events, items=computed), values=())))
    assert found[0] == found[1]
    assert all(found[0])


@EMBEDDED
@pytest.mark.parametrize("made", ["least(a, b) AS a", '"+"(a, b) AS a', "range(a) AS TABLE SELECT 1"])
def test_a_query_uses_no_replacements_of_functions(engine: Factory, tmp_path: Path, made: str) -> None:
    path = tmp_path / "x.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute("CREATE TABLE e AS SELECT 1 AS \"user\", 'a' AS item")
        connection.execute("CREATE MACRO my_own(a) AS a")
    assert histogram(engine, task(path, query='SELECT "user", my_own(item) AS item FROM e')) == {"a": 1}
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute(f"CREATE MACRO {made}")
    with pytest.raises(InputError, match="has macros that replace functions of DuckDB"):
        engine(Resources()).check(task(path, query="FROM e"))
    assert histogram(engine, task(path)) == {"a": 1}
