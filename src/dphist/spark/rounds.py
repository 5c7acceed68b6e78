"""A release in rounds by Spark: executors count, add noise and decide; found items and sizes come to the driver.

The driver draws secret keys, the noise of the sizes and the shared noise. All other noise is a function of a key
(a new one for each draw), of the item and of the true number, as in `noise.py`: a task that runs again draws the
same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.types import DataType, DoubleType, IntegerType, LongType, StructField, StructType

from dphist.aliases import ArrowArray
from dphist.counting.columns import arrow_numbers, as_numpy, one_chunk
from dphist.counting.sql import COUNT, sum_names
from dphist.counting.task import Progress
from dphist.errors import InputError, is_spark_frame
from dphist.model import LaplaceNoise, LatticeNoise, Plan, RoundsNoise
from dphist.outputs.target import Target
from dphist.releasing.noise import Job, noise_of_group
from dphist.releasing.result import Release
from dphist.releasing.rounds import (
    ALONE,
    HIDDEN,
    KNOWN,
    Found,
    Measurement,
    bounds_of,
    by_round,
    estimated,
    noisy,
    noisy_sizes,
    noisy_weights,
    passes_alone,
    pool,
    rounds_noise,
    scores,
    shared_draw,
    unmeasured,
)
from dphist.sampling.rng import Rng
from dphist.spark.counting import ENTRY, digest, run, with_all_entries
from dphist.spark.dataframes import arrow_frame, detached, on_executors
from dphist.spark.folder import Placed
from dphist.spark.lists import PARTS, POOLED, SparkRounds
from dphist.spark.noise import ExecutorStep, SparkRelease, new_key, without_logging, write_release_folder

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

# Columns beside those of the item: its SHA-256, where it was found, and a noisy number.
ITEM: Final = "item"
FOUND_IN: Final = "found_in"
NOISY: Final = "noisy"


def release_rounds_on_spark(
    job: Job, counted: SparkRounds, target: Target | None, placed: Placed | None, watch: Progress
) -> Release:
    """Find, measure and estimate. A `target` that is a folder is written too."""
    request = job.request
    with without_logging():
        frame, found, items = find_on_spark(rounds_noise(job.plan), counted, job.rng)
        watch(0.8)
        measured = measure_on_spark(job.plan, counted, frame, by_round(job.plan, found), job.rng)
        release = estimated(job, found, measured, items)
        watch(1.0)
    is_folder = target is not None and target.kind == "folder"
    if not is_folder and not is_spark_frame(request.input):
        return release
    frame = arrow_frame(counted.session, release.to_arrow())
    if target is not None and target.kind == "folder":
        written, frame = write_release_folder(
            frame, counted.what, release, target, force=request.force, placed=placed
        )
        release = replace(release, written=written)
    return SparkRelease(frame, release)


# Noise on the executors.


@dataclass(frozen=True, repr=False)
class AloneStep(ExecutorStep):
    """Users with one item, with noise, in steps. With `only_found`, only of the items that they find."""

    noise: LaplaceNoise | LatticeNoise
    only_found: bool

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        users = as_numpy(batch.column(COUNT))
        (draws,) = self.draws(batch.column(ITEM), [users])
        steps = noisy(users * self.noise.lattice, noise_of_group(self.noise), draws)
        rest = batch.drop_columns([COUNT])
        columns = [*rest.columns, arrow_numbers(steps)]
        released = pa.RecordBatch.from_arrays(columns, names=[*rest.schema.names, NOISY])
        return taken(released, passes_alone(self.noise, users, steps)) if self.only_found else released


@dataclass(frozen=True, repr=False)
class RoundStep(ExecutorStep):
    """The items that a round finds, and those that stay on the lists, with their pooled evidence."""

    noise: RoundsNoise
    number: int

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        weights, before = as_numpy(batch.column(COUNT)), as_numpy(batch.column(POOLED))
        (draws,) = self.draws(batch.column(ITEM), [weights])
        pooled, found, stays = pool(self.noise, self.number, weights, before, draws)
        found_in = np.where(found, self.number + 1, HIDDEN).astype(np.int32)
        rest = batch.drop_columns([COUNT, POOLED, ITEM])
        columns = [*rest.columns, arrow_numbers(found_in), arrow_numbers(pooled)]
        evidence = pa.RecordBatch.from_arrays(columns, names=[*rest.schema.names, FOUND_IN, POOLED])
        return taken(evidence, found | stays)


@dataclass(frozen=True, repr=False)
class MeasureStep(ExecutorStep):
    """Measured weights and sums of the found items. `shared` is secret like all noise."""

    plan: Plan
    limit: int
    shared: int

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        ids, *numbers = batch.columns
        true = [as_numpy(column) for column in numbers]
        draws = self.draws(ids, true)
        weights, sums = noisy_weights(self.plan, self.limit, self.shared, true[0], true[1:], draws)
        columns = [ids, arrow_numbers(weights), *map(arrow_numbers, sums)]
        return pa.RecordBatch.from_arrays(columns, names=[ITEM, NOISY, *batch.schema.names[2:]])


def with_ids(frame: DataFrame, items: list[str]) -> DataFrame:
    """The frame and the `item` of each row as SHA-256; entries of a public list differ by their numbers."""
    columns = [(frame[name], kind) for name, kind in frame.dtypes if name in (*items, ENTRY)]
    return frame.withColumn(ITEM, digest(columns))


def applied(step: ExecutorStep, frame: DataFrame, dropped: Sequence[str], **added: DataType) -> DataFrame:
    """The result of a step on a frame with ids: without the dropped columns, and with the added ones."""
    fields = [field for field in frame.schema.fields if field.name not in dropped]
    return on_executors(frame, step, StructType([*fields, *(StructField(*one) for one in added.items())]))


def taken(batch: pa.RecordBatch, chosen: BoolArray) -> pa.RecordBatch:
    return batch.take(arrow_numbers(np.flatnonzero(chosen)))


# Rounds.


def find_on_spark(noise: RoundsNoise, counted: SparkRounds, rng: Rng) -> tuple[DataFrame, Found, list[ArrowArray]]:
    """All rounds: the found items on the executors, and what is released of them here, in order of their ids."""
    items, key_alone = counted.items, new_key(rng)
    groups = [] if counted.known is None else [found_items(counted.known, KNOWN)]
    if noise.alone is not None:
        users = users_alone = counted.alone()
        for known in groups:
            users = counted.joined(users, known.select(*items), "left_anti", "broadcast")
        step = AloneStep((key_alone,), noise.alone, only_found=True)
        alone = computed(counted, applied(step, with_ids(users, items), [COUNT], noisy=LongType()))
        groups.append(found_items(alone.select(*items), ALONE))
    if counted.entries is not None:
        entries = [counted.entries[f"p{k}"].alias(name) for k, name in enumerate(items)]
        groups.append(found_items(counted.entries.select(*entries, ENTRY), KNOWN))
    else:
        groups += find_in_rounds(noise, counted, groups, rng)
    found = counted.keep(reduce(lambda a, b: a.unionByName(b), groups))
    released = with_ids(found, items)
    if noise.alone is not None:
        users = counted.joined(found, users_alone, "left", "merge").fillna(0, [COUNT])
        step = AloneStep((key_alone,), noise.alone, only_found=False)
        released = applied(step, with_ids(users, items), [COUNT], noisy=LongType())
    columns = by_id(released, counted)
    found_in = as_numpy(columns[FOUND_IN]).astype(np.int8)
    score = scores(noise, found_in, as_numpy(columns[POOLED]))
    of_alone = None if noise.alone is None else as_numpy(columns[NOISY]) / noise.alone.lattice
    here = Found(np.arange(found_in.size), found_in, score, of_alone)
    return found, here, [columns[name] for name in items]


def find_in_rounds(
    noise: RoundsNoise, counted: SparkRounds, gone: Sequence[DataFrame], rng: Rng
) -> list[DataFrame]:
    """The items that each round finds; those that are `gone` have left the lists before the first one."""
    counted.start(gone)
    groups, alive = [], None
    for number in range(len(noise.parts)):
        step = RoundStep((new_key(rng),), noise, number)
        weights = with_ids(counted.round(alive), counted.items)
        added = {FOUND_IN: IntegerType(), POOLED: LongType()}
        evidence = computed(counted, applied(step, weights, [COUNT, POOLED, ITEM], **added))
        groups.append(evidence.where(f"{FOUND_IN} > {HIDDEN}").drop(PARTS))
        alive = evidence.where(f"{FOUND_IN} = {HIDDEN}").drop(FOUND_IN)
    return groups


def found_items(frame: DataFrame, place: int) -> DataFrame:
    """Items that were found without a round, and where."""
    return frame.select("*", sql.lit(place).alias(FOUND_IN), sql.lit(0).cast("bigint").alias(POOLED))


def computed(counted: SparkRounds, frame: DataFrame) -> DataFrame:
    """The rows, computed and kept on the executors. Without their plan, whose text would double in each round."""
    rows = counted.keep(frame)
    return run(lambda: detached(rows), counted.what)


def by_id(frame: DataFrame, counted: SparkRounds) -> dict[str, ArrowArray]:
    """The columns of released rows, in this process, in the order of the ids."""
    table = run(frame.toArrow, counted.what).sort_by(ITEM)
    return {name: one_chunk(table.column(name)) for name in table.column_names}


def measure_on_spark(
    plan: Plan, counted: SparkRounds, found: DataFrame, in_rounds: Sequence[int], rng: Rng
) -> Measurement:
    """The sizes, and the measurement of the found items in the order of their ids."""
    counted.choose(found)
    users = run(lambda: counted.sizes(bounds_of(plan)), counted.what)
    sizes, limit = noisy_sizes(plan, users, in_rounds, rng)
    if limit == 0:
        return unmeasured(plan, sizes)
    names, items, sums = sum_names(counted.task.values), counted.items, counted.measure(limit)
    if counted.entries is not None:
        every = with_all_entries(counted.entries, sums, items, names)
    else:
        every = counted.joined(found.select(*items), sums, "left", "merge").fillna(0, [COUNT, *names])
    keys = tuple(new_key(rng) for _ in range(1 + len(names)))
    step = MeasureStep(keys, plan, limit, shared_draw(plan, limit, rng))
    numbers = dict.fromkeys([NOISY, *names], DoubleType())
    true_numbers = with_ids(every, items).select(ITEM, COUNT, *names)
    columns = by_id(applied(step, true_numbers, [COUNT, *names], **numbers), counted)
    if len(columns[ITEM]) != sum(in_rounds):
        raise InputError(f"{counted.what} changed while it was counted")
    weights, *noisy_sums = (as_numpy(columns[name]) for name in numbers)
    return Measurement(sizes, limit, weights, tuple(noisy_sums))
