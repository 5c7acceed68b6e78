"""Text that a spreadsheet would take for a formula, in CSV files: escaped on demand, and read back exactly."""

from __future__ import annotations

import csv
import itertools
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import dphist
from dphist.errors import InvalidParameter
from dphist.outputs.readback import read_release
from dphist.outputs.target import target_of
from dphist.outputs.write import write_release
from release_commands import BUDGET, command
from release_data import events

STARTS = ("=", "+", "-", "@", "\t", "\r")
TEXTS = [
    *map("".join, itertools.product(("", "'", "''"), STARTS, ("", "1+1", "cmd|"))),
    "tea", "", None, "'", "''tea", "a=b", "'tea", " =1", "\n=1",
]  # fmt: skip


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_every_text_comes_back_and_none_is_a_formula(tmp_path: Path, name: str, kind: pa.DataType) -> None:
    rows = len(TEXTS)
    table = pa.table(
        {
            "=item": pa.array(TEXTS, kind),
            "bytes": pa.array([b"\xfb\xef\xbe"] * rows),
            "price": pa.array([Decimal("-1.50")] * rows),
            "change": pa.array([-7] * rows),
            "day": pa.array([date(2026, 1, 2)] * rows),
            "count": pa.array([-2.5] * rows),
        }
    )
    target = target_of(tmp_path / name)
    write_release(table, {}, target, force=False, escape_formulas=True)
    back = read_release(tmp_path / name)
    assert back.problems == ()
    assert back.table is not None
    assert back.table.to_pydict() == table.to_pydict()
    with (tmp_path / name).open(newline="", encoding="utf-8") as file:
        head, *cells = list(csv.reader(file, delimiter="\t" if name == "a.tsv" else ","))
    assert head[0] == "'=item"
    for row in cells:
        assert not row[0].startswith(STARTS)
        assert not row[1].startswith(STARTS)
        # Numbers stay numbers.
        assert row[2:] == ["-1.50", "-7", "2026-01-02", "-2.5"]
    # Without the option nothing is changed.
    write_release(table, {}, target, force=True)
    assert read_release(tmp_path / name).problems == ()
    with (tmp_path / name).open(newline="", encoding="utf-8") as file:
        assert next(csv.reader(file, delimiter="\t" if name == "a.tsv" else ","))[0] == "=item"


def test_the_command_and_verify(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(events({"=HYPERLINK(1)": 900, "tea": 700}), tmp_path / "events.parquet")
    words = ["release", "events.parquet", *BUDGET, "--max-items-per-user", "2", "--escape-formulas"]
    assert command(tmp_path, *words, "--output", "out.csv").code == 0
    assert '"\'=HYPERLINK(1)"' in (tmp_path / "out.csv").read_text()
    assert dphist.verify(tmp_path / "out.csv").verified
    back = read_release(tmp_path / "out.csv").table
    assert back is not None
    assert set(back["item"].to_pylist()) == {"=HYPERLINK(1)", "tea"}
    assert command(tmp_path, "report", "out.csv").code == 0
    for output in ("out.parquet", "out.jsonl", "out.sqlite"):
        done = command(tmp_path, *words, "--output", output)
        assert done.code == 2
        assert "--escape-formulas is for CSV and TSV files" in done.err
    found = dphist.release(
        tmp_path / "events.parquet", user="user", item="item", epsilon=1, delta=1e-7, max_items_per_user=2
    )
    found.write(tmp_path / "again.tsv", escape_formulas=True)
    assert dphist.verify(tmp_path / "again.tsv").verified
    with pytest.raises(InvalidParameter, match="CSV and TSV"):
        found.write(tmp_path / "again.arrow", escape_formulas=True)
