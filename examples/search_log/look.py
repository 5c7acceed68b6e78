"""Compare a release with its log: `python look.py log.parquet queries.parquet`.

It prints true counts, so use it on synthetic logs only: on real data it would be a leak.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

# Queries with a name and an address, which make_log.py plants, a different one for each user.
PERSONAL = r"^[a-z]+ [a-z] [a-z]+ \d+ [a-z]+ [a-z]+$"
ROWS = 5


def look(log: Path, release: Path) -> str:
    with duckdb.connect() as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.execute(
            "CREATE TABLE truth AS SELECT query, count(DISTINCT user_id) AS users FROM read_parquet(?) GROUP BY 1",
            [str(log)],
        )
        connection.execute("CREATE TABLE released AS SELECT * FROM read_parquet(?)", [str(release)])
        every, alone = connection.execute("SELECT count(*), count(*) FILTER (users = 1) FROM truth").fetchall()[0]
        secret = connection.execute(
            "SELECT count(*) FROM truth WHERE regexp_matches(query, ?)", [PERSONAL]
        ).fetchall()
        seen, rare, address = connection.execute(
            "SELECT count(*), count(*) FILTER (users = 1), count(*) FILTER (regexp_matches(query, ?)) "
            "FROM released LEFT JOIN truth USING (query)",
            [PERSONAL],
        ).fetchall()[0]
        columns = [name for name, *_ in connection.execute("DESCRIBE released").fetchall()]
        shown = [name for name in ("count", "margin") if name in columns]
        held = 0.0
        if "margin" in shown:
            within = "SELECT avg((abs(count - users) <= margin)::INT) FROM released JOIN truth USING (query)"
            held = connection.execute(within).fetchall()[0][0] or 0.0
        rows = connection.execute(
            f"SELECT query, users, {', '.join(shown)} FROM released JOIN truth USING (query) "
            "ORDER BY count DESC LIMIT ?",
            [ROWS],
        ).fetchall()
    lines = [
        f"{'queries':<30}  {'in the log':>12}  {'released':>12}",
        f"{'all':<30}  {every:>12,}  {seen:>12,}",
        f"{'searched by one user only':<30}  {alone:>12,}  {rare:>12,}",
        f"{'with a name and an address':<30}  {secret[0][0]:>12,}  {address:>12,}",
        "",
        f"{'users per query':<30}  {'in the log':>12}" + "".join(f"  {name:>12}" for name in shown),
    ]
    lines += [
        f"{query[:30]:<30}  {users:>12,}" + "".join(f"  {number:>12,.0f}" for number in numbers)
        for query, users, *numbers in rows
    ]
    if "margin" in shown:
        lines += ["", f"The margins hold the number of users of {held:.0%} of the released queries."]
    return "\n".join(lines) + "\n"


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: look.py LOG.parquet RELEASE.parquet")
    sys.stdout.write(look(Path(sys.argv[1]), Path(sys.argv[2])))


if __name__ == "__main__":
    main()
