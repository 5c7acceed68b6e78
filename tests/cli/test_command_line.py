"""The command line: help, short flags, completion, missing and invalid options, early errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from inspect import getdoc, signature
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.main import get_command

import dphist
from dphist.cli import commands
from dphist.errors import InputError, InvalidParameter, MissingExtra
from dphist.releasing.request import PANELS, Request
from release_commands import command
from release_data import events

FLAGS = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "2"]
COMMANDS = [
    [], ["release"], ["plan"], ["certify"], ["compare"], ["profile"], ["audit"], ["simulate"], ["check"],
    ["report"], ["verify"], ["explore"], ["keygen"], ["sketch"], ["sketch", "build"], ["sketch", "merge"],
    ["sketch", "release"], ["ledger"], ["ledger", "init"], ["ledger", "show"], ["ledger", "checkpoint"],
    ["ledger", "plan"],
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(events({"tea": 900, "milk": 700}), tmp_path / "events.parquet")
    (tmp_path / "log.csv").write_text("user_id,query,day\nAnna,hidden words,2\n")
    return tmp_path


# Help.


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_the_terminal_and_nothing_is_cut_off(
    words: list[str], width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = command(tmp_path, *words, "--help")
    assert done.code == 0
    for line in done.out.splitlines():
        assert len(line) <= width, line
        assert "…" not in line
        assert line.startswith("Usage: ") or not re.search(r"\w\.\.\.$", line), line


def test_the_help_of_release_follows_the_order_of_work(tmp_path: Path) -> None:
    shown = command(tmp_path, "release", "--help").out
    titles = [line[:-1] for line in shown.splitlines() if line and line[0] != " " and line.endswith(":")]
    assert titles == list(PANELS)
    advanced = shown.partition("\nAdvanced:\n")[2]
    for name in ("gamma", "lower-threshold", "minimize", "offset", "mechanism", "seed"):
        assert f"  --{name} " in advanced
    assert shown.count("[required]") == 4


def test_every_command_is_in_a_panel_of_the_help(tmp_path: Path) -> None:
    shown = command(tmp_path, "--help").out
    assert "\nCommands:" not in shown
    registered = commands().registered_commands
    names = [entry.name or entry.callback.__name__ for entry in registered if entry.callback is not None]
    assert len(names) == len(registered) > 9
    assert all(f"\n  {name} " in shown for name in names)


# Short flags and completion.


def test_quiet_prints_nothing_but_json(folder: Path) -> None:
    quiet = command(folder, "release", "events.parquet", *FLAGS, "-o", "a.csv", "-q")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert (folder / "a.csv").exists()
    both = command(folder, "release", "events.parquet", *FLAGS, "-o", "b.csv", "-q", "--json")
    assert json.loads(both.out)["output"] == "b.csv"
    assert command(folder, "verify", "a.csv", "-q").out == ""
    assert command(folder, "report", "a.csv", "-o", "a.html", "--quiet").out == ""
    assert command(folder, "keygen", "a.key", "-q").out == ""
    build = ("sketch", "build", "events.parquet", "--user", "user", "--item", "item", "--size", "9")
    assert command(folder, *build, "-o", "a.sketch", "-q").out == ""
    assert command(folder, "sketch", "merge", "a.sketch", "-o", "b.sketch", "-q").out == ""
    assert {"a.html", "a.key", "a.key.pub", "a.sketch", "b.sketch"} <= {path.name for path in folder.iterdir()}
    refused = command(folder, "release", "events.parquet", *FLAGS, "-o", "a.csv", "-q")
    assert (refused.code, refused.out) == (1, "")
    assert "already exists" in refused.err
    (folder / "a.csv").write_text((folder / "a.csv").read_text().replace("tea", "coffee"))
    changed = command(folder, "verify", "a.csv", "-q")
    assert changed.code == 1
    assert changed.out


@pytest.mark.parametrize(
    ("typed", "place", "offered"),
    [
        ("dphist rel", 1, {"release"}),
        ("dphist release --max-", 2, {"--max-items-per-user", "--max-nonzero"}),
        ("dphist release --engine ", 3, {"duckdb", "spark"}),
    ],
)
def test_completion(
    typed: str, place: int, offered: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"_DPHIST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(place)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert set(command(tmp_path).out.split()) == offered


def test_completion_can_be_installed(tmp_path: Path) -> None:
    shown = command(tmp_path, "--help").out
    assert "--install-completion" in shown
    assert "--show-completion" in shown


# Missing and invalid options.


def test_all_missing_flags_at_once_with_the_columns_and_an_example(folder: Path) -> None:
    done = command(folder, "release", "log.csv")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "Error: missing: --user, --item, --epsilon, --delta, --output. Columns of log.csv: user_id, query, day. "
        "For example:\n"
        "  dphist release log.csv --user user_id --item query --epsilon 1 --delta 1e-6 -o counts.csv\n"
    )
    some = command(folder, "release", "log.csv", "--user", "day", "--delta", "1e-9", "--dry-run")
    assert some.err.startswith("Error: missing: --item, --epsilon. Columns of log.csv: user_id, query, day. ")
    assert some.err.endswith(
        "  dphist release log.csv --user day --delta 1e-9 --dry-run --item query --epsilon 1\n"
    )
    for words, fragment in ((["none.csv"], "none.csv"), ([], "INPUT")):
        missing = command(folder, "release", *words)
        assert fragment in missing.err
        assert "Anna" not in missing.err + some.err + done.err
        assert "hidden" not in missing.err + some.err + done.err


def test_the_example_works(folder: Path) -> None:
    done = command(folder, "release", "events.parquet", "--max-items-per-user", "1")
    words = done.err.splitlines()[-1].split()
    assert words[:2] == ["dphist", "release"]
    assert command(folder, *words[1:]).code == 0


def test_odd_columns_are_quoted(folder: Path) -> None:
    pq.write_table(events({"tea": 2}).rename_columns(["my user", "it's\n\x1b[31m"]), folder / "odd.parquet")
    done = command(folder, "release", "odd.parquet")
    assert "--user 'my user'" in done.err
    assert "\x1b" not in done.err
    assert done.err.count("\n") == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["plan"], "missing: --epsilon, --delta (see dphist plan --help)"),
        (["verify"], "missing: RELEASE (see dphist verify --help)"),
        (["sketch", "merge"], "missing: SKETCH, --output (see dphist sketch merge --help)"),
        (["plan", "--epsilon", "x"], "--epsilon: 'x' is not a number (see dphist plan --help)"),
        (
            ["plan", "--noise", "pink"],
            "--noise: 'pink' is not one of 'continuous', 'discrete' (see dphist plan --help)",
        ),
        (["plan", "--epsilo", "1"], "no such option: --epsilo, did you mean --epsilon? (see dphist plan --help)"),
        # All flags have their dashes in common.
        (["release", "x.csv", "--bogus", "1"], "no such option: --bogus (see dphist release --help)"),
        (
            ["release", "x.csv", "--usr", "1"],
            "no such option: --usr, did you mean --user? (see dphist release --help)",
        ),
        (
            ["plan", "--epsilon", "1", "--delta", "1e-6", "--top", "100", "--analysis", "csh-tighter"],
            "--top cannot be used with the analysis 'csh-tighter'",
        ),
        (
            ["plan", "--epsilon", "1", "--delta", "1e-6", "--public-items", "9", "--gamma", "3"],
            "--public-items cannot be used with --gamma, which is tuned",
        ),
        (
            ["release", "x.csv", *FLAGS[:8], "--items", "y.csv", "--gamma", "sqrt"],
            "--gamma needs --max-nonzero; with --items and --top it is chosen by the plan",
        ),
        (
            ["release", "x.csv", *FLAGS[:8], "--max-nonzero", "9", "--gamma", "2.5"],
            "--gamma must be a whole number of at least 1, not 2.5",
        ),
        (["simulate", "--epsilon", "1", "--delta", "1e-6"], "give public data, or --zipf for synthetic data"),
        (["plam"], "no such command 'plam'. Did you mean 'plan'? (see dphist --help)"),
        (["verify", "a", "b"], "got unexpected extra argument(s) (b) (see dphist verify --help)"),
    ],
)
def test_an_invalid_command_line_gets_one_sentence(tmp_path: Path, words: list[str], sentence: str) -> None:
    done = command(tmp_path, *words)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"Error: {sentence}\n"


def test_no_arguments_show_the_help(tmp_path: Path) -> None:
    done = command(tmp_path)
    assert done.code == 2
    assert done.err.startswith("Usage: dphist ")


# Early errors.

UNPLANNED: list[tuple[list[str], int, str]] = [
    (["release", "none.csv", *FLAGS, "-o", "x.csv"], 2, "none.csv"),
    (["release", "log.csv", *FLAGS, "-o", "x.csv"], 2, "did you mean 'user_id'?"),
    (["release", "events.parquet", *FLAGS, "-o", "log.csv"], 1, "log.csv"),
    (["release", "events.parquet", *FLAGS, "-o", "none/x.csv"], 1, "none"),
    (
        ["release", "events.parquet", *FLAGS, "-o", "x.csv", "--ledger", "none.db", "--dataset", "log"],
        2,
        "none.db",
    ),
]
LIGHT: list[tuple[list[str], int, str]] = [
    (["release", "log.csv"], 2, "missing: --user"),
    (["verify", "none.csv"], 2, "none.csv"),
    (["report", "none.csv"], 2, "none.csv"),
]


# Runs all command lines in one process and prints the message, the exit code and the heavy imports of each.
SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr
from dphist.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["dphist", *words]
    with redirect_stderr(io.StringIO()) as message:
        try:
            main()
        except SystemExit as end:
            heavy = {'scipy', 'flint', 'numba', 'dphist.planning.planner'} & set(sys.modules)
            print(json.dumps([message.getvalue(), end.code, sorted(heavy)]))
"""
# Planning, which takes a second, ends the process instead.
WITHOUT_PLANS = """
import sys
from dphist.releasing import run
run.make_plan = run.plan_rounds = lambda **_: sys.exit(99)
"""


def early_errors(folder: Path, script: str, cases: list[tuple[list[str], int, str]]) -> Iterator[list[str]]:
    """Check the errors of these command lines, and yield the heavy imports of each."""
    command_line = [sys.executable, "-c", script, json.dumps([words for words, _, _ in cases])]
    done = subprocess.run(command_line, cwd=folder, capture_output=True, text=True, check=True)
    for (words, code, sentence), line in zip(cases, done.stdout.splitlines(), strict=True):
        message, ended, heavy = json.loads(line)
        assert ended == code, (words, message)
        assert sentence in message
        yield heavy


def test_mistakes_are_reported_before_planning(folder: Path) -> None:
    assert len(list(early_errors(folder, WITHOUT_PLANS + SCRIPT, UNPLANNED))) == len(UNPLANNED)
    planned = [(["release", "events.parquet", *FLAGS, "-o", "x.csv"], 99, "")]
    assert len(list(early_errors(folder, WITHOUT_PLANS + SCRIPT, planned))) == 1


def test_mistakes_are_reported_before_heavy_imports(folder: Path) -> None:
    assert list(early_errors(folder, SCRIPT, LIGHT)) == [[]] * len(LIGHT)


# Flags in the shell, keyword arguments in Python.


@pytest.mark.parametrize(
    ("message", "flags", "keywords"),
    [
        (
            "<--sign> needs <--output>: it signs the file",
            "--sign needs --output: it signs the file",
            "sign needs output: it signs the file",
        ),
        (
            "<--interval> cannot be used with <--offset none>: no",
            "--interval cannot be used with --offset none: no",
            "interval cannot be used with offset='none': no",
        ),
        ("<--max-nonzero> = 5, <--output ->", "--max-nonzero = 5, --output -", "max_nonzero = 5, output='-'"),
        (
            "rename it with <--item NAME=COLUMN>, please",
            "rename it with --item NAME=COLUMN, please",
            "rename it with item='NAME=COLUMN', please",
        ),
        (
            "x.csv already exists: replace it with <--force>",
            "x.csv already exists: replace it with --force",
            "x.csv already exists: replace it with force=True",
        ),
        ("<--top> must be 1, not '--top 3'", "--top must be 1, not '--top 3'", "top must be 1, not '--top 3'"),
        (
            "the user's column \"it's --top\" needs <--items>",
            "the user's column \"it's --top\" needs --items",
            "the user's column \"it's --top\" needs items",
        ),
        *[
            (same, same, same)
            for same in (
                "dir/--force is not a file; a--top-b",
                "create it with dphist ledger init FILE --dataset log",
                "the item '<b>--top</b>' is less < --more",
            )
        ],
    ],
)
def test_errors_name_options_in_the_language_of_the_caller(message: str, flags: str, keywords: str) -> None:
    for kind in (InvalidParameter, InputError, MissingExtra):
        error = kind(message)
        assert str(error) == keywords
        assert error.with_flags == flags


def test_marked_options_exist() -> None:
    known, groups = set(), [get_command(commands())]
    for group in groups:
        known |= {flag for parameter in group.params for flag in parameter.opts}
        groups += getattr(group, "commands", {}).values()
    for path in Path(dphist.__file__).parent.rglob("*.py"):
        named = set(re.findall(r"<(--[a-z-]+)", path.read_text(encoding="utf-8")))
        assert named <= known, path


def test_the_same_mistake_in_both_languages(folder: Path) -> None:
    done = command(folder, "plan", "--epsilon", "1", "--delta", "1e-6", "--max-nonzero", "0")
    assert "Error: --max-nonzero must be between" in done.err
    with pytest.raises(InvalidParameter, match=r"^max_nonzero must be between"):
        dphist.plan(epsilon=1, delta=1e-6, max_nonzero=0)
    done = command(folder, "release", "events.parquet", *FLAGS, "-o", "x.csv", "--master", "yarn")
    assert done.err == "Error: --master needs --engine spark\n"
    with pytest.raises(InvalidParameter, match=r"^master needs engine='spark'$"):
        dphist.release("events.parquet", user="user", item="item", epsilon=1, delta=1e-6, master="yarn")


def test_release_shows_its_options_to_editors() -> None:
    parameters = signature(dphist.release).parameters
    assert set(parameters) == {entry.name for entry in fields(Request)}
    documented = getdoc(dphist.release) or ""
    for name in parameters:
        assert f"\n    {name}: " in documented, name
