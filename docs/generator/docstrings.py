"""Reads docstrings of the form that dphist has: a summary, paragraphs, examples, and sections such as `Args:`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Final

SECTIONS: Final = ("Args", "Attributes", "Declared", "Raises")
_SECTION: Final = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:[ ]+\S.*\n?|\n)*)", re.MULTILINE)
_ENTRY: Final = re.compile(r"^([\w*]+): (.*(?:\n[ ]+\S.*)*)", re.MULTILINE)
_EXAMPLE: Final = re.compile(r"^>>> .*\n(?:.*\S.*\n?)*", re.MULTILINE)


@dataclass(frozen=True)
class Documented:
    """A docstring in parts; `code` and `output` are those of its examples."""

    summary: str = ""
    paragraphs: tuple[str, ...] = ()
    code: str = ""
    output: str = ""
    sections: dict[str, dict[str, str]] = field(default_factory=dict)

    def described(self, *names: str) -> dict[str, str]:
        """The descriptions in these sections, by name."""
        return {key: text for name in names for key, text in self.sections.get(name, {}).items()}


def read(text: str | None) -> Documented:
    """The parts of a docstring, as `inspect.getdoc` returns it."""
    rest = (text or "").strip() + "\n"
    sections = {name: _entries(body) for name, body in _SECTION.findall(rest)}
    rest = _SECTION.sub("", rest)
    code, output = _example(_EXAMPLE.findall(rest))
    summary, *paragraphs = [
        part for part in re.split(r"\n\s*\n", _EXAMPLE.sub("", rest).strip()) if part.strip()
    ] or [""]
    return Documented(_line(summary), tuple(map(_paragraph, paragraphs)), code, output, sections)


def _entries(body: str) -> dict[str, str]:
    return {name: _line(text) for name, text in _ENTRY.findall(dedent(body))}


def _line(text: str) -> str:
    return " ".join(text.split())


def _paragraph(text: str) -> str:
    """On one line, unless it is a list or a formula."""
    return text if re.search(r"^( {4}|[-*] )", text, re.MULTILINE) else _line(text)


def _example(blocks: list[str]) -> tuple[str, str]:
    """The code of examples, and what it prints."""
    code: list[str] = []
    output: list[str] = []
    for line in "".join(blocks).splitlines():
        prompt = line.startswith((">>> ", "... ")) or line in (">>>", "...")
        (code if prompt else output).append(line[4:] if prompt else line)
    return re.sub(r"\A((?:(?:import|from) .*\n)+)", r"\1\n", "\n".join(code)), "\n".join(output)


def page_links(text: str) -> str:
    """Pages that a docstring names, such as docs/release.md#outputs, as links from a page of the reference."""
    return re.sub(
        r"\bdocs/([\w/-]+)\.md(#[\w-]+)?",
        lambda at: f"[{at[1].rpartition('/')[2]}](../{at[1]}.md{at[2] or ''})",
        text,
    )
