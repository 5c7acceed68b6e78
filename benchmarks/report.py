"""Size of the report of a release of 100,000 items, and the time to make it and to open it in a browser.

python benchmarks/report.py
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import dphist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from browser import opened_browser, opened_page

ITEMS = 100_000
ROUNDS = 5


def main() -> None:
    names = [f"a query of {n} words, rather long" for n in range(ITEMS)]
    counts = np.random.default_rng(2).integers(500, 10**6, ITEMS)
    plan = dphist.plan(epsilon=1, delta=1e-6, max_items_per_user=9)
    release = dphist.release_histogram(pa.table({"item": names, "count": counts}), plan=plan)
    with tempfile.TemporaryDirectory() as folder, opened_browser() as browser:
        page, written = Path(folder, "report.html"), Path(folder, "release.parquet")
        release.write(written)
        start = time.perf_counter()
        page.write_text(dphist.make_report(written), encoding="utf-8")
        made = time.perf_counter() - start
        opened = []
        for _ in range(ROUNDS):
            with opened_page(browser, "about:blank") as (tab, _seen):
                start = time.perf_counter()
                tab.goto(page.as_uri())
                tab.get_by_text(f"{ITEMS:,} rows").first.wait_for()
                opened.append(time.perf_counter() - start)
        size = page.stat().st_size / 1e6
    print(f"{ITEMS:,} items: {size:.1f} MB, verified and made in {made:.2f} s")
    print(f"opened in {statistics.median(opened):.2f} s (median of {ROUNDS}), {max(opened):.2f} s at worst")


if __name__ == "__main__":
    main()
