"""The items of a sketch and its counters: names and types, fixed before any data comes, and columns of Arrow.

Each value becomes an item by a rule about that value alone, and any other value is missing. So no user's row can
change the types of others or raise an error, which would tell of that row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dphist.counting.frames import decode_text, pandas_column, text_of, whole_of
from dphist.errors import InvalidParameter

IntArray = NDArray[np.int64]
# Larger counts are cut there, and so is what was subtracted: that moves neighbours no further apart, and an error
# would tell of them.
LARGEST: Final = 2**53
TEXT: Final = pa.large_string()
BYTES: Final = pa.large_binary()
WHOLE: Final = pa.int64()
# Values that are not single ones, and are never missing.
NESTED: Final = (str, bytes, list, tuple, dict, np.ndarray)
# Numbers of numpy; its times are not.
NUMBERS: Final = (np.integer, np.floating, np.bool_)


@dataclass(frozen=True)
class Counters:
    """Different items with positive counts, and what was subtracted on the way. True numbers: never shown."""

    items: tuple[Any, ...]
    counts: IntArray
    subtracted: int = 0

    def __repr__(self) -> str:
        return "Counters(secret)"


def rank_value(counts: IntArray, k: int) -> int:
    """The (k+1)-th largest of positive counts, 0 if there are no more than k."""
    if counts.size <= k:
        return 0
    place = counts.size - k - 1
    return int(np.partition(counts, place)[place])


def keep_largest(items: tuple[Any, ...], counts: IntArray, k: int, subtracted: int) -> Counters:
    """At most k counters: if there are more, the (k+1)-th largest is subtracted from all, and positive ones stay.

    The counts are positive, of different items. Missing items must be gone before: they would take a rank.
    Guarantee: every count falls by the same number, which is added to `subtracted`, or to zero.
    """
    kept = np.minimum(counts, LARGEST)
    floor = rank_value(kept, k)
    if floor:
        where = np.flatnonzero(kept > floor)
        items, kept = tuple(take_rows(column, where) for column in items), kept[where] - floor
    return Counters(items, kept, min(subtracted + floor, LARGEST))


def arrow_numbers(values: IntArray) -> Any:
    """Numbers of numpy as Arrow has them. Arrow's own way would import pandas, where it is installed."""
    plain = np.ascontiguousarray(values, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), plain.size, [None, pa.py_buffer(plain)])


def take_rows(column: Any, where: IntArray) -> Any:
    """These rows as one array."""
    found = column.take(arrow_numbers(where))
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


@dataclass(frozen=True)
class ItemKind:
    """The columns of an item. Types are the plainest of their sort, so that sketches of different files fit."""

    names: tuple[str, ...]
    types: tuple[Any, ...]

    def __post_init__(self) -> None:
        proper = all(isinstance(name, str) and name for name in self.names) and len(self.names) == len(self.types)
        if not self.names or not proper or len(set(self.names)) < len(self.names):
            raise InvalidParameter(f"the item's columns must have different names, not {list(self.names)!r}")

    def __str__(self) -> str:
        return ", ".join(f"{name} ({kind})" for name, kind in zip(self.names, self.types, strict=True))

    def keys(self, items: Iterable[Any]) -> set[Any]:
        """The different items of one user as keys of a dictionary; missing ones are left out."""
        rules = [key_rule(kind) for kind in self.types]
        if len(rules) == 1:
            return {key for key in map(rules[0], items) if key is not None}
        rows = (item for item in items if isinstance(item, (tuple, list)) and len(item) == len(rules))
        keys = {tuple(rule(value) for rule, value in zip(rules, row, strict=True)) for row in rows}
        return {key for key in keys if None not in key}

    def columns(self, keys: Iterable[Any]) -> tuple[Any, ...]:
        """Arrow columns of the items that these keys stand for."""
        rows = list(keys)
        parts = [rows] if len(self.types) == 1 else [[row[k] for row in rows] for k in range(len(self.types))]
        return tuple(
            pa.array(part, stored_as(kind)).cast(kind) for part, kind in zip(parts, self.types, strict=True)
        )

    def keys_of(self, columns: tuple[Any, ...]) -> list[Any]:
        """The keys of the items in Arrow columns: the reverse of `columns`."""
        parts = [column.cast(stored_as(column.type)).to_pylist() for column in columns]
        return parts[0] if len(parts) == 1 else list(zip(*parts, strict=True))


def item_kind(item: Any) -> ItemKind:
    """The kind of items that a user names: a type, or types by the names of their columns."""
    named = item if isinstance(item, Mapping) else {"item": item}
    if isinstance(item, pa.Schema):
        return ItemKind(tuple(item.names), tuple(plainest(kind) for kind in item.types))
    return ItemKind(tuple(named), tuple(plainest(named_type(kind)) for kind in named.values()))


def named_type(kind: Any) -> Any:
    """A type of Arrow, given as it is or by its name."""
    if isinstance(kind, pa.DataType):
        return kind
    try:
        return pa.type_for_alias(kind)
    except (ValueError, TypeError):
        raise InvalidParameter(
            f"an item's type must be a type of Arrow such as 'string', 'int64' or 'date32', not {kind!r}"
        ) from None


def plainest(kind: Any) -> Any:
    """The type in which values are counted: one for all texts, one for all bytes, one for whole numbers."""
    types = pa.types
    if types.is_dictionary(kind):
        return plainest(kind.value_type)
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return TEXT
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return BYTES
    if str(kind) == "binary_view":
        return BYTES
    if types.is_integer(kind):
        return kind if types.is_uint64(kind) else WHOLE
    if types.is_date(kind):
        return pa.date32()
    if types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind) or types.is_decimal(kind):
        return kind
    if types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
        return kind
    raise InvalidParameter(f"values of the type {kind} cannot be items of a sketch: make them text first")


def stored_as(kind: Any) -> Any:
    """A type whose values Python holds without loss: times are the whole numbers that Arrow keeps them as."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind):
        return pa.int64()
    return pa.int32() if types.is_date(kind) or types.is_time32(kind) else kind


def bare(value: Any) -> Any:
    """A value out of its Arrow scalar; None where it is missing: NaN and NaT are not even equal to themselves."""
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    return value if isinstance(value, NESTED) or value == value else None


def key_rule(kind: Any) -> Callable[[Any], Any]:
    """From a value of Python to the key of an item; None where the value is not an item of this type."""
    if kind == TEXT:
        # Texts as they are, other values as columns of objects spell them.
        return lambda value: value if type(value) is str and value.isascii() else _key(text_of, value)
    if kind == WHOLE:
        return lambda value: value if type(value) is int and -(2**63) <= value < 2**63 else _key(_whole, value)
    floating = pa.types.is_floating(kind)

    def typed(value: Any) -> Any:
        try:
            # Python has no nanoseconds: a scalar of the same sort stays one of Arrow.
            same = isinstance(value, pa.Scalar) and not pa.types.is_dictionary(value.type)
            if not (same and plainest(value.type) == kind):
                value = pa.scalar(bare(value), kind)
            found = value.cast(kind).cast(stored_as(kind)).as_py()
            # NaN is missing, and the two zeros are one.
            return found if not floating else None if math.isnan(found) else found + 0.0
        except Exception:  # it is not a value of this type, and to say so would tell of it
            return None

    return typed


def _key(rule: Callable[[Any], Any], value: Any) -> Any:
    try:
        return rule(bare(value))
    except Exception:  # as above
        return None


def _whole(value: Any) -> int | None:
    found = whole_of(value.item() if isinstance(value, NUMBERS) else value)
    return None if found is None else int(found)


def plain_column(column: Any, kind: Any) -> Any:
    """A chunked column of Arrow in its plainest type. Values that are not items are null."""
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    if chunked.type != kind:
        chunked = chunked.cast(kind, safe=False)
    if kind == TEXT:
        chunks = [chunk if is_unicode(chunk) else _unicode_only(chunk) for chunk in chunked.chunks]
        return pa.chunked_array(chunks, TEXT)
    if pa.types.is_floating(kind):
        # -0.0 + 0.0 is 0.0, and NaN is missing.
        chunked = pc.add(chunked, pa.scalar(0.0, kind))
        chunked = pc.if_else(pc.is_nan(chunked), pa.scalar(None, kind), chunked)
    return chunked


def is_unicode(column: Any) -> bool:
    """Whether all texts of a column are UTF-8, for readers of files do not always check."""
    try:
        column.cast(BYTES).cast(TEXT)
    except pa.ArrowInvalid:
        return False
    return True


def _unicode_only(column: Any) -> Any:
    raw = column.cast(BYTES).to_pylist()
    return pa.array([None if value is None else decode_text(value) for value in raw], TEXT)


def arrow_column(column: Any, what: str, kind: Any = None) -> Any:
    """A column as Arrow has it. Values without a type (lists, objects) become `kind`, text by default."""
    package = type(column).__module__.partition(".")[0]
    try:
        if isinstance(column, (pa.Array, pa.ChunkedArray)):
            return column
        if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind in "biufMm":
            return pa.array(column.astype(column.dtype.newbyteorder("="), copy=False))
        if package == "pandas" and hasattr(column, "isna") and (column.dtype.kind != "O" or kind in (None, TEXT)):
            return pandas_column(column)
        if package == "polars" and hasattr(column, "to_arrow"):
            return column.to_arrow()
        values = column.tolist() if hasattr(column, "tolist") and getattr(column, "ndim", 0) == 1 else column
        if isinstance(values, (list, tuple)):
            wanted = TEXT if kind is None else kind
            return pa.array(map(key_rule(wanted), values), stored_as(wanted)).cast(wanted)
    except pa.ArrowException:
        raise InvalidParameter(
            f"{what} of the type {getattr(column, 'dtype', type(column).__name__)} are not known to Arrow: "
            "convert them to another type first, times for example to datetime64[s] or datetime64[D]"
        ) from None
    raise InvalidParameter(
        f"{what} must be columns: Arrow arrays, numpy arrays, Series or lists, not {type(column).__name__}"
    )


def user_column(users: Any) -> Any:
    """Users as a chunked column in their plainest type."""
    column = arrow_column(users, "users")
    if pa.types.is_null(column.type):
        return pa.chunked_array([column.cast(TEXT)])
    return plain_column(column, plainest(column.type))


def given_columns(items: Any) -> Any:
    """A tuple of columns as it is, and one column as a tuple of it. A tuple of values is a column."""

    def is_column(given: Any) -> bool:
        package = type(given).__module__.partition(".")[0]
        arrays = (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)
        return isinstance(given, arrays) or (package in ("pandas", "polars") and hasattr(given, "__len__"))

    return items if isinstance(items, tuple) and items and all(map(is_column, items)) else (items,)


def item_columns(items: Any, kind: ItemKind) -> tuple[Any, ...]:
    """The columns of the items, in the types of the sketch. Another type is an error, whatever its values are."""
    given = items if len(kind.names) > 1 else given_columns(items)
    if not isinstance(given, (tuple, list)) or len(given) != len(kind.names):
        raise InvalidParameter(
            f"the sketch counts items of {len(kind.names)} columns: give as many, as a tuple of columns"
        )
    columns = []
    for column, name, wanted in zip(given, kind.names, kind.types, strict=True):
        found = arrow_column(column, "items", wanted)
        if not pa.types.is_null(found.type) and plainest(found.type) != wanted:
            raise InvalidParameter(
                f"the sketch counts items of the type {wanted} in {name!r}, and the column is of type {found.type}"
            )
        columns.append(plain_column(found, wanted))
    return tuple(columns)
