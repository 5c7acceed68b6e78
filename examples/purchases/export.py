"""Export a table of a DuckDB database to Parquet: export.py DATABASE TABLE FILE."""

import sys

import duckdb


def main() -> None:
    database, table, file = sys.argv[1:]
    with duckdb.connect(database, read_only=True) as connection:
        connection.table(table).write_parquet(file)


if __name__ == "__main__":
    main()
