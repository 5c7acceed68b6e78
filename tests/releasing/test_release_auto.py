"""Releases whose limit is chosen privately, from the command line and Python."""

from __future__ import annotations

import re
import struct
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import dphist
from dphist.errors import DphistError, InputError, InvalidParameter
from dphist.privacy.types import DEFAULT_CAPS
from dphist.releasing.document import choice_for
from release_commands import certificate, command, names, sized_events

# True counts that occur nowhere else: users with one, three and ten items.
USERS = {1: 4973, 3: 3517, 10: 1213}
# These, all users, and the users of items.
SECRET = (4973, 3517, 1213, 9703, 4730)
BUDGET = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
ASKED: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}
AUTO = ["--max-items-per-user", "auto"]
# With Laplace noise planning is quick.
QUICK = [*AUTO, "--mechanism", "laplace"]
CHOSEN: dict[str, Any] = {"max_items_per_user": "auto", "mechanism": "laplace"}


@cache
def log() -> pa.Table:
    return sized_events(USERS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(log(), tmp_path / "events.parquet")
    return tmp_path


def test_a_release_with_a_chosen_limit_verifies(folder: Path) -> None:
    done = command(folder, "release", "events.parquet", *BUDGET, *AUTO, "--output", "out.csv", "--json")
    assert done.code == 0, done.err
    document = certificate(folder, "out.csv")
    choice, plan = document["choice"], document["plan"]
    assert document["request"]["max-items-per-user"] == "auto"
    assert choice["caps"] == list(DEFAULT_CAPS)
    assert len(choice["noisy_users"]) == len(DEFAULT_CAPS) + 1
    assert choice["cap"] == plan["max_items_per_user"]
    assert choice["share"] == 0.02
    # The guarantee is for the whole budget, including the choice.
    assert (document["guarantee"]["epsilon"], document["guarantee"]["delta"]) == (1.0, 1e-6)
    assert done.data["guarantee"] == document["guarantee"]
    assert (choice["epsilon_of_release"], choice["delta_of_release"]) != (1.0, 1e-6)
    assert choice["certificate"]["delta"] <= 1e-6
    assert {"user-limit", "spread"} & set(document["caveats"])
    assert "estimate" in document["caveats"]
    assert choice["excess"] == ("drop" if plan.get("spread") is None else "spread")
    assert choice["correction"]["factors"][0] >= 1.0
    verified = command(folder, "verify", "out.csv")
    assert verified.code == 0
    assert "choosing the user limit and releasing the counts are (1.0, 1e-06)-" in verified.out


def test_a_dry_run_shows_the_plans_and_reads_nothing(tmp_path: Path) -> None:
    words = ["release", "not-there.parquet", *BUDGET, *QUICK, "--cap-share", "0.1", "--dry-run"]
    done = command(tmp_path, *words)
    assert done.code == 0, done.err
    assert "is chosen privately, with a share of 0.1 of" in done.out
    assert "No event was read and nothing was released" in done.out
    rows = [line.split() for line in done.out.splitlines() if re.match(r" *[\d,]+ +drop +[\d.]", line)]
    assert [int(row[0].replace(",", "")) for row in rows] == list(DEFAULT_CAPS)
    data = command(tmp_path, *words, "--json").data
    assert data["request"]["cap-share"] == data["choice"]["share"] == 0.1
    assert data["choice"]["certificate"]["delta"] <= 1e-6
    assert [cap["cap"] for cap in data["caps"]] == list(DEFAULT_CAPS)
    noises = [cap["total_noise"] for cap in data["caps"]]
    assert noises == sorted(noises)
    assert names(tmp_path) == set()


def test_a_larger_share_has_less_noise_on_the_sizes() -> None:
    found = dphist.release(log(), **ASKED, **CHOSEN, cap_share=0.25).chosen
    assert found is not None
    # The variance is one over the share, rounded up to four digits.
    usual = choice_for(dphist.Budget(1.0, 1e-6), mechanism="laplace").choice.variance
    assert abs(usual / found.plan.choice.variance - 12.5) < 0.05
    # Nine standard deviations: false alarms below 1e-17.
    for true, noisy in zip((4973, 0, 3517), found.noisy, strict=False):
        assert abs(noisy - true) < 9 * float(found.plan.choice.variance) ** 0.5


WITH: list[list[str]] = [
    ["--items", "list.csv"],
    ["--items", "list.csv", "--sum", "spent:0:9", "--mean", "spent:0:9"],
    ["--mechanism", "laplace", "--lower-threshold", "50", "--cap-share", "0.3"],
    ["--mechanism", "laplace", "--where", "item <> 'item 0'", "--interval", "0.9", "--round"],
]


@pytest.mark.parametrize("more", [pytest.param(WITH[0], marks=pytest.mark.slow), *WITH[1:]])
def test_other_options(folder: Path, more: list[str]) -> None:
    (folder / "list.csv").write_text("item\nitem 0\nitem 1\nnone\n")
    done = command(folder, "release", "events.parquet", *BUDGET, *AUTO, *more, "--output", "out.parquet", "--json")
    assert done.code == 0, done.err
    document, table = certificate(folder, "out.parquet"), pq.read_table(folder / "out.parquet")
    assert dphist.verify(folder / "out.parquet").verified
    assert (document["guarantee"]["epsilon"], document["guarantee"]["delta"]) == (1.0, 1e-6)
    if "--items" in more:
        assert table.num_rows == 3
        # No user can have more items than the list.
        assert document["choice"]["caps"] == [1, 2, 3]
    if "--sum" in more:
        assert {"spent_sum", "spent_mean"} <= set(table.column_names)
    if "--where" in more:
        assert "item 0" not in table.column("item").to_pylist()
    if "--lower-threshold" in more:
        assert document["counts"]["lower_threshold"] == 50
        assert document["choice"]["share"] == 0.3


@pytest.mark.slow
def test_sums_of_an_unknown_domain(folder: Path) -> None:
    found = dphist.release(log(), **ASKED, max_items_per_user="auto", sum="spent:0:9", output=folder / "out.csv")
    assert found.chosen is not None
    assert found.budget == dphist.Budget(1.0, 1e-6)
    assert "spent_sum" in found.to_arrow().column_names
    assert dphist.verify(folder / "out.csv").verified


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
    return dphist.release(log(), **ASKED, **CHOSEN, seed=7)


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "polars"])
def test_every_kind_of_input_gives_the_same_choice_for_a_seed(folder: Path, kind: str) -> None:
    ours, theirs = dphist.release(same_log(folder, kind), **ASKED, **CHOSEN, seed=7), seeded()
    assert ours.chosen is not None
    assert theirs.chosen is not None
    assert (ours.chosen.noisy, ours.chosen.cap) == (theirs.chosen.noisy, theirs.chosen.cap)
    assert ours.to_pandas().item.tolist() == theirs.to_pandas().item.tolist()
    assert isinstance(ours.to_native(), {"pandas": pd.DataFrame, "polars": pl.DataFrame}.get(kind, object))


def test_a_seed_repeats_the_choice_and_marks_the_release(folder: Path) -> None:
    done = command(folder, "release", "events.parquet", *BUDGET, *QUICK, "--seed", "7", "--output", "out.parquet")
    assert done.code == 0, done.err
    assert "NOT PRIVATE" in done.out
    assert pq.read_table(folder / "out.parquet").equals(seeded().to_arrow())
    assert certificate(folder, "out.parquet")["choice"] == seeded().document()["choice"]
    assert not dphist.verify(folder / "out.parquet").verified
    other = dphist.release(log(), **ASKED, **CHOSEN, seed=12)
    assert other.chosen is not None
    assert list(other.chosen.noisy) != seeded().document()["choice"]["noisy_users"]


def test_a_reader_is_refused_before_it_is_read() -> None:
    reader = log().to_reader()
    with pytest.raises(InputError, match="can be read only once: give max_items_per_user a number") as caught:
        dphist.release(reader, **ASKED, **CHOSEN)
    assert "\n" not in str(caught.value)
    assert reader.read_all().num_rows == log().num_rows


BAD: list[tuple[list[str], str]] = [
    ([*AUTO, "--top", "5"], "cannot be combined with --top or --max-nonzero"),
    ([*AUTO, "--max-nonzero", "5"], "cannot be combined with --top or --max-nonzero"),
    *(
        (["--max-items-per-user", word], "is not a whole number or auto")
        for word in ("Auto", "automatic", "1.5", "", "auto ", "nan", "٣x", "--5", "+-1", "9" * 5000)
    ),
    (["--max-items-per-user", "0"], "--max-items-per-user must be a whole number from 1"),
    (["--max-items-per-user", "-1"], "--max-items-per-user must be a whole number from 1"),
    (["--max-items-per-user", "9" * 30], "--max-items-per-user must be a whole number from 1"),
    ([*AUTO, "--cap-share", "0"], "--cap-share"),
    ([*AUTO, "--cap-share", "0.6"], "--cap-share"),
    ([*AUTO, "--cap-share", "nan"], "--cap-share"),
    (["--max-items-per-user", "3", "--cap-share", "0.1"], "--cap-share is for --max-items-per-user auto"),
    ([*QUICK, "--sum", "spent:0:9"], "need Gaussian noise"),
]


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_bad_options_are_one_sentence(folder: Path, dry: list[str]) -> None:
    for words, sentence in BAD:
        flags = [f"{words[0]}={words[1]}", *words[2:]]
        done = command(folder, "release", "events.parquet", *BUDGET, *flags, "--output", "out.csv", *dry)
        assert (done.code, done.out) == (2, ""), words
        assert sentence in done.err, (words, done.err)
        assert done.err.count("Error: ") == 1
    assert names(folder) == {"events.parquet"}


@pytest.mark.parametrize("cap", ["Auto", "AUTO", "20", 1.5, 0, -1, True, float("nan")])
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


def test_true_sizes_are_not_written_anywhere(folder: Path) -> None:
    """With a seed whose noise is not zero, as it may be by chance."""
    seen: list[Any] = []
    found = dphist.release(
        folder / "events.parquet", **ASKED, **CHOSEN, seed=3, output=folder / "out.csv", interval=0.9,
        progress=lambda *step: seen.append(step),
    )  # fmt: skip
    assert {"choosing", "counting"} <= {name for name, _ in seen}
    assert all(0.0 <= share <= 1.0 for _, share in seen)
    for name in ("out.parquet", "out.sqlite", "out.arrow", "out.jsonl"):
        found.write(folder / name)
    written = [path.read_bytes() for path in folder.iterdir() if path.name.startswith("out")]
    texts = [
        repr(found),
        repr(found.chosen),
        found._repr_html_(),
        str(found.document()),
        repr(seen),
        str(vars(found)),
    ]
    content = b"\n".join([*written, *(text.encode() for text in texts)])
    assert b"item 0" in content
    assert found_in(content) == []
    # Power: the search finds them.
    assert found_in(b"\n4,973 ") != []
    assert found_in(struct.pack("<q", 3517)) != []


@pytest.mark.parametrize("change", [{"item": "none"}, {"where": "nonsense("}, {"sum": "none:0:1"}])
def test_no_error_reveals_data(change: dict[str, Any]) -> None:
    asked = {**ASKED, **CHOSEN, **change}
    if "sum" in change:  # for which Gaussian noise is needed, and a short list has few plans
        asked |= {"mechanism": "best", "items": pa.table({"item": ["item 0"]})}
    with pytest.raises(DphistError) as caught:
        dphist.release(log(), **asked)
    assert "\n" not in str(caught.value)
    assert found_in("".join(traceback.format_exception(caught.value)).encode()) == []
