"""The distributed engine: Spark reads, bounds every user, counts and ranks; the histogram stays on its executors.

Nothing here depends on which executor does a task, or how often: a user's items are chosen by a keyed hash, and a
part of the histogram that is lost is counted again to the same counts.
"""

from __future__ import annotations

import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, TypeVar

from dphist.counting.duckdb import DuckDBEngine, checked, checked_sizes, in_buckets, opened_rows
from dphist.counting.events import Events, Value
from dphist.counting.frames import demand
from dphist.counting.spark_inputs import (
    chosen_columns,
    counted,
    digest,
    fast_order,
    fine_steps,
    number,
    own_sums,
    portable_order,
)
from dphist.counting.spark_session import Cluster, arrow_frame, session_for, watched
from dphist.counting.sql import COUNT, ITEMS, value_names
from dphist.counting.task import Counted, Progress, Resources, Task
from dphist.counting.workspace import attempt, connected, private_folder
from dphist.errors import InputError, is_spark_frame

# Counting on Spark: users per item and their sums, the count of a rank, and how many items users have.


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


# A public list of items on Spark: read and matched to the input's types by the embedded engine, then joined.

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


T = TypeVar("T")

VALUE: Final = re.compile(r"v\d+")  # the item's columns are called i0, i1, ... by us
_rehearsed: weakref.WeakSet[Any] = weakref.WeakSet()
STOPPED: Final = (
    "{what} cannot be counted: Spark gave up on it, or it holds values that its reader does not understand"
)


@dataclass(frozen=True)
class SparkEngine:
    """Counts with Spark: with the session that is there, or with one of its own."""

    resources: Resources = field(default_factory=Resources)
    cluster: Cluster = field(default_factory=Cluster)

    @property
    def name(self) -> str:
        """What it is called."""
        return "spark"

    def check(self, task: Task) -> None:
        """Raise `InputError` if the events cannot be read or lack a column; nothing is counted yet."""
        checked(task)
        with session_for(task.events.source, self.resources, self.cluster) as session:
            pairs_of(session, task.events, values=task.values, probe=True)
        if task.public_items is not None:
            check_public(task.public_items)

    def size(self, public_items: Events) -> int:
        """The number of different items of a public list, which is read by this process: it is no secret."""
        return DuckDBEngine(self.resources).size(_in_this_process(public_items))

    def sizes(self, task: Task, bounds: Sequence[int], progress: Progress | None = None) -> list[int]:
        """How many users have how many different items, by bounds; see `Engine.sizes`."""
        checked(task)
        checked_sizes(task, bounds)
        source = task.events.source
        with session_for(source, self.resources, self.cluster) as session, watched(session, progress):
            pairs, items, _, what = listed_pairs(session, replace(task, values=()))
            return in_buckets(run(sizes_of(pairs, items).collect, what), bounds)

    @contextmanager
    def count(self, task: Task, progress: Progress | None = None) -> Iterator[Counted]:
        """Count. On leaving the context everything temporary is gone."""
        with self.counted(task, progress) as found:
            yield found

    @contextmanager
    def counted(self, task: Task, progress: Progress | None = None) -> Iterator[SparkHistogram]:
        """Count, to a histogram whose frame can be worked on where it is."""
        checked(task)
        source = task.events.source
        with session_for(source, self.resources, self.cluster) as session, watched(session, progress):
            frame, what = histogram(session, task)
            rehearse(session)
            if task.rank is None:
                yield SparkHistogram(session, frame, 0, what, task.ordered)
                return
            rank = task.rank
            # The histogram is read twice; its lost parts are counted again.
            with kept(frame) as counts:
                at_rank = run(lambda: count_at(counts, rank), what)
                yield SparkHistogram(session, counts, at_rank, what, task.ordered)


@contextmanager
def kept(frame: Any) -> Iterator[Any]:
    """The rows with the executors for a while; those that are lost are made again, and are the same."""
    rows = frame.persist()
    try:
        yield rows
    finally:
        with suppress(Exception):  # the cluster may be gone
            rows.unpersist(blocking=False)


@dataclass(frozen=True, repr=False)
class SparkHistogram:
    """Counts on the executors: `frame` has the item's columns i0, i1, ... and the count, called `users`.

    The sums of values follow as v0, v1, ... That of a public list has the numbers of the entries too.
    """

    session: Any
    frame: Any
    at_rank: int
    what: str
    ordered: bool = False

    def __repr__(self) -> str:
        return "SparkHistogram(secret)"

    @property
    def schema(self) -> Any:
        """Arrow schema of the histogram."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._plain().schema, timezone="UTC")

    def items(self) -> list[str]:
        """The item's columns in the frame."""
        return [name for name in self.frame.columns if name not in (COUNT, ENTRY, *self.sums())]

    def sums(self) -> list[str]:
        """The columns of the values' sums in the frame."""
        return [name for name in self.frame.columns if VALUE.fullmatch(name)]

    def _plain(self) -> Any:
        return self.frame.select(*self.items(), COUNT, *self.sums())

    def with_digests(self) -> Any:
        """Items, counts, sums, a `digest`: the SHA-256 of an item (with its number in a list) and its count."""
        kinds = dict(self.frame.dtypes)
        rest = (COUNT, *self.sums())
        columns = [(self.frame[name], kinds[name]) for name in self.frame.columns if name not in rest]
        found = digest(columns, self.frame[COUNT]).alias("digest")
        return self.frame.select(*self.items(), *rest, found)

    def batches(self) -> Iterator[Any]:
        """Arrow record batches, once. They pass through this process: for tests, and for what is small."""
        plain = self._plain()
        rows = plain.orderBy(*(plain[name].asc_nulls_last() for name in self.items())) if self.ordered else plain
        table = run(rows.toArrow, self.what).cast(self.schema)
        yield from (batch for batch in table.combine_chunks().to_batches() if batch.num_rows)


def run(action: Callable[[], T], what: str) -> T:
    """Run on the cluster; what goes wrong is one sentence without data."""
    return attempt(action, what, STOPPED)


def on_executors(frame: Any, function: Callable[[Iterator[Any]], Iterator[Any]], schema: Any) -> Any:
    """The frame of what a function makes of the batches, wherever they are."""
    with warnings.catch_warnings():
        # PySpark warns of new versions of pandas, which this does not touch.
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support", category=FutureWarning)
        return frame.mapInArrow(function, schema)


def _version(_batches: Iterator[Any]) -> Iterator[Any]:
    """Run on an executor: the version of dphist there."""
    import pyarrow as pa

    from dphist import __version__

    yield pa.RecordBatch.from_pydict({"version": [__version__]})


def rehearse(session: Any) -> None:
    """One sentence if executors could not make noise: before any event is read, once for a session."""
    from dphist import __version__

    if session in _rehearsed:
        return
    try:
        there = on_executors(session.range(1).coalesce(1), _version, "version string").collect()[0][0]
        said = "" if there == __version__ else f"it is dphist {there} there, and {__version__} here"
    except Exception as error:
        text = str(error)
        missing = re.search(r"No module named '(\w+)'", text)
        mixed = "PYTHON_VERSION_MISMATCH" in text
        said = "their Python is of another version than this one" if mixed else "no task could be run there"
        said = f"their Python has no package {missing[1]}" if missing else said
    if said:
        raise InputError(
            f"Spark's executors cannot make noise: {said}. They need dphist as it is here: set PYSPARK_PYTHON to "
            "a Python that has it, or ship an environment with --spark-conf spark.archives=..."
        )
    _rehearsed.add(session)


def pairs_of(
    session: Any, events: Events, *, values: tuple[Value, ...] = (), probe: bool = False
) -> tuple[Any, list[str], str]:
    """The events as a frame of users `u` and items `i0`, `i1`, ...; the items' types; what the input is called.

    The values follow in whole fine steps, as `f0`, `f1`, ...
    """
    summed = list(dict.fromkeys(value.column for value in values))
    rows, what = chosen_columns(session, events, summed, probe=probe)
    names = [events.user, *(column.source for column in events.items), *summed]
    columns = [
        (rows[f"c{k}"], kind, name) for k, ((_, kind), name) in enumerate(zip(rows.dtypes, names, strict=True))
    ]
    own = len(events.items) + 1
    forms = [counted(*column, is_user=k == 0) for k, column in enumerate(columns[:own])]
    keys = ["u", *(f"i{k}" for k in range(own - 1))]
    chosen = [form.column.alias(key) for form, key in zip(forms, keys, strict=True)]
    # Under a name each: a number is used several times, and made once.
    chosen += [number(*column).alias(f"x{k}") for k, column in enumerate(columns[own:])]
    pairs = _present(rows.select(*chosen), ["u"] if events.null_items else keys)
    if values:
        fine = [fine_steps(pairs[f"x{summed.index(v.column)}"], v).alias(f"f{k}") for k, v in enumerate(values)]
        pairs = pairs.select(*keys, *fine)
    return pairs, [form.kind for form in forms[1:]], what


def histogram(session: Any, task: Task) -> tuple[Any, str]:
    """The frame of the counts, not yet computed, and what the input is called."""
    from pyspark.sql import functions as sql

    pairs, items, entries, what = listed_pairs(session, task)
    counts = counts_of(pairs, items, task)
    if entries is not None:
        return with_all_entries(entries, counts, items, value_names(task.values)), what
    return (counts if task.lower_threshold <= 1 else counts.where(sql.col(COUNT) >= task.lower_threshold)), what


def listed_pairs(session: Any, task: Task) -> tuple[Any, list[str], Any, str]:
    """The pairs whose items are in the public list, the items' columns, the list if there is one, and the name."""
    pairs, kinds, what = pairs_of(session, task.events, values=task.values)
    items = [f"i{k}" for k in range(len(kinds))]
    if task.public_items is None:
        return pairs, items, None, what
    listed = _in_this_process(task.public_items)
    entries = public_entries(session, listed, kinds, task.events, DuckDBEngine())
    return matching_keys(pairs, entries, items), items, entries, what


def _present(pairs: Any, columns: list[str]) -> Any:
    """Without rows in which a column is NULL. (`na.drop` would take NaN for missing too.)"""
    for name in columns:
        pairs = pairs.where(pairs[name].isNotNull())
    return pairs


def _in_this_process(listed: Events) -> Events:
    """A public list where DuckDB can read it."""
    if not is_spark_frame(listed.source):
        return listed
    return replace(listed, source=run(listed.source.toArrow, "the public items"))
