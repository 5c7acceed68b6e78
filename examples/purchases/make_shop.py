"""A synthetic shop as an SQLite database: tables customers, products and orders.

Run `python make_shop.py --customers 20000 --output shop.sqlite`. The public product list is written next to it as
products.csv and, with `--orders`, all orders as orders.csv and orders.parquet. The same seed gives the same shop.
"""

from __future__ import annotations

import argparse
import csv
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from numpy.random import Generator
from numpy.typing import NDArray

DAYS = 180
FIRST_DAY = "2026-01-01"
COUNTRIES = ("DK", "DE", "SE", "NO", "NL", "GB", "FR", "PL", "IS", "LU")
GROUPS = {
    "bread": ("rye bread", "sourdough", "baguette", "oat loaf", "spelt rolls", "flat bread"),
    "cheese": ("brie", "gouda", "feta", "blue cheese", "goat cheese", "mozzarella", "smoked cheese"),
    "coffee": ("espresso beans", "filter coffee", "decaf", "cold brew", "coffee pods"),
    "fruit": ("apples", "pears", "bananas", "oranges", "grapes", "berries", "quinces", "figs"),
    "garden": ("tulip bulbs", "compost", "watering can", "gloves", "rose bush", "bird food"),
    "medicine": ("plasters", "pain relief", "nicotine patches", "pregnancy test", "hay fever spray", "eye drops"),
    "pets": ("cat food", "dog food", "cat litter", "hamster wheel", "fish flakes"),
    "tea": ("black tea", "green tea", "herbal tea", "chai", "white tea", "saffron tea"),
}
# On the list, but not sold yet.
NEW = ("garden", "heated bird bath")

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT NOT NULL);
CREATE TABLE products (product TEXT PRIMARY KEY, product_group TEXT NOT NULL);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    product TEXT NOT NULL REFERENCES products (product),
    quantity INTEGER NOT NULL,
    day TEXT NOT NULL
);
"""


def weighted(rng: Generator, choices: int, size: int, power: float) -> NDArray[np.int64]:
    """Random numbers from 0, the lowest being the most frequent."""
    weights = (np.arange(choices) + 1.0) ** -power
    return rng.choice(choices, size, p=weights / weights.sum())


def make_shop(path: Path, customers: int, seed: int) -> int:
    """Write the database and return the number of orders."""
    rng = np.random.default_rng(seed)
    sold = [(product, group) for group, products in GROUPS.items() for product in products]
    popular = [sold[i] for i in rng.permutation(len(sold))]
    many = np.minimum(rng.pareto(1.5, customers) * 4 + 1, 300).astype(np.int64)
    customer = np.repeat(np.arange(1, customers + 1), many)
    product = weighted(rng, len(popular), customer.size, 0.9)
    # Every third customer buys the same product again and again.
    usual = weighted(rng, len(popular), customers + 1, 0.5)
    product = np.where((customer % 3 == 0) & (rng.random(customer.size) < 0.6), usual[customer], product)
    quantity = rng.geometric(0.6, customer.size)
    day = np.datetime64(FIRST_DAY, "D") + rng.integers(DAYS, size=customer.size)
    country = weighted(rng, len(COUNTRIES), customers, 1.2)

    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as shop, shop:
        shop.executescript(SCHEMA)
        shop.executemany("INSERT INTO products VALUES (?, ?)", [*sold, NEW[::-1]])
        shop.executemany(
            "INSERT INTO customers VALUES (?, ?, ?)",
            ((k + 1, f"customer {k + 1}", COUNTRIES[place]) for k, place in enumerate(country.tolist())),
        )
        rows = zip(customer.tolist(), product.tolist(), quantity.tolist(), day.astype(str).tolist(), strict=True)
        shop.executemany(
            "INSERT INTO orders (customer_id, product, quantity, day) VALUES (?, ?, ?, ?)",
            ((who, popular[what][0], pieces, when) for who, what, pieces, when in rows),
        )
    return int(customer.size)


def write_products(path: Path) -> None:
    """Write the public list, from the catalogue and not from the orders."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["product"])
        for group, products in sorted(GROUPS.items()):
            writer.writerows([product] for product in (*products, *(NEW[1:] if NEW[0] == group else ())))


def write_orders(shop: Path) -> None:
    """Write the orders as one table next to the database."""
    names = ("customer", "country", "product", "units", "amount", "day")
    with closing(sqlite3.connect(shop)) as database:
        rows = database.execute(
            "SELECT customers.id, country, orders.product, quantity, "
            "quantity * (1 + length(orders.product)) / 2.0, day "
            "FROM orders JOIN customers ON customers.id = customer_id ORDER BY orders.id"
        ).fetchall()
    orders = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    pa.csv.write_csv(orders, shop.with_name("orders.csv"), pa.csv.WriteOptions(quoting_style="needed"))
    pa.parquet.write_table(orders, shop.with_name("orders.parquet"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate a synthetic shop as an SQLite database.")
    parser.add_argument("--customers", type=int, default=20_000, metavar="N", help="Number of customers.")
    parser.add_argument("--output", type=Path, default=Path("shop.sqlite"), metavar="FILE")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="The same seed gives the same shop.")
    parser.add_argument("--orders", action="store_true", help="Also write orders.csv and orders.parquet.")
    given = parser.parse_args()
    if given.customers < 1:
        parser.error("--customers must be at least 1")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    orders = make_shop(given.output, given.customers, given.seed)
    products = given.output.with_name("products.csv")
    write_products(products)
    if given.orders:
        write_orders(given.output)
    sys.stdout.write(
        f"{given.output}: {orders:,} orders of {given.customers:,} customers\n{products}: the product list\n"
    )


if __name__ == "__main__":
    main()
