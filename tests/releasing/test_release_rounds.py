"""Releases without a limit, from the command line and Python: rounds, known items, public lists, sums."""

from __future__ import annotations

import re
import struct
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.counting import rounds as counting
from dphist.errors import DphistError, InvalidParameter
from dphist.ledger import Ledger
from dphist.model import LaplaceNoise, LatticeNoise, RoundsNoise
from dphist.sampling.sampler import ExactSampler
from release_commands import certificate, command, names, sized_events

# True counts that occur nowhere else: users with one, three and ten items.
USERS = {1: 4973, 3: 3517, 10: 1213}
# These, all users, and the users of items.
SECRET = (4973, 3517, 1213, 9703, 4730)
BUDGET = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
ITEMS = 1 + 3 + 10


@cache
def log() -> pa.Table:
    return sized_events(USERS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(log(), tmp_path / "events.parquet")
    return tmp_path


def truth() -> dict[str, int]:
    table = log().group_by("item").aggregate([("user", "count_distinct")])
    return dict(zip(*(table.column(name).to_pylist() for name in ("item", "user_count_distinct")), strict=True))


def noise_of(release: dphist.Release) -> RoundsNoise:
    assert isinstance(release.plan.noise, RoundsNoise)
    return release.plan.noise


def test_the_default_has_one_count_with_its_margin_and_verifies(folder: Path) -> None:
    done = command(folder, "release", "events.parquet", *BUDGET, "--output", "out.csv", "--json")
    assert done.code == 0, done.err
    document, table = certificate(folder, "out.csv"), csv.read_csv(folder / "out.csv")
    assert table.column_names == ["item", "count", "margin"]
    assert document["plan"]["mechanism"] == "rounds"
    assert "max-items-per-user" not in document["request"]
    assert document["guarantee"] == done.data["guarantee"]
    assert (document["guarantee"]["epsilon"], document["guarantee"]["delta"]) == (1.0, 1e-6)
    assert document["plan"]["delta_certified"] <= 1e-6
    found = document["findings"]
    assert sum(found["found"]) == table.num_rows == len(truth())
    assert found["limit"] >= 1
    verified = command(folder, "verify", "out.csv")
    assert verified.code == 0
    assert "the release has the items that were found" in verified.out


def test_counts_are_near_the_numbers_of_users() -> None:
    """Within ten margins of 95 %, which are 19 deviations and more."""
    counts, expected = dphist.release(log(), **ASKED).to_arrow(), truth()
    for item, count, margin in zip(
        *(counts[name].to_pylist() for name in ("item", "count", "margin")), strict=True
    ):
        assert abs(count - expected[item]) < 10 * margin
        assert 0 < margin < expected[item]


def test_a_dry_run_says_what_to_expect_and_reads_nothing(tmp_path: Path) -> None:
    words = ["release", "not-there.parquet", *BUDGET, "--goal", "keys", "--dry-run"]
    done = command(tmp_path, *words)
    assert done.code == 0, done.err
    assert "Items are found in 5 rounds" in done.out
    assert "No event was read and nothing was released" in done.out
    data = command(tmp_path, *words, "--json").data
    assert data["request"]["goal"] == "keys"
    assert data["plan"]["proof"]["delta"] <= 1e-6
    assert names(tmp_path) == set()


def test_the_plan_is_that_of_the_command_plan(folder: Path) -> None:
    found = dphist.release(folder / "events.parquet", **ASKED, goal="keys")
    assert found.plan.noise == dphist.plan(epsilon=1.0, delta=1e-6, goal="keys").noise
    accurate = dphist.plan(epsilon=1.0, delta=1e-6)
    assert accurate.sigma < found.plan.sigma
    assert accurate.threshold > found.plan.threshold


WITH: list[list[str]] = [
    ["--items", "list.csv"],
    ["--items", "list.csv", "--sum", "spent:0:9", "--mean", "spent:0:9", "--interval", "0.9"],
    ["--sum", "spent:0:9", "--mean", "spent:0:9", "--standard-error"],
    ["--vector", "both=spent,spent:9".replace("spent,spent", "spent,more"), "--goal", "keys"],
    ["--where", "item <> 'item 0'", "--interval", "0.9", "--round", "--standard-error"],
    ["--known", "list.csv", "--mechanism", "gaussian"],
]


@pytest.mark.parametrize("more", WITH, ids=" ".join)
def test_other_options(folder: Path, more: list[str]) -> None:
    (folder / "list.csv").write_text("item\nitem 0\nitem 1\nnone\n")
    table = log()
    pq.write_table(table.append_column("more", table["spent"]), folder / "events.parquet")
    done = command(folder, "release", "events.parquet", *BUDGET, *more, "--output", "out.parquet", "--json")
    assert done.code == 0, done.err
    document, table = certificate(folder, "out.parquet"), pq.read_table(folder / "out.parquet")
    verified = dphist.verify(folder / "out.parquet")
    assert verified.verified, verified.problems
    items = set(table.column("item").to_pylist())
    if "--items" in more:
        assert items == {"item 0", "item 1", "none"}
        assert document["findings"]["found"] == [3, 0]
    if "--known" in more:
        assert {"item 0", "item 1", "none"} <= items
        assert document["findings"]["found"][0] == 3
        assert document["plan"]["alone"]["mechanism"] == "gshm"
    if "--sum" in more:
        assert {"spent_sum", "spent_mean"} <= set(table.column_names)
        # With sums, nobody is in a group of their own: each user's values count once.
        assert document["plan"]["alone"] is None
    if "--vector" in more:
        assert {"both_spent", "both_more"} <= set(table.column_names)
    if "--where" in more:
        assert "item 0" not in items
        assert table.schema.field("count").type == table.schema.field("margin").type == pa.int64()
    if "--interval" in more:
        low, count, high, margin = (
            table[name].to_numpy() for name in ("count_low", "count", "count_high", "margin")
        )
        assert (low == count - margin).all()
        assert (high == count + margin).all()


def test_sums_are_near_the_truth() -> None:
    """Users of equal activity: the weight is that of the limit, and factors make up for it."""
    rng = np.random.default_rng(3)
    user = np.repeat(np.arange(20_000), 3)
    item = rng.integers(0, 12, user.size)
    events = pa.table({"user": user, "item": item, "spent": rng.integers(2, 9, user.size)})
    found = dphist.release(
        events, user="user", item="item", sum="spent:0:30", mean="spent:0:30", epsilon=1.0, delta=1e-6
    )
    own = events.group_by(["user", "item"]).aggregate([("spent", "sum")])
    exact = own.group_by("item").aggregate([("spent_sum", "sum"), ("user", "count")])
    expected = {str(row["item"]): (row["spent_sum_sum"], row["user_count"]) for row in exact.to_pylist()}
    for row in found.to_arrow().to_pylist():
        total, users = expected[str(row["item"])]
        assert abs(row["spent_sum"] / total - 1.0) < 0.25
        assert abs(row["spent_mean"] / (total / users) - 1.0) < 0.25


def same_log(folder: Path, kind: str) -> Any:
    if kind == "csv":
        csv.write_csv(log(), folder / "events.csv")
    inputs: dict[str, Any] = {
        "csv": str(folder / "events.csv"), "parquet": folder / "events.parquet", "pandas": log().to_pandas(),
        "polars": pl.from_arrow(log()),
    }  # fmt: skip
    return inputs[kind]


@cache
def seeded() -> dphist.Release:
    return dphist.release(log(), **ASKED, seed=7)


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "polars"])
def test_every_kind_of_input_gives_the_same_release_for_a_seed(folder: Path, kind: str) -> None:
    ours, theirs = dphist.release(same_log(folder, kind), **ASKED, seed=7), seeded()
    assert ours.findings == theirs.findings
    assert ours.to_pandas().item.tolist() == theirs.to_pandas().item.tolist()
    assert ours.counts.tolist() == theirs.counts.tolist()
    assert isinstance(ours.to_native(), {"pandas": pd.DataFrame, "polars": pl.DataFrame}.get(kind, object))


@cache
def mixed_log() -> pa.Table:
    """Items with different numbers of users, who have up to 40 items: sums of floats are not exact."""
    rng = np.random.default_rng(5)
    has = rng.random((2000, 300)) < rng.random((2000, 1)) * 0.3 * np.arange(1, 301) ** -0.4
    user, item = np.nonzero(has)
    return pa.table({"user": user, "item": [f"item {k}" for k in item], "spent": (user % 7).astype(float)})


@pytest.mark.parametrize("seeded", [False, True])
def test_results_do_not_depend_on_the_order_of_rows_or_on_the_numbers_of_items(
    monkeypatch: pytest.MonkeyPatch, seeded: bool
) -> None:
    """Numbers of items are those of hash tables: the last bits of sums over items told how they were filled."""
    table, number, found = mixed_log(), counting.numbered_items, list[pa.Table]()
    if not seeded:
        monkeypatch.setattr(ExactSampler, "_sample", lambda _, n, *__: np.zeros(n, np.int64))
    for turn in range(4):
        if not seeded:

            def numbered(pairs: Any, known: Any, _: bool, turn: int = turn) -> str:
                return number(pairs, known, True).replace("ORDER BY i0", f"ORDER BY hash(i0 || {turn})")

            monkeypatch.setattr(counting, "numbered_items", numbered)
        rows = table.take(np.random.default_rng(turn).permutation(table.num_rows))
        release = dphist.release(
            rows, **ASKED, seed=3 if seeded else None, sum="spent:0:9", mean="spent:0:9", interval=0.9,
            standard_error=True,
        )  # fmt: skip
        found.append(release.to_arrow())
    assert found[0].num_rows > 30
    assert all(other.equals(found[0]) for other in found)


def test_a_seed_repeats_the_release_and_marks_it(folder: Path) -> None:
    done = command(folder, "release", "events.parquet", *BUDGET, "--seed", "7", "--output", "out.parquet")
    assert done.code == 0, done.err
    assert "NOT PRIVATE" in done.out
    assert pq.read_table(folder / "out.parquet").equals(seeded().to_arrow())
    assert not dphist.verify(folder / "out.parquet").verified
    assert dphist.release(log(), **ASKED, seed=12).findings != seeded().findings


@pytest.mark.parametrize("events", [[], [("u", "rare")], [(f"u{n}", "one") for n in range(3)]])
def test_little_data_releases_nothing(tmp_path: Path, events: list[tuple[str, str]]) -> None:
    """No item of three users passes, with a probability of 1 - 1e-4 for each of the group of one item."""
    user, item = ([row[place] for row in events] for place in (0, 1))
    table = pa.table({"user": pa.array(user, pa.string()), "item": pa.array(item, pa.string())})
    found = dphist.release(table, **ASKED, seed=1, output=tmp_path / "out.csv")
    assert len(found) == 0
    assert "No item passed the threshold. An item needs about" in repr(found)


@pytest.mark.parametrize("items", [1, 2, 40])
def test_a_list_that_users_have_all_of_leaves_nothing_out(items: int) -> None:
    """The report said that many users have more than 1 items, of which only so many count."""
    names = [f"item {k}" for k in range(items)]
    table = pa.table({"user": np.repeat(np.arange(3000), items), "item": names * 3000})
    found = dphist.release(table, **ASKED, items=pa.table({"item": names}), seed=1)
    assert found.findings is not None
    assert found.findings.reason is None
    assert "only so many count" not in repr(found)
    assert all(abs(count - 3000) < 100 for count in found.counts)


@pytest.mark.parametrize("cap", [[], ["--max-items-per-user", "3"]])
@pytest.mark.parametrize("content", ["item\n", 'item\n""\n'])
def test_an_empty_list_is_an_error_before_anything_is_booked(folder: Path, cap: list[str], content: str) -> None:
    """It was planned as a list of one item, and its release of none could not be verified."""
    (folder / "list.csv").write_text(content)
    Ledger.init(folder / "ledger", "log", epsilon=3.0, delta=1e-5)
    booked = ["--ledger", "ledger", "--dataset", "log"]
    done = command(
        folder, "release", "events.parquet", *BUDGET, *cap, *booked, "--items", "list.csv", "--output", "out.csv"
    )
    assert done.code != 0
    assert "the list of public items is empty" in done.err
    assert "out.csv" not in names(folder)
    assert Ledger.open(folder / "ledger").account("log").bookings == ()


def test_users_with_more_items_of_a_list_than_count_are_reported() -> None:
    table = pa.table({"user": np.repeat(np.arange(300), 4000), "item": list(range(4000)) * 300})
    found = dphist.release(table, **ASKED, items=pa.table({"item": list(range(4000))}), seed=1)
    assert found.findings is not None
    assert found.findings.reason is not None
    assert "many users have more than 1024 items, of which only so many count" in found.findings.reason


def test_a_ledger_makes_the_group_of_one_item_gaussian(folder: Path) -> None:
    """Laplace noise costs many times as much there. With the rule sum it does not."""
    for rule, kind in (
        ("auto", LatticeNoise),
        ("gdp", LatticeNoise),
        ("zcdp", LatticeNoise),
        ("sum", LaplaceNoise),
    ):
        Ledger.init(folder / rule, "log", epsilon=3.0, delta=1e-5, accounting=rule)
        found = dphist.release(
            folder / "events.parquet", **ASKED, ledger=folder / rule, dataset="log", output=folder / f"{rule}.csv"
        )
        assert isinstance(noise_of(found).alone, kind), rule
        assert dphist.verify(folder / f"{rule}.csv").verified
    assert isinstance(noise_of(seeded()).alone, LaplaceNoise)


BAD: list[tuple[list[str], str]] = [
    *(
        (["--max-items-per-user", word], "is not a whole number")
        for word in ("auto", "1.5", "", "nan", "٣x", "--5", "9" * 5000)
    ),
    (["--max-items-per-user", "0"], "--max-items-per-user must be a whole number from 1"),
    (["--max-items-per-user", "3", "--goal", "keys"], "--goal cannot be used with --max-items-per-user"),
    (["--top", "3", "--goal", "keys"], "--goal cannot be used with --top"),
    (["--top", "3", "--known", "list.csv"], "--known cannot be used with --top"),
    (["--items", "list.csv", "--goal", "keys"], "--goal cannot be used with --items"),
    (["--items", "list.csv", "--known", "list.csv"], "--known cannot be used with --items"),
    (["--lower-threshold", "5"], "--lower-threshold needs a limit: give --max-items-per-user too"),
    (["--mechanism", "laplace"], "--mechanism laplace needs a limit: give --max-items-per-user too"),
    (["--minimize", "noise"], "--minimize noise needs a limit: give --max-items-per-user too"),
    (["--gamma", "sqrt"], "--gamma needs --max-nonzero"),
    (["--known", "events.parquet"], "--known is the input itself"),
    (["--goal", "both"], "'both' is not one of"),
]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_bad_options_are_one_sentence(folder: Path, dry: list[str]) -> None:
    (folder / "list.csv").write_text("item\nitem 0\n")
    for words, sentence in BAD:
        if dry and "events.parquet" in words:
            continue  # nothing is read
        flags = [f"{words[0]}={words[1]}", *words[2:]]
        done = command(folder, "release", "events.parquet", *BUDGET, *flags, "--output", "out.csv", *dry)
        assert (done.code, done.out) == (2, ""), words
        assert sentence in done.err, (words, done.err)
        assert done.err.count("Error: ") == 1
    assert names(folder) == {"events.parquet", "list.csv"}


@pytest.mark.parametrize("cap", ["auto", "AUTO", "20", 1.5, 0, -1, True, float("nan")])
def test_bad_caps_in_python(cap: Any) -> None:
    with pytest.raises(InvalidParameter, match="max_items_per_user must be a whole number"):
        dphist.release(log(), **ASKED, max_items_per_user=cap)


# Digests, memory addresses and the numbers of pytest's folders contain any four digits by chance.
BY_CHANCE = re.compile(rb"[0-9a-f]{64}|0x[0-9a-f]+|/pytest-\d+/")


def found_in(content: bytes) -> list[str]:
    """True counts as text, also with a comma, or as numbers in a file format."""
    texts = [form for count in SECRET for form in (f"{count}", f"{count:,}")]
    plain = BY_CHANCE.sub(b" ", content)
    found = [one for one in texts if re.search(rb"(?<![\d.,])" + one.encode() + rb"(?!\.?\d)", plain)]
    packed = [struct.pack(form, count) for count in SECRET for form in ("<q", "<d")]
    return [*found, *(repr(one) for one in packed if one in content)]


def test_the_search_ignores_digits_by_chance() -> None:
    for by_chance in (f'"{"a4973b" * 10}4973"', "<object at 0x7f4973e03517>", "/tmp/pytest-1213/out.csv"):
        assert found_in(by_chance.encode()) == []
        assert found_in(f"{by_chance} 9,703 {by_chance}".encode()) == ["9,703"]


def test_true_counts_are_not_written_anywhere(folder: Path) -> None:
    """With a seed whose noise is not zero, as it may be by chance."""
    seen: list[Any] = []
    found = dphist.release(
        folder / "events.parquet", **ASKED, seed=4, output=folder / "out.csv", interval=0.9,
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert {"counting", "adding noise"} <= {name for name, _ in seen}
    assert all(0.0 <= share <= 1.0 for _, share in seen)
    for name in ("out.parquet", "out.sqlite", "out.arrow", "out.jsonl"):
        found.write(folder / name)
    written = [path.read_bytes() for path in folder.iterdir() if path.name.startswith("out")]
    texts = [repr(found), repr(found.findings), found._repr_html_(), str(found.document()), repr(seen)]
    content = b"\n".join([*written, *(text.encode() for text in [*texts, str(vars(found))])])
    assert b"item 0" in content
    assert found_in(content) == []
    # Power: the search finds them.
    assert found_in(b"\n4,973 ") != []
    assert found_in(struct.pack("<q", 3517)) != []


@pytest.mark.parametrize(
    "change", [{"item": "none"}, {"where": "nonsense("}, {"sum": "none:0:1"}, {"known": "no.csv"}]
)
def test_no_error_reveals_data(change: dict[str, Any]) -> None:
    with pytest.raises(DphistError) as caught:
        dphist.release(log(), **{**ASKED, **change})
    assert "\n" not in str(caught.value)
    assert found_in("".join(traceback.format_exception(caught.value)).encode()) == []
