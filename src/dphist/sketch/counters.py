"""The counters of a sketch: how batches are added and merged, and counters as bytes and as a file.

The bytes are magic and version, a header in JSON, the counters in Arrow, and the SHA-256 of all. Counters are true
counts: only the owner of a file may read it, and no file is ever half written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.aliases import ArrowArray, ArrowColumn, ChunkedArray
from dphist.counting.columns import arrow_numbers, as_numpy, has_repeats, one_chunk, release_order, take_rows
from dphist.counting.frames import TEXT
from dphist.counting.task import Secret
from dphist.errors import DphistError, InputError, InvalidParameter, OutputError, positive_count
from dphist.files import checked_path
from dphist.publishing import defer_signals, write_file
from dphist.sketch.items import ItemKind, is_unicode, plainest

IntArray = NDArray[np.int64]
# Larger counts, and larger totals that were subtracted, are cut here: that does not move neighbours further apart,
# and an error would disclose them.
LARGEST: Final = 2**53


@dataclass(frozen=True, repr=False)
class Counters(Secret):
    """Distinct items with positive counts, and the total that was subtracted. True numbers: never shown."""

    items: tuple[ArrowArray, ...]
    counts: IntArray
    subtracted: int = 0


def keep_largest(items: tuple[ArrowArray, ...], counts: IntArray, k: int, subtracted: int) -> Counters:
    """At most k counters: if there are more, the (k+1)-th largest is subtracted from all, and positive ones stay.

    The counts are positive, of distinct items. Missing items must be removed before: they would take a rank.
    Guarantee: every count decreases by the same number, which is added to `subtracted`, or to zero.
    """
    kept = np.minimum(counts, LARGEST)
    if kept.size > k:
        floor = int(np.partition(kept, -(k + 1))[-(k + 1)])
        where = np.flatnonzero(kept > floor)
        items, kept = tuple(take_rows(column, where) for column in items), kept[where] - floor
        subtracted += floor
    return Counters(items, kept, min(subtracted, LARGEST))


def number_rows(columns: Sequence[ArrowColumn]) -> IntArray:
    """A number from 0 on for each row of chunked columns, the same for rows that are equal in all columns."""
    codes: IntArray = np.zeros(len(columns[0]), dtype=np.int64)
    for place, column in enumerate(columns):
        encoded = one_chunk(column).dictionary_encode()
        codes = codes * len(encoded.dictionary) + as_numpy(encoded.indices)
        if place:
            codes = np.unique(codes, return_inverse=True)[1]
    return codes


def add_batch(state: Counters, users: ChunkedArray, items: tuple[ChunkedArray, ...], k: int) -> Counters:
    """The counters after one batch of whole users: chunked columns in their plainest types; null is missing."""
    rows = pa.table([users, *items], names=[str(place) for place in range(len(items) + 1)]).drop_null()
    who, *columns = rows.columns
    if len(who) == 0:
        return state
    # The counters are the first rows, so that equal items have equal numbers in both.
    both = [pa.chunked_array([known, *column.chunks]) for known, column in zip(state.items, columns, strict=True)]
    codes = number_rows(both)
    known, size = state.counts.size, int(codes.max()) + 1
    pairs = number_rows([who]) * size + codes[known:]
    pairs.sort()  # many times faster than np.unique
    counts = np.bincount(pairs[np.diff(pairs, prepend=-1) > 0] % size, minlength=size)
    counts[codes[:known]] += state.counts
    return _keep_items(both, codes, counts, k, state.subtracted)


def merge_counters(parts: Sequence[Counters], k: int) -> Counters:
    columns = [pa.chunked_array(list(same)) for same in zip(*(part.items for part in parts), strict=True)]
    codes = number_rows(columns)
    counts = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    np.add.at(counts, codes, np.concatenate([part.counts for part in parts]))
    return _keep_items(columns, codes, counts, k, sum(part.subtracted for part in parts))


def _keep_items(
    columns: Sequence[ArrowColumn], codes: IntArray, counts: IntArray, k: int, subtracted: int
) -> Counters:
    """`keep_largest` of the items in these rows, by the count of each row's number."""
    row_of = np.empty(counts.size, dtype=np.int64)
    row_of[codes] = np.arange(codes.size)
    if counts.size > k:
        largest = np.argpartition(counts, -(k + 1))[-(k + 1) :]
        row_of, counts = row_of[largest], counts[largest]
    return keep_largest(tuple(take_rows(column, row_of) for column in columns), counts, k, subtracted)


def check_place(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The path. Raises if a sketch cannot be written there; nothing is changed."""
    name, place = os.fspath(path), checked_path(path, "a sketch")
    if not place.parent.is_dir():
        raise OutputError(f"cannot write {name}: there is no folder {place.parent}")
    if place.is_dir():
        raise OutputError(f"cannot write {name}: it is a folder")
    if not force and os.path.lexists(place):
        raise OutputError(f"{name} already exists: choose another name, or replace it with <--force>")
    return place


def write_secret(
    path: str | os.PathLike[str], data: bytes, *, force: bool = False, placed: Callable[[Path], None] | None = None
) -> None:
    """Write a file atomically, readable only by its owner; without `force` nothing is replaced.

    `placed` is called once the file is in place, before any signal that arrived meanwhile.
    """
    place = check_place(path, force=force)
    with defer_signals():
        write_file(place, data, 0o600, force=force)
        if placed is not None:
            placed(place)


def read_secret(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"the sketch {os.fspath(path)} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not the name of a file"
        raise InputError(f"cannot read the sketch {os.fspath(path)}: {reason}") from None


MAGIC: Final = b"dphistMG"
VERSION: Final = 1
# Magic, version, length of the header.
START: Final = struct.Struct("<8sHI")
DIGEST: Final = 32
COUNT: Final = "count"


def encode(k: int, kind: ItemKind, counters: Counters) -> bytes:
    """The bytes of a sketch. Equal sketches have equal bytes, whatever the order of their users."""
    order = release_order(np.zeros(counters.counts.size), counters.items)
    columns = [*(take_rows(column, order) for column in counters.items), arrow_numbers(counters.counts[order])]
    fields = [pa.field(f"i{place}", kind) for place, kind in enumerate(kind.types)]
    batch = pa.record_batch(columns, schema=pa.schema([*fields, pa.field(COUNT, pa.int64())]))
    payload = io.BytesIO()
    with pa.ipc.new_stream(payload, batch.schema) as writer:
        writer.write_batch(batch)
    header_data = {"k": k, "subtracted": counters.subtracted, "names": list(kind.names)}
    header = json.dumps(header_data, separators=(",", ":")).encode()
    whole = START.pack(MAGIC, VERSION, len(header)) + header + payload.getvalue()
    return whole + hashlib.sha256(whole).digest()


def decode(data: object, what: str, k: int | None = None) -> tuple[int, ItemKind, Counters]:
    """Size, kind and counters of a sketch. Errors do not contain a value of it."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidParameter(f"a sketch is read from bytes, not from {type(data).__name__}")
    whole = bytes(data)
    if whole[: len(MAGIC)] != MAGIC:
        raise InputError(f"{what} is not a sketch of dphist")
    if len(whole) < START.size + DIGEST:
        raise InputError(f"{what} is damaged: its end is missing")
    _, version, length = START.unpack_from(whole)
    if version != VERSION:
        raise InputError(f"{what} has the version {version}, but this dphist reads version {VERSION}")
    if hashlib.sha256(whole[:-DIGEST]).digest() != whole[-DIGEST:]:
        raise InputError(f"{what} is damaged: it has changed since it was written")
    sketch = None
    with suppress(DphistError, ValueError, TypeError, KeyError, OSError, RecursionError, pa.ArrowException):
        sketch = contents(whole[START.size : START.size + length], whole[START.size + length : -DIGEST])
    # Outside the handler, so that the reader's message, which may contain data, is not attached.
    if sketch is None:
        raise InputError(f"{what} is damaged: its contents are not those of a sketch")
    if k is not None and sketch[0] != positive_count("k", k):
        raise InputError(f"{what} has the size {sketch[0]}, not {k}")
    return sketch


def contents(header: bytes, payload: bytes) -> tuple[int, ItemKind, Counters]:
    """Read both parts and check every rule of a sketch."""
    data = json.loads(header)
    require(isinstance(data, dict) and data.keys() == {"k", "subtracted", "names"})
    k, subtracted, names = positive_count("k", data["k"]), data["subtracted"], data["names"]
    require(isinstance(subtracted, int) and not isinstance(subtracted, bool) and 0 <= subtracted <= LARGEST)
    with pa.ipc.open_stream(payload) as reader:
        table = reader.read_all()
    table.validate(full=True)
    *items, counts = (column.combine_chunks() for column in table.columns)
    require(counts.type == pa.int64() and all(column.null_count == 0 for column in (*items, counts)))
    require(isinstance(names, list) and table.column_names == [*(f"i{n}" for n in range(len(names))), COUNT])
    kind = ItemKind(tuple(names), tuple(column.type for column in items))
    require(all(plainest(column.type) == column.type for column in items))
    values = as_numpy(counts)
    require(values.size <= k and bool(((values >= 1) & (values <= LARGEST)).all()))
    require(all(column.type != TEXT or is_unicode(column) for column in items) and not has_repeats(items))
    # NaN is not an item, and -0.0 is the item 0.0.
    floats = [np.array(column.to_pylist()) for column in items if pa.types.is_floating(column.type)]
    require(not any((np.isnan(column) | ((column == 0.0) & np.signbit(column))).any() for column in floats))
    return k, kind, Counters(tuple(items), values, subtracted)


def require(holds: bool) -> None:
    if not holds:
        raise ValueError
