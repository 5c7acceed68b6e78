"""The recipes of docs/weekly.md: the cron line in a shell, Airflow's command, dbt's SQL."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import jinja2
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.ledger import Ledger
from dphist.releasing.periods import last_period
from release_data import events

PAGE = Path(__file__).resolve().parents[2] / "docs" / "weekly.md"
COUNTS = {"tea": 900, "milk": 700}


def block_of(heading: str, language: str) -> str:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert section is not None
    found = re.search(rf"^```{language}\n(.*?)^```", section[1], re.M | re.S)
    assert found is not None
    return found[1]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """The folder of the recipes, with logs of some weeks, and `dphist` on the path."""
    for name in ("programs", "logs", "releases"):
        (tmp_path / name).mkdir()
    program = tmp_path / "programs" / "dphist"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dphist "$@"\n')
    program.chmod(0o755)
    Ledger.init(tmp_path / "weekly.ledger", "searches", epsilon=3, delta=1e-6)
    return tmp_path


def log_of(server: Path, week: str) -> None:
    (server / "logs" / week).mkdir()
    pq.write_table(events(COUNTS).rename_columns(["user_id", "query"]), server / "logs" / week / "part.parquet")


def shell(server: Path, command: str, **variables: str) -> None:
    path = os.pathsep.join([str(server / "programs"), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(["bash", "-c", command], cwd=server, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_cron_line_runs_as_it_stands(server: Path) -> None:
    (line,) = [line for line in block_of("cron", "shell").splitlines() if not line.startswith("#")]
    schedule = re.match(r"(\S+ +){5}", line)
    assert schedule is not None
    assert "%" not in line, "cron would end the command there"
    # The test may run around midnight of a Sunday.
    weeks = {last_period("last-week", date.today() + timedelta(days)).name for days in (0, 1)}
    for week in weeks:
        log_of(server, week)
    command = line[schedule.end() :].replace("/srv/searches", str(server))
    for _ in range(3):  # as the schedule does
        shell(server, command)
    series = dphist.series(server / "releases")
    assert {part.period.name for part in series.parts} <= weeks
    assert len(Ledger.open(server / "weekly.ledger").account("searches").bookings) == len(series.parts)
    assert (server / "weekly.log").read_text() == ""


class Recorded:
    """Stands in for Airflow's classes."""

    operators: list[dict[str, Any]]

    def __init__(self, *_: object, **options: Any) -> None:
        self.options = options
        if "bash_command" in options:
            Recorded.operators.append(options)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_the_command_of_airflow(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its classes recorded, and its templates rendered as Airflow does; Airflow itself is not run."""
    Recorded.operators = []
    for name in ("airflow", "airflow.sdk", "airflow.providers.standard.operators.bash"):
        module = ModuleType(name)
        module.__dict__.update(BashOperator=Recorded, DAG=Recorded)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("airflow.providers", "airflow.providers.standard", "airflow.providers.standard.operators"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    exec(compile(block_of("Airflow", "py"), "<docs>", "exec"), {})
    (task,) = Recorded.operators
    for start, week in (
        (datetime(2026, 11, 9, tzinfo=UTC), "2026-W46"),
        (datetime(2026, 12, 28, tzinfo=UTC), "2026-W53"),
    ):
        log_of(server, week)
        texts = {"bash_command": task["bash_command"], **task["env"]}
        given = {name: jinja2.Template(text).render(data_interval_start=start) for name, text in texts.items()}
        command = given.pop("bash_command")
        for _ in range(2):
            shell(server, command, **given)
    assert task["append_env"] is True
    assert [part.period.name for part in dphist.series(server / "releases").parts] == ["2026-W46", "2026-W53"]


def test_the_sql_of_dbt_keeps_gaps_and_margins(tmp_path: Path) -> None:
    """In DuckDB, with the series in place of the source; dbt itself is not run."""
    folder = tmp_path / "releases"
    folder.mkdir()
    options: dict[str, Any] = {"user": "user", "item": "query=item", "epsilon": 1, "delta": 1e-7}
    for week, counts in (("2026-W45", COUNTS), ("2026-W46", {"tea": 800}), ("2026-W47", COUNTS)):
        dphist.release(events(counts), **options, max_items_per_user=2, output=folder / f"{week}.parquet")
    series = dphist.series(folder)
    series.write(tmp_path / "series.parquet")
    sql = jinja2.Template(block_of("dbt", "sql")).render(source=lambda *_: f"'{tmp_path}/series.parquet'")
    with duckdb.connect() as connection:
        rows = connection.execute(f"SELECT query, period, change, change_margin FROM ({sql})").fetchall()
    found = {(query, period): (change, margin) for query, period, change, margin in rows}
    assert len(found) == series.table.num_rows
    (expected,) = series.changes("2026-W45", "2026-W46").to_pylist()
    assert found["tea", "2026-W46"] == (pytest.approx(expected["change"]), pytest.approx(expected["margin"]))
    assert found["milk", "2026-W47"] == (None, None), "milk has no release the week before"
    assert found["tea", "2026-W45"] == (None, None)
