"""A sketch as bytes and as a file: magic and version, a header in JSON, the counters in Arrow, a SHA-256 of all.

Sketches hold true counts: only the owner of a file may read it, and no file is ever there half written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dphist.errors import DphistError, InputError, InvalidParameter, OutputError, positive_count
from dphist.publishing import defer_signals, write_files
from dphist.releasing.result import has_repeats, release_order
from dphist.sketch.values import LARGEST, TEXT, Counters, ItemKind, arrow_numbers, is_unicode, plainest, take_rows


def check_place(path: str | os.PathLike[str], *, force: bool) -> Path:
    """The path, if a sketch can be written there; nothing is changed."""
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidParameter(f"a sketch needs the name of a file, not {name!r}")
    place = Path(name)
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
    """Put a new file in place at once, readable by its owner alone; without `force` nothing is ever replaced.

    `placed` is called once it is there, before any signal that waited.
    """
    place = check_place(path, force=force)
    with defer_signals():
        try:
            write_files({place: (data, 0o600)}, force=force)
            if placed is not None:
                placed(place)
        except FileExistsError:
            raise OutputError(f"{place} already exists: replace it with --force") from None
        except OSError as error:
            raise OutputError(f"{place} cannot be written: {error.strerror}") from None


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
    """The bytes of a sketch; equal sketches have equal bytes, in whatever order their users came."""
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
    """Size, kind and counters of a sketch; whatever is wrong with it is one sentence without a value of it."""
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
        raise InputError(f"{what} is damaged: it is not as it was written")
    try:
        found = contents(whole[START.size : START.size + length], whole[START.size + length : -DIGEST])
    except (DphistError, ValueError, TypeError, KeyError, OSError, RecursionError, pa.ArrowException):
        found = None
    # Raised after the handler has ended: so nothing of the reader's text comes along.
    if found is None:
        raise InputError(f"{what} is damaged: it does not hold what a sketch holds")
    if k is not None and found[0] != positive_count("k", k):
        raise InputError(f"{what} is of size {found[0]}, not {k}")
    return found


def contents(header: bytes, payload: bytes) -> tuple[int, ItemKind, Counters]:
    """What the two parts say, with every rule of a sketch checked; a `ValueError` where one is broken."""
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
    numbers = np.array(counts.to_pylist(), dtype=np.int64)
    require(numbers.size <= k and bool(((numbers >= 1) & (numbers <= LARGEST)).all()))
    require(all(column.type != TEXT or is_unicode(column) for column in items) and not has_repeats(items))
    require(not any(pa.types.is_floating(c.type) and is_odd(np.array(c.to_pylist())) for c in items))
    return k, kind, Counters(tuple(items), numbers, subtracted)


def is_odd(numbers: NDArray[np.float64]) -> bool:
    """Whether there is NaN, which is not an item, or -0.0, which is the item 0.0."""
    return bool((np.isnan(numbers) | ((numbers == 0.0) & np.signbit(numbers))).any())


def require(holds: bool) -> None:
    """A `ValueError` unless it holds."""
    if not holds:
        raise ValueError
