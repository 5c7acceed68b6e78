"""`--encoding`, `--delimiter` and `--decimal`: CSV files as other programs write them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import dphist
from dphist.certificate.request import Column
from dphist.counting.duckdb import DuckDBEngine
from dphist.counting.encodings import codec_of
from dphist.counting.sql import number
from dphist.counting.task import Choice, Events, Task
from dphist.errors import InputError, InvalidParameter
from release_commands import command

BUDGET: dict[str, Any] = {"epsilon": 1, "delta": 1e-6}
ITEMS = ["Käse", "Brötchen", "5 €, groß", 'ein "Ei"']


def counts(path: Path, **options: Any) -> Counter[str]:
    """The true number of users of each item."""
    events = Events(str(path), "kunde", (Column("artikel", "artikel"),), **options)
    with DuckDBEngine().count(Task(events, Choice(bytes(32)), ordered=True)) as counted:
        rows = [row for batch in counted.batches() for row in batch.to_pylist()]
    return Counter({values[0]: values[1] for values in (tuple(row.values()) for row in rows)})


def text_of(rows: list[tuple[str, str]], separator: str = ";") -> str:
    quoted = [separator.join(f'"{cell.replace(chr(34), chr(34) * 2)}"' for cell in row) for row in rows]
    return "\r\n".join([f"kunde{separator}artikel", *quoted, ""])


ROWS = [(f"Kunde {user}", item) for user in range(20) for item in ITEMS[: user % 4 + 1]]
TRUE = Counter(item for _, item in ROWS)


@pytest.mark.parametrize("encoding", ["utf-8", "windows-1252", "cp1252", "iso-8859-15", "utf-16", "UTF-16LE"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
def test_the_encoding_is_given(tmp_path: Path, encoding: str, ending: str) -> None:
    path = tmp_path / f"log{ending}"
    raw = text_of(ROWS).encode(encoding)
    path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    assert counts(path, encoding=encoding) == TRUE


def test_files_of_one_encoding_in_folders_with_keys(tmp_path: Path) -> None:
    for day in ("a", "b"):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "log.csv").write_bytes(f"kunde;artikel\nJürgen {day};Käse\n".encode("latin-1"))
    assert counts(tmp_path, encoding="latin-1") == {"Käse": 2}
    assert counts(tmp_path, encoding="latin-1", where="day = 'a'") == {"Käse": 1}


def test_what_is_no_character_costs_its_own_row_only(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(b"kunde;artikel\n1;K\xe4se\n2;K\x81se\n3;K\xe4se\n")  # 81 is not used in windows-1252
    assert counts(path, encoding="windows-1252") == {"Käse": 2}
    lone = "1;Käse\n2;K?se\n3;Käse\n".encode("utf-16-le").replace(b"?\x00", b"\x00\xd8")
    path.write_bytes("kunde;artikel\n".encode("utf-16") + lone)
    assert counts(path, encoding="utf-16") == {"Käse": 2}


def test_utf_16_that_is_shifted_by_a_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("kunde;artikel\n1;Tee\n".encode("utf-16") + b"2" + "\n3;Tee\n".encode("utf-16-le"))
    with pytest.raises(InputError, match="odd number of bytes") as caught:
        counts(path, encoding="utf-16")
    assert str(path) in str(caught.value)


def test_quotes_are_checked_in_the_text_not_in_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes('kunde;artikel\n1;"Tee\n2;Käse\n'.encode("utf-16"))
    with pytest.raises(InputError, match="misplaced or not closed") as caught:
        counts(path, encoding="utf-16")
    assert repr(str(path)) in str(caught.value)
    # U+220A has the bytes of a quote and a line break.
    path.write_bytes("kunde;artikel\n1;\u220a\n2;\u220a\n".encode("utf-16"))
    assert counts(path, encoding="utf-16") == {"\u220a": 2}


def test_no_copy_is_left(tmp_path: Path) -> None:
    path, folder = tmp_path / "log.csv", tmp_path / "work"
    folder.mkdir()
    path.write_bytes(text_of(ROWS).encode("utf-16"))
    dphist.release(
        path, user="kunde", item="artikel", encoding="utf-16", temp_folder=folder, max_items_per_user=4, **BUDGET
    )
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize(
    "encoding",
    ["utf-7", "iso-2022-jp", "gbk", "shift_jis", "cp037", "unicode_escape", "rot13", "hex", "no\0", "x"],
)
def test_encodings_in_which_a_row_can_change_the_next(encoding: str) -> None:
    with pytest.raises(InvalidParameter, match="encoding must be utf-8"):
        codec_of(encoding)


def test_the_separator_is_given(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("kunde|artikel|a,b,c,d,e\n1|Tee|x\n")
    assert counts(path, delimiter="|") == {"Tee": 1}
    with pytest.raises(InputError, match="no column 'kunde'"):
        counts(path)
    path.write_text("kunde:artikel\n1:Tee\n")
    assert counts(path, delimiter=":") == {"Tee": 1}


@pytest.mark.parametrize("delimiter", ["", "ab", "a", "1", " ", '"', "'", "\n", "\r", ".", "-", "+", "é"])
def test_separators_that_cannot_be(delimiter: str) -> None:
    with pytest.raises(InvalidParameter, match="delimiter must be"):
        dphist.release("none.csv", user="u", item="i", delimiter=delimiter, **BUDGET)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12,5", 12.5), ("1.234,56", 1234.56), ("1.234", 1234.0), ("-1.234.567,8", -1234567.8), ("+3", 3.0),
        (",5", 0.5), ("5,", 5.0), (" 7,25 ", 7.25), ("1,5e3", 1500.0), ("12345,6", 12345.6),
        ("12.5", None), ("1.23,4", None), ("1,234.56", None), ("1.2345", None), ("1,2,3", None), (".5", None),
        ("1,234,567", None), ("", None), (",", None), ("1 234,5", None), ("1.234,56 €", None), ("nan", None),
    ],
)  # fmt: skip
def test_numbers_with_a_decimal_comma(text: str, value: float | None) -> None:
    parsed = number("x", "VARCHAR", "x", ",")
    assert duckdb.execute(f"SELECT {parsed} FROM (SELECT ?::VARCHAR AS x)", [text]).fetchall() == [(value,)]


def test_sums_with_a_decimal_comma(tmp_path: Path) -> None:
    rows = [(f"{user}", "Tee", f"1.{user % 1000:03d},5") for user in range(2000)]
    path = tmp_path / "log.csv"
    path.write_text("kunde;artikel;betrag\n" + "".join(f"{';'.join(row)}\n" for row in rows))
    true = sum(float(amount.replace(".", "").replace(",", ".")) for _, _, amount in rows)
    asked: dict[str, Any] = {"user": "kunde", "item": "artikel", "sum": "betrag:0:3000", "seed": 1, **BUDGET}
    after = dphist.release(path, decimal=",", **asked)
    assert after.added["betrag_sum"][0] == pytest.approx(true, rel=0.1)
    # 1.234,5 is not a number with a decimal point, and adds nothing.
    assert abs(dphist.release(path, **asked).added["betrag_sum"][0]) < 0.1 * true
    frame = pd.read_csv(path, sep=";", dtype=str)
    # In memory, one value that is not a number would make text of all the others.
    with pytest.raises(InputError, match="decimal is for CSV and TSV files, not for data in memory"):
        dphist.release(frame, decimal=",", **asked)


def test_the_certificate_records_how_the_file_was_read(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_bytes(text_of([(str(u), "Käse") for u in range(900)]).encode("utf-16"))
    flags = ["--user", "kunde", "--item", "artikel", "--epsilon", "1", "--delta", "1e-6", "-o", "out.csv"]
    reading = ["--encoding", "utf-16", "--delimiter", ";", "--decimal", ","]
    done = command(tmp_path, "release", "log.csv", *flags, *reading)
    assert done.code == 0, done.err
    request = json.loads((tmp_path / "out.csv.certificate.json").read_text())["request"]
    assert (request["encoding"], request["delimiter"], request["decimal"]) == ("utf-16", ";", ",")
    assert dphist.verify(tmp_path / "out.csv").verified
    # The same columns are suggested if flags are missing.
    done = command(tmp_path, "release", "log.csv", "--encoding", "utf-16")
    assert "Columns of log.csv: kunde, artikel" in done.err
    done = command(tmp_path, "release", "log.csv", *flags, "--force")
    assert "--encoding" in done.err


@pytest.mark.parametrize("option", ["encoding", "delimiter", "decimal"])
def test_spark_refuses(option: str) -> None:
    given: dict[str, Any] = {option: {"encoding": "latin-1", "delimiter": ";", "decimal": ","}[option]}
    with pytest.raises(InvalidParameter, match=f"{option} is for the engine duckdb"):
        dphist.release("none.csv", user="u", item="i", engine="spark", **given, **BUDGET)


@pytest.mark.parametrize("option", ["encoding", "delimiter"])
def test_other_formats_refuse(tmp_path: Path, option: str) -> None:
    frame = pd.DataFrame({"u": ["1"], "i": ["Tee"]})
    frame.to_parquet(tmp_path / "log.parquet")
    (tmp_path / "log.jsonl").write_text('{"u": 1, "i": 2}\n')
    duckdb.connect(str(tmp_path / "log.duckdb")).execute("CREATE TABLE t AS SELECT 1 AS u, 2 AS i")
    given: dict[str, Any] = {option: "ascii" if option == "encoding" else ";"}
    for source in (frame, tmp_path / "log.parquet", tmp_path / "log.jsonl", tmp_path / "log.duckdb"):
        with pytest.raises(InputError, match=f"{option} is for CSV and TSV files"):
            dphist.release(source, user="u", item="i", **given, **BUDGET)


def test_simulate_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "public.csv"
    path.write_bytes(text_of(ROWS, "|").encode("latin-1", "replace"))
    asked: dict[str, Any] = {"user": "kunde", "item": "artikel", "encoding": "latin-1", "delimiter": "|"}
    assert dphist.simulate(path, limits=[2], tops=[], **asked, **BUDGET).population.items == 4
