"""Users per item with Tumult Analytics on a local Spark: its automatic partition selection, then counts.

Arguments: input, output, cap, epsilon, delta. The first query selects keys, the second counts, each with half of
epsilon; counting needs no delta, so the keys get all of it.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import os
import sys

from pyspark.sql import SparkSession
from tmlt.analytics import (
    AddRowsWithID,
    ApproxDPBudget,
    KeySet,
    MaxGroupsPerID,
    MaxRowsPerGroupPerID,
    QueryBuilder,
    Session,
)

source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
os.environ["PYSPARK_PYTHON"] = sys.executable
cores = len(os.sched_getaffinity(0))
spark = (
    SparkSession.builder.master(f"local[{cores}]")
    .config("spark.driver.memory", "6g")
    .config("spark.sql.shuffle.partitions", str(4 * cores))
    .config("spark.ui.enabled", "false")
    .config("spark.sql.warehouse.dir", os.path.join(os.path.dirname(output), "warehouse"))
    .getOrCreate()
)
session = Session.from_dataframe(
    privacy_budget=ApproxDPBudget(epsilon, delta),
    source_id="events",
    dataframe=spark.read.parquet(source).select("user", "item"),
    protected_change=AddRowsWithID("user"),
)
events = QueryBuilder("events").enforce(MaxGroupsPerID("item", cap)).enforce(MaxRowsPerGroupPerID("item", 1))
found = session.evaluate(events.get_groups(["item"]), ApproxDPBudget(epsilon / 2, delta))
counts = events.groupby(KeySet.from_dataframe(found)).count(name="count")
session.evaluate(counts, ApproxDPBudget(epsilon / 2, 0)).toPandas().to_parquet(output)
spark.stop()
