"""Cost of a small release: CPU seconds of whole processes, and their ratios to the imports alone.

Run `python benchmarks/small_release.py [--rows 5000] [--runs 5]`.

The baseline is Python importing numpy, scipy.special, duckdb and pyarrow, which every release needs. The commands
alternate, so that other load affects all of them. Each number is the minimum of the runs: user and system time of
the process and its children. A first round, not measured, compiles the modules.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

RELEASE = "release log.csv --user user_id --item query --epsilon 1 --delta 1e-6 --output counts.csv --force"
FLOOR = "floor: import the libraries"
COMMANDS = {
    FLOOR: ["-c", "import numpy, scipy.special, duckdb, pyarrow"],
    "import dphist": ["-c", "import dphist"],
    "dphist --help": ["-m", "dphist", "--help"],
    "dphist release, limit 10": ["-m", "dphist", *RELEASE.split(), "--max-items-per-user", "10"],
    "dphist release, limit chosen": ["-m", "dphist", *RELEASE.split()],
}


def write_log(path: Path, rows: int) -> None:
    """Five events for each user, and Zipf queries."""
    chance = random.Random(7)
    queries = [f"query {rank}" for rank in range(1, 1001)]
    drawn = chance.choices(queries, [1.0 / rank for rank in range(1, 1001)], k=rows)
    lines = (f"{chance.randrange(rows // 5 + 1)},{query}\n" for query in drawn)
    path.write_text("user_id,query\n" + "".join(lines))


def cpu_seconds(words: list[str], folder: str, environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU seconds of a small release.")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_log(Path(folder, "log.csv"), given.rows)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(Path(folder, "compiled"))}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        rounds = [
            {name: cpu_seconds(words, folder, environment) for name, words in COMMANDS.items()}
            for _ in range(given.runs + 1)
        ]
    least = {name: min(one[name] for one in rounds[1:]) for name in COMMANDS}
    print(f"{'':30} {'CPU s':>6} {'to floor':>9}")
    for name, seconds in least.items():
        print(f"{name:30} {seconds:6.2f} {seconds / least[FLOOR]:9.2f}")


if __name__ == "__main__":
    main()
