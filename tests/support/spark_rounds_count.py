"""Counting in rounds on Spark through numbers of items in this process, for the tests of all engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import functions as sql

from dphist.counting.sql import COUNT, sum_names
from dphist.counting.task import Progress, Resources, RoundsTask
from dphist.spark.counting import ENTRY, SparkEngine, with_all_entries
from dphist.spark.dataframes import arrow_frame
from dphist.spark.lists import POOLED, SparkRounds
from spark_shared import OnSpark, shared_session

IntArray = NDArray[np.int64]
NUMBER = "number"


class Numbered:
    """A `RoundsCount` of all that the executors have. Items have their numbers as `pooled` evidence."""

    def __init__(self, counted: SparkRounds) -> None:
        self.counted, items = counted, counted.items
        kept = counted.pairs.select(*items).distinct()
        if counted.entries is not None:
            every = counted.entries.select(
                *(counted.entries[f"p{k}"].alias(name) for k, name in enumerate(items)), ENTRY
            )
        else:
            every = kept if counted.known is None else kept.unionAll(counted.known).distinct()
        rows = every.orderBy(*(every[name].asc_nulls_last() for name in every.columns)).toArrow()
        self.names = rows.select(items)
        self.entries = rows[ENTRY].to_numpy() if counted.entries is not None else None
        self.items = rows.num_rows
        numbered = rows.append_column(NUMBER, pa.array(range(self.items), pa.int64()))
        self.frame = arrow_frame(counted.session, numbered).persist()
        self.on_lists = np.ones(self.items, dtype=np.bool_)
        self.alive: Any = None

    @property
    def known(self) -> NDArray[np.bool_]:
        if self.counted.known is None:
            return np.full(self.items, self.entries is not None)
        return self._numbers(self.counted.known.withColumn(COUNT, sql.lit(1)))[0] > 0

    @property
    def present(self) -> NDArray[np.bool_]:
        kept = self.counted.pairs.groupBy(*self.counted.items).agg(sql.count("*").alias(COUNT))
        return self._numbers(kept)[0] > 0

    def alone(self) -> IntArray:
        if not self.counted.task.alone:
            return np.zeros(self.items, dtype=np.int64)
        return self._numbers(self.counted.alone())[0]

    def leave(self, gone: IntArray) -> None:
        self.on_lists[gone] = False

    def round(self) -> IntArray:
        on_lists = self._with(self.on_lists)
        if self.alive is None:
            self.counted.start([self._with(~self.on_lists)])
            sums = self.counted.round()
        else:
            sums = self.counted.round(self.counted.joined(self.alive, on_lists, "left_semi", "merge"))
        sums = self.counted.joined(sums.drop(POOLED), self._matched(), "inner", "merge").persist()
        self.alive = sums.withColumnRenamed(NUMBER, POOLED).drop(COUNT)
        return self._numbers(sums)[0]

    def sizes(self, found: IntArray, bounds: Sequence[int]) -> list[int]:
        self._choose(found)
        return self.counted.sizes(bounds)

    def measure(self, found: IntArray, limit: int) -> tuple[IntArray, ...]:
        self._choose(found)
        return tuple(column[found] for column in self._numbers(self.counted.measure(limit)))

    def rows(self, found: IntArray) -> list[Any]:
        return list(self.names.take(pa.array(found, pa.int64())).columns)

    def _choose(self, found: IntArray) -> None:
        chosen = np.isin(np.arange(self.items), found)
        task = self.counted.task
        if not task.listed:
            self.counted.choose(self._with(chosen))
            return
        # All items of a public list are measured. Tests ask for some of them: the others leave the pairs.
        pairs = self.counted.pairs
        self.counted.pairs = self.counted.joined(pairs, self._with(chosen), "left_semi", "merge")
        self.counted.choose(pairs)
        self.counted.pairs = pairs

    def _with(self, chosen: NDArray[np.bool_]) -> Any:
        """The frame of these items."""
        matched = self._matched()
        return matched.where(matched[NUMBER].isin(np.flatnonzero(chosen).tolist())).select(*self.counted.items)

    def _matched(self) -> Any:
        """The items in the types of the input, and their numbers."""
        items = self.counted.items
        if self.entries is None or self.counted.entries is None:
            return self.frame.select(*items, NUMBER)
        numbers = sql.array(*map(sql.lit, np.argsort(self.entries).tolist()))
        matched = self.counted.entries.where("matched").withColumn(NUMBER, sql.get(numbers, sql.col(ENTRY)))
        return matched.select(*(matched[f"k{k}"].alias(name) for k, name in enumerate(items)), NUMBER)

    def _numbers(self, sums: Any) -> list[IntArray]:
        """The numbers of a frame of items, by item."""
        items, values = self.counted.items, sum_names(self.counted.task.values)
        names = [COUNT, *(name for name in values if name in sums.columns)]
        sums = sums.select(*items, *names)
        if self.counted.entries is not None:
            rows = with_all_entries(self.counted.entries, sums, items, names[1:]).orderBy(ENTRY).toArrow()
            order = np.array(self.entries, dtype=np.int64)
            return [rows[name].to_numpy()[order] for name in names]
        rows = (
            self.counted.joined(self._matched(), sums, "left", "merge").fillna(0, names).orderBy(NUMBER).toArrow()
        )
        assert rows[NUMBER].to_pylist() == list(range(self.items))
        return [rows[name].to_numpy() for name in names]


@dataclass(eq=False)
class NumberedEngine(SparkEngine):
    @contextmanager
    def rounds(self, task: RoundsTask, progress: Progress | None = None) -> Iterator[Any]:
        with super().rounds(task, progress) as counted:
            yield Numbered(counted)


@dataclass(frozen=True)
class NumberedOnSpark(OnSpark):
    """Creates engines whose rounds have numbers of items."""

    def __call__(self, resources: Resources) -> NumberedEngine:
        shared_session(self.kind)
        return NumberedEngine(resources)
