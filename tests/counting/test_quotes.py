"""One user's row of a CSV file does not change how the rows of others are read, or the file is refused."""

from __future__ import annotations

import gzip
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from dphist.counting import quotes
from dphist.counting.duckdb import DuckDBEngine
from dphist.errors import InputError
from engine_cases import histogram, task

# Without their first character the users would be one.
OTHERS = [b"1s,tea", b'2s,"tea"', b"3s,tea", b'4s,"tea"']


def write_rows(path: Path, row: bytes, end: bytes = b"\n") -> Path:
    text = b"user,item" + end + row + end + b"".join(other + end for other in OTHERS)
    path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_a_quoted_value_larger_than_the_buffer_is_refused(tmp_path: Path, name: str) -> None:
    path = write_rows(tmp_path / name, b'big,"' + (b"x" * 78 + b"\n") * (900_000) + b'"')
    with pytest.raises(
        InputError, match="a row with quotes is longer than 16 MB, so its rows cannot be told apart"
    ):
        histogram(DuckDBEngine, task(path))


def test_a_long_quoted_value_drops_itself_alone(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "x.csv", b'big,"' + (b"x" * 78 + b"\n") * 60_000 + b'"')
    assert histogram(DuckDBEngine, task(path)) == {"tea": 4}


@pytest.mark.parametrize("before", [0, 25, pytest.param(31, marks=pytest.mark.slow)])
def test_a_quoted_value_at_the_end_of_the_buffer_changes_no_other(tmp_path: Path, before: int) -> None:
    """DuckDB continues a row in its next buffer of 32 MB; 40 MB after 28 MB of rows are refused."""
    path = tmp_path / "x.csv"
    rows = b"".join(b"%05d,tea\n" % n for n in range(100_000)) * before
    long = b'big,"' + (b"x" * 78 + b"\n") * 180_000 + b'"\n'
    path.write_bytes(b"user,item\n" + rows + long + b"last,tea\n" + long + b"end,milk\n")
    assert histogram(DuckDBEngine, task(path)) == {"tea": 1 + (100_000 if before else 0), "milk": 1}
    path.write_bytes(
        b"user,item\n" + rows + long.replace(b'"\n', b"\n" + b"x" * (40 << 20) + b'"\n') + b"last,tea\n"
    )
    with pytest.raises(InputError, match="longer than 16 MB"):
        histogram(DuckDBEngine, task(path))


@pytest.mark.parametrize("gap", [b"\n", b"\r\n", b"\r", b"\n\r"])
def test_empty_lines_do_not_remove_the_row_after_them(tmp_path: Path, gap: bytes) -> None:
    """DuckDB counts them towards the length of that row, which it skips from 2 MB."""
    path = write_rows(tmp_path / "x.csv", gap * ((3 << 20) // len(gap)))
    with pytest.raises(InputError, match="it has 32 KB of empty lines or more in succession"):
        histogram(DuckDBEngine, task(path))
    path = write_rows(tmp_path / "x.csv", gap * ((30 << 10) // len(gap)))
    assert histogram(DuckDBEngine, task(path)) == {"tea": 4}


@pytest.mark.parametrize("quoted", [b"%b", b'"%b"', b'a"%b'])
def test_empty_lines_do_not_matter_to_long_rows(tmp_path: Path, quoted: bytes) -> None:
    """A row is read with and without empty lines before it, or the file is refused."""
    path = tmp_path / "x.csv"
    outcomes = []
    for size in (1 << 20, quotes.SKIPPED - quotes.EMPTY - 20, quotes.SKIPPED - 1000, quotes.SKIPPED - 10, 3 << 20):
        for gap in (0, 2000, 30_000):
            row = b"\n" * gap + b"long,milk," + quoted % (b"x" * size)
            path.write_bytes(b"user,item,more\n1,tea,\n" + row + b"\n2,tea,\n")
            try:
                outcomes.append(histogram(DuckDBEngine, task(path)))
            except InputError as error:
                outcomes.append({str(error).partition(": ")[2].partition(",")[0]: 0})
    refused = {"a row has nearly the 2 MB from which rows are skipped": 0}
    expected = [{"tea": 2, "milk": 1}, {"tea": 2, "milk": 1}, refused, refused, {"tea": 2}]
    assert outcomes == [outcome for outcome in expected for _ in range(3)]


def test_a_json_line_does_not_change_others(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    others = b"".join(b'{"user": %d, "item": "tea"}\n' % user for user in range(4))
    near = b'{"user": "long", "item": "milk", "more": "%b"}\n' % (b"x" * (quotes.SKIPPED - 1000))
    rows = [
        b"x" * (40 << 20), b'{"user": "' + b"x" * (40 << 20), b"\n" * (3 << 20), b"\r\n" * 5000, b"\0" * (3 << 20),
        b"\x01" * 5000, b"\xff" * (3 << 20), b'"', b"{", b'{"user": 1, "item": "', b"\xef\xbb\xbf", near,
        b"\n" * 1500 + near, b"\r\n" * 1500 + near,
    ]  # fmt: skip
    for row in rows:
        for text in (b"{}\n" + row + b"\n" + others, others + row):
            path.write_bytes(text)
            assert histogram(DuckDBEngine, task(path)) == {"tea": 4}, row[:20]


@pytest.mark.parametrize("name", ["x.CSV.GZ", "x.csv.Gz"])
def test_the_checked_text_is_the_one_that_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"user,item\n1,tea\n") + gzip.compress(b"2,tea\n"))
    assert histogram(DuckDBEngine, task(path)) == {"tea": 2}
    path.write_bytes(gzip.compress(b"user,item\n1,tea\n") + gzip.compress(b'2,"tea\n3,tea\n'))
    with pytest.raises(InputError, match="has quotes that are misplaced or not closed"):
        histogram(DuckDBEngine, task(path))


@pytest.mark.parametrize(
    "row", [b'a,"tea', b'a,""tea"', b'a, "tea', b'a,"x"tea"', b'"a,b', b'a, ","', b'a,"x\ny",b"c', b'a,"x\ny"z,"'],
)  # fmt: skip
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_quote_that_could_swallow_rows_is_refused(tmp_path: Path, row: bytes, end: bytes) -> None:
    path = write_rows(tmp_path / "x.csv", row, end)
    with pytest.raises(InputError, match="has quotes that are misplaced or not closed"):
        histogram(DuckDBEngine, task(path))
    DuckDBEngine().check(task(path))  # reads no events


@pytest.mark.parametrize("end", [pytest.param(b"\n", marks=pytest.mark.slow), b"\r\n", b"\r"])
def test_no_accepted_row_changes_others(tmp_path: Path, end: bytes) -> None:
    # All rows of up to three characters, and some longer ones.
    rows = [bytes(row) for n in range(1, 4) for row in product(b'"a, \n\r', repeat=n)]
    rows += [b'a"5,x', b'a,"x" ', b'a,"x\r\ny"', b'a,"x\n"', b"a,x\r", b'\r,"\r"', b'\r,","', b'\n"" ', b"a\0,x"]
    accepted = 0
    for row in rows:
        path = write_rows(tmp_path / "x.csv", row, end)
        try:
            quotes.check_quotes([str(path)], ",")
        except InputError:
            continue
        accepted += 1
        found = histogram(DuckDBEngine, task(path))
        assert found.get("tea") == 4, row
    assert accepted > 100


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_blocks_do_not_change_the_answer(size: int) -> None:
    for row in product(b'"a,\n', repeat=6):
        text = b"user,item\n" + bytes(row)
        blocks = [text[k : k + size] for k in range(0, len(text), size)]
        for check in (quotes.has_strict_quotes, quotes.has_quotes_within_lines):
            assert check(iter(blocks), b",") == check(iter([text]), b","), row


def test_a_long_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"user,item," + b"x" * (2 << 20) + b"\n", 1))
    with pytest.raises(InputError, match=r"the header line of the file .* is longer than 1 MB"):
        DuckDBEngine().columns(task(path).events)


READ = """
import sys, pathlib
sys.path[:0] = sys.argv[3:]
from engine_cases import histogram, task
from dphist.counting.duckdb import DuckDBEngine
from dphist.errors import InputError
path = pathlib.Path(sys.argv[1])
whole = path.read_bytes()
with DuckDBEngine() as engine:
    for number in range(int(sys.argv[2])):
        # The numbers that a reader takes for sizes and places, at every part of the file in turn.
        damaged = bytearray(whole)
        place = number * 7919 % len(whole)
        change = (b"\\x80", b"\\xff", bytes(8), b"\\xff" * 4 + b"\\x7f", b"\\0\\0\\0\\x80", None)[number % 6]
        if change is None:
            del damaged[place : place + 16]
        else:
            damaged[place : place + len(change)] = change
        path.write_bytes(damaged)
        for item in ("item", "list", "view"):
            try:
                histogram(lambda *_: engine, task(path, items=item))
            except InputError as error:
                assert "\\n" not in str(error)
"""


@pytest.mark.parametrize(
    ("kind", "packing", "many"),
    [
        ("file", None, 120),
        ("file", "zstd", 40),
        *(
            pytest.param(kind, packing, 600, marks=pytest.mark.slow)
            for kind in ("file", "stream")
            for packing in (None, "zstd", "lz4")
        ),
    ],
)
def test_damaged_arrow_files_do_not_crash(
    tmp_path: Path, kind: str, packing: Literal["lz4", "zstd"] | None, many: int
) -> None:
    """In a process of its own, because a crash would end the tests."""
    table = pa.table(
        {
            "user": [f"u{n}" for n in range(60)],
            "item": pa.array(["tea", "milk", None] * 20).dictionary_encode(),
            "list": pa.array([["a", "b"], [], None] * 20),
            "view": pa.array(["longer than twelve bytes", "b", None] * 20, pa.string_view()),
        }
    )
    path = tmp_path / "x.arrow"
    options = pa.ipc.IpcWriteOptions(compression=packing)
    new = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=30)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(many), *sys.path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_name_that_is_not_utf8_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    table = pa.table({"user": [1], "item": [2], "other": [3]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(path.read_bytes().replace(b"other", b"oth\xff\xff"))
    with pytest.raises(InputError, match="it is damaged"):
        DuckDBEngine().check(task(path))
