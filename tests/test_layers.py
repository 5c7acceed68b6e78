"""The layer diagram is a test: each layer imports only from those before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dphist

PACKAGE = Path(dphist.__file__).parent
# Each layer with the layers it may use, itself aside.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "publishing": set(),
    "types": {"errors"},
    "numerics": {"types", "errors"},
    "sampling": {"types", "errors", "numerics"},
    "engines": {"types", "errors", "extras", "publishing"},
    "outputs": {"types", "errors", "extras", "publishing"},
    "signatures": {"errors", "outputs", "publishing"},
    "analysis": {"types", "errors", "numerics"},
    "mechanisms": {"types", "errors", "numerics", "analysis", "sampling"},
    "calibrate": {"types", "errors", "numerics", "analysis", "mechanisms"},
    "accounting": {"types", "errors", "extras", "numerics", "analysis", "calibrate"},
    "ledger": {"types", "errors", "outputs", "publishing", "signatures"},
    "audit": {"types", "errors", "numerics", "analysis", "sampling", "mechanisms", "calibrate"},
    "releases": {
        "types", "errors", "numerics", "analysis", "sampling", "mechanisms", "calibrate", "engines", "ledger",
        "outputs", "extras", "accounting", "signatures",
    },
    "sketch": {"types", "errors", "extras", "publishing", "engines", "outputs", "releases", "calibrate"},
    "simulation": {
        "types", "errors", "numerics", "calibrate", "mechanisms", "sampling", "engines", "releases",
    },
    "report": {
        "types", "errors", "numerics", "analysis", "mechanisms", "calibrate", "accounting", "outputs", "releases",
        "publishing", "signatures",
    },
    "cli": {
        "types", "errors", "outputs", "calibrate", "releases", "sketch", "report", "ledger", "audit", "accounting",
        "simulation", "figures", "signatures", "web",
    },
    "figures": {"types", "errors", "accounting", "calibrate", "report", "simulation"},
    "opendp": {"types", "errors", "accounting", "releases"},
    "web": {"types", "errors", "calibrate", "releases", "report", "simulation"},
}  # fmt: skip
# Packages that a layer must not know: pure mathematics has no randomness and no I/O.
FORBIDDEN = {
    "numerics": {"random", "secrets", "os", "pathlib"},
    "analysis": {"random", "secrets", "os", "pathlib"},
    "calibrate": {"random", "secrets", "os", "pathlib"},
}


def layer_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports_of(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def loaded_by_name(path: Path) -> list[str]:
    """What `import_module` is given, up to where a name is filled in."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "import_module":
            given = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            names += [given.value] if isinstance(given, ast.Constant) and isinstance(given.value, str) else []
    return names


SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.name not in ("__main__.py",)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_the_left(path: Path) -> None:
    layer = layer_of(path)
    if layer == "__init__":
        return
    assert layer in ALLOWED, f"{layer} is no layer of the design"
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "dphist" and parts[1] != "__version__":
            assert parts[1] in ALLOWED[layer] | {layer}, f"{layer} must not import {name}"
        assert parts[0] not in FORBIDDEN.get(layer, set()), f"{layer} must not import {name}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_loaded_by_name_are_of_the_layer_or_figures(path: Path) -> None:
    """A result draws itself, by `figure()`: matplotlib and all that is drawn with it come when it is called."""
    layer = layer_of(path)
    for name in loaded_by_name(path):
        parts = name.split(".")
        if parts[0] == "dphist" and layer != "__init__":
            assert parts[1] in {layer, "figures"}, f"{layer} must not load {name}"
