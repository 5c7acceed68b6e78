"""Peak memory of `dphist release --memory SIZE` on long values, by format and by the column that holds them.

Run `python benchmarks/memory.py [--lengths 100,10e3,1e6] [--memory 500MB,1GB] [--megabytes 600] [--folder DIR]`.

Each file holds `--megabytes` of random text in one column: the item, the user, or an unused column. All values
differ, which is the worst case for hash tables. Every measurement is a separate process, and its peak is the
largest resident size. Files are generated once and kept in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import secrets
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

# Heavy imports come late: a child's peak starts with the memory of its parent.

FORMATS = ("csv", "jsonl", "parquet", "arrow", "sqlite", "duckdb")
COLUMNS = ("user", "item", "other")
BATCH = 32_000_000
REQUEST = ("--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--max-items-per-user", "3")


def batches(rows: int, length: int, column: str) -> Iterator[list[tuple[str, str, str]]]:
    """Rows of user, item and another column; `column` holds random text of this length."""
    step = max(1, min(rows, BATCH // length))
    place = COLUMNS.index(column)
    for first in range(0, rows, step):
        some = min(step, rows - first)
        text = secrets.token_hex(some * length // 2 + 1)
        made = []
        for k in range(some):
            row = [f"u{(first + k) % 1000}", f"i{(first + k) % 100}", "x"]
            row[place] = text[k * length : (k + 1) * length]
            made.append((row[0], row[1], row[2]))
        yield made


def make_file(path: Path, rows: int, length: int, column: str) -> None:
    part = path.with_name("part-" + path.name)
    part.unlink(missing_ok=True)
    writers = {".csv": text_file, ".jsonl": text_file, ".sqlite": sqlite_file, ".duckdb": duckdb_file}
    writers.get(path.suffix, arrow_file)(part, batches(rows, length, column))
    part.rename(path)


def text_file(path: Path, parts: Iterator[list[tuple[str, str, str]]]) -> None:
    with path.open("w") as file:
        if path.suffix == ".csv":
            file.write(",".join(COLUMNS) + "\n")
        for part in parts:
            for row in part:
                line = ",".join(row) if path.suffix == ".csv" else json.dumps(dict(zip(COLUMNS, row, strict=True)))
                file.write(line + "\n")


def sqlite_file(path: Path, parts: Iterator[list[tuple[str, str, str]]]) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE events ({', '.join(f'{name} TEXT' for name in COLUMNS)})")
    for part in parts:
        connection.executemany("INSERT INTO events VALUES (?, ?, ?)", part)
        connection.commit()
    connection.close()


def arrow_table(part: list[tuple[str, str, str]]) -> Any:
    import pyarrow as pa

    return pa.table({name: [row[k] for row in part] for k, name in enumerate(COLUMNS)})


def arrow_file(path: Path, parts: Iterator[list[tuple[str, str, str]]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    if path.suffix == ".parquet":
        # One row group, as written by a writer that limits row groups by rows.
        table = pa.concat_tables(arrow_table(part) for part in parts)
        pq.write_table(table, path, row_group_size=1 << 20)
        return
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for part in parts:
            writer.write_table(arrow_table(part))


def duckdb_file(path: Path, parts: Iterator[list[tuple[str, str, str]]]) -> None:
    import duckdb
    import pyarrow as pa

    rows = pa.concat_tables(arrow_table(part) for part in parts)
    with duckdb.connect(str(path)) as connection:
        connection.register("made", rows)
        connection.execute("CREATE TABLE events AS SELECT * FROM made")


def release(path: Path, memory: str, more: tuple[str, ...], limit: int | None = None) -> tuple[str, float, float]:
    """Outcome, peak in MB and seconds of one release; `limit` bounds its address space in bytes."""
    bound = None if limit is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, tempfile.TemporaryFile() as said:
        output = ["--output", str(Path(folder) / "out.parquet"), *(("--memory", memory) if memory else ())]
        command = [sys.executable, "-m", "dphist", "release", str(path), *REQUEST, *output, *more]
        start = perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said, preexec_fn=bound)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        lines = said.read().decode().strip().splitlines() or [""]
    outcome = "released" if process.returncode == 0 else f"exit {process.returncode}: {lines[-1]}"
    return outcome, usage.ru_maxrss * 1024 / 1e6, seconds


def numbers(text: str) -> list[int]:
    return [int(float(word)) for word in text.split(",")]


def words(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--lengths", type=numbers, default=[100, 10_000, 1_000_000])
    parser.add_argument("--memory", type=words, default=["500MB", "1GB"])
    parser.add_argument("--formats", type=words, default=list(FORMATS))
    parser.add_argument("--columns", type=words, default=["item", "user", "other"])
    parser.add_argument("--megabytes", type=int, default=600)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_memory")
    parser.add_argument("--address-space", type=numbers, help="limits of the address space in MB, one run each")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("more", nargs="*", help="after --: further options of the release")
    given = parser.parse_args()
    if given.make is not None:
        column, length = given.make.stem.split("_")
        make_file(given.make, given.megabytes * 1_000_000 // int(length), int(length), column)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"{'column':<7}{'length':>9} {'format':<8} {'--memory':>8}{'limit':>7}{'peak MB':>8}{'s':>6}  outcome")
    for column, length, kind in ((c, n, k) for c in given.columns for n in given.lengths for k in given.formats):
        folder = given.folder / str(given.megabytes)
        folder.mkdir(exist_ok=True)
        path = folder / f"{column}_{length}.{kind}"
        if not path.exists():
            size = ["--megabytes", str(given.megabytes)]
            subprocess.run([sys.executable, __file__, "--make", str(path), *size], check=True)
        for memory, limit in ((m, a) for m in given.memory for a in given.address_space or [None]):
            outcome, peak, seconds = release(path, memory, tuple(given.more), limit and limit * 1_000_000)
            place = f"{column:<7}{length:>9,} {kind:<8} {memory or 'none':>8}{limit or '':>7}"
            print(f"{place}{peak:>8.0f}{seconds:>6.1f}  {outcome}", flush=True)


if __name__ == "__main__":
    main()
