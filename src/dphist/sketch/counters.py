"""The counters of a sketch, in memory, as bytes and as a file.

The bytes are magic and version, a header in JSON, the counters in Arrow, and a SHA-256 of all. Counters are true
counts: only the owner of a file may read it, and no file is ever half written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.errors import DphistError, InputError, InvalidParameter, OutputError, positive_count
from dphist.publishing import checked_path, defer_signals, write_files
from dphist.releasing.result import arrow_numbers, has_repeats, release_order, take_rows
from dphist.sketch.items import TEXT, ItemKind, is_unicode, plainest

IntArray = NDArray[np.int64]
# Larger counts, and a larger total that was subtracted, are cut there: that moves neighbours no further apart,
# and an error would disclose them.
LARGEST: Final = 2**53


@dataclass(frozen=True)
class Counters:
    """Different items with positive counts, and the total that was subtracted. True numbers: never shown."""

    items: tuple[Any, ...]
    counts: IntArray
    subtracted: int = 0

    def __repr__(self) -> str:
        return "Counters(secret)"


def rank_value(counts: IntArray, k: int) -> int:
    """The (k+1)-th largest of positive counts; 0 if there are at most k."""
    if counts.size <= k:
        return 0
    place = counts.size - k - 1
    return int(np.partition(counts, place)[place])


def keep_largest(items: tuple[Any, ...], counts: IntArray, k: int, subtracted: int) -> Counters:
    """At most k counters: if there are more, the (k+1)-th largest is subtracted from all, and positive ones stay.

    The counts are positive, of different items. Missing items must be removed before: they would take a rank.
    Guarantee: every count decreases by the same number, which is added to `subtracted`, or to zero.
    """
    kept = np.minimum(counts, LARGEST)
    floor = rank_value(kept, k)
    if floor:
        where = np.flatnonzero(kept > floor)
        items, kept = tuple(take_rows(column, where) for column in items), kept[where] - floor
    return Counters(items, kept, min(subtracted + floor, LARGEST))


def numbers(column: Any) -> IntArray:
    """A chunked column of whole numbers without nulls as numpy. Arrow's own conversion would import pandas."""
    parts = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(parts).astype(np.int64, copy=False) if parts else np.empty(0, dtype=np.int64)


def check_place(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The path, if a sketch can be written there; nothing is changed."""
    name, place = os.fspath(path), checked_path(path, "a sketch")
    if not place.parent.is_dir():
        raise OutputError(f"{name} cannot be written: there is no folder {place.parent}")
    if place.is_dir():
        raise OutputError(f"{name} cannot be written: it is a folder")
    if not force and os.path.lexists(place):
        raise OutputError(f"{name} already exists: choose another name, or replace it with --force")
    return place


def write_secret(
    path: str | os.PathLike[str], data: bytes, *, force: bool = False, placed: Callable[[Path], None] | None = None
) -> None:
    """Write a new file at once, readable only by its owner; without `force` nothing is ever replaced.

    `placed` is called once it is there, before any signal that waited.
    """
    place = check_place(path, force=force)
    with defer_signals():
        write_files({place: (data, 0o600)}, force=force)
        if placed is not None:
            placed(place)


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a sketch's file."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InputError(f"the sketch {os.fspath(path)} does not exist") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not the name of a file"
        raise InputError(f"the sketch {os.fspath(path)} cannot be read: {reason}") from None


MAGIC: Final = b"dphistMG"
VERSION: Final = 1
# Magic, version, length of the header.
START: Final = struct.Struct("<8sHI")
DIGEST: Final = 32
COUNT: Final = "count"


def encode(k: int, kind: ItemKind, counters: Counters) -> bytes:
    """The bytes of a sketch. Equal sketches have equal bytes, in whatever order their users came."""
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


def decode(data: Any, what: str, k: int | None = None) -> tuple[int, ItemKind, Counters]:
    """Size, kind and counters of a sketch. Errors repeat no value of it."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidParameter(f"a sketch is read from bytes, not from {type(data).__name__}")
    whole = bytes(data)
    if whole[: len(MAGIC)] != MAGIC:
        raise InputError(f"{what} is not a sketch of dphist")
    if len(whole) < START.size + DIGEST:
        raise InputError(f"{what} is damaged: its end is missing")
    _, version, length = START.unpack_from(whole)
    if version != VERSION:
        raise InputError(f"{what} is of version {version}, and this dphist reads version {VERSION}")
    if hashlib.sha256(whole[:-DIGEST]).digest() != whole[-DIGEST:]:
        raise InputError(f"{what} is damaged: it has changed since it was written")
    try:
        found = contents(whole[START.size : START.size + length], whole[START.size + length : -DIGEST])
    except (DphistError, ValueError, TypeError, KeyError, OSError, RecursionError, pa.ArrowException):
        found = None
    # Raised outside of the handler, so that nothing of the reader's message comes along.
    if found is None:
        raise InputError(f"{what} is damaged: it does not hold what a sketch holds")
    if k is not None and found[0] != positive_count("k", k):
        raise InputError(f"{what} is of size {found[0]}, not {k}")
    return found


def contents(header: bytes, payload: bytes) -> tuple[int, ItemKind, Counters]:
    """Read both parts and check every rule of a sketch; a `ValueError` if one is broken."""
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
    found = numbers(table.column(COUNT))
    require(found.size <= k and bool(((found >= 1) & (found <= LARGEST)).all()))
    require(all(column.type != TEXT or is_unicode(column) for column in items) and not has_repeats(items))
    # NaN is not an item, and -0.0 is the item 0.0.
    real = [np.array(column.to_pylist()) for column in items if pa.types.is_floating(column.type)]
    require(not any((np.isnan(values) | ((values == 0.0) & np.signbit(values))).any() for values in real))
    return k, kind, Counters(tuple(items), found, subtracted)


def require(holds: bool) -> None:
    """Raise a `ValueError` unless it holds."""
    if not holds:
        raise ValueError
