"""The whole command `dphist release` on 50 million events, compared with the same query without privacy.

Run `python benchmarks/release.py [--events 5e7] [--folder DIR] [--runs 3] [--text]`.

The events are generated once and kept in the folder: 50 events per user, Zipf items over five million keys,
integers (or words, with `--text`). Every measurement is a separate process, from start to exit. The bare query is
DuckDB at its best: the same threads, the result written to Parquet, and each user's items chosen by a random
column. The methods alternate, so that other load affects all of them; a ratio is the median over the rounds. Under
a memory limit the bare query has the same limit: DuckDB is sometimes faster with one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

# Heavy imports come late: a child's peak starts with the memory of its parent.

KEYS = 5_000_000
EXPONENT = 1.1
EVENTS_A_USER = 50
CHUNK = 5_000_000
CAP = 20

BARE = """
import os, sys, duckdb
query, events, output, folder, memory = sys.argv[1:]
connection = duckdb.connect()
connection.execute(f"SET threads = {len(os.sched_getaffinity(0))}")
connection.execute("SET disabled_optimizers = 'top_n_window_elimination'")
connection.execute("SET preserve_insertion_order = false")
if memory:
    connection.execute(f"SET memory_limit = '{memory}'")
connection.execute(f"SET temp_directory = '{folder}'")
connection.execute(f"COPY ({query.format(events=events)}) TO '{output}' (FORMAT parquet)")
"""
UNCAPPED = "SELECT item, count(DISTINCT user) AS users FROM '{events}' GROUP BY item"
CAPPED = f"""
SELECT item, count(*) AS users FROM (
  SELECT item, row_number() OVER (PARTITION BY user ORDER BY chance) AS place FROM (
    SELECT user, item, random() AS chance FROM (SELECT DISTINCT user, item FROM '{{events}}')))
WHERE place <= {CAP} GROUP BY item
"""


@dataclass(frozen=True)
class Job:
    """The bare query under a memory limit, or a release with these options."""

    name: str
    bare: str
    options: tuple[str, ...] | None = None
    memory: str = ""

    def command(self, events: Path, output: Path) -> list[str]:
        if self.options is None:
            query = CAPPED if self.bare == "capped" else UNCAPPED
            return [sys.executable, "-c", BARE, query, str(events), str(output), str(output.parent), self.memory]
        said = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6"]
        return [
            sys.executable, "-m", "dphist", "release", str(events), *said, *self.options,
            "--output", str(output), "--temp-folder", str(output.parent),
        ]  # fmt: skip


@dataclass(frozen=True)
class Used:
    wall: float
    cpu: float
    peak: int


def jobs(memory: str) -> list[Job]:
    cap = ("--max-items-per-user", str(CAP))
    top, public = ("--top", "1000"), ("--max-nonzero", str(KEYS))
    limit = ("--memory", memory)
    return [
        Job("bare query, cap 20", "capped"),
        Job("dphist, cap 20", "capped", cap),
        Job(f"bare query, cap 20, {memory}", "capped", memory=memory),
        Job(f"dphist, cap 20, {memory}", "capped", cap + limit),
        Job("bare query, no cap", "uncapped"),
        Job("dphist, rounds", "uncapped", ()),
        Job("dphist, top 1000", "uncapped", top),
        Job("dphist, max-nonzero", "uncapped", public),
        Job(f"bare query, no cap, {memory}", "uncapped", memory=memory),
        Job(f"dphist, rounds, {memory}", "uncapped", limit),
        Job(f"dphist, top 1000, {memory}", "uncapped", top + limit),
        Job(f"dphist, max-nonzero, {memory}", "uncapped", public + limit),
    ]


def make_events(path: Path, events: int, text: bool) -> None:
    """Write the events in chunks; keys are shuffled, so that small keys are not the frequent ones."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    generator = np.random.default_rng(1)
    weight = np.cumsum(np.arange(1, KEYS + 1, dtype=np.float64) ** -EXPONENT)
    weight /= weight[-1]
    key = generator.permutation(KEYS)
    kinds = pa.schema([("user", pa.int64()), ("item", pa.string() if text else pa.int64())])
    part = path.with_suffix(".part")
    with pq.ParquetWriter(part, kinds) as writer:
        for start in range(0, events, CHUNK):
            n = min(CHUNK, events - start)
            rank = np.minimum(np.searchsorted(weight, generator.random(n)), KEYS - 1)
            number = pa.array(key[rank])
            item = pc.replace_substring_regex(number.cast(pa.string()), "^", "the word ") if text else number
            user = pa.array(generator.integers(0, max(1, events // EVENTS_A_USER), n))
            writer.write_table(pa.table([user, item], schema=kinds))
    part.rename(path)


def measured(command: list[str]) -> Used:
    """Run a command and measure it with the children it waited for."""
    with tempfile.TemporaryFile() as said:
        start = perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        wall = perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            raise SystemExit(f"{' '.join(command[:4])} ... failed: {said.read().decode()[-2000:]}")
    return Used(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def rounds(chosen: list[Job], events: Path, runs: int) -> dict[str, list[Used]]:
    found: dict[str, list[Used]] = {job.name: [] for job in chosen}
    with tempfile.TemporaryDirectory(dir=events.parent) as folder:
        for turn in range(runs):
            for job in chosen:
                output = Path(folder) / f"{turn}.parquet"
                used = measured(job.command(events, output))
                found[job.name].append(used)
                print(f"  round {turn + 1}: {job.name:<30} {used.wall:7.2f} s", file=sys.stderr, flush=True)
                for left in Path(folder).glob(f"{turn}.*"):
                    left.unlink()
    return found


def table(chosen: list[Job], found: dict[str, list[Used]]) -> None:
    print(f"{'method':<30} {'wall s':>8} {'CPU s':>8} {'peak MB':>8} {'wall/bare':>10} {'CPU/bare':>9}")
    bare: list[Used] = []
    for job in chosen:
        runs = found[job.name]
        if job.options is None:
            bare = runs
        wall = median(a.wall / b.wall for a, b in zip(runs, bare, strict=True))
        cpu = median(a.cpu / b.cpu for a, b in zip(runs, bare, strict=True))
        least, work = min(used.wall for used in runs), min(used.cpu for used in runs)
        peak = max(used.peak for used in runs) / 1e6
        print(f"{job.name:<30} {least:>8.2f} {work:>8.2f} {peak:>8.0f} {wall:>10.2f} {cpu:>9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="The command `dphist release` against the bare query.")
    parser.add_argument("--events", type=lambda said: int(float(said)), default=50_000_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--memory", default="2GB", help="the limit of the runs with bounded memory")
    parser.add_argument("--text", action="store_true", help="items are words, not whole numbers")
    parser.add_argument("--only", default="", help="only the jobs that are held against 'capped' or 'uncapped'")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make is not None:
        make_events(given.make, given.events, given.text)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    events = given.folder / f"events_{given.events}{'_text' if given.text else ''}.parquet"
    if not events.exists():
        words = [sys.executable, __file__, "--make", str(events), "--events", str(given.events)]
        subprocess.run(words + ["--text"] * given.text, check=True)
    chosen = [job for job in jobs(given.memory) if given.only in ("", job.bare)]
    found = rounds(chosen, events, given.runs)
    print(f"{given.events:,} events, {'text' if given.text else 'whole numbers'}, {given.runs} rounds")
    table(chosen, found)


if __name__ == "__main__":
    main()
