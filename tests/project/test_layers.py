"""Each package imports only from the layers above it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import dphist

PACKAGE = Path(dphist.__file__).parent
# A package may import from the rows above its own, and from packages to its left in its own row.
ROWS = (
    ("aliases", "errors", "display", "files", "publishing", "objects", "signatures"),
    ("model",),
    ("proof",),
    ("certificate",),
    ("sampling",),
    ("paper",),
    ("planning", "accounting"),
    ("counting", "outputs"),
    ("ledger",),
    ("releasing",),
    ("spark",),
    ("sketch", "simulation", "audit", "opendp", "session"),
    ("report",),
    ("explore",),
    ("cli",),
)
ORDER = [package for row in ROWS for package in row]
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
    page = (PACKAGE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:src/|tests/)?[\w/]+/[\w/]+\.py)`", page)
    assert len(named) > 20
    for name in named:
        assert (PACKAGE / name).exists() or (PACKAGE.parents[1] / name).exists(), name


def test_imports_point_up() -> None:
    forbidden = []
    for path in SOURCES:
        package = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        allowed = ORDER[: ORDER.index(package) + 1]
        if path.relative_to(PACKAGE).as_posix() in CHOOSES_SPARK:
            allowed.append("spark")
        for name in imported_names(path):
            first, _, rest = name.partition(".")
            # The commands are above the public names too.
            upward = first != "dphist" or rest == "__version__" or rest.split(".")[0] in allowed
            upward = upward or (package == "cli" and name == "dphist")
            if not upward or (package in PURE and first in IMPURE):
                forbidden.append(f"{path} must not import {name}")
    assert not forbidden
