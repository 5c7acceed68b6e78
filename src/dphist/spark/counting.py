"""The distributed engine: Spark reads events, limits each user, and counts; the histogram stays on its executors.

Results do not depend on which executor runs a task, or how often: a keyed hash chooses a user's items, so a lost
part of the histogram is recomputed with the same counts.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema

from dphist import __version__
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.sql import (
    COUNT,
    ITEMS,
    MARK,
    clip_vectors,
    fine_steps,
    numbers_of_made,
    own_sums,
    portable_order,
    require_columns,
    sum_names,
    total_columns,
)
from dphist.counting.task import (
    FINE_LIMIT,
    Choice,
    Events,
    Progress,
    Resources,
    RoundsTask,
    Secret,
    Task,
    Value,
)
from dphist.counting.workspace import SessionKeeper, attempt
from dphist.errors import InputError, is_spark_frame
from dphist.spark.dataframes import all_of, arrow_frame, on_executors, persist
from dphist.spark.inputs import counted_column, number, read_rows
from dphist.spark.lists import ALONE, MANY, PART, SparkRounds, number_of_parts, part_of
from dphist.spark.session import Cluster, report_progress, session_for

T = TypeVar("T")

ENTRY: Final = "entry"
SUM: Final = re.compile(r"v\d+")  # item columns are i0, i1, ...
STOPPED: Final = "{what} cannot be counted: Spark failed, or it contains values that cannot be read"
_checked_sessions: weakref.WeakSet[SparkSession] = weakref.WeakSet()


@dataclass(eq=False)
class SparkEngine(SessionKeeper[SparkSession]):
    """Counts with Spark, in the active session or in a new one."""

    resources: Resources = field(default_factory=Resources)
    cluster: Cluster = field(default_factory=Cluster)

    def _session(self, events: Events) -> AbstractContextManager[SparkSession]:
        new = partial(session_for, events.source, self.resources, self.cluster)
        return new() if is_spark_frame(events.source) else self._share(new)

    def check(self, task: Task) -> None:
        with self._session(task.events) as session:
            pairs_of(session, task.events, values=task.values, probe=True)
        listed = task.public_items
        if listed is not None and is_spark_frame(listed.source):
            columns = list(listed.source.columns)
            require_columns("the list of public items", columns, [column.source for column in listed.items])
        elif listed is not None:
            DuckDBEngine(self.resources).check_list(listed)

    def size(self, public_items: Events) -> int:
        return DuckDBEngine(self.resources).size(bring_here(public_items))

    @contextmanager
    def rounds(self, task: RoundsTask, progress: Progress | None = None) -> Iterator[SparkRounds]:
        with self._session(task.events) as session, report_progress(session, progress), ExitStack() as kept:
            counted = read_rounds(session, task, kept)
            check_executors(session)
            yield counted

    @contextmanager
    def count(self, task: Task, progress: Progress | None = None) -> Iterator[SparkHistogram]:
        with self._session(task.events) as session, report_progress(session, progress):
            pairs, items, entries, what = listed_pairs(session, task)
            frame = count_users(pairs, items, task)
            if entries is not None:
                frame = with_all_entries(entries, frame, items, sum_names(task.values))
            elif task.lower_threshold > 1:
                frame = frame.where(frame[COUNT] >= task.lower_threshold)
            check_executors(session)
            rank = task.rank
            # With a rank the histogram is read twice.
            with nullcontext(frame) if rank is None else persist(frame) as counts:
                at_rank = 0 if rank is None else run(partial(count_at, counts, rank), what)
                yield SparkHistogram(session, counts, at_rank, what, task.ordered)


@dataclass(frozen=True, repr=False)
class SparkHistogram(Secret):
    """Counts on the executors: `frame` has item columns i0, ..., the count `users` and sums v0, ...

    With a public list it has the number of each entry too.
    """

    session: SparkSession
    frame: DataFrame
    at_rank: int
    what: str
    ordered: bool = False

    @property
    def schema(self) -> pa.Schema:
        return to_arrow_schema(self._without_entries().schema, timezone="UTC")

    def items(self) -> list[str]:
        return [name for name in self.frame.columns if name not in (COUNT, ENTRY, *self.sums())]

    def sums(self) -> list[str]:
        return [name for name in self.frame.columns if SUM.fullmatch(name)]

    def _without_entries(self) -> DataFrame:
        return self.frame.select(*self.items(), COUNT, *self.sums())

    def with_digests(self) -> DataFrame:
        """Items, counts, sums and a `digest`: SHA-256 of the item (with its number in a public list) and count."""
        kinds = dict(self.frame.dtypes)
        rest = (COUNT, *self.sums())
        columns = [(self.frame[name], kinds[name]) for name in self.frame.columns if name not in rest]
        return self.frame.select(*self.items(), *rest, digest(columns, self.frame[COUNT]).alias("digest"))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Arrow record batches, through this process: for tests and small histograms."""
        rows = self._without_entries()
        if self.ordered:
            rows = rows.orderBy(*(rows[name].asc_nulls_last() for name in self.items()))
        table = run(rows.toArrow, self.what).cast(self.schema)
        yield from (batch for batch in table.combine_chunks().to_batches() if batch.num_rows)


def run(action: Callable[[], T], what: str) -> T:
    """Run on the cluster; errors contain no data."""
    return attempt(action, what, STOPPED)


def dphist_version(_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"version": [__version__]})


def check_executors(session: SparkSession) -> None:
    """Raise `InputError` if executors could not draw noise: before any event is read, once per session."""
    if session in _checked_sessions:
        return
    try:
        there = on_executors(session.range(1).coalesce(1), dphist_version, "version string").collect()[0][0]
        problem = "" if there == __version__ else f"they have dphist {there}, this is dphist {__version__}"
    except Exception as error:
        missing = re.search(r"(?:No module named '|NOT_INSTALLED\] )(\w+)", str(error))
        problem = "no task could be run there"
        if "PYTHON_VERSION_MISMATCH" in str(error):
            problem = "their version of Python differs from this one"
        if missing:
            problem = f"their Python has no package {missing[1]}"
    if problem:
        raise InputError(
            f"Spark's executors cannot draw noise: {problem}. They need this dphist: set PYSPARK_PYTHON to a "
            "Python that has it, or ship an environment with <--spark-conf> spark.archives=..."
        )
    _checked_sessions.add(session)


def pairs_of(
    session: SparkSession, events: Events, *, values: tuple[Value, ...] = (), probe: bool = False
) -> tuple[DataFrame, list[str], str]:
    """Users u, items i0, i1, ... and values in fine steps f0, f1, ...; the items' types; the input's name.

    With totals, the last item column is their mark.
    """
    summed = list(dict.fromkeys(value.column for value in values))
    rows, what = read_rows(session, events, summed, probe=probe)
    names = [events.user, *(column.source for column in events.items), *summed]
    columns = [(rows[place], kind, name) for (place, kind), name in zip(rows.dtypes, names, strict=True)]
    keys = ["u", *(f"i{k}" for k in range(len(events.items)))]
    counted = [counted_column(*column, is_user=k == 0) for k, column in enumerate(columns[: len(keys)])]
    chosen = [column.alias(key) for (column, _), key in zip(counted, keys, strict=True)]
    # Named, so that a number that is used several times is computed once.
    chosen += [number(*column).alias(f"x{k}") for k, column in enumerate(columns[len(keys) :])]
    pairs = rows.select(*chosen)
    for key in ["u"] if events.null_items else keys:  # `na.drop` would drop NaN too
        pairs = pairs.where(pairs[key].isNotNull())
    kinds, sums = [kind for _, kind in counted[1:]], [f"f{k}" for k in range(len(values))]
    if values:
        fine = [f"{fine_steps(f'x{summed.index(v.column)}', v)} AS f{k}" for k, v in enumerate(values)]
        pairs = pairs.selectExpr(*keys, *fine)
    if events.totals:
        made = pairs.selectExpr("*", f"explode(array({numbers_of_made(events)})) AS made")
        pairs = made.selectExpr("u", *total_columns(events, keys[1:]), *sums)
        kinds.append(MARK)
    return pairs, kinds, what


def listed_pairs(
    session: SparkSession, task: Task, *, others: bool = False
) -> tuple[DataFrame, list[str], DataFrame | None, str]:
    """The pairs (of the public list, if any), the item columns, the entries of the list, and the input's name.

    With `others` all pairs, also those of items that are not on the list.
    """
    pairs, kinds, what = pairs_of(session, task.events, values=task.values)
    items = [f"i{k}" for k in range(len(kinds))]
    if task.public_items is None:
        return pairs, items, None, what
    listed = replace(bring_here(task.public_items), totals=task.events.totals)
    table = DuckDBEngine().public_table(listed, kinds, task.events.null_items)
    # Numbered, because Spark truncates times to microseconds, which may make different entries equal.
    numbered = table.append_column(ENTRY, pa.array(range(table.num_rows), pa.int64()))
    entries = arrow_frame(session, numbered)
    if others:
        return pairs, items, entries, what
    keys = entries.where("matched").select(*(f"k{k}" for k in range(len(items))))
    same = [pairs[name].eqNullSafe(keys[f"k{k}"]) for k, name in enumerate(items)]
    return pairs.join(keys, all_of(same), "left_semi"), items, entries, what


def count_users(pairs: DataFrame, items: list[str], task: Task) -> DataFrame:
    """Users per item, each user limited to random items, and sums over these users."""
    limit, names = task.max_items_per_user, sum_names(task.values)
    if limit is not None:
        # One shuffle by user serves both DISTINCT and the choice.
        pairs = pairs.repartition("u")
    once = user_sums(pairs, ["u", *items], task.values) if task.values else pairs.distinct()
    if limit is not None:
        # The choice does not depend on the sums.
        of_user = Window.partitionBy("u").orderBy("chance", *items)
        chance = random_order(task.choice, once, items)
        ranked = once.withColumn("chance", chance).withColumn("place", sql.row_number().over(of_user))
        once = ranked.where(sql.col("place") <= limit)
    totals = [sql.count("*").alias(COUNT), *(sql.sum(name).cast("bigint").alias(name) for name in names)]
    return once.groupBy(*items).agg(*totals)


def read_rounds(session: SparkSession, task: RoundsTask, kept: ExitStack) -> SparkRounds:
    """The distinct pairs by part and user, each user limited to random items, and the items known in advance."""
    pairs, items, entries, what = listed_pairs(session, task.as_task(), others=not task.listed)
    parts = number_of_parts(session, pairs)
    pairs = pairs.withColumn(PART, part_of(session, pairs["u"], parts)).repartition(parts, PART)
    keys = [PART, "u", *items]
    once = user_sums(pairs, keys, task.values) if task.values else pairs.select(*keys).distinct()
    chance = random_order(task.choice, once, items)
    of_user = Window.partitionBy(PART, "u").orderBy("chance", *items)
    # In the order of the ranks, so that a user's rows are sorted once.
    all_items = of_user.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ranked = once.withColumn("chance", chance).select(
        *once.columns, sql.row_number().over(of_user).alias("place"), sql.count("*").over(all_items).alias(ITEMS)
    )
    alone = (sql.col(ITEMS) == 1).alias(ALONE)
    many = sql.when(sql.col(ITEMS) > task.most_items, sql.col(ITEMS)).alias(MANY)
    chosen = ranked.where(sql.col("place") <= task.most_items).select(*keys, alone, many, *sum_names(task.values))
    known = None
    if entries is not None and not task.listed:
        types = dict(chosen.dtypes)
        known = entries.where("matched").select(
            *(entries[f"k{k}"].cast(types[name]).alias(name) for k, name in enumerate(items))
        )
    counted = SparkRounds(session, task, chosen, items, entries if task.listed else None, known, what, parts, kept)
    counted.pairs = counted.keep(chosen)
    return counted


def random_order(choice: Choice, once: DataFrame, items: list[str]) -> Column:
    """The keyed order in which a user's items are chosen."""
    if choice.portable:
        return sql.expr(portable_order(choice.key, items))
    return fast_order(choice.key, once["u"], [once[name] for name in items])


def count_at(frame: DataFrame, rank: int) -> int:
    """The count of this rank (1 is the largest), or 0, from the small table of how often each count occurs."""
    frequencies = frame.groupBy(COUNT).agg(sql.count("*").alias("times"))
    downwards = Window.orderBy(sql.col(COUNT).desc()).rowsBetween(Window.unboundedPreceding, 0)
    ranked = frequencies.withColumn("reached", sql.sum("times").over(downwards)).where(sql.col("reached") >= rank)
    return int(ranked.agg(sql.max(COUNT)).collect()[0][0] or 0)


def bring_here(public_items: Events) -> Events:
    """A public list that DuckDB can read: it matches the entries to the input's types."""
    if not is_spark_frame(public_items.source):
        return public_items
    return replace(public_items, source=run(public_items.source.toArrow, "the public items"))


def with_all_entries(entries: DataFrame, counts: DataFrame, items: list[str], sums: list[str]) -> DataFrame:
    """Every entry of the public list with its count and sums, 0 where no user has it."""
    same = [entries[f"k{k}"].eqNullSafe(counts[name]) for k, name in enumerate(items)]
    # A merge join: a broadcast join would collect a small histogram on the driver.
    joined = entries.join(counts.hint("merge"), all_of([entries["matched"], *same]), "left")
    values = [entries[f"p{k}"].alias(name) for k, name in enumerate(items)]
    numbers = [sql.coalesce(counts[name], sql.lit(0)).cast("bigint").alias(name) for name in (COUNT, *sums)]
    return joined.select(*values, entries[ENTRY], *numbers)


def fast_order(key: bytes, user: Column, items: list[Column]) -> Column:
    """A keyed order by Spark's hash, which skips missing values: so which are missing is hashed too.

    The key is visible in Spark's plan. That is safe: privacy requires only that the choice of a user's items
    depends on that user alone, which holds for any key.
    """
    a, b = (int.from_bytes(key[k : k + 8], "little", signed=True) for k in (0, 8))
    missing = [column.isNull() for column in items]
    return sql.xxhash64(sql.lit(a), user, sql.lit(b), *items, *missing)


def digest(columns: list[tuple[Column, str]], *count: Column) -> Column:
    """SHA-256 of an item and its count (if given), from which a key derives the noise of this count."""
    parts = [hashed_text(column, kind) for column, kind in columns]
    whole = length_prefixed([*parts, *(one.cast("string") for one in count)])
    return sql.unhex(sql.sha2(whole.cast("binary"), 256))


def hashed_text(column: Column, kind: str) -> Column:
    """A value as text: distinct for distinct values, and independent of the session's settings."""
    if kind == "binary":
        return sql.hex(column)
    if kind == "timestamp":
        return sql.unix_micros(column).cast("string")
    if kind == "date":
        return sql.unix_date(column).cast("string")
    return column.cast("string")


def length_prefixed(parts: list[Column]) -> Column:
    """The texts joined without ambiguity: each with its length, a missing one as a hyphen."""
    prefixed = [
        sql.coalesce(sql.concat(sql.length(part).cast("string"), sql.lit(":"), part), sql.lit("-"))
        for part in parts
    ]
    return reduce(sql.concat, prefixed)


# A sum of fine steps is kept in two halves of 64 bits, which is much faster than decimals. It is exact for up to
# 2^38 rows of one user and item; beyond that it wraps around, in any order of rows, and changes no other user's
# sum.
LOW_BITS: Final = 25
LOW: Final = (1 << LOW_BITS) - 1
# Upper halves beyond this are outside of all bounds, whatever the lower half is.
MOST: Final = FINE_LIMIT >> (LOW_BITS - 1)


def user_sums(pairs: DataFrame, keys: list[str], values: tuple[Value, ...]) -> DataFrame:
    """Distinct pairs with the user's sums of fine steps f0, f1, ... in steps, as v0, v1, ..."""
    places = range(len(values))
    halves = [f"sum(shiftright(f{k}, {LOW_BITS})) AS upper{k}" for k in places]
    halves += [f"sum(f{k} & {LOW}) AS lower{k}" for k in places]
    once = pairs.groupBy(*keys).agg(*map(sql.expr, halves))
    layers = [
        own_sums([fine_total(f"upper{k}", f"lower{k}") for k in places], values, "BIGINT"),
        *clip_vectors(values),
    ]
    for layer in layers:
        once = once.selectExpr("*", *layer)
    return once.select(*keys, *sum_names(values))


def fine_total(upper: str, lower: str) -> str:
    """A user's sum of fine steps for an item, by its two halves; beyond 2^51 only its sign is exact."""
    near = f"least(greatest({upper} + shiftright({lower}, {LOW_BITS}), {-MOST}L), {MOST}L)"
    return f"{near} * {1 << LOW_BITS}L + ({lower} & {LOW})"
