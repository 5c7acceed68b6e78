"""The numbers on tightness in the documentation are those that the benchmark prints."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import tightness  # noqa: E402


def test_the_worst_cases_of_the_page_are_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    tightness.print_named()
    lines = capsys.readouterr().out
    assert lines in (ROOT / "docs" / "theory" / "tightness.md").read_text(encoding="utf-8")
    assert lines.count("\n") == len(tightness.NAMED)
    assert "up to 76 % above the exact" in (ROOT / "docs" / "theory" / "top-k.md").read_text(encoding="utf-8")
    assert "with --top: 76." in lines


def test_random_certificates_are_never_below_the_exact_delta_and_within_the_page() -> None:
    """Of the first 40 cases of the page's table; the oracle is right to 1e-12, and its deltas are above 1e-6."""
    found, table = tightness.measure(40, random.Random(1), ("none",))
    assert all(value > -1e-6 for value, _, _ in found)
    assert max(value for value, _, _ in found) <= 0.5474
    assert {term for _, _, term in found} >= {"no new count", "mixed"}
    assert table.splitlines()[0] in (ROOT / "docs" / "theory" / "tightness.md").read_text(encoding="utf-8")
