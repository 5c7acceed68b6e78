"""The comparison with other tools: what is measured, and that the pages show it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from generator import peers as peer_tables  # puts benchmarks/ on the path
from measure import reason
from peer_environments import find_python
from peer_quality import score
from peer_results import read_results
from peers import DIFFPRIVLIB, OPENDP, OTHERS, OURS, ROUNDS, SPARK, Log, Task, run_task, tasks

BENCHMARKS = Path(peer_tables.__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("page", peer_tables.PAGES, ids=lambda page: page.name)
def test_tables_and_scripts_on_the_pages_are_current(page: Path) -> None:
    """`make docs` fills every marked block from the results, or from the script that `make peers` runs."""
    text = page.read_text(encoding="utf-8")
    assert "<!-- peers: " in text
    assert peer_tables.filled(text, read_results()) == text


def test_the_figure_is_current() -> None:
    words = peer_tables.figure(read_results()).words
    assert words in peer_tables.FIGURE.read_text(encoding="utf-8")


def test_no_tool_is_dropped() -> None:
    """Each tool has a row on each job of the results, with numbers or a reason."""
    results = read_results()
    for task in tasks(Path(), None, 1):
        job = next((job for job in results.jobs if job.name == task.name), None)
        if job is not None and not job.skipped:
            assert {row.tool for row in peer_tables.rows(results, job.name)} == {tool.name for tool in task.tools}
    assert {tool.name for tool in (OURS, ROUNDS, SPARK, DIFFPRIVLIB, *OTHERS)} <= set(results.lines)


def test_quality_is_that_of_the_definitions(tmp_path: Path) -> None:
    """Items a and b with 300 and 100 users; released are a with 290 ± 20 and c, which nobody has, with 5 ± 1."""
    events, release = tmp_path / "events.parquet", tmp_path / "release.parquet"
    duckdb.execute(
        "COPY (SELECT i % 300 AS user, 'a' AS item FROM range(600) AS numbers(i) UNION ALL "
        f"SELECT i, 'b' FROM range(100) AS numbers(i)) TO '{events}' (FORMAT parquet)"
    )
    duckdb.execute(
        f"COPY (SELECT * FROM (VALUES ('a', 290.0, 20.0), ('c', 5.0, 1.0)) AS rows(item, count, margin)) "
        f"TO '{release}' (FORMAT parquet)"
    )
    scores = score(events, [release])
    assert (scores.events, scores.pairs, scores.users, scores.items, scores.common) == (700, 400, 300, 2, 1)
    (found,) = scores.qualities
    assert (found.items, found.error, found.recall, found.held) == (2, 7.5, 1.0, 0.5)
    assert found.distance == round((10 + 100 + 5) / 400, 4)


def test_a_process_tree_is_ended_at_its_limit() -> None:
    """In a process of its own, because all its children are waited for. The grandchild would sleep for an hour."""
    code = (
        "import sys; from measure import Limits, adopt_orphans, measured; adopt_orphans(); "
        "nap = [sys.executable, '-c', 'import time; time.sleep(3600)']; "
        "orphan = [sys.executable, '-c', f'import subprocess; subprocess.Popen({nap!r})']; "
        "print([measured(command, Limits(0.5)).said for command in (nap, orphan)])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert done.stdout == "['over the limit of 0.5 s', 'over the limit of 0.5 s']\n"


def test_reasons_name_no_folder() -> None:
    assert (
        reason("a\nFileNotFoundError: '/home/me/data/events.parquet'\n\n") == "FileNotFoundError: 'events.parquet'"
    )


def test_a_tool_that_cannot_be_installed_has_a_row(tmp_path: Path) -> None:
    assert find_python("3.99") is None
    events = tmp_path / "events.parquet"
    duckdb.execute(f"COPY (SELECT i AS user, i % 2 AS item FROM range(9) AS n(i)) TO '{events}' (FORMAT parquet)")
    task = Task("common, 10", events, 10, (OPENDP, OPENDP), 1)
    missing = {OPENDP.name: "needs Python 3.99, which is not installed"}
    job, runs = run_task(task, {"opendp": tmp_path}, missing, tmp_path, Log(tmp_path / "peers.log"))
    assert (job.events, job.items) == (9, 2)
    assert [(run.tool, run.failure) for run in runs] == [(OPENDP.name, missing[OPENDP.name])]


@pytest.mark.slow
def test_a_small_comparison_runs(tmp_path: Path) -> None:
    """dphist and OpenDP in this Python. OpenDP's polars may be another than it needs: then its row says so."""
    output = tmp_path / "peers.json"
    command = [sys.executable, str(BENCHMARKS / "peers.py"), "--quick", "--here", "--only", "dphist", "--only"]
    command += ["opendp", "--job", "common, 10", "--folder", str(tmp_path), "--output", str(output)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    results = read_results(output)
    found = {row.tool: row for row in peer_tables.rows(results, "common, 10")}
    assert set(found) == {"dphist", "dphist, limit", "dphist, goal keys", "OpenDP"}
    assert found["dphist"].items > 100
    assert not found["dphist"].failure
    assert found["OpenDP"].failure or found["OpenDP"].items > 50
    assert json.loads(output.read_text())["jobs"][0]["pairs"] == 250_000
    assert output.with_suffix(".log").read_text().count("OpenDP") >= 1
