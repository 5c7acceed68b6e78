"""Releases as tables of a real PostgreSQL server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from adbc_driver_postgresql import dbapi
from test_output_roundtrip import DOCUMENT, NAMES, comparable, rich_table

import dphist
from dphist.errors import DphistError, InputError, OutputError
from dphist.outputs import stores
from dphist.outputs.readback import read_release
from dphist.outputs.target import target_of
from dphist.outputs.write import check_target, write_release
from dphist.signatures import make_key
from postgres_server import postgres_address  # noqa: F401
from scheduling import crossed

OLD = pa.table({"item": ["old"], "count": [1.5]})


@pytest.fixture
def address(postgres_address: str) -> str:  # noqa: F811
    """The server with an empty current schema, because other tests use the server too."""
    address = postgres_address + "?options=-csearch_path%3Dours"
    run(address, *(f"DROP SCHEMA IF EXISTS {schema} CASCADE" for schema in ("ours", "s")), "CREATE SCHEMA ours")
    return address


@cache
def connection_to(address: str) -> Any:
    return dbapi.connect(address, autocommit=True)


@pytest.fixture(scope="module", autouse=True)
def closed_at_the_end(postgres_address: str) -> Iterator[None]:  # noqa: F811
    yield
    connection_to(postgres_address + "?options=-csearch_path%3Dours").close()
    connection_to.cache_clear()


def run(address: str, *statements: str) -> Any:
    with connection_to(address).cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if statements[-1].startswith("SELECT") else None


def tables(address: str) -> list[str]:
    rows = run(address, "SELECT tablename::text FROM pg_tables WHERE schemaname IN ('ours', 's')")
    return sorted(row[0] for row in rows)


def test_every_type_is_read_back(address: str) -> None:
    table = rich_table()
    target = target_of(address)
    check_target(target, force=False, columns=table.column_names)
    done = write_release(table, DOCUMENT, target, force=False)
    assert done.certificate.startswith("table release_certificate in postgres")
    back = read_release(address)
    assert back.problems == ()
    assert back.digest_matches
    assert back.table is not None
    for wanted, found in zip(comparable(table).columns, comparable(back.table).columns, strict=True):
        assert found.type == wanted.type
        assert found.equals(wanted), wanted.type
    write_release(table.slice(0, 0), DOCUMENT, target, force=True)
    assert read_release(address).problems == ()


def test_nested_and_awkward_values(address: str) -> None:
    columns: dict[str, Any] = {
        "list": [[1, None], None],
        "nan": [float("nan"), -0.0],
        "decimal": [Decimal("100.00"), Decimal("-0.10")],
        "long": pa.array([Decimal(10) ** 60, None], pa.decimal256(70, 2)),
        "null": pa.nulls(2),
    }
    write_release(pa.table(columns), DOCUMENT, target_of(address), force=False)
    assert read_release(address).problems == ()


def test_schemas_and_names(address: str) -> None:
    run(address, "CREATE SCHEMA s")
    name = 't"; DROP TABLE x;-- é'
    table = pa.table({column: [1, 2] for column in [*NAMES, "A", "a"]})
    write_release(table, DOCUMENT, target_of(address, f"s.{name}"), force=False)
    assert tables(address) == [name, f"{name}_certificate"]
    back = read_release(address, table=f"s.{name}")
    assert back.problems == ()
    assert back.table is not None
    assert back.table.column_names == table.column_names
    with pytest.raises(OutputError, match="no such schema"):
        check_target(target_of(address, "nowhere.t"), force=False)
    with pytest.raises(InputError, match="no such schema"):
        read_release(address, "nowhere.t")


def test_without_force_nothing_is_overwritten(address: str) -> None:
    target = target_of(address)
    write_release(OLD, DOCUMENT, target, force=False)
    attempts: list[Callable[[], object]] = [
        lambda: check_target(target, force=False),
        lambda: write_release(rich_table(), DOCUMENT, target, force=False),
    ]
    for attempt in attempts:
        with pytest.raises(OutputError, match="already exists"):
            attempt()
    run(address, "CREATE VIEW v AS SELECT * FROM release")
    with pytest.raises(OutputError, match="depend on the table"):
        write_release(rich_table(), DOCUMENT, target, force=True)
    with pytest.raises(OutputError, match="is a view"):
        check_target(target_of(address, "v"), force=True)
    assert read_release(address).problems == ()
    run(address, "DROP VIEW v")
    write_release(rich_table(), DOCUMENT, target, force=True)
    back = read_release(address)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.num_rows == 8


@pytest.mark.parametrize(
    ("step", "fresh"), crossed(["create", "drop", "batches", "commit", "create_certificate"], [True, False])
)
def test_a_failure_at_every_step(address: str, monkeypatch: pytest.MonkeyPatch, step: str, fresh: bool) -> None:
    target = target_of(address)
    if not fresh:
        write_release(OLD, DOCUMENT, target, force=False)
    before = tables(address)

    def fail(*values: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stores._Postgres, step, fail)
        if not (fresh and step == "drop"):
            with pytest.raises(KeyboardInterrupt):
                write_release(rich_table(), DOCUMENT, target, force=True)
            assert tables(address) == before
    if not fresh:
        back = read_release(address)
        assert back.problems == ()
        assert back.table is not None
        assert back.table.to_pylist() == OLD.to_pylist()


CHANGES = [
    ("DELETE FROM release WHERE count = 5", "rows"),
    ("UPDATE release SET count = 5.5 WHERE count = 5", "was changed"),
    ("UPDATE release SET date = 'infinity', micros = 'infinity'", "was"),
    ("ALTER TABLE release RENAME COLUMN text TO texts", "columns"),
    ("ALTER TABLE release ADD COLUMN more interval DEFAULT '1 day'", "is not a plain table"),
    ("DROP TABLE release_certificate", "no certificate"),
    ("DELETE FROM release_certificate", "not one text"),
    ("UPDATE release_certificate SET document = replace(document, '0.35', '0.25')", "certificate"),
    ("ALTER TABLE release_certificate RENAME COLUMN document TO x", "not a certificate table"),
]


def test_a_changed_table(address: str) -> None:
    for statement, problem in CHANGES:
        write_release(rich_table(), DOCUMENT, target_of(address), force=True)
        run(address, statement)
        assert problem in str(read_release(address).problems), statement


def test_a_user_without_rights(address: str) -> None:
    run(address, "DROP ROLE IF EXISTS dphist_reader", "CREATE ROLE dphist_reader LOGIN PASSWORD 'secret'")
    reader = re.sub("//[^@/]*@", "//", address).replace("//", "//dphist_reader:secret@", 1)
    try:
        run(address, "GRANT USAGE ON SCHEMA ours TO dphist_reader")
        for attempt in (
            lambda: check_target(target_of(reader), force=False),
            lambda: write_release(OLD, DOCUMENT, target_of(reader), force=False),
        ):
            with pytest.raises(OutputError, match="does not have permission") as refused:
                attempt()
            assert "secret" not in str(refused.value)
    finally:
        run(address, "DROP OWNED BY dphist_reader", "DROP ROLE dphist_reader")


def test_a_missing_table_and_a_missing_server(address: str) -> None:
    with pytest.raises(InputError, match="there is no table release in postgres"):
        read_release(address)
    nowhere = "postgresql://user:secret@127.0.0.1:1/db"
    for attempt in (lambda: read_release(nowhere), lambda: check_target(target_of(nowhere), force=False)):
        with pytest.raises(DphistError, match="no server answers there") as unreached:
            attempt()
        assert "secret" not in str(unreached.value)


def test_nul_in_an_item_becomes_its_symbol(address: str) -> None:
    """An error would reveal the item, after its noise was drawn."""
    table = pa.table({"item": ["a\x00b", "c"], "count": [5.5, 4.5]})
    write_release(table, DOCUMENT, target_of(address), force=False)
    back = read_release(address)
    assert back.problems == ()
    assert back.table is not None
    assert sorted(back.table.column("item").to_pylist()) == ["a\u2400b", "c"]


def test_signed_tables(address: str, tmp_path: Path) -> None:
    """A round trip, two swapped releases, and a release with another key."""
    for name in ("own", "other"):
        make_key(tmp_path / name)
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=7)

    def verified(table: str) -> dphist.Verification:
        return dphist.verify(address, table=table, public_key=tmp_path / "own.pub")

    for table, count in (("january", 900), ("february", 500)):
        dphist.release_histogram(["tea"], [count], plan).write(address, table=table, sign=tmp_path / "own")
        assert verified(table).verified, verified(table)
    pairs = (("january", "aside"), ("february", "january"), ("aside", "february"))
    for old, new in pairs:
        run(address, *(f"ALTER TABLE {old}{end} RENAME TO {new}{end}" for end in ("", "_certificate")))
    assert dphist.verify(address, table="january").verified
    assert "has the name 'january'" in verified("january").problems[0]
    dphist.release_histogram(["tea"], [90_000], plan).write(
        address, table="january", sign=tmp_path / "other", force=True
    )
    assert verified("january").signature == "other key"
    assert not verified("january").verified


NOT_PLAIN: list[tuple[str, ...]] = [
    (
        "ALTER TABLE release RENAME TO hidden",
        "CREATE VIEW release AS SELECT * FROM hidden WHERE now() < '2100-01-01'",
    ),
    ("ALTER TABLE release RENAME TO hidden", "CREATE MATERIALIZED VIEW release AS SELECT * FROM hidden"),
    ("ALTER TABLE release RENAME TO hidden", "CREATE TABLE release (LIKE hidden) PARTITION BY LIST (count)"),
    ("CREATE TABLE child () INHERITS (release)",),
    ("ALTER TABLE release ENABLE ROW LEVEL SECURITY",),
    ("ALTER TABLE release ALTER COLUMN count SET DEFAULT random()",),
    ("CREATE DOMAIN named AS text", "ALTER TABLE release ALTER COLUMN item TYPE named"),
    (
        "ALTER TABLE release_certificate RENAME TO hidden",
        "CREATE VIEW release_certificate AS SELECT document FROM hidden",
    ),
]


def test_only_plain_tables_are_read(address: str) -> None:
    for statements in NOT_PLAIN:
        run(address, "DROP SCHEMA ours CASCADE", "CREATE SCHEMA ours")
        write_release(OLD, DOCUMENT, target_of(address), force=False)
        run(address, *statements)
        (problem,) = read_release(address).problems
        assert "is not a plain table" in problem, statements
