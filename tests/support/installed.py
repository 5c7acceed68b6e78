"""dphist as it is installed in another environment: commands there, and the walk from a CSV file to a report."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from pathlib import Path

BUDGET = ("--user", "user", "--item", "query", "--epsilon", "1", "--delta", "1e-6")


def clean_environment() -> dict[str, str]:
    """Without the paths through which Python or a shell would find the dphist of this checkout."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(folder: Path, *words: str | Path, code: int = 0) -> str:
    """Run a program in a folder; its output, after a check of its exit code."""
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=clean_environment(), text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == code, f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def write_log(path: Path) -> None:
    """2,000 users: all searched for weather, half for news, and each for an item of their own."""
    lines = [
        f"{user},{query}" for user in range(2000) for query in ("weather", f"own {user}", "news")[: 2 + user % 2]
    ]
    path.write_text("\n".join(["user,query", *lines, ""]), encoding="utf-8")


def walk(binaries: Path, folder: Path, *, charts: bool = False) -> None:
    """Check, release, verify and explain a CSV file with the `dphist` of an environment."""
    dphist = binaries / "dphist"
    write_log(folder / "log.csv")
    assert "Nothing to fix" in run(folder, dphist, "check", "log.csv", "--user", "user", "--item", "query")
    released = run(folder, dphist, "release", "log.csv", *BUDGET, "-o", "queries.csv")
    assert "2 items released" in released
    assert "queries.csv is verified" in run(folder, dphist, "verify", "queries.csv")
    written = run(folder, dphist, "report", "queries.csv", "-o", "report.html")
    assert ("(without charts: they need pip install vl-convert-python)" in written) is not charts
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert ("<svg" in page) is charts
    with (folder / "queries.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["query"] for row in rows] == ["weather", "news"]
    for row in rows:
        assert row["query"] in page
        assert f"{float(row['count']):,.0f}" in page
        assert "own" not in row["query"]
    certificate = json.loads((folder / "queries.csv.certificate.json").read_text(encoding="utf-8"))
    assert run(folder, dphist, "--version") == f"dphist {certificate['dphist']}\n"


def release_with_spark(binaries: Path, folder: Path) -> None:
    """Release and verify the file of the walk with Spark; the environment must have the extra."""
    run(folder, binaries / "dphist", "release", "log.csv", *BUDGET, "-o", "spark.parquet", "--engine", "spark")
    assert "is verified" in run(folder, binaries / "dphist", "verify", "spark.parquet")
