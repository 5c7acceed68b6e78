"""Golden numbers: certified plans, outputs of commands and seeded releases, compared exactly.

    python tests/golden/golden.py --check                  # compare with golden.json; exit code 1 if different
    python tests/golden/golden.py --check --only plans     # one section
    python tests/golden/golden.py --list                   # the names of all cases
    python tests/golden/golden.py --write                  # compute golden.json anew

Only public entry points are used: the `dphist` command, and names that `import dphist` exports. Words are not
compared (`facts_only`), nor the names of keys that RENAMED_KEYS lists. Numbers that are drawn, certified or
released are compared exactly, also the last bit of a float. The last digits of other floats depend on the machine
(see DIGITS). golden.json belongs to the versions of numpy, scipy and DuckDB it was written with.

What is not in it: `dphist audit`, which has no seed; releases to and from PostgreSQL, which needs a server; and
the rows of releases that are booked on a ledger, because a ledger refuses seeds (what the ledger says is in it).
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import random
import re
import shlex
import sqlite3
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, is_dataclass
from fractions import Fraction
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet

import dphist
from dphist.paper.figure import frontier, tau_for_noise

# Keys of golden.json that have another name today: {"old": "new"}.
RENAMED_KEYS: dict[str, str] = {}
# Names of one word among the values (mechanisms, rules, kinds) that have another name today: {"old": "new"}.
RENAMED_NAMES: dict[str, str] = {}
# Keys of certificates that held sentences when golden.json was written, and hold facts today; and what is said of
# a release in words, which follows from the rest.
FORMERLY_WORDS = ("guarantee", "caveats", "summary")

GOLDEN = Path(__file__).with_name("golden.json")
ROOT = Path(__file__).parents[2]
SHOWN = 4  # differences that are printed of each case
# Relative differences allowed below a key. numpy and the C library choose instructions by processor, which
# changes the last digits of what is neither drawn nor certified: lower bounds on delta, the paper's bounds, and
# predictions (some are small differences of large numbers).
DIGITS = {"to 9 digits": 1e-9, "candidates": 1e-9, "delta_lower": 1e-12}
PAPERS_BOUND = re.compile("(gshm|csh)-.*")

NUMBER = re.compile(r"-?\d+(/\d+|\.\d+)?(e[+-]?\d+)?")
NOT_A_FACT = re.compile(
    r"""(?!--).*\s.*                      # words: a sentence or a title, but not an option with its value
    | .*/.* | .*\.[a-z_]{2,12}            # a path or the name of a file
    | \d{4}-\d\d-\d\d.*                   # a time
    | \d+\.\d+\.\d+.*                     # a version
    | [0-9a-f]{32,} | [A-Za-z0-9+/=]{40,} # a digest, an id, a signature
    """,
    re.VERBOSE | re.DOTALL,
)


# ---------------------------------------------------------------------------------------------------- comparing


def facts_only(value: Any) -> Any:
    """A value without sentences, paths, times, versions, digests and signatures; None for what has no facts.

    Entries that are empty or None go as well, so a fact that appears or disappears is still a difference.
    """
    if isinstance(value, Mapping):
        parts = {str(key): facts_only(part) for key, part in value.items() if key not in FORMERLY_WORDS}
        return {key: part for key, part in parts.items() if part is not None} or None
    if isinstance(value, (list, tuple)):
        return [part for part in map(facts_only, value) if part is not None] or None
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, str) and not NUMBER.fullmatch(value) and NOT_A_FACT.fullmatch(value):
        return None
    return value


def with_new_names(value: Any) -> Any:
    """A value of golden.json with the names of today."""
    if isinstance(value, dict):
        return {RENAMED_KEYS.get(key, key): with_new_names(part) for key, part in value.items()}
    if isinstance(value, list):
        return [with_new_names(part) for part in value]
    return RENAMED_NAMES.get(value, value) if isinstance(value, str) else value


def differences(old: Any, new: Any, path: str = "", tolerance: float = 0.0) -> Iterator[str]:
    """Where two values differ, one line each. Floats must be equal, except below a key of DIGITS."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            before, after = old.get(key, "(nothing)"), new.get(key, "(nothing)")
            allowed = DIGITS.get(key, 1e-12 if PAPERS_BOUND.fullmatch(key) else 0.0)
            yield from differences(before, after, f"{path}.{key}", max(tolerance, allowed))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{path}: {len(old)} entries, now {len(new)}"
        for place, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from differences(before, after, f"{path}[{place}]", tolerance)
    elif isinstance(old, float) and isinstance(new, float) and math.isclose(old, new, rel_tol=tolerance):
        return
    elif old != new or isinstance(old, bool) != isinstance(new, bool):
        yield f"{path}: {old!r}, now {new!r}"


# ------------------------------------------------------------------------------------------------- the commands


def command(line: str) -> dict[str, Any]:
    """`dphist LINE` in this process: its exit code and what it printed as JSON."""
    module, name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["dphist"].split(":")
    main = getattr(import_module(module), name)
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with patch.object(sys, "argv", ["dphist", *shlex.split(line)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    if code not in (0, 1, None) and not out.getvalue():
        raise RuntimeError(f"dphist {line}: {err.getvalue()}")
    try:
        printed = json.loads(out.getvalue())
    except json.JSONDecodeError:  # not asked for
        printed = None
    return {"exit": code or 0, "printed": printed}


def plain(value: Any) -> Any:
    """What a function returned, as JSON has it."""
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


# ------------------------------------------------------------------------------------------------------ the data


def write_inputs(folder: Path) -> None:
    """Events of 1500 users with up to 12 of 60 items, in all formats; a list of items; a histogram."""
    draws = random.Random(20260101)
    rows: list[tuple[int, str, str, int, float]] = []
    for user in range(1500):
        for _ in range(1 + int(12 * draws.random() ** 2)):
            rank = int(60 * draws.random() ** 3)
            country = ("at", "be", "cz")[int(3 * draws.random())]
            rows.append(
                (user, f"item {rank}", country, int(100 * draws.random()), 1 + int(40 * draws.random()) / 8)
            )
    table = pa.table(
        dict(zip(("user", "item", "country", "amount", "rating"), zip(*rows, strict=True), strict=True))
    )
    pa.parquet.write_table(table, folder / "events.parquet")
    pa.csv.write_csv(table, folder / "events.csv")
    pa.csv.write_csv(table.set_column(0, "user", pa.compute.add(table["user"], 1500)), folder / "others.csv")
    pa.feather.write_feather(table, folder / "events.arrow")
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    with sqlite3.connect(folder / "events.sqlite") as database:
        database.execute("CREATE TABLE log (user INTEGER, item TEXT, country TEXT, amount INTEGER, rating REAL)")
        database.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?)", rows)
    database.close()
    (folder / "items.csv").write_text("item\n" + "".join(f"item {rank}\n" for rank in range(0, 75, 5)))
    (folder / "request.toml").write_text(
        'input = "events.parquet"\nuser = "user"\nitem = ["item", "country"]\nepsilon = 2\ndelta = 1e-6\n'
        "max-items-per-user = 3\nseed = 11\n"
    )


def events(folder: Path) -> pa.Table:
    """The events, as a table of Arrow."""
    return pa.parquet.read_table(folder / "events.parquet")


def written(path: Path) -> dict[str, Any]:
    """A release that was written: its rows as they are in the file, and the facts of its certificate."""
    rows: Any
    if path.suffix in (".parquet", ".arrow"):
        table = (pa.parquet if path.suffix == ".parquet" else pa.feather).read_table(path)
        columns = table.to_pydict()
        rows = [
            [str(kind) for kind in table.schema.types],
            [*columns],
            *map(list, zip(*columns.values(), strict=True)),
        ]
    elif path.suffix == ".sqlite":
        database = sqlite3.connect(path)
        rows = [list(row) for row in database.execute("SELECT * FROM release")]
        database.close()
    elif path.suffix in (".csv", ".tsv"):
        rows = list(csv.reader(io.StringIO(path.read_text()), delimiter="\t" if path.suffix == ".tsv" else ","))
    else:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    beside = path.with_name(path.name + (".release" if path.suffix == ".sqlite" else "") + ".certificate.json")
    certificate: Any = json.loads(beside.read_text()) if beside.exists() else None
    return {"rows": rows, "certificate": facts_only(certificate)}


def exported(path: Path) -> str:
    """What is verified: the file itself, or the file that a table is exported to, with its certificate."""
    if path.suffix != ".sqlite":
        return path.name
    database = sqlite3.connect(path)
    cursor = database.execute("SELECT * FROM release")
    columns = zip(*cursor.fetchall(), strict=True)
    names = [column[0] for column in cursor.description]
    database.close()
    pa.parquet.write_table(pa.table(list(map(pa.array, columns)), names=names), path.with_name("exported.parquet"))
    return f"exported.parquet --certificate {path.name}.release.certificate.json"


# ----------------------------------------------------------------------------------------------------- the cases


@dataclass(frozen=True)
class Case:
    """One computation, whose result is a value of JSON. The quick ones are checked by `make test`."""

    name: str
    compute: Callable[[Path], Any]
    quick: bool = True


def facts_of(ask: Callable[[], Any], folder: Path) -> Any:
    """The facts that a function returns."""
    return facts_only(plain(ask()))


def command_case(line: str, *, quick: bool = True) -> Case:
    """A command with --json: the facts of what it prints."""

    def compute(folder: Path) -> Any:
        found = facts_only(command(f"{line} --json"))
        return {"to 9 digits": found} if line.startswith("simulate --from") else found

    return Case(f"dphist {line}", compute, quick)


def plans() -> list[Case]:
    """Certified plans of all mechanisms, analyses and contracts."""
    lines = []
    contracts = (
        "--max-items-per-user 1", "--max-items-per-user 20", "--max-nonzero 10", "--top 100", "--public-items 50",
        "--max-nonzero 1000 --max-items-per-user 100",
    )  # fmt: skip
    for budget in ("0.05 --delta 1e-10", "0.35 --delta 1e-5", "1 --delta 1e-6", "8 --delta 1e-3"):
        lines += [f"--epsilon {budget} {contract}" for contract in contracts]
    one = "--epsilon 1 --delta 1e-6"
    lines += [f"{one} --max-items-per-user {m} --mechanism {kind}" for m in (1, 3, 50) for kind in KINDS]
    lines += [f"--epsilon 0.35 --delta 1e-5 {size}" for size in SIZES]
    lines += [f"{one} --max-nonzero 100 --analysis {analysis}" for analysis in ANALYSES]
    lines += [
        f"--epsilon 0.5 --delta 1e-7 --max-nonzero 500 --max-items-per-user 50 --analysis {analysis}"
        for analysis in ANALYSES
    ]
    lines += [f"{one} {rest}" for rest in OTHER_PLANS]
    cases = [Case(f"plan {line}", partial(facts_of, partial(plan_by_flags, line))) for line in lines]
    # The command also plans for its advice, which costs more than the plan. It has the same numbers.
    cases += [command_case(f"plan {line}", quick=place % 9 == 1) for place, line in enumerate(lines[::3])]
    cases += [command_case(f"release {rest} --dry-run") for rest in DRY_RUNS]
    return cases


def plan_by_flags(line: str) -> Any:
    """`dphist.plan` for the flags of `dphist plan`."""
    options: dict[str, Any] = {}
    words = shlex.split(line)
    for flag, text in zip(words[::2], words[1::2], strict=True):
        name = flag.removeprefix("--").replace("-", "_")
        number = json.loads(text) if NUMBER.fullmatch(text) else text
        if name == "sum":
            options.setdefault("sums", []).append(tuple(json.loads(bound) for bound in text.split(":")))
        elif name == "weight":
            options.setdefault("weights", []).append(number)
        else:
            options[name] = number
    return dphist.plan(**options)


KINDS = ("best", "gaussian", "laplace")
SIZES = (
    "--max-nonzero 1", "--max-nonzero 2 --max-items-per-user 2", "--max-nonzero 51914", "--max-nonzero 1000000",
    "--max-items-per-user 1000000", "--max-nonzero 1000000 --max-items-per-user 1000", "--top 1", "--top 1000000",
    "--public-items 1", "--public-items 1000000", "--public-items 1000 --max-items-per-user 10",
    "--top 1000 --max-items-per-user 5", "--top 5 --max-items-per-user 1000",
)  # fmt: skip
ANALYSES = ("best", "exact", "gshm-add-the-deltas", "gshm-exact", "csh-add-the-deltas", "csh-tighter")
OTHER_PLANS = (
    "--max-nonzero 100 --noise continuous",
    "--max-items-per-user 7 --noise continuous",
    "--max-nonzero 100 --max-items-per-user 30 --noise discrete",
    "--max-nonzero 100 --gamma sqrt",
    "--max-nonzero 100 --gamma 3",
    "--max-nonzero 100 --gamma 2.5",
    "--max-nonzero 100 --gamma 1000 --max-items-per-user 40",
    "--max-nonzero 100 --gamma 2.5 --noise continuous",
    "--max-nonzero 100 --gamma sqrt --analysis csh-tighter",
    "--max-nonzero 100 --minimize noise",
    "--max-nonzero 1000 --max-items-per-user 100 --minimize noise",
    "--max-items-per-user 2 --minimize noise",
    "--top 50 --minimize noise",
    "--top 50 --offset opposite",
    "--top 50 --offset independent",
    "--top 50 --offset none",
    "--max-items-per-user 20 --sum 0:500",
    "--max-items-per-user 20 --sum 0:500 --sum -1.5:2.25 --weight 0.2 --weight 0.3",
    "--max-nonzero 300 --sum 1:5",
    "--max-nonzero 300 --max-items-per-user 30 --sum 1:5 --sum 0:1e6",
    "--top 100 --sum 0:10",
    "--top 100 --sum 0:10 --weight 0.5 --offset independent",
    "--public-items 200 --sum 0:10 --sum 5:6",
    "--public-items 200 --max-items-per-user 3 --sum 0:10 --weight 0.1",
    "--top 1000 --max-items-per-user 250",
)
BUDGET = "--user user --item item --epsilon 1 --delta 1e-6"
DRY_RUNS = (
    f"events.csv {BUDGET} --max-items-per-user 4",
    f"events.parquet {BUDGET}",
    f"events.parquet {BUDGET} --goal keys --mechanism gaussian",
    f"events.parquet {BUDGET} --sum amount:0:100 --mean rating:1:5",
    f"events.parquet {BUDGET} --top 10 --offset none",
    f"events.parquet {BUDGET} --max-nonzero 60 --interval 0.95",
    f"events.parquet {BUDGET} --items items.csv --max-items-per-user 2",
    f"events.parquet {BUDGET} --max-items-per-user 3 --lower-threshold 30",
)


def commands() -> list[Case]:
    """Outputs of commands and functions that release nothing."""
    cases = [command_case(line, quick=line not in SLOW_COMMANDS) for line in COMMANDS]
    for kind in ("gdp", "zcdp", "sum"):
        cases.append(Case(f"ledger {kind}", partial(facts_of, partial(ledger_facts, kind)), kind == "sum"))
    for name, ask in FUNCTIONS.items():
        cases.append(Case(name, partial(facts_of, ask), name not in SLOW_FUNCTIONS))
    return cases


COMMANDS = (
    "compare --epsilon 0.35 --epsilon 0.349 --delta 1e-5 --max-nonzero 51914 --max-nonzero 10",
    "compare --epsilon 1 --delta 1e-6 --max-items-per-user 20",
    "compare --epsilon 1 --delta 1e-6 --max-nonzero 1000 --max-items-per-user 100",
    "certify --epsilon 0.35 --sigma 1113.76 --gamma sqrt --tau 6987.3 --max-nonzero 51914",
    "certify --epsilon 1 --sigma 30 --tau 165 --max-items-per-user 50 --delta 1e-6",
    "certify --epsilon 1 --sigma 20 --tau 165 --max-items-per-user 50",
    "certify --epsilon 1 --sigma 12 --sigma-shared 3 --tau 90 --max-nonzero 40 --max-items-per-user 20",
    "profile --sigma 30 --tau 165 --max-items-per-user 50 --epsilon 0.5 --epsilon 1 --delta 1e-5",
    "profile --sigma 30 --gamma 4 --tau 165 --max-nonzero 20 --epsilon 0.1 --epsilon 3 --delta 1e-4",
    "simulate --zipf 1.1,1000,500 --epsilon 1 --delta 1e-6 --limits 1,4,16 --tops 10",
    "simulate --zipf 1.3,100000,50000,5 --epsilon 0.5 --delta 1e-7 --limits 2,8 --tops 100 --goal keys",
    "simulate --from events.csv --user user --item item --epsilon 1 --delta 1e-6 --limits 1,2,3 --tops 5 "
    "--goal mass",
    "simulate --from events.parquet --user user --item item --item country --where \"country <> 'at'\" "
    "--epsilon 2 --delta 1e-5 --limits 2,6 --tops 20",
)
SLOW_COMMANDS = (COMMANDS[0], COMMANDS[9], COMMANDS[11])


def ledger_facts(kind: str) -> Any:
    """What a ledger says before and after two releases; these are private, and only the ledger is recorded."""
    name = f"--dataset log {kind}.ledger"
    asked = f"ledger plan {name} --epsilon 0.5 --delta 1e-7 --json"
    command(f"ledger init {name} --epsilon 3 --delta 1e-6 --accounting {kind}")
    said = [
        command(f"{asked} {bound}") for bound in ("", "--max-items-per-user 20", "--top 5", "--public-items 9")
    ]
    for bound in ("--max-items-per-user 3", "--top 5"):
        line = f"events.parquet --user user --item item --epsilon 0.5 --delta 1e-7 {bound} --dataset log"
        command(f"release {line} --ledger {kind}.ledger --output {kind}.csv --force")
    said.append(command(f"{asked} --max-items-per-user 20"))
    said.append(command(f"ledger plan {name} --epsilon 9 --delta 1e-7 --json"))
    said.append(command(f"ledger show {name} --json"))
    return facts_only(said)


def a_plan(**options: Any) -> Any:
    """A plan for epsilon 0.5 and delta 1e-7."""
    return dphist.plan(epsilon=0.5, delta=1e-7, **options)


def spends(of: str, most: int | None = None) -> Any:
    """A profile or a zCDP bound for each kind of plan."""
    contracts: list[dict[str, Any]] = [
        {"max_items_per_user": 1, "mechanism": "laplace"}, {"max_items_per_user": 10}, {"max_nonzero": 50},
        {"max_nonzero": 50, "max_items_per_user": 20, "sums": [(0, 5)]}, {"top": 20}, {"public_items": 30},
    ]  # fmt: skip
    ask = getattr(dphist.accounting, of)
    return [ask(a_plan(**contract)) for contract in contracts[:most]]


def refusals() -> list[str]:
    """The errors that requests without a private answer raise."""
    asked: list[Callable[[], Any]] = [
        lambda: dphist.certify(epsilon=1, sigma=20, tau=165, max_items_per_user=50, delta=1e-6),
        lambda: dphist.plan(epsilon=1, delta=1e-6),
        lambda: dphist.plan(epsilon=1, delta=1.5, max_nonzero=3),
        lambda: dphist.plan(epsilon=1, delta=1e-6, top=3, mechanism="laplace"),
        lambda: dphist.plan(epsilon=1, delta=1e-6, max_nonzero=9, analysis="csh-tighter", noise="discrete"),
    ]
    names = []
    for ask in asked:
        try:
            ask()
            names.append("answered")
        except dphist.DphistError as error:
            names.append(type(error).__name__)
    return names


FUNCTIONS: dict[str, Callable[[], Any]] = {
    "refusals": refusals,
    "compare_sums": lambda: dphist.compare_sums(
        epsilon=1, delta=1e-6, max_items_per_user=20, sums=[(0, 5), (1, 9)]
    ),
    "frontier": lambda: frontier(epsilon=0.35, delta=1e-5, max_nonzero=10, analysis="exact", points=8),
    "tau_for_noise": lambda: [
        tau_for_noise(epsilon=0.35, delta=1e-5, max_nonzero=10, sigma=sigma, sigma_shared=sigma / 2)
        for sigma in (21, 30, 50)
    ],
    "delta_at": lambda: [dphist.delta_at(a_plan(max_nonzero=50), epsilon) for epsilon in (0.1, 0.5, 2)],
    "epsilon_at": lambda: [dphist.epsilon_at(a_plan(top=50), delta) for delta in (1e-5, 1e-6)],
    "profile": lambda: dphist.profile(a_plan(public_items=50), [0.1, 0.5, 2]),
    "accounting.profile_of_plan": lambda: spends("profile_of_plan", most=2),
    "accounting.zcdp_of_plan": lambda: spends("zcdp_of_plan"),
}


SLOW_FUNCTIONS = ("accounting.profile_of_plan",)


def release_case(line: str, output: str = "out.parquet", *, quick: bool = False) -> Case:
    """A seeded release by the command: what it prints, what it writes, and what `dphist verify` says."""

    def compute(folder: Path) -> Any:
        said = command(f"{line} --output {output} --force --json")
        return {
            "said": facts_only(said),
            "verified": facts_only(command(f"verify {exported(folder / output)} --json")),
            **written(folder / output),
        }

    return Case(f"dphist {line} --output {output}", compute, quick)


def function_case(name: str, release: Callable[[Path], Any], *, quick: bool = False) -> Case:
    """A seeded release by a function, written afterwards."""

    def compute(folder: Path) -> Any:
        release(folder).write("out.jsonl", force=True)
        return written(folder / "out.jsonl")

    return Case(name, compute, quick)


def releases_duckdb() -> list[Case]:
    """Seeded releases on this machine: the rows exactly, and the facts of their certificates."""
    cases = [release_case(f"release {line} --seed {seed}", quick=seed < 7) for seed, line in enumerate(RELEASES)]
    by_cap = f"{BUDGET} --max-items-per-user 3 --standard-error --interval 0.9 --seed 5"
    for name in ("events.csv", "events.jsonl", "events.arrow", "events.sqlite --table log"):
        cases.append(release_case(f"release {name} {by_cap}", quick=name == "events.csv"))
    for output in ("out.csv", "out.tsv", "out.jsonl", "out.arrow", "out.sqlite"):
        cases.append(release_case(f"release events.parquet {by_cap}", output))
    cases.append(release_case("release request.toml", "out.csv"))
    cases += [function_case(name, release, quick=True) for name, release in HISTOGRAMS.items()]
    cases += [function_case(f"release of a frame of {kind}", release) for kind, release in FRAMES.items()]
    for rest in SKETCHES:
        cases.append(Case(f"dphist sketch {rest}", partial(sketch_facts, rest), rest == SKETCHES[0]))
    return cases


RELEASES = (
    f"events.parquet {BUDGET} --max-items-per-user 4",
    f"events.parquet {BUDGET} --max-items-per-user 1 --mechanism laplace",
    f"events.parquet {BUDGET} --top 10",
    f"events.parquet {BUDGET} --items items.csv --max-items-per-user 5",
    f"events.parquet {BUDGET} --max-items-per-user 5 --sum amount:0:100 --mean rating:1:6",
    f"events.parquet {BUDGET} --max-nonzero 200 --max-items-per-user 3",
    f"events.parquet {BUDGET} --max-nonzero 12",
    f"events.parquet {BUDGET}",
    f"events.parquet {BUDGET} --goal keys --sum amount:0:100",
    f"events.parquet {BUDGET} --max-items-per-user 4 --mechanism gaussian --minimize noise",
    f"events.parquet {BUDGET} --max-items-per-user 4 --lower-threshold 120 --round",
    f"events.parquet {BUDGET} --max-nonzero 200 --minimize noise --gamma 5",
    f"events.parquet {BUDGET} --max-nonzero 200 --sum amount:0:100",
    f"events.parquet {BUDGET} --top 5 --offset independent",
    f"events.parquet {BUDGET} --top 5 --offset none",
    f"events.parquet {BUDGET} --top 8 --offset none --standard-error",
    f"events.parquet {BUDGET} --top 8 --mean rating:1:6 --weight 0.4",
    f"events.parquet {BUDGET} --top 20 --max-items-per-user 2",
    f"events.parquet {BUDGET} --items items.csv",
    f"events.parquet {BUDGET} --items items.csv --sum 'paid=amount:-10:50' --interval 0.95",
    f"events.parquet {BUDGET} --item country --max-items-per-user 3 --where \"country <> 'at'\" --count-name n",
    "events.parquet --user user --item where=country --epsilon 0.3 --delta 1e-8 --max-items-per-user 3",
    f"events.parquet {BUDGET} --max-items-per-user 2 --threads 1 --memory 1GB --null-items",
)


def histogram(plan: Mapping[str, Any], **options: Any) -> Callable[[Path], Any]:
    """A release of a histogram that was counted elsewhere."""
    items = [f"item {rank}" for rank in range(40)]
    counts = [4000 // (1 + rank) for rank in range(40)]
    return lambda _: dphist.release_histogram(
        items, counts, dphist.plan(epsilon=1, delta=1e-6, **plan), seed=3, **options
    )


HISTOGRAMS = {
    "release_histogram, items of a user": histogram({"max_items_per_user": 10}),
    "release_histogram, Laplace": histogram({"max_items_per_user": 1, "mechanism": "laplace"}),
    "release_histogram, non-zero counts": histogram({"max_nonzero": 20}),
    "release_histogram, non-zero counts promised": histogram({"max_nonzero": 60}, guarantee_max_nonzero=True),
    "release_histogram, top-k": histogram({"top": 15}, batch_size=7),
    "release_histogram, both bounds": histogram(
        {"max_nonzero": 60, "max_items_per_user": 20}, guarantee_max_nonzero=True
    ),
}


def frame_release(frame: Any, **options: Any) -> Any:
    """A seeded release of a frame."""
    usual: dict[str, Any] = {
        "item": ["item", "country"], "epsilon": 1, "delta": 1e-6, "max_items_per_user": 3, "seed": 9,
    }  # fmt: skip
    return dphist.release(frame, user="user", **(usual | options))


def polars_frame(folder: Path) -> Any:
    import polars

    return polars.read_parquet(folder / "events.parquet")


FRAMES: dict[str, Callable[[Path], Any]] = {
    "Arrow": lambda folder: frame_release(events(folder)),
    "Arrow with its types": lambda folder: frame_release(events(folder), types="fixed", sum="amount:0:100"),
    "pandas": lambda folder: frame_release(events(folder).to_pandas()),
    "polars": lambda folder: frame_release(polars_frame(folder)),
}

SKETCHES = ("--size 100", "--size 20", "--size 20 --item country", "--size 8")


def sketch_facts(rest: str, folder: Path) -> Any:
    """A sketch that was built, merged with one of other users, and released."""
    built = command(f"sketch build events.csv --user user --item item {rest} --output a.sketch --force --json")
    command(f"sketch build others.csv --user user --item item {rest} --output b.sketch --force")
    command("sketch merge a.sketch b.sketch --output both.sketch --force")
    found = {"built": facts_only(built)}
    for name, options in (("a", ""), ("both", "--offset independent --round"), ("a", "--offset none")):
        line = f"sketch release {name}.sketch --epsilon 1 --delta 1e-6 --seed 4 --output out.csv --force {options}"
        found[f"{name} {options}"] = {"said": facts_only(command(f"{line} --json")), **written(folder / "out.csv")}
    return found


def releases_spark() -> list[Case]:
    """Seeded releases on Spark, in one session on this machine: the rows exactly, sorted as they are released.

    Not known to be fully reproducible. Of four runs of the same code on a busy machine, three were identical and
    one differed in one of the 13 cases; which case and why is not known (neither PYTHONHASHSEED nor equal counts).
    A difference here should be run again, and looked into if it stays or returns.
    """
    cases = [
        Case(f"release of a frame of Spark {name}", partial(spark_facts, options), False)
        for name, options in ON_SPARK.items()
    ]
    for line in (f"{BUDGET} --max-items-per-user 3 --seed 5", f"{BUDGET} --top 6 --seed 6"):
        for name in ("events.parquet", "events.csv"):
            cases.append(release_case(f"release {name} {line} --engine spark"))
    return cases


ON_SPARK: dict[str, dict[str, Any]] = {
    "items of a user": {"max_items_per_user": 4},
    "Laplace": {"max_items_per_user": 1, "mechanism": "laplace"},
    "top-k": {"max_items_per_user": None, "top": 10},
    "public list": {"item": "item", "items": "items.csv"},
    "sums": {"max_items_per_user": 5, "sum": "amount:0:100", "mean": "rating:1:6"},
    "both bounds": {"max_nonzero": 200},
    "non-zero counts": {"max_items_per_user": None, "max_nonzero": 12},
    "rounds": {"max_items_per_user": None},
    "fixed types": {"types": "fixed", "standard_error": True, "round": True},
}


def spark_facts(options: Mapping[str, Any], folder: Path) -> Any:
    """A seeded release of a frame of Spark, written to one file."""
    from pyspark.sql import SparkSession

    frame = SparkSession.active().read.parquet(str(folder / "events.parquet"))
    frame_release(frame, **options).write("out.jsonl", force=True)
    return written(folder / "out.jsonl")


@contextmanager
def spark_session() -> Iterator[None]:
    """A Spark of two threads, two partitions after each shuffle; dphist finds a Java for it."""
    with tempfile.TemporaryDirectory(prefix="golden-spark-") as folder:
        from pyspark.sql import SparkSession

        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder.master("local[2]").appName("golden")
        for name, value in {
            "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.local.dir": folder,
            "spark.sql.warehouse.dir": f"{folder}/warehouse", "spark.sql.shuffle.partitions": "2",
            "spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1",
        }.items():  # fmt: skip
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        try:
            yield
        finally:
            session.stop()


# --------------------------------------------------------------------------------------------- writing, checking

SECTIONS: dict[str, Callable[[], list[Case]]] = {
    "plans": plans,
    "commands": commands,
    "releases_duckdb": releases_duckdb,
    "releases_spark": releases_spark,
}


def compute(section: str, *, quick: bool = False, verbose: bool = False) -> dict[str, Any]:
    """The results of a section by the names of its cases, or of its quick cases alone."""
    cases = [case for case in SECTIONS[section]() if case.quick or not quick]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="golden-") as name, chdir(name):
        write_inputs(Path(name))
        with spark_session() if section == "releases_spark" else nullcontext():
            for case in cases:
                assert case.name not in found, case.name
                start = time.process_time()
                found[case.name] = json.loads(json.dumps(case.compute(Path(name))))
                if verbose:
                    print(f"{time.process_time() - start:6.2f} CPU s  {case.name}", flush=True)
    return found


def read_golden() -> dict[str, dict[str, Any]]:
    """What golden.json says, by section and case, with the names of today."""
    stored = json.loads(GOLDEN.read_text())
    return {
        section: {name: with_new_names(case) for name, case in cases.items()} for section, cases in stored.items()
    }


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Golden numbers: compare them, or write them anew.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true", help="compare with golden.json; exit code 1 on a difference")
    what.add_argument("--write", action="store_true", help="write golden.json")
    what.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--only", metavar="SECTION", choices=SECTIONS, action="append", help=", ".join(SECTIONS))
    parser.add_argument("--verbose", action="store_true", help="print each case and what it costs")
    given = parser.parse_args(words)
    sections = given.only or list(SECTIONS)
    if given.list:
        for section in sections:
            print(*(f"{section}: {case.name}" for case in SECTIONS[section]()), sep="\n")
        return 0
    golden = read_golden() if GOLDEN.exists() else {}
    lines: list[str] = []
    for section in sections:
        start, cpu = time.perf_counter(), time.process_time()
        found = compute(section, verbose=given.verbose)
        took = f"{time.perf_counter() - start:.1f} s, {time.process_time() - cpu:.1f} CPU s"
        if given.write:
            golden[section] = found
            GOLDEN.write_text(json.dumps(golden, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
            print(f"{section:16} {len(found):4} cases written  ({took})", flush=True)
            continue
        stored = golden.get(section, {})
        each = {name: list(differences(stored.get(name), found.get(name))) for name in sorted({*stored, *found})}
        lines += [f"{section}: {name}: {line}" for name, all_here in each.items() for line in all_here[:SHOWN]]
        different = sum(map(bool, each.values()))
        same = len(each) - different
        print(f"{section:16} {len(each):4} cases, {same} identical, {different} different  ({took})", flush=True)
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
