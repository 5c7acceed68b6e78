"""Users per item with PyQrlew: it rewrites a query for PostgreSQL, which DuckDB runs.

Arguments: input, output, cap, epsilon, delta. PyQrlew reads the schema of the table from SQLite and is given the
number of rows, which it takes to be public.
"""

# mypy: ignore-errors
# The library is not installed where types are checked.

import json
import sys

import duckdb
import sqlalchemy
from pyqrlew import Dataset, Dialect

source, output, cap, epsilon, delta = sys.argv[1], sys.argv[2], int(sys.argv[3]), *map(float, sys.argv[4:])
database = duckdb.connect()
database.execute(f"CREATE TABLE events AS SELECT user AS user_id, item FROM '{source}'")
(rows,) = database.execute("SELECT count(*) FROM events").fetchone()
kind = "TEXT" if "VARCHAR" in str(database.table("events").types[1]) else "BIGINT"
schema = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.pool.StaticPool)
with schema.begin() as connection:
    connection.execute(sqlalchemy.text(f"CREATE TABLE events (user_id BIGINT, item {kind})"))
empty = Dataset.from_database("events", schema)
size = json.loads(empty.size)
size["statistics"]["union"]["fields"][0]["statistics"]["struct"]["size"] = str(rows)
described = {
    "@type": "sarus_data_spec/sarus_data_spec.Dataset",
    "uuid": size["dataset"],
    "name": "events",
    "spec": {"transformed": {"transform": size["dataset"], "arguments": [], "named_arguments": {}}},
}
dataset = Dataset.from_str(json.dumps(described), empty.schema, json.dumps(size))
counts = dataset.relation("SELECT item, COUNT(DISTINCT user_id) AS users FROM events GROUP BY item")
private = counts.rewrite_with_differential_privacy(
    dataset,
    [("events", [], "user_id")],
    {"epsilon": epsilon, "delta": delta},
    max_multiplicity=float(cap),
    max_multiplicity_share=1.0,
    max_privacy_unit_groups=cap,
)
query = private.relation().to_query(Dialect.PostgreSql)
database.execute(f"COPY (SELECT item, users AS count FROM ({query})) TO '{output}' (FORMAT parquet)")
