"""`series` and `plan_series`: verified releases in one table, refusals, costs, and a year that fits its ledger."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.accounting import gaussian_of_plan
from dphist.certificate.numbers import half_width
from dphist.errors import InputError, InvalidParameter, NotVerified, OutputError, OverBudget
from dphist.ledger import Ledger
from dphist.ledger.accounts import Account
from dphist.model import Budget
from dphist.proof.gaussian import delta_of_squared_move
from dphist.releasing.series import cost_of
from dphist.releasing.spending import price_of
from release_commands import command
from release_data import events

WEEKS = {
    "2026-W52": {"tea": 900, "milk": 700, "bread": 500},
    "2026-W53": {"tea": 950, "milk": 650, "late": 400},
    "2027-W02": {"tea": 990, "milk": 20, "bread": 500, "late": 450},
}
OPTIONS: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1, "delta": 1e-7, "max_items_per_user": 2}


def release_into(folder: Path, name: str, counts: dict[str, int], **options: Any) -> dphist.Release:
    return dphist.release(events(counts), **{**OPTIONS, **options}, output=folder / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three releases, of which one week in between has none.

    A count of 400 passes and one of 20 does not, except with a probability below 1e-12.
    """
    folder = tmp_path_factory.mktemp("made") / "releases"
    folder.mkdir()
    for week, counts in WEEKS.items():
        release_into(folder, f"queries-{week}.parquet", counts, mechanism="gaussian")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "releases"))


def test_releases_are_stacked_in_the_order_of_their_periods(made: Path) -> None:
    series = dphist.series(made)
    single = {week: pq.read_table(made / f"queries-{week}.parquet") for week in WEEKS}
    assert series.table.column_names == ["item", "period", "count", "margin"]
    assert series.table.column("period").to_pylist() == [
        w for w, table in single.items() for _ in range(table.num_rows)
    ]
    assert series.table.column("count").to_pylist() == [
        c for t in single.values() for c in t.column("count").to_pylist()
    ]
    (margin,) = set(series.table.column("margin").to_pylist())
    assert margin == half_width(series.parts[0].plan, 0.95)
    assert [period.name for period in series.periods] == ["2026-W52", "2026-W53", "2027-W01", "2027-W02"]
    assert [period.name for period in series.missing] == ["2027-W01"]
    assert list(series.lines) == [("tea",), ("milk",), ("bread",), ("late",)]
    assert [sorted(series.lines[item]) for item in series.lines] == [[0, 1, 3], [0, 1], [0, 3], [1, 3]]
    assert series.headline == "3 releases, 2026-W52 to 2027-W02: 4 items, 1 of them in every release"
    assert (series.private, series.cost) == (True, None)
    assert any("no release of 2027-W01" in note for note in series.notes())
    assert any("cover the noise" in note for note in series.notes())
    assert series.to_pandas().equals(series.to_polars().to_pandas())
    assert series.to_duckdb().fetchall() == series.to_arrow().to_pandas().to_records(index=False).tolist()


def test_changes_have_margins_in_quadrature(made: Path) -> None:
    series = dphist.series(made)
    changes = {row["item"]: row for row in series.changes().to_pylist()}
    assert set(changes) == {"tea", "bread"}, "only items of both periods"
    counts = {(row["item"], row["period"]): row for row in series.table.to_pylist()}
    for item, row in changes.items():
        one, two = counts[item, "2026-W52"], counts[item, "2027-W02"]
        assert row["change"] == two["count"] - one["count"] == row["after"] - row["before"]
        assert row["margin"] == pytest.approx(math.sqrt(one["margin"] ** 2 + two["margin"] ** 2))
    assert set(series.changes("2026-W52", "2026-W53").column("item").to_pylist()) == {"tea", "milk"}
    with pytest.raises(InvalidParameter, match=r"no release of 2027-W01: the series is 3 releases"):
        series.changes("2027-W01")


@pytest.mark.parametrize("name", ["s.parquet", "s.csv", "s.tsv.gz", "s.jsonl", "s.arrow"])
def test_the_table_is_written_in_every_format(made: Path, tmp_path: Path, name: str) -> None:
    series = dphist.series(made)
    series.write(tmp_path / name)
    with pytest.raises(OutputError, match="already exists"):
        series.write(tmp_path / name)
    series.write(tmp_path / name, force=True)
    if name == "s.parquet":
        assert pq.read_table(tmp_path / name).equals(series.table)
    if name == "s.csv":
        pd.testing.assert_frame_equal(pd.read_csv(tmp_path / name), series.to_pandas(), check_dtype=False)


@pytest.mark.parametrize("name", ["releases/s.csv", "s.duckdb", "s/", "nowhere/s.csv", "s.txt"])
def test_places_where_no_series_is_written(folder: Path, name: str) -> None:
    with pytest.raises((InvalidParameter, OutputError)):
        dphist.series(folder).write(folder.parent / name)
    done = command(folder.parent, "series", "releases", "-o", name)
    assert (done.code in (1, 2), done.out) == (True, "")


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "queries-2026-W53.parquet").write_bytes(b"PAR1"), "1 of 3 files .*W53.parquet: .*digest"),
        (lambda f: (f / "queries-2026-W53.parquet").unlink(), "queries-2026-W53.parquet: there is no file"),
        (lambda f: (f / "queries-2026-W53.parquet.certificate.json").unlink(), "there is no certificate"),
        (lambda f: (f / "2026-W01.csv").write_text("a,count\n"), "1 of 4 files .*2026-W01.csv: there is no cert"),
        (lambda f: rename(f, "queries-2026-W53.parquet", "2026-W40.parquet"), "released as .*W53.*another period"),
        (lambda f: rename(f, "queries-2026-W53.parquet", "third.parquet"), "third.parquet: its name has no"),
        (lambda f: (f / "2026-W01.duckdb").write_bytes(b"12345678DUCK"), "2026-W01.duckdb"),
    ],
)  # fmt: skip
def test_nothing_is_skipped(folder: Path, harm: Any, message: str) -> None:
    harm(folder)
    with pytest.raises(NotVerified, match=message):
        dphist.series(folder)
    done = command(folder.parent, "series", "releases", "-o", "s.csv", "--report", "s.html")
    assert (done.code, done.out, (folder.parent / "s.csv").exists()) == (1, "", False)


def rename(folder: Path, old: str, new: str) -> None:
    for ending in ("", ".certificate.json"):
        (folder / f"{old}{ending}").rename(folder / f"{new}{ending}")


def test_other_names_are_named(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    (folder / ".hidden.csv").write_text("")
    assert dphist.series(folder).ignored == ("notes.txt",)
    assert "No data files, left out: notes.txt." in command(folder.parent, "series", "releases").out


def test_releases_that_do_not_fit_together(folder: Path) -> None:
    others: list[tuple[str, dict[str, Any], str]] = [
        ("2027-W03.csv", {"item": "query=item"}, r"most have the columns item, count, but .* query, count"),
        ("2027-W03.csv", {"count_name": "users"}, r"2027-W03.csv has the columns item, users"),
        ("2027-03.csv", {}, r"periods of one length: most have a week, but 2027-03.csv has a month"),
        ("2026-W52.csv", {}, r"2026-W52.csv and queries-2026-W52.parquet are both of 2026-W52"),
    ]  # fmt: skip
    for name, options, message in others:
        release_into(folder, name, WEEKS["2026-W52"], **options)
        with pytest.raises(InvalidParameter, match=message):
            dphist.series(folder)
        for path in folder.glob(f"{name}*"):
            path.unlink()
    renamed = events(WEEKS["2026-W52"]).rename_columns(["person", "item"])
    dphist.release(renamed, **{**OPTIONS, "user": "person"}, output=folder / "2027-W03.csv")
    with pytest.raises(
        InvalidParameter, match=r"the same users: most have the user column user, but 2027-W03\.csv"
    ):
        dphist.series(folder)


def test_an_empty_folder_and_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no release in"):
        dphist.series(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        dphist.series(tmp_path / "nowhere")


def test_other_plans_and_intervals_are_named(folder: Path) -> None:
    release_into(folder, "2027-W03.csv", WEEKS["2026-W52"], epsilon=2, interval=0.99)
    series = dphist.series(folder)
    assert series.table.column_names == ["item", "period", "count", "margin", "low", "high"]
    new = [row for row in series.table.to_pylist() if row["period"] == "2027-W03"]
    assert all(row["low"] < row["count"] < row["high"] for row in new)
    assert all(row["low"] is None for row in series.table.to_pylist() if row["period"] != "2027-W03")
    (note,) = [note for note in series.notes() if note.startswith("The plan changes")]
    assert "ε = 1, δ = 1e-7, gshm (2026-W52 to 2027-W02); then ε = 2" in note
    assert "margins of 99 %" in note


def test_releases_in_rounds_and_without_rows(tmp_path: Path) -> None:
    rounds = {**OPTIONS, "max_items_per_user": None}
    dphist.release(events(WEEKS["2026-W52"]), **rounds, output=tmp_path / "2026-12-01.csv")
    dphist.release(events({"rare": 1}), **{**rounds, "delta": 1e-15}, output=tmp_path / "2026-12-02.parquet")
    series = dphist.series(tmp_path)
    first = pd.read_csv(tmp_path / "2026-12-01.csv")
    assert series.table.column("margin").to_pylist() == first["margin"].tolist()
    assert [part.rows for part in series.parts] == [len(first), 0]
    assert series.parts[1].margin is None
    assert series.changes().num_rows == 0
    assert "2026-12-01" in str(series)


def test_seeded_releases_are_not_private(tmp_path: Path) -> None:
    release_into(tmp_path, "2026-W01.csv", WEEKS["2026-W52"], seed=1)
    series = dphist.series(tmp_path)
    assert not series.private
    assert str(series).startswith("NOT PRIVATE")
    assert series.cost_words().startswith("NOT PRIVATE")


def test_releases_by_another_key_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "releases"
    place.mkdir()
    for name in ("a.key", "b.key"):
        command(tmp_path, "keygen", name)
    release_into(place, "2026-W01.csv", WEEKS["2026-W52"], sign=tmp_path / "a.key")
    assert len(dphist.series(place, public_key=tmp_path / "a.key.pub")) == 1
    with pytest.raises(NotVerified, match="key"):
        dphist.series(place, public_key=tmp_path / "b.key.pub")


# What it costs.


def book_weeks(tmp_path: Path, weeks: int) -> Path:
    place = tmp_path / "releases"
    place.mkdir()
    Ledger.init(tmp_path / "a.ledger", "log", epsilon=3, delta=1e-6)
    for week in range(1, weeks + 1):
        release_into(
            place, f"2026-W{week:02}.csv", WEEKS["2026-W52"], epsilon=0.4, delta=1e-8, max_items_per_user=None,
            ledger=tmp_path / "a.ledger", dataset="log",
        )  # fmt: skip
    return place


def test_the_cost_of_bookings_of_one_ledger(tmp_path: Path) -> None:
    place = book_weeks(tmp_path, 3)
    series = dphist.series(place)
    account = Ledger.open(tmp_path / "a.ledger").account("log")
    assert series.cost is not None
    assert (series.cost.dataset, series.cost.ledger) == ("log", account.bookings[0].ledger)
    assert series.cost.epsilon < 1.2
    assert series.cost.delta == pytest.approx(3e-8)
    assert "Together the 3 releases cost each user ε = " in series.cost_words()
    assert [part.booking["entry"] for part in series.parts if part.booking] == [b.number for b in account.bookings]
    release_into(place, "2026-W04.csv", WEEKS["2026-W52"])
    assert dphist.series(place).cost is None
    assert "not all booked for one dataset of one ledger" in dphist.series(place).cost_words()


def test_a_ledger_that_was_replaced_by_an_earlier_copy_states_no_cost(tmp_path: Path) -> None:
    ledger, copy, place = tmp_path / "a.ledger", tmp_path / "copy", tmp_path / "releases"
    place.mkdir()
    Ledger.init(ledger, "log", epsilon=3, delta=1e-6)
    shutil.copy(ledger, copy)
    for week in ("2026-W01", "2026-W02"):
        shutil.copy(copy, ledger)
        release_into(
            place, f"{week}.csv", WEEKS["2026-W52"], epsilon=0.4, delta=1e-8, max_items_per_user=None,
            ledger=ledger, dataset="log",
        )  # fmt: skip
    assert dphist.series(place).cost is None


@pytest.mark.parametrize("times", [1, 4, 52])
def test_the_cost_is_certified_and_the_least_of_both_rules(times: int) -> None:
    plans = [dphist.plan(epsilon=0.4, delta=1e-8, mechanism="gaussian")] * times
    epsilon, delta, rule = cost_of(plans)
    whole = float(sum(Fraction(plan.budget.delta) for plan in plans))
    assert (rule == "sum") == (times == 1)
    assert delta >= whole if rule == "sum" else whole / 2 < delta <= whole * (1 + 1e-9)
    assert epsilon <= 0.4 * times * (1 + 1e-9)
    if epsilon < 0.4 * times * (1 - 1e-9):
        move = gaussian_of_plan(plans[0])
        events_delta = times * move.event
        assert delta_of_squared_move(times * move.squared, epsilon=epsilon) + events_delta <= delta
        assert delta_of_squared_move(times * move.squared, epsilon=0.98 * epsilon) + events_delta > delta
    assert (times == 1) <= (epsilon == pytest.approx(0.4))
    assert times < 52 or epsilon < 4


def test_a_cost_within_its_ledger_is_stated_within_it(tmp_path: Path) -> None:
    """The sum of the deltas exceeds the total, which the ledger accepts by what was spent."""
    Ledger.init(tmp_path / "a.ledger", "log", epsilon=1, delta=1e-6)
    place = tmp_path / "releases"
    place.mkdir()
    for week in (1, 2, 3):
        release_into(
            place, f"2026-W{week:02}.csv", WEEKS["2026-W52"], epsilon=0.5, delta=3.6e-7, max_items_per_user=None,
            ledger=tmp_path / "a.ledger", dataset="log",
        )  # fmt: skip
    series = dphist.series(place)
    assert sum(part.budget.delta for part in series.parts) > 1e-6
    assert series.cost is not None
    assert series.cost.epsilon < 1
    assert series.cost.delta == 1e-6
    assert series.cost.rule == "gdp-rounded"
    moves = [gaussian_of_plan(part.plan) for part in series.parts]
    squared, event = sum(Fraction(m.squared) for m in moves), sum(Fraction(m.event) for m in moves)
    assert Fraction(delta_of_squared_move(Fraction(squared), epsilon=series.cost.epsilon)) + event <= Fraction(
        1e-6
    )
    assert "and δ = 1e-06, by gdp accounting at the sum of their δ, rounded down to one digit" in str(series.cost)
    assert series.to_dict()["cost"]["rule"] == "gdp-rounded"


def test_costs_that_cannot_be_rounded_down() -> None:
    """Of plans with a limit nearly all of delta is that of events; of one release its own budget is the cost."""
    limited = dphist.plan(epsilon=0.4, delta=3.6e-7, mechanism="gaussian", max_items_per_user=2)
    epsilon, delta, rule = cost_of([limited] * 3)
    assert rule == "gdp"
    assert delta == pytest.approx(1.08e-6)
    assert epsilon < 1.2
    epsilon, delta, rule = cost_of([limited])
    assert (rule, epsilon) == ("sum", 0.4)
    assert delta == pytest.approx(3.6e-7)


# Totals, sums and means.

DAYS: dict[str, Any] = {"user": "user", "item": ["item", "day"], "epsilon": 8, "delta": 1e-3, "total": "day"}


def days(named: int, unnamed: int) -> pa.Table:
    """Of one item, so many users on each of two named days, and so many, all others, without a day."""
    users = 2 * named + unnamed
    return pa.table({
        "user": range(users), "item": ["tea"] * users,
        "day": ["a"] * named + ["b"] * named + [None] * unnamed, "spent": [0.5] * users,
    })  # fmt: skip


def series_with_totals(folder: Path) -> dphist.Series:
    for week, unnamed in (("2026-W01", 3000), ("2026-W02", 5000)):
        dphist.release(days(1000, unnamed), **DAYS, null_items=True, output=folder / f"{week}.csv")
    return dphist.series(folder)


def test_a_total_is_not_a_missing_value(tmp_path: Path) -> None:
    """Margins are below 20, and differences in the thousands."""
    series = series_with_totals(tmp_path)
    assert series.items == ("item", "day", "total")
    assert series.table.column_names == ["item", "day", "total", "period", "count", "margin"]
    assert series.table.schema.field("total").type == pa.bool_()
    assert set(series.lines) == {
        ("tea", "a", False), ("tea", "b", False), ("tea", None, False), ("tea", None, True),
    }  # fmt: skip
    assert series.always == 4
    changes = {(row["day"], row["total"]): row for row in series.changes().to_pylist()}
    assert len(changes) == 4
    for mark, before in ((False, 3000), (True, 5000)):
        assert changes[None, mark]["before"] == pytest.approx(before, abs=300)
        assert changes[None, mark]["change"] == pytest.approx(2000, abs=300)


def test_totals_are_shown_as_all(tmp_path: Path) -> None:
    series = series_with_totals(tmp_path)
    assert series.columns[:2] == ("item", "day")
    assert [row[:2] for row in series.cells()[:2]] == [("tea", "(all)"), ("tea", "(missing)")]
    assert "total" not in series.columns
    done = command(tmp_path.parent, "series", str(tmp_path))
    assert "(all)" in done.out
    json.dumps(series.to_dict())


def test_releases_with_other_totals(tmp_path: Path) -> None:
    series_with_totals(tmp_path)
    for total, message in (
        ("item", "need the same total: most have totals over day, but 2026-W03.csv has totals over item"),
        ((), "the columns item, day, total, count, but 2026-W03.csv has the columns item, day, count"),
    ):
        dphist.release(days(900, 900), **{**DAYS, "total": total}, output=tmp_path / "2026-W03.csv", force=True)
        with pytest.raises(InvalidParameter, match=message):
            dphist.series(tmp_path)


def test_sums_and_means_are_named_as_left_out(tmp_path: Path) -> None:
    sums = {"sum": "spent:0:1", "mean": "spent:0:1"}
    for week, options in (("2026-W01", DAYS), ("2026-W02", {**DAYS, **sums})):
        dphist.release(days(900, 900), **options, output=tmp_path / f"{week}.csv")
    series = dphist.series(tmp_path)
    assert series.table.column_names == ["item", "day", "total", "period", "count", "margin"]
    (note,) = [note for note in series.notes() if "left out" in note]
    assert note == ("Sums, means and vectors are left out (spent_sum and spent_mean): the releases have them.")
    assert note in series.to_dict()["notes"]


# A plan for a year.


@pytest.mark.parametrize("accounting", ["auto", "gdp", "zcdp", "sum"])
@pytest.mark.parametrize(
    "asked",
    [
        {"weeks": 52}, {"days": 365}, {"releases": 1}, {"quarters": 4, "max_items_per_user": 20},
        {"months": 12, "top": 100}, {"releases": 2, "max_items_per_user": 1}, {"releases": 3, "public_items": 50},
    ],
)  # fmt: skip
def test_so_many_releases_fit(tmp_path: Path, accounting: str, asked: dict[str, Any]) -> None:
    """By composing them, and the budget is not much below the largest."""
    Ledger.init(tmp_path / "a", "log", epsilon=3, delta=1e-6, accounting=accounting)
    planned = dphist.plan_series(tmp_path / "a", "log", **asked)
    number = next(iter(asked.values()))
    account = Account("log", Budget(3, 1e-6), accounting, by_first=accounting == "auto")
    spend, composer = price_of(planned.plan, account)
    assert account.more_that_fit(spend, composer) >= number
    assert planned.budget.epsilon >= 0.8 * 3 / number
    assert planned.budget.delta <= 1e-6 / number
    if {"weeks", "days"} & set(asked) and accounting != "sum":
        larger = dphist.plan(
            epsilon=1.2 * planned.budget.epsilon, delta=planned.budget.delta, mechanism="gaussian"
        )
        assert account.more_that_fit(*price_of(larger, account)) < number
        assert planned.shown[0].users is not None
        assert planned.shown[0].users < planned.shown[1].users  # type: ignore[operator]
    assert json.loads(json.dumps(planned.to_dict()))["releases"] == number


def test_the_rest_of_a_year(tmp_path: Path) -> None:
    """Plans from what is left; the command works as it is printed, and names the columns of the last booking."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "releases").mkdir()
    Ledger.init(tmp_path / "a.ledger", "log", epsilon=3, delta=1e-6)
    whole = dphist.plan_series(tmp_path / "a.ledger", "log", weeks=52)
    users = pa.table({"who": [f"u{n}" for n in range(900)], "what": ["tea"] * 900})
    for week in (1, 2):
        pq.write_table(users, tmp_path / "logs" / f"2026-W0{week}.parquet")
    words = shlex.split(whole.command.replace("last-week", "2026-W01").replace("query", "what"))
    words = [word.replace("user_id", "who").replace(f"{tmp_path}/", "") for word in words]
    done = command(tmp_path, *words[1:])
    assert done.code == 0, done.err
    rest = dphist.plan_series(tmp_path / "a.ledger", "log", weeks=51)
    assert rest.budget.epsilon == pytest.approx(whole.budget.epsilon, rel=0.05)
    assert rest.fit.fixes is None
    words = shlex.split(rest.command.replace("last-week", "2026-W02"))
    assert words[3:7] == ["--user", "who", "--item", "what"]
    assert command(tmp_path, *words[1:]).code == 0
    assert len(dphist.series(tmp_path / "releases")) == 2


@pytest.mark.slow
def test_a_series_in_what_is_left_of_a_budget(tmp_path: Path) -> None:
    place = tmp_path / "a.ledger"
    Ledger.init(place, "log", epsilon=0.5, delta=1e-7, accounting="gdp")
    release_into(
        tmp_path, "one.csv", WEEKS["2026-W52"], epsilon=0.4, delta=9e-8, max_items_per_user=None, ledger=place,
        dataset="log",
    )  # fmt: skip
    fitted = dphist.plan_series(place, "log", releases=1)
    assert fitted.budget.epsilon < 0.4
    done = command(tmp_path, "ledger", "plan", "a.ledger", "--dataset", "log", "--weeks", "1000000", "--json")
    assert (done.code, done.out) == (3, "")


def test_a_year_that_does_not_fit(tmp_path: Path) -> None:
    place = tmp_path / "a.ledger"
    Ledger.init(place, "log", epsilon=0.5, delta=1e-7, accounting="gdp")
    with pytest.raises(InvalidParameter, match="weeks must be"):
        dphist.plan_series(place, "log", weeks=0)
    with pytest.raises(InvalidParameter, match="one of weeks"):
        dphist.plan_series(place, "log")
    ledger = Ledger.init(tmp_path / "b", "log", epsilon=1, delta=1e-6, accounting="sum")
    ledger.book("log", dphist.ledger.Spend(1.0, 1e-6), dphist.ledger.SumComposer())
    with pytest.raises(OverBudget, match="no room for 3 more releases"):
        dphist.plan_series(tmp_path / "b", "log", releases=3)


def test_the_command_prints_the_plan_of_a_year(tmp_path: Path) -> None:
    command(tmp_path, "ledger", "init", "a", "--dataset", "log", "--epsilon", "3", "--delta", "1e-6")
    done = command(tmp_path, "ledger", "plan", "a", "--dataset", "log", "--weeks", "52")
    assert done.out.splitlines()[-1].startswith("dphist release 'logs/{period}.parquet' --user user_id")
    data = command(tmp_path, "ledger", "plan", "a", "--dataset", "log", "--weeks", "52", "--json").data
    assert (data["epsilon_each"], data["delta_each"], data["unit"]) == (0.42, 1.7e-8, "weeks")
    assert shlex.split(done.out.splitlines()[-1]) == shlex.split(data["command"])
    for words in ([], ["--weeks", "3", "--days", "4"], ["--epsilon", "1"], ["--weeks", "3", "--epsilon", "1"]):
        wrong = command(tmp_path, "ledger", "plan", "a", "--dataset", "log", *words)
        assert wrong.code == 2
        assert "give --epsilon and --delta of a release, or one of --weeks" in wrong.err


def test_json_of_a_series(folder: Path) -> None:
    done = command(folder.parent, "series", "releases", "-o", "s.parquet", "--json")
    data = done.data
    assert (data["rows"], data["different_items"], data["items_in_every_release"]) == (9, 4, 1)
    assert [one["period"] for one in data["releases"]] == list(WEEKS)
    assert (data["missing_periods"], data["output"], data["report"], data["cost"]) == (
        ["2027-W01"],
        "s.parquet",
        None,
        None,
    )
    assert [chart["title"] for chart in data["charts"]] == ["tea", "milk", "bread", "late"]
    assert np.isfinite(data["releases"][0]["margin"])
    assert command(folder.parent, "series", "releases", "-q").out == ""
