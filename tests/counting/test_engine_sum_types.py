"""Numbers in sums: types, texts, every kind of input, and bounds."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dphist.counting.task import HALF_STEPS, Resources, Value
from dphist.errors import InputError, InvalidParameter
from engine_cases import QUICK_ON_DUCKDB, WITHOUT_CLUSTER, Factory, by_engine, is_refused, rows_of, task, written
from sum_cases import TEXTS, own_steps, sums, value


@WITHOUT_CLUSTER
def test_both_engines_read_the_same_texts_as_numbers(engine: Factory) -> None:
    generator = random.Random(5)
    letters = "0123456789" * 3 + "+-..eE \t\n\r\f\v" + "_xfdnNaI,\u00a0\u2028\u0661\0"
    drawn_texts = ["".join(generator.choices(letters, k=generator.randrange(7))) for _ in range(1500)]
    longer = [
        f"{generator.uniform(-9, 9)!r}e{generator.choice([0, 300, generator.randrange(-330, 330)])}"
        for _ in range(300)
    ]
    longer += [
        "9" * 400, "0." + "0" * 400 + "1", "1e" + "9" * 30, "0e" + "9" * 30, "1" * 3000 + "x", " " * 3000 + "5",
    ]  # fmt: skip
    texts = [*TEXTS, *drawn_texts, *longer]
    table = pa.table({"user": range(len(texts)), "item": range(len(texts)), "t": texts})
    values = (value("t", -5, 5), value("t", -(10**300), 10**300))
    found = sums(engine, table, values)
    assert found == {k: (1, *(own_steps([text], wanted) for wanted in values)) for k, text in enumerate(texts)}
    assert len({steps for _, steps, _ in found.values()}) > 50


@QUICK_ON_DUCKDB
def test_numbers_become_the_nearest_doubles(engine: Factory) -> None:
    generator = random.Random(6)

    def some(digits: int, places: int) -> list[decimal.Decimal]:
        context = decimal.Context(prec=60)
        drawn = [generator.randrange(-(10**digits) + 1, 10**digits) for _ in range(300)]
        return [decimal.Decimal(n).scaleb(-places, context) for n in drawn]

    kinds: list[tuple[Any, list[Any]]] = [
        (pa.decimal128(digits, places), some(digits, places))
        for digits, places in ((4, 2), (9, 9), (15, 7), (16, 3), (18, 18), (19, 1), (38, 0), (38, 19), (38, 37))
    ]
    kinds += [
        (pa.uint64(), [2**64 - 1, 2**63 + 1025, 0]), (pa.int8(), [-128, 127]), (pa.uint32(), [2**32 - 1]),
        (pa.float32(), [0.1, math.inf, math.nan]), (pa.bool_(), [True, False, None]), (pa.null(), [None]),
        (pa.int64(), [generator.randrange(-(2**63), 2**63) for _ in range(300)]), (pa.large_string(), ["7", "x"]),
    ]  # fmt: skip
    for kind, given in kinds:
        array = pa.array(given, kind)
        table = pa.table({"user": range(len(given)), "item": range(len(given)), "x": array})
        # Fine enough around the largest that a last bit shows.
        most = max(
            (abs(Fraction(c)) for c in array.to_pylist() if isinstance(c, (int, decimal.Decimal))), default=1
        )
        near = Fraction(float(most or 1))
        values = (value("x", -near, near), value("x", near * (1 - Fraction(1, 2**19)), near))
        found = sums(engine, table, values)
        assert found == {
            k: (1, *(own_steps([cell], wanted) for wanted in values)) for k, cell in enumerate(array.to_pylist())
        }, kind


@WITHOUT_CLUSTER
def test_other_types_and_missing_columns_are_refused(engine: Factory) -> None:
    kinds: list[tuple[Any, Any]] = [
        (pa.date32(), datetime.date(2024, 1, 1)), (pa.timestamp("us"), datetime.datetime(2024, 1, 1)),
        (pa.timestamp("us", "UTC"), datetime.datetime(2024, 1, 1)), (pa.binary(), b"1"),
        (pa.list_(pa.int64()), [1]), (pa.struct([("a", pa.int64())]), {"a": 1}),
    ]  # fmt: skip
    for kind, cell in kinds:
        table = pa.table({"user": [1], "item": ["a"], "x": pa.array([cell], kind)})
        wanted = task(table, values=(value("x"),))
        for action in (engine(Resources()).check, lambda wanted: rows_of(engine, wanted)):
            with pytest.raises(InputError) as caught:
                action(wanted)
            assert str(caught.value) == "the column 'x' cannot be summed: it holds neither numbers nor text"
    with pytest.raises(InputError, match="no column 'nope'; its columns are 'user', 'item', 'x'"):
        engine(Resources()).check(task(table, values=(value("nope"),)))


@QUICK_ON_DUCKDB
def test_a_column_can_be_user_item_and_value(engine: Factory) -> None:
    table = pa.table({"user": [1, 1, 2, 3], "item": [5, 5, 5, 6], "dphist_0": [1, 2, 3, 4], "X0": [9, 9, 9, 9]})
    values = (value("user"), value("item"), value("item", 0, 5), value("dphist_0"), value("X0", 0, 100))
    found = sums(engine, table, values, where="user < 3 AND dphist_0 <> 2 AND item > 0")
    cells: tuple[Any, ...] = (([1], [2]), ([5], [5]), ([5], [5]), ([1], [3]), ([9], [9]))
    steps = [sum(own_steps(own, wanted) for own in users) for users, wanted in zip(cells, values, strict=True)]
    assert found == {5: (2, *steps)}


KINDS = [
    "parquet",
    "csv",
    "jsonl",
    "json",
    "arrow",
    "stream.arrow",
    "duckdb",
    "sqlite",
    "reader",
    "pandas",
    "lazy",
]


@by_engine("kind", [*KINDS, "relation"], ["csv"], ["parquet", "jsonl", "reader", "pandas"])
def test_every_kind_of_input_has_values(engine: Factory, tmp_path: Path, kind: str) -> None:
    numbers = [0.1, 1.5e300, None, -2.5e-7, 12345678.0, 2.0]
    texts = ["1", "x", None, " 2.5", "1e1", "1"]
    table = pa.table({"user": [1, 2, 3, 1, 4, 4], "item": list("aaaabb"), "x": numbers, "t": texts})
    values = (value("x", -1, 1), value("t", 0, 7))
    wanted = task(written(table, tmp_path, kind), values=values)
    if is_refused(engine, wanted, kind):
        return
    own = {"a": ([0, 3], [1], [2]), "b": ([4, 5],)}
    assert sums(engine, wanted.events.source, values) == {
        item: (
            len(users),
            sum(own_steps([numbers[k] for k in rows], values[0]) for rows in users),
            sum(own_steps([texts[k] for k in rows], values[1]) for rows in users),
        )
        for item, users in own.items()
    }


@QUICK_ON_DUCKDB
def test_pandas_objects_are_numbers_by_their_text(engine: Factory) -> None:
    import pandas as pd

    mixed = [1, 2.5, "3", None, float("nan"), True, decimal.Decimal("4.5"), b"5", [6], "x"]
    frame = pd.DataFrame({"user": range(10), "item": range(10), "x": pd.Series(mixed, dtype=object)})
    own = [1, 2.5, 3, None, None, None, 4.5, 35, None, None]  # bytes are written in hexadecimal
    found = sums(engine, frame, (value("x", 0, 50),))
    assert found == {k: (1, own_steps([cell], value("x", 0, 50))) for k, cell in enumerate(own)}


@pytest.mark.parametrize(
    ("column", "low", "high", "message"),
    [
        ("", 0, 1, "must be a column name"),
        ("x", 1, 1, "must be below its upper bound"),
        ("x", 2, 1, "must be below its upper bound"),
        ("x", 0.5, 1, "must be exact numbers"),
        ("x", True, 2, "must be exact numbers"),
        ("x", 10**9, 10**9 + 1, "too close together for numbers of their size"),
        ("x", -(10**9) - 1, -(10**9), "too close together for numbers of their size"),
        ("x", 0, Fraction(1, 10**320), "too close together or too far apart"),
        ("x", 0, 10**340, "too close together or too far apart"),
    ],
)
def test_bounds_of_a_value_must_make_sense(column: str, low: Any, high: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Value(column, low, high)


def test_the_whole_range_is_in_steps() -> None:
    wanted = Value("x", Fraction(-1, 3), Fraction(22, 7))
    assert wanted.step * 2 * HALF_STEPS == wanted.high - wanted.low
    assert Value("x", 0, 1).low == Fraction(0)  # type: ignore[arg-type]
    assert [own_steps([x], wanted) for x in (-1e9, 1e9)] == [0, 2 * HALF_STEPS]
