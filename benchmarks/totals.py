"""What totals cost the other rows, and how exact they are beside a second release and beside sums of rows.

Run `python benchmarks/totals.py [--runs 20] [--epsilon 1]`.

Every number is of `dphist.release` itself with all of its spending, at delta 1e-6, as the mean over the runs. Each
table is of days and of something else: 20,000 users of 40 countries on 60 days, who mostly stay in theirs; 5,000
users of 300 pages on 30 days, who see several on a day; and 20,000 users who are each in one country on one day,
so that the sums of rows are numbers of users. The ways:

- rows: a release of the rows alone. Its totals are sums of the released rows, whose margins are added up.
- total: one release with `--total`.
- halves: a release of the rows and one of the days, each with half of epsilon and delta.
- ledger: the same two in a ledger of epsilon and delta, each with 70 % of epsilon and half of delta. At epsilon 1
  the ledger has no room for two with 71 %.

The numbers: how many rows were released; their distance, sum |count - truth| / sum truth over all rows, where rows
that are not released count as 0; the share of released rows whose margin holds the truth. The same of the totals,
with their mean margin relative to the truth.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dphist
from dphist.display import text_grid
from dphist.ledger import Ledger

DELTA = 1e-6
WAYS = ("rows", "total", "halves", "ledger")
OF_LEDGER = 0.7
Counts = dict[tuple[int, ...], tuple[float, float]]


def tables(folder: Path) -> Iterator[tuple[str, Path]]:
    rng = np.random.default_rng(8)
    active = rng.random((20_000, 60)) < np.clip(rng.beta(0.5, 1.5, 20_000), 0.02, 1.0)[:, None]
    user, day = np.nonzero(active)
    popular = 1.0 / np.arange(1.0, 41.0) ** 1.2
    home = rng.choice(40, 20_000, p=popular / popular.sum())
    away = rng.random(user.size) < 0.05
    other = rng.choice(40, user.size, p=popular / popular.sum())
    # Who is away is often in two countries on that day.
    both = away & (rng.random(user.size) < 0.5)
    country = np.where(away, other, home[user])
    users, days, countries = (
        np.append(user, user[both]),
        np.append(day, day[both]),
        np.append(country, home[user][both]),
    )
    yield "countries", _write(folder / "countries.parquet", users, days, countries)
    once = np.arange(20_000), rng.integers(60, size=20_000), rng.choice(40, 20_000, p=popular / popular.sum())
    active = rng.random((5_000, 30)) < np.clip(rng.beta(0.6, 1.4, 5_000), 0.03, 1.0)[:, None]
    user, day = np.nonzero(active)
    pages = rng.geometric(0.25, user.size)
    popular = 1.0 / np.arange(1.0, 301.0)
    page = rng.choice(300, pages.sum(), p=popular / popular.sum())
    yield "pages", _write(folder / "pages.parquet", np.repeat(user, pages), np.repeat(day, pages), page)
    yield "once", _write(folder / "once.parquet", *once)


def _write(path: Path, user: Any, day: Any, item: Any) -> Path:
    pq.write_table(pa.table({"user": user, "day": day, "item": item}), path)
    return path


def truth_of(path: Path, columns: str) -> dict[tuple[int, ...], int]:
    query = f"SELECT {columns}, count(DISTINCT user) FROM '{path}' GROUP BY {columns}"
    return {tuple(row[:-1]): row[-1] for row in duckdb.execute(query).fetchall()}


class Result(NamedTuple):
    found: float
    distance: float
    held: float
    margin: float


def compared(counts: Counts, truth: dict[tuple[int, ...], int]) -> Result:
    off = sum(abs(counts.get(key, (0.0, 0.0))[0] - users) for key, users in truth.items())
    held = [abs(count - truth[key]) <= margin for key, (count, margin) in counts.items()]
    widths = [margin / truth[key] for key, (_, margin) in counts.items()]
    return Result(len(counts), off / sum(truth.values()), float(np.mean(held)), float(np.mean(widths)))


def release(path: Path, columns: list[str], epsilon: float, delta: float, **options: Any) -> list[tuple[Any, ...]]:
    """Items, counts and margins."""
    released = dphist.release(str(path), user="user", item=columns, epsilon=epsilon, delta=delta, **options)
    items = zip(*(column.to_pylist() for column in released.columns), strict=True)
    return list(zip(items, released.counts.tolist(), released.added["margin"].tolist(), strict=True))


def run(way: str, path: Path, epsilon: float) -> tuple[Counts, Counts]:
    """The counts and margins of rows and of totals."""
    if way in ("halves", "ledger"):
        part, options = 0.5, {}
        with tempfile.TemporaryDirectory() as folder:
            if way == "ledger":
                part, options = OF_LEDGER, {"ledger": Path(folder) / "ledger", "dataset": "log"}
                Ledger.init(Path(folder) / "ledger", "log", epsilon=epsilon, delta=DELTA)
            rows, days = (
                release(path, columns, part * epsilon, DELTA / 2, **options)
                for columns in (["day", "item"], ["day"])
            )
        return {key: (n, m) for key, n, m in rows}, {key: (n, m) for key, n, m in days}
    if way == "total":
        both = release(path, ["day", "item"], epsilon, DELTA, total="item")
        of_days: Counts = {(day,): (n, m) for (day, _, total), n, m in both if total}
        return {(day, item): (n, m) for (day, item, total), n, m in both if not total}, of_days
    counts = {key: (n, m) for key, n, m in release(path, ["day", "item"], epsilon, DELTA)}
    sums: Counts = {}
    for (day, _), (count, margin) in counts.items():
        before = sums.get((day,), (0.0, 0.0))
        sums[(day,)] = (before[0] + count, before[1] + margin)
    return counts, sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--epsilon", type=float, default=1.0)
    asked = parser.parse_args()
    head = ("table", "way", "rows", "distance", "in margins", "totals", "distance", "in margins", "margin")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for name, path in tables(Path(folder)):
            truths = truth_of(path, "day, item"), truth_of(path, "day")
            for way in WAYS:
                runs = [run(way, path, asked.epsilon) for _ in range(asked.runs)]
                rows, totals = (
                    np.mean([compared(counts[part], truths[part]) for counts in runs], axis=0) for part in (0, 1)
                )
                lines.append((
                    name, way, f"{rows[0]:,.0f}", f"{rows[1]:.3f}", f"{rows[2]:.1%}",
                    f"{totals[0]:,.1f}", f"{totals[1]:.3f}", f"{totals[2]:.1%}", f"{totals[3]:.1%}",
                ))  # fmt: skip
    print(text_grid(head, lines, left=2))


if __name__ == "__main__":
    main()
