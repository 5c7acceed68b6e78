"""The answers of the page: numbers of the library, commands and code that run, trial releases, fields, uploads."""

from __future__ import annotations

import json
import random
import re
import shlex
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dphist
from dphist.cli import commands
from dphist.simulation.population import Population, Zipf
from dphist.simulation.predict import given_population, trial

pytest.importorskip("starlette", reason="no starlette: pip install -e '.[dev]'")
pytest.importorskip("vl_convert", reason="no vl_convert: pip install -e '.[dev]'")

from dphist.explore.answers import ANSWERS, expect
from dphist.explore.fields import FIELDS, PRIVACY, Law, WrongField, delta_for, read_question
from explore_page import START
from scheduling import THOROUGH, examples

LAW = {"items": "1000", "users": "100000", "mean_items": "5"}
LIMIT = {"max_items_per_user": "20"}

REQUESTS: list[dict[str, str]] = [
    {"epsilon": "0.35", "delta": "1e-5", "max_nonzero": "51914"},
    {"epsilon": "1.5", "delta": "3e-7", "max_nonzero": "100", "max_items_per_user": "10"},
    {"publish": "top", "top": "1000"},
    {"publish": "top", "top": "1000", "max_items_per_user": "3"},
    {"epsilon": "2", "max_items_per_user": "1"},
    {"max_nonzero": "50", "mechanism": "laplace"},
    {"max_nonzero": "50", "minimize": "noise"},
    {"publish": "list", "public_items": "4", "mean_items": "2", "max_items_per_user": "2"},
    {"publish": "sums", "sum_high": "7.5", **LIMIT},
    {},
    {"goal": "keys", "known": "3", "mechanism": "gaussian"},
    {"publish": "sums", "sum_high": "7.5"},
    {"publish": "list", "public_items": "4", "mean_items": "2"},
]


def answer(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The answer for the initial fields with these changes."""
    return ANSWERS[kind]({**START, **fields})


def synthetic(law: Law) -> Population:
    return Zipf(law.exponent, law.items, law.users, law.mean_items, law.spread).population()


def trial_release(fields: dict[str, Any]) -> dict[str, Any]:
    return answer("trial", {**LAW, **fields})


def refusal(kind: str, fields: dict[str, Any]) -> tuple[str, str]:
    """The field with the error, and the message."""
    with pytest.raises(WrongField) as caught:
        answer(kind, fields)
    return caught.value.field, str(caught.value)


def run(line: str, *more: str) -> str:
    """The output of a command, which runs in this process."""
    words = shlex.split(line)
    assert words[0] == "dphist"
    done = CliRunner().invoke(commands(), [*words[1:], *more])
    assert done.exit_code == 0, done.output
    return done.stdout


def executed(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()) as printed:
        exec(code, names)
    assert printed.getvalue()
    return names


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
def test_the_page_the_command_and_the_code_agree(fields: dict[str, str]) -> None:
    found, even = answer("plain", fields), REQUESTS.index(fields) % 2 == 0
    for name in ("picture", "shares"):
        assert 'role="img" aria-label="' in found[name]
        # The content security policy forbids inline styles.
        assert "style" not in found[name]
    assert found["headline"] in found["picture"]
    shown = json.loads(json.dumps(found["plan"]))
    # In turn; `make test-slow` runs both.
    if (even or THOROUGH) and found["recipes"]["command"].startswith("dphist plan"):
        by_command = json.loads(run(found["recipes"]["command"], "--json"))
        by_command.pop("advice")
        assert by_command == shown
    if (not even or THOROUGH) and found["recipes"]["python"]:
        assert json.loads(json.dumps(executed(found["recipes"]["python"])["plan"].to_dict())) == shown
    assert found["adjusted"].keys() <= {"items"}


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(one, marks=[] if place in (1, 2, 3) else pytest.mark.slow)
        for place, one in enumerate(REQUESTS[:7])
    ],
    ids=str,
)
def test_the_table_agrees_with_compare(fields: dict[str, str]) -> None:
    found, own = answer("table", fields), answer("plain", fields)["plan"]
    whole = {**START, **fields}
    bounds = {name: int(whole[name]) for name in ("max_nonzero", "max_items_per_user") if whole[name]}
    expected = dphist.compare(
        epsilon=float(whole["epsilon"]),
        delta=float(whole["delta"] or 1e-6),
        **bounds or {"max_nonzero": int(whole["top"])},
    )
    thresholds = [row.threshold for row in expected.rows]
    if own["mechanism"] == "top-k":
        thresholds = [own["threshold"], *thresholds]
    assert found["thresholds"] == thresholds
    named = {
        row[0]: made.gamma for row, made in zip(found["rows"][-len(expected.rows) :], expected.rows, strict=True)
    }
    assert len(named) == len(expected.rows), "two rows have the same name"
    for name, gamma in named.items():
        assert gamma == pytest.approx(expected.contract.nonzero**0.5) or "gamma = sqrt k" not in name
    cells = " ".join(cell for row in [found["columns"], *found["rows"]] for cell in row)
    assert not any(word in cells for word in ("gshm", "csh", "GSHM", "CSH", "tau", "add-the-deltas"))


def test_the_release_commands_and_code_run_with_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    users = np.arange(4_000)
    events = {"user_id": users, "item": [f"i{user % 4}" for user in users], "amount": users % 10}
    pandas.DataFrame(events).to_parquet("events.parquet")
    for name in ("items.csv", "known.csv"):
        Path(name).write_text("item\n" + "".join(f"i{number}\n" for number in range(4)))
    for place, fields in enumerate(REQUESTS):
        found = answer("plain", fields)
        shown = found["recipes"]
        planned = json.loads(json.dumps(found["plan"]))
        # In turn; `make test-slow` runs both.
        if place % 2 == 0 or THOROUGH:
            run(shown["release_command"])
            certificate = json.loads(Path("released.parquet.certificate.json").read_text())
            assert certificate["plan"] == {name: planned[name] for name in certificate["plan"]}
            name = "thresholds_steps" if "thresholds_steps" in planned else "tau_steps"
            assert certificate["plan"][name] == planned[name]
            assert certificate["private"]
        for written in tmp_path.glob("released.*"):
            written.unlink()
        if place % 2 == 1 or THOROUGH:
            released = executed(shown["release_python"])["released"]
            assert released.plan.to_dict() == found["plan"]
            assert Path("released.parquet").exists()
        for written in tmp_path.glob("released.*"):
            written.unlink()


# ---- the main answer


def test_the_main_answer_shows_the_trade_off_of_a_limit() -> None:
    """A larger epsilon releases more items; a lower limit needs less noise and drops more pairs."""

    def shares(**fields: str) -> dict[str, float]:
        request = read_question({**START, **LIMIT, **fields})
        population = synthetic(request.law)
        _, items, found = expect(dphist.plan(**request.plan), population, request)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
        return {**found, "items": items}

    first = answer("plain", LIMIT)
    assert first["headline"] == (
        "Items with 102 users or more, counted after the limit, are mostly released: ±38 per count (95 %)."
    )
    assert "about 1,020 of 10,000 items are released" in first["example"]
    assert "--epsilon 1 --delta 1e-6 --max-items-per-user 20" in first["recipes"]["release_command"]
    assert shares(epsilon="3")["items"] > 2 * shares()["items"] > 4 * shares(epsilon="0.3")["items"]
    assert shares(max_items_per_user="5")["cut"] > 4 * shares()["cut"]
    assert (
        shares(max_items_per_user="5")["hidden"] < shares()["hidden"] < shares(max_items_per_user="100")["hidden"]
    )
    listed = answer("plain", {"publish": "list", **LIMIT})
    assert listed["headline"] == "All 200 items of the list are released: ±36 per count (95 %)."
    assert "per amount_sum" in answer("plain", {"publish": "sums", **LIMIT})["headline"]
    assert "rank 101" in answer("plain", {"publish": "top"})["headline"]
    assert answer("trial", {"publish": "sums", **LIMIT})["released"] > 0
    assert answer("plain", {"users": "100", **LIMIT})["few"].startswith("No item passed the threshold.")


def test_without_a_limit_items_are_found_in_rounds() -> None:
    """More of them than with any limit, for a larger epsilon, for keys, and if many are known."""

    def items(**fields: str) -> float:
        found = re.search(r"about ([\d,]+) of", answer("plain", fields)["example"])
        assert found is not None
        return float(found[1].replace(",", ""))

    first = answer("plain", {})
    needed = re.match(
        r"Items with about (\d+) users or more are mostly released: ±\d+ for half of the counts \(95 %\)\.",
        first["headline"],
    )
    assert needed is not None
    assert 30 < int(needed[1]) < 80
    assert f"about {needed[1]} users needed" in first["picture"]
    assert first["plan"]["mechanism"] == "rounds"
    assert first["plan"] == dphist.plan(epsilon=1, delta=1e-6).to_dict()
    assert items() > max(items(max_items_per_user=limit) for limit in ("3", "10", "30"))
    assert items(epsilon="3") > 2 * items() > 4 * items(epsilon="0.3")
    assert items(goal="keys") > 1.05 * items()
    assert items(known="5000") > 5000
    assert "All 200 items of the list are released: ±" in answer("plain", {"publish": "list"})["headline"]
    # No user keeps more than 256 items.
    assert "are left out by the limit" in answer("plain", {"mean_items": "200"})["example"]
    assert answer("table", {})["rows"] == []
    few = answer("plain", {"users": "100"})["few"]
    assert "passed the threshold. An item needs about" in few


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        *(({"epsilon": epsilon}, level) for level, epsilon in PRIVACY.items()),
        ({"epsilon": "50"}, "very weak"),
        ({"delta": "0.01"}, "weak"),
        ({"users": "100000000", "delta": "1e-6"}, "weak"),
    ],
)
def test_a_weak_budget_has_a_warning(fields: dict[str, str], level: str) -> None:
    found = answer("plain", fields)
    assert found["level"] == level
    assert bool(found["warnings"]) == (level in ("weak", "very weak"))


def test_delta_follows_the_number_of_users() -> None:
    assert [delta_for(users) for users in (1, 10**5, 10**5 + 1, 10**9)] == [1e-6, 1e-6, 1e-7, 1e-10]
    assert answer("plain", {"users": "20000000"})["plan"]["delta"] == 1e-9
    assert answer("plain", {"users": "20000000", "delta": "1e-5"})["plan"]["delta"] == 1e-5


# ---- fields


NONSENSE: list[Any] = [
    "NaN", "nan", "inf", "-inf", "Infinity", "1e999", "-1e999", "-1", "-0.5", "one", "1,5", "1_000", "0x10", "1e",
    "--1", "٣", "½", "１", "💥", "\ud800", "\u0000", "1; drop table", "<script>alert(1)</script>", "9" * 39,
    "9" * 5000, True, [], {}, [1], {"a": 1}, 1, 1.5,
]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.name)
def test_nonsense_in_a_field_is_an_error_at_that_field(field: Any) -> None:
    publish = {"top": "top", "public_items": "list", "sum_high": "sums"}.get(field.name, "items")
    required = not (field.placeholder or field.choices)
    for value in [*NONSENSE, *(["", " "] if required else [])]:
        name, sentence = refusal("plain", {"publish": publish, field.name: value})
        assert name == field.name, (value, sentence)
        assert len(sentence) < 200
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"known": "0"}, "known", "from 1 to 1,000,000"),
        ({"epsilon": "0.049"}, "epsilon", "from 0.05 to 100"),
        ({"delta": "1"}, "delta", "from 1e-12 to 0.1"),
        ({"max_nonzero": "1.5"}, "max_nonzero", "whole number"),
        ({"max_nonzero": "1000001"}, "max_nonzero", "to 1,000,000"),
    ],
)
def test_values_out_of_range_are_errors(fields: dict[str, str], field: str, part: str) -> None:
    name, sentence = refusal("plain", fields)
    assert name == field
    assert part in sentence


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"publish": "top", "max_nonzero": "5"}, "max_nonzero", "all popular items"),
        ({"publish": "sums", "mechanism": "laplace"}, "mechanism", "all popular items"),
        ({"publish": "list"}, "items", "on the list"),
        ({"publish": "top", "top": "50", "max_items_per_user": "1000"}, "max_items_per_user", "without a limit"),
        ({"max_nonzero": "9", **LIMIT}, "max_items_per_user", "9 is used"),
        ({"goal": "keys", **LIMIT}, "goal", "without a limit"),
        ({"known": "9", "publish": "top"}, "known", "without a limit"),
        ({"mechanism": "laplace"}, "mechanism", "needs a limit"),
        ({"minimize": "noise"}, "minimize", "needs a limit"),
        ({"items": "10", "mean_items": "9"}, "mean_items", "5 is used, half of the 10 items"),
    ],
)
def test_values_that_do_not_fit_together_are_adjusted(fields: dict[str, str], field: str, part: str) -> None:
    found = answer("plain", fields)
    assert list(found["adjusted"]) == [field]
    assert part in found["adjusted"][field]


def slider_positions(rng: random.Random) -> dict[str, str]:
    """Some sliders and choices at random, often at an end."""
    moved = {}
    for field in rng.sample(FIELDS, rng.choice([1, 2, 4, 8, len(FIELDS)])):
        if field.choices:
            moved[field.name] = rng.choice(list(field.choices))
        elif field.slider:
            first, last = field.slider.first, field.slider.last
            part = rng.choice([0, 1, rng.randint(0, field.slider.steps) / field.slider.steps])
            value = first + (last - first) * part if field.slider.linear else first * (last / first) ** part
            rounded = float(f"{value:.{field.slider.digits}g}")
            moved[field.name] = str(round(rounded) if field.whole else rounded)
    # Certificates with k take seconds.
    return moved if rng.random() < 0.1 else {**moved, "max_nonzero": ""}


def test_sliders_always_have_a_plan() -> None:
    rng = random.Random(1)
    for _ in range(examples(60)):
        fields = slider_positions(rng)
        found = answer("plain", fields)
        assert found["plan"]["delta_certified"] <= found["plan"]["delta"], fields
        json.dumps(found, allow_nan=False)


def test_unusual_but_valid_numbers() -> None:
    for fields in (
        {"epsilon": ".5", "delta": "1E-6", "max_items_per_user": "1e3", "users": "1,000,000"},
        {"epsilon": "100", "delta": "1e-12", "max_items_per_user": "1"},
        {"epsilon": "0.05", "delta": "0.001", "max_items_per_user": "1000000"},
        {"epsilon": " 2 ", "delta": "1e-9", "max_nonzero": "9"},
    ):
        json.dumps(answer("plain", fields), allow_nan=False)


# ---- trial releases


def test_a_trial_agrees_with_its_expectation() -> None:
    for limit, kept in ((LIMIT, 1 - 0.8**20), ({}, 1.0)):
        found = trial_release({"seed": "7", **limit})
        assert found["notice"].startswith("NOT PRIVATE")
        assert abs(found["released"] - found["expected"]) < 4 * np.sqrt(found["expected"]) + 4
        assert found == trial_release({"seed": "7", **limit})
        assert found["top"] != trial_release({"seed": "8", **limit})["top"]
        assert found["kept"] == pytest.approx(kept, rel=1e-3)
    assert found["within_margin"] > 0.9
    assert any("are within their margin" in sentence for sentence in found["sentences"])
    assert all((row["margin"] is None) == (row["released"] is None) for row in found["top"])
    assert [row["true"] for row in found["top"]] == sorted((row["true"] for row in found["top"]), reverse=True)
    assert len(found["top"]) == 50
    assert 0.0 < found["share"] <= 1.0
    assert found["svg"].startswith("<svg ")
    assert trial_release({"publish": "list"})["sentences"][0].startswith("There is no trial release")


def test_expected_shares_agree_with_simulate() -> None:
    law = {"items": "1000", "users": "500000", "exponent": "0.5", "mean_items": "40"}
    simulated = dphist.simulate(zipf=(0.5, 1000, 500_000, 40), epsilon=1, delta=1e-6, limits=[9], tops=[100])
    bounds = ({"max_items_per_user": "9"}, {"publish": "top", "top": "100"})
    for bound, one in zip(bounds, simulated.candidates[-2:], strict=True):
        request = read_question({**START, **law, "delta": "1e-6", **bound})
        population = synthetic(request.law)
        _, items, shares = expect(dphist.plan(**request.plan), population, request)
        assert 1 - shares["released"] == pytest.approx(one.missing, rel=1e-9)
        assert items == pytest.approx(one.items, rel=1e-9)
        assert trial_release({**law, "delta": "1e-6", **bound})["expected"] == pytest.approx(one.items, rel=1e-9)


def test_a_limit_drops_pairs_and_a_bound_drops_items() -> None:
    law = {"exponent": "0.2", "users": "1000000", "mean_items": "50", "spread": "same"}
    capped = trial_release({**law, **LIMIT})
    assert capped["kept"] == pytest.approx(0.4, rel=0.01)
    cut = trial_release({"max_nonzero": "100", **law})
    assert (cut["cut"], cut["released"]) == (900, 100)
    both = trial_release({"max_nonzero": "100", "max_items_per_user": "9", **law})
    assert both["released"] > 0
    top = trial_release({"publish": "top", "top": "100", **law})
    assert 0 < top["released"] <= 100
    assert top["mean_absolute_error"] < 1000


@pytest.mark.slow
def test_the_largest_trial() -> None:
    law = {"items": "1000000", "users": "10000000", "exponent": "1.1", "mean_items": "30"}
    for limit in (LIMIT, {}):
        assert trial_release({**law, **limit})["released"] > 1000


def test_uploaded_counts() -> None:
    text = "item,count\n" + "\n".join(f"word{i},{10_000 // i}" for i in range(1, 200)) + "\n"
    found = trial_release({"csv": text})
    assert found["items"] == 199
    assert found["top"][0]["item"] == "word1"
    assert found["top"][0]["true"] == 10_000
    assert found["top"][0]["released"] is not None
    example = answer("plain", {**LAW, "csv": text})["example"]
    assert f"In the uploaded counts, about {found['expected']:.0f} of 199 items are released" in example
    plain = trial_release({"csv": "\ufeff5\n5000\n\n0\r\n7"})
    assert (plain["items"], plain["top"][0]["true"], plain["released"]) == (3, 5000, 1)
    quoted = trial_release({"csv": '"a, b",900\n"<b>",1\n'})
    assert [row["item"] for row in quoted["top"]] == ["a, b", "<b>"]


RELEASED = 'item,count,count_low,count_high\n"Brot, alt",1747.0416666666667,-3.5,9e9\nMilch,900,1,2\n'


@pytest.mark.parametrize(
    ("text", "items", "rounded"),
    [
        ("Artikel;Anzahl\nKaese;1200\nBrot, alt;7\n", [("Kaese", 1200), ("Brot, alt", 7)], 0),
        ("Kaese\t1200\nBrot; alt, 5\t7\n", [("Kaese", 1200), ("Brot; alt, 5", 7)], 0),
        ("a;b,1200\nc;d,7\n", [("a;b", 1200), ("c;d", 7)], 0),
        ("count,1200\nitem,7\n", [("count", 1200), ("item", 7)], 0),
        ("\nCount;Artikel\n7;Brot\n1200;Kaese\n", [("Kaese", 1200), ("Brot", 7)], 0),
        ("count\n7.5\n1200.4\n", [("3", 1200), ("2", 8)], 2),
        (RELEASED, [("Brot, alt", 1747), ("Milch", 900)], 1),
        (RELEASED.replace(", ", " ").replace(",", ";"), [("Brot alt", 1747), ("Milch", 900)], 1),
    ],
)
def test_uploads_in_other_shapes(text: str, items: list[tuple[str, int]], rounded: int) -> None:
    found = trial_release({"csv": text})
    assert [(row["item"], row["true"]) for row in found["top"]] == items
    assert any(f"{rounded} uploaded counts had decimals" in sentence for sentence in found["sentences"]) == (
        rounded > 0
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a,1\nb,x\n", "line 2: 'x' is not a whole number"),
        ("1\n-2\n", "line 2"),
        ("1\n2.5\n", "line 2"),
        ("1\n1e9\n", "line 2"),
        ("1\n" + "9" * 30, "line 2"),
        ("1\n٣\n", "line 2"),
        ("a,b,3\n", "3 columns: use one count, or item,count, or a header that names `count`"),
        ("item,count,low\na,1\n", "line 2 has 2 columns, but the first line has 3"),
        ("item,count,low\na,-1.5,1\n", "line 2: '-1.5' is not a number"),
        ("a;1\nKaese;x\n", "line 2: 'x' is not a whole number"),
        ("Kaese;1200,5\n", "line 1: '1200,5' is not a whole number"),
        ("\ufffdPNG\r\n\x1a\n\x00\x00\x00\rIHDR", "not text in UTF-8"),
        ("count\n", "no count above 0"),
        ("\n\n", "no count above 0"),
        ("0\n0\n", "no count above 0"),
        pytest.param("1\n" * 1_000_001, "more than 1,000,000", marks=pytest.mark.slow),
        ("x" * (5 * 1024**2 + 1), "larger than 5 MB"),
        ('"' + "x" * 200_000, "not CSV"),
        (["1"], "not text in UTF-8"),
        (7, "not text in UTF-8"),
        ("a,1\nb\ud800,2\n", "not text in UTF-8"),
    ],
    ids=[str(place) for place in range(21)],
)
def test_invalid_uploads(text: object, part: str) -> None:
    field, sentence = refusal("plain", {"csv": text})
    assert field == "csv"
    assert part in sentence
    assert len(sentence) < 150


def test_a_trial_without_items() -> None:
    empty = given_population(np.zeros(3, dtype=np.int64))
    found = trial(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1), empty, 1)
    assert (found["released"], found["mean_absolute_error"], found["share"]) == (0, None, 0.0)
