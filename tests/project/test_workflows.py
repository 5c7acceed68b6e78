"""The image and the workflows: what they name exists, and the steps of the weekly release run as they stand."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from dphist.ledger import Ledger
from dphist.releasing.periods import last_period
from release_data import events

yaml = pytest.importorskip("yaml", reason="no PyYAML: pip install -e '.[dev]'")

ROOT = Path(__file__).resolve().parents[2]
WEEKLY = ROOT / "examples" / "scheduled" / "weekly.yml"
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")), WEEKLY]


def steps_of(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_rights_and_name_targets_that_exist(path: Path) -> None:
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for step in steps_of(path):
        # A step with a name of a version, or a command; never both.
        assert ("uses" in step) != ("run" in step), step
        assert "@" in step.get("uses", "@")
        for line in step.get("run", "").splitlines():
            words = line.split()
            if words[0] == "make":
                assert words[1] in targets
            if words[0].startswith("."):
                assert os.access(ROOT / words[0], os.X_OK)
        # What an event brings, such as the title of a pull request, is no part of a script.
        assert "${{" not in step.get("run", "")


def run_step(name: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """The shell step of the weekly workflow whose name begins so, as GitHub runs it."""
    (step,) = [step for step in steps_of(WEEKLY) if step["name"].startswith(name)]
    environment = {**os.environ, "RUNNER_TEMP": str(folder / "temp"), "STATE": str(folder / "state"), **variables}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_weekly_workflow_runs_and_uploads_nothing_else(tmp_path: Path) -> None:
    state, programs = tmp_path / "state", tmp_path / "programs"
    for folder in (state / "logs", state / "releases", programs, tmp_path / "temp"):
        folder.mkdir(parents=True)
    program = programs / "dphist"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dphist "$@"\n')
    program.chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    log = events({"tea": 900, "milk": 700}).rename_columns(["user_id", "query"])
    # The test may run around midnight of a Sunday.
    weeks = {last_period("last-week", date.today() + timedelta(days)).name for days in (0, 1)}
    for week in weeks:
        (state / "logs" / week).mkdir()
        pq.write_table(log, state / "logs" / week / "part.parquet")

    stopped = run_step("Release", tmp_path, PATH=path)
    assert stopped.returncode == 1
    assert "The ledger is missing" in stopped.stdout
    assert not (state / "weekly.ledger").exists()
    Ledger.init(state / "weekly.ledger", "searches", epsilon=3, delta=1e-6)

    def run_all() -> set[str]:
        for name in ("Release", "Verify"):
            done = run_step(name, tmp_path, PATH=path)
            assert done.returncode == 0, done.stderr
        return {file.name for file in (tmp_path / "temp" / "public").iterdir()}

    def files_of(week: str) -> set[str]:
        return {f"{week}.parquet", f"{week}.parquet.certificate.json", f"{week}.html"}

    first = run_all()
    assert first in [files_of(week) for week in weeks]
    # Repeated, it publishes the same release and books nothing.
    (released,) = [name for name in first if name.endswith(".parquet")]
    content = (state / "releases" / released).read_bytes()
    again = run_all()
    if again == first:
        assert (tmp_path / "temp" / "public" / released).read_bytes() == content
        assert len(Ledger.open(state / "weekly.ledger").account("searches").bookings) == 1

    summary = tmp_path / "summary"
    assert run_step("Keep", tmp_path, PATH=path, GITHUB_STEP_SUMMARY=str(summary)).returncode == 0
    (kept,) = summary.read_text().split()
    Ledger.open(state / "weekly.ledger", expect=kept)


def instructions() -> list[tuple[str, str]]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line]


def test_the_image_is_built_from_files_that_exist() -> None:
    names = [name for name, _ in instructions()]
    assert names.count("FROM") == 2
    # Not root, and an entry point that gets the signals itself.
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert dict(instructions())["ENTRYPOINT"] == '["dphist"]'
    allowed = re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    copied = [
        source
        for name, words in instructions()
        if name == "COPY" and "--from" not in words
        for source in shlex.split(words)[:-1]
    ]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.slow
def test_the_steps_of_the_image_work_as_a_script(tmp_path: Path) -> None:
    """There is no Docker here: the build stage runs in a folder, with this Python and with other paths."""
    source = tmp_path / "source"
    source.mkdir()
    script = ["set -eu", f'python() {{ {shlex.quote(sys.executable)} "$@"; }}', 'pip() { python -m pip "$@"; }']
    for name, words in instructions():
        if name == "COPY" and "--from" not in words:
            *names, _ = shlex.split(words)
            script += [f"cp -R {shlex.quote(str(ROOT / copied))} {shlex.quote(str(source))}" for copied in names]
        elif name == "RUN" and "useradd" not in words:
            script.append(words.replace("/opt/dphist", str(tmp_path / "dphist")))
    done = subprocess.run(["sh", "-c", "\n".join(script)], cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version = subprocess.run(
        [tmp_path / "dphist" / "bin" / "dphist", "--version"], capture_output=True, check=True
    )
    assert version.stdout.startswith(b"dphist ")
