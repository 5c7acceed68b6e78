"""The settings of a session while a histogram is counted in it; afterwards they are as they were."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

# Kept while a histogram is counted, whatever the session has it at: a value that does not fit is NULL and no
# error, which would tell of it; and no part of a condition is taken out of what catches its errors.
WHILE_COUNTING: Final = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.subexpressionElimination.enabled": "false",
}
# Also kept unless the input is a DataFrame of Spark, of which they could change what it holds: names are exact,
# times are in UTC, the names of folders are text, JSON is right or nothing, and Parquet means what it says.
WHILE_READING: Final = {
    **WHILE_COUNTING,
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.timeType.enabled": "true",
}


@dataclass
class _Old:
    """The value that a setting had, and how many counts in this process need another."""

    value: str | None
    users: int = 0


_lock = threading.Lock()
_listeners: list[Any] = []  # what is quiet, once for each count in this process
_old: weakref.WeakKeyDictionary[Any, dict[str, _Old]] = weakref.WeakKeyDictionary()


@contextmanager
def kept(session: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while, and then the old ones: after the last of several counts at once."""
    taken = []
    try:
        with _lock:
            old = _old.setdefault(session, {})
            for name, value in settings.items():
                old.setdefault(name, _Old(session.conf.get(name, None))).users += 1
                taken.append(name)
                session.conf.set(name, value)
        yield
    finally:
        with _lock:
            for name in taken:
                old[name].users -= 1
                if not old[name].users:
                    before = old.pop(name).value
                    with suppress(Exception):  # the session may be gone
                        session.conf.unset(name) if before is None else session.conf.set(name, before)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what PySpark writes of its errors to the screen: it quotes data."""
    from pyspark.logger import PySparkLogger

    loggers = [PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")]
    with _lock:
        _listeners.append(loggers)
        for logger in loggers:
            logger.disabled = True
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(loggers)
            for logger in loggers:
                logger.disabled = bool(_listeners)
