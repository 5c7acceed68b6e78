"""A small release in any format, for the tests of `verify`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import dphist
from release_data import events


@pytest.fixture
def released(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a release under this name."""

    def release(name: str) -> Path:
        dphist.release(
            events({"tea": 900, "milk": 700}), user="user", item="item", epsilon=1.0, delta=1e-6,
            max_items_per_user=2, output=tmp_path / name,
        )  # fmt: skip
        return tmp_path / name

    return release
