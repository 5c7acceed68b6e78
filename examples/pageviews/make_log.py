"""A synthetic log of page views as Parquet: columns day, user_id, country and page.

Run `python make_log.py --days 28 --users 60000 --output log.parquet`; the same seed gives the same log. Readers
come back on other days, most pages have few readers, and tastes drift: some pages rise, others fall.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import Generator

FIRST_DAY = date(2026, 3, 1)
# Readers in percent, roughly.
COUNTRIES = {
    "US": 30, "IN": 14, "GB": 10, "DE": 9, "JP": 8, "FR": 7, "BR": 6, "CA": 5, "NL": 3, "DK": 2, "IS": 0.2,
}  # fmt: skip
# Pages that everybody knows; the others are called after their number.
POPULAR = (
    "Main_Page", "Search", "Current_events", "Deaths_in_2026", "Artificial_intelligence", "World_Cup", "Weather",
    "Cleopatra",
)  # fmt: skip
PAGES = 3000
ACTIVE = 0.55  # the share of readers who come on a day
VIEWS = 4.0  # their mean number of pages
DRIFT = 0.12


def page_names() -> list[str]:
    return [*POPULAR, *(f"Page_{number}" for number in range(len(POPULAR) + 1, PAGES + 1))]


def days_of(rng: Generator, days: int, users: int) -> Iterator[pa.Table]:
    """The views of each day."""
    names = np.array(page_names())
    codes = list(COUNTRIES)
    shares = np.array([*COUNTRIES.values()], dtype=float)
    home = rng.choice(len(codes), users, p=shares / shares.sum())
    fame = -1.05 * np.log(np.arange(1, PAGES + 1))
    local = rng.normal(0.0, 0.5, (len(codes), PAGES))  # what a country reads more than others
    drift = np.zeros(PAGES)
    for number in range(days):
        drift = 0.98 * drift + rng.normal(0.0, DRIFT, PAGES)
        active = np.flatnonzero(rng.random(users) < ACTIVE)
        reader = np.repeat(active, rng.geometric(1.0 / VIEWS, active.size))
        page = np.empty(reader.size, dtype=np.int64)
        for code in range(len(codes)):
            here = home[reader] == code
            weight = np.exp(fame + local[code] + drift)
            page[here] = rng.choice(PAGES, int(here.sum()), p=weight / weight.sum())
        day = FIRST_DAY + timedelta(number)
        yield pa.table(
            {
                "day": pa.array([day] * reader.size, pa.date32()),
                "user_id": pa.array([f"reader-{user}" for user in reader]),
                "country": pa.array(np.array(codes)[home[reader]]),
                "page": pa.array(names[page]),
            }
        )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=int, default=28)
    parser.add_argument("--users", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args(words)
    tables = list(days_of(np.random.default_rng(asked.seed), asked.days, asked.users))
    pq.write_table(pa.concat_tables(tables), asked.output)
    views = sum(table.num_rows for table in tables)
    sys.stdout.write(f"{views:,} views by {asked.users:,} readers on {asked.days} days in {asked.output}\n")


if __name__ == "__main__":
    main()
