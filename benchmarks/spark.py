"""`dphist release --engine spark`, compared with the same Spark query without privacy, and what it shuffles.

Run `python benchmarks/spark.py [--events 5e7] [--folder DIR] [--runs 3] [--costs] [--only TEXT]`.

The events are those of benchmarks/release.py. Every measurement is a separate process, including Java and Python
workers. The query without privacy is Spark at its best: the same settings, each user's items chosen by a random
column, the counts written to Parquet. The two alternate; a ratio is the median over the rounds. `--costs` runs
each once more with Spark's event log and prints what was shuffled, to compare with docs/spark.md. `--only TEXT`
runs only jobs with this text in their names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from measure import Used, adopt_orphans, measured
from release import CAP, make_events

BARE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession, Window, functions as sql
from dphist.counting.task import Resources
from dphist.spark.session import Cluster, settings_for
events, output, folder, cap, *conf = sys.argv[1:]
given = tuple(tuple(one.split("=", 1)) for one in conf)
builder = SparkSession.builder
for name, value in settings_for(Resources(), Cluster(None, given), Path(folder)).items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
pairs = session.read.parquet(events).select("user", "item").distinct()
if cap:
    chance = Window.partitionBy("user").orderBy(sql.rand())
    pairs = pairs.withColumn("place", sql.row_number().over(chance)).where(f"place <= {cap}")
pairs.groupBy("item").count().write.parquet(output)
session.stop()
"""


@dataclass(frozen=True)
class Job:
    name: str
    cap: int | None
    options: tuple[str, ...] | None = None

    def command(self, events: Path, output: Path, conf: tuple[str, ...] = ()) -> list[str]:
        if self.options is None:
            cap = "" if self.cap is None else str(self.cap)
            return [sys.executable, "-c", BARE, str(events), str(output), str(output.parent), cap, *conf]
        said = ["--user", "user", "--item", "item", "--epsilon", "1", "--delta", "1e-6", "--engine", "spark"]
        settings = [word for one in conf for word in ("--spark-conf", one)]
        return [
            sys.executable, "-m", "dphist", "release", str(events), *said, *self.options, *settings,
            "--output", f"{output}/", "--temp-folder", str(output.parent),
        ]  # fmt: skip


KEEP_LOG = ("spark.eventLog.enabled=true", "spark.eventLog.compress=false")
JOBS = [
    Job("query without privacy, cap 20", CAP),
    Job("dphist, cap 20", CAP, ("--max-items-per-user", str(CAP))),
    Job("query without privacy, no cap", None),
    Job("dphist, top 1000", None, ("--top", "1000")),
    Job("dphist, default", None, ()),
]


@dataclass
class Moved:
    """What the tasks of a stage read and shuffled, from Spark's event log."""

    input_rows: int = 0
    rows: int = 0
    bytes: int = 0
    spilled: int = 0


@dataclass
class Costs:
    stages: dict[int, Moved] = field(default_factory=lambda: defaultdict(Moved))

    def shuffles(self) -> list[Moved]:
        """Stages that wrote a shuffle."""
        return [moved for _, moved in sorted(self.stages.items()) if moved.rows]


def costs_of(folder: Path) -> Costs:
    """Read Spark's event log."""
    costs = Costs()
    for path in sorted(folder.rglob("events_*")):
        for line in path.read_text().splitlines():
            event = json.loads(line)
            metrics = event.get("Task Metrics")
            if event.get("Event") != "SparkListenerTaskEnd" or metrics is None:
                continue
            stage = costs.stages[event["Stage ID"]]
            stage.input_rows += metrics["Input Metrics"]["Records Read"]
            stage.rows += metrics["Shuffle Write Metrics"]["Shuffle Records Written"]
            stage.bytes += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            stage.spilled += metrics["Disk Bytes Spilled"]
    return costs


def run(job: Job, events: Path, folder: Path, conf: tuple[str, ...] = ()) -> Used:
    with tempfile.TemporaryDirectory(dir=folder) as own:
        done = measured(job.command(events, Path(own) / "result", conf))
    if done.said:
        raise SystemExit(f"{job.name} failed: {done.said}")
    return done.used


def compare(jobs: list[Job], events: Path, folder: Path, runs: int) -> None:
    found: dict[str, list[Used]] = defaultdict(list)
    for turn in range(runs):
        for job in jobs:
            found[job.name].append(run(job, events, folder))
            used = found[job.name][-1]
            print(f"  round {turn + 1}: {job.name}: {used.wall:.1f} s", file=sys.stderr, flush=True)
    print(f"{'':<32} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'to the query without privacy':>30}")
    bare = ""
    for job in jobs:
        bare = job.name if job.options is None else bare
        own = found[job.name]
        base = found.get(bare, own)
        wall = median(a.wall / b.wall for a, b in zip(own, base, strict=True))
        cpu = median(a.cpu / b.cpu for a, b in zip(own, base, strict=True))
        ratio = "" if job.name == bare or not bare else f"wall {wall:.2f}, CPU {cpu:.2f}"
        print(
            f"{job.name:<32} {median(a.wall for a in own):>8.1f} {median(a.cpu for a in own):>8.1f} "
            f"{max(a.peak for a in own):>9.0f} {ratio:>30}"
        )


def show_costs(jobs: list[Job], events: Path, folder: Path) -> None:
    """Print what was shuffled, next to the numbers of events, pairs and items."""
    import duckdb

    facts = duckdb.execute(
        f"SELECT count(*), count(DISTINCT user), count(DISTINCT item), "
        f"(SELECT count(*) FROM (SELECT DISTINCT user, item FROM '{events}')) FROM '{events}'"
    ).fetchall()[0]
    kept = duckdb.execute(
        f"SELECT sum(least({CAP}, n)) FROM (SELECT count(DISTINCT item) AS n FROM '{events}' GROUP BY user)"
    ).fetchall()[0][0]
    print(
        f"\n{facts[0]:,} events, {facts[1]:,} users, {facts[2]:,} items, {facts[3]:,} pairs "
        f"({int(kept):,} with at most {CAP} a user)"
    )
    for job in jobs:
        with tempfile.TemporaryDirectory(dir=folder) as log:
            run(job, events, folder, (f"spark.eventLog.dir=file://{log}", *KEEP_LOG))
            costs = costs_of(Path(log))
        read = sum(stage.input_rows for stage in costs.stages.values())
        print(f"{job.name}: {read:,} rows read")
        for number, moved in enumerate(costs.shuffles(), 1):
            size = moved.bytes / 1e6
            print(
                f"  shuffle {number}: {moved.rows:>13,} rows {size:>9,.1f} MB {moved.bytes / moved.rows:>6.1f} "
                f"bytes a row, {moved.spilled / 1e6:,.0f} MB spilled"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=float, default=5e7)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--costs", action="store_true")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    adopt_orphans()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given.folder.mkdir(parents=True, exist_ok=True)
    events = given.folder / f"events_{int(given.events)}.parquet"
    if not events.exists():
        make_events(events, int(given.events), text=False)
    jobs = [job for job in JOBS if given.only in job.name]
    if given.runs:
        compare(jobs, events, given.folder, given.runs)
    if given.costs:
        show_costs(jobs, events, given.folder)


if __name__ == "__main__":
    main()
