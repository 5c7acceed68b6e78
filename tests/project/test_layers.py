"""Each room imports only from the layers below it in the picture of the page on architecture."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dphist

PACKAGE = Path(dphist.__file__).parent
PAGE = PACKAGE.parents[1] / "docs" / "architecture.md"


def rows_of_the_picture() -> list[list[str]]:
    """The rooms in each row of the picture, lowest row first."""
    picture = re.search(r"^## Layers\n.*?^```text\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert picture is not None
    lines = [line.partition("  ")[0].split() for line in picture[1].splitlines()]
    return [[re.sub(r"/$|\.py$", "", name) for name in line] for line in reversed(lines)]


# A room may import from the rows below its own, and from rooms to its left in its own row.
ORDER = [room for row in rows_of_the_picture() for room in row]
# No randomness and no I/O.
PURE = {"model", "proof", "paper", "planning", "accounting"}
# Spark is an extra, loaded where a release chooses it.
CHOOSES_SPARK = {"releasing/run.py", "releasing/result.py"}
IMPURE = {"random", "secrets", "os", "pathlib"}
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).stem[:2] != "__"]


# Parsing only these statements is much faster than parsing whole files.
IMPORT = re.compile(r"^[ \t]*((?:from [\w.]+ import (?:\([^)]*\)|[^\n]+)|import [^\n]+))$", re.MULTILINE)
IMPORT_MODULE = re.compile(r"\bimport_module\(f?[\"']([\w.]+)")


def imported_names(path: Path) -> list[str]:
    """All imports of a file, at its top or in a function, by statement or by `import_module`."""
    text = path.read_text(encoding="utf-8")
    names = IMPORT_MODULE.findall(text)
    for node in ast.parse("\n".join(IMPORT.findall(text))).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_the_architecture_page_names_files_that_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"`((?:src/|tests/)?[\w/]+/[\w/]+\.py)`", page)
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).exists() or (PACKAGE.parents[1] / name).exists(), name


def test_the_picture_has_every_room_once() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in SOURCES}
    assert sorted(ORDER) == sorted(rooms)


def test_imports_go_down_in_the_picture() -> None:
    forbidden = []
    for path in SOURCES:
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        allowed = ORDER[: ORDER.index(package) + 1]
        if path.relative_to(PACKAGE).as_posix() in CHOOSES_SPARK:
            allowed.append("spark")
        for name in imported_names(path):
            first, _, rest = name.partition(".")
            # The commands are above the public names too.
            downward = first != "dphist" or rest == "__version__" or rest.split(".")[0] in allowed
            downward = downward or (package == "cli" and name == "dphist")
            if not downward or (package in PURE and first in IMPURE):
                forbidden.append(f"{path} must not import {name}")
    assert not forbidden
