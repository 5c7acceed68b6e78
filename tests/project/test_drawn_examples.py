"""Examples are drawn the same way whatever else is loaded, as `conftest` promises."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []

    @settings(max_examples=60)  # the whole number, also where `make test` draws a part of it
    @given(st.floats(), st.integers(), st.text())
    def example(number: float, whole: int, text: str) -> None:
        found.append((repr(number), whole, text))

    example()
    return found


def test_examples_do_not_depend_on_the_modules_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(
        "hypothesis.internal.constants_ast", reason="this Hypothesis draws no constants of modules"
    )
    before = drawn()
    assert drawn() == before
    assert len(before) > 50
    # As many new constants as another test brings that loads a part of the package.
    (tmp_path / "loaded.py").write_text(f"NUMBERS = {[(n + 0.125, 10**6 + n, f'text {n}') for n in range(300)]}\n")
    module = ModuleType("loaded_meanwhile")
    module.__file__ = str(tmp_path / "loaded.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert drawn() == before
