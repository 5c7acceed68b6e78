"""Reports as files: HTML that holds whatever items say, the command, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import xml.etree.ElementTree as ET
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.cli import main
from dphist.outputs.seal import SEAL, facts, sealed, self_digest
from dphist.outputs.spark_folder import CERTIFICATE, whole_digest
from dphist.report import html_rows
from dphist.report.making import checked_format, render, report_facts
from release_data import events
from report_cases import BUDGET, COUNTS, STRANGE, made, released

VOID = {"meta", "input", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """A page whose tags must be in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self.ids: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        assert len(set(self.ids)) == len(self.ids), "an id must be the only one of its kind"

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


def strange(folder: Path, name: str = "out.parquet", **options: Any) -> Path:
    counts = {item: 900 + 10 * place for place, item in enumerate(STRANGE)}
    return released(folder, name, counts, max_items_per_user=2, **options)


@pytest.mark.parametrize("name", ["gshm", "csh", "top-k", "known-domain", "chosen cap", "sums", "nothing"])
def test_the_page_is_well_formed_and_needs_nothing(name: str) -> None:
    path, told = made(name)
    text = render(told, "html")
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in {"link", "iframe", "img", "object", "embed", "form", "base"}
        assert not [key for key in attributes if key.startswith("on") or key in ("src", "style")]
        href = attributes.get("href")
        assert href is None or href.startswith(("#", "data:application/json"))
        if href and href.startswith("#"):
            assert href[1:] in page.ids
    for tag, attributes in page.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert set((attributes["aria-labelledby"] or "").split()) <= set(page.ids)
    assert text.count("<svg") == text.count("<desc")
    assert "http://" not in text
    assert "https://" not in text
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "unsafe" not in (policy or "")
    certificate = Path(f"{path}.certificate.json")
    assert page.download == certificate.read_text(encoding="utf-8")


def test_items_are_text_whatever_they_say(tmp_path: Path) -> None:
    told = report_facts(strange(tmp_path))
    page = Page(render(told, "html"))
    items = page.data["columns"][0]["values"]
    assert set(items) == {item if len(item) <= 300 else item[:300] + "…" for item in STRANGE}
    assert "<" not in page.scripts["application/json"]
    assert "\u2028" not in page.scripts["application/json"]
    assert sum(tag == "script" for tag, _ in page.tags) == 2
    for format in ("text", "markdown"):
        text = render(told, checked_format(format))
        assert not {"\x00", "\x1b", "\u202e", "\u2028"} & set(text)
        assert len(max(text.splitlines(), key=len)) < 1000
    assert r"\<script\>" in text
    assert r"\| a \| \`b\` \|" in text


def test_names_of_columns_and_files_are_text_too(tmp_path: Path) -> None:
    table = events({"a": 900}).rename_columns(["user", "<b>it</b>"])
    pq.write_table(table, tmp_path / "a'\"<i>.parquet")
    dphist.release(
        tmp_path / "a'\"<i>.parquet", user="user", item="<b>it</b>", epsilon=1.0, delta=1e-6, max_items_per_user=1,
        count_name="</th><script>", output=tmp_path / "$(x) out.csv",
    )  # fmt: skip
    text = dphist.make_report(tmp_path / "$(x) out.csv")
    page = Page(text)
    assert not {"b", "i"} & {tag for tag, _ in page.tags}
    assert "dphist verify &#x27;" in text


def test_a_hundred_thousand_rows_stay_below_ten_megabytes(tmp_path: Path) -> None:
    size = 100_000
    names = [f"a query of {n} words, rather long" for n in range(size)]
    counts = np.random.default_rng(2).integers(500, 10**6, size)
    result = dphist.release_histogram(
        pa.table({"item": names, "count": counts}), plan=dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=9)
    )
    text = dphist.make_report(result)
    assert len(text.encode()) < 10_000_000
    page = Page(text)
    assert page.data["rows"] == size == len(page.data["columns"][0]["values"])
    assert text.count("<tr") < 100


def test_more_rows_than_a_page_holds_are_cut_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_rows, "LARGEST", 600)
    path = released(tmp_path, max_items_per_user=2)
    text = dphist.make_report(path)
    page = Page(text)
    shown = page.data["rows"]
    assert 0 < shown < 20
    assert f"This page has the {shown} largest of 20 counts" in text
    assert len(page.scripts["application/json"]) <= 600
    counts = page.data["columns"][1]["values"]
    assert counts == sorted(counts, reverse=True)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(folder: Path, *words: str) -> Done:
    """The command, in this process: it starts quicker."""
    out, err = io.StringIO(), io.StringIO()
    called = mock.patch.object(sys, "argv", ["dphist", *words])
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), called, pytest.raises(SystemExit) as ended:
        main()
    return Done(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def test_the_command_in_all_formats(tmp_path: Path) -> None:
    released(tmp_path, max_items_per_user=2)
    shown = run(tmp_path, "report", "out.parquet")
    assert shown.returncode == 0, shown.stderr
    assert "VERIFIED, PRIVATE" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 105
    for name in ("report.html", "report.md", "report.txt"):
        assert run(tmp_path, "report", "out.parquet", "--output", name).returncode == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    again = run(tmp_path, "report", "out.parquet", "--output", "report.html")
    assert again.returncode == 1
    assert "exists already; --force replaces it" in again.stderr
    forced = run(tmp_path, "report", "out.parquet", "--output", "report.html", "--force", "--json")
    said = json.loads(forced.stdout)
    assert said["report"] == "report.html"
    assert said["rows"] == 20
    assert said["delta_certified"] <= 1e-6


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_figures_as_files(kind: str, tmp_path: Path) -> None:
    released(tmp_path, max_nonzero=50)
    words = ["report", "out.parquet", "--output", "r.md", "--figures", "charts", "--figure-format", kind]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    files = sorted(path.stem for path in (tmp_path / "charts").iterdir())
    assert files == ["error", "guarantee", "noise", "release", "threshold"]
    text = (tmp_path / "r.md").read_text()
    for name in files:
        assert f"(<charts/{name}.{kind}>)" in text
        content = (tmp_path / "charts" / f"{name}.{kind}").read_bytes()
        if kind == "svg":
            assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert content.startswith(b"\x89PNG")
    assert run(tmp_path, *words).returncode == 1


def test_a_release_with_its_report(tmp_path: Path) -> None:
    pq.write_table(events(COUNTS), tmp_path / "events.parquet")
    flags = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]
    asked = ["release", "events.parquet", *flags, "--output", "out.parquet"]
    bad = run(tmp_path, *asked, "--report", "report.pdf")
    assert bad.returncode == 2
    assert "the report must end in .html" in bad.stderr
    assert run(tmp_path, *asked, "--report", "nowhere/report.html").returncode == 1
    assert sorted(os.listdir(tmp_path)) == ["events.parquet"], "nothing is made where the report cannot be"
    done = run(tmp_path, *asked, "--report", "report.html", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == "report.html"
    page = Page((tmp_path / "report.html").read_text())
    certificate = json.loads((tmp_path / "out.parquet.certificate.json").read_text())
    assert "report" not in certificate["request"]
    assert json.loads(page.download) == certificate
    # A report that stands in the way is no reason to release twice.
    again = run(tmp_path, *asked[:-1], "other.parquet", "--report", "report.html")
    assert again.returncode == 1
    assert not (tmp_path / "other.parquet").exists()


def forged(path: Path, **changes: Any) -> None:
    certificate = Path(f"{path}.certificate.json")
    document = {**json.loads(certificate.read_text()), **changes}
    document[SEAL] = self_digest(document)
    certificate.write_text(json.dumps(document))


def test_what_is_not_verified_has_no_report(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user=2)
    certificate = Path(f"{path}.certificate.json")
    kept, rows = certificate.read_bytes(), path.read_bytes()
    path.write_bytes(rows.replace(b"item 1", b"item X"))
    with pytest.raises(dphist.NotVerified, match=r"no report is made of it: out\.csv was changed"):
        dphist.make_report(path)
    path.write_bytes(rows)
    forged(path, guarantee="Everybody is safe.")
    with pytest.raises(dphist.NotVerified, match="sentences are not those of its plan"):
        dphist.make_report(path)
    certificate.write_bytes(kept[:-40])
    with pytest.raises(dphist.NotVerified, match="not JSON"):
        dphist.make_report(path)
    certificate.unlink()
    done = run(tmp_path, "report", "out.csv", "--output", "report.html", "--figures", "charts")
    assert done.returncode == 1
    assert "out.csv is not verified" in done.stderr
    assert "there is no certificate" in done.stderr
    assert done.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["out.csv"], "nothing is made"
    gone = run(tmp_path, "report", "missing.csv")
    assert (gone.returncode, "there is no file" in gone.stderr) == (2, True)


def test_a_seed_is_told_and_no_excuse_for_anything_else(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user=2, seed=1)
    text = dphist.make_report(path)
    assert "Do not publish it" in text
    assert "Verified</span>" not in text
    forged(path, counts={})
    with pytest.raises(dphist.NotVerified):
        dphist.make_report(path)


@pytest.mark.slow
def test_a_choice_that_makes_no_sense(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user="auto", seed=1)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    for changes in ({"variance": "1/0"}, {"caps": 3}, {"noisy_users": None}):
        forged(path, choice={**document["choice"], **changes})
        with pytest.raises(dphist.DphistError, match="cannot be understood"):
            dphist.make_report(path)


def test_bad_parameters(tmp_path: Path) -> None:
    path = released(tmp_path, max_items_per_user=2)
    with pytest.raises(dphist.InvalidParameter, match="must be one of html, markdown, text, not 'pdf'"):
        dphist.make_report(path, "pdf")  # type: ignore[arg-type]
    assert run(tmp_path, "report", "out.parquet", "--output", "report.pdf").returncode == 2
    assert run(tmp_path, "report", "out.parquet", "--output", "no/report.html").returncode == 1
    (tmp_path / "file").touch()
    assert run(tmp_path, "report", "out.parquet", "--figures", "file").returncode == 1
    assert sorted(os.listdir(tmp_path)) == ["file", "out.parquet", "out.parquet.certificate.json"]


def test_a_folder_of_parts(tmp_path: Path) -> None:
    """As Spark writes it: parts in any order, and the certificate inside."""
    result = dphist.release(events(COUNTS, items_per_user=2), **BUDGET, max_items_per_user=8)
    rows, folder = result.to_arrow().replace_schema_metadata(None), tmp_path / "parts"
    folder.mkdir()
    for place, part in enumerate((rows.slice(12), rows.slice(0, 12))):
        pq.write_table(part, folder / f"part-{place}.parquet")
    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    shape = {**facts(rows, "folder", "parts", whole_digest(files)), "files": files}
    (folder / CERTIFICATE).write_text(sealed(result.document(), shape))
    found = report_facts(folder).rows
    assert found.total == 20
    assert list(found.columns[1].values) == sorted(found.columns[1].values, reverse=True)


def test_what_a_guarantee_rests_on_is_said_plainly() -> None:
    """Nobody but who counted knows how many items a user has."""
    for name, said in (("histogram", "no user touches more than 3"), ("csh", "more than 50 items"), ("gshm", "")):
        sentences = [one for one in made(name)[1].promise if "what no proof can show" in one]
        assert len(sentences) == bool(said)
        assert all(said in one for one in sentences)


def test_tables_of_databases(tmp_path: Path) -> None:
    dphist.release(
        events(COUNTS), **BUDGET, max_items_per_user=2, output=tmp_path / "all.duckdb", output_table="mine"
    )
    told = report_facts(tmp_path / "all.duckdb", table="mine")
    assert told.rows.total == 20
    assert told.command.endswith("all.duckdb --table mine")
