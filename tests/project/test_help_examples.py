"""The examples in the help of every command run as they stand."""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from generator.commands import all_commands

from dphist.ledger import Ledger
from dphist.releasing.periods import last_period
from release_commands import command

COMMANDS = {one.path: one for _, commands in all_commands() for one in commands}
# They need a cluster, or wait for a browser.
NOT_RUN = ("hdfs://", "dphist explore")
# Files that an example creates.
NEW = {
    "dphist keygen": ("release.key", "release.key.pub"),
    "dphist ledger init": ("budget.ledger",),
    "dphist ledger checkpoint": ("november.json",),
}
# They compute for seconds.
LONG = ("dphist audit", "dphist compare", "dphist simulate")
# --expect has the hash of another ledger.
CODES = {"--expect": 2}
EVENTS = """
SELECT 'u' || (n // 3) AS user_id, user_id AS "user", user_id AS customer, user_id AS kunde,
    CASE n % 3 WHEN 0 THEN 'tea' WHEN 1 THEN 'milk' ELSE 'item ' || n % 7 END AS query, query AS word,
    query AS product, query AS artikel, query AS page, 'Norway' AS country, '200' AS status, n % 100 AS amount,
    n % 90 || ',5' AS betrag, 1 + n % 5 AS rating
FROM range(3000) t(n)
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    # The tests may run around midnight of a Sunday.
    weeks = {last_period("last-week", date.today() + timedelta(days)).name for days in (0, 1)}
    logs = ["users-0/a.csv", "logs/a.csv", *(f"logs/{week}/a.parquet" for week in weeks)]
    for name in ["log.parquet", "public.parquet", "public.csv", "orders.csv", "umsatz.csv", *logs]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        duckdb.execute(f"COPY ({EVENTS}) TO '{folder / name}'")
    (folder / "products.csv").write_text("product\ntea\nmilk\n")
    with sqlite3.connect(folder / "shop.sqlite") as shop:
        shop.execute("CREATE TABLE orders(customer TEXT, product TEXT)")
        shop.executemany("INSERT INTO orders VALUES (?, ?)", [(f"u{n}", "tea") for n in range(900)])
    (folder / "request.toml").write_text(
        'input = "log.parquet"\nuser = "user_id"\nitem = "query"\nepsilon = 1\ndelta = 1e-6\n'
    )
    (folder / "releases").mkdir()
    for name, datasets in {"budget.ledger": ["searches"], "budget.db": ["shop", "log"]}.items():
        for dataset in datasets:
            Ledger.init(folder / name, dataset, epsilon=3, delta=1e-6)
    release = (
        "release log.parquet --user user_id --item query --epsilon 1 --delta 1e-6 --top 2 --sign release.key -o"
    )
    for words in (
        "keygen release.key",
        "ledger checkpoint budget.ledger --sign release.key -o november.json",
        "sketch build users-0/a.csv --user user --item page --size 1000 -o users-0.sketch",
        "sketch build users-0/a.csv --user user --item page --size 1000 -o users-1.sketch",
        "sketch build users-0/a.csv --user user --item page --size 1000 -o all.sketch",
        *(f"{release} {name}" for name in ("queries.parquet", "releases/2026-W45.csv", "releases/2026-W46.csv")),
        f"{release} results.duckdb --output-table queries",
    ):
        done = command(folder, *words.split())
        assert done.code == 0, done.err
    duckdb.connect(str(folder / "results.duckdb")).execute(f"COPY queries TO '{folder / 'queries.csv'}'").close()
    return folder


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow if path in LONG else ()) for path in COMMANDS]
)
def test_the_examples_run(path: str, inputs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(inputs, tmp_path / "examples"))
    for name in NEW.get(path, ()):
        (folder / name).unlink()
    own = 0
    for example in COMMANDS[path].examples:
        own += path in example
        if any(words in example for words in NOT_RUN):
            continue
        # Signed today, which is not a date of the examples.
        words = shlex.split(re.sub(r"\\\n|^#.*\n", "", example).replace("2026-11-01", "2020-01-01"))[1:]
        for before, target in pairwise(words):
            if before in ("-o", "--plot", "--report"):
                for file in (target, f"{target}.certificate.json"):
                    (folder / file).unlink(missing_ok=True)
        done = command(folder, *words)
        expected = next((code for part, code in CODES.items() if part in example), 0)
        assert done.code == expected, f"{example}\n{done.out}{done.err}"
    assert own, "the help shows no example of the command"


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_explained(path: str) -> None:
    for row in COMMANDS[path].parameters:
        assert row.text.endswith((".", ")")), row


def test_the_same_option_has_the_same_words() -> None:
    """An option means the same in all commands that share its text; other texts say how a command differs."""
    defaults: dict[tuple[str, str], set[str]] = {}
    for one in COMMANDS.values():
        for row in one.parameters:
            defaults.setdefault((row.names, row.text), set()).add(row.default)
    assert {key: found for key, found in defaults.items() if len(found) > 1} == {}
