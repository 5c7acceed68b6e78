"""Signals that wait while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType, TracebackType
from typing import Any, Final

_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class _Stopped(BaseException):
    """A signal came that ends the process, and what was begun is to be cleared away first."""


class Deferred:
    """Within this context a signal is noted and waits for `check`, or for the end of the context.

    A signal could otherwise raise between making a temporary file and knowing of it. In other threads nothing is
    changed, for signals are handled in the main thread alone.
    """

    def __init__(self) -> None:
        self._handlers = ExitStack()
        self._old: dict[int, Any] = {}
        self._waiting: list[int] = []

    def __enter__(self) -> Deferred:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in _SIGNALS:
                old = signal.getsignal(number)
                # None is a handler that Python did not install and could not put back.
                if old is not None and old != signal.SIG_IGN:
                    self._old[number] = old
                    self._handlers.callback(signal.signal, number, old)
                    signal.signal(number, self._note)
        except BaseException:
            self._handlers.close()
            raise
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._waiting.append(number)

    def check(self) -> None:
        """Handle the signals that wait; to be called where raising does no harm."""
        while self._waiting:
            old = self._old[self._waiting[0]]
            if not callable(old):
                raise _Stopped
            number = self._waiting.pop(0)
            old(number, None)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handlers.close()
        while self._waiting:
            signal.raise_signal(self._waiting.pop(0))


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the signals that end a process at once into `SystemExit`, so that whatever is temporary goes away.

    For a command's main function. The exit code is the one a shell expects: 128 and the signal's number.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise SystemExit(128 + number)

    with ExitStack() as handlers:
        for number in _SIGNALS:
            if number != signal.SIGINT and signal.getsignal(number) == signal.SIG_DFL:
                handlers.callback(signal.signal, number, signal.SIG_DFL)
                signal.signal(number, leave)
        yield
