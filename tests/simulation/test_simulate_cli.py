"""`dphist simulate` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dphist.cli import commands
from dphist.errors import InvalidParameter, OutputError
from simulation_data import job

BUDGET = ["--epsilon", "1", "--delta", "1e-6"]
ZIPF = ["--zipf", "1.1,1000,5000"]


def run(*words: str) -> str:
    result = CliRunner().invoke(commands(), ["simulate", *BUDGET, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_first_line_says_that_it_is_not_private() -> None:
    shown = run(*ZIPF, "--no-auto", "--caps", "1,4", "--tops", "10")
    first = shown.splitlines()[0]
    assert first.startswith("NOT PRIVATE")
    assert "public or synthetic data only" in first
    assert shown.split("\n\n")[-1].startswith("Choose --")
    assert shown.count("cap ") >= 2
    assert all(len(line) <= 110 for line in shown.splitlines())


def test_json_says_so_too(tmp_path: Path) -> None:
    path = tmp_path / "public.parquet"
    log = job(4_000, 500, 300)
    pq.write_table(log.table, path)
    data = json.loads(
        run(
            "--from",
            str(path),
            "--user",
            "user",
            "--item",
            "item",
            "--caps",
            "2,5",
            "--tops",
            "",
            "--no-auto",
            "--json",
        )
    )
    assert data["private"] is False
    assert data["notice"].startswith("NOT PRIVATE")
    assert data["population"]["name"] == "public.parquet"
    assert data["population"]["pairs"] == log.users.size
    limits = ["--max-items-per-user 2", "--max-items-per-user 5"]
    options = [*limits, *(f"{limit} --excess spread" for limit in limits)]
    assert [one["option"] for one in data["candidates"]] == options
    assert data["recommended"]["cap"] in (2, 5)
    assert data["recommended"]["spread"] in (2, 5)
    assert data["recommended"]["top"] is None
    assert data["for"] == "counts"


def test_goals() -> None:
    shown = run(*ZIPF, "--no-auto", "--for", "keys", "--caps", "1,4", "--tops", "10")
    assert "it releases the most items" in shown


def test_a_plot_replaces_nothing_unless_told(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("mine")
    words = [*ZIPF, "--no-auto", "--caps", "1", "--tops", "", "--plot", str(path)]
    with pytest.raises(OutputError, match="already exists; force=True replaces it"):
        run(*words)
    assert path.read_text() == "mine"
    run(*words, "--force")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert b"NOT PRIVATE" in path.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give public data, or zipf"),
        (["--zipf", "1"], "S,N,USERS"),
        ([*ZIPF, "--caps", "1,x"], "caps must be whole numbers"),
        ([*ZIPF, "--user", "u"], "synthetic data has no 'user'"),
        ([*ZIPF, "--plot", "a.txt"], "must end in"),
        (["--from", "x.csv"], "give the column of the user with user"),
    ],
)
def test_bad_requests(words: list[str], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        run(*words)


def test_it_says_who_it_is_for_in_its_help() -> None:
    shown = CliRunner().invoke(commands(), ["simulate", "--help"]).stdout
    assert "NOT PRIVATE" in shown
    assert "never on yours" in " ".join(shown.split())
    assert "up to 1e8" in shown
