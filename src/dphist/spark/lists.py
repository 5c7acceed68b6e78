"""Counting in rounds on Spark: pairs stay with their users, and only sums per item and part of the users move.

Users are in parts, one for each partition, and the distinct pairs of a part are sorted by user. So the items of a
user are counted where they are. A round adds up the weights of each item within a part and then over the parts: it
shuffles a row for each item and part that has it, and answers these parts whether the item stays on the lists. See
docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window, WindowSpec
from pyspark.sql import functions as sql

from dphist.counting.sql import COUNT, ITEMS, sum_names, weighted_sum
from dphist.counting.task import RoundsTask, Secret
from dphist.spark.dataframes import all_of, persist
from dphist.spark.session import is_connect

# Columns of the pairs: the part of the user, whether it is their only item, all items of a user who has more than
# count (else null), and the items of the user in round 0.
PART: Final = "part"
ALONE: Final = "alone"
MANY: Final = "many"
FIRST: Final = "first_items"
# Columns of the items: the parts that have it, and what the caller remembers of it between the rounds.
PARTS: Final = "parts"
POOLED: Final = "pooled"
# More parts for each core, or for so much input, only cost time.
PARTS_OF_A_CORE: Final = 16
BYTES_OF_A_PART: Final = 1 << 22


@dataclass(eq=False, repr=False)
class SparkRounds(Secret):
    """Users and items for counting in rounds (see `task.RoundsCount`), on the executors.

    `pairs` are all that users keep. Frames of items have the columns `items`, and everything in them is secret;
    `entries` is the public list, or None, and `known` has the items known in advance, or is None.
    """

    session: SparkSession
    task: RoundsTask
    pairs: DataFrame
    items: list[str]
    entries: DataFrame | None
    known: DataFrame | None
    what: str
    parts: int
    kept: ExitStack
    _lists: DataFrame = field(init=False)
    _narrowed: bool = field(default=False, init=False)

    def keep(self, frame: DataFrame) -> DataFrame:
        """Keep the rows on the executors until the end; lost ones are recomputed."""
        return self.kept.enter_context(persist(frame))

    def alone(self) -> DataFrame:
        """Items and the users who have this item only; kept, because it is used twice."""
        return self.keep(self.pairs.where(ALONE).groupBy(*self.items).agg(sql.count("*").alias(COUNT)))

    def start(self, gone: Sequence[DataFrame]) -> None:
        """Begin the rounds without these items, which are public or released: the driver sends them to all."""
        lists = self._several().select(PART, "u", *self.items)
        for frame in gone:
            lists = self.joined(lists, frame.select(*self.items), "left_anti", "broadcast")
        self._lists = lists.withColumn(FIRST, sql.count("*").over(_user()))

    def round(self, alive: DataFrame | None = None) -> DataFrame:
        """Items, sums of weights in steps, their parts, and `pooled`, which is 0 in the first round.

        `alive` are the items that stay on the lists after the last round, with `parts` and `pooled`.
        """
        most, task = range(1, self.task.most_items + 1), self.task
        if alive is None:
            lists, weight = self._lists, look_up([task.first_weight(n) for n in most], FIRST)
        else:
            answers = alive.select(*self.items, sql.explode(PARTS).alias(PART)).repartition(self.parts, PART)
            lists = self.joined(self._lists, answers, "left_semi", "shuffle_hash", PART)
            if not self._narrowed:
                # Most items leave after the first round: later ones start from here.
                self._lists = lists = self.keep(lists)
                self._narrowed = True
            lists = lists.withColumn(ITEMS, sql.count("*").over(_user()))
            own = look_up([task.first_weight(n) for n in most], ITEMS)
            weight = sql.least(own, look_up([task.most_weight(n) for n in most], FIRST))
        of_part = lists.withColumn("weight", weight).groupBy(PART, *self.items).agg(sql.sum("weight").alias(COUNT))
        sums = of_part.groupBy(*self.items).agg(sql.sum(COUNT).alias(COUNT), sql.collect_list(PART).alias(PARTS))
        if alive is None:
            return sums.withColumn(POOLED, sql.lit(0).cast("bigint"))
        return self.joined(sums, alive.select(*self.items, POOLED), "inner", "merge")

    def choose(self, found: DataFrame) -> None:
        """Keep the pairs with these items, which are released, for `sizes` and `measure`."""
        pairs = self._several()
        if not self.task.listed:
            pairs = self.joined(pairs, found.select(*self.items), "left_semi", "broadcast")
        self._lists = self.keep(pairs.withColumn(ITEMS, sql.count("*").over(_user())))

    def sizes(self, bounds: Sequence[int]) -> list[int]:
        """Users of the group of several by how many of the chosen items they keep; see `RoundsCount.sizes`."""
        counts = [0] * len(bounds)
        items = sql.coalesce(MANY, ITEMS)
        place = reduce(lambda a, b: a + b, [(items > bound).cast("int") for bound in bounds], sql.lit(0)).alias(
            "bucket"
        )
        for items_found, bucket, pairs in self._lists.groupBy(ITEMS, place).agg(sql.count("*")).collect():
            counts[bucket] += pairs // items_found
        return counts

    def measure(self, limit: int) -> DataFrame:
        """Chosen items that somebody has, with sums of the weights and of the weighted values of their users."""
        task, names = self.task, sum_names(self.task.values)
        weight = look_up([task.measure_weight(n, limit) for n in range(1, task.most_items + 1)], ITEMS)
        parts = [
            sql.expr(weighted_sum(name, value, task.lattice, "div")).alias(name)
            for name, value in zip(names, task.values, strict=True)
        ]
        weighted = self._lists.withColumn("weight", weight)
        weighted = weighted.select(*self.items, weighted["weight"].alias(COUNT), *parts)
        totals = [sql.sum(name).cast("bigint").alias(name) for name in (COUNT, *names)]
        return weighted.groupBy(*self.items).agg(*totals)

    def joined(self, left: DataFrame, right: DataFrame, how: str, hint: str, *more: str) -> DataFrame:
        """Rows of two frames with the same item (and the same values in `more`)."""
        renamed = right.toDF(*(f"k_{name}" if name in (*self.items, *more) else name for name in right.columns))
        same = [_same(name, self.task.events.can_be_null and name in self.items) for name in (*more, *self.items)]
        both = left.join(renamed.hint(hint), all_of(same), how)
        return both.drop(*(f"k_{name}" for name in (*self.items, *more)))

    def _several(self) -> DataFrame:
        """The pairs of users with several items, or all pairs without the other group."""
        return self.pairs.where(f"NOT {ALONE}") if self.task.alone else self.pairs


def _same(name: str, can_be_null: bool) -> Column:
    left, right = sql.col(name), sql.col(f"k_{name}")
    return left.eqNullSafe(right) if can_be_null else left == right


def _user() -> WindowSpec:
    return Window.partitionBy(PART, "u")


def look_up(weights: Sequence[int], place: str) -> Column:
    """The entry of a list by a number from 1."""
    return sql.expr(f"element_at(array({', '.join(f'{weight}L' for weight in weights)}), CAST({place} AS INT))")


def number_of_parts(session: SparkSession, rows: DataFrame) -> int:
    """The session's number of shuffle partitions, or fewer for small inputs and clusters."""
    setting = session.conf.get("spark.sql.shuffle.partitions")
    assert setting is not None
    most = int(setting)
    if is_connect(session):
        return most
    cores = int(session.sparkContext.defaultParallelism)
    # Very large if Spark does not know.
    size = int(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
    return max(1, min(most, PARTS_OF_A_CORE * cores, max(cores, size // BYTES_OF_A_PART)))


def part_of(session: SparkSession, user: Column, parts: int) -> Column:
    """The part of a user: a number that Spark's hash puts into a partition of its own."""
    numbers = sql.array(*map(sql.lit, numbers_of_partitions(session, parts)))
    return sql.element_at(numbers, sql.pmod(sql.hash(user), sql.lit(parts)) + 1)


def numbers_of_partitions(session: SparkSession, partitions: int) -> list[int]:
    """For each of so many partitions, a number whose rows Spark puts there. (Others would share partitions.)"""
    number = sql.col("id").cast("int").alias("number")
    place = sql.pmod(sql.hash(number), sql.lit(partitions)).alias("place")
    # Each partition gets 64 numbers on average: none is left without.
    tried = session.range(0, 64 * partitions, 1, 1).select(number, place)
    return [number for _, number in sorted({place: number for number, place in tried.collect()}.items())]
