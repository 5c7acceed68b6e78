"""A year of weekly releases of a synthetic log in which tastes drift, with and without `--known previous`.

Run `python benchmarks/weekly.py`: the table of docs/weekly.md, in about two minutes. All data are synthetic.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dphist
from dphist.ledger import Ledger
from dphist.releasing.periods import period_at

FIRST = date(2025, 12, 29)
ITEMS = 2000
ACTIVE, VIEWS = 0.6, 5.0
PULL, DRIFT, SEASON = 0.97, 0.18, 0.8


def write_logs(folder: Path, weeks: int, users: int) -> dict[tuple[str, str], int]:
    """The log of each week; returns the true numbers of users by period and item."""
    rng = np.random.default_rng(7)
    fame = rng.normal(0.0, 1.0, ITEMS) - 1.1 * np.log(np.arange(1, ITEMS + 1))
    drift, true = np.zeros(ITEMS), Counter[tuple[str, str]]()
    for week in range(weeks):
        drift = PULL * drift + rng.normal(0.0, DRIFT, ITEMS)
        weight = np.exp(fame + drift + SEASON * np.sin(2.0 * np.pi * week / 52 + np.arange(ITEMS) % 7))
        active = np.flatnonzero(rng.random(users) < ACTIVE)
        who = np.repeat(active, rng.geometric(1.0 / VIEWS, active.size))
        what = rng.choice(ITEMS, who.size, p=weight / weight.sum())
        period = period_at(FIRST + timedelta(7 * week), "week").name
        for item in np.unique(np.stack([who, what]), axis=1)[1].tolist():
            true[period, f"query {item}"] += 1
        columns = {"user_id": [f"user {n}" for n in who], "query": [f"query {n}" for n in what]}
        pq.write_table(pa.table(columns), folder / f"{period}.parquet")
    return dict(true)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weeks", type=int, default=52)
    parser.add_argument("--users", type=int, default=20_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        true = write_logs(folder / "logs", asked.weeks, asked.users)
        for known in (None, "previous"):
            place = folder / f"known {known}"
            place.mkdir()
            Ledger.init(folder / "weekly.ledger", place.name, epsilon=3, delta=1e-6)
            each = dphist.plan_series(folder / "weekly.ledger", place.name, weeks=asked.weeks).budget
            for log in sorted((folder / "logs").iterdir()):
                dphist.release(
                    log, user="user_id", item="query", epsilon=each.epsilon, delta=each.delta, known=known,
                    ledger=folder / "weekly.ledger", dataset=place.name, output=place / log.name,
                )  # fmt: skip
            sys.stdout.write(f"{place.name}\n{describe(dphist.series(place), true)}\n\n")


def describe(series: dphist.Series, true: dict[tuple[str, str], int]) -> str:
    rows = series.table.to_pylist()
    users = np.array([true.get((row["period"], row["query"]), 0) for row in rows], dtype=float)
    errors = np.abs(np.array([row["count"] for row in rows]) - users)
    margins = np.array([row["margin"] for row in rows])
    warned = sum(part.doubt is not None for part in series.parts)
    sizes = [part.rows for part in series.parts]
    return (
        f"{series.headline}\nitems in a release: {np.mean(sizes):.0f}; first {sizes[0]}, last {sizes[-1]}\n"
        f"usual margin: {series.parts[0].margin:.0f} in the first, {series.parts[-1].margin:.0f} in the last\n"
        f"error: {errors.sum() / users.sum():.1%}; in margins: {np.mean(errors <= margins):.1%}; "
        f"releases that warn: {warned}\n{series.cost_words()}"
    )


if __name__ == "__main__":
    main()
