"""The answers of the page: the library's numbers, commands and code that run, trial releases, and its fields."""

from __future__ import annotations

import json
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
from dphist.cli.app import app
from dphist.errors import InvalidParameter
from dphist.simulation.trial import given_population, trial, zipf_population

pytest.importorskip("starlette", reason="no starlette: pip install -e '.[dev]'")
pytest.importorskip("altair", reason="no altair: pip install -e '.[dev]'")
pytest.importorskip("vl_convert", reason="no vl_convert: pip install -e '.[dev]'")

from dphist.explore.answers import ANSWERS, recipes
from dphist.explore.fields import BOUNDS, BUDGET, NOISE, POPULATION, field_of

FIELDS = {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20"}
LAW = {"items": "1000", "users": "100000", "exponent": "1", "mean_items": "5", "seed": "1"}

REQUESTS: list[dict[str, str]] = [
    {"epsilon": "0.35", "delta": "1e-5", "max_nonzero": "51914"},
    {"epsilon": "1.5", "delta": "3e-7", "max_nonzero": "100", "max_items_per_user": "10"},
    {"epsilon": "1", "delta": "1e-6", "top": "1000"},
    {"epsilon": "1", "delta": "1e-6", "top": "1000", "max_items_per_user": "3"},
    {"epsilon": "2", "delta": "1e-6", "max_items_per_user": "1"},
    {"epsilon": "1", "delta": "1e-6", "max_items_per_user": "20", "excess": "spread"},
    {"epsilon": "1", "delta": "1e-6", "max_nonzero": "50", "mechanism": "laplace"},
    {"epsilon": "1", "delta": "1e-6", "max_nonzero": "50", "gamma": "sqrt", "minimize": "noise"},
    {"epsilon": "1", "delta": "1e-6", "max_nonzero": "50", "gamma": "4", "noise": "continuous"},
]


def trial_release(fields: dict[str, Any]) -> dict[str, Any]:
    return ANSWERS["trial"]({**LAW, **fields})


def refusal(kind: str, fields: dict[str, Any]) -> tuple[str | None, str]:
    """The field that is refused, and the sentence."""
    with pytest.raises(InvalidParameter) as caught:
        ANSWERS[kind](fields)
    return field_of(caught.value), str(caught.value)


def run(line: str, *more: str) -> str:
    """What a shown command prints, in a process of this one's."""
    words = shlex.split(line)
    assert words[0] == "dphist"
    done = CliRunner().invoke(app, [*words[1:], *more])
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
    """Digit by digit; the command is run as it is shown."""
    found = ANSWERS["plan"](fields)
    by_command = json.loads(run(found["recipes"]["command"], "--json"))
    by_command.pop("advice")
    shown = json.loads(json.dumps(found["plan"]))
    assert by_command == shown
    assert json.loads(json.dumps(executed(found["recipes"]["python"])["plan"].to_dict())) == shown
    assert found["advice"]


@pytest.mark.parametrize("fields", REQUESTS, ids=str)
def test_the_table_is_that_of_compare(fields: dict[str, str]) -> None:
    found, own = ANSWERS["table"](fields), ANSWERS["plan"](fields)["plan"]
    bounds = {name: int(fields[name]) for name in ("max_nonzero", "max_items_per_user") if name in fields}
    expected = dphist.compare(
        epsilon=float(fields["epsilon"]),
        delta=float(fields["delta"]),
        **bounds or {"max_nonzero": int(fields["top"])},
    )
    thresholds = [row.threshold for row in expected.rows]
    if own["mechanism"] == "top-k":
        thresholds = [own["threshold"], *thresholds]
    assert found["thresholds"] == thresholds
    assert [row[2] for row in found["rows"]] == [f"{threshold:.3f}" for threshold in thresholds]


def test_the_shown_releases_run_and_have_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Continuous noise is never drawn, so it has no release."""
    monkeypatch.chdir(tmp_path)
    users = np.arange(40_000)
    pandas.DataFrame({"user_id": users, "item": [f"i{user % 4}" for user in users]}).to_parquet("events.parquet")
    for fields in REQUESTS:
        found = ANSWERS["plan"](fields)
        shown = found["recipes"]
        if "noise" in fields:
            assert set(shown) == {"command", "python"}
            continue
        run(shown["release_command"])
        certificate = json.loads(Path("released.parquet.certificate.json").read_text())
        planned = json.loads(json.dumps(found["plan"]))
        assert certificate["plan"] == {name: planned[name] for name in certificate["plan"]}
        assert certificate["plan"]["limit_steps"] == planned["limit_steps"]
        assert certificate["private"]
        for written in tmp_path.glob("released.*"):
            written.unlink()
        released = executed(shown["release_python"])["released"]
        assert released.plan.to_dict() == found["plan"]
        assert Path("released.parquet").exists()
        for written in tmp_path.glob("released.*"):
            written.unlink()


def test_recipes_quote_nothing_odd() -> None:
    found = recipes({"epsilon": 0.001, "delta": 1e-10, "max_nonzero": 10**6, "gamma": "sqrt"})
    assert found["command"] == "dphist plan --epsilon 0.001 --delta 1e-10 --max-nonzero 1000000 --gamma sqrt"
    assert "gamma='sqrt'" in found["python"]
    assert recipes({"epsilon": 1.0, "delta": 1e-6, "top": 9})["release_command"] == (
        "dphist release events.parquet --user user_id --item item --epsilon 1.0 --delta 1e-06 --top 9 "
        "--output released.parquet"
    )


@pytest.mark.parametrize("fields", REQUESTS[:3], ids=str)
def test_charts_have_their_words(fields: dict[str, str]) -> None:
    for kind in ("curve", "figure", "limit"):
        found = ANSWERS[kind]({**fields, **({"max_items_per_user": "3"} if kind == "limit" else {})})
        assert found["svg"].startswith("<svg ")
        # The page's policy would drop inline styles.
        assert "style=" not in found["svg"]
        assert "<style" not in found["svg"]
        assert len(found["words"]) > 40


def test_what_the_items_of_a_user_count() -> None:
    """Where items per user are not bounded there is nothing to draw."""
    words = {excess: ANSWERS["limit"]({**FIELDS, "excess": excess})["words"] for excess in ("drop", "spread")}
    assert "One with more counts for a random 20." in words["drop"]
    assert "One with more counts less for each item: with 320 items 80 in all, 0.25 for each" in words["spread"]
    assert ANSWERS["limit"]({"epsilon": "1", "delta": "1e-6", "max_nonzero": "50"}) == {"svg": "", "words": ""}


# ---- fields


NONSENSE: list[Any] = [
    "NaN", "nan", "inf", "-inf", "Infinity", "1e999", "-1e999", "-1", "-0.5", "one", "1,5", "1_000", "0x10", "1e",
    "--1", "٣", "½", "１", "💥", "\ud800", "\u0000", "1; drop table", "<script>alert(1)</script>", "9" * 39,
    "9" * 5000, True, [], {}, [1], {"a": 1}, 1, 1.5,
]  # fmt: skip


@pytest.mark.parametrize("field", [*BUDGET, *BOUNDS, *NOISE, *POPULATION], ids=lambda field: field.name)
def test_nonsense_in_every_field_is_one_sentence(field: Any) -> None:
    whole = {**FIELDS, **LAW, "max_nonzero": "100"}
    required = not (field.placeholder or field.choices)
    for value in [*NONSENSE, *(["", " "] if required else [])]:
        name, sentence = refusal("trial", {**whole, field.name: value})
        assert name == field.name, (value, sentence)
        assert len(sentence) < 200
        assert "\n" not in sentence


@pytest.mark.parametrize(
    ("fields", "field", "part"),
    [
        ({"epsilon": "1", "delta": "1e-6"}, "max_nonzero", "at least one"),
        ({**FIELDS, "top": "5", "max_nonzero": "5"}, "top", "exclude"),
        ({**FIELDS, "top": "5", "noise": "continuous"}, "top", "exclude"),
        ({**FIELDS, "gamma": "3"}, None, "needs max_nonzero"),
        ({**FIELDS, "max_nonzero": "9"}, "max_items_per_user", "must not exceed"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "3", "mechanism": "laplace"}, None, "no gamma"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "1e-9"}, "gamma", "from 0.01"),
        ({**FIELDS, "max_nonzero": "90", "gamma": "0.5"}, "gamma", "whole number from 1 on"),
        ({**FIELDS, "epsilon": "0.049"}, "epsilon", "from 0.05 to 100"),
        ({**FIELDS, "max_nonzero": "1000000", "gamma": "999"}, "gamma", "at least 1000 here"),
        ({**FIELDS, "excess": "spread", "max_nonzero": "90"}, "excess", "with k, use the command line"),
        ({**FIELDS, "excess": "spread", "mechanism": "laplace"}, "excess", "discrete Gaussian noise"),
        (
            {**FIELDS, "excess": "spread", "max_items_per_user": "", "top": "5"},
            "excess",
            "needs max_items_per_user",
        ),
        ({"epsilon": "1", "delta": "1e-6", "excess": "spread"}, "max_nonzero", "at least one"),
        ({**FIELDS, "delta": "1"}, "delta", "from 1e-12 to 0.001"),
        ({**FIELDS, "max_nonzero": "1.5"}, "max_nonzero", "whole number"),
        ({**FIELDS, "max_nonzero": "1000001"}, "max_nonzero", "to 1,000,000"),
    ],
)
def test_what_is_refused(fields: dict[str, str], field: str, part: str) -> None:
    name, sentence = refusal("plan", fields)
    assert name == field
    assert part in sentence


def test_odd_but_right_numbers_are_answered() -> None:
    for fields in (
        {"epsilon": ".5", "delta": "1E-6", "max_items_per_user": "1e3"},
        {"epsilon": "100", "delta": "1e-12", "max_items_per_user": "1"},
        {"epsilon": "0.05", "delta": "0.001", "max_items_per_user": "1000000"},
        {"epsilon": " 2 ", "delta": "1e-9", "max_nonzero": "9", "gamma": "0.5", "noise": "continuous"},
    ):
        json.dumps(ANSWERS["plan"](fields), allow_nan=False)


# ---- trial releases


def test_a_simulation_is_what_is_expected() -> None:
    found = trial_release({**FIELDS, **LAW, "seed": "7"})
    assert found["notice"].startswith("NOT PRIVATE")
    assert abs(found["released"] - found["expected"]) < 4 * np.sqrt(found["expected"]) + 4
    assert found == trial_release({**FIELDS, **LAW, "seed": "7"})
    assert found["top"] != trial_release({**FIELDS, **LAW, "seed": "8"})["top"]
    assert [row["true"] for row in found["top"]] == sorted((row["true"] for row in found["top"]), reverse=True)
    assert len(found["top"]) == 50
    assert 0.0 < found["share"] <= 1.0
    assert found["kept"] == pytest.approx(1 - 0.8**20, rel=1e-3)


def test_missing_pairs_are_those_of_simulate() -> None:
    """What a cap drops is missing, though its item is released; so are all items beyond a promised bound."""
    budget = {"epsilon": "1", "delta": "1e-6"}
    law = {"items": "1000", "users": "500000", "exponent": "0.5", "mean_items": "40"}
    told = dphist.simulate(zipf=(0.5, 1000, 500_000, 40), epsilon=1, delta=1e-6, caps=[9], tops=[100], auto=False)
    nine = {"max_items_per_user": "9"}
    capped, spread, topped = (
        trial_release({**budget, **law, **bound}) for bound in (nine, {**nine, "excess": "spread"}, {"top": "100"})
    )
    for found, one in zip((capped, spread, topped), told.candidates, strict=True):
        assert found["missing"] == pytest.approx(one.missing, rel=1e-9)
        assert found["expected"] == pytest.approx(one.items, rel=1e-9)
    assert spread["kept"] == pytest.approx(1 - spread["missing"], abs=1e-3)
    assert spread["missing"] < capped["missing"]
    assert capped["share"] == 1.0
    assert capped["missing"] == pytest.approx(1 - capped["kept"], abs=1e-3)
    assert capped["missing"] > 0.7
    bounded = trial_release({**budget, **law, "max_nonzero": "100"})
    assert bounded["missing"] == pytest.approx(1 - bounded["share"], abs=1e-3)
    assert bounded["released"] == 100


def test_a_cap_costs_pairs_and_a_promise_cuts_items() -> None:
    law = {**LAW, "exponent": "0.2", "users": "1000000", "mean_items": "50", "spread": "same"}
    capped = trial_release({**FIELDS, **law})
    assert capped["kept"] == pytest.approx(0.4, rel=0.01)
    cut = trial_release({"epsilon": "1", "delta": "1e-6", "max_nonzero": "100", **law})
    assert cut["cut"] == 900
    both = trial_release({"epsilon": "1", "delta": "1e-6", "max_nonzero": "100", "max_items_per_user": "9", **law})
    assert both["released"] > 0
    top = trial_release({"epsilon": "1", "delta": "1e-6", "top": "100", **law})
    assert 0 < top["released"] <= 100
    assert top["mean_absolute_error"] < 1000


def test_the_largest_simulation_is_possible() -> None:
    law = {"items": "1000000", "users": "10000000", "exponent": "1.1", "mean_items": "30"}
    found = trial_release({**FIELDS, **law})
    assert found["released"] > 1000


def test_uploaded_counts() -> None:
    text = "item,count\n" + "\n".join(f"word{i},{10_000 // i}" for i in range(1, 200)) + "\n"
    found = trial_release({**FIELDS, "csv": text})
    assert found["items"] == 199
    assert found["top"][0]["item"] == "word1"
    assert found["top"][0]["true"] == 10_000
    assert found["top"][0]["released"] is not None
    plain = trial_release({**FIELDS, "csv": "\ufeff5\n5000\n\n0\r\n7"})
    assert (plain["items"], plain["top"][0]["true"], plain["released"]) == (3, 5000, 1)
    quoted = trial_release({**FIELDS, "csv": '"a, b",900\n"<b>",1\n'})
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
    found = trial_release({**FIELDS, "csv": text})
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
def test_uploads_that_are_no_counts(text: object, part: str) -> None:
    field, sentence = refusal("trial", {**FIELDS, **LAW, "csv": text})
    assert field == "csv"
    assert part in sentence
    assert len(sentence) < 150


def test_populations_and_trials_by_themselves() -> None:
    even = zipf_population(items=4, users=100, exponent=0.0, mean_items=2.0, spread="same", cap=None)
    assert even.whole.tolist() == [50] * 4
    capped = zipf_population(items=4, users=100, exponent=0.0, mean_items=2.0, spread="geometric", cap=1)
    assert capped.population.under(1)[0] @ capped.population.number == pytest.approx(100)
    ideal = dphist.plan(epsilon=1, delta=1e-6, max_nonzero=4, noise="continuous")
    with pytest.raises(InvalidParameter, match="continuous"):
        trial(ideal, even, 1)
    empty = given_population(np.zeros(3, dtype=np.int64), None)
    found = trial(dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=1), empty, 1)
    assert (found["released"], found["mean_absolute_error"], found["share"]) == (0, None, 0.0)
