"""What the default finds, how far its counts are off, and how often its intervals hold the truth.

Run `python benchmarks/rounds.py [--data DIR] [--runs 20] [--epsilon 1] [--goal accuracy] [--json FILE]`.

Every number is of `dphist.release` itself with all of its spending, at delta 1e-6, as the mean over the runs (a
quarter of them for data of more than a million pairs):

- items: how many were released;
- distance: sum |count - truth| / sum truth over all items, where items that are not released count as 0;
- intervals: the share of released counts whose interval of 95 % holds the true number of users;
- top ten: the mean of count/truth - 1 over the ten largest items;
- CPU: seconds of one release, in this process.

`--data` is a folder of Parquet files with the columns user and item. Made here are the common job of
benchmarks/peers.py, the demo's search log, its orders, the posts of examples/words, users per month and per day,
5,000 users with one item each, users with a geometric number of items of mean 2, and 3,000 users of whom one in
twenty has some 1,900 items, or one in fifty some 9,000.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dphist

ROOT = Path(__file__).parents[1]
DELTA = 1e-6


def _made(folder: Path, data: Path | None) -> Iterator[tuple[str, Path]]:
    """Names and files with the columns user and item."""
    for path in sorted(data.glob("*.parquet")) if data else []:
        yield path.stem, path
    common = folder / "common.parquet"
    subprocess.run(
        [sys.executable, ROOT / "benchmarks/peers.py", "--make", common], check=True, stdout=subprocess.DEVNULL
    )
    yield "common job", common
    log, orders = folder / "log.parquet", folder / "orders.csv"
    run: list[str | Path] = [sys.executable, ROOT / "examples/search_log/make_log.py", "--output", log]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    run = [
        sys.executable,
        ROOT / "examples/purchases/make_shop.py",
        "--output",
        folder / "shop.sqlite",
        "--orders",
    ]
    subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
    yield "demo log", _pairs(folder / "log_pairs.parquet", f"SELECT user_id, query FROM '{log}'")
    yield "orders", _pairs(folder / "orders_pairs.parquet", f"SELECT customer, product FROM '{orders}'")
    yield "posts", _posts(folder)
    yield from _periods(folder)
    yield from _synthetic(folder)


def _pairs(path: Path, query: str) -> Path:
    rows = f"SELECT DISTINCT u::VARCHAR AS user, i::VARCHAR AS item FROM ({query}) AS t(u, i)"
    duckdb.sql(f"COPY ({rows}) TO '{path}'")
    return path


def _posts(folder: Path) -> Path:
    posts = runpy.run_path(str(ROOT / "examples/words/words.py"))
    posts["words_of"](posts["synthetic_posts"](5000)).write_parquet(folder / "posts_words.parquet")
    return _pairs(folder / "posts.parquet", f"SELECT author, word FROM '{folder / 'posts_words.parquet'}'")


def _periods(folder: Path) -> Iterator[tuple[str, Path]]:
    """Users by month and by day: few items, and active users have most of them."""
    rng = np.random.default_rng(5)
    for name, users, periods in (("users per month", 20_000, 36), ("users per day", 3_000, 180)):
        activity = np.clip(rng.beta(0.5, 1.5, users), 0.01, 1.0)[:, None]
        season = 0.6 + 0.4 * np.sin(np.arange(periods) / periods * 9.0)[None, :]
        user, item = np.nonzero(rng.random((users, periods)) < activity * season)
        yield name, _write(folder / f"{name}.parquet", user, item)


def _synthetic(folder: Path) -> Iterator[tuple[str, Path]]:
    rng = np.random.default_rng(6)
    yield "one item each", _write(folder / "one.parquet", np.arange(5_000), rng.zipf(1.5, 5_000) % 100_000)
    sizes = rng.geometric(0.5, 50_000)
    yield (
        "geometric",
        _write(
            folder / "geometric.parquet",
            np.repeat(np.arange(50_000), sizes),
            rng.zipf(1.3, sizes.sum()) % 1_000_000,
        ),
    )
    popular = (np.arange(50_000) + 3.0) ** -1.05
    for name, one_in, draws in (("very active", 20, 4_000), ("hardly visible", 50, 30_000)):
        sizes = np.where(np.arange(3_000) % one_in == 0, draws, rng.integers(5, 60, 3_000))
        items = rng.choice(50_000, sizes.sum(), p=popular / popular.sum())
        yield name, _write(folder / f"{name}.parquet", np.repeat(np.arange(3_000), sizes), items)


def _write(path: Path, user: Any, item: Any) -> Path:
    table = pa.table({"user": pa.array(user).cast("string"), "item": pa.array(item).cast("string")})
    pq.write_table(table.group_by(["user", "item"]).aggregate([]), path)
    return path


def measure(path: Path, epsilon: float, goal: Any, runs: int) -> dict[str, float]:
    """The means over the runs."""
    query = f"SELECT item::VARCHAR, count(DISTINCT user)::DOUBLE FROM '{path}' WHERE item IS NOT NULL GROUP BY 1"
    truth: dict[str, float] = dict(duckdb.execute(query).fetchall())
    total, largest = sum(truth.values()), sorted(truth, key=truth.__getitem__, reverse=True)[:10]
    rows = []
    for _ in range(runs):
        begun = time.process_time()
        released = dphist.release(
            str(path), user="user", item="item", epsilon=epsilon, delta=DELTA, goal=goal, **DEFAULT
        )
        spent = time.process_time() - begun
        items = [str(item) for item in released.items.to_pylist()]
        counts = dict(zip(items, released.counts.tolist(), strict=True))
        margins = dict(zip(items, released.added["margin"].tolist(), strict=True))
        off = sum(abs(counts.get(item, 0.0) - users) for item, users in truth.items())
        held = [abs(counts[item] - truth[item]) <= margins[item] for item in counts]
        top = [counts[item] / truth[item] - 1.0 for item in largest if item in counts]
        rows.append(
            (len(counts), off / total, np.mean(held) if held else np.nan, np.mean(top) if top else np.nan, spent)
        )
    names = ("items", "distance", "intervals", "top ten", "CPU")
    return dict(zip(names, np.nanmean(np.array(rows, dtype=float), axis=0).tolist(), strict=True))


DEFAULT: dict[str, Any] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of Parquet files with the columns user and item")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--goal", action="append", choices=["accuracy", "keys"])
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    parser.add_argument("--only", help="only data sets whose name contains this")
    given = parser.parse_args()
    print("| data | epsilon | goal | items | distance | intervals | top ten | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    rows: list[dict[str, str | float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in _made(Path(folder), given.data):
            if given.only and given.only not in name:
                continue
            large = pq.read_metadata(path).num_rows > 1_000_000
            runs = max(1, given.runs // 4) if large else given.runs
            for epsilon in given.epsilon or [1.0]:
                for goal in given.goal or ["accuracy"]:
                    found = measure(path, epsilon, goal, runs)
                    rows.append({"data": name, "epsilon": epsilon, "goal": goal, "runs": runs, **found})
                    if given.json:
                        made = {"delta": DELTA, "rows": rows}
                        given.json.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
                    print(
                        f"| {name} | {epsilon:g} | {goal} | {found['items']:,.0f} | {found['distance']:.3f} | "
                        f"{found['intervals']:.1%} | {found['top ten']:+.1%} | {found['CPU']:.2f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
