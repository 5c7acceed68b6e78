"""A release never takes the place of what it is made of, and a report never that of anything but a report."""

from __future__ import annotations

import os
import sqlite3
from contextlib import chdir, closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import dphist
from dphist.errors import InvalidParameter
from dphist.outputs.target import target_of
from dphist.outputs.write import ProtectedFile, protected_files, refuse_overwriting, refuse_own_input
from dphist.report.writing import is_replaceable
from report_cases import Done, run

BOUNDS = ["--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]
FLAGS = ["--user", "user", "--item", "item", *BOUNDS, "--force"]
ROWS = "user,item\n" + "".join(f"{user},tea\n" for user in range(900))


def refused(done: Done) -> None:
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "cannot write the release to" in done.stderr


def test_no_file_of_an_input_folder_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "days" / "may").mkdir(parents=True)
    for name in ("days/1.csv", "days/may/2.csv", "days/.note.csv"):
        (tmp_path / name).write_text(ROWS)
    os.link(tmp_path / "days" / "1.csv", tmp_path / "linked.csv")
    for source in ("days", "days/", "days/**/*.csv", str(tmp_path / "days")):
        for output in ("days/1.csv", "days/may/2.csv", "linked.csv"):
            refused(run(tmp_path, "release", source, *FLAGS, "--output", output))
    assert all((tmp_path / name).read_text() == ROWS for name in ("days/1.csv", "days/may/2.csv"))
    # Nor is its certificate, which would be beside it.
    (tmp_path / "days" / "out.csv.certificate.json").write_text(ROWS)
    refused(run(tmp_path, "release", "days", "--input-format", "csv", *FLAGS, "--output", "days/out.csv"))
    # What is hidden in a folder is not read, and can be replaced.
    with chdir(tmp_path):
        refuse_own_input(target_of("days/.note.csv"), "days")


def test_the_input_is_not_a_public_list_of_items(tmp_path: Path) -> None:
    """Every item of a public list is released, so a list from the input would reveal all of them."""
    (tmp_path / "days").mkdir()
    (tmp_path / "days" / "1.csv").write_text(ROWS)
    os.link(tmp_path / "days" / "1.csv", tmp_path / "linked.csv")
    (tmp_path / "list.csv").write_text("item\ntea\n")
    for source, items in (("days/1.csv", "days/1.csv"), ("days", "linked.csv"), ("linked.csv", "days/*.csv")):
        done = run(tmp_path, "release", source, *FLAGS, "--items", items, "--output", "out.csv")
        assert (done.returncode, "--items is the input itself" in done.stderr) == (2, True)
    frame = pa.table({"user": [1, 2], "item": ["tea", "rye"]})
    with pytest.raises(InvalidParameter, match="items is the input itself"):
        dphist.release(frame, user="user", item="item", epsilon=1, delta=1e-6, max_items_per_user=1, items=frame)
    assert not (tmp_path / "out.csv").exists()
    assert run(tmp_path, "release", "days", *FLAGS, "--items", "list.csv", "-o", "out.csv").returncode == 0


def database(path: Path) -> None:
    with closing(sqlite3.connect(path) if path.suffix == ".sqlite" else duckdb.connect(str(path))) as found:
        found.execute('CREATE TABLE ev ("user" INTEGER, item TEXT)')
        found.execute("INSERT INTO ev VALUES (1, 'tea')")
        found.commit()


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_no_table_that_is_read_is_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"in.{kind}"
    database(path)
    (tmp_path / f"other.{kind}").hardlink_to(path)
    before = path.read_bytes()
    query = ["--query", 'select * from "ev"']
    for source, output, table in (
        (["--table", "ev"], path.name, "ev"),
        (["--table", "ev"], path.name, "EV"),
        (["--table", "ev"], f"other.{kind}", "ev"),
        ([], path.name, "ev"),
        (query, path.name, "ev"),
    ):
        words = [*source, *FLAGS, "--output", output, "--output-table", table]
        refused(run(tmp_path, "release", path.name, *words))
    assert path.read_bytes() == before
    # The file of its certificate is replaced as well.
    (tmp_path / f"in.{kind}.day.certificate.json").write_text("item\ntea\n")
    target = target_of(path, "day")
    with pytest.raises(InvalidParameter, match="cannot write the release to table day in"):
        refuse_own_input(target, path, tmp_path / f"in.{kind}.day.certificate.json", table="other")
    # A database may hold both, and another may have a table of that name.
    refuse_own_input(target_of(path, "counts"), path, table="ev")
    refuse_own_input(target_of(path, "counts"), path, query="select * from ev")
    refuse_own_input(target_of(path, "counts"), path)
    refuse_own_input(target_of(tmp_path / f"third.{kind}", "ev"), path, table="ev")


def test_no_table_of_a_server_that_is_read_is_replaced() -> None:
    """By address and name; the server itself is not asked."""
    address = "postgresql://me:secret@host:5432/shop?sslmode=require"
    for source, table in ((address, "ev"), ("postgres://host:5432/shop", "public.ev"), (address, "EV")):
        with pytest.raises(InvalidParameter, match="cannot write the release to") as error:
            refuse_own_input(target_of(address, "ev", certificate="c"), source, table=table)
        assert "secret" not in str(error.value)
    refuse_own_input(target_of(address, "ev", certificate="c"), "postgresql://host:5432/other", table="ev")
    refuse_own_input(target_of(address, "counts", certificate="c"), address, table="ev")


def test_names_that_differ_are_different_files(tmp_path: Path) -> None:
    """Where a disk tells A from a; where it does not, both names are there."""
    (tmp_path / "LOG.csv").write_text(ROWS)
    if (tmp_path / "log.csv").exists():
        pytest.skip("this disk does not tell A from a")
    done = run(tmp_path, "release", "LOG.csv", *FLAGS, "--output", "Log.csv")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "LOG.csv").read_text() == ROWS


def test_what_a_glob_would_find_is_not_written(tmp_path: Path) -> None:
    """A ** is any number of folders, none included; a * is none."""
    kept = [ProtectedFile("the input", "g/**/*.txt")]
    with chdir(tmp_path):
        for name in ("g/new.txt", "g/a/new.txt", "g/a/b/new.txt", "h/../g/new.txt"):
            with pytest.raises(InvalidParameter, match="it would be part of the input"):
                refuse_overwriting(name, kept)
        refuse_overwriting("g/new.md", kept)
        refuse_overwriting("new.txt", kept)
        with pytest.raises(InvalidParameter):
            refuse_overwriting("g/new.txt", [ProtectedFile("the input", "g/*.txt")])
        refuse_overwriting("g/a/new.txt", [ProtectedFile("the input", "g/*.txt")])


@pytest.mark.parametrize("prefix", ["file:", "file://", "file://localhost"])
def test_files_by_an_address_of_spark(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "in.parquet").mkdir()
    source = f"{prefix}{tmp_path}/in.parquet"
    assert protected_files(None, input=source) == [ProtectedFile("the input", f"{tmp_path}/in.parquet")]
    with pytest.raises(InvalidParameter, match="cannot write the release to"):
        refuse_own_input(target_of(f"{tmp_path}/in.parquet/"), source)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dphist.report.facts._POINTS", 3)


def written(folder: Path) -> Path:
    plan = dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=3)
    dphist.release_histogram(["tea"], [900], plan).write(folder / "out.csv")
    return folder / "out.csv"


@pytest.mark.usefixtures("quick")
def test_a_report_replaces_reports_and_nothing_else(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "sub").mkdir()
    dphist.ledger.Ledger.init(tmp_path / "budget.html", "shop", epsilon=5.0, delta=1e-5)
    (tmp_path / "request.html").write_text('input = "log.html"\n')
    (tmp_path / "log.html").write_text(ROWS)
    (tmp_path / "letter.html").write_text("<!doctype html>\n<title>Dear all</title>")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("budget.html", "request.html", "log.html", "letter.html"):
        done = run(tmp_path / "sub", "report", "../out.csv", "--force", "--output", f"../{name}")
        assert done.returncode == 2
        assert f"../{name} cannot be written: it already exists and is not a report of dphist" in done.stderr
        assert "remove it yourself" in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    # What a query reads is known to nobody but the database.
    database(tmp_path / "in.duckdb")
    query = ["--query", "select * from read_csv('log.html')"]
    done = run(tmp_path, "release", "in.duckdb", *query, *FLAGS, "--output", "q.csv", "--report", "log.html")
    assert (done.returncode, (tmp_path / "log.html").read_text()) == (2, ROWS)
    assert not (tmp_path / "q.csv").exists(), "it is found out before anything is made"


@pytest.mark.usefixtures("quick")
def test_every_report_is_known_again(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "a.html").touch()
    for _ in range(2):
        done = run(tmp_path, "report", "out.csv", "--output", "a.html", "--force")
        assert done.returncode == 0, done.stderr
    assert is_replaceable(tmp_path / "a.html")
    assert not is_replaceable(tmp_path / "out.csv")
    # A mark in another place is what somebody wrote, such as an item.
    text = (tmp_path / "a.html").read_text()
    for changed in (f"Dear all,\n{text}", text.replace("<head>", f"<head>{' ' * 5000}")):
        (tmp_path / "quoted.html").write_text(changed)
        assert not is_replaceable(tmp_path / "quoted.html")


def test_a_report_does_not_replace_a_file_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dphist.report.facts._POINTS", 3)
    written(tmp_path)
    (tmp_path / "r.html").write_text("mine")
    # It is a report when the command begins, and another file once it is written.
    calls = iter([True, False])
    monkeypatch.setattr("dphist.report.writing.is_replaceable", lambda _: next(calls))
    done = run(tmp_path, "report", "out.csv", "--output", "r.html", "--force")
    assert done.returncode == 2, done.stderr
    assert (tmp_path / "r.html").read_text() == "mine"


def test_a_report_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    words = ["release", "log.csv", *FLAGS, "--output", "out.csv", "--report", "r.pdf"]
    done = run(tmp_path, *words)
    assert done.returncode == 2
    assert "the report must end in .html" in done.stderr
    written(tmp_path)
    assert "the report must end in .html" in run(tmp_path, "report", "out.csv", "--output", "r.pdf").stderr
