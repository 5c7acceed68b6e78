"""A report never takes the place of what it is about, and whatever happens to it, the release stays."""

from __future__ import annotations

import errno
import json
import os
from contextlib import chdir
from pathlib import Path
from typing import Any

import pyarrow.csv as pa_csv
import pytest

import dphist
from dphist.errors import OutputError
from dphist.outputs.overwrite import Kept, refuse_overwriting, same_file
from dphist.publishing import write_files
from dphist.report import facts, writing
from dphist.report.render import format_of
from release_data import events
from report_cases import COUNTS, released, run

pytestmark = pytest.mark.usefixtures("quick_curve")
FLAGS = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Everything that a release can rest on, under names that a report could have, and other names for it."""
    for name in ("events.html", "more/one.html"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pa_csv.write_csv(events(COUNTS, items_per_user=2), tmp_path / name)
    (tmp_path / "items.txt").write_text("item\n" + "\n".join(COUNTS) + "\n")
    dphist.ledger.Ledger.init(tmp_path / "budget.md", "shop", epsilon=5.0, delta=1e-5)
    (tmp_path / "request.toml").write_text('input = "events.html"\ninput-format = "csv"\n')
    (tmp_path / "out.txt").write_text("an older release")
    (tmp_path / "out.txt.certificate.json").write_text("its certificate")
    os.link(tmp_path / "request.toml", tmp_path / "hard.html")
    (tmp_path / "soft.html").symlink_to("out.txt.certificate.json")
    (tmp_path / "folder").symlink_to("more")
    return tmp_path


BASE = [*FLAGS, "--output", "out.txt", "--output-format", "csv", "--input-format", "csv", "--force"]
FROM_EVENTS = ["release", "events.html", *BASE]


@pytest.mark.parametrize(
    ("words", "report"),
    [
        (FROM_EVENTS, "out.txt"),
        (FROM_EVENTS, "more/../OUT.txt"),
        (FROM_EVENTS, "soft.html"),
        (FROM_EVENTS, "events.html"),
        (["release", "*.html", *BASE], "events.html"),
        (["release", "*.html", *BASE], "not-there-yet.html"),
        (["release", "events.html", "--items", "items.txt", *BASE], "items.txt"),
        ([*FROM_EVENTS, "--ledger", "budget.md", "--dataset", "shop"], "budget.md"),
        (["release", "request.toml", *BASE], "hard.html"),
        (["release", "more", *BASE], "more/report.html"),
        (["release", "more", *BASE], "folder/one.html"),
        (["release", "events.html", *FLAGS, "--engine", "spark", "--output", "parts/", "--force"], "parts/r.html"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_release_is_not_begun_whose_report_would_destroy(place: Path, words: list[str], report: str) -> None:
    if report.startswith("parts"):
        (place / "parts").mkdir()
    before = contents(place)
    done = run(place, *words, "--report", report)
    assert done.returncode == 2, done.stderr
    assert f"{report} cannot be written: it " in done.stderr
    assert contents(place) == before


def test_a_release_does_not_take_the_place_of_its_input(place: Path) -> None:
    before = contents(place)
    os.link(place / "more" / "one.html", place / "same.csv")
    for words in (
        ["events.html", "--output", "events.html", "--output-format", "csv"],
        ["more/*.html", "--output", "same.csv"],
        ["more/one.html", "--items", "items.txt", "--output", "items.txt", "--output-format", "csv"],
    ):
        done = run(place, "release", *words, *FLAGS, "--input-format", "csv", "--force")
        assert done.returncode == 2, done.stderr
        assert "cannot write the release to" in done.stderr
    (place / "same.csv").unlink()
    assert contents(place) == before


def test_a_file_that_is_open_is_the_same_by_its_number(tmp_path: Path) -> None:
    with (tmp_path / "out.csv").open("w") as file:
        assert same_file(f"/proc/self/fd/{file.fileno()}", str(tmp_path / "out.csv"))
    assert not same_file(str(tmp_path / "a"), str(tmp_path / "b"))
    with chdir(tmp_path):
        refuse_overwriting("report.html", [Kept("the release", "out.csv"), Kept("the input", "logs/")])


def test_a_report_does_not_take_the_place_of_its_release(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n" + "\n".join(f"{user},tea" for user in range(900)))
    with chdir(tmp_path):
        dphist.release("log.csv", user="user", item="item", epsilon=1.0, delta=1e-6, max_items_per_user=1,
                       output="out.csv")  # fmt: skip
    os.link(tmp_path / "out.csv", tmp_path / "hard.html")
    Path(tmp_path / "out.csv.certificate.json").rename(tmp_path / "moved.json")
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "counts.svg").symlink_to("../moved.json")
    before = contents(tmp_path)
    asked = ["report", "out.csv", "--certificate", "moved.json", "--format", "text", "--force"]
    for words in (
        ["--output", "out.csv"], ["--output", "hard.html"], ["--output", "moved.json"], ["--output", "log.csv"],
        ["--output", "r.txt", "--figures", "charts"], ["--figures", "charts"],
        ["--output", "figures/counts.svg", "--figures", "figures"],
    ):  # fmt: skip
        (tmp_path / "figures").mkdir(exist_ok=True)
        done = run(tmp_path, *asked, *words)
        assert done.returncode == 2, (words, done.stderr)
        assert contents(tmp_path) == before, words
    assert run(tmp_path, *asked, "--output", "r.txt").returncode == 0


def test_a_report_is_not_put_into_a_released_folder(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "_certificate.json").write_text("{}")
    for words in (["--output", "parts/_r.html"], ["--output", "parts/_certificate.json", "--format", "html"]):
        done = run(tmp_path, "report", "parts", *words, "--force")
        assert done.returncode == 2
        assert os.listdir(tmp_path / "parts") == ["_certificate.json"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), "UnicodeEncodeError"),
        (MemoryError(), "MemoryError"),
        (OutputError("there is no room"), "there is no room"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_report_that_fails_leaves_the_release(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(facts, "facts_of", fails)
    (tmp_path / "log.csv").write_text("user,item\n" + "\n".join(f"{user},tea" for user in range(900)))
    done = run(tmp_path, "release", "log.csv", *FLAGS, "--output", "out.csv", "--report", "r.html", "--json")
    assert done.returncode == 1
    assert "the release was written, but its report was not: " in done.stderr
    assert said in done.stderr
    shown = json.loads(done.stdout)
    assert (shown["output"], shown["report"]) == ("out.csv", None)
    assert sorted(os.listdir(tmp_path)) == ["log.csv", "out.csv", "out.csv.certificate.json"]
    assert dphist.verify(tmp_path / "out.csv").verified


def test_what_cannot_be_read_back_has_no_report(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,tea\n")
    asked = ["release", "log.csv", *FLAGS, "--report", "r.html"]
    for words in (
        ["--engine", "spark", "--output", "hdfs://KEY:SECRET@host/out"], ["--engine", "spark", "--output", "s3a://b/out"],
        ["--engine", "spark", "--master", "spark://host:7077", "--output", "parts/"],
        ["--engine", "spark", "--spark-conf", "spark.master=yarn", "--output", "parts/"],
    ):  # fmt: skip
        done = run(tmp_path, *asked, *words)
        assert done.returncode == 2
        assert "--report has to read the release back" in done.stderr
        assert "SECRET" not in done.stderr
    dry = run(tmp_path, *asked, "--dry-run")
    assert (dry.returncode, dry.stdout) == (2, "")
    assert "--report cannot be used with --dry-run" in dry.stderr
    assert os.listdir(tmp_path) == ["log.csv"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()], ids=["error", "signal"])
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_files_are_replaced_all_or_none(
    error: BaseException, links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name for name in ("a.html", "new.svg", "b.svg")]
    for path in (paths[0], paths[2]):
        path.write_text(f"old {path.name}")
    before, replace = contents(tmp_path), os.replace

    def failing(source: Any, target: Any) -> None:
        if Path(target) == paths[2] and not str(source).endswith("-old"):
            raise error
        replace(source, target)

    def no_link(*_: Any, **__: Any) -> None:
        raise OSError(95, "Operation not supported")

    if not links:
        monkeypatch.setattr(os, "link", no_link)
    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(OutputError if isinstance(error, OSError) else KeyboardInterrupt):
        write_files(dict.fromkeys(paths, (b"new", 0o666)), force=True)
    assert contents(tmp_path) == before
    monkeypatch.setattr(os, "replace", replace)
    write_files(dict.fromkeys(paths, (b"new", 0o666)), force=True)
    assert contents(tmp_path) == {str(path): b"new" for path in sorted(paths)}


def test_one_file_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk without hard links too, where moving the old file away first could lose it."""
    (tmp_path / "a.html").write_text("old")

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", fails)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fails)
        with pytest.raises(OutputError):
            write_files({tmp_path / "a.html": (b"new", 0o666)}, force=True)
    assert contents(tmp_path) == {str(tmp_path / "a.html"): b"old"}
    write_files({tmp_path / "a.html": (b"new", 0o666)}, force=True)
    assert contents(tmp_path) == {str(tmp_path / "a.html"): b"new"}


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "link.html").symlink_to("pipe.html")
    for name in ("pipe.html", "link.html"):
        with pytest.raises(OutputError, match="is not a file"):
            writing.check_place(tmp_path / name, force=True)
    with pytest.raises(OutputError, match="cannot be written"):
        writing.check_place(tmp_path / ("x" * 300 + ".html"), force=True)


def test_the_format_follows_from_the_name_unless_it_is_given(tmp_path: Path) -> None:
    released(tmp_path, "out.csv", max_items_per_user=2)
    assert format_of(Path("r.md")) == "markdown"
    assert run(tmp_path, "report", "out.csv", "--output", "noend").returncode == 2
    assert run(tmp_path, "report", "out.csv", "--output", "noend", "--format", "markdown").returncode == 0
    assert (tmp_path / "noend").read_text().startswith("# Number of")
