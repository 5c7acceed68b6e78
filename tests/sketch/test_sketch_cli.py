"""`dphist sketch build|merge|release`: exit codes, messages without data, and releases on a ledger."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dphist import plan, verify
from dphist.cli import commands
from dphist.counting.columns import as_numpy
from dphist.errors import DphistError, InputError, InvalidParameter, OutputError, OverBudget
from dphist.ledger import Ledger
from dphist.publishing import write_file
from dphist.sketch import MisraGries
from release_commands import bookings, command, names, watching
from release_data import events

COUNTS = {"tea": 900, "milk": 700, "bread": 500, "rare": 2}
BUILD = ["--user", "user", "--item", "item", "--size", "20"]
BUDGET = ["--epsilon", "1", "--delta", "1e-6"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = events(COUNTS)
    even = as_numpy(table["user"].combine_chunks()) % 2 == 0
    pq.write_table(table, tmp_path / "all.parquet")
    pq.write_table(table.filter(pa.array(even)), tmp_path / "even.parquet")
    pq.write_table(table.filter(pa.array(~even)), tmp_path / "odd.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dphist(*words: str) -> str:
    """The output of a command in this process; its errors are raised."""
    result = CliRunner().invoke(commands(), ["sketch", *words], catch_exceptions=True)
    if isinstance(result.exception, DphistError):
        raise result.exception
    assert result.exit_code == 0, result.output
    assert result.stderr == "", "quiet in pipes"
    return result.stdout


def test_force_does_not_replace_input_sketch_or_key(folder: Path) -> None:
    dphist("build", "all.parquet", *BUILD, "--output", "all.sketch")
    main = CliRunner().invoke(commands(), ["keygen", "release.key"])
    assert main.exit_code == 0, main.output
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    release = ["release", "all.sketch", *BUDGET, "--output-format", "csv", "--force", "--sign", "release.key"]
    for words in (
        ["build", "all.parquet", *BUILD, "--output", "all.parquet", "--force"],
        [*release, "--output", "all.sketch"],
        [*release, "--output", "release.key"],
    ):
        with pytest.raises(InvalidParameter, match="it is the input"):
            dphist(*words)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_build_merge_release_and_verify(folder: Path) -> None:
    texts = [dphist("build", f"{name}.parquet", *BUILD, "--output", f"{name}.sketch") for name in ("even", "odd")]
    summary = json.loads(dphist("merge", "even.sketch", "odd.sketch", "--output", "both.sketch", "--json"))
    assert summary == {"output": "both.sketch", "size": 20, "items": {"item": "large_string"}, "secret": True}
    for text in texts:
        assert "SECRET" in text
        assert not any(word in text for word in ("tea", "900", "450"))
    assert stat.S_IMODE((folder / "both.sketch").stat().st_mode) == 0o600
    dphist("build", "all.parquet", *BUILD, "--output", "all.sketch", "--memory", "1GB", "--threads", "1")
    assert (folder / "all.sketch").read_bytes() == (folder / "both.sketch").read_bytes()
    # With so small a delta, two users pass with a probability below 1e-12.
    asked = ["--epsilon", "1", "--delta", "1e-12"]
    released = json.loads(dphist("release", "both.sketch", *asked, "--output", "out.parquet", "--json"))
    assert released["rows"] == 3
    assert released["private"] is True
    assert released["guarantee"]["conditions"] == ["one-update-per-user"]
    assert CliRunner().invoke(commands(), ["verify", "out.parquet"]).exit_code == 0
    shown = dphist("release", "both.sketch", *BUDGET, "--output", "out.csv", "--round", "--offset", "none")
    assert "Note: Counts are of a sketch with 20 counters" in shown
    assert pq.read_table(folder / "out.parquet").column("item").to_pylist() == ["tea", "milk", "bread"]


def test_several_files_of_the_same_users_are_one_build(folder: Path) -> None:
    table = events(COUNTS)
    for number in range(2):  # every user is in both
        pq.write_table(
            table.slice(number * table.num_rows // 2, table.num_rows // 2), folder / f"{number}.parquet"
        )
    dphist("build", "0.parquet", "1.parquet", *BUILD, "--output", "a.sketch")
    dphist("build", "?.parquet", *BUILD, "--output", "b.sketch", "--where", "item <> 'milk'")
    assert MisraGries.load("a.sketch")._as_table()["tea"] == 900
    assert "milk" not in MisraGries.load("b.sketch")._as_table()


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    MisraGries(20).save("s.sketch")
    assert "Nothing was released" in dphist("release", "s.sketch", *BUDGET, "--dry-run")
    assert json.loads(dphist("release", "s.sketch", *BUDGET, "--dry-run", "--json"))["plan"]["max_nonzero"] == 20
    assert not list(folder.glob("*.certificate.json"))


def test_refused(folder: Path) -> None:
    dphist("build", "all.parquet", *BUILD, "--output", "s.sketch")
    MisraGries(21).save("other.sketch")
    (folder / "link.sketch").symlink_to("s.sketch")
    (folder / "bad.sketch").write_bytes((folder / "s.sketch").read_bytes()[:-5])
    out = ["--output", "new.sketch"]
    cases: list[tuple[type[DphistError], str, list[str]]] = [
        (OutputError, "already exists", ["build", "all.parquet", *BUILD, "--output", "s.sketch"]),
        (InputError, "no column 'who'", ["build", "all.parquet", "--user", "who", *BUILD[2:], *out]),
        (InvalidParameter, "k must be between", ["build", "all.parquet", *BUILD[:-1], "0", *out]),
        (InputError, "bad.sketch is damaged", ["merge", "s.sketch", "bad.sketch", *out]),
        (InvalidParameter, "sizes 20 and 21", ["merge", "s.sketch", "other.sketch", *out]),
        (InvalidParameter, "given twice", ["merge", "s.sketch", "link.sketch", *out]),
        (InputError, "none.sketch does not exist", ["merge", "none.sketch", *out]),
        (InputError, "not a sketch of dphist", ["release", "all.parquet", *BUDGET, "--output", "x.csv"]),
        (
            InputError,
            "has the size 20, not 1000",
            ["release", "s.sketch", *BUDGET, "--size", "1000", "--output", "x.csv"],
        ),
        (
            InvalidParameter,
            "laplace.*give offset='none'",
            ["release", "s.sketch", *BUDGET, "--mechanism", "laplace"],
        ),
        (InvalidParameter, "give output", ["release", "s.sketch", *BUDGET]),
        (OutputError, "there is no folder", ["release", "s.sketch", *BUDGET, "--output", "no/x.csv"]),
    ]
    for kind, message, words in cases:
        with pytest.raises(kind, match=message):
            dphist(*words)
    assert not (folder / "new.sketch").exists()
    laplace = ["--mechanism", "laplace", "--offset", "none", "--dry-run"]
    assert "Nothing was released" in dphist("release", "s.sketch", *BUDGET, *laplace)
    dphist("build", "all.parquet", *BUILD, "--output", "s.sketch", "--force")


def test_equal_names_are_refused_before_counting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("dphist.counting.duckdb.DuckDBEngine.count", counted)
    for item in ("item", "item=user_name"):
        with pytest.raises(InvalidParameter, match="must have different names"):
            dphist("build", "all.parquet", *BUILD, "--item", item, "--output", "new.sketch")
    assert not (folder / "new.sketch").exists()


def test_an_error_is_one_line(folder: Path) -> None:
    failed = command(folder, "sketch", "merge", "none.sketch", "--output", "x.sketch")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err == "Error: the sketch none.sketch does not exist\n"


def test_an_interruption_says_what_was_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    words = ["sketch", "build", "all.parquet", *BUILD, "--output", "s.sketch"]
    with monkeypatch.context() as patched:
        patched.setattr("dphist.sketch.files.build", interrupted)
        stopped = CliRunner().invoke(commands(), words)
    assert (stopped.exit_code, stopped.stderr) == (130, "Interrupted: nothing was written.\n")
    assert not (folder / "s.sketch").exists()
    with monkeypatch.context() as patched:
        # A signal that waits until the file is in place.
        def write_and_interrupt(*given: Any, **options: Any) -> None:
            write_file(*given, **options)
            signal.raise_signal(signal.SIGINT)

        patched.setattr("dphist.sketch.counters.write_file", write_and_interrupt)
        stopped = CliRunner().invoke(commands(), words)
    assert (stopped.exit_code, stopped.stderr) == (130, "Interrupted: the output was already written.\n")
    assert MisraGries.load("s.sketch").k == 20


# Releases on a ledger.

RELEASE = ["sketch", "release", "a.sketch", "--epsilon", "1", "--delta", "1e-7"]
BOOKED = ["--ledger", "a.ledger", "--dataset", "log"]


@pytest.fixture
def booked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    MisraGries.from_columns(20, *events(COUNTS).columns).save("a.sketch")
    Ledger.init("a.ledger", "log", epsilon=2, delta=1e-6, accounting="sum")
    return tmp_path


def test_booked_before_noise_is_drawn(booked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = watching(booked / "a.ledger", monkeypatch)
    done = command(booked, *RELEASE, *BOOKED, "--output", "out.csv", "--json")
    assert done.code == 0, done.err
    assert watched.drawn > 0
    (booking,) = bookings(booked)
    document = json.loads((booked / "out.csv.certificate.json").read_text())
    assert document["booking"] == booking.receipt()
    assert booking.written == {"sha256": done.data["sha256"], "address": "out.csv"}
    assert {"kind": "sketch", **booking.spend.document["request"]} == document["request"]
    assert booking.spend.document["guarantee"] == document["guarantee"]
    assert done.data["remaining"].startswith("about 1 more release like this one, or one with epsilon up to 1")
    assert verify("out.csv").verified


def test_noise_before_the_booking_is_detected(booked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Power of the test above."""
    watching(booked / "a.ledger", monkeypatch)
    with pytest.raises(AssertionError, match="noise before its booking"):
        command(booked, *RELEASE, "--output", "out.csv")


def test_over_budget(booked: Path) -> None:
    for number in range(2):
        done = command(booked, *RELEASE, *BOOKED, "--output", f"{number}.csv")
        assert done.code == 0, done.err
        assert "Remaining budget of the dataset 'log': " in done.out
    before = names(booked)
    done = command(booked, *RELEASE, *BOOKED, "--output", "more.csv")
    assert (done.code, done.out) == (3, "")
    assert "has no room for epsilon 1.0 and delta 1e-07" in done.err
    assert names(booked) == before
    assert len(bookings(booked)) == 2


REFUSED = [
    (["--ledger", "a.ledger"], 2, "--ledger and --dataset go together"),
    ([*BOOKED, "--seed", "1"], 2, "--seed cannot be used with --ledger"),
    (["--ledger", "a.ledger", "--dataset", "lag"], 2, "did you mean 'log'?"),
    (["--ledger", "none", "--dataset", "log"], 2, "there is no ledger none"),
    ([*BOOKED, "--output", "none/out.csv"], 1, "there is no folder none"),
    ([*BOOKED, "--count-name", "item"], 2, "item"),
    ([*BOOKED, "--output", "a.ledger", "--output-format", "csv", "--force"], 2, "it is the ledger"),
]


def test_refused_before_booking(booked: Path) -> None:
    for words, code, message in REFUSED:
        done = command(booked, *RELEASE, "--output", "out.csv", *words)
        assert (done.code, done.out) == (code, ""), done
        assert message in done.err
        assert bookings(booked) == ()


def full_disk(job: object) -> str:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_booking_from_python(booked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sketch, planned = MisraGries.load("a.sketch"), plan(epsilon=1, delta=1e-7, max_nonzero=20)
    ledger: dict[str, Any] = {"ledger": "a.ledger", "dataset": "log"}
    found = sketch.release(planned, **ledger)
    (booking,) = bookings(booked)
    assert found.document()["booking"] == booking.receipt()
    with pytest.raises(InvalidParameter, match="in a sketch of size 20"):
        sketch.release(plan(epsilon=1, delta=1e-7, max_items_per_user=2), **ledger)
    with pytest.raises(OverBudget):
        sketch.release(plan(epsilon=1.5, delta=1e-7, max_nonzero=20), **ledger)
    assert len(bookings(booked)) == 1
    assert sketch.release(planned).receipt is None
    # A release that cannot be written stays booked, and can be written elsewhere.
    with monkeypatch.context() as patch:
        patch.setattr("dphist.outputs.write._write_files", full_disk)
        with pytest.raises(OutputError, match="stay booked as entry 4") as failed:
            sketch.release(planned, output="out.csv", **ledger)
    assert failed.value.release.write("other.csv").written.address == "other.csv"
    assert [booking.written for booking in bookings(booked)] == [None, None]
