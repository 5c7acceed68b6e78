"""The layer diagram is a test: each room imports only from the rows above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import dphist

PACKAGE = Path(dphist.__file__).parent
# A room imports from the rows above its own, and from its own row to its left.
ROWS = (
    ("errors", "display", "publishing", "objects"),
    ("privacy",),
    ("sampling",),
    ("planning", "accounting"),
    ("counting", "outputs"),
    ("signatures", "ledger"),
    ("releasing",),
    ("sketch", "simulation", "audit", "opendp", "session"),
    ("report",),
    ("explore",),
    ("cli",),
)
ORDER = [room for row in ROWS for room in row]
# Pure mathematics has no randomness and no I/O.
PURE = {"privacy", "planning", "accounting"}
IMPURE = {"random", "secrets", "os", "pathlib"}
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).stem[:2] != "__"]


def imported_names(path: Path) -> list[str]:
    """Everything that a file imports, at its top or within a function, by statement or by `import_module`."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            given = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            names += [given.value] if isinstance(given, ast.Constant) and isinstance(given.value, str) else []
    return names


def test_the_architecture_page_names_files_that_exist() -> None:
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src/|tests/)?[\w/]+/[\w/]+\.py)`", page)
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).exists() or (PACKAGE.parents[1] / name).exists(), name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_up(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    allowed = ORDER[: ORDER.index(room) + 1]
    for name in imported_names(path):
        first, _, rest = name.partition(".")
        if first == "dphist" and rest != "__version__":
            assert rest.split(".")[0] in allowed, f"{room} must not import {name}"
        assert room not in PURE or first not in IMPURE, f"{room} must not import {name}"
