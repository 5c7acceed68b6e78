"""The Spark session that tests share, started when a test first needs it.

A process has one session at a time: starting one of another kind ends it, so tests are in order of their kinds. A
test with its own session ends it too, and the next test starts it again.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from dphist.counting.task import Resources
from dphist.spark.counting import SparkEngine
from spark_cluster import running_cluster, session

# Two partitions: rows of a user and of an item may be apart, and small jobs are quick.
SETTINGS: Final = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}


@dataclass
class Shared:
    kind: str | None = None
    opened: ExitStack = field(default_factory=ExitStack)


_shared = Shared()


def shared_session(kind: str) -> SparkSession:
    """The session of a kind, `local` or `cluster`; started unless it is active."""
    if _shared.kind != kind:
        close_shared()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-shared-")))
            if kind == "cluster":
                running = stack.enter_context(running_cluster(folder / "cluster"))
                stack.enter_context(running.session(folder, **SETTINGS))
            else:
                stack.enter_context(session("local[2]", folder, **SETTINGS))
            _shared.kind, _shared.opened = kind, stack.pop_all()
    return SparkSession.active()


def close_shared() -> None:
    opened, _shared.kind, _shared.opened = _shared.opened, None, ExitStack()
    opened.close()


@dataclass(frozen=True)
class OnSpark:
    """Creates engines in the shared session of a kind."""

    kind: str

    def __call__(self, resources: Resources) -> SparkEngine:
        shared_session(self.kind)
        return SparkEngine(resources)
