"""The code and the commands in the documentation run, and print exactly what the pages show."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import generate
import pytest
from generator import formulas

import release_commands
from dphist.cli import main
from dphist.errors import PACKAGES, install_command

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def run_python(code: str, namespace: dict[str, Any]) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "<docs>", "exec"), namespace)
    return output.getvalue()


# Commands for the reader, or for another machine.
_BY_HAND = ("make ", "pip install ", "cd ", ". ", "dphist explore", "dphist --install-completion")


def run_shell(text: str, fails: bool = False) -> str:
    """Run the `dphist` commands of a block in the working folder and return what they print."""
    printed = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        if words and not line.startswith(_BY_HAND):
            done = run_line(words)
            assert done.code == (2 if fails else 0), f"{line}: {done.out}{done.err}"
            printed += done.err if fails else done.out
    return printed


def run_line(words: list[str]) -> release_commands.Done:
    """Run `[cat FILE |] dphist WORDS [> FILE]` in this process."""
    with contextlib.ExitStack() as stack:
        if words[0] == "cat":
            file = stack.enter_context(Path(words[1]).open(encoding="utf-8"))
            stack.enter_context(patch.object(sys, "stdin", file))
            words = words[3:]
        assert words[0] == "dphist", words
        if words[-2] != ">":
            return release_commands.command(Path.cwd(), *words[1:])
        output = stack.enter_context(Path(words[-1]).open("w", encoding="utf-8"))

        def into_file() -> None:
            with contextlib.redirect_stdout(output):
                main()

        return release_commands.run_here(Path.cwd(), words[:-2], into_file)


def run_console(text: str) -> str:
    """Run the `$ dphist ...` commands of a block and return the transcript."""
    commands = re.findall(r"^\$ (.*(?:\\\n.*)*)$", text, re.MULTILINE)
    transcript = ""
    for command in commands:
        words = shlex.split(command.replace("\\\n", " "))
        done = release_commands.command(Path.cwd(), *words[1:])
        assert done.code == 0, f"{command}: {done.out}{done.err}"
        transcript += f"$ {command}\n{done.out}"
    return transcript


# Tested with the other Spark tests, whose session it shares.
SPARK_PAGE = ROOT / "docs" / "spark.md"
# Pages that compute for seconds.
LONG = (
    "accounting.md",
    "audit.md",
    "costs.md",
    "discrete.md",
    "errata.md",
    "exact-analysis.md",
    "report.md",
    "simulate.md",
)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.name in LONG else (), id=page.name)
        for page in PAGES
        if page != SPARK_PAGE
    ],
)
def test_code_blocks_print_what_the_page_shows(
    page: Path, demo_output: Path, monkeypatch: pytest.MonkeyPatch, quick_curve: None
) -> None:
    """All blocks of a page, in order, in a folder like that of `make demo`."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_that_is_not_run_has_no_syntax_errors(page: Path) -> None:
    for block in blocks(page):
        if block.language == "py":
            compile(block.text, page.name, "exec")


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller version of the data of `make demo`."""
    folder = tmp_path_factory.mktemp("demo-output")
    for name, *options in (
        ("search_log/make_log.py", "--events", "20000", "--output", "log.parquet"),
        ("purchases/make_shop.py", "--customers", "2000", "--output", "shop.sqlite", "--orders"),
    ):
        assert release_commands.script(folder, ROOT / "examples" / name, *options).code == 0
    return folder


@pytest.mark.together("spark")
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas >= 3:FutureWarning")
def test_code_blocks_of_the_page_about_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_shared import shared_session

    monkeypatch.chdir(tmp_path)
    # A process has only one session, so the page uses this one.
    shared_session("local")
    namespace: dict[str, Any] = {}
    for block, following in pairwise(blocks(SPARK_PAGE)):
        if block.language == "python":
            assert run_python(block.text, namespace) == following.text


def test_missing_packages_are_named_as_pyproject_declares_them() -> None:
    """`pip install dphist[plot]` would need dphist in a package index; the names of the packages do not."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]

    def packages_of(extra: str) -> set[str]:
        own = {re.split(r"[ ;<>=\[]", requirement)[0] for requirement in extras[extra]} - {"dphist"}
        others = re.findall(r"dphist\[([a-z,]+)\]", " ".join(extras[extra]))
        return own.union(*(packages_of(other) for name in others for other in name.split(",")))

    for extra, packages in PACKAGES.items():
        named = {re.split("[<>=]", word)[0] for word in shlex.split(packages)}
        assert named == packages_of(extra), extra
        assert install_command(extra) == f"pip install {packages}"
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    pages = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    assert not any("pip install 'dphist" in text or "pip install dphist" in text for text in [*sources, *pages])


def test_the_readme_runs_where_it_sends_the_reader() -> None:
    """`make demo` installs the packages that the README's Python block imports."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    installed = re.search(r"--no-compile -e '\.\[([a-z,]+)\]'", makefile)
    assert installed is not None
    python = "".join(block.text for block in blocks(ROOT / "README.md") if block.language == "python")
    if re.search(r"\b(pandas|polars)\b", python):
        assert "frames" in installed[1].split(",")


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_files_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == generate.PAGES[name]()


def test_every_label_of_the_paper_is_accounted_for() -> None:
    page = (ROOT / "docs" / "theory" / "formulas.md").read_text(encoding="utf-8")
    for label in formulas.PAPER_LABELS:
        assert f"`{label}`" in page, label


def test_every_formula_has_a_source_a_guarantee_an_oracle_and_a_test() -> None:
    for formula in formulas.formulas():
        assert formula.source, formula.name
        assert formula.tests, f"{formula.name} is not tested"
        assert formula.guarantee, formula.name
        assert formula.oracles, f"{formula.name} has no oracle"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_anchors_exist(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"
        # The site holds docs/ alone.
        if page.is_relative_to(ROOT / "docs"):
            assert path.resolve().is_relative_to(ROOT / "docs"), f"{target} is not part of the site"


def test_the_site_lists_every_page() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = (ROOT / "docs").rglob("*.md")
    assert sorted(listed) == sorted(str(page.relative_to(ROOT / "docs")) for page in pages)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of all headings that GitHub and the documentation site spell alike."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {_github_anchor(heading) for heading in headings} & {_site_anchor(heading) for heading in headings}


def _github_anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _site_anchor(heading: str) -> str:
    """As Python-Markdown does it: without letters beyond ASCII, and with one dash for several."""
    letters = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", letters).strip().lower())
