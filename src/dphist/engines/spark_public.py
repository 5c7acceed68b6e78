"""A public list of items on Spark: read and matched to the input's types by the embedded engine, then joined."""

from __future__ import annotations

from functools import reduce
from typing import Any, Final

from dphist.engines.duckdb_engine import DuckDBEngine
from dphist.engines.inputs import opened_rows
from dphist.engines.protocol import Resources
from dphist.engines.sources import demand
from dphist.engines.spark_arrow import arrow_frame
from dphist.engines.sql import COUNT
from dphist.engines.workspace import connected, private_folder
from dphist.extras import is_spark_frame
from dphist.types import Events

ENTRY: Final = "entry"


def check_public(listed: Events) -> None:
    """Raise `InputError` if a public list lacks a column or cannot be read; it is not read yet."""
    if is_spark_frame(listed.source):
        demand("the list of public items", list(listed.source.columns), [column.source for column in listed.items])
        return
    resources = Resources()
    with private_folder(None) as folder, connected(resources, folder) as connection:
        opened_rows(connection, listed, "dphist_public", probe=True, with_user=False)


def public_entries(session: Any, listed: Events, kinds: list[str], events: Events, reader: DuckDBEngine) -> Any:
    """Entries p0, ..., their keys k0, ... in the input's types, and whether one matches: see `sql.public_list`."""
    import pyarrow as pa

    table = reader.public_table(listed, kinds, events.null_items)
    # Entries that differ may look the same to Spark, which cuts times at microseconds; their numbers differ.
    numbered = table.append_column(ENTRY, pa.array(range(table.num_rows), pa.int64()))
    return arrow_frame(session, numbered, numbered.column_names)


def matching_keys(pairs: Any, entries: Any, items: list[str]) -> Any:
    """The pairs whose item is in the list."""
    keys = entries.where("matched").select(*(f"k{k}" for k in range(len(items))))
    same = [pairs[name].eqNullSafe(keys[f"k{k}"]) for k, name in enumerate(items)]
    return pairs.join(keys, reduce(lambda a, b: a & b, same), "left_semi")


def with_all_entries(entries: Any, counts: Any, items: list[str], sums: list[str]) -> Any:
    """Every entry with its count and its sums, 0 where nobody has it."""
    from pyspark.sql import functions as sql

    same = [entries[f"k{k}"].eqNullSafe(counts[name]) for k, name in enumerate(items)]
    # By sorting: Spark would bring counts that are few to the driver, to send them to every executor from there.
    joined = entries.join(counts.hint("merge"), reduce(lambda a, b: a & b, [entries["matched"], *same]), "left")
    values = [entries[f"p{k}"].alias(name) for k, name in enumerate(items)]
    found = [sql.coalesce(counts[name], sql.lit(0)).cast("bigint").alias(name) for name in (COUNT, *sums)]
    return joined.select(*values, entries[ENTRY], *found)
