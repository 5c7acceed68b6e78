"""Compare releases with the true counts: `python benchmarks/peer_quality.py EVENTS [RELEASE ...]` prints JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import msgspec
from peer_results import Quality, Scores

COMMON = 200


def score(events: Path, outputs: list[Path]) -> Scores:
    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE truth AS SELECT CAST(item AS VARCHAR) AS item, count(DISTINCT user) AS users "
        f"FROM '{events}' GROUP BY ALL"
    )
    ((rows, users),) = connection.execute(f"SELECT count(*), count(DISTINCT user) FROM '{events}'").fetchall()
    ((pairs, items, common),) = connection.execute(
        f"SELECT sum(users), count(*), count(*) FILTER (users >= {COMMON}) FROM truth"
    ).fetchall()
    return Scores(rows, int(pairs), users, items, common, [quality(connection, output) for output in outputs])


def quality(connection: duckdb.DuckDBPyConnection, output: Path) -> Quality:
    files = f"'{output}/*.parquet'" if output.is_dir() else f"'{output}'"
    columns = {row[0] for row in connection.execute(f"DESCRIBE SELECT * FROM {files}").fetchall()}
    held = "NULL"
    if "count_low" in columns:
        held = "avg(CASE WHEN users BETWEEN count_low AND count_high THEN 1 ELSE 0 END)"
    elif "margin" in columns:
        held = "avg(CASE WHEN abs(count - users) <= margin THEN 1 ELSE 0 END)"
    (row,) = connection.execute(
        f"""
        WITH released AS (SELECT * REPLACE (CAST(item AS VARCHAR) AS item) FROM {files}),
        compared AS (
          SELECT released.*, coalesce(truth.users, 0) AS users FROM released LEFT JOIN truth USING (item)
        )
        SELECT count(*), avg(abs(count - users)),
          1 + sum(abs(count - users) - users) / (SELECT sum(users) FROM truth),
          count(*) FILTER (users >= {COMMON}) / (SELECT count(*) FROM truth WHERE users >= {COMMON}), {held}
        FROM compared
        """
    ).fetchall()
    items, error, distance, recall, share = row
    if not items:
        return Quality(0, 0.0, 1.0, 0.0)
    held_share = None if share is None else round(float(share), 4)
    return Quality(items, round(float(error), 2), round(float(distance), 4), round(float(recall), 4), held_share)


if __name__ == "__main__":
    events, *outputs = map(Path, sys.argv[1:])
    sys.stdout.buffer.write(msgspec.json.encode(score(events, outputs)))
