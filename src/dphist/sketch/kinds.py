"""What the items of a sketch are: names and types, fixed before any data comes.

Each value becomes an item by a rule about that value alone, and what is none is missing. So no user's row can
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

from dphist.engines.cells import text_of, whole_of
from dphist.errors import InvalidParameter

TEXT: Final = pa.large_string()
BYTES: Final = pa.large_binary()
WHOLE: Final = pa.int64()
# Values that are no single one, and are never missing.
NESTED: Final = (str, bytes, list, tuple, dict, np.ndarray)
# Numbers of numpy; its times are none.
NUMBERS: Final = (np.integer, np.floating, np.bool_)


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
        if len(self.types) == 1:
            rule = key_rule(self.types[0])
            return {key for key in map(rule, items) if key is not None}
        rules = [key_rule(kind) for kind in self.types]
        found = set()
        for item in items:
            if isinstance(item, (tuple, list)) and len(item) == len(rules):
                key = tuple(rule(value) for rule, value in zip(rules, item, strict=True))
                if None not in key:
                    found.add(key)
        return found

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
    if isinstance(item, pa.Schema):
        return ItemKind(tuple(item.names), tuple(plainest(kind) for kind in item.types))
    if isinstance(item, Mapping):
        return ItemKind(tuple(item), tuple(plainest(named_type(kind)) for kind in item.values()))
    return ItemKind(("item",), (plainest(named_type(item)),))


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


def key_rule(kind: Any) -> Callable[[Any], Any]:
    """From a value of Python to the key of an item; None where the value is no item of this type."""
    if kind == TEXT:
        return text_key
    if kind == WHOLE:
        return whole_key
    if pa.types.is_floating(kind):
        return lambda value: float_key(value, kind)
    return lambda value: typed_key(value, kind)


def bare(value: Any) -> Any:
    """A value out of its Arrow scalar; None where it is missing: NaN and NaT are not even equal to themselves."""
    try:
        if isinstance(value, pa.Scalar):
            value = value.as_py()
        return value if isinstance(value, NESTED) or value == value else None
    except Exception:  # what cannot be compared is no item, and to say so would tell of it
        return None


def text_key(value: Any) -> str | None:
    """Texts as they are, other values as columns of objects spell them; no Unicode, no item."""
    if value is None or (type(value) is str and value.isascii()):
        return value
    return text_of(bare(value))


def whole_key(value: Any) -> int | None:
    """A whole number of 64 bits."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    try:
        plain = bare(value)
        found = whole_of(plain.item() if isinstance(plain, NUMBERS) else plain)
        return None if found is None else int(found)
    except Exception:  # as below
        return None


def float_key(value: Any, kind: Any) -> float | None:
    """A number, as this type rounds it; NaN is missing, and the two zeros are one."""
    found = typed_key(value, kind)
    return None if found is None or math.isnan(found) else found + 0.0


def typed_key(value: Any, kind: Any) -> Any:
    """A value of any other type, as Arrow understands it."""
    try:
        # Python has no nanoseconds: a scalar of the same sort stays one of Arrow.
        same = isinstance(value, pa.Scalar) and not pa.types.is_dictionary(value.type)
        if not (same and plainest(value.type) == kind):
            value = pa.scalar(bare(value), kind)
        return value.cast(kind).cast(stored_as(kind)).as_py()
    except Exception:  # whatever it is, it is no value of this type, and to say so would tell of it
        return None


def plain_column(column: Any, kind: Any) -> Any:
    """A chunked column of Arrow in its plainest type. Values that are no items are null."""
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])
    if pa.types.is_dictionary(chunked.type):
        chunked = chunked.cast(chunked.type.value_type)
    if chunked.type != kind:
        chunked = chunked.cast(kind, safe=False)
    if kind == TEXT:
        return unicode_only(chunked)
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


def unicode_only(column: Any) -> Any:
    """A chunked column of texts in which those that are no UTF-8 are null."""
    chunks = [chunk if is_unicode(chunk) else decoded_texts(chunk) for chunk in column.chunks]
    return pa.chunked_array(chunks, TEXT)


def decoded_texts(column: Any) -> Any:
    """Text by text, null for those that are none."""
    found: list[str | None] = []
    for value in column.cast(BYTES).to_pylist():
        try:
            found.append(None if value is None else value.decode("utf-8"))
        except UnicodeDecodeError:
            found.append(None)
    return pa.array(found, TEXT)
