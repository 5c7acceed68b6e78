"""Releases as tables of a real PostgreSQL server."""

from __future__ import annotations

import re
import shutil
import subprocess
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
from dphist import publishing
from dphist.certificate.reading import Readback, read_release
from dphist.counting.sql import name as quote_name
from dphist.errors import DphistError, InputError, InvalidParameter, OutputError
from dphist.outputs import stores
from dphist.outputs.target import Target, target_of
from dphist.outputs.write import check_target, write_release
from dphist.signatures import make_key
from exports import export_from_server
from postgres_server import postgres_address  # noqa: F401
from release_commands import bookings, names
from release_data import events
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


@pytest.fixture
def target(address: str, tmp_path: Path) -> Target:
    return target_of(address, certificate=tmp_path / "release.certificate.json")


def read_back(target: Target) -> Readback:
    """Through an export of the table to Parquet."""
    certificate = target.certificate_path
    name = ".".join(quote_name(part) for part in target.table_name.split(".", 1))
    return read_release(export_from_server(target.address, certificate.with_suffix(".parquet"), name), certificate)


def test_every_type_is_read_back(target: Target) -> None:
    table = rich_table()
    check_target(target, force=False, columns=table.column_names)
    done = write_release(table, DOCUMENT, target, force=False)
    assert done.certificate == str(target.certificate_path)
    back = read_back(target)
    assert back.problems == ()
    assert back.digest_matches
    assert back.table is not None
    for wanted, found in zip(comparable(table).columns, comparable(back.table).columns, strict=True):
        assert found.type == wanted.type
        assert found.equals(wanted), wanted.type
    write_release(table.slice(0, 0), DOCUMENT, target, force=True)
    assert read_back(target).problems == ()


@pytest.mark.skipif(shutil.which("psql") is None, reason="there is no shell of PostgreSQL")
def test_csv_by_the_shell_of_postgresql(target: Target) -> None:
    """Bytes are written as hexadecimal digits, which no other program reads: export them to Parquet."""
    write_release(rich_table().drop_columns(["bytes"]), DOCUMENT, target, force=False)
    file = target.certificate_path.with_suffix(".csv")
    copy = f"\\copy release TO '{file}' CSV HEADER"
    subprocess.run(["psql", "-q", target.address, "-c", copy], check=True)
    assert read_release(file, target.certificate_path).problems == ()


def test_awkward_values(target: Target) -> None:
    columns: dict[str, Any] = {
        "nan": [float("nan"), -0.0],
        "decimal": [Decimal("100.00"), Decimal("-0.10")],
        "long": pa.array([Decimal(10) ** 60, None], pa.decimal256(70, 2)),
        "null": pa.nulls(2),
    }
    write_release(pa.table(columns), DOCUMENT, target, force=False)
    assert read_back(target).problems == ()


def test_schemas_and_names(address: str, tmp_path: Path) -> None:
    run(address, "CREATE SCHEMA s")
    name = 't"; DROP TABLE x;-- é'
    table = pa.table({column: [1, 2] for column in [*NAMES, "A", "a"]})
    target = target_of(address, f"s.{name}", certificate=tmp_path / "c.json")
    write_release(table, DOCUMENT, target, force=False)
    assert tables(address) == [name]
    back = read_back(target)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.column_names == table.column_names
    with pytest.raises(OutputError, match="no such schema"):
        check_target(target_of(address, "nowhere.t", certificate=tmp_path / "new.json"), force=False)
    with pytest.raises(InputError, match="is a database: export the table"):
        read_release(address)


def test_without_force_nothing_is_overwritten(address: str, target: Target) -> None:
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
        check_target(target_of(address, "v", certificate=target.certificate_path), force=True)
    # A view that depends on the table was noticed before the certificate was removed.
    assert read_back(target).problems == ()
    run(address, "DROP VIEW v")
    write_release(rich_table(), DOCUMENT, target, force=True)
    back = read_back(target)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.num_rows == 8


@pytest.mark.parametrize(("step", "fresh"), crossed(["create", "drop", "rows", "commit"], [True, False]))
def test_a_failure_at_every_step(
    address: str, target: Target, monkeypatch: pytest.MonkeyPatch, step: str, fresh: bool
) -> None:
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
        # The certificate was removed only before the commit.
        assert target.certificate_path.exists() == (step != "commit")
        assert run(address, "SELECT item::text, count FROM release") == [("old", 1.5)]
        if step != "commit":
            assert read_back(target).problems == ()


CHANGES = [
    ("DELETE FROM release WHERE count = 5", "rows"),
    ("UPDATE release SET count = 5.5 WHERE count = 5", "was changed"),
    ("UPDATE release SET date = 'infinity', micros = 'infinity'", "was"),
    ("ALTER TABLE release RENAME COLUMN text TO texts", "was changed"),
    ("ALTER TABLE release ADD COLUMN more integer DEFAULT 1", "was changed"),
]


def test_a_changed_table(address: str, target: Target) -> None:
    for statement, problem in CHANGES:
        write_release(rich_table(), DOCUMENT, target, force=True)
        run(address, statement)
        assert problem in str(read_back(target).problems), statement


def test_a_user_without_rights(address: str, tmp_path: Path) -> None:
    run(address, "DROP ROLE IF EXISTS dphist_reader", "CREATE ROLE dphist_reader LOGIN PASSWORD 'secret'")
    reader = re.sub("//[^@/]*@", "//", address).replace("//", "//dphist_reader:secret@", 1)
    try:
        run(address, "GRANT USAGE ON SCHEMA ours TO dphist_reader")
        target = target_of(reader, certificate=tmp_path / "c.json")
        for attempt in (
            lambda: check_target(target, force=False),
            lambda: write_release(OLD, DOCUMENT, target, force=False),
        ):
            with pytest.raises(OutputError, match="does not have permission") as refused:
                attempt()
            assert "secret" not in str(refused.value)
    finally:
        run(address, "DROP OWNED BY dphist_reader", "DROP ROLE dphist_reader")


def test_a_missing_server(tmp_path: Path) -> None:
    nowhere = target_of("postgresql://user:secret@127.0.0.1:1/db", certificate=tmp_path / "c.json")
    with pytest.raises(DphistError, match="no server answers there") as unreached:
        check_target(nowhere, force=False)
    assert "secret" not in str(unreached.value)


def test_nul_in_an_item_becomes_its_symbol(target: Target) -> None:
    """An error would reveal the item, after its noise was drawn."""
    table = pa.table({"item": ["a\x00b", "c"], "count": [5.5, 4.5]})
    write_release(table, DOCUMENT, target, force=False)
    back = read_back(target)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.column("item").to_pylist() in (["a\u2400b", "c"], ["c", "a\u2400b"])


def test_signed_tables(address: str, tmp_path: Path) -> None:
    """A round trip, two swapped releases, and a release with another key."""
    for name in ("own", "other"):
        make_key(tmp_path / name)
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=7)

    def sealed(table: str) -> Path:
        return tmp_path / f"{table}.certificate.json"

    def verified(table: str, certificate: str, **options: Any) -> dphist.Verification:
        file = export_from_server(address, tmp_path / "export.parquet", table)
        return dphist.verify(file, certificate=sealed(certificate), **options)

    own: dict[str, Any] = {"public_key": tmp_path / "own.pub"}
    for table, count in (("january", 900), ("february", 500)):
        release = dphist.release_histogram(["tea"], [count], plan)
        release.write(address, output_table=table, certificate=sealed(table), sign=tmp_path / "own")
        assert verified(table, table, **own).verified
    assert not verified("january", "february", **own).verified
    sealed("february").rename(sealed("january"))
    assert verified("february", "january").verified
    assert "has the name 'january'" in verified("february", "january", **own).problems[0]
    dphist.release_histogram(["tea"], [90_000], plan).write(
        address, output_table="january", certificate=sealed("january"), sign=tmp_path / "other", force=True
    )
    assert verified("january", "january", **own).signature == "other key"
    assert not verified("january", "january", **own).verified
    with pytest.raises(InvalidParameter, match=r"must be NAME\.certificate\.json"):
        release.write(address, output_table="march", certificate=tmp_path / "march.json", sign=tmp_path / "own")


def test_a_run_with_an_id(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated run returns the table; a noted result is put in place, before and after the commit."""
    dphist.ledger.Ledger.init(tmp_path / "a.ledger", "log", epsilon=5.0, delta=1e-5)

    def release(id: str) -> dphist.Release:
        return dphist.release(
            events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-7,
            max_items_per_user=2, ledger=tmp_path / "a.ledger", dataset="log", id=id, output=address,
            output_table=id, certificate=tmp_path / f"{id}.certificate.json",
        )  # fmt: skip

    first = release("whole")
    assert release("whole").to_arrow().equals(first.to_arrow())
    for id, step in (("before", stores._Postgres.commit), ("after", publishing.place)):
        owner, name = (stores._Postgres, "commit") if id == "before" else (publishing, "place")

        def killed(*_: Any, **__: Any) -> None:
            # What a kill would leave: the hidden folder is not removed.
            patched.setattr(publishing, "_remove", lambda _: None)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(owner, name, killed)
            with pytest.raises(KeyboardInterrupt):
                release(id)
        assert (id in tables(address)) == (id == "after"), step
        assert not (tmp_path / f"{id}.certificate.json").exists()
        again, booking = release(id), bookings(tmp_path)[-1]
        assert booking.written is not None
        assert again.written is not None
        assert again.written.digest == booking.written["sha256"]
        assert release(id).to_arrow().equals(again.to_arrow())
        file = export_from_server(address, tmp_path / "e.parquet", id)
        assert dphist.verify(file, certificate=tmp_path / f"{id}.certificate.json").verified
    assert not [name for name in names(tmp_path) if name.startswith(".")]
    run(address, "UPDATE whole SET count = 5")
    with pytest.raises(OutputError, match="not what was written"):
        release("whole")
    run(address, "DROP TABLE whole")
    with pytest.raises(OutputError, match="missing now"):
        release("whole")
