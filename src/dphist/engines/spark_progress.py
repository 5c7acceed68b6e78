"""How far Spark is: the share of its tasks that are done, of the stages that it has begun so far."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from dphist.engines.protocol import Progress

SECONDS: Final = 0.5
# Stages that have not begun are not known yet, so that the end is kept for the end.
MOST: Final = 0.99


@contextmanager
def watched(session: Any, progress: Progress | None) -> Iterator[None]:
    """Tell `progress` a share that only grows, for as long as the context lasts; 1 at its end."""
    tracker = getattr(session, "_sc", None)  # a session on a server does not tell
    if progress is None or tracker is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(tracker.statusTracker(), progress, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    with suppress(Exception):
        progress(1.0)


def _watch(tracker: Any, progress: Progress, done: threading.Event) -> None:
    stages: dict[int, tuple[int, int]] = {}
    told = 0.0
    while not done.wait(SECONDS):
        with suppress(Exception):  # a display cannot break a run
            for stage in tracker.getActiveStageIds():
                info = tracker.getStageInfo(stage)
                if info is not None:
                    stages[stage] = (info.numCompletedTasks, info.numTasks)
            tasks = sum(total for _, total in stages.values())
            share = min(MOST, sum(ready for ready, _ in stages.values()) / tasks) if tasks else 0.0
            if share > told:
                told = share
                progress(told)
