"""`dphist ledger init|show|plan` as commands: tables, JSON, exit codes, one sentence for what is wrong."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dphist.cli import commands, main
from dphist.errors import DphistError, InvalidParameter, LedgerError
from dphist.ledger import Ledger, Spend, SumComposer

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


def said(*words: str) -> str:
    result = run(*words)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def init(dataset: str = "log", *words: str) -> str:
    return said("init", "a.ledger", "--dataset", dataset, *TOTAL, "--accounting", "sum", *words)


def test_init_book_show_and_plan(folder: Path) -> None:
    assert " ".join(init().split()) == (
        "The dataset 'log' has epsilon 3.0 and delta 1e-05 in the ledger a.ledger. That is enough for one release "
        "with epsilon 3 and delta 1e-05, or for about 52 weekly releases with epsilon 0.057 and delta 1.9e-07 "
        "each (with a limit on the items of each user, such as --max-items-per-user 20)."
    )
    ledger = Ledger.open("a.ledger")
    first = ledger.book("log", Spend(1, 1e-6, None, {"guarantee": "a sentence"}), SumComposer())
    ledger.book("log", Spend(0.5, 1e-6), SumComposer())
    ledger.settle(first, sha256="ab" * 32, address="out [red].parquet\x1b")
    shown = said("show", "a.ledger")
    lines = shown.splitlines()
    assert lines[0] == f"Ledger {ledger.accounts().id} in a.ledger"
    assert lines[1] == f"Head: entry 5, {ledger.accounts().chain.hash}"
    assert lines[3].split("  ")[0] == "dataset"
    assert lines[4].endswith("about 3 more releases like the last one, or one with epsilon up to 1.5")
    assert re.fullmatch(r"3 +log +20\S+Z +1\.0 +1e-06 +written +out \[red\]\.parquet\\x1b", lines[7]), (
        "brackets and escapes are text"
    )
    assert re.fullmatch(r"4 +log +20\S+Z +0\.5 +1e-06 +not known to be written", lines[8])
    planned = said("plan", "a.ledger", "--dataset", "log", "--epsilon", "0.5", "--delta", "1e-6")
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
    data = json.loads(said("show", "a.ledger", "--json"))
    assert data["head"] == {"entry": 5, "hash": ledger.accounts().chain.hash}
    log, orders = data["datasets"]
    assert orders["bookings"] == []
    assert {key: log[key] for key in (*facts, "epsilon_left")} == {**facts, "epsilon_left": 2.0}
    (entry,) = log["bookings"]
    assert entry == {
        **booked.receipt(), "created": booked.created, "epsilon": 1.0, "delta": 1e-6, "state": "written",
        "written": {"sha256": "ab" * 32, "address": "out.parquet"},
    }  # fmt: skip
    (one,) = json.loads(said("show", "a.ledger", "--dataset", "log", "--json"))["datasets"]
    assert one["bookings"] == [{**entry, "certificate": {"guarantee": "a sentence"}}]


def test_what_does_not_fit_has_another_exit_code(folder: Path) -> None:
    init()
    words = ["plan", "a.ledger", "--dataset", "log", "--epsilon", "3.5", "--delta", "1e-6"]
    result = run(*words)
    assert result.exit_code == 3
    assert " ".join(result.stdout.split()) == (
        "It does not fit. Remaining budget of the dataset 'log': one release like this one with epsilon up to 3."
    )
    facts = json.loads(run(*words, "--json").stdout)
    assert (facts["fits"], facts["more"], facts["largest_epsilon"]) == (False, 0, 3.0)
    hopeless = json.loads(run(*words[:-1], "1e-3", "--json").stdout)
    assert (hopeless["fits"], hopeless["largest_epsilon"]) == (False, 0.0)
    # Nothing was booked.
    assert Ledger.open("a.ledger").account("log").bookings == ()


def test_plan_with_a_bound_plans_the_release(folder: Path) -> None:
    init()
    words = ["plan", "a.ledger", "--dataset", "log", "--epsilon", "1", "--delta", "1e-6"]
    facts = json.loads(said(*words, "--max-items-per-user", "20", "--json"))
    assert (facts["fits"], facts["more"], facts["largest_epsilon"]) == (True, 3, 3.0)
    with pytest.raises(InvalidParameter, match=r"max_items_per_user \(9\) must not exceed max_nonzero \(5\)"):
        run(*words, "--max-items-per-user", "9", "--max-nonzero", "5")


def test_an_expected_receipt(folder: Path) -> None:
    init()
    old = HASH.findall(said("show", "a.ledger"))[0]
    Ledger.open("a.ledger").book("log", Spend(1, 1e-6), SumComposer())
    assert "entry 3" in said("show", "a.ledger", "--expect", old)
    with pytest.raises(LedgerError, match="has no entry with the hash"):
        run("show", "a.ledger", "--expect", "0" * 64)


BAD = [
    (["show", "missing"], "there is no ledger missing: make it with dphist ledger init"),
    (["show", "."], "the ledger . cannot be used: it is a folder"),
    (["show", "text"], "the ledger text is not a ledger: it is not a SQLite file"),
    (["show", "a.ledger", "--dataset", "lgo"],
     "the ledger has no dataset 'lgo' (did you mean 'log'?): it has 'log'"),
    (["show", "a.ledger", "--expect", "x"], "expect must be the hash of a receipt, 64 digits, not 'x'"),
    (["init", "a.ledger", "--dataset", "log", *TOTAL], "the ledger a.ledger already has a dataset 'log'"),
    (["init", "b.ledger", "--dataset", "log", "--epsilon", "nan", "--delta", "1e-6"],
     "epsilon must be a finite number, not nan"),
    (["init", "b.ledger", "--dataset", " ", *TOTAL], "dataset must be a name of 1 to 200 characters, not ' '"),
    (["init", "no/b.ledger", "--dataset", "log", *TOTAL],
     "the ledger no/b.ledger cannot be made: there is no folder no"),
    (["plan", "a.ledger", "--dataset", "log", "--epsilon", "1", "--delta", "2"], "delta must be below 1, not 2.0"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_gets_one_sentence_and_exit_code_2(
    folder: Path,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    init()
    Path("text").write_text("user,item\n")
    monkeypatch.setattr(sys, "argv", ["dphist", "ledger", *words])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert capsys.readouterr() == ("", f"Error: {message}\n")
    assert not Path("missing").exists()


@pytest.mark.parametrize("command", ["init", "show", "plan"])
def test_help_has_examples(command: str) -> None:
    result = CliRunner().invoke(commands(), ["ledger", command, "--help"])
    assert result.exit_code == 0
    assert f"dphist ledger {command} budget.ledger" in result.stdout
