"""Types that a library infers from values must not let the row of one user change the release of others.

Neighbours here are files with and without one more row, read as people read them. What differs between them is one
user, whose item is released with a probability below 1e-9: so both releases, made from one seed, must be equal in
values and in types. With the types of the frame kept they are not, which shows that the attack works.
"""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pytest

import dphist
from dphist.errors import InputError, InvalidParameter
from release_data import resealed

# Two items of 2,000 users each are released except with probability e^-50. The item of a single user is not,
# except with probability delta.
ASKED: dict[str, Any] = {
    "user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-12, "max_items_per_user": 1, "seed": 1,
}  # fmt: skip
SMALL, LARGE = (1000, 1001), (2**60, 2**60 + 1)


def csv_text(items: tuple[int, int], odd: str | None) -> str:
    """Rows of 4,000 users; the odd one comes first, so that every reader infers types from it."""
    first = "" if odd is None else f"odd,{odd}\n"
    return "user,item\n" + first + "".join(f"u{k},{items[k % 2]}\n" for k in range(4000))


def json_text(items: tuple[int, int], odd: str | None) -> str:
    value = {None: None, "": "null", "abc": '"abc"'}.get(odd, odd)
    first = [] if odd is None else [f'{{"user": "odd", "item": {value}}}']
    rows = [f'{{"user": "u{k}", "item": {items[k % 2]}}}' for k in range(4000)]
    return "\n".join(first + rows) + "\n"


def relation(text: str, tmp_path: Path) -> Any:
    path = tmp_path / "events.csv"
    path.write_text(text)
    return duckdb.connect().sql(f"SELECT * FROM read_csv('{path}')")


READERS: dict[str, Callable[[tuple[int, int], str | None, Path], Any]] = {
    "pandas csv": lambda items, odd, _: pd.read_csv(io.StringIO(csv_text(items, odd))),
    "pandas json": lambda items, odd, _: pd.read_json(io.StringIO(json_text(items, odd)), lines=True),
    "pandas objects": lambda items, odd, _: pd.DataFrame({
        "user": [*([] if odd is None else ["odd"]), *(f"u{k}" for k in range(4000))],
        "item": [
            *([] if odd is None else [{"": None, "9.5": 9.5}.get(odd, odd)]), *(items[k % 2] for k in range(4000))
        ],
    }),
    "polars read_csv": lambda items, odd, _: pl.read_csv(io.StringIO(csv_text(items, odd))),
    "polars scan_csv": lambda items, odd, _: pl.scan_csv(io.BytesIO(csv_text(items, odd).encode())),
    "polars read_ndjson": lambda items, odd, _: pl.read_ndjson(io.StringIO(json_text(items, odd))),
    "Arrow csv": lambda items, odd, _: pa.csv.read_csv(io.BytesIO(csv_text(items, odd).encode())),
    "DuckDB relation": lambda items, odd, path: relation(csv_text(items, odd), path),
}  # fmt: skip


def released(data: Any, **more: Any) -> tuple[Any, list[dict[str, Any]]]:
    table = dphist.release(data, **{**ASKED, **more}).to_arrow()
    return table.schema, table.to_pylist()


# These infer types the way others do.
SLOW_READERS = {"pandas json", "polars scan_csv", "polars read_ndjson", "Arrow csv"}
SOME_READERS = [
    pytest.param(reader, marks=pytest.mark.slow if reader in SLOW_READERS else ()) for reader in READERS
]


@pytest.mark.parametrize("reader", SOME_READERS)
def test_one_row_changes_nothing_for_others(reader: str, tmp_path: Path) -> None:
    read = READERS[reader]
    schema, rows = released(read(SMALL, None, tmp_path))
    assert sorted(row["item"] for row in rows) == ["1000", "1001"]
    # polars refuses JSON files with contradictory types.
    for odd in ("", "9.5", *(["abc"] if reader != "polars read_ndjson" else [])):
        assert (schema, rows) == released(read(SMALL, odd, tmp_path)), odd


@pytest.mark.parametrize("reader", SOME_READERS)
def test_large_numbers_do_not_merge(reader: str, tmp_path: Path) -> None:
    """With a missing value, pandas turns 2^60 and 2^60 + 1 into one float. Numbers from 2^53 on are missing."""
    read = READERS[reader]
    for odd in (None, "", "9.5"):
        assert released(read(LARGE, odd, tmp_path))[1] == []


@pytest.mark.parametrize("package", ["arrow", "polars", "pandas"])
@pytest.mark.parametrize("odd", ["9.12345", "9e3", "923456789012345678.5"])
def test_the_digits_of_a_decimal_change_nothing_for_others(package: str, odd: str) -> None:
    """Libraries give all decimals of a column as many digits as the longest has: 1.50 became 1.50000.

    The odd item is the last in the order, so that a seed gives the others the same noise.
    """

    def frame(*more: str) -> Any:
        items = [Decimal(text) for text in (*more, *("1.50", "2.00") * 2000)]
        columns = {"user": [*("odd" for _ in more), *(f"u{k}" for k in range(4000))], "item": items}
        if package == "pandas":
            return pd.DataFrame(columns)
        return pa.table(columns) if package == "arrow" else pl.DataFrame(columns)

    schema, rows = released(frame())
    assert sorted(row["item"] for row in rows) == ["1.5", "2"]
    assert (schema, rows) == released(frame(odd))
    if package != "pandas" and odd == "9.12345":
        assert released(frame(), types="fixed") != released(frame(odd), types="fixed")


@pytest.mark.parametrize("types", ["text", "fixed"])
@pytest.mark.parametrize("way", ["items", "known"])
def test_entries_of_a_list_match_items_of_all_types(types: str, way: str) -> None:
    """Bytes that are not text never matched items that are read as text, so their counts were about 0."""
    for values in ([b"\xff\x01", b"tea"], [Decimal("1.50"), Decimal("-2.00")], [5, 7], [1.5, -0.0],
                   [datetime.date(2024, 1, 5), datetime.date(1900, 1, 1)], [[1, 2], [3]]):  # fmt: skip
        listed = pa.table({"item": pa.array(values)})
        users = pa.table({"user": [f"u{k}" for k in range(4000)], "item": listed["item"].take([0, 1] * 2000)})
        rows = released(users, types=types, max_items_per_user=None, **{way: listed})[1]
        assert len(rows) == 2, values
        assert all(abs(row["count"] - 2000) < 200 for row in rows), values


def test_the_attack_works_if_types_are_kept() -> None:
    """Power: types change with one row, and 2,000 + 2,000 users become 4,000."""
    small = [READERS["pandas csv"](SMALL, odd, Path()) for odd in (None, "", "abc")]
    types = {str(released(frame, types="fixed")[0].field("item").type) for frame in small}
    assert len(types) == 3
    merged = released(READERS["pandas csv"](LARGE, "", Path()), types="fixed")[1]
    assert [round(row["count"], -2) for row in merged] == [4000.0]


@pytest.mark.parametrize("odd", ["", "abc"])
def test_users_do_not_merge_either(odd: str) -> None:
    def frame(odd: str | None) -> Any:
        first = "" if odd is None else f"{odd},rare\n"
        rows = "".join(f"{k},common\n" for k in range(2000))
        return pd.read_csv(io.StringIO("user,item\n" + first + rows))

    assert released(frame(None)) == released(frame(odd))


def test_fixed_types_are_kept() -> None:
    frame = pd.read_csv(io.StringIO(csv_text(SMALL, None)))
    schema, rows = released(frame, types="fixed")
    assert schema.field("item").type == pa.int64()
    assert sorted(row["item"] for row in rows) == [1000, 1001]
    exact = released(pd.read_csv(io.StringIO(csv_text(LARGE, None))), types="fixed")[1]
    assert sorted(row["item"] for row in exact) == [2**60, 2**60 + 1]


# The first of two values has this text, and the second is missing.
CELLS: list[tuple[Any, str]] = [
    (pa.array([5, None], pa.int8()), "5"),
    (pa.array([2**53 - 1, 2**53]), "9007199254740991"),
    (pa.array([1 - 2**53, -(2**53)]), "-9007199254740991"),
    (pa.array([7, 2**64 - 1], pa.uint64()), "7"),
    (pa.array([5.0, 2.0**53]), "5"),
    (pa.array([-0.0, 1e300]), "0"),
    (pa.array([1.5, None]), "1.5"),
    (pa.array([0.1, None], pa.float32()), "0.1"),
    (pa.array([float("nan"), None]), "nan"),
    (pa.array([float("-inf"), None]), "-inf"),
    (pa.array([Decimal("1.50"), None]), "1.5"),
    (pa.array([Decimal("-20.00"), None]), "-20"),
    (pa.array([Decimal("0.000"), None], pa.decimal128(38, 37)), "0"),
    (pa.array([Decimal(900), Decimal(2**53)]), "900"),
    (pa.array([True, None]), "true"),
    (pa.array([datetime.date(2024, 1, 5), None]), "2024-01-05"),
    (pa.array([datetime.datetime(2024, 1, 5), None]), "2024-01-05 00:00:00"),
    (pa.array([datetime.datetime(2024, 1, 5, 1, 2, 3, 500_000), None]), "2024-01-05 01:02:03.5"),
    (pa.array([b"tea", None]), "tea"),
    (pa.array([b"\xff\x01", None]), "ff01"),
    (pa.array(["007", None]), "007"),
    (pa.array([[1, 2], None]), "[1,2]"),
    (pa.array(["a", None]).dictionary_encode(), "a"),
]


def test_each_cell_has_one_text() -> None:
    """As columns of one item, including missing values. Python objects in pandas have the same texts."""
    users = pa.array([f"u{k}" for k in range(2000)])
    places = pa.array([0, 1] * 1000)

    def texts(frame: Any, names: list[str]) -> list[tuple[Any, ...]]:
        rows = released(frame, item=names, null_items=True)[1]
        return sorted((tuple(row[name] for name in names) for row in rows), key=repr)

    columns = {f"c{place}": values.take(places) for place, (values, _) in enumerate(CELLS)}
    expected = [tuple(text for _, text in CELLS), (None,) * len(CELLS)]
    assert texts(pa.table({"user": users, **columns}), list(columns)) == sorted(expected, key=repr)
    objects, wanted = pd.DataFrame({"user": users.to_pylist()}), {}
    for (name, column), (values, text) in zip(columns.items(), CELLS, strict=True):
        missing = isinstance(values[0].as_py(), float) and np.isnan(values[0].as_py())  # for pandas
        if not pa.types.is_nested(values.type) and not pa.types.is_binary(values.type) and not missing:
            objects[name] = pd.Series(column.to_pylist(), dtype=object)
            wanted[name] = "0.10000000149011612" if values.type == pa.float32() else text
    expected = [tuple(wanted.values()), (None,) * len(wanted)]
    assert texts(objects, list(wanted)) == sorted(expected, key=repr)


def test_the_certificate_states_the_condition(tmp_path: Path) -> None:
    frame = pd.read_csv(io.StringIO(csv_text(SMALL, None)))
    frame.to_parquet(tmp_path / "events.parquet")
    frame.to_csv(tmp_path / "events.csv", index=False)
    unseeded = {name: value for name, value in ASKED.items() if name != "seed"}
    said = {
        "frame": dphist.release(frame, **unseeded).document(),
        "fixed": dphist.release(frame, types="fixed", **unseeded).document(),
        "parquet": dphist.release(tmp_path / "events.parquet", **unseeded).document(),
        "csv": dphist.release(tmp_path / "events.csv", **unseeded).document(),
    }
    conditions = {name: document["guarantee"]["conditions"] for name, document in said.items()}
    assert conditions == {
        "frame": ["frame-values"], "fixed": ["fixed-types"], "parquet": ["fixed-types"], "csv": [],
    }  # fmt: skip
    assert [document["request"]["types"] for document in said.values()] == ["text", "fixed", "fixed", "none"]


@pytest.mark.parametrize("types", ["text", "fixed"])
@pytest.mark.parametrize("more", [{}, {"input_name": "shop"}], ids=["type", "name"])
def test_a_query_as_input_is_a_condition(tmp_path: Path, types: Any, more: dict[str, Any]) -> None:
    frame = pd.read_csv(io.StringIO(csv_text(SMALL, None)))
    unseeded = {name: value for name, value in ASKED.items() if name != "seed"}
    own = {"text": "frame-values", "fixed": "fixed-types"}[types]
    with duckdb.connect() as connection:
        for source in (connection.from_df(frame), pl.from_pandas(frame).lazy()):
            path = tmp_path / f"{type(source).__name__}.csv"
            found = dphist.release(source, types=types, output=path, **more, **unseeded)
            assert found.document()["guarantee"]["conditions"] == [own, "query"]
            assert "provided that" in found.guarantee
            assert "the rows that the query returns for one user depend on that user alone" in found.guarantee
            assert dphist.verify(path).verified
            certificate = path.with_name(f"{path.name}.certificate.json")
            document = json.loads(certificate.read_text())
            document["guarantee"]["conditions"].remove("query")
            certificate.write_text(resealed(document))
            assert not dphist.verify(path).verified


def test_a_removed_condition_is_noticed(tmp_path: Path) -> None:
    frame = pd.read_csv(io.StringIO(csv_text(SMALL, None)))
    unseeded = {name: value for name, value in ASKED.items() if name != "seed"}
    path = tmp_path / "out.csv"
    dphist.release(frame, output=path, **unseeded)
    assert dphist.verify(path).verified
    certificate = tmp_path / "out.csv.certificate.json"
    document = json.loads(certificate.read_text())
    for types in ("none", "fixed", None):
        request = {**document["request"], "types": types}
        if types is None:
            del request["types"]
        certificate.write_text(resealed({**document, "request": request}))
        assert not dphist.verify(path).verified


def test_wrong_types_are_refused(tmp_path: Path) -> None:
    frame = pd.DataFrame({"user": ["u"], "item": ["i"], "seen": [True]})
    path = tmp_path / "events.csv"
    frame.to_csv(path, index=False)
    with pytest.raises(InvalidParameter, match="types must be 'text' or 'fixed'"):
        dphist.release(frame, **ASKED, types="float")  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="are for frames"):
        dphist.release(path, **ASKED, types="text")
    with pytest.raises(InvalidParameter, match="are for frames"):
        dphist.release(frame, **ASKED, types="none")
    with pytest.raises(InputError, match="holds true and false: pass types='fixed'"):
        dphist.release(frame, **ASKED, sum="seen:0:1")
    assert len(dphist.release(frame, **ASKED, sum="seen:0:1", types="fixed")) == 0


def test_sums_and_conditions_read_the_same_text() -> None:
    """One odd row turns a column of numbers into text; both give the same sums."""
    numbers = pa.table({
        "user": [f"u{k}" for k in range(4000)], "item": ["a", "b"] * 2000,
        "paid": [k % 7 + 0.5 for k in range(4000)],
    })  # fmt: skip
    texts = numbers.set_column(2, "paid", numbers.column("paid").cast(pa.string()))
    asked = {**ASKED, "sum": "paid:0:10", "where": "CAST(paid AS DOUBLE) > 2"}
    assert released(numbers, **asked) == released(texts, **asked)


def test_public_lists_match_by_text() -> None:
    frame = pd.read_csv(io.StringIO(csv_text(SMALL, "")))
    assert frame["item"].dtype == np.float64
    listed = pd.DataFrame({"item": [1000, 1001, 1002]})
    asked = {name: value for name, value in ASKED.items() if name != "max_items_per_user"}
    rows = released(frame, **{**asked, "max_items_per_user": None}, items=listed)[1]
    assert {row["item"]: round(row["count"], -2) for row in rows} == {1000: 2000.0, 1001: 2000.0, 1002: 0.0}


def test_sketches_read_frames_as_text_too() -> None:
    plan = dphist.plan(epsilon=1.0, delta=1e-12, max_nonzero=10)
    found = []
    for odd in (None, "", "abc"):
        sketch = dphist.sketch.build(READERS["pandas csv"](SMALL, odd, Path()), 10, user="user", item="item")
        found.append(sketch.release(plan, seed=1).to_arrow())
    assert sorted(map(str, found[0].column("item").to_pylist())) == ["1000", "1001"]
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])
    frame = READERS["pandas csv"](SMALL, None, Path())
    kept = dphist.sketch.build(frame, 10, user="user", item="item", types="fixed")
    assert sorted(kept.release(plan, seed=1).items.to_pylist()) == [1000, 1001]
    with pytest.raises(InvalidParameter, match="types must be"):
        dphist.sketch.build(pd.DataFrame({"user": [1], "item": [2]}), 10, user="user", item="item", types="x")
