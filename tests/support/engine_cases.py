"""Shared by the tests of all engines: the engines, small tables as every kind of input, and brute-force counts."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings

from dphist.certificate.request import Column
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.task import Choice, Engine, Events, Progress, Resources, RoundsCount, RoundsTask, Task
from dphist.errors import InputError
from scheduling import THOROUGH, examples
from spark_cluster import ON_SPARK
from spark_shared import OnSpark


class RoundsEngine(Engine, Protocol):
    """An engine that counts in rounds by numbers of items. Spark has its own `SparkRounds`, on the executors."""

    def rounds(self, task: RoundsTask, progress: Progress | None = None) -> AbstractContextManager[RoundsCount]:
        """Read the events for counting in rounds. The result can be used within the context only."""


Factory = Callable[[Resources], Engine]
RoundsFactory = Callable[[Resources], RoundsEngine]
Rows = list[tuple[Any, ...]]
KEY = bytes(range(1, 33))


@cache
def _lasting(resources: Resources) -> DuckDBEngine:
    engine = DuckDBEngine(resources)
    atexit.register(engine.__enter__().__exit__)
    return engine


def open_duckdb(resources: Resources) -> DuckDBEngine:
    """An engine with one session for many calls: starting DuckDB takes longer than counting a few rows.

    With a folder of the caller it has one session per call, so that tests see what a session leaves there.
    """
    return _lasting(resources) if resources.folder is None else DuckDBEngine(resources)


# In this order: see `spark_shared`.
ENGINES: dict[str, tuple[Any, list[Any]]] = {
    "duckdb": (open_duckdb, []),
    "spark-local": (OnSpark("local"), ON_SPARK),
    # Tests of failures and leaks run on a cluster every time; the whole suite does in `make test-slow`.
    "spark-cluster": (OnSpark("cluster"), [*ON_SPARK, pytest.mark.slow]),
}
# Formats that Spark refuses.
NOT_ON_SPARK = {
    "json", "arrow", "stream.arrow", "feather", "ipc", "duckdb", "ddb", "sqlite", "sqlite3", "db",
}  # fmt: skip


def on_engines(*names: str) -> pytest.MarkDecorator:
    """Run a test on these engines."""
    return pytest.mark.parametrize(
        "engine", [pytest.param(ENGINES[name][0], id=name, marks=ENGINES[name][1]) for name in names]
    )


EACH_ENGINE = on_engines(*ENGINES)
# Where a cluster would show nothing new: reading files, and error messages.
WITHOUT_CLUSTER = on_engines("duckdb", "spark-local")
# Where another quick test takes the same path through Spark.
QUICK_ON_DUCKDB = on_engines("duckdb", "spark-cluster")
# What only the embedded engine has, or both share.
EMBEDDED = on_engines("duckdb")


def by_engine(
    name: str, embedded: Sequence[Any], spark: Sequence[Any], cluster: Sequence[Any]
) -> pytest.MarkDecorator:
    """Run a test with a different list of values on each engine."""
    chosen = {"duckdb": embedded, "spark-local": spark, "spark-cluster": cluster}
    return pytest.mark.parametrize(
        ("engine", name),
        [
            pytest.param(ENGINES[on][0], value, id=f"{value}-{on}", marks=ENGINES[on][1])
            for on, values in chosen.items()
            for value in values
        ],
    )


def is_spark(engine: Factory) -> bool:
    return isinstance(engine, OnSpark)


def drawn(many: int = 60, **strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test with random examples: many on DuckDB, few on Spark, where a count takes longer."""

    def of(body: Callable[..., None]) -> Callable[..., None]:
        def test(engine: Factory) -> None:
            @settings(max_examples=(5 if THOROUGH else 2) if is_spark(engine) else examples(many))
            @given(**strategies)
            def example(**values: Any) -> None:
                body(engine, **values)

            example()

        test.__name__, test.__doc__ = body.__name__, body.__doc__
        return test

    return of


def is_refused(engine: Factory, wanted: Task, kind: str) -> bool:
    """Whether the engine refuses this kind of input, after checking its error."""
    if not is_spark(engine) or kind not in NOT_ON_SPARK:
        return False
    sentence = "is a JSON array, which Spark cannot read" if kind == "json" else "is not supported by Spark: give"
    for action in (engine(Resources()).check, lambda wanted: histogram(engine, wanted)):
        with pytest.raises(InputError, match=sentence):
            action(wanted)
    return True


def events(source: Any, user: str = "user", items: str | tuple[str, ...] = "item", **more: Any) -> Events:
    names = (items,) if isinstance(items, str) else items
    return Events(source, user, tuple(Column(name, name) for name in names), **more)


def task(source: Any, key: Any = KEY, portable: Any = False, **more: Any) -> Task:
    of_task = ("max_items_per_user", "lower_threshold", "public_items", "rank", "ordered", "values", "weights")
    given = {name: more.pop(name) for name in of_task if name in more}
    return Task(events(source, **more), Choice(key, portable), **given)


def rows_of(engine: Factory, wanted: Task, resources: Resources | None = None) -> Rows:
    """All rows of the histogram, the count last."""
    resources = resources or Resources(threads=2)
    with (open_duckdb if engine is DuckDBEngine else engine)(resources).count(wanted) as counted:
        assert counted.schema.field(len(counted.schema) - 1).type == pa.int64()
        found: Rows = []
        for batch in counted.batches():
            assert batch.schema == counted.schema
            found += list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        return found


def histogram(engine: Factory, wanted: Task, resources: Resources | None = None) -> dict[Any, int]:
    """The histogram as a dictionary; single items without their tuple."""
    rows = rows_of(engine, wanted, resources)
    found = {row[0] if len(row) == 2 else row[:-1]: row[-1] for row in rows}
    assert len(found) == len(rows), "an item occurs twice"
    return found


def kept_by_hand(
    rows: Rows, cap: int | None, null_items: bool = False, key: bytes | None = None
) -> dict[Any, set[Any]]:
    """Brute force: each user's item tuples (user first in a row), limited by the portable rule if capped."""
    of_user: dict[Any, set[Any]] = defaultdict(set)
    for user, *item in rows:
        if user is not None and (null_items or None not in item):
            of_user[user].add(tuple(item))
    if cap is None:
        return of_user
    assert key is not None

    def place(user: Any, item: tuple[Any, ...]) -> str:
        texts = [str(part).lower() if isinstance(part, bool) else part for part in (user, *item)]
        parts = ["-" if part is None else f"{len(str(part))}:{part}" for part in texts]
        return hashlib.md5("".join([key.hex(), ":", *parts]).encode()).hexdigest()

    return {user: set(sorted(items, key=lambda item: place(user, item))[:cap]) for user, items in of_user.items()}


def counts_by_hand(kept: dict[Any, set[Any]]) -> dict[Any, int]:
    counts: dict[Any, int] = defaultdict(int)
    for items in kept.values():
        for item in items:
            counts[item[0] if len(item) == 1 else item] += 1
    return dict(counts)


def table_of(rows: Rows, **types: Any) -> Any:
    """An Arrow table of the rows, with columns of these names and types."""
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    return pa.table({name: pa.array(c, kind) for c, (name, kind) in zip(columns, types.items(), strict=True)})


def as_stream(table: Any) -> Any:
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3))


def in_duckdb(table: Any, path: Path, name: str = "events") -> None:
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.register("given", table)
        connection.execute(f"CREATE TABLE {name} AS FROM given")


def in_sqlite(table: Any, path: Path, name: str = "events") -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        columns = ", ".join('"' + column.replace('"', '""') + '"' for column in table.column_names)
        connection.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" for _ in table.column_names)
        connection.executemany(
            f"INSERT INTO {name} VALUES ({marks})", [tuple(row.values()) for row in table.to_pylist()]
        )
        connection.commit()


def json_lines(table: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in table.to_pylist())


def written(table: Any, folder: Path, kind: str) -> Any:
    """The table as an input of the kind."""
    path = folder / f"events.{kind}"
    if kind in ("parquet", "pq"):
        pa.parquet.write_table(table, path)
    elif kind in ("csv", "tsv", "csv.gz", "csv.zst", "tsv.gz"):
        options = pa.csv.WriteOptions(delimiter="\t" if "tsv" in kind else ",")
        with pa.output_stream(path) as out:  # compressed by its ending
            pa.csv.write_csv(table, out, options)
    elif kind in ("jsonl", "ndjson", "jsonl.gz"):
        with pa.output_stream(path) as out:
            out.write(json_lines(table).encode())
    elif kind == "json":
        path.write_text(json.dumps(table.to_pylist(), indent=1))
    elif kind == "stream.arrow":
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)
    elif kind in ("arrow", "feather", "ipc"):
        pa.feather.write_feather(table, path)
    elif kind in ("duckdb", "ddb"):
        in_duckdb(table, path)
    elif kind in ("sqlite", "sqlite3", "db"):
        in_sqlite(table, path)
    else:
        return in_memory(table, kind)
    return path


def in_memory(table: Any, kind: str) -> Any:
    """The table as an object of the kind."""
    import polars

    makers: dict[str, Callable[[], Any]] = {
        "table": lambda: table,
        "batch": lambda: table.combine_chunks().to_batches()[0],
        "reader": lambda: as_stream(table),
        "dataset": lambda: pa.dataset.dataset(table),
        "pandas": table.to_pandas,
        "polars": lambda: polars.from_arrow(table),
        "lazy": lambda: polars.from_arrow(table).lazy(),  # type: ignore[union-attr]
        "relation": lambda: duckdb.connect().from_arrow(table),
    }
    return makers[kind]()


FILES = [
    "parquet", "pq", "csv", "tsv", "csv.gz", "csv.zst", "tsv.gz", "jsonl", "ndjson", "jsonl.gz", "json", "arrow",
    "stream.arrow", "feather", "ipc", "duckdb", "ddb", "sqlite", "sqlite3", "db",
]  # fmt: skip
OBJECTS = ["table", "batch", "reader", "dataset", "pandas", "polars", "lazy", "relation"]
