"""`MisraGries`: a stream of users' item sets in at most k counters."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dphist.aliases import ChunkedArray
from dphist.certificate.numbers import added_columns, count_decimals
from dphist.certificate.plans import certify_again, sketch_problem
from dphist.certificate.request import recordable_seed, sketch_request
from dphist.counting.columns import release_order, take_rows
from dphist.counting.frames import TEXT
from dphist.errors import InvalidParameter, positive_count
from dphist.model import Plan
from dphist.outputs.target import Target, Written, target_of
from dphist.outputs.write import check_target, write_release
from dphist.releasing.histogram import checked_names, release_sketch
from dphist.releasing.result import Release
from dphist.releasing.spending import SketchBooking, booked_attempt, check_ledger
from dphist.sketch.counters import (
    LARGEST,
    Counters,
    add_batch,
    decode,
    encode,
    merge_counters,
    read_secret,
    write_secret,
)
from dphist.sketch.items import (
    ColumnType,
    ItemKind,
    given_column,
    given_columns,
    item_columns,
    plain_column,
    plainest,
)


class MisraGries:
    """At most `k` counters of a stream in which every user comes once, with all their items.

    A user's whole set is added. If there are more than k counters then, the (k+1)-th largest is subtracted from
    all, and those that are not positive are dropped. In total at most the number of (user, item) pairs divided by
    k + 1 is subtracted, and no counter is below the number of its users by more than that.

    The counters are true counts: a sketch is as secret as the events, and prints only its k.

    >>> import dphist
    >>> sketch = dphist.sketch.MisraGries(100)
    >>> for user in range(1000):
    ...     sketch.update({"tea", f"a wish of user {user}"})
    >>> plan = dphist.plan(epsilon=1, delta=1e-6, max_nonzero=100)
    >>> print(sketch, sketch.release(plan, seed=1).items.to_pylist())
    MisraGries(k=100) ['tea']

    Args:
        k: Largest number of counters.
        item: Type of the items ("string", "int64", "date32", ...), or a mapping of column names to types.
    """

    __slots__ = ("_counters", "_k", "_kind", "_subtracted", "_table")

    def __init__(self, k: int, item: ItemKind | ColumnType | Mapping[str, ColumnType] = "string") -> None:
        self._k = positive_count("k", k)
        self._kind = item if isinstance(item, ItemKind) else ItemKind.of(item)
        self._subtracted = 0
        # A dictionary is fast for one user at a time, columns for many. At most one of the two forms is None.
        self._table: dict[Hashable, int] | None = {}
        self._counters: Counters | None = None

    @classmethod
    def from_columns(cls, k: int, users: object, items: object, *, name: str = "item") -> MisraGries:
        """A sketch of one batch of whole users, for items of the column's type.

        Args:
            k: Largest number of counters.
            users: The user of each event.
            items: The item of each event.
            name: Name of the item's column.
        """
        (given,) = given_columns(items, 1)
        column = given_column(given, "items")
        sketch = cls(k, {name: column.type})
        sketch.update_columns(users, column)
        return sketch

    @classmethod
    def of_counters(cls, k: int, kind: ItemKind, counters: Counters) -> MisraGries:
        sketch = cls(k, kind)
        sketch._put(counters)
        return sketch

    @property
    def k(self) -> int:
        """Largest number of counters."""
        return self._k

    @property
    def kind(self) -> ItemKind:
        """Names and types of the item's columns."""
        return self._kind

    def __repr__(self) -> str:
        return f"MisraGries(k={self._k})"

    def __reduce__(self) -> tuple[Callable[[bytes], MisraGries], tuple[bytes]]:
        return MisraGries.from_bytes, (self.to_bytes(),)

    def update(self, items: Iterable[object]) -> None:
        """Add one user with all their items. A user must not come twice.

        `items` are all that the user has. No user may influence the order of the others: in order of arrival or of
        user numbers is fine; shuffled, by popularity or from a Python set is not. Items that are None, NaN or not
        of the sketch's type are left out. Items of several columns are tuples.
        """
        single = isinstance(items, (str, bytes)) or not isinstance(items, Iterable)
        if single or (isinstance(items, np.ndarray) and items.ndim == 0):
            raise InvalidParameter(f"pass the set of a user's items, not {type(items).__name__}")
        keys = self._kind.keys(items)
        table = self._as_table()
        self._counters = None
        for key in keys:
            table[key] = table.get(key, 0) + 1
        if len(table) > self._k:
            floor = sorted(table.values(), reverse=True)[self._k]
            self._table = {key: count - floor for key, count in table.items() if count > floor}
            self._subtracted += floor

    def update_columns(self, users: object, items: object) -> None:
        """Add a batch of users with all their items: one row per event, in any order, with or without repeats.

        `users` and `items` are columns of equal length. All rows of a user must be in this batch. Which batch a
        user is in, and the order of the batches, must not depend on other users: ranges of user numbers, or of a
        hash of the user, one after the other, are fine; "the next million rows" or the largest batch first are
        not.
        """
        columns, who = item_columns(items, self._kind), given_column(users, "users")
        who = plain_column(who, TEXT if pa.types.is_null(who.type) else plainest(who.type))
        if any(len(column) != len(who) for column in columns):
            raise InvalidParameter("users and items must have the same length: one row per event")
        self.add_plain(who, columns)

    def add_plain(self, users: ChunkedArray, items: tuple[ChunkedArray, ...]) -> None:
        """`update_columns` for chunked Arrow columns that have their plainest types."""
        self._put(add_batch(self._as_counters(), users, items, self._k))

    def merge(*sketches: MisraGries) -> MisraGries:
        """The sketch of all users of these `sketches`, who must be different users: `MisraGries.merge(a, b, c)`.

        Merge all at once: then their order does not matter, and the least is subtracted. If you merge in several
        steps, fix beforehand which sketches are merged with which, never "as they complete".
        """
        if not sketches:
            raise InvalidParameter("pass the sketches to merge")
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
        return MisraGries.of_counters(k, kind, merge_counters([sketch._as_counters() for sketch in sketches], k))

    def error_bound(self, pairs: int) -> int:
        """How far a counter can be below the number of its users, after this many (user, item) `pairs`.

        Guarantee: users - bound <= counter <= users for every item; an item without a counter has at most `bound`
        users.
        """
        if isinstance(pairs, bool) or not isinstance(pairs, (int, np.integer)) or pairs < 0:
            raise InvalidParameter(f"pairs must be a whole number of at least 0, not {pairs!r}")
        return int(pairs) // (self._k + 1)

    def to_bytes(self) -> bytes:
        """The sketch, with its true counts: keep it secret."""
        return encode(self._k, self._kind, self._as_counters())

    @classmethod
    def from_bytes(cls, data: bytes, *, k: int | None = None) -> MisraGries:
        """The sketch from the `data` of `to_bytes`. Raises `InputError` if damaged, or not of size `k`."""
        return cls.of_counters(*decode(data, "the sketch", k))

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the sketch, with its true counts, to a file that only its owner can read: keep it secret.

        Args:
            path: The file.
            force: Replace an existing file.
        """
        write_secret(path, self.to_bytes(), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, k: int | None = None) -> MisraGries:
        """The sketch from the `path` of `save`. Raises `InputError` if damaged, or not of size `k`."""
        return cls.of_counters(*decode(read_secret(path), f"the sketch {os.fspath(path)}", k))

    def release(
        self,
        plan: Plan,
        *,
        count_name: str = "count",
        round: bool = False,
        seed: int | None = None,
        output: str | os.PathLike[str] | Target | None = None,
        force: bool = False,
        ledger: str | os.PathLike[str] | None = None,
        dataset: str | None = None,
        placed: Callable[[Written], None] | None = None,
    ) -> Release:
        """Noisy counts above the threshold, for a plan with `max_nonzero` or `top` of at least k.

        The guarantee requires that all items of a user came in one update of one sketch, and that neither the
        choice of that update nor the order of updates and merges depended on other users. One `build`, one
        `build_on_spark` and one `merge` of all such sketches ensure the order.

        Args:
            plan: With `max_nonzero` or `top` of at least k.
            count_name: Name of the count column.
            round: Whole counts, as integers.
            seed: For tests: seed of the noise. The release is NOT PRIVATE.
            output: File or database to write to, with the certificate next to it.
            force: Replace an existing release.
            ledger: Book the release in this ledger before any noise is drawn.
            dataset: With `ledger`: the dataset whose budget is spent.
            placed: Called with the place of data and certificate once both are written.
        """
        names = checked_names(self._kind.names, count_name)
        if not isinstance(round, bool):
            raise InvalidParameter(f"round must be True or False, not {round!r}")
        certified = certify_again(plan)
        problem = sketch_problem(certified, self._k)
        if problem is not None:
            raise InvalidParameter(problem)
        target = output if output is None or isinstance(output, Target) else target_of(output)
        recorded = sketch_request(
            certified, self._k, seed=recordable_seed(seed), count_name=count_name, round=round, dataset=dataset
        )
        request = SketchBooking(recorded, ledger, dataset)
        # Before anything is booked or drawn.
        if target is not None:
            check_target(target, force=force, columns=[*self._kind.names, count_name])
        check_ledger(request, target)
        with booked_attempt(request, placed) as attempt:
            attempt.book(certified)
            counters = self._as_counters()
            # In the order of the items, so that a seed gives the same release for any order of the users.
            order = release_order(np.zeros(counters.counts.size), counters.items)
            noisy = release_sketch(
                tuple(take_rows(column, order) for column in counters.items), counters.counts[order], certified,
                subtracted=counters.subtracted, names=names, seed=seed,
            )  # fmt: skip
            decimals = count_decimals(certified, whole=round)
            counts, _ = added_columns(
                np.asarray(noisy.counts, np.float64), certified, names.count,
                error=False, interval=None, decimals=decimals, whole=round,
            )  # fmt: skip
            result = replace(noisy, counts=counts, decimals=decimals, request=recorded, receipt=attempt.receipt)
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

    def _as_table(self) -> dict[Hashable, int]:
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
