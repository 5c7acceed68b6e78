"""`dphist release` and `dphist verify`: flags, request files, exit codes and error messages."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dphist.cli import main
from exports import verify
from release_commands import Done, command
from release_data import events, resealed

COUNTS = {"tea": 900, "milk": 700, "bread": 500, "rare": 2}
FLAGS = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(events(COUNTS), tmp_path / "events.parquet")
    return tmp_path


def dphist(folder: Path, *words: str) -> Done:
    return command(folder, *words)


def released(folder: Path, *words: str) -> Any:
    done = dphist(folder, "release", "events.parquet", *words, "--json")
    assert done.code == 0, done.err
    assert done.err == "", "quiet in pipes"
    return done.data


def test_release_and_verify(folder: Path) -> None:
    # With this delta, two users pass the threshold with a probability of 1e-12.
    summary = released(folder, *FLAGS, "--delta", "1e-12", "--output", "out.parquet")
    assert summary["rows"] == 3
    assert summary["private"] is True
    assert (folder / summary["certificate"]).exists()
    verified = dphist(folder, "verify", "out.parquet", "--json")
    assert verified.code == 0
    assert json.loads(verified.out)["verified"] is True
    plain = dphist(folder, "release", "events.parquet", *FLAGS, "--output", "again.csv")
    assert "out of" not in plain.out
    assert "tea" in plain.out
    assert "again.csv.certificate.json" in plain.out


def test_the_certificate_repeats_the_request_and_the_request_repeats_the_release(folder: Path) -> None:
    request = (
        'input = "events.parquet"\nuser = "user"\nitem = ["item"]\nepsilon = 1\ndelta = 1e-6\n'
        'max-items-per-user = 2\noutput = "one.csv"\nseed = 5\ninterval = 0.9\nround = true\n'
    )
    (folder / "request.toml").write_text(request)
    assert dphist(folder, "release", "request.toml").code == 0
    document = json.loads((folder / "one.csv.certificate.json").read_text())
    assert document["request"]["max-items-per-user"] == 2
    flags = ["--output", "two.csv", "--seed", "5", "--interval", "0.9", "--round"]
    assert dphist(folder, "release", "events.parquet", *FLAGS, *flags).code == 0
    assert (folder / "one.csv").read_text() == (folder / "two.csv").read_text()
    # A flag overrides the file.
    assert dphist(folder, "release", "request.toml", "--output", "three.csv").code == 0


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ('max-item-per-user = 2\ninput = "x"', "did you mean 'max-items-per-user'"),
        ("epsilon = ", "TOML"),
        ('epsilon = 1\nmax_items_per_user = 1\n"max-items-per-user" = 1', "max-items-per-user"),
        ('user = "user"\nitem = 5\ninput = "x"\nepsilon = 1\ndelta = 0.1\ntop = 1', "--item"),
        ('user = "user"\nitem = "i"\ninput = "x"\nepsilon = "1"\ndelta = 0.1\ntop = 1', "epsilon"),
        ('user = "user"\nitem = "i"\ninput = "x"\nepsilon = 1\ndelta = 0.1\ntop = 1\nround = 1', "--round"),
    ],
)
def test_bad_request_files(folder: Path, text: str, fragment: str) -> None:
    (folder / "request.toml").write_text(text)
    done = dphist(folder, "release", "request.toml")
    assert (done.code, done.out) == (2, "")
    assert fragment in done.err
    assert done.err.count("\n") == 1


BAD: list[tuple[list[str], int, str]] = [
    (["events.parquet"], 2, "missing: --user"),
    (["missing.parquet", *FLAGS, "--output", "x.csv"], 2, "missing.parquet"),
    (["events.parquet", *FLAGS], 2, "--output"),
    (["events.parquet", *FLAGS, "--output", "x.docx"], 2, "x.docx"),
    (["events.parquet", *FLAGS, "--output", "none/x.csv"], 1, "none"),
    (["events.parquet", *FLAGS, "--output", "x.csv", "--item", "column"], 2, "'column'"),
    (["events.parquet", *FLAGS, "--output", "x.csv", "--offset", "none"], 2, "--top"),
    (["events.parquet", *FLAGS, "--output", "x.csv", "--epsilon", "zero"], 2, "'zero' is not a number"),
    (["events.parquet", *FLAGS, "--output", "x.csv", "--items", "none.csv"], 2, "none.csv"),
    (["broken.parquet", *FLAGS, "--output", "x.csv"], 2, "broken.parquet"),
]


@pytest.mark.parametrize(("words", "code", "sentence"), BAD)
def test_bad_input_gets_one_sentence_and_writes_nothing(
    folder: Path, words: list[str], code: int, sentence: str
) -> None:
    whole = (folder / "events.parquet").read_bytes()
    (folder / "broken.parquet").write_bytes(whole[: len(whole) // 2])
    before = sorted(folder.iterdir())
    done = dphist(folder, "release", *words)
    assert done.code == code, done.err
    assert sentence in done.err
    assert "Traceback" not in done.err
    assert sorted(folder.iterdir()) == before


def test_an_existing_release_is_kept_unless_forced(folder: Path) -> None:
    released(folder, *FLAGS, "--output", "out.csv")
    first = (folder / "out.csv").read_bytes()
    refused = dphist(folder, "release", "events.parquet", *FLAGS, "--output", "out.csv")
    assert refused.code == 1
    assert "already exists" in refused.err
    assert (folder / "out.csv").read_bytes() == first
    released(folder, *FLAGS, "--output", "out.csv", "--force")
    assert dphist(folder, "verify", "out.csv").code == 0


@pytest.mark.parametrize(
    "limit",
    [["--max-nonzero", "8"], ["--top", "2"], ["--top", "2", "--offset", "none"], ["--max-items-per-user", "2"]],
)
def test_one_threshold_with_a_lower_threshold(folder: Path, limit: list[str]) -> None:
    """The dry run, the plan of the result and the certificate state the threshold of the published counts."""
    flags = [*FLAGS[:8], *limit, "--lower-threshold", "5"]
    dry = dphist(folder, "release", "events.parquet", *flags, "--dry-run", "--json").data
    made = released(folder, *flags, "--output", "out.parquet")
    document = json.loads((folder / "out.parquet.certificate.json").read_text())
    applied = made["counts"]["threshold"] - (made["counts"]["offset"] or 0.0)
    for threshold in (dry["plan"]["threshold"], made["plan"]["threshold"], document["plan"]["threshold"]):
        assert threshold == pytest.approx(applied, rel=1e-12)
    assert (pq.read_table(folder / "out.parquet")["count"].to_numpy() > made["counts"]["threshold"] - 1).all()
    if "--top" not in limit:
        shown = " ".join(dphist(folder, "release", "events.parquet", *flags, "--dry-run").out.split())
        assert f"A noisy count must exceed {applied:.4g}: an item with {made['summary']['hidden_below']} " in shown
    assert dphist(folder, "verify", "out.parquet").code == 0
    # Nor with another lower threshold in its plan, or with none.
    if "lower_threshold" in document["plan"]:
        plan = document["plan"]
        without = {name: value for name, value in plan.items() if name != "lower_threshold"}
        without["threshold"] = plan["tau"] + 1.0
        for changed in (without, {**plan, "lower_threshold": 3, "threshold": plan["tau"] + 3.0}):
            text = resealed({**document, "plan": changed})
            (folder / "out.parquet.certificate.json").write_text(text)
            assert dphist(folder, "verify", "out.parquet").code == 1


def test_dry_run_reads_nothing_and_explains(folder: Path) -> None:
    done = dphist(folder, "release", "not-there-yet.parquet", *FLAGS, "--dry-run")
    assert done.code == 0, done.err
    assert "a count must exceed" in " ".join(done.out.split())
    assert "No event was read" in done.out
    data = json.loads(dphist(folder, "release", "x.parquet", *FLAGS, "--dry-run", "--json").out)
    assert data["plan"]["max_items_per_user"] == 2
    assert len(data["advice"]) >= 3


@pytest.mark.parametrize("change", ["delta", "threshold", "variance", "private", "data", "missing", "seed"])
def test_verify_detects_changes(folder: Path, change: str) -> None:
    words = ["--mechanism", "gaussian", "--output", "out.csv", *(["--seed", "1"] if change == "seed" else [])]
    released(folder, *FLAGS, *words)
    certificate = folder / "out.csv.certificate.json"
    document = json.loads(certificate.read_text())
    if change == "missing":
        certificate.unlink()
    elif change == "data":
        (folder / "out.csv").write_text((folder / "out.csv").read_text().replace("tea", "coffee"))
    elif change != "seed":
        plan = document["plan"]
        if change == "delta":
            plan["delta_certified"] = 1e-9
        elif change == "threshold":
            plan["tau_steps"] -= 20
        elif change == "variance":
            plan["variance_steps"] = "400"
        document["private"] = change != "private"
        certificate.write_text(resealed(document))
    done = dphist(folder, "verify", "out.csv", "--json")
    assert done.code == 1, change
    assert done.data["problems"]
    assert "Traceback" not in done.err


def test_progress_bars_and_escaped_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, standard error has progress bars, which show no count.

    Standard output escapes control characters and characters that its encoding lacks.
    """
    pq.write_table(events({**COUNTS, "red \x1b[31m": 950, "π": 800}), folder / "odd.parquet")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(folder)
    leader, follower = pty.openpty()
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding="ascii", write_through=True)
    words = ["dphist", "release", "odd.parquet", *FLAGS, "--output", "out.csv"]
    with open(follower, "w") as terminal, redirect_stdout(out), redirect_stderr(terminal):
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as end:
            main()
    shown = os.read(leader, 1 << 16).decode(errors="replace")
    os.close(leader)
    assert not end.value.code, shown
    assert "counting" in shown
    assert "%" in shown
    for number in ("3852", "7704", "900", "700"):
        assert number not in shown
    assert b"\x1b[31m" not in written.getvalue()
    assert b"\\x1b[31m" in written.getvalue()
    assert b"\\u03c0" in written.getvalue()


def test_zero_is_a_value(folder: Path) -> None:
    summary = released(folder, *FLAGS, "--output", "out.csv", "--seed", "0")
    assert summary["private"] is False
    for flag in ("--threads", "--top", "--interval"):
        done = dphist(folder, "release", "events.parquet", *FLAGS, "--output", "x.csv", flag, "0")
        assert done.code == 2, flag
        assert flag in done.err


def test_a_closed_pipe_does_not_undo_the_release(folder: Path) -> None:
    words = [sys.executable, "-m", "dphist", "release", "events.parquet", *FLAGS, "--output", "out.csv"]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(words, cwd=folder, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert done.returncode == 0, done.stderr
    assert dphist(folder, "verify", "out.csv").code == 0


def test_names_with_quotes_sql_and_unicode(folder: Path) -> None:
    table = events(COUNTS)
    names = ['us"er; drop table x', "ítem 'π' --"]
    pq.write_table(table.rename_columns(names), folder / "odd.parquet")
    budget = ["--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "1"]
    flags = ["--user", names[0], "--item", names[1], *budget]
    for output in ("odd.csv", "odd.duckdb", "odd.sqlite"):
        done = dphist(folder, "release", "odd.parquet", *flags, "--output", output)
        assert done.code == 0, done.err
        assert verify(folder / output).verified
