"""The Spark session that tests share, started when a test first needs it.

A process has one session at a time: a session of another kind, or a test's own session, ends this one. So tests
should be ordered by kind.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from dphist.counting.spark import SparkEngine
from dphist.counting.task import Resources
from spark_cluster import running_cluster, session

# Two shuffle partitions are quick, and separate the rows of a user and of an item.
SETTINGS: Final = {"spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2"}


@dataclass
class Shared:
    """The open session."""

    kind: str | None = None
    opened: ExitStack = field(default_factory=ExitStack)


_shared = Shared()


def shared_session(kind: str) -> SparkSession:
    """The session of a kind, `local` or `cluster`."""
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
    """End the open session."""
    opened, _shared.kind, _shared.opened = _shared.opened, None, ExitStack()
    opened.close()


@dataclass(frozen=True)
class OnSpark:
    """Makes engines that work in the shared session of a kind."""

    kind: str

    def __call__(self, resources: Resources) -> SparkEngine:
        shared_session(self.kind)
        return SparkEngine(resources)
