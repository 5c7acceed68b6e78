"""Counting on Spark: users per item and their sums, the count of a rank, and how many items users have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dphist.engines.counts_sql import ITEMS, value_names
from dphist.engines.protocol import Task
from dphist.engines.spark_types import fast_order, portable_order
from dphist.engines.spark_values import own_sums
from dphist.engines.sql import COUNT


def counts_of(pairs: Any, items: list[str], task: Task) -> Any:
    """Users per item, each user with at most as many random items as the task says, and sums over these users."""
    from pyspark.sql import functions as sql

    names = value_names(task.values)
    totals = [sql.count("*").alias(COUNT), *(sql.sum(name).cast("bigint").alias(name) for name in names)]
    if task.max_items_per_user is not None:
        # All of a user's rows in one place first: one shuffle of them serves both DISTINCT and the choice.
        pairs = pairs.repartition("u")
    once = own_sums(pairs, ["u", *items], task.values) if task.values else pairs.distinct()
    if task.max_items_per_user is not None:
        once = _chosen(once, items, task, task.max_items_per_user)
    return once.groupBy(*items).agg(*totals)


def _chosen(once: Any, items: list[str], task: Task, cap: int) -> Any:
    """Of each user at most `cap` random items; what the user has for them plays no part."""
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    order = (portable_order if task.choice.portable else fast_order)(
        task.choice.key, once["u"], [once[name] for name in items]
    )
    of_user = Window.partitionBy("u").orderBy("chance", *items)
    ranked = once.withColumn("chance", order).withColumn("place", sql.row_number().over(of_user))
    return ranked.where(sql.col("place") <= cap)


def sizes_of(pairs: Any, items: Sequence[str]) -> Any:
    """How many users have how many different items: one row for each number of items."""
    from pyspark.sql import functions as sql

    # One shuffle of a user's rows serves both DISTINCT and the number of items.
    once = pairs.select("u", *items).repartition("u").distinct()
    own = once.groupBy("u").agg(sql.count("*").alias(ITEMS))
    return own.groupBy(ITEMS).agg(sql.count("*").alias(COUNT))


def count_at(frame: Any, rank: int) -> int:
    """The count of this rank, the largest having rank 1; 0 where there are fewer.

    Spark counts how often each count occurs, which is a small table, and adds up from the largest: one number
    comes back.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as sql

    often = frame.groupBy(COUNT).agg(sql.count("*").alias("times"))
    downwards = Window.orderBy(sql.col(COUNT).desc()).rowsBetween(Window.unboundedPreceding, 0)
    reached = often.withColumn("reached", sql.sum("times").over(downwards)).where(sql.col("reached") >= rank)
    found = reached.agg(sql.max(COUNT)).collect()[0][0]
    return 0 if found is None else int(found)
