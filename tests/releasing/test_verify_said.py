"""`verify` and what a certificate says beside its plan: nothing that no release says, and no odd request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dphist
from dphist.releasing.certificate import plan_facts
from dphist.releasing.on_spark import _marked
from release_data import events, resealed, restate

BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
Document = dict[str, Any]


def check(path: Path, change: Callable[[Document], None]) -> dphist.Verification:
    certificate = Path(f"{path}.certificate.json")
    document = json.loads(certificate.read_text())
    change(document)
    certificate.write_text(resealed(document))
    return dphist.verify(path)


@pytest.fixture
def released(tmp_path: Path) -> Path:
    path = tmp_path / "out.csv"
    dphist.release(events({"tea": 900, "milk": 700}), **BUDGET, max_items_per_user=2, output=path)
    assert check(path, lambda _document: None).verified
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("true_counts", {"rare": 2}),
        ("choice", {"noisy_users": [1, 2, 3], "cap": 2}),
        ("booking", {"ledger": "a" * 32, "dataset": "shop", "entry": 3, "hash": "0" * 64}),
        ("sums", [{"name": "amount_sum"}]),
    ],
)
def test_more_than_a_release_says(name: str, value: Any, released: Path) -> None:
    assert not check(released, lambda document: document.update({name: value})).verified


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lower-threshold", -200),
        ("max-items-per-user", -5),
        ("max-items-per-user", "auto"),
        ("dataset", "shop"),
        ("weight", [0.5]),
        ("interval", 7),
        ("no-such-key", 1),
    ],
)
def test_requests_that_nobody_can_make(name: str, value: Any, released: Path) -> None:
    assert not check(released, lambda document: document["request"].update({name: value})).verified


def test_sizes_that_were_not_paid_for(tmp_path: Path) -> None:
    """The noisy sizes of a chosen cap, beside a plan that spends the whole budget on the release."""
    path = tmp_path / "out.csv"
    found = dphist.release(
        events({"tea": 900, "milk": 700}), **BUDGET, max_items_per_user="auto", mechanism="gaussian", output=path
    )
    assert found.chosen is not None
    cap = found.chosen.cap
    whole = json.loads(
        json.dumps(plan_facts(dphist.plan(epsilon=1.0, delta=1e-6, max_items_per_user=cap, mechanism="gaussian")))
    )

    def forge(document: Document) -> None:
        document["request"]["max-items-per-user"] = cap
        restate(document, whole)

    assert any("choice of a cap" in problem for problem in check(path, forge).problems)


def test_noise_of_another_sum_is_other_noise() -> None:
    rows = np.random.default_rng(1).integers(0, 256, (5, 32), dtype=np.uint8)
    some, other = np.arange(5, dtype=np.int64), np.array([0, 1, 2, 3, -4], dtype=np.int64)
    marked = _marked(rows, some)
    assert marked.shape == rows.shape
    assert (marked == _marked(rows, some)).all()
    assert (_marked(rows, other) == marked).all(axis=1).tolist() == [True] * 4 + [False]
    assert (_marked(marked, some) == rows).all()
