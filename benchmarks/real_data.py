"""Releases of real, public data: number of items and mean error.

Run `python benchmarks/real_data.py FOLDER` with a folder of (user, item) Parquet files. The data is public, so the
release may be compared with the true counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

import dphist

REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("reddit_title_words", {"max_items_per_user": 53}),
    ("reddit_title_words", {"max_items_per_user": 20}),
    ("reddit_title_words", {"top": 1000}),
    ("online_retail_2009_2010", {"max_items_per_user": 20}),
    ("online_retail_2009_2010", {"max_items_per_user": 100}),
    ("online_retail_2009_2010", {"top": 20}),
    ("online_retail_2009_2010", {"top": 100}),
    ("movietweetings_100k", {"max_items_per_user": 5}),
    ("movietweetings_100k", {"max_items_per_user": 20}),
    ("movietweetings_100k", {"top": 100}),
]


def true_counts(path: Path) -> dict[Any, int]:
    query = f"SELECT item, count(DISTINCT \"user\") FROM read_parquet('{path}') GROUP BY item"
    return dict(duckdb.connect().execute(query).fetchall())


def row(path: Path, options: dict[str, Any], folder: Path) -> str:
    truth = true_counts(path)
    output = folder / "release.parquet"
    start = time.perf_counter()
    found = dphist.release(
        path, user="user", item="item", epsilon=1.0, delta=1e-6, output=output, force=True, **options
    )
    seconds = time.perf_counter() - start
    assert dphist.verify(output).verified
    counts = dict(zip(found.items.to_pylist(), found.counts.tolist(), strict=True))
    errors = [abs(count - truth[item]) for item, count in counts.items()]
    asked = " ".join(f"{name.replace('_', '-')} {value}" for name, value in options.items())
    return (
        f"{path.stem.rpartition('_')[0]:<20} {asked:<24} {found.plan.mechanism:<6} {found.plan.total_noise:>7.1f} "
        f"{found.plan.threshold:>9.1f} {len(found):>6,} {np.mean(errors):>10.1f} {seconds:>7.1f}"
    )


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"{'data':<20} {'epsilon 1, delta 1e-6':<24} {'kind':<6} {'noise':>7} {'threshold':>9} {'items':>6} "
          f"{'mean error':>10} {'seconds':>7}")  # fmt: skip
    with tempfile.TemporaryDirectory() as temporary:
        for name, options in REQUESTS:
            print(row(folder / f"{name}.parquet", options, Path(temporary)), flush=True)


if __name__ == "__main__":
    main()
