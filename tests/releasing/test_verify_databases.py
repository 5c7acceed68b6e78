"""`verify` of hostile databases: only plain tables are read."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dphist
from dphist.outputs import readback
from dphist.outputs.stores import StoreError, open_store
from release_data import events
from scheduling import crossed

COMPUTED = "is not a plain table, but a view or something else that is computed when it is read"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    found = dphist.release(
        events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=2
    )
    for name in ("out.duckdb", "out.sqlite"):
        found.write(folder / name)
    return folder


@pytest.fixture
def released(originals: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies the release of this name."""
    return lambda name: Path(shutil.copy(originals / name, tmp_path))


def refused(path: Path, table: str = "release") -> str:
    """Why a table is not read, by the connection that `verify` uses in its own process."""
    with open_store(path.suffix[1:], str(path)) as store, pytest.raises(StoreError) as reason:
        store.read_certificate(table) if table.endswith("certificate") else list(store.batches(table))
    return str(reason.value)


def run(path: Path, *statements: str) -> None:
    if path.suffix == ".duckdb":
        with duckdb.connect(str(path)) as connection:
            for statement in statements:
                connection.execute(statement)
        return
    plain = sqlite3.connect(path)
    for statement in statements:
        plain.execute(statement)
    plain.commit()
    plain.close()


# Views that return the released rows when they are verified, and may return others later.
DUCKDB = {
    "the clock": "SELECT item, count + (CASE WHEN now() > TIMESTAMPTZ '2100-01-01' THEN 5000 ELSE 0 END) AS count "
    "FROM hidden",
    "a file": "SELECT item, count FROM hidden, read_text('{file}')",
    "chance": "SELECT item, count FROM hidden WHERE random() >= 0",
    "another table": "SELECT * FROM hidden",
    "no end": "SELECT h.item, h.count FROM hidden h, range(1000000000000) WHERE range < 0 OR true",
}


@pytest.mark.parametrize("what", list(DUCKDB))
def test_a_view_instead_of_a_table_in_duckdb(what: str, released: Callable[[str], Path], tmp_path: Path) -> None:
    path = released("out.duckdb")
    (tmp_path / "secret.txt").write_text("secret")
    body = DUCKDB[what].format(file=tmp_path / "secret.txt")
    run(path, "ALTER TABLE release RENAME TO hidden", f"CREATE VIEW release AS {body}")
    if what != "no end":
        assert refused(path) == f"release {COMPUTED}"
        return
    found = dphist.verify(path)
    assert found.problems == (f"table release in {path} cannot be read: release {COMPUTED}",)
    with pytest.raises(dphist.NotVerified, match="not a plain table"):
        dphist.make_report(path)


# Letters that are equal in Unicode without case, but not in DuckDB and SQLite: the Kelvin sign and k, and accents.
@pytest.mark.parametrize(
    ("kind", "first", "names"),
    crossed(["duckdb", "sqlite"], ["decoy", "view"], [("week", "wee\u212a"), ("caf\u00e9", "caf\u00c9")]),
)
def test_a_table_with_a_similar_name_is_not_checked_instead(
    kind: str, first: str, names: tuple[str, str], released: Callable[[str], Path]
) -> None:
    """Otherwise a plain table would be checked, and a view would be read."""
    name, decoy = names
    path = released(f"out.{kind}")
    made = {
        "decoy": f'CREATE TABLE "{decoy}" AS SELECT * FROM hidden LIMIT 0',
        "view": f'CREATE VIEW "{name}" AS SELECT * FROM hidden',
    }
    order = [made[first], *(made[each] for each in made if each != first)]
    run(path, "ALTER TABLE release RENAME TO hidden", *order)
    assert refused(path, name) == f"{name} {COMPUTED}"


@pytest.mark.parametrize("kind", ["duckdb", "sqlite"])
def test_a_database_that_this_process_writes_is_not_read(kind: str, released: Callable[[str], Path]) -> None:
    """Closing a file releases all locks that the process holds on it."""
    path = released(f"out.{kind}")
    writer: Any = duckdb.connect(str(path)) if kind == "duckdb" else sqlite3.connect(path, isolation_level=None)
    if kind == "sqlite":
        writer.execute("BEGIN EXCLUSIVE")
        writer.execute("UPDATE release SET count = 5")
    with pytest.raises(dphist.DphistError, match="locked"):
        dphist.verify(path)
    writer.close()


@pytest.mark.parametrize("name", ["out.duckdb", "out.sqlite"])
def test_a_view_instead_of_the_certificate(name: str, released: Callable[[str], Path]) -> None:
    path = released(name)
    run(
        path, "ALTER TABLE release_certificate RENAME TO hidden",
        "CREATE VIEW release_certificate AS SELECT document FROM hidden",
    )  # fmt: skip
    assert refused(path, "release_certificate") == f"release_certificate {COMPUTED}"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("out.duckdb", "item VARCHAR, real DOUBLE, count DOUBLE AS (real + 0)"),
        ("out.duckdb", "item VARCHAR, count DOUBLE DEFAULT (random())"),
        ("out.sqlite", "item TEXT, real REAL, count REAL AS (real + abs(0))"),
        ("out.sqlite", "item TEXT, real REAL, count REAL AS (real + 0) STORED"),
        ("out.sqlite", "item TEXT, count REAL DEFAULT (random())"),
    ],
)
def test_generated_columns_and_defaults(name: str, columns: str, released: Callable[[str], Path]) -> None:
    path = released(name)
    to = "item, real" if "real" in columns else "item, count"
    run(
        path, "ALTER TABLE release RENAME TO hidden", f"CREATE TABLE release({columns})",
        f"INSERT INTO release({to}) SELECT item, count FROM hidden",
    )  # fmt: skip
    assert COMPUTED in refused(path)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW release AS SELECT item, count + (date('now') > '2100-01-01') * 5000.0 AS count FROM hidden",
        "CREATE VIEW release AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) "
        "SELECT item, count FROM hidden, n",
        "CREATE VIRTUAL TABLE release USING fts5(item, count)",
        "CREATE VIRTUAL TABLE release USING rtree(item, count, high)",
    ],
)
def test_views_and_virtual_tables_of_sqlite(statement: str, released: Callable[[str], Path]) -> None:
    path = released("out.sqlite")
    run(path, "ALTER TABLE release RENAME TO hidden", statement)
    assert COMPUTED in dphist.verify(path).problems[0]


def test_an_index_is_not_read_instead_of_its_table(released: Callable[[str], Path]) -> None:
    """SQLite may answer a query from an index, which a forger can make differ from the table."""
    path = released("out.sqlite")
    run(path, "CREATE INDEX other ON release(item, count)")
    assert dphist.verify(path).verified
    plain = sqlite3.connect(path)
    page = plain.execute("SELECT rootpage FROM sqlite_master WHERE name = 'release'").fetchone()[0]
    size = plain.execute("PRAGMA page_size").fetchone()[0]
    plain.close()
    raw = bytearray(path.read_bytes())
    start = raw.index(b"tea", (page - 1) * size, page * size)
    raw[start : start + 3] = b"coc"
    path.write_bytes(bytes(raw))
    assert any("does not match the digest" in problem for problem in dphist.verify(path).problems)


def test_a_small_file_with_millions_of_rows(
    released: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = released("out.duckdb")
    run(
        path,
        "CREATE OR REPLACE TABLE release AS SELECT 'tea' AS item, 900.0::DOUBLE AS count FROM range(4_000_000)",
    )
    assert path.stat().st_size < 2_000_000
    monkeypatch.setattr(readback, "LEAST_BYTES", 64 << 20)
    assert "more than 64 MiB of memory" in dphist.verify(path).problems[0]


def test_types_that_releases_do_not_have(released: Callable[[str], Path]) -> None:
    path = released("out.duckdb")
    for expression in ("[1, 2]", "{'a': 1}", "'tea'::ENUM('tea')", "1::HUGEINT", "INTERVAL 1 DAY"):
        run(path, f"CREATE OR REPLACE TABLE release AS SELECT {expression} AS item, 9.0::DOUBLE AS count")
        assert "a type that no release has" in refused(path), expression


def test_a_reading_connection_can_access_only_the_file(released: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    for name, statements in {
        "out.duckdb": (
            f"SELECT * FROM read_text('{tmp_path}/secret.txt')", f"ATTACH '{tmp_path}/other.duckdb'",
            "SET enable_external_access = true", "INSTALL httpfs", "LOAD httpfs", "CREATE TABLE x AS SELECT 1",
            f"COPY release TO '{tmp_path}/copy.csv'",
        ),
        "out.sqlite": (
            f"ATTACH '{tmp_path}/other.sqlite' AS o", "CREATE TABLE x(a)", "SELECT load_extension('x')",
            "SELECT randomblob(1000000000)", "INSERT INTO release VALUES ('a', 1)",
        ),
    }.items():  # fmt: skip
        with open_store(name.partition(".")[2], str(released(name))) as store:
            assert len(list(store.batches("release"))) >= 1
            for statement in statements:
                with pytest.raises(StoreError):
                    store.run(statement)
    assert not {"other.duckdb", "other.sqlite", "copy.csv"} & set(os.listdir(tmp_path))


def test_a_log_beside_a_duckdb_file(released: Callable[[str], Path]) -> None:
    """DuckDB would replay it, and read another database than the one in the file."""
    path = released("out.duckdb")
    Path(f"{path}.wal").write_bytes(b"")
    assert "was not closed properly" in dphist.verify(path).problems[0]


def test_code_beside_a_database_is_not_run(
    released: Callable[[str], Path], tmp_path: Path, monkeypatch: Any
) -> None:
    """Python files of a download are not imported by the process that reads it."""
    path = released("out.duckdb")
    (tmp_path / "json.py").write_text("open('ran', 'w').close()\n")
    (tmp_path / "dphist").mkdir()
    (tmp_path / "dphist" / "__init__.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    assert dphist.verify(path).verified
    assert not (tmp_path / "ran").exists()
