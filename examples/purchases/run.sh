#!/bin/sh
# Two releases from a shop's SQLite database.
#
#   examples/purchases/run.sh [FOLDER [CUSTOMERS]]
#
# Needs `dphist` and its `python` on PATH. Everything is written to FOLDER (demo-output/purchases).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=${1:-demo-output/purchases}
customers=${2:-20000}
mkdir -p "$folder"

echo "== A shop: customers, products and orders in SQLite, and the public product list"
python "$here/make_shop.py" --customers "$customers" --output "$folder/shop.sqlite"

# The catalogue is public, so every product on it gets a count, even if no customer bought it, and there is no threshold.
# A customer counts once per product, and for at most 10 products.
echo
echo "== (a) How many customers bought each product?  sold.csv, with 95 % intervals"
dphist release "$folder/shop.sqlite" --table orders --user customer_id --item product \
    --items "$folder/products.csv" --epsilon 0.5 --delta 1e-6 --max-items-per-user 10 \
    --count-name customers --round --interval 0.95 --output "$folder/sold.csv" --force

# Which pairs of country and product group occur is not public, so a threshold decides what is released. A query joins
# three tables to one row per order, and dphist counts customers.
echo
echo "== (b) How many customers per country and product group?  table country_group of results.duckdb"
dphist release "$folder/shop.sqlite" --user customer_id --item country --item product_group \
    --query "SELECT orders.customer_id, customers.country, products.product_group
             FROM orders
             JOIN customers ON customers.id = orders.customer_id
             JOIN products ON products.product = orders.product" \
    --epsilon 0.5 --delta 1e-6 --max-items-per-user 5 \
    --count-name customers --round --interval 0.95 \
    --output "$folder/results.duckdb" --output-table country_group --force

echo
echo "== Verify both releases"
dphist verify "$folder/sold.csv"
python "$here/export.py" "$folder/results.duckdb" country_group "$folder/country_group.parquet"
dphist verify "$folder/country_group.parquet" --certificate "$folder/results.duckdb.country_group.certificate.json"

# Both releases are about the same customers, so the budgets add up.
echo
echo "== Done. Both releases together: epsilon 1, delta 2e-6. Files in $folder:"
ls -1 "$folder"
