"""`MisraGries`: a stream of users' item sets in at most k counters.

A batch of users becomes an exact histogram first: users and items become numbers, and a (user, item) pair one
number of 64 bits; sorted, equal pairs lie together and are counted once. That takes an eighth of the time of
Arrow's `group_by`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from dphist.errors import InvalidParameter, positive_count
from dphist.privacy.types import Plan
from dphist.releasing.result import arrow_numbers, release_order, take_rows
from dphist.sketch.counters import (
    LARGEST,
    Counters,
    IntArray,
    decode,
    encode,
    keep_largest,
    numbers,
    read_secret,
    write_secret,
)
from dphist.sketch.items import ItemKind, arrow_column, given_columns, item_columns, user_column

if TYPE_CHECKING:
    from dphist.outputs.target import Target
    from dphist.releasing.result import Release


# Bits of a pair's number, without the sign.
ROOM: Final = 63
# Up to this many different codes per row, counting by position is quicker than by sorting.
SPARSE: Final = 4


@dataclass(frozen=True)
class Coded:
    """Values as whole numbers from 0 to `size` - 1: those of the rows, those of the counters, and the way back."""

    rows: IntArray
    known: IntArray
    size: int
    decode: Callable[[IntArray], tuple[Any, ...]]

    @property
    def bits(self) -> int:
        """Bits of the largest number."""
        return (self.size - 1).bit_length()


def add_batch(state: Counters, users: Any, items: tuple[Any, ...], k: int) -> Counters:
    """The counters after one batch. All columns are chunked, in their plainest types; null is missing."""
    labels = [str(place) for place in range(len(items) + 1)]
    who, *columns = pa.table([users, *items], names=labels).drop_null().columns
    if len(who) == 0:
        return state
    coded = column_codes(columns[0], state.items[0])
    for column, known in zip(columns[1:], state.items[1:], strict=True):
        coded = combine(coded, column_codes(column, known))
    codes, counts = users_per_item(column_codes(who, pa.array([], who.type)), coded)
    # The counters are added to the histogram.
    place = np.minimum(np.searchsorted(codes, coded.known), codes.size - 1)
    found = codes[place] == coded.known
    counts[place[found]] += state.counts[found]
    codes = np.concatenate([codes, coded.known[~found]])
    counts = np.concatenate([counts, state.counts[~found]])
    if codes.size > k:
        # Only the largest are ever decoded.
        rank = codes.size - k - 1
        most = np.argpartition(counts, rank)[rank:]
        codes, counts = codes[most], counts[most]
    return keep_largest(coded.decode(codes), counts, k, state.subtracted)


def dense(column: Any) -> tuple[IntArray, Any]:
    """Codes instead of values, and the values of the codes."""
    encoded = column.dictionary_encode()
    values = encoded.chunk(0).dictionary
    if not all(chunk.dictionary.equals(values) for chunk in encoded.chunks[1:]):
        # Arrow usually gives all chunks one dictionary; to unify them every time would cost as much again.
        encoded = encoded.unify_dictionaries()
        values = encoded.chunk(0).dictionary
    return numbers(pa.chunked_array([chunk.indices for chunk in encoded.chunks], pa.int32())), values


def column_codes(column: Any, known: Any) -> Coded:
    """Whole numbers by their distance from the least, all other values by their place in a dictionary."""
    first = len(known)
    everything = pa.chunked_array([known, *column.chunks], column.type)
    if column.type == pa.int64():
        codes = numbers(everything)
        low, high = int(codes.min()), int(codes.max())
        if (high - low).bit_length() <= ROOM // 2:
            codes = codes - low
            return Coded(codes[first:], codes[:first], high - low + 1, lambda c: (arrow_numbers(c + low),))
    codes, values = dense(everything)
    return Coded(codes[first:], codes[:first], len(values), lambda c: (values.take(arrow_numbers(c)),))


def combine(one: Coded, other: Coded) -> Coded:
    """Two columns as one. The numbers are made dense, so that those of several columns stay small."""
    width = other.size
    assert one.size * width < 2**ROOM
    wide = np.concatenate([one.known * width + other.known, one.rows * width + other.rows])
    values, codes = np.unique(wide, return_inverse=True)
    first = one.known.size

    def decode(found: IntArray) -> tuple[Any, ...]:
        pairs = values[found]
        return *one.decode(pairs // width), *other.decode(pairs % width)

    return Coded(codes[first:], codes[:first], values.size, decode)


def users_per_item(users: Coded, items: Coded) -> tuple[IntArray, IntArray]:
    """The codes of all items that have users, increasing, and the number of different users of each."""
    bits = items.bits
    assert users.bits + bits <= ROOM
    pairs = users.rows << bits
    pairs |= items.rows
    pairs.sort()
    first = np.empty(pairs.size, dtype=np.bool_)
    first[0] = True
    np.not_equal(pairs[1:], pairs[:-1], out=first[1:])
    pairs &= (1 << bits) - 1
    once = pairs[first]
    if items.size <= SPARSE * pairs.size:
        counts = np.bincount(once, minlength=items.size)
        codes = np.flatnonzero(counts)
        return codes, counts[codes]
    codes, counts = np.unique(once, return_counts=True)
    return codes, counts


class MisraGries:
    """At most `k` counters of a stream in which every user comes once, with all their items.

    A user's whole set is added; then, if there are more than k counters, the (k+1)-th largest is subtracted from
    all and those that are not positive are dropped. The total that was subtracted is at most the number of
    (user, item) pairs divided by k + 1, and no counter is below the number of its users by more than that.

    `item` is the type of the items ("string", "int64", "date32", ...), or types by the names of the item's
    columns. The counts are true: a sketch is as secret as the events, and shows only k of itself.

    >>> sketch = MisraGries(100)
    >>> for user in range(1000):
    ...     sketch.update({"tea", f"a wish of user {user}"})
    >>> sketch
    MisraGries(k=100)
    >>> import dphist
    >>> sketch.release(dphist.plan(epsilon=1, delta=1e-6, max_nonzero=100), seed=1).items.to_pylist()
    ['tea']
    """

    __slots__ = ("_counters", "_k", "_kind", "_subtracted", "_table")

    def __init__(self, k: int, item: Any = "string") -> None:
        self._k = positive_count("k", k)
        self._kind = item if isinstance(item, ItemKind) else ItemKind.of(item)
        self._subtracted = 0
        # The counters have two forms: a dictionary for one user, columns for many. One of them may be None.
        self._table: dict[Any, int] | None = {}
        self._counters: Counters | None = None

    @classmethod
    def from_columns(cls, k: int, users: Any, items: Any, *, name: str = "item") -> MisraGries:
        """A sketch of one batch of whole users, for items of the column's type."""
        (given,) = given_columns(items, 1)
        column = arrow_column(given, "items")
        sketch = cls(k, {name: column.type})
        sketch.update_columns(users, column)
        return sketch

    @classmethod
    def of_counters(cls, k: int, kind: ItemKind, counters: Counters) -> MisraGries:
        """A sketch with these counters, at most k."""
        sketch = cls(k, kind)
        sketch._put(counters)
        return sketch

    @property
    def k(self) -> int:
        """The largest number of counters."""
        return self._k

    @property
    def kind(self) -> ItemKind:
        """Names and types of the item's columns."""
        return self._kind

    def __repr__(self) -> str:
        return f"MisraGries(k={self._k})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MisraGries.from_bytes, (self.to_bytes(),)

    def update(self, items: Iterable[Any]) -> None:
        """Add one user, with all their items at once. A user must not come a second time.

        Users must come in an order in which no user changes the places of others: as they arrive, or by their
        numbers; never shuffled, by popularity, or in the order of a Python set. Items that are None, NaN or not of
        the sketch's type are left out. Items of several columns are tuples.
        """
        single = isinstance(items, (str, bytes)) or not isinstance(items, Iterable)
        if single or (isinstance(items, np.ndarray) and items.ndim == 0):
            raise InvalidParameter(f"give the set of a user's items, not {type(items).__name__}")
        keys = self._kind.keys(items)
        table = self._as_table()
        self._counters = None
        for key in keys:
            table[key] = table.get(key, 0) + 1
        if len(table) > self._k:
            floor = sorted(table.values(), reverse=True)[self._k]
            self._table = {key: count - floor for key, count in table.items() if count > floor}
            self._subtracted += floor

    def update_columns(self, users: Any, items: Any) -> None:
        """Add a batch of users with all their items: one row for each event, in any order, repeated or not.

        All rows of a user must be in this batch. Which batch a user comes in, and the order of the batches, must
        not depend on other users: ranges of user numbers, or of a hash of the user, one after the other, are
        fine; "the next million rows", or the largest batch first, are not.
        """
        columns, who = item_columns(items, self._kind), user_column(users)
        if any(len(column) != len(who) for column in columns):
            raise InvalidParameter("users and items must have the same length: one row for each event")
        self.add_plain(who, columns)

    def add_plain(self, users: Any, items: tuple[Any, ...]) -> None:
        """`update_columns` for chunked columns of Arrow that have their plainest types."""
        self._put(add_batch(self._as_counters(), users, items, self._k))

    def merge(*sketches: MisraGries) -> MisraGries:
        """A new sketch of the users of all of them, who must be different users: `MisraGries.merge(a, b, c)`.

        Merge all at once: that does not depend on their order, and subtracts the least. If you merge in several
        steps, fix beforehand which sketches are merged with which, never "as they complete".
        """
        if not sketches:
            raise InvalidParameter("give the sketches to merge")
        for number, sketch in enumerate(sketches):
            if not isinstance(sketch, MisraGries):
                raise InvalidParameter(f"only sketches can be merged, not {type(sketch).__name__}")
            if sketch.k != sketches[0].k:
                raise InvalidParameter(f"sketches of sizes {sketches[0].k} and {sketch.k} cannot be merged")
            if sketch.kind != sketches[0].kind:
                raise InvalidParameter(f"sketches of items {sketches[0].kind} and {sketch.kind} cannot be merged")
            if any(sketch is other for other in sketches[:number]):
                raise InvalidParameter("a sketch cannot be merged with itself: its users would count twice")
        k, kind = sketches[0]._k, sketches[0]._kind
        parts = [sketch._as_counters() for sketch in sketches]
        columns = [pa.chunked_array([part.items[c] for part in parts]) for c in range(len(kind.names))]
        counts = np.concatenate([part.counts for part in parts])
        names = [str(place) for place in range(len(columns))]
        table = pa.table([*columns, arrow_numbers(counts)], names=[*names, "count"])
        grouped = table.group_by(names, use_threads=False).aggregate([("count", "sum")])
        items = tuple(grouped.column(name).combine_chunks() for name in names)
        summed = numbers(grouped.column("count_sum"))
        subtracted = sum(part.subtracted for part in parts)
        return MisraGries.of_counters(k, kind, keep_largest(items, summed, k, subtracted))

    def error_bound(self, pairs: int) -> int:
        """How far a counter can be below the number of its users, after this many (user, item) pairs.

        Guarantee: users - bound <= counter <= users for every item; an item without a counter has at most as many
        users as the bound.
        """
        if isinstance(pairs, bool) or not isinstance(pairs, (int, np.integer)) or pairs < 0:
            raise InvalidParameter(f"pairs must be a whole number of at least 0, not {pairs!r}")
        return int(pairs) // (self._k + 1)

    def to_bytes(self) -> bytes:
        """The sketch with its true counts: secret."""
        return encode(self._k, self._kind, self._as_counters())

    @classmethod
    def from_bytes(cls, data: bytes, *, k: int | None = None) -> MisraGries:
        """The sketch from `to_bytes`, of size `k` if one is given. Damage is an `InputError`."""
        return cls.of_counters(*decode(data, "the sketch", k))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the sketch to a file that only its owner can read. It holds true counts: keep it secret."""
        write_secret(path, self.to_bytes(), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, k: int | None = None) -> MisraGries:
        """The sketch in a file, of size `k` if one is given."""
        return cls.of_counters(*decode(read_secret(path), f"the sketch {os.fspath(path)}", k))

    def release(
        self,
        plan: Plan,
        *,
        count_name: str = "count",
        rounded: bool = False,
        seed: int | None = None,
        output: str | os.PathLike[str] | Target | None = None,
        force: bool = False,
        ledger: str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        placed: Callable[[Any], None] | None = None,
    ) -> Release:
        """Noisy counts above the threshold, for a plan with `max_nonzero` of at least k.

        The guarantee requires that all items of a user came in one update of one sketch, and that neither the
        choice of that update, nor the order of the other users' updates, nor what was merged in which order
        depended on another user. One `build`, one `build_on_spark` and one `merge` of all such sketches ensure
        the order. With `ledger` and `dataset` the release is booked before any noise is drawn. With `output` it
        is written with its certificate, and `placed` is called once both are there. `seed` is for tests: its
        output is not private.
        """
        from dphist.outputs.target import Target, target_of
        from dphist.outputs.write import write_release
        from dphist.planning.utility import added_columns
        from dphist.releasing.document import certify_again
        from dphist.releasing.histogram import checked_names, release_sketch, sketch_problem, sketch_request
        from dphist.releasing.spending import SketchRequest, booked_attempt, check_ledger

        names = checked_names(self._kind.names, count_name)
        if not isinstance(rounded, bool):
            raise InvalidParameter(f"rounded must be True or False, not {rounded!r}")
        sound = certify_again(plan)
        problem = sketch_problem(sound, self._k)
        if problem is not None:
            raise InvalidParameter(problem)
        target = output if output is None or isinstance(output, Target) else target_of(output)
        asked = sketch_request(sound, self._k, seed)
        # The certificate records options that are not the default.
        asked |= {} if count_name == "count" else {"count-name": count_name}
        asked |= {"round": True} if rounded else {}
        request = SketchRequest(asked, ledger, dataset)
        check_ledger(request, target)
        with booked_attempt(request, placed) as attempt:
            attempt.book(sound)
            counters = self._as_counters()
            # In the order of the items, so that a seed repeats a release whatever the order of the users was.
            order = release_order(np.zeros(counters.counts.size), counters.items)
            columns = tuple(take_rows(column, order) for column in counters.items)
            raw = release_sketch(
                columns, counters.counts[order], sound, subtracted=counters.subtracted, names=names, seed=seed
            )
            counts, _ = added_columns(raw.counts, sound, names.count, error=False, interval=None, rounded=rounded)
            result = replace(raw, counts=counts, request=request.to_dict(), receipt=attempt.receipt)
            attempt.release = result
            if target is not None:
                written = write_release(
                    result.to_arrow(), result.document(), target, force=force, placed=attempt.note_written
                )
                result = result.with_written(written)
                attempt.settle(written)
        return result

    def _put(self, counters: Counters) -> None:
        self._table, self._counters, self._subtracted = None, counters, counters.subtracted

    def _as_table(self) -> dict[Any, int]:
        if self._table is None:
            assert self._counters is not None
            keys = self._kind.keys_of(self._counters.items)
            self._table = dict(zip(keys, self._counters.counts.tolist(), strict=True))
        return self._table

    def _as_counters(self) -> Counters:
        if self._counters is None:
            table = self._as_table()
            counts = np.fromiter(table.values(), dtype=np.int64, count=len(table))
            kept = np.minimum(counts, LARGEST)
            self._counters = Counters(self._kind.columns(table), kept, min(self._subtracted, LARGEST))
        return self._counters
