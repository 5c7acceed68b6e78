"""Sums on real, public data: errors over many releases, compared with the plan.

Run `python benchmarks/sums.py FOLDER` with a folder that holds online_retail_2009_2010.parquet: units and amount
per product. The true sums are over each customer's own sum for a product, clamped. With a public list of products
and no cap, noise is the only error. The data is public, so comparing with the truth is safe.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

import dphist
from dphist.certificate.numbers import sum_error

BOUNDS = {"units": (0, 100), "amount": (0, 200)}
BUDGET: dict[str, Any] = {"user": "user", "item": "item", "epsilon": 1.0, "delta": 1e-6}


def truth(path: Path, products: int) -> Any:
    """The products with the most customers, with their numbers of customers and sums."""
    query = f"""
        SELECT item, count(*) AS customers, sum(least(greatest(units, 0), 100)) AS units,
               sum(least(greatest(amount, 0), 200)) AS amount
        FROM (SELECT "user", item, sum(value) AS units, sum(amount) AS amount
              FROM read_parquet('{path}') GROUP BY ALL)
        GROUP BY item ORDER BY customers DESC, item LIMIT {products}"""
    return duckdb.connect().sql(query).to_arrow_table()


def errors(path: Path, listed: Any, runs: int) -> tuple[dict[str, NDArray[np.float64]], Any]:
    asked = {
        "sum": ["units=value:0:100", "total=amount:0:200"],
        "mean": "mean=amount:0:200",
        "items": listed.select(["item"]),
    }
    true = {name: np.asarray(listed.column(name), dtype=np.float64) for name in ("customers", "units", "amount")}
    wanted = {
        "count": true["customers"],
        "units": true["units"],
        "total": true["amount"],
        "mean": true["amount"] / true["customers"],
    }
    places = {item: place for place, item in enumerate(listed.column("item").to_pylist())}
    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in wanted}
    for _ in range(runs):
        release = dphist.release(path, **BUDGET, **asked)
        table = release.to_arrow()
        order = np.array([places[item] for item in table.column("item").to_pylist()])
        for name, right in wanted.items():
            found[name].append(np.asarray(table.column(name)) - right[order])
    return {name: np.array(rows) for name, rows in found.items()}, release.plan


def show_errors(path: Path, runs: int) -> None:
    listed = truth(path, 100)
    found, plan = errors(path, listed, runs)
    planned = {
        "count": plan.total_noise,
        "units": sum_error(plan, plan.sums[0]),
        "total": sum_error(plan, plan.sums[1]),
    }
    print(f"The 100 products with the most customers as a public list, {runs} releases:")
    for name, deviation in planned.items():
        seen = float(np.sqrt((found[name] ** 2).mean()))
        print(f"  {name:<6} planned {deviation:>9.1f}   seen {seen:>9.1f}   ratio {seen / deviation:.3f}")
    both = float((found["count"] * found["units"]).mean())
    print(f"  covariance of count and units: planned {50 * plan.total_noise**2:.0f}, seen {both:.0f}")
    print(f"  mean amount a customer: error {float(np.abs(found['mean']).mean()):.2f} on average")


def show_ways() -> None:
    print("\nAt most 50 items a customer, products not known beforehand:")
    ways = dphist.compare_sums(
        epsilon=1.0, delta=1e-6, max_items_per_user=50, sums=[(low, high) for low, high in BOUNDS.values()]
    )
    best = ways.rows[0]
    for row in ways.rows:
        ratio = row.standard_errors[0] / best.standard_errors[0]
        listed = "  ".join(f"{name} {error:,.0f}" for name, error in zip(BOUNDS, row.standard_errors, strict=True))
        print(f"  {row.way:<10} threshold {row.threshold:>6.1f}  standard errors {listed}  ({ratio:.2f} times)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    given = parser.parse_args()
    show_errors(given.folder / "online_retail_2009_2010.parquet", given.runs)
    show_ways()


if __name__ == "__main__":
    main()
