"""`dphist ledger init|show|plan`: tables, JSON, exit codes and error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dphist.cli import commands
from dphist.errors import DphistError, InvalidParameter, LedgerError
from dphist.ledger import Ledger, Spend, SumComposer
from dphist.ledger.accounts import composer_for
from release_commands import command

TOTAL = ["--epsilon", "3", "--delta", "1e-5"]
HASH = re.compile("[0-9a-f]{64}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Any:
    result = CliRunner().invoke(commands(), ["ledger", *words], catch_exceptions=True)
    if isinstance(result.exception, DphistError):
        raise result.exception
    assert result.stderr == "", "quiet in pipes"
    return result


def output(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def init(dataset: str = "log", *words: str) -> str:
    return output("init", "a.ledger", "--dataset", dataset, *TOTAL, "--accounting", "sum", *words)


def test_init_book_show_and_plan(folder: Path) -> None:
    assert " ".join(init().split()) == (
        "The total budget of the dataset 'log' in a.ledger is epsilon 3.0 and delta 1e-05. That is enough for one "
        "release with epsilon 3 and delta 1e-05, or for about 52 weekly default releases with epsilon 0.057 and "
        "delta 1.9e-07 each."
    )
    ledger = Ledger.open("a.ledger")
    first = ledger.book("log", Spend(1, 1e-6, None, {"guarantee": "a sentence"}), SumComposer())
    ledger.book("log", Spend(0.5, 1e-6), SumComposer())
    ledger.settle(first, sha256="ab" * 32, address="out [red].parquet\x1b")
    shown = output("show", "a.ledger")
    lines = shown.splitlines()
    assert lines[0] == f"Ledger {ledger.accounts().id} in a.ledger"
    assert lines[1] == f"Head: entry 5, {ledger.accounts().chain.hash}"
    assert lines[3].split("  ")[0] == "dataset"
    assert lines[4].endswith("about 3 more releases like the last one, or one with epsilon up to 1.5")
    assert re.fullmatch(r"3 +log +20\S+Z +1\.0 +1e-06 +written +out \[red\]\.parquet\\x1b", lines[7]), (
        "brackets and escapes are text"
    )
    assert re.fullmatch(r"4 +log +20\S+Z +0\.5 +1e-06 +not known to be written", lines[8])
    planned = output("plan", "a.ledger", "--dataset", "log", "--epsilon", "0.5", "--delta", "1e-6")
    assert " ".join(planned.split()) == (
        "It fits. Remaining budget of the dataset 'log': about 3 more releases like this one, or one with epsilon "
        "up to 1.5."
    )


def test_json(folder: Path) -> None:
    made = json.loads(init("log", "--json"))
    facts: dict[str, Any] = {"dataset": "log", "epsilon": 3.0, "delta": 1e-5, "accounting": "sum"}
    assert made == {"ledger": "a.ledger", **facts, "epsilon_left": 3.0, "delta_left": 1e-5, "bookings": 0}
    ledger = Ledger.open("a.ledger")
    booked = ledger.book("log", Spend(1, 1e-6, None, {"guarantee": "a sentence"}), SumComposer())
    ledger.settle(booked, sha256="ab" * 32, address="out.parquet")
    init("orders")
    data = json.loads(output("show", "a.ledger", "--json"))
    assert data["head"] == {"entry": 5, "hash": ledger.accounts().chain.hash}
    log, orders = data["datasets"]
    assert orders["bookings"] == []
    assert {key: log[key] for key in (*facts, "epsilon_left")} == {**facts, "epsilon_left": 2.0}
    (entry,) = log["bookings"]
    assert entry == {
        **booked.receipt(), "created": booked.created, "epsilon": 1.0, "delta": 1e-6, "state": "written",
        "written": {"sha256": "ab" * 32, "address": "out.parquet"},
    }  # fmt: skip
    (one,) = json.loads(output("show", "a.ledger", "--dataset", "log", "--json"))["datasets"]
    assert one["bookings"] == [{**entry, "certificate": {"guarantee": "a sentence"}}]


def test_the_gaussian_filter(folder: Path) -> None:
    """The first booking of `auto` chooses it for Gaussian noise, and all commands name its two limits."""
    output("init", "a.ledger", "--dataset", "log", "--epsilon", "3", "--delta", "1e-6")
    words = ["plan", "a.ledger", "--dataset", "log", "--epsilon", "0.3", "--delta", "1e-8"]
    planned = " ".join(output(*words).split())
    assert planned.startswith(
        "It fits. Remaining budget of the dataset 'log': about 105 more releases like this one"
    )
    assert planned.endswith("It would be the first release, which fixes the accounting: gdp.")
    output("init", "a.ledger", "--dataset", "weeks", "--epsilon", "3", "--delta", "1e-6", "--accounting", "gdp")
    ledger = Ledger.open("a.ledger")
    composer = composer_for("gdp", ledger.account("weeks").total)
    ledger.book("weeks", Spend(0.3, 1e-8, {"mu_squared": 0.25, "delta": 1e-8}), composer)
    (facts,) = json.loads(output("show", "a.ledger", "--dataset", "weeks", "--json"))["datasets"]
    assert facts["accounting"] == "gdp"
    assert facts["mu_squared_left"] == pytest.approx(0.3967077817521736 - 0.25)
    assert facts["delta_left"] == pytest.approx(4.9e-7)
    assert 1e-8 < facts["delta_spent"] < 2e-8
    again = json.loads(output(*words[:2], "--dataset", "weeks", *words[4:], "--json"))
    assert (again["fits"], again["more"], again["accounting"]) == (True, 39, "gdp")
    result = run(*words[:2], "--dataset", "weeks", "--epsilon", "3", "--delta", "1e-7", "--json")
    assert (result.exit_code, json.loads(result.stdout)["more"]) == (3, 0)


def test_a_release_over_budget_has_exit_code_3(folder: Path) -> None:
    init()
    words = ["plan", "a.ledger", "--dataset", "log", "--max-items-per-user", "20", "--epsilon", "3.5", "--delta"]
    result = run(*words, "1e-6")
    assert result.exit_code == 3
    assert " ".join(result.stdout.split()) == (
        "It does not fit. Remaining budget of the dataset 'log': one release like this one with epsilon up to 3."
    )
    facts = json.loads(run(*words, "1e-6", "--json").stdout)
    assert (facts["fits"], facts["more"], facts["largest_epsilon"]) == (False, 0, 3.0)
    hopeless = json.loads(run(*words, "1e-3", "--json").stdout)
    assert (hopeless["fits"], hopeless["largest_epsilon"]) == (False, 0.0)
    # Nothing was booked.
    assert Ledger.open("a.ledger").account("log").bookings == ()


def test_plan_with_a_limit(folder: Path) -> None:
    init()
    words = ["plan", "a.ledger", "--dataset", "log", "--epsilon", "1", "--delta", "1e-6"]
    facts = json.loads(output(*words, "--max-items-per-user", "20", "--json"))
    assert (facts["fits"], facts["more"], facts["largest_epsilon"]) == (True, 3, 3.0)
    with pytest.raises(InvalidParameter, match=r"max_items_per_user \(9\) must not exceed max_nonzero \(5\)"):
        run(*words, "--max-items-per-user", "9", "--max-nonzero", "5")


def test_show_expects_a_hash(folder: Path) -> None:
    init()
    old = HASH.findall(output("show", "a.ledger"))[0]
    Ledger.open("a.ledger").book("log", Spend(1, 1e-6), SumComposer())
    assert "entry 3" in output("show", "a.ledger", "--expect", old)
    with pytest.raises(LedgerError, match="has no entry with the hash"):
        run("show", "a.ledger", "--expect", "0" * 64)


BAD = [
    (["show", "missing"], "missing"),
    (["show", "."], "folder"),
    (["show", "text"], "text"),
    (["show", "a.ledger", "--dataset", "lgo"], "did you mean 'log'?"),
    (["show", "a.ledger", "--expect", "x"], "'x'"),
    (["init", "a.ledger", "--dataset", "log", *TOTAL], "'log'"),
    (["init", "b.ledger", "--dataset", "log", "--epsilon", "nan", "--delta", "1e-6"], "epsilon"),
    (["init", "b.ledger", "--dataset", " ", *TOTAL], "dataset"),
    (["init", "no/b.ledger", "--dataset", "log", *TOTAL], "no/b.ledger"),
    (["plan", "a.ledger", "--dataset", "log", "--epsilon", "1", "--delta", "2"], "delta"),
]


@pytest.mark.parametrize(("words", "fragment"), BAD, ids=[" ".join(words)[:40] for words, _ in BAD])
def test_bad_input_gets_one_sentence_and_exit_code_2(folder: Path, words: list[str], fragment: str) -> None:
    init()
    Path("text").write_text("user,item\n")
    done = command(folder, "ledger", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Error: ")
    assert fragment in done.err
    assert done.err.count("\n") == 1
    assert not Path("missing").exists()


@pytest.mark.parametrize("name", ["init", "show", "plan"])
def test_help_has_examples(name: str) -> None:
    result = CliRunner().invoke(commands(), ["ledger", name, "--help"])
    assert result.exit_code == 0
    assert f"dphist ledger {name} budget.ledger" in result.stdout
