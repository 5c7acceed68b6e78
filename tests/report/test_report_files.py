"""Reports as files: HTML that holds whatever items say, the command, and what is refused."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.certificate.endings import FOLDER_CERTIFICATE as CERTIFICATE
from dphist.certificate.endings import whole_digest
from dphist.certificate.guarantee import guarantee_facts
from dphist.certificate.sentences import conditions
from dphist.certificate.text import seal
from dphist.report import page as pages
from dphist.report.charts import BLUE, GREEN, GREY, LEAF, ORANGE, PURPLE, VERMILLION
from dphist.report.facts import gather_facts, label_item
from dphist.report.render import render
from dphist.report.words import describe
from exports import certificate_of, export
from release_data import events
from report_cases import ALIKE, BUDGET, COUNTS, STRANGE, Page, made, released, report_of, run

pytestmark = pytest.mark.usefixtures("quick_curve")


def strange(folder: Path, name: str = "out.parquet", **options: Any) -> Path:
    counts = {item: 900 + 10 * place for place, item in enumerate(STRANGE)}
    return released(folder, name, counts, max_items_per_user=2, **options)


@pytest.mark.parametrize(
    "name",
    [
        "gshm",
        "rounds",
        "nothing",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("known-domain", "sums")),
    ],
)
def test_the_page_is_well_formed_and_needs_nothing(name: str) -> None:
    path, text = made(name)[0], report_of(name)
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


def test_items_are_never_markup(tmp_path: Path) -> None:
    facts_of_it = gather_facts(strange(tmp_path))
    page = Page(render(facts_of_it))
    items = page.data["columns"][0]["values"]
    assert set(items) == set(map(label_item, STRANGE))
    assert "<" not in page.scripts["application/json"]
    assert "\u2028" not in page.scripts["application/json"]
    assert sum(tag == "script" for tag, _ in page.tags) == 2


def test_invisible_characters_are_spelled_out() -> None:
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1)
    items = [None, *ALIKE]
    result = dphist.release_histogram(pa.table({"item": items, "count": [900] * len(items)}), plan=plan)
    rows = gather_facts(result).rows
    assert set(rows.columns[0].texts(len(items))) == {"(missing)", *ALIKE.values()}
    assert len(set(ALIKE.values())) == len(ALIKE)
    page = render(gather_facts(result))
    assert Page(page).data["columns"][0]["values"] == list(rows.columns[0].values)
    assert not set("\u200b\ufeff\u00ad\U000e0061\u3164") & set(page)


def test_tables_and_colours_are_accessible() -> None:
    page = Page(report_of("gshm"))
    assert all(attributes.get("scope") == "col" for tag, attributes in page.tags if tag == "th")
    wide = [attributes for _, attributes in page.tags if attributes.get("class") == "wide"]
    assert wide
    assert all(one["tabindex"] == "0" and one["role"] == "region" and one["aria-label"] for one in wide)

    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in (BLUE, GREEN, GREY, LEAF, ORANGE, PURPLE, VERMILLION):
        for paper in ("#ffffff", "#15181c"):
            low, high = sorted((light(colour), light(paper)))
            assert (high + 0.05) / (low + 0.05) >= 3.0, (colour, paper)


def test_names_of_columns_and_files_are_never_markup(tmp_path: Path) -> None:
    table = events({"a": 900}).rename_columns(["user", "<b>it</b>"])
    pq.write_table(table, tmp_path / "a'\"<i>.parquet")
    dphist.release(
        tmp_path / "a'\"<i>.parquet", user="user", item="<b>it</b>", epsilon=1.0, delta=1e-6, max_items_per_user=1,
        count_name="</th><script>", output=tmp_path / "$(x) out.csv",
    )  # fmt: skip
    text = dphist.make_report(tmp_path / "$(x) out.csv")
    page = Page(text)
    assert not {"b", "i"} & {tag for tag, _ in page.tags}
    assert "dphist verify &#39;" in text


def test_twenty_thousand_rows_stay_below_two_megabytes() -> None:
    size = 20_000
    names = [f"a query of {n} words, rather long" for n in range(size)]
    counts = np.random.default_rng(2).integers(500, 10**6, size)
    result = dphist.release_histogram(
        pa.table({"item": names, "count": counts}), plan=dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=9)
    )
    text = dphist.make_report(result)
    assert len(text.encode()) < 2_000_000
    page = Page(text)
    assert page.data["rows"] == size == len(page.data["columns"][0]["values"])
    assert text.count("<tr") < 100


def test_a_page_that_would_be_too_large_is_cut_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LARGEST", 3000)
    counts = {f"item {place:0100}": 2000 - 9 * place for place in range(60)}
    text = dphist.make_report(released(tmp_path, counts=counts, max_items_per_user=2))
    page = Page(text)
    shown = page.data["rows"]
    assert 0 < shown < 60
    assert f"This page has the {shown} largest of 60 counts" in text
    assert len(page.scripts["application/json"]) <= 3000
    numbers = page.data["columns"][1]["values"]
    assert numbers == sorted(numbers, reverse=True)


def test_a_folder_of_parts(tmp_path: Path) -> None:
    """As Spark writes it: parts in any order, and the certificate inside."""
    result = dphist.release(events(COUNTS, items_per_user=2), **BUDGET, max_items_per_user=8)
    rows, folder = result.to_arrow().replace_schema_metadata(None), tmp_path / "parts"
    folder.mkdir()
    for place, part in enumerate((rows.slice(12), rows.slice(0, 12))):
        pq.write_table(part, folder / f"part-{place}.parquet")
    files = {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
    shape: dict[str, Any] = {"name": "parts", "kind": "folder", "sha256": whole_digest(files), "files": files}
    shape |= {"columns": rows.column_names, "rows": rows.num_rows}
    (folder / CERTIFICATE).write_text(seal(result.document(), shape))
    found = gather_facts(folder).rows
    assert found.total == 20
    assert list(found.counts) == sorted(found.counts, reverse=True)


def test_a_report_states_the_conditions_of_its_guarantee() -> None:
    for name, number in (("histogram", 2), ("gshm", 1)):
        facts = made(name)[1]
        sentences = conditions(facts.plan, facts.request, guarantee_facts(facts.plan, facts.request).conditions)
        assert len(sentences) == number
        answers = {one["label"]: one["sentences"] for one in describe(facts)["meaning"]}
        assert set(sentences) <= set(answers["What is not covered"])


@pytest.mark.parametrize("name", ["all.duckdb", "all.sqlite"])
def test_tables_of_databases(tmp_path: Path, name: str) -> None:
    """In memory with the certificate, or exported; a report of the result has the certificate too."""
    path = tmp_path / name
    result = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=2, output=path, output_table="mine")
    certificate = certificate_of(path, "mine")
    in_memory = gather_facts(result, certificate=certificate)
    exported = gather_facts(export(path, "mine"), certificate=certificate)
    for found, file in ((in_memory, "FILE"), (exported, export(path, "mine").name)):
        assert found.rows.total == 20
        assert describe(found)["verify"] == f"dphist verify {file} --certificate {certificate.name}"
        assert found.origin.place == certificate.name
        assert found.origin.certificate == certificate.read_text()
    other = dphist.release(events(COUNTS), **BUDGET, max_items_per_user=2)
    with pytest.raises(dphist.NotVerified, match="does not match the digest"):
        gather_facts(other, certificate=certificate)


def test_a_release_into_a_database_with_its_report(tmp_path: Path) -> None:
    pq.write_table(events(COUNTS), tmp_path / "events.parquet")
    flags = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]
    done = run(tmp_path, "release", "events.parquet", *flags, "-o", "out.sqlite", "--report", "r.html")
    assert done.returncode == 0, done.stderr
    page = Page((tmp_path / "r.html").read_text())
    assert page.download == (tmp_path / "out.sqlite.release.certificate.json").read_text()
