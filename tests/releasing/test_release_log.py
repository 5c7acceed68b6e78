"""The log of a release: silent unless configured, and the same whatever the data is."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest

import dphist
from dphist.ledger import Ledger
from release_commands import command
from release_data import events
from report_cases import BUDGET

STEPS = ["request", "check", "plan", "book", "count and noise", "write", "settle"]
COUNTS = {"secret-item": 900, "rare": 2}


def logged(caplog: pytest.LogCaptureFixture, table: Any, folder: Path, **options: Any) -> list[tuple[str, str]]:
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="dphist"):
        dphist.release(table, **BUDGET, **options, output=folder / "out.csv", force=True)
    return [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "dphist"]


def test_each_step_has_one_record_with_whole_seconds(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    for limit in ({}, {"max_items_per_user": 1}):
        logged(caplog, events(COUNTS), tmp_path, **limit)
        infos = [record for record in caplog.records if record.levelno == logging.INFO]
        assert [vars(record)["step"] for record in infos] == STEPS
        for record in infos:
            seconds = vars(record)["seconds"]
            assert isinstance(seconds, int)
            assert seconds >= 1
            assert record.getMessage().endswith(f": at most {seconds} s")


def test_durations_are_rounded_up(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    ticks = iter(range(100))
    with mock.patch("dphist.releasing.steps.time", mock.Mock(monotonic=lambda: 2.3 * next(ticks))):
        logged(caplog, events(COUNTS), tmp_path, max_items_per_user=1)
    infos = [record for record in caplog.records if record.levelno == logging.INFO]
    assert [vars(record)["seconds"] for record in infos] == [3] * len(STEPS)


@pytest.mark.parametrize("limit", [{}, {"max_items_per_user": 2}, {"top": 3}])
def test_records_are_the_same_for_all_data(
    limit: dict[str, int], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Apart from time, which stands still here; a seeded run of each, so that nothing differs by chance."""
    data = (COUNTS, {"other": 5000, "more": 4000, "third": 10}, {"only one": 1})
    with mock.patch("dphist.releasing.steps.time", mock.Mock(monotonic=lambda: 0.0)):
        found = [logged(caplog, events(counts), tmp_path, seed=1, **limit) for counts in data]
    assert found[0] == found[1] == found[2]
    text = " ".join(message for _, message in found[0])
    assert "epsilon: 1.0" in text
    assert "secret" not in text
    assert "900" not in text


def test_it_names_the_booking_and_an_earlier_result_but_no_condition_or_input(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    pq.write_table(events(COUNTS), tmp_path / "private-name.parquet")
    Ledger.init(tmp_path / "budget.ledger", "shop", epsilon=5.0, delta=1e-5)
    asked: dict[str, Any] = {
        "ledger": tmp_path / "budget.ledger", "dataset": "shop", "id": "week-46", "where": "item <> 'Ann Example'",
    }  # fmt: skip
    first = logged(caplog, tmp_path / "private-name.parquet", tmp_path, **asked)
    entry = Ledger.open(tmp_path / "budget.ledger").account("shop").bookings[0].number
    assert ("DEBUG", f"entry: {entry}") in first
    assert ("DEBUG", "dataset: shop") in first
    assert not [message for _, message in first if "Ann" in message or "private-name" in message]
    again = logged(caplog, tmp_path / "private-name.parquet", tmp_path, **asked)
    assert again[-1] == ("INFO", "already released under this id: nothing is drawn or booked")
    assert len(again) < 5


def test_it_is_silent_unless_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pq.write_table(events(COUNTS), tmp_path / "log.parquet")
    words = ["release", "log.parquet", "--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
    quiet = [*words, "-o", "out.csv", "--force", "-q"]
    handlers = list(logging.getLogger("dphist").handlers)
    done = command(tmp_path, *quiet)
    assert (done.code, done.out, done.err) == (0, "", "")
    done = command(tmp_path, *quiet, "-v")
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == len(STEPS)
    assert all(" dphist: step" in line for line in lines)
    # Times of records have no fractions of seconds either.
    assert all(len(line.split(" dphist:")[0]) == len("2026-11-16 04:17:03") for line in lines)
    more = command(tmp_path, *quiet, "-vv").err.splitlines()
    assert any(line.endswith("dphist: engine: duckdb") for line in more)
    assert len(more) > len(lines)
    # Nothing of it stays.
    logger = logging.getLogger("dphist")
    assert (logger.handlers, logger.level) == (handlers, logging.NOTSET)
    assert not [one for one in logger.handlers if getattr(one, "stream", None) in (sys.stderr, sys.stdout)]
