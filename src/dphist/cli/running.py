"""What long commands share: progress bars, and a clean end on a signal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from dphist.cli.base import write_error
from dphist.display import printable
from dphist.publishing import interruptible

if TYPE_CHECKING:
    from dphist.aliases import JsonObject
    from dphist.releasing.request import Watcher


@contextmanager
def progress_bars(quiet: bool = False) -> Iterator[Watcher | None]:
    """Progress bars on a terminal. They show shares of the work, never a number from the data."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<12}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(step: str, share: float) -> None:
            if step not in tasks:
                tasks[step] = bars.add_task(step, total=1.0)
            bars.update(tasks[step], completed=share)

        yield watch


@contextmanager
def steps_shown(verbose: int) -> Iterator[None]:
    """The log of a release on standard error: with -v its steps, with -vv also what is public about them."""
    if not verbose:
        yield
        return
    logger, handler = logging.getLogger("dphist"), logging.StreamHandler(sys.stderr)
    # Times, like durations, are whole seconds.
    handler.setFormatter(_Printable("%(asctime)s %(name)s: %(message)s", datefmt="%Y-%m-%d %H:%M:%S"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _Printable(logging.Formatter):
    """Names of files cannot control a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class Stopped(typer.Exit):
    """A command was stopped by a signal. `booking` is what stays booked."""

    message = ""
    booking: JsonObject | None = None


@contextmanager
def stoppable() -> Iterator[list[object]]:
    """On a signal, print what was written or stays booked, and exit with the code that a shell expects.

    The caller appends to the list what was written.
    """
    placed: list[object] = []
    try:
        with interruptible():
            yield placed
    except (KeyboardInterrupt, SystemExit) as stopped:
        done = "nothing was written"
        if placed:
            address = getattr(placed[0], "address", None)
            done = "the output was already written" + (f" to {address}" if address else "")
        booking = getattr(stopped, "booking", None)
        if booking is not None and not placed:
            done += f". {booking['summary']}"
        write_error(f"Interrupted: {done}.")
        ended = Stopped(130 if isinstance(stopped, KeyboardInterrupt) else int(stopped.code or 143))
        ended.message, ended.booking = f"Interrupted: {done}", booking
        raise ended from None
