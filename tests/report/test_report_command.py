"""The command `dphist report` and the flag --report: what they write, and what they refuse."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dphist
from dphist.report.writing import is_replaceable
from release_data import events
from report_cases import COUNTS, Page, forged, released, run

pytestmark = pytest.mark.usefixtures("quick_curve")


def test_the_command_in_all_formats(tmp_path: Path) -> None:
    released(tmp_path, max_items_per_user=2)
    shown = run(tmp_path, "report", "out.parquet")
    assert shown.returncode == 0, shown.stderr
    # Results first, then explanations, the proof last.
    texts = ("Margin of error", "item 0", "Who is protected", "ball arithmetic")
    places = [shown.stdout.index(text) for text in texts]
    assert places == sorted(places)
    assert max(map(len, shown.stdout.splitlines())) <= 105
    for name in ("report.html", "report.md", "report.txt"):
        assert run(tmp_path, "report", "out.parquet", "--output", name).returncode == 0
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    again = run(tmp_path, "report", "out.parquet", "--output", "report.html")
    assert again.returncode == 1
    assert "already exists; --force replaces it" in again.stderr
    forced = run(tmp_path, "report", "out.parquet", "--output", "report.html", "--force", "--json")
    data = json.loads(forced.stdout)
    assert data["report"] == "report.html"
    assert data["rows"] == 20
    assert data["delta_certified"] <= 1e-6


@pytest.mark.parametrize("kind", ["svg", pytest.param("png", marks=pytest.mark.slow)])
def test_figures_as_files(kind: str, tmp_path: Path) -> None:
    released(tmp_path, max_nonzero=50)
    words = ["report", "out.parquet", "--output", "r.md", "--figures", "charts", "--figure-format", kind]
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    files = sorted(path.stem for path in (tmp_path / "charts").iterdir())
    assert files == ["counts", "error", "guarantee", "release"]
    text = (tmp_path / "r.md").read_text()
    for name in files:
        assert f"(<charts/{name}.{kind}>)" in text
        content = (tmp_path / "charts" / f"{name}.{kind}").read_bytes()
        assert is_replaceable(tmp_path / "charts" / f"{name}.{kind}")
        if kind == "svg":
            assert ET.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
        else:
            assert content.startswith(b"\x89PNG")
    if kind == "svg":
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


def test_what_is_not_verified_has_no_report(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user=2)
    certificate = Path(f"{path}.certificate.json")
    kept, rows = certificate.read_bytes(), path.read_bytes()
    path.write_bytes(rows.replace(b"item 1", b"item X"))
    with pytest.raises(dphist.NotVerified, match=r"it is not verified: out\.csv does not match the digest"):
        dphist.make_report(path)
    path.write_bytes(rows)
    forged(path, guarantee="Everybody is safe.")
    with pytest.raises(dphist.NotVerified, match="entry 'guarantee' is not that of its plan"):
        dphist.make_report(path)
    certificate.write_bytes(kept[:-40])
    with pytest.raises(dphist.NotVerified, match="not JSON"):
        dphist.make_report(path)
    certificate.unlink()
    done = run(tmp_path, "report", "out.csv", "--output", "report.html", "--figures", "charts")
    assert done.returncode == 1
    assert "there is no certificate" in done.stderr
    assert done.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["out.csv"], "nothing is made"
    gone = run(tmp_path, "report", "missing.csv")
    assert (gone.returncode, "there is no file" in gone.stderr) == (2, True)


def test_a_seed_is_told_and_no_excuse_for_anything_else(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user=2, seed=1)
    text = dphist.make_report(path)
    assert "Do not publish it" in text
    forged(path, counts={})
    with pytest.raises(dphist.NotVerified):
        dphist.make_report(path)


@pytest.mark.slow
def test_a_choice_that_makes_no_sense(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user="auto", seed=1)
    document = json.loads(Path(f"{path}.certificate.json").read_text())
    wrong: list[dict[str, Any]] = [
        {"variance": "1/0"},
        {"caps": 3},
        {"noisy_users": None},
        {"noisy_users": "many"},
    ]
    forgeries = [{"choice": {**document["choice"], **changes}} for changes in wrong]
    for forgery in (*forgeries, {"choice": document["choice"], "caveats": [["all"]]}):
        forged(path, **forgery)
        # Also of a release from a seed the choice is repeated, so that this is no certificate of a release at all.
        told = "cap was not chosen by|cannot be|is not that of its plan"
        with pytest.raises(dphist.NotVerified, match=told):
            dphist.make_report(path)


def test_bad_parameters(tmp_path: Path) -> None:
    path = released(tmp_path, max_items_per_user=2)
    with pytest.raises(dphist.InvalidParameter, match="format must be 'html' or 'markdown' or 'text', not 'pdf'"):
        dphist.make_report(path, "pdf")  # type: ignore[arg-type]
    assert run(tmp_path, "report", "out.parquet", "--output", "report.pdf").returncode == 2
    assert run(tmp_path, "report", "out.parquet", "--output", "no/report.html").returncode == 1
    (tmp_path / "file").touch()
    assert run(tmp_path, "report", "out.parquet", "--figures", "file").returncode == 1
    assert sorted(os.listdir(tmp_path)) == ["file", "out.parquet", "out.parquet.certificate.json"]
