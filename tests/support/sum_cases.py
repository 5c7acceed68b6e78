"""Brute force for the tests of sums: a user's steps by definition, with whole numbers of any size."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from fractions import Fraction
from typing import Any

import pyarrow as pa

from dphist.counting.task import Value
from engine_cases import Factory, Rows, kept_by_hand, rows_of, table_of, task

NUMBER = re.compile(r"[ \t\n\r\f\v]*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[ \t\n\r\f\v]*", re.ASCII)
FIELDS = {
    "user": pa.int64(), "item": pa.string(), "x": pa.float64(), "n": pa.int64(), "t": pa.string(), "b": pa.bool_(),
    "d": pa.decimal128(38, 9),
}  # fmt: skip
ODD = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.1, 2.5, 1e15, -1e15, 2.0**-20]
TEXTS = [
    "1", " 2.5\n", "-.5", "1e2", "nan", "inf", "", "1_0", "0x1", "1e400", "-1e400", "\u0663", "3.", "+4", "1 2",
]  # fmt: skip


def value(column: str, low: Any = 0, high: Any = 10) -> Value:
    return Value(column, Fraction(low), Fraction(high))


def made(rows: Rows) -> Any:
    return table_of(rows, **FIELDS)


def number(cell: Any) -> float | None:
    """The double that a cell counts as."""
    if isinstance(cell, str):
        return float(cell) if NUMBER.fullmatch(cell) else None
    return None if cell is None or cell != cell else float(cell)


def own_steps(own: list[Any], wanted: Value) -> int:
    """Brute force: one user's cells for one item, in steps; by definition, with whole numbers of any size."""
    half = (wanted.high - wanted.low) / 2
    scale, total = float(2**30 / half), 0
    for x in map(number, own):
        if x is not None:
            scaled = x * scale + 0.5
            total += math.floor(scaled) if abs(scaled) <= 2**50 else int(math.copysign(2**50, scaled))
    lowest = math.floor(wanted.low * 2**30 / half + Fraction(1, 2))
    return (min(max(total, lowest), lowest + 2**31) - lowest + 512) >> 10


def by_hand(
    rows: Rows, values: tuple[Value, ...], cap: int | None = None, nulls: bool = False, key: bytes | None = None
) -> dict[Any, tuple[int, ...]]:
    """Brute force: for each item its users, and the sums of their steps."""
    kept = kept_by_hand([row[:2] for row in rows], cap, nulls, key)
    own: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        own[row[0], row[1]].append(dict(zip(FIELDS, row, strict=True)))
    found: dict[Any, list[int]] = defaultdict(lambda: [0] * (len(values) + 1))
    for user, items in kept.items():
        for (item,) in items:
            found[item][0] += 1
            for k, wanted in enumerate(values):
                found[item][k + 1] += own_steps([row[wanted.column] for row in own[user, item]], wanted)
    return {item: tuple(numbers) for item, numbers in found.items()}


def sums(engine: Factory, source: Any, values: tuple[Value, ...], **more: Any) -> dict[Any, tuple[int, ...]]:
    """Items with their counts and sums; single items without their tuple."""
    found = rows_of(engine, task(source, values=values, **more))
    cut = len(found[0]) - len(values) - 1 if found else 1
    by_item = {row[0] if cut == 1 else row[:cut]: row[cut:] for row in found}
    assert len(by_item) == len(found)
    return by_item
