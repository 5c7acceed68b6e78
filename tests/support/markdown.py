"""The code blocks of a Markdown page: run them, and compare what they print with what the page says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from dphist.cli import commands

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


def run_apart(codes: list[str]) -> list[str]:
    """What several blocks of Python print, one after the other in a process of their own."""
    mark = "---- end of a block ----"
    script = f"\nprint({mark!r}, flush=True)\n".join([*codes, ""])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split(mark + "\n")[:-1]


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
        if fails:
            done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
            assert done.returncode == 2, command
            printed += done.stderr
            continue
        result = CliRunner().invoke(commands(), words[1:])
        assert result.exit_code == 0, f"{command}: {result.output} {result.exception}"
        printed += result.output
    return printed


def run_console(text: str) -> str:
    """A transcript of the block's `$ dphist ...` commands with what they really print."""
    lines = re.findall(r"^\$ (.*(?:\\\n.*)*)$", text, re.MULTILINE)
    transcript = ""
    for command in lines:
        words = shlex.split(command.replace("\\\n", " "))
        result = CliRunner().invoke(commands(), words[1:])
        assert result.exit_code == 0, f"{command}: {result.output}"
        transcript += f"$ {command}\n{result.stdout}"
    return transcript
