"""`dphist check`: the mistakes that a release reads without a word, before and after they are fixed."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import dphist
from dphist.counting.lines import Lines, scan_lines
from dphist.errors import InputError, InvalidParameter
from dphist.simulation.check import NOTICE, Check
from release_commands import Done, command

ITEMS = ["Käse", "Brötchen", "Tee", "Öl", "Reis"]
USERS = 400


def rows(amount: str = "12,5", day: str = "2026-01-31") -> list[tuple[str, ...]]:
    draw = random.Random(3)
    return [(f"Kunde {draw.randrange(USERS)}", draw.choice(ITEMS), amount, day) for _ in range(2000)]


def write(path: Path, lines: Sequence[tuple[str, ...]], encoding: str = "utf-8", separator: str = ";") -> Path:
    text = "\n".join(separator.join(row) for row in [("kunde", "artikel", "betrag", "tag"), *lines])
    path.write_bytes(f"{text}\n".encode(encoding))
    return path


def check(path: object, **options: Any) -> Check:
    return dphist.check(path, **{"user": "kunde", "item": "artikel", **options})


def actions(found: Check) -> list[str]:
    return [finding.about for finding in found.findings if finding.action]


def run(folder: Path, *words: str) -> Done:
    return command(folder, "check", "log.csv", "--user", "kunde", "--item", "artikel", *words)


# Before and after.


@pytest.mark.parametrize("amount", ["12,5", "1.234,56", "-3,25", "1.234.567,8"])
def test_german_decimals(tmp_path: Path, amount: str) -> None:
    path = write(tmp_path / "log.csv", rows(amount))
    before = check(path, sum="betrag:-2000000:2000000")
    assert actions(before) == ["numbers"]
    assert f"2,000 of 2,000 values of 'betrag' are not numbers and add nothing ('{amount}' in line 2)" in str(
        before.findings[0].text
    )
    assert before.findings[0].advice == "Give --decimal ,."
    after = check(path, sum="betrag:-2000000:2000000", decimal=",")
    assert after.ok
    assert after.inspection.content is not None
    assert after.inspection.content.numbers[0].invalid == 0


def test_decimals_of_another_kind(tmp_path: Path) -> None:
    def found(amounts: list[str], **options: Any) -> Check:
        lines = [(user, item, amounts[k % len(amounts)], day) for k, (user, item, _, day) in enumerate(rows())]
        return check(write(tmp_path / "log.csv", lines), sum="betrag:0:20000", **options)

    assert found(["12.5", "7"]).ok
    english = found(["1,234.50", "12.5"]).findings[0]
    assert "replace(betrag, ',', '') AS betrag" in english.advice
    assert found(["1,234", "12.5"]).findings[0].advice.startswith("Remove the commas between thousands")
    assert found(["12,5", "7.25"]).findings[0].advice == (
        "Give --decimal ,. 1,000 others have a decimal point: write all alike."
    )
    assert found(["12.5"], decimal=",").findings[0].advice == "Leave --decimal out."
    unit = found(["12 EUR", "7"]).findings[0]
    assert unit.action
    assert "1,000 of 2,000" in unit.text
    missing = found(["n/a", "7", "", "3"])
    assert missing.ok
    assert (
        "500 of 1,500 values of 'betrag' are not numbers and add nothing ('n/a' in line 2)"
        in missing.findings[0].text
    )
    assert found(["n/a"]).findings[0].advice == "Is it the right column?"
    assert not found(["1.234"]).findings[0].action
    assert "--decimal ," in found(["1.234"]).findings[0].advice


@pytest.mark.parametrize(
    ("encoding", "advice"),
    [("latin-1", "latin-1"), ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le"), ("cp850", "cp850")],
)
def test_another_encoding(tmp_path: Path, encoding: str, advice: str) -> None:
    lines = [*rows("12"), ("Kunde 1", "Grün", "1", "2026-01-31")]
    path = write(tmp_path / "log.csv", lines, encoding)
    before = check(path)
    assert actions(before) == ["encoding"]
    assert f"Give --encoding {advice}" in before.findings[0].advice
    after = check(path, encoding=advice)
    assert after.ok
    assert after.inspection.rows == len(lines)
    assert after.inspection.content is not None
    assert after.inspection.content.items == len(ITEMS) + 1


def test_windows_characters(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", [*rows("12"), ("Kunde 1", "5 € Gutschein", "1", "")], "windows-1252")
    assert "Give --encoding windows-1252" in check(path).findings[0].advice
    assert check(path, encoding="windows-1252").ok


def test_how_latin_1_looks(tmp_path: Path) -> None:
    lines = [("Kunde 1", "Tee", "1", ""), ("Kunde 2", "Käse", "1", ""), ("Kunde 1", "Öl", "1", "")]
    found = check(write(tmp_path / "log.csv", lines, "latin-1")).findings[0]
    assert found.text == "2 lines not in utf-8 (lines 3, 4): 2 rows skipped."
    assert found.advice == "Give --encoding latin-1: then line 3 has 'Käse'."
    # In a column that is not read it does no harm.
    unread = check(tmp_path / "log.csv", item="betrag")
    assert unread.ok
    assert "0 rows skipped" in unread.findings[0].text


def test_a_header_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("käufer;ware\n1;Tee\n1;Käse\n2;Tee\n".encode("latin-1"))
    before = check(path, user="käufer", item="ware")
    assert "the file is refused" in before.findings[0].text
    assert "--encoding latin-1" in before.findings[0].advice
    assert check(path, user="käufer", item="ware", encoding="latin-1").ok


def test_the_wrong_encoding_is_given(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", rows("12"))
    assert check(path, encoding="latin-1").findings[0].advice == "Leave --encoding out."
    assert check(path, encoding="utf-16").findings[0].advice == "Leave --encoding out."
    assert check(path, decimal=",").findings == ()


def test_an_open_quote_that_swallows_rows(tmp_path: Path) -> None:
    lines = rows("12")
    lines[5] = ("Kunde 5", '"Tee', "12", "2026-01-31")
    lines[9] = ("Kunde 9", 'Öl"', "12", "2026-01-31")
    path = write(tmp_path / "log.csv", lines)
    asked: dict[str, Any] = {"user": "kunde", "item": "artikel", "epsilon": 1, "delta": 1e-6}
    dphist.release(path, **asked)  # says nothing
    before = check(path)
    assert actions(before) == ["quotes"]
    assert (
        "4 lines between a quote and the next look like rows, but are read as one value (line 7-11)"
        in before.findings[0].text
    )
    assert before.inspection.rows == 2000 - 4
    assert check(write(path, rows("12"))).ok


def test_a_quote_that_is_never_closed(tmp_path: Path) -> None:
    lines = rows("12")
    lines[5] = ("Kunde 5", '"Tee', "12", "2026-01-31")
    path = write(tmp_path / "log.csv", lines)
    before = check(path)
    assert actions(before) == ["quotes"]
    assert "not closed (line 7): the file is refused" in before.findings[0].text
    assert "misplaced or not closed" in before.inspection.refused


def test_values_with_line_breaks_are_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = ["kunde;artikel;betrag;tag", '1;"ein\nlanger; schöner\n""Text""";3;x', '1;"a;b";4;""', "1;Rohr;1;z"]
    path.write_text("\n".join([*lines, "2;Tee;1;y", ""]))
    assert check(path).findings == ()
    found = scan_lines([str(path)], "utf-8", ";", {str(path): 4})
    assert (found.rows, found.misplaced.number, found.swallowed.number) == (4, 0, 0)


@pytest.mark.parametrize(
    ("days", "forms"),
    [
        (["2026-01-31", "31.01.2026"], "1,000 like 2026-01-31 and 1,000 like 31.01.2026"),
        (["2026-01-31 10:00", "31.1.26"], "1,000 like 2026-01-31 and 1,000 like 31.01.2026"),
        (["31/01/2026", "01/31/2026"], "1,000 like 31/01/2026 and 1,000 like 01/31/2026"),
        (["2026-01-31", "20260131"], "1,000 like 2026-01-31 and 1,000 like 20260131"),
    ],
)
def test_dates_in_two_formats(tmp_path: Path, days: list[str], forms: str) -> None:
    lines = [(*row[:3], days[k % 2]) for k, row in enumerate(rows("12"))]
    path = write(tmp_path / "log.csv", lines)
    asked: list[dict[str, Any]] = [{"item": "tag"}, {"item": "monat=upper(tag)"}, {"where": "tag > '2'"}]
    for options in asked:
        before = check(path, **options)
        assert actions(before) == ["dates"]
        assert forms in before.findings[0].text
    assert check(path).ok  # in a column that is not used
    one = write(path, [(*row[:3], days[0]) for row in rows("12")])
    assert check(one, item="tag").ok


def test_numbers_are_no_dates(tmp_path: Path) -> None:
    days = ["20260131", "7", "2026-01-31"]
    lines = [(*row[:3], days[k % 3]) for k, row in enumerate(rows("12"))]
    assert check(write(tmp_path / "log.csv", lines), item="tag").ok


def test_the_user_column(tmp_path: Path) -> None:
    lines = rows("12")
    constant = check(write(tmp_path / "log.csv", [("x", *row[1:]) for row in lines]))
    assert actions(constant) == ["user"]
    assert "the same value in all rows" in constant.findings[0].text
    unique = check(write(tmp_path / "log.csv", [(str(k), *row[1:]) for k, row in enumerate(lines)]))
    assert actions(unique) == ["user"]
    assert "different in every row" in unique.findings[0].text
    # Perhaps it is different because the other rows of each user are lost.
    lines = [(str(k // 2), "Käse" if k % 2 else "Tee", "1", "x") for k in range(2000)]
    assert actions(check(write(tmp_path / "log.csv", lines, "latin-1"))) == ["encoding"]
    lines = rows("12")
    missing = check(
        write(tmp_path / "log.csv", [("" if k % 3 else row[0], *row[1:]) for k, row in enumerate(lines)])
    )
    assert actions(missing) == ["user"]
    assert "1,333 of 2,000 rows have no user in 'kunde'" in missing.findings[0].text


def test_items_that_are_alike_are_a_note(tmp_path: Path) -> None:
    lines = [
        (user, [item, item.upper(), f"{item} "][k % 3], *rest) for k, (user, item, *rest) in enumerate(rows())
    ]
    found = check(write(tmp_path / "log.csv", lines))
    assert found.ok
    assert "5 groups of items that differ only in case or spaces" in found.findings[0].text
    assert "('BRÖTCHEN', 'Brötchen', 'Brötchen '; 'KÄSE'," in found.findings[0].text
    assert check(tmp_path / "log.csv", item="artikel=lower(trim(artikel))").findings == ()


def test_sums_that_are_all_clamped(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", rows("1250"))
    found = check(path, sum="betrag:0:50")
    assert actions(found) == ["bounds"]
    assert found.findings[0].text == (
        "100% of the sums of 'betrag' of one user and item are beyond 0:50 and clamped."
    )
    assert check(path, sum="betrag:0:500000").ok
    assert check(path, mean="betrag:1300:500000").findings[0].about == "bounds"


def test_rows_that_cannot_be_read(tmp_path: Path) -> None:
    lines = [row[:2] if k % 500 == 3 else row for k, row in enumerate(rows("12"))]
    found = check(write(tmp_path / "log.csv", lines))
    assert found.ok
    assert found.findings[0].text == (
        "4 rows with fewer columns than the header, skipped (lines 5, 505, 1005, 1505)."
    )
    assert found.inspection.rows == 1996
    lines = [(*row, "", "") if k % 2 else row for k, row in enumerate(rows("12"))]
    assert check(write(tmp_path / "log.csv", lines)).findings == ()
    comma = check(write(tmp_path / "log.csv", rows("12,5"), separator=","))
    assert actions(comma) == ["columns"]
    assert "2,000 rows with more columns than the header (lines 2, 3, 4, 5, 6, ...)" in comma.findings[0].text
    (tmp_path / "log.csv").write_text('kunde;artikel;betrag\n1;"a;b"\n2;"a";1\n"1";"b";"1"\n1;"a;b";1\n')
    short = check(tmp_path / "log.csv")
    assert short.inspection.lines is not None
    assert (short.inspection.lines.too_few.first, short.inspection.rows) == (["2"], 3)
    (tmp_path / "log.jsonl").write_text(
        '{"kunde": 1, "artikel": "a"}\n{"kunde": 2\n\n[1]\n{"kunde": 2, "artikel": 3}\n'
    )
    assert "2 lines not in JSON, skipped (lines 2, 4)" in check(tmp_path / "log.jsonl").findings[0].text


def test_no_row_is_left(tmp_path: Path) -> None:
    path = write(tmp_path / "log.csv", rows("12"))
    found = check(path, where="artikel = 'Kaffee'")
    assert actions(found) == ["rows"]
    assert "No row satisfies the condition" in found.findings[0].text


def test_long_values_are_missing(tmp_path: Path) -> None:
    lines = [*rows("12"), ("Kunde 1", "x" * 9000, "1", "")]
    found = check(write(tmp_path / "log.csv", lines))
    assert found.ok
    assert found.findings[0].text == "1 value of 'artikel' with more than 8,192 bytes, counted as missing."
    assert "artikel: 9,000 bytes; 1 of more than 8,192 are missing" in str(found)


# What it shows.


def test_true_numbers(tmp_path: Path) -> None:
    lines = [*rows("12"), ("", "Tee", "1", ""), ("Kunde 1", "", "1", "")]
    shown = check(write(tmp_path / "log.csv", lines), where="betrag <> '7'", sum="betrag:0:500").to_dict()
    frame = pd.DataFrame(rows("12"), columns=["kunde", "artikel", "betrag", "tag"])
    per_user = frame.groupby("kunde")["artikel"].nunique()
    assert shown["rows"] == {
        "read": 2002, "matching": 2002, "without_user": 1, "without_item": 1, "users": len(per_user), "items": 5,
    }  # fmt: skip
    assert shown["items_per_user"]["most"] == per_user.max()
    assert shown["items_per_user"]["quantiles"]["0.5"] == per_user.quantile(0.5, interpolation="higher")
    assert shown["reading"]["columns"][0] == {"name": "kunde", "type": "text"}
    assert (shown["reading"]["delimiter"], shown["reading"]["encoding"]) == (";", "utf-8")
    assert shown["prediction"]["items"] == pytest.approx(5, abs=0.5)
    assert (shown["private"], shown["notice"], shown["ok"]) == (False, NOTICE, True)


def test_users_with_more_items_than_count() -> None:
    frame = pd.DataFrame(
        {"kunde": ["a"] * 300 + ["b", "c", "d"], "artikel": [*map(str, range(300)), "1", "2", "3"]}
    )
    assert check(frame).to_dict()["items_per_user"] == {
        "quantiles": {"0.5": 1, "0.9": 300, "0.99": 300}, "most": 300, "share_over_256": 0.25,
    }  # fmt: skip


def test_every_kind_of_input(tmp_path: Path) -> None:
    table = pd.DataFrame(rows("12"), columns=["kunde", "artikel", "betrag", "tag"])
    table.to_parquet(tmp_path / "log.parquet")
    table.to_json(tmp_path / "log.jsonl", orient="records", lines=True)
    with duckdb.connect(str(tmp_path / "log.duckdb")) as connection:
        connection.execute(f"CREATE TABLE log AS FROM '{tmp_path / 'log.parquet'}'")
    facts = []
    inputs: list[tuple[object, dict[str, Any]]] = [
        (write(tmp_path / "log.csv", rows("12")), {}), (table, {}), (tmp_path / "log.parquet", {}),
        (tmp_path / "log.jsonl", {}), (tmp_path / "log.duckdb", {"table": "log"}),
    ]  # fmt: skip
    for source, options in inputs:
        shown = check(source, sum="betrag:0:500", **options)
        assert shown.ok
        facts.append((shown.to_dict()["rows"], shown.to_dict()["numbers"]))
    assert all(fact == facts[0] for fact in facts)


def test_what_can_be_read_only_once() -> None:
    import pyarrow as pa

    reader = pa.table(pd.DataFrame(rows("12"), columns=["kunde", "artikel", "betrag", "tag"])).to_reader()
    assert check(reader, sum="betrag:0:500").ok


# Not private.


def test_the_text_is_marked_in_its_first_and_last_line(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", rows())
    before = {path.name for path in tmp_path.iterdir()}
    done = run(tmp_path, "--sum", "betrag:0:500")
    assert (done.code, done.err) == (1, "")
    lines = done.out.splitlines()
    assert lines[0] == lines[-1] == NOTICE
    assert NOTICE.startswith("NOT PRIVATE")
    assert "1. Fix: 2,000 of 2,000 values of 'betrag'" in done.out
    assert {path.name for path in tmp_path.iterdir()} == before
    done = run(tmp_path, "--sum", "betrag:0:500", "--decimal", ",", "--json")
    data = json.loads(done.out)
    assert (done.code, data["private"], data["notice"], data["findings"]) == (0, False, NOTICE, [])
    assert NOTICE in repr(check(tmp_path / "log.csv"))
    assert "Tee" not in repr(check(tmp_path / "log.csv"))


def test_it_writes_no_file(tmp_path: Path) -> None:
    shown = command(tmp_path, "check", "--help").out
    assert "--output" not in shown
    assert "--ledger" not in shown
    with pytest.raises(InvalidParameter, match="check has no 'output'"):
        check("log.csv", output="x.csv")
    assert not [name for name in dir(Check) if re.search("write|save", name)]


def test_errors(tmp_path: Path) -> None:
    write(tmp_path / "log.csv", rows())
    done = run(tmp_path, "--item", "nichts")
    assert done.code == 2
    assert "no column 'nichts'" in done.err
    assert command(tmp_path, "check", "--user", "u", "--item", "i").code == 2
    with pytest.raises(InvalidParameter, match="give the column of the item"):
        dphist.check(tmp_path / "log.csv", user="kunde")
    with pytest.raises(InputError, match="does not exist"):
        check(tmp_path / "none.csv")


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = write(tmp_path / "log.csv", rows()).read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    flags = ["--user", "kunde", "--item", "artikel", "--input-format", "csv", "--decimal", ","]
    assert command(tmp_path, "check", "-", *flags, "--sum", "betrag:0:500").code == 0


def test_lines_of_several_files(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        write(tmp_path / name, [("1", "Käse", "1", "x"), ("2", "Tee")], "latin-1")
    found = check([str(tmp_path / "a.csv"), str(tmp_path / "b.csv")])
    assert "(lines a.csv:2, b.csv:2)" in found.findings[0].text
    assert isinstance(found.inspection.lines, Lines)
    assert found.inspection.lines.too_few.first == ["a.csv:3", "b.csv:3"]
