"""Releases by Spark that are booked in a ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import dphist
from dphist.errors import InputError
from dphist.releasing.spending import Attempt
from release_commands import Watched, bookings, log_in, sized_events, watching
from spark_cluster import ON_SPARK
from spark_shared import shared_session

pytestmark = ON_SPARK

ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-7}


@pytest.fixture(scope="module")
def frame() -> DataFrame:
    return shared_session("local").createDataFrame(sized_events({1: 500, 3: 300, 10: 200}))


@pytest.mark.parametrize(
    "cap",
    [pytest.param({"max_items_per_user": 2}, marks=pytest.mark.slow, id="plain"), pytest.param({}, id="rounds")],
)
def test_booked_before_any_word_is_drawn(
    tmp_path: Path, frame: DataFrame, cap: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver draws the keys of the executors' noise after the booking."""
    folder = log_in(tmp_path)
    watched: Watched = watching(folder / "a.ledger", monkeypatch)
    asked = {**ASKED, **cap, "ledger": folder / "a.ledger", "dataset": "log"}
    with pytest.raises(InputError):
        dphist.release(frame, **{**asked, "item": "none"})
    assert bookings(folder) == ()
    dphist.release(frame, **asked, output=f"{folder}/out/")
    assert watched.drawn > 1
    (booking,) = bookings(folder)
    assert booking.written is not None
    document = json.loads((folder / "out" / "_certificate.json").read_text())
    assert document["booking"] == booking.receipt()
    assert dphist.verify(f"{folder}/out/").verified
    monkeypatch.setattr(Attempt, "book", lambda *_: None)
    watched.wanted = 2
    with pytest.raises(AssertionError, match="noise before its booking"):
        dphist.release(frame, **asked)
