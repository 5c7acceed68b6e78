"""Releases of every kind are read back as they were written, and every change to them is noticed."""

from __future__ import annotations

import csv
import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dphist
from dphist.aliases import ArrowArray
from dphist.certificate.reading import Readback, read_release
from dphist.certificate.text import certificate_text
from dphist.errors import InputError, InvalidParameter, OutputError
from dphist.outputs.target import target_of
from dphist.outputs.write import check_target, write_release
from exports import certificate_of, read_back
from release_commands import BUDGET, command
from release_data import events
from scheduling import crossed

FILES = [
    "counts.parquet", "counts.csv", "counts.tsv", "counts.jsonl", "counts.arrow", "counts.csv.gz",
    "counts.jsonl.gz",
]  # fmt: skip
QUICK_FILES = [pytest.param(name, marks=() if name in FILES[:2] else pytest.mark.slow) for name in FILES]
BASES = ["counts.duckdb", "counts.sqlite"]
PLACES = [*FILES, *BASES]
DOCUMENT: dict[str, Any] = {
    "epsilon": 0.35,
    "delta": 1e-300,
    "note": 'é "quoted"\n',
    "nested": {"b": [1, None], "a": True},
}
TEXTS = [
    'quo"te, comma', "line\nbreak\r\n", "", "日本 \U0001f600 \u2028", "007", "null", None, "\\N'; DROP TABLE x;--",
]  # fmt: skip
WRONG: list[Any] = [None, True, 3, 8.0, "x", [1], [[]], {}, {"a": 1}]
NAMES = ["plain", 'quo"te, comma', "日本", "select", "a\nb", "document", "'; DROP TABLE x;--"]


def rich_table() -> pa.Table:
    n = len(TEXTS)
    pad: list[None] = [None] * (n - 2)
    columns: dict[str, ArrowArray] = {
        "text": pa.array(TEXTS),
        "int": pa.array([2**63 - 1, -(2**63), *pad], pa.int64()),
        "small": pa.array([-128, 127, *pad], pa.int8()),
        "unsigned": pa.array([2**64 - 1, 0, *pad], pa.uint64()),
        "float": pa.array([0.1, 1e300, 5e-324, float("inf"), float("-inf"), 1 / 3, None, -3.0]),
        "single": pa.array([0.1, -1e30, *pad], pa.float32()),
        "bool": pa.array([True, False, *pad]),
        "date": pa.array([date(2024, 2, 29), date(1, 1, 1), *pad]),
        "seconds": pa.array([datetime(2024, 2, 29, 23, 59, 59), datetime(1969, 1, 1), *pad], pa.timestamp("s")),
        "micros": pa.array([datetime(2024, 2, 29, 1, 2, 3, 456789), datetime(1969, 1, 1), *pad]),
        "nanos": pa.array([1, -1, *pad], pa.timestamp("ns")),
        "zone": pa.array([datetime(2024, 7, 1, 12), None, *pad], pa.timestamp("us", "Europe/Berlin")),
        "time": pa.array([time(1, 2, 3, 4), time(0), *pad]),
        "decimal": pa.array([Decimal("1.20"), Decimal("-0.0000000001"), *pad], pa.decimal128(38, 10)),
        "bytes": pa.array([b"\x00\xff'", b"", *pad]),
        "empty": pa.nulls(n),
        "count": pa.array([12.5, 11.0, 10.25, 9.0, 8.0, 7.0, 6.0, 5.0]),
    }
    return pa.table(columns)


def comparable(table: pa.Table) -> pa.Table:
    """Sorted, because a database has no order, and without the column of nulls, which loses its type."""
    table = table.drop_columns(["empty"]) if "empty" in table.column_names else table
    return table.sort_by([("count", "descending")]).replace_schema_metadata(None)


def written(folder: Path, name: str, table: pa.Table, force: bool = False) -> Readback:
    target = target_of(folder / name)
    check_target(target, force=force, columns=table.column_names)
    done = write_release(table, DOCUMENT, target, force=force)
    back = read_back(folder / name)
    assert back.document is not None
    assert back.document["output"]["sha256"] == done.digest
    return back


@pytest.mark.parametrize("name", PLACES)
def test_every_type_is_read_back(tmp_path: Path, name: str) -> None:
    table = rich_table()
    before = dict(DOCUMENT)
    back = written(tmp_path, name, table)
    assert before == DOCUMENT, "the caller's document is left alone"
    assert back.problems == ()
    assert back.digest_matches
    assert back.document is not None
    assert {key: back.document[key] for key in DOCUMENT} == DOCUMENT
    assert back.document["output"]["columns"] == table.column_names
    assert back.document["output"]["rows"] == 8
    assert back.table is not None
    for wanted, found in zip(comparable(table).columns, comparable(back.table).columns, strict=True):
        assert found.cast(wanted.type).equals(wanted), wanted.type
        assert found.type == wanted.type


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("name", PLACES)
def test_an_empty_release_is_read_back(tmp_path: Path, name: str) -> None:
    table = rich_table().slice(0, 0)
    back = written(tmp_path, name, table)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.num_rows == 0
    assert back.table.column_names == table.column_names


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("name", PLACES)
def test_unsupported_types_become_text_and_columns_have_any_name(tmp_path: Path, name: str) -> None:
    table = pa.table(
        {
            "duration": pa.array([timedelta(microseconds=-1), None]),
            "large": pa.array([b"\x01", None], pa.large_binary()),
            "big": pa.array([Decimal(10) ** 60, None], pa.decimal256(70, 2)),
            "nan": pa.array([float("nan"), -0.0]),
            **{column: [1, 2] for column in NAMES},
            "count": [2.0, 1.0],
        }
    )
    target = target_of(tmp_path / name, table='t"; DROP TABLE x;-- é' if name in BASES else None)
    write_release(table, DOCUMENT, target, force=False)
    back = read_back(tmp_path / name, target.table)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.column_names == table.column_names
    assert sum(1 for value in back.table["nan"].to_pylist() if value != value) == 1
    if not name.endswith(("parquet", "arrow")):
        texts = [value for value in back.table["duration"].to_pylist() if value is not None]
        assert texts == ["-PT0.000001S"]


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("name", FILES)
def test_one_changed_byte_of_the_data(tmp_path: Path, name: str) -> None:
    written(tmp_path, name, rich_table())
    raw = (tmp_path / name).read_bytes()
    for place in range(0, len(raw), max(1, len(raw) // 60)):
        (tmp_path / name).write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        back = read_release(str(tmp_path / name))
        assert not back.digest_matches
        assert f"{name} does not match the digest" in str(back.problems)
    (tmp_path / name).write_bytes(b"")
    assert any("does not match the digest" in problem for problem in read_release(str(tmp_path / name)).problems)


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("name", QUICK_FILES)
def test_changed_missing_and_invalid_certificates(tmp_path: Path, name: str) -> None:
    written(tmp_path, name, rich_table())
    path = tmp_path / f"{name}.certificate.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("0.35", "0.25"), encoding="utf-8")
    back = read_release(str(tmp_path / name))
    assert back.digest_matches
    assert "does not match its own digest" in back.problems[0]
    for wrong in ["", "{", "[]", "1", '{"format": 3}', "{}", "NaN", '{"a": NaN}', "[" * 100_000, "\udc80", "null"]:
        path.write_bytes(wrong.encode("utf-8", "surrogatepass"))
        assert len(read_release(str(tmp_path / name)).problems) == 1, wrong[:9]
    document = json.loads(text)
    for key in ["name", "kind", "sha256", "columns", "types", "rows"]:
        for value in WRONG:
            path.write_text(certificate_text({**document, "output": {**document["output"], key: value}}))
            # 8.0 has the canonical form of 8, but is not a number of rows.
            own = "its own digest" if value != document["output"][key] else "the digest"
            assert f"does not match {own}" in read_release(str(tmp_path / name)).problems[0]
    for value in WRONG:
        path.write_text(json.dumps({**document, "output": value}))
        assert read_release(str(tmp_path / name)).problems
    path.unlink()
    back = read_release(str(tmp_path / name))
    assert f"there is no certificate {path.name}" in back.problems[0]
    assert back.table is None, "there is nothing to compare it with"
    path.write_text(text, encoding="utf-8")
    assert read_release(str(tmp_path / name)).problems == ()
    path.rename(tmp_path / "moved.json")
    assert read_release(str(tmp_path / name), certificate=str(tmp_path / "moved.json")).problems == ()


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("name", QUICK_FILES)
def test_swapped_files(tmp_path: Path, name: str) -> None:
    written(tmp_path, name, rich_table())
    written(tmp_path, f"other-{name}", rich_table().slice(1))
    for first, second in [(name, "aside"), (f"other-{name}", name), ("aside", f"other-{name}")]:
        (tmp_path / first).rename(tmp_path / second)
    for file in (name, f"other-{name}"):
        back = read_release(str(tmp_path / file))
        assert len(back.problems) == 1
        assert back.problems[0].startswith(f"{file} does not match the digest in its certificate")
        assert back.table is None


def run_sql(path: Path, statement: str) -> None:
    if path.suffix == ".duckdb":
        with duckdb.connect(str(path)) as connection:
            connection.execute(statement)
        return
    plain = sqlite3.connect(path)
    plain.execute(statement)
    plain.commit()
    plain.close()


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a release in each kind of database, to copy and change."""
    folder = tmp_path_factory.mktemp("databases")
    for name in BASES:
        assert written(folder, name, rich_table()).problems == ()
    return folder


CHANGES = [
    ("DELETE FROM release WHERE count = 5", "rows"),
    ("UPDATE release SET count = 5.5 WHERE count = 5", "was changed"),
    ("UPDATE release SET bool = NULL", "was changed"),
    ("ALTER TABLE release RENAME COLUMN text TO texts", "cannot be read|was changed"),
    ("INSERT INTO release SELECT * FROM release WHERE count = 5", "rows"),
]


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize(("change", "name"), crossed(CHANGES, BASES))
def test_a_changed_table(databases: Path, tmp_path: Path, change: tuple[str, str], name: str) -> None:
    statement, problem = change
    for file in databases.glob(f"{name}*"):
        shutil.copy(file, tmp_path)
    run_sql(tmp_path / name, statement)
    (found,) = read_back(tmp_path / name).problems
    assert re.search("was changed" if problem == "rows" and name == "counts.sqlite" else problem, found)


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("name", BASES)
def test_the_order_of_rows_does_not_matter(databases: Path, tmp_path: Path, name: str) -> None:
    for file in databases.glob(f"{name}*"):
        shutil.copy(file, tmp_path)
    run_sql(tmp_path / name, "CREATE TABLE x AS SELECT * FROM release ORDER BY count")
    run_sql(tmp_path / name, "DELETE FROM release")
    run_sql(tmp_path / name, "INSERT INTO release SELECT * FROM x")
    assert read_back(tmp_path / name).problems == ()


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize(
    ("column", "value"),
    crossed(["int", "float", "bool", "date", "bytes", "text"], ["'secret'", "2.5", "NULL", "x'ff'", "3"]),
)
def test_values_of_another_type_in_sqlite(databases: Path, tmp_path: Path, column: str, value: str) -> None:
    for file in databases.glob("counts.sqlite*"):
        shutil.copy(file, tmp_path)
    run_sql(tmp_path / "counts.sqlite", f"UPDATE release SET {column} = {value}")
    problems = read_back(tmp_path / "counts.sqlite").problems
    assert problems
    assert "secret" not in str(problems)


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("to", ["csv", "tsv", "jsonl", "parquet", "csv.gz"])
def test_every_export_of_duckdb_is_verified(databases: Path, tmp_path: Path, to: str) -> None:
    """DuckDB writes bytes in CSV as escapes, which no other program reads: export them to Parquet."""
    table = rich_table() if to == "parquet" else rich_table().drop_columns(["bytes"])
    assert written(tmp_path, "own.duckdb", table).problems == ()
    form = {"tsv": "(FORMAT csv, DELIMITER '\t', HEADER)", "jsonl": "(FORMAT json)"}.get(to, "")
    with duckdb.connect(str(tmp_path / "own.duckdb")) as connection:
        connection.execute(f"COPY (FROM release ORDER BY count) TO '{tmp_path}/out.{to}' {form}")
    back = read_release(tmp_path / f"out.{to}", certificate_of(tmp_path / "own.duckdb"))
    assert back.problems == ()
    assert back.table is not None
    for wanted, found in zip(comparable(table).columns, comparable(back.table).columns, strict=True):
        assert found.equals(wanted), wanted.type


SHELL = "sqlite3 -header -csv own.sqlite {!r} > out.csv"


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="there is no shell of SQLite")
@pytest.mark.usefixtures("decoded_here")
def test_the_shell_of_sqlite_needs_to_be_asked_for_all_digits(tmp_path: Path) -> None:
    table = rich_table().drop_columns(["bytes", "float", "single"])
    assert written(tmp_path, "own.sqlite", table).problems == ()

    def problems(select: str) -> tuple[str, ...]:
        subprocess.run(SHELL.format(select), shell=True, check=True, cwd=tmp_path)
        return read_release(tmp_path / "out.csv", certificate_of(tmp_path / "own.sqlite")).problems

    assert problems("SELECT * FROM release") == ()
    written(tmp_path, "own.sqlite", pa.table({"item": ["a", None], "mean": [1 / 3, 2 / 3]}), force=True)
    assert problems('SELECT item, printf("%!.17g", mean) AS mean FROM release') == ()
    # Versions before 3.53 print 15 digits.
    version = tuple(map(int, subprocess.check_output(["sqlite3", "--version"], text=True).split()[0].split(".")))
    if version < (3, 51):
        assert "the export has lost digits" in problems("SELECT * FROM release")[0]


@pytest.mark.parametrize("name", BASES)
def test_a_database_is_not_read(databases: Path, name: str) -> None:
    with pytest.raises(InputError, match=rf"is a database: .* --certificate {name}\.TABLE\.certificate\.json"):
        read_release(databases / name)


@pytest.mark.parametrize("name", BASES)
def test_files_that_are_not_databases(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something else entirely, and long enough" * 500)
    with pytest.raises(OutputError, match=r"is not a \w+ database"):
        check_target(target_of(tmp_path / name), force=True)
    with pytest.raises(OutputError, match=r"is not a \w+ database"):
        write_release(rich_table(), DOCUMENT, target_of(tmp_path / name), force=True)


@pytest.mark.usefixtures("decoded_here")
def test_nothing_to_read(tmp_path: Path) -> None:
    for name in PLACES:
        with pytest.raises(InputError, match="there is no file"):
            read_release(str(tmp_path / name))


@pytest.mark.usefixtures("decoded_here")
def test_a_format_that_the_name_does_not_show(tmp_path: Path) -> None:
    for file_format in ("parquet", "csv"):
        path = tmp_path / f"{file_format}.out"
        write_release(rich_table(), DOCUMENT, target_of(path, file_format=file_format), force=False)
        assert read_release(str(path)).problems == ()
    os.unlink(tmp_path / "csv.out.certificate.json")
    assert len(read_release(str(tmp_path / "csv.out")).problems) == 2


def test_a_document_that_json_cannot_represent(tmp_path: Path) -> None:
    for value in (float("nan"), {1, 2}, object(), 2**60, "\udc80"):
        with pytest.raises(InvalidParameter, match="JSON"):
            write_release(rich_table(), {"x": value}, target_of(tmp_path / "a.csv"), force=False)
    assert not list(tmp_path.iterdir())


# Text that a spreadsheet would read as a formula, in CSV files: escaped on request, and read back exactly.

STARTS = ("=", "+", "-", "@", "\t", "\r")
FORMULAS = [
    *map("".join, itertools.product(("", "'", "''"), STARTS, ("", "1+1", "cmd|"))),
    "tea", "", None, "'", "''tea", "a=b", "'tea", " =1", "\n=1",
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_escaped_formulas_are_read_back_exactly(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    rows = len(FORMULAS)
    table = pa.table(
        {
            "=item": pa.array(FORMULAS, kind),
            "bytes": pa.array([b"\xfb\xef\xbe"] * rows),
            "price": pa.array([Decimal("-1.50")] * rows),
            "change": pa.array([-7] * rows),
            "day": pa.array([date(2026, 1, 2)] * rows),
            "count": pa.array([-2.5] * rows),
        }
    )

    def cells(escape: bool) -> list[list[str]]:
        write_release(table, {}, target_of(tmp_path / name), force=True, escape_formulas=escape)
        back = read_release(tmp_path / name)
        assert back.problems == ()
        assert back.table is not None
        assert back.table.to_pydict() == table.to_pydict()
        with (tmp_path / name).open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file, delimiter="\t" if name == "a.tsv" else ","))

    head, *lines = cells(escape=True)
    assert head[0] == "'=item"
    for line in lines:
        assert not line[0].startswith(STARTS)
        assert not line[1].startswith(STARTS)
        # Numbers stay numbers.
        assert line[2:] == ["-1.50", "-7", "2026-01-02", "-2.5"]
    assert cells(escape=False)[0][0] == "=item"


def test_escape_formulas_by_command_and_in_python(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(events({"=HYPERLINK(1)": 900, "tea": 700}), tmp_path / "events.parquet")
    words = ["release", "events.parquet", *BUDGET, "--max-items-per-user", "2", "--escape-formulas"]
    assert command(tmp_path, *words, "--output", "out.csv").code == 0
    assert '"\'=HYPERLINK(1)"' in (tmp_path / "out.csv").read_text()
    assert dphist.verify(tmp_path / "out.csv").verified
    assert command(tmp_path, "report", "out.csv", "--json").code == 0
    for output in ("out.parquet", "out.jsonl", "out.sqlite"):
        done = command(tmp_path, *words, "--output", output)
        assert done.code == 2
        assert "--escape-formulas is for CSV and TSV files" in done.err
    plan = dphist.plan(epsilon=1, delta=1e-7, max_items_per_user=2)
    release = dphist.release_histogram(["=A1"], [900], plan)
    release.write(tmp_path / "again.tsv", escape_formulas=True)
    assert dphist.verify(tmp_path / "again.tsv").verified
    with pytest.raises(InvalidParameter, match="CSV and TSV"):
        release.write(tmp_path / "again.arrow", escape_formulas=True)
