"""The same private counts by dphist and by other tools, each in an environment of its own: `make peers`.

Run `python benchmarks/peers.py [--quick] [--only NAME] [--data DIR]`. It installs each tool's pinned packages
(benchmarks/peer_jobs/NAME.txt) into .venv-peers/NAME, runs the tools one after the other, with dphist before and
after each, and writes benchmarks/results/peers.json and peers.log. `make docs` makes the tables and the figure of
docs/peers.md from it. With --quick or --only, the results go to the folder of generated data instead.

- common: 5 million distinct (user, item) pairs of 200,000 users, Zipf items over a million keys; 10 and 50 items
  of a user at most. dphist also runs in rounds, its default, which needs no limit.
- known: the same with all keys public.
- words: the title words of reddit_title_words.parquet in the folder --data, 53 words of a user at most.
- growth: 10^6, 10^7 and 10^8 events with duplicates, 50 of each user on average, Zipf items over five million
  keys; 20 items of a user at most. After a run over the limit of time or memory, a tool is not run on more events.

Everywhere epsilon is 1 and delta 1e-6. CPU seconds are those of the whole process tree, including imports. A tool
that cannot be installed, fails or exceeds a limit is listed with the reason. Linux only.
"""

from __future__ import annotations

import argparse
import ast
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from measure import Limits, adopt_orphans, measured, reason
from msgspec.structs import replace
from peer_environments import JOBS, describe, install, python_of
from peer_results import RESULTS, Installation, Job, Machine, Measured, Results, Scores, write_results

# Heavy imports come late: a child's peak starts with the memory of its parent.

PAIRS = 5_000_000
USERS = 200_000
KEYS = 1_000_000
EXPONENT = 1.1
SHIFT = 1.0
SPREAD = 0.77
GROWTH = (1_000_000, 10_000_000, 100_000_000)
GROWTH_KEYS = 5_000_011  # a prime, so that multiplying permutes the keys
EVENTS_PER_USER = 50
EPSILON, DELTA = "1", "1e-6"
WORDS = "reddit_title_words.parquet"
GIB = 16.0


@dataclass(frozen=True)
class Tool:
    """A tool under one name: its environment, and the script that it runs, or the options of `dphist release`."""

    name: str
    environment: str
    script: str = ""
    options: tuple[str, ...] = ()

    def command(self, python: Path, events: Path, output: Path, cap: int, items: Path) -> list[str]:
        if self.script:
            return [str(python), str(JOBS / self.script), str(events), str(output), str(cap), EPSILON, DELTA]
        options = [option.format(cap=cap, items=items) for option in self.options]
        written = f"{output}/" if self == SPARK else str(output)
        return [
            str(python), "-m", "dphist", "release", str(events), "--user", "user", "--item", "item",
            "--epsilon", EPSILON, "--delta", DELTA, *options, "--interval", "0.95", "--output", written,
        ]  # fmt: skip


LIMITED = ("--max-items-per-user", "{cap}")
OURS = Tool("dphist, limit", "dphist", options=LIMITED)
ROUNDS = Tool("dphist", "dphist")
MANY = Tool("dphist, goal keys", "dphist", options=("--goal", "keys"))
SPARK = Tool("dphist on Spark, limit", "dphist-spark", options=(*LIMITED, "--engine", "spark"))
PUBLIC = Tool("dphist, public items", "dphist", options=("--items", "{items}"))
PUBLIC_LIMITED = Tool("dphist, public items, limit", "dphist", options=("--items", "{items}", *LIMITED))
OPENDP = Tool("OpenDP", "opendp", "opendp_job.py")
PYDP = Tool("PyDP", "pydp", "pydp_job.py")
PIPELINEDP = Tool("PipelineDP", "pipelinedp", "pipelinedp_job.py")
QRLEW = Tool("PyQrlew", "qrlew", "qrlew_job.py")
SMARTNOISE = Tool("SmartNoise SQL", "smartnoise", "smartnoise_job.py")
TUMULT = Tool("Tumult Analytics", "tumult", "tumult_job.py")
DIFFPRIVLIB = Tool("diffprivlib", "diffprivlib", "diffprivlib_job.py")
OTHERS = (OPENDP, PYDP, PIPELINEDP, QRLEW, SMARTNOISE, TUMULT)


@dataclass(frozen=True)
class Task:
    """One job: its events, the tools that run it in this order, and how long each may take."""

    name: str
    events: Path
    cap: int
    tools: tuple[Tool, ...]
    seconds: float


def interleaved(*others: Tool) -> tuple[Tool, ...]:
    """dphist before and after each other tool; the fast ones three times."""
    fast = [tool for tool in others if tool in (OPENDP, PYDP)]
    order = [OURS]
    for tool in (ROUNDS, MANY, *fast, ROUNDS, MANY, *fast, ROUNDS, MANY, *others):
        order += [tool] if tool in (ROUNDS, MANY) else [tool, OURS]
    return tuple(order)


def tasks(folder: Path, data: Path | None, scale: int) -> Iterator[Task]:
    """All jobs; with a scale of 20, on a twentieth of the data."""
    pairs = folder / f"pairs_{PAIRS // scale}.parquet"
    for cap in (10, 50):
        yield Task(f"common, {cap}", pairs, cap, interleaved(SPARK, *OTHERS), 300)
    yield Task("known", pairs, 10, (PUBLIC_LIMITED, PUBLIC, DIFFPRIVLIB, PUBLIC, PUBLIC_LIMITED), 120)
    yield Task("words", (data or folder) / WORDS, 53, interleaved(*OTHERS), 120)
    grown = (OURS, ROUNDS, OPENDP, PYDP, PIPELINEDP, QRLEW, SMARTNOISE, TUMULT, SPARK)
    for events in GROWTH:
        path = folder / f"events_{events // scale}.parquet"
        yield Task(f"growth, {events // scale}", path, 20, grown, 60)


# Data


def make_pairs(path: Path, pairs: int, users: int) -> None:
    """Users are active to log-normal degrees; items have weights 1 / (rank + 1)^1.1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(1)
    item = np.cumsum((np.arange(1, KEYS + 1) + SHIFT) ** -EXPONENT)
    user = np.cumsum(generator.lognormal(0.0, SPREAD, users))
    draws = pairs + pairs // 2
    who = np.minimum(np.searchsorted(user / user[-1], generator.random(draws)), users - 1)
    what = np.minimum(np.searchsorted(item / item[-1], generator.random(draws)), KEYS - 1)
    both = who.astype(np.int64) * KEYS + what
    first = np.sort(np.unique(both, return_index=True)[1])[:pairs]
    key = generator.permutation(KEYS)
    table = pa.table({"user": both[first] // KEYS, "item": key[both[first] % KEYS]})
    part = path.with_suffix(".part")
    pq.write_table(table, part)
    part.rename(path)


def make_events(path: Path, events: int) -> None:
    """Random users, and items by the inverse of a power law; the multiplication scatters the frequent keys."""
    import duckdb

    part = path.with_suffix(".part")
    tail = GROWTH_KEYS ** (1 - EXPONENT)
    chance = "(hash(i) >> 11) / 9007199254740992.0"
    rank = f"least({GROWTH_KEYS - 1}, (1 - {chance} * (1 - {tail})) ** (1 / (1 - {EXPONENT})) - 1)::BIGINT"
    duckdb.execute(
        f"COPY (SELECT (hash(-i) % {events // EVENTS_PER_USER})::BIGINT AS user, "
        f"{rank} * 7919 % {GROWTH_KEYS} AS item FROM range({events}) AS numbers(i)) TO '{part}' (FORMAT parquet)"
    )
    part.rename(path)


def make_data(path: Path) -> None:
    """Make events_NUMBER.parquet, pairs_NUMBER.parquet, or under any other name the pairs of the common job."""
    if found := re.fullmatch(r"events_(\d+)", path.stem):
        make_events(path, int(found[1]))
        return
    found = re.fullmatch(r"pairs_(\d+)", path.stem)
    pairs = int(found[1]) if found else PAIRS
    make_pairs(path, pairs, USERS * pairs // PAIRS)


# Running


class Log:
    """Progress on standard error and in a file."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        self.path = path

    def __call__(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            print(line, file=file)


def run_task(
    task: Task, pythons: dict[str, Path], missing: dict[str, str], folder: Path, log: Log
) -> tuple[Job, list[Measured]]:
    """Run the tools of a job in turn; `missing` has the reason of those that cannot run it."""
    outputs: list[tuple[Measured, Path]] = []
    items = folder / "keys.csv"
    if task.name == "known":
        items.write_text("item\n" + "".join(f"{key}\n" for key in range(KEYS)), encoding="utf-8")
    failures = dict(missing)
    warm(task.events)
    for turn, tool in enumerate(task.tools):
        if tool.environment not in pythons:
            continue
        failure = failures.get(tool.name)
        if failure is not None:
            if tool.name not in {run.tool for run, _ in outputs}:
                outputs.append((Measured(task.name, tool.name, 0, 0, 0, failure=failure), folder))
                log(f"{task.name}: {tool.name}: {failure}")
            continue
        # Spark writes a folder.
        output = folder / (f"{turn}" if tool == SPARK else f"{turn}.parquet")
        command = tool.command(pythons[tool.environment], task.events, output, task.cap, items)
        done = measured(command, Limits(task.seconds, GIB), {"PYSPARK_PYTHON": str(pythons[tool.environment])})
        used, failed = done.used, reason(done.said) if done.said else ""
        if not failed and not output.exists():
            failed = "wrote no result"
        if failed:
            failures[tool.name] = failed
        figures = f"{used.cpu:.1f} CPU s, {used.wall:.1f} s, {used.peak:,.0f} MiB"
        log(f"{task.name}: {tool.name}: {figures}" + (f": {failed}" if failed else ""))
        numbers = round(used.cpu, 2), round(used.wall, 2), round(used.peak)
        outputs.append((Measured(task.name, tool.name, *numbers, failure=failed), output))
    scores = score(task.events, [output for run, output in outputs if not run.failure])
    qualities = iter(scores.qualities)
    runs = [run if run.failure else replace(run, quality=next(qualities)) for run, _ in outputs]
    facts = scores.events, scores.pairs, scores.users, scores.items, scores.common
    return Job(task.name, task.cap, *facts, task.seconds, GIB), runs


def warm(file: Path) -> None:
    """Read a file once, so that every tool finds it in memory."""
    with file.open("rb") as stream:
        while stream.read(1 << 24):
            pass


def score(events: Path, outputs: list[Path]) -> Scores:
    """In a process of its own: a child's peak starts with the memory of its parent."""
    script = Path(__file__).with_name("peer_quality.py")
    done = subprocess.run([sys.executable, script, events, *outputs], check=True, stdout=subprocess.PIPE)
    return msgspec.json.decode(done.stdout, type=Scores)


def machine() -> Machine:
    processors = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = shutil.which("java")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr if java else ""
    return Machine(
        datetime.now(UTC).strftime("%Y-%m-%d"),
        len(os.sched_getaffinity(0)),
        round(memory, 1),
        processors[0] if processors else platform.machine(),
        platform.system(),
        platform.python_version(),
        (re.findall(r'"(.*?)"', said) or [""])[0],
    )


def user_lines(tool: Tool) -> int:
    """Lines of code: of dphist the one command, of a script all but its docstring, comments and blank lines."""
    if not tool.script:
        return 1
    text = (JOBS / tool.script).read_text(encoding="utf-8")
    docstring = ast.parse(text).body[0].end_lineno or 0
    return sum(bool(line.split("#")[0].strip()) for line in text.splitlines()[docstring:])


def installations(here: bool, environments: set[str], log: Log) -> tuple[dict[str, Path], list[Installation]]:
    """The Python of each environment; `here` takes this one for all, and installs nothing."""
    if here:
        return {name: Path(sys.executable) for name in environments}, []
    names = sorted(environments)
    log(f"installing {', '.join(names)}")
    with ThreadPoolExecutor(2) as pool:
        failures = list(pool.map(install, names))
    found = []
    for name, failure in zip(names, failures, strict=True):
        found.append(one := describe(name, failure))
        log(
            f"{name}: {one.failure or one.version}: {one.packages} packages, {one.megabytes:,.0f} MB, "
            f"import {one.import_cpu:.2f} CPU s"
        )
    return {name: python_of(name) for name in names}, found


def compare(given: argparse.Namespace, output: Path, log: Log) -> None:
    """Run all jobs, and write the results after each."""
    chosen = [task for task in tasks(given.folder, given.data, 20 if given.quick else 1) if given.job in task.name]
    every = {tool for task in chosen for tool in task.tools}
    wanted = {tool for tool in every if not given.only or tool.environment in given.only}
    pythons, installed = installations(given.here, {tool.environment for tool in wanted}, log)
    broken = {one.environment: one.failure for one in installed if one.failure}
    missing = {tool.name: broken[tool.environment] for tool in wanted if tool.environment in broken}
    jobs: list[Job] = []
    runs: list[Measured] = []
    stopped: dict[str, str] = {}
    lines = {tool.name: user_lines(tool) for tool in sorted(wanted, key=lambda tool: tool.name)}
    for task in chosen:
        if not task.events.exists() and task.name == "words":
            log(f"words: skipped: --data names no folder with {WORDS}")
            jobs.append(Job("words", task.cap, 0, 0, 0, 0, 0, task.seconds, GIB, "the data was not there"))
            continue
        if not task.events.exists():
            subprocess.run([sys.executable, __file__, "--make", str(task.events)], check=True)
        growth = task.name.startswith("growth")
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            skipped = {**missing, **stopped} if growth else missing
            job, found = run_task(task, pythons, skipped, Path(folder), log)
        jobs.append(job)
        runs += found
        if growth:
            failed = [run for run in found if run.failure and run.tool not in skipped]
            stopped |= {run.tool: f"not run; {job.events:,} events: {run.failure}" for run in failed}
        write_results(Results(machine(), installed, lines, jobs, runs), output)


def main() -> None:
    parser = argparse.ArgumentParser(description="The same private counts by dphist and other tools.")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the data")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this environment; may be repeated")
    parser.add_argument("--job", default="", help="only jobs with this text in their name")
    parser.add_argument("--data", type=Path, help=f"the folder of {WORDS}")
    parser.add_argument("--here", action="store_true", help="install nothing: this Python has the tools")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "dphist_benchmark")
    parser.add_argument("--output", type=Path, help="the JSON file of the results; the log is next to it")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make is not None:
        make_data(given.make)
        return
    given.folder.mkdir(parents=True, exist_ok=True)
    partial = given.quick or given.only or given.job
    output = given.output or (given.folder / "peers.json" if partial else RESULTS)
    adopt_orphans()
    if not given.here:
        os.environ.pop("PYTHONPATH", None)
    compare(given, output, Log(output.with_suffix(".log")))


if __name__ == "__main__":
    main()
