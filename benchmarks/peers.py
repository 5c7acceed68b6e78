"""The same private histogram, computed by dphist and by other libraries.

Run `python benchmarks/peers.py [--cap 10 --cap 50] [--folder DIR]`, or `python benchmarks/peers.py --words FILE`
on a Parquet file with the columns user and item.

The common job: 5 million distinct (user, item) pairs in Parquet, 200,000 users, Zipf items over a million keys;
epsilon 1, delta 1e-6, at most `cap` items per user. A library runs if the environment names a Python that has it:

    OPENDP_PYTHON        pip install 'opendp[polars]==0.16.0'
    PIPELINEDP_PYTHON    pip install pipeline-dp==0.3.1 pandas pyarrow
    TUMULT_PYTHON        pip install tmlt.analytics==0.21.0 'pyspark>=3.5,<3.6'      (and Java 17)
    SMARTNOISE_PYTHON    pip install smartnoise-sql==1.0.10 pyarrow

With SPARK_TOO=1, dphist also runs on Spark, as Tumult always does.

CPU seconds are those of the whole process tree, including imports; the peak is that of its largest process; the
error is the mean distance of released counts from the true counts without a cap; recall is the share of items with
200 users or more that are released. dphist runs again after each library, and its medians are shown.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import resource

    import duckdb

# Heavy imports come late: a child's peak starts with the memory of its parent.

PAIRS = 5_000_000
USERS = 200_000
KEYS = 1_000_000
EXPONENT = 1.1
SHIFT = 1.0
SPREAD = 0.77
COMMON = 200
EPSILON, DELTA = "1", "1e-6"
OURS = "dphist"
OURS_ON_SPARK = "dphist/Spark"
PEERS = {
    "OpenDP": ("OPENDP_PYTHON", "opendp_job.py"),
    "PipelineDP": ("PIPELINEDP_PYTHON", "pipelinedp_job.py"),
    "Tumult": ("TUMULT_PYTHON", "tumult_job.py"),
    "SmartNoise": ("SMARTNOISE_PYTHON", "smartnoise_job.py"),
}
SUBREAPER = 36


@dataclass(frozen=True)
class Used:
    """Resources used by a process tree."""

    wall: float
    cpu: float
    peak: float


@dataclass(frozen=True)
class Run:
    """One run of a tool, and the path of its result; `said` is the error, if any."""

    tool: str
    used: Used
    output: Path
    said: str = ""


@dataclass(frozen=True)
class Quality:
    keys: int
    error: float
    recall: float


def make_pairs(path: Path) -> None:
    """The pairs of the common job.

    Users are active to log-normal degrees; items have weights 1 / (rank + 1)^1.1. 452,605 items are seen, 1,896
    of them with 200 users or more; an earlier comparison of these tools had 450,975 and 1,907.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(1)
    item = np.cumsum((np.arange(1, KEYS + 1) + SHIFT) ** -EXPONENT)
    user = np.cumsum(generator.lognormal(0.0, SPREAD, USERS))
    draws = PAIRS + PAIRS // 2
    who = np.minimum(np.searchsorted(user / user[-1], generator.random(draws)), USERS - 1)
    what = np.minimum(np.searchsorted(item / item[-1], generator.random(draws)), KEYS - 1)
    both = who.astype(np.int64) * KEYS + what
    first = np.sort(np.unique(both, return_index=True)[1])[:PAIRS]
    key = generator.permutation(KEYS)
    pairs = pa.table({"user": both[first] // KEYS, "item": key[both[first] % KEYS]})
    part = path.with_suffix(".part")
    pq.write_table(pairs, part)
    part.rename(path)


def command(tool: str, events: Path, output: Path, cap: int) -> list[str]:
    if tool in (OURS, OURS_ON_SPARK):
        engine = ["--engine", "spark"] if tool == OURS_ON_SPARK else []
        return [
            sys.executable, "-m", "dphist", "release", str(events), "--user", "user", "--item", "item",
            "--epsilon", EPSILON, "--delta", DELTA, "--max-items-per-user", str(cap), "--output", str(output),
            *engine,
        ]  # fmt: skip
    variable, script = PEERS[tool]
    job = Path(__file__).with_name("peer_jobs") / script
    return [os.environ[variable], str(job), str(events), str(output), str(cap), EPSILON, DELTA]


def measured(tool: str, words: list[str], output: Path) -> Run:
    """Run a command and wait for all its processes, including orphans: Spark's Java outlives its Python."""
    with tempfile.TemporaryFile() as said:
        start = perf_counter()
        process = subprocess.Popen(words, stdout=said, stderr=said)
        cpu, peak = 0.0, 0.0
        for pid, status, usage in ended():
            cpu += usage.ru_utime + usage.ru_stime
            peak = max(peak, usage.ru_maxrss / 1024)
            if pid == process.pid:
                process.returncode = os.waitstatus_to_exitcode(status)
        used = Used(perf_counter() - start, cpu, peak)
        said.seek(0)
        printed = said.read().decode(errors="replace")
    return Run(tool, used, output, "" if process.returncode == 0 else printed.strip()[-1500:])


def ended() -> Iterator[tuple[int, int, resource.struct_rusage]]:
    while True:
        try:
            yield os.wait4(-1, 0)
        except ChildProcessError:
            return


def runs(events: Path, cap: int, folder: Path) -> list[Run]:
    """Run each available library, and dphist before and after each."""
    order = [OURS, *([OURS_ON_SPARK] if os.environ.get("SPARK_TOO") else [])]
    for peer, (variable, _) in PEERS.items():
        if os.environ.get(variable):
            order += [peer, OURS]
        else:
            print(f"{peer} is left out: {variable} names no Python", file=sys.stderr)
    done = []
    for turn, tool in enumerate(order):
        output = folder / f"{cap}_{turn}.parquet"
        run = measured(tool, command(tool, events, output, cap), output)
        state = "failed" if run.said else f"{run.used.cpu:.1f} CPU s"
        print(f"  cap {cap}: {tool}: {state} {run.said}", file=sys.stderr, flush=True)
        done += [] if run.said else [run]
    return done


def quality(connection: duckdb.DuckDBPyConnection, output: Path) -> Quality:
    """Compare a release with the true counts in the table `truth`."""
    (found,) = connection.execute(
        f"""
        SELECT count(*), avg(abs(released.count - truth.users)), count(*) FILTER (truth.users >= {COMMON})
          / (SELECT count(*) FROM truth WHERE users >= {COMMON})
        FROM '{output}' AS released JOIN truth ON CAST(released.item AS VARCHAR) = truth.item
        """
    ).fetchall()
    return Quality(int(found[0]), float(found[1]), float(found[2]))


def table(events: Path, cap: int, done: list[Run]) -> None:
    import duckdb

    connection = duckdb.connect()
    connection.execute(
        "CREATE TABLE truth AS SELECT CAST(item AS VARCHAR) AS item, count(DISTINCT user) AS users "
        f"FROM '{events}' GROUP BY ALL"
    )
    facts = f"SELECT sum(users), count(*), count(*) FILTER (users >= {COMMON}) FROM truth"
    pairs, items, common = connection.execute(facts).fetchall()[0]
    print(f"\ncap {cap}: {pairs:,} pairs, {items:,} items, {common:,} of them with {COMMON} users or more")
    print(
        f"{'tool':<12} {'CPU s':>8} {'wall s':>8} {'peak MiB':>9} {'keys':>7} {'error':>8} {'recall':>7} to ours"
    )
    ours = median(run.used.cpu for run in done if run.tool == OURS)
    for tool in dict.fromkeys(run.tool for run in done):
        own = [run for run in done if run.tool == tool]
        found = [quality(connection, run.output) for run in own]
        cpu, wall = median(run.used.cpu for run in own), median(run.used.wall for run in own)
        peak, keys = max(run.used.peak for run in own), median(one.keys for one in found)
        error, recall = median(one.error for one in found), median(one.recall for one in found)
        print(
            f"{tool:<12} {cpu:>8.1f} {wall:>8.1f} {peak:>9,.0f} {keys:>7,.0f} {error:>8,.0f} {recall:>7.3f} "
            f"{cpu / ours:>6.1f}x"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="The same private histogram by dphist and its peers.")
    parser.add_argument("--cap", type=int, action="append", help="items of a user at most; may be repeated")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--words", type=Path, help="a Parquet file of (user, item) instead of the common job")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make is not None:
        make_pairs(given.make)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    events = given.words or given.folder / "pairs.parquet"
    if not events.exists():
        subprocess.run([sys.executable, __file__, "--make", str(events)], check=True)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        caps = given.cap or ([53] if given.words else [10, 50])
        done = {cap: runs(events, cap, Path(folder)) for cap in caps}
        for cap, found in done.items():
            table(events, cap, found)


if __name__ == "__main__":
    main()
