from __future__ import annotations

import pytest

from dphist.report import facts


@pytest.fixture
def quick_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three points of the curve are as good as all for most tests; what is `made` has all of them."""
    monkeypatch.setattr(facts, "_POINTS", 3)
    monkeypatch.setattr(facts, "_POINTS_SHARED", 3)
