"""`dphist report` and --report: what they write, what they refuse, and that they never destroy other files."""

from __future__ import annotations

import errno
import json
import os
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.errors import OutputError
from dphist.outputs.write import ProtectedFile, refuse_overwriting, same_file
from dphist.publishing import write_file
from dphist.report import facts, writing
from release_data import events
from report_cases import COUNTS, Page, forged, released, run

pytestmark = pytest.mark.usefixtures("quick_curve")
FLAGS = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]


def test_the_command(tmp_path: Path) -> None:
    released(tmp_path, max_items_per_user=2)
    bare = run(tmp_path, "report", "out.parquet")
    assert (bare.returncode, bare.stdout) == (2, "")
    assert "--output report.html" in bare.stderr
    shown = run(tmp_path, "report", "out.parquet", "--output", "report.html")
    assert (shown.returncode, shown.stdout) == (0, "Report written to report.html\n"), shown.stderr
    page = (tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>")
    # Results first, then explanations, the proof last.
    body = page[page.index("<body>") :]
    texts = ("Margin of error", "item 0", "Who is protected", "ball arithmetic")
    places = [body.index(text) for text in texts]
    assert places == sorted(places)
    again = run(tmp_path, "report", "out.parquet", "--output", "report.html")
    assert again.returncode == 1
    assert "already exists; --force replaces it" in again.stderr
    forced = run(tmp_path, "report", "out.parquet", "--output", "report.html", "--force", "--json")
    data = json.loads(forced.stdout)
    assert data["report"] == "report.html"
    assert data["rows"] == 20
    assert data["delta_certified"] <= 1e-6


def test_a_release_with_its_report(tmp_path: Path) -> None:
    pq.write_table(events(COUNTS), tmp_path / "events.parquet")
    asked = ["release", "events.parquet", *FLAGS, "--output", "out.parquet"]
    bad = run(tmp_path, *asked, "--report", "report.pdf")
    assert bad.returncode == 2
    assert "the report must end in .html" in bad.stderr
    assert run(tmp_path, *asked, "--report", "nowhere/report.html").returncode == 1
    assert sorted(os.listdir(tmp_path)) == ["events.parquet"], "nothing is written if the report cannot be"
    done = run(tmp_path, *asked, "--report", "report.html", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"] == "report.html"
    page = Page((tmp_path / "report.html").read_text())
    certificate = json.loads((tmp_path / "out.parquet.certificate.json").read_text())
    assert "report" not in certificate["request"]
    assert json.loads(page.download) == certificate
    # An existing report stops the release before it starts.
    again = run(tmp_path, *asked[:-1], "other.parquet", "--report", "report.html")
    assert again.returncode == 1
    assert not (tmp_path / "other.parquet").exists()


def test_a_release_that_is_not_verified_has_no_report(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user=2)
    certificate = Path(f"{path}.certificate.json")
    kept, rows = certificate.read_bytes(), path.read_bytes()
    path.write_bytes(rows.replace(b"item 1", b"item X"))
    with pytest.raises(dphist.NotVerified, match=r"it is not verified: out\.csv .* digest"):
        dphist.make_report(path)
    path.write_bytes(rows)
    forged(path, guarantee="Everybody is safe.")
    with pytest.raises(dphist.NotVerified, match="guarantee"):
        dphist.make_report(path)
    certificate.write_bytes(kept[:-40])
    with pytest.raises(dphist.NotVerified, match="not JSON"):
        dphist.make_report(path)
    certificate.unlink()
    done = run(tmp_path, "report", "out.csv", "--output", "report.html")
    assert done.returncode == 1
    assert "certificate" in done.stderr
    assert done.stdout == ""
    assert sorted(os.listdir(tmp_path)) == ["out.csv"], "nothing is written"
    gone = run(tmp_path, "report", "missing.csv")
    assert (gone.returncode, "missing.csv" in gone.stderr) == (2, True)


def test_a_seeded_release_has_a_report_unless_it_is_forged(tmp_path: Path) -> None:
    path = released(tmp_path, "out.csv", max_items_per_user=2, seed=1)
    text = dphist.make_report(path)
    assert "Do not publish it" in text
    forged(path, counts={})
    with pytest.raises(dphist.NotVerified):
        dphist.make_report(path)


def test_bad_parameters(tmp_path: Path) -> None:
    released(tmp_path, max_items_per_user=2)
    for name in ("report.pdf", "report.md", "report", "s3://bucket/report.html"):
        assert run(tmp_path, "report", "out.parquet", "--output", name).returncode == 2
    assert run(tmp_path, "report", "out.parquet", "--output", "no/report.html").returncode == 1
    assert sorted(os.listdir(tmp_path)) == ["out.parquet", "out.parquet.certificate.json"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """All files that a release can depend on, with names that a report could have, and links to them."""
    for name in ("events.html", "more/one.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pa_csv.write_csv(events(COUNTS, items_per_user=2), tmp_path / name)
    (tmp_path / "items.htm").write_text("item\n" + "\n".join(COUNTS) + "\n")
    dphist.ledger.Ledger.init(tmp_path / "budget.htm", "shop", epsilon=5.0, delta=1e-5)
    (tmp_path / "request.toml").write_text('input = "events.html"\ninput-format = "csv"\n')
    (tmp_path / "out.htm").write_text("an older release")
    (tmp_path / "out.htm.certificate.json").write_text("its certificate")
    os.link(tmp_path / "request.toml", tmp_path / "hard.html")
    (tmp_path / "soft.html").symlink_to("out.htm.certificate.json")
    (tmp_path / "folder").symlink_to("more")
    return tmp_path


BASE = [*FLAGS, "--output", "out.htm", "--output-format", "csv", "--input-format", "csv", "--force"]
FROM_EVENTS = ["release", "events.html", *BASE]


@pytest.mark.parametrize(
    ("words", "report"),
    [
        (FROM_EVENTS, "out.htm"),
        (FROM_EVENTS, "more/../OUT.htm"),
        (FROM_EVENTS, "soft.html"),
        (FROM_EVENTS, "events.html"),
        (["release", "*.html", *BASE], "events.html"),
        (["release", "*.html", *BASE], "not-there-yet.html"),
        (["release", "events.html", "--items", "items.htm", *BASE], "items.htm"),
        ([*FROM_EVENTS, "--ledger", "budget.htm", "--dataset", "shop"], "budget.htm"),
        (["release", "request.toml", *BASE], "hard.html"),
        (["release", "more", *BASE], "more/report.html"),
        (["release", "more", *BASE], "folder/one.html"),
        (["release", "events.html", *FLAGS, "--engine", "spark", "--output", "parts/", "--force"], "parts/r.html"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_report_never_replaces_what_its_release_needs(place: Path, words: list[str], report: str) -> None:
    if report.startswith("parts"):
        (place / "parts").mkdir()
    before = contents(place)
    done = run(place, *words, "--report", report)
    assert done.returncode == 2, done.stderr
    assert Path(report).name in done.stderr
    assert contents(place) == before


def test_a_release_never_replaces_its_input(place: Path) -> None:
    before = contents(place)
    os.link(place / "more" / "one.html", place / "same.csv")
    for words in (
        ["events.html", "--output", "events.html", "--output-format", "csv"],
        ["more/*.html", "--output", "same.csv"],
        ["more/one.html", "--items", "items.htm", "--output", "items.htm", "--output-format", "csv"],
    ):
        done = run(place, "release", *words, *FLAGS, "--input-format", "csv", "--force")
        assert done.returncode == 2, done.stderr
    (place / "same.csv").unlink()
    assert contents(place) == before


def test_an_open_file_is_recognised_by_its_descriptor(tmp_path: Path) -> None:
    with (tmp_path / "out.csv").open("w") as file:
        assert same_file(f"/proc/self/fd/{file.fileno()}", str(tmp_path / "out.csv"))
    assert not same_file(str(tmp_path / "a"), str(tmp_path / "b"))
    with chdir(tmp_path):
        refuse_overwriting(
            "report.html", [ProtectedFile("the release", "out.csv"), ProtectedFile("the input", "logs/")]
        )


def test_a_report_never_replaces_its_release(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n" + "\n".join(f"{user},tea" for user in range(900)))
    with chdir(tmp_path):
        dphist.release("log.csv", user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=1,
                       output="out.csv")  # fmt: skip
    os.link(tmp_path / "out.csv", tmp_path / "hard.html")
    Path(tmp_path / "out.csv.certificate.json").rename(tmp_path / "moved.html")
    (tmp_path / "soft.html").symlink_to("moved.html")
    before = contents(tmp_path)
    asked = ["report", "out.csv", "--certificate", "moved.html", "--force"]
    for name in ("out.csv", "hard.html", "moved.html", "soft.html", "log.csv"):
        done = run(tmp_path, *asked, "--output", name)
        assert done.returncode == 2, (name, done.stderr)
        assert contents(tmp_path) == before, name
    assert run(tmp_path, *asked, "--output", "r.html").returncode == 0


def test_a_report_is_not_written_into_a_released_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_certificate.json").write_text("{}")
    for name in ("parts/_r.html", "parts/_certificate.json"):
        done = run(tmp_path, "report", "parts", "--output", name, "--force")
        assert done.returncode == 2
        assert os.listdir(tmp_path / "parts") == ["_certificate.json"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), "UnicodeEncodeError"),
        (MemoryError(), "MemoryError"),
        (OutputError("there is no room"), "there is no room"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_release_stays_if_its_report_fails(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(facts, "facts_of", fails)
    (tmp_path / "log.csv").write_text("user,item\n" + "\n".join(f"{user},tea" for user in range(900)))
    done = run(tmp_path, "release", "log.csv", *FLAGS, "--output", "out.csv", "--report", "r.html", "--json")
    assert done.returncode == 1
    assert message in done.stderr
    shown = json.loads(done.stdout)
    assert (shown["output"], shown["report"]) == ("out.csv", None)
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "out.csv", "out.csv.certificate.json"]
    assert dphist.verify(tmp_path / "out.csv").verified


def test_releases_that_cannot_be_read_back_have_no_report(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,tea\n")
    asked = ["release", "log.csv", *FLAGS, "--report", "r.html"]
    for words in (
        ["--engine", "spark", "--output", "hdfs://KEY:SECRET@host/out"], ["--engine", "spark", "--output", "s3a://b/out"],
        ["--engine", "spark", "--master", "spark://host:7077", "--output", "parts/"],
        ["--engine", "spark", "--spark-conf", "spark.master=yarn", "--output", "parts/"],
    ):  # fmt: skip
        done = run(tmp_path, *asked, *words)
        assert done.returncode == 2
        assert "--report" in done.stderr
        assert "SECRET" not in done.stderr
    dry = run(tmp_path, *asked, "--dry-run")
    assert (dry.returncode, dry.stdout) == (2, "")
    assert "--dry-run" in dry.stderr
    assert os.listdir(tmp_path) == ["log.csv"]


def test_one_file_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk without hard links too, where moving the old file away first could lose it."""
    (tmp_path / "a.html").write_text("old")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", fails)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fails)
        with pytest.raises(OutputError):
            write_file(tmp_path / "a.html", b"new", force=True)
    assert contents(tmp_path) == {str(tmp_path / "a.html"): b"old"}
    write_file(tmp_path / "a.html", b"new", force=True)
    assert contents(tmp_path) == {str(tmp_path / "a.html"): b"new"}


def test_pipes_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "link.html").symlink_to("pipe.html")
    for name in ("pipe.html", "link.html"):
        with pytest.raises(OutputError, match="is not a file"):
            writing.check_place(tmp_path / name, force=True)
    with pytest.raises(OutputError, match="cannot write"):
        writing.check_place(tmp_path / ("x" * 300 + ".html"), force=True)
