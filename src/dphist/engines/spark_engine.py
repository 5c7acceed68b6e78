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
from typing import Any, Final, TypeVar

from dphist.engines.counts_sql import value_names
from dphist.engines.duckdb_engine import DuckDBEngine, checked
from dphist.engines.failures import attempt
from dphist.engines.protocol import Counted, Progress, Resources, Task
from dphist.engines.sizes import checked_sizes, in_buckets
from dphist.engines.spark_counts import count_at, counts_of, sizes_of
from dphist.engines.spark_inputs import chosen_columns
from dphist.engines.spark_progress import watched
from dphist.engines.spark_public import ENTRY, check_public, matching_keys, public_entries, with_all_entries
from dphist.engines.spark_session import Cluster, session_for
from dphist.engines.spark_types import counted, digest
from dphist.engines.spark_values import fine_steps, number
from dphist.engines.sql import COUNT
from dphist.errors import InputError
from dphist.extras import is_spark_frame
from dphist.types import Events
from dphist.types.values import Value

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
