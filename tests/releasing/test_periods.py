"""Periods: their names, words such as last-week, places in names, and the previous release."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dphist
from dphist.errors import InvalidParameter, NotVerified
from dphist.releasing.periods import fill_name, fill_period, last_period, period_at, period_in
from dphist.releasing.request import Request
from release_commands import FLAGS, bookings, command, log_in, names

EVENTS: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1, "delta": 1e-7}
BOOKED: dict[str, Any] = {"ledger": "a.ledger", "dataset": "log"}


@pytest.mark.parametrize(
    ("name", "period", "start", "end"),
    [
        ("2026-W46", "2026-W46", "2026-11-09", "2026-11-16"),
        ("queries-2026-W53.parquet", "2026-W53", "2026-12-28", "2027-01-04"),
        ("2026-11-19.csv.gz", "2026-11-19", "2026-11-19", "2026-11-20"),
        ("2026-12", "2026-12", "2026-12-01", "2027-01-01"),
        ("sold-2026-Q4.csv", "2026-Q4", "2026-10-01", "2027-01-01"),
        ("2024-02-29 of 2025-W01", "2025-W01", "2024-12-30", "2025-01-06"),
    ],
)
def test_names_of_periods(name: str, period: str, start: str, end: str) -> None:
    found = period_in(name)
    assert found is not None
    assert (found.name, found.start.isoformat(), found.end.isoformat()) == (period, start, end)


@pytest.mark.parametrize(
    "name", ["2026", "weekly-2026-46", "2026-W54", "2025-W53", "2026-13", "x12026-11", "2026-02-30", ""]
)
def test_names_without_a_period(name: str) -> None:
    assert period_in(name) is None


@pytest.mark.parametrize("kind", ["day", "week", "month", "quarter"])
def test_periods_follow_each_other_without_gaps(kind: str) -> None:
    period = period_at(date(2023, 12, 31), kind)
    for _ in range(120):
        following = period.following()
        assert (following.start, following.kind) == (period.end, kind)
        assert period_in(following.name) == following
        assert period_at(following.end - timedelta(1), kind) == following
        period = following


@pytest.mark.parametrize(
    ("word", "today", "period"),
    [
        ("last-week", date(2026, 11, 16), "2026-W46"),
        ("last-week", date(2026, 11, 22), "2026-W46"),
        ("last-week", date(2027, 1, 4), "2026-W53"),
        ("yesterday", date(2024, 3, 1), "2024-02-29"),
        ("last-month", date(2026, 1, 31), "2025-12"),
        ("last-quarter", date(2026, 2, 1), "2025-Q4"),
    ],
)
def test_the_period_that_ended_last(word: str, today: date, period: str) -> None:
    assert last_period(word, today).name == period


def test_a_command_that_never_changes() -> None:
    request = Request(
        ["logs/{period}/*.csv", "late/{period}.csv"], **EVENTS, **BOOKED, id="queries-last-week",
        where="day >= '{start}' AND day < '{end}' AND tags = '{}'", output=Path("out/{period}.parquet"),
        input_name="{period} is no place here",
    )  # fmt: skip
    filled = fill_period(request, date(2026, 11, 19))
    assert filled.id == "queries-2026-W46"
    assert filled.input == ["logs/2026-W46/*.csv", "late/2026-W46.csv"]
    assert filled.where == "day >= '2026-11-09' AND day < '2026-11-16' AND tags = '{}'"
    assert filled.output == "out/2026-W46.parquet"
    assert filled.input_name == request.input_name
    assert fill_name("reports/{period}.html", filled) == "reports/2026-W46.html"
    assert fill_period(filled, date(2020, 1, 1)) == filled, "a filled request has its period"


def test_other_requests_are_unchanged() -> None:
    for request in (
        Request("log.csv", **EVENTS),
        Request("log.csv", **EVENTS, **BOOKED, id="weekly 46", output="a.csv"),
    ):
        assert fill_period(request) == request
    frame = pd.DataFrame({"item": ["tea"]})
    known = Request("log.csv", **EVENTS, known=frame)
    assert fill_period(known).known is frame


@pytest.mark.parametrize("given", [{}, {**BOOKED, "id": "first"}])
def test_places_need_a_period(given: dict[str, Any]) -> None:
    request = Request("log.csv", **EVENTS, **given, output="{period}.csv")
    with pytest.raises(InvalidParameter, match=r"output has \{period\}, .* come from id: give one with a period"):
        fill_period(request)
    with pytest.raises(InvalidParameter, match="the input has"):
        fill_period(replace(request, input="{start}.csv", output="a.csv"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return log_in(tmp_path, accounting="auto")


WEEKLY = ["release", "events.parquet", "--user", "user", "--item", "item", "--epsilon", "0.5", "--delta", "1e-8"]
WEEKLY += [
    "--ledger",
    "a.ledger",
    "--dataset",
    "log",
    "--known",
    "previous",
    "-o",
    "out/{period}.parquet",
    "--json",
]


def known_of(path: str) -> object:
    request = dphist.verify(path)
    assert request.verified, request

    return json.loads(Path(f"{path}.certificate.json").read_text())["request"].get("known")


def test_known_previous_is_the_newest_earlier_release(folder: Path) -> None:
    for id in ("2026-W10", "2026-W12", "2026-W11", "2026-W12"):
        done = command(folder, *WEEKLY, "--id", id)
        # The last run finds its own release, but another previous one than its first run.
        assert done.code == (0 if len(bookings(folder)) < 3 or id == "2026-W11" else 2), done.err
    assert "known was" in done.err
    assert [known_of(f"out/2026-W{week}.parquet") for week in (10, 11, 12)] == [
        None, "2026-W10.parquet", "2026-W10.parquet",
    ]  # fmt: skip
    done = command(folder, *WEEKLY, "--id", "2026-W10")
    assert done.code == 0
    assert done.data["already"] is True
    assert [booking.id for booking in bookings(folder)] == ["2026-W10", "2026-W12", "2026-W11"]


def test_a_previous_release_that_does_not_verify_is_refused_before_booking(folder: Path) -> None:
    assert command(folder, *WEEKLY, "--id", "2026-W10").code == 0
    Path("out/2026-W10.parquet.certificate.json").unlink()
    done = command(folder, *WEEKLY, "--id", "2026-W11")
    assert (done.code, len(bookings(folder))) == (1, 1)
    assert "the previous release out/2026-W10.parquet is not verified" in done.err
    seeded = dict(EVENTS, seed=1)
    dphist.release("events.parquet", **seeded, output="out/2026-W10.csv")
    with pytest.raises(NotVerified, match="made from a seed"):
        dphist.release("events.parquet", **EVENTS, known="previous", output="out/2026-W11.csv")
    found = dphist.release("events.parquet", **seeded, known="previous", output="out/2026-W11.csv")
    assert found.request.known == "2026-W10.csv"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "which must be a file"),
        ({"output": "a.duckdb", "output_table": "2026-W10"}, "which must be a file"),
        ({"output": "a.csv"}, "needs a period in the name"),
    ],
)
def test_known_previous_needs_a_file_with_a_period(folder: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        dphist.release("events.parquet", **EVENTS, known="previous", **given)


def test_an_id_of_a_period_names_files_and_the_report(folder: Path) -> None:
    words = [
        "release",
        "{period}.parquet",
        *FLAGS,
        "--ledger",
        "a.ledger",
        "--dataset",
        "log",
        "--id",
        "x-2026-11-19",
    ]
    (folder / "events.parquet").rename(folder / "2026-11-19.parquet")
    done = command(folder, *words, "-o", "out/{period}.csv", "--report", "out/{period}.html")
    assert done.code == 0, done.err
    assert names(folder / "out") == {"2026-11-19.csv", "2026-11-19.csv.certificate.json", "2026-11-19.html"}
    assert [booking.id for booking in bookings(folder)] == ["x-2026-11-19"]
    again = command(folder, *words, "-o", "out/{period}.csv", "--report", "out/{period}.html")
    assert again.out.startswith("Already released")
    dry = command(folder, *words, "-o", "out/{period}.csv", "--dry-run", "--json")
    assert dry.data["request"]["input"] == "2026-11-19.parquet"
