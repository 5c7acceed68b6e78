"""For tests of reports: releases of every kind, a parser of pages, and the command."""

from __future__ import annotations

import base64
import io
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import dphist
from dphist.cli import main
from dphist.report import facts
from dphist.report.charts import Chart
from dphist.report.facts import Facts, gather_facts
from dphist.report.render import render
from exports import certificate_of, export
from release_data import events, resealed

COUNTS = {f"item {place}": 2000 - 90 * place for place in range(20)}
# Items that a careless reader would interpret.
STRANGE = (
    "<script>window.hacked = 1</script>", "</script><img src=x onerror=window.hacked=2>", 'say "hi" & \'bye\'',
    "<!--", "]]>", "שלום עולם", "\u202edlrow", "nul\x00and\x1b[31mred", "👩‍👩‍👧 family", "x" * 8_000,
    "line\u2028end\nline", "| a | `b` |", "${title}", "{{ item }}", "javascript:alert(1)",
)  # fmt: skip
# Items that look alike or invisible, and how they are shown; emojis stay as they are.
ALIKE = {
    "a": "a", "a\u200b": r"a\u200b", "a\ufeff": r"a\ufeff", "a\u00ad": r"a\xad", "\U000e0061x": r"\U000e0061x",
    "a\u200db": r"a\u200db", "a\ufe0f": r"a\ufe0f", "a\u00a0b": r"a\xa0b", "a b": "a b", "a  b": "a  b",
    "\u3164": r"\u3164", "\u3000b": '"\u3000b"',
    "": "(empty)", " ": '" "', " a": '" a"', "a ": '"a "', "(missing)": '"(missing)"', "(empty)": '"(empty)"',
    '"(missing)"': '""(missing)""', "👩\u200d👧": "👩\u200d👧", "❤\ufe0f\u200d🔥": "❤\ufe0f\u200d🔥",
}  # fmt: skip
EVIL = "<script>alert('x & y')</script>"
BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}


def released(
    folder: Path, name: str = "out.parquet", counts: dict[Any, int] | None = None, **options: Any
) -> Path:
    dphist.release(events(counts or COUNTS, items_per_user=2), **BUDGET, **options, output=folder / name)
    return folder / name


def sketched(folder: Path) -> Path:
    made = dphist.sketch.build(events(COUNTS), 30, user="user", item="item")
    made.release(dphist.plan(epsilon=1.0, delta=1e-6, top=30)).write(folder / "sketch.csv")
    return folder / "sketch.csv"


def exported(folder: Path) -> Path:
    """A table of a database, with its certificate beside the export."""
    database = released(folder, "out.duckdb", max_items_per_user=2)
    table = export(database, to=folder / "table.parquet")
    certificate_of(database).rename(f"{table}.certificate.json")
    return table


def histogram(folder: Path) -> Path:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=3)
    dphist.release_histogram(list(COUNTS), list(COUNTS.values()), plan).write(folder / "histogram.csv")
    return folder / "histogram.csv"


def public(folder: Path) -> Path:
    items = [*COUNTS, "nobody has this"]
    (folder / "items.csv").write_text("item\n" + "\n".join(items) + "\n")
    return released(folder, "public.csv", items=str(folder / "items.csv"), max_items_per_user=2)


def summed(folder: Path) -> Path:
    table = events(COUNTS, items_per_user=2)
    amounts = pa.array(np.arange(table.num_rows) % 50)
    dphist.release(
        table.append_column("amount", amounts), **BUDGET, max_items_per_user=2, sum=["amount:0:100"],
        mean=["amount:0:100"], output=folder / "sums.parquet",
    )  # fmt: skip
    return folder / "sums.parquet"


def booked(folder: Path) -> Path:
    dphist.ledger.Ledger.init(folder / "budget.ledger", "shop", epsilon=5.0, delta=1e-5)
    return released(folder, "booked.csv", max_items_per_user=2, ledger=folder / "budget.ledger", dataset="shop")


KINDS: dict[str, Callable[[Path], Path]] = {
    "gshm": lambda folder: released(folder, max_items_per_user=8),
    "laplace": lambda folder: released(folder, "out.csv", max_items_per_user=1),
    "csh": lambda folder: released(folder, "out.jsonl", max_nonzero=50, interval=0.9, round=True),
    "top-k": lambda folder: released(folder, "out.arrow", top=10),
    "top-k, independent": lambda folder: released(folder, top=10, offset="independent", standard_error=True),
    "top-k, differences": lambda folder: released(folder, top=10, offset="none"),
    "lower threshold": lambda folder: released(folder, max_items_per_user=2, lower_threshold=10),
    "known-domain": public,
    "rounds": released,
    "sums": summed,
    "booked": booked,
    "sketch": sketched,
    "histogram": histogram,
    "exported": exported,
    "nothing": lambda folder: released(folder, counts={"a": 1, "b": 1}, max_items_per_user=2),
    "nothing in rounds": lambda folder: released(folder, counts={"a": 1, "b": 1}),
}
FOLDER = tempfile.TemporaryDirectory(prefix="dphist-reports-")


@cache
def made_release(name: str) -> Path:
    folder = Path(FOLDER.name) / str(len(list(Path(FOLDER.name).iterdir())))
    folder.mkdir()
    return KINDS[name](folder)


@cache
def made(name: str, *, curve: bool = False) -> tuple[Path, Facts]:
    """A release of a kind and its facts, made once; with all points of the `curve` or only five."""
    path = made_release(name)
    with mock.patch.multiple(facts, _POINTS=41 if curve else 5, _POINTS_SHARED=21 if curve else 5):
        return path, gather_facts(path)


@cache
def report_of(name: str) -> str:
    return render(made(name)[1])


def render_quickly(facts: Facts) -> str:
    """The report with the words of its charts: drawing them takes longer than all the rest."""
    with mock.patch.object(Chart, "svg", lambda chart, **_: f"<svg>{chart.title}: {chart.words}</svg>"):
        return render(facts)


def flat(facts: Facts) -> str:
    """The page without line ends and scripts."""
    return " ".join(render_quickly(facts).partition("<script")[0].split())


def data_of(chart: Chart) -> list[dict[str, Any]]:
    """All rows of data in the definition of a chart."""

    def find(part: Any) -> list[dict[str, Any]]:
        if isinstance(part, dict):
            own = part["values"] if isinstance(part.get("values"), list) and "name" not in part else []
            rows = [row for row in own if isinstance(row, dict)]
            return rows + [row for value in part.values() for row in find(value)]
        return [row for value in part for row in find(value)] if isinstance(part, list) else []

    return find(chart.to_dict())


VOID = {"meta", "input", "br", "img", "link", "hr", "wbr"}


class Page(HTMLParser):
    """Parses a page and checks that its tags are nested."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        assert len(set(self.ids)) == len(self.ids), "ids must be unique"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            kind = self.tags[-1][1].get("type") or "script"
            self.scripts[kind] = self.scripts.get(kind, "") + data

    @property
    def data(self) -> Any:
        return json.loads(self.scripts["application/json"])

    @property
    def download(self) -> str:
        link = next(attributes for tag, attributes in self.tags if attributes.get("id") == "download")
        return base64.b64decode((link["href"] or "").partition(",")[2]).decode()


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(folder: Path, *words: str) -> Done:
    """Run the command in this process, which is quicker."""
    out, err = io.StringIO(), io.StringIO()
    called = mock.patch.object(sys, "argv", ["dphist", *words])
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), called, pytest.raises(SystemExit) as ended:
        main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def forged(path: Path, **changes: Any) -> None:
    certificate = Path(f"{path}.certificate.json")
    document = {**json.loads(certificate.read_text()), **changes}
    certificate.write_text(resealed(document))
