"""A public list of items on Spark: read and matched to the input's types by the embedded engine, then joined."""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from dphist.engines.duckdb_engine import DuckDBEngine
from dphist.engines.spark_arrow import spark_ready
from dphist.types import Events

COUNT: Final = "users"


def public_entries(session: Any, listed: Events, kinds: list[str], events: Events, reader: DuckDBEngine) -> Any:
    """Entries p0, ..., their keys k0, ... in the input's types, and whether one matches: see `sql.public_list`."""
    table = reader.public_table(listed, kinds, events.null_items)
    return session.createDataFrame(spark_ready(table, table.column_names))


def matching_keys(pairs: Any, entries: Any, items: list[str]) -> Any:
    """The pairs whose item is in the list."""
    keys = entries.where("matched").select(*(f"k{k}" for k in range(len(items))))
    same = [pairs[name].eqNullSafe(keys[f"k{k}"]) for k, name in enumerate(items)]
    return pairs.join(keys, reduce(lambda a, b: a & b, same), "left_semi")


def with_all_entries(entries: Any, counts: Any, items: list[str]) -> Any:
    """Every entry with its count, 0 where nobody has it."""
    from pyspark.sql import functions as sql

    same = [entries[f"k{k}"].eqNullSafe(counts[name]) for k, name in enumerate(items)]
    joined = entries.join(counts, reduce(lambda a, b: a & b, [entries["matched"], *same]), "left")
    values = [entries[f"p{k}"].alias(name) for k, name in enumerate(items)]
    return joined.select(*values, sql.coalesce(counts[COUNT], sql.lit(0)).cast("bigint").alias(COUNT))
