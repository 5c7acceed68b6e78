"""Types come from schemas only: one user's odd row changes no other count, no schema, and raises no error."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from dphist.aliases import ArrowArray
from dphist.counting.task import Resources
from dphist.errors import InputError
from engine_cases import (
    EMBEDDED,
    QUICK_ON_DUCKDB,
    WITHOUT_CLUSTER,
    Factory,
    by_engine,
    histogram,
    is_spark,
    task,
)
from scheduling import crossed

BASE = 10**18  # users that floats would merge
ROWS = [(BASE + n, 7 + n % 2) for n in range(200)]
ODD: dict[str, Any] = {
    "nothing": None, "half": 1.5, "zero": -0.0, "text": "x", "quote": 'a"b', "list": [1], "object": {"a": [1]},
    "huge": 10**30, "float": 1e300, "true": True, "number in text": "7,0 ", "bytes": b"\xff\xfe", "line": "a\nb,c",
    "nul": "a\0b", "empty": "", "not a number": float("nan"), "surrogate": "\ud800", "long": "x" * 3_000_000,
}  # fmt: skip


def json_lines(path: Path, rows: list[tuple[Any, Any]]) -> Any:
    def line(user: Any, item: Any) -> bytes:
        raw = next((cell for cell in (user, item) if isinstance(cell, bytes)), b"")
        text = json.dumps({"user": user, "item": item}, default=lambda _: "RAW").encode()
        return text.replace(b"RAW", raw)

    path.write_bytes(b"".join(line(*row) + b"\n" for row in rows))
    return path


def csv_lines(path: Path, rows: list[tuple[Any, Any]]) -> Any:
    def cell(value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        text = str("" if value is None else value).encode("utf-8", "surrogatepass")
        return b'"' + text.replace(b'"', b'""') + b'"' if isinstance(value, str) else text

    path.write_bytes(b"user,item\n" + b"".join(cell(user) + b"," + cell(item) + b"\n" for user, item in rows))
    return path


def sqlite_file(path: Path, rows: list[tuple[Any, Any]], kinds: tuple[str, str] = ("", "")) -> Any:
    def cell(value: Any) -> Any:
        if isinstance(value, str):  # text as it is, valid or not
            return value.encode("utf-8", "surrogatepass"), True
        known = value is None or isinstance(value, (float, bytes)) or (isinstance(value, int) and value < 2**63)
        return (value if known else str(value)), isinstance(value, bytes)

    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f'CREATE TABLE t ("user" {kinds[0]}, item {kinds[1]})')
        for row in rows:
            cells = [cell(value) for value in row]
            marks = ", ".join("CAST(? AS TEXT)" if is_text else "?" for _, is_text in cells)
            connection.execute(f"INSERT INTO t VALUES ({marks})", [value for value, _ in cells])
        connection.commit()
    return path


def objects(_: Path, rows: list[tuple[Any, Any]]) -> Any:
    return pd.DataFrame(rows, columns=["user", "item"], dtype=object)


def arrow_texts(rows: list[tuple[Any, Any]]) -> Any:
    """A table of texts, some of them invalid UTF-8, which Arrow does not check."""

    def column(cells: list[Any]) -> Any:
        raw = [
            cell if cell is None or isinstance(cell, bytes) else str(cell).encode("utf-8", "surrogatepass")
            for cell in cells
        ]
        return pa.array(raw, pa.binary()).view(pa.string())

    return pa.table({"user": column([row[0] for row in rows]), "item": column([row[1] for row in rows])})


def parquet(path: Path, rows: list[tuple[Any, Any]]) -> Any:
    pa.parquet.write_table(arrow_texts(rows), path)
    return path


def feather(path: Path, rows: list[tuple[Any, Any]]) -> Any:
    pa.feather.write_feather(arrow_texts(rows), path)
    return path


KINDS: dict[str, tuple[str, Callable[..., Any], type]] = {
    "JSON lines": ("x.jsonl", json_lines, str),
    "CSV": ("x.csv", csv_lines, str),
    "SQLite": ("x.sqlite", sqlite_file, str),
    "SQLite, declared": ("x.sqlite", lambda path, rows: sqlite_file(path, rows, ("INTEGER", "INTEGER")), int),
    "pandas": ("x", objects, str),
    "Arrow": ("x", lambda _, rows: arrow_texts(rows), str),
    "Arrow file": ("x.arrow", feather, str),
    "Parquet": ("x.parquet", parquet, str),
}


REFUSED = {"Parquet": ("bytes", "surrogate")}
REFUSED_BY_SPARK = {"CSV": ("line",)}
READ_BY_SPARK = ["JSON lines", "CSV", "pandas", "Arrow", "Parquet"]


@by_engine("kind", list(KINDS), ["CSV"], READ_BY_SPARK)
def test_odd_rows_change_nothing_else(engine: Factory, tmp_path: Path, kind: str) -> None:
    """All odd rows at once, for the sake of Spark; below one by one on the embedded engine."""
    name, write, form = KINDS[kind]
    refused = (REFUSED_BY_SPARK if is_spark(engine) else REFUSED).get(kind, ())
    odd = {key: value for key, value in ODD.items() if key not in refused}
    extra = [row for n, value in enumerate(odd.values()) for row in ((n, value), (value, f"extra {n}"))]
    source = write(tmp_path / name, [*ROWS[:100], *extra, *ROWS[100:]])
    for more in ({"max_items_per_user": 1},) if is_spark(engine) else ({"rank": 1}, {"max_items_per_user": 1}):
        found = histogram(engine, task(source, **more))
        assert {item: found.pop(item, 0) for item in (form(7), form(8))} == {form(7): 100, form(8): 100}
        assert all(isinstance(item, form) for item in found)


@EMBEDDED
@pytest.mark.parametrize(("odd", "kind"), crossed(list(ODD), list(KINDS)))
@pytest.mark.parametrize("ways", [3, pytest.param(9, marks=pytest.mark.slow)])
def test_one_odd_row_changes_nothing_else(engine: Factory, tmp_path: Path, kind: str, odd: str, ways: int) -> None:
    """An odd item, an odd user, or both; without a limit, with one, or with a rank."""
    if odd in REFUSED.get(kind, ()):
        pytest.skip("DuckDB refuses Parquet files with invalid UTF-8 as damaged")
    name, write, form = KINDS[kind]
    expected = {form(7): 100, form(8): 100}
    rows = ((5, ODD[odd]), (ODD[odd], "extra"), (ODD[odd], ODD[odd]))
    options: tuple[dict[str, int], ...] = ({}, {"max_items_per_user": 1}, {"rank": 1})
    for extra, more in zip(rows, options, strict=True) if ways == 3 else product(rows, options):
        wanted = task(write(tmp_path / name, [*ROWS, extra]), **more)
        with engine(Resources(threads=1)) as one:
            one.check(wanted)
            found = histogram(lambda _, one=one: one, wanted)  # type: ignore[misc]
        assert {item: found.pop(item, 0) for item in expected} == expected
        assert set(found.values()) <= {1}
        assert all(isinstance(item, form) for item in found)


@EMBEDDED
@pytest.mark.parametrize("form", ["text", "long", "view", "category", "list", "fixed", "struct", "map"])
def test_text_of_an_arrow_file_that_is_not_utf8_is_missing(engine: Factory, tmp_path: Path, form: str) -> None:
    """It does not make the file unreadable; what would crash a reader does (test_quotes)."""
    cells = [b"tea", b"\xff\xfe", b"milk", b"a text of more than twelve bytes \xc3", b"tea"]
    text = pa.array(cells, pa.binary()).view(pa.string())
    parts: Any = pa.array(range(len(cells) + 1), pa.int32())
    forms: dict[str, Callable[[], ArrowArray]] = {
        "text": lambda: text,
        "long": lambda: pa.array(cells, pa.large_binary()).view(pa.large_string()),
        "view": lambda: pa.array(cells, pa.binary_view()).view(pa.string_view()),
        "category": lambda: pa.DictionaryArray.from_arrays(parts[:-1], text),
        "list": lambda: pa.ListArray.from_arrays(parts, text),
        "fixed": lambda: pa.FixedSizeListArray.from_arrays(text, 1),
        "struct": lambda: pa.StructArray.from_arrays([text], ["name"]),
        "map": lambda: pa.MapArray.from_arrays(parts, pa.array(["a", "b", "c", "d", "a"]), text),
    }
    pa.feather.write_feather(
        pa.table({"user": range(5), "item": forms[form]()}), tmp_path / "x.arrow", compression="lz4"
    )
    found = histogram(engine, task(tmp_path / "x.arrow"))
    assert sorted(found.values()) == [1, 2]
    (rare, often) = sorted(found, key=found.__getitem__)
    assert ("milk" in str(rare), "tea" in str(often)) == (True, True)


@EMBEDDED
def test_collations_are_ignored(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.duckdb"
    with contextlib.closing(duckdb.connect(str(path))) as connection:
        connection.execute('CREATE TABLE e ("user" VARCHAR COLLATE nocase, item VARCHAR COLLATE nocase.noaccent)')
        connection.execute("INSERT INTO e VALUES ('x', 'RÉsumÉ'), ('X', 'resume')")
        connection.execute("INSERT INTO e SELECT 'u' || range, 'resume' FROM range(400)")
    for more in ({}, {"max_items_per_user": 1}, {"rank": 1}, {"query": "SELECT * FROM e"}):
        assert histogram(engine, task(path, **more)) == {"RÉsumÉ": 1, "resume": 401}
    listed = task(pa.table({"item": ["resume", "RESUME"]})).events
    assert histogram(engine, task(path, public_items=listed)) == {"resume": 401, "RESUME": 0}


UNIONS: list[tuple[Any, Any, bool]] = [
    (pa.int64(), pa.float64(), False), (pa.int32(), pa.float32(), False), (pa.float64(), pa.string(), False),
    (pa.int64(), pa.string(), False), (pa.decimal128(5, 2), pa.string(), False),
    (pa.int64(), pa.decimal128(5, 2), False), (pa.date32(), pa.timestamp("us"), False),
    (pa.decimal128(38, 0), pa.decimal128(38, 30), False), (pa.int8(), pa.int64(), True),
    (pa.uint16(), pa.uint32(), True), (pa.float32(), pa.float64(), True), (pa.string(), pa.large_string(), True),
    (pa.null(), pa.string(), True), (pa.string(), pa.dictionary(pa.int32(), pa.string()), True),
]  # fmt: skip


@by_engine(
    "case",
    [f"{kind} {k}" for kind in ("parquet", "arrow") for k in range(len(UNIONS))],
    [f"parquet {k}" for k in (0, 8)],
    [f"parquet {k}" for k in (3, 10, 11, 12)],
)
def test_files_of_different_types(engine: Factory, tmp_path: Path, case: str) -> None:
    kind, number = case.split()
    one, other, fine = UNIONS[int(number)]
    for n, of_type in enumerate((one, other)):
        table = pa.table({"user": [n], "item": pa.nulls(1, of_type), "n": [1]})
        if kind == "parquet":
            pa.parquet.write_table(table, tmp_path / f"{n}.parquet")
        else:
            pa.feather.write_feather(table, tmp_path / f"{n}.arrow", compression="uncompressed")
    wanted = task(tmp_path, null_items=True)
    if fine:
        assert histogram(engine, wanted) == {None: 2}
        return
    with pytest.raises(InputError, match=r"the column 'item' .* cannot be joined without loss"):
        engine(Resources()).check(wanted)
    assert histogram(engine, task(tmp_path, items="n")) == {1: 2}


@QUICK_ON_DUCKDB
def test_folders_named_key_value_add_text_and_replace_no_column(engine: Factory, tmp_path: Path) -> None:
    for value in ("7", "007", "x"):
        folder = tmp_path / "a" / f"user={value}"
        folder.mkdir(parents=True)
        pa.parquet.write_table(pa.table({"item": ["a"]}), folder / "x.parquet")
        (tmp_path / "j" / f"user={value}").mkdir(parents=True)
        (tmp_path / "j" / f"user={value}" / "x.jsonl").write_text('{"item": "a"}\n{"user": "own", "item": "b"}\n')
    assert histogram(engine, task(tmp_path / "a")) == {"a": 3}
    assert histogram(engine, task(tmp_path / "j")) == {"a": 3, "b": 1}
    assert histogram(engine, task(tmp_path / "a", items="user")) == {"7": 1, "007": 1, "x": 1}
    folder = tmp_path / "b" / "User=all"
    folder.mkdir(parents=True)
    pa.parquet.write_table(pa.table({"user": ["p", "q"], "item": ["a", "a"]}), folder / "x.parquet")
    (folder / "x.csv").write_text("user,item\np,a\nq,a\n")
    for name in ("x.parquet", "x.csv"):
        assert histogram(engine, task(folder / name)) == {"a": 2}


@QUICK_ON_DUCKDB
def test_invalid_csv_rows_are_skipped(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    odd = [
        b"9\n", b"9,\xff\n", b"9,a\r\n", b"\n", b"9;a|b\tc\n", b"#9,a\n", b"9,a,tea\n", b'9,"\xff"\n',
        *([] if is_spark(engine) else [b'9,"\xff\nb"\n']),
    ]  # fmt: skip
    rows = [b"%d,tea\n" % n for n in range(300)]

    def count(odd: bytes) -> int:
        path.write_bytes(b"user,item\n" + b"".join(rows[:150]) + odd + b"".join(rows[150:]))
        return int(histogram(engine, task(path))["tea"])

    for one in [b"".join(odd)] if is_spark(engine) else odd:
        assert count(one) == 300, one
    # A file is refused if another reader could take a quote for one that reaches into the next rows.
    refused = [b'9,"a"x\n', b'9,"a\n', *([b'9,a"b\n', b'9,"a\nb"\n'] if is_spark(engine) else [])]
    for one in refused:
        with pytest.raises(InputError, match="has quotes that are misplaced"):
            count(one)
    if not is_spark(engine):
        assert count(b'9,a"b\n') == 300
    # Only the header determines the delimiter.
    path.write_bytes(b'"a,b,c"|user|item\n' + b"1,2;3,4|u|x,y;z\n" * 9)
    assert histogram(engine, task(path)) == {"x,y;z": 1}


@WITHOUT_CLUSTER
def test_errors_do_not_contain_json_keys(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"user": 1, "item": "a", "S3CR3T": 5}\n')
    for where in ("nope = ", "nope(item)", "item.nope = 1"):
        with pytest.raises(InputError) as caught:
            engine(Resources()).check(task(path, where=where))
        assert "S3CR3T" not in str(caught.value)
    embedded, spark = "len([1, 5]) = 2", "size(filter(array(1, 5), y -> y > 3)) = 1"
    assert histogram(engine, task(path, where=spark if is_spark(engine) else embedded)) == {"a": 1}


@QUICK_ON_DUCKDB
def test_a_quoted_row_across_the_parts_of_a_large_csv_changes_no_other_row(
    engine: Factory, tmp_path: Path
) -> None:
    """A reader that begins in the middle of a file would read lines of one user's text as rows of others."""
    before = b"".join(b"u%d,i%d,%s\n" % (i, i % 3, b"a" * 4000) for i in range(1990))
    after = b"".join(b"v%d,i0,%s\n" % (i, b"a" * 4000) for i in range(900))
    odd = b'z,q,"' + b'""' * 400_000 + b'\nf,FAKE,1\n"\n'
    counts = []
    for number, row in enumerate((b"", odd)):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(b"user,item,pad\n" + before + row + after)
        if number and is_spark(engine):  # where each line is a row
            with pytest.raises(InputError, match="a line break in a quoted value"):
                histogram(engine, task(path, max_items_per_user=1))
        else:
            counts.append(histogram(engine, task(path, max_items_per_user=1)))
    assert counts[0] == {"i0": 664 + 900, "i1": 663, "i2": 663}
    assert is_spark(engine) or counts[1] in (counts[0], {**counts[0], "q": 1})
