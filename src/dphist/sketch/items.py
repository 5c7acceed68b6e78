"""The items of a sketch: their columns, and which values are items.

Types are fixed before any data is seen. Whether a value is an item depends on that value alone; any other value is
missing. So no row of a user can change the types of others, or raise an error that would disclose it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dphist.aliases import ArrowArray, ArrowColumn, ChunkedArray
from dphist.counting.columns import arrow_column
from dphist.counting.frames import TEXT, decode_text, text_of, whole_of
from dphist.errors import InvalidParameter

BYTES: Final = pa.large_binary()
WHOLE: Final = pa.int64()
# An Arrow type or its name.
ColumnType: TypeAlias = pa.DataType | str
# Values that are never missing, although their parts may be.
NESTED: Final = (str, bytes, list, tuple, dict, np.ndarray)


@dataclass(frozen=True)
class ItemKind:
    """Names and types of an item's columns. Types are the `plainest`: sketches of different files match."""

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    def __post_init__(self) -> None:
        proper = all(isinstance(name, str) and name for name in self.names) and len(self.names) == len(self.types)
        if not self.names or not proper or len(set(self.names)) < len(self.names):
            raise InvalidParameter(f"the item's columns must have different names, not {list(self.names)!r}")

    @classmethod
    def of(cls, item: ColumnType | Mapping[str, ColumnType]) -> ItemKind:
        """From a type, or from a mapping of column names to types."""
        types = item if isinstance(item, Mapping) else {"item": item}
        return cls(tuple(types), tuple(plainest(named_type(kind)) for kind in types.values()))

    def __str__(self) -> str:
        return ", ".join(f"{name} ({kind})" for name, kind in zip(self.names, self.types, strict=True))

    @cached_property
    def _rules(self) -> list[Callable[[object], Hashable]]:
        return [key_rule(kind) for kind in self.types]

    def keys(self, items: Iterable[object]) -> set[Hashable]:
        """The distinct items of one user as keys of a dictionary, without missing ones."""
        rules = self._rules
        if len(rules) == 1:
            return {key for key in map(rules[0], items) if key is not None}
        rows = (item for item in items if isinstance(item, (tuple, list)) and len(item) == len(rules))
        keys = {tuple(rule(value) for rule, value in zip(rules, row, strict=True)) for row in rows}
        return {key for key in keys if None not in key}

    def columns(self, keys: Iterable[Any]) -> tuple[ArrowArray, ...]:
        """Arrow columns of the items with these keys."""
        rows = list(keys)
        parts = [rows] if len(self.types) == 1 else [[row[k] for row in rows] for k in range(len(self.types))]
        pairs = zip(parts, self.types, strict=True)
        return tuple(pa.array(part, stored_as(kind)).cast(kind) for part, kind in pairs)

    def keys_of(self, columns: tuple[ArrowArray, ...]) -> Iterable[Hashable]:
        """The reverse of `columns`."""
        stored: list[ArrowArray] = [column.cast(stored_as(column.type)) for column in columns]
        parts = [column.to_pylist() for column in stored]
        return parts[0] if len(parts) == 1 else zip(*parts, strict=True)


def named_type(kind: Any) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    try:
        known: pa.DataType = pa.type_for_alias(kind)
    except (ValueError, TypeError, AttributeError):
        raise InvalidParameter(
            f"an item's type must be an Arrow type such as 'string', 'int64' or 'date32', not {kind!r}"
        ) from None
    return known


def plainest(kind: pa.DataType) -> pa.DataType:
    """The type in which values are counted: one for all text, one for all bytes, one for whole numbers."""
    types = pa.types
    if types.is_dictionary(kind):
        return plainest(kind.value_type)
    if str(kind) in ("string", "large_string", "string_view"):
        return TEXT
    if types.is_fixed_size_binary(kind) or str(kind) in ("binary", "large_binary", "binary_view"):
        return BYTES
    if types.is_integer(kind):
        return kind if types.is_uint64(kind) else WHOLE
    if types.is_date(kind):
        return pa.date32()
    numbers = types.is_boolean(kind) or types.is_float32(kind) or types.is_float64(kind) or types.is_decimal(kind)
    if numbers or types.is_timestamp(kind) or types.is_time(kind) or types.is_duration(kind):
        return kind
    raise InvalidParameter(f"values of the type {kind} cannot be items of a sketch: convert them to text first")


def stored_as(kind: pa.DataType) -> pa.DataType:
    """A type whose values Python can hold without loss; times are the integers that Arrow stores."""
    types = pa.types
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time64(kind):
        return pa.int64()
    return pa.int32() if types.is_date(kind) or types.is_time32(kind) else kind


def key_rule(kind: pa.DataType) -> Callable[[object], Hashable]:
    """A function from a Python value to the key of an item; None if the value is not an item of this type."""

    def bare(value: object) -> object:
        """The value of an Arrow scalar; None if missing: NaN and NaT do not equal themselves."""
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        return value if isinstance(value, NESTED) or value == value else None

    def text(value: object) -> str | None:
        return value if type(value) is str and value.isascii() else text_of(bare(value))

    def whole(value: object) -> int | None:
        if type(value) is int:
            return whole_of(value)
        value = bare(value)
        number = whole_of(value.item() if isinstance(value, (np.integer, np.floating, np.bool_)) else value)
        return None if number is None else int(number)

    def typed(value: object) -> Hashable:
        # Python has no nanoseconds: a scalar of the same type stays in Arrow.
        scalar = (
            value
            if isinstance(value, pa.Scalar)
            and not pa.types.is_dictionary(value.type)
            and plainest(value.type) == kind
            else pa.scalar(bare(value), kind)
        )
        stored = scalar.cast(kind).cast(stored_as(kind)).as_py()
        if isinstance(stored, float):
            # NaN is missing, and both zeros are one item.
            return None if math.isnan(stored) else stored + 0.0
        key: Hashable = stored
        return key

    rule = text if kind == TEXT else whole if kind == WHOLE else typed

    def key(value: object) -> Hashable:
        try:
            return rule(value)
        except Exception:  # an error would disclose the value
            return None

    return key


def plain_column(column: ArrowColumn, kind: pa.DataType) -> ChunkedArray:
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
        zero: pa.Scalar[Any] = pa.scalar(0.0, kind)
        chunked = pc.add(chunked, zero)
        chunked = pc.if_else(pc.is_nan(chunked), pa.scalar(None, kind), chunked)
    return chunked


def is_unicode(column: ArrowColumn) -> bool:
    """Whether all texts of a column are UTF-8, which not all file readers check."""
    try:
        column.cast(BYTES).cast(TEXT)
    except pa.ArrowInvalid:
        return False
    return True


def _unicode_only(column: ArrowArray) -> ArrowArray:
    raw = column.cast(BYTES).to_pylist()
    return pa.array([None if value is None else decode_text(value) for value in raw], TEXT)


def given_column(column: object, what: str, kind: pa.DataType | None = None) -> ArrowColumn:
    """A column as Arrow. Values without a type (lists, objects) become `kind`, text by default."""
    untyped = isinstance(column, (list, tuple)) or getattr(column, "dtype", None) == np.dtype(object)
    if isinstance(column, Iterable) and untyped:
        wanted = TEXT if kind is None else kind
        items: ArrowArray = pa.array(map(key_rule(wanted), column), stored_as(wanted)).cast(wanted)
        return items
    typed: ArrowColumn = arrow_column(column, what)
    return typed


def given_columns(items: object, number: int) -> tuple[object, ...]:
    """This number of columns. A single column may come without a tuple around it."""

    def is_column(value: object) -> bool:
        package = type(value).__module__.partition(".")[0]
        arrays = (list, tuple, np.ndarray, pa.Array, pa.ChunkedArray)
        return isinstance(value, arrays) or (package in ("pandas", "polars") and hasattr(value, "__len__"))

    if number == 1 and not (isinstance(items, tuple) and items and all(map(is_column, items))):
        return (items,)
    if not isinstance(items, (tuple, list)) or len(items) != number:
        raise InvalidParameter(f"the sketch counts items of {number} columns: pass a tuple of {number} columns")
    return tuple(items)


def item_columns(items: object, kind: ItemKind) -> tuple[ChunkedArray, ...]:
    """The columns of the items in the types of the sketch. Another type is an error, whatever its values."""
    columns = []
    for given, name, wanted in zip(given_columns(items, len(kind.names)), kind.names, kind.types, strict=True):
        column = given_column(given, "items", wanted)
        if not pa.types.is_null(column.type) and plainest(column.type) != wanted:
            raise InvalidParameter(
                f"the sketch counts items of the type {wanted} in {name!r}, but the column has type {column.type}"
            )
        columns.append(plain_column(column, wanted))
    return tuple(columns)
