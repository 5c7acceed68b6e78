"""Tables, views and queries of databases in files."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from test_engine_inputs import EXPECTED, table

from dphist.errors import InputError
from engine_cases import EMBEDDED, Factory, histogram, in_duckdb, in_sqlite, task


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
