"""Small versions of the examples run as documented, verify, and release no planted secret."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import release_commands
from dphist.releasing.request import Request, request_from

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PERSONAL = re.compile(r"[a-z]+ [a-z] [a-z]+ \d+ [a-z]+ [a-z]+")
PUBLIC_PRODUCTS = 50
# With the delta of the examples, an item of a single user passes once in 2e7 cases, and there are thousands of
# such items. So tests that none passes use a smaller delta.
SMALL_DELTA = "1e-13"


def run(folder: Path, *command: str | Path) -> str:
    """Run `python SCRIPT ...` or `dphist ...` in this process and return what it prints."""
    program, *words = [str(word) for word in command]
    assert program in ("dphist", "python")
    if program == "dphist":
        done = release_commands.command(folder, *words)
    else:
        done = release_commands.script(folder, Path(words[0]), *words[1:])
    assert done.code == 0, f"{command}: {done.out}{done.err}"
    return done.out


def rows_of(log: Path, select: str) -> list[Any]:
    with duckdb.connect() as connection:
        connection.register("log", pq.read_table(log))
        return connection.execute(select).fetchall()


def column(path: Path, name: str) -> list[Any]:
    values: list[Any] = pq.read_table(path).column(name).to_pylist()
    return values


@pytest.fixture(scope="module")
def search_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small log and its release, made by the documented commands.

    With a probability below 3e-11, one of the 5,460 queries of single users is released by chance.
    """
    folder = tmp_path_factory.mktemp("search_log")
    source = EXAMPLES / "search_log"
    run(folder, "python", source / "make_log.py", "--events", "60000", "--output", "log.parquet")
    run(folder, "dphist", "release", source / "request.toml", "--delta", SMALL_DELTA)
    return folder


def test_search_log_is_realistic(search_log: Path) -> None:
    log = search_log / "log.parquet"
    assert [(field.name, str(field.type)) for field in pq.read_schema(log)] == [
        ("user_id", "string"),
        ("query", "string"),
        ("day", "date32[day]"),
        ("country", "string"),
    ]
    events, users, queries, days, pairs = rows_of(
        log,
        "SELECT count(*), count(DISTINCT user_id), count(DISTINCT query), count(DISTINCT day), "
        "count(DISTINCT (user_id, query)) FROM log",
    )[0]
    assert (events, days) == (60000, 90)
    assert 2000 < users < queries
    assert pairs < 0.9 * events  # users repeat their queries
    largest = rows_of(log, "SELECT count(*) AS n FROM log GROUP BY user_id ORDER BY n DESC LIMIT 1")[0][0]
    assert largest > 20 * events / users  # and a few search a lot


def test_search_log_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    made = []
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        path = tmp_path / f"{name}.parquet"
        script = EXAMPLES / "search_log" / "make_log.py"
        run(tmp_path, "python", script, "--events", "500", "--seed", seed, "--output", path)
        made.append(pq.read_table(path))
    assert made[0].equals(made[1])
    assert not made[0].equals(made[2])


def test_search_log_release_verifies_and_has_no_query_of_a_single_user(search_log: Path) -> None:
    released = set(column(search_log / "queries.parquet", "query"))
    log = search_log / "log.parquet"
    rows = rows_of(log, "SELECT query FROM log GROUP BY query HAVING count(DISTINCT user_id) = 1")
    alone = {row[0] for row in rows}
    planted = {query for query in column(log, "query") if PERSONAL.fullmatch(query)}
    assert len(planted) > 100
    assert planted <= alone
    assert "weather tomorrow" in released
    assert not released & alone
    assert "is verified" in run(search_log, "dphist", "verify", "queries.parquet")


def test_search_log_comparison(search_log: Path) -> None:
    script = EXAMPLES / "search_log" / "look.py"
    lines = run(search_log, "python", script, "log.parquet", "queries.parquet").splitlines()
    shown = {line[:30].strip(): line[30:].split() for line in lines if line}
    released = len(column(search_log / "queries.parquet", "query"))
    assert shown["all"][1] == f"{released:,}"
    assert shown["searched by one user only"][1] == shown["with a name and an address"][1] == "0"


def test_search_log_request_has_only_known_keys() -> None:
    values = tomllib.loads((EXAMPLES / "search_log" / "request.toml").read_text(encoding="utf-8"))
    known = {entry.name.replace("_", "-") for entry in fields(Request)}
    assert set(values) <= known
    request = request_from(values)
    assert (request.epsilon, request.delta, request.in_rounds) == (1.0, 1e-6, True)


def commands_of(script: Path, folder: Path, *words: str) -> list[list[str]]:
    """The commands that a shell script calls, recorded by stubs of `python` and `dphist`."""
    programs, noted = folder / "programs", folder / "noted"
    programs.mkdir()
    for name in ("python", "dphist"):
        (programs / name).write_text(f"#!/bin/sh\nprintf '%s\\0' {name} \"$@\" '' >> '{noted}'\n")
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), os.environ.get("PATH", "")])
    subprocess.run([script, *words], cwd=folder, env={**os.environ, "PATH": path}, check=True, capture_output=True)
    return [command.split("\0") for command in noted.read_text().removesuffix("\0\0").split("\0\0")]


def test_purchases(tmp_path: Path) -> None:
    commands = commands_of(EXAMPLES / "purchases" / "run.sh", tmp_path, "shop", "3000")
    assert [command[1] for command in commands if command[0] == "dphist"] == [
        "release",
        "release",
        "verify",
        "verify",
    ]
    printed = "".join(run(tmp_path, *command) for command in commands)
    assert printed.count("is verified") == 2
    folder = tmp_path / "shop"
    with (folder / "sold.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "products.csv").open(encoding="utf-8", newline="") as file:
        products = {row["product"] for row in csv.DictReader(file)}
    assert len(rows) == len(products) == PUBLIC_PRODUCTS
    assert {row["product"] for row in rows} == products
    assert all(float(row["customers_low"]) < int(row["customers"]) < float(row["customers_high"]) for row in rows)
    with duckdb.connect(str(folder / "results.duckdb"), read_only=True) as results:
        counts = results.execute("SELECT country, product_group, customers FROM country_group").fetchall()
    assert 10 < len(counts) < 80
    assert len({row[:2] for row in counts}) == len(counts)


def test_pageviews(tmp_path: Path) -> None:
    """Three days of few readers, with the budget of a day in a year."""
    commands = commands_of(EXAMPLES / "pageviews" / "run.sh", tmp_path, "views", "3", "9000")
    done = [command[1] for command in commands if command[0] == "dphist"]
    assert done == ["ledger", "ledger", *["release"] * 3, "series", "ledger"]
    printed = "".join(run(tmp_path, *command) for command in commands)
    assert "365, one per day" in printed
    budget = re.search(r"--epsilon (\S+) --delta (\S+) --ledger", printed)
    assert budget is not None
    released = next(command for command in commands if command[1] == "release")
    assert released[released.index("--epsilon") + 1] == budget[1]
    assert released[released.index("--delta") + 1] == budget[2]
    series = pq.read_table(tmp_path / "views" / "series.parquet")
    assert series.column_names == ["country", "page", "period", "count", "margin"]
    assert set(series.column("period").to_pylist()) <= {"2026-03-01", "2026-03-02", "2026-03-03"}
    assert "3 releases, 2026-03-01 to 2026-03-03" in printed
    assert "about 389 more releases like the last one" in printed
    assert (tmp_path / "views" / "series.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    again = "".join(run(tmp_path, *command) for command in commands if command[1] == "release")
    assert again == "", "days that are released are left alone"
    assert run(tmp_path, "dphist", "ledger", "show", "views/pageviews.ledger").count("written") == 3


WORDS = EXAMPLES / "words" / "words.py"


def test_synthetic_words(tmp_path: Path) -> None:
    """With a probability below 3e-12, one of 1,200 signatures is released by chance."""
    printed = run(
        tmp_path, "python", WORDS, "--authors", "1200", "--top", "50", "--delta", SMALL_DELTA, "--output", "out"
    )
    assert "top=50:" in printed
    assert "max_items_per_user=50:" in printed
    top, capped = (column(tmp_path / "out" / name, "word") for name in ("top.parquet", "capped.parquet"))
    assert 0 < len(top) <= 50
    assert capped
    assert not any(re.fullmatch("x[a-j]+x", word) for word in (*top, *capped))  # signatures
    for name in ("top.parquet", "capped.parquet"):
        assert "is verified" in run(tmp_path, "dphist", "verify", tmp_path / "out" / name)


def test_words_of_a_folder(tmp_path: Path) -> None:
    """With a probability below 5e-12, one of 400 words of single authors is released by chance."""
    texts = tmp_path / "texts"
    for k in range(400):
        (texts / f"author{k}").mkdir(parents=True)
        text = f"Hello world, it's me: secret{chr(97 + k % 26)}{chr(97 + k // 26)}"
        (texts / f"author{k}" / "first.txt").write_text(text, encoding="utf-8")
        (texts / f"author{k}" / "second.md").write_text("Hello again!", encoding="utf-8")
    printed = run(tmp_path, "python", WORDS, texts, "--cap", "10", "--top", "10", "--delta", SMALL_DELTA)
    assert "hello" in printed
    assert "it's" in printed
    assert "secret" not in printed
