"""Sketches of streams of batches: what batches must be."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dphist.errors import InvalidParameter
from dphist.sketch import MisraGries, build_batches
from oracles_sketch import Sketch


def state(sketch: MisraGries) -> Sketch:
    return dict(sketch._as_table()), sketch._subtracted


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
        ({"batches": [TABLE]}, "Arrow record batches, not Table"),
        ({"batches": [5]}, "Arrow record batches, not int"),
        ({"schema": ["u", "i"]}, "schema must be that of the Arrow batches, not list"),
        ({"names": ["a", "b"]}, "has 1 columns, but 2 names"),
        ({"names": [""]}, "different names"),
        ({"item": ["i", "i"]}, "different names"),
        ({"user": "x"}, "no column 'x'"),
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
