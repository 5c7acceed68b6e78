"""Running queries so that Ctrl-C stops them and somebody can watch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final, TypeVar

from dphist.engines.protocol import Progress

T = TypeVar("T")
TICK: Final = 0.2


class Runner:
    """Runs each query of one connection in a thread of its own.

    The calling thread only waits: so it hears Ctrl-C at once, and it is the one that reports progress.
    """

    def __init__(self, connection: Any, progress: Progress | None) -> None:
        self._connection = connection
        self._progress = progress
        self._shown = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="dphist")

    def run(self, action: Callable[[], T]) -> T:
        """The action's result; on any interruption the query is stopped first."""
        future = self._pool.submit(action)
        try:
            while not wait([future], timeout=TICK).done:
                self._look()
        except BaseException:
            self._stop(future)
            raise
        return future.result()

    def _stop(self, future: Future[T]) -> None:
        # An interrupt before the query has begun is lost, so it is repeated.
        while not future.done():
            self._connection.interrupt()
            wait([future], timeout=0.05)

    def _look(self) -> None:
        if self._progress is not None:
            with suppress(Exception):
                self._show(min(self._connection.query_progress() / 100.0, 0.99))

    def _show(self, share: float) -> None:
        # A second query begins again at zero, and an unknown share is negative: what is shown only grows.
        if share > self._shown and self._progress is not None:
            self._shown = share
            self._progress(share)

    def finished(self) -> None:
        """All of the work is done."""
        with suppress(Exception):
            self._show(1.0)

    def close(self) -> None:
        """No more queries."""
        self._pool.shutdown(wait=True)
