"""Sketches of streams of batches: groups that are in order, and what batches must be."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest

from dphist.errors import InvalidParameter
from dphist.sketch import MisraGries, build_batches
from oracles_sketch import Sketch, with_users

FAR = 6 * 10**18


def state(sketch: MisraGries) -> Sketch:
    return dict(sketch._as_table()), sketch._subtracted


def stream(*batches: list[tuple[Any, Any, Any]], kind: Any) -> dict[str, Any]:
    """Batches of (user, item, group), and how to read them."""
    schema = pa.schema([("u", pa.int64()), ("i", pa.string()), ("g", kind)])
    made = [
        pa.record_batch([list(column) for column in zip(*rows, strict=True)], schema=schema) for rows in batches
    ]
    return {"batches": made, "user": "u", "item": "i", "schema": schema, "group": "g"}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [FAR, -FAR]), (pa.int64(), [2**63 - 1, -(2**63)]), (pa.int64(), [1, 0]),
        (pa.uint64(), [2**64 - 1, 0]), (pa.uint64(), [2**63, 2**63 - 1]), (pa.uint64(), [2**63 + 1, 2**63]),
        (pa.int8(), [127, -128]), (pa.uint8(), [255, 0]),
    ],
)  # fmt: skip
def test_groups_that_fall_are_refused_however_far_they_fall(kind: Any, values: list[int]) -> None:
    one, other = ((1, "a", values[0]), (2, "b", values[1]))
    for batches in ([[one, other]], [[one], [other]], [[one, other], [one]]):
        with pytest.raises(InvalidParameter, match="sorted by the group"):
            build_batches(k=5, **stream(*batches, kind=kind))
    # The other way round they rise, and each is an update of its own: with one counter, b takes a away.
    for batches in ([[other, one]], [[other], [one]], [[other], [], [one]]):
        assert state(build_batches(k=1, **stream(*filter(None, batches), kind=kind))) == ({}, 1)
        assert state(build_batches(k=2, **stream(*filter(None, batches), kind=kind))) == ({"a": 1, "b": 1}, 0)


def test_rows_without_a_group_are_left_out_wherever_they_are() -> None:
    rows = [(1, "a", -(2**63)), (2, "a", 3), (2, "b", 3), (3, "b", 5), (4, "c", 5)]
    expected: Sketch = {}, 0
    for users in ([{"a"}], [{"a", "b"}], [{"b"}, {"c"}]):
        expected = with_users(expected, users, 2)
    for place, size in itertools.product(range(6), (1, 2, 6)):
        mixed: list[tuple[Any, Any, Any]] = [*rows[:place], (9, "z", None), *rows[place:]]
        batches = [mixed[start : start + size] for start in range(0, 6, size)]
        assert state(build_batches(k=2, **stream(*batches, kind=pa.int64()))) == expected


@pytest.mark.parametrize("kind", [pa.string(), pa.float64(), pa.bool_(), pa.date32(), pa.decimal128(5)], ids=str)
def test_groups_are_whole_numbers_by_the_schema_alone(kind: Any) -> None:
    with pytest.raises(InvalidParameter, match="'g' is of"):
        build_batches(k=5, **stream(kind=kind))


def test_the_group_may_be_the_user() -> None:
    told = stream([(1, "a", 0), (1, "b", 0), (2, "a", 0)], kind=pa.int32())
    assert state(build_batches(k=1, **{**told, "group": "u"})) == ({"a": 1}, 1)


TABLE = pa.table({"u": [1, 2], "i": ["a", "b"], "n": [1, 2]})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"item": "u"}, "'u' cannot be both the user and the item"),
        ({"batches": [TABLE.select(["u"]).to_batches()[0]]}, "a batch has no column 'i'"),
        (
            {"batches": [TABLE.rename_columns(["u", "i", "i"]).to_batches()[0]]},
            "a batch has no column 'i', or sev",
        ),
        (
            {"batches": [TABLE.rename_columns(["u", "n", "i"]).to_batches()[0]]},
            "type int64 in 'i'.*has large_string",
        ),
        ({"batches": [TABLE.rename_columns(["i", "u", "n"]).to_batches()[0]]}, "type string in 'u'.*has int64"),
        ({"batches": [TABLE]}, "record batches of Arrow, not Table"),
        ({"batches": [5]}, "record batches of Arrow, not int"),
        ({"schema": ["u", "i"]}, "schema must be that of the Arrow batches, not list"),
        ({"names": ["a", "b"]}, "has 1 columns, and 2 names"),
        ({"names": [""]}, "different names"),
        ({"item": ["i", "i"]}, "different names"),
        ({"group": "x"}, "no column 'x'"),
        ({"k": 0}, "k must be between"),
    ],
)
def test_what_is_refused_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    told = {"batches": TABLE.to_batches(), "k": 5, "user": "u", "item": "i", "schema": TABLE.schema}
    assert state(build_batches(**told)) == ({"a": 1, "b": 1}, 0)
    with pytest.raises(InvalidParameter, match=sentence) as raised:
        build_batches(**{**told, **options})
    assert "\n" not in str(raised.value)


def test_batches_may_differ_in_what_does_not_matter() -> None:
    """Other columns, orders and metadata, other types of texts, and no type where there are no values."""
    noted = TABLE.schema.field("i").with_metadata({"a": "b"}).with_nullable(False)
    other = pa.schema([TABLE.schema.field("u"), noted], metadata={"c": "d"})
    batches = [
        *TABLE.to_batches(), pa.record_batch([[3], ["b"]], schema=other),
        pa.record_batch({"i": ["b"], "more": [1], "u": [4]}), pa.record_batch({"i": pa.nulls(2), "u": [5, 6]}),
        pa.record_batch({"i": pa.array(["b"], pa.large_string()), "u": pa.array([7], pa.int8())}),
        pa.record_batch({"i": pa.array(["b"]).dictionary_encode(), "u": [8]}),
    ]  # fmt: skip
    sketch = build_batches(iter(batches), 5, user="u", item="i", schema=TABLE.schema, names="what")
    assert state(sketch) == ({"a": 1, "b": 5}, 0)
    assert sketch.kind.names == ("what",)
