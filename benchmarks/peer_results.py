"""What `make peers` measured, as benchmarks/results/peers.json holds it."""

from __future__ import annotations

from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent / "results" / "peers.json"


class Machine(msgspec.Struct, frozen=True):
    date: str
    cores: int
    memory_gib: float
    processor: str
    system: str
    python: str
    java: str


class Installation(msgspec.Struct, frozen=True):
    """A fresh environment with one tool: what it holds, and the CPU seconds of its import beyond bare Python's."""

    environment: str
    python: str
    version: str = ""
    packages: int = 0
    megabytes: float = 0.0
    import_cpu: float = 0.0
    failure: str = ""


class Job(msgspec.Struct, frozen=True):
    """The input of a job, counted without privacy; `common` is the number of items with 200 users or more."""

    name: str
    cap: int
    events: int
    pairs: int
    users: int
    items: int
    common: int
    seconds: float
    gib: float
    skipped: str = ""


class Quality(msgspec.Struct, frozen=True):
    """How a release compares with the true counts.

    `error` is the mean of |count - truth| over released items. `distance` is the sum over all items divided by the
    sum of the truth, with 0 for missing items. `held` is the share of 95 % intervals that hold the truth.
    """

    items: int
    error: float
    distance: float
    recall: float
    held: float | None = None


class Scores(msgspec.Struct, frozen=True):
    """The true numbers of an input, and the quality of releases of it."""

    events: int
    pairs: int
    users: int
    items: int
    common: int
    qualities: list[Quality]


class Measured(msgspec.Struct, frozen=True):
    """One run of a tool on a job; it has a quality or a failure."""

    job: str
    tool: str
    cpu: float
    wall: float
    peak_mib: float
    quality: Quality | None = None
    failure: str = ""


class Results(msgspec.Struct, frozen=True):
    machine: Machine
    installations: list[Installation]
    lines: dict[str, int]
    jobs: list[Job]
    runs: list[Measured]


def read_results(path: Path = RESULTS) -> Results:
    return msgspec.json.decode(path.read_bytes(), type=Results)


def write_results(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
