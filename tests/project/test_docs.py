"""Everything that the documentation shows was really printed."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import generate
import pytest

import release_commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [Block(*match.groups()) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def run_python(code: str, namespace: dict[str, Any]) -> str:
    """What a block of Python prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "<docs>", "exec"), namespace)
    return output.getvalue()


# What a reader does by hand, or what needs another machine.
_BY_HAND = ("make ", "pip install ", "cd ", ". ", "dphist explore", "dphist --install-completion")


def run_shell(text: str, fails: bool = False) -> str:
    """What the `dphist` commands of a block print, pasted one after the other into the working folder."""
    printed = ""
    for command in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(command, comments=True)
        if not words or command.startswith(_BY_HAND):
            continue
        if " | " in command or " > " in command:
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
            subprocess.run(command, shell=True, check=True, capture_output=True, env={**os.environ, "PATH": path})
            continue
        assert words[0] == "dphist", command
        done = release_commands.command(Path.cwd(), *words[1:])
        assert done.code == (2 if fails else 0), f"{command}: {done.out}{done.err}"
        printed += done.err if fails else done.out
    return printed


def run_console(text: str) -> str:
    """A transcript of the block's `$ dphist ...` commands with what they really print."""
    commands = re.findall(r"^\$ (.*(?:\\\n.*)*)$", text, re.MULTILINE)
    transcript = ""
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        done = release_commands.command(Path.cwd(), *words[1:])
        assert done.code == 0, f"{command}: {done.out}{done.err}"
        transcript += f"$ {command}\n{done.out}"
    return transcript


# With the other tests of Spark, whose session it shares.
APART = ROOT / "docs" / "spark.md"
# Pages that compute for several seconds.
LONG = ("exact-analysis.md", "accounting.md", "audit.md", "discrete.md", "simulate.md", "report.md")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=page.name)
        for page in PAGES
        if page != APART
    ],
)
def test_code_blocks_print_what_the_page_says(
    page: Path, demo_output: Path, monkeypatch: pytest.MonkeyPatch, quick_curve: None
) -> None:
    """All blocks of all pages, pasted in order into the folder that `make demo` leaves."""
    monkeypatch.chdir(demo_output)
    namespace: dict[str, Any] = {"__name__": "__docs__"}
    for block, following in pairwise([*blocks(page), Block("end", "")]):
        if block.language == "python":
            printed = run_python(block.text, namespace)
            if following.language == "text":
                assert printed == following.text
        elif block.language == "console":
            assert run_console(block.text) == block.text
        elif block.language == "sh":
            printed = run_shell(block.text, fails=following.text.startswith("Error"))
            assert not following.text.startswith("Error") or printed == following.text


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of `make demo`, smaller."""
    folder = tmp_path_factory.mktemp("demo-output")
    for name, *options in (
        ("search_log/make_log.py", "--events", "60000", "--output", "log.parquet"),
        ("purchases/make_shop.py", "--customers", "4000", "--output", "shop.sqlite", "--orders"),
    ):
        assert release_commands.script(folder, ROOT / "examples" / name, *options).code == 0
    return folder


@pytest.mark.together("spark")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas >= 3:FutureWarning")
def test_code_blocks_of_the_page_about_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_shared import shared_session

    monkeypatch.chdir(tmp_path)
    # A process has one session, so the page gets this one.
    shared_session("local")
    namespace: dict[str, Any] = {}
    for block, following in pairwise(blocks(APART)):
        if block.language == "python":
            assert run_python(block.text, namespace) == following.text


def test_formulas_page_is_current() -> None:
    """`make docs` writes it; it names every formula, its source and the tests of it."""
    assert (ROOT / "docs" / "theory" / "formulas.md").read_text(encoding="utf-8") == generate.formulas_page()


def test_the_signature_of_release_is_current() -> None:
    """`make docs` writes it from the options that `Request` declares."""
    assert generate.RELEASE.read_text(encoding="utf-8") == generate.release_module()


def test_every_label_of_the_paper_is_accounted_for() -> None:
    page = (ROOT / "docs" / "theory" / "formulas.md").read_text(encoding="utf-8")
    for label in generate.PAPER_LABELS:
        assert f"`{label}`" in page, label


def test_every_formula_has_a_source_a_guarantee_an_oracle_and_a_test() -> None:
    for formula in generate.formulas():
        assert formula.source, formula.name
        assert formula.tests, f"{formula.name} is not tested"
        assert formula.guarantee, formula.name
        assert formula.oracles, f"{formula.name} has no oracle"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
